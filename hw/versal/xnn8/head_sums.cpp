// Heads that a norm follows: each row of theirs is summed up on its way to where it waits for its norm.
// SPDX-License-Identifier: Apache-2.0
#include "units.h"

namespace rsn::xnn8::pl {

namespace {

// Of what a row has so far.
struct Partial {
    ap_int<23> sum;
    ap_int<37> squares;
};

}  // namespace

// A row in a cycle, four columns, as fast as it is normalised later.
void head_sums(hls::stream<HeadBeat> &beats, hls::stream<HeadWord> &kept, hls::stream<HeadSums> &to) {
    Partial sums[8];  // of eight rows: each comes again four cycles later
#pragma HLS AGGREGATE variable=sums compact=bit
#pragma HLS BIND_STORAGE variable=sums type=ram_s2p impl=lutram
    HeadBeat in = {};
#pragma HLS ARRAY_PARTITION variable=in.of.of complete
#pragma HLS ARRAY_PARTITION variable=in.of.exponent complete
    unsigned n = 0;  // of the beat
    bool second = false;
head_rows:
    while (!in.last) {
#pragma HLS PIPELINE II=ii::cells style=flp
#pragma HLS DEPENDENCE variable=sums type=inter direction=RAW distance=4 dependent=true
        if (!second) {
            in = beats.read();
            if (in.last) break;
        }
        HeadWord word = {{}, in.of.exponent[second]};
        int64_t sum = 0, squares = 0;
        for (unsigned e = 0; e < 4; ++e) {
#pragma HLS UNROLL
            const int64_t x = word.of[e] = in.of.of[4 * second + e];
            sum += x;
            squares += within<30>(x * x);
        }
        kept << word;  // hls-allow state-order: there is room for all that waits
        const unsigned in_part = n % (in.halves ? group_beats / 2 : group_beats);
        const unsigned row = 2 * two_rows(n) + second;
        const Partial before = in_part < 8 && n % 4 < 2 ? Partial{0, 0} : sums[row];
        const Partial made = {before.sum + sum, before.squares + squares};
        sums[row] = made;
        const bool whole = in_part % (group_beats / 2) >= group_beats / 2 - 8 && (in.halves || n >= group_beats / 2);
        // hls-allow state-order: norms takes sums in their order
        if (whole && n % 4 > 1) to << HeadSums{made.sum, made.squares, in.of.exponent[second]};
        n = (n + second) % group_beats;
        second = !second;
    }
}

}  // namespace rsn::xnn8::pl
