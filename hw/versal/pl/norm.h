// Layer or RMS norm of a MemC, in place, before a store: over dim1 rows, over its first norm_cols columns and those of
// its neighbour; the columns behind become 0. Two passes: mean, then the mean square of what is left, the variance.
// Then (x - mean) * (1 / sqrt(variance + eps)), with one square root and one division per row. No scale, no shift.
//
// Three walks over all columns, a 4x8 patch in rounds::norm_sum, norm_squares or norm_scale rounds of whole rows. To
// the neighbour goes a sum per row, with its count.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_NORM_H
#define RSN_PL_NORM_H

#include "mem_c.h"

namespace rsn::xnn {

// Turns row sums over this MemC's columns into means over its own and its neighbour's. cols: number of own columns.
inline void share(Rows &sums, Counter rows, Counter cols, hls::stream<Partial> &to, hls::stream<Partial> &from) {
share_send:
    for (Counter row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=ii::exchange style=flp
        to << Partial{sums[row % patch_rows][row / patch_rows], static_cast<float>(cols)};
    }
share_receive:
    for (Counter row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=ii::exchange style=flp
#pragma HLS DEPENDENCE variable=sums type=inter dependent=false
        float &own = sums[row % patch_rows][row / patch_rows];
        const Partial theirs = from.read();
        const float count = static_cast<float>(cols) + theirs.count;
        own = (own + theirs.sum) / (count < 1.0f ? 1.0f : count);
    }
}

// A row comes back after 32 patches at the earliest: so many times rounds::norm_sum is the distance.
inline void add_up(const MemCBuffer &buffer, Counter rows, Counter cols, Rows &sums) {
    constexpr unsigned lines = rows_of(rounds::norm_sum);
    static_assert(rounds::norm_sum == 2, "the distance below");
    Beat in;
row_sums:
    for (Walk<rounds::norm_sum> at(rows); at.more(mem_c_cols); at.next()) {
#pragma HLS PIPELINE II=ii::norm_sum style=flp
#pragma HLS DEPENDENCE variable=sums type=inter direction=RAW distance=64 dependent=true
        const unsigned i = at.row / patch_rows;
        if (at.begins()) in = get_beat<by_rows, mem_c_cols>(buffer, at.row, at.col);
        float running[lines] = {};
        get_rows(sums, i, at.round, running);
        for (unsigned r = 0; r < lines; ++r) {
#pragma HLS UNROLL
            float part[patch_cols];
            for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
                part[c] = at.col + c < cols ? in[by_rows(r, c)] : 0.0f;
            }
            running[r] = at.col == 0 ? sum(part) : running[r] + sum(part);
        }
        put_rows(sums, i, at.round, running);
        shift<elements_of(rounds::norm_sum)>(in);
    }
}

// centre: subtract the mean, which is not looked at otherwise.
inline void add_squares(const MemCBuffer &buffer, Counter rows, Counter cols, bool centre, const Rows &mean,
                        Rows &sums) {
    constexpr unsigned lines = rows_of(rounds::norm_squares);
    static_assert(rounds::norm_squares == 4, "the distance below");
    Beat in;
square_sums:
    for (Walk<rounds::norm_squares> at(rows); at.more(mem_c_cols); at.next()) {
#pragma HLS PIPELINE II=ii::norm_squares style=flp
#pragma HLS DEPENDENCE variable=sums type=inter direction=RAW distance=128 dependent=true
        const unsigned i = at.row / patch_rows;
        if (at.begins()) in = get_beat<by_rows, mem_c_cols>(buffer, at.row, at.col);
        float running[lines] = {}, middle[lines] = {};
        get_rows(sums, i, at.round, running);
        if (centre) get_rows(mean, i, at.round, middle);
        for (unsigned r = 0; r < lines; ++r) {
#pragma HLS UNROLL
            float part[patch_cols];
            for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
                const float centred = in[by_rows(r, c)] - middle[r];
                part[c] = at.col + c < cols ? centred * centred : 0.0f;
            }
            running[r] = at.col == 0 ? sum(part) : running[r] + sum(part);
        }
        put_rows(sums, i, at.round, running);
        shift<elements_of(rounds::norm_squares)>(in);
    }
}

// factor: 1 / deviation of each row.
inline void rescale(MemCBuffer &buffer, Counter rows, Counter cols, bool centre, const Rows &mean,
                    const Rows &factor) {
    constexpr unsigned lines = rows_of(rounds::norm_scale);
    Beat in, out;
rescaled:
    for (Walk<rounds::norm_scale> at(rows); at.more(mem_c_cols); at.next()) {
#pragma HLS PIPELINE II=ii::norm_scale style=flp
#pragma HLS DEPENDENCE variable=buffer type=inter dependent=false
        const unsigned i = at.row / patch_rows;
        if (at.begins()) in = get_beat<by_rows, mem_c_cols>(buffer, at.row, at.col);
        float middle[lines] = {}, by[lines] = {}, part[elements_of(rounds::norm_scale)];
        if (centre) get_rows(mean, i, at.round, middle);
        get_rows(factor, i, at.round, by);
        for (unsigned r = 0; r < lines; ++r) {
#pragma HLS UNROLL
            for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
                const float scaled = (in[by_rows(r, c)] - middle[r]) * by[r];
                part[by_rows(r, c)] = at.col + c < cols ? scaled : 0.0f;
            }
        }
        shift<elements_of(rounds::norm_scale)>(in);
        shift_in(out, part);
        if (at.ends()) put_beat<by_rows, mem_c_cols>(buffer, at.row, at.col, out);
    }
}

inline void norm(MemCBuffer &buffer, Counter rows, const MemCConfig &reg, hls::stream<Partial> &to,
                 hls::stream<Partial> &from) {
    const unsigned cols = reg.norm_cols < mem_c_cols ? reg.norm_cols : mem_c_cols;
    Rows mean, factor;  // of a row: the mean; the sum of squares, the variance, and at last 1 / deviation
#pragma HLS ARRAY_PARTITION variable=mean complete dim=1
#pragma HLS ARRAY_PARTITION variable=factor complete dim=1
#pragma HLS BIND_STORAGE variable=mean type=ram_s2p impl=lutram
#pragma HLS BIND_STORAGE variable=factor type=ram_s2p impl=lutram
    const bool centre = !reg.rms;
    if (centre) {
        add_up(buffer, rows, cols, mean);
        share(mean, rows, cols, to, from);
    }
    add_squares(buffer, rows, cols, centre, mean, factor);
    share(factor, rows, cols, to, from);
factors:
    for (Counter row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=ii::exchange style=flp
#pragma HLS DEPENDENCE variable=factor type=inter dependent=false
        float &own = factor[row % patch_rows][row / patch_rows];
        own = 1.0f / sqrt_of(own + reg.eps);
    }
    rescale(buffer, rows, cols, centre, mean, factor);
}

}  // namespace rsn::xnn

#endif  // RSN_PL_NORM_H
