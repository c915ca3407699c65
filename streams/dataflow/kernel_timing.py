"""The time of a kernel with one rate."""

from __future__ import annotations

from dataclasses import dataclass

from ...base.errors import ProgramError


@dataclass(frozen=True)
class Timing:
    """When a kernel puts its tokens, in cycles of an execution that nothing delays.

    first: cycles from the start to the first token (D). interval: cycles from a token to the next one (initiation
    interval, II). tokens: of an execution (T).
    """

    first: int
    interval: int
    tokens: int

    def __post_init__(self) -> None:
        if self.first < 0 or self.interval < 1 or self.tokens < 1:
            raise ProgramError(
                f"a timing takes first >= 0, interval >= 1, tokens >= 1; this one has first {self.first}, "
                f"interval {self.interval}, tokens {self.tokens}"
            )

    @property
    def last(self) -> int:
        """Cycles from the start to the last token: L = D + (T - 1) * II."""
        return self.first + (self.tokens - 1) * self.interval
