"""Files of this package that a command enters: those of which a line is executed other than while modules are imported.

python -m rsn.benchmarks.entered run programs/streams/producer_consumer.py
python -m rsn.benchmarks.entered compile
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOADING = "<frozen importlib._bootstrap>"


def entered(action: Callable[[], object]) -> list[str]:
    """The files that an action enters, by their paths in the package."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event != "call" or file in found or frame.f_code.co_name == "<module>":
            return
        above: FrameType | None = frame
        while above is not None:
            if above.f_code.co_filename == LOADING:
                return
            above = above.f_back
        found.add(file)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    paths = (Path(file).resolve() for file in found if not file.startswith("<"))
    return sorted(str(path.relative_to(ROOT)) for path in paths if path.is_relative_to(ROOT))


def command(arguments: list[str]) -> None:
    """Run a command line of rsn; what it prints is not shown."""
    from rsn.cli.main import main

    sys.argv = ["rsn", *arguments]
    try:
        with redirect_stdout(StringIO()):
            main()
    except SystemExit as end:
        if end.code:
            raise


def compiled() -> None:
    """Compile one encoder layer with `rsn.compile`."""
    import torch

    import rsn

    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True).eval()
    rsn.compile(layer, (torch.zeros(1, 128, 256),))


if __name__ == "__main__":
    given = sys.argv[1:]
    files = entered(compiled if given == ["compile"] else lambda: command(given))
    files = [file for file in files if not file.startswith("benchmarks/")]
    sys.stdout.write("\n".join([*files, str(len(files))]) + "\n")
