"""The virtual mapping graph: task instances, the streams between them, and the tiles of tensors that they move.

It knows no device. Two nodes have the same *kernel* if they run the same statements, up to names (`computation`), their
puts and gets are equal up to the names of the streams, and their streams and tiles have the same types.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...base.element_types import ElementType
from ...base.place import Place
from ..run import without
from ..tree import Beat, Body, Choice, FixedLoop, Instance, Node, Nodes, Op, Region, bytes_of, total
from .computation import computation
from .errors import MappingError
from .footprint import Footprint, footprint, whole_tiles
from .tiles import TensorTile, tiles, used_names


@dataclass(frozen=True)
class VirtualNode:
    """A task instance as a node of the virtual mapping graph.

    number: among all nodes, from 0. kernel: two nodes with the same number compute the same. body: its puts and gets.
    ends: the number of each of its streams, in the order of first use, and whether the node puts on it. tiles: the
    tiles of tensors that it loads or stores. cycles: of all its beats together. footprint: what it holds, and when it
    loads and stores.

    In a double buffered task the instance is the part that computes; other parts run beside it. parts: these, by what
    they do (`LOAD`, `STORE`). Streams between the parts are not in `body` and `ends`, and `cycles` is that of the part
    with the most. computing: cycles of the instance alone."""

    number: int
    instance: Instance
    kernel: int
    body: Body
    ends: tuple[tuple[int, bool], ...]
    tiles: tuple[TensorTile, ...]
    cycles: int
    footprint: Footprint
    computing: int
    parts: Mapping[str, Instance]

    @property
    def name(self) -> str:
        """The name of the task instance, such as `gemm[0,1]`."""
        return self.instance.name


@dataclass(frozen=True)
class NodeStream:
    """A stream from one node to another. stream, writer, reader: numbers of the stream and the nodes. type: of an
    element. depth: in elements. packing: elements of one transfer. tokens: elements that pass it in one run.
    """

    stream: int
    name: str
    writer: int
    reader: int
    type: ElementType
    depth: int
    packing: int
    tokens: int
    place: Place

    @cached_property
    def size(self) -> int:
        """Bytes of one element of the stream."""
        return bytes_of(self.type)


@dataclass(frozen=True)
class MappingGraph:
    """The virtual mapping graph of a region. nodes: the task instances that move or compute something. edges: the
    streams between them, by number. idle: the names of the other instances. exchanges: the numbers of the streams of
    collectives, over which instances exchange tiles. buffers: the streams between the parts of double buffered tasks,
    by number; both ends of each are one node."""

    region: Region
    nodes: tuple[VirtualNode, ...]
    edges: Mapping[int, NodeStream]
    idle: tuple[str, ...]
    exchanges: frozenset[int] = frozenset()
    buffers: Mapping[int, NodeStream] = field(default_factory=dict)

    @cached_property
    def by_name(self) -> dict[str, int]:
        """The number of each node, by its name, such as `gemm[0,1]`."""
        return {node.name: node.number for node in self.nodes}

    @cached_property
    def into(self) -> Sequence[Sequence[NodeStream]]:
        """The streams that each node reads, by the number of the node."""
        found: list[list[NodeStream]] = [[] for _ in self.nodes]
        for edge in self.edges.values():
            found[edge.reader].append(edge)
        return found

    @cached_property
    def outof(self) -> Sequence[Sequence[NodeStream]]:
        """The streams that each node writes, by the number of the node."""
        found: list[list[NodeStream]] = [[] for _ in self.nodes]
        for edge in self.edges.values():
            found[edge.writer].append(edge)
        return found

    def node(self, name: str) -> int:
        """Return the number of a node. name: of the instance, such as `gemm[0,1]`; spaces are ignored. Raises
        `MappingError` for a name that no node has."""
        found = self.by_name.get(name.replace(" ", ""))
        if found is None:
            raise MappingError("name", f"no task instance has the name {name}")
        return found


def mapping_graph(region: Region) -> MappingGraph:
    """Return the graph of a program in which `report_on` finds no error (Dato, section 6). A put or a get counts as one
    cycle if the region was not read with beats."""
    kernels: dict[object, int] = {}
    nodes: list[VirtualNode] = []
    idle: list[str] = []
    reader = _InstanceFacts(region)
    ends: dict[tuple[int, bool], tuple[int, int]] = {}
    footprints: dict[int, Footprint] = {}
    buffered = {s for decl in region.streams if decl.buffer_of for s in range(decl.first, decl.first + decl.size)}
    parts: dict[tuple[str, tuple[int, ...]], dict[str, Instance]] = defaultdict(dict)
    for instance in region.instances:
        if instance.task.part and instance.task.whole is not None:
            parts[instance.task.whole.name, instance.tid][instance.task.part] = instance
    for instance in region.instances:
        if instance.task.part:
            continue
        own = parts.get((instance.task.name, instance.tid), {})
        every = (instance, *own.values())
        moved = _merged([tile for one in every for tile in reader.tiles(one)])
        body = without([instance.body], buffered, Nodes())[0] if own else instance.body
        if not body and not moved:
            idle.append(instance.name)
            continue
        order: dict[int, int] = {}
        word = canonical(body, order)
        puts = {s: put for s, put, _ in total(body)[0]}
        types = tuple(_end(region, s, puts[s]) for s in order)
        shapes = tuple((t.type, t.reads, t.writes) for t in moved)
        code = tuple(reader.code(one) for one in every)
        inner = tuple((part, reader.buffers(own[part])) for part in own)
        kernel = kernels.setdefault((code, word, types, shapes, inner), len(kernels))
        if kernel not in footprints:
            footprints[kernel] = _footprint(region, instance, own, moved)
        number = len(nodes)
        for one in every:
            for s, put, n in total(one.body)[0]:
                ends[s, put] = number, n
        work = [cycles(one.beats if region.timed else one.body) for one in every]
        listed = tuple((s, puts[s]) for s in order)
        held = footprints[kernel]
        nodes.append(VirtualNode(number, instance, kernel, body, listed, moved, max(work), held, work[0], own))
    arrays = [array for found in region.collectives for array in found.arrays]
    exchanges = frozenset(stream for array in arrays for stream in range(array.first, array.first + array.size))
    edges, buffers = dict[int, NodeStream](), dict[int, NodeStream]()
    for stream, put in sorted(ends):
        if put:
            decl, name = region.stream(stream)
            (writer, tokens), (to, _) = ends[stream, True], ends[stream, False]
            made = NodeStream(stream, name, writer, to, decl.type, decl.depth, decl.packing, tokens, decl.place)
            (buffers if stream in buffered else edges)[stream] = made
    return MappingGraph(region, tuple(nodes), edges, tuple(idle), exchanges, buffers)


class _InstanceFacts:
    """What task instances compute and move."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self._bound = {task.name: used_names(task) for task in region.tasks if task.parameters}
        self._texts: dict[tuple[str, ...], int] = {}
        self._written: dict[tuple[str, frozenset[tuple[int, ...]]], int] = {}

    def tiles(self, instance: Instance) -> list[TensorTile]:
        """Return the tiles that an instance moves."""
        used = self._bound.get(instance.task.name)
        if used is None:
            return []
        ran = [used[at] for at in instance.ran if at in used]  # a loop's (line, column, trips) is never a key
        reads = frozenset[str]().union(*(r for r, _ in ran))
        writes = frozenset[str]().union(*(w for _, w in ran))
        return tiles(instance, (reads, writes))

    def code(self, instance: Instance) -> int:
        """Return a number that is equal for instances that run the same statements, up to names."""
        key = instance.task.name, instance.ran
        if key not in self._written:
            text = computation(instance.task, instance.ran)
            self._written[key] = self._texts.setdefault(text, len(self._texts))
        return self._written[key]

    def buffers(self, part: Instance) -> tuple[object, ...]:
        """Return what a part of a double buffered task moves, in a form that is equal for equal parts."""
        order: dict[int, int] = {}
        word = canonical(part.body, order)
        return word, tuple(self.region.stream(s)[0].type for s in order)


