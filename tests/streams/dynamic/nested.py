"""What operators do to nested lists: tensors of a stream, each list a group. Nothing here knows of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any


def drawn(random: Random, rank: int, most: int = 3, sizes: dict[int, int] | None = None) -> list[Any]:
    """Tensors with groups of 0 to `most` children. sizes: of dimensions that have only one size."""
    known = sizes or {}

    def group(dimension: int) -> list[Any]:
        size = known.get(dimension, random.choice([0, *range(most + 1)]))
        if dimension == 0:
            return [random.randrange(10) for _ in range(size)]
        return [group(dimension - 1) for _ in range(size)]

    return group(rank)


def at_rank(nested: list[Any], rank: int, level: int, change: Callable[[Any], Any]) -> Any:
    """Change each tensor of rank `level` in a stream of rank `rank`; level rank + 1 is the whole stream."""
    if level == rank + 1:
        return change(nested)
    return [at_rank(child, rank - 1, level, change) if rank > level else change(child) for child in nested]


def joined(lists: Sequence[list[Any]]) -> list[Any]:
    return [child for one in lists for child in one]


def leaves(nested: Any, depth: int) -> list[Any]:
    """Elements of lists so deep."""
    return joined([leaves(child, depth - 1) for child in nested]) if depth > 1 else list(nested)


def flatten(nested: list[Any], rank: int, least: int, most: int) -> Any:
    def flat(group: list[Any]) -> list[Any]:
        for _ in range(most - least):
            group = joined(group)
        return group

    return at_rank(nested, rank, most + 1, flat)


def reshape(nested: list[Any], rank: int, level: int, size: int, pad: Any) -> Any:
    def cut(group: list[Any]) -> list[Any]:
        chunks = [group[k : k + size] for k in range(0, len(group), size)]
        if chunks and level == 0:
            chunks[-1] = chunks[-1] + [pad] * (size - len(chunks[-1]))
        return chunks

    return at_rank(nested, rank, level + 1, cut)


def accum(nested: list[Any], rank: int, level: int) -> Any:
    return at_rank(nested, rank, level, lambda group: sum(leaves(group, level)))


def scan(nested: list[Any], rank: int, level: int) -> Any:
    def running(group: list[Any]) -> Any:
        total = 0

        def walk(child: Any, depth: int) -> Any:
            nonlocal total
            if depth == 0:
                total += child
                return total
            return [walk(one, depth - 1) for one in child]

        return walk(group, level)

    return at_rank(nested, rank, level, running)


def flat_map(nested: list[Any], rank: int, function: Callable[[Any], list[Any]]) -> Any:
    return at_rank(nested, rank, 1, lambda group: joined([function(one) for one in group]))


def replaced(nested: Any, depth: int, value: Any) -> Any:
    """Every element of lists so deep replaced."""
    return value if depth == 0 else [replaced(child, depth - 1, value) for child in nested]


def wrapped(value: Any, depth: int) -> Any:
    """A value in so many lists of one."""
    return value if depth == 0 else [wrapped(value, depth - 1)]


def pair(random: Random, reference: list[Any], rank: int, level: int, make: Callable[[], Any]) -> tuple[Any, Any]:
    """For each tensor of rank `level` of a reference: a drawn value in its place, and the pair of both in its place."""
    values = at_rank(reference, rank, level, lambda _: make())
    found = iter(leaves(values, rank + 1 - level)) if level <= rank else iter([values])
    return values, at_rank(reference, rank, level, lambda group: (next(found), group))


def partition(nested: list[Any], rank: int, chunk: int, selectors: Any, count: int) -> list[list[Any]]:
    """The chunks of rank `chunk` that each output gets."""
    chunks = leaves(nested, rank - chunk + 1)
    chosen = leaves(selectors, rank - chunk + 1)
    return [[part for part, one in zip(chunks, chosen, strict=True) if port in one] for port in range(count)]
