"""Checks of programs: findings and their texts, and dry runs."""

import dataclasses

import pytest

from rsn.isa.overlays import FIG6, XNN, XNN_BASE
from rsn.isa.overlays.fig6 import Read, Write
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.packet import Header, Packet
from rsn.isa.program import Buffer, Layout, Parameter, Patch, Program, Role, SourceLine
from rsn.isa.verify import check, dry_run, smallest_depth, verify

X = Buffer("x", "ddr", 0, (128, 128))
LAST = tuple(
    Packet.terminator(XNN.format_of(k).opcode, 0 if len(XNN.by_kind[k]) == 1 else (1 << len(XNN.by_kind[k])) - 1)
    for k in XNN.terminators
)


def program(*packets: Packet, buffers: tuple[Buffer, ...] = (X,), last: tuple[Packet, ...] = LAST, **more) -> Program:
    return Program(XNN, (*packets, *last), buffers=buffers, **more)


def codes(p: Program) -> list[str]:
    return [x.code for x in verify(p)]


def load(**fields: int) -> Packet:
    return Packet.of(1, [f.Ddr(**{"size": 8192, "load": 1, "to_a0": 1, **fields})])


def test_an_empty_program_is_fine() -> None:
    assert verify(program()) == []
    assert dry_run(program()) == []


@pytest.mark.parametrize(
    ("packet", "ok"),
    [
        (load(addr=512), True),
        (load(addr=513), False),
        (load(size=16384), True),
        (load(size=24576), False),
        (load(chunks=2, chunk_stride=512), True),
        (load(chunks=3, chunk_stride=512), False),
        (Packet.of(1, [f.Ddr(size=8192, load=1, to_a0=1, reuse_stride=512)], reuse=3), False),
        (Packet.of(1, [f.Ddr(addr=99999, size=8192, load=1, to_a0=1)], reuse=0), True),
        (load(addr=0xFFFF_FFFF, chunks=2, chunk_stride=1), False),
        (Packet.of(2, [f.Lpddr(size=8192, to_b0=1)]), False),
    ],
)
def test_every_access_lies_in_a_declared_buffer(packet: Packet, ok: bool) -> None:
    assert codes(program(packet)) == ([] if ok else ["A01"])


def test_an_access_across_two_buffers_is_none_of_either() -> None:
    two = (X, dataclasses.replace(X, name="y", offset=1024))
    assert codes(program(load(addr=512, size=16384), buffers=two)) == ["A01"]
    assert codes(program(load(addr=1024, size=16384), buffers=two)) == []


def test_terminators() -> None:
    assert codes(program(last=LAST[1:])) == ["P05"]
    assert codes(program(LAST[0])) == ["P04"]
    (finding,) = verify(program(load(), last=(LAST[0], load(), *LAST[1:])))
    assert finding.message == "DDR has ended; this packet would block the dispatcher for ever"


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (Packet.of(3, [f.MemA()], mask=0), "P02"),
        (Packet.of(7, [f.MeshB(size=512, b0_0=1)], reuse=0x8000), "P03"),
        (Packet.of(8, [f.MemCConfig()] * 2, mask=1), "P06"),
        (load(size=100), "U01"),
        (Packet.of(4, [f.MemB(load=1, bias=1, dim1=1, dim2=1)], mask=4), "U01"),
    ],
)
def test_packets(packet: Packet, code: str) -> None:
    assert codes(program(packet)) == [code]


def test_an_image_that_expands_beyond_reason_is_refused_at_once() -> None:
    huge = [Packet(Header(opcode=1, window=31, reuse=65535), (f.Ddr(chunks=15),) * 31)] * 100
    assert codes(program(*huge)) == ["P01"]


@pytest.mark.parametrize(
    ("buffer", "code"),
    [
        (Buffer("x", "hbm", 0, (128, 64)), "B02"),
        (Buffer("x", "ddr", 1 << 30, (128, 64)), "B03"),
        (Buffer("x", "ddr", 0, (100, 64)), "B04"),
        (Buffer("x", "ddr", 0, (128, 64), view=(1, 129, 64)), "B05"),
        (Buffer("x", "ddr", 0, (128, 64), scale=(1.0,)), "B06"),
    ],
)
def test_buffers(buffer: Buffer, code: str) -> None:
    assert codes(program(buffers=(buffer,))) == [code]
    assert codes(program(buffers=(Buffer("v", "ddr", 0, (16,), Layout.LINEAR),) * 2)) == ["B01"]


