"""An open device: taken, loaded with its bitstream, checked, and released. All boards of a process on one device share
it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ...isa.layout import padded
from ...isa.overlay import Overlay
from ...isa.packet import Packet, encode_image
from .device import BoardBusy, BoardLost, BoardMismatch, BoardTimeout, Device, Facts
from .lock import DeviceLock
from .match import match_xclbin
from .profile import INSTRUCTIONS, Profile
from .xclbin import Xclbin, read_xclbin

SLICE_S = 0.1
"""Seconds of one wait for the kernel; the longest that ^C may be delayed."""

PROBE_S = 5.0
"""Seconds after which a kernel without work must have ended."""

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


class NoRoom(BoardBusy):
    """The device has no memory for one more program. Those that it holds are unaffected."""


@dataclass(eq=False)
class Held:
    """A buffer of the device. users: how many boards rely on its content. contents: for a bank of weights, which boards
    may share, its buffers and the checksum of its weights."""

    handle: int
    users: int = 1
    contents: tuple[object, bytes] | None = None


class Session:
    """One device and its bitstream, opened when it is first needed. After an error everything is released; the next
    run, of any board of this session, opens the device again."""

    def __init__(
        self,
        profile: Profile,
        device: Device,
        *,
        bitstream: Path | None = None,
        lock: DeviceLock | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """bitstream: the file to load, an .xclbin or another that the device takes; None if it needs none. now: the
        clock, in seconds, that times a kernel and ends the wait for it; tests replace it. Raises `BoardMismatch` for an
        .xclbin that is not the profile's."""
        self.profile = profile
        self.device = device
        self.bitstream = bitstream
        self.facts: dict[str, str] = {}
        """Facts of the open board for the record, by name: versions, device, clocks."""
        self.clock = ""
        self.held: list[Held] = []
        self.age = 0
        """Counts how often everything was released. Buffers of an earlier age no longer exist."""
        self._xclbin = read_xclbin(bitstream) if bitstream is not None and bitstream.suffix != ".pdi" else None
        if self._xclbin is not None:
            match_xclbin(profile, self._xclbin)
        self._lock = lock
        self._now = now
        self._taken = self._open = self._stuck = False
        self._mutex = threading.RLock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the open device exclusively in a `with` block. After any error, ^C included, the device is released,
        because its state is unknown."""
        with self._mutex:
            try:
                if self._stuck:
                    raise BoardLost(STUCK)
                if not self._open:
                    self.bounded(self._prepare, LOADING_S)
                yield
            except BaseException as e:
                if not isinstance(e, NoRoom):
                    self._give_back()
                raise

    def bounded(self, calls: Callable[[], T], seconds: float | None = None) -> T:
        """Make calls of the device in a thread of their own, and return their result.

        seconds: after which `BoardLost` is raised and the device counts as stuck, because the calls do not return. ^C
        also waits until they have returned: nothing can be released while they run.
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

    def allocate(self, buffer: str, size: int) -> Held:
        """Allocate a buffer of the device. buffer: a bank or `INSTRUCTIONS`; size: in bytes, rounded up to pages."""
        held = Held(self.device.allocate(self.profile.argument(buffer), max(padded(size, PAGE), PAGE)))
        self.held.append(held)
        return held

    def release(self, helds: Iterable[Held], age: int) -> None:
        """Release buffers that were allocated at this age; memory is freed when its last user releases it. The caller
        holds the turn."""
        for held in helds if age == self.age else ():
            held.users -= 1
            if not held.users:
                self.held.remove(held)
                self.device.free(held.handle)

    def leave(self, helds: Iterable[Held], age: int) -> None:
        """Release a board's buffers, and with the last of them the device. Raises nothing."""
        with self._mutex:
            if self._stuck:
                return
            try:
                self.bounded(lambda: self.release(helds, age))
            except Exception:
                self._give_back()
            if not self.held:
                self._give_back()

    def execute(self, helds: Mapping[str, Held], timeout_s: float) -> float:
        """Start the kernel, and wait for its end. Returns the seconds that it took, measured by the host. Raises
        `BoardTimeout` after `timeout_s`."""

        def start() -> float:
            now = self._now()
            self.device.start([helds[name].handle for name in self.profile.arguments])
            return now

        def waited() -> tuple[bool, float]:
            left = began + timeout_s - self._now()
            return self.device.wait(min(SLICE_S, max(left, 0.0))), self._now()

        began = self.bounded(start)
        while True:
            ended, now = self.bounded(waited)
            if ended:
                return now - began
            if now >= began + timeout_s:
                raise BoardTimeout(
                    f"{self.profile.name}: the kernel did not end in {timeout_s:g} s; `rsn check` says whether the "
                    "program can end at all, timeout_s of a profile gives it longer"
                )

    def _give_back(self) -> None:
        self.held, self.age, self._open = [], self.age + 1, False
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
        self._open = True

    def _probe(self) -> None:
        """Check the fingerprint, which the kernel's register holds only after a run: run an image that only ends every
        decoder."""
        expected = self.profile.overlay
        helds = {name: self.allocate(name, PAGE) for name in self.profile.limits}
        self.device.write(helds[INSTRUCTIONS].handle, 0, encode_image(terminators(expected)))
        try:
            self.execute(helds, min(PROBE_S, self.profile.timeout_s))
        except BoardTimeout as e:
            raise BoardTimeout(
                f"{self.profile.name}: the kernel did not end an empty program: it hangs from an earlier run, or is "
                "another kernel; load the bitstream again, or restart the board"
            ) from e
        found = f"{self.device.register(len(self.profile.arguments)):016x}"
        if found != expected.fingerprint:
            raise BoardMismatch(
                f"overlay {expected.name} has fingerprint {expected.fingerprint} in this rsn, the bitstream has "
                f"{found}: build the bitstream again (make -C hw/versal xclbin), or use the rsn it was built with"
            )
        self.facts["fingerprint"] = found
        self.release(helds.values(), self.age)


def terminators(overlay: Overlay) -> list[Packet]:
    """Return the packets that end every decoder: the smallest image that a kernel completes."""
    out = []
    for kind in overlay.terminators:
        units = overlay.by_kind[kind]
        mask = sum(1 << u.index for u in units) if len(units) > 1 else 0
        out.append(Packet.terminator(overlay.format_of(kind).opcode, mask))
    return out


def recorded(profile: Profile, xclbin: Xclbin | None, facts: Facts) -> dict[str, str]:
    """Return facts for the record of a run: board, bitstream, clocks. Where the board does not report a clock, it is
    the one that the bitstream was built for."""
    out = {"board": profile.name, **facts.known}
    if xclbin is not None:
        out |= {"xclbin": xclbin.uuid, "platform": xclbin.platform, "xclbin_version": xclbin.version}
        out |= {f"clock {name}": f"{mhz:g} MHz" for name, mhz in xclbin.clocks.items()}
    return out | {"pl_mhz (built for)": f"{profile.pl_mhz:g}", "aie_mhz (built for)": f"{profile.aie_mhz:g}"}