def _merged(found: Sequence[TensorTile]) -> tuple[TensorTile, ...]:
    """The tiles of a node, each parameter once."""
    out: dict[str, TensorTile] = {}
    for tile in found:
        known = out.get(tile.parameter, tile)
        out[tile.parameter] = replace(known, reads=known.reads or tile.reads, writes=known.writes or tile.writes)
    return tuple(out.values())


def _footprint(
    region: Region, instance: Instance, parts: Mapping[str, Instance], moved: Sequence[TensorTile]
) -> Footprint:
    """The footprint of a node. What the parts of a double buffered task load and store goes straight through; the part
    that computes keeps what it takes from a buffer."""
    found = {part: footprint(region, one) for part, one in {"": instance, **parts}.items()}
    known = {part: one for part, one in found.items() if one is not None}
    if len(known) < len(found):
        return whole_tiles(moved)
    lives = {transfer: life for one in known.values() for transfer, life in one.lives.items()}
    held = known[""].held
    return Footprint(held, held if parts else known[""].beside_tokens, max(x.moments for x in known.values()), lives)


def _end(region: Region, stream: int, put: bool) -> tuple[object, ...]:
    decl = region.stream(stream)[0]
    return put, decl.type, decl.packing


def canonical(body: Body, order: dict[int, int]) -> tuple[object, ...]:
    """Return a key of a body that does not depend on the numbers of its streams: they are numbered in the order of
    first use. order: the new number of each stream, by the old one; streams that are missing are added."""
    out: list[object] = []
    for node in body:
        if isinstance(node, Op):
            out.append((order.setdefault(node.stream, len(order)), node.put))
        elif isinstance(node, Beat):
            out.append(("beat", node.cycles, canonical(node.ops, order)))
        elif isinstance(node, FixedLoop):
            out.append(("repeat", node.times, canonical(node.body, order)))
        elif isinstance(node, Choice):
            out.append(("choice", *(canonical(arm, order) for arm in node.arms)))
    return tuple(out)


def cycles(body: Sequence[Node]) -> int:
    """Return the cycles of a body in which nothing waits: those of its beats, 1 for a put or a get outside of beats,
    and for a branch those of its longer arm."""
    count = 0
    for node in body:
        if isinstance(node, Beat):
            count += node.cycles
        elif isinstance(node, FixedLoop):
            count += node.times * cycles(node.body)
        elif isinstance(node, Choice):
            count += max(map(cycles, node.arms))
        else:
            count += 1
    return count


def operations(body: Sequence[Node]) -> Iterator[Op]:
    """Yield every put and get of a body once, those in a loop too, whatever its number of iterations."""
    for node in body:
        if isinstance(node, Op):
            yield node
        elif isinstance(node, Beat):
            yield from node.ops
        elif isinstance(node, FixedLoop):
            yield from operations(node.body)
        elif isinstance(node, Choice):
            for arm in node.arms:
                yield from operations(arm)
