// Send: rows of a product or queries, from a lane to its pairs of tiles. Heads: keys and values to the columns of
// pairs.
// SPDX-License-Identifier: Apache-2.0
#include "units.h"

namespace rsn::xnn8::pl {

namespace {

constexpr unsigned chunk_cells = 2 * groups * t_words / 2;  // of both tiles
constexpr unsigned record_beats = ChunkRecord::words / 4;
constexpr unsigned slice_keys = 32, slice_words = 64;
constexpr CellExponent no_more = 127;

// Groups of four rows of chunks.
struct ChunkGroup {
    uint8_t chunk = 0, group = 0;
    void next(unsigned groups) {
#pragma HLS INLINE
        const bool last = group + 1u == groups;
        group = last ? 0 : static_cast<uint8_t>(group + 1);
        chunk = static_cast<uint8_t>(chunk + last);
    }
};

// Beats of chunks: their cells, then their record. All chunks pass once, or once for each part of their rows. member:
// of four heads whose first rows become a cell.
struct ChunkBeat {
    uint8_t chunk = 0, beat = 0, part = 0, member = 0;
    void next(unsigned chunks, bool gathers) {
#pragma HLS INLINE
        const bool stays = gathers && member != 3;
        member = stays ? static_cast<uint8_t>(member + 1) : 0;
        if (stays) return;
        const bool last = beat + 1u == chunk_cells + record_beats, ends = last && chunk + 1u == chunks;
        beat = last ? 0 : static_cast<uint8_t>(beat + 1);
        chunk = ends ? 0 : static_cast<uint8_t>(chunk + last);
        part = static_cast<uint8_t>(part + ends);
    }
};

// Elements of four rows with other exponents; of rows of more than 8 bits, their high part or their low one, which has
// a sign: so the high one is rounded by the first bit below it.
template <typename Elements>
Elements aligned(const Elements &of, const int8_t (&exponent)[4], const CellExponent (&top)[4], const bool (&shows)[4],
                 unsigned low_bits, bool low) {
#pragma HLS INLINE
    constexpr unsigned columns = sizeof(Elements) / 4;
    Elements out;
    for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
        const int below = top[r] - exponent[r] + static_cast<int>(low_bits ? 8 - low_bits : 0);
        const unsigned by = shows[r] ? to_right<15>(below) : 16;  // which leaves nothing
        // to the right from where they are 2^8 as large: of a high part by 8 or more, and nothing is left of it at 16
        const bool nothing = by > (low ? 15 : 7);
        const unsigned right = low ? by & 15 : 8 | (by & 7);
        for (unsigned e = columns * r; e < columns * (r + 1); ++e) {
#pragma HLS UNROLL
            Shifted made(within<7>(of[e]) << 8);
            for (unsigned step = 8; step; step /= 2) {
#pragma HLS UNROLL
                made.by(step, right & step);
                made.twice &= (int64_t{1} << (8 + step)) - 1;  // eight bits, the one behind them, and steps ahead
            }
            const auto whole = static_cast<uint8_t>(made.made() + (low_bits && !low ? made.half() : made.up()));
            out[e] = static_cast<int8_t>(nothing ? 0 : whole);
        }
    }
    return out;
}

// Goes through heads of queries: the one of keys and values that each takes.
struct SharedHead {
    uint8_t member, head;  // of the heads that share one

