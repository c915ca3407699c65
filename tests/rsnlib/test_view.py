"""A View against the plain thing it stands for: the tensor of element indices, moved about by numpy."""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from rsn.rsnlib.view import View

Indices = npt.NDArray[np.int64]


def indices(view: View) -> Indices:
    flat = np.array([view.offset])
    for size, stride in view.atoms:
        flat = np.add.outer(flat, np.arange(size) * stride).ravel()
    return flat.reshape(view.shape)


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


@st.composite
def moved(draw: st.DrawFn) -> tuple[int, int, View, Indices]:
    """(rows, width, a view, the indices it must show) after a few random moves."""
    rows, width = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    view, expected = View.dense((rows, width)), np.arange(rows * width).reshape(rows, width)
    for _ in range(draw(st.integers(0, 6))):
        move = draw(st.sampled_from(["permute", "regroup", "narrow"]))
        after: View | None
        if move == "permute":
            order = draw(st.permutations(range(expected.ndim)))
            after, shown = view.permute(order), expected.transpose(order)
        elif move == "regroup":
            shape, rest = [], expected.size
            for _ in range(draw(st.integers(0, 3))):
                shape.append(draw(st.sampled_from(divisors(rest))))
                rest //= shape[-1]
            after, shown = view.regroup((*shape, rest)), expected.reshape(*shape, rest)
        else:
            axis = draw(st.integers(0, expected.ndim - 1))
            start = draw(st.integers(0, expected.shape[axis] - 1))
            length = draw(st.integers(1, expected.shape[axis] - start))
            after, shown = view.narrow(axis, start, length), expected.take(range(start, start + length), axis)
        if after is not None:
            view, expected = after, shown
    return rows, width, view, expected


@given(moved())
def test_view_shows_the_elements_numpy_shows(case: tuple[int, int, View, Indices]) -> None:
    _, _, view, expected = case
    assert view.shape == expected.shape
    assert np.array_equal(indices(view), expected)


@given(moved())
def test_columns_are_exact_or_refused(case: tuple[int, int, View, Indices]) -> None:
    rows, width, view, expected = case
    got = view.columns(rows, width)
    if got is None:
        return
    index, compact = got
    row, column = np.divmod(expected, width)
    assert len(set(index)) == len(index) == expected.size // rows
    # Position p of the compact activation's columns is column index[p] of the whole one.
    position = {c: p for p, c in enumerate(index.tolist())}
    assert np.array_equal(indices(compact), row * len(index) + np.vectorize(position.__getitem__)(column))


def test_split_heads_is_the_canonical_form() -> None:
    batch, seq, heads, dim = 2, 5, 3, 4
    split = View.dense((batch, seq, heads * dim)).regroup((batch, seq, heads, dim))
    assert split is not None
    heads_form = split.permute((0, 2, 1, 3))
    assert heads_form == View.dense((batch, seq, heads, dim)).permute((0, 2, 1, 3))
    joined = heads_form.permute((0, 2, 1, 3)).regroup((batch * seq, heads * dim))
    assert joined == View.dense((batch * seq, heads * dim))


def test_reshape_of_a_transpose_stays_a_view() -> None:
    """torch.nn.MultiheadAttention merges (batch, heads) while the sequence is outermost: PyTorch copies there."""
    batch, seq, heads, dim = 2, 5, 3, 4
    rows = View.dense((batch, seq, heads * dim)).permute((1, 0, 2))
    merged = rows.regroup((seq, batch * heads, dim))
    assert merged is not None
    split = merged.permute((1, 0, 2)).regroup((batch, heads, seq, dim))
    assert split == View.dense((batch, seq, heads, dim)).permute((0, 2, 1, 3))


def test_interleaved_columns_are_gathered() -> None:
    """Heads of (q, k, v) packed per head: q of a head of 2 is columns 0, 1 of each 6."""
    packed = View.dense((4, 18)).regroup((4, 3, 3, 2))
    assert packed is not None
    q = packed.narrow(2, 0, 1)
    assert q is not None
    got = q.columns(4, 18)
    assert got is not None
    assert got[0].tolist() == [0, 1, 6, 7, 12, 13]


def test_some_rows_are_not_the_activation() -> None:
    first = View.dense((2, 5, 8)).narrow(1, 0, 1)
    assert first is not None
    assert first.columns(10, 8) is None
    assert prod(first.shape) == 16
