"""The kernels of a pair of AIE tiles of xnn8, run natively, equal the definition of its numbers in every bit."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsn.hw.versal.csim.build import FLAGS, call, compiled, compiler, kept
from rsn.hw.versal.csim.machine import NativeState
from rsn.hw.versal.hlscheck.rules_aie import pointers
from rsn.hw.versal.sources import sources
from rsn.isa.overlays.xnn8 import numbers
from rsn.isa.overlays.xnn8.formats import ChunkKind, ChunkRecord

HERE = Path(__file__).resolve().parent
ROWS = st.sampled_from([16, 32, 48, 64])
"""Rows of a lane."""
Bytes = npt.NDArray[np.int8]
RESULT_BYTES = 4 * 8 * 65


@cache
def library() -> ctypes.CDLL:
    """The functions of xnn8_pair.cpp."""
    versal = sources()
    flags = [*FLAGS, f"-I{versal}", f"-I{versal / 'csim' / 'include'}"]
    files = [versal / "xnn8" / "kernels.cc", versal / "csim" / "machine.cpp", HERE / "xnn8_pair.cpp"]
    objects = [compiled(file, flags) for file in files]
    target = objects[-1].with_suffix(".".join(["", *(x.stem for x in objects[:-1]), "so"]))
    kept(target, lambda made: call([compiler(), *flags, "-shared", *map(str, objects), "-o", str(made)]))
    return ctypes.CDLL(str(target))


def blocks(x: npt.NDArray[np.integer], down: int, across: int) -> npt.NDArray[np.integer]:
    """Blocks of a matrix, (rows / down, columns / across, down, across)."""
    rows, columns = x.shape
    return x.reshape(rows // down, down, columns // across, across).transpose(0, 2, 1, 3)


def left(x: npt.NDArray[np.integer], record: ChunkRecord) -> Bytes:
    """A window of rows: blocks of 4x8, and the record at its end."""
    out = np.zeros(2048 + 32, np.int8)
    out[: x.size] = blocks(x, 4, 8).astype(np.int8).reshape(-1)
    out[2048:] = np.array(record.encode(), np.uint32).view(np.int8)
    return out


def right(x: npt.NDArray[np.integer]) -> Bytes:
    """A window of what is multiplied from the right, (k, columns): pairs of blocks of 8x4, those along k first."""
    out = np.full(2048, 77, np.int8)
    k, columns = x.shape
    pairs = blocks(x, 8, 4).reshape(k // 8, columns // 8, 2, 8, 4).swapaxes(0, 1)
    out[: x.size] = pairs.astype(np.int8).reshape(-1)
    return out


def run(
    column: int,
    a: Sequence[Sequence[Bytes]],
    b: Sequence[Sequence[Bytes]],
    blocks: Sequence[int],
    state: NativeState = NativeState.DONE,
) -> Bytes:
    """What the pair makes of the windows of both tiles, (windows, bytes), without their numbers, which are checked.
    blocks: windows of each block of results."""
    of_a, of_b = ([np.concatenate(tile) for tile in x] for x in (a, b))
    odd = np.concatenate([np.arange(n) % 2 for n in blocks]).astype(np.uint8)
    out = np.zeros((len(odd), RESULT_BYTES), np.int8)
    given = (ctypes.c_void_p(x.ctypes.data) for x in (*of_a, *of_b, out, odd))
    a0, a1, b0, b1, to, parity = given
    sizes = [ctypes.c_size_t(n) for n in (len(a[0]), len(b[0]), len(odd))]
    assert library().run_pair(ctypes.c_uint(column), a0, a1, sizes[0], b0, b1, sizes[1], to, parity, sizes[2]) == state
    np.testing.assert_array_equal(out[:, 3], 2 * (column // 2) + odd)
    out[:, 3] = 0
    return out


def results(windows: Bytes) -> npt.NDArray[np.int16]:
    """The block of results in windows of 16 rows, (rows, 64)."""
    x = np.ascontiguousarray(windows[:, 32:]).reshape(-1).view(np.int16)
    return x.reshape(-1, 8, 2, 2, 4, 4).transpose(0, 2, 4, 1, 3, 5).reshape(-1, 64)


def integers(rng: np.random.Generator, shape: tuple[int, ...], extreme: bool) -> npt.NDArray[np.int64]:
    return rng.choice([-127, 127], shape) if extreme else rng.integers(-127, 128, shape)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(st.integers(1, 5), st.booleans(), ROWS), min_size=1, max_size=3),
    st.data(),
)
def test_products(seed: int, depths: list[tuple[int, bool, int]], data: st.DataObject) -> None:
    """Blocks of results one behind the other, of several chunks each, in any column and with any shifts."""
    rng = np.random.default_rng(seed)
    column, shifts = data.draw(st.integers(0, 7)), data.draw(st.lists(st.integers(0, 31), min_size=8, max_size=8))
    starts_again = data.draw(st.booleans())
    a: list[list[Bytes]] = [[], []]
    b: list[list[Bytes]] = [[], []]
    wanted = []
    for depth, extreme, rows in depths:
        x, w = integers(rng, (rows, 64 * depth), extreme), integers(rng, (64 * depth, 64), extreme)
        if extreme:
            w[:, ::2] = x[:1].T * rng.choice([-1, 1], 32)  # sums as large as they can be, and their negatives
        again = depth // 2 if starts_again else 0
        for i in range(depth):
            fields = {f"shift{n}": shift for n, shift in enumerate(shifts)}
            kind = ChunkKind.LAST if i + 1 == depth else ChunkKind.ADD
            record = ChunkRecord(kind=kind, clears=int(i == again), rows=rows, **fields)
            for tile in range(2):
                k = slice(64 * i + 32 * tile, 64 * i + 32 * (tile + 1))
                a[tile].append(left(x[:, k], record))
                b[tile].append(right(w[k]))
        total = numbers.sums(x[:, 64 * again :], w[64 * again :])
        wanted.append(numbers.drained(total, np.array([[shifts[column]]]))[:, 0])
    np.testing.assert_array_equal(results(run(column, a, b, [len(x) // 16 for x in wanted])), np.concatenate(wanted))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 4), ROWS, st.booleans())
def test_products_of_rows_of_16_bits(seed: int, low_bits: int, depth: int, rows: int, extreme: bool) -> None:
    """High parts of all chunks, then low ones, before which the sums are shifted: those of the whole rows."""
    rng = np.random.default_rng(seed)
    x, w = integers(rng, (rows, 64 * depth), extreme) << low_bits, integers(rng, (64 * depth, 64), extreme)
    if extreme:
        x, w[:, ::2] = x - rng.choice([0, 127, 128], x.shape) * np.sign(x), np.sign(x[:1].T) * 127
    else:
        x = x - np.sign(x) * rng.integers(0, 1 << low_bits, x.shape)
    shift = numbers.drain_shift((127 << low_bits) * int(abs(w).sum(0).max()))
    a: list[list[Bytes]] = [[], []]
    b: list[list[Bytes]] = [[], []]
    for number, (part, i) in enumerate((part, i) for part in numbers.parts(x) for i in range(depth)):
        kind = ChunkKind.LAST if number + 1 == 2 * depth else ChunkKind.ADD
        up = 8 if number == depth else 0
        record = ChunkRecord(kind=kind, clears=int(not number), rows=rows, up=up, shift0=shift)
        for tile in range(2):
            k = slice(64 * i + 32 * tile, 64 * i + 32 * (tile + 1))
            a[tile].append(left(part[:, k], record))
            b[tile].append(right(w[k]))
    wanted = numbers.drained(numbers.sums_of_rows(x, w, low_bits), np.array([[shift]]))[:, 0]
    np.testing.assert_array_equal(results(run(0, a, b, [rows // 16])), wanted)


@pytest.mark.parametrize("shift", range(1, 14))
def test_products_round_half_to_even(shift: int) -> None:
    """Sums that are -32 to 31 halves of what the shift leaves."""
    halves = np.arange(64) - 32
    x = np.full((64, 64), 1 << min(6, shift - 1))
    w = np.where(np.arange(64)[:, None] < np.abs(halves), np.sign(halves) << max(0, shift - 7), 0)
    record = ChunkRecord(kind=ChunkKind.LAST, clears=1, shift0=shift, rows=64)
    a = [[left(x[:, 32 * i : 32 * i + 32], record)] for i in range(2)]
    b = [[right(w[32 * i : 32 * i + 32])] for i in range(2)]
    np.testing.assert_array_equal(numbers.sums(x, w)[0], halves << shift - 1)
    np.testing.assert_array_equal(results(run(0, a, b, [4]))[0], np.rint(halves / 2))


def sums_of_heads(windows: Bytes) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Sums of weighted values, (rows, 64), and of weights, (rows,), in windows of 8 rows."""
    x = np.ascontiguousarray(windows).view(np.int32)
    values = x[:, 8:].reshape(-1, 8, 2, 2, 4, 4).transpose(0, 2, 4, 1, 3, 5)
    return values.reshape(-1, 64), x[:, :8].reshape(-1)


