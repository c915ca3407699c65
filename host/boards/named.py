"""Makes boards from their names: PROFILE[@DEVICE[:INDEX]]."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from weakref import WeakValueDictionary

from ...base.errors import BoardError
from .device import Device
from .in_process import InProcess, native
from .lock import DeviceLock
from .profile import PROFILES, Profile, find_profile
from .pynq import PynqDevice
from .session import Session
from .stamp import Stamp
from .xrt import XrtBoard, find_xclbin
from .xrt_ctypes import CtypesXrt
from .xrt_pyxrt import Pyxrt

REAL: dict[str, Callable[[int], Device]] = {"xrt": CtypesXrt, "pyxrt": Pyxrt, "pynq": PynqDevice}
"""Devices that exist once: they have a bitstream and a lock."""
IN_PROCESS: dict[str, Callable[[Profile], Device]] = {
    "sim": lambda profile: InProcess(),
    "csim": lambda profile: InProcess(native(profile.overlay), "csim"),
}
"""Devices in this process."""

_sessions: WeakValueDictionary[object, Session] = WeakValueDictionary()
"""The sessions of real devices that boards of this process use."""
_mutex = threading.Lock()


def _forget() -> None:
    """In a forked child (see `forks`): the sessions and their open devices belong to the parent."""
    global _sessions, _mutex
    _sessions, _mutex = WeakValueDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_forget)


def find_board(name: str) -> tuple[Profile, str, int]:
    """Return the parts of a board's name, PROFILE[@DEVICE[:INDEX]]: the profile, the kind of device ("xrt" by default)
    and its index (0 by default). Raises `BoardError` for an unknown profile or device."""
    profile_name, _, device_name = name.partition("@")
    kind, _, number = (device_name or "xrt").partition(":")
    devices = (*REAL, *IN_PROCESS)
    if profile_name not in PROFILES and not profile_name.endswith(".toml"):
        known = ", ".join(("sim", "csim", *PROFILES))
        raise BoardError(f"no board {name!r}; there are {known}, and profiles of your own (.toml)")
    if kind not in devices or not (number or "0").isdecimal():
        known = ", ".join(devices)
        raise BoardError(f"no device {device_name!r}; a board is PROFILE@DEVICE[:INDEX], DEVICE one of {known}")
    return find_profile(profile_name), kind, int(number or 0)


def open_profile(name: str, xclbin: str | os.PathLike[str] | None) -> XrtBoard:
    """Make the board of a profile, and read its bitstream. name: PROFILE[@DEVICE[:INDEX]]. xclbin: path of the
    bitstream; None takes that of the environment or the profile. Raises `BoardError` for an unknown profile or device,
    and for a missing bitstream or library, `BoardMismatch` for a bitstream that is not the profile's."""
    profile, kind, index = find_board(name)
    if kind in IN_PROCESS:
        return XrtBoard(Session(profile, IN_PROCESS[kind](profile), bitstream=Path(xclbin) if xclbin else None))
    with _mutex:
        device = REAL[kind](index)
        bitstream = find_xclbin(xclbin, profile)
        key = (name.partition("@")[0], kind, index, bitstream.absolute())
        session = _sessions.get(key)
        if session is None:
            lock, stamp = DeviceLock(f"device{index}"), Stamp(f"device{index}")
            session = Session(profile, device, bitstream=bitstream, lock=lock, stamp=stamp)
            _sessions[key] = session
        return XrtBoard(session)
