"""Attention by mapping type E on the simulated machine, against PyTorch: groups of query heads, wide heads, long rows,
windows, soft caps, masks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rsn.base.errors import ScheduleError, UnsupportedError
from rsn.hw.sim.machine import Run, simulate
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.layout import block, unblock
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.program import Program, Role
from rsn.isa.verify import check, dry_run
from rsn.machine.plan import TimedWorkload
from rsn.rsnlib import reference
from rsn.scheduler.bind import bind
from rsn.scheduler.bounds import bounds
from rsn.scheduler.build import build
from rsn.scheduler.graph import AttentionLayer, Gemm, LayerGraph, Output
from rsn.scheduler.mapping import MappingType
from rsn.scheduler.schedule import PAPER, Interleave, Schedule
from rsn.scheduler.tile import tile
from rsn.tests.effort import LONG, cases, in_both, long

from .networks import Maker, error

Values = Mapping[str, np.ndarray]
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
"""To shrink takes minutes."""
ROWS = (1, 127, 128, 129, 300, 520, 800, 1100) if LONG else (100, 200, 300)
"""Numbers of rows that are drawn."""


def attention(
    batch: int,
    rows: int,
    heads: int,
    kv_heads: int,
    width: int,
    *,
    keys: int = 0,
    lengths: tuple[int, ...] = (),
    **fields: Any,
) -> LayerGraph:
    """Attention of products of an input x of 64 columns, and of z, if it has other rows, with a product behind it."""
    make, source = Maker(), "z" if keys else "x"
    products = [
        Gemm(name, of, name, make.matrix(64, count * width) * np.float32(scale), make.vector(count * width))
        for name, of, count, scale in (
            ("q", "x", heads, 2),
            ("k", source, kv_heads, width**-0.5),
            ("v", source, kv_heads, 1),
        )
    ]
    layer = AttentionLayer("a", "q", "k", "v", "c", heads, width, kv_heads=kv_heads, **fields)
    last = Gemm("o", "c", "y", make.matrix(heads * width, 64), make.vector(64))
    inputs, seqs = {"x": 64}, {}
    if keys:
        inputs["z"], seqs["z"] = 64, keys
    if layer.mask is not None:
        inputs[layer.mask] = keys or rows
        if layer.mask_heads > 1:
            seqs[layer.mask] = layer.mask_heads * rows
    return LayerGraph(batch, rows, inputs, (Output("y"),), (*products, layer, last), lengths, seqs)


def run(
    network: LayerGraph, values: Values, named: Mapping[str, int], overlay: Overlay = XNN, schedule: Schedule = PAPER
) -> tuple[np.ndarray, Program, Run]:
    """Build and simulate; the output as the host would unpack it."""
    built = build(network, overlay, schedule)
    program = built.program
    banks = {bank: np.zeros(program.bank_size(bank), np.float32) for bank in overlay.banks}

    def region(name: str) -> np.ndarray:
        b = program.buffer(name)
        return banks[b.bank][16 * b.offset : 16 * b.offset + b.size]

    for name, flat in built.weights.items():
        region(name)[:] = flat
    for b in program.with_role(Role.INPUT):
        assert b.view is not None
        stored = np.zeros(b.shape, np.float32)
        for (at, rows), item in zip(b.items, values[b.name], strict=True):
            stored[at : at + rows, : b.view[2]] = item[:rows]
        region(b.name)[:] = block(stored)
    made = simulate(program, banks, program.bind({p.name: named[p.name] for p in program.parameters}))
    (out,) = program.with_role(Role.OUTPUT)
    assert out.view is not None
    matrix, y = unblock(region(out.name), *out.shape), np.zeros(out.view, np.float32)
    for b, (at, rows) in enumerate(out.items):
        y[b, :rows] = matrix[at : at + rows, : out.view[2]]
    return y, program, made


def inputs(network: LayerGraph, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs, masks too."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal((network.batch, network.seq_of(name), columns)).astype(np.float32)
        for name, columns in network.inputs.items()
    }


def assert_computes(
    network: LayerGraph,
    lengths: Sequence[int] | None = None,
    starts: Sequence[int] | None = None,
    overlay: Overlay = XNN,
    schedule: Schedule = PAPER,
    values: Values | None = None,
) -> tuple[Program, Run]:
    """The machine computes what PyTorch does, for all rows before the padding, and the program has no findings."""
    values = inputs(network) | dict(values or {})
    chain = dict(values)
    for layer in network.layers:
        given = [None if x is None else np.array(x, np.int64) for x in (lengths, starts)]
        chain[layer.y] = reference.compute(network, layer, chain, *given)
    named = {f"len[{b}]": n for b, n in enumerate(lengths or ())} | {
        f"start[{b}]": n for b, n in enumerate(starts or ())
    }
    y, program, made = run(network, values, named, overlay, schedule)
    for b, n in enumerate(network.rows):
        assert error(y[b, :n], chain["y"][b, :n]) < 1e-5
    assert [f for f in check(program) + dry_run(program) if not f.warning] == []
    return program, made


@pytest.mark.parametrize(
    "network",
    [
        long(attention(1, 260, 6, 2, 64)),
        attention(1, 300, 4, 1, 72, causal=True),
        long(attention(2, 512, 8, 2, 128, causal=True)),
        long(attention(1, 700, 2, 1, 256)),
        long(attention(3, 100, 7, 1, 96, causal=True)),
        long(attention(2, 512, 3, 1, 64, lengths=(512, 129))),
        long(attention(2, 500, 4, 2, 128, keys=40)),
    ],
    ids=lambda network: network.show().splitlines()[4].strip(),
)
def test_groups_and_wide_heads(network: LayerGraph) -> None:
    assert_computes(network)


@pytest.mark.parametrize("kv_heads", [2, 4, 8])
def test_keys_and_values_of_a_group_are_loaded_once(kv_heads: int) -> None:
    """So are queries, and results are stored once."""
    moved: dict[str, int] = {}
    for tile_of in bind(tile(attention(1, 512, 8, kv_heads, 64), XNN, PAPER)).tiles:
        for access in (*tile_of.loads, *tile_of.stores):
            kind = "keys" if access.peer in ("MemB0", "MemB1") else access.peer
            moved[kind] = moved.get(kind, 0) + access.elements
    head = 512 * 64
    assert moved["keys"] == moved["MemB2"] == kv_heads * head


@pytest.mark.parametrize("rows", [200, long(900)])
def test_a_mask_may_hide_all_keys_of_a_row(rows: int) -> None:
    """Which then is 0, whatever the part of its keys."""
    mask = np.zeros((1, rows, rows), np.float32)
    mask[:, :, rows // 2 :] = mask[:, 70:90] = -np.inf
    assert_computes(attention(1, rows, 2, 1, 64, mask="m"), values={"m": mask})


def test_overlay_of_the_published_machine_runs_groups_too() -> None:
    assert_computes(attention(1, 256, 6, 2, 64), overlay=XNN_BASE)


@pytest.mark.long
@pytest.mark.parametrize("interleave", [Interleave.STRICT, Interleave.LISTED, Interleave.HARDWARE])
def test_every_order_of_off_chip_accesses(interleave: Interleave) -> None:
    assert_computes(attention(2, 300, 4, 2, 64), schedule=Schedule(interleave=interleave))


@pytest.mark.long
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "rows", "causal", "resource", "times"),
    [
        (32, 8, 64, 512, False, "4 MemC at receive", 4 / 3),
        (16, 8, 128, 512, True, "ddr", 1),
        (8, 4, 256, 512, True, "ddr", 1),
        (20, 20, 64, 1500, False, "4 MemC at receive", 8 / 3),
    ],
)
def test_time_is_near_that_of_the_unit_that_binds(
    heads: int, kv_heads: int, width: int, rows: int, causal: bool, resource: str, times: float
) -> None:
    """Of 4 sequences of 512 rows, or one longer one. times: a MemC also receives its scores, at the pace of the MMEs,
    and sends them, which the bound of its softmax does not have; it receives twice where the keys come in parts."""
    layer = AttentionLayer("a", "q", "k", "v", "y", heads, width, kv_heads=kv_heads, causal=causal)
    columns = {"q": heads * width, "k": kv_heads * width, "v": kv_heads * width}
    network = LayerGraph(4 if rows == 512 else 1, rows, columns, (Output("y"),), (layer,))
    latency = TimedWorkload(XNN, InstructionPath.of(build(network, XNN, PAPER).program)).run().latency
    least = times * bounds(network, XNN).seconds[resource]
    assert least < latency < 1.2 * least


@in_both
@settings(
    max_examples=cases(120, 3),
    deadline=None,
    phases=UNSHRUNK,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_attention(data: st.DataObject) -> None:
    """Heads, groups, widths, rows, batches, lengths, masks and caps in any combination that is not refused."""
    kv_heads, group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    width = data.draw(st.sampled_from([8, 40, 64, 72, 128, 200, 256]))
    batch, causal = data.draw(st.integers(1, 2)), data.draw(st.booleans())
    rows = data.draw(st.sampled_from(ROWS))
    keys = 0 if causal else data.draw(st.just(0) | st.sampled_from([1, 77, 200, 900]))
    window = data.draw(st.none() | st.integers(1, 400)) if not keys else None
    added = data.draw(st.sampled_from(["", "", "bias", "mask", "mask of heads"]))
    fields: dict[str, Any] = {"causal": causal, "window": window}
    fields |= {"masked": data.draw(st.booleans()), "left": data.draw(st.booleans())}
    heads, rng = kv_heads * group, np.random.default_rng(data.draw(st.integers(0, 99)))
    if not added:
        fields["softcap"] = data.draw(st.none() | st.floats(1, 50))
    elif added == "bias":
        shape = 1, data.draw(st.sampled_from([1, heads])), rows, keys or rows
        fields["bias"] = rng.standard_normal(shape, np.float32)
    else:
        by_head = added != "mask" and rows % 128 == 0
        fields |= {"mask": "m", "mask_heads": heads if by_head else 1}
    network = attention(batch, rows, heads, kv_heads, width, keys=keys, **fields)
    lengths = [data.draw(st.integers(1, keys or rows)) for _ in range(batch)] if fields["masked"] else None
    starts = [data.draw(st.integers(0, (keys or rows) - 1)) for _ in range(batch)] if fields["left"] else None
    assert_computes(network, lengths, starts)


@pytest.mark.parametrize(
    ("network", "overlay", "why"),
    [
        (attention(1, 256, 2, 1, 128), XNN_BASE, "a: heads of 128 columns; MemB2 of overlay xnn-base holds values of"),
        (attention(1, 896, 2, 1, 64), XNN_BASE, "a: rows that meet 896 keys; overlay xnn-base lacks capability long"),
        (attention(1, 256, 2, 2, 64, softcap=5.0), XNN_BASE, "a: attention with a soft cap; overlay xnn-base lacks"),
        (attention(1, 256, 2, 2, 64, window=9), XNN_BASE, "a: attention within 9 rows; overlay xnn-base lacks"),
        (attention(1, 256, 2, 2, 64, left=True), XNN_BASE, "a: attention with padding before the rows; overlay xnn-b"),
        (attention(1, 9, 2, 2, 64, softcap=5.0, mask="m"), XNN, "a: a soft cap and a bias or mask on the scores; "),
        (attention(1, 9, 2, 2, 64, mask="m", mask_heads=2), XNN, "a: a mask for each of 2 heads over 9 rows; "),
        (attention(1, 9, 1, 1, 64, mask="m", bias=np.zeros((1, 1, 9, 9), np.float32)), XNN, "a: a constant bias and a"),
        (attention(1, 9, 2, 1, 512), XNN, "a: heads of 512 columns; MemB2 of overlay xnn holds values of"),
    ],
    ids=range(9),
)
def test_what_is_refused(network: LayerGraph, overlay: Overlay, why: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(why)):
        build(network, overlay, PAPER)


def test_types_through_memory_refuse_what_only_steps_can() -> None:
    with pytest.raises(UnsupportedError, match="a: mapping type B runs attention with a key head for each query head"):
        build(attention(1, 256, 4, 2, 64), XNN, Schedule(attention=MappingType.B))


def test_a_mask_of_other_rows_is_a_mistake() -> None:
    network = attention(1, 256, 2, 2, 64, mask="m", mask_heads=2)
    with pytest.raises(ScheduleError, match="a: its mask m has 256 rows for a sequence; it needs 2 times 256"):
        build(replace(network, seqs={}), XNN, PAPER)
