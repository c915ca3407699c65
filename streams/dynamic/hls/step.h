// What the processes of a dynamic program are made of: tokens, elements, and a function template for each operator
// (STeP, section 3.2).
//
// A stream is several FIFOs: one of heads, and one of words for each tile in its elements. A head is a token: data, a
// stop, or the end D; that of data has the sizes of its tiles, whose elements follow in words, row by row. So FIFOs hold
// as many tokens as the stream says, and have words of a sensible width. RSN_NATIVE: built to run on this computer.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_STREAMS_STEP_H
#define RSN_STREAMS_STEP_H

#include "kernels.h"

namespace rsn {
namespace step {

// -- FIFOs --------------------------------------------------------------------------------------------------------------

// Which of several FIFOs get a word.
struct All {
    bool operator()(std::size_t) const { return true; }
};
struct One {
    std::size_t number;
    bool operator()(std::size_t at) const { return at == number; }
};

// N FIFOs of one type side by side: those of N readers, of N outputs that are chosen among, or of N inputs.
template <class S, std::size_t N>
struct Fan {
    hls::stream<S> &first;
    Fan<S, N - 1> rest;

    S read(std::size_t from = 0) {
        if constexpr (N > 1)
            if (from) return rest.read(from - 1);
        return first.read();
    }
    bool empty(std::size_t from) {
        if constexpr (N > 1)
            if (from) return rest.empty(from - 1);
        return first.empty();
    }
    template <class Way>
    void write(const Way &way, const S &word, std::size_t at = 0) {
        if (way(at)) first.write(word);
        rest.write(way, word, at + 1);
    }
    // The same outside of loops that are pipelined: each access has a state of its own, so that one that waits does not
    // hold another one back.
    S read_apart(std::size_t from = 0) {
        if constexpr (N > 1)
            if (from) return rest.read_apart(from - 1);
        return rsn::read_apart(first);
    }
    template <class Way>
    void write_apart(const Way &way, const S &word, std::size_t at = 0) {
        if (way(at)) rsn::write_apart(first, word);
        rest.write_apart(way, word, at + 1);
    }
#ifdef RSN_NATIVE
    template <class Way>
    void list(const Way &way, std::vector<csim::Channel *> &found, std::size_t at = 0) {
        if (way(at)) found.push_back(&first.channel());
        rest.list(way, found, at + 1);
    }
#endif
};
template <class S>
struct Fan<S, 0> {
    template <class Way>
    void write(const Way &, const S &, std::size_t = 0) {}
    template <class Way>
    void write_apart(const Way &, const S &, std::size_t = 0) {}
#ifdef RSN_NATIVE
    template <class Way>
    void list(const Way &, std::vector<csim::Channel *> &, std::size_t = 0) {}
#endif
};

// The number of the FIFO that has a word first, among those that `way` says; of several, the first. Hardware looks at
// all of them in each cycle; natively the process sleeps until there is one.
template <class S, std::size_t N, class Way>
std::size_t first_of(Fan<S, N> &fan, const Way &way) {
#ifdef RSN_NATIVE
    std::vector<csim::Channel *> waiting;
    fan.list(way, waiting);
    csim::wait_any(waiting);
#endif
    std::size_t found = N;
    while (found == N) {
#pragma HLS pipeline II=1 style=flp
        for (std::size_t k = N; k > 0; --k) {
#pragma HLS unroll
            if (way(k - 1) && !fan.empty(k - 1)) found = k - 1;
        }
    }
    return found;
}

// -- elements -------------------------------------------------------------------------------------------------------------

// The type in which values of an element type are computed.
template <class T>
using Computed = std::conditional_t<std::is_same<T, f16>::value || std::is_same<T, bf16>::value, float,
                                    std::conditional_t<std::is_integral<T>::value && !std::is_same<T, bool>::value, std::int64_t, T>>;

// A computed value as an element. An integer that the type does not have would be a wrong number.
template <class T, class X>
T stored(const X &x) {
    if constexpr (std::is_integral<T>::value && !std::is_same<T, bool>::value)
        require(static_cast<X>(static_cast<T>(x)) == x, "an integer that the element type of the tile does not have");
    return static_cast<T>(x);
}

// Cycles between two additions to one sum, at least.
template <class T>
constexpr int turns_of = (std::is_floating_point<T>::value ? static_cast<int>(FLOAT_ADD) : 0) + 2;

// The place of a word in a tile of rows of so many words.
struct WordPlace {
    std::size_t words, row = 0, word = 0;

    explicit WordPlace(std::size_t in_a_row) : words(in_a_row) {}
    void next() {
        if (++word == words) {
            word = 0;
            ++row;
        }
    }
};

// filled: rows that hold values, -1 for all.
struct TileSizes {
    std::int32_t rows, columns, filled;
};

// A matrix of at most Rows x Columns elements, which come Packed in a word.
template <class T, std::size_t Rows, std::size_t Columns, std::size_t Packed>
struct Tile {
    using Element = T;
    using Sizes = TileSizes;
    using Word = hls::vector<T, Packed>;
    template <std::size_t N>
    using Words = Fan<Word, N>;
    static constexpr std::size_t most_rows = Rows, most_columns = Columns, packed = Packed;

    std::int32_t rows = Rows, columns = Columns, filled = -1;
    Storage<T, Rows, Columns> v;

    Tile() {
#pragma HLS array_partition variable=v dim=2 cyclic factor=Packed
    }

    T &operator()(std::size_t row, std::size_t column) { return v[row][column]; }
    const T &operator()(std::size_t row, std::size_t column) const { return v[row][column]; }
    // Words of a row. Tiles whose columns are known have no others.
    static std::size_t words_in(std::int32_t row) {
        require(row % static_cast<int>(packed) == 0, "a tile has other columns than its type");
        return static_cast<std::size_t>(row) / packed;
    }
    Sizes sizes() const { return {rows, columns, filled}; }
    void resize(int new_rows, int new_columns, int new_filled = -1) {
        require(new_rows <= static_cast<int>(Rows) && new_columns <= static_cast<int>(Columns),
                "a tile is larger than its bound");
        rows = new_rows;
        columns = new_columns;
        filled = new_filled;
    }
    void resize(const Sizes &sizes) { resize(sizes.rows, sizes.columns, sizes.filled); }

    // Reads, writes or passes the words of an element. from: the number of the input.
    template <std::size_t N>
    void take(const Sizes &sizes, Words<N> &in, std::size_t from = 0) {
        resize(sizes);
        WordPlace at(words_in(sizes.columns));
        for (std::size_t k = 0; k < static_cast<std::size_t>(sizes.rows) * at.words; ++k) {
#pragma HLS pipeline II=1 style=flp
            const Word word = in.read(from);
            for (std::size_t x = 0; x < packed; ++x) {
#pragma HLS unroll
                v[at.row][at.word * packed + x] = word[x];
            }
            at.next();
        }
    }
    template <std::size_t N, class Way>
    void put(Words<N> &out, const Way &way) const {
        WordPlace at(words_in(columns));
        for (std::size_t k = 0; k < static_cast<std::size_t>(rows) * at.words; ++k) {
#pragma HLS pipeline II=1 style=flp
            Word word;
            for (std::size_t x = 0; x < packed; ++x) {
#pragma HLS unroll
                word[x] = v[at.row][at.word * packed + x];
            }
            out.write(way, word);
            at.next();
        }
    }
    template <std::size_t N, std::size_t M, class Way>
    static void pass(const Sizes &sizes, Words<N> &in, std::size_t from, Words<M> &out, const Way &way) {
        const std::size_t count = static_cast<std::size_t>(sizes.rows) * words_in(sizes.columns);
        for (std::size_t k = 0; k < count; ++k) {
#pragma HLS pipeline II=1 style=flp
            out.write(way, in.read(from));
        }
    }
};

// The sizes of a tile of a known size.
template <class E>
TileSizes full_size() {
    return {static_cast<std::int32_t>(E::most_rows), static_cast<std::int32_t>(E::most_columns), -1};
}
template <class E>
bool is_full(const TileSizes &sizes) {
    return sizes.rows == full_size<E>().rows && sizes.columns == full_size<E>().columns;
}

// A multi-hot vector over N streams.
template <std::size_t N>
struct Selector {
    using Sizes = Selector;
    template <std::size_t M>
    struct Words {};
    std::uint32_t bits[(N + 31) / 32] = {};

    static constexpr std::size_t choices = N;
    bool operator()(std::size_t k) const { return bits[k / 32] >> (k % 32) & 1u; }
    void add(std::size_t k) { bits[k / 32] |= 1u << (k % 32); }
    void remove(std::size_t k) { bits[k / 32] &= ~(1u << (k % 32)); }
    std::size_t count() const {
        std::size_t out = 0;
        for (std::size_t k = 0; k < N; ++k) {
#pragma HLS unroll
            out += (*this)(k);
        }
        return out;
    }
    // The number of the first one that is chosen; N if none is.
    std::size_t first() const {
        std::size_t out = N;
        for (std::size_t k = N; k > 0; --k) {
#pragma HLS unroll
            if ((*this)(k - 1)) out = k - 1;
        }
        return out;
    }

