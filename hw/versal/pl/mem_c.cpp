// MemC: results. Receives and accumulates into one buffer while it stores the other to DDR or, as a left operand, sends
// it to MeshA. Softmax comes after the last beat received, except its product with 1 / row sums, which is made while
// the results leave; activation, norm and rotation come before the first word stored. A third buffer, the table of the
// rotation, is filled alone, between uOPs.
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

// The registers come as the words of MemCConfig and MemCScores. factors: see softmax.h.
void receive(Word word0, Word word1, Word reg0, Word reg1, Word reg2, Word reg3, Word scores0, Word scores1,
             Word scores2, Word scores3, bool odd, hls::stream<Lane> mme[lanes], MemCBuffer &buffer, Rows &factors,
             Rows &kept_top, Rows &kept_total, hls::stream<float> &to_softmax, hls::stream<float> &from_softmax) {
    const MemC op = decoded<MemC>(word0, word1);
    if (!op.recv) return;
    const MemCConfig reg = decoded<MemCConfig>(reg0, reg1, reg2, reg3);
    const MemCScores scores = decoded<MemCScores>(scores0, scores1, scores2, scores3);
    const unsigned row_tiles = op.recv_a & 3;
    accumulate(op, row_tiles, mme, buffer);
    if (op.softmax)
        softmax(buffer, row_tiles * tile, op.recv_b * tile, reg, scores, odd, factors, kept_top, kept_total,
                to_softmax, from_softmax);
}

void receive_last(Word word0, Word word1, hls::stream<Lane> mme[lanes], MemCBuffer &buffer) {
    const MemC op = decoded<MemC>(word0, word1);
    if (op.recv) accumulate(op, op.recv_a, mme, buffer);
}

// What a store does before its blocks leave. Returns how many columns were counted for a norm.
float work_on(const MemC &op, const MemCConfig &reg, const MemCStore &how, MemCBuffer &buffer, const MemCBuffer &table,
              Rows &mean, Rows &factor, hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
#pragma HLS INLINE
    float counted = 0.0f;
    if (op.gelu) activate(buffer, op.dim1, reg.activation, how.gate ? op.dim2 : 0);
    if (op.layernorm) counted = norm(buffer, op.dim1, reg, how, mean, factor, to_norm, from_norm);
    if (how.rotate) rotate(buffer, table, op.dim1, op.dim2, head_width(how));
    return counted;
}

// Where the elements of a slot go to.
enum class Way : std::uint8_t { to_mesh, to_ddr, back };

// All that leaves the slot of a MemC with softmax, as beats of left operands to MeshA or as words to DDR. scaled: exps
// of a softmax, which are multiplied by the factors of their rows on the way; `back` stores the products in their
// place. In one loop, so that there is one set of multipliers.
//
// row_tiles: 128 rows each, which are sent `times` times; cols: tiles to MeshA, otherwise blocks.
void leave(Way way, unsigned row_tiles, unsigned times, unsigned cols, bool scaled, const Rows &factors,
           MemCBuffer &buffer, hls::stream<Beat> &ddr, hls::stream<Beat> &mesh) {
#pragma HLS INLINE off
    static_assert(tile == block_rows && words_per_block < beats_per_tile, "rows and a counter of both");
    const bool beats = way == Way::to_mesh;
    const Counter items = beats ? beats_per_tile : words_per_block;
leave_rows:
    for (unsigned a = 0; a < row_tiles; ++a) {
    leave_times:
        for (unsigned b = 0; b < times; ++b) {
        leave_cols:
            for (unsigned k = 0; k < cols; ++k) {
            leave_items:
                for (Counter t = 0; t < items; ++t) {
#pragma HLS PIPELINE II=ii::deliver style=flp
#pragma HLS DEPENDENCE variable=buffer type=inter dependent=false
                    const unsigned row = a * tile + (beats ? left_row(t) : word_row(t));
                    const unsigned col = beats ? k * tile + left_col(t) : k * block_cols + word_col(t);
                    Beat x;
                    if (beats)
                        x = get_beat<by_rows, mem_c_cols>(buffer, row, col);
                    else
                        x = get_word<mem_c_cols>(buffer, row, col);
                    float of_row[patch_rows];
                    for (unsigned r = 0; r < patch_rows; ++r) {
#pragma HLS UNROLL
                        of_row[r] = factors[r][row / patch_rows];
                    }
                    // Element i of a beat is of row i / 8 of its four; of a word, of row i / 16 of its two.
                    for (unsigned i = 0; i < beat_floats; ++i) {
#pragma HLS UNROLL
                        const unsigned in_word = i / line_floats;
                        const float of_word = row % patch_rows == 0 ? of_row[in_word] : of_row[2 + in_word];
                        const float product = x[i] * (beats ? of_row[i / patch_cols] : of_word);
                        if (scaled) x[i] = product;
                    }
                    if (way == Way::to_mesh)
                        mesh << x;
                    else if (way == Way::to_ddr)
                        ddr << x;
                    else
                        put_word<mem_c_cols>(buffer, row, col, x);
                }
            }
        }
    }
}

