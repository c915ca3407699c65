"""A board of another computer: ssh://[USER@]HOST[:PORT][/BOARD].

The system's OpenSSH client, with the user's own keys, configuration and known hosts, starts `rsn serve-stdio` on the
other computer, which ends with the connection. Nothing from a program, a file or a URL reaches a shell: requests travel
as data, through the client's pipes.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ...assembler import container
from ...base.errors import BoardError
from ...base.version import __version__
from ...hw.sim.machine import Run
from ...isa.packet import Words
from ...isa.program import Array, Program, Role
from ..forks import forget_in_children
from .board import Board
from .device import BoardLost, BoardMismatch, BoardTimeout
from .ssh_cache import checksum
from .ssh_frames import ERRORS, Frames, Heartbeat, Message, PipeClosed, Silent

DEFAULT = "vck190"
"""The board on the other computer where the URL names none."""

COMMAND_VARIABLE = "RSN_REMOTE"
"""Environment variable with the path of `rsn` on the other computer, relative to the home folder there; for a shell
that does not find `rsn`."""

OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "20",
    "ServerAliveInterval": "10",
    "ServerAliveCountMax": "3",
    "RemoteCommand": "none",
}
"""Options of ssh that override the user's configuration: no one can answer ssh's questions, and a dead connection must
be detected."""

HURRY_S = 5
"""Seconds that a connection may take where somebody waits to hear whether there is one."""

ENDS_S = 5.0
"""Seconds that the ssh client may take to end by itself."""

MAX_SAID = 8 << 10
"""Bytes of the ssh client's messages that are kept."""

# Narrower than what OpenSSH takes: the user's configuration may put both into a command of a shell (ProxyCommand).
_URL = re.compile(
    r"ssh://(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9_.+-]*)@)?"
    r"(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\])"
    r"(?::(?P<port>[0-9]{1,5}))?(?:/(?P<board>[^\x00-\x1f\x7f]*))?"
)


class NoConnection(BoardError):
    """rsn on the other computer could not be started. where: the computer. reached: whether ssh got in there, so that
    what failed is rsn. problem, mend: what is wrong, and what to do; said: ssh's own messages."""

    def __init__(self, where: str, reached: bool, problem: str, mend: str, said: str = "") -> None:
        super().__init__(f"{where}: {problem}: {mend}" + (f"\n{said}" if said else ""))
        self.reached, self.problem, self.mend = reached, problem, mend


@dataclass(frozen=True)
class Target:
    """The parts of a board's URL. user: "" where the URL has none. host: a name or an address. port: 0 where the URL
    has none; ssh's configuration then decides. board: the board's name on the other computer."""

    user: str
    host: str
    port: int
    board: str

    @classmethod
    def parse(cls, url: str) -> Target:
        """Split a URL ssh://[USER@]HOST[:PORT][/BOARD] into its parts; the board is `DEFAULT` where it names none.
        Raises `BoardError` for any other text."""
        found = _URL.fullmatch(url)
        if found is None or not 0 < int(found["port"] or 22) < 1 << 16:
            password = ":" in url[6:].partition("@")[0] and "@" in url
            hint = "; it has no password: set up a key for ssh" if password else ""
            raise BoardError(f"{url!r} is not the URL of a board: expected ssh://[USER@]HOST[:PORT][/BOARD]{hint}")
        host = found["host"].strip("[]")
        return cls(found["user"] or "", host, int(found["port"] or 0), found["board"] or DEFAULT)

    @property
    def arguments(self) -> list[str]:
        """The arguments of ssh that say where to connect: `-p PORT` and `-l USER` where the URL has them, then `--
        HOST`."""
        port, user = ["-p", str(self.port)] * bool(self.port), ["-l", self.user] * bool(self.user)
        return [*port, *user, "--", self.host]

    def __str__(self) -> str:
        return f"{self.user}@{self.host}" if self.user else self.host


