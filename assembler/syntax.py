"""Parse a text to a syntax tree. The grammar is `rsn.lark`, the nodes are here; neither depends on an overlay.

Leaves are lark tokens, strings with their offsets in the text. Nodes are named tuples, because a program of 24 layers
has hundreds of thousands of them. `start` and `end` are the first and last token of a node, for error messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from .diagnostic import ErrorReport, Mistake, SourceText, Span

LIMIT = 1 << 63
"""Exclusive limit of the absolute value of numbers."""


class BinaryExpression(NamedTuple):
    """`left op right`, op one of + - * / %."""

    left: Expr
    op: Token
    right: Expr


class Negate(NamedTuple):
    """`-operand`. op: the sign."""

    op: Token
    operand: Expr


Expr = Token | BinaryExpression | Negate
"""An expression; its leaves are tokens INT, REAL, NAME and STRING."""


class Label(NamedTuple):
    """The name of a run-time parameter: `len`, `len[3]` or a quoted one. number: the index in brackets, None without
    one."""

    token: Token
    number: Expr | None
    end: Token


class Clamp(NamedTuple):
    """`clamp(label - base, low, cap)`; sign is + or -, and None with base if there is no base."""

    start: Token
    label: Label
    sign: Token | None
    base: Expr | None
    low: Expr
    cap: Expr
    end: Token


class Bare(NamedTuple):
    """A word alone: a flag, a buffer, a unit or a format."""

    name: Token


class To(NamedTuple):
    """`-> MemA0` or `-> MemA[k]`: a unit that the words go to. number: the index in brackets, None without one."""

    unit: Token
    number: Expr | None
    end: Token


class SourceUnit(NamedTuple):
    """`<- MemC0` or `<- MemC[k]`: a unit that the words come from. number: the index in brackets, None without one."""

    unit: Token
    number: Expr | None
    end: Token


class FieldSetting(NamedTuple):
    """`dim1=128`; key is the token `dim1=`."""

    key: Token
    value: Expr | Clamp

    @property
    def name(self) -> str:
        """The field's name."""
        return self.key[:-1].rstrip()

    @property
    def name_span(self) -> Span:
        """Span of the field's name, without the `=`. Both are offsets in characters of the text."""
        start = token_span(self.key)[0]
        return start, start + len(self.name)


class Sub(NamedTuple):
    """One subscript in brackets: an index, `0..2`, `0:128` or `0:+128`.

    how: the operator between start and end; "" for a single index, whose end equals its start.
    """

    start: Expr
    how: str
    end: Expr

    @property
    def bounds(self) -> bool:
        """Whether the subscript bounds a piece of a buffer (`:`, `:+`) rather than selecting units."""
        return self.how[:1] == ":"


class Slice(NamedTuple):
    """A piece of a buffer, `x[0:+128, 0:64]`; before `->` and in the head of a section also units, `MemC[0..2, 5]`."""

    name: Token
    subs: tuple[Sub, ...]
    end: Token


Word = Bare | To | SourceUnit | FieldSetting | Slice


class Mop(NamedTuple):
    """A statement: the words that describe one mOP."""

    words: tuple[Word, ...]


class BlockCall(NamedTuple):
    """A call of a block, `stream(x, MemA0, 8)`. Arguments are expressions, names and groups of units."""

    name: Token
    arguments: tuple[Expr | UnitSelection, ...]
    end: Token


class Range(NamedTuple):
    """The range of `for high` (from 0, without a variable) or of `for variable in low..high`; high is exclusive."""

    variable: Token | None
    low: Expr | None
    high: Expr


class TextLoop(NamedTuple):
    """A `for` loop. body: statements if it stands in a section or packet, else items."""

    start: Token
    range: Range
    body: tuple[Any, ...]


class UnitSelection(NamedTuple):
    """A unit or several: `MemA0` (ranges is None) or `MemC[0..2, 5]`."""

    name: Token
    ranges: tuple[Sub, ...] | None
    end: Token


Statement = Mop | BlockCall | TextLoop


class Section(NamedTuple):
    """The statements of some units. head: units; in a block the words before the brace, which must be units."""

    head: tuple[UnitSelection | Word, ...]
    body: tuple[Statement, ...]


class PacketBlock(NamedTuple):
    """A packet, or with `last` (no body) a terminator."""

    start: Token
    units: tuple[UnitSelection, ...]
    settings: tuple[FieldSetting, ...]
    body: tuple[Statement, ...]
    last: bool


class Nop(NamedTuple):
    """`nop`: a packet header that the dispatcher skips."""

    start: Token


class OverlayName(NamedTuple):
    """`overlay NAME`, or `overlay NAME "LINE" ...` with the lines of an overlay file, which may also stand in braces,
    each on a line of its own."""

    name: Token
    lines: tuple[Token, ...] = ()


class Include(NamedTuple):
    """`include "FILE"`."""

    file: Token


class Const(NamedTuple):
    """`const NAME = value`."""

    name: Token
    value: Expr


