"""The time of beats: against equations solved another way, and the published-array table."""

from __future__ import annotations

import re
from collections import Counter
from random import Random
from time import process_time

import pytest

from rsn.streams.check import check
from rsn.streams.reader import read
from rsn.streams.run import fire_together, stream_depths
from rsn.streams.timing.outcomes import ByDataError, outcomes
from rsn.streams.timing.timed import INTERPRETED, BeatTiming, EndlessWait, TimedProgram
from rsn.streams.tree import Region, total
from rsn.tests.effort import cases, in_both, long, sampled
from rsn.tests.streams import maxplus
from rsn.tests.streams.systolic import systolic
from rsn.tests.streams.test_exhaustive import Loop, program_of, source_of


def timed(text: str) -> Region:
    region = read(text, timed=True)
    assert not [f for f in region.source.findings if not f.warning], region.source.findings
    return region


def model(region: Region, executions: int = 1) -> TimedProgram:
    _, packing = stream_depths(region)
    return TimedProgram([instance.beats for instance in region.instances], packing, executions)


def ran(result: BeatTiming | EndlessWait) -> BeatTiming:
    assert isinstance(result, BeatTiming)
    return result


def random_program(random: Random) -> tuple[str, Region]:
    """A well-typed program with stated cycles, loops around all, and sometimes packed streams."""
    while True:
        depths, bodies = program_of(random, random.choice([(1, 2, 3), (1, 2, 3, 20, 33, 64)]), arms=False)
        times = random.randint(1, 30)
        bodies = [(Loop(times, body),) if body else () for body in bodies]
        text = source_of(depths, bodies)
        if random.random() < 0.3:
            text = re.sub(r"Stream\[i32, (\d)\]", lambda m: f"Stream[i32, {2 * int(m[1])}, 2]", text)
        lines: list[str] = []
        for line in text.split("\n"):
            lines.append(line)
            if re.search(r"\.(put|get)\(", line) and random.random() < 0.3:
                margin = line[: len(line) - len(line.lstrip())]
                lines.append(f"{margin}cycles({random.randint(1, 5)})")
        text = "\n".join(lines)
        region = read(text, timed=True)
        if (
            sum(n for instance in region.instances for _, _, n in total(instance.body)[0]) < 1500
            and not check(text).code
        ):
            return text, timed(text)


