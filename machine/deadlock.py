"""Why a network stands still: who waits for whom, and the first stream on which sends and receives differ.

Every process that is left waits for words or for room in a stream, and so for the process at its other end. Following
that leads round a cycle, or to a process that has ended. A cycle alone does not say who is wrong; counting what every
unit sends and receives over the whole program does, or says that no unit is and the order or a depth must be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..base.deadlock_report import Deadlock, Imbalance, Wait
from ..base.errors import ProgramError
from .balance import balance
from .steps import NEVER, Channel

if TYPE_CHECKING:
    from .executor import ProcessNetwork, Task


# -- who waits for whom -----------------------------------------------------------------------------------------------


def explain(net: ProcessNetwork, alive: Collection[Task]) -> Callable[[], Deadlock]:
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


def _waits(net: ProcessNetwork, alive: Collection[Task]) -> Iterator[Wait]:
    going = {t.unit.name for t in alive}
    rank = {u.name: i for i, u in enumerate(net.machine.units)}

    def wait(task: Task, what: str, channel: Channel, words: int) -> Wait:
        at = task.unit
        origin = at.issue.origin if at.issue is not None else NEVER
        number = at.number if at.serves is None else origin
        place = net.where(at.name, origin) if origin >= 0 else ""
        peer = channel.sink if what == "put" else channel.source
        return Wait(
            unit=at.name,
            number=number,
            place=place,
            what=what,
            stream=channel.name,
            words=words,
            filled=channel.filled,
            capacity=channel.capacity,
            peer=peer,
            ended=peer not in going,
            serves=at.serves,
            idle=what == "get" and channel.control,
        )

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


def _counted(net: ProcessNetwork) -> tuple[list[Imbalance], str]:
    """The streams of a network's program that come out uneven, and why others were not counted."""
    try:
        table = net.workload.uop_table(net.machine)
        counted = balance(table)
    except ProgramError as e:
        return [], str(e)
    except Exception as e:  # uOPs and kernels are anybody's: what is wrong with them must not hide the deadlock
        return [], f"{type(e).__name__}: {e}"
    uneven = [replace(i, where=net.where(i.unit, int(table.origins[i.unit][i.uop]))) for i in counted.uneven]
    return uneven, next(iter(counted.undecided.values()), "")