// Whether a store multiplies by the factors before it does anything else, because a post-op works on the products.
bool multiplies_first(const MemC &op, const MemCStore &how) {
#pragma HLS INLINE
    return !op.send && op.store && (op.gelu || op.layernorm || how.rotate);
}

// The registers come as the words of MemCConfig and MemCStore. odd: of a pair that shares rows, the other one sends
// their statistics. scaled, factors: see `leave`.
void deliver(Word word0, Word word1, Word reg0, Word reg1, Word reg2, Word reg3, Word how_word, bool odd, bool scaled,
             const Rows &factors, MemCBuffer &buffer, const MemCBuffer &table, hls::stream<Beat> &ddr,
             hls::stream<Beat> &mesh, hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
#pragma HLS ALLOCATION function instances=leave limit=1
    const MemC op = decoded<MemC>(word0, word1);
    const MemCStore how = decoded<MemCStore>(how_word);
    if (op.send) {
        leave(Way::to_mesh, op.send_a, op.send_b, op.send_k & 3u, scaled, factors, buffer, ddr, mesh);
        return;
    }
    if (!op.store) return;
    const MemCConfig reg = decoded<MemCConfig>(reg0, reg1, reg2, reg3);
    Rows mean, factor;
#pragma HLS ARRAY_PARTITION variable=mean complete dim=1
#pragma HLS ARRAY_PARTITION variable=factor complete dim=1
#pragma HLS BIND_STORAGE variable=mean type=ram_s2p impl=lutram
#pragma HLS BIND_STORAGE variable=factor type=ram_s2p impl=lutram
    const bool first = scaled && multiplies_first(op, how);
    if (first)
        leave(Way::back, buffers::MemC_rows / tile, 1, mem_c_cols / block_cols, true, factors, buffer, ddr, mesh);
    const float counted = work_on(op, reg, how, buffer, table, mean, factor, to_norm, from_norm);
    leave(Way::to_ddr, op.dim1 / block_rows, 1, op.dim2 / block_cols, scaled && !first, factors, buffer, ddr, mesh);
    if (op.layernorm && how.statistics && !odd) send_statistics(op.dim1, !reg.rms, mean, factor, counted, ddr);
}

void deliver_last(Word word0, Word word1, Word reg0, Word reg1, Word reg2, Word reg3, Word how_word, bool odd,
                  MemCBuffer &buffer, const MemCBuffer &table, hls::stream<Beat> &ddr, hls::stream<Partial> &to_norm,
                  hls::stream<Partial> &from_norm) {
    const MemC op = decoded<MemC>(word0, word1);
    if (!op.store) return;
    const MemCConfig reg = decoded<MemCConfig>(reg0, reg1, reg2, reg3);
    const MemCStore how = decoded<MemCStore>(how_word);
    Rows mean, factor;
#pragma HLS ARRAY_PARTITION variable=mean complete dim=1
#pragma HLS ARRAY_PARTITION variable=factor complete dim=1
#pragma HLS BIND_STORAGE variable=mean type=ram_s2p impl=lutram
#pragma HLS BIND_STORAGE variable=factor type=ram_s2p impl=lutram
    const float counted = work_on(op, reg, how, buffer, table, mean, factor, to_norm, from_norm);
    drain<mem_c_cols>(buffer, op.dim1, op.dim2, ddr);
    if (op.layernorm && how.statistics && !odd) send_statistics(op.dim1, !reg.rms, mean, factor, counted, ddr);
}

