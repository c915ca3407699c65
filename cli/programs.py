"""How commands read programs, and refuse to overwrite what they read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..assembler import container
from ..base.deferred import deferred
from ..isa.program import Program
from ..scheduler.pack import pack
from ..streams import machines as machines  # so that files of its machines are read
from .raw import RawImage, load_raw_image

if TYPE_CHECKING:
    from ..assembler import parser
else:
    parser = deferred("rsn.assembler.parser")


def assembled(path: Path) -> Program:
    """Read a program text (.rsn), and pack it. Raises `SourceError` for an error in the text, and as `pack`."""
    source = parser.parse_file(path)
    return source if isinstance(source, Program) else pack(source)


def loaded(path: Path, raw: bool, overlay: str, mme: Path | None) -> RawImage:
    """Read a program from a container, a text (.rsn) or, with `raw`, a bare image. overlay, mme: of a bare image: its
    overlay, and the file with its op lists. Raises `ContainerError`, as `assembled`, and as `load_raw_image`."""
    if raw:
        return load_raw_image(path, overlay, mme)
    program = assembled(path) if path.suffix == ".rsn" else container.read(path)
    return RawImage(program, program.image, [], complete=True, op_lists=True)


def refuse_overwriting(written: Mapping[str, Path | None], read: Mapping[str, Path | None]) -> None:
    """Raise `click.UsageError` if a file to write is also read, or written twice. written, read: paths by the names
    that the message says; None is no file. A path that is not a regular file, such as /dev/stdout, may be both."""
    seen = {path.resolve(): name for name, path in read.items() if path is not None}
    for name, path in written.items():
        if path is None or (path.exists() and not path.is_file()):
            continue
        other = seen.setdefault(path.resolve(), name)
        if other != name:
            raise click.UsageError(f"{name} {path} is {other}, too: it would be overwritten; name another file")
