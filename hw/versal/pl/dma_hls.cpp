// The block diagram: fetch and dispatcher, a decoder per unit, the units, and the streams between them.
//
// Depths are those of contract section 2, in beats where it counts tiles: a writer may be in the middle of a tile here,
// where the simulator moves whole tiles. That changes no verdict. A unit holds a single beat outside the streams, and whoever
// waits for a tile, be it an MME, a MemC or the end of a uOP, waits for all of its 512 beats; so a network that stops
// at one granularity stops at the other.
// SPDX-License-Identifier: Apache-2.0
#include "dma_hls.h"

#include "dataflow.h"
#include "units.h"

namespace rsn::xnn {

// Which datapath and formats this machine was built for.
void announce(std::uint64_t *fingerprint) { *fingerprint = fingerprint_bits; }

}  // namespace rsn::xnn

using namespace rsn::xnn;

extern "C" void dma_hls(
    Port lpddr0, Port lpddr1, Port ddr0, Port ddr1,
    const Word *instructions, std::uint64_t *fingerprint,
    hls::stream<Lane> a0[lanes], hls::stream<Lane> a1[lanes],
    hls::stream<Lane> a2[lanes], hls::stream<Lane> a3[lanes],
    hls::stream<Lane> a4[lanes], hls::stream<Lane> a5[lanes],
    hls::stream<Lane> b0[lanes], hls::stream<Lane> b1[lanes],
    hls::stream<Lane> b2[lanes], hls::stream<Lane> b3[lanes],
    hls::stream<Lane> b4[lanes], hls::stream<Lane> b5[lanes],
    hls::stream<Lane> c0[lanes], hls::stream<Lane> c1[lanes],
    hls::stream<Lane> c2[lanes], hls::stream<Lane> c3[lanes],
    hls::stream<Lane> c4[lanes], hls::stream<Lane> c5[lanes]) {
#pragma HLS INTERFACE m_axi port=lpddr0 bundle=lpddr0 offset=slave max_read_burst_length=64 num_read_outstanding=8
#pragma HLS INTERFACE m_axi port=lpddr1 bundle=lpddr1 offset=slave max_read_burst_length=64 num_read_outstanding=8
#pragma HLS INTERFACE m_axi port=ddr0 bundle=ddr0 offset=slave max_read_burst_length=64 num_read_outstanding=8 \
    max_write_burst_length=64 num_write_outstanding=8
#pragma HLS INTERFACE m_axi port=ddr1 bundle=ddr1 offset=slave max_read_burst_length=64 num_read_outstanding=8 \
    max_write_burst_length=64 num_write_outstanding=8
#pragma HLS INTERFACE m_axi port=instructions bundle=instructions offset=slave
#pragma HLS INTERFACE s_axilite port=lpddr0
#pragma HLS INTERFACE s_axilite port=lpddr1
#pragma HLS INTERFACE s_axilite port=ddr0
#pragma HLS INTERFACE s_axilite port=ddr1
#pragma HLS INTERFACE s_axilite port=instructions
#pragma HLS INTERFACE s_axilite port=fingerprint
#pragma HLS INTERFACE s_axilite port=return
#pragma HLS INTERFACE axis port=a0
#pragma HLS INTERFACE axis port=a1
#pragma HLS INTERFACE axis port=a2
#pragma HLS INTERFACE axis port=a3
#pragma HLS INTERFACE axis port=a4
#pragma HLS INTERFACE axis port=a5
#pragma HLS INTERFACE axis port=b0
#pragma HLS INTERFACE axis port=b1
#pragma HLS INTERFACE axis port=b2
#pragma HLS INTERFACE axis port=b3
#pragma HLS INTERFACE axis port=b4
#pragma HLS INTERFACE axis port=b5
#pragma HLS INTERFACE axis port=c0
#pragma HLS INTERFACE axis port=c1
#pragma HLS INTERFACE axis port=c2
#pragma HLS INTERFACE axis port=c3
#pragma HLS INTERFACE axis port=c4
#pragma HLS INTERFACE axis port=c5
#pragma HLS DATAFLOW

    // Off-chip memory to and from the Mems, in words.
    hls::stream<Beat, depth::DDR_to_MemA0> ddr_to_mem_a0("DDR->MemA0");
    hls::stream<Beat, depth::DDR_to_MemA1> ddr_to_mem_a1("DDR->MemA1");
    hls::stream<Beat, depth::DDR_to_MemA2> ddr_to_mem_a2("DDR->MemA2");
    hls::stream<Beat, depth::DDR_to_MemB0> ddr_to_mem_b0("DDR->MemB0");
    hls::stream<Beat, depth::DDR_to_MemB1> ddr_to_mem_b1("DDR->MemB1");
    hls::stream<Beat, depth::DDR_to_MemB2> ddr_to_mem_b2("DDR->MemB2");
    hls::stream<Beat, depth::LPDDR_to_MemB0> lpddr_to_mem_b0("LPDDR->MemB0");
    hls::stream<Beat, depth::LPDDR_to_MemB1> lpddr_to_mem_b1("LPDDR->MemB1");
    hls::stream<Beat, depth::MemC0_to_DDR> mem_c0_to_ddr("MemC0->DDR");
    hls::stream<Beat, depth::MemC1_to_DDR> mem_c1_to_ddr("MemC1->DDR");
    hls::stream<Beat, depth::MemC2_to_DDR> mem_c2_to_ddr("MemC2->DDR");
    hls::stream<Beat, depth::MemC3_to_DDR> mem_c3_to_ddr("MemC3->DDR");
    hls::stream<Beat, depth::MemC4_to_DDR> mem_c4_to_ddr("MemC4->DDR");
    hls::stream<Beat, depth::MemC5_to_DDR> mem_c5_to_ddr("MemC5->DDR");
    // Mems to the Meshes, in beats.
    hls::stream<Beat, depth::MemA0_to_MeshA * beats_per_tile> mem_a0_to_mesh_a("MemA0->MeshA");
    hls::stream<Beat, depth::MemA1_to_MeshA * beats_per_tile> mem_a1_to_mesh_a("MemA1->MeshA");
    hls::stream<Beat, depth::MemA2_to_MeshA * beats_per_tile> mem_a2_to_mesh_a("MemA2->MeshA");
    hls::stream<Beat, depth::MemC0_to_MeshA * beats_per_tile> mem_c0_to_mesh_a("MemC0->MeshA");
    hls::stream<Beat, depth::MemC1_to_MeshA * beats_per_tile> mem_c1_to_mesh_a("MemC1->MeshA");
    hls::stream<Beat, depth::MemC2_to_MeshA * beats_per_tile> mem_c2_to_mesh_a("MemC2->MeshA");
    hls::stream<Beat, depth::MemC3_to_MeshA * beats_per_tile> mem_c3_to_mesh_a("MemC3->MeshA");
    hls::stream<Beat, depth::MemB0_to_MeshB * beats_per_tile> mem_b0_to_mesh_b("MemB0->MeshB");
    hls::stream<Beat, depth::MemB1_to_MeshB * beats_per_tile> mem_b1_to_mesh_b("MemB1->MeshB");
    hls::stream<Beat, depth::MemB2_to_MeshB * beats_per_tile> mem_b2_to_mesh_b("MemB2->MeshB");
    // Neighbours.
    hls::stream<Partial, depth::MemC0_to_MemC1_norm> mem_c0_to_mem_c1_norm("MemC0->MemC1.norm");
    hls::stream<float, depth::MemC0_to_MemC1_softmax> mem_c0_to_mem_c1_softmax("MemC0->MemC1.softmax");
    hls::stream<Partial, depth::MemC1_to_MemC0_norm> mem_c1_to_mem_c0_norm("MemC1->MemC0.norm");
    hls::stream<float, depth::MemC1_to_MemC0_softmax> mem_c1_to_mem_c0_softmax("MemC1->MemC0.softmax");
    hls::stream<Partial, depth::MemC2_to_MemC3_norm> mem_c2_to_mem_c3_norm("MemC2->MemC3.norm");
    hls::stream<float, depth::MemC2_to_MemC3_softmax> mem_c2_to_mem_c3_softmax("MemC2->MemC3.softmax");
    hls::stream<Partial, depth::MemC3_to_MemC2_norm> mem_c3_to_mem_c2_norm("MemC3->MemC2.norm");
    hls::stream<float, depth::MemC3_to_MemC2_softmax> mem_c3_to_mem_c2_softmax("MemC3->MemC2.softmax");
    hls::stream<Partial, depth::MemC4_to_MemC5_norm> mem_c4_to_mem_c5_norm("MemC4->MemC5.norm");
    hls::stream<Partial, depth::MemC5_to_MemC4_norm> mem_c5_to_mem_c4_norm("MemC5->MemC4.norm");
    // Instructions.
    hls::stream<Word, fetch_depth> words("fetched words");
    hls::stream<Mop<ddr_words>, mop_fifo_depth> ddr_mops("mOP FIFO of DDR");
    hls::stream<Mop<Lpddr::words>, mop_fifo_depth> lpddr_mops("mOP FIFO of LPDDR");
    hls::stream<Mop<mem_a_words>, mop_fifo_depth> mem_a0_mops("mOP FIFO of MemA0");
    hls::stream<Mop<mem_a_words>, mop_fifo_depth> mem_a1_mops("mOP FIFO of MemA1");
    hls::stream<Mop<mem_a_words>, mop_fifo_depth> mem_a2_mops("mOP FIFO of MemA2");
    hls::stream<Mop<mem_b_words>, mop_fifo_depth> mem_b0_mops("mOP FIFO of MemB0");
    hls::stream<Mop<mem_b_words>, mop_fifo_depth> mem_b1_mops("mOP FIFO of MemB1");
    hls::stream<Mop<mem_b_words>, mop_fifo_depth> mem_b2_mops("mOP FIFO of MemB2");
    hls::stream<Mop<MeshA::words>, mop_fifo_depth> mesh_a_mops("mOP FIFO of MeshA");
    hls::stream<Mop<MeshB::words>, mop_fifo_depth> mesh_b_mops("mOP FIFO of MeshB");
    hls::stream<Mop<mem_c_words>, mop_fifo_depth> mem_c0_mops("mOP FIFO of MemC0");
    hls::stream<Mop<mem_c_words>, mop_fifo_depth> mem_c1_mops("mOP FIFO of MemC1");
    hls::stream<Mop<mem_c_words>, mop_fifo_depth> mem_c2_mops("mOP FIFO of MemC2");
    hls::stream<Mop<mem_c_words>, mop_fifo_depth> mem_c3_mops("mOP FIFO of MemC3");
    hls::stream<Mop<mem_c_words>, mop_fifo_depth> mem_c4_mops("mOP FIFO of MemC4");
    hls::stream<Mop<mem_c_words>, mop_fifo_depth> mem_c5_mops("mOP FIFO of MemC5");
    hls::stream<DdrTransfer, uop_fifo_depth> ddr_uops("uOP FIFO of DDR");
    hls::stream<Transfer, uop_fifo_depth> lpddr_uops("uOP FIFO of LPDDR");
    hls::stream<Uop<mem_a_words>, uop_fifo_depth> mem_a0_uops("uOP FIFO of MemA0");
    hls::stream<Uop<mem_a_words>, uop_fifo_depth> mem_a1_uops("uOP FIFO of MemA1");
    hls::stream<Uop<mem_a_words>, uop_fifo_depth> mem_a2_uops("uOP FIFO of MemA2");
    hls::stream<Uop<mem_b_words>, uop_fifo_depth> mem_b0_uops("uOP FIFO of MemB0");
    hls::stream<Uop<mem_b_words>, uop_fifo_depth> mem_b1_uops("uOP FIFO of MemB1");
    hls::stream<Uop<mem_b_words>, uop_fifo_depth> mem_b2_uops("uOP FIFO of MemB2");
    hls::stream<Uop<MeshA::words>, uop_fifo_depth> mesh_a_uops("uOP FIFO of MeshA");
    hls::stream<Uop<MeshB::words>, uop_fifo_depth> mesh_b_uops("uOP FIFO of MeshB");
    hls::stream<Uop<mem_c_words>, uop_fifo_depth> mem_c0_uops("uOP FIFO of MemC0");
    hls::stream<Uop<mem_c_words>, uop_fifo_depth> mem_c1_uops("uOP FIFO of MemC1");
    hls::stream<Uop<mem_c_words>, uop_fifo_depth> mem_c2_uops("uOP FIFO of MemC2");
    hls::stream<Uop<mem_c_words>, uop_fifo_depth> mem_c3_uops("uOP FIFO of MemC3");
    hls::stream<Uop<mem_c_words>, uop_fifo_depth> mem_c4_uops("uOP FIFO of MemC4");
    hls::stream<Uop<mem_c_words>, uop_fifo_depth> mem_c5_uops("uOP FIFO of MemC5");

    RSN_DATAFLOW();
    announce(fingerprint);
    RSN_PROCESS("fetch", fetch, instructions, words);
    RSN_PROCESS("dispatcher", dispatch, words, ddr_mops, lpddr_mops, mem_a0_mops, mem_a1_mops, mem_a2_mops,
                mem_b0_mops, mem_b1_mops, mem_b2_mops, mem_c0_mops, mem_c1_mops, mem_c2_mops, mem_c3_mops,
                mem_c4_mops, mem_c5_mops, mesh_a_mops, mesh_b_mops);
    RSN_PROCESS("decoder DDR", decode_ddr, ddr_mops, ddr_uops);
    RSN_PROCESS("decoder LPDDR", decode_lpddr, lpddr_mops, lpddr_uops);
    RSN_PROCESS("decoder MemA0", decode_mem_a, mem_a0_mops, mem_a0_uops);
    RSN_PROCESS("decoder MemA1", decode_mem_a, mem_a1_mops, mem_a1_uops);
    RSN_PROCESS("decoder MemA2", decode_mem_a, mem_a2_mops, mem_a2_uops);
    RSN_PROCESS("decoder MemB0", decode_mem_b, mem_b0_mops, mem_b0_uops);
    RSN_PROCESS("decoder MemB1", decode_mem_b, mem_b1_mops, mem_b1_uops);
    RSN_PROCESS("decoder MemB2", decode_mem_b, mem_b2_mops, mem_b2_uops);
    RSN_PROCESS("decoder MemC0", decode_mem_c, mem_c0_mops, mem_c0_uops);
    RSN_PROCESS("decoder MemC1", decode_mem_c, mem_c1_mops, mem_c1_uops);
    RSN_PROCESS("decoder MemC2", decode_mem_c, mem_c2_mops, mem_c2_uops);
    RSN_PROCESS("decoder MemC3", decode_mem_c, mem_c3_mops, mem_c3_uops);
    RSN_PROCESS("decoder MemC4", decode_mem_c, mem_c4_mops, mem_c4_uops);
    RSN_PROCESS("decoder MemC5", decode_mem_c, mem_c5_mops, mem_c5_uops);
    RSN_PROCESS("decoder MeshA", decode_mesh, mesh_a_mops, mesh_a_uops);
    RSN_PROCESS("decoder MeshB", decode_mesh, mesh_b_mops, mesh_b_uops);
    RSN_PROCESS("DDR", ddr, ddr_uops, ddr0, ddr1, ddr_to_mem_a0, ddr_to_mem_a1, ddr_to_mem_a2, ddr_to_mem_b0,
                ddr_to_mem_b1, ddr_to_mem_b2, mem_c0_to_ddr, mem_c1_to_ddr, mem_c2_to_ddr, mem_c3_to_ddr,
                mem_c4_to_ddr, mem_c5_to_ddr);
    RSN_PROCESS("LPDDR", lpddr, lpddr_uops, lpddr0, lpddr1, lpddr_to_mem_b0, lpddr_to_mem_b1);
    RSN_PROCESS("MemA0", mem_a, mem_a0_uops, ddr_to_mem_a0, mem_a0_to_mesh_a);
    RSN_PROCESS("MemA1", mem_a, mem_a1_uops, ddr_to_mem_a1, mem_a1_to_mesh_a);
    RSN_PROCESS("MemA2", mem_a, mem_a2_uops, ddr_to_mem_a2, mem_a2_to_mesh_a);
    RSN_PROCESS("MemB0", mem_b, mem_b0_uops, lpddr_to_mem_b0, ddr_to_mem_b0, mem_b0_to_mesh_b);
    RSN_PROCESS("MemB1", mem_b, mem_b1_uops, lpddr_to_mem_b1, ddr_to_mem_b1, mem_b1_to_mesh_b);
    RSN_PROCESS("MemB2", mem_b2, mem_b2_uops, ddr_to_mem_b2, mem_b2_to_mesh_b);
    RSN_PROCESS("MeshA", mesh_a, mesh_a_uops, mem_a0_to_mesh_a, mem_a1_to_mesh_a, mem_a2_to_mesh_a,
                mem_c0_to_mesh_a, mem_c1_to_mesh_a, mem_c2_to_mesh_a, mem_c3_to_mesh_a, a0, a1, a2, a3, a4, a5);
    RSN_PROCESS("MeshB", mesh_b, mesh_b_uops, mem_b0_to_mesh_b, mem_b1_to_mesh_b, mem_b2_to_mesh_b, b0, b1, b2, b3,
                b4, b5);
    RSN_PROCESS("MemC0", mem_c_even, mem_c0_uops, c0, mem_c0_to_ddr, mem_c0_to_mesh_a, mem_c0_to_mem_c1_softmax,
                mem_c1_to_mem_c0_softmax, mem_c0_to_mem_c1_norm, mem_c1_to_mem_c0_norm);
    RSN_PROCESS("MemC1", mem_c_odd, mem_c1_uops, c1, mem_c1_to_ddr, mem_c1_to_mesh_a, mem_c1_to_mem_c0_softmax,
                mem_c0_to_mem_c1_softmax, mem_c1_to_mem_c0_norm, mem_c0_to_mem_c1_norm);
    RSN_PROCESS("MemC2", mem_c_even, mem_c2_uops, c2, mem_c2_to_ddr, mem_c2_to_mesh_a, mem_c2_to_mem_c3_softmax,
                mem_c3_to_mem_c2_softmax, mem_c2_to_mem_c3_norm, mem_c3_to_mem_c2_norm);
    RSN_PROCESS("MemC3", mem_c_odd, mem_c3_uops, c3, mem_c3_to_ddr, mem_c3_to_mesh_a, mem_c3_to_mem_c2_softmax,
                mem_c2_to_mem_c3_softmax, mem_c3_to_mem_c2_norm, mem_c2_to_mem_c3_norm);
    RSN_PROCESS("MemC4", mem_c_last_even, mem_c4_uops, c4, mem_c4_to_ddr, mem_c4_to_mem_c5_norm, mem_c5_to_mem_c4_norm);
    RSN_PROCESS("MemC5", mem_c_last_odd, mem_c5_uops, c5, mem_c5_to_ddr, mem_c5_to_mem_c4_norm, mem_c4_to_mem_c5_norm);
}
