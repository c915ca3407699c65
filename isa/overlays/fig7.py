"""The two GEMM pipelines of Fig. 7, used side by side on one layer or one after the other on two layers.

::

    LHS1, RHS1 -> Compute1 -> OUT1 -> ddr                  path 1; path 3 ends in OUT1
                               |
                               v
                     LHS2 -> Mesh -> Compute2 -> OUT2 -> ddr      path 2 from LHS2; path 4 from OUT1
                                        ^
                             RHS2 ------+

The LHS and RHS units read their tiles from off-chip memory themselves, the OUT units write theirs; each has a port of
its own, so nothing orders a load behind a store: what a program stores it must not load again. Every buffer is a 10x10
tile, K = 10 fits into it whole. A product of two tiles is 1000 pairs of elements: row i of the left tile is sent once
for each of the 10 columns of the right one.

Application 1 (programs/fig7_app1.rsn): both pipelines on one 20x10x10 layer, a tile of 10 rows each. Application 2
(programs/fig7_app2.rsn): layer 1 in the first pipeline, its result through the Mesh into the second pipeline as an
operand of layer 2, never off chip.

The paper calls that operand "the RHS input for layer 2", but its Mesh chooses between streamOUT1 and streamLHS2. We
follow the Mesh: OUT1 takes the place of LHS2 and sends in its order, so layer 2 is (x @ w1) @ w2 with w2 in RHS2.
Compute2 cannot tell: it multiplies pairs.

Streams count elements (float32); addresses do too, and off-chip matrices are row-major. Source: paper section 3.1, "DNN
Scenario". The paper gives no times; the rates here let an element pass every cycle.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np

from ...machine.description import Rate, Stream, UnitSpec
from ...machine.executor import ProcessNetwork
from ...machine.steps import Channel, Par, Step, Steps
from ...machine.token_type import ELEMENT
from ...machine.unit import Unit
from ..fields import Record, bits
from ..overlay import InstructionFormat, Overlay, Transfer

SIDE = 10
"""Rows and columns of a buffer."""
TILE = SIDE * SIDE
ELEMENT_BYTES = 4


class Operand(Record, words=2):
    """LHS, RHS: load a tile into one buffer while sending the other."""

    addr: int = bits(0, 0, 32, "first element to load")
    size: int = bits(1, 0, 7, "elements to load, row by row")
    load: int = bits(1, 7, 1, "fill the other buffer from off-chip memory")
    send: int = bits(1, 8, 1, "send the current buffer: 1000 elements")


class Compute(Record, words=1):
    """Sum the products of `accum_k` pairs and emit the result, `num` times."""

    num: int = bits(0, 0, 16, "results")
    accum_k: int = bits(0, 16, 16, "pairs to a result")


class Mesh(Record, words=1):
    """Pass `n` elements on to Compute2."""

    n: int = bits(0, 0, 30, "elements")
    from_out1: int = bits(0, 30, 1, "route", source="OUT1", to="Compute2")
    from_lhs2: int = bits(0, 31, 1, "route", source="LHS2", to="Compute2")


class Result(Record, words=2):
    """OUT: receive a tile into one buffer while storing or sending the other."""

    addr: int = bits(0, 0, 32, "first element to store")
    size: int = bits(1, 0, 7, "elements to store, row by row")
    recv: int = bits(1, 7, 1, "fill the other buffer: 100 elements")
    store: int = bits(1, 8, 1, "write the current buffer to off-chip memory")
    send: int = bits(1, 9, 1, "OUT1: send the current buffer to the Mesh, 1000 elements; suppresses store")


class PingPong(Unit):
    """Two 10x10 buffers (paper Fig. 7). A kernel fills one and empties the other at the same time; then they change
    places.

    current: the buffer that the next kernel empties, 0 or 1. It is kept from kernel to kernel. Elements that were never
    filled are NaN, so that a result shows that they were sent."""

    def __init__(self, spec: UnitSpec, net: ProcessNetwork) -> None:
        super().__init__(spec, net)
        self.current = 0
        self.buffers = [np.full((SIDE, SIDE), np.nan, np.float32) for _ in range(2)]

    def lanes(self, *enabled: Steps | None) -> Steps:
        """Return the steps that run the halves of a uOP side by side, then change the buffers. None: a half that does
        nothing.
        """
        yield Par(*(lane for lane in enabled if lane is not None))
        self.current ^= 1

    def send_rows(self, sink: Channel) -> Steps:
        """Return the steps that send the current tile as a left operand, element by element: row by row, each row once
        per column of the product (1000 elements).
        """
        tile = self.buffers[self.current]
        for i in range(SIDE):
            for _ in range(SIDE):
                for k in range(SIDE):
                    yield Step("word", puts=(sink,), do=lambda i=i, k=k: (tile[i, k],))

    def send_columns(self, sink: Channel) -> Steps:
        """Return the steps that send the current tile as a right operand, element by element: column by column, all of
        them once per row of the product (1000 elements).
        """
        tile = self.buffers[self.current]
        for _ in range(SIDE):
            for j in range(SIDE):
                for k in range(SIDE):
                    yield Step("word", puts=(sink,), do=lambda j=j, k=k: (tile[k, j],))


class OperandUnit(PingPong):
    """What LHS and RHS units have in common: they load a tile into one buffer while they send the other. Subclasses say
    to which unit, and in which order, the elements are sent."""

    def kernel(self, uop: Operand) -> Steps:
        return self.lanes(self._load(uop) if uop.load else None, self._send() if uop.send else None)

    def effect_key(self, uop: Operand) -> Hashable:
        return uop.size, uop.load, uop.send

    def _load(self, uop: Operand) -> Steps:
        tile = self.buffers[1 - self.current].reshape(-1)

        def fill() -> None:
            tile[: uop.size] = self.read(uop.addr, uop.size)

        yield Step("ddr_read_gbs", uop.size * ELEMENT_BYTES, do=fill)

    def _send(self) -> Steps:
        raise NotImplementedError


class LHSUnit(OperandUnit):
    """Left operand: sends each row once per column of the product."""

    def _send(self) -> Steps:
        return self.send_rows(self.sink("Compute1" if self.index == 1 else "Mesh"))


class RHSUnit(OperandUnit):
    """Right operand: sends all columns once per row of the product."""

    def _send(self) -> Steps:
        return self.send_columns(self.sink(f"Compute{self.index}"))


class ComputeUnit(Unit):
    """A multiplier that adds up: takes pairs of elements, and sends the sum of `accum_k` products at a time."""

    def kernel(self, uop: Compute) -> Steps:
        pair = (self.source("LHS1" if self.index == 1 else "Mesh"), self.source(f"RHS{self.index}"))
        sink = self.sink(f"OUT{self.index}")
        for _ in range(uop.num):
            self.total = np.float32(0)
            for _ in range(uop.accum_k):
                yield Step("multiply", gets=pair, do=self._add)
            yield Step(puts=(sink,), do=lambda: (self.total,))

    def effect_key(self, uop: Compute) -> Hashable:
        return uop

    def _add(self, left: np.float32, right: np.float32) -> None:
        self.total += left * right


class SwitchUnit(Unit):
    """Passes elements from OUT1 or from LHS2 on to Compute2."""

    def kernel(self, uop: Mesh) -> Steps:
        source, sink = self.source("OUT1" if uop.from_out1 else "LHS2"), self.sink("Compute2")
        for _ in range(uop.n):
            yield Step("word", gets=(source,), puts=(sink,), do=lambda x: (x,))

    def effect_key(self, uop: Mesh) -> Hashable:
        return uop


class OutUnit(PingPong):
    """Takes a tile of results into one buffer while it stores the other off chip, or sends it to Mesh."""

    def kernel(self, uop: Result) -> Steps:
        empty = self.send_rows(self.sink("Mesh")) if uop.send else self._store(uop) if uop.store else None
        return self.lanes(self._recv() if uop.recv else None, empty)

    def effect_key(self, uop: Result) -> Hashable:
        return uop.size, uop.recv, uop.store, uop.send

    def _recv(self) -> Steps:
        source, tile = self.source(f"Compute{self.index}"), self.buffers[1 - self.current].reshape(-1)
        for at in range(TILE):

            def put(x: np.float32, at: int = at) -> None:
                tile[at] = x

            yield Step("word", gets=(source,), do=put)

    def _store(self, uop: Result) -> Steps:
        tile = self.buffers[self.current].reshape(-1)
        yield Step("ddr_write_gbs", uop.size * ELEMENT_BYTES, do=lambda: self.write(uop.addr, tile[: uop.size]))


def legal(unit: UnitSpec, uop: Any) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range."""
    match uop:
        case Operand(load=1) | Result(store=1) if uop.size > TILE:
            yield f"size {uop.size}: a buffer has {TILE} elements"
        case Mesh() if uop.from_out1 + uop.from_lhs2 != 1:
            yield "passes on from one of OUT1 and LHS2"
    if isinstance(uop, Result):
        if uop.send and unit.name != "OUT1":
            yield "only OUT1 reaches the Mesh"
        if uop.send and uop.store:
            yield "send suppresses store"


