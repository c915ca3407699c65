"""Nothing runs that does not belong together; who is refused reads both sides and the way out."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import BoardError, DeadlockError
from rsn.host.boards import open_board
from rsn.host.boards.device import BoardMismatch
from rsn.host.boards.match import match_program, match_xclbin
from rsn.host.boards.probes import terminators
from rsn.host.boards.profile import PROFILES, VCK190, VCK190_ISCA25, VCK190_XNN2, Profile, find_profile
from rsn.host.boards.tiles import op_lists, parameters, weight_flag
from rsn.host.boards.xclbin import HEADER, HEADER_AT, SECTION, read_xclbin
from rsn.hw.versal.csim.machine import Native
from rsn.isa.overlays import FIG6, XNN, XNN_BASE
from rsn.isa.overlays.xnn.formats import Ddr, Lpddr, MemA, MemB, MemC, MeshA, MeshB, Mme
from rsn.isa.overlays.xnn2 import XNN2
from rsn.isa.overlays.xnn2.mme import LaneMme
from rsn.isa.packet import Packet, encode_image
from rsn.isa.program import Buffer, Program
from rsn.isa.verify import require
from rsn.isa.versal.board import ARGUMENTS

from .programs import attention, base
from .xclbins import OURS, PUBLISHED, Made

ROOT = Path(__file__).parents[3]

# -- programs


def test_what_may_run_where() -> None:
    extended, plain = attention().program, base().program
    assert extended.extended
    match_program(extended, VCK190)
    match_program(plain, VCK190)  # the base is a part of it
    match_program(plain, VCK190_ISCA25)
    match_program(dataclasses.replace(plain, overlay=XNN), VCK190_ISCA25)  # for the larger one, and does not use it


def refusal(program: Program, profile: Profile) -> str:
    with pytest.raises(BoardMismatch) as caught:
        match_program(program, profile)
    assert caught.value.exit_code == 3
    return str(caught.value)


def test_a_program_of_another_version() -> None:
    """Opcodes mean other things in another version of the instructions."""
    older = dataclasses.replace(XNN, extension=1)
    told = refusal(dataclasses.replace(attention().program, overlay=older), VCK190)
    assert told == (
        f"the program is for overlay xnn {older.fingerprint} (version 1 of its instructions), board vck190 is xnn "
        f"{XNN.fingerprint} (version {XNN.extension} of its instructions): compile it with the rsn that the bitstream "
        "was built with, or build the bitstream with this rsn"
    )


def summing(sums: int, pairs: bool = True) -> Program:
    """MME0 sums pairs of products, or gives each product; MemC0 takes them only when DDR has loaded all operands."""
    steps = 2 if pairs else 1
    tiles = steps * sums
    packets = (
        Packet.of(2, [Lpddr(addr=0, size=16384, to_b0=1, chunks=1)], reuse=tiles),
        *(Packet.of(code, [op(dim1=128, dim2=128, load=1)], mask=1) for code, op in ((3, MemA), (4, MemB))),
        *(
            Packet.of(code, [op(dim1=128, dim2=128, load=1, send=1, acc_a=1, acc_b=1)], mask=1, reuse=tiles - 1)
            for code, op in ((3, MemA), (4, MemB))
        ),
        *(Packet.of(code, [op(send=1, acc_a=1, acc_b=1)], mask=1) for code, op in ((3, MemA), (4, MemB))),
        Packet.of(6, [MeshA(size=512 * tiles, a0_0=1)]),
        Packet.of(7, [MeshB(size=512 * tiles, b0_0=1)]),
        Packet.of(5, [MemC(dim1=128, dim2=128, store=1)], mask=1),
        Packet.of(5, [MemC(recv=1, recv_a=1, recv_b=1, k_iter=sums)], mask=1),
        Packet.of(1, [Ddr(addr=0, size=16384, load=1, to_a0=1, chunks=1)], reuse=tiles),
        Packet.of(1, [Ddr(addr=0, size=8192, store=1, from_c0=1, chunks=1)], reuse=2),
        *terminators(XNN),
    )
    op = Mme(a_iter=sums, b_iter=1, k_iter=steps, acc_a=1, acc_b=1, n128=1, k128=1, acc_k=pairs)
    return Program(XNN, packets, {"MME0": (op,)})


def test_a_sum_takes_its_buffer_early_on_the_board() -> None:
    """It may deadlock where the simulator's run ends: five sums need both buffers of C, four do not."""
    match_program(summing(4), VCK190)
    assert "the program may deadlock on board vck190: its MMEs sum over k" in refusal(summing(5), VCK190)
    match_program(summing(6), VCK190)  # deadlocks whatever the rule; `rsn check` says so
    match_program(summing(7, pairs=False), VCK190)  # needs both, but takes none early


