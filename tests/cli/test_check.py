"""`rsn check` as people meet it: findings with code, place and a way out; bare images; and the promise behind "ok"."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import rsn as package
from rsn.assembler import container
from rsn.assembler.parser import parse
from rsn.cli.main import main
from rsn.hw.sim.machine import simulate
from rsn.isa.packet import Packet
from rsn.isa.program import Program, Role, UnpackedProgram
from rsn.isa.verify import check, dry_run
from rsn.scheduler.pack import pack
from rsn.tests.effort import examples, full

PROGRAMS = Path(str(package.__file__)).parent / "programs"


def rsn(*args: object) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # would be a traceback
    return result


def assembled(text: str, name: str) -> Program:
    kernels = parse(text, name)
    return pack(kernels) if isinstance(kernels, UnpackedProgram) else kernels


# -- the programs that ship -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.rsn")), ids=lambda p: p.stem)
def test_shipped_programs_are_clean(path: Path, tmp_path: Path) -> None:
    container.write(assembled(path.read_text(), path.name), tmp_path / "p.bin")
    facts = json.loads(rsn("check", tmp_path / "p.bin", "--json").stdout)
    assert (facts["ok"], facts["findings"]) == (True, [])
    assert 1 <= facts["smallest_fifo_depth"] <= 6


@pytest.mark.long
@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("bert-large-encoder", ("--batch", 6, "--seq", 512, "--overlay", "xnn-base")),
        ("minilm", ()),
        full("vit", ()),
        full("ncf", ()),
        full("mlp", ()),
        ("gemm:768x1024x1024", ()),
    ],
)
def test_compiled_presets_are_clean(spec: str, options: tuple[Any, ...], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert rsn("compile", spec, "-o", tmp_path / "p.rsn", *options).exit_code == 0
    assert rsn("asm", tmp_path / "p.rsn").exit_code == 0
    result = rsn("check", tmp_path / "p.bin")
    assert (result.exit_code, result.stdout.count("\n")) == (0, 1), result.stdout


# -- three findings as people see them ------------------------------------------------------------------------------

COPY = """\
overlay fig6
buffer x ddr 100 linear input
buffer y ddr 100 linear output
packet FU1 { x[0:100] -> FU2 }
packet FU2 { size=100 }
packet FU3 { y[0:100] <- FU2 }
last FU1
last FU2
last FU3
"""


def check_text(text: str, folder: Path) -> Result:
    container.write(assembled(text, "copy.rsn"), folder / "copy.bin")
    return rsn("check", folder / "copy.bin")


def test_golden_sends_and_receives(tmp_path: Path) -> None:
    result = check_text(COPY.replace("size=100", "size=90"), tmp_path)
    assert result.exit_code == 1
    assert result.stdout == (
        "copy.rsn:4: error S01: FU1->FU2: 100 words sent, 90 received; FU1 uOP 0 is the first that sends words which "
        "FU2 never receives\n"
        "  help: FU2 must take 10 words more, or FU1 as many fewer\n"
        "copy.rsn:6: error S01: FU2->FU3: 90 words sent, 100 received; FU3 uOP 0 is the first that waits for words "
        "which FU2 never sends\n"
        "  help: FU2 must send 10 words more, or FU3 as many fewer\n"
    )


def test_golden_bounds(tmp_path: Path) -> None:
    result = check_text(COPY.replace("x[0:100] -> FU2", "addr=40 size=100 -> FU2"), tmp_path)
    assert result.exit_code == 1
    assert result.stdout == (
        "copy.rsn:4: error A01: FU1 reads 100 elements at ddr address 0x28, which lie in no declared buffer (the one "
        "before is x, up to 0x64)\n"
        "  help: correct address, size, chunks or strides, or declare the buffer as large as it is\n"
    )


def test_golden_terminators(tmp_path: Path) -> None:
    missing = check_text(COPY.replace("last FU2\n", ""), tmp_path)
    assert missing.stdout == (
        "FU2: error P05: no terminator (`last FU2`): its decoder would never end\n"
        "  help: end the image with one terminator per unit\n"
    )
    twice = check_text(COPY + "last FU1\n", tmp_path)
    assert twice.stdout == (
        "copy.rsn:10: error P04: FU1 has ended; this packet would block the dispatcher for ever\n"
        "  help: drop it: it was ended before (copy.rsn:7)\n"
    )


def test_a_clean_program_says_at_which_depths_it_runs(tmp_path: Path) -> None:
    result = check_text(COPY, tmp_path)
    assert result.stdout == f"{tmp_path / 'copy.bin'}: ok on fig6, runs at mOP FIFO depth 6 (and down to 1)\n"


def test_warnings_do_not_fail(tmp_path: Path) -> None:
    result = check_text(COPY.replace("overlay fig6", "overlay fig6\nbuffer z ddr 8 linear input"), tmp_path)
    assert result.exit_code == 0
    assert "buffer z: warning H08: nothing loads this input" in result.stdout
    assert "ok on fig6" in result.stdout


def test_json_rows_and_their_number(tmp_path: Path) -> None:
    text = COPY.replace("packet FU1 { x[0:100] -> FU2 }", "packet FU1 { addr=300 size=10 -> FU2 }\n" * 10)
    container.write(assembled(text, "copy.rsn"), tmp_path / "copy.bin")
    facts = json.loads(rsn("check", tmp_path / "copy.bin", "--json", "--most", 3).stdout)
    assert facts["ok"] is False
    assert facts["smallest_fifo_depth"] is None
    rows = [row for row in facts["findings"] if row["code"] == "A01"]
    assert [row["where"] for row in rows] == ["copy.rsn:4", "copy.rsn:5", "copy.rsn:6"]
    assert [row["times"] for row in rows] == [1, 1, 8]
    assert set(rows[0]) == {"code", "message", "where", "warning", "help", "times"}


# -- bare images ----------------------------------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """fig10 as an image from elsewhere, with its op lists."""
    program = assembled((PROGRAMS / "fig10.rsn").read_text(), "fig10.rsn")
    container.write_raw(program, tmp_path / "f.img")
    ops = {u: [op.encode()[0] for op in ops] for u, ops in program.preloaded.items()}
    (tmp_path / "ops.json").write_text(json.dumps(ops))
    return tmp_path


def test_a_bare_image_with_op_lists(bare: Path) -> None:
    sizes = ("--ddr-bytes", 4 * 128 * (1024 + 512), "--lpddr-bytes", 4 * 1024 * 512)
    whole = rsn("check", "--raw", bare / "f.img", *sizes, "--mme", bare / "ops.json")
    assert whole.exit_code == 0
    assert "ok on xnn-base, runs at mOP FIFO depth 6 (and down to" in whole.stdout
    small = rsn("check", "--raw", bare / "f.img", "--ddr-bytes", 4 * 128 * 1500, "--mme", bare / "ops.json")
    assert small.exit_code == 1
    assert "which lie in no declared buffer (the one before is ddr, up to 0x2ee0)" in small.stdout
    assert "packet " in small.stdout
    assert "(word " in small.stdout


def test_a_bare_image_without_op_lists(bare: Path) -> None:
    result = rsn("check", "--raw", bare / "f.img")
    assert result.exit_code == 0
    assert "warning S02: not every stream was counted: the op lists of the MMEs are not known" in result.stdout
    assert "deadlock not decided (needs the op lists, --mme)" in result.stdout
    ops = json.loads((bare / "ops.json").read_text())
    (bare / "ops.json").write_text(json.dumps({**ops, "MME0": []}))
    assert "S01" in rsn("check", "--raw", bare / "f.img", "--mme", bare / "ops.json").stdout


def test_a_bare_image_that_is_misread(bare: Path) -> None:
    words = np.fromfile(bare / "f.img", "<u4")
    words[2] = 15
    words.tofile(bare / "f.img")
    result = rsn("check", "--raw", bare / "f.img")
    assert result.exit_code == 1
    assert result.stdout == (
        "word 2: error F04: opcode 15 is not defined in overlay xnn-base; where the next packet begins is not known\n"
        "  help: check that the image is for this overlay (opcode 15: --overlay xnn2), and the length of the packet "
        "before it\n"
    )


def test_options_of_bare_images_go_with_raw(bare: Path) -> None:
    assert rsn("check", bare / "f.img", "--ddr-bytes", 5).exit_code == 2
    (bare / "ops.json").write_text("no json")
    assert "not a JSON object" in rsn("check", "--raw", bare / "f.img", "--mme", bare / "ops.json").stderr


def test_files_of_another_version_say_so(tmp_path: Path) -> None:
    container.write(assembled(COPY, "copy.rsn"), tmp_path / "copy.bin")
    data = bytearray((tmp_path / "copy.bin").read_bytes())
    for version in (0, container.VERSION + 1):
        data[8:10] = version.to_bytes(2, "little")
        (tmp_path / "other.bin").write_bytes(data)
        for command in (["check"], ["diff", tmp_path / "copy.bin"]):
            result = rsn(*command, tmp_path / "other.bin")
            assert result.exit_code == 1
            assert f"container version {version}; this toolchain reads version {container.VERSION}" in result.stderr


# -- what "ok" promises ---------------------------------------------------------------------------------------------

GEMM = """overlay xnn-base
buffer x ddr 128x256 blocked input
buffer w lpddr 256x256 blocked weight
buffer b lpddr 256 linear weight
buffer y ddr 128x256 blocked output
DDR {
    load x[0:128, 0:128] -> MemA0
    load x[0:128, 128:256] -> MemA0
    store y[0:128, 0:128] <- MemC0
    store y[0:128, 128:256] <- MemC1
}
LPDDR {
    b[0:128] -> MemB0 bias
    b[128:256] -> MemB1 bias
    for k in 0..2 {
        w[k*128:+128, 0:128] -> MemB0
        w[k*128:+128, 128:256] -> MemB1
    }
}
MemA0 {
    load dim1=128 dim2=128
    load dim1=128 dim2=128 send acc_a=1 acc_b=1
    send acc_a=1 acc_b=1
}
MemB[0..1] {
    load bias dim1=4 dim2=1
    for 2 { load dim1=128 dim2=128 send acc_a=1 acc_b=1 }
    send acc_a=1 acc_b=1
}
MeshA { size=1024 MemA0->MME0 MemA0->MME1 }
MeshB { size=1536 MemB0->MME0 MemB1->MME1 }
MME[0..1] { a_iter=1 b_iter=1 k_iter=2 acc_a=1 acc_b=1 bias k128 n128 }
MemC[0..1] {
    recv recv_a=1 recv_b=1 k_iter=2
    store dim1=128 dim2=128
}
"""

ATTENTION = """overlay xnn
buffer q ddr 128x64 blocked input
buffer k ddr 256x64 blocked input
buffer v ddr 256x64 blocked input
buffer y ddr 128x64 blocked output
DDR {
    load q -> MemA0
    load k[0:128, 0:64] -> MemB0
    load k[128:256, 0:64] -> MemB1
    load v -> MemB2
    store y <- MemC4
}
MemA0 {
    load dim1=128 dim2=64
    send acc_a=1 acc_b=1
}
MemB[0..1] {
    load transpose dim1=64 dim2=128
    send acc_a=1 acc_b=1
}
MemB2 {
    load dim1=256 dim2=64
    send acc_a=1 acc_b=1 acc_k=2
}
MeshA {
    size=512 MemA0->MME0 MemA0->MME1
    size=512 MemC0->MME4
    size=512 MemC1->MME4
}
MeshB {
    size=512 MemB0->MME0 MemB1->MME1
    size=1024 MemB2->MME4
}
MME[0..1] { a_iter=1 b_iter=1 k_iter=1 acc_a=1 acc_b=1 n128 }
MME4 { a_iter=1 b_iter=1 k_iter=2 acc_a=1 acc_b=1 k128 acc_k }
MemC[0..1] {
    recv softmax recv_a=1 recv_b=1 k_iter=1
    send send_a=1 send_b=1 send_k=1
}
MemC4 {
    recv recv_a=1 recv_b=1 k_iter=1
    store dim1=128 dim2=64
}
"""


@cache
def small(text: str) -> Program:
    return assembled(text, "small.rsn")


def run(program: Program) -> dict[str, Any]:
    """The memories after a run on small random inputs; scratch is 0."""
    rng = np.random.default_rng(0)
    banks = {bank: np.zeros(program.bank_size(bank), np.float32) for bank in program.overlay.banks}
    for b in program.buffers:
        if b.role in (Role.INPUT, Role.WEIGHT):
            at = b.offset * program.overlay.address_unit
            banks[b.bank][at : at + b.size] = 0.1 * rng.standard_normal(b.size).astype(np.float32)
    simulate(program, banks)
    return banks


def verdict(program: Program) -> list[str]:
    """Codes of the errors that `rsn check` reports."""
    found = [x.code for x in check(program) if not x.warning]
    return found or [x.code for x in dry_run(program) if not x.warning]


@pytest.mark.parametrize("text", [GEMM, ATTENTION], ids=["gemm", "attention"])
def test_the_small_programs_are_good(text: str) -> None:
    assert check(small(text)) == []
    banks = run(small(text))
    assert all(np.isfinite(memory).all() for memory in banks.values())


def without(program: Program, packet: int) -> Program:
    packets = program.packets[:packet] + program.packets[packet + 1 :]
    return dataclasses.replace(program, packets=packets, places=())


@pytest.mark.parametrize("text", [GEMM, ATTENTION], ids=["gemm", "attention"])
def test_every_packet_is_missed(text: str) -> None:
    program = small(text)
    assert all(verdict(without(program, i)) for i in range(len(program.packets)))


VALUES = st.integers(0, 4) | st.sampled_from([64, 128, 256, 512, 1024, 8192]) | st.integers(0, 2**32 - 1)


@st.composite
def mutations(draw: st.DrawFn, text: str) -> Program:
    """A good program with one to three things changed: packets dropped, doubled, swapped; fields, reuse, masks, ops."""
    program = small(text)
    packets = list(program.packets)
    ops = {u: list(x) for u, x in program.preloaded.items() if x}
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(packets) - 1))
        packet, header = packets[at], packets[at].header
        match draw(st.sampled_from(["field", "field", "field", "drop", "double", "swap", "reuse", "mask", "op"])):
            case "drop" if len(packets) > 1:
                del packets[at]
            case "double":
                packets.insert(at, packet)
            case "swap":
                other = draw(st.integers(0, len(packets) - 1))
                packets[at], packets[other] = packets[other], packet
            case "reuse" if not header.last:
                packets[at] = dataclasses.replace(packet, header=header.replace(reuse=draw(st.integers(0, 3))))
            case "mask":
                packets[at] = dataclasses.replace(packet, header=header.replace(mask=draw(st.integers(0, 63))))
            case "field" if packet.mops:
                mops = list(packet.mops)
                i = draw(st.integers(0, len(mops) - 1))
                mops[i] = changed(draw, mops[i])
                packets[at] = Packet(header, tuple(mops))
            case "op":
                unit = draw(st.sampled_from(sorted(ops)))
                i = draw(st.integers(0, len(ops[unit]) - 1))
                ops[unit][i] = changed(draw, ops[unit][i])
    preloaded = {**program.preloaded, **{u: tuple(x) for u, x in ops.items()}}
    return dataclasses.replace(program, packets=tuple(packets), preloaded=preloaded, places=(), preloaded_places={})


def changed(draw: st.DrawFn, record: Any) -> Any:
    spec = draw(st.sampled_from([x for x in record.FIELDS if not x.real]))
    value = draw(VALUES)
    return record.replace(**{spec.name: value}) if value <= spec.bounds[1] else record


@pytest.mark.parametrize("text", [GEMM, ATTENTION], ids=["gemm", "attention"])
@examples(150, quick=15, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_check_calls_ok_runs(text: str, data: st.DataObject) -> None:
    """It ends, leaves nothing over, and computes with nothing that was never loaded (which would be NaN)."""
    program = data.draw(mutations(text))
    if verdict(program):
        return
    banks = run(program)
    assert all(not np.isnan(memory).any() for memory in banks.values())
