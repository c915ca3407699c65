// Rows: what is written to X, X8 and T of a lane, and what leaves X.
//
// Sums of each row and block are made as X is written: of its elements, of their squares, and the largest of their
// products with gains. When X is walked, they become the norm of a row and the factor of what is sent of it.
// SPDX-License-Identifier: Apache-2.0
#include "units.h"

namespace rsn::xnn8::pl {

namespace {

constexpr unsigned x_blocks = 16;
constexpr int product_bits = 30, offset_bits = 38;
constexpr int inverse_127 = 33026;  // in units of 2^-22

// Of a row and a block.
struct Sums {
    int32_t sum;
    int64_t squares;
    uint32_t most;  // of |x * gain|
    int8_t exponent;
};

// What a row is sent with.
struct Sent {
    int32_t mean;
    int16_t top;
    uint16_t reciprocal;  // of its scale: 127 * 2^22 / mantissa
    int16_t scale_exponent;
};

struct Gains {
    int16_t of[x_blocks * block_columns];
    uint32_t most[x_blocks];
    int16_t exponent[x_blocks];

    void take(unsigned block, hls::stream<Shorts> &from) {
#pragma HLS INLINE
        uint32_t largest = 0;
    take_gains:
        for (unsigned i = 0; i < piece_words; ++i) {
#pragma HLS PIPELINE II=ii::constants style=flp
            const Shorts word = from.read();
            for (unsigned n = 0; n < 16; ++n) {
#pragma HLS UNROLL
                const auto size = static_cast<uint32_t>(magnitude(word[n]));
                if (i < 4 && size > largest) largest = size;
                if (i < 4) of[block_columns * block + 16 * i + n] = word[n];
            }
            if (i == 8) exponent[block] = word[0];
        }
        most[block] = largest;
    }
};

// Adds the sums of four rows and four columns of a block to those of the columns before.
void add_up(const XCell &cell, const Gains &gains, unsigned block, unsigned group, unsigned four, Sums (&under_way)[2][4],
            Sums (&sums)[x_blocks * block_columns]) {
#pragma HLS INLINE
    for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
        Sums &row = under_way[group % 2][r];
        if (four == 0) row = {0, 0, 0, cell.exponent[r]};
        for (unsigned c = 0; c < 4; ++c) {
#pragma HLS UNROLL
            const int32_t x = cell.of[4 * r + c];
            const auto product = static_cast<uint32_t>(magnitude(x * gains.of[block_columns * block + 4 * four + c]));
            row.sum += x;
            row.squares += int64_t{x} * x;
            if (product > row.most) row.most = product;
        }
        if (four == x_words - 1) sums[block_columns * block + 4 * group + r] = row;
    }
}

}  // namespace

