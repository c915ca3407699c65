"""Read statements: the words of one statement set the fields of one mOP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lark import Token

from ..base.errors import FieldError
from ..isa.fields import Field, Record
from ..isa.program import Buffer, Patch, SourceLine
from ..machine.description import UnitSpec
from . import syntax as s
from .diagnostic import ErrorReport, Mistake, Span, did_you_mean, listing
from .names import Number, ScopedNames
from .slices import Chunks, SliceError, cut, whole_buffer
from .spelling import Spelling, spelling


@dataclass(frozen=True)
class Site:
    """The section or packet in which statements stand.

    units, kind: the units that the statements are for, and their FU type. record: the format of their mOPs. configs:
    formats that a statement may name instead, by name. preloaded: whether the statements are ops of an op list.
    """

    units: tuple[UnitSpec, ...]
    kind: str
    record: type[Record]
    configs: Mapping[str, type[Record]] = field(default_factory=dict)
    preloaded: bool = False


@dataclass(frozen=True)
class Clamped:
    """A field of one mOP that a run-time parameter sets to clamp(parameter - base, 0, cap)."""

    parameter: str
    field: str
    base: int
    cap: int


@dataclass(frozen=True)
class UnrolledMop:
    """One mOP of the unrolled text, the fields that run-time parameters set in it, and its source line."""

    record: Record
    clamped: tuple[Clamped, ...]
    place: SourceLine


class Statements:
    """Reads statements as mOPs. names: those of the text. report: where mistakes go."""

    def __init__(self, names: ScopedNames, report: ErrorReport) -> None:
        self.names = names
        self.report = report
        self._places: dict[tuple[str, int], SourceLine] = {}

    def place(self, token: Token) -> SourceLine:
        """Return the source line of a token; one object per line, because a program has very many."""
        key = self.report.text.file, s.line(token)
        if key not in self._places:
            self._places[key] = SourceLine(*key)
        return self._places[key]

    def read(self, words: tuple[s.Word, ...], site: Site) -> UnrolledMop | None:
        """Read the words of a statement, at least one, as one mOP; None if they contain mistakes, which go to the
        report (`SourceError` once it is full)."""
        first = words[0]
        record, begin = site.record, 0
        if isinstance(first, s.Bare) and str(first.name) in site.configs:
            record, begin = site.configs[str(first.name)], 1
        mop = _Mop(self.names, site, record)
        sound, i = True, begin
        while i < len(words):
            word, following = words[i], words[i + 1] if i + 1 < len(words) else None
            i += 1
            try:
                source = mop.route_source(word) if isinstance(following, s.To) else None
                if source is not None and isinstance(following, s.To):
                    i += 1
                    mop.route(source, following)
                else:
                    mop.word(word)
            except Mistake as e:
                self.report.add(e)
                sound = False
        if not sound:
            return None
        try:
            return UnrolledMop(mop.record(), tuple(mop.clamped), self.place(first[0]))
        except Mistake as e:
            self.report.add(e)
            return None


class _Mop:
    """Collects the fields of one mOP from the words of its statement."""

    def __init__(self, names: ScopedNames, site: Site, record: type[Record]) -> None:
        self.names = names
        self.site = site
        self.type = record
        self.spelling: Spelling = spelling(record)
        self.values: dict[str, Number] = {}
        self.origin: dict[str, Any] = {}
        self.clamped: list[Clamped] = []

    def record(self) -> Record:
        """Return the finished mOP. Raises `Mistake`, at the word at fault, if a value does not fit its field."""
        try:
            return self.type(**self.values)
        except FieldError as whole_error:
            for name, value in self.values.items():
                fitting(self.type, name, value, s.span(self.origin[name]))
            raise Mistake(s.span(next(iter(self.origin.values()))), str(whole_error)) from None

    def set(self, name: str, value: Number, word: s.Word) -> None:
        """Set a field; `word` is the word that asks for it. Raises `Mistake` if it is already set."""
        if name in self.values:
            raise Mistake(s.span(word), f"{name} is set twice")
        self.values[name] = value
        self.origin[name] = word

    def route_source(self, word: s.Word) -> s.UnitSelection | None:
        """Return the unit that a word before an arrow names: word and arrow are then one route, `MemA0->MME0`. None if
        the word is a field or names no unit: the arrow is then a word of its own, as in `load -> MemA0`."""
        if isinstance(word, s.Bare) and str(word.name) in self.spelling.fields:
            return None
        return self.names.route_source(word)

    def route(self, source: s.UnitSelection, following: s.To) -> None:
        """Set the field of the route from `source` to the unit behind the arrow. Raises `Mistake` if there is none."""
        edge = self.names.peer(s.To(*_alone(source))), self.names.peer(following)
        if edge in self.spelling.routes:
            self.set(self.spelling.routes[edge].name, 1, following)
            return
        known = [f"{a}->{b}" for a, b in self.spelling.routes]
        note = f"its routes are {listing(known)}" if known else "it has no routes"
        span = (s.token_span(source.name)[0], s.span(following)[1])
        raise Mistake(span, f"{self._who} has no route {edge[0]}->{edge[1]}", note)

    @property
    def _who(self) -> str:
        units = self.site.units
        return units[0].name if len(units) == 1 else self.site.kind

    def word(self, word: s.Word) -> None:
        """Set the fields that one word stands for. Raises `Mistake`."""
        match word:
            case s.FieldSetting():
                self._setting(word)
            case s.To():
                self._peer(word, self.spelling.to, "send to", "sends to")
            case s.SourceUnit():
                self._peer(word, self.spelling.source, "take from", "takes from")
            case s.Slice():
                self._slice(word)
            case s.Bare():
                self._bare(word)

    def _bare(self, word: s.Bare) -> None:
        name = str(word.name)
        f = self.spelling.fields.get(name)
        if f is not None and f.flag:
            self.set(name, 1, word)
        elif f is not None:
            raise Mistake(s.token_span(word.name), f"{name} needs a value: {name}=...")
        elif self.spelling.sliced and self.names.is_buffer(word.name):
            self._chunks(whole_buffer(self._reached(word.name)), word)
        else:
            raise self._unknown(name, s.token_span(word.name), self.spelling.flags, "flags")

    def _unknown(self, name: str, span: Span, known: list[str], what: str) -> Mistake:
        buffers = list(self.names.buffers) if self.spelling.sliced and what == "flags" else []
        notes = [f"its {what} are {listing(known)}"] if known else [f"it has no {what}"]
        if buffers:
            notes.append(f"buffers are {listing(buffers)}")
        close = did_you_mean(name, [*known, *buffers])
        return Mistake(span, f"{self.type.NAME} has no {name}", *close, *notes)

    def _peer(self, word: s.To | s.SourceUnit, peers: Mapping[str | None, Field], verb: str, verbs: str) -> None:
        # Search by name first: a peer need not be one of the overlay's units.
        plain = word.number is None and self.names.local(word.unit) is None and str(word.unit) in peers
        name = str(word.unit) if plain else self.names.peer(word)
        if name in peers:
            self.set(peers[name].name, 1, word)
            return
        note = f"it {verbs} {listing(map(str, peers))}" if peers else f"it {verbs} no unit by name"
        raise Mistake(s.span(word), f"{self._who} cannot {verb} {name}", note)

    def _setting(self, word: s.FieldSetting) -> None:
        name = word.name
        f = self.spelling.fields.get(name)
        if f is None:
            raise self._unknown(name, word.name_span, list(self.spelling.fields), "fields")
        if isinstance(word.value, s.Clamp):
            self.set(name, self._clamp(f, word.value), word)
        elif f.real:
            self.set(name, float(self.names.number(word.value)), word)
        else:
            self.set(name, self.names.integer(word.value, self.site.units if name == "addr" else None), word)

    def _clamp(self, f: Field, value: s.Clamp) -> int:
        """Return the field's value at the parameter's default, and note the patch in `clamped`."""
        name = self.names.label(value.label)
        parameter = self.names.parameters.get(name)
        if parameter is None:
            known = self.names.parameters
            note = f"parameters are {listing(known)}" if known else "no parameter is declared"
            raise Mistake(s.span(value.label), f"no parameter is called {name}", *did_you_mean(name, known), note)
        if self.site.preloaded:
            raise Mistake(s.span(value), f"{self.site.kind} ops are loaded beforehand; parameters change only packets")
        if f.real:
            raise Mistake(s.span(value), f"{f.name} is a real number, but parameters are integers")
        base = 0 if value.base is None else self.names.integer(value.base)
        if value.sign == "+":
            base = -base
        if self.names.integer(value.low) != 0:
            raise Mistake(s.span(value.low), "the lower bound of a clamp must be 0")
        cap = self.names.integer(value.cap)
        if cap < 0:
            raise Mistake(s.span(value.cap), f"the upper bound of a clamp must be at least 0, not {cap}")
        fitting(self.type, f.name, cap, s.span(value.cap))
        self.clamped.append(Clamped(name, f.name, base, cap))
        return Patch(0, 0, f.name, base, cap).value(parameter.default)

    def _reached(self, token: Token) -> Buffer:
        """The buffer that a token names. Raises `Mistake` if the units cannot access it."""
        buffer = self.names.buffer(token)
        self.names.require_reach(buffer, token, self.site.units)
        return buffer

    def _slice(self, word: s.Slice) -> None:
        if not self.spelling.sliced:
            raise Mistake(s.span(word), f"{self.type.NAME} takes no buffer")
        buffer = self._reached(word.name)
        bounds = []
        for sub in word.subs:
            if not sub.bounds:
                raise Mistake(s.span(sub), "write a range of a buffer as start:end or start:+extent")
            start, end = self.names.integer(sub.start), self.names.integer(sub.end)
            bounds.append((start, start + end if sub.how == ":+" else end))
        try:
            chunks = cut(buffer, bounds, self.names.overlay.address_unit)
        except SliceError as e:
            span = s.span(word if e.dim is None else word.subs[e.dim])
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
            message = f"this piece is {chunks.chunks} chunks in memory; {self.type.NAME} moves one"
            raise Mistake(s.span(word), message)


def _alone(unit: s.UnitSelection) -> tuple[Token, s.Expr | None, Token]:
    """Convert a unit before an arrow to the fields of `syntax.To`. Raises `Mistake` if it is several units."""
    if unit.ranges is None:
        return unit.name, None, unit.end
    if len(unit.ranges) != 1 or unit.ranges[0].how:
        raise Mistake(s.span(unit), "an arrow takes one unit")
    return unit.name, unit.ranges[0].start, unit.end


def fitting(record: type[Record], name: str, value: Number, span: Span) -> Any:
    """Return the value if it fits the record's field of this name. Raises `Mistake`, at `span`, if it does not fit or
    there is no such field.
    """
    try:
        record(**{name: value})
    except FieldError as e:
        raise Mistake(span, str(e)) from None
    return value
