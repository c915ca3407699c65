// Tokens in a memory: streams from outside, results, and the operators of tensors off the chip.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_STREAMS_STEP_MEMORY_H
#define RSN_STREAMS_STEP_MEMORY_H

#include "step_tokens.h"

namespace rsn {
namespace step {

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

}  // namespace step
}  // namespace rsn

#endif  // RSN_STREAMS_STEP_MEMORY_H
