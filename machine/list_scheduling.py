"""List scheduling: the compiled engine decides the order of one process's jobs while the other processes run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .traces import Floats, Ints, Traces


@dataclass(frozen=True, eq=False)
class ListSchedulingProblem:
    """Jobs of one process, executed one at a time in an order that the engine decides.

    The process takes its next job when every other process is blocked, so it is known exactly what they wait for. A
    job that puts can be taken if a reader waits for its stream, a job that gets if its stream holds words. Of the puts
    the engine takes the one that can begin first; at the same time, the one whose reader has waited longest, or among
    those `in_order` the one of lowest rank. Before that put goes the get that can begin first (at the same time, of
    lowest rank), if it delays the put by no more than its `patience`. Jobs of one stream keep their order.

    Arrays with one element per job: first, last: items of the process (from 0) at which it begins and ends. stream:
    index of its channel. get: it gets from the stream; otherwise it puts. seconds: its duration. patience: of a get:
    seconds by which it may delay a put. rank: the lower goes first. in_order: see above. needs_at: the jobs that must
    be done before job i are needs[needs_at[i]:needs_at[i + 1]].
    """

    process: str
    first: Ints
    last: Ints
    stream: Ints
    get: npt.NDArray[np.bool_]
    seconds: Floats
    patience: Floats
    rank: Ints
    in_order: npt.NDArray[np.bool_]
    needs: Ints
    needs_at: Ints


JOB_FIRST, JOB_END, JOB_STREAM, JOB_GET, JOB_RANK, JOB_NEEDS, JOB_NEEDS_END, JOB_IN_ORDER = range(8)
"""Columns of the engine's job table."""
JOB_SECONDS, JOB_PATIENCE = range(2)
"""Columns of the engine's table of job times, in seconds."""


def job_tables(traces: Traces, given: ListSchedulingProblem | None) -> tuple[int, Ints, Floats, Ints, Ints, Ints]:
    """Convert a problem to the engine's arrays.

    Returns the index of the process (-1 without a problem), the job table (jobs, 8), the table of job times in seconds
    (jobs, 2), `needs`, the numbers of the jobs sorted by stream, and the position in those at which each stream begins
    (streams + 1). Raises `ValueError` if the network has no such process.
    """
    streams = len(traces.net.channels)
    if given is None:
        none = np.zeros(0, np.int32)
        return -1, np.zeros((0, 8), np.int32), np.zeros((0, 2)), none, none, np.zeros(streams + 1, np.int32)
    process = list(traces.net.progress).index(given.process)
    base = traces.bounds[process]
    columns = (
        given.first + base,
        given.last + base,
        given.stream,
        given.get,
        given.rank,
        given.needs_at[:-1],
        given.needs_at[1:],
        given.in_order,
    )
    queue = np.argsort(given.stream, kind="stable").astype(np.int32)
    return (
        process,
        np.stack(columns, axis=1).astype(np.int32),
        np.stack((given.seconds, given.patience), axis=1),
        given.needs.astype(np.int32),
        queue,
        np.searchsorted(given.stream[queue], np.arange(streams + 1)).astype(np.int32),
    )
