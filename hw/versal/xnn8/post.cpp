// Post: results of the tiles, scaled, with bias and residual, through a function; sums of a head over their weights.
//
// It takes packets from both streams in turn. It looks for the next one while it computes, so that its reciprocals and
// residuals are there in time.
// SPDX-License-Identifier: Apache-2.0
#include "post.h"
#include "tables.h"

namespace rsn::xnn8::pl {

namespace {

constexpr unsigned divider_bits = 3, divider_steps = 6;  // of a quotient in a cycle; cycles, of which two bits are 0
constexpr unsigned division = 60;  // cycles until reciprocals of eight rows are there, one after the other
constexpr int addend_bits = 11;  // by which an addend of X becomes as long as a result
constexpr RowFactor of_addend = {1 << 15, -addend_bits - 15};
constexpr int weight_bits = 29;  // of a reciprocal of a sum of weights, behind the point
constexpr int first_rest = 1 << (weight_bits - static_cast<int>(divider_bits * divider_steps));
constexpr int turn_bits = 3;   // by which a rotation moves the point
constexpr int gate_bits = 33;  // by which a gate does

// A function by its table; or none, with a table of zeros.
int32_t activated(int32_t v, const Lookup &by, const int16_t (&table)[table_entries], bool function) {
#pragma HLS INLINE
    const int16_t entry = table[entry_of(v, by)];
    return static_cast<int32_t>(within<31>((function && v < 0 ? 0 : v) - aligned<15, 22>(entry, by.of_entry)));
}

// Of a row, in the first half of a block: the exponent of values, and the one that they would be stored with.
struct FirstHalf {
    Exponent from, made;
};

// The factors of rotations of a row, four columns: of each pair of columns, its own and its partner's.
struct FourAngles {
    int16_t of[4];
    int8_t exponent;
};

// x / 2^By to the nearest integer, half to even. x has Bits bits, what is made has Made.
template <unsigned By, int Bits, int Made>
int64_t shortened(int64_t x) {
#pragma HLS INLINE
    Shifted made(within<Bits>(x));
    made.by(By);
    return within<Made>(made.rounded());
}

// Rotates the pairs of columns of one of two rows, or multiplies all values with those of a gate: by the same eight
// multipliers.
void multiply(bool rotates, const FourAngles &by, unsigned row, const Values &gates, const Values &from, Values &to) {
#pragma HLS INLINE
    const unsigned lower = to_right<15>(-14 - by.exponent);
    int64_t products[8];
    for (unsigned e = 0; e < 8; ++e) {
#pragma HLS UNROLL
        // Of a pair: first times own, second times partner, second times own, first times partner.
        const unsigned pair = e / 4 * 2, second = e % 4 == 1 || e % 4 == 2;
        const int64_t one = rotates ? from[4 * row + pair + second] : gates[e];
        const int64_t other = rotates ? rounded<15>(by.of[pair + e % 2], lower) : shortened<8, 31, 23>(from[e]);
        // what is rounded later gets its half from the DSP: of a rotation the sum of two products
        const int64_t half = !rotates ? half_step<20> : e % 2 ? 0 : half_step<12>;
        products[e] = within<50>(shortened<5, 31, 26>(one) * within<23>(other) + half);
    }
    for (unsigned c = 0; c < 4; ++c) {
#pragma HLS UNROLL
        const int64_t one = products[2 * c], other = products[2 * c + 1];
        if (!rotates) continue;
        const int64_t sum = within<43>(c % 2 ? one + other : one - other);
        to[4 * row + c] = static_cast<int32_t>(within<30>(rounded_down<12>(sum)));
    }
    for (unsigned e = 0; e < 8; ++e) {
#pragma HLS UNROLL
        if (!rotates) to[e] = static_cast<int32_t>(within<29>(rounded_down<20>(products[e])));
    }
}

}  // namespace

void post(hls::stream<PostWork> &uops, hls::stream<Shorts> &constants, hls::stream<RowFactor> &factors,
          hls::stream<CellExponent> &of_values, hls::stream<PacketsDue> due[3], hls::stream<PacketNumber> packets[2],
          hls::stream<WeightSums> weights_of[2], hls::stream<Results> results[2], hls::stream<HeldPacket> &wanted,
          hls::stream<Place> &asks, hls::stream<Packed> &residuals, hls::stream<HeadRow> &normalised,
          hls::stream<Packed> &angles, hls::stream<Place> &places, hls::stream<RowExponents> &exponents,
          hls::stream<Values> &values, hls::stream<Token> &taken) {
    BlockConstants columns;
    RowFactor of_rows[2][block_columns / 2];
#pragma HLS AGGREGATE variable=of_rows compact=bit
#pragma HLS ARRAY_PARTITION variable=of_rows complete dim=1
    CellExponent of_heads[pairs];
#pragma HLS ARRAY_PARTITION variable=of_heads complete
    FourAngles turns[2][2 * groups * x_words];  // of rows in turn: two rows after the other, four columns
#pragma HLS AGGREGATE variable=turns compact=bit
#pragma HLS ARRAY_PARTITION variable=turns complete dim=1
post_uops:
    for (;;) {
        const PostWork op = uops.read();
        if (op.last) {
            exponents << no_more_rows;
            for (unsigned i = 0; i < 3; ++i) {
#pragma HLS UNROLL
                due[i] << PacketsDue{true, false, false, false, 0};  // hls-allow state-order: all end by themselves
            }
            break;
        }
    post_angles:
        for (uint16_t i = 0; op.angles && i < op.blocks * op.rows * block_columns / 8; ++i) {
#pragma HLS PIPELINE II=ii::cells style=flp
            const Packed in = angles.read();
            const unsigned group = cell_groups * (op.slot + i / 128) + i / 64 % 2 * 2;
            const unsigned word = x_word(group % groups, i / 2 % 32);
            const unsigned at = (word / x_words * 2 + i % 2) * x_words + word % x_words;
            for (unsigned r = 0; r < 2; ++r) {
#pragma HLS UNROLL
                for (unsigned c = 0; c < 4; ++c) {
#pragma HLS UNROLL
                    turns[r][at].of[c] = in.of[4 * r + c];
                }
                turns[r][at].exponent = in.exponent[r];
            }
        }
        if (op.angles) continue;
        // Of a sum of two, residuals bring both addends in turn.
        const bool sums = op.sums, sums_two = sums && op.residual;
        // Two narrow heads are a block: of each packet of the first one, that of the second one follows.
        const bool narrow = op.attention && op.narrow;
        // Of a wide head each tile has half of the columns, and all rows.
        const bool wide = op.attention && op.wide;
        // The two blocks of a wide head that a norm follows are taken together, eight rows at a time: the second one waits
        // as that of a gate.
        const bool joins = op.norm && op.wide, halves = op.norm && op.narrow, pairs_up = op.gated || joins;
        const unsigned in_packet = op.attention ? window_rows / 2 : window_rows;
        const unsigned of_column = (unsigned{op.rows} << wide) / in_packet;
        for (unsigned i = 0; !sums && i < 3; ++i) {
#pragma HLS UNROLL
            const auto count = static_cast<uint8_t>((op.blocks + (i == 0)) / 2 * of_column);
            // hls-allow state-order: both streams are gathered by themselves
            due[i] << PacketsDue{false, op.attention, narrow, pairs_up, count};
        }
    post_constants:
        for (unsigned c = 0; !op.attention && !sums && c < op.blocks; ++c) columns.take(c, constants);
    post_factors:
        for (unsigned r = 0; !op.attention && !sums && r < op.rows; ++r) {
#pragma HLS PIPELINE II=ii::factors style=flp
            of_rows[r % 2][r / 2] = factors.read();
        }
    post_heads:
        for (unsigned c = 0; op.attention && c < op.blocks; ++c) {
#pragma HLS PIPELINE II=ii::factors style=flp
            of_heads[c] = of_values.read();
        }
        const unsigned function = op.function ? op.function - 1u : zeros;
        const FunctionTable table = tables[function];
        const unsigned packet_beats = narrow ? half_beats : in_packet / 8 * group_beats;
        const unsigned of_blocks = narrow ? op.blocks + op.blocks % 2 : op.blocks >> pairs_up;
        uint8_t packets_of[2 * pairs] = {};
        auto unknown = static_cast<uint8_t>(within<4>(of_blocks) * within<4>(of_column) << joins);
        bool halfway = false;  // the next eight rows are of the same packets
        auto left = static_cast<uint8_t>(unknown << op.norm);
        // Heads that a norm follows come back from it. Meanwhile Post makes the next ones.
        bool returns = false;  // this packet does
        uint8_t waiting = 0;   // packets that will
        Place waits[2] = {};
#pragma HLS ARRAY_PARTITION variable=waits complete
#pragma HLS ARRAY_PARTITION variable=packets_of complete
        RowFactor reciprocals[2][2 * 4];  // of this packet and the next one
#pragma HLS AGGREGATE variable=reciprocals compact=bit
#pragma HLS ARRAY_PARTITION variable=reciprocals complete dim=1
#pragma HLS BIND_STORAGE variable=reciprocals type=ram_s2p impl=lutram
        bool from = true, next_from = false, known = false, odd = false;  // the next packet is known; this one is odd
        bool follows = false;  // the next packet is that of a second head
        bool none = false, next_none = false;  // which there is none of
        bool part = false, next_part = false;  // the second block of a wide head
        PacketNumber latest = 0;
        uint8_t beat = 0, column = 0, group = 0, dividing = 0;
        // Sums begin with the rows that follow these.
        uint8_t next_column = sums ? 255 : 0, next_group = static_cast<uint8_t>(op.rows / 8 - 2);
        Packed addend = {};
#pragma HLS ARRAY_PARTITION variable=addend.of complete
#pragma HLS ARRAY_PARTITION variable=addend.exponent complete
        uint8_t divided_row = 0, divider_step = 0;
        RowFactor divisor = {};
        ap_int<16> rest = 0;  // of a quotient that is being made
        ap_int<17> quotient = 0;
        WeightSums weights = {};
#pragma HLS ARRAY_PARTITION variable=weights.of complete
        uint32_t most[8] = {};  // of eight rows: a bit is set where it is in some magnitude
#pragma HLS ARRAY_PARTITION variable=most complete
        FirstHalf first_half[8];  // of eight rows
#pragma HLS ARRAY_PARTITION variable=first_half complete
        // A beat that is rotated takes two cycles: each has one of its two rows. So does one of a gate: each has one
        // factor.
        const bool rotates = op.rotated && !op.attention, multiplies = rotates || op.gated;
        bool second = false;
        Values out = {}, gates = {}, made_of_two = {};
        Exponent exponent_of[2] = {};
#pragma HLS ARRAY_PARTITION variable=exponent_of complete
        const auto step = [&] {
            const bool starts = beat == 0 && !second;
            const bool turns_back = starts && (waiting == 2 || (waiting && !known && !unknown));
            const bool begins = starts && !turns_back && known && !dividing;
            const bool idle = starts && !turns_back && !begins;
            if (turns_back) {
                returns = true;
                column = waits[0].column;
                group = waits[0].group;
                waits[0] = waits[1];
                --waiting;
            }
            if (begins) {
                returns = false;
                from = next_from;
                column = next_column;
                group = next_group;
                none = next_none;
                part = next_part;
                known = false;
                odd = !odd;
                if (op.norm) waits[waiting++] = {column, group};
            }
            if (dividing) {
                --dividing;
                if (divided_row < 8) {
                    if (divider_step == 0) {
                        divisor = normal<19>(weights.of[0], 0);
                        for (unsigned i = 0; i < 7; ++i) {
#pragma HLS UNROLL
                            weights.of[i] = weights.of[i + 1];
                        }
                    }
                    // 2^29 / mantissa: the first bits of the dividend are below all divisors, the others are 0.
                    int64_t left_over = divider_step ? int64_t{rest} : first_rest;
                    int64_t made = divider_step ? int64_t{quotient} : 0;
                    for (unsigned i = 0; i < divider_bits; ++i) {
#pragma HLS UNROLL
                        divide<15>(left_over, made, divisor.mantissa);
                    }
                    rest = left_over;
                    quotient = within<16>(made);
                    if (divider_step + 1u == divider_steps) {
                        reciprocals[divided_row % 2][4 * !odd + divided_row / 2] = {
                            static_cast<uint16_t>(nearest<16, 15>(left_over, made, divisor.mantissa)),
                            static_cast<int16_t>(-weight_bits - divisor.exponent)};
                    }
                    const bool row_ends = divider_step + 1u == divider_steps;
                    divider_step = row_ends ? 0 : static_cast<uint8_t>(divider_step + 1);
                    divided_row = static_cast<uint8_t>(divided_row + row_ends);
                }
            } else if (!known && unknown && sums) {
                const bool whole = next_group + 2u == op.rows / 8;
                next_column = static_cast<uint8_t>(next_column + whole);
                next_group = whole ? 0 : static_cast<uint8_t>(next_group + 2);
                known = true;
                --unknown;
            } else if (!known && unknown && halfway) {
                ++next_group;
                halfway = false;
                known = true;
                --unknown;
                asks << Place{next_column, next_group};
            } else if (!known && unknown) {
                const bool lacks = follows && latest / 2 * 2 + 1u == op.blocks;  // the number of heads is odd
                if (idle && follows && !lacks) RSN_WAIT_FOR_ANY(weights_of[1]);
                else if (idle && !lacks) RSN_WAIT_FOR_ANY(packets[0], packets[1]);
                const bool comes[2] = {!follows && !packets[0].empty(),
                                       follows ? lacks || !weights_of[1].empty() : !packets[1].empty()};
                if (comes[0] || comes[1]) {
                    next_from = comes[1] && (!comes[0] || !from);  // in turn, if there are both
                    if (!follows) latest = next_from ? packets[1].read() : packets[0].read();
                    const unsigned number = latest;
                    if (op.attention && !lacks) weights = next_from ? weights_of[1].read() : weights_of[0].read();
                    dividing = op.attention ? division : 0;
                    divided_row = 0;
                    uint8_t &before = packets_of[2 * number + next_from];
                    next_column = static_cast<uint8_t>(number / 2 * 2 + next_from);
                    const bool shares = narrow && !follows && next_column + 1u < op.blocks;
                    const unsigned each = pairs_up ? 2 : narrow_packets;
                    if (pairs_up || shares) wanted << static_cast<HeldPacket>(each * number + before);
                    const auto eights = static_cast<uint8_t>((2 * before++ + number % 2) * in_packet / 8);
                    next_part = wide && eights >= op.rows / 8;
                    next_group = static_cast<uint8_t>(eights - (next_part ? op.rows / 8 : 0));
                    follows = narrow && !follows;
                    next_none = lacks;
                    halfway = joins;
                    known = true;
                    --unknown;
                    // hls-allow state-order: what is wanted does not wait for it
                    if (op.residual || op.norm) asks << Place{next_column, next_group};
                }
            }
            if (idle) return;
            const unsigned half = narrow && column % 2 ? half_beats : 0, n = half + beat % group_beats;
            const bool other = joins && beat / group_beats % 2;  // the second block of a wide head
            const unsigned two = two_rows(n), eight_rows = group + (joins ? 0 : beat / group_beats);
            const unsigned block = column + other;
            const bool multiplied = op.gated && second, leaves = op.norm && !returns;
            const unsigned to_block = wide ? 2 * column + part : block >> (op.gated || narrow);
            if (n == 0 && !second && !leaves)
                places << Place{static_cast<uint8_t>(to_block), static_cast<uint8_t>(eight_rows)};
            if (returns) {
                const HeadRow row = normalised.read();  // hls-allow state-order: places do not wait for them
                for (unsigned c = 0; c < 4; ++c) {
#pragma HLS UNROLL
                    out[4 * second + c] = row.of[c];
                }
                exponent_of[second] = static_cast<Exponent>(row.exponent + (rotates ? turn_bits : 0));
            } else if (!second || multiplied || sums_two) {
                Results in = {};
                // hls-allow state-order: places do not wait for results
                if (!sums && !none) in = from || multiplied || other ? results[1].read() : results[0].read();
                const unsigned from_column = (block + multiplied) % pairs;
                const unsigned by_table = multiplied ? zeros : function;
                Packed residue = {};
                if (op.residual || sums) residue = residuals.read();  // hls-allow state-order: they wait for no place
                if (sums && !second) {
                    addend = residue;
                    residue = {};
                }
                ScaledBy factor_of[2];
                unsigned bias_by[2], residue_by[2];
                Lookup entries_by[2];
                int top[2];
                const bool by_columns = !op.attention && !sums;
                const auto of_scale = static_cast<int>(within<exponent_bits>(
                    sums ? of_addend.exponent : op.attention ? of_heads[column]
                    : columns.shift[from_column] + columns.first_exponent[from_column] + 4));
                const auto of_bias =
                    static_cast<int>(within<exponent_bits>(by_columns ? columns.second_exponent[from_column] : 0));
                for (unsigned i = 0; i < 2; ++i) {
#pragma HLS UNROLL
                    const RowFactor by = sums ? RowFactor{of_addend.mantissa, addend.exponent[i]}
                        : op.attention ? reciprocals[i][4 * odd + two] : of_rows[i][4 * eight_rows + two];
                    const auto exponent = static_cast<int>(within<exponent_bits>(of_scale + by.exponent));
                    top[i] = exponent + product_bits;
                    if (by_columns) top[i] = larger(top[i], of_bias + kept_bits);
                    if (op.residual) top[i] = larger(top[i], residue.exponent[i] + kept_bits);
                    top[i] -= sum_bits;
                    const int moved = multiplied ? exponent_of[i] + gate_bits : rotates && !op.norm ? turn_bits : 0;
                    exponent_of[i] = static_cast<Exponent>(top[i] + moved);
                    factor_of[i] = scaled_by<least>(by.mantissa, top[i] - exponent);
                    bias_by[i] = by_columns ? both_ways<15, 14>(top[i] - of_bias) : 0;
                    residue_by[i] = both_ways<15, 14>(top[i] - residue.exponent[i]);
                    entries_by[i] = lookup(top[i], table.steps, table.fraction);
                }
                for (unsigned e = 0; e < 8; ++e) {
#pragma HLS UNROLL
                    const unsigned i = e / 4, of_four = four_columns(n);
                    const unsigned word = 4 * from_column + of_four / 4, in_word = of_four % 4 * 4 + e % 4;
                    const auto drained = static_cast<int16_t>(int64_t{in.of[e]});
                    const int64_t product = int64_t{drained} * columns.first[word][in_word] + half_step<4>;
                    const int64_t scaling = sums ? int64_t{addend.of[e]} << addend_bits
                        : op.attention ? int64_t{in.of[e]} : rounded_down<4>(within<31>(product));
                    int64_t v = scaled<least, sum_bits>(scaling, factor_of[i]);
                    v += aligned<15, 14>(columns.second[word][in_word], bias_by[i]);
                    v += aligned<15, 14>(residue.of[e], residue_by[i]);
                    out[e] = static_cast<int32_t>(within<31>(v));
                    out[e] = activated(out[e], entries_by[i], entries[by_table], op.function && !multiplied);
                }
            }
            if (sums_two) {
                second = !second;
                if (second) return;
            }
            const bool slow = returns || (multiplies && !op.norm);
            if (slow) {
                const unsigned of_angles = eight_rows + (op.wide && block % 2 ? op.rows / 8 : 0);
                const FourAngles &by = turns[second][(4 * of_angles + two) % (2 * groups) * x_words + four_columns(n)];
                multiply(rotates, by, second, gates, out, made_of_two);
                second = !second;
                if (second) {
                    gates = out;
                    return;
                }
            }
            const Values all = slow && multiplies ? made_of_two : out;
            values << all;  // hls-allow state-order: residuals do not wait for values
            const bool eight = op.eight && !leaves, by_half = halves && leaves;
            RowExponents made = {false, eight, !leaves, false, false, by_half, {}, {}, {}};
            for (unsigned i = 0; i < 2; ++i) {
#pragma HLS UNROLL
                uint32_t bits = 0;
                for (unsigned e = 4 * i; e < 4 * i + 4; ++e) {
#pragma HLS UNROLL
                    bits |= static_cast<uint32_t>(magnitude(all[e]));
                }
                uint32_t &of_row = most[2 * two + i];
                of_row = ((narrow || halves ? n % half_beats : n) < 8 && n % 4 < 2 ? 0 : of_row) | bits;
                const auto of_part = static_cast<Exponent>(stored_exponent(of_row, exponent_of[i], eight ? 8 : 16));
                FirstHalf &first = first_half[2 * two + i];
                if (n < half_beats) first = {exponent_of[i], of_part};
                made.from[i] = first.from;
                made.second_from[i] = exponent_of[i];
                const bool of_both = narrow || (halves && returns);
                made.made[i] = of_both ? static_cast<Exponent>(larger(of_part, first.made)) : of_part;
            }
            if ((by_half ? n % half_beats >= half_beats - 8 : n >= group_beats - 8) && n % 4 > 1) exponents << made;
            const bool ends = beat + 1u == packet_beats;
            beat = ends ? 0 : static_cast<uint8_t>(beat + 1);
            left -= ends;
        };
    post_beats:
        while (left) {  // hls-allow interval: no reciprocal is read within `division` cycles of its writing
#pragma HLS PIPELINE II=ii::post style=flp
#pragma HLS DEPENDENCE variable=reciprocals type=inter dependent=false
            step();
        }
        if (!sums) taken << Token(1);
    }
}

}  // namespace rsn::xnn8::pl
