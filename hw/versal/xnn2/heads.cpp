// K and V: heads of keys and of values, each in two memories of 128x64 blocks with a read port of their own. Blocks come
// from DDR, tiles of two blocks from the Post of a lane; the read ports of K transpose as they send.
//
// 256 words to a block in, 512 beats to a tile in or out, one a cycle each.
// SPDX-License-Identifier: Apache-2.0
#include "../pl/dataflow.h"
#include "units.h"

namespace rsn::xnn {

namespace {

constexpr unsigned slots = head_slots;
constexpr unsigned from_ddr = 6;  // of the field `source`

// Slots are numbered from those of the first memory to those of the second.
constexpr bool in_second(unsigned slot) { return slot >= slots; }

template <typename Memory>
void take_block(Memory &first, Memory &second, bool to_second, unsigned slot, hls::stream<Beat> &ddr) {
#pragma HLS INLINE
take_block_words:
    for (unsigned w = 0; w < words_per_block; ++w) {
#pragma HLS PIPELINE II=ii::take style=flp
        const Beat word = ddr.read();
        const unsigned row = slot % slots * tile + word_row(w);
        if (to_second)
            put_word<half_tile>(second, row, word_col(w), word);
        else
            put_word<half_tile>(first, row, word_col(w), word);
    }
}

// The left half of a tile into one slot, the right one into another of the same memory.
template <typename Memory>
void take_both(Memory &first, Memory &second, bool to_second, unsigned left, unsigned right, unsigned lane,
               hls::stream<Beat> &post0, hls::stream<Beat> &post1, hls::stream<Beat> &post2, hls::stream<Beat> &post3,
               hls::stream<Beat> &post4, hls::stream<Beat> &post5) {
#pragma HLS INLINE
take_both_beats:
    for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::take style=flp
        Beat beat;
        switch (lane) {
        case 0: beat = post0.read(); break;
        case 1: beat = post1.read(); break;
        case 2: beat = post2.read(); break;
        case 3: beat = post3.read(); break;
        case 4: beat = post4.read(); break;
        default: beat = post5.read(); break;
        }
        const unsigned slot = right_col(t) < half_tile ? left : right;
        const unsigned row = slot % slots * tile + right_row(t);
        if (to_second)
            put_beat<by_rows, half_tile>(second, row, right_col(t) % half_tile, beat);
        else
            put_beat<by_rows, half_tile>(first, row, right_col(t) % half_tile, beat);
    }
}

template <typename Memory>
void heads_in(hls::stream<Uop<KvIn::words>> &uops, Memory &first, Memory &second, hls::stream<Beat> &ddr,
              hls::stream<Token> &free0, hls::stream<Token> &free1, hls::stream<Beat> &post0, hls::stream<Beat> &post1,
              hls::stream<Beat> &post2, hls::stream<Beat> &post3, hls::stream<Beat> &post4, hls::stream<Beat> &post5,
              hls::stream<Token> &filled0, hls::stream<Token> &filled1) {
#pragma HLS INLINE
    unsigned number = 0;
heads_in_uops:
    for (;;) {
        const Uop<KvIn::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const KvIn op = KvIn::decode(uop.words);
        const bool to_second = in_second(op.slot);
        if (to_second)
            wait_for(op.wait, free1);
        else
            wait_for(op.wait, free0);
        hls::fence(first, second, free0, free1);
    heads_in_tiles:
        for (unsigned i = 0; i < op.tiles; ++i) {
            if (op.source == from_ddr)
                take_block(first, second, to_second, op.slot + i, ddr);
            else
                take_both(first, second, to_second, op.slot + i, op.second + i, op.source, post0, post1, post2, post3,
                          post4, post5);
            hls::fence(first, second, filled0, filled1);
            if (to_second)
                filled1 << Token(1);
            else
                filled0 << Token(1);
        }
    }
}

// A beat of a right operand. block: whether it is in the second one, for a tile of one is half a tile.
Beat right_beat(const Keys &keys, unsigned slot, unsigned t, bool &block) {
#pragma HLS INLINE
    const unsigned key = right_col(t), k = right_row(t);
    block = k >= half_tile;
    return get_beat_transposed<by_cols, half_tile>(keys, (slot + block) % slots * tile + key, k % half_tile);
}
Beat right_beat(const Values &values, unsigned slot, unsigned t, bool &block) {
#pragma HLS INLINE
    const unsigned col = right_col(t);
    block = col >= half_tile;
    return get_beat<by_cols, half_tile>(values, (slot + block) % slots * tile + right_row(t), col % half_tile);
}

// First: the first lane that it has a stream to; the others are every second one.
template <unsigned First, typename Memory>
void heads_out(hls::stream<Uop<KvOut::words>> &uops, const Memory &memory, hls::stream<Token> &filled,
               hls::stream<Token> &free, hls::stream<Beat> &pair0, hls::stream<Beat> &pair1, hls::stream<Beat> &pair2) {
#pragma HLS INLINE
    unsigned number = 0;
heads_out_uops:
    for (;;) {
        const Uop<KvOut::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const KvOut op = KvOut::decode(uop.words);
        wait_for(op.wait, filled);
        hls::fence(memory, filled);
    heads_out_tiles:
        for (unsigned i = 0; op.lanes && i < op.tiles; ++i) {
        heads_out_beats:
            for (unsigned t = 0; t < beats_per_tile; ++t) {
#pragma HLS PIPELINE II=ii::send style=flp
                bool second = false;
                Beat beat = right_beat(memory, op.slot + (op.wide ? 2 * i : i), t, second);
                if (second && !op.wide) beat = undefined_beat();
                if (op.lanes >> First & 1) pair0 << beat;
                if (op.lanes >> First & 4) pair1 << beat;
                if (op.lanes >> First & 16) pair2 << beat;
            }
        }
        hls::fence(memory, free);
        free << Token(1);
    }
}

}  // namespace

