// The control program of xnn2: two parts that alternate, sums over K in the tiles, lists that repeat.
// SPDX-License-Identifier: Apache-2.0
#include "../aie/products.h"

#include "../pl/dataflow.h"

namespace rsn::mme {

namespace {

using xnn::Mme;

// Results, each a sum over `many` products.
template <typename Place>
void results(Place &place, Operand &a, Operand &b, const Mme &op, unsigned count, unsigned many, const float *zeros) {
    const unsigned used = op.n64 ? groups / 2 : groups;
each_result:
    for (unsigned i = 0; many && i < count; ++i) {
    each_product:
        for (unsigned k = 0; k < many; ++k) {
            a.acquire();
            b.acquire();
            if (!k) place.acquire();
            Start start = {zeros, 0, 0};
            if (k) start = {place.sums(), rows * 8, 8};
            const bool last = k + 1 == many;
            if (op.k64 && last) multiply<depth / 2, true>(place, a.data(), b.data(), start, place.sums(), used);
            else if (op.k64) multiply<depth / 2, false>(place, a.data(), b.data(), start, place.sums(), used);
            else if (last) multiply<depth, true>(place, a.data(), b.data(), start, place.sums(), used);
            else multiply<depth, false>(place, a.data(), b.data(), start, place.sums(), used);
            b.release();
            a.release();
        }
        place.release();
    }
}

// What a sum begins with.
struct Zeros {
    alignas(32) const float of[8] = {};
};

// Whether the stack of tile c of a cascade has room for what is kept there, beside that for calls.
template <typename Place>
constexpr bool fits(unsigned c) {
    return sizeof(Place) + sizeof(Zeros) + stack_for_calls <= stack_bytes(c);
}
static_assert(fits<First>(0) && fits<Middle>(1) && fits<Middle>(2) && fits<Last>(3));

template <typename Place>
void run(Place &place, Operand &a, Operand &b, Ops ops) {
    const Zeros zeros;
    unsigned number = 0, left = 0;
    bool repeats = false;
each_entry:
    for (unsigned i = 0; i < ops[1];) {
        const Mme op = Mme::decode(&ops[2 + Mme::words * i]);
        if (op.length) {
            if (!repeats) left = op.times;
            repeats = left != 0;
            if (repeats) --left;
            i = repeats ? i - op.length : i + 1;
            continue;
        }
        RSN_UOP(number++);
    both_parts:
        for (unsigned t = 0; t < op.times; ++t) {
            results(place, a, b, op, op.first, op.first_depth, zeros.of);
            results(place, a, b, op, op.second, op.second_depth, zeros.of);
        }
        ++i;
    }
}

}  // namespace

}  // namespace rsn::mme

#include "../aie/entries.h"
