"""Checks of the AI Engine graph: that what it states about places fits the array of the VCK190.

What the graph states comes from running its constructor on this computer (`csim/places.h`): tiles, PLIOs, and addresses
of buffers and stacks.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...isa.overlays.xnn import XNN
from ...isa.versal import placement as p
from .switches import Switches

Findings = Iterator[str]

TILE_BYTES = 32 * 1024
BANK_BYTES = 8 * 1024
"""A double bank, which gives 256 bit to one access a cycle (UG1079, "AI Engine Memory")."""
SYNC_BYTES = 32
"""The number of runs and an end flag, beside stack and heap (there)."""
SELECTOR_BYTES = 32
"""The word that tells which of a parameter's two buffers is the current one, with its alignment (UG1079, "Buffer
Allocation Control")."""
KINDS = ("first", "second", "third", "last")
"""Tiles of a cascade."""
BUFFERS = ("A", "B", "C")


@dataclass(frozen=True)
class TileMemory:
    """What lies in the memory of an AIE tile. pinned: parts that have an address, each as name, begin and end in bytes.
    others: parts that the compiler places, each as name and size in bytes."""

    pinned: tuple[tuple[str, int, int], ...]
    others: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        """Bytes that all parts take together."""
        return sum(end - begin for _, begin, end in self.pinned) + sum(size for _, size in self.others)


