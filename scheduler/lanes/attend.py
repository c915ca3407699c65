"""The rounds of attention.

In a round, all lanes compute the queries of the next column tiles, and add slices of the output projection of an
earlier round. Then the even lanes compute scores, while the odd lanes compute probabilities times values of the heads
before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...base.errors import ScheduleError, UnsupportedError
from ...isa.lanes import PostTarget, ResultTarget, SentNorm, SlotPart, TileSource, TileTarget
from ...isa.work import LengthField, Softmax
from .blocks import BLOCK, TILE, TILE_SIZE, AttentionHeads, Mask, Panel, RowTile, TiledProduct
from .panels import EMPTY, PanelEmitter, Residual

QUERIES = 0
"""First slot of the queries in T of an even lane: of two rounds, two tiles each."""
KV = 4
"""Memories of keys and values."""
USUAL_LAG = 2
"""Groups of scores that wait for their values, if no other number is asked for and there is room."""


class SoftmaxGroup(NamedTuple):
    """What a softmax goes over: a head, and a row tile of each pair. round: number of the round of the attention.
    place: which of the two tiles of a round the queries are in: in R6 those of the even or the odd lane, in P3 those
    that it computes. head: number of the query head."""

    round: int
    place: int
    head: int


class _Slots:
    """Slots of one memory of K or V: pieces are taken in turn, and given back when nothing will read them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.next = 0
        self.live: dict[tuple[int, int], range] = {}
        """By sequence and head."""

    def place(self, count: int) -> range | None:
        """Where `count` slots can be taken; None if that would overwrite what is still to be read."""
        for at in (self.next, 0):
            slots = range(at, at + count)
            if slots.stop <= self.size and all(
                r.stop <= slots.start or slots.stop <= r.start for r in self.live.values()
            ):
                return slots
        return None


