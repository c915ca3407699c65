// The processes of the programmable logic of xnn8, and what travels between them. dma_hls.cpp, which connects them, is
// generated. All of them return: decoders and units after their terminator, memories after the last of their readers.
//
// Words have up to 256 bit; those of X and T have the exponents of their four rows beside them, as four URAMs have 288.
//   X    4 rows, 4 columns, 16 bits each: [ 64 cells][4 groups of rows][16 groups of columns]
//   X8   4 rows, 8 columns,  8 bits each: [ 64 cells][4 groups of rows][ 8 groups of columns], then factors of rows
//   T    the same, and no factors:        [256 cells][4][8]
// A block of 64 columns has a cell for each 16 rows of the lane.
// A memory is one process with one port that writes and one that reads. Who reads has no more words under way than
// their stream holds, so that a memory never waits.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_XNN8_UNITS_H
#define RSN_XNN8_UNITS_H

#include "../pl/counter.h"
#include "../pl/dataflow.h"
#include "../pl/fetch.h"
#include "../pl/types.h"
#include "numbers.h"
#include "record.h"

namespace rsn::xnn8::pl {

using namespace xnn;

constexpr unsigned ports = 4;    // of a memory, of 256 bit
constexpr unsigned engines = 3;  // each with
constexpr unsigned lanes = 8, pairs = 8;
constexpr unsigned groups = 16, x_words = 16, t_words = 8;  // of rows in a lane; words of a group in a block
constexpr unsigned lane_rows = 4 * groups;
constexpr unsigned cell_rows = 16, cell_groups = 4;
constexpr unsigned x_depth = 16 * groups * x_words, x8_depth = 16 * groups * t_words, t_depth = 64 * groups * t_words;
constexpr unsigned x_cells_of_lane = x_depth / cell_groups / x_words;
constexpr unsigned block_columns = 64;
constexpr unsigned piece_words = 10;     // of the constants of a block
constexpr unsigned under_way = 15;       // reads of a memory, and one more
constexpr unsigned quarter_words = 32;   // of the weights of a column of pairs, by one port; of 4 bits:
constexpr unsigned short_quarter_words = 1 + quarter_words / 2;  // first the multipliers of its columns
constexpr unsigned window_beats = 131;   // of a packet of results
constexpr unsigned window_rows = 16;     // of a product; half of it of a head
constexpr unsigned most_held = 32;       // packets of the second stream of results: of four narrow heads of 64 rows
constexpr unsigned all_held = 4096;      // words of all
constexpr unsigned narrow_columns = 32;  // of a head

using Shorts = hls::vector<int16_t, 16>;
using Quarter = hls::vector<int16_t, 4>;
using Bytes = hls::vector<int8_t, 32>;
using HalfBytes = hls::vector<int8_t, 16>;
using Beat128 = hls::vector<uint32_t, 4>;  // to and from the tiles
using Values = hls::vector<int32_t, 8>;    // two rows, four columns
using MemoryPort = hls::burst_maxi<Shorts>;
using Token = ap_uint<1>;
using CellExponent = int8_t;      // of what is stored; or the largest of several
using Exponent = int16_t;         // of what is on its way,
using KeptExponent = ap_int<12>;  // and in memories and streams of rows

// What fields of Rows, Send and OffChip say.
enum RowsOp : uint8_t { load, store, walk, take, sum };
enum Added : uint8_t { nothing, raw, as_normalised };
enum Source : uint8_t { from_x8, from_t, queries };
enum End : uint8_t { to_w, to_constants, to_x, from_x, to_t, out_of_t, to_rows, from_rows };
enum Memory : uint8_t { in_x, in_t, in_angles };

// The first group of rows of a block. slot: first cell of the first block. rows: of a lane.
inline unsigned group_of(unsigned slot, unsigned block, unsigned rows) {
    return cell_groups * slot + static_cast<unsigned>(within<8>(block) * within<6>(rows / 4));
}

template <typename Elements>
struct Cell {
    Elements of;
    int8_t exponent[4];  // of its rows
};
using XCell = Cell<Shorts>;
using TCell = Cell<Bytes>;
struct TRow {
    int8_t of[8], exponent;
};
struct X8Cell {
    Bytes of;
};

// A cell of T as one of X, of as many bits; and the other way round.
inline XCell in_shorts(const TCell &cell) {
#pragma HLS INLINE
    XCell out;
    for (unsigned i = 0; i < 16; ++i) {
#pragma HLS UNROLL
        const auto low = static_cast<uint8_t>(cell.of[2 * i]), high = static_cast<uint8_t>(cell.of[2 * i + 1]);
        out.of[i] = static_cast<int16_t>(low | high << 8);
    }
    for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
        out.exponent[r] = cell.exponent[r];
    }
    return out;
}
inline Bytes bytes_of(const Shorts &word) {
#pragma HLS INLINE
    Bytes out;
    for (unsigned i = 0; i < 32; ++i) {
#pragma HLS UNROLL
        out[i] = static_cast<int8_t>(word[i / 2] >> i % 2 * 8);
    }
    return out;
}

