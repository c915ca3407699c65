// What units share and send: memories of tiles, statistics of rows, probabilities before their last factor.
//
// A memory has a port that writes and one or two that read, each a process with a program of its own. Streams of tokens
// keep them in order (isa/overlays/xnn2/ports.py), so that HLS must not: dma_hls.cpp says `unsync` of each memory, and the
// ports fence its accesses from those of the tokens that tell of them. HLS
// gives an array to two processes at most, of which one writes. X has three ports, so processes of its own hold its rows
// and their statistics, and the ports ask them.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_XNN2_MEMORIES_H
#define RSN_XNN2_MEMORIES_H

#include <hls_fence.h>

#include "../pl/counter.h"
#include "../pl/math.h"
#include "../pl/rounds.h"
#include "../pl/tiles.h"

namespace rsn::xnn {

constexpr unsigned patch_rows = 4;  // of a beat
constexpr unsigned patch_cols = 8;
constexpr unsigned half_tile = tile / 2;
constexpr unsigned row_groups = tile / patch_rows;

// A tile has been written, or an operation of a read port has ended.
using Token = ap_uint<1>;

// Tiles, each as 128 rows of a matrix of 128 columns.
template <unsigned Slots>
using Tiles = Cell<plain>[plain][depth_of(Slots * tile, tile)];
// Blocks, each as 128 rows of a matrix of 64 columns.
template <unsigned Banks, unsigned Slots>
using Blocks = Cell<Banks>[Banks][depth_of(Slots * tile, half_tile)];

using EvenScratch = Tiles<buffers::TIn0_slots>;
using OddScratch = Tiles<buffers::TIn1_slots>;
// Of each of the two memories of K, and of V.
constexpr unsigned head_slots = buffers::KvIn_slots / 2;
using Keys = Blocks<turning, head_slots>;
using Values = Blocks<plain, head_slots>;

// A number of each row of a tile, four rows at a time.
using Rows = float[patch_rows][row_groups];

// A number of each column of a tile: those of the eight columns of a beat lie side by side.
using ColumnPart = hls::vector<float, patch_cols>;
using Columns = ColumnPart[tile / patch_cols];

// X of a lane: two banks, each a RAM with a port that writes and one that reads.
constexpr unsigned row_banks = 2;
constexpr unsigned bank_tiles = buffers::XIn_slots / row_banks;
using RowBank = Cell<plain>[plain][depth_of(bank_tiles * tile, tile)];

// Beats that a stream without a FIFO holds: a shift register takes fewer LUTs than two registers and a choice.
constexpr int stream_beats = 4;

// How many answers a port has asked for before it takes the first one: more than the latency of X's memories. The FIFOs of
// answers hold them and one more, so that a memory never waits. Natively there are more, and FIFOs of what is asked, so
// that threads take turns less often.
#if defined(RSN_CSIM) && !defined(RSN_SHORT_STREAMS)
constexpr unsigned asked_ahead = 255, asked_depth = asked_ahead + 1;
#else
constexpr unsigned asked_ahead = 15, asked_depth = stream_beats;
#endif
constexpr unsigned answers_depth = asked_ahead + 1;

// Where the two cells of a beat or word are in a bank, and whether the first one is in the second RAM.
struct RowPlace {
    bool swapped;
    std::uint8_t bank;
    std::uint16_t address[plain];
};
struct RowCells {
    Cell<plain> of[plain];
};
struct RowRead {
    bool last;
    RowPlace at;
};
// add: to what is there. answered: what is now there is sent back. ends: a token, once it is there.
struct RowWrite {
    bool last, add, answered, ends;
    RowPlace at;
    RowCells cells;
};

// Of the columns of a row: how many, their mean, and the sum of squared deviations.
struct RowStatistic {
    float count, mean, squares;
};
struct StatisticRead {
    bool last;
    std::uint8_t bank, row;
};
// Statistics of further columns of a row. begins: there were none before. ahead: they come before those that are there.
struct StatisticPart {
    bool last, begins, ahead;
    std::uint8_t bank, row;
    RowStatistic of;
};

// A word that is to be stored, and by what its two rows are normalised, where they are: 1 / columns, and of each row its
// mean and sum of squared deviations.
constexpr unsigned word_rows = 2;
struct Stored {
    Beat word;
    bool normalise, rms;
    float eps, inverse, count, mean[word_rows], squares[word_rows];
};

// What a row becomes as it leaves: times, plus. eps and rms: as XOut says.
struct Factors {
    float times, plus;

