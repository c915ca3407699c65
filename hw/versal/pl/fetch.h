// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_FETCH_H
#define RSN_PL_FETCH_H

#include "types.h"

namespace rsn::xnn {

void fetch(const Word *instructions, hls::stream<Word> &words);

}  // namespace rsn::xnn

#endif  // RSN_PL_FETCH_H