template <typename Word>
struct CellWrite {
    bool last, told;  // last: of X8 alone; told: `done` gets a token once it is written
    uint16_t at;
    Word cell;
};
template <>
struct CellWrite<TCell> {
    bool last, told;
    uint16_t at;
    TCell cell;
    ap_uint<4> rows = 15;  // of the cell, that are written: a bit for each
};
struct CellRead {
    bool last;
    uint16_t at;
};

// Of a head: the largest exponent in a lane, and the engines that have other rows of the sequence.
struct LaneExponent {
    CellExponent of;
    ap_uint<engines> others;
};

// A uOP of DDR or LPDDR. rows: of a block, in all lanes. row_words: of the integers of a row, where rows lie one by
// one. drops: nothing is written.
struct Transfer {
    bool last, int4, drops;
    uint8_t end, engines, first, lanes, row_words;
    uint16_t rows;
    uint32_t addr, size;
};

// Of a uOP of Rows, what Post needs: angles that it gets, from a cell of theirs on, results that it takes, or sums.
struct PostWork {
    bool last, angles, sums, attention, narrow, wide, gated, norm, rotated, residual, eight;
    ap_uint<7> rows, blocks;
    ap_uint<2> slot;
    ap_uint<3> function;
};
// And residuals: whether norms of rows come; whether cells move, to be stored or to Post, of sums those of two addends
// in turn; and as they are normalised. of_t: cells of T are stored. Or heads that Post has made are normalised: heads,
// and whether these have 32 or 128 columns.
struct ResidualWork {
    bool last, norms, moves, stores, of_t, sums, in_turn, normalises, heads, narrow, wide;
    ap_uint<7> rows, blocks;
    ap_uint<8> slot;
    ap_uint<6> second_slot;
};

// What a stream of results brings: of heads or of a product, so many packets. narrow: heads have 32 columns.
struct PacketsDue {
    bool last, attention, narrow, gated;
    uint8_t count;
};
// From which pair, and which of its two ports.
using PacketNumber = ap_uint<3>;
// And which of the two packets from there, or of four of a narrow head.
using HeldPacket = ap_uint<5>;
// Eight results of a packet; and the sums of weights of its eight rows.
struct Results {
    ap_int<27> of[8];
};
struct WeightSums {
    ap_uint<19> of[8];
};
// Eight rows of a block: those of a column of pairs.
struct Place {
    uint8_t column, group;
};
// Of two rows: the exponents of values, in both halves of a block, and the one that they are stored with; above
// `highest`, they are beyond it.
struct RowExponents {
    // Nothing follows; they are stored with 8 bits; which reader gets them; the next two rows have others; they are as
    // they are stored; so does each half of a block, as narrow heads that a norm follows.
    bool last, eight, to_rows, each, stored, halves;
    Exponent from[2], second_from[2], made[2];
};
// Two rows, four columns, as they are stored.
struct Packed {
    int16_t of[8];
    int8_t exponent[2];
};

