// What higher-order operators apply: functions of tiles, updates of a state, expansions.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_STREAMS_STEP_FUNCTIONS_H
#define RSN_STREAMS_STEP_FUNCTIONS_H

#include "step_tokens.h"

namespace rsn {
namespace step {

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

#endif  // RSN_STREAMS_STEP_FUNCTIONS_H
