"""A program for an overlay: packets, op lists, buffers, parameters. `.rsn` and `.bin` files are two forms of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from math import prod
from typing import Any

from ..base.errors import ProgramError, TensorError
from .fields import Record
from .layout import ALIGNED, BLOCK_ROWS, BY_ROW, ITEM_ROWS, UNIT, padded, row_units
from .layout import Array as Array
from .layout import Layout as Layout
from .overlay import Overlay
from .packet import Packet, Words, encode_image


class Role(Enum):
    """What a buffer is for."""

    INPUT = "input"
    """The host writes it before each run."""
    OUTPUT = "output"
    """The host reads it after each run."""
    WEIGHT = "weight"
    """The host writes it once, before the first run."""
    STATE = "state"
    """The host writes it when a session begins; runs read and change it; it keeps its contents between runs."""
    SCRATCH = "scratch"
    """The program alone uses it."""


MAX_ROWS = 1 << 20
"""Largest number of rows per item of a view with `Buffer.rows`: its tensor may be larger than the buffer."""


@dataclass(frozen=True)
class Buffer:
    """A named region of off-chip memory.

    offset: in address units of the overlay. shape: as stored, (rows, columns) or (elements,), padding included. view:
    the shape of the user's tensor: (batch, rows, columns), (rows, columns) or (elements,); the rest is padding; None
    for `shape`, without padding. Item b of a batch begins at stored row b * pitch, where pitch = stored rows // batch.
    rows: the number of rows of each item, if they differ: in a blocked buffer item b then begins at the next multiple
    of 128 rows behind item b - 1, in a linear one at b * pitch, as without `rows`; rows of the user's tensor beyond
    rows[b] are not stored. scale, shift: one value per column, applied to an output when the host reads it; None for
    none.
    """

    name: str
    bank: str
    offset: int
    shape: tuple[int, ...]
    layout: Layout = Layout.BLOCKED
    role: Role = Role.SCRATCH
    view: tuple[int, ...] | None = None
    rows: tuple[int, ...] = ()
    scale: tuple[float, ...] | None = None
    shift: tuple[float, ...] | None = None

    @property
    def size(self) -> int:
        """Number of float32 elements, padding included. For a layout of integers it is the number of words of 32 bits
        that the integers and their exponents take."""
        elements = prod(self.shape)
        match self.layout:
            case Layout.INTEGERS:
                return elements // 2 + elements // 128
            case Layout.SHORT | Layout.LONG:
                return prod(self.shape[:-1]) * sum(row_units(self.shape[-1], BY_ROW[self.layout])) * UNIT
        return elements

    @property
    def item_shape(self) -> tuple[int, int]:
        """Stored rows and columns of an item of a view (batch, rows, columns). Raises `ValueError` for a view with
        another number of dimensions, `ZeroDivisionError` without items."""
        batch, _, _ = self.view or ()
        return self.shape[0] // batch, self.shape[1]

    @property
    def view_fits(self) -> bool:
        """Whether the stored shape can hold the view, and `rows` suits both."""
        view, shape = self.view, self.shape
        of_integers = self.layout in (Layout.INTEGERS, *BY_ROW)
        if of_integers and (view is None or len(view) != 3 or len(shape) != 2 or not shape[1] or shape[1] % 64):
            return False
        if self.layout is Layout.INTEGERS and self.item_shape[0] % ITEM_ROWS:
            return False
        if view is None:
            return not self.rows
        if not view or min(view) < 1:
            return False
        if self.rows:
            return (
                len(view) == 3
                and len(shape) == 2
                and len(self.rows) == view[0]
                and all(1 <= n <= view[1] <= MAX_ROWS for n in self.rows)
                and self._rows_fit(view[0])
                and view[2] <= shape[1]
            )
        if len(shape) == 1:
            return len(view) == 1 and view[0] <= shape[0]
        if len(view) == 3:
            return shape[0] % view[0] == 0 and view[1] <= shape[0] // view[0] and view[2] <= shape[1]
        return len(view) == 2 and view[0] <= shape[0] and view[1] <= shape[1]

    def _rows_fit(self, batch: int) -> bool:
        """Whether the stored rows can hold items with `rows`."""
        if self.layout is Layout.BLOCKED:
            return sum(padded(n, BLOCK_ROWS) for n in self.rows) <= self.shape[0]
        return self.shape[0] % batch == 0 and max(self.rows) <= self.shape[0] // batch

    @property
    def items(self) -> Iterator[tuple[int, int]]:
        """The first stored row and the number of rows of each item of a view (batch, rows, columns). Raises
        `ValueError` for a view with another number of dimensions.
        """
        batch, rows, _ = self.view or ()
        at = 0
        for b in range(batch):
            yield at, self.rows[b] if self.rows else rows
            is_close = self.rows and self.layout is Layout.BLOCKED
            at += padded(self.rows[b], BLOCK_ROWS) if is_close else self.shape[0] // batch


def only_weights(buffers: Collection[Buffer]) -> bool:
    """Whether there are any buffers, and the host alone writes them: programs may then share their bank."""
    return bool(buffers) and all(b.role is Role.WEIGHT for b in buffers)


@dataclass(frozen=True)
class Patch:
    """A field whose value is clamp(parameter - base, 0, cap). packet: its index. mop: index of the mOP in it.

    field: its name. base, cap: numbers in the unit of the parameter.
    """

    packet: int
    mop: int
    field: str
    base: int
    cap: int

    def value(self, parameter: int) -> int:
        """Return the field's value for a value of the parameter: clamp(parameter - base, 0, cap)."""
        return min(max(parameter - self.base, 0), self.cap)


