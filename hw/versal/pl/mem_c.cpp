// MemC: results. Receives and accumulates into one buffer while it stores the other to DDR or, as a left operand, sends
// it to MeshA. Softmax comes after the last beat received, activation, norm and rotation before the first word stored.
// A third buffer, the table of the rotation, is filled alone, between uOPs.
//
// 512 beats to a tile in, 512 out, 256 words to a block out, one a cycle each; for the post-ops see their files.
// SPDX-License-Identifier: Apache-2.0
#include "activation.h"
#include "dataflow.h"
#include "lanes.h"
#include "norm.h"
#include "rotate.h"
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
                        if (k) beat[i] = add_in_fabric(old[i], beat[i]);
                    }
                    put_beat<by_rows, mem_c_cols>(buffer, row, col, beat);
                }
            }
        }
    }
}

// Tiles from the MME into the table.
void take_table(Word word, hls::stream<Lane> mme[lanes], MemCBuffer &table) {
    const MemCTable op = decoded<MemCTable>(word);
table_rows:
    for (unsigned a = 0; a < op.recv_a; ++a) {
    table_cols:
        for (unsigned b = 0; b < op.recv_b; ++b) {
        table_beats:
            for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::receive style=flp
                put_beat<by_rows, mem_c_cols>(table, a * tile + right_row(t), b * tile + right_col(t), join(mme));
            }
        }
    }
}

// The registers come as the words of MemCConfig and MemCScores.
void receive(Word word0, Word word1, Word reg0, Word reg1, Word reg2, Word reg3, Word scores0, Word scores1,
             Word scores2, Word scores3, bool odd, hls::stream<Lane> mme[lanes], MemCBuffer &buffer, Rows &kept_top,
             Rows &kept_total, hls::stream<float> &to_softmax, hls::stream<float> &from_softmax) {
    const MemC op = decoded<MemC>(word0, word1);
    if (!op.recv) return;
    const MemCConfig reg = decoded<MemCConfig>(reg0, reg1, reg2, reg3);
    const MemCScores scores = decoded<MemCScores>(scores0, scores1, scores2, scores3);
    const unsigned row_tiles = op.recv_a & 3;
    accumulate(op, row_tiles, mme, buffer);
    if (op.softmax)
        softmax(buffer, row_tiles * tile, op.recv_b * tile, reg, scores, odd, kept_top, kept_total, to_softmax,
                from_softmax);
}

void receive_last(Word word0, Word word1, hls::stream<Lane> mme[lanes], MemCBuffer &buffer) {
    const MemC op = decoded<MemC>(word0, word1);
    if (op.recv) accumulate(op, op.recv_a, mme, buffer);
}

// odd: of a pair that shares rows, the other one sends their statistics.
void store(const MemC &op, const MemCConfig &reg, const MemCStore &how, bool odd, MemCBuffer &buffer,
           const MemCBuffer &table, hls::stream<Beat> &ddr, hls::stream<Partial> &to_norm,
           hls::stream<Partial> &from_norm) {
#pragma HLS INLINE
    Rows mean, factor;
#pragma HLS ARRAY_PARTITION variable=mean complete dim=1
#pragma HLS ARRAY_PARTITION variable=factor complete dim=1
#pragma HLS BIND_STORAGE variable=mean type=ram_s2p impl=lutram
#pragma HLS BIND_STORAGE variable=factor type=ram_s2p impl=lutram
    float counted = 0.0f;
    if (op.gelu) activate(buffer, op.dim1, reg.activation, how.gate ? op.dim2 : 0);
    if (op.layernorm) counted = norm(buffer, op.dim1, reg, how, mean, factor, to_norm, from_norm);
    if (how.rotate) rotate(buffer, table, op.dim1, op.dim2, head_width(how));
    drain<mem_c_cols>(buffer, op.dim1, op.dim2, ddr);
    if (op.layernorm && how.statistics && !odd) send_statistics(op.dim1, !reg.rms, mean, factor, counted, ddr);
}

