// MemC: results. Receives and accumulates into one buffer while it stores the other to DDR or, as a left operand, sends
// it to MeshA. Softmax comes after the last beat received, activation and norm before the first word stored.
//
// 512 beats to a tile in, 512 out, 256 words to a block out, one a cycle each; for the post-ops see their files.
// SPDX-License-Identifier: Apache-2.0
#include "activation.h"
#include "dataflow.h"
#include "lanes.h"
#include "norm.h"
#include "softmax.h"
#include "units.h"

namespace rsn::xnn {

namespace {

// Rounds of results: the first overwrites, the others add. An element comes again after a tile at the earliest.
void accumulate(const MemC &op, unsigned row_tiles, hls::stream<Lane> mme[lanes], MemCBuffer &buffer) {
#pragma HLS INLINE
accumulate_rounds:
    for (unsigned k = 0; k < op.k_iter; ++k) {
    accumulate_rows:
        for (unsigned a = 0; a < row_tiles; ++a) {
        accumulate_cols:
            for (unsigned b = 0; b < op.recv_b; ++b) {
            accumulate_beats:
                for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::receive style=flp
#pragma HLS DEPENDENCE variable=buffer type=inter direction=RAW distance=512 dependent=true
                    const unsigned row = a * tile + right_row(t), col = b * tile + right_col(t);
                    const Beat old = get_beat<by_rows, mem_c_cols>(buffer, row, col);
                    Beat beat = join(mme);
                    for (unsigned i = 0; i < beat_floats; ++i) {
#pragma HLS UNROLL
                        if (k) beat[i] = old[i] + beat[i];
                    }
                    put_beat<by_rows, mem_c_cols>(buffer, row, col, beat);
                }
            }
        }
    }
}

// The registers come as the words of MemCConfig.
void receive(Word word0, Word word1, Word reg0, Word reg1, Word reg2, Word reg3, bool odd,
             hls::stream<Lane> mme[lanes], MemCBuffer &buffer, hls::stream<float> &to_softmax,
             hls::stream<float> &from_softmax) {
    const MemC op = decoded<MemC>(word0, word1);
    if (!op.recv) return;
    const MemCConfig reg = decoded<MemCConfig>(reg0, reg1, reg2, reg3);
    const unsigned row_tiles = op.recv_a & 3;
    accumulate(op, row_tiles, mme, buffer);
    if (op.softmax) softmax(buffer, row_tiles * tile, op.recv_b * tile, reg, odd, to_softmax, from_softmax);
}

void receive_last(Word word0, Word word1, hls::stream<Lane> mme[lanes], MemCBuffer &buffer) {
    const MemC op = decoded<MemC>(word0, word1);
    if (op.recv) accumulate(op, op.recv_a, mme, buffer);
}

void store(const MemC &op, const MemCConfig &reg, MemCBuffer &buffer, hls::stream<Beat> &ddr,
           hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
#pragma HLS INLINE
    if (op.gelu) activate(buffer, op.dim1, reg.activation);
    if (op.layernorm) norm(buffer, op.dim1, reg, to_norm, from_norm);
    drain<mem_c_cols>(buffer, op.dim1, op.dim2, ddr);
}

void deliver(Word word0, Word word1, Word reg0, Word reg1, Word reg2, Word reg3, MemCBuffer &buffer,
             hls::stream<Beat> &ddr, hls::stream<Beat> &mesh, hls::stream<Partial> &to_norm,
             hls::stream<Partial> &from_norm) {
    const MemC op = decoded<MemC>(word0, word1);
    if (!op.send) {
        if (op.store) store(op, decoded<MemCConfig>(reg0, reg1, reg2, reg3), buffer, ddr, to_norm, from_norm);
        return;
    }
send_rows:
    for (unsigned a = 0; a < op.send_a; ++a) {
    send_times:
        for (unsigned b = 0; b < op.send_b; ++b) {
        send_cols:
            for (unsigned k = 0; k < (op.send_k & 3u); ++k) {
                send_left<mem_c_cols>(buffer, a * tile, k * tile, mesh);
            }
        }
    }
}

void deliver_last(Word word0, Word word1, Word reg0, Word reg1, Word reg2, Word reg3, MemCBuffer &buffer,
                  hls::stream<Beat> &ddr, hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
    const MemC op = decoded<MemC>(word0, word1);
    if (op.store) store(op, decoded<MemCConfig>(reg0, reg1, reg2, reg3), buffer, ddr, to_norm, from_norm);
}

void mem_c_step(Word word0, Word word1, Word reg0, Word reg1, Word reg2, Word reg3, bool odd,
                hls::stream<Lane> mme[lanes], MemCBuffer &received, MemCBuffer &delivered, hls::stream<Beat> &ddr,
                hls::stream<Beat> &mesh, hls::stream<float> &to_softmax, hls::stream<float> &from_softmax,
                hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
#pragma HLS DATAFLOW
    RSN_DATAFLOW();
    RSN_PROCESS("", receive, word0, word1, reg0, reg1, reg2, reg3, odd, mme, received, to_softmax, from_softmax);
    RSN_PROCESS("", deliver, word0, word1, reg0, reg1, reg2, reg3, delivered, ddr, mesh, to_norm, from_norm);
}

void mem_c_last_step(Word word0, Word word1, Word reg0, Word reg1, Word reg2, Word reg3, hls::stream<Lane> mme[lanes],
                     MemCBuffer &received, MemCBuffer &delivered, hls::stream<Beat> &ddr,
                     hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
#pragma HLS DATAFLOW
    RSN_DATAFLOW();
    RSN_PROCESS("", receive_last, word0, word1, mme, received);
    RSN_PROCESS("", deliver_last, word0, word1, reg0, reg1, reg2, reg3, delivered, ddr, to_norm, from_norm);
}

// MemC0-3. odd: its columns come behind those of its neighbour.
void mem_c(hls::stream<Uop<MemCConfig::words>> &uops, bool odd, hls::stream<Lane> mme[lanes], hls::stream<Beat> &ddr,
           hls::stream<Beat> &mesh, hls::stream<float> &to_softmax, hls::stream<float> &from_softmax,
           hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
#pragma HLS ALLOCATION function instances=mem_c_step limit=1
    MemCBuffer ping, pong;
#pragma HLS ARRAY_PARTITION variable=ping complete dim=1
#pragma HLS ARRAY_PARTITION variable=pong complete dim=1
#pragma HLS BIND_STORAGE variable=ping type=ram_s2p impl=uram
#pragma HLS BIND_STORAGE variable=pong type=ram_s2p impl=uram
    poison(ping);
    poison(pong);
    Word reg0 = MemCConfig::initial[0], reg1 = MemCConfig::initial[1];
    Word reg2 = MemCConfig::initial[2], reg3 = MemCConfig::initial[3];
    bool cur = false;  // pong is the current one
    unsigned number = 0;
mem_c_uops:
    for (;;) {
        const Uop<MemCConfig::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        if (uop.config) {
            reg0 = uop.words[0];
            reg1 = uop.words[1];
            reg2 = uop.words[2];
            reg3 = uop.words[3];
            continue;
        }
        const Word word0 = uop.words[0], word1 = uop.words[1];
        if (cur)
            mem_c_step(word0, word1, reg0, reg1, reg2, reg3, odd, mme, pong, ping, ddr, mesh, to_softmax,
                       from_softmax, to_norm, from_norm);
        else
            mem_c_step(word0, word1, reg0, reg1, reg2, reg3, odd, mme, ping, pong, ddr, mesh, to_softmax,
                       from_softmax, to_norm, from_norm);
        cur = !cur;
    }
}

}  // namespace

