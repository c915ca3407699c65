"""The order of loads and stores on DDR, found by running the program (list scheduling, `scheduler/listing.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from ...isa.fields import Record
from ...isa.overlay import Overlay
from ...isa.overlays.xnn2.emission import Emission
from ...isa.work import Access
from ...machine.fast_engine import run_traces
from ...machine.jit import engine
from ...machine.list_scheduling import ListSchedulingProblem
from ...machine.plan import trace_workload
from ...machine.timing import RunTiming
from ..listing import Job, needs_of
from ..pack import Starts, issued, starts_of
from ..schedule import DramPolicy

RULE = DramPolicy(patience_us=0.0)
"""DDR stores only while no unit waits for a load. No program that was measured gets faster if a store may delay one."""


@dataclass(frozen=True, eq=False)
class Ordered:
    """The order of the accesses of the bank of activations.

    unit: the name of the unit of that bank. mops: the mOPs of that unit, in order. order: the indices of the accesses
    (`Emission.accesses`), in order. run: the run that found the order, without the instruction path. starts: when each
    mOP of each unit began, in seconds.
    """

    unit: str
    mops: tuple[Record, ...]
    order: Sequence[int]
    run: RunTiming
    starts: Starts


def order_ddr(
    work: Emission,
    sequences: Mapping[str, Sequence[Record]],
    preloaded: Mapping[str, Sequence[Any]],
    overlay: Overlay,
) -> Ordered:
    """Order the accesses of a program by list scheduling. work: the work of all units. sequences: the mOPs of all units
    but that of the bank of activations, by unit. preloaded: op lists, by unit. overlay: of row lanes. Raises
    `DeadlockError` if the program cannot end with any order."""
    assert overlay.lanes is not None
    accesses, bank = work.accesses, overlay.lanes.activations
    (ddr,) = (unit.name for unit in overlay.units if unit.bank == bank)
    uops, firsts = issued(overlay, sequences)
    mops = work.moves(accesses)
    form = overlay.format_of(ddr)
    of_ddr = [list(form.uops(mop, 0)) for mop in mops]
    ends = np.cumsum([len(u) for u in of_ddr]).astype(np.int32)
    before = np.concatenate([[0], ends[:-1]]).astype(np.int32)
    traces = trace_workload(overlay, {**uops, **overlay.unrolled(preloaded), ddr: [u for many in of_ddr for u in many]})
    streams = {c.name: c.number for c in traces.net.channels}
    needs, needs_at = needs_of(list(jobs(accesses)))
    names = [f"{a.peer}->{ddr}" if a.store else f"{ddr}->{a.peer}" for a in accesses]
    seconds = overlay.seconds[str(overlay.capability_of(ddr, "store").rate)]
    found = run_traces(
        traces,
        overlay,
        compiled=engine(),
        arbitration=ListSchedulingProblem(
            process=ddr,
            first=before,
            last=ends,
            stream=np.array([streams[n] for n in names], np.int32),
            get=np.array([a.store for a in accesses], bool),
            seconds=np.array([a.elements * 4 * seconds for a in accesses]),
            patience=np.full(len(accesses), RULE.patience_us * 1e-6),
            rank=np.arange(len(accesses), dtype=np.int32),
            in_order=np.zeros(len(accesses), bool),
            needs=needs,
            needs_at=needs_at,
        ),
    )
    begun, order = found.starts(ddr), found.order
    starts: Starts = {**starts_of(found, firsts), ddr: [begun[at] for at in before[order]]}
    return Ordered(ddr, tuple(mops[i] for i in order), order, found, starts)


def jobs(accesses: Sequence[Access]) -> Iterator[Job]:
    """The accesses as jobs of list scheduling, each with the numbers of the accesses that must come before it.

    A load of rows comes after the store that was added last before it. The first load of weights comes after the first
    loads of rows, because the first product waits for those. Other accesses may come in any order.
    """
    first_rows = tuple(range(len(list(takewhile(_brings_rows, accesses)))))
    behind: dict[bool, tuple[int, ...]] = {False: first_rows, True: ()}
    """What the next access must be behind: one that brings rows, and any other load."""
    for number, access in enumerate(accesses):
        brings_rows = _brings_rows(access)
        yield Job(access, RULE, number, () if access.store else behind[brings_rows])
        if access.store:
            behind[True] = (number,)
        elif not brings_rows:
            behind[False] = ()


def _brings_rows(access: Access) -> bool:
    return access.peer.startswith("TIn")
