"""Random networks of units that choose by arrival, and a plain event simulation of them.

A unit is a generator over what it does next. `on_engine` turns it into steps of the engine; `Events` runs it with a
clock that goes from event to event, as one would write a simulator without any theory of process networks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from rsn.machine.description import Rate, Stream, UnitSpec
from rsn.machine.executor import ProcessNetwork
from rsn.machine.steps import AnyOf, Step, Steps
from rsn.machine.unit import Unit, Wiring
from rsn.tests.machine.toys import toy_overlay

Act = tuple[Any, ...]
"""("get", unit), ("put", unit, payload), ("any", units), answered with the index of the one whose token came first, and
("work", cycles). ("any", units, cycles) waits no longer than that; the answer is then None."""
Acts = Generator[Act, Any, None]
Behaviour = Callable[[list[Any]], Acts]
"""Makes the acts of a unit. It may note what it sees in the list."""

CLOCK_HZ = 2.0**20
"""A power of 2: sums of cycles are exact, so that equal times are equal."""

END = None
"""The last token of a stream."""


@dataclass(frozen=True)
class Drawn:
    """A network: what each unit does, by name, and the streams between them with their depths."""

    units: Mapping[str, Behaviour]
    streams: Mapping[tuple[str, str], int]


# -- units ------------------------------------------------------------------------------------------------------------


def source(payloads: Sequence[int], target: str, times: Sequence[int]) -> Behaviour:
    def acts(seen: list[Any]) -> Acts:
        for payload, time in zip(payloads, times, strict=True):
            yield "work", time
            yield "put", target, payload
        yield "put", target, END

    return acts


def relay(origin: str, target: str, times: Sequence[int]) -> Behaviour:
    """Takes a time that depends on the token."""

    def acts(seen: list[Any]) -> Acts:
        while (token := (yield "get", origin)) is not END:
            yield "work", times[token % len(times)]
            yield "put", target, token
        yield "put", target, END

    return acts


def merge(origins: Sequence[str], target: str, times: Sequence[int], announces: bool = False) -> Behaviour:
    def acts(seen: list[Any]) -> Acts:
        left = list(origins)
        while left:
            origin = left[(yield "any", tuple(left))]
            if announces:
                yield "put", target, origins.index(origin)
            token = yield "get", origin
            if token is END:
                left.remove(origin)
                continue
            seen.append((origin, token))
            yield "work", times[token % len(times)]
            yield "put", target, token
        yield "put", target, END

    return acts


def impatient(origins: Sequence[str], target: str, times: Sequence[int]) -> Behaviour:
    """A merge that does something else when nothing comes for a while, some times."""

    def acts(seen: list[Any]) -> Acts:
        left, patience = list(origins), 6
        while left:
            act: Act = ("any", tuple(left), times[patience % len(times)]) if patience else ("any", tuple(left))
            place = yield act
            if place is None:
                patience -= 1
                seen.append("late")
                yield "work", times[0]
                yield "put", target, patience
                continue
            token = yield "get", left[place]
            if token is END:
                del left[place]
                continue
            seen.append((left[place], token))
            yield "put", target, token
        yield "put", target, END

    return acts


def announcing(origins: Sequence[str], target: str, times: Sequence[int]) -> Behaviour:
    """A merge that says which stream it has chosen before it takes the token."""
    return merge(origins, target, times, announces=True)


def deal(origin: str, targets: Sequence[str]) -> Behaviour:
    """Data decide the way."""

    def acts(seen: list[Any]) -> Acts:
        while (token := (yield "get", origin)) is not END:
            yield "put", targets[token % len(targets)], token
        for target in targets:
            yield "put", target, END

    return acts


def dispatch(origin: str, workers: Sequence[str]) -> Behaviour:
    """Gives each job to the worker that was free first."""

    def acts(seen: list[Any]) -> Acts:
        free = list(workers)
        out = 0
        while (token := (yield "get", origin)) is not END:
            if free:
                worker = free.pop(0)
            else:
                worker = workers[(yield "any", tuple(workers))]
                yield "get", worker
                out -= 1
            seen.append((worker, token))
            yield "put", worker, token
            out += 1
        for _ in range(out):
            yield "get", workers[(yield "any", tuple(workers))]
        for worker in workers:
            yield "put", worker, END

    return acts


def worker(dispatcher: str, target: str, times: Sequence[int]) -> Behaviour:
    def acts(seen: list[Any]) -> Acts:
        while (token := (yield "get", dispatcher)) is not END:
            yield "work", times[token % len(times)]
            yield "put", target, token
            yield "put", dispatcher, token
        yield "put", target, END

    return acts


def sink(origin: str) -> Behaviour:
    def acts(seen: list[Any]) -> Acts:
        while (token := (yield "get", origin)) is not END:
            seen.append(token)

    return acts


def draw(random: Random) -> Drawn:
    """A network: sources, then layers of merges, relays, deals and dispatchers, then sinks."""
    units: dict[str, Behaviour] = {}
    streams: dict[tuple[str, str], int] = {}
    waiting: list[str] = []  # units whose target is not drawn yet
    making: dict[str, Callable[[str], Behaviour]] = {}
    numbers = iter(range(1000))

    def name(kind: str) -> str:
        return f"{kind}{next(numbers)}"

    def times(count: int = 3) -> list[int]:
        return [random.randrange(6) for _ in range(count)]

    def connect(origin: str, target: str) -> None:
        streams[origin, target] = random.randint(1, 3)
        if origin in making:
            units[origin] = making.pop(origin)(target)

    def later(unit: str, make: Callable[..., Behaviour], first: Any, spread: Sequence[int]) -> None:
        making[unit] = lambda target: make(first, target, spread)
        waiting.append(unit)

    for _ in range(random.randint(2, 4)):
        payloads = [random.randrange(100) for _ in range(random.randint(0, 8))]
        spread = [random.randrange(8) for _ in payloads]
        later(name("source"), source, payloads, spread)
    for _ in range(random.randint(1, 5)):
        kind = random.choice(("merge", "merge", "relay", "deal", "dispatch"))
        if kind == "merge" and len(waiting) > 1:
            origins = random.sample(waiting, random.randint(2, min(3, len(waiting))))
            unit = name("merge")
            for origin in origins:
                waiting.remove(origin)
                connect(origin, unit)
            later(unit, random.choice((merge, merge, announcing, impatient)), tuple(origins), times())
            continue
        origin = waiting.pop(random.randrange(len(waiting)))
        unit = name(kind)
        connect(origin, unit)
        if kind == "deal":
            targets = [name("relay") for _ in range(random.randint(2, 3))]
            units[unit] = deal(origin, targets)
            for target in targets:
                connect(unit, target)
                later(target, relay, unit, times())
        elif kind == "dispatch":
            workers = [name("worker") for _ in range(random.randint(2, 3))]
            units[unit] = dispatch(origin, workers)
            for one in workers:
                connect(unit, one)
                connect(one, unit)
                later(one, worker, unit, times())
        else:
            later(unit, relay, origin, times())
    for origin in list(waiting):
        unit = name("sink")
        connect(origin, unit)
        units[unit] = sink(origin)
    return Drawn(units, streams)


@dataclass(frozen=True)
class Outcome:
    """ends: of each unit that ended, in cycles. seen: what units noted, by name."""

    ends: Mapping[str, int]
    seen: Mapping[str, Sequence[Any]]


# -- on the engine ----------------------------------------------------------------------------------------------------


class Acting(Unit):
    """A unit whose only uOP is what it does."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.net = net

    def kernel(self, uop: Acts) -> Steps:
        answer: Any = None
        while True:
            try:
                act, *of = uop.send(answer)
            except StopIteration:
                return
            answer = None
            if act == "get":
                (answer,) = yield Step(gets=(self.source(of[0]),))
            elif act == "put":
                yield Step(puts=(self.sink(of[0]),), send=(of[1],))
            elif act == "any":
                until = None
                if len(of) > 1:
                    assert isinstance(self.net, ProcessNetwork)
                    until = self.net.progress[self.name].task.clock + of[1] / CLOCK_HZ
                answer = yield AnyOf(*(self.source(peer) for peer in of[0]), until=until)
            else:
                yield Step("cycle", of[0])


