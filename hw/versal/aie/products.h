// What control programs of an MME's tiles are made of: a tile's place in its cascade, and a product.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_AIE_PRODUCTS_H
#define RSN_AIE_PRODUCTS_H

#include <aie_api/aie.hpp>
#include <aie_api/aie_adf.hpp>

#include "kernels.h"

// For AMD's compiler: what is read here and what is written through another such pointer may change places. Sums over k
// are read and written at the same addresses, but each step reads its own before it writes them, and no others.
#ifdef RSN_CSIM
#define RSN_APART
#else
#define RSN_APART __restrict
#endif

namespace rsn::mme {

using Vector = aie::vector<float, 8>;
using Sums = aie::accum<accfloat, 8>;

constexpr unsigned groups = 4;  // of 8 columns
constexpr unsigned rows = 32;
constexpr unsigned depth = 32;  // k

// The place of a tile in its cascade is a type: where sums come from and go to. `receive` takes eight results that the
// tile before has handed on, `emit` hands on eight; `at` is where they lie in a data tile. Sums over k that are not
// complete lie in `sums`.
struct First {
    static constexpr bool begins = true;
    output_cascade<accfloat> *out;
    alignas(32) float kept[window];

    explicit First(output_cascade<accfloat> *out) : out(out) {}
    void acquire() {}
    void release() {}
    float *sums() { return kept; }
    Vector receive() { return aie::zeros<float, 8>(); }
    Vector plus(Vector own) { return own; }
    void emit(Vector sums, float *) { writeincr(out, Sums(sums)); }
    void hand_on(Vector &weight) { writeincr(out, Sums(weight)); }
    void undefined(unsigned) {}
};

struct Middle {
    static constexpr bool begins = false;
    input_cascade<accfloat> *in;
    output_cascade<accfloat> *out;
    alignas(32) float kept[window];

    Middle(input_cascade<accfloat> *in, output_cascade<accfloat> *out) : in(in), out(out) {}
    void acquire() {}
    void release() {}
    float *sums() { return kept; }
    Vector receive() { return readincr_v<8>(in).to_vector<float>(); }
    Vector plus(Vector own) { return aie::add(receive(), own); }
    void emit(Vector sums, float *) { writeincr(out, Sums(sums)); }
    void hand_on(Vector &weight) {
        weight = receive();
        writeincr(out, Sums(weight));
    }
    void undefined(unsigned) {}
};

// Its own sums lie in the buffer that will hold the result: its memory has no room for more (kernels.h).
struct Last {
    static constexpr bool begins = false;
    input_cascade<accfloat> *in;
    Result &c;

    Last(input_cascade<accfloat> *in, Result &c) : in(in), c(c) {}
    void acquire() { c.acquire(); }
    void release() { c.release(); }
    float *sums() { return c.data(); }
    Vector receive() { return readincr_v<8>(in).to_vector<float>(); }
    Vector plus(Vector own) { return aie::add(receive(), own); }
    void emit(Vector sums, float *at) { aie::store_v(at, sums); }
    void hand_on(Vector &weight) { weight = receive(); }
    // Columns beyond N leave as they are; natively as NaN, so that whoever reads them shows.
    void undefined([[maybe_unused]] unsigned at) {
#ifdef RSN_CSIM
        emit(aie::broadcast<float, 8>(__builtin_nanf("")), c.data() + at);
#endif
    }
};

// Where the sums of a product start: eight floats for a group of columns and a row, so many floats from the next ones.
struct Start {
    const float *from;
    unsigned per_group, per_row;
};

// Computes one product, or one of several that are summed: of the first K of k, `used` groups of columns. Emits: it is
// the last of its sum; any other leaves its result in `sums`.
//
// Two rows and eight columns are 64 multiply-adds of eight floats, one a cycle: two sums take turns, because a float
// accumulation takes two cycles (UG1079, "Floating-Point Operations"), each in the order of increasing k. An element of
// a vector of 16 times a vector of 8 is one instruction (AIE API, `mac` with an element as its first factor).
//
// Registers: eight of 256 bit (AM009, "Register Files"). The sums take two, A two, or four while its next 16 floats are
// loaded, B two. Loads: 32 vectors of B, 8 of A, 2 of `start` in 64 cycles, of 128 that are possible. With an addition
// to each sum of the cascade, a step takes 66 cycles or more, and a product of 64 steps about 4300.
//
// A step is one basic block, so that it can be a software pipeline. A stall of the cascade stalls all of it.
//
// Not inlined, because it is called in two places: a second copy of its three versions would not fit the program memory.
template <unsigned K, bool Emits, typename Place>
__attribute__((noinline)) void multiply(
    Place &place, const float *RSN_APART a, const float *RSN_APART b, Start start, float *RSN_APART sums, unsigned used
) {
columns:
    for (unsigned g = 0; g < used; ++g) chess_loop_range(groups / 2, groups) {
        const float *RSN_APART from = start.from + g * start.per_group;
        const float *RSN_APART pair = a;
        const float *const column = b + g * depth * 8;
        float *RSN_APART to = sums + g * rows * 8;
    two_rows:
        for (unsigned r = 0; r < rows; r += 2) chess_prepare_for_pipelining chess_loop_range(rows / 2, rows / 2) {
            Sums upper(aie::load_v<8>(from)), lower(aie::load_v<8>(from + start.per_row));
        eight_k:
            for (unsigned k = 0; k < K; k += 8) chess_unroll_loop(*) {
                const auto x = aie::load_v<16>(pair + 2 * k);  // two blocks of two rows by four k
            one_k:
                for (unsigned i = 0; i < 8; ++i) chess_unroll_loop(*) {
                    const Vector z = aie::load_v<8>(column + 8 * (k + i));
                    const unsigned at = 8 * (i / 4) + i % 4;
                    upper = aie::mac(upper, x[at], z);
                    lower = aie::mac(lower, x[at + 4], z);
                }
            }
            const Vector first = upper.to_vector<float>(), second = lower.to_vector<float>();
            if constexpr (Emits) {
                place.emit(place.plus(first), to);
                place.emit(place.plus(second), to + 8);
            } else {
                aie::store_v(to, first);
                aie::store_v(to + 8, second);
            }
            from += 2 * start.per_row;
            pair += 2 * depth;
            to += 16;
        }
    }
    if constexpr (!Emits) return;
beyond:
    for (unsigned at = used * rows * 8; at < window; at += 8) place.undefined(at);
}

}  // namespace rsn::mme

#endif  // RSN_AIE_PRODUCTS_H
