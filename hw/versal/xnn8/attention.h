// Attention of one head, as both tiles of a pair compute it: isa/overlays/xnn8/numbers.py, "attention, in the tiles".
//
// Keys pass twice. First come the largest scores of all rows. Then scores start at minus those, so their accumulators
// hold differences, which leave with 16 bits; and weights of 8 bits are multiplied by values. Sums and maxima are of
// integers, so the order of the keys does not matter.
//
// Each tile has 32 rows. Of a head of 128 columns both tiles have the same 32 rows and half of the columns: the first
// one hands its part of the scores on, and gets maxima and weights back through a buffer that both reach.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_XNN8_ATTENTION_H
#define RSN_XNN8_ATTENTION_H

#include "blocks.h"

namespace rsn::xnn8 {

using Elements = aie::vector<int16, vector_lanes>;
using Powers = aie::accum<acc48, vector_lanes>;
using Hidden = aie::mask<vector_lanes>;

constexpr int16 power[] = {32752, -22690, 7717, -1409};  // the cubic of 2^-u, in units of 2^-15
constexpr int16 far = 10 << 11;                          // from here on a power is 0
constexpr int16 minus_log2_e = -23637;                   // in units of 2^-14
constexpr int32 lowest = -(1 << 30);                     // below all scores, which have 22 bits
constexpr unsigned groups = half / 4;                    // of rows, and of keys in a slice

// Where things lie among the words of the sums: the sums of values take half of both banks.
namespace at {
constexpr unsigned queries = 1024, weights = 1536;
constexpr unsigned below = odd + 1024, largest = odd + 1536, totals = odd + 1664, hides = odd + 1792;
static_assert(hides + groups * vector_lanes <= 2 * odd && weights + half * half / 4 <= odd);
}  // namespace at

// The keys of a group of four that do not count, of `shown` of a slice that do: these lanes of all four rows.
inline Hidden hidden(unsigned group, unsigned shown) {
    const unsigned count = shown <= 4 * group ? 0 : shown - 4 * group;
    return Hidden::from_uint32(count < 4 ? (0xFu << count & 0xFu) * 0x1111u : 0);
}

// Where scores begin: vectors of a group of rows, or of keys.
struct FromMemory {
    const int32 *vectors;
    unsigned per_row, per_key;
    Product<int8> operator()(unsigned row, unsigned key) const {
        return Product<int8>(aie::load_v<vector_lanes>(vectors + row * per_row + key * per_key));
    }
};
struct FromCascade {
    input_cascade<acc48> *in;
    Product<int8> operator()(unsigned, unsigned) const {
        const Sums upper = readincr_v<8>(in), lower = readincr_v<8>(in);
        return Product<int8>(aie::concat(upper, lower));
    }
};

// Where they go to: the blocks of two groups of rows and two of keys.
struct ToMaxima {
    int32 *largest;
    void operator()(
        unsigned row, unsigned, const Product<int8> &c00, const Product<int8> &c01, const Product<int8> &c10,
        const Product<int8> &c11
    ) const {
        int32 *RSN_APART to = largest + row * vector_lanes;
        const Vector upper = aie::max(c00.to_vector<int32>(), c01.to_vector<int32>());
        const Vector lower = aie::max(c10.to_vector<int32>(), c11.to_vector<int32>());
        aie::store_v(to, aie::max(aie::load_v<vector_lanes>(to), upper));
        aie::store_v(to + vector_lanes, aie::max(aie::load_v<vector_lanes>(to + vector_lanes), lower));
    }
};
struct ToDifferences {
    int16 *below;
    int shift;
    void operator()(
        unsigned row, unsigned key, const Product<int8> &c00, const Product<int8> &c01, const Product<int8> &c10,
        const Product<int8> &c11
    ) const {
        int16 *RSN_APART to = below + (row * groups / 4 + key / 2) * block_words;
        aie::store_v(to, c00.to_vector<int16>(shift));
        aie::store_v(to + vector_lanes, c01.to_vector<int16>(shift));
        aie::store_v(to + 2 * vector_lanes, c10.to_vector<int16>(shift));
        aie::store_v(to + 3 * vector_lanes, c11.to_vector<int16>(shift));
    }
};
struct ToCascade {
    output_cascade<acc48> *out;
    void operator()(
        unsigned, unsigned, const Product<int8> &c00, const Product<int8> &c01, const Product<int8> &c10,
        const Product<int8> &c11
    ) const {
        const auto both = [this](const Product<int8> &c) {
            writeincr(out, c.to_accum().extract<8>(0));
            writeincr(out, c.to_accum().extract<8>(1));
        };
        both(c00);
        both(c01);
        both(c10);
        both(c11);
    }
};

// Scores of 32 rows and 32 keys, K = 64. Slots of a block, of 32 cycles: 32 loads of operands and 8 of starts, of 64.
template <typename From, typename To>
[[gnu::noinline]] void scores(const int8 *RSN_APART queries, const int8 *RSN_APART keys, From from, To to) {
    constexpr unsigned pair = 2 * columns / 8 * bytes;  // of groups
blocks:
    for (unsigned n = 0; n < groups / 2 * groups / 2; ++n) chess_prepare_for_pipelining {
        const unsigned r = n / (groups / 2) * 2, k = n % (groups / 2) * 2;
        Product<int8> c00 = from(r, k);
        Product<int8> c01 = from(r, k + 1);
        Product<int8> c10 = from(r + 1, k);
        Product<int8> c11 = from(r + 1, k + 1);
        add_products<columns / 8>(c00, c01, c10, c11, queries + r / 2 * pair, keys + k / 2 * pair);
        to(r, k, c00, c01, c10, c11);
    }
}

// Of each row minus its largest score, in all lanes of the row.
inline void negate_largest(int32 *RSN_APART largest) {
each_group:
    for (unsigned g = 0; g < groups; ++g) {
        Vector v = aie::load_v<vector_lanes>(largest + g * vector_lanes);
    each_row:
        for (unsigned i = 0; i < vector_lanes; i += 4) {
            int32 most = v[i];
            for (unsigned j = 1; j < 4; ++j) most = v[i + j] > most ? int32{v[i + j]} : most;
            for (unsigned j = 0; j < 4; ++j) v[i + j] = -most;
        }
        aie::store_v(largest + g * vector_lanes, v);
    }
}

inline Elements all(int16 value) { return aie::broadcast<int16, vector_lanes>(value); }

// 255 * 2^-x, Ragged: 0 where a key does not count. below: minus x, before its product with log2 e is shifted.
template <bool Ragged>
inline aie::vector<uint8, vector_lanes> weights_of(const Elements &below, int shift, const Hidden &of_keys) {
    const Powers product = aie::mul(below, all(minus_log2_e));
    const Elements x = aie::min(product.to_vector<int16>(shift), all(far));
    const Powers first = aie::mac(Powers(all(power[2]), 14), x, all(power[3]));
    Elements made = first.to_vector<int16>(14);
    made = aie::mac(Powers(all(power[1]), 14), made, x).to_vector<int16>(14);
    made = aie::mac(Powers(all(power[0]), 14), made, x).to_vector<int16>(14);
    for (unsigned i = 0; i < 3; ++i) chess_unroll_loop(*) made = aie::mul(made, made).to_vector<int16>(15);
    if constexpr (Ragged) made = aie::select(made, all(0), of_keys);
    return Powers(made).to_vector<uint8>(7);
}

// Weights of 32 rows and 32 keys, as the left factor of a product: [8 groups of rows][4 of keys]. Blocks of 4x4 become
// blocks of 4x8, two at a time. Ragged: of the keys, only `shown` count.
template <bool Ragged>
[[gnu::noinline]] void weigh(const int16 *RSN_APART below, int shift, unsigned shown, uint8 *RSN_APART weights) {
each_block:
    for (unsigned n = 0; n < groups / 2 * groups / 2; ++n) chess_prepare_for_pipelining {
        const int16 *from = below + n * block_words;
        const unsigned key = n % (groups / 2), row = n / (groups / 2);
        const Hidden left = hidden(2 * key, shown), right = hidden(2 * key + 1, shown);
        const auto p00 = weights_of<Ragged>(aie::load_v<vector_lanes>(from), shift, left);
        const auto p01 = weights_of<Ragged>(aie::load_v<vector_lanes>(from + vector_lanes), shift, right);
        const auto p10 = weights_of<Ragged>(aie::load_v<vector_lanes>(from + 2 * vector_lanes), shift, left);
        const auto p11 = weights_of<Ragged>(aie::load_v<vector_lanes>(from + 3 * vector_lanes), shift, right);
        const auto [upper, lower] = aie::interleave_zip(aie::concat(p00, p10), aie::concat(p01, p11), 4);
        uint8 *to = weights + (row * groups + key) * bytes;
        aie::store_v(to, upper);
        aie::store_v(to + groups / 2 * bytes, lower);
    }
}

// Adds up the weights of each row, in all lanes of the row.
inline void add_weights(
    const uint8 *RSN_APART weights, const int32 *RSN_APART from, unsigned step, int32 *RSN_APART to
) {
    const auto ones = aie::broadcast<int8, bytes>(1);
each_group:
    for (unsigned g = 0; g < groups; ++g) chess_prepare_for_pipelining {
        Product<uint8> c(aie::load_v<vector_lanes>(from + g * step));
        for (unsigned k = 0; k < groups / 2; ++k) chess_unroll_loop(*)
            c.mac(aie::load_v<bytes>(weights + (g * groups / 2 + k) * bytes), ones);
        aie::store_v(to + g * vector_lanes, c.to_vector<int32>());
    }
}

// What a round of attention is told.
struct Round {
    unsigned keys, lanes;
    int first_shift, second_shift;
    bool narrow, wide;
};

// Which keys of the slice are there, of a column. number: of the slice.
inline unsigned shown_of(const Round &round, unsigned column, unsigned number) {
    const unsigned lane = (column + number % round.lanes) % round.lanes;
    const unsigned before = rows * lane + half * (number / round.lanes);
    return round.keys <= before ? 0 : round.keys - before < half ? round.keys - before : half;
}

// The tiles of a pair, as attention sees them. They differ for heads of 128 columns: there the last tile has maxima and
// weights of both.
struct First {
    static constexpr bool weighs_wide = false;
    output_cascade<acc48> *out;
    Handed &handed;

