"""`rsn diff` as people meet it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import rsn as package
from rsn.assembler import container
from rsn.assembler.parser import parse
from rsn.cli.main import main
from rsn.isa.packet import Packet
from rsn.isa.program import Program, UnpackedProgram
from rsn.scheduler.pack import pack

FIG10 = Path(str(package.__file__)).parent / "programs" / "fig10.rsn"


def rsn(*args: object) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # would be a traceback
    return result


def assembled(text: str, name: str) -> Program:
    kernels = parse(text, name)
    assert isinstance(kernels, UnpackedProgram)
    return pack(kernels)


def one_by_one(program: Program) -> Program:
    """The same kernels, every uOP a packet of its own unit."""
    overlay = program.overlay
    packets = []
    for packet in program.packets:
        header = packet.header
        if header.last:
            packets.append(packet)
            continue
        form = overlay.by_opcode[header.opcode]
        if form.loops_window:
            packets.append(packet)
            continue
        for unit in overlay.selected(header.opcode, header.mask):
            for mop in packet.mops:
                packets += [Packet.of(header.opcode, [mop], mask=1 << unit.index)] * header.reuse
    return dataclasses.replace(program, packets=tuple(packets), places=())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    text = FIG10.read_text()
    container.write(assembled(text, "a.rsn"), tmp_path / "a.bin")
    return tmp_path


def other(folder: Path, old: str, new: str) -> Path:
    text = FIG10.read_text()
    assert old in text
    container.write(assembled(text.replace(old, new), "b.rsn"), folder / "b.bin")
    return folder / "b.bin"


def test_the_same_image(folder: Path) -> None:
    result = rsn("diff", folder / "a.bin", folder / "a.bin")
    assert (result.exit_code, result.stdout) == (0, "the same image\n")


def test_other_packing(folder: Path) -> None:
    program = container.read(folder / "a.bin")
    container.write(one_by_one(program), folder / "b.bin")
    result = rsn("diff", folder / "a.bin", folder / "b.bin")
    assert result.exit_code == 0
    sizes = [4 * len(p.image) for p in (program, one_by_one(program))]
    assert result.stdout.startswith(f"same kernels, other packing: {sizes[0]} vs {sizes[1]} bytes, ")
    facts = json.loads(rsn("diff", folder / "a.bin", folder / "b.bin", "--json").stdout)
    assert (facts["same"], facts["identical"], facts["bytes"]) == (True, False, sizes)


def test_another_program(folder: Path) -> None:
    b = other(folder, "const K = 8 ", "const K = 6 ")
    result = rsn("diff", folder / "a.bin", b)
    assert result.exit_code == 1
    assert "MME0, MME1 op 0: k_iter 8 -> 6 (a.rsn:" in result.stdout
    assert "MeshA uOP 0: size 8192 -> 6144 (a.rsn:" in result.stdout
    assert "MemA0" in result.stdout
    facts = json.loads(rsn("diff", folder / "a.bin", b, "--json", "--most", 2).stdout)
    assert not facts["same"]
    assert len(facts["differences"]) == 2
    assert facts["more"] > 0
    assert set(facts["differences"][0]) == {"what", "text", "a", "b", "uops"}


def test_output_is_bounded(folder: Path) -> None:
    b = other(folder, "const K = 8 ", "const K = 6 ")
    result = rsn("diff", folder / "a.bin", b, "--most", 1)
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("... and ")


def test_bare_images(folder: Path) -> None:
    program = container.read(folder / "a.bin")
    container.write_raw(program, folder / "a.img")
    container.write_raw(one_by_one(program), folder / "b.img")
    result = rsn("diff", "--raw", folder / "a.img", folder / "b.img")
    assert result.exit_code == 0
    assert "same kernels" in result.stdout


def test_files_that_are_no_programs(folder: Path) -> None:
    (folder / "c.bin").write_bytes(b"\x7fELF")
    result = rsn("diff", folder / "a.bin", folder / "c.bin")
    assert result.exit_code == 1
    assert "c.bin: byte 0: not a program of this toolchain" in result.stderr
