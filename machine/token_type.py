"""The type of a stream's tokens: their shape, and the number of words that carry one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenType:
    """A token of rows x columns float32 elements, carried as `words` words of the stream.

    A step of a unit may move a part of a token, or several. The depth of a stream counts words. doc: a text that says
    what a word is.
    """

    name: str
    rows: int
    columns: int
    words: int = 1
    doc: str = ""

    @property
    def word_elements(self) -> int:
        """Float32 elements per word."""
        return self.rows * self.columns // self.words


ELEMENT = TokenType("element", 1, 1, doc="a word is an element")
