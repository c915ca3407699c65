// What units share and send: memories of tiles, statistics of rows, probabilities before their last factor.
//
// A memory has a port that writes and one or two that read, each a process with a program of its own. Streams of tokens
// keep them in order (isa/overlays/xnn2/ports.py), so that HLS must not: dma_hls.cpp says `unsync` of each memory.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_XNN2_MEMORIES_H
#define RSN_XNN2_MEMORIES_H

#include "../pl/counter.h"
#include "../pl/math.h"
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

using RowMemory = Tiles<buffers::XIn_slots>;
using EvenScratch = Tiles<buffers::TIn0_slots>;
using OddScratch = Tiles<buffers::TIn1_slots>;
using Keys = Blocks<turning, buffers::KvIn_slots>;
using Values = Blocks<plain, buffers::KvIn_slots>;

// A number of each row of a tile, four rows at a time.
using Rows = float[patch_rows][row_groups];

// Of the rows of each bank of X: over how many columns, mean, and sum of squared deviations.
constexpr unsigned row_banks = 2;
constexpr unsigned bank_tiles = buffers::XIn_slots / row_banks;
struct Statistics {
    float count[row_banks];
    Rows mean[row_banks];
    Rows squares[row_banks];
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
// Beats of the ends of a head: the last maxima of 32 rows each, then the sums.
constexpr unsigned end_beats = tile / beat_floats;

// Takes so many tokens.
inline void wait_for(unsigned tokens, hls::stream<Token> &from) {
#pragma HLS INLINE
wait_tokens:
    for (Counter i = 0; i < tokens; ++i) {
#pragma HLS PIPELINE II=1 style=flp
        from.read();
    }
}

// The four sums of eight columns that came last, for each row of a beat: beats of 32 columns come one behind the other.
// With them a sum of 32 columns is added to a row's once in four beats, and a row comes again after 128.
struct Recent {
    float of[patch_rows][groups];

    void shift_in(unsigned row, float sum) {
#pragma HLS INLINE
        for (unsigned i = 0; i + 1 < groups; ++i) {
#pragma HLS UNROLL
            of[row][i] = of[row][i + 1];
        }
        of[row][groups - 1] = sum;
    }
    float total(unsigned row) const {
#pragma HLS INLINE
        return (of[row][0] + of[row][1]) + (of[row][2] + of[row][3]);
    }
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
