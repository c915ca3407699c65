// Softmax of a pair of lanes: scores of a head, tile after tile, become exps by the maximum of their row so far, in groups
// of 32 columns. T multiplies them by exp(that maximum - the last one) / sum as it sends them.
//
// A beat a cycle: a row of 32 columns is made in each, of the four beats that came before. With a soft cap, a beat in
// eight cycles.
// SPDX-License-Identifier: Apache-2.0
#include "../pl/dataflow.h"
#include "units.h"

namespace rsn::xnn {

namespace {

constexpr float lowest = -std::numeric_limits<float>::infinity();

// cap * tanh(score / cap), where tanh(y) = 1 - 2 / (exp(2y) + 1). dsp: a DSP adds the 1.
inline float capped(float score, float cap, float twice_inverse, bool dsp) {
#pragma HLS INLINE
    const float e = exp_of(score * twice_inverse);
    return add_in_fabric(cap, -(2.0f * cap / (dsp ? e + 1.0f : add_in_fabric(e, 1.0f))));
}

// Four rows of 32 columns, row by row: of four beats, one behind the other.
struct Group {
    float rows[patch_rows][group_cols];

    void put(unsigned beat, const Beat &from) {
#pragma HLS INLINE
        for (unsigned n = 0; n < beat_floats; ++n) {
#pragma HLS UNROLL
            rows[n / patch_cols][beat * patch_cols + col_of(n)] = from[n];
        }
    }
    Beat get(unsigned beat) const {
#pragma HLS INLINE
        Beat to;
        for (unsigned n = 0; n < beat_floats; ++n) {
#pragma HLS UNROLL
            to[n] = rows[n / patch_cols][beat * patch_cols + col_of(n)];
        }
        return to;
    }
};

inline float sum_of(const float (&x)[group_cols]) {
#pragma HLS INLINE
    float parts[groups];
    for (unsigned i = 0; i < groups; ++i) {
#pragma HLS UNROLL
        float part[patch_cols];
        for (unsigned k = 0; k < patch_cols; ++k) {
#pragma HLS UNROLL
            part[k] = x[i * patch_cols + k];
        }
        parts[i] = sum(part);
    }
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}

// The columns that count for a row: from the first to before the end.
struct Valid {
    int first, end;

