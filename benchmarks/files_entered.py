"""How many of our files a reader has to follow: those of which a line runs in a function, not only at import.

Run it as: python benchmarks/files_entered.py [--functions] [--json]
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import click

ROOT = Path(__file__).resolve().parent.parent
STREAM_PROGRAM = ROOT / "programs" / "streams" / "producer_consumer.py"
COMPILE, READ, RUN = "rsn.compile of an encoder layer", "rsn run of a stream program, up to its inputs", "all of it"
AT_MOST = {COMPILE: 90, READ: 32, RUN: None}
"""The most files that a way should have; None for one without a goal."""


class Entered:
    """Notes the functions of this tree that are entered. files: their names, by path of the file from the root of the
    tree."""

    def __init__(self) -> None:
        self.files: dict[str, set[str]] = {}
        self._places: dict[CodeType, tuple[str, str] | None] = {}

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note the function that is entered, if it is one of this tree. frame, event, argument: as `sys.setprofile`
        gives them; other events than "call" are skipped."""
        if event != "call" or self._places.get(frame.f_code, frame) is None:
            return
        place = self._places[frame.f_code] = self._place(frame.f_code)
        if place is not None and not _is_importing(frame):
            self.files.setdefault(place[0], set()).add(place[1])
            self._places[frame.f_code] = None  # once is enough

    def _place(self, code: CodeType) -> tuple[str, str] | None:
        """File and name of a function; None for the body of a module or class, and for other people's code."""
        path = Path(os.path.realpath(code.co_filename))
        ours = path.is_relative_to(ROOT) and path.is_file() and "site-packages" not in path.parts  # no <string>
        if not ours or not code.co_flags & inspect.CO_NEWLOCALS:
            return None
        return path.relative_to(ROOT).as_posix(), code.co_qualname


def _is_importing(frame: FrameType) -> bool:
    """Whether a function runs because a module of ours is imported: in its decorators, tables and the like."""
    at: FrameType | None = frame
    while at is not None:
        if at.f_code.co_name == "<module>" and at.f_globals.get("__name__", "").startswith("rsn."):
            return True
        at = at.f_back
    return False


def entered(work: Callable[[], object]) -> dict[str, set[str]]:
    """Call `work`, and return the names of the functions of this tree that it enters, by file, benchmarks left out.
    Raises what `work` raises."""
    seen = Entered()
    sys.setprofile(seen.profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return {file: functions for file, functions in sorted(seen.files.items()) if not file.startswith("benchmarks/")}


def compiled() -> dict[str, set[str]]:
    """Return what `rsn.compile` of one encoder layer enters, as `entered`."""
    import torch

    import rsn

    layer = torch.nn.TransformerEncoderLayer(128, 2, 512, activation="gelu", batch_first=True).eval()
    return entered(lambda: rsn.compile(layer, (torch.randn(1, 128, 128),)).close())


def run(inputs: dict[str, Any]) -> dict[str, set[str]]:
    """Return what `rsn run` of a stream program enters, as `entered`. inputs: arrays by name; empty: the run ends when
    it asks for them."""
    import numpy as np

    from rsn.base.errors import TensorError
    from rsn.cli.main import main as rsn

    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/inputs.npz", **inputs)
        command = ["run", str(STREAM_PROGRAM), "--outputs", f"{folder}/outputs.npz"]
        command += ["--inputs", f"{folder}/inputs.npz"] if inputs else []

        def work() -> None:
            with contextlib.suppress(TensorError, SystemExit), contextlib.redirect_stdout(None):
                rsn(command, standalone_mode=False)

        return entered(work)


@click.command()
@click.option("--functions", is_flag=True, help="list the files, and the functions that are entered")
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
def main(functions: bool, as_json: bool) -> None:
    """Count the files that two ways through the tree enter."""
    import numpy as np

    found = {COMPILE: compiled(), READ: run({}), RUN: run({"A": np.ones(16, np.float32)})}
    if as_json:
        click.echo(json.dumps({way: {f: sorted(names) for f, names in files.items()} for way, files in found.items()}))
        return
    for way, files in found.items():
        goal = "" if AT_MOST[way] is None else f", at most {AT_MOST[way]}"
        click.echo(f"{way}: {len(files)} files{goal}")
        for file, names in files.items() if functions else ():
            click.echo(f"  {file}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()
