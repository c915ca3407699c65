// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

#include <aie_api/aie.hpp>
#include <aie_api/aie_adf.hpp>

#include "../pl/dataflow.h"

namespace rsn::mme {

namespace {

using xnn::Mme;
using Vector = aie::vector<float, 8>;
using Sums = aie::accum<accfloat, 8>;

constexpr unsigned groups = 4;  // of 8 columns
constexpr unsigned rows = 32;
constexpr unsigned depth = 32;  // k
constexpr unsigned bias_floats = 2048 / 4;
constexpr unsigned weight_floats = 512 / 4;

// State of a tile kernel that outlives one data tile. It is on the stack, so that natively each AIE tile has its own.
template <bool Begins>
struct Kept {
    alignas(32) float sums[window];  // as C, while products are summed over k
    alignas(32) float weight[weight_floats];
    alignas(32) float bias[Begins ? bias_floats : 8];
};

// The place of a tile in its cascade is a type: where sums come from and go to. `emit` hands on eight results,
// `receive` takes what the tile before has handed on.
struct First {
    static constexpr bool begins = true;
    output_cascade<accfloat> *out;

    void acquire() {}
    void release() {}
    Vector receive() { return aie::zeros<float, 8>(); }
    Vector plus(Vector own) { return own; }
    void emit(Vector sums, unsigned) { writeincr(out, Sums(sums)); }
    void hand_on(Vector &weight) { writeincr(out, Sums(weight)); }
    void undefined(unsigned) {}
};

struct Middle {
    static constexpr bool begins = false;
    input_cascade<accfloat> *in;
    output_cascade<accfloat> *out;

    void acquire() {}
    void release() {}
    Vector receive() { return readincr_v<8>(in).to_vector<float>(); }
    Vector plus(Vector own) { return aie::add(receive(), own); }
    void emit(Vector sums, unsigned) { writeincr(out, Sums(sums)); }
    void hand_on(Vector &weight) {
        weight = receive();
        writeincr(out, Sums(weight));
    }
    void undefined(unsigned) {}
};

struct Last {
    static constexpr bool begins = false;
    input_cascade<accfloat> *in;
    Result &c;

