"""Lines of printed text as words with slots for numbers, and their rendering in loops and braces."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from typing import NamedTuple, Self

from .spelling import KEYWORDS, NAME, letters, quoted

INDENT = "  "

SHARING = 2
"""Limit of statements on one line."""

NESTED = 32
"""Number of names for the variables of nested loops. Each loop at least halves the lines, so no image needs more."""


class NumberSlot(NamedTuple):
    """A place for numbers in a line.

    what: the kind of place. "number" and "summand" (behind a sign) hold one number. "unit" and "label" hold the index
    of a unit or run-time parameter; pieces[0] is the text before it. "name" and "quote" hold the numbers within a
    buffer's name, with pieces around them; "quote" is written in quotes even if it is a plain name. "title" is as
    "name", for a parameter's name.
    """

    what: str
    pieces: tuple[str, ...] = ()

    @property
    def numbers(self) -> int:
        """Number of numbers that the slot holds."""
        return len(self.pieces) - 1 if self.named or self.what == "title" else 1

    @property
    def named(self) -> bool:
        """Whether the slot holds a buffer's name."""
        return self.what in ("name", "quote")


NUMBER, SUMMAND = NumberSlot("number"), NumberSlot("summand")


class TextRow(NamedTuple):
    """A line of text, or with a body `parts { body }`; a body may be empty. numbers: those of all slots, in order."""

    parts: tuple[str | NumberSlot, ...]
    numbers: tuple[int, ...]
    body: tuple[TextRow, ...] | None = None


class Words:
    """Builds a `TextRow` word by word."""

    def __init__(self) -> None:
        self.parts: list[str | NumberSlot] = []
        self.numbers: list[int] = []

    def put(self, part: str | NumberSlot, *numbers: int) -> Self:
        """Add a word, after a space. part: text, or a slot. numbers: those of the slot; none for text. Returns the
        object itself.
        """
        if self.parts:
            self.glue(" ")
        return self.glue(part, *numbers)

    def glue(self, part: str | NumberSlot, *numbers: int) -> Self:
        """Add to the last word, without a space. part, numbers: as for `put`. Returns the object itself."""
        last = self.parts[-1] if self.parts else None
        if isinstance(part, str) and isinstance(last, str):
            self.parts[-1] = last + part
        elif part:
            self.parts.append(part)
        self.numbers += numbers
        return self

    def append(self, row: TextRow) -> Self:
        """Add a row to the last word, without a space; its body is ignored. Returns the object itself."""
        for part in row.parts:
            self.glue(part)
        self.numbers += row.numbers
        return self

    def join(self, other: Words) -> Self:
        """Add the words of another, after a space. Returns the object itself."""
        if self.parts and other.parts:
            self.glue(" ")
        return self.append(other.row())

    def row(self, body: tuple[TextRow, ...] | None = None) -> TextRow:
        """Return the words as a row. body: the rows in its braces; None for no braces."""
        return TextRow(tuple(self.parts), tuple(self.numbers), body)


_DIGITS = re.compile(r"0|[1-9][0-9]{0,14}")


def named(name: str, quote: bool = False) -> tuple[NumberSlot | str, *tuple[int, ...]]:
    """Split a buffer's name into a slot and its numbers, the arguments of `Words.put`. quote: it must be written in
    quotes.
    """
    pieces = _DIGITS.split(name)
    return NumberSlot("quote" if quote else "name", tuple(pieces)), *map(int, _DIGITS.findall(name))


def label(name: str) -> tuple[NumberSlot | str, *tuple[int, ...]]:
    """Split a run-time parameter's name (`len`, `len[3]` or quoted) into a slot and its numbers, for `Words.put`."""
    stem, bracket, rest = name.partition("[")
    digits = rest[:-1]
    if bracket and rest.endswith("]") and NAME.fullmatch(stem) and stem not in KEYWORDS and _DIGITS.fullmatch(digits):
        return NumberSlot("label", (stem,)), int(digits)
    part, *numbers = named(name)
    return (part._replace(what="title") if isinstance(part, NumberSlot) else part), *numbers


