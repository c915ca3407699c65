"""Random orders, and what a converter must hold by sets of elements, loop by loop."""

from __future__ import annotations

from itertools import product
from math import prod
from random import Random

from rsn.streams.orders.order import Axis, Order


def drawn_order(random: Random, tensor: tuple[int, ...], dtype: str = "f32") -> Order:
    """An order of a tensor: any token size, loops in any sequence, among them loops of one trip and such that give
    tokens again."""
    element = tuple(random.choice([k for k in range(1, size + 1) if size % k == 0]) for size in tensor)
    loops: list[tuple[int, int, int | None]] = []
    for axis, (size, each) in enumerate(zip(tensor, element, strict=True)):
        if size > each or random.random() < 0.5:
            loops.append((size // each, each, axis))
    for _ in range(random.choice([0, 0, 0, 1, 1, 2])):
        loops.append((random.choice([1, 2, 3]), random.choice([1, 2]), None))
    random.shuffle(loops)
    place = {axis: number for number, (_, _, axis) in enumerate(loops) if axis is not None}
    axes = tuple(Axis(place.get(axis)) for axis in range(len(tensor)))
    return Order(element, tuple(trips for trips, _, _ in loops), tuple(step for _, step, _ in loops), axes, dtype)


def drawn_pair(random: Random, most: int = 12) -> tuple[Order, Order]:
    """Two orders of one tensor; often alike, because unrelated ones seldom share a loop."""
    tensor = tuple(random.choice([1, 2, 4, 6, most]) for _ in range(random.choice([1, 2, 2, 3])))
    put = drawn_order(random, tensor)
    for _ in range(random.choice([1, 8, 30])):
        get = drawn_order(random, tensor)
        if get.element == put.element and get.trips[:1] == put.trips[:1]:
            break
    return put, get


def needed(put: Order, get: Order) -> tuple[int, tuple[int, ...]]:
    """The most outer loops in each iteration of which both sides touch the same elements, and the box around those."""
    source, target = put.canonical, get.canonical
    shared, box = 0, put.tensor
    for outer in range(min(len(source.trips), len(target.trips)) + 1):
        if source.trips[:outer] != target.trips[:outer]:
            break
        here = [0] * len(box)
        for at in product(*map(range, source.trips[:outer])):
            touched = [elements(order, at) for order in (source, target)]
            if touched[0] != touched[1]:
                return shared, box
            for axis in range(len(box)):
                seen = {index[axis] for index in touched[0]}
                here[axis] = max(here[axis], max(seen) - min(seen) + 1)
        shared, box = outer, tuple(here)
    return shared, box


def elements(order: Order, at: tuple[int, ...]) -> set[tuple[int, ...]]:
    """The elements of all tokens in an iteration of the outer loops."""
    ranges = []
    for size, axis in zip(order.element, order.axes, strict=True):
        if axis.loop is None:
            ranges.append(range(axis.start, axis.start + size))
        elif axis.loop < len(at):
            first = axis.start + at[axis.loop] * order.steps[axis.loop]
            ranges.append(range(first, first + size))
        else:
            ranges.append(range(axis.start, axis.start + size * order.trips[axis.loop]))
    return set(product(*ranges))


def held(put: Order, get: Order) -> int:
    """The most elements held at a time, token by token: a token is got as soon as its elements are there."""
    uses: dict[tuple[int, ...], int] = {}
    tokens = []
    for at in get.indices():
        token = list(product(*(range(k, k + n) for k, n in zip(at, get.element, strict=True))))
        tokens.append(token)
        for element in token:
            uses[element] = uses.get(element, 0) + 1
    there: set[tuple[int, ...]] = set()
    most = taken = 0
    seen: set[tuple[int, ...]] = set()
    for at in put.indices():
        token = set(product(*(range(k, k + n) for k, n in zip(at, put.element, strict=True))))
        there |= token - seen
        seen |= token
        most = max(most, len(there))
        while taken < len(tokens) and all(element in there for element in tokens[taken]):
            for element in tokens[taken]:
                uses[element] -= 1
                if not uses[element]:
                    there.discard(element)
            taken += 1
    assert taken == len(tokens)
    assert most <= prod(put.tensor)
    return most


def buffer_as_printed(put: Order, get: Order) -> tuple[int, ...]:
    """Return the shape of the buffer, in elements, by Algorithm 1 of StreamTensor as it is listed: data axes from the
    first on, up to the first that the sides do not drive by the same loop. The paper's own example (Fig. 5) takes less:
    `buffer_as_described`.
    """
    shape: list[int] = []
    loops: list[int | None] = []
    shared = 0
    for size, other, mine, theirs in zip(put.element, get.element, put.axes, get.axes, strict=True):
        if size != other or mine != theirs:
            break
        shape.append(size)
        loops.append(mine.loop)  # None: a constant on both sides, which the listing's second part calls -1
        shared += mine.loop is not None
    while any(loop is not None and loop >= shared for loop in loops):
        shape.pop()
        shared -= loops.pop() is not None
    return (*shape, *put.tensor[len(shape) :])


def buffer_as_described(put: Order, get: Order) -> tuple[int, ...]:
    """Return the shape of the buffer, in elements, as the text of StreamTensor, section 5.2.1, describes it: each data
    axis by itself has one token's size if both sides drive it by the same loop, and by no loop inside one that they do
    not share. Loops of one trip count, and loops that give tokens again are never shared: `converter` does better
    there.
    """
    equal = {
        mine.loop: axis
        for axis, (mine, theirs) in enumerate(zip(put.axes, get.axes, strict=True))
        if mine.loop is not None and mine.loop == theirs.loop and put.element[axis] == get.element[axis]
    }
    kept = {axis for loop, axis in equal.items() if all(outer in equal for outer in range(loop))}
    return tuple(put.element[axis] if axis in kept else size for axis, size in enumerate(put.tensor))