def test_op_lists() -> None:
    assert codes(program(preloaded={"MME9": ()})) == ["M01"]
    assert codes(program(preloaded={"MME0": (f.Mme(k128=1, n128=1, k_iter=1),) * 511})) == ["M02"]
    assert codes(program(preloaded={"MME0": (f.MemA(),)})) == ["M03"]
    assert codes(program(preloaded={"MME0": (f.Mme(k128=1, bias=1, k_iter=1),)})) == ["M04"]


def test_parameters() -> None:
    packet = Packet.of(8, [f.MemCConfig()], mask=1)

    def found(parameter: Parameter) -> list[str]:
        return codes(program(packet, parameters=(parameter,)))

    assert found(Parameter("n", 1, 512, 512, (Patch(0, 0, "softmax_cols", 0, 512),))) == []
    assert found(Parameter("n", 1, 5, 9)) == ["R01"]
    assert found(Parameter("n", 1, 5, 5, (Patch(7, 0, "softmax_cols", 0, 512),))) == ["R02"]
    assert found(Parameter("n", 1, 9999, 5, (Patch(0, 0, "softmax_cols", 0, 2000),))) == ["R03"]


def test_a_dry_run_names_what_never_arrives() -> None:
    (finding,) = dry_run(program(load()))
    assert finding.code == "D02"
    assert "DDR->MemA0: 256 of 256 words" in finding.message
    (finding,) = dry_run(program(Packet.of(3, [f.MemA(load=1, dim1=128, dim2=64)], mask=1)))
    assert finding.code == "D01"
    assert "waits to get DDR->MemA0" in finding.message


def test_the_base_is_told_from_the_extension() -> None:
    packet = Packet.of(8, [f.MemCConfig()], mask=1)
    assert program(packet).extended
    assert not program().extended
    assert not Program(XNN_BASE, LAST).extended


# -- what `check` adds ----------------------------------------------------------------------------------------------


def checked(p: Program) -> list[str]:
    return [x.code + ("?" if x.warning else "") for x in check(p)]


LOAD_A = Packet.of(3, [f.MemA(load=1, dim1=128, dim2=64)], mask=1)
SEND_A = Packet.of(3, [f.MemA(send=1, acc_a=1, acc_b=1)], mask=1)
INPUT = dataclasses.replace(X, role=Role.INPUT)


def test_sends_equal_receives() -> None:
    assert checked(program(load(), LOAD_A, SEND_A, buffers=(INPUT,))) == ["S01"]
    assert "S01" in checked(program(load(), buffers=(INPUT,)))
    (finding,) = (x for x in check(program(load(), buffers=(INPUT,))) if x.code == "S01")
    assert finding.where == "packet 0 (word 2)"
    assert finding.help == "MemA0 must take 256 words more, or DDR as many fewer"


def test_bits_without_effect() -> None:
    assert codes(program(Packet.of(3, [f.MemA()], mask=0b1001))) == ["P07"]
    assert codes(program(Packet.of(1, [f.Ddr(size=0)], mask=1))) == ["P07"]
    assert codes(program(Packet(Header(opcode=1)))) == ["P08"]
    both = Packet.of(1, [f.Ddr(size=8192, load=1, to_a0=1, to_a1=1)])
    assert [x.message for x in check(program(both)) if x.code == "U02"] == [
        "loads to MemA0 and MemA1; MemA0 alone gets the data"
    ]


def test_a_findings_place_is_its_source_line() -> None:
    places = tuple(SourceLine("a.rsn", 10 + i) for i in range(8))
    (finding,) = (x for x in verify(program(load(addr=600), places=places)))
    assert str(finding) == (
        "a.rsn:10: error A01: DDR reads 8192 elements at ddr address 0x258, which lie in no declared buffer "
        "(the one before is x, up to 0x400)"
    )
    assert finding.help.startswith("correct address, size, chunks or strides")


