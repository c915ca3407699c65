// A function template for each operator between streams (STeP, section 3.2).
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_STREAMS_STEP_OPERATORS_H
#define RSN_STREAMS_STEP_OPERATORS_H

#include "step_tokens.h"

namespace rsn {
namespace step {

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

}  // namespace step
}  // namespace rsn

#endif  // RSN_STREAMS_STEP_OPERATORS_H
