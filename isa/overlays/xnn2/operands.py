"""Right operands: W passes weights on, K and V hold heads of keys and values."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ....machine.description import UnitSpec
from ....machine.steps import Par, Step, Steps
from ....machine.unit import Unit
from ....machine.wiring import Wiring
from ...fields import Record, bits
from ...layout import unblock
from ..xnn.tiles import BEATS, BLOCK_WORDS, TILE, Array
from .ports import HALF, TILE_BLOCKS, TILE_WORDS, ReadPort, WritePort, blocks_in, outside, send, tile_by

LANES = 6
KV = 4
"""K0 and K1, which transpose what they take; V0 and V1."""
FROM_DDR = LANES
"""The source of a K or V that is not a lane."""


def lanes_of_weights(w: int) -> range:
    """The lanes that W0 or W1 sends to."""
    return range(1, LANES, 2) if w else range(LANES)


def lanes_of_heads(kv: int) -> range:
    """The lanes that a K or V sends to: K to even ones, V to odd ones."""
    return range(kv >= KV // 2, LANES, 2)


class W(Record, words=1):
    """Pass tiles of weights on to lanes."""

    tiles: int = bits(0, 0, 10, "tiles")
    lanes: int = bits(0, 10, 6, "bit i selects lane i")
    ddr: int = bits(0, 16, 1, "from DDR, not from LPDDR (W1)")


class KvIn(Record, words=1):
    """Write port of K or V, whose slots hold 128x64 blocks; behind the last slot comes the first."""

    slot: int = bits(0, 0, 4, "first slot")
    tiles: int = bits(0, 4, 4, "blocks from DDR, or tiles of two blocks from a lane")
    source: int = bits(0, 8, 3, "lane whose Post sends tiles; 6: blocks from DDR")
    second: int = bits(0, 11, 4, "slot of the second block of the first tile from a lane")
    wait: int = bits(0, 15, 7, "operations of the read port to wait for")


class KvOut(Record, words=1):
    """Read port of K or V: send tiles from consecutive slots to lanes."""

    slot: int = bits(0, 0, 4, "first slot")
    tiles: int = bits(0, 4, 6, "tiles to send")
    wide: int = bits(0, 10, 1, "a tile is two blocks; otherwise one block is its first half")
    lanes: int = bits(0, 11, 6, "bit i selects lane i")
    wait: int = bits(0, 17, 7, "tiles of the write port to wait for before the first")


class WUnit(Unit):
    """Makes tiles of blocks, and sends each to all lanes that the operation selects. It fills one buffer while it sends
    the other."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.sources = [self.source("LPDDR")] + ([self.source("DDR")] if spec.index else [])
        self.sinks = {i: self.sink(f"MeshB{i}") for i in lanes_of_weights(spec.index)}

    def kernel(self, uop: W) -> Steps:
        source = self.sources[uop.ddr]
        sinks = tuple(sink for i, sink in self.sinks.items() if uop.lanes >> i & 1)
        buffers: list[Any] = [None, None]

        def fill(i: int) -> Steps:
            def keep(words: Any) -> None:
                halves = np.asarray(words).reshape(TILE_BLOCKS, -1)
                buffers[i % 2] = np.concatenate([unblock(x, TILE, HALF) for x in halves], axis=1)

            words = TILE_BLOCKS * BLOCK_WORDS
            yield Step("mem_word", words, gets=(source,), words=words, parts=TILE_WORDS, do=keep)

        def send(i: int) -> Steps:
            yield tile_by("mesh_beat", BEATS, puts=sinks, do=lambda: (buffers[i % 2],) * len(sinks))

        if uop.tiles:
            yield from fill(0)
        for i in range(1, uop.tiles):
            yield Par(fill(i), send(i - 1))
        if uop.tiles:
            yield from send(uop.tiles - 1)

    def effect_key(self, uop: W) -> Hashable:
        return uop


