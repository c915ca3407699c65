"""Networks whose sequences have two numbers of rows: attention of one to the other, against PyTorch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import ScheduleError, UnsupportedError
from rsn.host.runner import Runner
from rsn.isa.overlays import XNN
from rsn.isa.verify import check, dry_run
from rsn.rsnlib import reference
from rsn.scheduler.build import build
from rsn.scheduler.graph import AttentionLayer, Gemm, LayerGraph, Output
from rsn.scheduler.mapping import MappingType
from rsn.scheduler.schedule import PAPER, STRICT, Schedule
from rsn.tests.effort import examples

from .networks import Maker, error
from .toy_machines import Toy, toy

WIDTH, OTHER = 96, 80


def attending(
    batch: int, rows: int, keys: int, heads: int, head_dim: int = 64, *, masked: bool = False, bias: bool = False
) -> LayerGraph:
    """A decoder's rows `x` that attend to the rows `e` of an encoder, and keep what they were beside it."""
    make, columns = Maker(), heads * head_dim
    scores = make.rng.standard_normal((1, heads, rows, keys)).astype(np.float32) if bias else None
    layers = (
        Gemm("q", "x", "q", make.matrix(WIDTH, columns), make.vector(columns)),
        Gemm("k", "e", "k", make.matrix(OTHER, columns) * np.float32(head_dim**-0.5), make.vector(columns)),
        Gemm("v", "e", "v", make.matrix(OTHER, columns), make.vector(columns)),
        AttentionLayer("attention", "q", "k", "v", "c", heads, head_dim, masked, bias=scores),
        Gemm("o", "c", "y", make.matrix(columns, WIDTH), make.vector(WIDTH), None, "x", np.ones(WIDTH, np.float32)),
    )
    seqs = {} if rows == keys else {"e": keys}
    return LayerGraph(batch, rows, {"x": WIDTH, "e": OTHER}, (Output("y"),), layers, seqs=seqs)


def difference(network: LayerGraph, schedule: Schedule = PAPER, lengths: list[int] | None = None) -> float:
    """The largest difference from PyTorch of a run of the network, relative to the largest value."""
    rng = np.random.default_rng(1)
    given = {
        name: rng.standard_normal((network.batch, network.seq_of(name), columns)).astype(np.float32)
        for name, columns in network.inputs.items()
    }
    built = build(network, XNN, schedule)
    named = {} if lengths is None else {f"len[{i}]": n for i, n in enumerate(lengths)}
    with Runner(built.program, weights=built.weights, board="sim") as runner:
        got = runner.run(given, named).outputs["y"]
    values = dict(given)
    for layer in network.layers:
        values[layer.y] = reference.compute(network, layer, values, None if lengths is None else np.array(lengths))
    assert [f for f in check(built.program) + dry_run(built.program) if not f.warning] == []
    return error(got, values["y"])


@examples(40, quick=4)
@given(data=st.data())
def test_any_two_lengths(data: st.DataObject) -> None:
    lengths = st.integers(1, 300) | st.sampled_from([127, 128, 129, 256, 384, 500, 768, 769, 1100])
    batch, heads, rows, keys = (data.draw(s) for s in (st.integers(1, 2), st.integers(1, 4), lengths, lengths))
    head_dim = data.draw(st.sampled_from([8, 33, 64, 72, 128, 200]))
    masked, bias = data.draw(st.sampled_from([(False, False), (True, False), (False, True)]))
    kind = data.draw(st.sampled_from([None, *MappingType])) if max(keys, rows) <= 768 and head_dim <= 64 else None
    if kind is MappingType.E:
        kind = None
    schedule = STRICT if data.draw(st.booleans()) else replace(PAPER, attention=kind)
    counts = [data.draw(st.integers(1, keys)) for _ in range(batch)] if masked else None
    assert difference(attending(batch, rows, keys, heads, head_dim, masked=masked, bias=bias), schedule, counts) < 1e-5


def test_a_network_says_what_rows_it_has() -> None:
    network = attending(2, 20, 300, 1)
    assert network.show().startswith("2 x 20 and 300 rows: ")
    assert [network.seq_of(name) for name in ("x", "e", "q", "k", "c", "y")] == [20, 300, 20, 300, 20, 20]
    assert network.rows_of("v") == (300, 300)
    other = network.renamed({"e": "encoded"})
    assert (other.seqs, other.seq_of("k")) == ({"encoded": 300}, 300)


def test_refused() -> None:
    """Rows that do not fit each other, lengths of two kinds, and what overlays without patterns do not take."""
    network = attending(2, 20, 300, 1, masked=True)
    with pytest.raises(ScheduleError, match="lengths: e has sequences of 300 rows, the rest of 20"):
        network.with_lengths([20, 10])
    q, k, v, attention, o = network.layers
    causal = replace(network, layers=(q, k, v, replace(attention, causal=True), o))
    with pytest.raises(ScheduleError, match="attention: a causal mask needs as many keys as rows"):
        build(causal, XNN, PAPER)
    mixed = replace(network, layers=(q, k, replace(v, x="x", weight=q.weight), attention, o))  # type: ignore[union-attr]
    with pytest.raises(ScheduleError, match="attention: its operands have different numbers of rows: k 300, v 20"):
        build(mixed, XNN, PAPER)
    own = [replace(layer, x="x", y=f"{layer.y}2", weight=q.weight) for layer in (k, v)]  # type: ignore[union-attr]
    second = AttentionLayer("second", "q", "k2", "v2", "c2", 1, 64, True)
    both = replace(network, layers=(*network.layers, *own, second), outputs=(Output("y"), Output("c2")))
    with pytest.raises(ScheduleError, match="second: its mask counts 20 keys, that of another attention 300"):
        build(both, XNN, PAPER)
    with pytest.raises(UnsupportedError, match="e: sequences of 300 rows, beside those of 20; overlay one"):
        build(network, toy(Toy("one", ((16, 16, 16),))), PAPER)
