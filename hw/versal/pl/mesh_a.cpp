// MeshA: left operands from MemA, and from MemC0-3 for attention, to the MMEs.
//
// A beat a cycle from each source that has a route, copied to all of its destinations, all in lock step.
// SPDX-License-Identifier: Apache-2.0
#include "counter.h"
#include "dataflow.h"
#include "lanes.h"
#include "units.h"

namespace rsn::xnn {

void mesh_a(hls::stream<Uop<MeshA::words>> &uops, hls::stream<Beat> &mem_a0, hls::stream<Beat> &mem_a1,
            hls::stream<Beat> &mem_a2, hls::stream<Beat> &mem_c0, hls::stream<Beat> &mem_c1, hls::stream<Beat> &mem_c2,
            hls::stream<Beat> &mem_c3, hls::stream<Lane> mme0[lanes], hls::stream<Lane> mme1[lanes],
            hls::stream<Lane> mme2[lanes], hls::stream<Lane> mme3[lanes], hls::stream<Lane> mme4[lanes],
            hls::stream<Lane> mme5[lanes]) {
    unsigned number = 0;
mesh_a_uops:
    for (;;) {
        const Uop<MeshA::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const MeshA op = MeshA::decode(uop.words);
    mesh_a_beats:
        for (Countdown<32> left(op.size); left.more(); left.next()) {
#pragma HLS PIPELINE II=ii::mesh style=flp
            Beat a0, a1, a2, c0, c1, c2, c3;
            if (op.a0_0 || op.a0_1) a0 = mem_a0.read();
            if (op.a1_2 || op.a1_3) a1 = mem_a1.read();
            if (op.a2_4 || op.a2_5) a2 = mem_a2.read();
            if (op.c0_4) c0 = mem_c0.read();
            if (op.c1_4) c1 = mem_c1.read();
            if (op.c2_5) c2 = mem_c2.read();
            if (op.c3_5) c3 = mem_c3.read();
            if (op.a0_0) split(a0, mme0);
            if (op.a0_1) split(a0, mme1);
            if (op.a1_2) split(a1, mme2);
            if (op.a1_3) split(a1, mme3);
            if (op.a2_4 || op.c0_4 || op.c1_4) split(op.a2_4 ? a2 : op.c0_4 ? c0 : c1, mme4);
            if (op.a2_5 || op.c2_5 || op.c3_5) split(op.a2_5 ? a2 : op.c2_5 ? c2 : c3, mme5);
        }
    }
}

}  // namespace rsn::xnn
