"""Stream programs on the engine: verdicts, times, and values against Python itself."""

from __future__ import annotations

import tomllib
from collections import deque
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from rsn.assembler import container
from rsn.assembler.parser import parse
from rsn.assembler.printer import show
from rsn.base.errors import DeadlockError, ProgramError, UndecidedError
from rsn.host.tasks import run_tasks
from rsn.hw.sim.machine import Machine
from rsn.isa.overlays.tasks.overlay import program_of, runnable
from rsn.isa.program import Program
from rsn.machine.executor import ProcessNetwork
from rsn.streams.build import Refused, build, task_program
from rsn.streams.check import check
from rsn.streams.reader import beats_of
from rsn.streams.run import Unending
from rsn.streams.tree import branches
from rsn.tests.effort import cases, in_both
from rsn.tests.streams.test_exhaustive import program_of as drawn_program
from rsn.tests.streams.test_exhaustive import source_of

LISTED = tomllib.loads((Path(__file__).parent / "listed.toml").read_text(encoding="utf-8"))
WELL = {name: case["program"] for name, case in LISTED.items() if not case["code"]}
BY_DATA = ("W11", "W12")
"""Programs whose steps data decides."""


def machine(text: str, name: str = "p.py") -> Program:
    return build(check(text, name))


@pytest.mark.parametrize("name", WELL)
def test_listed_programs_run_alike_with_and_without_data(name: str) -> None:
    program = machine(WELL[name], f"{name}.py")
    with_data = run_tasks(program)
    if name in BY_DATA:
        with pytest.raises(UndecidedError, match=f"{name}.py:6:"):
            Machine(program).run()
        return
    assert Machine(program).run().latency_s == with_data.run.latency_s
    overlay = program.overlay
    reference = ProcessNetwork(overlay, program.preloaded, data=True).run()
    assert reference == with_data.run.latency_s


def test_channels_of_an_unknown_tensor_are_refused() -> None:
    report = check(
        "from rsn.streams import *\nX: f32[4]\n\n@task(mapping=[1])\ndef zero(X: f32[4]):\n    X[:] = 0.0\n", "zero.py"
    )
    assert program_of(build(report, device="U55C", channels={"X": (2, 3)}).overlay).tensors[0].channels == (2, 3)
    with pytest.raises(ProgramError, match="channels of Y, no tensor of zero; there are X"):
        build(report, device="U55C", channels={"X": (2,), "Y": (3,)})


@pytest.mark.parametrize("name", ["I1", "I2", "I3", "I4", "I5", "I6", "I18", "I19"])
def test_refused_programs_fail_on_the_engine(name: str) -> None:
    report = check(LISTED[name]["program"], f"{name}.py")
    with pytest.raises(Refused, match=report.code):
        build(report)
    with pytest.raises((DeadlockError, ProgramError)):
        Machine(runnable(task_program(report.region))).run()


