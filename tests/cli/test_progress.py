"""The progress bar: there once work takes long and somebody looks at a terminal, gone afterwards, and nowhere else."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import sys
import textwrap
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from rsn.cli import compile as compiling
from rsn.cli import progress

PREAMBLE = """
import sys, time
from rsn.cli import progress
from rsn.cli import compile as compiling
progress.PATIENCE = {patience}
"""


def on_a_terminal(body: str, patience: float, **environment: str) -> tuple[bytes, bytes, int]:
    """What a script writes to a terminal as its stderr, and to a pipe as its stdout; its exit code.

    It runs in a fork of this process, which has imported already what a process of its own would import for a second.
    """
    controller, terminal = pty.openpty()
    out, end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        os.close(controller)
        os.close(out)
        env = {"TERM": "xterm", "COLUMNS": "80"} | environment
        forked(PREAMBLE.format(patience=patience) + textwrap.dedent(body), env, stdout=end, stderr=terminal)
    os.close(terminal)
    os.close(end)
    written: dict[int, list[bytes]] = {controller: [], out: []}

    def read(descriptor: int) -> None:
        # OSError: Linux's way to say that the other end of a terminal is closed.
        with suppress(OSError):
            while piece := os.read(descriptor, 4096):
                written[descriptor].append(piece)

    readers = [threading.Thread(target=read, args=(descriptor,), daemon=True) for descriptor in written]
    for reader in readers:
        reader.start()
    _, status = os.waitpid(child, 0)
    for reader in readers:
        reader.join(timeout=10)
    for descriptor in written:
        os.close(descriptor)
    return b"".join(written[controller]), b"".join(written[out]), os.waitstatus_to_exitcode(status)


def on_pipes(body: str, patience: float) -> tuple[bytes, bytes, int]:
    """What a script writes to its stdout and to its stderr, both pipes; its exit code."""
    (out, end), (errors, other_end) = os.pipe(), os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        os.close(out)
        os.close(errors)
        forked(PREAMBLE.format(patience=patience) + textwrap.dedent(body), {}, stdout=end, stderr=other_end)
    os.close(end)
    os.close(other_end)
    with open(out, "rb") as said, open(errors, "rb") as said_of_errors:
        written = said.read(), said_of_errors.read()
    _, status = os.waitpid(child, 0)
    return *written, os.waitstatus_to_exitcode(status)


def forked(script: str, environment: dict[str, str], stdout: int, stderr: int) -> NoReturn:
    """Run a script with these files as a process of its own would, and end."""
    code = 1
    try:
        signal.alarm(60)
        os.environ.update(environment)
        os.environ.pop("NO_COLOR", None)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        sys.stdout, sys.stderr = (open(n, "w", encoding="utf-8", closefd=False) for n in (1, 2))  # noqa: SIM115
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)  # those of OpenMP are not there after a fork
        try:
            exec(script, {"__name__": "__main__"})
            code = 0
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else e.code is not None
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


LONG = """
with progress.working("painting") as told:
    for i in range(8):
        time.sleep(0.05)
        told(i / 8)
print("result")
"""


def test_a_bar_shows_when_work_takes_long_and_goes_away() -> None:
    seen, out, code = on_a_terminal(LONG, 0.05)
    assert (out, code) == (b"result\n", 0)
    assert b"painting" in seen
    assert "\u2501".encode() in seen or b"-" in seen  # the bar itself
    assert seen.endswith(b"\x1b[2K") or b"\x1b[?25h" in seen[-20:]  # taken away, and the cursor is back


def test_a_bar_needs_nobody_to_tell_it() -> None:
    seen, _, code = on_a_terminal('with progress.working("painting"):\n    time.sleep(0.4)', 0.05)
    assert code == 0
    assert b"painting" in seen


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_nothing_shows_when_work_is_done_soon(term: str) -> None:
    seen, out, code = on_a_terminal(STILL + LONG, 60, TERM=term)
    assert (seen, out, code) == (b"", b"result\n", 0)


def test_the_cursor_is_back_after_an_error() -> None:
    body = 'with progress.working("painting"):\n    time.sleep(0.4)\n    raise SystemExit(7)'
    seen, _, code = on_a_terminal(body, 0.05)
    assert code == 7
    assert seen.count(b"\x1b[?25l") == seen.count(b"\x1b[?25h") > 0


def test_nothing_shows_where_stderr_is_a_pipe() -> None:
    assert on_pipes(LONG, 0.01) == (b"result\n", b"", 0)


def test_nothing_is_left_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """No timer that would start a bar later."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    before = threading.active_count()
    for _ in range(3):
        with progress.working("painting") as told:
            told(0.5)
    assert threading.active_count() == before


