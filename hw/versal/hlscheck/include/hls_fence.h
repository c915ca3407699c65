// Stands in for AMD's header of this name where sources are checked.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_HLSCHECK_HLS_FENCE_H
#define RSN_HLSCHECK_HLS_FENCE_H

#include <initializer_list>

#include "markers.h"

namespace hls {

// Whatever a fence orders.
struct fenced {
    template <typename T>
    fenced(T &) {}
};

// What is accessed before comes before what is accessed behind it.
template <typename... Things>
void fence(Things &...) {
    rsn_hls_fence();
}
// Accesses of the first before, of the second behind it.
inline void fence(std::initializer_list<fenced>, std::initializer_list<fenced>) { rsn_hls_fence(); }

}  // namespace hls

#endif  // RSN_HLSCHECK_HLS_FENCE_H