@pytest.mark.long
def test_the_array_takes_it_early() -> None:
    machine = Native()

    def ends(sums: int, array: bool) -> bool:
        banks = {name: np.ones(1 << 20, np.float32) for name in ("ddr", "lpddr")}
        try:
            machine.run(summing(sums), banks, array=array)
        except DeadlockError:
            return False
        return True

    assert [(ends(n, False), ends(n, True)) for n in (4, 5, 6)] == [(True, True), (True, False), (False, False)]


def test_an_extended_program_on_the_published_image() -> None:
    assert refusal(attention().program, VCK190_ISCA25) == (
        "the program uses opcodes that overlay xnn adds to xnn-base; board vck190-isca25 has only xnn-base: compile it "
        "with --overlay xnn-base, or run it on a bitstream of xnn (--board vck190)"
    )


def test_each_machine_has_a_board() -> None:
    """Both bitstreams of hw/versal: whoever names the wrong one is told the right one."""
    of_xnn, of_xnn2 = attention().program, attention(XNN2).program
    match_program(of_xnn2, VCK190_XNN2)
    assert refusal(of_xnn2, VCK190).endswith("; or run it on a bitstream of xnn2 (--board vck190-xnn2)")
    assert refusal(of_xnn, VCK190_XNN2).endswith("; or run it on a bitstream of xnn (--board vck190)")
    assert VCK190_XNN2.source in (ROOT / "docs" / "boards-reference.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "other",
    [FIG6, XNN.with_depths({"MeshA->MME0": 9}), dataclasses.replace(XNN_BASE.with_depths({"MeshA->MME0": 9}))],
    ids=["another machine", "other depths", "other depths of the base"],
)
@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda p: p.name)
def test_another_overlay(other: object, profile: Profile) -> None:
    program = dataclasses.replace(base().program, overlay=other)  # type: ignore[arg-type]
    text = refusal(program, profile)
    assert f"{program.overlay.name} {program.overlay.fingerprint}" in text
    assert f"{profile.overlay.label}: compile the program for the board's overlay" in text


@pytest.mark.parametrize("name", ["mop_fifo_depth", "uop_fifo_depth"])
def test_deeper_fifos_than_the_board_has(name: str) -> None:
    """Less depth is no reason: more room never causes a deadlock."""
    there = getattr(XNN, name)
    for depth in (1, there):
        match_program(dataclasses.replace(base().program, overlay=XNN.with_rates(**{name: depth})), VCK190)
    text = refusal(dataclasses.replace(base().program, overlay=XNN.with_rates(**{name: there + 1})), VCK190)
    assert f"{name} = {there + 1} (the board has {there}): on board vck190 it may deadlock" in text


def test_buffers_that_are_too_small() -> None:
    large = (Buffer("w", "lpddr", 0, (8192, 2304)),)
    program = Program(XNN_BASE, tuple(terminators(XNN_BASE)), buffers=large)
    match_program(program, VCK190)
    text = refusal(program, VCK190_ISCA25)
    assert text.startswith(f"the program needs {72 << 20} bytes of lpddr, board vck190-isca25 has {64 << 20}: compile")
    long = Program(XNN_BASE, (Packet.of(0, []),) * (128 << 10))
    assert f"bytes of instructions, board vck190-isca25 has {512 << 10}" in refusal(long, VCK190_ISCA25)