def transfer(unit: UnitSpec, uop: Any) -> Transfer | None:
    """Return the off-chip access of a uOP; None if it makes none."""
    match uop:
        case Operand(load=1):
            return Transfer("ddr", uop.addr, uop.size, store=False)
        case Result(store=1, send=0):
            return Transfer("ddr", uop.addr, uop.size, store=True)
    return None


FIG7 = Overlay(
    name="fig7",
    units=(
        UnitSpec("LHS1", "LHS", 1, LHSUnit, "ddr"),
        UnitSpec("LHS2", "LHS", 2, LHSUnit, "ddr"),
        UnitSpec("RHS1", "RHS", 1, RHSUnit, "ddr"),
        UnitSpec("RHS2", "RHS", 2, RHSUnit, "ddr"),
        UnitSpec("Mesh", "Mesh", 0, SwitchUnit),
        UnitSpec("Compute1", "Compute", 1, ComputeUnit),
        UnitSpec("Compute2", "Compute", 2, ComputeUnit),
        UnitSpec("OUT1", "OUT", 1, OutUnit, "ddr"),
        UnitSpec("OUT2", "OUT", 2, OutUnit, "ddr"),
    ),
    streams=(
        Stream("LHS1", "Compute1", 2, token=ELEMENT),
        Stream("RHS1", "Compute1", 2, token=ELEMENT),
        Stream("Compute1", "OUT1", 2, token=ELEMENT),
        Stream("OUT1", "Mesh", 2, token=ELEMENT),
        Stream("LHS2", "Mesh", 2, token=ELEMENT),
        Stream("Mesh", "Compute2", 2, token=ELEMENT),
        Stream("RHS2", "Compute2", 2, token=ELEMENT),
        Stream("Compute2", "OUT2", 2, token=ELEMENT),
    ),
    formats=(
        InstructionFormat("LHS", 1, "LHS", Operand, loops_window=True, decode_cycles=1),
        InstructionFormat("RHS", 2, "RHS", Operand, loops_window=True, decode_cycles=1),
        InstructionFormat("Mesh", 3, "Mesh", Mesh, loops_window=True, decode_cycles=1),
        InstructionFormat("Compute", 4, "Compute", Compute, loops_window=True, decode_cycles=1),
        InstructionFormat("OUT", 5, "OUT", Result, loops_window=True, decode_cycles=1),
    ),
    rates={
        "ddr_read_gbs": Rate(1.04, "GB/s", "illustration: one element a PL cycle, per port", "DDR load"),
        "ddr_write_gbs": Rate(1.04, "GB/s", "illustration: one element a PL cycle, per port", "DDR store"),
        "word": Rate(1, "PL cycles", "illustration: one element a PL cycle", "on-chip transfer"),
        "multiply": Rate(1, "PL cycles", "illustration: one pair a PL cycle", "compute"),
        "dispatch": Rate(1, "PL cycles", "structure: one word a cycle", "instruction issue"),
        "decode": Rate(1, "PL cycles", "structure: cycles per uOP are the decoder's", "instruction issue"),
    },
    terminators=("LHS", "RHS", "Mesh", "Compute", "OUT"),
    banks={"ddr": 1 << 20},
    clock_hz=260e6,
    legal=legal,
    transfer=transfer,
)
