"""An open device: taken, loaded with its bitstream, checked, and released. All boards of a process on one device share
it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import TypeVar

import numpy as np

from ...base.errors import StateLost
from ...isa.layout import padded
from ...isa.packet import Words, encode_image, terminators
from ...isa.program import Program
from .device import BoardBusy, BoardLost, BoardMismatch, BoardTimeout, Device, DeviceFacts
from .lock import DeviceLock
from .match import match_xclbin
from .probes import trial_inputs, trial_program, wrong
from .profile import INSTRUCTIONS, Profile
from .stamp import Stamp
from .tiles import parameters
from .xclbin import Xclbin, read_xclbin

SLICE_S = 0.1
"""Seconds of one wait for the kernel; the longest that ^C may be delayed."""

PROBE_S = 5.0
"""Seconds after which a kernel without work must have ended."""

GRAPH_S = 5.0
"""Seconds after the kernel's end in which the tiles must have ended their iteration. What is left for them then is to
return."""

SETTLE_S = 1.0
"""Seconds that a run may still take after an error or ^C, before it counts as one that does not end."""

PAGE = 4096

CALLS_S = 60.0
"""Seconds that calls of the device's driver may take."""
LOADING_S = 600.0
"""Seconds that calls may take which load a bitstream, or gigabytes of weights."""

T = TypeVar("T")


STUCK = (
    "a call of the device's driver did not return: end this process, which alone releases the device; if that does not "
    "help, restart the board"
)


RESTART = "reboot the board"
REBOOT = (
    f"{RESTART} before the next run: a reset of the AI Engine graph leaves its locks and DMAs as they are, and a "
    "kernel that waits for it goes on waiting"
)


class NoRoom(BoardBusy):
    """The device has no memory for one more program. Those that it holds are unaffected."""


@dataclass(eq=False)
class DeviceBuffer:
    """A buffer of the device. handle: its number. users: how many boards rely on its content. contents: for a bank of
    weights, which boards may share, its buffers and the checksum of its weights; None for another buffer."""

    handle: int
    users: int = 1
    contents: tuple[object, bytes] | None = None


class Stage(Enum):
    """How far a run of this session has come."""

    IDLE = auto()
    GRAPH = auto()
    """The graph has all its parameters, and runs."""
    KERNEL = auto()
    """So does the kernel."""


@dataclass(frozen=True)
class Took:
    """What a run took, measured by the host. kernel_s: seconds of the kernel. written: how many tiles got another op
    list first. parameters_s: seconds that this took."""

    kernel_s: float
    written: int
    parameters_s: float


