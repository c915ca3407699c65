// Rotary positions of a MemC, in place, behind the norm: out[c] = x[c] * own + x[c ^ 1] * partner, over dim1 rows and the
// stored columns. The two columns of a pair are neighbours (the compiler permutes weights so), and the sign of the sine
// is in the table.
//
// The table is a third buffer, filled by opcode 11. It has eight columns of `own` beside eight of `partner`, so that one
// access, a word of two rows, has both for what two rounds take: a row of a patch in each of rounds::rotate rounds.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_ROTATE_H
#define RSN_PL_ROTATE_H

#include "mem_c.h"

namespace rsn::xnn {

inline void rotate(MemCBuffer &buffer, const MemCBuffer &table, Counter rows, Counter cols, unsigned width) {
    static_assert(rows_of(rounds::rotate) == 1, "a row in a round");
    Beat in, out, factors;
rotated:
    for (Walk<rounds::rotate> at(rows); at.more(cols); at.next()) {
#pragma HLS PIPELINE II=ii::rotate style=flp
#pragma HLS DEPENDENCE variable=buffer type=inter dependent=false
        if (at.begins()) in = get_beat<by_rows, mem_c_cols>(buffer, at.row, at.col);
        if (at.round % 2 == 0) factors = get_word<mem_c_cols>(table, at.row + at.round, 2 * (at.col & (width - 1)));
        float part[patch_cols];
        for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
            const float own = in[by_rows(0, c)] * factors[c];
            part[by_rows(0, c)] = own + in[by_rows(0, c ^ 1)] * factors[patch_cols + c];
        }
        shift<patch_cols>(in);
        shift<line_floats>(factors);
        shift_in(out, part);
        if (at.ends()) put_beat<by_rows, mem_c_cols>(buffer, at.row, at.col, out);
    }
}

}  // namespace rsn::xnn

#endif  // RSN_PL_ROTATE_H
