"""How tensors lie on the grid of a task: labels of their axes, shards, placement, and reductions that are pending.

The grid of a task's instances is its mesh. A label is None (R: a copy on every instance) or a mesh axis (S<axis>: cut
along it). All instances run the same body, each on its shards; a `Distribution` says what the shards of a value make
up together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod

from .source import Refusal

Labels = tuple[int | None, ...]
"""For each axis of a tensor: the mesh axis that cuts it, or None."""

Pending = frozenset[tuple[str, int]]
"""Reductions that are not complete: (operator, mesh axis). "?": only some paths have it, so nothing completes it."""

NONE: Pending = frozenset()

LABEL = re.compile(r"R|S\d+")
OPEN = "?"
"""Stands in the layout of a parameter for a label that is found (`inference`)."""


@dataclass(frozen=True)
class Distribution:
    """What is known about the values of one expression on all instances of a task.

    labels: of the whole tensor of which these values are the shards; None if that is not known (the value is local to
    its instance). pending: reductions of the shards, each along mesh axes, that the whole tensor still needs. uniform:
    whether all elements on all instances are the same number, so that any labels fit. number: that number, if it is
    known before the run; else None."""

    labels: Labels | None = None
    pending: Pending = NONE
    uniform: bool = False
    number: int | float | None = None

    @property
    def local(self) -> bool:
        """Whether nothing is known about the values on other instances."""
        return self.labels is None and not self.uniform

    @property
    def axes(self) -> frozenset[int]:
        """The mesh axes over which a reduction is pending."""
        return frozenset(axis for _, axis in self.pending)

    def alike(self, axes: frozenset[int]) -> bool:
        """Return whether instances that differ along these mesh axes only are known to hold equal copies."""
        if self.uniform:
            return True
        return self.labels is not None and not axes & {a for a in self.labels if a is not None} and not self.axes & axes


LOCAL = Distribution()


def constant(number: int | float | None) -> Distribution:
    """Return the distribution of a number that is equal in all instances. number: None if it is not known before the
    run.
    """
    return Distribution(uniform=True, number=number)


def parse(text: str) -> tuple[Labels, bool]:
    """Return the labels in a text such as "S0R" or "RS10", one for each axis of the tensor (None for R, the mesh axis
    for S), and whether the text ends with "!", which asks that pending reductions are completed before a value is
    stored. Raises `Refusal` for any other text."""
    text, asks = text.removesuffix("!"), text.endswith("!")
    found = LABEL.findall(text)
    if "".join(found) != text:
        at = 0
        while match := LABEL.match(text, at):
            at = match.end()
        rest = text[at : at + 10]
        note = "labels are R and S<axis>, such as S0R"
        if rest.startswith(OPEN):
            note = "a ? stands in the layout of a parameter of a task only, where its label is found"
        raise Refusal("layout", f"{text!r} is no layout: {rest!r} is no label", None, note)
    return tuple(None if label == "R" else int(label[1:]) for label in found), asks


def refuse_open(text: str, shape: Sequence[int], name: str) -> None:
    """Raise `Refusal` if a text with ? does not have a label, or a ?, for each axis of a tensor. shape: of the tensor.
    name: of the parameter, for the message."""
    labels = re.findall(rf"{LABEL.pattern}|\{OPEN}", text)
    rest = re.sub(rf"^(?:{LABEL.pattern}|\{OPEN})*", "", text.removesuffix("!"))
    if rest:
        note = f"labels are R, S<axis> such as S0, and {OPEN} for a label that is found"
        raise Refusal("layout", f"{name}: {text!r} is no layout: {rest!r} is no label", None, note)
    if len(labels) != len(shape):
        raise _wrong_count(name, text, len(labels), shape)


def _wrong_count(name: str, text: str, count: int, shape: Sequence[int]) -> Refusal:
    message = f"{name}: {text} has {count} labels, and the tensor has {len(shape)} axes"
    return Refusal("layout", message, None, f"the default is {'R' * len(shape) or 'no label'}")


def closed(text: str, shape: Sequence[int], mesh: Sequence[int]) -> list[str]:
    """Return the layouts that a text with ? may stand for. Each ? may be R, or a mesh axis that cuts no other axis of
    the tensor and whose size divides that of the axis. The first one has R for each ?. text: with a label or a ? for
    each axis of the tensor, as `refuse_open` takes it. shape: of the whole tensor. mesh: size of each axis."""
    labels = re.findall(rf"{LABEL.pattern}|\{OPEN}", text)
    first = text.replace(OPEN, "R")
    ways = [
        ["R", *(f"S{k}" for k, n in enumerate(mesh) if size % n == 0)] if label == OPEN else [label]
        for label, size in zip(labels, shape, strict=True)
    ]
    found = [way for way in product(*ways) if all(label == "R" or way.count(label) == 1 for label in way)]
    return ["".join(way) + "!" * text.endswith("!") for way in found] or [first]


@cache
def moved(shape: tuple[int, ...], before: Labels, after: Labels, mesh: tuple[int, ...]) -> int:
    """Return how many elements instances need in a new layout of a tensor and do not hold in the old one; the sum over
    all instances. shape: of the whole tensor. before, after: the labels. mesh: size of each axis."""
    count = 0
    axes = {*before, *after}
    for tid in product(*(range(size if axis in axes else 1) for axis, size in enumerate(mesh))):
        held, needed = (part_of(shape, labels, mesh, tid) for labels in (before, after))
        both = prod(max(0, min(a.stop, b.stop) - max(a.start, b.start)) for a, b in zip(held, needed, strict=True))
        count += prod(part.stop - part.start for part in needed) - both
    return count * prod(size for axis, size in enumerate(mesh) if axis not in axes)


def shown(labels: Labels) -> str:
    """Return labels as text, in the form that `parse` reads; "no axes" for none."""
    return "".join("R" if axis is None else f"S{axis}" for axis in labels) or "no axes"


def described(pending: Pending) -> str:
    """Return pending reductions as text, such as `+ over mesh axes 0, 1`."""
    parts = []
    for op in sorted({op for op, _ in pending}):
        axes = sorted(axis for o, axis in pending if o == op)
        parts.append(f"{op} over mesh {'axis' if len(axes) == 1 else 'axes'} {', '.join(map(str, axes))}")
    return " and ".join(parts)


def state(dist: Distribution) -> str:
    """Return the distribution of a value as text: its labels, and its pending reductions."""
    labels = "tiles of its instances" if dist.labels is None else shown(dist.labels)
    return f"{labels} with {described(dist.pending)} pending" if dist.pending else labels


def validate(shape: Sequence[int], labels: Labels, mesh: Sequence[int], name: str) -> None:
    """Raise `Refusal` if labels do not fit a tensor. They fit if there is one for each axis, and each named mesh axis
    exists, is named once, and has a size that divides that of the tensor's axis. shape: of the whole tensor. mesh: size
    of each axis. name: of the tensor, for the message."""
    text, grid = shown(labels), f"the mesh {list(mesh)}"
    if len(labels) != len(shape):
        raise _wrong_count(name, text, len(labels), shape)
    for k, (size, axis) in enumerate(zip(shape, labels, strict=True)):
        if axis is None:
            continue
        if axis >= len(mesh):
            last = f"its axes are numbered from 0, the last one is {len(mesh) - 1}"
            raise Refusal("layout", f"{name}: S{axis} names mesh axis {axis}, which {grid} does not have", None, last)
        if axis in labels[:k]:
            message = f"{name}: mesh axis {axis} cuts two axes of one tensor"
            raise Refusal("layout", message, None, "only the diagonal tiles would be on an instance")
        if size % mesh[axis]:
            message = f"{name}: axis {k} of size {size} is no multiple of mesh axis {axis}, which is {mesh[axis]}"
            more = size + -size % mesh[axis]
            raise Refusal("layout", message, None, f"padding is explicit: declare {more}, and fill the rest")


def shard_shape(shape: Sequence[int], labels: Labels, mesh: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a shard of a tensor. shape: of the whole tensor. labels: one for each of its axes; the caller
    has checked them (`validate`). mesh: size of each axis."""
    return tuple(size if a is None else size // mesh[a] for size, a in zip(shape, labels, strict=True))


def whole_shape(shape: Sequence[int], labels: Labels, mesh: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the whole tensor of a shard. shape: of the shard. labels: one for each axis of the tensor.
    mesh: size of each axis."""
    return tuple(size if a is None else size * mesh[a] for size, a in zip(shape, labels, strict=True))


def tile_of(labels: Labels, tid: Sequence[int]) -> tuple[int, ...]:
    """Return which tile of a tensor the instance at `tid` holds: one coordinate, counted in tiles from 0, for each axis
    of the tensor. labels: one for each of these axes. tid: the point of the instance.
    """
    return tuple(0 if axis is None else tid[axis] for axis in labels)


def part_of(shape: Sequence[int], labels: Labels, mesh: Sequence[int], tid: Sequence[int]) -> tuple[slice, ...]:
    """Return the part of the whole tensor that the instance at `tid` holds: a slice of each axis, in elements. shape:
    of the whole tensor. labels: one for each of its axes. mesh: size of each axis.
    """
    sizes = shard_shape(shape, labels, mesh)
    return tuple(slice(c * n, (c + 1) * n) for c, n in zip(tile_of(labels, tid), sizes, strict=True))


def holders(labels: Labels, mesh: Sequence[int]) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """Return for each tile of a tensor, by its coordinates (`tile_of`), the points of the mesh whose instances hold a
    copy of it, in order; the first one stores it. labels: one for each axis of the tensor. mesh: size of each axis.
    """
    found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for tid in product(*map(range, mesh)):
        found.setdefault(tile_of(labels, tid), []).append(tid)
    return found


def group_of(axes: Sequence[int], mesh: Sequence[int], tid: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the points of the instances that a collective along these mesh axes joins with the one at `tid`, in order,
    that one included. axes: the mesh axes. mesh: size of each axis.
    """
    ranges = [range(size) if axis in axes else range(tid[axis], tid[axis] + 1) for axis, size in enumerate(mesh)]
    return list(product(*ranges))


def merged(a: Distribution, b: Distribution) -> Distribution:
    """Return the distribution of a value that has the distribution a or b, depending on the path. A reduction that is
    pending on one path only cannot be completed by any collective; its operator becomes "?"."""
    if a == b:
        return a
    pending = (a.pending & b.pending) | {("?", axis) for _, axis in a.pending ^ b.pending}
    for x, y in ((a, b), (b, a)):
        if x.uniform and (not y.pending or x.number == 0) and not any(op != "+" for op, _ in y.pending):
            return replace(y, number=None)
    return Distribution(a.labels if a.labels == b.labels else None, pending)


def localised(dist: Distribution) -> Distribution:
    """Return the distribution of a value that some instances may not have computed: nothing is known of the other
    instances, but its pending reductions remain."""
    return Distribution(None, dist.pending)


def remedy(have: Labels, want: Labels, pending: Pending = NONE) -> str:
    """Return as text how a value in the layout `have` can be brought to `want`, by collectives or otherwise; "" if the
    two are equal. pending: reductions that are not complete; a reduce-scatter would complete them too."""
    steps = []
    for k, (a, b) in enumerate(zip(have, want, strict=False)):
        if a == b:
            continue
        if b is None:
            steps.append(f"all-gather axis {k} along mesh axis {a}")
        elif a is None and ("+", b) in pending:
            steps.append(f"reduce-scatter axis {k} along mesh axis {b}")
        elif a is None:
            steps.append(f"cut axis {k} along mesh axis {b}")
        else:
            steps.append(f"all-to-all of axis {k} from mesh axis {a} to {b}")
    if not steps:
        return ""
    other = "transpose it, or " if have == tuple(reversed(want)) else ""
    return f"{other}{', '.join(steps)}"
