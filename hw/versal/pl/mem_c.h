// The buffer of a MemC, and how its post-ops walk over it: a 4x8 patch a round, down the rows of eight columns, then
// the next eight. So a row comes back only after all others, 32 rounds later at least, and its running sum is ready.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_MEM_C_H
#define RSN_PL_MEM_C_H

#include "math.h"
#include "tiles.h"

namespace rsn::xnn {

constexpr unsigned mem_c_cols = buffers::MemC_cols;
using MemCBuffer = Cell<plain>[plain][depth_of(buffers::MemC_rows, mem_c_cols)];

constexpr unsigned patch_rows = 4;
constexpr unsigned patch_cols = 8;

// A number for each row, four rows at a time; for as many as the nine bits of dim1 can say.
constexpr unsigned row_patches = 512 / patch_rows;
using Rows = float[patch_rows][row_patches];

struct Walk {
    unsigned rows, row = 0, col = 0;
    void next() {
#pragma HLS INLINE
        row += patch_rows;
        if (row + patch_rows > rows) {
            row = 0;
            col += patch_cols;
        }
    }
};

constexpr unsigned patches(unsigned rows, unsigned cols) { return rows / patch_rows * (cols / patch_cols); }

}  // namespace rsn::xnn

#endif  // RSN_PL_MEM_C_H