@pytest.mark.parametrize("name", WELL)
def test_a_large_program_is_run_with_clocks_to_see_that_its_beats_fire_together(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = check(WELL[name], f"{name}.py")
    before = task_program(report.region)

    def unending(*arguments: Any) -> Any:
        raise Unending

    monkeypatch.setattr("rsn.streams.build.fire_together", unending)
    if before.apart or any(branches(body) for body in beats_of(report.region)):
        with pytest.raises(ProgramError, match="it is too large to find which of its beats fire together"):
            task_program(report.region)
    else:
        assert task_program(report.region) == before


@pytest.mark.parametrize("name", ["W7", "W14", "W18", "W19"])
def test_files_hold_the_whole_machine(name: str) -> None:
    program = machine(WELL[name], f"{name}.py")
    read = container.loads(container.dumps(program))
    typed = parse(show(read), f"{name}.rsn")
    assert isinstance(typed, Program)
    for other in (read, typed):
        assert program_of(other.overlay) == program_of(program.overlay)
        assert other.overlay.fingerprint == program.overlay.fingerprint
        assert vars(Machine(other).run()) == vars(Machine(program).run())


# -- values: programs drawn, and executed by Python itself -------------------------------------------------------------

HEAD = """from rsn.streams import *
x: {kind}[8]
y: {kind}[8]
s: Stream[{kind}, 3]
t: Stream[{kind}, 2][2]
"""
BODIES = """
@task(mapping=[1], args=[x])
def source(x):
    for i in range(8):
        s.put(x[i])
@task(mapping=[2])
def middle():
    tid = get_tid()
    total = 0
    held: {kind} = {start}
    with meta_if(tid == 0):
        for i in range(8):
            a = s.get()
            use(a)
            {first}
            t[0].put(b)
    with meta_else():
        for i in range(8):
            a = t[0].get()
            use(a)
            {second}
            t[1].put(b)
@task(mapping=[1], args=[y])
def sink(y):
    for i in range(8):
        y[i] = t[1].get()
"""


def expression(random: Random, names: list[str], depth: int, floats: bool) -> str:
    if not depth or random.random() < 0.2:
        return random.choice([*names, *(["0.5", "-1.25", "3.0"] if floats else ["1", "-7", "300"])])
    a, b = (expression(random, names, depth - 1, floats) for _ in range(2))
    kind = random.random()
    if kind < 0.6:
        return f"({a} {random.choice('+-*')} {b})"
    if kind < 0.75:
        return f"({a} if {b} {random.choice(['<', '>=', '=='])} {a} else {b})"
    if kind < 0.85:
        return f"(-{a})"
    return f"max({a}, {b})" if floats else f"({a} // {random.choice('379')} + {b} % {random.choice('257')})"


def statements(random: Random, floats: bool) -> str:
    names = ["a", "held", "i"]
    lines = [f"b = {expression(random, names, 2, floats)}"]
    if random.random() < 0.6:
        lines.append(f"held = held + {expression(random, names, 1, floats)}")
        lines[-1] = lines[-1].replace("held = ", "held: KIND = ")
    if random.random() < 0.5:
        lines.append(f"if i % 3 == {random.randint(0, 2)}:\n                b = {expression(random, names, 1, floats)}")
    if random.random() < 0.4:
        lines.append("for k in range(3):\n                b = b + k")
    return "\n            ".join(lines)


class Fifo(deque[Any]):
    """A stream without end, for tasks that run one after the other."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.wrap = wrap

    def put(self, value: Any) -> None:
        self.append(self.wrap(value))

    def get(self) -> Any:
        return self.popleft()


def by_python(text: str, x: Any, wrap: Any) -> Any:
    """Execute the tasks in the order of the pipeline, as plain Python."""
    lines = [line for line in text.splitlines() if not line.startswith(("x:", "y:", "s:", "t:", "from", "@"))]
    body = "\n".join(lines).replace("with meta_if(tid == 0)", "if tid == 0").replace("with meta_else()", "else")
    out = np.zeros(8, x.dtype)
    names: dict[str, Any] = {"s": Fifo(wrap), "t": [Fifo(wrap), Fifo(wrap)], "wrap": wrap, "use": repr}
    body = "\n".join(
        f"{line.split(':')[0]} = wrap({line.split('=', 1)[1]})" if "held: " in line else line
        for line in body.splitlines()
    )
    with np.errstate(all="ignore"):
        exec(body, names)
        names["source"](list(map(wrap, x.tolist())))
        for tid in range(2):
            names["get_tid"] = lambda tid=tid: tid
            names["middle"]()
        names["sink"](out)
    return out


@in_both
def test_what_one_beat_puts_in_several_iterations_has_the_index_of_each() -> None:
    """An unrolled loop ends no beat, so all that it puts is computed when its last iteration has come."""
    text = """from rsn.streams import *
X: i32[3, 4]
Y: i32[3, 4]
Z: i32[3]
s: Stream[i32[4], 2][3]
t: Stream[i32, 2][3]
@task(mapping=[1], args=[X])
def give(x: i32[3, 4]):
    for i in meta_for(3):
        for j in meta_for(i, i + 1):
            s[i].put(x[i, :] + j)
        k = 10 * i
        t[i].put(k + i)
@task(mapping=[1], args=[Y, Z])
def take(y: i32[3, 4], z: i32[3]):
    for i in meta_for(3):
        y[i, :] = s[i].get() * i
        z[i] = t[i].get() - i
"""
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    i = np.arange(3, dtype=np.int32)
    program = machine(text)
    run = run_tasks(program, {"X": x})
    np.testing.assert_array_equal(run.outputs["Y"], (x + i[:, None]) * i[:, None])
    np.testing.assert_array_equal(run.outputs["Z"], 10 * i)
    assert run.run.latency_s == Machine(program).run().latency_s


@pytest.mark.parametrize("kind", ["i8", "i32", "f32"])
def test_values_are_those_of_python(kind: str) -> None:
    random = Random(kind)
    floats = kind == "f32"
    dtype = {"i8": np.int8, "i32": np.int32, "f32": np.float32}[kind]

    def wrap(value: Any) -> Any:
        return np.float32(value) if floats else int(np.array(int(value) & 0xFFFFFFFF, np.uint32).astype(dtype))

    for number in range(cases(200, 15)):
        text = HEAD.format(kind=kind) + BODIES.format(
            kind=kind,
            start="0.5" if floats else "5",
            first=statements(random, floats),
            second=statements(random, floats),
        ).replace("KIND", kind)
        x = np.random.default_rng(number).integers(-100, 100, 8).astype(dtype)
        x = x / np.float32(8) if floats else x
        expected = by_python(text, x, wrap)
        program = machine(text)
        got = run_tasks(container.loads(container.dumps(program)), {"x": x})
        np.testing.assert_array_equal(got.outputs["y"], expected, err_msg=text)
        assert Machine(program).run().latency_s == got.run.latency_s


TILES = """from rsn.streams import *
a: {kind}[3, 4]
b: {kind}[3, 4]
y: {kind}[3, 4]
s: Stream[{kind}[3, 4], 2]
@task(mapping=[1], args=[a])
def source(a):
    s.put(a[:, :])
@task(mapping=[1], args=[b, y])
def sink(b: {kind}[3, 4], y: {kind}[3, 4]):
    p = s.get()
    q = b[:, :]
    y[:, :] = {expression}
"""
TILE_EXPRESSIONS = {
    "(p + q) // 2": lambda p, q: (p + q) // 2,
    "(p - q) >> 1": lambda p, q: (p - q) >> 1,
    "add(p, q) // 3 - -q // 2": lambda p, q: (p + q) // 3 - -q // 2,
    "maximum(p - q, 3 * q) // 2": lambda p, q: np.maximum(p - q, 3 * q) // 2,
    "minimum(mul(p, q), 1000) // 7": lambda p, q: np.minimum(p * q, 1000) // 7,
    "(p * 1000 + q) % 77": lambda p, q: (p * 1000 + q) % 77,
    "abs(sub(p, 300)) // 5": lambda p, q: abs(p - 300) // 5,
    "relu(scale(p, 5)) // 4 ^ 200": lambda p, q: np.maximum(p * 5, 0) // 4 ^ 200,
    "(p << 4) // 3": lambda p, q: (p << 4) // 3,
    "reduce_sum(p * q, 0, keepdims=True) // 3 + p": lambda p, q: (p * q).sum(0, keepdims=True) // 3 + p,
    "p @ transpose(q) @ q // 9": lambda p, q: p @ q.T @ q // 9,
}


@pytest.mark.parametrize("kind", ["i8", "u8", "i16", "i32"])
def test_integers_in_tiles_are_exact_until_they_are_stored(kind: str) -> None:
    dtype = np.dtype({"i": "int", "u": "uint"}[kind[0]] + kind[1:])
    limits, random = np.iinfo(dtype), np.random.default_rng(3)
    a, b = (random.integers(limits.min, limits.max, (3, 4), dtype, endpoint=True) for _ in range(2))
    a[0], b[0] = limits.min, limits.max
    a[1, :2], b[1, :2] = limits.min, limits.min
    if kind == "i32":
        a, b = a >> 12, b >> 12  # sums of products of three fit into 64 bits
    for expression, exact in TILE_EXPRESSIONS.items():
        got = run_tasks(machine(TILES.format(kind=kind, expression=expression)), {"a": a, "b": b}).outputs["y"]
        expected = exact(a.astype(np.int64), b.astype(np.int64))
        np.testing.assert_array_equal(got, expected.astype(dtype), err_msg=expression)


def test_a_number_that_is_stored_in_a_tile_wraps() -> None:
    text = TILES.format(kind="i8", expression="q").replace(
        "    y[:, :] = q", "    q[0, 0] = 300 + use(p)\n    y[:, :] = q"
    )
    tile = np.zeros((3, 4), np.int8)
    assert run_tasks(machine(text), {"a": tile, "b": tile}).outputs["y"][0, 0] == 300 - 256


@pytest.mark.parametrize(
    "body",
    [
        "z: f32[8, 4] @ Layout('S0R') = x[:, :]",
        "z: Annotated[f32[8, 4], Layout('S0R')] = x[:, :]",
        "z: f32[M // 2, 4] = x[:, :]",
        "z: f32[8, 4] @ Layout('S0R'); z[:, :] = x[:, :]",
        "n: int = 1; z = x[:, :] * n",
        "z = zeros(f32[M // 2], 4) + x[:, :]",
        "z = tile(f32, M // 2, 4); z[:, :] = x[:, :]",
    ],
)
def test_the_machine_has_the_types_that_the_check_reads(body: str) -> None:
    text = f"""from typing import Annotated
from rsn.streams import *
M = 8
X: f32[M, 4]
Y: f32[M, 4]
@task(mapping=[2], args=[X, Y])
def t(x: f32[M, 4] @ Layout("S0R"), y: f32[M, 4] @ Layout("S0R")):
    {body}
    y[:, :] = z
"""
    given = np.arange(32, dtype="f4").reshape(8, 4)
    assert (run_tasks(machine(text), {"X": given}).outputs["Y"] == given).all()


def test_a_type_that_is_another_one_in_each_iteration_is_refused() -> None:
    text = """from rsn.streams import *
@task(mapping=[1])
def t():
    with meta_for(2) as k:
        z = zeros(f32[k + 1], 4)
        with meta_if(k > 0):
            use(z)
"""
    with pytest.raises(
        Refused, match=r"this is f32\[1\] here and f32\[2\] there; a machine has one type in each place"
    ):
        machine(text)


@in_both
def test_programs_that_pass_the_check_end_on_the_engine() -> None:
    random = Random(11)
    apart = 0
    for _ in range(cases(1000, 60)):
        text = source_of(*drawn_program(random))
        report = check(text)
        if report.code:
            continue
        program = build(report)
        apart += bool(program_of(program.overlay).apart)
        with_data = run_tasks(program).run.latency_s
        if "data()" not in text:
            assert Machine(program).run().latency_s == with_data
    assert apart >= cases(4, 0)


def test_a_variable_of_a_task_hides_the_constant_of_its_name() -> None:
    text = """
from rsn.streams import *

k = 3
y: f32[4]


@task(mapping=[1], args=[y])
def count(y: f32[4]) -> None:
    for k in range(4):
        y[k] = 2.0 * k
"""
    assert run_tasks(machine(text)).outputs["y"].tolist() == [0, 2, 4, 6]
