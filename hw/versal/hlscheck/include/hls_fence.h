// Stands in for AMD's header of this name where sources are checked.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_HLSCHECK_HLS_FENCE_H
#define RSN_HLSCHECK_HLS_FENCE_H

#include "markers.h"

namespace hls {

// What is accessed before comes before what is accessed behind it.
template <typename... Things>
void fence(Things &...) {
    rsn_hls_fence();
}

}  // namespace hls

#endif  // RSN_HLSCHECK_HLS_FENCE_H
