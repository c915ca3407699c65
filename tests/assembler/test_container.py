"""The container believes nothing: what is cut, altered or made up is a `ContainerError` that names file and byte."""

from __future__ import annotations

import dataclasses
import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rsn.assembler import container
from rsn.assembler.container import dumps, loads, read, read_raw, write, write_raw
from rsn.assembler.parser import parse
from rsn.base.errors import ContainerError, ProgramError
from rsn.isa.overlays.xnn import XNN, XNN_BASE
from rsn.isa.program import Program
from rsn.tests.effort import examples

TEXT = """\
overlay xnn
param len 1..512 = 100
buffer x ddr 128x64 output
scale x [{ones}]
MME[0, 2] {{ n128 k128 a_iter=1; k128 }}
packet DDR reuse=2 {{ load x -> MemA0 }}
packet MemCConfig MemC1 {{ softmax_cols=clamp(len-64, 0, 256) }}
last DDR
""".format(ones=" ".join(["1.5"] * 64))

OVLY, IMAG, OPSL, BUFF, PARM, SRCM = range(6)


@pytest.fixture(scope="module")
def program() -> Program:
    made = parse(TEXT, "t.rsn")
    assert isinstance(made, Program)
    return made


def complaint(data: bytes) -> str:
    with pytest.raises(ContainerError) as caught:
        loads(data, "x.bin")
    found = str(caught.value)
    assert re.match(r"x\.bin: byte \d+: ", found), found
    return found


def resealed(program: Program, section: int, data: bytes) -> bytes:
    """The program with the bytes of one section replaced and every checksum right."""
    sections = container._sections(program)
    sections[list(sections)[section]] = data
    return container._framed(sections)


def test_a_file_of_a_whole_model_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "m.rsnmodel"
    path.write_bytes((1 << 20).to_bytes(8, "little") + b'{"__metadata__":{}}' + bytes(1 << 20))
    with pytest.raises(ContainerError, match=r"it is a safetensors file, as a whole model .* is: rsn serve"):
        read(path)


