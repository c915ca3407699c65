"""Right operands: W passes weights on, K and V hold heads of keys and values."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ....machine.description import UnitSpec
from ....machine.steps import Par, Step, Steps
from ....machine.unit import Unit, Wiring
from ...fields import Record, bits
from ...layout import unblock
from ...versal.tiles import BEATS, BLOCK_WORDS, TILE, Array
from .ports import HALF, TILE_BLOCKS, TILE_WORDS, FilledMemory, ReadPort, blocks_in, outside, send, tile_by

LANES = 6
KV = 4
"""Memories of heads: K0 and K1, whose read ports transpose; V0 and V1."""
OF_PORT = 2
"""Memories of a write port: KvIn0 has K0 and K1, KvIn1 has V0 and V1."""
FROM_DDR = LANES
"""The source of a K or V that is not a lane."""


def lanes_of_weights(w: int) -> range:
    """Return the numbers of the lanes that W0 or W1 (`w` 0 or 1) sends to."""
    return range(1, LANES, 2) if w else range(LANES)


def memories_of(port: int) -> range:
    """Return the numbers of the memories that a write port of K or V (0 or 1) writes, in 0 to 3 for K0, K1, V0, V1."""
    return range(OF_PORT * port, OF_PORT * (port + 1))


def writer_of(kv: int) -> str:
    """Return the name of the write port of the memory of heads `kv` (0 to 3)."""
    return f"KvIn{kv // OF_PORT}"


def lanes_of_heads(kv: int) -> range:
    """Return the numbers of the lanes that the memory of heads `kv` (0 to 3) sends to: K to even ones, V to
    odd ones.
    """
    return range(kv >= KV // 2, LANES, 2)


class W(Record, words=1):
    """Pass tiles of weights on to lanes."""

    tiles: int = bits(0, 0, 10, "tiles")
    lanes: int = bits(0, 10, 6, "bit i selects lane i")
    ddr: int = bits(0, 16, 1, "from DDR, not from LPDDR (W1)")


class KvIn(Record, words=1):
    """Write port of K0 and K1, or of V0 and V1, whose slots hold 128x64 blocks: those of the first memory, then those
    of the second. An operation writes to one of them; behind its last slot comes its first."""

    slot: int = bits(0, 0, 5, "first slot; also says which memory")
    tiles: int = bits(0, 5, 4, "blocks from DDR, or tiles of two blocks from a lane")
    source: int = bits(0, 9, 3, "lane whose Post sends tiles; 6: blocks from DDR")
    second: int = bits(0, 12, 5, "slot of the second block of the first tile from a lane, in the same memory")
    wait: int = bits(0, 17, 7, "operations of the read port of the memory to wait for")


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


class KvInUnit(Unit):
    """Write port of the two memories of K or V: takes blocks from DDR, or tiles from Post of a lane, into slots of one
    of them."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        assert spec.memory is not None
        self.memories = [HeadMemory(self, kv, spec.memory.slots // OF_PORT) for kv in memories_of(spec.index)]
        self.sources = [self.source(f"Post{i}") for i in range(LANES)] + [self.source("DDR")]

    def kernel(self, uop: KvIn) -> Steps:
        which, slot = divmod(uop.slot, len(self.memories[0].slots))
        memory = self.memories[which]
        yield from memory.wait(uop.wait)
        source = self.sources[uop.source]
        for i in range(uop.tiles):
            if uop.source == FROM_DDR:
                yield from blocks_in(source, 1, partial(memory.keep, slot + i))
            else:
                keep = partial(memory.keep_both, slot + i, uop.second + i)
                yield tile_by("mesh_beat", BEATS, gets=(source,), do=keep)
            yield memory.done()

    def effect_key(self, uop: KvIn) -> Hashable:
        return uop.slot // len(self.memories[0].slots), uop.tiles, uop.source, uop.wait


class HeadMemory(FilledMemory):
    """One of the two memories of K or V, as its write port fills it. port: the write port. kv: number of the memory, 0
    to 3 for K0, K1, V0, V1. slots: its number of slots, each a block."""

    def __init__(self, port: Unit, kv: int, slots: int) -> None:
        super().__init__(port, f"KvOut{kv}", slots)

    def keep(self, slot: int, number: int, piece: Array) -> None:
        """Keep a block (`piece`), (128, 64) float32, in a slot. number: of the block among those that the step takes;
        ignored, since a step takes one block.
        """
        self.slots[slot] = piece

    def keep_both(self, slot: int, second: int, tile: Array) -> None:
        """Keep the two blocks of a tile, (128, 128) float32: its left half in `slot`, its right half in `second`."""
        self.slots[slot] = tile[:, :HALF]
        self.slots[second] = tile[:, HALF:]


class KvOutUnit(ReadPort):
    """Read port of K0, K1, V0 or V1: sends tiles, made of one or two blocks, to the lanes that the operation
    selects."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net, writer_of(spec.index))
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
        slots = self.writer.memories[self.index % OF_PORT].slots
        left = slots[slot]
        right = slots[slot + 1] if wide else np.full((TILE, HALF), np.nan, np.float32)
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
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range. slots: of each of its
    memories."""
    if not uop.tiles and not uop.wait:
        yield "takes no tiles and waits for nothing"
    names = ("slot", "second") if uop.tiles and uop.source < FROM_DDR else ("slot",)
    beyond = [name for name in names if getattr(uop, name) >= OF_PORT * slots]
    yield from (f"{name}={getattr(uop, name)}: the two memories have {OF_PORT * slots} slots" for name in beyond)
    if not uop.tiles or beyond:
        return
    if uop.tiles > slots:
        yield f"{uop.tiles} slots of a memory that has {slots}"
    if uop.source > FROM_DDR:
        yield f"source={uop.source}: there are lanes 0 to {LANES - 1}, and DDR is {FROM_DDR}"
    if uop.source < FROM_DDR:
        if uop.slot // slots != uop.second // slots:
            yield f"slot={uop.slot} and second={uop.second}: the second memory begins with slot {slots}"
            return
        first, second = ({(at + i) % slots for i in range(uop.tiles)} for at in (uop.slot, uop.second))
        if first & second:
            slot = min(first & second) + uop.slot // slots * slots
            yield f"writes slot {slot} as a first and as a second block"


def legal_kv_out(unit: UnitSpec, uop: KvOut, slots: int) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range. slots: those of its memory."""
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
