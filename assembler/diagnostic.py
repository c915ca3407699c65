"""Error messages that point at the mistake: file:line:column, the source line, a caret, and notes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property

from ..base.errors import SourceError

Span = tuple[int, int]
"""Offset of the first character and offset behind the last one, in characters of the text."""

SHOWN = 20
"""Limit of errors printed per run. Without it, one wrong overlay name would fill the screen."""

ENOUGH = 1000
"""Number of mistakes that ends a run: a wrong line in a long loop is a mistake again in every iteration."""

WIDEST = 200
"""Limit of characters that an error shows of its line. Lines with packed vectors are longer."""

CALLS = 6
"""Limit of nested block calls that an error lists."""


@dataclass(frozen=True)
class Diagnostic:
    """An error message, the span of the text that it is about, and notes that help."""

    span: Span
    message: str
    notes: tuple[str, ...] = ()


class Mistake(Exception):
    """An error in a text. It is raised where it is found, and caught where the search for further errors can go on. No
    caller of the assembler sees it: the assembler raises `SourceError` with all errors.

    span: the part of the text that is wrong. message: what is wrong. notes: further lines that help."""

    def __init__(self, span: Span, message: str, *notes: str) -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(span, message, notes)


class SourceText:
    """A source text with its line starts. file: its name in messages. notes: printed with every error in it, such as
    where it is included.
    """

    def __init__(self, text: str, file: str, *notes: str) -> None:
        self.text = text
        self.file = file
        self.notes = notes

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(i + 1 for i, c in enumerate(self.text) if c == "\n")]

    def line(self, offset: int) -> int:
        """Return the number of the line at an offset, counted from 1. offset: in characters of the text, as in a
        `Span`.
        """
        return bisect_right(self._starts, offset)

    def at(self, offset: int) -> str:
        """Format an offset, in characters of the text, as file:line:column, both counted from 1."""
        line = self.line(offset)
        return f"{self.file}:{line}:{offset - self._starts[line - 1] + 1}"

    def render(self, d: Diagnostic) -> str:
        """Return an error of this text (`d`) as the lines to print: place and message, the source line, a caret line,
        notes.

        It has no line end behind the last line.
        """
        start, end = d.span
        begin = self._starts[self.line(start) - 1]
        line = self.text[begin:].split("\n", 1)[0].rstrip("\r")
        line, column = _around(line, start - begin)
        margin = "".join("\t" if c == "\t" else " " for c in line[:column])
        caret = "^" * max(1, min(end - start, len(line) - column))
        out = [f"{self.at(start)}: error: {d.message}", line, margin + caret]
        return "\n".join(out + [f"note: {n}" for n in (*d.notes, *self.notes)])


def _around(line: str, column: int) -> tuple[str, int]:
    """Cut a long line to `WIDEST` characters around a column; return it and the column's place in it."""
    if len(line) <= WIDEST:
        return line, column
    start = max(0, min(column - WIDEST // 2, len(line) - WIDEST))
    shown = line[start : start + WIDEST]
    before, behind = "..." * (start > 0), "..." * (start + WIDEST < len(line))
    return before + shown + behind, column - start + len(before)


class ErrorReport:
    """Collects the errors of one run, at most one per place in a text: a wrong line in a loop is reported once, for the
    first iteration that is wrong.

    text: the text that is being read, into which the spans of new errors are offsets.
    """

    def __init__(self, text: SourceText) -> None:
        self.text = text
        self._calls: tuple[str, ...] = ()
        self._order: dict[int, int] = {}
        self._found: dict[tuple[int, Span], tuple[SourceText, Diagnostic]] = {}
        self._added = 0

    @contextmanager
    def inside(self, text: SourceText, *calls: str) -> Iterator[None]:
        """Context in which errors are reported as errors in `text`; a `Mistake` ends it, and is recorded. calls: notes
        that each of them gets, such as "called from FILE:LINE:COLUMN"; the notes of an enclosing `inside` follow them.

        Raises `SourceError` once there are `ENOUGH` mistakes.
        """
        before = self.text, self._calls
        self.text, self._calls = text, (*calls, *self._calls)
        try:
            yield
        except Mistake as e:
            self.add(e)
        finally:
            self.text, self._calls = before

    def add(self, mistake: Mistake) -> None:
        """Record a mistake in the current text. Raises `SourceError` once there are `ENOUGH`."""
        d = mistake.diagnostic
        place = self._order.setdefault(id(self.text), len(self._order)), d.span
        if place not in self._found:
            calls = self._calls[:CALLS] + (("...",) if len(self._calls) > CALLS else ())
            self._found[place] = self.text, replace(d, notes=(*d.notes, *calls))
        self._added += 1
        if self._added >= ENOUGH:
            self.check()

    def check(self) -> None:
        """Raise `SourceError` with all errors, sorted by text and place, if there are any."""
        if not self._found:
            return
        found = [self._found[place] for place in sorted(self._found)]
        out = [text.render(d) for text, d in found[:SHOWN]]
        if len(found) > SHOWN:
            out.append(f"and {len(found) - SHOWN} more errors")
        raise SourceError("\n".join(out))


def listing(names: Iterable[str]) -> str:
    """Join names as `A, B, C`; of more than 24, list the first 24 and the total."""
    all_names = list(names)
    shown = ", ".join(all_names[:24])
    return shown + (f", ... ({len(all_names)} in all)" if len(all_names) > 24 else "")


def did_you_mean(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return a note that suggests the known name closest to `name`, or no note if none is close."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.7)
    return (f"did you mean {close[0]}?",) if close else ()
