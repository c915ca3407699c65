"""The machine of a mapped program: a unit for each node, which runs its instances as uOPs, one after the other.

`chain` becomes two uOPs of one unit, `bundle` a uOP for each of its shots. A stream between shots of a unit is a stream
of the unit to itself that holds all tokens; the streams of a bundle to a common peer are one stream of the machine.
What loads and stores beside a node with double buffers are units of their own, in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...isa.overlays.tasks.program import Link, Shot, TaskProgram
from ..build import apart, task_program, unit_names
from ..reader import beats_of
from ..run import fire_together
from ..tree import total
from .errors import MappingError
from .mapping import Mapped
from .shots import renamed


def mapped_program(mapped: Mapped, externals: Mapping[str, Any] | None = None) -> TaskProgram:
    """Return a mapped program as a task program. externals: as for `build.task_program`. Raises `Refused` and
    `ProgramError` as that function, and `MappingError` for shots of one node that wait for each other: only with fused
    loops could they take turns, and units do not fuse loops."""
    mapped = mapped.unfused()
    graph = mapped.graph
    program = task_program(graph.region, externals)
    beside = [(k, part, found) for k in range(len(mapped.groups)) for part, found in mapped.beside(k).items()]
    first = [graph.nodes[group.shots[0]].name for group in mapped.groups]
    units = unit_names([*first, *(f"{first[k]}.{part}" for k, part, _ in beside)])
    instances = [[graph.nodes[shot].instance for shot in group.shots] for group in mapped.groups]
    runs = list(zip(units, [*instances, *(found for _, _, found in beside)], strict=True))
    shared: dict[int, tuple[str, int, int]] = {}
    for physical in mapped.streams:
        name = mapped.stream_name(physical) if len(physical.logical) > 1 else ""
        for edge in physical.logical:
            shared[edge.stream] = name, physical.depth, physical.logical[0].stream
    turns = Counter(mapped.buffers.values())
    for stream, number in mapped.buffers.items():
        edge = graph.buffers[stream]
        name = f"{graph.region.stream(stream)[0].name} of {units[mapped.of[edge.writer]]}" if turns[number] > 1 else ""
        shared[stream] = name, edge.depth, number
    ends = {(s, put): unit for unit, found in runs for i in found for s, put, _ in total(i.body)[0]}
    links, depths, packing, names = list[Link](), dict[int, int](), dict[int, int](), dict[int, int]()
    for stream, edge in sorted({**graph.edges, **graph.buffers}.items()):
        declared, _ = graph.region.stream(stream)
        index = declared.index(stream - declared.first)
        label, depth, number = shared.get(stream, ("", edge.tokens, stream))
        links.append(Link(declared.name, index, ends[stream, True], ends[stream, False], depth, label))
        names[stream], depths[number], packing[number] = number, depth, edge.packing
    bodies = dict(zip((i.name for i in graph.region.instances), beats_of(graph.region), strict=True))
    nodes = [sum((renamed(bodies[i.name], names, {}) for i in found), ()) for _, found in runs]
    together = fire_together(nodes, depths, packing)
    if not together.live:
        raise MappingError(
            "proof",
            "instances of one node wait for each other: a unit runs them one after the other",
            None,
            ("keep instances that give each other tokens in turn on nodes of their own",),
        )
    shots = tuple((unit, tuple(Shot(i.task.name, i.tid) for i in found)) for unit, found in runs)
    return replace(program, units=shots, links=tuple(links), apart=apart((together,), ends))