class Param(NamedTuple):
    """`param label low..high = default`: a run-time parameter; high is inclusive."""

    label: Label
    low: Expr
    high: Expr
    default: Expr


class AtOption(NamedTuple):
    """Buffer option `at value`: its address, in address units."""

    value: Expr


class ViewOption(NamedTuple):
    """Buffer option `view 2x128x64`: its shape as users see it."""

    shape: Token


class RowsOption(NamedTuple):
    """Buffer option `rows 128, 100`: the rows of each item of the view."""

    each: tuple[Expr, ...]


class BufferLine(NamedTuple):
    """`buffer NAME bank shape options`; an option that is a token is a layout or a role."""

    name: Token
    bank: Token
    shape: Token
    options: tuple[Token | AtOption | ViewOption | RowsOption, ...]


class SegmentPart(NamedTuple):
    """A part of a segment's declaration: `kind "..."`, `layers "...", ...` or `outputs x, y`. which: the first word.
    names: what follows it."""

    which: Token
    names: tuple[Token, ...]


class SegmentLine(NamedTuple):
    """`segment NAME parts`."""

    name: Token
    parts: tuple[SegmentPart, ...]


class VectorOption(NamedTuple):
    """`scale x [...]` or `shift x f32"..."`; `which` is scale or shift, and the numbers are not yet parsed."""

    which: Token
    buffer: Token
    numbers: Token


class Block(NamedTuple):
    """`block NAME(parameters) { body }`; the body holds statements, or sections and packets."""

    start: Token
    name: Token
    parameters: tuple[Token, ...]
    body: tuple[Any, ...]


Declaration = OverlayName | Include | Const | Param | BufferLine | SegmentLine | VectorOption | Block
Item = Declaration | Section | PacketBlock | Nop | TextLoop | BlockCall


class _NodeBuilder(Transformer[Token, Any]):
    """Builds the nodes. Each attribute has the name of a rule in `rsn.lark`; the parser calls it with the tokens and
    nodes of that rule as soon as it reduces the rule, so that no other tree is built."""

    start = body = tuple

    # rules whose parts are the fields of a node, one by one
    include, const, param, at, view, vector = (
        node._make for node in (Include, Const, Param, AtOption, ViewOption, VectorOption)
    )
    nop, loop, bare, setting, binary, negate = (
        node._make for node in (Nop, TextLoop, Bare, FieldSetting, BinaryExpression, Negate)
    )

    def overlay(self, c: list[Any]) -> OverlayName:
        return OverlayName(c[0], tuple(c[1:]))

    def buffer(self, c: list[Any]) -> BufferLine:
        return BufferLine(c[0], c[1], c[2], tuple(c[3:]))

    def tag(self, c: list[Any]) -> Any:
        return c[0]

    group = tag

    def rows(self, c: list[Any]) -> RowsOption:
        return RowsOption(tuple(c))

    def segment(self, c: list[Any]) -> SegmentLine:
        return SegmentLine(c[0], tuple(c[1:]))

    def kind(self, c: list[Any]) -> SegmentPart:
        return SegmentPart(c[0], tuple(c[1:]))

    layers = outputs = kind

    def section(self, c: list[Any]) -> Section:
        return Section(tuple(c[:-1]), c[-1])

    units = section

    def packet(self, c: list[Any]) -> PacketBlock:
        return _packet(c[0], c[1:-1], c[-1], False)

    def last(self, c: list[Any]) -> PacketBlock:
        return _packet(c[0], c[1:], (), True)

    def unit(self, c: list[Any]) -> UnitSelection:
        return UnitSelection(c[0], tuple(c[1:-1]) if len(c) > 1 else None, c[-1])

    group_of = unit

    def item(self, c: list[Any]) -> Sub:
        return Sub(c[0], "", c[0])

    def span(self, c: list[Any]) -> Sub:
        return Sub(c[0], "..", c[1])

    def dim(self, c: list[Any]) -> Sub:
        return Sub(c[0], ":", c[1])

    def extent(self, c: list[Any]) -> Sub:
        return Sub(c[0], ":+", c[1])

    def repeat(self, c: list[Any]) -> TextLoop:
        return TextLoop(c[0], c[1], tuple(c[2:]))

    again = repeat

    def block(self, c: list[Any]) -> Block:
        close = next(i for i, x in enumerate(c) if isinstance(x, Token) and x.type == "RPAR")
        return Block(c[0], c[1], tuple(c[2:close]), tuple(c[close + 1 :]))

    def call(self, c: list[Any]) -> BlockCall:
        return BlockCall(c[0], tuple(c[1:-1]), c[-1])

    def range(self, c: list[Any]) -> Range:
        return Range(*c) if len(c) == 3 else Range(None, None, c[0])

    def mop(self, c: list[Any]) -> Mop:
        return Mop(tuple(c))

    def to(self, c: list[Any]) -> To:
        return To(c[0], c[1] if len(c) > 1 else None, c[-1])

    def source(self, c: list[Any]) -> SourceUnit:
        return SourceUnit(c[0], c[1] if len(c) > 1 else None, c[-1])

    def label(self, c: list[Any]) -> Label:
        return Label(c[0], c[1] if len(c) > 1 else None, c[-1])

    def slice(self, c: list[Any]) -> Slice:
        return Slice(c[0], tuple(c[1:-1]), c[-1])

    def clamp(self, c: list[Any]) -> Clamp:
        sign, base = (c[2], c[3]) if len(c) == 7 else (None, None)
        return Clamp(c[0], c[1], sign, base, c[-3], c[-2], c[-1])


