"""Read and write `.bin` files (a program with all that a runner needs but the tensors) and bare wire images (`--raw`).

A `.bin` consists of a header with a table of sections, the sections back to back, and a checksum of all bytes before
it. All numbers are little endian. The reader trusts nothing: it checks a length before it allocates memory for it, and
reports every defect as a `ContainerError` with file and byte offset.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from math import isfinite, prod
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from zlib import crc32

import construct as c
import numpy as np

from ..base.errors import ContainerError, FieldError, ImageError, ProgramError
from ..base.files import write_bytes
from ..base.garbage import gc_disabled
from ..isa.fields import Record
from ..isa.image import decode_image
from ..isa.overlay import Overlay
from ..isa.overlays import OVERLAYS
from ..isa.overlays.file import made, text
from ..isa.packet import Packet, Words
from ..isa.program import Buffer, Layout, Parameter, Patch, Program, ProgramSegment, Role, SourceLine
from .diagnostic import listing
from .segment_section import SEGMENTS, decoded, encoded, segment_faults
from .slices import GRAIN

T = TypeVar("T")

MAGIC = b"\x93RSN\r\n\x1a\n"
"""First bytes of a `.bin`. They show that the file is not text, and change if a transfer converts line ends or strips
the eighth bit."""

VERSION = 2

LARGEST = 1 << 48
"""Limit of a buffer's size in elements and of its address in address units; far above any real buffer."""

_TEXT = c.PascalString(c.Int16ul, "utf8")
_BLOB = c.Prefixed(c.Int32ul, c.GreedyBytes)
_SHAPE = c.PrefixedArray(c.Int8ul, c.Int64ul)

_SECTION = c.Struct("tag" / c.Bytes(4), "length" / c.Int32ul, "crc" / c.Int32ul)
_HEADER = c.Struct(
    "magic" / c.Const(MAGIC),
    "version" / c.Const(VERSION, c.Int16ul),
    "length" / c.Int32ul,  # of the file
    "sections" / c.PrefixedArray(c.Int16ul, _SECTION),
)

_OVERLAY = c.Struct("name" / _TEXT, "fingerprint" / _TEXT, "extended" / c.Flag)

_OPS = c.PrefixedArray(c.Int16ul, c.Struct("at" / c.Tell, "unit" / _TEXT, "words" / _BLOB))

_BUFFERS = c.PrefixedArray(
    c.Int32ul,
    c.Struct(
        "at" / c.Tell,
        "name" / _TEXT,
        "bank" / _TEXT,
        "offset" / c.Int64ul,
        "shape" / _SHAPE,
        "layout" / c.Mapping(_TEXT, {x: x.value for x in Layout}),
        "role" / c.Mapping(_TEXT, {x: x.value for x in Role}),
        "view" / _SHAPE,  # empty: no view
        "rows" / c.PrefixedArray(c.Int32ul, c.Int64ul),  # valid rows of each item of the view; empty: all rows
        "scale" / _BLOB,  # float32; empty: no scale
        "shift" / _BLOB,
    ),
)

_PARAMETERS = c.PrefixedArray(
    c.Int32ul,
    c.Struct(
        "name" / _TEXT,
        "low" / c.Int64sl,
        "high" / c.Int64sl,
        "default" / c.Int64sl,
        "patches"
        / c.PrefixedArray(
            c.Int32ul,
            c.Struct(
                "at" / c.Tell,
                "word" / c.Int32ul,  # word of the image
                "bit" / c.Int8ul,  # lowest bit of the field
                "width" / c.Int8ul,
                "base" / c.Int64sl,
                "cap" / c.Int64sl,
            ),
        ),
    ),
)

_SOURCES = c.Struct(
    "files" / c.PrefixedArray(c.Int32ul, _TEXT),
    "packets" / _BLOB,  # pairs: file, line
    "ops" / c.PrefixedArray(c.Int16ul, c.Struct("unit" / _TEXT, "places" / _BLOB)),
)