@in_both
@pytest.mark.parametrize("seed", sampled([1, 2], [1]))
def test_random_programs_take_the_time_of_the_equations(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compiler, and with it."""
    random = Random(seed)
    counts: Counter[str] = Counter()
    for _ in range(cases(200, 12)):
        text, region = random_program(random)
        depths, packing = stream_depths(region)
        executions = random.randint(1, 4)
        bodies = fire_together([i.beats for i in region.instances], depths, packing).bodies
        one = TimedProgram(bodies, packing, executions)
        for deep in (depths, {}, {s: d for s, d in depths.items() if random.random() < 0.5}):
            expected = maxplus.run(bodies, deep, packing, executions)
            assert expected is not None, text
            monkeypatch.setattr(TimedProgram, "_interpreted", 0)
            result = ran(one.run(deep))
            monkeypatch.setattr(TimedProgram, "_interpreted", INTERPRETED)
            assert ran(one.run(deep)) == result, text
            assert list(result.ends) == expected[0], f"{deep} {text}"
            assert result.peak == {s: expected[1][s] for s in deep}, f"{deep} {text}"
            assert all(sum(part) <= last for *part, last in zip(result.busy, result.last, strict=True))
            walked = ran(one.run(deep, skips=False))
            assert walked == BeatTiming(**{**vars(result), "skipped": 0}), text
            counts["skipped"] += result.skipped > 0
            counts["packed"] += max(packing.values()) > 1
            counts["waits"] += any(result.full.values())
        # With peaks as depths nothing waits for a slot that did not before.
        assert ran(one.run(ran(one.run(depths)).peak)).ends == ran(one.run(depths)).ends
    assert min(counts["skipped"], counts["packed"], counts["waits"]) > cases(50, 3), counts


# -- the array ------------------------------------------------------------------------------------------------------

CYCLES = {  # (pack, depth): cycles at 64, 128, 256
    (1, 2): (1331, 9267, 69683),
    (1, 4): (1121, 8385, 66113),
    (16, 2): (5171, 24627, 131123),
    (16, 4): (4721, 22737, 123473),
    (16, 16): (1676, 10452, 77573),
    (16, 32): (1586, 9570, 70178),
}
PERCENT = {  # at 64, 128, 256, 512, 1024
    (1, 2): (76.9, 88.4, 94.0, 97.0, 98.5),
    (1, 4): (91.3, 97.7, 99.1, 99.6, 99.8),
    (16, 2): (19.8, 33.3, 50.0, 66.7, 80.0),
    (16, 4): (21.7, 36.0, 53.1, 69.4, 81.9),
    (16, 16): (61.1, 78.4, 84.5),
    (16, 32): (64.6, 85.6, 93.4, 96.7, 98.4),
}
LINES = {(1, 2): (16, 51), (1, 4): (2, 65), (16, 2): (256, 51), (16, 4): (226, 81), (16, 32): (17, 290)}


@pytest.mark.parametrize(("size", "pack"), [long(64, 16), long(256, 1)])
def test_the_systolic_array_takes_the_cycles_of_the_table(size: int, pack: int) -> None:
    """Two of its sizes; docs/stream-cases.md shows all."""
    at = (64, 128, 256, 512, 1024).index(size)
    one = model(timed(systolic(size, 2, pack)))
    for key in (key for key in CYCLES if key[0] == pack):
        cycles = ran(one.run(dict.fromkeys(one.streams, key[1]))).latency
        if at < 3:
            assert cycles == CYCLES[key][at]
        if at < len(PERCENT[key]):
            assert round(100 * size**3 / 256 / cycles, 1) == pytest.approx(PERCENT[key][at], abs=0.051)
        if key in LINES:
            a, b = LINES[key]
            assert cycles == (size // 16) ** 2 * (size + a) + b


@pytest.mark.long
def test_the_systolic_array_is_well_typed() -> None:
    assert check(systolic(64, 1, 1)).code == ""


@pytest.mark.long
def test_seventeen_million_beats_are_walked_in_seconds() -> None:
    one = model(timed(systolic(256, 2, 1)))
    one.run(dict.fromkeys(one.streams, 2))
    start = process_time()
    assert ran(one.run(dict.fromkeys(one.streams, 2), skips=False)).latency == 69683
    assert process_time() - start < 20


# -- whole periods -----------------------------------------------------------------------------------------------------

CHAIN = """
from rsn.streams import *
s: Stream[i32, {depth}]
t: Stream[i32, 8]
@task(mapping=[1])
def a():
    for i in range(1000000):
        s.put(i)
@task(mapping=[1])
def b():
    for i in range(1000000):
        t.put(s.get())
        cycles({slow})
@task(mapping=[1])
def c():
    for i in range(1000):
        for j in range(1000):
            use(t.get())
        cycles(7)
"""


@pytest.mark.long
@pytest.mark.parametrize(("depth", "slow"), [(2, 1), (2, 3), (50, 2), (5000, 3)])
def test_a_million_tokens(depth: int, slow: int) -> None:
    one = model(timed(CHAIN.format(depth=depth, slow=slow)), 2)
    start = process_time()
    for deep in (dict(zip(one.streams, (depth, 8), strict=True)), {}):
        result = ran(one.run(deep))
        # b beats every `slow` cycles; for slow = 1, c needs 1,007 cycles for 1,000 tokens.
        assert result.interval == (1_007_000 if slow == 1 else slow * 1_000_000)
    assert process_time() - start < 20


# -- beats and data ----------------------------------------------------------------------------------------------------

JOINED = """
from rsn.streams import *
s: Stream[i32, {s}]
t: Stream[i32, 1]
@task(mapping=[1])
def fork():
    for i in range(4):
        s.put(i)
        s.put(i)
        t.put(i)
@task(mapping=[1])
def join():
    for i in range(4):
        x = s.get()
        y = t.get()
        use(x + y)
        use(s.get())
"""


def test_a_beat_that_cannot_fire_at_once_is_taken_apart() -> None:
    for depth, places in ((1, [14]), (2, [])):
        region = timed(JOINED.format(s=depth))
        depths, packing = stream_depths(region)
        one = fire_together([i.beats for i in region.instances], depths, packing)
        assert one.live
        assert [beat.place.line for beat in one.apart] == places
        stuck = model(region).run(depths)
        assert isinstance(stuck, EndlessWait if places else BeatTiming)
        ran(TimedProgram(one.bodies, packing).run(depths))


BRANCH = """
from rsn.streams import *
s: Stream[i32, 2]
@task(mapping=[1])
def a():
    for i in range({times}):
        if data():
            {first}
        else:
            {second}
        s.put(i)
@task(mapping=[1])
def b():
    for i in range({times}):
        use(s.get())
"""


def both(times: int, first: str, second: str) -> tuple[list[int], bool]:
    region = timed(BRANCH.format(times=times, first=first, second=second))
    depths, packing = stream_depths(region)
    found = outcomes([i.beats for i in region.instances])
    return [ran(TimedProgram(bodies, packing).run(depths)).latency for bodies in found.bodies], found.exact


def test_few_outcomes_are_timed_one_by_one_and_many_between_fastest_and_slowest() -> None:
    assert both(2, "cycles(5)", "cycles(1)") == ([13, 9, 9, 5], True)
    assert both(1000, "cycles(5)", "cycles(1)") == ([2001, 6001], False)
    assert both(1000, "cycles(5)", "cycles(5)") == ([6001], True)
    assert both(1000, "pass", "cycles(2)") == ([1001, 3001], False)


def test_arms_that_fire_in_another_order_too_often_are_refused_with_their_line() -> None:
    text = """
from rsn.streams import *
s: Stream[i32, 2]
t: Stream[i32, 2]
@task(mapping=[1])
def a():
    for i in range(1000):
        if data():
            s.put(i)
            cycles(3)
            for k in range(2):
                t.put(i)
        else:
            for k in range(2):
                t.put(i)
            s.put(i)
@task(mapping=[1])
def b():
    for i in range(1000):
        use(s.get())
        for k in range(2):
            use(t.get())
"""
    with pytest.raises(ByDataError) as error:
        outcomes([i.beats for i in timed(text).instances])
    assert error.value.place.line == 8
