"""The order of loads and stores on the one DDR channel, found by running the program (list scheduling).

The program runs once without the instruction path. Whenever DDR is free and no other unit can move, it is known exactly
which access each Mem waits for, and since when; DDR takes one of these. A store goes before the load whose unit has
waited longest if it delays that load by no more than the `DramPolicy` of its segment allows.

Dependencies are kept: accesses of one unit keep their order; a load comes behind the stores of the data that it reads,
a store behind the loads and stores of the data that it overwrites. Nothing but this list orders accesses through DDR.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..isa.fields import Record
from ..isa.layout import BLOCK, QUARTER
from ..isa.overlay import Overlay
from ..isa.work import Access, RowStore
from ..machine.description import UnitSpec
from ..machine.fast_engine import run_traces
from ..machine.jit import engine
from ..machine.list_scheduling import ListSchedulingProblem
from ..machine.plan import trace_workload
from ..machine.timing import RunTiming
from .binder import TileAccesses
from .chain import instructions, seconds_of
from .schedule import DramPolicy


@dataclass(frozen=True, eq=False)
class ListedOrder:
    """The result of list scheduling. accesses, mops: of the off-chip unit, in order. starts: when each mOP began:
    seconds, and a number that orders equal times. run: the run that found the order, without the instruction path."""

    accesses: list[Access | RowStore]
    mops: list[Record]
    starts: list[tuple[float, int]]
    run: RunTiming


@dataclass(frozen=True)
class Job:
    """An access that DDR takes as a whole: the data of one Mem uOP, or a piece of a store. rule: the policy of its
    segment. rank: lower ranks go first among accesses that are ready."""

    access: Access | RowStore
    rule: DramPolicy
    rank: int
    behind: tuple[int, ...] = ()
    """Numbers of the jobs that must come before it because of a drain."""


def list_accesses(
    tiles: Sequence[TileAccesses],
    loads: Mapping[str, Sequence[int]],
    issues: Mapping[str, Sequence[Any]],
    preloaded: Mapping[str, Sequence[Any]],
    overlay: Overlay,
    unit: UnitSpec,
    columns: Mapping[str, int],
) -> ListedOrder:
    """Find the order of the accesses of one off-chip unit by list scheduling.

    tiles: the accesses, with the policy of their segment. loads: numbers of elements that each uOP of a memory loads
    from `unit`, by memory. issues: uOPs of all other units that packets drive, by unit. preloaded: op lists, by unit.
    columns: numbers of the columns of the grid, by the memory that stores their results. Raises `DeadlockError` if the
    program cannot end with any order, `FieldError` for a number that a field of an instruction cannot hold,
    `UntraceableError` if data decide the steps of a unit."""
    jobs = list(_jobs(tiles, loads, columns))
    forms = {form.mop: form for form in overlay.formats if form.kind == unit.kind}
    mops = list(instructions(overlay, unit, [job.access for job in jobs]))
    uops = [list(forms[type(mop)].uops(mop, 0)) for mop in mops]
    ends = np.cumsum([len(u) for u in uops]).astype(np.int32)
    traces = trace_workload(
        overlay,
        {**issues, **overlay.unrolled(preloaded), unit.name: [uop for many in uops for uop in many]},
    )
    streams = {c.name: c.number for c in traces.net.channels}
    needs, needs_at = needs_of(jobs)
    stores = np.array([job.access.store for job in jobs], bool)
    ends_of = [(job.access.peer, unit.name) if job.access.store else (unit.name, job.access.peer) for job in jobs]
    names = [f"{source}->{sink}" for source, sink in ends_of]
    seconds = seconds_of(overlay, unit, "store")
    found = run_traces(
        traces,
        overlay,
        compiled=engine(),
        arbitration=ListSchedulingProblem(
            process=unit.name,
            first=np.concatenate([[0], ends[:-1]]).astype(np.int32),
            last=ends,
            stream=np.array([streams[n] for n in names], np.int32),
            get=stores,
            seconds=np.array([job.access.elements * 4 * seconds for job in jobs]),
            patience=np.array([job.rule.patience_us * 1e-6 for job in jobs]),
            rank=np.array([job.rank for job in jobs], np.int32),
            in_order=np.array([job.rule.in_order for job in jobs], bool),
            needs=needs,
            needs_at=needs_at,
        ),
    )
    begun, order = found.starts(unit.name), found.order
    firsts = np.concatenate([[0], ends[:-1]])
    return ListedOrder(
        [jobs[i].access for i in order], [mops[i] for i in order], [begun[at] for at in firsts[order]], found
    )


def _jobs(
    tiles: Sequence[TileAccesses], loads: Mapping[str, Sequence[int]], columns: Mapping[str, int]
) -> Iterator[Job]:
    """The accesses in the order of the tiles, cut into pieces that the unit may reorder."""
    uop_sizes = {unit: deque(sizes) for unit, sizes in loads.items()}
    at = 0
    stored: dict[str, int] = {}  # the last store of each unit; earlier ones come before it anyway
    drained: dict[str, tuple[int, ...]] = {}  # by unit that has not loaded since the last drain
    for tile in tiles:
        rule = tile.rule
        for load in tile.loads:
            for part in _load_pieces(load, uop_sizes[load.peer]):
                yield Job(part, rule, at, drained.pop(load.peer, ()))
                at += 1
        pieces: dict[str, int] = {}
        for access in tile.stores:
            for piece in _store_pieces(access, rule.store_blocks):
                turn = pieces.get(access.peer, 0)
                pieces[access.peer] = turn + 1
                # by columns of the grid, then by columns of its memories
                place = (columns[access.peer] * 64 + turn) * 8 if rule.by_columns else 0
                yield Job(piece, rule, (at << 10 if not rule.by_columns else (at - at % 64 << 10)) + place)
                stored[access.peer] = at
                at += 1
        if tile.drain:
            drained = dict.fromkeys(uop_sizes, tuple(stored.values()))


def _load_pieces(access: Access, uop_sizes: deque[int]) -> Iterator[Access]:
    """Cut a load where one uOP of the memory ends and the next begins; a uOP may also span several loads. uop_sizes:
    elements that the uOPs still load; changed in place."""
    left = access.elements
    done = 0
    while left:
        count = min(uop_sizes[0], left)
        if count == access.elements:
            yield access
        elif access.chunks == 1:
            yield access._replace(addr=access.addr + done, size=count)
        else:
            chunk, start = divmod(done, access.size)
            count = min(count, access.size - start)
            yield access._replace(addr=access.addr + chunk * access.stride + start, size=count, chunks=1, stride=0)
        uop_sizes[0] -= count
        if not uop_sizes[0]:
            uop_sizes.popleft()
        done += count
        left -= count


def _store_pieces(access: Access | RowStore, max_blocks: int) -> Iterator[Access | RowStore]:
    """Cut a store into contiguous pieces of at most `max_blocks` blocks, unless it is no larger than that. Kept rows
    stay together."""
    most = max_blocks * BLOCK
    if access.elements <= most or isinstance(access, RowStore):
        yield access
        return
    for chunk in range(access.chunks):
        for start in range(0, access.size, most):
            addr = access.addr + chunk * access.stride + start
            yield access._replace(addr=addr, size=min(most, access.size - start), chunks=1, stride=0)


def _ranges(access: Access | RowStore) -> Iterator[tuple[int, int]]:
    """The elements that an access touches, or may touch, as half-open ranges."""
    if isinstance(access, RowStore):
        yield access.span
        return
    for chunk in range(access.chunks):
        start = access.addr + chunk * access.stride
        yield start, start + access.size


def needs_of(jobs: Sequence[Job]) -> tuple[Any, Any]:
    """The dependencies of each job: earlier jobs on the same memory, if one of both stores, and the jobs in
    `Job.behind`. Returns two int32 arrays: the numbers of the jobs that each job needs, one job's list behind the
    other's, (n,), and where each list begins in it, (jobs + 1,)."""
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    needs: list[int] = []
    at = [0]
    # statistics of rows are quarter blocks, in memory of their own
    cell = QUARTER if any(isinstance(x.access, Access) and x.access.size % BLOCK for x in jobs) else BLOCK
    for number, job in enumerate(jobs):
        access = job.access
        predecessors = set(job.behind)
        for start, end in _ranges(access):
            for block in range(start // cell, end // cell):
                if block in writer:
                    predecessors.add(writer[block])
                if access.store:
                    predecessors.update(readers.pop(block, ()))
                    writer[block] = number
                else:
                    readers.setdefault(block, []).append(number)
        needs.extend(sorted(predecessors))
        at.append(len(needs))
    return np.array(needs, np.int32), np.array(at, np.int32)
