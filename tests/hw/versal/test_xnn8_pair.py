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

from rsn.hw.versal.check_places import HEAP_BYTES, SYNC_BYTES, TILE_BYTES
from rsn.hw.versal.csim.build import FLAGS, call, compiled, compiler, kept
from rsn.hw.versal.csim.machine import NativeState
from rsn.hw.versal.hlscheck.rules_aie import pointers
from rsn.hw.versal.sources import sources
from rsn.isa.overlays.xnn8 import numbers
from rsn.isa.overlays.xnn8.formats import ChunkKind, ChunkRecord

HERE = Path(__file__).resolve().parent
Bytes = npt.NDArray[np.int8]
RESULT_BYTES = 4 * 16 * 65


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
    """A window of what is multiplied from the right, (k, columns): blocks of 8x4, those along k first."""
    out = np.full(2048, 77, np.int8)
    out[: x.size] = blocks(x, 8, 4).transpose(1, 0, 2, 3).astype(np.int8).reshape(-1)
    return out


def run(
    column: int,
    a: Sequence[Sequence[Bytes]],
    b: Sequence[Sequence[Bytes]],
    windows: int,
    state: NativeState = NativeState.DONE,
) -> Bytes:
    """What the pair makes of the windows of both tiles, (windows, bytes)."""
    of_a, of_b = ([np.concatenate(tile) for tile in x] for x in (a, b))
    out = np.zeros((windows, RESULT_BYTES), np.int8)
    given = (ctypes.c_void_p(x.ctypes.data) for x in (*of_a, *of_b, out))
    a0, a1, b0, b1, to = given
    sizes = [ctypes.c_size_t(n) for n in (len(a[0]), len(b[0]), windows)]
    assert library().run_pair(ctypes.c_uint(column), a0, a1, sizes[0], b0, b1, sizes[1], to, sizes[2]) == state
    return out


def results(windows: Bytes) -> npt.NDArray[np.int16]:
    """The block of results in two windows, (64, 64)."""
    x = windows[:, :4096].reshape(-1).view(np.int16)
    return x.reshape(8, 8, 2, 2, 4, 4).transpose(0, 2, 4, 1, 3, 5).reshape(64, 64)


def integers(rng: np.random.Generator, shape: tuple[int, ...], extreme: bool) -> npt.NDArray[np.int64]:
    return rng.choice([-127, 127], shape) if extreme else rng.integers(-127, 128, shape)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=3), st.data())
def test_products(seed: int, depths: list[tuple[int, bool]], data: st.DataObject) -> None:
    """Blocks of results one behind the other, of several chunks each, in any column and with any shifts."""
    rng = np.random.default_rng(seed)
    column, shifts = data.draw(st.integers(0, 7)), data.draw(st.lists(st.integers(0, 31), min_size=8, max_size=8))
    starts_again = data.draw(st.booleans())
    a: list[list[Bytes]] = [[], []]
    b: list[list[Bytes]] = [[], []]
    wanted = []
    for depth, extreme in depths:
        x, w = integers(rng, (64, 64 * depth), extreme), integers(rng, (64 * depth, 64), extreme)
        if extreme:
            w[:, ::2] = x[:1].T * rng.choice([-1, 1], 32)  # sums as large as they can be, and their negatives
        again = depth // 2 if starts_again else 0
        for i in range(depth):
            fields = {f"shift{n}": shift for n, shift in enumerate(shifts)}
            kind = ChunkKind.LAST if i + 1 == depth else ChunkKind.ADD
            record = ChunkRecord(kind=kind, clears=int(i == again), **fields)
            for tile in range(2):
                k = slice(64 * i + 32 * tile, 64 * i + 32 * (tile + 1))
                a[tile].append(left(x[:, k], record))
                b[tile].append(right(w[k]))
        total = numbers.sums(x[:, 64 * again :], w[64 * again :])
        wanted.append(numbers.drained(total, np.array([[shifts[column]]]))[:, 0])
    made = run(column, a, b, 2 * len(depths))
    for i, of_block in enumerate(wanted):
        np.testing.assert_array_equal(results(made[2 * i : 2 * i + 2]), of_block)


@pytest.mark.parametrize("shift", range(1, 14))
def test_products_round_half_to_even(shift: int) -> None:
    """Sums that are -32 to 31 halves of what the shift leaves."""
    halves = np.arange(64) - 32
    x = np.full((64, 64), 1 << min(6, shift - 1))
    w = np.where(np.arange(64)[:, None] < np.abs(halves), np.sign(halves) << max(0, shift - 7), 0)
    record = ChunkRecord(kind=ChunkKind.LAST, clears=1, shift0=shift)
    a = [[left(x[:, 32 * i : 32 * i + 32], record)] for i in range(2)]
    b = [[right(w[32 * i : 32 * i + 32])] for i in range(2)]
    np.testing.assert_array_equal(numbers.sums(x, w)[0], halves << shift - 1)
    np.testing.assert_array_equal(results(run(0, a, b, 2))[0], np.rint(halves / 2))