    // skip: heads before the first one, fewer than share two: a narrow one may be the second of a block.
    SharedHead(unsigned skip, unsigned groups)
        : member(static_cast<uint8_t>(skip - (skip < groups ? 0 : groups))), head(skip >= groups) {
#pragma HLS INLINE
    }
    void next(unsigned groups) {
#pragma HLS INLINE
        const bool last = member + 1u == groups;
        member = last ? 0 : static_cast<uint8_t>(member + 1);
        head = static_cast<uint8_t>(head + last);
    }
};

// Columns of heads: 32 or 128, or 64 if it is neither.
struct HeadWidth {
    bool narrow, wide;
};

// Where the word of four rows of a head is in T. slot, rows: of the heads. k: of its columns. group: of a wide head
// those of its second block follow those of the first one.
inline unsigned head_cell(unsigned slot, unsigned rows, unsigned head, HeadWidth width, unsigned group, unsigned k) {
#pragma HLS INLINE
    const bool narrow = width.narrow;
    const unsigned first = group_of(slot, narrow ? head / 2 : width.wide ? 2 * head : head, rows);
    return (first + group) * t_words % t_depth + (narrow ? head % 2 * (t_words / 2) + k % (t_words / 2) : k);
}

// The largest exponents of heads from `slot` on, of all lanes, for `count` heads of queries, of which `groups` share
// one. skip: of those that share the first one, how many come before. members: heads that have one exponent together.
// before: rows of the sequence in other lanes. tell(exponent): those of this lane go there.
template <typename Tell>
void exponents_of(HeadWidth width, uint8_t groups, uint8_t skip, uint8_t members, uint8_t rows, uint8_t slot,
                  uint8_t count, bool has_rows, uint16_t before, uint16_t shown, hls::stream<CellRead> &reads,
                  hls::stream<TCell> &cells, Tell tell, hls::stream<CellExponent> &of_all,
                  CellExponent (&top)[pairs]) {
#pragma HLS INLINE
    ChunkGroup asked, taken;
    SharedHead shared(skip, groups);
    CellExponent most = lowest;
    uint8_t member = 0;
    const unsigned of_block = rows / 4u, of_head = of_block << width.wide;
    const auto address = [&](unsigned) {
        const unsigned at = head_cell(slot, rows, shared.head, width, asked.group, 0);
        asked.next(of_head);
        if (!asked.group) shared.next(groups);
        return at;
    };
    const int64_t all = within<4>(count) * within<6>(members);
    const auto groups_of_heads = static_cast<uint16_t>(has_rows ? within<8>(all) * within<6>(of_head) : 0);
    read_cells(reads, cells, groups_of_heads, address, [&](unsigned, const TCell &cell) {
        CellExponent of_cell = lowest;
        for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
            const bool shows = before + 4 * (taken.group - (taken.group < of_block ? 0 : of_block)) + r < shown;
            of_cell = static_cast<CellExponent>(larger(of_cell, shows ? cell.exponent[r] : lowest));
        }
        most = static_cast<CellExponent>(larger(taken.group || member ? most : lowest, of_cell));
        const bool ends = taken.group + 1u == of_head, ends_all = ends && member + 1u == members;
        if (ends_all) tell(most);
        member = ends_all ? 0 : static_cast<uint8_t>(member + ends);
        taken.next(of_head);
    });
nothing_of_heads:
    for (uint8_t head = 0; !has_rows && head < count; ++head) tell(lowest);
each_head:
    for (uint8_t head = 0; head < count; ++head) {
#pragma HLS PIPELINE II=ii::factors style=flp
        top[head] = of_all.read();
    }
}

}  // namespace