class SshBoard(Board):
    """Holds a program on another computer's board.

    It connects when a program is loaded. After any error the connection is dropped; the next run connects and loads the
    program again. The other computer keeps the weights in a cache, so that they are not sent again.

    url: ssh://[USER@]HOST[:PORT][/BOARD]. xclbin: path of the bitstream on the other computer; None for the one that
    its environment or profile names. Raises `BoardError` for a malformed URL, and without an ssh client.
    """

    def __init__(self, url: str, *, xclbin: str | os.PathLike[str] | None = None) -> None:
        self.target = Target.parse(url)
        self._ssh = ssh_client()
        self._xclbin = None if xclbin is None else os.fspath(xclbin)
        self._link: _Link | None = None
        self._program: Program | None = None
        self._weights: Mapping[str, Array] = {}
        self._checksums: dict[str, str] = {}

    def load(self, program: Program, weights: Mapping[str, Array]) -> None:
        self._program, self._weights = program, weights
        self._checksums = {b.name: checksum(weights[b.name]) for b in program.with_role(Role.WEIGHT)}
        self._drop()
        with self._dropping():
            self._connected(program)

    def run(
        self, words: Words, inputs: Mapping[str, Array], *, progress: Callable[[float], None] | None = None
    ) -> tuple[dict[str, Array], Run]:
        program = self._program
        if program is None:
            raise BoardError("no program is loaded")
        results = program.with_role(Role.OUTPUT)
        blobs = [np.ascontiguousarray(words, "<u4").data, *(_raw(flat) for flat in inputs.values())]
        with self._dropping():
            link = self._connected(program)
            link.send({"run": list(inputs)}, *blobs)
            message, outputs = link.answer(sum(4 * b.size for b in results), progress)
            if "error" not in message:
                names, sizes = [b.name for b in results], [4 * b.size for b in results]
                if message.get("outputs") != names or [len(o) for o in outputs] != sizes:
                    raise _unexpected(self.target)
                try:
                    run = Run(**message["run"])
                except (KeyError, TypeError):
                    raise _unexpected(self.target) from None
        _raise_there(message, self.target)
        named = {b.name: np.frombuffer(o, "<f4") for b, o in zip(results, outputs, strict=True)}
        run.facts["host"] = str(self.target)
        return named, run

    def close(self) -> None:
        self._program, self._weights = None, {}
        self._drop()

    def _connected(self, program: Program) -> _Link:
        """Return the connection, with the program loaded at its other end."""
        if self._link is None:
            self._link = link = _Link(self._ssh, self.target)
            link.greet()
            request = {"load": self.target.board, "xclbin": self._xclbin, "weights": self._checksums}
            link.send(request, container.dumps(program))
            message, _ = link.answer(0)
            names = {checksum: name for name, checksum in self._checksums.items()}
            match message:
                case {"missing": list(missing)} if all(isinstance(m, str) and m in names for m in missing):
                    for m in missing:
                        link.send({"weight": m}, _raw(self._weights[names[m]]))
                    message, _ = link.answer(0)
            _raise_there(message, self.target)
            if "loaded" not in message:
                raise _unexpected(self.target)
        return self._link

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        """Drop the connection after any error, ^C included: it may have broken off in the middle of a message."""
        try:
            yield
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


