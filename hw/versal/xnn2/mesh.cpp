// MeshA and MeshB of a lane: each passes the tiles of one of its sources on to the MME, a beat a cycle.
// SPDX-License-Identifier: Apache-2.0
#include "../pl/dataflow.h"
#include "../pl/lanes.h"
#include "units.h"

namespace rsn::xnn {

void mesh_a(hls::stream<Uop<MeshA::words>> &uops, hls::stream<Beat> &x_even, hls::stream<Beat> &x_odd,
            hls::stream<Beat> &t_even, hls::stream<Beat> &t_odd, hls::stream<Lane> mme[lanes]) {
    unsigned number = 0;
mesh_a_uops:
    for (;;) {
        const Uop<MeshA::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const MeshA op = MeshA::decode(uop.words);
    mesh_a_tiles:
        for (Countdown<24> left(op.tiles); left.more(); left.next()) {
        mesh_a_beats:
            for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::mesh style=flp
                Beat beat;
                switch (op.source) {
                case 0: beat = x_even.read(); break;
                case 1: beat = x_odd.read(); break;
                case 2: beat = t_even.read(); break;
                default: beat = t_odd.read(); break;
                }
                split(beat, mme);
            }
        }
    }
}

void mesh_b_even(hls::stream<Uop<MeshB::words>> &uops, hls::stream<Beat> &w0, hls::stream<Beat> &k0,
                 hls::stream<Beat> &k1, hls::stream<Lane> mme[lanes]) {
    unsigned number = 0;
mesh_b_even_uops:
    for (;;) {
        const Uop<MeshB::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const MeshB op = MeshB::decode(uop.words);
    mesh_b_even_tiles:
        for (Countdown<24> left(op.tiles); left.more(); left.next()) {
        mesh_b_even_beats:
            for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::mesh style=flp
                split(op.source == 0 ? w0.read() : op.source == 1 ? k0.read() : k1.read(), mme);
            }
        }
    }
}

void mesh_b_odd(hls::stream<Uop<MeshB::words>> &uops, hls::stream<Beat> &w0, hls::stream<Beat> &w1,
                hls::stream<Beat> &v0, hls::stream<Beat> &v1, hls::stream<Lane> mme[lanes]) {
    unsigned number = 0;
mesh_b_odd_uops:
    for (;;) {
        const Uop<MeshB::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const MeshB op = MeshB::decode(uop.words);
    mesh_b_odd_tiles:
        for (Countdown<24> left(op.tiles); left.more(); left.next()) {
        mesh_b_odd_beats:
            for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::mesh style=flp
                Beat beat;
                switch (op.source) {
                case 0: beat = w0.read(); break;
                case 1: beat = w1.read(); break;
                case 2: beat = v0.read(); break;
                default: beat = v1.read(); break;
                }
                split(beat, mme);
            }
        }
    }
}

}  // namespace rsn::xnn
