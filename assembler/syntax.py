"""From text to a syntax tree: the grammar is `rsn.lark`, the nodes are here. Nothing is looked up in an overlay yet.

Leaves are lark tokens: strings that know their offsets. Nodes are named tuples, because a program of 24 layers has
hundreds of thousands of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
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
    number: Expr | None
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
    """`-> MemA0` or `-> MemA[k]`."""

    unit: Token
    number: Expr | None
    end: Token


class Source(NamedTuple):
    """`<- MemC0` or `<- MemC[k]`."""

    unit: Token
    number: Expr | None
    end: Token


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


class Sub(NamedTuple):
    """What stands between brackets and commas: an index, `0..2`, `0:128` or `0:+128`; `how` is what joins the two.

    The end of a single index is its start.
    """

    start: Expr
    how: str
    end: Expr

    @property
    def bounds(self) -> bool:
        """Whether it bounds a piece of a buffer, rather than naming units."""
        return self.how[:1] == ":"


class Slice(NamedTuple):
    """A piece of a buffer, `x[0:+128, 0:64]`; before `->` and as head of a section units, `MemC[0..2, 5]`."""

    name: Token
    subs: tuple[Sub, ...]
    end: Token


Word = Bare | To | Source | Setting | Slice


class Mop(NamedTuple):
    words: tuple[Word, ...]


class Call(NamedTuple):
    """`stream(x, MemA0, 8)`: an argument is an expression, a name, or a group of units."""

    name: Token
    arguments: tuple[Expr | Unit, ...]
    end: Token


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
    """`MemA0`, or `MemC[0..2, 5]`."""

    name: Token
    ranges: tuple[Sub, ...] | None
    end: Token


Statement = Mop | Call | Loop


class Section(NamedTuple):
    """head: units; inside a block the words before the brace, which are units if the text is right."""

    head: tuple[Unit | Word, ...]
    body: tuple[Statement, ...]


class Packet(NamedTuple):
    """A packet, or with `last` (no body) a terminator."""

    start: Token
    units: tuple[Unit, ...]
    settings: tuple[Setting, ...]
    body: tuple[Statement, ...]
    last: bool


class Nop(NamedTuple):
    start: Token


class OverlayName(NamedTuple):
    name: Token


class Include(NamedTuple):
    file: Token


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


class Rows(NamedTuple):
    each: tuple[Expr, ...]


class BufferLine(NamedTuple):
    name: Token
    bank: Token
    shape: Token
    options: tuple[Token | At | View | Rows, ...]


class Vector(NamedTuple):
    """`scale x [...]` or `shift x f32"..."`; the numbers are still text."""

    which: Token
    buffer: Token
    numbers: Token


class Block(NamedTuple):
    """body: statements, or sections and packets."""

    start: Token
    name: Token
    parameters: tuple[Token, ...]
    body: tuple[Any, ...]


Item = OverlayName | Include | Const | Param | BufferLine | Vector | Section | Packet | Nop | Loop | Block | Call


class _Builder(Transformer[Token, Any]):
    """One method per rule, called by the parser as it reduces; no tree in between."""

    def start(self, c: list[Any]) -> tuple[Item, ...]:
        return tuple(c)

    def overlay(self, c: list[Any]) -> OverlayName:
        return OverlayName(*c)

    def include(self, c: list[Any]) -> Include:
        return Include(*c)

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

    def rows(self, c: list[Any]) -> Rows:
        return Rows(tuple(c))

    def vector(self, c: list[Any]) -> Vector:
        return Vector(*c)

    def section(self, c: list[Any]) -> Section:
        return Section(tuple(c[:-1]), c[-1])

    units = section

    def packet(self, c: list[Any]) -> Packet:
        return _packet(c[0], c[1:-1], c[-1], False)

    def last(self, c: list[Any]) -> Packet:
        return _packet(c[0], c[1:], (), True)

    def nop(self, c: list[Any]) -> Nop:
        return Nop(*c)

    def unit(self, c: list[Any]) -> Unit:
        return Unit(c[0], tuple(c[1:-1]) if len(c) > 1 else None, c[-1])

    group_of = unit

    def item(self, c: list[Any]) -> Sub:
        return Sub(c[0], "", c[0])

    def span(self, c: list[Any]) -> Sub:
        return Sub(c[0], "..", c[1])

    def body(self, c: list[Any]) -> tuple[Statement, ...]:
        return tuple(c)

    def repeat(self, c: list[Any]) -> Loop:
        return Loop(c[0], c[1], tuple(c[2:]))

    again = repeat

    def block(self, c: list[Any]) -> Block:
        close = next(i for i, x in enumerate(c) if isinstance(x, Token) and x.type == "RPAR")
        return Block(c[0], c[1], tuple(c[2:close]), tuple(c[close + 1 :]))

    def call(self, c: list[Any]) -> Call:
        return Call(c[0], tuple(c[1:-1]), c[-1])

    def loop(self, c: list[Any]) -> Loop:
        return Loop(*c)

    def range(self, c: list[Any]) -> Range:
        return Range(*c) if len(c) == 3 else Range(None, None, c[0])

    def mop(self, c: list[Any]) -> Mop:
        return Mop(tuple(c))

    def bare(self, c: list[Any]) -> Bare:
        return Bare(c[0])

    def to(self, c: list[Any]) -> To:
        return To(c[0], c[1] if len(c) > 1 else None, c[-1])

    def source(self, c: list[Any]) -> Source:
        return Source(c[0], c[1] if len(c) > 1 else None, c[-1])

    def setting(self, c: list[Any]) -> Setting:
        return Setting(c[0], c[1])

    def slice(self, c: list[Any]) -> Slice:
        return Slice(c[0], tuple(c[1:-1]), c[-1])

    def dim(self, c: list[Any]) -> Sub:
        return Sub(c[0], ":", c[1])

    def extent(self, c: list[Any]) -> Sub:
        return Sub(c[0], ":+", c[1])

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
    """A name, or what a JSON string says."""
    return decoded(str(token), token) if token.type == "STRING" else str(token)


def decoded(string: str, token: Token) -> str:
    """What a JSON string says that is a token or part of one."""
    try:
        name = str(json.loads(string))
    except ValueError:
        raise Mistake(token_span(token), "quoted names are written as JSON strings") from None
    if not name.isprintable() and any("\ud800" <= c <= "\udfff" for c in name):
        raise Mistake(token_span(token), "half of a surrogate pair is no character")  # no file could hold it
    return name


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


def line(token: Token) -> int:
    assert token.line is not None
    return token.line


def _edge(node: Any, first: bool) -> Token:
    while not isinstance(node, Token):
        node = node[0 if first else -1]
    return node


def start_span(node: Any) -> Span:
    """Where the first token of a node stands in the text."""
    return token_span(_edge(node, True))


def span(node: Any) -> Span:
    """Where a node stands in the text: a word, an expression, a unit; an item has no last token."""
    return token_span(_edge(node, True))[0], token_span(_edge(node, False))[1]


@cache
def _parser() -> Lark:
    return Lark.open(
        "rsn.lark",
        rel_to=__file__,
        parser="lalr",
        lexer="contextual",
        start=["start", "expr"],
        transformer=_Builder(),
        maybe_placeholders=False,
    )


def read(text: Text) -> tuple[Item, ...]:
    """The syntax tree of a text. Raises `SourceError` at the first place where it does not follow the grammar."""
    report = Report(text)
    try:
        return tree(text)
    except Mistake as e:
        report.add(e)
    report.check()
    raise AssertionError("unreachable")


def tree(text: Text) -> tuple[Item, ...]:
    """`read`, with a `Mistake` for others to report."""
    try:
        return _parser().parse(text.text, start="start")  # type: ignore[return-value]
    except UnexpectedInput as e:
        raise _explained(e, text) from None


def expression(text: str, at: int, line: int) -> Expr:
    """An expression that stands inside a quoted name, at an offset and a line of the whole text."""
    try:
        found: Expr = _parser().parse(text, start="expr")  # type: ignore[assignment]
    except UnexpectedInput:
        raise Mistake((at, at + max(1, len(text))), "between the braces of a name stands an expression") from None
    for token in _tokens(found):
        assert token.start_pos is not None
        assert token.end_pos is not None
        token.start_pos, token.end_pos, token.line = token.start_pos + at, token.end_pos + at, line
    return found


def _tokens(e: Expr) -> Iterator[Token]:
    stack = [e]
    while stack:
        node = stack.pop()
        if isinstance(node, Token):
            yield node
        else:
            stack += node


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
    "PACKED": 'f32"..."',
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
