// The steps of isa/overlays/xnn8/numbers.py that the programmable logic computes, under the same names. That file has
// their definitions, and the widths of all values.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_XNN8_NUMBERS_H
#define RSN_XNN8_NUMBERS_H

#include <cstdint>
#include <type_traits>

namespace rsn::xnn8 {

using std::int16_t, std::int32_t, std::int64_t, std::int8_t, std::uint16_t, std::uint32_t, std::uint64_t;

constexpr int lowest = -128, highest = 112;  // exponents of what is stored
constexpr int saturating = 30;               // a shift to the left by which everything saturates
constexpr int factor_bits = 15, sum_bits = 29, guard = 8;

inline int larger(int a, int b) { return a > b ? a : b; }
inline int smaller(int a, int b) { return a < b ? a : b; }
inline int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

// x / 2^shift to the nearest integer, half to even. What is shifted out is looked at apart, so that nothing overflows.
template <typename T>
T rounded(T x, int shift) {
#pragma HLS INLINE
    constexpr int most = 8 * sizeof(T) - 2;
    const int left = smaller(larger(-shift, 0), most), right = smaller(larger(shift, 0), most);
    const T up = static_cast<T>(static_cast<std::make_unsigned_t<T>>(x) << left);
    const T made = up >> right;
    const T rest = up & ((T{1} << right) - 1), half = (T{1} << right) >> 1;
    return made + static_cast<T>(right && (rest > half || (rest == half && (made & 1))));
}

// x, limited to the magnitudes of some bits with a sign.
inline int32_t saturated(int64_t x, int bits) {
#pragma HLS INLINE
    const int64_t most = (int64_t{1} << (bits - 1)) - 1;
    return static_cast<int32_t>(x > most ? most : x < -most ? -most : x);
}

// The number of bits of x, which is not negative: a choice of halves in each step.
inline int length(uint64_t x) {
#pragma HLS INLINE
    int bits = 0;
    for (int step = 32; step; step /= 2) {
#pragma HLS UNROLL
        if (x >> step) {
            bits += step;
            x >>= step;
        }
    }
    return bits + (x != 0);
}

// x / divisor to the nearest integer, half to even. divisor: positive.
inline int64_t divided(int64_t x, int64_t divisor) {
#pragma HLS INLINE
    const uint64_t most = static_cast<uint64_t>(magnitude(x)), by = static_cast<uint64_t>(divisor);
    const uint64_t quotient = most / by, twice = 2 * (most - quotient * by);
    const int64_t made = static_cast<int64_t>(quotient + (twice > by || (twice == by && (quotient & 1))));
    return x < 0 ? -made : made;
}

// The root of x, rounded down, bit by bit. x: up to 48 bits.
inline int64_t root(uint64_t x) {
#pragma HLS INLINE
    uint64_t made = 0, rest = 0;
    for (int bit = 46; bit >= 0; bit -= 2) {
#pragma HLS UNROLL
        rest = rest << 2 | (x >> bit & 3);
        const uint64_t trial = made << 2 | 1;
        const bool fits = rest >= trial;
        if (fits) rest -= trial;
        made = made << 1 | fits;
    }
    return static_cast<int64_t>(made);
}

// A value of 15 bits, and its exponent. Both are 0 where nothing is meant.
struct RowFactor {
    uint16_t mantissa;
    int16_t exponent;
};

// x * 2^exponent as a factor. x: not negative. up: rounded up.
inline RowFactor normal(int64_t x, int exponent, bool up = false) {
#pragma HLS INLINE
    const int64_t least = x ? x : 1;
    const int shift = length(static_cast<uint64_t>(least)) - factor_bits;
    int64_t made = rounded(least, shift);
    if (up && shift > 0) made += (made << shift) < least;
    const int over = static_cast<int>(made >> factor_bits);
    return {static_cast<uint16_t>(made >> over), static_cast<int16_t>(exponent + shift + over)};
}

inline RowFactor times(const RowFactor &a, const RowFactor &b) {
#pragma HLS INLINE
    return normal(int64_t{a.mantissa} * b.mantissa, a.exponent + b.exponent);
}

// The exponent with which a block is stored whose largest magnitude is most * 2^exponent.
inline int stored_exponent(uint32_t most, int exponent, int bits) {
#pragma HLS INLINE
    return most ? smaller(larger(exponent + length(most) - (bits - 1), lowest), highest) : lowest;
}

// v * 2^exponent as it is stored.
inline int32_t stored(int32_t v, int exponent, int made, int bits) {
#pragma HLS INLINE
    return saturated(rounded(int64_t{v}, larger(made - exponent, -saturating)), bits);
}

// What a norm of rows needs to be told.
struct NormConstants {
    uint16_t columns;
    int32_t added, root;
    int16_t added_exponent, root_exponent;
};

// Of a row. mean: in units of 2^(top - guard).
struct Statistics {
    int32_t mean;
    int16_t top;
    RowFactor inverse;
};

// From the sums of a row, which are aligned to the largest exponent of its blocks.
inline Statistics statistics(int64_t sums, int64_t squares, int top, const NormConstants &constants, bool rms) {
#pragma HLS INLINE
    const int64_t columns = constants.columns, mean = rms ? 0 : divided(sums, columns);
    int64_t rest = rms ? squares : squares - 2 * mean * sums + columns * mean * mean;
    if (rest < 0) rest = 0;
    const int shift = length(static_cast<uint64_t>(rest)) - 31;
    const int own = rest ? 2 * (top - guard) + shift : constants.added_exponent;
    const int common = larger(own, constants.added_exponent);
    int64_t total = rounded(rounded(rest, shift), common - own) +
        rounded(int64_t{constants.added}, common - constants.added_exponent);
    const int odd = common & 1;
    total = (total ? total : 1) << odd;
    const int64_t deviation = root(static_cast<uint64_t>(total) << 14);
    const int exponent = constants.root_exponent - 14 - ((common - odd - 14) >> 1);
    return {static_cast<int32_t>(mean), static_cast<int16_t>(top),
            normal(divided(int64_t{constants.root} << 14, deviation), exponent)};
}

// (x - mean) * gain, 26 bits and a sign. lower: the largest exponent of the row minus that of the block.
inline int32_t centred(int16_t x, int lower, int32_t mean, int16_t gain) {
#pragma HLS INLINE
    const int32_t of_row = rounded(int32_t{x} << guard, lower) - mean;
    return static_cast<int32_t>(rounded(int64_t{of_row} * gain, 13));
}

// max(x, 0) - entry: an entry of the table of a function, by the number that |v| * 2^exponent has in it.
inline int entry_of(int32_t v, int exponent, int steps, int last) {
#pragma HLS INLINE
    const int64_t index = rounded(magnitude(v), larger(-steps - exponent, -saturating));
    return static_cast<int>(index < last ? index : last);
}

// By how much scores are shifted: widest is the most of the first shift.
struct ScoreShifts {
    int first, second;
};
inline ScoreShifts score_shifts(int exponent, unsigned head_dim) {
#pragma HLS INLINE
    const int widest = larger(0, length(2 * 127 * 127 * uint64_t{head_dim}) - 15);
    const int first = smaller(larger(-11 - exponent, 0), widest);
    return {first, smaller(larger(3 - exponent - first, 0), 63)};
}

}  // namespace rsn::xnn8

#endif  // RSN_XNN8_NUMBERS_H
