// Post: results of the tiles, scaled, with bias and residual, through a function; sums of a head over their weights.
// And the residuals that it adds.
//
// Packets come in any order from four pairs of tiles, each by both DMA channels of its last tile in turn. Their numbers
// say which: twice that of the pair among these, and the channel. The first word of a packet is its header. Sums of a
// head have 32 bits, so two streams together bring as many as Post computes: of each, one process gathers beats of
// eight results, and Post takes packets from both in turn. It looks for the next one while it computes, so that its
// reciprocals and residuals are there in time.
//
// Of a gate, the first stream brings gates, the second one what they multiply. Neither has an order. So packets of the
// second one wait in a memory for the packet of gates that Post takes: it has room for all of an operation, so that the
// second stream never waits for the first one. As Post takes two cycles for eight products, four results a cycle
// suffice.
// SPDX-License-Identifier: Apache-2.0
#include "tables.h"
#include "units.h"

namespace rsn::xnn8::pl {

namespace {

constexpr unsigned chunks = 130;      // of four words, in a packet
constexpr unsigned head_chunks = 2;   // of these, sums of weights
constexpr unsigned divider_bits = 3, divider_steps = 6;  // of a quotient in a cycle; cycles, of which two bits are 0
constexpr unsigned division = 60;     // cycles until reciprocals of eight rows are there, one after the other
constexpr int product_bits = 41, kept_bits = 15;
constexpr int least = product_bits - sum_bits;  // shift of a product
constexpr unsigned in_eight = group_beats / 2;  // cells of X of eight rows
constexpr unsigned cells_ahead = 7;   // of residuals, asked for before one is taken
constexpr RowExponents no_more_rows = {true, false, false, false, false, {}, {}, {}};
constexpr int addend_bits = 11;       // by which an addend of X becomes as long as a result
constexpr RowFactor of_addend = {1 << 15, -addend_bits - 15};
constexpr int weight_bits = 29;       // of a reciprocal of a sum of weights, behind the point
constexpr int first_rest = 1 << (weight_bits - static_cast<int>(divider_bits * divider_steps));
constexpr int turn_bits = 3;          // by which a rotation moves the point
constexpr int gate_bits = 33;         // by which a gate does
constexpr unsigned head_beats = 64;     // of results of a packet, and of that of a product
constexpr unsigned product_beats = chunks - head_chunks;

constexpr unsigned half_beats = group_beats / 2;  // of half a block, all that a narrow head has
constexpr unsigned narrow_packets = 4;            // of a narrow head by one channel, at most

using HeldCells = Quarter[all_held];

// Two vectors of a block, four columns a word, with their exponents, and the shift of a product.
struct BlockConstants {
    Shorts first[4 * pairs], second[4 * pairs];
    int16_t first_exponent[pairs], second_exponent[pairs], shift[pairs];

