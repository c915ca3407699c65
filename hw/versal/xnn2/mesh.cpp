// MeshA and MeshB of a lane: each passes the tiles of one of its sources on to the MME, a beat a cycle.
// SPDX-License-Identifier: Apache-2.0
#include "../pl/dataflow.h"
#include "../pl/lanes.h"
#include "units.h"

namespace rsn::xnn {

namespace {

// A beat of the source of this number.
inline Beat read_from(unsigned source, hls::stream<Beat> &first, hls::stream<Beat> &second, hls::stream<Beat> &third) {
#pragma HLS INLINE
    return source == 0 ? first.read() : source == 1 ? second.read() : third.read();
}
inline Beat read_from(unsigned source, hls::stream<Beat> &first, hls::stream<Beat> &second, hls::stream<Beat> &third,
                      hls::stream<Beat> &fourth) {
#pragma HLS INLINE
    return source < 3 ? read_from(source, first, second, third) : fourth.read();
}

// Op: MeshA or MeshB.
template <typename Op, typename... Streams>
void pass_tiles(hls::stream<Uop<Op::words>> &uops, hls::stream<Lane> mme[lanes], Streams &...sources) {
#pragma HLS INLINE
    unsigned number = 0;
mesh_uops:
    for (;;) {
        const Uop<Op::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const Op op = Op::decode(uop.words);
    mesh_tiles:
        for (Countdown<24> left(op.tiles); left.more(); left.next()) {
        mesh_beats:
            for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::mesh style=flp
                split(read_from(op.source, sources...), mme);
            }
        }
    }
}

}  // namespace

void mesh_a(hls::stream<Uop<MeshA::words>> &uops, hls::stream<Beat> &x_even, hls::stream<Beat> &x_odd,
            hls::stream<Beat> &t_even, hls::stream<Beat> &t_odd, hls::stream<Lane> mme[lanes]) {
    pass_tiles<MeshA>(uops, mme, x_even, x_odd, t_even, t_odd);
}

void mesh_b_even(hls::stream<Uop<MeshB::words>> &uops, hls::stream<Beat> &w0, hls::stream<Beat> &k0,
                 hls::stream<Beat> &k1, hls::stream<Lane> mme[lanes]) {
    pass_tiles<MeshB>(uops, mme, w0, k0, k1);
}

void mesh_b_odd(hls::stream<Uop<MeshB::words>> &uops, hls::stream<Beat> &w0, hls::stream<Beat> &w1,
                hls::stream<Beat> &v0, hls::stream<Beat> &v1, hls::stream<Lane> mme[lanes]) {
    pass_tiles<MeshB>(uops, mme, w0, w1, v0, v1);
}

}  // namespace rsn::xnn
