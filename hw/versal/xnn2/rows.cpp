// X: the rows of a lane. One port takes tiles, adds them to what is there, and makes statistics of rows; one sends tiles,
// normalised where asked; a second read port stores them. The rows and their statistics are in two processes of their
// own, which the ports tell where to write and read: HLS gives an array to two processes at most.
//
// A beat a cycle in and out, a word a cycle to DDR, which applies the norm. With statistics a beat comes in two cycles.
// SPDX-License-Identifier: Apache-2.0
#include "../pl/dataflow.h"
#include "units.h"

namespace rsn::xnn {

namespace {

constexpr unsigned slots = buffers::XIn_slots;

// What the fields of XIn and XOut say.
enum class From : std::uint8_t { result, scratch };
enum class To : std::uint8_t { lane, pair, result, other };
enum class Exchange : std::uint8_t { none, own, empty };

constexpr unsigned bank_of(unsigned slot) { return slot % slots / bank_tiles; }

// Where a beat or word of a slot is.
template <template <unsigned> class Shape>
RowPlace place_of(unsigned slot, unsigned row, unsigned col) {
#pragma HLS INLINE
    constexpr unsigned depth = depth_of(bank_tiles * tile, tile);
    const Place<Shape, tile, plain> in_bank(slot % bank_tiles * tile + row, col);
    RowPlace at;
    at.bank = static_cast<std::uint8_t>(bank_of(slot));
    at.swapped = in_bank.swap;
    for (unsigned b = 0; b < plain; ++b) {
#pragma HLS UNROLL
        at.address[b] = static_cast<std::uint16_t>(in_bank.address(b, depth));
    }
    return at;
}

// Sums of eight columns of each row of a beat, of the four beats that make 32 columns, of what each element is apart from
// the first one of these columns, and of squares of that. Since the first element is one of those that are counted, it is
// at most as far from their mean as the root of their number times their deviation: no difference of large sums is taken.
enum { apart, squared, kinds };
struct Parts {
    float of[kinds][patch_rows][groups];
    float first[patch_rows];
};

// Columns of the group of 32 from `col` on that count.
constexpr unsigned counted_in(unsigned col, unsigned valid) {
    return valid <= col ? 0 : valid - col < group_cols ? valid - col : group_cols;
}

// A tile into a slot. counts: with statistics of its valid columns, of 32 at a time. Two rows of a beat are counted in a
// round. In the rounds of the four beats behind those of 32 columns, their sums are added up, one in a round.
void take(const XIn &op, unsigned slot, bool counts, bool begins, unsigned valid, hls::stream<RowWrite> &writes,
          hls::stream<StatisticPart> &made, hls::stream<RowCells> &answers, hls::stream<Beat> &scratch,
          hls::stream<Beat> &result) {
#pragma HLS INLINE
    constexpr unsigned lines = patch_rows / rounds::statistics;
    static_assert(rounds::statistics * groups == kinds * patch_rows, "a sum of a row in each round of four beats");
    const unsigned rest = valid % group_cols;
    const float of_all = 1.0f / group_cols, of_rest = 1.0f / static_cast<float>(rest ? rest : 1);
    Parts now = {}, before = {};
#pragma HLS ARRAY_PARTITION variable=now.of complete dim=0
#pragma HLS ARRAY_PARTITION variable=now.first complete
#pragma HLS ARRAY_PARTITION variable=before.of complete dim=0
#pragma HLS ARRAY_PARTITION variable=before.first complete
    float less[patch_rows] = {};
#pragma HLS ARRAY_PARTITION variable=less complete
    Beat beat;
take_beats:
    for (Rounds at(counts ? rounds::statistics : 1, beats_per_tile + (counts ? asked_ahead + groups : 0)); at.more();
         at.next()) {
#pragma HLS PIPELINE II=ii::take style=flp
        if (at.begins() && at.beat < beats_per_tile) {
            RowWrite write;
            write.last = false;
            write.add = op.add;
            write.answered = counts;
            write.ends = at.beat + 1u == beats_per_tile;
            write.at = place_of<Beat4x8>(slot, right_row(at.beat), right_col(at.beat));
            const Beat in = static_cast<From>(op.source) == From::scratch ? scratch.read() : result.read();
            cells_of<by_rows, plain>(in, write.cells.of);
            writes << write;
        }
        if (!counts || at.beat < asked_ahead) continue;
        const unsigned t = at.beat - asked_ahead, group = t % groups;
        if (at.begins() && group == 0) before = now;
        if (t < beats_per_tile) {
            if (at.begins()) {
                const RowCells cells = answers.read();
                beat = beat_of<by_rows, plain>(cells.of);
            }
            for (unsigned r = 0; r < lines; ++r) {
#pragma HLS UNROLL
                const unsigned row = at.round * lines + r;
                if (group == 0) now.first[row] = beat[patch_cols * r];
                float of_row[patch_cols], squares[patch_cols];
                for (unsigned c = 0; c < patch_cols; ++c) {
#pragma HLS UNROLL
                    const float from = beat[patch_cols * r + c], pivot = now.first[row];
                    const float distance = c + r == 0 ? add_in_fabric(from, -pivot) : from - pivot;
                    of_row[c] = right_col(t) + col_of(c) < valid ? distance : 0.0f;
                }
                for (unsigned c = 0; c < patch_cols; c += 2) {
#pragma HLS UNROLL
                    squares[c / 2] = fmadd(of_row[c], of_row[c], of_row[c + 1] * of_row[c + 1]);
                }
                now.of[apart][row][group] = sum(of_row);
                now.of[squared][row][group] = (squares[0] + squares[1]) + (squares[2] + squares[3]);
            }
            shift<elements_of(rounds::statistics)>(beat);
        }
        if (t < groups) continue;
        const unsigned n = group * rounds::statistics + at.round, kind = n / patch_rows, r = n % patch_rows;
        const unsigned first = (t - groups) / groups * groups, col = right_col(first), count = counted_in(col, valid);
        const float(&four)[groups] = before.of[kind][r];
        const float all = (four[0] + four[1]) + (four[2] + four[3]);
        if (kind == apart) less[r] = all;
        if (kind == squared && count) {
            const float mean = less[r] * (count == group_cols ? of_all : of_rest);
            StatisticPart part;
            part.last = false;
            part.begins = begins && col == 0;
            part.ahead = false;
            part.bank = static_cast<std::uint8_t>(bank_of(slot));
            part.row = static_cast<std::uint8_t>(right_row(first) + r);
            part.of = {static_cast<float>(count), before.first[r] + mean, fmadd(-less[r], mean, all)};
            made << part;
        }
    }
}

// Of no columns at all.
void forget(unsigned bank, hls::stream<StatisticPart> &made) {
#pragma HLS INLINE
forget_rows:
    for (unsigned row = 0; row < tile; ++row) {
#pragma HLS PIPELINE II=1 style=flp
        made << StatisticPart{false, true, false, static_cast<std::uint8_t>(bank), static_cast<std::uint8_t>(row), {}};
    }
}

// Asks for the statistics of all rows of a bank, and gives them to `take` in order.
template <typename Take>
void all_rows(unsigned bank, hls::stream<StatisticRead> &asked, hls::stream<RowStatistic> &statistics, const Take &take) {
#pragma HLS INLINE
all_rows_loop:
    for (unsigned n = 0; n < tile + asked_ahead; ++n) {
#pragma HLS PIPELINE II=ii::rows style=flp
        if (n < tile) asked << StatisticRead{false, static_cast<std::uint8_t>(bank), static_cast<std::uint8_t>(n)};
        if (n >= asked_ahead) take(n - asked_ahead, statistics.read());
    }
}

// The factors of all rows.
struct Norm {
    Rows times, plus;
};

void prepare(unsigned bank, const XOut &op, hls::stream<StatisticRead> &asked, hls::stream<RowStatistic> &statistics,
             Norm &norm) {
#pragma HLS INLINE
    all_rows(bank, asked, statistics, [&](unsigned row, const RowStatistic &of) {
        const unsigned r = row % patch_rows, g = row / patch_rows;
        const Factors factors(of.mean, of.squares, of.count, 1.0f / of.count, op.eps, op.rms);
        norm.times[r][g] = factors.times;
        norm.plus[r][g] = factors.plus;
    });
}

// To the other lane, and from it. Functions of their own: in one state of one function the two would wait for each
// other, and since the other lane does the same, for ever (UG1399, HLS Fence Library).
void send_statistics(unsigned bank, bool own, hls::stream<StatisticRead> &asked, hls::stream<RowStatistic> &statistics,
                     hls::stream<RowStatistic> &to) {
#pragma HLS INLINE off
    all_rows(bank, asked, statistics, [&](unsigned, const RowStatistic &of) { to << (own ? of : RowStatistic{}); });
}
// Both lanes join the even one's first, so that they get the same numbers. own: theirs are joined with what is there;
// otherwise XStore may still read that.
void receive_statistics(unsigned bank, bool own, bool odd, hls::stream<RowStatistic> &from,
                        hls::stream<StatisticPart> &joined) {
#pragma HLS INLINE off
receive_rows:
    for (unsigned row = 0; row < tile; ++row) {
#pragma HLS PIPELINE II=ii::rows style=flp
        const RowStatistic of = from.read();
        if (own)
            joined << StatisticPart{
                false, false, odd, static_cast<std::uint8_t>(bank), static_cast<std::uint8_t>(row), of};
    }
}

// What a port says last, in a state of its own.
template <typename Element>
void put(const Element &last, hls::stream<Element> &to) {
#pragma HLS INLINE off
    to << last;
}

void x_out(bool odd, hls::stream<Uop<XOut::words>> &uops, hls::stream<RowRead> &reads,
           hls::stream<StatisticPart> &joined, hls::stream<StatisticRead> &asked, hls::stream<RowCells> &rows,
           hls::stream<RowStatistic> &statistics, hls::stream<Token> &filled, hls::stream<RowStatistic> &from_other,
           hls::stream<Token> &free, hls::stream<RowStatistic> &to_other, hls::stream<Beat> &mesh_even,
           hls::stream<Beat> &mesh_odd, hls::stream<Beat> &c) {
#pragma HLS INLINE
    Norm norm = {};
#pragma HLS ARRAY_PARTITION variable=norm.times complete dim=1
#pragma HLS ARRAY_PARTITION variable=norm.plus complete dim=1
    unsigned number = 0;
x_out_uops:
    for (;;) {
        const Uop<XOut::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const XOut op = XOut::decode(uop.words);
        wait_for(op.wait, filled);
        const unsigned bank = bank_of(op.slot);
        const Exchange exchange = static_cast<Exchange>(op.share);
        if (exchange != Exchange::none) {
            send_statistics(bank, exchange == Exchange::own, asked, statistics, to_other);
            receive_statistics(bank, exchange == Exchange::own, odd, from_other, joined);
        }
        if (op.normalise) prepare(bank, op, asked, statistics, norm);
        const To to = static_cast<To>(op.to);
        const bool own = to == To::lane || to == To::pair, pair = to == To::pair || to == To::other;
        const bool to_even = odd ? pair : own, to_odd = odd ? own : pair, result = to == To::result;
        const std::uint32_t beats = op.tiles * op.times * beats_per_tile;
        // The beats that are asked for, and those that leave: so many behind that answers have come.
        Countdown<22> to_ask(beats), left(beats ? beats + asked_ahead : 0);
        unsigned slot = 0, asking = 0, leaving = 0, ahead = 0;
    x_out_beats:
        for (; left.more(); left.next()) {
#pragma HLS PIPELINE II=ii::send style=flp
            if (to_ask.more()) {
                const unsigned row = result ? right_row(asking) : left_row(asking);
                const unsigned col = result ? right_col(asking) : left_col(asking);
                reads << RowRead{false, place_of<Beat4x8>(op.slot + slot, row, col)};
                to_ask.next();
                asking = (asking + 1) % beats_per_tile;
                if (asking == 0) slot = slot + 1u == op.tiles ? 0 : slot + 1;
            }
            if (ahead < asked_ahead) {
                ++ahead;
                continue;
            }
            const RowCells cells = rows.read();
            Beat beat = beat_of<by_rows, plain>(cells.of);
            const unsigned row = result ? right_row(leaving) : left_row(leaving);
            for (unsigned n = 0; n < beat_floats; ++n) {
#pragma HLS UNROLL
                const unsigned r = n / patch_cols, g = row / patch_rows;
                // x * 1 - 0 is x: fewer bits are chosen than of a beat
                beat[n] = fmadd(beat[n], op.normalise ? norm.times[r][g] : 1.0f, op.normalise ? norm.plus[r][g] : -0.0f);
            }
            if (result) c << beat;
            if (to_even) mesh_even << beat;
            if (to_odd) mesh_odd << beat;
            leaving = (leaving + 1) % beats_per_tile;
        }
        free << Token(1);
    }
    put(RowRead{true, {}}, reads);
    put(StatisticRead{true, 0, 0}, asked);
    put(StatisticPart{true, false, false, 0, 0, {}}, joined);
}

RowCells cells_at(const RowBank &bank, const RowPlace &at) {
#pragma HLS INLINE
    RowCells lying, cells;
#pragma HLS ARRAY_PARTITION variable=lying.of complete
#pragma HLS ARRAY_PARTITION variable=cells.of complete
    for (unsigned ram = 0; ram < plain; ++ram) {
#pragma HLS UNROLL
        lying.of[ram] = bank[ram][at.address[ram]];
    }
    for (unsigned k = 0; k < plain; ++k) {
#pragma HLS UNROLL
        cells.of[k] = lying.of[at.swapped ? plain - 1 - k : k];
    }
    return cells;
}

// Upper bounds of the depths of the two loops below: a write is in the memory this many cycles after it was taken, and
// statistics are joined this many cycles after their part was taken. Python's LOOPS["rows"].fill is such a bound, too.
constexpr unsigned write_cycles = 40;
constexpr unsigned join_cycles = 96;

// What a port that reads has asked for, and waits for. on: the port has not ended.
template <typename Read>
struct Asked {
    Read read = {};
    bool on = true, waits = false;

