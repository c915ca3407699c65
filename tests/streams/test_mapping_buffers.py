"""Double buffers of mapped programs: what loads and stores beside a node, and which tasks the search gives buffers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from random import Random

from rsn.host.tasks import run_tasks
from rsn.hw.sim.machine import Machine
from rsn.isa.overlays.tasks.overlay import runnable
from rsn.streams.build import build
from rsn.streams.check import report_on
from rsn.streams.mapping.buffering import search_buffered
from rsn.streams.mapping.cost import Cost, cycles
from rsn.streams.mapping.errors import MappingError
from rsn.streams.mapping.graph import mapping_graph
from rsn.streams.mapping.machine import MeshDescription
from rsn.streams.mapping.mapping import Mapped
from rsn.streams.mapping.primitives import bundle, chain
from rsn.streams.mapping.program import mapped_program
from rsn.streams.mapping.proof import prove
from rsn.streams.mapping.transfers import off_chip
from rsn.streams.reader import read, read_again
from rsn.streams.tree import Region
from rsn.tests.effort import cases, in_both, in_full
from rsn.tests.streams.test_hls import built, compare, drawn_inputs
from rsn.tests.streams.test_mapping_exhaustive import least
from rsn.tests.streams.test_mapping_random import step

RATES = {"matmul": 64.0, "elements": 8.0}


def drawn(random: Random, most: int) -> str:
    """Tasks in a row, each of which may load, get from the one before, compute, put and store, a tile an iteration."""
    count, n, tiles = random.randint(1, most), random.randint(1, 4), random.choice([1, 2])
    lines = ["from rsn.streams import *", "W: f32[8, 8]", "w8 = 8"]
    lines += (f"s{k}: Stream[f32[8, 8], {random.randint(1, 3)}][{tiles}]" for k in range(count - 1))
    shape = f"f32[{tiles * n * 8}, 8]"
    lines += (f"{name}{k}: {shape}" for k in range(count) for name in "XY")
    for k in range(count):
        loads, stores = k == 0 or random.random() < 0.6, k == count - 1 or random.random() < 0.4
        lines.append(f"@task(mapping=[{tiles}], args=[X{k}, Y{k}, W])")
        lines.append(f'def f{k}(x: {shape} @ Layout("S0R"), y: {shape} @ Layout("S0R"), w: f32[8, 8]) -> None:')
        lines.append("    i = get_tid()")
        lines.append(f"    for j in range({n}):")
        lines.append("        t = x[j * w8 : j * w8 + w8, :]" if loads else f"        t = s{k - 1}[i].get()")
        if loads and k:
            lines.append(f"        t = t + s{k - 1}[i].get()")
        work = random.choice(["t @ w", "relu(t)", "softmax(t)", "t @ w + t", "gelu(t) * 2.0"])
        lines.append(f"        u = {work}")
        if stores:
            lines.append("        y[j * w8 : j * w8 + w8, :] = u")
        if k < count - 1:
            lines.append(f"        s{k}[i].put(u)")
    return "\n".join(lines) + "\n"


def region_of(text: str, buffered: tuple[str, ...] = ()) -> Region:
    region = read(text, timed=True, rates=RATES)
    return read_again(region, buffered) if buffered else region


def choices(text: str) -> Iterator[Region]:
    """The program with each choice of buffers that the check accepts."""
    region = region_of(text)
    names = [task.name for task in region.tasks]
    for count in range(len(names) + 1):
        for chosen in combinations(names, count):
            made = region_of(text, chosen)
            if not report_on(made).code:
                yield made


@in_both
def test_the_cycles_of_a_mapping_are_those_of_its_machine() -> None:
    """Random programs, choices of buffers and primitives; results stay those of the program without any."""
    random = Random(3)
    buffered = joined = 0
    for number in range(cases(200, 6, share=30)):
        text = drawn(random, 4)
        plain = build(report_on(region_of(text)))
        region = random.choice([*choices(text)])
        mapped = Mapped.start(mapping_graph(region), fuse=False)
        for _ in range(random.randint(0, 3)):
            if len(mapped.groups) > 1:
                mapped, _ = step(random, mapped)
        time = cycles(mapped)
        try:
            program = mapped_program(mapped)
        except MappingError:
            assert time is None, text
            continue
        made = runnable(program)
        assert time == round(Machine(made).run().latency_s * made.overlay.clock_hz), text
        inputs = drawn_inputs(program, number)
        expected, found = run_tasks(plain, inputs).outputs, run_tasks(made, inputs).outputs
        assert all(found[name].tobytes() == value.tobytes() for name, value in expected.items()), text
        buffered += bool(region.buffered)
        joined += bool(region.buffered) and len(mapped.groups) < len(mapped.graph.nodes)
    assert buffered > cases(100, 3, share=30)
    assert joined


@in_full
def test_no_choice_of_buffers_costs_less_than_the_one_found() -> None:
    random = Random(8)
    found_some = mapped = 0
    for _ in range(cases(60, 5)):
        text = drawn(random, 2)
        region = region_of(text)
        at_most = random.randint(1, len(region.instances))
        memory = random.choice([1 << 16, 2048, 1024])
        machine = MeshDescription(in_ports=3, out_ports=3, memory=memory)
        best: Cost | None = None
        for made in choices(text):
            price = least(Mapped.start(mapping_graph(made), fuse=False), at_most, machine)
            best = price if best is None or (price is not None and price < best) else best
        try:
            found = search_buffered(region, at_most, machine)
        except MappingError:
            assert best is None, text
            continue
        mapped += 1
        assert (found.cost, found.all_seen) == (best, True), text
        assert found.bound <= found.cost.cycles
        found_some += bool(found.mapped.graph.region.buffered)
    assert mapped
    assert found_some


def test_native_runs_of_mapped_programs(tmp_path: Path) -> None:
    random = Random(4)
    programs = {}
    for k in range(3):
        region = [*choices(drawn(random, 3))][-1]
        mapped = search_buffered(region, 2, MeshDescription(in_ports=4, out_ports=4)).mapped
        programs[f"mapped_{k}"] = mapped_program(mapped)
    assert compare(built(tmp_path, programs))["equal"] == len(programs)


TILES = """from rsn.streams import *
X: f32[64, 16]
W: f32[16, 16]
Y: f32[64, 16]
@task(mapping=[4], args=[X, W, Y]{mark})
def f(x: f32[64, 16] @ Layout("S0R"), w: f32[16, 16], y: f32[64, 16] @ Layout("S0R")) -> None:
    y[:, :] = x[:, :] @ w[:, :]