def parts(graph: Sequence[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the PLIOs and the tiles of a graph, each as the JSON object of its line, with the keys that
    `csim/places.h` writes. graph: the lines that the design program prints (`Sources.graph`)."""
    lines = [json.loads(line) for line in graph if line.startswith("{")]
    return [x for x in lines if "plio" in x], [x for x in lines if "plio" not in x]


def plios(graph: Sequence[str]) -> Findings:
    """Yield a sentence for each mistake in the places of the PLIOs: a PLIO without a place, a column or channel that
    does not exist or is not the one of isa/versal/placement.py, a channel of several PLIOs, and an MME's PLIOs over too
    many or too few columns. graph: as for `parts`."""
    found, _ = parts(graph)
    table = p.shims(XNN)
    users: dict[tuple[bool, int, int], list[str]] = defaultdict(list)
    columns: dict[str, set[int]] = defaultdict(set)
    for plio in found:
        name, inward = plio["plio"], bool(plio["inward"])
        if len(plio["at"]) != 1:
            yield f"{name} has no column and channel (adf::location<adf::PLIO>)"
            continue
        column, channel = plio["at"][0]
        users[inward, column, channel].append(name)
        columns[name.partition("_")[0][1:]].add(column)
        channels = p.INPUT_CHANNELS if inward else p.OUTPUT_CHANNELS
        if column not in p.PLIO_COLUMNS:
            yield f"{name} lies in column {column}; only {p.PLIO_COLUMNS[0]} to {p.PLIO_COLUMNS[-1]} have PLIOs"
        if channel not in channels:
            way = "inputs" if inward else "outputs"
            yield f"{name} has channel {channel}; {way} may have {', '.join(map(str, channels))}"
        expected = table.get(name)
        if expected is not None and (column, channel) != (expected.column, expected.channel):
            yield f"{name} is at {column}, {channel}; isa/versal/placement.py has it at {expected}"
    for (_, column, channel), names in users.items():
        if len(names) > 1:
            yield f"{' and '.join(names)} share channel {channel} of column {column}"
    for mme, used in columns.items():
        if not 6 <= max(used) - min(used) + 1 <= p.MME_COLUMNS:
            yield f"the PLIOs of MME{mme} are spread over columns {min(used)} to {max(used)}; 6 to 8 are expected"


def tiles(graph: Sequence[str]) -> Findings:
    """Yield a sentence for each tile that does not lie where `placement.tile` has it: a cascade needs neighbours in a
    row, in the row's direction. graph: as for `parts`. Nothing if the number of tiles is wrong; another check finds
    that."""
    _, found = parts(graph)
    side = range(p.SIDE)
    order = [(m, r, n, c) for m in range(len(XNN.by_kind["MME"])) for r in side for n in side for c in side]
    if len(found) != len(order):
        return  # another check's finding
    for at, kernel in zip(order, found, strict=True):
        place = [tuple(x) for x in kernel["at"]]
        if place != [p.tile(*at)]:
            mme, row, column, cascade = at
            name = f"G.FG[{mme}][{row}][{column}].k{cascade}"
            yield f"{name} lies at {place or 'no tile'}; isa/versal/placement.py has it at {p.tile(*at)}"


def routes(graph: Sequence[str]) -> Findings:
    """Yield a sentence for each place where the stream switches have no room for all streams. graph: as for `parts`.
    Nothing if a PLIO has no place; another check finds that. Raises `RsnError` for a place outside of the array."""
    ways: dict[bool, list[tuple[tuple[int, int], list[tuple[int, int]]]]] = {True: [], False: []}
    for plio in parts(graph)[0]:
        if not plio["at"] or None in plio["tiles"]:
            return  # another check's finding
        shim = plio["at"][0][0], 0
        ways[bool(plio["inward"])].append((shim, [(column, row + 1) for column, row in plio["tiles"]]))
    for (column, row), (to_column, to_row) in Switches().route(ways[True], ways[False]):
        where = f"column {column}, " + (f"row {row - 1}" if row else "the array interface")
        to = f"column {to_column}, " + (f"row {to_row - 1}" if to_row else "the array interface")
        yield f"too many streams go from {where} to {to}"


def layout(kernel: dict[str, Any]) -> TileMemory:
    """Return the contents of the memory of a tile in which every part that needs an address has one. kernel: the tile's
    JSON object, from `parts`. Raises `ValueError` if it does not have exactly one stack."""
    pinned = []
    for name, buffer in zip(BUFFERS, kernel["buffers"], strict=False):
        pinned += [(name, offset, offset + buffer["bytes"]) for _, _, offset in buffer["at"]]
    ((_, _, begin),) = kernel["stack"]
    pinned.append(("stack", begin, begin + kernel["stack_bytes"] + kernel["heap_bytes"] + SYNC_BYTES))
    others = [("parameters", one["bytes"]) for one in kernel["parameters"] for _ in range(2)]
    return TileMemory(tuple(sorted(pinned, key=lambda x: x[1])), (*others, ("selector", SELECTOR_BYTES)))


def memory(graph: Sequence[str]) -> Findings:
    """Yield a sentence for each mistake in the memory of the tiles: parts without an address, parts that overlap, more
    than 32 KiB, the buffers A and B in one bank. The same mistake in many cascades is told once for each tile of a
    cascade. graph: as for `parts`."""
    _, found = parts(graph)
    seen = set()
    for i, kernel in enumerate(found):
        for finding in _memory(kernel):
            told = f"the {KINDS[i % p.SIDE]} tile of a cascade: {finding}"
            if told not in seen:
                seen.add(told)
                yield told


def _memory(kernel: dict[str, Any]) -> Findings:
    for name, buffer in zip(BUFFERS, kernel["buffers"], strict=False):
        if len(buffer["at"]) != 2:
            yield f"the two buffers of {name} have no addresses (adf::location<adf::buffer>)"
            return
    if len(kernel["stack"]) != 1:
        yield "the stack has no address (adf::location<adf::stack>)"
        return
    if not all(one["asynchronous"] for one in kernel["parameters"]):
        yield "its parameter is synchronous (adf::sync): each run would wait for a new list of ops"
    for column, row, _ in [at for buffer in kernel["buffers"] for at in buffer["at"]] + kernel["stack"]:
        if [column, row] not in kernel["at"]:
            yield "something of it lies in the memory of another tile"
    use = layout(kernel)
    if use.total > TILE_BYTES:
        yield f"{use.total} bytes; a tile has {TILE_BYTES}"
    end_before, gaps = 0, []
    for name, begin, end in use.pinned:
        if begin < end_before:
            yield f"{name} at {begin:#x} begins before the end of what lies below it, {end_before:#x}"
        gaps.append(begin - end_before)
        end_before = max(end_before, end)
    if end_before > TILE_BYTES:
        yield f"it ends at {end_before:#x}; a tile's memory ends at {TILE_BYTES:#x}"
    gaps.append(TILE_BYTES - end_before)
    for name, size in sorted(use.others, key=lambda x: -x[1]):
        room = max(gaps)
        if size > room:
            yield f"no gap has room for {name} of {size} bytes"
            return
        gaps[gaps.index(room)] -= size
    banks = {
        name: {at // BANK_BYTES for one, begin, end in use.pinned if one == name for at in (begin, end - 1)}
        for name in "AB"
    }
    if shared := banks["A"] & banks["B"]:
        yield f"A and B share bank {min(shared)}, from which the inner loop would load both at once"