void mem_c_even(hls::stream<Uop<MemCConfig::words>> &uops, hls::stream<Lane> mme[lanes], hls::stream<Beat> &ddr,
                hls::stream<Beat> &mesh, hls::stream<float> &to_softmax, hls::stream<float> &from_softmax,
                hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
    mem_c(uops, false, mme, ddr, mesh, to_softmax, from_softmax, to_norm, from_norm);
}

void mem_c_odd(hls::stream<Uop<MemCConfig::words>> &uops, hls::stream<Lane> mme[lanes], hls::stream<Beat> &ddr,
               hls::stream<Beat> &mesh, hls::stream<float> &to_softmax, hls::stream<float> &from_softmax,
               hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
    mem_c(uops, true, mme, ddr, mesh, to_softmax, from_softmax, to_norm, from_norm);
}

void mem_c_last(hls::stream<Uop<MemCConfig::words>> &uops, hls::stream<Lane> mme[lanes], hls::stream<Beat> &ddr,
                hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
#pragma HLS ALLOCATION function instances=mem_c_last_step limit=1
    MemCBuffer ping, pong;
#pragma HLS ARRAY_PARTITION variable=ping complete dim=1
#pragma HLS ARRAY_PARTITION variable=pong complete dim=1
#pragma HLS BIND_STORAGE variable=ping type=ram_s2p impl=uram
#pragma HLS BIND_STORAGE variable=pong type=ram_s2p impl=uram
    poison(ping);
    poison(pong);
    Word reg0 = MemCConfig::initial[0], reg1 = MemCConfig::initial[1];
    Word reg2 = MemCConfig::initial[2], reg3 = MemCConfig::initial[3];
    bool cur = false;  // pong is the current one
    unsigned number = 0;
mem_c_last_uops:
    for (;;) {
        const Uop<MemCConfig::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        if (uop.config) {
            reg0 = uop.words[0];
            reg1 = uop.words[1];
            reg2 = uop.words[2];
            reg3 = uop.words[3];
            continue;
        }
        const Word word0 = uop.words[0], word1 = uop.words[1];
        if (cur) mem_c_last_step(word0, word1, reg0, reg1, reg2, reg3, mme, pong, ping, ddr, to_norm, from_norm);
        else mem_c_last_step(word0, word1, reg0, reg1, reg2, reg3, mme, ping, pong, ddr, to_norm, from_norm);
        cur = !cur;
    }
}

}  // namespace rsn::xnn
