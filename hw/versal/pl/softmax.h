// Softmax of what a MemC0-3 has received, over its columns and its neighbour's: exp of the scaled scores, by default
// without subtracting a maximum, times the reciprocal of the sum of both. A division per row is enough; one per element
// would take 32 dividers. The product is made while the results leave (mem_c.cpp): the buffer keeps the exps.
//
// A round per 4x8 patch for the maxima (where they are asked for) and for exp; a tile has 512. To the
// neighbour goes the number of columns (causal), a maximum per row, a sum per row, and the same comes back.
//
// Rows with more keys than fit come in parts, twice. First maxima and sums alone: each part may find a larger maximum,
// and what has been summed is then multiplied by exp of the difference. Then, part by part again, exp with these maxima
// times the reciprocals of these sums. Both stay in the unit from uOP to uOP.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_SOFTMAX_H
#define RSN_PL_SOFTMAX_H

#include <limits>

#include "mem_c.h"

namespace rsn::xnn {

// What a receive does with the keys that it has got.
enum class Part : std::uint8_t { all, first, more, apply };

// Selects the valid scores. first, cols: the first valid column, and one past the last. left: number of the neighbour's
// columns that precede these. With that many, column c counts for row r from r + low and up to r + offset.
struct Mask {
    Counter first, cols;
    unsigned left;
    bool causal, windowed;
    std::int32_t offset, low;

    // What is left of them in one row, in as few bits as columns have: the sums are taken once for the eight columns of
    // a patch.
    struct Range {
        Counter first, end;

        bool has(Counter col) const {
#pragma HLS INLINE
            return col >= first && col < end;
        }
    };
    Range of_row(unsigned row) const {
#pragma HLS INLINE
        Range out = {first, cols};
        const std::int32_t diagonal = static_cast<std::int32_t>(row) - static_cast<std::int32_t>(left);
        const std::int32_t behind = diagonal + offset + 1, from = diagonal + low;
        if (causal && behind < static_cast<std::int32_t>(cols)) out.end = bound(behind);
        if (windowed && from > static_cast<std::int32_t>(first)) out.first = bound(from);
        return out;
    }
    // A column as a bound. No row reaches the last one that a Counter can say.
    static Counter bound(std::int32_t column) {
#pragma HLS INLINE
        constexpr std::int32_t last = (1 << counter_bits) - 1;
        return static_cast<unsigned>(column < 0 ? 0 : column < last ? column : last);
    }
};

// A distance of a column from a row, no larger than any that a buffer has: then bounds of a row are sums of few bits.
constexpr std::int32_t farthest = 4096;
static_assert(farthest > 2 * static_cast<std::int32_t>(mem_c_cols + 512), "rows, and columns of both neighbours");
inline std::int32_t clamped(std::int32_t distance) {
    return distance > farthest ? farthest : distance < -farthest ? -farthest : distance;
}

inline void send_rows(const Rows &mine, Counter rows, hls::stream<float> &to) {
send_rows:
    for (Counter row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=ii::exchange style=flp
        to << mine[row % patch_rows][row / patch_rows];
    }
}

// Scores become cap * tanh(score / cap), as cap - 2 cap / (exp(2 score / cap) + 1): they are scaled then.
inline void soft_cap(MemCBuffer &buffer, Counter rows, Counter cols, float scale, float cap, float inverse_cap) {
    constexpr unsigned elements = elements_of(rounds::softcap);
    const float twice = 2.0f * (scale * inverse_cap), range = 2.0f * cap;
    Beat in, out;
capped:
    for (Walk<rounds::softcap> at(rows); at.more(cols); at.next()) {
#pragma HLS PIPELINE II=ii::softcap style=flp
#pragma HLS DEPENDENCE variable=buffer type=inter dependent=false
        if (at.begins()) in = get_beat<by_rows, mem_c_cols>(buffer, at.row, at.col);
        float part[elements];
        for (unsigned i = 0; i < elements; ++i) {
#pragma HLS UNROLL
            part[i] = add_in_fabric(cap, -(range / add_in_fabric(exp_of(in[i] * twice), 1.0f)));
        }
        shift<elements>(in);
        shift_in(out, part);
        if (at.ends()) put_beat<by_rows, mem_c_cols>(buffer, at.row, at.col, out);
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
            const Mask::Range valid = mask.of_row(at.row + r);
            for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
                const float score = turn ? -x[by_rows(r, c)] : x[by_rows(r, c)];
                if (valid.has(at.col + c) && score > most) most = score;
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
            const Mask::Range valid = mask.of_row(at.row + r);
            float e[patch_cols];
            for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
                const float score = x[by_rows(r, c)] * scale - most;
                e[c] = valid.has(at.col + c) ? exp_of(score) : 0.0f;
                x[by_rows(r, c)] = e[c];
            }
            float &running = total[r][at.row / patch_rows];
            running = at.col == 0 ? sum(e) : running + sum(e);
        }
        put_beat<by_rows, mem_c_cols>(buffer, at.row, at.col, x);
    }
}

