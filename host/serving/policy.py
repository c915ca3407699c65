"""How a runner queues requests, and what it does when its board fails."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf, isnan

from ...base.errors import BoardError, RsnError


class QueueFull(BoardError):
    """The queue is full, and no place became free in time. The request was not queued."""


class RequestTimeout(BoardError, TimeoutError):
    """A request was not answered in its time. If its run ends later, the result is dropped."""


class TooLarge(RsnError):
    """The body of a request is too large, or becomes too large when it is parsed."""


@dataclass(frozen=True)
class Serving:
    """How a runner queues requests, and what it does when its board fails. Times are in seconds.

    queue: the most requests that wait. max_wait_s: how long the oldest request waits for others to share its run, while
    the program has room for them. retries: how often a request is run again when the board fails during its run; runs
    have no side effects. backoff_s, backoff_limit_s: the time before a failed board is reopened, doubled after each
    further failure up to the limit. give_up_s: when the board has been down for so long, the waiting requests are
    answered with its error; the runner tries again when a new request waits. Raises `ValueError` for a negative,
    infinite or NaN value, and for a queue of less than 1.
    """

    queue: int = 256
    max_wait_s: float = 0.0
    retries: int = 1
    backoff_s: float = 0.1
    backoff_limit_s: float = 10.0
    give_up_s: float = 60.0

    def __post_init__(self) -> None:
        for f in fields(self):
            value, least = getattr(self, f.name), 1 if f.name == "queue" else 0
            if isnan(value) or not least <= value < inf:
                raise ValueError(f"{f.name} = {value}: {least} or more, and finite")


ALONE = Serving(retries=0, give_up_s=0.0)
"""For a script that calls and checks: the caller gets an error of the board at once."""
