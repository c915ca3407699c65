// Decoders that keep a window of mOPs and loop over it (contract 1.3).
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_DECODER_H
#define RSN_PL_DECODER_H

#include "counter.h"
#include "dataflow.h"
#include "types.h"

namespace rsn::xnn {

template <unsigned Words>
Uop<Words> uop_of(const Mop<Words> &mop) {
#pragma HLS INLINE
    Uop<Words> uop = {mop.last, mop.format, {}};
uop_words:
    for (unsigned i = 0; i < Words; ++i) {
#pragma HLS UNROLL
        uop.words[i] = mop.words[i];
    }
    return uop;
}

// Reads the mOPs of the packet that begins with `first`. The next packet stays unread until this one is issued.
template <unsigned Words>
void collect(const Mop<Words> &first, hls::stream<Mop<Words>> &mops, Mop<Words> window[max_window]) {
    window[0] = first;
collect_mops:
    for (Counter i = 1; i < first.window; ++i) {
#pragma HLS PIPELINE II=1 style=flp
        window[i] = mops.read();
    }
}

// uOPs that differ in their address alone.
template <typename Transfer>
void give_chunks(Transfer uop, unsigned count, std::uint32_t stride, hls::stream<Transfer> &uops) {
#pragma HLS INLINE
give_chunks:
    for (Counter chunk = 0; chunk < count; ++chunk) {
#pragma HLS PIPELINE II=ii::decode style=flp
        uops << uop;
        uop.addr += stride;
    }
}

// Of DDR and LPDDR, whose mOPs are several uOPs each: `expand(mop, iteration, uops)` writes them.
template <typename Op, typename Transfer>
void decode_chunks(hls::stream<Mop<Op::words>> &mops, hls::stream<Transfer> &uops) {
    Mop<Op::words> window[max_window];
#pragma HLS AGGREGATE variable=window
    unsigned number = 0;
chunk_windows:
    for (;;) {
        const Mop<Op::words> first = mops.read();
        RSN_UOP(number++);
        if (first.last) break;
        collect(first, mops, window);
    chunk_repeat:
        for (std::uint16_t iteration = 0; iteration < first.reuse; ++iteration) {
        chunk_mops:
            for (unsigned i = 0; i < first.window; ++i) expand(Op::decode(window[i].words), iteration, uops);
        }
    }
    Transfer end = {};
    end.last = true;
    uops << end;
}

// A uOP to a unit, or to each process of one.
template <unsigned Words>
void give_uop(const Uop<Words> &uop, hls::stream<Uop<Words>> &uops) {
#pragma HLS INLINE
    uops << uop;
}
template <unsigned Words, unsigned Processes>
void give_uop(const Uop<Words> &uop, hls::stream<Uop<Words>> (&uops)[Processes]) {
#pragma HLS INLINE
    for (unsigned i = 0; i < Processes; ++i) {
#pragma HLS UNROLL
        uops[i] << uop;  // hls-allow state-order: all processes of a unit have the uOPs before this one
    }
}

// One uOP of each mOP, window after window. Uops: a stream, or one for each process of a unit.
template <unsigned Words, typename Uops>
void decode_windows(hls::stream<Mop<Words>> &mops, Uops &uops) {
    Mop<Words> window[max_window];
#pragma HLS AGGREGATE variable=window
    unsigned number = 0;
windows:
    for (;;) {
        const Mop<Words> first = mops.read();
        RSN_UOP(number++);
        if (first.last) break;
        collect(first, mops, window);
    window_repeat:
        for (unsigned iteration = 0; iteration < first.reuse; ++iteration) {
        window_mops:
            for (Counter i = 0; i < first.window; ++i) {
#pragma HLS PIPELINE II=ii::decode style=flp
                give_uop(uop_of(window[i]), uops);
            }
        }
    }
    give_uop(Uop<Words>{true, 0, {}}, uops);
}

}  // namespace rsn::xnn

#endif  // RSN_PL_DECODER_H
