// Attention of one head, as both tiles of a pair compute it: isa/overlays/xnn8/numbers.py, "attention, in the tiles".
//
// Keys pass twice. First come the largest scores of all rows. Then scores start at minus those, so their accumulators
// hold differences, which leave with 16 bits; and weights of 8 bits are multiplied by values. Sums and maxima are of
// integers, so the order of the keys does not matter.
//
// Each tile has half of a lane's rows, up to 32. Of a head of 128 columns both tiles have the same rows and half of the
// columns: the first one hands its part of the scores on, and gets maxima and weights back through a buffer that both
// reach.
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
constexpr unsigned below = odd + 1024, largest = odd + 1536, totals = odd + 1664;
static_assert(totals + groups * vector_lanes <= 2 * odd && weights + half * half / 4 <= odd);
}  // namespace at

// What a round of attention is told. rows: of a lane; of a wide head twice as many. key_rows: keys of a lane. lanes: of
// the sequence. first_row: of the tile.
struct Round {
    unsigned rows, key_rows, lanes, keys, first_row;
    int first_shift, second_shift;
    bool narrow, wide, causal, idle;
    unsigned own() const { return idle ? 0 : rows / 2; }
};

// Of four rows and four keys: how many keys count, and whether those behind the row do not, where both are the same.
struct Shown {
    unsigned keys;
    bool up_to_row;

    // A bit for each score that does not count.
    constexpr uint32 hidden() const { return (0xFu << keys & 0xFu) * 0x1111u | (up_to_row ? 0x08CEu : 0); }
};

// The keys of a slice. first: of each half, which lies in one lane.
struct SliceKeys {
    unsigned first[2];
    bool none;  // of them count for some row

    // Which scores count of groups of four rows and four keys. Both begin at multiples of four.
    Shown shown(const Round &round, unsigned row, unsigned key) const {
        const unsigned from = round.first_row + 4 * row, at = first[key / (groups / 2)] + key % (groups / 2) * 4;
        const unsigned count = at >= round.keys || (round.causal && from < at) ? 0 : round.keys - at;
        return {count < 4 ? count : 4, round.causal && from == at};
    }
};

// Where sums of four rows and four keys begin: far below if they do not count. A choice in registers would take the
// slot of a product for each. alignas: of a load.
struct Starts {
    alignas(bytes) int32 of[2][5][vector_lanes] = {};  // by `up_to_row` and `keys`
    constexpr Starts() {
        for (unsigned n = 0; n < 2 * 5 * vector_lanes; ++n) {
            const unsigned up_to_row = n / vector_lanes / 5, keys = n / vector_lanes % 5, i = n % vector_lanes;
            if (Shown{keys, up_to_row != 0}.hidden() >> i & 1) of[up_to_row][keys][i] = lowest;
        }
    }
};
constexpr Starts starts;
static_assert(sizeof(starts) == start_bytes);

// Goes through the keys of a sequence, as a column of pairs gets them.
class KeyWalk {
  public:
    KeyWalk(const Round &round, unsigned column)
        : round_(round), lane_(column % round.lanes), in_lane_(0), left_(round.key_rows * round.lanes) {}

    bool more() const { return left_ != 0; }

    // The keys of the next slice.
    SliceKeys next() {
        const unsigned end = round_.causal && round_.first_row + round_.own() < round_.keys
            ? round_.first_row + round_.own() : round_.keys;  // behind the last key that counts for some row
        SliceKeys keys = {{}, true};
        for (unsigned &first : keys.first) {
            first = left_ ? lane_ * round_.key_rows + in_lane_ : round_.keys;
            keys.none = keys.none && (round_.idle || first >= end);
            if (!left_) continue;
            left_ -= half / 2;
            in_lane_ += half / 2;
            if (in_lane_ < round_.key_rows) continue;
            in_lane_ = 0;
            if (++lane_ == round_.lanes) lane_ = 0;
        }
        return keys;
    }

  private:
    const Round &round_;
    unsigned lane_, in_lane_, left_;
};

