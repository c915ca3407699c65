"""The PYNQ device against a small likeness of PYNQ 4.0's API: which calls are made, in which order, and what is said
where PYNQ cannot go on. Whether PYNQ does what its documentation says only a board can show."""

from __future__ import annotations

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rsn.base.errors import BoardError
from rsn.host.boards.device import BoardLost, BoardMemory, BoardMismatch, BoardTimeout
from rsn.host.boards.profile import VCK190
from rsn.host.boards.pynq import PynqDevice
from rsn.host.boards.session import Session
from rsn.host.boards.xrt import XrtBoard
from rsn.isa.overlays import XNN, XNN_BASE

from .programs import attention

OFFSETS = {"lpddr0": 0x10, "lpddr1": 0x1C, "ddr0": 0x28, "ddr1": 0x34, "instructions": 0x40, "fingerprint": 0x4C}


class Buffer(np.ndarray):
    """Memory that the device sees when it is flushed."""

    device_address = 0

    def __array_finalize__(self, other: Any) -> None:
        self.log: list[str] = getattr(other, "log", [])

    def flush(self) -> None:
        self.log.append(f"flush {len(self)}")

    def invalidate(self) -> None:
        self.log.append(f"invalidate {len(self)}")

    def freebuffer(self) -> None:
        self.log.append("free")


class Likeness:
    """Of the module, with one Versal device that holds our kernel."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.registers: dict[int, int] = {}
        self.fingerprint = XNN.fingerprint
        self.ends = True
        self.room = 1 << 30
        self.memories = {"DDR_CH1": "ddr", "LPDDR4_CH2": "lpddr"}
        self.kernels = ["dma_hls_1"]
        likeness = self

        class VersalDevice:
            def get_memory(self, description: str) -> Any:
                return types.SimpleNamespace(allocate=lambda shape, dtype: likeness.allocate(description, shape[0]))

        class Overlay:
            def __init__(self, path: str, device: Any) -> None:
                likeness.log.append(f"load {Path(path).name}")
                self.device = device
                names = [n if n == "fingerprint" else f"{n}_1" for n in OFFSETS]
                registers = {n: {"address_offset": o} for n, o in zip(names, OFFSETS.values(), strict=True)}
                self.ip_dict = {kernel: {"registers": registers} for kernel in likeness.kernels}
                self.mem_dict = likeness.memories
                self.dma_hls_1 = types.SimpleNamespace(read=likeness.read, write=likeness.write)

            def free(self) -> None:
                likeness.log.append("unload")

        self.devices = [VersalDevice()]
        server = types.SimpleNamespace(VersalDevice=VersalDevice)
        device = types.SimpleNamespace(devices=self.devices)
        self.module = types.SimpleNamespace(Device=device, Overlay=Overlay, __version__="4.0.0", pl_server=server)

    def allocate(self, memory: str, size: int) -> Buffer:
        if size > self.room:
            raise RuntimeError("Allocate failed: 4294967295")
        buffer = np.full(size, 0xFF, np.uint8).view(Buffer)
        buffer.log = self.log
        buffer.device_address = 0x5_0000_0000 + (0x1000 if memory == "ddr" else 0x2000)
        self.log.append(f"allocate {memory}")
        return buffer

    def read(self, offset: int) -> int:
        if offset == 0:
            return 6 if self.ends else 1
        return self.registers.get(offset, 0)

    def write(self, offset: int, value: int) -> None:
        self.registers[offset] = value
        if (offset, value) == (0, 1):
            bits = int(self.fingerprint, 16)
            self.registers |= {0x4C: bits & 0xFFFF_FFFF, 0x50: bits >> 32}
            self.log.append("start")


@pytest.fixture
def likeness(monkeypatch: pytest.MonkeyPatch) -> Likeness:
    made = Likeness()
    monkeypatch.setitem(sys.modules, "pynq", made.module)
    monkeypatch.setitem(sys.modules, "pynq.pl_server", made.module.pl_server)
    return made


@pytest.fixture
def pdi(tmp_path: Path) -> Path:
    (tmp_path / "rsn.pdi").write_bytes(b"")
    return tmp_path / "rsn.pdi"


def load(pdi: Path) -> BoardError:
    """The board's refusal: there is always one."""
    board = XrtBoard(Session(dataclasses.replace(VCK190, timeout_s=0.2), PynqDevice(), bitstream=pdi))
    with pytest.raises(BoardError) as caught:
        board.load(attention().program, attention().weights)
    return caught.value


