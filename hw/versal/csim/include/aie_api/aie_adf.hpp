// Stands in for AMD's header of this name where it is not installed: accumulators on their way along a cascade.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_AIE_ADF_HPP
#define RSN_CSIM_AIE_ADF_HPP

#include "aie.hpp"

template <unsigned N, typename Tag>
aie::accum<Tag, N> readincr_v(input_cascade<Tag> *from) {
    static_assert(N == 8, "a cascade is eight sums wide");
    const auto word = from->stream->read();
    if constexpr (std::is_same_v<Tag, acc48>) {
        aie::accum<Tag, N> out;
        for (unsigned i = 0; i < N; ++i) out.set(i, word[i]);
        return out;
    } else {
        return aie::accum<Tag, N>(aie::load_v<N>(&word[0]));
    }
}

template <unsigned N, typename Tag>
void writeincr(output_cascade<Tag> *to, const aie::accum<Tag, N> &sums) {
    static_assert(N == 8, "a cascade is eight sums wide");
    typename adf::native::Cascade<Tag>::Word word;
    if constexpr (std::is_same_v<Tag, acc48>)
        for (unsigned i = 0; i < N; ++i) word[i] = sums.get(i);
    else aie::store_v(&word[0], sums.template to_vector<float>());
    to->stream->write(word);
}

#endif  // RSN_CSIM_AIE_ADF_HPP
