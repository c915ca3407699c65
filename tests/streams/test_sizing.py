"""Safe and fast depths, against all depth vectors of small programs."""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from itertools import product
from math import prod
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import ProgramError
from rsn.streams.check import Report, check
from rsn.streams.reader import read
from rsn.streams.run import BodyRun, Effort, Unending, fire_together
from rsn.streams.sizing.cover import cost
from rsn.streams.sizing.depths import KnownDepths, sizes
from rsn.streams.sizing.least import least, lowest
from rsn.streams.sizing.program import SizedProgram
from rsn.tests.effort import cases, examples, in_both, in_full
from rsn.tests.streams import maxplus
from rsn.tests.streams.systolic import systolic
from rsn.tests.streams.test_exhaustive import Item, first_outcome, program_of, source_of, stuck, walk_sticks

LISTED = tomllib.loads((Path(__file__).parent / "listed.toml").read_text(encoding="utf-8"))


def sized(text: str, executions: int = 3) -> SizedProgram:
    assert check(text).code in ("", "depth"), text
    return SizedProgram(read(text, timed=True), executions)


def found(text: str, executions: int = 3) -> KnownDepths:
    return sizes(sized(text, executions))


# -- the search --------------------------------------------------------------------------------------------------------


@in_full
def test_the_cheapest_levels_of_random_monotone_properties() -> None:
    random = Random(5)
    joint = 0
    for _ in range(cases(600, 60)):
        names = "abcd"[: random.randint(1, 4)]
        step = {n: random.choice([1, 1, 2]) for n in names}
        weights = {n: random.randint(1, 9) for n in names}
        high = {n: step[n] * random.randint(1, 5) for n in names}
        corners = [
            {n: step[n] * random.randint(1, high[n] // step[n]) for n in names} for _ in range(random.randint(1, 5))
        ]

        def fails(levels: Mapping[str, int], corners: list[dict[str, int]] = corners) -> list[str] | None:
            return None if any(all(levels[n] >= c[n] for n in c) for c in corners) else list(levels)

        result = least(step, high, step, weights, fails)
        best = min(cost(c, weights) for c in corners)
        assert result.proved
        assert (result.cost, result.bound, fails(result.levels)) == (best, best, None)
        joint += result.cost > cost(result.alone, weights)
        short = least(step, high, step, weights, fails, tries=0)
        assert short.bound <= best <= short.cost
        assert fails(short.levels) is None
    assert joint > cases(100, 10)


def test_the_lowest_level_in_steps() -> None:
    for low, step, high in ((1, 1, 40), (3, 3, 120)):
        for k in range(low, high + 1, step):
            assert lowest(low, high, step, lambda level, k=k: level >= k) == k


# -- small programs ----------------------------------------------------------------------------------------------------


def small_program(
    random: Random, arms: bool, vectors: int, executions: int
) -> tuple[str, list[int], list[tuple[Item, ...]]]:
    """A program without findings but of depths, with element types of several widths. Returns also the most tokens of
    each stream."""
    while True:
        depths, bodies = program_of(random, trips=(1, 2, 3), arms=arms)
        text = source_of(depths, bodies)
        text = re.sub(r"Stream\[i32", lambda _: f"Stream[{random.choice(['i8', 'i16', 'i32'])}", text)
        text = re.sub(r"\.(?:put|get)\(.*", lambda m: m[0] + random.choice(["", "", "", "; cycles(2)"]), text)
        counts = Counter(step for body in bodies for step in first_outcome(body))
        most = [max(1, executions * counts["put", s]) for s in range(len(depths))]
        if prod(most) <= vectors and sum(counts.values()) and check(text).code in ("", "depth"):
            return text, most, bodies


def named(vector: tuple[int, ...], names: Mapping[str, object]) -> dict[str, int]:
    return {f"s{k}": depth for k, depth in enumerate(vector) if f"s{k}" in names}


@in_both
def test_safe_depths_are_the_least_of_all_vectors() -> None:
    random = Random(1)
    counts: Counter[str] = Counter()
    for k in range(cases(300, 15)):
        text, most, bodies = small_program(random, k % 3 == 0, 300, 1)
        waits = stuck if k % 3 == 0 else walk_sticks
        program = sized(text)
        result = sizes(program)
        live = {v for v in product(*(range(1, n + 1) for n in most)) if not waits(list(v), bodies)}
        best = min(program.bits(named(v, program.groups)) for v in live)
        assert result.safe.proved
        assert result.safe.cost == best, text
        chosen = tuple(result.safe.levels.get(f"s{k}", 1) for k in range(len(most)))
        assert chosen in live, text
        declared = [min(result.declared.get(f"s{k}", 1), n) for k, n in enumerate(most)]
        for name, depth in result.alone.items():
            s = int(name[1:])
            others = [d for d in range(1, most[s] + 1) if (*declared[:s], d, *declared[s + 1 :]) in live]
            assert depth == min(others, default=None), text
        counts["deeper"] += best > program.bits(dict.fromkeys(program.groups, 1))
        counts["joint"] += result.safe.cost > cost(result.safe.alone, {n: g.weight for n, g in program.groups.items()})
    assert counts["deeper"] > cases(30, 0), counts
    assert counts["joint"] >= cases(3, 0), counts


def ends(bodies: object, depths: dict[int, int], executions: int) -> list[int] | None:
    run = maxplus.run(bodies, depths, {}, executions)  # type: ignore[arg-type]
    return None if run is None else run[0]


@in_both
def test_fast_depths_are_the_least_of_all_vectors() -> None:
    random = Random(2)
    counts: Counter[str] = Counter()
    for k in range(cases(200, 10)):
        executions = random.randint(1, 3)
        text, most, _ = small_program(random, k % 4 == 0, 500, executions)
        program = sized(text, executions)
        result = sizes(program)
        if result.fast is None:
            counts["by data"] += 1
            assert "data decides" in result.untimed
            continue
        ways = program.outcomes.bodies
        numbers = {f"s{s}": s for s in range(len(most))}
        endless = [ends(bodies, {}, executions) for bodies in ways]
        fast = []
        for v in product(*(range(1, n + 1) for n in most)):
            depths = named(v, program.groups)
            deep = {numbers[name]: depth for name, depth in depths.items()}
            if [ends(bodies, deep, executions) for bodies in ways] == endless:
                fast.append(program.bits(depths))
        assert result.fast.proved
        assert result.fast.cost == min(fast), text
        assert result.endless is not None
        assert [list(e) for e in result.endless.ends] == endless, text
        # The steps lead from safe to fast; each is as fast as the equations say.
        assert program.live(result.steps[0].depths)
        assert result.steps[-1].depths == result.fast.levels
        if len(ways) == 1:
            for step in result.steps:
                deep = {numbers[name]: depth for name, depth in step.depths.items()}
                bodies = fire_together(program.bodies, deep, {}).bodies
                assert list(step.times.ends[0]) == ends(bodies, deep, executions), text
        counts["slower"] += len(result.steps) > 1
        counts["joint"] += result.fast.cost > cost(result.fast.alone, {n: g.weight for n, g in program.groups.items()})
    assert counts["slower"] > cases(50, 2), counts
    assert counts["joint"] >= cases(3, 0), counts


# -- listed programs, and the array ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "alone", "safe", "fast"),
    [
        ("I5", {"s": 3, "t": None}, {"s": 3, "t": 1}, {"s": 4, "t": 2}),
        ("W10", {"s": 3, "t": 1}, {"s": 3, "t": 1}, {"s": 4, "t": 2}),
        ("I6", {"s": 4, "t": None}, {"s": 4, "t": 1}, {"s": 6, "t": 2}),
        ("I9", {"s": None, "t": 2}, {"s": 1, "t": 2}, {"s": 2, "t": 2}),
        ("W19", {"s": 4}, {"s": 4}, {"s": 8}),
    ],
)
def test_listed_programs(name: str, alone: dict[str, int], safe: dict[str, int], fast: dict[str, int]) -> None:
    result = found(LISTED[name]["program"])
    assert result.fast is not None
    assert (result.alone, result.safe.levels, result.fast.levels) == (alone, safe, fast)
    assert result.safe.proved
    assert result.fast.proved


TRADE = """
from rsn.streams import *
s: Stream[{s}, 1]
t: Stream[{t}, 1]
u: Stream[i32, 1]
@task(mapping=[1])
def a():
    for i in range(4):
        s.put(i)
    u.put(0)
@task(mapping=[1])
def b():
    for i in range(4):
        use(s.get())
        t.put(i)
@task(mapping=[1])
def c():
    use(u.get())
    for i in range(4):
        use(t.get())
"""


@pytest.mark.parametrize(("s", "t", "safe"), [("i8", "i32", (2, 1)), ("i32", "i8", (1, 2)), ("i32", "i32", None)])
def test_the_cheaper_of_two_streams_gets_deeper(s: str, t: str, safe: tuple[int, int] | None) -> None:
    result = found(TRADE.format(s=s, t=t))
    assert result.safe.proved
    assert sum(result.safe.levels[name] for name in "st") == 3
    if safe is not None:
        assert (result.safe.levels["s"], result.safe.levels["t"]) == safe


@pytest.mark.parametrize("chosen", [{"s": 0}, {"s": 3}, {"t": 2}])
def test_depths_that_are_none_are_refused(chosen: dict[str, int]) -> None:
    program = sized(
        """from rsn.streams import *
s: Stream[i32, 2, 2]
@task(mapping=[1])
def a():
    for i in range(4):
        s.put(i)
@task(mapping=[1])
def b():
    for i in range(4):
        drop(s.get())
"""
    )
    with pytest.raises(ProgramError, match="is no depth; streams are s, in whole transfers"):
        sizes(program, chosen)
    for run in (program.waits, program.times, program.together):
        with pytest.raises(ProgramError, match="s has depth 0; the least is 1"):
            run({"s": 0})


@pytest.mark.long
@pytest.mark.full
def test_the_systolic_array_needs_two_deep_streams_only() -> None:
    result = found(systolic(64, 4, 16))
    assert set(result.safe.levels.values()) == {1}
    assert set(result.alone.values()) == {1}
    assert result.fast is not None
    assert result.fast.proved
    ones, twos = dict.fromkeys(("L3_C", "L1_C", "L2_C"), 1), dict.fromkeys(("L3_A", "L3_B", "L2_B", "fifo_A"), 2)
    assert result.fast.levels == {**ones, **twos, "L2_A": 18, "fifo_B": 18}
    assert [step.times.latency for step in result.steps] == [6179, 5171, 4721, 2636, 1676, 1586]


DATA = """
from rsn.streams import *
s: Stream[i32, 2]
t: Stream[i32, 2]
@task(mapping=[1])
def a():
    for i in range(1000):
        if data():
            s.put(i)
            t.put(i)
        else:
            t.put(i)
            s.put(i)
@task(mapping=[1])
def b():
    for i in range(1000):
        use(s.get())
        use(t.get())
        cycles({cycles})
    while data():
        cycles(3)
"""


def test_times_that_are_not_known_leave_the_safe_depths() -> None:
    result = found(DATA.format(cycles=1))
    assert result.fast is None
    assert result.untimed.startswith("<program>:20:5: error: data decides how often this loop runs")
    assert result.untimed.endswith("\n    while data():\n    ^^^^^^^^^^^^^")
    assert result.safe.levels == {"s": 1, "t": 1}
    result = found(
        DATA.format(cycles=1 << 70).replace("    while data():\n        cycles(3)\n", "").replace("data()", "i % 2")
    )
    assert "take more than" in result.untimed


def test_a_million_tokens_are_sized_without_being_walked() -> None:
    text = LISTED["I5"]["program"].replace("range(8)", "range(1000000)")
    result = found(text)
    assert result.fast is not None
    assert (result.safe.proved, result.fast.proved) == (True, True)


IMAGE = """
from rsn.streams import *
N = {n}
main: Stream[i16, 2]
skip: Stream[i16, 2]
result: Stream[i16, 2]
@task(mapping=[1])
def fork() -> None:
    for i in range(N):
        v = sample(i)
        main.put(v)
        skip.put(v)
@task(mapping=[1])
def whole() -> None:
    m: i16 = 0
    for i in range(N):
        m = m + main.get()
    for i in range(N):
        result.put(m)
@task(mapping=[1])
def add() -> None:
    for i in range(N):
        use(skip.get() + result.get())
"""
"""All of `main` passes before the first token of `result`; `skip` needs room for nearly N."""


@pytest.mark.parametrize(("n", "is_long"), [(100, False), (4000, True)])
def test_a_run_that_would_be_too_long_is_given_up_early(n: int, is_long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    program = sized(IMAGE.format(n=n))
    limits = sys.modules["rsn.streams.run"]  # rsn.streams has a function of this name
    monkeypatch.setattr(limits, "MOVES", 6000)
    monkeypatch.setattr(limits, "LOOKED", 300)
    effort = Effort()
    run = BodyRun([x.body for x in program.region.instances], {0: 2, 1: n, 2: 2}, {}, effort)
    before = effort.moves
    if is_long:
        with pytest.raises(Unending):
            run.outcome()
        assert 300 <= before - effort.moves < 400
    else:
        assert not run.outcome().waits


@given(st.data())
@examples(2000, 150)
def test_a_note_about_depths_names_what_suffices(data: st.DataObject) -> None:
    """Two tasks put and get on streams in drawn orders; with the depths of a note they end."""
    count = data.draw(st.integers(2, 4))
    tokens = {f"s{k}": data.draw(st.integers(1, 3)) for k in range(count)}
    ways = {name: data.draw(st.booleans()) for name in tokens}
    order = [name for name, n in tokens.items() for _ in range(n)]

    def body(first: bool) -> str:
        drawn = data.draw(st.permutations(order))
        lines = (f"{name}.put(1)" if ways[name] is first else f"drop({name}.get())" for name in drawn)
        return "".join(f"    {line}\n" for line in lines)

    bodies = body(True), body(False)

    def checked(depths: Mapping[str, int]) -> Report:
        streams = "".join(f"{name}: Stream[i32, {depths.get(name, 1)}]\n" for name in tokens)
        tasks = "".join(
            f"@task(mapping=[1])\ndef {name}() -> None:\n{text}" for name, text in zip("ab", bodies, strict=True)
        )
        return check(f"from rsn.streams import *\n{streams}{tasks}")

    stuck = [f for f in checked({}).findings if f.code == "depth"]
    for note in (note for f in stuck for note in f.notes):
        if note.startswith("deeper streams together break it: "):
            names = note.partition(": ")[2].split(", ")
            assert not checked(dict.fromkeys(names, 9)).code, note
            for left in names:
                assert checked({name: 9 for name in names if name != left}).code, note
        else:
            found = re.match(r"depth (\d+) of (\w+) is the least with which it ends, others as declared", note)
            assert found is not None, note
            assert not checked({found[2]: int(found[1])}).code, note
            assert checked({found[2]: int(found[1]) - 1}).code, note
