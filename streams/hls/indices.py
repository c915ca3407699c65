"""Indices of tiles and tensors: where each begins, its step, and how many elements it takes, which must be static."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from ...isa.overlays.tasks import tree as t
from .kinds import INT, Val

if TYPE_CHECKING:
    from .expressions import ExpressionWriter


@dataclass(frozen=True)
class Index:
    """An index of one axis. start: the C++ text of the first element that it takes. step: elements from one that it
    takes to the next; 0 for a single element, which drops the axis. length: how many elements it takes. factor: a
    number that is known to divide the start; 0 if the start is 0."""

    start: str
    step: int = 0
    length: int = 1
    factor: int = 1


NEW_AXIS = t.Kernel("none", ())
"""`None` in an index."""

Affine = tuple[dict[t.Expression, int], int]
"""A sum of expressions with factors, and a constant."""


def indices(owner: ExpressionWriter, node: t.Expression, shape: tuple[int, ...]) -> list[Index]:
    """Return one index for each axis of a shape. owner: writes the statements that the indices need. node: the index; a
    tuple gives the indices of the first axes, and the other axes are taken whole. shape: in elements. Raises `HlsError`
    for more indices than axes, and for an index or a slice that has no C++."""
    given = node.items if isinstance(node, t.Group) else (node,)
    if not shape:  # a tensor without axes: any index is the whole
        return []
    if len(given) > len(shape):
        owner.fail(f"{len(given)} indices of {len(shape)} axes")
    made: list[Index] = []
    for part, size in zip(given, shape, strict=False):
        if isinstance(part, t.Span):
            made.append(_span(owner, part, size))
            continue
        value = owner.value(part)
        found = [value] if isinstance(value, Val) else list(getattr(value, "items", ())) or [value]
        if not isinstance(value, Val) and len(given) == 1 and all(isinstance(v, Val) for v in found):
            if len(found) > len(shape):
                owner.fail(f"{len(found)} indices of {len(shape)} axes")
            made = [_single(owner, v, n) for v, n in zip(found, shape, strict=False)]
            break
        made.append(_single(owner, value, size))
    return made + [Index("0", 1, n, 0) for n in shape[len(made) :]]


def without_new_axes(node: t.Expression) -> tuple[t.Expression, tuple[int, ...]]:
    """Return an index without its `None` parts, and the positions of these, from 0, among all its parts. node: the
    index."""
    given = node.items if isinstance(node, t.Group) else (node,)
    axes = tuple(k for k, part in enumerate(given) if part == NEW_AXIS)
    return (t.Group(tuple(part for part in given if part != NEW_AXIS)), axes) if axes else (node, ())


def with_new_axes(parts: list[Index], axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a part of a tile, with new axes of size 1. parts: an index for each axis of the tile. axes:
    the positions of the new axes, as `without_new_axes` returns them."""
    sizes: list[int | None] = [part.length if part.step else None for part in parts]
    for axis in axes:
        sizes.insert(axis, 1)
    return tuple(size for size in sizes if size is not None)


def _single(owner: ExpressionWriter, value: object, size: int) -> Index:
    if not isinstance(value, Val) or value.kind != INT or value.adapted:  # a Boolean is a mask to numpy
        owner.fail("an index is a whole number or a range")
    if value.has_known and not 0 <= value.known < size:
        owner.fail(f"index {value.known} of an axis of {size}")
    return Index(value.text)


def _span(owner: ExpressionWriter, span: t.Span, size: int) -> Index:
    step = 1
    if span.step is not None:
        value = owner.value(span.step)
        if not value.has_known or not isinstance(value.known, int) or value.known < 1:
            owner.fail("the step of a range of indices must be a number from 1 on that is known before the run")
        step = value.known
    low = t.Constant(0) if span.low is None else span.low
    high = t.Constant(size) if span.high is None else span.high
    start, end = owner.value(low), owner.value(high)
    for bound in (start, end):
        if not isinstance(bound, Val) or not bound.kind.is_int or bound.adapted:
            owner.fail("the ends of a range of indices are whole numbers")
        if bound.has_known and not 0 <= bound.known <= size:
            owner.fail(f"{bound.known} is outside an axis of {size}")
    assert isinstance(start, Val)
    assert isinstance(end, Val)
    factor = int(start.known) if start.has_known else 1
    if start.has_known and end.has_known:
        length = int(end.known) - int(start.known)
    else:
        terms, constant = _affine(owner, low)
        factor = gcd(constant, *terms.values())
        difference = _sum(_affine(owner, high), _affine(owner, low), -1)
        if difference[0]:
            owner.fail("the length of a range of indices must be known before the run, as in x[4 * i:4 * i + 4]")
        length = difference[1]
    count = -(-length // step)
    if count < 1:
        owner.fail("an empty range of indices")
    return Index(start.text, step, count, factor)


def _affine(owner: ExpressionWriter, node: t.Expression) -> Affine:
    match node:
        case t.Binary("+", left, right):
            return _sum(_affine(owner, left), _affine(owner, right), 1)
        case t.Binary("-", left, right):
            return _sum(_affine(owner, left), _affine(owner, right), -1)
        case t.Binary("*", left, right):
            a, b = _affine(owner, left), _affine(owner, right)
            for one, other in ((a, b), (b, a)):
                if not one[0]:
                    return {k: n * one[1] for k, n in other[0].items() if n * one[1]}, other[1] * one[1]
        case t.Unary("-", operand):
            return _sum(({}, 0), _affine(owner, operand), -1)
    value = owner.value(node)
    if value.has_known and isinstance(value.known, int):
        return {}, int(value.known)
    return {node: 1}, 0


def _sum(a: Affine, b: Affine, sign: int) -> Affine:
    terms = dict(a[0])
    for key, n in b[0].items():
        terms[key] = terms.get(key, 0) + sign * n
    return {key: n for key, n in terms.items() if n}, a[1] + sign * b[1]