void mem_c_step(Word word0, Word word1, Word reg0, Word reg1, Word reg2, Word reg3, Word scores0, Word scores1,
                Word scores2, Word scores3, Word how, bool odd, bool scaled, hls::stream<Lane> mme[lanes],
                MemCBuffer &received, Rows &received_factors, MemCBuffer &delivered, const Rows &delivered_factors,
                const MemCBuffer &table, Rows &kept_top, Rows &kept_total,
                hls::stream<Beat> &ddr, hls::stream<Beat> &mesh, hls::stream<float> &to_softmax,
                hls::stream<float> &from_softmax, hls::stream<Partial> &to_norm, hls::stream<Partial> &from_norm) {
#pragma HLS DATAFLOW
    RSN_DATAFLOW();
    RSN_PROCESS("", receive, word0, word1, reg0, reg1, reg2, reg3, scores0, scores1, scores2, scores3, odd, mme,
                received, received_factors, kept_top, kept_total, to_softmax, from_softmax);
    RSN_PROCESS("", deliver, word0, word1, reg0, reg1, reg2, reg3, how, odd, scaled, delivered_factors, delivered,
                table, ddr, mesh, to_norm, from_norm);
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
    Rows ping_factors, pong_factors;  // of softmax: what the rows of a slot are multiplied by when they leave
#pragma HLS ARRAY_PARTITION variable=ping_factors complete dim=1
#pragma HLS ARRAY_PARTITION variable=pong_factors complete dim=1
#pragma HLS BIND_STORAGE variable=ping_factors type=ram_s2p impl=lutram
#pragma HLS BIND_STORAGE variable=pong_factors type=ram_s2p impl=lutram
    Rows kept_top, kept_total;  // of a softmax in parts
#pragma HLS ARRAY_PARTITION variable=kept_top complete dim=1
#pragma HLS ARRAY_PARTITION variable=kept_total complete dim=1
#pragma HLS BIND_STORAGE variable=kept_top type=ram_s2p impl=lutram
#pragma HLS BIND_STORAGE variable=kept_total type=ram_s2p impl=lutram
    poison(ping);
    poison(pong);
    poison(table);
    for (auto &bank : ping_factors) poison(bank);
    for (auto &bank : pong_factors) poison(bank);
    for (auto &bank : kept_top) poison(bank);
    for (auto &bank : kept_total) poison(bank);
    Word reg0 = MemCConfig::initial[0], reg1 = MemCConfig::initial[1];
    Word reg2 = MemCConfig::initial[2], reg3 = MemCConfig::initial[3];
    Word scores0 = MemCScores::initial[0], scores1 = MemCScores::initial[1];
    Word scores2 = MemCScores::initial[2], scores3 = MemCScores::initial[3];
    Word how = MemCStore::initial[0];
    bool cur = false;  // pong is the current one
    bool ping_scaled = false, pong_scaled = false;  // a slot holds exps, which its factors still belong to
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
        const MemC op = decoded<MemC>(word0, word1);
        bool &received = cur ? pong_scaled : ping_scaled, &delivered = cur ? ping_scaled : pong_scaled;
        const bool scaled = delivered;
        if (multiplies_first(op, decoded<MemCStore>(how))) delivered = false;
        if (op.recv && op.k_iter != 0)
            received = op.softmax && !collecting(static_cast<Part>(decoded<MemCScores>(scores0, scores1, scores2,
                                                                                        scores3).part));
        if (cur)
            mem_c_step(word0, word1, reg0, reg1, reg2, reg3, scores0, scores1, scores2, scores3, how, odd, scaled,
                       mme, pong, pong_factors, ping, ping_factors, table, kept_top, kept_total, ddr, mesh,
                       to_softmax, from_softmax, to_norm, from_norm);
        else
            mem_c_step(word0, word1, reg0, reg1, reg2, reg3, scores0, scores1, scores2, scores3, how, odd, scaled,
                       mme, ping, ping_factors, pong, pong_factors, table, kept_top, kept_total, ddr, mesh,
                       to_softmax, from_softmax, to_norm, from_norm);
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
