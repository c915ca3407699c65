// Stands in for AMD's header of this name where sources are checked.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_HLSCHECK_HLS_MATH_H
#define RSN_HLSCHECK_HLS_MATH_H

namespace hls {

inline float exp(float x) { return __builtin_expf(x); }
inline float sqrt(float x) { return __builtin_sqrtf(x); }

}  // namespace hls

#endif  // RSN_HLSCHECK_HLS_MATH_H
