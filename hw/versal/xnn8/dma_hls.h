// The kernel: all of the machine of xnn8 but its tiles.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_XNN8_DMA_HLS_H
#define RSN_XNN8_DMA_HLS_H

#include "units.h"

namespace rsn::xnn8::pl {

// lpddr0 to 3 and ddr0 to 3: the same buffer, once per AXI port. instructions: the image. fingerprint: set to
// fingerprint_bits by every run. Of an engine, a<e>: to both tiles of the pairs of each lane; b<e>: of each column;
// c<e>: packets from even and odd columns of each lane.
extern "C" void dma_hls(
    MemoryPort lpddr0, MemoryPort lpddr1, MemoryPort lpddr2, MemoryPort lpddr3, MemoryPort ddr0, MemoryPort ddr1,
    MemoryPort ddr2, MemoryPort ddr3, const Word *instructions, uint64_t *fingerprint,
    hls::stream<Beat128> a0[lanes][2],
    hls::stream<Beat128> a1[lanes][2], hls::stream<Beat128> a2[lanes][2], hls::stream<Beat128> b0[lanes][2],
    hls::stream<Beat128> b1[lanes][2], hls::stream<Beat128> b2[lanes][2], hls::stream<Beat128> c0[lanes][2],
    hls::stream<Beat128> c1[lanes][2], hls::stream<Beat128> c2[lanes][2]);

}  // namespace rsn::xnn8::pl

#endif  // RSN_XNN8_DMA_HLS_H
