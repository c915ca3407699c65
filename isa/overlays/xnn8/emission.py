"""Instructions of xnn8 from work on panels: an instruction for each unit, with the tokens that they wait for.

Work must be added in an order in which it could be done one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from ...fields import Record
from ...layout import UNIT
from ...overlay import Overlay
from ...program import KernelPatch
from ...versal.tokens import SlotTokens
from .formats import (
    CONSTANTS,
    ENGINES,
    LANES,
    ROW_PAIR,
    SHORT_ROW_PAIR,
    SHORT_WEIGHT_WORD,
    T_CELLS,
    WEIGHT_WORD,
    X_CELLS,
    AddedResidual,
    ChunkEnd,
    ChunkSource,
    EngineOp,
    LaneMemory,
    OffChipChunks,
    PanelHeads,
    PanelRows,
    PanelSend,
    PanelWeights,
    RowOp,
    cells,
    walked_cells,
)
from .lanes import SEND
from .numbers import BLOCK, T_BITS, X_BITS, NormConstants
from .stored import units_of_row

T = X_CELLS
"""Where T begins among the cells of the tokens, behind X8."""
FACTORS = T + T_CELLS
"""The factors of the rows in X8, as one more cell."""


class PanelNorm(NamedTuple):
    """A norm of rows of X. constants: of the norm. rms: whether it is an RMS norm, whose mean counts as 0."""

    constants: NormConstants
    rms: bool = False

    @property
    def fields(self) -> dict[str, int]:
        """The fields that state this norm, as keyword arguments of `PanelRows`."""
        return PanelRows.of_norm(self.constants, rms=self.rms)


class StoredConstants(NamedTuple):
    """Constants of blocks in LPDDR. addr: where they begin, in units of 64 bytes. each: how many constants (pairs of
    vectors) a block has."""

    addr: int
    each: int


class StoredWeights(NamedTuple):
    """Weights of a block of up to 512 columns. lpddr, ddr: where the chunks begin in each memory, in units of 64 bytes.
    of_ddr: number of columns of pairs, the last ones, whose weights are in DDR. shifts: for each column of pairs, the
    bits by which its sums are shifted to the right. short: whether the weights have 4 bits. low_bits: bits that rows
    have beyond 8; with more than 0 the weights pass twice."""

    lpddr: int
    ddr: int
    of_ddr: int
    shifts: tuple[int, ...]
    short: bool = False
    low_bits: int = 0


class HeadsRound(NamedTuple):
    """A round of attention: up to eight heads in T. queries, keys, values, results: first cells. heads: number of
    heads, one for each column of pairs. head_dim: columns of a head that count. rows, shown: of a sequence, the number
    of its rows, and how many of its keys count. groups: how many neighbouring heads share keys and values. skip: heads
    that come before the first one, of those whose keys and values begin at the cells `keys` and `values`. masked:
    whether the run-time parameter len[b] of sequence b says how many keys count. causal: whether only keys up to the
    row of the query count. grouped: whether `heads` are those of keys and values, and the queries that share one of
    them become its rows; this takes sequences of one row."""

    queries: int
    keys: int
    values: int
    results: int
    heads: int
    head_dim: int
    rows: int
    shown: int
    groups: int = 1
    skip: int = 0
    masked: bool = False
    causal: bool = False
    grouped: bool = False

    def moved(self, by: int) -> HeadsRound:
        """Return the same round, `by` cells further in T."""
        slots = ("queries", "keys", "values", "results")
        return self._replace(**{name: getattr(self, name) + by for name in slots})

    @property
    def pitch(self) -> int:
        """Columns from a head to the next: 32, or the next power of two from `head_dim` on."""
        return max(BLOCK // 2, 1 << (self.head_dim - 1).bit_length())

    @property
    def widths(self) -> dict[str, int]:
        """The fields of instructions that state how many columns a head has."""
        return {"narrow": int(self.pitch < BLOCK), "wide": int(self.pitch > BLOCK)}

    @property
    def shares(self) -> dict[str, int]:
        """The fields of `PanelRows` and `PanelSend` that state which heads share keys and values."""
        return {"groups": self.groups, "skip": self.skip, "grouped": int(self.grouped)}

    @property
    def shares_of_keys(self) -> dict[str, int]:
        """The fields of `PanelHeads` that state which heads share keys and values."""
        return {"groups": 1 if self.grouped else self.groups, "skip": self.skip}

    def blocks(self, *, shared: bool) -> int:
        """Return how many blocks of 64 columns the heads of the round take in T. shared: count keys or values, instead
        of queries or results."""
        heads = self.heads * (self.groups if self.grouped else 1)
        if shared:
            heads = self.heads if self.grouped else 1 + (self.skip + self.heads - 1) // self.groups
        return -(-heads * self.pitch // BLOCK)


@dataclass(frozen=True)
class Destination:
    """Where results of a product go, and what Post does before. slot: first cell, in T if in_t, else in X. readers: of
    T: which units read it, `SEND`, `HEADS` or both. residual, function: as the fields of `PanelRows`. residual_slot:
    first cell of X that is added. gains: whether constants bring the gains of what is written. gated: whether two
    columns of pairs make one block, the first a gate of the second. norm: of each head; None for none. pitch: columns
    from a head to the next, of heads that are normalised or rotated. rotated: whether results are rotated by Angles."""

    slot: int
    in_t: bool = False
    readers: tuple[int, ...] = (SEND,)
    residual: AddedResidual = AddedResidual.NONE
    residual_slot: int = 0
    function: int = 0
    gains: bool = False
    gated: bool = False
    norm: PanelNorm | None = None
    pitch: int = BLOCK
    rotated: bool = False

    def constants(self, columns: int) -> int:
        """Return how many constants (pairs of vectors) results of `columns` columns of pairs take: scales and bias of
        each; and for each block that is stored, gain and shift of a normalised residual and of a norm of heads, and
        gains."""
        more = (self.residual == AddedResidual.NORMALISED) + (self.norm is not None) + self.gains
        return columns + columns // (1 + self.gated) * more

    @property
    def fields(self) -> dict[str, int]:
        """The fields that state this destination, as keyword arguments of `PanelRows`."""
        return {
            "memory": LaneMemory.T if self.in_t else LaneMemory.X,
            "slot": self.slot,
            "readers": sum(1 << reader for reader in self.readers),
            "residual": self.residual,
            "residual_slot": self.residual_slot,
            "function": self.function,
            "gains": int(self.gains),
            "gated": int(self.gated),
            "rotated": int(self.rotated),
            "narrow": int(self.pitch < BLOCK),
            "wide": int(self.pitch > BLOCK),
            **({} if self.norm is None else self.norm.fields),
        }


class PlacedSequence(NamedTuple):
    """A sequence in a panel, or its part in one engine, of those over which it is spread. engine: 0 to 2. first, lanes:
    the first of its lanes there, and their number. rows: in each of them, the same in all of a program. number: of the
    sequence in the batch. part, parts: number of the part, from 0, and how many there are. length: rows of the sequence
    that count; None if a round of attention states them. pitch: rows of a block of the sequence off chip; 0 for those
    of its lanes. spread: how many of its keys each lane of the engine has, if all lanes have some; 0 if they are in its
    own lanes."""

    engine: int
    first: int
    lanes: int
    rows: int
    number: int
    part: int = 0
    parts: int = 1
    length: int | None = None
    pitch: int = 0
    spread: int = 0

    @property
    def fields(self) -> dict[str, int]:
        """The fields that state its lanes and their rows, as keyword arguments of `PanelRows` and `PanelSend`."""
        return {"first": self.first, "lanes": self.lanes, "rows": self.rows}

    @property
    def key_rows(self) -> int:
        """How many keys each lane that holds keys has: those of all parts of the sequence, or `spread`."""
        return self.spread or self.rows * self.parts


class IntegerEmitter:
    """Makes the instructions of a program. overlay: xnn8. sequences: the instructions made so far, by unit. patches:
    fields that depend on run-time parameters, by the parameter's name, such as len[0].

    Addresses are in units of 64 bytes. Cells are counted from the first ones of the panel (`begin`); whether they exist
    is not checked. Methods without a result add to the instructions of several units, and raise `FieldError` for a
    value that does not fit its field."""

    def __init__(self, overlay: Overlay) -> None:
        self.sequences: dict[str, list[Record]] = {unit.name: [] for unit in overlay.units}
        self.patches: dict[str, list[KernelPatch]] = defaultdict(list)
        self._tokens = tuple((SlotTokens(), SlotTokens()) for _ in range(ENGINES))
        self._placed: tuple[PlacedSequence, ...] = ()
        self._first = dict.fromkeys(LaneMemory, 0)
        """The cells of each memory before those of the panel."""
        self._late: list[Callable[[], None]] = []
        self._lanes: dict[int, dict[str, int]] = {}
        """Of each engine that computes the panel, the lanes that have rows, and the rows of each, as fields."""

    def begin(self, placed: Sequence[PlacedSequence], x: int = 0, t: int = 0) -> None:
        """Begin a panel of these sequences, or go on with it; call it before any other method. x, t: the first cells of
        the panel in X and T, from which all other methods count."""
        self._placed = tuple(placed)
        self._first |= {LaneMemory.X: x, LaneMemory.T: t}
        self._lanes = {}
        for of in placed:
            lanes = max(self._lanes.get(of.engine, {}).get("lanes", 0), of.first + of.lanes)
            self._lanes[of.engine] = {"lanes": lanes, "rows": of.rows}

    def _add(self, unit: str, mop: Record) -> None:
        self.sequences[unit].append(mop)

    def _constants(self, addr: int, vectors: int, engines: Iterable[int]) -> None:
        """Bring `vectors` pairs of vectors, from an address on in units of 64 bytes."""
        mask = sum(1 << engine for engine in engines)
        self._add("LPDDR", OffChipChunks(addr=addr, size=vectors * CONSTANTS, end=ChunkEnd.CONSTANTS, engines=mask))

    @property
    def _cells(self) -> int:
        """Of a block."""
        return cells(self._placed[0].rows)

    def _tiles(self, first: int, blocks: int, each: int | None = None) -> list[tuple[int, ...]]:
        """The cells of blocks from cell `first` on. each: cells of a block; None: those of rows of this panel."""
        each = each or self._cells
        return [tuple(range(at, at + each)) for at in range(first, first + blocks * each, each)]

    def _here(self, to: Destination) -> Destination:
        """The same, of the cells of this panel."""
        own = self._first[LaneMemory.T if to.in_t else LaneMemory.X]
        of_residual = self._first[LaneMemory.X] if to.residual else 0
        return replace(to, slot=to.slot + own, residual_slot=to.residual_slot + of_residual)

    def _waits(self, engine: int, blocks: Sequence[tuple[int, ...]], told: Iterable[int]) -> dict[str, int]:
        """What Rows waits for before it writes over blocks, of which it tells some of the readers."""
        send, heads = (
            tokens.write(blocks) if i in told else tokens.overwrite(cell for block in blocks for cell in block)
            for i, tokens in enumerate(self._tokens[engine])
        )
        return {"wait": send, "wait_heads": heads}

    def rounds(self) -> list[list[PlacedSequence]]:
        """Return the sequences of the panel in groups: those that begin with the same lane of their engines are in one
        group, the first lanes first."""
        firsts = sorted({of.first for of in self._placed})
        return [[of for of in self._placed if of.first == first] for first in firsts]

    def load(
        self,
        addresses: Sequence[int],
        slot: int,
        blocks: int,
        gains: StoredConstants | None,
        memory: LaneMemory = LaneMemory.X,
    ) -> None:
        """Load the rows of the sequences to X or Angles. addresses: of each sequence of the batch. slot: first cell.
        blocks: of a row. gains: of these blocks; None to leave the gains as they are. memory: X or Angles."""
        slot += self._first[memory]
        for number, some in enumerate(self.rounds()):
            takes = gains is not None and not number
            if gains is not None and takes:
                self._constants(gains.addr, blocks * gains.each, self._lanes)
            for of in some:
                fields = {"memory": memory, "slot": slot, "blocks": blocks, "gains": int(takes), **of.fields}
                self._add(f"Rows{of.engine}", PanelRows(op=RowOp.LOAD, **fields))
                self._blocks(addresses[of.number], ChunkEnd.LOAD, of, blocks)

    def store(
        self,
        addresses: Sequence[int],
        slot: int,
        blocks: int,
        norm: PanelNorm | None = None,
        affine: StoredConstants | None = None,
        *,
        late: bool = False,
    ) -> None:
        """Store the rows of the sequences, from cell `slot` of X on. addresses: as for `load`. blocks: of a row. norm,
        affine: the norm of what is stored, and its gain and shift; give both or none. late: DDR takes the blocks only
        after the weights of the next product, or when `stored_late` is called, so that weights do not wait for these
        rows."""
        slot += self._first[LaneMemory.X]
        fields = {"slot": slot, "blocks": blocks, **({} if norm is None else norm.fields)}
        for some in self.rounds():
            if affine is not None:
                self._constants(affine.addr, blocks * affine.each, [of.engine for of in some])
            for of in some:
                self._add(f"Rows{of.engine}", PanelRows(op=RowOp.STORE, **of.fields, **fields))
            takes = [partial(self._blocks, addresses[of.number], ChunkEnd.STORE, of, blocks) for of in some]
            if len(some) > 1:  # block by block, so that lanes of all engines work at the same time
                takes = [
                    partial(self._blocks, addresses[of.number], ChunkEnd.STORE, of, 1, before)
                    for before in range(blocks)
                    for of in some
                ]
            if late:
                self._late += takes
                continue
            for take in takes:
                take()

    def stored_late(self) -> None:
        """Let DDR take the blocks and rows that `store` and `store_rows` have left for later."""
        for take in self._late:
            take()
        self._late.clear()

    def _blocks(self, addr: int, end: ChunkEnd, of: PlacedSequence, blocks: int, before: int = 0) -> None:
        """Move blocks of X of one part of a sequence, of which each has all rows that there are off chip. before:
        blocks that come before them there."""
        self._moved(addr, end, of, blocks, of.lanes * of.rows * ROW_PAIR // 2, before)

    def _moved(self, addr: int, end: ChunkEnd, of: PlacedSequence, blocks: int, size: int, before: int = 0) -> None:
        """Move blocks of a part of a sequence, which takes `size` words of each. before: as for `_blocks`."""
        rows = of.lanes * of.rows
        fields: dict[str, int] = {"end": end, "engines": 1 << of.engine, "rows": rows}
        fields |= {"first": of.first, "lanes": of.lanes}
        pitch = of.pitch or rows * of.parts
        addr += before * size * pitch // rows // UNIT
        if pitch == rows:
            self._add("DDR", OffChipChunks(addr=addr, size=blocks * size, **fields))
        else:
            at = addr + of.part * size // UNIT
            fields |= {"chunks": blocks, "chunk_stride": size * pitch // rows // UNIT}
            self._add("DDR", OffChipChunks(addr=at, size=size, **fields))

    def _walked(self, slot: int, blocks: int, low_bits: int) -> list[tuple[int, ...]]:
        """The cells of blocks of X8, with the factors of their rows."""
        first, *others = walked_cells(slot, blocks, self._placed[0].rows, low_bits)
        return [(*first, FACTORS), *map(tuple, others)]

    def put_apart(self, addr: int, slot: int, blocks: int) -> None:
        """Store blocks of T of all parts of a sequence that is spread over several engines. addr: where in DDR. slot:
        first cell. blocks: how many."""
        slot += self._first[LaneMemory.T]
        for of in self._placed:
            fields = {"memory": LaneMemory.T, "slot": slot, "blocks": blocks, **of.fields}
            self._add(f"Rows{of.engine}", PanelRows(op=RowOp.STORE, **fields))
            self._moved(addr, ChunkEnd.STORE_T, of, blocks, of.lanes * of.rows * SHORT_ROW_PAIR // 2)

    def fetch(self, addr: int, slot: int, blocks: int, readers: tuple[int, ...]) -> None:
        """Load what `put_apart` has stored to T of all engines that have a part of the sequence. addr: where in DDR.
        slot: first cell. blocks: how many. readers: units that will read them, `SEND`, `HEADS` or both."""
        slot += self._first[LaneMemory.T]
        of = self._placed[0]
        rows, each = of.lanes * of.rows, cells(of.key_rows)
        engines = sum(1 << engine for engine in self._lanes)
        fields: dict[str, int] = {"end": ChunkEnd.LOAD_T, "engines": engines, "rows": rows, "lanes": of.lanes}
        fields["further"] = of.parts - 1
        size = of.parts * rows * SHORT_ROW_PAIR // 2
        if of.pitch in (0, of.parts * rows):
            fields["size"] = blocks * size
        else:
            fields |= {"size": size, "chunks": blocks, "chunk_stride": of.pitch * SHORT_ROW_PAIR // 2 // UNIT}
        self._add("DDR", OffChipChunks(addr=addr, **fields))
        for engine in self._lanes:
            waits = self._waits(engine, self._tiles(T + slot, blocks, each), readers)
            take = {"memory": LaneMemory.T, "slot": slot, "blocks": blocks, "key_rows": of.key_rows, **of.fields}
            told = sum(1 << reader for reader in readers)
            self._add(f"Rows{engine}", PanelRows(op=RowOp.LOAD, readers=told, **take, **waits))

    def store_rows(
        self, addresses: Sequence[int], slot: int, blocks: int, cache: int = 0, memory: LaneMemory = LaneMemory.T
    ) -> None:
        """Store rows of T or X one by one. addresses: of each sequence of the batch. slot: first cell. blocks: of a
        row, up to eight. cache: 0 stores all rows of the sequences. Otherwise only the first row of each sequence b is
        stored, as row row[b] (a run-time parameter) of a cache with this number of rows, or, for 1, as its only row.
        memory: T or X. DDR takes rows of X later, as for `store` with `late`."""
        slot += self._first[memory]
        in_x = memory is LaneMemory.X
        units, keeps = units_of_row(blocks, X_BITS if in_x else T_BITS), int(cache > 0)
        for of in self._placed:
            rows = {"memory": memory, "by_row": 1, "keeps": keeps, "slot": slot, "blocks": blocks}
            self._add(f"Rows{of.engine}", PanelRows(op=RowOp.STORE, **rows, **of.fields))
            count = of.lanes * of.rows
            fields = {"end": ChunkEnd.STORE_ROWS, "engines": 1 << of.engine, "further": blocks - 1, "keeps": keeps}
            fields |= {"size": (cache or count) * units * UNIT, "of_x": int(in_x), "first": of.first}
            fields |= {"lanes": 1, "rows": 1} if keeps else {"lanes": of.lanes, "rows": of.rows}
            mop = OffChipChunks(addr=addresses[of.number] + of.part * count * units, **fields)
            if in_x:
                self._late.append(partial(self._add, "DDR", mop))
                continue
            self._add("DDR", mop)
            if cache > 1:
                patch = KernelPatch("DDR", len(self.sequences["DDR"]) - 1, "row", 0, cache - 1)
                self.patches[f"row[{of.number}]"].append(patch)

    def load_rows(self, of: PlacedSequence, addr: int, slot: int, blocks: int, readers: tuple[int, ...]) -> None:
        """Load the rows of a cache to T of all lanes of the engine of a sequence. of: the sequence. addr: of the first
        row. slot: first cell. blocks: of a row, up to eight. readers: units that will read them, `SEND`, `HEADS` or
        both."""
        slot += self._first[LaneMemory.T]
        units, all_lanes = units_of_row(blocks), {"lanes": LANES, "rows": of.rows}
        size = LANES * of.key_rows * units * UNIT
        fields = {"end": ChunkEnd.LOAD_ROWS, "engines": 1 << of.engine, "further": blocks - 1, "rows": of.key_rows}
        self._add("DDR", OffChipChunks(addr=addr, size=size, **fields))
        waits = self._waits(of.engine, self._tiles(T + slot, blocks, cells(of.key_rows)), readers)
        take = {"memory": LaneMemory.T, "by_row": 1, "slot": slot, "blocks": blocks, "key_rows": of.key_rows}
        take |= {"spread": 1, "readers": sum(1 << reader for reader in readers)}
        self._add(f"Rows{of.engine}", PanelRows(op=RowOp.LOAD, **take, **all_lanes, **waits))

    def sum(self, source: int, to: Destination, blocks: int, constants: int) -> None:
        """Add blocks of X to those that `to` names as residual, if it names any, and write them to the cells of `to`.
        source: first cell of the blocks. blocks: how many. constants: address of the gains of what is written."""
        source, to = source + self._first[LaneMemory.X], self._here(to)
        if to.gains:
            self._constants(constants, blocks, self._lanes)
        for engine, lanes in self._lanes.items():
            fields = {"source": source, "blocks": blocks, **to.fields}
            self._add(f"Rows{engine}", PanelRows(op=RowOp.SUM, **lanes, **fields))

    def walk(self, slot: int, blocks: int, norm: PanelNorm | None, low_bits: int = 0) -> None:
        """Send blocks of X to X8, as rows of the next products. slot: first cell in X. blocks: how many. norm: of the
        rows; None for none. low_bits: bits that the rows have beyond 8."""
        slot += self._first[LaneMemory.X]
        fields = {"low_bits": low_bits, **({} if norm is None else norm.fields)}
        for engine, lanes in self._lanes.items():
            waits = self._waits(engine, self._walked(slot, blocks, low_bits), (SEND,))
            self._add(f"Rows{engine}", PanelRows(op=RowOp.SEND, slot=slot, blocks=blocks, **lanes, **waits, **fields))

    def product(
        self,
        source: ChunkSource,
        slot: int,
        chunks: int,
        weights: StoredWeights,
        constants: int,
        to: Destination,
        *,
        each: bool,
    ) -> None:
        """Compute up to 512 columns of a product. source: the memory of its rows, X8 or T. slot: their first cell, in X
        (`walk`) or in T. chunks: blocks of the rows. weights: of these columns. constants: address of the constants of
        the results. to: where the results go. each: whether each chunk is sent as soon as `walk` has written it, for
        the first product of these rows; otherwise all rows must have been written."""
        columns = len(weights.shifts)
        shifts = {f"shift{i}": shift for i, shift in enumerate(weights.shifts)}
        low_bits, passes = weights.low_bits, 1 + (weights.low_bits > 0)
        in_x8 = source is ChunkSource.X8
        slot, to = slot + self._first[LaneMemory.X if in_x8 else LaneMemory.T], self._here(to)
        tiles = self._walked(slot, chunks, low_bits) if in_x8 else self._tiles(T + slot, chunks)
        rows = {"source": source, "slot": slot, "chunks": chunks, "each": int(each), "columns": columns, **shifts}
        rows["low_bits"] = low_bits
        for engine, lanes in self._lanes.items():
            send = self._tokens[engine][SEND]
            wait = send.read_each(tiles) if each else send.read(cell for tile in tiles for cell in tile)
            self._add(f"Send{engine}", PanelSend(wait=wait, **lanes, **rows))
            self._add(f"Engine{engine}", EngineOp(columns=columns, depth=passes * chunks, **lanes))
        engines = sum(1 << engine for engine in self._lanes)
        int4 = int(weights.short)
        of_w = {"columns": columns, "ddr": weights.of_ddr, "engines": engines, "int4": int4}
        self._add("W", PanelWeights(chunks=passes * chunks, **of_w))
        word = SHORT_WEIGHT_WORD if int4 else WEIGHT_WORD
        for bank, addr, count in (
            ("LPDDR", weights.lpddr, columns - weights.of_ddr),
            ("DDR", weights.ddr, weights.of_ddr),
        ):
            if count:
                fields = {"size": chunks * count * word, "end": ChunkEnd.WEIGHTS, "int4": int4, "chunks": passes}
                self._add(bank, OffChipChunks(addr=addr, **fields))
        self.stored_late()
        self._constants(constants, to.constants(columns), self._lanes)
        made = self._tiles(T + to.slot, columns // (1 + to.gated)) if to.in_t else []
        for engine, lanes in self._lanes.items():
            waits = self._waits(engine, made, to.readers if to.in_t else ())
            self._add(f"Rows{engine}", PanelRows(op=RowOp.TAKE, blocks=columns, **lanes, **to.fields, **waits))

    def attention(self, heads: HeadsRound, *, last: bool) -> None:
        """Compute a round of attention for each sequence of the panel. heads: the round. last: whether it is the last
        round before a product, or of the program; engines then wait until its results have left the tiles."""
        rounds = self.rounds()
        for number, some in enumerate(rounds):
            for of in some:
                ends = last and not any(x.engine == of.engine for later in rounds[number + 1 :] for x in later)
                self.attend(heads, of, ends=ends)

    def attend(self, heads: HeadsRound, at: PlacedSequence, *, ends: bool) -> None:
        """Compute a round of attention for one sequence. heads: the round. at: the sequence. ends: whether it is the
        last one of its engine before a product, or of the program."""
        heads = heads.moved(self._first[LaneMemory.T])
        send, reader = self._tokens[at.engine]
        spread = int(at.spread > 0)
        shown = min(heads.shown, at.length or heads.shown)
        of = {**heads.widths, "keys": shown, "key_rows": at.key_rows}
        lanes, first = {"first": at.first, "lanes": at.lanes}, at.part * at.lanes * at.rows
        lanes = {"first": 0, "lanes": LANES} if spread else lanes
        apart = sum(1 << x.engine for x in self._placed if x.number == at.number and x.engine != at.engine)
        queries, results = (
            self._tiles(T + slot, heads.blocks(shared=False)) for slot in (heads.queries, heads.results)
        )
        keys, values = (
            self._tiles(T + slot, heads.blocks(shared=True), cells(at.key_rows)) for slot in (heads.keys, heads.values)
        )
        mop = PanelSend(
            source=ChunkSource.QUERIES,
            slot=heads.queries,
            keys_slot=heads.keys,
            chunks=heads.heads,
            head_dim=heads.head_dim,
            count=min((at.length or heads.rows) - first, at.lanes * at.rows),
            causal=int(heads.causal),
            first_row=first,
            spread=spread,
            others=apart,
            wait=send.read(cell for tile in (*queries, *keys) for cell in tile),
            **of,
            **heads.shares,
            **at.fields,
        )
        self._add(f"Send{at.engine}", mop)
        wait = reader.read(cell for tile in (*keys, *values) for cell in tile)
        slots = {"keys_slot": heads.keys, "values": heads.values, "heads": heads.heads}
        self._add(f"Heads{at.engine}", PanelHeads(wait=wait, **slots, **of, **heads.shares_of_keys, **lanes))
        wide = {"wide": heads.widths["wide"], "key_rows": at.key_rows, "spread": spread}
        self._add(
            f"Engine{at.engine}", EngineOp(attention=1, leaves=int(ends), columns=heads.heads, **wide, **at.fields)
        )
        waits = self._waits(at.engine, results, (SEND,))
        take = {"memory": LaneMemory.T, "slot": heads.results, "values": heads.values, "tell": int(ends)}
        take |= {"spread": spread, **heads.shares}
        rows = PanelRows(op=RowOp.TAKE, attention=1, blocks=heads.heads, **of, **at.fields, **take, **waits)
        self._add(f"Rows{at.engine}", rows)
        for kind in ("Send", "Heads", "Rows") if heads.masked else ():
            unit = f"{kind}{at.engine}"
            patch = KernelPatch(unit, len(self.sequences[unit]) - 1, "keys", 0, shown)
            self.patches[f"len[{at.number}]"].append(patch)

    def finish(self) -> None:
        """End the program: let all units take the tokens that are left in streams."""
        for engine, (send, heads) in enumerate(self._tokens):
            rows = PanelRows(blocks=0, wait=send.unwaited, wait_heads=heads.unwaited)
            for unit, mop in (
                ("Rows", rows),
                ("Send", PanelSend(chunks=0, wait=send.unread)),
                ("Heads", PanelHeads(heads=0, wait=heads.unread)),
            ):
                if self.sequences[f"{unit}{engine}"]:
                    self._add(f"{unit}{engine}", mop)
