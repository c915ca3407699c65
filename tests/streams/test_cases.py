"""The cases of programs/streams with data: results against NumPy, times with and without data."""

from __future__ import annotations

from collections.abc import Mapping
from math import erf
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rsn.assembler import container
from rsn.assembler.parser import parse
from rsn.assembler.printer import show
from rsn.base.errors import ProgramError
from rsn.host.tasks import run_tasks
from rsn.hw.sim.machine import Machine
from rsn.isa.overlays.tasks.overlay import program_of
from rsn.isa.overlays.tasks.values import DTYPES
from rsn.isa.program import Program
from rsn.streams.build import build
from rsn.streams.check import check, report_on
from rsn.streams.reader import Rates, read
from rsn.tests.effort import full, long
from rsn.tests.streams.sizes import FOLDER, program_text

Arrays = Mapping[str, npt.NDArray[Any]]
RATES: Rates = {"matmul": 128, "softmax": 16, "exp": 16, "gelu": 16, "add": 16}


def run(text: str, inputs: Arrays, rates: Rates = RATES) -> tuple[dict[str, npt.NDArray[Any]], float]:
    """The outputs of a program and its cycles. It takes the same time without data."""
    report = report_on(read(text, rates=rates))
    assert report.code == "", report
    program = build(report)
    result = run_tasks(program, inputs)
    assert Machine(program).run().latency_s == result.run.latency_s
    return result.outputs, result.run.latency_s * program.overlay.clock_hz


