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
from .cost import cost, cycles, makespan
from .errors import MappingError
from .exhaustive import NODES, every_mapping
from .graph import MappingGraph
from .machine import LARGEST, MeshDescription
from .mapping import AppliedPrimitive, Mapped
from .primitives import exchanges, refusal, refuse_chain
from .proof import MappingProof, prove
from .sequence import cuts
from .shots import Shots

WORK = 1 << 14
"""Instances times states that one search looks at, unless told."""

PATIENCE = 24
"""States without a better mapping than the best so far, after which a search stops, unless told; fewer for graphs of
more than `LARGE` instances."""

LARGE = 1 << 12

SEPARATE = 256
"""Up to so many nodes, chains are tried one by one where a class as a whole may not be chained."""

TRIED = 1 << 6
"""States of a search for the least change of a machine with which a program fits."""

FINE = 10
"""Bytes of a tile are changed in steps of 1 / 2^FINE of what suffices."""

LIMITS = {"in_ports": "input ports", "out_ports": "output ports", "memory": "bytes"}
"""Limits of a tile, by the field of its machine."""

Progress = Callable[[float], None]
"""Is called with the share of a search that is done, 0 to 1."""


def silent(share: float) -> None:
    """Show no progress: a `Progress` that does nothing. share: of the work that is done, from 0 to 1."""


CostOf = Callable[[Mapped, MeshDescription | None], Any]
"""The cost of a mapping: anything that can be compared. Less is better."""


@dataclass(frozen=True)
class BestMapping:
    """The best mapping that was found. cost: as the search measured it. proof: the check of it. states: how many
    mappings were looked at. fitting: how many of these fit the machine. bound: cycles below which no mapping on as many
    nodes can be. all_seen: whether all mappings with a lower cost were ruled out."""

    mapped: Mapped
    cost: Any
    proof: MappingProof
    states: int
    fitting: int
    bound: int
    all_seen: bool

    @property
    def chains(self) -> int:
        """How many nodes `chain` has joined to others."""
        return sum(step.times for step in self.mapped.steps if step.primitive == "chain")

    @property
    def bundles(self) -> list[int]:
        """The number of parts of each bundle."""
        return [len(parts) for group in self.mapped.groups for parts in _bundles(group)]


Heaps = list[list[tuple[tuple[int, ...], int, Mapped]]]


class _Candidates:
    """The best of the mappings so far. miss: one of few nodes, with how many of them exceed a tile. failed: a proof."""

    def __init__(
        self, at_most: int, machine: MeshDescription | None, measure: CostOf, progress: Progress = silent
    ) -> None:
        self.at_most, self.machine, self.measure, self.progress = at_most, machine, measure, progress
        self.best: tuple[Any, MappingProof] | None = None
        self.miss: tuple[int, Mapped] | None = None
        self.failed: MappingProof | None = None
        self.looked = self.fitting = self.found_at = 0

    def offer(self, mapped: Mapped) -> None:
        """Keep a mapping as the best, if it fits, costs less than the best so far, and the check finds no error in its
        program."""
        self.looked += 1
        if len(mapped.groups) > self.at_most:
            return
        excess = self._excess(mapped)
        if excess:
            if self.miss is None or excess < self.miss[0]:
                self.miss = excess, mapped
            return
        self.fitting += 1
        price = self.measure(mapped, self.machine)
        if self.best is None or price < self.best[0]:
            proof = prove(mapped)
            if not proof.ok:
                self.failed = self.failed or proof
            elif proof.mapped is mapped or not self._excess(proof.mapped):  # its buffers may be larger
                self.best, self.found_at = (price, proof), self.looked

    def _excess(self, mapped: Mapped) -> int:
        return 0 if self.machine is None else sum(bool(mapped.over(k, self.machine)) for k in range(len(mapped.groups)))


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
    """Return the best mapping on at most `at_most` nodes that is found. For a graph of a few nodes, all mappings that
    primitives make are looked at.

    machine: its ports and bytes limit each node; None for no limits. measure: the cost of a mapping. states: how many
    mappings the search by classes (module docstring) looks at; None for `WORK` divided by the instances of the graph,
    and at least 48. patience: how many mappings without a better one end the search; None for `PATIENCE`, and fewer for
    large graphs. start: the mapping at which it begins; None for an instance on each node. Raises `MappingError`, with
    the mapping that misses by least, if none fits, or if the check finds an error in each that fits; and for `at_most`
    below 1."""
    start = start or Mapped.start(graph)
    found, all_seen = _looked_at(start, at_most, machine, measure, states, patience)
    best = _best(start, found, all_seen)
    if best is None:
        raise _none(start, found)
    return best


