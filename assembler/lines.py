"""Lines of a text as words with slots for numbers, and how they are written, in loops and braces."""

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
"""Statements that may share a line."""

NESTED = 32
"""Loops inside each other: each at least halves what is left, so these do for any image."""


class Slot(NamedTuple):
    """Where numbers stand in a line.

    number, summand (behind a sign): one number. unit, label: the index of a unit or parameter; pieces is what stands
    before it. name, quote: the numbers within a buffer's name, between the pieces of it; quote: in quotes even if it is
    a plain name. title: the same for a parameter's name.
    """

    what: str
    pieces: tuple[str, ...] = ()

    @property
    def numbers(self) -> int:
        return len(self.pieces) - 1 if self.named or self.what == "title" else 1

    @property
    def named(self) -> bool:
        """Whether it stands for a buffer."""
        return self.what in ("name", "quote")


NUMBER, SUMMAND = Slot("number"), Slot("summand")


class Row(NamedTuple):
    """A line; with a body (which may be empty) `parts { body }`. numbers: of the slots, one after the other."""

    parts: tuple[str | Slot, ...]
    numbers: tuple[int, ...]
    body: tuple[Row, ...] | None = None


class Words:
    """A row in the making."""

    def __init__(self) -> None:
        self.parts: list[str | Slot] = []
        self.numbers: list[int] = []

    def word(self, text: str) -> Self:
        return self.put(text)

    def put(self, part: str | Slot, *numbers: int) -> Self:
        """Add a word, behind a space."""
        if self.parts:
            self.glue(" ")
        return self.glue(part, *numbers)

    def glue(self, part: str | Slot, *numbers: int) -> Self:
        """Add to the last word."""
        last = self.parts[-1] if self.parts else None
        if isinstance(part, str) and isinstance(last, str):
            self.parts[-1] = last + part
        elif part:
            self.parts.append(part)
        self.numbers += numbers
        return self

    def append(self, row: Row) -> Self:
        for part in row.parts:
            self.glue(part)
        self.numbers += row.numbers
        return self

    def join(self, other: Words) -> Self:
        """Add the words of another."""
        if self.parts and other.parts:
            self.glue(" ")
        return self.append(other.row())

    def row(self, body: tuple[Row, ...] | None = None) -> Row:
        return Row(tuple(self.parts), tuple(self.numbers), body)


_DIGITS = re.compile(r"0|[1-9][0-9]{0,14}")


def named(name: str, quote: bool = False) -> tuple[Slot | str, *tuple[int, ...]]:
    """A name with its numbers, for `Words.put`."""
    pieces = _DIGITS.split(name)
    return Slot("quote" if quote else "name", tuple(pieces)), *map(int, _DIGITS.findall(name))


def label(name: str) -> tuple[Slot | str, *tuple[int, ...]]:
    """A parameter's name: `len`, `len[3]`, or quoted."""
    stem, bracket, rest = name.partition("[")
    digits = rest[:-1]
    if bracket and rest.endswith("]") and NAME.fullmatch(stem) and stem not in KEYWORDS and _DIGITS.fullmatch(digits):
        return Slot("label", (stem,)), int(digits)
    part, *numbers = named(name)
    return (part._replace(what="title") if isinstance(part, Slot) else part), *numbers


class Variable:
    """The variable of a loop; its name is given when the loop is written."""

    def __init__(self) -> None:
        self.name = ""

    def __str__(self) -> str:
        return self.name


class Sum(NamedTuple):
    """base + step*variable + ..."""

    base: int
    terms: tuple[tuple[Variable | str, int], ...] = ()

    def __str__(self) -> str:
        plus = [_times(v, step) for v, step in self.terms if step > 0]
        minus = [_times(v, -step) for v, step in self.terms if step < 0]
        out = "+".join(plus)
        if self.base or not out:
            out += f"{self.base:+d}" if out else str(self.base)
        return "-".join([out, *minus])

    def plus(self, variable: Variable, step: int) -> Sum:
        return Sum(self.base, (*self.terms, (variable, step)))

    def sorted(self, order: Mapping[Variable | str, int]) -> Sum:
        return Sum(self.base, tuple(sorted(self.terms, key=lambda term: order[term[0]])))

    @property
    def plain(self) -> bool:
        return not self.terms

    @property
    def single(self) -> bool:
        return self.base >= 0 if not self.terms else not self.base and len(self.terms) == 1 and self.terms[0][1] > 0