void send(hls::stream<Uop<Send::words>> &uops, unsigned lane, hls::stream<Token> &filled, hls::stream<Token> &free,
          hls::stream<CellRead> &x8_reads, hls::stream<X8Cell> &x8_cells, hls::stream<CellRead> &t_reads,
          hls::stream<TCell> &t_cells, hls::stream<LaneExponent> &own, hls::stream<CellExponent> &of_all,
          hls::stream<RowFactor> &factors, hls::stream<Token> &taken, hls::stream<Token> &safe,
          hls::stream<Beat128> to[2]) {
    bool before = false;  // Post has, or will have, results of this lane
    unsigned number = 0;
send_uops:
    for (;;) {
        const Uop<Send::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const Send op = Send::decode(uop.words);
        const bool has_rows = op.chunks && lane >= op.first && lane < unsigned{op.first} + op.lanes;
    send_waits:
        for (unsigned i = 0; i < op.wait + unsigned{op.each && op.chunks}; ++i) filled.read();
        if (!op.chunks) continue;
        const auto chunks = static_cast<uint16_t>(op.chunks);  // at most as many as T has blocks
        const auto heads = static_cast<uint8_t>(chunks);  // of queries
        ChunkRecord record;
        record.rows = op.rows;
        record.idle = !has_rows;  // its tiles stand beside others that share weights, keys and values
        ScoreShifts shifts[pairs];
        CellExponent top[2][pairs], top_of_rows[4][groups] = {};  // of queries, of keys; of rows
#pragma HLS ARRAY_PARTITION variable=top complete dim=0
#pragma HLS ARRAY_PARTITION variable=top_of_rows complete dim=1
        const unsigned in_front = (lane - op.first) % lanes;  // lanes of the sequence
        const auto before_lane = static_cast<uint16_t>(in_front * op.rows);
        const auto before_keys = static_cast<uint16_t>((op.spread ? lane : in_front) * op.key_rows);
        // Of heads that are rows, each lane has the first row alone.
        const uint16_t shown = op.grouped ? uint16_t{op.groups} : uint16_t{op.count};
        // A tile has half of the rows, or all rows and half of the columns.
        const auto second_row = static_cast<uint8_t>(op.wide ? 0 : op.rows / 2);
        const HeadWidth width = {op.narrow, op.wide};
        if (op.source == queries) {
        query_exponents:
            for (uint8_t part = 0; part < 2; ++part) {
                exponents_of(width, part && !op.grouped ? op.groups : 1, part ? op.skip : 0,
                             !part && op.grouped ? op.groups : 1, part ? op.key_rows : op.rows,
                             part ? op.keys_slot : op.slot, heads, has_rows || (part && op.spread),
                             part ? before_keys : before_lane, part ? op.keys : op.count, t_reads, t_cells,
                             // all keys are in this engine
                             [&](CellExponent most) { own << LaneExponent{most, part ? 0u : unsigned{op.others}}; },
                             of_all, top[part]);
            }
        query_shifts:
            for (uint8_t head = 0; head < heads; ++head)
                shifts[head] = score_shifts(top[0][head] + top[1][head], op.head_dim);
            record.kind = static_cast<uint8_t>(ChunkKind::QUERIES);
            record.heads = heads;
            record.lanes = op.spread ? static_cast<uint8_t>(lanes) : op.lanes;
            record.rows = static_cast<uint8_t>(op.rows << op.wide);
            record.narrow = op.narrow;
            record.wide = op.wide;
            record.keys = op.keys;
            record.causal = op.causal;
            record.key_rows = op.key_rows;
            record.first_row = static_cast<uint16_t>(op.first_row + before_lane);
        } else {
            record.columns = op.columns;
            record.shift0 = op.shift0;
            record.shift1 = op.shift1;
            record.shift2 = op.shift2;
            record.shift3 = op.shift3;
            record.shift4 = op.shift4;
            record.shift5 = op.shift5;
            record.shift6 = op.shift6;
            record.shift7 = op.shift7;
            if (!has_rows) {
                // It has no factors.
            } else if (op.source == from_t) {
                ChunkGroup asked, taken_group;
                const auto address = [&](unsigned) {
                    const unsigned at = (group_of(op.slot, asked.chunk, op.rows) + asked.group) * t_words;
                    asked.next(op.rows / 4u);
                    return at;
                };
                const auto count = static_cast<uint16_t>(within<9>(chunks) * within<5>(op.rows / 4));
                read_cells(t_reads, t_cells, count, address, [&](unsigned, const TCell &cell) {
                    for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
                        CellExponent &most = top_of_rows[r][taken_group.group];
                        if (!taken_group.chunk || cell.exponent[r] > most) most = cell.exponent[r];
                    }
                    taken_group.next(op.rows / 4u);
                });
            row_factors:
                for (uint8_t r = 0; r < op.rows; ++r) {
#pragma HLS PIPELINE II=ii::factors style=flp
                    factors << RowFactor{1 << 14, static_cast<int16_t>(top_of_rows[r % 4][r / 4] - 14 - op.low_bits)};
                }
            } else {
                const auto address = [&](unsigned i) { return x8_depth + i; };
                read_cells(x8_reads, x8_cells, op.rows, address, [&](unsigned, const X8Cell &cell) {
                    const auto byte = [&](unsigned n) { return static_cast<uint8_t>(cell.of[n]); };
                    factors << RowFactor{static_cast<uint16_t>(byte(0) | byte(1) << 8),
                                         static_cast<int16_t>(byte(2) | byte(3) << 8)};
                });
            }
        }
        const bool of_queries = op.source == queries, of_x8 = op.source == from_x8;
        const bool in_parts = of_x8 && op.low_bits;  // which X8 has
        const unsigned cut = of_x8 ? 0 : op.low_bits;
        ChunkBeat asked, sent;
        Bytes cell_before = {};
        Beat128 late = {};  // the second tile gets each beat one cycle after the first
        bool begun = false;
    send_beats:
        const uint8_t parts = op.low_bits ? 2 : 1;
        const unsigned fours = op.grouped ? (op.groups + 3u) / 4 : 0;
        const auto group_of_query = [&](unsigned n) { return n % 2 * second_row / 4 + n / 16; };
        const auto of_first_rows = [&](unsigned n) {
            return n / 16 < (op.wide ? op.rows / 4u : op.rows / 8u) && group_of_query(n) < fours;
        };
        TCell of_heads = {};
#pragma HLS ARRAY_PARTITION variable=of_heads.exponent complete
        // It ends with the last beat: to count all of them would take a product.
        for (uint8_t ahead = under_way; sent.part < parts; ahead = static_cast<uint8_t>(ahead - (ahead != 0))) {
#pragma HLS PIPELINE II=ii::cells style=flp
            // hls-allow state-order: what comes before is sent without it
            if (op.each && asked.chunk && !asked.part && !asked.beat) filled.read();
            const bool asks_heads = asked.beat < chunk_cells && of_first_rows(asked.beat);
            if (asked.part < parts && asked.beat < chunk_cells) {
                const unsigned n = asked.beat, group = of_queries ? group_of_query(n) : n / 8;
                const unsigned k = of_queries ? n / 2 % 8 : n % 2 * (t_words / 2) + n / 2 % 4;
                // nothing is made of more rows
                const unsigned in_rows = 4 * group < op.rows && !asks_heads ? group : 0;
                const bool second_block = of_queries && op.wide && n % 2;
                const unsigned there = in_rows + (second_block ? op.rows / 4 : 0);
                const unsigned before_chunk = asks_heads ? asked.chunk : 0;
                const auto head = static_cast<unsigned>(within<3>(before_chunk) * within<6>(op.groups)) + 4 * group;
                const unsigned block = in_parts ? 2 * asked.chunk + asked.part
                    : asks_heads ? head + asked.member : unsigned{asked.chunk};
                const HeadWidth of_block = {of_queries && op.narrow, of_queries && op.wide};
                const unsigned at = head_cell(in_parts ? 0 : op.slot, op.rows, block, of_block, there, k);
                const CellRead read = {false, static_cast<uint16_t>(at)};
                if (of_x8) x8_reads << read;
                else t_reads << read;
            }
            asked.next(chunks, asks_heads);
            if (ahead) continue;
            const unsigned chunk = sent.chunk, n = sent.beat;
            const bool last = chunk + 1u == chunks && sent.part + 1u == parts;
            // Results of different operations never wait side by side.
            // hls-allow state-order: Post ends what came before by itself
            if (n == 0 && last && !of_queries && before && has_rows) taken.read();
            const unsigned of_query = group_of_query(n);
            const bool gathers = n < chunk_cells && of_first_rows(n);
            Beat128 first, second;
            if (n < chunk_cells) {
                TCell cell = {};
                if (of_x8) cell.of = x8_cells.read().of;
                else cell = t_cells.read();
                TCell whole = cell;  // first rows of four heads, when the last of them has come
                for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
                    if (gathers) whole.exponent[r] = r == 3 ? cell.exponent[0] : of_heads.exponent[r];
                    if (sent.member == r) of_heads.exponent[r] = cell.exponent[0];
                    for (unsigned e = 0; e < 8; ++e) {
#pragma HLS UNROLL
                        if (gathers) whole.of[8 * r + e] = r == 3 ? cell.of[e] : of_heads.of[8 * r + e];
                        if (sent.member == r) of_heads.of[8 * r + e] = cell.of[e];
                    }
                }
                CellExponent tops[4];
                bool shows[4];
                for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
                    tops[r] = of_queries ? top[0][chunk] : of_x8 ? CellExponent{0} : top_of_rows[r][n / 8];
                    shows[r] = !of_queries || before_lane + 4 * of_query + r < shown;
                }
                const Bytes made = aligned(whole.of, whole.exponent, tops, shows, cut, cut && sent.part);
                const Beat128 of_this = half_of(made, 0), of_before = half_of(cell_before, 1);
                first = n % 2 ? of_before : of_this;
                second = n == 0 ? late : n % 2 ? of_this : of_before;
                if (!gathers || sent.member == 3) cell_before = made;
            } else {
                if (of_queries) {
                    record.head = static_cast<uint8_t>(chunk);
                    record.first_shift = static_cast<uint8_t>(shifts[chunk].first);
                    record.second_shift = static_cast<uint8_t>(shifts[chunk].second);
                } else {
                    record.kind = static_cast<uint8_t>(last ? ChunkKind::LAST : ChunkKind::ADD);
                    record.clears = !chunk && !sent.part;
                    record.up = !chunk && sent.part ? 8 : 0;
                }
                Word words[ChunkRecord::words];
                record.encode(words);
                for (unsigned w = 0; w < 4; ++w) {
#pragma HLS UNROLL
                    first[w] = n == chunk_cells ? words[w] : words[w + 4];
                }
                second = n == chunk_cells ? half_of(cell_before, 1) : late;
                late = first;
            }
            const bool goes = !gathers || sent.member == 3;
            if (goes) to[0] << first;
            if (goes && begun) to[1] << second;  // hls-allow state-order: neither tile waits for the other
            begun = begun || goes;
            sent.next(chunks, gathers);
        }
        put_behind(to[1], late);
        if (of_queries) {
            // The last slice of a column comes from one lane, and makes results in all of them: so all wait for all.
            if (before && has_rows) taken.read();
            put_behind(own, LaneExponent{lowest, 0});
            of_all.read();
            if (has_rows || op.spread) put_behind(safe, Token(has_rows));  // whether Post takes results
        }
        before = before || has_rows;
        put_behind(free, Token(1));
    }
    if (before) taken.read();
    // hls-allow state-order: the memories end by themselves
    x8_reads << CellRead{true, 0};
    t_reads << CellRead{true, 0};  // hls-allow state-order: the memories end by themselves
    put_behind(own, LaneExponent{no_more, 0});
}