def test_without_pynq(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynq", None)
    with pytest.raises(BoardError, match=r"PYNQ cannot be imported .*board's image"):
        PynqDevice()


def test_without_versal_devices(likeness: Likeness, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYNQ 4.0 has them where XILINX_XRT is set when it is imported; before 4.0 there are none."""
    del likeness.module.pl_server.VersalDevice
    likeness.module.__version__ = "3.1.2"
    monkeypatch.delenv("XILINX_XRT", raising=False)
    with pytest.raises(BoardError, match=r"^XILINX_XRT is not set, without which PYNQ has no devices: export"):
        PynqDevice()
    monkeypatch.setenv("XILINX_XRT", "/usr")
    with pytest.raises(BoardError, match=r"^PYNQ 3\.1\.2 has no Versal devices: 4\.0 or newer is needed$"):
        PynqDevice()


def test_it_matches_and_then_says_what_it_cannot_do(likeness: Likeness, pdi: Path) -> None:
    """The probe has run, with the image flushed and the addresses in the registers; everything is given back."""
    error = load(pdi)
    assert "PYNQ has no way to run an AI Engine graph" in str(error)
    assert "--board vck190 (without @pynq) drives XRT itself" in str(error)
    log = likeness.log
    assert log[0] == "load rsn.pdi"
    assert sorted(log[1:4]) == ["allocate ddr", "allocate lpddr", "allocate lpddr"]
    assert log[4:] == ["flush 36", "start", "free", "free", "free", "unload"]
    assert likeness.registers[0x10] == likeness.registers[0x40] == 0x2000
    assert (likeness.registers[0x28], likeness.registers[0x2C]) == (0x1000, 5)


def test_the_wrong_bitstream(likeness: Likeness, pdi: Path) -> None:
    likeness.fingerprint = XNN_BASE.fingerprint
    error = load(pdi)
    assert isinstance(error, BoardMismatch)
    assert XNN_BASE.fingerprint in str(error)


def test_what_may_be_wrong_with_the_board(likeness: Likeness, pdi: Path) -> None:
    likeness.kernels = ["axi_gpio"]
    assert "no kernel dma_hls; it has axi_gpio" in str(load(pdi))
    likeness.kernels, likeness.memories = ["dma_hls_1"], {"DDR_CH1": "ddr"}
    assert "no memory LPDDR; it has DDR_CH1" in str(load(pdi))
    likeness.memories, likeness.room = {"LPDDR4": "lpddr", "PSDDR": "ddr"}, 100
    assert isinstance(error := load(pdi), BoardMemory), error
    likeness.room, likeness.ends = 1 << 30, False
    began = load(pdi)
    assert isinstance(began, BoardTimeout)
    likeness.devices.clear()
    assert isinstance(error := load(pdi), BoardLost), error
    with pytest.raises(BoardError, match=r"PYNQ loads a \.pdi, not .*rsn\.xclbin"):
        PynqDevice().open(VCK190, pdi.with_suffix(".xclbin"))


def test_buffers(likeness: Likeness, pdi: Path) -> None:
    device = PynqDevice()
    device.open(VCK190, pdi)
    buffer = device.allocate(2, 4096)
    flat, back = np.arange(10, dtype=np.float32), np.zeros(10, np.float32)
    device.write(buffer, 64, flat)
    assert device.read(buffer, 64, back) == 40
    np.testing.assert_array_equal(back, flat)
    assert device.read(buffer, 4092, back) == 4
    assert likeness.log[-3:] == ["flush 40", "invalidate 40", "invalidate 4"]
    device.free(buffer)
    device.close()
    device.close()
    assert likeness.log[-2:] == ["free", "unload"]