def sums_of_heads(windows: Bytes) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Sums of weighted values, (rows, 64), and of weights, (rows,), in windows of 16 rows."""
    x = np.ascontiguousarray(windows).view(np.int32)
    values = x[:, :1024].reshape(-1, 2, 8, 2, 2, 4, 4).transpose(0, 1, 3, 5, 2, 4, 6)
    return values.reshape(-1, 64), x[:, 1024:].reshape(-1)


def padded(x: npt.NDArray[np.integer], columns: int) -> npt.NDArray[np.integer]:
    """Columns that have no meaning are added."""
    return np.concatenate([x, np.full((len(x), columns - x.shape[1]), 55)], 1)


def attention_records(heads: int, **fields: int) -> list[ChunkRecord]:
    return [ChunkRecord(kind=ChunkKind.QUERIES, head=head, **fields) for head in range(heads)]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    head_dim=st.sampled_from([32, 64, 128]),
    keys=st.one_of(st.integers(1, 512), st.sampled_from([32, 64, 128])),
    heads=st.integers(1, 8),
    exponent=st.integers(-20, 4),
    extreme=st.booleans(),
    data=st.data(),
)
def test_attention(
    seed: int, head_dim: int, keys: int, heads: int, exponent: int, extreme: bool, data: st.DataObject
) -> None:
    """Queries of some heads, any number of keys, and what lies behind the last key and beside the last column is not
    read. A product before and behind leaves nothing in the tile, and finds nothing there."""
    rng = np.random.default_rng(seed)
    column = data.draw(st.integers(0, heads - 1))
    lanes = -(-keys // 64) + data.draw(st.integers(0, 1))
    wide, rows, part = head_dim == 128, 32 if head_dim == 128 else 64, min(head_dim, 64)
    queries = integers(rng, (heads, rows, head_dim), extreme)
    k, v = (integers(rng, (64 * lanes, head_dim), extreme) for _ in range(2))
    if extreme:
        k[::2] = queries[column, 0]
        k[1::4] = -queries[column, 0]
    first, second = numbers.score_shifts(np.array(exponent), head_dim)
    fields = {"keys": keys, "first_shift": int(first), "second_shift": min(int(second), 63)}
    a: list[list[Bytes]] = [[], []]
    b: list[list[Bytes]] = [[], []]
    product = ChunkRecord(kind=ChunkKind.LAST, clears=1)
    ones = np.ones((64, 64), np.int64)
    order = [64 * ((column + t) % lanes) + 32 * s for s in range(2) for t in range(lanes)]
    for tile in range(2):
        columns = slice(64 * tile, 64 * tile + 64) if wide else slice(0, 64)
        own = slice(0, 32) if wide else slice(32 * tile, 32 * tile + 32)
        a[tile].append(left(ones[:, :32], product))
        b[tile].append(right(ones[:32]))
        for head, record in enumerate(attention_records(heads, narrow=int(part == 32), **fields)):
            window = left(padded(queries[head, own, columns], 64), record)
            window[2048 + 12 : 2048 + 16].view(np.uint32)[0] = int(wide) | heads << 1 | lanes << 5
            a[tile].append(window)
        for at in order:
            b[tile].append(right(padded(k[at : at + 32, columns], 64).T))
        for at in order:
            b[tile].append(right(padded(k[at : at + 32, columns], 64).T))
            b[tile].append(right(padded(v[at : at + 32, columns], 64)))
        a[tile].append(a[tile][0])
        b[tile].append(b[tile][0])
    made = run(column, a, b, 2 + 4 + 2)
    values, weights = sums_of_heads(made[2:6])
    shows = np.arange(64 * lanes) < keys
    wanted = numbers.weights(numbers.sums(queries[column], k.T), (first, second), shows)
    total = numbers.sums(wanted, v)
    if wide:
        values, repeated = np.concatenate([values[:32], values[32:]], 1), weights[32:]
        weights = weights[:32]
        np.testing.assert_array_equal(repeated, weights)
    np.testing.assert_array_equal(weights, wanted.sum(-1))
    np.testing.assert_array_equal(values[:, :head_dim], total)
    for at in (0, 6):
        assert (results(made[at : at + 2]) == 64).all()


def test_a_causal_mask_is_refused() -> None:
    """It would be left out without a word."""
    window = left(np.zeros((32, 64), np.int64), ChunkRecord(kind=ChunkKind.QUERIES, causal=1, keys=1))
    window[2048 + 12 : 2048 + 16].view(np.uint32)[0] = 1 << 1 | 1 << 5
    slices = [right(np.zeros((32, 64), np.int64))] * 6
    run(0, [[window]] * 2, [slices] * 2, 4, NativeState.FAILED)


def test_memory(root: Path) -> None:
    """A tile has room for all that lies in it, as the page adds it up."""
    page = (root / "docs/xnn8.md").read_text(encoding="utf-8")
    for first in (True, False):
        total = library().tile_bytes(ctypes.c_bool(first)) + HEAP_BYTES + SYNC_BYTES
        assert total <= TILE_BYTES
        assert f"| {total:,} |" in page


def test_pointers_of_pipelined_loops() -> None:
    """None of them may be an alias, for the compiler, of what a loop writes."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in (sources() / "xnn8").iterdir()}
    assert sum(text.count("chess_prepare_for_pipelining") for text in texts.values()) > 5
    assert list(pointers(texts)) == []
