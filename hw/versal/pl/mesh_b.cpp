// MeshB: right operands, biases and previous-layer weights from MemB to the MMEs.
//
// A beat a cycle from each source that has a route, copied to all of its destinations, all in lock step.
// SPDX-License-Identifier: Apache-2.0
#include "counter.h"
#include "dataflow.h"
#include "lanes.h"
#include "units.h"

namespace rsn::xnn {

void mesh_b(hls::stream<Uop<MeshB::words>> &uops, hls::stream<Beat> &mem_b0, hls::stream<Beat> &mem_b1,
            hls::stream<Beat> &mem_b2, hls::stream<Lane> mme0[lanes], hls::stream<Lane> mme1[lanes],
            hls::stream<Lane> mme2[lanes], hls::stream<Lane> mme3[lanes], hls::stream<Lane> mme4[lanes],
            hls::stream<Lane> mme5[lanes]) {
    unsigned number = 0;
mesh_b_uops:
    for (;;) {
        const Uop<MeshB::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const MeshB op = MeshB::decode(uop.words);
    mesh_b_beats:
        for (Countdown<32> left(op.size); left.more(); left.next()) {
#pragma HLS PIPELINE II=ii::mesh style=flp
            Beat b0, b1, b2;
            if (op.b0_0 || op.b0_2 || op.b0_4) b0 = mem_b0.read();
            if (op.b1_1 || op.b1_3 || op.b1_5) b1 = mem_b1.read();
            if (op.b2_4 || op.b2_5) b2 = mem_b2.read();
            if (op.b0_0) split(b0, mme0);
            if (op.b1_1) split(b1, mme1);
            if (op.b0_2) split(b0, mme2);
            if (op.b1_3) split(b1, mme3);
            if (op.b0_4 || op.b2_4) split(op.b0_4 ? b0 : b2, mme4);
            if (op.b1_5 || op.b2_5) split(op.b1_5 ? b1 : b2, mme5);
        }
    }
}

}  // namespace rsn::xnn
