// Fetch: the image, word by word, to the dispatcher (contract 1).
// SPDX-License-Identifier: Apache-2.0
#include "fetch.h"

#include "dataflow.h"

namespace rsn::xnn {

void fetch(const Word *instructions, hls::stream<Word> &words) {
    RSN_STALLS();
    const Word count = image_words_before_packets + instructions[0];
fetch_words:
    for (Word i = 0; i < count; ++i) {
#pragma HLS PIPELINE II=ii::fetch style=stp
        words << instructions[i];
    }
}

}  // namespace rsn::xnn
