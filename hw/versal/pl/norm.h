// Layer or RMS norm of a MemC, in place, before a store: over dim1 rows, over its first norm_cols columns and those of
// its neighbour; the columns behind become 0. Two passes: mean, then the mean square of what is left, the variance.
// Then (x - mean) * (1 / sqrt(variance + eps)), with one square root and one division per row. No scale, no shift.
// Or over each head: all of that head by head, without the neighbour. Or, for a norm over more columns than a pair of
// MemCs has, mean and variance alone, which follow the data.
//
// Three walks over all columns, a 4x8 patch in rounds::norm_sum, norm_squares or norm_scale rounds of whole rows. To
// the neighbour goes a sum per row, with its count.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_NORM_H
#define RSN_PL_NORM_H

#include "mem_c.h"
#include "units.h"

namespace rsn::xnn {

// Turns row sums over this MemC's columns into means over its own and, where `shared`, its neighbour's. cols: number of
// own columns. Returns that of all.
inline float share(Rows &sums, Counter rows, Counter cols, bool shared, hls::stream<Partial> &to,
                   hls::stream<Partial> &from) {
share_send:
    for (Counter row = 0; shared && row < rows; ++row) {
#pragma HLS PIPELINE II=ii::exchange style=flp
        to << Partial{sums[row % patch_rows][row / patch_rows], static_cast<float>(cols)};
    }
    float count = static_cast<float>(cols);
share_receive:
    for (Counter row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=ii::exchange style=flp
#pragma HLS DEPENDENCE variable=sums type=inter dependent=false
        float &own = sums[row % patch_rows][row / patch_rows];
        const Partial theirs = shared ? from.read() : Partial{0.0f, 0.0f};
        count = static_cast<float>(cols) + theirs.count;
        own = (own + theirs.sum) / (count < 1.0f ? 1.0f : count);
    }
    return count;
}

// Of the columns from `first` to `end`, in a walk to `behind`. A row comes back after 32 patches at the earliest: so
// many times rounds::norm_sum is the distance.
inline void add_up(const MemCBuffer &buffer, Counter rows, Counter first, Counter end, Counter behind, Rows &sums) {
    constexpr unsigned lines = rows_of(rounds::norm_sum);
    static_assert(rounds::norm_sum == 2, "the distance below");
    Beat in;
row_sums:
    for (Walk<rounds::norm_sum> at(rows, first); at.more(behind); at.next()) {
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
                part[c] = at.col + c < end ? in[by_rows(r, c)] : 0.0f;
            }
            running[r] = at.col == first ? sum(part) : running[r] + sum(part);
        }
        put_rows(sums, i, at.round, running);
        shift<elements_of(rounds::norm_sum)>(in);
    }
}

// centre: subtract the mean, which is not looked at otherwise.
inline void add_squares(const MemCBuffer &buffer, Counter rows, Counter first, Counter end, Counter behind,
                        bool centre, const Rows &mean, Rows &sums) {
    constexpr unsigned lines = rows_of(rounds::norm_squares);
    static_assert(rounds::norm_squares == 4, "the distance below");
    Beat in;
square_sums:
    for (Walk<rounds::norm_squares> at(rows, first); at.more(behind); at.next()) {
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
                part[c] = at.col + c < end ? centred * centred : 0.0f;
            }
            running[r] = at.col == first ? sum(part) : running[r] + sum(part);
        }
        put_rows(sums, i, at.round, running);
        shift<elements_of(rounds::norm_squares)>(in);
    }
}

// factor: 1 / deviation of each row.
inline void rescale(MemCBuffer &buffer, Counter rows, Counter first, Counter end, Counter behind, bool centre,
                    const Rows &mean, const Rows &factor) {
    constexpr unsigned lines = rows_of(rounds::norm_scale);
    Beat in, out;
rescaled:
    for (Walk<rounds::norm_scale> at(rows, first); at.more(behind); at.next()) {
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
                part[by_rows(r, c)] = at.col + c < end ? scaled : 0.0f;
            }
        }
        shift<elements_of(rounds::norm_scale)>(in);
        shift_in(out, part);
        if (at.ends()) put_beat<by_rows, mem_c_cols>(buffer, at.row, at.col, out);
    }
}

// What a norm is over: in `heads` pieces of `width` columns each, the first `cols` of them; with the neighbour's where
// `shared`.
struct Extent {
    unsigned heads, width, cols;
    bool shared;
};

inline Extent extent_of(const MemCConfig &reg, const MemCStore &how) {
#pragma HLS INLINE
    const unsigned width = head_width(how);
    if (how.head_norm) return {mem_c_cols / width, width, how.head_cols, false};
    return {1, mem_c_cols, reg.norm_cols < mem_c_cols ? reg.norm_cols : mem_c_cols, true};
}

// mean, factor: of each row the mean, and at last 1 / deviation; with `statistics` the variance, and the data stays as
// it is. Returns the columns that were counted.
inline float norm(MemCBuffer &buffer, Counter rows, const MemCConfig &reg, const MemCStore &how, Rows &mean,
                  Rows &factor, hls::stream<Partial> &to, hls::stream<Partial> &from) {
#pragma HLS INLINE
    const bool centre = !reg.rms;
    const Extent over = extent_of(reg, how);
    float count = 0.0f;
norm_heads:
    for (unsigned head = 0; head < over.heads; ++head) {
        const Counter first = head * over.width, behind = first + over.width, end = first + over.cols;
        if (centre) {
            add_up(buffer, rows, first, end, behind, mean);
            count = share(mean, rows, over.cols, over.shared, to, from);
        }
        add_squares(buffer, rows, first, end, behind, centre, mean, factor);
        count = share(factor, rows, over.cols, over.shared, to, from);
        if (how.statistics) continue;
    factors:
        for (Counter row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=ii::exchange style=flp
#pragma HLS DEPENDENCE variable=factor type=inter dependent=false
            float &own = factor[row % patch_rows][row / patch_rows];
            own = 1.0f / sqrt_of(own + reg.eps);
        }
        rescale(buffer, rows, first, end, behind, centre, mean, factor);
    }
    return count;
}

// Mean, variance and number of columns of each row, behind the data: a quarter block for 128 rows, of which word w has
// row w in its first half and row 64 + w in its second (row_norm.h reads them). The two lie in the same memory of a
// `Rows`, so a word takes a round for each.
inline void send_statistics(Counter rows, bool centre, const Rows &mean, const Rows &variance, float count,
                            hls::stream<Beat> &ddr) {
#pragma HLS INLINE
    static_assert(rounds::statistics == 2, "a row in a round");
statistics_tiles:
    for (unsigned first = 0; first + tile <= rows; first += tile) {
        Beat word(0.0f);
    statistics_words:
        for (unsigned i = 0; i < tile; ++i) {
#pragma HLS PIPELINE II=ii::statistics style=flp
            const unsigned half = i % 2, row = first + half * (tile / 2) + i / 2;
            const float of_row[] = {centre ? mean[row % patch_rows][row / patch_rows] : 0.0f,
                                    variance[row % patch_rows][row / patch_rows], count};
            for (unsigned n = 0; n < 3; ++n) {
#pragma HLS UNROLL
                word[half * line_floats + n] = of_row[n];
            }
            if (half != 0) ddr << word;
        }
    }
}

}  // namespace rsn::xnn

#endif  // RSN_PL_NORM_H
