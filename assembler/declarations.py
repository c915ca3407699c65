"""Read the declarations of a text: overlay, constants, run-time parameters, buffers with scale and shift, segments."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from math import isfinite, prod
from pathlib import Path
from typing import Any

from lark import Token

from ..base.errors import ProgramError
from ..isa.overlay import Overlay
from ..isa.overlays.file import SUFFIX, find, made
from ..isa.program import Buffer, Layout, Parameter, ProgramSegment, Role, place_buffers
from . import syntax as s
from .diagnostic import ErrorReport, Mistake, SourceText, Span, did_you_mean, listing
from .names import ScopedNames
from .slices import GRAIN


def overlay(items: tuple[s.Item, ...], file: str, overlays: Mapping[str, Overlay]) -> Overlay:
    """Return the overlay that the first item of a text names, or makes by lines or by an overlay file.

    items: of the text. overlays: by name. file: its path; the path of an overlay file is relative to its folder. Raises
    `Mistake` if the item names none, an unknown one, or one that cannot be made.
    """
    first = items[0] if items else None
    known = f"overlays are {listing(overlays)}"
    if not isinstance(first, s.OverlayName):
        message = "a program begins with its overlay: overlay NAME"
        raise Mistake(s.start_span(first) if first else (0, 0), message, known)
    name = s.unquoted(first.name)
    span = s.token_span(first.name)
    if first.lines:
        described = "\n".join([f'name = "{name}"', *map(s.unquoted, first.lines)])
        label = f"overlay {name}"
        return _made(lambda: made(described, label, overlays), span, lambda fault: _line_of(fault, label, first.lines))
    if name.endswith(SUFFIX) and name not in overlays:
        path = Path(file).parent / name
        if "\0" in name or Path(name).is_absolute():
            raise Mistake(span, "a text names an overlay file by its path relative to this file")
        return _made(lambda: _from_file(path, overlays), span)
    if name not in overlays:
        raise Mistake(s.token_span(first.name), f"no overlay is called {name}", *did_you_mean(name, overlays), known)
    return overlays[name]


def _from_file(path: Path, overlays: Mapping[str, Overlay]) -> Overlay:
    if not path.is_file():  # opening a pipe or a device would block
        raise ProgramError(f"{path}: no such file")
    return find(str(path), overlays)


def _made(make: Callable[[], Overlay], span: Span, place: Callable[[str], Span | None] = lambda fault: None) -> Overlay:
    """Make an overlay. span: where a mistake is reported, unless `place` knows of a message where it belongs."""
    try:
        return make()
    except (ProgramError, OSError) as e:
        raise Mistake(place(str(e)) or span, str(e)) from None


def _line_of(fault: str, label: str, lines: Sequence[Token]) -> Span | None:
    """The place of the line that a message is about: it names the line's key behind the label. None for no line."""
    about = fault.removeprefix(f"{label}: ")
    for token in lines:
        key = s.unquoted(token).partition(" = ")[0]
        if about.startswith((f"{key}:", f"{key} ")):
            return s.token_span(token)
    return None


