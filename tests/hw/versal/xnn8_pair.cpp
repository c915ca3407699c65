// Runs a pair of AIE tiles of xnn8 on windows in memory, for tests.
// SPDX-License-Identifier: Apache-2.0
#include "csim/process.h"
#include "xnn8/kernels.h"

namespace {

using namespace rsn::xnn8;
using Window = hls::stream<float>;

struct Buffer {
    adf::native::Node node;
    explicit Buffer(std::size_t floats, std::size_t count = 2) {
        node.buffer = std::make_unique<Window>();
        node.buffer->open("window", count * floats);
    }
};

void feed(Window &to, const float *from, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to.write(from[i]);
}

template <unsigned column>
void run(const float *const (&a)[2], std::size_t chunks, const float *const (&b)[2], std::size_t slices, float *out,
         const std::uint8_t *odd, std::size_t windows) {
    Buffer of_a[2] = {Buffer(Chunk::floats), Buffer(Chunk::floats)};
    Buffer of_b[2] = {Buffer(Slice::floats), Buffer(Slice::floats)}, of_c[2] = {Buffer(Result::floats), Buffer(Result::floats)};
    Buffer between(Handed::floats, 1);
    hls::stream<adf::native::Cascade<acc48>::Word> sums;
    sums.open("cascade", adf::native::cascade_depth);
    rsn::csim::Region region;
    for (int i = 0; i < 2; ++i) {
        region.start("A", [&, i] { feed(*of_a[i].node.buffer, a[i], chunks * Chunk::floats); });
        region.start("B", [&, i] { feed(*of_b[i].node.buffer, b[i], slices * Slice::floats); });
    }
    region.start("first", [&] {
        Chunk chunk{of_a[0].node};
        Slice slice{of_b[0].node};
        Handed handed{between.node};
        output_cascade<acc48> to{&sums};
        for (;;) pair_first<column>(chunk, slice, handed, &to);
    }, true);
    region.start("last", [&] {
        Chunk chunk{of_a[1].node};
        Slice slice{of_b[1].node};
        input_cascade<acc48> from{&sums};
        Hands hands{between.node};
        Result of_even{of_c[0].node}, of_odd{of_c[1].node};
        for (;;) pair_last<column>(chunk, slice, &from, hands, of_even, of_odd);
    }, true);
    region.start("C", [&] {
        for (std::size_t i = 0; i < windows * Result::floats; ++i)
            out[i] = of_c[odd[i / Result::floats]].node.buffer->read();
    });
}

}  // namespace

// a, b: of both tiles, one window behind the other. odd: of each window of results, by which buffer it leaves. Returns the state of the machine at its end: 1 if all was taken.
extern "C" __attribute__((visibility("default"))) int run_pair(
    unsigned column, const float *a0, const float *a1, std::size_t chunks, const float *b0, const float *b1,
    std::size_t slices, float *out, const std::uint8_t *odd, std::size_t windows
) {
    using rsn::csim::Machine;
    Machine machine({});
    Machine::current = &machine;
    constexpr decltype(&run<0>) of[] = {run<0>, run<1>, run<2>, run<3>, run<4>, run<5>, run<6>, run<7>};
    machine.start("pair", [&] { of[column]({a0, a1}, chunks, {b0, b1}, slices, out, odd, windows); });
    return static_cast<int>(machine.wait(60000));
}
