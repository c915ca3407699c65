"""Compares two programs by the uOPs that each unit executes, not by the packets that deliver them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .expansion import ExpandedProgram, Ints, region_name
from .fields import Record
from .program import Patch, Program

MAX_EDITS = 300
"""Largest number of insertions and deletions searched between two sequences; more of them count as one replacement."""

MAX_CHANGES = 40
"""Largest number of distinct changes listed for one unit; with more, one line says that it has little in common."""

Edit = tuple[int, int, int, int]
"""(i1, i2, j1, j2): a[i1:i2] was replaced by b[j1:j2]. Elements between edits are equal."""


@dataclass(frozen=True)
class Difference:
    """One difference between two programs.

    what: "overlay", "buffer", "parameter" or "kernel". text: the full description. a, b: its place in the first and in
    the second program, "" if it is in one only. uops: how many uOPs it covers.
    """

    what: str
    text: str
    a: str = ""
    b: str = ""
    uops: int = 0

    def __str__(self) -> str:
        places = " / ".join(x for x in (self.a, self.b) if x)
        return self.text + (f" ({places})" if places else "")


@dataclass(frozen=True)
class Comparison:
    """The result of `diff_programs`. identical: there are no differences and the images are equal too."""

    differences: tuple[Difference, ...]
    identical: bool

    @property
    def same(self) -> bool:
        """Whether the units execute the same uOPs on the same buffers with the same parameters; the packets
        may differ.
        """
        return not self.differences


def diff_programs(a: Program, b: Program) -> Comparison:
    """Compare two programs by the uOPs that each unit executes, their buffers and parameters. If their machines have
    different units, that is the only difference reported. Raises as `ExpandedProgram`."""
    if [u.name for u in a.overlay.units] != [u.name for u in b.overlay.units]:
        text = f"programs for different machines: {a.overlay.name} and {b.overlay.name}"
        return Comparison((Difference("overlay", text),), False)
    found: list[Difference] = []
    if a.overlay.fingerprint != b.overlay.fingerprint:
        text = f"overlay {a.overlay.name} {a.overlay.fingerprint} -> {b.overlay.name} {b.overlay.fingerprint}"
        found.append(Difference("overlay", text))
    left, right = ExpandedProgram(a), ExpandedProgram(b)
    found += _kernels(left, right)
    found += _named("buffer", {x.name: _plain(x) for x in a.buffers}, {x.name: _plain(x) for x in b.buffers})
    found += _named("parameter", _parameters(left), _parameters(right))
    identical = not found and np.array_equal(a.image, b.image)
    return Comparison(tuple(found), identical)


# -- declarations ---------------------------------------------------------------------------------------------------


def _plain(value: Any) -> dict[str, Any]:
    return {x.name: getattr(value, x.name) for x in dataclasses.fields(value) if x.name != "name"}


def _parameters(x: ExpandedProgram) -> dict[str, dict[str, Any]]:
    out = {}
    for p in x.program.parameters:
        places = sorted(place for patch in p.patches for place in _places(x, patch))
        out[p.name] = _plain(p) | {"patches": places}
    return out


def _places(x: ExpandedProgram, patch: Patch) -> Iterator[tuple[str, int, str, int, int]]:
    """The first uOP that a patch changes in each unit: unit, uOP number, field, base, cap. Independent of packing."""
    packet = x.program.packets[patch.packet]
    header = packet.header
    form = x.overlay.by_opcode[header.opcode]
    if form.loops_window:
        before = sum(sum(1 for _ in form.uops(m, 0)) for m in packet.mops[: patch.mop])
    else:
        before = patch.mop * header.reuse
    for u in x.overlay.selected(header.opcode, header.mask):
        at = int(np.searchsorted(x.sequences[u.name].origins, patch.packet)) + before
        yield u.name, at, patch.field, patch.base, patch.cap


def _named(what: str, a: dict[str, dict[str, Any]], b: dict[str, dict[str, Any]]) -> Iterator[Difference]:
    for which, here, there in (("first", a, b), ("second", b, a)):
        names = [n for n in here if n not in there]
        if names:
            many = f"{what}s" if len(names) > 1 else what
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            yield Difference(what, f"{many} only in the {which}: {', '.join(names[:3])}{more}")
    for name in a:
        if name in b and a[name] != b[name]:
            changes = ", ".join(_change(k, a[name][k], b[name][k]) for k in a[name] if a[name][k] != b[name][k])
            yield Difference(what, f"{what} {name}: {changes}")


def _change(name: str, old: Any, new: Any) -> str:
    if isinstance(old, list | tuple) and isinstance(new, list | tuple) and max(len(old), len(new)) > 3:
        n = sum(1 for x, y in zip(old, new, strict=False) if x != y) + abs(len(old) - len(new))
        return f"{name} {n} of {max(len(old), len(new))} values"
    return f"{name} {_value(old)} -> {_value(new)}"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "x".join(map(str, value)) if len(value) < 4 else f"{len(value)} values"
    return str(getattr(value, "value", value))


# -- kernels --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _UnitDifference:
    """A difference of one unit. Differences of several units with equal `key` are reported together."""

    unit: str
    key: tuple[Any, ...]
    text: str
    a: str
    b: str
    uops: int


def _kernels(a: ExpandedProgram, b: ExpandedProgram) -> Iterator[Difference]:
    together: dict[tuple[Any, ...], list[_UnitDifference]] = {}
    for unit in a.sequences:
        for piece in _unit(a, b, unit):
            together.setdefault((a.sequences[unit].unit.kind, *piece.key), []).append(piece)
    for pieces in together.values():
        first = pieces[0]
        names = ", ".join(p.unit for p in pieces)
        yield Difference("kernel", f"{names} {first.text}", first.a, first.b, sum(p.uops for p in pieces))


def _numbered(a: ExpandedProgram, b: ExpandedProgram, unit: str) -> tuple[Ints, Ints]:
    """The two sequences of a unit as numbers that are equal exactly if uOP and address are."""
    other = np.array([a.number(u) for u in b.uops] or [0], np.int64)
    ra, rb = a.sequences[unit], b.sequences[unit]
    return (ra.kinds << 40) + ra.shifts, (other[rb.kinds] << 40) + rb.shifts  # addresses have 32 bits


def _unit(a: ExpandedProgram, b: ExpandedProgram, unit: str) -> Iterator[_UnitDifference]:
    sa, sb = _numbered(a, b, unit)
    word = "op" if a.sequences[unit].unit.kind in a.overlay.preloaded else "uOP"
    script = edits(sa, sb)
    alike = len(sa) == len(sb) or all(max(e[1] - e[0], e[3] - e[2]) <= MAX_EDITS for e in script)
    if not alike:
        yield _little_in_common(a, b, unit, word, script)
        return
    found = list(_each_change(a, b, unit, word, script))
    if len(found) > MAX_CHANGES:
        yield _little_in_common(a, b, unit, word, script)
    else:
        yield from found


def _little_in_common(
    a: ExpandedProgram, b: ExpandedProgram, unit: str, word: str, script: Sequence[Edit]
) -> _UnitDifference:
    """One line for two sequences with too many differences to list."""
    (i1, _, j1, _), (_, i2, _, j2) = script[0], script[-1]
    n = len(a.sequences[unit]), len(b.sequences[unit])
    text = f"has little in common: {i2 - i1} of {n[0]} {word}s became {j2 - j1} of {n[1]}, from {word} {i1} on"
    return _UnitDifference(unit, (text,), text, a.where(unit, i1), b.where(unit, j1), max(i2 - i1, j2 - j1))


def _each_change(
    a: ExpandedProgram, b: ExpandedProgram, unit: str, word: str, script: Sequence[Edit]
) -> Iterator[_UnitDifference]:
    """Every change of a unit: equal changes of fields together, additions and removals one by one."""
    changed: dict[str, list[tuple[int, int]]] = {}
    for i1, i2, j1, j2 in script:
        n = min(i2 - i1, j2 - j1)
        for k in range(n):
            changed.setdefault(_changes(a, b, unit, i1 + k, j1 + k), []).append((i1 + k, j1 + k))
        for x, s, e, at, side in ((a, i1 + n, i2, j1 + n, "removed"), (b, j1 + n, j2, i1 + n, "added")):
            if s < e:
                many = f"{word}s {s}..{e - 1}" if e - s > 1 else f"{word} {s}"
                shown = _show(x, unit, s) + (", ..." if e - s > 1 else "")
                behind = f" behind {word} {at - 1}" if at else " at the start"
                text = f"{many} {side}{behind if side == 'added' else ''}: {shown}"
                place = x.where(unit, s)
                yield _UnitDifference(
                    unit,
                    (side, s, e, at, shown),
                    text,
                    place if side == "removed" else "",
                    place if side == "added" else "",
                    e - s,
                )
    for text, places in changed.items():
        i, j = places[0]
        ranges = _ranges([i for i, _ in places])
        shifted = f" ({_ranges([j for _, j in places])} in the second)" if i != j else ""
        yield _UnitDifference(
            unit,
            (text, ranges),
            f"{word} {ranges}{shifted}: {text}",
            a.where(unit, i),
            b.where(unit, j),
            len(places),
        )


def _ranges(numbers: Sequence[int]) -> str:
    """12..19, 40, ...: at most four ranges."""
    out: list[list[int]] = []
    for n in numbers:
        if out and n == out[-1][1] + 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    shown = ", ".join(str(s) if s == e else f"{s}..{e}" for s, e in out[:4])
    return shown + (f" and {len(out) - 4} more places ({len(numbers)} in all)" if len(out) > 4 else "")


def _fields(uop: Any) -> dict[str, Any]:
    if isinstance(uop, Record):
        return {x.name: getattr(uop, x.name) for x in uop.FIELDS}
    return uop._asdict() if hasattr(uop, "_asdict") else {"uop": uop}


def _at(x: ExpandedProgram, unit: str, i: int) -> tuple[Any, dict[str, Any]]:
    run = x.sequences[unit]
    uop = x.uops[run.kinds[i]]
    values = _fields(uop)
    if "addr" in values:
        values["addr"] += int(run.shifts[i])
    return uop, values


def _changes(a: ExpandedProgram, b: ExpandedProgram, unit: str, i: int, j: int) -> str:
    """The change from uOP i of a unit in a to its uOP j in b, as text: each changed field, old -> new.

    Two uOPs of different types are shown whole; an address is shown as a piece of a buffer if possible.
    """
    (ua, old), (ub, new) = _at(a, unit, i), _at(b, unit, j)
    if type(ua) is not type(ub):
        return f"{_show(a, unit, i)} -> {_show(b, unit, j)}"
    out = []
    for name, value in old.items():
        if value == new[name]:
            continue
        if name == "addr":
            pieces = _memory(a, unit, i), _memory(b, unit, j)
            if pieces[0] == pieces[1] != "":
                out.append("addr, as the buffer moved")
            else:
                out.append(f"{pieces[0]} -> {pieces[1]}" if all(pieces) else f"addr {value:#x} -> {new[name]:#x}")
        else:
            out.append(f"{name} {_value(value)} -> {_value(new[name])}")
    return ", ".join(out)


def _memory(x: ExpandedProgram, unit: str, i: int) -> str:
    """The piece of off-chip memory that a uOP accesses, by buffer name; "" if it accesses none."""
    run = x.sequences[unit]
    touch = x.overlay.transfer(run.unit, x.uops[run.kinds[i]])
    if touch is None:
        return ""
    step = x.overlay.address_unit
    start = (touch.addr + int(run.shifts[i])) * step
    return region_name([b for b in x.program.buffers if b.bank == touch.bank], step, start, start + touch.size)


def _show(x: ExpandedProgram, unit: str, i: int) -> str:
    """A uOP as short text: the piece of memory that it accesses, and the fields that differ from their defaults."""
    uop, values = _at(x, unit, i)
    default = _fields(type(uop)()) if isinstance(uop, Record) else {}
    flags = {x.name for x in uop.FIELDS if x.flag} if isinstance(uop, Record) else set()
    piece = _memory(x, unit, i)
    words = [piece] if piece else []
    for name, value in values.items():
        if (name in ("addr", "size") and piece) or value == default.get(name, 0):
            continue
        words.append(name if value is True or (value == 1 and name in flags) else f"{name}={_value(value)}")
    return " ".join(words) or "nothing"


# -- sequences ------------------------------------------------------------------------------------------------------


def edits(a: Ints, b: Ints) -> list[Edit]:
    """Return the edits that turn a into b, in rising order. a, b: vectors of integers that are equal exactly if the
    elements are.

    Sequences of equal length with few changes are compared element by element. Otherwise the shortest edit script is
    computed (Myers, "An O(ND) Difference Algorithm and Its Variations", 1986). If it has more than `MAX_EDITS` edits,
    one edit covers everything between the equal ends.
    """
    if len(a) == len(b):
        (differ,) = np.nonzero(a != b)
        if not len(differ):
            return []
        if len(differ) <= len(a) // 4:
            return [(s, e, s, e) for s, e in _stretches(differ)]
    head = _equal(a, b, 0, 0)
    tail = min(_equal(a[::-1], b[::-1], 0, 0), min(len(a), len(b)) - head)
    inner = _shortest(a[head : len(a) - tail], b[head : len(b) - tail])
    if inner is None:
        if len(a) == len(b):
            return [(s, e, s, e) for s, e in _stretches(np.flatnonzero(a != b))]
        inner = [(0, len(a) - tail - head, 0, len(b) - tail - head)]
    return [(i1 + head, i2 + head, j1 + head, j2 + head) for i1, i2, j1, j2 in inner]


def _stretches(places: Ints) -> list[tuple[int, int]]:
    """Intervals (start, end) of consecutive numbers."""
    cuts = np.flatnonzero(np.diff(places) > 1) + 1
    return [(int(p[0]), int(p[-1]) + 1) for p in np.split(places, cuts)]


def _equal(a: Ints, b: Ints, i: int, j: int) -> int:
    """The length of the common prefix of a[i:] and b[j:]."""
    start, step = i, 32
    while True:
        x, y = a[i : i + step], b[j : j + step]
        n = min(len(x), len(y))
        if not n:
            return i - start
        differ = x[:n] != y[:n]
        if differ.any():
            return i - start + int(differ.argmax())
        i, j, step = i + n, j + n, step * 4


def _shortest(a: Ints, b: Ints) -> list[Edit] | None:
    """The shortest edit script (Myers); None if it has more than `MAX_EDITS` edits."""
    n, m = len(a), len(b)
    frontier = {1: 0}
    trace: list[dict[int, int]] = []
    for d in range(min(n + m, MAX_EDITS) + 1):
        trace.append(dict(frontier))
        for k in range(-d, d + 1, 2):
            down = k == -d or (k != d and frontier[k - 1] < frontier[k + 1])
            x = frontier[k + 1] if down else frontier[k - 1] + 1
            if x <= n and x - k <= m:
                x += _equal(a, b, x, x - k)
            frontier[k] = x
            if x >= n and x - k >= m:
                return _script(trace, n, m)
    return None


def _script(trace: Sequence[dict[int, int]], n: int, m: int) -> list[Edit]:
    """Walk back through the frontiers; adjacent steps become one edit."""
    steps: list[Edit] = []
    x, y = n, m
    for d in range(len(trace) - 1, 0, -1):
        frontier, k = trace[d], x - y
        down = k == -d or (k != d and frontier[k - 1] < frontier[k + 1])
        before = k + 1 if down else k - 1
        px = frontier[before]
        py = px - before
        steps.append((px, px, py, py + 1) if down else (px, px + 1, py, py))
        x, y = px, py
    out: list[Edit] = []
    for i1, i2, j1, j2 in reversed(steps):
        if out and (out[-1][1], out[-1][3]) == (i1, j1):
            out[-1] = (out[-1][0], i2, out[-1][2], j2)
        else:
            out.append((i1, i2, j1, j2))
    return out
