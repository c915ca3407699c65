"""The messages between the two ends of `ssh://`, over a pair of pipes: JSON, and raw bytes behind it.

A frame is the length of its JSON (4 bytes, little-endian), the JSON, and the blobs, whose lengths the JSON lists.
"""

from __future__ import annotations

import json
import os
import select
import struct
import threading
from collections.abc import Callable
from typing import Any

from ...base.errors import BoardError, ContainerError, ImageError, ProgramError, RsnError, TensorError
from .device import BoardBusy, BoardLost, BoardMemory, BoardMismatch, BoardTimeout

Message = dict[str, Any]

GREETING = b"\0rsn-stdio 1\n"
"""Sent by the board's end before its first frame. Whatever comes before the greeting was printed by a login script."""

ERRORS: dict[str, type[RsnError]] = {
    e.__name__: e
    for e in (
        *(BoardBusy, BoardLost, BoardMemory, BoardMismatch, BoardTimeout, BoardError),
        *(ContainerError, ImageError, ProgramError, TensorError, RsnError),
    )
}
"""Errors that are sent over the connection by their class name; any other error is sent as its nearest base class
here."""

BEAT_S = 5.0
"""Seconds between the signs of life of an end that has nothing else to send."""

SILENCE_S = 60.0
"""Seconds without any byte after which the other end counts as gone."""

MAX_JSON = 64 << 20
MAX_NOISE = 64 << 10
CHUNK = 1 << 20

_LENGTH = struct.Struct("<I")


class PipeClosed(Exception):
    """The other end has closed its pipe, or sent bytes that are not a frame."""


class Silent(Exception):
    """The other end has not sent, or not read, a byte in time."""


class Frames:
    """Sends and receives frames over two file descriptors, `read` and `write`, which it makes non-blocking. A frame is
    a message (JSON) and some blobs of bytes. silence_s: seconds without a byte after which `Silent` is raised. Any
    thread may send; one thread at a time may receive."""

    def __init__(self, read: int, write: int, silence_s: float = SILENCE_S) -> None:
        self._read, self._write, self.silence_s = read, write, silence_s
        self._sending = threading.Lock()
        for file in (read, write):
            os.set_blocking(file, False)

    def send(self, message: Message, *blobs: bytes | memoryview) -> None:
        """Send a message, which JSON must be able to hold, and its blobs. Raises `PipeClosed` if the other end is gone,
        `Silent` if it does not read."""
        raw = [memoryview(b).cast("B") for b in blobs]
        text = json.dumps(message | {"blobs": [len(r) for r in raw]}).encode()
        with self._sending:
            self._put(memoryview(_LENGTH.pack(len(text)) + text))
            for r in raw:
                self._put(r)

    def receive(self, most: int) -> tuple[Message, list[bytearray]]:
        """Return the next frame: its message and blobs, which may have `most` bytes in all. Raises `PipeClosed` if the
        other end is gone or sends something else, `Silent` if it sends nothing."""
        (length,) = _LENGTH.unpack(self._get(4))
        if length > MAX_JSON:
            raise PipeClosed
        try:
            message = json.loads(self._get(length))
        except (ValueError, RecursionError):
            raise PipeClosed from None
        sizes = message.pop("blobs", None) if isinstance(message, dict) else None
        if not isinstance(sizes, list) or not all(type(n) is int and n >= 0 for n in sizes) or sum(sizes) > most:
            raise PipeClosed
        return message, [self._get(n) for n in sizes]

    def skip_to_greeting(self) -> bytes:
        """Read up to the greeting, and return what came before it. Raises `PipeClosed`, also where more comes before it
        than a login script prints, or `Silent`."""
        seen = bytearray()
        while not seen.endswith(GREETING):
            if len(seen) > MAX_NOISE:
                raise PipeClosed(bytes(seen))
            try:
                seen += self._get(1)
            except PipeClosed:
                raise PipeClosed(bytes(seen)) from None
        return bytes(seen[: -len(GREETING)])

    def greet(self) -> None:
        """Send the greeting. Raises `PipeClosed` or `Silent`."""
        with self._sending:
            self._put(memoryview(GREETING))

    def _put(self, data: memoryview) -> None:
        while data:
            self._wait(self._write, select.POLLOUT)
            try:
                data = data[os.write(self._write, data[:CHUNK]) :]
            except BlockingIOError:
                continue
            except OSError:
                raise PipeClosed from None

    def _get(self, size: int) -> bytearray:
        """Read `size` bytes. Memory grows as bytes arrive, so that a wrong size cannot exhaust it."""
        out = bytearray()
        while len(out) < size:
            self._wait(self._read, select.POLLIN)
            try:
                piece = os.read(self._read, min(size - len(out), CHUNK))
            except BlockingIOError:
                continue
            except OSError:
                raise PipeClosed from None
            if not piece:
                raise PipeClosed
            out += piece
        return out

    def _wait(self, file: int, event: int) -> None:
        poll = select.poll()  # not select, which refuses descriptors from 1024 on
        poll.register(file, event)
        if not poll.poll(1000 * self.silence_s):
            raise Silent


class Heartbeat:
    """Calls a function every `BEAT_S` seconds in a thread, until the function raises `PipeClosed` or `Silent`, or
    `stop` is called. call: the function. A `with` block starts and stops it."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="rsn ssh", daemon=True)

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_S):
            try:
                self._call()
            except (PipeClosed, Silent):
                return  # the thread that waits for an answer gets the same error

    def start(self) -> None:
        """Begin to call the function. Raises `RuntimeError` if it was started before."""
        self._thread.start()

    def stop(self, patience_s: float | None = None) -> bool:
        """Call the function no more. Returns False if the thread is still running after `patience_s` seconds, because a
        call blocks; None waits for it."""
        self._stop.set()
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
