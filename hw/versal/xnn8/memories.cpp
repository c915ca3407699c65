// X, X8 and T of a lane: each cycle one cell is written and one read.
// SPDX-License-Identifier: Apache-2.0
#include "units.h"

namespace rsn::xnn8::pl {

namespace {

using XCells = XCell[x_depth];
using X8Cells = X8Cell[x8_depth];
using TCells = TCell[t_depth];

// Words behind the last cell have 32 bits and are in LUTs: factors of rows, for which each block RAM of X8 would be one
// word too short.
template <unsigned Readers, unsigned Depth, typename Word>
void serve(Word (&cells)[Depth], hls::stream<CellWrite<Word>> &writes, hls::stream<Token> &done,
           hls::stream<CellRead> reads[Readers], hls::stream<Word> words[Readers]) {
#pragma HLS INLINE
    hls::vector<int8_t, 4> behind[lane_rows];
#pragma HLS AGGREGATE variable=behind compact=bit
#pragma HLS BIND_STORAGE variable=behind type=ram_s2p impl=lutram
    bool in_on = true;
    unsigned readers = Readers;
memory_cycles:
    while (in_on || readers) {
#pragma HLS PIPELINE II=ii::cells style=flp
#pragma HLS DEPENDENCE variable=cells type=inter dependent=false
        if constexpr (Readers == 1) RSN_WAIT_FOR_ANY(writes, reads[0]);
        else RSN_WAIT_FOR_ANY(writes, reads[0], reads[1]);
        if (!writes.empty()) {
            const CellWrite<Word> write = writes.read();
            if (write.last) {
                in_on = false;
            } else if (Readers == 1 && write.at >= Depth) {
                hls::vector<int8_t, 4> factor;
                for (unsigned i = 0; i < 4; ++i) {
#pragma HLS UNROLL
                    factor[i] = static_cast<int8_t>(write.cell.of[i]);
                }
                behind[write.at % lane_rows] = factor;
            } else {
                cells[write.at] = write.cell;
            }
            if (write.told) done << Token(1);
        }
        CellRead read = {true, 0};
        bool first = !reads[0].empty(), any = first;
        if (first) read = reads[0].read();
        if constexpr (Readers == 2) {
            if (!first && !reads[1].empty()) {
                read = reads[1].read();
                any = true;
            }
        }
        if (any && read.last) --readers;
        if (any && !read.last) {
            Word cell = cells[read.at % Depth];
            if (Readers == 1 && read.at >= Depth) {
                const hls::vector<int8_t, 4> factor = behind[read.at % lane_rows];
                for (unsigned i = 0; i < 4; ++i) {
#pragma HLS UNROLL
                    cell.of[i] = factor[i];
                }
            }
            if (first) words[0] << cell;
            else words[Readers - 1] << cell;
        }
    }
}

}  // namespace

void x_memory(hls::stream<CellWrite<XCell>> &writes, hls::stream<Token> &done, hls::stream<CellRead> reads[2],
              hls::stream<XCell> words[2]) {
    RSN_MEMORY(XCells, cells);
#pragma HLS AGGREGATE variable=cells compact=bit
#pragma HLS BIND_STORAGE variable=cells type=ram_s2p impl=uram
    serve<2>(cells, writes, done, reads, words);
}

void x8_memory(hls::stream<CellWrite<X8Cell>> &writes, hls::stream<Token> &done, hls::stream<CellRead> reads[1],
               hls::stream<X8Cell> words[1]) {
    RSN_MEMORY(X8Cells, cells);
#pragma HLS AGGREGATE variable=cells compact=bit
#pragma HLS BIND_STORAGE variable=cells type=ram_s2p impl=bram
    serve<1>(cells, writes, done, reads, words);
}

void t_memory(hls::stream<CellWrite<TCell>> &writes, hls::stream<Token> &done, hls::stream<CellRead> reads[2],
              hls::stream<TCell> words[2]) {
    RSN_MEMORY(TCells, cells);
#pragma HLS AGGREGATE variable=cells compact=bit
#pragma HLS BIND_STORAGE variable=cells type=ram_s2p impl=uram
    serve<2>(cells, writes, done, reads, words);
}

}  // namespace rsn::xnn8::pl