    // Takes the i-th word of a block.
    void put(unsigned block, unsigned i, hls::stream<Shorts> &from) {
#pragma HLS INLINE
        if (i < 4) {
            first[4 * block + i] = from.read();
        } else if (i < 8) {
            second[4 * block + i - 4] = from.read();
        } else {
            const Shorts word = from.read();
            if (i > 8) return;
            first_exponent[block] = word[0];
            second_exponent[block] = word[1];
            shift[block] = word[2];
        }
    }
    void take(unsigned block, hls::stream<Shorts> &from) {
#pragma HLS INLINE
    take_constants:
        for (unsigned i = 0; i < piece_words; ++i) {
#pragma HLS PIPELINE II=ii::constants style=flp
            put(block, i, from);
        }
    }
};

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

void gather(hls::stream<PacketsDue> &due, hls::stream<Beat128> &results, hls::stream<PacketNumber> &packets,
            hls::stream<WeightSums> &weights, hls::stream<Results> &to) {
gather_uops:
    for (;;) {
        const PacketsDue of = due.read();
        if (of.last) break;
        uint8_t left = of.count, at = 0;  // beats of a packet that have come
        PacketNumber number = 0;
        uint32_t carried[3] = {}, before[4] = {};
#pragma HLS ARRAY_PARTITION variable=carried complete
#pragma HLS ARRAY_PARTITION variable=before complete
    gather_beats:
        while (left) {
#pragma HLS PIPELINE II=ii::cells style=flp
            const Beat128 in = results.read();
            const uint32_t words[4] = {carried[0], carried[1], carried[2], in[0]};
            for (unsigned i = 0; i < 3; ++i) {
#pragma HLS UNROLL
                carried[i] = in[i + 1];
            }
            if (at == 0) number = static_cast<PacketNumber>(in[0]);
            if (at == (of.attention ? head_chunks : 0)) packets << number;
            if (of.attention && at == head_chunks) {
                WeightSums sums;
                for (unsigned i = 0; i < 8; ++i) {
#pragma HLS UNROLL
                    sums.of[i] = i < 4 ? before[i] : words[i - 4];
                }
                weights << sums;
            }
            // Half of what a narrow head brings has no meaning.
            const uint8_t end = of.narrow ? head_chunks + head_beats + 1 : chunks;
            if (of.attention ? at > head_chunks && at <= end && at % 2 == 0 : at && at <= product_beats) {
                Results out;
                for (unsigned e = 0; e < 8; ++e) {
#pragma HLS UNROLL
                    const auto drained = static_cast<int16_t>(words[e / 2] >> e % 2 * 16);
                    const auto sum = static_cast<int32_t>(e < 4 ? before[e] : words[e - 4]);
                    out.of[e] = of.attention ? within<26>(sum) : drained;
                }
                to << out;  // hls-allow state-order: Post takes results of a packet that it knows
            }
            for (unsigned i = 0; i < 4; ++i) {
#pragma HLS UNROLL
                before[i] = words[i];
            }
            left = static_cast<uint8_t>(left - (at + 1 == window_beats));
            at = at + 1 == window_beats ? 0 : static_cast<uint8_t>(at + 1);
        }
    }
}

// Keeps what gates multiply, or the second one of two narrow heads, until Post asks for it; hands all else on. Of a
// gate a word has four results; of heads the lower halves of two sums, then the upper ones.
void hold(hls::stream<PacketsDue> &due, hls::stream<PacketNumber> &packets, hls::stream<WeightSums> &weights,
          hls::stream<Results> &results, hls::stream<HeldPacket> &wanted, hls::stream<PacketNumber> &packets_to_post,
          hls::stream<WeightSums> &weights_to_post, hls::stream<Results> &results_to_post) {
    RSN_MEMORY(HeldCells, cells);
#pragma HLS AGGREGATE variable=cells compact=bit
#pragma HLS BIND_STORAGE variable=cells type=ram_s2p impl=uram
    WeightSums of_weights[most_held];
#pragma HLS AGGREGATE variable=of_weights compact=bit
#pragma HLS BIND_STORAGE variable=of_weights type=ram_s2p impl=lutram
hold_uops:
    for (;;) {
        const PacketsDue of = due.read();
        if (of.last) break;
        const bool holds = of.gated || of.narrow;
        const unsigned words = of.narrow ? all_held / most_held : 2 * all_held / most_held;  // of a packet
        const unsigned of_all = holds ? of.count * words : of.attention ? of.count * head_beats
            : of.count * product_beats;
        auto left = static_cast<uint16_t>(of_all);  // that leave
        uint8_t come[pairs] = {};  // packets of each number
        bool there[most_held] = {};
#pragma HLS ARRAY_PARTITION variable=come complete
#pragma HLS ARRAY_PARTITION variable=there complete
        HeldPacket comes = 0, goes = 0;
        uint8_t in = 0, out = 0;  // words of these
        bool asked = false;
        Results got = {}, made = {};
#pragma HLS ARRAY_PARTITION variable=got.of complete
#pragma HLS ARRAY_PARTITION variable=made.of complete
        const unsigned of_beat = of.narrow ? 3 : 1;  // the last word of eight results
    hold_cycles:
        while (left) {
#pragma HLS PIPELINE II=ii::cells style=flp
#pragma HLS DEPENDENCE variable=cells type=inter dependent=false
            const bool leaves = holds && asked && there[goes], begins = (in & of_beat) == 0;
            if (!leaves && begins) {
                if (!holds && of.attention) RSN_WAIT_FOR_ANY(weights, results);
                else if (!holds) RSN_WAIT_FOR_ANY(packets, results);
                else if (asked) RSN_WAIT_FOR_ANY(results);
                else RSN_WAIT_FOR_ANY(results, wanted);
            }
            const bool takes = begins && !results.empty();
            if (!holds) {
                // Both together: Post waits for the weights of a packet that it knows, and takes no results meanwhile.
                if (!packets.empty() && (!of.attention || !weights.empty())) {
                    packets_to_post << packets.read();
                    // hls-allow state-order: behind their packet's number
                    if (of.attention) weights_to_post << weights.read();
                }
                if (takes) results_to_post << results.read();  // hls-allow state-order: behind their packet's number
                left -= takes;
                continue;
            }
            if (takes) got = results.read();
            if (takes && in == 0) {
                const unsigned number = packets.read();  // hls-allow state-order: it came before its results
                comes = static_cast<HeldPacket>(number * (of.narrow ? narrow_packets : 2) + come[number]);
                ++come[number];
                if (of.narrow) of_weights[comes] = weights.read();  // hls-allow state-order: the same
            }
            if (takes || !begins) {
                Quarter word;
                for (unsigned e = 0; e < 4; ++e) {
#pragma HLS UNROLL
                    const int64_t sum = got.of[in % 4 * 2 + e % 2];
                    word[e] = static_cast<int16_t>(of.narrow ? sum >> e / 2 * 16 : int64_t{got.of[in % 2 * 4 + e]});
                }
                cells[comes * words + in] = word;
                const bool whole = in + 1u == words;
                if (whole) there[comes] = true;
                in = whole ? 0 : static_cast<uint8_t>(in + 1);
            }
            if (!asked && !wanted.empty()) {
                goes = wanted.read();
                asked = true;
            }
            if (!leaves) continue;
            // hls-allow state-order: Post takes the sums of weights before results
            if (of.narrow && out == 0) weights_to_post << of_weights[goes];
            const Quarter word = cells[goes * words + out];
            for (unsigned e = 0; e < 4; ++e) {
#pragma HLS UNROLL
                const auto sum = static_cast<int32_t>(static_cast<uint16_t>(word[e % 2]) |
                                                      static_cast<uint32_t>(word[2 + e % 2]) << 16);
                if (!of.narrow) made.of[out % 2 * 4 + e] = word[e];
                else if (e < 2) made.of[out % 4 * 2 + e] = sum;
            }
            // hls-allow state-order: Post takes gates by themselves
            if ((out & of_beat) == of_beat) results_to_post << made;
            asked = out + 1u != words;
            out = asked ? static_cast<uint8_t>(out + 1) : 0;
            --left;
        }
    }
}

void post(hls::stream<PostWork> &uops, hls::stream<Shorts> &constants, hls::stream<RowFactor> &factors,
          hls::stream<CellExponent> &of_values, hls::stream<PacketsDue> due[3], hls::stream<PacketNumber> packets[2],
          hls::stream<WeightSums> weights_of[2], hls::stream<Results> results[2], hls::stream<HeldPacket> &wanted,
          hls::stream<Place> &asks, hls::stream<Packed> &residuals, hls::stream<Packed> &angles,
          hls::stream<Place> &places, hls::stream<RowExponents> &exponents, hls::stream<Values> &values,
          hls::stream<Token> &taken) {
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
        const unsigned in_packet = op.attention ? window_rows / 2 : window_rows;
        const unsigned of_column = (unsigned{op.rows} << wide) / in_packet;
        for (unsigned i = 0; !sums && i < 3; ++i) {
#pragma HLS UNROLL
            const auto count = static_cast<uint8_t>((op.blocks + (i == 0)) / 2 * of_column);
            // hls-allow state-order: both streams are gathered by themselves
            due[i] << PacketsDue{false, op.attention, narrow, op.gated, count};
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
        const unsigned of_blocks = narrow ? op.blocks + op.blocks % 2 : op.blocks >> op.gated;
        uint8_t packets_of[2 * pairs] = {}, left = static_cast<uint8_t>(of_blocks * of_column);
        uint8_t unknown = left;
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
            const bool begins = beat == 0 && !second && known && !dividing;
            const bool idle = beat == 0 && !second && !begins;
            if (begins) {
                from = next_from;
                column = next_column;
                group = next_group;
                none = next_none;
                part = next_part;
                known = false;
                odd = !odd;
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
                    const unsigned each = op.gated ? 2 : narrow_packets;
                    if (op.gated || shares) wanted << static_cast<HeldPacket>(each * number + before);
                    const auto eights = static_cast<uint8_t>((2 * before++ + number % 2) * in_packet / 8);
                    next_part = wide && eights >= op.rows / 8;
                    next_group = static_cast<uint8_t>(eights - (next_part ? op.rows / 8 : 0));
                    follows = narrow && !follows;
                    next_none = lacks;
                    known = true;
                    --unknown;
                    if (op.residual) asks << Place{next_column, next_group};  // hls-allow state-order: no gate has one
                }
            }
            if (idle) return;
            const unsigned half = narrow && column % 2 ? half_beats : 0, n = half + beat % group_beats;
            const unsigned two = two_rows(n), eight_rows = group + beat / group_beats;
            const bool multiplied = op.gated && second;
            if (!second || multiplied || sums_two) {
                Results in = {};
                if (!sums && !none) in = from || multiplied ? results[1].read() : results[0].read();
                const unsigned to_block = wide ? 2 * column + part : column >> (op.gated || narrow);
                if (n == 0 && !second)
                    places << Place{static_cast<uint8_t>(to_block), static_cast<uint8_t>(eight_rows)};
                const unsigned from_column = (column + multiplied) % pairs;
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
                    const int moved = multiplied ? exponent_of[i] + gate_bits : rotates ? turn_bits : 0;
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
            if (multiplies) {
                const unsigned of_angles = eight_rows + (op.wide && column % 2 ? op.rows / 8 : 0);
                const FourAngles &by = turns[second][(4 * of_angles + two) % (2 * groups) * x_words + four_columns(n)];
                multiply(rotates, by, second, gates, out, made_of_two);
                second = !second;
                if (second) {
                    gates = out;
                    return;
                }
            }
            const Values all = multiplies ? made_of_two : out;
            values << all;  // hls-allow state-order: residuals do not wait for values
            RowExponents made = {false, op.eight, false, false, false, {}, {}, {}};
            for (unsigned i = 0; i < 2; ++i) {
#pragma HLS UNROLL
                uint32_t bits = 0;
                for (unsigned e = 4 * i; e < 4 * i + 4; ++e) {
#pragma HLS UNROLL
                    bits |= static_cast<uint32_t>(magnitude(all[e]));
                }
                uint32_t &of_row = most[2 * two + i];
                of_row = (beat % group_beats < 8 && n % 4 < 2 ? 0 : of_row) | bits;
                const auto of_part = static_cast<Exponent>(stored_exponent(of_row, exponent_of[i], op.eight ? 8 : 16));
                FirstHalf &first = first_half[2 * two + i];
                if (n < half_beats) first = {exponent_of[i], of_part};
                made.from[i] = first.from;
                made.second_from[i] = exponent_of[i];
                made.made[i] = narrow ? static_cast<Exponent>(larger(of_part, first.made)) : of_part;
            }
            if (n >= group_beats - 8 && n % 4 > 1) exponents << made;
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

// Blocks of X for Post, and to be stored: as they are, two rows of a cell in a cycle; or behind a norm, one row. In the
// latter case the exponents of four rows are known when all their values are made.
void residual(hls::stream<ResidualWork> &uops, hls::stream<Shorts> &constants, hls::stream<Statistics> &statistics,
              hls::stream<Place> &asks, hls::stream<CellRead> &reads, hls::stream<XCell> &cells,
              hls::stream<RowExponents> &exponents, hls::stream<Values> &values) {
    BlockConstants affine;
    Statistics norms[2 * lane_rows] = {};  // of the latest walk, then of what is being stored
#pragma HLS AGGREGATE variable=norms compact=bit
#pragma HLS BIND_STORAGE variable=norms type=ram_s2p impl=bram
residual_uops:
    for (;;) {
        const ResidualWork op = uops.read();
        if (op.last) {
            reads << CellRead{true, 0};
            put_behind(exponents, no_more_rows);
            break;
        }
        const bool sums = op.sums, stores = op.stores, walks_all = stores || sums, normalises = op.normalises;
        // Two addends take turns: two rows of a cell of one, the same of the other. So each cell is read twice.
        const bool in_turn = op.in_turn;
        const unsigned turns = in_turn ? 2 : 0, last_row = in_turn ? 0 : normalises ? 3 : 2;
    residual_statistics:
        for (unsigned r = 0; op.norms && r < op.rows; ++r) {
#pragma HLS PIPELINE II=ii::factors style=flp
            norms[lane_rows * stores + r] = statistics.read();
        }
        if (!op.moves) continue;
        // A packet of Post has 16 rows; what is stored, all rows of a block.
        const auto packets = static_cast<unsigned>(within<7>(op.blocks) * within<3>(op.rows / window_rows));
        const uint8_t items = static_cast<uint8_t>(walks_all ? unsigned{op.blocks} : packets);
        const auto cells_of = static_cast<uint16_t>((walks_all ? op.rows * block_columns / 16 : 2 * in_eight) << turns);
        const uint8_t vectors = static_cast<uint8_t>(!normalises ? 0 : stores ? 1 : unsigned{op.blocks});
    residual_constants:
        for (unsigned c = 0; c < vectors; ++c) affine.take(c, constants);
        uint8_t left = items, unasked = items, ahead = 0, four = 0;  // four: the row of what is taken of a cell
        uint16_t asked = 0, taken = 0;  // cells of an item
        bool known = false;  // the item that is asked for
        Place next = {}, at = {};
        XCell cell = {};
#pragma HLS ARRAY_PARTITION variable=cell.exponent complete
        Values out = {};
        RowExponents made = {};
        uint32_t most[8] = {};  // of eight rows: a bit is set where it is in some magnitude
#pragma HLS ARRAY_PARTITION variable=most complete
        const auto step = [&] {
            if (four == 0) {
                if (!known && unasked) {
                    if (!walks_all && !ahead) RSN_WAIT_FOR_ANY(asks);
                    known = walks_all || !asks.empty();
                    if (walks_all) next = {static_cast<uint8_t>(items - unasked), 0};
                    else if (known) next = asks.read();
                }
                const bool asking = known, taking = asking ? ahead == cells_ahead << in_turn : ahead != 0;
                if (asking) {
                    const unsigned of_turn = in_turn && asked % 2 ? op.second_slot : op.slot, cell_of = asked >> turns;
                    const unsigned first = group_of(of_turn, next.column, op.rows) + 2 * next.group;
                    const unsigned address = x_word(first + cell_of / in_eight * 2, cell_of % in_eight);
                    reads << CellRead{false, static_cast<uint16_t>(address)};
                    const bool whole = asked + 1u == cells_of;
                    asked = whole ? 0 : static_cast<uint16_t>(asked + 1);
                    known = !whole;
                    unasked -= whole;
                }
                ahead = static_cast<uint8_t>(ahead + asking - taking);
                if (!taking) return;
                cell = cells.read();
                if (taken == 0) at = next;  // it is still asked for
            }
            // A norm of what is stored has the vectors of one block in use, and gets those of the next one.
            const unsigned c = stores ? at.column % 2 : at.column;
            if (stores && normalises && four == 0 && taken < piece_words && at.column + 1u < items)
                affine.put((at.column + 1) % 2, taken, constants);  // hls-allow state-order: they come by themselves
            const unsigned cell_of = taken >> turns, row = (in_turn ? taken & 2u : 0) + four;
            const unsigned i = cell_of % in_eight, half = i / 2 % 2, of_four = four_columns(2 * i), r = four % 2;
            const unsigned group = 2 * (at.group + cell_of / in_eight) + half;
            if (normalises) {
                const Statistics norm = norms[lane_rows * stores + 4 * group + four];
                const int64_t of_norm = within<exponent_bits>(norm.top) + within<exponent_bits>(norm.inverse.exponent);
                const int64_t of_gain = within<exponent_bits>(affine.first_exponent[c]) + 13 - guard;
                const auto exponent = static_cast<int>(within<exponent_bits>(of_norm + of_gain));
                const auto of_shift = static_cast<int>(within<exponent_bits>(affine.second_exponent[c]));
                const int top = larger(exponent + product_bits, of_shift + kept_bits) - sum_bits;
                const ScaledBy by = scaled_by<least>(norm.inverse.mantissa, top - exponent);
                const unsigned lower = to_right<15 + guard>(norm.top - cell.exponent[four]);
                const unsigned shift_by = both_ways<15, 14>(top - of_shift);
                const unsigned word = 4 * c + of_four / 4;
                const Shorts gains = affine.first[word], shifts = affine.second[word];
                uint32_t bits = 0;
                for (unsigned e = 0; e < 4; ++e) {
#pragma HLS UNROLL
                    const unsigned in_word = of_four % 4 * 4 + e;
                    const int64_t u = centred(cell.of[4 * four + e], lower, norm.mean, gains[in_word]);
                    const int64_t v = scaled<least, sum_bits>(u, by) + aligned<15, 14>(shifts[in_word], shift_by);
                    out[4 * r + e] = static_cast<int32_t>(within<30>(v));
                    bits |= static_cast<uint32_t>(magnitude(v));
                }
                uint32_t &of_row = most[4 * half + four];
                of_row = (i < 4 && i % 2 == 0 ? 0 : of_row) | bits;
                made.from[r] = static_cast<Exponent>(top);
                made.made[r] = static_cast<Exponent>(stored_exponent(of_row, top, 16));
            } else {
                made.from[0] = cell.exponent[row / 2 * 2];
                for (unsigned e = 0; e < 4; ++e) {
#pragma HLS UNROLL
                    out[e] = cell.of[8 * (row / 2) + e];
                    // The bits above these are not read.
                    out[4 + e] = (out[4 + e] & ~0xffff) | static_cast<uint16_t>(cell.of[8 * (row / 2) + 4 + e]);
                    made.made[e / 2] = cell.exponent[row / 2 * 2 + e / 2];
                }
            }
            if (r || !normalises) {
                values << out;
                made.to_rows = stores;
                made.each = sums;
                made.stored = !normalises;
                // hls-allow state-order: values wait for their exponents, not these for them
                if (sums || (i >= in_eight - 4 && i % 2)) exponents << made;
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

namespace {

// A beat of what rounds values to what is stored, once the exponents of their eight rows are known; n: its number. With
// one row in a cycle, the second one follows in the next, unless there is nothing to round. put: takes what becomes of
// the beat.
template <unsigned Rows, typename Put>
void pack(RowExponents (&of_rows)[4], bool &each, unsigned &n, bool &second, Values &in, Packed &out,
          hls::stream<RowExponents> &exponents, hls::stream<Values> &values, Put put) {
#pragma HLS INLINE
    if (!second) {
        if (each || (n < 8 && n % 4 < 2)) {
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

void pack_results(hls::stream<RowExponents> &exponents, hls::stream<Values> &values, hls::stream<Packed> &to) {
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
        pack<2>(of_rows, each, n, second, in, out, exponents, values,
                [&](const RowExponents &, const Packed &made) { to << made; });
    }
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