class LoopVariable:
    """The variable of a loop. It gets its name when the loop is rendered."""

    def __init__(self) -> None:
        self.name = ""

    def __str__(self) -> str:
        return self.name


class LoopNumber(NamedTuple):
    """A number that depends on loops: base + step * variable + ..., with terms as pairs (variable, step)."""

    base: int
    terms: tuple[tuple[LoopVariable | str, int], ...] = ()

    def __str__(self) -> str:
        plus = [_times(v, step) for v, step in self.terms if step > 0]
        minus = [_times(v, -step) for v, step in self.terms if step < 0]
        out = "+".join(plus)
        if self.base or not out:
            out += f"{self.base:+d}" if out else str(self.base)
        return "-".join([out, *minus])

    def plus(self, variable: LoopVariable, step: int) -> LoopNumber:
        """Return the number with the term step * variable added."""
        return LoopNumber(self.base, (*self.terms, (variable, step)))

    def sorted(self, order: Mapping[LoopVariable | str, int]) -> LoopNumber:
        """Return the number with its terms sorted. order: the place of each variable. Raises `KeyError` for a variable
        that it lacks.
        """
        return LoopNumber(self.base, tuple(sorted(self.terms, key=lambda term: order[term[0]])))

    @property
    def plain(self) -> bool:
        """Whether the number depends on no variable."""
        return not self.terms

    @property
    def single(self) -> bool:
        """Whether the number needs no parentheses behind a sign: it is >= 0 without variables, or one positive multiple
        of a variable."""
        return self.base >= 0 if not self.terms else not self.base and len(self.terms) == 1 and self.terms[0][1] > 0


def _times(variable: LoopVariable | str, step: int) -> str:
    return f"{variable}" if step == 1 else f"{variable}*{step}"


def render(parts: Sequence[str | NumberSlot], sums: Sequence[LoopNumber]) -> str:
    """Render a line: its parts with the numbers, or the expressions, of the slots in order. sums: the numbers of all
    slots.
    """
    return "".join(part if isinstance(part, str) else _filled(part, mine) for part, mine in with_sums(parts, sums))


def with_sums(
    parts: Sequence[str | NumberSlot], sums: Sequence[LoopNumber]
) -> Iterator[tuple[str | NumberSlot, Sequence[LoopNumber]]]:
    """Yield the parts of a line, each slot with its own numbers; a text has none. sums: the numbers of all slots, in
    order.
    """
    at = 0
    for part in parts:
        end = at if isinstance(part, str) else at + part.numbers
        yield part, sums[at:end]
        at = end


def _filled(slot: NumberSlot, sums: Sequence[LoopNumber]) -> str:
    first = sums[0] if sums else LoopNumber(0)
    match slot.what:
        case "number":
            return str(first)
        case "summand":
            return str(first) if first.single else f"({first})"
        case "unit":
            return f"{slot.pieces[0]}{first}" if first.plain else f"{slot.pieces[0]}[{first}]"
        case "label":
            return f"{slot.pieces[0]}[{first}]"
        case _:
            if all(x.plain for x in sums):
                name = slot.pieces[0] + "".join(f"{x}{piece}" for x, piece in zip(sums, slot.pieces[1:], strict=True))
                return f'"{letters(name)}"' if slot.what == "quote" else quoted(name)
            braced = (
                (str(x) if x.plain else f"{{{x}}}") + letters(piece)
                for x, piece in zip(sums, slot.pieces[1:], strict=True)
            )
            return f'"{letters(slot.pieces[0])}{"".join(braced)}"'


