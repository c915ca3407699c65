// LPDDR: weights and vectors to MemB0 and MemB1.
//
// A word of 1024 bit a cycle, as DDR; of a vector, a line of port 0 a cycle in the lower half of a word.
// SPDX-License-Identifier: Apache-2.0
#include "counter.h"
#include "dataflow.h"
#include "port.h"
#include "units.h"

namespace rsn::xnn {

static_assert(floats_per_bias_word == line_floats, "a word of a vector is a line");

void lpddr(hls::stream<Transfer> &uops, Port port0, Port port1, hls::stream<Beat> &mem_b0, hls::stream<Beat> &mem_b1) {
    unsigned number = 0;
lpddr_uops:
    for (;;) {
        const Transfer uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        if (!uop.load) continue;
        if (uop.bias) {
            const unsigned count = uop.size / line_floats;
            RSN_STALLS();
            if (count) port0.read_request(uop.addr, count);
        load_vector:
            for (Countdown<32> left(count); left.more(); left.next()) {
#pragma HLS PIPELINE II=ii::port style=stp
                const Beat word = joined(port0.read(), Line(0.0f));
                if (uop.peer == 0) mem_b0 << word;
                else mem_b1 << word;
            }
            continue;
        }
        const unsigned bursts = uop.size / smallest_load;
        request_first(uop, port0, port1);
    load_bursts:
        for (unsigned i = 0; i < bursts; ++i) {
            RSN_STALLS();
            if (i + bursts_ahead < bursts) request(uop, i + bursts_ahead, port0, port1);
        load_words:
            for (unsigned w = 0; w < port_lines; ++w) {
#pragma HLS PIPELINE II=ii::port style=stp
                const Beat word = joined(port0.read(), port1.read());
                if (uop.peer == 0) mem_b0 << word;
                else mem_b1 << word;
            }
        }
    }
}

}  // namespace rsn::xnn
