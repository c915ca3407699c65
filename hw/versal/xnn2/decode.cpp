// Second-level decoders: mOPs to uOPs (contract 1.3). All keep a window of mOPs and loop over it; those of DDR and LPDDR
// also over the chunks of each mOP. One uOP per cycle if the unit takes it.
// SPDX-License-Identifier: Apache-2.0
#include "../pl/decoder.h"

#include "units.h"

namespace rsn::xnn {

void expand(const Ddr &mop, std::uint16_t iteration, hls::stream<DdrTransfer> &uops) {
    DdrTransfer uop = {false, mop.peer, mop.addr + iteration * mop.reuse_stride, mop.size};
    give_chunks(uop, mop.chunks, mop.chunk_stride, uops);
}

void expand(const Lpddr &mop, std::uint16_t iteration, hls::stream<LpddrTransfer> &uops) {
    LpddrTransfer uop = {false, mop.to, mop.lanes, mop.addr + iteration * mop.reuse_stride, mop.size};
    give_chunks(uop, mop.chunks, mop.chunk_stride, uops);
}

void decode_ddr(hls::stream<Mop<Ddr::words>> &mops, hls::stream<DdrTransfer> &uops) { decode_chunks<Ddr>(mops, uops); }

void decode_lpddr(hls::stream<Mop<Lpddr::words>> &mops, hls::stream<LpddrTransfer> &uops) {
    decode_chunks<Lpddr>(mops, uops);
}

template <unsigned Words>
void decode(hls::stream<Mop<Words>> &mops, hls::stream<Uop<Words>> &uops) {
    decode_windows(mops, uops);
}
template void decode<1>(hls::stream<Mop<1>> &mops, hls::stream<Uop<1>> &uops);
template void decode<2>(hls::stream<Mop<2>> &mops, hls::stream<Uop<2>> &uops);
template void decode<3>(hls::stream<Mop<3>> &mops, hls::stream<Uop<3>> &uops);

}  // namespace rsn::xnn
