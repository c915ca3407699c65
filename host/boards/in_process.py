"""A device in this process: a machine of ours that knows nothing but what a board would have been given, which is raw
buffers, tile parameters and the order of calls. It shows that the runner gives a board all it needs, in the right
places."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.errors import BoardError, RsnError
from ...hw.sim.machine import Machine
from ...isa.image import decode_image
from ...isa.packet import Words
from ...isa.program import Program
from .device import BoardBusy, BoardMemory, Bytes, Facts
from .profile import INSTRUCTIONS, Profile
from .tiles import op_lists

Array = npt.NDArray[np.float32]
Engine = Callable[[Program, Mapping[str, Array]], object]
"""Runs a program on memories, by bank, and changes them."""

MEMORY = 2 << 30
"""Bytes of this computer that a device takes at most."""


def simulator(program: Program, banks: Mapping[str, Array]) -> object:
    return Machine(program).run(banks)


def native() -> Engine:
    """The C++ sources of the machine. Raises `BoardError` where they cannot be built."""
    from ...hw.versal.csim.machine import Native

    return Native().run


class InProcess:
    """A run that cannot end (no unit can move, or the graph was told nothing) does what it does on a board: it never
    ends."""

    def __init__(self, engine: Engine = simulator, name: str = "sim", *, memory: int = MEMORY) -> None:
        self._engine = engine
        self._name = name
        self._memory = memory
        self._profile: Profile | None = None
        self._buffers: dict[int, tuple[Bytes, Bytes]] = {}
        """What the device has, and what the host has mapped of it."""
        self._next = 1
        self._thread: threading.Thread | None = None
        self._ended = False
        self._register = 0
        self._graph_runs = False
        self._was_reset = False
        self._told: dict[str, Words] = {}

    def open(self, profile: Profile, bitstream: Path | None) -> Facts:
        if self._profile is not None:
            raise BoardBusy("the device is open")
        self._profile = profile
        return Facts(known={"runtime": f"{self._name} in this process"}, clock="wall")

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join()
        self._thread, self._profile = None, None
        self._graph_runs = self._was_reset = self._ended = False
        self._buffers, self._told, self._register = {}, {}, 0

    def allocate(self, argument: int, size: int) -> int:
        if size + sum(len(device) for device, _ in self._buffers.values()) > self._memory:
            raise BoardMemory(f"no room for {size} bytes for argument {argument} of the kernel")
        # nothing may rely on what is in new memory
        self._buffers[self._next] = np.full(size, 0xFF, np.uint8), np.full(size, 0xFF, np.uint8)
        self._next += 1
        return self._next - 1

    def free(self, buffer: int) -> None:
        del self._buffers[buffer]

    def write(self, buffer: int, at: int, data: npt.NDArray[Any]) -> None:
        raw = data.view(np.uint8).reshape(-1)
        for memory in self._buffers[buffer]:
            memory[at : at + len(raw)] = raw

    def read(self, buffer: int, at: int, into: npt.NDArray[Any]) -> int:
        raw = into.view(np.uint8).reshape(-1)
        device, host = self._buffers[buffer]
        host[at : at + len(raw)] = device[at : at + len(raw)]
        raw[:] = host[at : at + len(raw)]
        return len(raw)

    def reset_graph(self) -> None:
        self._was_reset, self._graph_runs, self._told = True, False, {}

    def run_graph(self) -> None:
        if not self._was_reset:
            raise BoardError("the graph runs, or has not been reset")
        self._graph_runs, self._was_reset = True, False

    def update_parameter(self, port: str, words: Words) -> None:
        if not self._graph_runs:
            raise BoardError(f"{port}: the graph does not run, and would not take it")
        self._told[port] = words.copy()

    def start(self, buffers: Sequence[int]) -> None:
        profile = self._open_profile
        if len(buffers) != len(profile.arguments):
            raise BoardError(f"kernel {profile.kernel} takes {len(profile.arguments)} buffers, not {len(buffers)}")
        given = dict(zip(profile.arguments, buffers, strict=True))
        if tuple(given[name] for name in profile.arguments) != tuple(buffers):
            raise BoardError("both ports of a bank take the same buffer")
        self._ended = False
        self._thread = threading.Thread(target=self._run, args=(given,), name="in-process device", daemon=True)
        self._thread.start()

    def _run(self, given: Mapping[str, int]) -> None:
        profile = self._open_profile
        self._register = int(profile.overlay.fingerprint, 16)
        banks = {name: self._buffers[b][0].view(np.float32) for name, b in given.items() if name != INSTRUCTIONS}
        words = self._buffers[given[INSTRUCTIONS]][0].view(np.uint32)
        try:
            packets = decode_image(words[: 2 + int(words[0])], profile.overlay)
            idle = not self._graph_runs
            ops = {} if idle else op_lists(self._told, profile.overlay, profile.graph)
            self._engine(Program(profile.overlay, packets, ops), banks)
        except RsnError:
            return  # and so it never ends
        finally:
            self._graph_runs, self._told = False, {}  # an iteration takes its parameters once
        self._ended = True

    def wait(self, seconds: float) -> bool:
        if self._thread is None:
            raise BoardError("the kernel has not been started")
        self._thread.join(seconds)
        if not self._ended and not self._thread.is_alive():
            time.sleep(seconds)
        return self._ended

    def register(self, argument: int) -> int:
        return self._register

    @property
    def _open_profile(self) -> Profile:
        if self._profile is None:
            raise BoardError("the device is not open")
        return self._profile