namespace {

// The order of words of a slice: of keys octets of them first, of values eight columns; then heads that share a lane,
// then halves of wide heads, then the two groups of four keys.
struct SliceOrder {
    uint8_t pair = 0, part = 0, turn = 0, lower = 0, inner = 0, outer = 0;  // lower: lanes times turns

    bool begins() const {
#pragma HLS INLINE
        return !pair && !part && !turn && !inner && !outer;
    }
    // Returns whether the slice ends.
    bool next(bool wide, unsigned turns, unsigned inners, unsigned of_sequence) {
#pragma HLS INLINE
        const bool both = pair && (part || !wide), all = both && turn + 1u == turns;
        const bool whole = all && inner + 1u == inners;
        const bool ends = whole && (outer + 1u) * inners == 32;
        part = wide && (part ^ pair);
        pair = !pair;
        turn = all ? 0 : static_cast<uint8_t>(turn + both);
        lower = all ? 0 : static_cast<uint8_t>(lower + (both ? of_sequence : 0));
        inner = whole ? 0 : static_cast<uint8_t>(inner + all);
        outer = ends ? 0 : static_cast<uint8_t>(outer + whole);
        return ends;
    }
};

// Goes through the slices of a sequence: once for its keys, then for keys and values in turn. Of both halves of a
// slice, how many lanes are behind the first one of a column, and groups of rows in front of them.
struct SliceWalk {
    uint8_t behind[2], group[2], slice = 0;
    bool second = false, of_keys = true;
    const uint8_t groups, slices;

