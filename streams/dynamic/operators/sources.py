"""Streams that a program begins with: selectors and metadata (the artifact's SelectGen and MetadataGen)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from ..errors import StepError
from ..functions import InputRefused
from ..requests import CYCLE, Busy, DeliverToken, Kernel
from ..shapes import Dimension, SelectorType, StreamType, Symbols, dimension, ragged, tile
from ..tokens import Element, Selector, Stop, Tile, encode
from .base import KernelContext, Limits, SourceOperator


def sizes_of(nested: Sequence[Any], rank: int, symbols: Symbols) -> tuple[Dimension, ...]:
    """Return the shape of nested lists: `rank + 1` dimensions, the outermost first. nested: a list of tensors, each of
    them lists, `rank` deep. symbols: makes the symbols of ragged dimensions. A dimension with several sizes is ragged
    and static, since all sizes are known."""
    groups: list[Any] = [nested]
    shape = []
    for level in range(rank + 1):
        sizes = [len(group) for group in groups]
        if len(set(sizes)) <= 1:
            shape.append(dimension(sizes[0] if sizes else 0))
        else:
            name = f"R{symbols.number()}"
            shape.append(ragged(name, static=True, total=sum(sizes), largest=max(sizes)))
        groups = [child for group in groups for child in group] if level < rank else []
    return tuple(shape)


def _least_0(rank: int) -> int:
    if rank < 0:
        raise StepError("source", f"a stream of rank {rank}; the least is 0")
    return rank


def _frozen(nested: Any, rank: int) -> Any:
    if rank < 0:
        return nested
    if isinstance(nested, str) or not hasattr(nested, "__iter__"):
        raise StepError("source", f"{nested} is no list: a stream of rank a has lists a + 1 deep")
    return tuple(_frozen(child, rank - 1) for child in nested)


def leaves(nested: Any, rank: int) -> Iterator[Any]:
    """Yield the innermost items of nested tuples, in order. nested: a tuple of tensors, each of them tuples, `rank`
    deep; an item that is no tuple above that depth is yielded as it is."""
    for child in nested if isinstance(nested, tuple) else (nested,):
        yield from leaves(child, rank - 1) if rank else (child,)


def _check_integers(values: Iterable[Any], what: str) -> None:
    """Raise `InputRefused` unless all are integers."""
    for one in values:
        if not isinstance(one, Integral):
            raise InputRefused(f"{one} is no {what}, an integer; a stream of rank a has lists a + 1 deep")


@dataclass(frozen=True, init=False)
class SelectGen(SourceOperator):
    """Make a stream of selectors that the program states. nested: a list of tensors, each of them lists, `rank` deep,
    of tuples with the numbers of the chosen streams. choices: how many streams there are to choose from. rank: of the
    stream. Raises `StepError` for a rank below 0, and for lists that are less deep."""

    nested: Any
    choices: int
    rank: int

    def __init__(self, nested: Sequence[Any], choices: int, rank: int = 0) -> None:
        object.__setattr__(self, "rank", _least_0(rank))
        object.__setattr__(self, "nested", _frozen(nested, rank + 1))
        object.__setattr__(self, "choices", choices)

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        _check_integers(leaves(self.nested, self.rank + 1), "choice")
        flat = [one for one in encode(self.nested, self.rank, Selector) if isinstance(one, Selector)]
        for one in flat:
            if any(not 0 <= choice < self.choices for choice in one.chosen):
                raise InputRefused(f"selector {one} of {self.choices} streams")
        hot = {len(one.chosen) for one in flat}
        kind = SelectorType(self.choices, hot.pop() if len(hot) == 1 else None)
        return (StreamType(sizes_of(self.nested, self.rank, symbols), kind),)

    def kernel(self, context: KernelContext) -> Kernel:
        for token in encode(self.nested, self.rank, Selector):
            if not isinstance(token, Stop):
                yield Busy(CYCLE)
            yield DeliverToken((0,), token)


@dataclass(frozen=True, init=False)
class MetadataGen(SourceOperator):
    """Make a stream of integers that the program states, such as sizes and addresses, as [1,1] tiles of i32. nested: a
    list of tensors, each of them lists, `rank` deep, of integers. rank: of the stream. Raises `StepError` for a rank
    below 0, and for lists that are less deep."""

    nested: Any
    rank: int

    def __init__(self, nested: Sequence[Any], rank: int = 0) -> None:
        object.__setattr__(self, "rank", _least_0(rank))
        object.__setattr__(self, "nested", _frozen(nested, rank))

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        _check_integers(leaves(self.nested, self.rank), "number")
        return (StreamType(sizes_of(self.nested, self.rank, symbols), tile(1, 1, "i32")),)

    def kernel(self, context: KernelContext) -> Kernel:
        for token in encode(self.nested, self.rank, _integer):
            if not isinstance(token, Stop):
                yield Busy(CYCLE)
            yield DeliverToken((0,), token)


def _integer(value: int) -> Element:
    return Tile.of(int(value), "i32")
