// The few functions that the units take from a mathematics library.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_MATH_H
#define RSN_PL_MATH_H

#include "types.h"

#ifdef RSN_CSIM
#include <cmath>
#else
#include <hls_math.h>
#endif

namespace rsn::xnn {

#ifdef RSN_CSIM
inline float exp_of(float x) { return std::exp(x); }
inline float sqrt_of(float x) { return std::sqrt(x); }
#else
inline float exp_of(float x) { return hls::exp(x); }
inline float sqrt_of(float x) { return hls::sqrt(x); }
#endif

inline bool finite(float x) { return (from_float(x) & 0x7F800000u) != 0x7F800000u; }

// A sum of eight, pairwise. In fabric: DSPs are what the post-ops are short of.
inline float sum(const float (&x)[8]) {
#pragma HLS INLINE
    const float a = x[0] + x[1], b = x[2] + x[3], c = x[4] + x[5], d = x[6] + x[7];
    const float ab = a + b, cd = c + d, all = ab + cd;
#pragma HLS BIND_OP variable=a op=fadd impl=fabric
#pragma HLS BIND_OP variable=b op=fadd impl=fabric
#pragma HLS BIND_OP variable=c op=fadd impl=fabric
#pragma HLS BIND_OP variable=d op=fadd impl=fabric
#pragma HLS BIND_OP variable=ab op=fadd impl=fabric
#pragma HLS BIND_OP variable=cd op=fadd impl=fabric
#pragma HLS BIND_OP variable=all op=fadd impl=fabric
    return all;
}

}  // namespace rsn::xnn

#endif  // RSN_PL_MATH_H
