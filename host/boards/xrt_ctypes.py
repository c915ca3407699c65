"""XRT through ctypes: its C API in libxrt_coreutil, which every XRT installation has, also on embedded boards."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt

from ...base.errors import BoardError
from ...isa.packet import Words
from .device import BoardBusy, BoardLost, BoardMemory, BoardMismatch, Bytes, Device, DeviceFacts
from .profile import Profile

LIBRARY = "libxrt_coreutil.so.2"
INSTALL = "Debian's libxrt1, or AMD's XRT; on a board, the XRT of its image"

PLUGINS = {
    None: "libxrt_core.so.2",
    "noop": "libxrt_noop.so.2",
    "hw_emu": "libxrt_hwemu.so.2",
    "sw_emu": "libxrt_swemu.so.2",
}
"""The library that drives the device, by the value of XCL_EMULATION_MODE."""

TO_DEVICE, FROM_DEVICE = 0, 1
"""Values of xclBOSyncDirection in xrt.h."""

COMPLETED = 4
NOT_ENDED = (1, 2, 3, 7, 8)
STATES = {5: "error", 6: "abort", 9: "no response"}
"""Values of ert_cmd_state in ert.h: these failed. 8, one of `NOT_ENDED`, is what a wait returns that timed out."""

# Result and arguments of each function that is called, as xrt/xrt_device.h, xrt_bo.h, xrt_kernel.h and xrt_graph.h
# declare them. xrtRunSetArg takes a variable number of arguments; ours are pointers.
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "xrtDeviceOpen": (c_void_p, c_uint),
    "xrtDeviceClose": (c_int, c_void_p),
    "xrtDeviceLoadXclbinFile": (c_int, c_void_p, c_char_p),
    "xrtDeviceGetXclbinUUID": (c_int, c_void_p, c_void_p),
    "xrtPLKernelOpenExclusive": (c_void_p, c_void_p, c_void_p, c_char_p),
    "xrtKernelClose": (c_int, c_void_p),
    "xrtKernelArgGroupId": (c_int, c_void_p, c_int),
    "xrtKernelArgOffset": (c_uint32, c_void_p, c_int),
    "xrtKernelReadRegister": (c_int, c_void_p, c_uint32, ctypes.POINTER(c_uint32)),
    "xrtRunOpen": (c_void_p, c_void_p),
    "xrtRunSetArg": (c_int, c_void_p, c_int, c_void_p),
    "xrtRunStart": (c_int, c_void_p),
    "xrtRunWaitFor": (c_int, c_void_p, c_uint),
    "xrtRunClose": (c_int, c_void_p),
    "xrtBOAlloc": (c_void_p, c_void_p, c_size_t, c_uint64, c_uint32),
    "xrtBOFree": (c_int, c_void_p),
    "xrtBOMap": (c_void_p, c_void_p),
    "xrtBOSync": (c_int, c_void_p, c_int, c_size_t, c_size_t),
    "xrtGraphOpen": (c_void_p, c_void_p, c_void_p, c_char_p),
    "xrtGraphClose": (None, c_void_p),
    "xrtGraphReset": (c_int, c_void_p),
    "xrtGraphRun": (c_int, c_void_p, c_int),
    "xrtGraphWaitDone": (c_int, c_void_p, c_int),
    "xrtGraphUpdateRTP": (c_int, c_void_p, c_char_p, c_char_p, c_size_t),
}

_TYPES: dict[int, type[BoardError]] = {
    errno.EBUSY: BoardBusy,
    errno.EAGAIN: BoardBusy,
    errno.ENOMEM: BoardMemory,
    errno.ENODEV: BoardLost,
    errno.ENXIO: BoardLost,
    errno.EIO: BoardLost,
}


class XrtLibrary:
    """XRT's C API, by function name. path: of the library. Raises `BoardError` if it cannot be loaded, is too old, or
    does not find the library that drives the device."""

    def __init__(self, path: str = LIBRARY) -> None:
        _check_environment(path)
        try:
            self._library = ctypes.CDLL(path, use_errno=True)
        except OSError as e:
            raise BoardError(f"XRT cannot be loaded ({e}): install it ({INSTALL})") from None
        for name, (result, *arguments) in FUNCTIONS.items():
            try:
                function = getattr(self._library, name)
            except AttributeError:
                raise BoardError(f"{path} has no {name}; XRT 2.13 (2022.1) or newer is needed") from None
            function.restype, function.argtypes = result, arguments

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the function `name` of `FUNCTIONS` with these arguments, and return its result, also if it failed; errno
        is left for `failed`."""
        ctypes.set_errno(0)
        return getattr(self._library, name)(*arguments)

    def must(self, what: str, name: str, *arguments: Any) -> Any:
        """Call the function `name` of `FUNCTIONS` with these arguments; it returns a handle, or 0 for success, and so
        does this. Raises the `BoardError` that fits errno if it fails; `what` says what was tried."""
        result = self.call(name, *arguments)
        if result is None or (FUNCTIONS[name][0] is c_int and result != 0):
            raise failed(f"{what} ({name})", result)
        return result

    @property
    def version(self) -> str:
        """XRT's version, such as "2.13.466", from the name of the loaded file; "unknown" if the name has none."""
        try:
            maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return "unknown"
        found = re.search(r"libxrt_coreutil\.so\.(\d+\.\d+\.\d+)", maps)
        return found[1] if found else "unknown"