def test_a_command_shows_it_beside_its_json(tmp_path: Path) -> None:
    """`rsn run` itself, with work made slow."""
    program = Path(progress.__file__).parent.parent / "programs" / "fig6_app1.rsn"
    body = f"""
    from rsn.cli import run
    from rsn.cli.main import main
    main(["asm", {str(program)!r}, "-o", {str(tmp_path / "f.bin")!r}], standalone_mode=False)
    stop = run.stop
    run.stop = lambda *args: time.sleep(0.4) or stop(*args)
    main(["run", {str(tmp_path / "f.bin")!r}, "--timing-only", "--break", "FU3", "--json"])
    """
    seen, out, code = on_a_terminal(body, 0.05)
    assert code == 0
    assert b"running" in seen
    assert json.loads(out)["unit"] == "FU3"


STILL = """
class Clock:
    seconds = 0.0
    def perf_counter():
        return Clock.seconds
    def sleep(seconds):
        Clock.seconds += seconds
progress.time = time = Clock
"""
"""Time stands still but for `sleep`."""

STEPS = """
with progress.stepping("painting the house", ["wall", "door", "roof"]) as steps:
    time.sleep(0.25)
    steps.done("wall")
    steps.share(0.5)
    steps.done("door", "[red] at most")
    with steps.paused():
        print("hello")
        time.sleep(0.3)
    time.sleep(0.3)
    steps.done("roof")
print("result")
"""


def test_steps_are_lines_that_stay() -> None:
    seen, out, code = on_a_terminal(STILL + STEPS, 60)
    assert (out, code) == (b"hello\nresult\n", 0)
    heading, *lines = seen.decode().splitlines()
    assert heading == "painting the house"
    assert [line.split()[0] for line in lines] == ["wall", "door", "roof"]
    assert lines[1].endswith(" 0.0 s  [red] at most")
    times = [float(line.split()[1]) for line in lines]
    assert times == [0.2, 0.0, 0.3]  # without the pause


def test_a_bar_has_the_name_of_the_step_that_runs() -> None:
    """It shows what runs, what is printed to stdout meanwhile stays there, and while it is hidden nothing moves."""
    seen, out, code = on_a_terminal(STEPS, 0.05)
    assert (out, code) == (b"hello\nresult\n", 0)
    text = re.sub("\x1b\\[[0-9;]*m", "", seen.decode())
    assert text.index("wall (1 of 3) \u2501") < text.index(" 0.0 s  [red] at most") < text.index("roof (3 of 3) \u2501")
    assert seen.count(b"\x1b[?25l") == seen.count(b"\x1b[?25h") == 2


def test_what_is_printed_beside_a_bar_goes_to_stdout() -> None:
    body = 'with progress.working("painting"):\n    time.sleep(0.3)\n    print("result")'
    seen, out, _ = on_a_terminal(body, 0.05)
    assert b"painting" in seen
    assert (out, b"result" in seen) == (b"result\n", False)


def test_no_steps_where_stderr_is_a_pipe() -> None:
    assert on_pipes(STEPS, 0.01) == (b"hello\nresult\n", b"", 0)


def test_compile_shows_its_passes(tmp_path: Path) -> None:
    command = ["compile", "gemm:130x64x70", "-o", str(tmp_path / "g.rsn"), "--json", "--dump-after", "lower"]
    seen, out, code = on_a_terminal(f"from rsn.cli.main import main\nmain({command!r})", 60)
    assert code == 0
    assert json.loads(out)["segments"] == 1
    heading, *lines = seen.decode().splitlines()
    assert heading == "compiling gemm:130x64x70 for xnn"
    names = [line[2:16].strip() for line in lines if line.endswith(" s")]
    assert names == list(compiling.STEPS)
    assert "-- after dram" in lines


def test_compile_stops_showing_where_it_fails(tmp_path: Path) -> None:
    command = ["compile", "no-such-model", "-o", str(tmp_path / "g.rsn")]
    seen, out, code = on_a_terminal(f"from rsn.cli.main import main\nmain({command!r})", 60)
    assert (out, code) == (b"", 2)
    assert seen.decode().splitlines()[-1].startswith("error: ")
