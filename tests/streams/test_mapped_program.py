"""Mapped programs on the engine: a unit for each node gives the results of the program that was mapped."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from rsn.assembler import container
from rsn.host.tasks import run_tasks
from rsn.hw.sim.machine import Machine
from rsn.isa.overlays.tasks.overlay import runnable
from rsn.streams.build import build
from rsn.streams.check import report_on
from rsn.streams.mapping.cost import cycles
from rsn.streams.mapping.errors import MappingError
from rsn.streams.mapping.graph import mapping_graph
from rsn.streams.mapping.machine import mesh
from rsn.streams.mapping.mapping import Mapped
from rsn.streams.mapping.primitives import bundle, chain
from rsn.streams.mapping.program import mapped_program
from rsn.streams.mapping.search import search
from rsn.streams.reader import read
from rsn.tests.effort import cases, in_both
from rsn.tests.streams.graphs import HEAD as LINES
from rsn.tests.streams.graphs import start
from rsn.tests.streams.test_machine import BODIES, HEAD, statements
from rsn.tests.streams.test_mapping_exhaustive import with_costs
from rsn.tests.streams.test_mapping_random import program, step

FFN = """
from rsn.streams import *
M, K, H, N, T = 16, 16, 64, 16, 16
X: f32[M, K]
W1: f32[K, H]
W2: f32[H, N]
Y: f32[M, N]
hidden: Stream[f32[M, T], 2][H // T]
@task(mapping=[H // T], args=[X, W1])
def up(x, w):
    j = get_tid()
    hidden[j].put(gelu(x[:, :] @ w[:, j * T : (j + 1) * T]))
@task(mapping=[1], args=[W2, Y])
def down(w, y):
    total = zeros(f32, M, N)
    for j in range(H // T):
        total = total + hidden[j].get() @ w[j * T : (j + 1) * T, :]
    y[:, :] = total
"""


@pytest.mark.parametrize("at_most", [2, 4])
def test_a_searched_mapping_gives_equal_bits(at_most: int) -> None:
    random = np.random.default_rng(0)
    shapes = {"X": (16, 16), "W1": (16, 64), "W2": (64, 16)}
    given = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    report = report_on(read(FFN, timed=True))
    expected = run_tasks(build(report), given).outputs["Y"]
    graph = mapping_graph(report.region)
    mapped = search(graph, at_most, mesh("mesh4x4")).mapped
    packed = runnable(mapped_program(mapped))
    assert len(packed.overlay.units) <= at_most
    again = container.loads(container.dumps(packed))
    result = run_tasks(again, given)
    np.testing.assert_array_equal(result.outputs["Y"], expected)
    assert Machine(again).run().latency_s == result.run.latency_s


def test_a_bundle_shares_one_stream_of_the_machine() -> None:
    report = report_on(read(FFN, timed=True))
    mapped = bundle(Mapped.start(mapping_graph(report.region)), [f"up[{j}]" for j in range(4)])
    machine = mapped_program(mapped)
    assert {link.label for link in machine.links} == {
        "up[0]+3->down (hidden[0], hidden[1], hidden[2], ... 4 streams in turn)"
    }
    assert len(runnable(machine).overlay.streams) == 1


@in_both
def test_chains_of_random_programs_give_equal_values() -> None:
    random = Random(21)
    mapped_ones = 0
    for number in range(cases(200, 12)):
        kind = random.choice(["i8", "f32"])
        floats = kind == "f32"
        text = HEAD.format(kind=kind) + BODIES.format(
            kind=kind, start="1", first=statements(random, floats), second=statements(random, floats)
        ).replace("KIND", kind)
        report = report_on(read(text, timed=True))
        x = np.random.default_rng(number).integers(-100, 100, 8).astype(np.float32 if floats else np.int8)
        expected = run_tasks(build(report), {"x": x}).outputs["y"]
        mapped = Mapped.start(mapping_graph(report.region))
        pairs = [("source", "middle[0]"), ("middle[0]", "middle[1]"), ("middle[1]", "sink")]
        try:
            for a, b in random.sample(pairs, random.randint(1, 3)):
                mapped = chain(mapped, a, b)
            machine = mapped_program(mapped)
        except MappingError:
            continue
        mapped_ones += 1
        np.testing.assert_array_equal(run_tasks(runnable(machine), {"x": x}).outputs["y"], expected, err_msg=text)
    assert mapped_ones > cases(100, 6)


@in_both
def test_the_cycles_of_a_mapping_are_those_of_its_machine() -> None:
    """Random programs, random primitives; streams of a bundle come twice in a beat of their peer."""
    seed = compared = 0
    found: Counter[str] = Counter()
    while compared < cases(300, 30):
        seed += 1
        random = Random(seed)
        try:
            mapped = start(with_costs(program(random), random))
        except AssertionError:  # the check refuses it
            continue
        for _ in range(random.randint(0, 3)):
            if len(mapped.groups) > 1:
                mapped, what = step(random, mapped)
                found[what] += 1
        time = cycles(mapped)
        try:
            made = runnable(mapped_program(mapped))
        except MappingError:
            assert time is None, seed
            continue
        compared += 1
        assert time == round(Machine(made).run().latency_s * made.overlay.clock_hz), seed
    assert {"chain", "bundle"} <= found.keys(), dict(found)


TWICE = f"""{LINES}
p: Stream[i32, 1][2]
@task(mapping=[2])
def a():
    i = get_tid()
    p[i].put(i)
@task(mapping=[1])
def b():
    x = p[0].get()
    y = p[1].get()
    cycles(7)
    use(x + y)
"""


def test_a_stream_that_comes_twice_in_a_beat_takes_two() -> None:
    """Two gets that would fire together are of one stream behind the mapping, which holds one token."""
    mapped = bundle(start(TWICE), ["a[0]", "a[1]"])
    made = runnable(mapped_program(mapped))
    assert cycles(mapped) == round(Machine(made).run().latency_s * made.overlay.clock_hz) == 10