class _Link:
    """A running ssh client, and frames through its pipes. Every method raises `BoardError` if the connection is at
    fault."""

    def __init__(self, ssh: str, target: Target, more: Mapping[str, str] | None = None) -> None:
        """more: options of ssh that override those of `OPTIONS`."""
        self._target, self._command = target, os.environ.get(COMMAND_VARIABLE) or "rsn"
        chosen = {**OPTIONS, **(more or {})}
        options = [part for key, value in chosen.items() for part in ("-o", f"{key}={value}")]
        # "exec" replaces the shell by rsn. In a session of its own ssh does not get ^C: this process ends it in order.
        self._process = subprocess.Popen(
            [ssh, "-T", *options, *target.arguments, f"exec {shlex.quote(self._command)} serve-stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        self._frames = Frames(back.fileno(), to.fileno())
        self._said = bytearray()
        self._listener = threading.Thread(target=self._listen, name="rsn ssh stderr", daemon=True)
        self._listener.start()
        self._beat = Heartbeat(lambda: self._frames.send({}))
        self._began = False
        forget_in_children(self)

    def greet(self) -> None:
        """Wait for the other end's greeting, and check that it has this version of rsn."""
        with self._lost_is_an_error():
            try:
                self._frames.skip_to_greeting()
            except PipeClosed as e:
                self._said += b"".join(e.args)
                raise
        message, _ = self.answer(0)
        self._began = True
        self._beat.start()
        if message.get("rsn") != __version__:
            raise BoardMismatch(
                f"{self._target} has rsn {message.get('rsn')}, this is {__version__}: install the same version on both"
            )

    def send(self, message: Message, *blobs: bytes | memoryview) -> None:
        with self._lost_is_an_error():
            self._frames.send(message, *blobs)

    def answer(self, most: int, progress: Callable[[float], None] | None = None) -> tuple[Message, list[bytearray]]:
        """Return the next message other than signs of life, with its blobs, of at most `most` bytes. Passes progress
        on."""
        while True:
            with self._lost_is_an_error():
                message, blobs = self._frames.receive(most)
            if "progress" in message and progress is not None:
                progress(message["progress"])
            if message and "progress" not in message:
                return message, blobs

    def close(self) -> None:
        """End the connection, and with it the process at its other end. Raises nothing."""
        process = self._process
        if self._began and not self._beat.stop(1.0):
            process.kill()  # a send is blocked: the other end does not read
            self._beat.stop()
        for pipe in (process.stdin, process.stdout):  # only after the heartbeat's thread, which uses their numbers
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        if self._code() is None:
            process.kill()
            process.wait()
        self._listener.join(1.0)  # not for ever: the master of a shared ssh connection may hold the pipe open

    def forget(self) -> None:
        """In a forked child (see `forks`): close the copies of the pipes. The connection belongs to the parent, and
        could not end while they are open."""
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _code(self) -> int | None:
        try:
            return self._process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            return None

    def _listen(self) -> None:
        pipe = self._process.stderr
        assert pipe is not None
        with pipe:
            while piece := pipe.read(MAX_SAID):
                self._said += piece
                del self._said[:-MAX_SAID]

    @contextmanager
    def _lost_is_an_error(self) -> Iterator[None]:
        try:
            yield
        except Silent:
            raise BoardTimeout(
                f"{self._target}: no sign of life for {self._frames.silence_s:g} s; the connection was dropped, the "
                "next run connects again"
            ) from None
        except PipeClosed:
            raise self._lost() from None

    def _lost(self) -> BoardError:
        """Return the error that says why the connection was lost, from ssh's exit code and messages."""
        code = self._code()
        self._listener.join(0.5)
        heard = self._said.decode(errors="replace")
        lines = ["".join(c if c.isprintable() else "?" for c in line) for line in heard.splitlines()]
        said = "\n".join(f"    {line[:200]}" for line in lines[-6:])
        if self._began:
            reason = "the connection was lost, or rsn was ended there; the next run connects again"
            return BoardLost(f"{self._target}: {reason}" + (f"\n{said}" if said else ""))
        problem, mend = _reason(code, heard, self._target, self._command)
        return NoConnection(str(self._target), code is not None and 0 <= code < 255, problem, mend, said)


SAID = {
    "REMOTE HOST IDENTIFICATION HAS CHANGED": (
        "its host key has changed",
        "if you know why, remove the old key (ssh-keygen -R {name}), and connect once by hand: {by_hand}",
    ),
    "Host key verification failed": ("its host key is not known yet", "connect once by hand, and accept it: {by_hand}"),
    "Permission denied": (
        "it accepts none of your keys",
        "ssh-copy-id installs one there, ssh-add unlocks one that has a passphrase",
    ),
    "Could not resolve hostname": ("there is no host of this name", "check the name, or take its address"),
    "Connection refused": ("no ssh server listens there", "is the board up, and the port right?"),
    "timed out": ("it does not answer", "is the board up, and the network right?"),
    "No route to host": ("it cannot be reached", "is the board up, and the network right?"),
    "No such command": ("its rsn is of another version", "install {version} there"),
}
"""Messages of ssh, and what they mean: the problem, and what to do. The first that is found counts."""


def _reason(code: int | None, said: str, target: Target, command: str) -> tuple[str, str]:
    """Return why rsn did not start on the other computer, and what to do."""
    port = ["-p", str(target.port)] * bool(target.port)
    words = {
        "by_hand": shlex.join(["ssh", *port, str(target)]),
        "name": shlex.quote(f"[{target.host}]:{target.port}" if target.port else target.host),
        "version": __version__,
    }
    if code in (126, 127):
        return (
            f"its shell cannot start {command}",
            f"install rsn {__version__} there (a board: make board-bundle; a checkout: pip install -e .), or set "
            f"{COMMAND_VARIABLE} here to its path there, such as .venv/bin/rsn",
        )
    for sign, (problem, mend) in SAID.items():
        if sign in said:
            return problem, mend.format(**words)
    if code == 255:
        return "ssh cannot connect", f"try it by hand: {words['by_hand']} true"
    by_hand = f"try it by hand: {words['by_hand']} {shlex.quote(command)} doctor"
    return f"rsn did not start there (exit code {code})", by_hand


def examine(url: str) -> Message:
    """Let another computer examine its board (`rsn doctor`). url: ssh://[USER@]HOST[:PORT][/BOARD].

    Returns `checks`, a list of what it found, and `time`, its clock in seconds since 1970. Raises `NoConnection` if rsn
    cannot be started there, or another `BoardError` if the connection fails later.
    """
    target = Target.parse(url)
    link = _Link(ssh_client(), target, {"ConnectTimeout": str(HURRY_S)})
    try:
        link.greet()
        link.send({"examine": target.board})
        message, _ = link.answer(0)
    finally:
        link.close()
    _raise_there(message, target)
    match message:
        case {"checks": list(), "time": int() | float()}:
            return message
    raise _unexpected(target)


def _unexpected(target: Target) -> BoardMismatch:
    """The error for an answer that this version of rsn does not know."""
    return BoardMismatch(f"{target}: unexpected answer; is another version of rsn installed there?")


def _raise_there(message: Message, target: Target) -> None:
    """Raise the error that the other end sent, of the same class. A `BoardError` names the other computer."""
    if "error" in message:
        kind, text = ERRORS.get(str(message["error"]), BoardError), str(message.get("text"))
        raise kind(f"{target}: {text}" if issubclass(kind, BoardError) else text)


def _raw(flat: Array) -> memoryview:
    return np.ascontiguousarray(flat, "<f4").data


def ssh_client() -> str:
    """Return the path of the system's OpenSSH client. Raises `BoardError` if there is none."""
    found = shutil.which("ssh")
    if found is None:
        raise BoardError(
            "a board behind ssh:// needs the OpenSSH client (Debian, Ubuntu: sudo apt install openssh-client)"
        )
    return found
