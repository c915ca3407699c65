"""Looks for a mapping of at most so many nodes: classes of equal nodes are moved at once.

A class of streams joins nodes of one kernel to nodes of another, or of the same one, at the same place in each. A
move chains along one class of streams everywhere, or bundles one class of nodes, either neighbours or by a stride. The
search remembers the states it has met. It takes in turn the one with the fewest cycles, and the one that is nearest to
the number of nodes. A mapping that is the best so far is proved before it counts.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ...base.garbage import gc_disabled
from .cost import cost, makespan, off_chip
from .errors import MappingError
from .graph import MappingGraph
from .machine import MeshDescription
from .mapping import AppliedPrimitive, Mapped
from .primitives import exchanges, refusal, refuse_chain
from .proof import MappingProof, prove
from .shots import Shots

WORK = 1 << 20
"""Instances times states that one search looks at, unless told."""

PATIENCE = 24
"""States without a better mapping than the best so far, after which a search stops, unless told; fewer for graphs of
more than `LARGE` instances."""

LARGE = 1 << 12

SEPARATE = 256
"""Up to so many nodes, chains are tried one by one where a class as a whole may not be chained."""

CostOf = Callable[[Mapped, MeshDescription | None], Any]
"""The cost of a mapping: anything that can be compared. Less is better."""


@dataclass(frozen=True)
class BestMapping:
    """The best mapping that was found. proof: of it. states: that were looked at. fitting: how many of them fit."""

    mapped: Mapped
    cost: Any
    proof: MappingProof
    states: int
    fitting: int

    @property
    def chains(self) -> int:
        """Primitives `chain` of two nodes each."""
        return sum(step.times for step in self.mapped.steps if step.primitive == "chain")

    @property
    def bundles(self) -> list[int]:
        """The sizes of the bundles, in parts."""
        return [len(parts) for group in self.mapped.groups for parts in _bundles(group)]


Heaps = list[list[tuple[tuple[int, ...], int, Mapped]]]


@gc_disabled()
def search(
    graph: MappingGraph,
    at_most: int,
    machine: MeshDescription | None = None,
    measure: CostOf = cost,
    states: int | None = None,
    patience: int | None = None,
    start: Mapped | None = None,
) -> BestMapping:
    """Return the best mapping of at most so many nodes.

    machine: its ports and bytes limit each node. measure: its cost. states: how many are looked at, by default `WORK`
    instances in all. patience: states without a better mapping than the best so far, after which the search stops.
    start: where it begins, by default with an instance on each node. Raises `MappingError` with the nearest miss if
    none fits.
    """
    start = start or Mapped.start(graph)
    budget = states if states is not None else max(48, WORK // max(1, len(graph.nodes)))
    seen = {_key(start)}
    heaps: Heaps = [[], []]
    _push(heaps, start, at_most, machine, 0)
    best: BestMapping | None = None
    miss: tuple[int, Mapped] | None = None
    failed: MappingProof | None = None
    dropped: list[Mapped] = []
    fitting = 0
    taken: set[int] = set()
    looked = 0
    if patience is None:
        patience = max(6, PATIENCE * LARGE // max(LARGE, len(graph.nodes)))
    while looked < budget and all(heaps) and (best is None or looked - best.states < patience):
        way = looked % 2
        _, number, mapped = heapq.heappop(heaps[way])
        if number in taken:
            continue
        taken.add(number)
        looked += 1
        if len(mapped.groups) <= at_most:
            excess = [] if machine is None else [k for k in range(len(mapped.groups)) if mapped.over(k, machine)]
            if excess:
                if miss is None or len(excess) < miss[0]:
                    miss = len(excess), mapped
            else:
                fitting += 1
                price = measure(mapped, machine)
                if best is None or price < best.cost:
                    proof = prove(mapped)
                    if proof.ok:
                        best = BestMapping(mapped, price, proof, looked, 0)
                    else:
                        failed = failed or proof
        for other in moves(mapped, at_most, machine, dropped):
            key = _key(other)
            if key not in seen:
                seen.add(key)
                _push(heaps, other, at_most, machine, len(seen))
    if best is not None:
        return BestMapping(best.mapped, best.cost, best.proof, looked, fitting)
    raise _none(graph, at_most, machine, miss[1] if miss else min(dropped, key=_size, default=None), failed, looked)


def _push(heaps: Heaps, mapped: Mapped, at_most: int, machine: MeshDescription | None, number: int) -> None:
    """Add a state under both orders: fewer cycles first, then less traffic; or nearest to the nodes allowed first, each
    kernel that does not fit a tile counted as some nodes too many."""
    edges = mapped.graph.edges
    excess = max(0, len(mapped.groups) - at_most)
    if machine is not None:
        excess += at_most * sum(bool(mapped.over(k, machine)) for k in _first_of_each(mapped, set()))
    traffic = sum(edges[s].tokens * edges[s].size for streams in mapped.between.values() for s in streams)
    cycles, traffic = makespan(mapped), traffic + off_chip(mapped)
    heapq.heappush(heaps[0], ((cycles, traffic, excess), number, mapped))
    heapq.heappush(heaps[1], ((excess, cycles, traffic), number, mapped))


def _none(
    graph: MappingGraph,
    at_most: int,
    machine: MeshDescription | None,
    mapped: Mapped | None,
    failed: MappingProof | None,
    looked: int,
) -> MappingError:
    """Say why no mapping was found."""
    if mapped is not None and machine is not None:
        group = next(k for k in range(len(mapped.groups)) if mapped.over(k, machine))
        row = max(mapped.over(group, machine), key=lambda row: row.needs / row.most)
        return refusal(mapped, group, row, f"onto {machine.name}, the nearest miss")
    if failed is not None:
        finding = failed.report.findings[0]
        return MappingError("proof", finding.message, finding.place, finding.notes)
    message = f"no mapping of {len(graph.nodes)} instances onto at most {at_most} nodes in {looked} states"
    return MappingError("tiles", message)


def _size(mapped: Mapped) -> int:
    return len(mapped.groups)


def _key(mapped: Mapped) -> object:
    """What tells states apart: how many nodes of each kernel, and how many streams between which."""
    kernels = Counter(group.kernel for group in mapped.groups)
    streams = Counter((mapped.groups[a].kernel, mapped.groups[b].kernel) for a, b in mapped.between)
    last = tuple(mapped.groups[0].shots[:2]) if mapped.groups else ()
    return tuple(sorted(kernels.items())), tuple(sorted(streams.items())), last


def _bundles(group: Shots) -> Iterator[Sequence[Shots]]:
    if group.kind == "bundle":
        yield group.parts
    for part in group.parts:
        yield from _bundles(part)


# -- moves -----------------------------------------------------------------------------------------------------------


def moves(
    mapped: Mapped, at_most: int, machine: MeshDescription | None = None, dropped: list[Mapped] | None = None
) -> Iterator[Mapped]:
    """Yield the mappings that one move on a class reaches, and whose nodes are allowed. dropped: to it, the smallest of
    the others is appended."""
    worst: dict[str, int] = {}
    if machine is not None:
        for k in _first_of_each(mapped, set()):
            for row in mapped.over(k, machine):
                worst[row.kind] = max(row.needs, worst.get(row.kind, 0))
    known = {group.kernel for group in mapped.groups}
    for made in _moves(mapped, at_most):
        if made is None:
            continue
        if machine is None or _allowed(made, known, worst, machine):
            yield made
        elif dropped is not None and (not dropped or _size(made) < _size(dropped[-1])):
            dropped.append(made)


def _moves(mapped: Mapped, at_most: int) -> Iterator[Mapped | None]:
    for pairs in _stream_classes(mapped):
        yield _chained(mapped, pairs)
    if len(mapped.groups) > at_most:
        for members in _node_classes(mapped):
            for parts in _shares(len(members), len(mapped.groups), at_most):
                for bundles in _ways(members, parts):
                    yield _bundled(mapped, bundles)


def _allowed(made: Mapped, known: set[int], worst: dict[str, int], machine: MeshDescription) -> bool:
    """Whether new nodes need no more ports and bytes than a tile has, or than the worst node did before. One of each
    kernel is looked at."""
    return not any(
        row.needs > worst.get(row.kind, row.most) for k in _first_of_each(made, known) for row in made.over(k, machine)
    )


def _first_of_each(mapped: Mapped, known: set[int]) -> list[int]:
    first: dict[int, int] = {}
    for k, group in enumerate(mapped.groups):
        if group.kernel not in known:
            first.setdefault(group.kernel, k)
    return list(first.values())


def _stream_classes(mapped: Mapped) -> list[list[tuple[int, int]]]:
    """Pairs of nodes that streams join, by the kernels at both ends and the position at each."""
    found: dict[object, dict[tuple[int, int], None]] = defaultdict(dict)
    position_of: list[dict[int, int]] = []
    for group in mapped.groups:
        position_of.append({stream: n for n, position in enumerate(group.positions) for stream in position})
    for (a, b), streams in mapped.between.items():
        positions = tuple((position_of[a][s], position_of[b][s]) for s in streams)
        found[mapped.groups[a].kernel, mapped.groups[b].kernel, positions][a, b] = None
    return sorted((list(pairs) for pairs in found.values()), key=lambda pairs: -len(pairs))


def _chained(mapped: Mapped, pairs: list[tuple[int, int]]) -> Mapped | None:
    """Chain all pairs at once, paths of several pairs to one node each; of pairs that share an end, the first."""
    after: dict[int, int] = {}
    before: dict[int, int] = {}
    for a, b in pairs:
        if a not in after and b not in before and not _closes(after, a, b):
            after[a], before[b] = b, a
    components = []
    for a in after:
        if a not in before:
            members = [a]
            while members[-1] in after:
                members.append(after[members[-1]])
            components.append(members)
    if not components:
        return None
    if keeps_order(mapped, components):
        return _joined(mapped, components)
    if len(mapped.groups) > SEPARATE:
        return None
    legal: list[list[int]] = []
    for members in components:
        kept = members[:1]
        for k in members[1:]:
            try:
                refuse_chain(mapped, kept[-1], k)
                together = [*legal, [*kept, k]]
                kept = [*kept, k] if keeps_order(mapped, together) else kept
            except MappingError:
                break
        if len(kept) > 1:
            legal.append(kept)
    return _joined(mapped, legal) if legal else None


def _joined(mapped: Mapped, components: list[list[int]]) -> Mapped:
    nodes = [(mapped.made.chain([mapped.groups[k] for k in members]), members) for members in components]
    first = tuple(mapped.name(k) for k in components[0])
    return mapped.joined(nodes, AppliedPrimitive("chain", first, sum(len(members) - 1 for members in components)))


def _closes(after: dict[int, int], a: int, b: int) -> bool:
    while b in after:
        b = after[b]
        if b == a:
            return True
    return a == b


def keeps_order(mapped: Mapped, components: Sequence[Sequence[int]]) -> bool:
    """Whether sets of nodes, each one node that runs them in the order given, make no new cycle."""
    of = list(range(len(mapped.groups)))
    turn = [0] * len(of)
    for members in components:
        for n, k in enumerate(members):
            of[k], turn[k] = members[0], n
    back = [(b, a) for a, b in mapped.between if of[a] == of[b] and turn[a] >= turn[b]]
    if any(max(map(len, components)) > 2 or not exchanges(mapped, *pair) for pair in back):
        return False
    if acyclic({(of[a], of[b]) for a, b in mapped.between if of[a] != of[b]}):
        return True
    if len(mapped.groups) > SEPARATE or acyclic(mapped.between):
        return False
    return _only_old_cycles(mapped, components)


def acyclic(edges: Collection[tuple[int, int]]) -> bool:
    """Whether a graph without repeated edges has no cycle."""
    after: dict[int, list[int]] = defaultdict(list)
    count: Counter[int] = Counter()
    for a, b in edges:
        after[a].append(b)
        count[b] += 1
    todo = [k for k in after if not count[k]]
    left = len(edges)
    while todo:
        for n in after.pop(todo.pop(), ()):
            left -= 1
            count[n] -= 1
            if not count[n]:
                todo.append(n)
    return not left


def _only_old_cycles(mapped: Mapped, components: Sequence[Sequence[int]]) -> bool:
    """The same for a graph with feedback: each set is joined by pairs, every one of them legal on its own."""
    now = mapped
    for members in components:
        names = [mapped.graph.nodes[mapped.groups[k].shots[0]].name for k in members]
        for one, two in pairwise(names):
            x, y = now.group(one), now.group(two)
            try:
                refuse_chain(now, x, y)
            except MappingError:
                return False
            node = now.made.chain((now.groups[x], now.groups[y]))
            now = now.joined([(node, (x, y))], AppliedPrimitive("chain", (one, two)))
    return True


def _node_classes(mapped: Mapped) -> list[list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for k, group in enumerate(mapped.groups):
        found[group.kernel].append(k)
    classes = [members for members in found.values() if len(members) > 1]
    return sorted(classes, key=lambda members: -len(members))


def _shares(members: int, nodes: int, at_most: int) -> list[int]:
    """Into how many bundles to put the members of a class: first as many as remain for it, then its share if all
    classes shrink alike, then half of them; numbers that divide the members."""
    room = at_most - (nodes - members)
    wanted = [room, at_most * members // nodes, members // 2, 1]
    return list(dict.fromkeys(_divisor(members, k) for k in wanted if 0 < k < members))


def _divisor(count: int, at_most: int) -> int:
    return next(k for k in range(at_most, 0, -1) if count % k == 0)


def _ways(members: list[int], parts: int) -> Iterator[list[list[int]]]:
    """Neighbours together, or every so many."""
    size = len(members) // parts
    yield [members[k * size : (k + 1) * size] for k in range(parts)]
    if parts > 1 and size > 1:
        yield [members[k::parts] for k in range(parts)]


def _bundled(mapped: Mapped, bundles: list[list[int]]) -> Mapped | None:
    if not keeps_order(mapped, bundles) or _touching(mapped, bundles):
        return None
    nodes = [(mapped.made.bundle([mapped.groups[k] for k in members]), members) for members in bundles]
    first = tuple(mapped.name(k) for k in bundles[0])
    return mapped.joined(nodes, AppliedPrimitive("bundle", first, sum(len(members) - 1 for members in bundles)))


def _touching(mapped: Mapped, bundles: list[list[int]]) -> bool:
    """Whether a stream joins two nodes of one bundle."""
    of = {k: n for n, members in enumerate(bundles) for k in members}
    return any(a in of and of.get(a) == of.get(b) for a, b in mapped.between)
