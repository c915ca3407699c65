"""A board behind the `Device` interface: XRT, PYNQ, or a machine in this process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ...base.errors import BoardError
from ...hw.sim.machine import Run
from ...isa.packet import Words
from ...isa.program import Array, Buffer, Program, Role, only_weights
from .board import Board
from .device import BoardMemory
from .held_state import HeldState
from .match import match_program
from .profile import INSTRUCTIONS, Profile
from .session import LOADING_S, DeviceBuffer, NoRoom, Session
from .tiles import parameters

XCLBIN_VARIABLE = "RSN_XCLBIN"
"""Environment variable with the path of the bitstream."""

CHUNK = 16 << 20
"""Bytes of zeros that are written at a time."""

LARGE = 512 << 20
"""Bytes of a run's tensors from which on copying them may take as long as loading weights does: they may come from a
mapped file, and an SD card of class 10 reads only 10 MB/s for sure."""


class XrtBoard(Board):
    """Runs a program on a device.

    Boards of one session keep their programs resident beside each other; programs with the same weights share them.
    After an error everything is released, and the next run starts from the beginning: it takes the device, loads the
    bitstream, checks it, and uploads the program.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._program: Program | None = None
        self._weights: Mapping[str, Array] = {}
        self._parameters: dict[str, Words] = {}
        self._held: dict[str, DeviceBuffer] = {}
        self._age = -1
        self._image = b""

    def load(self, program: Program, weights: Mapping[str, Array]) -> None:
        match_program(program, self._session.profile)
        self._program, self._weights = program, weights
        self._state = HeldState(program)
        self._parameters = parameters(program, self._session.profile.graph)
        with self._session.turn():
            self._session.bounded(lambda: self._place(program), LOADING_S)

    def run(
        self, words: Words, inputs: Mapping[str, Array], *, progress: Callable[[float], None] | None = None
    ) -> tuple[dict[str, Array], Run]:
        program, session = self._program, self._session
        if program is None:
            raise BoardError("no program is loaded")
        with session.turn():
            if self._age != session.age:
                session.bounded(lambda: self._place(program), LOADING_S)
                self._state.lose()
            given, asked = sum(flat.nbytes for flat in inputs.values()), program.with_role(Role.OUTPUT)
            with self._state.during(inputs):
                session.bounded(lambda: self._hand_over(program, words, inputs), _copying(given))
                took = session.run(self._held, self._parameters, session.profile.timeout_s)
            read = sum(4 * b.size for b in asked)
            outputs = session.bounded(lambda: {b.name: self._read(program, b) for b in asked}, _copying(read))
            facts = {
                **session.facts,
                "parameters_written": str(took.written),
                "parameters_s": f"{took.parameters_s:.6g}",
            }
        return outputs, Run(took.kernel_s, {"instructions": 4 * len(words)}, {}, {}, clock=session.clock, facts=facts)

    def close(self) -> None:
        self._program, self._weights = None, {}
        self._session.leave(self._held.values(), self._age)
        self._forget()

    def _forget(self) -> None:
        self._held, self._image, self._age = {}, b"", -1

    def _hand_over(self, program: Program, words: Words, inputs: Mapping[str, Array]) -> None:
        """Write what a run needs in memory: the inputs, and the image if it has changed."""
        for name, flat in inputs.items():
            self._write(program, program.buffer(name), flat)
        image = words.tobytes()
        if image != self._image:
            self._image = b""
            self._session.device.write(self._held[INSTRUCTIONS].handle, 0, np.ascontiguousarray(words))
            self._image = image

    # -- memory of the device

    def _place(self, program: Program) -> None:
        """Allocate the program's buffers and upload its weights. Weights that the device already holds are recognised
        by their checksums and shared; other memory is set to 0."""
        banks = {bank: program.in_bank(bank) for bank in program.overlay.banks}
        shared = {bank: held for bank, buffers in banks.items() if (held := self._shared(buffers)) is not None}
        missing = [bank for bank in banks if bank not in shared]
        self._session.release(self._held.values(), self._age)  # only now: a shared bank may be one of them
        self._forget()
        self._age, self._held = self._session.age, shared
        try:
            self._held[INSTRUCTIONS] = self._session.allocate(INSTRUCTIONS, program.image.nbytes)
            for bank in missing:
                self._held[bank] = self._session.allocate(bank, 4 * program.bank_size(bank))
        except BoardMemory as e:
            others = len(self._session.held) - len(self._held)
            self._session.release(self._held.values(), self._age)
            self._forget()
            if others:
                raise NoRoom(f"{e}, beside {others} buffers of other programs") from e
            raise
        for bank in missing:
            self._fill(program, bank, banks[bank])

    def _fill(self, program: Program, bank: str, buffers: tuple[Buffer, ...]) -> None:
        checksum = hashlib.blake2b()
        places = (program.place(b) for b in buffers if b.role is not Role.WEIGHT)
        for begin, end in dict.fromkeys((4 * place.start, 4 * place.stop) for place in places):
            self._clear(bank, begin, end)
        for b in buffers:  # only now: buffers may overlap, and weights are never 0 then (as in `MemoryBanks`)
            if b.role is Role.WEIGHT:
                weight = np.ascontiguousarray(self._weights[b.name], np.float32)
                self._write(program, b, weight)
                checksum.update(weight.data)
        if only_weights(buffers):
            self._held[bank].contents = buffers, checksum.digest()

    def _shared(self, buffers: tuple[Buffer, ...]) -> DeviceBuffer | None:
        """Return a bank of the device that already holds these weights, counted as used by this board too; None if
        there is none."""
        candidates = [h for h in self._session.held if h.contents is not None and h.contents[0] == buffers]
        if not candidates:  # do not read all weights for a checksum that nothing is compared with
            return None
        checksum = hashlib.blake2b()
        for b in buffers:
            checksum.update(np.ascontiguousarray(self._weights[b.name], np.float32).data)
        for held in candidates:
            if held.contents == (buffers, checksum.digest()):
                held.users += 1
                return held
        return None

    def _write(self, program: Program, buffer: Buffer, flat: Array) -> None:
        at = 4 * program.place(buffer).start
        self._session.device.write(self._held[buffer.bank].handle, at, np.ascontiguousarray(flat, np.float32))

    def _clear(self, bank: str, begin: int, end: int) -> None:
        """Write zeros to bytes of a bank."""
        zeros = np.zeros(min(end - begin, CHUNK), np.uint8)
        for at in range(begin, end, CHUNK):
            self._session.device.write(self._held[bank].handle, at, zeros[: end - at])

    def _read(self, program: Program, buffer: Buffer) -> Array:
        at = 4 * program.place(buffer).start
        flat = np.empty(buffer.size, np.float32)
        came = self._session.device.read(self._held[buffer.bank].handle, at, flat)
        if came != flat.nbytes:
            raise BoardError(f"{buffer.name}: the device returned {came} of {flat.nbytes} bytes; run it again")
        return flat


def _copying(size: int) -> float | None:
    """Return the limit in seconds for copying so many bytes; None: the limit of every driver call."""
    return LOADING_S if size >= LARGE else None


def find_xclbin(given: str | os.PathLike[str] | None, profile: Profile) -> Path:
    """Return the path of the bitstream: the one given, else that of the environment (`RSN_XCLBIN`), else that of the
    profile. Whether it exists is not looked at. Raises `BoardError` if none is named."""
    named = given or os.environ.get(XCLBIN_VARIABLE) or profile.xclbin
    if not named:
        raise BoardError(
            f"board {profile.name} needs its bitstream: --xclbin FILE, Runner(xclbin=...) or {XCLBIN_VARIABLE}"
        )
    return Path(named)
