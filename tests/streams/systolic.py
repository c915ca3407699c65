"""The systolic array of programs/streams, at any size, depth and time of its packing loop."""

from __future__ import annotations

from pathlib import Path

import rsn as package

PROGRAM = Path(str(package.__file__)).parent / "programs" / "streams" / "systolic.py"


def systolic(size: int, depth: int, pack: int) -> str:
    """Return the program for matrices of size x size x size. depth: of all streams. pack: cycles to pack a column."""
    text = PROGRAM.read_text(encoding="utf-8")
    for old, new in (
        ("64, 64, 64", f"{size}, {size}, {size}"),
        ("PACK = 1 ", f"PACK = {pack} "),
        ("DEPTH = 4", f"DEPTH = {depth}"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text