void k_in(hls::stream<Uop<KvIn::words>> &uops, Keys &first, Keys &second, hls::stream<Beat> &ddr,
          hls::stream<Token> &free0, hls::stream<Token> &free1, hls::stream<Beat> &post0, hls::stream<Beat> &post1,
          hls::stream<Beat> &post2, hls::stream<Beat> &post3, hls::stream<Beat> &post4, hls::stream<Beat> &post5,
          hls::stream<Token> &filled0, hls::stream<Token> &filled1) {
    heads_in(uops, first, second, ddr, free0, free1, post0, post1, post2, post3, post4, post5, filled0, filled1);
}

void v_in(hls::stream<Uop<KvIn::words>> &uops, Values &first, Values &second, hls::stream<Beat> &ddr,
          hls::stream<Token> &free0, hls::stream<Token> &free1, hls::stream<Beat> &post0, hls::stream<Beat> &post1,
          hls::stream<Beat> &post2, hls::stream<Beat> &post3, hls::stream<Beat> &post4, hls::stream<Beat> &post5,
          hls::stream<Token> &filled0, hls::stream<Token> &filled1) {
    heads_in(uops, first, second, ddr, free0, free1, post0, post1, post2, post3, post4, post5, filled0, filled1);
}

void k_out(hls::stream<Uop<KvOut::words>> &uops, Keys &keys, hls::stream<Token> &filled, hls::stream<Token> &free,
           hls::stream<Beat> &lane0, hls::stream<Beat> &lane2, hls::stream<Beat> &lane4) {
    heads_out<0>(uops, keys, filled, free, lane0, lane2, lane4);
}

void v_out(hls::stream<Uop<KvOut::words>> &uops, Values &values, hls::stream<Token> &filled, hls::stream<Token> &free,
           hls::stream<Beat> &lane1, hls::stream<Beat> &lane3, hls::stream<Beat> &lane5) {
    heads_out<1>(uops, values, filled, free, lane1, lane3, lane5);
}

}  // namespace rsn::xnn
