"""Lines of a text as shapes with slots for numbers, and lists of lines laid out with loops (`rolling`)."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import NamedTuple, Self

from .rolling import Item, Loop, Roller, Written
from .spelling import KEYWORDS, NAME, letters, quoted

INDENT = "  "

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
    """A line; or what stands in braces behind it, or behind a `for`. loop: how often, and where its variable begins."""

    parts: tuple[str | Slot, ...]
    sums: tuple[Sum, ...]
    children: list[Node] | None = None
    inline: bool = True
    loop: tuple[int, int] | None = None
    variable: Variable | None = None

    def become(self, parts: tuple[str | Slot, ...], sums: tuple[Sum, ...]) -> None:
        """Turn into a line."""
        self.parts, self.sums, self.children, self.loop, self.variable = parts, sums, None, None, None

    def lines(self, width: int, variables: Sequence[str] = "ijklmn" * NESTED) -> list[str]:
        """Its text. variables: names for those of the loops inside."""
        head = render(self.parts, self.sums)
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
        if self.inline and len(line) <= width:
            return [line]
        return [f"{head} {{", *(INDENT + line for line in inner), "}"]


def rolled(rows: Sequence[Row], width: int, loop_cost: float = 1.0) -> list[Node]:
    """Rows with their loops rolled up."""
    roller = Roller(width, loop_cost)
    plan = roller.plan([_item(row, roller) for row in rows])
    return _nodes(plan.steps, [_live(row) for row in rows])


def written(nodes: Sequence[Node], taken: Container[str], width: int) -> list[str]:
    """Lines of text. taken: names that no loop variable may have."""
    names = (name for n in count() for name in ("ijklmn" if not n else (f"i{n}",)) if name not in taken)
    variables = list(islice(names, NESTED))
    return [line for node in nodes for line in node.lines(width, variables)]


def _item(row: Row, roller: Roller) -> Item:
    body = None if row.body is None else tuple(_item(x, roller) for x in row.body)
    columns = len(render(row.parts, [Sum(n) for n in row.numbers]))
    shape = roller.shape((row.parts, None if body is None else tuple(x.shape for x in body)))
    return Item(shape, row.numbers, columns, body)


class _Live(NamedTuple):
    """A row inside loops: its numbers depend on their variables."""

    parts: tuple[str | Slot, ...]
    sums: tuple[Sum, ...]
    body: tuple[_Live, ...] | None

    def growth(self, later: _Live) -> Iterator[tuple[Slot, int, int]]:
        """For each number its slot, its value in the first round, and how it grows until a later round."""
        slots = (part for part in self.parts if isinstance(part, Slot) for _ in range(part.numbers))
        for slot, a, b in zip(slots, self.sums, later.sums, strict=True):
            yield slot, a.base, b.base - a.base
        for mine, its in zip(self.body or (), later.body or (), strict=True):
            yield from mine.growth(its)

    def looped(self, later: _Live, variable: Variable, start: int) -> _Live:
        """The same in a loop whose variable begins at `start`; `later` is this row in the next round."""
        sums = []
        for a, b in zip(self.sums, later.sums, strict=True):
            step = b.base - a.base
            sums.append(Sum(a.base - step * start, (*a.terms, (variable, step)) if step else a.terms))
        pairs = zip(self.body or (), later.body or (), strict=True)
        body = None if self.body is None else tuple(a.looped(b, variable, start) for a, b in pairs)
        return _Live(self.parts, tuple(sums), body)


def _live(row: Row) -> _Live:
    body = None if row.body is None else tuple(map(_live, row.body))
    return _Live(row.parts, tuple(map(Sum, row.numbers)), body)


def _nodes(steps: Written, rows: Sequence[_Live]) -> list[Node]:
    """The plan carried out on rows."""
    out: list[Node] = []
    for step in steps:
        if isinstance(step, Loop):
            out.append(_loop(step, rows))
            continue
        row = rows[step.start]
        inner = None if step.steps is None or row.body is None else _nodes(step.steps, row.body)
        out.append(Node(row.parts, row.sums, inner, step.inline))
    return out


def _loop(loop: Loop, rows: Sequence[_Live]) -> Node:
    middle = loop.start + loop.period
    now, later = rows[loop.start : middle], rows[middle : middle + loop.period]
    growth = [g for a, b in zip(now, later, strict=True) for g in a.growth(b)]
    if not any(step for _, _, step in growth):
        return Node((), (), _nodes(loop.steps, now), loop.inline, (loop.rounds, 0))
    variable, start = Variable(), _start(growth)
    body = [a.looped(b, variable, start) for a, b in zip(now, later, strict=True)]
    return Node((), (), _nodes(loop.steps, body), loop.inline, (loop.rounds, start), variable)


def _start(growth: Sequence[tuple[Slot, int, int]]) -> int:
    """Where a loop begins to count: with the first name or unit that it counts, else at 0."""
    for names in (("name", "quote", "label", "title"), ("unit",)):
        for slot, base, step in growth:
            if slot.what in names and step == 1:
                return base
    return 0
