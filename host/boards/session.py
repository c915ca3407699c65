"""A device while it is open: taken, loaded, known to be the right one, given back. Boards in one process share it."""

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
"""How long ^C may have to wait."""

PROBE_S = 5.0
"""In this time a kernel has ended that has nothing to do."""

PAGE = 4096

CALLS_S = 60.0
"""In this time calls of the device have come back."""
LOADING_S = 600.0
"""And those that load a bitstream, or gigabytes of weights."""

T = TypeVar("T")


STUCK = (
    "a call of the device's driver has not come back: nothing but the end of this process gives the device back, and "
    "it may take a restart of the board"
)


class NoRoom(BoardBusy):
    """For one more program; those that are there are well."""


@dataclass(eq=False)
class Held:
    """A buffer of the device. users: boards that rely on what is in it. contents: what that is, where others may share
    it: the layout of a bank of weights, and its checksum."""

    handle: int
    users: int = 1
    contents: tuple[object, bytes] | None = None


class Session:
    """One device and its bitstream, opened when it is first needed. After an error everything has been given back;
    whoever comes next begins anew, and the boards that share it with him, too."""

    def __init__(
        self, profile: Profile, device: Device, *, bitstream: Path | None = None, lock: DeviceLock | None = None
    ) -> None:
        """bitstream: what to load, an .xclbin or what else the device takes; None where it needs none. Raises
        `BoardMismatch` for an .xclbin that is not what the profile says."""
        self.profile = profile
        self.device = device
        self.bitstream = bitstream
        self.facts: dict[str, str] = {}
        """Of the board that is open: names, versions, clocks."""
        self.clock = ""
        self.held: list[Held] = []
        self.age = 0
        """Changes when everything was given back: buffers of before are gone."""
        self._xclbin = read_xclbin(bitstream) if bitstream is not None and bitstream.suffix != ".pdi" else None
        if self._xclbin is not None:
            match_xclbin(profile, self._xclbin)
        self._lock = lock
        self._taken = self._open = self._stuck = False
        self._mutex = threading.RLock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have the open device alone. Whatever goes wrong, ^C included: nobody knows in which state the board is then,
        so nothing of it is kept."""
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
        """Make calls of the device, in a thread of their own: should one never come back, whoever waits does, with
        `BoardLost`. ^C, too, waits until they have come back: nothing can be given back while they go on."""
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
        held = Held(self.device.allocate(self.profile.argument(buffer), max(padded(size, PAGE), PAGE)))
        self.held.append(held)
        return held

    def release(self, helds: Iterable[Held], age: int) -> None:
        """Give buffers back, in one's turn."""
        for held in helds if age == self.age else ():
            held.users -= 1
            if not held.users:
                self.held.remove(held)
                self.device.free(held.handle)

    def leave(self, helds: Iterable[Held], age: int) -> None:
        """Give buffers back; the device, with the last one. Raises nothing."""
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
        """Start the kernel and wait; the seconds it took, as seen from here."""

        def start() -> float:
            now = time.perf_counter()
            self.device.start([helds[name].handle for name in self.profile.arguments])
            return now

        def waited() -> tuple[bool, float]:
            left = began + timeout_s - time.perf_counter()
            return self.device.wait(min(SLICE_S, max(left, 0.0))), time.perf_counter()

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
        if self._stuck or not self._taken:  # lost with this process; or somebody else's
            return
        try:
            self.bounded(self.device.close)
        except BoardLost:  # now it is
            return
        self._taken = False
        if self._lock is not None:
            self._lock.release()

    def _prepare(self) -> None:
        """Take the device; load; find out what it is."""
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
        self.device.reset_graph()  # a device that has none says so before weights are uploaded
        self._open = True

    def _probe(self) -> None:
        """The bitstream says what it is only when it has run: it runs an image that ends every decoder, and does
        nothing else."""
        expected = self.profile.overlay
        helds = {name: self.allocate(name, PAGE) for name in self.profile.limits}
        self.device.write(helds[INSTRUCTIONS].handle, 0, encode_image(terminators(expected)))
        try:
            self.execute(helds, min(PROBE_S, self.profile.timeout_s))
        except BoardTimeout as e:
            raise BoardTimeout(
                f"{self.profile.name}: the kernel does not even end when it has nothing to do: it hangs from an "
                "earlier run, or is another one; load the bitstream anew, or restart the board"
            ) from e
        found = f"{self.device.register(len(self.profile.arguments)):016x}"
        if found != expected.fingerprint:
            raise BoardMismatch(
                f"overlay {expected.name} is {expected.fingerprint} here, the bitstream is {found}: build the "
                "bitstream anew (make -C hw/versal xclbin), or use the version of rsn that it was built with"
            )
        self.facts["fingerprint"] = found
        self.release(helds.values(), self.age)


def terminators(overlay: Overlay) -> list[Packet]:
    """An image that ends every decoder."""
    out = []
    for kind in overlay.terminators:
        units = overlay.by_kind[kind]
        mask = sum(1 << u.index for u in units) if len(units) > 1 else 0
        out.append(Packet.terminator(overlay.format_of(kind).opcode, mask))
    return out


def recorded(profile: Profile, xclbin: Xclbin | None, facts: Facts) -> dict[str, str]:
    """What is worth knowing of a result: which board, which bitstream, which clocks. A clock that nothing on the board
    states is the one it was built for."""
    out = {"board": profile.name, **facts.known}
    if xclbin is not None:
        out |= {"xclbin": xclbin.uuid, "platform": xclbin.platform, "xclbin_version": xclbin.version}
        out |= {f"clock {name}": f"{mhz:g} MHz" for name, mhz in xclbin.clocks.items()}
    return out | {"pl_mhz (built for)": f"{profile.pl_mhz:g}", "aie_mhz (built for)": f"{profile.aie_mhz:g}"}
