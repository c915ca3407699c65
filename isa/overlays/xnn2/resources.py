"""What each part of xnn2 takes of a VC1902, by the same counts as XNN (`isa/versal/logic.py`).

Nobody has synthesised it. This counts the sources in hw/versal/xnn2:

- Memories: the slots of a memory lie one behind the other in two RAMs of 512 bit, or in eight of 128 where it is read
  transposed.
- Streams: the units are processes of one kernel, and a stream between them is a FIFO of HLS, as deep as the overlay
  says; four beats if that says that it has none. Streams to and from MMEs are ports of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ....machine.description import Stream, UnitSpec, memory_of
from ....machine.resources import Need
from ...overlay import Overlay
from ...versal.logic import (
    FLOAT,
    SRL_DEPTH,
    TILES_PER_MME,
    UNIT,
    WORD_BITS,
    LoopWork,
    arithmetic,
    axi_ports,
    block_rams,
    cells_of,
    control,
    crossbars,
    fifo,
    instruction_path,
    instruction_streams,
    lut_ram,
    multiplexer,
    register_slice,
    ultra_rams,
)
from ...versal.logic import stream as fifo_needs
from ...versal.pieces import NO_CELLS
from ...versal.tiles import BEAT, BEATS, TILE
from ...versal.tiles import LANES as PLIOS
from .cycles import LOOPS
from .off_chip import DDR_SOURCES
from .operands import OF_PORT
from .ports import STREAM_BEATS, has_fifo
from .rows import BANKS
from .scratch import GROUPS

HALVES = 2
"""RAMs of 512 bit that a word is spread over: a word of a block is a part of a row, a beat is four rows of eight."""
TRANSPOSED = 8
"""RAMs of 128 bit of a memory that is read transposed."""
WORD_ROWS = 2
"""Rows of a word of a block."""
ROW_BANKS = 4
"""A beat has four rows, so numbers of rows lie in as many memories."""

EIGHT = BEAT // ROW_BANKS * FLOAT
"""Bits of the eight columns that a row of a beat has."""
COLUMNS = LoopWork("load", "vectors of columns", choices=((WORD_BITS // EIGHT, EIGHT),), kept=WORD_BITS)
"""A number for each column comes in words, and is kept for eight columns side by side."""
TABLE = LoopWork("table", "rotation in Post")

# What the loops of hw/versal/xnn2 compute for one beat, or for a row.
ROWS = (
    LoopWork("rows", "sums in X", {"add": 32}, choices=((2, WORD_BITS),)),
    LoopWork(
        "statistics",
        "statistics in X",
        {"mask": 16, "add in fabric": 2, "add": 78 + 2 * 4, "mul": 16 + 2, "madd": 16 + 2},
        choices=((2, 2 * FLOAT), (8, 4 * FLOAT), (4, 2 * FLOAT)),
        kept=2 * (2 * WORD_BITS // 2 + ROW_BANKS * FLOAT),
    ),
    LoopWork("rows", "statistics in X", {"add": 3, "mul": 2, "madd": 2, "div": 1}),
)
"""Statistics: of each element what it is apart from the first one of its 32 columns, some of these in the fabric; of
eight, a sum and a sum of squares; one in a round, sums of four of those, and from them mean and squares. Those of a row
are joined with those of its other columns."""
NORM = LoopWork("send", "norm in X", {"madd": 32}, choices=((2, 2 * ROW_BANKS * FLOAT),))
FACTORS = LoopWork("factors", "norm in X", {"mul": 2, "madd": 2, "sqrt": 1, "reciprocal": 2})
ROWS_OUT = (NORM, FACTORS)
COUNTED = LoopWork("store", "norm of rows that are stored", {"reciprocal": 1}, choices=((4, 2 * 2 * FLOAT),))
NORM_STORED = LoopWork(
    "port",
    "norm of rows that are stored",
    {"madd": 32 + 2 * 2, "mul": 2 * 2, "sqrt": 2, "reciprocal": 2},
    choices=((2, 2 * WORD_ROWS * FLOAT),),
)
WEIGHTS = (
    LoopWork(
        "send",
        "last factors in T",
        {"mul": 32, "add": 1, "exp": 1, "div": 1},
        choices=((2, 2 * ROW_BANKS * FLOAT), (4, 3 * FLOAT)),
        kept=2 * 2 * ROW_BANKS * FLOAT,
    ),
)
SUMS = (
    LoopWork(
        "combine",
        "sums in C",
        {"add": 32, "madd": 32},
        choices=((2, 3 * WORD_BITS // 2), (2, 2 * WORD_BITS)),
    ),
)
"""Of 16 elements: whether there is a result, a bias, a scale, a residual. The residual moves past the operators, as the
result does; what leaves is the sum or the result."""
FUNCTIONS = (
    LoopWork(
        "activation", "activation in Post", {"mul": 64, "madd": 192, "add": 32, "exp": 32, "div": 32}, kept=WORD_BITS
    ),
    LoopWork("activation", "gate in Post", {"mul": 32}),
    LoopWork(
        "rotate",
        "rotation in Post",
        {"mul": 64, "madd": 64},
        choices=((32, 2 * FLOAT), (4, 2 * FLOAT), (8, 2 * FLOAT)),
        kept=3 * WORD_BITS + EIGHT,
    ),
    LoopWork(
        "head_sums",
        "norm of heads in Post",
        {"add": 40, "mul": 8, "madd": 24},
        choices=((8, 2 * FLOAT), (2, 4 * FLOAT)),
    ),
    LoopWork("head_factors", "norm of heads in Post", {"mul": 2, "madd": 1, "sqrt": 1, "reciprocal": 2}),
)
"""A rotation applies the norm of heads and the gains as well: it chooses a cosine, a sine, two gains, and the norm of
its row and head."""
PROBABILITIES = (
    LoopWork(
        "softmax",
        "softmax",
        {"mask": 32, "bound": 2, "compare": 32, "exp": 33, "add": 65, "madd": 1},
        choices=((4, 2 * WORD_BITS), (4, 2 * FLOAT)),
        kept=4 * WORD_BITS,
    ),
    LoopWork(
        "softcap",
        "soft cap",
        {"mul": 32, "exp": 32, "add in fabric": 48, "add": 16, "div": 32},
        choices=((2, WORD_BITS),),
        kept=WORD_BITS,
    ),
)
"""A maximum that grows takes an exp more, and a product with the sum so far. A row of 32 columns is chosen among four,
and the beat that leaves. Most sums of the soft cap are made of LUTs: DSPs are scarcer."""

TAKE, SEND, STORE = LoopWork("take", "", writes=1), LoopWork("send", "", reads=1), LoopWork("store", "", reads=1)
WORDS_IN = LoopWork("load", "", writes=1)
ROW_PORTS = (LoopWork("rows", "", reads=3, writes=1),)
HEAD_PORTS = (TAKE, WORDS_IN, *OF_PORT * (SEND,))
"""Ports of a memory: of X, in the process that holds it, those for XIn, XOut and XStore; of K or V that of KvIn, which
takes beats or words, and one KvOut of each memory."""
POST_PORTS = (
    TAKE,
    LoopWork("head_sums", "", reads=1),
    LoopWork("rotate", "", reads=1, writes=1),
    LoopWork("activation", "", reads=1, writes=1),
    SEND,
    STORE,
)
TABLE_PORTS = (LoopWork("table", "", writes=1), LoopWork("rotate", "", reads=2))


def needs(overlay: Overlay) -> Iterator[Need]:
    """Yield the resources that the machine takes: unit by unit, then streams, ports and the instruction path. Raises
    `ProgramError` if a write port has no memory."""
    for unit in overlay.units:
        if unit.kind in UNITS:
            yield from UNITS[unit.kind](unit)
        if unit.kind == "MME":
            yield Need("AIE", TILES_PER_MME, "MMEs")
        else:
            yield from ends(overlay, unit)
    for stream in overlay.streams:
        yield from fifo_of(overlay, stream)
    yield from axi_ports()
    yield from instruction_path(overlay)
    yield from instruction_streams(overlay)


# -- memories


def rams(words: int, halves: int = HALVES, *, ultra: bool = False) -> int:
    """Return the RAM blocks of a memory of `words` words of 1024 bit. A word is split evenly among `halves` RAMs.
    ultra: UltraRAM, else block RAM.
    """
    return halves * (ultra_rams if ultra else block_rams)(WORD_BITS // halves, words)


def words_of(unit: UnitSpec) -> int:
    """Return the words of 1024 bit of all slots of a unit's memory. Raises `ProgramError` if the unit has none."""
    memory = memory_of(unit)
    return memory.slots * memory.rows * memory.columns // BEAT