def apart(got: npt.NDArray[Any], expected: Any) -> float:
    """The largest deviation over the largest magnitude."""
    expected = np.asarray(expected)
    assert got.shape == expected.shape
    assert np.isfinite(got).all()
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def drawn(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def cut(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Values that bfloat16 has: the upper halves of float32."""
    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


# -- products ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("gemm_3d", {"M": 64, "N": 64, "K": 128}),
        ("gemm_3d", {"M": 6, "N": 10, "K": 12, "Pk": 3, "Pn": 5}),
        ("summa", {"M": 32, "N": 32, "K": 32}),
        ("summa", {"M": 6, "N": 15, "K": 9, "P": 3}),
        long("summa", {"M": 256, "N": 128, "K": 512, "P": 8}),
        ("cannon", {"M": 32, "N": 32, "K": 32}),
        ("cannon", {"M": 6, "N": 15, "K": 9, "P": 3}),
        ("cannon", {"M": 4, "N": 4, "K": 4, "P": 1}),
        long("cannon", {"M": 256, "N": 128, "K": 512, "P": 8}),
        ("split_k", {"M": 32, "N": 32, "K": 64}),
        ("split_k", {"M": 32, "N": 7, "K": 15, "P": 5, "T": 8}),
        ("mesh_gemm", {"M": 64, "N": 64, "K": 64}),
        ("mesh_gemm", {"M": 24, "N": 8, "K": 20, "R": 3, "C": 1, "T": 4, "LOAD": 7}),
        long("mesh_gemm", {"M": 512, "N": 512, "K": 512, "R": 4, "T": 64, "LOAD": 100}),
    ],
)
def test_products(name: str, sizes: dict[str, int]) -> None:
    m, n, k = (sizes[axis] for axis in "MNK")
    a, b = drawn(m, k), drawn(k, n)
    got = run(program_text(name, **sizes), {"A": a, "B": b})[0].popitem()[1]
    assert apart(got, a @ b) < 1e-5


@pytest.mark.parametrize("name", ["gemm_3d", "summa", "cannon", "split_k", "mesh_gemm"])
@pytest.mark.parametrize("kind", ["i8", long("i32"), "bf16"])
def test_products_of_other_types(name: str, kind: str) -> None:
    m, n, k = 32, 64, 64
    text = program_text(name, M=m, N=n, K=k).replace("f32", kind)
    if kind == "bf16":
        a, b = cut(drawn(m, k)), cut(drawn(k, n))
        got = run(text, {"A": a, "B": b})[0].popitem()[1]
        assert np.array_equal(got, cut(got))
        assert apart(got, a @ b) < 2**-7
        return
    dtype = np.dtype(kind.replace("i", "int"))
    info, random = np.iinfo(dtype), np.random.default_rng(5)
    a, b = (random.integers(info.min, info.max, shape, dtype, endpoint=True) for shape in ((m, k), (k, n)))
    got = run(text, {"A": a, "B": b})[0].popitem()[1]
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, (a.astype(np.int64) @ b.astype(np.int64)).astype(dtype))  # which wraps


@pytest.mark.parametrize(
    "sizes", [{"M": 8, "N": 12, "K": 5, "Rt": 4, "Ct": 4}, {"M": 6, "N": 4, "K": 7, "Rt": 3, "Ct": 2}, full({})]
)
def test_the_systolic_array(sizes: dict[str, int]) -> None:
    m, n, k, rows, columns = ({"M": 64, "N": 64, "K": 64, "Rt": 16, "Ct": 16} | sizes).values()
    random = np.random.default_rng(1)
    a, b = (random.integers(-128, 128, shape, np.int8) for shape in ((m, k), (k, n)))
    tiles_a = a.reshape(m // rows, rows, k).transpose(0, 2, 1)
    tiles_b = b.reshape(k, n // columns, columns).transpose(1, 0, 2)
    got = run(program_text("systolic", **sizes), {"A": tiles_a, "B": tiles_b})[0]["C"]
    expected = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int8)
    np.testing.assert_array_equal(got, expected.reshape(m // rows, rows, n).transpose(0, 2, 1))


def test_the_published_listing_of_the_systolic_array_is_refused_at_its_put() -> None:
    """It packs columns of M elements, and puts them on a stream of columns of Rt elements."""
    right = program_text("systolic", M=8, N=8, K=8, Rt=4, Ct=4)
    printed = right.replace("packed = zeros(i8, Rt)", "packed = zeros(i8, M)")
    printed = printed.replace("for m in range(Rt)", "for m in range(M)")
    report = check(printed, "systolic.py")
    first = report.findings[0]
    assert (report.code, first.message) == ("type", "gemm[1,1] puts i8[8] on L1_C: Stream[i8[4]]")
    assert first.place is not None
    assert "L1_C[i - 1, j - 1].put(packed)" in right.splitlines()[first.place.line - 1]
    assert check(right).code == ""


# -- others -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 16, 1000])
def test_producer_and_consumer(size: int) -> None:
    a = drawn(size)
    outputs, cycles = run(program_text("producer_consumer", N=size), {"A": a})
    np.testing.assert_array_equal(outputs["B"], a + np.float32(1))
    assert cycles == pytest.approx(size + 1)  # the consumer is a beat behind


@pytest.mark.parametrize(("ring", "size"), [(2, 8), (4, 64), (5, 5), long(32, 4096)])
def test_the_ring(ring: int, size: int) -> None:
    x = drawn(ring, size)
    outputs, cycles = run(program_text("ring", P=ring, N=size), {"X": x}, {})
    assert apart(outputs["Y"], np.broadcast_to(x.sum(0), x.shape)) < 1e-5
    assert (outputs["Y"] == outputs["Y"][0]).all()
    assert cycles == pytest.approx(4 * (ring - 1))  # 2 (P - 1) steps of a put and a get


def attention(q: npt.NDArray[Any], k: npt.NDArray[Any], v: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Attention of each head, in float64. Arguments: [heads, rows, columns of a head]."""
    scores = q.astype(np.float64) @ k.transpose(0, 2, 1) / q.shape[-1] ** 0.5
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    mixed: npt.NDArray[np.float64] = powers / powers.sum(-1, keepdims=True) @ v
    return mixed


WHOLE = {"H": 12, "D": 64, "B": 64}
ATTENTION = [
    {"L": 8, "H": 3, "D": 4, "B": 2},
    {"L": 5, "H": 2, "D": 3, "B": 5},
    long({"L": 128, **WHOLE}),
    *(full({"L": length, **WHOLE}) for length in (512, 1024, 2048)),
]


@pytest.mark.parametrize("sizes", ATTENTION)
def test_multi_head_attention(sizes: dict[str, int]) -> None:
    length, count, width = sizes["L"], sizes["H"], sizes["H"] * sizes["D"]
    x, weights = drawn(length, width), [drawn(width, width, seed=n) / np.float32(width**0.5) for n in range(4)]
    inputs = {"X": x} | dict(zip(("WQ", "WK", "WV", "WO"), weights, strict=True))
    got = run(program_text("mha", **sizes), inputs)[0]["Y"]
    q, k, v = ((x @ w).reshape(length, count, -1).transpose(1, 0, 2) for w in weights[:3])
    mixed = attention(q, k, v).transpose(1, 0, 2).reshape(length, width)
    assert apart(got, mixed @ weights[3]) < 1e-5


@pytest.mark.parametrize(
    ("sizes", "spread"),
    [
        ({"L": 8, "H": 3, "D": 4, "R": 4, "B": 2}, 1.0),
        ({"L": 12, "H": 1, "D": 3, "R": 2, "B": 3}, 30.0),
        long({"L": 512, "H": 12, "D": 64, "R": 64, "B": 128}, 30.0),
        long({"L": 128, "H": 12, "D": 64, "R": 128, "B": 64}, 1.0),
        *(full({"L": length, "H": 12, "D": 64, "R": 128, "B": 64}, 1.0) for length in (512, 1024, 2048)),
    ],
)
def test_flash_attention(sizes: dict[str, int], spread: float) -> None:
    """spread: of the queries; with large ones the maximum of a row often changes, and powers of other chunks vanish."""
    shape = sizes["H"], sizes["L"], sizes["D"]
    q, k, v = drawn(*shape) * np.float32(spread), drawn(*shape, seed=1), drawn(*shape, seed=2)
    got = run(program_text("flash_attention", **sizes), {"Q": q, "K": k, "V": v})[0]["Y"]
    # Scores of `spread` times the magnitude have so much larger rounding errors.
    assert apart(got, attention(q, k, v)) < 1e-5 * max(1, spread / 10)


@pytest.mark.parametrize(
    "sizes",
    [
        {"L": 8, "E": 6, "F": 12, "P": 3, "B": 2},
        {"L": 3, "E": 5, "F": 4, "P": 2, "B": 3},
        *(long({"L": length, "E": 768, "F": 3072, "P": 4, "B": 64}) for length in (128, 512)),
    ],
)
def test_the_feed_forward_block(sizes: dict[str, int]) -> None:
    length, width, hidden = sizes["L"], sizes["E"], sizes["F"]
    x, b1, b2 = drawn(length, width), drawn(hidden), drawn(width)
    w1, w2 = drawn(width, hidden) / np.float32(width**0.5), drawn(hidden, width) / np.float32(hidden**0.5)
    got = run(program_text("ffn", **sizes), {"X": x, "W1": w1, "B1": b1, "W2": w2, "B2": b2})[0]["Y"]
    hidden_x = x @ w1 + b1
    gelu = hidden_x * (1 + np.vectorize(erf)(hidden_x * 0.5**0.5)) / 2
    assert apart(got, gelu @ w2 + b2) < 1e-5


# -- sizes that do not fit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("gemm_3d", {"M": 63}),
        ("gemm_3d", {"K": 127}),
        ("summa", {"K": 31}),
        ("summa", {"P": 3}),
        ("cannon", {"N": 31}),
        ("cannon", {"P": 5}),
        ("split_k", {"K": 62}),
        ("split_k", {"M": 33}),
        ("ring", {"N": 63}),
        ("ring", {"P": 5}),
        ("systolic", {"M": 10, "Rt": 4, "Ct": 4}),
        ("systolic", {"N": 10, "Rt": 4, "Ct": 4}),
        ("mha", {"L": 130}),
        ("mha", {"B": 48}),
        ("flash_attention", {"L": 130}),
        ("flash_attention", {"B": 48}),
        ("flash_attention", {"R": 96, "B": 96, "L": 128}),
        ("ffn", {"L": 130}),
        ("ffn", {"F": 3070}),
        ("mesh_gemm", {"M": 65}),
        ("mesh_gemm", {"N": 72}),
        ("mesh_gemm", {"K": 65}),
        ("mesh_gemm", {"T": 24}),
    ],
)
def test_sizes_that_do_not_divide_are_refused(name: str, sizes: dict[str, int]) -> None:
    assert check(program_text(name, **sizes)).code != ""