def filled_up(x: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """A slice of 32 keys, of which those behind the last one have no meaning."""
    return np.concatenate([x, np.full((32 - len(x), x.shape[1]), -99)])


def padded(x: npt.NDArray[np.integer], columns: int) -> npt.NDArray[np.integer]:
    """Columns that have no meaning are added."""
    return np.concatenate([x, np.full((len(x), columns - x.shape[1]), 55)], 1)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    head_dim=st.sampled_from([32, 64, 128]),
    lane_rows=ROWS,
    lanes=st.integers(1, 8),
    heads=st.integers(1, 8),
    exponent=st.integers(-20, 4),
    causal=st.booleans(),
    extreme=st.booleans(),
    data=st.data(),
)
def test_attention(
    seed: int,
    head_dim: int,
    lane_rows: int,
    lanes: int,
    heads: int,
    exponent: int,
    causal: bool,
    extreme: bool,
    data: st.DataObject,
) -> None:
    """Queries of some heads, any number of keys, of which a lane may have others than rows. What lies behind the last
    key and beside the last column is not read. A product before and behind leaves nothing in the tile, and finds
    nothing there."""
    rng = np.random.default_rng(seed)
    column, lane = data.draw(st.integers(0, heads - 1)), data.draw(st.integers(0, lanes - 1))
    key_rows = data.draw(st.sampled_from([lane_rows, lane_rows // 2 // 16 * 16 or 16, 96]))
    count = key_rows * lanes
    shown = data.draw(st.one_of(st.integers(1, count), st.just(count)))
    wide, own, part = head_dim == 128, lane_rows // 2, min(head_dim, 64)
    rows = own if wide else lane_rows
    first_row = lane_rows * lane + (own * data.draw(st.integers(0, 1)) if wide else 0)
    queries = integers(rng, (heads, rows, head_dim), extreme)
    k, v = (integers(rng, (count, head_dim), extreme) for _ in range(2))
    if extreme:
        k[::2] = queries[column, 0]
        k[1::4] = -queries[column, 0]
    first, second = numbers.score_shifts(np.array(exponent), head_dim)
    shifts = {"first_shift": int(first), "second_shift": min(int(second), 63)}
    said = {"keys": shown, "lanes": lanes, "rows": lane_rows, "wide": int(wide), "narrow": int(part == 32)}
    said |= {"key_rows": key_rows, "first_row": first_row, "heads": heads, "causal": int(causal), **shifts}
    a: list[list[Bytes]] = [[], []]
    b: list[list[Bytes]] = [[], []]
    product = ChunkRecord(kind=ChunkKind.LAST, clears=1, rows=64)
    ones = np.ones((64, 64), np.int64)
    order = np.concatenate([key_rows * ((column + t) % lanes) + np.arange(key_rows) for t in range(lanes)])
    slices = [(k[at], v[at]) for at in (order[i : i + 32] for i in range(0, count, 32))]
    for tile in range(2):
        columns = slice(64 * tile, 64 * tile + 64) if wide else slice(0, 64)
        half = slice(0, own) if wide else slice(own * tile, own * tile + own)
        a[tile].append(left(ones[:, :32], product))
        b[tile].append(right(ones[:32]))
        for head in range(heads):
            record = ChunkRecord(kind=ChunkKind.QUERIES, head=head, **said)
            a[tile].append(left(padded(queries[head, half, columns], 64), record))
        for keys, _ in slices:
            b[tile].append(right(filled_up(padded(keys[:, columns], 64)).T))
        for keys, values in slices:
            b[tile].append(right(filled_up(padded(keys[:, columns], 64)).T))
            b[tile].append(right(filled_up(padded(values[:, columns], 64))))
        a[tile].append(a[tile][0])
        b[tile].append(b[tile][0])
    made = run(column, a, b, [4, lane_rows // 8, 4])
    values, weights = sums_of_heads(made[4:-4])
    shows = np.arange(count) < shown
    if causal:
        shows = shows & (np.arange(count) <= first_row + np.arange(rows)[:, None])
    wanted = numbers.weights(numbers.sums(queries[column], k.T), (first, second), shows)
    total = numbers.sums(wanted, v)
    if wide:
        values, repeated = np.concatenate([values[:own], values[own:]], 1), weights[own:]
        weights = weights[:own]
        np.testing.assert_array_equal(repeated, weights)
    np.testing.assert_array_equal(weights, wanted.sum(-1))
    np.testing.assert_array_equal(values[:, :head_dim], total)
    for block in (made[:4], made[-4:]):
        assert (results(block) == 64).all()


def test_pointers_of_pipelined_loops() -> None:
    """None of them may be an alias, for the compiler, of what a loop writes."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in (sources() / "xnn8").iterdir()}
    assert sum(text.count("chess_prepare_for_pipelining") for text in texts.values()) > 5
    assert list(pointers(texts)) == []