    SliceWalk(unsigned rows, unsigned lanes)
        : groups(static_cast<uint8_t>(rows / 4)),
          slices(static_cast<uint8_t>((rows * lanes + slice_keys - 1) / slice_keys)) {
#pragma HLS INLINE
        begin();
    }
    bool last() const {
#pragma HLS INLINE
        return second && !of_keys && slice + 1 == slices;
    }
    void next() {
#pragma HLS INLINE
        const bool both = second && of_keys, ends = slice + 1 == slices;
        of_keys = !both;
        if (both) return;
        slice = ends ? 0 : static_cast<uint8_t>(slice + 1);
        if (ends) {
            of_keys = true;
            second = true;
            begin();
            return;
        }
        for (unsigned half = 0; half < 2; ++half) {
#pragma HLS UNROLL
            group[half] = static_cast<uint8_t>(group[half] + slice_keys / 4);
            for (unsigned i = 0; i < 2; ++i) {
#pragma HLS UNROLL
                if (group[half] < groups) continue;
                group[half] = static_cast<uint8_t>(group[half] - groups);
                ++behind[half];
            }
        }
    }

  private:
    void begin() {
#pragma HLS INLINE
        behind[0] = group[0] = 0;
        behind[1] = groups == 4;
        group[1] = groups == 4 ? 0 : 4;
    }
};

// Words of slices: where they are, and in which order.
struct SliceWords {
    SliceWalk walk;
    SliceOrder at;
    uint8_t first_head[2];  // that a lane serves, of both halves of the slice
    const uint8_t own, lanes, turns;
    const bool wide;

