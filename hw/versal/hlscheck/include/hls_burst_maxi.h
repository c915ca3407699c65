// Stands in for AMD's header of this name where sources are checked: each access is a call that the checker knows.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_HLSCHECK_HLS_BURST_MAXI_H
#define RSN_HLSCHECK_HLS_BURST_MAXI_H

#include <cstddef>

#include "markers.h"

namespace hls {

template <typename T>
class burst_maxi {
  public:
    void read_request(std::size_t offset, std::size_t length) { rsn_hls_request(memory_, 0, offset, length); }
    T read() {
        rsn_hls_get(memory_);
        return *memory_;
    }
    void write_request(std::size_t offset, std::size_t length) { rsn_hls_request(memory_, 1, offset, length); }
    void write(const T &value) {
        *memory_ = value;
        rsn_hls_put(memory_);
    }
    void write_response() { rsn_hls_response(memory_); }

  private:
    T *memory_;
};

}  // namespace hls

#endif  // RSN_HLSCHECK_HLS_BURST_MAXI_H
