"""Segments of a program, found from its stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.isa.expansion import ExpandedProgram
from rsn.isa.overlays import XNN
from rsn.isa.overlays.fig6 import FIG6, Read, Write
from rsn.isa.packet import Packet
from rsn.isa.program import Buffer, Layout, Program
from rsn.isa.segments import StoredBuffer, stored_buffers
from rsn.scheduler.build import build
from rsn.scheduler.graph import ActivationFunction, AttentionLayer, Gemm, LayerGraph, Norm, Output
from rsn.scheduler.schedule import PAPER, STRICT, Schedule
from rsn.tests.effort import long


def program(stores: Sequence[tuple[int, int]], buffers: Sequence[tuple[str, int, int]]) -> Program:
    """A program in which FU3 stores `stores` (address, elements), one uOP each. buffers: (name, address, elements)."""
    packets = []
    for addr, size in stores:
        packets += [Packet.of(1, [Read(size=size, to_fu3=1)]), Packet.of(3, [Write(addr=addr, size=size, from_fu1=1)])]
    declared = tuple(Buffer(name, "ddr", at, (size,), Layout.LINEAR) for name, at, size in buffers)
    return Program(FIG6, (*packets, *(Packet.terminator(o) for o in (1, 2, 3))), buffers=declared)


def found(p: Program) -> list[tuple[str, str, int, int]]:
    return [(s.name, s.unit, s.first, s.last) for s in stored_buffers(ExpandedProgram(p))]


def test_each_buffer_that_is_stored_to_is_one() -> None:
    p = program([(0, 5), (5, 5), (100, 3), (50, 1)], [("x", 200, 9), ("a", 0, 10), ("b", 50, 9), ("c", 100, 3)])
    assert found(p) == [("a", "FU3", 0, 1), ("c", "FU3", 2, 2), ("b", "FU3", 3, 3)]


def test_they_come_in_the_order_in_which_they_are_completed() -> None:
    """Buffer a has the first store and the last one."""
    p = program([(0, 5), (50, 5), (5, 5)], [("a", 0, 10), ("b", 50, 9)])
    assert found(p) == [("b", "FU3", 1, 1), ("a", "FU3", 0, 2)]


def test_a_store_outside_every_buffer_belongs_to_none() -> None:
    assert found(program([(40, 5), (0, 1), (9, 1), (10, 1)], [("a", 0, 10)])) == [("a", "FU3", 1, 2)]
    assert found(program([(0, 5)], [])) == []
    assert found(program([], [("a", 0, 10)])) == []


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    gaps=st.lists(st.integers(0, 5), min_size=8, max_size=8),
    data=st.data(),
)
def test_buffers_apart_from_each_other(sizes: list[int], gaps: list[int], data: st.DataObject) -> None:
    """The first and last uOP of each buffer with stores, for stores in any order."""
    at, buffers = 0, []
    for i, (size, gap) in enumerate(zip(sizes, gaps, strict=False)):
        at += gap
        buffers.append((f"b{i}", at, size))
        at += size
    which = data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=12))
    stores = [(buffers[i][1] + data.draw(st.integers(0, buffers[i][2] - 1)), 1) for i in which]
    expected = {f"b{i}": (which.index(i), len(which) - 1 - which[::-1].index(i)) for i in which}
    got = found(program(stores, buffers))
    assert {name: (first, last) for name, _, first, last in got} == expected
    assert [last for *_, last in got] == sorted(last for *_, last in got)


def slow(p: Program) -> list[StoredBuffer]:
    """The segments found access by access: the n-th store to an address belongs to the n-th buffer there."""
    expansion = ExpandedProgram(p)
    unit = p.overlay.address_unit
    rows: dict[tuple[int, str], list[int]] = {}
    for bank, accesses in expansion.accesses.items():
        times: Counter[int] = Counter()
        rows_of = zip(accesses.unit, accesses.uop, accesses.start, accesses.size, accesses.store, strict=True)
        for by, uop, start, size, store in rows_of:
            held = [
                number
                for number, b in enumerate(p.buffers)
                if b.bank == bank and b.offset * unit <= start < b.offset * unit + b.size
            ]
            if store:
                times.update(range(int(start), int(start + size)))
                if held:
                    most = max(times[at] for at in range(int(start), int(start + size)))
                    order = held[min(most, len(held)) - 1]
                    rows.setdefault((order, accesses.units[by].name), []).append(int(uop))
    return [StoredBuffer(p.buffers[order], name, min(uops), max(uops)) for (order, name), uops in rows.items()]


@given(
    buffers=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 8)), max_size=6),
    stores=st.lists(st.integers(0, 20), max_size=10),
)
def test_buffers_that_share_memory(buffers: list[tuple[int, int]], stores: list[int]) -> None:
    """The result equals that of `slow`, which goes through the accesses one by one."""
    p = program([(at, 1) for at in stores], [(f"b{i}", at, size) for i, (at, size) in enumerate(buffers)])
    assert sorted(map(str, stored_buffers(ExpandedProgram(p)))) == sorted(map(str, slow(p)))


# -- compiled programs ----------------------------------------------------------------------------------------------


def encoder(layers: int, batch: int, seq: int, hidden: int, heads: int, ffn: int) -> LayerGraph:
    def gemm(
        x: str, y: str, k: int, n: int, residual: str | None = None, act: ActivationFunction | None = None
    ) -> Gemm:
        weight, bias = np.zeros((k, n), np.float32), np.zeros(n, np.float32)
        if residual is None:
            return Gemm(y, x, y, weight, bias, act)
        return Gemm(y, x, y, weight, bias, act, residual, np.ones(n, np.float32), Norm(1e-6))

    out: list[Gemm | AttentionLayer] = []
    x = "x"
    for i in range(layers):
        q, k, v, c, d, h, y = (f"l{i}.{n}" for n in "qkvcdhy")
        out += [gemm(x, n, hidden, hidden) for n in (q, k, v)]
        out += [AttentionLayer(c, q, k, v, c, heads, hidden // heads), gemm(c, d, hidden, hidden, x)]
        out += [gemm(d, h, hidden, ffn, act=ActivationFunction.GELU_TANH), gemm(h, y, ffn, hidden, d)]
        x = y
    return LayerGraph(batch, seq, {"x": hidden}, (Output(x),), tuple(out))


@pytest.mark.parametrize("schedule", [PAPER, STRICT])
@pytest.mark.parametrize("shape", [(3, 1, 64, 64, 1, 64), (2, 3, 100, 128, 2, 300), long((4, 2, 384, 192, 3, 64))])
def test_those_of_a_stack_of_encoders_are_its_layers(
    shape: tuple[int, int, int, int, int, int], schedule: Schedule
) -> None:
    """The segments come in the order of the layers, although layers share memory; each covers all its blocks."""
    network = encoder(*shape)
    p = build(network, XNN, schedule).program
    rows = stored_buffers(ExpandedProgram(p))
    assert [s.name for s in rows] == [layer.y for layer in network.layers]
    assert {s.unit for s in rows} == {"DDR"}
    assert len({b.offset for b in p.buffers if b.bank == "ddr"}) < len([b for b in p.buffers if b.bank == "ddr"])
    assert sorted(map(str, rows)) == sorted(map(str, slow(p)))
    a = ExpandedProgram(p).accesses["ddr"]
    _, batch, seq, hidden, _, ffn = shape
    for s in rows:  # all of it is stored between the first and the last, and nothing else at its place
        start = s.buffer.offset * p.overlay.address_unit
        here = a.store & (a.start >= start) & (a.start < start + s.buffer.size) & (s.first <= a.uop) & (a.uop <= s.last)
        assert batch * seq * (ffn if s.name.endswith("h") else hidden) <= a.size[here].sum() <= s.buffer.size