_FORMATS = {
    b"OVLY": ("overlay", _OVERLAY),
    b"IMAG": ("image", c.GreedyBytes),
    b"OPSL": ("op lists", _OPS),
    b"BUFF": ("buffers", _BUFFERS),
    b"PARM": ("parameters", _PARAMETERS),
    b"SRCM": ("source map", _SOURCES),
    b"SEGM": ("segments", SEGMENTS),
    b"CHNG": ("changes of the overlay", c.GreedyBytes),
}
"""Tag, title and format of each section, in the order of the file. Every file has all but the last two."""
CHANGES = b"CHNG"
"""The section with the overlay file that made the overlay of a program; other programs have none."""
SEGMENT_TAG = b"SEGM"
_OPTIONAL = (SEGMENT_TAG, CHANGES)
_REQUIRED = tuple(tag for tag in _FORMATS if tag not in _OPTIONAL)


def program_faults(program: Program) -> Iterator[str]:
    """Yield, as sentences, the reasons why a program can be neither written nor loaded: none if it can.

    Checks the data around the image: buffers, parameters and their patches, op lists, source map, segments.
    """
    overlay, unit = program.overlay, program.overlay.address_unit
    names = [f"buffer {b.name}" for b in program.buffers] + [f"parameter {p.name}" for p in program.parameters]
    yield from (f"{name} is declared twice" for name, times in Counter(names).items() if times > 1)
    for b in program.buffers:
        yield from (f"buffer {b.name} {wrong}" for wrong in _buffer_faults(b, overlay, unit))
    for p in program.parameters:
        if not p.low <= p.default <= p.high:
            yield f"parameter {p.name}: {p.default} is out of range {p.low}..{p.high}"
    yield from _patch_faults(program)
    for name, ops in program.preloaded.items():
        spec = overlay.by_unit.get(name)
        if spec is None or spec.kind not in overlay.preloaded:
            yield f"{name} is not a unit with an op list"
        elif len(ops) > overlay.preloaded[spec.kind].longest:
            yield f"{name} holds at most {overlay.preloaded[spec.kind].longest} ops, not {len(ops)}"
        if len(program.preloaded_places.get(name, ())) > len(ops):
            yield f"the source map has more lines than {name} has ops"
    if len(program.places) > len(program.packets):
        yield "the source map has more lines than the image has packets"
    yield from segment_faults(program)
    if overlay.whole is not None:
        try:
            made(text(overlay), overlay.name)
        except ProgramError as e:
            yield str(e)


def _patch_faults(program: Program) -> Iterator[str]:
    patched: set[tuple[int, int, str]] = set()
    for p in program.parameters:
        for patch in p.patches:
            key = (patch.packet, patch.mop, patch.field)
            what = f"parameter {p.name}: {patch.field} of packet {patch.packet}, mOP {patch.mop}"
            mops = program.packets[patch.packet].mops if 0 <= patch.packet < len(program.packets) else ()
            if not 0 <= patch.mop < len(mops):
                yield f"{what}: there is no such mOP"
                continue
            spec = program.patched_field(patch)
            if key in patched:
                yield f"{what} is patched twice"
            if spec.real or not 0 <= patch.cap <= spec.bounds[1]:
                yield f"{what} cannot hold the upper bound {patch.cap}"
            patched.add(key)


def _buffer_faults(b: Buffer, overlay: Overlay, unit: int) -> Iterator[str]:
    if not 1 <= len(b.shape) <= 2 or any(n < 1 for n in b.shape) or prod(b.shape) > LARGEST:
        yield f"has the shape {b.shape}: a buffer has 1 or 2 dimensions and 1 to {LARGEST} elements"
        return
    if b.layout is Layout.BLOCKED and any(
        n % g for n, g in zip(b.shape, GRAIN[b.layout][-len(b.shape) :], strict=True)
    ):
        yield f"has the shape {b.shape}, which is not a whole number of {'x'.join(map(str, GRAIN[b.layout]))} blocks"
    if b.bank not in overlay.banks:
        yield f"lies in memory {b.bank}; memories of {overlay.name} are {listing(overlay.banks)}"
    elif not 0 <= b.offset <= LARGEST or 4 * (b.offset * unit + b.size) > overlay.banks[b.bank]:
        yield f"at address {b.offset} does not lie within {b.bank}, which has {overlay.banks[b.bank]} bytes"
    if not b.view_fits:
        each = f" with the rows of {len(b.rows)} items" if b.rows else ""
        yield f"has the view {b.view}{each}, which does not fit its shape {b.shape}"
        return
    for which in ("scale", "shift"):
        values = getattr(b, which)
        if values is None:
            continue
        if len(values) not in ((b.view or b.shape)[-1], b.shape[-1]):
            yield f"has {len(values)} {which} values for {(b.view or b.shape)[-1]} columns"
        if not all(isfinite(v) for v in np.array(values, np.float32).tolist()):
            yield f"has a {which} value that is not a finite float32"