    // own: the lane's number in the sequence.
    SliceWords(unsigned rows, unsigned own, unsigned lanes, unsigned turns, bool wide)
        : walk(rows, lanes), own(static_cast<uint8_t>(own)), lanes(static_cast<uint8_t>(lanes)),
          turns(static_cast<uint8_t>(turns)), wide(wide) {
#pragma HLS INLINE
        served();
    }
    unsigned half() const {
#pragma HLS INLINE
        return (walk.of_keys ? at.outer : at.inner) / 2 % 2;
    }
    unsigned head() const {
#pragma HLS INLINE
        return first_head[half()] + at.lower;
    }
    unsigned group() const {
#pragma HLS INLINE
        return walk.group[half()] + (walk.of_keys ? at.outer : at.inner) % 2 * 2 + at.pair;
    }
    void next() {
#pragma HLS INLINE
        const bool ends = at.next(wide, turns, walk.of_keys ? 8 : 4, lanes);
        if (!ends) return;
        walk.next();
        served();
    }

  private:
    void served() {
#pragma HLS INLINE
        for (unsigned half = 0; half < 2; ++half) {
#pragma HLS UNROLL
            const bool around = own < walk.behind[half];
            first_head[half] = static_cast<uint8_t>(own - walk.behind[half] + (around ? lanes : 0));
        }
    }
};

// What is made of a word of a slice that T was asked for. there: a column takes it; pair: the second one of two; ends:
// with it the last slice begins.
struct AskedWord {
    bool of_keys, pair, there, ends;
    uint8_t head, group;
};

}  // namespace

