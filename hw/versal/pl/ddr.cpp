// DDR: feature maps to MemA and MemB, results from MemC, one uOP after the other, loads and stores never at once.
//
// A word of 1024 bit a cycle: 64 lines from port 0 with 64 from port 1 are 8 KiB of memory, or 32 rows of a block. Rows
// that are kept of a block go one by one, each a burst of its own.
// SPDX-License-Identifier: Apache-2.0
#include "dataflow.h"
#include "port.h"
#include "units.h"

namespace rsn::xnn {

namespace {

constexpr unsigned table_rows = 128;
constexpr unsigned row_lines = block_cols / line_floats;
static_assert(words_per_block / (block_rows / 2) == row_lines, "a word holds a line of two rows");

// The line at which a row of a matrix of blocks begins, from that of row 0 on.
std::size_t line_of(std::uint32_t row, std::uint32_t pitch) {
#pragma HLS INLINE
    const unsigned below = row % block_rows;
    return std::size_t{row / block_rows} * pitch + below / 32 * 2 * port_lines + below % 2 * port_lines +
           below % 32 / 2 * row_lines;
}

}  // namespace

void ddr(hls::stream<DdrTransfer> &uops, Port port0, Port port1, hls::stream<Beat> &mem_a0, hls::stream<Beat> &mem_a1,
         hls::stream<Beat> &mem_a2, hls::stream<Beat> &mem_b0, hls::stream<Beat> &mem_b1, hls::stream<Beat> &mem_b2,
         hls::stream<Beat> &mem_c0, hls::stream<Beat> &mem_c1, hls::stream<Beat> &mem_c2, hls::stream<Beat> &mem_c3,
         hls::stream<Beat> &mem_c4, hls::stream<Beat> &mem_c5) {
    unsigned number = 0;
    std::uint32_t table[table_rows] = {};
    Beat block[words_per_block];
#pragma HLS BIND_STORAGE variable=block type=ram_2p impl=bram
ddr_uops:
    for (;;) {
        const DdrTransfer uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const unsigned bursts = uop.size / smallest_load;
        if (uop.load) {
            request_first(uop, port0, port1);
        load_bursts:
            for (unsigned i = 0; i < bursts; ++i) {
                RSN_STALLS();
                if (i + bursts_ahead < bursts) request(uop, i + bursts_ahead, port0, port1);
            load_words:
                for (unsigned w = 0; w < port_lines; ++w) {
#pragma HLS PIPELINE II=ii::port style=stp
                    const Beat word = joined(port0.read(), port1.read());
                    switch (uop.peer) {
                    case 0: mem_a0 << word; break;
                    case 1: mem_a1 << word; break;
                    case 2: mem_a2 << word; break;
                    case 3: mem_b0 << word; break;
                    case 4: mem_b1 << word; break;
                    default: mem_b2 << word; break;
                    }
                }
            }
        } else if (uop.set) {
            table[uop.entry] = uop.row;
        } else if (uop.keep) {
            RSN_STALLS();
        keep_words:
            for (unsigned w = 0; w < words_per_block; ++w) {
#pragma HLS PIPELINE II=ii::port style=flp
                switch (uop.peer) {
                case 0: block[w] = mem_c0.read(); break;
                case 1: block[w] = mem_c1.read(); break;
                case 2: block[w] = mem_c2.read(); break;
                case 3: block[w] = mem_c3.read(); break;
                case 4: block[w] = mem_c4.read(); break;
                default: block[w] = mem_c5.read(); break;
                }
            }
            unsigned source = uop.source;
            std::size_t matrix = uop.addr;
        keep_chunks:
            for (unsigned chunk = 0; chunk < uop.chunks; ++chunk) {
                const std::uint32_t first = uop.row + (uop.table ? table[uop.entry + chunk] : 0);
            keep_rows:
                for (unsigned i = 0; i < uop.rows; ++i) {
                    if (first + i < uop.limit) {
                        port0.write_request(matrix + line_of(first + i, uop.pitch), row_lines);
                    keep_lines:
                        for (unsigned w = 0; w < row_lines; ++w) {
#pragma HLS PIPELINE II=ii::port style=stp
                            port0.write(half(block[source / 2 * row_lines + w], source % 2));
                        }
                        port0.write_response();
                    }
                    ++source;
                }
                matrix += uop.chunk_stride;
            }
        } else if (uop.store) {
        store_bursts:
            for (unsigned i = 0; i < bursts; ++i) {
                RSN_STALLS();
                const std::size_t at = first_line(uop, i);
                port0.write_request(at, port_lines);
                port1.write_request(at + port_lines, port_lines);
            store_words:
                for (unsigned w = 0; w < port_lines; ++w) {
#pragma HLS PIPELINE II=ii::port style=stp
                    Beat word;
                    switch (uop.peer) {
                    case 0: word = mem_c0.read(); break;
                    case 1: word = mem_c1.read(); break;
                    case 2: word = mem_c2.read(); break;
                    case 3: word = mem_c3.read(); break;
                    case 4: word = mem_c4.read(); break;
                    default: word = mem_c5.read(); break;
                    }
                    port0.write(half(word, 0));
                    port1.write(half(word, 1));
                }
                if (i >= bursts_ahead) answer(port0, port1);
            }
            // A load that follows reads what has been stored: no write may be under way when it begins.
        store_answers:
            for (unsigned i = 0; i < bursts && i < bursts_ahead; ++i) answer(port0, port1);
        }
    }
}

}  // namespace rsn::xnn
