"""XRT through its Python binding, pyxrt, for buffers, kernel and runs. pyxrt has neither graphs nor registers: those go
through the C API, on a second handle to the same device."""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import BoardError
from .device import BoardMemory, Bytes, DeviceFacts
from .profile import Profile
from .xrt_ctypes import TO_DEVICE, CtypesXrt, XrtLibrary, ended

POLL_S = 0.0005
"""Seconds between two looks at a run's state. pyxrt's own wait would hold the interpreter's lock, and stop all other
threads."""


class Pyxrt(CtypesXrt):
    """A device behind pyxrt, and behind the C API for what pyxrt does not have. index, library: as for `CtypesXrt`.
    Raises `BoardError` without pyxrt, and as `CtypesXrt` does."""

    def __init__(self, index: int = 0, library: XrtLibrary | None = None) -> None:
        super().__init__(index, library)
        try:
            self._pyxrt: Any = importlib.import_module("pyxrt")
        except ImportError as e:
            raise BoardError(
                f"pyxrt cannot be imported ({e}): it comes with AMD's XRT (PYTHONPATH=$XILINX_XRT/python); without it, "
                "leave @pyxrt out"
            ) from None
        self._py_device: Any = None
        self._py_uuid: Any = None
        self._py_buffers: dict[int, Any] = {}
        self._bitstream = ""
        self._name = ""
        self._next = 1

    def open(self, profile: Profile, bitstream: Path | None) -> DeviceFacts:
        self._bitstream, self._name = str(bitstream), profile.kernel
        facts = super().open(profile, bitstream)
        return replace(facts, known={**facts.known, "runtime": f"XRT {self._xrt.version} through pyxrt"})

    def _open_kernel(self, name: str, uuid: Any) -> Any:
        with _as_board_error(f"loading {self._bitstream}"):
            self._py_device = self._pyxrt.device(self.index)
            self._py_uuid = self._py_device.load_xclbin(self._bitstream)
        with _as_board_error(f"opening kernel {name}"):
            return self._pyxrt.kernel(self._py_device, self._py_uuid, name, self._pyxrt.kernel.exclusive)

    def close(self) -> None:
        # pyxrt releases what has no references: buffers and kernel first, then their device
        self._run = self._kernel = None
        self._buffers, self._py_buffers = {}, {}
        self._py_device = self._py_uuid = None
        super().close()

    def allocate(self, argument: int, size: int) -> int:
        with _as_board_error(f"allocating {size} bytes for argument {argument} of the kernel", BoardMemory):
            group = self._kernel.group_id(argument)
            made = self._pyxrt.bo(self._py_device, size, self._pyxrt.bo.normal, group)
            mapped: Bytes = np.frombuffer(made.map(), np.uint8)
        buffer, self._next = self._next, self._next + 1
        self._py_buffers[buffer], self._buffers[buffer] = made, mapped
        return buffer

    def free(self, buffer: int) -> None:
        del self._buffers[buffer], self._py_buffers[buffer]

    def _sync(self, what: str, buffer: int, direction: int, size: int, at: int) -> None:
        name = "XCL_BO_SYNC_BO_TO_DEVICE" if direction == TO_DEVICE else "XCL_BO_SYNC_BO_FROM_DEVICE"
        with _as_board_error(what):
            self._py_buffers[buffer].sync(getattr(self._pyxrt.xclBOSyncDirection, name), size, at)

    def start(self, buffers: Sequence[int]) -> None:
        with _as_board_error("starting the kernel"):
            if self._run is None:
                self._run = self._pyxrt.run(self._kernel)
            for argument, buffer in enumerate(buffers):
                self._run.set_arg(argument, self._py_buffers[buffer])
            self._run.start()

    def wait(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while True:
            with _as_board_error("asking for the state of the run"):
                state = int(self._run.state())
            if ended(state) or time.monotonic() >= end:
                return ended(state)
            time.sleep(POLL_S)

    def register(self, argument: int) -> int:
        """Read a register, as for every device. pyxrt's kernel is closed meanwhile: the C API opens the kernel
        exclusively."""
        self._run = self._kernel = None
        uuid = (ctypes.c_ubyte * 16)()
        self._xrt.must("asking what is loaded", "xrtDeviceGetXclbinUUID", self._device, uuid)
        kernel = CtypesXrt._open_kernel(self, self._name, uuid)
        self._kernel = kernel
        try:
            return super().register(argument)
        finally:
            self._kernel = None
            self._xrt.call("xrtKernelClose", kernel)
            self._kernel = self._open_kernel(self._name, uuid)


@contextmanager
def _as_board_error(action: str, kind: type[BoardError] = BoardError) -> Iterator[None]:
    """Raise a `BoardError` for the errors of pyxrt, which are RuntimeError, IndexError and MemoryError."""
    try:
        yield
    except (RuntimeError, IndexError, MemoryError) as e:
        raise kind(f"XRT: {action} failed: {e}") from e
