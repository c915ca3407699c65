// Decoders of the units on the chip; W; what passes weights or heads on to a column of pairs; constants to the lanes.
// SPDX-License-Identifier: Apache-2.0
#include "../pl/decoder.h"
#include "units.h"

namespace rsn::xnn8::pl {

template <unsigned Words, unsigned Units>
void decode(hls::stream<Mop<Words>> &mops, hls::stream<Uop<Words>> (&uops)[Units]) {
    decode_windows(mops, uops);
}
template void decode<W::words, 2 + pairs>(hls::stream<Mop<W::words>> &, hls::stream<Uop<W::words>> (&)[2 + pairs]);
template void decode<Rows::words, 2 + lanes>(
    hls::stream<Mop<Rows::words>> &, hls::stream<Uop<Rows::words>> (&)[2 + lanes]);
template void decode<Send::words, lanes>(hls::stream<Mop<Send::words>> &, hls::stream<Uop<Send::words>> (&)[lanes]);
template void decode<Heads::words, 1 + lanes>(
    hls::stream<Mop<Heads::words>> &, hls::stream<Uop<Heads::words>> (&)[1 + lanes]);
template void decode<Engine::words, pairs>(
    hls::stream<Mop<Engine::words>> &, hls::stream<Uop<Engine::words>> (&)[pairs]);

namespace {

constexpr unsigned multiplier_bits = 4;  // behind the point, of weights of 4 bits

template <typename Streams>
void fill(bool of_ddr, hls::stream<Uop<W::words>> &uops, Streams from, hls::stream<Bytes> to[pairs][ports]) {
#pragma HLS INLINE
    unsigned number = 0;
fill_uops:
    for (;;) {
        const Uop<W::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const W op = W::decode(uop.words);
        const unsigned split = unsigned{op.columns} - op.ddr;
        const unsigned first = of_ddr ? split : 0, end = of_ddr ? op.columns : split;
        const unsigned quarter = op.int4 ? short_quarter_words : quarter_words;
    fill_chunks:
        for (Countdown<20> left(op.chunks); left.more(); left.next()) {
        fill_columns:
            for (unsigned c = first; c < end; ++c) {
            fill_words:
                for (unsigned i = 0; i < quarter; ++i) {
#pragma HLS PIPELINE II=ii::cells style=flp
                    for (unsigned p = 0; p < ports; ++p) {
#pragma HLS UNROLL
                        to[c][p] << from[p].read();
                    }
                }
            }
        }
    }
}

}  // namespace

void fill_lpddr(hls::stream<Uop<W::words>> &uops, hls::stream<Bytes> from[ports], hls::stream<Bytes> to[pairs][ports]) {
    fill(false, uops, from, to);
}
void fill_ddr(hls::stream<Uop<W::words>> &uops, hls::stream<Bytes> from[ports], hls::stream<Bytes> to[pairs][ports]) {
    fill(true, uops, from, to);
}

namespace {

// A word of weights of 4 bits, of half of a word of codes, two to a byte: each times the multiplier of its column.
Bytes unpacked(const HalfBytes &codes, const Bytes &multipliers, unsigned group) {
#pragma HLS INLINE
    Bytes made;
    for (unsigned e = 0; e < 32; ++e) {
#pragma HLS UNROLL
        const auto two = static_cast<uint8_t>(codes[e / 2]);
        const auto multiplier = static_cast<uint8_t>(multipliers[4 * group + e % 4]);
        const int code = ((two >> e % 2 * 4 & 15) ^ 8) - 8;
        Shifted product(within<11>(within<3>(code) * multiplier));
        product.by(multiplier_bits);
        const int64_t word = within<7>(product.made());
        made[e] = static_cast<int8_t>(word + up_in_range(word, product.up(), true));
    }
    return made;
}

}  // namespace

// Of weights of 4 bits, a word of codes becomes two words. The multipliers of a chunk come before its codes, one word
// by each port: they are taken while the last codes of the chunk before are unpacked.
void weights(hls::stream<Uop<W::words>> &uops, unsigned column, hls::stream<Bytes> lpddr[ports],
             hls::stream<Bytes> ddr[ports], hls::stream<Bytes> to[engines]) {
weights_uops:
    for (;;) {
        const Uop<W::words> uop = uops.read();
        if (uop.last) break;
        const W op = W::decode(uop.words);
        const bool of_ddr = column >= unsigned{op.columns} - op.ddr;
        const unsigned chunks = column < op.columns ? op.chunks : 0;
        HalfBytes late[ports] = {};  // second halves of codes: of the port whose turn it is, the last one
        Bytes multipliers[ports] = {};
#pragma HLS ARRAY_PARTITION variable=late complete
#pragma HLS ARRAY_PARTITION variable=multipliers complete
    weights_multipliers:
        for (unsigned p = 0; op.int4 && chunks && p < ports; ++p) {
#pragma HLS PIPELINE II=ii::cells style=flp
            multipliers[p] = of_ddr ? ddr[p].read() : lpddr[p].read();
        }
        Countdown<20> behind(chunks);
        unsigned i = 0;  // words of a chunk
    weights_words:
        for (Countdown<27> left(chunks * ports * quarter_words); left.more(); left.next()) {
#pragma HLS PIPELINE II=ii::cells style=flp
            if (i == 0) behind.next();
            const unsigned p = i % ports, n = i / ports;
            const bool of_next = op.int4 && n == quarter_words - 1;
            Bytes got = {};
            if (of_next ? behind.more() : !op.int4 || n % 2 == 0) got = of_ddr ? ddr[p].read() : lpddr[p].read();
            HalfBytes codes;
            for (unsigned b = 0; b < 16; ++b) {
#pragma HLS UNROLL
                codes[b] = n % 2 ? late[ports - 1][b] : got[b];
            }
            for (unsigned k = ports - 1; k; --k) {
#pragma HLS UNROLL
                late[k] = late[k - 1];
            }
            for (unsigned b = 0; b < 16; ++b) {
#pragma HLS UNROLL
                late[0][b] = got[16 + b];
            }
            const Bytes word = op.int4 ? unpacked(codes, multipliers[p], n / 4) : got;
            if (of_next) multipliers[p] = got;
            for (unsigned e = 0; e < engines; ++e) {
#pragma HLS UNROLL
                if (op.engines >> e & 1) to[e] << word;
            }
            i = (i + 1) % (ports * quarter_words);
        }
    }
}

// Weights: words for both tiles in turn, a half of each in a cycle. Keys and values: the same to both, or of wide heads
// two words to the first tile, then two to the second one.
void tiles(hls::stream<Uop<Engine::words>> &uops, unsigned column, hls::stream<Bytes> &weights,
           hls::stream<HalfBytes> &heads, hls::stream<Beat128> to[2]) {
    unsigned number = 0;
tiles_uops:
    for (;;) {
        const Uop<Engine::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const Engine op = Engine::decode(uop.words);
        if (column >= op.columns) continue;
    tiles_chunks:
        for (unsigned chunk = 0; !op.attention && chunk < unsigned{op.times} * op.depth; ++chunk) {
            Bytes before = {};
        tiles_weights:
            for (uint8_t i = 0; i <= ports * quarter_words; ++i) {
#pragma HLS PIPELINE II=ii::cells style=flp
                Bytes word = {};
                if (i < ports * quarter_words) word = weights.read();
                const Beat128 first = half_of(word, 0), second = half_of(before, 1);
                if (i < ports * quarter_words) to[0] << (i % 2 ? second : first);
                if (i) to[1] << (i % 2 ? first : second);
                before = word;
            }
        }
        const unsigned keys = op.key_rows * (op.spread ? lanes : unsigned{op.lanes});
        uint16_t first_key = 0;  // of a slice,
        uint8_t i = 0;           // and halves of words of it
        bool second = false, of_keys = true, last = !op.wide, more = op.attention;
    tiles_heads:
        while (more) {
#pragma HLS PIPELINE II=ii::cells style=flp
            const unsigned octet = of_keys ? i / 32 : i / 4 % 4;
            HalfBytes word = {};
            // what fills up the last slice comes from nowhere
            if (first_key + 8 * octet < keys) word = heads.read();
            if (!op.wide || !last) to[0] << half_of(word, 0);
            if (last) to[1] << half_of(word, 0);
            const bool pair = op.wide && i % 4 == 3, again = pair && !last;  // the same words, of the second tile
            if (pair) last = !last;
            i = static_cast<uint8_t>(again ? i - 3 : (i + 1) % 128);
            if (i || again) continue;
            const bool both = second && of_keys, ends = first_key + 32u >= keys;
            of_keys = !both;
            if (both) continue;
            first_key = ends ? 0 : static_cast<uint16_t>(first_key + 32u);
            more = !(second && ends);
            second = second || ends;
        }
    }
}

void constants(hls::stream<Uop<Rows::words>> &uops, hls::stream<Shorts> &from, hls::stream<Shorts> post[lanes],
               hls::stream<Shorts> residual[lanes], hls::stream<Shorts> rows[lanes]) {
constants_uops:
    for (;;) {
        const Uop<Rows::words> uop = uops.read();
        if (uop.last) break;
        const Rows op = Rows::decode(uop.words);
        const bool takes = op.op == take;
        const bool normalises = takes ? op.norm || op.residual == as_normalised : op.op == store && op.norm;
        // Those of two columns that a gate makes one, or of the two blocks of a wide head, come together.
        const unsigned together = takes && (op.gated || (op.norm && op.wide)) ? 2 : 1;
        const bool kinds[] = {takes && !op.attention, normalises, bool(op.gains)};
    constants_blocks:
        for (unsigned block = 0; block < op.blocks; block += together) {
        constants_kinds:
            for (unsigned kind = 0; kind < 3; ++kind) {
                const unsigned words = kinds[kind] ? piece_words * (kind ? together >> op.gated : together) : 0;
            constants_words:
                for (unsigned i = 0; i < words; ++i) {
#pragma HLS PIPELINE II=ii::constants style=flp
                    const Shorts word = from.read();
                    for (unsigned l = 0; l < lanes; ++l) {
#pragma HLS UNROLL
                        const bool has_rows = l >= op.first && l < unsigned{op.first} + op.lanes;
                        if (kind == 0 && has_rows) post[l] << word;
                        if (kind == 1 && has_rows) residual[l] << word;
                        if (kind == 2) rows[l] << word;
                    }
                }
            }
        }
    }
}

}  // namespace rsn::xnn8::pl
