// The buffer of a MemC, and how its post-ops walk over it: patch by patch of 4x8 elements, down the rows of eight
// columns, then the next eight. So a row comes back only after all others, 32 patches later at least, and its running
// sum is ready.
//
// Some loops take all 32 elements of a patch in one round. The others read it into a register in the first of several
// rounds, work on the lowest elements of the register in each, and move the others down; what they make of them moves
// into another register, which is written in the last round. A round is a cycle. With one round of several cycles (an
// initiation interval above 1) HLS would need as few operators, but a multiplexer before each input of each.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_MEM_C_H
#define RSN_PL_MEM_C_H

#include "counter.h"
#include "math.h"
#include "rounds.h"
#include "tiles.h"

namespace rsn::xnn {

constexpr unsigned mem_c_cols = buffers::MemC_cols;
using MemCBuffer = Cell<plain>[plain][depth_of(buffers::MemC_rows, mem_c_cols)];

constexpr unsigned patch_rows = 4;
constexpr unsigned patch_cols = 8;

// A number for each row, four rows at a time; for as many as the nine bits of dim1 can say. Each of the four is a
// memory with one port to read and one to write, small enough for LUTs.
constexpr unsigned row_patches = 512 / patch_rows;
using Rows = float[patch_rows][row_patches];

// A walk in so many rounds to a patch: where it is. It is over when `col` has reached the columns, of which a buffer has
// fewer than a Counter can say. Whether a row is the last one is known without an addition, so that a round is one
// comparison and one addition.
template <unsigned Rounds = 1>
struct Walk {
    Counter last, row = 0, col, round = 0;

    // rows: of the matrix; those behind its last whole patch are left out. With fewer than patch_rows no round is taken.
    // first: the column where it begins.
    explicit Walk(unsigned rows, unsigned first = 0)
        : last(rows < patch_rows ? 0 : rows / patch_rows * patch_rows - patch_rows),
          col(rows < patch_rows ? mem_c_cols : first) {}

    bool more(Counter cols) const {
#pragma HLS INLINE
        return col < cols;
    }
    bool begins() const {
#pragma HLS INLINE
        return round == 0;
    }
    bool ends() const {
#pragma HLS INLINE
        return round == Rounds - 1;
    }
    void next() {
#pragma HLS INLINE
        if (!ends()) {
            ++round;
            return;
        }
        round = 0;
        next_patch();
    }
    void next_patch() {
#pragma HLS INLINE
        if (row == last) {
            row = 0;
            col += patch_cols;
        } else {
            row += patch_rows;
        }
    }
};
static_assert(mem_c_cols + patch_cols < 1u << counter_bits, "a Counter goes on to the columns");

// Columns from a head to the next. Where a store asks for heads and says no width, it is 256.
inline unsigned head_width(const MemCStore &how) {
#pragma HLS INLINE
    return how.head == 1 ? 64 : how.head == 2 ? 128 : 256;
}

// A number to a neighbour, and one from it. Functions of their own: HLS keeps no order between accesses to different
// streams (UG1399, HLS Fence Library). In one state of one function the two would wait for each other, and since the
// neighbour does the same, for ever.
inline void send_number(float number, hls::stream<float> &to) {
#pragma HLS INLINE off
    to << number;
}
inline float receive_number(hls::stream<float> &from) {
#pragma HLS INLINE off
    return from.read();
}

// Rows of a patch that a loop takes in each of so many rounds.
constexpr unsigned rows_of(unsigned rounds) { return patch_rows / rounds; }

// The numbers of the rows of one round; i: number of the patch, from above. Each memory is named by a constant, so that
// a round has one access to it.
template <unsigned N>
void get_rows(const Rows &rows, unsigned i, unsigned round, float (&numbers)[N]) {
#pragma HLS INLINE
get_rows_banks:
    for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
        if (r / N == round) numbers[r % N] = rows[r][i];
    }
}

template <unsigned N>
void put_rows(Rows &rows, unsigned i, unsigned round, const float (&numbers)[N]) {
#pragma HLS INLINE
put_rows_banks:
    for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
        if (r / N == round) rows[r][i] = numbers[r % N];
    }
}

}  // namespace rsn::xnn

#endif  // RSN_PL_MEM_C_H
