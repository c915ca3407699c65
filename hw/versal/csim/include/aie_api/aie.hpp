// Stands in for AMD's AIE API where it is not installed: the vectors and accumulators that the kernels use. A
// multiply-add of floats rounds twice. Integers: sums of 48 bits that wrap, and moves out of them that shift, round and
// saturate as the tile's modes say (UG1529, "Accumulator", "Modes"; UG1079, "Accumulator Registers").
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_AIE_HPP
#define RSN_CSIM_AIE_HPP

#include <cstring>
#include <limits>
#include <utility>

#include <adf.h>

// Hints to AMD's compiler, between a loop's head and its body.
#define chess_prepare_for_pipelining
#define chess_loop_range(least, most)
#define chess_unroll_loop(count)

namespace aie {

// -- modes of a tile, which is a thread here

enum class rounding_mode { floor, conv_even };
enum class saturation_mode { none, symmetric };

namespace native {

struct Modes {
    rounding_mode rounding = rounding_mode::floor;
    saturation_mode saturation = saturation_mode::none;
};
inline thread_local Modes modes;

// As a move out of an accumulator does it. shift: from 0 to 62.
template <typename T>
T moved(std::int64_t value, int shift) {
    std::int64_t made = value >> shift;
    if (modes.rounding == rounding_mode::conv_even && shift) {
        const std::int64_t rest = value - made * (std::int64_t{1} << shift), half = std::int64_t{1} << (shift - 1);
        made += rest > half || (rest == half && made % 2 != 0);
    }
    if (modes.saturation == saturation_mode::symmetric) {
        constexpr std::int64_t most = std::numeric_limits<T>::max(), least = std::is_signed_v<T> ? -most : 0;
        made = made > most ? most : made < least ? least : made;
    }
    return static_cast<T>(made);
}

// Of 64 bits, the lower 48 with their sign.
inline std::int64_t wrapped(std::int64_t value) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(value) << 16) >> 16;
}

}  // namespace native

inline void set_rounding(rounding_mode mode) { native::modes.rounding = mode; }
inline void set_saturation(saturation_mode mode) { native::modes.saturation = mode; }

// -- vectors

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

// Which lanes are chosen.
template <unsigned N>
class mask {
  public:
    static mask from_uint32(std::uint32_t bits) {
        mask out;
        out.bits_ = bits;
        return out;
    }
    bool test(unsigned i) const { return bits_ >> i & 1; }

  private:
    static_assert(N <= 32);
    std::uint32_t bits_ = 0;
};

template <unsigned N, typename T>
vector<T, N> load_v(const T *from) {
    vector<T, N> out;
    std::memcpy(&out[0], from, N * sizeof(T));
    return out;
}