"""


def bundled(mark: str) -> Mapped:
    region = read(TILES.replace("{mark}", mark), timed=True, rates=RATES)
    return bundle(Mapped.start(mapping_graph(region), fuse=False), [f"f[{k}]" for k in range(4)])


def test_shots_of_one_node_overlap() -> None:
    """The next shot is loaded while one computes; the shots of a node take turns on one buffer of each access."""
    plain, buffered = bundled(""), bundled(", double_buffer=True")
    shot = next(iter(plain.graph.nodes)).cycles
    slowest = buffered.graph.nodes[0].cycles
    assert (cycles(plain), cycles(buffered)) == (4 * shot, 4 * slowest + sum(parts(buffered)) - slowest)
    assert off_chip(plain) == off_chip(buffered)
    assert [len(side) for side in plain.ports(0)] == [len(side) for side in buffered.ports(0)] == [2, 1]
    tile = 16 * 16 * 4
    assert [str(holder.what) for holder in buffered.memory(0)][-3:] == [
        f"double buffer of f.{name}, 2 x {tile} bytes" for name in "xwy"
    ]
    made = mapped_program(buffered)
    assert [unit for unit, _ in made.units] == ["f_0", "f_0_load", "f_0_store"]
    assert {link.label for link in made.links} == {f"f.{name} of f_0" for name in "xwy"}


def parts(mapped: Mapped) -> list[int]:
    """Cycles of the parts of a shot."""
    node = mapped.graph.nodes[0]
    return [sum(b.cycles for b in i.beats) for i in (node.instance, *node.parts.values())]  # type: ignore[attr-defined]


def test_buffers_need_bytes() -> None:
    """A task gets no buffers where a tile does not hold them."""
    text = TILES.replace("{mark}", "")
    region = read(text, timed=True, rates=RATES)
    large, small = (
        search_buffered(region, 1, MeshDescription(memory=memory, in_ports=3, out_ports=3)).mapped
        for memory in (1 << 16, 4096)
    )
    assert next(str(step) for step in large.steps) == "double_buffer(f)"
    assert all(step.primitive != "double_buffer" for step in small.steps)


def test_chains_keep_the_order_of_accesses() -> None:
    """A chain of a task that stores, and one that loads what it stored, is no order for what runs beside them."""
    text = """from rsn.streams import *
X: f32[16, 16]
Y: f32[16, 16]
done: Stream[boolean, 1]
@task(mapping=[1], args=[X])
def f(x: f32[16, 16]) -> None:
    x[:, :] = relu(x[:, :])
    done.put(True)
@task(mapping=[1], args=[X, Y])
def g(x: f32[16, 16], y: f32[16, 16]) -> None:
    drop(done.get())
    y[:, :] = relu(x[:, :])
"""
    assert [made.buffered for made in choices(text)] == [frozenset()]
    region = region_of(text)
    assert prove(chain(Mapped.start(mapping_graph(region)), "f", "g")).ok
    assert not search_buffered(region, 1).mapped.graph.region.buffered


def test_a_stream_inside_a_node_is_empty_at_its_end(tmp_path: Path) -> None:
    """It ends before the process of its node does: what was taken of it counts, whenever that is told to others."""
    text = """from rsn.streams import *
X: f32[8, 8]
Y: f32[8, 8]
s: Stream[f32[8], 2]
t: Stream[f32[8], 2]
@task(mapping=[1], args=[X], double_buffer=True)
def first(x: f32[8, 8]):
    for i in range(8):
        s.put(x[i, :] * 2.0)
        if i % 2 == 0:
            t.put(x[7 - i, :])
@task(mapping=[1], args=[Y], double_buffer=True)
def second(y: f32[8, 8]):
    for i in range(8):
        a = s.get()
        if i % 2 == 0:
            a = a + t.get()
        y[i, :] = a
"""
    mapped = chain(Mapped.start(mapping_graph(region_of(text))), "first", "second")
    regions = built(tmp_path, {"chained": mapped_program(mapped)})
    for _ in range(5):
        assert compare(regions)["equal"] == 1
