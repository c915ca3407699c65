// Activations of a MemC, in place, before a store: over dim1 rows and all columns, or, where their results are multiplied
// by the columns behind, over those that are stored.
//
// Three of them are x * logistic(x * p(x * x)), with a polynomial p of their own, so that an element takes one exp and
// one division: silu with p = 1; gelu in its tanh form, where p has two terms; gelu with erf, where p is fitted to the
// logit of the normal distribution within 7e-8 of gelu up to |x| = 6, beyond which gelu is x or 0 in float32.
//
// A 4x8 patch in rounds::activation rounds, of 32 / rounds::activation elements each.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_ACTIVATION_H
#define RSN_PL_ACTIVATION_H

#include "mem_c.h"

namespace rsn::xnn {

enum class Activation : std::uint8_t { gelu_tanh, gelu_erf, relu, silu, identity };

constexpr unsigned terms = 7;
constexpr float logit[][terms] = {
    {1.5957691216f, 0.071354816273f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f},  // 2 * 0.7978845608 * (1 + 0.044715 x^2)
    {1.59576845f, 0.0726685673f, -6.62599487e-5f, -1.10480330e-4f, 7.93821982e-6f, -2.66892897e-7f, 3.61123420e-9f},
    {1.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f},
};
constexpr float outermost = 36.0f;  // x * x, for the polynomial

inline float activated(float x, Activation which) {
#pragma HLS INLINE
    const unsigned row = which == Activation::gelu_tanh ? 0 : which == Activation::gelu_erf ? 1 : 2;
    const float square = x * x, u = square < outermost ? square : outermost;
    float p = logit[row][terms - 1];
horner:
    for (unsigned i = terms - 1; i-- > 0;) {
#pragma HLS UNROLL
        p = p * u + logit[row][i];
    }
    const float smooth = x / (1.0f + exp_of(-(x * p)));
    switch (which) {
    case Activation::relu: return x < 0.0f ? 0.0f : x;
    case Activation::identity: return x;
    default: return smooth;
    }
}

// gate: 0, or the columns to walk over; each is then multiplied by the column so many behind it, which stays what it is.
// A buffer has one port to read, and the patch of the gates is needed from the first round on. So it is read in the
// second round of the patch before, that of the first patch ahead of the loop.
inline void activate(MemCBuffer &buffer, Counter rows, std::uint8_t which, Counter gate) {
    constexpr unsigned elements = elements_of(rounds::activation);
    static_assert(rounds::activation > 1, "a round to read each of two patches");
    const Counter cols = gate ? gate : Counter(mem_c_cols);
    Walk<> ahead(rows);
    Beat in, out, factors, following = get_beat<by_rows, mem_c_cols>(buffer, 0, gate);
activations:
    for (Walk<rounds::activation> at(rows); at.more(cols); at.next()) {
#pragma HLS PIPELINE II=ii::activation style=flp
#pragma HLS DEPENDENCE variable=buffer type=inter dependent=false
        if (at.begins()) {
            factors = following;
            ahead.next_patch();
        }
        if (at.round < 2) {
            const bool begins = at.begins();
            const Counter row = begins ? at.row : ahead.row;
            const unsigned col = begins ? unsigned(at.col) : ahead.col + gate;
            const Beat patch = get_beat<by_rows, mem_c_cols>(buffer, row, col);
            if (begins) in = patch;
            else following = patch;
        }
        float part[elements];
        for (unsigned i = 0; i < elements; ++i) {
#pragma HLS UNROLL
            const float active = activated(in[i], static_cast<Activation>(which));
            part[i] = gate ? active * factors[i] : active;
        }
        shift<elements>(in);
        shift<elements>(factors);
        shift_in(out, part);
        if (at.ends()) put_beat<by_rows, mem_c_cols>(buffer, at.row, at.col, out);
    }
}

}  // namespace rsn::xnn

#endif  // RSN_PL_ACTIVATION_H
