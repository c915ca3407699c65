"""The overlay as data: six lanes of rows, in three pairs.

::

    LPDDR -> W0, W1 --> MeshB -> MME <- MeshA <-- X, T        each lane: X, T, MeshA, MeshB, MME, C, Post
             K, V  --^            |                           each pair: Softmax
                                  C -> X; Softmax -> T; Post -> T, K, V, DDR

X holds the rows of a lane: 128 rows, two banks of 1024 columns. T holds tiles that live for a short time. Source:
docs/xnn2.md; what is taken from XNN (MMEs, off-chip memories, clock) has XNN's rates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from ....base.errors import ProgramError
from ....machine.description import Capability, Memory, Rate, Stream, UnitSpec, Where
from ....machine.resources import VC1902
from ....machine.token_type import TokenType
from ...fields import Record
from ...lanes import RowLanes, Weight
from ...layout import UNIT, UNIT_BYTES
from ...overlay import InstructionFormat, OpList, Overlay, one_uop
from ...versal.mme import HALF_MODES, MATMUL_SIZES, MAX_OPS
from ...versal.off_chip import ChunkTransfer, addresses, transfer
from ...versal.off_chip import legal as legal_chunk
from ...versal.rates import ISSUING, LINK, MOVING
from ...versal.tiles import BEAT, BEATS, BLOCK_TOKEN, BLOCK_WORDS, TILE
from . import mesh, mme, off_chip, operands, results, rows, scratch
from .checks import rules
from .cycles import LOOPS, costs
from .mesh import LaneMeshA, LaneMeshB, LaneMeshUnit, left_sources, right_sources
from .mme import LaneMme, LaneMmeUnit, flops, repeat
from .off_chip import DDR_SINKS, DDR_SOURCES, LaneBankUnit, LaneDdr, LaneLpddr
from .operands import KV, LANES, OF_PORT, KvIn, KvInUnit, KvOut, KvOutUnit, W, WUnit, writer_of
from .ports import FILLED, FREE, PIECE, TILE_TOKEN, TILE_WORDS, TOKENS
from .resources import needs
from .results import ACTIVATIONS, VECTOR_WORDS, C, CUnit, Post, PostUnit, Soft, SoftUnit
from .rows import BANKS, COLUMNS, XIn, XInUnit, XOut, XOutUnit, XStore, XStoreUnit
from .scratch import END_WORDS, ENDS, TIn, TInUnit, TOut, TOutUnit

PAIRS = LANES // 2
TOKEN_TYPE = TokenType("token", 1, 1, 1, "a word says that a tile was written, or an operation has ended")
VECTOR_TOKEN = TokenType("vector", 1, TILE, VECTOR_WORDS, f"{VECTOR_WORDS} words of 1024 bit make 128 elements")
ROWS_TOKEN = TokenType("statistics", TILE, 3, TILE, "a word is the statistics of a row")
ENDS_TOKEN = TokenType("ends", TILE, 2, END_WORDS, "a word is the last maxima and the sums of four rows")
TABLE_TOKEN = TokenType("table", TILE, TILE, BEATS, f"{BEATS} words of 1024 bit make a tile of numbers, row by row")
VECTORS = 4
"""Vectors on their way to C of a lane: biases and scales of two column tiles. LPDDR sends those of a column tile before
its weights."""
W1_BLOCKS = 4
"""Blocks from DDR that wait for W1: DDR does one access after another, and in mode P3 a program can deadlock with
less."""
STORES = 4
"""Depth of the streams between X and its second read port."""
X_SLOTS, KV_SLOTS = BANKS * COLUMNS, 12
T_SLOTS = (8, 16)
"""Tiles of T of an even and an odd lane."""

RATES = {
    **MOVING,
    **ISSUING,
    **LINK,
    "mme_setup_us": Rate(
        3.0, "us", "XNN's, fitted on its square GEMMs; here assumed at a change of mode", "MME set-up", True
    ),
    "softmax_beat": Rate(1, "PL cycles", "structure: 32 exps a cycle and pair", "post-op"),
    "activation_beat": Rate(
        LOOPS["activation"].rounds, "PL cycles", "structure: 2 elements a cycle and lane", "post-op"
    ),
    "rotate_beat": Rate(LOOPS["rotate"].rounds, "PL cycles", "structure: 2 elements a cycle and lane", "post-op"),
    "softcap_beat": Rate(LOOPS["softcap"].rounds, "PL cycles", "structure: 2 elements a cycle and pair", "post-op"),
}
FORMATS: tuple[tuple[str, type[Record]], ...] = (
    ("DDR", LaneDdr),
    ("LPDDR", LaneLpddr),
    ("W", W),
    ("KvIn", KvIn),
    ("KvOut", KvOut),
    ("XIn", XIn),
    ("XOut", XOut),
    ("XStore", XStore),
    ("TIn", TIn),
    ("TOut", TOut),
    ("MeshA", LaneMeshA),
    ("MeshB", LaneMeshB),
    ("C", C),
    ("Post", Post),
    ("Soft", Soft),
)
"""FU type and record of each format, by opcode from 1 on."""


def _units() -> tuple[UnitSpec, ...]:
    def lanes(kind: str, behaviour: Any, **more: Any) -> list[UnitSpec]:
        return [UnitSpec(f"{kind}{i}", kind, i, behaviour, **more) for i in range(LANES)]

    of_rows = Memory(TILE, TILE, slots=X_SLOTS)
    of_tiles = [Memory(TILE, TILE, slots=T_SLOTS[i & 1]) for i in range(LANES)]
    heads = Memory(TILE, TILE // 2, slots=OF_PORT * KV_SLOTS)
    matmul = Capability("matmul", limits=MATMUL_SIZES, rate="mme_tile_us", elements=TILE**3)
    per_byte = 1 / 4  # elements; a step of a bandwidth moves a byte
    load = [Capability("load", Where.LOAD, rate=f"{bank}_read_gbs", elements=per_byte) for bank in ("ddr", "lpddr")]
    store = Capability("store", Where.STORE, rate="ddr_write_gbs", elements=per_byte)
    norms = tuple(Capability(op, Where.SEND) for op in ("layernorm", "rmsnorm"))
    sums = tuple(Capability(op, Where.RECEIVE) for op in ("bias", "residual", "scale"))
    functions = (
        *(Capability(op, rate="activation_beat", elements=BEAT) for op in ACTIVATIONS),
        *(Capability(op, rate="rotate_beat", elements=BEAT) for op in ("rotary", "head_norm")),
        Capability("gate"),
    )
    softmax = Capability("softmax", rate="softmax_beat", elements=BEAT)
    masks = (
        *(Capability(op) for op in ("mask", "causal", "window")),
        Capability("softcap", rate="softcap_beat", elements=BEAT),
    )
    return (
        UnitSpec("DDR", "DDR", 0, LaneBankUnit, "ddr", capabilities=(load[0], store)),
        UnitSpec("LPDDR", "LPDDR", 0, LaneBankUnit, "lpddr", capabilities=(load[1],)),
        *(UnitSpec(f"W{i}", "W", i, WUnit) for i in range(2)),
        *(UnitSpec(f"KvIn{i}", "KvIn", i, KvInUnit, memory=heads) for i in range(KV // OF_PORT)),
        *(UnitSpec(f"KvOut{i}", "KvOut", i, KvOutUnit) for i in range(KV)),
        *lanes("XIn", XInUnit, memory=of_rows),
        *lanes("XOut", XOutUnit, capabilities=norms),
        *lanes("XStore", XStoreUnit),
        *(UnitSpec(f"TIn{i}", "TIn", i, TInUnit, memory=of_tiles[i]) for i in range(LANES)),
        *lanes("TOut", TOutUnit),
        *lanes("MeshA", LaneMeshUnit),
        *lanes("MeshB", LaneMeshUnit),
        *lanes("MME", LaneMmeUnit, capabilities=(matmul, *HALF_MODES)),
        *lanes("C", CUnit, capabilities=sums),
        *lanes("Post", PostUnit, capabilities=functions),
        *(UnitSpec(f"Soft{i}", "Soft", i, SoftUnit, capabilities=(softmax, *masks)) for i in range(PAIRS)),
    )


def _streams() -> tuple[Stream, ...]:
    out: list[Stream] = []

    def tiles(source: str, sink: str, fifo: int = 0) -> None:
        out.append(Stream(source, sink, fifo * TILE_WORDS or 1, token=TILE_TOKEN))

    def blocks(source: str, sink: str, fifo: int = 0) -> None:
        out.append(Stream(source, sink, fifo * BLOCK_WORDS or PIECE, token=BLOCK_TOKEN))

    for sink in DDR_SINKS:
        blocks("DDR", sink, W1_BLOCKS if sink == "W1" else 0)
    for source in DDR_SOURCES:
        blocks(source, "DDR")
    for i in range(2):
        blocks("LPDDR", f"W{i}")
    ports = [(f"{kind}In{i}", f"{kind}Out{i}") for kind in "XT" for i in range(LANES)]
    for writer, reader in (*ports, *((writer_of(kv), f"KvOut{kv}") for kv in range(KV))):
        out.append(Stream(writer, reader, TOKENS, FILLED, TOKEN_TYPE))
        out.append(Stream(reader, writer, TOKENS, FREE, TOKEN_TYPE))
    for i in range(LANES):
        out.append(Stream(f"XIn{i}", f"XStore{i}", STORES, FILLED, TOKEN_TYPE))
        out.append(Stream(f"XStore{i}", f"XIn{i}", STORES, FREE, TOKEN_TYPE))
        out.append(Stream("LPDDR", f"C{i}", VECTORS * VECTOR_WORDS, token=VECTOR_TOKEN))
        out.append(Stream("LPDDR", f"Post{i}", PIECE, token=TABLE_TOKEN))
        for source in left_sources(i):
            tiles(source, f"MeshA{i}")
        for source in right_sources(i):
            tiles(source, f"MeshB{i}")
        for switch in ("MeshA", "MeshB"):
            tiles(f"{switch}{i}", f"MME{i}", 2)
        tiles(f"MME{i}", f"C{i}", 2)
        tiles(f"C{i}", f"Post{i}", 1)  # the second factor of a gate waits there
        tiles(f"C{i}", f"XIn{i}")
        # X puts its token when all of an operation has gone to C, and C may wait for X to write to a slot of that
        tiles(f"XOut{i}", f"C{i}", 1)
        out.append(Stream(f"XOut{i}", f"XOut{i ^ 1}", TILE, "norm", ROWS_TOKEN))
        tiles(f"TOut{i | 1}", f"XIn{i}")
        for lane in range(i & ~1, i + 1):
            tiles(f"Post{i}", f"TIn{lane}")
        for k in range(KV // OF_PORT):
            tiles(f"Post{i}", f"KvIn{k}")
    for i in range(PAIRS):
        tiles(f"C{2 * i}", f"Soft{i}")
        tiles(f"Soft{i}", f"TIn{2 * i + 1}")
        out.append(Stream(f"Soft{i}", f"TIn{2 * i + 1}", END_WORDS, ENDS, ENDS_TOKEN))
    return tuple(out)


_LEGAL: Mapping[type, Callable[[UnitSpec, Any], Iterator[str]]] = {
    ChunkTransfer: legal_chunk,
    W: operands.legal_w,
    LaneMeshA: mesh.legal,
    LaneMeshB: mesh.legal,
    LaneMme: mme.legal,
    C: results.legal_c,
    Post: results.legal_post,
    Soft: results.legal_soft,
}
_LEGAL_PORTS: Mapping[type, Callable[[UnitSpec, Any, int], Iterator[str]]] = {
    XIn: rows.legal_in,
    XOut: rows.legal_out,
    XStore: rows.legal_store,
    TIn: scratch.legal_in,
    TOut: scratch.legal_out,
    KvIn: operands.legal_kv_in,
    KvOut: operands.legal_kv_out,
}
"""Of ports: they need the slots of their memory."""


def legal(lanes: RowLanes, unit: UnitSpec, uop: Any) -> Iterator[str]:
    """Yield the reasons why a unit cannot execute a uOP whose fields are all in range. A type of uOP without rules
    gives none. lanes: of the overlay."""
    kind = type(uop)
    if kind in _LEGAL_PORTS:
        yield from _LEGAL_PORTS[kind](unit, uop, slots_of(lanes, unit))
    elif kind in _LEGAL:
        yield from _LEGAL[kind](unit, uop)


def slots_of(lanes: RowLanes, port: UnitSpec) -> int:
    """Return the number of slots of the memory that a port writes or reads. lanes: of the overlay. port: of an X, a T,
    a K or a V.
    """
    match port.kind[0]:
        case "X":
            return BANKS * lanes.columns
        case "T":
            return lanes.scratch[port.index & 1]
    return lanes.heads


def lint(mop: Any) -> Iterator[str]:
    """Yield warnings on fields of a mOP, or of an op of an MME, that the unit ignores."""
    match mop:
        case LaneLpddr(to=Weight.W0 | Weight.W1) if mop.lanes:
            yield "weights go to W0 or W1; lanes is ignored"
        case KvIn(source=operands.FROM_DDR) if mop.second:
            yield "blocks from DDR come one by one; second is ignored"
        case XIn(tiles=0) if mop.add or mop.statistics or mop.columns:
            yield "takes no tiles; add, statistics and columns are ignored"
        case XIn(statistics=0) if mop.columns:
            yield "makes no statistics; columns is ignored"
        case XOut() | XStore():
            if mop.rms and not mop.normalise:
                yield "does not normalise; rms is ignored"
            if mop.normalise and not mop.tiles:
                yield "sends no tiles; normalise is ignored"
        case TIn(tiles=0) if mop.part:
            yield "takes no tiles; part is ignored"
        case TOut(tiles=0) if mop.part or mop.weights:
            yield "sends no tiles; part and weights are ignored"
        case LaneMme() if mop.length and mop != LaneMme(length=mop.length, times=mop.times):
            yield "a repeat makes no results itself; all fields but length and times are ignored"
        case Post(norm=0) if mop.rms or mop.columns:
            yield "normalises no heads; rms and columns are ignored"
        case Soft():
            if mop.offset and not mop.causal:
                yield "not causal; offset is ignored"
            if mop.low and not mop.windowed:
                yield "not windowed; low is ignored"


def refit(overlay: Overlay) -> Overlay:
    """Return the overlay with the lanes that its changed memories make. Raises `ProgramError` for memories that are not
    alike, for sizes that no field can say, and for more or fewer units than xnn2 has.
    """
    for kind, units in XNN2.by_kind.items():
        left = len(overlay.by_kind.get(kind, ()))
        if left != len(units):
            raise ProgramError(f"units.{kind} = {left}: the lanes need {len(units)}; memories alone can change")
    of = overlay.by_kind
    rows = _slots("X", of["XIn"])
    if rows % BANKS:
        raise ProgramError(f"memories.XIn.slots = {rows}: must be a multiple of {BANKS}, the banks of X")
    scratch = _slots("T of an even lane", of["TIn"][::2]), _slots("T of an odd lane", of["TIn"][1::2])
    heads = _slots("K or V", of["KvIn"])
    if heads % OF_PORT:
        raise ProgramError(f"memories.KvIn.slots = {heads}: must be a multiple of {OF_PORT}, the memories of K or V")
    lanes = dataclasses.replace(_LANES, columns=rows // BANKS, scratch=scratch, heads=heads // OF_PORT)
    return dataclasses.replace(overlay, lanes=lanes, legal=partial(legal, lanes))


def _slots(what: str, units: tuple[UnitSpec, ...]) -> int:
    """Slots of the memories of some units. Raises `ProgramError` if they are not alike, or for impossible sizes."""
    kind = units[0].kind
    memory, ships = (u.memory for u in (units[0], XNN2.by_unit[units[0].name]))
    assert memory is not None
    assert ships is not None
    if any(u.memory != memory for u in units):
        raise ProgramError(f"memories.{kind}: {', '.join(u.name for u in units)} must have the same size")
    if dataclasses.replace(memory, slots=ships.slots) != ships:
        raise ProgramError(f"memories.{kind}: a slot of {what} has {ships.rows}x{ships.columns}, as a tile of an MME")
    most = 1 << dict(FORMATS)[kind].field("slot").width
    if memory.slots > most:
        raise ProgramError(f"memories.{kind}.slots = {memory.slots}: instructions can say {most} slots of {what}")
    return memory.slots


def _format(opcode: int, kind: str, record: Any) -> InstructionFormat:
    off = {"DDR": off_chip.ddr_uops, "LPDDR": off_chip.lpddr_uops}
    more: dict[str, Any] = {"uops": off[kind], "addresses": addresses} if kind in off else {"uops": one_uop}
    return InstructionFormat(kind, opcode, kind, record, loops_window=True, decode_cycles=8, **more)


_LANES = RowLanes("lpddr", "ddr", LANES, COLUMNS, T_SLOTS, KV_SLOTS)
XNN2 = Overlay(
    name="xnn2",
    units=_units(),
    streams=_streams(),
    clock_hz=260e6,
    formats=tuple(_format(opcode, kind, record) for opcode, (kind, record) in enumerate(FORMATS, 1)),
    rates=RATES,
    terminators=tuple(kind for kind, _ in FORMATS),
    preloaded={"MME": OpList(LaneMme, MAX_OPS, repeat)},
    banks={"ddr": 8 << 30, "lpddr": 8 << 30},
    address_unit=UNIT,
    image_bytes=512 << 10,
    max_bank_bytes=(LaneDdr.field("addr").bounds[1] + 1) * UNIT_BYTES,
    legal=partial(legal, _LANES),
    lint=lint,
    transfer=transfer,
    semantic_checks=rules,
    flops=flops,
    lanes=_LANES,
    refit=refit,
    device=VC1902,
    resources=needs,
    costs=costs,
)