    Sizes sizes() const { return *this; }
    template <std::size_t M>
    void take(const Sizes &sizes, Words<M> &, std::size_t = 0) {
        *this = sizes;
    }
    template <std::size_t M, class Way>
    void put(Words<M> &, const Way &) const {}
    template <std::size_t M, std::size_t L, class Way>
    static void pass(const Sizes &, Words<M> &, std::size_t, Words<L> &, const Way &) {}
};

// The sizes of a buffer, that of its innermost dimension first.
template <std::size_t Rank>
struct BufferSizes {
    std::int32_t shape[Rank];
    int count() const {
        int out = 1;
        for (std::size_t k = 0; k < Rank; ++k) {
#pragma HLS unroll
            out *= shape[k];
        }
        return out;
    }
};

// A buffer of at most Count tiles E of a static size. Its contents travel behind its reference, and whoever reads the
// buffer keeps them: so no two processes share a memory.
template <class E, std::size_t Rank, std::size_t Count>
struct Buffer {
    using Item = E;
    using Sizes = BufferSizes<Rank>;
    using Word = typename E::Word;
    template <std::size_t N>
    using Words = Fan<Word, N>;
    static constexpr std::size_t most = Count, words = E::most_rows * (E::most_columns / E::packed);

    Sizes shape;
    Storage<Word, Count, words> v;

    Sizes sizes() const { return shape; }
    template <std::size_t N>
    void take(const Sizes &sizes, Words<N> &in, std::size_t from = 0) {
        require(sizes.count() <= static_cast<int>(most), "a buffer is larger than its bound");
        shape = sizes;
        const int count = sizes.count();
        for (int item = 0; item < count; ++item) take_item(item, in, from);
    }
    template <std::size_t N>
    void take_item(int item, Words<N> &in, std::size_t from = 0) {
        for (std::size_t k = 0; k < words; ++k) {
#pragma HLS pipeline II=1 style=flp
            v[item][k] = in.read(from);
        }
    }
    template <std::size_t N, class Way>
    void put_item(int item, Words<N> &out, const Way &way) const {
        for (std::size_t k = 0; k < words; ++k) {
#pragma HLS pipeline II=1 style=flp
            out.write(way, v[item][k]);
        }
    }
    template <std::size_t N, class Way>
    void put(Words<N> &out, const Way &way) const {
        const int count = shape.count();
        for (int item = 0; item < count; ++item) put_item(item, out, way);
    }
    template <std::size_t N, std::size_t M, class Way>
    static void pass(const Sizes &sizes, Words<N> &in, std::size_t from, Words<M> &out, const Way &way) {
        const std::size_t count = static_cast<std::size_t>(sizes.count()) * words;
        for (std::size_t k = 0; k < count; ++k) {
#pragma HLS pipeline II=1 style=flp
            out.write(way, in.read(from));
        }
    }
};

// The sizes of a tuple: of its first part, and of the rest. They do not tell bounds, so that streams of elements with
// several bounds merge.
struct NoSizes {};
template <class First, class Rest>
struct PairSizes {
    First first;
    Rest rest;
};

template <class... Parts>
struct Tuple;
template <>
struct Tuple<> {
    using Sizes = NoSizes;
    template <std::size_t N>
    struct Words {};
    Sizes sizes() const { return {}; }
    template <std::size_t N>
    void take(const Sizes &, Words<N> &, std::size_t = 0) {}
    template <std::size_t N, class Way>
    void put(Words<N> &, const Way &) const {}
    template <std::size_t N, std::size_t M, class Way>
    static void pass(const Sizes &, Words<N> &, std::size_t, Words<M> &, const Way &) {}
};
template <class First, class... Rest>
struct Tuple<First, Rest...> {
    using Sizes = PairSizes<typename First::Sizes, typename Tuple<Rest...>::Sizes>;
    template <std::size_t N>
    struct Words {
        typename First::template Words<N> first;
        typename Tuple<Rest...>::template Words<N> rest;
    };
    First first;
    Tuple<Rest...> rest;

    Sizes sizes() const { return {first.sizes(), rest.sizes()}; }
    template <std::size_t N>
    void take(const Sizes &sizes, Words<N> &in, std::size_t from = 0) {
        first.take(sizes.first, in.first, from);
        rest.take(sizes.rest, in.rest, from);
    }
    template <std::size_t N, class Way>
    void put(Words<N> &out, const Way &way) const {
        first.put(out.first, way);
        rest.put(out.rest, way);
    }
    template <std::size_t N, std::size_t M, class Way>
    static void pass(const Sizes &sizes, Words<N> &in, std::size_t from, Words<M> &out, const Way &way) {
        First::pass(sizes.first, in.first, from, out.first, way);
        Tuple<Rest...>::pass(sizes.rest, in.rest, from, out.rest, way);
    }
};

// Part K of a tuple.
template <std::size_t K, class T>
auto &get(T &tuple) {
    if constexpr (K == 0) return tuple.first;
    else return get<K - 1>(tuple.rest);
}

using Flag = Tile<bool, 1, 1, 1>;
using Address = Tile<std::int32_t, 1, 1, 1>;

// The integer in a tile of one element, or the number of the only stream that a selector chooses.
template <class T>
std::int64_t index_in(const Tile<T, 1, 1, 1> &tile) {
    if constexpr (std::is_integral<T>::value) return static_cast<std::int64_t>(tile(0, 0));
    else {
        const double value = static_cast<double>(static_cast<Computed<T>>(tile(0, 0)));
        require(value == std::floor(value) && value - value == 0, "a number is no integer");
        return static_cast<std::int64_t>(value);
    }
}
template <std::size_t N>
std::int64_t index_in(const Selector<N> &selector) {
    require(selector.count() == 1, "a selector does not choose one");
    return static_cast<std::int64_t>(selector.first());
}

// Gives a tile sizes, and value(begun, row, column) at each place, a word in a cycle; begun: begin(row), once a word.
// Neither may read the tile itself.
template <class T, std::size_t R, std::size_t C, std::size_t P, class Begin, class F>
void set_words(Tile<T, R, C, P> &tile, int rows, int columns, const Begin &begin, const F &value) {
    tile.resize(rows, columns);
    WordPlace at(tile.words_in(columns));
    for (std::size_t k = 0; k < static_cast<std::size_t>(rows) * at.words; ++k) {
#pragma HLS pipeline II=1 style=flp
        const auto begun = begin(at.row);
        for (std::size_t x = 0; x < P; ++x) {
#pragma HLS unroll
            const std::size_t column = at.word * P + x;
            tile.v[at.row][column] = stored<T>(value(begun, at.row, column));
        }
        at.next();
    }
}
template <class E, class F>
void set(E &tile, int rows, int columns, const F &value) {
    set_words(tile, rows, columns, [](std::size_t) { return 0; },
              [&](int, std::size_t row, std::size_t column) { return value(row, column); });
}
// A tile as another one of its type, which may have another bound.
template <class A, class O>
void copy(const A &from, O &to) {
    set(to, from.rows, from.columns, [&](std::size_t row, std::size_t column) { return from(row, column); });
    to.filled = from.filled;
}

// -- tokens ---------------------------------------------------------------------------------------------------------------

// A token: data (with what its element says of sizes), the stop of a level, or the end of the stream.
template <class Sizes>
struct Head {
    std::uint8_t level;
    bool end;
    Sizes sizes;

    bool data() const { return !level && !end; }
};

// N streams of elements E side by side.
template <class E, std::size_t N>
struct Port {
    using Element = E;
    using Sizes = typename E::Sizes;
    Fan<Head<Sizes>, N> heads;
    typename E::template Words<N> words;

    template <class Way = All>
    void stop(std::size_t level, const Way &way = Way()) {
        heads.write_apart(way, Head<Sizes>{static_cast<std::uint8_t>(level), false, Sizes()});
    }
    template <class Way = All>
    void end(const Way &way = Way()) {
        heads.write_apart(way, Head<Sizes>{0, true, Sizes()});
    }
    // The head of an element, whose words come next.
    template <class Way = All>
    void data(const Sizes &sizes, const Way &way = Way()) {
        heads.write_apart(way, Head<Sizes>{0, false, sizes});
    }
    template <class Way = All>
    void put(const E &element, const Way &way = Way()) {
        data(element.sizes(), way);
        element.put(words, way);
    }
};

// Follows the groups of a stream of a rank. lowest: after a stop, the least rank of a tensor that it ended; empty:
// whether what it ended had no children.
template <std::size_t Rank>
struct Groups {
    bool open[Rank + 2] = {};
    std::size_t before = 0;  // the level of a stop just before, if it ended a tensor with children
    std::size_t lowest = 0;
    bool empty = false;

