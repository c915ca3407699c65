// Stands in for AMD's header of this name where it is not installed: accumulators on their way along a cascade.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_AIE_ADF_HPP
#define RSN_CSIM_AIE_ADF_HPP

#include "aie.hpp"

template <unsigned N>
aie::accum<accfloat, N> readincr_v(input_cascade<accfloat> *from) {
    static_assert(N * sizeof(float) == sizeof(adf::native::Word), "a cascade is 8 floats wide");
    const adf::native::Word word = from->stream->read();
    return aie::accum<accfloat, N>(aie::load_v<N>(&word[0]));
}

template <unsigned N>
void writeincr(output_cascade<accfloat> *to, const aie::accum<accfloat, N> &sums) {
    adf::native::Word word;
    aie::store_v(&word[0], sums.template to_vector<float>());
    to->stream->write(word);
}

#endif  // RSN_CSIM_AIE_ADF_HPP
