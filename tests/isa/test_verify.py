"""What may not be loaded, and the words it is refused with."""

import dataclasses

import pytest

from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.overlays import xnn_formats as f
from rsn.isa.packet import Header, Packet
from rsn.isa.program import Buffer, Layout, Parameter, Patch, Program
from rsn.isa.verify import dry_run, verify

X = Buffer("x", "ddr", 0, (128, 128))
LAST = tuple(
    Packet.terminator(XNN.form_of(k).opcode, 0 if len(XNN.by_kind[k]) == 1 else (1 << len(XNN.by_kind[k])) - 1)
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
