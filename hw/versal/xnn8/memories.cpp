// X, X8 and T of a lane: each cycle one cell is written and one read; of T, some of the rows of a cell.
// SPDX-License-Identifier: Apache-2.0
#include "units.h"

namespace rsn::xnn8::pl {

namespace {

using XCells = XCell[x_depth];
using X8Cells = X8Cell[x8_depth];
using TCells = TRow[4][t_depth];  // a row of a cell is a word of an URAM, which is written by itself

template <unsigned Depth, typename Word>
void put(Word (&cells)[Depth], const CellWrite<Word> &write) {
#pragma HLS INLINE
    cells[write.at] = write.cell;
}
template <unsigned Depth, typename Word>
Word at(const Word (&cells)[Depth], unsigned address) {
#pragma HLS INLINE
    return cells[address];
}
void put(TCells &cells, const CellWrite<TCell> &write) {
#pragma HLS INLINE
    for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
        TRow row;
        row.exponent = write.cell.exponent[r];
        for (unsigned i = 0; i < 8; ++i) {
#pragma HLS UNROLL
            row.of[i] = write.cell.of[8 * r + i];
        }
        if (write.rows >> r & 1) cells[r][write.at] = row;
    }
}
TRow row_of(const TCell &cell, unsigned row) {
#pragma HLS INLINE
    TRow made = {};
    for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
        if (row != r) continue;
        made.exponent = cell.exponent[r];
        for (unsigned i = 0; i < 8; ++i) {
#pragma HLS UNROLL
            made.of[i] = cell.of[8 * r + i];
        }
    }
    return made;
}
TCell at(const TCells &cells, unsigned address) {
#pragma HLS INLINE
    TCell cell;
    for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
        const TRow row = cells[r][address];
        cell.exponent[r] = row.exponent;
        for (unsigned i = 0; i < 8; ++i) {
#pragma HLS UNROLL
            cell.of[8 * r + i] = row.of[i];
        }
    }
    return cell;
}

// Words behind the last cell have 32 bits and are in LUTs: factors of rows, for which each block RAM of X8 would be one
// word too short.
// Of T, the third reader gets one row of a cell.
constexpr unsigned row_reader = 2;
template <unsigned Readers, unsigned Depth, typename Cells, typename Word>
void serve(Cells &cells, hls::stream<CellWrite<Word>> &writes, hls::stream<Token> &done,
           hls::stream<CellRead> reads[Readers], hls::stream<Word> words[Readers], hls::stream<TRow> *rows = nullptr) {
#pragma HLS INLINE
    hls::vector<int8_t, 4> behind[lane_rows];
#pragma HLS AGGREGATE variable=behind compact=bit
#pragma HLS BIND_STORAGE variable=behind type=ram_s2p impl=lutram
    bool in_on = Readers == 1;  // who writes X or T reads it, too, and ends last
    unsigned readers = Readers;
memory_cycles:
    while (in_on || readers) {
#pragma HLS PIPELINE II=ii::cells style=flp
#pragma HLS DEPENDENCE variable=cells type=inter dependent=false
        if constexpr (Readers == 1) RSN_WAIT_FOR_ANY(writes, reads[0]);
        else if constexpr (Readers == 2) RSN_WAIT_FOR_ANY(writes, reads[0], reads[1]);
        else RSN_WAIT_FOR_ANY(writes, reads[0], reads[1], reads[2], reads[3]);
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
                put(cells, write);
            }
            if (write.told) done << Token(1);
        }
        CellRead read = {true, 0};
        unsigned reader = Readers;  // whose turn it is: of those that ask, the first one
        for (unsigned i = 0; i < Readers; ++i) {
#pragma HLS UNROLL
            if (reader != Readers || reads[i].empty()) continue;
            read = reads[i].read();
            reader = i;
        }
        const bool any = reader != Readers;
        if (any && read.last) --readers;
        if (any && !read.last) {
            Word cell = at(cells, (reader == row_reader ? read.at / 4 : read.at) % Depth);
            if (Readers == 1 && read.at >= Depth) {
                const hls::vector<int8_t, 4> factor = behind[read.at % lane_rows];
                for (unsigned i = 0; i < 4; ++i) {
#pragma HLS UNROLL
                    cell.of[i] = factor[i];
                }
            }
            for (unsigned i = 0; i < Readers; ++i) {
#pragma HLS UNROLL
                if (i != row_reader && reader == i) words[i - (i > row_reader)] << cell;
            }
            if constexpr (Readers > row_reader) {
                if (reader == row_reader) *rows << row_of(cell, read.at % 4);
            }
        }
    }
}

}  // namespace

void x_memory(hls::stream<CellWrite<XCell>> &writes, hls::stream<Token> &done, hls::stream<CellRead> reads[2],
              hls::stream<XCell> words[2]) {
    RSN_MEMORY(XCells, cells);
#pragma HLS AGGREGATE variable=cells compact=bit
#pragma HLS BIND_STORAGE variable=cells type=ram_s2p impl=uram
    serve<2, x_depth>(cells, writes, done, reads, words);
}

void x8_memory(hls::stream<CellWrite<X8Cell>> &writes, hls::stream<Token> &done, hls::stream<CellRead> reads[1],
               hls::stream<X8Cell> words[1]) {
    RSN_MEMORY(X8Cells, cells);
#pragma HLS AGGREGATE variable=cells compact=bit
#pragma HLS BIND_STORAGE variable=cells type=ram_s2p impl=bram
    serve<1, x8_depth>(cells, writes, done, reads, words);
}

void t_memory(hls::stream<CellWrite<TCell>> &writes, hls::stream<Token> &done, hls::stream<CellRead> reads[4],
              hls::stream<TCell> words[3], hls::stream<TRow> &rows) {
    RSN_MEMORY(TCells, cells);
#pragma HLS AGGREGATE variable=cells compact=bit
#pragma HLS ARRAY_PARTITION variable=cells complete dim=1
#pragma HLS BIND_STORAGE variable=cells type=ram_s2p impl=uram
    serve<4, t_depth>(cells, writes, done, reads, words, &rows);
}

}  // namespace rsn::xnn8::pl
