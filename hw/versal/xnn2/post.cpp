// Post: what is applied to the results of a lane: norm of heads, gains, rotation, activation, gate. A tile is taken into a
// buffer and leaves through the functions; to DDR by way of the buffer, because blocks have another order.
//
// A beat a cycle in and out without functions; for these see ii::rotate and ii::activation.
// SPDX-License-Identifier: Apache-2.0
#include "../pl/dataflow.h"
#include "../pl/functions.h"
#include "units.h"

namespace rsn::xnn {

namespace {

constexpr unsigned heads_of_tile = 2;
constexpr unsigned vector_words = tile / beat_floats;
enum class To : std::uint8_t { t_even, t_odd, ddr, k0, k1, v0, v1 };

using Buffer = Tiles<1>;

// Cosines and sines of 128 rows, row by row: of 8 KiB, port 0 brings eight rows, port 1 the next eight.
void take_table(hls::stream<Beat> &lpddr, Buffer &table) {
#pragma HLS INLINE
table_words:
    for (unsigned w = 0; w < beats_per_tile; ++w) {
#pragma HLS PIPELINE II=2 style=flp
        const Beat word = lpddr.read();
        const unsigned row = w / port_lines * 16 + w % port_lines / 8, col = w % 8 * line_floats;
        for (unsigned h = 0; h < 2; ++h) {
#pragma HLS UNROLL
            // a line of one row is the half of a word of two
            Beat both = get_word<tile>(table, (row + 8 * h) & ~1u, col);
            for (unsigned n = 0; n < line_floats; ++n) {
#pragma HLS UNROLL
                both[(row & 1) * line_floats + n] = word[h * line_floats + n];
            }
            put_word<tile>(table, (row + 8 * h) & ~1u, col, both);
        }
    }
}

void take_tile(hls::stream<Beat> &c, Buffer &buffer) {
#pragma HLS INLINE
post_beats_in:
    for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::take style=flp
        put_beat<by_rows, tile>(buffer, right_row(t), right_col(t), c.read());
    }
}

// Of each head and row.
struct HeadNorm {
    Rows mean[heads_of_tile], factor[heads_of_tile];
};

// Sums of the normalised columns, or of their squares apart from `mean`, of each head.
void sums_of_heads(const Post &op, const Buffer &buffer, bool squares, bool centred, float inverse, const HeadNorm &norm,
                   Rows (&sums)[heads_of_tile]) {
#pragma HLS INLINE
    Recent recent = {};
    const unsigned width = op.heads ? half_tile : tile;
head_beats:
    for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::squares style=flp
#pragma HLS DEPENDENCE variable=sums type=inter direction=RAW distance=128 dependent=true
        const unsigned row = right_row(t), col = right_col(t), head = op.heads ? col / half_tile : 0, g = row / patch_rows;
        const Beat beat = get_beat<by_rows, tile>(buffer, row, col);
        for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
            float of_row[patch_cols];
            const float mean = centred ? norm.mean[head][r][g] : 0.0f;
            for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
                const float apart = add_in_fabric(beat[by_rows(r, c)], -mean);
                of_row[c] = col % width + c >= op.columns ? 0.0f : squares ? apart * apart : apart;
            }
            recent.shift_in(r, sum(of_row));
            float &of = sums[head][r][g];
            const bool first = col % width < group_cols;
            if (t % groups == groups - 1) of = first ? recent.total(r) : of + recent.total(r);
        }
    }
    static_cast<void>(inverse);
}

void norm_of_heads(const Post &op, const Buffer &buffer, HeadNorm &norm) {
#pragma HLS INLINE
    Rows sums[heads_of_tile];
    const float columns = static_cast<float>(op.columns);
    const unsigned heads = op.heads ? heads_of_tile : 1;
    if (!op.rms) {
        sums_of_heads(op, buffer, false, false, 0.0f, norm, sums);
    head_means:
        for (unsigned h = 0; h < heads; ++h)
            for (unsigned row = 0; row < tile; ++row) {
#pragma HLS PIPELINE II=ii::rows style=flp
                norm.mean[h][row % patch_rows][row / patch_rows] = sums[h][row % patch_rows][row / patch_rows] / columns;
            }
    }
    sums_of_heads(op, buffer, true, !op.rms, 0.0f, norm, sums);
head_factors:
    for (unsigned h = 0; h < heads; ++h)
        for (unsigned row = 0; row < tile; ++row) {
#pragma HLS PIPELINE II=ii::rows style=flp
            const float variance = sums[h][row % patch_rows][row / patch_rows] / columns;
            norm.factor[h][row % patch_rows][row / patch_rows] = 1.0f / sqrt_of(variance + op.eps);
        }
}