def test_roles_can_be_left_out() -> None:
    p = program(load(), LOAD_A)
    assert "H02" in {x.code for x in check(p)}
    assert not any(x.code.startswith("H") for x in check(p, roles=False))


def test_op_lists_can_be_left_out() -> None:
    found = check(program(), op_lists=False)
    assert [(x.code, x.warning) for x in found] == [("S02", True)]
    assert found[0].message == "not every stream was counted: the op lists of the MMEs are not known"


def test_parameters_that_move_accesses() -> None:
    def found(field: str, cap: int, **fields: int) -> list[str]:
        parameter = Parameter("n", 0, 9999, 0, (Patch(0, 0, field, 0, cap),))
        p = program(load(**fields), LOAD_A, parameters=(parameter,), buffers=(INPUT,))
        return codes(p)

    assert found("chunks", 2, chunk_stride=512) == []
    assert found("chunks", 3, chunk_stride=512) == ["R04"]
    assert found("addr", 60) == []  # by 64 bytes each
    assert found("addr", 1000) == ["R04"]


def test_parameters_that_change_streams() -> None:
    def found(*patches: Patch) -> list[str]:
        n = Parameter("n", 1, 2, 1, patches)
        config = Packet.of(8, [f.MemCConfig()], mask=1)
        p = program(load(), LOAD_A, config, buffers=(INPUT,), parameters=(n,))
        return [x.code for x in check(p) if x.code != "X02"]

    assert found(Patch(2, 0, "softmax_cols", 0, 2)) == []
    assert found(Patch(0, 0, "chunks", 0, 2)) == ["R05"]


def test_a_wrong_op_ends_the_check() -> None:
    assert checked(program(preloaded={"MME0": (f.MemA(),)})) == ["M03"]


# -- deadlock -------------------------------------------------------------------------------------------------------


def fig6(order: str) -> Program:
    """A program with one packet of one uOP per character of `order`: "1" for FU1, "3" for FU3."""
    packets = {"1": Packet.of(1, [Read(size=1, to_fu3=1)]), "3": Packet.of(3, [Write(size=1, from_fu1=1)])}
    last = tuple(Packet.terminator(i) for i in (1, 2, 3))
    buffers = (Buffer("m", "ddr", 0, (16,), Layout.LINEAR, Role.INPUT),)
    return Program(FIG6, (*(packets[c] for c in order), *last), buffers=buffers)


def test_the_smallest_depth_is_found() -> None:
    # FU1 -> FU3 holds 2 elements, FU1 a third, its FIFO 2 uOPs and its decoder one: the rest needs mOP FIFO slots
    assert dry_run(fig6("1" * 8 + "3" * 8)) == []
    depths = [smallest_depth(fig6("1" * n + "3" * n)) for n in (1, 4, 8, 11)]
    assert depths == sorted(depths, key=lambda d: d or 99)
    assert depths[0] == 1
    for n, depth in zip((8, 11), depths[2:], strict=True):
        assert depth is not None
        shallow = dataclasses.replace(FIG6, mop_fifo_depth=max(1, depth - 1))
        ran = dry_run(dataclasses.replace(fig6("1" * n + "3" * n), overlay=shallow)) == []
        assert ran == (depth == 1)


def test_a_dispatch_deadlock_is_told_from_one_of_the_units() -> None:
    (finding,) = dry_run(fig6("1" * 20 + "3" * 20))
    assert finding.code == "D03"
    assert "the order of packets stalls the dispatcher" in finding.message
    assert "dispatcher" in finding.message
    depth = int(finding.help.split()[-1])
    assert (
        dry_run(dataclasses.replace(fig6("1" * 20 + "3" * 20), overlay=dataclasses.replace(FIG6, mop_fifo_depth=depth)))
        == []
    )
    (finding,) = dry_run(fig6("3"))
    assert finding.code == "D01"
    assert smallest_depth(fig6("3")) is None
