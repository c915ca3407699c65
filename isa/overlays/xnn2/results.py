"""What becomes of the tiles of an MME: C adds vectors and residuals, Post applies functions, Softmax makes
probabilities."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from ....machine.description import UnitSpec
from ....machine.steps import Channel, Step, Steps
from ....machine.unit import Unit, Wiring
from ...fields import Record, bits
from ...lanes import PostTarget, ResultTarget
from ...versal.functions import HeadNorm, activation
from ...versal.tiles import BEAT, BEATS, TILE, Array
from .cycles import LOOPS
from .ports import TILE_WORDS, blocks_out, tile_by, tiles_by
from .scratch import END_WORDS, ENDS, GROUPS, HeadTotals, Weighted

VECTOR_WORDS = TILE // BEAT
"""Words of the vector of a column tile."""
ACTIVATIONS = ("gelu_tanh", "gelu_erf", "relu", "silu")
"""By number, as MemC's on XNN."""
IDENTITY = len(ACTIVATIONS)
"""The activation that changes nothing; the others are those of MemC on XNN."""

ROUNDS, HEAD_ROUNDS = LOOPS["combine"].rounds, LOOPS["head_sums"].rounds
"""Cycles to a beat: of C, with a bias or a residual; of Post, for sums of heads, and for squares."""


class C(Record, words=1):
    """Take tiles from the MME of the lane: tile + bias + residual * scale."""

    tiles: int = bits(0, 0, 16, "tiles")
    to: int = bits(0, 16, 2, "Post, X, Softmax")
    bias: int = bits(0, 18, 1, "take a vector of each tile, and add it to each row")
    scale: int = bits(0, 19, 1, "take a vector of each tile, behind that of the bias, for the columns of the residual")
    residual: int = bits(0, 20, 1, "take a tile from X for each tile, and add it")
    alone: int = bits(0, 21, 1, "take no tiles from the MME: the residual alone")


class Post(Record, words=2):
    """Take tiles from C: norm of heads, rotation, activation."""

    tiles: int = bits(0, 0, 8, "tiles to send")
    to: int = bits(0, 8, 3, "T of the even lane of the pair, T of the odd lane, DDR, K, V")
    activation: int = bits(0, 11, 3, "as MemC's", default=IDENTITY)
    gate: int = bits(0, 14, 1, "take pairs of tiles: activation(first) * second")
    table: int = bits(0, 15, 1, "take a table of cosines and sines of the rows before")
    rotate: int = bits(0, 16, 1, "rotate neighbouring columns by the table")
    heads: int = bits(0, 17, 1, "a tile has two heads of 64 columns, not one of 128")
    norm: int = bits(0, 18, 1, "normalise each head")
    rms: int = bits(0, 19, 1, "without mean")
    columns: int = bits(0, 20, 8, "columns of a head that are normalised")
    gains: int = bits(0, 28, 1, "take a vector before, behind the table; multiply the columns by it before a rotation")
    eps: float = bits(1, 0, 32, "added to the variance", default=1e-6, real=True)


class Soft(Record, words=3):
    """Take the scores of a head from the even lane of the pair, and make probabilities."""

    tiles: int = bits(0, 0, 6, "tiles of the head")
    keys: int = bits(0, 6, 13, "columns that are keys; the others become 0")
    first: int = bits(0, 19, 13, "columns before the first key")
    offset: int = bits(1, 0, 14, "see `causal`", signed=True)
    low: int = bits(1, 14, 15, "see `windowed`", signed=True)
    causal: int = bits(1, 29, 1, "column c counts for row r if c <= r + offset")
    windowed: int = bits(1, 30, 1, "column c counts for row r only if c >= r + low")
    cap: float = bits(2, 0, 32, "scores become cap * tanh(score / cap); 0: they stay", real=True)