    Groups() {
#pragma HLS array_partition variable=open complete
    }
    void element() {
        open[1] = Rank > 0;
        before = 0;
    }
    void stop(std::size_t level) {
        require(level <= Rank, "a stop above the rank of the stream");
        require(before == 0 || level <= before, "a stop that should be one with the stop before it");
        lowest = level;
        for (std::size_t n = Rank; n > 0; --n) {
#pragma HLS unroll
            if (n <= level && open[n]) lowest = n;
        }
        empty = !open[lowest];
        for (std::size_t n = 1; n <= Rank; ++n) {
#pragma HLS unroll
            if (n <= level) open[n] = false;
        }
        open[level + 1] = level < Rank;
        before = empty ? 0 : level;
    }
    template <class Sizes>
    void see(const Head<Sizes> &head) {
        if (head.data()) element();
        else if (head.level) stop(head.level);
        else
            for (std::size_t n = 1; n <= Rank; ++n) {
#pragma HLS unroll
                require(!open[n], "D where a group is open");
            }
    }
    // Whether a stop of this level, which was the last token, ended a tensor of rank n.
    bool ended(std::size_t n, std::size_t level) const { return lowest <= n && n <= level; }
};

// Reads a stream, and follows its groups; looks one token ahead where that is needed. from: its number in the port.
template <std::size_t Rank, class E, std::size_t N>
struct Reader {
    using Token = Head<typename E::Sizes>;
    Port<E, N> &port;
    std::size_t from = 0;
    Groups<Rank> groups = {};
    bool ahead = false;
    Token kept = {};

    Token peek() {
        if (!ahead) kept = port.heads.read_apart(from);
        ahead = true;
        return kept;
    }
    Token next() {
        const Token token = peek();
        ahead = false;
        groups.see(token);
        return token;
    }
    void take(const Token &token, E &element) { element.take(token.sizes, port.words, from); }
    template <class Out, class Way = All>
    void pass(const Token &token, Out &out, const Way &way = Way()) {
        out.data(token.sizes, way);
        E::pass(token.sizes, port.words, from, out.words, way);
    }
    void drop(const Token &token) {
        Port<E, 0> nowhere{};
        if (token.data()) E::pass(token.sizes, port.words, from, nowhere.words, All());
    }
};
template <std::size_t Rank, class E, std::size_t N>
Reader<Rank, E, N> reader(Port<E, N> &port, std::size_t from = 0) {
    return {port, from};
}

// The stops at the end of a tensor of rank `level`, with which `raised` more ranks end. One stop ends all of them, but
// a tensor without children keeps its own before that of the others.
template <class Out>
void merged_stop(Out &out, std::size_t level, bool after_empty, std::size_t raised) {
    if (after_empty && raised) out.stop(level);
    out.stop(level + raised);
}

// Calls element(index) for each element of a tensor of rank Level, and puts the stops inside of it. shape, stride: the
// innermost dimension first. at: of the first element.
template <std::size_t Level, class Out, class Element>
void nested(const std::int32_t *shape, const std::int32_t *stride, int at, Out &out, const Element &element) {
    if constexpr (Level == 0) element(at);
    else
        for (int k = 0; k < shape[Level - 1]; ++k) {
            nested<Level - 1>(shape, stride, at + k * stride[Level - 1], out, element);
            if constexpr (Level > 1)
                if (k + 1 < shape[Level - 1] || shape[Level - 2] == 0) out.stop(Level - 1);
        }
}

// -- streams from outside, and results --------------------------------------------------------------------------------

// A stream in memory, in words of 32 bits: 0 before an element, n for a stop of level n, `last` for D. Behind the 0 of
// an element come, of each tile, rows, columns, filled and its elements, row by row; the bits of a selector; of a
// buffer its sizes, the innermost first, and its tiles.
constexpr std::uint32_t last = 0xFFFFFFFFu;

template <class T>
constexpr std::size_t memory_words = sizeof(T) > 4 ? 2 : 1;

template <class T>
T from_memory(std::uint64_t bits) {
    if constexpr (std::is_same<T, float>::value) return float_of(static_cast<std::uint32_t>(bits));
    else if constexpr (std::is_same<T, double>::value) {
        double out;
        std::memcpy(&out, &bits, sizeof out);
        return out;
    } else if constexpr (std::is_same<T, bf16>::value || std::is_same<T, f16>::value) {
        T out;
        out.bits = static_cast<std::uint16_t>(bits);
        return out;
    } else return static_cast<T>(bits);
}
template <class T>
std::uint64_t to_memory(const T &x) {
    if constexpr (std::is_floating_point<T>::value) return bits_of(x);
    else if constexpr (std::is_same<T, bf16>::value || std::is_same<T, f16>::value) return x.bits;
    else return static_cast<std::uint64_t>(x);
}

struct MemoryReader {
    const std::uint32_t *words;
    std::size_t at = 0;
    std::uint32_t next() { return words[at++]; }
    template <class T>
    T value() {
        std::uint64_t bits = next();
        if constexpr (memory_words<T> == 2) bits |= static_cast<std::uint64_t>(next()) << 32;
        return from_memory<T>(bits);
    }
};
struct MemoryWriter {
    std::uint32_t *words;
    std::size_t size, at = 0;
    void put(std::uint32_t word) {
        require(at < size, "a result is larger than its memory");
        words[at++] = word;
    }
    template <class T>
    void value(const T &x) {
        const std::uint64_t bits = to_memory(x);
        put(static_cast<std::uint32_t>(bits));
        if constexpr (memory_words<T> == 2) put(static_cast<std::uint32_t>(bits >> 32));
    }
};

template <class T, std::size_t R, std::size_t C, std::size_t P>
void read_element(MemoryReader &memory, Tile<T, R, C, P> &tile) {
    const std::int32_t rows = static_cast<std::int32_t>(memory.next()), columns = static_cast<std::int32_t>(memory.next());
    tile.resize(rows, columns, static_cast<std::int32_t>(memory.next()));
    WordPlace at(static_cast<std::size_t>(columns));
    for (std::size_t k = 0; k < static_cast<std::size_t>(rows) * at.words; ++k) {
#pragma HLS pipeline II=memory_words<T> style=flp
        tile(at.row, at.word) = memory.value<T>();
        at.next();
    }
}
template <class T, std::size_t R, std::size_t C, std::size_t P>
void write_element(MemoryWriter &memory, const Tile<T, R, C, P> &tile) {
    memory.put(static_cast<std::uint32_t>(tile.rows));
    memory.put(static_cast<std::uint32_t>(tile.columns));
    memory.put(static_cast<std::uint32_t>(tile.filled));
    WordPlace at(static_cast<std::size_t>(tile.columns));
    for (std::size_t k = 0; k < static_cast<std::size_t>(tile.rows) * at.words; ++k) {
#pragma HLS pipeline II=memory_words<T> style=flp
        memory.value(tile(at.row, at.word));
        at.next();
    }
}
template <std::size_t N>
void read_element(MemoryReader &memory, Selector<N> &selector) {
    for (std::uint32_t &bits : selector.bits) bits = memory.next();
}
template <std::size_t N>
void write_element(MemoryWriter &memory, const Selector<N> &selector) {
    for (const std::uint32_t bits : selector.bits) memory.put(bits);
}
template <class E, std::size_t Rank, std::size_t Count>
void read_element(MemoryReader &memory, Buffer<E, Rank, Count> &buffer) {
    BufferSizes<Rank> sizes;
    for (std::int32_t &size : sizes.shape) size = static_cast<std::int32_t>(memory.next());
    require(sizes.count() <= static_cast<int>(Count), "a buffer is larger than its bound");
    buffer.shape = sizes;
    const int count = sizes.count();
    for (int item = 0; item < count; ++item) {
        E tile;
        read_element(memory, tile);
        std::size_t k = 0;
        for (std::size_t row = 0; row < E::most_rows; ++row)
            for (std::size_t column = 0; column < E::most_columns; column += E::packed, ++k)
                for (std::size_t x = 0; x < E::packed; ++x) buffer.v[item][k][x] = tile(row, column + x);
    }
}
template <class E, std::size_t Rank, std::size_t Count>
void write_element(MemoryWriter &memory, const Buffer<E, Rank, Count> &buffer) {
    for (const std::int32_t size : buffer.shape.shape) memory.put(static_cast<std::uint32_t>(size));
    const int count = buffer.shape.count();
    for (int item = 0; item < count; ++item) {
        E tile;
        std::size_t k = 0;
        for (std::size_t row = 0; row < E::most_rows; ++row)
            for (std::size_t column = 0; column < E::most_columns; column += E::packed, ++k)
                for (std::size_t x = 0; x < E::packed; ++x) tile(row, column + x) = buffer.v[item][k][x];
        write_element(memory, tile);
    }
}
template <class... Parts>
void read_element(MemoryReader &memory, Tuple<Parts...> &tuple) {
    if constexpr (sizeof...(Parts) > 0) {
        read_element(memory, tuple.first);
        read_element(memory, tuple.rest);
    }
}
template <class... Parts>
void write_element(MemoryWriter &memory, const Tuple<Parts...> &tuple) {
    if constexpr (sizeof...(Parts) > 0) {
        write_element(memory, tuple.first);
        write_element(memory, tuple.rest);
    }
}

template <class E>
void feed(const std::uint32_t *words, Port<E, 1> &out) {
    MemoryReader memory{words};
    while (true) {
        const std::uint32_t kind = memory.next();
        if (kind == last) break;
        if (kind) {
            out.stop(kind);
            continue;
        }
        E element;
        read_element(memory, element);
        out.put(element);
    }
    out.end();
}
template <class E>
void collect(Port<E, 1> &in, std::uint32_t *words, std::size_t size) {
    MemoryWriter memory{words, size};
    while (true) {
        const auto head = in.heads.read_apart();
        if (head.end) break;
        memory.put(head.level);
        if (head.level) continue;
        E element;
        element.take(head.sizes, in.words);
        write_element(memory, element);
    }
    memory.put(last);
}

// Tokens that the program states. levels: 0 for an element, `end_of_table` for D.
constexpr std::uint8_t end_of_table = 0xFF;

template <class E, class Value>
void source(const std::uint8_t *levels, const Value *values, Port<E, 1> &out) {
    for (std::size_t k = 0; levels[k] != end_of_table; ++k) {
        if (levels[k]) {
            out.stop(levels[k]);
            continue;
        }
        if constexpr (std::is_same<E, Value>::value) out.put(values[k]);
        else {
            E element;
            element(0, 0) = values[k];
            out.put(element);
        }
    }
    out.end();
}

// -- operators between the chip and the memory off it -----------------------------------------------------------------

// A tensor off the chip in tiles E. across: columns of the tensor. tiles: how many tiles it has.
template <class E, class Word = typename E::Word>
struct OffChip {
    Word *memory;
    std::int32_t across, tiles;

