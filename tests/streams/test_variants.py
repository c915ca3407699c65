"""Variants of kernels: which one is taken, which conditions fail, and the cycles."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner, Result

from rsn.base.element_types import ElementType
from rsn.base.errors import ProgramError
from rsn.cli.main import main
from rsn.streams.check import Report, report_on
from rsn.streams.datapath import Datapath, KernelVariant, TileOperand, loop
from rsn.streams.mapping.footprint import footprint
from rsn.streams.rates import read_kernels
from rsn.streams.reader import read
from rsn.tests.effort import cases, in_both
from rsn.tests.streams.test_layouts import task
from rsn.tests.streams.test_time import evaluated, on_the_engine

SMALL = KernelVariant("small", "matmul", (4, 4, 4), 10, 4)
WIDE = KernelVariant("wide", "matmul", (8, 4, 16), 20, 6, vectors=(1, 16))
TURNED = KernelVariant("turned", "matmul", (4, 4, 4), 9, 3, layouts=("rows", "columns"))
ROWS = KernelVariant("rows16", "softmax", (2, 16), 30, 5)
ADD = KernelVariant("sum", "add", (1, 16), 1, 1)
WITH_SOURCE = tuple(replace(variant, source="own.h", call="f") for variant in (TURNED, ROWS))
GEMM = {"a": "f32[16, 8]", "b": "f32[8, 16]", "c": "f32[16, 16]"}


def told(text: str, *variants: KernelVariant) -> Report:
    return report_on(read(text, "prog.py", variants=variants))


def test_the_cheapest_one_that_fits_is_taken() -> None:
    text = task("c[:] = a @ b", **GEMM, mapping="[1]")
    big = KernelVariant("big", "matmul", (32, 8, 16), 1, 1)
    assert str(told(text, SMALL, WIDE, big)) == (
        "prog.py:7:12: note: matmul is 2 x 2 x 1 calls of wide, 39 cycles [variant]\n"
        "    c[:] = a @ b\n"
        "           ^^^^^\n"
        "note: big does not fit: rows = 16 is no multiple of 32\n"
        "note: small fits, with 135 cycles"
    )


@pytest.mark.parametrize(
    ("variant", "body", "tensors", "why"),
    [
        (WIDE, "c[:, 0:8] = a @ b", {"b": "f32[8, 8]"}, "words of b have 8 elements, no multiple of a vector of 16"),
        (SMALL, "c[:] = a @ b", {"a": "f32[16, 6]", "b": "f32[6, 16]"}, "depth = 6 is no multiple of 4"),
        (
            KernelVariant("norm", "layernorm", (2, 16), 1, 1, layouts=("rows", "columns", "rows")),
            "c[:] = layernorm(c, g, g)",
            {"g": "f32[16]"},
            "g is f32[16], and it takes a matrix by columns",
        ),
        (
            KernelVariant("half", "matmul", (4, 4, 4), 1, 1, types=("f16", "bf16")),
            "c[:] = a @ b",
            {},
            "a is f32[16, 8], and it takes f16 or bf16",
        ),
        (
            KernelVariant("one", "matmul", (4, 4, 4), 1, 1, shapes=((8, 8, 8), (64, 8, 8))),
            "c[:] = a @ b",
            {},
            "rows x depth x columns = 16 x 8 x 16, and it takes 8 x 8 x 8 or 64 x 8 x 8",
        ),
        (ROWS, "c[:, 0:8] = softmax(a)", {}, "columns = 8 is no multiple of 16"),
        (ROWS, "use(softmax(a))", {"a": "f32[16, 32]"}, "columns = 32, and it takes whole rows of 16"),
        (ADD, "c[:] = c + c[0]", {}, "c[0] is f32[16], and the result f32[16, 16]"),
        (ADD, "c[:] = c + c * c", {}, "c * c is computed where it is read: assign it first"),
    ],
)  # fmt: skip
def test_why_one_does_not_fit(variant: KernelVariant, body: str, tensors: dict[str, str], why: str) -> None:
    report = told(task(body, **(GEMM | tensors), mapping="[1]"), variant)
    (note,) = report.findings
    assert note.message.startswith("no variant of ")
    assert note.notes[0].startswith(f"{variant.name} does not fit: ")
    assert why in note.notes[0]


@pytest.mark.parametrize(
    ("layouts", "body", "cycles", "told"),
    [
        # 128 elements, 8 transposed in a cycle, or 64 copied to blocks; arrivals come by columns, tokens and b[:] alike
        (("rows", "rows"), "c[:] = a @ b.T", 135 + 17, ["b.T is copied to lie by rows, 17 cycles"]),
        (("rows", "columns"), "c[:] = a @ b.T", 135, ["b.T lies by columns, so it is not copied"]),
        (("columns", "rows"), "c[:] = a @ d", 135, ["a arrives by columns, so it is not copied"]),
        (("columns", "rows"), "x = a + a\n    c[:] = x @ d", 152, ["x is copied to lie by columns, 17 cycles"]),
        (("4x2", "rows"), "c[:] = a[:] @ d", 135 + 5, ["a[:] is copied to lie in blocks of 4x2, 5 cycles"]),
        (("rows", "2x4"), "c[:] = a @ b.T", 135 + 17, ["b.T is copied to lie in blocks of 2x4, 17 cycles"]),
    ],
)
def test_layouts(layouts: tuple[str, str], body: str, cycles: int, told: list[str]) -> None:
    tensors = {"a": "f32[16, 8]", "b": "f32[16, 8]", "c": "f32[16, 16]", "d": "f32[8, 16]"}
    text = task(body, **tensors, mapping="[1]")
    (note,) = report_on(read(text, "prog.py", variants=(replace(SMALL, layouts=layouts),))).findings
    assert note.message == f"matmul is 4 x 2 x 4 calls of small, {cycles} cycles"
    assert list(note.notes) == told


def test_the_cheapest_one_with_copies_is_taken() -> None:
    text = task("x = b + b\n    c[:] = a @ x", **GEMM, mapping="[1]")
    slower, faster = replace(SMALL, latency=20), replace(TURNED, latency=18)
    (note,) = told(text, slower, faster).findings  # 31 intervals of 3 and a copy of 17 cycles, or 31 of 4
    assert note.message == "matmul is 4 x 2 x 4 calls of turned, 129 cycles"
    (note,) = told(text, slower, replace(faster, interval=4)).findings
    assert note.message == "matmul is 4 x 2 x 4 calls of small, 145 cycles"
    assert note.notes == ("turned fits, with 160 cycles",)


def test_a_copy_takes_memory() -> None:
    text = task("x = b + b\n    c[:] = a @ x", **GEMM, mapping="[1]")
    held = []
    for variant in (SMALL, TURNED):
        region = read(text, timed=True, variants=(variant,))
        needs = footprint(region, region.instances[0])
        assert needs is not None
        held.append(needs.held)
    assert held[1] - held[0] == 8 * 16 * 4


def test_whole_rows() -> None:
    text = task("c[:] = softmax(c)", **GEMM, mapping="[1]")
    (note,) = told(text, ROWS).findings
    assert note.message == "softmax is 8 x 1 calls of rows16, 66 cycles"


def test_rates_of_a_task_and_cycles_that_it_states_come_first() -> None:
    text = task("c[:] = a @ b", **GEMM, mapping="[1]")
    assert len(told(text, SMALL).findings) == 1
    assert told(text.replace("C])", "C], rates=dict(matmul=4))"), SMALL).findings == ()
    assert told(text.replace("    c[:]", "    cycles(3)\n    c[:]"), SMALL).findings == ()


@in_both
def test_the_cycles_are_the_fewest_of_those_that_fit() -> None:
    random, taken = Random(3), 0
    for _ in range(cases(2000, 200)):
        variants = tuple(
            KernelVariant(
                f"v{k}",
                "matmul",
                tuple(random.choice((1, 2, 4, 8)) for _ in range(3)),
                random.randint(1, 50),
                random.randint(1, 20),
                random.choice(((), (1, 4), (4, 4))),
                types=random.choice(((), ("f32",), ("f16",))),
            )
            for k in range(random.randint(1, 4))
        )
        rows, depth, columns = sizes = tuple(random.choice((4, 8, 12, 6)) for _ in range(3))
        batch = random.choice(((), (3,)))
        operands = [
            TileOperand(ElementType("f32", shape), False, False, name)
            for name, shape in (("a", (*batch, rows, depth)), ("b", (*batch, depth, columns)))
        ]
        fitting = [
            loop(prod(batch) * prod(map(int.__floordiv__, sizes, v.tile)), v.latency, v.interval).total
            for v in variants
            if all(n % one == 0 for n, one in zip(sizes, v.tile, strict=True))
            and "f16" not in v.types
            and not any(n % vector for n, vector in zip((depth, columns), v.vectors, strict=False))
        ]
        choice = Datapath({}, 1, variants).chosen("matmul", operands, ElementType("f32", (*batch, rows, columns)))
        assert choice is not None
        assert (choice.variant is None) == (not fitting)
        assert choice.cycles == min(fitting, default=0)
        assert len(choice.others) == len(variants) - bool(fitting)
        taken += bool(fitting)
    assert taken > cases(500, 50)


PIPELINE = """from rsn.streams import *
A: f32[16, 8]
B: f32[8, 16]
C: f32[16, 16]
s: Stream[f32[8, 16], 2]
@task(mapping=[1], args=[B])
def give(b: f32[8, 16]):
    for k in range(3):
        s.put(b[:, :])
