"""Rows that DDR keeps of blocks (opcode 14): what the simulator and the C++ machine write, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import ProgramError, TensorError, UnsupportedError
from rsn.hw.sim.machine import Machine
from rsn.hw.versal.csim.machine import Native
from rsn.isa.overlay import Overlay
from rsn.isa.overlays.xnn import XNN, XNN_BASE
from rsn.isa.overlays.xnn.off_chip import DdrRows, row_place
from rsn.isa.program import Program, Role
from rsn.isa.verify import require
from rsn.scheduler.build import Built, build
from rsn.scheduler.graph import Gemm, LayerGraph
from rsn.scheduler.schedule import PAPER
from rsn.tests.effort import examples

Array = npt.NDArray[np.float32]


def appending(batch: int, rows: int, columns: int, capacity: int, overlay: Overlay = XNN) -> Built:
    """A program that puts `rows` new rows of each sequence into a state."""
    none, zeros, ones = np.zeros((0, columns), np.float32), np.zeros(columns, np.float32), np.ones(columns, np.float32)
    layer = Gemm("append", "x", "y", none, zeros, residual="x", residual_scale=ones, into="kept")
    inputs = {"x": columns, "kept": columns}
    network = LayerGraph(batch, rows, inputs, (), (layer,), seqs={"kept": capacity})
    return build(network, overlay, PAPER)


def memories(built: Built, x: Array, kept: Array) -> dict[str, Array]:
    """The banks before a run; scratch memory is NaN."""
    from rsn.host.tensors import pack

    program = built.program
    banks = {bank: np.full(program.bank_size(bank), np.nan, np.float32) for bank in program.overlay.banks}
    given = {"x": x, "kept": kept} | {b.name: built.weights[b.name] for b in program.with_role(Role.WEIGHT)}
    for b in program.buffers:
        if b.name in given:
            values = given[b.name]
            flat = values if b.role is Role.WEIGHT else pack(b, values.reshape(b.view or b.shape))
            banks[b.bank][b.offset * 16 : b.offset * 16 + b.size] = flat
    return banks


def contents(program: Program, banks: Mapping[str, Array]) -> Array:
    from rsn.host.tensors import unpack

    b = program.buffer("kept")
    return unpack(b, banks[b.bank][b.offset * 16 : b.offset * 16 + b.size])


@examples(120, 8)
@given(st.data())
def test_rows_take_their_places(data: st.DataObject) -> None:
    """Nothing else in memory changes, and both machines do the same."""
    rows = data.draw(st.sampled_from([1, 1, 1, 2, 40, 130]))
    batch, columns = data.draw(st.integers(1, 5)), 64 * data.draw(st.integers(1, 3))
    capacity = rows + data.draw(st.integers(0, 300))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    built = appending(batch, rows, columns, capacity)
    program = built.program
    x, kept = (
        rng.normal(size=(batch, n, width)).astype(np.float32)
        for n, width in ((rows, columns), (capacity, program.buffer("kept").shape[1]))
    )
    at = [data.draw(st.integers(0, capacity - rows)) for _ in range(batch)]
    words = program.bind({f"row[{b}]": row for b, row in enumerate(at)})
    banks, native = memories(built, x, kept), memories(built, x, kept)
    Machine(program, words).run(banks)
    wanted = kept.copy()
    for b, row in enumerate(at):
        wanted[b, row : row + rows, :columns] = x[b]
    got = contents(program, banks)
    assert np.array_equal(got[..., :columns], wanted[..., :columns])
    for b, row in enumerate(at):
        others = np.r_[0:row, row + rows : capacity]
        assert np.array_equal(got[b, others], kept[b, others])
    Native().run(program, native, words)
    for bank in banks:
        assert np.array_equal(banks[bank].view(np.uint32), native[bank].view(np.uint32))


def test_rows_beyond_the_limit_are_dropped() -> None:
    built = appending(1, 130, 64, 140)
    x, kept = np.ones((1, 130, 64), np.float32), np.zeros((1, 140, 128), np.float32)
    banks = memories(built, x, kept)
    Machine(built.program, built.program.bind({"row[0]": 139})).run(banks)
    got = contents(built.program, banks)
    assert (got[0, 139, :64] == 1).all()
    assert not got[0, :139].any()


def test_the_place_of_a_row() -> None:
    assert [row_place(r) for r in (0, 1, 2, 31, 32, 127)] == [0, 1024, 64, 1024 + 15 * 64, 2048, 3 * 2048 + 1024 + 960]


def changed(program: Program, **fields: int) -> Program:
    """The program with other fields in its first mOP that stores rows."""
    packets = list(program.packets)
    for i, packet in enumerate(packets):
        mop = packet.mops[0] if packet.mops else None
        if isinstance(mop, DdrRows) and not mop.set:
            packets[i] = replace(packet, mops=(mop.replace(**fields),))
            return replace(program, packets=tuple(packets))
    raise AssertionError("no mOP stores rows")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"limit": 129}, "lie in no declared buffer"),
        ({"limit": 0}, "a matrix without rows"),
        ({"source": 127, "rows": 2}, "keeps rows 127 to 128 of blocks of 128"),
        ({"entry": 127, "chunks": 2}, "reads entries 127 to 128 of a table of 128"),
        ({"from_c0": 0, "from_c1": 0}, "names no source"),
        ({"addr": 1 << 20}, ""),
    ],
)
def test_programs_that_are_refused(fields: dict[str, int], message: str) -> None:
    program = appending(1, 1, 64, 128).program
    require(program)
    with pytest.raises(ProgramError, match=message):
        require(changed(program, **fields))


def test_rows_out_of_range() -> None:
    program = appending(2, 1, 64, 100).program
    with pytest.raises(TensorError, match=r"row\[1\]=100 is out of range 0..99"):
        program.bind({"row[1]": 100})


def test_the_published_machine_has_no_such_rows() -> None:
    with pytest.raises(UnsupportedError, match="append: a cache of keys and values; overlay xnn-base has no"):
        appending(1, 1, 128, 128, XNN_BASE)