void heads(hls::stream<Uop<Heads::words>> &uops, unsigned lane, hls::stream<Token> &filled, hls::stream<Token> &free,
           hls::stream<CellRead> &reads, hls::stream<TCell> &cells, hls::stream<CellExponent> &own,
           hls::stream<CellExponent> &of_all, hls::stream<CellExponent> &of_values, hls::stream<Token> &safe,
           hls::stream<HalfBytes> &to) {
    unsigned number = 0;
heads_uops:
    for (;;) {
        const Uop<Heads::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const Heads op = Heads::decode(uop.words);
    heads_waits:
        for (unsigned i = 0; i < op.wait; ++i) filled.read();
        if (!op.heads) continue;
        const bool has_rows = lane >= op.first && lane < unsigned{op.first} + op.lanes;
        const auto before_lane = static_cast<uint16_t>((lane - op.first) % lanes * op.key_rows);
        const uint8_t slots[2] = {op.keys_slot, op.values};
        const HeadWidth width = {op.narrow, op.wide};
        CellExponent top[2][pairs];
#pragma HLS ARRAY_PARTITION variable=top complete dim=0
    heads_exponents:
        for (uint8_t part = 0; part < 2; ++part) {
            exponents_of(width, op.groups, op.skip, 1, op.key_rows, slots[part], op.heads, has_rows, before_lane,
                         op.keys, reads, cells, [&](CellExponent most) { own << most; }, of_all, top[part]);
        }
        uint8_t taken_by[pairs] = {};  // heads of keys and values, by columns of pairs
#pragma HLS ARRAY_PARTITION variable=taken_by complete
        SharedHead shared(op.skip, op.groups);
    heads_taken:
        for (uint8_t head = 0; has_rows && head < op.heads; ++head) {
            taken_by[head] = shared.head;
            shared.next(op.groups);
        }
        const auto turns = static_cast<uint8_t>((op.heads + op.lanes - 1u) / op.lanes);
        SliceWords asked(op.key_rows, lane - op.first, op.lanes, turns, op.wide);
        AskedWord under_way_words[under_way + 1] = {};  // the latest first
#pragma HLS ARRAY_PARTITION variable=under_way_words complete
        const auto slices = static_cast<uint8_t>(3 * asked.walk.slices);
        const auto words = static_cast<uint16_t>(has_rows ? (slices * within<4>(turns) * slice_words) << op.wide : 0);
        const auto end = static_cast<uint16_t>(words ? 2 * (words + under_way) : 0);
        TCell cell = {};
#pragma HLS ARRAY_PARTITION variable=cell.exponent complete
        // Of a cell, half of the columns in each cycle, one cycle late: of keys as they come, the other way round. A
        // word of values has those of the cell before in front of them: so its second half waits for the first one of
        // this cell.
        HalfBytes late[2] = {};  // what was made in the two cycles before, the latest first
#pragma HLS ARRAY_PARTITION variable=late complete
        bool waits = false, of_keys_before = false;
        bool results = false;  // Post of this lane takes some
    heads_words:
        for (uint16_t i = 0; words && i <= end; ++i) {
#pragma HLS PIPELINE II=ii::cells style=flp
            const bool second = i % 2;
            for (unsigned k = under_way; k; --k) {
#pragma HLS UNROLL
                if (!second) under_way_words[k] = under_way_words[k - 1];
            }
            if (!second && i / 2 < words) {
                const bool of_keys = asked.walk.of_keys;
                const unsigned k = of_keys ? asked.at.inner : asked.at.outer;
                const unsigned group = asked.group() + (asked.at.part ? op.key_rows / 4 : 0);
                const unsigned column = asked.head();
                const unsigned head = taken_by[column % pairs];
                const unsigned at = head_cell(slots[!of_keys], op.key_rows, head, width, group, k);
                const bool there = asked.walk.behind[asked.half()] < op.lanes && column < op.heads;
                under_way_words[0] = {of_keys, asked.at.pair != 0, there, asked.walk.last() && asked.at.begins(),
                                      static_cast<uint8_t>(column % pairs), static_cast<uint8_t>(asked.group())};
                asked.next();
                reads << CellRead{false, static_cast<uint16_t>(at)};
            }
            if (i / 2 < under_way) continue;
            if (!second && i != end) cell = cells.read();
            const AskedWord taken = under_way_words[under_way];
            const bool of_keys = taken.of_keys, whole = taken.pair && i != end;
            // hls-allow state-order: Post ends what came before by itself
            if (!second && i != end && taken.ends) results = safe.read() != 0;
            CellExponent tops[4];
            bool shows[4];
            HalfBytes four;
            for (unsigned r = 0; r < 4; ++r) {
#pragma HLS UNROLL
                tops[r] = top[!of_keys][taken.head];
                shows[r] = before_lane + 4 * taken.group + r < op.keys;
                for (unsigned c = 0; c < 4; ++c) {
#pragma HLS UNROLL
                    four[4 * r + c] = cell.of[8 * r + 4 * second + c];
                }
            }
            const HalfBytes made = aligned(four, cell.exponent, tops, shows, 0, false);
            const bool there = i != end && taken.there;
            const bool values = !of_keys && whole, turned = second ? of_keys : of_keys_before;
            HalfBytes out;  // 8 columns by 4 keys; 8 values by 4 columns
            for (unsigned e = 0; e < 16; ++e) {
#pragma HLS UNROLL
                const int8_t one = late[0][turned ? e % 4 * 4 + e / 4 : e];
                out[e] = !values ? one : second ? late[1][e] : made[e];
            }
            if (second || values ? there : waits) to << out;
            waits = second && there && (of_keys || whole);
            of_keys_before = of_keys;
            late[1] = late[0];
            late[0] = made;
        }
    heads_of_values:
        for (uint8_t head = 0; results && head < op.heads; ++head) of_values << top[1][head];
        free << Token(1);
    }
    reads << CellRead{true, 0};
    put_behind(own, no_more);
}

