// DDR: feature maps to MemA and MemB, results from MemC, one uOP after the other, loads and stores never at once.
//
// A word of 1024 bit a cycle: 64 lines from port 0 with 64 from port 1 are 8 KiB of memory, or 32 rows of a block.
// SPDX-License-Identifier: Apache-2.0
#include "dataflow.h"
#include "port.h"
#include "units.h"

namespace rsn::xnn {

void ddr(hls::stream<Transfer> &uops, Port port0, Port port1, hls::stream<Beat> &mem_a0, hls::stream<Beat> &mem_a1,
         hls::stream<Beat> &mem_a2, hls::stream<Beat> &mem_b0, hls::stream<Beat> &mem_b1, hls::stream<Beat> &mem_b2,
         hls::stream<Beat> &mem_c0, hls::stream<Beat> &mem_c1, hls::stream<Beat> &mem_c2, hls::stream<Beat> &mem_c3,
         hls::stream<Beat> &mem_c4, hls::stream<Beat> &mem_c5) {
    unsigned number = 0;
ddr_uops:
    for (;;) {
        const Transfer uop = uops.read();
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
