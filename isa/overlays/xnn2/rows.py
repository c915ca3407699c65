"""X: the rows of a lane. Its write port adds up slices of K, and makes statistics of rows; its read port normalises.

Statistics are mean and variance of each row, over the columns that were written since they were begun. Tiles are joined
by the update of Chan, Golub and LeVeque (1979), so that no difference of large sums is taken.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ....machine.description import UnitSpec
from ....machine.steps import Burst, Step, Steps
from ....machine.unit import Unit, Wiring
from ...fields import Record, bits
from ...lanes import RowSource, RowTarget
from ...versal.tiles import BEAT, BEATS, TILE, Array
from .cycles import LOOPS
from .ports import FILLED, FREE, TOKEN, ReadPort, WritePort, blocks_out, outside, send, tile_by

COLUMNS = 8
"""Column tiles of a bank, as the overlay ships."""
BANKS = 2
ROUNDS = LOOPS["statistics"].rounds
"""Cycles to a beat that is taken with statistics, which are made while it comes."""


class XIn(Record, words=2):
    """Write port of X: take tiles into consecutive slots."""

    slot: int = bits(0, 0, 4, "first slot; a bank is 8 column tiles")
    tiles: int = bits(0, 4, 4, "tiles to take")
    source: int = bits(0, 8, 1, "from C, or from T of the odd lane of the pair")
    add: int = bits(0, 10, 1, "add each tile to what its slot holds")
    statistics: int = bits(0, 11, 2, "of rows: 0 none, 1 begin with these tiles, 2 go on")
    columns: int = bits(0, 13, 11, "columns of these tiles that statistics count")
    wait: int = bits(0, 24, 7, "operations of XOut to wait for")
    stored: int = bits(1, 0, 4, "operations of XStore to wait for")
    store: int = bits(1, 4, 1, "let XStore go on when it ends")


class XOut(Record, words=2):
    """Read port of X: send consecutive slots, `times` times."""

    slot: int = bits(0, 0, 4, "first slot; a bank is 8 column tiles")
    tiles: int = bits(0, 4, 4, "tiles to send")
    times: int = bits(0, 8, 8, "how often all are sent", default=1)
    to: int = bits(0, 16, 2, "to the MME of the lane, both MMEs of the pair, C, the MME of the other lane")
    normalise: int = bits(0, 18, 1, "each row becomes (x - mean) / sqrt(variance + eps)")
    rms: int = bits(0, 19, 1, "without mean, by the mean square")
    share: int = bits(
        0, 20, 2, "join statistics with the other lane of the pair first: 0 no, 1 yes, 2 send none, and keep own ones"
    )
    wait: int = bits(0, 22, 7, "tiles of the write port to wait for before the first")
    eps: float = bits(1, 0, 32, "added to the variance", default=1e-5, real=True)


class XStore(Record, words=2):
    """Second read port of X: store consecutive slots. It reads a bank that XOut does not read at that time."""

    slot: int = bits(0, 0, 4, "first slot; a bank is 8 column tiles")
    tiles: int = bits(0, 4, 4, "tiles to store")
    normalise: int = bits(0, 18, 1, "as XOut")
    rms: int = bits(0, 19, 1, "as XOut")
    wait: int = bits(0, 21, 4, "operations of XIn with `store` to wait for")
    eps: float = bits(1, 0, 32, "added to the variance", default=1e-5, real=True)


class RowStatistics:
    """Number of columns, mean, and sum of squared deviations of each row: float32, as the hardware keeps them."""

    def __init__(self) -> None:
        self.count = np.float32(0)
        self.mean = np.zeros(TILE, np.float32)
        self.squares = np.zeros(TILE, np.float32)

    def join(self, count: Any, mean: Array, squares: Array) -> None:
        """Add the statistics of `count` other columns of the same rows. mean, squares: (128,) float32, the mean of each
        row and its sum of squared deviations from that.

        Source: Chan, Golub and LeVeque (1979).
        """
        total = self.count + np.float32(count)
        if total:
            share = np.float32(count) / total
            d = mean - self.mean
            self.mean = self.mean + d * share
            self.squares = np.asarray(self.squares + squares + d * d * (self.count * share), np.float32)
        self.count = total

    def add(self, tile: Array) -> None:
        """Add the statistics of the columns of a tile, (128, columns) float32, 32 columns at a time. The differences of
        the 32 columns from the first of them are summed, not the columns themselves: a mean far from 0 then costs few
        digits, because the first is at most sqrt(32) standard deviations from the mean of the 32."""
        for start in range(0, tile.shape[1], BEAT):
            part = tile[:, start : start + BEAT]
            count, first = np.float32(part.shape[1]), part[:, 0]
            apart = part - first[:, None]
            less = apart.sum(axis=1, dtype=np.float32)
            mean = less / count
            squares = np.square(apart).sum(axis=1, dtype=np.float32) - less * mean
            self.join(count, first + mean, squares)

    def factors(self, eps: float, rms: bool) -> tuple[Array, Array]:
        """Return the factor and the addend, (128, 1) float32 both, by which each row becomes (x - mean) / sqrt(variance
        + eps). rms: the mean counts as 0, and the variance is the mean square."""
        squares = self.squares + self.count * self.mean * self.mean if rms else self.squares
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.float32(1) / np.sqrt(squares / self.count + np.float32(eps))
        plus = np.zeros_like(factor) if rms else -self.mean * factor
        return np.asarray(factor, np.float32)[:, None], np.asarray(plus, np.float32)[:, None]


def columns_of(spec: UnitSpec) -> int:
    """Return the column tiles of a bank of an X. spec: its write port, which has the memory."""
    assert spec.memory is not None
    return spec.memory.slots // BANKS


class XInUnit(WritePort):
    """Write port of X: takes tiles from C or T into slots, or adds them to what these hold, and makes statistics of the
    rows."""

    peer = "XOut"

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.sources = {
            RowSource.RESULT: self.source(f"C{spec.index}"),
            RowSource.SCRATCH: self.source(f"TOut{spec.index | 1}"),
        }
        self.stored, self.store = self.source(f"XStore{spec.index}", FREE), self.sink(f"XStore{spec.index}", FILLED)
        self.statistics = [RowStatistics() for _ in range(BANKS)]
        self.columns = columns_of(spec)

    def kernel(self, uop: XIn) -> Steps:
        yield from self.wait(uop.wait)
        if uop.stored:
            yield Burst(uop.stored, gets=(self.stored,))
        source = self.sources[RowSource(uop.source)]
        for i in range(uop.tiles):
            rounds = ROUNDS if uop.statistics else 1
            after = LOOPS["statistics" if uop.statistics else "rows"].fill
            yield tile_by("mesh_beat", rounds * BEATS + after, gets=(source,), do=partial(self._keep, uop, i))
            yield self.done()
        if uop.store:
            yield Step(puts=(self.store,), do=lambda: (TOKEN,))

    def _keep(self, uop: XIn, i: int, tile: Array) -> None:
        slot = uop.slot + i
        if uop.add:
            tile = self.slots[slot] + tile
        self.slots[slot] = tile
        if uop.statistics:
            bank = slot // self.columns
            if uop.statistics == 1 and not i:
                self.statistics[bank] = RowStatistics()
            valid = min(max(uop.columns - i * TILE, 0), TILE)
            if valid:
                self.statistics[bank].add(tile[:, :valid])

    def tile(self, uop: XOut | XStore, slot: int) -> Array:
        """Return the tile that a read port sends from a slot, (128, 128) float32, normalised if the uOP says so."""
        tile: Array = self.slots[slot]
        if uop.normalise:
            factor, plus = self.statistics[uop.slot // self.columns].factors(uop.eps, bool(uop.rms))
            tile = tile * factor + plus
        return tile

    def effect_key(self, uop: XIn) -> Hashable:
        return uop.tiles, uop.source, uop.statistics > 0, uop.wait, uop.stored, uop.store


class XOutUnit(ReadPort):
    """Read port of X: sends the tiles of slots to MMEs or to C, normalised if the operation says so."""

    peer = "XIn"

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        other = spec.index ^ 1
        own, pair = self.sink(f"MeshA{spec.index}"), self.sink(f"MeshA{other}")
        self.targets = {
            RowTarget.LANE: (own,),
            RowTarget.PAIR: (own, pair),
            RowTarget.RESULT: (self.sink(f"C{spec.index}"),),
            RowTarget.OTHER: (pair,),
        }
        self.to_other, self.from_other = self.sink(f"XOut{other}", "norm"), self.source(f"XOut{other}", "norm")

    def kernel(self, uop: XOut) -> Steps:
        yield from self.wait(uop.wait)
        if uop.share:
            yield from self._share(uop)
        if uop.normalise:
            yield Step("mem_word", TILE)
        sinks = self.targets[RowTarget(uop.to)]
        slots = [uop.slot + i for i in range(uop.tiles)] * uop.times
        if slots:
            yield send(sinks, slots, partial(self.writer.tile, uop))
        yield self.done()

    def _share(self, uop: XOut) -> Steps:
        """Exchange statistics with the other lane of the pair."""
        bank = uop.slot // self.writer.columns

        def kept() -> tuple[Any, Array, Array]:
            of = RowStatistics() if uop.share > 1 else self.writer.statistics[bank]
            return of.count, of.mean, of.squares

        def own() -> tuple[Any]:
            return (kept(),)

        def join(other: Any) -> None:
            # both lanes join the even one's first, so that they get the same numbers
            made = RowStatistics()
            parts = [kept(), other]
            for part in parts if not self.index & 1 else parts[::-1]:
                made.join(*part)
            if uop.share == 1:
                self.writer.statistics[bank] = made

        yield Step("mem_word", TILE, puts=(self.to_other,), words=TILE, do=own)
        yield Step("mem_word", TILE, gets=(self.from_other,), words=TILE, do=join)

    def effect_key(self, uop: XOut) -> Hashable:
        return uop.tiles, uop.times, uop.to, uop.normalise, uop.share, uop.wait


class XStoreUnit(Unit):
    """Second read port of X: sends the tiles of slots to DDR, normalised if the operation says so."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.filled, self.free = self.source(f"XIn{spec.index}", FILLED), self.sink(f"XIn{spec.index}", FREE)
        self.ddr = self.sink("DDR")

    def kernel(self, uop: XStore) -> Steps:
        if uop.wait:
            yield Burst(uop.wait, gets=(self.filled,))
        if uop.normalise:
            yield Step("mem_word", TILE)
        for slot in range(uop.slot, uop.slot + uop.tiles):
            yield from blocks_out(self.ddr, partial(self._tile, uop, slot))
        yield Step(puts=(self.free,), do=lambda: (TOKEN,))

    def _tile(self, uop: XStore, slot: int) -> Array:
        writer: Any = self._net.units[f"XIn{self.index}"]
        return np.asarray(writer.tile(uop, slot))

    def effect_key(self, uop: XStore) -> Hashable:
        return uop.tiles, uop.normalise, uop.wait


