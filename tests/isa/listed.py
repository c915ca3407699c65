"""The overlay of Fig. 6 with an FU2 that packets do not drive: its op list has repeats."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rsn.isa.fields import Record, bits
from rsn.isa.overlay import OpList, Overlay
from rsn.isa.overlays import FIG6
from rsn.isa.overlays.fig6 import Add, Read, Write, legal
from rsn.isa.packet import Packet
from rsn.isa.program import Buffer, Layout, Program, Role, SourceLine
from rsn.machine.description import UnitSpec
from rsn.machine.steps import Step, Steps
from rsn.machine.unit import Halves, Unit, Wiring

MOST = 20_000
"""Elements of a packet's operation."""


class Listed(Record, words=2):
    """FU2: add `value` to `size` elements; with `times` a repeat of the `length` entries before it."""

    size: int = bits(0, 0, 16, "elements")
    value: int = bits(0, 16, 8, "what to add")
    length: int = bits(1, 0, 8, "entries to repeat")
    times: int = bits(1, 8, 12, "how many more times they run")


class Adder(Unit):
    """Adds a number to what passes through."""

    def kernel(self, uop: Listed) -> Steps:
        source, sink = self.source("FU1"), self.sink("FU3")
        for _ in range(uop.size):
            yield Step("add", gets=(source,), puts=(sink,), do=lambda x: (x + np.float32(uop.value),))

    def effect_key(self, uop: Listed) -> Hashable:
        return uop.size


class Counter(Unit):
    """An adder of which every second op takes twice the time: its steps depend on earlier ops."""

    turn = 0

    def kernel(self, uop: Listed) -> Steps:
        source, sink = self.source("FU1"), self.sink("FU3")
        self.turn += 1
        for _ in range(uop.size):
            amount = 1 + self.turn % 2
            yield Step("add", amount, gets=(source,), puts=(sink,), do=lambda x: (x + np.float32(uop.value),))


class Apart(Unit):
    """An adder that takes the elements of an op while it passes on those of the op before."""

    ahead = 1

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.taken: deque[Any] = deque()

    def halves(self, uop: Listed) -> Halves:
        return self.fill(uop), self.drain(uop)

    def fill(self, uop: Listed) -> Steps:
        for _ in range(uop.size):
            yield Step("add", gets=(self.source("FU1"),), do=lambda x: self.taken.append(x + np.float32(uop.value)))

    def drain(self, uop: Listed) -> Steps:
        for _ in range(uop.size):
            yield Step("add", puts=(self.sink("FU3"),), do=lambda: (self.taken.popleft(),))

    def effect_key(self, uop: Listed) -> Hashable:
        return uop.size


def repeat(entry: Listed) -> tuple[int, int] | None:
    return (entry.length, entry.times) if entry.length or entry.times else None


def make_repeat(length: int, times: int) -> Listed:
    return Listed(length=length, times=times)


def checked(unit: UnitSpec, uop: Any) -> Iterator[str]:
    if isinstance(uop, Listed) and not uop.size:
        yield "adds to nothing"
    yield from legal(unit, uop)


def listed(words: int = 2 * 64, unit: type[Unit] = Adder) -> Overlay:
    """The overlay; `words` are those that an op list of FU2 holds."""
    return replace(
        FIG6,
        name="listed",
        units=tuple(u if u.name != "FU2" else replace(u, behaviour=unit) for u in FIG6.units),
        formats=tuple(x for x in FIG6.formats if x.mop is not Add),
        terminators=("FU1", "FU3"),
        preloaded={"FU2": OpList(Listed, words, repeat)},
        legal=checked,
        flops=lambda op: int(op.size),
    )


def program(overlay: Overlay, entries: Sequence[Record], elements: int, places: Sequence[int] = ()) -> Program:
    """A program that sends `elements` elements through FU2. places: the source line of each entry."""
    x, y = (
        Buffer(name, "ddr", at, (elements,), Layout.LINEAR, role)
        for name, at, role in (("x", 0, Role.INPUT), ("y", elements, Role.OUTPUT))
    )
    parts = [(at, min(MOST, elements - at)) for at in range(0, elements, MOST)]
    packets = (
        Packet.of(1, [Read(addr=at, size=size, to_fu2=1) for at, size in parts]),
        Packet.of(3, [Write(addr=elements + at, size=size, from_fu2=1) for at, size in parts]),
        Packet.terminator(1, 0),
        Packet.terminator(3, 0),
    )
    lines = {"FU2": tuple(SourceLine("p.rsn", line) for line in places)} if places else {}
    return Program(overlay, packets, {"FU2": tuple(entries)}, (x, y), preloaded_places=lines)
