"""Gates, rotations, norms of heads, norms of operands, sums: the machine computes what PyTorch computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from rsn.base.errors import UnsupportedError
from rsn.benchmarks.compared.unavoidable import total_bytes, unavoidable_bytes
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.verify import check, dry_run
from rsn.rsnlib import reference
from rsn.rsnlib.fold import fold
from rsn.scheduler.graph import ActivationFunction, Gemm, Layer, LayerGraph, Norm, Output, Rotary
from rsn.scheduler.lower import lower, place
from rsn.scheduler.norms import norms_at_loads
from rsn.scheduler.schedule import PAPER, STRICT, Interleave, Loops, Schedule
from rsn.tests.effort import examples, full, long

from .networks import Maker, error, execute

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
"""Failures are small as it is, and to make them smaller takes minutes."""
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
    given: LayerGraph, schedule: Schedule = PAPER, *, moved: bool = False, difference: float = 1e-5
) -> LayerGraph:
    """moved: norms go to loads. difference: the largest that is accepted, relative."""
    network = fold(given)
    network = norms_at_loads(network, XNN) if moved else network
    x = np.random.default_rng(1).standard_normal((given.batch, given.seq, given.inputs["x"])).astype(np.float32)
    y, program, _ = execute(network, x, XNN, schedule)
    wanted = values_of(given, x)
    for b, n in enumerate(given.rows):
        assert error(y[b, :n], wanted[b, :n]) < difference
    assert [f for f in check(program) + dry_run(program) if not f.warning] == []
    return network


@pytest.mark.parametrize(("m", "k", "n"), [(200, 64, 100), long(900, 130, 700), long(300, 100, 1100)])
@pytest.mark.parametrize(
    ("kind", "schedule"), [(ActivationFunction.SILU, PAPER), long(None, LISTED), long(None, STRICT)]
)
def test_gate(m: int, k: int, n: int, kind: ActivationFunction | None, schedule: Schedule) -> None:
    make = Maker()
    up = Gemm("up", "x", "h", make.matrix(k, 2 * n), make.vector(2 * n), kind, gated=True)
    down = Gemm("down", "h", "y", make.matrix(n, k), make.vector(k))
    assert_computes(graph([up, down], m, k), schedule)
    assert_computes(graph([up], m, k), schedule)


def heads_of(make: Maker, name: str, k: int, heads: int, width: int, **fields: Any) -> Gemm:
    n = heads * width
    return Gemm(name, "x", name, make.matrix(k, n), make.vector(n), heads=heads, **fields)


@pytest.mark.parametrize("schedule", [PAPER, long(LISTED), long(STRICT)], ids=["paper", "listed", "strict"])
@pytest.mark.parametrize(
    ("rows", "heads", "width", "norm"),
    [
        long((1, 200), 3, 64, None),
        ((3, 130), 5, 33, Norm(1e-5)),
        long((1, 900), 12, 128, RMS),
        long((2, 300), 3, 72, RMS),
        long((2, 200), 5, 256, RMS),
        long((1, 900), 9, 256, None),
    ],
)
def test_rotation(rows: tuple[int, int], heads: int, width: int, norm: Norm | None, schedule: Schedule) -> None:
    make, k = Maker(), 128
    scale = None if norm is None else np.tile(1 + make.vector(width).astype(np.float64), heads)
    q = heads_of(make, "q", k, heads, width, norm=norm, scale=scale, rotary=rotary(rows[1], width))
    o = Gemm("o", "q", "y", make.matrix(heads * width, 70), make.vector(70))
    assert_computes(graph([q, o], rows, k), schedule)


def test_a_rotation_of_narrow_heads_behind_a_norm_of_wide_ones() -> None:
    make = Maker()
    wide = heads_of(make, "q", 463, 6, 80, norm=RMS, rotary=rotary(28, 80))
    between = Gemm("o", "q", "o", make.matrix(480, 70), make.vector(70))
    narrow = replace(heads_of(make, "h", 70, 6, 8, rotary=rotary(28, 8)), x="o")
    last = Gemm("e", "h", "y", make.matrix(48, 30), make.vector(30))
    assert_computes(graph([wide, between, narrow, last], (1, 28), 463))


@pytest.mark.parametrize("schedule", [PAPER, long(LISTED)], ids=["paper", "listed"])
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


@pytest.mark.parametrize("schedule", [PAPER, full(LISTED), long(STRICT)], ids=["paper", "listed", "strict"])
@pytest.mark.parametrize("rms", [False, long(True)])
@pytest.mark.parametrize(("rows", "n"), [((1, 200), 100), full((2, 450), 1500), long((1, 130), 2600)])
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


@pytest.mark.parametrize("schedule", [PAPER, long(LISTED), long(STRICT)], ids=["paper", "listed", "strict"])
@pytest.mark.parametrize(("rows", "n"), [((1, 200), 100), long((1, 900), 1500)])
def test_sums_of_normalised_operands(rows: tuple[int, int], n: int, schedule: Schedule) -> None:
    """x + norm(f) * g, as Gemma has it."""
    make = Maker()
    f = Gemm("f", "x", "f", make.matrix(n, n), make.vector(n))
    normed = Gemm("n", "f", "n", *nothing(n), residual="f", norm=RMS, scale=1 + make.vector(n).astype(np.float64))
    add = Gemm("add", "x", "s", *nothing(n), residual="n")
    last = Gemm("n2", "s", "y", *nothing(n), residual="s", norm=RMS, scale=1 + make.vector(n).astype(np.float64))
    network = assert_computes(graph([f, normed, add, last], rows, n), schedule, moved=True)
    assert [(layer.y, layer.fused) for layer in network.layers][:2] == [("f", ()), ("s", ("n",))]


@pytest.mark.long
def test_a_product_over_many_columns() -> None:
    """More slices of K than an op counts."""
    make = Maker()
    up = Gemm("up", "x", "h", make.matrix(64, 16500), make.vector(16500))
    down = Gemm("down", "h", "y", make.matrix(16500, 64), make.vector(64), None, "x")
    assert_computes(graph([up, down], 130, 64))


STEADY = 8
"""Columns from which on a norm does not make much of a small difference."""


@st.composite
def networks(draw: st.DrawFn) -> LayerGraph:
    """Chains of layers with all that is new, of random widths."""
    make, x, width, layers = Maker(), "x", draw(st.integers(1, 1400)), []
    batch, seq = draw(st.integers(1, 3)), draw(st.integers(1, 400))
    columns = {"x": width}

    def add(kind: str, y: str, n: int, of: str, **fields: Any) -> None:
        k, computed = columns[of], 2 * n if fields.get("gated") else n
        weight, bias = (make.matrix(k, computed), make.vector(computed)) if kind == "product" else nothing(n)
        layers.append(Gemm(y, of, y, weight, bias, **fields))
        columns[y] = n

    for i in range(draw(st.integers(1, 3))):
        same = [name for name, count in columns.items() if count == columns[x]]
        match draw(st.sampled_from(["gate", "heads", "norm", "sum", "product"])):
            case "gate":
                kind = draw(st.sampled_from([None, *ActivationFunction]))
                add("product", f"g{i}", draw(st.integers(1, 800)), x, gated=True, activation=kind)
                x = f"g{i}"
            case "heads":
                heads, head = draw(st.integers(1, 6)), draw(st.sampled_from([1, 8, 33, 64, 80, 128, 200, 256]))
                norm = draw(st.sampled_from([None, RMS, Norm(1e-5)])) if head >= STEADY else None
                scale = None if norm is None else np.tile(1 + make.vector(head).astype(np.float64), heads)
                table = rotary(seq, head) if draw(st.booleans()) else None
                many = {"heads": heads, "norm": norm, "rotary": table, "scale": scale}
                add("product", f"h{i}", heads * head, x, **many)
                add("product", f"o{i}", draw(st.integers(1, 1200)), f"h{i}")
                x = f"o{i}"
            case "norm" if columns[x] >= STEADY:
                norm = Norm(1e-5, draw(st.booleans()))
                scale = 1 + make.vector(columns[x]).astype(np.float64)
                add("pass", f"n{i}", columns[x], x, residual=x, norm=norm, scale=scale)
                x = f"n{i}"
                if draw(st.booleans()):
                    add("product", f"p{i}", draw(st.integers(1, 1200)), x)
                    x = f"p{i}"
            case "sum" if len(same) > 1:
                add("pass", f"s{i}", columns[x], x, residual=draw(st.sampled_from([y for y in same if y != x])))
                x = f"s{i}"
            case _:
                residual = draw(st.sampled_from(sorted(columns)))
                add("product", f"p{i}", columns[residual], x, residual=residual)
                x = f"p{i}"
    add("product", "y", draw(st.integers(1, 300)), x)
    network = graph(layers, (batch, seq), width)
    if draw(st.booleans()):
        network = network.with_lengths([draw(st.integers(1, seq)) for _ in range(batch)])
    return network


@st.composite
def schedules(draw: st.DrawFn, network: LayerGraph) -> Schedule:
    """A norm at a store takes both columns of MMEs."""
    rows = draw(st.integers(1, 3))
    cols = 2 if any(isinstance(x, Gemm) and x.norm for x in network.layers) else draw(st.integers(1, 2))
    return Schedule(
        interleave=draw(st.sampled_from(Interleave)),
        loops=draw(st.sampled_from(Loops)),
        mme_rows=rows,
        mme_cols=cols,
        tile_rows=draw(st.sampled_from([n for n in (1, 2, 3, 4, 6) if n <= 2 * rows])),
        tile_cols=draw(st.integers(1, 4 * cols)),
    )


@examples(30, quick=2, phases=UNSHRUNK)
@given(network=networks(), data=st.data())
def test_any_products_by_any_schedule(network: LayerGraph, data: st.DataObject) -> None:
    moved = norms_at_loads(fold(network), XNN)
    assert_computes(network, data.draw(schedules(moved), "schedule"), moved=True, difference=1e-4)


@pytest.mark.long
def test_the_bytes_of_a_program_are_nearly_unavoidable() -> None:
    """Whole tiles of two gated products with rotated heads, where nothing is padded."""
    make, k = Maker(), 512
    q = heads_of(make, "q", k, 16, 128, rotary=rotary(768, 128))
    up = Gemm("up", "q", "y", make.matrix(2048, 2048), make.vector(2048), ActivationFunction.SILU, gated=True)
    network = fold(graph([q, up], 768, k))
    expected = unavoidable_bytes(network, XNN)
    assert expected["q"]["lpddr"] == 4 * 513 * 2048
    assert expected["q"]["ddr"] == 4 * 768 * (2048 + k + (k - 256) + 256)
    lowered = lower(network, XNN, LISTED)
    for unit, bank in (("DDR", "ddr"), ("LPDDR", "lpddr")):
        form = XNN.format_of(unit)
        moved = sum(4 * uop.size for mop in lowered.kernels.sequences[unit] for uop in form.uops(mop, 0))
        assert 1 <= moved / total_bytes(expected)[bank] < 1.05


def test_overlays_without_extensions_refuse() -> None:
    make = Maker()
    gate = Gemm("up", "x", "y", make.matrix(64, 256), make.vector(256), gated=True)
    turned = heads_of(make, "q", 64, 2, 64, rotary=rotary(64, 64))
    normed = heads_of(make, "q", 64, 2, 64, norm=RMS)
    of_operand = replace(gate, gated=False, x_norm=RMS)
    for layer, word in ((gate, "gate"), (turned, "rotate"), (normed, "rmsnorm"), (of_operand, "normalise")):
        with pytest.raises(UnsupportedError, match=rf"lacks capability {word}; xnn can"):
            place(fold(graph([layer], 64, 64)), XNN_BASE, PAPER)


def test_statistics_of_many_tiles_are_a_pass() -> None:
    """A load joins 15 parts; the product has 16 column tiles."""
    make, n = Maker(), 4000
    f = Gemm("f", "x", "f", make.matrix(64, n), make.vector(n))
    normed = Gemm("n", "f", "n", *nothing(n), residual="f", norm=RMS)
    up = Gemm("up", "n", "y", make.matrix(n, 64), make.vector(64))
    assert_computes(graph([f, normed, up], 100, 64), Schedule(tile_cols=2), moved=True)


def test_a_norm_at_loads_needs_an_eps() -> None:
    none, zeros = nothing(2000)
    norm = Gemm("n", "x", "n", none, zeros, residual="x", norm=Norm(0.0, rms=True))
    up = Gemm("up", "n", "y", Maker().matrix(2000, 64), np.zeros(64, np.float32))
    with pytest.raises(UnsupportedError, match=r"up: RMSNorm over 2000 columns of its operand with eps 0"):
        place(norms_at_loads(fold(graph([norm, up], 64, 2000)), XNN), XNN, PAPER)


def test_a_table_is_as_long_as_its_sequences() -> None:
    turned = heads_of(Maker(), "q", 64, 2, 64, rotary=rotary(64, 64))
    with pytest.raises(UnsupportedError, match="q: a rotation with a table of 64 rows; its sequences have 65"):
        place(fold(graph([turned], 65, 64)), XNN, PAPER)


def test_programs_without_extensions_stay() -> None:
    network = Maker().encoder(1, 130, 256, 4, 300, pre_norm=True)
    assert norms_at_loads(network, XNN) is network
    assert norms_at_loads(network, XNN_BASE) is network
