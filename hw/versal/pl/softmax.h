// Softmax of what a MemC0-3 has received, over its columns and its neighbour's: exp of the scaled scores, by default
// without subtracting a maximum, times the reciprocal of the sum of both. A division per row is enough; one per element
// would take 32 dividers.
//
// A round per 4x8 patch for the maxima (where they are asked for), for exp and for the product; a tile has 512. To the
// neighbour goes the number of columns (causal), a maximum per row, a sum per row, and the same comes back.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_SOFTMAX_H
#define RSN_PL_SOFTMAX_H

#include <limits>

#include "mem_c.h"

namespace rsn::xnn {

// Selects the valid scores. cols: valid columns. left: number of the neighbour's columns that precede these.
struct Mask {
    unsigned cols;
    unsigned left;
    bool causal;
    std::int32_t offset;

    bool valid(unsigned row, unsigned col) const {
#pragma HLS INLINE
        const std::int32_t ahead = static_cast<std::int32_t>(col + left) - static_cast<std::int32_t>(row);
        return col < cols && (!causal || ahead <= offset);
    }
};

inline void send_rows(const Rows &mine, Counter rows, hls::stream<float> &to) {
send_rows:
    for (Counter row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=ii::exchange style=flp
        to << mine[row % patch_rows][row / patch_rows];
    }
}

// Finds each row's maximum of the scaled scores. Rounding keeps order, so only the largest score needs scaling (the
// smallest, if scale is negative).
inline void find_maxima(const MemCBuffer &buffer, Counter rows, Counter cols, float scale, const Mask &mask,
                        Rows &top) {
    const bool turn = scale < 0.0f;
maxima:
    for (Walk<> at(rows); at.more(cols); at.next()) {
#pragma HLS PIPELINE II=ii::softmax_max style=flp
#pragma HLS DEPENDENCE variable=top type=inter direction=RAW distance=32 dependent=true
        const Beat x = get_beat<by_rows, mem_c_cols>(buffer, at.row, at.col);
        for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
            float &running = top[r][at.row / patch_rows];
            float most = at.col == 0 ? -std::numeric_limits<float>::infinity() : running;
            for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
                const float score = turn ? -x[by_rows(r, c)] : x[by_rows(r, c)];
                if (mask.valid(at.row + r, at.col + c) && score > most) most = score;
            }
            running = at.col + patch_cols == cols ? most * (turn ? -scale : scale) : most;
        }
    }
}

// Replaces scores by their exp, or by 0 where masked. subtract: in each row the value in top.
inline void take_exp(MemCBuffer &buffer, Counter rows, Counter cols, float scale, const Mask &mask, bool subtract,
                     const Rows &top, Rows &total) {
exps:
    for (Walk<> at(rows); at.more(cols); at.next()) {
#pragma HLS PIPELINE II=ii::softmax_exp style=flp
#pragma HLS DEPENDENCE variable=buffer type=inter dependent=false
#pragma HLS DEPENDENCE variable=total type=inter direction=RAW distance=32 dependent=true
        Beat x = get_beat<by_rows, mem_c_cols>(buffer, at.row, at.col);
        for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
            const float most = subtract ? top[r][at.row / patch_rows] : 0.0f;
            float e[patch_cols];
            for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
                const float score = x[by_rows(r, c)] * scale - most;
                e[c] = mask.valid(at.row + r, at.col + c) ? exp_of(score) : 0.0f;
                x[by_rows(r, c)] = e[c];
            }
            float &running = total[r][at.row / patch_rows];
            running = at.col == 0 ? sum(e) : running + sum(e);
        }
        put_beat<by_rows, mem_c_cols>(buffer, at.row, at.col, x);
    }
}

inline void multiply_rows(MemCBuffer &buffer, Counter rows, Counter cols, const Rows &by) {
products:
    for (Walk<> at(rows); at.more(cols); at.next()) {
#pragma HLS PIPELINE II=ii::softmax_scale style=flp
#pragma HLS DEPENDENCE variable=buffer type=inter dependent=false
        Beat x = get_beat<by_rows, mem_c_cols>(buffer, at.row, at.col);
        for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
            const float factor = by[r][at.row / patch_rows];
            for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
                x[by_rows(r, c)] *= factor;
            }
        }
        put_beat<by_rows, mem_c_cols>(buffer, at.row, at.col, x);
    }
}

inline void softmax(MemCBuffer &buffer, Counter rows, Counter cols, const MemCConfig &reg, bool odd,
                    hls::stream<float> &to, hls::stream<float> &from) {
    Rows top, total;
#pragma HLS ARRAY_PARTITION variable=top complete dim=1
#pragma HLS ARRAY_PARTITION variable=total complete dim=1
#pragma HLS BIND_STORAGE variable=top type=ram_s2p impl=lutram
#pragma HLS BIND_STORAGE variable=total type=ram_s2p impl=lutram
    Mask mask = {reg.softmax_cols, 0, reg.causal, reg.offset};
    if (reg.causal && !reg.alone) {
        send_number(static_cast<float>(cols), to);
        const float theirs = receive_number(from);
        if (odd) mask.left = static_cast<unsigned>(theirs);
    }
    if (!cols) {  // else the first patch of a row does this
    no_columns:
        for (unsigned i = 0; i < row_patches; ++i) {
#pragma HLS PIPELINE II=1 style=flp
            for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
                top[r][i] = -std::numeric_limits<float>::infinity();
                total[r][i] = 0.0f;
            }
        }
    }
    if (reg.max_sub) {
        find_maxima(buffer, rows, cols, reg.scale, mask, top);
        if (!reg.alone) send_rows(top, rows, to);
    combine_maxima:
        for (Counter row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=ii::exchange style=flp
#pragma HLS DEPENDENCE variable=top type=inter dependent=false
            float &own = top[row % patch_rows][row / patch_rows];
            const float theirs = reg.alone ? own : from.read();
            const float most = theirs > own ? theirs : own;
            own = finite(most) ? most : 0.0f;  // nothing counts in this row
        }
    }
    take_exp(buffer, rows, cols, reg.scale, mask, reg.max_sub, top, total);
    if (!reg.alone && cols) send_rows(total, rows, to);
    const bool masked = reg.causal || reg.softmax_cols < cols;
combine_sums:
    for (Counter row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=ii::exchange style=flp
#pragma HLS DEPENDENCE variable=total type=inter dependent=false
        float &own = total[row % patch_rows][row / patch_rows];
        const float theirs = reg.alone ? 0.0f : from.read();
        own = reciprocal_of_sum(own + theirs, masked);
    }
    multiply_rows(buffer, rows, cols, total);
}

}  // namespace rsn::xnn

#endif  // RSN_PL_SOFTMAX_H
