"""Reads the metadata of an `.xclbin`, the container that XRT loads (axlf, magic xclbin2, as `xclbin.h` describes
it)."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID
from xml.etree import ElementTree

from ...base.errors import BoardError

MAGIC = b"xclbin2\0"
HEADER = struct.Struct("<QQQHBBHH16s64s16s16sI4x")
"""The header's fields behind magic, signature length, key block and unique id: length, time stamps, version, mode,
action mask, ROM UUID, platform, UUID, debug name, number of sections."""
HEADER_AT = 8 + 4 + 28 + 256 + 8
SECTION = struct.Struct("<I16s4xQQ")
"""A section header: kind, name, position, size."""
CLOCK = struct.Struct("<HB5x128s")
"""A clock: MHz, type, name."""

EMBEDDED_METADATA, CLOCK_FREQ_TOPOLOGY, AIE_METADATA = 2, 11, 25
"""Kinds of sections."""

MAX_METADATA = 64 << 20

MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError, struct.error, ElementTree.ParseError)
"""Errors that malformed XML, JSON and tables raise."""


@dataclass(frozen=True)
class Xclbin:
    """The metadata of an xclbin. path: of the file. uuid: its own, as text. sha256: of the file, in hexadecimal.
    platform, version: what it was built for, and by which version of the tool. kernels: argument names in order, by
    kernel. clocks: MHz by name. graphs, ports: names of graphs and of run-time parameters of the AI Engines, None where
    the file does not list them."""

    path: Path
    uuid: str
    sha256: str
    platform: str
    version: str
    kernels: dict[str, tuple[str, ...]]
    clocks: dict[str, float]
    graphs: tuple[str, ...] | None
    ports: frozenset[str] | None


def read_xclbin(path: Path) -> Xclbin:
    """Read an xclbin's metadata. Raises `BoardError`, naming the file and, in its header and sections, the byte at
    fault."""
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
            file.seek(0)
            head = file.read(HEADER_AT + HEADER.size)
            if head[: len(MAGIC)] != MAGIC:
                raise BoardError(f"{path}: no xclbin (byte 0 is not the magic {MAGIC[:-1].decode()})")
            if len(head) < HEADER_AT + HEADER.size:
                raise BoardError(f"{path}: cut short at byte {len(head)}")
            length, _, _, patch, major, minor, _, _, _, platform, uuid, _, count = HEADER.unpack_from(head, HEADER_AT)
            if length > size:
                raise BoardError(f"{path}: cut short at byte {size}; it announces {length}")
            table = file.read(SECTION.size * min(count, size // SECTION.size))
            if len(table) < SECTION.size * count:
                raise BoardError(f"{path}: cut short at byte {size}, in its {count} section headers")
            found: dict[int, bytes] = {}
            for kind, _, at, length in SECTION.iter_unpack(table):
                if at + length > size:
                    raise BoardError(f"{path}: section {kind} reaches from byte {at} to {at + length} of {size}")
                if kind in (EMBEDDED_METADATA, CLOCK_FREQ_TOPOLOGY, AIE_METADATA) and length <= MAX_METADATA:
                    file.seek(at)
                    found.setdefault(kind, file.read(length))
    except OSError as e:
        raise BoardError(f"{path}: {e.strerror}") from None
    try:
        aie = _aie(found[AIE_METADATA]) if AIE_METADATA in found else None
        return Xclbin(
            path=path,
            uuid=str(UUID(bytes=uuid)),
            sha256=sha256,
            platform=_text(platform),
            version=f"{major}.{minor}.{patch}",
            kernels=dict(_kernels(found.get(EMBEDDED_METADATA, b""))),
            clocks=dict(_clocks(found.get(CLOCK_FREQ_TOPOLOGY, b""))),
            graphs=None if aie is None else aie[0],
            ports=None if aie is None else aie[1],
        )
    except MALFORMED as e:
        raise BoardError(f"{path}: its metadata cannot be read: {e!r}") from None


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode(errors="replace")


def _kernels(xml: bytes) -> Iterator[tuple[str, tuple[str, ...]]]:
    text = xml.rstrip(b"\0 \n")
    if not text:
        return
    for kernel in ElementTree.fromstring(text).iter("kernel"):
        arguments = sorted((int(a.get("id") or -1), a.get("name") or "") for a in kernel.iter("arg"))
        # streams have no id that a host could set
        yield kernel.get("name") or "", tuple(name for number, name in arguments if number >= 0)


def _clocks(section: bytes) -> Iterator[tuple[str, float]]:
    count = struct.unpack_from("<h", section)[0] if section else 0
    for i in range(count):
        mhz, _, name = CLOCK.unpack_from(section, 2 + i * CLOCK.size)
        yield _text(name), float(mhz)


def _aie(section: bytes) -> tuple[tuple[str, ...], frozenset[str]]:
    metadata: dict[str, Any] = json.loads(section.rstrip(b"\0"))["aie_metadata"]
    graphs = tuple(str(g["name"]) for g in (metadata.get("graphs") or {}).values())
    return graphs, frozenset(str(p["port_name"]) for p in (metadata.get("RTPs") or {}).values())
