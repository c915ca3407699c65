"""What a board and its bitstream are like, as data. A file of a user's own says what is different from one of these."""

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
from ...isa.overlays.xnn.board import ARGUMENTS, FINGERPRINT, GRAPH, KERNEL, PLATFORM

INSTRUCTIONS = "instructions"
"""The buffer of the image, beside those that are a bank each."""


@dataclass(frozen=True)
class Profile:
    """A bitstream and the host set-up around it.

    overlay: the machine that it is. arguments: which buffer each argument of the kernel takes: a bank or the
    instructions. fingerprint: name of the scalar argument behind them that every run sets to the overlay's, "" where
    there is none. limits: bytes that a buffer may have. pl_mhz, aie_mhz: the clocks that it was built for. uuid,
    sha256: of the one xclbin that is meant; needed where there is no fingerprint to tell it from others. timeout_s:
    longer a run does not take. source: where the bitstream comes from.
    """

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
    timeout_s: float = 60.0
    xclbin: Path | None = None
    uuid: str = ""
    sha256: str = ""
    source: str = field(default="", compare=False)

    def argument(self, buffer: str) -> int:
        """The first argument that takes a buffer."""
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
    source="hw/versal",
)

VCK190_ISCA25 = dataclasses.replace(
    VCK190,
    name="vck190-isca25",
    overlay=XNN_BASE,
    fingerprint="",
    limits={"lpddr": 64 << 20, "ddr": 256 << 20, INSTRUCTIONS: 512 << 10},
    source="doi:10.5281/zenodo.15102698, as its own host sets it up",
)

PROFILES = {p.name: p for p in (VCK190, VCK190_ISCA25)}

_TEXTS = ("name", "kernel", "graph", "fingerprint", "platform", "uuid", "sha256", "source")
_NUMBERS = ("pl_mhz", "aie_mhz", "timeout_s")


def find_profile(name: str) -> Profile:
    """A profile by its name, or by the path of a `.toml` file: `base`, and what is different from it.

    Raises `BoardError` naming file and key.
    """
    if not name.endswith(".toml"):
        if name not in PROFILES:
            raise BoardError(f"no board profile {name!r}; there are {', '.join(PROFILES)}, or a .toml file of your own")
        return PROFILES[name]
    try:
        said: dict[str, Any] = tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as e:
        raise BoardError(f"{name}: {e.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise BoardError(f"{name}: {e}") from None
    base = said.pop("base", None)
    if base not in PROFILES:
        raise BoardError(f"{name}: base = {base!r}; it is one of {', '.join(PROFILES)}")
    profile = dataclasses.replace(PROFILES[base], name=Path(name).stem)
    return dataclasses.replace(profile, **{key: _value(profile, name, key, value) for key, value in said.items()})


def _value(profile: Profile, file: str, key: str, value: object) -> Any:
    if key == "limits" and isinstance(value, dict):
        for buffer, size in value.items():
            if buffer not in profile.limits or type(size) is not int or size < 1:
                raise BoardError(f"{file}: limits.{buffer} = {size!r}; bytes of {', '.join(profile.limits)}")
        return {**profile.limits, **value}
    if key == "uuid" and isinstance(value, str):
        try:
            return str(UUID(value))
        except ValueError:
            raise BoardError(f"{file}: uuid = {value!r} is none") from None
    if key == "xclbin" and isinstance(value, str):
        return Path(file).parent / value
    if key in _TEXTS and isinstance(value, str):
        return value.lower() if key == "sha256" else value
    if key in _NUMBERS and isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9:
        return float(value)
    known = ", ".join(("base", "limits", "xclbin", *_TEXTS, *_NUMBERS))
    raise BoardError(f"{file}: {key} = {value!r} is not understood; a profile has {known}")