# -- writing ------------------------------------------------------------------------------------------------------


def dumps(program: Program) -> bytes:
    """Encode a program as the bytes of a `.bin`. Raises `ProgramError` if `loads` could not read them back."""
    for fault in program_faults(program):
        raise ProgramError(fault)
    try:
        return _framed(_sections(program))
    except (c.ConstructError, OverflowError) as e:
        raise ProgramError(f"this program does not fit into a container: {str(e).splitlines()[-1]}") from e


def _sections(program: Program) -> dict[bytes, bytes]:
    head = {"name": program.overlay.name, "fingerprint": program.overlay.fingerprint, "extended": program.extended}
    out = {
        b"OVLY": _OVERLAY.build(head),
        b"IMAG": program.image.astype("<u4").tobytes(),
        b"OPSL": _OPS.build([{"unit": u, "words": _words(ops)} for u, ops in _in_order(program.preloaded, program)]),
        b"BUFF": _BUFFERS.build([_buffer(b) for b in program.buffers]),
        b"PARM": _PARAMETERS.build([_parameter(p, program) for p in program.parameters]),
        b"SRCM": _sources(program),
    }
    if program.segments:
        out[SEGMENT_TAG] = encoded(program)
    if program.overlay.changes:
        out[CHANGES] = text(program.overlay).encode()
    return out


def _framed(sections: dict[bytes, bytes]) -> bytes:
    """Put header, section table and checksums around the encoded sections."""
    table = [{"tag": tag, "length": len(data), "crc": crc32(data)} for tag, data in sections.items()]
    size = len(_HEADER.build({"length": 0, "sections": table})) + 4
    length = size + sum(map(len, sections.values())) + 4
    header = _HEADER.build({"length": length, "sections": table})
    body = b"".join([header, struct.pack("<I", crc32(header)), *sections.values()])
    return body + struct.pack("<I", crc32(body))


def write(program: Program, path: str | Path) -> None:
    """Write a program to a `.bin` file; a write that fails leaves the old file. Raises as `dumps`, or `OSError`."""
    write_bytes(path, dumps(program))


def _in_order(lists: Mapping[str, tuple[T, ...]], program: Program) -> list[tuple[str, tuple[T, ...]]]:
    """Return the lists that are not empty, in the overlay's order of units, so that equal programs give equal bytes."""
    return [(u.name, lists[u.name]) for u in program.overlay.units if lists.get(u.name)]


def _words(ops: Sequence[Record]) -> bytes:
    return np.array([w for op in ops for w in op.encode()], "<u4").tobytes()


def _floats(values: tuple[float, ...] | None) -> bytes:
    return np.array(values or (), "<f4").tobytes()


def _buffer(b: Buffer) -> dict[str, Any]:
    row = {name: getattr(b, name) for name in ("name", "bank", "offset", "shape", "layout", "role")}
    return row | {"view": b.view or (), "rows": b.rows, "scale": _floats(b.scale), "shift": _floats(b.shift)}


def _parameter(p: Parameter, program: Program) -> dict[str, Any]:
    patches = []
    for patch in p.patches:
        spec = program.patched_field(patch)
        where = {"word": program.patched_word(patch), "bit": spec.low, "width": spec.width}
        patches.append(where | {"base": patch.base, "cap": patch.cap})
    return {"name": p.name, "low": p.low, "high": p.high, "default": p.default, "patches": patches}


def _sources(program: Program) -> bytes:
    files: dict[str, int] = {}

    def pairs(places: Sequence[SourceLine]) -> bytes:
        rows = [(files.setdefault(p.file, len(files)), p.line) for p in places]
        return np.array(rows, "<u4").tobytes()

    packets = pairs(program.places)
    ops = [{"unit": u, "places": pairs(rows)} for u, rows in _in_order(program.preloaded_places, program)]
    return bytes(_SOURCES.build({"files": list(files), "packets": packets, "ops": ops}))


# -- reading ------------------------------------------------------------------------------------------------------


