// The steps of isa/overlays/xnn8/numbers.py that the programmable logic computes, under the same names. That file has
// their definitions, and the widths of all values.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_XNN8_NUMBERS_H
#define RSN_XNN8_NUMBERS_H

#include <cstdint>

#include <ap_int.h>

namespace rsn::xnn8 {

using std::int16_t, std::int32_t, std::int64_t, std::int8_t, std::uint16_t, std::uint32_t, std::uint64_t;

constexpr int lowest = -128, highest = 112;  // exponents of what is stored
constexpr int factor_bits = 15, sum_bits = 29, guard = 8;
constexpr int exponent_bits = 11;  // of exponents on their way

inline int larger(int a, int b) { return a > b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int smaller(int a, int b) { return a < b ? a : b; }
// One sum, and no choice behind it.
inline int64_t magnitude(int64_t x) { return (x ^ x >> 63) + (x < 0); }

// x, of which so many bits and a sign are used: HLS makes operators behind it no wider, and the native run ends where x
// has more.
template <int Bits>
int64_t within(int64_t x) {
#pragma HLS INLINE
    return ap_int<Bits + 1>(x);
}

// A number that goes to the right, with one bit behind its last one. What has left it rounds it at last.
struct Shifted {
    int64_t twice;
    bool rest = false;  // whether a bit behind these was set

    explicit Shifted(int64_t x) : twice(2 * x) {
#pragma HLS INLINE
    }
    void by(unsigned step, bool really = true) {
#pragma HLS INLINE
        if (!really) return;
        rest = rest || (twice & ((int64_t{1} << step) - 1));
        twice >>= step;
    }
    // The same in steps of constant length, the longest first. What is made has Bits bits: so the bits in front of
    // those that the steps ahead need are left out.
    template <int Bits, unsigned Longest>
    void in_steps(unsigned length) {
#pragma HLS INLINE
        by(Longest, length & Longest);
        twice = within<Bits + static_cast<int>(Longest) < 62 ? Bits + static_cast<int>(Longest) : 62>(twice);
        if constexpr (Longest > 1) in_steps<Bits, Longest / 2>(length);
    }
    int64_t made() const {
#pragma HLS INLINE
        return twice >> 1;
    }
    bool half() const {
#pragma HLS INLINE
        return twice & 1;
    }
    bool up() const {
#pragma HLS INLINE
        return half() && (rest || (made() & 1));
    }
    int64_t rounded() const {
#pragma HLS INLINE
        return made() + up();
    }
};

// x / 2^By to the nearest integer, half to even. raised: x + half of 2^By, as the DSP that makes x can give it. Its
// lower bits are 0 where x was half way: there the last bit that is left is cleared.
template <unsigned By>
int64_t rounded_down(int64_t raised) {
#pragma HLS INLINE
    return raised >> By & ~int64_t{(raised & ((int64_t{1} << By) - 1)) == 0};
}
template <unsigned By>
constexpr int64_t half_step = int64_t{1} << (By - 1);

constexpr int power_within(int most) { return most < 2 ? 1 : 2 * power_within(most / 2); }

// How far a number of Bits bits goes to the right for a shift: from Bits + 1 on nothing is left of it.
template <int Bits>
unsigned to_right(int shift) {
#pragma HLS INLINE
    return static_cast<unsigned>(smaller(larger(shift, 0), Bits + 1));
}

// x / 2^by to the nearest integer, half to even. by: as `to_right` returns it. What is made has Made bits.
template <int Bits, int Made = Bits>
int64_t rounded(int64_t x, unsigned by) {
#pragma HLS INLINE
    Shifted of(within<Bits>(x));
    of.in_steps<Made, power_within(Bits + 1)>(by);
    return within<Made>(of.made()) + of.up();
}

// How far a number of Bits bits goes to the left, from where nothing is left of it, for a shift to the right or by at
// most Left to the left.
template <int Bits, int Left>
unsigned both_ways(int shift) {
#pragma HLS INLINE
    return static_cast<unsigned>(smaller(larger(Bits + 1 - shift, 0), Bits + 1 + Left));
}
// x * 2^by / 2^(Bits + 1) to the nearest integer, half to even. The shortest step comes first: so numbers grow late,
// and all that is rounded away is there at the end.
template <int Bits, int Left>
int64_t aligned(int64_t x, unsigned by) {
#pragma HLS INLINE
    int64_t raised = within<Bits>(x);
    for (unsigned step = 1; step <= Bits + 1 + Left; step *= 2) {
#pragma HLS UNROLL
        if (by & step) raised <<= step;
    }
    Shifted of(within<2 * Bits + 1 + Left>(raised));
    of.by(Bits + 1);
    return within<Bits + Left>(of.made()) + of.up();
}

// x, which has Bits bits, limited to the magnitudes of Made bits with a sign.
template <int Bits, int Made>
int32_t saturated(int64_t x) {
#pragma HLS INLINE
    constexpr int32_t most = (1 << (Made - 1)) - 1;
    const int64_t all = within<Bits>(x);
    return static_cast<int32_t>(all > most ? most : all < -most ? -most : all);
}

// What rounding adds to x, which is rounded down to as many bits as are kept, 8 or 16 with a sign, and limited to their
// magnitudes: nothing to the largest one, and 1 to the one that is too low.
inline bool up_in_range(int64_t x, bool up, bool eight) {
#pragma HLS INLINE
    const bool negative = x < 0;
    const int64_t bits = negative ? ~x : x;
    const bool last = (bits & 127) == 127 && (eight || (bits >> 7 & 255) == 255);
    return last ? negative : up;
}

// The number of bits of x, which is not negative and has Bits at most: a choice of halves in each step.
template <int Bits>
int length(int64_t x) {
#pragma HLS INLINE
    constexpr int longest = power_within(Bits - 1);
    int64_t rest = within<Bits>(x);
    int bits = 0;
    for (int step = longest; step; step /= 2) {
#pragma HLS UNROLL
        if (rest >> step) {
            bits += step;
            rest >>= step;
        }
    }
    return bits + (rest != 0);
}

// The next bit of a quotient. rest: what is left of the dividend's bits before; becomes that with the next one, `bit`.
// by: the divisor, with Divisor bits.
template <int Divisor>
void divide(int64_t &rest, int64_t &made, int64_t by, bool bit = false) {
#pragma HLS INLINE
    const int64_t next = within<Divisor + 1>(rest << 1 | bit), less = within<Divisor + 1>(next - by);
    rest = within<Divisor>(less < 0 ? next : less);
    made = made << 1 | !(less < 0);
}
// A quotient, of Quotient bits, to the nearest integer, half to even. rest: what is left of all bits.
template <int Quotient, int Divisor>
int64_t nearest(int64_t rest, int64_t made, int64_t by) {
#pragma HLS INLINE
    const int64_t twice = within<Divisor + 1>(2 * rest - by);
    return within<Quotient>(made) + (twice > 0 || (twice == 0 && (made & 1)));
}

// x / divisor to the nearest integer, half to even: a bit in each step. Both have some bits; divisor is positive.
template <int Quotient, int Divisor>
int64_t divided(int64_t x, int64_t divisor) {
#pragma HLS INLINE
    const int64_t most = magnitude(x), by = within<Divisor>(divisor);
    int64_t rest = within<Divisor>(most >> Quotient), made = 0;
    for (int bit = Quotient - 1; bit >= 0; --bit) {
#pragma HLS UNROLL
        divide<Divisor>(rest, made, by, most >> bit & 1);
    }
    made = nearest<Quotient, Divisor>(rest, made, by);
    return x < 0 ? -made : made;
}

// The root of x, rounded down, bit by bit. x: up to 48 bits.
inline int64_t root(int64_t x) {
#pragma HLS INLINE
    int64_t made = 0, rest = 0;
    for (int bit = 46; bit >= 0; bit -= 2) {
#pragma HLS UNROLL
        const int64_t next = within<27>(rest << 2 | (x >> bit & 3)), less = within<27>(next - (made << 2 | 1));
        rest = within<26>(less < 0 ? next : less);
        made = within<24>(made << 1 | !(less < 0));
    }
    return made;
}

// A value of 15 bits, and its exponent. Both are 0 where nothing is meant.
struct RowFactor {
    uint16_t mantissa;
    int16_t exponent;
};

// x * 2^exponent as a factor. x: not negative, of some bits. up: rounded up.
template <int Bits>
RowFactor normal(int64_t x, int exponent, bool up = false) {
#pragma HLS INLINE
    // All bits are moved to the left end, from where as many go to the right in any case.
    constexpr int longest = power_within(Bits - 1);
    int64_t left = x ? within<Bits>(x) : 1;
    int shift = Bits - factor_bits;
    for (int step = longest; step; step /= 2) {
#pragma HLS UNROLL
        if (left >> (Bits - step)) continue;
        left = within<Bits>(left << step);
        shift -= step;
    }
    Shifted made(Bits > factor_bits ? left : left << larger(factor_bits - Bits, 0));
    if (Bits > factor_bits) made.by(Bits - factor_bits);
    const bool more = up ? made.half() || made.rest : made.up();
    const int64_t rounded = made.made() + more;
    const int over = static_cast<int>(rounded >> factor_bits);
    return {static_cast<uint16_t>(over ? rounded >> 1 : rounded), static_cast<int16_t>(exponent + shift + over)};
}

inline RowFactor times(const RowFactor &a, const RowFactor &b) {
#pragma HLS INLINE
    return normal<2 * factor_bits>(int64_t{a.mantissa} * b.mantissa, a.exponent + b.exponent);
}

// The exponent with which a block is stored whose largest magnitude has as many bits as `most`, times 2^exponent. Above
// `highest` the block is beyond what can be stored.
inline int stored_exponent(uint32_t most, int exponent, int bits) {
#pragma HLS INLINE
    return most ? larger(exponent + length<32>(most) - (bits - 1), lowest) : lowest;
}

// How numbers of a row become what is stored, by their exponent and one of `stored_exponent`. Only numbers with fewer
// bits than are stored go to the left, by at most as many: so all of them go to the right from there.
struct Storing {
    bool beyond, eight;
    unsigned by;
};
inline Storing storing(int exponent, int made, bool eight) {
#pragma HLS INLINE
    const bool beyond = made > highest;
    return {beyond, eight, beyond ? 48 : to_right<47>(made - exponent + 16)};
}
inline int32_t stored(int32_t v, const Storing &as) {
#pragma HLS INLINE
    Shifted of(int64_t{v} << 16);
    of.in_steps<15, 32>(as.by);
    const int64_t made = of.made();
    const bool up = up_in_range(made, of.up(), as.eight), some = of.rest || of.half();
    const int64_t most = as.eight ? 127 : 32767;
    const int64_t saturates = !some ? 0 : v < 0 ? -most : most;  // nothing of v is left
    return static_cast<int32_t>((as.beyond ? saturates : made) + (up && !as.beyond));
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
    int8_t top;
    RowFactor inverse;
};

// From the sums of a row, which are aligned to the largest exponent of its blocks: 37 and 60 bits.
inline Statistics statistics(int64_t sums, int64_t squares, int top, const NormConstants &constants, bool rms) {
#pragma HLS INLINE
    const int64_t columns = constants.columns, mean = rms ? 0 : within<24>(divided<24, 15>(sums, columns));
    int64_t rest = rms ? squares : squares - 2 * mean * sums + columns * mean * mean;
    rest = rest < 0 ? 0 : within<61>(rest);
    const int shift = length<61>(rest) - 31;
    const int own = rest ? 2 * (top - guard) + shift : constants.added_exponent;
    const int common = larger(own, constants.added_exponent);
    const int64_t of_squares = rounded<61, 31>(rest << larger(-shift, 0), to_right<61>(shift));
    int64_t total = rounded<32>(of_squares, to_right<32>(common - own)) +
        rounded<31>(constants.added, to_right<31>(common - constants.added_exponent));
    const int odd = common & 1;
    total = within<33>((total ? total : 1) << odd);
    const int64_t deviation = root(total << 14);
    const int exponent = constants.root_exponent - 14 - ((common - odd - 14) >> 1);
    return {static_cast<int32_t>(mean), static_cast<int8_t>(top),
            normal<39>(divided<39, 24>(int64_t{constants.root} << 14, deviation), exponent)};
}

// (x - mean) * gain, 26 bits and a sign. lower: the largest exponent of the row minus that of the block, `to_right`.
inline int64_t centred(int16_t x, unsigned lower, int32_t mean, int16_t gain) {
#pragma HLS INLINE
    const int64_t of_row = within<24>(rounded<15 + guard>(int64_t{x} << guard, lower) - within<24>(mean));
    return within<26>(rounded_down<13>(within<39>(of_row * gain + half_step<13>)));
}

// A factor of a product of 42 bits. It has the last three bits of the product's shift, so that one multiplication does
// both. half: of what the product is divided by then; added by the DSP, it rounds.
struct ScaledBy {
    int32_t mantissa;
    unsigned eights;
    int64_t half;
};
// lower: by how much the product goes to the right, Least or more.
template <int Least>
ScaledBy scaled_by(uint16_t mantissa, int lower) {
#pragma HLS INLINE
    constexpr int end = 43 - Least;  // from there on nothing is left of the product
    const int more = lower - Least;
    const auto most = static_cast<unsigned>(more < end ? more : 0);
    int64_t made = more < end ? within<16>(mantissa) : 0;
    for (unsigned step = 1; step < 8; step *= 2) {
#pragma HLS UNROLL
        if (!(most & step)) made <<= step;
    }
    const unsigned eights = most / 8;
    int64_t half = 0;
    for (unsigned i = 0; 8 * i <= end; ++i) {
#pragma HLS UNROLL
        half |= int64_t{eights == i} << (Least + 6 + 8 * i);
    }
    return {static_cast<int32_t>(within<23>(made)), eights, half};
}
// x: 26 bits and a sign. What is made has Bits bits.
template <int Least, int Bits>
int64_t scaled(int64_t x, const ScaledBy &by) {
#pragma HLS INLINE
    constexpr unsigned longest = power_within((42 - Least) / 8);
    const int64_t raised = within<50>(within<26>(x) * within<23>(by.mantissa) + by.half);
    int64_t made = raised >> (Least + 7);
    bool rest = raised & ((int64_t{1} << (Least + 7)) - 1);
    for (unsigned step = longest; step; step /= 2) {
#pragma HLS UNROLL
        if (!(by.eights & step)) continue;
        rest = rest || (made & ((int64_t{1} << 8 * step) - 1));
        made >>= 8 * step;
    }
    return within<Bits>(made & ~int64_t{!rest});
}

// How a function of the numbers of a row is found in a table: max(x, 0) - entry, by |x| in units of 2^-steps.
struct Lookup {
    unsigned by;  // to the right from where they are 2^8 as large
    unsigned of_entry;
};
// exponent: of the numbers. fraction: entries are in units of 2^-fraction.
inline Lookup lookup(int exponent, int steps, int fraction) {
#pragma HLS INLINE
    // An entry that is not 0 goes less than 22 to the left: numbers have less than 32 bits.
    return {to_right<39>(8 - steps - exponent), both_ways<15, 22>(exponent + fraction)};
}
// v: 31 bits and a sign. Halves are rounded to even, so a sign may leave at the end.
inline int entry_of(int64_t v, const Lookup &by) {
#pragma HLS INLINE
    Shifted index(within<31>(v) << 8);
    const int64_t sign = v < 0 ? -1 : 0;
    bool beyond = false;
    // What is above the eight bits of an entry and all steps that follow makes it the last one.
    for (unsigned step = 32; step; step /= 2) {
#pragma HLS UNROLL
        index.by(step, by.by & step);
        const unsigned above = 64 - (step + 9);
        beyond = beyond || index.twice >> (step + 8) != sign;
        index.twice = static_cast<int64_t>(static_cast<uint64_t>(index.twice) << above) >> above;
    }
    const int64_t made = magnitude(index.made() + index.up());
    return static_cast<int>(beyond || made >> 8 ? 255 : made);
}

// By how much scores are shifted: widest is the most of the first shift.
struct ScoreShifts {
    int first, second;
};
inline ScoreShifts score_shifts(int exponent, unsigned head_dim) {
#pragma HLS INLINE
    int widest = 0;  // bits of a score of head_dim columns, above 15
    for (unsigned longer = 0; longer < 9; ++longer) {
#pragma HLS UNROLL
        widest += head_dim >= ((1U << (15 + longer)) - 1) / (2 * 127 * 127) + 1;
    }
    const int first = smaller(larger(-11 - exponent, 0), widest);
    return {first, smaller(larger(3 - exponent - first, 0), 63)};
}

}  // namespace rsn::xnn8

#endif  // RSN_XNN8_NUMBERS_H