@gc_disabled()
def search_from(
    start: Mapped, at_most: int, machine: MeshDescription | None, progress: Progress = silent
) -> BestMapping | None:
    """Return what `search` finds from `start` with its other defaults; None if nothing fits. at_most, machine: as for
    `search`. progress: called with the share of the work that is done. Raises `MappingError` for `at_most` below 1."""
    return _best(start, *_looked_at(start, at_most, machine, progress=progress))


def _best(start: Mapped, found: _Candidates, all_seen: bool) -> BestMapping | None:
    if found.best is None:
        return None
    price, proof = found.best
    bound = least_cycles(start, found.at_most)
    return BestMapping(proof.mapped, price, proof, found.looked, found.fitting, bound, all_seen)


def _looked_at(
    start: Mapped,
    at_most: int,
    machine: MeshDescription | None,
    measure: CostOf = cost,
    states: int | None = None,
    patience: int | None = None,
    progress: Progress = silent,
) -> tuple[_Candidates, bool]:
    """Return the mappings that were looked at, and whether these are all that may cost less than the best."""
    found = _Candidates(at_most, machine, measure, progress)
    all_seen = _look(start, found, states, patience)
    if found.best is None and machine is not None and start.made.fuse:
        # Fused loops hold the tiles of all their shots at a time; without fusion, a buffer holds all tokens.
        return found, _look(start.unfused(), found, states, patience) and all_seen
    return found, all_seen


def _look(start: Mapped, found: _Candidates, states: int | None, patience: int | None) -> bool:
    """Look at mappings; return whether these are all that may cost less than the best."""
    at_most, machine, measure = found.at_most, found.machine, found.measure
    bound = least_cycles(start, at_most)
    in_runs = cuts(start, at_most, machine)
    first = next(in_runs, None)
    dropped = _by_classes(start, found, states, patience, first is not None)
    if first is not None and not (measure is cost and found.best and found.best[0].cycles == bound):
        for mapped in (first, *in_runs):
            found.offer(mapped)
    if found.miss is None and found.best is None and dropped:
        found.miss = 0, min(dropped, key=_size)
    return len(start.groups) <= NODES and _all_of(start, found)


