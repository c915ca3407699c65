"""PYNQ 4.0 on a VCK190 (`pynq.pl_server.VersalDevice`) as a device: loads a `.pdi`, allocates memory, and reads and
writes the kernel's registers. PYNQ cannot run an AI Engine graph, so every program is refused, after the bitstream has
been checked.

The design's description (`.hwh`, or an `.xclbin`) lies beside the `.pdi`, under the same name.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ...base.errors import BoardError
from ...isa.packet import Words
from ...isa.versal.board import ARGUMENTS, FINGERPRINT
from .device import BoardLost, BoardMemory, BoardMismatch, Device, DeviceFacts
from .profile import Profile

CONTROL, START, DONE, IDLE, CONTINUE = 0x00, 1, 2, 4, 16
"""Address of a kernel's control register on AXI-Lite, and its bits."""

NO_GRAPH = (
    "PYNQ has no way to run an AI Engine graph or to set its parameters, which every program here needs: on the same "
    "board, --board vck190 (without @pynq) drives XRT itself, with an .xclbin"
)


class PynqDevice(Device):
    """A device behind PYNQ, number `index` of its Versal devices. It checks the bitstream, and refuses to run a
    program. Raises `BoardError` where PYNQ is missing or too old."""

    def __init__(self, index: int = 0) -> None:
        try:
            self._pynq: Any = importlib.import_module("pynq")
            server = importlib.import_module("pynq.pl_server")
        except ImportError as e:
            raise BoardError(
                f"PYNQ cannot be imported ({e}): it comes with the board's image, in an environment of its own "
                "(docs/boards-reference.md, PYNQ)"
            ) from None
        if not hasattr(server, "VersalDevice"):
            if not os.environ.get("XILINX_XRT"):  # PYNQ looks at it once, when it is imported
                raise BoardError(
                    "XILINX_XRT is not set, without which PYNQ has no devices: export XILINX_XRT=/usr, or another "
                    "folder whose lib holds XRT's libraries, and start again"
                )
            version = getattr(self._pynq, "__version__", "of unknown version")
            raise BoardError(f"PYNQ {version} has no Versal devices: 4.0 or newer is needed")
        self._versal: Any = server.VersalDevice
        self._index = index
        self._overlay: Any = None
        self._kernel: Any = None
        self._offsets: list[int] = []
        self._buffers: dict[int, Any] = {}
        self._next = 1

    def open(self, profile: Profile, bitstream: Path | None) -> DeviceFacts:
        pdi = bitstream
        if pdi is None or pdi.suffix != ".pdi":
            raise BoardError(f"PYNQ loads a .pdi, not {pdi}")
        if not profile.fingerprint:
            raise BoardMismatch(
                f"{pdi}: the bitstream of {profile.name} has no fingerprint to check; PYNQ is used with vck190 alone"
            )
        devices = [d for d in self._pynq.Device.devices if isinstance(d, self._versal)]
        if len(devices) <= self._index:
            raise BoardLost(f"PYNQ sees {len(devices)} Versal devices, none with index {self._index}")
        with _as_board_error(f"loading {pdi}"):
            self._overlay = self._pynq.Overlay(str(pdi), device=devices[self._index])
        name = next((n for n in self._overlay.ip_dict if n.startswith(profile.kernel)), None)
        if name is None:
            found = ", ".join(self._overlay.ip_dict) or "none"
            raise BoardMismatch(f"{pdi}: no kernel {profile.kernel}; it has {found}")
        self._kernel = getattr(self._overlay, name)
        registers = self._overlay.ip_dict[name]["registers"]
        names = [*(a.name for a in ARGUMENTS), FINGERPRINT]
        missing = [n for n in names if n not in registers and f"{n}_1" not in registers]
        if missing:
            raise BoardMismatch(f"{pdi}: kernel {profile.kernel} has no register {missing[0]}")
        # a 64-bit argument is two registers, the lower half first
        self._offsets = [int((registers.get(f"{n}_1") or registers[n])["address_offset"]) for n in names]
        return DeviceFacts(known={"runtime": f"PYNQ {self._pynq.__version__}", "device": str(self._index)})

    def close(self) -> None:
        for buffer in self._buffers.values():
            with suppress(Exception):
                buffer.freebuffer()
        if self._overlay is not None:
            with suppress(Exception):
                self._overlay.free()
        self._overlay = self._kernel = None
        self._buffers = {}

    def allocate(self, argument: int, size: int) -> int:
        bank = ARGUMENTS[argument].memory
        memories = {n.upper(): m for n, m in self._overlay.mem_dict.items()}
        name = next((n for n in memories if bank in n and ("LPDDR" in n) == ("LPDDR" in bank)), None)
        if name is None:
            raise BoardMismatch(f"the design has no memory {bank}; it has {', '.join(memories) or 'none'}")
        try:
            memory = self._overlay.device.get_memory(memories[name])
            self._buffers[self._next] = memory.allocate((size,), np.uint8)
        except (RuntimeError, MemoryError) as e:
            raise BoardMemory(f"PYNQ: {size} bytes of {name} cannot be allocated: {e}") from e
        self._next += 1
        return self._next - 1

    def free(self, buffer: int) -> None:
        self._buffers.pop(buffer).freebuffer()

    def write(self, buffer: int, at: int, data: npt.NDArray[Any]) -> None:
        raw = data.view(np.uint8).reshape(-1)
        part = self._buffers[buffer][at : at + len(raw)]
        part[:] = raw
        with _as_board_error("writing a buffer"):
            part.flush()

    def read(self, buffer: int, at: int, into: npt.NDArray[Any]) -> int:
        raw = into.view(np.uint8).reshape(-1)
        part = self._buffers[buffer][at : at + len(raw)]
        with _as_board_error("reading a buffer"):
            part.invalidate()
        raw[: len(part)] = part
        return len(part)

    def reset_graph(self) -> NoReturn:
        raise BoardError(NO_GRAPH)

    def run_graph(self) -> NoReturn:
        raise BoardError(NO_GRAPH)

    def update_parameter(self, port: str, words: Words) -> NoReturn:
        raise BoardError(f"{port}: {NO_GRAPH}")

    def wait_graph(self, seconds: float) -> NoReturn:
        raise BoardError(NO_GRAPH)

    def start(self, buffers: Sequence[int]) -> None:
        for offset, buffer in zip(self._offsets, buffers, strict=False):
            address = int(self._buffers[buffer].device_address)
            self._kernel.write(offset, address & 0xFFFF_FFFF)
            self._kernel.write(offset + 4, address >> 32)
        self._kernel.write(CONTROL, START)

    def wait(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not int(self._kernel.read(CONTROL)) & (DONE | IDLE):
            if time.monotonic() >= end:
                return False
            time.sleep(0.0005)
        self._kernel.write(CONTROL, CONTINUE)
        return True

    def register(self, argument: int) -> int:
        offset = self._offsets[argument]
        return int(self._kernel.read(offset)) | int(self._kernel.read(offset + 4)) << 32


@contextmanager
def _as_board_error(action: str) -> Iterator[None]:
    """Raise `BoardError` for any error of PYNQ, which raises RuntimeError, OSError and more."""
    try:
        yield
    except Exception as e:
        raise BoardError(f"PYNQ: {action} failed: {e}") from e
