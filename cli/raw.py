"""Bare wire images, made elsewhere: options and readers of all commands that take --raw, and how one is run.

Of the files nothing is asked but what the contract says: the image, op lists as JSON (the index of an MME to its op
words), and the contents of the memories as little-endian float32.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..base.finding import Finding
    from ..isa.fields import Record
    from ..isa.overlay import Overlay
    from ..isa.program import Program

MAX_BYTES = 64 << 20
"""A larger file is no image and no op lists: the reference setup has 512 KiB for an image."""
MAX_SHOWN = 5
"""Findings of one code that are shown."""

OVERLAY = "xnn-base"
"""What a bare image is for if nobody says: the published machine. An image does not name its overlay, and one with the
opcodes of another is refused."""

OF_RAW = ("overlay", "mme", "ddr", "lpddr", "dump_ddr", "ddr_bytes", "lpddr_bytes")
"""Options that say something about bare images alone."""
OF_PROGRAMS = ("weights", "inputs", "outputs", "params")
"""Options about tensors and parameters that have names, which a bare image does not know."""


_Command = TypeVar("_Command", bound=Callable[..., object])


def raw_options(overlay: str = "with --raw: the overlay it is for") -> Callable[[_Command], _Command]:
    """--raw, --overlay and --mme of a command with an argument PROGRAM. overlay: what the help says of that option."""
    file = click.Path(dir_okay=False, path_type=Path)
    options = (
        click.option("--raw", is_flag=True, help="PROGRAM is a bare wire image: no buffers, no op lists"),
        click.option("--overlay", default=OVERLAY, show_default=True, help=overlay),
        click.option("--mme", type=file, help="with --raw: its op lists (JSON, an MME's index to its op words)"),
    )

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def was_given(name: str) -> bool:
    """Whether an option of the running command was written, and is not its default."""
    source = click.get_current_context().get_parameter_source(name)
    return source not in (None, click.core.ParameterSource.DEFAULT)


@dataclass
class RawImage:
    """What was read. program: as far as it could be told into packets, without buffers, because nobody has said yet how
    large the memories are. complete: the whole image could be told into packets. op_lists: they are known."""

    program: Program
    findings: list[Finding]
    complete: bool
    op_lists: bool


def refuse_contradictions(raw: bool) -> None:
    """Raise `click.UsageError` for options of the running command that would be passed over."""
    command = click.get_current_context().command
    given = {str(p.name): p.opts[0] for p in command.params if was_given(str(p.name))}
    wrong = [given[name] for name in (OF_PROGRAMS if raw else OF_RAW) if name in given]
    if wrong:
        raise click.UsageError(f"{', '.join(wrong)}: {'not with --raw' if raw else 'only with --raw'}")
    if raw and "timing_only" in given and "dump_ddr" in given:
        raise click.UsageError("--dump-ddr: not with --timing-only, which computes nothing")


def read_raw_image(path: Path, overlay: Overlay, op_lists: Path | None, *, named: bool = False) -> RawImage:
    """A bare image and its op lists, with everything in them that a machine would misread. named: findings in the image
    name its file. Raises `ProgramError` only where there is nothing to read: files too large, op lists that are no
    JSON, a program or a text instead of an image."""
    from ..assembler.container import MAGIC
    from ..base.errors import ProgramError
    from ..isa.image import read_image
    from ..isa.program import Program

    data = bytes(_contents(path, MAX_BYTES))
    if data.startswith(MAGIC):
        raise ProgramError(f"{path}: a program of this toolchain, no bare image: it is read without --raw")
    if path.suffix == ".rsn":
        raise ProgramError(f"{path}: a text, no bare image: rsn asm --raw makes one of it")
    image = read_image(data, overlay)
    ops: dict[str, tuple[Record, ...]] = {}
    findings: list[Finding] = []
    if op_lists is not None:
        ops, findings = _read_op_lists(op_lists, overlay)
    known = all(f.warning for f in findings) if op_lists is not None else not overlay.preloaded
    if named:
        image.findings = [dataclasses.replace(f, where=f"{path}: {f.where}") for f in image.findings]
    return RawImage(Program(overlay, image.packets, ops), image.findings + findings, image.complete, known)


def _read_op_lists(path: Path, overlay: Overlay) -> tuple[dict[str, tuple[Record, ...]], list[Finding]]:
    from ..base.errors import ProgramError
    from ..isa.op_lists import read_op_lists

    def unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
        """An object of JSON; `json` alone would keep the last of two equal keys and say nothing."""
        out: dict[str, Any] = {}
        for key, value in members:
            if key in out:
                raise ProgramError(f"{path}: key {key!r} is there twice")
            out[key] = value
        return out

    try:
        lists = json.loads(_contents(path, MAX_BYTES), object_pairs_hook=unique)
    except (ValueError, RecursionError) as e:
        raise ProgramError(f"{path}: not JSON: there is no JSON object in it ({e})") from None
    ops, findings = read_op_lists(lists, overlay)
    return ops, [dataclasses.replace(f, where=f"{path}: {f.where}") for f in findings]


def with_memories(program: Program, sizes: Mapping[str, int], names: Mapping[str, str] | None = None) -> Program:
    """The program with its memories as its only buffers. sizes: bytes by bank; banks that are not there are as large as
    they can be. names: what messages call a memory, where not like its bank."""
    from ..isa.program import Buffer, Layout, Role

    called = names or {}
    buffers = tuple(
        Buffer(called.get(bank, bank), bank, 0, (sizes.get(bank, most) // 4,), Layout.LINEAR, Role.SCRATCH)
        for bank, most in program.overlay.banks.items()
    )
    return dataclasses.replace(program, buffers=buffers)


def load_raw_image(path: Path, overlay: str, op_lists: Path | None, *, runs: bool = False) -> RawImage:
    """A bare image without errors; warnings go to stderr. runs: it is to run, which takes its op lists. Raises
    `ProgramError`."""
    from ..base.errors import ProgramError
    from ..isa.overlays import find

    found = find(overlay)
    read = read_raw_image(path, found, op_lists, named=True)
    _refuse_errors(read.findings)
    if runs and not read.op_lists:
        raise ProgramError(f"a bare image for {found.name} needs --mme with op lists (at least {{}})")
    return read


def with_files(program: Program, options: Mapping[str, Any]) -> tuple[Program, dict[str, npt.NDArray[np.float32]]]:
    """The image with memories as large as the files given, and their contents. Raises `TensorError` where one is
    missing, `ProgramError` where the image would leave them."""
    from ..base.errors import TensorError
    from ..isa.verify import verify

    files = {bank: str(options[bank]) for bank in program.overlay.banks if options.get(bank) is not None}
    for bank in program.overlay.banks:
        if bank not in files and not options["timing_only"]:
            raise TensorError(f"a bare image needs --{bank} with the memory's contents; --timing-only runs without")
    banks = {bank: _read_memory(Path(file), program.overlay.banks[bank]) for bank, file in files.items()}
    program = with_memories(program, {bank: memory.nbytes for bank, memory in banks.items()}, files)
    _refuse_errors(verify(program))
    return program, banks


def write_memory(path: str, bank: npt.NDArray[np.float32]) -> None:
    """Write a memory as a file of little-endian float32."""
    from ..base.files import replacing

    with replacing(path) as temporary:
        temporary.write_bytes(bank.astype("<f4", copy=False).data)


def _refuse_errors(findings: Iterable[Finding]) -> None:
    """Show the warnings; raise `ProgramError` with the errors, if any."""
    from ..base.errors import ProgramError
    from ..base.finding import gather

    shown = gather(findings, MAX_SHOWN)
    for f in shown:
        if f.warning:
            click.echo(str(f), err=True)
    errors = [str(f) + (f"\n  help: {f.help}" if f.help else "") for f in shown if not f.warning]
    if errors:
        raise ProgramError("\n".join(errors))


def _read_memory(path: Path, most: int) -> npt.NDArray[np.float32]:
    import numpy as np

    from ..base.errors import TensorError

    data = _contents(path, most)
    if len(data) % 4:
        raise TensorError(f"{path}: a memory consists of float32 elements of 4 bytes, this one has {len(data)} bytes")
    return np.frombuffer(data, "<f4").astype(np.float32, copy=False)


def _contents(path: Path, most: int) -> bytearray:
    """The bytes of a file, or of a pipe, of at most `most` bytes. Raises `ProgramError` for a larger one."""
    from ..base.errors import ProgramError

    data = bytearray()
    with open(path, "rb") as f:
        fits = os.fstat(f.fileno()).st_size <= most  # of a pipe, 0
        while fits and (piece := f.read(1 << 20)):
            data += piece
            fits = len(data) <= most
    if not fits:
        raise ProgramError(f"{path}: larger than {most >> 20} MiB")
    return data