void rows(hls::stream<Uop<Rows::words>> &uops, unsigned lane, hls::stream<Shorts> &loads, hls::stream<Shorts> &stores,
          hls::stream<Shorts> &constants, hls::stream<Token> free[2], hls::stream<Token> filled[2],
          hls::stream<CellWrite<XCell>> &x, hls::stream<Token> &x_done, hls::stream<CellRead> &x_reads,
          hls::stream<XCell> &x_cells, hls::stream<CellWrite<TCell>> &x8, hls::stream<Token> &x8_done,
          hls::stream<CellWrite<TCell>> &t, hls::stream<Token> &t_done, hls::stream<Uop<Rows::words>> &to_post,
          hls::stream<Uop<Rows::words>> &to_residual, hls::stream<Statistics> &statistics_of, hls::stream<Place> &places,
          hls::stream<RowEnds> &ends, hls::stream<Values> &values, hls::stream<RowExponents> &stored_exponents,
          hls::stream<Values> &stored_values) {
    Gains gains = {};
#pragma HLS ARRAY_PARTITION variable=gains.of cyclic factor=16
    Sums sums[x_blocks * block_columns] = {}, under_way_sums[2][4] = {};
#pragma HLS ARRAY_PARTITION variable=sums cyclic factor=4
#pragma HLS ARRAY_PARTITION variable=under_way_sums complete dim=0
    Sent sent[block_columns] = {};
#pragma HLS ARRAY_PARTITION variable=sent cyclic factor=4
    unsigned number = 0;
rows_uops:
    for (;;) {
        const Uop<Rows::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) {
            to_post << uop;
            to_residual << uop;
            x << CellWrite<XCell>{true, false, 0, {}};
            x8 << CellWrite<TCell>{true, false, 0, {}};
            t << CellWrite<TCell>{true, false, 0, {}};
            x_reads << CellRead{true, 0};
            break;
        }
        const Rows op = Rows::decode(uop.words);
    rows_waits:
        for (unsigned i = 0; i < unsigned{op.wait} + op.wait_heads; ++i) free[i >= op.wait].read();
        const bool has_rows = op.blocks && lane >= op.first && lane < unsigned{op.first} + op.lanes;
        const unsigned groups_of_rows = op.rows / 4;
        if (!has_rows) {
        idle_gains:
            for (unsigned b = 0; op.gains && b < op.blocks; ++b) gains.take(op.slot + b, constants);
            // A lane without rows tells its readers as the others do: they count alike.
            const unsigned written = !op.blocks || op.op == load || op.op == store ? 0
                : op.op == walk ? op.blocks : op.to_t ? (op.blocks + op.narrow) >> op.narrow : 0;
        rows_tokens:
            for (unsigned i = 0; i < written; ++i) filled[op.op == take && op.reader].write(Token(1));
            continue;
        }
        if (op.op == take) to_post << uop;
        if (op.op == store || (op.op == walk && op.norm) || (op.op == take && op.residual)) to_residual << uop;

        const bool walks = op.op == walk;
        const NormConstants norm = {op.columns, static_cast<int32_t>(op.added), static_cast<int32_t>(op.root),
                                    static_cast<int16_t>(-op.added_low), op.root_exponent};
        int largest = lowest;
        uint32_t widest = 0;
    walk_gains:
        for (unsigned b = 0; walks && b < op.blocks; ++b) largest = larger(largest, gains.exponent[op.slot + b]);
    walk_widest:
        for (unsigned b = 0; walks && b < op.blocks; ++b) {
            const auto size = static_cast<uint32_t>(
                rounded(int64_t{gains.most[op.slot + b]}, largest - gains.exponent[op.slot + b]));
            if (size > widest) widest = size;
        }
    walk_statistics:
        for (unsigned group = 0; (walks || (op.op == store && op.norm)) && group < groups_of_rows; ++group) {
            TCell factors = {};
        walk_rows:
            for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
                const unsigned row = 4 * group + r;
                int top = lowest, bound_top = -1000;
            walk_tops:
                for (unsigned b = 0; b < op.blocks; ++b) {
#pragma HLS PIPELINE II=ii::sums style=flp
                    const int exponent = sums[block_columns * (op.slot + b) + row].exponent;
                    top = larger(top, exponent);
                    bound_top = larger(bound_top, exponent + gains.exponent[op.slot + b] + product_bits);
                }
                int64_t sum = 0, squares = 0;
            walk_sums:
                for (unsigned b = 0; b < op.blocks; ++b) {
#pragma HLS PIPELINE II=ii::sums style=flp
                    const Sums &of = sums[block_columns * (op.slot + b) + row];
                    sum += rounded(int64_t{of.sum} << guard, top - of.exponent);
                    squares += rounded(of.squares << 2 * guard, 2 * (top - of.exponent));
                }
                Statistics of_row = {0, static_cast<int16_t>(top), {0, 0}};
                if (op.norm) of_row = statistics(sum, squares, top, norm, op.rms);
                const int64_t offset = magnitude(of_row.mean) * widest;
                const int offset_exponent = top - guard + largest;
                if (op.norm && offset) bound_top = larger(bound_top, offset_exponent + offset_bits);
                int64_t bound = 0;
            walk_bounds:
                for (unsigned b = 0; b < op.blocks; ++b) {
#pragma HLS PIPELINE II=ii::sums style=flp
                    const Sums &of = sums[block_columns * (op.slot + b) + row];
                    const int exponent = of.exponent + gains.exponent[op.slot + b];
                    const int64_t most = rounded(int64_t{of.most}, bound_top - product_bits - exponent);
                    if (most > bound) bound = most;
                }
                if (op.norm) bound += rounded(offset, bound_top - product_bits - offset_exponent);
                const RowFactor scale = normal(bound, bound_top - product_bits, true);
                const int64_t reciprocal = divided(127 << 22, scale.mantissa);
                RowFactor factor = normal(int64_t{scale.mantissa} * inverse_127, scale.exponent - 22);
                if (op.norm) factor = times(factor, of_row.inverse);
                sent[row] = {of_row.mean, of_row.top, static_cast<uint16_t>(reciprocal), scale.exponent};
                const auto exponent = static_cast<uint16_t>(factor.exponent);
                for (unsigned i = 0; i < 2; ++i) {
#pragma HLS UNROLL
                    factors.of[4 * r + i] = static_cast<int8_t>(factor.mantissa >> 8 * i);
                    factors.of[4 * r + 2 + i] = static_cast<int8_t>(exponent >> 8 * i);
                }
                if (op.norm) statistics_of << of_row;
            }
            if (walks) x8 << CellWrite<TCell>{false, false, static_cast<uint16_t>(x8_depth + group), factors};
        }

        if (op.op == load) {
        load_blocks:
            for (unsigned block = op.slot; block < unsigned{op.slot} + op.blocks; ++block) {
                if (op.gains) gains.take(block, constants);
                int8_t exponents[block_columns] = {};
#pragma HLS ARRAY_PARTITION variable=exponents complete
            load_exponents:
                for (unsigned i = 0; i < op.rows / 16; ++i) {
                    const Shorts word = loads.read();
                    for (unsigned n = 0; n < 16; ++n) {
#pragma HLS UNROLL
                        exponents[16 * i + n] = static_cast<int8_t>(word[n]);
                    }
                }
            load_cells:
                for (unsigned i = 0; i < groups_of_rows * x_words; ++i) {
#pragma HLS PIPELINE II=ii::x style=flp
                    const unsigned at = x_word(i / 32 * 2, i % 32), group = at / x_words;
                    XCell cell = {loads.read(), {}};
                    for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
                        cell.exponent[r] = exponents[4 * group + r];
                    }
                    add_up(cell, gains, block, group, at % x_words, under_way_sums, sums);
                    const bool told = i + 1 == groups_of_rows * x_words;
                    x << CellWrite<XCell>{false, told, static_cast<uint16_t>(block * groups * x_words + at), cell};
                }
                x_done.read();
            }
        } else if (op.op == store) {
        store_blocks:
            for (unsigned block = 0; block < op.blocks; ++block) {
                Exponent exponents[block_columns] = {};
#pragma HLS ARRAY_PARTITION variable=exponents complete
                RowExponents of_rows[2] = {};
                Shorts word;
            store_cells:
                for (unsigned i = 0; i < groups_of_rows * 2 * x_words; ++i) {
#pragma HLS PIPELINE II=ii::cells style=flp
                    const unsigned n = i % group_beats, half = upper(n), first = 8 * (i / group_beats) + 4 * half;
                    if (n % 4 == 0 && n < 8) of_rows[half] = stored_exponents.read();
                    const Values in = stored_values.read();
                    for (unsigned e = 0; e < 8; ++e) {
#pragma HLS UNROLL
                        const unsigned four = row_in_four(n, e);
                        const int from = of_rows[half].from[four], made = of_rows[half].made[four];
                        word[4 * four + e % 4] = static_cast<int16_t>(stored(in[e], from, made, 16));
                        exponents[first + four] = static_cast<Exponent>(made);
                    }
                    if (n % 2) stores << word;
                }
            store_exponents:
                for (unsigned i = 0; i < op.rows / 16; ++i) {
                    for (unsigned n = 0; n < 16; ++n) {
#pragma HLS UNROLL
                        word[n] = exponents[16 * i + n];
                    }
                    stores << word;
                }
            }
        } else if (op.op == take) {
        take_gains:
            for (unsigned block = 0; op.gains && block < op.blocks; ++block) gains.take(op.slot + block, constants);
            uint8_t groups_left[8] = {};
#pragma HLS ARRAY_PARTITION variable=groups_left complete
        take_counts:
            for (unsigned c = 0; c < 8; ++c) groups_left[c] = static_cast<uint8_t>(op.rows / 8);
            unsigned in_order = 0;  // blocks that are whole, as all before them
            XCell x_cell = {};
            TCell t_cell = {};
            RowEnds of_rows[2] = {};
            Place at = {};
        take_groups:
            for (unsigned group = 0; group < op.blocks * op.rows / 8; ++group) {
            take_beats:
                for (unsigned n = 0; n < group_beats; ++n) {
#pragma HLS PIPELINE II=ii::x style=flp
                    if (n == 0) at = places.read();
                    const unsigned half = upper(n), block = op.slot + at.column, four_rows = 2 * at.group + half;
                    if (n % 4 == 0 && n < 8) of_rows[half] = ends.read();
                    const Values in = values.read();
                    const int bits = op.to_t ? 8 : 16;
                    for (unsigned e = 0; e < 8; ++e) {
#pragma HLS UNROLL
                        const unsigned four = row_in_four(n, e);
                        const int from = of_rows[half].exponent[four];
                        const int made = stored_exponent(of_rows[half].most[four], from, bits);
                        const int32_t v = stored(in[e], from, made, bits);
                        x_cell.of[4 * four + e % 4] = static_cast<int16_t>(v);
                        t_cell.of[8 * four + 4 * (n / 2 % 2) + e % 4] = static_cast<int8_t>(v);
                        x_cell.exponent[four] = t_cell.exponent[four] = static_cast<int8_t>(made);
                    }
                    const bool told = n + 1 == group_beats;
                    if (op.to_t && n % 4 == 3) {
                        const unsigned address = (block * groups + four_rows) * t_words + n / 8;
                        t << CellWrite<TCell>{false, told, static_cast<uint16_t>(address), t_cell};
                    }
                    if (!op.to_t && n % 2 == 1) {
                        add_up(x_cell, gains, block, four_rows, four_columns(n), under_way_sums, sums);
                        const unsigned address = (block * groups + four_rows) * x_words + four_columns(n);
                        x << CellWrite<XCell>{false, told, static_cast<uint16_t>(address), x_cell};
                    }
                }
                if (!op.to_t) {
                    x_done.read();
                    continue;
                }
                t_done.read();
                --groups_left[at.column];
            take_tokens:
                while (in_order < op.blocks && !groups_left[in_order]) {
                    filled[op.reader].write(Token(1));
                    ++in_order;
                }
            }
        } else {
        walk_blocks:
            for (unsigned block = op.slot; block < unsigned{op.slot} + op.blocks; ++block) {
                TCell out = {};
                const unsigned count = groups_of_rows * x_words;
                const auto address = [&](unsigned i) { return block * groups * x_words + i; };
                read_cells(x_reads, x_cells, count, address, [&](unsigned i, const XCell &cell) {
                    for (unsigned e = 0; e < 16; ++e) {
#pragma HLS UNROLL
                        const unsigned r = e / 4, column = block_columns * block + i % x_words * 4 + e % 4;
                        const Sent &row = sent[i / x_words * 4 + r];
                        const int32_t u = centred(cell.of[e], row.top - cell.exponent[r], row.mean, gains.of[column]);
                        const int exponent = row.top - guard + 13 + gains.exponent[block];
                        const int64_t product = int64_t{u} * row.reciprocal;
                        out.of[8 * r + i % 2 * 4 + e % 4] = static_cast<int8_t>(
                            saturated(rounded(product, 22 + row.scale_exponent - exponent), 8));
                    }
                    const auto at = static_cast<uint16_t>(block * groups * t_words + i / 2);
                    if (i % 2) x8 << CellWrite<TCell>{false, i + 1 == count, at, out};
                });
                x8_done.read();
                filled[0].write(Token(1));
            }
        }
    }
}

}  // namespace rsn::xnn8::pl
