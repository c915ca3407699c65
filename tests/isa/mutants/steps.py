"""What the small programs for the XNN units are made of: uOPs, packets, and a run by both engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from rsn.hw.sim.dataflow import DataRun
from rsn.isa.fields import Record
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.layout import unblock
from rsn.isa.overlay import Overlay
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.packet import Packet
from rsn.machine.executor import ProcessNetwork

Array = npt.NDArray[np.float32]
BLOCK = 128 * 64
ONCE = {"send": 1, "acc_a": 1, "acc_b": 1}


@dataclass
class Outcome:
    """What a program computed and should have computed, and seconds by the executor's clocks."""

    found: list[Array]
    expected: list[Array]
    seconds: float


@cache
def random(seed: int, *shape: int) -> Array:
    out = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    out.setflags(write=False)
    return out


# -- uOPs -------------------------------------------------------------------------------------------------------------


def ddr(at: int, size: int, *, to: str = "", source: str = "") -> f.Ddr:
    """Move `size` elements from element `at` on."""
    flags = {x.name: 1 for x in f.Ddr.FIELDS if (to and x.to == to) or (source and x.source == source)}
    return f.Ddr(addr=at // 16, size=size, load=bool(to), store=bool(source), **flags)  # type: ignore[arg-type]


def lpddr(at: int, size: int, to: str, bias: int = 0) -> f.Lpddr:
    return f.Lpddr(addr=at // 16, size=size, bias=bias, to_b0=to == "MemB0", to_b1=to == "MemB1")


def chain(kind: type[Record], fills: Sequence[dict[str, int]], empties: Sequence[dict[str, int]]) -> list[Record]:
    """Fill each piece while the one before is emptied."""
    return [kind(**(a | b)) for a, b in zip([*fills, {}], [{}, *empties], strict=True)]


def op(**fields: int) -> f.Mme:
    return f.Mme(**({"a_iter": 1, "b_iter": 1, "k_iter": 1, "acc_a": 1, "acc_b": 1, "n128": 1, "k128": 1} | fields))


def route(form: type[f.MeshA | f.MeshB], size: int, to: Mapping[str, Sequence[str]]) -> Record:
    """`size` beats from each source to its destinations."""
    return form(size=size, **{x.name: 1 for x in form.FIELDS if x.to in to.get(str(x.source), ())})


def packets(overlay: Overlay, units: Mapping[str, Iterable[Record]]) -> Iterator[Packet]:
    for unit, mops in units.items():
        spec = overlay.by_unit[unit]
        if spec.kind not in overlay.preloaded:
            for mop in mops:
                opcode = next(x.opcode for x in overlay.formats if x.kind == spec.kind and x.mop is type(mop))
                many = len(overlay.by_kind[spec.kind]) > 1
                yield Packet.of(opcode, [mop], mask=1 << spec.index if many else 0)


def run(overlay: Overlay, banks: Sequence[Array], units: Mapping[str, Iterable[Record]]) -> tuple[list[Array], float]:
    """Run a program step by step, with clocks, and many steps at once, without: DDR after each, and the seconds."""
    preloaded = {u: tuple(ops) for u, ops in units.items() if overlay.by_unit[u].kind in overlay.preloaded}
    path = InstructionPath(overlay, [*packets(overlay, units)], preloaded)
    timed, fast = (dict(zip(("ddr", "lpddr"), (x.reshape(-1).copy() for x in banks), strict=True)) for _ in range(2))
    seconds = ProcessNetwork(overlay, {u.name: path.uops(u.name) for u in overlay.units}, banks=timed, data=True).run()
    DataRun(path, banks=fast, where=path.where).run()
    return [timed["ddr"], fast["ddr"]], seconds


def tail(memories: Sequence[Array], rows: int, cols: int) -> list[Array]:
    """The matrix at the end of each memory."""
    return [unblock(m[-rows * cols :], rows, cols) for m in memories]


def blocks_at(matrix_at: int, cols: int, rows: slice, columns: slice) -> list[tuple[int, int]]:
    """Start and size of each run of blocks of a part of a blocked matrix with so many columns."""
    first, last = columns.start // 64, columns.stop // 64
    return [
        (matrix_at + ((r // 128) * (cols // 64) + first) * BLOCK, (last - first) * BLOCK)
        for r in range(rows.start, rows.stop, 128)
    ]


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3))), np.float32)
