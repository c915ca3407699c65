"""A mapping: which instances run on one node, and the physical streams, ports and bytes that follow from it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from ...base.element_types import ElementType
from ..tree import Instance
from .errors import MappingError
from .graph import MappingGraph, NodeStream
from .machine import MeshDescription
from .shots import Collocations, Shots, agree


@dataclass(frozen=True)
class PhysicalStream:
    """A stream between two nodes of a mapping. number: of the stream. writer, reader: the numbers of the nodes.
    logical: the streams of the program that take turns on it. apart: streams that take the same place in the parts of a
    bundle, but need another physical stream, since the order of tokens at their ends differs."""

    number: int
    writer: int
    reader: int
    logical: tuple[NodeStream, ...]
    apart: tuple[NodeStream, ...] = ()

    @property
    def type(self) -> ElementType:
        """The element type, which all its logical streams share."""
        return self.logical[0].type

    @property
    def packing(self) -> int:
        """The packing, which all its logical streams share: the elements of one transfer."""
        return self.logical[0].packing

    @property
    def depth(self) -> int:
        """The depth, in elements: the largest depth of its logical streams."""
        return max(edge.depth for edge in self.logical)

    @property
    def tokens(self) -> int:
        """Elements that pass it in one run, over all its logical streams."""
        return sum(edge.tokens for edge in self.logical)

    @property
    def size(self) -> int:
        """Bytes that pass it in one run."""
        return sum(edge.tokens * edge.size for edge in self.logical)


@dataclass(frozen=True)
class Holder:
    """What takes ports or bytes of a node. what: a description. count: how many ports or bytes."""

    what: str
    count: int


class Excess(NamedTuple):
    """A limit of a tile that a node exceeds. code: of the refusal. kind: "input ports", "output ports" or "bytes".
    needs: how many the node needs. most: how many a tile has. holders: what takes them."""

    code: str
    kind: str
    needs: int
    most: int
    holders: Sequence[Holder]


@dataclass(frozen=True)
class AppliedPrimitive:
    """A primitive that was applied. primitive: "chain", "bundle" or "double_buffer". parts: the names of the nodes that
    it joined; for `double_buffer`, of the task. times: how many nodes it has joined to others."""

    primitive: str
    parts: tuple[str, ...]
    times: int = 1

    def __str__(self) -> str:
        shown = self.parts if len(self.parts) <= 6 else (*self.parts[:5], f"... {len(self.parts)} nodes")
        return f"{self.primitive}({', '.join(shown)})"


class Mapped:
    """A mapping of a graph; it is never changed, since primitives return a new one.

    made: makes its nodes. groups: its nodes. steps: the primitives that made it, in order. of: for each instance, by
    its number, the number of the node that runs it; () to find that of the nodes."""

    def __init__(
        self,
        made: Collocations,
        groups: Sequence[Shots],
        steps: tuple[AppliedPrimitive, ...] = (),
        of: Sequence[int] = (),
    ) -> None:
        self.made, self.groups, self.steps = made, tuple(groups), steps
        self._over: dict[tuple[int, MeshDescription], Sequence[Excess]] = {}
        if of:
            self.of = list(of)
        else:
            self.of = [0] * len(made.graph.nodes)
            for k, group in enumerate(self.groups):
                for shot in group.shots:
                    self.of[shot] = k

    @classmethod
    def start(cls, graph: MappingGraph, fuse: bool = True) -> Mapped:
        """Return the mapping with a node of its own for each instance. fuse: whether loops of chained shots are
        fused."""
        made = Collocations(graph, fuse)
        steps = (AppliedPrimitive("double_buffer", (task,), 0) for task in sorted(graph.region.buffered))
        return cls(made, [made.single(node.number) for node in graph.nodes], tuple(steps))

    @property
    def graph(self) -> MappingGraph:
        """The virtual mapping graph that is mapped."""
        return self.made.graph

    def group(self, name: str) -> int:
        """Return the number of a node. name: of an instance that the node runs, or of the node, such as `gemm[0,1]+3`.
        Raises `MappingError` for a name that no node has."""
        first, plus, _ = name.replace(" ", "").partition("+")
        group = self.of[self.graph.node(first)]
        if plus and self.name(group) != name.replace(" ", ""):
            raise MappingError("name", f"no node has the name {name}", None, (f"{first} is on {self.name(group)}",))
        return group

    def name(self, group: int) -> str:
        """Return a short name of a node: that of its first instance, and how many others it runs, such as
        `gemm[0,1]+3`. group: the number of the node.
        """
        shots = self.groups[group].shots
        first = self.graph.nodes[shots[0]].name
        return first if len(shots) == 1 else f"{first}+{len(shots) - 1}"

    def members(self, group: int) -> tuple[str, ...]:
        """Return the names of the instances of a node, in the order in which they run. group: the number of the
        node.
        """
        return tuple(self.graph.nodes[shot].name for shot in self.groups[group].shots)

    def joined(self, components: Sequence[tuple[Shots, Sequence[int]]], *steps: AppliedPrimitive) -> Mapped:
        """Return the mapping in which sets of nodes are replaced by one new node each, at the place of the first of the
        set. components: for each set, the new node and the numbers of the nodes that it replaces. steps: the primitives
        that are applied."""
        gone = {k for _, members in components for k in members}
        put = {min(members): node for node, members in components}
        groups = [put.get(k, group) for k, group in enumerate(self.groups) if k in put or k not in gone]
        return Mapped(self.made, groups, (*self.steps, *steps))

    def unfused(self) -> Mapped:
        """Return the same mapping without fused loops: a buffer between two chained shots holds all tokens of its
        stream."""
        made = Collocations(self.graph, False)
        return Mapped(made, [_again(made, group) for group in self.groups], self.steps)

    # -- edges between nodes -------------------------------------------------------------------------------------------

    @cached_property
    def between(self) -> Mapping[tuple[int, int], list[int]]:
        """The numbers of the logical streams from one node to another, by the numbers of the two nodes (writer,
        reader). Streams inside a node are left out."""
        found: dict[tuple[int, int], list[int]] = defaultdict(list)
        for stream, edge in self.graph.edges.items():
            a, b = self.of[edge.writer], self.of[edge.reader]
            if a != b:
                found[a, b].append(stream)
        return found

    @cached_property
    def successors(self) -> Sequence[Sequence[int]]:
        """For each node, the numbers of the nodes that it writes to."""
        out: list[list[int]] = [[] for _ in self.groups]
        for a, b in self.between:
            out[a].append(b)
        return out

    @cached_property
    def predecessors(self) -> Sequence[Sequence[int]]:
        """For each node, the numbers of the nodes that it reads from."""
        out: list[list[int]] = [[] for _ in self.groups]
        for a, b in self.between:
            out[b].append(a)
        return out

    # -- physical streams ----------------------------------------------------------------------------------------------

    @cached_property
    def streams(self) -> tuple[PhysicalStream, ...]:
        """The physical streams, numbered in order."""
        out: list[PhysicalStream] = []
        for a, b in sorted(self.between):
            for together, apart in self.shared(a, b):
                out.append(PhysicalStream(len(out), a, b, together, apart))
        return tuple(out)

    def shared(self, a: int, b: int) -> list[tuple[tuple[NodeStream, ...], tuple[NodeStream, ...]]]:
        """Return the logical streams from node a to node b, one item for each physical stream: those that share it, and
        those that take the same place in the parts of a bundle but do not fit on it.

        Streams share a physical stream if they take the same place in the parts of a bundle at one end, and both ends
        move their tokens in the same order. a, b: numbers of nodes. Raises `KeyError` for nodes without a stream from a
        to b."""
        streams = self.between[a, b]
        if len(streams) == 1:
            return [((self.graph.edges[streams[0]],), ())]
        place: dict[int, int] = {}
        links: list[list[int]] = []
        wanted = set(streams)
        for group in (self.groups[a], self.groups[b]):
            links += (found for position in group.positions if len(found := [s for s in position if s in wanted]) > 1)
        for stream in streams:
            place[stream] = stream
        for link in links:
            roots = {_root(place, stream) for stream in link}
            for root in roots:
                place[root] = min(roots)
        together: dict[int, list[int]] = defaultdict(list)
        for stream in streams:
            together[_root(place, stream)].append(stream)
        return [found for group in together.values() for found in self._divided(a, b, group)]

    def _divided(
        self, a: int, b: int, streams: list[int]
    ) -> list[tuple[tuple[NodeStream, ...], tuple[NodeStream, ...]]]:
        """Divide the streams of one position into sets of equal order at both ends."""
        edges = self.graph.edges
        one, two = self.groups[a].body, self.groups[b].body
        alike = len({(edges[s].type, edges[s].packing) for s in streams}) == 1
        if len(streams) == 1 or (alike and agree(one, two, set(streams))):
            return [(tuple(edges[s] for s in streams), ())]
        sets: list[list[int]] = []
        for stream in streams:
            for found in sets:
                same = all(
                    (edges[s].type, edges[s].packing) == (edges[stream].type, edges[stream].packing) for s in found
                )
                if same and all(agree(one, two, {stream, s}) for s in found):
                    found.append(stream)
                    break
            else:
                sets.append([stream])
        return [
            (tuple(edges[s] for s in found), tuple(edges[s] for other in sets if other is not found for s in other))
            for found in sets
        ]

    def taken(self, group: int) -> list[PhysicalStream]:
        """Return the physical streams that a node reads. They are numbered from 0 for this node alone. group: the
        number of the node."""
        return self._of([(a, group) for a in sorted(self.predecessors[group])])

    def given(self, group: int) -> list[PhysicalStream]:
        """Return the physical streams that a node writes. They are numbered from 0 for this node alone. group: the
        number of the node."""
        return self._of([(group, b) for b in sorted(self.successors[group])])

    def _of(self, pairs: Sequence[tuple[int, int]]) -> list[PhysicalStream]:
        found = [(a, b, logical) for a, b in pairs for logical, _ in self.shared(a, b)]
        return [PhysicalStream(k, a, b, logical) for k, (a, b, logical) in enumerate(found)]

    # -- double buffers ------------------------------------------------------------------------------------------------

    def beside(self, group: int) -> dict[str, list[Instance]]:
        """Return the parts of double buffered tasks that load and store beside a node, by what they do (`LOAD`,
        `STORE`), in the order of its shots. group: the number of the node."""
        found: dict[str, list[Instance]] = {}
        for shot in self.groups[group].shots:
            for part, instance in self.graph.nodes[shot].parts.items():
                found.setdefault(part, []).append(instance)
        return found

    @cached_property
    def buffers(self) -> Mapping[int, int]:
        """For each stream between the parts of a double buffered node, the stream whose buffer it uses. The streams of
        one access of a task, of all its instances on a node, take turns on the buffer of the first one, since they come
        in the same order at both ends."""
        first: dict[tuple[int, str], int] = {}
        found: dict[int, int] = {}
        for stream, edge in self.graph.buffers.items():
            name = self.graph.region.stream(stream)[0].name
            found[stream] = first.setdefault((self.of[edge.writer], name), stream)
        return found

    # -- ports and bytes -----------------------------------------------------------------------------------------------

    def ports(self, group: int) -> tuple[list[Holder], list[Holder]]:
        """Return what takes the input ports, and what takes the output ports, of a node. A physical stream takes a port
        all the time. A tensor takes one from its first to its last access; tensors whose accesses do not overlap take
        turns on a port. group: the number of the node."""
        ins = [Holder(f"{self.stream_name(s)} from {self.name(s.writer)}", 1) for s in self.taken(group)]
        outs = [Holder(f"{self.stream_name(s)} to {self.name(s.reader)}", 1) for s in self.given(group)]
        for write, holders in ((False, ins), (True, outs)):
            verb = "stores" if write else "loads"
            for beside in (False, True):  # which run at the same time
                turns: list[tuple[int, list[str]]] = []  # of each port, the last moment that is taken, and by which
                lives = sorted((life, tensor) for tensor, life in self._lives(group, write, beside).items())
                for (first, last), tensor in lives:
                    free = next((k for k, (end, _) in enumerate(turns) if end < first), None)
                    if free is None:
                        turns.append((last, [tensor]))
                    else:
                        turns[free] = last, [*turns[free][1], tensor]
                holders += (Holder(f"{verb} of {', then '.join(tensors)}", 1) for _, tensors in turns)
        return ins, outs

    def _lives(self, group: int, write: bool, beside: bool) -> dict[str, tuple[int, int]]:
        """The first and the last moment of the loads or stores of each tensor. Shots of one phase run at the same time:
        what they move meets. beside: of double buffered shots, or else of all others."""
        node, nodes = self.groups[group], self.graph.nodes
        moments, count = Counter[int](), Counter(node.phases)
        for shot, phase in zip(node.shots, node.phases, strict=True):
            moments[phase] = max(moments[phase], nodes[shot].footprint.moments)
        start = [0, *accumulate(moments[phase] for phase in range(len(count)))]
        lives: dict[str, tuple[int, int]] = {}
        for shot, phase in zip(node.shots, node.phases, strict=True):
            for tile in nodes[shot].tiles if bool(nodes[shot].parts) == beside else ():
                life = nodes[shot].footprint.lives.get((tile.parameter, write))
                if life is None:
                    continue
                if count[phase] > 1:
                    life = 0, moments[phase] - 1
                first, last = (start[phase] + at for at in life)
                known = lives.get(tile.tensor, (first, last))
                lives[tile.tensor] = min(first, known[0]), max(last, known[1])
        return lives

    def memory(self, group: int) -> list[Holder]:
        """Return what takes the bytes of a node in the phase that takes most: the tiles and variables that its shots
        hold, local buffers, the slots of the streams that it reads, and the buffers between its parts. group: the
        number of the node."""
        node = self.groups[group]
        phases = node.phases[-1] + 1
        held: list[list[Holder]] = [[] for _ in range(phases)]
        inside = {local.stream for local in node.local}
        for shot, phase in zip(node.shots, node.phases, strict=True):
            found = self.graph.nodes[shot]
            given = all(put or stream in inside for stream, put in found.ends)  # tokens lie in the buffers
            count = found.footprint.beside_tokens if given else found.footprint.held
            if count:
                held[phase].append(Holder(f"tiles of {found.name}", count))
        tiles = [sum(holder.count for holder in one) for one in held]
        change = [0] * (phases + 1)
        for local in node.local:
            size = local.tokens * self.graph.edges[local.stream].size
            change[node.phases[local.first]] += size
            change[node.phases[local.last] + 1] -= size
        live = peak = worst = 0
        for phase in range(phases):
            live += change[phase]
            if live + tiles[phase] > peak:
                peak, worst = live + tiles[phase], phase
        out = held[worst]
        for local in node.local:
            if node.phases[local.first] <= worst <= node.phases[local.last]:
                edge = self.graph.edges[local.stream]
                out.append(
                    Holder(f"buffer of {edge.name}, {_tokens(local.tokens, edge.size)}", local.tokens * edge.size)
                )
        for stream in self.taken(group):
            size = stream.logical[0].size
            out.append(
                Holder(f"slots of {self.stream_name(stream)}, {_tokens(stream.depth, size)}", stream.depth * size)
            )
        for first in sorted({*self.buffers.values()}):
            edge = self.graph.buffers[first]
            if self.of[edge.writer] != group:
                continue
            name = self.graph.region.stream(first)[0].name
            out.append(Holder(f"double buffer of {name}, {_tokens(edge.depth, edge.size)}", edge.depth * edge.size))
        return out

    def over(self, group: int, machine: MeshDescription) -> Sequence[Excess]:
        """Return the limits of a tile that a node exceeds; empty if it fits. group: the number of the node. machine:
        whose tiles."""
        found = self._over.get((group, machine))
        if found is None:
            ins, outs = self.ports(group)
            limits = [
                ("port", "input ports", machine.in_ports, ins),
                ("port", "output ports", machine.out_ports, outs),
                ("memory", "bytes", machine.memory, self.memory(group)),
            ]
            needs = [Excess(code, what, sum(h.count for h in held), most, held) for code, what, most, held in limits]
            found = self._over[group, machine] = [row for row in needs if row.needs > row.most]
        return found

    def stream_name(self, stream: PhysicalStream) -> str:
        """Return the name of a physical stream: that of its logical stream, or the names of the first three of
        several."""
        names = [edge.name for edge in stream.logical]
        if len(names) == 1:
            return names[0]
        shown = f"{', '.join(names[:3])}{f', ... {len(names)} streams' if len(names) > 3 else ''}"
        return f"{self.name(stream.writer)}->{self.name(stream.reader)} ({shown} in turn)"


def _again(made: Collocations, group: Shots) -> Shots:
    if group.kind == "single":
        return made.single(group.shots[0])
    parts = [_again(made, part) for part in group.parts]
    return made.chain(parts) if group.kind == "chain" else made.bundle(parts)


def _root(place: dict[int, int], k: int) -> int:
    while place[k] != k:
        place[k] = place[place[k]]
        k = place[k]
    return k


def _tokens(count: int, size: int) -> str:
    return f"{count} x {size} bytes"


def names(mapped: Mapped, groups: Iterable[int]) -> tuple[str, ...]:
    """Return the names of nodes, in order. groups: their numbers."""
    return tuple(mapped.name(k) for k in groups)
