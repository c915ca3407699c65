"""What the lanes do for a panel, in one of two modes.

R6: a panel has six row tiles, one for each lane. All lanes compute the same columns, with one stream of weights.
P3: a panel has three row tiles, one for each pair. The even lanes hold and compute the first half of all columns, the
odd lanes the second half, each with a stream of weights of their own.

Rows stay in X, in one of its two banks; what is computed from them goes to the other bank. In a round of attention, all
lanes compute the queries of the next column tiles and add a slice of the output projection of an earlier round; then
the even lanes compute scores, while the odd lanes compute probabilities times values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ...base.errors import UnsupportedError
from ...isa.overlays.xnn2.off_chip import TABLE_SIZE, Weight
from ...isa.overlays.xnn2.operands import KV, LANES
from ...isa.overlays.xnn2.results import PostTarget, ResultTarget
from ...isa.overlays.xnn2.rows import COLUMNS, RowSource, RowTarget
from ...isa.overlays.xnn2.scratch import Part, TileSource, TileTarget
from .blocks import BLOCK, TILE, TILE_SIZE, Attention, Matrix, Panel, Product, RowNorm, RowTile, Sequences
from .emission import Emission

QUERIES = 0
"""First slot of the queries in T of an even lane: of two rounds, two tiles each."""
HIDDEN = (4, 16)
HIDDEN_SLOTS = 3
"""First slot, and number, of activated tiles in T of an even and an odd lane."""
KV_SLOTS = 12
PIECE = 2
"""Most tiles of weights that DDR loads at once: W1 has room for them whenever it waits for one."""
EMPTY: Iterator[None] = iter(())


class Group(NamedTuple):
    """What a softmax goes over: a head, and a row tile of each pair. round: of the attention. place: which of the two
    tiles of a round the queries are in: in R6 those of the even or the odd lane, in P3 those that it computes."""

    round: int
    place: int
    head: int


class Residual(NamedTuple):
    """What a product adds: rows of a bank, with the norm that they are sent with."""

    bank: int
    norm: RowNorm | None


class Half(NamedTuple):
    """Lanes that compute the same columns. number: 0 or 1. mask: the lanes, as bits."""

    number: int
    lanes: Sequence[int]
    mask: int


class Mode:
    """A way to share rows and columns among lanes. halves: parts of the columns. rows: row tiles of a panel. heads: the
    first slot, in T of an even and an odd lane, of the results of heads; ring: slots of probabilities."""

    def __init__(self, name: str, halves: int, heads: tuple[int, int], ring: int) -> None:
        self.name, self.halves, self.heads, self.ring = name, halves, heads, ring
        self.rows = LANES // halves

    @property
    def columns(self) -> int:
        """Column tiles of a bank."""
        return COLUMNS * self.halves

    def split(self, columns: int) -> list[range]:
        """The column tiles of each half."""
        first = -(-columns // self.halves)
        return [range(first)] + ([range(first, columns)] if self.halves > 1 else [])

    def steps(self, columns: int) -> int:
        """Steps in which all halves compute so many column tiles, one each."""
        return -(-columns // self.halves)

    def lane_of(self, row: int, half: int) -> int:
        """The lane of a row tile of the panel and a half of the columns."""
        return row if self.halves == 1 else 2 * row + half

    def lanes(self, panel: Panel) -> range:
        """Lanes that compute."""
        return range(len(panel.tiles) * self.halves)

    def tile(self, panel: Panel, lane: int) -> RowTile:
        """The row tile of a lane."""
        return panel.tiles[lane // self.halves]

    def of_halves(self, panel: Panel) -> list[Half]:
        """The lanes of each half."""
        out = []
        for number in range(self.halves):
            lanes = [self.lane_of(row, number) for row in range(len(panel.tiles))]
            out.append(Half(number, lanes, sum(1 << lane for lane in lanes)))
        return out


R6 = Mode("R6", 1, (4, 22), 22)
P3 = Mode("P3", 2, (0, 20), 16)


class Rows:
    """Emits what panels compute. lag: groups of scores by which probabilities times values are behind."""

    def __init__(self, emission: Emission, sequences: Sequences, mode: Mode, lag: int = 3) -> None:
        self.e, self.sequences, self.mode, self.lag = emission, sequences, mode, lag
        self._table: dict[int, tuple[int, int]] = {}
        """The table that Post of each lane holds: where it begins, and its row tile."""
        self._alone: set[tuple[int, int]] = set()
        """Banks of X whose statistics the lanes of a pair have not joined yet, by lane."""

    # -- rows

    def _pieces(self, panel: Panel, columns: int) -> list[list[tuple[int, int, int, int, int]]]:
        """Steps that bring rows on chip: pair, row tile of the panel, column tile, slot of T and lane, of each tile that
        one step brings, at most one for each pair."""
        out: list[list[tuple[int, int, int, int, int]]] = []
        for column in range(columns):
            if self.mode.halves == 1:
                for odd in range(2):
                    out.append(
                        [(p, 2 * p + odd, column, COLUMNS * odd + column, 2 * p + odd) for p, _ in panel.pairs(odd)]
                    )
            else:
                (first, _) = self.mode.split(columns)
                half = int(column not in first)
                out.append([(p, p, column, column, 2 * p + half) for p in range(len(panel.tiles))])
        return [step for step in out if step]

    def stage(self, panel: Panel, x: Matrix) -> Iterator[None]:
        """Load the rows of a panel into T of the odd lanes; yields after each tile of all pairs."""
        for step in self._pieces(panel, x.columns):
            for pair, row, column, slot, _ in step:
                self.e.ddr(f"TIn{2 * pair + 1}", x.at(panel.tiles[row].row, column), TILE_SIZE)
                self.e.take_tiles(2 * pair + 1, (slot,), TileSource.DDR)
            yield

    def land(self, panel: Panel, bank: int, columns: int, width: int, statistics: bool) -> Iterator[None]:
        """Move the rows of a panel from T to a bank of X; yields after each tile of all pairs. width: columns that
        statistics count."""
        halves = self.mode.split(columns)
        for step in self._pieces(panel, columns):
            for pair, _, column, slot, lane in step:
                to = TileTarget.ROWS_ODD if lane & 1 else TileTarget.ROWS_EVEN
                first = next(r for r in halves if column in r).start
                self.e.send_tiles(2 * pair + 1, (slot,), to)
                self.take(lane, bank, (column - first,), first, width if statistics else None, RowSource.ODD)
            yield

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
        """X of a lane takes column tiles. slots: of the bank. first: the column tile of slot 0. width: columns of all
        rows that statistics count; None makes none."""
        statistics, columns = 0, 0
        if width is not None:
            statistics = 2 if slots[0] else 1
            columns = max(min(width - (first + slots[0]) * TILE, len(slots) * TILE), 0)
            if self.mode.halves > 1:
                self._alone.add((lane, bank))
        at = bank * COLUMNS + slots[0]
        self.e.take_rows(
            lane, range(at, at + len(slots)), source, add=add, statistics=statistics, columns=columns
        )

    def bring(self, panel: Panel, x: Matrix, bank: int, width: int, statistics: bool) -> Iterator[None]:
        """Load the rows of a panel into a bank, piece by piece."""
        land = self.land(panel, bank, x.columns, width, statistics)
        for number, _ in enumerate(self.stage(panel, x)):
            yield
            if number > 1:
                next(land, None)
        yield from land

    def store(self, panel: Panel, bank: int, y: Matrix, norm: RowNorm | None) -> None:
        """Store the rows of a bank, which have just been completed."""
        if norm is not None:
            self._join(panel, bank)
        for half, columns in zip(self.mode.of_halves(panel), self.mode.split(y.columns), strict=True):
            if not columns:
                continue
            for lane in half.lanes:
                slots = range(bank * COLUMNS, bank * COLUMNS + len(columns))
                self.e.store_rows(lane, slots, norm, joined=norm is not None and self.mode.halves > 1)
                at = y.at(self.mode.tile(panel, lane).row, columns.start)
                self.e.ddr(f"XStore{lane}", at, len(columns) * TILE_SIZE)

    def _join(self, panel: Panel, bank: int) -> None:
        """Join the statistics of the halves of rows, where that has not been done."""
        for pair in range(len(panel.tiles) if self.mode.halves > 1 else 0):
            alone = [(lane, bank) in self._alone for lane in (2 * pair, 2 * pair + 1)]
            if any(alone):
                for lane, own in zip((2 * pair, 2 * pair + 1), alone, strict=True):
                    self._alone.discard((lane, bank))
                    self.e.join_statistics(lane, bank, empty=not own)

    def rows_to_mme(self, panel: Panel, bank: int, depth: int, norm: RowNorm | None, halves: Sequence[Half]) -> None:
        """X sends all column tiles of its rows to the MMEs of these halves, and MeshA passes them on."""
        if norm is not None:
            self._join(panel, bank)
        parts = self.mode.split(depth)
        if self.mode.halves == 1:
            for lane in self.mode.lanes(panel):
                self.e.send_rows(lane, range(bank * COLUMNS, bank * COLUMNS + depth), RowTarget.LANE, norm=norm)
                self.e.left(lane, f"XOut{lane}", depth)
            return
        for pair in range(len(panel.tiles)):
            for source, part in enumerate(parts):
                if not part:
                    continue
                lane = 2 * pair + source
                both = len(halves) > 1
                to = RowTarget.PAIR if both else RowTarget.LANE if halves[0].number == source else RowTarget.OTHER
                self.e.send_rows(lane, range(bank * COLUMNS, bank * COLUMNS + len(part)), to, norm=norm)
                for half in halves:
                    self.e.left(2 * pair + half.number, f"XOut{lane}", len(part))

    # -- products

    def weights(self, half: Half, matrix: Matrix, row: int, column: int, rows: int, columns: int) -> None:
        """Weights of a half: `rows` tiles of a column, or `columns` tiles of a row."""
        count = rows * columns
        stride = matrix.row if rows > 1 else TILE_SIZE
        if matrix.ddr:
            for at in range(0, count, PIECE):
                some = min(PIECE, count - at)
                addr = matrix.at(row + at, column) if rows > 1 else matrix.at(row, column + at)
                self.e.ddr(f"W{half.number}", addr, TILE_SIZE, some, stride)
        else:
            to = Weight.W1 if half.number else Weight.W0
            self.e.lpddr(to, matrix.at(row, column), TILE_SIZE, count, stride)
        self.e.weights(half.number, count, half.mask, ddr=matrix.ddr)

    def column(
        self,
        panel: Panel,
        p: Product,
        step: int,
        bank: int,
        norm: RowNorm | None,
        to: ResultTarget = ResultTarget.POST,
        residual: Residual | None = None,
    ) -> list[tuple[Half, int]]:
        """rows @ weight of one column tile of each half, as C sends them on; of a gate, of a pair of tiles. Returns the
        halves that have one, and the column of the result."""
        e, depth = self.e, p.rows
        made = [
            (half, columns[step])
            for half, columns in zip(self.mode.of_halves(panel), self.mode.split(p.columns), strict=True)
            if step < len(columns)
        ]
        starts = [columns.start for columns in self.mode.split(p.columns)]
        for turn in range(1 + p.gate):
            for half, column in made:
                tile = column * (1 + p.gate) + turn
                if p.vectors is not None:
                    each = p.vectors.each * TILE
                    e.lpddr(Weight.VECTOR, p.vectors.addr + tile * each, each, lanes=half.mask)
                place = (column - starts[half.number]) * (1 + p.gate) + turn
                self.weights(half, p.weights[half.number], 0, place, depth, 1)
            self.rows_to_mme(panel, bank, depth, norm, [half for half, _ in made])
            for half, _ in made:
                for lane in half.lanes:
                    e.right(lane, f"W{half.number}", depth)
                    e.multiply(lane, 1, depth)
                    if residual is not None:
                        slot = residual.bank * COLUMNS + step
                        e.send_rows(lane, (slot,), RowTarget.RESULT, norm=residual.norm)
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
        self, panel: Panel, p: Product, made: Sequence[tuple[Half, int]], to: Callable[[int], int]
    ) -> None:
        """Post of the lanes that made a column tile applies the functions of a product. to: the target, by lane."""
        for half, _ in made:
            for lane in half.lanes:
                tile = self.mode.tile(panel, lane)
                fields: dict[str, Any] = {"activation": p.activation, "gate": int(p.gate)}
                if p.head is not None:
                    head = p.head
                    fields["heads"] = int(head.pitch < TILE)
                    if head.columns:
                        fields |= {"norm": 1, "columns": head.columns, "eps": head.eps, "rms": int(head.rms)}
                    if head.table is not None:
                        fields["rotate"] = 1
                        if self._table.get(lane) != (head.table, tile.at):
                            self._table[lane] = head.table, tile.at
                            addr = head.table + tile.at * TABLE_SIZE
                            self.e.lpddr(Weight.TABLE, addr, TABLE_SIZE, lanes=1 << lane)
                            fields["table"] = 1
                self.e.post(lane, 1, to(lane), **fields)

    def slice(
        self,
        panel: Panel,
        p: Product,
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
        """Add the products of one tile of K to the rows of a bank; the first slice begins them. where: the T of a lane
        or, in P3, of a pair that has the tile, and the slot. width: columns that statistics count. beside: emits what
        else T of the odd lanes does between its tiles."""
        e = self.e
        parts = self.mode.split(p.columns)
        biased = first and p.vectors is not None
        scaled = biased and p.vectors is not None and p.vectors.each == 2
        if first and residual is not None and residual.norm is not None:
            self._join(panel, residual.bank)
        for half, columns in zip(self.mode.of_halves(panel), parts, strict=True):
            if columns:
                if biased and p.vectors is not None:
                    each = p.vectors.each * TILE
                    e.lpddr(
                        Weight.VECTOR, p.vectors.addr + columns.start * each, len(columns) * each, lanes=half.mask
                    )
                self.weights(half, p.weights[half.number], k, 0, 1, len(columns))
        longest = len(parts[0])
        # a residual is read before its place is written, tile by tile
        whole = beside is None and not (first and residual is not None and residual.bank == bank)
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
                for half, some in enumerate(counts):
                    if not some:
                        continue
                    lane = self.mode.lane_of(row, half)
                    e.left(lane, f"TOut{tile}", some)
                    e.right(lane, f"W{half}", some)
                    e.multiply(lane, some, 1)
                    adds = first and residual is not None
                    if adds and residual is not None:
                        own = residual.bank * COLUMNS + at
                        e.send_rows(lane, range(own, own + some), RowTarget.RESULT, norm=residual.norm)
                    e.result(lane, some, ResultTarget.ROWS, bias=biased, scale=scaled, residual=adds)
                    self.take(
                        lane, bank, range(at, at + some), parts[half].start, width if last else None, add=not first
                    )
            if beside is not None:
                next(beside, None)

    def product(
        self,
        panel: Panel,
        p: Product,
        bank: int,
        norm: RowNorm | None,
        to: Matrix,
        beside: Iterator[None] = EMPTY,
    ) -> None:
        """rows @ weight, and what Post applies to it, stored in DDR."""
        for step in range(self.mode.steps(p.columns)):
            made = self.column(panel, p, step, bank, norm)
            self.functions(panel, p, made, lambda lane: PostTarget.DDR)
            self._store(panel, made, to)
            next(beside, None)

    def _store(self, panel: Panel, made: Sequence[tuple[Half, int]], to: Matrix) -> None:
        for half, column in made:
            for lane in half.lanes:
                self.e.ddr(f"Post{lane}", to.at(self.mode.tile(panel, lane).row, column), TILE_SIZE)

    def product_on_chip(
        self, panel: Panel, p: Product, bank: int, norm: RowNorm | None, residual: Residual | None, width: int
    ) -> None:
        """rows @ weight + residual, in the other bank."""
        if residual is not None and residual.norm is not None:
            self._join(panel, residual.bank)
        starts = [columns.start for columns in self.mode.split(p.columns)]
        for step in range(self.mode.steps(p.columns)):
            for half, _ in self.column(panel, p, step, bank, norm, ResultTarget.ROWS, residual):
                for lane in half.lanes:
                    self.take(lane, 1 - bank, (step,), starts[half.number], width)

    def copy(self, panel: Panel, columns: int, source: Residual, scale: int | None, width: int) -> None:
        """Rows of a bank times a scale, in the other bank. scale: address of the vectors; None multiplies by 1."""
        self.add(panel, columns, 1 - source.bank, source, scale, width, begin=True)

    def add(
        self, panel: Panel, columns: int, to: int, addend: Residual, scale: int | None, width: int, *, begin: bool = False
    ) -> None:
        """Add rows of the other bank to those of a bank, or `begin` these with them. scale: address of the vectors that
        multiply them; None multiplies by 1."""
        if addend.norm is not None:
            self._join(panel, addend.bank)
        for half, part in zip(self.mode.of_halves(panel), self.mode.split(columns), strict=True):
            if not part:
                continue
            if scale is not None:
                self.e.lpddr(Weight.VECTOR, scale + part.start * TILE, len(part) * TILE, lanes=half.mask)
            for lane in half.lanes:
                source = addend.bank * COLUMNS
                self.e.send_rows(lane, range(source, source + len(part)), RowTarget.RESULT, norm=addend.norm)
                self.e.result(lane, len(part), ResultTarget.ROWS, scale=scale is not None, residual=True, alone=True)
                self.take(lane, to, range(len(part)), part.start, width, add=not begin)

    # -- feed-forward

    def feed_forward(
        self,
        panel: Panel,
        up: Product,
        down: Product,
        bank: int,
        norm: RowNorm | None,
        residual: Residual | None,
        width: int,
        beside: Iterator[None] = EMPTY,
        behind: Iterator[None] = EMPTY,
    ) -> None:
        """functions(rows @ up) @ down + residual, in the other bank. beside: emits what goes beside it. behind: what
        goes between the last slices, where the bank of the rows is free."""
        steps = self.mode.steps(up.columns)
        computed: dict[int, list[tuple[Half, int]]] = {}

        def hidden(step: int) -> None:
            if step >= steps:
                return
            computed[step] = made = self.column(panel, up, step, bank, norm)
            self.functions(panel, up, made, lambda lane: PostTarget.ODD if lane & 1 else PostTarget.EVEN)
            for half, _ in made:
                for lane in half.lanes:
                    slot = HIDDEN[lane & 1] + step % HIDDEN_SLOTS
                    self.e.take_tiles(lane, (slot,), TileSource.ODD if lane & 1 else TileSource.EVEN)

        hidden(0)
        for step in range(steps):
            next(beside, None)
            hidden(step + 1)
            late = step >= steps - 2
            if late:
                for _ in beside:
                    pass
            made = computed.pop(step)
            for half, column in made:
                number = half.number

                def where(row: int, number: int = number, step: int = step) -> tuple[int, int]:
                    lane = self.mode.lane_of(row, number)
                    return lane, HIDDEN[lane & 1] + step % HIDDEN_SLOTS

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
        self, panel: Panel, a: Attention, bank: int, norm: RowNorm | None, beside: Iterator[None] = EMPTY
    ) -> None:
        """Compute keys and values of a panel, and store them."""
        assert a.stored is not None
        for step in range(self.mode.steps(a.k.columns)):
            for p, stored in ((a.k, a.stored[0]), (a.v, a.stored[1])):
                made = self.column(panel, p, step, bank, norm)
                self.functions(panel, p, made, lambda lane: PostTarget.DDR)
                self._store(panel, made, stored)
                for _ in range(2):
                    next(beside, None)

    def attend(
        self,
        panel: Panel,
        a: Attention,
        out: Product,
        bank: int,
        norm: RowNorm | None,
        residual: Residual | None,
        width: int,
    ) -> None:
        """attention(rows) @ out + residual, in the other bank."""
        _Attend(self, panel, a, out, bank, norm, residual, width).emit()


def _lane(lane: int) -> TileTarget:
    return TileTarget.ODD if lane & 1 else TileTarget.EVEN


class _Slots:
    """Slots of one K or V unit: pieces are taken in turn, and given back when nothing will read them."""

    def __init__(self) -> None:
        self.next = 0
        self.live: dict[tuple[int, int], range] = {}
        """By sequence and head."""

    def place(self, count: int) -> range | None:
        """Where `count` slots can be taken; None if that would overwrite what is still to be read."""
        for at in (self.next, 0):
            slots = range(at, at + count)
            if slots.stop <= KV_SLOTS and all(
                r.stop <= slots.start or slots.stop <= r.start for r in self.live.values()
            ):
                return slots
        return None


class _Attend:
    """The rounds of one attention. In a round, each half of the columns has one tile of queries."""

    def __init__(
        self,
        rows: Rows,
        panel: Panel,
        a: Attention,
        out: Product,
        bank: int,
        norm: RowNorm | None,
        residual: Residual | None,
        width: int,
    ) -> None:
        self.rows, self.e, self.panel, self.a, self.mode = rows, rows.e, panel, a, rows.mode
        self.out, self.bank, self.norm, self.residual, self.width = out, bank, norm, residual, width
        self.tiles = rows.sequences.tiles
        self.longest = max(self.tiles(seq) for seq in panel.seqs)
        self.rounds = self.mode.steps(a.q.columns)
        self.ring = self.mode.ring // self.longest
        if self.ring < 1:
            needs = self.longest * TILE_SIZE * 4 >> 10
            raise UnsupportedError(
                f"a sequence of {self.longest * TILE} rows: its probabilities of a head need {needs} KiB; T of an odd "
                f"lane has {self.mode.ring * TILE_SIZE * 4 >> 10} KiB for them"
            )
        self.lag = min(rows.lag, 2 * a.each, self.ring - 1)
        self.units = [_Slots() for _ in range(KV)]
        self.places = 2 if self.mode.halves == 1 else 1
        """Row tiles of a pair."""
        keys = [(which, head) for which in range(2) for head in range(a.kv_heads)]
        self.uses = dict.fromkeys(keys, self.places * a.groups)
        """How often scores (0) and values (1) will still be computed with a head of keys."""
        self.waiting: deque[Group] = deque()
        self.left: dict[int, int] = {}
        """Groups of a round whose values are to be computed."""
        self.done = 0
        """Rounds whose slices of the output projection were added."""
        self.scored = 0
        order = [h // a.groups for r in range(self.rounds) for _, h in self.heads(r)]
        self.order = list(dict.fromkeys(order))
        """Heads of keys, in the order in which they are needed."""
        self.brought = 0
        """How many of them were brought."""

    def heads(self, r: int) -> list[tuple[int, int]]:
        """The heads of a round, each with the half that computes its queries."""
        a = self.a
        return [
            (half, h)
            for half, columns in enumerate(self.mode.split(a.q.columns))
            if r < len(columns)
            for h in range(columns[r] * a.each, min((columns[r] + 1) * a.each, a.heads))
        ]

    def emit(self) -> None:
        self.keys(0)
        self.queries(0)
        for r in range(self.rounds):
            self.keys(r + 1)
            self.queries(r + 1)
            if self.done < r - 1:
                self.project()
            heads = self.heads(r)
            self.left[r] = self.places * len(heads)
            for half, head in heads:
                self.need(head // self.a.groups)
                for place in range(self.places):
                    self.scores(Group(r, place if self.places > 1 else half, head))
                    if len(self.waiting) > self.lag:
                        self.values()
        while self.done < self.rounds - 1 and not self.left[self.done]:
            self.project()
        while self.waiting:
            self.values()
        while self.done < self.rounds:
            self.project()

    # -- queries, and what the results become

    def queries(self, r: int) -> None:
        if r >= self.rounds:
            return
        made = self.rows.column(self.panel, self.a.q, r, self.bank, self.norm)
        self.rows.functions(self.panel, self.a.q, made, lambda lane: PostTarget.EVEN)
        for half, _ in made:
            for lane in half.lanes:
                slot = QUERIES + 2 * (r % 2) + (lane & 1)
                self.e.take_tiles(lane & ~1, (slot,), TileSource.ODD if lane & 1 else TileSource.EVEN)

    def result(self, r: int, pair: int, place: int) -> tuple[int, int]:
        """The T and the slot of the results of the heads of a tile of queries."""
        if self.mode.halves == 1:
            return 2 * pair + place, self.mode.heads[place] + r % 2
        return 2 * pair + 1, self.mode.heads[1] + 2 * (r % 2) + place

    def project(self) -> None:
        """Add the slices of the output projection of the next round."""
        r, self.done = self.done, self.done + 1
        assert not self.left[r], "its heads are not complete"
        tiles = [(half, columns[r]) for half, columns in enumerate(self.mode.split(self.a.q.columns)) if r < len(columns)]
        for half, k in tiles:

            def where(row: int, half: int = half) -> tuple[int, int]:
                return self.result(r, row // 2, row & 1) if self.mode.halves == 1 else self.result(r, row, half)

            self.rows.slice(
                self.panel,
                self.out,
                k,
                where,
                1 - self.bank,
                self.residual,
                self.width,
                first=not r and not half,
                last=r == self.rounds - 1 and half == tiles[-1][0],
            )

    # -- keys and values

    def unit_of(self, seq: int, head: int) -> int:
        """K unit of a head. In P3 it is that of the half that computes it. In R6 a sequence has one of them; if there is
        only one sequence, heads take turns."""
        column = head // self.a.each
        if self.mode.halves > 1:
            return int(column not in self.mode.split(self.a.k.columns)[0])
        seqs = self.panel.seqs
        if len(seqs) == 1:
            return (head if self.a.stored is not None else column) % 2
        half, sizes = 0, [self.tiles(s) for s in seqs]
        while sum(sizes[: half + 1]) * 2 <= sum(sizes) or not half:
            half += 1
        return int(seqs.index(seq) >= half)

    def keys(self, r: int) -> None:
        """Bring the keys and values of the heads up to those of a round, as far as there is room, in their order."""
        if r >= self.rounds:
            return
        last = max(self.order.index(h // self.a.groups) for _, h in self.heads(r))
        while self.brought <= last:
            if not all([self.bring(self.order[self.brought], which) for which in range(2)]):
                return
            self.brought += 1

    def need(self, head: int) -> None:
        """Bring keys and values of a head. If there is no room, values that wait are computed first. Raises
        `UnsupportedError` if there will never be room."""
        while self.brought <= self.order.index(head):
            if all([self.bring(self.order[self.brought], which) for which in range(2)]):
                self.brought += 1
                continue
            if not self.waiting:
                needs = sum(self.tiles(seq) for seq in self.panel.seqs) * self.a.blocks * BLOCK * 4 >> 10
                raise UnsupportedError(
                    f"a sequence of {self.longest * TILE} rows: the keys of a head need {needs} KiB for a panel, its "
                    f"values as many; K0 and V0 have {KV_SLOTS * BLOCK * 4 >> 10} KiB each"
                )
            self.values()

    def bring(self, head: int, which: int) -> bool:
        """Bring keys (0) or values (1) of a head, and of those that are computed together. Returns whether they are
        there."""
        if (self.panel.seqs[0], head) in self.units[self.unit_of(self.panel.seqs[0], head) + 2 * which].live:
            return True
        return self._load(head, which) if self.a.stored is not None else self._compute(head, which)

    def _place(self, heads: Sequence[int], which: int) -> list[tuple[int, int, int, range]] | None:
        """Take slots for some heads. Returns sequence, head, unit and slots of each; None, and takes none, if there is no
        room."""
        out: list[tuple[int, int, int, range]] = []
        nexts = [unit.next for unit in self.units]
        for seq in self.panel.seqs:
            for head in heads:
                number = self.unit_of(seq, min(head, self.a.kv_heads - 1)) + 2 * which
                unit = self.units[number]
                slots = unit.place(self.tiles(seq) * self.a.blocks)
                if slots is None:
                    for s, h, n, _ in out:
                        del self.units[n].live[s, h]
                    for u, at in zip(self.units, nexts, strict=True):
                        u.next = at
                    return None
                unit.live[seq, head] = slots
                unit.next = slots.stop
                out.append((seq, head, number, slots))
        return out

    def _load(self, head: int, which: int) -> bool:
        """Load keys or values of a head from DDR."""
        a = self.a
        assert a.stored is not None
        placed = self._place((head,), which)
        for seq, _, number, slots in placed or ():
            stored = a.stored[which]
            self.e.take_heads(number, slots)
            addr = stored.at(self.rows.sequences.starts[seq], 0) + head * a.blocks * BLOCK
            self.e.ddr(f"KvIn{number}", addr, a.blocks * BLOCK, self.tiles(seq), stored.row)
        return placed is not None

    def _compute(self, head: int, which: int) -> bool:
        """Compute keys or values of a head, and of all in the column tiles that are computed in the same step."""
        a, panel = self.a, self.panel
        p = (a.k, a.v)[which]
        columns = self.mode.split(p.columns)
        step = next(part.index(head // a.each) for part in columns if head // a.each in part)
        tiles = [part[step] for part in columns if step < len(part)]
        heads = [h for column in tiles for h in range(column * a.each, (column + 1) * a.each)]
        if self._place(heads, which) is None:
            return False
        made = self.rows.column(panel, p, step, self.bank, self.norm)

        def unit(lane: int, column: int) -> int:
            first = min(column * a.each, a.kv_heads - 1)
            return self.unit_of(self.mode.tile(panel, lane).seq, first) + 2 * which

        for half, column in made:
            self.rows.functions(
                panel, p, [(half, column)], lambda lane, column=column: PostTarget.KV + unit(lane, column)  # type: ignore[misc]
            )
        for half, column in made:
            for lane in half.lanes:
                tile = self.mode.tile(panel, lane)
                live = self.units[unit(lane, column)].live
                slot = live[tile.seq, column * a.each].start + a.blocks * tile.at
                second = slot + 1 if a.each == 1 else live[tile.seq, column * a.each + 1].start + tile.at
                self.e.take_both(unit(lane, column), lane, slot, second)
        for u in self.units:
            for key in [key for key in u.live if key[1] >= a.kv_heads]:  # heads of padding
                del u.live[key]
        return True

    def used(self, which: int, head: int) -> None:
        """One group has used keys (0) or values (1) of a head; after the last one they are given back."""
        self.uses[which, head] -= 1
        if not self.uses[which, head]:
            for unit in self.units[2 * which : 2 * which + 2]:
                for key in [k for k in unit.live if k[1] == head]:
                    del unit.live[key]

    def pairs(self, place: int) -> list[tuple[int, RowTile]]:
        """The pairs that compute a group, each with its row tile."""
        return self.panel.pairs(place) if self.mode.halves == 1 else list(enumerate(self.panel.tiles))

    def send(self, which: int, head: int, place: int) -> dict[int, int]:
        """The units of keys (0) or values (1) send those of a head to the lanes that compute with them. Returns the unit
        by sequence."""
        pairs = self.pairs(place)
        units: dict[int, int] = {}
        for seq in sorted({t.seq for _, t in pairs}):
            units[seq] = self.unit_of(seq, head) + 2 * which
            lanes = sum(1 + which << 2 * pair for pair, t in pairs if t.seq == seq)
            self.e.send_heads(units[seq], self.units[units[seq]].live[seq, head], lanes, wide=self.a.blocks > 1)
        return units

    # -- scores and values

    def slots(self, turn: int, count: int) -> range:
        """Where T keeps the probabilities of a group."""
        at = turn % self.ring * self.longest
        return range(at, at + count)

    def scores(self, g: Group) -> None:
        """Q K^T of one head, for one row tile of each pair."""
        e, a = self.e, self.a
        wide, head = a.blocks > 1, g.head // a.groups
        units = self.send(0, head, g.place)
        for pair, t in self.pairs(g.place):
            even, count = 2 * pair, self.tiles(t.seq)
            part = Part.WHOLE if wide else Part.LEFT + g.head % a.each
            e.send_tiles(even, (QUERIES + 2 * (g.round % 2) + g.place,), TileTarget.EVEN, times=count, part=part)
            e.left(even, f"TOut{even}", count)
            e.right(even, f"KvOut{units[t.seq]}", count)
            e.multiply(even, count, 1, k64=not wide)
            e.result(even, count, ResultTarget.SOFTMAX)
            e.softmax(pair, count, self.rows.sequences.rows[t.seq], t, a.mask)
            e.take_tiles(even + 1, self.slots(self.scored, count), TileSource.SOFTMAX)
        self.scored += 1
        self.waiting.append(g)
        self.used(0, head)

    def values(self) -> None:
        """Probabilities times values of the head that waits longest, for one row tile of each pair."""
        e, a = self.e, self.a
        turn = self.scored - len(self.waiting)
        g = self.waiting.popleft()
        wide, head = a.blocks > 1, g.head // a.groups
        units = self.send(1, head, g.place)
        part = Part.WHOLE if wide else Part(Part.LEFT + g.head % a.each)
        for pair, t in self.pairs(g.place):
            odd, count = 2 * pair + 1, self.tiles(t.seq)
            e.send_tiles(odd, self.slots(turn, count), TileTarget.ODD, weights=True)
            e.left(odd, f"TOut{odd}", count)
            e.right(odd, f"KvOut{units[t.seq]}", count)
            e.multiply(odd, 1, count, n64=not wide)
            e.result(odd, 1, ResultTarget.POST)
            lane, slot = self.result(g.round, pair, g.place)
            e.post(odd, 1, PostTarget.ODD if lane & 1 else PostTarget.EVEN)
            e.take_tiles(lane, (slot,), TileSource.ODD, part=part)
        self.left[g.round] -= 1
        self.used(1, head)


def panels_of(sequences: Sequences, size: int) -> list[Panel]:
    """All row tiles in panels."""
    tiles = sequences.all
    return [Panel(tiles[i : i + size]) for i in range(0, len(tiles), size)]


def shared(panels: list[Panel]) -> Iterator[list[Panel]]:
    """Panels in groups that no sequence joins."""
    group: list[Panel] = []
    for panel, after in zip(panels, [*panels[1:], None], strict=True):
        group.append(panel)
        if after is None or panel.tiles[-1].seq != after.tiles[0].seq:
            yield group
            group = []
