"""Hazards in off-chip memory, on programs that consist of off-chip accesses alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.finding import Finding
from rsn.isa import hazards as module
from rsn.isa.expansion import ExpandedProgram
from rsn.isa.hazards import hazards
from rsn.isa.overlays import XNN
from rsn.isa.overlays.fig6 import FIG6, Read, Write
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.packet import Packet, expand
from rsn.isa.program import Buffer, Layout, Program, Role, SourceLine

BLOCK_UNITS = 512


def access(block: int, blocks: int = 1, *, store: bool = False, **more: int) -> Packet:
    """Load or store `blocks` blocks of 128x64, from block number `block` of the memory on."""
    peer = {"store": 1, "from_c0": 1} if store else {"load": 1, "to_a0": 1}
    return Packet.of(1, [f.Ddr(addr=block * BLOCK_UNITS, size=8192 * blocks, **peer, **more)])


def store(block: int, blocks: int = 1, **more: int) -> Packet:
    return access(block, blocks, store=True, **more)


load = access


def matrix(name: str, role: Role = Role.SCRATCH, at: int = 0, shape: tuple[int, int] = (128, 128), **more) -> Buffer:
    """A buffer at block number `at`; by default one row of two blocks."""
    return Buffer(name, "ddr", at * BLOCK_UNITS, shape, Layout.BLOCKED, role, **more)


def found(buffers: Sequence[Buffer], *packets: Packet) -> list[Finding]:
    places = tuple(SourceLine("t.rsn", i + 1) for i in range(len(packets)))
    return list(hazards(ExpandedProgram(Program(XNN, packets, buffers=tuple(buffers), places=places))))


def codes(buffers: Sequence[Buffer], *packets: Packet) -> list[str]:
    return [x.code + ("?" if x.warning else "") for x in found(buffers, *packets)]


S = matrix("s")
Y = matrix("y", Role.OUTPUT, at=2)
IN = matrix("x", Role.INPUT, at=4)


def test_a_load_comes_behind_its_store() -> None:
    assert codes([S], store(0, 2), load(0, 2)) == []
    (finding,) = found([S], load(0, 2), store(0, 2), load(0, 2))
    assert str(finding) == "t.rsn:1: error H01: DDR uOP 0 loads s [0:128, 0:128] before the store that writes it"
    assert finding.help == "move the load behind the store"
    assert codes([S], store(0), load(0, 2), store(1), load(1)) == ["H01"]
    assert codes([IN], load(4, 2)) == []


def test_chunks_and_repetitions_are_followed() -> None:
    pair = Packet.of(1, [f.Ddr(size=8192, store=1, from_c0=1, chunks=2, chunk_stride=BLOCK_UNITS)])
    assert codes([S], pair, load(0, 2)) == []
    each = Packet.of(1, [f.Ddr(size=8192, load=1, to_a0=1, reuse_stride=BLOCK_UNITS)], reuse=2)
    assert codes([S], pair, each) == []
    assert codes([S], store(0), each) == ["H02?"]
    alternating = [
        f.Ddr(size=8192, store=1, from_c0=1, reuse_stride=BLOCK_UNITS),
        f.Ddr(size=8192, load=1, to_a0=1, reuse_stride=BLOCK_UNITS),
    ]
    assert codes([S], Packet.of(1, alternating, reuse=2)) == []
    assert codes([S], Packet.of(1, alternating[::-1], reuse=2)) == ["H01", "H01", "H04?", "H04?"]


def test_a_load_of_what_nothing_writes() -> None:
    assert codes([matrix("s", shape=(128, 64))], load(0)) == ["H02"]
    assert codes([S], load(0)) == ["H02"]
    # an odd head count: the last 64 columns of a padded matrix, and only those
    (finding,) = found([S], store(0), load(0, 2))
    assert finding.warning
    assert "odd head count" in finding.help
    assert codes([S], store(1), load(0, 2)) == ["H02"]


def test_odd_columns_that_another_buffer_fills_later() -> None:
    other = matrix("t")
    assert codes([S, other], store(0), load(0, 2), store(0, 2), load(0, 2)) == ["H02?"]
    assert codes([S], store(0), load(0, 2), store(0, 2), load(0, 2)) == ["H01"]


def test_buffers_that_share_memory_in_turn() -> None:
    shared = [S, matrix("t")]
    assert codes(shared, store(0, 2), load(0, 2), store(0, 2), load(0, 2)) == []
    early = codes(shared, store(0, 2), store(0), load(0, 2), store(1), load(0, 2))
    assert early == ["H03"]
    # the same on one buffer is an update in place
    assert codes([S], store(0, 2), store(0), load(0, 2), store(1), load(0, 2)) == []
    # rows that no access combines may have different numbers of stores
    assert codes(shared, store(0, 2), load(0, 2), store(0), load(1), load(0), store(1), load(1)) == []


def test_a_store_that_nothing_loads() -> None:
    (finding,) = found([S], store(0, 2), store(0, 2), load(0, 2))
    assert str(finding) == (
        "t.rsn:1: warning H04: DDR uOP 0 stores s [0:128, 0:128], which nothing loads before it is overwritten or the "
        "program ends"
    )
    assert codes([S], store(0, 2), load(0), store(1)) == ["H04?"]
    assert codes([Y], store(2, 2)) == []


def test_roles() -> None:
    w = Buffer("w", "ddr", 0, (128, 128), Layout.BLOCKED, Role.WEIGHT)
    assert codes([w], load(0, 2), store(0), load(0)) == ["H05"]
    assert codes([w, S], load(0, 2), store(0), load(0)) == ["H05"]
    assert codes([IN], load(4, 2), store(4), load(4)) == ["H06?"]
    assert codes([IN, matrix("s", at=4)], load(4, 2), store(4), load(4)) == []
    assert codes([IN], load(4)) == []


def test_what_stays_unused() -> None:
    (finding,) = found([Y], store(2), load(2))
    assert str(finding) == "buffer y: error H07: 8192 elements of this output are never stored"
    assert codes([matrix("y", Role.OUTPUT, at=2, view=(1, 128, 64))], store(2)) == []
    assert codes([matrix("y", Role.OUTPUT, at=2, shape=(256, 64), view=(2, 1, 64))], store(2)) == ["H07"]
    assert codes([matrix("y", Role.OUTPUT, at=2, shape=(256, 64), view=(1, 128, 64))], store(2)) == []
    assert codes([IN, S], store(0), load(0)) == ["H08?"]
    linear = Buffer("y", "ddr", 0, (8192 * 2,), Layout.LINEAR, Role.OUTPUT)
    assert codes([linear], store(0)) == ["H07"]
    assert codes([dataclasses.replace(linear, view=(8192,))], store(0)) == []


def test_units_without_order() -> None:
    def fig6(*buffers: Buffer) -> list[str]:
        packets = Packet.of(1, [Read(addr=0, size=8, to_fu3=1)]), Packet.of(3, [Write(addr=8, size=8, from_fu1=1)])
        return [x.code for x in hazards(ExpandedProgram(Program(FIG6, packets, buffers=buffers)))]

    x, y = (
        Buffer(n, "ddr", 8 * i, (8,), Layout.LINEAR, r)
        for i, (n, r) in enumerate((("x", Role.INPUT), ("y", Role.OUTPUT)))
    )
    assert fig6(x, y) == []
    assert fig6(dataclasses.replace(x, role=Role.SCRATCH), y) == ["H02"]
    whole = Buffer("xy", "ddr", 0, (16,), Layout.LINEAR, Role.INPUT)
    assert fig6(whole) == ["H06"]
    packets = Packet.of(1, [Read(addr=0, size=8, to_fu3=1)]), Packet.of(3, [Write(addr=0, size=8, from_fu1=1)])
    y = dataclasses.replace(y, offset=0)
    assert [x.code for x in hazards(ExpandedProgram(Program(FIG6, packets, buffers=(x, y))))] == ["H09"]


def test_an_order_that_would_take_too_long_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PIECES", 3)
    assert codes([S], load(0), load(0), load(0), load(0)) == ["H10?"]


MOPS = st.builds(
    f.Ddr,
    addr=st.integers(0, 2**32 - 1),
    size=st.sampled_from([0, 8192]),
    load=st.integers(0, 1),
    store=st.integers(0, 1),
    chunks=st.integers(0, 3),
    chunk_stride=st.integers(0, 2**23 - 1),
    reuse_stride=st.integers(0, 2**23 - 1),
    to_a0=st.integers(0, 1),
    from_c1=st.integers(0, 1),
)


@given(st.lists(st.tuples(st.lists(MOPS, max_size=3), st.integers(0, 4)), max_size=4))
def test_expansion_in_arrays_is_expansion(packets: list[tuple[list[f.Ddr], int]]) -> None:
    program = Program(XNN, tuple(Packet.of(1, mops, reuse=reuse) for mops, reuse in packets))
    x = ExpandedProgram(program)
    run = x.sequences["DDR"]
    uops = [x.uops[k] for k in run.kinds]
    uops = [u._replace(addr=u.addr + s) for u, s in zip(uops, run.shifts.tolist(), strict=True)]
    assert uops == [u for p in program.packets for u in expand(p, XNN)]
    assert run.origins.tolist() == [i for i, p in enumerate(program.packets) for _ in expand(p, XNN)]