    std::size_t begin(std::int64_t index) const {
        require(index >= 0 && index < tiles, "a tile that the tensor does not have");
        const std::size_t at = static_cast<std::size_t>(index), columns = static_cast<std::size_t>(across);
        const std::size_t in_row = columns / E::most_columns;
        return (at / in_row * E::most_rows * columns + at % in_row * E::most_columns) / E::packed;
    }
    template <class Out>
    void read(std::int64_t index, Out &out) const {
        constexpr std::size_t words = E::most_columns / E::packed;
        const std::size_t first = begin(index), pitch = static_cast<std::size_t>(across) / E::packed;
        out.data(full_size<E>());
        for (std::size_t row = 0; row < E::most_rows; ++row)
            for (std::size_t word = 0; word < words; ++word) {
#pragma HLS pipeline II=1 style=flp
                out.words.write(All(), memory[first + row * pitch + word]);
            }
    }
    template <class In>
    void write(std::int64_t index, const TileSizes &sizes, In &in) const {
        constexpr std::size_t words = E::most_columns / E::packed;
        require(is_full<E>(sizes), "a tile of another size is stored");
        const std::size_t first = begin(index), pitch = static_cast<std::size_t>(across) / E::packed;
        for (std::size_t row = 0; row < E::most_rows; ++row)
            for (std::size_t word = 0; word < words; ++word) {
#pragma HLS pipeline II=1 style=flp
                memory[first + row * pitch + word] = in.read();
            }
    }
};

// An affine read, once. shape, stride: the innermost dimension first.
template <std::size_t Level, class E, class Word>
void linear_load(const OffChip<E, Word> &tensor, const std::int32_t (&shape)[Level], const std::int32_t (&stride)[Level],
                 Port<E, 1> &out) {
    nested<Level>(shape, stride, 0, out, [&](int index) { tensor.read(index, out); });
    out.stop(Level);
    out.end();
}
// The same, once for each element of a reference.
template <std::size_t Rank, std::size_t Level, class E, class Word, class R>
void linear_load(const OffChip<E, Word> &tensor, const std::int32_t (&shape)[Level], const std::int32_t (&stride)[Level],
                 Port<R, 1> &in, Port<E, 1> &out) {
    auto reference = reader<Rank>(in);
    for (auto token = reference.next(); !token.end; token = reference.next()) {
        if (token.level) {
            out.stop(token.level + Level);
            continue;
        }
        reference.drop(token);
        nested<Level>(shape, stride, 0, out, [&](int index) { tensor.read(index, out); });
        std::size_t raised = 0;
        if (Rank && reference.peek().level) raised = reference.next().level;
        out.stop(Level + raised);
    }
    out.end();
}

template <std::size_t Rank, class E>
void linear_store(const OffChip<E> &tensor, std::int32_t first, Port<E, 1> &in) {
    auto tiles = reader<Rank>(in);
    std::int64_t index = first;
    for (auto token = tiles.next(); !token.end; token = tiles.next())
        if (!token.level) tensor.write(index++, token.sizes, in.words);
}

template <std::size_t Rank, class E, class Word, class A>
void random_load(const OffChip<E, Word> &tensor, Port<A, 1> &in, Port<E, 1> &out) {
    auto addresses = reader<Rank>(in);
    for (auto token = addresses.next(); !token.end; token = addresses.next()) {
        if (token.level) {
            out.stop(token.level);
            continue;
        }
        A address;
        addresses.take(token, address);
        tensor.read(index_in(address), out);
    }
    out.end();
}

template <std::size_t Rank, class E, class A>
void random_store(const OffChip<E> &tensor, Port<A, 1> &where, Port<E, 1> &in, Port<Flag, 1> &out) {
    auto addresses = reader<Rank>(where);
    auto tiles = reader<Rank>(in);
    while (true) {
        const auto token = addresses.next();
        const auto tile = tiles.next();
        require(token.level == tile.level && token.end == tile.end, "addresses and tiles do not have the same groups");
        if (token.end) break;
        if (token.level) {
            out.stop(token.level);
            continue;
        }
        A address;
        addresses.take(token, address);
        tensor.write(index_in(address), tile.sizes, in.words);
        Flag flag;
        flag(0, 0) = true;
        out.put(flag);
    }
    out.end();
}

// -- operators between streams and buffers on chip ---------------------------------------------------------------------

template <std::size_t Rank, std::size_t Held, class E, std::size_t Count>
void bufferize(Port<E, 1> &in, Port<Buffer<E, Held, Count>, 1> &out) {
    auto tiles = reader<Rank>(in);
    Buffer<E, Held, Count> buffer;
    int held = 0;
    std::int32_t open[Held + 1] = {}, known[Held + 1];  // of each rank: children of the open group, and of those before
    for (std::size_t n = 0; n <= Held; ++n) known[n] = -1;
    for (auto token = tiles.next(); !token.end; token = tiles.next()) {
        if (!token.level) {
            require(held < static_cast<int>(Count), "a buffer is larger than its bound");
            require(token.sizes.filled < 0, "a buffer of a tile that is filled in part");
            require(is_full<E>(token.sizes), "a buffer of a tile of another size");
            buffer.take_item(held++, in.words);
            ++open[1];
            continue;
        }
        for (std::size_t n = 1; n <= Held; ++n) {
            if (n < tiles.groups.lowest || n > token.level) continue;
            require(known[n] < 0 || known[n] == open[n], "groups of a buffer have several sizes; a buffer is regular");
            known[n] = open[n];
            open[n] = 0;
            if (n < Held) ++open[n + 1];
        }
        if (tiles.groups.ended(Held, token.level)) {
            for (std::size_t n = 1; n <= Held; ++n) {
                buffer.shape.shape[n - 1] = known[n] < 0 ? 0 : known[n];
                known[n] = -1;
            }
            out.put(buffer);
            held = 0;
        }
        if (token.level > Held) out.stop(token.level - Held);
    }
    out.end();
}

// How a buffer is read: in its own shape, or affine. shape, stride: the innermost dimension first.
template <std::size_t Level>
struct BufferRead {
    static constexpr std::size_t level = Level;
    std::int32_t shape[Level], stride[Level];
    bool affine;