    void look(hls::stream<Read> &from) {
#pragma HLS INLINE
        if (waits || from.empty()) return;
        read = from.read();
        on = !read.last;
        waits = on;
    }
    bool open() const {
#pragma HLS INLINE
        return on || waits;
    }
};

}  // namespace

// In each cycle a tile's next cells are written, also as a sum with what is there, and each bank is read once more.
void x_rows(hls::stream<RowWrite> &writes, hls::stream<RowRead> &sends, hls::stream<RowRead> &stores,
            hls::stream<RowCells> &answers, hls::stream<Token> &written, hls::stream<RowCells> &sent,
            hls::stream<RowCells> &stored) {
    RSN_MEMORY(RowBank, first);
    RSN_MEMORY(RowBank, second);
#pragma HLS ARRAY_PARTITION variable=first complete dim=1
#pragma HLS ARRAY_PARTITION variable=second complete dim=1
#pragma HLS BIND_STORAGE variable=first type=ram_s2p impl=uram
#pragma HLS BIND_STORAGE variable=second type=ram_s2p impl=uram
    bool in_on = true;
    Asked<RowRead> send, store;
#pragma HLS ARRAY_PARTITION variable=send.read.at.address complete
#pragma HLS ARRAY_PARTITION variable=store.read.at.address complete
    bool ended[write_cycles] = {};
#pragma HLS ARRAY_PARTITION variable=ended complete
    Counter under_way = 0;
x_rows_cycles:
    while (in_on || send.open() || store.open() || under_way) {
#pragma HLS PIPELINE II=ii::rows style=flp
#pragma HLS DEPENDENCE variable=first type=inter dependent=false
#pragma HLS DEPENDENCE variable=second type=inter dependent=false
        if (!send.waits && !store.waits && !under_way) RSN_WAIT_FOR_ANY(writes, sends, stores);
        RowWrite write = {};
#pragma HLS ARRAY_PARTITION variable=write.at.address complete
#pragma HLS ARRAY_PARTITION variable=write.cells.of complete
        bool writing = false;
        if (!writes.empty()) {
            write = writes.read();
            in_on = !write.last;
            writing = in_on;
        }
        send.look(sends);
        store.look(stores);
        // A bank has one port that reads: sums come first, then what MMEs wait for.
        const bool adds = writing && write.add;
        const RowPlace &sent_at = send.read.at, &stored_at = store.read.at;
        const bool sends_now = send.waits && !(adds && write.at.bank == sent_at.bank);
        const bool stores_now = store.waits && !(adds && write.at.bank == stored_at.bank) &&
                                !(sends_now && sent_at.bank == stored_at.bank);
        const RowPlace &of_first = sends_now && !sent_at.bank ? sent_at : stored_at;
        const RowPlace &of_second = sends_now && sent_at.bank ? sent_at : stored_at;
        const RowCells in_first = cells_at(first, adds && !write.at.bank ? write.at : of_first);
        const RowCells in_second = cells_at(second, adds && write.at.bank ? write.at : of_second);
#pragma HLS ARRAY_PARTITION variable=in_first.of complete
#pragma HLS ARRAY_PARTITION variable=in_second.of complete
        if (writing) {
            for (unsigned k = 0; k < plain; ++k) {
#pragma HLS UNROLL
                const Cell<plain> old = write.at.bank ? in_second.of[k] : in_first.of[k];
                for (unsigned i = 0; i < beat_floats / plain; ++i) {
#pragma HLS UNROLL
                    const float sum = old[i] + write.cells.of[k][i];
                    if (write.add) write.cells.of[k][i] = sum;
                }
            }
            for (unsigned ram = 0; ram < plain; ++ram) {
#pragma HLS UNROLL
                const Cell<plain> cell = write.cells.of[write.at.swapped ? plain - 1 - ram : ram];
                if (write.at.bank) second[ram][write.at.address[ram]] = cell;
                else first[ram][write.at.address[ram]] = cell;
            }
            if (write.answered) answers << write.cells;
        }
        if (sends_now) sent << (sent_at.bank ? in_second : in_first);
        if (stores_now) stored << (stored_at.bank ? in_second : in_first);
        send.waits = send.waits && !sends_now;
        store.waits = store.waits && !stores_now;
        // Tokens leave once what they tell of has been written.
        if (ended[write_cycles - 1]) written << Token(1);
        for (unsigned n = write_cycles - 1; n > 0; --n) {
#pragma HLS UNROLL
            ended[n] = ended[n - 1];
        }
        ended[0] = writing && write.ends;
        if (ended[0]) under_way = write_cycles;
        else if (under_way) --under_way;
    }
}

// Statistics of the rows of both banks: joined with those of further columns (Chan, Golub and LeVeque 1979: no difference
// of large sums is taken), and read once no part of their bank is under way.
void x_statistics(hls::stream<StatisticPart> &made, hls::stream<StatisticPart> &joined,
                  hls::stream<StatisticRead> &sends, hls::stream<StatisticRead> &stores,
                  hls::stream<RowStatistic> &sent, hls::stream<RowStatistic> &stored) {
    RowStatistic of_rows[row_banks * tile] = {};
#pragma HLS AGGREGATE variable=of_rows
#pragma HLS BIND_STORAGE variable=of_rows type=ram_s2p impl=lutram
    bool in_on = true, join_on = true;
    Asked<StatisticRead> send, store;
    Counter under_way[row_banks] = {};
#pragma HLS ARRAY_PARTITION variable=under_way complete
x_statistics_cycles:
    while (in_on || join_on || send.open() || store.open()) {
#pragma HLS PIPELINE II=ii::rows style=flp
#pragma HLS DEPENDENCE variable=of_rows type=inter direction=RAW distance=128 dependent=true
        if (!send.waits && !store.waits) RSN_WAIT_FOR_ANY(made, joined, sends, stores);
        StatisticPart part = {};
        bool joins = false;
        if (!made.empty()) {
            part = made.read();
            in_on = !part.last;
            joins = in_on;
        } else if (!joined.empty()) {
            part = joined.read();
            join_on = !part.last;
            joins = join_on;
        }
        send.look(sends);
        store.look(stores);
        const bool sends_now = send.waits && !joins && !under_way[send.read.bank];
        const bool stores_now = store.waits && !joins && !sends_now && !under_way[store.read.bank];
        const unsigned bank = joins ? part.bank : sends_now ? send.read.bank : store.read.bank;
        const unsigned row = joins ? part.row : sends_now ? send.read.row : store.read.row;
        const RowStatistic there = of_rows[bank * tile + row];
        const RowStatistic base = part.begins ? RowStatistic{} : there;
        const RowStatistic one = part.ahead ? part.of : base, other = part.ahead ? base : part.of;
        const float count = one.count + other.count, share = count == 0.0f ? 0.0f : other.count / count;
        const float less = other.mean - one.mean;
        RowStatistic all;
        all.count = count;
        all.mean = fmadd(less, share, one.mean);
        all.squares = fmadd(less * less, one.count * share, one.squares + other.squares);
        if (joins) of_rows[bank * tile + row] = all;
        if (sends_now) sent << there;
        if (stores_now) stored << there;
        send.waits = send.waits && !sends_now;
        store.waits = store.waits && !stores_now;
        for (unsigned b = 0; b < row_banks; ++b) {
#pragma HLS UNROLL
            if (joins && bank == b) under_way[b] = join_cycles;
            else if (under_way[b]) --under_way[b];
        }
    }
}

void x_in(hls::stream<Uop<XIn::words>> &uops, hls::stream<RowWrite> &writes, hls::stream<StatisticPart> &made,
          hls::stream<RowCells> &answers, hls::stream<Token> &written, hls::stream<Token> &free,
          hls::stream<Token> &stored, hls::stream<Beat> &t_odd, hls::stream<Beat> &c, hls::stream<Token> &filled,
          hls::stream<Token> &store) {
    unsigned number = 0;
x_in_uops:
    for (;;) {
        const Uop<XIn::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const XIn op = XIn::decode(uop.words);
        wait_for(op.wait, free);
        wait_for(op.stored, stored);
    x_in_tiles:
        for (unsigned i = 0; i < op.tiles; ++i) {
            const unsigned first = i * tile, left = op.columns > first ? op.columns - first : 0;
            const unsigned valid = left < tile ? left : tile;
            const bool begins = op.statistics == 1 && i == 0, counts = op.statistics && valid;
            take(op, op.slot + i, counts, begins, valid, writes, made, answers, t_odd, c);
            if (begins && !counts) forget(bank_of(op.slot + i), made);
            // hls-allow state-order: the token that is put is the one that was got, which comes whatever waits for it
            filled << written.read();
        }
        if (op.store) store << Token(1);
    }
    RowWrite end = {};
    end.last = true;
    put(end, writes);
    put(StatisticPart{true, false, false, 0, 0, {}}, made);
}

void x_out_even(hls::stream<Uop<XOut::words>> &uops, hls::stream<RowRead> &reads, hls::stream<StatisticPart> &joined,
                hls::stream<StatisticRead> &asked, hls::stream<RowCells> &rows, hls::stream<RowStatistic> &statistics,
                hls::stream<Token> &filled, hls::stream<RowStatistic> &from_other, hls::stream<Token> &free,
                hls::stream<RowStatistic> &to_other, hls::stream<Beat> &even, hls::stream<Beat> &odd,
                hls::stream<Beat> &c) {
    x_out(false, uops, reads, joined, asked, rows, statistics, filled, from_other, free, to_other, even, odd, c);
}

void x_out_odd(hls::stream<Uop<XOut::words>> &uops, hls::stream<RowRead> &reads, hls::stream<StatisticPart> &joined,
               hls::stream<StatisticRead> &asked, hls::stream<RowCells> &rows, hls::stream<RowStatistic> &statistics,
               hls::stream<Token> &filled, hls::stream<RowStatistic> &from_other, hls::stream<Token> &free,
               hls::stream<RowStatistic> &to_other, hls::stream<Beat> &even, hls::stream<Beat> &odd,
               hls::stream<Beat> &c) {
    x_out(true, uops, reads, joined, asked, rows, statistics, filled, from_other, free, to_other, even, odd, c);
}

void x_store(hls::stream<Uop<XStore::words>> &uops, hls::stream<RowRead> &reads, hls::stream<StatisticRead> &asked,
             hls::stream<RowCells> &rows, hls::stream<RowStatistic> &statistics, hls::stream<Token> &filled,
             hls::stream<Stored> &ddr, hls::stream<Token> &free) {
    float count = 1.0f;
    Rows mean = {}, squares = {};
#pragma HLS ARRAY_PARTITION variable=mean complete dim=1
#pragma HLS ARRAY_PARTITION variable=squares complete dim=1
    unsigned number = 0;
x_store_uops:
    for (;;) {
        const Uop<XStore::words> uop = uops.read();
        RSN_UOP(number++);
        if (uop.last) break;
        const XStore op = XStore::decode(uop.words);
        wait_for(op.wait, filled);
        if (op.normalise)
            all_rows(bank_of(op.slot), asked, statistics, [&](unsigned row, const RowStatistic &of) {
                count = of.count;
                mean[row % patch_rows][row / patch_rows] = of.mean;
                squares[row % patch_rows][row / patch_rows] = of.squares;
            });
        const float counted = op.normalise ? count : 1.0f, inverse = 1.0f / counted;
        const std::uint32_t words = op.tiles * 2 * words_per_block;
        Countdown<14> to_ask(words), left(words + asked_ahead);
        unsigned slot = 0, asking = 0, leaving = 0, ahead = 0;
    x_store_words:
        for (; left.more(); left.next()) {
#pragma HLS PIPELINE II=ii::store style=flp
            if (to_ask.more()) {
                const unsigned w = asking % words_per_block, half = asking / words_per_block;
                reads << RowRead{
                    false, place_of<Word2x16>(op.slot + slot, word_row(w), half * half_tile + word_col(w))};
                to_ask.next();
                asking = (asking + 1) % (2 * words_per_block);
                if (asking == 0) ++slot;
            }
            if (ahead < asked_ahead) {
                ++ahead;
                continue;
            }
            const RowCells cells = rows.read();
            const unsigned row = word_row(leaving);
            Stored out;
            out.word = word_of<plain>(cells.of);
            out.normalise = op.normalise;
            out.rms = op.rms;
            out.eps = op.eps;
            out.count = counted;
            out.inverse = inverse;
            for (unsigned r = 0; r < word_rows; ++r) {
#pragma HLS UNROLL
                const unsigned at = (row + r) % patch_rows, g = row / patch_rows;
                out.mean[r] = op.normalise ? mean[at][g] : 0.0f;
                out.squares[r] = op.normalise ? squares[at][g] : 0.0f;
            }
            ddr << out;
            leaving = (leaving + 1) % words_per_block;
        }
        free << Token(1);
    }
    put(RowRead{true, {}}, reads);
    put(StatisticRead{true, 0, 0}, asked);
}

}  // namespace rsn::xnn
