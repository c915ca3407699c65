// Dispatcher: the image to the mOP FIFOs of the decoders (contract 1).
//
// One packet after the other, strictly in image order; a mOP for several units goes to them in ascending index, and
// each write waits for room. A mOP of n words takes n cycles, and a few to be handed on.
// SPDX-License-Identifier: Apache-2.0
#include "dispatcher.h"
#include "units.h"

namespace rsn::xnn {

void dispatch(hls::stream<Word> &words, hls::stream<Mop<ddr_words>> &ddr, hls::stream<Mop<Lpddr::words>> &lpddr,
              hls::stream<Mop<mem_a_words>> &mem_a0, hls::stream<Mop<mem_a_words>> &mem_a1,
              hls::stream<Mop<mem_a_words>> &mem_a2, hls::stream<Mop<mem_b_words>> &mem_b0,
              hls::stream<Mop<mem_b_words>> &mem_b1, hls::stream<Mop<mem_b_words>> &mem_b2,
              hls::stream<Mop<mem_c_words>> &mem_c0, hls::stream<Mop<mem_c_words>> &mem_c1,
              hls::stream<Mop<mem_c_words>> &mem_c2, hls::stream<Mop<mem_c_words>> &mem_c3,
              hls::stream<Mop<mem_c_words>> &mem_c4, hls::stream<Mop<mem_c_words>> &mem_c5,
              hls::stream<Mop<MeshA::words>> &mesh_a, hls::stream<Mop<MeshB::words>> &mesh_b) {
    words.read();  // their number, which the fetch needs
    const Word packets = words.read();
dispatch_packets:
    for (Word packet = 0; packet < packets; ++packet) {
        const Word raw = words.read();
        RSN_UOP(packet);
        const Header header = Header::decode(&raw);
        const unsigned slots = header.last ? 1 : header.window;
    dispatch_mops:
        for (unsigned m = 0; m < slots; ++m) {
            switch (static_cast<Opcode>(header.opcode)) {
            case Opcode::DDR:
            case Opcode::DdrRows:
                ddr << take<ddr_words>(header, size_of(header), words);
                break;
            case Opcode::LPDDR:
                lpddr << take<Lpddr::words>(header, size_of(header), words);
                break;
            case Opcode::MemA:
            case Opcode::MemANorm: {
                const auto mop = take<mem_a_words>(header, size_of(header), words);
                if (header.mask & 1) give(mop, mem_a0);
                if (header.mask & 2) give(mop, mem_a1);
                if (header.mask & 4) give(mop, mem_a2);
                break;
            }
            case Opcode::MemB:
            case Opcode::MemBConfig: {
                const auto mop = take<mem_b_words>(header, size_of(header), words);
                if (header.mask & 1) give(mop, mem_b0);
                if (header.mask & 2) give(mop, mem_b1);
                if (header.mask & 4) give(mop, mem_b2);
                break;
            }
            case Opcode::MemC:
            case Opcode::MemCConfig:
            case Opcode::MemCScores:
            case Opcode::MemCStore:
            case Opcode::MemCTable: {
                const auto mop = take<mem_c_words>(header, size_of(header), words);
                if (header.mask & 1) give(mop, mem_c0);
                if (header.mask & 2) give(mop, mem_c1);
                if (header.mask & 4) give(mop, mem_c2);
                if (header.mask & 8) give(mop, mem_c3);
                if (header.mask & 16) give(mop, mem_c4);
                if (header.mask & 32) give(mop, mem_c5);
                break;
            }
            case Opcode::MeshA:
                mesh_a << take<MeshA::words>(header, size_of(header), words);
                break;
            case Opcode::MeshB:
                mesh_b << take<MeshB::words>(header, size_of(header), words);
                break;
            case Opcode::Nop:
                break;
            }
        }
    }
}

}  // namespace rsn::xnn