    template <class B, class Out>
    bool once(const B &buffer, Out &out) const {
        std::int32_t sizes[Level], steps[Level];
        std::int32_t step = 1;
        for (std::size_t k = 0; k < Level; ++k) {
            sizes[k] = affine ? shape[k] : buffer.shape.shape[k];
            steps[k] = affine ? stride[k] : step;
            step *= sizes[k];
        }
        nested<Level>(sizes, steps, 0, out, [&](int item) {
            out.data(full_size<typename B::Item>());
            buffer.put_item(item, out.words, All());
        });
        return sizes[Level - 1] == 0;
    }
};

// Rank: of the reference. Inner: c.
template <std::size_t Rank, std::size_t Inner, class Read, class B, class R, class E>
void streamify(const Read &read, Port<B, 1> &in, Port<R, 1> &of, Port<E, 1> &out) {
    auto buffers = reader<Rank - Inner>(in);
    auto reference = reader<Rank>(of);
    B current;
    bool has = false;
    const auto fill = [&] {
        if (has) return;
        const auto token = buffers.next();
        require(token.data(), "no buffer for an element of the reference");
        buffers.take(token, current);
        has = true;
    };
    for (auto token = reference.next(); !token.end; token = reference.next()) {
        std::size_t level = token.level;
        if (!level) {
            fill();
            reference.drop(token);
            const bool empty = read.once(current, out);
            if (reference.peek().level) level = reference.next().level;
            merged_stop(out, Read::level, empty, level);
        } else out.stop(level + Read::level);
        if (level < Inner) continue;
        if (reference.groups.ended(Inner, level)) {
            fill();
            has = false;
        }
        if (level > Inner)
            require(buffers.next().level == level - Inner, "buffers and reference do not have the same groups");
    }
    require(buffers.next().end, "a buffer is left over");
    out.end();
}

template <std::size_t Rank, class Read, class B, class E>
void streamify_by_count(const Read &read, int count, Port<B, 1> &in, Port<E, 1> &out) {
    auto buffers = reader<Rank>(in);
    B current;
    for (auto token = buffers.next(); !token.end; token = buffers.next()) {
        if (token.level) {
            out.stop(token.level + 1 + Read::level);
            continue;
        }
        buffers.take(token, current);
        for (int k = 0; k < count; ++k) {
            const bool empty = read.once(current, out);
            std::size_t raised = 0;
            if (k + 1 == count) {
                raised = 1;
                if (Rank && buffers.peek().level) raised += buffers.next().level;
            }
            merged_stop(out, Read::level, empty, raised);
        }
    }
    out.end();
}

// -- operators that route and merge -------------------------------------------------------------------------------------

// Moves a chunk of a rank to the outputs that `way` says. Returns the level of the stop that ended it, 0 for an element.
template <std::size_t Chunk, class In, class Out, class Way>
std::size_t route(In &in, Out &out, const Way &way) {
    while (true) {
        const auto token = in.next();
        require(!token.end, "D where a chunk is asked for");
        if (!token.level) {
            in.pass(token, out, way);
            if (Chunk == 0) return 0;
            continue;
        }
        require(token.level < Chunk || in.groups.ended(Chunk, token.level), "a stop where a chunk is asked for");
        out.stop(token.level < Chunk ? token.level : Chunk, way);
        if (token.level >= Chunk) return token.level;
    }
}

template <std::size_t Rank, std::size_t Chunk, class E, std::size_t N>
void partition(Port<E, 1> &in, Port<Selector<N>, 1> &of, Port<E, N> &out) {
    auto chunks = reader<Rank>(in);
    auto selectors = reader<Rank - Chunk>(of);
    const char *apart = "selectors and chunks do not have the same groups";
    while (true) {
        const auto token = selectors.next();
        if (token.end) break;
        if (token.level) {
            require(chunks.next().level == token.level + Chunk, apart);
            continue;
        }
        const std::size_t stop = route<Chunk>(chunks, out, token.sizes);
        if (stop > Chunk) require(selectors.next().level == stop - Chunk, apart);
    }
    require(chunks.next().end, apart);
    out.end();
}

template <std::size_t Rank, std::size_t Chunk, class E, std::size_t N>
void parallelize(Port<E, 1> &in, Port<E, N> &out) {
    auto chunks = reader<Rank>(in);
    std::size_t turn = 0;
    while (true) {
        const auto token = chunks.peek();
        if (token.end) break;
        if (token.level && (!Chunk || token.level > Chunk)) {
            chunks.next();
            continue;
        }
        route<Chunk>(chunks, out, One{turn});
        turn = turn + 1 == N ? 0 : turn + 1;
    }
    chunks.next();
    out.end();
}

// Moves a chunk to an output. keep_stop: without the stop that ends it. Returns whether it is a tensor without children.
template <std::size_t Chunk, class In, class Out>
bool gather(In &in, Out &out, bool keep_stop) {
    while (true) {
        const auto token = in.next();
        require(!token.end, "D where a chunk is asked for");
        if (!token.level) {
            in.pass(token, out);
            if (Chunk == 0) return false;
            continue;
        }
        if (token.level < Chunk || !keep_stop) out.stop(token.level);
        if (token.level == Chunk) return in.groups.empty;
    }
}

// Around: rank of the selectors. A chunk of several that are chosen comes when its first token does.
template <std::size_t Chunk, std::size_t Around, class E, std::size_t N>
void reassemble(Port<E, N> &in, Port<Selector<N>, 1> &of, Port<E, 1> &out) {
    auto selectors = reader<Around>(of);
    for (auto token = selectors.next(); !token.end; token = selectors.next()) {
        if (token.level) {
            out.stop(token.level + Chunk + 1);
            continue;
        }
        Selector<N> left = token.sizes;
        std::size_t count = left.count();
        const bool none = count == 0;
        bool ended_empty = false;
        for (; count > 0; --count) {
            const std::size_t port = count > 1 ? first_of(in.heads, left) : left.first();
            left.remove(port);
            auto chunk = reader<Chunk>(in, port);
            ended_empty = gather<Chunk>(chunk, out, count == 1);
        }
        std::size_t raised = 0;
        if (Around && selectors.peek().level) raised = selectors.next().level;
        if (ended_empty) out.stop(Chunk);
        merged_stop(out, Chunk + 1, none, raised);
    }
    for (std::size_t port = 0; port < N; ++port) require(in.heads.read_apart(port).end, "a chunk is left over");
    out.end();
}

template <std::size_t Chunk, class E, std::size_t N>
void eager_merge(Port<E, N> &in, Port<E, 1> &out, Port<Selector<N>, 1> &turns) {
    Selector<N> left;
    for (std::size_t k = 0; k < N; ++k) left.add(k);
    for (std::size_t count = N; count > 0;) {
        const std::size_t port = first_of(in.heads, left);
        auto chunk = reader<Chunk>(in, port);
        if (chunk.peek().end) {
            left.remove(port);
            --count;
            continue;
        }
        Selector<N> turn;
        turn.add(port);
        turns.put(turn);
        gather<Chunk>(chunk, out, false);
    }
    out.end();
    turns.end();
}

// -- higher-order operators -----------------------------------------------------------------------------------------------

// Calls a function with the parts of an element.
template <class F, class Out, class... Given>
void apply(const F &f, Out &out, const Tuple<> &, const Given &...given) {
    f(given..., out);
}
template <class F, class Out, class First, class... Rest, class... Given>
void apply(const F &f, Out &out, const Tuple<First, Rest...> &tuple, const Given &...given) {
    apply(f, out, tuple.rest, given..., tuple.first);
}
template <class F, class Out, class E>
void apply(const F &f, Out &out, const E &element) {
    f(element, out);
}

template <std::size_t Rank, class F, class E, class O>
void map(const F &f, Port<E, 1> &in, Port<O, 1> &out) {
    auto elements = reader<Rank>(in);
    for (auto token = elements.next(); !token.end; token = elements.next()) {
        if (token.level) {
            out.stop(token.level);
            continue;
        }
        E element;
        O result;
        elements.take(token, element);
        apply(f, result, element);
        out.put(result);
    }
    out.end();
}

// start(state): before the first element of a group; false if that is no state to put, because its size is that of the
// elements. update(first, element, state): after one more.
template <std::size_t Rank, std::size_t Inner, class Start, class Update, class E, class State>
void accumulate(const Start &start, const Update &update, Port<E, 1> &in, Port<State, 1> &out) {
    auto elements = reader<Rank>(in);
    State state;
    bool known = start(state), first = true;
    for (auto token = elements.next(); !token.end; token = elements.next()) {
        if (!token.level) {
            E element;
            elements.take(token, element);
            update(first, element, state);
            first = false;
            continue;
        }
        if (elements.groups.ended(Inner, token.level)) {
            require(known || !first, "a group without tiles, whose size nothing says");
            out.put(state);
            known = start(state);
            first = true;
        }
        if (token.level > Inner) out.stop(token.level - Inner);
    }
    out.end();
}

template <std::size_t Rank, std::size_t Inner, class Start, class Update, class E, class State>
void scan(const Start &start, const Update &update, Port<E, 1> &in, Port<State, 1> &out) {
    auto elements = reader<Rank>(in);
    State state;
    start(state);
    bool first = true;
    for (auto token = elements.next(); !token.end; token = elements.next()) {
        if (token.level) {
            if (elements.groups.ended(Inner, token.level)) {
                start(state);
                first = true;
            }
            out.stop(token.level);
            continue;
        }
        E element;
        elements.take(token, element);
        update(first, element, state);
        first = false;
        out.put(state);
    }
    out.end();
}

// What an expansion puts its elements and stops to. The stop at the end of a tensor waits for what comes next, because
// the end of the group raises it. grown: whether the group has something in the output.
template <std::size_t Made, bool Holds, class O>
struct Joined {
    using Element = O;
    Port<O, 1> &out;
    Groups<Made> groups = {};
    bool held = false, grown = false;

