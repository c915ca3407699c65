"""A device in this process: the simulator or the C++ machine behind the `Device` interface.

It is given only what a real board is given: raw buffers, tile parameters, and calls in order. Its tests prove that the
runner gives a board all it needs, at the right addresses.
"""

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
from ...hw.versal.csim.machine import RUNS, Native
from ...isa.image import decode_image
from ...isa.overlay import Overlay
from ...isa.packet import Words
from ...isa.program import Array, Program
from .device import BoardBusy, BoardMemory, Bytes, Device, DeviceFacts
from .profile import INSTRUCTIONS, Profile
from .tiles import op_lists

Engine = Callable[[Program, Mapping[str, Array]], object]
"""Runs a program on memories, by bank, which it changes."""

MEMORY = 2 << 30
"""The most bytes of this computer's memory that a device takes."""


def simulator(program: Program, banks: Mapping[str, Array]) -> object:
    """Run a program on the simulator. banks: flat float32 by bank, which it changes. Returns the run. NaN and
    infinities in the results give no NumPy warnings. Raises as `Machine.run`, such as `DeadlockError`."""
    with np.errstate(all="ignore"):  # of this thread, which is the device's own
        return Machine(program).run(banks)


def native(overlay: Overlay) -> Engine:
    """Return the engine that runs the C++ sources of an overlay's machine. Raises `BoardError` if they cannot be built,
    and for an overlay without such sources."""
    if overlay.fingerprint not in RUNS:
        raise BoardError(f"the machine of {overlay.name} has no C++ sources")
    return Native(machine=RUNS[overlay.fingerprint]).run


class InProcess(Device):
    """A device in this process.

    A run that cannot end, because of a deadlock or missing tile parameters, never ends, as on a board: `wait` reports
    it as running. Neither does any later run of this object, also when it was closed and opened again: nothing but a
    new device, as a reboot makes one, forgets a hung kernel, or an iteration of the graph that was not waited for.

    engine: runs the program. name: of the engine, for messages and facts. memory: bytes that the device has. sleep:
    waits some seconds for a run that never ends.
    """

    def __init__(
        self,
        engine: Engine = simulator,
        name: str = "sim",
        *,
        memory: int = MEMORY,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._engine = engine
        self._name = name
        self._memory = memory
        self._sleep = sleep
        self._profile: Profile | None = None
        self._buffers: dict[int, tuple[Bytes, Bytes]] = {}
        """By buffer number: the device's memory, and the host's mapping of it."""
        self._next = 1
        self._thread: threading.Thread | None = None
        self._ended = self._iteration_ended = False
        self._register = 0
        self._graph_runs = False
        """Whether an iteration has been started and not yet waited for."""
        self._array_hangs = self._kernel_hangs = False
        self._parameters: dict[str, Words] = {}

    def open(self, profile: Profile, bitstream: Path | None) -> DeviceFacts:
        if self._profile is not None:
            raise BoardBusy("the device is open")
        self._profile = profile
        return DeviceFacts(known={"runtime": f"{self._name} in this process"}, clock="wall")

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join()
        self._array_hangs |= self._graph_runs and not self._iteration_ended
        self._thread, self._profile = None, None
        self._graph_runs = self._ended = False
        self._buffers, self._register = {}, 0

    def allocate(self, argument: int, size: int) -> int:
        if size + sum(len(device) for device, _ in self._buffers.values()) > self._memory:
            name = self._open_profile.arguments[argument]
            raise BoardMemory(
                f"no room for {size} bytes of {name}: a device in this process takes at most {self._memory} bytes "
                f"in all (board {self._name} itself takes more)"
            )
        # not 0, so that a test finds code that relies on the content of new memory
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
        self._array_hangs |= self._graph_runs  # tiles that are stopped keep their locks
        self._graph_runs = False

    def run_graph(self) -> None:
        if self._graph_runs:
            raise BoardError("the graph is running: wait for the end of its iteration first")
        self._graph_runs, self._iteration_ended = True, False

    def update_parameter(self, port: str, words: Words) -> None:
        waits_for_it = self._open_profile.parameters == "sync"
        if self._graph_runs != waits_for_it:
            state, kind = ("running", "asynchronous") if self._graph_runs else ("not running", "synchronous")
            raise BoardError(f"{port}: the graph is {state}, so that it cannot take {kind} parameters")
        self._parameters[port] = words.copy()

    def start(self, buffers: Sequence[int]) -> None:
        profile = self._open_profile
        if len(buffers) != len(profile.arguments):
            raise BoardError(f"kernel {profile.kernel} takes {len(profile.arguments)} buffers, not {len(buffers)}")
        given = dict(zip(profile.arguments, buffers, strict=True))
        if tuple(given[name] for name in profile.arguments) != tuple(buffers):
            raise BoardError("the arguments for one bank must be the same buffer")
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
            ops = {} if idle else op_lists(self._parameters, profile.overlay, profile.graph)
            if self._kernel_hangs or (self._array_hangs and not idle):
                self._kernel_hangs = True
                return
            self._engine(Program(profile.overlay, packets, ops), banks)
        except RsnError:
            self._kernel_hangs = True
            return  # without `_ended`: a failed run never ends
        if not idle and profile.parameters == "sync":
            self._parameters = {}  # an iteration consumes them
        self._iteration_ended = not idle
        self._ended = True

    def wait(self, seconds: float) -> bool:
        if self._thread is None:
            raise BoardError("the kernel has not been started")
        self._thread.join(seconds)
        if not self._ended and not self._thread.is_alive():
            self._sleep(seconds)
        return self._ended

    def wait_graph(self, seconds: float) -> bool:
        if not self._graph_runs:
            raise BoardError("the graph has not been run")
        if not self._iteration_ended:
            self._sleep(seconds)
            return False
        self._graph_runs = False
        return True

    def register(self, argument: int) -> int:
        return self._register

    @property
    def _open_profile(self) -> Profile:
        if self._profile is None:
            raise BoardError("the device is not open")
        return self._profile
