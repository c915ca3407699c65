// Post: results of the tiles, scaled, with bias and residual, through a function; sums of a head over their weights.
// And the residuals that it adds.
//
// Packets come in any order from four pairs of tiles, each by both DMA channels of its last tile in turn. Their numbers
// say which: twice that of the pair among these, and the channel. The first word of a packet is its header.
// SPDX-License-Identifier: Apache-2.0
#include "tables.h"
#include "units.h"

namespace rsn::xnn8::pl {

namespace {

constexpr unsigned chunks = 130;      // of four words, in a packet
constexpr unsigned head_chunks = 2;   // of these, sums of weights
constexpr unsigned division = 24;     // cycles until their reciprocals are there
constexpr int product_bits = 41, kept_bits = 15, packet_number = 31;
constexpr int weight_bits = 29;       // of a reciprocal of a sum of weights, behind the point

// Two vectors of a block, four columns a word, with their exponents, and the shift of a product.
struct BlockConstants {
    Shorts first[4 * pairs], second[4 * pairs];
    int16_t first_exponent[pairs], second_exponent[pairs], shift[pairs];

    void take(unsigned block, hls::stream<Shorts> &from) {
#pragma HLS INLINE
    take_constants:
        for (unsigned i = 0; i < piece_words; ++i) {
#pragma HLS PIPELINE II=ii::constants style=flp
            const Shorts word = from.read();
            if (i < 4) first[4 * block + i] = word;
            else if (i < 8) second[4 * block + i - 4] = word;
            if (i == 8) {
                first_exponent[block] = word[0];
                second_exponent[block] = word[1];
                shift[block] = word[2];
            }
        }
    }
};

// The function of Rows's field of this name, from 1 on.
int32_t activated(int32_t v, int exponent, unsigned function) {
#pragma HLS INLINE
    const int32_t positive = v > 0 ? v : 0;
    const FunctionTable &table = tables[function - 1];
    if (!table.entries) return positive;
    const int index = entry_of(v, exponent, table.steps, table_entries - 1);
    return positive - static_cast<int32_t>(rounded(int64_t{table.entries[index]}, exponent + table.fraction));
}

}  // namespace

void post(hls::stream<Uop<Rows::words>> &uops, hls::stream<Shorts> &constants, hls::stream<RowFactor> &factors,
          hls::stream<Exponent> &of_values, hls::stream<Beat128> results[2], hls::stream<Place> &asks,
          hls::stream<RowExponents> &residual_exponents, hls::stream<Values> &residuals, hls::stream<Place> &places,
          hls::stream<RowEnds> &ends, hls::stream<Values> &values, hls::stream<Token> &taken) {
    BlockConstants columns;
    RowFactor of_rows[2][block_columns / 2];
#pragma HLS AGGREGATE variable=of_rows compact=bit
#pragma HLS ARRAY_PARTITION variable=of_rows complete dim=1
    Exponent of_heads[pairs];
#pragma HLS ARRAY_PARTITION variable=of_heads complete
post_uops:
    for (;;) {
        const Uop<Rows::words> uop = uops.read();
        if (uop.last) break;
        const Rows op = Rows::decode(uop.words);
        if (op.op != take) continue;
    post_constants:
        for (unsigned c = 0; !op.attention && c < op.blocks; ++c) columns.take(c, constants);
    post_factors:
        for (unsigned r = 0; !op.attention && r < op.rows; ++r) {
#pragma HLS PIPELINE II=ii::factors style=flp
            of_rows[r % 2][r / 2] = factors.read();
        }
    post_heads:
        for (unsigned c = 0; op.attention && c < op.blocks; ++c) {
#pragma HLS PIPELINE II=ii::factors style=flp
            of_heads[c] = of_values.read();
        }
        const unsigned in_packet = op.attention ? window_rows / 2 : window_rows;
        unsigned packets[2 * pairs] = {}, left = op.blocks * op.rows / in_packet;
#pragma HLS ARRAY_PARTITION variable=packets complete
        RowFactor reciprocals[4][2];
#pragma HLS AGGREGATE variable=reciprocals compact=bit
#pragma HLS ARRAY_PARTITION variable=reciprocals complete dim=1
#pragma HLS BIND_STORAGE variable=reciprocals type=ram_s2p impl=lutram
        unsigned from = 0, at = 0, beat = 0, idle = 0, column = 0, group = 0;  // of a packet
        uint32_t carried[3] = {}, before[4] = {};
#pragma HLS ARRAY_PARTITION variable=carried complete
#pragma HLS ARRAY_PARTITION variable=before complete
        EightRows<uint32_t, Exponent> end = {};
#pragma HLS ARRAY_PARTITION variable=end.first complete
#pragma HLS ARRAY_PARTITION variable=end.second complete
        EightRows<Exponent, Exponent> of_residual = {};
#pragma HLS ARRAY_PARTITION variable=of_residual.first complete
#pragma HLS ARRAY_PARTITION variable=of_residual.second complete
        const auto step = [&] {
            if (idle) {
                --idle;
                return;
            }
            if (at == 0) {
                RSN_WAIT_FOR_ANY(results[0], results[1]);
                const bool first = !results[0].empty(), second = !results[1].empty();
                if (!first && !second) return;
                from = !first;
            }
            const Beat128 in = from ? results[1].read() : results[0].read();
            uint32_t words[4] = {carried[0], carried[1], carried[2], in[0]};
            for (unsigned i = 0; i < 3; ++i) {
#pragma HLS UNROLL
                carried[i] = in[i + 1];
            }
            if (at++ == 0) {
                const unsigned number = in[0] & packet_number, source = 2 * number + from;
                column = number / 2 * 2 + from;
                group = (2 * packets[source]++ + number % 2) * in_packet / 8;
                beat = 0;
                if (op.residual) asks << Place{static_cast<uint8_t>(column), static_cast<uint8_t>(group)};
                return;
            }
            const unsigned chunk = at - 2;
            if (at == window_beats) {
                at = 0;
                --left;
            }
            if (op.attention && chunk < head_chunks) {
                for (unsigned i = 0; i < 4; ++i) {
#pragma HLS UNROLL
                    const RowFactor divisor = normal(words[i], 0);
                    const int64_t reciprocal = divided(int64_t{1} << weight_bits, divisor.mantissa);
                    reciprocals[i][chunk] = {static_cast<uint16_t>(reciprocal),
                                                  static_cast<int16_t>(-weight_bits - divisor.exponent)};
                }
                if (chunk + 1 == head_chunks) idle = division;
                return;
            }
            if (op.attention && chunk % 2 == 0) {
                for (unsigned i = 0; i < 4; ++i) {
#pragma HLS UNROLL
                    before[i] = words[i];
                }
                return;
            }
            if (!op.attention && chunk >= chunks - head_chunks) return;  // without meaning
            const unsigned n = beat % group_beats, half = upper(n);
            const unsigned eight_rows = group + beat / group_beats;
            if (n == 0) places << Place{static_cast<uint8_t>(column), static_cast<uint8_t>(eight_rows)};
            if (op.residual && n % 4 == 0 && n < 8) {
                // hls-allow state-order: they wait for no place
                const RowExponents read = residual_exponents.read();
                of_residual.put(half, read.from, read.made);
            }
            Values residue = {};
            // hls-allow state-order: values have been sent before their exponents
            if (op.residual) residue = residuals.read();
            const RowFactor first[2] = {reciprocals[0][half], reciprocals[1][half]};
            const RowFactor second[2] = {reciprocals[2][half], reciprocals[3][half]};
            const RowFactor of_sums[2] = {n % 2 ? second[0] : first[0], n % 2 ? second[1] : first[1]};
            const unsigned pair = 4 * eight_rows + 2 * half + n % 2;
            const RowFactor factors_of[2] = {of_rows[0][pair], of_rows[1][pair]};
            Values out;
            for (unsigned e = 0; e < 8; ++e) {
#pragma HLS UNROLL
                const unsigned four = row_in_four(n, e), of_four = four_columns(n);
                const unsigned word = 4 * column + of_four / 4, in_word = of_four % 4 * 4 + e % 4;
                int32_t v;
                int top;
                if (op.attention) {
                    const auto sum = static_cast<int32_t>(e < 4 ? before[e] : words[e - 4]);
                    const RowFactor &by = of_sums[e / 4];
                    top = of_heads[column] + by.exponent + product_bits - sum_bits;
                    v = static_cast<int32_t>(rounded(int64_t{sum} * by.mantissa, product_bits - sum_bits));
                } else {
                    const auto drained = static_cast<int16_t>(words[e / 2] >> e % 2 * 16);
                    const RowFactor &of_row = factors_of[e / 4];
                    const int64_t product = rounded(
                        int32_t{drained} * columns.first[word][in_word], 4) * int64_t{of_row.mantissa};
                    const int exponent = columns.shift[column] + columns.first_exponent[column] + 4 + of_row.exponent;
                    const int bias_exponent = columns.second_exponent[column];
                    const int kept = of_residual.second[4 * half + four];
                    top = larger(exponent + product_bits, bias_exponent + kept_bits);
                    if (op.residual) top = larger(top, kept + kept_bits);
                    top -= sum_bits;
                    int64_t sum = rounded(product, top - exponent) +
                        rounded(int64_t{columns.second[word][in_word]}, top - bias_exponent);
                    const int32_t old = stored(residue[e], of_residual.first[4 * half + four], kept, 16);
                    if (op.residual) sum += rounded(int64_t{old}, top - kept);
                    v = static_cast<int32_t>(sum);
                    if (op.function) v = activated(v, top, op.function);
                }
                out[e] = v;
                const auto size = static_cast<uint32_t>(magnitude(v));
                const bool begins = n < 8;
                uint32_t &most = end.first[4 * half + four];
                if ((begins && e % 4 == 0 && n % 4 < 2) || size > most) most = size;
                end.second[4 * half + four] = static_cast<Exponent>(top);
            }
            values << out;  // hls-allow state-order: residuals do not wait for values
            RowEnds made;
            for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
                made.most[r] = end.first[4 * half + r];
                made.exponent[r] = end.second[4 * half + r];
            }
            if (n >= group_beats - 8 && n % 4 == 3) ends << made;
            ++beat;
        };
    post_beats:
        while (left) {  // hls-allow interval: no reciprocal is read within `division` cycles of its writing
#pragma HLS PIPELINE II=ii::post style=flp
#pragma HLS DEPENDENCE variable=reciprocals type=inter dependent=false
            step();
        }
        taken << Token(1);
    }
}

