"""The report of a deadlock: which process waits for which, and the streams on which sends and receives differ.

`machine.deadlock` fills in these classes; their `__str__` and `message` turn them into text.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from .finding import Finding

MAX_LINES = 40
"""Lines of a report. At most half of them show the cycle."""
WIDTH = 110
"""Columns at which the list of idle units is wrapped."""


@dataclass(frozen=True)
class Imbalance:
    """A stream on which the words sent and the words received differ, counted over the whole program.

    src, dst: the units that send and receive. sent, received: numbers of words. uop: number of the first uOP of `unit`
    whose words have no counterpart. where: its place in the source.
    """

    stream: str
    src: str
    dst: str
    sent: int
    received: int
    uop: int
    where: str

    @property
    def unit(self) -> str:
        """The unit that sends or receives too many words."""
        return self.src if self.sent > self.received else self.dst

    @property
    def peer(self) -> str:
        """The unit at the other end than `unit`, which receives or sends too few words."""
        return self.dst if self.sent > self.received else self.src

    def message(self, place: str = "") -> str:
        """One sentence with both counts and the first uOP without a counterpart. place: added to that uOP."""
        verb, missing = ("sends", "receives") if self.sent > self.received else ("waits for", "sends")
        at = f" ({place})" if place else ""
        return (
            f"{self.stream}: {self.sent} words sent, {self.received} received; {self.unit} uOP {self.uop}{at} is the "
            f"first that {verb} words which {self.peer} never {missing}"
        )

    @property
    def finding(self) -> Finding:
        """This imbalance as finding S01."""
        verb = "take" if self.sent > self.received else "send"
        less = abs(self.sent - self.received)
        way_out = f"{self.peer} must {verb} {less} words more, or {self.unit} as many fewer"
        return Finding("S01", self.message(), self.where, help=way_out)


@dataclass(frozen=True)
class Wait:
    """One blocked process: it waits for words of a stream (`what` is "get") or for room in it ("put").

    unit: name of the process: a unit, `decoder UNIT`, or `dispatcher`. number: the uOP that it executes (for a decoder
    or the dispatcher: the packet), -1 before the first. place: source line of that uOP or packet. words: how many
    words, or how much room, it needs. filled, capacity: words in the stream now, and at most. peer: the process at the
    other end of the stream. ended: `peer` has ended. serves: None for a unit; for a process of the instruction path
    the unit that it feeds, "" if it feeds all units. idle: it waits for its next instruction. any_of: a word on one of
    several streams is enough, and this is one of them.
    """

    unit: str
    number: int
    place: str
    what: str
    stream: str
    words: int
    filled: int
    capacity: int
    peer: str
    ended: bool
    serves: str | None
    idle: bool
    any_of: bool = False

    @property
    def control(self) -> bool:
        """Whether the process belongs to the instruction path (decoder or dispatcher)."""
        return self.serves is not None

    @property
    def position(self) -> str:
        """The uOP or packet and its source line, e.g. `uOP 3 (gemm.rsn:31)`."""
        if self.number < 0:
            return "start"
        number = f"{'packet' if self.control else 'uOP'} {self.number}"
        after = "after " if self.idle and not self.control else ""
        return after + (f"{number} ({self.place})" if self.place and self.place != number else number)

    @property
    def fill(self) -> str:
        """How full the stream is and what the process needs, e.g. `2/2 full` or `0/2 empty`."""
        if self.words > self.capacity:
            state = f", too shallow for {self.words}"
        elif self.what == "get":
            state = f", needs {self.words}" if self.filled else " empty"
        else:
            state = f", needs room for {self.words}" if self.filled < self.capacity else " full"
        return f"{self.filled}/{self.capacity}{state}" + (f"; {self.peer} has ended" if self.ended else "")


@dataclass(frozen=True)
class Deadlock:
    """A deadlock; `str` gives the report.

    waits: every blocked process, units first, in the overlay's order. cycle: the shortest wait-for cycle: each process
    waits for the next one, the last for the first. knot: a set of processes that wait only for processes of the set;
    empty unless a unit waits for a word on any of several streams, so that a cycle alone does not explain the deadlock.
    chain: only if there is no cycle: each process waits for the next one, the last for a process that has ended.
    imbalances: the streams on which sends and receives differ over the whole program, those of the cycle or chain
    first. uncounted: why some streams were not counted; "" if all were. chosen: how often, up to the deadlock, units
    that wait for any of several streams took their word from each stream, by its name.
    """

    waits: tuple[Wait, ...]
    cycle: tuple[Wait, ...]
    chain: tuple[Wait, ...]
    imbalances: tuple[Imbalance, ...]
    uncounted: str = ""
    knot: tuple[Wait, ...] = ()
    chosen: Mapping[str, int] = field(default_factory=dict)

    @property
    def imbalance(self) -> Imbalance | None:
        """The first imbalance, or None."""
        return self.imbalances[0] if self.imbalances else None

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        links = self.knot or self.cycle or self.chain
        rest = [w for w in self.waits if w not in links]
        busy, idle = [w for w in rest if not w.idle], [w for w in rest if w.idle]
        below = [*_idle(idle), *self._verdict()]
        shown = _shorten(links, MAX_LINES // 2)
        more = _shorten(busy, MAX_LINES - len(shown) - len(below) - 3, at_end=True)
        rows = _aligned([*shown, *more])
        lines = ["deadlock: no unit can move"]
        if links:
            lines += [self._heading(links), *rows[: len(shown)]]
        if busy:
            lines += ["also blocked:" if links else "blocked:", *rows[len(shown) :]]
        return "\n".join([*lines, *below])

    def _heading(self, links: Sequence[Wait]) -> str:
        if self.knot:
            return "a knot: none of them moves before another one of them does:"
        if self.chain:
            peer = links[-1].peer.replace("dispatcher", "the dispatcher")
            one = f"{links[0].unit} waits" if len(links) == 1 else "each waits for the next, and the last"
            return f"{one} for {peer}, which has ended:"
        if len(links) == 1:
            return f"{links[0].unit} waits for itself:"
        return "a cycle, in which each waits for the next and the last for the first:"

    def _verdict(self) -> Iterator[str]:
        """Lines that name the likely cause: the imbalances or, without any, order and depth."""
        first = self.imbalance
        if first is not None:
            yield f"first imbalance: {first.message(first.where)}"
            others = [i.stream for i in self.imbalances[1:]]
            if others:
                names = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
                yield f"sends and receives differ also on {names}"
        elif self.uncounted:
            yield f"not every stream was counted: {self.uncounted}"
            if self.chosen:
                yield "chosen so far: " + ", ".join(f"{name} {count} times" for name, count in self.chosen.items())
        elif self.cycle:
            yield "every stream is balanced: order or depth is at fault"
        elif self.chain:
            yield "every stream is balanced: the image ends too early, or it ends a unit too early"


def _aligned(rows: Sequence[Wait | str]) -> list[str]:
    waits = [w for w in rows if isinstance(w, Wait)]
    unit, at = (
        max((len(t) for t in texts), default=0) for texts in ([w.unit for w in waits], [w.position for w in waits])
    )
    return [
        f"  {w}"
        if isinstance(w, str)
        else f"  {w.unit:<{unit}}  {w.position:<{at}}  waits to {w.what} {'any, ' * w.any_of}{w.stream} ({w.fill})"
        for w in rows
    ]


def _shorten(waits: Sequence[Wait], limit: int, at_end: bool = False) -> list[Wait | str]:
    """Return at most `limit` rows; a line `... and N more` replaces the middle or, with `at_end`, the end."""
    if len(waits) <= limit:
        return list(waits)
    tail = 0 if at_end else limit // 2
    head = limit - 1 - tail
    return [*waits[:head], f"... and {len(waits) - head - tail} more", *waits[len(waits) - tail :]]


def _idle(waits: Sequence[Wait]) -> list[str]:
    """Return the text lines that name the processes in `waits`, which all wait for their next uOP or packet.

    A decoder is left out if its unit is named.
    """
    units = {w.unit for w in waits}
    names = [w.unit for w in waits if w.serves not in units]
    if not names:
        return []
    over = ", which has ended" if any(w.ended for w in waits) else ""
    text = f"waiting for the dispatcher{over}: {', '.join(names)}"
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", max_lines=6, placeholder=" ...")
