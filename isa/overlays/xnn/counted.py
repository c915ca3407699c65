"""The XNN units on tokens that carry only how many of their rows and columns are valid.

The kernels are those of the machine; what they do to numbers (`SlotData`, products, softmax, norm) is replaced here by
what it does to counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

from ....machine.description import UnitSpec
from ....machine.steps import Steps
from ....machine.unit import Unit, Wiring
from ...overlay import Overlay
from ...versal.tiles import TILE
from ...work import KeyPart
from .counts import WHOLE, CountedBuffer, CountingUnit, Exchange, RowNumbers, SlotContents, UopFault, ValidTile
from .mem_a import MemAUnit
from .mem_b import MemB2Unit, MemBUnit
from .mem_c import MemCConfig, MemCScores, MemCUnit
from .mme import Mme, MmeUnit
from .post_ops import NormData, RowFactors, SoftmaxData, no_parts
from .ring import RingUnit


class CountedSoftmax(SoftmaxData):
    """The softmax of a MemC on counts: all that was received becomes valid, because masked columns become 0."""

    unit: CountedMemC

    def __init__(self, unit: CountedMemC, side: int, reg: MemCConfig, scores: MemCScores, rows: int, cols: int) -> None:
        super().__init__(unit, side, reg, scores, rows, cols)
        self.buffer = unit.buffers[side]
        if not self.reg.alone:
            says = rows // TILE, self.max_sub, self.reg.causal, scores.windowed, scores.part
            unit.exchanges.append(Exchange("softmax", says))

    def begin(self) -> None:
        wanted = min(self.reg.softmax_cols, self.cols)
        if self.buffer.cols < wanted:
            self.buffer.stale(f"takes the softmax of {wanted} columns", f"{self.buffer.cols} valid ones")

    def cap(self) -> None:
        pass

    def set_left(self, columns: Any) -> None:
        columns.what = "columns"

    def own_max(self) -> tuple[Any]:
        return (RowNumbers("maxima"),)

    def other_max(self, top: Any) -> None:
        top.what = "maxima"

    def own_sum(self) -> tuple[Any]:
        return (RowNumbers("sums"),)

    def other_sum(self, total: Any) -> None:
        total.what = "sums"

    def finish(self) -> None:
        self.buffer.whole(self.rows // TILE, self.cols // TILE)

    def keep(self) -> None:
        if self.scores.part == KeyPart.MORE:
            self._need_parts()
        self.unit.kept_rows = self.rows
        self.buffer.held = SlotContents(spent=True)

    def apply(self) -> None:
        self._need_parts()
        self.finish()

    def _need_parts(self) -> None:
        if self.unit.kept_rows != self.rows:
            self.unit.refuse(no_parts(self.rows, self.unit.kept_rows))


class CountedNorm(NormData):
    """The norm of a MemC on counts: all columns become valid, because those beyond norm_cols become 0."""

    def __init__(self, unit: CountedMemC, side: int, reg: MemCConfig, rows: int) -> None:
        super().__init__(unit, side, reg, rows)
        self.buffer, self.all = unit.buffers[side], unit.size.columns
        unit.exchanges.append(Exchange("layernorm", (rows, self.reg.rms)))

    def own_sum(self) -> tuple[Any]:
        return (RowNumbers("sums"),)

    def other_sum(self, token: Any) -> None:
        token.what = "sums"

    def own_squares(self) -> tuple[Any]:
        if not self.buffer.held.filled:
            self.buffer.unfilled("store")
        elif self.buffer.cols < (cols := min(self.reg.norm_cols, self.all)):
            self.buffer.stale(f"normalises {cols} columns", f"{self.buffer.cols}")
        self.buffer.held = self.buffer.held._replace(used=True)
        return (RowNumbers("squares"),)

    def other_squares(self, token: Any) -> None:
        token.what = "squares"

    def statistics(self) -> Any:
        return [None] * (self.rows // TILE)

    def scale(self) -> None:
        if self.buffer.held.filled:
            self.buffer.whole(min(self.rows, self.buffer.rows) // TILE, self.all // TILE)


class CountedFactors(RowFactors):
    """Statistics of rows that count row tiles: `tiles` of them, without numbers."""

    tiles = 0

    def put(self, n: int, pieces: Any) -> None:
        self.tiles += n

    def finish(self) -> None:
        self.tiles //= self.parts

    def apply(self, x: Any, first: int, same: bool) -> None:
        pass


class CountedMem(CountingUnit, RingUnit):
    """A Mem whose buffers count."""

    buffers: list[CountedBuffer]  # type: ignore[assignment]

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.buffers = [CountedBuffer(self) for _ in range(self.size.slots)]

    @property
    def state(self) -> Hashable:
        return self.cur, *(b.held for b in self.buffers)

    @state.setter
    def state(self, state: Any) -> None:
        self.cur, *held = state
        for buffer, content in zip(self.buffers, held, strict=True):
            buffer.held = content


class CountedMemA(CountedMem, MemAUnit):
    """A MemA; its statistics of rows count as row tiles."""

    factors = CountedFactors

    @property
    def state(self) -> Hashable:
        tiles = self.held.tiles if self.held else 0
        return self.registers, self.begun, tiles, self.cur, *(b.held for b in self.buffers)

    @state.setter
    def state(self, state: Any) -> None:
        self.registers, self.begun, tiles, *rest = state
        self.held = CountedFactors(1, 0.0, False)
        self.held.tiles = tiles
        CountedMem.state.fset(self, rest)  # type: ignore[attr-defined]

    def refuse(self, reason: str) -> None:
        way_out = "load statistics of as many row tiles, or clear normalise"
        self.report(UopFault("X11", reason, way_out))


class CountedMemB(CountedMem, MemBUnit):
    """A MemB0 or MemB1 whose buffers count."""

    @property
    def state(self) -> Hashable:
        return self.registers, self.cur, *(b.held for b in self.buffers)

    @state.setter
    def state(self, state: Any) -> None:
        self.registers, *rest = state
        CountedMem.state.fset(self, rest)  # type: ignore[attr-defined]

    def tiles(self, rows: int, cols: int) -> str:
        return f"{cols} column tiles"


class CountedMemB2(CountedMemB, MemB2Unit):
    """A MemB2 whose buffers count."""

    def tiles(self, rows: int, cols: int) -> str:
        return f"{rows} row tiles" if cols == 1 else f"{rows}x{cols} tiles"

    def refuse(self, reason: str) -> None:
        self.report(UopFault("X11", reason, "clear whole, or send as many column tiles as there are"))


class CountedMemC(CountedMem, MemCUnit):
    """A MemC whose buffers count, that of the table included."""

    tables: list[CountedBuffer]  # type: ignore[assignment]
    fill = "recv"
    softmax = CountedSoftmax
    norm = CountedNorm

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.tables = [CountedBuffer(self)]
        self.kept_rows = 0

    @property
    def state(self) -> Hashable:
        registers = self.registers, self.scores, self.at_store
        return (
            *registers,
            self.kept_rows,
            self.unscaled,
            self.begun,
            self.table_tiles,
            self.tables[0].held,
            self.cur,
            *(b.held for b in self.buffers),
        )

    @state.setter
    def state(self, state: Any) -> None:
        self.registers, self.scores, self.at_store, *more = state
        self.kept_rows, self.unscaled, self.begun, self.table_tiles, self.tables[0].held, *rest = more
        CountedMem.state.fset(self, rest)  # type: ignore[attr-defined]

    def tiles(self, rows: int, cols: int) -> str:
        return f"{rows}x{cols} tiles"

    def refuse(self, reason: str) -> None:
        self.report(
            UopFault("X11", reason, "set the registers as this uOP needs them (MemCScores, MemCStore, MemCTable)")
        )


class CountedVector:
    """A bias, or previous-layer weights, of an MME. tile: what it was loaded from; None if it never was. loaded: the op
    that uses it has loaded it."""

    def __init__(self, unit: CountedMme, what: str, tile: ValidTile | None, loaded: bool) -> None:
        self.unit, self.what, self.tile = unit, what, tile
        if tile is not None and not tile.groups and loaded:
            text = f"reads {what} from a B tile that is a matrix, {{sender}}"
            way_out = "load the vector with `bias` just before, or drop the flag"
            unit.report(UopFault("X04", text, way_out, sender=tile.sender))

    def __getitem__(self, part: slice) -> CountedVector:
        if self.tile is None:
            text = f"uses {self.what} that were never loaded"
            self.unit.report(UopFault("X04", text, "set load_prev in this op or in one before"))
        elif self.tile.groups and part.stop > 32 * self.tile.groups:
            op, there = self.unit.op, "{sender}" if self.tile.sender else "that it keeps"
            text = (
                f"reads {self.what} of {op.b_iter * op.acc_b * TILE} columns; the vector {there} has "
                f"{32 * self.tile.groups}"
            )
            way_out = "load as many groups of 32 floats as the op has columns"
            self.unit.report(UopFault("X04", text, way_out, sender=self.tile.sender))
        return self

    def __radd__(self, tile: ValidTile) -> ValidTile:
        return tile

    def __rmul__(self, tile: ValidTile) -> ValidTile:
        self.unit.need_columns(tile, TILE)
        return WHOLE


class CountedMme(CountingUnit, MmeUnit):
    """An MME whose tiles count their valid rows and columns: products of valid elements are valid."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.kept: ValidTile | None = None
        """The previous-layer weights."""

    def kernel(self, op: Mme) -> Steps:
        self.op = op
        self.scale = CountedVector(self, _WEIGHTS, self.kept, loaded=False)  # type: ignore[assignment]
        return super().kernel(op)

    def product(self, a: Any, b: Any, full_k: bool, full_n: bool) -> Any:
        if b.groups:
            way_out = "read it with bias or load_prev, or load a matrix"
            self.report(UopFault("X04", f"multiplies by {_A_VECTOR}", way_out, sender=b.sender))
            b = WHOLE
        depth = TILE if full_k else 64
        self.need_columns(a, depth)
        if b.rows < depth:
            text = f"works in K = {depth} mode on a B tile with {b.rows} valid rows, {{sender}}"
            self.report(UopFault("X05", text, f"load {depth} rows (dim1={depth}), or clear k128", sender=b.sender))
        return ValidTile(a.rows, b.cols if full_n else min(b.cols, 64))

    def need_columns(self, a: ValidTile, depth: int) -> None:
        """Report the fault X05 if fewer than `depth` columns of an A tile are valid. depth: K of the product, 128 or
        64.
        """
        if a.cols < depth:
            text = f"works in K = {depth} mode on an A tile with {a.cols} valid columns, {{sender}}"
            self.report(UopFault("X05", text, f"load {depth} columns (dim2={depth}), or clear k128", sender=a.sender))

    def _keep_bias(self, tile: Any) -> None:
        self.bias = CountedVector(self, "a bias", tile, loaded=True)  # type: ignore[assignment]

    def _keep_scale(self, tile: Any) -> None:
        self.scale = CountedVector(self, _WEIGHTS, tile, loaded=True)  # type: ignore[assignment]
        self.kept = ValidTile(groups=tile.groups)

    @property
    def state(self) -> Hashable:
        return self.kept

    @state.setter
    def state(self, state: Any) -> None:
        self.kept = state


_WEIGHTS = "previous-layer weights"
_A_VECTOR = "a B tile that holds a vector, {sender}"

_COUNTED: dict[type[Unit], type[Unit]] = {
    MemAUnit: CountedMemA,
    MemBUnit: CountedMemB,
    MemB2Unit: CountedMemB2,
    MemCUnit: CountedMemC,
    MmeUnit: CountedMme,
}


def counted(overlay: Overlay) -> Overlay:
    """Return a copy of the overlay whose Mems and MMEs work on tokens which carry counts instead of numbers. All else
    is the same.
    """
    units = [dataclasses.replace(u, behaviour=_COUNTED.get(u.behaviour, u.behaviour)) for u in overlay.units]
    return dataclasses.replace(overlay, units=tuple(units))
