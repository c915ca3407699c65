// Products of blocks, as both tiles of a pair compute them, and the memory that they need.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_XNN8_BLOCKS_H
#define RSN_XNN8_BLOCKS_H

#include <aie_api/aie.hpp>
#include <aie_api/aie_adf.hpp>

#include "kernels.h"

// For AMD's compiler: what is read here and what is written through another such pointer may change places. Sums are
// read and written at the same addresses, but each block reads its own before it writes them, and no others.
#ifdef RSN_CSIM
#define RSN_APART
#else
#define RSN_APART __restrict
#endif

namespace rsn::xnn8 {

using Sums = aie::accum<acc48, 8>;  // what passes a cascade in a cycle
using Vector = aie::vector<int32, vector_lanes>;
template <typename A>
using Product = aie::mmul<4, 8, 4, A, int8>;

constexpr unsigned bytes = 32;                        // of a block of int8
constexpr unsigned across = columns / 8;              // blocks of 8x8 in a row
constexpr unsigned block_words = 4 * vector_lanes;    // sums of 8x8
constexpr unsigned odd = rows * columns / 2;          // from where sums of an even block are to those of the next one

// Where the sums of a block of 8x8 lie. Even and odd blocks lie 8 KiB apart, so in different banks: sums of one are
// loaded while those of the one before are stored (AM009, "AI Engine Memory").
constexpr unsigned place(unsigned number) { return number % 2 * odd + number / 2 * block_words; }

// Where sums begin: at zero, or at what they are, shifted to the left.
struct Start {
    const int32 *from;
    unsigned per_vector, per_pair, to_odd;
    int up;
};
constexpr Start continued(const int32 *sums, int up = 0) { return {sums, vector_lanes, block_words, odd, up}; }
constexpr Start same(const int32 *vector) { return {vector, 0, 0, 0, 0}; }

// Adds the products of two groups of rows and two groups of columns: four instructions for each step along K, all four
// accumulators of 768 bit, half of the vector registers (AM009, "Register Files"), four loads. a, b: the first vectors;
// groups of rows lie K vectors apart, groups of columns side by side.
template <unsigned K, typename A>
[[gnu::always_inline]] inline void add_products(
    Product<A> &c00, Product<A> &c01, Product<A> &c10, Product<A> &c11, const A *RSN_APART a, const int8 *RSN_APART b
) {
along_k:
    for (unsigned k = 0; k < K; ++k) chess_unroll_loop(*) {
        const auto a0 = aie::load_v<bytes>(a + bytes * k), a1 = aie::load_v<bytes>(a + bytes * (K + k));
        const auto b0 = aie::load_v<bytes>(b + 2 * bytes * k), b1 = aie::load_v<bytes>(b + 2 * bytes * k + bytes);
        c00.mac(a0, b0);
        c01.mac(a0, b1);
        c10.mac(a1, b0);
        c11.mac(a1, b1);
    }
}

// Adds the products of one block of 8x8, K = 32. What moves sums into accumulators shifts them, by 0 or by more, so a
// shift takes no instruction of its own.
template <typename A>
[[gnu::always_inline]] inline void add_block(
    const A *RSN_APART a, const int8 *RSN_APART b, const int32 *RSN_APART from, unsigned per_vector, int up,
    int32 *RSN_APART to
) {
    Product<A> c00(aie::load_v<vector_lanes>(from), up);
    Product<A> c01(aie::load_v<vector_lanes>(from + per_vector), up);
    Product<A> c10(aie::load_v<vector_lanes>(from + 2 * per_vector), up);
    Product<A> c11(aie::load_v<vector_lanes>(from + 3 * per_vector), up);
    add_products<half / 8>(c00, c01, c10, c11, a, b);
    aie::store_v(to, c00.template to_vector<int32>());
    aie::store_v(to + vector_lanes, c01.template to_vector<int32>());
    aie::store_v(to + 2 * vector_lanes, c10.template to_vector<int32>());
    aie::store_v(to + 3 * vector_lanes, c11.template to_vector<int32>());
}

// Adds the products of `down` by `wide` blocks of 8x8, K = 32, to sums. wide: 8 or 4.
//
// Slots of a block, of 16 cycles with one vector instruction each: 16 loads of operands and 8 of sums, of 32; 8 stores,
// of 16. One loop for all blocks, because a pipeline takes the time of a block to fill: addresses follow from a number.
template <typename A>
[[gnu::noinline]] void multiply(
    const A *RSN_APART a, const int8 *RSN_APART b, Start start, int32 *RSN_APART sums, unsigned down, unsigned wide
) {
    constexpr unsigned pair = 2 * half / 8 * bytes;  // of groups of rows or columns
    const unsigned bits = wide == across ? 2 : 1;    // of the number of two blocks in a row
    const unsigned count = down << bits;
two_blocks:
    for (unsigned n = 0; n < count; ++n) chess_prepare_for_pipelining chess_loop_range(2, 32) {
        const unsigned row = n >> bits, column = n - (row << bits), number = row * across / 2 + column;
        const int8 *right = b + column * 2 * pair;
        const int32 *from = start.from + number * start.per_pair;
        int32 *to = sums + number * block_words;
        add_block(a + row * pair, right, from, start.per_vector, start.up, to);
        add_block(a + row * pair, right + pair, from + start.to_odd, start.per_vector, start.up, to + odd);
    }
}

}  // namespace rsn::xnn8

#endif  // RSN_XNN8_BLOCKS_H
