"""Bodies that are parsed in a process of their own: the server's interpreter stays free for other requests meanwhile,
and the memory of parsing is limited.

    python -m rsn.host.serving.apart FD

is that process. It reads from a socket the function that parses, then bodies, and answers each with a value or an
error.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Generic, TypeVar

from ...base.errors import BoardError
from ..closing import Closing
from .policy import RequestTimeout, TooLarge

T = TypeVar("T")

MEMORY_FACTOR = 24
"""Bytes of memory that a byte of a body may take while it is parsed. Numbers take up to 12, rows of one number 21."""
MEMORY_BYTES = 64 << 20
"""Bytes that parsing may take in addition."""


class Apart(Closing, Generic[T]):
    """Calls a function in a process of its own, one call at a time. Any thread may call it.

    read: takes a body; a module's function, or an object that can be pickled. The process starts at the first call, and
    again after it has ended; it ends with this object.
    """

    def __init__(self, read: Callable[[bytes], T]) -> None:
        self._read = read
        self._turn = threading.Lock()
        self._socket: Connection | None = None
        self._ended: Callable[[], object] = lambda: None

    def __call__(self, body: bytes | bytearray, seconds: float) -> T:
        """Return what `read` returns, or raise what it raises; `TooLarge` if it takes too much memory, `RequestTimeout`
        after `seconds`, with the time until it is this call's turn, and `BoardError` if the process ends."""
        ends = time.monotonic() + seconds
        late = RequestTimeout(f"the body was not parsed in {seconds:g} s")
        if not self._turn.acquire(timeout=seconds):
            raise late
        try:
            socket = self._started()
            socket.send_bytes(body)
            if not socket.poll(max(0.0, ends - time.monotonic())):
                self._end()
                raise late
            error, value = pickle.loads(socket.recv_bytes())
        except (EOFError, OSError) as e:  # such as the kernel's choice where memory is short
            if e is late:
                raise
            self._end()
            raise BoardError("the process that parses bodies has ended") from e
        finally:
            self._turn.release()
        if error is not None:
            raise error
        parsed: T = value
        return parsed

    def close(self) -> None:
        """End the process. A further call starts another one."""
        with self._turn:
            self._end()

    def _started(self) -> Connection:
        if self._socket is None:
            self._socket, theirs = Pipe()
            with theirs:
                command = [sys.executable, "-m", __name__, str(theirs.fileno())]
                paths = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
                process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=os.environ | paths)
            self._ended = weakref.finalize(self, _ended, process, self._socket)
            self._socket.send_bytes(pickle.dumps(self._read))
        return self._socket

    def _end(self) -> None:
        self._ended()
        self._socket = None


def _ended(process: subprocess.Popen[bytes], socket: Connection) -> None:
    socket.close()
    process.kill()
    process.wait()


@contextmanager
def limited_memory(more: int) -> Iterator[None]:
    """Limit the memory of this process to what it has and `more` bytes, or to less, if it has such a limit already;
    beyond that Python raises `MemoryError`. Where the system does not say how much it has, there is no limit."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        yield
        return
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    own = [limit for limit in (before, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([pages * resource.getpagesize() + more, *own]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def _answer(read: Callable[[bytes], object], body: bytes) -> bytes:
    allowed = MEMORY_FACTOR * len(body) + MEMORY_BYTES
    try:
        with limited_memory(allowed):
            return pickle.dumps((None, read(body)), pickle.HIGHEST_PROTOCOL)
    except MemoryError:
        return pickle.dumps((TooLarge(f"to parse the body takes more than {allowed >> 20} MiB of memory"), None))
    except Exception as e:
        return pickle.dumps((e, None))


def main() -> None:
    """Parse bodies until the other end closes the socket, which the command line names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the server decides when it ends
    gc.disable()  # it would look through millions of lists again and again, of which none is garbage
    with Connection(int(sys.argv[1])) as socket, suppress(EOFError, OSError):
        read = pickle.loads(socket.recv_bytes())
        while True:
            socket.send_bytes(_answer(read, socket.recv_bytes()))


if __name__ == "__main__":
    main()
