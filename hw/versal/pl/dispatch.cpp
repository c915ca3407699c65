// Fetch and dispatcher: the image, word by word, to the mOP FIFOs of the decoders (contract 1).
//
// One packet after the other, strictly in image order; a mOP for several units goes to them in ascending index, and
// each write waits for room. A mOP of n words takes n cycles, and a few to be handed on.
// SPDX-License-Identifier: Apache-2.0
#include "counter.h"
#include "dataflow.h"
#include "units.h"

namespace rsn::xnn {

namespace {

// The next mOP, of so many words. Under a terminator there is none.
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

constexpr unsigned mem_c_size(unsigned opcode) {
    switch (static_cast<Opcode>(opcode)) {
    case Opcode::MemC: return MemC::words;
    case Opcode::MemCConfig: return MemCConfig::words;
    case Opcode::MemCScores: return MemCScores::words;
    case Opcode::MemCStore: return MemCStore::words;
    default: return MemCTable::words;
    }
}

// Waits for room in one FIFO. A function of its own, as those in mem_c.h: HLS could put writes to several streams into
// one state, which waits for room in all of them. A unit would then lack a mOP for as long as another has no room, and
// the other may be waiting for that unit.
template <unsigned Words>
void give(const Mop<Words> &mop, hls::stream<Mop<Words>> &to) {
#pragma HLS INLINE off
    to << mop;
}

}  // namespace

void fetch(const Word *instructions, hls::stream<Word> &words) {
    RSN_STALLS();
    const Word count = image_words_before_packets + instructions[0];
fetch_words:
    for (Word i = 0; i < count; ++i) {
#pragma HLS PIPELINE II=ii::fetch style=stp
        words << instructions[i];
    }
}

void dispatch(hls::stream<Word> &words, hls::stream<Mop<Ddr::words>> &ddr, hls::stream<Mop<Lpddr::words>> &lpddr,
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
                ddr << take<Ddr::words>(header, header.last ? 0 : Ddr::words, words);
                break;
            case Opcode::LPDDR:
                lpddr << take<Lpddr::words>(header, header.last ? 0 : Lpddr::words, words);
                break;
            case Opcode::MemA:
            case Opcode::MemANorm: {
                const unsigned size = header.opcode == MemA::opcode ? MemA::words : MemANorm::words;
                const auto mop = take<mem_a_words>(header, header.last ? 0 : size, words);
                if (header.mask & 1) give(mop, mem_a0);
                if (header.mask & 2) give(mop, mem_a1);
                if (header.mask & 4) give(mop, mem_a2);
                break;
            }
            case Opcode::MemB:
            case Opcode::MemBConfig: {
                const unsigned size = header.opcode == MemB::opcode ? MemB::words : MemBConfig::words;
                const auto mop = take<mem_b_words>(header, header.last ? 0 : size, words);
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
                const auto mop = take<mem_c_words>(header, header.last ? 0 : mem_c_size(header.opcode), words);
                if (header.mask & 1) give(mop, mem_c0);
                if (header.mask & 2) give(mop, mem_c1);
                if (header.mask & 4) give(mop, mem_c2);
                if (header.mask & 8) give(mop, mem_c3);
                if (header.mask & 16) give(mop, mem_c4);
                if (header.mask & 32) give(mop, mem_c5);
                break;
            }
            case Opcode::MeshA:
                mesh_a << take<MeshA::words>(header, header.last ? 0 : MeshA::words, words);
                break;
            case Opcode::MeshB:
                mesh_b << take<MeshB::words>(header, header.last ? 0 : MeshB::words, words);
                break;
            case Opcode::Nop:
                break;
            }
        }
    }
}

}  // namespace rsn::xnn
