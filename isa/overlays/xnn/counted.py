"""The XNN units on tokens that carry only how many of their rows and columns are valid.

The kernels are those of the machine; what they do to numbers (`SlotData`, products, softmax, norm) is replaced here by
what it does to counts. After a stale tile was used and reported, it counts as a valid one: one mistake gives one
finding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ....machine.description import UnitSpec
from ....machine.steps import Steps
from ....machine.unit import Unit, Wiring
from ...overlay import Overlay
from ...versal.tiles import TILE, Places
from ...work import KeyPart
from .buffer import SlotData
from .mem_a import MemAUnit
from .mem_b import MemB2Unit, MemBUnit
from .mem_c import MemCConfig, MemCScores, MemCUnit
from .mme import Mme, MmeUnit
from .post_ops import BLOCK_QUARTERS, NormData, RowFactors, SoftmaxData, no_parts
from .ring import RingUnit, blocks_of

From = tuple[str, int]
"""Where a token came from: the stream, and how many tokens of it the uOP took before."""


class UopFault(NamedTuple):
    """What a uOP does wrong. code: of the finding, such as `X03`. text: what is wrong. help: what to do. warning: the
    program may be right all the same. sender: where the token that shows the fault came from, None if there is none;
    `{sender}` in the text is replaced by the place of the uOP that sent it.
    """

    code: str
    text: str
    help: str
    warning: bool = False
    sender: From | None = None


@dataclass(frozen=True)
class ValidTile:
    """A 128x128 tile of which the first `rows` rows and `cols` columns are valid; or, if `groups` is not 0, one that
    holds a vector of `groups` times 32 floats. sender: where it came from, None if that does not matter.
    """

    rows: int = TILE
    cols: int = TILE
    groups: int = 0
    sender: From | None = None

    def __add__(self, other: ValidTile) -> ValidTile:
        if not isinstance(other, ValidTile):
            return NotImplemented
        return ValidTile(min(self.rows, other.rows), min(self.cols, other.cols))


WHOLE = ValidTile()


@dataclass
class Exchange:
    """A post-op in which a MemC takes part with its neighbour.

    what: the post-op, `softmax` or `layernorm`. says: the values of fields on which both must agree. puts, gets: what
    this MemC sends and expects, each as (what the numbers are, number of words).
    """

    what: str
    says: tuple[int, ...]
    puts: tuple[tuple[str, int], ...] = ()
    gets: tuple[tuple[str, int], ...] = ()


class RowNumbers:
    """A token between neighbouring MemCs: one number for each row. what: what the numbers are, such as "maxima"; in a
    token that a MemC takes it is what that MemC expects, because neighbours are followed apart from each other."""

    def __init__(self, what: str = "") -> None:
        self.what = what


# -- buffers ----------------------------------------------------------------------------------------------------------

LOST = UopFault(
    "X02",
    "fills a buffer whose data were never sent or stored: they are lost",
    "send or store it before; what is padding alone may be lost",
    True,
)


class SlotContents(NamedTuple):
    """What a buffer holds.

    tiles: for each tile with anything valid, its (row, column) in tiles, and how far it is valid. groups: if the buffer
    holds a vector instead of tiles, the number of its groups of 32 floats; else 0. used: some of the contents were sent
    or stored. done: a post-op has changed the contents in place. spent: a softmax has taken maxima and sums of the
    contents, which are then undefined.
    """

    tiles: tuple[tuple[tuple[int, int], ValidTile], ...] = ()
    groups: int = 0
    used: bool = False
    done: bool = False
    spent: bool = False

    @property
    def filled(self) -> bool:
        """Whether there is anything valid in the buffer."""
        return bool(self.tiles or self.groups)

    @property
    def lost(self) -> bool:
        """Whether filling the buffer again would lose its contents: it has some, and none of them were
        sent or stored."""
        return self.filled and not self.used


class CountedBuffer(SlotData):
    """A buffer without numbers. It knows, in `held`, which of its tiles are valid, and how many rows and columns of
    each. unit: the unit that has the buffer; faults are reported to it."""

    def __init__(self, unit: CountingUnit) -> None:
        self.unit = unit
        self.held = SlotContents()

    @property
    def rows(self) -> int:
        """Number of valid rows, from the first on."""
        return sum(t.rows for (_, j), t in self.held.tiles if not j)

    @property
    def cols(self) -> int:
        """Number of columns that are valid in all rows, from the first on."""
        tiles = dict(self.held.tiles)
        out = 0
        for j in range(1 + max((j for _, j in tiles), default=-1)):
            valid = min(tiles[i, j].cols if (i, j) in tiles else 0 for i in {i for i, _ in tiles})
            out += valid
            if valid < TILE:
                break
        return out

    @property
    def size(self) -> str:
        """Valid rows and columns as text, such as `128x64`."""
        return f"{self.rows}x{self.cols}"

    def _keep(self, tiles: dict[tuple[int, int], ValidTile]) -> None:
        self.held = self.held._replace(tiles=tuple(sorted(tiles.items())))

    def renew(self, rows: int, cols: int) -> None:
        if self.held.lost:
            self.unit.report(LOST)
        self.held = SlotContents()

    def detach(self) -> None:
        if self.held.filled and self.held.done:
            way_out = "recv in between, or drop the flag"
            self.unit.report(UopFault("X06", "applies a post-op to a buffer that has had one", way_out, True))
        self.held = self.held._replace(done=self.held.filled)

    def put_blocks(self, places: Places, pieces: Any, rows: int, cols: int) -> None:
        tiles = dict(self.held.tiles)
        for i, j in places:
            at = i // TILE, j // TILE
            tiles[at] = ValidTile(TILE, j % TILE + 64)
        self._keep(tiles)

    def put_transposed(self, places: Places, pieces: Any) -> None:
        tiles = dict(self.held.tiles)
        for i, j in places:
            tiles[j // TILE, i // TILE] = ValidTile(j % TILE + 64, TILE)
        self._keep(tiles)

    def put_vector(self, vector: Any, rows: int, blocks: int) -> None:
        self.held = self.held._replace(groups=rows * blocks)

    def add(self, tiles: Sequence[Any], places: Places, done: int) -> None:
        kept = dict(self.held.tiles)
        for number, tile in enumerate(tiles, done):
            at = places[number % len(places)]
            kept[at] = dataclasses.replace(tile, sender=None) if number < len(places) else kept[at] + tile
        self._keep(kept)

    def whole(self, rows: int, cols: int) -> None:
        """Mark the first `rows` x `cols` tiles as valid in all of their rows and columns."""
        self._keep(dict(self.held.tiles) | {(i, j): WHOLE for i in range(rows) for j in range(cols)})

    def _use(self, verb: str) -> bool:
        """Note that some of the buffer leaves. Returns whether it holds anything; if not, that is reported."""
        if not self.held.filled:
            self.unfilled(verb)
        self.held = self.held._replace(used=True)
        return self.held.filled

    def unfilled(self, verb: str) -> None:
        """Report that a uOP uses the buffer while it holds nothing (fault X01), or no more than maxima and sums (X11).
        verb: what the uOP does, such as `send`.
        """
        if self.held.spent:
            text = f"{verb}s a buffer of which a softmax kept maxima and sums only"
            self.unit.report(UopFault("X11", text, "receive the keys again, with part 3 (MemCScores)"))
            return
        way_out = f"the flag flips at every uOP: the {self.unit.fill} must stand in the uOP before the {verb}"
        self.unit.report(UopFault("X01", f"{verb}s a buffer that nothing has filled", way_out))

    def stale(self, what: str, has: str) -> None:
        """Report that a uOP uses more than is valid (fault X03). what: what the uOP does. has: what the buffer holds.
        Both are text of the message.
        """
        text = f"{what}; the buffer holds {has}, the rest is stale"
        self.unit.report(UopFault("X03", text, "make the two sizes agree"))

    def tiles(self, places: Places, first: int = 0) -> list[Any]:
        if not places or not self._use("send"):
            return [WHOLE] * len(places)
        places = tuple((first + i, j) for i, j in places)
        rows, cols = (1 + max(x) for x in zip(*places, strict=True))
        if self.held.groups:
            if cols > 1:
                self.stale(f"sends {cols} column tiles", "a vector, which is one tile")
            return [ValidTile(groups=self.held.groups)] * len(places)
        tiles = dict(self.held.tiles)
        if not tiles.keys() >= set(places):
            self.stale(f"sends {self.unit.tiles(rows, cols)}", self.size)
        return [tiles.get(at, WHOLE) for at in places]

    def half_tiles(self, rows: Sequence[int]) -> list[Any]:
        self.tiles(tuple((k, 0) for k in rows))
        return [WHOLE] * len(rows)  # the other columns are 0, so valid

    def blocks(self, places: Places, rows: int, cols: int) -> list[Any]:
        if places and self._use("store"):
            tiles = dict(self.held.tiles)
            has = [(tiles.get((i // TILE, j // TILE)), j % TILE + 64) for i, j in places]
            if any(tile is None or tile.cols < wanted for tile, wanted in has):
                self.stale(f"stores {rows}x{cols}", self.size)
        return [None] * len(places)

    def quarters(self, rows: int, cols: int) -> list[Any]:
        return self.blocks(blocks_of(rows, cols), rows, cols) * BLOCK_QUARTERS

    def joined(self, quarters: Sequence[Any]) -> Any:
        return None

    def part(self, rows: int, cols: int) -> Any:
        return None

    def activate(self, rows: int, cols: int, which: int) -> None:
        pass

    def gate(self, rows: int, cols: int, which: int) -> None:
        if self.held.filled and self.cols < 2 * cols:
            self.stale(f"gates {cols} columns by the {cols} behind them", f"{self.cols} valid ones")

    def normalise_heads(self, rows: int, cols: int, head: int, norm: Any) -> None:
        if self.held.filled and self.cols < cols:
            self.stale(f"normalises heads in {cols} columns", f"{self.cols} valid ones")

    def rotate(self, rows: int, cols: int, head: int, table: Any) -> None:
        if table.rows < rows or table.cols < 2 * head:
            self.stale(
                f"rotates {rows} rows by a table of {2 * head} columns", f"{rows}x{cols}, and the table {table.size}"
            )
        table.held = table.held._replace(used=True)


# -- units ------------------------------------------------------------------------------------------------------------


class CountingUnit(Unit):
    """A unit on counts: the tokens of its streams carry no numbers, only how many of their rows and columns are valid
    (`ValidTile`).

    problems: the faults of the uOPs since `clear`, by code and text. exchanges: the post-ops with a neighbour since
    then. `state` is a hashable value that can be kept, and set again later."""

    fill = "load"
    problems: dict[tuple[str, str], UopFault]
    exchanges: list[Exchange]

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.clear()

    def report(self, problem: UopFault) -> None:
        """Keep a problem of this uOP; of equal ones the first."""
        self.problems.setdefault((problem.code, problem.text), problem)

    def clear(self) -> None:
        """Forget the problems and exchanges that were found in the last uOP."""
        self.problems, self.exchanges = {}, []

    def tiles(self, rows: int, cols: int) -> str:
        """Return the text by which messages name `rows` x `cols` tiles that the unit sends, such as `2 row tiles`."""
        return f"{rows} row tiles"

    @property
    def state(self) -> Hashable:
        """What later uOPs depend on, as one value: in equal states a uOP takes equal steps. Set it to return to a
        state. Every subclass has its own; this class raises `NotImplementedError`."""
        raise NotImplementedError

    @state.setter
    def state(self, state: Any) -> None:
        raise NotImplementedError


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
    """Statistics of rows (mean and factor) without numbers: `tiles` counts the row tiles that have them."""

    tiles = 0

    def put(self, n: int, pieces: Any) -> None:
        self.tiles += n

    def finish(self) -> None:
        self.tiles //= self.parts

    def apply(self, x: Any, first: int, same: bool) -> None:
        pass


class CountedMem(CountingUnit, RingUnit):
    """A MemA, MemB or MemC on counts: its slots are `CountedBuffer`s."""

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
    """A MemA on counts. In place of the statistics of rows (mean and factor) it keeps how many row tiles have them,
    `held.tiles`. A load that normalises more row tiles than that is reported as fault X11; nothing is raised."""

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
    """A MemB0 or MemB1 on counts."""

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
    """A MemB2 on counts. A send of whole tiles that does not suit its registers is reported as fault X11; nothing is
    raised."""

    def tiles(self, rows: int, cols: int) -> str:
        return f"{rows} row tiles" if cols == 1 else f"{rows}x{cols} tiles"

    def refuse(self, reason: str) -> None:
        self.report(UopFault("X11", reason, "clear whole, or send as many column tiles as there are"))


class CountedMemC(CountedMem, MemCUnit):
    """A MemC on counts; the buffer of its table of a rotation counts too. Where registers and uOP do not go together,
    fault X11 is reported; nothing is raised."""

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
    """A bias, or the previous-layer weights, of an MME on counts. Reports fault X04 if an op loads it from a tile that
    is no vector.

    unit: the MME. what: the name of the vector, for messages. tile: the B tile that it was loaded from; None if it
    never was loaded. loaded: the op that uses the vector has also loaded it."""

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
