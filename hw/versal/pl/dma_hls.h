// The kernel: all of the machine but its MMEs.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_DMA_HLS_H
#define RSN_PL_DMA_HLS_H

#include "types.h"

// lpddr0, lpddr1 and ddr0, ddr1: the same buffer twice, once per AXI port. instructions: the image. fingerprint: set to
// fingerprint_bits by every run. a<i>, b<i>: 16 lanes each to MME i; c<i>: from it.
extern "C" void dma_hls(
    rsn::xnn::Port lpddr0, rsn::xnn::Port lpddr1, rsn::xnn::Port ddr0, rsn::xnn::Port ddr1,
    const rsn::xnn::Word *instructions, std::uint64_t *fingerprint,
    hls::stream<rsn::xnn::Lane> a0[rsn::xnn::lanes], hls::stream<rsn::xnn::Lane> a1[rsn::xnn::lanes],
    hls::stream<rsn::xnn::Lane> a2[rsn::xnn::lanes], hls::stream<rsn::xnn::Lane> a3[rsn::xnn::lanes],
    hls::stream<rsn::xnn::Lane> a4[rsn::xnn::lanes], hls::stream<rsn::xnn::Lane> a5[rsn::xnn::lanes],
    hls::stream<rsn::xnn::Lane> b0[rsn::xnn::lanes], hls::stream<rsn::xnn::Lane> b1[rsn::xnn::lanes],
    hls::stream<rsn::xnn::Lane> b2[rsn::xnn::lanes], hls::stream<rsn::xnn::Lane> b3[rsn::xnn::lanes],
    hls::stream<rsn::xnn::Lane> b4[rsn::xnn::lanes], hls::stream<rsn::xnn::Lane> b5[rsn::xnn::lanes],
    hls::stream<rsn::xnn::Lane> c0[rsn::xnn::lanes], hls::stream<rsn::xnn::Lane> c1[rsn::xnn::lanes],
    hls::stream<rsn::xnn::Lane> c2[rsn::xnn::lanes], hls::stream<rsn::xnn::Lane> c3[rsn::xnn::lanes],
    hls::stream<rsn::xnn::Lane> c4[rsn::xnn::lanes], hls::stream<rsn::xnn::Lane> c5[rsn::xnn::lanes]);

#endif  // RSN_PL_DMA_HLS_H