@dataclass(frozen=True)
class Parameter:
    """A named integer that is set for each run, for example `len[3]`, and the fields that it is patched into.

    low, high: smallest and largest allowed value. default: the value in a run that sets none.
    """

    name: str
    low: int
    high: int
    default: int
    patches: tuple[Patch, ...] = ()


@dataclass(frozen=True)
class SourceLine:
    """A line of a source text. file: its path as text. line: its number, from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class ProgramSegment:
    """A segment as the compiler made it (paper section 4.2): layers that go through the machine together.

    name: of what it computes, unique in its program. layers: module paths of all layers that are fused into it. kind:
    its operation and shape, such as `gemm 1024x4096 gelu_tanh`. outputs: names of the buffers that it fills. uops: by
    unit name, the numbers of its uOPs among all of that unit, as half-open ranges (first, end) in ascending order; in
    an `UnpackedProgram` the indices of its mOPs, if packets drive the unit; none if a text declares the segment. A uOP
    that does half of its work for one segment and half for the next one belongs to both.
    """

    name: str
    layers: tuple[str, ...]
    kind: str
    outputs: tuple[str, ...]
    uops: Mapping[str, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, eq=False)
class Program:
    """Everything that a machine needs for a run except the tensors.

    packets: of the image, terminators included. preloaded: op lists of units that packets do not drive, by unit name;
    entries may be repeats (`OpList`).
    places, preloaded_places: the source line of packet i, or of op i of a unit; they may be shorter than the lists that
    they describe. segments: in execution order, as the compiler made them; empty where they are not known.
    """

    overlay: Overlay
    packets: tuple[Packet, ...]
    preloaded: Mapping[str, tuple[Record, ...]] = field(default_factory=dict)
    buffers: tuple[Buffer, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    places: tuple[SourceLine, ...] = ()
    preloaded_places: Mapping[str, tuple[SourceLine, ...]] = field(default_factory=dict)
    segments: tuple[ProgramSegment, ...] = ()

    @cached_property
    def image(self) -> Words:
        """The image, a vector of uint32, with every parameter at its default. Raises as `bind`."""
        return self.bind({})

    @cached_property
    def _encoded(self) -> Words:
        return encode_image(self.packets)

    @cached_property
    def packet_offsets(self) -> tuple[int, ...]:
        """The index of the image word at which each packet begins."""
        out, at = [], 2
        for p in self.packets:
            out.append(at)
            at += p.words
        return tuple(out)

    def bind(self, values: Mapping[str, int]) -> Words:
        """Return the image, a vector of uint32, for these values of parameters by name, with the others at their
        defaults.

        Raises `TensorError` for unknown names or values out of range, `IndexError` or `FieldError` for a patch of a
        field that does not exist, `ImageError` if a header has another window than mOPs.
        """
        words = self._encoded.copy()
        unknown = set(values) - {p.name for p in self.parameters}
        if unknown:
            raise TensorError(f"no parameter {sorted(unknown)[0]!r}; {self._known_parameters()}")
        for p in self.parameters:
            value = values.get(p.name, p.default)
            if not p.low <= value <= p.high:
                raise TensorError(f"{p.name}={value} is out of range {p.low}..{p.high}")
            for patch in p.patches:
                spec = self.patched_field(patch)
                word = self.patched_word(patch)
                words[word] = (int(words[word]) & ~spec.mask) | (patch.value(value) << spec.low)
        return words

    def _known_parameters(self) -> str:
        names = [p.name for p in self.parameters]
        return (
            f"this program has {', '.join(names)}"
            if names
            else "this program has none (programs compiled with an attention mask have them)"
        )

    def patched_field(self, patch: Patch) -> Any:
        """Return the `Field` that a patch changes. Raises `IndexError` or `FieldError` if it does not exist."""
        return self.packets[patch.packet].mops[patch.mop].field(patch.field)

    def patched_word(self, patch: Patch) -> int:
        """Return the index of the image word that a patch changes. Raises as `patched_field`."""
        mops = self.packets[patch.packet].mops
        before = sum(m.WORDS for m in mops[: patch.mop])
        return self.packet_offsets[patch.packet] + 1 + before + int(self.patched_field(patch).word)

    @cached_property
    def extended(self) -> bool:
        """Whether the program uses an opcode that the base overlay does not have; a base machine must refuse it."""
        return bool(self.extensions)

    @cached_property
    def extensions(self) -> tuple[int, ...]:
        """The opcodes, in rising order, that the program uses and that the base overlay does not have."""
        config = {f.opcode for f in self.overlay.formats if f.config}
        return tuple(sorted(config & {p.header.opcode for p in self.packets}))

    def buffer(self, name: str) -> Buffer:
        """Return the buffer of this name. Raises `ProgramError` if there is none."""
        for b in self.buffers:
            if b.name == name:
                return b
        raise ProgramError(f"no buffer {name!r}; this program has {', '.join(b.name for b in self.buffers)}")

    def with_role(self, role: Role) -> tuple[Buffer, ...]:
        """Return the buffers of this role, in the order of their declaration."""
        return tuple(b for b in self.buffers if b.role is role)

    def in_bank(self, bank: str) -> tuple[Buffer, ...]:
        """Return the buffers of the bank of this name, in the order of their declaration; none of an unknown bank."""
        return tuple(b for b in self.buffers if b.bank == bank)

    def place(self, buffer: Buffer) -> slice:
        """Return which float32 elements of its bank a buffer takes, as a slice."""
        start = buffer.offset * self.overlay.address_unit
        return slice(start, start + buffer.size)

    def bank_size(self, bank: str) -> int:
        """Return the number of float32 elements from the start of a bank to the end of its last buffer; 0 without
        buffers.
        """
        return max((self.place(b).stop for b in self.in_bank(bank)), default=0)

    def where(self, unit: str, origin: int) -> str:
        """Return the source line of a packet or op as text, or `packet N` or `op N` if it is not known.

        origin: index of the packet or, for a unit with an op list, of the op.
        """
        preloaded = unit in self.preloaded
        places = self.preloaded_places.get(unit, ()) if preloaded else self.places
        if 0 <= origin < len(places):
            return str(places[origin])
        return f"{'op' if preloaded else 'packet'} {origin}"


@dataclass(frozen=True)
class KernelPatch:
    """A `Patch` before packing: field, base and cap as there. index: of the mOP in its unit's sequence."""

    unit: str
    index: int
    field: str
    base: int
    cap: int


