"""Mode R6: each lane has a row tile of a panel of six, and all lanes take the same weights.

Rows stay in X of their lane, in one of its two banks; what is computed from them goes to the other bank. In a round of
attention, all lanes compute the queries of the next column tile and add a slice of the output projection of an earlier
one; then the even lanes compute scores for both row tiles of their pair, while the odd lanes compute probabilities
times values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ...base.errors import UnsupportedError
from ...isa.overlays.xnn2.off_chip import Weight
from ...isa.overlays.xnn2.operands import KV
from ...isa.overlays.xnn2.results import PostTarget, ResultTarget
from ...isa.overlays.xnn2.rows import COLUMNS, RowSource, RowTarget
from ...isa.overlays.xnn2.scratch import Part, TileSource, TileTarget
from .blocks import BLOCK, TILE, TILE_SIZE, Attention, Matrix, Panel, Product, RowNorm, Sequences
from .emission import Emission

QUERIES = 0
"""First slot of the queries in T of an even lane: of two rounds, of both lanes of the pair."""
HEADS = (4, 22)
"""First slot of the results of heads in T of an even and an odd lane: of two rounds."""
HIDDEN = (0, 16)
HIDDEN_SLOTS = 3
"""First slot, and number, of activated tiles in T of an even and an odd lane."""
KV_SLOTS = 12
RING = 22
"""Slots of probabilities in T of an odd lane."""
EMPTY: Iterator[None] = iter(())


class Group(NamedTuple):
    """The rows of one lane of each pair, and one head: what a softmax goes over."""

    round: int
    odd: int
    head: int


class Residual(NamedTuple):
    """What a product adds: rows of a bank, with the norm that they are sent with."""

    bank: int
    norm: RowNorm | None


class Rows6:
    """Emits what panels compute. lag: groups of scores by which probabilities times values are behind."""

    def __init__(self, emission: Emission, sequences: Sequences, lag: int = 3) -> None:
        self.e, self.sequences, self.lag = emission, sequences, lag
        self._table: dict[int, tuple[int, int]] = {}
        """The table that Post of each lane holds: where it begins, and its row tile."""

    # -- rows

    def stage(self, panel: Panel, x: Matrix) -> Iterator[None]:
        """Load the rows of a panel into T of the odd lanes; yields after each piece of all pairs."""
        for at in range(0, x.columns, 2):
            count = min(2, x.columns - at)
            for odd in range(2):
                for pair, tile in panel.pairs(odd):
                    self.e.ddr(f"TIn{2 * pair + 1}", x.at(tile.row, at), count * TILE_SIZE)
                    slot = COLUMNS * odd + at
                    self.e.take_tiles(2 * pair + 1, range(slot, slot + count), TileSource.DDR)
                yield

    def land(self, panel: Panel, bank: int, columns: int, width: int, statistics: bool) -> Iterator[None]:
        """Move the rows of a panel from T to a bank of X; yields after each column tile of one lane of all pairs.
        width: columns that statistics count."""
        for column in range(columns):
            for odd in range(2):
                for pair, _ in panel.pairs(odd):
                    to = TileTarget.ROWS_ODD if odd else TileTarget.ROWS_EVEN
                    self.e.send_tiles(2 * pair + 1, (COLUMNS * odd + column,), to)
                    self.e.take_rows(
                        2 * pair + odd,
                        (bank * COLUMNS + column,),
                        RowSource.ODD,
                        statistics=(2 if column else 1) if statistics else 0,
                        columns=max(min(width - column * TILE, TILE), 0),
                    )
                yield

    def bring(self, panel: Panel, x: Matrix, bank: int, width: int, statistics: bool) -> Iterator[None]:
        """Load the rows of a panel into a bank, piece by piece."""
        land = self.land(panel, bank, x.columns, width, statistics)
        stage = self.stage(panel, x)
        for _ in stage:
            yield
            next(stage, None)
            for _ in range(4):
                next(land, None)
            yield
        yield from land

    def store(self, panel: Panel, bank: int, y: Matrix, norm: RowNorm | None) -> None:
        """Store the rows of a bank, which have just been completed."""
        for lane, tile in enumerate(panel.tiles):
            self.e.store_rows(lane, range(bank * COLUMNS, bank * COLUMNS + y.columns), norm)
            self.e.ddr(f"XStore{lane}", y.at(tile.row, 0), y.columns * TILE_SIZE)

    # -- products

    def column(
        self,
        panel: Panel,
        p: Product,
        column: int,
        bank: int,
        norm: RowNorm | None,
        to: ResultTarget = ResultTarget.POST,
    ) -> None:
        """A column tile of rows @ weight, as C sends it on."""
        e, depth = self.e, p.weight.rows
        if p.vectors is not None:
            e.lpddr(Weight.VECTOR, p.vectors.addr + column * TILE, TILE, lanes=panel.mask)
        e.lpddr(Weight.W0, p.weight.at(0, column), TILE_SIZE, depth, p.weight.row)
        e.weights(0, depth, panel.mask)
        slots = range(bank * COLUMNS, bank * COLUMNS + depth)
        for lane in panel.lanes:
            e.send_rows(lane, slots, RowTarget.LANE, norm=norm)
            e.left(lane, f"XOut{lane}", depth)
            e.right(lane, "W0", depth)
            e.multiply(lane, 1, depth)
            e.result(lane, 1, to, bias=p.vectors is not None)

    def functions(self, panel: Panel, p: Product, to: Callable[[int], int]) -> None:
        """Post of all lanes applies the functions of a product to a column tile. to: the target, by lane."""
        for lane, tile in enumerate(panel.tiles):
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
                        addr = head.table + tile.at * TILE_SIZE
                        self.e.lpddr(Weight.TABLE, addr, TILE_SIZE, lanes=1 << lane)
                        fields["table"] = 1
            self.e.post(lane, 1, to(lane), **fields)

    def slice(
        self,
        panel: Panel,
        p: Product,
        k: int,
        slots: Callable[[int], int],
        bank: int,
        residual: Residual | None,
        width: int,
        beside: Iterator[None] | None = None,
    ) -> None:
        """Add the products of one tile of K to the rows of a bank; the first slice begins them. slots: of the tile in
        T, by lane. width: columns that statistics count. beside: emits what T of the odd lanes does between its
        tiles."""
        e, columns = self.e, p.weight.columns
        first, last = k == 0, k == p.weight.rows - 1
        biased = first and p.vectors is not None
        scaled = biased and p.vectors is not None and p.vectors.each == 2
        if biased and p.vectors is not None:
            e.lpddr(Weight.VECTOR, p.vectors.addr, columns * TILE * p.vectors.each, lanes=panel.mask)
        e.lpddr(Weight.W0, p.weight.at(k, 0), TILE_SIZE * columns)
        e.weights(0, columns, panel.mask)
        for at, count in ((0, columns),) if beside is None else ((c, 1) for c in range(columns)):
            for lane in panel.lanes:
                e.send_tiles(lane, (slots(lane),), _lane(lane), times=count)
                e.left(lane, f"TOut{lane}", count)
                e.right(lane, "W0", count)
                e.multiply(lane, count, 1)
                adds = first and residual is not None
                if adds and residual is not None:
                    own = residual.bank * COLUMNS + at
                    e.send_rows(lane, range(own, own + count), RowTarget.RESULT, norm=residual.norm)
                e.result(lane, count, ResultTarget.ROWS, bias=biased, scale=scaled, residual=adds)
                e.take_rows(
                    lane,
                    range(bank * COLUMNS + at, bank * COLUMNS + at + count),
                    add=not first,
                    statistics=(2 if at else 1) if last else 0,
                    columns=max(min(width - at * TILE, count * TILE), 0) if last else 0,
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
        for column in range(p.columns):
            for half in range(1 + p.gate):
                self.column(panel, p, column * (1 + p.gate) + half, bank, norm)
            self.functions(panel, p, lambda lane: PostTarget.DDR)
            for lane, tile in enumerate(panel.tiles):
                self.e.ddr(f"Post{lane}", to.at(tile.row, column), TILE_SIZE)
            next(beside, None)

    def product_on_chip(
        self, panel: Panel, p: Product, bank: int, norm: RowNorm | None, residual: Residual | None, width: int
    ) -> None:
        """rows @ weight + residual, in the other bank."""
        e, depth = self.e, p.weight.rows
        other = 1 - bank
        scaled = p.vectors is not None and p.vectors.each == 2
        for column in range(p.columns):
            if p.vectors is not None:
                each = p.vectors.each * TILE
                e.lpddr(Weight.VECTOR, p.vectors.addr + column * each, each, lanes=panel.mask)
            e.lpddr(Weight.W0, p.weight.at(0, column), TILE_SIZE, depth, p.weight.row)
            e.weights(0, depth, panel.mask)
            for lane in panel.lanes:
                e.send_rows(lane, range(bank * COLUMNS, bank * COLUMNS + depth), RowTarget.LANE, norm=norm)
                e.left(lane, f"XOut{lane}", depth)
                e.right(lane, "W0", depth)
                e.multiply(lane, 1, depth)
                if residual is not None:
                    e.send_rows(lane, (residual.bank * COLUMNS + column,), RowTarget.RESULT, norm=residual.norm)
                e.result(
                    lane,
                    1,
                    ResultTarget.ROWS,
                    bias=p.vectors is not None,
                    scale=scaled,
                    residual=residual is not None,
                )
                e.take_rows(
                    lane,
                    (other * COLUMNS + column,),
                    statistics=2 if column else 1,
                    columns=max(min(width - column * TILE, TILE), 0),
                )

    def add(self, panel: Panel, columns: int, to: int, addend: Residual, scale: int | None, width: int) -> None:
        """Add rows of the other bank to those of a bank. scale: address of the vectors that multiply them."""
        if scale is not None:
            self.e.lpddr(Weight.VECTOR, scale, columns * TILE, lanes=panel.mask)
        for lane in panel.lanes:
            source = addend.bank * COLUMNS
            self.e.send_rows(lane, range(source, source + columns), RowTarget.RESULT, norm=addend.norm)
            self.e.result(lane, columns, ResultTarget.ROWS, scale=scale is not None, residual=True, alone=True)
            self.e.take_rows(
                lane,
                range(to * COLUMNS, to * COLUMNS + columns),
                add=True,
                statistics=1,
                columns=width,
            )

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
        columns = up.columns

        def hidden(c: int) -> None:
            if c >= columns:
                return
            for half in range(1 + up.gate):
                self.column(panel, up, c * (1 + up.gate) + half, bank, norm)
            self.functions(panel, up, lambda lane: PostTarget.ODD if lane & 1 else PostTarget.EVEN)
            for lane in panel.lanes:
                source = TileSource.ODD if lane & 1 else TileSource.EVEN
                self.e.take_tiles(lane, (HIDDEN[lane & 1] + c % HIDDEN_SLOTS,), source)

        hidden(0)
        for c in range(columns):
            next(beside, None)
            hidden(c + 1)
            late = c >= columns - 2
            if late:
                for _ in beside:
                    pass
            at = c % HIDDEN_SLOTS
            # the residual may lie in the bank of the rows
            free = c and late
            self.slice(
                panel, down, c, lambda lane, at=at: HIDDEN[lane & 1] + at, 1 - bank, residual, width,  # type: ignore[misc]
                behind if free else None,
            )
        for _ in behind:
            pass

    # -- attention

    def keys_to_ddr(
        self, panel: Panel, a: Attention, bank: int, norm: RowNorm | None, beside: Iterator[None] = EMPTY
    ) -> None:
        """Compute keys and values of a panel, and store them."""
        assert a.stored is not None
        for column in range(a.k.columns):
            for p, stored in ((a.k, a.stored[0]), (a.v, a.stored[1])):
                self.column(panel, p, column, bank, norm)
                self.functions(panel, p, lambda lane: PostTarget.DDR)
                for lane, tile in enumerate(panel.tiles):
                    self.e.ddr(f"Post{lane}", stored.at(tile.row, column), TILE_SIZE)
            next(beside, None)

    def attend(
        self,
        panel: Panel,
        a: Attention,
        out: Product | Matrix,
        bank: int,
        norm: RowNorm | None,
        residual: Residual | None,
        width: int,
    ) -> None:
        """attention(rows) @ out + residual, in the other bank. out: where the heads are stored in DDR, instead."""
        _Attend(self, panel, a, out, bank, norm, residual, width).emit()


def _lane(lane: int) -> TileTarget:
    return TileTarget.ODD if lane & 1 else TileTarget.EVEN


class _Heads:
    """Slots of one K or V unit: pieces are taken in turn, and given back when nothing will read them."""

    def __init__(self) -> None:
        self.next = 0
        self.live: dict[tuple[int, int], range] = {}
        """By sequence and head."""

    def place(self, count: int) -> range | None:
        """Where `count` slots could be taken; None if that would overwrite what is still to be read."""
        for at in (self.next, 0):
            slots = range(at, at + count)
            if slots.stop <= KV_SLOTS and all(r.stop <= slots.start or slots.stop <= r.start for r in self.live.values()):
                return slots
        return None


class _Attend:
    """The rounds of one attention."""

    def __init__(
        self,
        rows: Rows6,
        panel: Panel,
        a: Attention,
        out: Product | Matrix,
        bank: int,
        norm: RowNorm | None,
        residual: Residual | None,
        width: int,
    ) -> None:
        self.rows, self.e, self.panel, self.a = rows, rows.e, panel, a
        self.out, self.bank, self.norm, self.residual, self.width = out, bank, norm, residual, width
        self.tiles = rows.sequences.tiles
        self.longest = max(self.tiles(seq) for seq in panel.seqs)
        self.rounds = a.q.columns
        self.ring = RING // self.longest
        if self.ring < 1:
            needs = self.longest * TILE_SIZE * 4 >> 10
            raise UnsupportedError(
                f"a sequence of {self.longest * TILE} rows: its probabilities of a head need {needs} KiB; T of an odd "
                f"lane has {RING * TILE_SIZE * 4 >> 10} KiB for them"
            )
        self.lag = min(rows.lag, 2 * a.each, self.ring - 1)
        self.units = [_Heads() for _ in range(KV)]
        self.uses = dict.fromkeys(((which, head) for which in range(2) for head in range(a.kv_heads)), 2 * a.groups)
        """How often scores (0) and values (1) will still be computed with a head of keys."""
        self.waiting: deque[Group] = deque()
        self.left: dict[int, int] = {}
        """Groups of a round whose values are to be computed."""
        self.done = 0
        """Rounds whose slice of the output projection was added."""
        self.scored = 0
        self.brought = 0
        """Heads of keys that were brought."""

    def emit(self) -> None:
        a = self.a
        self.keys(0)
        self.queries(0)
        for r in range(self.rounds):
            self.keys(r + 1)
            self.queries(r + 1)
            if self.done < r - 1:
                self.project()
            heads = range(r * a.each, min((r + 1) * a.each, a.heads))
            self.left[r] = 2 * len(heads)
            for head in heads:
                self.need(head // a.groups)
                for odd in range(2):
                    self.scores(Group(r, odd, head))
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
        self.rows.column(self.panel, self.a.q, r, self.bank, self.norm)
        self.rows.functions(self.panel, self.a.q, lambda lane: PostTarget.EVEN)
        for lane in self.panel.lanes:
            slot = QUERIES + 2 * (r % 2) + (lane & 1)
            self.e.take_tiles(lane & ~1, (slot,), TileSource.ODD if lane & 1 else TileSource.EVEN)

    def project(self) -> None:
        """Add the slice of the output projection of the next round."""
        r, self.done = self.done, self.done + 1
        assert not self.left[r], "its heads are not complete"
        if isinstance(self.out, Product):
            self.rows.slice(
                self.panel, self.out, r, lambda lane: HEADS[lane & 1] + r % 2, 1 - self.bank, self.residual, self.width
            )

    # -- keys and values

    def unit_of(self, seq: int, head: int) -> int:
        """K unit of a head: a sequence has one of them; if there is only one sequence, heads take turns."""
        seqs = self.panel.seqs
        if len(seqs) == 1:
            return (head if self.a.stored is not None else head // self.a.each) % 2
        half, sizes = 0, [self.tiles(s) for s in seqs]
        while sum(sizes[: half + 1]) * 2 <= sum(sizes) or not half:
            half += 1
        return int(seqs.index(seq) >= half)

    def keys(self, r: int) -> None:
        """Bring the keys and values of the heads up to those of a round, as far as there is room, in their order."""
        last = min((r + 1) * self.a.each, self.a.heads) - 1
        while self.brought <= last // self.a.groups:
            if not all([self.bring(self.brought, which) for which in range(2)]):
                return
            self.brought += 1

    def need(self, head: int) -> None:
        """Bring keys and values of a head. If there is no room, values that wait are computed first. Raises
        `UnsupportedError` if there will never be room."""
        while self.brought <= head:
            if all([self.bring(self.brought, which) for which in range(2)]):
                self.brought += 1
                continue
            if not self.waiting:
                needs = self.longest * self.a.blocks * BLOCK * 4 >> 10
                raise UnsupportedError(
                    f"a sequence of {self.longest * TILE} rows: the keys of a head need {needs} KiB, its values as "
                    f"many; K0 and V0 have {KV_SLOTS * BLOCK * 4 >> 10} KiB each"
                )
            self.values()

    def bring(self, head: int, which: int) -> bool:
        """Bring keys (0) or values (1) of a head, and of those that are computed together. Returns whether they are
        there."""
        a, panel, e = self.a, self.panel, self.e
        first = head if a.stored is not None else head // a.each * a.each
        heads = range(first, first + 1) if a.stored is not None else range(first, min(first + a.each, a.kv_heads))
        if all((seq, head) in self.units[self.unit_of(seq, head) + 2 * which].live for seq in panel.seqs):
            return True
        if a.stored is not None:
            placed: list[tuple[int, int, range]] = []
            for seq in panel.seqs:
                unit = self.units[self.unit_of(seq, head) + 2 * which]
                slots = unit.place(self.tiles(seq) * a.blocks)
                if slots is None:
                    for s, _, _ in placed:
                        del self.units[self.unit_of(s, head) + 2 * which].live[s, head]
                    return False
                unit.live[seq, head] = slots
                placed.append((seq, self.unit_of(seq, head) + 2 * which, slots))
            stored = a.stored[which]
            for seq, number, slots in placed:
                self.units[number].next = slots.stop
                e.take_heads(number, slots)
                addr = stored.at(self.rows.sequences.starts[seq], 0) + head * a.blocks * BLOCK
                e.ddr(f"KvIn{number}", addr, a.blocks * BLOCK, self.tiles(seq), stored.row)
            return True
        done: list[tuple[int, int]] = []
        for seq in panel.seqs:
            for h in range(first, first + a.each):
                unit = self.units[self.unit_of(seq, head) + 2 * which]
                slots = unit.place(self.tiles(seq) * a.blocks)
                if slots is None:
                    for s, other in done:
                        del self.units[self.unit_of(s, head) + 2 * which].live[s, other]
                    return False
                unit.live[seq, h] = slots
                unit.next = slots.stop
                done.append((seq, h))
        p = (a.k, a.v)[which]
        self.rows.column(panel, p, first // a.each, self.bank, self.norm)
        self.rows.functions(panel, p, lambda lane: PostTarget.KV + self.unit_of(panel.tiles[lane].seq, head) + 2 * which)
        for lane, tile in enumerate(panel.tiles):
            number = self.unit_of(tile.seq, head) + 2 * which
            live = self.units[number].live
            slot = live[tile.seq, first].start + a.blocks * tile.at
            second = slot + 1 if a.each == 1 else live[tile.seq, first + 1].start + tile.at
            e.take_both(number, lane, slot, second)
        for seq, h in done:
            if h not in heads:  # a column of padding
                del self.units[self.unit_of(seq, head) + 2 * which].live[seq, h]
        return True

    def used(self, which: int, head: int) -> None:
        """One group has used keys (0) or values (1) of a head; after the last one they are given back."""
        self.uses[which, head] -= 1
        if not self.uses[which, head]:
            for unit in self.units[2 * which : 2 * which + 2]:
                for key in [k for k in unit.live if k[1] == head]:
                    del unit.live[key]

    def send(self, which: int, head: int, odd: int) -> dict[int, int]:
        """The units of keys (0) or values (1) send those of a head to the lanes that compute with them. Returns the unit
        by sequence."""
        a = self.a
        pairs = self.panel.pairs(odd)
        units: dict[int, int] = {}
        for seq in sorted({t.seq for _, t in pairs}):
            units[seq] = self.unit_of(seq, head) + 2 * which
            lanes = sum(1 + which << 2 * pair for pair, t in pairs if t.seq == seq)
            self.e.send_heads(units[seq], self.units[units[seq]].live[seq, head], lanes, wide=a.blocks > 1)
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
        units = self.send(0, head, g.odd)
        for pair, t in self.panel.pairs(g.odd):
            even, count = 2 * pair, self.tiles(t.seq)
            part = Part.WHOLE if wide else Part.LEFT + g.head % a.each
            e.send_tiles(even, (QUERIES + 2 * (g.round % 2) + g.odd,), TileTarget.EVEN, times=count, part=part)
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
        units = self.send(1, head, g.odd)
        part = Part.WHOLE if wide else Part(Part.LEFT + g.head % a.each)
        for pair, t in self.panel.pairs(g.odd):
            odd, count = 2 * pair + 1, self.tiles(t.seq)
            e.send_tiles(odd, self.slots(turn, count), TileTarget.ODD, weights=True)
            e.left(odd, f"TOut{odd}", count)
            e.right(odd, f"KvOut{units[t.seq]}", count)
            e.multiply(odd, 1, count, n64=not wide)
            e.result(odd, 1, ResultTarget.POST)
            if isinstance(self.out, Matrix):
                raise UnsupportedError("heads without a projection behind them")
            e.post(odd, 1, PostTarget.ODD if g.odd else PostTarget.EVEN)
            e.take_tiles(2 * pair + g.odd, (HEADS[g.odd] + g.round % 2,), TileSource.ODD, part=part)
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
