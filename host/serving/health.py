"""What a load balancer asks a runner."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from enum import StrEnum


class State(StrEnum):
    READY = "ready"
    DEGRADED = "degraded"
    """The board has failed and is open again, but no run has ended well since."""
    FAILING = "failing"
    """The board is down. Requests wait, or are answered with its error."""
    CLOSED = "closed"


@dataclass(frozen=True)
class Health:
    """error: of the latest failure of the board, which stays when the state is ready again. since: when the state
    began, seconds of `time.time`. failures: of the board, since the runner began."""

    state: State = State.READY
    error: str | None = None
    since: float = field(default_factory=time.time)
    failures: int = 0

    def to(self, state: State) -> Health:
        return self if state is self.state else replace(self, state=state, since=time.time())

    def failed(self, error: Exception) -> Health:
        return replace(self.to(State.FAILING), error=f"{type(error).__name__}: {error}", failures=self.failures + 1)
