"""Turns the work of lanes into instructions, in the order in which it is given."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...fields import Record
from ...lanes import (
    HeadFunctions,
    ResultTarget,
    RowSource,
    RowTarget,
    SentNorm,
    SlotPart,
    TileSource,
    TileTarget,
    Weight,
)
from ...layout import UNIT
from ...overlay import Overlay
from ...program import KernelPatch
from ...versal.tiles import TILE
from ...versal.tokens import SlotTokens
from ...work import Access, LengthField, Softmax
from .mesh import LaneMeshA, LaneMeshB, left_sources, right_sources
from .mme import LaneMme
from .off_chip import DDR_PEERS, DDR_SINKS, LaneDdr, LaneLpddr
from .operands import FROM_DDR, KV, OF_PORT, KvIn, KvOut, W, writer_of
from .ports import TILE_BLOCKS
from .results import ACTIVATIONS, IDENTITY, C, Post, Soft
from .rows import BANKS, XIn, XOut, XStore
from .scratch import TIn, TOut


@dataclass(frozen=True)
class ProductSums:
    """Products of an MME: `results` sums, each over `depth` products of two tiles. k64, n64: 1 for a mode with K = 64,
    or with 64 columns of results; 0 for 128."""

    results: int
    depth: int
    k64: int = 0
    n64: int = 0


class Emission:
    """Turns the work of all units into their instructions. Work is added in an order in which it could be done one
    piece after the other; in a run units work side by side, as far as their streams and the tiles that they wait for
    allow.

    overlay: one with lanes. segment: number of the segment of the work that is added now; set it before. accesses:
    those of the bank of activations, each behind those that it depends on. patches: fields that depend on run-time
    lengths, by parameter. made: instructions by unit. x, t, kv: the tokens of each memory X, T, and K or V, by its
    number. Addresses, sizes and strides are in float32 elements. A lane is its number, 0 to 5; lanes of several are
    bits, bit i for lane i; numbers of lanes, pairs and memories are not checked. Methods without a result add to the
    instructions of one unit, and raise `FieldError` for a value that does not fit its field."""

    def __init__(self, overlay: Overlay) -> None:
        assert overlay.lanes is not None
        self.overlay, self.columns = overlay, overlay.lanes.columns
        self.made: dict[str, list[Any]] = defaultdict(list)
        self.segment = 0
        self.owners: dict[str, list[set[int]]] = defaultdict(list)
        """The segments that each instruction is for."""
        self.accesses: list[Access] = []
        self.patches: dict[str, list[KernelPatch]] = defaultdict(list)
        self.x, self.t, self.kv = ([SlotTokens() for _ in overlay.by_kind[kind]] for kind in ("XIn", "TIn", "KvOut"))
        assert len(self.kv) == KV
        self.stores: list[list[Sequence[int]]] = [[] for _ in self.x]
        """Of each X, the slots that XStore reads and that no later operation of XIn waits for."""

    # -- off-chip memory

    def move(self, peer: str, addr: int, size: int, chunks: int = 1, stride: int = 0) -> None:
        """Load from the bank of activations to a peer, or store tiles of a peer there. peer: a memory or unit, such as
        `T1`, `X0` or `Post0`; it determines the direction. addr: of the first of `chunks` pieces of `size` elements
        each. stride: from one piece to the next."""
        name = _peer(peer)
        self.accesses.append(Access(name, name not in DDR_SINKS, addr, size, chunks, stride))
        self.owners["DDR"].append({self.segment})

    def load(self, to: Weight, addr: int, size: int, chunks: int = 1, stride: int = 0, lanes: int = 0) -> None:
        """Load weights, vectors or tables from the bank of weights. to: what gets them. addr: of the first of `chunks`
        pieces of `size` elements each. stride: from one piece to the next. lanes: those that get vectors or tables.
        """
        if chunks > 1 and stride == size:
            size, chunks, stride = size * chunks, 1, 0
        self._add(
            "LPDDR",
            LaneLpddr(
                addr=addr // UNIT, size=size, lanes=lanes, to=int(to), chunks=chunks, chunk_stride=stride // UNIT
            ),
        )

    def weights(self, unit: int, tiles: int, lanes: int, *, activations: bool = False) -> None:
        """Let W0 or W1 (`unit` 0 or 1) pass `tiles` tiles on to each of some lanes. activations: they come from the
        bank of activations.
        """
        self._more(f"W{unit}", W(tiles=tiles, lanes=lanes, ddr=int(activations)), "tiles")

    # -- lanes

    def send_rows(self, lane: int, slots: Sequence[int], to: RowTarget, *, norm: SentNorm | None = None) -> None:
        """Let X of a lane send the tiles of consecutive slots to `to`, normalised if there is a norm. A send that is
        equal to the one before it adds 1 to the `times` of that instruction, in place of a new one. Raises `IndexError`
        without slots.
        """
        fields = _norm(norm)
        fields |= {"slot": slots[0], "tiles": len(slots), "to": int(to)}
        unit = f"XOut{lane}"
        made = self.made[unit]
        book = self.x[lane]
        cells = [*slots, *([] if norm is None else [self._statistics(slots[0])])]
        if made and book.reread(cells):
            last = made[-1]
            same = last.replace(times=1, wait=0) == XOut(**fields)
            if same and last.times < 255:
                self._change(unit, last.replace(times=last.times + 1))
                return
        self._add(unit, XOut(**fields, wait=book.read(cells)))

    def take_rows(
        self,
        lane: int,
        slots: Sequence[int],
        source: RowSource = RowSource.RESULT,
        *,
        add: bool = False,
        statistics: int = 0,
        columns: int = 0,
    ) -> None:
        """Let X of a lane take tiles of 128x128 into consecutive slots, or, with `add`, add them to what these hold.

        slots: numbers of the slots, each one more than the one before; at least one. source: where the tiles come from.
        statistics: of each row, kept for each of the two banks of X; the slots say which bank. 0 makes none, 1 begins
        new ones, 2 continues those of the bank. columns: how many columns the statistics count, over all these tiles
        together, from the first on; state it with `statistics`, because 0 counts none. Raises `IndexError` without
        slots."""
        wait = self.x[lane].write([(s, self._statistics(s)) if statistics else s for s in slots])
        stored = 0
        for number, other in enumerate(self.stores[lane], 1):
            # a store normalises by the statistics of its bank
            begins = statistics and self._statistics(slots[0]) == self._statistics(other[0])
            if begins or not set(slots).isdisjoint(other):
                stored = number
        del self.stores[lane][:stored]
        self._add(
            f"XIn{lane}",
            XIn(
                slot=slots[0],
                tiles=len(slots),
                source=int(source),
                add=int(add),
                statistics=statistics,
                columns=columns,
                wait=wait,
                stored=stored,
            ),
        )

    def join_statistics(self, lane: int, bank: int, *, empty: bool) -> None:
        """Let X of a lane join the statistics of a bank (0 or 1) with those of the other lane of its pair. empty: it
        has none of its own.
        """
        slots = range(bank * self.columns, (bank + 1) * self.columns)
        wait = self.x[lane].read([*slots, self._statistics(slots[0])])
        self._add(f"XOut{lane}", XOut(slot=slots[0], share=2 if empty else 1, wait=wait))

    def _statistics(self, slot: int) -> int:
        """The number, behind those of the slots of X, under which tokens are counted for the statistics of a slot's
        bank: tiles that they count write it, norms read it."""
        return BANKS * self.columns + slot // self.columns

    def store_rows(
        self, lane: int, parts: Sequence[Sequence[int]], norm: SentNorm | None = None, *, joined: bool = False
    ) -> None:
        """Let X of a lane store parts of consecutive slots, each part by an instruction of its own. The stores wait for
        all tiles that X has taken before. joined: they wait also for statistics that were joined. norm: applied to the
        rows; None for none.

        Raises `IndexError` for a part without slots, and for a lane that has taken nothing, unless `joined`."""
        unit = f"XIn{lane}"
        if joined:
            self._add(unit, XIn(wait=self.x[lane].after_reads(), store=1))
        else:
            self._change(unit, self.made[unit][-1].replace(store=1))
        for number, slots in enumerate(parts):
            self._add(f"XStore{lane}", XStore(slot=slots[0], tiles=len(slots), wait=int(not number), **_norm(norm)))
            self.stores[lane].append(slots)

    def send_tiles(
        self,
        lane: int,
        slots: Sequence[int],
        to: TileTarget,
        *,
        times: int = 1,
        part: SlotPart = SlotPart.WHOLE,
        weights: bool = False,
    ) -> None:
        """Let T of a lane send the tiles of consecutive slots to `to`, each `times` times. part: half of the slots, or
        all. weights: the tiles are the probabilities of a head. Raises `IndexError` without slots.
        """
        wait = self.t[lane].read(slots)
        self._add(
            f"TOut{lane}",
            TOut(
                slot=slots[0],
                tiles=len(slots),
                times=times,
                to=int(to),
                part=int(part),
                weights=int(weights),
                wait=wait,
            ),
        )

    def take_tiles(
        self, lane: int, slots: Sequence[int], source: TileSource, *, part: SlotPart = SlotPart.WHOLE
    ) -> None:
        """Let T of a lane take tiles from `source` into consecutive slots. part: half of the slots, or all. Raises
        `IndexError` without slots.
        """
        wait = self.t[lane].write(slots)
        self._add(f"TIn{lane}", TIn(slot=slots[0], tiles=len(slots), source=int(source), part=int(part), wait=wait))

    def take_heads(self, memory: int, slots: Sequence[int]) -> None:
        """Let a memory of keys or values take blocks from off-chip memory into consecutive slots. memory: 0 to 3 for
        K0, K1, V0, V1; slots are counted within it. Raises `IndexError` without slots.
        """
        wait = self.kv[memory].write(slots)
        first = self._in_writer(memory, slots[0])
        self._add(writer_of(memory), KvIn(slot=first, tiles=len(slots), source=FROM_DDR, wait=wait))

    def take_both(self, memory: int, lane: int, slot: int, second: int) -> None:
        """Let a memory of keys or values take a tile from a lane: its first block into `slot`, its second one into
        `second`. memory and slots: as for `take_heads`.
        """
        wait = self.kv[memory].write([(slot, second)])
        first, second = (self._in_writer(memory, s) for s in (slot, second))
        self._add(writer_of(memory), KvIn(slot=first, tiles=1, source=lane, second=second, wait=wait))

    def _in_writer(self, memory: int, slot: int) -> int:
        """The number that the write port of a K or V has for a slot of one of its two memories."""
        assert self.overlay.lanes is not None
        return memory % OF_PORT * self.overlay.lanes.heads + slot

    def send_heads(self, memory: int, slots: Sequence[int], lanes: int, *, wide: bool) -> None:
        """Let a memory of keys or values send tiles from consecutive slots to lanes. wide: a tile is two blocks, else
        one. memory, slots: as for `take_heads`. Raises `IndexError` without slots.
        """
        wait = self.kv[memory].read(slots)
        tiles = len(slots) // (TILE_BLOCKS if wide else 1)
        self._add(f"KvOut{memory}", KvOut(slot=slots[0], tiles=tiles, wide=int(wide), lanes=lanes, wait=wait))
        if waits := self.kv[memory].relieve():
            self._add(writer_of(memory), KvIn(slot=self._in_writer(memory, 0), wait=waits))

    def left(self, lane: int, source: str, tiles: int) -> None:
        """Pass `tiles` tiles from X or T to the left operand of a lane. source: such as `X0` or `T1`; raises
        `ValueError` if the lane has no stream from it.
        """
        self._more(f"MeshA{lane}", LaneMeshA(tiles=tiles, source=left_sources(lane).index(_read(source))), "tiles")

    def right(self, lane: int, source: str, tiles: int) -> None:
        """Pass `tiles` tiles from W, K or V to the right operand of a lane. source: such as `W0` or `KV2`; raises
        `ValueError` if the lane has no stream from it.
        """
        self._more(f"MeshB{lane}", LaneMeshB(tiles=tiles, source=right_sources(lane).index(_read(source))), "tiles")

    def multiply(
        self, lane: int, results: int, depth: int, *, half_depth: bool = False, half_columns: bool = False
    ) -> None:
        """Let the MME of a lane make `results` tiles, each a sum over `depth` products. half_depth: K = 64.
        half_columns: 64 columns of results. Nothing is checked until `op_lists`.
        """
        self._add(f"MME{lane}", ProductSums(results, depth, int(half_depth), int(half_columns)))

    def result(
        self,
        lane: int,
        tiles: int,
        to: ResultTarget,
        *,
        bias: bool = False,
        scale: bool = False,
        residual: bool = False,
        alone: bool = False,
    ) -> None:
        """Let C of a lane pass `tiles` tiles on to `to`: result + bias + residual * scale. The flags say which of these
        there are. alone: the residual alone, without a result."""
        flags = {"bias": int(bias), "scale": int(scale), "residual": int(residual), "alone": int(alone)}
        made = C(tiles=tiles, to=int(to), **flags)
        self._more(f"C{lane}", made, "tiles")

    def post(
        self,
        lane: int,
        to: int,
        activation: str | None = None,
        *,
        gate: bool = False,
        heads: HeadFunctions | None = None,
    ) -> None:
        """Let Post of a lane pass a tile on. to: the value of a `PostTarget`. activation: a name in `ACTIVATIONS`, None
        for none; it comes after `heads`. gate: take two tiles, and pass on the activation of the first times the
        second. heads: the functions that are applied to the heads of the tile, with `gate` to those of the first one;
        None for none; their pitch is 64 or 128 columns.

        Raises `ValueError` for an unknown activation, and for another pitch."""
        fields: dict[str, Any] = {"activation": ACTIVATIONS.index(activation) if activation else IDENTITY}
        if heads is not None:
            if heads.pitch not in (TILE // 2, TILE):
                raise ValueError(f"heads with a pitch of {heads.pitch} columns; Post has {TILE // 2} and {TILE}")
            fields |= {"heads": int(heads.pitch < TILE), "rotate": int(heads.rotate), "gains": int(heads.gains)}
            if heads.columns:
                fields |= {"norm": 1, "columns": heads.columns, "eps": heads.eps, "rms": int(heads.rms)}
        self._add(f"Post{lane}", Post(tiles=1, to=to, gate=int(gate), **fields))

    def take_table(self, lane: int) -> None:
        """Let Post of a lane take a table of cosines and sines, which holds for the tiles that come later."""
        self._add(f"Post{lane}", Post(table=1, activation=IDENTITY))

    def softmax(self, pair: int, tiles: int, softmax: Softmax) -> None:
        """Let the Softmax of a pair (0 to 2) make the probabilities of a head from `tiles` tiles of scores. softmax:
        which columns count, and the cap of the scores. A number of columns that depends on a length becomes a patch.
        """
        unit = f"Soft{pair}"
        fields: dict[str, Any] = {"cap": softmax.cap or 0.0}
        if softmax.causal:
            fields |= {"causal": 1, "offset": softmax.offset}
        if softmax.low is not None:
            fields |= {"windowed": 1, "low": softmax.low}
        for name, value in (("keys", softmax.columns), ("first", softmax.first)):
            if isinstance(value, LengthField):
                patch = KernelPatch(unit, len(self.made[unit]), name, value.base, value.cap)
                self.patches[f"{value.parameter}[{value.sequence}]"].append(patch)
                fields[name] = value.cap if value.parameter == "len" else 0
            else:
                fields[name] = tiles * TILE if value is None else value
        self._add(unit, Soft(tiles=tiles, **fields))

    def _more(self, unit: str, record: Record, field: str) -> None:
        """Add an instruction; if the last one of the unit differs from it in `field` alone, add its number there
        instead."""
        made = self.made[unit]
        if made:
            total = getattr(made[-1], field) + getattr(record, field)
            if made[-1].replace(**{field: getattr(record, field)}) == record and total <= record.field(field).bounds[1]:
                self._change(unit, record.replace(**{field: total}))
                return
        self._add(unit, record)

    def _add(self, unit: str, made: Any) -> None:
        """Add an instruction, or products, for the segment that is being emitted."""
        self.made[unit].append(made)
        self.owners[unit].append({self.segment})

    def _change(self, unit: str, made: Any) -> None:
        """Replace the last instruction of a unit; it then serves the segment that is being emitted as well."""
        self.made[unit][-1] = made
        self.owners[unit][-1].add(self.segment)

    def finish(self) -> None:
        """End the program: add the instructions that take the tokens left in streams. Call it once, behind all other
        work."""
        ports: list[tuple[SlotTokens, str, Record, str, Record]] = []
        ports += [(book, f"XOut{i}", XOut(), f"XIn{i}", XIn()) for i, book in enumerate(self.x)]
        ports += [(book, f"TOut{i}", TOut(), f"TIn{i}", TIn()) for i, book in enumerate(self.t)]
        for i, book in enumerate(self.kv):
            ports.append((book, f"KvOut{i}", KvOut(), writer_of(i), KvIn(slot=self._in_writer(i, 0))))
        for book, reader, read, writer, write in ports:
            if book.unread:
                self._add(reader, read.replace(wait=book.unread))
                book.read(())
            if book.unwaited:
                self._add(writer, write.replace(wait=book.unwaited))
        for lane, stores in enumerate(self.stores):
            if stores:
                self._add(f"XIn{lane}", XIn(stored=len(stores)))

    # -- the result

    def sequences(self) -> dict[str, tuple[Record, ...]]:
        """Return the instructions, by unit, of all units that packets drive, except those of the bank of activations
        (`moves`).
        """
        return {unit: tuple(made) for unit, made in self.made.items() if not unit.startswith("MME") and made}

    def op_lists(self) -> dict[str, tuple[LaneMme, ...]]:
        """Return the op list of each MME, by unit. Raises `FieldError` for counts that do not fit their fields."""
        return {unit: ops_of(made)[0] for unit, made in self.made.items() if unit.startswith("MME") and made}

    def ranges(self, order: Sequence[int]) -> list[dict[str, tuple[tuple[int, int], ...]]]:
        """Return for each segment, by unit, the numbers of the instructions that are for it, as half-open ranges
        (first, end); for an MME those of its ops.

        order: indices of the accesses, as they are executed. Raises `ValueError` if there are not as many of them as
        accesses.
        """
        found: list[dict[str, list[tuple[int, int]]]] = [{} for _ in range(1 + self.segment)]
        for unit, owners in self.owners.items():
            at: Sequence[tuple[int, int]] = [(i, i + 1) for i in range(len(owners))]
            if unit.startswith("MME"):
                _, at = ops_of(self.made[unit])
            elif unit == "DDR":
                owners = [owners[i] for i in order]
            for of, (start, end) in zip(owners, at, strict=True):
                for segment in of:
                    of_unit = found[segment].setdefault(unit, [])
                    if of_unit and start <= of_unit[-1][1]:
                        of_unit[-1] = of_unit[-1][0], max(end, of_unit[-1][1])
                    else:
                        of_unit.append((start, end))
        return [{unit: tuple(of_unit) for unit, of_unit in segment.items()} for segment in found]

    def repeat(self, length: int, times: int) -> LaneMme:
        """Return the entry of an op list that repeats the `length` entries before it `times` more times. Raises
        `FieldError` if the numbers do not fit their fields.
        """
        return LaneMme(length=length, times=times)

    def moves(self, accesses: Sequence[Access]) -> list[LaneDdr]:
        """Return the instructions of the unit of the bank of activations, one for each access. Raises `ValueError` for
        a peer that it has no stream to, `FieldError` for a value that does not fit its field.
        """
        return [
            LaneDdr(
                addr=a.addr // UNIT,
                size=a.size,
                peer=DDR_PEERS.index(a.peer),
                chunks=a.chunks,
                chunk_stride=a.stride // UNIT,
            )
            for a in accesses
        ]


def _peer(name: str) -> str:
    """The port of a memory that DDR has a stream from or to; other units are their own."""
    if name.startswith("Kv"):
        return writer_of(int(name[2:]))
    if f"{name[:-1]}In{name[-1]}" in DDR_SINKS:
        return f"{name[:-1]}In{name[-1]}"
    return name.replace("X", "XStore")


def _read(name: str) -> str:
    """The read port of a memory, by the memory's name: `X0` has XOut0. W has no ports of its own."""
    return name if name[0] == "W" else f"{name[:-1]}Out{name[-1]}"


