"""Gates, rotations, norms of heads, norms of operands, sums: the machine computes what PyTorch computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.verify import check, dry_run
from rsn.rsnlib import reference
from rsn.rsnlib.fold import fold
from rsn.scheduler.graph import Activation, Gemm, Layer, LayerGraph, Norm, Output, Rotary
from rsn.scheduler.norms import norms_at_loads
from rsn.scheduler.schedule import PAPER, STRICT, Interleave, Loops, Schedule

from .networks import Maker, error, execute

LISTED = Schedule(interleave=Interleave.LISTED, loops=Loops.ROWS)
RMS = Norm(1e-6, rms=True)


def graph(layers: Sequence[Layer], rows: int | tuple[int, int], columns: int) -> LayerGraph:
    """Of one input, and the last layer's result."""
    batch, seq = rows if isinstance(rows, tuple) else (1, rows)
    return LayerGraph(batch, seq, {"x": columns}, (Output(layers[-1].y),), tuple(layers))


def rotary(seq: int, width: int, seed: int = 5) -> Rotary:
    """Partners are half a head apart, as in Llama."""
    rng = np.random.default_rng(seed)
    angles = rng.uniform(-np.pi, np.pi, (seq, width // 2)).astype(np.float32)
    cos, sin = np.tile(np.cos(angles), 2), np.tile(np.sin(angles), 2)
    sin[:, : width // 2] *= -1
    if width % 2:
        cos, sin = (np.pad(t, ((0, 0), (0, 1)), constant_values=v) for t, v in ((cos, 1), (sin, 0)))
    half = width // 2
    partners = [(c + half) % (2 * half) for c in range(2 * half)] + [*range(2 * half, width)]
    return Rotary(cos, sin, tuple(partners))


def nothing(columns: int) -> tuple[np.ndarray, np.ndarray]:
    """The weight and the bias of a pass."""
    return np.zeros((0, columns), np.float32), np.zeros(columns, np.float32)


def values_of(network: LayerGraph, x: np.ndarray) -> np.ndarray:
    values = {"x": x}
    for layer in network.layers:
        values[layer.y] = reference.compute(network, layer, values, None)
    (out,) = network.outputs
    y = values[out.name]
    return y if out.scale is None else y * out.scale + out.shift


def assert_computes(
    given: LayerGraph, schedule: Schedule = PAPER, *, moved: bool = False, folds: bool = True
) -> LayerGraph:
    """moved: norms go to loads."""
    network = fold(given) if folds else given
    network = norms_at_loads(network, XNN) if moved else network
    x = np.random.default_rng(1).standard_normal((given.batch, given.seq, given.inputs["x"])).astype(np.float32)
    y, program, _ = execute(network, x, XNN, schedule)
    wanted = values_of(given, x)
    for b, n in enumerate(given.rows):
        assert error(y[b, :n], wanted[b, :n]) < 1e-5
    assert [f for f in check(program) + dry_run(program) if not f.warning] == []
    return network


@pytest.mark.parametrize("schedule", [PAPER, LISTED, STRICT], ids=["paper", "listed", "strict"])
@pytest.mark.parametrize(
    ("rows", "k", "n", "kind"),
    [(200, 64, 100, Activation.SILU), (900, 130, 700, None), (300, 100, 1100, Activation.GELU_TANH)],
)
def test_gate(rows: int, k: int, n: int, kind: Activation | None, schedule: Schedule) -> None:
    make = Maker()
    up = Gemm("up", "x", "h", make.matrix(k, 2 * n), make.vector(2 * n), kind, gated=True)
    down = Gemm("down", "h", "y", make.matrix(n, k), make.vector(k))
    assert_computes(graph([up, down], rows, k), schedule)
    assert_computes(graph([up], rows, k), schedule)


def heads_of(make: Maker, name: str, k: int, heads: int, width: int, **fields: Any) -> Gemm:
    n = heads * width
    return Gemm(name, "x", name, make.matrix(k, n), make.vector(n), heads=heads, **fields)


@pytest.mark.parametrize("schedule", [PAPER, LISTED, STRICT], ids=["paper", "listed", "strict"])
@pytest.mark.parametrize(
    ("rows", "heads", "width", "norm"),
    [
        ((1, 200), 3, 64, None),
        ((3, 130), 5, 33, Norm(1e-5)),
        ((1, 900), 12, 128, RMS),
        ((2, 300), 3, 72, RMS),
        ((2, 200), 5, 256, RMS),
        ((1, 900), 9, 256, None),
    ],
)
def test_rotation(rows: tuple[int, int], heads: int, width: int, norm: Norm | None, schedule: Schedule) -> None:
    make, k = Maker(), 128
    scale = None if norm is None else np.tile(1 + make.vector(width).astype(np.float64), heads)
    q = heads_of(make, "q", k, heads, width, norm=norm, scale=scale, rotary=rotary(rows[1], width))
    o = Gemm("o", "q", "y", make.matrix(heads * width, 70), make.vector(70))
    assert_computes(graph([q, o], rows, k), schedule)


@pytest.mark.parametrize("schedule", [PAPER, LISTED], ids=["paper", "listed"])
def test_layers_share_a_table(schedule: Schedule) -> None:
    """Queries and keys of two layers, sequences of other lengths; a table is one buffer."""
    make, k, heads, width = Maker(), 128, 9, 128
    table = rotary(300, width)
    q = heads_of(make, "q", k, heads, width, rotary=table)
    p = replace(heads_of(make, "p", k, 2, width, rotary=table), x="x")
    y = Gemm("y", "q", "z", make.matrix(heads * width, k), make.vector(k), None, "x")
    more = replace(heads_of(make, "k", k, 1, width, rotary=table), x="z", y="k")
    add = Gemm("add", "p", "s", make.matrix(2 * width, width), make.vector(width), None, "k")
    network = graph([q, p, y, more, add], (3, 300), k).with_lengths([300, 100, 20])
    made = assert_computes(network, schedule)
    x = np.zeros((3, 300, k), np.float32)
    _, program, _ = execute(made, x, XNN, schedule)
    assert sum(b.name.endswith(".table") for b in program.buffers) == 1


@pytest.mark.parametrize("schedule", [PAPER, LISTED, STRICT], ids=["paper", "listed", "strict"])
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize(("rows", "n"), [((1, 200), 100), ((2, 450), 1500), ((1, 130), 2600)])
def test_norms_of_operands(rows: tuple[int, int], n: int, rms: bool, schedule: Schedule) -> None:
    """Of an input, and of a product, by products, as a residual, and for the host."""
    make, norm = Maker(), Norm(1e-5, rms)
    scale, shift = 1 + make.vector(n).astype(np.float64), None if rms else make.vector(n).astype(np.float64)
    first = Gemm("n1", "x", "n1", *nothing(n), residual="x", norm=norm, scale=scale, shift=shift)
    up = Gemm("up", "n1", "h", make.matrix(n, 80), make.vector(80))
    down = Gemm("down", "h", "x1", make.matrix(80, n), make.vector(n), None, "x")
    second = Gemm("n2", "x1", "n2", *nothing(n), residual="x1", norm=norm, scale=scale, shift=shift)
    more = Gemm("more", "n2", "z", make.matrix(n, n), make.vector(n), None, "n2")
    last = Gemm("n3", "z", "y", *nothing(n), residual="z", norm=norm, scale=scale, shift=shift)
    gated = Gemm("g", "x", "g", make.matrix(n, 2), make.vector(2), gated=True)  # an extension, so that norms move
    out = Gemm("out", "g", "w", make.matrix(1, n), make.vector(n), None, "y")
    network = assert_computes(graph([first, up, down, second, more, last, gated, out], rows, n), schedule, moved=True)
    assert not any(isinstance(layer, Gemm) and layer.norm for layer in network.layers)


@pytest.mark.parametrize("schedule", [PAPER, LISTED, STRICT], ids=["paper", "listed", "strict"])
@pytest.mark.parametrize(("rows", "n"), [((1, 200), 100), ((1, 900), 1500)])
def test_sums_of_normalised_operands(rows: tuple[int, int], n: int, schedule: Schedule) -> None:
    """x + norm(f) * g, as Gemma has it."""
    make = Maker()
    f = Gemm("f", "x", "f", make.matrix(n, n), make.vector(n))
    normed = Gemm("n", "f", "n", *nothing(n), residual="f", norm=RMS, scale=1 + make.vector(n).astype(np.float64))
    add = Gemm("add", "x", "s", *nothing(n), residual="n")
    last = Gemm("n2", "s", "y", *nothing(n), residual="s", norm=RMS, scale=1 + make.vector(n).astype(np.float64))
    network = assert_computes(graph([f, normed, add, last], rows, n), schedule, moved=True)
    assert [layer.y for layer in network.layers][:2] == ["f", "s"]


def test_a_product_over_many_columns() -> None:
    """More slices of K than an op counts."""
    make = Maker()
    up = Gemm("up", "x", "h", make.matrix(64, 16500), make.vector(16500))
    down = Gemm("down", "h", "y", make.matrix(16500, 64), make.vector(64), None, "x")
    assert_computes(graph([up, down], 130, 64))


def test_programs_without_extensions_stay() -> None:
    network = Maker().encoder(1, 130, 256, 4, 300, pre_norm=True)
    assert norms_at_loads(network, XNN) is network
    assert norms_at_loads(network, XNN_BASE) is network
