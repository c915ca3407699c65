"""Messages that point at the mistake: file:line:column, the source line, a caret, and notes that help."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property

from ..isa.errors import SourceError

Span = tuple[int, int]
"""Offsets of the first character and of the one behind the last."""

SHOWN = 20
"""Errors rendered per run; a broken line in a loop or a wrong overlay name would otherwise fill the screen."""


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
    """A source text that knows its lines."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(i + 1 for i, c in enumerate(self.text) if c == "\n")]

    def line(self, offset: int) -> int:
        """Line number, from 1."""
        return bisect_right(self._starts, offset)

    def render(self, d: Diagnostic) -> str:
        start, end = d.span
        number = self.line(start)
        begin = self._starts[number - 1]
        line = self.text[begin:].split("\n", 1)[0].rstrip("\r")
        column = start - begin
        margin = "".join("\t" if c == "\t" else " " for c in line[:column])
        caret = "^" * max(1, min(end - start, len(line) - column))
        out = [f"{self.file}:{number}:{column + 1}: error: {d.message}", line, margin + caret]
        return "\n".join(out + [f"note: {n}" for n in d.notes])


class Report:
    """The errors of one run, at most one per place: in an unrolled loop the first iteration that fails speaks."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self._found: dict[Span, Diagnostic] = {}

    def add(self, mistake: Mistake) -> None:
        self._found.setdefault(mistake.diagnostic.span, mistake.diagnostic)

    def check(self) -> None:
        """Raise `SourceError` with everything found, in the order of the text; return if there is nothing."""
        if not self._found:
            return
        found = sorted(self._found.values(), key=lambda d: d.span)
        out = [self.text.render(d) for d in found[:SHOWN]]
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
