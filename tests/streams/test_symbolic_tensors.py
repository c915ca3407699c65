"""Proofs for every size of programs whose tensors have symbolic sizes, against the ordinary check of many sizes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from rsn.streams.symbolic.forall import prove
from rsn.tests.effort import cases, in_both, long
from rsn.tests.streams.tensor_programs import TensorWriter
from rsn.tests.streams.test_symbolic import agrees

PROGRAMS = Path(__file__).parents[2] / "programs/streams"
HEAD = "from rsn.streams import *\n"

VECTOR = """
N, B = 64, 8
a: f32[N]
b: f32[N]
c: f32[N]
sa: Stream[f32[B], 2]
sb: Stream[f32[B], 2]
@task(mapping=[1], args=[a])
def load_a(a: f32[N]) -> None:
    for i in range(N // B):
        sa.put(a[i * B : i * B + B])
@task(mapping=[1], args=[b])
def load_b(b: f32[N]) -> None:
    for i in range(N // B):
        sb.put(b[i * B : i * B + B])
@task(mapping=[1], args=[c])
def add(c: f32[N]) -> None:
    for i in range(N // B):
        c[i * B : i * B + B] = sa.get() + sb.get()
"""
MATRICES = """
M, N, K, T = 4, 4, 4, 8
A: f32[M * T, K * T]
B: f32[K * T, N * T]
C: f32[M * T, N * T]
sa: Stream[f32[T, T], 2]
sb: Stream[f32[T, T], 2]
sc: Stream[f32[T, T], 2]
@task(mapping=[1], args=[A])
def load_a(a: f32[M * T, K * T]) -> None:
    for i in range(M):
        for j in range(N):
            for k in range(K):
                sa.put(a[i * T : i * T + T, k * T : k * T + T])
@task(mapping=[1], args=[B])
def load_b(b: f32[K * T, N * T]) -> None:
    for i in range(M):
        for j in range(N):
            for k in range(K):
                sb.put(b[k * T : k * T + T, j * T : j * T + T])
@task(mapping=[1])
def multiply() -> None:
    for t in range(M * N):
        total = zeros(f32, T, T)
        for k in range(K):
            total = total + sa.get() @ sb.get()
        sc.put(total)
@task(mapping=[1], args=[C])
def store(c: f32[M * T, N * T]) -> None:
    for i in range(M):
        for j in range(N):
            c[i * T : i * T + T, j * T : j * T + T] = sc.get()
"""
SOFTMAX = """
N, K = 16, 8
x: f32[N, K]
y: f32[N, K]
rows: Stream[f32[K], 2]
@task(mapping=[1], args=[x])
def read(x: f32[N, K]) -> None:
    for i in range(N):
        rows.put(x[i, :])
@task(mapping=[1], args=[y])
def write(y: f32[N, K]) -> None:
    for i in range(N):
        y[i, :] = softmax(rows.get() * K ** -0.5)
"""
STAGES = """
N = 16
x: f32[N]
y: f32[N]
s: Stream[f32, 2]
t: Stream[f32, 2]
@task(mapping=[1], args=[x])
def load(x: f32[N]) -> None:
    for i in range(N):
        s.put(x[i])
@task(mapping=[1])
def square() -> None:
    for i in range(N):
        v = s.get()
        t.put(v * v)
@task(mapping=[1], args=[y])
def store(y: f32[N]) -> None:
    for i in range(N):
        y[i] = t.get() + 1.0
"""
TREE = """
P, N = 4, 16
X: f32[2 * P, N]
Y: f32[N]
leaf = Stream[f32[N], 2][2 * P]
inner = Stream[f32[N], 2][P]
@task(mapping=[2 * P], args=[X])
def load(x: f32[2 * P, N]) -> None:
    p = get_tid()
    leaf[p].put(x[p, :])
@task(mapping=[P])
def add() -> None:
    p = get_tid()
    inner[p].put(leaf[p].get() + leaf[P + p].get())
@task(mapping=[1], args=[Y])
def total(y: f32[N]) -> None:
    acc = zeros(f32, N)
    for p in range(P):
        acc = acc + inner[p].get()
    y[:] = acc
"""
SPLIT_K = """
P = 4
M, N, K = 8, 8, 4
A: f32[M, P * K]
B: f32[P * K, N]
C: f32[M, N]
parts = Stream[f32[M, N], 1][P]
@task(mapping=[P], args=[A, B])
def multiply(a: f32[M, P * K] @ Layout("RS0"), b: f32[P * K, N] @ Layout("S0R")) -> None:
    p = get_tid()
    parts[p].put(local(a @ b))
@task(mapping=[1], args=[C])
def add_up(c: f32[M, N]) -> None:
    total = zeros(f32, M, N)
    for p in range(P):
        total = total + parts[p].get()
    c[:, :] = total
"""
BY_POINT = """
P, B = 4, 16
a: f32[P * B]
c: f32[P * B]
@task(mapping=[P], args=[a, c])
def scale(a: f32[P * B], c: f32[P * B]) -> None:
    p = get_tid()
    for i in range(B):
        c[p * B + i] = 2 * a[p * B + i]
"""
ALL_REDUCE = """
N = 16
A: f32[2 * N, 2 * N]
B: f32[2 * N, 2 * N]
C: f32[2 * N, 2 * N]
@task(mapping=[2, 2], args=[A, B, C])
def product(
    a: f32[2 * N, 2 * N] @ Layout("RS0"),
    b: f32[2 * N, 2 * N] @ Layout("S0S1"),
    c: f32[2 * N, 2 * N] @ Layout("RS1"),
) -> None:
    c[:, :] = (a @ b).allreduce("+")
"""


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        (VECTOR, "N >= 1"),
        (VECTOR, "N >= 1, B >= 1"),
        (VECTOR, "N >= 1, B >= 1, N % B == 0"),
        (VECTOR.replace("c: f32[N]\n", 'assert N % B == 0, "whole tiles"\nc: f32[N]\n', 1), "N >= 8, N % 8 == 0"),
        long(MATRICES, "M >= 1, N >= 1, K >= 1, T >= 1"),
        (SOFTMAX, "N >= 1, K >= 1"),
        (STAGES, "N >= 1"),
        (TREE, "P >= 1, N >= 1"),
        (SPLIT_K, "P >= 1, M >= 1, N >= 1, K >= 1"),
        (BY_POINT, "P >= 1, B >= 1"),
        (ALL_REDUCE, "N >= 1"),
    ],
)
def test_programs_of_newcomers_are_proved(text: str, domain: str) -> None:
    proof = agrees(HEAD + text, domain, 8)
    assert proof.ok, str(proof)
    assert not proof.enumerated


@pytest.mark.parametrize(
    ("text", "domain", "code", "sizes"),
    [
        (VECTOR.replace("c[i * B : i * B + B]", "c[i * B : i * B + B + 1]"), "N >= 1, B >= 1", "index", [1, 1]),
        (VECTOR.replace("sa.put(a[i * B : i * B + B])", "sa.put(a[:8])"), "N >= 8, B >= 8", "type", [9, 9]),
        (VECTOR.replace("range(N // B)", "range((N + B - 1) // B)"), "N >= 1, B >= 1", "index", [1, 2]),
        (VECTOR.replace("c: f32[N]\n", "assert N % B == 0\nc: f32[N]\n", 1), "N >= 8", "assert", [9]),
        (STAGES.replace("y: f32[N]", "y: f32[min(N, 90)]"), "N >= 1", "index", [91]),
        (SPLIT_K.replace('"RS0"', '"S0R"'), "M >= 4, K >= 1", "layout", [4, 1]),
        (BY_POINT.replace("c[p * B + i] =", "c[(p // 5) * B + i] ="), "P >= 1, B >= 1", "race", [2, 1]),
        (TREE.replace("leaf[P + p].get()", "leaf[P - 1 + p].get()"), "P >= 1, N >= 1", "starved", [1, 1]),
        (
            MATRICES.replace("for i in range(M):\n        for j in range(N):\n            c[", "for j in range(N):\n"
                             "        for i in range(M):\n            c["),
            "M >= 1, N >= 1",
            "",
            [],
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_shown_with_the_least_sizes(text: str, domain: str, code: str, sizes: list[int]) -> None:
    proof = prove(HEAD + text, "prog.py", domain)
    if not code:
        assert proof.ok, str(proof)  # tiles that are computed show no order
        return
    assert proof.report is not None, str(proof)
    assert (proof.report.code, [*proof.sizes.values()]) == (code, sizes)


@pytest.mark.parametrize(
    ("text", "domain", "reason"),
    [
        (
            STAGES.replace("args=[y]", "args=[x]").replace("def store(y", "def store(x").replace("y[i] =", "x[i] ="),
            "N >= 1",
            "lines 11 and 20: instances of load and store access x, and it is not proved that tokens order them",
        ),
        (
            SOFTMAX.replace("range(N)", "range(int(N * 0.5))"),
            "N >= 2",
            "line 9: a number of sizes that need not be whole",
        ),
        (
            SOFTMAX.replace(
                "rows: Stream[f32[K], 2]", 'Q = 3\nrows: Stream[f32[K], 2] @ Order("1x8 [16]*[1] (d0,0)")'
            ).replace("K ** -0.5", "Q"),
            "Q >= 1",
            "line 7: rows states an order, of which nothing is proved",
        ),
        (
            ALL_REDUCE.replace("[2, 2]", "[2, P]").replace("N = 16", "N = 16\nP = 2"),
            "P >= 1, N >= 1, N % P == 0",
            "line 14: an all-reduce on a grid of symbolic size, of which nothing is proved",
        ),
        (
            ALL_REDUCE.replace('"RS1"', '"R?"'),
            "N >= 1",
            "line 8: product has layouts with ?, which are found for each size anew",
        ),
    ],
)
def test_what_is_undecided_says_why_and_where(text: str, domain: str, reason: str) -> None:
    proof = prove(HEAD + text, "prog.py", domain)
    assert proof.verdict == "undecided", str(proof)
    assert proof.reason.startswith(reason), proof.reason


@pytest.mark.parametrize(
    ("name", "domain"),
    [
        ("producer_consumer", "N >= 1"),
        ("split_k", "T >= 1, P >= 1, M >= 1, M % T == 0, N >= 1, K >= 1, K % P == 0"),
        ("ring", "N >= 4, N % 4 == 0"),
        long("summa", "M >= 2, M % 2 == 0, N >= 2, N % 2 == 0, K >= 2, K % 2 == 0"),
        long("cannon", "M >= 2, M % 2 == 0, N >= 2, N % 2 == 0, K >= 2, K % 2 == 0"),
        long("gemm_3d", "M >= 2, M % 2 == 0, N >= 2, N % 2 == 0, K >= 2, K % 2 == 0"),
        long("mesh_gemm", "M >= 32, M % 32 == 0, N >= 64, N % 64 == 0, K >= 16, K % 16 == 0"),
        long("ffn", "L >= 64, L % 64 == 0, E >= 1, F >= 4, F % 4 == 0"),
        long("flash_attention", "L >= 128, L % 128 == 0, H >= 1, D >= 1"),
        long("mha", "L >= 64, L % 64 == 0, H >= 2, D >= 1"),
    ],
)
def test_shipped_programs_are_proved(name: str, domain: str) -> None:
    proof = prove((PROGRAMS / f"{name}.py").read_text(encoding="utf-8"), f"{name}.py", domain)
    assert proof.ok, str(proof)


@in_both
def test_random_programs_agree_with_the_check_of_each_size() -> None:
    verdicts: Counter[str] = Counter()
    for number in range(cases(2000, 20, share=80)):
        random = Random(number)
        text = TensorWriter(random).text()
        domain = random.choice(["n >= 1, b >= 1", "n >= 1, b >= 1, n % b == 0", "n >= 2"])
        verdicts[agrees(text, domain, 6).verdict] += 1
    assert verdicts["proved"] >= cases(1000, 10, share=80), verdicts
    assert verdicts["counterexample"] >= cases(300, 2, share=80), verdicts
    assert verdicts["undecided"] <= cases(100, 2, share=80), verdicts
