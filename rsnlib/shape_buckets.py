"""Shape buckets: the shapes that programs were compiled for, and the choice of a bucket for a call.

A program is compiled for fixed sizes. A call runs in the cheapest bucket that it fits, and is padded to the sizes of
that bucket. The bucket with the fewest rows is the cheapest; of equal ones, the one listed first.

Plain data, without PyTorch: compiled families, saved models and servers all use it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Generic, NamedTuple, Self, TypeVar

from ..base.errors import TensorError

MAX_SHOWN = 6
"""Largest number of buckets that an error message lists."""
REMEMBERED = 1024
"""The most sizes of calls whose bucket is remembered."""

Asked = TypeVar("Asked", bound=Sequence[Any])


@dataclass(frozen=True)
class Extent:
    """The size of one dimension in a bucket, in elements. exact: calls must have this size; otherwise they have 1 up to
    this size. what: the name of the dimension, for messages."""

    size: int
    exact: bool = False
    what: str = "length"

    def takes(self, size: int) -> bool:
        """Return whether a call may have `size` elements in this dimension."""
        return size == self.size if self.exact else 1 <= size <= self.size

    def covers(self, other: Extent) -> bool:
        """Return whether this extent takes all sizes that `other` takes."""
        return self.takes(other.size) and (other.exact or other.size == 1 or not self.exact)

    def __str__(self) -> str:
        return f"{self.what} {self.size}" if self.exact or self.size == 1 else f"{self.what} 1 to {self.size}"


class ShapeBucket(ABC, Generic[Asked]):
    """The sizes of one program. Asked: how the sizes of a call are given."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """The number of rows that the program computes, over all sequences, which is its cost."""

    @abstractmethod
    def fits(self, asked: Asked) -> bool:
        """Return whether a call of the sizes `asked` may be padded to this bucket."""

    @abstractmethod
    def covers(self, other: Self) -> bool:
        """Return whether all that fits into `other` fits into this bucket."""


@dataclass(frozen=True)
class SizeBucket(ShapeBucket[Sequence[int]]):
    """The bucket of a program for calls that choose the sizes of some dimensions. extents: which sizes of each of these
    dimensions the program takes. Calls give their sizes in the same order."""

    extents: tuple[Extent, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of each dimension in elements, in the order of `extents`."""
        return tuple(extent.size for extent in self.extents)

    @property
    def rows(self) -> int:
        """The product of the sizes of its dimensions."""
        return prod(self.sizes)

    def fits(self, asked: Sequence[int]) -> bool:
        """Return whether each dimension takes its size. asked: in elements, one for each of `extents`, or `ValueError`
        is raised."""
        return all(extent.takes(size) for extent, size in zip(self.extents, asked, strict=True))

    def covers(self, other: SizeBucket) -> bool:
        """Return whether each dimension takes all sizes that the same one of `other` takes. Raises `ValueError` for
        another number of dimensions."""
        return all(mine.covers(its) for mine, its in zip(self.extents, other.extents, strict=True))

    def __str__(self) -> str:
        return ", ".join(map(str, self.extents))


class SequenceSize(NamedTuple):
    """A sequence of a request. rows: its number of rows. needs_mask: it needs a program with masks, because the request
    masks its keys."""

    rows: int
    needs_mask: bool = False


@dataclass(frozen=True, eq=False)
class SlotBucket(ShapeBucket[Sequence[SequenceSize]]):
    """The bucket of a program for several independent sequences. slots: the number of rows of each sequence that the
    program is compiled for, in its order. masked: the program has masks, so that sequences may be shorter."""

    slots: tuple[int, ...]
    masked: bool

    @property
    def rows(self) -> int:
        """The number of rows of all slots together."""
        return sum(self.slots)

    def place(self, asked: Sequence[SequenceSize]) -> list[int] | None:
        """Choose a slot for each sequence. Returns, for each sequence of `asked`, the index of its slot in `slots`;
        None if the sequences do not fit.

        The longest sequence chooses first, and takes the shortest slot that it fits. A slot that fits a longer sequence
        fits a shorter one too, so this finds a solution if there is one.
        """
        free = sorted(range(len(self.slots)), key=self.slots.__getitem__)
        if len(asked) > len(free):
            return None
        chosen = [0] * len(asked)
        for i in sorted(range(len(asked)), key=lambda i: -asked[i].rows):
            slot = next((s for s in free if self._takes(s, asked[i])), None)
            if slot is None:
                return None
            free.remove(slot)
            chosen[i] = slot
        return chosen

    def _takes(self, slot: int, sequence: SequenceSize) -> bool:
        if self.masked:
            return 1 <= sequence.rows <= self.slots[slot]
        return sequence.rows == self.slots[slot] and not sequence.needs_mask

    def fits(self, asked: Sequence[SequenceSize]) -> bool:
        """Return whether each sequence of `asked` gets a slot of its own (`place`)."""
        return self.place(asked) is not None

    def covers(self, other: SlotBucket) -> bool:
        """Return whether the longest sequences that fit into `other`, with masks if it has them, fit into this
        bucket."""
        return self.fits([SequenceSize(rows, other.masked) for rows in other.slots])

    def __str__(self) -> str:
        batch, lengths = Extent(len(self.slots), what="batch"), sorted(set(self.slots))
        if len(lengths) == 1:
            return f"{batch}, {Extent(lengths[0], exact=not self.masked)}"
        return f"{batch}, lengths {'up to ' if self.masked else ''}{', '.join(map(str, sorted(self.slots)))}"


B = TypeVar("B", bound=ShapeBucket[Any])


class ShapeBuckets(Generic[B, Asked]):
    """The buckets of all programs of a model. ordered: the buckets, those with the fewest rows first. Type parameters:
    B, the class of the buckets; Asked, the type in which the sizes of a call are given."""

    def __init__(self, buckets: Iterable[B]) -> None:
        self.ordered: tuple[B, ...] = tuple(sorted(buckets, key=lambda bucket: bucket.rows))
        self._chosen: dict[tuple[Any, ...], B] = {}

    def choose(self, asked: Asked) -> B | None:
        """Return the bucket with the fewest rows that a call of the sizes `asked` fits; None if it fits none."""
        key = tuple(asked)
        found = self._chosen.get(key)
        if found is None:
            found = next((bucket for bucket in self.ordered if bucket.fits(asked)), None)
            if len(self._chosen) >= REMEMBERED:
                self._chosen.clear()
            if found is not None:
                self._chosen[key] = found
        return found

    def shown(self) -> list[str]:
        """Return the largest buckets as text, those with the fewest rows first. A bucket is left out if another one
        with more rows takes all calls that it takes."""
        largest: list[B] = []
        for bucket in reversed(self.ordered):
            if bucket.rows and not any(other.covers(bucket) for other in largest):
                largest.append(bucket)
        return [str(bucket) for bucket in reversed(largest)]


def no_bucket(shapes: Mapping[str, Sequence[int]], buckets: Sequence[str]) -> TensorError:
    """Return the error for a call that fits no bucket, a `TensorError`. shapes: of the call's tensors, by name.
    buckets: as text (`ShapeBuckets.shown`)."""
    given = ", ".join(f"{name} of {tuple(shape)}" for name, shape in shapes.items())
    more = f"; and {len(buckets) - MAX_SHOWN} more" if len(buckets) > MAX_SHOWN else ""
    return TensorError(f"no program takes {given}; there are programs for {'; '.join(buckets[:MAX_SHOWN])}{more}")
