"""The native machine: the C++ sources of `hw/versal`, in this process, on memories that are arrays."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from pathlib import Path
from threading import Event

import numpy as np
import numpy.typing as npt

from ....base.errors import BoardError, ProgramError
from ....isa.image import decode_image
from ....isa.instruction_path import InstructionPath
from ....isa.overlays.xnn import XNN, XNN_BASE
from ....isa.packet import Words
from ....isa.program import Program
from .build import build
from .csim_deadlock import Facts, settle

Array = npt.NDArray[np.float32]

MMES = len(XNN.by_kind["MME"])
POLL_MS = 100
"""How long ^C and `stop` may have to wait."""


class State(IntEnum):
    """As in csim.h."""

    RUNNING = 0
    DONE = 1
    DEADLOCK = 2
    STOPPED = 3
    FAILED = 4


class _Program(ctypes.Structure):
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
        ("array", ctypes.c_uint32),
    )


@cache
def _library(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as e:
        raise BoardError(f"{path} cannot be loaded: {e}; remove it, and it is built anew") from e
    library.rsn_csim_fingerprint.restype = ctypes.c_char_p
    library.rsn_csim_start.argtypes = (ctypes.POINTER(_Program), ctypes.POINTER(ctypes.c_void_p))
    library.rsn_csim_wait.argtypes = (ctypes.c_void_p, ctypes.c_int)
    library.rsn_csim_stop.argtypes = (ctypes.c_void_p,)
    library.rsn_csim_report.restype = ctypes.c_char_p
    library.rsn_csim_report.argtypes = (ctypes.c_void_p,)
    library.rsn_csim_free.argtypes = (ctypes.c_void_p,)
    library.rsn_csim_free.restype = None
    return library


def op_words(program: Program) -> list[Words]:
    """Each MME's list, as words."""
    lists = [program.preloaded.get(f"MME{m}", ()) for m in range(MMES)]
    return [np.array([w for op in ops for w in op.encode()], np.uint32) for ops in lists]


class Native:
    """The machine, built and loaded; any number of programs may run on it, also at once.

    Raises `BoardError` where it cannot be built or is of another instruction set than this package.
    """

    def __init__(self, library: Path | None = None) -> None:
        self._library = _library(library or build())
        made_for = self._library.rsn_csim_fingerprint().decode()
        if made_for != XNN.fingerprint:
            raise BoardError(
                f"the C++ machine has fingerprint {made_for}, overlay {XNN.name} {XNN.fingerprint}: "
                "write hw/versal/isa.h anew (make generate)"
            )

    def run(
        self,
        program: Program,
        banks: Mapping[str, Array],
        words: Words | None = None,
        *,
        array: bool = False,
        stop: Event | None = None,
    ) -> float:
        """Run a verified program once; the seconds it took here.

        words: its image with parameters patched in. banks: off-chip memories by name, changed in place. array: run the
        AIE graph, a thread to each of its 384 tiles, instead of a thread to each MME; the results are the same bits.
        stop: ends the run when set, with a `BoardError`. Raises `DeadlockError`, or `ProgramError` where data is left
        in streams, both in the words of the simulator.
        """
        require_runs(program)
        image = np.ascontiguousarray(program.image if words is None else words)
        ops = op_words(program)
        what = _Program(
            image.ctypes.data,
            len(image),
            (ctypes.c_void_p * MMES)(*(o.ctypes.data for o in ops)),
            (ctypes.c_uint32 * MMES)(*map(len, ops)),
            *(x for bank in ("ddr", "lpddr") for x in (banks[bank].ctypes.data, len(banks[bank]))),
            program.overlay.mop_fifo_depth,
            program.overlay.uop_fifo_depth,
            array,
        )
        start = time.perf_counter()
        handle = ctypes.c_void_p()  # set before ^C can come between the start and here
        try:
            if self._library.rsn_csim_start(ctypes.byref(what), ctypes.byref(handle)):
                raise BoardError("no memory for a run of board csim")
            while (state := self._library.rsn_csim_wait(handle, POLL_MS)) == State.RUNNING:
                if stop is not None and stop.is_set():
                    self._library.rsn_csim_stop(handle)
            took = time.perf_counter() - start
            report = self._library.rsn_csim_report(handle).decode()
        finally:
            if handle:
                self._library.rsn_csim_free(handle)
        facts = Facts.parse(report)
        if state == State.FAILED:
            raise ProgramError(f"board csim: {facts.error}")
        if state == State.STOPPED:
            raise BoardError("the run was stopped")
        if not facts.complete:
            packets = decode_image(image, program.overlay)
            settle(InstructionPath(program.overlay, packets, program.preloaded), facts, program.where)
        return took


def require_runs(program: Program) -> None:
    """Raise `BoardError` for a program of another machine than the one that these sources are."""
    overlay = program.overlay
    if overlay.fingerprint not in (XNN.fingerprint, XNN_BASE.fingerprint):
        raise BoardError(
            f"board csim is the machine of {XNN.name} and {XNN_BASE.name}, with their depths; this program is for "
            f"{overlay.name} {overlay.fingerprint}"
        )
