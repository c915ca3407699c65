"""What a mapped node runs: instances in turn, put together by `chain` and `bundle`.

A *shot* is one run of one instance. The streams between shots of one node are local buffers. They hold all tokens of
their writer; where the loops of two chained shots agree, the loops are fused, and the buffer holds the tokens of one
iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from itertools import chain as joined

from ..tree import Beat, Body, Choice, FixedLoop, Node, Op
from .graph import MappingGraph

RUNS = 1 << 16
"""Limit of the runs of tokens that are compared of two orders."""


@dataclass(frozen=True)
class Local:
    """A stream inside a node of a mapping. stream: its number. tokens: elements that its buffer holds. first: the
    position of the shot that writes it, among the shots of the node. last: of the shot that reads it."""

    stream: int
    tokens: int
    first: int
    last: int


class Shots:
    """A node of a mapping. `Collocations` makes them, each distinct one once.

    number: among all that the `Collocations` has made. kind: "single", "chain" or "bundle". parts: the nodes that are
    chained or bundled; () for a single instance. shots: the numbers of the instances, in the order in which they run.
    phases: of each shot, from 0; shots of one phase run at the same time, with fused loops. positions: the numbers of
    its streams to other nodes; streams that take the same place in the parts of a bundle are one position. kernel: two
    nodes with the same number are equal but for names. body: the operations on streams to other nodes, in order. local:
    the streams inside."""

    __slots__ = ("body", "kernel", "kind", "local", "number", "parts", "phases", "positions", "shots")

    def __init__(
        self,
        number: int,
        kind: str,
        parts: tuple[Shots, ...],
        shots: tuple[int, ...],
        phases: tuple[int, ...],
        positions: tuple[tuple[int, ...], ...],
        kernel: int,
        body: Body,
        local: tuple[Local, ...],
    ) -> None:
        self.number, self.kind, self.parts, self.shots, self.phases = number, kind, parts, shots, phases
        self.positions, self.kernel, self.body, self.local = positions, kernel, body, local


class Collocations:
    """Makes the nodes of mappings of one graph. graph: of the instances. fuse: whether loops of chained shots are fused
    where both move the same tokens in the same order."""

    def __init__(self, graph: MappingGraph, fuse: bool = True) -> None:
        self.graph, self.fuse = graph, fuse
        self._made: dict[object, Shots] = {}
        self._kernels: dict[object, int] = {}
        self._loaded: dict[int, int] = {}

    def single(self, number: int) -> Shots:
        """Return the node of one instance. number: of the instance in the graph."""
        node = self.graph.nodes[number]
        positions = tuple((stream,) for stream, _ in node.ends)
        return self._make("single", (), number, (number,), (0,), positions, ("single", node.kernel), node.body, ())

    def chain(self, parts: Sequence[Shots]) -> Shots:
        """Return a node that runs the parts in turn; streams between them become streams inside of the node. If parts
        exchange tiles in a collective, each runs until it waits, and then the next one does. The caller has checked
        that the parts can run in this order. Raises `AssertionError` for parts of a collective that all wait."""
        made = self._made.get(("chain", tuple(part.number for part in parts), None))
        if made is not None:
            return made
        where: dict[int, int] = {}
        inside: set[int] = set()
        for part in parts:
            for position in part.positions:
                for stream in position:
                    if where.setdefault(stream, part.number) != part.number:
                        inside.add(stream)
        shots = tuple(joined.from_iterable(part.shots for part in parts))
        positions = tuple(
            filter(
                None, (tuple(s for s in position if s not in inside) for part in parts for position in part.positions)
            )
        )
        body, phases, held = self._compose(parts, inside)
        at = {shot: k for k, shot in enumerate(shots)}
        local = [moved for part, base in zip(parts, _bases(parts), strict=True) for moved in _moved(part, base)]
        for stream in sorted(inside):
            edge = self.graph.edges[stream]
            local.append(Local(stream, held.get(stream, edge.tokens), at[edge.writer], at[edge.reader]))
        kernel = ("chain", tuple(part.kernel for part in parts), self._pattern(positions, set(shots)))
        return self._make("chain", tuple(parts), None, shots, phases, positions, kernel, body, tuple(local))

    def bundle(self, parts: Sequence[Shots]) -> Shots:
        """Return a node that runs equal, independent parts in turn. Streams that take the same place in each part
        become one position."""
        made = self._made.get(("bundle", tuple(part.number for part in parts), None))
        if made is not None:
            return made
        shots = tuple(joined.from_iterable(part.shots for part in parts))
        positions = tuple(
            tuple(joined.from_iterable(position)) for position in zip(*(part.positions for part in parts), strict=True)
        )
        local = [moved for part, base in zip(parts, _bases(parts), strict=True) for moved in _moved(part, base)]
        phases: list[int] = []
        for part in parts:
            start = phases[-1] + 1 if phases else 0
            phases += (start + phase for phase in part.phases)
        body = tuple(joined.from_iterable(part.body for part in parts))
        kernel = ("bundle", tuple(sorted(part.kernel for part in parts)), self._pattern(positions, set(shots)))
        return self._make("bundle", tuple(parts), None, shots, tuple(phases), positions, kernel, body, tuple(local))

    def loaded(self, node: Shots) -> int:
        """Return the bytes of tiles that a node loads and stores in one run. A tile that the shot before had is not
        loaded again; one that other nodes load too is counted."""
        found = self._loaded.get(node.number)
        if found is None:
            found = 0
            last: dict[str, tuple[int, ...]] = {}
            for shot in node.shots:
                for tile in self.graph.nodes[shot].tiles:
                    found += tile.size * ((tile.reads and last.get(tile.tensor) != tile.point) + tile.writes)
                    last[tile.tensor] = tile.point
            self._loaded[node.number] = found
        return found

    def _make(
        self,
        kind: str,
        parts: tuple[Shots, ...],
        leaf: int | None,
        shots: tuple[int, ...],
        phases: tuple[int, ...],
        positions: tuple[tuple[int, ...], ...],
        kernel: object,
        body: Body,
        local: tuple[Local, ...],
    ) -> Shots:
        key = (kind, tuple(part.number for part in parts), leaf)
        made = self._made.get(key)
        if made is None:
            number = self._kernels.setdefault(kernel, len(self._kernels))
            made = Shots(len(self._made), kind, parts, shots, phases, positions, number, body, local)
            self._made[key] = made
        return made

    def _pattern(self, positions: Sequence[Sequence[int]], inside: Set[int]) -> tuple[object, ...]:
        """The types and counts of the streams to the outside, in order."""
        edges = self.graph.edges
        return tuple(
            tuple((edges[s].writer in inside, edges[s].type, edges[s].packing, edges[s].tokens) for s in position)
            for position in positions
        )

    def _compose(self, parts: Sequence[Shots], inside: Set[int]) -> tuple[Body, tuple[int, ...], dict[int, int]]:
        """Return the operations of parts in turn without those inside, the phase of each shot, and the tokens that the
        buffers of fused loops hold."""
        if inside & self.graph.exchanges:
            mixed = alternated([part.body for part in parts], inside)
            assert mixed is not None, "chain refuses parts that stand still"
            return without(mixed, inside, {}), (0,) * sum(len(part.shots) for part in parts), {}
        held: dict[int, int] = {}
        body: list[Node] = []
        phases: list[int] = []
        for part in parts:
            start = phases[-1] + 1 if phases else 0
            new = part.body
            if self.fuse and body and new:
                shared = self._fusible(body[-1], new[0], inside)
                if shared:
                    one, two = body[-1], new[0]
                    assert isinstance(one, FixedLoop)
                    assert isinstance(two, FixedLoop)
                    held.update(shared)
                    body[-1] = FixedLoop(one.times, (*one.body, *two.body))
                    new = new[1:]
                    start -= 1
            body += new
            phases += (start + phase for phase in part.phases)
        return without(tuple(body), inside, {}), tuple(phases), held

    def _fusible(self, one: Node, two: Node, inside: Set[int]) -> dict[int, int]:
        """Return the streams through which two loops agree, with their tokens of one iteration; none if the loops do
        not agree: the first must write in each iteration what the second reads in the same one."""
        if not (isinstance(one, FixedLoop) and isinstance(two, FixedLoop) and one.times == two.times):
            return {}
        written = {s: n for s, put, n in one.once if put and s in inside}
        shared = {}
        for s, put, n in two.once:
            if not put and s in written:
                if written[s] != n or n * one.times != self.graph.edges[s].tokens:
                    return {}
                shared[s] = n
        return shared if one.even and two.even else {}


def _bases(parts: Sequence[Shots]) -> list[int]:
    """The number of the first shot of each part."""
    return [0, *accumulate(len(part.shots) for part in parts)][:-1]


def _moved(part: Shots, base: int) -> list[Local]:
    return [Local(x.stream, x.tokens, x.first + base, x.last + base) for x in part.local]


def alternated(bodies: Sequence[Body], inside: Set[int]) -> Body | None:
    """Return the operations of bodies that take turns, as one body: each goes on until it would wait for a token of a
    stream inside, then the next one does. inside: the numbers of the streams inside. None if all of them would wait."""
    at = [0] * len(bodies)
    fill: dict[int, int] = {}
    out: list[Node] = []
    moved = True
    while moved:
        moved = False
        for k, body in enumerate(bodies):
            while at[k] < len(body):
                node = body[at[k]]
                needs = [(s, put, n) for s, put, n in node.needs if s in inside]
                if any(not put and fill.get(s, 0) < n for s, put, n in needs):
                    break
                for s, put, n in needs:
                    fill[s] = fill.get(s, 0) + (n if put else -n)
                out.append(node)
                at[k] += 1
                moved = True
    return tuple(out) if all(n == len(body) for n, body in zip(at, bodies, strict=True)) else None


def without(body: Body, streams: Set[int], memo: dict[int, Body]) -> Body:
    """Return a body without the operations on some streams. streams: their numbers. memo: results for nodes so far, by
    their `id`; new ones are added."""
    out: list[Node] = []
    for node in body:
        if not any(s in streams for s, _, _ in node.needs):
            out.append(node)
            continue
        made = memo.get(id(node))
        if made is None:
            made = memo[id(node)] = tuple(_without(node, streams, memo))
        out += made
    return tuple(out)


def _without(node: Node, streams: Set[int], memo: dict[int, Body]) -> Iterator[Node]:
    if isinstance(node, Beat):
        yield from (op for op in node.ops if op.stream not in streams)
    elif isinstance(node, FixedLoop):
        inner = without(node.body, streams, memo)
        if inner:
            yield FixedLoop(node.times, inner)
    elif isinstance(node, Choice):
        arms = tuple(without(arm, streams, memo) for arm in node.arms)
        if any(arms):
            yield Choice(arms, node.place)


def renamed(body: Body, names: Mapping[int, int], made: dict[object, Body]) -> Body:
    """Return a body with other numbers of streams. A beat in which two operations get the same number is divided, so
    that no stream comes twice in a beat, as in a unit. names: the new number of each stream, by the old one; a missing
    one raises `KeyError`. made: results for nodes so far; new ones are added, so that equal nodes stay one object."""
    out: list[Node] = []
    for node in body:
        key: object = ("op", node.stream, node.put, node.place) if isinstance(node, Op) else id(node)
        found = made.get(key)
        if found is None:
            if isinstance(node, Op):
                found = (Op(names[node.stream], node.put, node.place),)
            elif isinstance(node, Beat):
                found = _beats(node, renamed(node.ops, names, made))
            elif isinstance(node, FixedLoop):
                found = (FixedLoop(node.times, renamed(node.body, names, made)),)
            else:
                assert isinstance(node, Choice)
                found = (Choice(tuple(renamed(arm, names, made) for arm in node.arms), node.place),)
            made[key] = found
        out += found
    return tuple(out)


def _beats(beat: Beat, ops: Body) -> Body:
    """The beats of operations in which no stream comes twice; the last one takes the cycles."""
    runs: list[list[Op]] = [[]]
    for op in ops:
        assert isinstance(op, Op)
        if any(op.stream == other.stream for other in runs[-1]):
            runs.append([])
        runs[-1].append(op)
    cycles = [1] * (len(runs) - 1) + [beat.cycles]
    return tuple(Beat(tuple(run), n, beat.place) for run, n in zip(runs, cycles, strict=True))


# -- the order of tokens ---------------------------------------------------------------------------------------------


Run = tuple[int, int]
"""A stream, and how many of its tokens come one after another."""


class DataOrder(Exception):
    """Data decide in which order a body moves tokens."""


def runs(body: Sequence[Node], streams: Set[int]) -> Iterator[Run]:
    """Yield the order in which a body moves tokens of some streams: pairs of a stream's number, and how many of its
    tokens come in a row. streams: their numbers. Raises `DataOrder` if data decide the order."""
    last, count = -1, 0
    for stream, n in _runs(body, streams):
        if stream == last:
            count += n
        else:
            if count:
                yield last, count
            last, count = stream, n
    if count:
        yield last, count


def _runs(body: Sequence[Node], streams: Set[int]) -> Iterator[Run]:
    for node in body:
        of = [(s, n) for s, _, n in node.needs if s in streams]
        if not of:
            continue
        if len(of) == 1 and node.even:
            yield of[0]
        elif isinstance(node, Beat):
            yield from _runs(node.ops, streams)
        elif isinstance(node, FixedLoop):
            for _ in range(node.times):
                yield from runs(node.body, streams)
        elif isinstance(node, Choice):
            words = [list(_short(runs(arm, streams))) for arm in node.arms]
            if any(word != words[0] for word in words):
                raise DataOrder
            yield from words[0]


def _short(word: Iterator[Run]) -> Iterator[Run]:
    for k, item in enumerate(word):
        if k == RUNS:
            raise DataOrder
        yield item


def agree(one: Body, two: Body, streams: Set[int]) -> bool:
    """Return whether two bodies move the tokens of some streams in the same order; False if data decide the order, or
    if it has more than `RUNS` runs. streams: their numbers."""
    a, b = runs(one, streams), runs(two, streams)
    try:
        for _ in range(RUNS):
            x, y = next(a, None), next(b, None)
            if x != y:
                return False
            if x is None:
                return True
    except DataOrder:
        return False
    return False
