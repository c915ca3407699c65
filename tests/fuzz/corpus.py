"""What fuzzing has found, kept beside the tests: inputs that broke a reader, and inputs that cover it.

    python -m rsn.tests.fuzz.corpus image FOLDER

`tests/fuzz/found/<target>/` has a file for every input that once broke something. `tests/fuzz/found/<target>.hex` has
a line for every input of a small set that reaches all lines, in every order of two, that anything known reaches; the
command makes it again from itself, the seeds, and a folder that `tests/fuzz/run.py --corpus FOLDER` has filled.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from .targets import TARGETS, Target, seeds

FOUND = Path(__file__).resolve().parent / "found"
ROOT = Path(__file__).resolve().parents[2]
COVERED = (str(ROOT / "assembler"), str(ROOT / "isa"))

LONGEST = 1500
"""Bytes of an input that is kept: what only longer ones reach is not worth their size."""

Edge = tuple[str, int, int]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=list(TARGETS))
    parser.add_argument("folder", type=Path, help="filled by tests/fuzz/run.py --corpus")
    options = parser.parse_args(arguments)
    inputs = [path.read_bytes() for path in options.folder.iterdir()]
    kept = smallest(TARGETS[options.target], [*inputs, *covering(options.target), *seeds(options.target)])
    FOUND.mkdir(parents=True, exist_ok=True)
    (FOUND / f"{options.target}.hex").write_text("".join(f"{data.hex()}\n" for data in kept), encoding="ascii")


def covering(target: str) -> list[bytes]:
    path = FOUND / f"{target}.hex"
    return [bytes.fromhex(line) for line in path.read_text(encoding="ascii").split()] if path.exists() else []


def smallest(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """Of the inputs, short ones first, those that reach something new."""
    reached: set[Edge] = set()
    kept = []
    for data in sorted({data for data in inputs if len(data) <= LONGEST}, key=lambda data: (len(data), data)):
        edges = reach(target, data)
        if not edges <= reached:
            reached |= edges
            kept.append(data)
    return kept


def reach(target: Target, data: bytes) -> set[Edge]:
    """The lines of the readers that an input leads through, as pairs of one line and the next in a function."""
    edges: set[Edge] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(COVERED):
            return None
        last = 0

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if event == "line":
                edges.add((name, last, frame.f_lineno))
                last = frame.f_lineno
            return line

        return line

    sys.settrace(trace)
    try:
        target(data)
    finally:
        sys.settrace(None)
    return edges


if __name__ == "__main__":
    main()
