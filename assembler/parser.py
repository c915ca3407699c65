"""From `.rsn` text to a program. The language is described in docs/rsn-language.md.

Everything a statement may say follows from the overlay: units and kinds from `Overlay.units`, words from the fields of
the record that drives a unit (`spelling`), pieces of buffers from their layout (`slices`).
"""

from __future__ import annotations

import dataclasses
import gc
import operator
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite, prod
from pathlib import Path
from typing import Any

from lark import Token

from ..isa import packet as wire
from ..isa.datapath import Form, Overlay, UnitSpec
from ..isa.errors import FieldError, SourceError
from ..isa.fields import Field, Record
from ..isa.overlays import OVERLAYS
from ..isa.program import (
    Buffer,
    KernelPatch,
    Kernels,
    Layout,
    Parameter,
    Patch,
    Place,
    Program,
    Role,
    place_buffers,
)
from . import syntax as s
from .diagnostic import Mistake, Report, Span, Text, listing, meant
from .slices import GRAIN, Chunks, SliceError, cut, whole
from .spelling import Spelling, spelling

UNROLLED = 1 << 20
"""Loop iterations and statements that a text may unroll into: far above any real image, and seconds to reach."""

NESTED = 32
"""Loops inside loops."""

DEEP = 200
"""Operators inside operators."""

Number = int | float


def parse(text: str, file: str, overlays: Mapping[str, Overlay] = OVERLAYS) -> Program | Kernels:
    """A program, or the kernel sequences it is to be packed from if the text has sections instead of packets.

    `file` is how messages and the source map call the text. Raises `SourceError` with every mistake found.
    """
    # The tree holds no cycles and is alive until the end: all that the collector would do here is count it, again and
    # again, for half of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _Assembler(Text(text, file), overlays).run()
    finally:
        if collecting:
            gc.enable()


def parse_file(path: str | Path, overlays: Mapping[str, Overlay] = OVERLAYS) -> Program | Kernels:
    """`parse` what a file holds. Raises `OSError` where it cannot be read."""
    return parse(read_text(path), str(path), overlays)


def read_text(path: str | Path) -> str:
    """A text as it stands in a file. Raises `SourceError` for what is no text, `OSError` where it cannot be read."""
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise SourceError(f"{path}: error: byte {e.start} is not UTF-8; is this an .rsn text?") from None


@dataclass(frozen=True)
class _Place:
    """Where statements stand: the units they program and the formats they may use. configs: by name."""

    units: tuple[UnitSpec, ...]
    kind: str
    record: type[Record]
    configs: Mapping[str, type[Record]] = field(default_factory=dict)
    preloaded: bool = False


@dataclass(frozen=True)
class _Clamped:
    """A field of one mOP that a run-time parameter sets."""

    parameter: str
    field: str
    base: int
    cap: int


@dataclass(frozen=True)
class _Line:
    """One mOP, unrolled."""

    record: Record
    clamped: tuple[_Clamped, ...]
    number: int


