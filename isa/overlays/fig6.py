"""The three-unit overlay of Fig. 6, and the shortest example of how an overlay is made.

::

    ddr -> FU1 ---------> FU3 -> ddr
              \\-> FU2 -/

FU1 reads elements and sends them to FU2 or FU3, FU2 adds 1 and passes on to FU3, FU3 writes what comes from either.
A unit takes three things: a `Record` that says how its uOPs look on the wire, a `Unit` whose `kernel` says what one
uOP does, and a `Rate` per kind of step that says how long it takes. `FIG6` puts them together; no tool knows more.

Streams count elements (float32), and kernels move them one at a time: a kernel that moved eight at once would stall
where one uOP of FU2 spans two of FU1 (programs/fig6_app2.rsn). Addresses count elements too.

Source: paper section 3.1, "Simple Overlay". The paper gives no times; the rates here let an element pass every cycle.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np

from ...machine.description import Rate, Stream, UnitSpec
from ...machine.steps import Step, Steps
from ...machine.token_type import ELEMENT
from ...machine.unit import Unit
from ..fields import Record, bits
from ..overlay import InstructionFormat, Overlay, Transfer

ELEMENT_BYTES = 4


class Read(Record, words=2):
    """FU1: send `size` elements from `addr` on. The paper writes (FU2, 100, 0)."""

    addr: int = bits(0, 0, 32, "first element")
    size: int = bits(1, 0, 30, "elements")
    to_fu2: int = bits(1, 30, 1, "destination", to="FU2")
    to_fu3: int = bits(1, 31, 1, "destination", to="FU3")


class Add(Record, words=1):
    """FU2: add 1 to `size` elements from FU1 on their way to FU3."""

    size: int = bits(0, 0, 32, "elements")


class Write(Record, words=2):
    """FU3: store `size` elements from `addr` on."""

    addr: int = bits(0, 0, 32, "first element")
    size: int = bits(1, 0, 30, "elements")
    from_fu1: int = bits(1, 30, 1, "origin", source="FU1")
    from_fu2: int = bits(1, 31, 1, "origin", source="FU2")


class FU1(Unit):
    """Reads elements from off-chip memory, and sends them to FU2 or FU3, one at a time."""

    def kernel(self, uop: Read) -> Steps:
        sink = self.sink("FU2" if uop.to_fu2 else "FU3")
        for at in range(uop.addr, uop.addr + uop.size):
            yield Step("ddr_read_gbs", ELEMENT_BYTES, puts=(sink,), do=lambda at=at: (self.read(at, 1),))

    def effect_key(self, uop: Read) -> Hashable:
        return uop.size, uop.to_fu2


class FU2(Unit):
    """Adds 1 to each element from FU1, and sends it to FU3."""

    def kernel(self, uop: Add) -> Steps:
        source, sink = self.source("FU1"), self.sink("FU3")
        for _ in range(uop.size):
            yield Step("add", gets=(source,), puts=(sink,), do=lambda x: (x + np.float32(1),))

    def effect_key(self, uop: Add) -> Hashable:
        return uop


class FU3(Unit):
    """Writes elements from FU1 or FU2 to off-chip memory, one at a time."""

    def kernel(self, uop: Write) -> Steps:
        source = self.source("FU2" if uop.from_fu2 else "FU1")
        for at in range(uop.addr, uop.addr + uop.size):
            yield Step("ddr_write_gbs", ELEMENT_BYTES, gets=(source,), do=lambda x, at=at: self.write(at, x))

    def effect_key(self, uop: Write) -> Hashable:
        return uop.size, uop.from_fu2


def legal(unit: UnitSpec, uop: Any) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range."""
    match uop:
        case Read() if uop.to_fu2 + uop.to_fu3 != 1:
            yield "sends to one of FU2 and FU3"
        case Write() if uop.from_fu1 + uop.from_fu2 != 1:
            yield "stores from one of FU1 and FU2"


def transfer(unit: UnitSpec, uop: Any) -> Transfer | None:
    """Return the off-chip access of a uOP; None if it makes none."""
    if isinstance(uop, Read | Write) and uop.size:
        return Transfer("ddr", uop.addr, uop.size, store=isinstance(uop, Write))
    return None


FIG6 = Overlay(
    name="fig6",
    units=(
        UnitSpec("FU1", "FU1", 0, FU1, bank="ddr"),
        UnitSpec("FU2", "FU2", 0, FU2),
        UnitSpec("FU3", "FU3", 0, FU3, bank="ddr"),
    ),
    streams=(
        Stream("FU1", "FU2", 2, token=ELEMENT),
        Stream("FU1", "FU3", 2, token=ELEMENT),
        Stream("FU2", "FU3", 2, token=ELEMENT),
    ),
    formats=(
        InstructionFormat("FU1", 1, "FU1", Read, loops_window=True, decode_cycles=1),
        InstructionFormat("FU2", 2, "FU2", Add, loops_window=True, decode_cycles=1),
        InstructionFormat("FU3", 3, "FU3", Write, loops_window=True, decode_cycles=1),
    ),
    rates={
        "ddr_read_gbs": Rate(1.04, "GB/s", "illustration: one element a PL cycle", "DDR load"),
        "ddr_write_gbs": Rate(1.04, "GB/s", "illustration: one element a PL cycle", "DDR store"),
        "add": Rate(1, "PL cycles", "illustration: one element a PL cycle", "compute"),
        "dispatch": Rate(1, "PL cycles", "structure: one word a cycle", "instruction issue"),
        "decode": Rate(1, "PL cycles", "structure: cycles per uOP are the decoder's", "instruction issue"),
    },
    terminators=("FU1", "FU2", "FU3"),
    banks={"ddr": 1 << 20},
    clock_hz=260e6,
    legal=legal,
    transfer=transfer,
)
