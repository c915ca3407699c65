"""Small stream programs with shared tensors, drawn at random, and all of their interleavings.

A run is a sequence of accesses, puts and gets of all instances in which each get comes behind its put; streams are
endless. Two runs differ if a read sees another store, or a store overwrites another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from random import Random

SIZE = 6
"""Elements of each tensor."""

Index = tuple[int, tuple[tuple[str, int], ...]]
"""A constant, and the factors of variables of loops."""


@dataclass(frozen=True)
class Touch:
    """A read or a store of `width` elements from an index on, every `step`-th of them; by data: of any of them.
    value: what is stored."""

    tensor: str
    write: bool
    index: Index
    width: int
    step: int = 1
    by_data: bool = False
    value: int = 0


@dataclass(frozen=True)
class Token:
    """A put or a get."""

    stream: str
    put: bool


@dataclass(frozen=True)
class Repeat:
    """A loop."""

    variable: str
    times: int
    body: tuple[Item, ...]


@dataclass(frozen=True)
class Either:
    """A branch. test: on the variable of a loop: its value modulo a number; None if data decide."""

    test: tuple[str, int, int] | None
    body: tuple[Item, ...]
    other: tuple[Item, ...]


Item = Touch | Token | Repeat | Either


@dataclass(frozen=True)
class SharedProgram:
    """Bodies of instances. packing: of each stream."""

    bodies: tuple[tuple[Item, ...], ...]
    packing: dict[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The program."""
        lines = ["from rsn.streams import *", *(f"{name}: f32[{SIZE}]" for name in "xy")]
        lines += [f"{name}: Stream[f32, 64, {p}]" for name, p in self.packing.items()]
        for k, body in enumerate(self.bodies):
            lines += [f"out_{k}: f32[1]", f"@task(mapping=[1], args=[x, y, out_{k}])"]
            lines += [f"def task_{k}(x: f32[{SIZE}], y: f32[{SIZE}], out: f32[1]) -> None:", "    v: f32 = 0.0"]
            lines += ["    " + line for line in _lines(body)]
            lines += ["    out[0] = v"]
        return "\n".join(lines) + "\n"

    @property
    def by_data(self) -> bool:
        """Whether data decide anything."""
        todo: list[Item] = [item for body in self.bodies for item in body]
        while todo:
            match todo.pop():
                case Touch(by_data=True) | Either(test=None):
                    return True
                case Repeat(body=inner):
                    todo += inner
                case Either(body=one, other=two):
                    todo += (*one, *two)
        return False

    @property
    def small(self) -> bool:
        """Whether all interleavings can be visited."""
        sizes = [_size(body) for body in self.bodies]
        return prod(outcomes for outcomes, _ in sizes) * prod(events + 1 for _, events in sizes) < 30_000

    def races(self) -> bool:
        """Whether two interleavings differ, for any outcome of the data."""
        every = [list(_events(body, {})) for body in self.bodies]
        return any(_differs(events, self.packing) for events in product(*every))

    def results(self, tensors: dict[str, list[float]]) -> dict[str, list[float]]:
        """What a run makes of tensors, where data decide nothing: instances take turns, each until it waits."""
        events = [next(_events(body, {})) for body in self.bodies]
        at, seen = [0] * len(events), [0.0] * len(events)
        held = {name: list(values) for name, values in tensors.items()}
        moved = dict.fromkeys(product(("put", "get"), self.packing), 0)
        while any(n < len(of) for n, of in zip(at, events, strict=True)):
            for k, of in enumerate(events):
                while at[k] < len(of):
                    kind, name, elements, value = of[at[k]]
                    if (
                        kind == "get"
                        and moved["get", name] >= moved["put", name] // self.packing[name] * self.packing[name]
                    ):
                        break
                    if kind in ("put", "get"):
                        moved[kind, name] += 1
                    elif kind == "read":
                        seen[k] = seen[k] / 2 + sum(held[name][e] for e in elements)
                    else:
                        for e in elements:
                            held[name][e] = value
                    at[k] += 1
        return held | {f"out_{k}": [value] for k, value in enumerate(seen)}


def _lines(body: Sequence[Item]) -> Iterator[str]:
    for item in body:
        match item:
            case Touch():
                at = " + ".join([str(item.index[0]), *(f"{c} * {name}" for name, c in item.index[1])])
                if item.by_data:
                    at = f"int(use({at}))"
                if item.width > 1:
                    at = f"{at}:{at} + {item.width}" + f":{item.step}" * (item.step > 1)
                part = f"{item.tensor}[{at}]"
                read = f"reduce_sum({part}, 0)" if item.width > 1 else part
                yield f"{part} = {item.value}.0" if item.write else f"v = 0.5 * v + {read}"
            case Token(stream, put):
                yield f"{stream}.put(1.0)" if put else f"drop({stream}.get())"
            case Repeat(variable, times, inner):
                yield f"for {variable} in range({times}):"
                yield from ("    " + line for line in _lines(inner))
            case Either(test, one, two):
                yield "if data():" if test is None else f"if {test[0]} % {test[1]} == {test[2]}:"
                yield from ("    " + line for line in _lines(one) or ("pass",))
                yield "else:"
                yield from ("    " + line for line in [*_lines(two)] or ["pass"])


def _size(body: Sequence[Item]) -> tuple[int, int]:
    """At most how many outcomes data have, and how many events there are."""
    outcomes, events = 1, 0
    for item in body:
        match item:
            case Repeat(times=times, body=inner):
                few, many = _size(inner)
                few, many = few**times, many * times
            case Either(test=test, body=one, other=two):
                (a, x), (b, y) = _size(one), _size(two)
                few, many = a + b if test is None else a * b, max(x, y)
            case _:
                few, many = SIZE if isinstance(item, Touch) and item.by_data else 1, 1
        outcomes, events = outcomes * few, events + many
    return outcomes, events


