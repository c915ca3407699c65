// Rows: what is written to X, X8 and T of a lane, and what leaves X.
//
// Sums of each row and block are made as X is written: of its elements, of their squares, and the largest of their
// products with gains. When X is walked, they become the norm of a row and the factor of what is sent of it.
// SPDX-License-Identifier: Apache-2.0
#include "units.h"

namespace rsn::xnn8::pl {

namespace {

constexpr unsigned x_blocks = 16, cell_words = 64;  // words of X of 16 rows
constexpr unsigned send_reads = 0, heads_reads = 1;  // bits of a field
constexpr int product_bits = 30, offset_bits = 38;
constexpr int none = -1000;  // below all exponents
constexpr int inverse_127 = 33026;  // in units of 2^-22

// Of a row and a block.
struct Sums {
    int32_t sum;
    uint32_t squares;    // of which
    uint8_t carried;     // are 2^32
    uint32_t most;       // of |x * gain|
    int8_t exponent;
};

// The same of two groups of four rows, while their columns are added up.
struct SumsUnderWay {
    int32_t sum[2][4];
    uint32_t squares[2][4];
    uint8_t carried[2][4];
    uint32_t most[2][4];
};

// What a row is sent with.
struct Sent {
    int32_t mean;
    int16_t top;
    uint16_t reciprocal;  // of its scale: 127 * 2^22 / mantissa
    int16_t scale_exponent;
};

// The largest of some numbers, as a tree.
template <unsigned Count>
uint32_t largest_of(uint32_t (&sizes)[Count]) {
#pragma HLS INLINE
    for (unsigned step = Count / 2; step; step /= 2) {
#pragma HLS UNROLL
        for (unsigned n = 0; n < step; ++n) {
#pragma HLS UNROLL
            if (sizes[n + step] > sizes[n]) sizes[n] = sizes[n + step];
        }
    }
    return sizes[0];
}

struct Gains {
    Shorts of[4 * x_blocks];
    uint32_t most[x_blocks];
    int16_t exponent[x_blocks];

    void take(unsigned block, hls::stream<Shorts> &from) {
#pragma HLS INLINE
        uint32_t largest = 0;
    take_gains:
        for (unsigned i = 0; i < piece_words; ++i) {
#pragma HLS PIPELINE II=ii::constants style=flp
            const Shorts word = from.read();
            if (i < 4) of[4 * block + i] = word;
            uint32_t sizes[16];
#pragma HLS ARRAY_PARTITION variable=sizes complete
            for (unsigned n = 0; n < 16; ++n) {
#pragma HLS UNROLL
                sizes[n] = i < 4 ? static_cast<uint32_t>(magnitude(word[n])) : 0;
            }
            const uint32_t most_of_word = largest_of(sizes);
            if (most_of_word > largest) largest = most_of_word;
            if (i == 8) exponent[block] = word[0];
        }
        most[block] = largest;
    }
};

// Adds the sums of four rows and four columns of a block to those of the columns before.
void add_up(const XCell &cell, const Gains &gains, unsigned block, unsigned group, unsigned four,
    SumsUnderWay &under_way,
            Sums (&sums)[4][x_blocks * groups]) {
#pragma HLS INLINE
    const Shorts gain = gains.of[4 * block + four / 4];
    for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
        const unsigned which = group % 2;
        const bool begins = four == 0;
        int32_t sum = 0;
        uint32_t squares = 0;
        uint32_t products[4];
#pragma HLS ARRAY_PARTITION variable=products complete
        for (unsigned c = 0; c < 4; ++c) {
#pragma HLS UNROLL
            const int32_t x = cell.of[4 * r + c];
            products[c] = static_cast<uint32_t>(magnitude(x * gain[four % 4 * 4 + c]));
            sum += x;
            squares += static_cast<uint32_t>(x * x);
        }
        const uint32_t most = largest_of(products);
        const uint32_t before = begins ? 0 : under_way.most[which][r];
        const Sums made = {
            (begins ? 0 : under_way.sum[which][r]) + sum, (begins ? 0 : under_way.squares[which][r]) + squares,
            static_cast<uint8_t>((begins ? 0 : under_way.carried[which][r])
                + (~under_way.squares[which][r] < squares && !begins)),
            most > before ? most : before, cell.exponent[r]};
        under_way.sum[which][r] = made.sum;
        under_way.squares[which][r] = made.squares;
        under_way.carried[which][r] = made.carried;
        under_way.most[which][r] = made.most;
        if (four == x_words - 1) sums[r][groups * block + group] = made;
    }
}

// Takes a beat of values, number n of eight rows: four rows of 4 columns of X in two beats, of 8 columns of T in four.
template <typename CellOf>
void take_values(unsigned n, int bits, hls::stream<Place> &places, hls::stream<RowEnds> &ends,
    hls::stream<Values> &values,
                 Place &at, EightRows<uint32_t, Exponent> &of_rows, CellOf &cell) {
#pragma HLS INLINE
    constexpr unsigned columns = sizeof(cell.of) / sizeof(cell.of[0]) / 4;
    const unsigned half = upper(n);
    if (n == 0) at = places.read();
    if (n % 4 == 0 && n < 8) {
        const RowEnds read = ends.read();  // hls-allow state-order: they come behind their place
        of_rows.put(half, read.most, read.exponent);
    }
    const Values in = values.read();  // hls-allow state-order: they come before their ends
    for (unsigned e = 0; e < 8; ++e) {
#pragma HLS UNROLL
        const unsigned four = row_in_four(n, e);
        const int from = of_rows.second[4 * half + four];
        const int made = stored_exponent(of_rows.first[4 * half + four], from, bits);
        const int32_t v = stored(in[e], from, made, bits);
        using Element = std::decay_t<decltype(cell.of[0])>;
        cell.of[columns * four + 4 * (n / 2 % 2) % columns + e % 4] = static_cast<Element>(v);
        cell.exponent[four] = static_cast<int8_t>(made);
    }
}

}  // namespace

