"""What each capability of opcodes 9 to 14 takes of the device, on top of the machine without it.

Counted as the rest in `resources.py`: what loops of hw/versal/pl compute, their accesses to buffers, arrays of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ....machine.description import UnitSpec, memory_of
from ....machine.resources import Need
from ...overlay import Overlay
from ...versal.logic import FLOAT, WORD_BITS, LoopWork, arithmetic, cells_of, control, crossbars, lut_ram, ultra_rams
from ...versal.pieces import NO_CELLS, Cells, piece
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

    name: the name under which its resources are reported. kind: the FU type of the units that have it. works: what its
    loops compute and move. arrays: on-chip arrays with one number for each row, each as (banks, depth in words).
    softmax: only units that compute a softmax have it. table: the unit gets a third buffer, for the table of a
    rotation. cells: LUTs and flip-flops that belong to none of `works`.
    """

    name: str
    kind: str
    works: Sequence[LoopWork] = ()
    arrays: Sequence[tuple[int, int]] = ()
    softmax: bool = False
    table: bool = False
    cells: Cells = NO_CELLS


ROWS = (4, 128)
"""A number per row of a MemC: patch_rows and row_patches of pl/mem_c.h."""
NUMBERS = (2, 128)
"""A number per row of a MemA: `Numbers` of pl/row_norm.h."""
ROTATE = LOOPS["rotate"]

EXTENSIONS = (
    Extension("gate", "MemC", (LoopWork("activation", "gate", {"mul": 32}, reads=1),)),
    Extension(
        "rotation",
        "MemC",
        (LoopWork("rotate", "rotation", {"mul": 64, "add": 32}, 1, 1),),
        table=True,
        cells=piece("patch", WORD_BITS) + control(ROTATE),  # a second patch beside that of its loop
    ),
    Extension("norm of heads", "MemC", cells=2 * control(ROTATE)),
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
    """Whether a machine has opcodes 9 to 14: it has the format `MemCStore`."""
    return any(form.mop is MemCStore for form in overlay.formats)


def needs(unit: UnitSpec, works: Sequence[LoopWork], *, softmax: bool) -> Iterator[Need]:
    """Yield the resources that the extensions of a unit take in addition to the unit itself. works: of the unit without
    extensions, for the crossbars. softmax: whether the unit computes one.

    Raises `ProgramError` if the unit has no memory."""
    memory, so_far = memory_of(unit), list(works)
    before = crossbars(so_far, memory.banks, memory.slots)
    for extension in EXTENSIONS:
        if extension.kind != unit.kind or (extension.softmax and not softmax):
            continue
        part = f"{extension.name} in {unit.kind}"
        cells = extension.cells
        for work in extension.works:
            dsp, computing = arithmetic(LOOPS[work.loop], work)
            yield Need("DSP", dsp, part, True)
            cells += computing + control(LOOPS[work.loop])
        cells += sum((banks * lut_ram(FLOAT, depth) for banks, depth in extension.arrays), start=NO_CELLS)
        so_far += extension.works
        after = crossbars(so_far, memory.banks, memory.slots)
        cells, before = cells + after - before, after
        if extension.table:
            cells += crossbars(TABLE, TABLE_BANKS, 1)
            depth = memory.rows * memory.columns // BEAT
            yield Need("URAM", TABLE_BANKS * ultra_rams(WORD_BITS // TABLE_BANKS, depth), part)
        yield from cells_of(part, cells)
