// C: results of the MME of a lane, with a bias and a residual, to X, to Post or to Softmax.
//
// A beat a cycle; with a bias or a residual a beat in two cycles.
// SPDX-License-Identifier: Apache-2.0
#include "../pl/dataflow.h"
#include "../pl/lanes.h"
#include "units.h"

namespace rsn::xnn {

namespace {

enum Vector { bias, scale, vectors };
enum class To : std::uint8_t { post, rows, softmax };

// C of an even lane has a stream to Softmax.
inline void deliver(To to, const Beat &beat, hls::stream<Beat> &to_x, hls::stream<Beat> &post) {
#pragma HLS INLINE
    if (to == To::rows) to_x << beat;
    else post << beat;
}
inline void deliver(To to, const Beat &beat, hls::stream<Beat> &to_x, hls::stream<Beat> &post, hls::stream<Beat> &soft) {
#pragma HLS INLINE
    if (to == To::softmax) soft << beat;
    else deliver(to, beat, to_x, post);
}

template <typename... Streams>
void results(hls::stream<Uop<C::words>> &uops, hls::stream<Beat> &lpddr, hls::stream<Beat> &x,
             hls::stream<Lane> mme[lanes], Streams &...streams) {
#pragma HLS INLINE
    Columns of_columns[vectors] = {};
#pragma HLS ARRAY_PARTITION variable=of_columns complete dim=1
    unsigned number = 0;
c_uops:
    for (;;) {
        const Uop<C::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const C op = C::decode(uop.words);
        const To to = static_cast<To>(op.to);
        const bool adds = op.bias || op.residual;
    c_tiles:
        for (Countdown<16> left(op.tiles); left.more(); left.next()) {
        c_vectors:
            for (unsigned v = 0; v < vectors; ++v) {
                take_columns(v == bias ? op.bias : op.scale, lpddr, of_columns[v]);
            }
            Beat beat, residual, out;
        c_beats:
            for (Rounds at(adds ? rounds::combine : 1); at.more(); at.next()) {
#pragma HLS PIPELINE II=ii::combine style=flp
                if (at.begins()) {
                    if (op.residual) residual = x.read();
                    if (!op.alone) beat = join(mme);
                }
                const unsigned part_of = right_col(at.beat) / patch_cols;
                float part[elements_of(rounds::combine)];
                for (unsigned n = 0; n < elements_of(rounds::combine); ++n) {
#pragma HLS UNROLL
                    const float b = of_columns[bias][part_of][col_of(n)], s = of_columns[scale][part_of][col_of(n)];
                    const float less = op.alone ? -0.0f : beat[n];  // -0 changes no sum
                    const float first = less + (op.bias ? b : -0.0f);
                    const float both = fmadd(residual[n], op.scale ? s : 1.0f, first);
                    part[n] = op.residual ? both : first;
                }
                if (adds) {
                    shift<elements_of(rounds::combine)>(beat);
                    shift<elements_of(rounds::combine)>(residual);
                    shift_in(out, part);
                } else {
                    out = beat;
                }
                if (!at.ends()) continue;
                deliver(to, out, streams...);
            }
        }
    }
}

}  // namespace

void c_even(hls::stream<Uop<C::words>> &uops, hls::stream<Beat> &lpddr, hls::stream<Beat> &x,
            hls::stream<Lane> mme[lanes], hls::stream<Beat> &to_x, hls::stream<Beat> &post, hls::stream<Beat> &soft) {
    results(uops, lpddr, x, mme, to_x, post, soft);
}

void c_odd(hls::stream<Uop<C::words>> &uops, hls::stream<Beat> &lpddr, hls::stream<Beat> &x,
           hls::stream<Lane> mme[lanes], hls::stream<Beat> &to_x, hls::stream<Beat> &post) {
    results(uops, lpddr, x, mme, to_x, post);
}

}  // namespace rsn::xnn
