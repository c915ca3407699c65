// Loops that take several rounds for a patch of 4x8 elements: they read it into a register in the first round, work on the
// lowest elements of the register in each, and move the others down.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_ROUNDS_H
#define RSN_PL_ROUNDS_H

#include "types.h"

namespace rsn::xnn {

// Elements of a patch that a loop takes in each of so many rounds.
constexpr unsigned elements_of(unsigned rounds) { return beat_floats / rounds; }

// Moves a patch down by so many elements, and puts others in behind.
template <unsigned N>
void shift_in(Beat &patch, const float (&behind)[N]) {
#pragma HLS INLINE
shift_patch:
    for (unsigned i = 0; i < beat_floats; ++i) {
#pragma HLS UNROLL
        patch[i] = i + N < beat_floats ? patch[i + N] : behind[i + N - beat_floats];
    }
}

// Moves a patch down where nothing needs to come in behind.
template <unsigned N>
void shift(Beat &patch) {
#pragma HLS INLINE
shift_patch:
    for (unsigned i = 0; i + N < beat_floats; ++i) {
#pragma HLS UNROLL
        patch[i] = patch[i + N];
    }
}

}  // namespace rsn::xnn

#endif  // RSN_PL_ROUNDS_H