class CUnit(Unit):
    """Adds a bias and a residual to the results of an MME."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        i = spec.index
        self.products, self.vectors = self.source(f"MME{i}"), self.source("LPDDR")
        self.residuals = self.source(f"XOut{i}")
        self.targets = {ResultTarget.POST: self.sink(f"Post{i}"), ResultTarget.ROWS: self.sink(f"XIn{i}")}
        if not i & 1:
            self.targets[ResultTarget.SOFTMAX] = self.sink(f"Soft{i // 2}")

    def kernel(self, uop: C) -> Steps:
        sink = self.targets[ResultTarget(uop.to)]
        if not (uop.bias or uop.scale or uop.residual):
            yield tiles_by("mesh_beat", BEATS, uop.tiles, gets=(self.products,), puts=(sink,), do=lambda n, x: (x,))
            return
        gets: tuple[Channel, ...] = () if uop.alone else (self.products,)
        if uop.residual:
            gets += (self.residuals,)
        for _ in range(uop.tiles):
            vectors: list[Any] = []
            for _ in range(uop.bias + uop.scale):
                yield Step("mem_word", VECTOR_WORDS, gets=(self.vectors,), words=VECTOR_WORDS, do=vectors.append)

            def made(*tiles: Any, vectors: list[Any] = vectors) -> tuple[Array]:
                given = [np.asarray(v).reshape(-1) for v in vectors]
                parts = list(tiles[: 1 - uop.alone])
                if uop.bias:
                    parts.append(given[0])
                if uop.residual:
                    parts.append(tiles[-1] * given[-1] if uop.scale else tiles[-1])
                return (sum(parts[1:], parts[0]),)

            yield tile_by("mesh_beat", ROUNDS * BEATS, gets=gets, puts=(sink,), do=made)

    def effect_key(self, uop: C) -> Hashable:
        return uop


class PostUnit(Unit):
    """Post of a lane: applies functions to the tiles from C. It takes a tile into a buffer, normalises and rotates its
    heads there, and then sends it on with the activation, and the gate, applied. A tile for DDR goes through the buffer
    once more, because it leaves in blocks.
    """

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        i = spec.index
        self.results, self.tables = self.source(f"C{i}"), self.source("LPDDR")
        self.targets: dict[int, Channel] = {
            PostTarget.EVEN: self.sink(f"TIn{i & ~1}"),
            PostTarget.DDR: self.sink("DDR"),
        }
        if i & 1:
            self.targets[PostTarget.ODD] = self.sink(f"TIn{i}")
        self.targets |= {PostTarget.KEYS: self.sink("KvIn0"), PostTarget.VALUES: self.sink("KvIn1")}
        self.table: Any = None
        self.gains: Any = None

    def kernel(self, uop: Post) -> Steps:
        sink = self.targets[uop.to]
        if uop.table:
            cycles = LOOPS["table"].rounds * BEATS
            yield Step("mem_word", cycles, gets=(self.tables,), words=BEATS, parts=TILE_WORDS, do=self._keep_table)
        if uop.gains:
            yield Step("mem_word", VECTOR_WORDS, gets=(self.tables,), words=VECTOR_WORDS, do=self._keep_gains)
        heads = bool(uop.norm or uop.gains or uop.rotate)
        active = bool(uop.gate or uop.activation != IDENTITY)
        rate = "activation_beat" if active else ""
        second = (self.results,) if uop.gate else ()
        for _ in range(uop.tiles):
            taken: list[Any] = []

            def made(*gate: Any, taken: list[Any] = taken) -> tuple[Array]:
                taken.append(self._made(uop, taken[0], *gate))
                return (taken[-1],)

            yield tile_by("mesh_beat", BEATS, gets=(self.results,), do=taken.append)
            if uop.norm:
                yield Step("mesh_beat", (1 if uop.rms else 2) * HEAD_ROUNDS * BEATS)
            if heads:
                yield Step("rotate_beat", BEATS)
            if uop.to != PostTarget.DDR:
                yield tile_by(rate or "mesh_beat", BEATS, gets=second, puts=(sink,), do=made)
                continue

            def stored(taken: list[Any] = taken, made: Callable[..., tuple[Array]] = made) -> Array:
                """What was made of the tile. Where no activation has made it, the first block does."""
                if len(taken) == 1:
                    made()
                return np.asarray(taken[1])

            if rate:
                yield tile_by(rate, BEATS, gets=second, do=lambda *gate, made=made: made(*gate) and None)
            yield from blocks_out(sink, stored)

    def _keep_table(self, table: Any) -> None:
        self.table = np.asarray(table).reshape(TILE, TILE)

    def _keep_gains(self, gains: Any) -> None:
        self.gains = np.asarray(gains).reshape(TILE)

    def _made(self, uop: Post, tile: Array, gate: Array | None = None) -> Array:
        width = TILE // 2 if uop.heads else TILE
        if uop.norm:
            heads = tile.reshape(TILE, TILE // width, width)
            tile = HeadNorm(uop.columns, uop.eps, bool(uop.rms)).apply(heads).reshape(TILE, TILE)
        if uop.gains:
            tile = tile * self.gains
        if uop.rotate:
            # the first half of the columns of a head in the table are cosines, the second half sines
            pairs = tile.reshape(TILE, TILE // width, width // 2, 2)
            cos = self.table[:, None, : width // 2]
            sin = self.table[:, None, width // 2 : width]
            a, b = pairs[..., 0], pairs[..., 1]
            tile = np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(TILE, TILE)
        tile = activation(tile, uop.activation)
        return np.asarray(tile if gate is None else tile * gate)

    def effect_key(self, uop: Post) -> Hashable:
        return uop


class SoftUnit(Unit):
    """Softmax of a pair: takes the scores of a head, and sends exp(score - running maximum) of each. The running
    maximum of a row is that of its columns so far, and grows from each group of 32 columns to the next."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        even = 2 * spec.index
        self.scores = self.source(f"C{even}")
        self.probabilities, self.ends = self.sink(f"TIn{even + 1}"), self.sink(f"TIn{even + 1}", ENDS)

    def kernel(self, uop: Soft) -> Steps:
        rate = "softcap_beat" if uop.cap else "softmax_beat"
        head = Head(uop)
        yield tiles_by(rate, BEATS, uop.tiles, gets=(self.scores,), puts=(self.probabilities,), do=head.add)
        yield Step("mem_word", END_WORDS, puts=(self.ends,), words=END_WORDS, do=head.end)

    def effect_key(self, uop: Soft) -> Hashable:
        return uop.tiles, bool(uop.cap)


