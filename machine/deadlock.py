"""Explains a deadlock: which process waits for which, and the first stream on which sends and receives differ.

Each blocked process waits for words or for room in a stream, and so for the process at the other end. The chain of
waits ends in a cycle or at a process that has ended. A process that waits for any of several streams is blocked only if
the processes at the other ends of all of them are; then a cycle may not be enough, and the report shows a knot. A cycle
does not show which unit is at fault. The words sent and received over the whole program do: if they differ on a stream,
one of its units is wrong; if they are equal everywhere, the order of work or the depth of a stream is.
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
    from .executor import ProcessNetwork, RunningProcess


# -- who waits for whom -----------------------------------------------------------------------------------------------


def explain(net: ProcessNetwork, alive: Collection[RunningProcess]) -> Callable[[], Deadlock]:
    """Record why the processes `alive` of `net` are blocked; return a function that makes the report. net: stopped.

    The waits are recorded now, so the network may be used again. Words are counted only when the returned function is
    called: it is slow, and a search for the smallest FIFO depth does not need it.
    """
    waits, chosen = tuple(_waits(net, alive)), dict(net.chosen)

    def facts() -> Deadlock:
        cycle = _cycle(waits)
        knot = _knot(waits, cycle)
        chain = () if cycle else _chain(waits)
        imbalances, uncounted = _imbalances(net)
        streams = [w.stream for w in (*reversed(knot or cycle or chain), *waits)]
        imbalances.sort(key=lambda i: streams.index(i.stream) if i.stream in streams else len(streams))
        return Deadlock(waits, cycle, chain, tuple(imbalances), uncounted, knot, chosen)

    return facts


def _waits(net: ProcessNetwork, alive: Collection[RunningProcess]) -> Iterator[Wait]:
    going = {t.unit.owner for t in alive}
    inner = {c for handover in net.apart.values() for c in handover}  # the other half of the unit is listed itself
    rank = {u.name: i for i, u in enumerate(net.machine.units)}

    def wait(task: RunningProcess, what: str, channel: Channel, words: int, any_of: bool = False) -> Wait:
        at = task.unit
        origin = at.issue.origin if at.issue is not None else NEVER
        number = at.number if at.serves is None else origin
        place = net.where(at.owner, origin) if origin >= 0 else ""
        peer = channel.sink if what == "put" else channel.source
        return Wait(
            unit=at.owner,
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
            any_of=any_of,
        )

    for task in sorted(alive, key=lambda t: (rank.get(t.unit.owner, len(rank)), t.unit.index, t.lane)):
        fire = task.pending
        if task.choice is not None:
            yield from (wait(task, "get", c, 1, len(task.choice.channels) > 1) for c in task.choice.channels)
            continue
        if fire is None:  # it waits for its own lanes, which are listed themselves
            continue
        words = fire.words // fire.parts
        for channel in fire.gets:
            if channel.filled < words and channel not in inner:
                yield wait(task, "get", channel, words)
        for channel in fire.puts:
            if channel.space < words and channel not in inner:
                yield wait(task, "put", channel, words)


def _by_unit(waits: Sequence[Wait]) -> Mapping[str, list[Wait]]:
    """The waits by unit, those of all its lanes together."""
    out: dict[str, list[Wait]] = {}
    for w in waits:
        out.setdefault(w.unit, []).append(w)
    return out


def _cycle(waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """Return the shortest wait-for cycle; of several, the one with the first process in the order of `waits`."""
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


def _knot(waits: Sequence[Wait], cycle: Sequence[Wait]) -> tuple[Wait, ...]:
    """Return the waits of processes that wait for one another only: those of the cycle, those that a process of them
    could get a word from instead, and so on. Nothing if the cycle is all of that."""
    by_unit = _by_unit(waits)
    picked = {w.unit: [w] for w in cycle}
    ahead = deque(w.unit for w in cycle)
    while ahead:
        unit = ahead.popleft()
        for w in by_unit.get(unit, ()):
            if w.any_of and w not in picked[unit]:
                picked[unit].append(w)
        for w in picked[unit]:
            if w.peer not in picked and not w.ended and w.peer in by_unit:
                inward = [x for x in by_unit[w.peer] if x.peer in picked]
                picked[w.peer] = (inward or by_unit[w.peer])[:1]
                ahead.append(w.peer)
    knot = tuple(w for waits_of in picked.values() for w in waits_of)
    return knot if len(knot) > len(cycle) else ()


def _chain(waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """Return a shortest path of waits to a process that has ended, from the process that is farthest from one.

    As the start, a unit in the middle of a uOP is preferred to a unit that waits for its next uOP, and both to a
    process of the instruction path: it tells the reader more.
    """
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
    # `max` takes the first of equal ones, in the order of `waits`
    _, first = max((way[w.unit] for w in waits if w.unit in way), key=lambda x: (not x[1].control, not x[1].idle, x[0]))
    links = [first]
    while not links[-1].ended:
        links.append(way[links[-1].peer][1])
    return tuple(links)


# -- words sent and received ------------------------------------------------------------------------------------------


def _imbalances(net: ProcessNetwork) -> tuple[list[Imbalance], str]:
    """Return the streams on which sends and receives differ, and why some streams were not counted ("" if all were)."""
    try:
        table = net.workload.uop_table(net.machine)
        counted = balance(table)
    except ProgramError as e:
        return [], str(e)
    except Exception as e:  # uOPs and kernels may be user code: an error in them must not hide the deadlock
        return [], f"{type(e).__name__}: {e}"
    uneven = [replace(i, where=net.where(i.unit, int(table.origins[i.unit][i.uop]))) for i in counted.uneven]
    return uneven, next(iter(counted.undecided.values()), "")