// Of a row, for a norm: sums of its elements and of their squares, aligned to the exponent `top`.
struct RowSums {
    ap_int<38> sum;
    ap_int<61> squares;
    CellExponent top;
};
// The same of a row of a head, or of one block of a wide one, as it is stored.
struct HeadSums {
    ap_int<23> sum;
    ap_int<37> squares;
    CellExponent exponent;
};
// Two rows of heads that a norm follows. halves: of two narrow heads, each has its own exponents and sums.
struct HeadBeat {
    bool last, halves;
    Packed of;
};
// Four columns of a row of a head that waits for its norm; and behind it.
struct HeadWord {
    int16_t of[4];
    int8_t exponent;
};
struct HeadRow {
    int32_t of[4];
    Exponent exponent;
};
// Of a row: the largest that can be sent, and what that is multiplied by as rows of a product.
struct RowBound {
    ap_int<33> bound;
    KeptExponent exponent;
    RowFactor inverse;
};
// What a row is sent with: 127 * 2^22 / mantissa of its bound, the exponent of that, and the factor of what is sent.
struct RowScale {
    uint16_t reciprocal;
    KeptExponent exponent;
    RowFactor factor;
};

// Where the elements of a beat of values are, number `beat` of eight rows: blocks of 8x8 one after the other along the
// columns, in each four blocks of 4x4.
constexpr unsigned upper(unsigned beat) { return beat / 4 % 2; }  // of the two groups of four rows
constexpr unsigned row_in_four(unsigned beat, unsigned element) { return beat % 2 * 2 + element / 4; }
constexpr unsigned two_rows(unsigned beat) { return upper(beat) * 2 + beat % 2; }
constexpr unsigned four_columns(unsigned beat) { return beat / 8 * 2 + beat / 2 % 2; }
constexpr unsigned group_beats = 64;
// and those of their words of X: the i-th of the eight rows from an even group on.
constexpr unsigned x_word(unsigned group, unsigned i) { return (group + i / 2 % 2) * x_words + i / 4 * 2 + i % 2; }

// Asks a memory for `count` cells, `under_way` of them before it takes the first. at(i): the address of one; take(i,
// cell). Counts have 16 bits: T has 8192 cells, and keys and values pass in at most 24,576.
template <typename Word, typename At, typename Take>
void read_cell(uint16_t i, hls::stream<CellRead> &reads, hls::stream<Word> &words, uint16_t count, At &at, Take &take) {
#pragma HLS INLINE
    if (i < count) reads << CellRead{false, static_cast<uint16_t>(at(i))};
    if (i >= under_way) take(i - under_way, words.read());
}
template <typename Word, typename At, typename Take>
void read_cells(hls::stream<CellRead> &reads, hls::stream<Word> &words, uint16_t count, At at, Take take) {
#pragma HLS INLINE
each_cell:
    for (uint16_t i = 0; i < static_cast<uint16_t>(count + under_way); ++i) {
#pragma HLS PIPELINE II=ii::cells style=flp
        read_cell(i, reads, words, count, at, take);
    }
}
// One in two cycles, which take half of it each. take(which half, cell).
template <typename Word, typename At, typename Take>
void read_halves(hls::stream<CellRead> &reads, hls::stream<Word> &words, uint16_t count, At at, Take take) {
#pragma HLS INLINE
    Word cell = {};
#pragma HLS ARRAY_PARTITION variable=cell.exponent complete
each_half:
    for (uint16_t i = 0; i < static_cast<uint16_t>(2 * (count + under_way)); ++i) {
#pragma HLS PIPELINE II=ii::cells style=flp
        const bool second = i % 2;
        if (!second && i / 2 < count) reads << CellRead{false, static_cast<uint16_t>(at(i / 2))};
        if (i / 2 < under_way) continue;
        if (!second) cell = words.read();
        take(second, cell);
    }
}

// Writes once what comes before it has happened: HLS could put both into one state, which waits for all of them.
template <typename T>
void put_behind(hls::stream<T> &to, const T &value) {
#pragma HLS INLINE off
    to << value;
}

// Reads once what comes before it has happened.
template <typename T>
T read_behind(hls::stream<T> &from) {
#pragma HLS INLINE off
    return from.read();
}

// 16 bytes, as the tiles get them: half of a word.
template <typename Elements>
Beat128 half_of(const Elements &bytes, unsigned half) {
#pragma HLS INLINE
    Beat128 beat;
    for (unsigned i = 0; i < 4; ++i) {
#pragma HLS UNROLL
        beat[i] = 0;
        for (unsigned j = 0; j < 4; ++j) {
#pragma HLS UNROLL
            beat[i] |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[16 * half + 4 * i + j])) << 8 * j;
        }
    }
    return beat;
}