void rotate(hls::stream<Uop<Heads::words>> &uops, hls::stream<HalfBytes> from[lanes],
            hls::stream<HalfBytes> to[pairs]) {
rotate_uops:
    for (;;) {
        const Uop<Heads::words> uop = uops.read();
        if (uop.last) break;
        const Heads op = Heads::decode(uop.words);
        const unsigned turns = (op.heads + op.lanes - 1u) / op.lanes;
        uint8_t in_turn[pairs], turn_of[pairs], next_in_turn = 0, next_turn = 0;
#pragma HLS ARRAY_PARTITION variable=in_turn complete
#pragma HLS ARRAY_PARTITION variable=turn_of complete
    rotate_turns:
        for (unsigned i = 0; i < pairs; ++i) {
#pragma HLS UNROLL
            in_turn[i] = next_in_turn;
            turn_of[i] = next_turn;
            const bool whole = next_in_turn + 1u == op.lanes;
            next_in_turn = whole ? 0 : static_cast<uint8_t>(next_in_turn + 1);
            next_turn = static_cast<uint8_t>(next_turn + whole);
        }
        SliceWalk walk(op.key_rows, op.lanes);
        SliceOrder at;
        bool second = false;  // half of a word
        const unsigned halves = op.heads ? 6 * walk.slices * slice_words * turns << op.wide : 0;
    rotate_words:
        for (Countdown<20> left(halves); left.more(); left.next()) {
#pragma HLS PIPELINE II=ii::cells style=flp
            const bool of_keys = walk.of_keys;
            const unsigned behind = walk.behind[(of_keys ? at.outer : at.inner) / 2 % 2];
            HalfBytes words[lanes] = {};
#pragma HLS ARRAY_PARTITION variable=words complete
            for (unsigned l = 0; l < lanes; ++l) {
#pragma HLS UNROLL
                const unsigned own = (l + lanes - op.first) % lanes;  // of the sequence
                const unsigned first_head = own < behind ? own + op.lanes - behind : own - behind;
                const bool has_rows = own < op.lanes && behind < op.lanes;
                if (has_rows && first_head + at.lower < op.heads) words[l] = from[l].read();
            }
            for (unsigned head = 0; head < pairs; ++head) {
#pragma HLS UNROLL
                const unsigned there = in_turn[head] + behind;
                const unsigned l = (op.first + (there < op.lanes ? there : there - op.lanes)) % lanes;
                if (behind < op.lanes && head < op.heads && turn_of[head] == at.turn) to[head] << words[l];
            }
            second = !second;
            if (!second && at.next(op.wide, turns, of_keys ? 8 : 4, op.lanes)) walk.next();
        }
    }
}

void largest(hls::stream<CellExponent> from[lanes], hls::stream<CellExponent> to[lanes]) {
largest_exponents:
    for (;;) {
        CellExponent most = lowest;
        for (unsigned l = 0; l < lanes; ++l) {
#pragma HLS UNROLL
            const CellExponent one = from[l].read();
            if (one > most) most = one;
        }
        if (most == no_more) break;
        for (unsigned l = 0; l < lanes; ++l) {
#pragma HLS UNROLL
            to[l] << most;  // hls-allow state-order: all lanes have asked, and wait
        }
    }
}

// The same of all engines that have rows of the sequence. tell: the next engine, and the one behind it.
void largest_of_engines(hls::stream<LaneExponent> from[lanes], unsigned engine, hls::stream<CellExponent> tell[2],
                        hls::stream<CellExponent> &of_next, hls::stream<CellExponent> &of_second,
                        hls::stream<CellExponent> to[lanes]) {
largest_of_lanes:
    for (;;) {
        CellExponent most = lowest;
        unsigned others = 0;
        for (unsigned l = 0; l < lanes; ++l) {
#pragma HLS UNROLL
            const LaneExponent one = from[l].read();
            if (one.of > most) most = one.of;
            others = one.others;  // the same of all lanes
        }
        if (most == no_more) break;
        const unsigned twice = others << engines | others;  // so that engines follow each other without an end
        const bool next = twice >> (engine + 1) & 1, second = twice >> (engine + 2) & 1;
        if (next) put_behind(tell[0], most);
        if (second) put_behind(tell[1], most);
        // what others have told is read once they have been told
        const CellExponent of_others[2] = {next ? read_behind(of_next) : most, second ? read_behind(of_second) : most};
        for (unsigned i = 0; i < 2; ++i) {
#pragma HLS UNROLL
            if (of_others[i] > most) most = of_others[i];
        }
        for (unsigned l = 0; l < lanes; ++l) {
#pragma HLS UNROLL
            to[l] << most;  // hls-allow state-order: all lanes have asked, and wait
        }
    }
}

}  // namespace rsn::xnn8::pl
