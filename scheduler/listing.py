"""The order of loads and stores on the one DDR channel, found by running the program (list scheduling).

The machine without its instruction path is run once; whenever DDR is free and nothing else can move without it, what
each Mem has been waiting for, and since when, is known exactly, and DDR takes one of these. A store goes before the
load whose unit has waited longest if it delays that load by no more than the `DramPolicy` of its segment allows.

What may not be exchanged: accesses of one unit keep their order; a load comes behind the stores that write what it
reads, a store behind the loads and stores of what it overwrites, because accesses through DDR are ordered by nothing
but this list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..isa.layout import BLOCK
from ..isa.overlay import Overlay
from ..isa.overlays.xnn.formats import Ddr
from ..machine.fast_engine import run_traces
from ..machine.jit import engine
from ..machine.list_scheduling import ListSchedulingProblem
from ..machine.timing import Timing
from ..machine.traces import trace
from .order import BLOCK_UNITS, Access, Tile
from .schedule import DramPolicy


@dataclass(frozen=True, eq=False)
class Listed:
    """The DDR mOPs in the order found, when each began, and the run that found it, without the instruction path."""

    mops: list[Ddr]
    starts: list[tuple[float, int]]
    run: Timing


@dataclass(frozen=True)
class _Job:
    """An access that DDR takes whole: what one Mem uOP loads, or a piece of what one stores."""

    access: Access
    rule: DramPolicy
    rank: int
    behind: tuple[int, ...] = ()
    """Numbers of jobs that a drain puts before it."""


def list_accesses(
    tiles: Sequence[Tile],
    loads: Mapping[str, Sequence[int]],
    issues: Mapping[str, Sequence[Any]],
    preloaded: Mapping[str, Sequence[Any]],
    overlay: Overlay,
) -> Listed:
    """The order in which DDR takes its accesses.

    loads: the blocks that each uOP of a Mem loads from DDR, by unit. issues: every other unit's uOPs. Raises
    `DeadlockError` where the program cannot go on, whatever DDR does.
    """
    jobs = list(_jobs(tiles, loads))
    form = overlay.format_of("DDR")
    mops = [job.access.mop() for job in jobs]
    uops = [list(form.uops(mop, 0)) for mop in mops]
    ends = np.cumsum([len(u) for u in uops]).astype(np.int32)
    traces = trace(
        overlay,
        {**issues, **preloaded, "DDR": [uop for many in uops for uop in many]},
    )
    streams = {c.name: c.number for c in traces.net.channels}
    needs, needs_at = _needs(jobs)
    stores = np.array([job.access.store for job in jobs], bool)
    names = [f"{job.access.peer}->DDR" if job.access.store else f"DDR->{job.access.peer}" for job in jobs]
    seconds = overlay.seconds["ddr_write_gbs"]
    found = run_traces(
        traces,
        overlay,
        compiled=engine(),
        arbitration=ListSchedulingProblem(
            process="DDR",
            first=np.concatenate([[0], ends[:-1]]).astype(np.int32),
            last=ends,
            stream=np.array([streams[n] for n in names], np.int32),
            get=stores,
            seconds=np.array([job.access.blocks * job.access.chunks * BLOCK * 4 * seconds for job in jobs]),
            patience=np.array([job.rule.patience_us * 1e-6 for job in jobs]),
            rank=np.array([job.rank for job in jobs], np.int32),
            in_order=np.array([job.rule.in_order for job in jobs], bool),
            needs=needs,
            needs_at=needs_at,
        ),
    )
    begun, order = found.starts("DDR"), found.order
    firsts = np.concatenate([[0], ends[:-1]])
    return Listed([mops[i] for i in order], [begun[at] for at in firsts[order]], found)


def _jobs(tiles: Sequence[Tile], loads: Mapping[str, Sequence[int]]) -> Iterator[_Job]:
    """Accesses in the order of the tiles, cut to what DDR may choose from."""
    wanted = {unit: deque(blocks) for unit, blocks in loads.items()}
    at = 0
    stored: dict[str, int] = {}  # the last store of each unit, which keeps the order of its own
    drained: dict[str, tuple[int, ...]] = {}  # by unit that has not loaded since the last drain
    for tile in tiles:
        rule = tile.rule
        for access in tile.loads:
            for piece in _as_loaded(access, wanted[access.peer]):
                yield _Job(piece, rule, at, drained.pop(access.peer, ()))
                at += 1
        pieces: dict[str, int] = {}
        for access in tile.stores:
            for piece in _as_stored(access, rule.store_blocks):
                turn = pieces.get(access.peer, 0)
                pieces[access.peer] = turn + 1
                # the left half of the columns is in the even MemCs
                place = (int(access.peer[-1]) % 2 * 64 + turn) * 8 if rule.by_columns else 0
                yield _Job(piece, rule, (at << 10 if not rule.by_columns else (at - at % 64 << 10)) + place)
                stored[access.peer] = at
                at += 1
        if tile.drain:
            drained = dict.fromkeys(wanted, tuple(stored.values()))


def _as_loaded(access: Access, wanted: deque[int]) -> Iterator[Access]:
    """Cut where one uOP of the Mem ends and the next begins. A uOP may take several accesses."""
    left = access.blocks * access.chunks
    done = 0
    while left:
        most = min(wanted[0], left)
        if most == access.blocks * access.chunks:
            yield access
        elif access.chunks == 1:
            yield access._replace(addr=access.addr + done * BLOCK_UNITS, blocks=most)
        else:
            chunk, start = divmod(done, access.blocks)
            most = min(most, access.blocks - start)
            addr = access.addr + (chunk * access.stride + start) * BLOCK_UNITS
            yield access._replace(addr=addr, blocks=most, chunks=1, stride=0)
        wanted[0] -= most
        if not wanted[0]:
            wanted.popleft()
        done += most
        left -= most


def _as_stored(access: Access, most: int) -> Iterator[Access]:
    """Pieces of at most so many blocks, contiguous where it is not taken whole."""
    if access.blocks * access.chunks <= most:
        yield access
        return
    for chunk in range(access.chunks):
        for start in range(0, access.blocks, most):
            addr = access.addr + (chunk * access.stride + start) * BLOCK_UNITS
            yield access._replace(addr=addr, blocks=min(most, access.blocks - start), chunks=1, stride=0)


def _needs(jobs: Sequence[_Job]) -> tuple[Any, Any]:
    """For each access those before it that touch the same memory, one of the two being a store, or that a drain puts
    before it: a list of all, and where each one's begin."""
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    needs: list[int] = []
    at = [0]
    for number, job in enumerate(jobs):
        access = job.access
        first = access.addr // BLOCK_UNITS
        mine = set(job.behind)
        for chunk in range(access.chunks):
            start = first + chunk * access.stride
            for block in range(start, start + access.blocks):
                if block in writer:
                    mine.add(writer[block])
                if access.store:
                    mine.update(readers.pop(block, ()))
                    writer[block] = number
                else:
                    readers.setdefault(block, []).append(number)
        needs.extend(sorted(mine))
        at.append(len(needs))
    return np.array(needs, np.int32), np.array(at, np.int32)
