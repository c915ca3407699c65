"""Board profiles: a board and its bitstream as data. A user's own file states only what differs from one of these."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from ...base.errors import BoardError
from ...isa.overlay import Overlay
from ...isa.overlays.xnn import XNN, XNN_BASE
from ...isa.overlays.xnn2 import XNN2
from ...isa.versal.board import ARGUMENTS, FINGERPRINT, GRAPH, KERNEL, PLATFORM

INSTRUCTIONS = "instructions"
"""Name of the buffer for the image; the other buffers are named after their banks."""

PARAMETERS = ("async", "sync")
"""How a graph takes its run-time parameters. async: a value holds until it is overwritten; it is written before a run,
and there must be one before the first. sync: a run waits for a value, and consumes it (AMD UG1079, run-time
parameters)."""


@dataclass(frozen=True)
class Profile:
    """A bitstream and how the host uses it. name: of the profile. overlay: the machine that the bitstream implements.
    kernel: name of the PL kernel. arguments: the buffer (a bank, or the instructions) for each argument of the kernel.
    graph: name of the AI Engine graph. fingerprint: name of the scalar argument behind those, whose register every run
    sets to the overlay's fingerprint; "" if there is none. parameters: how the graph takes its run-time parameters, one
    of `PARAMETERS`. limits: the most bytes of each buffer, by its name. platform: the platform that it was built for.
    pl_mhz, aie_mhz: clocks that it was built for, in MHz. timeout_s: seconds after which a run counts as hung. xclbin:
    path of the bitstream, None where the user names it. uuid, sha256: of the one xclbin that is meant; needed where no
    fingerprint tells it from others. source: where the bitstream comes from, or how it is built."""

    name: str
    overlay: Overlay
    kernel: str
    arguments: tuple[str, ...]
    graph: str
    fingerprint: str
    limits: Mapping[str, int]
    platform: str
    pl_mhz: float
    aie_mhz: float
    parameters: str = "async"
    timeout_s: float = 60.0
    xclbin: Path | None = None
    uuid: str = ""
    sha256: str = ""
    source: str = field(default="", compare=False)

    def argument(self, buffer: str) -> int:
        """Return the index of the kernel's first argument that takes a buffer, by the buffer's name. Raises
        `ValueError` if none does."""
        return self.arguments.index(buffer)


VCK190 = Profile(
    name="vck190",
    overlay=XNN,
    kernel=KERNEL,
    arguments=tuple(a.name.rstrip("0123456789") for a in ARGUMENTS),
    graph=GRAPH,
    fingerprint=FINGERPRINT,
    limits={**XNN.banks, INSTRUCTIONS: 64 << 20},
    platform=PLATFORM,
    pl_mhz=260.0,
    aie_mhz=1250.0,
    source="make -C hw/versal xclbin",
)

VCK190_XNN2 = dataclasses.replace(
    VCK190,
    name="vck190-xnn2",
    overlay=XNN2,
    limits={**XNN2.banks, INSTRUCTIONS: 64 << 20},
    source="make -C hw/versal MACHINE=xnn2 xclbin",
)

VCK190_ISCA25 = dataclasses.replace(
    VCK190,
    name="vck190-isca25",
    overlay=XNN_BASE,
    fingerprint="",
    parameters="sync",
    limits={"lpddr": 64 << 20, "ddr": 256 << 20, INSTRUCTIONS: 512 << 10},
    source="doi:10.5281/zenodo.15102698, as its own host sets it up",
)

PROFILES = {p.name: p for p in (VCK190, VCK190_ISCA25, VCK190_XNN2)}

_TEXTS = ("name", "kernel", "graph", "fingerprint", "platform", "uuid", "sha256", "source")
_NUMBERS = ("pl_mhz", "aie_mhz", "timeout_s")


def find_profile(name: str) -> Profile:
    """Return a profile by its name, or from a `.toml` file: its `base`, and what differs from it.

    Raises `BoardError` for an unknown name, and for a file that cannot be read or has a wrong key or value, naming file
    and key.
    """
    if not name.endswith(".toml"):
        if name not in PROFILES:
            raise BoardError(f"no board profile {name!r}; there are {', '.join(PROFILES)}, or a .toml file of your own")
        return PROFILES[name]
    try:
        settings: dict[str, Any] = tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as e:
        raise BoardError(f"{name}: {e.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as e:
        raise BoardError(f"{name}: {e}") from None
    base = settings.pop("base", None)
    if not isinstance(base, str) or base not in PROFILES:
        raise BoardError(f"{name}: base = {base!r} is not a profile; there are {', '.join(PROFILES)}")
    profile = dataclasses.replace(PROFILES[base], name=Path(name).stem)
    return dataclasses.replace(profile, **{key: _value(profile, name, key, value) for key, value in settings.items()})


def _value(profile: Profile, file: str, key: str, value: object) -> Any:
    if key == "limits" and isinstance(value, dict):
        for buffer, size in value.items():
            if buffer not in profile.limits or type(size) is not int or size < 1:
                known = ", ".join(profile.limits)
                raise BoardError(f"{file}: limits.{buffer} = {size!r}; limits are bytes, a whole number, of {known}")
        return {**profile.limits, **value}
    if key == "uuid" and isinstance(value, str):
        try:
            return str(UUID(value))
        except ValueError:
            raise BoardError(f"{file}: uuid = {value!r} is not a UUID") from None
    if key == "xclbin" and isinstance(value, str):
        return Path(file).parent / value
    if key == "parameters" and value in PARAMETERS:
        return value
    if key in _TEXTS and isinstance(value, str):
        return value.lower() if key == "sha256" else value
    if key in _NUMBERS and isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9:
        return float(value)
    known = ", ".join(("base", "limits", "xclbin", *_TEXTS, "parameters", *_NUMBERS))
    raise BoardError(f"{file}: {key} = {value!r}: unknown key, or a value of a wrong type; the keys are {known}")
