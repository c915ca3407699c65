"""Stream programs as layers of XNN: what the layers compute, and which programs are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rsn.base.errors import TensorError, UnsupportedError
from rsn.host.runner import Runner
from rsn.host.tasks import run_tasks
from rsn.isa.overlays import XNN
from rsn.scheduler.best import schedule_named
from rsn.scheduler.build import build as compiled
from rsn.scheduler.from_streams import layers_of
from rsn.streams.build import build, task_program
from rsn.streams.check import check
from rsn.tests.streams.test_mapped_program import FFN

SPLIT_K = """
from rsn.streams import *
M, K, N, T = 64, 96, 64, 32
X: f32[M, K]
W: f32[K, N]
B: f32[N]
R: f32[M, N]
Y: f32[M, N]
parts: Stream[f32[T, N], 2][K // T, M // T]
@task(mapping=[K // T, M // T], args=[X, W])
def products(x, w):
    k, m = get_tid()
    parts[k, m].put(x[m * T : (m + 1) * T, k * T : (k + 1) * T] @ w[k * T : (k + 1) * T, :])
@task(mapping=[M // T], args=[B, R, Y])
def sums(b, r, y):
    m = get_tid()
    total = zeros(f32, T, N)
    for k in range(K // T):
        total = total + parts[k, m].get()
    y[m * T : (m + 1) * T, :] = {end}
"""
SUM = "total = total + parts[k, m].get()"
SOME = """part = parts[k, m].get()
        use(part)
        if k > 0:
            total = total + part"""
END = "{}(total + b[:] + r[m * T : (m + 1) * T, :])"

ATTENTION = """
from rsn.streams import *
L, HEADS, D, T = 128, 2, 64, 64
Q: f32[L, HEADS * D]
K: f32[L, HEADS * D]
V: f32[L, HEADS * D]
O: f32[L, HEADS * D]
s: Stream[f32[T, L], 2][L // T, HEADS]
@task(mapping=[L // T, HEADS], args=[Q, K])
def scores(q, k):
    i, h = get_tid()
    keys = k[:, h * D : (h + 1) * D]
    s[i, h].put(softmax(0.125 * (q[i * T : (i + 1) * T, h * D : (h + 1) * D] @ keys.T)))
@task(mapping=[L // T, HEADS], args=[V, O])
def values(v, o):
    i, h = get_tid()
    o[i * T : (i + 1) * T, h * D : (h + 1) * D] = s[i, h].get() @ v[:, h * D : (h + 1) * D]
"""


def tensors(text: str) -> dict[str, Any]:
    random = np.random.default_rng(0)
    program = task_program(check(text).region)
    return {t.name: random.normal(size=t.type.shape).astype(np.float32) for t in program.tensors if t.input}


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        (SPLIT_K.format(end="total"), 1),
        (SPLIT_K.format(end=END.format("")), 1),
        (SPLIT_K.format(end="relu(total + b[:])"), 1),
        (SPLIT_K.format(end="layernorm(total + r[m * T : (m + 1) * T, :])"), 1),
        (FFN, 2),
        (ATTENTION, 2),
    ],
)
def test_the_layers_compute_what_the_program_does(text: str, layers: int) -> None:
    report = check(text)
    given = tensors(text)
    expected = run_tasks(build(report), given).outputs
    found = layers_of(task_program(report.region))
    assert len(found.graph.layers) == layers
    built = compiled(found.with_values(given), XNN, schedule_named("paper", 1, 0))
    with Runner(built.program, weights=built.weights) as runner:
        got = runner.run({name: given[name] for name in found.graph.inputs}).outputs
    for name, value in expected.items():
        difference = np.abs(got[name].reshape(value.shape) - value).max() / np.abs(value).max()
        assert difference < 1e-5


@pytest.mark.parametrize(("name", "shape"), [("W", (96, 32)), ("B", (1,))])
def test_values_of_another_shape_are_refused(name: str, shape: tuple[int, ...]) -> None:
    text = SPLIT_K.format(end="relu(total + b[:])")
    given = {**tensors(text), name: np.zeros(shape, np.float32)}
    found = layers_of(task_program(check(text).region))
    with pytest.raises(TensorError, match=f"{name} has shape .*; the program has "):
        found.with_values(given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SPLIT_K.format(end="total").replace(SUM, SOME), "from row 32 of W on, not 0"),
        (SPLIT_K.format(end="exp(total)"), "exp is no part of the machine's layers"),
        (SPLIT_K.format(end="gelu(relu(total))"), "relu is no product, bias or residual of a layer"),
        (SPLIT_K.format(end="total * total"), "mul is no part|scale is no part"),
        (FFN.replace("f32", "bf16"), "the machine computes in float32"),
        (ATTENTION.replace("keys = k[:, h * D", "keys = k[:, 0 * h"), "no part|another part of K"),
    ],
)
def test_programs_that_are_no_layers(text: str, message: str) -> None:
    report = check(text)
    with pytest.raises(UnsupportedError, match=message):
        layers_of(task_program(report.region))
