// The control program of both tiles of a pair: a block of results, or a round of attention, in each call.
// SPDX-License-Identifier: Apache-2.0
#include "attention.h"

#include <utility>

alignas(rsn::xnn8::bytes) RSN_OF_TILE int32 rsn_xnn8_sums[rsn::xnn8::rows * rsn::xnn8::columns];

namespace rsn::xnn8 {

namespace {

struct Zeros {
    alignas(bytes) int32 of[vector_lanes] = {};
};
static_assert(sizeof(Zeros) + stack_for_calls <= stack_bytes);

// Everywhere half to even, and symmetric.
void set_modes() {
    aie::set_rounding(aie::rounding_mode::conv_even);
    aie::set_saturation(aie::saturation_mode::symmetric);
}

// The record behind a chunk.
struct Words {
    xnn::Word of[ChunkRecord::words];
    explicit Words(const int8 *chunk) {
        const auto record = aie::load_v<ChunkRecord::words>(reinterpret_cast<const int32 *>(chunk + rows * half));
        for (unsigned i = 0; i < ChunkRecord::words; ++i) of[i] = static_cast<xnn::Word>(record[i]);
    }
};
ChunkRecord record_of(const int8 *chunk) { return ChunkRecord::decode(Words(chunk).of); }

// Rows of which there are results.
unsigned rows_of(const ChunkRecord &record) { return record.idle ? 0 : record.rows; }

// By how much results of a column of pairs are shifted.
template <unsigned column>
int shift_of(const ChunkRecord &record) {
    static_assert(column < 8);
    const uint8 shifts[] = {record.shift0, record.shift1, record.shift2, record.shift3,
                            record.shift4, record.shift5, record.shift6, record.shift7};
    return shifts[column];
}

// Adds up the chunks of a block of results. Returns the record of the last one.
ChunkRecord sums_of_chunks(Chunk &a, Slice &b, const Zeros &zeros, ChunkRecord record) {
each_chunk:
    for (bool first = true;; first = false) {
        b.acquire();
        const bool clears = first || record.clears;
        multiply(
            a.data(), b.data(), clears ? same(zeros.of) : continued(rsn_xnn8_sums, record.up), rsn_xnn8_sums,
            rows_of(record) / 8, across
        );
        b.release();
        a.release();
        if (record.kind == static_cast<unsigned>(ChunkKind::LAST)) return record;
        a.acquire();
        record = record_of(a.data());
    }
}

// Hands the sums of a block of results on, eight in a cycle. of_lane: its rows.
void hand_on(const int32 *RSN_APART sums, unsigned of_lane, output_cascade<acc48> *out) {
each_block:
    for (unsigned n = 0; n < of_lane / 8 * across; ++n) {
        const int32 *RSN_APART from = sums + place(n);
    each_vector:
        for (unsigned i = 0; i < block_words; i += 8) chess_prepare_for_pipelining {
            writeincr(out, Sums(aie::load_v<8>(from + i)));
        }
    }
}

// Of a result of which a tile knows no sum of weights.
constexpr int32 first_word(unsigned column, bool odd) {
    return static_cast<int32>(number_of(column, odd) << number_at);
}

// Adds to each eight sums those of the first tile, by one instruction of eight products of 32 and 16 bits, and shifts.
void results(
    const int32 *RSN_APART sums, unsigned of_lane, input_cascade<acc48> *in, Result &at_even, Result &at_odd,
    unsigned column, int shift
) {
    const auto one = aie::broadcast<int16, 8>(1);
    constexpr unsigned blocks = 2 * result_rows / 8 * across;
each_window:
    for (unsigned first = 0; first < of_lane / 8 * across; first += blocks) {
        const bool odd = first / blocks % 2;
        Result &c = odd ? at_odd : at_even;
        c.acquire();
        *c.data() = first_word(column, odd);
        int16 *RSN_APART to = reinterpret_cast<int16 *>(c.data() + head_words);
    each_block:
        for (unsigned n = first; n < first + blocks; ++n) {
            const int32 *RSN_APART from = sums + place(n);
        each_vector:
            for (unsigned i = 0; i < block_words; i += vector_lanes) chess_prepare_for_pipelining {
                const Sums upper = aie::mac(readincr_v<8>(in), aie::load_v<8>(from + i), one);
                const Sums lower = aie::mac(readincr_v<8>(in), aie::load_v<8>(from + i + 8), one);
                aie::store_v(to, aie::concat(upper, lower).to_vector<int16>(shift));
                to += vector_lanes;
            }
        }
        c.release();
    }
}

// Takes the queries of a round, and keeps those of the column. Returns whether there were any. The first chunk of them
// is acquired before. second: of a pair of tiles.
bool take_queries(Chunk &a, unsigned column, bool second, int32 *sums, Round &round) {
    int8 *RSN_APART to = reinterpret_cast<int8 *>(sums + at::queries);
    bool own = false;
    const unsigned heads = record_of(a.data()).heads;
each_head:
    for (unsigned head = 0; head < heads; ++head) {
        if (head) a.acquire();
        const ChunkRecord record = record_of(a.data());
        if (record.head == column) {
            own = true;
            constexpr int nothing_left = 31;  // products with log2 e have 30 bits
            const int shift = record.second_shift > nothing_left ? nothing_left : record.second_shift;
            const unsigned first = record.first_row + (second && !record.wide ? record.rows / 2 : 0);
            round = {record.rows, record.key_rows, record.lanes, record.keys, first, record.first_shift, shift,
                     record.narrow, record.wide, record.causal, record.idle};
            const int8 *RSN_APART from = a.data();
        each_vector:
            for (unsigned i = 0; i < half * columns; i += bytes) chess_prepare_for_pipelining {
                const bool counts = !record.narrow || i / bytes % across < across / 2;
                aie::store_v(to + i, counts ? aie::load_v<bytes>(from + i) : aie::zeros<int8, bytes>());
            }
        }
        a.release();
    }
    return own;
}

// Writes results of attention, eight words at a time.
struct Writer {
    Result *now, *next;
    int32 first_word, next_first_word;
    unsigned at = 0;
    void operator()(const aie::vector<int32, head_words> &words) {
        if (!at) now->acquire();
        aie::store_v(now->data() + at, words);
        if (!at) *now->data() += first_word;
        at += head_words;
        if (at < result_words) return;
        now->release();
        std::swap(now, next);
        std::swap(first_word, next_first_word);
        at = 0;
    }
};

// Lets go of a chunk of a product that has no results in this column.
bool passes(Chunk &a, const ChunkRecord &record, unsigned column) {
    if (column < record.columns) return false;
    a.release();
    return true;
}

bool queries_follow(const ChunkRecord &record) { return record.kind == static_cast<unsigned>(ChunkKind::QUERIES); }

}  // namespace

template <unsigned column>
void pair_first(Chunk &a, Slice &b, Handed &handed, output_cascade<acc48> *out) {
    const Zeros zeros;
    set_modes();
    a.acquire();
    const ChunkRecord record = record_of(a.data());
    if (!queries_follow(record)) {
        if (passes(a, record, column)) return;
        hand_on(rsn_xnn8_sums, rows_of(sums_of_chunks(a, b, zeros, record)), out);
        return;
    }
    Round round{};
    if (!take_queries(a, column, false, rsn_xnn8_sums, round)) return;
    First place{out, handed};
    attend(place, b, round, column, zeros.of, rsn_xnn8_sums);
    give(rsn_xnn8_sums, round.own(), [&](const aie::vector<int32, 8> &words) { writeincr(out, Sums(words)); });
}

template <unsigned column>
void pair_last(Chunk &a, Slice &b, input_cascade<acc48> *in, Hands &hands, Result &at_even, Result &at_odd) {
    const Zeros zeros;
    set_modes();
    a.acquire();
    const ChunkRecord record = record_of(a.data());
    if (!queries_follow(record)) {
        if (passes(a, record, column)) return;
        const ChunkRecord last = sums_of_chunks(a, b, zeros, record);
        results(rsn_xnn8_sums, rows_of(last), in, at_even, at_odd, column, shift_of<column>(last));
        return;
    }
    Round round{};
    if (!take_queries(a, column, true, rsn_xnn8_sums, round)) return;
    Last place{in, hands};
    attend(place, b, round, column, zeros.of, rsn_xnn8_sums);
    Writer write{&at_even, &at_odd, first_word(column, false), first_word(column, true)};
    const unsigned words = round.own() / result_rows * result_words;
    for (unsigned i = 0; i < words; i += 8) write(readincr_v<8>(in).to_vector<int32>());
    give(rsn_xnn8_sums, round.own(), [&](const aie::vector<int32, 8> &eight) { write(eight); });
}

// One for each column of pairs.
#define RSN_COLUMN(column)                                                                 \
    template void pair_first<column>(Chunk &, Slice &, Handed &, output_cascade<acc48> *); \
    template void pair_last<column>(Chunk &, Slice &, input_cascade<acc48> *, Hands &, Result &, Result &);
RSN_COLUMN(0) RSN_COLUMN(1) RSN_COLUMN(2) RSN_COLUMN(3)
RSN_COLUMN(4) RSN_COLUMN(5) RSN_COLUMN(6) RSN_COLUMN(7)

}  // namespace rsn::xnn8
