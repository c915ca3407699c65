"""The board's end of `ssh://`: `rsn serve-stdio`, which runs for as long as the connection that started it."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...assembler import container
from ...base.errors import BoardError, RsnError, TensorError
from ...base.version import __version__
from ...isa.packet import Words
from ...isa.program import Array, Program, Role
from ...isa.verify import require
from . import open_board
from .board import Board
from .device import BoardMemory
from .ssh_cache import WeightCache, is_checksum
from .ssh_frames import ERRORS, SILENCE_S, Frames, Heartbeat, Message, PipeClosed, Silent

MAX = 1 << 36
"""Bytes of a frame's blobs; a limit far above any weight."""

GRACE_S = 10.0
"""Seconds that releasing a board may take after the connection has ended; then the process exits without it."""

PROGRESS_S = 0.5
"""Seconds between two progress messages."""

Examine = Callable[[str], list[dict[str, Any]]]
"""Returns what it found for the board of a name: values for JSON."""


def serve(read: int, write: int, silence_s: float = SILENCE_S, examine: Examine | None = None) -> None:
    """Run programs on this computer's boards for the process at the other end of two pipes, until it closes them or has
    been silent for too long. Errors of a board go to the other end.

    read, write: file descriptors. silence_s: seconds without a byte after which the other end counts as gone. examine:
    looks at what the board of a name takes, for `rsn doctor`. Takes over SIGINT, SIGTERM and SIGHUP, each of which
    releases the board.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    frames = Frames(read, write, silence_s)
    session = _Session(frames, examine)
    try:
        frames.greet()
        frames.send({"rsn": __version__})
        session.listen()
        session.work()
    except (KeyboardInterrupt, PipeClosed, Silent):
        pass
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end is being dealt with
        session.close()


class _Session:
    """One connection. A thread reads from it, so that its end is noticed while a board runs."""

    def __init__(self, frames: Frames, examine: Examine | None) -> None:
        self._frames, self._examine = frames, examine
        # bounded: the other end sends weights faster than a board's storage takes them
        self._inbox: queue.Queue[tuple[Message, list[bytearray]]] = queue.Queue(1)
        self._board: Board | None = None
        self._program: Program | None = None

    def listen(self) -> None:
        threading.Thread(target=self._listen, name="rsn ssh reader", daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(Exception):  # whatever ends this thread ends the session
            while True:
                frame = self._frames.receive(MAX)
                if frame[0]:  # an empty message is a sign of life
                    self._inbox.put(frame)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # wakes it wherever it waits
        time.sleep(GRACE_S)
        os._exit(BoardError.exit_code)

    def work(self) -> None:
        while True:
            frame = self._inbox.get()
            with Heartbeat(lambda: self._frames.send({})):
                try:
                    self._answer(*frame)
                except RsnError as e:
                    self._fail(next(c.__name__ for c in type(e).__mro__ if c.__name__ in ERRORS), str(e))
                except MemoryError:
                    self._fail(BoardMemory.__name__, "no memory on the board's own computer")
                except (PipeClosed, Silent):
                    raise
                except Exception as e:
                    self._fail(BoardError.__name__, f"rsn failed on the board's side: {type(e).__name__}: {e}")

    def _fail(self, error: str, text: str) -> None:
        self._frames.send({"error": error, "text": text})

    def _answer(self, message: Message, blobs: list[bytearray]) -> None:
        match message:
            case {"load": str(board), "xclbin": str() | None as xclbin, "weights": dict(weights)} if len(blobs) == 1:
                self._load(board, xclbin, container.loads(bytes(blobs[0]), "the program"), weights)
            case {"run": list(names)} if len(blobs) == 1 + len(names):
                self._run(np.frombuffer(blobs[0], "<u4"), dict(zip(names, blobs[1:], strict=True)))
            case {"examine": str(board)} if self._examine is not None and not blobs:
                self._frames.send({"checks": self._examine(board), "time": time.time()})
            case _:
                raise BoardError("unknown request: the two sides have different versions of rsn; install the same")

    def _load(self, name: str, xclbin: str | None, program: Program, weights: Mapping[str, str]) -> None:
        require(program)
        needed = {b.name: b for b in program.with_role(Role.WEIGHT)}
        if set(weights) != set(needed) or not all(map(is_checksum, weights.values())):
            raise TensorError("the list of weights that was sent is not that of the program")
        if name.startswith("ssh:"):
            raise BoardError(
                f"board {name} is reached through another ssh:// board: name it directly, and set a ProxyJump in ssh's "
                "configuration"
            )
        self.close()
        self._board = open_board(name, xclbin=xclbin)
        cache = WeightCache()
        sizes = {weights[n]: b.size for n, b in needed.items()}
        found = {checksum: cache.find(checksum, size) for checksum, size in sizes.items()}
        missing = [checksum for checksum, weight in found.items() if weight is None]
        cache.prune(keep=found, room=4 * sum(sizes[checksum] for checksum in missing))
        self._frames.send({"missing": missing})
        for checksum in missing:
            message, blobs = self._inbox.get()
            if message != {"weight": checksum} or len(blobs) != 1:
                raise BoardError("the other side sent another message instead of a weight")
            cache.put(checksum, blobs[0])
            found[checksum] = cache.find(checksum, sizes[checksum])
        given: dict[str, Array] = {}
        for n, b in needed.items():
            weight = found[weights[n]]
            if weight is None or weight.size != b.size:
                raise BoardError(f"weight {n} does not fit the program, or was lost on the board's side; run it again")
            given[n] = weight
        self._board.load(program, given)
        self._program = program
        self._frames.send({"loaded": name})

    def _run(self, words: Words, inputs: Mapping[str, bytearray]) -> None:
        program, board = self._program, self._board
        if program is None or board is None:
            raise BoardError("no program is loaded")
        required, others = ({b.name: 4 * b.size for b in program.with_role(r)} for r in (Role.INPUT, Role.STATE))
        given = {n: len(raw) for n, raw in inputs.items()}
        fits = given.items() <= (required | others).items() and required.keys() <= given.keys()
        if not fits or len(words) != len(program.image):
            raise TensorError("the inputs or the image that were sent are not those of the loaded program")
        packed: dict[str, Array] = {n: np.frombuffer(raw, "<f4") for n, raw in inputs.items()}
        with np.errstate(all="ignore"):  # no warnings of NaN and infinities: the caller sees them in the outputs
            outputs, run = board.run(words, packed, progress=self._progress())
        facts = {k: getattr(run, k) for k in ("latency_s", "bytes", "utilization", "critical_path", "clock", "facts")}
        flat = [np.ascontiguousarray(o, "<f4").data for o in outputs.values()]
        self._frames.send({"run": facts, "outputs": list(outputs)}, *flat)

    def _progress(self) -> Callable[[float], None]:
        sent = time.monotonic()

        def progress(share: float) -> None:
            nonlocal sent
            if time.monotonic() - sent >= PROGRESS_S:
                sent = time.monotonic()
                self._frames.send({"progress": float(share)})

        return progress

    def close(self) -> None:
        board, self._board, self._program = self._board, None, None
        if board is not None:
            board.close()
