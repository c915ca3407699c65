// What the processes around Post share: packets of results, and constants of blocks.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_XNN8_POST_H
#define RSN_XNN8_POST_H

#include "units.h"

namespace rsn::xnn8::pl {

constexpr unsigned half_beats = group_beats / 2;  // of half a block, all that a narrow head has
constexpr unsigned narrow_packets = 4;            // of a narrow head by one channel, at most
constexpr int product_bits = 41, kept_bits = 15;
constexpr int least = product_bits - sum_bits;  // shift of a product
constexpr RowExponents no_more_rows = {true, false, false, false, false, false, {}, {}, {}};

// Two vectors of a block, four columns a word, with their exponents, and the shift of a product.
struct BlockConstants {
    Shorts first[4 * pairs], second[4 * pairs];
    int16_t first_exponent[pairs], second_exponent[pairs], shift[pairs];

    // Takes the i-th word of a block.
    void put(unsigned block, unsigned i, hls::stream<Shorts> &from) {
#pragma HLS INLINE
        if (i < 4) {
            first[4 * block + i] = from.read();
        } else if (i < 8) {
            second[4 * block + i - 4] = from.read();
        } else {
            const Shorts word = from.read();
            if (i > 8) return;
            first_exponent[block] = word[0];
            second_exponent[block] = word[1];
            shift[block] = word[2];
        }
    }
    void take(unsigned block, hls::stream<Shorts> &from) {
#pragma HLS INLINE
    take_constants:
        for (unsigned i = 0; i < piece_words; ++i) {
#pragma HLS PIPELINE II=ii::constants style=flp
            put(block, i, from);
        }
    }
};

}  // namespace rsn::xnn8::pl

#endif  // RSN_XNN8_POST_H
