// An MME in one process: what its 64 AIE tiles compute, in their order of summation, so that results are the same bits.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_MME_H
#define RSN_CSIM_MME_H

#include <vector>

#include "../pl/types.h"

namespace rsn::csim {

// a, b, c: 16 lanes each, two tiles deep.
void mme(
    hls::stream<xnn::Lane> *a, hls::stream<xnn::Lane> *b, hls::stream<xnn::Lane> *c, const std::vector<xnn::Word> &ops);

}  // namespace rsn::csim

#endif  // RSN_CSIM_MME_H
