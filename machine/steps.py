"""The steps that kernels consist of, and the streams between units at run time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .description import FREE

if TYPE_CHECKING:
    from .executor import RunningProcess

NEVER = -1
"""The number of a firing or uOP when there has been none yet."""


@dataclass(frozen=True)
class Issue:
    """A uOP that is issued to a unit.

    uop: None for the empty uOP of a terminator, for which no kernel runs. origin: the packet or list position that it
    came from. last: it ends the unit.
    """

    uop: Any
    origin: int
    last: bool = False


class Channel:
    """A stream at run time: a FIFO of tokens with one writer and one reader. All sizes are in words.

    capacity: how many words it holds. source, sink: names of the processes that write and read it. control: it carries
    instructions, not data. number: its index in `Wiring.channels`. filled, space: words in it, and room. tokens:
    written and not yet read. credits: freed room and when it was freed. reader, writer: the task that is blocked on it.
    empty, full: seconds in which the reader waited for words and the writer for room.
    """

    __slots__ = (
        "capacity",
        "control",
        "credits",
        "empty",
        "filled",
        "full",
        "last",
        "name",
        "number",
        "reader",
        "sink",
        "source",
        "space",
        "tokens",
        "writer",
    )

    def __init__(self, name: str, capacity: int, source: str = "", sink: str = "", control: bool = False) -> None:
        self.name = name
        self.source = source
        self.sink = sink
        self.control = control
        self.number = 0
        self.capacity = capacity
        self.space = capacity
        self.filled = 0
        self.empty = self.full = 0.0
        self.tokens: deque[tuple[int, Any, float, float, int]] = deque()  # words, payload, first, last, firing
        self.credits: deque[tuple[int, float, int]] = deque([(capacity, 0.0, NEVER)])  # words, freed at, by firing
        self.reader: RunningProcess | None = None
        self.writer: RunningProcess | None = None
        self.last: tuple[str, int, Issue | None] = ("", NEVER, None)  # who put last: unit, uOP number, uOP

    def take(self, words: int, parts: int = 1) -> tuple[Any, float, float, float, int, int]:
        """Remove `words` words; gathers or splits tokens as needed. The caller has checked that `filled` is enough.

        parts: of the step that takes them; if it has several, a payload comes with the last word of its token. Returns
        the payload, the clocks, in seconds, of the first word, of the end of its token and of the last word, and the
        firings that wrote the first and the last one.
        """
        self.filled -= words
        size, payload, first, last, firing = self.tokens.popleft()
        if size == words:
            return payload, first, last, last, firing, firing
        pieces: list[Any] = []
        need = words
        start, ended, opened = first, last, firing
        while True:
            if size > need:  # the reader's unit is smaller than the writer's: split the token
                rest = payload
                if parts > 1:
                    payload = None
                elif payload is not None:
                    flat = payload.reshape(-1)
                    cut = len(flat) * need // size
                    payload, rest = flat[:cut], flat[cut:]
                self.tokens.appendleft((size - need, rest, first, last, firing))
                size = need
            pieces.append(payload)
            need -= size
            if not need:
                break
            size, payload, first, last, firing = self.tokens.popleft()
        return joined(pieces), start, ended, last, opened, firing

    def __str__(self) -> str:
        return self.name


def joined(pieces: Sequence[Any]) -> Any:
    """Return the payload of a step from the payloads of its words: the only one as it is, several as one vector of
    their elements, None if no word brought one. A None in `pieces` is a word without a payload.
    """
    brought = [p for p in pieces if p is not None]
    if len(brought) < 2:
        return brought[0] if brought else None
    return np.concatenate([p.reshape(-1) for p in brought])


class Step:
    """One step of a kernel: wait for `words` words on each of `gets` and room for them on each of `puts`, take `amount`
    times the rate, then free the inputs and deliver the outputs.

    rate: name of a rate of the machine, or `FREE`. do: called with the payloads of `gets`, returns those of `puts` (a
    tuple); only in a run with data; None: it computes nothing, and puts get `send`. send: payloads for `puts` that are
    control, not data: delivered in every run. needs_whole_token: the step starts when its inputs are complete (an MME);
    otherwise it streams them through (a Mesh). times: 1; see `Burst`.

    parts: the step is so many equal parts, one after the other: each waits for, takes and delivers `words / parts`
    words, in `amount / parts` times the rate. `do` is called at the end of the last part, which delivers the payloads.
    So a stream may hold fewer words than a step moves: the step then goes on part by part, as the other end takes or
    gives words.
    """

    __slots__ = ("amount", "do", "gets", "needs_whole_token", "parts", "puts", "rate", "send", "times", "words")

    def __init__(
        self,
        rate: str = FREE,
        amount: float = 1.0,
        *,
        gets: Sequence[Channel] = (),
        puts: Sequence[Channel] = (),
        words: int = 1,
        do: Callable[..., Any] | None = None,
        send: tuple[Any, ...] = (),
        needs_whole_token: bool = False,
        parts: int = 1,
    ) -> None:
        self.rate = rate
        self.amount = amount
        self.gets = gets
        self.puts = puts
        self.words = words
        self.do = do
        self.send = send
        self.needs_whole_token = needs_whole_token
        self.parts = parts
        self.times = 1


class Burst(Step):
    """`times` equal steps, one after the other; the same as that many `Step`s. An engine without clocks may execute
    several of them at once.

    do: called with the number n of steps executed at once and, for each of `gets`, the sequence of their n payloads;
    returns such a sequence for each of `puts`. The caller must not change the returned sequences. The other arguments
    are those of `Step`, for each of the steps.
    """

    __slots__ = ()

    def __init__(
        self,
        times: int,
        rate: str = FREE,
        amount: float = 1.0,
        *,
        gets: Sequence[Channel] = (),
        puts: Sequence[Channel] = (),
        words: int = 1,
        do: Callable[..., Any] | None = None,
        needs_whole_token: bool = False,
        parts: int = 1,
    ) -> None:
        super().__init__(
            rate, amount, gets=gets, puts=puts, words=words, do=do, needs_whole_token=needs_whole_token, parts=parts
        )
        self.times = times


class Par:
    """Run lanes in parallel; the kernel continues when all have ended (a Mem loads while it sends)."""

    __slots__ = ("lanes",)

    def __init__(self, *lanes: Steps) -> None:
        self.lanes = lanes


class AnyOf:
    """Wait until a word has come on one of several streams, and choose the stream on which a word came first; of
    streams with equal times, the one that is listed first. The kernel gets the index of the stream; the word stays
    there for a `Step` to take. The choice takes no time: the unit goes on when the word has come. With one stream the
    unit only waits. until: a time in seconds; if no word has come by then, the unit goes on at that time, and its
    kernel gets None.

    A network with such a unit is no Kahn network: its results may depend on times. They are still a function of the
    program and the rates alone (`ProcessNetwork.run`). Times are sums of floats: for words that come in the same cycle
    to come at the same time, let the clock of the machine be a power of 2, so that the sums are exact. Raises
    `ValueError` without streams, or for one that is listed twice.
    """

    __slots__ = ("channels", "until")

    times = 0
    """It is no firing."""

    def __init__(self, *channels: Channel, until: float | None = None) -> None:
        if not channels or len(set(channels)) < len(channels):
            raise ValueError("a unit chooses among one or more streams, each listed once")
        self.channels = channels
        self.until = until

    def ending(self, until: float) -> AnyOf:
        """Return the same choice that ends at time `until`, in seconds. Its streams are not checked again."""
        other = AnyOf.__new__(AnyOf)
        other.channels, other.until = self.channels, until
        return other


Steps = Generator[Step | Par | AnyOf, Any, None]
