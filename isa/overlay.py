"""An overlay as data: a machine, its instruction formats, and how its decoders expand them.

A unit that packets do not drive holds an op list before the run. An entry of it may be a *repeat*. It does nothing
itself: the `length` entries before it run `times` more times, then the unit goes on behind the repeat. Repeats are not
nested, so a unit needs one counter and no stack.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from ..base.errors import ProgramError
from ..machine.description import FREE, StreamNetwork, UnitSpec, checked_depth
from .fields import Record
from .layout import Layout, padded

if TYPE_CHECKING:
    from ..base.finding import Finding
    from ..machine.resources import Chip, Deviation, Need, OperationTime
    from .expansion import ExpandedProgram
    from .lanes import RowLanes
    from .work import Emit

# -- op lists ----------------------------------------------------------------------------------------------------------


Ints = npt.NDArray[np.int64]
Repeat = Callable[[Any], tuple[int, int] | None]
"""Given an entry of an op list, the `length` and `times` of a repeat; None for an op."""


@dataclass(frozen=True)
class Fault:
    """A repeat in an op list that cannot be executed. index: place of the entry in the list. code: of the finding, such
    as `M06`. message: what is wrong."""

    index: int
    code: str
    message: str


@dataclass(frozen=True)
class OpList:
    """The op lists of one FU type.

    record: of an entry. words: 32-bit words that a unit holds. repeat: which entries are repeats; None if a list has
    none.
    """

    record: type[Record]
    words: int
    repeat: Repeat | None = None

    @property
    def longest(self) -> int:
        """Number of entries that a unit can hold."""
        return self.words // self.record.WORDS

    def repeated(self, entry: Any) -> tuple[int, int] | None:
        """Return (length, times) of an entry that is a repeat, None for an op and for a record of another type."""
        return self.repeat(entry) if self.repeat is not None and type(entry) is self.record else None

    def faults(self, entries: Sequence[Any]) -> Iterator[Fault]:
        """Yield a fault for each repeat of a list that is not possible."""
        for _, fault in self._runs(entries):
            if fault is not None:
                yield fault

    def runs(self, entries: Sequence[Any]) -> list[tuple[range, int]]:
        """Return the entries in execution order, as pairs: a range of indices of entries, and how often these run one
        after the other.

        Raises `ProgramError` for a repeat that is not possible.
        """
        out = []
        for run, fault in self._runs(entries):
            if fault is not None:
                raise ProgramError(f"{self.record.NAME} op {fault.index}: {fault.message}")
            out.append(run)
        return out

    def executed(self, entries: Sequence[Any]) -> int:
        """Return how many ops a list executes. Raises as `runs`; takes no longer for many repetitions."""
        return len(entries) if self.repeat is None else sum(len(part) * times for part, times in self.runs(entries))

    def order(self, entries: Sequence[Any]) -> Ints:
        """Return the index of each executed op's entry, a vector of int64. Raises as `runs`."""
        if self.repeat is None:
            return np.arange(len(entries))
        return np.concatenate([np.tile(np.arange(part.start, part.stop), times) for part, times in self.runs(entries)])

    def unrolled(self, entries: Sequence[Any]) -> Sequence[Any]:
        """Return the ops that a list executes. Raises as `runs`."""
        return entries if self.repeat is None else tuple(map(entries.__getitem__, self.order(entries).tolist()))

    def walk(self, entries: Sequence[Any]) -> Iterator[int]:
        """Yield what `order` returns, one after the other, without making the array. Raises as `runs`."""
        if self.repeat is None:
            return iter(range(len(entries)))
        return chain.from_iterable(part for part, times in self.runs(entries) for _ in range(times))

    def _runs(self, entries: Sequence[Any]) -> Iterator[tuple[tuple[range, int], Fault | None]]:
        """The pieces of `runs`, each with what is wrong with the repeat that makes it."""
        begun = 0  # behind the last repeat
        for i, entry in enumerate(entries) if self.repeat is not None else ():
            found = self.repeated(entry)
            if found is None:
                continue
            length, times = found
            yield (range(begun, i), 1), None
            yield (range(max(i - length, 0), i), times), self._fault(i, begun, length, times)
            begun = i + 1
        yield (range(begun, len(entries)), 1), None

    @staticmethod
    def _fault(index: int, begun: int, length: int, times: int) -> Fault | None:
        """What is wrong with the repeat at `index`. begun: the first entry behind the repeat before it."""
        if length < 1 or times < 1:
            return Fault(index, "M06", f"repeats {length} entries {times} times: a repeat of nothing")
        if length > index:
            return Fault(index, "M07", f"repeats {length} entries, but only {index} are before it")
        if length > index - begun:
            text = f"repeats {length} entries, of which op {begun - 1} is a repeat: repeats cannot be nested"
            return Fault(index, "M08", text)
        return None


