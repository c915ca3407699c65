"""Text of tokens as they come: whole characters, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What tokenizers make of bytes that are no character yet."""


class Tokenizer(Protocol):
    """A tokenizer of transformers."""

    eos_token_id: int | None

    def __call__(self, text: str) -> Any:
        """Return a mapping whose "input_ids" is a list of token ids."""

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        """Return the text of tokens."""


class TextPieces:
    """Turns tokens into pieces of text. stops: strings at which the text ends; they are not part of it.

    A piece is held back while it ends in the middle of a character, or may be the beginning of a stop string. Of tokens
    that are single bytes and together no text, the pieces may differ from the text of all tokens.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._tokenizer, self._stops = tokenizer, tuple(stops)
        self._tokens: list[int] = []
        self._given = 0
        self.is_stopped = False
        """Whether a stop string was found."""

    def add(self, token: int) -> str:
        """Take a token. Returns the text that is certain now, which may be empty."""
        self._tokens.append(token)
        return self._piece(self._text(), is_last=False)

    def rest(self) -> str:
        """Return the text that was held back; there are no more tokens."""
        return self._piece(self._text(), is_last=True)

    def _text(self) -> str:
        return self._tokenizer.decode(self._tokens, skip_special_tokens=True)

    def _piece(self, text: str, is_last: bool) -> str:
        if self.is_stopped:
            return ""
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.is_stopped, end = True, min(found)
        else:
            end = len(text) if is_last else self._certain(text)
        piece = text[self._given : end]
        self._given = max(self._given, end)
        return piece

    def _certain(self, text: str) -> int:
        """Characters that no later token can change or make part of a stop string."""
        end = len(text.rstrip(UNFINISHED))
        for stop in self._stops:
            for size in range(min(len(stop) - 1, end), 0, -1):
                if text[:end].endswith(stop[:size]):
                    end -= size
                    break
        return end
