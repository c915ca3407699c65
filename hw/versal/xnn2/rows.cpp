// X: the rows of a lane. One port takes tiles, adds them to what is there, and makes statistics of rows; one sends tiles,
// normalised where asked; a second read port stores them. In hardware each of the two banks is a RAM with two ports:
// one bank is written, also from what it holds, while the other one is sent or stored.
//
// A beat a cycle in and out, a word a cycle to DDR, which applies the norm. With statistics a beat comes in two cycles.
// SPDX-License-Identifier: Apache-2.0
#include "../pl/dataflow.h"
#include "units.h"

namespace rsn::xnn {

namespace {

constexpr unsigned slots = buffers::XIn_slots;

// What the fields of XIn and XOut say.
enum class From : std::uint8_t { result, scratch };
enum class To : std::uint8_t { lane, pair, result, other };
enum class Exchange : std::uint8_t { none, own, empty };

// Of a tile, of the valid columns of each row: its first element, sums of what is apart from it, and of squares of that.
// Since the first element is one of those that are counted, it is at most as far from their mean as the root of their
// number times their deviation: no difference of large sums is taken.
enum { apart, squared, kinds };
struct Sums {
    Rows first, of[kinds];
};
// Sums of eight columns of each row of a beat, of the four beats that make 32 columns.
struct Parts {
    float of[kinds][patch_rows][groups];
};

// A tile into a slot. counts: with sums of its valid columns. Two rows of a beat are counted in a round. In the rounds of
// the four beats behind those of 32 columns, their sums are added up, one in a round; a row comes again after 128 beats.
void take(RowMemory &x, unsigned slot, From source, bool added, bool counts, unsigned valid, hls::stream<Beat> &scratch,
          hls::stream<Beat> &result, Sums &sums) {
#pragma HLS INLINE
    constexpr unsigned lines = patch_rows / rounds::statistics;
    static_assert(rounds::statistics * groups == kinds * patch_rows, "a sum of a row in each round of four beats");
    Parts now = {}, before = {};
#pragma HLS ARRAY_PARTITION variable=now.of complete dim=0
#pragma HLS ARRAY_PARTITION variable=before.of complete dim=0
    float pivots[patch_rows] = {};
#pragma HLS ARRAY_PARTITION variable=pivots complete
    Beat beat;
take_beats:
    for (Rounds at(counts ? rounds::statistics : 1, beats_per_tile + (counts ? groups : 0)); at.more(); at.next()) {
#pragma HLS PIPELINE II=ii::take style=flp
#pragma HLS DEPENDENCE variable=x type=inter direction=RAW distance=512 dependent=true
#pragma HLS DEPENDENCE variable=sums type=inter direction=RAW distance=128 dependent=true
        const unsigned t = at.beat, group = t % groups, col = right_col(t);
        if (at.begins() && group == 0) before = now;
        if (t < beats_per_tile) {
            if (at.begins()) {
                const unsigned row = slot % slots * tile + right_row(t);
                beat = source == From::scratch ? scratch.read() : result.read();
                const Beat old = get_beat<by_rows, tile>(x, row, col);
                for (unsigned i = 0; i < beat_floats; ++i) {
#pragma HLS UNROLL
                    if (added) beat[i] = old[i] + beat[i];
                }
                put_beat<by_rows, tile>(x, row, col, beat);
            }
            for (unsigned r = 0; counts && r < lines; ++r) {
#pragma HLS UNROLL
                const unsigned row = at.round * lines + r, g = right_row(t) / patch_rows;
                if (col == 0) sums.first[row][g] = beat[patch_cols * r];
                if (group == 0) pivots[row] = sums.first[row][g];
                float of_row[patch_cols], squares[patch_cols];
                for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
                    const float from = beat[patch_cols * r + c], pivot = pivots[row];
                    const float less = c + r == 0 ? add_in_fabric(from, -pivot) : from - pivot;
                    of_row[c] = col + col_of(c) < valid ? less : 0.0f;
                }
                for (unsigned c = 0; c < patch_cols; c += 2) {
#pragma HLS UNROLL
                    squares[c / 2] = fmadd(of_row[c], of_row[c], of_row[c + 1] * of_row[c + 1]);
                }
                now.of[apart][row][group] = sum(of_row);
                now.of[squared][row][group] = (squares[0] + squares[1]) + (squares[2] + squares[3]);
            }
            shift<elements_of(rounds::statistics)>(beat);
        }
        if (counts && t >= groups) {
            const unsigned n = group * rounds::statistics + at.round, kind = n / patch_rows, row = n % patch_rows;
            const float(&four)[groups] = before.of[kind][row];
            const float more = (four[0] + four[1]) + (four[2] + four[3]);
            float &of_row = sums.of[kind][row][right_row(t - groups) / patch_rows];
            of_row = t - groups < beats_per_tile / groups ? more : of_row + more;
        }
    }
}

// Joins the statistics of a part of the columns with those before (Chan, Golub and LeVeque 1979): no difference of large
// sums is taken. count: columns before; share: of the part in the whole.
inline void join(float &mean, float &squares, float count, float share, float of_part, float squares_of_part) {
#pragma HLS INLINE
    const float less = of_part - mean;
    mean = fmadd(less, share, mean);
    squares = fmadd(less * less, count * share, squares + squares_of_part);
}

// Adds a tile to the statistics of its bank. begins: there are none before.
void add_statistics(unsigned slot, unsigned valid, bool begins, const Sums &sums, Statistics &made) {
#pragma HLS INLINE
    const unsigned bank = slot % slots / bank_tiles;
    const float columns = static_cast<float>(valid), inverse = 1.0f / columns;
    const float count = begins ? 0.0f : made.count[bank], all = count + columns, share = columns / all;
join_rows:
    for (unsigned row = 0; row < tile; ++row) {
#pragma HLS PIPELINE II=ii::join style=flp
#pragma HLS DEPENDENCE variable=made type=inter dependent=false
        const unsigned r = row % patch_rows, g = row / patch_rows;
        const float less = sums.of[apart][r][g], mean_less = less * inverse;
        const float squares = fmadd(-less, mean_less, sums.of[squared][r][g]);
        float mean = begins ? 0.0f : made.mean[bank][r][g], before = begins ? 0.0f : made.squares[bank][r][g];
        join(mean, before, count, share, sums.first[r][g] + mean_less, squares);
        made.mean[bank][r][g] = mean;
        made.squares[bank][r][g] = before;
    }
    made.count[bank] = all;
}

// The factors of all rows.
struct Norm {
    Rows times, plus;
};

void prepare(const Statistics &made, unsigned bank, float eps, bool rms, Norm &norm) {
#pragma HLS INLINE
    const float count = made.count[bank], inverse = 1.0f / count;
prepare_rows:
    for (unsigned row = 0; row < tile; ++row) {
#pragma HLS PIPELINE II=ii::factors style=flp
        const unsigned r = row % patch_rows, g = row / patch_rows;
        const Factors row_factors(made.mean[bank][r][g], made.squares[bank][r][g], count, inverse, eps, rms);
        norm.times[r][g] = row_factors.times;
        norm.plus[r][g] = row_factors.plus;
    }
}

// To the other lane, and from it. Functions of their own: in one state of one function the two would wait for each
// other, and since the other lane does the same, for ever (UG1399, HLS Fence Library).
void send_statistics(const Statistics &made, unsigned bank, bool own, hls::stream<Beat> &to) {
#pragma HLS INLINE off
send_statistics_beats:
    for (unsigned i = 0; i < 3 * end_beats; ++i) {
#pragma HLS PIPELINE II=1 style=flp
        Beat beat;
        for (unsigned n = 0; n < beat_floats; ++n) {
#pragma HLS UNROLL
            const unsigned row = i % end_beats * beat_floats + n, r = row % patch_rows, g = row / patch_rows;
            const float which = i < end_beats ? made.mean[bank][r][g]
                                : i < 2 * end_beats ? made.squares[bank][r][g] : made.count[bank];
            beat[n] = own ? which : 0.0f;
        }
        to << beat;
    }
}
void receive_statistics(hls::stream<Beat> &from, Beat (&beats)[3 * end_beats]) {
#pragma HLS INLINE off
receive_statistics_beats:
    for (unsigned i = 0; i < 3 * end_beats; ++i) {
#pragma HLS PIPELINE II=1 style=flp
        beats[i] = from.read();
    }
}

// Both lanes join the even one's first, so that they get the same numbers.
void share(Statistics &made, unsigned bank, bool own, bool odd, hls::stream<Beat> &to, hls::stream<Beat> &from) {
#pragma HLS INLINE
    Beat theirs[3 * end_beats];
    send_statistics(made, bank, own, to);
    receive_statistics(from, theirs);
    if (!own) return;  // XStore may still read what is there
    const float mine = made.count[bank], other = theirs[2 * end_beats][0];
    const float first = odd ? other : mine, second = odd ? mine : other, all = first + second;
    const float part = all == 0.0f ? 0.0f : second / all;
join_lanes:
    for (unsigned row = 0; row < tile; ++row) {
#pragma HLS PIPELINE II=ii::join style=flp
#pragma HLS DEPENDENCE variable=made type=inter dependent=false
        const unsigned r = row % patch_rows, g = row / patch_rows, b = row / beat_floats, n = row % beat_floats;
        const float my_mean = made.mean[bank][r][g], my_squares = made.squares[bank][r][g];
        const float mean = theirs[b][n], squares = theirs[end_beats + b][n];
        float joined = odd ? mean : my_mean, total = odd ? squares : my_squares;
        join(joined, total, first, part, odd ? my_mean : mean, odd ? my_squares : squares);
        made.mean[bank][r][g] = joined;
        made.squares[bank][r][g] = total;
    }
    made.count[bank] = all;
}

void x_out(bool odd, hls::stream<Uop<XOut::words>> &uops, RowMemory &x, Statistics &made, hls::stream<Token> &filled,
           hls::stream<Beat> &from_other, hls::stream<Token> &free, hls::stream<Beat> &to_other,
           hls::stream<Beat> &mesh_even, hls::stream<Beat> &mesh_odd, hls::stream<Beat> &c) {
#pragma HLS INLINE
    Norm norm = {};
    unsigned number = 0;
x_out_uops:
    for (;;) {
        const Uop<XOut::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const XOut op = XOut::decode(uop.words);
        wait_for(op.wait, filled);
        const unsigned bank = op.slot % slots / bank_tiles;
        const Exchange exchange = static_cast<Exchange>(op.share);
        if (exchange != Exchange::none) share(made, bank, exchange == Exchange::own, odd, to_other, from_other);
        if (op.normalise) prepare(made, bank, op.eps, op.rms, norm);
        const To to = static_cast<To>(op.to);
        const bool own = to == To::lane || to == To::pair, pair = to == To::pair || to == To::other;
        const bool to_even = odd ? pair : own, to_odd = odd ? own : pair;
    x_out_times:
        for (unsigned k = 0; k < op.times; ++k) {
        x_out_tiles:
            for (unsigned i = 0; i < op.tiles; ++i) {
            x_out_beats:
                for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::send style=flp
                    const unsigned row = to == To::result ? right_row(t) : left_row(t);
                    const unsigned col = to == To::result ? right_col(t) : left_col(t);
                    Beat beat = get_beat<by_rows, tile>(x, (op.slot + i) % slots * tile + row, col);
                    for (unsigned n = 0; n < beat_floats; ++n) {
#pragma HLS UNROLL
                        const unsigned r = n / patch_cols, g = row / patch_rows;
                        const float result = fmadd(beat[n], norm.times[r][g], norm.plus[r][g]);
                        if (op.normalise) beat[n] = result;
                    }
                    if (to == To::result) c << beat;
                    if (to_even) mesh_even << beat;
                    if (to_odd) mesh_odd << beat;
                }
            }
        }
        free << Token(1);
    }
}

}  // namespace

