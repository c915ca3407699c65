"""Which operations of a beat fire together.

A beat takes all its tokens and slots at once, or none. So it can wait for ever where its operations, one after another,
would not: it waits for a second token and meanwhile does not take the first one, for whose slot the writer of the
second waits. Where that happens, and only there, the operations of the beat are done one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..isa.overlays.tasks.tree import last_cycles
from .run import BodyRun
from .tree import Beat, Body, Choice, FixedLoop, Node, Nodes, Region, total


@dataclass(frozen=True)
class Together:
    """The bodies of all instances at some depths. apart: the beats that were taken apart. live: whether every outcome
    of the data runs to its end."""

    bodies: tuple[Body, ...]
    apart: tuple[Beat, ...]
    live: bool


def stream_depths(region: Region, depths: Mapping[str, int] | None = None) -> tuple[dict[int, int], dict[int, int]]:
    """Return depth and packing of every stream that has ends, in elements. depths: by declared name, others than
    declared."""
    deep, packing = dict[int, int](), dict[int, int]()
    for s in sorted({s for instance in region.instances for node in instance.body for s, _, _ in node.needs}):
        decl = region.stream(s)[0]
        deep[s], packing[s] = (depths or {}).get(decl.name, decl.depth), decl.packing
    return deep, packing


def fire_together(bodies: Sequence[Body], depths: Mapping[int, int], packing: Mapping[int, int]) -> Together:
    """Take apart the beats that cannot fire at once with these depths, until every instance ends.

    bodies: trees of beats. depths, packing: of every stream that has ends, in elements. All instances run, without
    time. When they wait for ever, follow from each beat the operations that cannot be done to the instances at the
    other ends: in each group of instances that wait for each other and for no other instance, the beats whose first
    operation can be done are taken apart, and the run begins anew. In such a group there is one, unless the program
    waits for ever with one operation after another too; then the result is not live. The number of runs is at most the
    number of beats. Raises `run.Unending`.
    """
    now = tuple(bodies)
    writers: dict[int, int] = {}
    readers: dict[int, int] = {}
    for k, body in enumerate(bodies):
        for s, put, _ in total(body)[0]:
            (writers if put else readers)[s] = k
    apart: list[Beat] = []
    while True:
        waits = BodyRun(now, depths, packing).outcome().waits
        peers = {w.instance: [(readers if op.put else writers)[op.stream] for op in w.held] for w in waits}
        closed = _closed_groups(peers)
        found: list[Beat] = []
        for wait in waits:
            node = wait.node
            if wait.instance in closed and isinstance(node, Beat) and node.ops[0] not in wait.held:
                found += [node] if node not in found else []
        if not found:
            return Together(now, tuple(apart), not waits)
        apart += found
        take = _Taker(found)
        now = tuple(take.body(body) for body in now)


def _closed_groups(peers: Mapping[int, Sequence[int]]) -> set[int]:
    """Return the members of groups that reach each other, and nobody else, along `peers`."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on: set[int] = set()
    closed: set[int] = set()
    for root in peers:
        if root in index:
            continue
        walk = [(root, iter(peers[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on.add(root)
        while walk:
            k, rest = walk[-1]
            for peer in rest:
                if peer not in peers:
                    continue
                if peer not in index:
                    index[peer] = low[peer] = len(index)
                    stack.append(peer)
                    on.add(peer)
                    walk.append((peer, iter(peers[peer])))
                    break
                if peer in on:
                    low[k] = min(low[k], index[peer])
            else:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[k])
                if low[k] == index[k]:
                    group = set(stack[stack.index(k) :])
                    del stack[stack.index(k) :]
                    on -= group
                    if all(peer in group for member in group for peer in peers[member]):
                        closed |= group
    return closed


class _Taker:
    """Takes beats apart: one operation after another, each in one cycle, the last one in what is left of the beat's
    cycles, and one at least."""

    def __init__(self, beats: Sequence[Beat]) -> None:
        self._nodes = Nodes()
        self._made: dict[Node, Body] = {}
        for beat in beats:
            *others, last = beat.ops
            alone = [self._nodes.beat((op,), 1, op.place) for op in others]
            rest = last_cycles(beat.cycles, len(others))
            self._made[beat] = (*alone, self._nodes.beat((last,), rest, last.place))

    def body(self, body: Body) -> Body:
        """Return a body with these beats taken apart; without any it is the same object."""
        made = [self._node(node) for node in body]
        if all(new == (node,) for new, node in zip(made, body, strict=True)):
            return body
        return tuple(node for new in made for node in new)

    def _node(self, node: Node) -> Body:
        made = self._made.get(node)
        if made is None:
            made = (node,)
            if isinstance(node, FixedLoop):
                body = self.body(node.body)
                made = made if body is node.body else self._nodes.repeat(node.times, body)
            elif isinstance(node, Choice):
                arms = [self.body(arm) for arm in node.arms]
                if any(arm is not old for arm, old in zip(arms, node.arms, strict=True)):
                    made = self._nodes.choice(arms, node.place)
            self._made[node] = made
        return made