// Blocks of X for Post, and to be stored: as they are, or behind a norm. In the latter case the exponents of four rows
// are known when all their values are made.
void residual(hls::stream<Uop<Rows::words>> &uops, hls::stream<Shorts> &constants, hls::stream<Statistics> &statistics,
              hls::stream<Place> &asks, hls::stream<CellRead> &reads, hls::stream<XCell> &cells,
              hls::stream<RowExponents> &to_post, hls::stream<Values> &values_to_post,
              hls::stream<RowExponents> &to_rows, hls::stream<Values> &values_to_rows) {
    BlockConstants affine;
    Statistics norms[4][2 * groups] = {};  // of the latest walk, then of what is being stored
#pragma HLS AGGREGATE variable=norms compact=bit
#pragma HLS ARRAY_PARTITION variable=norms complete dim=1
residual_uops:
    for (;;) {
        const Uop<Rows::words> uop = uops.read();
        if (uop.last) {
            reads << CellRead{true, 0};
            break;
        }
        const Rows op = Rows::decode(uop.words);
        const bool stores = op.op == store, normalises = stores ? op.norm : op.residual == as_normalised;
    residual_statistics:
        for (unsigned r = 0; op.norm && (stores || op.op == walk) && r < op.rows; ++r) {
#pragma HLS PIPELINE II=ii::factors style=flp
            norms[r % 4][groups * stores + r / 4] = statistics.read();
        }
        if (!stores && op.op != take) continue;
    residual_blocks:
        for (unsigned block = 0; block < op.blocks; ++block) {
            if (normalises) affine.take(stores ? 0 : block, constants);
            if (!stores && block + 1 < op.blocks) continue;
            Place at = {};
        residual_groups:
            for (unsigned n = 0; n < (stores ? 1u : op.blocks) * op.rows / 8; ++n) {
                if (stores) at = {static_cast<uint8_t>(block), static_cast<uint8_t>(n)};
                else if (n % 2) ++at.group;
                else at = asks.read();  // for a packet
                const unsigned first = (block_of(stores ? op.slot : op.residual_slot, op.rows) + at.column) * groups + 2 * at.group, c = stores ? 0 : at.column;
                EightRows<uint32_t, Exponent> end = {};
#pragma HLS ARRAY_PARTITION variable=end.first complete
#pragma HLS ARRAY_PARTITION variable=end.second complete
                const auto address = [&](unsigned i) { return x_word(first, i); };
                read_slowly(reads, cells, group_beats / 2, address, [&](unsigned i, const XCell &cell) {
                    const unsigned half = i / 2 % 2;
                residual_beats:
                    for (unsigned b = 0; b < 2; ++b) {
#pragma HLS UNROLL
                        Values out;
                        for (unsigned e = 0; e < 8; ++e) {
#pragma HLS UNROLL
                            const unsigned four = 2 * b + e / 4, of_four = four_columns(2 * i);
                            const unsigned word = 4 * c + of_four / 4, in_word = of_four % 4 * 4 + e % 4;
                            const Statistics &norm = norms[four][groups * stores + 2 * at.group + half];
                            const int16_t x = cell.of[4 * four + e % 4];
                            const int32_t u = centred(x, norm.top - cell.exponent[four], norm.mean,
                                affine.first[word][in_word]);
                            const int exponent = norm.top - guard + 13 + affine.first_exponent[c]
                                + norm.inverse.exponent;
                            const int top = larger(exponent + product_bits,
                                affine.second_exponent[c] + kept_bits) - sum_bits;
                            const int64_t sum = rounded(int64_t{u} * norm.inverse.mantissa, top - exponent) +
                                rounded(int64_t{affine.second[word][in_word]}, top - affine.second_exponent[c]);
                            out[e] = normalises ? static_cast<int32_t>(sum) : x;
                            const auto size = static_cast<uint32_t>(magnitude(out[e]));
                            if (size > end.first[4 * half + four]) end.first[4 * half + four] = size;
                            end.second[4 * half + four] = static_cast<Exponent>(normalises ? top : cell.exponent[four]);
                        }
                        if (stores) values_to_rows << out;
                        else values_to_post << out;
                    }
                    if (i < group_beats / 2 - 4 || i % 2 == 0) return;
                    RowExponents made;
                    for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
                        const int from = end.second[4 * half + r];
                        made.from[r] = static_cast<Exponent>(from);
                        made.made[r] = static_cast<Exponent>(
                            normalises ? stored_exponent(end.first[4 * half + r], from, 16) : from);
                    }
                    if (stores) to_rows << made;
                    else to_post << made;
                });
            }
        }
    }
}

}  // namespace rsn::xnn8::pl
