"""Random small programs: the check's verdict against an exploration of every interleaving and every outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from rsn.streams.check import check
from rsn.tests.effort import cases, in_full, sampled

pytestmark = pytest.mark.long

Step = tuple[str, int]
"""("put" or "get", stream)."""


@dataclass(frozen=True)
class Loop:
    times: int
    body: tuple[Item, ...]


@dataclass(frozen=True)
class Branch:
    arms: tuple[tuple[Item, ...], tuple[Item, ...]]


Item = Step | Loop | Branch


def body_of(random: Random, ends: list[Step], nesting: int, trips: tuple[int, ...], arms: bool) -> tuple[Item, ...]:
    """Operations on the streams that a task has an end of. trips: of loops. arms: with branches on data."""
    items: list[Item] = []
    for _ in range(random.randint(1, 3)):
        kind = random.random()
        if nesting and kind < 0.35:
            items.append(Loop(random.choice(trips), body_of(random, ends, nesting - 1, trips, arms)))
        elif arms and nesting and kind < 0.5:
            arm = body_of(random, ends, 0, trips, arms)
            other = (
                tuple(random.sample(arm, len(arm))) if random.random() < 0.8 else body_of(random, ends, 0, trips, arms)
            )
            items.append(Branch((arm, other)))
        else:
            items.append(random.choice(ends))
    return tuple(items)


def program_of(
    random: Random, trips: tuple[int, ...] = (1, 2, 3), arms: bool = True
) -> tuple[list[int], list[tuple[Item, ...]]]:
    """Depths of the streams, and the body of each task. Every stream has one writer and one reader."""
    tasks = random.randint(2, 3)
    ends: list[list[Step]] = [[] for _ in range(tasks)]
    depths = []
    for stream in range(random.randint(1, 3)):
        writer, reader = random.sample(range(tasks), 2)
        ends[writer].append(("put", stream))
        ends[reader].append(("get", stream))
        depths.append(random.randint(1, 3))
    bodies = [body_of(random, mine, 2, trips, arms) if mine else () for mine in ends]
    if random.random() < 0.8:
        bodies = balanced(bodies, ends, len(depths))
    return depths, bodies


def balanced(bodies: list[tuple[Item, ...]], ends: list[list[Step]], streams: int) -> list[tuple[Item, ...]]:
    """Put what is missing for as many puts as gets at the end or the beginning of the task that has that end."""
    counts = Counter(step for body in bodies for step in first_outcome(body))
    out = list(bodies)
    for stream in range(streams):
        more = counts["put", stream] - counts["get", stream]
        step = ("get" if more > 0 else "put", stream)
        k = next(k for k, mine in enumerate(ends) if step in mine)
        missing: tuple[Item, ...] = (Loop(abs(more), (step,)),) if more else ()
        out[k] = out[k] + missing if stream % 2 else missing + out[k]
    return out


def first_outcome(body: tuple[Item, ...]) -> list[Step]:
    steps: list[Step] = []
    for item in body:
        if isinstance(item, Loop):
            steps += first_outcome(item.body) * item.times
        elif isinstance(item, Branch):
            steps += first_outcome(item.arms[0])
        else:
            steps.append(item)
    return steps


def source_of(depths: list[int], bodies: list[tuple[Item, ...]]) -> str:
    lines = ["from rsn.streams import *"]
    lines += [f"s{stream}: Stream[i32, {depth}]" for stream, depth in enumerate(depths)]
    for k, body in enumerate(bodies):
        lines += ["@task(mapping=[1])", f"def t{k}():", *(written(body, "    ") or ["    pass"])]
    return "\n".join(lines)


def written(body: tuple[Item, ...], margin: str) -> list[str]:
    lines: list[str] = []
    for item in body:
        if isinstance(item, Loop):
            lines += [f"{margin}for i in range({item.times}):", *written(item.body, margin + "    ")]
        elif isinstance(item, Branch):
            lines += [f"{margin}if data():", *written(item.arms[0], margin + "    ")]
            lines += [f"{margin}else:", *written(item.arms[1], margin + "    ")]
        else:
            kind, stream = item
            lines.append(f"{margin}s{stream}.put(1)" if kind == "put" else f"{margin}use(s{stream}.get())")
    return lines


def verdict(
    depths: list[int], bodies: list[tuple[Item, ...]], stuck: Callable[[list[int], list[tuple[Item, ...]]], bool]
) -> str:
    """The verdict, from counts and from a run that says whether some task waits for ever."""
    found = set()
    for body in bodies:
        found |= {not even(item) for item in body}
    if True in found:
        return "join"
    total = Counter(step for body in bodies for step in first_outcome(body))
    if any(total["get", s] > total["put", s] for s in range(len(depths))):
        return "starved"
    if any(total["put", s] > total["get", s] for s in range(len(depths))):
        return "leak"
    if not stuck(depths, bodies):
        return ""
    endless = [max(1, total["put", s]) for s in range(len(depths))]
    return "deadlock" if stuck(endless, bodies) else "depth"


def even(item: Item) -> bool:
    """Whether the arms of all branches in it have equal counts."""
    if isinstance(item, Loop):
        return all(map(even, item.body))
    if isinstance(item, Branch):
        return Counter(first_outcome(item.arms[0])) == Counter(first_outcome(item.arms[1]))
    return True


def stuck(depths: list[int], bodies: list[tuple[Item, ...]]) -> bool:
    """Whether some interleaving and some outcome reach a state in which nobody can move and not all have ended."""
    start = (tuple(bodies), (0,) * len(depths))
    seen, todo = {start}, [start]
    while todo:
        left, fill = todo.pop()
        moves = []
        for k, body in enumerate(left):
            if not body:
                continue
            item, rest = body[0], body[1:]
            after: list[tuple[tuple[Item, ...], tuple[int, ...]]] = []
            if isinstance(item, Loop):
                again = (Loop(item.times - 1, item.body),) if item.times > 1 else ()
                after = [((*item.body, *again, *rest), fill)]
            elif isinstance(item, Branch):
                after = [((*arm, *rest), fill) for arm in item.arms]
            else:
                kind, stream = item
                now = fill[stream] + (1 if kind == "put" else -1)
                if 0 <= now <= depths[stream]:
                    after = [(rest, (*fill[:stream], now, *fill[stream + 1 :]))]
            moves += [((*left[:k], mine, *left[k + 1 :]), tokens) for mine, tokens in after]
        if not moves and any(left):
            return True
        for state in moves:
            if state not in seen:
                seen.add(state)
                todo.append(state)
    return False


def walk_sticks(depths: list[int], bodies: list[tuple[Item, ...]]) -> bool:
    """Whether some task waits for ever, without branches: token by token, each task as far as it goes."""
    steps = [first_outcome(body) for body in bodies]
    at, fill, moved = [0] * len(steps), [0] * len(depths), True
    while moved:
        moved = False
        for k, mine in enumerate(steps):
            while at[k] < len(mine):
                kind, stream = mine[at[k]]
                now = fill[stream] + (1 if kind == "put" else -1)
                if not 0 <= now <= depths[stream]:
                    break
                fill[stream], moved = now, True
                at[k] += 1
    return any(k < len(mine) for k, mine in zip(at, steps, strict=True))


@in_full
def test_whole_periods_give_the_verdict_of_a_walk() -> None:
    random = Random(3)
    verdicts: Counter[str] = Counter()
    for _ in range(cases(400, 40)):
        depths, bodies = program_of(random, trips=(2, 3, 20, 33), arms=False)
        times = random.randint(1, 40)
        bodies = [(Loop(times, body),) if body else () for body in bodies]
        text = source_of(depths, bodies)
        expected = verdict(depths, bodies, walk_sticks)
        assert check(text).code == expected, f"{expected}:\n{text}\n{check(text)}"
        verdicts[expected] += 1
    assert {"", "depth", "deadlock"} <= verdicts.keys(), verdicts


@in_full
@pytest.mark.parametrize("seed", sampled([1, 2], [1]))
def test_verdicts_are_those_of_an_exploration(seed: int) -> None:
    random = Random(seed)
    verdicts: Counter[str] = Counter()
    for _ in range(cases(1000, 150)):
        depths, bodies = program_of(random)
        text = source_of(depths, bodies)
        expected = verdict(depths, bodies, stuck)
        assert check(text).code == expected, f"{expected}:\n{text}\n{check(text)}"
        verdicts[expected] += 1
    assert {"", "join", "starved", "leak", "depth", "deadlock"} <= verdicts.keys(), verdicts