void rows(hls::stream<Uop<Rows::words>> &uops, unsigned lane, hls::stream<Shorts> &loads, hls::stream<Shorts> &stores,
          hls::stream<Shorts> &constants, hls::stream<Token> free[2], hls::stream<Token> filled[2],
          hls::stream<CellWrite<XCell>> &x, hls::stream<Token> &x_done, hls::stream<CellRead> &x_reads,
          hls::stream<XCell> &x_cells, hls::stream<CellWrite<TCell>> &x8, hls::stream<Token> &x8_done,
          hls::stream<CellWrite<TCell>> &t, hls::stream<Token> &t_done, hls::stream<Uop<Rows::words>> &to_post,
          hls::stream<Uop<Rows::words>> &to_residual, hls::stream<Statistics> &statistics_of,
          hls::stream<Place> &places,
          hls::stream<RowEnds> &ends, hls::stream<Values> &values, hls::stream<RowExponents> &stored_exponents,
          hls::stream<Values> &stored_values) {
    Gains gains = {};
no_gains:
    for (unsigned b = 0; b < x_blocks; ++b) gains.exponent[b] = lowest;
    Sums sums[4][x_blocks * groups] = {};
    SumsUnderWay under_way_sums = {};
#pragma HLS AGGREGATE variable=sums compact=bit
#pragma HLS ARRAY_PARTITION variable=sums complete dim=1
#pragma HLS ARRAY_PARTITION variable=under_way_sums.sum complete dim=0
#pragma HLS ARRAY_PARTITION variable=under_way_sums.squares complete dim=0
#pragma HLS ARRAY_PARTITION variable=under_way_sums.carried complete dim=0
#pragma HLS ARRAY_PARTITION variable=under_way_sums.most complete dim=0
    Sent sent[4][groups] = {};
#pragma HLS AGGREGATE variable=sent compact=bit
#pragma HLS ARRAY_PARTITION variable=sent complete dim=1
    unsigned number = 0;
rows_uops:
    for (;;) {
        const Uop<Rows::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) {
            to_post << uop;
            put_behind(to_residual, uop);
            x << CellWrite<XCell>{true, false, 0, {}};
            x8 << CellWrite<TCell>{true, false, 0, {}};  // hls-allow state-order: memories end by themselves
            t << CellWrite<TCell>{true, false, 0, {}};
            x_reads << CellRead{true, 0};
            break;
        }
        const Rows op = Rows::decode(uop.words);
    rows_waits:
        for (unsigned i = 0; i < unsigned{op.wait} + op.wait_heads; ++i) {
            if (i < op.wait) free[0].read();
            else free[1].read();
        }
        const bool has_rows = op.blocks && lane >= op.first && lane < unsigned{op.first} + op.lanes;
        const unsigned groups_of_rows = op.rows / 4, first_block = block_of(op.slot, op.rows);
        const bool takes_t = op.op == take && op.memory == in_t;
        if (!has_rows) {
        idle_gains:
            for (unsigned b = 0; op.gains && b < op.blocks; ++b) gains.take(first_block + b, constants);
            // A lane without rows tells its readers as the others do: they count alike.
            const unsigned written = !op.blocks || op.op == load || op.op == store ? 0
                : op.op == walk ? op.blocks : takes_t ? (op.blocks + op.narrow) >> op.narrow : 0;
        rows_tokens:
            for (unsigned i = 0; i < written; ++i) {
                if (takes_t && op.readers >> heads_reads & 1) filled[1] << Token(1);
                if (!takes_t || op.readers >> send_reads & 1) filled[0] << Token(1);
            }
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
        for (unsigned b = 0; walks && b < op.blocks; ++b) largest = larger(largest, gains.exponent[first_block + b]);
    walk_widest:
        for (unsigned b = 0; walks && b < op.blocks; ++b) {
            const auto size = static_cast<uint32_t>(
                rounded(int64_t{gains.most[first_block + b]}, largest - gains.exponent[first_block + b]));
            if (size > widest) widest = size;
        }
    walk_statistics:
        for (unsigned group = 0; (walks || (op.op == store && op.norm)) && group < groups_of_rows; ++group) {
            int tops[4] = {lowest, lowest, lowest, lowest}, bound_tops[4] = {none, none, none, none};
#pragma HLS ARRAY_PARTITION variable=tops complete
#pragma HLS ARRAY_PARTITION variable=bound_tops complete
        walk_tops:
            for (unsigned b = 0; b < op.blocks; ++b) {
#pragma HLS PIPELINE II=ii::sums style=flp
                for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
                    const int exponent = sums[r][groups * (first_block + b) + group].exponent;
                    tops[r] = larger(tops[r], exponent);
                    bound_tops[r] = larger(bound_tops[r], exponent + gains.exponent[first_block + b] + product_bits);
                }
            }
            int64_t all[4] = {}, squares[4] = {};
#pragma HLS ARRAY_PARTITION variable=all complete
#pragma HLS ARRAY_PARTITION variable=squares complete
        walk_sums:
            for (unsigned b = 0; b < op.blocks; ++b) {
#pragma HLS PIPELINE II=ii::sums style=flp
                for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
                    const Sums of = sums[r][groups * (first_block + b) + group];
                    all[r] += rounded(int64_t{of.sum} << guard, tops[r] - of.exponent);
                    squares[r] += rounded((int64_t{of.carried} << 32 | of.squares) << 2 * guard,
                        2 * (tops[r] - of.exponent));
                }
            }
            Statistics of_rows[4];
            int64_t offsets[4], bounds[4] = {};
            int offset_exponents[4];
#pragma HLS ARRAY_PARTITION variable=of_rows complete
#pragma HLS ARRAY_PARTITION variable=offsets complete
#pragma HLS ARRAY_PARTITION variable=bounds complete
#pragma HLS ARRAY_PARTITION variable=offset_exponents complete
        walk_norms:
            for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
                of_rows[r] = {0, static_cast<int16_t>(tops[r]), {0, 0}};
                if (op.norm) of_rows[r] = statistics(all[r], squares[r], tops[r], norm, op.rms);
                offsets[r] = magnitude(of_rows[r].mean) * widest;
                offset_exponents[r] = tops[r] - guard + largest;
                if (op.norm && offsets[r]) bound_tops[r] = larger(bound_tops[r], offset_exponents[r] + offset_bits);
            }
        walk_bounds:
            for (unsigned b = 0; b < op.blocks; ++b) {
#pragma HLS PIPELINE II=ii::sums style=flp
                for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
                    const Sums of = sums[r][groups * (first_block + b) + group];
                    const int exponent = of.exponent + gains.exponent[first_block + b];
                    const int64_t most = rounded(int64_t{of.most}, bound_tops[r] - product_bits - exponent);
                    if (most > bounds[r]) bounds[r] = most;
                }
            }
            TCell factors = {};
        walk_factors:
            for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
                const int bound_exponent = bound_tops[r] - product_bits;
                if (op.norm) bounds[r] += rounded(offsets[r], bound_exponent - offset_exponents[r]);
                const RowFactor scale = normal(bounds[r], bound_exponent, true);
                const int64_t reciprocal = divided(127 << 22, scale.mantissa);
                RowFactor factor = normal(int64_t{scale.mantissa} * inverse_127, scale.exponent - 22);
                if (op.norm) factor = times(factor, of_rows[r].inverse);
                sent[r][group] = {of_rows[r].mean, of_rows[r].top, static_cast<uint16_t>(reciprocal), scale.exponent};
                const auto exponent = static_cast<uint16_t>(factor.exponent);
                for (unsigned i = 0; i < 2; ++i) {
#pragma HLS UNROLL
                    factors.of[4 * r + i] = static_cast<int8_t>(factor.mantissa >> 8 * i);
                    factors.of[4 * r + 2 + i] = static_cast<int8_t>(exponent >> 8 * i);
                }
                if (op.norm) statistics_of << of_rows[r];
            }
            if (walks) x8 << CellWrite<TCell>{false, false, static_cast<uint16_t>(x8_depth + group), factors};
        }

        if (op.op == load) {
        load_blocks:
            for (unsigned block = first_block; block < first_block + op.blocks; ++block) {
                if (op.gains) gains.take(block, constants);
            load_groups:
                for (unsigned first = 0; first < groups_of_rows; first += cell_rows / 4) {
                    int8_t exponents[cell_rows];
#pragma HLS ARRAY_PARTITION variable=exponents complete
                    const Shorts of_rows = loads.read();
                    for (unsigned r = 0; r < cell_rows; ++r) {
#pragma HLS UNROLL
                        exponents[r] = static_cast<int8_t>(of_rows[r]);
                    }
                load_cells:
                    for (unsigned i = 0; i < cell_words; ++i) {
#pragma HLS PIPELINE II=ii::x style=flp
                        const unsigned at = x_word(first + i / 32 * 2, i % 32), group = at / x_words;
                        XCell cell = {loads.read(), {}};
                        for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
                            cell.exponent[r] = exponents[4 * (group % 4) + r];
                        }
                        add_up(cell, gains, block, group, at % x_words, under_way_sums, sums);
                        const bool told = i + 1 == cell_words && first + cell_rows / 4 == groups_of_rows;
                        x << CellWrite<XCell>{false, told, static_cast<uint16_t>(block * groups * x_words + at), cell};
                    }
                }
                x_done.read();
            }
        } else if (op.op == store) {
        store_blocks:
            for (unsigned group = 0; group < op.blocks * op.rows / cell_rows; ++group) {
                Exponent exponents[cell_rows] = {};
#pragma HLS ARRAY_PARTITION variable=exponents complete
                EightRows<Exponent, Exponent> of_rows = {};
#pragma HLS ARRAY_PARTITION variable=of_rows.first complete
#pragma HLS ARRAY_PARTITION variable=of_rows.second complete
                Shorts word;
            store_cells:
                for (unsigned i = 0; i < 2 * cell_words; ++i) {
#pragma HLS PIPELINE II=ii::cells style=flp
                    const unsigned n = i % group_beats, half = upper(n), first = 8 * (i / group_beats) + 4 * half;
                    if (n % 4 == 0 && n < 8) {
                        const RowExponents read = stored_exponents.read();
                        of_rows.put(half, read.from, read.made);
                    }
                    const Values in = stored_values.read();
                    for (unsigned e = 0; e < 8; ++e) {
#pragma HLS UNROLL
                        const unsigned four = row_in_four(n, e);
                        const int from = of_rows.first[4 * half + four], made = of_rows.second[4 * half + four];
                        word[4 * four + e % 4] = static_cast<int16_t>(stored(in[e], from, made, 16));
                        exponents[first + four] = static_cast<Exponent>(made);
                    }
                    if (n % 2) stores << word;
                }
                for (unsigned r = 0; r < cell_rows; ++r) {
#pragma HLS UNROLL
                    word[r] = exponents[r];
                }
                stores << word;
            }
        } else if (op.op == take) {
        take_gains:
            for (unsigned block = 0; op.gains && block < op.blocks; ++block) gains.take(first_block + block, constants);
            XCell x_cell = {};
            TCell t_cell = {};
            EightRows<uint32_t, Exponent> of_rows = {};
#pragma HLS ARRAY_PARTITION variable=x_cell.exponent complete
#pragma HLS ARRAY_PARTITION variable=t_cell.exponent complete
#pragma HLS ARRAY_PARTITION variable=of_rows.first complete
#pragma HLS ARRAY_PARTITION variable=of_rows.second complete
            Place at = {};
            const unsigned count = op.blocks * op.rows / 8 * group_beats;
        take_to_x:
            for (unsigned i = 0; !takes_t && i < count; ++i) {
#pragma HLS PIPELINE II=ii::x style=flp
                const unsigned n = i % group_beats;
                take_values(n, 16, places, ends, values, at, of_rows, x_cell);
                const unsigned block = first_block + at.column, group = 2 * at.group + upper(n), four = four_columns(n);
                if (n % 2 == 0) continue;
                add_up(x_cell, gains, block, group, four, under_way_sums, sums);
                const unsigned address = (block * groups + group) * x_words + four;
                x << CellWrite<XCell>{false, i + 1 == count, static_cast<uint16_t>(address), x_cell};
            }
            if (!takes_t) {
                x_done.read();
                continue;
            }
            uint8_t groups_left[8] = {};
#pragma HLS ARRAY_PARTITION variable=groups_left complete
        take_counts:
            for (unsigned c = 0; c < 8; ++c) {
#pragma HLS UNROLL
                groups_left[c] = static_cast<uint8_t>(op.rows / 8);
            }
            unsigned whole = 0, before = 0;  // blocks that are whole, as all before them; where the group before went
        take_to_t:
            for (unsigned i = 0; i < count + group_beats; ++i) {
#pragma HLS PIPELINE II=ii::cells style=flp
                const unsigned n = i % group_beats;
                if (n == 0) before = at.column;
                if (i < count) {
                    take_values(n, 8, places, ends, values, at, of_rows, t_cell);
                    const unsigned address = ((first_block + at.column) * groups + 2 * at.group + upper(n)) * t_words
                        + n / 8;
                    const bool told = n + 1 == group_beats;
                    if (n % 4 == 3) t << CellWrite<TCell>{false, told, static_cast<uint16_t>(address), t_cell};
                }
                if (n == group_beats / 2 && i >= group_beats) {
                    t_done.read();  // hls-allow state-order: the group before has been written
                    --groups_left[before];
                }
                if (whole < op.blocks && !groups_left[whole]) {
                    ++whole;
                    // hls-allow state-order: readers take tokens by themselves
                    if (op.readers >> heads_reads & 1) filled[1] << Token(1);
                    // hls-allow state-order: the same
                    if (op.readers >> send_reads & 1) filled[0] << Token(1);
                }
            }
        } else {
        walk_blocks:
            for (unsigned block = first_block; block < first_block + op.blocks; ++block) {
                TCell out = {};
                const unsigned count = groups_of_rows * x_words;
                const auto address = [&](unsigned i) { return block * groups * x_words + i; };
                read_slowly(x_reads, x_cells, count, address, [&](unsigned i, const XCell &cell) {
                    for (unsigned e = 0; e < 16; ++e) {
#pragma HLS UNROLL
                        const unsigned r = e / 4, four = i % x_words;
                        const Sent &row = sent[r][i / x_words];
                        const int16_t gain = gains.of[4 * block + four / 4][four % 4 * 4 + e % 4];
                        const int32_t u = centred(cell.of[e], row.top - cell.exponent[r], row.mean, gain);
                        const int exponent = row.top - guard + 13 + gains.exponent[block];
                        const int64_t product = int64_t{u} * row.reciprocal;
                        out.of[8 * r + i % 2 * 4 + e % 4] = static_cast<int8_t>(
                            saturated(rounded(product, 22 + row.scale_exponent - exponent), 8));
                    }
                    const auto at = static_cast<uint16_t>(block * groups * t_words + i / 2);
                    if (i % 2) x8 << CellWrite<TCell>{false, i + 1 == count, at, out};
                });
                x8_done.read();
                put_behind(filled[0], Token(1));
            }
        }
    }
}

}  // namespace rsn::xnn8::pl
