"""What a mapping costs, as modelled: cycles, bytes, ports. `search` takes any function of this form.

Cycles are those of one run. A shot starts when the shot before it on its node has ended and the first token of each of
its streams is there; it ends no sooner than the last token allows. Tokens of a stream are spread evenly over the cycles
of its writer. Streams inside a node count as all others. Beats take the cycles that the program states, else 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from .machine import MeshDescription
from .mapping import Mapped
from .transfers import off_chip


@dataclass(frozen=True, order=True)
class Cost:
    """Less is better, the first that differs decides. cycles: of one run. off_chip: bytes of tensor tiles that are
    loaded or stored; a tile that the shot before on the same node had is not loaded again, and one that several nodes
    load in one epoch is loaded once. on_chip: bytes on physical
    streams. ports: of all nodes."""

    cycles: int
    off_chip: int
    on_chip: int
    ports: int

    def __str__(self) -> str:
        text = f"{self.cycles} cycles (modelled), {self.off_chip} bytes off the chip, {self.on_chip} on it"
        return f"{text}, {self.ports} ports"


def cost(mapped: Mapped, machine: MeshDescription | None = None) -> Cost:
    """Return the cost of a mapping. machine: for costs that depend on it, which this one does not."""
    on_chip = sum(stream.size for stream in mapped.streams)
    ports = sum(len(holders) for k in range(len(mapped.groups)) for holders in mapped.ports(k))
    return Cost(makespan(mapped), off_chip(mapped), on_chip, ports)


def makespan(mapped: Mapped) -> int:
    """Return the modelled cycles of one run; of shots that feed each other, each starts without waiting for the
    others."""
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
