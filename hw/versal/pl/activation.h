// Activations of a MemC, in place, before a store: over dim1 rows and all columns, or, where their results are multiplied
// by the columns behind, over those that are stored.
//
// A 4x8 patch in rounds::activation rounds, of 32 / rounds::activation elements each.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_ACTIVATION_H
#define RSN_PL_ACTIVATION_H

#include "functions.h"
#include "mem_c.h"

namespace rsn::xnn {

// gate: 0, or the columns to walk over; each is then multiplied by the column so many behind it, which stays what it is.
// A buffer has one port to read, and the patch of the gates is needed from the first round on. So it is read in the
// second round of the patch before, that of the first patch ahead of the loop.
inline void activate(MemCBuffer &buffer, Counter rows, std::uint8_t which, Counter gate) {
    constexpr unsigned elements = elements_of(rounds::activation);
    static_assert(rounds::activation > 1, "a round to read each of two patches");
    const Counter cols = gate ? gate : Counter(mem_c_cols);
    Walk<> ahead(rows);
    Beat in, out, factors, following = get_beat<by_rows, mem_c_cols>(buffer, 0, gate);
activations:
    for (Walk<rounds::activation> at(rows); at.more(cols); at.next()) {
#pragma HLS PIPELINE II=ii::activation style=flp
#pragma HLS DEPENDENCE variable=buffer type=inter dependent=false
        if (at.begins()) {
            factors = following;
            ahead.next_patch();
        }
        if (at.round < 2) {
            const bool begins = at.begins();
            const Counter row = begins ? at.row : ahead.row;
            const unsigned col = begins ? unsigned(at.col) : ahead.col + gate;
            const Beat patch = get_beat<by_rows, mem_c_cols>(buffer, row, col);
            if (begins) in = patch;
            else following = patch;
        }
        float part[elements];
        for (unsigned i = 0; i < elements; ++i) {
#pragma HLS UNROLL
            const float active = activated(in[i], static_cast<Activation>(which));
            part[i] = gate ? active * factors[i] : active;
        }
        shift<elements>(in);
        shift<elements>(factors);
        shift_in(out, part);
        if (at.ends()) put_beat<by_rows, mem_c_cols>(buffer, at.row, at.col, out);
    }
}

}  // namespace rsn::xnn

#endif  // RSN_PL_ACTIVATION_H