def _times(variable: Variable | str, step: int) -> str:
    return f"{variable}" if step == 1 else f"{variable}*{step}"


def render(parts: Sequence[str | Slot], sums: Sequence[Sum]) -> str:
    """A line with its numbers, or with expressions for them."""
    out: list[str] = []
    at = 0
    for part in parts:
        if isinstance(part, str):
            out.append(part)
            continue
        mine = sums[at : at + part.numbers]
        at += part.numbers
        out.append(_filled(part, mine))
    return "".join(out)


def _filled(slot: Slot, sums: Sequence[Sum]) -> str:
    first = sums[0] if sums else Sum(0)
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
class Node:
    """A line; or what stands in braces behind it, or behind a `for`. loop: how often, and where its variable begins;
    inline: whether it may be one line; shape: the number that `rolling` gave its kind, -1 before."""

    parts: tuple[str | Slot, ...]
    sums: tuple[Sum, ...]
    children: list[Node] | None = None
    inline: bool = True
    loop: tuple[int, int] | None = None
    variable: Variable | None = None
    shape: int = -1

    @classmethod
    def of(cls, row: Row) -> Node:
        children = None if row.body is None else [cls.of(x) for x in row.body]
        return cls(row.parts, tuple([Sum(n) for n in row.numbers]), children)

    @cached_property
    def bases(self) -> tuple[int, ...]:
        """All numbers, those of its body too, in the first round of every loop."""
        own = tuple([x.base for x in self.sums])
        return own if not self.children else own + tuple(n for child in self.children for n in child.bases)

    @property
    def stepped(self) -> bool:
        """Whether a number in its line depends on a loop."""
        return any(x.terms for x in self.sums)

    def slots(self) -> Iterator[tuple[Slot, Sum]]:
        """All numbers with their slots, those of its body too."""
        slots = (part for part in self.parts if isinstance(part, Slot) for _ in range(part.numbers))
        yield from zip(slots, self.sums, strict=True)
        for child in self.children or ():
            yield from child.slots()

    def looped(self, later: Node, variable: Variable) -> Node:
        """The same in a loop whose variable begins at 0; `later` is this node in the second round."""
        pairs = zip(self.sums, later.sums, strict=True)
        sums = tuple([a.plus(variable, b.base - a.base) if b.base != a.base else a for a, b in pairs])
        children = None
        if self.children is not None and later.children is not None:
            children = [a.looped(b, variable) for a, b in zip(self.children, later.children, strict=True)]
        return Node(self.parts, sums, children, self.inline, self.loop, self.variable)

    def begin_at(self, variable: Variable, start: int) -> None:
        """Let a variable begin at `start` instead of 0, with the same numbers."""
        self.sums = tuple(
            x._replace(base=x.base - start * sum(step for v, step in x.terms if v is variable)) for x in self.sums
        )
        for child in self.children or ():
            child.begin_at(variable, start)

    def become(self, parts: tuple[str | Slot, ...], sums: tuple[Sum, ...]) -> None:
        """Turn into a line."""
        self.parts, self.sums, self.children, self.loop, self.variable = parts, sums, None, None, None

    def head(self) -> str:
        """Its line, without braces and loop."""
        return render(self.parts, self.sums)

    def lines(self, width: int, variables: Sequence[str] = "ijklmn" * NESTED) -> list[str]:
        """Its text. variables: names for those of the loops inside."""
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


def written(nodes: Sequence[Node], taken: Container[str], width: int) -> list[str]:
    """Lines of text. taken: names that no loop variable may have."""
    names = (name for n in count() for name in ("ijklmn" if not n else (f"i{n}",)) if name not in taken)
    variables = list(islice(names, NESTED))
    return [line for node in nodes for line in node.lines(width, variables)]
