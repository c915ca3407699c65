// What a dispatcher takes and gives.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_DISPATCHER_H
#define RSN_PL_DISPATCHER_H

#include "counter.h"
#include "dataflow.h"
#include "types.h"

namespace rsn::xnn {

// Words of a mOP under this header. Under a terminator there is none.
constexpr unsigned size_of(const Header &header) { return header.last ? 0 : mop_words[header.opcode]; }

// The next mOP, of so many words.
template <unsigned Words>
Mop<Words> take(const Header &header, unsigned size, hls::stream<Word> &words) {
    Mop<Words> mop = {header.last, Format(header.opcode), header.window, header.reuse, {}};
take_words:
    for (Counter i = 0; i < size; ++i) {
#pragma HLS PIPELINE II=1 style=flp
        mop.words[i] = words.read();
    }
    return mop;
}

// Waits for room in one FIFO. A function of its own, as those in mem_c.h: HLS could put writes to several streams into
// one state, which waits for room in all of them. A unit would then lack a mOP for as long as another has no room, and
// the other may be waiting for that unit.
template <unsigned Words>
void give(const Mop<Words> &mop, hls::stream<Mop<Words>> &to) {
#pragma HLS INLINE off
    to << mop;
}

}  // namespace rsn::xnn

#endif  // RSN_PL_DISPATCHER_H
