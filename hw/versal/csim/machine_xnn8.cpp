// The machine of xnn8: the kernel and 384 tiles, each a thread. Chunks are given to all tiles of a row or a column of
// pairs at once, packets of results leave as they come.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <memory>
#include <vector>

#include "../xnn8/dma_hls.h"
#include "../xnn8/kernels.h"
#include "process.h"
#include "run.h"

namespace rsn::csim {

namespace {

using namespace xnn8;
using pl::Beat128, pl::engines, pl::lanes, pl::pairs, pl::window_beats;
using Window = hls::stream<float>;

constexpr std::size_t beat_words = 4, channels = 2;

struct Buffer {
    adf::native::Node node;
    explicit Buffer(std::size_t words, std::size_t count = adf::native::buffers) {
        node.buffer = std::make_unique<Window>();
        node.buffer->open("window", count * words);
    }
};

struct Pair {
    Buffer a[2] = {Buffer(Chunk::floats), Buffer(Chunk::floats)};
    Buffer b[2] = {Buffer(Slice::floats), Buffer(Slice::floats)};
    Buffer c[channels] = {Buffer(Result::floats), Buffer(Result::floats)};
    Buffer handed{Handed::floats, 1};
    hls::stream<adf::native::Cascade<acc48>::Word> sums;

    Pair() { sums.open("cascade", adf::native::cascade_depth); }

    template <unsigned column>
    void start(Region &region, const char *name) {
        region.start(name, [this] {
            Chunk chunk{a[0].node};
            Slice slice{b[0].node};
            Handed from{handed.node};
            output_cascade<acc48> to{&sums};
            for (;;) pair_first<column>(chunk, slice, from, &to);
        }, true);
        region.start(name, [this] {
            Chunk chunk{a[1].node};
            Slice slice{b[1].node};
            input_cascade<acc48> from{&sums};
            Hands to{handed.node};
            Result even{c[0].node}, odd{c[1].node};
            for (;;) pair_last<column>(chunk, slice, &from, to, even, odd);
        }, true);
    }
};

// Fills a buffer of each of eight tiles.
void give(hls::stream<Beat128> &from, Window *(&to)[pairs], std::size_t words) {
    std::vector<float> window(words);
    for (;;) {
        for (std::size_t i = 0; i < words; i += beat_words) {
            const Beat128 beat = from.read();
            std::memcpy(&window[i], &beat[0], sizeof beat);
        }
        for (Window *one : to) {
            std::memcpy(one->window_to_write(words), window.data(), 4 * words);
            one->written(words);
        }
    }
}

// Takes packets from four pairs, by both channels of each: in any order.
void merge(Window *(&from)[pairs], hls::stream<Beat128> &to) {
    std::vector<Channel *> all;
    for (Window *one : from) all.push_back(&one->channel());
    for (unsigned next = 0;; next = Process::current->next(next, pairs)) {
        wait_any(all);
        if (!from[next]->channel().ask(Channel::get)) continue;
        std::vector<float> packet(window_beats * beat_words);
        std::memcpy(packet.data(), &next, sizeof next);
        std::memcpy(&packet[1], from[next]->window_to_read(Result::floats), 4 * Result::floats);
        from[next]->taken(Result::floats);
        for (std::size_t i = 0; i < packet.size(); i += beat_words) {
            Beat128 beat;
            std::memcpy(&beat[0], &packet[i], sizeof beat);
            to.write(beat);
        }
    }
}

using Ends = hls::stream<Beat128>[engines][lanes][2];

// By engine, row and column.
struct Array {
    Pair of[engines][lanes][pairs];

    void start(Region &region, Ends &a, Ends &b, Ends &c) {
        constexpr decltype(&Pair::start<0>) starts[] = {
            &Pair::start<0>, &Pair::start<1>, &Pair::start<2>, &Pair::start<3>,
            &Pair::start<4>, &Pair::start<5>, &Pair::start<6>, &Pair::start<7>};
        for (unsigned e = 0; e < engines; ++e) {
            const std::string name = "Engine" + std::to_string(e);
            for (unsigned r = 0; r < lanes; ++r) {
                for (unsigned column = 0; column < pairs; ++column)
                    (of[e][r][column].*starts[column])(region, name.c_str());
                for (unsigned t = 0; t < 2; ++t) {
                    region.start(name.c_str(), [this, e, r, t, &a] {
                        Window *to[pairs];
                        for (unsigned i = 0; i < pairs; ++i) to[i] = of[e][r][i].a[t].node.buffer.get();
                        give(a[e][r][t], to, Chunk::floats);
                    }, true);
                    region.start(name.c_str(), [this, e, r, t, &b] {  // r: a column
                        Window *to[lanes];
                        for (unsigned i = 0; i < lanes; ++i) to[i] = of[e][i][r].b[t].node.buffer.get();
                        give(b[e][r][t], to, Slice::floats);
                    }, true);
                    region.start(name.c_str(), [this, e, r, t, &c] {
                        Window *from[pairs];
                        for (unsigned i = 0; i < pairs; ++i)
                            from[i] = of[e][r][i / channels * 2 + t].c[i % channels].node.buffer.get();
                        merge(from, c[e][r][t]);
                    }, true);
                }
            }
        }
    }
};

}  // namespace

// No array of xnn8 has a part in reports: what waits is told by the processes of the kernel.
std::string unit_of(const std::string &name) { return name; }
ArrayWindow window_of(const std::string &) { return {}; }

void run_machine(const rsn_csim_program &program) {
    const auto port = [](float *memory, std::uint64_t floats) {
        return pl::MemoryPort(reinterpret_cast<pl::Shorts *>(memory), floats / 8);
    };
    const pl::MemoryPort ddr = port(program.ddr, program.ddr_floats), lpddr = port(program.lpddr, program.lpddr_floats);
    std::uint64_t fingerprint = 0;
    const auto array = std::make_unique<Array>();
    Ends a, b, c;
    open_all(a, "A", 8);
    open_all(b, "B", 8);
    open_all(c, "C", 8);
    RSN_DATAFLOW();
    array->start(rsn_region, a, b, c);
    RSN_PROCESS("dma_hls", pl::dma_hls, lpddr, lpddr, lpddr, lpddr, ddr, ddr, ddr, ddr, program.image, &fingerprint,
        a[0],
                a[1], a[2], b[0], b[1], b[2], c[0], c[1], c[2]);
}

}  // namespace rsn::csim