class Head:
    """The softmax of one head for 128 rows, as its tiles of scores come. uop: which columns count for each row."""

    def __init__(self, uop: Soft) -> None:
        self.uop = uop
        self.done = 0
        self.top = np.full(TILE, -np.inf, np.float32)
        self.total = np.zeros(TILE, np.float32)

    def add(self, n: int, tiles: Any) -> tuple[list[Weighted]]:
        """Take the next n tiles of scores, (128, 128) float32 each. Returns their exps with the maxima so far, a
        `Weighted` each: the payloads of a burst of one stream.
        """
        return ([self._weighted(tile) for tile in tiles],)

    def _weighted(self, tile: Array) -> Weighted:
        uop, left = self.uop, self.done * TILE
        self.done += 1
        column, row = left + np.arange(TILE)[None], np.arange(TILE)[:, None]
        valid = (column >= uop.first) & (column < uop.keys)
        if uop.causal:
            valid = valid & (column <= row + uop.offset)
        if uop.windowed:
            valid = valid & (column >= row + uop.low)
        if uop.cap:
            tile = np.float32(uop.cap) * np.tanh(tile / np.float32(uop.cap))
        x = np.where(valid, tile, -np.inf).astype(np.float32).reshape(TILE, GROUPS, BEAT)
        out = np.empty_like(x)
        tops = np.empty((TILE, GROUPS), np.float32)
        for g in range(GROUPS):
            top = np.maximum(self.top, x[:, g].max(axis=1))
            base = np.where(np.isfinite(top), top, 0)
            out[:, g] = np.exp(x[:, g] - base[:, None])
            self.total = self.total * np.exp(np.minimum(self.top - base, 0)) + out[:, g].sum(axis=1, dtype=np.float32)
            self.top, tops[:, g] = top, top
        return Weighted(out.reshape(TILE, TILE), tops)

    def end(self) -> tuple[HeadTotals]:
        """Return the last maximum and the sum of each row, (128,) float32 each; the maximum of a row without a key is
        0.
        """
        return (HeadTotals(np.where(np.isfinite(self.top), self.top, 0).astype(np.float32), self.total),)


def legal_c(unit: UnitSpec, uop: C) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range."""
    if not uop.tiles:
        yield "passes on no tiles"
    if uop.to > ResultTarget.SOFTMAX:
        yield f"to={uop.to} is none"
    elif uop.to == ResultTarget.SOFTMAX and unit.index & 1:
        yield f"{unit.name}, of an odd lane, has no stream to Softmax"
    if uop.alone and not uop.residual:
        yield "alone without a residual: it takes no tiles at all"
    if uop.scale and not uop.residual:
        yield "scale without a residual: it scales nothing"


def legal_post(unit: UnitSpec, uop: Post) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range."""
    if not (uop.tiles or uop.table or uop.gains):
        yield "sends no tiles, and takes neither table nor vector"
    if uop.to > PostTarget.VALUES:
        yield f"to={uop.to} is none"
    elif uop.to == PostTarget.ODD and not unit.index & 1:
        yield f"{unit.name}, of an even lane, has no stream to T of the odd one"
    if uop.activation > IDENTITY:
        yield f"activation={uop.activation} is none"
    if uop.norm:
        width = TILE // 2 if uop.heads else TILE
        if not 0 < uop.columns <= width:
            yield f"normalises {uop.columns} columns of heads of {width}"
        if uop.eps < 0:
            yield f"eps={uop.eps:g} must not be less than 0"


def legal_soft(unit: UnitSpec, uop: Soft) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range."""
    if not uop.tiles:
        yield "makes the probabilities of a head of 0 tiles: of nothing"
    elif uop.keys > uop.tiles * TILE:
        yield f"{uop.keys} keys; {uop.tiles} tiles have {uop.tiles * TILE} columns"
    if uop.cap < 0:
        yield f"cap={uop.cap:g} must not be less than 0"
