// Residuals that Post adds, norms of these and of heads, and what rounds values to what is stored.
// SPDX-License-Identifier: Apache-2.0
#include "post.h"

namespace rsn::xnn8::pl {

namespace {

constexpr unsigned in_eight = group_beats / 2;  // cells of X of eight rows
constexpr unsigned cells_ahead = 7;             // of residuals, asked for before one is taken

}  // namespace

// Blocks of X for Post, and to be stored: as they are, two rows of a cell in a cycle; or behind a norm, one row. In the
// latter case the exponents of four rows are known when all their values are made. Heads go back to Post behind their
// norms: 16 rows of a block, or eight rows of both blocks of a wide head, one after the other. Cells of T are stored,
// too, half of one in a cycle: they have as many bits.
void residual(hls::stream<ResidualWork> &uops, hls::stream<Shorts> &constants, hls::stream<Statistics> &statistics,
              hls::stream<Place> &asks, hls::stream<CellRead> &reads, hls::stream<XCell> &cells,
              hls::stream<CellRead> &t_reads, hls::stream<TCell> &t_cells, hls::stream<HeadWord> &kept,
              hls::stream<RowExponents> &exponents, hls::stream<Values> &values,
              hls::stream<HeadRow> &normalised) {
    BlockConstants affine;
    Statistics norms[2 * lane_rows] = {};  // of the latest walk, then of what is being stored, or of heads
#pragma HLS AGGREGATE variable=norms compact=bit
#pragma HLS BIND_STORAGE variable=norms type=ram_s2p impl=bram
residual_uops:
    for (;;) {
        const ResidualWork op = uops.read();
        if (op.last) {
            reads << CellRead{true, 0};
            t_reads << CellRead{true, 0};  // hls-allow state-order: memories end by themselves
            put_behind(exponents, no_more_rows);
            break;
        }
        const bool sums = op.sums, stores = op.stores, walks_all = stores || sums, normalises = op.normalises;
        const bool heads = op.heads;
        // Two addends take turns: two rows of a cell of one, the same of the other. So each cell is read twice.
        const bool in_turn = op.in_turn;
        const unsigned turns = in_turn ? 2 : 0, last_row = in_turn ? 0 : normalises ? 3 : 2;
        // A packet of Post has 16 rows; what is stored, all rows of a block.
        const auto packets = static_cast<unsigned>(within<7>(op.blocks) * within<3>(op.rows / window_rows));
        const unsigned all_items = walks_all ? unsigned{op.blocks} : packets;
        const auto items = static_cast<uint8_t>(!op.moves ? 0 : heads ? 2 : all_items);
        const unsigned of_block = op.rows * (block_columns / 16) >> op.of_t;
        const unsigned of_item = heads ? in_eight : walks_all ? of_block : 2 * in_eight;
        const auto cells_of = static_cast<uint16_t>(of_item << turns);
        const uint8_t vectors = static_cast<uint8_t>(!normalises ? 0 : stores ? 1 : unsigned{op.blocks});
    residual_constants:
        for (unsigned c = 0; c < vectors; ++c) affine.take(c, constants);
        // All that is moved at once; or of heads what Post makes at a time, and first the norms of all its rows.
        const unsigned parts = heads ? packets : 1;
        const unsigned count = heads ? window_rows << op.narrow >> op.wide : op.norms ? unsigned{op.rows} : 0;
    residual_parts:
        for (unsigned part = 0; part < parts; ++part) {
            const Place made_rows = heads ? asks.read() : Place{};
        residual_statistics:
            for (unsigned r = 0; r < count; ++r) {
#pragma HLS PIPELINE II=ii::factors style=flp
                norms[lane_rows * (stores || heads) + r] = statistics.read();
            }
            uint8_t left = items, unasked = items, ahead = 0, four = 0;  // four: the row of what is taken of a cell
            uint16_t asked = 0, taken = 0;  // cells of an item
            bool known = false;  // the item that is asked for
            Place next = {}, at = {};
            auto t_cell = static_cast<uint16_t>(op.slot * (cell_groups * t_words));  // the next one of T
            XCell cell = {}, of_t = {};
#pragma HLS ARRAY_PARTITION variable=cell.exponent complete
#pragma HLS ARRAY_PARTITION variable=of_t.exponent complete
            Values out = {};
            RowExponents made = {};
            uint32_t most[8] = {};  // of eight rows: a bit is set where it is in some magnitude
#pragma HLS ARRAY_PARTITION variable=most complete
            const auto step = [&] {
                HeadWord of_head = {};
                if (heads) {
                    of_head = kept.read();
                    // Norms came by eight rows: of each of two narrow heads, of wide ones once for both blocks.
                    const bool second = left == 1;
                    at.column = static_cast<uint8_t>(made_rows.column + (second && op.wide));
                    at.group = static_cast<uint8_t>(op.wide || !second ? 0 : 1 << op.narrow);
                }
                if (four == 0 && !heads) {
                    if (!known && unasked) {
                        if (!walks_all && !ahead) RSN_WAIT_FOR_ANY(asks);
                        known = walks_all || !asks.empty();
                        if (walks_all) next = {static_cast<uint8_t>(items - unasked), 0};
                        else if (known) next = asks.read();
                    }
                    const bool asking = known, taking = asking ? ahead == cells_ahead << in_turn : ahead != 0;
                    if (asking) {
                        const bool other = in_turn && asked % 2;
                        const unsigned of_turn = other ? unsigned{op.second_slot} : op.slot % x_cells_of_lane;
                        const unsigned cell_of = asked >> turns;
                        const unsigned first = group_of(of_turn, next.column, op.rows) + 2 * next.group;
                        const unsigned address = x_word(first + cell_of / in_eight * 2, cell_of % in_eight);
                        if (op.of_t) t_reads << CellRead{false, t_cell++};
                        else reads << CellRead{false, static_cast<uint16_t>(address)};
                        const bool whole = asked + 1u == cells_of;
                        asked = whole ? 0 : static_cast<uint16_t>(asked + 1);
                        known = !whole;
                        unasked -= whole;
                    }
                    ahead = static_cast<uint8_t>(ahead + asking - taking);
                    if (!taking) return;
                    if (op.of_t) of_t = in_shorts(t_cells.read());
                    else cell = cells.read();
                    if (taken == 0) at = next;  // it is still asked for
                }
                // A norm of what is stored has the vectors of one block in use, and gets those of the next one.
                const unsigned c = stores ? at.column % 2 : at.column;
                if (stores && normalises && four == 0 && taken < piece_words && at.column + 1u < items) {
                    // hls-allow state-order: they come by themselves
                    affine.put((at.column + 1) % 2, taken, constants);
                }
                const unsigned cell_of = taken >> turns, row = (in_turn ? taken & 2u : 0) + four;
                const unsigned i = cell_of % in_eight, half = i / 2 % 2, of_four = four_columns(2 * i), r = four % 2;
                const unsigned eights = op.narrow ? i / (in_eight / 2) : cell_of / in_eight;
                const unsigned group = 2 * (at.group + eights) + half;
                if (normalises) {
                    const Statistics norm = norms[lane_rows * (stores || heads) + 4 * group + four];
                    const int64_t of_inverse = within<exponent_bits>(norm.inverse.exponent);
                    const int64_t of_norm = within<exponent_bits>(norm.top) + of_inverse;
                    const int64_t of_gain = within<exponent_bits>(affine.first_exponent[c]) + 13 - guard;
                    const auto exponent = static_cast<int>(within<exponent_bits>(of_norm + of_gain));
                    const auto of_shift = static_cast<int>(within<exponent_bits>(affine.second_exponent[c]));
                    const int top = larger(exponent + product_bits, of_shift + kept_bits) - sum_bits;
                    const ScaledBy by = scaled_by<least>(norm.inverse.mantissa, top - exponent);
                    const int of_block = heads ? of_head.exponent : cell.exponent[four];
                    const unsigned lower = to_right<15 + guard>(norm.top - of_block);
                    const unsigned shift_by = both_ways<15, 14>(top - of_shift);
                    const unsigned word = 4 * c + of_four / 4;
                    const Shorts gains = affine.first[word], shifts = affine.second[word];
                    uint32_t bits = 0;
                    for (unsigned e = 0; e < 4; ++e) {
#pragma HLS UNROLL
                        const unsigned in_word = of_four % 4 * 4 + e;
                        const int16_t x = heads ? of_head.of[e] : cell.of[4 * four + e];
                        const int64_t u = centred(x, lower, norm.mean, gains[in_word]);
                        const int64_t v = scaled<least, sum_bits>(u, by) + aligned<15, 14>(shifts[in_word], shift_by);
                        out[4 * r + e] = static_cast<int32_t>(within<30>(v));
                        bits |= static_cast<uint32_t>(magnitude(v));
                    }
                    uint32_t &of_row = most[4 * half + four];
                    of_row = (i < 4 && i % 2 == 0 ? 0 : of_row) | bits;
                    if (heads) {
                        HeadRow whole = {{}, static_cast<Exponent>(top)};
                        for (unsigned e = 0; e < 4; ++e) {
#pragma HLS UNROLL
                            whole.of[e] = out[4 * r + e];
                        }
                        normalised << whole;
                    }
                    made.from[r] = static_cast<Exponent>(top);
                    made.made[r] = static_cast<Exponent>(stored_exponent(of_row, top, 16));
                } else {
                    const unsigned two = row / 2;
                    const auto element = [&](unsigned e) {
                        return op.of_t ? of_t.of[8 * two + e] : cell.of[8 * two + e];
                    };
                    const auto exponent = [&](unsigned k) {
                        return op.of_t ? of_t.exponent[2 * two + k] : cell.exponent[2 * two + k];
                    };
                    made.from[0] = exponent(0);
                    for (unsigned e = 0; e < 4; ++e) {
#pragma HLS UNROLL
                        out[e] = element(e);
                        // The bits above these are not read.
                        out[4 + e] = (out[4 + e] & ~0xffff) | static_cast<uint16_t>(element(4 + e));
                        made.made[e / 2] = exponent(e / 2);
                    }
                }
                if (!heads && (r || !normalises)) {
                    values << out;
                    made.to_rows = stores;
                    made.each = sums || op.of_t;
                    made.stored = !normalises;
                    // hls-allow state-order: values wait for their exponents, not these for them
                    if (made.each || (i >= in_eight - 4 && i % 2)) exponents << made;
                }
                const bool ends = four == last_row, whole = ends && taken + 1u == cells_of;
                taken = whole ? 0 : static_cast<uint16_t>(taken + ends);
                four = ends ? 0 : static_cast<uint8_t>(four + (normalises ? 1 : 2));
                left -= whole;
            };
        residual_rows:
            while (left) {
#pragma HLS PIPELINE II=ii::residual style=flp
                step();
            }
        }
    }
}

namespace {

// A beat of what rounds values to what is stored, once the exponents of their eight rows are known; n: its number. With
// one row in a cycle, the second one follows in the next, unless there is nothing to round. put: takes what becomes of
// the beat.
template <unsigned Rows, typename Put>
void pack(RowExponents (&of_rows)[4], bool &each, unsigned &n, bool &second, Values &in, Packed &out,
          hls::stream<RowExponents> &exponents, hls::stream<Values> &values, Put put) {
#pragma HLS INLINE
    if (!second) {
        if (each || ((of_rows[0].halves ? n % half_beats : n) < 8 && n % 4 < 2)) {
            const RowExponents of_two = exponents.read();
            of_rows[two_rows(n)] = of_two;
            each = of_two.each;
        }
        if (of_rows[0].last) return;
        in = values.read();  // hls-allow state-order: they come before their exponents
    }
    const RowExponents by = of_rows[two_rows(n)];
    for (unsigned k = 0; k < Rows; ++k) {
#pragma HLS UNROLL
        const unsigned i = Rows == 1 ? second : k;
        const Exponent from = Rows == 1 || n < half_beats ? by.from[i] : by.second_from[i];
        const Storing as = storing(from, by.made[i], Rows == 2 && by.eight);
        for (unsigned e = 0; e < 4; ++e) {
#pragma HLS UNROLL
            out.of[4 * i + e] = static_cast<int16_t>(stored(in[4 * i + e], as));
        }
        out.exponent[i] = static_cast<int8_t>(smaller(by.made[i], highest));
    }
    const bool both = Rows == 1 && by.stored;
    for (unsigned e = 4; e < 8; ++e) {
#pragma HLS UNROLL
        if (both) out.of[e] = static_cast<int16_t>(in[e]);
    }
    if (both) out.exponent[1] = static_cast<int8_t>(by.made[1]);
    second = Rows == 1 && !second && !both;
    if (second) return;
    put(by, out);
    n = (n + 1) % group_beats;
}

}  // namespace

void pack_results(hls::stream<RowExponents> &exponents, hls::stream<Values> &values, hls::stream<Packed> &to,
                  hls::stream<HeadBeat> &heads) {
    RowExponents of_rows[4] = {};
#pragma HLS ARRAY_PARTITION variable=of_rows complete
    unsigned n = 0;
    bool each = false, second = false;
    Values in = {};
    Packed out = {};
#pragma HLS ARRAY_PARTITION variable=out.of complete
pack_two_rows:
    while (!of_rows[0].last) {
#pragma HLS PIPELINE II=ii::cells style=flp
        pack<2>(of_rows, each, n, second, in, out, exponents, values, [&](const RowExponents &by, const Packed &made) {
            if (by.to_rows) to << made;
            else heads << HeadBeat{false, by.halves, made};
        });
    }
    heads << HeadBeat{true, false, out};
}

// Half as fast behind a norm: a cell of X is two beats in four cycles.
void pack_residuals(hls::stream<RowExponents> &exponents, hls::stream<Values> &values, hls::stream<Packed> &to_post,
                    hls::stream<Packed> &to_rows) {
    RowExponents of_rows[4] = {};
#pragma HLS ARRAY_PARTITION variable=of_rows complete
    unsigned n = 0;
    bool each = false, second = false;
    Values in = {};
    Packed out = {};
#pragma HLS ARRAY_PARTITION variable=out.of complete
#pragma HLS ARRAY_PARTITION variable=out.exponent complete
pack_a_row:
    while (!of_rows[0].last) {
#pragma HLS PIPELINE II=ii::cells style=flp
        pack<1>(of_rows, each, n, second, in, out, exponents, values, [&](const RowExponents &by, const Packed &made) {
            if (by.to_rows) to_rows << made;
            else to_post << made;
        });
    }
}

}  // namespace rsn::xnn8::pl
