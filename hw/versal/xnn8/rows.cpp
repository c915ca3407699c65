// Rows: what is written to X, X8 and T of a lane, and what leaves X.
//
// Sums of each row and block are made as X is written: of its elements, of their squares, and the largest of their
// products with gains. When X is walked, they become the norm of a row and the factor of what is sent of it.
// SPDX-License-Identifier: Apache-2.0
#include "units.h"

namespace rsn::xnn8::pl {

namespace {

constexpr unsigned exponent_words = 2;  // of rows that lie off chip one by one: of the second nothing
constexpr unsigned cell_words = 64;  // words of X of 16 rows; off chip, exponents in front of them
constexpr unsigned send_reads = 0, heads_reads = 1;  // bits of a field
constexpr int product_bits = 30, offset_bits = 38;
constexpr int inverse_127 = 33026;  // in units of 2^-22
constexpr int least_sent = -2, sent_bits = 19;  // shift of what is sent; bits before it is limited to 16

// Of a row and a block. most: of |x * gain|.
struct Sums {
    ap_int<23> sum;
    ap_int<37> squares;
    ap_int<31> most;
};
// Of four rows of a block.
struct FourExponents {
    int8_t of[4];
};

// Sums of all rows and blocks, and their exponents, by group of rows. A block RAM has 512 words: so those of two of
// four rows share memories, and both are written in the two cycles of a cell.
struct SumsOfRows {
    Sums of[2][2 * x_cells_of_lane * cell_groups];
    FourExponents exponents[x_cells_of_lane * cell_groups];

    Sums &at(unsigned group, unsigned row) {
#pragma HLS INLINE
        return of[row % 2][2 * group + row / 2];
    }
};

// What a row is sent with: of its statistics; of its scale, 127 * 2^22 / mantissa, and the exponent.
struct SentRow {
    int32_t mean;
    CellExponent top;
};
struct SentScale {
    uint16_t reciprocal;
    KeptExponent exponent;
};

// Words of blocks, and rows of blocks, one after the other in a flat loop. block: its first cell.
struct WordOfBlock {
    uint8_t block;
    uint16_t word = 0;
    void next(unsigned words, unsigned cells) {
#pragma HLS INLINE
        const bool last = word + 1u == words;
        word = last ? 0 : static_cast<uint16_t>(word + 1);
        block = static_cast<uint8_t>(block + (last ? cells : 0));
    }
};
struct RowOfBlocks {
    uint8_t row = 0, block = 0;
    void next(unsigned blocks) {
#pragma HLS INLINE
        const bool last = block + 1u == blocks;
        block = last ? 0 : static_cast<uint8_t>(block + 1);
        row = static_cast<uint8_t>(row + last);
    }
};

// Of blocks, by their first cells.
struct Gains {
    Quarter of[x_words * x_cells_of_lane];
    int16_t most[x_cells_of_lane];
    KeptExponent exponent[x_cells_of_lane];

