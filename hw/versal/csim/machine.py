"""The native machine: runs programs on the C++ sources of `hw/versal` in this process, with arrays as memories."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from pathlib import Path
from threading import Event
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ....base.errors import BoardError, ProgramError
from ....isa.image import decode_image
from ....isa.instruction_path import InstructionPath
from ....isa.overlay import Overlay
from ....isa.overlays.file import without_hardware
from ....isa.overlays.xnn import XNN, XNN_BASE
from ....isa.overlays.xnn2 import XNN2
from ....isa.overlays.xnn8 import XNN8
from ....isa.packet import Words
from ....isa.program import Program
from ...sim.machine import Machine
from .build import build
from .csim_deadlock import NativeReport, settle, stalled
from .xnn8_limits import beyond

Array = npt.NDArray[np.float32]

MADE_FOR: dict[str, Overlay] = {"xnn": XNN, "xnn2": XNN2, "xnn8": XNN8}
"""The overlay of each machine that can be built."""
RUNS: Mapping[str, str] = {
    XNN.fingerprint: "xnn",
    XNN_BASE.fingerprint: "xnn",
    XNN2.fingerprint: "xnn2",
    XNN8.fingerprint: "xnn8",
}
"""The machine that runs programs for an overlay, by its fingerprint."""
MMES = len(XNN.by_kind["MME"])
"""Of each machine."""
POLL_MS = 100
"""Milliseconds after which ^C or `stop` takes effect at the latest."""


class NativeState(IntEnum):
    """State of a native run: it runs, has ended, waits for ever, was stopped by its caller, or has failed."""

    RUNNING = 0
    DONE = 1
    DEADLOCK = 2
    STOPPED = 3
    FAILED = 4


class _NativeProgram(ctypes.Structure):
    _fields_ = (
        ("image", ctypes.c_void_p),
        ("image_words", ctypes.c_uint64),
        ("ops", ctypes.c_void_p * MMES),
        ("op_counts", ctypes.c_uint32 * MMES),
        ("ddr", ctypes.c_void_p),
        ("ddr_floats", ctypes.c_uint64),
        ("lpddr", ctypes.c_void_p),
        ("lpddr_floats", ctypes.c_uint64),
        ("mop_fifo_depth", ctypes.c_uint32),
        ("uop_fifo_depth", ctypes.c_uint32),
        ("stalls", ctypes.c_uint64),
        ("array", ctypes.c_uint32),
    )


@cache
def _library(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as e:
        raise BoardError(f"{path} cannot be loaded: {e}; delete it to have it built again") from e
    library.rsn_csim_fingerprint.restype = ctypes.c_char_p
    library.rsn_csim_start.argtypes = (ctypes.POINTER(_NativeProgram), ctypes.POINTER(ctypes.c_void_p))
    library.rsn_csim_wait.argtypes = (ctypes.c_void_p, ctypes.c_int)
    library.rsn_csim_stop.argtypes = (ctypes.c_void_p,)
    library.rsn_csim_report.restype = ctypes.c_char_p
    library.rsn_csim_report.argtypes = (ctypes.c_void_p,)
    library.rsn_csim_free.argtypes = (ctypes.c_void_p,)
    library.rsn_csim_free.restype = None
    return library


def op_words(program: Program) -> list[Words]:
    """Return the op list of each MME of a program as 32-bit words, uint32 vectors in the order of the MMEs; an empty
    one for an MME without ops.
    """
    lists = [program.preloaded.get(f"MME{m}", ()) for m in range(MMES)]
    return [np.array([w for op in ops for w in op.encode()], np.uint32) for ops in lists]


class Native:
    """The C++ machine of an overlay, built and loaded. It can run any number of programs, also at the same time.

    library: path of the library; None builds it. machine: one of `MADE_FOR`. Raises `BoardError` if it cannot be built
    or loaded, or if it was built for another instruction set than this package's.
    """

    def __init__(self, library: Path | None = None, machine: str = "xnn") -> None:
        self.machine = machine
        self._library = _library(library or build(machine=machine))
        made_for, overlay = self._library.rsn_csim_fingerprint().decode(), MADE_FOR[machine]
        if made_for != overlay.fingerprint:
            raise BoardError(
                f"the C++ machine has fingerprint {made_for}, overlay {overlay.name} {overlay.fingerprint}: "
                "build it again from sources with this package's isa.h"
            )

    def run(
        self,
        program: Program,
        banks: Mapping[str, Array],
        words: Words | None = None,
        *,
        array: bool = False,
        stalls: int = 0,
        stop: Event | None = None,
    ) -> float:
        """Run a verified program once and return the seconds that it took on this computer.

        words: the image with parameters patched in; None takes their defaults. banks: the memories `ddr` and `lpddr`,
        float32 vectors, changed in place; `KeyError` if one is missing. array: run the AIE graph with one thread per
        tile (384) instead of one thread per MME; results are bit-identical; ignored for xnn8, whose tiles have a thread
        each in any case. stalls: other than 0, a seed (64 bits) by which processes pause at random and pipelines that
        cannot flush hold their last outputs back; results are bit-identical, and a deadlock that such a pipeline causes
        is a `BoardError`. stop: when set, ends the run with a `BoardError`.

        Raises `DeadlockError`, or `ProgramError` if words are left in streams or the program cannot be run; their texts
        are the simulator's. Raises `BoardError` for a program of another machine, for one that asks xnn8 for what its
        C++ sources do not have (`xnn8_limits.beyond`), or without memory for the run."""
        if machine_of(program) != self.machine:
            raise BoardError(f"the C++ machine of {self.machine} does not run programs for {program.overlay.name}")
        if self.machine == XNN8.name:
            mops = [mop for packet in program.packets for mop in packet.mops]
            if missing := beyond(mops):
                raise BoardError(f"board csim: {missing}: not in the C++ sources of xnn8 yet")
        image = np.ascontiguousarray(program.image if words is None else words)
        ops = op_words(program)
        what = _NativeProgram(
            image.ctypes.data,
            len(image),
            (ctypes.c_void_p * MMES)(*(o.ctypes.data for o in ops)),
            (ctypes.c_uint32 * MMES)(*map(len, ops)),
            *(x for bank in ("ddr", "lpddr") for x in (banks[bank].ctypes.data, len(banks[bank]))),
            program.overlay.mop_fifo_depth,
            program.overlay.uop_fifo_depth,
            stalls,
            array,
        )
        start = time.perf_counter()
        handle = ctypes.c_void_p()  # the library sets it itself: ^C after the start then cannot lose the run
        try:
            if self._library.rsn_csim_start(ctypes.byref(what), ctypes.byref(handle)):
                raise BoardError("no memory for a run of board csim")
            while (state := self._library.rsn_csim_wait(handle, POLL_MS)) == NativeState.RUNNING:
                if stop is not None and stop.is_set():
                    self._library.rsn_csim_stop(handle)
            took = time.perf_counter() - start
            report = self._library.rsn_csim_report(handle).decode()
        finally:
            if handle:
                self._library.rsn_csim_free(handle)
        facts = NativeReport.parse(report)
        if state == NativeState.FAILED:
            raise ProgramError(f"board csim: {facts.error}")
        if state == NativeState.STOPPED:
            raise BoardError("the run was stopped")
        if reason := stalled(facts, stalls):
            raise BoardError(reason)
        if not facts.complete and self.machine == XNN8.name:
            _settle_lanes(program, words, facts)
        elif not facts.complete:
            packets = decode_image(image, program.overlay)
            settle(InstructionPath(program.overlay, packets, program.preloaded), facts, program.where)
        return took


def _settle_lanes(program: Program, words: Words | None, facts: NativeReport) -> NoReturn:
    """Raise the simulator's error for a program of xnn8 that natively could not go on. A unit of its overlay is several
    processes there, one for each lane or column, so that no state of the simulator follows from theirs: the program is
    simulated from its beginning, without data. Raises `BoardError` if the simulator can go on."""
    Machine(program, words).run()
    waits = ", ".join(dict.fromkeys(f"{w.process} for {w.stream}" for w in facts.waits))
    raise BoardError(f"board csim: a deadlock that the simulator does not have: {waits}")


def machine_of(program: Program) -> str:
    """Return the name of the machine that runs a program, a key of `MADE_FOR`. Raises `BoardError` if the C++ sources
    describe none that does.
    """
    overlay = program.overlay
    if reason := without_hardware(overlay):
        raise BoardError(f"board csim: {reason}")
    machine = RUNS.get(overlay.fingerprint)
    if machine is None:
        names = f"{XNN.name}, {XNN_BASE.name}, {XNN2.name} and {XNN8.name}"
        raise BoardError(
            f"board csim is the machine of {names}, with their depths of streams and sizes of banks; "
            f"this program is for {overlay.name} {overlay.fingerprint}"
        )
    return machine
