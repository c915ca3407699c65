"""Builds generated dataflow regions for this computer, and runs them: each process a thread, streams as deep as stated.

A run is a process of its own, so that one that computes for ever, or fails, ends by a time limit and harms nobody.
"""

from __future__ import annotations

import hashlib
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ....base.errors import BoardError
from ..sources import VERSAL, cache_folder
from .build import call, compiler, kept

FLAGS = ("-std=c++17", "-pthread", "-ffp-contract=off", "-DRSN_NATIVE", "-w")
CSIM = VERSAL / "csim"
PROGRAM = "the C++ of the program"
SECONDS = 600.0
"""Limit of a run."""


@dataclass(frozen=True)
class NativeWait:
    """A process that waits at the end of a run. process: its name. line: of the user's file, from 1. put: whether it
    waits for room to put; otherwise for something to get. stream: its name."""

    process: str
    line: int
    put: bool
    stream: str


@dataclass(frozen=True)
class NativeRun:
    """How a run ended. memories: the bytes of each tensor that is written back; empty unless the run was complete.
    error: why it failed, "" if it did not. waits: processes that wait. streams: by name the depth, the transfers
    written and those taken."""

    memories: tuple[bytes, ...]
    error: str
    waits: tuple[NativeWait, ...]
    streams: dict[str, tuple[int, int, int]]


def build_regions(text: str, headers: Sequence[Path], target: Path, optimize: str = "-O2") -> None:
    """Compile a file that states `main` with `rsn::csim::run_region` to the program `target`.

    text: the C++, which is written beside `target`. headers: further folders with headers. optimize: an option of the
    compiler. Raises `BoardError` if there is no compiler, or if it refuses the text, `OSError` if the text cannot be
    written."""
    cxx = compiler("a native run")
    source = target.with_suffix(".native.cpp")
    source.write_text(text, encoding="utf-8")
    folders = [f"-I{folder}" for folder in (CSIM / "include", CSIM, *headers)]
    command = [cxx, *FLAGS, optimize, *folders, str(source), str(_machine(cxx)), "-o", str(target)]
    call(command, PROGRAM)


def _machine(cxx: str) -> Path:
    """The object file of the machine, built once for all programs."""
    version = subprocess.run([cxx, "--version"], capture_output=True, text=True, check=False).stdout
    h = hashlib.sha256(repr((version, FLAGS)).encode())
    for name in ("machine.cpp", "machine.h"):
        h.update((CSIM / name).read_bytes())
    target = cache_folder() / f"tasks-{h.hexdigest()[:16]}" / "machine.o"
    command = [cxx, *FLAGS, "-O2", "-c", str(CSIM / "machine.cpp"), "-o"]
    return kept(target, lambda made: call([*command, str(made)], PROGRAM), f"{target} cannot be written")


def run_region(
    program: Path,
    number: int,
    memories: Sequence[bytes],
    draws: Sequence[bytes] = (),
    seconds: float = SECONDS,
    sizes: Sequence[int] = (),
) -> NativeRun:
    """Run a region of a program that `build_regions` made. number: of the region, from 0.

    memories: bytes of the tensors, in the order of the region's arguments; the result has them as the run left them.
    draws: results of `data()`, one item for each task instance that calls it, with one byte a call. seconds: limit of
    the run on this computer. sizes: values of the sizes that the run gives, in order. Raises `BoardError` for a run
    that takes longer, or that crashes."""
    numbers = [struct.pack("<i", size) for size in sizes]
    given = b"".join(struct.pack("<Q", len(m)) + m for m in (*memories, *draws, *numbers))
    try:
        done = subprocess.run([program, str(number)], input=given, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise BoardError(f"the native run has taken more than {seconds:g} seconds, and was ended") from None
    if done.returncode not in (0, 1, 2):
        raise BoardError(f"the native run has crashed: it ended with {done.returncode}")
    error, waits, streams = "", [], {}
    for line in done.stderr.decode(errors="replace").splitlines():
        kind, *rest = line.split("\t")
        if kind == "error":
            error = "\t".join(rest)
        elif kind == "wait" and len(rest) == 4:
            waits.append(NativeWait(rest[0], int(rest[1]), rest[2] == "put", rest[3]))
        elif kind == "stream" and len(rest) == 4:
            streams[rest[0]] = (int(rest[1]), int(rest[2]), int(rest[3]))
    if done.returncode == 2 and not error:
        error = "the run has failed"
    out, at = [], 0
    while at < len(done.stdout):
        (size,) = struct.unpack_from("<Q", done.stdout, at)
        out.append(done.stdout[at + 8 : at + 8 + size])
        at += 8 + size
    return NativeRun(tuple(out), error, tuple(waits), streams)
