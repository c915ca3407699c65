"""Reads op lists, from JSON made by other tools, for units that packets do not drive (the MMEs)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base.finding import Finding
from .fields import Record
from .image import places
from .overlay import Overlay

MAX_KEY = 40
"""Characters of an unknown key that a finding shows."""


def read_op_lists(lists: Any, overlay: Overlay) -> tuple[dict[str, tuple[Record, ...]], list[Finding]]:
    """Read op lists from decoded JSON; return the ops by unit name, and a finding for each defect.

    lists: an object that maps the index of an MME ("0") or the name of a unit ("MME0") to a list of 32-bit words. A
    list with an error is left out; bits set in padding are a warning.
    """
    ops: dict[str, tuple[Record, ...]] = {}
    found: list[Finding] = []
    if not isinstance(lists, Mapping):
        text = "expected an object of indices or unit names with lists of op words"
        return ops, [Finding("F12", text, "op lists")]
    units = _op_list_keys(overlay)
    keys: dict[str, str] = {}
    for key, words in lists.items():
        unit = units.get(key)
        if unit is None:
            text = f"overlay {overlay.name} has no unit {_shown(key)} with an op list"
            known = f"its keys are {', '.join(units)}" if units else "its units have no op lists"
            found.append(Finding("M01", f"{text}; {known}", f"key {_shown(key)}"))
            continue
        if unit in keys:
            text = f"{unit} has two op lists, under the keys {keys[unit]} and {key}"
            found.append(Finding("F12", text, f"key {key}"))
            continue
        keys[unit] = key
        record = overlay.preloaded[overlay.by_unit[unit].kind].record
        if not isinstance(words, list) or not all(type(w) is int and 0 <= w < 1 << 32 for w in words):
            found.append(Finding("F12", f"the ops of {unit} (key {key}) are not a list of 32-bit words", unit))
            continue
        size = record.WORDS
        if len(words) % size:
            text = f"the ops of {unit} (key {key}) are {len(words)} words, but each op has {size}"
            found.append(Finding("F12", text, unit))
            continue
        entries = [words[i : i + size] for i in range(0, len(words), size)]
        padded = [i for i, entry in enumerate(entries) if record.padding_set(entry)]
        if padded:
            text = f"padding bits are set in {places('op', padded)}; the hardware ignores them"
            found.append(Finding("F10", text, unit, True, "write them as 0", times=len(padded)))
        ops[unit] = tuple(map(record.decode, entries))
    return ops, found


def _op_list_keys(overlay: Overlay) -> dict[str, str]:
    """The accepted keys of units with op lists: the unit's name and, if one FU type alone has op lists, its index."""
    named = [u for u in overlay.units if u.kind in overlay.preloaded]
    indices = {str(u.index): u.name for u in named} if len(overlay.preloaded) == 1 else {}
    return indices | {u.name: u.name for u in named}


def _shown(key: object) -> str:
    """A key of a file, shortened and escaped for a one-line message."""
    text = str(key)
    return text if text.isprintable() and 0 < len(text) <= MAX_KEY else repr(text[:MAX_KEY])
