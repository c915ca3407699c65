"""Packed programs expand to the sequences they came from, and run at the FIFO depth of the datapath."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rsn
from rsn.assembler.parser import parse_file
from rsn.base.errors import DeadlockError, ProgramError
from rsn.isa.fields import Record
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.packet import Packet, expand
from rsn.isa.program import Program, UnpackedProgram
from rsn.machine.executor import ProcessNetwork as Machine
from rsn.scheduler.lower import lower
from rsn.scheduler.pack import ListTooLong, _chunked, _loops, _repeats, pack
from rsn.scheduler.schedule import PAPER, STRICT

from .networks import Maker


def uops_of(program: Program) -> dict[str, list]:
    out: dict[str, list] = {}
    for packet in program.packets:
        for unit in program.overlay.selected(packet.header.opcode, packet.header.mask):
            out.setdefault(unit.name, []).extend(expand(packet, program.overlay))
    return out


def uops_from(kernels: UnpackedProgram) -> dict[str, list]:
    out: dict[str, list] = {}
    for unit, mops in kernels.sequences.items():
        form = kernels.overlay.format_of(kernels.overlay.by_unit[unit].kind)
        for mop in mops:
            expands = form.uops if isinstance(mop, form.mop) else lambda m, _: [m]
            out.setdefault(unit, []).extend(expands(mop, 0))
    return out


@pytest.mark.parametrize("schedule", [PAPER, STRICT])
@pytest.mark.parametrize("shape", [(2, 128, 384, 12, 1536), (1, 384, 256, 4, 512), (1, 700, 128, 2, 300)])
def test_expansion_gives_back_every_units_sequence(schedule, shape) -> None:
    network = Maker().encoder(*shape, masked=True, layers=2)
    kernels = lower(network, XNN, schedule).kernels
    program = pack(kernels)
    packed = uops_of(program)
    assert {u: s for u, s in packed.items() if s} == uops_from(kernels)


def small_mops() -> st.SearchStrategy[list[Record]]:
    """Sequences with repetition on several scales, as loops make them."""
    addr = st.integers(0, 3).map(lambda n: 512 * n)
    one = st.builds(f.Ddr, addr=addr, size=st.just(8192), chunks=st.integers(1, 2), load=st.just(1), to_a0=st.just(1))
    runs = st.lists(st.tuples(st.lists(one, min_size=1, max_size=4), st.integers(1, 6)), max_size=6)

    def unroll(parts: list[tuple[list[f.Ddr], int]]) -> list[Record]:
        import dataclasses

        return [
            dataclasses.replace(m, addr=m.addr + 512 * i * (j + 1))
            for window, n in parts
            for i in range(n)
            for j, m in enumerate(window)
        ]

    return runs.map(unroll)


@given(small_mops())
def test_windows_with_strides_expand_to_the_sequence(mops: Sequence[Record]) -> None:
    form = XNN_BASE.by_format["DDR"]
    for sequence in (mops, _chunked(form, mops)[0]):
        pieces = _loops(form, sequence)
        got = [u for p in pieces for u in expand(Packet.of(1, p.mops, reuse=p.reuse), XNN_BASE)]
        assert got == [u for m in mops for u in form.uops(m, 0)]
        assert sum(len(p.mops) for p in pieces) <= len(mops)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=12))
def test_repeats_expand_to_the_sequence(runs: list[tuple[int, int]]) -> None:
    mops = [f.MemA(dim1=128 * a, send=1) for a, n in runs for _ in range(n)]
    pieces = list(_repeats(XNN, "MemA0", mops))
    got = [u for p in pieces for u in expand(Packet.of(3, p.mops, mask=1, reuse=p.reuse), XNN)]
    assert got == mops


def test_equal_accesses_a_stride_apart_become_chunks() -> None:
    """Pieces of a column, then one of a row, twice: three mOPs loop instead of five."""
    mops = [
        f.Lpddr(addr=512 * (100 * i + k), size=8192, to_b0=1 if j < 4 else 0, to_b1=0 if j < 4 else 1)
        for i in range(3)
        for j, k in enumerate((0, 8, 16, 24, 1))
    ]
    form = XNN_BASE.by_format["LPDDR"]
    merged, firsts = _chunked(form, mops)
    assert [m.chunks for m in merged] == [4, 1] * 3
    assert firsts == [0, 4, 5, 9, 10, 14]
    (piece,) = _loops(form, merged)
    assert list(expand(Packet.of(2, piece.mops, reuse=piece.reuse), XNN_BASE)) == [
        u for m in mops for u in form.uops(m, 0)
    ]


PROGRAMS = sorted((Path(rsn.__file__).parent / "programs").glob("*.rsn"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_shipped_programs_expand_to_their_kernels(path: Path) -> None:
    kernels = parse_file(path)
    assert isinstance(kernels, UnpackedProgram)
    assert {u: s for u, s in uops_of(pack(kernels)).items() if s} == uops_from(kernels)


def test_a_regular_loop_becomes_one_packet() -> None:
    mops = [f.Ddr(addr=512 * (8 * i + 3 * j), size=8192, load=1, to_a0=1) for i in range(100) for j in range(3)]
    (piece,) = _loops(XNN_BASE.by_format["DDR"], mops)
    assert (len(piece.mops), piece.reuse, piece.mops[0].reuse_stride) == (3, 100, 4096)


def test_addresses_that_go_down_cannot_be_a_stride() -> None:
    mops = [f.Ddr(addr=512 * (10 - i), size=8192, load=1, to_a0=1) for i in range(4)]
    assert all(p.reuse == 1 for p in _loops(XNN_BASE.by_format["DDR"], mops))


@settings(max_examples=6)
@given(st.integers(1, 2), st.sampled_from([128, 256, 384]), st.integers(1, 5), st.integers(1, 2))
def test_packed_programs_run_at_depth_6(batch: int, seq: int, heads: int, layers: int) -> None:
    program = pack(lower(Maker().encoder(batch, seq, 64 * heads, heads, 200, layers=layers), XNN, PAPER).kernels)
    assert program.overlay.mop_fifo_depth == 6
    Machine(program.overlay, InstructionPath.of(program)).run()


def test_unequal_sends_and_receives_are_found_before_there_is_an_image() -> None:
    short = UnpackedProgram(
        XNN,
        {"DDR": (f.Ddr(size=8192, load=1, to_a0=1),), "MemA0": (f.MemA(load=1, dim1=128, dim2=128),)},
    )
    with pytest.raises(DeadlockError, match=r"MemA0 +uOP 0 \(mOP 0\) +waits to get DDR->MemA0"):
        pack(short)
    long = UnpackedProgram(XNN, {"DDR": (f.Ddr(size=8192, load=1, to_a0=1),)})
    with pytest.raises(ProgramError, match="data left in streams"):
        pack(long)


def test_an_op_list_longer_than_an_aie_tile_holds_is_refused() -> None:
    ops = (f.Mme(a_iter=1, b_iter=1, k_iter=1),) * 511
    with pytest.raises(ListTooLong, match="MME3 needs 511 ops but holds at most 510"):
        pack(UnpackedProgram(XNN, {}, {"MME3": ops}))
