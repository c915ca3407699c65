"""Text of tokens as they come: whole characters, up to a stop string.

The text of an answer is that of the prompt's tokens and its own, without that of the prompt's: what a token adds
depends on those before it (a leading space, the first bytes of a character).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Protocol

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What tokenizers make of bytes that are no character yet."""
CONTEXT = 16
"""Tokens of the prompt that are decoded with those of the answer: the last ones, or more if they begin in the middle of
a character."""


class Tokenizer(Protocol):
    """A tokenizer of transformers: the part of it that is used here. eos_token_id: the token that ends a text; None if
    the tokenizer has no such token."""

    eos_token_id: int | None

    def __call__(self, text: str) -> Any:
        """Return a mapping whose "input_ids" is a list of token ids."""

    def decode(self, tokens: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        """Return the text of tokens, given by their numbers. skip_special_tokens: without the text of special ones.
        clean_up_tokenization_spaces: without spaces in front of punctuation."""


class TextPieces:
    """Turns the tokens of an answer into pieces of text. tokenizer: of the model. prompt: the tokens before. stops:
    strings at which the text ends; they are not part of it.

    A piece is held back while it ends in the middle of a character, or may be the beginning of a stop string. Special
    tokens are no part of the text, but stop strings are found in their text too, such as `<|im_end|>`. If tokens are
    single bytes that together are no valid text, the pieces may differ from what the tokenizer makes of all tokens.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), prompt: Sequence[int] = ()) -> None:
        self._tokenizer, self._stops = tokenizer, tuple(stops)
        self._special = frozenset(getattr(tokenizer, "all_special_ids", ()))
        self._tokens = list(prompt[-CONTEXT:])
        while UNFINISHED in (before := self._decoded()) and len(self._tokens) < len(prompt):
            self._tokens = list(prompt[-2 * len(self._tokens) :])  # they began in the middle of a character
        self._before = before.rstrip(UNFINISHED)
        self._text = ""
        """What is certain, without special tokens."""
        self._seen = ""
        """The same with the text of special tokens, in which stop strings are looked for."""
        self._hidden: list[tuple[int, int]] = []
        """Where special tokens stand in it, and the characters of each."""
        self._given = 0
        self.is_stopped = False
        """Whether a stop string was found."""

    def add(self, token: int) -> str:
        """Take the next token. Returns the text that is certain now, which may be empty; "" after a stop string."""
        if token in self._special:
            text = self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
            self._hidden.append((len(self._seen), len(text)))
            self._seen += text
        self._tokens.append(token)
        return self._piece(is_last=False)

    @property
    def length(self) -> int:
        """Characters of the text so far, also those that are held back for a stop string."""
        return len(self._text)

    def rest(self) -> str:
        """Return the text that was held back; there are no more tokens."""
        return self._piece(is_last=True)

    def _decoded(self) -> str:
        # with all spaces: else the prompt's text is no prefix of the text of both, and that has other tokens
        return self._tokenizer.decode(self._tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _piece(self, is_last: bool) -> str:
        if self.is_stopped:
            return ""
        whole = self._decoded()
        begin = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._before, whole, strict=False)))
        text = whole[begin:] if is_last else whole[begin:].rstrip(UNFINISHED)
        self._seen += text[len(self._text) :]
        self._text += text[len(self._text) :]
        found = [at for stop in self._stops if (at := self._seen.find(stop)) >= 0]
        self.is_stopped = bool(found)
        end = min(found) if found else len(self._seen) - (0 if is_last else self._open())
        end = self._visible(end)
        piece = self._text[self._given : end]
        self._given = max(self._given, end)
        return piece

    def _open(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        return max(
            (
                size
                for stop in self._stops
                for size in range(1, min(len(stop), len(self._seen) + 1))
                if self._seen.endswith(stop[:size])
            ),
            default=0,
        )

    def _visible(self, end: int) -> int:
        """How many of the first characters of `_seen` are of no special token."""
        return end - sum(min(size, max(0, end - at)) for at, size in self._hidden)