def legal_in(unit: UnitSpec, uop: XIn, slots: int) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range. slots: those of its memory."""
    if not uop.tiles:
        if not (uop.wait or uop.stored or uop.store):
            yield "takes no tiles, waits for nothing, and lets nothing go on"
        return
    yield from outside(slots, uop.slot, uop.tiles, ring=False)
    if uop.statistics > 2:
        yield f"statistics={uop.statistics} is none"
    elif uop.statistics:
        yield from _banks(uop.slot, uop.tiles, slots, "statistics of")
        if uop.columns > uop.tiles * TILE:
            yield f"statistics of {uop.columns} columns; {uop.tiles} tiles have {uop.tiles * TILE}"


def legal_out(unit: UnitSpec, uop: XOut, slots: int) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range. slots: those of its memory."""
    if not uop.tiles:
        if not (uop.wait or uop.share):
            yield "sends no tiles, waits for nothing, and joins no statistics"
    elif not uop.times:
        yield "sends tiles 0 times"
    yield from outside(slots, uop.slot, uop.tiles, ring=False)
    if uop.share > 2:
        yield f"share={uop.share} is none"
    yield from _legal_norm(uop, slots)


def legal_store(unit: UnitSpec, uop: XStore, slots: int) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range. slots: those of its memory."""
    if not uop.tiles:
        yield "stores no tiles"
    yield from outside(slots, uop.slot, uop.tiles, ring=False)
    yield from _legal_norm(uop, slots)


def _legal_norm(uop: XOut | XStore, slots: int) -> Iterator[str]:
    if uop.normalise:
        yield from _banks(uop.slot, uop.tiles, slots, "normalises")
        if uop.eps < 0:
            yield f"eps={uop.eps:g} must not be less than 0"


def _banks(slot: int, tiles: int, slots: int, what: str) -> Iterator[str]:
    columns = slots // BANKS
    if tiles and slot // columns != (slot + tiles - 1) // columns:
        yield f"{what} slots {slot} to {slot + tiles - 1}, which lie in two banks; each has statistics of its own"
