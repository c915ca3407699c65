"""What travels on a stream: the shape of a token, and how many words of the stream it takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenType:
    """A token of rows x columns elements (float32), which a stream carries as `words` words.

    Units may move parts of a token or several at once; a stream's depth counts words. doc: what a word is, for people.
    """

    name: str
    rows: int
    columns: int
    words: int = 1
    doc: str = ""

    @property
    def word_elements(self) -> int:
        """Elements in a word."""
        return self.rows * self.columns // self.words


ELEMENT = TokenType("element", 1, 1, doc="a word is an element")
