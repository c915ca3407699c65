// Activations of one element.
//
// Three of them are x * logistic(x * p(x * x)), with a polynomial p of their own, so that an element takes one exp and
// one division: silu with p = 1; gelu in its tanh form, where p has two terms; gelu with erf, where p is fitted to the
// logit of the normal distribution within 7e-8 of gelu up to |x| = 6, beyond which gelu is x or 0 in float32.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_FUNCTIONS_H
#define RSN_PL_FUNCTIONS_H

#include "math.h"

namespace rsn::xnn {

enum class Activation : std::uint8_t { gelu_tanh, gelu_erf, relu, silu, identity };

constexpr unsigned terms = 7;
constexpr float logit[][terms] = {
    {1.5957691216f, 0.071354816273f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f},  // 2 * 0.7978845608 * (1 + 0.044715 x^2)
    {1.59576845f, 0.0726685673f, -6.62599487e-5f, -1.10480330e-4f, 7.93821982e-6f, -2.66892897e-7f, 3.61123420e-9f},
    {1.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f},
};
constexpr float outermost = 36.0f;  // x * x, for the polynomial

// Madds: products with a sum take one DSP.
template <bool Madds = false>
float activated(float x, Activation which) {
#pragma HLS INLINE
    const unsigned row = which == Activation::gelu_tanh ? 0 : which == Activation::gelu_erf ? 1 : 2;
    const float square = x * x, u = square < outermost ? square : outermost;
    float p = logit[row][terms - 1];
horner:
    for (unsigned i = terms - 1; i-- > 0;) {
#pragma HLS UNROLL
        p = Madds ? fmadd(p, u, logit[row][i]) : p * u + logit[row][i];
    }
    const float smooth = x / (1.0f + exp_of(-(x * p)));
    switch (which) {
    case Activation::relu: return x < 0.0f ? 0.0f : x;
    case Activation::identity: return x;
    default: return smooth;
    }
}

}  // namespace rsn::xnn

#endif  // RSN_PL_FUNCTIONS_H
