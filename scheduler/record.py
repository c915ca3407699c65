"""Records which instructions each segment has, while lowering appends them.

Lowering appends work to the units segment by segment, so lengths of lists say where a segment begins and ends; an op
may also be extended for a later segment, and then belongs to both. Two things come later. A Mem does the second half of
an item together with the first half of the next one, and sets its registers in between. And the loads and stores of
activations get their order at the end; it keeps the order of the accesses of each memory, so that these can be followed
through it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ..base.errors import ProgramError
from ..isa.fields import Record
from ..isa.overlay import Overlay
from ..isa.program import ProgramSegment
from ..isa.work import Access, RowStore
from .graph import AttentionLayer
from .groups import Planned
from .order import TileAccesses

Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges of indices, ascending."""


@dataclass(frozen=True)
class _Noted:
    """A segment that was lowered. items: its items of each unit, as a range; the first one may be an item of an earlier
    segment that was extended for this one. last: the last item of each unit so far. tiles: of its DDR accesses."""

    planned: Planned
    items: Mapping[str, tuple[int, int]]
    last: Mapping[str, object]
    tiles: Sequence[TileAccesses]


@dataclass
class SegmentRecord:
    """Notes each segment after it was lowered, and makes `UnpackedProgram.segments` of the notes."""

    _noted: list[_Noted] = field(default_factory=list)
    _ends: dict[str, int] = field(default_factory=dict)

    def note(self, planned: Planned, items: Mapping[str, Sequence[object]], tiles: Sequence[TileAccesses]) -> None:
        """Note that a segment was lowered. items: all work items so far by unit, without DDR. tiles: those of all
        segments so far; the ones behind the last segment's are this one's."""
        before = sum(len(noted.tiles) for noted in self._noted)
        last = self._noted[-1].last if self._noted else {}
        ranges = {}
        for unit, done in items.items():
            first = self._ends.get(unit, 0)
            if first and done[first - 1] is not last[unit]:
                first -= 1
            ranges[unit] = first, len(done)
            self._ends[unit] = len(done)
        last = {unit: done[-1] for unit, done in items.items() if done}
        self._noted.append(_Noted(planned, ranges, last, tuple(tiles[before:])))

    def segments(
        self,
        sequences: Mapping[str, Sequence[Record]],
        overlay: Overlay,
        unit: str,
        accesses: Sequence[Access | RowStore],
        *,
        before: int = 0,
    ) -> tuple[ProgramSegment, ...]:
        """Return the segments in execution order. sequences: the mOPs of every unit, op lists included. unit: the one
        whose `accesses`, in their order, are in the tiles. before: its instructions before them, which belong to no
        segment. Raises `ProgramError` if the accesses are not those of the tiles."""
        if not self._noted:
            return ()  # work that was bound without segments
        uops: list[dict[str, Ranges]] = [{} for _ in self._noted]
        for name, of_unit in sequences.items():
            turns = _turns(of_unit, overlay) if overlay.by_unit[name].memory is not None else None
            for noted, of_segment in zip(self._noted, uops, strict=True):
                first, end = noted.items.get(name, (0, 0))
                if first < end:
                    of_segment[name] = ((first, end) if turns is None else (turns[first], turns[end + 1]),)
        owners = _owners(accesses, [noted.tiles for noted in self._noted])
        for segment, ranges in _ranges(owners).items():
            uops[segment][unit] = tuple((first + before, end + before) for first, end in ranges)
        return tuple(_segment(noted.planned, of) for noted, of in zip(self._noted, uops, strict=True))


def _segment(planned: Planned, uops: Mapping[str, Ranges]) -> ProgramSegment:
    layers = [planned.layers] if isinstance(planned.layers, AttentionLayer) else planned.layers
    outputs = tuple(layer.target for layer in layers)
    paths = tuple(dict.fromkeys(path for layer in layers for path in (layer.path, *layer.fused)))
    return ProgramSegment(joined(outputs), paths, planned.kind, outputs, uops)


def joined(names: Sequence[str]) -> str:
    """Several names as one: the first name, and of the others what differs from it, such as `0_query,key,value`."""
    words = [name.split("_") for name in names]
    shared = next((i for i, same in enumerate(zip(*words, strict=False)) if len(set(same)) > 1), 0)
    return ",".join([names[0], *("_".join(of[shared:]) for of in words[1:])])


def _turns(mops: Iterable[Record], overlay: Overlay) -> list[int]:
    """Where the mOPs of each turn of a Mem begin, those that set registers for it included. Turn i does the first half
    of item i and the second half of item i - 1. The last number is that of all mOPs."""
    starts = [0]
    config = tuple(form.mop for form in overlay.formats if form.config)
    for number, mop in enumerate(mops, 1):
        if not isinstance(mop, config):
            starts.append(number)
    return starts


def _owners(accesses: Iterable[Access | RowStore], tiles: Sequence[Sequence[TileAccesses]]) -> Iterator[int]:
    """Yield the segment of each access, which may be a piece of one in the tiles. tiles: of each segment."""
    due: dict[tuple[str, bool], deque[list[int]]] = {}  # by peer and direction: segment, and elements left
    for segment, of_segment in enumerate(tiles):
        for tile in of_segment:
            for access in (*tile.loads, *tile.stores):
                due.setdefault((access.peer, access.store), deque()).append([segment, access.elements])
    for access in accesses:
        queue = due.get((access.peer, access.store))
        if not queue or queue[0][1] < access.elements:
            raise ProgramError(
                f"more is {'stored by' if access.store else 'loaded into'} {access.peer} than segments have"
            )
        yield queue[0][0]
        queue[0][1] -= access.elements
        if not queue[0][1]:
            queue.popleft()


def _ranges(owners: Iterable[int]) -> dict[int, Ranges]:
    """The indices of each owner as ranges."""
    out: dict[int, list[tuple[int, int]]] = {}
    at = 0
    for owner, run in groupby(owners):
        count = sum(1 for _ in run)
        out.setdefault(owner, []).append((at, at + count))
        at += count
    return {owner: tuple(ranges) for owner, ranges in out.items()}
