"""Which memory each buffer goes to: LUTs, block RAMs or UltraRAMs (StreamTensor, MICRO'25, 5.3).

The largest buffer chooses first. A buffer takes whole blocks. Below `LUTRAM_BELOW` it goes to LUTs; from one UltraRAM
on to UltraRAMs; else to block RAMs; where the blocks of one kind do not suffice, to the next kind. If a buffer finds no
room this way, an integer linear program tries all ways. A buffer is never cut, and never spilled to a memory off the
chip: what does not fit is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from ...base.errors import ProgramError, ResourceError
from ...base.quiet import quiet_stdout
from .devices import BRAM_BYTES, URAM_BYTES, StreamDevice

LUTRAM_BELOW = 1024
"""Bytes from which on a buffer takes blocks rather than LUTs."""

KINDS = ("LUTRAM", "BRAM", "URAM")

BLOCK_BITS = 72
"""Bits of the widest word of a block RAM or an UltraRAM (UG573)."""

NO_BITS: Mapping[str, int] = {}

NODES = 20_000
"""Limit of the search through all ways, in nodes of its tree: the result depends on no clock."""


class MemoryFitError(ResourceError):
    """A buffer fits in no memory of the chip. holder: the name of the buffer. allocation: the places of all other
    buffers."""

    def __init__(self, message: str, holder: str, allocation: Allocation) -> None:
        super().__init__(message)
        self.holder, self.allocation = holder, allocation


@dataclass(frozen=True)
class Memories:
    """The memories of a chip. lutram: bytes of LUTs that can be memory. bram, uram: numbers of blocks of block RAM and
    UltraRAM. bram_bytes, uram_bytes: bytes of a block."""

    lutram: int
    bram: int
    uram: int
    bram_bytes: int = BRAM_BYTES
    uram_bytes: int = URAM_BYTES

    @classmethod
    def of_device(cls, device: StreamDevice) -> Memories:
        """Return the memories of all dies of a device together."""
        return cls(device.lutram_bytes, device.total["BRAM"], device.total["URAM"])

    def amount(self, kind: str) -> int:
        """Return how many blocks of a kind there are; for LUTs, how many bytes. kind: one of `KINDS`; `KeyError` for
        another."""
        return {"LUTRAM": self.lutram, "BRAM": self.bram, "URAM": self.uram}[kind]

    def needed(self, size: int, kind: str, bits: int = 0) -> int:
        """Return how many blocks of a kind, or bytes of LUTs, a buffer takes. size: in bytes. kind: one of `KINDS`;
        `KeyError` for another. bits: of a word of the buffer; blocks of `BLOCK_BITS` are used side by side for it. 0 to
        count the bytes alone."""
        if kind == "LUTRAM":
            return size
        of_block = {"BRAM": self.bram_bytes, "URAM": self.uram_bytes}[kind]
        beside = -(-bits // BLOCK_BITS)
        return -(-size // of_block) if not bits else beside * -(-size * 8 // (bits * (of_block * 8 // BLOCK_BITS)))

    def choices(self, size: int) -> tuple[str, ...]:
        """Return the kinds of memory in which a buffer may lie, the best one for its size first. size: in bytes."""
        if size < LUTRAM_BELOW:
            return KINDS
        return ("URAM", "BRAM") if size >= self.uram_bytes else ("BRAM", "URAM")


@dataclass(frozen=True)
class BufferPlace:
    """The memory in which a buffer lies. kind: one of `KINDS`. amount: the blocks that it takes; for LUTs, the
    bytes."""

    kind: str
    amount: int


@dataclass(frozen=True)
class Allocation:
    """The places of buffers. places: by the name of the buffer."""

    places: Mapping[str, BufferPlace]

    def used(self, kind: str) -> int:
        """Return how many blocks of a kind the buffers take; for LUTs, how many bytes. kind: one of `KINDS`."""
        return sum(place.amount for place in self.places.values() if place.kind == kind)


def allocate(buffers: Mapping[str, int], memories: Memories, bits: Mapping[str, int] = NO_BITS) -> Allocation:
    """Return a place in a memory for each buffer (StreamTensor, section 5.3). buffers: bytes by name. memories: those
    of the chip. bits: of a word, for buffers with wide words, by name (`Memories.needed`).

    Raises `MemoryFitError` for a buffer that fits nowhere; the message has what it needs, what is left and which
    buffers take the rest. Raises `ProgramError` for sizes below 1, and if the search ends before it has proved that
    there is no way."""
    for name, size in buffers.items():
        if size < 1:
            raise ProgramError(f"buffer {name} has {size} bytes; the least is 1")
    order = sorted(buffers, key=lambda name: (-buffers[name], name))
    places: dict[str, BufferPlace] = {}
    refused: list[str] = []
    free = {kind: memories.amount(kind) for kind in KINDS}
    for name in order:
        for kind in memories.choices(buffers[name]):
            amount = memories.needed(buffers[name], kind, bits.get(name, 0))
            if amount <= free[kind]:
                places[name] = BufferPlace(kind, amount)
                free[kind] -= amount
                break
        else:
            refused.append(name)
    if not refused:
        return Allocation(places)
    found = _every_way(order, buffers, memories, bits)
    if found is not None:
        return found
    raise MemoryFitError(_refusal(refused[0], buffers, memories, places, bits), refused[0], Allocation(places))


def _refusal(
    name: str,
    buffers: Mapping[str, int],
    memories: Memories,
    places: Mapping[str, BufferPlace],
    bits: Mapping[str, int],
) -> str:
    size = buffers[name]
    parts: list[str] = []
    for kind in memories.choices(size):
        before = {other: place for other, place in places.items() if buffers[other] >= size and place.kind == kind}
        left = memories.amount(kind) - sum(place.amount for place in before.values())
        unit = "bytes of LUTRAM" if kind == "LUTRAM" else kind
        needed = memories.needed(size, kind, bits.get(name, 0))
        part = f"{needed:,} {unit} needed, {left:,} of {memories.amount(kind):,} left"
        if before:
            holder = max(before, key=lambda other: before[other].amount)
            part += f" ({holder} holds {before[holder].amount:,})"
        parts.append(part)
    return f"buffer {name} of {size:,} bytes fits in no memory: {'; '.join(parts)}; choose smaller tiles or depths"


def _every_way(
    order: Sequence[str], buffers: Mapping[str, int], memories: Memories, bits: Mapping[str, int]
) -> Allocation | None:
    """Find an allocation by an integer linear program, with as few second choices as possible; None if there is
    none."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    def needed(name: str, kind: str) -> int:
        return memories.needed(buffers[name], kind, bits.get(name, 0))

    options = [(name, rank, kind) for name in order for rank, kind in enumerate(memories.choices(buffers[name]))]
    rows, lows, highs = [], [], []
    for name in order:
        rows.append([float(other == name) for other, _, _ in options])
        lows.append(1.0)
        highs.append(1.0)
    for kind in KINDS:
        rows.append([float(needed(name, kind)) * (k == kind) for name, _, k in options])
        lows.append(-inf)
        highs.append(float(memories.amount(kind)))
    # HiGHS prints a line of its own when it polishes a solution, whatever its options.
    with quiet_stdout():
        found = milp(
            np.array([float(rank) for _, rank, _ in options]),
            integrality=np.ones(len(options)),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(np.array(rows), lows, highs),
            options={"node_limit": NODES},
        )
    if found.status == 2:
        return None
    if found.x is None:
        raise ProgramError(f"no allocation of {len(order)} buffers was found in {NODES:,} nodes; give fewer")
    chosen = [option for option, x in zip(options, found.x, strict=True) if x > 0.5]
    return Allocation({name: BufferPlace(kind, needed(name, kind)) for name, _, kind in chosen})
