"""Overlay files: TOML files that change the rates, depths and sizes of an overlay.

```toml
name = "wide"          # of the overlay that the file makes; default: the name of the file
overlay = "xnn"        # the overlay that it changes
[memories.MemA]        # an FU type, or one unit
slots = 4
[units]
MME = 4                # the first four; the others go, with their streams
MemC = 4
[banks]
lpddr = 4294967296     # bytes
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
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ...base.errors import ProgramError
from ..overlay import CLOCK, FIFO_DEPTHS, Overlay
from .shipped import OVERLAYS
from .tasks import TASKS

SUFFIX = ".toml"
"""Of the name of an overlay file."""
LONGEST = 1 << 20
"""Limit of an overlay file, in bytes."""
WHOLE: dict[str, Overlay] = {TASKS.name: TASKS}
"""Overlays whose files hold a whole machine, by name. A package above this one enters its own here."""
SECTIONS = ("memories", "units", "banks", "rates", "streams")
SIZES = ("slots", "rows", "columns")
"""Sizes of a memory that a file can change."""


def find(name: str, overlays: Mapping[str, Overlay] = OVERLAYS) -> Overlay:
    """Return the overlay of this name, or the one that an overlay file makes, given its path (`*.toml`).

    overlays: those that ship. Raises `ProgramError` for an unknown name, or a file that is missing or wrong, `OSError`
    for one that cannot be read."""
    if name in overlays:
        return overlays[name]
    if name.endswith(SUFFIX):
        return made(_read(name), name, overlays)
    known = ", ".join(overlays)
    hint = _close(name, overlays)
    raise ProgramError(f"no overlay {name!r}{hint}; there are {known}, and overlay files (*{SUFFIX})")


def changed(overlay: Overlay, path: str | os.PathLike[str]) -> Overlay:
    """Return a copy of an overlay with all changes that a file makes, whose name it keeps.

    Raises `ProgramError`, naming the file and the fault: it is missing, no TOML, for another overlay, or has a name or
    a value that the overlay cannot have. Raises `OSError` if the file cannot be read.
    """
    given = _parsed(_read(path), str(path))
    made_for = given.get("overlay", overlay.name)
    if made_for != overlay.name:
        raise ProgramError(f"{path}: it is about overlay {made_for}, the program about {overlay.name}")
    return dataclasses.replace(_applied(overlay, given, str(path)), name=overlay.name)


def made(text: str, label: str, overlays: Mapping[str, Overlay] = OVERLAYS) -> Overlay:
    """Return the overlay that the text of an overlay file makes. label: the file's path, which messages name. overlays:
    those that it may change, by name.

    Raises `ProgramError` as `changed`, and for a name that an overlay of `overlays` has.
    """
    given = _parsed(text, label)
    base, name = given.get("overlay"), given.get("name", Path(label).stem)
    bases = {**overlays, **WHOLE}
    if base is None:
        raise ProgramError(f'{label}: it names no overlay to change: overlay = "xnn"')
    if base not in bases:
        raise ProgramError(f"{label}: overlay: no overlay {base!r}{_close(base, overlays)}")
    if not name or not name.isprintable() or '"' in name or "\\" in name:
        raise ProgramError(f"{label}: name: {name!r} is no name")
    if name in bases:
        raise ProgramError(f"{label}: name: there is an overlay {name!r} already; give this one another name")
    whole = bases[base].whole
    if whole is None:
        return dataclasses.replace(_applied(bases[base], given, label), name=name)
    try:
        return whole(given, name)
    except ProgramError as e:
        raise ProgramError(f"{label}: {e}") from None


def _read(path: str | os.PathLike[str]) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(LONGEST + 1)
        if len(data) > LONGEST:
            raise ProgramError(f"{path}: larger than {LONGEST >> 20} MiB")
        return data.decode("utf-8")
    except FileNotFoundError:
        raise ProgramError(f"{path}: no such file") from None
    except UnicodeDecodeError as e:
        raise ProgramError(f"{path}: no TOML: {e}") from None


def _parsed(text: str, label: str) -> dict[str, Any]:
    """Return what a text says, its keys and the types of its values checked, except for the names of units, rates and
    streams."""
    try:
        given = tomllib.loads(text.replace("\r\n", "\n"))
    except (ValueError, RecursionError) as e:  # not TOML's own errors alone: a number may have too many digits
        raise ProgramError(f"{label}: no TOML: {e}") from None
    keys = ("name", "overlay", *SECTIONS)
    for key in () if str(given.get("overlay")) in WHOLE else given:
        if key not in keys:
            raise ProgramError(
                f"{label}: nothing is called {key!r} here{_close(key, keys)}, only {', '.join(keys[1:])} and name"
            )
    for key in ("name", "overlay"):
        if key in given and not isinstance(given[key], str):
            raise ProgramError(f"{label}: {key} = {given[key]!r} is no text")
    return given


def _applied(overlay: Overlay, given: Mapping[str, Any], label: str) -> Overlay:
    """Return an overlay with the changes of a parsed file."""
    try:
        units = _integers("units", given.get("units", {}))
        memories = dict(_memories(given.get("memories", {})))
        banks = _integers("banks", given.get("banks", {}))
        rates, depths = (dict(_numbers(name, given.get(name, {}))) for name in ("rates", "streams"))
        out = _with_units(overlay, units) if units else overlay
        if memories:
            out = _with_memories(out, overlay, memories)
        if banks:
            out = _with_banks(out, banks)
        if out is not overlay:
            out = out if out.refit is None else out.refit(out)
        out = out.with_depths(depths).with_rates(**rates)
    except ProgramError as e:
        raise ProgramError(f"{label}: {e}") from None
    base = OVERLAYS.get(overlay.base or overlay.name, overlay)
    return dataclasses.replace(out, base=base.name, changes=tuple(_changes(out, base)))


def _numbers(section: str, given: Any) -> Iterator[tuple[str, float]]:
    if not isinstance(given, dict):
        raise ProgramError(f"{section} is a table of names and numbers")
    for name, value in given.items():
        if type(value) not in (int, float):
            raise ProgramError(f"{section}: {name} = {value!r} is no number")
        yield name, value


def _integers(section: str, given: Any) -> dict[str, int]:
    out: dict[str, int] = {}
    for name, value in _numbers(section, given):
        if not isinstance(value, int) or value < 1:
            raise ProgramError(f"{section}.{name} = {value!r}: must be a whole number from 1 on")
        out[name] = value
    return out


def _memories(given: Any) -> Iterator[tuple[str, dict[str, int]]]:
    if not isinstance(given, dict):
        raise ProgramError("memories is a table of units")
    for name, sizes in given.items():
        if not isinstance(sizes, dict):
            raise ProgramError(f"memories.{name} = {sizes!r}: must be a table with {', '.join(SIZES)}")
        for key in sizes:
            if key not in SIZES:
                raise ProgramError(
                    f"memories.{name} has no {key!r}{_close(key, SIZES)}; a memory has {', '.join(SIZES)}"
                )
        yield name, _integers(f"memories.{name}", sizes)


def _with_units(overlay: Overlay, counts: Mapping[str, int]) -> Overlay:
    """The overlay with fewer units of some kinds: those of the highest index go, with the streams that touch them."""
    gone: set[str] = set()
    for kind, count in counts.items():
        if kind not in overlay.by_kind:
            raise ProgramError(
                f"units: no FU type {kind!r}{_close(kind, overlay.by_kind)}; there are {', '.join(overlay.by_kind)}"
            )
        units = sorted(overlay.by_kind[kind], key=lambda u: u.index)
        if count > len(units):
            raise ProgramError(
                f"units.{kind} = {count}: overlay {overlay.name} has {len(units)}; its formats have no bits for more"
            )
        gone |= {u.name for u in units[count:]}
    return dataclasses.replace(
        overlay,
        units=tuple(u for u in overlay.units if u.name not in gone),
        streams=tuple(s for s in overlay.streams if not {s.src, s.dst} & gone),
    )


def _with_memories(overlay: Overlay, whole: Overlay, sizes: Mapping[str, Mapping[str, int]]) -> Overlay:
    """The overlay with other sizes of some memories. What is said of one unit goes before what is said of its kind.

    whole: the overlay before units were taken from it.
    """
    for name in sizes:
        known = [*whole.by_kind, *whole.by_unit]
        if name not in known:
            raise ProgramError(f"memories: no unit or FU type {name!r}{_close(name, known)}")
        if name not in overlay.by_kind and name not in overlay.by_unit:
            raise ProgramError(f"memories.{name}: [units] leaves no {name}")
        members = overlay.by_kind.get(name) or (overlay.by_unit[name],)
        if all(u.memory is None for u in members):
            raise ProgramError(f"memories.{name}: a {members[0].kind} has no memory")
    if sizes and overlay.refit is None:
        raise ProgramError(
            f"memories: overlay {overlay.name} does not say what follows from other memories (Overlay.refit)"
        )
    units = []
    for u in overlay.units:
        changes = {**sizes.get(u.kind, {}), **sizes.get(u.name, {})}
        if changes and u.memory is not None:
            try:
                u = dataclasses.replace(u, memory=dataclasses.replace(u.memory, **changes))
            except ProgramError as e:
                raise ProgramError(f"memories.{u.name if u.name in sizes else u.kind}: {e}") from None
        units.append(u)
    return dataclasses.replace(overlay, units=tuple(units))


def _with_banks(overlay: Overlay, sizes: Mapping[str, int]) -> Overlay:
    for name, size in sizes.items():
        if name not in overlay.banks:
            raise ProgramError(
                f"banks: no bank {name!r}{_close(name, overlay.banks)}; there are {', '.join(overlay.banks)}"
            )
        step = 4 * overlay.address_unit
        if size % step or size > overlay.max_bank_bytes:
            raise ProgramError(
                f"banks.{name} = {size}: must be a multiple of {step} bytes, and at most {overlay.max_bank_bytes}, "
                "which addresses reach"
            )
    return dataclasses.replace(overlay, banks={**overlay.banks, **sizes})


def _close(name: str, known: Any) -> str:
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


# -- as text ----------------------------------------------------------------------------------------------------------


def _settings(overlay: Overlay) -> dict[str, float]:
    """All numbers that an overlay file can change, by their names in one line of such a file, in one order."""
    out: dict[str, float] = {f"units.{kind}": len(units) for kind, units in overlay.by_kind.items()}
    for u in overlay.units:
        out |= {f"memories.{u.name}.{size}": getattr(u.memory, size) for size in SIZES if u.memory is not None}
    out |= {f"banks.{name}": size for name, size in overlay.banks.items()}
    out |= {f"rates.{name}": rate.value for name, rate in overlay.rates.items()}
    out |= {f"rates.{name}": getattr(overlay, name) for name in (CLOCK, *FIFO_DEPTHS)}
    return out | {f'streams."{s.name}"': s.depth for s in overlay.streams}


def _changes(overlay: Overlay, base: Overlay) -> list[str]:
    """In which numbers an overlay differs from the one that it changes, as lines of an overlay file."""
    before = _settings(base)
    return [f"{name} = {value!r}" for name, value in _settings(overlay).items() if value != before[name]]


def lines(overlay: Overlay) -> list[str]:
    """Return the lines of an overlay file that makes a changed overlay, except for its name."""
    return [f'overlay = "{overlay.base}"', *overlay.changes]


def text(overlay: Overlay) -> str:
    """Return the text of an overlay file that makes a changed overlay: what `made` reads."""
    return "\n".join([f'name = "{overlay.name}"', *lines(overlay), ""])


def differences(overlay: Overlay) -> list[str]:
    """Return, as a list of phrases such as `4 MMEs, not 6`, how a changed overlay differs from the one that it changes.
    Units of one kind that changed alike have one phrase. Empty for an overlay that no file changed."""
    if overlay.whole is not None:
        return [f"a machine of {len(overlay.units)} units that its own file describes"]
    base = OVERLAYS.get(overlay.base or "")
    if base is None or not overlay.changes:
        return []
    out = []
    for kind, units in base.by_kind.items():
        left = overlay.by_kind[kind]
        if len(left) != len(units):
            out.append(f"{len(left)} {kind}s, not {len(units)}")
        for size in SIZES:
            pairs = {u.name: tuple(getattr(b.by_unit[u.name].memory, size, 0) for b in (overlay, base)) for u in left}
            alike = len(set(pairs.values())) == 1
            for name, (now, before) in {kind: next(iter(pairs.values()))}.items() if alike else pairs.items():
                if now != before:
                    out.append(f"{name}: {now} {size}, not {before}")
    for line in overlay.changes:
        section, _, rest = line.partition(".")
        if section in ("banks", "rates", "streams"):
            out.append(rest.replace('"', ""))
    return out


def without_hardware(overlay: Overlay) -> str:
    """Return, as a sentence, why no hardware runs programs of an overlay: it has other units or memories than the one
    that it changes. "" if it has the same; rates, depths and sizes of banks are not looked at.
    """
    if not any(line.startswith(("units.", "memories.")) for line in overlay.changes):
        return ""
    return (
        f"the program is for overlay {overlay.name} {overlay.fingerprint}, which changes {overlay.base} "
        f"({'; '.join(differences(overlay))}); there are no sources of such a machine, so that only the simulator "
        "(--board sim) runs it"
    )


def show(overlay: Overlay) -> str:
    """Return an overlay's parameters as the text of an overlay file; comments give the unit and the source of each."""
    out = [f'overlay = "{overlay.base or overlay.name}"']
    if overlay.changes:
        out.insert(0, f'name = "{overlay.name}"')
    out += ["", "[rates]"]
    for name, rate in overlay.rates.items():
        how = "fitted" if rate.calibrated else "given"
        out.append(f"{f'{name} = {rate.value}':<24}# {rate.unit}; {how}: {rate.source}; counts as {rate.cause}")
    out.append(f"{f'{CLOCK} = {overlay.clock_mhz:g}':<24}# MHz, of the programmable logic")
    out += [f"{f'{name} = {getattr(overlay, name)}':<24}# slots" for name in FIFO_DEPTHS]
    out += ["", "[streams]  # depth in words"]
    out += [f'"{s.name}" = {s.depth}' for s in overlay.streams]
    for u in overlay.units:
        if u.memory is not None:
            sizes = [f"{size} = {getattr(u.memory, size)}" for size in SIZES]
            out += ["", f"[memories.{u.name}]  # float32 elements", *sizes]
    out += ["", "[units]  # of each FU type; not more than these"]
    out += [f"{kind} = {len(units)}" for kind, units in overlay.by_kind.items()]
    out += ["", "[banks]  # bytes off chip", *(f"{name} = {size}" for name, size in overlay.banks.items())]
    return "\n".join(out) + "\n"


def facts(overlay: Overlay) -> dict[str, Any]:
    """Return an overlay's parameters as a JSON object: memories in float32 elements and slots, banks in bytes, rates
    each with its unit, `fifos` in slots, streams in words, the clock of the programmable logic in MHz.
    """
    return {
        "overlay": overlay.name,
        "base": overlay.base,
        "changes": list(overlay.changes),
        "memories": {u.name: {s: getattr(u.memory, s) for s in SIZES} for u in overlay.units if u.memory},
        "units": {kind: len(units) for kind, units in overlay.by_kind.items()},
        "banks": dict(overlay.banks),
        "rates": {name: dataclasses.asdict(rate) for name, rate in overlay.rates.items()},
        CLOCK: overlay.clock_mhz,
        "fifos": {name: getattr(overlay, name) for name in FIFO_DEPTHS},
        "streams": {s.name: s.depth for s in overlay.streams},
    }