def on_engine(net: Drawn, order: Callable[[list[Any]], list[Any]] | None = None) -> tuple[ProcessNetwork, Outcome]:
    """Run a network on the engine. Raises as `ProcessNetwork.run` does; the network is returned for its counts."""
    overlay = toy_overlay(
        [UnitSpec(name, name, 0, Acting) for name in net.units],
        [Stream(origin, target, depth) for (origin, target), depth in net.streams.items()],
        rates={"cycle": Rate(1, "PL cycles", "a test", "work")},
    )
    overlay = replace(overlay, clock_hz=CLOCK_HZ)
    seen: dict[str, list[Any]] = {name: [] for name in net.units}
    programs = {name: [behaviour(seen[name])] for name, behaviour in net.units.items()}
    made = ProcessNetwork(overlay, programs, order=order)
    made.run()
    ends = {name: round(at.task.clock * CLOCK_HZ) for name, at in made.progress.items()}
    return made, Outcome(ends, seen)


# -- plain events -----------------------------------------------------------------------------------------------------


class Events:
    """An event simulation. Streams hold tokens with the time at which they came, and free slots with that at which they
    became free. At each time all units go on as far as they can; then, one at a time, those that choose, in the order
    of the units; then the clock goes to the next event."""

    def __init__(self, net: Drawn) -> None:
        self.seen: dict[str, list[Any]] = {name: [] for name in net.units}
        self.acts = {name: behaviour(self.seen[name]) for name, behaviour in net.units.items()}
        self.tokens: dict[tuple[str, str], deque[Any]] = {key: deque() for key in net.streams}
        self.came: dict[tuple[str, str], deque[int]] = {key: deque() for key in net.streams}
        self.room = dict(net.streams)
        self.now = 0
        self.until = dict.fromkeys(net.units, 0)  # when a unit that works is free again
        self.ends: dict[str, int] = {}
        self.patience: dict[str, int] = {}  # when a unit that waits for any stops to
        self.next: dict[str, Act | None] = {}
        for name in net.units:
            self._go(name, None)

    def _go(self, name: str, answer: Any) -> None:
        try:
            act = self.next[name] = self.acts[name].send(answer)
            if act[0] == "any" and len(act) > 2:
                self.patience[name] = self.now + act[2]
        except StopIteration:
            self.next[name] = None
            self.ends[name] = self.now

    def _moves(self, name: str) -> bool:
        """Do what a unit does next, unless it has to wait, or chooses."""
        act = self.next[name]
        if act is None or self.until[name] > self.now or act[0] == "any":
            return False
        if act[0] == "work":
            self.until[name] = self.now + act[1]
            if act[1]:
                self.next[name] = ("free",)
                return True
            self._go(name, None)
            return True
        if act[0] == "free":
            self._go(name, None)
            return True
        if act[0] == "get":
            key = act[1], name
            if not self.tokens[key]:
                return False
            self.came[key].popleft()
            self.room[key] += 1
            self._go(name, self.tokens[key].popleft())
            return True
        key = name, act[1]
        if not self.room[key]:
            return False
        self.room[key] -= 1
        self.tokens[key].append(act[2])
        self.came[key].append(self.now)
        self._go(name, None)
        return True

    def _chooses(self) -> bool:
        for name, act in self.next.items():
            if act is not None and act[0] == "any" and self.until[name] <= self.now:
                there = [(self.came[peer, name][0], k) for k, peer in enumerate(act[1]) if self.tokens[peer, name]]
                if there:
                    self.patience.pop(name, None)
                    self._go(name, min(there)[1])
                    return True
                if self.patience.get(name) == self.now:
                    del self.patience[name]
                    self._go(name, None)
                    return True
        return False

    def run(self) -> Outcome | None:
        """Run to the end. None if units wait for ever."""
        while True:
            while sum(map(self._moves, self.next)) or self._chooses():
                pass
            later = [time for name, time in self.until.items() if time > self.now and self.next[name] is not None]
            later += [time for time in self.patience.values() if time > self.now]
            if not later:
                break
            self.now = min(later)
        if any(act is not None for act in self.next.values()):
            return None
        return Outcome(self.ends, self.seen)
