// What an MME does by its op list. Each machine has its own.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_CSIM_MME_H
#define RSN_CSIM_MME_H

#include <string>
#include <vector>

#include "../pl/types.h"

namespace rsn::csim {

// a, b, c: 16 lanes each, two tiles deep.
void mme(
    hls::stream<xnn::Lane> *a, hls::stream<xnn::Lane> *b, hls::stream<xnn::Lane> *c, const std::vector<xnn::Word> &ops);

// Name of the stream of an MME's operand, A or B, or of its results, C.
std::string stream_of_mme(char what, unsigned mme);

// Makes of a list the one of a tile of the array. holds: its columns of a weight are those of A that it has.
void mark_weight_holder(std::vector<xnn::Word> &ops, bool holds);

}  // namespace rsn::csim

#endif  // RSN_CSIM_MME_H
