// T: tiles that live for a short time. One port takes them, from Post, of an odd lane also from Softmax and from DDR; the
// other one sends them to MMEs of the pair or to X, probabilities with their last factor.
//
// A beat a cycle in and out, a word a cycle from DDR.
// SPDX-License-Identifier: Apache-2.0
#include "../pl/dataflow.h"
#include "units.h"

namespace rsn::xnn {

namespace {

// What the fields of TIn and TOut say.
enum class From : std::uint8_t { even, odd, softmax, ddr };
enum class To : std::uint8_t { even, odd, pair, rows_even, rows_odd };
enum class Part : std::uint8_t { whole, left, right };

// Where a beat goes in a tile of which a part is taken, or whether it goes nowhere. Of a part, 64 columns come first.
inline bool placed(Part part, unsigned &col) {
#pragma HLS INLINE
    if (part == Part::right) {
        if (col >= half_tile) return false;
        col += half_tile;
    }
    return true;
}

template <unsigned Slots>
void keep(Tiles<Slots> &t, unsigned slot, Part part, unsigned beat_number, Beat beat) {
#pragma HLS INLINE
    unsigned col = right_col(beat_number);
    if (part == Part::left && col >= half_tile) beat = Beat(0.0f);
    if (placed(part, col)) put_beat<by_rows, tile>(t, slot % Slots * tile + right_row(beat_number), col, beat);
}

// A beat of a tile as it leaves; undefined behind the 64 columns of a part.
template <unsigned Slots>
Beat sent_beat(const Tiles<Slots> &t, unsigned slot, Part part, unsigned row, unsigned col) {
#pragma HLS INLINE
    const unsigned from = part == Part::right ? (col + half_tile) % tile : col;
    const Beat beat = get_beat<by_rows, tile>(t, slot % Slots * tile + row, from);
    return part == Part::whole || col < half_tile ? beat : undefined_beat();
}

// Where to a beat goes, and in which order those of a tile do: as left operands to MMEs, as results to X.
inline void deliver(To to, const Beat &beat, hls::stream<Beat> &even, hls::stream<Beat> &odd) {
#pragma HLS INLINE
    if (to == To::even || to == To::pair) even << beat;
    if (to == To::odd || to == To::pair) odd << beat;
}
inline void deliver(To to, const Beat &beat, hls::stream<Beat> &x_even, hls::stream<Beat> &x_odd,
                    hls::stream<Beat> &even, hls::stream<Beat> &odd) {
#pragma HLS INLINE
    deliver(to, beat, even, odd);
    if (to == To::rows_even) x_even << beat;
    if (to == To::rows_odd) x_odd << beat;
}
inline bool to_rows(To to) { return to == To::rows_even || to == To::rows_odd; }

// The last factors of probabilities: of eight rows and a group of columns, which are in eight beats one behind the other.
// One is made for each beat, while the beats before leave.
constexpr unsigned ahead = 8;
struct NoFactors {
    static constexpr unsigned lag(const TOut &) { return 0; }
    void begin(hls::stream<Token> &) {}
    void end(hls::stream<Token> &) {}
    void make(const TOut &, unsigned, unsigned, unsigned, unsigned) {}
    Beat applied(const TOut &, unsigned, const Beat &beat) const { return beat; }
};
struct LastFactors {
    const Weights &weights;
    float next[ahead] = {}, now[ahead] = {};

    explicit LastFactors(const Weights &of_heads) : weights(of_heads) {}

