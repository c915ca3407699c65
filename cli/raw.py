"""Bare wire images, made by other tools: the options and readers of all commands that take --raw, and how they are run.

The files hold the image (contract section 1), op lists as JSON (the index of an MME to its op words, contract section
2), and the contents of the memories as little-endian float32 (contract section 3).
"""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import click
import numpy as np
import numpy.typing as npt

from ..assembler.container import MAGIC
from ..base.errors import ProgramError, TensorError
from ..base.files import replacing
from ..base.finding import Finding, gather
from ..isa.fields import Record
from ..isa.image import read_image
from ..isa.op_lists import read_op_lists
from ..isa.overlay import Overlay
from ..isa.overlays import find
from ..isa.packet import Words
from ..isa.program import Buffer, Layout, Program, Role
from ..isa.verify import verify
from .options import BINARIES, RAW, option

MAX_BYTES = 64 << 20
"""Bytes of the largest file that is accepted as an image or op lists; the reference setup has 512 KiB for an image."""
MAX_SHOWN = 5
"""How many findings of one code are shown."""

OVERLAY = "xnn-base"
"""The default overlay of a bare image: the published machine. An image does not name its overlay; one with opcodes of
another overlay is refused."""

BANKS = ("ddr", "lpddr")
"""Memories whose contents an option names."""


BARE = option("PROGRAM is a bare wire image: no buffers, no op lists", of=BINARIES)
OF_IMAGE = option(
    "with --raw: the overlay of the image; a name or a file (*.toml)", default=OVERLAY, of=(RAW, BINARIES)
)
OP_LISTS = option(
    "with --raw: file with its op lists (JSON: index of an MME to op words)",
    type=click.Path(dir_okay=False, path_type=Path),
    of=(RAW, BINARIES),
)
"""The options --raw, --overlay and --mme of commands with an argument PROGRAM."""


@dataclass
class RawImage:
    """What was read of a bare image. findings: what is wrong in it. program: its packets and op lists, without buffers,
    because the sizes of the memories are not known yet. words: the image as it is in the file; that of `program` has
    padding bits cleared. complete: all of the image could be decoded to packets. op_lists: whether the op lists are
    known."""

    program: Program
    words: Words
    findings: list[Finding]
    complete: bool
    op_lists: bool


