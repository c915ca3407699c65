// C: results of the MME of a lane, with a bias and a residual, to X, to Post or to Softmax. A beat a cycle.
// SPDX-License-Identifier: Apache-2.0
#include "../pl/dataflow.h"
#include "../pl/lanes.h"
#include "units.h"

namespace rsn::xnn {

namespace {

constexpr unsigned vector_words = tile / beat_floats;
enum class To : std::uint8_t { post, rows, softmax };

void take_vector(bool some, hls::stream<Beat> &lpddr, Beat (&vector)[vector_words]) {
#pragma HLS INLINE
vector_words_in:
    for (unsigned w = 0; some && w < vector_words; ++w) {
#pragma HLS PIPELINE II=ii::load style=flp
        vector[w] = lpddr.read();
    }
}

}  // namespace

void c(hls::stream<Uop<C::words>> &uops, hls::stream<Beat> &lpddr, hls::stream<Beat> &x, hls::stream<Lane> mme[lanes],
       hls::stream<Beat> &to_x, hls::stream<Beat> &post, hls::stream<Beat> &soft) {
    Beat bias[vector_words] = {}, scale[vector_words] = {};
    unsigned number = 0;
c_uops:
    for (;;) {
        const Uop<C::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const C op = C::decode(uop.words);
        const To to = static_cast<To>(op.to);
    c_tiles:
        for (Countdown<16> left(op.tiles); left.more(); left.next()) {
            take_vector(op.bias, lpddr, bias);
            take_vector(op.scale, lpddr, scale);
        c_beats:
            for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::result style=flp
                const unsigned col = right_col(t);
                Beat beat, residual;
                if (op.residual) residual = x.read();
                if (!op.alone) beat = join(mme);
                for (unsigned n = 0; n < beat_floats; ++n) {
#pragma HLS UNROLL
                    const unsigned at = by_rows(n / patch_cols, n % patch_cols), of = col + n % patch_cols;
                    const float b = bias[of / beat_floats][of % beat_floats], s = scale[of / beat_floats][of % beat_floats];
                    const float more = op.scale ? residual[at] * s : residual[at];
                    const float first = op.alone ? b : op.bias ? add_in_fabric(beat[at], b) : beat[at];
                    const bool only = op.alone && !op.bias;
                    beat[at] = only ? more : op.residual ? add_in_fabric(first, more) : first;
                }
                if (to == To::rows) to_x << beat;
                else if (to == To::post) post << beat;
                else soft << beat;
            }
        }
    }
}

}  // namespace rsn::xnn
