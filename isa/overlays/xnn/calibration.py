"""How far the estimate of resources is from what has been published of another implementation of the same datapath.

Facts, and where they are from: its post-route report (Vitis 2024.1, VC1902 at 260 MHz), which states totals, and the
reports of Vitis HLS, which state units. Nothing else of it is known here. So its structure below is that of the sources
in hw/versal/pl as far as the facts do not tell otherwise.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ....machine.description import UnitSpec
from ....machine.resources import VC1902, Deviation, Need
from ...overlay import Overlay
from ...versal.logic import LoopWork
from .cycles import LOOPS
from .mem_c import BASE_LOOPS
from .resources import LOGIC, ROW_ARRAYS, buffers, computes_softmax, mem_c, mesh, outside, streams

POST_ROUTE = {name: c.post_route for name, c in VC1902.capacities.items() if c.post_route is not None}
"""Of the whole implementation. Its DSPs are 676 DSPFP32, 152 DSP48E5 and 18 DSP58; 92 per cent of the slices are in
use."""
REPORTED: Mapping[str, Mapping[str, int]] = {
    "MemC with softmax": {"LUT": 79_021, "DSP": 151, "URAM": 32},
    "MemC without softmax": {"LUT": 33_006, "DSP": 115},
    "MeshA": {"LUT": 16_437},
    "MeshB": {"LUT": 9_453},
}
"""Of units, by Vitis HLS. An AXI port (4,939 LUTs, 31 blocks of 18 Kbit) is taken into the estimate as it is."""

_SHARED = {"activation": 8, "norm_sum": 2, "norm_squares": 4, "norm_scale": 4}
_LOOPS = {
    **LOOPS,
    **BASE_LOOPS,
    **{name: dataclasses.replace(LOOPS[name], ii=ii, rounds=1) for name, ii in _SHARED.items()},
}
"""Its times are those of four elements of gelu a cycle, and about those of our norm. Whether it has an interval above 1
there is not known; that needs more LUTs, and the report has more than the unit would need otherwise."""
_MEM_C = (
    LoopWork("receive", "", {"add": 32}, reads=1, writes=1),
    LoopWork("store", "", reads=1),
    LoopWork("activation", "", {"mul": 4 * 32, "add": 3 * 32, "exp": 32, "div": 32}, reads=1, writes=1),
    LoopWork("norm_sum", "", {"add": 32}, reads=1),
    LoopWork("norm_squares", "", {"add": 64, "mul": 32}, reads=1),
    LoopWork("norm_scale", "", {"add": 32, "div": 32}, reads=1, writes=1),
    LoopWork("exchange", "", {"add": 2, "div": 1, "sqrt": 1}),
)
"""gelu in its tanh form by one exp, and a division per element."""
_SOFTMAX = (
    LoopWork("send", "", reads=1),
    LoopWork("softmax_exp", "", {"exp": 32, "add": 4, "add in fabric": 28}, reads=1, writes=1),
    LoopWork("softmax_scale", "", {"div": 32}, reads=1, writes=1),
    LoopWork("exchange", "", {"add": 1}),
)
"""No scale, no mask, no maximum. Its 36 DSPs are 32 exps and 4 others, so most sums of rows are in fabric."""


def deviations(overlay: Overlay) -> Iterator[Deviation]:
    """Yield how far the estimate is from each published figure: of some units, then of the whole implementation.
    overlay: the base machine, whose units and streams the published implementation has.

    Raises `KeyError` if MemC0, MemC4, MeshA or MeshB is missing, `ProgramError` if a unit with slots has no memory.
    """
    names = {"MemC with softmax": "MemC0", "MemC without softmax": "MemC4", "MeshA": "MeshA", "MeshB": "MeshB"}
    units = {what: overlay.by_unit[name] for what, name in names.items()}
    for what, figures in REPORTED.items():
        found = _sums(_unit(overlay, units[what]))
        for resource, published in figures.items():
            yield Deviation(resource, what, published, found[resource])
    whole = [n for u in overlay.units for n in _unit(overlay, u)]
    found = _sums([*whole, *streams(overlay, short=True), *outside(overlay)])
    for resource, published in POST_ROUTE.items():
        yield Deviation(resource, "", published, found[resource])


def _unit(overlay: Overlay, unit: UnitSpec) -> Iterator[Need]:
    """A unit of the published implementation. Its UltraRAMs are those of the MemCs, so the slots of MemB are block RAM;
    with them there is none left for streams, which must then be short. All that is read off the totals of UltraRAM and
    block RAM, so the small errors of these are no test of the estimate. Of its meshes,
    each output chooses among all sources: with the routes of ours they would have less than half of their LUTs."""
    if unit.memory is not None:
        yield buffers(unit, ultra=unit.kind == "MemC")
    if unit.kind == "MemC" and computes_softmax(overlay, unit):
        yield from mem_c(overlay, unit, _LOOPS, (*_MEM_C, *_SOFTMAX), 2 * ROW_ARRAYS)
    elif unit.kind == "MemC":
        yield from mem_c(overlay, unit, _LOOPS, _MEM_C, ROW_ARRAYS)
    elif unit.kind in ("MeshA", "MeshB"):
        yield from mesh(overlay, unit, full=True)
    else:
        yield from LOGIC[unit.kind](overlay, unit)


def _sums(needs: Iterable[Need]) -> Mapping[str, int]:
    out: Counter[str] = Counter()
    for need in needs:
        out[need.resource] += need.amount
    return out
