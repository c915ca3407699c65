// A beat to and from the 16 lanes of an MME.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_LANES_H
#define RSN_PL_LANES_H

#include "types.h"

namespace rsn::xnn {

inline void split(const Beat &beat, hls::stream<Lane> mme[lanes]) {
#pragma HLS INLINE
split_lanes:
    for (unsigned i = 0; i < lanes; ++i) {
#pragma HLS UNROLL
        Lane lane;
        lane[0] = beat[2 * i];
        lane[1] = beat[2 * i + 1];
        mme[i] << lane;
    }
}

inline Beat join(hls::stream<Lane> mme[lanes]) {
#pragma HLS INLINE
    Beat beat;
join_lanes:
    for (unsigned i = 0; i < lanes; ++i) {
#pragma HLS UNROLL
        const Lane lane = mme[i].read();
        beat[2 * i] = lane[0];
        beat[2 * i + 1] = lane[1];
    }
    return beat;
}

}  // namespace rsn::xnn

#endif  // RSN_PL_LANES_H