    Factors(float mean, float own, float count, float inverse, float eps, bool rms) {
#pragma HLS INLINE
        const float squares = rms ? fmadd(count * mean, mean, own) : own;
        times = 1.0f / sqrt_of(fmadd(squares, inverse, eps));
        plus = rms ? 0.0f : -mean * times;
    }
};

// A beat of probabilities, and of each of its rows the maximum by which they were made.
struct Weighted {
    Beat beat;
    float top[patch_rows];
};
// The maxima of the groups of 32 columns of each tile in T; and of each head, by its first slot, the last maxima and the
// sums, which its probabilities are still to be multiplied by.
constexpr unsigned group_cols = beat_floats;
constexpr unsigned groups = tile / group_cols;
struct Weights {
    float tops[patch_rows][buffers::TIn1_slots * groups * row_groups];
    float top[patch_rows][buffers::TIn1_slots * row_groups];
    float total[patch_rows][buffers::TIn1_slots * row_groups];
};
// The ends of a head: the last maxima of four rows, and the sums.
struct HeadEnds {
    float top[patch_rows], total[patch_rows];
};

// Takes so many tokens.
inline void wait_for(unsigned tokens, hls::stream<Token> &from) {
#pragma HLS INLINE
wait_tokens:
    for (Counter i = 0; i < tokens; ++i) {
#pragma HLS PIPELINE II=1 style=flp
        from.read();
    }
}

// A word brings four parts of a vector. A memory takes one in a cycle.
inline void take_columns(bool some, hls::stream<Beat> &lpddr, Columns &columns) {
#pragma HLS INLINE
    constexpr unsigned parts = beat_floats / patch_cols;
    Beat word;
column_parts:
    for (unsigned n = 0; some && n < tile / patch_cols; ++n) {
#pragma HLS PIPELINE II=ii::load style=flp
        if (n % parts == 0) word = lpddr.read();
        for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
            columns[n][c] = word[n % parts * patch_cols + c];
        }
    }
}

// A walk over beats, in so many rounds to a beat.
struct Rounds {
    const unsigned rounds;
    const Counter beats;
    Counter beat = 0, round = 0;

    explicit Rounds(unsigned rounds_of_beat, unsigned count = beats_per_tile) : rounds(rounds_of_beat), beats(count) {}

    bool more() const {
#pragma HLS INLINE
        return beat < beats;
    }
    bool begins() const {
#pragma HLS INLINE
        return round == 0;
    }
    bool ends() const {
#pragma HLS INLINE
        return round + 1u == rounds;
    }
    void next() {
#pragma HLS INLINE
        if (ends()) {
            round = 0;
            ++beat;
        } else {
            ++round;
        }
    }
};

// The column of the eight of a beat where the element at this place is: by_rows, backwards.
constexpr unsigned col_of(unsigned place) { return place % patch_cols / 2 + place % 2 * 4; }
// An order for loops that take some neighbouring columns in a round.
struct in_rows {
    constexpr in_rows(unsigned r, unsigned c) : place(patch_cols * r + c) {}
    constexpr operator unsigned() const { return place; }
    unsigned place;
};

// What nobody has defined: natively NaN, so that whoever reads it shows.
inline Beat undefined_beat() {
#ifdef RSN_CSIM
    return Beat(std::numeric_limits<float>::quiet_NaN());
#else
    return Beat(0.0f);
#endif
}

}  // namespace rsn::xnn

#endif  // RSN_XNN2_MEMORIES_H
