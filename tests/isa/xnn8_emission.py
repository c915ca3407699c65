"""Instructions of xnn8 from work on panels: an instruction for each unit, with the tokens that they wait for.

Engines that compute at the same time do the same. Work must be added in an order in which it could be done one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rsn.isa.fields import Record
from rsn.isa.layout import UNIT
from rsn.isa.overlay import Overlay
from rsn.isa.overlays.xnn8.formats import (
    CONSTANTS,
    LANE_BLOCK,
    LANE_ROWS,
    LANES,
    WEIGHT_WORD,
    ChunkEnd,
    EngineOp,
    OffChipChunks,
    PanelHeads,
    PanelRows,
    PanelSend,
    PanelWeights,
    Residual,
    RowOp,
    Source,
)
from rsn.isa.overlays.xnn8.lanes import HEADS, SEND, PackedConstants
from rsn.isa.overlays.xnn8.numbers import BLOCK, BlockNumbers, Integers, NormConstants
from rsn.isa.packet import Packet, terminators
from rsn.isa.versal.tokens import SlotTokens

X8, T, K = 0, 16, 80
"""Where the blocks of X8 and of T begin among the cells of the tokens."""


class RowNorm(NamedTuple):
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


class Heads(NamedTuple):
    """A round of attention: up to eight heads of a sequence in T. queries, keys, values, results: first blocks. heads:
    their number. head_dim: columns that count. first, lanes: the lanes of the sequence. rows, count: its rows, and
    those of its keys that are shown."""

    queries: int
    keys: int
    values: int
    results: int
    heads: int
    head_dim: int
    first: int
    lanes: int
    rows: int
    shown: int

    @property
    def narrow(self) -> int:
        """1 for heads of 32 columns."""
        return int(self.head_dim <= BLOCK // 2)

    def blocks(self, first: int) -> range:
        """The blocks from `first` on."""
        return range(first, first + -(-self.heads * (BLOCK >> self.narrow) // BLOCK))


def weight_words(weight: Integers, of_ddr: int) -> tuple[Any, Any]:
    """The weights of a block of up to 512 columns as they lie in LPDDR and DDR: float32 vectors, chunk by chunk.
    weight: int8 (K, columns), multiples of 64. of_ddr: columns of pairs whose weights are in DDR."""
    chunks, columns = (n // BLOCK for n in weight.shape)
    x = weight.astype(np.int8).reshape(chunks, BLOCK, columns, BLOCK).transpose(0, 2, 1, 3)
    split = columns - of_ddr
    lpddr, ddr = (np.ascontiguousarray(part).reshape(-1).view(np.float32) for part in (x[:, :split], x[:, split:]))
    return lpddr, ddr


def constant_words(blocks: Iterable[Sequence[PackedConstants]]) -> Any:
    """Constants of blocks as they lie in LPDDR, a float32 vector."""
    return np.concatenate([vector.packed() for block in blocks for vector in block])


def columns_of(x: BlockNumbers) -> list[BlockNumbers]:
    """The blocks of a vector (blocks, 64), (blocks, 1), one by one."""
    return [BlockNumbers(x.integers[i : i + 1], x.exponents[i : i + 1]) for i in range(len(x.integers))]


@dataclass
class Destination:
    """Where results of a product go. slot: first block, in T or X. reader: of T. residual, function: as Rows has them.
    gains: constants bring them."""

    slot: int
    in_t: bool = False
    reader: int = SEND
    residual: Residual = Residual.NONE
    function: int = 0
    gains: bool = False

    @property
    def constants(self) -> int:
        """Of each block: scale and bias; of a normalised residual; gains."""
        return 1 + (self.residual == Residual.NORMALISED) + self.gains


class PanelEmitter:
    """Makes the packets of a program. overlay: xnn8."""

    def __init__(self, overlay: Overlay) -> None:
        self.packets: list[Packet] = []
        self._overlay = overlay
        self._mask, self._lanes = 0, LANES
        self._tokens = SlotTokens(), SlotTokens()

    def begin(self, engines: int, lanes: int) -> None:
        """Begin a panel. engines: how many compute it, not more than the panel before had. lanes: of each that have
        rows."""
        mask = (1 << engines) - 1
        assert not self._mask or mask <= self._mask
        if self._mask & ~mask:
            self._end(self._mask & ~mask)
        self._mask, self._lanes = mask, lanes

    def _add(self, kind: str, mop: Record, engines: int | None = None) -> None:
        mask = 0 if kind in ("DDR", "LPDDR", "W") else self._mask if engines is None else engines
        self.packets.append(Packet.of(self._overlay.format_of(kind).opcode, (mop,), mask=mask))

    def _end(self, engines: int) -> None:
        """Let the units of some engines take all tokens."""
        send, heads = self._tokens
        self._add("Rows", PanelRows(blocks=0, wait=send.unwaited, wait_heads=heads.unwaited), engines)
        self._add("Send", PanelSend(chunks=0, wait=send.unread), engines)
        self._add("Heads", PanelHeads(heads=0, wait=heads.unread), engines)

    def _constants(self, at: StoredConstants, blocks: int) -> None:
        size = blocks * at.each * CONSTANTS
        mop = OffChipChunks(addr=at.addr, size=size, end=ChunkEnd.CONSTANTS, engines=self._mask)
        self._add("LPDDR", mop)

    def _blocks(self, addr: int, end: ChunkEnd, engine: int, blocks: int) -> None:
        size = blocks * self._lanes * LANE_BLOCK
        self._add("DDR", OffChipChunks(addr=addr, size=size, end=end, engines=1 << engine, lanes=self._lanes))

    def _waits(self, cells: Iterable[int], told: int | None) -> dict[str, int]:
        """What Rows waits for before it writes over cells, of which it tells one of the readers."""
        cells = list(cells)
        waits = [tokens.write(cells) if i == told else tokens.overwrite(cells) for i, tokens in enumerate(self._tokens)]
        return {"wait": waits[SEND], "wait_heads": waits[HEADS]}

    def load(self, addresses: Sequence[int], blocks: int, gains: StoredConstants | None) -> None:
        """Load blocks to X from block 0 on. addresses: of each engine, in units of 64 bytes."""
        if gains is not None:
            self._constants(gains, blocks)
        self._add("Rows", PanelRows(op=RowOp.LOAD, blocks=blocks, lanes=self._lanes, gains=int(gains is not None)))
        for engine, addr in enumerate(addresses):
            self._blocks(addr, ChunkEnd.LOAD, engine, blocks)

    def store(
        self, addresses: Sequence[int], blocks: int, norm: RowNorm | None, affine: StoredConstants | None
    ) -> None:
        """Store blocks of X from block 0 on. norm, affine: of the norm of what is stored, both or none."""
        fields = {} if norm is None else norm.fields
        if affine is not None:
            self._constants(affine, blocks)
        self._add("Rows", PanelRows(op=RowOp.STORE, blocks=blocks, lanes=self._lanes, **fields))
        for engine, addr in enumerate(addresses):
            self._blocks(addr, ChunkEnd.STORE, engine, blocks)

    def walk(self, blocks: int, norm: RowNorm | None) -> None:
        """Send blocks of X to X8, from block 0 on."""
        fields = {} if norm is None else norm.fields
        waits = self._waits(range(X8, X8 + blocks), SEND)
        self._add("Rows", PanelRows(op=RowOp.SEND, blocks=blocks, lanes=self._lanes, **waits, **fields))

    def product(
        self,
        source: Source,
        slot: int,
        chunks: int,
        weights: StoredWeights,
        constants: int,
        to: Destination,
        *,
        each: bool,
    ) -> None:
        """Compute up to 512 columns of a product. slot: first block of its rows. constants: where those of the results
        begin. each: the rows are being walked."""
        columns = len(weights.shifts)
        cells = range(slot, slot + chunks) if source is Source.X8 else range(T + slot, T + slot + chunks)
        send = self._tokens[SEND]
        wait = send.read_each(cells) if each else send.read(cells)
        shifts = {f"shift{i}": shift for i, shift in enumerate(weights.shifts)}
        mop = PanelSend(source=source, slot=slot, chunks=chunks, lanes=self._lanes, wait=wait, each=int(each), **shifts)
        self._add("Send", mop)
        self._add("Engine", EngineOp(lanes=self._lanes, columns=columns, depth=chunks))
        self._add("W", PanelWeights(chunks=chunks, columns=columns, ddr=weights.of_ddr, engines=self._mask))
        for kind, addr, count in (
            ("LPDDR", weights.lpddr, columns - weights.of_ddr),
            ("DDR", weights.ddr, weights.of_ddr),
        ):
            if count:
                size = chunks * count * WEIGHT_WORD
                self._add(kind, OffChipChunks(addr=addr, size=size, end=ChunkEnd.WEIGHTS))
        self._constants(StoredConstants(constants, to.constants), columns)
        in_t = range(T + to.slot, T + to.slot + columns) if to.in_t else ()
        waits = self._waits(in_t, to.reader if to.in_t else None)
        self._add(
            "Rows",
            PanelRows(
                op=RowOp.TAKE,
                blocks=columns,
                slot=to.slot,
                lanes=self._lanes,
                to_t=int(to.in_t),
                reader=to.reader,
                residual=to.residual,
                function=to.function,
                gains=int(to.gains),
                **waits,
            ),
        )

    def attention(self, heads: Heads, *, last: bool) -> None:
        """Compute a round of attention. last: a product follows, or nothing."""
        of = {"lanes": heads.lanes, "first": heads.first, "narrow": heads.narrow, "keys": heads.shown}
        queries, keys, values = (
            [T + i for i in heads.blocks(first)] for first in (heads.queries, heads.keys, heads.values)
        )
        wait = self._tokens[SEND].read([*queries, *keys])
        ends = {"keys_slot": heads.keys, "head_dim": heads.head_dim, "rows": heads.rows}
        mop = PanelSend(source=Source.QUERIES, slot=heads.queries, chunks=heads.heads, wait=wait, **of, **ends)
        self._add("Send", mop)
        wait = self._tokens[HEADS].read([*keys, *values])
        self._add("Heads", PanelHeads(keys_slot=heads.keys, values=heads.values, heads=heads.heads, wait=wait, **of))
        engine = {"first": heads.first, "lanes": heads.lanes, "columns": heads.heads}
        self._add("Engine", EngineOp(attention=1, leaves=int(last), **engine))
        waits = self._waits([T + i for i in heads.blocks(heads.results)], SEND)
        take = {"slot": heads.results, "to_t": 1, "values": heads.values, "tell": int(last)}
        self._add("Rows", PanelRows(op=RowOp.TAKE, attention=1, blocks=heads.heads, **of, **take, **waits))

    def finish(self) -> list[Packet]:
        """End the program. Returns its packets."""
        self._end(self._mask)
        return [*self.packets, *terminators(self._overlay)]


def padded_lanes(rows: int) -> int:
    """Lanes that have so many rows."""
    return -(-rows // LANE_ROWS)


def units_of(words: int) -> int:
    """Units of 64 bytes that so many words of 32 bits take."""
    return -(-words // UNIT)
