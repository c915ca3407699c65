// Post: what is applied to the results of a lane: norm of heads, gains, rotation, activation, gate. A tile is taken into a
// buffer. A rotation is made in the buffer, so that it does not wait for who takes the tile. An activation is made as the
// tile leaves; to DDR by way of the buffer, because blocks have another order.
//
// A beat a cycle in and out without functions; for these see rounds::head_sums, rotate and activation.
// SPDX-License-Identifier: Apache-2.0
#include "../pl/dataflow.h"
#include "../pl/functions.h"
#include "../pl/port.h"
#include "units.h"

namespace rsn::xnn {

namespace {

constexpr unsigned heads_of_tile = 2;
enum class To : std::uint8_t { t_even, t_odd, ddr, k, v };

using Buffer = Tiles<1>;

// Cosines and sines of 128 rows, row by row: of 8 KiB, port 0 brings eight rows, port 1 the next eight. A line of an even
// row waits for that of the next one, with which it makes a word.
void take_table(hls::stream<Beat> &lpddr, Buffer &table) {
#pragma HLS INLINE
    constexpr unsigned lines = tile / line_floats;
    static_assert(rounds::table == 2, "a half of a word in a round");
    Line even[rounds::table * lines];
    Beat word;
table_words:
    for (Rounds at(rounds::table); at.more(); at.next()) {
#pragma HLS PIPELINE II=ii::table style=flp
#pragma HLS DEPENDENCE variable=even type=inter direction=RAW distance=16 dependent=true
        if (at.begins()) word = lpddr.read();
        const unsigned w = at.beat, row = w / port_lines * 16 + w % port_lines / lines, line = w % lines;
        const unsigned place = at.round * lines + line;
        const Line before = even[place];
        Beat both;
        for (unsigned n = 0; n < line_floats; ++n) {
#pragma HLS UNROLL
            both[n] = before[n];
            both[line_floats + n] = word[n];
        }
        if (row & 1) put_word<tile>(table, row + 8 * at.round - 1, line * line_floats, both);
        else even[place] = half(word, 0);
        shift<line_floats>(word);
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

// What the rows of each head become: times, plus.
struct HeadNorm {
    Rows times[heads_of_tile], plus[heads_of_tile];
};

// Means of the normalised columns of each head, where they are asked for, and then their squares apart from it. A round
// takes four columns of a row, down all rows before the next columns; so a row comes again after 128 rounds.
void norm_of_heads(const Post &op, const Buffer &buffer, HeadNorm &norm) {
#pragma HLS INLINE
    constexpr unsigned taken = elements_of(rounds::head_sums), halves = patch_cols / taken;
    static_assert(rounds::head_sums == halves * patch_rows, "a row in a round");
    Rows sums[heads_of_tile], means[heads_of_tile];
#pragma HLS ARRAY_PARTITION variable=sums complete dim=1
#pragma HLS ARRAY_PARTITION variable=sums complete dim=2
#pragma HLS ARRAY_PARTITION variable=means complete dim=1
#pragma HLS ARRAY_PARTITION variable=means complete dim=2
    const unsigned width = op.heads ? half_tile : tile, heads = op.heads ? heads_of_tile : 1;
    const float inverse = 1.0f / static_cast<float>(op.columns);
head_walks:
    for (unsigned squares = op.rms; squares < 2; ++squares) {
        Beat beat;
    head_sums:
        for (Rounds at(rounds::head_sums); at.more(); at.next()) {
#pragma HLS PIPELINE II=ii::head_sums style=flp
#pragma HLS DEPENDENCE variable=sums type=inter direction=RAW distance=128 dependent=true
            const unsigned col = at.beat / (row_groups / halves) * taken, head = op.heads ? col / half_tile : 0;
            const unsigned g = at.beat % (row_groups / halves) * halves + at.round / patch_rows, r = at.round % patch_rows;
            if (r == 0) beat = get_beat<in_rows, tile>(buffer, g * patch_rows, col / patch_cols * patch_cols);
            const float mean = squares && !op.rms ? means[head][r][g] : 0.0f;
            float part[taken];
            for (unsigned c = 0; c < taken; ++c) {
#pragma HLS UNROLL
                const float less = beat[col % patch_cols + c] - mean;
                part[c] = col % width + c < op.columns ? less : 0.0f;
            }
            float more = part[0] * (squares ? part[0] : 1.0f);
            for (unsigned c = 1; c < taken; ++c) {
#pragma HLS UNROLL
                more = fmadd(part[c], squares ? part[c] : 1.0f, more);
            }
            float &of = sums[head][r][g];
            of = col % width == 0 ? more : of + more;
            shift<patch_cols>(beat);
        }
    head_factors:
        for (unsigned n = 0; n < heads * tile; ++n) {
#pragma HLS PIPELINE II=ii::head_factors style=flp
            const unsigned h = n / tile, r = n % patch_rows, g = n % tile / patch_rows;
            if (!squares) {
                means[h][r][g] = sums[h][r][g] * inverse;
            } else {
                const float times = 1.0f / sqrt_of(fmadd(sums[h][r][g], inverse, op.eps));
                norm.times[h][r][g] = times;
                norm.plus[h][r][g] = op.rms ? 0.0f : -means[h][r][g] * times;
            }
        }
    }
}

// Norm, gains and rotation of a tile, two columns of a row in a round: the two have one cosine and one sine, by the number
// of the pair in its head; sines lie behind the cosines.
struct OfHeads {
    Beat in, out, cosines, sines;
    ColumnPart gained;

    // The next two columns. Behind the last ones, `out` is a beat in the order of the buffer.
    void two(const Post &op, const Rounds &at, const Buffer &buffer, const HeadNorm &norm,
             const Columns &gains, const Buffer &table) {
#pragma HLS INLINE
        constexpr unsigned taken = elements_of(rounds::rotate), pairs = patch_cols / taken;
        static_assert(taken == 2, "a pair in a round");
        const unsigned row = right_row(at.beat), left = right_col(at.beat), g = row / patch_rows;
        const unsigned width = op.heads ? half_tile : tile, head = op.heads ? left / half_tile : 0;
        const unsigned r = at.round / pairs, col = left + at.round % pairs * taken, in_head = col % width;
        // of a beat of the table half of the columns are needed, those of four pairs
        const unsigned first = left % width / 2, place = first & ~(patch_cols - 1);
        if (at.begins()) {
            in = get_beat<in_rows, tile>(buffer, row, left);
            cosines = get_beat<in_rows, tile>(table, row, place);
            sines = get_beat<in_rows, tile>(table, row, width / 2 + place);
            gained = gains[left / patch_cols];
        }
        float x[taken], turned[taken];
        for (unsigned c = 0; c < taken; ++c) {
#pragma HLS UNROLL
            const float normalised = fmadd(in[c], norm.times[head][r][g], norm.plus[head][r][g]);
            x[c] = !op.norm ? in[c] : in_head + c < op.columns ? normalised : 0.0f;
            const float times_gain = x[c] * gained[col % patch_cols + c];
            if (op.gains) x[c] = times_gain;
        }
        const unsigned at_pair = r * patch_cols + first % patch_cols + at.round % pairs;
        const float cosine = cosines[at_pair], sine = sines[at_pair];
        turned[0] = fmadd(x[0], cosine, -(x[1] * sine));
        turned[1] = fmadd(x[1], cosine, x[0] * sine);
        shift<taken>(in);
        if (op.rotate) shift_in(out, turned);
        else shift_in(out, x);
    }
};

// Activation and gate of a beat, four elements in a round.
struct Active {
    Beat in, gate, out;

    void some(const Post &op) {
#pragma HLS INLINE
        constexpr unsigned taken = elements_of(rounds::activation);
        float part[taken];
        for (unsigned n = 0; n < taken; ++n) {
#pragma HLS UNROLL
            const float x = activated<true>(in[n], static_cast<Activation>(op.activation));
            part[n] = op.gate ? x * gate[n] : x;
        }
        shift<taken>(in);
        shift<taken>(gate);
        shift_in(out, part);
    }
};

// To K or V, or to T. Post of an even lane has a stream to one T.
inline void deliver(To to, const Beat &beat, hls::stream<Beat> &k, hls::stream<Beat> &v,
                    hls::stream<Beat> &t_even) {
#pragma HLS INLINE
    switch (to) {
    case To::t_even: t_even << beat; break;
    case To::k: k << beat; break;
    default: v << beat; break;
    }
}
inline void deliver(To to, const Beat &beat, hls::stream<Beat> &k, hls::stream<Beat> &v,
                    hls::stream<Beat> &t_even, hls::stream<Beat> &t_odd) {
#pragma HLS INLINE
    if (to == To::t_odd) t_odd << beat;
    else deliver(to, beat, k, v, t_even);
}

// streams: those that `deliver` takes.
template <typename... Streams>
void functions(hls::stream<Uop<Post::words>> &uops, hls::stream<Beat> &lpddr, hls::stream<Beat> &c,
               hls::stream<Beat> &ddr, Streams &...streams) {
#pragma HLS INLINE
    Buffer buffer, table;
#pragma HLS ARRAY_PARTITION variable=buffer complete dim=1
#pragma HLS ARRAY_PARTITION variable=table complete dim=1
    poison(buffer);
    poison(table);
    HeadNorm norm = {};
    Columns gains = {};
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
        take_columns(op.gains, lpddr, gains);
    post_tiles:
        for (unsigned i = 0; i < op.tiles; ++i) {
            take_tile(c, buffer);
            if (op.norm) norm_of_heads(op, buffer, norm);
            if (heads) {
                OfHeads made;
            head_functions:
                for (Rounds at(rounds::rotate); at.more(); at.next()) {
#pragma HLS PIPELINE II=ii::rotate style=flp
#pragma HLS DEPENDENCE variable=buffer type=inter dependent=false
                    made.two(op, at, buffer, norm, gains, table);
                    if (!at.ends()) continue;
                    put_beat<in_rows, tile>(buffer, right_row(at.beat), right_col(at.beat), made.out);
                }
            }
            if (acts) {
                Active made;
            activations:
                for (Rounds at(rounds::activation); at.more(); at.next()) {
#pragma HLS PIPELINE II=ii::activation style=flp
#pragma HLS DEPENDENCE variable=buffer type=inter dependent=false
                    const unsigned row = right_row(at.beat), col = right_col(at.beat);
                    if (at.begins()) {
                        made.in = get_beat<by_rows, tile>(buffer, row, col);
                        if (op.gate) made.gate = c.read();
                    }
                    made.some(op);
                    if (!at.ends()) continue;
                    if (stays) put_beat<by_rows, tile>(buffer, row, col, made.out);
                    else deliver(to, made.out, streams...);
                }
            } else if (!stays) {
            post_beats_out:
                for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::send style=flp
                    const Beat beat = get_beat<by_rows, tile>(buffer, right_row(t), right_col(t));
                    deliver(to, beat, streams...);
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

}  // namespace

void post_even(hls::stream<Uop<Post::words>> &uops, hls::stream<Beat> &lpddr, hls::stream<Beat> &c,
               hls::stream<Beat> &ddr, hls::stream<Beat> &k, hls::stream<Beat> &v, hls::stream<Beat> &t_even) {
    functions(uops, lpddr, c, ddr, k, v, t_even);
}

void post_odd(hls::stream<Uop<Post::words>> &uops, hls::stream<Beat> &lpddr, hls::stream<Beat> &c,
              hls::stream<Beat> &ddr, hls::stream<Beat> &k, hls::stream<Beat> &v, hls::stream<Beat> &t_even,
              hls::stream<Beat> &t_odd) {
    functions(uops, lpddr, c, ddr, k, v, t_even, t_odd);
}

}  // namespace rsn::xnn
