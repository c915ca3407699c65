// Softmax of a pair of lanes: scores of a head, tile after tile, become exps by the maximum of their row so far, in groups
// of 32 columns. T multiplies them by exp(that maximum - the last one) / sum as it sends them.
//
// A beat a cycle, 32 exps.
// SPDX-License-Identifier: Apache-2.0
#include "../pl/dataflow.h"
#include "units.h"

namespace rsn::xnn {

namespace {

constexpr float lowest = -std::numeric_limits<float>::infinity();

// cap * tanh(score / cap), where tanh(y) = 1 - 2 / (exp(2y) + 1).
inline float capped(float score, float cap, float twice_inverse) {
#pragma HLS INLINE
    return add_in_fabric(cap, -(2.0f * cap / add_in_fabric(exp_of(score * twice_inverse), 1.0f)));
}

// Four rows of 32 columns: four beats, one behind the other.
struct Group {
    Beat beats[groups];

    float &at(unsigned row, unsigned col) { return beats[col / patch_cols][by_rows(row, col % patch_cols)]; }
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

// Whether a column counts for a row.
inline bool valid(const Soft &op, int row, int col) {
#pragma HLS INLINE
    return col >= static_cast<int>(op.first) && col < static_cast<int>(op.keys) && (!op.causal || col <= row + op.offset) &&
           (!op.windowed || col >= row + op.low);
}

// 32 columns of four rows, from and to a tile. n: number of the group in its tile. left: columns before that tile.
template <bool Caps>
void exps_of(const Soft &op, unsigned n, unsigned left, float twice_inverse, Rows &top, Rows &total,
             hls::stream<Beat> &even, hls::stream<Beat> &odd, hls::stream<Weighted> &t) {
#pragma HLS INLINE
    const unsigned row = right_row(groups * n), col = right_col(groups * n), g = row / patch_rows;
    Group group;
    for (unsigned b = 0; b < groups; ++b) {
#pragma HLS UNROLL
        group.beats[b] = op.odd ? odd.read() : even.read();
    }
    float tops[patch_rows];
    for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
        const float before = top[r][g];
        float most = before, exps[group_cols];
        for (unsigned k = 0; k < group_cols; ++k) {
#pragma HLS UNROLL
            float &score = group.at(r, k);
            if (Caps) score = capped(score, op.cap, twice_inverse);
            if (!valid(op, static_cast<int>(row + r), static_cast<int>(left + col + k))) score = lowest;
            if (score > most) most = score;
        }
        const float base = finite(most) ? most : 0.0f;
        for (unsigned k = 0; k < group_cols; ++k) {
#pragma HLS UNROLL
            exps[k] = exp_of(group.at(r, k) - base);
            group.at(r, k) = exps[k];
        }
        const float drop = before - base < 0.0f ? before - base : 0.0f;
        total[r][g] = total[r][g] * exp_of(drop) + sum_of(exps);
        top[r][g] = tops[r] = most;
    }
    for (unsigned b = 0; b < groups; ++b) {
#pragma HLS UNROLL
        Weighted out;
        out.beat = group.beats[b];
        for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
            out.top[r] = tops[r];
        }
        t << out;
    }
}

}  // namespace

void soft(hls::stream<Uop<Soft::words>> &uops, hls::stream<Beat> &even, hls::stream<Beat> &odd,
          hls::stream<Weighted> &t, hls::stream<Beat> &ends) {
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
    soft_heads:
        for (unsigned head = 0; head < op.heads; ++head) {
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
            soft_groups:
                for (unsigned n = 0; !caps && n < beats_per_tile / groups; ++n) {
#pragma HLS PIPELINE II=ii::probabilities style=flp
#pragma HLS DEPENDENCE variable=top type=inter direction=RAW distance=32 dependent=true
#pragma HLS DEPENDENCE variable=total type=inter direction=RAW distance=32 dependent=true
                    exps_of<false>(op, n, i * tile, 0.0f, top, total, even, odd, t);
                }
            capped_groups:
                for (unsigned n = 0; caps && n < beats_per_tile / groups; ++n) {
#pragma HLS PIPELINE II=ii::softcap style=flp
#pragma HLS DEPENDENCE variable=top type=inter direction=RAW distance=32 dependent=true
#pragma HLS DEPENDENCE variable=total type=inter direction=RAW distance=32 dependent=true
                    exps_of<true>(op, n, i * tile, twice_inverse, top, total, even, odd, t);
                }
            }
        soft_ends:
            for (unsigned n = 0; n < 2 * end_beats; ++n) {
#pragma HLS PIPELINE II=ii::rows style=flp
                Beat beat;
                for (unsigned k = 0; k < beat_floats; ++k) {
#pragma HLS UNROLL
                    const unsigned row = n % end_beats * beat_floats + k, r = row % patch_rows, g = row / patch_rows;
                    beat[k] = n < end_beats ? (finite(top[r][g]) ? top[r][g] : 0.0f) : total[r][g];
                }
                ends << beat;
            }
        }
    }
}

}  // namespace rsn::xnn
