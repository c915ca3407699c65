// Stands in for AMD's header of this name where sources are checked.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_HLSCHECK_AP_INT_H
#define RSN_HLSCHECK_AP_INT_H

#include <cstdint>
#include <type_traits>

template <int N>
class ap_uint {
    using Bits = std::conditional_t<(N > 16), std::uint32_t, std::conditional_t<(N > 8), std::uint16_t, std::uint8_t>>;
    static constexpr std::uint32_t mask = 0xFFFFFFFFu >> (32 - N);

  public:
    ap_uint() = default;
    ap_uint(std::uint32_t value) : value_(static_cast<Bits>(value & mask)) {}

    operator std::uint32_t() const { return value_; }
    ap_uint &operator+=(std::uint32_t more) { return *this = ap_uint(value_ + more); }
    ap_uint &operator++() { return *this += 1; }
    ap_uint &operator--() { return *this = ap_uint(value_ - 1u); }

  private:
    Bits value_ = 0;
};

// A sign in front of N bits is written out wherever a value is read, so that what is made of it is seen to be no wider.
template <int N>
class ap_int {
  public:
    ap_int() = default;
    ap_int(std::int64_t value) : value_(value) {}

    operator std::int64_t() const {
        return static_cast<std::int64_t>(static_cast<std::uint64_t>(value_) << (64 - N)) >> (64 - N);
    }

  private:
    std::int64_t value_ = 0;
};

#endif  // RSN_HLSCHECK_AP_INT_H