    void take(unsigned block, hls::stream<Shorts> &from) {
#pragma HLS INLINE
        ap_int<16> largest = 0;
        Shorts word = {};
    take_gains:
        for (unsigned i = 0; i < 4 * piece_words; ++i) {
#pragma HLS PIPELINE II=ii::gains style=flp
            const unsigned n = i / 4;  // of the word, of which each cycle takes a quarter
            if (i % 4 == 0) word = from.read();
            Quarter quarter;
            int64_t most_of_quarter = 0;
            for (unsigned e = 0; e < 4; ++e) {
#pragma HLS UNROLL
                quarter[e] = word[4 * (i % 4) + e];
                most_of_quarter = larger(most_of_quarter, within<15>(magnitude(quarter[e])));
            }
            if (n < 4) {
                of[x_words * block + i] = quarter;
                largest = larger(largest, most_of_quarter);
            }
            if (n == 8 && i % 4 == 0) exponent[block] = word[0];
        }
        most[block] = static_cast<int16_t>(int64_t{largest});
    }
};

// Adds the sums of two rows and four columns of a block, half of a cell, to those of the columns before. under_way: of
// two groups of four rows.
void add_up(const Packed &two, const Gains &gains, unsigned block, unsigned group, unsigned four, bool half,
            Sums (&under_way)[2][4], SumsOfRows &sums) {
#pragma HLS INLINE
    const Quarter gain = gains.of[x_words * block + four];
    int64_t sizes[4];
    for (unsigned c = 0; c < 4; ++c) {
#pragma HLS UNROLL
        sizes[c] = within<15>(magnitude(gain[c]));
    }
    for (unsigned i = 0; i < 2; ++i) {
#pragma HLS UNROLL
        const unsigned r = 2 * half + i;
        Sums &made = under_way[group % 2][r];
        int64_t sum = 0, squares = 0, most = 0;
        for (unsigned c = 0; c < 4; ++c) {
#pragma HLS UNROLL
            const int64_t x = two.of[4 * i + c];
            most = larger(most, within<30>(within<15>(magnitude(x)) * sizes[c]));
            sum += x;
            squares += within<30>(x * x);
        }
        if (four == 0) made = {};
        made = {made.sum + sum, made.squares + squares, larger(made.most, most)};
        if (four == x_words - 1) sums.at(cell_groups * block + group, r) = made;
    }
}

// Goes through rows, or groups of 16, as they lie off chip: `count` beats each. before: groups of four rows in the
// blocks before, of rows one by one, by `groups` in each.
struct PartOfRow {
    uint16_t row = 0;
    uint8_t beat = 0, before = 0;
    void next(unsigned count, bool ends_block = false, unsigned groups = 0) {
#pragma HLS INLINE
        const bool last = beat + 1u == count;
        beat = last ? 0 : static_cast<uint8_t>(beat + 1);
        before = last ? 0 : static_cast<uint8_t>(before + (ends_block ? groups : 0));
        row = static_cast<uint16_t>(row + last);
    }
};

// Rows of a cache to T, eight bytes a cycle, which are in one cell. Two words come first: exponents, and nothing.
void load_rows(const Rows &op, hls::stream<Shorts> &loads, hls::stream<CellWrite<TCell>> &t) {
#pragma HLS INLINE
    const unsigned of_row = op.blocks * t_words + exponent_words;
    PartOfRow at;
    int8_t exponents[pairs] = {};
#pragma HLS ARRAY_PARTITION variable=exponents complete
    Shorts word = {};
load_parts:
    while (at.row < op.key_rows) {
#pragma HLS PIPELINE II=ii::cells style=flp
        const bool ahead = at.beat < exponent_words;
        const unsigned part = at.beat - exponent_words;
        if (ahead || part % 4 == 0) word = loads.read();
        for (unsigned b = 0; b < pairs; ++b) {
#pragma HLS UNROLL
            if (at.beat == 0) exponents[b] = static_cast<int8_t>(word[b / 2] >> b % 2 * 8);
        }
        TCell cell;
        for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
            for (unsigned e = 0; e < 8; ++e) {
#pragma HLS UNROLL
                cell.of[8 * r + e] = static_cast<int8_t>(word[part % 4 * 4 + e / 2] >> e % 2 * 8);
            }
            cell.exponent[r] = exponents[part / t_words % pairs];
        }
        const unsigned group = cell_groups * op.slot + at.before + at.row / 4;
        const auto address = static_cast<uint16_t>(group * t_words + part % t_words);
        const ap_uint<4> rows = 1 << at.row % 4;
        const bool ends = at.beat + 1u == of_row && at.row + 1u == op.key_rows;
        if (!ahead) t << CellWrite<TCell>{false, ends, address, cell, rows};
        at.next(of_row, !ahead && part % t_words == t_words - 1, op.key_rows / 4u);
    }
}

// Groups of 16 rows as they are stored, and behind them their exponents; or rows of T or X one by one, four columns of
// X or eight of T a cycle, and behind each its exponents, and a word of nothing. One loop, so that words are chosen
// once. groups: of 16 rows, each of group_words words and its exponents.
void store_words(const Rows &op, unsigned groups, unsigned group_words, hls::stream<CellRead> &x_reads,
                 hls::stream<XCell> &x_cells, hls::stream<CellRead> &t_reads, hls::stream<TRow> &t_rows,
                 hls::stream<Packed> &values, hls::stream<Shorts> &stores) {
#pragma HLS INLINE
    const bool by_row = op.by_row, in_cells_of_t = !by_row && op.memory == in_t, of_t = by_row && op.memory == in_t;
    const unsigned in_block = of_t ? t_words : x_words, parts = by_row ? op.blocks * in_block : 2 * group_words;
    const unsigned of_row = parts + (by_row ? exponent_words : 1);
    const unsigned rows = !by_row ? groups : op.keeps ? 1u : unsigned{op.rows};
    uint8_t ahead = by_row ? under_way : 0;
    PartOfRow asked, taken;
    Shorts word = {};
    Bytes ends = {};
store_parts:
    for (; taken.row < rows; ahead = static_cast<uint8_t>(ahead - (ahead != 0))) {
#pragma HLS PIPELINE II=ii::cells style=flp
        if (by_row && asked.row < rows && asked.beat < parts) {
            const unsigned group = cell_groups * op.slot + asked.before + asked.row / 4;
            const unsigned cell = group * in_block + asked.beat % in_block;
            if (of_t) t_reads << CellRead{false, static_cast<uint16_t>(4 * cell + asked.row % 4)};
            else x_reads << CellRead{false, static_cast<uint16_t>(cell)};
        }
        asked.next(of_row, asked.beat % in_block == in_block - 1, op.rows / 4u);
        if (ahead) continue;
        const unsigned beat = taken.beat, block = beat / in_block;
        // Two rows, four columns; of rows one by one, twice the same.
        Packed in = {};
        if (beat < parts && !by_row) in = values.read();
        if (beat < parts && by_row && !of_t) {
            const XCell cell = x_cells.read();
            for (unsigned e = 0; e < 32; ++e) {
#pragma HLS UNROLL
                if (e / 8 != taken.row % 4u) continue;
                in.of[e % 8] = cell.of[e / 8 * 4 + e % 4];
                in.exponent[e / 4 % 2] = cell.exponent[e / 8];
            }
        }
        if (beat < parts && of_t) {
            const TRow row = t_rows.read();
            for (unsigned e = 0; e < 8; ++e) {
#pragma HLS UNROLL
                const unsigned n = e % 4 * 2;
                in.of[e] = static_cast<int16_t>(static_cast<uint8_t>(row.of[n]) | row.of[n + 1] << 8);
                in.exponent[e / 4] = row.exponent;
            }
        }
        const unsigned n = beat % group_beats;
        const unsigned two = in_cells_of_t ? beat / (2 * t_words) * 2 + n % 2 : beat / group_beats * 4 + two_rows(n);
        const bool behind = beat >= parts;
        Shorts out = word;
        for (unsigned e = 0; e < 16; ++e) {
#pragma HLS UNROLL
            if (!behind && (by_row ? e / 4 == beat % 4 : e / 8 == n % 2)) out[e] = word[e] = in.of[e % 8];
            if (behind) out[e] = static_cast<int16_t>(static_cast<uint8_t>(ends[2 * e]) | ends[2 * e + 1] << 8);
        }
        for (unsigned e = 0; e < 32; ++e) {
#pragma HLS UNROLL
            // Exponents have 16 bits each, of rows of T eight.
            const int8_t exponent = in.exponent[e / 2 % 2];
            const bool here = of_t ? block == e : by_row ? block == e / 2 : two == e / 4;
            if (behind) ends[e] = 0;
            else if (here) ends[e] = static_cast<int8_t>(of_t || e % 2 == 0 ? exponent : exponent >> 7);
        }
        if (behind || (by_row ? beat % 4 == 3 : n % 2)) stores << out;
        taken.next(of_row);
    }
}

// x, limited to the magnitudes up to 127 * 2^low_bits. Its bits tell whether it is above, so that no sum is made.
int64_t limited(int64_t x, unsigned low_bits) {
#pragma HLS INLINE
    const int64_t most = int64_t{127} << low_bits, below = (int64_t{128} << low_bits) - 1;
    const int64_t size = x < 0 ? ~x : x;  // of negative numbers one less than their magnitude
    const bool beyond = size & ~below || (size & most) == most;
    return !beyond ? x : x < 0 ? -most : most;
}

}  // namespace

