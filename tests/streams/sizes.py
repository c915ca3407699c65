"""The stream programs of programs/streams with other constants."""

from __future__ import annotations

from pathlib import Path

from rsn.base.errors import ProgramError
from rsn.streams.symbolic.forall import with_constants
from rsn.streams.symbolic.reading import constants
from rsn.streams.syntax.parser import parsed

FOLDER = Path(__file__).resolve().parents[2] / "programs" / "streams"


def program_text(name: str, **sizes: int) -> str:
    """Return the text of NAME.py with other values of its constants, such as `program_text("ring", P=8)`. Lines keep
    their numbers. Raises `ProgramError` for a constant that the file does not have."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    if missing := sizes.keys() - constants(parsed(text)).keys():
        raise ProgramError(f"{name}.py: there is no constant {', '.join(sorted(missing))}")
    return with_constants(text, sizes)
