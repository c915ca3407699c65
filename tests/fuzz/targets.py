"""What must hold for any input whatever: a reader ends with a result or with an `RsnError`, and results read back.

A target takes bytes and returns what came of them in a few words, for counting. Anything it raises is a bug.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from construct import ConstructError

from rsn.assembler import container
from rsn.assembler.formatter import format_text
from rsn.assembler.parser import parse, parse_file
from rsn.assembler.printer import show
from rsn.base.errors import ContainerError, ImageError, ProgramError, SourceError
from rsn.isa.image import decode_image
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import OVERLAYS
from rsn.isa.overlays.file import made
from rsn.isa.overlays.xnn import XNN
from rsn.isa.packet import Header, Words, encode_image
from rsn.isa.program import Program, ProgramSegment, UnpackedProgram
from rsn.isa.statistics import count
from rsn.scheduler.pack import pack

PROGRAMS = Path(__file__).resolve().parents[2] / "programs"

Target = Callable[[bytes], str]


def image(data: bytes) -> str:
    """A wire image: the first byte chooses the overlay, the rest are words. Read as it is, and with right counts."""
    if not data:
        return "empty"
    overlay = [*OVERLAYS.values()][data[0] % len(OVERLAYS)]
    body = data[1 : len(data) - (len(data) - 1) % 4]
    words = np.frombuffer(body, "<u4").astype(np.uint32)
    outcome = decoded(words, overlay)
    if outcome != "image" and len(words) >= 2:
        return decoded(counted(words, overlay), overlay)
    return outcome


def decoded(words: Words, overlay: Overlay) -> str:
    """What `decode_image` makes of an image. What it reads reads back, and can be counted."""
    try:
        packets = decode_image(words, overlay)
    except ImageError as e:
        return f"ImageError: {shape_of(str(e))}"
    again = encode_image(packets)
    assert len(again) == len(words)
    assert decode_image(again, overlay) == packets
    assert count(Program(overlay, packets))["packets"]["total"] == words[1]
    return "image"


def counted(words: Words, overlay: Overlay) -> Words:
    """The image with the counts at its head that its packets would have: else a mutation gets no further."""
    out = words.copy()
    at, packets = 2, 0
    while at < len(out):
        header = Header.decode(out[at : at + 1].tolist())
        form = overlay.by_opcode.get(header.opcode)
        at += 1 + (header.window * form.mop.WORDS if form else 0)
        packets += 1
    out[:2] = len(out) - 2, packets
    return out


def binary(data: bytes) -> str:
    """A `.bin`: as it is, and with lengths and checksums that are right."""
    outcome = loaded(data)
    return loaded(sealed(data)) if outcome != "program" else outcome


def loaded(data: bytes) -> str:
    try:
        program = container.loads(data)
    except ContainerError as e:
        return f"ContainerError: {shape_of(str(e))}"
    again = container.loads(container.dumps(program))
    assert again.image.tolist() == program.image.tolist()
    assert (again.buffers, again.parameters, again.places) == (program.buffers, program.parameters, program.places)
    assert again.segments == program.segments
    printed(program)
    return "program"


OVERLAY = b"OVLY"
"""Tag of the section that names the overlay."""


def sealed(data: bytes) -> bytes:
    """The same sections in a sound frame, for the overlay as it is now.

    The table is read where it stands in every file; lengths are cut to fit.
    """
    start, entry = 16, struct.Struct("<4sII")
    count = min(int.from_bytes(data[start - 2 : start], "little"), len(container._FORMATS)) or 1
    at = start + count * entry.size + 4
    sections: dict[bytes, bytes] = {}
    for i, tag in enumerate(list(container._FORMATS)[:count]):
        row = data[start + i * entry.size : start + (i + 1) * entry.size]
        length = entry.unpack(row)[1] if len(row) == entry.size else 0
        tag = row[:4] if row[:4] in container._FORMATS else tag
        sections[tag] = data[at : at + length]
        at += length
    sections[tag] += data[at:-4]
    try:
        head = container._OVERLAY.parse(sections.get(OVERLAY, b""))
    except ConstructError:
        return container._framed(sections)
    if head.name in OVERLAYS and len(head.fingerprint) == len(XNN.fingerprint):
        made_for = {"name": head.name, "fingerprint": OVERLAYS[head.name].fingerprint, "extended": head.extended}
        sections[OVERLAY] = container._OVERLAY.build(made_for)
    return container._framed(sections)


def printed(program: Program) -> None:
    """A program reads back from its text, if a text can say it."""
    try:
        text = show(program)
    except ProgramError:
        return
    again = parse(text, "printed.rsn")
    assert isinstance(again, Program)
    assert again.image.tolist() == program.image.tolist()


def text(data: bytes) -> str:
    """An `.rsn` text."""
    source = data.decode("utf-8", errors="replace")
    try:
        program = parse(source, "fuzzed.rsn")
    except SourceError as e:
        return f"SourceError: {shape_of(str(e).splitlines()[0])}"
    laid = format_text(source, "fuzzed.rsn")
    assert format_text(laid, "fuzzed.rsn") == laid
    again = parse(laid, "fuzzed.rsn")
    if isinstance(program, UnpackedProgram):
        assert isinstance(again, UnpackedProgram)
        assert again.sequences == program.sequences
        return "kernels"
    assert isinstance(again, Program)
    assert again.image.tolist() == program.image.tolist()
    try:
        container.dumps(program)
    except ProgramError as e:
        return f"ProgramError: {shape_of(str(e))}"
    printed(program)
    return "program"


TARGETS: Mapping[str, Target] = {"image": image, "binary": binary, "text": text}


def shape_of(message: str) -> str:
    """A message without its particulars, so that like ones are counted together."""
    words = message.split(": ", 2)[-1].split()[:6]
    return " ".join("#" if not word.isalpha() else word for word in words)


# -- where mutation starts ----------------------------------------------------------------------------------------


@cache
def seeds(target: str) -> tuple[bytes, ...]:
    """Real inputs: the programs that ship, and one with each thing that those do without."""
    if target == "text":
        return (*(path.read_bytes() for path in sorted(PROGRAMS.glob("*.rsn"))), _EVERYTHING.encode())
    programs = shipped()
    if target == "binary":
        last = programs[-1]
        changed = replace(last, overlay=made(_CHANGES, "changes.toml"))
        segment = ProgramSegment("s", ("a.b",), "gemm", (last.buffers[0].name,), {"DDR": ((0, 1), (2, 4))})
        return tuple(container.dumps(p) for p in (*programs, changed, replace(last, segments=(segment,))))
    names = [*OVERLAYS]
    return tuple(bytes([names.index(p.overlay.name)]) + p.image.astype("<u4").tobytes() for p in programs)


def shipped() -> list[Program]:
    """The programs of programs/, packed, and a hand-made one."""
    sources = [parse_file(path) for path in sorted(PROGRAMS.glob("*.rsn"))] + [parse(_EVERYTHING, "everything.rsn")]
    return [pack(s) if isinstance(s, UnpackedProgram) else s for s in sources]


_CHANGES = """\
name = "changed"
overlay = "xnn"
banks.ddr = 4294967296
memories.MemA.slots = 4
memories.MemB0.rows = 256
rates.ddr_read_gbs = 42.0
streams."MeshA->MME0" = 4
"""


_EVERYTHING = """\
overlay xnn
const N = (2 + 0x6) * 16
param len[0] 0..N = 100
param "a b" -1..5 = 0
buffer x ddr 256x128 input at 64 view 200x100
buffer "y z" ddr 256x128 blocked output
buffer v lpddr 1024 linear weight
scale "y z" [1 2.5 -3e-2 ONES]
nop
packet MemCConfig MemC[0..1, 4] { softmax_cols=clamp(len[0] - 0, 0, 512) causal offset=-3 scale=0.125 }
packet MemCScores MemC[0..3] { first_cols=clamp(len[0] - 128, 0, 128) windowed low=-511 capped cap=50 part=2 }
packet MemCStore MemC5 { gate rotate statistics head=2 head_cols=80 }
packet MemCTable MemC0 { recv_a=2 recv_b=4 }
packet MemANorm MemA[0..2] { rows=2 parts=4 normalise rms same eps=1e-05 }
packet MemBConfig MemB2 { whole }
packet DDR reuse=3 { load x[0:+128, 64:+64] -> MemA0 reuse_stride=2; store "y z" <- MemC0 }
packet LPDDR { bias v[0:512] -> MemB0 }
for i in 0..2 { packet MemA[0..1] { load dim1=N dim2=64*(i+1) } }
packet MeshA { size=512 MemA0->MME0 MemA0->MME1 }
MME[0..5] { for 2 { a_iter=1 b_iter=1 k_iter=1 acc_a=1 acc_b=1 k128 n128 } }
last DDR; last LPDDR
last MemA mask=7
last MemC[0..5]
""".replace("ONES", " ".join(["1"] * 125))
