"""From text to a syntax tree: the grammar is `rsn.lark`, the nodes are here. Nothing is looked up in an overlay yet.

Leaves are lark tokens: strings that know their offsets. Nodes are named tuples, because a program of 24 layers has
hundreds of thousands of them.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, NamedTuple

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from .diagnostic import Mistake, Report, Span, Text

LIMIT = 1 << 63
"""Numbers stay below it, and above its negative."""


class Binary(NamedTuple):
    left: Expr
    op: Token
    right: Expr


class Negate(NamedTuple):
    op: Token
    operand: Expr


Expr = Token | Binary | Negate
"""INT, REAL, NAME or STRING at the leaves."""


class Label(NamedTuple):
    """The name of a run-time parameter: `len`, `len[3]` or a quoted one."""

    token: Token
    number: Token | None
    end: Token


class Clamp(NamedTuple):
    """clamp(parameter - base, low, cap)."""

    start: Token
    label: Label
    sign: Token | None
    base: Expr | None
    low: Expr
    cap: Expr
    end: Token


class Bare(NamedTuple):
    name: Token


class To(NamedTuple):
    unit: Token


class Source(NamedTuple):
    unit: Token


class Setting(NamedTuple):
    """`dim1=128`; key is `dim1=`."""

    key: Token
    value: Expr | Clamp

    @property
    def name(self) -> str:
        return self.key[:-1].rstrip()

    @property
    def name_span(self) -> Span:
        start = token_span(self.key)[0]
        return start, start + len(self.name)


class Dim(NamedTuple):
    """One dimension of a slice: start:end, or start:+extent."""

    start: Expr
    extent: bool
    end: Expr


class Slice(NamedTuple):
    buffer: Token
    dims: tuple[Dim, ...]
    end: Token


Word = Bare | To | Source | Setting | Slice


class Mop(NamedTuple):
    words: tuple[Word, ...]


class Range(NamedTuple):
    """`for high` (no variable, from 0) or `for variable in low..high`; high is not reached."""

    variable: Token | None
    low: Expr | None
    high: Expr


class Loop(NamedTuple):
    """body: statements inside a section or packet, items outside."""

    start: Token
    range: Range
    body: tuple[Any, ...]


class Unit(NamedTuple):
    """`MemA0`, or `MemC[0..2, 5]` with pairs of first and last index."""

    name: Token
    ranges: tuple[tuple[Token, Token], ...] | None
    end: Token


class Section(NamedTuple):
    units: tuple[Unit, ...]
    body: tuple[Mop | Loop, ...]


class Packet(NamedTuple):
    """A packet, or with `last` (no body) a terminator."""

    start: Token
    units: tuple[Unit, ...]
    settings: tuple[Setting, ...]
    body: tuple[Mop | Loop, ...]
    last: bool


class Nop(NamedTuple):
    start: Token


class OverlayName(NamedTuple):
    name: Token


class Const(NamedTuple):
    name: Token
    value: Expr


class Param(NamedTuple):
    label: Label
    low: Expr
    high: Expr
    default: Expr


class At(NamedTuple):
    value: Expr


class View(NamedTuple):
    shape: Token


class BufferLine(NamedTuple):
    name: Token
    bank: Token
    shape: Token
    options: tuple[Token | At | View, ...]


class Vector(NamedTuple):
    """`scale x [...]` or `shift x [...]`; the numbers are still text."""

    which: Token
    buffer: Token
    numbers: Token


Item = OverlayName | Const | Param | BufferLine | Vector | Section | Packet | Nop | Loop


class _Builder(Transformer[Token, Any]):
    """One method per rule, called by the parser as it reduces; no tree in between."""

    def start(self, c: list[Any]) -> tuple[Item, ...]:
        return tuple(c)

    def overlay(self, c: list[Any]) -> OverlayName:
        return OverlayName(*c)

    def const(self, c: list[Any]) -> Const:
        return Const(*c)

    def param(self, c: list[Any]) -> Param:
        return Param(*c)

    def buffer(self, c: list[Any]) -> BufferLine:
        return BufferLine(c[0], c[1], c[2], tuple(c[3:]))

    def tag(self, c: list[Any]) -> Token:
        return c[0]  # type: ignore[no-any-return]

    def at(self, c: list[Any]) -> At:
        return At(*c)

    def view(self, c: list[Any]) -> View:
        return View(*c)

    def vector(self, c: list[Any]) -> Vector:
        return Vector(*c)

    def section(self, c: list[Any]) -> Section:
        return Section(*c)

    def units(self, c: list[Any]) -> tuple[Unit, ...]:
        return tuple(c)

    def packet(self, c: list[Any]) -> Packet:
        return _packet(c[0], c[1:-1], c[-1], False)

    def last(self, c: list[Any]) -> Packet:
        return _packet(c[0], c[1:], (), True)

    def nop(self, c: list[Any]) -> Nop:
        return Nop(*c)

    def unit(self, c: list[Any]) -> Unit:
        return Unit(c[0], tuple(c[1:-1]) if len(c) > 1 else None, c[-1])

    def index(self, c: list[Any]) -> tuple[Token, Token]:
        return c[0], c[-1]

    def body(self, c: list[Any]) -> tuple[Mop | Loop, ...]:
        return tuple(c)

    def repeat(self, c: list[Any]) -> Loop:
        return Loop(c[0], c[1], tuple(c[2:]))

    def loop(self, c: list[Any]) -> Loop:
        return Loop(*c)

    def range(self, c: list[Any]) -> Range:
        return Range(*c) if len(c) == 3 else Range(None, None, c[0])

    def mop(self, c: list[Any]) -> Mop:
        return Mop(tuple(c))

    def bare(self, c: list[Any]) -> Bare:
        return Bare(c[0])

    def to(self, c: list[Any]) -> To:
        return To(c[0])

    def source(self, c: list[Any]) -> Source:
        return Source(c[0])

    def setting(self, c: list[Any]) -> Setting:
        return Setting(c[0], c[1])

    def slice(self, c: list[Any]) -> Slice:
        return Slice(c[0], tuple(c[1:-1]), c[-1])

    def dim(self, c: list[Any]) -> Dim:
        return Dim(c[0], False, c[1])

    def extent(self, c: list[Any]) -> Dim:
        return Dim(c[0], True, c[1])

    def clamp(self, c: list[Any]) -> Clamp:
        sign, base = (c[2], c[3]) if len(c) == 7 else (None, None)
        return Clamp(c[0], c[1], sign, base, c[-3], c[-2], c[-1])

    def label(self, c: list[Any]) -> Label:
        return Label(c[0], c[1] if len(c) > 1 else None, c[-1])

    def binary(self, c: list[Any]) -> Binary:
        return Binary(*c)

    def negate(self, c: list[Any]) -> Negate:
        return Negate(*c)

    def group(self, c: list[Any]) -> Expr:
        return c[0]  # type: ignore[no-any-return]


def _packet(start: Token, head: list[Any], body: tuple[Mop | Loop, ...], last: bool) -> Packet:
    units = tuple(x for x in head if isinstance(x, Unit))
    return Packet(start, units, tuple(x for x in head if isinstance(x, Setting)), body, last)


def unquoted(token: Token) -> str:
    """The name that a NAME or STRING stands for."""
    if token.type != "STRING":
        return str(token)
    try:
        return str(json.loads(token))
    except ValueError:
        raise Mistake(token_span(token), "quoted names are written as JSON strings") from None


def number(token: Token) -> int:
    """The value of an INT."""
    # int() of a long text takes quadratic time: look at the length first.
    value = (int(token, 16) if token[:2] == "0x" else int(token)) if len(token) <= 20 else LIMIT
    if value >= LIMIT:
        raise Mistake(token_span(token), "this number is beyond 64 bits")
    return value


def token_span(token: Token) -> Span:
    assert token.start_pos is not None
    assert token.end_pos is not None
    return token.start_pos, token.end_pos


def _edge(node: Any, first: bool) -> Token:
    while not isinstance(node, Token):
        node = node[0 if first else -1]
    return node


def start_span(node: Any) -> Span:
    """Where the first token of a node stands in the text."""
    return token_span(_edge(node, True))


def span(node: Any) -> Span:
    """Where a node stands in the text: a word, an expression, a unit; an item has no last token."""
    if isinstance(node, Slice):
        return token_span(node.buffer)[0], token_span(node.end)[1]
    return token_span(_edge(node, True))[0], token_span(_edge(node, False))[1]


@cache
def _parser() -> Lark:
    return Lark.open(
        "rsn.lark",
        rel_to=__file__,
        parser="lalr",
        lexer="contextual",
        transformer=_Builder(),
        maybe_placeholders=False,
    )


def read(text: Text) -> tuple[Item, ...]:
    """The syntax tree of a text. Raises `SourceError` at the first place where it does not follow the grammar."""
    report = Report(text)
    try:
        return _parser().parse(text.text)  # type: ignore[return-value]
    except UnexpectedInput as e:
        report.add(_explained(e, text))
    report.check()
    raise AssertionError("unreachable")


_SPELLED = {
    "NAME": "a name",
    "KEY": "a field and =",
    "_BY": "':+'",
    "OVERLAY": "a name",
    "INT": "a number",
    "REAL": "a number",
    "STRING": "a name",
    "SHAPE": "a shape such as 768x1024",
    "VECTOR": "numbers in [ ]",
    "_SEP": "the end of the line",
    "$END": "the end of the text",
    "FACTOR": "* / %",
}


def _explained(e: UnexpectedInput, text: Text) -> Mistake:
    """A syntax error in the words of the language."""
    literals = {t.name: repr(str(t.pattern.value)) for t in _parser().terminals if t.pattern.type == "str"}
    if isinstance(e, UnexpectedToken):
        # The context lexer knows fewer terminals than the grammar; `accepts` says what the parser would really take.
        found, expected = e.token, e.accepts or e.expected
        at = token_span(found) if found.type != "$END" else (len(text.text), len(text.text))
        what = _SPELLED[found.type] if found.type in ("$END", "_SEP") else repr(str(found))
        if found.type == "_SEP":
            at = (at[0], at[0] + 1)
    else:
        start = e.pos_in_stream or 0
        at, what = (start, start + 1), repr(text.text[start])
        expected = e.allowed if isinstance(e, UnexpectedCharacters) else set()
    names = sorted({_SPELLED.get(x) or literals[x] for x in expected})
    note = (f"here may stand {' or '.join(names)}",) if names else ()
    return Mistake(at, f"{what} is not expected here", *note)