void x_in(hls::stream<Uop<XIn::words>> &uops, RowMemory &x, Statistics &made, hls::stream<Token> &free,
          hls::stream<Token> &stored, hls::stream<Beat> &t_odd, hls::stream<Beat> &c, hls::stream<Token> &filled,
          hls::stream<Token> &store) {
    Sums sums;
#pragma HLS ARRAY_PARTITION variable=sums.first complete dim=1
#pragma HLS ARRAY_PARTITION variable=sums.of complete dim=1
#pragma HLS ARRAY_PARTITION variable=sums.of complete dim=2
    unsigned number = 0;
x_in_uops:
    for (;;) {
        const Uop<XIn::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const XIn op = XIn::decode(uop.words);
        wait_for(op.wait, free);
        wait_for(op.stored, stored);
    x_in_tiles:
        for (unsigned i = 0; i < op.tiles; ++i) {
            const unsigned first = i * tile, left = op.columns > first ? op.columns - first : 0;
            const unsigned valid = left < tile ? left : tile;
            const bool begins = op.statistics == 1 && i == 0, counts = op.statistics && valid;
            take(x, op.slot + i, static_cast<From>(op.source), op.add, counts, valid, t_odd, c, sums);
            if (counts)
                add_statistics(op.slot + i, valid, begins, sums, made);
            else if (begins)
                made.count[(op.slot + i) % slots / bank_tiles] = 0.0f;
            filled << Token(1);
        }
        if (op.store) store << Token(1);
    }
}

