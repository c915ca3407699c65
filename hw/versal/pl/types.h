// What travels between the units.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_PL_TYPES_H
#define RSN_PL_TYPES_H

#include <cstdint>

#include <ap_int.h>
#include <hls_burst_maxi.h>
#include <hls_stream.h>
#include <hls_vector.h>

#include "machine_isa.h"

namespace rsn::xnn {

// 512 bit: one access of an AXI port of a memory.
using Line = hls::vector<float, line_floats>;

// An AXI port, whose bursts the units ask for themselves: they know better than the compiler what comes next.
using Port = hls::burst_maxi<Line>;

// 1024 bit: one word of every stream between two units. From and to off-chip memory it is two lines, one of each port;
// from and to a Mesh it is a beat: 16 lanes of 2 floats, lane i at 2i and 2i+1.
using Beat = hls::vector<float, beat_floats>;

// 64 bit: one lane of a beat, on its way to or from an AIE tile.
using Lane = hls::vector<float, lane_floats>;

// Which format the words of a mOP or uOP have: a unit with registers takes several.
using Format = ap_uint<Header::bits::opcode::width>;

// A mOP in the FIFO of its decoder, with the header it came under. A terminator takes a slot too.
template <unsigned Words>
struct Mop {
    bool last;
    Format format;
    std::uint8_t window;  // mOPs in its packet
    std::uint16_t reuse;
    Word words[Words];
};

// A uOP in the FIFO of its unit. Where last is set it is empty: the unit ends.
template <unsigned Words>
struct Uop {
    bool last;
    Format format;
    Word words[Words];
};

// What these words say. The processes of a dataflow region take the words of their uOP and decode them each for itself:
// scalars travel into a region as they are, for structs HLS would have to copy them by a constructor.
template <typename Op, typename... Words>
Op decoded(Words... words) {
#pragma HLS INLINE
    static_assert(sizeof...(Words) == Op::words, "a format has a fixed number of words");
    const Word all[] = {words...};
    return Op::decode(all);
}

}  // namespace rsn::xnn

#endif  // RSN_PL_TYPES_H
