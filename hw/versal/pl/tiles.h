// Matrices in and out of a buffer: as blocks from and to off-chip memory, as tiles to the MMEs. A word or beat a cycle.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_TILES_H
#define RSN_PL_TILES_H

#include "buffer.h"

namespace rsn::xnn {

// Where word w of a block lies in it: four words to a pair of rows.
constexpr unsigned word_row(unsigned w) { return w / 4 * 2; }
constexpr unsigned word_col(unsigned w) { return w % 4 * line_floats; }

// rows x cols elements, in blocks, row after row.
template <unsigned Cols, unsigned Banks, unsigned Depth>
void fill(Cell<Banks> (&buffer)[Banks][Depth], unsigned rows, unsigned cols, hls::stream<Beat> &from) {
#pragma HLS INLINE
fill_rows:
    for (unsigned row = 0; row + block_rows <= rows; row += block_rows) {
    fill_blocks:
        for (unsigned col = 0; col + block_cols <= cols; col += block_cols) {
        fill_words:
            for (unsigned w = 0; w < words_per_block; ++w) {
#pragma HLS PIPELINE II=ii::load style=flp
                put_word<Cols>(buffer, row + word_row(w), col + word_col(w), from.read());
            }
        }
    }
}

template <unsigned Cols, unsigned Banks, unsigned Depth>
void drain(const Cell<Banks> (&buffer)[Banks][Depth], unsigned rows, unsigned cols, hls::stream<Beat> &to) {
#pragma HLS INLINE
drain_rows:
    for (unsigned row = 0; row + block_rows <= rows; row += block_rows) {
    drain_blocks:
        for (unsigned col = 0; col + block_cols <= cols; col += block_cols) {
        drain_words:
            for (unsigned w = 0; w < words_per_block; ++w) {
#pragma HLS PIPELINE II=ii::store style=flp
                to << get_word<Cols>(buffer, row + word_row(w), col + word_col(w));
            }
        }
    }
}

// Where beat t of a tile begins. Left operands: rows in groups of 8, columns in groups of 16, then the halves of both.
constexpr unsigned left_row(unsigned t) { return t / 32 * 8 + t / 2 % 2 * 4; }
constexpr unsigned left_col(unsigned t) { return t / 4 % 8 * 16 + t % 2 * 8; }
// Right operands and results: columns in groups of 32, rows by 4, columns by 8.
constexpr unsigned right_row(unsigned t) { return t / 4 % 32 * 4; }
constexpr unsigned right_col(unsigned t) { return t / 128 * 32 + t % 4 * 8; }

// The tile at (row, col) as a left operand.
template <unsigned Cols, unsigned Banks, unsigned Depth>
void send_left(const Cell<Banks> (&buffer)[Banks][Depth], unsigned row, unsigned col, hls::stream<Beat> &mesh) {
#pragma HLS INLINE
send_left_beats:
    for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::send style=flp
        mesh << get_beat<by_rows, Cols>(buffer, row + left_row(t), col + left_col(t));
    }
}

// The tile at (row, col) as a right operand; its columns from `width` on, a multiple of 8, are 0.
template <unsigned Cols, unsigned Banks, unsigned Depth>
void send_right(const Cell<Banks> (&buffer)[Banks][Depth], unsigned row, unsigned col, hls::stream<Beat> &mesh,
                unsigned width = tile) {
#pragma HLS INLINE
send_right_beats:
    for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::send style=flp
        const Beat beat = get_beat<by_cols, Cols>(buffer, row + right_row(t), col + right_col(t));
        mesh << (right_col(t) < width ? beat : Beat(0.0f));
    }
}

}  // namespace rsn::xnn

#endif  // RSN_PL_TILES_H
