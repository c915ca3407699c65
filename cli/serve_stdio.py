"""`rsn serve-stdio`: the process that `--board ssh://` starts on the other computer. Not for users."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict

import click

from ..host.boards.ssh_frames import SILENCE_S
from ..host.boards.ssh_remote import serve
from .doctor import examine


@click.command(name="serve-stdio", hidden=True)
@click.option("--silence", type=click.FloatRange(0, min_open=True), help="seconds without a message until it ends")
def serve_stdio_command(silence: float | None) -> None:
    """Run programs on this computer's boards for the process at the other end of stdin and stdout."""
    # stdout becomes stderr: text that libraries print must not come between the frames
    frames = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    serve(0, frames, silence or SILENCE_S, lambda board: [asdict(check) for check in examine(board)])