// Where scores begin: at vectors of groups of rows, or at one of `starts`.
struct FromMemory {
    const int32 *vectors;
    Product<int8> operator()(unsigned row, unsigned) const {
        return Product<int8>(aie::load_v<vector_lanes>(vectors + row * vector_lanes));
    }
};
struct FromStarts {
    const Round &round;
    const SliceKeys &keys;
    Product<int8> operator()(unsigned row, unsigned key) const {
        const Shown shown = keys.shown(round, row, key);
        return Product<int8>(aie::load_v<vector_lanes>(starts.of[shown.up_to_row][shown.keys]));
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

// Scores of `own` rows and 32 keys, K = 64. Slots of a block, of 32 cycles: 32 loads of operands and 8 of starts, of
// 64.
template <typename From, typename To>
[[gnu::noinline]] void scores(const int8 *RSN_APART queries, const int8 *RSN_APART keys, unsigned own, From from,
    To to) {
    constexpr unsigned pair = 2 * columns / 8 * bytes;  // of groups
blocks:
    for (unsigned n = 0; n < own / 8 * groups / 2; ++n) chess_prepare_for_pipelining {
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

// 255 * 2^-x, 0 where a key does not count. below: minus x, before its product with log2 e is shifted.
inline aie::vector<uint8, vector_lanes> weights_of(const Elements &below, int shift, const Hidden &of_keys) {
    const Powers product = aie::mul(below, all(minus_log2_e));
    const Elements x = aie::min(product.to_vector<int16>(shift), all(far));
    const Powers first = aie::mac(Powers(all(power[2]), 14), x, all(power[3]));
    Elements made = first.to_vector<int16>(14);
    made = aie::mac(Powers(all(power[1]), 14), made, x).to_vector<int16>(14);
    made = aie::mac(Powers(all(power[0]), 14), made, x).to_vector<int16>(14);
    for (unsigned i = 0; i < 3; ++i) chess_unroll_loop(*) made = aie::mul(made, made).to_vector<int16>(15);
    return Powers(aie::select(made, all(0), of_keys)).to_vector<uint8>(7);
}

// Weights of `own` rows and 32 keys, as the left factor of a product: [groups of rows][4 of keys]. Blocks of 4x4 become
// blocks of 4x8, two at a time. Slices of which all keys count take the same loop: a second one would not fit into the
// program memory, and the choice takes no time, because the accumulators bind.
[[gnu::noinline]] void weigh(
    const int16 *RSN_APART below, const Round &round, const SliceKeys &keys, uint8 *RSN_APART weights
) {
each_block:
    for (unsigned n = 0; n < round.own() / 8 * groups / 2; ++n) chess_prepare_for_pipelining {
        const int16 *from = below + n * block_words;
        const unsigned key = n % (groups / 2), row = n / (groups / 2);
        const auto weight = [&](unsigned i) {
            const Shown shown = keys.shown(round, 2 * row + i / 2, 2 * key + i % 2);
            const Hidden hidden = Hidden::from_uint32(shown.hidden());
            return weights_of(aie::load_v<vector_lanes>(from + i * vector_lanes), round.second_shift, hidden);
        };
        const auto p00 = weight(0), p01 = weight(1), p10 = weight(2), p11 = weight(3);
        const auto [upper, lower] = aie::interleave_zip(aie::concat(p00, p10), aie::concat(p01, p11), 4);
        uint8 *to = weights + (row * groups + key) * bytes;
        aie::store_v(to, upper);
        aie::store_v(to + groups / 2 * bytes, lower);
    }
}

// Adds up the weights of each of `own` rows, in all lanes of the row.
inline void add_weights(
    const uint8 *RSN_APART weights, unsigned own, const int32 *RSN_APART from, unsigned step, int32 *RSN_APART to
) {
    const auto ones = aie::broadcast<int8, bytes>(1);
each_group:
    for (unsigned g = 0; g < own / 4; ++g) chess_prepare_for_pipelining {
        Product<uint8> c(aie::load_v<vector_lanes>(from + g * step));
        for (unsigned k = 0; k < groups / 2; ++k) chess_unroll_loop(*)
            c.mac(aie::load_v<bytes>(weights + (g * groups / 2 + k) * bytes), ones);
        aie::store_v(to + g * vector_lanes, c.to_vector<int32>());
    }
}

// The tiles of a pair, as attention sees them. They differ for heads of 128 columns: there the last tile has maxima and
// weights of both.
struct First {
    static constexpr bool weighs_wide = false;
    output_cascade<acc48> *out;
    Handed &handed;

    template <typename From, typename To>
    void score(const int8 *queries, const int8 *keys, const Round &round, From from, To to) {
        if (round.wide) scores(queries, keys, round.own(), from, ToCascade{out});
        else scores(queries, keys, round.own(), from, to);
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

    template <typename From, typename To>
    void score(const int8 *queries, const int8 *keys, const Round &round, From from, To to) {
        if (round.wide) scores(queries, keys, round.own(), FromCascade{in}, to);
        else scores(queries, keys, round.own(), from, to);
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
    int32 *largest = sums + at::largest, *totals = sums + at::totals;
    const auto least = aie::broadcast<int32, vector_lanes>(lowest);
    for (unsigned g = 0; g < groups; ++g) aie::store_v(largest + g * vector_lanes, least);
first_pass:
    for (KeyWalk walk(round, column); walk.more();) {
        const SliceKeys keys = walk.next();
        b.acquire();
        if (!keys.none) place.score(queries, b.data(), round, FromStarts{round, keys}, ToMaxima{largest});
        b.release();
    }
    if (!round.wide || Place::weighs_wide) negate_largest(largest);
    if (round.wide) place.share(largest, groups * vector_lanes);
    bool begun = false;
second_pass:
    for (KeyWalk walk(round, column); walk.more();) {
        const SliceKeys keys = walk.next();
        b.acquire();
        const ToDifferences to{below, round.first_shift};
        if (!keys.none) place.score(queries, b.data(), round, FromMemory{largest}, to);
        b.release();
        b.acquire();
        if (!keys.none) {
            if (!round.wide || Place::weighs_wide) weigh(below, round, keys, weights);
            if (round.wide) place.share(weights, half * half);
            add_weights(weights, round.own(), begun ? totals : zeros, begun ? vector_lanes : 0, totals);
            const Start start = begun ? continued(sums) : same(zeros);
            multiply(weights, b.data(), start, sums, round.own() / 8, round.narrow ? across / 2 : across);
            begun = true;
        }
        b.release();
    }
}

// Gives the sums of a tile's rows to `put`, eight at a time, as they lie in results.
template <typename Put>
void give(const int32 *RSN_APART sums, unsigned own, Put put) {
each_window:
    for (unsigned row = 0; row < own / result_rows; ++row) {
        aie::vector<int32, result_rows> weights;
        for (unsigned r = 0; r < result_rows; ++r) weights[r] = sums[at::totals + (row * result_rows + r) * 4];
        put(weights);
    each_block:
        for (unsigned n = row * across; n < (row + 1) * across; ++n)
            for (unsigned i = 0; i < block_words; i += 8) put(aie::load_v<8>(sums + place(n) + i));
    }
}

}  // namespace rsn::xnn8

#endif  // RSN_XNN8_ATTENTION_H
