// The few functions that the units take from a mathematics library.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_MATH_H
#define RSN_PL_MATH_H

#include <limits>

#include "types.h"

#ifdef RSN_CSIM
#include <cmath>
#else
#include <hls_math.h>
#endif

namespace rsn::xnn {

#ifdef RSN_CSIM
namespace library = std;
#else
namespace library = hls;
#endif

// With medium use of DSPs, exp takes one. It is what HLS chooses for Versal; full use would take several.
inline float exp_of(float x) {
#pragma HLS INLINE
    const float e = library::exp(x);
#pragma HLS BIND_OP variable=e op=fexp impl=meddsp
    return e;
}

inline float sqrt_of(float x) { return library::sqrt(x); }

// A sum without a DSP: for loops that have many, since LUTs are left where DSPs are not.
inline float add_in_fabric(float a, float b) {
#pragma HLS INLINE
    const float s = a + b;
#pragma HLS BIND_OP variable=s op=fadd impl=fabric
    return s;
}

// a * b + c in one DSP, which rounds the product and the sum (AM004: both of its outputs are rounded), as two operators do.
inline float fmadd(float a, float b, float c) {
#pragma HLS INLINE
    const float s = a * b + c;
#pragma HLS BIND_OP variable=s op=fmadd impl=primitivedsp
    return s;
}

inline bool finite(float x) { return (from_float(x) & 0x7F800000u) != 0x7F800000u; }

// A sum of eight, pairwise.
inline float sum(const float (&x)[8]) {
#pragma HLS INLINE
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

// What the exps of a row are multiplied by: 1 / sum. A sum below the least normal number counts as 0, because a DSP58
// takes it for 0 (AM004, "Subnormals"); above the reciprocal of that number, 1 / sum would be below it. Neither has a
// reciprocal, so the row becomes NaN, and so does one whose sum is infinite. masked: the row may have no valid score,
// and where its sum counts as 0 it becomes 0.
inline float reciprocal_of_sum(float sum, bool masked) {
#pragma HLS INLINE
    constexpr float least = std::numeric_limits<float>::min();
    if (sum < least) return masked ? 0.0f : to_float(0x7FC00000u);
    return sum <= 1.0f / least ? 1.0f / sum : to_float(0x7FC00000u);
}

}  // namespace rsn::xnn

#endif  // RSN_PL_MATH_H
