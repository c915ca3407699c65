// SPDX-License-Identifier: Apache-2.0
#include "products.h"

#include "../pl/dataflow.h"

namespace rsn::mme {

namespace {

using xnn::Mme;

// Vectors that outlive one data tile. They are on the stack, so that natively each AIE tile has its own.
template <bool Begins>
struct Kept {
    alignas(32) float zeros[8] = {};
    alignas(32) float weight[weight_floats];
    alignas(32) float bias[Begins ? bias_floats : 8];
};

// A times the previous layer's weights, elementwise, from whichever tile of the cascade has these columns of both.
template <bool Holds, typename Place>
void scale(Place &place, const float *RSN_APART a, const float *weight, float *RSN_APART to) {
columns:
    for (unsigned g = 0; g < groups; ++g) chess_loop_range(groups, groups) {
        const Vector w = aie::load_v<8>(weight + 8 * g);
        const float *RSN_APART pair = a + 16 * g;
    two_rows:
        for (unsigned r = 0; r < rows; r += 2) chess_prepare_for_pipelining chess_loop_range(rows / 2, rows / 2) {
            Vector upper = place.receive(), lower = place.receive();
            if constexpr (Holds) {
                // Eight columns of C are eight k of A, in two blocks of two rows.
                const Vector left = aie::load_v<8>(pair), right = aie::load_v<8>(pair + 8);
                upper = aie::mul(aie::concat(left.extract<4>(0), right.extract<4>(0)), w).to_vector<float>();
                lower = aie::mul(aie::concat(left.extract<4>(1), right.extract<4>(1)), w).to_vector<float>();
            }
            place.emit(upper, to);
            place.emit(lower, to + 8);
            pair += 2 * depth;
            to += 16;
        }
    }
}

// Whether the stack of tile c of a cascade has room for what is kept there, beside that for calls.
template <typename Place>
constexpr bool fits(unsigned c) {
    return sizeof(Place) + sizeof(Kept<Place::begins>) + stack_for_calls <= stack_bytes(c);
}
static_assert(fits<First>(0) && fits<Middle>(1) && fits<Middle>(2) && fits<Last>(3));

template <typename Place>
void run(Place &place, Operand &a, Operand &b, Ops ops) {
    Kept<Place::begins> kept;
    const Start zeros = {kept.zeros, 0, 0};
each_op:
    for (unsigned i = 0; i < ops[1]; ++i) {
        RSN_UOP(i);
        const Mme op = Mme::decode(&ops[2 + i]);
        const bool full = op.k128;  // K = 64 has neither bias nor previous layer, and sums nothing over k
        const bool biased = op.bias && full;
        const unsigned used = op.n128 || !full ? groups : groups / 2;
        if (op.load_prev) {
            b.acquire();
        weights:
            for (unsigned at = 0; at < weight_floats; at += 8) chess_prepare_for_pipelining {
                Vector weight = aie::load_v<8>(b.data() + at);
                place.hand_on(weight);
                aie::store_v(kept.weight + at, weight);
            }
            b.release();
        }
        if (biased) {
            b.acquire();
            if constexpr (Place::begins) {
            bias:
                for (unsigned at = 0; at < bias_floats; at += 8) chess_prepare_for_pipelining {
                    aie::store_v(kept.bias + at, aie::load_v<8>(b.data() + at));
                }
            }
            b.release();
        }
        // The first of a sum acquires the result's buffer, the last one releases it.
        const auto product = [&](unsigned column, bool at_first, bool first, bool last) {
            a.acquire();
            b.acquire();
            if (first) place.acquire();
            Start start = zeros;
            if (!first) start = {place.sums(), rows * 8, 8};
            else if (Place::begins && at_first && biased) start = {kept.bias + column * 8 * groups % bias_floats, 8, 0};
            if (!full) multiply<depth / 2, true>(place, a.data(), b.data(), start, place.sums(), used);
            else if (last) multiply<depth, true>(place, a.data(), b.data(), start, place.sums(), used);
            else multiply<depth, false>(place, a.data(), b.data(), start, place.sums(), used);
            if (last) place.release();
            b.release();
            a.release();
        };
    row_groups:
        for (unsigned ai = 0; ai < op.a_iter; ++ai) {
        column_groups:
            for (unsigned bi = 0; bi < op.b_iter; ++bi) {
                const unsigned column = bi * op.acc_b;
                const unsigned block = op.acc_a * op.acc_b;
                if (op.prev && full) {
                    for (unsigned t = 0; t < block; ++t) {
                        a.acquire();
                        place.acquire();
                        const float *weight = kept.weight + (column + t % op.acc_b) * 8 * groups % weight_floats;
                        if (op.holds_weight) scale<true>(place, a.data(), weight, place.sums());
                        else scale<false>(place, a.data(), weight, place.sums());
                        place.release();
                        a.release();
                    }
                }
                if (op.acc_k && full) {
                    for (unsigned t = 0; t < block; ++t)
                        for (unsigned k = 0; k < op.k_iter; ++k)
                            product(column + t % op.acc_b, true, k == 0, k + 1 == op.k_iter);
                } else {
                    for (unsigned k = 0; k < op.k_iter; ++k)
                        for (unsigned t = 0; t < block; ++t) product(column + t % op.acc_b, k == 0, true, true);
                }
            }
        }
    }
}

}  // namespace

}  // namespace rsn::mme

#include "entries.h"