template <typename T, unsigned N>
T *store_v(T *to, const vector<T, N> &values) {
    std::memcpy(to, &values[0], N * sizeof(T));
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

template <typename T, unsigned N>
vector<T, 2 * N> concat(const vector<T, N> &a, const vector<T, N> &b) {
    vector<T, 2 * N> out;
    for (unsigned i = 0; i < N; ++i) {
        out[i] = a[i];
        out[N + i] = b[i];
    }
    return out;
}

template <typename T, unsigned N>
vector<T, N> max(const vector<T, N> &a, const vector<T, N> &b) {
    vector<T, N> out;
    for (unsigned i = 0; i < N; ++i) out[i] = a[i] > b[i] ? a[i] : b[i];
    return out;
}

template <typename T, unsigned N>
vector<T, N> min(const vector<T, N> &a, const vector<T, N> &b) {
    vector<T, N> out;
    for (unsigned i = 0; i < N; ++i) out[i] = a[i] < b[i] ? a[i] : b[i];
    return out;
}

// Elements of a, or of b where the mask is set.
template <typename T, unsigned N>
vector<T, N> select(const vector<T, N> &a, const vector<T, N> &b, const mask<N> &of_b) {
    vector<T, N> out;
    for (unsigned i = 0; i < N; ++i) out[i] = of_b.test(i) ? b[i] : a[i];
    return out;
}

// Groups of `step` elements from a and b in turn, as the lower and the upper half of what they make.
template <typename T, unsigned N>
std::pair<vector<T, N>, vector<T, N>> interleave_zip(const vector<T, N> &a, const vector<T, N> &b, unsigned step) {
    std::pair<vector<T, N>, vector<T, N>> out;
    for (unsigned i = 0; i < 2 * N; ++i) {
        const unsigned group = i / step, from = group / 2 * step + i % step;
        (i < N ? out.first : out.second)[i % N] = (group % 2 ? b : a)[from];
    }
    return out;
}

// -- accumulators

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
class accum<acc48, N> {
  public:
    accum() = default;
    template <typename T>
    explicit accum(const vector<T, N> &values, int shift = 0) {
        from_vector(values, shift);
    }

    template <typename T>
    void from_vector(const vector<T, N> &values, int shift = 0) {
        for (unsigned i = 0; i < N; ++i) set(i, std::int64_t{values[i]} * (std::int64_t{1} << shift));
    }
    template <typename T>
    vector<T, N> to_vector(int shift = 0) const {
        vector<T, N> out;
        for (unsigned i = 0; i < N; ++i) out[i] = native::moved<T>(sums_[i], shift);
        return out;
    }
    template <unsigned M>
    accum<acc48, M> extract(unsigned i) const {
        accum<acc48, M> out;
        for (unsigned j = 0; j < M; ++j) out.set(j, sums_[i * M + j]);
        return out;
    }

    // Additions to AMD's interface: a lane.
    std::int64_t get(unsigned i) const { return sums_[i]; }
    void set(unsigned i, std::int64_t value) { sums_[i] = native::wrapped(value); }

  private:
    std::int64_t sums_[N];
};

template <unsigned N>
accum<acc48, 2 * N> concat(const accum<acc48, N> &a, const accum<acc48, N> &b) {
    accum<acc48, 2 * N> out;
    for (unsigned i = 0; i < N; ++i) {
        out.set(i, a.get(i));
        out.set(N + i, b.get(i));
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

template <unsigned N>
accum<acc48, N> mul(const vector<int16, N> &a, const vector<int16, N> &b) {
    accum<acc48, N> out;
    for (unsigned i = 0; i < N; ++i) out.set(i, std::int64_t{a[i]} * b[i]);
    return out;
}

// T: int16, or int32, whose products with int16 fit in 48 bits.
template <unsigned N, typename T>
accum<acc48, N> mac(const accum<acc48, N> &sums, const vector<T, N> &a, const vector<int16, N> &b) {
    accum<acc48, N> out;
    for (unsigned i = 0; i < N; ++i) out.set(i, sums.get(i) + std::int64_t{a[i]} * b[i]);
    return out;
}

// A product of blocks in row-major order, M x K by K x N, that adds to what it holds (UG1529, "Matrix Multiplication").
template <unsigned M, unsigned K, unsigned N, typename A, typename B>
class mmul {
  public:
    static constexpr unsigned size_A = M * K, size_B = K * N, size_C = M * N;

    mmul() = default;
    explicit mmul(const accum<acc48, size_C> &sums) : sums_(sums) {}
    explicit mmul(const vector<int32, size_C> &sums, int shift = 0) : sums_(sums, shift) {}

    void mac(const vector<A, size_A> &a, const vector<B, size_B> &b) {
        for (unsigned i = 0; i < M; ++i)
            for (unsigned j = 0; j < N; ++j) {
                std::int32_t sum = 0;
                for (unsigned k = 0; k < K; ++k) sum += a[i * K + k] * b[k * N + j];
                sums_.set(i * N + j, sums_.get(i * N + j) + sum);
            }
    }
    const accum<acc48, size_C> &to_accum() const { return sums_; }
    template <typename T>
    vector<T, size_C> to_vector(int shift = 0) const {
        return sums_.template to_vector<T>(shift);
    }

  private:
    accum<acc48, size_C> sums_;
};

}  // namespace aie

#endif  // RSN_CSIM_AIE_HPP