    void acquire() { c.acquire(); }
    void release() { c.release(); }
    Vector receive() { return readincr_v<8>(in).to_vector<float>(); }
    Vector plus(Vector own) { return aie::add(receive(), own); }
    void emit(Vector sums, unsigned at) { aie::store_v(c.data() + at, sums); }
    void hand_on(Vector &weight) { weight = receive(); }
    // Columns beyond N leave as they are; natively as NaN, so that whoever reads them shows.
    void undefined([[maybe_unused]] unsigned at) {
#ifdef RSN_CSIM
        emit(aie::broadcast<float, 8>(__builtin_nanf("")), at);
#endif
    }
};

// Computes one product, or one of several that are summed. It starts from `start`, or from `kept` if it is not the
// first, and writes to the cascade, or to `kept` if it is not the last.
template <typename Place>
void multiply(
    Place &place, const float *a, const float *b, const float *start, float *kept, bool first, bool last, const Mme &op
) {
    const unsigned used = op.n128 || !op.k128 ? groups : groups / 2;
    const unsigned steps = (op.k128 ? depth : depth / 2) / 4;
columns:
    for (unsigned g = 0; g < used; ++g) {
    four_rows:
        for (unsigned r = 0; r < rows; r += 4) {
            const unsigned at = (g * rows + r) * 8;
            Sums s[4];
            for (unsigned i = 0; i < 4; ++i) chess_flatten_loop {
                if (!first) s[i] = Sums(aie::load_v<8>(kept + at + 8 * i));
                else if (start) s[i] = Sums(aie::load_v<8>(start + 8 * g));
                else s[i] = Sums(aie::zeros<float, 8>());
            }
            const float *upper = a + r * depth;
            const float *lower = upper + 2 * depth;
            const float *row = b + g * depth * 8;
        four_k:
            for (unsigned k = 0; k < steps; ++k, upper += 8, lower += 8, row += 32) chess_prepare_for_pipelining {
                const Vector x = aie::load_v<8>(upper), y = aie::load_v<8>(lower);
                for (unsigned i = 0; i < 4; ++i) chess_flatten_loop {
                    const Vector z = aie::load_v<8>(row + 8 * i);
                    s[0] = aie::mac(s[0], x[i], z);
                    s[1] = aie::mac(s[1], x[4 + i], z);
                    s[2] = aie::mac(s[2], y[i], z);
                    s[3] = aie::mac(s[3], y[4 + i], z);
                }
            }
            for (unsigned i = 0; i < 4; ++i) chess_flatten_loop {
                const Vector own = s[i].to_vector<float>();
                if (last) place.emit(place.plus(own), at + 8 * i);
                else aie::store_v(kept + at + 8 * i, own);
            }
        }
    }
    if (!last) return;
beyond:
    for (unsigned at = used * rows * 8; at < window; at += 8) place.undefined(at);
}

// A times the previous layer's weights, elementwise, from whichever tile of the cascade has these columns of both.
template <typename Place>
void scale(Place &place, const float *a, const float *weight, bool holds) {
columns:
    for (unsigned g = 0; g < groups; ++g) {
        const Vector w = aie::load_v<8>(weight + 8 * g);
    two_rows:
        for (unsigned r = 0; r < rows; r += 2) chess_prepare_for_pipelining {
            const unsigned at = (g * rows + r) * 8;
            Vector upper = place.receive(), lower = place.receive();
            if (holds) {
                // Eight columns of C are eight k of A, in two blocks of two rows.
                const Vector left = aie::load_v<8>(a + r * depth + 16 * g);
                const Vector right = aie::load_v<8>(a + r * depth + 16 * g + 8);
                upper = aie::mul(aie::concat(left.extract<4>(0), right.extract<4>(0)), w).to_vector<float>();
                lower = aie::mul(aie::concat(left.extract<4>(1), right.extract<4>(1)), w).to_vector<float>();
            }
            place.emit(upper, at);
            place.emit(lower, at + 8);
        }
    }
}

template <typename Place>
void run(Place place, Operand &a, Operand &b, Ops ops) {
    Kept<Place::begins> kept;
each_op:
    for (unsigned i = 0; i < ops[1]; ++i) {
        RSN_UOP(i);
        const Mme op = Mme::decode(&ops[2 + i]);
        const bool full = op.k128;  // K = 64 has neither bias nor previous layer, and sums nothing over k
        if (op.load_prev) {
            b.acquire();
            for (unsigned at = 0; at < weight_floats; at += 8) {
                Vector weight = aie::load_v<8>(b.data() + at);
                place.hand_on(weight);
                aie::store_v(kept.weight + at, weight);
            }
            b.release();
        }
        if (op.bias && full) {
            b.acquire();
            if (Place::begins)
                for (unsigned at = 0; at < bias_floats; at += 8)
                    aie::store_v(kept.bias + at, aie::load_v<8>(b.data() + at));
            b.release();
        }
        const auto product = [&](unsigned column, bool at_first, bool first, bool last) {
            a.acquire();
            b.acquire();
            if (last) place.acquire();
            const float *start = nullptr;
            if (Place::begins && at_first && op.bias && full) start = kept.bias + column * 8 * groups % bias_floats;
            multiply(place, a.data(), b.data(), start, kept.sums, first, last, op);
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
                        const unsigned at = (column + t % op.acc_b) * 8 * groups % weight_floats;
                        scale(place, a.data(), kept.weight + at, op.holds_weight);
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

void mme_first(Operand &a, Operand &b, output_cascade<accfloat> *out, Ops ops) { run(First{out}, a, b, ops); }

void mme_middle(Operand &a, Operand &b, input_cascade<accfloat> *in, output_cascade<accfloat> *out, Ops ops) {
    run(Middle{in, out}, a, b, ops);
}

void mme_last(Operand &a, Operand &b, input_cascade<accfloat> *in, Result &c, Ops ops) { run(Last{in, c}, a, b, ops); }

}  // namespace rsn::mme