    template <typename To>
    void score(const int8 *queries, const int8 *keys, FromMemory from, To to, bool wide) {
        if (wide) scores(queries, keys, from, ToCascade{out});
        else scores(queries, keys, from, to);
    }
    template <typename T>
    void share(T *RSN_APART vectors, unsigned count) {
        constexpr unsigned each = bytes / sizeof(T);
        handed.acquire();
        const T *RSN_APART from = reinterpret_cast<const T *>(handed.data());
        for (unsigned i = 0; i < count; i += each) aie::store_v(vectors + i, aie::load_v<each>(from + i));
        handed.release();
    }
};
struct Last {
    static constexpr bool weighs_wide = true;
    input_cascade<acc48> *in;
    Hands &hands;

    template <typename To>
    void score(const int8 *queries, const int8 *keys, FromMemory from, To to, bool wide) {
        if (wide) scores(queries, keys, FromCascade{in}, to);
        else scores(queries, keys, from, to);
    }
    template <typename T>
    void share(const T *RSN_APART vectors, unsigned count) {
        constexpr unsigned each = bytes / sizeof(T);
        hands.acquire();
        T *RSN_APART to = reinterpret_cast<T *>(hands.data());
        for (unsigned i = 0; i < count; i += each) aie::store_v(to + i, aie::load_v<each>(vectors + i));
        hands.release();
    }
};

// Computes sums of weighted values, and of weights, of the queries in `sums`. zeros: a vector.
template <typename Place>
void attend(Place &place, Slice &b, const Round &round, unsigned column, const int32 *zeros, int32 *sums) {
    const int8 *queries = reinterpret_cast<const int8 *>(sums + at::queries);
    int16 *below = reinterpret_cast<int16 *>(sums + at::below);
    uint8 *weights = reinterpret_cast<uint8 *>(sums + at::weights);
    int32 *largest = sums + at::largest, *totals = sums + at::totals, *hides = sums + at::hides;
    const auto least = aie::broadcast<int32, vector_lanes>(lowest);
    for (unsigned g = 0; g < groups; ++g) aie::store_v(largest + g * vector_lanes, least);
first_pass:
    for (unsigned number = 0; number < 2 * round.lanes; ++number) {
        const unsigned shown = shown_of(round, column, number);
        b.acquire();
        if (shown) {
            for (unsigned g = 0; g < groups; ++g) {
                const Vector start = aie::select(aie::zeros<int32, vector_lanes>(), least, hidden(g, shown));
                aie::store_v(hides + g * vector_lanes, start);
            }
            place.score(queries, b.data(), FromMemory{hides, 0, vector_lanes}, ToMaxima{largest}, round.wide);
        }
        b.release();
    }
    if (!round.wide || Place::weighs_wide) negate_largest(largest);
    if (round.wide) place.share(largest, groups * vector_lanes);
    bool begun = false;
second_pass:
    for (unsigned number = 0; number < 2 * round.lanes; ++number) {
        const unsigned shown = shown_of(round, column, number);
        b.acquire();
        if (shown) {
            const FromMemory from{largest, vector_lanes, 0};
            place.score(queries, b.data(), from, ToDifferences{below, round.first_shift}, round.wide);
        }
        b.release();
        b.acquire();
        if (shown) {
            if (!round.wide || Place::weighs_wide) {
                if (shown < half) weigh<true>(below, round.second_shift, shown, weights);
                else weigh<false>(below, round.second_shift, shown, weights);
            }
            if (round.wide) place.share(weights, half * half);
            add_weights(weights, begun ? totals : zeros, begun ? vector_lanes : 0, totals);
            const Start start = begun ? continued(sums) : same(zeros);
            multiply(weights, b.data(), start, sums, half / 8, round.narrow ? across / 2 : across);
            begun = true;
        }
        b.release();
    }
}

// Gives all sums of a tile to `put`, eight at a time, as they lie in results.
template <typename Put>
void give(const int32 *RSN_APART sums, Put put) {
    constexpr unsigned blocks = result_rows / 8 * across;
each_window:
    for (unsigned first = 0; first < half / 8 * across; first += blocks) {
    each_block:
        for (unsigned n = first; n < first + blocks; ++n)
            for (unsigned i = 0; i < block_words; i += 8) put(aie::load_v<8>(sums + place(n) + i));
        Vector weights;
        for (unsigned r = 0; r < result_rows; ++r)
            weights[r] = sums[at::totals + (first / blocks * result_rows + r) * 4];
        put(weights.extract<8>(0));
        put(weights.extract<8>(1));
    }
}

}  // namespace rsn::xnn8

#endif  // RSN_XNN8_ATTENTION_H
