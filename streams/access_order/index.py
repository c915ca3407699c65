"""Indices as sums over the counters of loops, and what one access touches."""

from __future__ import annotations

from dataclasses import dataclass

from ...base.place import Place
from ..tree import Body, FixedLoop, Node


class LoopCounter:
    """The counter of a traced loop; it goes from 0 to times - 1. key: which loop it counts, as two numbers: the
    statement of the loop, and the axis of its grid."""

    __slots__ = ("key", "times")

    def __init__(self, times: int, key: tuple[int, int]) -> None:
        self.times, self.key = times, key


@dataclass(frozen=True, slots=True)
class AffineIndex:
    """An index as a constant plus a sum of loop counters, each times a factor. terms: a pair (counter, factor) for each
    counter, the outermost loop first."""

    constant: int
    terms: tuple[tuple[LoopCounter, int], ...] = ()

    def plus(self, other: AffineIndex, factor: int = 1) -> AffineIndex:
        """Return the sum of this number and `factor` times `other`."""
        found = dict(self.terms)
        for counter, count in other.terms:
            found[counter] = found.get(counter, 0) + factor * count
        terms = tuple((counter, count) for counter, count in found.items() if count)
        return AffineIndex(self.constant + factor * other.constant, terms)

    def times(self, factor: int) -> AffineIndex:
        """Return this number multiplied by the constant `factor`."""
        return AffineIndex(0).plus(self, factor)

    def limits(self, ranges: CounterRanges) -> tuple[int, int]:
        """Return the least and the largest value of this number. ranges: the first and the last iteration for some
        counters; a counter that is not in it goes through all of its iterations."""
        low = high = self.constant
        for counter, factor in self.terms:
            first, last = ranges.get(counter) or (0, counter.times - 1)
            low += factor * (first if factor > 0 else last)
            high += factor * (last if factor > 0 else first)
        return low, high


CounterRanges = dict[LoopCounter, tuple[int, int]]
"""The first and the last iteration of some loops."""


@dataclass(frozen=True, slots=True)
class AxisPart:
    """The elements that an access touches along one axis of the whole tensor: low, low + step, low + 2 * step, and so
    on, none above high. Elements are counted from 0."""

    low: AffineIndex
    high: AffineIndex
    step: int = 1


BY_DATA = "data decides what line {} accesses"
BY_INDEX = "the index in line {} is no sum over the counters of its loops, which are too long to be followed one by one"
BY_SIZE = "the task in line {} is too large to be followed"
"""Why it is not known which elements an access touches."""


class TensorAccess(Node):
    """A read or a store of a part of a tensor.

    tensor: its name in the region. write: whether it is a store. name: the variable of the task. place: the place of
    the statement. axes: the touched elements along each axis of the tensor, the outermost axis first. unsure: the
    reason why the access may touch only some of these elements, or none; "" if it touches all. alike, set later:
    whether all instances that run the same statements store the same values there."""

    __slots__ = ("alike", "axes", "name", "place", "tensor", "unsure", "write")

    def __init__(
        self, tensor: str, write: bool, name: str, place: Place, axes: tuple[AxisPart, ...], unsure: str
    ) -> None:
        super().__init__((), True)
        self.tensor, self.write, self.name, self.place = tensor, write, name, place
        self.axes, self.unsure, self.alike = axes, unsure, False


class TracedLoop(FixedLoop):
    """A loop that was followed once for all of its iterations. counter: the counter that the indices in its body
    use."""

    __slots__ = ("counter",)

    def __init__(self, counter: LoopCounter, body: Body) -> None:
        super().__init__(counter.times, body)
        self.counter = counter
