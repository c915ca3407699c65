"""The interface between a board and its device, behind which XRT, PYNQ and machines in this process stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...base.errors import BoardBusy as BoardBusy
from ...base.errors import BoardError
from ...base.errors import BoardMemory as BoardMemory
from ...isa.packet import Words
from .profile import Profile

Bytes = npt.NDArray[np.uint8]


class BoardLost(BoardError):
    """The device has gone, or no longer answers."""


class BoardMismatch(BoardError):
    """Program and bitstream, or bitstream and profile, do not belong together. The message names both and says what to
    do."""


class BoardTimeout(BoardError):
    """A run did not end in time."""


@dataclass(frozen=True)
class DeviceFacts:
    """What an open device reports of itself. uuid: of the loaded bitstream, "" if it has none. known: facts for the
    record, such as versions, by name. clock: whose seconds a run takes, as `Run.clock`."""

    uuid: str = ""
    known: Mapping[str, str] = field(default_factory=dict)
    clock: str = "measured"


class Device(Protocol):
    """One device. Every call but `close` may raise `BoardError`, or a class of it: `BoardBusy`, `BoardMemory`,
    `BoardLost`. Sizes and positions are in bytes; a buffer is known by a number.

    One run at a time; calls come from one thread at a time. The order of calls: `open`; `reset_graph`, once; `allocate`
    and `write`; for each run `update_parameter`, `run_graph`, `start`, `wait`, `wait_graph`; `read`; `close`. A graph
    with synchronous parameters (`profile.PARAMETERS`) takes `run_graph` first, then `update_parameter` for each tile.
    """

    def open(self, profile: Profile, bitstream: Path | None) -> DeviceFacts:
        """Take the device, load the bitstream (None for a device that has none), and find kernel and graph. `close` is
        called also after an error. Raises `BoardBusy` if another process has the device, `BoardMismatch` for a
        bitstream that is not the profile's."""

    def close(self) -> None:
        """Release run, graph, buffers and device, in whatever state they are. Raises nothing."""

    def allocate(self, argument: int, size: int) -> int:
        """Allocate a buffer of `size` bytes in the memory that argument number `argument` of the kernel is connected
        to; return the buffer's number. Its content is undefined. Raises `BoardMemory` if there is no room."""

    def free(self, buffer: int) -> None:
        """Free a buffer, by its number."""

    def write(self, buffer: int, at: int, data: npt.NDArray[Any]) -> None:
        """Copy the bytes of `data`, a contiguous array, into the buffer, from byte `at` on, and make them visible to
        the device."""

    def read(self, buffer: int, at: int, into: npt.NDArray[Any]) -> int:
        """Copy bytes of the buffer, from byte `at` on, as the device left them, into the contiguous array `into`, as
        many as it has. Returns how many bytes were copied, fewer at the end of the buffer."""

    def reset_graph(self) -> None:
        """Bring the AI Engine graph of a device that was just opened into a state from which it can be run. Raises
        `BoardError` if the device has no graph."""

    def run_graph(self) -> None:
        """Start one iteration of the AI Engine graph. The one before must have ended."""

    def update_parameter(self, port: str, words: Words) -> None:
        """Write 32-bit words, (n,), to a run-time parameter of the graph. port: the parameter's name."""

    def start(self, buffers: Sequence[int]) -> None:
        """Start the kernel with these buffers, by their numbers, as its arguments, in order."""

    def wait(self, seconds: float) -> bool:
        """Wait until the kernel has ended, for `seconds` seconds at most. Returns whether it has ended. Raises
        `BoardLost` if the run has failed."""

    def wait_graph(self, seconds: float) -> bool:
        """Wait until every tile has ended the graph's iteration, for `seconds` seconds at most. Returns whether they
        have."""

    def register(self, argument: int) -> int:
        """Return the 64 bits of a scalar argument of the kernel, by the argument's number, after a run."""
