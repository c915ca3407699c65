// MemB: right operands. Fills one buffer from LPDDR or DDR while it sends the other to MeshB.
//
// 256 words to a block in, transposed or not, 16 floats of a vector; 512 beats to a tile out; one a cycle each.
// SPDX-License-Identifier: Apache-2.0
#include "counter.h"
#include "dataflow.h"
#include "tiles.h"
#include "units.h"

namespace rsn::xnn {

namespace {

constexpr unsigned cols = buffers::MemB0_cols;
using Buffer = Cell<turning>[turning][depth_of(buffers::MemB0_rows, cols)];
static_assert(buffers::MemB1_rows == buffers::MemB0_rows && buffers::MemB1_cols == cols);

constexpr unsigned cols2 = buffers::MemB2_cols;
constexpr unsigned values_half = tile / 2;  // columns of values in a tile that is not sent whole
using Buffer2 = Cell<plain>[plain][depth_of(buffers::MemB2_rows, cols2)];

// dim1 x dim2 elements whose blocks come as dim2 x dim1.
void fill_transposed(const MemB &op, hls::stream<Beat> &ddr, Buffer &buffer) {
#pragma HLS INLINE
transpose_cols:
    for (unsigned col = 0; col + block_rows <= op.dim2; col += block_rows) {
    transpose_blocks:
        for (unsigned row = 0; row + block_cols <= op.dim1; row += block_cols) {
        transpose_words:
            for (unsigned w = 0; w < words_per_block; ++w) {
#pragma HLS PIPELINE II=ii::load style=flp
                put_word_transposed<cols>(buffer, row + word_col(w), col + word_row(w), ddr.read());
            }
        }
    }
}

// Groups of 32 floats into every fourth row, where an MME looks for them. The row below is overwritten too.
void fill_vector(const MemB &op, hls::stream<Beat> &lpddr, Buffer &buffer) {
#pragma HLS INLINE
vector_blocks:
    for (unsigned j = 0; j < op.dim2; ++j) {
    vector_words:
        for (ap_uint<counter_bits + 1> half = 0; half < 2u * op.dim1; ++half) {
#pragma HLS PIPELINE II=ii::load style=flp
            put_word<cols>(buffer, half / 2 * 4, j * 32 + half % 2 * floats_per_bias_word, lpddr.read());
        }
    }
}

void load(Word word0, Word word1, hls::stream<Beat> &lpddr, hls::stream<Beat> &ddr, Buffer &buffer) {
    const MemB op = decoded<MemB>(word0, word1);
    if (!op.load) return;
    if (op.bias) fill_vector(op, lpddr, buffer);
    else if (op.transpose) fill_transposed(op, ddr, buffer);
    else fill<cols>(buffer, op.dim1, op.dim2, lpddr);
}

void send(Word word0, Word word1, const Buffer &buffer, hls::stream<Beat> &mesh) {
    const MemB op = decoded<MemB>(word0, word1);
send_times:
    for (unsigned a = 0; op.send && a < op.acc_a; ++a) {
    send_cols:
        for (unsigned b = 0; b < op.acc_b; ++b) send_right<cols>(buffer, 0, b * tile, mesh);
    }
}

void mem_b_step(Word word0, Word word1, hls::stream<Beat> &lpddr, hls::stream<Beat> &ddr, Buffer &filled,
                const Buffer &sent, hls::stream<Beat> &mesh) {
#pragma HLS DATAFLOW
    RSN_DATAFLOW();
    RSN_PROCESS("", load, word0, word1, lpddr, ddr, filled);
    RSN_PROCESS("", send, word0, word1, sent, mesh);
}

void load2(Word word0, Word word1, hls::stream<Beat> &ddr, Buffer2 &buffer) {
    const MemB op = decoded<MemB>(word0, word1);
    if (op.load) fill<cols2>(buffer, op.dim1, op.dim2, ddr);
}

// Column after column of whole tiles; or, again and again, the left half of a column of tiles, beside zeros.
void send2(Word word0, Word word1, Word config, const Buffer2 &buffer, hls::stream<Beat> &mesh) {
    const MemB op = decoded<MemB>(word0, word1);
    const bool whole = decoded<MemBConfig>(config).whole;
send2_times:
    for (unsigned a = 0; op.send && a < op.acc_a; ++a) {
    send2_cols:
        for (unsigned b = 0; b < op.acc_b; ++b) {
        send2_rows:
            for (unsigned k = 0; k < op.acc_k; ++k)
                send_right<cols2>(buffer, k * tile, whole ? b * tile : 0, mesh, whole ? tile : values_half);
        }
    }
}

void mem_b2_step(Word word0, Word word1, Word config, hls::stream<Beat> &ddr, Buffer2 &filled, const Buffer2 &sent,
                 hls::stream<Beat> &mesh) {
#pragma HLS DATAFLOW
    RSN_DATAFLOW();
    RSN_PROCESS("", load2, word0, word1, ddr, filled);
    RSN_PROCESS("", send2, word0, word1, config, sent, mesh);
}

}  // namespace

void mem_b(hls::stream<Uop<mem_b_words>> &uops, hls::stream<Beat> &lpddr, hls::stream<Beat> &ddr,
           hls::stream<Beat> &mesh) {
#pragma HLS ALLOCATION function instances=mem_b_step limit=1
    Buffer ping, pong;
#pragma HLS ARRAY_PARTITION variable=ping complete dim=1
#pragma HLS ARRAY_PARTITION variable=pong complete dim=1
#pragma HLS BIND_STORAGE variable=ping type=ram_s2p impl=uram
#pragma HLS BIND_STORAGE variable=pong type=ram_s2p impl=uram
    poison(ping);
    poison(pong);
    bool cur = false;  // pong is the current one
    unsigned number = 0;
mem_b_uops:
    for (;;) {
        const Uop<mem_b_words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        if (uop.format == MemBConfig::opcode) continue;  // it says something to MemB2 alone
        const Word word0 = uop.words[0], word1 = uop.words[1];
        if (cur) mem_b_step(word0, word1, lpddr, ddr, ping, pong, mesh);
        else mem_b_step(word0, word1, lpddr, ddr, pong, ping, mesh);
        cur = !cur;
    }
}

void mem_b2(hls::stream<Uop<mem_b_words>> &uops, hls::stream<Beat> &ddr, hls::stream<Beat> &mesh) {
#pragma HLS ALLOCATION function instances=mem_b2_step limit=1
    Buffer2 ping, pong;
#pragma HLS ARRAY_PARTITION variable=ping complete dim=1
#pragma HLS ARRAY_PARTITION variable=pong complete dim=1
#pragma HLS BIND_STORAGE variable=ping type=ram_s2p impl=uram
#pragma HLS BIND_STORAGE variable=pong type=ram_s2p impl=uram
    poison(ping);
    poison(pong);
    Word config = 0;
    bool cur = false;
    unsigned number = 0;
mem_b2_uops:
    for (;;) {
        const Uop<mem_b_words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        if (uop.format == MemBConfig::opcode) {
            config = uop.words[0];
            continue;
        }
        const Word word0 = uop.words[0], word1 = uop.words[1];
        if (cur) mem_b2_step(word0, word1, config, ddr, ping, pong, mesh);
        else mem_b2_step(word0, word1, config, ddr, pong, ping, mesh);
        cur = !cur;
    }
}

}  // namespace rsn::xnn
