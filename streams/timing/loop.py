"""The loop that evaluates beats on arrays, in code that numba can compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

BEAT, LOOP, NEXT, END = range(4)
"""Kinds of instructions. BEAT: first operation, end of operations, cycles. LOOP: counter, iterations. NEXT: counter,
first instruction of the body. END: of an execution."""

PC, CLOCK, EXECUTION, BUSY = range(4)
"""Columns of the table of instances. CLOCK: end of the last beat."""

PUT, GOT, SEEN, LEFT, PEAK, EMPTY, FULL = range(7)
"""Columns of the table of streams: elements put and got; puts for which the slots in use are counted, the slots freed
when the last of them began, and the most in use (not of endless streams); cycles waited for a token, and for a slot."""

VISIBLE, BEGUN, FREED = range(3)
"""Rows of the ring buffers: when an element becomes visible, when the beat of its put began, when its slot is free."""


def run(
    rows: Ints,
    ops: Ints,
    nesting: Ints,
    base: Ints,
    first: Ints,
    writer: Ints,
    reader: Ints,
    packing: Ints,
    depth: Ints,
    ring: Ints,
    times: Ints,
    executions: int,
    counters: Ints,
    instances: Ints,
    streams: Ints,
    ends: Ints,
    queue: Ints,
    skips: bool,
    own: Ints,
    limits: Ints,
) -> Any:
    """Run all instances until each has ended or waits. Return the number of instances that have ended, the number of
    periods skipped, the number of beats walked, and whether the run was stopped by a limit. Times are in clock cycles.

    rows, ops, nesting, base, first, writer, reader, packing: as for `Bytecode`. depth: [streams], in elements; 0 for no
    limit. ring: [streams, 3], for the ring buffer of each stream its first place in `times`, its size (a power of two)
    less 1, and the elements that fit on it; a put on a stream without limit that finds the buffer full is done later,
    without effect on times. times: [3, places], the ring buffers, with the rows `VISIBLE`, `BEGUN` and `FREED`.
    executions: how many, one right after another. own: [instances], the cycles of all beats of one execution. limits:
    [executions], the cycle after which no instance may end that execution, or no limits at all; the run stops once it
    is sure that one does. skips: whether equal periods are skipped, which changes no result.

    State, which is changed: counters: [base[-1]], of loops. instances: [instances, 4], with the columns `PC` and so on.
    streams: [streams, 7], with the columns `PUT` and so on. ends: [executions, instances], the cycle in which each
    ends. queue: the instances that may move.

    Instances move in generations: each of the queue goes as far as it can, and those that it lets move are the next
    queue. What the next generation does follows from instructions, counters, tokens and the queue, and from times
    relative to each other. If all of these are as they were some generations ago, but for one loop counter in each
    instance, then what has happened since happens again, later by the same time, until one of these loops ends. If the
    writer of a stream without limit advances no faster than its reader falls behind, and the reader never waits for it,
    each of the two may have its own time from one period to the next.

    This is one function because every function that it calls would have to be compiled and cached too."""
    count, links = len(instances), len(streams)
    now = queue.copy()
    length = len(now)
    after = np.empty(count, np.int64)
    queued = np.zeros(count, np.bool_)
    for i in range(length):
        queued[now[i]] = True
    done = 0
    for k in range(count):
        if instances[k, EXECUTION] >= executions:
            done += 1
    # Two snapshots: one begins anew after a skip, for short periods; one does not, for those around them.
    taken = np.zeros(2, np.bool_)
    power, age = np.ones(2, np.int64), np.zeros(2, np.int64)
    old_counters = np.empty((2, len(counters)), np.int64)
    old_instances = np.empty((2, count, instances.shape[1]), np.int64)
    old_streams = np.empty((2, links, streams.shape[1]), np.int64)
    old_times = np.empty((2, 3, times.shape[1] if skips else 0), np.int64)
    old_queue = np.empty((2, count), np.int64)
    old_length = np.zeros(2, np.int64)
    free = np.empty(count, np.int64)
    skipped = walked = 0
    while length:
        fresh = 0
        for i in range(length):
            k = now[i]
            queued[k] = False
            pc, clock = instances[k, PC], instances[k, CLOCK]
            busy, execution = instances[k, BUSY], instances[k, EXECUTION]
            while execution < executions:
                kind = rows[pc, 0]
                if kind == BEAT:
                    begin, end = rows[pc, 1], rows[pc, 2]
                    start, why, blocked = clock, -1, False
                    for o in range(begin, end):
                        s = ops[o] >> 1
                        place, mask = ring[s, 0], ring[s, 1]
                        if ops[o] & 1:
                            n = streams[s, PUT]
                            if n - streams[s, GOT] >= ring[s, 2]:
                                blocked = True
                                break
                            n -= depth[s]
                            if depth[s] and n >= 0 and times[FREED, place + (n & mask)] > start:
                                start, why = times[FREED, place + (n & mask)], o
                        else:
                            n, p = streams[s, GOT], packing[s]
                            if p > 1:
                                n += p - 1 - n % p
                            if streams[s, PUT] <= n:
                                blocked = True
                                break
                            if times[VISIBLE, place + (n & mask)] > start:
                                start, why = times[VISIBLE, place + (n & mask)], o
                    if blocked:
                        break
                    if why >= 0:
                        streams[ops[why] >> 1, FULL if ops[why] & 1 else EMPTY] += start - clock
                    walked += 1
                    busy += rows[pc, 3]
                    clock = start + rows[pc, 3]
                    for o in range(begin, end):
                        s = ops[o] >> 1
                        place, mask = ring[s, 0], ring[s, 1]
                        if ops[o] & 1:
                            n = streams[s, PUT]
                            times[VISIBLE, place + (n & mask)] = clock
                            times[BEGUN, place + (n & mask)] = start
                            streams[s, PUT] = n + 1
                            got = streams[s, GOT]
                            if depth[s] and got and times[FREED, place + ((got - 1) & mask)] > start:
                                left = streams[s, LEFT]
                                while times[FREED, place + (left & mask)] <= start:
                                    left += 1
                                streams[s, SEEN], streams[s, LEFT] = n + 1, left
                                if n + 1 - left > streams[s, PEAK]:
                                    streams[s, PEAK] = n + 1 - left
                            peer = reader[s]
                        else:
                            n = streams[s, GOT]
                            seen, left = streams[s, SEEN], streams[s, LEFT]
                            while depth[s] and seen < streams[s, PUT] and times[BEGUN, place + (seen & mask)] < clock:
                                begun = times[BEGUN, place + (seen & mask)]
                                while left < n and times[FREED, place + (left & mask)] <= begun:
                                    left += 1
                                seen += 1
                                if seen - left > streams[s, PEAK]:
                                    streams[s, PEAK] = seen - left
                            streams[s, SEEN], streams[s, LEFT] = seen, left
                            times[FREED, place + (n & mask)] = clock
                            streams[s, GOT] = n + 1
                            peer = writer[s]
                        if not queued[peer] and peer != k:
                            queued[peer] = True
                            after[fresh] = peer
                            fresh += 1
                    pc += 1
                elif kind == LOOP:
                    counters[base[k] + rows[pc, 1]] = rows[pc, 2]
                    pc += 1
                elif kind == NEXT:
                    counter = base[k] + rows[pc, 1]
                    counters[counter] -= 1
                    pc = rows[pc, 2] if counters[counter] > 0 else pc + 1
                else:
                    ends[execution, k] = clock
                    if clock > limits[execution]:
                        return done, skipped, walked, True
                    execution += 1
                    if execution < executions:
                        pc = first[k]
                    else:
                        done += 1
            instances[k, PC], instances[k, CLOCK] = pc, clock
            instances[k, BUSY], instances[k, EXECUTION] = busy, execution
            if execution < executions and clock + own[k] * (execution + 1) - busy > limits[execution]:
                return done, skipped, walked, True
        now, after = after, now
        length = fresh
        if not skips or not length:
            continue

        for which in range(2):
            same = taken[which] and length == old_length[which]
            if same:
                for i in range(length):
                    if now[i] != old_queue[which, i]:
                        same = False
                        break
            most = -1
            if same:
                for k in range(count):
                    if (
                        instances[k, PC] != old_instances[which, k, PC]
                        or instances[k, EXECUTION] != old_instances[which, k, EXECUTION]
                    ):
                        same = False
                        break
                    free[k] = -1
                    if instances[k, EXECUTION] >= executions:
                        continue
                    for c in range(base[k], base[k] + nesting[instances[k, PC]]):
                        less = old_counters[which, c] - counters[c]
                        if less and free[k] >= 0:
                            same = False
                            break
                        if less:
                            free[k] = c
                            periods = (counters[c] - 1) // less
                            if most < 0 or periods < most:
                                most = periods
                    if not same:
                        break
            if same and most > 0:
                for s in range(links):
                    moved = streams[s, PUT] - old_streams[which, s, PUT]
                    taken_out = streams[s, GOT] - old_streams[which, s, GOT]
                    if moved == 0 and taken_out == 0:
                        continue
                    w, r = writer[s], reader[s]
                    ahead, behind = instances[w, CLOCK], instances[r, CLOCK]
                    old_ahead, old_behind = old_instances[which, w, CLOCK], old_instances[which, r, CLOCK]
                    later, later_read = ahead - old_ahead, behind - old_behind
                    drifts = later != later_read
                    seen = streams[s, SEEN] - old_streams[which, s, SEEN]
                    left = streams[s, LEFT] - old_streams[which, s, LEFT]
                    waited = streams[s, EMPTY] != old_streams[which, s, EMPTY]
                    same = moved == taken_out and moved % packing[s] == 0
                    if same and drifts:
                        same = depth[s] == 0 and later < later_read and not waited
                    elif same:
                        same = depth[s] == 0 or (seen == moved and left == moved)
                    if not same:
                        break
                    place, mask = ring[s, 0], ring[s, 1]
                    inside = streams[s, PUT] - streams[s, GOT]
                    used = min(depth[s] - inside, streams[s, GOT]) if depth[s] else 0
                    for e in range(-used, inside):
                        at = place + ((streams[s, GOT] + e) & mask)
                        before = place + ((old_streams[which, s, GOT] + e) & mask)
                        if e >= 0:
                            a, b = times[VISIBLE, at], old_times[which, VISIBLE, before]
                            if a != b + later and (drifts or a > behind or b > old_behind):
                                same = False
                                break
                            a, b = times[BEGUN, at], old_times[which, BEGUN, before]
                            if depth[s] and a != b + later and (a > behind or b > old_behind):
                                same = False
                                break
                        else:
                            a = times[FREED, at]
                            b = old_times[which, FREED, before] if old_streams[which, s, GOT] + e >= 0 else -1
                            if a != b + later and (a > ahead or b > old_ahead):
                                same = False
                                break
                    if not same:
                        break
            if same and most > 0:
                skipped += most
                for s in range(links):
                    streams[s, EMPTY] += most * (streams[s, EMPTY] - old_streams[which, s, EMPTY])
                    streams[s, FULL] += most * (streams[s, FULL] - old_streams[which, s, FULL])
                    if streams[s, PUT] == old_streams[which, s, PUT]:
                        continue
                    w, r = writer[s], reader[s]
                    later = most * (instances[w, CLOCK] - old_instances[which, w, CLOCK])
                    later_read = most * (instances[r, CLOCK] - old_instances[which, r, CLOCK])
                    for at in range(ring[s, 0], ring[s, 0] + ring[s, 1] + 1):
                        times[VISIBLE, at] += later
                        times[BEGUN, at] += later
                        times[FREED, at] += later_read
                for k in range(count):
                    instances[k, CLOCK] += most * (instances[k, CLOCK] - old_instances[which, k, CLOCK])
                    instances[k, BUSY] += most * (instances[k, BUSY] - old_instances[which, k, BUSY])
                    if free[k] >= 0:
                        counters[free[k]] -= most * (old_counters[which, free[k]] - counters[free[k]])
                taken[0] = False
                power[0], age[0] = 1, 0
                if which == 0:
                    continue
            age[which] += 1
            if not taken[which] or age[which] >= power[which]:
                taken[which] = True
                age[which] = 0
                power[which] *= 2
                old_counters[which] = counters
                old_instances[which] = instances
                old_streams[which] = streams
                for s in range(links):
                    inside = streams[s, PUT] - streams[s, GOT]
                    used = min(depth[s] - inside, streams[s, GOT]) if depth[s] else 0
                    for e in range(streams[s, GOT] - used, streams[s, PUT]):
                        at = ring[s, 0] + (e & ring[s, 1])
                        old_times[which, VISIBLE, at] = times[VISIBLE, at]
                        old_times[which, BEGUN, at] = times[BEGUN, at]
                        old_times[which, FREED, at] = times[FREED, at]
                old_length[which] = length
                for i in range(length):
                    old_queue[which, i] = now[i]
    return done, skipped, walked, False
