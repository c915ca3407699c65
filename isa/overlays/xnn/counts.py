"""Tokens and buffers that know only how many of their rows and columns are valid, and what is wrong with using them.

After a stale tile was used and reported, it counts as a valid one: one mistake gives one finding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ....machine.description import UnitSpec
from ....machine.unit import Unit, Wiring
from ...versal.tiles import TILE, Places
from .buffer import SlotData
from .post_ops import BLOCK_QUARTERS
from .ring import blocks_of

From = tuple[str, int]
"""Where a token came from: the stream, and how many tokens of it the uOP took before."""


class UopFault(NamedTuple):
    """What a uOP does wrong. code: of the finding, such as `X03`. text: what is wrong. help: what to do. warning: it
    may be meant. sender: the token that shows it; `{sender}` in the text stands for who sent it.
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

    what: its name, `softmax` or `layernorm`. says: the values of fields on which both must agree. puts, gets: what it
    sends and expects, each as (what the numbers are, number of words).
    """

    what: str
    says: tuple[int, ...]
    puts: tuple[tuple[str, int], ...] = ()
    gets: tuple[tuple[str, int], ...] = ()


class RowNumbers:
    """A token between neighbours: a number a row. Where the reader does not see the sender's, it says what it reads."""

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

    tiles: (row, column) in tiles, and how far the tile is valid, for each tile with anything valid. groups: of the
    vector that it holds instead, of 32 floats each. used: some of it was sent or stored. done: it was changed in place.
    spent: a softmax has kept maxima and sums of it, and left the rest undefined.
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
    """Which tiles of a buffer are valid, and how far."""

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
    """A unit that reports problems, and whose state can be kept and set: it is hashable."""

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
        """Return how a message names a send of `rows` x `cols` tiles. A class that sends columns says so."""
        return f"{rows} row tiles"

    @property
    def state(self) -> Hashable:
        """What later uOPs depend on, as one value: in equal states a uOP takes equal steps. Set it to return to a
        state. Every subclass has its own; this class raises `NotImplementedError`."""
        raise NotImplementedError

    @state.setter
    def state(self, state: Any) -> None:
        raise NotImplementedError