class _Assembler:
    """One run over one text: first the declarations, then everything else in its order."""

    def __init__(self, text: Text, overlays: Mapping[str, Overlay]) -> None:
        self.text = text
        self.report = Report(text)
        self.overlays = overlays
        self.scope: dict[str, Number] = {}
        """Constants and the variables of the loops around."""
        self.buffers: dict[str, Buffer] = {}
        self.parameters: dict[str, Parameter] = {}
        self.packets: list[wire.Packet] = []
        self.places: list[Place] = []
        self.patches: dict[str, list[Patch]] = {}
        self.kernels: dict[str, list[_Line]] = {}
        self.preloaded: dict[str, list[_Line]] = {}
        self.first: dict[str, Token] = {}
        """Where the first section, and the first packet, stands: there may not be both."""
        self.unrolled = 0
        self._lines: dict[int, Place] = {}

    def run(self) -> Program | Kernels:
        items = s.read(self.text)
        try:
            self.overlay = self._overlay(items)
            self._declare(items[1:])
            self.report.check()
            self._assemble(items, 0)
        except Mistake as e:  # one that leaves nothing to go on with
            self.report.add(e)
        self.report.check()
        return self._kernels() if "section" in self.first else self._program()

    # -- results --------------------------------------------------------------------------------------------------

    def _program(self) -> Program:
        patches = {name: tuple(rows) for name, rows in self.patches.items()}
        parameters = [dataclasses.replace(p, patches=patches.get(p.name, ())) for p in self.parameters.values()]
        return Program(
            self.overlay,
            tuple(self.packets),
            {u: tuple(x.record for x in lines) for u, lines in self.preloaded.items()},
            tuple(self.buffers.values()),
            tuple(parameters),
            tuple(self.places),
            {u: tuple(self._at(x.number) for x in lines) for u, lines in self.preloaded.items()},
        )

    def _kernels(self) -> Kernels:
        patches: dict[str, list[KernelPatch]] = {}
        for unit, lines in self.kernels.items():
            for i, line in enumerate(lines):
                for c in line.clamped:
                    patches.setdefault(c.parameter, []).append(KernelPatch(unit, i, c.field, c.base, c.cap))
        return Kernels(
            self.overlay,
            {u: tuple(x.record for x in lines) for u, lines in self.kernels.items()},
            {u: tuple(x.record for x in lines) for u, lines in self.preloaded.items()},
            tuple(self.buffers.values()),
            tuple(self.parameters.values()),
            {name: tuple(rows) for name, rows in patches.items()},
            {u: tuple(self._at(x.number) for x in lines) for u, lines in self.kernels.items()},
            {u: tuple(self._at(x.number) for x in lines) for u, lines in self.preloaded.items()},
        )

    def _at(self, line: int) -> Place:
        if line not in self._lines:
            self._lines[line] = Place(self.text.file, line)
        return self._lines[line]

    # -- declarations ---------------------------------------------------------------------------------------------

    def _overlay(self, items: tuple[s.Item, ...]) -> Overlay:
        first = items[0] if items else None
        if not isinstance(first, s.OverlayName):
            raise Mistake(
                s.start_span(first) if first else (0, 0),
                "a program begins with the overlay it is for",
                self._overlays(),
            )
        name = s.unquoted(first.name)
        if name not in self.overlays:
            close = meant(name, self.overlays)
            raise Mistake(s.token_span(first.name), f"no overlay is called {name}", *close, self._overlays())
        return self.overlays[name]

    def _overlays(self) -> str:
        return f"overlays are {listing(self.overlays)}"

    def _declare(self, items: tuple[s.Item, ...]) -> None:
        """Names first, so that code may use a buffer that is declared below it."""
        vectors = []
        for item in items:
            try:
                match item:
                    case s.OverlayName():
                        raise Mistake(s.token_span(item.name), f"the overlay is {self.overlay.name} already")
                    case s.Const():
                        name = self._new(item.name)
                        self.scope[name] = self._number(item.value)
                    case s.Param():
                        self._parameter(item)
                    case s.BufferLine():
                        self._buffer(item)
                    case s.Vector():
                        vectors.append(item)
            except Mistake as e:
                self.report.add(e)
        placed = place_buffers(self.buffers.values(), self.overlay.address_unit)
        self.buffers = {b.name: b for b in placed}
        for item in items:
            if isinstance(item, s.BufferLine) and (b := self.buffers.get(s.unquoted(item.name))) is not None:
                end, size = b.offset * self.overlay.address_unit + b.size, self.overlay.banks[b.bank]
                if 4 * end > size:
                    message = f"{b.name} ends at byte {4 * end} of {b.bank}, which has {size}"
                    self.report.add(Mistake(s.token_span(item.name), message))
        for vector in vectors:
            try:
                self._vector(vector)
            except Mistake as e:
                self.report.add(e)

    def _new(self, token: Token) -> str:
        name = s.unquoted(token)
        if name in self.scope or name in self.buffers:
            raise Mistake(s.token_span(token), f"{name} has a meaning already")
        return name

    def _parameter(self, item: s.Param) -> None:
        name = _label(item.label)
        if name in self.parameters:
            raise Mistake(s.span(item.label), f"parameter {name} is declared already")
        low, high, default = (self._integer(e) for e in (item.low, item.high, item.default))
        if not low <= default <= high:
            raise Mistake(s.span(item.default), f"{name}: {default} is out of range {low}..{high}")
        self.parameters[name] = Parameter(name, low, high, default)

    def _buffer(self, item: s.BufferLine) -> None:
        name = self._new(item.name)
        bank = str(item.bank)
        if bank not in self.overlay.banks:
            note = f"memories of {self.overlay.name} are {listing(self.overlay.banks)}"
            raise Mistake(s.token_span(item.bank), f"this datapath has no memory {bank}", note)
        shape = _shape(item.shape)
        layout = Layout.BLOCKED if len(shape) == 2 else Layout.LINEAR
        role, offset, view = Role.SCRATCH, -1, None
        for option in item.options:
            match option:
                case s.At():
                    offset = self._integer(option.value)
                    if not 0 <= offset < 1 << 48:
                        raise Mistake(s.span(option.value), f"an address lies within 0..2^48, not at {offset}")
                case s.View():
                    view = _shape(option.shape)
                    if prod(view) > prod(shape):
                        raise Mistake(s.token_span(option.shape), f"the view is larger than the buffer, {item.shape}")
                case Token() if option in (x.value for x in Layout):
                    layout = Layout(str(option))
                case Token() if option in (x.value for x in Role):
                    role = Role(str(option))
                case _:
                    known = [x.value for x in (*Layout, *Role)]
                    note = f"a buffer is {listing(known)}"
                    span = s.token_span(option)
                    raise Mistake(span, f"no layout or role is called {option}", *meant(str(option), known), note)
        if len(shape) > 2:
            raise Mistake(s.token_span(item.shape), "a buffer has one or two dimensions")
        if layout is Layout.BLOCKED:
            rows, cols = GRAIN[layout]
            if len(shape) != 2 or shape[0] % rows or shape[1] % cols:
                message = f"a blocked buffer is a whole number of {rows}x{cols} blocks, not {item.shape}"
                raise Mistake(s.token_span(item.shape), message)
        self.buffers[name] = Buffer(name, bank, offset, shape, layout, role, view)

    def _vector(self, item: s.Vector) -> None:
        buffer = self._find_buffer(item.buffer)
        values = []
        for found in _ELEMENT.finditer(item.numbers[1:-1]):
            start = s.token_span(item.numbers)[0] + 1 + found.start()
            span = (start, start + len(found[0]))
            if not _REAL.fullmatch(found[0]):
                raise Mistake(span, f"{found[0]} is not a number")
            values.append(_float32(float(found[0]), span))
        columns = (buffer.view or buffer.shape)[-1]
        if len(values) not in (columns, buffer.shape[-1]):
            raise Mistake(s.span(item), f"{len(values)} numbers for the {columns} columns of {buffer.name}")
        which = str(item.which)
        if getattr(buffer, which) is not None:
            raise Mistake(s.token_span(item.which), f"{buffer.name} has its {which} already")
        changed: dict[str, Any] = {which: tuple(values)}
        self.buffers[buffer.name] = dataclasses.replace(buffer, **changed)

    # -- items ----------------------------------------------------------------------------------------------------

    def _assemble(self, items: tuple[s.Item, ...], depth: int) -> None:
        for item in items:
            try:
                match item:
                    case s.Section():
                        self._section(item)
                    case s.Packet():
                        self._packet(item)
                    case s.Nop():
                        self._either("packet", item.start)
                        self._append(item.start, wire.Packet(wire.Header(opcode=wire.NOP)))
                    case s.Loop():
                        for _ in self._iterations(item, depth):
                            self._assemble(item.body, depth + 1)
                    case _ if depth:
                        raise Mistake(s.start_span(item), "declarations stand outside of loops")
            except Mistake as e:
                self.report.add(e)

    def _either(self, which: str, token: Token) -> None:
        """Note the first section or packet; there may not be both."""
        self.first.setdefault(which, token)
        for other, there in self.first.items():
            if other != which:
                note = f"line {there.line} has a {other}"
                way = "give every unit a section, or write every packet by hand, terminators included"
                raise Mistake(s.token_span(token), "sections and packets do not mix in one text", note, way)

    def _section(self, item: s.Section) -> None:
        units = self._units(item.units)
        kind = units[0].kind
        preloaded = kind in self.overlay.preloaded
        if preloaded:
            record, limit = self.overlay.preloaded[kind]
            place = _Place(units, kind, record, preloaded=True)
        else:
            self._either("section", item.units[0].name)
            configs = {f.name: f.mop for f in self.overlay.forms if f.kind == kind and f.config}
            place = _Place(units, kind, self._driver(kind, item.units[0]).mop, configs)
        sink = self.preloaded if preloaded else self.kernels
        lists = [sink.setdefault(u.name, []) for u in units]
        for line in self._lines_of(item.body, place, 0):
            for lines in lists:
                lines.append(line)
        if preloaded:
            for unit, lines in zip(units, lists, strict=True):
                if len(lines) > limit:
                    message = f"{unit.name} holds at most {limit} ops, these are {len(lines)}"
                    raise Mistake(s.span(item.units[0]), message)
                if not lines:
                    del self.preloaded[unit.name]

    def _packet(self, item: s.Packet) -> None:
        self._either("packet", item.start)
        form, units, named = self._addressed(item)
        header = {"mask": sum(1 << u.index for u in units) if len(self.overlay.by_kind[form.kind]) > 1 else 0}
        for setting in item.settings:
            name = setting.name
            known = ["mask"] if item.last else ["mask", "reuse"]
            if name not in known:
                note = f"here may be set {listing(known)}"
                raise Mistake(setting.name_span, f"a packet header takes no {name}", *meant(name, known), note)
            if isinstance(setting.value, s.Clamp):
                raise Mistake(s.span(setting.value), "parameters set fields of mOPs, not of headers")
            if name == "mask" and header["mask"] and named:
                raise Mistake(s.span(setting), "the units named make the mask already")
            header[name] = _fitting(wire.Header, name, self._integer(setting.value), s.span(setting))
        if form.config and item.last:
            raise Mistake(s.span(item.units[0]), f"a {form.name} packet cannot be a terminator")
        if not units and all(x.name != "mask" for x in item.settings):
            known = [u.name for u in self.overlay.by_kind[form.kind]]
            raise Mistake(s.span(item.units[0]), f"no unit is named; {form.kind} units are {listing(known)}")
        units = self.overlay.selected(form.opcode, header["mask"])
        if item.last:
            self._append(item.start, wire.Packet.terminator(form.opcode, header["mask"]))
            return
        lines = list(self._lines_of(item.body, _Place(units, form.kind, form.mop), 0))
        room = wire.Header.field("window").bounds[1]
        if len(lines) > room:
            raise Mistake(s.token_span(item.start), f"a packet holds at most {room} mOPs, this one {len(lines)}")
        for i, line in enumerate(lines):
            for c in line.clamped:
                patch = Patch(len(self.packets), i, c.field, c.base, c.cap)
                self.patches.setdefault(c.parameter, []).append(patch)
        self._append(item.start, wire.Packet.of(form.opcode, [x.record for x in lines], **header))

    def _append(self, start: Token, packet: wire.Packet) -> None:
        self._spend(s.token_span(start))
        self.packets.append(packet)
        self.places.append(self._at(_line(start)))

    def _addressed(self, item: s.Packet) -> tuple[Form, tuple[UnitSpec, ...], bool]:
        """The format and units of a packet: `MemA[0, 2]`, `MemCConfig MemC0`, or a format alone (with mask=)."""
        if not item.units:
            raise Mistake(s.token_span(item.start), "which units is it for?")
        first = item.units[0]
        name = str(first.name)
        if first.ranges is None and name in self.overlay.by_form and name not in self.overlay.by_unit:
            form = self.overlay.by_form[name]
            alone = self.overlay.by_kind[form.kind]
            if len(item.units) == 1:
                return form, alone if len(alone) == 1 else (), False
            units = self._units(item.units[1:])
            if units[0].kind != form.kind:
                raise Mistake(s.span(item.units[1]), f"{name} is for {form.kind} units, not for {units[0].name}")
            return form, units, True
        units = self._units(item.units)
        kind = units[0].kind
        if kind in self.overlay.preloaded:
            raise Mistake(s.span(first), f"{kind} ops do not travel in packets", f"write {kind}[...] {{ ... }} instead")
        return self._driver(kind, first), units, True

    def _driver(self, kind: str, ref: s.Unit) -> Form:
        """The format that drives a kind of units."""
        if all(f.config for f in self.overlay.forms if f.kind == kind):
            raise Mistake(s.span(ref), f"{kind} units take no instructions")
        return self.overlay.form_of(kind)

    def _units(self, refs: tuple[s.Unit, ...]) -> tuple[UnitSpec, ...]:
        """The units of a list such as `MemC[0..2] MemC5`, all of one kind."""
        out: dict[str, UnitSpec] = {}
        kind = ""
        for ref in refs:
            for unit in self._unit(ref):
                if unit.name in out:
                    raise Mistake(s.span(ref), f"{unit.name} is named twice")
                if unit.kind != (kind := kind or unit.kind):
                    raise Mistake(s.span(ref), f"{unit.name} is no {kind} unit; a group is of one kind")
                out[unit.name] = unit
        return tuple(out.values())

    def _unit(self, ref: s.Unit) -> Iterator[UnitSpec]:
        name = str(ref.name)
        if ref.ranges is None:
            if name not in self.overlay.by_unit:
                raise self._no_unit(name, s.span(ref))
            yield self.overlay.by_unit[name]
            return
        if name not in self.overlay.by_kind:
            raise Mistake(s.token_span(ref.name), f"this datapath has no {name} units", *self._kinds(name))
        there = {u.index: u for u in self.overlay.by_kind[name]}
        for first, last in ref.ranges:
            if s.number(first) > s.number(last):
                raise Mistake((s.token_span(first)[0], s.token_span(last)[1]), f"{first}..{last} runs backwards")
            for index in range(s.number(first), min(s.number(last), s.number(first) + len(there)) + 1):
                if index not in there:
                    raise self._no_unit(f"{name}{index}", (s.token_span(first)[0], s.token_span(last)[1]))
                yield there[index]

    def _kinds(self, name: str) -> tuple[str, ...]:
        return (*meant(name, self.overlay.by_kind), f"kinds of units are {listing(self.overlay.by_kind)}")

    def _no_unit(self, name: str, span: Span) -> Mistake:
        kind = name.rstrip("0123456789")
        if kind in self.overlay.by_kind:
            note = f"{kind} units are {listing(u.name for u in self.overlay.by_kind[kind])}"
            return Mistake(span, f"this datapath has no {name}", note)
        close = meant(name, self.overlay.by_unit)
        return Mistake(span, f"this datapath has no {name}", *close, f"units are {listing(self.overlay.by_unit)}")

    # -- statements -----------------------------------------------------------------------------------------------

    def _spend(self, span: Span) -> None:
        self.unrolled += 1
        if self.unrolled > UNROLLED:
            self.report.add(Mistake(span, f"the text unrolls into more than {UNROLLED} statements"))
            self.report.check()

    def _iterations(self, loop: s.Loop, depth: int) -> Iterator[None]:
        if depth >= NESTED:
            raise Mistake(s.token_span(loop.start), f"more than {NESTED} loops inside each other")
        bounds = loop.range
        low = 0 if bounds.low is None else self._integer(bounds.low)
        high = self._integer(bounds.high)
        if high < low:
            raise Mistake(s.span(bounds.high), f"{low}..{high} runs backwards")
        name = None if bounds.variable is None else self._new(bounds.variable)
        try:
            for i in range(low, high):
                self._spend(s.token_span(loop.start))
                if name is not None:
                    self.scope[name] = i
                yield
        finally:
            if name is not None:
                self.scope.pop(name, None)

    def _lines_of(self, body: tuple[s.Mop | s.Loop, ...], place: _Place, depth: int) -> Iterator[_Line]:
        for statement in body:
            if isinstance(statement, s.Loop):
                try:
                    for _ in self._iterations(statement, depth):
                        yield from self._lines_of(statement.body, place, depth + 1)
                except Mistake as e:
                    self.report.add(e)
                continue
            first = statement.words[0][0]
            self._spend(s.token_span(first))
            line = self._mop(statement.words, place)
            if line is not None:
                yield line

    def _mop(self, words: tuple[s.Word, ...], place: _Place) -> _Line | None:
        """One mOP from the words of a statement; None when they hold mistakes, which are then reported."""
        first = words[0]
        record, begin = place.record, 0
        if isinstance(first, s.Bare) and str(first.name) in place.configs:
            record, begin = place.configs[str(first.name)], 1
        mop = _Mop(self, place, record)
        sound, i = True, begin
        while i < len(words):
            word, following = words[i], words[i + 1] if i + 1 < len(words) else None
            i += 1
            try:
                if isinstance(word, s.Bare) and isinstance(following, s.To) and mop.routes(word):
                    i += 1
                    mop.route(word, following)
                else:
                    mop.word(word)
            except Mistake as e:
                self.report.add(e)
                sound = False
        if not sound:
            return None
        try:
            return _Line(mop.record(), tuple(mop.clamped), _line(first[0]))
        except Mistake as e:
            self.report.add(e)
            return None

    # -- names and numbers ----------------------------------------------------------------------------------------

    def _find_buffer(self, token: Token) -> Buffer:
        name = s.unquoted(token)
        try:
            return self.buffers[name]
        except KeyError:
            raise Mistake(s.token_span(token), f"no buffer is called {name}", *self._buffers(name)) from None

    def _buffers(self, name: str) -> tuple[str, ...]:
        known = f"buffers are {listing(self.buffers)}" if self.buffers else "no buffer is declared"
        return (*meant(name, self.buffers), known)

    def _integer(self, e: s.Expr, place: _Place | None = None) -> int:
        value = self._number(e, place)
        if not isinstance(value, int):
            raise Mistake(s.span(e), f"an integer belongs here, not {value}")
        return value

    def _number(self, e: s.Expr, place: _Place | None = None, depth: int = 0) -> Number:
        """The value of an expression. With `place`, names of buffers stand for their addresses."""
        if isinstance(e, Token):
            if e.type == "INT":
                return s.number(e)
            return float(e) if e.type == "REAL" else self._named(e, place)
        if depth > DEEP:
            raise Mistake(s.span(e), "this expression is nested too deeply")
        if isinstance(e, s.Negate):
            return -self._number(e.operand, place, depth + 1)
        left, right = self._number(e.left, place, depth + 1), self._number(e.right, place, depth + 1)
        if e.op in ("/", "%") and not right:
            raise Mistake(s.span(e), "division by zero")
        if e.op == "/" and isinstance(left, int) and isinstance(right, int):
            if left % right:
                raise Mistake(s.span(e), f"{left}/{right} is not a whole number", "divisions of integers are exact")
            return left // right
        value: Number = _OPERATORS[str(e.op)](left, right)
        if isinstance(value, int) and abs(value) >= s.LIMIT:
            raise Mistake(s.span(e), "this is beyond 64 bits")
        return value

    def _named(self, token: Token, place: _Place | None) -> Number:
        name = s.unquoted(token)
        if name in self.scope and token.type == "NAME":
            return self.scope[name]
        if name in self.buffers:
            if place is None:
                raise Mistake(s.token_span(token), f"{name} is a buffer; its address belongs into addr")
            return self._reached(self.buffers[name], token, place).offset
        if name in self.parameters:
            way = f"clamp({name}-0, 0, 256) puts it into a field"
            raise Mistake(s.token_span(token), f"parameter {name} is known only at run time", way)
        known = [*self.scope, *(self.buffers if place else ())]
        note = f"names are {listing(known)}" if known else "no constant is declared"
        raise Mistake(s.token_span(token), f"{name} means nothing here", *meant(name, known), note)

    def _reached(self, buffer: Buffer, token: Token, place: _Place) -> Buffer:
        """The buffer, if the units can reach its bank."""
        for unit in place.units:
            if unit.bank != buffer.bank:
                reach = f"{unit.name} reaches {unit.bank}" if unit.bank else f"{unit.name} reaches no memory"
                raise Mistake(s.token_span(token), f"{buffer.name} lies in {buffer.bank}; {reach}")
        return buffer