ANSWERS = 16
"""Answers that the FIFOs between a port of X and its memories hold (`answers_depth` in memories.h)."""
PLACE_BITS = 26
"""Of a place in a bank: two addresses of 12 bits, the bank, and the order of the two cells."""
STATISTIC_BITS, ROW_BITS = 3 * FLOAT, 9
"""Of the statistics of a row; of its number, its bank, and a mark of the end."""


def _rows_in(unit: UnitSpec) -> Iterator[Need]:
    """X has a RAM for each of its two banks, so that one is stored while the other is read. Of each row and bank it
    keeps number of columns, mean and squares. What its ports ask of these memories goes over streams."""
    yield Need("URAM", BANKS * rams(words_of(unit) // BANKS, ultra=True), "rows in X")
    yield from cells_of("statistics in X", lut_ram(STATISTIC_BITS, BANKS * TILE))
    yield from loops(ROWS)
    yield from cells_of("crossbars of X", crossbars(ROW_PORTS, HALVES, BANKS))
    written = fifo(WORD_BITS + PLACE_BITS, STREAM_BEATS) + fifo(STATISTIC_BITS + ROW_BITS, STREAM_BEATS)
    yield from cells_of("streams in X", written + fifo(WORD_BITS, ANSWERS))


def _asking(unit: UnitSpec) -> Iterator[Need]:
    """A port that reads X asks for places and rows, and gets words and statistics."""
    asked = fifo(PLACE_BITS, STREAM_BEATS) + fifo(ROW_BITS, STREAM_BEATS)
    yield from cells_of("streams in X", asked + fifo(WORD_BITS, ANSWERS) + fifo(STATISTIC_BITS, ANSWERS))


def _rows_out(unit: UnitSpec) -> Iterator[Need]:
    """What a read port of X needs: memory for two factors of each row, and the loops that apply them."""
    yield from cells_of("norm in X", 2 * ROW_BANKS * lut_ram(FLOAT, TILE // ROW_BANKS))
    yield from cells_of("streams in X", fifo(STATISTIC_BITS + ROW_BITS, STREAM_BEATS))
    yield from _asking(unit)
    yield from loops(ROWS_OUT)


def _rows_stored(unit: UnitSpec) -> Iterator[Need]:
    """The statistics of all rows are read before; those of two rows go to DDR with each word."""
    yield from cells_of("norm of rows that are stored", 2 * ROW_BANKS * lut_ram(FLOAT, TILE // ROW_BANKS))
    yield from _asking(unit)
    yield from loops((COUNTED,))


def _ddr(unit: UnitSpec) -> Iterator[Need]:
    """Rows are stored one lane after another, so one set of operators normalises them, by the statistics that come with
    each word."""
    lanes = sum(x.startswith("XStore") for x in DDR_SOURCES)
    yield from cells_of("norm of rows that are stored", multiplexer(lanes, 2 * WORD_ROWS * FLOAT))
    yield from loops((NORM_STORED,))


def _tiles_in(unit: UnitSpec) -> Iterator[Need]:
    """T. That of an odd lane keeps a maximum of each row and group of 32 columns beside each tile, and the last maximum
    and sum of each row beside the first tile of a head."""
    yield Need("URAM", rams(words_of(unit), ultra=True), "tiles in T")
    odd = unit.index & 1
    yield from cells_of("crossbars of T", crossbars((TAKE, *(WORDS_IN,) * odd, SEND), HALVES, 1))
    if odd:
        of_rows = memory_of(unit).slots * TILE // ROW_BANKS
        yield Need("BRAM", ROW_BANKS * block_rams(FLOAT, of_rows * GROUPS), "maxima of rows in T")
        yield Need("BRAM", 2 * ROW_BANKS * block_rams(FLOAT, of_rows), "last factors in T")
        yield from loops(WEIGHTS)


def _heads_in(unit: UnitSpec) -> Iterator[Need]:
    """The memories of K are read transposed. Each has a read port."""
    halves = HALVES if unit.index else TRANSPOSED
    blocks = OF_PORT * rams(words_of(unit) // OF_PORT, halves, ultra=True)
    yield Need("URAM", blocks, "values" if unit.index else "keys")
    yield from cells_of("crossbars of K and V", crossbars(HEAD_PORTS, halves, 1))


def _weights(unit: UnitSpec) -> Iterator[Need]:
    yield Need("BRAM", 2 * rams(BEATS), "tiles in W")
    yield from cells_of("crossbars of W", crossbars((WORDS_IN, SEND), HALVES, 2))


def _post(unit: UnitSpec) -> Iterator[Need]:
    """A tile, for norms of heads and because DDR takes its words in another order; and a table of cosines and sines,
    whose lines of even rows wait. Numbers of the rows of two heads. Gains of the columns."""
    yield Need("BRAM", rams(BEATS), "tiles in Post")
    yield Need("BRAM", rams(BEATS), "tables in Post")
    yield from cells_of("crossbars of Post", crossbars(POST_PORTS, HALVES, 1) + crossbars(TABLE_PORTS, HALVES, 1))
    yield from cells_of("norm of heads in Post", 2 * 2 * ROW_BANKS * lut_ram(FLOAT, TILE // ROW_BANKS))
    yield from cells_of("rotation in Post", lut_ram(WORD_BITS // HALVES, 2 * TILE * FLOAT // WORD_BITS * HALVES))
    yield from cells_of(COLUMNS.part, lut_ram(EIGHT, TILE * FLOAT // EIGHT))
    yield from loops((COLUMNS, TABLE, *FUNCTIONS))


def _results(unit: UnitSpec) -> Iterator[Need]:
    """C keeps a bias and a scale of a column tile."""
    yield from cells_of(COLUMNS.part, 2 * lut_ram(EIGHT, TILE * FLOAT // EIGHT))
    yield from loops((COLUMNS, *SUMS))


def _softmax(unit: UnitSpec) -> Iterator[Need]:
    """Maxima and sums of the rows of a head."""
    yield from cells_of("softmax", 2 * ROW_BANKS * lut_ram(FLOAT, TILE // ROW_BANKS))
    yield from loops(PROBABILITIES)


def loops(works: Sequence[LoopWork]) -> Iterator[Need]:
    """Yield the resources that loops take to compute. works: those with the same `loop` are one loop, whose control
    counts once. Raises `KeyError` for an unknown loop."""
    seen = set[str]()
    for work in works:
        loop = LOOPS[work.loop]
        dsp, cells = arithmetic(loop, work)
        if dsp:
            yield Need("DSP", dsp, work.part, True)
        yield from cells_of(work.part, cells + (work.loop not in seen) * control(loop))
        seen.add(work.loop)


UNITS: Mapping[str, Callable[[UnitSpec], Iterator[Need]]] = {
    "W": _weights,
    "KvIn": _heads_in,
    "XIn": _rows_in,
    "XOut": _rows_out,
    "XStore": _rows_stored,
    "DDR": _ddr,
    "TIn": _tiles_in,
    "C": _results,
    "Post": _post,
    "Soft": _softmax,
}
"""What the units of a kind have inside. Read ports of T, K and V count with their write ports."""


# -- streams

TOGETHER = {"C": ("MME", "XOut", "LPDDR"), "Post": ("C", "LPDDR")}
"""Kinds of units whose words go to different places of a unit; other units choose among all that come."""


BESIDE = {("Soft", "TIn"): ROW_BANKS * FLOAT, ("XStore", "DDR"): (3 + 2 * WORD_ROWS) * FLOAT}
"""Bits that go beside a beat or word: the maxima of its rows; numbers for the norm, and statistics of its rows."""


def is_wide(stream: Stream) -> bool:
    """Whether a stream carries words of 1024 bit; others carry tokens and statistics of rows."""
    return stream.token.word_elements >= BEAT and stream.token.rows * stream.token.columns >= TILE and not stream.label


def ends(overlay: Overlay, unit: UnitSpec) -> Iterator[Need]:
    """Yield the resources of the state of a unit, and of the multiplexers behind the streams to it."""
    sources = [overlay.by_unit[s.src].kind for s in overlay.streams if s.dst == unit.name and is_wide(s)]
    inputs = [sources.count(kind) for kind in TOGETHER[unit.kind]] if unit.kind in TOGETHER else [len(sources)]
    yield from cells_of("state of units", UNIT)
    yield from cells_of(f"choice of sources in {unit.kind}", sum((multiplexer(n, WORD_BITS) for n in inputs), NO_CELLS))


def fifo_of(overlay: Overlay, stream: Stream) -> Iterator[Need]:
    """Yield the resources of the FIFO of a stream: cells or block RAM, by its width and depth. A stream to or from an
    MME takes ports instead."""
    source, sink = overlay.by_unit[stream.src], overlay.by_unit[stream.dst]
    part = f"streams {source.kind}->{sink.kind}"
    if "MME" in (source.kind, sink.kind):
        yield Need("PLIO in" if sink.kind == "MME" else "PLIO out", PLIOS, part)
        yield from cells_of("ports to and from MMEs", register_slice(WORD_BITS))
    elif not is_wide(stream):
        # tokens are counted; of statistics a row goes at a time, of the ends of a head four
        bits = stream.token.word_elements * (FLOAT if stream.token.rows > 1 else 1)
        held = lut_ram(bits, stream.depth) if bits > 1 and stream.depth > SRL_DEPTH else NO_CELLS
        yield from cells_of("streams of tokens and statistics", held + fifo(bits, min(stream.depth, SRL_DEPTH)))
    else:
        yield from fifo_needs(part, *size_of(overlay, stream))


def size_of(overlay: Overlay, stream: Stream) -> tuple[int, int]:
    """Return the bits of a word of a wide stream, and the number of words that it holds."""
    kinds = overlay.by_unit[stream.src].kind, overlay.by_unit[stream.dst].kind
    words = stream.depth * stream.token.word_elements // BEAT if has_fifo(stream) else STREAM_BEATS
    return WORD_BITS + BESIDE.get(kinds, 0), words


def in_shift_register(overlay: Overlay, stream: Stream) -> bool:
    """Whether a wide stream is so short that it is a shift register."""
    return is_wide(stream) and size_of(overlay, stream)[1] <= SRL_DEPTH
