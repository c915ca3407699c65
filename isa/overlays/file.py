"""Overlay files: TOML files that change rates, FIFO depths and stream depths of an overlay.

```toml
overlay = "xnn"
[rates]
ddr_read_gbs = 42.0
mop_fifo_depth = 8
[streams]
"MeshA->MME0" = 4
```
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...base.errors import ProgramError
from ..overlay import FIFO_DEPTHS, Overlay

SECTIONS = ("rates", "streams")


def changed(overlay: Overlay, path: str | os.PathLike[str]) -> Overlay:
    """Return a copy of an overlay with the rates, FIFO depths and stream depths that a file gives.

    Raises `ProgramError`, naming the file and the fault: it is missing, no TOML, for another overlay, or has a name or
    a value that the overlay cannot have.
    """
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ProgramError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as e:  # not TOML's own errors alone: a number may have too many digits
        raise ProgramError(f"{path}: no TOML: {e}") from None
    made_for = given.pop("overlay", overlay.name)
    if made_for != overlay.name:
        raise ProgramError(f"{path}: it is about overlay {made_for}, the program about {overlay.name}")
    unknown = set(given) - set(SECTIONS)
    if unknown:
        raise ProgramError(
            f"{path}: nothing is called {sorted(unknown)[0]!r} here, only overlay, {', '.join(SECTIONS)}"
        )
    try:
        rates, depths = (dict(_numbers(name, given.get(name, {}))) for name in SECTIONS)
        return overlay.with_depths(depths).with_rates(**rates)
    except ProgramError as e:
        raise ProgramError(f"{path}: {e}") from None


def _numbers(section: str, given: Any) -> Iterator[tuple[str, float]]:
    if not isinstance(given, dict):
        raise ProgramError(f"{section} is a table of names and numbers")
    for name, value in given.items():
        if type(value) not in (int, float):
            raise ProgramError(f"{section}: {name} = {value!r} is no number")
        yield name, value


def show(overlay: Overlay) -> str:
    """Return an overlay's parameters as the text of an overlay file; comments give the unit and the source of each."""
    lines = [f'overlay = "{overlay.name}"', "", "[rates]"]
    for name, rate in overlay.rates.items():
        how = "fitted" if rate.calibrated else "given"
        lines.append(f"{f'{name} = {rate.value}':<24}# {rate.unit}; {how}: {rate.source}; counts as {rate.cause}")
    lines += [f"{f'{name} = {getattr(overlay, name)}':<24}# slots" for name in FIFO_DEPTHS]
    lines += ["", "[streams]  # depth in words"]
    lines += [f'"{s.name}" = {s.depth}' for s in overlay.streams]
    return "\n".join(lines) + "\n"


def facts(overlay: Overlay) -> dict[str, Any]:
    """Return an overlay's parameters as a JSON object."""
    return {
        "overlay": overlay.name,
        "rates": {name: dataclasses.asdict(rate) for name, rate in overlay.rates.items()},
        "fifos": {name: getattr(overlay, name) for name in FIFO_DEPTHS},
        "streams": {s.name: s.depth for s in overlay.streams},
    }
