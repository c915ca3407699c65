"""A Python that has its imports done: `python` and `rsn` for the many commands of the pages.

Importing torch and the package takes longer than most commands. A server imports them once, and forks for every
command; small programs named `python` and `rsn` hand it their arguments, folder, environment and open files, and end
as the command does. Processes that a command starts with `multiprocessing` are such programs, too. A fork has no
threads but its own, because importing starts none.

All processes of a test session share one server. Each holds a FIFO open for writing as long as it needs the server,
which reads that FIFO, and ends when nobody holds it any longer, however a process has ended.
"""

from __future__ import annotations

import array
import atexit
import fcntl
import gc
import importlib
import marshal
import multiprocessing.spawn
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from rsn.base.freed_memory import keep_freed_memory

IMPORTED = (
    *("torch", "torch.export._trace", "torch.export.unflatten", "torch._export.non_strict_utils", "torch._dynamo"),
    *("torch.fx", "numba", "transformers.generation.utils", "transformers.modeling_utils"),
    "ray.dag.compiled_dag_node",
)
"""With what torch loads in its first export, and transformers with its first model, each of them a second and more; and
with what ray loads at the end of each process, also of one that has not used it."""

MOST_FILES = 253
"""That one message can carry."""

SHIM = """#!{python} -IS
import _signal, _socket, marshal, posix, sys
files = [int(n) for n in posix.listdir("/proc/self/fd") if posix.access("/proc/self/fd/" + n, posix.F_OK)]
server = _socket.socket(_socket.AF_UNIX)
server.connect({address!r})
said = marshal.dumps([{name!r}, sys.argv[1:], posix.getcwd(), posix.environ, files])
rights = b"".join(n.to_bytes(4, sys.byteorder) for n in files)
server.sendmsg([len(said).to_bytes(8, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
server.sendall(said)
child = int.from_bytes(server.recv(8), "big")
for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
    _signal.signal(number, lambda number, frame: posix.kill(child, number))
code = int.from_bytes(server.recv(8), "big", signed=True)
if code < 0:
    if code != -_signal.SIGKILL:
        _signal.signal(-code, _signal.SIG_DFL)
    posix.kill(posix.getpid(), -code)
sys.exit(code)
"""
"""Of modules that are in the interpreter, for the most part: `json`, `os` and `socket` would take most of its time."""


