"""A program: what runs on an overlay, as frozen values. Text (`.rsn`) and container (`.bin`) are views of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.errors import ProgramError, TensorError
from .fields import Record
from .layout import BLOCK_ROWS, padded
from .overlay import Overlay
from .packet import Packet, Words, encode_image

Array = npt.NDArray[np.float32]


class Layout(Enum):
    BLOCKED = "blocked"
    """128x64 blocks, `layout.block`."""
    LINEAR = "linear"
    """Row-major."""


class Role(Enum):
    INPUT = "input"
    OUTPUT = "output"
    WEIGHT = "weight"
    SCRATCH = "scratch"


MAX_ROWS = 1 << 20
"""Of an item that a view shows whole though the buffer holds less of it: such a tensor is larger than the buffer."""


@dataclass(frozen=True)
class Buffer:
    """A named piece of off-chip memory.

    offset in address units of the overlay; shape as stored (rows, columns) or (elements,), padding included.
    view: the shape that users see, (batch, rows, columns) or less: item b lies at rows b*pitch.. of the stored matrix,
    pitch = rows // batch, and the rest is padding. rows: of each item, where they differ: item b then lies in whole
    blocks of 128 rows behind item b - 1, and what a user's tensor has beyond is not there. scale, shift: per column,
    applied to an output when it is read.
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
        """Elements, padding included."""
        return prod(self.shape)

    @property
    def view_fits(self) -> bool:
        """Whether what users see is there."""
        view, shape = self.view, self.shape
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
                and sum(padded(n, BLOCK_ROWS) for n in self.rows) <= shape[0]
                and view[2] <= shape[1]
            )
        if len(shape) == 1:
            return len(view) == 1 and view[0] <= shape[0]
        if len(view) == 3:
            return shape[0] % view[0] == 0 and view[1] <= shape[0] // view[0] and view[2] <= shape[1]
        return len(view) == 2 and view[0] <= shape[0] and view[1] <= shape[1]

    @property
    def items(self) -> Iterator[tuple[int, int]]:
        """The items of a three-dimensional view: the stored row where each begins, and how many it has."""
        batch, rows, _ = self.view or ()
        at = 0
        for b in range(batch):
            yield at, self.rows[b] if self.rows else rows
            at += padded(self.rows[b], BLOCK_ROWS) if self.rows else self.shape[0] // batch


@dataclass(frozen=True)
class Patch:
    """A field that takes the value clamp(parameter - base, 0, cap): mOP number `mop` of packet number `packet`."""

    packet: int
    mop: int
    field: str
    base: int
    cap: int

    def value(self, parameter: int) -> int:
        return min(max(parameter - self.base, 0), self.cap)


@dataclass(frozen=True)
class Parameter:
    """A named integer that is known only at run time, for example `len[3]`, with the places it is patched into."""

    name: str
    low: int
    high: int
    default: int
    patches: tuple[Patch, ...] = ()


@dataclass(frozen=True)
class Place:
    """A line of a source text."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, eq=False)
class Program:
    """Everything a machine needs but the tensors.

    packets: the image, terminators included. preloaded: op lists of units without packets. places: where packet i, or
    op i of a preloaded unit, came from; may be shorter than the list it describes.
    """

    overlay: Overlay
    packets: tuple[Packet, ...]
    preloaded: Mapping[str, tuple[Record, ...]] = field(default_factory=dict)
    buffers: tuple[Buffer, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    places: tuple[Place, ...] = ()
    preloaded_places: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)

    @cached_property
    def image(self) -> Words:
        """The wire image with every parameter at its default."""
        return self.bind({})

    @cached_property
    def _encoded(self) -> Words:
        return encode_image(self.packets)

    @cached_property
    def packet_offsets(self) -> tuple[int, ...]:
        """Image word at which each packet's header stands."""
        out, at = [], 2
        for p in self.packets:
            out.append(at)
            at += p.words
        return tuple(out)

    def bind(self, values: Mapping[str, int]) -> Words:
        """The wire image with run-time parameters patched in. Raises `TensorError` for unknown names or values out of
        range."""
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
            else "this program has none: what is compiled with an attention mask has"
        )

    def patched_field(self, patch: Patch) -> Any:
        return self.packets[patch.packet].mops[patch.mop].field(patch.field)

    def patched_word(self, patch: Patch) -> int:
        """Image word that a patch changes."""
        mops = self.packets[patch.packet].mops
        before = sum(m.WORDS for m in mops[: patch.mop])
        return self.packet_offsets[patch.packet] + 1 + before + int(self.patched_field(patch).word)

    @cached_property
    def extended(self) -> bool:
        """Whether an opcode beyond the base overlay's occurs; a base machine must refuse it."""
        if self.overlay.extends is None:
            return False
        config = {f.opcode for f in self.overlay.formats if f.config}
        return any(p.header.opcode in config for p in self.packets)

    def buffer(self, name: str) -> Buffer:
        for b in self.buffers:
            if b.name == name:
                return b
        raise ProgramError(f"no buffer {name!r}; this program has {', '.join(b.name for b in self.buffers)}")

    def with_role(self, role: Role) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if b.role is role)

    def bank_size(self, bank: str) -> int:
        """Elements that the buffers of a bank span."""
        unit = self.overlay.address_unit
        return max((b.offset * unit + b.size for b in self.buffers if b.bank == bank), default=0)

    def where(self, unit: str, origin: int) -> str:
        """Source line of a unit's uOP, or its packet number."""
        preloaded = unit in self.preloaded
        places = self.preloaded_places.get(unit, ()) if preloaded else self.places
        if 0 <= origin < len(places):
            return str(places[origin])
        return f"{'op' if preloaded else 'packet'} {origin}"


@dataclass(frozen=True)
class KernelPatch:
    """A `Patch` before packing: mOP number `index` of a unit's sequence."""

    unit: str
    index: int
    field: str
    base: int
    cap: int


@dataclass(frozen=True, eq=False)
class Kernels:
    """A program before packing: one kernel sequence per unit, no packets, no terminators.

    sequences: the mOPs of each packet-driven unit, in order. patches: by parameter name; the parameters' own patches
    are empty. places: where mOP i of a unit came from; as long as its sequence. preloaded as in `Program`.
    """

    overlay: Overlay
    sequences: Mapping[str, tuple[Record, ...]]
    preloaded: Mapping[str, tuple[Record, ...]] = field(default_factory=dict)
    buffers: tuple[Buffer, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    patches: Mapping[str, tuple[KernelPatch, ...]] = field(default_factory=dict)
    places: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)
    preloaded_places: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)


def place_buffers(buffers: Iterable[Buffer], unit: int, align: int = 64) -> tuple[Buffer, ...]:
    """Lay buffers out bank by bank in their order, those with a negative offset behind the ones before them; aligned to
    `align` address units."""
    import dataclasses

    at: dict[str, int] = {}
    out = []
    for b in buffers:
        if b.offset < 0:
            b = dataclasses.replace(b, offset=at.get(b.bank, 0))
        out.append(b)
        at[b.bank] = max(at.get(b.bank, 0), padded(b.offset + -(-b.size // unit), align))
    return tuple(out)