// The registers come as the words of MemCConfig and MemCStore.
void deliver(Word word0, Word word1, Word reg0, Word reg1, Word reg2, Word reg3, Word how, bool odd,
             MemCBuffer &buffer, const MemCBuffer &table, hls::stream<Beat> &ddr, hls::stream<Beat> &mesh,
             hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
    const MemC op = decoded<MemC>(word0, word1);
    if (!op.send) {
        if (op.store)
            store(op, decoded<MemCConfig>(reg0, reg1, reg2, reg3), decoded<MemCStore>(how), odd, buffer, table, ddr,
                  to_norm, from_norm);
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

void deliver_last(Word word0, Word word1, Word reg0, Word reg1, Word reg2, Word reg3, Word how, bool odd,
                  MemCBuffer &buffer, const MemCBuffer &table, hls::stream<Beat> &ddr, hls::stream<Partial> &to_norm,
                  hls::stream<Partial> &from_norm) {
    const MemC op = decoded<MemC>(word0, word1);
    if (op.store)
        store(op, decoded<MemCConfig>(reg0, reg1, reg2, reg3), decoded<MemCStore>(how), odd, buffer, table, ddr,
              to_norm, from_norm);
}

void mem_c_step(Word word0, Word word1, Word reg0, Word reg1, Word reg2, Word reg3, Word scores0, Word scores1,
                Word scores2, Word scores3, Word how, bool odd, hls::stream<Lane> mme[lanes], MemCBuffer &received,
                MemCBuffer &delivered, const MemCBuffer &table, Rows &kept_top, Rows &kept_total,
                hls::stream<Beat> &ddr, hls::stream<Beat> &mesh, hls::stream<float> &to_softmax,
                hls::stream<float> &from_softmax, hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
#pragma HLS DATAFLOW
    RSN_DATAFLOW();
    RSN_PROCESS("", receive, word0, word1, reg0, reg1, reg2, reg3, scores0, scores1, scores2, scores3, odd, mme,
                received, kept_top, kept_total, to_softmax, from_softmax);
    RSN_PROCESS("", deliver, word0, word1, reg0, reg1, reg2, reg3, how, odd, delivered, table, ddr, mesh, to_norm,
                from_norm);
}

void mem_c_last_step(Word word0, Word word1, Word reg0, Word reg1, Word reg2, Word reg3, Word how, bool odd,
                     hls::stream<Lane> mme[lanes], MemCBuffer &received, MemCBuffer &delivered,
                     const MemCBuffer &table, hls::stream<Beat> &ddr, hls::stream<Partial> &to_norm,
                     hls::stream<Partial> &from_norm) {
#pragma HLS DATAFLOW
    RSN_DATAFLOW();
    RSN_PROCESS("", receive_last, word0, word1, mme, received);
    RSN_PROCESS("", deliver_last, word0, word1, reg0, reg1, reg2, reg3, how, odd, delivered, table, ddr, to_norm,
                from_norm);
}

// MemC0-3. odd: its columns come behind those of its neighbour.
void mem_c(hls::stream<Uop<mem_c_words>> &uops, bool odd, hls::stream<Lane> mme[lanes], hls::stream<Beat> &ddr,
           hls::stream<Beat> &mesh, hls::stream<float> &to_softmax, hls::stream<float> &from_softmax,
           hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
#pragma HLS ALLOCATION function instances=mem_c_step limit=1
    MemCBuffer ping, pong, table;
#pragma HLS ARRAY_PARTITION variable=ping complete dim=1
#pragma HLS ARRAY_PARTITION variable=pong complete dim=1
#pragma HLS ARRAY_PARTITION variable=table complete dim=1
#pragma HLS BIND_STORAGE variable=ping type=ram_s2p impl=uram
#pragma HLS BIND_STORAGE variable=pong type=ram_s2p impl=uram
#pragma HLS BIND_STORAGE variable=table type=ram_s2p impl=uram
    Rows kept_top, kept_total;  // of a softmax in parts
#pragma HLS ARRAY_PARTITION variable=kept_top complete dim=1
#pragma HLS ARRAY_PARTITION variable=kept_total complete dim=1
#pragma HLS BIND_STORAGE variable=kept_top type=ram_s2p impl=lutram
#pragma HLS BIND_STORAGE variable=kept_total type=ram_s2p impl=lutram
    poison(ping);
    poison(pong);
    poison(table);
    for (auto &bank : kept_top) poison(bank);
    for (auto &bank : kept_total) poison(bank);
    Word reg0 = MemCConfig::initial[0], reg1 = MemCConfig::initial[1];
    Word reg2 = MemCConfig::initial[2], reg3 = MemCConfig::initial[3];
    Word scores0 = MemCScores::initial[0], scores1 = MemCScores::initial[1];
    Word scores2 = MemCScores::initial[2], scores3 = MemCScores::initial[3];
    Word how = MemCStore::initial[0];
    bool cur = false;  // pong is the current one
    unsigned number = 0;
mem_c_uops:
    for (;;) {
        const Uop<mem_c_words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const Word word0 = uop.words[0], word1 = uop.words[1];
        switch (static_cast<unsigned>(uop.format)) {
        case MemCConfig::opcode:
            reg0 = word0;
            reg1 = word1;
            reg2 = uop.words[2];
            reg3 = uop.words[3];
            continue;
        case MemCScores::opcode:
            scores0 = word0;
            scores1 = word1;
            scores2 = uop.words[2];
            scores3 = uop.words[3];
            continue;
        case MemCStore::opcode:
            how = word0;
            continue;
        case MemCTable::opcode:
            take_table(word0, mme, table);
            continue;
        default: break;
        }
        if (cur)
            mem_c_step(word0, word1, reg0, reg1, reg2, reg3, scores0, scores1, scores2, scores3, how, odd, mme, pong,
                       ping, table, kept_top, kept_total, ddr, mesh, to_softmax, from_softmax, to_norm, from_norm);
        else
            mem_c_step(word0, word1, reg0, reg1, reg2, reg3, scores0, scores1, scores2, scores3, how, odd, mme, ping,
                       pong, table, kept_top, kept_total, ddr, mesh, to_softmax, from_softmax, to_norm, from_norm);
        cur = !cur;
    }
}

// MemC4, MemC5: no softmax, so no registers of it.
void mem_c_last(hls::stream<Uop<mem_c_words>> &uops, bool odd, hls::stream<Lane> mme[lanes], hls::stream<Beat> &ddr,
                hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
#pragma HLS ALLOCATION function instances=mem_c_last_step limit=1
    MemCBuffer ping, pong, table;
#pragma HLS ARRAY_PARTITION variable=ping complete dim=1
#pragma HLS ARRAY_PARTITION variable=pong complete dim=1
#pragma HLS ARRAY_PARTITION variable=table complete dim=1
#pragma HLS BIND_STORAGE variable=ping type=ram_s2p impl=uram
#pragma HLS BIND_STORAGE variable=pong type=ram_s2p impl=uram
#pragma HLS BIND_STORAGE variable=table type=ram_s2p impl=uram
    poison(ping);
    poison(pong);
    poison(table);
    Word reg0 = MemCConfig::initial[0], reg1 = MemCConfig::initial[1];
    Word reg2 = MemCConfig::initial[2], reg3 = MemCConfig::initial[3];
    Word how = MemCStore::initial[0];
    bool cur = false;  // pong is the current one
    unsigned number = 0;
mem_c_last_uops:
    for (;;) {
        const Uop<mem_c_words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const Word word0 = uop.words[0], word1 = uop.words[1];
        switch (static_cast<unsigned>(uop.format)) {
        case MemCConfig::opcode:
            reg0 = word0;
            reg1 = word1;
            reg2 = uop.words[2];
            reg3 = uop.words[3];
            continue;
        case MemCScores::opcode: continue;
        case MemCStore::opcode:
            how = word0;
            continue;
        case MemCTable::opcode:
            take_table(word0, mme, table);
            continue;
        default: break;
        }
        if (cur)
            mem_c_last_step(word0, word1, reg0, reg1, reg2, reg3, how, odd, mme, pong, ping, table, ddr, to_norm,
                            from_norm);
        else
            mem_c_last_step(word0, word1, reg0, reg1, reg2, reg3, how, odd, mme, ping, pong, table, ddr, to_norm,
                            from_norm);
        cur = !cur;
    }
}

}  // namespace

void mem_c_even(hls::stream<Uop<mem_c_words>> &uops, hls::stream<Lane> mme[lanes], hls::stream<Beat> &ddr,
                hls::stream<Beat> &mesh, hls::stream<float> &to_softmax, hls::stream<float> &from_softmax,
                hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
    mem_c(uops, false, mme, ddr, mesh, to_softmax, from_softmax, to_norm, from_norm);
}

void mem_c_odd(hls::stream<Uop<mem_c_words>> &uops, hls::stream<Lane> mme[lanes], hls::stream<Beat> &ddr,
               hls::stream<Beat> &mesh, hls::stream<float> &to_softmax, hls::stream<float> &from_softmax,
               hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
    mem_c(uops, true, mme, ddr, mesh, to_softmax, from_softmax, to_norm, from_norm);
}

void mem_c_last_even(hls::stream<Uop<mem_c_words>> &uops, hls::stream<Lane> mme[lanes], hls::stream<Beat> &ddr,
                     hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
    mem_c_last(uops, false, mme, ddr, to_norm, from_norm);
}

void mem_c_last_odd(hls::stream<Uop<mem_c_words>> &uops, hls::stream<Lane> mme[lanes], hls::stream<Beat> &ddr,
                    hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
    mem_c_last(uops, true, mme, ddr, to_norm, from_norm);
}

}  // namespace rsn::xnn