def failed(what: str, result: object = None) -> BoardError:
    """Return the error of the latest call, of the class that fits errno. what: what was tried. result: of the call; XRT
    reports errno, or returns its negative. Its own message goes to stderr."""
    code = ctypes.get_errno() or (-result if isinstance(result, int) and result < -1 else 0)
    reason = os.strerror(code) if code else "no reason given"
    return _TYPES.get(code, BoardError)(f"XRT: {what} failed: {reason}; its own message is on stderr")


def ended(state: int) -> bool:
    """Return whether a state of a run (ert_cmd_state of XRT) is the final one. Raises `BoardLost` if the run has
    failed."""
    if state in NOT_ENDED:
        return False
    if state != COMPLETED:
        raise BoardLost(f"XRT: the kernel ended in state {STATES.get(state, state)}; see dmesg on the board")
    return True


_TRY = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.xrtDeviceOpen.restype = ctypes.c_void_p
library.xrtDeviceOpen(0)
"""
PATIENCE_S = 20.0
"""Seconds that another process may take to open a device."""


def _check_environment(library: str) -> None:
    """Raise `BoardError` if XRT does not find the library that drives the device, because it ends the process then.

    Versions of XRT search in different places; all that are known look into XILINX_XRT/lib first, and on ARM into
    /usr/lib if that is not set (`module_loader.cpp` of XRT). If it is not there, a process of its own tries.
    """
    mode, root = os.environ.get("XCL_EMULATION_MODE"), os.environ.get("XILINX_XRT", "")
    if mode not in PLUGINS:
        known = ", ".join(m for m in PLUGINS if m)
        raise BoardError(f"XCL_EMULATION_MODE={mode} is unknown: XRT has {known}; unset it for a real board")
    on_arm = platform.machine() in ("aarch64", "armv7l")
    folder = root or ("/usr" if on_arm else "")
    if (folder and (Path(folder) / "lib" / PLUGINS[mode]).exists()) or not _ends_the_process(library):
        return
    if not root:
        raise BoardError(
            "XILINX_XRT is not set: export XILINX_XRT=/opt/xilinx/xrt, or another folder whose lib holds XRT's "
            "libraries, which it does not find by itself"
        )
    raise BoardError(
        f"XILINX_XRT={root}: it has no lib/{PLUGINS[mode]}; set it to the folder whose lib holds XRT's libraries"
    )


def _ends_the_process(library: str) -> bool:
    """Whether a process that opens a device with this library is ended by a signal. One that fails otherwise, or takes
    long, is left to the caller's own attempt, which reports it."""
    command = [sys.executable, "-I", "-S", "-c", _TRY, library]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode < 0