void rows(hls::stream<Uop<Rows::words>> &uops, unsigned lane, hls::stream<Shorts> &loads, hls::stream<Shorts> &stores,
          hls::stream<Shorts> &constants, hls::stream<Token> free[2], hls::stream<Token> filled[2],
          hls::stream<CellWrite<XCell>> &x, hls::stream<Token> &x_done, hls::stream<CellRead> &x_reads,
          hls::stream<XCell> &x_cells, hls::stream<CellWrite<X8Cell>> &x8, hls::stream<Token> &x8_done,
          hls::stream<CellWrite<TCell>> &t, hls::stream<Token> &t_done, hls::stream<CellRead> &t_reads,
          hls::stream<TRow> &t_rows, hls::stream<PostWork> &to_post,
          hls::stream<ResidualWork> &to_residual, hls::stream<RowSums> &sums_of, hls::stream<Statistics> &norms_of,
          hls::stream<RowBound> &bounds_of, hls::stream<RowScale> &scales_of, hls::stream<Place> &places,
          hls::stream<Packed> &results, hls::stream<Packed> &stored_values, hls::stream<Packed> &angles) {
    Gains gains;
no_gains:
    for (uint16_t i = 0; i < x_words * x_cells_of_lane; ++i) {
        gains.of[i] = {};
        if (i >= x_cells_of_lane) continue;
        gains.most[i] = 0;
        gains.exponent[i] = lowest;
    }
    SumsOfRows sums;
    Sums under_way_sums[2][4];
#pragma HLS AGGREGATE variable=sums.of compact=bit
#pragma HLS AGGREGATE variable=sums.exponents compact=bit
#pragma HLS ARRAY_PARTITION variable=sums.of complete dim=1
#pragma HLS ARRAY_PARTITION variable=under_way_sums complete dim=0
    CellExponent under_way_tops[4] = {}, tops[4][groups];
    KeptExponent under_way_bounds[4] = {}, bound_tops[4][groups];
#pragma HLS ARRAY_PARTITION variable=under_way_tops complete
#pragma HLS ARRAY_PARTITION variable=under_way_bounds complete
#pragma HLS ARRAY_PARTITION variable=tops complete dim=1
#pragma HLS ARRAY_PARTITION variable=bound_tops complete dim=1
    SentRow sent[2][lane_rows / 2];
    SentScale scales[2][lane_rows / 2];
#pragma HLS AGGREGATE variable=sent compact=bit
#pragma HLS AGGREGATE variable=scales compact=bit
#pragma HLS ARRAY_PARTITION variable=sent complete dim=1
#pragma HLS ARRAY_PARTITION variable=scales complete dim=1
    X8Cell low = {};  // of a walk, and what words for X8 have where nobody looks
    unsigned number = 0;
rows_uops:
    for (;;) {
        const Uop<Rows::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) {
            to_post << PostWork{true, false, false, false, false, false, false, false, false, false, false, 0, 0, 0, 0};
            put_behind(to_residual, ResidualWork{true, false, false, false, false, false, false, false, false, false,
                                                 false, 0, 0, 0, 0});
            x8 << CellWrite<X8Cell>{true, false, 0, low};  // hls-allow state-order: memories end by themselves
            x_reads << CellRead{true, 0};
            t_reads << CellRead{true, 0};  // hls-allow state-order: memories end by themselves
            break;
        }
        const Rows op = Rows::decode(uop.words);
    rows_waits:
        for (unsigned i = 0; i < unsigned{op.wait} + op.wait_heads; ++i) {
            if (i < op.wait) free[0].read();
            else free[1].read();
        }
        const bool has_rows =
            op.blocks && lane >= op.first && lane < unsigned{op.first} + (op.keeps ? 1u : unsigned{op.lanes});
        // What is loaded to T are keys and values of a sequence.
        const bool loads_t = op.op == load && op.memory == in_t, stores_t = op.op == store && op.memory == in_t;
        const auto groups_of_rows = static_cast<uint8_t>(op.rows / 4);
        // Two narrow heads are a block, a wide one is two.
        const bool heads_come = op.op == take && op.attention, halves = heads_come && op.narrow;
        const unsigned of_results = (unsigned{op.blocks} + halves) << (heads_come && op.wide);
        const auto blocks = static_cast<uint8_t>(of_results >> (op.gated || halves));  // of the memory
        const auto block_cells = static_cast<uint8_t>(op.rows / cell_rows);
        // Heads that are rows become columns of the first one.
        const bool grouped = heads_come && op.grouped;
        const uint8_t told_again = grouped ? op.groups : 1;  // as often each block of results is told
        const auto cell_of = [&](unsigned block) {
            return static_cast<uint8_t>(op.slot + within<9>(block) * within<3>(block_cells));
        };
        const bool takes_t = op.op == take && op.memory == in_t, computed = op.op == take || op.op == sum;
        const bool to_angles = op.op == load && op.memory == in_angles;
        const bool stored = op.op == store && !op.by_row, norms = op.norm && (stored || op.op == walk);
        const bool summed = op.op == sum, added = summed || (op.op == take && op.residual != nothing);
        const bool of_heads = op.op == take && op.norm;
        if (has_rows && (computed || to_angles)) {
            to_post << PostWork{false, to_angles, summed, op.attention, op.narrow, op.wide, op.gated, of_heads,
                                op.rotated, op.residual != nothing, op.memory == in_t, op.rows, op.blocks,
                                static_cast<uint8_t>(to_angles ? op.slot : 0), op.function};
        }
        if (has_rows && (stored || norms || added || of_heads)) {
            to_residual << ResidualWork{false, norms, stored || added || of_heads, stored, stores_t, summed,
                                        summed && op.residual != nothing,
                                        stored || of_heads ? op.norm : op.residual == as_normalised, of_heads,
                                        of_heads && op.narrow, of_heads && op.wide, op.rows, op.blocks,
                                        stored ? op.slot : summed ? op.source : op.residual_slot, op.residual_slot};
        }
    rows_gains:
        for (uint8_t b = 0; op.gains && b < blocks; ++b) gains.take(cell_of(b), constants);
        if (!has_rows) {
            // A lane without rows tells its readers as the others do: they count alike.
            const bool to_t = takes_t || loads_t;
            const unsigned written = !op.blocks ? 0 : to_t || op.op == walk ? blocks : 0;
        rows_tokens:
            for (uint8_t again = 0; again < told_again; ++again) {
                for (unsigned i = 0; i < written; ++i) {
                    if (to_t && op.readers >> heads_reads & 1) filled[1] << Token(1);
                    if (!to_t || op.readers >> send_reads & 1) filled[0] << Token(1);
                }
            }
            continue;
        }
        // A block of T has been written.
        const auto tell_of_t = [&] {
            t_done.read();
            // hls-allow state-order: readers take tokens by themselves
            if (op.readers >> heads_reads & 1) filled[1] << Token(1);
            // hls-allow state-order: the same
            if (op.readers >> send_reads & 1) filled[0] << Token(1);
        };
        const bool walks = op.op == walk, normalises = op.norm && (walks || op.op == store);
        KeptExponent largest = lowest;
        ap_int<17> widest = 0;
    walk_gains:
        for (uint8_t b = 0; walks && b < op.blocks; ++b)
            largest = larger(int64_t{largest}, int64_t{gains.exponent[cell_of(b)]});
    walk_widest:
        for (uint8_t b = 0; walks && b < op.blocks; ++b) {
            widest = larger(widest, rounded<15>(
                gains.most[cell_of(b)], to_right<15>(static_cast<int>(largest - gains.exponent[cell_of(b)]))));
        }
        RowOfBlocks at_tops;
    walk_tops:
        while ((walks || normalises) && at_tops.row < groups_of_rows) {
#pragma HLS PIPELINE II=ii::sums style=flp
            const unsigned block = cell_of(at_tops.block), group = at_tops.row;
            const FourExponents exponents = sums.exponents[cell_groups * block + group];
            for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
                const int exponent = exponents.of[r];
                const auto of_bound =
                    static_cast<int>(within<exponent_bits>(exponent + gains.exponent[block] + product_bits));
                const int top = at_tops.block ? larger(under_way_tops[r], exponent) : exponent;
                const auto before = static_cast<int>(under_way_bounds[r]);
                const int bound_top = at_tops.block ? larger(before, of_bound) : of_bound;
                tops[r][group] = under_way_tops[r] = static_cast<CellExponent>(top);
                bound_tops[r][group] = under_way_bounds[r] = bound_top;
            }
            at_tops.next(op.blocks);
        }
        RowOfBlocks at_sums;
        ap_int<38> sum = 0;
        ap_int<61> squares = 0;
    walk_sums:
        while (normalises && at_sums.row < op.rows) {
#pragma HLS PIPELINE II=ii::sums style=flp
            const unsigned r = at_sums.row % 4, group = at_sums.row / 4;
            const unsigned group_of_block = cell_groups * cell_of(at_sums.block) + group;
            const Sums of = sums.at(group_of_block, r);
            const CellExponent top = tops[r][group];
            const int lower = top - sums.exponents[group_of_block].of[r];
            if (!at_sums.block) {
                sum = 0;
                squares = 0;
            }
            sum = sum + rounded<30>(int64_t{of.sum} << guard, to_right<30>(lower));
            squares = squares + rounded<52>(int64_t{of.squares} << 2 * guard, 2 * to_right<26>(lower));
            if (at_sums.block + 1 == op.blocks) sums_of << RowSums{sum, squares, top};
            at_sums.next(op.blocks);
        }
        RowOfBlocks at_bounds;
        Statistics norm = {};
        ap_int<32> bound = 0;
    walk_bounds:
        while (walks && at_bounds.row < op.rows) {
#pragma HLS PIPELINE II=ii::sums style=flp
            const unsigned r = at_bounds.row % 4, group = at_bounds.row / 4, block = cell_of(at_bounds.block);
            if (!at_bounds.block) {
                norm = {0, tops[r][group], {0, 0}};
                if (normalises) norm = norms_of.read();
                sent[at_bounds.row % 2][at_bounds.row / 2] = {norm.mean, norm.top};
            }
            const int64_t offset = magnitude(within<24>(norm.mean)) * within<15>(widest);
            const auto offset_exponent = static_cast<int>(within<exponent_bits>(norm.top - guard + largest));
            auto top = static_cast<int>(bound_tops[r][group]);
            if (offset) top = larger(top, offset_exponent + offset_bits);
            const auto exponent = static_cast<int>(within<exponent_bits>(top - product_bits));
            const Sums of = sums.at(cell_groups * block + group, r);
            const int exponent_of = sums.exponents[cell_groups * block + group].of[r];
            const auto of_block = static_cast<int>(within<exponent_bits>(exponent_of + gains.exponent[block]));
            const int lower = exponent - of_block;
            const int64_t most = rounded<30>(of.most, to_right<30>(lower));
            bound = at_bounds.block ? larger(bound, most) : most;
            const int64_t all = int64_t{bound} + rounded<39>(offset, to_right<39>(exponent - offset_exponent));
            if (at_bounds.block + 1 == op.blocks)
                bounds_of << RowBound{all, exponent, norm.inverse};
            at_bounds.next(op.blocks);
        }
    walk_factors:
        for (uint8_t row = 0; walks && row < op.rows; ++row) {
#pragma HLS PIPELINE II=ii::factors style=flp
            const RowScale scale = scales_of.read();
            scales[row % 2][row / 2] = {scale.reciprocal, scale.exponent};
            X8Cell factor = low;  // of which four bytes count: no choice for those that do not
            for (unsigned i = 0; i < 2; ++i) {
#pragma HLS UNROLL
                factor.of[i] = static_cast<int8_t>(scale.factor.mantissa >> 8 * i);
                factor.of[2 + i] = static_cast<int8_t>(static_cast<uint16_t>(scale.factor.exponent) >> 8 * i);
            }
            x8 << CellWrite<X8Cell>{false, false, static_cast<uint16_t>(x8_depth + row), factor};
        }

        const auto cells_moved = static_cast<uint8_t>(loads_t ? op.key_rows / cell_rows : block_cells);  // of a block
        const auto sixteens = static_cast<uint16_t>(within<7>(blocks) * within<4>(cells_moved));
        const unsigned moved_words = loads_t || stores_t ? cell_words / 2 : cell_words;  // of 16 rows, off chip
        if (op.op == load && op.by_row) {
            load_rows(op, loads, t);
            t_done.read();
        rows_loaded:
            for (uint8_t b = 0; b < op.blocks; ++b) {
                if (op.readers >> heads_reads & 1) filled[1] << Token(1);
                if (op.readers >> send_reads & 1) filled[0] << Token(1);  // hls-allow state-order: as above
            }
        } else if (op.op == store) {
            store_words(op, sixteens, moved_words, x_reads, x_cells, t_reads, t_rows, stored_values, stores);
        } else if (op.op == load || (computed && !takes_t)) {
            const bool loaded = op.op == load;
            const auto count = static_cast<uint16_t>(within<9>(sixteens) * 2 * (loaded ? moved_words + 1 : cell_words));
            uint8_t n = 0, sixteen = 0, block = op.slot;  // of what is loaded: of its words, of rows in the block
            int8_t exponents[cell_rows] = {};
#pragma HLS ARRAY_PARTITION variable=exponents complete
            Shorts word = {};
            XCell cell = {};
#pragma HLS ARRAY_PARTITION variable=cell.exponent complete
            Place at = {};
        to_x:
            for (uint16_t i = 0; i < count; ++i) {
#pragma HLS PIPELINE II=ii::cells style=flp
                const bool half = i % 2;  // of a cell: two rows
                unsigned to_block = block, group, four;
                Packed in = {};
                bool there = true, whole = false;  // rows of a cell, and no exponents; and the last ones of a block
                if (loaded) {
                    const unsigned in_block = x_word(4 * sixteen + (n - 1u) / 32 * 2, (n - 1u) % 32);
                    group = loads_t ? 4 * sixteen + (n - 1u) / t_words : in_block / x_words;
                    four = loads_t ? (n - 1u) % t_words : in_block % x_words;
                    there = n != 0;
                    if (!half) word = loads.read();
                    for (unsigned r = 0; r < cell_rows; ++r) {
#pragma HLS UNROLL
                        if (!half && !there) exponents[r] = static_cast<int8_t>(word[r]);
                        if (r / 4 == group % 4 && r / 2 % 2 == half) in.exponent[r % 2] = exponents[r];
                    }
                    for (unsigned e = 0; e < 8; ++e) {
#pragma HLS UNROLL
                        in.of[e] = word[8 * half + e];
                    }
                    const bool ends = half && n == moved_words;
                    whole = ends && sixteen + 1 == cells_moved;
                    // the block before has been written
                    if (loads_t && half && n == t_words && !sixteen && block != op.slot) tell_of_t();
                    n = ends ? 0 : static_cast<uint8_t>(n + half);
                    sixteen = whole ? 0 : static_cast<uint8_t>(sixteen + ends);
                    block = static_cast<uint8_t>(block + (whole ? cells_moved : 0));
                } else {
                    const unsigned beat = i % group_beats;
                    if (beat == 0) at = places.read();
                    in = results.read();  // hls-allow state-order: they come behind their place
                    to_block = cell_of(at.column);
                    group = 2 * at.group + upper(beat);
                    four = four_columns(beat);
                }
                if (!there) continue;
                if (to_angles) {
                    angles << in;
                    continue;
                }
                for (unsigned e = 0; e < 8; ++e) {
#pragma HLS UNROLL
                    cell.of[e] = cell.of[8 + e];
                    cell.of[8 + e] = in.of[e];
                }
                for (unsigned r = 0; r < 2; ++r) {
#pragma HLS UNROLL
                    cell.exponent[r] = cell.exponent[2 + r];
                    cell.exponent[2 + r] = in.exponent[r];
                }
                const unsigned group_of_block = cell_groups * to_block + group;
                if (loads_t) {
                    const auto address = static_cast<uint16_t>(group_of_block * t_words + four);
                    TCell of_t = {bytes_of(cell.of), {}};
                    for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
                        of_t.exponent[r] = cell.exponent[r];
                    }
                    if (half) t << CellWrite<TCell>{false, whole, address, of_t};
                    continue;
                }
                add_up(in, gains, to_block, group, four, half, under_way_sums, sums);
                const auto address = static_cast<uint16_t>(group_of_block * x_words + four);
                if (!half) continue;
                FourExponents of_rows;
                for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
                    of_rows.of[r] = cell.exponent[r];
                }
                sums.exponents[group_of_block] = of_rows;
                x << CellWrite<XCell>{false, i + 1 == count, address, cell};
            }
            if (loads_t) tell_of_t();
            else if (!to_angles) x_done.read();
        } else if (op.op == take) {
            TCell cell = {};
#pragma HLS ARRAY_PARTITION variable=cell.exponent complete
            Place at = {};
            const auto count = static_cast<uint16_t>(blocks * op.rows / 8 * group_beats);
            uint8_t groups_left[2 * pairs] = {};
#pragma HLS ARRAY_PARTITION variable=groups_left complete
        take_counts:
            for (unsigned c = 0; c < 2 * pairs; ++c) {
#pragma HLS UNROLL
                groups_left[c] = static_cast<uint8_t>(op.rows / 8);
            }
            uint8_t whole = 0;  // blocks that are whole, as all before them
            Place before = {};  // where the group before went
        take_to_t:
            for (uint16_t i = 0; i < static_cast<uint16_t>(count + group_beats); ++i) {
#pragma HLS PIPELINE II=ii::cells style=flp
                const unsigned n = i % group_beats;
                if (n == 0) before = at;
                const TCell before_beat = cell;
                if (i < count) {
                    if (n == 0) at = places.read();
                    const Packed in = results.read();  // hls-allow state-order: they come behind their place
                    for (unsigned e = 0; e < 8; ++e) {
#pragma HLS UNROLL
                        cell.of[8 * row_in_four(n, e) + 4 * (n / 2 % 2) + e % 4] = static_cast<int8_t>(in.of[e]);
                        cell.exponent[row_in_four(n, e)] = in.exponent[e / 4];
                    }
                }
                unsigned to_block = at.column, group = 2 * at.group + upper(n), word = n / 8;
                CellWrite<TCell> write = {false, n + 1 == group_beats, 0, cell};
                bool due = n % 4 == 3 && i < count;
                if (grouped) {
                    // A row of a cell in each beat: two as soon as they are whole, the others in the next two beats.
                    const unsigned turn = (n + 2) % 4, of_cell = (n + 62) / 4 % 16;
                    const Place of = n < 2 ? before : at;
                    const unsigned row = 8u * of.group + of_cell % 2 * 4 + turn, column = of.column >> op.wide;
                    const auto head = static_cast<unsigned>(within<3>(column) * within<6>(op.groups) + row);
                    to_block = op.wide ? 2 * head + of.column % 2 : head;
                    group = 0;
                    word = of_cell / 2;
                    for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
                        if (turn != r) continue;
                        write.cell.exponent[0] = r < 2 ? cell.exponent[r] : before_beat.exponent[r];
                        for (unsigned e = 0; e < 8; ++e) {
#pragma HLS UNROLL
                            write.cell.of[e] = r < 2 ? cell.of[8 * r + e] : before_beat.of[8 * r + e];
                        }
                    }
                    write.told = n == 1;
                    write.rows = row < op.groups;
                    due = i >= 2 && i < count + 2;
                }
                write.at = static_cast<uint16_t>((cell_groups * cell_of(to_block) + group) * t_words + word);
                if (due) t << write;
                if (n == group_beats / 2 && i >= group_beats) {
                    t_done.read();  // hls-allow state-order: the group before has been written
                    --groups_left[before.column];
                }
                if (!grouped && whole < blocks && !groups_left[whole]) {
                    ++whole;
                    // hls-allow state-order: readers take tokens by themselves
                    if (op.readers >> heads_reads & 1) filled[1] << Token(1);
                    // hls-allow state-order: the same
                    if (op.readers >> send_reads & 1) filled[0] << Token(1);
                }
            }
        take_grouped:
            for (uint8_t again = 0; grouped && again < told_again; ++again) {
                for (uint8_t b = 0; b < blocks; ++b) {
                    if (op.readers >> heads_reads & 1) filled[1] << Token(1);
                    if (op.readers >> send_reads & 1) filled[0] << Token(1);  // hls-allow state-order: as above
                }
            }
        } else {
            const auto in_block = static_cast<uint16_t>(groups_of_rows * x_words);
            WordOfBlock asked{op.slot}, taken{op.slot};
            // A row of more than 8 bits has two parts in X8, from its first cell on: of a block the high one, then the
            // low one. Of others there is what is called the low one alone.
            const bool parts = op.low_bits;
            X8Cell high = {};
            CellWrite<X8Cell> due = {};  // where the low part goes, in the next cycle
            bool owes = false;
            const auto address = [&](unsigned) {
                const unsigned at = asked.block * cell_groups * x_words + asked.word;
                asked.next(in_block, block_cells);
                return at;
            };
            const auto count = static_cast<uint16_t>(op.blocks * in_block);
            read_halves(x_reads, x_cells, count, address, [&](bool second, const XCell &cell) {
                const unsigned block = taken.block, i = taken.word, four = i % x_words;
                CellWrite<X8Cell> write = due;
                write.cell = low;
                const auto exponent = static_cast<int>(within<exponent_bits>(gains.exponent[block] + 13 - guard));
                for (unsigned k = 0; k < 2; ++k) {
#pragma HLS UNROLL
                    const unsigned r = 2 * second + k;
                    const SentRow row = sent[k][2 * (i / x_words) + second];
                    const SentScale scale = scales[k][2 * (i / x_words) + second];
                    // That is enough: what would go less far to the right saturates there, too.
                    const auto of_row =
                        static_cast<int>(within<exponent_bits>(22 - op.low_bits + scale.exponent - row.top));
                    const int lower = larger(of_row - exponent, least_sent);
                    const ScaledBy by = scaled_by<least_sent>(scale.reciprocal, lower);
                    const unsigned of_block = to_right<15 + guard>(row.top - cell.exponent[r]);
                    for (unsigned c = 0; c < 4; ++c) {
#pragma HLS UNROLL
                        const int16_t gain = gains.of[x_words * block + four][c];
                        const int64_t u = centred(cell.of[4 * r + c], of_block, row.mean, gain);
                        const int64_t made = limited(scaled<least_sent, sent_bits>(u, by), op.low_bits);
                        high.of[8 * r + i % 2 * 4 + c] = static_cast<int8_t>(within<16>(made + 128) >> 8);
                        low.of[8 * r + i % 2 * 4 + c] = static_cast<int8_t>(made);
                    }
                }
                if (!second && i == x_words && block > op.slot) {
                    // hls-allow state-order: the block before has been written
                    x8_done.read();
                    filled[0] << Token(1);  // hls-allow state-order: readers take tokens by themselves
                }
                const bool whole = second && i % 2;
                const unsigned first = parts ? 2 * (block - op.slot) : block;
                const auto at = static_cast<uint16_t>(first * cell_groups * t_words + i / 2);
                if (!owes) write = {false, false, at, high};
                if (owes || (whole && parts)) x8 << write;
                owes = whole;
                if (!second) return;
                due = {false, i + 1 == in_block, static_cast<uint16_t>(at + (parts ? in_block / 2 : 0)), {}};
                taken.next(in_block, block_cells);
            });
            due.cell = low;
            put_behind(x8, due);
            x8_done.read();
            put_behind(filled[0], Token(1));
        }
    }
}

