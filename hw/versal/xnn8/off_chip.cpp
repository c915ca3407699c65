// DDR and LPDDR: one uOP after the other, each by four ports of 256 bit.
//
// Of weights a port moves a quarter of each column of pairs, of X and T the lanes whose number is its own, modulo four:
// of a block the 4x4 or 4x8 blocks of two lanes in turn, 16 words each; those of 16 rows, and then their exponents, lie
// side by side. So do the integers and the exponents of a row of T or X, where rows lie one by one: those of two lanes
// pass in turn. Constants take one port.
// SPDX-License-Identifier: Apache-2.0
#include "../pl/decoder.h"
#include "units.h"

namespace rsn::xnn8::pl {

namespace {

constexpr unsigned words_per_unit = 2, floats_per_word = 8, floats_per_unit = words_per_unit * floats_per_word;

}  // namespace

void expand(const OffChip &mop, std::uint16_t iteration, hls::stream<Transfer> &uops) {
    const unsigned row_units = (mop.further + 1u) << mop.of_x;  // and one for exponents
    const auto before = static_cast<unsigned>(mop.keeps ? within<11>(mop.row) * within<5>(row_units + 1) : 0);
    const auto rows = static_cast<uint16_t>(mop.end == to_t ? mop.rows * (mop.further + 1u) : unsigned{mop.rows});
    const Transfer uop = {false, mop.int4, mop.keeps && before * floats_per_unit >= mop.size, mop.end, mop.engines,
                          mop.first, mop.lanes, static_cast<uint8_t>(words_per_unit * row_units), rows,
                          mop.addr + before + iteration * mop.reuse_stride, mop.size};
    give_chunks(uop, mop.chunks, mop.chunk_stride, uops);
}

namespace {

constexpr unsigned burst = 16;  // words of a lane, in turn with those of another

void load_weights(const Transfer &uop, MemoryPort &port, unsigned number, hls::stream<Bytes> &to) {
#pragma HLS INLINE
    const unsigned quarter = uop.int4 ? short_quarter_words : quarter_words;
    const unsigned end = uop.size / floats_per_word, first = uop.addr * words_per_unit;
weight_pieces:
    for (unsigned at = number * quarter; at < end; at += ports * quarter) {
        RSN_STALLS();
        port.read_request(first + at, quarter);
    weight_words:
        for (unsigned w = 0; w < quarter; ++w) {
#pragma HLS PIPELINE II=ii::burst style=stp
            to << bytes_of(port.read());
        }
    }
}

}  // namespace

void decode_bank(hls::stream<Mop<OffChip::words>> &mops, hls::stream<Transfer> &uops) {
    decode_chunks<OffChip>(mops, uops);
}

void bank(hls::stream<Transfer> &uops, hls::stream<Transfer> to[ports], hls::stream<Token> done[ports]) {
    unsigned number = 0;
bank_uops:
    for (;;) {
        const Transfer uop = uops.read();
        RSN_UOP(number++);
        for (unsigned p = 0; p < ports; ++p) {
#pragma HLS UNROLL
            put_behind(to[p], uop);
        }
        if (uop.last) break;
        for (unsigned p = 0; p < ports; ++p) {
#pragma HLS UNROLL
            done[p].read();  // hls-allow state-order: each port ends by itself
        }
    }
}

void ddr_port(hls::stream<Transfer> &uops, MemoryPort port, unsigned number, hls::stream<Token> &done,
              hls::stream<Bytes> &weights, hls::stream<Shorts> loads[engines][2],
              hls::stream<Shorts> stores[engines][2]) {
ddr_uops:
    for (;;) {
        const Transfer uop = uops.read();
        if (uop.last) break;
        if (uop.end == to_w) load_weights(uop, port, number, weights);
        const bool of_rows = uop.end == to_rows || uop.end == from_rows;
        const bool loads_cells = uop.end == to_x || uop.end == to_t || uop.end == to_rows;
        // 16 rows are a group: some bursts, and a word with exponents
        const unsigned group_parts = uop.end == to_t || uop.end == out_of_t ? 2 : 4;
        const auto words_of = [&](unsigned groups) { return groups * group_parts * burst + groups; };
        const unsigned rows = uop.rows, of_lane = rows / (uop.lanes ? uop.lanes : 1), of_block = words_of(rows / 16);
        const unsigned blocks = uop.end == to_w ? 0 : of_rows ? 1 : uop.size / floats_per_word / of_block;
        // What lies side by side: 16 rows, or one; in bursts, and then exponents.
        const unsigned lane_groups = of_rows ? rows : of_lane / 16, parts = of_rows ? 1 : group_parts;
        const unsigned integers = of_rows ? unsigned{uop.row_words} : burst, behind = of_rows ? words_per_unit : 1;
    ddr_blocks:
        for (unsigned block = 0; block < blocks; ++block) {
            const unsigned start = uop.addr * words_per_unit + block * of_block;
            // Exponents of 16 rows come first, and are stored last.
        ddr_groups:
            for (unsigned group = 0; group < lane_groups; ++group) {
            ddr_parts:
                for (unsigned n = 0; n < 2 * (parts + 1); ++n) {
                    const unsigned which = n % 2, lane = number + ports * which, at = lane - uop.first;
                    if (lane < uop.first || at >= uop.lanes) continue;
                    const unsigned part = loads_cells ? n / 2 : n / 2 == parts ? 0 : n / 2 + 1;
                    const unsigned count = part ? integers : behind;
                    const unsigned before = at * lane_groups + group;
                    const unsigned from = start + (of_rows ? before * (integers + behind) : words_of(before))
                        + (part ? part - 1 : parts) * integers;
                    if (loads_cells) {
                        RSN_STALLS();
                        port.read_request(from, count);
                    load_words:
                        for (unsigned w = 0; w < count; ++w) {
#pragma HLS PIPELINE II=ii::burst style=stp
                            const Shorts word = port.read();
                            for (unsigned e = 0; e < engines; ++e) {
#pragma HLS UNROLL
                                if ((uop.engines >> e & 1) && which) loads[e][1] << word;
                                if ((uop.engines >> e & 1) && !which) loads[e][0] << word;
                            }
                        }
                    } else {
                        RSN_STALLS();
                        if (!uop.drops) port.write_request(from, count);
                    store_words:
                        for (unsigned w = 0; w < count; ++w) {
#pragma HLS PIPELINE II=ii::burst style=stp
                            Shorts word = {};
                            for (unsigned e = 0; e < engines; ++e) {
#pragma HLS UNROLL
                                if (uop.engines == 1u << e) word = which ? stores[e][1].read() : stores[e][0].read();
                            }
                            if (!uop.drops) port.write(word);
                        }
                        if (!uop.drops) port.write_response();
                    }
                }
            }
        }
        done << Token(1);
    }
}

void lpddr_port(hls::stream<Transfer> &uops, MemoryPort port, unsigned number, hls::stream<Token> &done,
                hls::stream<Bytes> &weights) {
lpddr_uops:
    for (;;) {
        const Transfer uop = uops.read();
        if (uop.last) break;
        if (uop.end == to_w) load_weights(uop, port, number, weights);
        done << Token(1);
    }
}

void lpddr_port0(hls::stream<Transfer> &uops, MemoryPort port, hls::stream<Token> &done, hls::stream<Bytes> &weights,
                 hls::stream<Shorts> constants[engines]) {
lpddr0_uops:
    for (;;) {
        const Transfer uop = uops.read();
        if (uop.last) break;
        if (uop.end == to_w) {
            load_weights(uop, port, 0, weights);
        } else {
            const unsigned count = uop.size / floats_per_word;
            RSN_STALLS();
            port.read_request(uop.addr * words_per_unit, count);
        constant_words:
            for (Countdown<20> left(count); left.more(); left.next()) {
#pragma HLS PIPELINE II=ii::burst style=stp
                const Shorts word = port.read();
                for (unsigned e = 0; e < engines; ++e) {
#pragma HLS UNROLL
                    if (uop.engines >> e & 1) constants[e] << word;
                }
            }
        }
        done << Token(1);
    }
}

}  // namespace rsn::xnn8::pl
