"""The time of the engine, with and without data, against the evaluation of beats."""

from __future__ import annotations

import tomllib
from pathlib import Path
from random import Random

import pytest

from rsn.hw.sim.machine import Machine
from rsn.streams.build import build
from rsn.streams.check import report_on
from rsn.streams.datapath import KernelVariant
from rsn.streams.reader import Rates, read
from rsn.streams.run import fire_together, stream_depths
from rsn.streams.timing.timed import BeatTiming, TimedProgram
from rsn.tests.effort import cases, in_both
from rsn.tests.streams.test_exhaustive import program_of, source_of

LISTED = tomllib.loads((Path(__file__).parent / "listed.toml").read_text(encoding="utf-8"))
PROGRAMS = Path(__file__).parents[2] / "programs" / "streams"
RATES: Rates = {"matmul": 64, "softmax": 4, "exp": 8, "add": 16}


def evaluated(text: str, rates: Rates, variants: tuple[KernelVariant, ...] = ()) -> int:
    region = read(text, timed=True, rates=rates, variants=variants)
    depths, packing = stream_depths(region)
    bodies = fire_together([i.beats for i in region.instances], depths, packing).bodies
    timing = TimedProgram(bodies, packing).run(depths)
    assert isinstance(timing, BeatTiming)
    return timing.latency


def on_the_engine(text: str, rates: Rates, variants: tuple[KernelVariant, ...] = ()) -> float:
    program = build(report_on(read(text, rates=rates, variants=variants)))
    return Machine(program).run().latency_s * program.overlay.clock_hz


@pytest.mark.parametrize("name", [n for n, case in LISTED.items() if not case["code"] and n not in ("W11", "W12")])
def test_listed_programs(name: str) -> None:
    text = LISTED[name]["program"]
    assert on_the_engine(text, {}) == pytest.approx(evaluated(text, {}))


@pytest.mark.parametrize("rates", [{}, RATES])
def test_programs_with_kernels(rates: Rates) -> None:
    text = (PROGRAMS / "gemm_3d.py").read_text(encoding="utf-8")
    assert on_the_engine(text, rates) == pytest.approx(evaluated(text, rates))


def test_a_tensor_is_put_whole() -> None:
    text = """from rsn.streams import *
A: f32[4]
s: Stream[f32[4], 2]
@task(mapping=[1], args=[A])
def give(a: f32[4]):
    s.put(a)
@task(mapping=[1])
def take():
    use(s.get())
"""
    assert on_the_engine(text, {}) == pytest.approx(evaluated(text, {}))


@in_both
def test_random_programs() -> None:
    random = Random(12)
    for _ in range(cases(1000, 40)):
        text = source_of(*program_of(random, arms=False))
        if not report_on(read(text)).code:
            assert on_the_engine(text, {}) == pytest.approx(evaluated(text, {})), text
