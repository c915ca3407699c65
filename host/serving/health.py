"""The health of a runner, for load balancers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from enum import StrEnum


class State(StrEnum):
    """Whether requests are being answered."""

    READY = "ready"
    """Requests are answered."""
    DEGRADED = "degraded"
    """The board failed and was reopened, but no run has succeeded since."""
    FAILING = "failing"
    """The board is down. Requests wait, or are answered with its error."""
    CLOSED = "closed"
    """The runner was closed."""


@dataclass(frozen=True)
class Health:
    """The state of a runner. error: class and text of the latest failure of the board, None before the first; it stays
    when the state is ready again. since: when the state began, in seconds of `time.time`. failures: how often the board
    failed since the runner was made."""

    state: State = State.READY
    error: str | None = None
    since: float = field(default_factory=time.time)
    failures: int = 0

    def to(self, state: State) -> Health:
        """Return the health in another state, which begins now."""
        return self if state is self.state else replace(self, state=state, since=time.time())

    def failed(self, error: Exception) -> Health:
        """Return the health after a failure of the board by `error`; the state FAILING begins now unless it lasts
        already."""
        return replace(self.to(State.FAILING), error=f"{type(error).__name__}: {error}", failures=self.failures + 1)