void x_out_even(hls::stream<Uop<XOut::words>> &uops, RowMemory &x, Statistics &made, hls::stream<Token> &filled,
                hls::stream<Beat> &from_other, hls::stream<Token> &free, hls::stream<Beat> &to_other,
                hls::stream<Beat> &even, hls::stream<Beat> &odd, hls::stream<Beat> &c) {
    x_out(false, uops, x, made, filled, from_other, free, to_other, even, odd, c);
}

void x_out_odd(hls::stream<Uop<XOut::words>> &uops, RowMemory &x, Statistics &made, hls::stream<Token> &filled,
               hls::stream<Beat> &from_other, hls::stream<Token> &free, hls::stream<Beat> &to_other,
               hls::stream<Beat> &even, hls::stream<Beat> &odd, hls::stream<Beat> &c) {
    x_out(true, uops, x, made, filled, from_other, free, to_other, even, odd, c);
}

void x_store(hls::stream<Uop<XStore::words>> &uops, RowMemory &x, Statistics &made, hls::stream<Token> &filled,
             hls::stream<Stored> &ddr, hls::stream<Token> &free) {
    unsigned number = 0;
x_store_uops:
    for (;;) {
        const Uop<XStore::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const XStore op = XStore::decode(uop.words);
        wait_for(op.wait, filled);
        const unsigned bank = op.slot % slots / bank_tiles;
        const float count = op.normalise ? made.count[bank] : 1.0f, inverse = 1.0f / count;
    x_store_tiles:
        for (unsigned i = 0; i < op.tiles; ++i) {
        x_store_halves:
            for (unsigned h = 0; h < 2; ++h) {
            x_store_words:
                for (unsigned w = 0; w < words_per_block; ++w) {
#pragma HLS PIPELINE II=ii::store style=flp
                    const unsigned row = word_row(w);
                    Stored out;
                    out.word = get_word<tile>(x, (op.slot + i) % slots * tile + row, h * half_tile + word_col(w));
                    out.normalise = op.normalise;
                    out.rms = op.rms;
                    out.eps = op.eps;
                    out.count = count;
                    out.inverse = inverse;
                    for (unsigned r = 0; r < word_rows; ++r) {
#pragma HLS UNROLL
                        const unsigned at = (row + r) % patch_rows, g = row / patch_rows;
                        out.mean[r] = op.normalise ? made.mean[bank][at][g] : 0.0f;
                        out.squares[r] = op.normalise ? made.squares[bank][at][g] : 0.0f;
                    }
                    ddr << out;
                }
            }
        }
        free << Token(1);
    }
}

}  // namespace rsn::xnn