// dma_hls.cpp
void announce(uint64_t *fingerprint);

// off_chip.cpp
void decode_bank(hls::stream<Mop<OffChip::words>> &mops, hls::stream<Transfer> &uops);
void bank(hls::stream<Transfer> &uops, hls::stream<Transfer> to[ports], hls::stream<Token> done[ports]);
void ddr_port(hls::stream<Transfer> &uops, MemoryPort port, unsigned number, hls::stream<Token> &done,
              hls::stream<Bytes> &weights, hls::stream<Shorts> loads[engines][2],
              hls::stream<Shorts> stores[engines][2]);
void lpddr_port(hls::stream<Transfer> &uops, MemoryPort port, unsigned number, hls::stream<Token> &done,
                hls::stream<Bytes> &weights);
void lpddr_port0(hls::stream<Transfer> &uops, MemoryPort port, hls::stream<Token> &done, hls::stream<Bytes> &weights,
                 hls::stream<Shorts> constants[engines]);

// columns.cpp: from W to the tiles
template <unsigned Words, unsigned Units>
void decode(hls::stream<Mop<Words>> &mops, hls::stream<Uop<Words>> (&uops)[Units]);
void fill_lpddr(hls::stream<Uop<W::words>> &uops, hls::stream<Bytes> from[ports], hls::stream<Bytes> to[pairs][ports]);
void fill_ddr(hls::stream<Uop<W::words>> &uops, hls::stream<Bytes> from[ports], hls::stream<Bytes> to[pairs][ports]);
void weights(hls::stream<Uop<W::words>> &uops, unsigned column, hls::stream<Bytes> lpddr[ports],
             hls::stream<Bytes> ddr[ports], hls::stream<Bytes> to[engines]);
void tiles(hls::stream<Uop<Engine::words>> &uops, unsigned column, hls::stream<Bytes> &weights,
           hls::stream<HalfBytes> &heads, hls::stream<Beat128> to[2]);
void rotate(hls::stream<Uop<Heads::words>> &uops, hls::stream<HalfBytes> from[lanes],
            hls::stream<HalfBytes> to[pairs]);
void largest(hls::stream<CellExponent> from[lanes], hls::stream<CellExponent> to[lanes]);
void largest_of_engines(hls::stream<LaneExponent> from[lanes], unsigned engine, hls::stream<CellExponent> tell[2],
                        hls::stream<CellExponent> &of_next, hls::stream<CellExponent> &of_second,
                        hls::stream<CellExponent> to[lanes]);
void constants(hls::stream<Uop<Rows::words>> &uops, hls::stream<Shorts> &from, hls::stream<Shorts> post[lanes],
               hls::stream<Shorts> residual[lanes], hls::stream<Shorts> rows[lanes]);

// lane.cpp: memories
void x_memory(hls::stream<CellWrite<XCell>> &writes, hls::stream<Token> &done, hls::stream<CellRead> reads[2],
              hls::stream<XCell> words[2]);
void x8_memory(hls::stream<CellWrite<X8Cell>> &writes, hls::stream<Token> &done, hls::stream<CellRead> reads[1],
               hls::stream<X8Cell> words[1]);
void t_memory(hls::stream<CellWrite<TCell>> &writes, hls::stream<Token> &done, hls::stream<CellRead> reads[4],
              hls::stream<TCell> words[3], hls::stream<TRow> &rows);

// rows.cpp. It tells the two others what to do when that is due.
void rows(hls::stream<Uop<Rows::words>> &uops, unsigned lane, hls::stream<Shorts> &loads, hls::stream<Shorts> &stores,
          hls::stream<Shorts> &constants, hls::stream<Token> free[2], hls::stream<Token> filled[2],
          hls::stream<CellWrite<XCell>> &x, hls::stream<Token> &x_done, hls::stream<CellRead> &x_reads,
          hls::stream<XCell> &x_cells, hls::stream<CellWrite<X8Cell>> &x8, hls::stream<Token> &x8_done,
          hls::stream<CellWrite<TCell>> &t, hls::stream<Token> &t_done, hls::stream<CellRead> &t_reads,
          hls::stream<TRow> &t_rows, hls::stream<PostWork> &to_post,
          hls::stream<ResidualWork> &to_residual, hls::stream<RowSums> &sums_of, hls::stream<Statistics> &norms_of,
          hls::stream<RowBound> &bounds_of, hls::stream<RowScale> &scales_of, hls::stream<Place> &places,
          hls::stream<Packed> &results, hls::stream<Packed> &stored_values, hls::stream<Packed> &angles);