class Session:
    """One device and its bitstream, opened when it is first needed. After an error everything is released; the next
    run, of any board of this session, opens the device again.

    profile: of the board. device: what drives it. bitstream: the file to load, an .xclbin or another that the device
    takes; None if it needs none. lock: held while the device is taken; None for a device that only this process can
    use. stamp: remembers for this boot that the bitstream's trial passed; without one, only a run that did not end
    makes a trial necessary. now: the clock, in seconds, that times a run and ends the wait for it; tests replace it.
    The constructor raises `BoardMismatch` for an .xclbin that is not the profile's.

    Calls raise `BoardError` or a class of it: `BoardBusy`, `BoardLost`, `BoardMemory`, `BoardMismatch`, `BoardTimeout`.
    """

    def __init__(
        self,
        profile: Profile,
        device: Device,
        *,
        bitstream: Path | None = None,
        lock: DeviceLock | None = None,
        stamp: Stamp | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.profile = profile
        self.device = device
        self.bitstream = bitstream
        self.facts: dict[str, str] = {}
        """Facts of the open board for the record, by name: versions, device, clocks."""
        self.clock = ""
        self.held: list[DeviceBuffer] = []
        self.age = 0
        """Counts how often everything was released. Buffers of an earlier age no longer exist."""
        self._xclbin = read_xclbin(bitstream) if bitstream is not None and bitstream.suffix != ".pdi" else None
        if self._xclbin is not None:
            match_xclbin(profile, self._xclbin)
        self._lock = lock
        self._stamp = stamp
        self._now = now
        self._parameters: dict[str, Words] = {}
        """What the graph holds, by port, of asynchronous parameters that were written since the device was opened."""
        self._unfinished = False
        """Whether a run of graph and kernel began in this boot, of any process, and was never seen to end."""
        self._at = Stage.IDLE
        self._handles: list[int] = []
        self._taken = self._open = self._stuck = False
        self._mutex = threading.RLock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the open device exclusively in a `with` block; opens it first if needed. After an error in the block, ^C
        included, the device is released, because its state is unknown; not after `NoRoom` and `StateLost`. Raises
        `BoardLost` if a call of the driver has not returned, and what opening the device raises."""
        with self._mutex:
            try:
                if self._stuck:
                    raise BoardLost(STUCK)
                if not self._open:
                    self.bounded(self._prepare, LOADING_S)
                yield
            except BaseException as e:
                if not isinstance(e, NoRoom | StateLost):
                    self._settle(e)
                    self._give_back()
                raise

    def bounded(self, calls: Callable[[], T], seconds: float | None = None) -> T:
        """Make calls of the device in a thread of their own, and return their result, or raise their error.

        seconds: after which `BoardLost` is raised and the device counts as stuck, because the calls do not return; None
        takes `CALLS_S`. ^C also waits until they have returned: nothing can be released while they run.
        """
        future: Future[T] = Future()

        def make() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(calls())
                except BaseException as e:
                    future.set_exception(e)

        limit = CALLS_S if seconds is None else seconds
        try:
            threading.Thread(target=make, name="device", daemon=True).start()
            wait([future], limit)
        except BaseException:
            if not future.cancel():
                wait([future], limit)
            raise
        finally:
            self._stuck |= future.running()
        if self._stuck:
            raise BoardLost(STUCK)
        return future.result()

    def allocate(self, buffer: str, size: int) -> DeviceBuffer:
        """Allocate a buffer of the device. buffer: a bank or `INSTRUCTIONS`; size: in bytes, rounded up to pages of
        4096. Raises `BoardMemory` if there is no room."""
        held = DeviceBuffer(self.device.allocate(self.profile.argument(buffer), max(padded(size, PAGE), PAGE)))
        self.held.append(held)
        return held

    def release(self, helds: Iterable[DeviceBuffer], age: int) -> None:
        """Release the buffers `helds`, which were allocated at this age (`Session.age`); those of another age no longer
        exist. Memory is freed when its last user releases it. The caller holds the turn."""
        for held in helds if age == self.age else ():
            held.users -= 1
            if not held.users:
                self.held.remove(held)
                self.device.free(held.handle)

    def leave(self, helds: Iterable[DeviceBuffer], age: int) -> None:
        """Release the buffers `helds` of a board that goes away. They were allocated at this age (`Session.age`). If
        the session then has no buffers left, the device is released too. Raises nothing."""
        with self._mutex:
            if self._stuck:
                return
            try:
                self.bounded(lambda: self.release(helds, age))
            except Exception:
                self._give_back()
            if not self.held:
                self._give_back()

    def run(self, helds: Mapping[str, DeviceBuffer], lists: Mapping[str, Words], timeout_s: float) -> Took:
        """Run graph and kernel once, and wait until both have ended.

        helds: the buffer of each bank, and of the instructions, by name. lists: the parameter of each tile, 32-bit
        words by port; asynchronous parameters that the graph holds already are not written again. timeout_s: in
        seconds. Raises `BoardTimeout` if the kernel does not end in `timeout_s`, or the graph soon after it.
        """
        self._handles = [helds[name].handle for name in self.profile.arguments]
        written, parameters_s = self.bounded(lambda: self._run_graph(lists))
        kernel_s = self._execute(timeout_s)
        if self._until(self.device.wait_graph, self._now(), GRAPH_S) is None:
            raise BoardTimeout(
                f"{self.profile.name}: the kernel has ended, but the AI Engine graph has not in {GRAPH_S:g} s; {REBOOT}"
            )
        self._note(unfinished=False)
        return Took(kernel_s, written, parameters_s)

    def _run_graph(self, lists: Mapping[str, Words]) -> tuple[int, float]:
        """Write the parameters that the graph lacks, and start its iteration, in the order that its kind of parameters
        asks for. Returns how many were written, and the seconds that it took."""
        waits_for_them = self.profile.parameters == "sync"
        if waits_for_them:
            self._note(unfinished=True)
            self.device.run_graph()
        began, written = self._now(), 0
        for port, words in lists.items():
            held = self._parameters.get(port)
            if held is words or (held is not None and np.array_equal(held, words)):
                continue
            self.device.update_parameter(port, words)
            written += 1
            if not waits_for_them:
                self._parameters[port] = words
        took = self._now() - began
        if not waits_for_them:
            self._note(unfinished=True)
            self.device.run_graph()
        self._at = Stage.GRAPH
        return written, took

    def _execute(self, timeout_s: float) -> float:
        """Start the kernel with the buffers of `_handles`, and wait for its end. Returns the seconds that it took.
        Raises `BoardTimeout` after `timeout_s`."""

        def start() -> float:
            now = self._now()
            self.device.start(self._handles)
            self._at = Stage.KERNEL if self._at is Stage.GRAPH else Stage.IDLE
            return now

        began = self.bounded(start)
        ended = self._until(self.device.wait, began, timeout_s)
        if ended is None:
            raise BoardTimeout(
                f"{self.profile.name}: the kernel did not end in {timeout_s:g} s; `rsn check` says whether the program "
                f"can end at all, timeout_s of a profile gives it longer; {REBOOT}"
            )
        return ended - began

    def _until(self, wait_for: Callable[[float], bool], began: float, timeout_s: float) -> float | None:
        """Wait in slices. Returns when it ended, by the clock; None if that is not before `timeout_s` seconds after
        `began`."""

        def waited() -> tuple[bool, float]:
            left = began + timeout_s - self._now()
            return wait_for(min(SLICE_S, max(left, 0.0))), self._now()

        while True:
            ended, now = self.bounded(waited)
            if ended:
                return now
            if now >= began + timeout_s:
                return None

    def _settle(self, error: BaseException) -> None:
        """After an error: let a run that has begun end, so that the array is known again. Nothing is stopped, because
        tiles that are stopped in mid-iteration keep their locks."""
        if self._stuck or self._at is Stage.IDLE or isinstance(error, BoardTimeout):
            return

        def end() -> bool:
            if self._at is Stage.GRAPH:  # the graph waits for what only the kernel sends
                self.device.start(self._handles)
            return self.device.wait(SETTLE_S) and self.device.wait_graph(SETTLE_S)

        try:
            if self.bounded(end):
                self._note(unfinished=False)
        except BaseException:  # also a second ^C: what counts is the first error, and that the device is given back
            return

    def _note(self, unfinished: bool) -> None:
        """Note, for this process and the next one, whether a run has begun and not ended."""
        self._unfinished = unfinished
        self._at = Stage.IDLE
        if self._lock is not None:
            self._lock.note(unfinished)

    def _give_back(self) -> None:
        self.held, self.age, self._open = [], self.age + 1, False
        self._parameters, self._handles, self._at = {}, [], Stage.IDLE
        if self._stuck or not self._taken:  # lost until this process ends; or another process's
            return
        try:
            self.bounded(self.device.close)
        except BoardLost:  # close did not return: the device is stuck now
            return
        self._taken = False
        if self._lock is not None:
            self._lock.release()

    def _prepare(self) -> None:
        """Take the device, load its bitstream, and check that it is the profile's."""
        if self._lock is not None:
            self._lock.acquire()
            self._unfinished |= self._lock.unfinished
        self._taken = True
        xclbin = self._xclbin
        facts = self.device.open(self.profile, self.bitstream)
        if xclbin is not None and facts.uuid and facts.uuid != xclbin.uuid:
            raise BoardMismatch(
                f"{xclbin.path} has UUID {xclbin.uuid}, the device holds {facts.uuid}: the bitstream was not loaded; "
                "on a platform that is programmed at boot, boot with this xclbin's own image"
            )
        self.facts, self.clock = recorded(self.profile, xclbin, facts), facts.clock
        if self.profile.fingerprint:
            self._probe()
        self.device.reset_graph()  # before weights are uploaded: a device without a graph raises here
        if self._trial_is_needed():
            self._trial()
        self._open = True

    def _probe(self) -> None:
        """Check the fingerprint, which the kernel's register holds only after a run: run an image that only ends every
        decoder."""
        expected = self.profile.overlay
        helds = {name: self.allocate(name, PAGE) for name in self.profile.limits}
        self.device.write(helds[INSTRUCTIONS].handle, 0, encode_image(terminators(expected)))
        self._handles = [helds[name].handle for name in self.profile.arguments]
        try:
            self._execute(min(PROBE_S, self.profile.timeout_s))
        except BoardTimeout as e:
            self._note(unfinished=True)
            raise BoardTimeout(
                f"{self.profile.name}: the kernel did not end an empty program: it hangs from an earlier run, or "
                f"another image is booted; write the BOOT.BIN of {self.bitstream} to the card if it is not there, and "
                f"{RESTART}"
            ) from e
        found = f"{self.device.register(len(self.profile.arguments)):016x}"
        if found != expected.fingerprint:
            raise BoardMismatch(
                f"this rsn has overlay {expected.label}, the bitstream has fingerprint {found}, so another version or "
                f"other sources: build the bitstream again ({self.profile.source}), or use the rsn it was built "
                f"with; or, if {self.bitstream} is of this rsn, write its BOOT.BIN to the card, because another image "
                f"is booted, and {RESTART}"
            )
        self.facts["fingerprint"] = found
        self.release(helds.values(), self.age)

    def _trial_is_needed(self) -> bool:
        """Whether something is to be shown that nothing else shows: that the array is as it should be after a run that
        did not end; and, where no register tells it, that the bitstream is the one that is booted."""
        if self._unfinished:
            return True
        stamp, xclbin = self._stamp, self._xclbin
        if self.profile.fingerprint or stamp is None or xclbin is None:
            return False
        if stamp.holds(xclbin.sha256):
            self.facts["trial"] = "passed earlier in this boot"
            return False
        return True

    def _trial(self) -> None:
        """Run a small program whose result is known. Raises `BoardMismatch` if it computes anything else,
        `BoardTimeout` if it does not end."""
        profile, cause, remedy = self.profile, "an earlier run did not end", RESTART
        if not profile.fingerprint:
            cause = f"another image is booted, or {cause}"
            remedy = f"write the BOOT.BIN that belongs to {self.bitstream} to the card, and {remedy}"
        try:
            if problem := self._try(trial_program(profile.overlay)):
                raise BoardMismatch(
                    f"{profile.name}: a small known program gave wrong numbers: {cause} ({problem}); {remedy}"
                )
        except BaseException as e:
            # the next opening of the device, by whomever, begins with a trial
            self._note(unfinished=True)
            if self._stamp is not None:
                self._stamp.remove()
            if isinstance(e, BoardTimeout):
                raise BoardTimeout(f"{profile.name}: a small known program did not end: {cause}; {remedy}") from e
            raise
        self.facts["trial"] = "passed"
        if self._stamp is not None and self._xclbin is not None:
            self._stamp.write(self._xclbin.sha256)

    def _try(self, program: Program) -> str:
        """Run a trial; return what is wrong with its result, "" if nothing is."""
        device, lists = self.device, parameters(program, self.profile.graph)
        sizes = {bank: 4 * program.bank_size(bank) for bank in program.overlay.banks}
        helds = {name: self.allocate(name, size) for name, size in {**sizes, INSTRUCTIONS: PAGE}.items()}
        y = program.buffer("y")
        unset = np.full(y.size, np.nan, np.float32)
        device.write(helds[INSTRUCTIONS].handle, 0, program.image)
        for name, flat in {**trial_inputs(program), "y": unset}.items():
            buffer = program.buffer(name)
            device.write(helds[buffer.bank].handle, 4 * program.place(buffer).start, flat)
        self.run(helds, lists, min(PROBE_S, self.profile.timeout_s))
        flat = np.empty(y.size, np.float32)
        came = device.read(helds[y.bank].handle, 4 * program.place(y).start, flat)
        self.release(helds.values(), self.age)
        return wrong(program, flat) if came == flat.nbytes else f"{came} of {flat.nbytes} bytes came back"


def recorded(profile: Profile, xclbin: Xclbin | None, facts: DeviceFacts) -> dict[str, str]:
    """Return facts for the record of a run, as texts by name: board, bitstream, clocks in MHz, and the clocks in MHz
    that the profile was built for. xclbin: the bitstream; None leaves out its facts. facts: of the open device."""
    out = {"board": profile.name, **facts.known}
    if xclbin is not None:
        out |= {"xclbin": xclbin.uuid, "platform": xclbin.platform, "xclbin_version": xclbin.version}
        out |= {f"clock {name}": f"{mhz:g} MHz" for name, mhz in xclbin.clocks.items()}
    return out | {"pl_mhz (built for)": f"{profile.pl_mhz:g}", "aie_mhz (built for)": f"{profile.aie_mhz:g}"}