    Valid(const Soft &op, int row) : first(static_cast<int>(op.first)), end(static_cast<int>(op.keys)) {
#pragma HLS INLINE
        if (op.windowed && row + op.low > first) first = row + op.low;
        if (op.causal && row + op.offset + 1 < end) end = row + op.offset + 1;
    }
};

inline float larger(float a, float b) {
#pragma HLS INLINE
    return b > a ? b : a;
}

// By a tree: one behind the other, 32 comparisons would be as deep.
template <unsigned N>
float maximum_of(const float (&x)[N]) {
#pragma HLS INLINE
    if constexpr (N == 1) {
        return x[0];
    } else {
        float most[N / 2];
#pragma HLS ARRAY_PARTITION variable=most complete
        for (unsigned k = 0; k < N / 2; ++k) {
#pragma HLS UNROLL
            most[k] = larger(x[k], x[k + N / 2]);
        }
        return maximum_of(most);
    }
}

// Of a row of 32 columns that begins at (row, col). The exps go to registers of their own: if they replaced the scores,
// the next row would wait for them. top, total: of its head so far. Returns the maximum.
inline float exps_of(const Soft &op, unsigned row, unsigned col, const float (&scores)[group_cols],
                     float (&exps)[group_cols], float &top, float &total) {
#pragma HLS INLINE
    const float before = top;
    float x[group_cols];
    const Valid valid(op, static_cast<int>(row));
    for (unsigned k = 0; k < group_cols; ++k) {
#pragma HLS UNROLL
        const int at = static_cast<int>(col + k);
        x[k] = at < valid.first || at >= valid.end ? lowest : scores[k];
    }
    const float most = larger(before, maximum_of(x));
    const float base = finite(most) ? most : 0.0f;
    for (unsigned k = 0; k < group_cols; ++k) {
#pragma HLS UNROLL
        exps[k] = exp_of(x[k] - base);
    }
    const float less = before - base, drop = less < 0.0f ? less : 0.0f;
    total = fmadd(total, exp_of(drop), sum_of(exps));
    top = most;
    return most;
}

}  // namespace

void soft(hls::stream<Uop<Soft::words>> &uops, hls::stream<Beat> &c, hls::stream<Weighted> &probabilities,
          hls::stream<HeadEnds> &ends) {
    Rows top, total;
#pragma HLS ARRAY_PARTITION variable=top complete dim=1
#pragma HLS ARRAY_PARTITION variable=total complete dim=1
    unsigned number = 0;
soft_uops:
    for (;;) {
        const Uop<Soft::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const Soft op = Soft::decode(uop.words);
        const bool caps = op.cap != 0.0f;
        const float twice_inverse = caps ? 2.0f / op.cap : 0.0f;
    soft_begin:
        for (unsigned g = 0; g < row_groups; ++g) {
#pragma HLS PIPELINE II=1 style=flp
            for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
                top[r][g] = lowest;
                total[r][g] = 0.0f;
            }
        }
    soft_tiles:
        for (unsigned i = 0; i < op.tiles; ++i) {
            // Beats come into one group while rows of the one before become exps, and those before that leave.
            Group in = {}, at_work = {}, made = {}, out = {};
#pragma HLS ARRAY_PARTITION variable=in.rows complete dim=0
#pragma HLS ARRAY_PARTITION variable=at_work.rows complete dim=0
#pragma HLS ARRAY_PARTITION variable=made.rows complete dim=0
#pragma HLS ARRAY_PARTITION variable=out.rows complete dim=0
            float tops[patch_rows] = {}, last[patch_rows] = {};
#pragma HLS ARRAY_PARTITION variable=tops complete
#pragma HLS ARRAY_PARTITION variable=last complete
            Beat scores, capped_scores = Beat(0.0f);
        soft_beats:
            for (Rounds at(caps ? rounds::softcap : 1, beats_per_tile + 2 * groups); at.more(); at.next()) {
#pragma HLS PIPELINE II=ii::softmax style=flp
#pragma HLS DEPENDENCE variable=top type=inter direction=RAW distance=128 dependent=true
#pragma HLS DEPENDENCE variable=total type=inter direction=RAW distance=128 dependent=true
                const unsigned t = at.beat, r = t % groups;
                if (at.begins() && t < beats_per_tile) scores = c.read();
                if (caps) {
                    float part[elements_of(rounds::softcap)];
                    for (unsigned k = 0; k < elements_of(rounds::softcap); ++k) {
#pragma HLS UNROLL
                        part[k] = capped(scores[k], op.cap, twice_inverse, k == 0);
                    }
                    shift_in(capped_scores, part);
                    shift<elements_of(rounds::softcap)>(scores);
                }
                if (!at.ends()) continue;
                if (r == 0) {
                    out = made;
                    at_work = in;
                    for (unsigned k = 0; k < patch_rows; ++k) {
#pragma HLS UNROLL
                        last[k] = tops[k];
                    }
                }
                in.put(r, caps ? capped_scores : scores);
                if (t >= groups && t < beats_per_tile + groups) {
                    const unsigned first = t / groups * groups - groups, row = right_row(first), g = row / patch_rows;
                    tops[r] = exps_of(op, row + r, i * tile + right_col(first), at_work.rows[r], made.rows[r], top[r][g],
                                      total[r][g]);
                }
                if (t >= 2 * groups) {
                    Weighted weighted;
                    weighted.beat = out.get(r);
                    for (unsigned k = 0; k < patch_rows; ++k) {
#pragma HLS UNROLL
                        weighted.top[k] = last[k];
                    }
                    probabilities << weighted;
                }
            }
        }
    soft_ends:
        for (unsigned g = 0; g < row_groups; ++g) {
#pragma HLS PIPELINE II=ii::ends style=flp
            HeadEnds end;
            for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
                end.top[r] = finite(top[r][g]) ? top[r][g] : 0.0f;
                end.total[r] = total[r][g];
            }
            ends << end;
        }
    }
}

}  // namespace rsn::xnn
