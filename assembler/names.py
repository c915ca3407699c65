"""Resolve names and evaluate expressions of a text: numbers, buffers, run-time parameters and units, in scopes."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lark import Token

from ..isa.overlay import InstructionFormat, Overlay
from ..isa.program import Buffer, Parameter
from ..machine.description import UnitSpec
from . import syntax as s
from .diagnostic import Mistake, Span, did_you_mean, listing

DEEP = 200
"""Limit of nested operators in an expression."""

OPERATIONS = 1 << 22
"""Limit of operators evaluated per text, in unrolled loops too: it keeps every text within seconds."""

Number = int | float
Value = int | float | Buffer | tuple[UnitSpec, ...]
"""Value of a block's parameter: a number, a buffer, or units of one kind."""


class _Letters(str):
    """A literal part of a quoted name, as opposed to an expression in braces."""


class ScopedNames:
    """The names of a text for an overlay, and their scopes.

    Constants, buffers and run-time parameters are global. Loop variables and block parameters are local: inside a block
    its own are visible and the caller's are not, and they hide globals of the same name.
    """

    def __init__(self, overlay: Overlay) -> None:
        self.overlay = overlay
        self.constants: dict[str, Number] = {}
        self.buffers: dict[str, Buffer] = {}
        self.parameters: dict[str, Parameter] = {}
        self._local: dict[str, Value] = {}
        self._in_block = False
        self._operations = 0
        self._templates: dict[int, tuple[Token, list[_Letters | s.Expr]]] = {}

    # -- scopes ---------------------------------------------------------------------------------------------------

    def new(self, token: Token) -> str:
        """Return the name that a declaration gives. Raises `Mistake` if it is already defined in this scope, or if the
        token is no valid name.
        """
        name = self.name(token)
        outside = name in self.constants or name in self.buffers
        if name in self._local or (outside and not self._in_block):
            raise Mistake(s.token_span(token), f"{name} is already defined")
        return name

    @contextmanager
    def variable(self, token: Token) -> Iterator[Callable[[int], None]]:
        """Context in which a loop variable exists; it yields a function that sets the variable.

        Raises `Mistake` as `new`.
        """
        name = self.new(token)
        try:
            yield lambda value: self._local.__setitem__(name, value)
        finally:
            self._local.pop(name, None)

    @contextmanager
    def frame(self, values: Mapping[str, Value]) -> Iterator[None]:
        """Context of a block's body: its parameters are the only local names. values: of these parameters, by name."""
        before = self._local, self._in_block
        self._local, self._in_block = dict(values), True
        try:
            yield
        finally:
            self._local, self._in_block = before

    def local(self, token: Token) -> Value | None:
        """Return the value of a loop variable or block parameter; None if the token names none."""
        return self._local.get(str(token)) if token.type == "NAME" else None

    def argument(self, e: s.Expr | s.UnitSelection) -> Value:
        """Evaluate an argument of a call in the scope of the caller. Returns units of one kind, a buffer or a number.
        e: the argument. Raises `Mistake` for any other argument."""
        if isinstance(e, s.UnitSelection):
            return self.units((e,))
        if isinstance(e, Token) and e.type in ("NAME", "STRING"):
            value = self.local(e)
            if value is not None:
                return value
            if e.type == "NAME" and str(e) in self.overlay.by_unit:
                return (self.overlay.by_unit[str(e)],)
            if self.is_buffer(e):
                return self.buffer(e)
        return self.number(e)

    # -- quoted names ---------------------------------------------------------------------------------------------

    def name(self, token: Token) -> str:
        """Return the text of a NAME, or of a STRING with its expressions in braces evaluated (`"layer{i}.x"`). Raises
        `Mistake` for a text in quotes that cannot be decoded, or an expression that is no integer.
        """
        if token.type != "STRING":
            return str(token)
        if id(token) not in self._templates:
            self._templates[id(token)] = token, list(_pieces(token))
        _, pieces = self._templates[id(token)]
        return "".join(x if isinstance(x, _Letters) else str(self.integer(x)) for x in pieces)

    def label(self, label: s.Label) -> str:
        """Return the name of a run-time parameter, its index evaluated.

        Raises `Mistake` as `name`, or for an index that is no integer.
        """
        stem = self.name(label.token)
        return stem if label.number is None else f"{stem}[{self.integer(label.number)}]"

    # -- numbers --------------------------------------------------------------------------------------------------

    def integer(self, e: s.Expr, units: tuple[UnitSpec, ...] | None = None) -> int:
        """Evaluate an expression, as `number` does with the same arguments. Raises `Mistake` as `number`, or if the
        value is not an integer.
        """
        value = self.number(e, units)
        if not isinstance(value, int):
            raise Mistake(s.span(e), f"this must be an integer, not {value}")
        return value

    def number(self, e: s.Expr, units: tuple[UnitSpec, ...] | None = None, depth: int = 0) -> Number:
        """Evaluate an expression. Integers stay exact: a division must be exact, and values fit in 64 bits, signed.

        units: the units that use the value as an address; a buffer's name then stands for its address, in address
        units. None: the value is no address. depth: number of operators around the expression. Raises `Mistake` for an
        unknown name, a division that is not exact or by zero, a value that is too large, and an expression that is too
        deep or too long."""
        if isinstance(e, Token):
            if e.type == "INT":
                return s.number(e)
            return float(e) if e.type == "REAL" else self._named(e, units)
        if depth > DEEP:
            raise Mistake(s.span(e), "this expression is nested too deeply")
        self._operations += 1
        if self._operations > OPERATIONS:
            raise Mistake(s.span(e), f"the text evaluates more than {OPERATIONS} operators")
        if isinstance(e, s.Negate):
            return -self.number(e.operand, units, depth + 1)
        left, right = self.number(e.left, units, depth + 1), self.number(e.right, units, depth + 1)
        op: str = e.op.value  # a token takes ten times as long to compare
        if op in "/%" and not right:
            raise Mistake(s.span(e), "division by zero")
        if op == "/" and isinstance(left, int) and isinstance(right, int):
            if left % right:
                raise Mistake(s.span(e), f"{left}/{right} is not a whole number", "integer division must be exact")
            return left // right
        value: Number = _OPERATORS[op](left, right)
        if isinstance(value, int) and abs(value) >= s.LIMIT:
            raise Mistake(s.span(e), "this value does not fit in 64 bits")
        return value

    def _named(self, token: Token, units: tuple[UnitSpec, ...] | None) -> Number:
        name = self.name(token)
        value = self.local(token)
        if value is None and token.type == "NAME":
            value = self.constants.get(name)
        if value is None:
            value = self.buffers.get(name)
        if isinstance(value, int | float):
            return value
        if isinstance(value, Buffer):
            if units is None:
                raise Mistake(s.token_span(token), f"{name} is a buffer; only addr= takes the address of one")
            self.require_reach(value, token, units)
            return value.offset
        if value is not None:
            raise Mistake(s.token_span(token), f"{name} stands for {listing(u.name for u in value)}, not for a number")
        if name in self.parameters:
            hint = f"write clamp({name}-0, 0, 256) to put it into a field"
            raise Mistake(s.token_span(token), f"parameter {name} is known only at run time", hint)
        known = [*self._local, *self.constants, *(self.buffers if units else ())]
        note = f"names are {listing(known)}" if known else "no constant is declared"
        raise Mistake(s.token_span(token), f"{name} is not defined here", *did_you_mean(name, known), note)

    # -- buffers --------------------------------------------------------------------------------------------------

    def is_buffer(self, token: Token) -> bool:
        """Return whether a token names a buffer: a block parameter or a declared one. A word in quotes always does."""
        local = self.local(token)
        return isinstance(local, Buffer) or token.type == "STRING" or (local is None and str(token) in self.buffers)

    def buffer(self, token: Token) -> Buffer:
        """Return the buffer that a token names, a block parameter or a declared one. Raises `Mistake` if it
        names none.
        """
        local = self.local(token)
        if isinstance(local, Buffer):
            return local
        name = self.name(token)
        if local is not None:
            raise Mistake(s.token_span(token), f"{name} is not a buffer here")
        return self.declared(name, token)

    def declared(self, name: str, token: Token) -> Buffer:
        """Return the declared buffer of a name. Raises `Mistake`, at the token, if there is none."""
        if name not in self.buffers:
            known = f"buffers are {listing(self.buffers)}" if self.buffers else "no buffer is declared"
            raise Mistake(s.token_span(token), f"no buffer is called {name}", *did_you_mean(name, self.buffers), known)
        return self.buffers[name]

    def require_reach(self, buffer: Buffer, token: Token, units: tuple[UnitSpec, ...]) -> None:
        """Raise `Mistake`, at the token, if one of the units cannot access the memory bank of a buffer, or
        any memory.
        """
        for unit in units:
            if unit.bank != buffer.bank:
                reach = f"{unit.name} reaches {unit.bank}" if unit.bank else f"{unit.name} reaches no memory"
                raise Mistake(s.token_span(token), f"{buffer.name} lies in {buffer.bank}; {reach}")

    # -- units ----------------------------------------------------------------------------------------------------

    def units(self, refs: tuple[s.UnitSelection, ...]) -> tuple[UnitSpec, ...]:
        """Return the units of a list such as `MemC[0..2] MemC5`. refs: its parts. Raises `Mistake` unless they exist,
        are distinct and of one kind.
        """
        out: dict[str, UnitSpec] = {}
        kind = ""
        for ref in refs:
            for unit in self._unit(ref):
                if unit.name in out:
                    raise Mistake(s.span(ref), f"{unit.name} is named twice")
                if unit.kind != (kind := kind or unit.kind):
                    raise Mistake(s.span(ref), f"{unit.name} is not a {kind} unit; all units of a group have one kind")
                out[unit.name] = unit
        return tuple(out.values())

    def _unit(self, ref: s.UnitSelection) -> Iterator[UnitSpec]:
        name = str(ref.name)
        if ref.ranges is None:
            yield from self._plain(ref.name)
            return
        if name not in self.overlay.by_kind:
            close = did_you_mean(name, self.overlay.by_kind)
            kinds = f"kinds of units are {listing(self.overlay.by_kind)}"
            raise Mistake(s.token_span(ref.name), f"this datapath has no {name} units", *close, kinds)
        by_index = {u.index: u for u in self.overlay.by_kind[name]}
        for sub in ref.ranges:
            first, last = self.integer(sub.start), self.integer(sub.end)
            if first > last:
                raise Mistake(s.span(sub), f"{first}..{last} runs backwards: a range ends at or above its start")
            for index in range(first, min(last, first + len(by_index)) + 1):
                if index not in by_index:
                    raise self.no_unit(f"{name}{index}", s.span(sub))
                yield by_index[index]

    def _plain(self, token: Token) -> tuple[UnitSpec, ...]:
        """Return the unit that a name without brackets stands for, or the units of a block parameter."""
        local = self.local(token)
        if isinstance(local, tuple):
            return local
        if local is not None:
            raise Mistake(s.token_span(token), f"{token} is not a unit here")
        if str(token) not in self.overlay.by_unit:
            raise self.no_unit(str(token), s.token_span(token))
        return (self.overlay.by_unit[str(token)],)

    def peer(self, word: s.To | s.SourceUnit) -> str:
        """Return the name of the unit behind an arrow. Raises `Mistake` if there is no such unit, or the word stands
        for several.
        """
        if word.number is not None:
            index = s.Sub(word.number, "", word.number)
            return self.units((s.UnitSelection(word.unit, (index,), word.end),))[0].name
        units = self._plain(word.unit)
        if len(units) != 1:
            raise Mistake(s.token_span(word.unit), f"{word.unit} stands for {len(units)} units; an arrow takes one")
        return units[0].name

    def route_source(self, word: s.Word) -> s.UnitSelection | None:
        """Return the unit that a word before an arrow names, as in `MemA0->MME1` and `MemA[k]->MME[2*k]`; None if it
        names no unit. What it names is not evaluated yet.
        """
        if isinstance(word, s.Slice) and str(word.name) in self.overlay.by_kind and not word.subs[0].bounds:
            return s.UnitSelection(word.name, word.subs, word.end)
        if isinstance(word, s.Bare) and word.name.type == "NAME":
            known = str(word.name) in self.overlay.by_unit or isinstance(self.local(word.name), tuple)
            return s.UnitSelection(word.name, None, word.name) if known else None
        return None

    def head(self, words: tuple[s.UnitSelection | s.Word, ...]) -> tuple[s.UnitSelection, ...]:
        """Read the words of a section's head as units. Raises `Mistake` for a word that cannot be a unit."""
        out = []
        for word in words:
            if isinstance(word, s.UnitSelection):
                out.append(word)
            elif isinstance(word, s.Bare) and word.name.type == "NAME":
                out.append(s.UnitSelection(word.name, None, word.name))
            elif isinstance(word, s.Slice) and word.name.type == "NAME" and not any(x.bounds for x in word.subs):
                out.append(s.UnitSelection(word.name, word.subs, word.end))
            else:
                raise Mistake(s.span(word), "a section begins with the names of its units")
        return tuple(out)

    def driver(self, kind: str, ref: s.UnitSelection) -> InstructionFormat:
        """Return the instruction format that drives units of an FU type. kind: the type. Raises `Mistake`, at `ref`, if
        none does.
        """
        if all(f.config for f in self.overlay.formats if f.kind == kind):
            raise Mistake(s.span(ref), f"{kind} units take no instructions")
        return self.overlay.format_of(kind)

    def no_unit(self, name: str, span: Span) -> Mistake:
        """Return a mistake at `span`: the overlay has no unit of this name. It lists the names that the overlay has."""
        kind = name.rstrip("0123456789")
        if kind in self.overlay.by_kind:
            note = f"{kind} units are {listing(u.name for u in self.overlay.by_kind[kind])}"
            return Mistake(span, f"this datapath has no {name}", note)
        close = did_you_mean(name, self.overlay.by_unit)
        return Mistake(span, f"this datapath has no {name}", *close, f"units are {listing(self.overlay.by_unit)}")


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
}

_BRACES = re.compile(r"\{([^{}]*)(\}?)")


def _pieces(token: Token) -> Iterator[_Letters | s.Expr]:
    """Split a quoted name into decoded text and the expressions in braces."""
    start = s.token_span(token)[0]
    at = 1
    for found in _BRACES.finditer(token):
        if not found[2]:
            hint = 'for a brace in the name itself, write "\\u007b"'
            raise Mistake((start + found.start(), start + found.start() + 1), "this brace is not closed", hint)
        yield _Letters(_decoded(token, at, found.start()))
        yield s.expression(found[1], start + found.start() + 1, s.line(token))
        at = found.end()
    yield _Letters(_decoded(token, at, len(token) - 1))


def _decoded(token: Token, start: int, end: int) -> str:
    return s.decoded(f'"{token[start:end]}"', token)