def test_terminators_are_a_whole_program() -> None:
    """The probe: it loads, and each decoder ends."""
    for overlay in (XNN, XNN_BASE):
        packets = tuple(terminators(overlay))
        require(Program(overlay, packets))
        assert [overlay.by_opcode[p.header.opcode].name for p in packets] == list(overlay.terminators)
        assert len(encode_image(packets)) == 2 + len(packets)
    # the shipped order of contract 1.3, and its masks
    assert [(p.header.opcode, p.header.mask) for p in terminators(XNN)] == [
        (1, 0), (2, 0), (3, 0b111), (4, 0b111), (5, 0b111111), (7, 0), (6, 0),
    ]  # fmt: skip


# -- bitstreams


def bad(made: Made, folder: Path, profile: Profile = VCK190) -> str:
    with pytest.raises(BoardMismatch) as caught:
        match_xclbin(profile, read_xclbin(made.write(folder / "x.xclbin")))
    return str(caught.value).removeprefix(f"{folder}/")


def test_bitstreams_that_fit(tmp_path: Path) -> None:
    match_xclbin(VCK190, read_xclbin(Made().write(tmp_path / "a.xclbin")))
    match_xclbin(VCK190, read_xclbin(Made(ports=()).write(tmp_path / "a.xclbin")))  # it does not say
    published = Made(arguments=PUBLISHED).write(tmp_path / "b.xclbin")
    by_uuid = dataclasses.replace(VCK190_ISCA25, uuid=str(Made.uuid))
    by_hash = dataclasses.replace(VCK190_ISCA25, sha256=hashlib.sha256(published.read_bytes()).hexdigest())
    for profile in (by_uuid, by_hash):
        match_xclbin(profile, read_xclbin(published))


def test_bitstreams_that_do_not(tmp_path: Path) -> None:
    assert bad(Made(kernel="vadd"), tmp_path) == "x.xclbin: no kernel dma_hls, which board vck190 needs; it has vadd"
    assert bad(Made(arguments=PUBLISHED), tmp_path) == (
        "x.xclbin: kernel dma_hls takes lpddr0, lpddr1, ddr0, ddr1, instructions; board vck190 gives it 5 buffers and "
        "fingerprint; the published image is --board vck190-isca25"
    )
    assert "takes lpddr0, lpddr1; board" in bad(Made(arguments=OURS[:2]), tmp_path)
    assert bad(Made(graph="H"), tmp_path) == "x.xclbin: no graph G, which board vck190 needs; it has H"
    assert bad(Made(ports=["G.FG[0][0][0].k0.in[2]"]), tmp_path) == (
        "x.xclbin: graph G has no parameter G.FG[0][0][0].k1.in[3] (383 are missing): its tiles are not those of board "
        "vck190"
    )
    assert "use --board vck190" in bad(Made(), tmp_path, VCK190_ISCA25)
    unknown = bad(Made(arguments=PUBLISHED), tmp_path, VCK190_ISCA25)
    assert "nothing shows that this is vck190-isca25 (doi:10.5281/zenodo.15102698" in unknown
    assert f'base = "vck190-isca25"\n    uuid = "{Made.uuid}"\n    sha256 = ' in unknown
    other = dataclasses.replace(VCK190, uuid="00000000-0000-0000-0000-000000000001")
    assert f"its UUID is {Made.uuid}, board vck190 expects 00000000-0000" in bad(Made(), tmp_path, other)
    other = dataclasses.replace(VCK190, sha256="0" * 64)
    assert "its SHA-256 is " in bad(Made(), tmp_path, other)


def test_what_the_refusal_says_can_be_done(tmp_path: Path) -> None:
    """The profile that it spells out is one."""
    text = bad(Made(arguments=PUBLISHED), tmp_path, VCK190_ISCA25)
    (tmp_path / "mine.toml").write_text(text.partition("mine.toml:\n")[2], encoding="utf-8")
    match_xclbin(find_profile(str(tmp_path / "mine.toml")), read_xclbin(tmp_path / "x.xclbin"))


# -- files


WHOLE = Made(ports=("G.a", "G.b")).bytes()


@given(st.integers(0, len(WHOLE) - 1))
def test_an_xclbin_cut_short(tmp_path_factory: pytest.TempPathFactory, at: int) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.xclbin"
    path.write_bytes(WHOLE[:at])
    with pytest.raises(BoardError, match=r"cut\.xclbin: (cut short at byte|no xclbin)"):
        read_xclbin(path)


