// Second-level decoders: mOPs to uOPs (contract 1.3).
//
// One uOP per cycle if the unit takes it. Decoders of DDR, LPDDR and the Meshes keep a window of mOPs and loop over it,
// those of DDR and LPDDR also over the chunks of each mOP; decoders of the Mems repeat one mOP after the other.
// SPDX-License-Identifier: Apache-2.0
#include "decoder.h"
#include "units.h"

namespace rsn::xnn {

namespace {

static_assert(MeshA::words == MeshB::words, "one decoder for both");

// Returns whether any flag is set, and in `first` the index of the first: destinations and sources have a precedence.
template <unsigned N>
bool first_of(const bool (&peers)[N], std::uint8_t &first) {
#pragma HLS INLINE
    bool any = false;
first_peer:
    for (unsigned i = N; i-- > 0;) {
#pragma HLS UNROLL
        if (peers[i]) {
            any = true;
            first = static_cast<std::uint8_t>(i);
        }
    }
    return any;
}

}  // namespace

void expand(const Ddr &mop, std::uint16_t iteration, hls::stream<DdrTransfer> &uops) {
    const bool destinations[] = {mop.to_a0, mop.to_a1, mop.to_a2, mop.to_b0, mop.to_b1, mop.to_b2};
    const bool sources[] = {mop.from_c0, mop.from_c1, mop.from_c2, mop.from_c3, mop.from_c4, mop.from_c5};
    DdrTransfer uop = {};
    uop.load = mop.load && first_of(destinations, uop.peer);
    uop.store = !mop.load && mop.store && first_of(sources, uop.peer);
    uop.addr = mop.addr + iteration * mop.reuse_stride;
    uop.size = mop.size;
    give_chunks(uop, mop.chunks, mop.chunk_stride, uops);
}

void expand(const DdrRows &mop, hls::stream<DdrTransfer> &uops) {
    const bool sources[] = {mop.from_c0, mop.from_c1, mop.from_c2, mop.from_c3, mop.from_c4, mop.from_c5};
    DdrTransfer uop = {};
    uop.set = mop.set;
    uop.keep = !mop.set && first_of(sources, uop.peer);
    uop.table = mop.table;
    uop.entry = mop.entry;
    uop.rows = mop.rows;
    uop.chunks = mop.chunks;
    uop.source = mop.source;
    uop.addr = mop.addr;
    uop.row = mop.row;
    uop.limit = mop.limit;
    uop.pitch = mop.pitch;
    uop.chunk_stride = mop.chunk_stride;
    give_chunks(uop, mop.set ? 1 : mop.blocks, words_per_block * 2, uops);  // a word is two units
}

void expand(const Lpddr &mop, std::uint16_t iteration, hls::stream<Transfer> &uops) {
    Transfer uop = {};
    uop.load = mop.to_b0 || mop.to_b1 || mop.bias;
    uop.bias = mop.bias;
    uop.peer = mop.to_b0 ? 0 : 1;
    uop.addr = mop.addr + iteration * mop.reuse_stride;
    uop.size = mop.size;
    give_chunks(uop, mop.chunks, mop.chunk_stride, uops);
}

namespace {

template <unsigned Words>
void decode_repeated(hls::stream<Mop<Words>> &mops, hls::stream<Uop<Words>> &uops) {
    unsigned number = 0;
repeated_mops:
    for (;;) {
        const Mop<Words> mop = mops.read();
        RSN_UOP(number++);
        if (mop.last) break;
    repeat:
        for (Countdown<16> left(mop.reuse); left.more(); left.next()) {
#pragma HLS PIPELINE II=ii::decode style=flp
            uops << uop_of(mop);
        }
    }
    uops << Uop<Words>{true, 0, {}};
}

}  // namespace

void decode_ddr(hls::stream<Mop<ddr_words>> &mops, hls::stream<DdrTransfer> &uops) {
    Mop<ddr_words> window[max_window];
#pragma HLS AGGREGATE variable=window
    unsigned number = 0;
ddr_windows:
    for (;;) {
        const Mop<ddr_words> first = mops.read();
        RSN_UOP(number++);
        if (first.last) break;
        if (first.format == static_cast<unsigned>(Opcode::DdrRows)) {  // always alone in its packet
            expand(DdrRows::decode(first.words), uops);
            continue;
        }
        collect(first, mops, window);
    ddr_repeat:
        for (std::uint16_t iteration = 0; iteration < first.reuse; ++iteration) {
        ddr_mops:
            for (unsigned i = 0; i < first.window; ++i) expand(Ddr::decode(window[i].words), iteration, uops);
        }
    }
    DdrTransfer end = {};
    end.last = true;
    uops << end;
}

void decode_lpddr(hls::stream<Mop<Lpddr::words>> &mops, hls::stream<Transfer> &uops) {
    decode_chunks<Lpddr>(mops, uops);
}

void decode_mesh(hls::stream<Mop<MeshA::words>> &mops, hls::stream<Uop<MeshA::words>> &uops) {
    decode_windows(mops, uops);
}

void decode_mem_a(hls::stream<Mop<mem_a_words>> &mops, hls::stream<Uop<mem_a_words>> &uops) {
    decode_repeated(mops, uops);
}

void decode_mem_b(hls::stream<Mop<mem_b_words>> &mops, hls::stream<Uop<mem_b_words>> &uops) {
    decode_repeated(mops, uops);
}

void decode_mem_c(hls::stream<Mop<mem_c_words>> &mops, hls::stream<Uop<mem_c_words>> &uops) {
    decode_repeated(mops, uops);
}

}  // namespace rsn::xnn
