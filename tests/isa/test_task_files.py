"""Files that hold a task machine: what is wrong in them is said, and nothing else happens."""

from __future__ import annotations

import tomllib
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from rsn.base.errors import ProgramError, RsnError
from rsn.hw.sim.machine import Machine
from rsn.isa.overlays.file import made, text
from rsn.isa.overlays.tasks.codec import toml
from rsn.isa.overlays.tasks.overlay import LONGEST, program_of, runnable
from rsn.isa.program import Program
from rsn.streams.build import build
from rsn.streams.check import check
from rsn.tests.effort import cases, in_both

SOURCE = """from rsn.streams import *
x: f32[2, 4, 4]
y: f32[2, 4, 4]
s: Stream[f32[4, 4], 2][2]
@task(mapping=[2], args=[x])
def a(x: f32[2, 4, 4] @ Layout("S0RR")):
    i = get_tid()
    with meta_if(i == 0):
        cycles(3)
    for k in range(3):
        s[i].put(softmax(x[0]) if k % 2 == 0 else x[0] + k)
@task(mapping=[2], args=[y])
def b(y: f32[2, 4, 4] @ Layout("S0RR")):
    i = get_tid()
    total = zeros(f32, 4, 4)
    for k in range(3):
        t = s[i].get()
        total = total + t @ t
        total[0, k] = 1.0
    y[0] = total
"""


@pytest.fixture(scope="module")
def program() -> Program:
    return build(check(SOURCE))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("links = 3", "links"),
        ('links = [["s", [2], "a_0", "b_0", 2, ""]]', r"s\[2\] is outside s"),
        ('links = [["s", [0], "a_0", "c", 2, ""]]', "units are expected"),
        ('external = ["np.abs"]', "np.abs: no file holds functions of the host"),
        ('arrays.s = [["f99"], 2, 1, []]', "no element type"),
        ('arrays.s = [["f32"], 3, 2, []]', "no multiple of transfers"),
        ('tasks.a = [[2], [], [1, 1], [["Exec", [1, 1], "import os"]]]', "'Exec' is no statement"),
        ('tasks.a = [[2], [], [1, 1], [["Leave", [1, 1]]]]', "Leave has 2 fields, not 1"),
        ('tasks.a = [[2], [], [1, 1], [["Put", [1, 1], "t", [], ["Constant", 1]]]]', "there is no stream t"),
        ('tasks.a = [[2], [], [1, 1], [["Read", [1, 1], [["Kernel", "eval", [], []]]]]]', "no kernel 'eval'"),
        ('units.a_0 = [["a", [2]]]', r"a\[2\] is outside the grid"),
        ("clock_hz = 0", "clock_hz"),
        ("memory = 3", "has no 'memory'"),
        ("device = 3", "file and device are texts"),
        ('tensors.x = [["f32", 2, 4, 4], true, false, [0]]', "no device is named"),
        ('tensors.x = [["f32", 2, 4, 4], true, false, [-1]]', "no list of whole numbers from 0 on"),
        ('tensors.x = [["f32", 2, 4, 4], true, false, [1], [2]]', "tensors.x has 2 parts"),
        ('tensors.x = [["f32", 2, 4, 4], true, false, [1], [], [2]]', "has 3 parts"),
    ],
)
def test_mistakes(program: Program, line: str, message: str) -> None:
    key = line.split(" = ")[0]
    lines = [old for old in text(program.overlay).splitlines() if not old.startswith(f"{key} =")]
    with pytest.raises(ProgramError, match=message):
        made("\n".join([*lines, line]), "m.toml")


def test_channels_travel_in_the_text(program: Program) -> None:
    placed = build(check(SOURCE), clock_hz=250e6, device="U55C", channels={"x": (4, 5)})
    lines = text(placed.overlay)
    again = program_of(made(lines, "m.toml"))
    assert again == program_of(placed.overlay)
    assert (again.device, [t.channels for t in again.tensors]) == ("U55C", [(4, 5), ()])
    assert "device" not in text(program.overlay)
    with pytest.raises(ProgramError, match=r"channels \[4, 4\]: one is listed twice"):
        made(lines.replace("[4, 5]", "[4, 4]"), "m.toml")


def test_a_unit_with_too_many_instances(program: Program) -> None:
    own = program_of(program.overlay)
    (unit, shots), *others = own.units
    long = replace(own, units=((unit, shots * (LONGEST + 1)), *others))
    with pytest.raises(ProgramError, match=f"{unit} runs {LONGEST + 1} task instances, at most {LONGEST}"):
        runnable(long)


def changed(random: Random, value: Any) -> Any:
    """The value with one part of it replaced, moved or left out."""
    if isinstance(value, list) and value and random.random() < 0.9:
        k = random.randrange(len(value))
        kind = random.random()
        if kind < 0.8:
            return [changed(random, part) if i == k else part for i, part in enumerate(value)]
        other = value[random.randrange(len(value))]
        return value[:k] + value[k + 1 :] if kind < 0.9 else [*value[:k], other, *value[k:]]
    return random.choice([0, 1, -1, 7, 1.5, "", "s", "x", "%1", True, [], [1], ["Name", "x"], ["Constant", 2], "+"])


@in_both
def test_changed_files_are_refused_or_run(program: Program) -> None:
    random = Random(5)
    given = tomllib.loads(text(program.overlay))
    read = 0
    for _ in range(cases(4000, 200)):
        other = dict(given)
        key = random.choice([k for k, v in given.items() if isinstance(v, dict | list)])
        if isinstance(given[key], dict):
            name = random.choice(list(given[key]))
            other[key] = given[key] | {name: changed(random, given[key][name])}
        else:
            other[key] = changed(random, given[key])
        lines = [
            f"{k} = {toml(v)}" if not isinstance(v, dict) else "\n".join(f"{k}.{n} = {toml(p)}" for n, p in v.items())
            for k, v in other.items()
        ]
        with suppress(RsnError):
            overlay = made("\n".join(lines), "m.toml")
            Machine(Program(overlay, (), program.preloaded, program.buffers)).run()
            read += 1
    assert read