def _packet(start: Token, head: list[Any], body: tuple[Mop | TextLoop, ...], last: bool) -> PacketBlock:
    units = tuple(x for x in head if isinstance(x, UnitSelection))
    return PacketBlock(start, units, tuple(x for x in head if isinstance(x, FieldSetting)), body, last)


def unquoted(token: Token) -> str:
    """Return the text of a NAME, or the decoded text of a STRING. Raises `Mistake` as `decoded`."""
    return decoded(str(token), token) if token.type == "STRING" else str(token)


def decoded(string: str, token: Token) -> str:
    """Decode a JSON string. token: it is this string, or the string is a part of it, for messages. Raises `Mistake` for
    any other text, or for half of a surrogate pair."""
    try:
        name = str(json.loads(string))
    except ValueError:
        raise Mistake(token_span(token), "a quoted name must be a JSON string") from None
    if not name.isprintable() and any("\ud800" <= c <= "\udfff" for c in name):
        # UTF-8, and so a file, cannot hold it.
        raise Mistake(token_span(token), "a \\u escape for half of a surrogate pair is not a character")
    return name


def number(token: Token) -> int:
    """Return the value of an INT. Raises `Mistake` if it does not fit in 64 bits, signed."""
    # int() of a long text takes quadratic time: look at the length first.
    value = (int(token, 16) if token[:2] == "0x" else int(token)) if len(token) <= 20 else LIMIT
    if value >= LIMIT:
        raise Mistake(token_span(token), "this number does not fit in 64 bits")
    return value


def token_span(token: Token) -> Span:
    """Return the span of a token in the text: offsets of its first character, and of the one behind its last."""
    assert token.start_pos is not None
    assert token.end_pos is not None
    return token.start_pos, token.end_pos


def line(token: Token) -> int:
    """Return the line of a token, counted from 1."""
    assert token.line is not None
    return token.line


def _edge(node: Any, first: bool) -> Token:
    while not isinstance(node, Token):
        node = node[0 if first else -1]
    return node


def start_span(node: Any) -> Span:
    """Return the span of the first token of a node, as `token_span`."""
    return token_span(_edge(node, True))


def span(node: Any) -> Span:
    """Return the span of a word, an expression or a unit. Items do not record their last token: see `start_span`."""
    return token_span(_edge(node, True))[0], token_span(_edge(node, False))[1]


@cache
def _parser() -> Lark:
    return Lark.open(
        "rsn.lark",
        rel_to=__file__,
        parser="lalr",
        lexer="contextual",
        start=["start", "expr"],
        transformer=_NodeBuilder(),
        maybe_placeholders=False,
    )


def read(text: SourceText) -> tuple[Item, ...]:
    """Parse a text to its items. Raises `SourceError` at the first place that does not follow the grammar."""
    report = ErrorReport(text)
    items: tuple[Item, ...] = ()
    with report.inside(text):
        items = tree(text)
    report.check()
    return items


def tree(text: SourceText) -> tuple[Item, ...]:
    """Parse a text to its items. Raises `Mistake` at the first place that does not follow the grammar."""
    try:
        return _parser().parse(text.text, start="start")  # type: ignore[return-value]
    except UnexpectedInput as e:
        raise _explained(e, text) from None


def expression(text: str, at: int, line: int) -> Expr:
    """Parse an expression from inside a quoted name. text: the expression. at, line: where it begins in the whole text:
    an offset in characters, and the number of the line, counted from 1.

    Raises `Mistake` if it is not an expression.
    """
    try:
        found: Expr = _parser().parse(text, start="expr")  # type: ignore[assignment]
    except UnexpectedInput:
        raise Mistake((at, at + max(1, len(text))), "the text between braces in a name must be an expression") from None
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


def _explained(e: UnexpectedInput, text: SourceText) -> Mistake:
    """Make a mistake from lark's error, with the terminals in the words of the language."""
    literals = {t.name: repr(str(t.pattern.value)) for t in _parser().terminals if t.pattern.type == "str"}
    if isinstance(e, UnexpectedToken):
        # `expected` can list terminals that the parser would refuse later; `accepts` has those that it would take.
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
    note = (f"expected {' or '.join(names)}",) if names else ()
    return Mistake(at, f"{what} is not expected here", *note)
