"""A check of `rsn doctor`: what was looked at, what is wrong with it, and the command that mends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Check:
    """The result of one check. what: what was looked at. purpose: what it is needed for. version: what was found.
    problem: why it failed. mend: what repairs it, a command or a text. Both are empty if it passed. runs: the names of
    boards that can be used because of it."""

    what: str
    purpose: str
    version: str = ""
    problem: str = ""
    mend: str = ""
    runs: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the check passed."""
        return not self.problem

    def __str__(self) -> str:
        first = f"{'ok' if self.ok else 'no':<4}{' '.join(filter(None, (self.what, self.version)))} ({self.purpose})"
        more = "; ".join(filter(None, (self.problem, self.mend)))
        return f"{first}\n      {more}" if more else first


def as_rows(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """Return checks as `--json` shows them: an object for each, with its fields, `ok` and `for`."""
    rows = [{**asdict(c), "ok": c.ok, "for": c.purpose} for c in checks]
    for row in rows:
        del row["purpose"], row["runs"]
    return rows


def line(error: Exception) -> str:
    """Return the class and the first line of an error's message, as one line without control characters."""
    return plain(f"{type(error).__name__}: {error}".partition("\n")[0])


def plain(text: str) -> str:
    """Return a text in which each character that cannot be printed is a space: a terminal would execute control
    characters."""
    return "".join(c if c.isprintable() else " " for c in text)