class Declarations:
    """Takes declarations one by one, loops around them already unrolled, and enters them into the names of the text.

    names: those of the text. report: where mistakes go. segments: by name, in the order of the text, without their
    uOPs.
    """

    def __init__(self, names: ScopedNames, report: ErrorReport) -> None:
        self.names = names
        self.report = report
        self.segments: dict[str, ProgramSegment] = {}
        self._outputs: list[tuple[SourceText, Token, str]] = []
        """Text, token and name of each output of a segment."""
        self._written: dict[str, tuple[SourceText, Token]] = {}
        """Text and token of each buffer's declaration, by buffer name."""
        self._vectors: list[tuple[SourceText, s.VectorOption, str]] = []

    def take_looped(self, item: s.Item) -> None:
        """Enter a declaration that stands in a loop. Raises `Mistake` for one that may not stand there, and
        as `take`.
        """
        if isinstance(item, s.Const | s.Include | s.Block):
            raise Mistake(s.start_span(item), "constants, blocks and includes cannot stand in a loop")
        self.take(item)

    def take(self, item: s.Item) -> None:
        """Enter a declaration into the names; ignore any other item. Raises `Mistake` if it is wrong, such as a name
        that is taken or a value out of range.
        """
        match item:
            case s.OverlayName():
                raise Mistake(s.token_span(item.name), f"the overlay is already set to {self.names.overlay.name}")
            case s.Const():
                name = self.names.new(item.name)
                self.names.constants[name] = self.names.number(item.value)
            case s.Param():
                self._parameter(item)
            case s.BufferLine():
                self._buffer(item)
            case s.SegmentLine():
                self._segment(item)
            case s.VectorOption():
                # Read in `finish`: the buffer may be declared below it.
                self._vectors.append((self.report.text, item, self.names.name(item.buffer)))

    def finish(self) -> None:
        """Give every buffer an address, set its scale and shift, and check that outputs of segments are buffers.
        Mistakes go to the report.

        Raises `SourceError` once it is full.
        """
        overlay, buffers = self.names.overlay, self.names.buffers
        for b in place_buffers(buffers.values(), overlay.address_unit):
            buffers[b.name] = b
            end, size = b.offset * overlay.address_unit + b.size, overlay.banks[b.bank]
            if 4 * end > size:
                text, token = self._written[b.name]
                with self.report.inside(text):
                    message = f"{b.name} ends at byte {4 * end} of {b.bank}, which has {size} bytes"
                    raise Mistake(s.token_span(token), message)
        for text, vector, name in self._vectors:
            with self.report.inside(text):
                self._vector(vector, name)
        for text, token, name in self._outputs:
            with self.report.inside(text):
                self.names.declared(name, token)

    def _parameter(self, item: s.Param) -> None:
        names = self.names
        name = names.label(item.label)
        if name in names.parameters:
            raise Mistake(s.span(item.label), f"parameter {name} is already declared")
        low, high, default = (names.integer(e) for e in (item.low, item.high, item.default))
        if not low <= default <= high:
            raise Mistake(s.span(item.default), f"{name}: the default {default} is out of range {low}..{high}")
        names.parameters[name] = Parameter(name, low, high, default)

    def _buffer(self, item: s.BufferLine) -> None:
        name = self.names.new(item.name)
        bank, banks = str(item.bank), self.names.overlay.banks
        if bank not in banks:
            note = f"memories of {self.names.overlay.name} are {listing(banks)}"
            raise Mistake(s.token_span(item.bank), f"this datapath has no memory {bank}", note)
        shape = _shape(item.shape)
        layout = Layout.BLOCKED if len(shape) == 2 else Layout.LINEAR
        role, offset, view = Role.SCRATCH, -1, None
        items: tuple[int, ...] = ()
        seen = s.token_span(item.shape)
        for option in item.options:
            match option:
                case s.AtOption():
                    offset = self.names.integer(option.value)
                    if not 0 <= offset < 1 << 48:
                        raise Mistake(s.span(option.value), f"address {offset} is out of range 0..2^48-1")
                case s.ViewOption():
                    view, seen = _shape(option.shape), s.token_span(option.shape)
                case s.RowsOption():
                    items = tuple(self.names.integer(n) for n in option.each)
                case Token() if option in (x.value for x in Layout):
                    layout = Layout(str(option))
                case Token() if option in (x.value for x in Role):
                    role = Role(str(option))
                case _:
                    known = [x.value for x in (*Layout, *Role)]
                    note = f"layouts and roles are {listing(known)}"
                    span = s.token_span(option)
                    raise Mistake(
                        span, f"no layout or role is called {option}", *did_you_mean(str(option), known), note
                    )
        if len(shape) > 2:
            raise Mistake(s.token_span(item.shape), f"a buffer has one or two dimensions, not {len(shape)}")
        if layout is Layout.BLOCKED:
            rows, cols = GRAIN[layout]
            if len(shape) != 2 or shape[0] % rows or shape[1] % cols:
                message = f"a blocked buffer is a whole number of {rows}x{cols} blocks, not {item.shape}"
                raise Mistake(s.token_span(item.shape), message)
        made = Buffer(name, bank, offset, shape, layout, role, view, items)
        if not made.view_fits:
            each = f" with rows {', '.join(map(str, items))}" if items else ""
            raise Mistake(seen, f"the view{each} does not fit in the buffer, {item.shape}")
        self._written[name] = self.report.text, item.name
        self.names.buffers[name] = made

    def _segment(self, item: s.SegmentLine) -> None:
        name = self.names.name(item.name)
        if name in self.segments:
            raise Mistake(s.token_span(item.name), f"segment {name} is already declared")
        said: dict[str, tuple[str, ...]] = {}
        for part in item.parts:
            which = str(part.which)
            if which in said:
                raise Mistake(s.token_span(part.which), f"segment {name} already has its {which}")
            said[which] = tuple(self.names.name(token) for token in part.names)
            if which == "outputs":  # checked in `finish`: the buffers may be declared below it
                named = zip(part.names, said[which], strict=True)
                self._outputs += [(self.report.text, token, output) for token, output in named]
        (kind,) = said.get("kind", ("",))
        self.segments[name] = ProgramSegment(name, said.get("layers", ()), kind, said.get("outputs", ()), {})

    def _vector(self, item: s.VectorOption, name: str) -> None:
        buffer = self.names.declared(name, item.buffer)
        values = _packed(item.numbers) if item.numbers.type == "PACKED" else _listed(item.numbers)
        columns = (buffer.view or buffer.shape)[-1]
        if len(values) not in (columns, buffer.shape[-1]):
            raise Mistake(s.span(item), f"{len(values)} numbers for the {columns} columns of {buffer.name}")
        which = str(item.which)
        if getattr(buffer, which) is not None:
            raise Mistake(s.token_span(item.which), f"{buffer.name} already has a {which}")
        changed: dict[str, Any] = {which: tuple(values)}
        self.names.buffers[name] = dataclasses.replace(buffer, **changed)