def read_raw_image(path: Path, overlay: Overlay, op_lists: Path | None, *, named: bool = False) -> RawImage:
    """Read a bare image and its op lists, with a finding for everything in them that a machine would misread.

    op_lists: path of their JSON file, None without one. named: findings in the image name its file. Raises `OSError`
    for a file that cannot be read, and `ProgramError` only for files that are too large, op lists that are not JSON, or
    a program or text instead of an image.
    """
    data = bytes(_contents(path, MAX_BYTES))
    if data.startswith(MAGIC):
        raise ProgramError(f"{path}: a program of this toolchain, not a bare image: leave out --raw")
    if path.suffix == ".rsn":
        raise ProgramError(f"{path}: a text, not a bare image: rsn asm --raw makes an image of it")
    image = read_image(data, overlay)
    ops: dict[str, tuple[Record, ...]] = {}
    findings: list[Finding] = []
    if op_lists is not None:
        ops, findings = _read_op_lists(op_lists, overlay)
    known = all(f.warning for f in findings) if op_lists is not None else not overlay.preloaded
    if named:
        image.findings = [dataclasses.replace(f, where=f"{path}: {f.where}") for f in image.findings]
    words = np.frombuffer(data[: len(data) // 4 * 4], "<u4")
    return RawImage(Program(overlay, image.packets, ops), words, image.findings + findings, image.complete, known)


def _read_op_lists(path: Path, overlay: Overlay) -> tuple[dict[str, tuple[Record, ...]], list[Finding]]:
    def unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return a JSON object, and raise for a duplicate key, of which `json` would silently keep the last."""
        out: dict[str, Any] = {}
        for key, value in members:
            if key in out:
                raise ProgramError(f"{path}: key {key!r} occurs twice")
            out[key] = value
        return out

    try:
        lists = json.loads(_contents(path, MAX_BYTES), object_pairs_hook=unique)
    except (ValueError, RecursionError) as e:
        raise ProgramError(f"{path}: not a JSON object ({e})") from None
    ops, findings = read_op_lists(lists, overlay)
    return ops, [dataclasses.replace(f, where=f"{path}: {f.where}") for f in findings]


def with_memories(program: Program, sizes: Mapping[str, int], names: Mapping[str, str] | None = None) -> Program:
    """Return the program with each memory bank as its only buffer.

    sizes: in bytes, by bank; a bank that is missing has its largest size. names: of the banks in messages, by bank.
    """
    shown = names or {}
    buffers = tuple(
        Buffer(shown.get(bank, bank), bank, 0, (sizes.get(bank, largest) // 4,), Layout.LINEAR, Role.SCRATCH)
        for bank, largest in program.overlay.banks.items()
    )
    return dataclasses.replace(program, buffers=buffers)


def load_raw_image(path: Path, overlay: str, op_lists: Path | None, *, runs: bool = False) -> RawImage:
    """Read a bare image, and raise `ProgramError` for errors in it; warnings go to stderr. overlay: its name or file.
    op_lists: path of their JSON file. runs: it is going to run, and needs its op lists."""
    found = find(overlay)
    read = read_raw_image(path, found, op_lists, named=True)
    _refuse_errors(read.findings)
    if runs and not read.op_lists:
        raise ProgramError(f"a bare image for {found.name} needs --mme FILE with op lists (at least the JSON {{}})")
    return read


def with_files(
    program: Program, named: Mapping[str, str | None], timing_only: bool
) -> tuple[Program, dict[str, npt.NDArray[np.float32]]]:
    """Return the program with memories as large as the given files, and the contents of the files by bank, flat
    float32.

    named: the paths of the files by bank. timing_only: banks need no files. A run may change the contents, which does
    not change the files. Raises `TensorError` if a file is missing, `ProgramError` if the image would access memory
    beyond them, and `click.UsageError` for a bank that the overlay does not have.
    """
    overlay = program.overlay
    unknown = [f"--{bank}" for bank in BANKS if named[bank] is not None and bank not in overlay.banks]
    if unknown:
        raise click.UsageError(f"{', '.join(unknown)}: overlay {overlay.name} has only {', '.join(overlay.banks)}")
    files = {bank: file for bank in overlay.banks if (file := named.get(bank)) is not None}
    for bank in overlay.banks:
        if bank not in files and not timing_only:
            raise TensorError(f"a bare image needs --{bank} FILE with the memory's contents; --timing-only does not")
    banks = {bank: _read_memory(Path(file), overlay.banks[bank]) for bank, file in files.items()}
    names = {bank: f"--{bank} {file}" for bank, file in files.items()}
    program = with_memories(program, {bank: memory.nbytes for bank, memory in banks.items()}, names)
    way_out = "give a larger file, which is the memory as a whole; or correct address, size, chunks or strides"
    _refuse_errors(dataclasses.replace(f, help=way_out) if f.code == "A01" else f for f in verify(program))
    return program, banks


def write_memory(path: str, bank: npt.NDArray[np.float32]) -> None:
    """Write a memory bank, flat float32, to a file, as little-endian float32. Raises `OSError` if it cannot be
    written."""
    with replacing(path) as temporary:
        temporary.write_bytes(bank.astype("<f4", copy=False).data)


def _refuse_errors(findings: Iterable[Finding]) -> None:
    """Print the warnings; raise `ProgramError` with the errors, if any."""
    shown = gather(findings, MAX_SHOWN)
    for f in shown:
        if f.warning:
            click.echo(str(f), err=True)
    errors = [str(f) + (f"\n  help: {f.help}" if f.help else "") for f in shown if not f.warning]
    if errors:
        raise ProgramError("\n".join(errors))


def _read_memory(path: Path, most: int) -> npt.NDArray[np.float32]:
    """Return the contents of a file, which is mapped, or of a pipe. Writing to the array changes no file."""
    with open(path, "rb") as f:
        status = os.fstat(f.fileno())
        mapped = stat.S_ISREG(status.st_mode) and 0 < status.st_size <= most
        data = np.asarray(np.memmap(f, np.uint8, "c")) if mapped else np.frombuffer(_read(f, path, most), np.uint8)
    if data.size % 4:
        raise TensorError(f"{path}: {data.size} bytes are not whole float32 elements of 4 bytes, as a memory has")
    return data.view("<f4").astype(np.float32, copy=False)


def _contents(path: Path, most: int) -> bytearray:
    """Read a file or a pipe. Raises `ProgramError` if it has more than `most` bytes."""
    with open(path, "rb") as f:
        return _read(f, path, most)


def _read(f: BinaryIO, path: Path, most: int) -> bytearray:
    data = bytearray()
    fits = os.fstat(f.fileno()).st_size <= most  # the size of a pipe is 0
    while fits and (piece := f.read(1 << 20)):
        data += piece
        fits = len(data) <= most
    if not fits:
        raise ProgramError(f"{path}: larger than {most >> 20} MiB")
    return data