def _norm(norm: SentNorm | None) -> dict[str, Any]:
    """The fields of XOut or XStore that say a norm; none for none."""
    return {} if norm is None else {"normalise": 1, "eps": norm.eps, "rms": int(norm.rms)}


MOST_RESULTS = 255
MOST_TIMES = 4095


def ops_of(groups: Sequence[ProductSums]) -> tuple[tuple[LaneMme, ...], list[tuple[int, int]]]:
    """Turn groups of products into ops: neighbours of equal depth and mode are joined, two groups make one op, and
    pairs that repeat make one op. Returns the ops, and for each group the half-open range of the one op that it is in.

    Raises `FieldError` for a depth or a number of results that does not fit its field.
    """
    joined: list[ProductSums] = []
    joins: list[int] = []
    for g in groups:
        last = joined[-1] if joined else None
        alike = last is not None and (last.depth, last.k64, last.n64) == (g.depth, g.k64, g.n64)
        if last is not None and alike and last.results + g.results <= MOST_RESULTS:
            joined[-1] = ProductSums(last.results + g.results, g.depth, g.k64, g.n64)
        else:
            joined.append(g)
        joins.append(len(joined) - 1)
    out: list[LaneMme] = []
    ops: list[int] = []
    while len(ops) < len(joined):
        at = len(ops)
        a = joined[at]
        b = joined[at + 1] if at + 1 < len(joined) else None
        if b is None or (a.k64, a.n64) != (b.k64, b.n64):
            ops.append(len(out))
            out.append(LaneMme(first=a.results, first_depth=a.depth, k64=a.k64, n64=a.n64))
            continue
        times = 1
        while joined[at + 2 * times : at + 2 * times + 2] == [a, b] and times < MOST_TIMES:
            times += 1
        ops += [len(out)] * 2 * times
        second = {"second": b.results, "second_depth": b.depth, "times": times}
        out.append(LaneMme(first=a.results, first_depth=a.depth, k64=a.k64, n64=a.n64, **second))
    return tuple(out), [(ops[i], ops[i] + 1) for i in joins]
