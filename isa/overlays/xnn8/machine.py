"""The overlay as data: three engines of AIE tiles, each with eight row lanes.

::

    LPDDR, DDR -> W -> Engine0, Engine1, Engine2      for each engine: Rows, Send, Heads
    DDR -> Rows -> Send -> Engine -> Rows -> DDR      X, X8, T and Post are in Rows
           Rows -> Heads -> Engine                    keys and values

The eight lanes of an engine go in step, so a unit Rows, Send or Heads stands for what all of them have. Source:
docs/xnn8.md; off-chip memories, launch and path of instructions are those of xnn.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from ....machine.description import Capability, Rate, Stream, UnitSpec, Where
from ....machine.steps import Step, Steps
from ....machine.token_type import TokenType
from ...fields import Record
from ...layout import UNIT, UNIT_BYTES
from ...overlay import InstructionFormat, Overlay, Transfer, one_uop
from ...versal.off_chip import ChunkBankUnit, ChunkTransfer, addresses, transfer
from ...versal.rates import ISSUING, LINK, MOVING
from .checks import legal, rules
from .engine import (
    CASCADE_US,
    CHUNK_US,
    MAXIMA_US,
    ROUND_US,
    SHARE,
    WEIGHTS_US,
    EngineUnit,
    PanelWeightsUnit,
)
from .formats import (
    CONSTANTS,
    ENGINES,
    LANE_ROWS,
    LANES,
    PAIRS,
    T_CELLS,
    WEIGHT_WORD,
    X_CELLS,
    CacheRows,
    EngineOp,
    OffChipChunks,
    PanelHeads,
    PanelRows,
    PanelSend,
    PanelWeights,
    off_chip_uops,
)
from .functions import TABLES
from .lanes import EXPONENTS, FACTORS, FILLED, FREE, HeadsUnit, SendUnit
from .numbers import BLOCK
from .resources import DEVICE, needs
from .rows import PanelRowsUnit
from .tile_streams import NARROW_BEAT

ROWS = LANES * LANE_ROWS
TOKENS = T_CELLS + X_CELLS
"""Depth of streams of tokens: the most blocks that T and X8 hold."""
CHUNKS = 2
"""Chunks of rows or weights between PL and tiles: the double buffer of a tile."""
WEIGHT_WORDS = 2 * PAIRS
"""Of each memory, in front of W: two chunks."""
VECTORS = 32
"""Constants in front of a lane."""
FILL = 100
SHORT_BLOCK = TokenType(
    "block",
    ROWS,
    BLOCK // 2 + 1,
    1,
    "a word is the rows of a block, of 16 or 8 bits, or 16 rows of T",
)
WEIGHT_TOKEN = TokenType("weights", 1, WEIGHT_WORD, 1, "a word is 64x64 integers of 8 bits")
CONSTANTS_TOKEN = TokenType("constants", 1, CONSTANTS, 1, "a word is two vectors of 64 integers of 16 bits")
CHUNK_TOKEN = TokenType("chunk", 1, 1, 1, "a word is a chunk: of rows, 64 columns of 8 bits; of weights, 64 rows")
SLICE_TOKEN = TokenType("slice", 1, 1, 1, "a word is 32 keys or values of a head, of each lane")
RESULT_TOKEN = TokenType("result", 1, 1, 1, "a word is what the buffers of a pair hold: 64 columns, or half of a head")
TOKEN_TYPE = TokenType("token", 1, 1, 1, "a word says that a block was written, or an operation has ended")
EXPONENTS_TOKEN = TokenType("exponents", 1, PAIRS, 1, "a word is the exponents of the queries of up to eight heads")
FACTORS_TOKEN = TokenType("factors", ROWS, 1, 1, "a word is the factors of the rows of a product")

RATES = {
    **{name: MOVING[name] for name in ("ddr_read_gbs", "ddr_write_gbs", "lpddr_read_gbs", "offchip_uop")},
    "lane_word": Rate(1, "PL cycles", "structure: 128 bit of a stream, or 8 elements of Post", "lanes"),
    "narrow_beat": Rate(NARROW_BEAT, "PL cycles", "structure: 64 bit of a narrow stream, at twice the clock", "lanes"),
    "lane_fill": Rate(FILL, "PL cycles", "assumed: depth of the pipeline of Post", "lanes"),
    "row_factors": Rate(
        1,
        "PL cycles",
        "structure: sums and bounds of a row and block; norms of all lanes, a row a cycle",
        "norm",
    ),
    "chunk_us": Rate(CHUNK_US, "us", f"64x32 by 32x64 on a tile at 1.25 GHz, {SHARE:.0%} of its peak", "products"),
    "cascade_us": Rate(CASCADE_US, "us", "structure: 4096 sums of a pair over the cascade, 8 a cycle", "cascade"),
    "maxima_us": Rate(MAXIMA_US, "us", "largest scores of 32 rows and 32 keys, by instructions", "attention"),
    "weights_us": Rate(WEIGHTS_US, "us", "the same, weights and weighted values, by instructions", "attention"),
    "round_us": Rate(ROUND_US, "us", "beginning and end of a round of 32 rows, by instructions", "attention"),
    **ISSUING,
    **LINK,
}
FORMATS: tuple[tuple[str, type[Record]], ...] = (
    ("DDR", OffChipChunks),
    ("LPDDR", OffChipChunks),
    ("W", PanelWeights),
    ("Rows", PanelRows),
    ("Send", PanelSend),
    ("Heads", PanelHeads),
    ("Engine", EngineOp),
)
"""FU type and record of each format, by opcode from 1 on."""


class PanelBankUnit(ChunkBankUnit):
    """DDR or LPDDR: executes one uOP after another, strictly in order; reading and writing never overlap."""

    def words(self, piece: int) -> tuple[int, int]:
        return 1, 1

    def kernel(self, uop: ChunkTransfer | CacheRows) -> Steps:
        if isinstance(uop, ChunkTransfer):
            yield from super().kernel(uop)
            return
        yield Step("offchip_uop")
        start, pieces = uop.addr * UNIT, uop.size // uop.piece
        if not uop.store:
            yield self.loaded(start, pieces, uop.piece, uop.peers, 1)
        elif uop.row is None:
            yield self.stored(start, pieces, uop.piece, uop.peers[0], 1)
        elif uop.row < pieces:
            yield self.stored(start + uop.row * uop.pitch, 1, uop.piece, uop.peers[0], 1)
        else:
            yield Step(gets=(self.source(uop.peers[0]),))

    def effect_key(self, uop: ChunkTransfer | CacheRows) -> Hashable:
        return uop.size, uop.store, uop.peers, uop.piece


def _transfer(unit: UnitSpec, uop: Any) -> Transfer | None:
    """The off-chip access of a uOP. That of one row of a cache may be anywhere in it."""
    if isinstance(uop, CacheRows) and uop.size:
        return Transfer(str(unit.bank), uop.addr, uop.size, uop.store, partial=uop.row is not None)
    return transfer(unit, uop)


def _units() -> tuple[UnitSpec, ...]:
    per_byte = 1 / 4  # elements; a step of a bandwidth moves a byte
    load = [Capability("load", Where.LOAD, rate=f"{bank}_read_gbs", elements=per_byte) for bank in ("ddr", "lpddr")]
    store = Capability("store", Where.STORE, rate="ddr_write_gbs", elements=per_byte)
    of_lanes = (
        *(Capability(op, Where.SEND) for op in ("layernorm", "rmsnorm")),
        *(Capability(op, Where.RECEIVE) for op in ("bias", "residual", *TABLES, "gate", "rotary")),
    )
    sizes = {"tile_rows": (LANE_ROWS, ROWS), "tile_depth": (BLOCK, BLOCK), "tile_columns": (BLOCK, PAIRS * BLOCK)}
    matmul = Capability("matmul", limits=sizes, rate="chunk_us", elements=ROWS * BLOCK * PAIRS * BLOCK)
    of_tiles = (matmul, Capability("softmax"))
    return (
        UnitSpec("DDR", "DDR", 0, PanelBankUnit, "ddr", capabilities=(load[0], store)),
        UnitSpec("LPDDR", "LPDDR", 0, PanelBankUnit, "lpddr", capabilities=(load[1],)),
        UnitSpec("W", "W", 0, PanelWeightsUnit),
        *(UnitSpec(f"Rows{i}", "Rows", i, PanelRowsUnit, capabilities=of_lanes) for i in range(ENGINES)),
        *(UnitSpec(f"Send{i}", "Send", i, SendUnit) for i in range(ENGINES)),
        *(UnitSpec(f"Heads{i}", "Heads", i, HeadsUnit) for i in range(ENGINES)),
        *(UnitSpec(f"Engine{i}", "Engine", i, EngineUnit, capabilities=of_tiles) for i in range(ENGINES)),
    )


def _streams() -> Iterator[Stream]:
    for bank in ("LPDDR", "DDR"):
        yield Stream(bank, "W", WEIGHT_WORDS, token=WEIGHT_TOKEN)
    for i in range(ENGINES):
        rows, send, heads, engine = (f"{kind}{i}" for kind in ("Rows", "Send", "Heads", "Engine"))
        yield Stream("LPDDR", rows, VECTORS, token=CONSTANTS_TOKEN)
        yield Stream("DDR", rows, 1, token=SHORT_BLOCK)
        yield Stream(rows, "DDR", 1, token=SHORT_BLOCK)
        for reader in (send, heads):
            yield Stream(rows, reader, TOKENS, FILLED, TOKEN_TYPE)
            yield Stream(reader, rows, TOKENS, FREE, TOKEN_TYPE)
        yield Stream(send, rows, CHUNKS, FACTORS, FACTORS_TOKEN)
        for other in range(ENGINES):
            if other != i:
                yield Stream(send, f"Send{other}", 1, EXPONENTS, EXPONENTS_TOKEN)
        yield Stream("W", engine, CHUNKS, token=CHUNK_TOKEN)
        yield Stream(send, engine, CHUNKS, token=CHUNK_TOKEN)
        yield Stream(heads, engine, CHUNKS * PAIRS, token=SLICE_TOKEN)
        yield Stream(engine, rows, PAIRS, token=RESULT_TOKEN)
        yield Stream(rows, engine, 1, token=TOKEN_TYPE)


def _format(opcode: int, kind: str, record: Any) -> InstructionFormat:
    off_chip = record is OffChipChunks
    more: dict[str, Any] = {"uops": one_uop}
    if off_chip:
        more = {"uops": off_chip_uops, "addresses": addresses, "inside": frozenset({"row"})}
    return InstructionFormat(kind, opcode, kind, record, loops_window=True, decode_cycles=8, **more)


XNN8 = Overlay(
    name="xnn8",
    units=_units(),
    streams=tuple(_streams()),
    clock_hz=220e6,
    uop_fifo_depth=4,  # of shift registers, two to a LUT; two words would be registers
    formats=tuple(_format(opcode, kind, record) for opcode, (kind, record) in enumerate(FORMATS, 1)),
    rates=RATES,
    terminators=tuple(kind for kind, _ in FORMATS),
    banks={"ddr": 8 << 30, "lpddr": 8 << 30},
    address_unit=UNIT,
    image_bytes=512 << 10,
    max_bank_bytes=(OffChipChunks.field("addr").bounds[1] + 1) * UNIT_BYTES,
    legal=legal,
    transfer=_transfer,
    semantic_checks=rules,
    integers=True,
    device=DEVICE,
    resources=needs,
)