_ELEMENT = re.compile(r"[^\s,]+")
_REAL = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


def _listed(numbers: Token) -> list[float]:
    """Read a vector written as numbers: `[1 0.5, -2]`."""
    values = []
    for found in _ELEMENT.finditer(numbers[1:-1]):
        start = s.token_span(numbers)[0] + 1 + found.start()
        span = (start, start + len(found[0]))
        if not _REAL.fullmatch(found[0]):
            raise Mistake(span, f"{found[0]} is not a number")
        values.append(_float32(float(found[0]), span))
    return values


def _packed(numbers: Token) -> list[float]:
    """Read a vector written as `f32"..."`: little-endian float32 in base64."""
    try:
        data = base64.b64decode("".join(numbers[4:-1].split()), validate=True)
        values = list(struct.unpack(f"<{len(data) // 4}f", data))
    except (binascii.Error, ValueError):
        raise Mistake(s.token_span(numbers), "the text in quotes is not base64") from None
    except struct.error:
        raise Mistake(s.token_span(numbers), f"{len(data)} bytes are not a whole number of float32") from None
    if not all(map(isfinite, values)):
        raise Mistake(s.token_span(numbers), "the vector contains a number that is not finite")
    return values


def _float32(value: float, span: Span) -> float:
    try:
        (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        rounded = float("inf")
    if not isfinite(rounded):
        raise Mistake(span, f"{value} is out of range of float32")
    return float(rounded)


def _shape(token: Token) -> tuple[int, ...]:
    shape = tuple(int(n) if len(n) < 16 else 0 for n in token.split("x"))
    if 0 in shape or prod(shape[:16]) >= 1 << 48 or len(shape) > 16:
        raise Mistake(s.token_span(token), "this shape has 2^48 or more elements, which no memory holds")
    return shape