SMALL = {
    "systolic": {"M": 8, "N": 8, "K": 5, "Rt": 4, "Ct": 4},
    "mha": {"L": 8, "H": 3, "D": 4, "B": 2},
    "flash_attention": {"L": 8, "H": 3, "D": 4, "R": 4, "B": 2},
    "ffn": {"L": 8, "E": 6, "F": 12, "P": 3, "B": 2},
}
PROGRAMS = sorted(file.stem for file in FOLDER.glob("*.py") if file.stem not in ("__init__", "sizes"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_files_of_the_cases_give_equal_results(name: str) -> None:
    program = build(check(program_text(name, **SMALL.get(name, {})), f"{name}.py"))
    inputs = {
        t.name: (drawn(*t.type.shape) * 50).astype(DTYPES[t.type.dtype])
        for t in program_of(program.overlay).tensors
        if t.input
    }
    expected = run_tasks(program, inputs)
    binary = container.loads(container.dumps(program))
    text = parse(show(binary), f"{name}.rsn")
    assert isinstance(text, Program)
    for other in (binary, text):
        got = run_tasks(other, inputs)
        assert got.run.latency_s == expected.run.latency_s
        assert got.outputs.keys() == expected.outputs.keys()
        for tensor, value in expected.outputs.items():
            np.testing.assert_array_equal(got.outputs[tensor], value)


@pytest.mark.parametrize(("kind", "bound"), [("bf16", 2**-6), long("f16", 2**-8), long("f64", 1e-6)])
@pytest.mark.parametrize("name", sorted({*PROGRAMS} - {"systolic"}))
def test_cases_in_other_floats(name: str, kind: str, bound: float) -> None:
    text = program_text(name, **SMALL.get(name, {}))
    tensors = program_of(build(check(text)).overlay).tensors
    inputs = {t.name: cut(drawn(*t.type.shape)).astype(np.float16).astype(np.float32) for t in tensors if t.input}
    expected, _ = run(text, inputs)
    got, _ = run(text.replace("f32", kind), {name: x.astype(DTYPES[kind]) for name, x in inputs.items()})
    for tensor, value in expected.items():
        assert apart(got[tensor], value) < bound


def test_every_program_is_checked_without_findings() -> None:
    for name in PROGRAMS:
        report = check(program_text(name, **({"Rt": 4, "Ct": 4} if name == "systolic" else {})))
        assert report.code == "", report
        # The appendix leaves L2_A[0] and L2_B[0] without ends.
        assert [f.subject for f in report.findings] == (["L2_A", "L2_B"] if name == "systolic" else [])


def test_constants_that_a_program_does_not_have_are_refused() -> None:
    with pytest.raises(ProgramError, match=r"ring.py: there is no constant Q, R"):
        program_text("ring", P=4, Q=1, R=2)
    assert program_text("ring", N=128, P=8).splitlines()[8:10] != program_text("ring").splitlines()[8:10]
