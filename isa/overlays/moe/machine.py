"""The machine for experts as data.

::

    Acts -> X -> Mac -> Post -> Acts          rows are gathered, and scattered, by their numbers
    Weights -----^  ^     | ^--- Acts, Route  shares of rows
                    |     v
                    +-- Hidden                what the gate makes
    Acts -> Route -> Seq -> instructions of all others
    Acts -> Sum -> Acts                       results of a token
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....machine.description import Capability, Rate, Stream, UnitSpec
from ...layout import Layout
from ...overlay import InstructionFormat, Overlay, Transfer, one_uop
from .formats import Add, Choose, Fill, Finish, Hold, Line, Move, Product, RowPort, Rows, Run, Tiles, rows_uops
from .sequence import SeqUnit
from .units import ACTIVATIONS, ActsUnit, GateUnit, HiddenUnit, MacUnit, RouteUnit, SumUnit, WeightsUnit, XUnit

MACS = 13056
"""Multiply-adds a cycle: six products of 128x128x128 in 3.709 us each at 260 MHz, as XNN's (paper Table 6a)."""

RATES = {
    "ddr_read_gbs": Rate(21.0, "GB/s", "paper 5.3, observed", "DDR load"),
    "ddr_write_gbs": Rate(23.5, "GB/s", "paper 5.3, observed", "DDR store"),
    "weights_read_gbs": Rate(20.5, "GB/s", "paper 5.3, observed of LPDDR", "weights"),
    "offchip_uop": Rate(35, "PL cycles", "as XNN's, for each row and for each list of tiles", "off-chip set-up"),
    "word": Rate(1, "PL cycles", "assumed: 1024-bit streams", "on-chip transfer"),
    "multiply": Rate(1 / MACS, "PL cycles", "assumed: a multiply-add at XNN's rate", "compute"),
    "post": Rate(1 / 32, "PL cycles", "assumed: 32 elements a cycle", "post-op"),
    "choose": Rate(1, "PL cycles", "assumed: a logit a cycle", "routing"),
    "launch_us": Rate(40.0, "us", "per program, as XNN's", "launch"),
    "dispatch": Rate(1, "PL cycles", "assumed: one word a cycle", "instruction issue"),
    "decode": Rate(1, "PL cycles", "assumed: cycles per uOP are the decoder's", "instruction issue"),
}
FORMATS: tuple[tuple[str, str, Any], ...] = (
    ("Acts", "Acts", Rows),
    ("Weights", "Weights", Tiles),
    ("X", "X", Fill),
    ("Hidden", "Hidden", Hold),
    ("Mac", "Mac", Product),
    ("Post", "Post", Finish),
    ("Sum", "Sum", Add),
    ("Route", "Route", Choose),
    ("Seq", "Seq", Run),
    ("SeqLine", "Seq", Line),
)
"""Name, FU type and operation of each format, by opcode from 1 on."""


def legal(unit: UnitSpec, uop: Any) -> Iterator[str]:
    """Yield the reasons why a unit cannot execute a uOP whose fields are all in range."""
    match uop:
        case Move(port=port) if port > max(RowPort):
            yield f"port {port}: Acts has 0 to {int(max(RowPort))}"
        case Finish(activation=number) if number >= len(ACTIVATIONS):
            yield f"activation {number}: Post has 0 to {len(ACTIVATIONS) - 1}"
        case Choose(each=each, experts=experts, size=size) if not each <= experts <= size:
            yield f"chooses {each} of {experts} logits in rows of {size} elements"


def moe(*, rows: int = 64, tile: int = 128, fifo: int = 6) -> Overlay:
    """Return a machine for experts.

    rows: the most rows of a part, which share a pass over the weights of an expert. tile: K and columns of a tile of
    weights, in elements. fifo: slots in front of each decoder, from the dispatcher and from Seq.
    """
    size, block = tile * tile, rows * tile

    def transfer(unit: UnitSpec, uop: Any) -> Transfer | None:
        if isinstance(uop, Move):
            return Transfer("ddr", uop.addr, uop.size, RowPort(uop.port).stores)
        return Transfer("weights", uop.addr, uop.tiles * size, store=False) if isinstance(uop, Tiles) else None

    sizes = {"tile_rows": (1, rows), "tile_depth": (tile, tile), "tile_columns": (tile, tile)}
    matmul = Capability("matmul", limits=sizes, rate="multiply")
    return Overlay(
        name="moe",
        units=(
            UnitSpec("Acts", "Acts", 0, ActsUnit, "ddr"),
            UnitSpec("Weights", "Weights", 0, WeightsUnit, "weights"),
            UnitSpec("X", "X", 0, XUnit),
            UnitSpec("Hidden", "Hidden", 0, HiddenUnit),
            UnitSpec("Mac", "Mac", 0, MacUnit, capabilities=(matmul,)),
            UnitSpec("Post", "Post", 0, GateUnit),
            UnitSpec("Sum", "Sum", 0, SumUnit),
            UnitSpec("Route", "Route", 0, RouteUnit),
            UnitSpec("Seq", "Seq", 0, SeqUnit),
        ),
        streams=(
            Stream("Acts", "X", 1 << 16),
            Stream("Acts", "Route", 1 << 16),
            Stream("Acts", "Sum", 1 << 17),
            Stream("Acts", "Post", 2 * rows),
            Stream("Weights", "Mac", 16 * size),
            Stream("X", "Mac", 2 * block),
            Stream("Hidden", "Mac", 2 * block),
            Stream("Mac", "Post", 2 * block),
            Stream("Post", "Hidden", 2 * block),
            Stream("Post", "Acts", 1 << 17),
            Stream("Sum", "Acts", 1 << 16),
            Stream("Route", "Post", 4 * rows),
            Stream("Route", "Seq", 4),
        ),
        clock_hz=260e6,
        formats=tuple(
            InstructionFormat(
                name,
                opcode,
                kind,
                record,
                loops_window=True,
                decode_cycles=1,
                config=record is Line,
                uops=rows_uops if record is Rows else one_uop,
            )
            for opcode, (name, kind, record) in enumerate(FORMATS, 1)
        ),
        rates=RATES,
        terminators=tuple(name for name, _, record in FORMATS if record is not Line),
        banks={"ddr": 4 << 30, "weights": 16 << 30},
        mop_fifo_depth=fifo,
        max_bank_bytes=16 << 30,
        legal=legal,
        transfer=transfer,
        layout=Layout.LINEAR,
    )


MACHINE = moe()