def test_reads_what_it_wrote(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    write(program, path)
    again = read(path)
    assert again.packets == program.packets
    assert again.preloaded == program.preloaded
    assert again.buffers == program.buffers
    assert again.parameters == program.parameters
    assert again.places == program.places
    assert again.preloaded_places == program.preloaded_places
    assert again.extended
    assert again.bind({"len": 400}).tolist() == program.bind({"len": 400}).tolist()


def test_every_flipped_byte_is_found(program: Program) -> None:
    data = dumps(program)
    for i in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            complaint(data[:i] + bytes([data[i] ^ flip]) + data[i + 1 :])


def test_every_truncation_is_found(program: Program) -> None:
    data = dumps(program)
    for i in range(len(data)):
        complaint(data[:i])
    assert "too long" in complaint(data + b"\0")


def test_what_was_altered_is_named(program: Program) -> None:
    data = bytearray(dumps(program))
    at = data.index(program.image.tobytes())
    data[at] ^= 1
    assert (
        complaint(bytes(data))
        == f"x.bin: byte {at}: the checksum of section image does not match: the file was altered"
    )


def test_not_ours() -> None:
    assert "byte 0: not a program of this toolchain: it is empty" in complaint(b"")
    found = complaint(struct.pack("<4I", 2, 1, 0, 0))
    assert "byte 0: not a program of this toolchain" in found
    assert "--raw" in found
    assert complaint(b"overlay xnn\n").endswith("it is a text; rsn asm makes a program (.bin) of a program text (.rsn)")
    model = struct.pack("<Q", 2) + b'{"a": 1}'
    assert complaint(model).endswith("as a whole model (.rsnmodel) is: rsn serve and rsn.load take models")


def test_other_version(program: Program) -> None:
    data = bytearray(dumps(program))
    data[8:10] = (7).to_bytes(2, "little")
    assert complaint(bytes(data)).startswith(
        "x.bin: byte 8: container version 7; this toolchain reads version 2: assemble"
    )


def test_overlays_must_be_the_same(program: Program) -> None:
    def head(name: str, fingerprint: str) -> bytes:
        return resealed(
            program, OVLY, container._OVERLAY.build({"name": name, "fingerprint": fingerprint, "extended": True})
        )

    assert "made for overlay ynn; this toolchain knows xnn, xnn-base" in complaint(head("ynn", XNN.fingerprint))
    found = complaint(head("xnn", "0123456789abcdef"))
    assert "made for overlay xnn 0123456789abcdef" in found
    assert XNN.fingerprint in found
    assert "again" in found
    base = parse("overlay xnn-base\nlast DDR", "t.rsn")
    assert isinstance(base, Program)
    marked = container._OVERLAY.build({"name": "xnn-base", "fingerprint": XNN_BASE.fingerprint, "extended": True})
    assert "marked as an extended program, but its image is base" in complaint(resealed(base, OVLY, marked))


def test_overlays_of_a_caller(program: Program) -> None:
    assert loads(dumps(program), overlays={"xnn": XNN}).overlay is XNN
    with pytest.raises(ContainerError, match="knows xnn-base"):
        loads(dumps(program), overlays={"xnn-base": XNN_BASE})


IMAGES = [
    ([5, 1, 0x401], 0, "announces 5 packet words and holds 1"),
    ([1, 1, 0x40F], 8, "opcode 15 is not defined in overlay xnn"),
    ([1, 1, 0x801], 8, "runs past the end"),
    ([2, 1, 0x401, 0x401], 4, "announces 1 packets and holds 2"),
    ([1, 1, 0x00000010], 8, "word 2 is 0x00000010, but its fields and parameters give 0x00000000"),
    ([2, 1, 0x813, 0x80000000], 12, "word 3 is 0x80000000, but its fields and parameters give 0x00000000"),
]


@pytest.mark.parametrize(("words", "at", "message"), IMAGES)
def test_image(words: list[int], at: int, message: str) -> None:
    bare = parse("overlay xnn", "t.rsn")
    assert isinstance(bare, Program)
    data = resealed(bare, IMAG, np.array(words, "<u4").tobytes())
    start = data.index(np.array(words, "<u4").tobytes())
    found = complaint(data)
    assert message in found
    assert found.startswith(f"x.bin: byte {start + at}: ")


def test_image_of_odd_length(program: Program) -> None:
    assert "words of 4 bytes" in complaint(resealed(program, IMAG, b"12345"))


# word, lowest bit, width, cap; the image: 0 W, 1 P, 2 DDR header, 3..6 mOP, 7 header, 8..11 configuration, 12 last
PATCHES = [
    (0, 0, 32, 1, "lie outside all packets"),
    (1, 0, 32, 1, "lie outside all packets"),
    (13, 0, 10, 1, "lie outside all packets"),
    (99999, 0, 10, 1, "lie outside all packets"),
    (7, 0, 4, 1, "lie in a packet header"),
    (12, 0, 4, 1, "lie in a packet header"),
    (8, 1, 10, 1, "are not an integer field, and parameters set only those"),
    (8, 0, 9, 1, "are not an integer field, and parameters set only those"),
    (8, 0, 255, 1, "are not an integer field, and parameters set only those"),
    (10, 0, 32, 1, "are not an integer field, and parameters set only those"),  # a real one
    (8, 0, 10, 1024, "softmax_cols cannot hold the upper bound 1024"),
    (8, 0, 10, -1, "softmax_cols cannot hold the upper bound -1"),
]


def parameter(*patches: tuple[int, int, int, int]) -> bytes:
    rows = [{"word": w, "bit": b, "width": n, "base": 64, "cap": cap} for w, b, n, cap in patches]
    return bytes(container._PARAMETERS.build([{"name": "len", "low": 1, "high": 512, "default": 100, "patches": rows}]))


def test_patch_points_map_back_to_fields(program: Program) -> None:
    assert resealed(program, PARM, parameter((8, 0, 10, 256))) == dumps(program)


@pytest.mark.parametrize(("word", "bit", "width", "cap", "message"), PATCHES)
def test_patch_point(program: Program, word: int, bit: int, width: int, cap: int, message: str) -> None:
    found = complaint(resealed(program, PARM, parameter((word, bit, width, cap))))
    assert f"parameter len: bits {bit}..{bit + width - 1} of word {word}" in found
    assert message in found


def test_a_field_is_patched_once(program: Program) -> None:
    found = complaint(resealed(program, PARM, parameter((8, 0, 10, 256), (8, 0, 10, 255))))
    assert "softmax_cols of packet 1, mOP 0 is patched twice" in found


OPS = [
    ([("MME9", [0])], "MME9 is not a unit with an op list"),
    ([("DDR", [0])], "DDR is not a unit with an op list"),
    ([("MME0", [0]), ("MME0", [0])], "MME0 has two op lists"),
    ([("MME0", [])], "MME0 has 0 bytes of ops; its list holds 1 to 510 ops of 4 bytes"),
    ([("MME0", [0] * 511)], "MME0 has 2044 bytes of ops"),
    ([("MME0", [0, 1 << 31])], "MME0, op 1: bits outside its fields are set"),
]


@pytest.mark.parametrize(("rows", "message"), OPS)
def test_op_lists(program: Program, rows: list[tuple[str, list[int]]], message: str) -> None:
    data = container._OPS.build([{"unit": u, "words": np.array(w, "<u4").tobytes()} for u, w in rows])
    assert message in complaint(resealed(program, OPSL, data))


BUFFERS = [
    ({"bank": "hbm"}, "buffer x lies in memory hbm; memories of xnn are ddr, lpddr"),
    ({"offset": 1 << 40}, "buffer x at address 1099511627776 does not lie within ddr"),
    ({"shape": (100, 64)}, "buffer x has the shape (100, 64), which is not a whole number of 128x64 blocks"),
    ({"shape": ()}, "buffer x has the shape ()"),
    ({"shape": (128, 64, 1)}, "buffer x has the shape (128, 64, 1)"),
    ({"shape": (0,)}, "buffer x has the shape (0,)"),
    ({"shape": (1 << 62, 1 << 62)}, "buffer x has the shape"),
    ({"view": (9999, 64)}, "buffer x has the view (9999, 64)"),
    ({"scale": struct.pack("<3f", 1, 2, 3)}, "buffer x has 3 scale values for 64 columns"),
    ({"scale": b"123"}, "buffer x: 3 bytes of scale or shift are not a whole number of float32"),
    ({"shift": struct.pack("<64f", *[float("nan")] * 64)}, "buffer x has a shift value that is not a finite float32"),
]


@pytest.mark.parametrize(("change", "message"), BUFFERS)
def test_buffer(program: Program, change: dict[str, object], message: str) -> None:
    row = container._buffer(program.buffers[0]) | change
    assert message in complaint(resealed(program, BUFF, container._BUFFERS.build([row])))


def test_buffers_have_names_of_their_own(program: Program) -> None:
    row = container._buffer(program.buffers[0])
    assert "buffer x is declared twice" in complaint(resealed(program, BUFF, container._BUFFERS.build([row, row])))


def test_unknown_layout(program: Program) -> None:
    data = container._BUFFERS.build([container._buffer(program.buffers[0])])
    assert "section buffers cannot be read" in complaint(resealed(program, BUFF, data.replace(b"blocked", b"blockex")))


def test_source_map_stays_in_bounds(program: Program) -> None:
    def sources(packets: list[int], ops: str = "MME0") -> bytes:
        rows = {"files": ["a"], "packets": struct.pack(f"<{len(packets)}I", *packets)}
        data = container._SOURCES.build(rows | {"ops": [{"unit": ops, "places": struct.pack("<2I", 0, 1)}]})
        return resealed(program, SRCM, data)

    assert loads(sources([0, 5, 0, 6])).where("DDR", 1) == "a:6"
    assert "line 5 of file 1" in complaint(sources([1, 5]))
    assert "line 0 of file 0" in complaint(sources([0, 0]))
    assert "pairs" in complaint(sources([0, 5, 0]))
    assert "more lines than the image has packets" in complaint(sources([0, 5] * 4))
    assert "lines for MME9, which has no ops" in complaint(sources([], "MME9"))


@pytest.mark.parametrize("section", range(6))
def test_counts_are_not_believed(program: Program, section: int) -> None:
    for data in (b"\xff" * 4, b"\xff" * 64, b"\xff\xff\xff\xff" + bytes(64), b"", b"\x01"):
        if section == IMAG and not data:
            continue
        complaint(resealed(program, section, data))


@examples(300, quick=30)
@given(st.integers(0, 5), st.integers(0, 2000), st.binary(min_size=1, max_size=4), st.booleans())
@example(BUFF, 0, b"\xff\xff\xff\x7f", False)
def test_made_up_sections_load_or_are_refused(section: int, at: int, data: bytes, insert: bool) -> None:
    """With checksums that are right, whatever stands in a section is a program or a `ContainerError`."""
    made = parse(TEXT, "t.rsn")
    assert isinstance(made, Program)
    old = list(container._sections(made).values())[section]
    at %= len(old) + 1
    altered = resealed(made, section, old[:at] + data + old[at + (0 if insert else len(data)) :])
    try:
        again = loads(altered)
    except ContainerError:
        return
    assert isinstance(loads(dumps(again)), Program)


def test_unreadable_programs_are_not_written(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    write(program, path)
    before = path.read_bytes()
    bad = dataclasses.replace(program, preloaded={"MME7": program.preloaded["MME0"]})
    with pytest.raises(ProgramError, match="MME7 is not a unit with an op list"):
        write(bad, path)
    long = dataclasses.replace(program.buffers[0], name="x" * 70000)
    with pytest.raises(ProgramError, match="does not fit into a container"):
        write(dataclasses.replace(program, buffers=(long,), parameters=()), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["t.bin"]


def test_written_in_one_step(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "t.bin"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "replace", no_room)
    with pytest.raises(OSError, match=r"No space left on device: '.*t\.bin'"):
        write(program, path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["t.bin"]


def test_written_through_links_and_into_devices(program: Program, tmp_path: Path) -> None:
    real, link = tmp_path / "real.bin", tmp_path / "link.bin"
    link.symlink_to(real)
    write(program, link)
    assert link.is_symlink()
    assert real.read_bytes() == dumps(program)
    write(program, "/dev/null")
    assert not Path("/dev/null").is_file()


def test_endless_files_are_not_read() -> None:
    with pytest.raises(ContainerError, match="byte 0: not a program"):
        read("/dev/zero")


def test_raw(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "image"
    write_raw(program, path)
    assert path.read_bytes() == program.image.astype("<u4").tobytes()
    assert read_raw(path, XNN).image.tolist() == program.image.tolist()
    with pytest.raises(ContainerError, match=r"byte 28: .*opcode 8 is not defined in overlay xnn-base"):
        read_raw(path, XNN_BASE)


def test_raw_masks_what_means_nothing(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(struct.pack("<4I", 2, 1, 0x813, 0xFF00_0001))
    assert read_raw(path, XNN).image.tolist() == [2, 1, 0x813, 0x0100_0001]


def test_raw_of_odd_length(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(b"12345")
    with pytest.raises(ContainerError, match="byte 5: an image consists of words of 4 bytes"):
        read_raw(path, XNN)
