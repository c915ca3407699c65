"""The machine of a mapped program: a unit for each node, which runs its instances as uOPs, one after the other.

`chain` becomes two uOPs of one unit, `bundle` a uOP for each of its shots. A stream between shots of a unit is a stream
of the unit to itself that holds all tokens; the streams of a bundle to a common peer are one stream of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...isa.overlays.tasks.program import Link, Shot, TaskProgram
from ..build import apart, task_program, unit_names
from ..reader import beats_of
from ..run import fire_together
from ..tree import Body
from .errors import MappingError
from .mapping import Mapped
from .shots import renamed


def mapped_program(mapped: Mapped, externals: Mapping[str, Any] | None = None) -> TaskProgram:
    """Return a mapped program as a task program. externals: as for `build.task_program`. Raises `Refused` and
    `ProgramError` as that function, and `MappingError` for shots of one node that wait for each other, which take turns
    only if their loops are fused; a unit does not fuse them.
    """
    mapped = mapped.unfused()
    graph = mapped.graph
    program = task_program(graph.region, externals)
    units = unit_names([graph.nodes[group.shots[0]].name for group in mapped.groups])
    shared: dict[int, tuple[str, int, int]] = {}
    for physical in mapped.streams:
        name = mapped.stream_name(physical) if len(physical.logical) > 1 else ""
        for edge in physical.logical:
            shared[edge.stream] = name, physical.depth, physical.logical[0].stream
    links, depths, packing, names = list[Link](), dict[int, int](), dict[int, int](), dict[int, int]()
    ends: dict[tuple[int, bool], str] = {}
    for stream, edge in sorted(graph.edges.items()):
        declared, _ = graph.region.stream(stream)
        index = declared.index(stream - declared.first)
        label, depth, number = shared.get(stream, ("", edge.tokens, stream))
        source, sink = units[mapped.of[edge.writer]], units[mapped.of[edge.reader]]
        links.append(Link(declared.name, index, source, sink, depth, label))
        names[stream], depths[number], packing[number] = number, depth, edge.packing
        ends[number, True], ends[number, False] = source, sink
    bodies = dict(zip((i.name for i in graph.region.instances), beats_of(graph.region), strict=True))
    nodes: list[Body] = []
    for group in mapped.groups:
        shots = [graph.nodes[shot].name for shot in group.shots]
        nodes.append(sum((renamed(bodies[name], names, {}) for name in shots), ()))
    together = fire_together(nodes, depths, packing)
    if not together.live:
        raise MappingError(
            "proof",
            "instances of one node wait for each other: a unit runs them one after the other",
            None,
            ("keep instances that give each other tokens in turn on nodes of their own",),
        )
    runs = [
        (unit, tuple(Shot(instance.task.name, instance.tid) for instance in (graph.nodes[s].instance for s in g.shots)))
        for unit, g in zip(units, mapped.groups, strict=True)
    ]
    return replace(program, units=tuple(runs), links=tuple(links), apart=apart(together, ends))