    void release() {
        if (held) out.stop(Made);
        held = false;
        grown = true;
    }
    void put(const O &element) {
        release();
        groups.element();
        out.put(element);
    }
    void stop(std::size_t level) {
        release();
        groups.stop(level);
        const bool empty = groups.empty && groups.lowest == Made;
        if (Holds && level == Made && !empty) held = true;
        else out.stop(level);
    }
};

// expansion(element, joined): puts tensors of rank Made.
template <std::size_t Rank, std::size_t Made, class F, class E, class O>
void flat_map(const F &expansion, Port<E, 1> &in, Port<O, 1> &out) {
    auto elements = reader<Rank>(in);
    Joined<Made, (Made > 0 && Rank > 0), O> joined{out};
    for (auto token = elements.next(); !token.end; token = elements.next()) {
        if (!token.level) {
            E element;
            elements.take(token, element);
            expansion(element, joined);
            continue;
        }
        if (!joined.grown && !elements.groups.empty && elements.groups.lowest == 1)
            merged_stop(out, 1 + Made, true, token.level - 1);
        else out.stop(token.level + Made);
        joined.held = joined.grown = false;
    }
    out.end();
}

// -- operators that change stops only --------------------------------------------------------------------------------------

template <std::size_t Rank, std::size_t Least, std::size_t Most, class E>
void flatten(Port<E, 1> &in, Port<E, 1> &out) {
    auto elements = reader<Rank>(in);
    // A stop of the flattened dimensions becomes one that a stop above may still raise.
    constexpr bool holds = 0 < Least && Least < Most && Most < Rank;
    bool held = false, grown = false;  // grown: whether the flat group has children
    for (auto token = elements.next(); !token.end; token = elements.next()) {
        const auto &groups = elements.groups;
        if (!token.level) {
            if (held) out.stop(Least);
            held = false;
            elements.pass(token, out);
            grown = true;
        } else if (token.level > Most) {
            const bool empty = !grown && groups.ended(Most + 1, token.level);
            held = grown = false;
            merged_stop(out, Least + 1, empty, token.level - Most - 1);
        } else if (token.level <= Least || (Least && groups.ended(Least, token.level))) {
            if (held) out.stop(Least);
            held = holds && token.level >= Least && !groups.empty;
            grown = true;
            if (!held) out.stop(token.level < Least ? token.level : Least);
        }
    }
    out.end();
}

// A tile of the sizes of the last one, with `value` in every place.
template <class T, std::size_t R, std::size_t C, std::size_t P>
void pad_with(double value, const TileSizes &sizes, Port<Tile<T, R, C, P>, 1> &out) {
    out.data(TileSizes{sizes.rows, sizes.columns, -1});
    const typename Tile<T, R, C, P>::Word word(static_cast<T>(static_cast<Computed<T>>(value)));
    const std::size_t count = static_cast<std::size_t>(sizes.rows) * Tile<T, R, C, P>::words_in(sizes.columns);
    for (std::size_t k = 0; k < count; ++k) {
#pragma HLS pipeline II=1 style=flp
        out.words.write(All(), word);
    }
}

inline void flag(bool padded, Port<Flag, 1> &flags) {
    Flag out;
    out(0, 0) = padded;
    flags.put(out);
}

template <std::size_t Rank, std::size_t Chunk, bool Pads, class E>
void reshape_elements(double pad, Port<E, 1> &in, Port<E, 1> &out, Port<Flag, 1> &flags) {
    auto elements = reader<Rank>(in);
    std::size_t filled = 0;
    bool held = false;  // the stop of a full chunk, which the end of the group raises
    typename E::Sizes sizes = {};
    const auto both = [&](std::size_t level) {
        out.stop(level);
        flags.stop(level);
    };
    while (true) {
        const auto token = elements.next();
        if (token.data()) {
            if (held) both(1);
            held = false;
            sizes = token.sizes;
            elements.pass(token, out);
            flag(false, flags);
            if (++filled == Chunk) {
                filled = 0;
                held = Rank > 0;
                if (!held) both(1);
            }
            continue;
        }
        if (filled) {
            require(Pads, "a chunk is not full, and there is no value to pad it with");
            if constexpr (Pads)
                for (; filled < Chunk; ++filled) {
                    pad_with(pad, sizes, out);
                    flag(true, flags);
                }
            filled = 0;
            if (token.end) both(1);
        }
        held = false;
        if (token.end) break;
        both(token.level + 1);
    }
    out.end();
    flags.end();
}

template <std::size_t Rank, std::size_t Split, std::size_t Chunk, class E>
void reshape_groups(Port<E, 1> &in, Port<E, 1> &out, Port<Flag, 1> &flags) {
    auto elements = reader<Rank>(in);
    std::size_t number = 0;
    bool held = false;  // the stop of a chunk whose last child is empty
    const auto both = [&](std::size_t level) {
        out.stop(level);
        flags.stop(level);
    };
    while (true) {
        const auto token = elements.next();
        const auto &groups = elements.groups;
        if (token.end) break;
        const bool raises = token.level > Split && groups.lowest == Split + 1;
        if (held && !raises) both(Split + 1);
        held = false;
        if (!token.level) {
            elements.pass(token, out);
            flag(false, flags);
            continue;
        }
        number += groups.ended(Split, token.level);
        if (token.level < Split) {
            both(token.level);
            continue;
        }
        const bool full = number == Chunk;
        if (full) number = 0;
        if (token.level > Split) {
            require(number == 0, "a chunk is not full at the end of its group");
            both(token.level + 1);
        } else if (!full) both(token.level);
        else if (!groups.empty) both(Split + 1);
        else {
            both(token.level);
            held = Split < Rank;
            if (!held) both(Split + 1);
        }
    }
    require(number == 0, "a chunk is not full at the end of the stream");
    out.end();
    flags.end();
}

template <std::size_t Rank, class E>
void promote(Port<E, 1> &in, Port<E, 1> &out) {
    auto elements = reader<Rank>(in);
    bool held = false, seen = false;
    for (auto token = elements.next(); !token.end; token = elements.next()) {
        if (held) out.stop(Rank);
        held = false;
        seen = true;
        if (!token.level) elements.pass(token, out);
        else if (token.level == Rank && !elements.groups.empty) held = true;
        else out.stop(token.level);
    }
    if (seen) out.stop(Rank + 1);
    out.end();
}

template <std::size_t Rank, std::size_t Inner, class E, class R>
void expand(Port<E, 1> &in, Port<R, 1> &of, Port<E, 1> &out) {
    auto data = reader<Rank>(in);
    auto reference = reader<Rank>(of);
    constexpr bool whole = Inner > Rank;  // all of the reference is one group
    E current;
    bool has = false;
    const auto fill = [&] {
        if (has) return;
        const auto token = data.next();
        require(token.data(), "no element for a group of the reference");
        data.take(token, current);
        has = true;
    };
    const char *apart = "data and reference do not have the same groups";
    for (auto token = reference.next(); !token.end; token = reference.next()) {
        if (!token.level) {
            fill();
            reference.drop(token);
            out.put(current);
            continue;
        }
        out.stop(token.level);
        if (whole || token.level < Inner) continue;
        if (reference.groups.ended(Inner, token.level)) {
            fill();
            has = false;
            // The data's group is not empty, so that its stop may be merged with that of a group around.
            if (reference.groups.empty && data.peek().level > token.level) continue;
        }
        require(data.next().level == token.level, apart);
    }
    if (whole)  // the data are one element at most, and its stop
        while (!data.peek().end) data.drop(data.next());
    require(data.next().end, apart);
    out.end();
}

template <std::size_t Rank, std::size_t Inner, class E>
void expand_by_counts(const std::int32_t (&counts)[Inner], Port<E, 1> &in, Port<E, 1> &out) {
    auto data = reader<Rank>(in);
    const std::int32_t same[Inner] = {};
    for (auto token = data.next(); !token.end; token = data.next()) {
        if (token.level) {
            out.stop(token.level);
            continue;
        }
        E element;
        data.take(token, element);
        nested<Inner>(counts, same, 0, out, [&](int) { out.put(element); });
    }
    out.end();
}

template <std::size_t Rank, class E>
void repeat(int count, Port<E, 1> &in, Port<E, 1> &out) {
    auto data = reader<Rank>(in);
    for (auto token = data.next(); !token.end; token = data.next()) {
        if (token.level) {
            out.stop(token.level + 1);
            continue;
        }
        E element;
        data.take(token, element);
        for (int k = 0; k < count; ++k) out.put(element);
        std::size_t raised = 0;
        if (Rank && data.peek().level) raised = data.next().level;
        out.stop(1 + raised);
    }
    out.end();
}

// The inputs of a zip.
template <std::size_t Rank, class... Parts>
struct Inputs;
template <std::size_t Rank>
struct Inputs<Rank> {
    template <class Token>
    NoSizes next(const Token &) {
        return {};
    }
    void pass(const NoSizes &, Tuple<>::Words<1> &) {}
};
template <std::size_t Rank, class First, class... Rest>
struct Inputs<Rank, First, Rest...> {
    using Sizes = typename Tuple<First, Rest...>::Sizes;
    Reader<Rank, First, 1> first;
    Inputs<Rank, Rest...> rest;

