// Stands in for AMD's AIE API where it is not installed: the vectors and accumulators of float that the kernels use.
// A multiply-add rounds twice.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_AIE_HPP
#define RSN_CSIM_AIE_HPP

#include <adf.h>

// Hints to AMD's compiler, between a loop's head and its body.
#define chess_prepare_for_pipelining
#define chess_loop_range(least, most)
#define chess_unroll_loop(count)

namespace aie {

template <typename T, unsigned N>
class vector {
  public:
    T &operator[](unsigned i) { return elements_[i]; }
    const T &operator[](unsigned i) const { return elements_[i]; }

    // The i-th part of M elements.
    template <unsigned M>
    vector<T, M> extract(unsigned i) const {
        vector<T, M> out;
        for (unsigned j = 0; j < M; ++j) out[j] = elements_[i * M + j];
        return out;
    }

  private:
    T elements_[N];
};

template <typename Tag, unsigned N>
class accum {
  public:
    accum() = default;
    explicit accum(const vector<float, N> &values) : values_(values) {}

    template <typename T>
    vector<T, N> to_vector() const {
        return values_;
    }

  private:
    vector<float, N> values_;
};

template <unsigned N>
vector<float, N> load_v(const float *from) {
    vector<float, N> out;
    for (unsigned i = 0; i < N; ++i) out[i] = from[i];
    return out;
}

template <unsigned N>
float *store_v(float *to, const vector<float, N> &values) {
    for (unsigned i = 0; i < N; ++i) to[i] = values[i];
    return to;
}

template <typename T, unsigned N>
vector<T, N> broadcast(T value) {
    vector<T, N> out;
    for (unsigned i = 0; i < N; ++i) out[i] = value;
    return out;
}

template <typename T, unsigned N>
vector<T, N> zeros() {
    return broadcast<T, N>(0);
}

template <unsigned N>
vector<float, 2 * N> concat(const vector<float, N> &a, const vector<float, N> &b) {
    vector<float, 2 * N> out;
    for (unsigned i = 0; i < N; ++i) {
        out[i] = a[i];
        out[N + i] = b[i];
    }
    return out;
}

template <unsigned N>
accum<accfloat, N> mul(const vector<float, N> &a, const vector<float, N> &b) {
    vector<float, N> out;
    for (unsigned i = 0; i < N; ++i) out[i] = a[i] * b[i];
    return accum<accfloat, N>(out);
}

template <unsigned N>
accum<accfloat, N> mac(const accum<accfloat, N> &sums, float a, const vector<float, N> &b) {
    vector<float, N> out = sums.template to_vector<float>();
    for (unsigned i = 0; i < N; ++i) out[i] += a * b[i];
    return accum<accfloat, N>(out);
}

template <unsigned N>
vector<float, N> add(const vector<float, N> &a, const vector<float, N> &b) {
    vector<float, N> out;
    for (unsigned i = 0; i < N; ++i) out[i] = a[i] + b[i];
    return out;
}

}  // namespace aie

#endif  // RSN_CSIM_AIE_HPP