def read(path: str | Path, overlays: Mapping[str, Overlay] = OVERLAYS) -> Program:
    """Read a program from a `.bin` file. overlays: those that it may be for, by name. Raises `ContainerError` if it is
    defective, `OSError` if it cannot be read.
    """
    with open(path, "rb") as f:
        start = f.read(len(MAGIC))
        # the path may be an endless device; a few bytes tell what else a file is
        data = start + (f.read() if start == MAGIC else f.read(8))
    return loads(data, str(path), overlays)


@gc_disabled()
def loads(data: bytes, name: str = "<bytes>", overlays: Mapping[str, Overlay] = OVERLAYS) -> Program:
    """Decode the bytes of a `.bin`. name: the file name in messages. overlays: those that it may be for, by name.
    Raises `ContainerError` if they are defective.
    """
    return _FileReader(data, name, overlays).program()


def _told_apart(data: bytes) -> str:
    """Say what the bytes of a file are that is no program, and what to do with it."""
    if not data:
        return "it is empty"
    if data[8:10] == b'{"':
        return "it is a safetensors file, as a whole model (.rsnmodel) is: rsn serve and rsn.load take models"
    if data.isascii() and b"\0" not in data:
        return "it is a text; rsn asm makes a program (.bin) of a program text (.rsn)"
    return "it begins with other bytes; read a bare wire image with --raw"


