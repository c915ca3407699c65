"""Where something stands in a file of the user."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """A part of one line of a file. line, column: counted from 1, in characters. end: the first column behind it; 0 if
    only its beginning is known, as in the files of machines."""

    line: int
    column: int
    end: int = 0

    @property
    def start(self) -> Place:
        """The same place without its end."""
        return Place(self.line, self.column)