class KvInUnit(WritePort):
    """Write port of K or V."""

    peer = "KvOut"

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.sources = [self.source(f"Post{i}") for i in range(LANES)] + [self.source("DDR")]

    def kernel(self, uop: KvIn) -> Steps:
        yield from self.wait(uop.wait)
        for i in range(uop.tiles):
            source = self.sources[uop.source]
            if uop.source == FROM_DDR:
                yield from blocks_in(source, 1, partial(self._keep, uop.slot + i))
                yield self.done()
            else:
                yield tile_by("mesh_beat", BEATS, gets=(source,), do=partial(self._both, uop, i))
                yield self.done()

    def _keep(self, slot: int, number: int, piece: Array) -> None:
        self.slots[slot] = piece

    def _both(self, uop: KvIn, i: int, tile: Array) -> None:
        self.slots[uop.slot + i] = tile[:, :HALF]
        self.slots[uop.second + i] = tile[:, HALF:]

    def effect_key(self, uop: KvIn) -> Hashable:
        return uop.tiles, uop.source, uop.wait


class KvOutUnit(ReadPort):
    """Read port of K or V."""

    peer = "KvIn"

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.sinks = {i: self.sink(f"MeshB{i}") for i in lanes_of_heads(spec.index)}
        self.transposes = spec.index < KV // 2

    def kernel(self, uop: KvOut) -> Steps:
        yield from self.wait(uop.wait)
        sinks = [sink for i, sink in self.sinks.items() if uop.lanes >> i & 1]
        step = TILE_BLOCKS if uop.wide else 1
        if sinks:
            yield send(sinks, [uop.slot + step * i for i in range(uop.tiles)], partial(self._tile, bool(uop.wide)))
        yield self.done()

    def _tile(self, wide: bool, slot: int) -> Array:
        left = self.writer.slots[slot]
        right = self.writer.slots[slot + 1] if wide else np.full((TILE, HALF), np.nan, np.float32)
        tile = np.concatenate([left[:, :HALF], right[:, :HALF]], axis=1)
        return np.ascontiguousarray(tile.T) if self.transposes else tile

    def effect_key(self, uop: KvOut) -> Hashable:
        return uop.tiles, uop.lanes, uop.wait


def legal_w(unit: UnitSpec, uop: W) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range."""
    if not uop.tiles:
        yield "passes on no tiles"
    elif not uop.lanes:
        yield "passes tiles on to no lane"
    yield from _without(unit, uop.lanes, lanes_of_weights(unit.index))
    if uop.ddr and not unit.index:
        yield f"{unit.name} has no stream from DDR"


def legal_kv_in(unit: UnitSpec, uop: KvIn, slots: int) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range. slots: of its memory."""
    if not uop.tiles:
        if not uop.wait:
            yield "takes no tiles and waits for nothing"
        return
    yield from outside(slots, uop.slot, uop.tiles, ring=True)
    if uop.source > FROM_DDR:
        yield f"source={uop.source}: there are lanes 0 to {LANES - 1}, and DDR is {FROM_DDR}"
    if uop.source < FROM_DDR:
        yield from outside(slots, uop.second, uop.tiles, ring=True, field="second")
        first, second = ({(at + i) % slots for i in range(uop.tiles)} for at in (uop.slot, uop.second))
        if first & second:
            yield f"writes slot {min(first & second)} as a first and as a second block"


def legal_kv_out(unit: UnitSpec, uop: KvOut, slots: int) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range. slots: of its memory."""
    if not uop.tiles:
        if not uop.wait:
            yield "sends no tiles and waits for nothing"
        return
    yield from outside(slots, uop.slot, uop.tiles * (TILE_BLOCKS if uop.wide else 1), ring=True)
    if not uop.lanes:
        yield "sends tiles to no lane"
    yield from _without(unit, uop.lanes, lanes_of_heads(unit.index))


def _without(unit: UnitSpec, lanes: int, have: range) -> Iterator[str]:
    """Yield the reason why a unit cannot send to these lanes, as bits, if it has streams to some lanes only."""
    missing = [i for i in range(LANES) if lanes >> i & 1 and i not in have]
    if missing:
        yield f"{unit.name} has no stream to lane {missing[0]}"


def lint_kv_in(mop: KvIn) -> Iterator[str]:
    """Yield warnings on fields of a mOP that the unit ignores."""
    if mop.second and mop.source == FROM_DDR:
        yield "blocks from DDR come one by one; second is ignored"
