// (x - mean) * (1 / sqrt(variance + eps)) of rows on their way into a MemA, by statistics that a MemC has stored.
//
// The statistics of 128 rows are a quarter block: 64 words of 1024 bit, of which word w has row w in its first half and
// row 64 + w in its second: mean, variance, and over how many columns; the rest is 0. Those of several parts of the
// columns come one after the other, and are put together by Chan's update, which does not subtract large numbers that
// are nearly equal. A word takes a round for each of its two rows.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_ROW_NORM_H
#define RSN_PL_ROW_NORM_H

#include "counter.h"
#include "math.h"
#include "tiles.h"

namespace rsn::xnn {

constexpr unsigned normed_rows = buffers::MemA_rows;
// A number for each row, those of even and of odd rows in memories of their own: a word has two rows.
using Numbers = float[2][normed_rows / 2];

constexpr unsigned words_of_statistics = smallest_load / beat_floats;
static_assert(words_of_statistics * 2 == tile, "a word has two rows of a tile");

// Takes the statistics of row tiles: of each row the mean, and 1 / deviation in `factor`. A row comes again in the next
// part, after 128 rounds. mean, count and factor are what has been put together so far; of factor the sum of squares.
inline void take_statistics(const MemANorm &op, hls::stream<Beat> &ddr, Numbers &mean, Numbers &count,
                            Numbers &factor) {
#pragma HLS INLINE
    static_assert(rounds::statistics == 2, "the distances below");
statistics_tiles:
    for (unsigned first = 0; first < op.rows * tile; first += tile) {
        Beat word(0.0f);
        bool more = false;  // than one part
        Counter i = 0;
    statistics_words:
        for (Countdown<12> left(op.parts * tile); left.more(); left.next()) {
#pragma HLS PIPELINE II=ii::statistics style=flp
#pragma HLS DEPENDENCE variable=mean type=inter direction=RAW distance=128 dependent=true
#pragma HLS DEPENDENCE variable=count type=inter direction=RAW distance=128 dependent=true
#pragma HLS DEPENDENCE variable=factor type=inter direction=RAW distance=128 dependent=true
            const unsigned half = i % 2;
            if (half == 0) word = ddr.read();
            const unsigned row = (first + half * (tile / 2) + i / 2) % normed_rows, at = half * line_floats;
            const float m = word[at], v = word[at + 1], c = word[at + 2];
            const float n0 = more ? count[row % 2][row / 2] : 0.0f;
            const float m0 = more ? mean[row % 2][row / 2] : 0.0f;
            const float squares = more ? factor[row % 2][row / 2] : 0.0f;
            const float n = add_in_fabric(n0, c);
            const float apart = add_in_fabric(m, -m0), share = c / n;
            const float own = (op.rms ? add_in_fabric(v, m * m) : v) * c;
            const float between = apart * apart * (n0 * share);
            count[row % 2][row / 2] = n;
            mean[row % 2][row / 2] = op.rms ? 0.0f : add_in_fabric(m0, apart * share);
            factor[row % 2][row / 2] = add_in_fabric(squares, op.rms ? own : add_in_fabric(own, between));
            if (i != tile - 1) {
                ++i;
            } else {
                i = 0;
                more = true;
            }
        }
    factors:
        for (unsigned n = 0; n < tile; ++n) {
// hls-allow fill: two divisions and a root; a few cycles once a tile, which hide in the wait for the memory
#pragma HLS PIPELINE II=ii::exchange style=flp
#pragma HLS DEPENDENCE variable=factor type=inter dependent=false
            const unsigned row = (first + n) % normed_rows;
            float &own = factor[row % 2][row / 2];
            own = 1.0f / sqrt_of(add_in_fabric(own / count[row % 2][row / 2], op.eps));
        }
    }
}

// fill() of tiles.h with the norm on the way, in one loop for all blocks: its pipeline is too deep to empty after each.
template <unsigned Cols, unsigned Banks, unsigned Depth>
void fill_normalised(Cell<Banks> (&buffer)[Banks][Depth], unsigned rows, unsigned cols, const MemANorm &norm,
                     const Numbers &mean, const Numbers &factor, hls::stream<Beat> &from) {
#pragma HLS INLINE
    Counter w = 0, row = 0, col = 0;
normalised_words:
    for (Countdown<11> left(rows / block_rows * (cols / block_cols) * words_per_block); left.more(); left.next()) {
#pragma HLS PIPELINE II=ii::normalise style=flp
        const unsigned above = norm.same ? 0u : unsigned(row);
        const unsigned of = (norm.first * tile + above + word_row(w)) % normed_rows;
        Beat word = from.read();
        for (unsigned i = 0; i < beat_floats; ++i) {
#pragma HLS UNROLL
            const unsigned half = i / line_floats;  // a word has two rows
            word[i] = add_in_fabric(word[i], -mean[half][of / 2]) * factor[half][of / 2];
        }
        put_word<Cols>(buffer, row + word_row(w), col + word_col(w), word);
        if (w != words_per_block - 1) {
            ++w;
        } else {
            w = 0;
            const bool ends = col + 2 * block_cols > cols;  // no block follows in these rows
            if (ends) row += block_rows;
            col = ends ? 0u : col + block_cols;
        }
    }
}

}  // namespace rsn::xnn

#endif  // RSN_PL_ROW_NORM_H
