"""How a runner treats its queue, and a board that fails."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf, isnan

from ...base.errors import BoardError


class QueueFull(BoardError):
    """As many requests wait as may, and none was taken in time. Nothing was queued."""


class RequestTimeout(BoardError, TimeoutError):
    """A request was not answered in the time it was given; if its run ends later, the result is dropped."""


@dataclass(frozen=True)
class Serving:
    """Times in seconds. Raises `ValueError` for what cannot be meant.

    queue: requests that may wait. max_wait_s: how long the oldest waits for others to share its run, while there is
    room for them. retries: how often a request is run again when the board fails under it; runs have no side effects.
    backoff_s, backoff_limit_s: before a failed board is opened again, doubled from failure to failure up to the limit.
    give_up_s: when a board has been down so long, what waits is answered with its error; trying goes on when something
    waits again.
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
"""For a script that calls and looks: a fault of the board is an answer, at once."""