@dataclass(frozen=True)
class ProductGrid:
    """Product units in rows and columns that compute one output tile of a matrix product (paper section 5.3).

    left: for each row, the memory whose tiles go to all product units of the row. right: for each column, the memory
    whose tiles go to all product units of the column. products, results: by row and column, the product unit and the
    memory that receives its results. left_switch, right_switch: between memories and product units. activations,
    weights: the off-chip units that fill `left` and `right`; results go to `activations`.
    """

    left: tuple[str, ...]
    right: tuple[str, ...]
    products: tuple[tuple[str, ...], ...]
    results: tuple[tuple[str, ...], ...]
    left_switch: str
    right_switch: str
    activations: str
    weights: str

    @property
    def rows(self) -> int:
        """Number of rows of product units."""
        return len(self.left)

    @property
    def columns(self) -> int:
        """Number of columns of product units."""
        return len(self.right)

    def upper_left(self, rows: int, columns: int) -> ProductGrid:
        """Return the grid of the first `rows` rows and `columns` columns, or of all where there are fewer."""
        return ProductGrid(
            self.left[:rows],
            self.right[:columns],
            tuple(units[:columns] for units in self.products[:rows]),
            tuple(units[:columns] for units in self.results[:rows]),
            self.left_switch,
            self.right_switch,
            self.activations,
            self.weights,
        )


@dataclass(frozen=True)
class AttentionPipeline:
    """Units that compute the two products of attention at the same time (paper section 4.3, mapping type D).

    scores: the grid of Q K^T; its results compute softmax and send the probabilities on. products, results: for each
    row of `scores`, the product unit of P V that its probabilities go to, and the memory of its results. values: the
    memory of V, which feeds all of `products`. stored: the memory that feeds them with probabilities from off-chip
    memory (mapping type B).
    """

    scores: ProductGrid
    products: tuple[str, ...]
    results: tuple[str, ...]
    values: str
    stored: str


@dataclass(frozen=True)
class Patterns:
    """The patterns of a machine. grid: the units that compute products. attention: those that compute both products of
    attention at the same time; None if the machine's units form no such pipeline."""

    grid: ProductGrid
    attention: AttentionPipeline | None


def one_uop(mop: Record, iteration: int) -> Iterator[Record]:
    """Yield the mOP itself, which is the only uOP of every iteration: the default expansion."""
    yield mop


