"""What a runner asks of a device: the narrow interface behind which XRT, PYNQ and machines in this process stand."""

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
    """The device is gone, or no longer answers."""


class BoardMismatch(BoardError):
    """Program and bitstream, or bitstream and profile, do not belong together. Names both and the way out."""


class BoardTimeout(BoardError):
    """A run did not end in time."""


@dataclass(frozen=True)
class Facts:
    """What an open device says of itself. uuid: of what is loaded, "" where nothing has one. known: for the record,
    such as versions, by name. clock: whose seconds a run takes, as `Run.clock`."""

    uuid: str = ""
    known: Mapping[str, str] = field(default_factory=dict)
    clock: str = "measured"


class Device(Protocol):
    """One device. Every call but `close` may raise `BoardError`; sizes and positions are in bytes.

    A buffer is known by a number. One run at a time; nobody calls from two threads at once.
    """

    def open(self, profile: Profile, bitstream: Path | None) -> Facts:
        """Take the device, load the bitstream, find kernel and graph. After an error `close` is still called."""

    def close(self) -> None:
        """Give everything back, whatever state it is in: run, graph, buffers, device. Raises nothing."""

    def allocate(self, argument: int, size: int) -> int:
        """A buffer in the memory that this argument of the kernel is connected to. What is in it is not known."""

    def free(self, buffer: int) -> None: ...

    def write(self, buffer: int, at: int, data: npt.NDArray[Any]) -> None:
        """Copy to the buffer, so that the device sees it."""

    def read(self, buffer: int, at: int, into: npt.NDArray[Any]) -> int:
        """Copy what the device left in the buffer; how many bytes came."""

    def reset_graph(self) -> None: ...

    def run_graph(self) -> None:
        """One iteration, which waits for its parameters."""

    def update_parameter(self, port: str, words: Words) -> None: ...

    def start(self, buffers: Sequence[int]) -> None:
        """Start the kernel on these buffers, in the order of its arguments."""

    def wait(self, seconds: float) -> bool:
        """Whether the kernel has ended, waiting no longer than this."""

    def register(self, argument: int) -> int:
        """The 64 bit behind a scalar argument of the kernel, which has run."""
