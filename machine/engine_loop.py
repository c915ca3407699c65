"""The loop of the compiled engine: `ProcessNetwork.run` on arrays, in code that numba can compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .event_log import FIRST_WORD, LAST_WORD, OWN, ROOM
from .list_scheduling import (
    JOB_END,
    JOB_FIRST,
    JOB_GET,
    JOB_IN_ORDER,
    JOB_NEEDS,
    JOB_NEEDS_END,
    JOB_PATIENCE,
    JOB_RANK,
    JOB_SECONDS,
    JOB_STREAM,
)
from .steps import NEVER
from .traces import FORK, GETS, PEERS, PUTS, RATE, TIMES, WHOLE, WORDS, Floats, Ints

NOBODY = -1
"""No task: in the columns PARENT, READER and WRITER."""

ALIVE, PROCESS, PARENT, LANE, CHILDREN, QUEUED, FIRING, ROW, STOP, LEFT, ITEM = range(11)
"""Columns of the engine's task table. ITEM is used for processes, not for their lanes."""
CLOCK, BUSY, SLOWEST = range(3)
"""Columns of the table of task times, in seconds."""
FILLED, READER, WRITER, LAST = range(4)
TOKEN, TOKENS_END, TOKEN_PLACE, TOKEN_MASK = range(4, 8)
CREDIT, CREDITS_END, CREDIT_PLACE, CREDIT_MASK = range(8, 12)
"""Columns of the engine's channel table. LAST is the item that put last. Tokens and credits are ring buffers: next
entry, end, first place in the shared array, index mask."""
LOG_ROW, LOG_ITEM, LOG_BEFORE, LOG_BOUND = range(4)
"""Columns of the log, as in `EventLog`; `via` is held in the lowest two bits of LOG_BEFORE."""


