// Bit fields of instruction words, of which isa.h makes the formats of an overlay. Plain C++17 without library types.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_FIELDS_H
#define RSN_PL_FIELDS_H

#include <cstdint>

namespace rsn::xnn {

using Word = std::uint32_t;

// Where a value sits: Width bits from bit Low of word Index. get and set see the raw bits.
template <unsigned Index, unsigned Low, unsigned Width>
struct Field {
    static_assert(Width > 0 && Low + Width <= 32, "a field lies inside its word");
    static constexpr unsigned word = Index;
    static constexpr unsigned low = Low;
    static constexpr unsigned width = Width;
    static constexpr Word max = 0xFFFFFFFFu >> (32 - Width);
    static constexpr Word mask = max << Low;

    static constexpr Word get(const Word *words) { return (words[Index] >> Low) & max; }
    static constexpr void set(Word *words, Word value) {
        words[Index] = (words[Index] & ~mask) | ((value & max) << Low);
    }
};

// The fields of one format: which bits of a word mean something, and whether no two fields share one.
template <typename... F>
struct Layout {
    static constexpr Word used(unsigned word) { return (... | (F::word == word ? F::mask : 0u)); }
    static constexpr bool disjoint(unsigned word) {
        return (... + (F::word == word ? std::uint64_t{F::mask} : 0u)) == used(word);
    }
};

// Two's complement of Width bits to a number; values of fewer than 32 bits are extended.
template <unsigned Width>
constexpr std::int32_t to_signed(Word raw) {
    constexpr Word sign = Word{1} << (Width - 1);
    return static_cast<std::int32_t>((raw ^ sign) - sign);
}

// IEEE binary32 and its bits. A union, because that is what HLS compilers turn into wires.
inline float to_float(Word raw) {
    union { Word bits; float value; } both;
    both.bits = raw;
    return both.value;
}
inline Word from_float(float value) {
    union { Word bits; float value; } both;
    both.value = value;
    return both.bits;
}

}  // namespace rsn::xnn

#endif  // RSN_PL_FIELDS_H
