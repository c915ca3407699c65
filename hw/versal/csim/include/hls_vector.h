// Stands in for AMD's header of this name where it is not installed: N elements that travel as one word.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_HLS_VECTOR_H
#define RSN_CSIM_HLS_VECTOR_H

#include <cstddef>

namespace hls {

template <typename T, std::size_t N>
class vector {
  public:
    vector() = default;
    vector(T value) {
        for (T &element : elements_) element = value;
    }

    T &operator[](std::size_t i) { return elements_[i]; }
    const T &operator[](std::size_t i) const { return elements_[i]; }

  private:
    T elements_[N];
};

}  // namespace hls

#endif  // RSN_CSIM_HLS_VECTOR_H