class _FileReader:
    """Reads one file: first the checksums, then each section, then what must hold between sections."""

    def __init__(self, data: bytes, name: str, overlays: Mapping[str, Overlay]) -> None:
        self.data = data
        self.name = name
        self.overlays = overlays
        self.starts: dict[bytes, int] = {}
        self.parsed: dict[bytes, Any] = {}

    def fail(self, at: int, message: str) -> NoReturn:
        """Raise `ContainerError` with the file's name and a byte offset."""
        raise ContainerError(f"{self.name}: byte {at}: {message}")

    def program(self) -> Program:
        """Read and check the whole file."""
        self._frame()
        overlay = self._overlay()
        start = self.starts[b"IMAG"]
        words, image = _decode(self.parsed[b"IMAG"], overlay, lambda at, message: self.fail(start + at, message))
        bare = Program(overlay, image)
        places, preloaded_places = self._places()
        program = Program(
            overlay,
            image,
            self._ops(overlay),
            tuple(self._buffer(b) for b in self.parsed[b"BUFF"]),
            tuple(self._parameter(p, bare) for p in self.parsed[b"PARM"]),
            places,
            preloaded_places,
            self._segments(),
        )
        self._agree(program, words)
        return program

    # -- the file as a whole

    def _frame(self) -> None:
        """Header, lengths and checksums; then the sections, parsed."""
        data = self.data
        if not data.startswith(MAGIC):
            if data and MAGIC.startswith(data):
                self.fail(len(data), "cut short in its first bytes")
            self.fail(0, f"not a program of this toolchain: {_told_apart(data)}")
        version = int.from_bytes(data[8:10], "little")
        if len(data) >= 10 and version != VERSION:
            self.fail(8, f"container version {version}; this toolchain reads version {VERSION}: assemble it again")
        stream = BytesIO(data)
        try:
            header = _HEADER.parse_stream(stream)
        except c.ConstructError:
            self.fail(stream.tell(), "cut short in its header")
        if len(data) != header.length:
            short = "cut short" if len(data) < header.length else "too long"
            self.fail(len(data), f"{short}: the header announces {header.length} bytes, the file has {len(data)}")
        at = stream.tell()
        if stream.read(4) != struct.pack("<I", crc32(data[:at])):
            self.fail(at, "the checksum of the header does not match: the file was altered")
        tags = tuple(s.tag for s in header.sections)
        if tags != _REQUIRED + tuple(tag for tag in _OPTIONAL if tag in tags):
            given = listing(map(repr, tags))
            self.fail(14, f"the sections are {given}; a program has {listing(map(repr, _REQUIRED))}")
        at += 4
        if at + sum(s.length for s in header.sections) + 4 != len(data):
            self.fail(14, "the sections do not fill the file")
        for section in header.sections:
            self.starts[section.tag] = at
            if crc32(data[at : at + section.length]) != section.crc:
                title = _FORMATS[section.tag][0]
                self.fail(at, f"the checksum of section {title} does not match: the file was altered")
            at += section.length
        if data[at:] != struct.pack("<I", crc32(data[:at])):
            self.fail(at, "the checksum of the file does not match: the file was altered")
        for section in header.sections:
            self._parse(section.tag, section.length)

    def _parse(self, tag: bytes, length: int) -> None:
        title, form = _FORMATS[tag]
        start = self.starts[tag]
        stream = BytesIO(self.data[start : start + length])
        try:
            self.parsed[tag] = form.parse_stream(stream)
        except (c.ConstructError, ValueError) as e:
            reason = str(e).splitlines()[-1]
            self.fail(start + stream.tell(), f"section {title} cannot be read: {reason}")
        if stream.tell() != length:
            self.fail(start + stream.tell(), f"section {title} has {length - stream.tell()} bytes too many")

    # -- the sections

    def _overlay(self) -> Overlay:
        start, head = self.starts[b"OVLY"], self.parsed[b"OVLY"]
        overlay = self._changed(head.name) if CHANGES in self.parsed else self.overlays.get(head.name)
        if overlay is None:
            self.fail(start, f"made for overlay {head.name}; this toolchain knows {listing(self.overlays)}")
        if head.fingerprint != overlay.fingerprint:
            self.fail(
                start,
                f"made for overlay {head.name} {head.fingerprint}, which here is {overlay.label}: its units or formats "
                "have changed; assemble or compile the program again with this toolchain",
            )
        return overlay

    def _changed(self, name: str) -> Overlay:
        """The overlay that the file's own overlay file makes."""
        start = self.starts[CHANGES]
        try:
            overlay = made(self.parsed[CHANGES].decode(), "its overlay file", self.overlays)
        except (ProgramError, UnicodeDecodeError) as e:
            self.fail(start, f"the overlay {name} cannot be made: {e}")
        if overlay.name != name or not overlay.changes:
            self.fail(start, f"these are the changes of overlay {overlay.name}, the program is for {name}")
        return overlay

    def _ops(self, overlay: Overlay) -> dict[str, tuple[Record, ...]]:
        out: dict[str, tuple[Record, ...]] = {}
        for row in self.parsed[b"OPSL"]:
            at = self.starts[b"OPSL"] + row.at
            spec = overlay.by_unit.get(row.unit)
            if spec is None or spec.kind not in overlay.preloaded:
                self.fail(at, f"{row.unit} is not a unit with an op list")
            if row.unit in out:
                self.fail(at, f"{row.unit} has two op lists")
            held = overlay.preloaded[spec.kind]
            record, longest = held.record, held.longest
            size = 4 * record.WORDS
            if len(row.words) % size or not 0 < len(row.words) // size <= longest:
                room = f"its list holds 1 to {longest} ops of {size} bytes"
                self.fail(at, f"{row.unit} has {len(row.words)} bytes of ops; {room}")
            raw = np.frombuffer(row.words, "<u4").tolist()
            ops = []
            for i in range(0, len(raw), record.WORDS):
                words = raw[i : i + record.WORDS]
                try:
                    ops.append(record.decode(words))
                except FieldError as e:
                    self.fail(at, f"{row.unit}, op {i // record.WORDS}: {e}")
                if record.padding_set(words):
                    self.fail(at, f"{row.unit}, op {i // record.WORDS}: bits outside its fields are set")
            out[row.unit] = tuple(ops)
        return out

    def _buffer(self, b: Any) -> Buffer:
        at = self.starts[b"BUFF"] + b.at

        def floats(blob: bytes) -> tuple[float, ...] | None:
            if len(blob) % 4:
                self.fail(at, f"buffer {b.name}: {len(blob)} bytes of scale or shift are not a whole number of float32")
            return tuple(np.frombuffer(blob, "<f4").tolist()) if blob else None

        view, rows = tuple(b.view) or None, tuple(b.rows)
        return Buffer(
            b.name, b.bank, b.offset, tuple(b.shape), b.layout, b.role, view, rows, floats(b.scale), floats(b.shift)
        )

    def _parameter(self, p: Any, bare: Program) -> Parameter:
        return Parameter(p.name, p.low, p.high, p.default, tuple(self._patch(x, p.name, bare) for x in p.patches))

    def _patch(self, x: Any, name: str, bare: Program) -> Patch:
        """Find the packet, mOP and field that a patch's image word and bits belong to."""
        at = self.starts[b"PARM"] + x.at
        what = f"parameter {name}: bits {x.bit}..{x.bit + x.width - 1} of word {x.word}"
        packet = bisect_right(bare.packet_offsets, x.word) - 1
        if packet < 0 or x.word >= bare.packet_offsets[packet] + bare.packets[packet].words:
            self.fail(at, f"{what} lie outside all packets")
        rest = x.word - bare.packet_offsets[packet] - 1
        if rest < 0:
            self.fail(at, f"{what} lie in a packet header")
        mops = bare.packets[packet].mops
        mop, word = divmod(rest, mops[0].WORDS)  # all mOPs of a packet have one format
        for f in mops[mop].FIELDS:
            if (f.word, f.low, f.width) == (word, x.bit, x.width) and not f.real:
                if not 0 <= x.cap <= f.bounds[1]:
                    self.fail(at, f"{what}: {f.name} cannot hold the upper bound {x.cap}")
                return Patch(packet, mop, f.name, x.base, x.cap)
        self.fail(at, f"{what} are not an integer field, and parameters set only those")

    def _places(self) -> tuple[tuple[SourceLine, ...], dict[str, tuple[SourceLine, ...]]]:
        start, sources = self.starts[b"SRCM"], self.parsed[b"SRCM"]
        known: dict[tuple[int, int], SourceLine] = {}

        def places(blob: bytes) -> tuple[SourceLine, ...]:
            if len(blob) % 8:
                self.fail(start, f"{len(blob)} bytes of the source map are not a whole number of (file, line) pairs")
            rows = []
            for pair in struct.iter_unpack("<II", blob):
                if pair not in known:
                    file, line = pair
                    if file >= len(sources.files) or not line:
                        limits = f"it lists {len(sources.files)} files, and lines start at 1"
                        self.fail(start, f"the source map refers to line {line} of file {file}; {limits}")
                    known[pair] = SourceLine(sources.files[file], line)
                rows.append(known[pair])
            return tuple(rows)

        return places(sources.packets), {row.unit: places(row.places) for row in sources.ops}

    def _segments(self) -> tuple[ProgramSegment, ...]:
        if SEGMENT_TAG not in self.parsed:
            return ()
        try:
            return decoded(self.parsed[SEGMENT_TAG])
        except ValueError as e:
            self.fail(self.starts[SEGMENT_TAG], str(e))

    # -- what holds between them

    def _agree(self, program: Program, words: Words) -> None:
        for fault in program_faults(program):
            self.fail(self.starts[b"BUFF"], fault)
        differ = np.flatnonzero(program.image != words)
        if len(differ):
            at = int(differ[0])
            message = f"word {at} is {words[at]:#010x}, but its fields and parameters give {program.image[at]:#010x}"
            self.fail(self.starts[b"IMAG"] + 4 * at, message)
        extended = self.parsed[b"OVLY"].extended
        if extended != program.extended:
            flag, image = ("an extended", "base") if extended else ("a base", "extended")
            self.fail(self.starts[b"OVLY"], f"marked as {flag} program, but its image is {image}")
        for unit in program.preloaded_places:
            if unit not in program.preloaded:
                self.fail(self.starts[b"SRCM"], f"the source map has lines for {unit}, which has no ops")