@task(mapping=[1], args=[A, C])
def work(a: f32[16, 8], c: f32[16, 16]):
    total = zeros(f32, 16, 16)
    for k in range(3):
        total += a @ s.get()
    c[:] = softmax(total)
"""


@pytest.mark.parametrize("rates", [{}, {"matmul": 16.0, "elements": 8.0}])
@pytest.mark.parametrize("variants", [(), (SMALL,), (SMALL, WIDE), (WIDE, ROWS), (TURNED,), WITH_SOURCE])
def test_tasks_take_the_same_time_on_the_engine_and_in_beats(
    variants: tuple[KernelVariant, ...], rates: dict[str, float]
) -> None:
    assert on_the_engine(PIPELINE, rates, variants) == pytest.approx(evaluated(PIPELINE, rates, variants))


def test_the_cycles_of_a_run_are_those_of_the_variant() -> None:
    slow = KernelVariant("slow", "matmul", (16, 8, 16), 1000, 1000)
    rates = {"matmul": 16.0, "elements": 8.0}
    fast = replace(slow, latency=500)
    apart = on_the_engine(PIPELINE, rates, (slow,)) - on_the_engine(PIPELINE, rates, (fast,))
    assert apart == pytest.approx(3 * 500)


TABLE = """[kernels]
elements = 8
[[variants]]
kernel = "matmul"
name = "wide"
tile = [8, 4, 16]
vectors = [1, 16]
layouts = ["rows", "columns"]
types = ["f32", "bf16"]
shapes = [[16, 8, 16]]
latency = 20
interval = 6
"""


def test_a_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kernels.toml"
    path.write_text(TABLE)
    rates, (variant,) = read_kernels(path)
    assert rates == {"elements": 8}
    assert variant == KernelVariant(
        "wide", "matmul", (8, 4, 16), 20, 6, (1, 16), ("rows", "columns"), ("f32", "bf16"), ((16, 8, 16),)
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[kernels]", "[kernel]", "it has a table [kernels], tables [[variants]], or both, and no others"),
        ("[[variants]]", "[variants]", "it has a table [kernels], tables [[variants]], or both, and no others"),
        ('"matmul"', '"reduce_sum"', "variant 1, wide: kernel = 'reduce_sum': there are matmul, add"),
        ('name = "wide"\n', "", "variant 1: it has no name"),
        ("[8, 4, 16]", "[8, 4]", "variant 1, wide: tile = [8, 4]: rows, depth, columns"),
        ("[8, 4, 16]", "[8, 0, 16]", "variant 1, wide: tile = 0: a whole number, larger than 0"),
        ("latency = 20\n", "", "variant 1, wide: latency = None: a whole number, larger than 0"),
        (
            "= 20",
            f"= {1 << 40}",
            "latency = 1099511627776: a whole number, larger than 0 and smaller than 1099511627776",
        ),
        ("[1, 16]", "[16]", "1 vectors; the operands of matmul are a, b"),
        ("[1, 16]", "16", "variant 1, wide: vectors = 16: a list"),
        ('["rows", "columns"]', '["rows"]', "1 layouts; the operands of matmul are a, b"),
        ('"columns"', '"blocks"', "layouts = 'blocks': of rows, columns, and blocks of rows x columns such as 4x8"),
        ('"columns"', '"4x0"', "layouts = '4x0': of rows, columns, and blocks"),
        ('"columns"', '"3x16"', "layouts: a call takes 4 x 16 of b: no whole blocks of 3x16"),
        ('"bf16"', '"f33"', "of boolean, i4, i8"),
        ("[[16, 8, 16]]", "16", "shapes = 16: a list"),
        ("latency", "cost = 3\nlatency", "there is no cost"),
        (
            "[kernels]\nelements = 8\n",
            TABLE.partition("\n[[")[2].join(["[[", ""]),
            "wide is the name of several variants",
        ),
    ],
)
def test_a_table_that_is_wrong(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "kernels.toml"
    path.write_text(TABLE.replace(old, new, 1))
    with pytest.raises(ProgramError) as caught:
        read_kernels(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def invoke(*args: str) -> Result:
    return CliRunner().invoke(main, [*args])


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prog.py").write_text(task("c[:] = a @ b", **GEMM, mapping="[1]"))
    Path("kernels.toml").write_text(TABLE.replace('layouts = ["rows", "columns"]\n', ""))
    (row,) = json.loads(invoke("check", "prog.py", "--kernels", "kernels.toml", "--json").output)["findings"]
    assert (row["code"], row["line"]) == ("variant", 7)
    assert row["message"] == "matmul is 2 x 2 x 1 calls of wide, 39 cycles"
    assert invoke("run", "prog.py", "--kernels", "kernels.toml", "--timing-only").exit_code == 0
    refused = invoke("hls", "prog.py", "--kernels", "kernels.toml", "-o", "out")
    assert refused.exit_code == 1
    assert (
        'there is no C++ of the variant wide: add source = "HEADER.h" and call = "FUNCTION" to its [[variants]]'
        in refused.output
    )
    both = invoke("check", "prog.py", "--kernels", "kernels.toml", "--for-all", "n >= 1")
    assert both.exit_code == 2
    assert "has no times" in both.output
