// Stands in for AMD's header of this name where sources are checked.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_HLSCHECK_HLS_VECTOR_H
#define RSN_HLSCHECK_HLS_VECTOR_H

#include <cstddef>

#include "markers.h"

namespace hls {

template <typename T, std::size_t N>
class vector {
  public:
    vector() = default;
    vector(T value) {
        for (std::size_t i = 0; i < N; ++i) {
            rsn_hls_unroll(-1, 0, 0);
            elements_[i] = value;
        }
    }

    T &operator[](std::size_t i) { return elements_[i]; }
    const T &operator[](std::size_t i) const { return elements_[i]; }

  private:
    T elements_[N];
};

}  // namespace hls

#endif  // RSN_HLSCHECK_HLS_VECTOR_H
