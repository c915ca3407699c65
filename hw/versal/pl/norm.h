// Layer or RMS norm of a MemC, in place, before a store: over dim1 rows, over its first norm_cols columns and those of
// its neighbour; the columns behind become 0. Two passes: mean, then the mean square of what is left. No scale, no
// shift.
//
// A round per 4x8 patch in each of three walks over all columns; to the neighbour goes a sum per row, with its count.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_NORM_H
#define RSN_PL_NORM_H

#include "mem_c.h"

namespace rsn::xnn {

// Turns row sums over this MemC's columns into means over its own and its neighbour's. cols: number of own columns.
inline void share(Rows &sums, unsigned rows, unsigned cols, hls::stream<Partial> &to, hls::stream<Partial> &from) {
share_send:
    for (unsigned row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=ii::exchange
        to << Partial{sums[row % patch_rows][row / patch_rows], static_cast<float>(cols)};
    }
share_receive:
    for (unsigned row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=ii::exchange
#pragma HLS DEPENDENCE variable=sums type=inter dependent=false
        float &own = sums[row % patch_rows][row / patch_rows];
        const Partial theirs = from.read();
        const float count = static_cast<float>(cols) + theirs.count;
        own = (own + theirs.sum) / (count < 1.0f ? 1.0f : count);
    }
}

inline void add_up(const MemCBuffer &buffer, unsigned rows, unsigned cols, Rows &sums) {
    Walk at = {rows};
row_sums:
    for (unsigned n = 0; n < patches(rows, mem_c_cols); ++n) {
#pragma HLS PIPELINE II=ii::norm_sum
#pragma HLS DEPENDENCE variable=sums type=inter direction=RAW distance=32 dependent=true
        const Beat x = get_beat<by_rows, mem_c_cols>(buffer, at.row, at.col);
        for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
            float part[patch_cols];
            for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
                part[c] = at.col + c < cols ? x[by_rows(r, c)] : 0.0f;
            }
            float &running = sums[r][at.row / patch_rows];
            running = at.col == 0 ? sum(part) : running + sum(part);
        }
        at.next();
    }
}

inline void add_squares(const MemCBuffer &buffer, unsigned rows, unsigned cols, const Rows &mean, Rows &sums) {
    Walk at = {rows};
square_sums:
    for (unsigned n = 0; n < patches(rows, mem_c_cols); ++n) {
#pragma HLS PIPELINE II=ii::norm_squares
#pragma HLS DEPENDENCE variable=sums type=inter direction=RAW distance=32 dependent=true
        const Beat x = get_beat<by_rows, mem_c_cols>(buffer, at.row, at.col);
        for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
            float part[patch_cols];
            for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
                const float centred = x[by_rows(r, c)] - mean[r][at.row / patch_rows];
                part[c] = at.col + c < cols ? centred * centred : 0.0f;
            }
            float &running = sums[r][at.row / patch_rows];
            running = at.col == 0 ? sum(part) : running + sum(part);
        }
        at.next();
    }
}

inline void rescale(MemCBuffer &buffer, unsigned rows, unsigned cols, const Rows &mean, const Rows &deviation) {
    Walk at = {rows};
rescaled:
    for (unsigned n = 0; n < patches(rows, mem_c_cols); ++n) {
#pragma HLS PIPELINE II=ii::norm_scale
#pragma HLS DEPENDENCE variable=buffer type=inter dependent=false
        Beat x = get_beat<by_rows, mem_c_cols>(buffer, at.row, at.col);
        for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
            for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
                float &e = x[by_rows(r, c)];
                const float scaled = (e - mean[r][at.row / patch_rows]) / deviation[r][at.row / patch_rows];
                e = at.col + c < cols ? scaled : 0.0f;
            }
        }
        put_beat<by_rows, mem_c_cols>(buffer, at.row, at.col, x);
        at.next();
    }
}

inline void norm(MemCBuffer &buffer, unsigned rows, const MemCConfig &reg, hls::stream<Partial> &to,
                 hls::stream<Partial> &from) {
    const unsigned cols = reg.norm_cols < mem_c_cols ? reg.norm_cols : mem_c_cols;
    Rows mean, deviation;
#pragma HLS ARRAY_PARTITION variable=mean complete dim=1
#pragma HLS ARRAY_PARTITION variable=deviation complete dim=1
no_mean:
    for (unsigned i = 0; i < row_patches; ++i) {
#pragma HLS PIPELINE II=1
        for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
            mean[r][i] = 0.0f;
        }
    }
    if (!reg.rms) {
        add_up(buffer, rows, cols, mean);
        share(mean, rows, cols, to, from);
    }
    add_squares(buffer, rows, cols, mean, deviation);
    share(deviation, rows, cols, to, from);
deviations:
    for (unsigned row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=ii::exchange
#pragma HLS DEPENDENCE variable=deviation type=inter dependent=false
        float &variance = deviation[row % patch_rows][row / patch_rows];
        variance = sqrt_of(variance + reg.eps);
    }
    rescale(buffer, rows, cols, mean, deviation);
}

}  // namespace rsn::xnn

#endif  // RSN_PL_NORM_H
