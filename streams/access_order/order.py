"""What comes before what in every run of a program: the order of the statements of each instance, and of tokens.

A *moment* is a place between the operations of an instance: the index of a node in the body and, if it is inside that
loop, the iteration and a moment of the loop's body: (2, 5, 0) is the beginning of the sixth iteration of the third
node. Counts of puts and gets at a moment follow from sums over loops, so that no token is walked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..tree import Body, FixedLoop
from .index import CounterRanges, TensorAccess, TracedLoop

Moment = tuple[int, ...]
WORK = 1_000_000
"""Limit of the accesses that are compared, and of the instances on paths of tokens, in one check."""


class TooMuchOrder(Exception):
    """The check has compared more accesses and instances than the limit `WORK`."""


@dataclass(frozen=True)
class TokenStep:
    """A token that orders two instances: one step on a path from instance to instance.

    stream: the number of its stream. put, get: the moment right before the put of the token in the instance that puts
    it, and right before its get in the other one. source: the number of the instance from which the path comes. came:
    the moment in `source` at which the path leaves it."""

    stream: int
    put: Moment
    get: Moment
    came: Moment
    source: int


class ProgramOrder:
    """What comes before what in every run of a program, over all of its task instances (a moment: module docstring).

    bodies: the operations of each instance, without branches. packing: for each stream that moves several elements at
    once, by the stream's number, how many. Streams have any depth: a put that waits for a free slot orders nothing."""

    def __init__(self, bodies: Sequence[Body], packing: Mapping[int, int]) -> None:
        self.bodies, self.packing, self._work = bodies, packing, WORK
        self._counts: dict[int, tuple[Body, dict[int, tuple[list[int], list[int]]]]] = {}
        self.reader: dict[int, int] = {}
        self.writer: dict[int, int] = {}
        self.outward: list[list[int]] = [[] for _ in bodies]
        self.inward: list[list[int]] = [[] for _ in bodies]
        self.tokens: dict[int, int] = {}
        for k, body in enumerate(bodies):
            for stream, put in sorted({(s, put) for node in body for s, put, _ in node.needs}):
                (self.writer if put else self.reader)[stream] = k
                (self.outward if put else self.inward)[k].append(stream)
                if put:
                    self.tokens[stream] = self._total(body, stream)

    def spend(self, count: int) -> None:
        """Count `count` comparisons or instances as work. Raises `TooMuchOrder` if all work so far is more than
        `WORK`."""
        self._work -= count
        if self._work < 0:
            raise TooMuchOrder

    def after(self, instance: int, moment: Moment) -> tuple[dict[int, Moment], dict[int, TokenStep]]:
        """Return two values for each instance that a moment orders, by the instance's number: the first moment behind
        which all comes after `moment`, and the last token on the path from `moment` to it.

        instance: the number of the instance in which `moment` is; it has no token. Instances in which nothing comes
        after `moment` are left out. Raises `TooMuchOrder` as `spend`."""
        moments, steps = {instance: moment}, dict[int, TokenStep]()
        todo = deque([instance])
        while todo:
            k = todo.popleft()
            at = moments[k]
            self.spend(1)
            for stream in self.outward[k]:
                n = self.before(self.bodies[k], at, stream)
                if n >= self.tokens[stream]:
                    continue
                packing = self.packing.get(stream, 1)
                reader = self.reader[stream]
                got = self.nth(self.bodies[reader], stream, n // packing * packing)
                found = (*got[:-1], got[-1] + 1)
                if reader not in moments or found < moments[reader]:
                    moments[reader] = found
                    steps[reader] = TokenStep(stream, self.nth(self.bodies[k], stream, n), got, at, k)
                    todo.append(reader)
        return moments, steps

    def ahead(self, instance: int, moment: Moment) -> tuple[dict[int, Moment], dict[int, TokenStep]]:
        """Return two values for each instance that is ordered before a moment, by the instance's number: the last
        moment before which all comes before `moment`, and the first token on the path from it to `moment`.

        instance: the number of the instance in which `moment` is; it has no token. Instances in which nothing comes
        before `moment` are left out. Raises `TooMuchOrder` as `spend`."""
        moments, steps = {instance: moment}, dict[int, TokenStep]()
        todo = deque([instance])
        while todo:
            k = todo.popleft()
            at = moments[k]
            self.spend(1)
            for stream in self.inward[k]:
                n = self.before(self.bodies[k], at, stream)
                if not n:
                    continue
                packing = self.packing.get(stream, 1)
                writer = self.writer[stream]
                last = min(-(-n // packing) * packing, self.tokens[stream]) - 1
                found = self.nth(self.bodies[writer], stream, last)
                if writer not in moments or found > moments[writer]:
                    moments[writer] = found
                    steps[writer] = TokenStep(stream, found, self.nth(self.bodies[k], stream, n - 1), at, k)
                    todo.append(writer)
        return moments, steps

    # -- counts ------------------------------------------------------------------------------------------------------

    def _of(self, body: Body) -> dict[int, tuple[list[int], list[int]]]:
        """For each stream, the nodes of a body that move its tokens, and how many are moved up to the end of each."""
        found = self._counts.get(id(body))
        if found is None:
            made: dict[int, tuple[list[int], list[int]]] = {}
            for index, node in enumerate(body):
                for stream, _, n in node.needs:
                    places, counts = made.setdefault(stream, ([], []))
                    places.append(index)
                    counts.append(n + (counts[-1] if counts else 0))
            found = self._counts[id(body)] = body, made
        return found[1]

    def _total(self, body: Body, stream: int) -> int:
        return self._of(body)[stream][1][-1] if stream in self._of(body) else 0

    def before(self, body: Body, moment: Moment, stream: int) -> int:
        """Return how many tokens of a stream a body has moved at a moment. body: with the moment in it. stream: the
        number of the stream."""
        places, counts = self._of(body).get(stream, ([], []))
        k = bisect_right(places, moment[0] - 1)
        found = counts[k - 1] if k else 0
        if len(moment) > 1:
            loop = body[moment[0]]
            assert isinstance(loop, FixedLoop)
            found += moment[1] * self._total(loop.body, stream) + self.before(loop.body, moment[2:], stream)
        return found

    def nth(self, body: Body, stream: int, n: int) -> Moment:
        """Return the moment right before the operation of a body that moves token number n of a stream, counted from 0.
        stream: the number of the stream. The caller knows that the body moves more than n tokens of it."""
        places, counts = self._of(body)[stream]
        k = bisect_right(counts, n)
        rest = n - (counts[k - 1] if k else 0)
        node = body[places[k]]
        if not isinstance(node, FixedLoop):
            return (places[k],)
        iteration, rest = divmod(rest, self._total(node.body, stream))
        return (places[k], iteration, *self.nth(node.body, stream, rest))


@dataclass(frozen=True, slots=True)
class AccessRange:
    """An access in some iterations of the loops around it. ranges: the first and the last iteration by loop counter,
    the outermost loop first."""

    access: TensorAccess
    ranges: CounterRanges


class AccessFinder:
    """Finds the accesses to one tensor between two moments of an instance. tensor: the name of the tensor in the
    region."""

    def __init__(self, tensor: str) -> None:
        self.tensor = tensor
        self._touching: dict[int, tuple[Body, list[int]]] = {}

    def touching(self, body: Body) -> list[int]:
        """Return the indices of those nodes of a body that access the tensor, or that are loops with such an access, in
        rising order."""
        found = self._touching.get(id(body))
        if found is None:
            found = self._touching[id(body)] = body, [k for k, node in enumerate(body) if self._touches(node)]
        return found[1]

    def _touches(self, node: object) -> bool:
        if isinstance(node, TensorAccess):
            return node.tensor == self.tensor
        return isinstance(node, FixedLoop) and bool(self.touching(node.body))

    def between(
        self, body: Body, low: Moment | None, high: Moment | None, ranges: CounterRanges, out: list[AccessRange]
    ) -> None:
        """Append to `out` the accesses of a body between two moments. low, high: these moments; None for the beginning
        and the end of the body. ranges: the first and the last iteration of each loop around the body."""
        nodes = self.touching(body)
        first = bisect_right(nodes, low[0] - 1) if low else 0
        last = bisect_right(nodes, high[0]) if high else len(nodes)
        for k in nodes[first:last]:
            node = body[k]
            if isinstance(node, TensorAccess):
                if not high or k < high[0]:
                    out.append(AccessRange(node, ranges))
                continue
            assert isinstance(node, TracedLoop)
            if high and k == high[0] and len(high) == 1:
                continue
            self._in_loop(
                node,
                low[1:] if low and k == low[0] and len(low) > 1 else None,
                high[1:] if high and k == high[0] else None,
                ranges,
                out,
            )

    def _in_loop(
        self, loop: TracedLoop, low: Moment | None, high: Moment | None, ranges: CounterRanges, out: list[AccessRange]
    ) -> None:
        counter = loop.counter
        if low and high and low[0] == high[0]:
            self.between(loop.body, low[1:], high[1:], {**ranges, counter: (low[0], low[0])}, out)
            return
        first, last = 0, loop.times - 1
        if low:
            self.between(loop.body, low[1:], None, {**ranges, counter: (low[0], low[0])}, out)
            first = low[0] + 1
        if high:
            last = high[0] - 1
        if first <= last:
            self.between(loop.body, None, None, {**ranges, counter: (first, last)}, out)
        if high:
            self.between(loop.body, None, high[1:], {**ranges, counter: (high[0], high[0])}, out)


def counters(moment: Moment) -> tuple[int, ...]:
    """Return the iteration of each loop in which a moment lies, counted from 0, the outermost loop first."""
    return moment[1::2]


def nodes_of(moment: Moment) -> tuple[int, ...]:
    """Return the indices of the nodes through which a moment goes: in the body of the instance, and in that of each
    loop in it, the outermost first."""
    return moment[::2]