class WarmPython:
    """The server of a folder, and its folder `bin` with `python` and `rsn`, which belongs at the front of PATH. Whoever
    comes first starts the server."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True, exist_ok=True)
        holders = folder / "holders"
        with _alone(folder):
            if not holders.exists():
                os.mkfifo(holders)
            try:
                self._held = os.open(holders, os.O_WRONLY | os.O_NONBLOCK)  # an error if no server reads it
            except OSError:
                for name in ("python", "rsn"):
                    shim = self.bin / name
                    shim.write_text(SHIM.format(python=sys.executable, address=str(folder / "socket"), name=name))
                    shim.chmod(0o755)
                subprocess.run([sys.executable, str(Path(__file__)), str(folder)], stdin=subprocess.DEVNULL, check=True)
                self._held = os.open(holders, os.O_WRONLY | os.O_NONBLOCK)

    def close(self) -> None:
        """Let go of the server. Commands under way go on."""
        os.close(self._held)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time is in here."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def serve(folder: Path) -> None:
    """Fork for each command that arrives, in a process of its own that goes on after the return, until nobody holds the
    server."""
    keep_freed_memory()
    sys.path[0] = str(Path(sys.executable).parent)  # as for the program `rsn`: the folder of this file has no packages
    for name in (*IMPORTED, *_modules()):
        with suppress(ImportError):  # of an extra that is not installed
            importlib.import_module(name)
    importlib.import_module("numba").njit(lambda: 0)()  # loads its compiler, which takes half a second
    _rehearse()
    assert threading.active_count() == 1, "a fork has only one of the threads"
    gc.collect()
    gc.freeze()  # what a command frees is not mixed with what all share
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # what imports have made ends with the server; with each command it took 60 ms
    atexit.unregister(importlib.import_module("torch._dynamo.utils").dump_compile_times)
    (folder / "socket").unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "socket"))
    listening.listen()
    holders = os.open(folder / "holders", os.O_RDONLY | os.O_NONBLOCK)
    if os.fork():
        os._exit(0)  # whoever waits for this process knows that the server is there
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    clients: dict[int, socket.socket] = {}
    while True:
        poll = select.poll()
        for asked in (listening, woken, holders):
            poll.register(asked, select.POLLIN)
        for client in clients.values():
            poll.register(client, 0)  # its end alone
        ready = {number for number, _ in poll.poll()}
        if holders in ready:
            with _alone(folder):  # nobody begins to hold it meanwhile
                if select.select([holders], [], [], 0)[0]:
                    os._exit(0)
        for child, client in clients.items():
            if client.fileno() in ready:
                os.kill(child, signal.SIGKILL)  # as the program that asked for it was
        if woken.fileno() in ready:
            woken.recv(4096)
            _tell_ends(clients)
        if listening.fileno() in ready:
            client, _ = listening.accept()
            child = os.fork()  # no process between this one and the command: each fork takes 30 ms
            if not child:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(holders)
                for kept in (listening, woken, wake, *clients.values()):
                    kept.close()
                _answer(client)
            clients[child] = client


def _rehearse() -> None:
    """Do once what most commands do: torch's tables for captures, the tables of a parser and the compiled engine are
    then there in each fork, which would spend up to half a second on them."""
    torch, rsn = importlib.import_module("torch"), importlib.import_module("rsn")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a fork has none of the threads that OpenMP would start
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        layer, x = torch.nn.TransformerEncoderLayer(64, 1, 64, batch_first=True).eval(), torch.zeros(1, 8, 64)
        with torch.no_grad(), rsn.compile(layer, (x,)) as compiled:
            compiled(x)
    torch.set_num_threads(threads)
    importlib.import_module("rsn.assembler.parser").parse_file(Path(rsn.__file__).parent / "programs" / "fig10.rsn")


def _tell_ends(clients: dict[int, socket.socket]) -> None:
    """Tell the exit codes of the commands that have ended. clients: by the process of each command."""
    while clients:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        with clients.pop(child) as client, suppress(OSError):
            client.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "big", signed=True))


def _modules() -> Iterator[str]:
    """Those of the package, without programs, which commands run."""
    package = importlib.import_module("rsn")
    for found in pkgutil.walk_packages(package.__path__, "rsn."):
        if not found.name.startswith("rsn.programs") and not found.name.endswith("__main__"):
            yield found.name


def _answer(client: socket.socket) -> NoReturn:
    """Tell the number of this process, and be the command that the client asks for."""
    with client:
        size, rights, _, _ = client.recvmsg(8, socket.CMSG_SPACE(MOST_FILES * 4))
        files = array.array("i", rights[0][2])
        left, said = int.from_bytes(size, "big"), b""
        while len(said) < left:
            said += client.recv(left - len(said))
        client.sendall(os.getpid().to_bytes(8, "big"))
    _become(files, *marshal.loads(said))


def _become(
    files: Any, name: str, args: list[str], cwd: str, environment: dict[bytes, bytes], numbers: list[int]
) -> NoReturn:
    """Do what `python` or `rsn` does with these arguments; does not return. numbers: of the files, for the command."""
    above = max(*numbers, *files) + 1
    for number, file in zip(numbers, [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in files], strict=True):
        os.dup2(file, number)
        os.close(file)
    for file in set(files).difference(numbers):
        os.close(file)
    multiprocessing.spawn.set_executable(str(Path(sys.argv[1]) / "bin" / "python"))
    os.chdir(cwd)
    os.environb.clear()
    os.environb.update(environment)
    os.setpgid(0, 0)
    code: Any = 0
    try:
        _execute(name, args)
    except SystemExit as end:
        code = end.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:  # what the interpreter does at its end
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code or 0)


def _execute(name: str, args: list[str]) -> None:
    if name == "rsn":
        sys.argv = ["rsn", *args]
        importlib.import_module("rsn.cli.main").main()
    elif args[:1] == ["-c"]:
        sys.argv, sys.path[0] = ["-c", *args[2:]], ""
        exec(compile(args[1], "<string>", "exec"), {"__name__": "__main__"})
    elif args[:1] == ["-m"]:
        sys.argv, sys.path[0] = args[1:], os.getcwd()
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    elif args[:2] == ["-W", "ignore"]:
        warnings.simplefilter("ignore")
        _execute(name, args[2:])
    elif args and not args[0].startswith("-"):
        sys.argv, sys.path[0] = args, str(Path(args[0]).resolve().parent)
        runpy.run_path(args[0], run_name="__main__")
    else:
        os.execv(sys.executable, [sys.executable, *args])


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