@given(st.integers(HEADER_AT, len(WHOLE) - 1), st.binary(min_size=1, max_size=8))
def test_an_altered_xclbin(tmp_path_factory: pytest.TempPathFactory, at: int, wrong: bytes) -> None:
    """Read, or refused: nothing else."""
    path = tmp_path_factory.getbasetemp() / "altered.xclbin"
    path.write_bytes(WHOLE[:at] + wrong + WHOLE[at + len(wrong) :])
    try:
        said = str(read_xclbin(path).path)
    except BoardError as e:
        said = str(e)
    assert str(path) in said


def test_sections_that_lie(tmp_path: Path) -> None:
    path = tmp_path / "x.xclbin"
    first = HEADER_AT + HEADER.size
    lying = bytearray(WHOLE)
    kind, name, at, _ = SECTION.unpack_from(WHOLE, first)
    SECTION.pack_into(lying, first, kind, name, at, 1 << 60)
    path.write_bytes(lying)
    with pytest.raises(BoardError, match=rf"section {kind} reaches from byte {at} to \d+ of {len(WHOLE)}"):
        read_xclbin(path)
    lying = bytearray(WHOLE)
    struct.pack_into("<I", lying, HEADER_AT + HEADER.size - 8, 0xFFFF_FFFF)
    path.write_bytes(lying)
    with pytest.raises(BoardError, match="in its 4294967295 section headers"):
        read_xclbin(path)
    with pytest.raises(BoardError, match="No such file"):
        read_xclbin(tmp_path / "none")


# -- profiles


def test_our_profile_is_what_the_sources_say() -> None:
    assert [a.name for a in ARGUMENTS] == ["lpddr0", "lpddr1", "ddr0", "ddr1", "instructions"]
    assert VCK190.arguments == ("lpddr", "lpddr", "ddr", "ddr", "instructions")
    assert (VCK190.kernel, VCK190.graph, VCK190.fingerprint) == ("dma_hls", "G", "fingerprint")
    assert (VCK190.pl_mhz, VCK190.aie_mhz) == (260, 1250)
    assert VCK190_ISCA25.limits == {"lpddr": 64 << 20, "ddr": 256 << 20, "instructions": 512 << 10}


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(
        'base = "vck190-isca25"\nuuid = "6F1C5B0E34A34D6B9D0C2A64F7A1C190"\nxclbin = "a.xclbin"\ntimeout_s = 5\n'
        "[limits]\nlpddr = 1_500_000_000\n",
        encoding="utf-8",
    )
    expected = dataclasses.replace(
        VCK190_ISCA25,
        name="lab",
        uuid=str(Made.uuid),
        xclbin=tmp_path / "a.xclbin",
        timeout_s=5.0,
        limits={"lpddr": 1_500_000_000, "ddr": 256 << 20, "instructions": 512 << 10},
    )
    assert find_profile(str(path)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"base = None is not a profile; there are vck190, vck190-isca25, vck190-xnn2"),
        ('base = "zcu102"', r"base = 'zcu102'"),
        ("base = []", r"base = \[\] is not a profile"),
        pytest.param("base = " + "[" * 5000 + "]" * 5000, r"p\.toml: .*recursion", id="deep"),
        (
            'base = "vck190"\nclock = 3',
            r"clock = 3: unknown key, or a value of a wrong type; the keys are base, limits, xclbin, name",
        ),
        ('base = "vck190"\ntimeout_s = 0', r"timeout_s = 0: unknown key, or a value of a wrong type"),
        ('base = "vck190"\ntimeout_s = true', r"timeout_s = True: unknown key, or a value of a wrong type"),
        ('base = "vck190"\nuuid = "x"', r"uuid = 'x' is not a UUID"),
        ('base = "vck190"\nlimits = {hbm = 3}', r"limits\.hbm = 3; limits are bytes, a whole number, of"),
        ('base = "vck190"\nlimits = {ddr = -3}', r"limits\.ddr = -3"),
        ('base = "vck190"\noverlay = "xnn"', r"overlay = 'xnn': unknown key, or a value of a wrong type"),
        ("base = ", r"p\.toml: Invalid value"),
    ],
)
def test_mistakes_in_a_profile(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "p.toml").write_text(text, encoding="utf-8")
    with pytest.raises(BoardError, match=message):
        find_profile(str(tmp_path / "p.toml"))