void norms(hls::stream<Uop<Rows::words>> &uops, hls::stream<RowSums> sums[lanes], hls::stream<HeadSums> of_heads[lanes],
           hls::stream<Statistics> made[lanes], hls::stream<Statistics> to_residual[lanes],
           hls::stream<RowBound> bounds[lanes], hls::stream<RowScale> scales[lanes]);

// packets.cpp
void gather(hls::stream<PacketsDue> &due, hls::stream<Beat128> &results, hls::stream<PacketNumber> &packets,
            hls::stream<WeightSums> &weights, hls::stream<Results> &to);
void hold(hls::stream<PacketsDue> &due, hls::stream<PacketNumber> &packets, hls::stream<WeightSums> &weights,
          hls::stream<Results> &results, hls::stream<HeldPacket> &wanted, hls::stream<PacketNumber> &packets_to_post,
          hls::stream<WeightSums> &weights_to_post, hls::stream<Results> &results_to_post);
// post.cpp
void post(hls::stream<PostWork> &uops, hls::stream<Shorts> &constants, hls::stream<RowFactor> &factors,
          hls::stream<CellExponent> &of_values, hls::stream<PacketsDue> due[3], hls::stream<PacketNumber> packets[2],
          hls::stream<WeightSums> weights_of[2], hls::stream<Results> results[2], hls::stream<HeldPacket> &wanted,
          hls::stream<Place> &asks, hls::stream<Packed> &residuals, hls::stream<HeadRow> &normalised,
          hls::stream<Packed> &angles, hls::stream<Place> &places, hls::stream<RowExponents> &exponents,
          hls::stream<Values> &values, hls::stream<Token> &taken);
// residual.cpp
void residual(hls::stream<ResidualWork> &uops, hls::stream<Shorts> &constants, hls::stream<Statistics> &statistics,
              hls::stream<Place> &asks, hls::stream<CellRead> &reads, hls::stream<XCell> &cells,
              hls::stream<CellRead> &t_reads, hls::stream<TCell> &t_cells, hls::stream<HeadWord> &kept,
              hls::stream<RowExponents> &exponents, hls::stream<Values> &values,
              hls::stream<HeadRow> &normalised);
void pack_results(hls::stream<RowExponents> &exponents, hls::stream<Values> &values, hls::stream<Packed> &to,
                  hls::stream<HeadBeat> &heads);
void pack_residuals(hls::stream<RowExponents> &exponents, hls::stream<Values> &values, hls::stream<Packed> &to_post,
                    hls::stream<Packed> &to_rows);

// head_sums.cpp
void head_sums(hls::stream<HeadBeat> &beats, hls::stream<HeadWord> &kept, hls::stream<HeadSums> &to);

// send.cpp
void send(hls::stream<Uop<Send::words>> &uops, unsigned lane, hls::stream<Token> &filled, hls::stream<Token> &free,
          hls::stream<CellRead> &x8_reads, hls::stream<X8Cell> &x8_cells, hls::stream<CellRead> &t_reads,
          hls::stream<TCell> &t_cells, hls::stream<LaneExponent> &own, hls::stream<CellExponent> &of_all,
          hls::stream<RowFactor> &factors, hls::stream<Token> &taken, hls::stream<Token> &safe,
          hls::stream<Beat128> to[2]);
void heads(hls::stream<Uop<Heads::words>> &uops, unsigned lane, hls::stream<Token> &filled, hls::stream<Token> &free,
           hls::stream<CellRead> &reads, hls::stream<TCell> &cells, hls::stream<CellExponent> &own,
           hls::stream<CellExponent> &of_all, hls::stream<CellExponent> &of_values, hls::stream<Token> &safe,
           hls::stream<HalfBytes> &to);

}  // namespace rsn::xnn8::pl

#endif  // RSN_XNN8_UNITS_H