@dataclass(frozen=True, eq=False)
class UnpackedProgram:
    """A program before packing: a sequence of mOPs per unit, without packets and terminators.

    sequences: the mOPs of each unit that packets drive, in execution order. patches: by parameter name;
    `Parameter.patches` is empty here. places: the source line of each mOP of a unit. Other attributes as in `Program`.
    """

    overlay: Overlay
    sequences: Mapping[str, tuple[Record, ...]]
    preloaded: Mapping[str, tuple[Record, ...]] = field(default_factory=dict)
    buffers: tuple[Buffer, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    patches: Mapping[str, tuple[KernelPatch, ...]] = field(default_factory=dict)
    places: Mapping[str, tuple[SourceLine, ...]] = field(default_factory=dict)
    preloaded_places: Mapping[str, tuple[SourceLine, ...]] = field(default_factory=dict)
    segments: tuple[ProgramSegment, ...] = ()


def place_buffers(buffers: Iterable[Buffer], unit: int) -> tuple[Buffer, ...]:
    """Assign an offset (in address units) to each buffer whose offset is negative: behind all earlier buffers of its
    bank, at a multiple of `ALIGNED`. unit: float32 elements per address unit. Returns all buffers in their order.
    """
    at: dict[str, int] = {}
    out = []
    for b in buffers:
        if b.offset < 0:
            b = replace(b, offset=at.get(b.bank, 0))
        out.append(b)
        at[b.bank] = max(at.get(b.bank, 0), padded(b.offset + -(-b.size // unit), ALIGNED))
    return tuple(out)
