// X: the rows of a lane. One port takes tiles, adds them to what is there, and makes statistics of rows; one sends tiles,
// normalised where asked; a second read port stores them. In hardware each of the two banks is a RAM with two ports:
// one bank is written, also from what it holds, while the other one is sent or stored.
//
// A beat a cycle in and out, a word a cycle to DDR. Statistics take as long again as the tile.
// SPDX-License-Identifier: Apache-2.0
#include "../pl/dataflow.h"
#include "units.h"

namespace rsn::xnn {

namespace {

constexpr unsigned slots = buffers::XIn_slots;

// What the fields of XIn and XOut say.
enum class From : std::uint8_t { result, even, odd };
enum class To : std::uint8_t { lane, pair, result, other };
enum class Exchange : std::uint8_t { none, own, empty };

// Sums of the columns of a beat that are valid, shifted in for each of its rows.
inline void shift_in(Recent &recent, const Beat &beat, unsigned col, unsigned valid) {
#pragma HLS INLINE
    for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
        float of_row[patch_cols];
        for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
            of_row[c] = col + c < valid ? beat[by_rows(r, c)] : 0.0f;
        }
        recent.shift_in(r, sum(of_row));
    }
}

// Adds the sums of 32 columns to those of their rows, behind the last beat of the four; t: number of the beat.
inline void add(const Recent &recent, unsigned t, Rows &sums) {
#pragma HLS INLINE
    for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
        float &of_row = sums[r][right_row(t) / patch_rows];
        if (t % groups == groups - 1) of_row = t < beats_per_tile / groups ? recent.total(r) : of_row + recent.total(r);
    }
}

// A tile into a slot. sums: of its valid columns, of each row.
void take(RowMemory &x, unsigned slot, From source, bool added, unsigned valid, hls::stream<Beat> &even,
          hls::stream<Beat> &odd, hls::stream<Beat> &result, Rows &sums) {
#pragma HLS INLINE
    Recent recent = {};
take_beats:
    for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::take style=flp
#pragma HLS DEPENDENCE variable=x type=inter direction=RAW distance=512 dependent=true
#pragma HLS DEPENDENCE variable=sums type=inter direction=RAW distance=128 dependent=true
        const unsigned row = slot % slots * tile + right_row(t), col = right_col(t);
        Beat beat = source == From::even ? even.read() : source == From::odd ? odd.read() : result.read();
        const Beat old = get_beat<by_rows, tile>(x, row, col);
        for (unsigned i = 0; i < beat_floats; ++i) {
#pragma HLS UNROLL
            if (added) beat[i] = add_in_fabric(old[i], beat[i]);
        }
        put_beat<by_rows, tile>(x, row, col, beat);
        shift_in(recent, beat, col, valid);
        add(recent, t, sums);
    }
}

// Joins the statistics of a part of the columns with those before (Chan, Golub and LeVeque 1979): no difference of large
// sums is taken. count: columns before; share: of the part in the whole.
inline void join(float &mean, float &squares, float count, float share, float of_part, float squares_of_part) {
#pragma HLS INLINE
    const float apart = add_in_fabric(of_part, -mean);
    mean = add_in_fabric(mean, apart * share);
    squares = add_in_fabric(add_in_fabric(squares, squares_of_part), apart * apart * (count * share));
}

// Adds a tile to the statistics of its bank. sums: of its rows; begins: there are none before.
void add_statistics(const RowMemory &x, unsigned slot, unsigned valid, bool begins, const Rows &sums, Statistics &made) {
#pragma HLS INLINE
    const unsigned bank = slot % slots / bank_tiles;
    const float columns = static_cast<float>(valid), inverse = 1.0f / columns;
    const float count = begins ? 0.0f : made.count[bank], all = count + columns, share = columns / all;
    Rows squares;
#pragma HLS ARRAY_PARTITION variable=squares complete dim=1
    Recent recent = {};
square_beats:
    for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::squares style=flp
#pragma HLS DEPENDENCE variable=squares type=inter direction=RAW distance=128 dependent=true
        const unsigned row = right_row(t), col = right_col(t);
        Beat beat = get_beat<by_rows, tile>(x, slot % slots * tile + row, col);
        for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
            const float mean = sums[r][row / patch_rows] * inverse;
            for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
                const float apart = add_in_fabric(beat[by_rows(r, c)], -mean);
                beat[by_rows(r, c)] = apart * apart;
            }
        }
        shift_in(recent, beat, col, valid);
        add(recent, t, squares);
    }
