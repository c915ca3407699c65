// Steps of the numbers of xnn8 in C++, on arrays, for tests.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include "xnn8/numbers.h"

using namespace rsn::xnn8;

#define RSN_API extern "C" __attribute__((visibility("default")))

RSN_API void run_rounded(std::size_t n, const int64_t *x, const int64_t *shift, int64_t *out) {
    for (std::size_t i = 0; i < n; ++i) out[i] = rounded<61>(x[i], to_right<61>(static_cast<int>(shift[i])));
}
RSN_API void run_aligned(std::size_t n, const int64_t *x, const int64_t *shift, int64_t *out) {
    for (std::size_t i = 0; i < n; ++i) out[i] = aligned<15, 22>(x[i], both_ways<15, 22>(static_cast<int>(shift[i])));
}
// x: 26 bits; mantissa: 16. lower: at least Least.
template <int Least>
void scale(std::size_t n, const int64_t *x, const int64_t *mantissa, const int64_t *lower, int64_t *out) {
    for (std::size_t i = 0; i < n; ++i) {
        const ScaledBy by = scaled_by<Least>(static_cast<uint16_t>(mantissa[i]), static_cast<int>(lower[i]));
        out[i] = scaled<Least, 42 - Least>(x[i], by);
    }
}
RSN_API void run_scaled(
    std::size_t n, const int64_t *x, const int64_t *mantissa, const int64_t *lower, int64_t *out
) {
    scale<12>(n, x, mantissa, lower, out);
}
RSN_API void run_scaled_both_ways(
    std::size_t n, const int64_t *x, const int64_t *mantissa, const int64_t *lower, int64_t *out
) {
    scale<-2>(n, x, mantissa, lower, out);
}
RSN_API void run_entry_of(std::size_t n, const int64_t *v, const int64_t *exponent, int steps, int64_t *out) {
    for (std::size_t i = 0; i < n; ++i) out[i] = entry_of(v[i], lookup(static_cast<int>(exponent[i]), steps, 0));
}
RSN_API void run_divided(std::size_t n, const int64_t *x, const int64_t *divisor, int64_t *out) {
    for (std::size_t i = 0; i < n; ++i) out[i] = divided<62, 40>(x[i], divisor[i]);
}
RSN_API void run_root(std::size_t n, const int64_t *x, int64_t *out) {
    for (std::size_t i = 0; i < n; ++i) out[i] = root(x[i]);
}
RSN_API void run_normal(std::size_t n, const int64_t *x, const int64_t *exponent, int up, int64_t *out) {
    for (std::size_t i = 0; i < n; ++i) {
        const RowFactor made = normal<61>(x[i], static_cast<int>(exponent[i]), up != 0);
        out[2 * i] = made.mantissa;
        out[2 * i + 1] = made.exponent;
    }
}
// Rows of a block of `columns`. Their exponents are behind the integers.
RSN_API void run_stored(
    std::size_t n, std::size_t columns, const int64_t *v, const int64_t *exponent, int bits, int64_t *out
) {
    for (std::size_t i = 0; i < n; ++i) {
        uint32_t most = 0;
        for (std::size_t c = 0; c < columns; ++c) {
            const auto size = static_cast<uint32_t>(magnitude(v[i * columns + c]));
            if (size > most) most = size;
        }
        const int from = static_cast<int>(exponent[i]), made = stored_exponent(most, from, bits);
        for (std::size_t c = 0; c < columns; ++c)
            out[i * columns + c] = stored(static_cast<int32_t>(v[i * columns + c]), storing(from, made, bits == 8));
        out[n * columns + i] = smaller(made, highest);
    }
}
// constants: columns, columns * eps with its exponent, the root of columns with its exponent.
RSN_API void run_statistics(
    std::size_t n, const int64_t *sums, const int64_t *squares, const int64_t *top, const int64_t *constants, int rms,
    int64_t *out
) {
    const NormConstants norm = {static_cast<uint16_t>(constants[0]), static_cast<int32_t>(constants[1]),
                                static_cast<int32_t>(constants[3]), static_cast<int16_t>(constants[2]),
                                static_cast<int16_t>(constants[4])};
    for (std::size_t i = 0; i < n; ++i) {
        const Statistics made = statistics(sums[i], squares[i], static_cast<int>(top[i]), norm, rms != 0);
        out[3 * i] = made.mean;
        out[3 * i + 1] = made.inverse.mantissa;
        out[3 * i + 2] = made.inverse.exponent;
    }
}
RSN_API void run_score_shifts(std::size_t n, const int64_t *exponent, unsigned head_dim, int64_t *out) {
    for (std::size_t i = 0; i < n; ++i) {
        const ScoreShifts made = score_shifts(static_cast<int>(exponent[i]), head_dim);
        out[2 * i] = made.first;
        out[2 * i + 1] = made.second;
    }
}