// Whether a part only adds to the maxima and sums that are kept: what it leaves in the buffer is of no use.
inline bool collecting(Part part) {
#pragma HLS INLINE
    return part == Part::first || part == Part::more;
}

// factors: of each row what its exps are still to be multiplied by. kept_top, kept_total: of each row the maximum and
// the sum of the parts so far.
inline void softmax(MemCBuffer &buffer, Counter rows, Counter cols, const MemCConfig &reg, const MemCScores &scores,
                    bool odd, Rows &factors, Rows &kept_top, Rows &kept_total, hls::stream<float> &to,
                    hls::stream<float> &from) {
    Rows top, total;
#pragma HLS ARRAY_PARTITION variable=top complete dim=1
#pragma HLS ARRAY_PARTITION variable=total complete dim=1
#pragma HLS BIND_STORAGE variable=top type=ram_s2p impl=lutram
#pragma HLS BIND_STORAGE variable=total type=ram_s2p impl=lutram
    const Part part = static_cast<Part>(scores.part);
    const bool collects = collecting(part), applies = part == Part::apply;
    Mask mask = {scores.first_cols, reg.softmax_cols, 0,  reg.causal,
                 scores.windowed,   clamped(reg.offset), clamped(scores.low)};
    if ((reg.causal || scores.windowed) && !reg.alone) {
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
    if (scores.capped) soft_cap(buffer, rows, cols, reg.scale, scores.cap, scores.inverse_cap);
    const float scale = scores.capped ? 1.0f : reg.scale;
    const bool subtract = reg.max_sub || part != Part::all;
    if (subtract) {
        const bool shared = !reg.alone && !applies;
        if (!applies) find_maxima(buffer, rows, cols, scale, mask, top);
        if (shared) send_rows(top, rows, to);
    combine_maxima:
        for (Counter row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=ii::exchange style=flp
#pragma HLS DEPENDENCE variable=top type=inter dependent=false
#pragma HLS DEPENDENCE variable=kept_top type=inter dependent=false
#pragma HLS DEPENDENCE variable=kept_total type=inter dependent=false
            float &own = top[row % patch_rows][row / patch_rows];
            float &kept = kept_top[row % patch_rows][row / patch_rows];
            float &sum = kept_total[row % patch_rows][row / patch_rows];
            const float theirs = shared ? from.read() : own, before = kept;
            float most = theirs > own ? theirs : own;
            if (applies || (part == Part::more && before > most)) most = before;
            const float level = finite(most) ? most : 0.0f;  // else nothing counts in this row
            if (collects) {
                kept = most;
                sum = part == Part::more ? sum * exp_of(before - level) : 0.0f;
            }
            own = level;
        }
    }
    take_exp(buffer, rows, cols, scale, mask, subtract, top, total);
    if (!reg.alone && cols && !applies) send_rows(total, rows, to);
    // A sum of parts without valid scores is 0, any other at least 1, so there is no row that is not masked.
    const bool masked = part != Part::all || reg.causal || scores.windowed || scores.first_cols != 0 ||
                        reg.softmax_cols < cols;
combine_sums:
    for (Counter row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=ii::exchange style=flp
#pragma HLS DEPENDENCE variable=kept_total type=inter dependent=false
        const float own = total[row % patch_rows][row / patch_rows];
        float &kept = kept_total[row % patch_rows][row / patch_rows];
        const float theirs = reg.alone || applies ? 0.0f : from.read();
        const float sum = own + theirs, before = kept;
        if (collects) kept = before + sum;
        factors[row % patch_rows][row / patch_rows] = reciprocal_of_sum(applies ? before : sum, masked);
    }
}

}  // namespace rsn::xnn

#endif  // RSN_PL_SOFTMAX_H