def run(
    rows: Ints,
    duration: Floats,
    amounts: Floats,
    peers: npt.NDArray[np.uint32],
    at: npt.NDArray[np.uint32],
    items: npt.NDArray[np.uint32],
    bounds: Ints,
    capacity: Ints,
    rings: npt.NDArray[np.int64],
    slots: int,
    rates: int,
    log: Ints,
    log_start: Floats,
    arbiter: int,
    jobs: Ints,
    jobs_s: Floats,
    needs: Ints,
    queue: Ints,
    queue_at: Ints,
) -> Any:
    """Run traces to the end: `ProcessNetwork.run`, statement by statement, on arrays.

    Tasks are stepped in the same order, so firings get the same numbers. The process `arbiter` (-1 for none) takes its
    jobs in the order that `ListSchedulingProblem` defines.

    rows (rows, 7), amounts, peers, at, items, bounds, slots: as in `Traces`. duration: seconds of each row. capacity:
    words of each channel. rings (channels, 2): places of the ring buffers of its tokens and credits, powers of 2.
    rates: number of rates. log (firings, 4), log_start (firings,): filled with the columns LOG_ROW.. and the start in
    seconds; empty if the run is not recorded. jobs, jobs_s, needs, queue, queue_at: as `job_tables` returns them.

    Returns latency in seconds, number of tasks that have not ended, last firing of the critical path, busy seconds by
    process, amounts by rate, waits in seconds by channel (channels, 2: for words, for room), start clock and firing
    count by item, channel table (a row for each channel, columns FILLED.. above), task table (a row for each task,
    columns ALIVE.. above), and the jobs in the order taken.

    This is one function because every function that it calls would have to be compiled and cached too.
    """
    record = len(log) > 0
    processes = len(bounds) - 1
    size = processes + slots
    tasks = np.zeros((size, 11), np.int32)
    times = np.zeros((size, 3), np.float64)
    ready = np.empty(size + 1, np.int32)
    free = np.empty(slots + 1, np.int32)
    for i in range(slots):
        free[i] = size - 1 - i
    unused = slots
    for i in range(processes):
        tasks[i, ALIVE] = 1
        tasks[i, PROCESS] = i
        tasks[i, PARENT] = NOBODY
        tasks[i, QUEUED] = 1
        tasks[i, FIRING] = NEVER
        tasks[i, ITEM] = bounds[i] - 1
        ready[i] = i
    head, waiting = 0, processes
    alive = processes
    channels = np.zeros((len(capacity), 12), np.int32)
    token_at = credit_at = 0
    for c in range(len(capacity)):
        channels[c, READER] = channels[c, WRITER] = NOBODY
        channels[c, LAST] = NEVER
        channels[c, TOKEN_PLACE], channels[c, TOKEN_MASK] = token_at, rings[c, 0] - 1
        channels[c, CREDIT_PLACE], channels[c, CREDIT_MASK] = credit_at, rings[c, 1] - 1
        token_at += rings[c, 0]
        credit_at += rings[c, 1]
    tokens = np.empty((token_at, 2), np.int32)  # words, firing
    token_clocks = np.empty((token_at, 2), np.float64)  # first, last
    credits = np.empty((credit_at, 2), np.int32)  # words, firing
    credit_clocks = np.empty(credit_at, np.float64)  # freed
    for c in range(len(capacity)):
        place = channels[c, CREDIT_PLACE]
        credits[place, 0], credits[place, 1], credit_clocks[place] = capacity[c], NEVER, 0.0
        channels[c, CREDITS_END] = 1
    starts = np.empty(len(items), np.float64)
    counts = np.empty(len(items), np.int32)
    total = np.zeros(rates, np.float64)
    waits = np.zeros((len(capacity), 2), np.float64)
    count = 0
    latency, longest, last_firing = 0.0, -1.0, NEVER
    picked = np.empty(len(jobs), np.int32)
    done = np.zeros(len(jobs), np.bool_)
    next_job = queue_at.copy()
    chosen, job_end, parked = 0, bounds[arbiter] if arbiter >= 0 else 0, False

    while True:
        if not waiting:
            if not parked:
                break
            now = times[arbiter, CLOCK]
            put, put_start, put_since = -1, 0.0, 0.0
            get, get_start = -1, 0.0
            for c in range(len(capacity)):
                if next_job[c] == queue_at[c + 1]:
                    continue
                job = queue[next_job[c]]
                reader = channels[c, READER]
                if channels[c, FILLED] == 0 if jobs[job, JOB_GET] else reader == NOBODY:
                    continue
                possible = True
                for i in range(jobs[job, JOB_NEEDS], jobs[job, JOB_NEEDS_END]):
                    if not done[needs[i]]:
                        possible = False
                        break
                if not possible:
                    continue
                if jobs[job, JOB_GET]:
                    place = channels[c, TOKEN_PLACE] + (channels[c, TOKEN] & channels[c, TOKEN_MASK])
                    start = max(now, token_clocks[place, 0])
                    first = start == get_start and jobs[job, JOB_RANK] < jobs[get, JOB_RANK]
                    if get < 0 or start < get_start or first:
                        get, get_start = job, start
                else:
                    since = times[reader, CLOCK]
                    start = max(now, since)
                    earlier = since < put_since
                    if put >= 0 and jobs[job, JOB_IN_ORDER] and jobs[put, JOB_IN_ORDER]:
                        earlier = jobs[job, JOB_RANK] < jobs[put, JOB_RANK]
                    if put < 0 or start < put_start or (start == put_start and earlier):
                        put, put_start, put_since = job, start, since
            if get >= 0 and (put < 0 or get_start + jobs_s[get, JOB_SECONDS] <= put_start + jobs_s[get, JOB_PATIENCE]):
                job = get
            elif put >= 0:
                job = put
            else:
                break
            picked[chosen] = job
            chosen += 1
            done[job] = True
            next_job[jobs[job, JOB_STREAM]] += 1
            tasks[arbiter, ITEM] = jobs[job, JOB_FIRST] - 1
            job_end = jobs[job, JOB_END]
            parked = False
            tasks[arbiter, QUEUED] = 1
            tail = head
            ready[tail if tail <= size else tail - size - 1] = arbiter
            waiting = 1
        task = ready[head]
        head = head + 1 if head < size else 0
        waiting -= 1
        tasks[task, QUEUED] = 0
        process = tasks[task, PROCESS]
        item = tasks[process, ITEM]
        row, stop, left = tasks[task, ROW], tasks[task, STOP], tasks[task, LEFT]
        firing = tasks[task, FIRING]
        clock, busy = times[task, CLOCK], times[task, BUSY]
        while True:
            if row == stop:
                parent = tasks[task, PARENT]
                if parent == NOBODY:
                    if process == arbiter and item + 1 >= job_end and chosen < len(jobs):
                        parked = True
                        break
                    if item + 1 < (job_end if process == arbiter else bounds[process + 1]):
                        item += 1
                        tasks[task, ITEM] = item
                        starts[item] = clock
                        counts[item] = count
                        t = items[item]
                        row, stop = at[t], at[t + 1]
                        if row < stop:
                            left = rows[row, TIMES]
                        continue
                else:
                    if clock > times[parent, CLOCK]:
                        times[parent, CLOCK] = clock
                        tasks[parent, FIRING] = firing
                    times[parent, SLOWEST] = max(times[parent, SLOWEST], busy)
                    tasks[parent, CHILDREN] -= 1
                    if tasks[parent, CHILDREN] == 0:
                        times[parent, BUSY] += times[parent, SLOWEST]
                        times[parent, SLOWEST] = 0.0
                        tasks[parent, QUEUED] = 1
                        tail = head + waiting
                        ready[tail if tail <= size else tail - size - 1] = parent
                        waiting += 1
                    free[unused] = task
                    unused += 1
                tasks[task, ALIVE] = 0
                alive -= 1
                break
            gets, puts, peer = rows[row, GETS], rows[row, PUTS], rows[row, PEERS]
            if gets == FORK:
                tasks[task, CHILDREN] = puts
                for i in range(puts):
                    unused -= 1
                    lane = free[unused]
                    t = peers[peer + i]
                    tasks[lane, ALIVE] = 1
                    tasks[lane, PROCESS] = process
                    tasks[lane, PARENT] = task
                    tasks[lane, LANE] = i
                    tasks[lane, CHILDREN] = 0
                    tasks[lane, QUEUED] = 1
                    tasks[lane, FIRING] = firing
                    tasks[lane, ROW], tasks[lane, STOP] = at[t], at[t + 1]
                    if at[t] < at[t + 1]:
                        tasks[lane, LEFT] = rows[at[t], TIMES]
                    times[lane, CLOCK] = clock
                    times[lane, BUSY] = times[lane, SLOWEST] = 0.0
                    tail = head + waiting
                    ready[tail if tail <= size else tail - size - 1] = lane
                    waiting += 1
                alive += puts
                row += 1
                if row < stop:
                    left = rows[row, TIMES]
                break
            words, whole, rate = rows[row, WORDS], rows[row, WHOLE], rows[row, RATE]
            took, amount = duration[row], amounts[row]
            middle, final = peer + gets, peer + gets + puts
            while left:
                blocked = False
                for i in range(peer, middle):
                    c = peers[i]
                    if channels[c, FILLED] < words:
                        channels[c, READER] = task
                        blocked = True
                        break
                if not blocked:
                    for i in range(middle, final):
                        c = peers[i]
                        if capacity[c] - channels[c, FILLED] < words:
                            channels[c, WRITER] = task
                            blocked = True
                            break
                if blocked:
                    break
                # all words and room are available: compute the clocks
                start, before, via, awaited = clock, firing, OWN, 0
                finish, bound, late = 0.0, NEVER, 0
                for i in range(peer, middle):
                    c = peers[i]
                    channels[c, FILLED] -= words
                    token, mask, base = channels[c, TOKEN], channels[c, TOKEN_MASK], channels[c, TOKEN_PLACE]
                    place = base + (token & mask)
                    first, ended, opened = token_clocks[place, 0], token_clocks[place, 1], tokens[place, 1]
                    need = words
                    while tokens[place, 0] < need:  # gather
                        need -= tokens[place, 0]
                        token += 1
                        place = base + (token & mask)
                    if tokens[place, 0] > need:  # split
                        tokens[place, 0] -= need
                    else:
                        token += 1
                    channels[c, TOKEN] = token
                    last = token_clocks[place, 1]
                    if whole:
                        first = last
                    if first > start:
                        start, awaited = first, c
                        if whole:
                            before, via = tokens[place, 1], LAST_WORD
                        else:
                            before, via = opened, LAST_WORD if first == ended else FIRST_WORD
                    if last > finish:
                        finish, bound, late = last, tokens[place, 1], c
                for i in range(middle, final):
                    c = peers[i]
                    credit, mask, base = channels[c, CREDIT], channels[c, CREDIT_MASK], channels[c, CREDIT_PLACE]
                    need = words
                    while need:
                        place = base + (credit & mask)
                        piece = credits[place, 0]
                        if piece > need:
                            credits[place, 0] = piece - need
                            need = 0
                        else:
                            need -= piece
                            credit += 1
                        if credit_clocks[place] > start:
                            start, before, via, awaited = credit_clocks[place], credits[place, 1], ROOM, c
                    channels[c, CREDIT] = credit
                if via != OWN:
                    waits[awaited, 1 if via == ROOM else 0] += start - clock
                end = start + took
                if finish > end:
                    waits[late, 0] += finish - end
                    end = finish
                else:
                    bound = NEVER
                if record:
                    log[count, LOG_ROW], log[count, LOG_ITEM] = row, item
                    log[count, LOG_BEFORE], log[count, LOG_BOUND] = before * 4 + via, bound
                    log_start[count] = start
                    if end > longest:
                        longest, last_firing = end, count
                clock, firing = end, count
                count += 1
                busy += took
                total[rate] += amount
                for i in range(peer, middle):
                    c = peers[i]
                    place = channels[c, CREDIT_PLACE] + (channels[c, CREDITS_END] & channels[c, CREDIT_MASK])
                    channels[c, CREDITS_END] += 1
                    credits[place, 0], credits[place, 1], credit_clocks[place] = words, firing, end
                    other = channels[c, WRITER]
                    if other != NOBODY:
                        channels[c, WRITER] = NOBODY
                        if tasks[other, QUEUED] == 0:
                            tasks[other, QUEUED] = 1
                            tail = head + waiting
                            ready[tail if tail <= size else tail - size - 1] = other
                            waiting += 1
                first = end if whole else start
                for i in range(middle, final):
                    c = peers[i]
                    channels[c, FILLED] += words
                    channels[c, LAST] = item
                    place = channels[c, TOKEN_PLACE] + (channels[c, TOKENS_END] & channels[c, TOKEN_MASK])
                    channels[c, TOKENS_END] += 1
                    tokens[place, 0], tokens[place, 1] = words, firing
                    token_clocks[place, 0], token_clocks[place, 1] = first, end
                    other = channels[c, READER]
                    if other != NOBODY:
                        channels[c, READER] = NOBODY
                        if tasks[other, QUEUED] == 0:
                            tasks[other, QUEUED] = 1
                            tail = head + waiting
                            ready[tail if tail <= size else tail - size - 1] = other
                            waiting += 1
                left -= 1
            if left:
                break
            row += 1
            if row < stop:
                left = rows[row, TIMES]
        tasks[task, ROW], tasks[task, STOP], tasks[task, LEFT] = row, stop, left
        tasks[task, FIRING] = firing
        times[task, CLOCK], times[task, BUSY] = clock, busy
        latency = max(latency, clock)
    return (
        latency,
        alive,
        last_firing,
        times[:processes, BUSY].copy(),
        total,
        waits,
        starts,
        counts,
        channels,
        tasks,
        picked,
    )


def walk(log: Ints, at: int) -> tuple[npt.NDArray[np.int64], Ints]:
    """Walk back the critical path from firing `at`, as `EventLog.critical_path` does. log: (firings, 4), as `run` fills
    it.

    Returns the firings whose own duration counts, last to first, and for each how its successor depended on it (`via`):
    two vectors of equal length.
    """
    out = np.empty(16, np.int64)
    how = np.empty(16, np.int32)
    n, via = 0, OWN
    while at >= 0:
        if via != FIRST_WORD:
            if log[at, LOG_BOUND] >= 0:
                at, via = log[at, LOG_BOUND], LAST_WORD
                continue
            if n == len(out):
                out = np.concatenate((out, out))
                how = np.concatenate((how, how))
            out[n], how[n] = at, via
            n += 1
        at, via = log[at, LOG_BEFORE] >> 2, log[at, LOG_BEFORE] & 3
    return out[:n].copy(), how[:n].copy()