class _Mop:
    """The fields of one mOP, as the words of its statement set them."""

    def __init__(self, assembler: _Assembler, place: _Place, record: type[Record]) -> None:
        self.asm = assembler
        self.place = place
        self.type = record
        self.spelling: Spelling = spelling(record)
        self.values: dict[str, Number] = {}
        self.origin: dict[str, Any] = {}
        self.clamped: list[_Clamped] = []

    def record(self) -> Record:
        try:
            return self.type(**self.values)
        except FieldError as whole_error:
            for name, value in self.values.items():
                _fitting(self.type, name, value, s.span(self.origin[name]))
            raise Mistake(s.span(next(iter(self.origin.values()))), str(whole_error)) from None

    def set(self, name: str, value: Number, word: s.Word) -> None:
        if name in self.values:
            raise Mistake(s.span(word), f"{name} is set twice")
        self.values[name] = value
        self.origin[name] = word

    def routes(self, word: s.Bare) -> bool:
        """Whether the word begins `A->B`; else an arrow behind it is a word of its own (`load -> MemA0`)."""
        return str(word.name) in self.asm.overlay.by_unit and str(word.name) not in self.spelling.fields

    def route(self, word: s.Bare, following: s.To) -> None:
        edge = (str(word.name), str(following.unit))
        if edge in self.spelling.routes:
            self.set(self.spelling.routes[edge].name, 1, following)
            return
        if edge[1] not in self.asm.overlay.by_unit:
            raise self.asm._no_unit(edge[1], s.token_span(following.unit))
        known = [f"{a}->{b}" for a, b in self.spelling.routes]
        note = f"its routes are {listing(known)}" if known else "it has no routes"
        span = (s.token_span(word.name)[0], s.token_span(following.unit)[1])
        raise Mistake(span, f"{self._who} has no route {edge[0]}->{edge[1]}", note)

    @property
    def _who(self) -> str:
        units = self.place.units
        return units[0].name if len(units) == 1 else self.place.kind

    def word(self, word: s.Word) -> None:
        match word:
            case s.Setting():
                self._setting(word)
            case s.To():
                self._peer(word, self.spelling.to, "send to", "sends to")
            case s.Source():
                self._peer(word, self.spelling.source, "take from", "takes from")
            case s.Slice():
                self._slice(word)
            case s.Bare():
                self._bare(word)

    def _bare(self, word: s.Bare) -> None:
        name = s.unquoted(word.name)
        quoted = word.name.type == "STRING"
        f = None if quoted else self.spelling.fields.get(name)
        if f is not None and f.flag:
            self.set(name, 1, word)
        elif f is not None:
            raise Mistake(s.token_span(word.name), f"{name} needs a value: {name}=...")
        elif self.spelling.sliced and (quoted or name in self.asm.buffers):
            self._chunks(whole(self._reach(word.name)), word)
        else:
            raise self._unknown(name, s.token_span(word.name), self.spelling.flags, "flags")

    def _unknown(self, name: str, span: Span, known: list[str], what: str) -> Mistake:
        buffers = list(self.asm.buffers) if self.spelling.sliced and what == "flags" else []
        notes = [f"its {what} are {listing(known)}"] if known else [f"it has no {what}"]
        if buffers:
            notes.append(f"buffers are {listing(buffers)}")
        close = meant(name, [*known, *buffers])
        return Mistake(span, f"{self.type.__name__} has no {name}", *close, *notes)

    def _peer(self, word: s.To | s.Source, peers: Mapping[str | None, Field], verb: str, verbs: str) -> None:
        name = str(word.unit)
        if name in peers:
            self.set(peers[name].name, 1, word)
        elif name not in self.asm.overlay.by_unit:
            raise self.asm._no_unit(name, s.token_span(word.unit))
        else:
            note = f"it {verbs} {listing(map(str, peers))}" if peers else f"it {verbs} no unit by name"
            raise Mistake(s.token_span(word.unit), f"{self._who} cannot {verb} {name}", note)

    def _setting(self, word: s.Setting) -> None:
        name = word.name
        f = self.spelling.fields.get(name)
        if f is None:
            raise self._unknown(name, word.name_span, list(self.spelling.fields), "fields")
        if isinstance(word.value, s.Clamp):
            self.set(name, self._clamp(f, word.value), word)
        elif f.real:
            self.set(name, float(self.asm._number(word.value)), word)
        else:
            self.set(name, self.asm._integer(word.value, self.place if name == "addr" else None), word)

    def _clamp(self, f: Field, value: s.Clamp) -> int:
        """The value for the parameter's default; what to patch is noted."""
        name = _label(value.label)
        parameter = self.asm.parameters.get(name)
        if parameter is None:
            known = self.asm.parameters
            note = f"parameters are {listing(known)}" if known else "no parameter is declared"
            raise Mistake(s.span(value.label), f"no parameter is called {name}", *meant(name, known), note)
        if self.place.preloaded:
            raise Mistake(s.span(value), f"{self.place.kind} ops are loaded beforehand; parameters reach packets only")
        if f.real:
            raise Mistake(s.span(value), f"{f.name} is a real number; parameters are integers")
        base = 0 if value.base is None else self.asm._integer(value.base)
        if value.sign == "+":
            base = -base
        if self.asm._integer(value.low) != 0:
            raise Mistake(s.span(value.low), "the lower bound of a clamp is 0")
        cap = self.asm._integer(value.cap)
        if cap < 0:
            raise Mistake(s.span(value.cap), "the upper bound of a clamp is at least 0")
        _fitting(self.type, f.name, cap, s.span(value.cap))
        self.clamped.append(_Clamped(name, f.name, base, cap))
        return Patch(0, 0, f.name, base, cap).value(parameter.default)

    def _reach(self, token: Token) -> Buffer:
        return self.asm._reached(self.asm._find_buffer(token), token, self.place)

    def _slice(self, word: s.Slice) -> None:
        if not self.spelling.sliced:
            raise Mistake(s.span(word), f"{self.type.__name__} takes no buffer")
        buffer = self._reach(word.buffer)
        bounds = []
        for dim in word.dims:
            start, end = self.asm._integer(dim.start), self.asm._integer(dim.end)
            bounds.append((start, start + end if dim.extent else end))
        try:
            chunks = cut(buffer, bounds, self.asm.overlay.address_unit)
        except SliceError as e:
            span = s.span(word if e.dim is None else word.dims[e.dim])
            shape = "x".join(map(str, buffer.shape))
            raise Mistake(span, str(e), f"{buffer.name} is {shape} {buffer.layout.value}") from None
        self._chunks(chunks, word)

    def _chunks(self, chunks: Chunks, word: s.Word) -> None:
        self.set("addr", chunks.addr, word)
        self.set("size", chunks.size, word)
        if self.spelling.chunked:
            self.set("chunks", chunks.chunks, word)
            self.set("chunk_stride", chunks.stride, word)
        elif chunks.chunks > 1:
            raise Mistake(s.span(word), f"these are {chunks.chunks} chunks; {self.type.__name__} moves one")


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
}

_ELEMENT = re.compile(r"[^\s,]+")
_REAL = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


def _float32(value: float, span: Span) -> float:
    try:
        (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        rounded = float("inf")
    if not isfinite(rounded):
        raise Mistake(span, f"{value} is beyond float32")
    return float(rounded)


def _fitting(record: type[Record], name: str, value: Number, span: Span) -> Any:
    """The value, if its field holds it; the record says what is wrong with it."""
    try:
        record(**{name: value})
    except FieldError as e:
        raise Mistake(span, str(e)) from None
    return value


def _label(label: s.Label) -> str:
    return s.unquoted(label.token) if label.number is None else f"{label.token}[{s.number(label.number)}]"


def _shape(token: Token) -> tuple[int, ...]:
    shape = tuple(int(n) if len(n) < 16 else 0 for n in token.split("x"))
    if 0 in shape or prod(shape[:16]) >= 1 << 48 or len(shape) > 16:
        raise Mistake(s.token_span(token), "no memory is that large")
    return shape


def _line(token: Token) -> int:
    assert token.line is not None
    return token.line
