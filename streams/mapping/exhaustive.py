"""All mappings of a small graph: every way to apply `bundle` and `chain` to two nodes, again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations

from .errors import MappingError
from .mapping import AppliedPrimitive, Mapped
from .primitives import links, refuse_bundle, refuse_chain
from .shots import Shots

NODES = 6
"""The most nodes of a graph whose mappings are looked at one by one."""
MAPPINGS = 10_000
"""The most mappings that are looked at one by one."""


def every_mapping(start: Mapped, worth: Callable[[Mapped], bool]) -> Iterator[Mapped | None]:
    """Yield each mapping that primitives make of `start` once, `start` first; at last None if there are more than
    `MAPPINGS`. worth: whether to yield a mapping and to apply primitives to it. Bundles also join nodes whose streams a
    peer moves in another order; these streams stay separate, and a chain may make them local."""
    seen = {_key(start)}
    todo = [start]
    while todo:
        mapped = todo.pop()
        if not worth(mapped):
            continue
        yield mapped
        for made in _successors(mapped):
            key = _key(made)
            if key not in seen:
                if len(seen) == MAPPINGS:
                    yield None
                    return
                seen.add(key)
                todo.append(made)


def _key(mapped: Mapped) -> frozenset[int]:
    return frozenset(group.number for group in mapped.groups)


def _successors(mapped: Mapped) -> Iterator[Mapped]:
    groups, made = mapped.groups, mapped.made
    for x, y in permutations(range(len(groups)), 2):
        names = mapped.name(x), mapped.name(y)
        try:
            refuse_chain(mapped, x, y)
        except MappingError:
            pass
        else:
            node = made.chain([*links(mapped, x), *links(mapped, y)])
            yield mapped.joined([(node, (x, y))], AppliedPrimitive("chain", names))
        if _parts(groups[x])[0].kernel != _parts(groups[y])[0].kernel:
            continue
        try:
            parts = refuse_bundle(mapped, (x, y), "")
        except MappingError:
            continue
        yield mapped.joined([(made.bundle(parts), (x, y))], AppliedPrimitive("bundle", names))


def _parts(group: Shots) -> tuple[Shots, ...]:
    return group.parts if group.kind == "bundle" else (group,)
