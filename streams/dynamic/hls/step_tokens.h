// Tokens of dynamic streams, what they carry, and how a process reads and writes them.
//
// A stream is several FIFOs: one of heads, and one of words for each tile in its elements. A head is a token: data, a
// stop, or the end D; that of data has the sizes of its tiles, whose elements follow in words, row by row. So FIFOs hold
// as many tokens as the stream says, and have words of a sensible width.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_STREAMS_STEP_TOKENS_H
#define RSN_STREAMS_STEP_TOKENS_H

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

}  // namespace step
}  // namespace rsn

#endif  // RSN_STREAMS_STEP_TOKENS_H
