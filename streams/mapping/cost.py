"""What a mapping costs, as modelled: cycles, bytes, ports. `search` takes any function of this form.

Cycles are those of one run of the mapped machine: each node runs its shots one after the other, with the beats of the
program, and so do the parts of double buffered tasks that load and store beside it. For programs
in which data decide, and for mappings that end only with fused loops, they are estimated.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from ..run import Unending, fire_together
from ..timing.bytecode import TooLong
from ..timing.timed import BeatTiming, EndlessWait, TimedProgram, TooManyTokens
from ..tree import Body, Instance, branches
from .graph import MappingGraph
from .machine import MeshDescription
from .mapping import Mapped
from .shots import Shots, alternated, renamed
from .transfers import off_chip


@dataclass(frozen=True, order=True)
class Cost:
    """The cost of a mapping; the smaller one is better, and the first field that differs decides. cycles: of one run.
    off_chip: bytes of tensor tiles that are loaded or stored; a tile that the last shot on the node had is not loaded
    again, and one that several nodes load in one epoch is loaded once. on_chip: bytes that pass physical streams.
    ports: of all nodes together."""

    cycles: int
    off_chip: int
    on_chip: int
    ports: int

    def __str__(self) -> str:
        text = f"{self.cycles} cycles (modelled), {self.off_chip} bytes off the chip, {self.on_chip} on it"
        return f"{text}, {self.ports} ports"


def cost(mapped: Mapped, machine: MeshDescription | None = None) -> Cost:
    """Return the cost of a mapping. Its cycles are those of `cycles`, or, where that returns None, the estimate of
    `makespan`. machine: not used here; other costs may depend on it."""
    on_chip = sum(stream.size for stream in mapped.streams)
    ports = sum(len(holders) for k in range(len(mapped.groups)) for holders in mapped.ports(k))
    found = cycles(mapped)
    return Cost(makespan(mapped) if found is None else found, off_chip(mapped), on_chip, ports)


def cycles(mapped: Mapped, endless: bool = False) -> int | None:
    """Return the cycles of one run of a mapping; None if data decide what happens, if the mapping does not end without
    fused loops, or if it is too large. endless: whether streams have no limit; then the result bounds from below the
    cycles of all mappings that join nodes of this one."""
    graph = mapped.graph
    names = {stream: stream for stream in graph.edges}
    depths = {stream: edge.tokens for stream, edge in graph.edges.items()}
    for physical in mapped.streams:
        first = physical.logical[0].stream
        depths[first] = sum(edge.tokens for edge in physical.logical) if endless else physical.depth
        names.update((edge.stream, first) for edge in physical.logical)
    for stream, first in mapped.buffers.items():
        names[stream], depths[first] = first, graph.buffers[first].tokens if endless else graph.buffers[first].depth
    packing = {names[stream]: edge.packing for stream, edge in (*graph.edges.items(), *graph.buffers.items())}
    made: dict[object, Body] = {}
    written = [_beats(graph, group) for group in mapped.groups]
    written += (
        tuple(chain.from_iterable(_of_instance(graph, instance) for instance in instances))
        for k in range(len(mapped.groups))
        for instances in mapped.beside(k).values()
    )
    bodies = [renamed(body, names, made) for body in written]
    if any(map(branches, bodies)):
        return None
    try:
        timing = TimedProgram(bodies, packing).run(depths)
        if isinstance(timing, EndlessWait):
            together = fire_together(bodies, depths, packing)
            timing = TimedProgram(together.bodies, packing).run(depths) if together.live else timing
    except (TooLong, TooManyTokens, Unending):
        return None
    return timing.latency if isinstance(timing, BeatTiming) else None


def _beats(graph: MappingGraph, node: Shots) -> Body:
    """What a node runs, in beats: its shots in turn; the instances of a collective change where they wait."""
    if node.kind == "single":
        return _of_instance(graph, graph.nodes[node.shots[0]].instance)
    bodies = [_beats(graph, part) for part in node.parts]
    mixed = None
    if node.kind == "chain" and not graph.exchanges.isdisjoint(local.stream for local in node.local):
        mixed = alternated(bodies, {local.stream for local in node.local})
    return tuple(chain.from_iterable(bodies)) if mixed is None else mixed


def _of_instance(graph: MappingGraph, instance: Instance) -> Body:
    return instance.beats if graph.region.timed else instance.body


def makespan(mapped: Mapped) -> int:
    """Return an estimate of the cycles of one run. A shot starts when the shot before it on its node has ended and the
    first token of each of its streams is there, and it ends no sooner than its last tokens allow. The tokens of a
    stream are taken to come evenly over the cycles of the shot that puts them. Shots that wait for each other's tokens
    in a cycle are taken to start without waiting for each other."""
    graph = mapped.graph
    count = len(graph.nodes)
    following = [-1] * count
    end_before = [0] * count
    missing = [len(edges) for edges in graph.into]
    for group in mapped.groups:
        for first, second in zip(group.shots, group.shots[1:], strict=False):
            following[first] = second
            missing[second] += 1
    work = [node.cycles for node in graph.nodes]
    start, end = [0] * count, [0] * count
    done = [False] * count
    todo = [k for k in range(count) if not missing[k]]
    left = iter(range(count))
    for _ in range(count):
        if not todo:  # shots feed each other: the first of them goes on
            todo.append(next(k for k in left if not done[k]))
        k = todo.pop()
        done[k] = True
        begin, finish = end_before[k], 0
        for edge in graph.into[k]:
            a, tokens = edge.writer, edge.tokens
            if done[a]:
                begin = max(begin, start[a] + -(-work[a] // tokens))
                finish = max(finish, end[a] + -(-work[k] // tokens))
        start[k], end[k] = begin, max(begin + work[k], finish)
        n = following[k]
        if n >= 0:
            end_before[n] = end[k]
            missing[n] -= 1
            if not missing[n] and not done[n]:
                todo.append(n)
        for edge in graph.outof[k]:
            n = edge.reader
            missing[n] -= 1
            if not missing[n] and not done[n]:
                todo.append(n)
    return max(end, default=0)