# -- bare images --------------------------------------------------------------------------------------------------


def _decode(data: bytes, overlay: Overlay, fail: Callable[[int, str], NoReturn]) -> tuple[Words, tuple[Packet, ...]]:
    if len(data) % 4:
        fail(len(data), f"an image consists of words of 4 bytes, but this one has {len(data)} bytes")
    words = np.frombuffer(data, "<u4").astype(np.uint32)
    try:
        return words, decode_image(words, overlay)
    except ImageError as e:
        fail(4 * (e.word or 0), str(e))


def write_raw(program: Program, path: str | Path) -> None:
    """Write only the wire image of a program, without op lists, buffers and parameters.

    The words are little endian, with every parameter at its default. Raises as `Program.bind`, or `OSError`."""
    write_bytes(path, program.image.astype("<u4").tobytes())


def read_raw(path: str | Path, overlay: Overlay) -> Program:
    """Read a bare wire image as a program without op lists, buffers and parameters.

    The image may come from other tools: bits outside all fields are ignored. Raises `ContainerError` if it does not
    decode, `OSError` if it cannot be read.
    """

    def fail(at: int, message: str) -> NoReturn:
        raise ContainerError(f"{path}: byte {at}: {message}")

    _, packets = _decode(Path(path).read_bytes(), overlay, fail)
    return Program(overlay, packets)