def test_names_of_boards(tmp_path: Path) -> None:
    for name, message in (
        (
            "vck191",
            "no board 'vck191'; there are sim, csim, vck190, vck190-isca25, vck190-xnn2, and profiles of your own",
        ),
        ("vck190@gpu", "no device 'gpu'; a board is PROFILE@DEVICE"),
        ("vck190@sim:x", "no device 'sim:x'"),
        (str(tmp_path / "none.toml"), "none.toml: No such file"),
    ):
        with pytest.raises(BoardError, match=message):
            open_board(name)
    open_board("vck190@sim:0").close()


@pytest.mark.parametrize("name", ["sim", "csim"])
def test_simulated_boards_take_no_bitstream(name: str, tmp_path: Path) -> None:
    with pytest.raises(BoardError, match=rf"^board {name} takes no bitstream; .*x\.xclbin is one of a real board$"):
        open_board(name, xclbin=tmp_path / "x.xclbin")


# -- op lists

OPS = st.lists(
    st.builds(
        Mme,
        **{f.name: st.integers(0, (1 << f.width) - 1) for f in Mme.FIELDS if f.name != "holds_weight"},
    ),
    max_size=6,
)


@given(st.dictionaries(st.sampled_from([u.name for u in XNN.by_kind["MME"]]), OPS.map(tuple), max_size=6))
def test_op_lists_come_back_from_the_tiles(lists: dict[str, tuple[Mme, ...]]) -> None:
    told = parameters(Program(XNN, (), lists), "G")
    assert len(told) == 384
    assert op_lists(told, XNN, "G") == {mme: ops for mme, ops in lists.items() if ops}


def test_op_lists_of_two_words_and_with_repeats() -> None:
    """The count is of ops, as the control program of xnn2 reads it, and no tile has a flag of its own."""
    ops = LaneMme(first=3, first_depth=2, n64=1), LaneMme(second=1, second_depth=255), LaneMme(length=2, times=4095)
    told = parameters(Program(XNN2, (), {"MME3": ops}), "G")
    words = told["G.FG[3][1][1].k1.in[3]"]
    assert words[:8].tolist() == [0, 3, *(w for op in ops for w in op.encode())]
    assert op_lists(told, XNN2, "G") == {"MME3": ops}


def test_what_a_tile_is_told() -> None:
    """Contract section 2: print code, count, ops; bit 26 exactly where cascade index = column lane; ports by name."""
    op = Mme(a_iter=1, b_iter=2, k_iter=3, acc_a=1, acc_b=1, prev=1, load_prev=1)
    told = parameters(Program(XNN, (), {"MME4": (op,)}), "G")
    for row in range(4):
        for column in range(4):
            for cascade in range(4):
                words = told[f"G.FG[4][{row}][{column}].k{cascade}.in[{2 if cascade == 0 else 3}]"]
                assert (words.dtype, len(words)) == (np.uint32, 512)
                holds = weight_flag(XNN) if cascade == column else 0
                assert words[:3].tolist() == [0, 1, op.encode()[0] | holds]
                assert not words[3:].any()
    assert weight_flag(XNN) == 1 << 26
    assert not told["G.FG[3][0][0].k0.in[2]"].any()


def test_tiles_that_disagree() -> None:
    told = parameters(Program(XNN, (), {"MME0": (Mme(a_iter=1, k_iter=1),)}), "G")
    port = "G.FG[0][1][2].k3.in[3]"
    for words, message in (
        (np.zeros(512, np.uint32), "other ops than the tiles of MME0 before it"),
        (np.zeros(3, np.uint32), "got 3 words"),
        (np.zeros(1, np.uint32), "got 1 words"),
        (told["G.FG[0][2][2].k2.in[3]"], "with(out)? the flag holds_weight"),
    ):
        with pytest.raises(BoardError, match=message):
            op_lists({**told, port: words}, XNN, "G")
    with pytest.raises(BoardError, match="got no parameter"):
        op_lists({k: v for k, v in told.items() if k != port}, XNN, "G")
