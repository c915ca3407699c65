// Stands in for AMD's header of this name where it is not installed: integers of N bits, without a sign up to 32, with
// one up to 64. AMD's wraps a value that does not fit; this one ends the run, because none of these sources is meant to.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_AP_INT_H
#define RSN_CSIM_AP_INT_H

#include <cstdint>
#include <stdexcept>
#include <string>

template <int N>
class ap_uint {
    static_assert(N > 0 && N <= 32, "this stand-in has 1 to 32 bits");

  public:
    ap_uint() = default;
    ap_uint(std::uint32_t value) : value_(fitting(value)) {}

    operator std::uint32_t() const { return value_; }
    ap_uint &operator+=(std::uint32_t more) { return *this = ap_uint(value_ + more); }
    ap_uint &operator++() { return *this += 1; }
    ap_uint &operator--() { return *this = ap_uint(value_ - 1); }

  private:
    static std::uint32_t fitting(std::uint64_t value) {
        if (value >> N) throw std::out_of_range(std::to_string(value) + " does not fit " + std::to_string(N) + " bits");
        return static_cast<std::uint32_t>(value);
    }

    std::uint32_t value_ = 0;
};

template <int N>
class ap_int {
    static_assert(N > 0 && N <= 64, "this stand-in has 1 to 64 bits");

  public:
    ap_int() = default;
    ap_int(std::int64_t value) : value_(value) {
        if (value >> (N - 1) != value >> 63)
            throw std::out_of_range(std::to_string(value) + " does not fit " + std::to_string(N) + " bits");
    }

    operator std::int64_t() const { return value_; }

  private:
    std::int64_t value_ = 0;
};

#endif  // RSN_CSIM_AP_INT_H