    static constexpr unsigned lag(const TOut &op) { return op.weights ? ahead : 0; }
    // The weights are read behind the tokens that are taken before, and before the token that is put behind.
    void begin(hls::stream<Token> &filled) {
#pragma HLS INLINE
        hls::fence(weights.tops, weights.top, weights.total, filled);
    }
    void end(hls::stream<Token> &free) {
#pragma HLS INLINE
        hls::fence(weights.tops, weights.top, weights.total, free);
    }
    // slot: of the tile. row, col: where the eight beats begin. number: of the beat.
    void make(const TOut &op, unsigned slot, unsigned row, unsigned col, unsigned number) {
#pragma HLS INLINE
        constexpr unsigned slots = buffers::TIn1_slots;
        const unsigned n = number % ahead, r = n % patch_rows, g = row / patch_rows + n / patch_rows;
        const unsigned end = op.slot % slots * row_groups + g;
        const float top = weights.tops[r][(slot % slots * groups + col / group_cols) * row_groups + g];
        const float total = weights.total[r][end];
        next[n] = total > 0.0f ? exp_of(top - weights.top[r][end]) / total : 0.0f;
        if (n != ahead - 1) return;
        for (unsigned i = 0; i < ahead; ++i) {
#pragma HLS UNROLL
            now[i] = next[i];
        }
    }
    Beat applied(const TOut &op, unsigned row, Beat beat) const {
#pragma HLS INLINE
        for (unsigned n = 0; n < beat_floats; ++n) {
#pragma HLS UNROLL
            beat[n] *= op.weights ? now[(row + n / patch_cols) % ahead] : 1.0f;
        }
        return beat;
    }
};

template <unsigned Slots, typename Factors, typename... Streams>
void send_tiles(Factors &factors, hls::stream<Uop<TOut::words>> &uops, Tiles<Slots> &t, hls::stream<Token> &filled,
                hls::stream<Token> &free, Streams &...streams) {
#pragma HLS INLINE
    unsigned number = 0;
t_out_uops:
    for (;;) {
        const Uop<TOut::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const TOut op = TOut::decode(uop.words);
        const To to = static_cast<To>(op.to);
        const Part part = static_cast<Part>(op.part);
        wait_for(op.wait, filled);
        hls::fence(t, filled);
        factors.begin(filled);
    t_out_tiles:
        for (unsigned i = 0; i < op.tiles; ++i) {
        t_out_times:
            for (unsigned k = 0; k < op.times; ++k) {
                const unsigned lag = Factors::lag(op);
            t_out_beats:
                for (Counter n = 0; n < beats_per_tile + lag; ++n) {
#pragma HLS PIPELINE II=ii::send style=flp
                    // a number of a beat that is not there counts from the first one again; it goes nowhere
                    const unsigned coming = n % beats_per_tile, first = coming / ahead * ahead;
                    const unsigned leaving = (n + beats_per_tile - lag) % beats_per_tile;
                    const bool right = to_rows(to);
                    if (n >= lag) {
                        const unsigned row = right ? right_row(leaving) : left_row(leaving);
                        const unsigned col = right ? right_col(leaving) : left_col(leaving);
                        const Beat beat = sent_beat<Slots>(t, op.slot + i, part, row, col);
                        deliver(to, factors.applied(op, row, beat), streams...);
                    }
                    const unsigned col = right ? right_col(first) : left_col(first);
                    const unsigned from = part == Part::right ? (col + half_tile) % tile : col;
                    factors.make(op, op.slot + i, right ? right_row(first) : left_row(first), from, coming);
                }
            }
        }
        hls::fence(t, free);
        factors.end(free);
        free << Token(1);
    }
}

}  // namespace

void t_in_even(hls::stream<Uop<TIn::words>> &uops, EvenScratch &t, hls::stream<Token> &free, hls::stream<Beat> &even,
               hls::stream<Beat> &odd, hls::stream<Token> &filled) {
    unsigned number = 0;
t_in_even_uops:
    for (;;) {
        const Uop<TIn::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const TIn op = TIn::decode(uop.words);
        wait_for(op.wait, free);
        hls::fence(t, free);
    t_in_even_tiles:
        for (unsigned i = 0; i < op.tiles; ++i) {
        t_in_even_beats:
            for (unsigned n = 0; n < beats_per_tile; ++n) {
#pragma HLS PIPELINE II=ii::take style=flp
                const Beat beat = static_cast<From>(op.source) == From::even ? even.read() : odd.read();
                keep<buffers::TIn0_slots>(t, op.slot + i, static_cast<Part>(op.part), n, beat);
            }
            hls::fence(t, filled);
            filled << Token(1);
        }
    }
}

void t_in_odd(hls::stream<Uop<TIn::words>> &uops, OddScratch &t, Weights &weights, hls::stream<Beat> &ddr,
              hls::stream<Token> &free, hls::stream<Beat> &post, hls::stream<Weighted> &soft, hls::stream<HeadEnds> &ends,
              hls::stream<Token> &filled) {
    constexpr unsigned slots = buffers::TIn1_slots;
    unsigned number = 0;
t_in_odd_uops:
    for (;;) {
        const Uop<TIn::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const TIn op = TIn::decode(uop.words);
        const From source = static_cast<From>(op.source);
        wait_for(op.wait, free);
        hls::fence(t, weights.tops, weights.top, weights.total, free);
    t_in_odd_tiles:
        for (unsigned i = 0; i < op.tiles; ++i) {
            const unsigned slot = (op.slot + i) % slots;
            if (source == From::ddr) {
            t_in_halves:
                for (unsigned h = 0; h < 2; ++h) {
                t_in_words:
                    for (unsigned w = 0; w < words_per_block; ++w) {
#pragma HLS PIPELINE II=ii::load style=flp
                        put_word<tile>(t, slot * tile + word_row(w), h * half_tile + word_col(w), ddr.read());
                    }
                }
            } else {
            t_in_odd_beats:
                for (unsigned n = 0; n < beats_per_tile; ++n) {
#pragma HLS PIPELINE II=ii::take style=flp
                    Weighted in = {};
                    if (source == From::softmax) in = soft.read();
                    else in.beat = post.read();
                    keep<slots>(t, slot, static_cast<Part>(op.part), n, in.beat);
                    for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
                        const unsigned group = right_col(n) / group_cols, at = right_row(n) / patch_rows;
                        if (source == From::softmax) weights.tops[r][(slot * groups + group) * row_groups + at] = in.top[r];
                    }
                }
            }
            if (source == From::softmax && i + 1 == op.tiles) {
            t_in_ends:
                for (unsigned g = 0; g < row_groups; ++g) {
#pragma HLS PIPELINE II=ii::ends style=flp
                    const HeadEnds end = ends.read();
                    for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
                        weights.top[r][op.slot % slots * row_groups + g] = end.top[r];
                        weights.total[r][op.slot % slots * row_groups + g] = end.total[r];
                    }
                }
            }
            hls::fence(t, weights.tops, weights.top, weights.total, filled);
            filled << Token(1);
        }
    }
}

void t_out_even(hls::stream<Uop<TOut::words>> &uops, EvenScratch &t, hls::stream<Token> &filled,
                hls::stream<Token> &free, hls::stream<Beat> &even, hls::stream<Beat> &odd) {
    NoFactors factors;
    send_tiles<buffers::TIn0_slots>(factors, uops, t, filled, free, even, odd);
}

void t_out_odd(hls::stream<Uop<TOut::words>> &uops, OddScratch &t, Weights &weights, hls::stream<Token> &filled,
               hls::stream<Beat> &x_even, hls::stream<Beat> &x_odd, hls::stream<Token> &free, hls::stream<Beat> &even,
               hls::stream<Beat> &odd) {
    LastFactors factors(weights);
#pragma HLS ARRAY_PARTITION variable=factors.next complete
#pragma HLS ARRAY_PARTITION variable=factors.now complete
    send_tiles<buffers::TIn1_slots>(factors, uops, t, filled, free, x_even, x_odd, even, odd);
}

}  // namespace rsn::xnn