class AttentionEmitter:
    """Emits attention(rows) @ out + residual of a panel, into the other bank of X. In a round, each half of the columns
    has one tile of queries.

    rows: emits what the panel computes besides. a: the attention, with its projections. out: the output projection.
    bank: the bank of X with the rows. norm: the norm that X applies as it sends the rows; None for none. residual: None
    adds nothing. width: the columns of a row of the result. beside: emits the loads of the residual, step by step
    beside the products of the first round. Raises `UnsupportedError` if T cannot hold the probabilities of one head,
    `ScheduleError` for a `lag` that there is no room for.
    """

    def __init__(
        self,
        rows: PanelEmitter,
        panel: Panel,
        a: AttentionHeads,
        out: TiledProduct,
        bank: int,
        norm: SentNorm | None,
        residual: Residual | None,
        width: int,
        beside: Iterator[None] = EMPTY,
    ) -> None:
        self.rows, self.e, self.panel, self.a, self.mode = rows, rows.e, panel, a, rows.mode
        self.out, self.bank, self.norm, self.residual, self.width = out, bank, norm, residual, width
        self.beside = beside
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
        self.trail = self.mode.knobs.trail
        self.lag = self._lag(self.mode.knobs.lag)
        self.memories = [_Slots(self.mode.lane.heads) for _ in range(KV)]
        self.places = 2 if self.mode.halves == 1 else 1
        """Row tiles of a pair."""
        keys = [(which, head) for which in range(2) for head in range(a.kv_heads)]
        self.uses = dict.fromkeys(keys, self.places * a.groups)
        """How often scores (0) and values (1) will still be computed with a head of keys."""
        self.waiting: deque[SoftmaxGroup] = deque()
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

    def _lag(self, asked: int | None) -> int:
        """The groups of scores that may wait for their values. Raises `ScheduleError` for more than there may be."""
        of_rounds = 2 * self.a.each * (self.trail - 1)
        if asked is None:
            return min(USUAL_LAG, of_rounds, self.ring - 1)
        if asked > of_rounds:
            raise ScheduleError(
                f"lanes.lag = {asked}: with lanes.trail = {self.trail} at most {of_rounds} groups of scores may wait, "
                "because the output projection comes behind their values"
            )
        if asked > self.ring - 1:
            raise ScheduleError(
                f"lanes.lag = {asked}: T of an odd lane holds the probabilities of {self.ring} "
                f"group{'s' * (self.ring > 1)} of scores, one of them new; at most {self.ring - 1} may wait"
            )
        return asked

    def heads(self, r: int) -> list[tuple[int, int]]:
        """The query heads of round r, each as (half of the columns that computes its queries, number of the head)."""
        a = self.a
        return [
            (half, h)
            for half, columns in enumerate(self.mode.split(a.q.columns))
            if r < len(columns)
            for h in range(columns[r] * a.each, min((columns[r] + 1) * a.each, a.heads))
        ]

    def emit(self) -> None:
        """Emit all rounds, and the slices of the output projection behind them. Raises `UnsupportedError` if keys or
        values do not fit."""
        self.keys(0)
        self.queries(0)
        for _ in self.beside:
            pass
        for r in range(self.rounds):
            self.keys(r + 1)
            self.queries(r + 1)
            if self.done < r + 1 - self.trail:
                self.project()
            elif self.brought < len(self.order) and self.bring_both():
                # there are no slices yet, beside which Post could rotate the queries
                self.brought += 1
            heads = self.heads(r)
            self.left[r] = self.places * len(heads)
            for half, head in heads:
                self.need(head // self.a.groups)
                for place in range(self.places):
                    self.scores(SoftmaxGroup(r, place if self.places > 1 else half, head))
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
        """Emit the queries of round r, which are kept in T of the even lane of each pair. Beyond the last round:
        nothing."""
        if r >= self.rounds:
            return
        made = self.rows.column(self.panel, self.a.q, r, self.bank, self.norm)
        self.rows.functions(self.panel, self.a.q, made, lambda lane: PostTarget.EVEN)
        for half, _ in made:
            for lane in half.lanes:
                slot = QUERIES + 2 * (r % 2) + (lane & 1)
                self.e.take_tiles(lane & ~1, (slot,), TileSource.ODD if lane & 1 else TileSource.EVEN)

    def project(self) -> None:
        """Emit the slices of the output projection of the next round that has none yet. The values of all its heads
        must have been emitted."""
        r, self.done = self.done, self.done + 1
        assert not self.left[r], "its heads are not complete"
        tiles = [
            (half, columns[r]) for half, columns in enumerate(self.mode.split(self.a.q.columns)) if r < len(columns)
        ]
        for half, k in tiles:

            def where(row: int, half: int = half) -> tuple[int, int]:
                return self.mode.result(r, *((row // 2, row & 1) if self.mode.halves == 1 else (row, half)))

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

    def memory_of(self, seq: int, head: int) -> int:
        """The number of the memory of keys, 0 or 1, for head number `head` of the keys of sequence number `seq`; its
        values are in that number plus 2.

        In P3 with keys on chip, it is the memory of the half that computes the head. Otherwise each sequence of a panel
        with several has one memory; in a panel with a single sequence, heads take the memories in turn."""
        column = head // self.a.each
        if self.mode.halves > 1 and self.a.stored is None:
            return int(column not in self.mode.split(self.a.k.columns)[0])
        seqs = self.panel.seqs
        if len(seqs) == 1:
            return (head if self.a.stored is not None else column) % 2
        half, sizes = 0, [self.tiles(s) for s in seqs]
        while sum(sizes[: half + 1]) * 2 <= sum(sizes) or not half:
            half += 1
        return int(seqs.index(seq) >= half)

    def keys(self, r: int) -> None:
        """Bring the keys and values of the heads up to those of round r, in their order, until there is no room. Beyond
        the last round: nothing."""
        if r >= self.rounds:
            return
        last = max(self.order.index(h // self.a.groups) for _, h in self.heads(r))
        while self.brought <= last:
            if not self.bring_both():
                return
            self.brought += 1

    def need(self, head: int) -> None:
        """Bring keys and values of a head of keys, and of all before it. If there is no room, values that wait are
        computed first. Raises `UnsupportedError` if there will never be room."""
        while self.brought <= self.order.index(head):
            if self.bring_both():
                self.brought += 1
                continue
            if not self.waiting:
                needs = sum(self.tiles(seq) for seq in self.panel.seqs) * self.a.blocks * BLOCK * 4 >> 10
                raise UnsupportedError(
                    f"a sequence of {self.longest * TILE} rows: the keys of a head need {needs} KiB for a panel, its "
                    f"values as many; K0 and V0 have {self.mode.lane.heads * BLOCK * 4 >> 10} KiB each"
                )
            self.values()

    def bring_both(self) -> bool:
        """Bring keys and values of the next head of keys. Returns False if there is no room for both."""
        return all(self.bring(self.order[self.brought], which) for which in range(2))

    def bring(self, head: int, which: int) -> bool:
        """Bring keys (`which` = 0) or values (1) of a head of keys. They are loaded from DDR if they are stored there.
        Otherwise they are computed, with those of all heads in the same step of column tiles. Returns False if there is
        no room."""
        if (self.panel.seqs[0], head) in self.memories[self.memory_of(self.panel.seqs[0], head) + 2 * which].live:
            return True
        return self._load(head, which) if self.a.stored is not None else self._compute(head, which)

    def _place(self, heads: Sequence[int], which: int) -> list[tuple[int, int, int, range]] | None:
        """Take slots for some heads. Returns sequence, head, memory and slots of each. If there is no room, takes none
        and returns None."""
        out: list[tuple[int, int, int, range]] = []
        nexts = [memory.next for memory in self.memories]
        for seq in self.panel.seqs:
            for head in heads:
                number = self.memory_of(seq, min(head, self.a.kv_heads - 1)) + 2 * which
                memory = self.memories[number]
                slots = memory.place(self.tiles(seq) * self.a.blocks)
                if slots is None:
                    for s, h, n, _ in out:
                        del self.memories[n].live[s, h]
                    for u, at in zip(self.memories, nexts, strict=True):
                        u.next = at
                    return None
                memory.live[seq, head] = slots
                memory.next = slots.stop
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
            self.e.move(f"Kv{number}", addr, a.blocks * BLOCK, self.tiles(seq), stored.row)
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

        def memory(lane: int, column: int) -> int:
            first = min(column * a.each, a.kv_heads - 1)
            return self.memory_of(self.mode.tile(panel, lane).seq, first) + 2 * which

        for half, column in made:
            self.rows.functions(
                panel,
                p,
                [(half, column)],
                lambda _: PostTarget.VALUES if which else PostTarget.KEYS,
            )
        for half, column in made:
            for lane in half.lanes:
                tile = self.mode.tile(panel, lane)
                live = self.memories[memory(lane, column)].live
                slot = live[tile.seq, column * a.each].start + a.blocks * tile.at
                second = slot + 1 if a.each == 1 else live[tile.seq, column * a.each + 1].start + tile.at
                self.e.take_both(memory(lane, column), lane, slot, second)
        for u in self.memories:
            for key in [key for key in u.live if key[1] >= a.kv_heads]:  # heads of padding
                del u.live[key]
        return True

    def used(self, which: int, head: int) -> None:
        """Note that one group has used keys (`which` = 0) or values (1) of a head of keys. After the last group has
        used them, their slots are free."""
        self.uses[which, head] -= 1
        if not self.uses[which, head]:
            for memory in self.memories[2 * which : 2 * which + 2]:
                for key in [k for k in memory.live if k[1] == head]:
                    del memory.live[key]

    def pairs(self, place: int) -> list[tuple[int, RowTile]]:
        """The pairs of lanes that compute a group, each as its number and its row tile. place: as of `SoftmaxGroup`."""
        return self.panel.pairs(place) if self.mode.halves == 1 else list(enumerate(self.panel.tiles))

    def send(self, which: int, head: int, place: int) -> dict[int, int]:
        """Emit that the memories of keys (`which` = 0) or values (1) send what they hold of a head of keys to the lanes
        that compute with it. place: as of `SoftmaxGroup`. Returns the number of the memory (0 to 3) by sequence."""
        pairs = self.pairs(place)
        memories: dict[int, int] = {}
        for seq in sorted({t.seq for _, t in pairs}):
            memories[seq] = number = self.memory_of(seq, head) + 2 * which
            lanes = sum(1 + which << 2 * pair for pair, t in pairs if t.seq == seq)
            self.e.send_heads(number, self.memories[number].live[seq, head], lanes, wide=self.a.blocks > 1)
        return memories

    # -- scores and values

    def slots(self, turn: int, count: int) -> range:
        """The slots of T of an odd lane that keep the `count` tiles of probabilities of group number `turn`, counted
        from 0 over the attention."""
        at = turn % self.ring * self.longest
        return range(at, at + count)

    def scores(self, g: SoftmaxGroup) -> None:
        """Emit softmax(Q K^T) of the head of group g, for one row tile of each pair. The group then waits until
        `values` multiplies its probabilities."""
        e, a = self.e, self.a
        wide, head = a.blocks > 1, g.head // a.groups
        memories = self.send(0, head, g.place)
        for pair, t in self.pairs(g.place):
            even, count = 2 * pair, self.tiles(t.seq)
            part = SlotPart.WHOLE if wide else SlotPart(SlotPart.LEFT + g.head % a.each)
            e.send_tiles(even, (QUERIES + 2 * (g.round % 2) + g.place,), TileTarget.EVEN, times=count, part=part)
            e.left(even, f"T{even}", count)
            e.right(even, f"Kv{memories[t.seq]}", count)
            e.multiply(even, count, 1, half_depth=not wide)
            e.result(even, count, ResultTarget.SOFTMAX)
            e.softmax(pair, count, softmax_of(a.mask, t, self.rows.sequences.rows[t.seq]))
            e.take_tiles(even + 1, self.slots(self.scored, count), TileSource.SOFTMAX)
        self.scored += 1
        self.waiting.append(g)
        self.used(0, head)

    def values(self) -> None:
        """Emit probabilities times values of the group that waits longest, for one row tile of each pair. At least one
        group must wait."""
        e, a = self.e, self.a
        turn = self.scored - len(self.waiting)
        g = self.waiting.popleft()
        wide, head = a.blocks > 1, g.head // a.groups
        memories = self.send(1, head, g.place)
        part = SlotPart.WHOLE if wide else SlotPart(SlotPart.LEFT + g.head % a.each)
        for pair, t in self.pairs(g.place):
            odd, count = 2 * pair + 1, self.tiles(t.seq)
            e.send_tiles(odd, self.slots(turn, count), TileTarget.ODD, weights=True)
            e.left(odd, f"T{odd}", count)
            e.right(odd, f"Kv{memories[t.seq]}", count)
            e.multiply(odd, 1, count, half_columns=not wide)
            e.result(odd, 1, ResultTarget.POST)
            lane, slot = self.mode.result(g.round, pair, g.place)
            e.post(odd, PostTarget.ODD if lane & 1 else PostTarget.EVEN)
            e.take_tiles(lane, (slot,), TileSource.ODD, part=part)
        self.left[g.round] -= 1
        self.used(1, head)


def softmax_of(mask: Mask, rows: RowTile, keys: int) -> Softmax:
    """The softmax of the scores of a row tile. mask: says which keys count. keys: number of keys of the sequence of
    these rows."""
    at = rows.at * TILE
    causal, offset = mask.causal, at
    if mask.window is not None and not causal:
        causal, offset = True, at + mask.window - 1
    return Softmax(
        LengthField(rows.seq, 0, keys) if mask.lengths else keys,
        causal=causal,
        offset=offset if causal else 0,
        low=None if mask.window is None else at - mask.window + 1,
        first=LengthField(rows.seq, 0, keys, "start") if mask.starts else 0,
        cap=mask.softcap or None,
    )
