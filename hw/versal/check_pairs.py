"""Checks of xnn8's AI Engine graph: that what it states is the overlay's, and fits the array of the VCK190.

What the graph states comes from running its constructor on this computer, as for `check_places`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...isa.overlays.xnn8 import placement as pairs
from ...isa.overlays.xnn8.formats import ENGINES, LANES, PAIRS
from ...isa.overlays.xnn8.tile_streams import PLIO_BITS
from ...isa.versal import placement as array
from .check_places import BANK_BYTES, SYNC_BYTES, TILE_BYTES, parts

Findings = Iterator[str]
Part = tuple[str, int, int]
"""Of a tile's memory: name, begin, end."""

LAST = ("A", "B", "what the first tile gets", "C, even", "C, odd")
"""Buffers of the last tile of a pair; the first one has three, of which the third is the last tile's."""


def plios(graph: Sequence[str]) -> Findings:
    """Yield a sentence for each mistake of the PLIOs: one that the overlay does not have, or has with another width or
    place; a channel that does not exist, has no registers, or is shared; a narrow PLIO without a clock of its own;
    results that are no packets. graph: as for `parts`."""
    wanted = {plio.stream.plio: (plio, place) for plio, place in pairs.shims().items()}
    users: dict[tuple[bool, int, int], list[str]] = defaultdict(list)
    found, _ = parts(graph)
    for name in sorted(wanted.keys() ^ {plio["plio"] for plio in found}):
        yield f"{name} is {'missing' if name in wanted else 'not a stream of the overlay'}"
    for plio in found:
        name, inward, bits = plio["plio"], bool(plio["inward"]), plio["bits"]
        if name not in wanted:
            continue
        stream, place = wanted[name][0].stream, wanted[name][1]
        if (inward, bits) != stream[1:]:
            yield f"{name} leads {'in' if inward else 'out'} with {bits} bit, not as the overlay's"
        if bool(plio["mhz"]) != (bits < PLIO_BITS):
            yield f"{name} has {bits} bit and {'a' if plio['mhz'] else 'no'} clock of its own"
        if bool(plio["packets"]) == inward:
            yield f"{name} has {'no ' * (not inward)}packets"
        if [tuple(at) for at in plio["at"]] != [(place.column, place.channel)]:
            yield f"{name} lies at {plio['at'] or 'no place'}; isa/overlays/xnn8/placement.py has it at {place}"
            continue
        taken = range(place.channel, place.channel + bits // 64)
        channels = array.INPUT_CHANNELS if inward else array.ALL_OUTPUT_CHANNELS
        even = bits == 64 or place.channel % 2 == 0
        if place.column not in array.PLIO_COLUMNS or not set(taken) <= set(channels) or not even:
            yield f"{name} cannot lie in column {place.column}, channel {place.channel}"
        for channel in taken:
            users[inward, place.column, channel].append(name)
    for (_, column, channel), names in users.items():
        if len(names) > 1:
            yield f"{' and '.join(names)} share channel {channel} of column {column}"


def tiles(graph: Sequence[str]) -> Findings:
    """Yield a sentence for each tile that does not lie where `placement.tile` has it, or whose cascade, or buffer to
    the first tile, does not lead to the other tile of its pair; one alone if the number of tiles is wrong. graph: as
    for `parts`."""
    _, found = parts(graph)
    order = [
        (e, r, c, last) for e in range(ENGINES) for r in range(LANES) for c in range(PAIRS) for last in (False, True)
    ]
    if len(found) != len(order):
        yield f"the graph has {len(found)} kernels; expected {len(order)}"
        return
    for (engine, row, column, last), kernel in zip(order, found, strict=True):
        name = f"G.of[{engine}][{row}][{column}].{'last' if last else 'first'}"
        own, other = (pairs.tile(engine, row, column, which) for which in (last, not last))
        if [tuple(x) for x in kernel["at"]] != [own]:
            yield f"{name} lies at {kernel['at'] or 'no tile'}; isa/overlays/xnn8/placement.py has it at {own}"
        cascades = [tuple(to) for cascade in kernel["cascades"] for to in cascade["to"]]
        if cascades != ([] if last else [other]):
            yield f"the cascade of {name} leads to {cascades or 'no tile'}"
        if last and [tuple(to) for to in kernel["buffers"][2]["to"]] != [other]:
            yield f"{name} has no buffer that leads to the first tile"


def memory(graph: Sequence[str]) -> Findings:
    """Yield a sentence for each mistake in the memory of the tiles: a part that has no address, is not aligned,
    overlaps another one, or lies in the memory of another pair; more than 32 KiB; and chunks of rows, weights, and sums
    of even and of odd blocks, of which two share a bank. The same mistake in many pairs is told once for each tile of a
    pair. graph: as for `parts`."""
    _, found = parts(graph)
    seen = set()
    for i in range(0, len(found) - 1, 2):
        for finding in _pair(found[i], found[i + 1]):
            if finding not in seen:
                seen.add(finding)
                yield finding


def contents(first: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, list[Part]]:
    """Return what lies in the memory of each tile of a pair, by `first` and `last`: parts as name, begin and end in
    bytes, by their begin. first, last: the JSON objects of the tiles, from `parts`. Raises `ValueError` for a part
    without a place, or in the memory of another pair."""
    names = {tuple(k["at"][0]): which for which, k in (("first", first), ("last", last)) if k["at"]}
    out: dict[str, list[Part]] = {"first": [], "last": []}

    def add(part: str, size: int, places: Sequence[Sequence[int]], count: int) -> None:
        if len(places) != count:
            raise ValueError(f"{part} has {len(places)} addresses, not {count}")
        for column, row, offset in places:
            if (column, row) not in names:
                raise ValueError(f"{part} lies in the memory of another pair")
            out[names[column, row]].append((part, offset, offset + size))

    for which, kernel in (("first", first), ("last", last)):
        buffers = kernel["buffers"] if which == "last" else kernel["buffers"][:2]
        for name, buffer in zip(LAST, buffers, strict=False):
            add(name, buffer["bytes"], buffer["at"], buffer["count"])
        for one in kernel["arrays"]:
            add("sums", one["bytes"], one["at"], 1)
        add("stack", kernel["stack_bytes"] + kernel["heap_bytes"] + SYNC_BYTES, kernel["stack"], 1)
    return {which: sorted(of, key=lambda part: part[1]) for which, of in out.items()}


def _pair(first: Mapping[str, Any], last: Mapping[str, Any]) -> Findings:
    try:
        lies = contents(first, last)
    except ValueError as e:
        yield str(e)
        return
    for which, of in lies.items():
        tile, end_before = f"the {which} tile of a pair", 0
        for name, begin, end in of:
            if begin < end_before:
                yield f"{tile}: {name} at {begin:#x} begins before the end of what lies below it, {end_before:#x}"
            if begin % 32:
                yield f"{tile}: {name} at {begin:#x} is not aligned to 32 bytes"
            end_before = max(end_before, end)
        if end_before > TILE_BYTES:
            yield f"{tile}: it ends at {end_before:#x}; a tile's memory ends at {TILE_BYTES:#x}"
        banks: dict[str, set[int]] = defaultdict(set)
        for name, begin, end in of:
            middle = (begin + end) // 2
            halves = {"sums of even blocks": (begin, middle), "sums of odd blocks": (middle, end)}
            for part, (at, to) in (halves if name == "sums" else {name: (begin, end)}).items():
                banks[part] |= set(range(at // BANK_BYTES, (to - 1) // BANK_BYTES + 1))
        loaded = [part for part in ("A", "B", "sums of even blocks", "sums of odd blocks") if part in banks]
        for i, one in enumerate(loaded):
            for other in loaded[i + 1 :]:
                if banks[one] & banks[other]:
                    yield f"{tile}: {one} and {other} share a bank, from which a loop would load both at once"
