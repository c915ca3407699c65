// Both AXI ports of a memory: of every 8 KiB, counted from the start of a transfer, port 0 moves the first half, port 1
// the second. Each half is one burst; requests run ahead, so that the memory's latency hides behind data on its way.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_PORT_H
#define RSN_PL_PORT_H

#include "types.h"

namespace rsn::xnn {

// Bursts requested ahead: a block. With the burst that is being moved, it is within the adapters' limit of outstanding
// requests, which the top function sets.
constexpr unsigned bursts_ahead = 4;

// A Transfer has the address and the size of a chunk.
template <typename Transfer>
std::size_t first_line(const Transfer &uop, unsigned burst) {
#pragma HLS INLINE
    return static_cast<std::size_t>(uop.addr) + std::size_t{burst} * 2 * port_lines;
}

template <typename Transfer>
void request(const Transfer &uop, unsigned burst, Port &port0, Port &port1) {
#pragma HLS INLINE
    port0.read_request(first_line(uop, burst), port_lines);
    port1.read_request(first_line(uop, burst) + port_lines, port_lines);
}

template <typename Transfer>
void request_first(const Transfer &uop, Port &port0, Port &port1) {
#pragma HLS INLINE
request_bursts:
    for (unsigned i = 0; i < bursts_ahead && i < uop.size / smallest_load; ++i) request(uop, i, port0, port1);
}

inline void answer(Port &port0, Port &port1) {
#pragma HLS INLINE
    port0.write_response();
    port1.write_response();
}

inline Beat joined(const Line &line0, const Line &line1) {
#pragma HLS INLINE
    Beat word;
join_lines:
    for (unsigned i = 0; i < line_floats; ++i) {
#pragma HLS UNROLL
        word[i] = line0[i];
        word[line_floats + i] = line1[i];
    }
    return word;
}

inline Line half(const Beat &word, unsigned port) {
#pragma HLS INLINE
    Line line;
half_word:
    for (unsigned i = 0; i < line_floats; ++i) {
#pragma HLS UNROLL
        line[i] = word[port * line_floats + i];
    }
    return line;
}

}  // namespace rsn::xnn

#endif  // RSN_PL_PORT_H
