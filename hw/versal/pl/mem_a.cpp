// MemA: left operands. Fills one buffer from DDR while it sends the other to MeshA.
//
// 256 words to a block in, 512 beats to a tile out, one a cycle each.
// SPDX-License-Identifier: Apache-2.0
#include "dataflow.h"
#include "row_norm.h"
#include "tiles.h"
#include "units.h"

namespace rsn::xnn {

namespace {

constexpr unsigned cols = buffers::MemA_cols;
using Buffer = Cell<plain>[plain][depth_of(buffers::MemA_rows, cols)];

// The registers come as the words of MemANorm.
void load(Word word, Word norm0, Word norm1, hls::stream<Beat> &ddr, Buffer &buffer, const Numbers &mean,
          const Numbers &factor) {
    const MemA op = decoded<MemA>(word);
    const MemANorm norm = decoded<MemANorm>(norm0, norm1);
    if (op.load && norm.normalise) fill_normalised<cols>(buffer, op.dim1, op.dim2, norm, mean, factor, ddr);
    else if (op.load) fill<cols>(buffer, op.dim1, op.dim2, ddr);
}

void send(Word word, const Buffer &buffer, hls::stream<Beat> &mesh) {
    const MemA op = decoded<MemA>(word);
send_rows:
    for (unsigned a = 0; op.send && a < op.acc_a; ++a) {
    send_times:
        for (unsigned b = 0; b < op.acc_b; ++b) send_left<cols>(buffer, a * tile, 0, mesh);
    }
}

void mem_a_step(Word word, Word norm0, Word norm1, hls::stream<Beat> &ddr, Buffer &filled, const Buffer &sent,
                const Numbers &mean, const Numbers &factor, hls::stream<Beat> &mesh) {
#pragma HLS DATAFLOW
    RSN_DATAFLOW();
    RSN_PROCESS("", load, word, norm0, norm1, ddr, filled, mean, factor);
    RSN_PROCESS("", send, word, sent, mesh);
}

}  // namespace

void mem_a(hls::stream<Uop<mem_a_words>> &uops, hls::stream<Beat> &ddr, hls::stream<Beat> &mesh) {
#pragma HLS ALLOCATION function instances=mem_a_step limit=1
    Buffer ping, pong;
#pragma HLS ARRAY_PARTITION variable=ping complete dim=1
#pragma HLS ARRAY_PARTITION variable=pong complete dim=1
#pragma HLS BIND_STORAGE variable=ping type=ram_s2p impl=bram
#pragma HLS BIND_STORAGE variable=pong type=ram_s2p impl=bram
    poison(ping);
    poison(pong);
    Numbers mean, count, factor;  // of the rows whose statistics it has
#pragma HLS ARRAY_PARTITION variable=mean complete dim=1
#pragma HLS ARRAY_PARTITION variable=count complete dim=1
#pragma HLS ARRAY_PARTITION variable=factor complete dim=1
#pragma HLS BIND_STORAGE variable=mean type=ram_s2p impl=lutram
#pragma HLS BIND_STORAGE variable=count type=ram_s2p impl=lutram
#pragma HLS BIND_STORAGE variable=factor type=ram_s2p impl=lutram
    for (auto &bank : mean) poison(bank);
    for (auto &bank : factor) poison(bank);
    Word norm0 = MemANorm::initial[0], norm1 = MemANorm::initial[1];
    bool cur = false;  // pong is the current one
    unsigned number = 0;
mem_a_uops:
    for (;;) {
        const Uop<mem_a_words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        if (uop.format == MemANorm::opcode) {
            norm0 = uop.words[0];
            norm1 = uop.words[1];
            take_statistics(decoded<MemANorm>(norm0, norm1), ddr, mean, count, factor);
            continue;
        }
        const Word word = uop.words[0];
        if (cur) mem_a_step(word, norm0, norm1, ddr, ping, pong, mean, factor, mesh);
        else mem_a_step(word, norm0, norm1, ddr, pong, ping, mean, factor, mesh);
        cur = !cur;
    }
}

}  // namespace rsn::xnn