def least_cycles(start: Mapped, at_most: int) -> int:
    """Return a number of cycles below which no mapping on at most `at_most` nodes is. A node runs its instances one
    after another, and they run no faster than each on its own node with streams without limit. start: the mapping to
    which primitives are applied. Raises `MappingError` for `at_most` below 1."""
    if at_most < 1:
        raise MappingError("tiles", f"at most {at_most} nodes; the least is 1")
    work = sum(node.computing for node in start.graph.nodes)
    share = max(-(-work // at_most), max((node.cycles for node in start.graph.nodes), default=0))
    return max(share, cycles(start, endless=True) or 0)


def _all_of(start: Mapped, found: _Candidates) -> bool:
    """Look at all mappings of a small graph; return whether these were all that may cost less than the best."""
    timed = found.measure is cost and cycles(start, endless=True) is not None

    def worth(mapped: Mapped) -> bool:
        """Whether what a mapping becomes may cost less: it takes no fewer cycles than this one with endless streams."""
        return not timed or found.best is None or (cycles(mapped, endless=True) or 0) <= found.best[0].cycles

    for mapped in every_mapping(start, worth):
        if mapped is None:
            return False
        found.offer(mapped)
    return True


def _by_classes(
    start: Mapped, found: _Candidates, states: int | None, patience: int | None, known: bool
) -> list[Mapped]:
    """Look at mappings that moves on classes of nodes make; return some that no tile may hold. known: there is another
    mapping that fits."""
    graph, at_most, machine = start.graph, found.at_most, found.machine
    budget = states if states is not None else max(48, WORK // max(1, len(graph.nodes)))
    if patience is None:
        patience = max(6, PATIENCE * LARGE // max(LARGE, len(graph.nodes)))
    seen = {_key(start)}
    heaps: Heaps = [[], []]
    _push(heaps, start, at_most, machine, 0)
    dropped: list[Mapped] = []
    taken: set[int] = set()
    looked, before = 0, found.looked
    while looked < budget and all(heaps):
        if (known or found.best is not None) and found.looked - max(found.found_at, before) >= patience:
            break
        _, number, mapped = heapq.heappop(heaps[looked % 2])
        if number in taken:
            continue
        taken.add(number)
        looked += 1
        found.progress(looked / budget)
        found.offer(mapped)
        for other in moves(mapped, at_most, machine, dropped):
            key = _key(other)
            if key not in seen:
                seen.add(key)
                _push(heaps, other, at_most, machine, len(seen))
    return dropped


def _push(heaps: Heaps, mapped: Mapped, at_most: int, machine: MeshDescription | None, number: int) -> None:
    """Add a state under both orders: fewer cycles first, then less traffic; or nearest to the nodes allowed first, each
    kernel that does not fit a tile counted as some nodes too many."""
    edges = mapped.graph.edges
    excess = max(0, len(mapped.groups) - at_most)
    if machine is not None:
        excess += at_most * sum(bool(mapped.over(k, machine)) for k in _first_of_each(mapped, set()))
    traffic = sum(edges[s].tokens * edges[s].size for streams in mapped.between.values() for s in streams)
    time, traffic = makespan(mapped), traffic + sum(map(mapped.made.loaded, mapped.groups))
    heapq.heappush(heaps[0], ((time, traffic, excess), number, mapped))
    heapq.heappush(heaps[1], ((excess, time, traffic), number, mapped))


def _none(start: Mapped, found: _Candidates) -> MappingError:
    """Say why no mapping was found."""
    machine = found.machine
    if found.miss is not None and machine is not None:
        mapped = found.miss[1]
        group = next(k for k in range(len(mapped.groups)) if mapped.over(k, machine))
        row = max(mapped.over(group, machine), key=lambda row: row.needs / row.most)
        what = f"onto {machine.name}, the nearest miss"
        return refusal(mapped, group, row, what, least_changes(start, found.at_most, machine))
    if found.failed is not None:
        finding = found.failed.report.findings[0]
        return MappingError("proof", finding.message, finding.place, finding.notes)
    count = len(start.graph.nodes)
    message = f"no mapping of {count} instances onto at most {found.at_most} nodes in {found.looked} mappings"
    apart = [start.name(k) for k in range(len(start.groups)) if _feeds_itself(start, k)]
    listed = ", ".join(apart if len(apart) <= 6 else [*apart[:5], f"... {len(apart)} nodes"])
    notes = (f"{listed} wait for others that wait for them: each needs a tile",) if apart else ()
    return MappingError("tiles", message, None, notes)


def _feeds_itself(mapped: Mapped, group: int) -> bool:
    """Whether a path leads from a node back to it."""
    seen = set[int]()
    todo = [group]
    while todo:
        for n in mapped.successors[todo.pop()]:
            if n == group:
                return True
            if n not in seen:
                seen.add(n)
                todo.append(n)
    return False


def least_changes(start: Mapped, at_most: int, machine: MeshDescription) -> list[str]:
    """Return the changes of a machine, as texts, with which a program fits on at most `at_most` nodes: for each limit
    of a tile that suffices alone, the smallest change that was found; if none suffices, one of all limits together.
    start: the mapping at which searches begin. machine: that is changed. Raises `MappingError` for `at_most` below
    1."""
    out = []
    for limit in LIMITS:
        found = _least(start, at_most, machine.tiled({limit: LARGEST}), (limit,), machine)
        if found is not None:
            out.append(found)
    if not out:
        free = machine.tiled(dict.fromkeys(LIMITS, LARGEST))
        found = _least(start, at_most, free, tuple(LIMITS), machine)
        out = [found] if found is not None else []
    return out or [f"more tiles: {at_most} nodes do not suffice, whatever a tile has"]


def _least(
    start: Mapped, at_most: int, free: MeshDescription, limits: Sequence[str], machine: MeshDescription
) -> str | None:
    """Make limits that are free as small as a mapping is found for, one after the other; None if none is found."""
    changed = []
    for limit in limits:
        low = own = getattr(machine, limit)
        high = _needed(start, at_most, free, limit)
        if high is None:
            return None
        while high - low > (high >> FINE if limit == "memory" else 0):
            middle = (low + high) // 2
            less = _needed(start, at_most, free.tiled({limit: middle}), limit)
            low, high = (middle + 1, high) if less is None else (low, max(low, less))
        free = free.tiled({limit: high})
        if high > own:
            changed.append(f"{high} {LIMITS[limit]}")
    return f"tiles with {' and '.join(changed)} would fit"


def _needed(start: Mapped, at_most: int, machine: MeshDescription, limit: str) -> int | None:
    """The most that a node needs of something in the first mapping that is found; None if none is."""
    states = max(8, min(TRIED, WORK // 2 // len(start.graph.nodes)))
    found = _looked_at(start, at_most, machine, states=states, patience=1)[0].best
    if found is None:
        return None
    mapped = found[1].mapped
    nodes = range(len(mapped.groups))
    if limit == "memory":
        return max(sum(holder.count for holder in mapped.memory(k)) for k in nodes)
    return max(len(mapped.ports(k)[limit == "out_ports"]) for k in nodes)


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
    """Yield the mappings that one move makes: a move chains or bundles a class of equal nodes everywhere (module
    docstring). A mapping is left out if one of its new nodes needs more ports or bytes than a tile has, and more than
    any node of `mapped` needs.

    at_most: the wanted number of nodes. machine: None for tiles without limits. dropped: of the mappings that are left
    out, those are appended that are smaller than all before."""
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
    """Return whether the nodes stay without a cycle of dependences if each of some sets becomes one node, which runs
    the set in the given order. components: the numbers of the nodes of each set."""
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
    """Return whether a directed graph has no cycle. edges: (from, to), each once."""
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