Event = tuple[str, str, tuple[int, ...], int]
"""read, store, put or get; of a tensor or a stream; elements; what is stored."""


def _events(body: Sequence[Item], env: dict[str, int]) -> Iterator[tuple[Event, ...]]:
    """The sequences that an instance may do."""
    if not body:
        yield ()
        return
    item, rest = body[0], body[1:]
    match item:
        case Touch():
            at = item.index[0] + sum(c * env[name] for name, c in item.index[1])
            elements = tuple(range(at, at + item.width, item.step))
            choices = [elements] if not item.by_data else [(e,) for e in range(SIZE)]
            kind = "store" if item.write else "read"
            firsts: list[tuple[Event, ...]] = [((kind, item.tensor, choice, item.value),) for choice in choices]
        case Token(stream, put):
            firsts = [(("put" if put else "get", stream, (), 0),)]
        case Repeat(variable, times, inner):
            firsts = [()]
            for k in range(times):
                firsts = [(*a, *b) for a in firsts for b in _events(inner, {**env, variable: k})]
        case Either(test, one, two):
            if test is None:
                firsts = [*_events(one, env), *_events(two, env)]
            else:
                firsts = [*_events(one if env[test[0]] % test[1] == test[2] else two, env)]
    for first in firsts:
        for more in _events(rest, env):
            yield (*first, *more)


def _differs(events: Sequence[Sequence[Event]], packing: dict[str, int]) -> bool:
    """Whether an event meets two different stores in two interleavings: all states are visited."""
    start = (0,) * len(events), ()
    seen, todo = {start}, [start]
    met: dict[tuple[int, int, int], object] = {}
    ends = {(kind, name): k for k, of in enumerate(events) for kind, name, *_ in of}
    counts = {end: [0] for end in ends}
    for end, k in ends.items():
        for event in events[k]:
            counts[end].append(counts[end][-1] + (event[:2] == end))
    while todo:
        at, stored = todo.pop()
        for k, n in enumerate(at):
            if n == len(events[k]):
                continue
            kind, name, elements, _ = events[k][n]
            last = dict(stored)
            if kind == "get":
                p = packing.get(name, 1)
                if counts["get", name][n] >= counts["put", name][at[ends["put", name]]] // p * p:
                    continue
            for e in elements if kind in ("read", "store") else ():
                if met.setdefault((k, n, e), last.get((name, e))) != last.get((name, e)):
                    return True
                if kind == "store":
                    last[name, e] = k, n
            new = (*at[:k], n + 1, *at[k + 1 :]), tuple(sorted(last.items()))
            if new not in seen:
                seen.add(new)
                todo.append(new)
    return False


# -- drawn ------------------------------------------------------------------------------------------------------------


def drawn(seed: int) -> SharedProgram:
    """Draw a program of 2 to 4 instances. Whether it is well-typed is left open, but it often is."""
    random = Random(seed)
    count = random.choice((2, 2, 3, 3, 4))
    by_data = random.random() < 0.3
    bodies: list[list[Item]] = [[] for _ in range(count)]
    packing = {}
    # A token chain in time order, so that most programs run to their end.
    for name in "stu"[: random.randint(1, 3)]:
        writer, reader = random.sample(range(count), 2)
        packing[name] = 2 if random.random() < 0.15 else 1
        times = random.randint(1, 3) * packing[name]
        for k, put in ((writer, True), (reader, False)):
            left = times
            while left:
                n = random.randint(1, left)
                left -= n
                inner: list[Item] = [Token(name, put)]
                if random.random() < 0.6:
                    inner.insert(random.randint(0, 1), _touch(random, by_data, "i", n))
                if by_data and random.random() < 0.3:
                    one, two = list(inner), [Token(name, put)]
                    if random.random() < 0.5:
                        two.insert(random.randint(0, 1), _touch(random, by_data, "i", n))
                    inner = [Either(None, tuple(one), tuple(two))]
                elif random.random() < 0.2:
                    rest = random.randint(0, 1)
                    inner.append(Either(("i", 2, rest), (_touch(random, by_data, "i", n),), ()))
                loop = Repeat("i", n, tuple(inner))
                at = random.randint(0, len(bodies[k])) if random.random() < 0.4 else len(bodies[k])
                bodies[k].insert(at, loop)
    for body in bodies:
        for _ in range(random.randint(0, 2)):
            body.insert(random.randint(0, len(body)), _touch(random, by_data, "", 1))
    return SharedProgram(tuple(map(tuple, bodies)), packing)


def _touch(random: Random, by_data: bool, variable: str, times: int) -> Touch:
    width = random.choice((1, 1, 1, 2, 3))
    step = 2 if width == 3 and random.random() < 0.5 else 1
    factor = random.choice((0, 1, 1, -1, 2)) if variable else 0
    low = min(0, factor * (times - 1))
    high = max(0, factor * (times - 1)) + width - 1
    if high - low >= SIZE:
        factor, low, high = 0, 0, width - 1
    constant = random.randint(-low, SIZE - 1 - high)
    of_data = by_data and random.random() < 0.2
    index = (constant, ((variable, factor),) if factor else ())
    tensor, write, value = random.choice("xxy"), random.random() < 0.5, random.randint(1, 60)
    return Touch(tensor, write, index, 1 if of_data else width, step, of_data, value)
