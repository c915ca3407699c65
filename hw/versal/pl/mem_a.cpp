// MemA: left operands. Fills one buffer from DDR while it sends the other to MeshA.
//
// 256 words to a block in, 512 beats to a tile out, one a cycle each.
// SPDX-License-Identifier: Apache-2.0
#include "dataflow.h"
#include "tiles.h"
#include "units.h"

namespace rsn::xnn {

namespace {

constexpr unsigned cols = buffers::MemA_cols;
using Buffer = Cell<plain>[plain][depth_of(buffers::MemA_rows, cols)];

void load(Word word, hls::stream<Beat> &ddr, Buffer &buffer) {
    const MemA op = decoded<MemA>(word);
    if (op.load) fill<cols>(buffer, op.dim1, op.dim2, ddr);
}

void send(Word word, const Buffer &buffer, hls::stream<Beat> &mesh) {
    const MemA op = decoded<MemA>(word);
send_rows:
    for (unsigned a = 0; op.send && a < op.acc_a; ++a) {
    send_times:
        for (unsigned b = 0; b < op.acc_b; ++b) send_left<cols>(buffer, a * tile, 0, mesh);
    }
}

void mem_a_step(Word word, hls::stream<Beat> &ddr, Buffer &filled, const Buffer &sent, hls::stream<Beat> &mesh) {
#pragma HLS DATAFLOW
    RSN_DATAFLOW();
    RSN_PROCESS("", load, word, ddr, filled);
    RSN_PROCESS("", send, word, sent, mesh);
}

}  // namespace

void mem_a(hls::stream<Uop<MemA::words>> &uops, hls::stream<Beat> &ddr, hls::stream<Beat> &mesh) {
#pragma HLS ALLOCATION function instances=mem_a_step limit=1
    Buffer ping, pong;
#pragma HLS ARRAY_PARTITION variable=ping complete dim=1
#pragma HLS ARRAY_PARTITION variable=pong complete dim=1
#pragma HLS BIND_STORAGE variable=ping type=ram_s2p impl=bram
#pragma HLS BIND_STORAGE variable=pong type=ram_s2p impl=bram
    poison(ping);
    poison(pong);
    bool cur = false;  // pong is the current one
    unsigned number = 0;
mem_a_uops:
    for (;;) {
        const Uop<MemA::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        if (cur) mem_a_step(uop.words[0], ddr, ping, pong, mesh);
        else mem_a_step(uop.words[0], ddr, pong, ping, mesh);
        cur = !cur;
    }
}

}  // namespace rsn::xnn