    // The sizes of the next tokens, which must be of the kind of `like`.
    template <class Token>
    Sizes next(const Token &like) {
        const auto token = first.next();
        require(token.level == like.level && token.end == like.end, "the streams of a Zip do not have the same groups");
        return {token.sizes, rest.next(like)};
    }
    void pass(const Sizes &sizes, typename Tuple<First, Rest...>::template Words<1> &out) {
        First::pass(sizes.first, first.port.words, 0, out.first, All());
        rest.pass(sizes.rest, out.rest);
    }
};
template <std::size_t Rank>
Inputs<Rank> inputs() {
    return {};
}
template <std::size_t Rank, class First, class... Rest>
Inputs<Rank, First, Rest...> inputs(Port<First, 1> &first, Port<Rest, 1> &...rest) {
    return {reader<Rank>(first), inputs<Rank>(rest...)};
}
template <std::size_t Rank, class First, class... Rest>
void zip(Port<Tuple<First, Rest...>, 1> &out, Port<First, 1> &in, Port<Rest, 1> &...others) {
    auto first = reader<Rank>(in);
    Inputs<Rank, Rest...> rest = inputs<Rank>(others...);
    for (auto token = first.next(); ; token = first.next()) {
        const auto sizes = rest.next(token);
        if (token.end) break;
        if (token.level) {
            out.stop(token.level);
            continue;
        }
        out.data({token.sizes, sizes});
        First::pass(token.sizes, in.words, 0, out.words.first, All());
        rest.pass(sizes, out.words.rest);
    }
    out.end();
}

template <std::size_t Rank, class E, std::size_t N>
void broadcast(Port<E, 1> &in, Port<E, N> &out) {
    auto elements = reader<Rank>(in);
    for (auto token = elements.next(); !token.end; token = elements.next()) {
        if (token.level) out.stop(token.level);
        else elements.pass(token, out);
    }
    out.end();
}

template <class E>
void first_elements(std::int64_t count, Port<E, 1> &in, Port<E, 1> &out) {
    auto elements = reader<0>(in);
    bool ended = false;
    for (; count > 0 && !ended; --count) {
        const auto token = elements.next();
        ended = token.end;
        if (!ended) elements.pass(token, out);
    }
    out.end();
    while (!ended) {
        const auto token = elements.next();
        ended = token.end;
        elements.drop(token);
    }
}

template <std::size_t Rank, class E>
void discard(Port<E, 1> &in) {
    auto elements = reader<Rank>(in);
    for (auto token = elements.next(); !token.end; token = elements.next()) elements.drop(token);
}

// -- functions of tiles ----------------------------------------------------------------------------------------------------

// The element of an operand at a place of the result: one row, or one column, is repeated. begun: `first_of_row`.
template <class A>
Computed<typename A::Element> first_of_row(const A &a, std::size_t row) {
    return A::most_columns == 1 ? static_cast<Computed<typename A::Element>>(a(a.rows == 1 ? 0 : row, 0))
                                : Computed<typename A::Element>();
}
template <class A, class T>
Computed<typename A::Element> beside(const A &a, const T &begun, std::size_t row, std::size_t column) {
    if constexpr (A::most_columns == 1) return begun;
    else {
        const std::size_t in_column = A::packed == 1 && a.columns == 1 ? 0 : column;
        return static_cast<Computed<typename A::Element>>(a(a.rows == 1 ? 0 : row, in_column));
    }
}
template <class A, class B>
struct FirstOfRow {
    A a;
    B b;
};

template <class Operation>
struct Elementwise {
    template <class A, class B, class O>
    void operator()(const A &a, const B &b, O &out) const {
        using Left = Computed<typename A::Element>;
        using Right = Computed<typename B::Element>;
        using T = decltype(Left() + Right());
        const int rows = a.rows == 1 ? b.rows : a.rows, columns = a.columns == 1 ? b.columns : a.columns;
        require((a.rows == rows || a.rows == 1) && (b.rows == rows || b.rows == 1) &&
                    (a.columns == columns || a.columns == 1) && (b.columns == columns || b.columns == 1),
                "tiles of sizes that do not fit");
        set_words(
            out, rows, columns,
            [&](std::size_t row) {
                return FirstOfRow<Left, Right>{first_of_row(a, row), first_of_row(b, row)};
            },
            [&](const FirstOfRow<Left, Right> &begun, std::size_t row, std::size_t column) {
                return Operation()(static_cast<T>(beside(a, begun.a, row, column)), static_cast<T>(beside(b, begun.b, row, column)));
            });
    }
};
using Add = Elementwise<rsn::Add>;
using Sub = Elementwise<rsn::Sub>;
using Mul = Elementwise<rsn::Mul>;
using Div = Elementwise<rsn::Div>;
using Larger = Elementwise<rsn::Larger>;

template <class Operation>
struct Pointwise {
    template <class A, class O>
    void operator()(const A &a, O &out) const {
        set(out, a.rows, a.columns, [&](std::size_t row, std::size_t column) {
            return Operation()(static_cast<Computed<typename A::Element>>(a(row, column)));
        });
        out.filled = a.filled;
    }
};
struct ExpOf {
    float operator()(float x) const { return rsn::Exp()(x); }
    double operator()(double x) const { return std::exp(x); }
};
struct SiLUOf {
    template <class T>
    T operator()(T x) const {
        return x / (T(1) + ExpOf()(-x));
    }
};
using Exp = Pointwise<ExpOf>;
using SiLU = Pointwise<SiLUOf>;

// Rows of an array whose elements are added to again and again: it is a memory, and no register, because only of a memory
// a pragma can say that additions to one element are some cycles apart.
constexpr std::size_t rows_in_memory(std::size_t rows) { return rows < 2 ? 2 : rows; }

// Sums, or what else `Operation` makes, along each row. Words of a row come in turn with those of other rows, so that a
// sum is added to no more often than the adder allows.
template <class Operation>
struct AlongRows {
    template <class A, class O>
    void operator()(const A &a, O &out) const {
        using T = Computed<typename A::Element>;
        constexpr std::size_t turns = turns_of<T>;
        T sums[rows_in_memory(A::most_rows)];
#pragma HLS bind_storage variable=sums type=ram_2p impl=lutram
        const std::size_t rows = static_cast<std::size_t>(a.rows), turn = rows > turns ? rows : turns;
        const std::size_t count = turn * A::words_in(a.columns);
        std::size_t row = 0, word = 0;
        for (std::size_t k = 0; k < count; ++k) {
#pragma HLS pipeline II=1 style=flp
#pragma HLS dependence variable=sums type=inter direction=raw distance=turns dependent=true
            if (row < rows) {
                T parts[A::packed];
                for (std::size_t x = 0; x < A::packed; ++x) {
#pragma HLS unroll
                    parts[x] = static_cast<T>(a(row, word * A::packed + x));
                }
                for (std::size_t step = 1; step < A::packed; step *= 2) {
#pragma HLS unroll
                    for (std::size_t x = 0; x + step < A::packed; x += 2 * step) {
#pragma HLS unroll
                        parts[x] = Operation()(parts[x], parts[x + step]);
                    }
                }
                sums[row] = word ? Operation()(sums[row], parts[0]) : parts[0];
            }
            if (++row == turn) {
                row = 0;
                ++word;
            }
        }
        require(a.columns > 0, "a row without elements");
        set(out, a.rows, 1, [&](std::size_t at, std::size_t) { return sums[at]; });
    }
};
using RowSum = AlongRows<rsn::Add>;
using RowMax = AlongRows<rsn::Larger>;

template <bool TurnLeft, bool TurnRight>
struct Matmul {
    template <class A, class B, class O>
    void operator()(const A &a, const B &b, O &out) const {
        using T = Computed<typename O::Element>;
        const int rows = TurnLeft ? a.columns : a.rows, inner = TurnLeft ? a.rows : a.columns;
        const int columns = TurnRight ? b.rows : b.columns;
        require(inner == (TurnRight ? b.columns : b.rows), "a product of tiles of sizes that do not fit");
        if constexpr (TurnRight) {
            Tile<typename B::Element, B::most_columns, B::most_rows, O::packed> turned;
            turned.resize(b.columns, b.rows);
            WordPlace at(static_cast<std::size_t>(b.columns));
            for (std::size_t k = 0; k < static_cast<std::size_t>(b.rows) * at.words; ++k) {
#pragma HLS pipeline II=1 style=flp
                turned(at.word, at.row) = b(at.row, at.word);
                at.next();
            }
            Matmul<TurnLeft, false>()(a, turned, out);
        } else {
            constexpr std::size_t turns = turns_of<T>, packed = O::packed;
            Storage<T, rows_in_memory(O::most_rows), O::most_columns> sums;
#pragma HLS array_partition variable=sums dim=2 cyclic factor=packed
#pragma HLS bind_storage variable=sums type=ram_2p impl=lutram
            WordPlace at(O::words_in(columns));
            const std::size_t count = static_cast<std::size_t>(rows) * at.words, turn = count > turns ? count : turns;
            const std::size_t steps = static_cast<std::size_t>(inner) * turn;
            std::size_t in_turn = 0, k = 0;
            for (std::size_t step = 0; step < steps; ++step) {
#pragma HLS pipeline II=1 style=flp
#pragma HLS dependence variable=sums type=inter direction=raw distance=turns dependent=true
                if (in_turn < count) {
                    const T left = static_cast<T>(TurnLeft ? a(k, at.row) : a(at.row, k));
                    for (std::size_t x = 0; x < packed; ++x) {
#pragma HLS unroll
                        const std::size_t column = at.word * packed + x;
                        const T product = left * static_cast<T>(b(k, column));
                        sums[at.row][column] = (k ? sums[at.row][column] : T(0)) + product;
                    }
                }
                at.next();
                if (++in_turn == turn) {
                    in_turn = at.row = at.word = 0;
                    ++k;
                }
            }
            set(out, rows, columns, [&](std::size_t i, std::size_t j) { return inner ? sums[i][j] : T(0); });
        }
    }
};

// The address a*k + b of an address or index k.
struct Affine {
    std::int64_t a, b;
    template <class E>
    void operator()(const E &element, Address &out) const {
        out.resize(1, 1);
        out(0, 0) = stored<std::int32_t>(a * index_in(element) + b);
    }
};

struct SetOffset {
    template <class A, class B, class O>
    void operator()(const A &a, const B &offset, O &out) const {
        const std::int64_t filled = index_in(offset);
        require(0 <= filled && filled <= a.rows, "an offset beyond the rows of its tile");
        copy(a, out);
        out.filled = static_cast<std::int32_t>(filled);
    }
};
struct AppendRow {
    template <class A, class B, class O>
    void operator()(const A &a, const B &more, O &out) const {
        const std::int32_t filled = a.filled < 0 ? a.rows : a.filled;
        require(filled < a.rows, "no row is left in a tile");
        const std::size_t last = static_cast<std::size_t>(filled);
        set(out, a.rows, a.columns,
            [&](std::size_t row, std::size_t column) { return row == last ? more(0, column) : a(row, column); });
        out.filled = filled + 1;
    }
};

// -- attention in one pass over the tiles of a cache --------------------------------------------------------------------

// Scores times a factor; -infinity in columns beyond the valid ones.
struct ScaledMask {
    double factor;
    template <class A, class B, class O>
    void operator()(const A &scores, const B &valid, O &out) const {
        using T = Computed<typename A::Element>;
        const std::int64_t kept = index_in(valid);
        set(out, scores.rows, scores.columns, [&](std::size_t row, std::size_t column) {
            return static_cast<std::int64_t>(column) < kept ? static_cast<T>(scores(row, column)) * static_cast<T>(factor)
                                                            : -std::numeric_limits<T>::infinity();
        });
    }
};

struct SoftmaxQuotient {
    template <class A, class B, class C, class O>
    void operator()(const A &, const B &total, const C &weighted, O &out) const {
        Div()(weighted, total, out);
    }
};

struct OnlineSoftmax {
    template <class Scores, class Values, class Top, class Total, class Weighted>
    void operator()(bool, const Tuple<Scores, Values> &element, Tuple<Top, Total, Weighted> &state) const {
        Top &top = state.first;
        Total &total = state.rest.first;
        Weighted &weighted = state.rest.rest.first;
        Scores below, weights;
        Top highest, higher, factor, before, sum, kept;
        Weighted added, left;
        RowMax()(element.first, highest);
        Larger()(highest, top, higher);
        Sub()(element.first, higher, below);
        Exp()(below, weights);
        Sub()(top, higher, factor);
        Exp()(factor, before);
        copy(higher, top);
        RowSum()(weights, sum);
        Mul()(total, before, kept);
        Add()(kept, sum, total);
        Matmul<false, false>()(weights, element.rest.first, added);
        Mul()(weighted, before, left);
        Add()(left, added, weighted);
    }
};

// Of a job's number and length, the address of each tile of its cache, and how many of its rows count.
struct CacheTiles {
    std::int64_t rows, tiles;
    template <class E, class Out>
    void operator()(const E &job, Out &out) const {
        const std::int64_t number = index_in(get<0>(job)), length = index_in(get<1>(job));
        for (std::int64_t at = 0; at < length; at += rows) {
            typename Out::Element part;
            get<0>(part)(0, 0) = stored<std::int32_t>(number * tiles + at / rows);
            get<1>(part)(0, 0) = stored<std::int32_t>(length - at < rows ? length - at : rows);
            out.put(part);
        }
        out.stop(1);
    }
};

// -- updates: (first, element, state) -----------------------------------------------------------------------------------

template <class F>
struct Fold {
    double initial;
    bool any_size;  // the state before the first tile has one value, which is repeated
    template <class E, class S>
    void operator()(bool first, const E &element, S &state) const {
        if (first && any_size)
            set(state, element.rows, element.columns, [&](std::size_t, std::size_t) { return static_cast<Computed<typename S::Element>>(initial); });
        require(state.rows == element.rows && state.columns == element.columns, "a fold of tiles of several sizes");
        S made;
        F()(state, element, made);
        copy(made, state);
    }
};

template <class Product>
struct MatmulAdd {
    bool any_size;
    template <class E, class S>
    void operator()(bool first, const E &element, S &state) const {
        S made;
        Product()(element.first, element.rest.first, made);
        if (first && any_size) {
            copy(made, state);
            return;
        }
        require(state.rows == made.rows && state.columns == made.columns, "a sum of products of several sizes");
        S sum;
        Add()(state, made, sum);
        copy(sum, state);
    }
};

// Packs tiles below each other, or side by side.
template <bool Columns>
struct Retile {
    template <class E, class S>
    void operator()(bool, const E &element, S &state) const {
        const bool none = (Columns ? state.columns : state.rows) == 0;
        const int before = none ? 0 : Columns ? state.columns : state.rows;
        if (Columns) {
            require(none || state.rows == element.rows, "RetileCol of tiles of several numbers of rows");
            state.resize(element.rows, before + element.columns);
        } else {
            require(none || state.columns == element.columns, "RetileRow of tiles of several numbers of columns");
            state.resize(before + element.rows, element.columns);
        }
        constexpr std::size_t step = Columns ? 1 : E::packed;
        const std::size_t begin = static_cast<std::size_t>(before);
        WordPlace at(static_cast<std::size_t>(element.columns) / step);
        for (std::size_t k = 0; k < static_cast<std::size_t>(element.rows) * at.words; ++k) {
#pragma HLS pipeline II=1 style=flp
            for (std::size_t x = 0; x < step; ++x) {
#pragma HLS unroll
                const std::size_t column = at.word * step + x;
                state(Columns ? at.row : begin + at.row, Columns ? begin + column : column) = element(at.row, column);
            }
            at.next();
        }
    }
};

struct Last {
    template <class E, class S>
    void operator()(bool, const E &element, S &state) const {
        copy(element, state);
    }
};
struct AllRead {
    template <class E>
    void operator()(bool, const E &, Flag &) const {}
};

// -- expansions: (element, joined) ---------------------------------------------------------------------------------------

// Parts of `size` rows or columns. DropPadding: without those whose flag is set, or that are not filled.
template <bool Columns, bool DropPadding>
struct RetileStreamify {
    std::int32_t size;