// Norm, gains and rotation of a beat at (row, col).
Beat of_heads(const Post &op, Beat beat, unsigned row, unsigned col, const HeadNorm &norm,
              const Beat (&gains)[vector_words], const Buffer &table) {
#pragma HLS INLINE
    const unsigned width = op.heads ? half_tile : tile, in_head = col % width, head = op.heads ? col / half_tile : 0;
    for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
        const float mean = op.rms ? 0.0f : norm.mean[head][r][row / patch_rows];
        const float factor = norm.factor[head][r][row / patch_rows];
        for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
            float &x = beat[by_rows(r, c)];
            const float normalised = add_in_fabric(x, -mean) * factor;
            if (op.norm) x = in_head + c < op.columns ? normalised : 0.0f;
            const float gained = x * gains[(col + c) / beat_floats][(col + c) % beat_floats];
            if (op.gains) x = gained;
        }
    }
    if (!op.rotate) return beat;
    // A pair of columns has one cosine and one sine: in_head / 2 is its number, sines lie behind the cosines.
    const unsigned pair = in_head / 2;
    const Beat cosines = get_beat<by_rows, tile>(table, row, pair & ~(patch_cols - 1));
    const Beat sines = get_beat<by_rows, tile>(table, row, (width / 2 + pair) & ~(patch_cols - 1));
    Beat out;
    for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
        for (unsigned p = 0; p < patch_cols / 2; ++p) {
#pragma HLS UNROLL
            const unsigned at = (pair + p) % patch_cols;
            const float cos = cosines[by_rows(r, at)], sin = sines[by_rows(r, at)];
            const float a = beat[by_rows(r, 2 * p)], b = beat[by_rows(r, 2 * p + 1)];
            out[by_rows(r, 2 * p)] = a * cos - b * sin;
            out[by_rows(r, 2 * p + 1)] = b * cos + a * sin;
        }
    }
    return out;
}

inline Beat active(const Post &op, Beat beat, const Beat &gate) {
#pragma HLS INLINE
    for (unsigned n = 0; n < beat_floats; ++n) {
#pragma HLS UNROLL
        const float x = activated(beat[n], static_cast<Activation>(op.activation));
        beat[n] = op.gate ? x * gate[n] : x;
    }
    return beat;
}

inline void deliver(To to, const Beat &beat, hls::stream<Beat> &k0, hls::stream<Beat> &k1, hls::stream<Beat> &v0,
                    hls::stream<Beat> &v1, hls::stream<Beat> &t_even, hls::stream<Beat> &t_odd) {
#pragma HLS INLINE
    switch (to) {
    case To::t_even: t_even << beat; break;
    case To::t_odd: t_odd << beat; break;
    case To::k0: k0 << beat; break;
    case To::k1: k1 << beat; break;
    case To::v0: v0 << beat; break;
    default: v1 << beat; break;
    }
}

}  // namespace

void post(hls::stream<Uop<Post::words>> &uops, hls::stream<Beat> &lpddr, hls::stream<Beat> &c, hls::stream<Beat> &ddr,
          hls::stream<Beat> &k0, hls::stream<Beat> &k1, hls::stream<Beat> &v0, hls::stream<Beat> &v1,
          hls::stream<Beat> &t_even, hls::stream<Beat> &t_odd) {
    Buffer buffer, table;
    poison(buffer);
    poison(table);
    HeadNorm norm = {};
    Beat gains[vector_words] = {};
    unsigned number = 0;
post_uops:
    for (;;) {
        const Uop<Post::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const Post op = Post::decode(uop.words);
        const To to = static_cast<To>(op.to);
        const bool identity = static_cast<Activation>(op.activation) == Activation::identity;
        const bool heads = op.norm || op.gains || op.rotate, acts = op.gate || !identity, stays = to == To::ddr;
        if (op.table) take_table(lpddr, table);
    gain_words:
        for (unsigned w = 0; op.gains && w < vector_words; ++w) {
#pragma HLS PIPELINE II=ii::load style=flp
            gains[w] = lpddr.read();
        }
    post_tiles:
        for (unsigned i = 0; i < op.tiles; ++i) {
            take_tile(c, buffer);
            if (op.norm) norm_of_heads(op, buffer, norm);
            if (heads) {
            head_functions:
                for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::rotate style=flp
#pragma HLS DEPENDENCE variable=buffer type=inter dependent=false
                    const unsigned row = right_row(t), col = right_col(t);
                    const Beat in = get_beat<by_rows, tile>(buffer, row, col);
                    const Beat out = of_heads(op, in, row, col, norm, gains, table);
                    if (stays || acts) put_beat<by_rows, tile>(buffer, row, col, out);
                    else deliver(to, out, k0, k1, v0, v1, t_even, t_odd);
                }
            }
            if (acts) {
            activations:
                for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::activation style=flp
#pragma HLS DEPENDENCE variable=buffer type=inter dependent=false
                    const unsigned row = right_row(t), col = right_col(t);
                    const Beat in = get_beat<by_rows, tile>(buffer, row, col);
                    Beat gate;
                    if (op.gate) gate = c.read();
                    const Beat out = active(op, in, gate);
                    if (stays) put_beat<by_rows, tile>(buffer, row, col, out);
                    else deliver(to, out, k0, k1, v0, v1, t_even, t_odd);
                }
            } else if (!heads && !stays) {
            post_beats_out:
                for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::send style=flp
                    const Beat beat = get_beat<by_rows, tile>(buffer, right_row(t), right_col(t));
                    deliver(to, beat, k0, k1, v0, v1, t_even, t_odd);
                }
            }
        post_halves:
            for (unsigned h = 0; stays && h < 2; ++h) {
            post_words_out:
                for (unsigned w = 0; w < words_per_block; ++w) {
#pragma HLS PIPELINE II=ii::store style=flp
                    ddr << get_word<tile>(buffer, word_row(w), h * half_tile + word_col(w));
                }
            }
        }
    }
}

}  // namespace rsn::xnn
