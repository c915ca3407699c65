// W: tiles of weights from LPDDR, W1's also from DDR, to the lanes that a uOP selects. Fills one buffer while it sends
// the other.
//
// Two blocks of 256 words to a tile in, 512 beats out, one a cycle each.
// SPDX-License-Identifier: Apache-2.0
#include "../pl/dataflow.h"
#include "units.h"

namespace rsn::xnn {

namespace {

using Buffer = Tiles<1>;

void fill_tile(bool some, hls::stream<Beat> &from, Buffer &buffer) {
fill_blocks:
    for (unsigned b = 0; some && b < 2; ++b) {
    fill_block_words:
        for (unsigned w = 0; w < words_per_block; ++w) {
#pragma HLS PIPELINE II=ii::load style=flp
            put_word<tile>(buffer, word_row(w), b * half_tile + word_col(w), from.read());
        }
    }
}

// To the lanes that are bits of `lanes`: W0 sends to all, W1 to odd ones.
inline void put(std::uint8_t lanes, const Beat &beat, hls::stream<Beat> &lane0, hls::stream<Beat> &lane1,
                hls::stream<Beat> &lane2, hls::stream<Beat> &lane3, hls::stream<Beat> &lane4, hls::stream<Beat> &lane5) {
#pragma HLS INLINE
    if (lanes & 1) lane0 << beat;
    if (lanes & 2) lane1 << beat;
    if (lanes & 4) lane2 << beat;
    if (lanes & 8) lane3 << beat;
    if (lanes & 16) lane4 << beat;
    if (lanes & 32) lane5 << beat;
}
inline void put(std::uint8_t lanes, const Beat &beat, hls::stream<Beat> &lane1, hls::stream<Beat> &lane3,
                hls::stream<Beat> &lane5) {
#pragma HLS INLINE
    if (lanes & 2) lane1 << beat;
    if (lanes & 8) lane3 << beat;
    if (lanes & 32) lane5 << beat;
}

template <typename... Streams>
void send_tile(bool some, std::uint8_t lanes, const Buffer &buffer, Streams &...to) {
send_tile_beats:
    for (Counter t = 0; some && t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::send style=flp
        put(lanes, get_beat<by_cols, tile>(buffer, right_row(t), right_col(t)), to...);
    }
}

// One tile in and the one before it out.
template <typename... Streams>
void w_step(bool in, bool out, std::uint8_t lanes, hls::stream<Beat> &from, Buffer &filled, const Buffer &sent,
            Streams &...to) {
#pragma HLS DATAFLOW
    RSN_DATAFLOW();
    RSN_PROCESS("", fill_tile, in, from, filled);
    RSN_PROCESS("", send_tile, out, lanes, sent, to...);
}

template <typename... Streams>
void pass_on(const W &op, hls::stream<Beat> &from, Buffer &ping, Buffer &pong, Streams &...to) {
#pragma HLS INLINE
w_tiles:
    for (unsigned i = 0; op.tiles && i <= op.tiles; ++i) {
        const bool in = i < op.tiles, out = i > 0;
        if (i % 2 == 0) w_step(in, out, op.lanes, from, ping, pong, to...);
        else w_step(in, out, op.lanes, from, pong, ping, to...);
    }
}

}  // namespace

void w0(hls::stream<Uop<W::words>> &uops, hls::stream<Beat> &lpddr, hls::stream<Beat> &lane0, hls::stream<Beat> &lane1,
        hls::stream<Beat> &lane2, hls::stream<Beat> &lane3, hls::stream<Beat> &lane4, hls::stream<Beat> &lane5) {
    Buffer ping, pong;
#pragma HLS ARRAY_PARTITION variable=ping complete dim=1
#pragma HLS ARRAY_PARTITION variable=pong complete dim=1
    poison(ping);
    poison(pong);
    unsigned number = 0;
w0_uops:
    for (;;) {
        const Uop<W::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        pass_on(W::decode(uop.words), lpddr, ping, pong, lane0, lane1, lane2, lane3, lane4, lane5);
    }
}

void w1(hls::stream<Uop<W::words>> &uops, hls::stream<Beat> &ddr, hls::stream<Beat> &lpddr, hls::stream<Beat> &lane1,
        hls::stream<Beat> &lane3, hls::stream<Beat> &lane5) {
    Buffer ping, pong;
#pragma HLS ARRAY_PARTITION variable=ping complete dim=1
#pragma HLS ARRAY_PARTITION variable=pong complete dim=1
    poison(ping);
    poison(pong);
    unsigned number = 0;
w1_uops:
    for (;;) {
        const Uop<W::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const W op = W::decode(uop.words);
        if (op.ddr) pass_on(op, ddr, ping, pong, lane1, lane3, lane5);
        else pass_on(op, lpddr, ping, pong, lane1, lane3, lane5);
    }
}

}  // namespace rsn::xnn
