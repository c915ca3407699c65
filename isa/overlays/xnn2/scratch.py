"""T: the tiles of a lane that live for a short time: queries, probabilities, results of heads, of activations, and rows
that are on their way to X.

T of an odd lane has more slots than that of an even one, and takes probabilities from Softmax. These come by the
running maximum of their rows: each group of 32 columns with the maximum up to there. The read port multiplies by
exp(maximum there - last maximum) / sum as it sends them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ....machine.description import UnitSpec
from ....machine.steps import Step, Steps
from ....machine.unit import Wiring
from ...fields import Record, bits
from ...lanes import SlotPart, TileSource, TileTarget
from ...versal.tiles import BEAT, BEATS, TILE, Array
from .ports import HALF, TILE_BLOCKS, ReadPort, WritePort, blocks_in, outside, send, tile_by

ENDS = "ends"
"""Label of the streams of `HeadTotals` from Softmax."""
END_WORDS = TILE // 4
"""Words of a `HeadTotals`: of four rows each."""
GROUPS = TILE // BEAT
"""Groups of columns of a tile that share a maximum of each row."""


class Weighted(NamedTuple):
    """Probabilities before their last factor. tile: (128, 128) float32. tops: (128, 4) float32, the running maximum of
    each row and group of columns.
    """

    tile: Array
    tops: Array


class HeadTotals(NamedTuple):
    """The last maximum and the sum of each row, (128,) float32 both, that end the tiles of a head."""

    top: Array
    total: Array


class TIn(Record, words=1):
    """Write port of T: take tiles into consecutive slots, behind the last one comes the first."""

    slot: int = bits(0, 0, 5, "first slot")
    tiles: int = bits(0, 5, 5, "tiles to take")
    source: int = bits(0, 10, 2, "Post of the even lane (to T of that), of the odd lane, Softmax, DDR")
    part: int = bits(0, 12, 2, "0 whole, 1 left half (the right one becomes 0), 2 right half of the slots")
    wait: int = bits(0, 14, 6, "operations of the read port to wait for")


class TOut(Record, words=1):
    """Read port of T: send consecutive slots, each `times` times."""

    slot: int = bits(0, 0, 5, "first slot")
    tiles: int = bits(0, 5, 5, "tiles to send")
    times: int = bits(0, 10, 6, "how often each is sent", default=1)
    to: int = bits(0, 16, 3, "MME of the even lane, the odd lane, both; T of an odd lane: X of the even lane, the odd")
    part: int = bits(0, 19, 2, "0 whole, 1 left half, 2 right half of the slots")
    weights: int = bits(0, 21, 1, "they are the probabilities of a head: the last factor is applied")
    wait: int = bits(0, 22, 7, "tiles of the write port to wait for before the first")


class TInUnit(WritePort):
    """Write port of T: takes tiles from Post, Softmax or DDR into slots, or into halves of them."""

    peer = "TOut"

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.sources = {TileSource.ODD: self.source(f"Post{spec.index | 1}")}
        if not spec.index & 1:
            self.sources[TileSource.EVEN] = self.source(f"Post{spec.index}")
        else:
            self.sources[TileSource.SOFTMAX] = self.source(f"Soft{spec.index // 2}")
            self.ends = self.source(f"Soft{spec.index // 2}", ENDS)
            self.sources[TileSource.DDR] = self.source("DDR")
        self.ended: dict[int, HeadTotals] = {}
        """The ends of heads, by the slot of their first tile."""

    def kernel(self, uop: TIn) -> Steps:
        yield from self.wait(uop.wait)
        for i in range(uop.tiles):
            source = self.sources[TileSource(uop.source)]
            if uop.source == TileSource.DDR:
                yield from blocks_in(source, TILE_BLOCKS, partial(self._join, uop, i))
            else:
                yield tile_by("mesh_beat", BEATS, gets=(source,), do=partial(self._keep, uop, i))
            if uop.source == TileSource.SOFTMAX and i == uop.tiles - 1:
                yield Step("mem_word", END_WORDS, gets=(self.ends,), words=END_WORDS, do=partial(self._end, uop.slot))
            yield self.done()

    def _join(self, uop: TIn, i: int, number: int, piece: Array) -> None:
        if not number:
            self.begun = piece
        else:
            self.slots[uop.slot + i] = np.concatenate([self.begun, piece], axis=1)

    def _keep(self, uop: TIn, i: int, tile: Any) -> None:
        slot = uop.slot + i
        if uop.part != SlotPart.WHOLE:
            at = HALF * (uop.part - 1)
            whole = self.slots[slot].copy() if at else np.zeros((TILE, TILE), np.float32)
            whole[:, at : at + HALF] = tile[:, :HALF]
            tile = whole
        self.slots[slot] = tile

    def _end(self, slot: int, ended: HeadTotals) -> None:
        self.ended[slot] = ended

    def effect_key(self, uop: TIn) -> Hashable:
        return uop.tiles, uop.source, uop.wait


class TOutUnit(ReadPort):
    """Read port of T: sends the tiles of slots, or halves of them, to MMEs or to X. It applies the last factor to
    probabilities, if the operation says so."""

    peer = "TIn"

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        even, odd = spec.index & ~1, spec.index | 1
        meshes = [self.sink(f"MeshA{i}") for i in (even, odd)]
        self.targets = {
            TileTarget.EVEN: (meshes[0],),
            TileTarget.ODD: (meshes[1],),
            TileTarget.PAIR: tuple(meshes),
        }
        if spec.index & 1:
            self.targets[TileTarget.ROWS_EVEN] = (self.sink(f"XIn{even}"),)
            self.targets[TileTarget.ROWS_ODD] = (self.sink(f"XIn{odd}"),)

    def kernel(self, uop: TOut) -> Steps:
        yield from self.wait(uop.wait)
        slots = [uop.slot + i for i in range(uop.tiles) for _ in range(uop.times)]
        if slots:
            yield send(self.targets[TileTarget(uop.to)], slots, partial(self._tile, uop))
        yield self.done()

    def _tile(self, uop: TOut, slot: int) -> Array:
        tile: Any = self.writer.slots[slot]
        if uop.weights:
            end = self.writer.ended[uop.slot]
            with np.errstate(divide="ignore", invalid="ignore"):
                factor = np.where(
                    end.total[:, None] > 0, np.exp(tile.tops - end.top[:, None]) / end.total[:, None], 0
                ).astype(np.float32)
            tile = (tile.tile.reshape(TILE, GROUPS, BEAT) * factor[:, :, None]).reshape(TILE, TILE)
        if uop.part != SlotPart.WHOLE:
            half = np.full((TILE, TILE), np.nan, np.float32)
            at = HALF * (uop.part - 1)
            half[:, :HALF] = tile[:, at : at + HALF]
            tile = half
        return np.asarray(tile)

    def effect_key(self, uop: TOut) -> Hashable:
        return uop.tiles, uop.times, uop.to, uop.wait


def legal_in(unit: UnitSpec, uop: TIn, slots: int) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range. slots: those of its memory."""
    if not uop.tiles:
        if not uop.wait:
            yield "takes no tiles and waits for nothing"
        return
    yield from outside(slots, uop.slot, uop.tiles, ring=True)
    if uop.source in (TileSource.SOFTMAX, TileSource.DDR):
        name = "Softmax" if uop.source == TileSource.SOFTMAX else "DDR"
        if not unit.index & 1:
            yield f"{unit.name}, of an even lane, has no stream from {name}"
        if uop.part:
            yield f"takes whole tiles from {name}, not part={uop.part}"
    if uop.source == TileSource.EVEN and unit.index & 1:
        yield f"{unit.name}, of an odd lane, has no stream from Post of the even one"
    if uop.part > SlotPart.RIGHT:
        yield f"part={uop.part} is none"


def legal_out(unit: UnitSpec, uop: TOut, slots: int) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range. slots: those of its memory."""
    if not uop.tiles:
        if not uop.wait:
            yield "sends no tiles and waits for nothing"
        return
    if not uop.times:
        yield "sends tiles 0 times"
    yield from outside(slots, uop.slot, uop.tiles, ring=True)
    if uop.to > TileTarget.ROWS_ODD:
        yield f"to={uop.to} is none"
    elif uop.to >= TileTarget.ROWS_EVEN and not unit.index & 1:
        yield f"{unit.name}, of an even lane, has no stream to X"
    if uop.part > SlotPart.RIGHT:
        yield f"part={uop.part} is none"
    elif uop.part and uop.to >= TileTarget.ROWS_EVEN:
        yield "sends half tiles to X, which takes whole ones"
    if uop.weights and not unit.index & 1:
        yield f"{unit.name}, of an even lane, holds no probabilities"
