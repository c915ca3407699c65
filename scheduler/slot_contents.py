"""What the slots of memories hold, so that an operand that several steps read is loaded once.

A memory goes on to its next slot with every operation. An operation that neither fills nor drains therefore leads back
to an earlier slot, at no cost but its instruction.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ..isa.work import Access, Load, Send
from .binder import Binder, TileAccesses


class LoadedSlots:
    """The contents of the slots of memories since this object was made."""

    def __init__(self, s: Binder) -> None:
        self._s = s
        self._known: dict[str, dict[int, Hashable]] = {}

    def send(
        self, unit: str, content: Hashable, load: Load, accesses: Sequence[Access], send: Send, tile: TileAccesses
    ) -> None:
        """Append the work of a memory that sends `content`. If a slot still has the content, it is not loaded again.

        unit: the memory. content: any key; equal contents have equal loads. load: the load of the content. accesses:
        the off-chip accesses of this load, which are added to `tile`. send: how the content is sent."""
        slots = self._s.overlay.memory_of(unit).slots
        known, at = self._known.setdefault(unit, {}), len(self._s.made.memories[unit])
        for skipped in range(slots):
            if known.get((at + skipped) % slots) == content:
                for _ in range(skipped):
                    self._s.turn(unit, None, None)
                self._s.turn(unit, None, send)
                return
        known[at % slots] = content
        tile.loads += accesses
        self._s.turn(unit, load, send)

    def forget(self, unit: str) -> None:
        """Note that the memory `unit` was filled by other means, so that nothing is known of its slots."""
        self._known.pop(unit, None)
