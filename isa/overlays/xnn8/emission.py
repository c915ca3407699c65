"""Instructions of xnn8 from work on panels: an instruction for each unit, with the tokens that they wait for.

Work must be added in an order in which it could be done one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...fields import Record
from ...overlay import Overlay
from ...program import KernelPatch
from ...versal.tokens import SlotTokens
from .formats import (
    CONSTANTS,
    ENGINES,
    ROW_PAIR,
    WEIGHT_WORD,
    X_BLOCKS,
    AddedResidual,
    ChunkEnd,
    ChunkSource,
    EngineOp,
    OffChipChunks,
    PanelHeads,
    PanelRows,
    PanelSend,
    PanelWeights,
    RowOp,
)
from .lanes import SEND
from .numbers import BLOCK, NormConstants

T = X_BLOCKS
"""Where the blocks of T begin among the cells of the tokens, behind those of X8."""


class PanelNorm(NamedTuple):
    """A norm of rows of X."""

    constants: NormConstants
    rms: bool = False

    @property
    def fields(self) -> dict[str, int]:
        """Of an operation of Rows."""
        return PanelRows.of_norm(self.constants, rms=self.rms)


class StoredConstants(NamedTuple):
    """Constants of blocks, in LPDDR: where they begin, in units of 64 bytes, and their number for each block."""

    addr: int
    each: int


class StoredWeights(NamedTuple):
    """Weights of a block of up to 512 columns. lpddr, ddr: where the chunks begin, in units of 64 bytes. of_ddr:
    columns of pairs whose weights are in DDR. shifts: of results, of each column of pairs."""

    lpddr: int
    ddr: int
    of_ddr: int
    shifts: tuple[int, ...]


class HeadsRound(NamedTuple):
    """A round of attention: up to eight heads in T. queries, keys, values, results: first blocks. heads: their number.
    head_dim: columns that count. rows, shown: of a sequence, all and those whose keys count. masked: the run-time
    parameter len[b] of a sequence says how many of these do. causal: of these, those up to each row."""

    queries: int
    keys: int
    values: int
    results: int
    heads: int
    head_dim: int
    rows: int
    shown: int
    masked: bool = False
    causal: bool = False

    @property
    def narrow(self) -> int:
        """1 for heads of 32 columns."""
        return int(self.head_dim <= BLOCK // 2)

    def blocks(self, first: int) -> range:
        """The blocks from `first` on."""
        return range(first, first + -(-self.heads * (BLOCK >> self.narrow) // BLOCK))


@dataclass
class Destination:
    """Where results of a product go. slot: first block, in T or X. reader: of T. residual, function: as Rows has them.
    gains: constants bring them."""

    slot: int
    in_t: bool = False
    reader: int = SEND
    residual: AddedResidual = AddedResidual.NONE
    function: int = 0
    gains: bool = False

    @property
    def constants(self) -> int:
        """Of each block: scale and bias; of a normalised residual; gains."""
        return 1 + (self.residual == AddedResidual.NORMALISED) + self.gains


class PlacedSequence(NamedTuple):
    """A sequence in a panel. first, lanes: of its engine. rows: of a lane, the same in all of a program. number: of the
    sequence in the batch."""

    engine: int
    first: int
    lanes: int
    rows: int
    number: int


class IntegerEmitter:
    """Makes the instructions of a program. overlay: xnn8. sequences: of each unit. patches: fields that depend on the
    lengths of sequences, by parameter."""

    def __init__(self, overlay: Overlay) -> None:
        self.sequences: dict[str, list[Record]] = {unit.name: [] for unit in overlay.units}
        self.patches: dict[str, list[KernelPatch]] = defaultdict(list)
        self._tokens = tuple((SlotTokens(), SlotTokens()) for _ in range(ENGINES))
        self._placed: tuple[PlacedSequence, ...] = ()
        self._lanes: dict[int, dict[str, int]] = {}
        """Of each engine that computes the panel, the lanes that have rows, and the rows of each, as fields."""

    def begin(self, placed: Sequence[PlacedSequence]) -> None:
        """Begin a panel of these sequences."""
        self._placed = tuple(placed)
        self._lanes = {}
        for of in placed:
            lanes = max(self._lanes.get(of.engine, {}).get("lanes", 0), of.first + of.lanes)
            self._lanes[of.engine] = {"lanes": lanes, "rows": of.rows}

    def _add(self, unit: str, mop: Record) -> None:
        self.sequences[unit].append(mop)

    def _constants(self, at: StoredConstants, blocks: int, engines: Iterable[int]) -> None:
        mask = sum(1 << engine for engine in engines)
        size = blocks * at.each * CONSTANTS
        self._add("LPDDR", OffChipChunks(addr=at.addr, size=size, end=ChunkEnd.CONSTANTS, engines=mask))

    def _waits(self, engine: int, cells: Iterable[int], told: int | None) -> dict[str, int]:
        """What Rows waits for before it writes over cells, of which it tells one of the readers."""
        cells = list(cells)
        send, heads = (
            tokens.write(cells) if i == told else tokens.overwrite(cells)
            for i, tokens in enumerate(self._tokens[engine])
        )
        return {"wait": send, "wait_heads": heads}

    def _rounds(self) -> list[list[PlacedSequence]]:
        """The sequences of the panel, those with the first lanes of their engines first."""
        firsts = sorted({of.first for of in self._placed})
        return [[of for of in self._placed if of.first == first] for first in firsts]

    def load(self, addresses: Sequence[int], blocks: int, gains: StoredConstants | None) -> None:
        """Load the rows of the sequences to X from block 0 on. addresses: of the sequences of the batch, in units of 64
        bytes. gains: of these blocks."""
        for number, some in enumerate(self._rounds()):
            takes = gains is not None and not number
            if gains is not None and takes:
                self._constants(gains, blocks, self._lanes)
            for of in some:
                lanes = {"first": of.first, "lanes": of.lanes, "rows": of.rows}
                self._add(f"Rows{of.engine}", PanelRows(op=RowOp.LOAD, blocks=blocks, gains=int(takes), **lanes))
                self._blocks(addresses[of.number], ChunkEnd.LOAD, of, blocks)

    def store(
        self, addresses: Sequence[int], blocks: int, norm: PanelNorm | None, affine: StoredConstants | None
    ) -> None:
        """Store the rows of the sequences, from block 0 of X on. addresses: as for `load`. norm, affine: of the norm of
        what is stored, both or none."""
        fields = {} if norm is None else norm.fields
        for some in self._rounds():
            if affine is not None:
                self._constants(affine, blocks, [of.engine for of in some])
            for of in some:
                lanes = {"first": of.first, "lanes": of.lanes, "rows": of.rows}
                self._add(f"Rows{of.engine}", PanelRows(op=RowOp.STORE, blocks=blocks, **lanes, **fields))
                self._blocks(addresses[of.number], ChunkEnd.STORE, of, blocks)

    def _blocks(self, addr: int, end: ChunkEnd, of: PlacedSequence, blocks: int) -> None:
        rows = of.lanes * of.rows
        size = blocks * rows * ROW_PAIR // 2
        lanes = {"rows": rows, "first": of.first, "lanes": of.lanes}
        self._add("DDR", OffChipChunks(addr=addr, size=size, end=end, engines=1 << of.engine, **lanes))

    def walk(self, blocks: int, norm: PanelNorm | None) -> None:
        """Send blocks of X to X8, from block 0 on."""
        fields = {} if norm is None else norm.fields
        for engine, lanes in self._lanes.items():
            waits = self._waits(engine, range(blocks), SEND)
            self._add(f"Rows{engine}", PanelRows(op=RowOp.SEND, blocks=blocks, **lanes, **waits, **fields))

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
        """Compute up to 512 columns of a product. source: X8 or T. slot: first block of its rows. constants: where
        those of the results begin, in units of 64 bytes. each: the rows are being walked."""
        columns = len(weights.shifts)
        shifts = {f"shift{i}": shift for i, shift in enumerate(weights.shifts)}
        cells = range(slot, slot + chunks) if source is ChunkSource.X8 else range(T + slot, T + slot + chunks)
        rows = {"source": source, "slot": slot, "chunks": chunks, "each": int(each), "columns": columns, **shifts}
        for engine, lanes in self._lanes.items():
            send = self._tokens[engine][SEND]
            wait = send.read_each(cells) if each else send.read(cells)
            self._add(f"Send{engine}", PanelSend(wait=wait, **lanes, **rows))
            self._add(f"Engine{engine}", EngineOp(columns=columns, depth=chunks, **lanes))
        engines = sum(1 << engine for engine in self._lanes)
        self._add("W", PanelWeights(chunks=chunks, columns=columns, ddr=weights.of_ddr, engines=engines))
        for bank, addr, count in (
            ("LPDDR", weights.lpddr, columns - weights.of_ddr),
            ("DDR", weights.ddr, weights.of_ddr),
        ):
            if count:
                self._add(bank, OffChipChunks(addr=addr, size=chunks * count * WEIGHT_WORD, end=ChunkEnd.WEIGHTS))
        self._constants(StoredConstants(constants, to.constants), columns, self._lanes)
        in_t = range(T + to.slot, T + to.slot + columns) if to.in_t else range(0)
        take = {
            "blocks": columns,
            "slot": to.slot,
            "to_t": int(to.in_t),
            "reader": to.reader,
            "residual": to.residual,
            "function": to.function,
            "gains": int(to.gains),
        }
        for engine, lanes in self._lanes.items():
            waits = self._waits(engine, in_t, to.reader if to.in_t else None)
            self._add(f"Rows{engine}", PanelRows(op=RowOp.TAKE, **lanes, **take, **waits))

    def attention(self, heads: HeadsRound, *, last: bool) -> None:
        """Compute a round of attention for each sequence. last: a product follows, or nothing."""
        rounds = self._rounds()
        for number, some in enumerate(rounds):
            for of in some:
                ends = last and not any(x.engine == of.engine for later in rounds[number + 1 :] for x in later)
                self._heads(heads, of, int(ends))

    def _heads(self, heads: HeadsRound, at: PlacedSequence, ends: int) -> None:
        send, reader = self._tokens[at.engine]
        lanes = {"lanes": at.lanes, "first": at.first, "rows": at.rows}
        of = {"narrow": heads.narrow, "keys": heads.shown, **lanes}
        queries, keys, values, results = (
            [T + i for i in heads.blocks(first)] for first in (heads.queries, heads.keys, heads.values, heads.results)
        )
        names = {"keys_slot": heads.keys, "head_dim": heads.head_dim, "count": heads.rows, "causal": int(heads.causal)}
        wait = send.read([*queries, *keys])
        mop = PanelSend(source=ChunkSource.QUERIES, slot=heads.queries, chunks=heads.heads, wait=wait, **of, **names)
        self._add(f"Send{at.engine}", mop)
        wait = reader.read([*keys, *values])
        mop_heads = PanelHeads(keys_slot=heads.keys, values=heads.values, heads=heads.heads, wait=wait, **of)
        self._add(f"Heads{at.engine}", mop_heads)
        self._add(f"Engine{at.engine}", EngineOp(attention=1, leaves=ends, columns=heads.heads, **lanes))
        waits = self._waits(at.engine, results, SEND)
        take = {"slot": heads.results, "to_t": 1, "values": heads.values, "tell": ends}
        self._add(f"Rows{at.engine}", PanelRows(op=RowOp.TAKE, attention=1, blocks=heads.heads, **of, **take, **waits))
        for kind in ("Send", "Heads", "Rows") if heads.masked else ():
            unit = f"{kind}{at.engine}"
            patch = KernelPatch(unit, len(self.sequences[unit]) - 1, "keys", 0, heads.shown)
            self.patches[f"len[{at.number}]"].append(patch)

    def finish(self) -> None:
        """End the program: let all units take the tokens that are left."""
        for engine, (send, heads) in enumerate(self._tokens):
            rows = PanelRows(blocks=0, wait=send.unwaited, wait_heads=heads.unwaited)
            for unit, mop in (
                ("Rows", rows),
                ("Send", PanelSend(chunks=0, wait=send.unread)),
                ("Heads", PanelHeads(heads=0, wait=heads.unread)),
            ):
                if self.sequences[f"{unit}{engine}"]:
                    self._add(f"{unit}{engine}", mop)