@dataclass(frozen=True)
class InstructionFormat:
    """The format of one kind of packet: its opcode, the FU type that it drives, and its expansion (contract 1.3).

    kind: the FU type. mop: the record of one mOP. loops_window: the decoder stores the window and loops over it;
    otherwise it repeats each mOP alone. decode_cycles: PL cycles per uOP. uops: given a mOP and an iteration, its uOPs.
    config: the format sets registers of a unit that another format drives; it never terminates a decoder. max_reuse:
    the largest `reuse` that the decoder can count. addresses: only for a format whose uOPs are named tuples and differ
    between iterations in `addr` alone: given a mOP and the number of iterations, the addresses as an array (iterations,
    uOPs in one), so that checks need not make every uOP; None for any other format. inside: fields that choose a place
    within the access that `Overlay.transfer` states, whatever their value.
    """

    name: str
    opcode: int
    kind: str
    mop: type[Record]
    loops_window: bool
    decode_cycles: int
    uops: Callable[[Any, int], Iterator[Any]] = one_uop
    config: bool = False
    max_reuse: int = 0xFFFF
    uop_bytes: int = 0
    """Bytes of one uOP: the fields of the mOP without strides and counts, in whole words. 0: as large as the mOP."""
    addresses: Callable[[Any, int], Any] | None = None
    inside: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Transfer:
    """The off-chip access of a uOP: `size` float32 elements of `bank` from address `addr` (address units) on.

    store: it writes; otherwise it reads. partial: it writes some of these elements only.
    """

    bank: str
    addr: int
    size: int
    store: bool
    partial: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Overlay(StreamNetwork):
    """A machine with its instruction decoder.

    formats: of packets. terminators: FU types, in the order in which terminators are issued.
    preloaded: FU types whose uOPs do not come in packets but are loaded before the run (the MMEs), each with what such
    a list holds. mop_fifo_depth, uop_fifo_depth: slots in front of a decoder and of a unit. address_unit: float32
    elements per address unit. image_bytes: bytes of the host's buffer for an instruction image, None if not known.
    legal: given a unit and a uOP, the reasons why the unit cannot execute it, beyond bit ranges. transfer: the
    off-chip access of a unit's uOP, None if it makes none. flops: floating-point operations of a preloaded uOP.
    title: what pictures call a uOP, "" to list its fields.
    lint: given a mOP, the bits set in it that the unit ignores, as texts. semantic_checks: checks for this overlay
    alone, given the expansion and whether sends equal receives on every stream.
    emit: turns the scheduler's work items into instructions; None if models cannot be compiled for the overlay.
    find_patterns: derives the overlay's patterns from its description; None if it has none.
    lanes: of an overlay whose rows stay on chip in lanes; None for any other.
    integers: it computes in integers, in panels of rows that stay on chip; networks are quantised for it.
    layout: of the matrices that compiled programs keep off chip.
    extends: name of the overlay whose image format this one adds opcodes to. extension: version of what it adds; a
    machine runs programs of its own version alone.
    base, changes: of an overlay that an overlay file makes, the name of the one that it changes, and the differences
    as lines of such a file. refit: given an overlay with other memories or fewer units, the same with all that follows
    from them, such as limits of capabilities; raises `ProgramError` if the instructions cannot say these sizes; None if
    files cannot change its memories.
    whole: of an overlay whose files hold a whole machine: given a parsed file and the name, the machine; raises
    `ProgramError` for what is none.
    max_bank_bytes: bytes of an off-chip memory that addresses reach.
    device: the chip, None if not known. resources: what each part of the datapath needs of it. costs: times of the
    units' operations by their sources, compared with the simulator's. deviations: how far `resources` is from published
    figures.
    """

    formats: tuple[InstructionFormat, ...]
    terminators: tuple[str, ...]
    preloaded: Mapping[str, OpList] = field(default_factory=dict)
    mop_fifo_depth: int = 6
    uop_fifo_depth: int = 2
    address_unit: int = 1
    image_bytes: int | None = None
    legal: Callable[[UnitSpec, Any], Iterator[str]] = lambda unit, uop: iter(())
    transfer: Callable[[UnitSpec, Any], Transfer | None] = lambda unit, uop: None
    flops: Callable[[Any], int] = lambda op: 0
    title: Callable[[Any], str] = lambda uop: ""
    lint: Callable[[Any], Iterator[str]] = lambda mop: iter(())
    semantic_checks: Callable[[ExpandedProgram, bool], Iterator[Finding]] = lambda expansion, balanced: iter(())
    emit: Emit | None = None
    find_patterns: Callable[[StreamNetwork], Patterns | None] = lambda machine: None
    lanes: RowLanes | None = None
    integers: bool = False
    layout: Layout = Layout.BLOCKED
    extends: str | None = None
    extension: int = 0
    base: str | None = None
    changes: tuple[str, ...] = ()
    refit: Callable[[Overlay], Overlay] | None = None
    whole: Callable[[Mapping[str, Any], str], Overlay] | None = None
    max_bank_bytes: int = 1 << 32
    device: Chip | None = None
    resources: Callable[[Overlay], Iterator[Need]] = lambda overlay: iter(())
    costs: Callable[[Overlay], Iterator[OperationTime]] = lambda overlay: iter(())
    deviations: Callable[[], Iterator[Deviation]] = lambda: iter(())

    @cached_property
    def patterns(self) -> Patterns | None:
        """The patterns that its units form; None if they form none."""
        return self.find_patterns(self)

    @property
    def label(self) -> str:
        """The overlay's name, fingerprint, and version of its instructions if it has one, for messages."""
        version = f" (version {self.extension} of its instructions)" if self.extension else ""
        return f"{self.name} {self.fingerprint}{version}"

    @cached_property
    def by_opcode(self) -> dict[int, InstructionFormat]:
        """Formats by opcode, an integer from 1 to 15."""
        return {f.opcode: f for f in self.formats}

    @cached_property
    def by_format(self) -> dict[str, InstructionFormat]:
        """Formats by name."""
        return {f.name: f for f in self.formats}

    def format_of(self, kind: str) -> InstructionFormat:
        """Return the format that drives the FU type `kind` (not the one that configures it). Raises `ProgramError` if
        no format does.
        """
        found = next((f for f in self.formats if f.kind == kind and not f.config), None)
        if found is None:
            raise ProgramError(f"overlay {self.name} has no instructions for a unit of the type {kind}")
        return found

    def selected(self, opcode: int, mask: int) -> tuple[UnitSpec, ...]:
        """Return the units that a packet drives. mask: bit i selects the unit of index i; for FU types with one
        instance it is ignored. Raises `KeyError` for an unknown opcode.
        """
        key = opcode, mask
        if key not in self._selections:
            units = self.by_kind[self.by_opcode[opcode].kind]
            self._selections[key] = units if len(units) == 1 else tuple(u for u in units if mask >> u.index & 1)
        return self._selections[key]

    @cached_property
    def _selections(self) -> dict[tuple[int, int], tuple[UnitSpec, ...]]:
        """The cache of `selected`: programs use few masks."""
        return {}

    def op_list(self, unit: str) -> OpList | None:
        """Return the description of the op list of the unit of this name; None for a unit without one, or for an
        unknown name."""
        spec = self.by_unit.get(unit)
        return None if spec is None else self.preloaded.get(spec.kind)

    def unrolled(self, preloaded: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
        """Return the ops that each unit executes, by unit name. preloaded: op lists by unit name. Raises `ProgramError`
        for a repeat that is not possible.
        """
        out: dict[str, Sequence[Any]] = {}
        for unit, entries in preloaded.items():
            held = self.op_list(unit)
            try:
                out[unit] = entries if held is None else held.unrolled(entries)
            except ProgramError as e:
                raise ProgramError(f"{unit}: {e}") from None
        return out

    @cached_property
    def head_columns(self) -> int:
        """The number of columns to whose multiples an attention head is padded. A head is then a whole number of the
        smallest tiles that each product unit multiplies, both as K and as columns."""
        sizes = [1]
        for unit in self.units_with("matmul"):
            for size, half in (("tile_depth", "matmul_half_depth"), ("tile_columns", "matmul_half_columns")):
                able = unit.capability(half) or unit.capability("matmul")
                assert able is not None
                sizes.append(int(able.limits[size][0]))
        return math.lcm(*sizes)

    def head_pitch(self, width: int) -> int:
        """Return the columns from an attention head of `width` columns to the next: a multiple of `head_columns`. In an
        overlay with patterns the factor is a power of two, because several product units take parts of a head side by
        side."""
        grain = self.head_columns
        if self.patterns is None:
            return padded(width, grain)
        return grain << max(0, -(-width // grain) - 1).bit_length()

    @cached_property
    def step_seconds(self) -> dict[str, float]:
        """Seconds per amount of each rate, as `StreamNetwork.step_seconds`, with `dispatch` and `decode`; these are 0
        if the overlay has no such rates.
        """
        return {FREE: 0.0, "dispatch": 0.0, "decode": 0.0} | self.seconds

    def with_rates(self, /, **values: float) -> Self:
        """Return a copy with some rates, FIFO depths or the clock replaced, e.g. ddr_read_gbs=42, mop_fifo_depth=4 or
        clock_mhz=220: rates in the unit of their `Rate`, depths in slots, the clock of the programmable logic in MHz.

        Raises `ProgramError` for unknown names and impossible values, as `StreamNetwork.with_rates`.
        """
        unknown = set(values) - {CLOCK, *FIFO_DEPTHS, *self.rates}
        if unknown:
            known = ", ".join([*FIFO_DEPTHS, *self.rates, CLOCK])
            name = next(name for name in values if name in unknown)
            raise ProgramError(f"overlay {self.name} has no parameter {name!r}; it has {known}")
        depths = {name: checked_depth(name, values.pop(name)) for name in FIFO_DEPTHS if name in values}
        mhz = values.pop(CLOCK, self.clock_mhz)
        if not 0 < mhz < math.inf:
            raise ProgramError(f"{CLOCK} = {mhz:g} is no clock")
        same = self if mhz == self.clock_mhz else dataclasses.replace(self, clock_hz=1e6 * mhz)
        return dataclasses.replace(super(Overlay, same).with_rates(**values), **depths)  # type: ignore[arg-type]

    @property
    def clock_mhz(self) -> float:
        """Clock of the programmable logic, in MHz."""
        return self.clock_hz / 1e6

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that depend on units, streams, depths and formats, on the version of what an overlay adds, and
        on changes of memories, but not on rates."""
        h = hashlib.sha256()
        if self.extension:
            h.update(f"extension {self.extension};".encode())
        for u in self.units:
            h.update(f"unit {u.name} {u.kind} {u.index};".encode())
        for s in self.streams:
            h.update(f"stream {s.name} {s.depth};".encode())
        formats = [(f.name, f.opcode, f.loops_window, f.mop) for f in self.formats]
        formats += [(k, -1, False, ops.record) for k, ops in self.preloaded.items()]
        for name, opcode, loops, record in formats:
            h.update(f"form {name} {opcode} {loops} {record.WORDS};".encode())
            for b in record.FIELDS:
                h.update(f"field {b.name} {b.word} {b.low} {b.width} {b.signed} {b.real};".encode())
        for kind, ops in self.preloaded.items():
            if ops.repeat is not None:
                h.update(f"repeats {kind};".encode())
        for line in self.changes:
            # units, streams and depths are in it already, but for machines that a file holds as a whole
            if self.whole is not None or line.startswith(("memories.", "banks.")):
                h.update(f"change {line};".encode())
        return h.hexdigest()[:16]


CLOCK = "clock_mhz"
"""The parameter that is the clock of the programmable logic, in MHz."""
FIFO_DEPTHS = ("mop_fifo_depth", "uop_fifo_depth")
"""Parameters of an overlay that are FIFO depths of the instruction path, in slots."""