@dataclass(eq=False)
class LineNode:
    """A line, a line with a body in braces, or a loop.

    sums: the numbers of the slots in parts. children: the body. inline: whether it may be written on one line. loop: of
    a loop, how often it runs and the first value of its variable, as a pair. variable: of a loop whose rounds differ.
    shape: the number that `rolling` assigns to all nodes of the same shape; -1 while unset.
    """

    parts: tuple[str | NumberSlot, ...]
    sums: tuple[LoopNumber, ...]
    children: list[LineNode] | None = None
    inline: bool = True
    loop: tuple[int, int] | None = None
    variable: LoopVariable | None = None
    shape: int = -1

    @classmethod
    def of(cls, row: TextRow) -> LineNode:
        """Convert a row, with its body, to a node without loops."""
        children = None if row.body is None else [cls.of(x) for x in row.body]
        return cls(row.parts, tuple([LoopNumber(n) for n in row.numbers]), children)

    @cached_property
    def bases(self) -> tuple[int, ...]:
        """All numbers of the node, then those of its body, in the first round of every loop."""
        own = tuple([x.base for x in self.sums])
        return own if not self.children else own + tuple(n for child in self.children for n in child.bases)

    @property
    def stepped(self) -> bool:
        """Whether a number in the node's own line depends on a loop variable."""
        return any(x.terms for x in self.sums)

    def slots(self) -> Iterator[tuple[NumberSlot, LoopNumber]]:
        """Yield the slot and value of each number of the node, then of its body; a slot with several numbers comes once
        for each.
        """
        slots = (part for part in self.parts if isinstance(part, NumberSlot) for _ in range(part.numbers))
        yield from zip(slots, self.sums, strict=True)
        for child in self.children or ():
            yield from child.slots()

    def looped(self, later: LineNode, variable: LoopVariable) -> LineNode:
        """Return a copy for the body of a loop, with numbers as expressions of the loop's variable, which begins at 0.

        later: the same node in the second round; each number grows by its difference. Raises `ValueError` if the two
        nodes have different shapes.
        """
        pairs = zip(self.sums, later.sums, strict=True)
        sums = tuple([a.plus(variable, b.base - a.base) if b.base != a.base else a for a, b in pairs])
        children = None
        if self.children is not None and later.children is not None:
            children = [a.looped(b, variable) for a, b in zip(self.children, later.children, strict=True)]
        return LineNode(self.parts, sums, children, self.inline, self.loop, self.variable)

    def begin_at(self, variable: LoopVariable, start: int) -> None:
        """Let a variable begin at `start` instead of 0; the bases change so that all numbers stay the same."""
        self.sums = tuple(
            x._replace(base=x.base - start * sum(step for v, step in x.terms if v is variable)) for x in self.sums
        )
        for child in self.children or ():
            child.begin_at(variable, start)

    def become(self, parts: tuple[str | NumberSlot, ...], sums: tuple[LoopNumber, ...]) -> None:
        """Replace the node, in place, by a single line without body or loop."""
        self.parts, self.sums, self.children, self.loop, self.variable = parts, sums, None, None, None

    def head(self) -> str:
        """Return the text of the node's own line, without body and loop."""
        return render(self.parts, self.sums)

    def lines(self, width: int, variables: Sequence[str] = "ijklmn" * NESTED) -> list[str]:
        """Render the node in lines of at most `width` columns where that is possible.

        variables: names for the variables of its loops, outermost first. Raises `IndexError` if these are too few.
        """
        head = self.head()
        if self.loop is not None:
            rounds, start = self.loop
            head = f"for {rounds}"
            if self.variable is not None:
                self.variable.name, variables = variables[0], variables[1:]
                head = f"for {self.variable} in {start}..{start + rounds}"
        if self.children is None:
            return [head]
        inner = [line for child in self.children for line in child.lines(width, variables)]
        line = f"{head} {{ {'; '.join(inner)} }}" if inner else f"{head} {{ }}"
        alone = len(self.children) < 2 or all(child.children is None for child in self.children)
        if self.inline and alone and len(inner) == len(self.children) <= SHARING and len(line) <= width:
            return [line]
        return [f"{head} {{", *(INDENT + line for line in inner), "}"]


def render_nodes(nodes: Sequence[LineNode], taken: Container[str], width: int) -> list[str]:
    """Render nodes as lines of text, `width` columns wide. taken: names that loop variables must not have.

    Raises `IndexError` for more than `NESTED` nested loops.
    """
    names = (name for n in count() for name in ("ijklmn" if not n else (f"i{n}",)) if name not in taken)
    variables = list(islice(names, NESTED))
    return [line for node in nodes for line in node.lines(width, variables)]
