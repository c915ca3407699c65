"""Messages that point at the mistake: file:line:column, the source line, a caret, and notes that help."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property

from ..base.errors import SourceError

Span = tuple[int, int]
"""Offsets of the first character and of the one behind the last."""

SHOWN = 20
"""Errors rendered per run; a broken line in a loop or a wrong overlay name would otherwise fill the screen."""

ENOUGH = 1000
"""Mistakes that end a run: a broken line in a long loop is explained again in every iteration."""

WIDEST = 200
"""Characters that an error shows of a line: packed vectors are long ones."""

CALLS = 6
"""Calls of blocks inside each other that an error lists."""


@dataclass(frozen=True)
class Diagnostic:
    """One error at one place of a text."""

    span: Span
    message: str
    notes: tuple[str, ...] = ()


class Mistake(Exception):
    """Raised where an error is found, caught where the next one can be looked for. Never leaves the assembler."""

    def __init__(self, span: Span, message: str, *notes: str) -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(span, message, notes)


class Text:
    """A source text that knows its lines. notes: said with every error in it, such as where it is included."""

    def __init__(self, text: str, file: str, *notes: str) -> None:
        self.text = text
        self.file = file
        self.notes = notes

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(i + 1 for i, c in enumerate(self.text) if c == "\n")]

    def line(self, offset: int) -> int:
        """Line number, from 1."""
        return bisect_right(self._starts, offset)

    def at(self, offset: int) -> str:
        """file:line:column."""
        line = self.line(offset)
        return f"{self.file}:{line}:{offset - self._starts[line - 1] + 1}"

    def render(self, d: Diagnostic) -> str:
        start, end = d.span
        begin = self._starts[self.line(start) - 1]
        line = self.text[begin:].split("\n", 1)[0].rstrip("\r")
        line, column = _around(line, start - begin)
        margin = "".join("\t" if c == "\t" else " " for c in line[:column])
        caret = "^" * max(1, min(end - start, len(line) - column))
        out = [f"{self.at(start)}: error: {d.message}", line, margin + caret]
        return "\n".join(out + [f"note: {n}" for n in (*d.notes, *self.notes)])


def _around(line: str, column: int) -> tuple[str, int]:
    """A line, cut to what is around a column if it is long, and where the column is then."""
    if len(line) <= WIDEST:
        return line, column
    start = max(0, min(column - WIDEST // 2, len(line) - WIDEST))
    shown = line[start : start + WIDEST]
    before, behind = "..." * (start > 0), "..." * (start + WIDEST < len(line))
    return before + shown + behind, column - start + len(before)


class Report:
    """The errors of one run, at most one per place: in an unrolled loop the first iteration that fails speaks.

    text is the one that is being read: spans are offsets into it.
    """

    def __init__(self, text: Text) -> None:
        self.text = text
        self._calls: tuple[str, ...] = ()
        self._order: dict[int, int] = {}
        self._found: dict[tuple[int, Span], tuple[Text, Diagnostic]] = {}
        self._added = 0

    @contextmanager
    def inside(self, text: Text, *calls: str) -> Iterator[None]:
        """While it lasts, errors lie in `text`. calls: notes on how the run came there, the latest first."""
        before = self.text, self._calls
        self.text, self._calls = text, (*calls, *self._calls)
        try:
            yield
        finally:
            self.text, self._calls = before

    def add(self, mistake: Mistake) -> None:
        d = mistake.diagnostic
        place = self._order.setdefault(id(self.text), len(self._order)), d.span
        if place not in self._found:
            calls = self._calls[:CALLS] + (("...",) if len(self._calls) > CALLS else ())
            self._found[place] = self.text, replace(d, notes=(*d.notes, *calls))
        self._added += 1
        if self._added >= ENOUGH:
            self.check()

    def check(self) -> None:
        """Raise `SourceError` with everything found, text by text in their order; return if there is nothing."""
        if not self._found:
            return
        found = [self._found[place] for place in sorted(self._found)]
        out = [text.render(d) for text, d in found[:SHOWN]]
        if len(found) > SHOWN:
            out.append(f"and {len(found) - SHOWN} more errors")
        raise SourceError("\n".join(out))


def listing(names: Iterable[str]) -> str:
    """`A, B, C`, cut where nobody reads on."""
    all_names = list(names)
    shown = ", ".join(all_names[:24])
    return shown + (f", ... ({len(all_names)} in all)" if len(all_names) > 24 else "")


def meant(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """A note with the known name that `name` is closest to, if one is close."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.7)
    return (f"did you mean {close[0]}?",) if close else ()