join_rows:
    for (unsigned g = 0; g < row_groups; ++g) {
#pragma HLS PIPELINE II=ii::rows style=flp
        for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
            float mean = begins ? 0.0f : made.mean[bank][r][g], before = begins ? 0.0f : made.squares[bank][r][g];
            join(mean, before, count, share, sums[r][g] * inverse, squares[r][g]);
            made.mean[bank][r][g] = mean;
            made.squares[bank][r][g] = before;
        }
    }
    made.count[bank] = all;
}

// What rows are normalised by as they leave: less, then times. eps and rms: as XOut says.
struct Norm {
    Rows less, times;
};

void prepare(const Statistics &made, unsigned bank, float eps, bool rms, Norm &norm) {
#pragma HLS INLINE
    const float count = made.count[bank];
prepare_rows:
    for (unsigned row = 0; row < tile; ++row) {
#pragma HLS PIPELINE II=ii::rows style=flp
        const unsigned r = row % patch_rows, g = row / patch_rows;
        const float mean = made.mean[bank][r][g], own = made.squares[bank][r][g];
        const float squares = rms ? own + count * mean * mean : own;
        norm.less[r][g] = rms ? 0.0f : mean;
        norm.times[r][g] = 1.0f / sqrt_of(squares / count + eps);
    }
}

inline float normalised(float x, const Norm &norm, unsigned row, bool asked) {
#pragma HLS INLINE
    const unsigned r = row % patch_rows, g = row / patch_rows % row_groups;
    return asked ? add_in_fabric(x, -norm.less[r][g]) * norm.times[r][g] : x;
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
    const float mine = own ? made.count[bank] : 0.0f, other = theirs[2 * end_beats][0];
    const float first = odd ? other : mine, second = odd ? mine : other, all = first + second;
    const float part = all == 0.0f ? 0.0f : second / all;
join_lanes:
    for (unsigned row = 0; row < tile; ++row) {
#pragma HLS PIPELINE II=ii::rows style=flp
        const unsigned r = row % patch_rows, g = row / patch_rows, b = row / beat_floats, n = row % beat_floats;
        const float my_mean = own ? made.mean[bank][r][g] : 0.0f, my_squares = own ? made.squares[bank][r][g] : 0.0f;
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
                        const unsigned at = by_rows(n / patch_cols, n % patch_cols);
                        beat[at] = normalised(beat[at], norm, row + n / patch_cols, op.normalise);
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
          hls::stream<Token> &stored, hls::stream<Beat> &t_even, hls::stream<Beat> &t_odd, hls::stream<Beat> &c,
          hls::stream<Token> &filled, hls::stream<Token> &store) {
    Rows sums;
#pragma HLS ARRAY_PARTITION variable=sums complete dim=1
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
            take(x, op.slot + i, static_cast<From>(op.source), op.add, valid, t_even, t_odd, c, sums);
            const bool begins = op.statistics == 1 && i == 0;
            if (op.statistics && valid)
                add_statistics(x, op.slot + i, valid, begins, sums, made);
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
             hls::stream<Beat> &ddr, hls::stream<Token> &free) {
    Norm norm = {};
    unsigned number = 0;
x_store_uops:
    for (;;) {
        const Uop<XStore::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const XStore op = XStore::decode(uop.words);
        wait_for(op.wait, filled);
        if (op.normalise) prepare(made, op.slot % slots / bank_tiles, op.eps, op.rms, norm);
    x_store_tiles:
        for (unsigned i = 0; i < op.tiles; ++i) {
        x_store_halves:
            for (unsigned h = 0; h < 2; ++h) {
            x_store_words:
                for (unsigned w = 0; w < words_per_block; ++w) {
#pragma HLS PIPELINE II=ii::store style=flp
                    const unsigned row = word_row(w);
                    Beat word = get_word<tile>(x, (op.slot + i) % slots * tile + row, h * half_tile + word_col(w));
                    for (unsigned n = 0; n < beat_floats; ++n) {
#pragma HLS UNROLL
                        word[n] = normalised(word[n], norm, row + n / line_floats, op.normalise);
                    }
                    ddr << word;
                }
            }
        }
        free << Token(1);
    }
}

}  // namespace rsn::xnn
