"""XRT through its Python binding, pyxrt, for buffers, kernel and runs. It knows neither graphs nor registers: those go
through the C API in any case, on a handle of their own to the same device."""

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
import numpy.typing as npt

from ...base.errors import BoardError
from .device import BoardMemory, Bytes, Facts
from .profile import Profile
from .xrt_ctypes import CtypesXrt, Library, ended

POLL_S = 0.0005
"""pyxrt keeps the interpreter while it waits: other threads would stand still. So its runs are asked how they are."""


class Pyxrt(CtypesXrt):
    def __init__(self, index: int = 0, library: Library | None = None) -> None:
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

    def open(self, profile: Profile, bitstream: Path | None) -> Facts:
        self._bitstream, self._name = str(bitstream), profile.kernel
        facts = super().open(profile, bitstream)
        return replace(facts, known={**facts.known, "runtime": f"XRT {self._xrt.version} through pyxrt"})

    def _open_kernel(self, name: str, uuid: Any) -> Any:
        with _told(f"loading {self._bitstream}"):
            self._py_device = self._pyxrt.device(self.index)
            self._py_uuid = self._py_device.load_xclbin(self._bitstream)
        with _told(f"opening kernel {name}"):
            return self._pyxrt.kernel(self._py_device, self._py_uuid, name, self._pyxrt.kernel.exclusive)

    def close(self) -> None:
        # what is held by nobody is given back; buffers and kernel before their device
        self._run = self._kernel = None
        self._buffers, self._py_buffers = {}, {}
        self._py_device = self._py_uuid = None
        super().close()

    def allocate(self, argument: int, size: int) -> int:
        with _told(f"allocating {size} bytes for argument {argument} of the kernel", BoardMemory):
            group = self._kernel.group_id(argument)
            made = self._pyxrt.bo(self._py_device, size, self._pyxrt.bo.normal, group)
            mapped: Bytes = np.frombuffer(made.map(), np.uint8)
        buffer, self._next = self._next, self._next + 1
        self._py_buffers[buffer], self._buffers[buffer] = made, mapped
        return buffer

    def free(self, buffer: int) -> None:
        del self._buffers[buffer], self._py_buffers[buffer]

    def write(self, buffer: int, at: int, data: npt.NDArray[Any]) -> None:
        raw = data.view(np.uint8).reshape(-1)
        self._buffers[buffer][at : at + len(raw)] = raw
        with _told("writing a buffer"):
            to_device = self._pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
            self._py_buffers[buffer].sync(to_device, len(raw), at)

    def read(self, buffer: int, at: int, into: npt.NDArray[Any]) -> int:
        raw = into.view(np.uint8).reshape(-1)
        with _told("reading a buffer"):
            from_device = self._pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE
            self._py_buffers[buffer].sync(from_device, len(raw), at)
        there = self._buffers[buffer][at : at + len(raw)]
        raw[: len(there)] = there
        return len(there)

    def start(self, buffers: Sequence[int]) -> None:
        with _told("starting the kernel"):
            if self._run is None:
                self._run = self._pyxrt.run(self._kernel)
            for argument, buffer in enumerate(buffers):
                self._run.set_arg(argument, self._py_buffers[buffer])
            self._run.start()

    def wait(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while True:
            with _told("asking for the state of the run"):
                state = int(self._run.state())
            if ended(state) or time.monotonic() >= end:
                return ended(state)
            time.sleep(POLL_S)

    def register(self, argument: int) -> int:
        """The kernel is opened for the C API meanwhile: both at once would not be exclusive."""
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
def _told(what: str, kind: type[BoardError] = BoardError) -> Iterator[None]:
    """pyxrt raises RuntimeError and IndexError."""
    try:
        yield
    except (RuntimeError, IndexError, MemoryError) as e:
        raise kind(f"XRT: {what} failed: {e}") from e