// Of heads, too, whose rows come in the same order from all lanes. A wide one has two blocks: first eight rows of one,
// then those of the other.
void norms(hls::stream<Uop<Rows::words>> &uops, hls::stream<RowSums> sums[lanes], hls::stream<HeadSums> of_heads[lanes],
           hls::stream<Statistics> made[lanes], hls::stream<Statistics> to_residual[lanes],
           hls::stream<RowBound> bounds[lanes], hls::stream<RowScale> scales[lanes]) {
    HeadSums first_blocks[8 * lanes];  // of eight rows of all lanes
#pragma HLS AGGREGATE variable=first_blocks compact=bit
#pragma HLS BIND_STORAGE variable=first_blocks type=ram_s2p impl=lutram
norms_uops:
    for (;;) {
        const Uop<Rows::words> uop = uops.read();
        if (uop.last) break;
        const Rows op = Rows::decode(uop.words);
        const bool walks = op.op == walk, heads = op.op == take, two = heads && op.wide;
        const bool normalises = op.norm && (walks || heads || op.op == store);
        const NormConstants constants = {op.columns, static_cast<int32_t>(op.added), static_cast<int32_t>(op.root),
                                         static_cast<int16_t>(-op.added_low), op.root_exponent};
        const unsigned end = op.first + op.lanes;
        const auto count = static_cast<uint16_t>(op.blocks ? op.rows * op.lanes : 0);
        const auto all = static_cast<uint16_t>(heads ? count * op.blocks << op.narrow : count);
        uint8_t lane = op.first;
        uint8_t row = 0;  // of a wide head: of eight of one block, then of those of the other
    norms_of_rows:
        for (uint16_t i = 0; normalises && i < all; ++i) {
#pragma HLS PIPELINE II=ii::norms style=flp
#pragma HLS DEPENDENCE variable=first_blocks type=inter dependent=false
            RowSums of = {};
            HeadSums near = {};
            for (unsigned l = 0; l < lanes; ++l) {
#pragma HLS UNROLL
                if (l == lane && !heads) of = sums[l].read();
                if (l == lane && heads) near = of_heads[l].read();
            }
            const unsigned place = lanes * (row % 8) + lane;
            const bool second = row >= 8, waits = two && !second;
            HeadSums far = {0, 0, lowest};
            if (two && second) far = first_blocks[place];
            if (waits) first_blocks[place] = near;
            if (far.exponent > near.exponent) {
                const HeadSums other = near;
                near = far;
                far = other;
            }
            if (heads) {
                const int lower = near.exponent - far.exponent;
                const int64_t sum = rounded<30>(int64_t{far.sum} << guard, to_right<30>(lower));
                const int64_t squares = rounded<52>(int64_t{far.squares} << 2 * guard, 2 * to_right<26>(lower));
                of.sum = (int64_t{near.sum} << guard) + sum;
                of.squares = (int64_t{near.squares} << 2 * guard) + squares;
                of.top = near.exponent;
            }
            const Statistics norm = statistics(of.sum, of.squares, of.top, constants, op.rms);
            for (unsigned l = 0; l < lanes; ++l) {
#pragma HLS UNROLL
                if (l != lane || waits) continue;
                to_residual[l] << norm;  // hls-allow state-order: they wait for nothing but what takes them
                if (walks) made[l] << norm;  // hls-allow state-order: lanes have room for all their rows
            }
            const bool ends = lane + 1u == end;
            lane = ends ? op.first : static_cast<uint8_t>(lane + 1);
            row = static_cast<uint8_t>((row + ends) % 16);
        }
        lane = op.first;
    norms_scales:
        for (uint16_t i = 0; walks && i < count; ++i) {
#pragma HLS PIPELINE II=ii::norms style=flp
            RowBound of = {};
            for (unsigned l = 0; l < lanes; ++l) {
#pragma HLS UNROLL
                if (l == lane) of = bounds[l].read();
            }
            const RowFactor scale = normal<32>(of.bound, static_cast<int>(of.exponent), true);
            const auto reciprocal = static_cast<uint16_t>(divided<15, 15>(127 << 22, scale.mantissa));
            RowFactor factor = normal<31>(int64_t{scale.mantissa} * inverse_127, scale.exponent - 22 - op.low_bits);
            if (op.norm) factor = times(factor, of.inverse);
            for (unsigned l = 0; l < lanes; ++l) {
#pragma HLS UNROLL
                // hls-allow state-order: lanes have room for all their rows
                if (l == lane) scales[l] << RowScale{reciprocal, scale.exponent, factor};
            }
            lane = lane + 1u == end ? op.first : static_cast<uint8_t>(lane + 1);
        }
    }
}

}  // namespace rsn::xnn8::pl
