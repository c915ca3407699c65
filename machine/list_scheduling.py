"""The order of one process's work, found while the other processes run (list scheduling)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .traces import Floats, Ints, Traces


@dataclass(frozen=True, eq=False)
class ListSchedulingProblem:
    """Work of one process in an order that is yet to be found: jobs, of which it takes one after the other, each whole,
    always when no other process can go on without it. Times are exact: what the others are waiting for is known then.

    It takes the job whose stream has waited longest for words, or, among those that are `in_order`, the one of lowest
    rank; but first one that takes words from a stream, if that delays the other by no more than its patience. Jobs of
    one stream keep their order.

    first, last: items of the process (from 0) at which each job begins and ends. stream: the number of its stream. get:
    whether it takes from it. seconds: how long it is. patience: in seconds. rank: which of several that could begin at
    the same time goes first. needs: the jobs that must be done before it, those of job i from needs_at[i] to
    needs_at[i + 1].
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
"""Columns of the table of jobs."""
JOB_SECONDS, JOB_PATIENCE = range(2)
"""Columns of the table of their times."""


def job_tables(traces: Traces, given: ListSchedulingProblem | None) -> tuple[int, Ints, Floats, Ints, Ints, Ints]:
    """An arbitration for the engine: process, jobs, their times, needs, and the jobs of each stream in turn."""
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
