// Stands in for AMD's header of this name where it is not installed. Natively accesses have the order of the sources.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_HLS_FENCE_H
#define RSN_CSIM_HLS_FENCE_H

namespace hls {

template <typename... Things>
void fence(Things &...) {}

}  // namespace hls

#endif  // RSN_CSIM_HLS_FENCE_H