class CtypesXrt(Device):
    """A device behind XRT's C API, number `index` of XRT's devices. library: None loads XRT. Buffers are mapped:
    `write` and `read` copy memory and synchronise the device's view."""

    def __init__(self, index: int = 0, library: XrtLibrary | None = None) -> None:
        self.index = index
        self._xrt = library or XrtLibrary()
        self._device: Any = None
        self._kernel: Any = None
        self._graph: Any = None
        self._run: Any = None
        self._buffers: dict[int, Bytes] = {}

    def open(self, profile: Profile, bitstream: Path | None) -> DeviceFacts:
        if bitstream is None:
            raise BoardError(f"board {profile.name} needs its bitstream")
        xrt = self._xrt
        self._device = xrt.call("xrtDeviceOpen", self.index)
        if self._device is None:
            raise failed(f"opening device {self.index} (xrtDeviceOpen)")
        xrt.must(f"loading {bitstream}", "xrtDeviceLoadXclbinFile", self._device, os.fsencode(bitstream))
        uuid = (ctypes.c_ubyte * 16)()
        xrt.must("asking what is loaded", "xrtDeviceGetXclbinUUID", self._device, uuid)
        self._kernel = self._open_kernel(profile.kernel, uuid)
        self._graph = xrt.must(
            f"opening graph {profile.graph}", "xrtGraphOpen", self._device, uuid, profile.graph.encode()
        )
        known = {"runtime": f"XRT {xrt.version} through ctypes", "device": str(self.index)}
        return DeviceFacts(str(UUID(bytes=bytes(uuid))), known)

    def _open_kernel(self, name: str, uuid: Any) -> Any:
        """Open the kernel exclusively: only then may registers be read, and no other process can start the kernel."""
        what = f"opening kernel {name}"
        return self._xrt.must(what, "xrtPLKernelOpenExclusive", self._device, uuid, name.encode())

    def close(self) -> None:
        call = self._xrt.call
        if self._run is not None:
            call("xrtRunClose", self._run)
        if self._graph is not None:  # without a reset, which would stop tiles in mid-iteration
            call("xrtGraphClose", self._graph)
        for buffer in self._buffers:
            call("xrtBOFree", buffer)
        if self._kernel is not None:
            call("xrtKernelClose", self._kernel)
        if self._device is not None:
            call("xrtDeviceClose", self._device)
        self._run = self._graph = self._kernel = self._device = None
        self._buffers = {}

    def allocate(self, argument: int, size: int) -> int:
        group = self._xrt.call("xrtKernelArgGroupId", self._kernel, argument)
        if group < 0:
            raise BoardMismatch(f"XRT has no memory for argument {argument} of the kernel: the xclbin does not name it")
        what = f"allocating {size} bytes for argument {argument} of the kernel, in memory group {group}"
        buffer: int | None = self._xrt.call("xrtBOAlloc", self._device, size, 0, group)
        if buffer is None:
            raise failed(f"{what} (xrtBOAlloc)")
        address = self._xrt.call("xrtBOMap", buffer)
        if address is None:
            self._xrt.call("xrtBOFree", buffer)
            raise BoardMemory(f"XRT: {what}: the buffer cannot be mapped; give Linux more contiguous memory (cma=)")
        self._buffers[buffer] = np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address))
        return buffer

    def free(self, buffer: int) -> None:
        del self._buffers[buffer]
        self._xrt.must("freeing a buffer", "xrtBOFree", buffer)

    def write(self, buffer: int, at: int, data: npt.NDArray[Any]) -> None:
        raw = data.view(np.uint8).reshape(-1)
        self._buffers[buffer][at : at + len(raw)] = raw
        self._sync("writing a buffer", buffer, TO_DEVICE, len(raw), at)

    def read(self, buffer: int, at: int, into: npt.NDArray[Any]) -> int:
        raw = into.view(np.uint8).reshape(-1)
        self._sync("reading a buffer", buffer, FROM_DEVICE, len(raw), at)
        mapped = self._buffers[buffer][at : at + len(raw)]
        raw[: len(mapped)] = mapped
        return len(mapped)

    def _sync(self, what: str, buffer: int, direction: int, size: int, at: int) -> None:
        """Copy between the host's mapping of a buffer and the device's memory."""
        self._xrt.must(what, "xrtBOSync", buffer, direction, size, at)

    def reset_graph(self) -> None:
        self._xrt.must("resetting the graph", "xrtGraphReset", self._graph)

    def run_graph(self) -> None:
        self._xrt.must("running the graph", "xrtGraphRun", self._graph, 1)

    def update_parameter(self, port: str, words: Words) -> None:
        raw = words.astype("<u4").tobytes()
        self._xrt.must(f"setting {port}", "xrtGraphUpdateRTP", self._graph, port.encode(), raw, len(raw))

    def start(self, buffers: Sequence[int]) -> None:
        if self._run is None:
            self._run = self._xrt.must("preparing a run", "xrtRunOpen", self._kernel)
        for argument, buffer in enumerate(buffers):
            self._xrt.must(f"setting argument {argument}", "xrtRunSetArg", self._run, argument, buffer)
        self._xrt.must("starting the kernel", "xrtRunStart", self._run)

    def wait(self, seconds: float) -> bool:
        state = self._xrt.call("xrtRunWaitFor", self._run, max(1, round(1000 * seconds)))
        return ended(state)

    def wait_graph(self, seconds: float) -> bool:
        result = self._xrt.call("xrtGraphWaitDone", self._graph, max(1, round(1000 * seconds)))
        # too early: the header says -ETIME; versions differ in sign, and in whether they return it or set errno
        if errno.ETIME in (abs(result), abs(ctypes.get_errno())):
            return False
        if result != 0:
            raise failed("waiting for the graph (xrtGraphWaitDone)", result)
        return True

    def register(self, argument: int) -> int:
        offset = self._xrt.call("xrtKernelArgOffset", self._kernel, argument)
        halves = []
        for at in (offset, offset + 4):
            half = c_uint32()
            what = f"reading the register of argument {argument} of the kernel"
            self._xrt.must(what, "xrtKernelReadRegister", self._kernel, at, ctypes.byref(half))
            halves.append(half.value)
        return halves[0] | halves[1] << 32