    template <class A, class Out>
    void part(const A &whole, int at, Out &out) const {
        const int all = Columns ? whole.columns : whole.rows, here = all - at < size ? all - at : size;
        const std::size_t begin = static_cast<std::size_t>(at);
        typename Out::Element made;
        set(made, Columns ? whole.rows : here, Columns ? here : whole.columns,
            [&](std::size_t row, std::size_t column) {
                return Columns ? whole(row, begin + column) : whole(begin + row, column);
            });
        out.put(made);
    }
    template <class T, std::size_t R, std::size_t C, std::size_t P, class Out>
    void operator()(const Tile<T, R, C, P> &whole, Out &out) const {
        int all = Columns ? whole.columns : whole.rows;
        if (DropPadding && whole.filled >= 0) all = whole.filled;
        for (int at = 0; at < all; at += size) part(whole, at, out);
    }
    template <class A, class M, class Out>
    void operator()(const Tuple<A, M> &pair, Out &out) const {
        const A &whole = pair.first;
        const M &mask = pair.rest.first;
        const int all = Columns ? whole.columns : whole.rows;
        require(mask.rows * mask.columns == all, "as many flags as parts are needed");
        for (int at = 0; at < all; at += size) {
            const std::size_t k = static_cast<std::size_t>(at);
            if (!mask(mask.rows == 1 ? 0 : k, mask.rows == 1 ? k : 0)) part(whole, at, out);
        }
    }
};

struct Addresses {
    std::int64_t group, base;
    template <class E, class Out>
    void operator()(const E &element, Out &out) const {
        const std::int64_t first = index_in(element) * group + base;
        for (std::int64_t k = 0; k < group; ++k) {
            Address made;
            made(0, 0) = stored<std::int32_t>(first + k);
            out.put(made);
        }
        out.stop(1);
    }
};

template <bool Negate>
struct WhereTrue {
    template <class E, class M, class Out>
    void operator()(const Tuple<E, M> &pair, Out &out) const {
        if ((index_in(pair.rest.first) != 0) != Negate) out.put(pair.first);
    }
};

}  // namespace step
}  // namespace rsn

#endif  // RSN_STREAMS_STEP_H
