"""Why a network stands still: who waits for whom, and the first stream on which sends and receives differ.

Every process that is left waits for words or for room in a stream, and so for the process at its other end. Following
that leads round a cycle, or to a process that has ended. A cycle alone does not say who is wrong; counting what every
unit sends and receives over the whole program does, or says that no unit is and the order or a depth must be.
"""

from __future__ import annotations

import textwrap
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from .balance import Imbalance, balance
from .errors import ProgramError
from .expansion import Expansion, Run, uops_of
from .network import NEVER, Channel, Network, Task
from .program import Program

MOST_LINES = 40
"""Of a report. Half of them at most are for the cycle."""
MOST_UOPS = 1_000_000
"""uOPs of a program through which a report counts. Where few of them are distinct, so many take 0.2 s."""
WIDTH = 110


@dataclass(frozen=True)
class Wait:
    """A process that waits for words of a stream (`what` is "get") or for room in it ("put").

    unit: a unit, `decoder` of one, or `dispatcher`. number: its uOP, of a decoder or the dispatcher its packet; -1
    before the first. place: where that was written down. words: how many it waits for; filled, capacity: of the
    stream, in words. peer: the process at the other end; ended: whether that has ended.
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

    @property
    def control(self) -> bool:
        """Of the instruction path."""
        return self.unit == "dispatcher" or self.unit.startswith("decoder ")

    @property
    def idle(self) -> bool:
        """Waits to be told what to do next."""
        return self.what == "get" and self.peer in ("dispatcher", f"decoder {self.unit}")

    @property
    def at(self) -> str:
        """The uOP and its place, as in `uOP 3 (gemm.rsn:31)`."""
        if self.number < 0:
            return "start"
        number = f"{'packet' if self.control else 'uOP'} {self.number}"
        after = "after " if self.idle and not self.control else ""
        return after + (f"{number} ({self.place})" if self.place and self.place != number else number)

    @property
    def fill(self) -> str:
        """How full the stream is, and how full or empty it would have to be."""
        if self.words > self.capacity:
            state = f", too shallow for {self.words}"
        elif self.what == "get":
            state = f", needs {self.words}" if self.filled else " empty"
        else:
            state = f", needs room for {self.words}" if self.filled < self.capacity else " full"
        return f"{self.filled}/{self.capacity}{state}" + (f"; {self.peer} has ended" if self.ended else "")


@dataclass(frozen=True)
class Deadlock:
    """What is known of a deadlock; as text, the report.

    waits: every process that cannot move, units first, in the overlay's order. cycle: those of them that wait for each
    other, each for the next and the last for the first; the shortest there is. chain: where there is no cycle, each
    waits for the next and the last for a process that has ended. imbalances: the streams on which sends and receives
    differ over the whole program, those of the cycle or chain first. uncounted: why not every stream was counted.
    """

    waits: tuple[Wait, ...]
    cycle: tuple[Wait, ...]
    chain: tuple[Wait, ...]
    imbalances: tuple[Imbalance, ...]
    uncounted: str = ""

    @property
    def imbalance(self) -> Imbalance | None:
        """The first imbalance."""
        return self.imbalances[0] if self.imbalances else None

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        links = self.cycle or self.chain
        rest = [w for w in self.waits if w not in links]
        busy, idle = [w for w in rest if not w.idle], [w for w in rest if w.idle]
        below = [*_idle(idle), *self._verdict()]
        shown = _shorten(links, MOST_LINES // 2)
        more = _shorten(busy, MOST_LINES - len(shown) - len(below) - 3, at_end=True)
        rows = _aligned([*shown, *more])
        lines = ["deadlock: no unit can move"]
        if links:
            lines += [self._heading(links), *rows[: len(shown)]]
        if busy:
            lines += ["also blocked:" if links else "blocked:", *rows[len(shown) :]]
        return "\n".join([*lines, *below])

    def _heading(self, links: Sequence[Wait]) -> str:
        if self.chain:
            peer = links[-1].peer.replace("dispatcher", "the dispatcher")
            one = f"{links[0].unit} waits" if len(links) == 1 else "each waits for the next, and the last"
            return f"{one} for {peer}, which has ended:"
        if len(links) == 1:
            return f"{links[0].unit} waits for itself:"
        return "a cycle, in which each waits for the next and the last for the first:"

    def _verdict(self) -> Iterator[str]:
        """What the counts of words say."""
        first = self.imbalance
        if first is not None:
            yield f"first imbalance: {first.message(first.where)}"
            others = [i.stream for i in self.imbalances[1:]]
            if others:
                names = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
                yield f"sends and receives differ also on {names}"
        elif self.uncounted:
            yield f"not every stream was counted: {self.uncounted}"
        elif self.cycle:
            yield "every stream is balanced: order or depth is at fault"
        elif self.chain:
            yield "every stream is balanced: the image ends too early, or it ends a unit too early"


def _aligned(rows: Sequence[Wait | str]) -> list[str]:
    waits = [w for w in rows if isinstance(w, Wait)]
    unit, at = (max((len(t) for t in texts), default=0) for texts in ([w.unit for w in waits], [w.at for w in waits]))
    return [
        f"  {w}" if isinstance(w, str) else f"  {w.unit:<{unit}}  {w.at:<{at}}  waits to {w.what} {w.stream} ({w.fill})"
        for w in rows
    ]


def _shorten(waits: Sequence[Wait], most: int, at_end: bool = False) -> list[Wait | str]:
    """At most `most` rows, the middle left out, or the end."""
    if len(waits) <= most:
        return list(waits)
    tail = 0 if at_end else most // 2
    head = most - 1 - tail
    return [*waits[:head], f"... and {len(waits) - head - tail} more", *waits[len(waits) - tail :]]


def _idle(waits: Sequence[Wait]) -> list[str]:
    """Those that wait for a uOP or a packet: a unit stands for its decoder too."""
    units = {w.unit for w in waits}
    names = [w.unit for w in waits if w.unit.removeprefix("decoder ") not in units - {w.unit}]
    if not names:
        return []
    over = ", which has ended" if any(w.ended for w in waits) else ""
    text = f"waiting for the dispatcher{over}: {', '.join(names)}"
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", max_lines=6, placeholder=" ...")


# -- who waits for whom -----------------------------------------------------------------------------------------------


def explain(net: Network, alive: Collection[Task]) -> Callable[[], Deadlock]:
    """What is wrong with `net`, of which the processes `alive` can move no more. The network may be used again once
    this has returned. Counting streams takes time, and who only asks whether there is a deadlock does without: that is
    left to the call."""
    waits = tuple(_waits(net, alive))

    def facts() -> Deadlock:
        cycle = _cycle(waits)
        chain = () if cycle else _chain(waits)
        imbalances, uncounted = _counted(net)
        streams = [w.stream for w in (*reversed(cycle or chain), *waits)]
        imbalances.sort(key=lambda i: streams.index(i.stream) if i.stream in streams else len(streams))
        return Deadlock(waits, cycle, chain, tuple(imbalances), uncounted)

    return facts


def _waits(net: Network, alive: Collection[Task]) -> Iterator[Wait]:
    going = {t.unit.name for t in alive}
    ends = {s.name: (s.src, s.dst) for s in net.overlay.streams}
    for u in net.overlay.units:
        decoder = f"decoder {u.name}"
        if decoder in net.progress:
            ends[net.fifo("mops", u.name).name] = "dispatcher", decoder
            ends[net.fifo("uops", u.name).name] = decoder, u.name
    rank = {u.name: i for i, u in enumerate(net.overlay.units)}

    def wait(task: Task, what: str, channel: Channel, words: int) -> Wait:
        at = task.unit
        origin = at.issue.origin if at.issue is not None else NEVER
        number = at.number if at.name in rank else origin
        place = net.where(at.name, origin) if origin >= 0 else ""
        peer = ends[channel.name][what == "put"]
        fill = channel.filled, channel.capacity
        return Wait(at.name, number, place, what, channel.name, words, *fill, peer, peer not in going)

    for task in sorted(alive, key=lambda t: (rank.get(t.unit.name, len(rank)), t.unit.index, t.lane)):
        fire = task.pending
        if fire is None:  # waits for its own lanes, which are listed
            continue
        for channel in fire.gets:
            if channel.filled < fire.words:
                yield wait(task, "get", channel, fire.words)
        for channel in fire.puts:
            if channel.space < fire.words:
                yield wait(task, "put", channel, fire.words)


def _by_unit(waits: Sequence[Wait]) -> Mapping[str, list[Wait]]:
    """A unit waits for whatever one of its lanes waits for."""
    out: dict[str, list[Wait]] = {}
    for w in waits:
        out.setdefault(w.unit, []).append(w)
    return out


def _cycle(waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """The shortest cycle, from its first process on; of several, the one that the first process belongs to."""
    by_unit = _by_unit(waits)
    best: list[Wait] = []
    for start in by_unit:
        came: dict[str, Wait] = {}
        ahead = deque([start])
        while ahead and start not in came:
            for w in by_unit.get(ahead.popleft(), ()):
                if w.peer not in came:
                    came[w.peer] = w
                    ahead.append(w.peer)
        if start in came:
            links = [came[start]]
            while links[-1].unit != start:
                links.append(came[links[-1].unit])
            if not best or len(links) < len(best):
                best = links
    return tuple(reversed(best))


def _chain(waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """From the unit that is farthest from a process that has ended, the shortest way there. A unit that waits for its
    next uOP says less than one that is at work, and an instruction path that is held up less still."""
    way: dict[str, tuple[int, Wait]] = {}
    for w in waits:
        if w.ended:
            way.setdefault(w.unit, (1, w))
    before = 0
    while len(way) > before:
        before, known = len(way), dict(way)
        for w in waits:
            if w.peer in known:
                way.setdefault(w.unit, (known[w.peer][0] + 1, w))
    if not way:
        return ()
    # of equal ones, the first in the order of `waits`
    _, first = max((way[w.unit] for w in waits if w.unit in way), key=lambda x: (not x[1].control, not x[1].idle, x[0]))
    links = [first]
    while not links[-1].ended:
        links.append(way[links[-1].peer][1])
    return tuple(links)


# -- what is sent and received ----------------------------------------------------------------------------------------


def _counted(net: Network) -> tuple[list[Imbalance], str]:
    """The streams of a network's program that come out uneven, and why others were not counted."""
    try:
        expansion = _expanded(net)
        counted = balance(expansion)
    except ProgramError as e:
        return [], str(e)
    except Exception as e:  # uOPs and kernels are anybody's: what is wrong with them must not hide the deadlock
        return [], f"{type(e).__name__}: {e}"
    uneven = [replace(i, where=net.where(i.unit, int(expansion.runs[i.unit].origins[i.uop]))) for i in counted.uneven]
    return uneven, next(iter(counted.undecided.values()), "")


def _expanded(net: Network) -> Expansion:
    """What a network was given, as a program."""
    overlay, packets = net.overlay, net.packets or ()
    issues = {unit: uops for unit, uops in net.issues.items() if isinstance(uops, Sequence)}
    if len(issues) < len(net.issues):
        raise ProgramError("the uOPs were made up on the way")
    if sum(uops_of(p, overlay) for p in packets) + sum(map(len, issues.values())) > MOST_UOPS:
        raise ProgramError(f"more than {MOST_UOPS} uOPs")
    preloaded = {unit: tuple(ops) for unit, ops in net.preloaded.items()}
    expansion = Expansion(Program(overlay, tuple(packets), preloaded))
    if net.packets is None:
        for spec in overlay.units:
            uops = issues.get(spec.name, ())
            if spec.kind not in overlay.preloaded and uops:
                # Not by their values: they need not be hashable where no format describes them.
                kinds = len(expansion.uops) + np.arange(len(uops))
                expansion.uops += uops
                expansion.runs[spec.name] = Run(spec, kinds, np.arange(len(uops)), np.zeros(len(uops), np.int64))
    return expansion
