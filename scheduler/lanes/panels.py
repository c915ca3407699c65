"""What the lanes do for a panel.

Rows stay in X, in one of its two banks; what is computed from them goes to the other bank. In a round of attention, all
lanes compute the queries of the next column tiles and add a slice of the output projection of an earlier round; then
the even lanes compute scores, while the odd lanes compute probabilities times values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ...isa.lanes import (
    PostTarget,
    ResultTarget,
    RowSource,
    RowTarget,
    SentNorm,
    TileSource,
    TileTarget,
    Weight,
)
from ...isa.overlays.xnn2.emission import Emission
from .blocks import TILE, TILE_SIZE, AttentionHeads, Matrix, Panel, Sequences, TiledProduct
from .modes import Half, Mode

PIECE = 2
"""Most tiles of weights that DDR loads at once: W1 has room for them whenever it waits for one."""
LATE = 2
"""While slices are added, the program of T sends rows to X so many tiles behind the place where X takes them. Otherwise
T would wait for X, which first takes a result of the slice, and the MME would wait for T. With more than two tiles the
program could deadlock: an MME takes two tiles before it ends one."""
STORED = 4
"""Column tiles of a lane that are stored at once. All lanes store the first ones before the next ones, since what is
computed next overwrites them in this order."""
EMPTY: Iterator[None] = iter(())


class Residual(NamedTuple):
    """Rows that a product adds to its result. bank: the bank of X (0 or 1) that holds them. norm: the norm that X
    applies when it sends them; None for none."""

    bank: int
    norm: SentNorm | None


class WeightTiles(NamedTuple):
    """`tiles` tiles of a weight for one half of the lanes, from the tile at (`row`, `column`) of the matrix on.
    is_column: they are below each other; otherwise they are side by side."""

    half: Half
    matrix: Matrix
    row: int
    column: int
    tiles: int
    is_column: bool

    @property
    def to(self) -> Weight:
        """The weight unit that they go to: W0 for the first half of the lanes, W1 for the second."""
        return Weight.W1 if self.half.number else Weight.W0

    @property
    def stride(self) -> int:
        """Elements from one tile to the next in memory."""
        return self.matrix.row if self.is_column else TILE_SIZE

    def addr(self, at: int) -> int:
        """The address of tile number `at` of these, from 0 on, in elements of the bank."""
        return self.matrix.at(self.row, self.column) + at * self.stride


class PanelEmitter:
    """Emits the instructions of what panels compute, into `work`. sequences: all sequences of the network. mode: how
    the lanes share rows and columns.

    A bank is a bank of X, 0 or 1; a column tile has 128 columns, a row tile 128 rows. `norm` is the norm that X applies
    to rows as it sends them, None for none.
    """

    def __init__(self, work: Emission, sequences: Sequences, mode: Mode) -> None:
        self.e, self.sequences, self.mode = work, sequences, mode
        self._table: dict[int, int] = {}
        """The address of the table that Post of each lane holds."""
        self._alone: set[tuple[int, int]] = set()
        """(lane, bank) pairs whose statistics still miss those of the other lane."""
        self._storing: set[int] = set()
        """Banks of X that are stored, and not written since."""

    # -- rows

    def _pieces(self, panel: Panel, columns: int) -> list[list[tuple[int, int, int, int, int]]]:
        """Steps that bring rows on chip: pair, row tile of the panel, column tile, slot of T, and lane of each tile
        that a step brings, at most one for each pair."""
        out: list[list[tuple[int, int, int, int, int]]] = []
        place = self.mode.lane.columns
        for column in range(columns):
            if self.mode.halves == 1:
                for odd in range(2):
                    rows = [(p, 2 * p + odd) for p, _ in panel.pairs(odd)]
                    out.append([(p, row, column, place * odd + column, row) for p, row in rows])
            else:
                (first, _) = self.mode.split(columns)
                half = int(column not in first)
                out.append([(p, p, column, column, 2 * p + half) for p in range(len(panel.tiles))])
        out = [step for step in out if step]
        if self.mode.staging < 2 * place:  # T has fewer slots than a panel may have tiles: they are taken in turn
            out = [[(*piece[:3], n % self.mode.staging, *piece[4:]) for piece in step] for n, step in enumerate(out)]
        return out

    def stage(self, panel: Panel, x: Matrix) -> Iterator[None]:
        """Load the rows of a panel from the activation `x` in DDR into T of the odd lanes; yields after each tile of
        all pairs."""
        for step in self._pieces(panel, x.columns):
            for pair, row, column, slot, _ in step:
                self.e.move(f"T{2 * pair + 1}", x.at(panel.tiles[row].row, column), TILE_SIZE)
                self.e.take_tiles(2 * pair + 1, (slot,), TileSource.DDR)
            yield

    def land(
        self,
        panel: Panel,
        bank: int,
        columns: int,
        width: int,
        statistics: bool,
        late: int = 0,
        rest: Iterator[None] = EMPTY,
    ) -> Iterator[None]:
        """Move the rows of a panel from T to a bank of X; yields after each tile of all pairs.

        columns: column tiles of a row. width: the columns of a row, over which X makes the statistics, if `statistics`.
        late: how many steps T sends later than X takes (`LATE`). rest: loads rows into slots that are free again; it
        takes one step for each step of T.
        """
        halves = self.mode.split(columns)
        sends: deque[list[tuple[int, int, TileTarget]]] = deque()

        def send() -> None:
            for pair, slot, to in sends.popleft():
                self.e.send_tiles(2 * pair + 1, (slot,), to)
            next(rest, None)

        for step in self._pieces(panel, columns):
            sends.append([(p, slot, _rows_of(lane)) for p, _, _, slot, lane in step])
            if len(sends) > late:
                send()
            for _, _, column, _, lane in step:
                first = next(r for r in halves if column in r).start
                self.take(lane, bank, (column - first,), first, width if statistics else None, RowSource.SCRATCH)
            yield
        while sends:
            send()

    def take(
        self,
        lane: int,
        bank: int,
        slots: Sequence[int],
        first: int,
        width: int | None,
        source: RowSource = RowSource.RESULT,
        *,
        add: bool = False,
    ) -> None:
        """Emit that X of a lane takes column tiles into slots of a bank.

        slots: consecutive numbers within the bank, at least one. first: the column tile of slot 0. width: the columns
        of a whole row, over which X makes the statistics; None makes no statistics. source: where the tiles come from.
        add: they are added to what the slots hold.
        """
        statistics, columns = 0, 0
        if width is not None:
            statistics = 2 if slots[0] else 1
            columns = max(min(width - (first + slots[0]) * TILE, len(slots) * TILE), 0)
            if self.mode.halves > 1:
                if statistics == 1 and not lane & 1:  # new rows, of which the odd lane may have no columns
                    self._alone.discard((lane + 1, bank))
                self._alone.add((lane, bank))
        at = self.slots(bank, slots[0], len(slots))
        self.e.take_rows(lane, at, source, add=add, statistics=statistics, columns=columns)

    def bring(self, panel: Panel, x: Matrix, bank: int, width: int, statistics: bool) -> Iterator[None]:
        """Load the rows of a panel into a bank of X; yields after each tile of all pairs. width, statistics: as for
        `land`."""
        land = self.land(panel, bank, x.columns, width, statistics)
        for number, _ in enumerate(self.stage(panel, x)):
            yield
            if number > 1:
                next(land, None)
        yield from land

    def store(self, panel: Panel, bank: int, y: Matrix, norm: SentNorm | None) -> None:
        """Store the rows of a bank of X in DDR, at `y`. norm: the norm that X applies to them, None for none. `y` gives
        the number of column tiles."""
        if norm is not None:
            self._join(panel, bank)
        self._storing.add(bank)
        joined = norm is not None and self.mode.halves > 1
        moves: list[tuple[int, int, int, int]] = []
        for half, columns in zip(self.mode.of_halves(panel), self.mode.split(y.columns), strict=True):
            parts = [columns[at : at + STORED] for at in range(0, len(columns), STORED)]
            for lane in half.lanes if parts else ():
                slots = [self.slots(bank, part.start - columns.start, len(part)) for part in parts]
                self.e.store_rows(lane, slots, norm, joined=joined)
                row = self.mode.tile(panel, lane).row
                moves += [(n, lane, y.at(row, part.start), len(part)) for n, part in enumerate(parts)]
        for _, lane, addr, tiles in sorted(moves):
            self.e.move(f"X{lane}", addr, tiles * TILE_SIZE)

    def _join(self, panel: Panel, bank: int) -> None:
        """Join the statistics of the halves of rows, where that has not been done."""
        for pair in range(len(panel.tiles) if self.mode.halves > 1 else 0):
            alone = [(lane, bank) in self._alone for lane in (2 * pair, 2 * pair + 1)]
            if any(alone):
                for lane, own in zip((2 * pair, 2 * pair + 1), alone, strict=True):
                    self._alone.discard((lane, bank))
                    self.e.join_statistics(lane, bank, empty=not own)

    def slots(self, bank: int, at: int, count: int) -> range:
        """The numbers of `count` slots of X, from column tile `at` of a bank on. Bank 1 begins behind all slots of bank
        0."""
        first = bank * self.mode.lane.columns + at
        return range(first, first + count)

    def rows_to_mme(self, panel: Panel, bank: int, depth: int, norm: SentNorm | None, halves: Sequence[Half]) -> None:
        """Emit that X sends all `depth` column tiles of the rows in a bank to the MMEs of these halves, and that MeshA
        passes them on. The rows must have the layout of the mode: in P3 each lane of a pair holds half of the columns.
        norm: with which X sends them; None for none."""
        if norm is not None:
            self._join(panel, bank)
        parts = self.mode.split(depth)
        if self.mode.halves == 1:
            for lane in self.mode.lanes(panel):
                self.e.send_rows(lane, self.slots(bank, 0, depth), RowTarget.LANE, norm=norm)
                self.e.left(lane, f"X{lane}", depth)
            return
        for pair in range(len(panel.tiles)):
            for source, part in enumerate(parts):
                if not part:
                    continue
                lane = 2 * pair + source
                both = len(halves) > 1
                to = RowTarget.PAIR if both else RowTarget.LANE if halves[0].number == source else RowTarget.OTHER
                self.e.send_rows(lane, self.slots(bank, 0, len(part)), to, norm=norm)
                for half in halves:
                    self.e.left(2 * pair + half.number, f"X{lane}", len(part))

    # -- products

    def weights(self, parts: Sequence[WeightTiles]) -> None:
        """Load weight tiles and hand them to the lanes of their halves. parts: one entry for each half of the lanes
        that computes. Two halves whose weights lie in the same bank take turns, tile by tile: their lanes take the same
        left tiles, so neither gets far ahead of the other."""
        shared = [part for part in parts if not part.matrix.ddr]
        if len(shared) > 1:
            for at in range(max(part.tiles for part in shared)):
                for part in shared:
                    if at < part.tiles:
                        self.e.load(part.to, part.addr(at), TILE_SIZE)
        elif shared:
            (part,) = shared
            self.e.load(part.to, part.addr(0), TILE_SIZE, part.tiles, part.stride)
        for part in parts:
            if part.matrix.ddr:
                for at in range(0, part.tiles, PIECE):
                    some = min(PIECE, part.tiles - at)
                    self.e.move(f"W{part.half.number}", part.addr(at), TILE_SIZE, some, part.stride)
            self.e.weights(part.half.number, part.tiles, part.half.mask, activations=part.matrix.ddr)

    def column(
        self,
        panel: Panel,
        p: TiledProduct,
        step: int,
        bank: int,
        norm: SentNorm | None,
        to: ResultTarget = ResultTarget.POST,
        residual: Residual | None = None,
    ) -> list[tuple[Half, int]]:
        """Emit rows @ weight for one column tile in each half of the lanes; with a gate, for a pair of tiles.

        step: number of the tile within the columns of a half. bank: the bank that holds the rows. norm: the norm with
        which X sends them. to: the target to which C sends the result. residual: what C adds to it; None adds nothing.
        Returns the halves that have such a tile, each with the number of the column tile in the result."""
        e, depth = self.e, p.rows
        made = [
            (half, columns[step])
            for half, columns in zip(self.mode.of_halves(panel), self.mode.split(p.columns), strict=True)
            if step < len(columns)
        ]
        starts = [columns.start for columns in self.mode.split(p.columns)]
        if p.head is not None and p.head.table is not None:
            self.tables(panel, p.head.table)
        for turn in range(1 + p.gate):
            weights: list[WeightTiles] = []
            for half, column in made:
                tile = column * (1 + p.gate) + turn
                if p.vectors is not None:
                    each = p.vectors.each * TILE
                    e.load(Weight.VECTOR, p.vectors.addr + tile * each, each, lanes=half.mask)
                place = (column - starts[half.number]) * (1 + p.gate) + turn
                weights.append(WeightTiles(half, p.weights[half.number], 0, place, depth, is_column=True))
            self.weights(weights)
            self.rows_to_mme(panel, bank, depth, norm, [half for half, _ in made])
            for half, _ in made:
                for lane in half.lanes:
                    e.right(lane, f"W{half.number}", depth)
                    e.multiply(lane, 1, depth)
                    if residual is not None:
                        e.send_rows(lane, self.slots(residual.bank, step, 1), RowTarget.RESULT, norm=residual.norm)
                    e.result(
                        lane,
                        1,
                        to,
                        bias=p.vectors is not None,
                        scale=p.vectors is not None and p.vectors.each == 2,
                        residual=residual is not None,
                    )
        return made

    def functions(
        self, panel: Panel, p: TiledProduct, made: Sequence[tuple[Half, int]], to: Callable[[int], int]
    ) -> None:
        """Emit what Post does with the result of `column`: it applies the activation, the gate and the functions of
        heads of a product, and passes the tile on.

        made: the halves of lanes that have a tile, from `column`. to: returns the target of Post (`PostTarget`) for a
        lane.
        """
        for half, _ in made:
            if p.head is not None and p.head.gains is not None:
                self.e.load(Weight.GAINS, p.head.gains, TILE, lanes=half.mask)
            for lane in half.lanes:
                heads = None if p.head is None else p.head.functions
                self.e.post(lane, to(lane), p.activation, gate=p.gate, heads=heads)

    def tables(self, panel: Panel, table: int) -> None:
        """Bring the table of a rotation for the rows of each lane to its Post, unless Post has it already. Call it
        before `weights`: the table would otherwise delay the weights of the next product. table: address of the tables
        of row tiles of a sequence, in elements of the bank of weights."""
        lacking: dict[int, list[int]] = {}
        for lane in self.mode.lanes(panel):
            addr = table + self.mode.tile(panel, lane).at * TILE_SIZE
            if self._table.get(lane) != addr:
                self._table[lane] = addr
                lacking.setdefault(addr, []).append(lane)
        for addr, some in lacking.items():
            self.e.load(Weight.TABLE, addr, TILE_SIZE, lanes=sum(1 << lane for lane in some))
            for lane in some:
                self.e.take_table(lane)

    def slice(
        self,
        panel: Panel,
        p: TiledProduct,
        k: int,
        where: Callable[[int], tuple[int, int]],
        bank: int,
        residual: Residual | None,
        width: int,
        *,
        first: bool,
        last: bool,
        beside: Iterator[None] | None = None,
    ) -> None:
        """Add the products of one tile of K to the rows of a bank of X.

        p: the product. k: number of its tile of K. where: returns, for a row tile of the panel, the lane whose T has
        the left tile, and the slot there. residual: what the first slice adds; None adds nothing. width: the columns of
        a row, over which the last slice makes the statistics. first: this slice overwrites the rows of the bank. last:
        no other slice follows. beside: emits what else T of the odd lanes does between its tiles; None for nothing."""
        e = self.e
        parts = self.mode.split(p.columns)
        biased = first and p.vectors is not None
        scaled = biased and p.vectors is not None and p.vectors.each == 2
        if first and residual is not None and residual.norm is not None:
            self._join(panel, residual.bank)
        longest = len(parts[0])
        # a vector comes right before the weights of its column: C has room for a few
        for at, count in ((0, longest),) if not biased else ((c, 1) for c in range(longest)):
            weights: list[WeightTiles] = []
            for half, columns in zip(self.mode.of_halves(panel), parts, strict=True):
                some = min(max(len(columns) - at, 0), count)
                if some and biased and p.vectors is not None:
                    each = p.vectors.each * TILE
                    e.load(Weight.VECTOR, p.vectors.addr + (columns.start + at) * each, each, lanes=half.mask)
                if some:
                    weights.append(WeightTiles(half, p.weights[half.number], k, at, some, is_column=False))
            self.weights(weights)
        # tile by tile, a residual is read before its place is written, and rows that are being stored make room
        in_turn = first and (bank in self._storing or (residual is not None and residual.bank == bank))
        # two lanes that share a T take their tiles from it by turns
        shared = len({where(row)[0] for row in range(len(panel.tiles))}) < len(panel.tiles)
        whole = beside is None and not in_turn and not shared
        self._storing.discard(bank)
        for at, count in ((0, longest),) if whole else ((c, 1) for c in range(longest)):
            for row in range(len(panel.tiles)):
                tile, slot = where(row)
                counts = [min(max(len(columns) - at, 0), count) for columns in parts]
                if self.mode.halves == 1:
                    e.send_tiles(tile, (slot,), _lane(row), times=count)
                else:
                    if counts[1]:
                        e.send_tiles(tile, (slot,), TileTarget.PAIR, times=counts[1])
                    if counts[0] > counts[1]:
                        e.send_tiles(tile, (slot,), TileTarget.EVEN, times=counts[0] - counts[1])
                for number, some in enumerate(counts):
                    if not some:
                        continue
                    lane = self.mode.lane_of(row, number)
                    e.left(lane, f"T{tile}", some)
                    e.right(lane, f"W{number}", some)
                    e.multiply(lane, some, 1)
                    adds = first and residual is not None
                    if adds and residual is not None:
                        e.send_rows(lane, self.slots(residual.bank, at, some), RowTarget.RESULT, norm=residual.norm)
                    e.result(lane, some, ResultTarget.ROWS, bias=biased, scale=scaled, residual=adds)
                    self.take(
                        lane, bank, range(at, at + some), parts[number].start, width if last else None, add=not first
                    )
            if beside is not None:
                next(beside, None)

    def product(
        self,
        panel: Panel,
        p: TiledProduct,
        bank: int,
        norm: SentNorm | None,
        to: Matrix,
        beside: Iterator[None] = EMPTY,
    ) -> None:
        """Emit functions(rows @ weight), stored in DDR at `to`. p: the product with its functions. bank: the bank that
        holds the rows. norm: the norm with which X sends them; None for none. beside: takes a step after each column
        tile."""
        for step in range(self.mode.steps(p.columns)):
            made = self.column(panel, p, step, bank, norm)
            self.functions(panel, p, made, lambda lane: PostTarget.DDR)
            self._store(panel, made, to)
            next(beside, None)

    def _store(self, panel: Panel, made: Sequence[tuple[Half, int]], to: Matrix) -> None:
        for half, column in made:
            for lane in half.lanes:
                self.e.move(f"Post{lane}", to.at(self.mode.tile(panel, lane).row, column), TILE_SIZE)

    def product_on_chip(
        self, panel: Panel, p: TiledProduct, bank: int, norm: SentNorm | None, residual: Residual | None, width: int
    ) -> None:
        """Emit rows @ weight + residual, into the other bank. p: the product. bank: the bank that holds the rows. norm:
        the norm with which X sends them. residual: None adds nothing. width: the columns of a row of the result, over
        which X makes the statistics."""
        if residual is not None and residual.norm is not None:
            self._join(panel, residual.bank)
        starts = [columns.start for columns in self.mode.split(p.columns)]
        for step in range(self.mode.steps(p.columns)):
            for half, _ in self.column(panel, p, step, bank, norm, ResultTarget.ROWS, residual):
                for lane in half.lanes:
                    self.take(lane, 1 - bank, (step,), starts[half.number], width)

    def copy(self, panel: Panel, columns: int, source: Residual, scale: int | None, width: int) -> None:
        """Multiply the rows of a bank by vectors, into the other bank. columns: column tiles of a row. source: the bank
        of the rows, and the norm with which they are sent. scale: address of the vectors, in elements of the bank of
        weights; None multiplies by 1. width: as for `add`."""
        self.add(panel, columns, 1 - source.bank, source, scale, width, begin=True)

    def add(
        self,
        panel: Panel,
        columns: int,
        to: int,
        addend: Residual,
        scale: int | None,
        width: int,
        *,
        begin: bool = False,
    ) -> None:
        """Add rows of a bank, times vectors, to the rows of bank `to`.

        columns: column tiles of a row. addend: the bank of the rows that are added, and their norm. scale: address of
        the vectors, in elements of the bank of weights; None multiplies by 1. width: the columns of a row, over which X
        makes the statistics. begin: overwrite the rows of `to` instead.
        """
        if addend.norm is not None:
            self._join(panel, addend.bank)
        for half, part in zip(self.mode.of_halves(panel), self.mode.split(columns), strict=True):
            if not part:
                continue
            if scale is not None:
                self.e.load(Weight.VECTOR, scale + part.start * TILE, len(part) * TILE, lanes=half.mask)
            for lane in half.lanes:
                self.e.send_rows(lane, self.slots(addend.bank, 0, len(part)), RowTarget.RESULT, norm=addend.norm)
                self.e.result(lane, len(part), ResultTarget.ROWS, scale=scale is not None, residual=True, alone=True)
                self.take(lane, to, range(len(part)), part.start, width, add=not begin)

    # -- feed-forward

    def feed_forward(
        self,
        panel: Panel,
        up: TiledProduct,
        down: TiledProduct,
        bank: int,
        norm: SentNorm | None,
        residual: Residual | None,
        width: int,
        beside: Iterator[None] = EMPTY,
        behind: Iterator[None] = EMPTY,
    ) -> None:
        """Emit functions(rows @ up) @ down + residual, into the other bank.

        bank, norm: as for `product`. residual: None adds nothing. width: the columns of a row of the result, over which
        X makes the statistics. beside: emits other work beside it, a step for each column tile. behind: emits work
        between the last slices, where the bank of the rows is free."""
        steps = self.mode.steps(up.columns)
        computed: dict[int, list[tuple[Half, int]]] = {}

        def hidden(step: int) -> None:
            if step >= steps:
                return
            computed[step] = made = self.column(panel, up, step, bank, norm)
            self.functions(panel, up, made, lambda lane: PostTarget.ODD if lane & 1 else PostTarget.EVEN)
            for half, _ in made:
                for lane in half.lanes:
                    slot = self.mode.hidden[lane & 1] + step % self.mode.knobs.hidden
                    self.e.take_tiles(lane, (slot,), TileSource.ODD if lane & 1 else TileSource.EVEN)

        ahead = self.mode.knobs.hidden - 1
        for step in range(ahead):
            hidden(step)
        for step in range(steps):
            next(beside, None)
            hidden(step + ahead)
            late = step >= steps - 2
            if late:
                for _ in beside:
                    pass
            made = computed.pop(step)
            for half, column in made:
                number = half.number

                def where(row: int, number: int = number, step: int = step) -> tuple[int, int]:
                    lane = self.mode.lane_of(row, number)
                    return lane, self.mode.hidden[lane & 1] + step % self.mode.knobs.hidden

                first = not step and not number
                self.slice(
                    panel,
                    down,
                    column,
                    where,
                    1 - bank,
                    residual,
                    width,
                    first=first,
                    last=step == steps - 1 and half is made[-1][0],
                    # the residual may lie in the bank of the rows
                    beside=behind if late and not first else None,
                )
        for _ in behind:
            pass

    # -- attention

    def keys_to_ddr(
        self, panel: Panel, a: AttentionHeads, bank: int, norm: SentNorm | None, beside: Iterator[None] = EMPTY
    ) -> None:
        """Compute keys and values of a panel, and store them in DDR where `a.stored` says, which must not be None.
        bank, norm: as for `product`. beside: takes two steps after each column tile of keys, and two after each of
        values."""
        assert a.stored is not None
        for step in range(self.mode.steps(a.k.columns)):
            for p, stored in ((a.k, a.stored[0]), (a.v, a.stored[1])):
                made = self.column(panel, p, step, bank, norm)
                self.functions(panel, p, made, lambda lane: PostTarget.DDR)
                self._store(panel, made, stored)
                for _ in range(2):
                    next(beside, None)


def _lane(lane: int) -> TileTarget:
    return TileTarget.ODD if lane & 1 else TileTarget.EVEN


def _rows_of(lane: int) -> TileTarget:
    return TileTarget.ROWS_ODD if lane & 1 else TileTarget.ROWS_EVEN


def panels_of(sequences: Sequences, size: int) -> list[Panel]:
    """The row tiles (of 128 rows) of all sequences, cut in order into panels of `size` tiles or, the last one,
    fewer."""
    tiles = sequences.all
    return [Panel(tiles[i : i + size]) for i in range(0, len(tiles), size)]


def shared(panels: list[Panel]) -> Iterator[list[Panel]]:
    """The panels in groups, in order. Two neighbours that have rows of one sequence are in one group."""
    group: list[Panel] = []
    for panel, after in zip(panels, [*panels[1:], None], strict=True):
        group.append(panel)
        if after is None or panel.tiles[-1].seq != after.tiles[0].seq:
            yield group
            group = []
