// Stands in for AMD's header of this name where sources are checked: each access is a call that the checker knows.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_HLSCHECK_HLS_STREAM_H
#define RSN_HLSCHECK_HLS_STREAM_H

#include "markers.h"

namespace hls {

template <typename T, int DEPTH = 0>
class stream;

template <typename T>
class stream<T, 0> {
  public:
    stream() = default;
    explicit stream(const char *) {}

    T read() {
        rsn_hls_get(this);
        return element_;
    }
    void read(T &value) { value = read(); }
    void write(const T &value) {
        element_ = value;
        rsn_hls_put(this);
    }
    stream &operator>>(T &value) {
        value = read();
        return *this;
    }
    stream &operator<<(const T &value) {
        write(value);
        return *this;
    }
    bool empty() {
        rsn_hls_look(this);
        return state_;
    }
    bool full() {
        rsn_hls_look(this);
        return state_;
    }

  private:
    T element_;  // the one on its way
    bool state_ = false;
};

template <typename T, int DEPTH>
class stream : public stream<T, 0> {
  public:
    using stream<T, 0>::stream;
};

}  // namespace hls

#endif  // RSN_HLSCHECK_HLS_STREAM_H
