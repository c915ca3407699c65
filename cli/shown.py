"""How commands show what they found: tables, and attributes as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def table(rows: Sequence[Sequence[str]], right: Sequence[bool] | None = None) -> str:
    """Return aligned columns as lines of text. rows: the cells of each row, equally many in all, or `ValueError` is
    raised; the first row is the heading. right: whether each column is aligned to the right; by default those of whole
    numbers below the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if right is None:
        right = [all(c.isdecimal() or not c for c in column[1:]) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def picked(thing: object, *names: str) -> dict[str, Any]:
    """Return some attributes of an object by their names. Raises `AttributeError` for one that it does not have."""
    return {name: getattr(thing, name) for name in names}
