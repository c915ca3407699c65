// DDR and LPDDR: one uOP after the other, loads and stores never at once.
//
// A word of 1024 bit a cycle: 64 lines from port 0 with 64 from port 1 are 8 KiB of memory, or 32 rows of a block. A
// word of a vector is two lines of port 0, in two cycles. Rows of X are normalised on their way.
// SPDX-License-Identifier: Apache-2.0
#include "../pl/dataflow.h"
#include "../pl/port.h"
#include "units.h"

namespace rsn::xnn {

namespace {

constexpr unsigned ddr_sinks = 6;  // peers before the sources

// What the field `to` of Lpddr says.
enum class To : std::uint8_t { w0, w1, vector, table, gains };

}  // namespace

void ddr(hls::stream<DdrTransfer> &uops, Port port0, Port port1, hls::stream<Stored> &x_store0,
         hls::stream<Stored> &x_store1, hls::stream<Stored> &x_store2, hls::stream<Stored> &x_store3,
         hls::stream<Stored> &x_store4, hls::stream<Stored> &x_store5, hls::stream<Beat> &post0, hls::stream<Beat> &post1,
         hls::stream<Beat> &post2, hls::stream<Beat> &post3, hls::stream<Beat> &post4, hls::stream<Beat> &post5,
         hls::stream<Beat> &w1, hls::stream<Beat> &k, hls::stream<Beat> &v, hls::stream<Beat> &t1,
         hls::stream<Beat> &t3, hls::stream<Beat> &t5) {
    unsigned number = 0;
ddr_uops:
    for (;;) {
        const DdrTransfer uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const unsigned bursts = uop.size / smallest_load;
        if (uop.peer < ddr_sinks) {
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
                    case 0: t1 << word; break;
                    case 1: t3 << word; break;
                    case 2: t5 << word; break;
                    case 3: k << word; break;
                    case 4: v << word; break;
                    default: w1 << word; break;
                    }
                }
            }
            continue;
        }
    store_bursts:
        for (unsigned i = 0; i < bursts; ++i) {
            RSN_STALLS();
            const std::size_t at = first_line(uop, i);
            port0.write_request(at, port_lines);
            port1.write_request(at + port_lines, port_lines);
        store_words:
            for (unsigned w = 0; w < port_lines; ++w) {
#pragma HLS PIPELINE II=ii::port style=stp
                Stored in = {};
                switch (uop.peer - ddr_sinks) {
                case 0: in = x_store0.read(); break;
                case 1: in = x_store1.read(); break;
                case 2: in = x_store2.read(); break;
                case 3: in = x_store3.read(); break;
                case 4: in = x_store4.read(); break;
                case 5: in = x_store5.read(); break;
                case 6: in.word = post0.read(); break;
                case 7: in.word = post1.read(); break;
                case 8: in.word = post2.read(); break;
                case 9: in.word = post3.read(); break;
                case 10: in.word = post4.read(); break;
                default: in.word = post5.read(); break;
                }
                Beat word;
                for (unsigned r = 0; r < word_rows; ++r) {
#pragma HLS UNROLL
                    const Factors row(in.mean[r], in.squares[r], in.count, in.inverse, in.eps, in.rms);
                    const float times = in.normalise ? row.times : 1.0f, plus = in.normalise ? row.plus : -0.0f;
                    for (unsigned n = r * line_floats; n < (r + 1) * line_floats; ++n) {
#pragma HLS UNROLL
                        word[n] = fmadd(in.word[n], times, plus);
                    }
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

void lpddr(hls::stream<LpddrTransfer> &uops, Port port0, Port port1, hls::stream<Beat> &w0, hls::stream<Beat> &w1,
           hls::stream<Beat> &c0, hls::stream<Beat> &c1, hls::stream<Beat> &c2, hls::stream<Beat> &c3,
           hls::stream<Beat> &c4, hls::stream<Beat> &c5, hls::stream<Beat> &post0, hls::stream<Beat> &post1,
           hls::stream<Beat> &post2, hls::stream<Beat> &post3, hls::stream<Beat> &post4, hls::stream<Beat> &post5) {
    unsigned number = 0;
lpddr_uops:
    for (;;) {
        const LpddrTransfer uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const To to = static_cast<To>(uop.to);
        if (to == To::vector || to == To::gains) {
            const unsigned words = uop.size / beat_floats;
            RSN_STALLS();
            if (words) port0.read_request(uop.addr, 2 * words);
        load_vectors:
            for (Countdown<32> left(words); left.more(); left.next()) {
#pragma HLS PIPELINE II=ii::vector style=stp
                const Line first = port0.read();
                const Beat word = joined(first, port0.read());
                if (to == To::vector) {
                    if (uop.lanes & 1) c0 << word;
                    if (uop.lanes & 2) c1 << word;
                    if (uop.lanes & 4) c2 << word;
                    if (uop.lanes & 8) c3 << word;
                    if (uop.lanes & 16) c4 << word;
                    if (uop.lanes & 32) c5 << word;
                } else {
                    if (uop.lanes & 1) post0 << word;
                    if (uop.lanes & 2) post1 << word;
                    if (uop.lanes & 4) post2 << word;
                    if (uop.lanes & 8) post3 << word;
                    if (uop.lanes & 16) post4 << word;
                    if (uop.lanes & 32) post5 << word;
                }
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
                if (to == To::w0) {
                    w0 << word;
                } else if (to == To::w1) {
                    w1 << word;
                } else {
                    if (uop.lanes & 1) post0 << word;
                    if (uop.lanes & 2) post1 << word;
                    if (uop.lanes & 4) post2 << word;
                    if (uop.lanes & 8) post3 << word;
                    if (uop.lanes & 16) post4 << word;
                    if (uop.lanes & 32) post5 << word;
                }
            }
        }
    }
}

}  // namespace rsn::xnn
