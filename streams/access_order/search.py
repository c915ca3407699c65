"""Searches two accesses to the same element that nothing orders, without going through all elements and iterations.

For an access of one instance, the accesses of another one that are neither before nor after it lie between two moments
(`ProgramOrder.ahead`, `.after`). All of these must touch other elements. That is shown for groups of accesses where
that suffices: what they touch along an axis ends before the other begins, or has another rest.

For a loop it is shown for its first and its last iteration. If both proofs are the same but for their numbers, and the
numbers of one iteration follow from those of the other by equal whole steps, it holds for all iterations in between:
a proof consists of equations and inequalities, which are linear in these numbers. Otherwise the loop is halved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from ..tree import Body
from .index import CounterRanges, LoopCounter, TensorAccess, TracedLoop
from .order import AccessFinder, AccessRange, Moment, ProgramOrder, TokenStep, counters, nodes_of

GROUP = 64
"""The most pairs of accesses that are compared as groups, before they are compared in smaller ones."""
PERIOD = 16
"""The most iterations after which a loop is expected to repeat itself."""


@dataclass(frozen=True)
class AccessRace:
    """Two accesses to a part of a tensor that nothing orders. low, high: the first and the last element that both
    touch, along each axis."""

    one: AccessRange
    two: AccessRange
    low: tuple[int, ...]
    high: tuple[int, ...]


class RaceFound(Exception):
    """Ends a search that has found a race. race: the two accesses."""

    def __init__(self, race: AccessRace) -> None:
        super().__init__()
        self.race = race


@dataclass(frozen=True)
class DisjointProof:
    """Why accesses are ordered, or touch no common element: steps of a proof that can be compared with those of another
    iteration.

    form: what must be equal in another iteration for the proof to hold there as well, such as streams and comparisons.
    numbers: the integers that may differ, such as iterations and elements, in a fixed order."""

    form: tuple[object, ...] = ()
    numbers: tuple[int, ...] = ()

    def __add__(self, other: DisjointProof) -> DisjointProof:
        return DisjointProof(self.form + other.form, self.numbers + other.numbers)


class PairSearch:
    """Compares the accesses of two instances to one tensor.

    order: the order of the program. one, two: the numbers of the instances. finder: finds the accesses to the tensor.
    alike: says which stores give equal values, and so are no race, among those marked `TensorAccess.alike`. True (two
    instances of one task that run the same statements): all of them; False (two of one task that do not): stores of one
    statement; None (two tasks): none."""

    def __init__(self, order: ProgramOrder, one: int, two: int, finder: AccessFinder, alike: bool | None) -> None:
        self.order, self.one, self.two, self.finder, self.alike = order, one, two, finder, alike

    def race(self) -> AccessRace | None:
        """Return a race of the two instances; None if there is none. Raises `TooMuchOrder` as `ProgramOrder.spend`."""
        body = self.order.bodies[self.one]
        try:
            self._nodes(body, self.finder.touching(body), (), {})
        except RaceFound as found:
            return found.race
        return None

    # -- accesses of the first instance ------------------------------------------------------------------------------

    def _nodes(self, body: Body, nodes: Sequence[int], path: Moment, ranges: CounterRanges) -> DisjointProof:
        """Prove it for some nodes of a body. Raises `RaceFound`."""
        if not nodes:
            return DisjointProof()
        found = self._together(body, nodes, path, ranges)
        if found is not None:
            return found
        if len(nodes) > 1:
            middle = len(nodes) // 2
            return self._nodes(body, nodes[:middle], path, ranges) + self._nodes(body, nodes[middle:], path, ranges)
        node = body[nodes[0]]
        if isinstance(node, TensorAccess):
            return self._point(AccessRange(node, ranges), (*path, nodes[0]))
        assert isinstance(node, TracedLoop)
        return _LoopProof(self, node, (*path, nodes[0]), ranges).proof()

    def _window(self, first: Moment, last: Moment) -> tuple[list[AccessRange], DisjointProof]:
        """The accesses of the other instance that are neither before nor after what is between two moments."""
        moments, steps = self.order.ahead(self.one, first)
        low, proof = moments.get(self.two), self._path(steps)
        moments, steps = self.order.after(self.one, last)
        high, proof = moments.get(self.two), proof + self._path(steps)
        out: list[AccessRange] = []
        if low is None or high is None or low < high:
            self.finder.between(self.order.bodies[self.two], low, high, {}, out)
        self.order.spend(len(out))
        return out, proof + _listed(out)

    def _path(self, steps: dict[int, TokenStep]) -> DisjointProof:
        """The tokens by which an instance is reached."""
        form, numbers = list[object](), list[int]()
        k = self.two
        while k in steps and k != self.one:
            step = steps[k]
            form.append((k, step.stream))
            for moment in (step.put, step.get, step.came):
                form.append(nodes_of(moment))
                numbers += counters(moment)
            packing = self.order.packing.get(step.stream, 1)
            if packing > 1:
                for instance, moment in ((self.order.writer, step.put), (self.order.reader, step.get)):
                    n = self.order.before(self.order.bodies[instance[step.stream]], moment, step.stream)
                    form.append(n % packing)
                    numbers.append(n // packing)
            k = step.source
        return DisjointProof(tuple(form), tuple(numbers))

    def _together(self, body: Body, nodes: Sequence[int], path: Moment, ranges: CounterRanges) -> DisjointProof | None:
        """Prove it for all accesses of some nodes at once; None if that does not succeed."""
        first, last = (*path, nodes[0]), (*path, nodes[-1] + 1)
        own: list[AccessRange] = []
        self.finder.between(body, (nodes[0],), (nodes[-1] + 1,), ranges, own)
        others, proof = self._window(first, last)
        proof = proof + _listed(own)
        found = _hulls_apart(own, others)
        if found is not None:
            return proof + found
        if len(own) * len(others) > GROUP:
            return None
        for one in own:
            for two in others:
                if self._conflict(one.access, two.access):
                    self.order.spend(1)
                    found = disjoint(one, two)
                    if found is None:
                        return None
                    proof = proof + found
        return proof

    def _conflict(self, one: TensorAccess, two: TensorAccess) -> bool:
        equal = self.alike or (self.alike is False and one.place == two.place)
        return (one.write or two.write) and not (equal and one.alike and two.alike and one.name == two.name)

    def _point(self, one: AccessRange, at: Moment) -> DisjointProof:
        others, proof = self._window(at, (*at[:-1], at[-1] + 1))
        for two in others:
            if self._conflict(one.access, two.access):
                proof = proof + self._meet(one, two)
        return proof

    def _meet(self, one: AccessRange, two: AccessRange) -> DisjointProof:
        """Prove that an access in one iteration touches no element of another one in some iterations. Raises
        `RaceFound`."""
        self.order.spend(1)
        found = disjoint(one, two)
        if found is not None:
            return found
        loose = [(counter, first, last) for counter, (first, last) in two.ranges.items() if first < last]
        for counter, first, last in loose:
            for axis in range(len(one.access.axes)):
                low, high = _feasible(one, two, axis, counter, first, last)
                if low > first or high < last:
                    pieces = [(first, low - 1), (max(low, first), min(high, last)), (high + 1, last)]
                    if low > high:
                        pieces = [(first, min(max(high, first - 1), last)), (max(min(high + 1, last + 1), first), last)]
                    return self._divided(one, two, counter, [piece for piece in pieces if piece[0] <= piece[1]])
        if loose:
            counter, first, last = loose[0]
            middle = (first + last) // 2
            return self._divided(one, two, counter, [(first, middle), (middle + 1, last)])
        return _of_points(one, two)

    def _divided(
        self, one: AccessRange, two: AccessRange, counter: LoopCounter, pieces: Sequence[tuple[int, int]]
    ) -> DisjointProof:
        proof = DisjointProof(("divided", counter, len(pieces)), tuple(end for piece in pieces for end in piece))
        for first, last in pieces:
            proof = proof + self._meet(one, _within(two, counter, first, last))
        return proof


class _LoopProof:
    """The proof for the iterations of a loop."""

    def __init__(self, search: PairSearch, loop: TracedLoop, path: Moment, ranges: CounterRanges) -> None:
        self.search, self.loop, self.path, self.ranges = search, loop, path, ranges
        self._known: dict[int, DisjointProof] = {}

    def proof(self) -> DisjointProof:
        return self._between(0, self.loop.times - 1)

    def _at(self, k: int) -> DisjointProof:
        found = self._known.get(k)
        if found is None:
            body = self.loop.body
            ranges = {**self.ranges, self.loop.counter: (k, k)}
            nodes = self.search.finder.touching(body)
            found = self._known[k] = self.search._nodes(body, nodes, (*self.path, k), ranges)
        return found

    def _between(self, first: int, last: int) -> DisjointProof:
        one = self._at(first)
        if first == last:
            return one
        found = joined(one, self._at(last), last - first)
        if found is None:
            found = self._repeated(first, last)
        if found is not None:
            return found
        middle = (first + last) // 2
        return self._between(first, middle) + self._between(middle + 1, last)

    def _repeated(self, first: int, last: int) -> DisjointProof | None:
        """The proof for a loop that repeats itself after some iterations."""
        if last - first < 4 * PERIOD:
            return None
        for period in range(2, PERIOD + 1):
            if self._at(first + period).form != self._at(first).form:
                continue
            proof = DisjointProof()
            for k in range(first, first + period):
                times = (last - k) // period
                found = joined(self._at(k), self._at(k + times * period), times)
                if found is None:
                    return None
                proof = proof + found
            return proof
        return None


def joined(one: DisjointProof, two: DisjointProof, times: int) -> DisjointProof | None:
    """Return the proof for a range of iterations, made of the proofs for its first iteration (`one`) and for its last
    (`two`); None if they do not prove the iterations between. times: iterations from the first to the last."""
    if one.form != two.form:
        return None
    steps = [b - a for a, b in zip(one.numbers, two.numbers, strict=True)]
    if any(step % times for step in steps):
        return None
    each = tuple(step // times for step in steps)
    return DisjointProof((("for", times), *one.form), one.numbers + two.numbers + each)


# -- what accesses touch ----------------------------------------------------------------------------------------------


def _listed(accesses: Sequence[AccessRange]) -> DisjointProof:
    """Which accesses are compared, and in which iterations."""
    form = tuple((id(found.access), *found.ranges) for found in accesses)
    return DisjointProof(form, tuple(end for found in accesses for ends in found.ranges.values() for end in ends))


def hull(accesses: Sequence[AccessRange]) -> list[tuple[int, int]]:
    """Return the first and the last element that some accesses touch along each axis, in all of their iterations.
    accesses: at least one."""
    ends = [
        [(part.low.limits(found.ranges)[0], part.high.limits(found.ranges)[1]) for part in found.access.axes]
        for found in accesses
    ]
    return [(min(low for low, _ in axis), max(high for _, high in axis)) for axis in zip(*ends, strict=True)]


def _hulls_apart(own: Sequence[AccessRange], others: Sequence[AccessRange]) -> DisjointProof | None:
    if not own or not others:
        return DisjointProof()
    for axis, (a, b) in enumerate(zip(hull(own), hull(others), strict=True)):
        if a[1] < b[0] or b[1] < a[0]:
            return DisjointProof((axis, "apart", a[1] < b[0]))
    return None


def disjoint(one: AccessRange, two: AccessRange) -> DisjointProof | None:
    """Return a proof that two accesses, in all of their iterations, touch no common element; None if none is found. It
    is found along one axis: one access ends before the other begins, or their elements leave different remainders when
    they are divided by the same step."""
    for axis, (a, b) in enumerate(zip(one.access.axes, two.access.axes, strict=True)):
        a_low, a_high = a.low.limits(one.ranges)[0], a.high.limits(one.ranges)[1]
        b_low, b_high = b.low.limits(two.ranges)[0], b.high.limits(two.ranges)[1]
        if a_high < b_low:
            return DisjointProof((axis, "before"), (a_high, b_low))
        if b_high < a_low:
            return DisjointProof((axis, "behind"), (b_high, a_low))
        by, widths = 0, list[int]()
        for part, ranges in ((a, one.ranges), (b, two.ranges)):
            for counter, factor in part.low.terms:
                first, last = ranges.get(counter) or (0, counter.times - 1)
                by = gcd(by, factor if first < last else 0)
            extent = part.high.plus(part.low, -1)
            by = gcd(by, part.step if part.step > 1 else 0)
            widths.append(0 if extent.terms else 1 if part.step > 1 else extent.constant + 1)
        if by > 1 and all(widths):
            quotient, rest = divmod(b_low - a_low, by)
            if rest >= widths[0] and rest + widths[1] <= by:
                return DisjointProof((axis, "rest", by, rest, *widths), (quotient,))
    return None


def _within(two: AccessRange, counter: LoopCounter, first: int, last: int) -> AccessRange:
    return AccessRange(two.access, {c: (first, last) if c is counter else r for c, r in two.ranges.items()})


def _feasible(
    one: AccessRange, two: AccessRange, axis: int, counter: LoopCounter, first: int, last: int
) -> tuple[int, int]:
    """In which iterations of a loop an access may touch another one, judged by one axis."""
    a, b = one.access.axes[axis], two.access.axes[axis]
    a_low, a_high = a.low.limits(one.ranges)[0], a.high.limits(one.ranges)[1]
    low, high = first, last
    for part, bound, sign in ((b.low, a_high, 1), (b.high, a_low, -1)):
        # sign * part(k) <= sign * bound for the other counters at their best
        factor = sign * dict(part.terms).get(counter, 0)
        if not factor:
            continue
        at_first = _within(two, counter, first, first).ranges
        best = part.limits(at_first)[0] if sign > 0 else -part.limits(at_first)[1]
        room = sign * bound - best  # factor * (k - first) <= room
        if factor > 0:
            high = min(high, first + room // factor)
        else:
            low = max(low, first - (room // -factor))
    return low, high


def _of_points(one: AccessRange, two: AccessRange) -> DisjointProof:
    """Compare two accesses in one iteration each. Raises `RaceFound` if they touch a common element."""
    form, low, high = list[object](), list[int](), list[int]()
    empty = False
    for a, b in zip(one.access.axes, two.access.axes, strict=True):
        ends = [(part.low.limits(r)[0], part.high.limits(r)[0]) for part, r in ((a, one.ranges), (b, two.ranges))]
        (a_low, a_high), (b_low, b_high) = ends
        first = _common(a_low, a.step, b_low, b.step)
        last = min(a_high, b_high)
        form.append((b_low - a_low, a_high - a_low, b_high - b_low, a.step, b.step))
        if first is None or first > last:
            empty = True
        else:
            low.append(first)
            whole = a.step * b.step // gcd(a.step, b.step)
            high.append(first + (last - first) // whole * whole)
    if empty:
        return DisjointProof(tuple(form))
    raise RaceFound(AccessRace(one, two, tuple(low), tuple(high)))


def _common(a: int, a_step: int, b: int, b_step: int) -> int | None:
    """Return the least number from both a and b on that is a whole number of steps from each; None if there is none."""
    by = gcd(a_step, b_step)
    if (b - a) % by:
        return None
    whole = a_step * b_step // by
    n = a + (b - a) // by * pow(a_step // by, -1, b_step // by) * a_step if b_step > by else a
    start = max(a, b)
    return n + -((n - start) // whole) * whole
