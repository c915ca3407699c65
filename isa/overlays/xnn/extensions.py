"""What each capability of opcodes 9 to 14 takes of the device, on top of the machine without it.

Counted as the rest in `resources.py`: what loops of hw/versal/pl compute, their accesses to buffers, arrays of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ....machine.description import UnitSpec, memory_of
from ....machine.resources import Need
from ...overlay import Overlay
from ...versal.logic import CONTROL, FLOAT, WORD_BITS, LoopWork, arithmetic, crossbars, lut_ram, multiplexer, ultra_rams
from ...versal.tiles import BEAT
from .cycles import LOOPS
from .mem_c import MemCStore

TABLE = (LoopWork("receive", "rotation", writes=1), LoopWork("rotate", "rotation", reads=1))
"""Accesses to the table of a rotation, which is as large as a buffer."""
TABLE_BANKS = 2
"""As of every buffer that is not filled transposed."""


@dataclass(frozen=True)
class Extension:
    """A capability and what it adds to each unit of a kind.

    name: what its resources are reported as. kind: of the units that have it. works: what its loops do. arrays: of a
    number per row, as (banks, depth) each. softmax: only units that compute one have it. table: it brings a third
    buffer. luts: further ones, with no loop.
    """

    name: str
    kind: str
    works: Sequence[LoopWork] = ()
    arrays: Sequence[tuple[int, int]] = ()
    softmax: bool = False
    table: bool = False
    luts: int = 0


ROWS = (4, 128)
"""A number per row of a MemC: patch_rows and row_patches of pl/mem_c.h."""
NUMBERS = (2, 128)
"""A number per row of a MemA: `Numbers` of pl/row_norm.h."""
PATCH = int(WORD_BITS * multiplexer(2))
"""LUTs of a second patch that is loaded or moves down beside that of its loop."""

EXTENSIONS = (
    Extension("gate", "MemC", (LoopWork("activation", "gate", {"mul": 32}, reads=1),)),
    Extension(
        "rotation",
        "MemC",
        (LoopWork("rotate", "rotation", {"mul": 64, "add": 32}, 1, 1),),
        table=True,
        luts=PATCH + CONTROL,
    ),
    Extension("norm of heads", "MemC", luts=2 * CONTROL),
    Extension("statistics of rows", "MemC", (LoopWork("statistics", "statistics of rows"),)),
    Extension(
        "norm at a load",
        "MemA",
        (
            LoopWork("normalise", "norm at a load", {"add in fabric": 32, "mul": 32}, writes=1),
            LoopWork("statistics", "norm at a load", {"mul": 12, "add in fabric": 14, "div": 2}),
            LoopWork("exchange", "norm at a load", {"add in fabric": 1, "div": 1, "sqrt": 1, "reciprocal": 1}),
        ),
        arrays=(NUMBERS,) * 3,
    ),
    Extension(
        "windows, left padding",
        "MemC",
        (
            LoopWork("softmax_max", "windows, left padding", {"bound": 8}),
            LoopWork("softmax_exp", "windows, left padding", {"bound": 8}),
        ),
        softmax=True,
    ),
    Extension(
        "soft cap",
        "MemC",
        (LoopWork("softcap", "soft cap", {"mul": 32, "exp": 32, "add in fabric": 64, "div": 32}, 1, 1),),
        softmax=True,
    ),
    Extension(
        "softmax in parts",
        "MemC",
        (LoopWork("exchange", "softmax in parts", {"mul": 1, "exp": 1, "add": 2}),),
        arrays=(ROWS, ROWS),
        softmax=True,
    ),
)
"""Capabilities, except those that only change what was there: see `resources.py`."""


def extended(overlay: Overlay) -> bool:
    """Whether a machine has what opcodes 9 to 14 say."""
    return any(form.mop is MemCStore for form in overlay.formats)


def needs(unit: UnitSpec, works: Sequence[LoopWork], *, softmax: bool) -> Iterator[Need]:
    """What the extensions of a unit add. works: what it does without them, for the crossbars. softmax: it computes
    one."""
    memory, so_far = memory_of(unit), list(works)
    before = crossbars(so_far, memory.banks, memory.slots)
    for extension in EXTENSIONS:
        if extension.kind != unit.kind or (extension.softmax and not softmax):
            continue
        part = f"{extension.name} in {unit.kind}"
        luts = extension.luts
        for work in extension.works:
            dsp, lut = arithmetic(LOOPS[work.loop], work.operators)
            yield Need("DSP", dsp, part, True)
            luts += lut + CONTROL
        luts += sum(banks * lut_ram(FLOAT, depth) for banks, depth in extension.arrays)
        so_far += extension.works
        after = crossbars(so_far, memory.banks, memory.slots)
        luts, before = luts + after - before, after
        if extension.table:
            luts += crossbars(TABLE, TABLE_BANKS, 1)
            depth = memory.rows * memory.columns // BEAT
            yield Need("URAM", TABLE_BANKS * ultra_rams(WORD_BITS // TABLE_BANKS, depth), part)
        yield Need("LUT", luts, part, True)
