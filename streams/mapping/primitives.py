"""The primitives of a mapping, `bundle` and `chain`, with what makes them illegal.

Both put several nodes on one. The graph of nodes must stay free of new cycles, the common peers of a bundle must take
its shots in their order, and the node must fit a tile, where a machine is given: a node that needs more than a tile has
is refused unless one of its parts needs as much.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ...base.place import Place
from .computation import computation
from .errors import MappingError
from .graph import operations
from .machine import MeshDescription
from .mapping import AppliedPrimitive, Excess, Mapped, names
from .shots import Shots, alternated


def chain(mapped: Mapped, a: str, b: str, machine: MeshDescription | None = None) -> Mapped:
    """Return the mapping in which one node runs a, then b. Streams from a to b become local buffers.

    a, b: names of nodes; the name of an instance stands for the node that runs it. machine: whose ports and bytes limit
    the node; None for no limits. Raises `MappingError` for an unknown name, nodes that wait for each other, and a node
    that does not fit a tile."""
    x, y = mapped.group(a), mapped.group(b)
    if x == y:
        raise MappingError("name", f"chain({a}, {b}): {mapped.name(x)} runs both already")
    refuse_chain(mapped, x, y)
    node = mapped.made.chain([*links(mapped, x), *links(mapped, y)])
    made = mapped.joined([(node, (x, y))], AppliedPrimitive("chain", (a, b)))
    _fits(mapped, (x, y), made, made.of[node.shots[0]], machine, f"chain({a}, {b})")
    return made


def links(mapped: Mapped, group: int) -> tuple[Shots, ...]:
    """Return the parts of a chain; they do not depend on the order in which the chain was built. Any other node, and a
    chain that contains the exchange of a collective, is returned as one part. group: the number of the node."""
    node = mapped.groups[group]
    exchanged = not mapped.graph.exchanges.isdisjoint(local.stream for local in node.local)
    return node.parts if node.kind == "chain" and not exchanged else (node,)


def refuse_chain(mapped: Mapped, x: int, y: int) -> None:
    """Raise `MappingError` if one node cannot run node x and then node y, because of the streams between nodes. x, y:
    numbers of nodes."""
    what = f"chain({mapped.name(x)}, {mapped.name(y)})"
    if exchanges(mapped, x, y):
        return
    if (y, x) in mapped.between:
        place = _place(mapped, y, x)
        if (x, y) in mapped.between:
            message = f"{what}: {mapped.name(y)} feeds {mapped.name(x)}, which feeds it"
            cycle = " -> ".join(names(mapped, (x, y, x)))
            notes = (f"the cycle: {cycle}", "one after the other, the first would wait for the second")
            raise MappingError("feedback", message, place, notes)
        message = f"{what}: {mapped.name(y)} feeds {mapped.name(x)}"
        raise MappingError("path", message, place, (f"chain({mapped.name(y)}, {mapped.name(x)}) is the other order",))
    back = path(mapped, [y], {x})
    if back:
        listed = " -> ".join(names(mapped, back))
        if (x, y) in mapped.between or path(mapped, [x], {y}):
            note = f"the cycle: {listed} -> {mapped.name(y)}" if (x, y) in mapped.between else f"the path: {listed}"
            message = f"{what}: {mapped.name(y)} feeds {mapped.name(x)} through others, and the other way round"
            raise MappingError("feedback", message, _place(mapped, *back[:2]), (note,))
        note = f"the path: {listed}; the first would wait for the second"
        raise MappingError("path", f"{what}: a path leads back", _place(mapped, *back[:2]), (note,))
    second = path(mapped, [x], {y})
    if second:
        listed = " -> ".join(names(mapped, second))
        how = "a second path joins them" if (x, y) in mapped.between else "a path joins them"
        fix = f"chain({mapped.name(x)}, {mapped.name(second[1])}) first makes it legal"
        raise MappingError("path", f"{what}: {how}", _place(mapped, *second[:2]), (f"the path: {listed}", fix))


def exchanges(mapped: Mapped, x: int, y: int) -> bool:
    """Return whether one node can run nodes x and y in turn although each waits for the other. This holds if all
    streams between them belong to collectives, no path through other nodes joins them, and both end if the node
    switches to the other one whenever one waits, which it cannot do inside of a loop. x, y: numbers of nodes."""
    back, forth = mapped.between.get((y, x), ()), mapped.between.get((x, y), ())
    if not (back and forth) or not {*back, *forth} <= mapped.graph.exchanges:
        return False
    if path(mapped, [x], {y}) or path(mapped, [y], {x}):
        return False
    return alternated([mapped.groups[k].body for k in (x, y)], {*back, *forth}) is not None


def bundle(
    mapped: Mapped, nodes: Sequence[str], machine: MeshDescription | None = None, separate: bool = False
) -> Mapped:
    """Return the mapping in which one node runs equal nodes in turn, in the given order. Their streams to the same node
    become one.

    nodes: names as for `chain`; the name of a bundle stands for its parts. machine: as for `chain`. separate: whether
    streams whose other end moves the tokens in another order may stay separate; if not, they are refused. Raises
    `MappingError` for an unknown name, fewer than two nodes, nodes that differ or depend on each other, streams as for
    `separate`, and a node that does not fit a tile."""
    groups = list(dict.fromkeys(mapped.group(name) for name in nodes))
    what = f"bundle({', '.join(nodes if len(nodes) < 5 else [*nodes[:3], f'... {len(nodes)} nodes'])})"
    if len(groups) < 2:
        raise MappingError("name", f"{what}: fewer than two nodes")
    parts = refuse_bundle(mapped, groups, what)
    made = mapped.joined(
        [(mapped.made.bundle(parts), groups)], AppliedPrimitive("bundle", tuple(nodes), len(groups) - 1)
    )
    group = made.of[parts[0].shots[0]]
    if not separate:
        _in_order(mapped, made, group, parts, what)
    _fits(mapped, groups, made, group, machine, what)
    return made


def refuse_bundle(mapped: Mapped, groups: Sequence[int], what: str) -> list[Shots]:
    """Return the parts of a new bundle; a bundle among the nodes is replaced by its own parts. groups: the numbers of
    the nodes. what: the beginning of the message. Raises `MappingError` if the nodes differ, or if one of them depends
    on another."""
    parts = _parts([mapped.groups[k] for k in groups])
    for part in parts[1:]:
        if part.kernel != parts[0].kernel:
            raise MappingError("kernel", f"{what}: the nodes differ", *_difference(mapped, parts[0], part))
    found = path(mapped, groups, set(groups))
    if found:
        listed = " -> ".join(names(mapped, found))
        message = f"{what}: {mapped.name(found[-1])} needs what {mapped.name(found[0])} makes"
        notes = (f"the path: {listed}", "the nodes of a bundle are independent; chain runs one after the other")
        raise MappingError("path", message, _place(mapped, *found[:2]), notes)
    return parts


def _parts(groups: Sequence[Shots]) -> list[Shots]:
    """The parts of a bundle of groups: a bundle among them stands for its own parts."""
    out: list[Shots] = []
    for group in groups:
        out += _parts(group.parts) if group.kind == "bundle" else [group]
    return out


def path(mapped: Mapped, starts: Sequence[int], ends: set[int]) -> list[int]:
    """Return a shortest path between nodes, as their numbers, its start and end included; empty if there is none.
    starts: where it may begin. ends: where it may end, at another node than it began. No other node of the path is in
    `starts` or `ends`. If there is one start only, a path of a single edge does not count."""
    direct = len(starts) > 1
    inner = set(starts)
    before: dict[int, int] = {}
    todo = deque(starts)
    while todo:
        k = todo.popleft()
        for n in mapped.successors[k]:
            if n in ends and (direct or k not in inner):
                out = _back(before, k, inner)
                if n != out[0]:
                    return [*out, n]
                found = _into(mapped, n, inner)
                if found:
                    return found
            if n not in before and n not in inner and n not in ends:
                before[n] = k
                todo.append(n)
    return []


def _back(before: dict[int, int], k: int, inner: set[int]) -> list[int]:
    out = [k]
    while out[-1] not in inner:
        out.append(before[out[-1]])
    return out[::-1]


def _into(mapped: Mapped, end: int, inner: set[int]) -> list[int]:
    """A path to `end` from another node of `inner` through none of them: where `end` feeds itself, the search forward
    may have come to the nodes before it from `end` only."""
    after: dict[int, int] = {}
    todo = deque([end])
    while todo:
        k = todo.popleft()
        for n in mapped.predecessors[k]:
            if n in inner and n != end:
                out = [n, k]
                while out[-1] != end:
                    out.append(after[out[-1]])
                return out
            if n not in after and n not in inner:
                after[n] = k
                todo.append(n)
    return []


def _place(mapped: Mapped, a: int, b: int) -> Place:
    return mapped.graph.edges[mapped.between[a, b][0]].place


def _difference(mapped: Mapped, a: Shots, b: Shots) -> tuple[Place | None, tuple[str, ...]]:
    """Where two kernels differ, and how."""
    graph = mapped.graph
    one, two = graph.nodes[a.shots[0]], graph.nodes[b.shots[0]]
    place = two.instance.task.place
    if len(a.shots) != len(b.shots):
        return place, (f"{len(a.shots)} shots against {len(b.shots)}",)
    for put in (False, True):
        which = "writes" if put else "reads"
        types = [[graph.edges[s].type for s, p in node.ends if p == put] for node in (one, two)]
        if types[0] != types[1]:
            listed = [", ".join(map(str, t)) or "nothing" for t in types]
            return place, (f"{one.name} {which} {listed[0]}; {two.name} {which} {listed[1]}",)
    shapes = [[(t.parameter, str(t.type), t.reads, t.writes) for t in node.tiles] for node in (one, two)]
    if shapes[0] != shapes[1]:
        listed = [", ".join(f"{name} {type_}" for name, type_, _, _ in s) or "no tiles" for s in shapes]
        return place, (f"{one.name} moves {listed[0]}; {two.name} moves {listed[1]}",)
    code = [computation(n.instance.task, n.instance.ran) for n in (one, two)]
    if code[0] != code[1]:
        return place, (f"{one.name} and {two.name} run different statements, or loops of different trips",)
    return place, ("they run the same statements, but their puts and gets differ, or what is around them",)


def _in_order(mapped: Mapped, made: Mapped, group: int, parts: Sequence[Shots], what: str) -> None:
    """Refuse a bundle if a common peer moves its tokens in another order."""
    part_of = {shot: k for k, part in enumerate(parts) for shot in part.shots}
    for a, b in made.between:
        if group not in (a, b):
            continue
        for logical, apart in made.shared(a, b):
            of = [part_of[edge.writer if a == group else edge.reader] for edge in (*logical, *apart)]
            if not apart or len(set(of)) < 2:
                continue
            peer = b if a == group else a
            verb = "reads" if a == group else "writes"
            first, second = logical[0], apart[0]
            message = f"{what}: {made.name(peer)} {verb} {first.name} and {second.name} in another order than the shots"
            notes = ["kept apart (separate), they are two streams, each with slots of its own"]
            order = _fitting(mapped, made, peer, parts)
            if order:
                notes.insert(0, f"bundle({', '.join(order)}) is in its order")
            raise MappingError("order", message, second.place, tuple(notes))


def _fitting(mapped: Mapped, made: Mapped, peer: int, parts: Sequence[Shots]) -> list[str]:
    """The instances in the order in which a peer comes to them, if all peers agree with it."""
    first: dict[int, int] = {}
    part_of = {stream: k for k, part in enumerate(parts) for position in part.positions for stream in position}
    for op in operations(made.groups[peer].body):
        if op.stream in part_of:
            first.setdefault(part_of[op.stream], len(first))
    order = sorted(range(len(parts)), key=lambda k: first.get(k, len(parts)))
    groups = list(dict.fromkeys(mapped.of[part.shots[0]] for part in parts))
    turned = mapped.joined([(mapped.made.bundle([parts[k] for k in order]), groups)], AppliedPrimitive("bundle", ()))
    group = turned.of[parts[0].shots[0]]
    if any(apart for pair in turned.between if group in pair for _, apart in turned.shared(*pair)):
        return []
    return [mapped.graph.nodes[parts[k].shots[0]].name for k in order]


# -- what a tile has -------------------------------------------------------------------------------------------------


def _fits(
    mapped: Mapped, parts: Sequence[int], made: Mapped, group: int, machine: MeshDescription | None, what: str
) -> None:
    if machine is None:
        return
    allowed: dict[str, int] = {}
    for k in parts:
        for row in mapped.over(k, machine):
            allowed[row.kind] = max(row.needs, allowed.get(row.kind, 0))
    for row in made.over(group, machine):
        if row.needs > allowed.get(row.kind, row.most):
            raise refusal(made, group, row, what)


def refusal(mapped: Mapped, group: int, row: Excess, what: str, changes: Sequence[str] | None = None) -> MappingError:
    """Return the error for a node that exceeds a limit of a tile. group: the number of the node. row: the limit. what:
    the beginning of the message, such as the primitive that was tried. changes: texts of changes with which the program
    fits; None for the least change with which this node fits."""
    code, kind, needs, most, holders = row
    held = sorted(holders, key=lambda h: -h.count)
    listed = [h.what if h.count == 1 else f"{h.count} {kind}: {h.what}" for h in held[:8]]
    if len(held) > 8:
        listed.append(f"... {len(held)} in all")
    if changes is None:
        changes = [_least_change(mapped, group, kind, needs, most)]
    message = f"{what}: {mapped.name(group)} needs {needs} {kind}, a tile has {most}"
    place = mapped.graph.nodes[mapped.groups[group].shots[0]].instance.task.place
    return MappingError(code, message, place, (*listed, *changes))


def _least_change(mapped: Mapped, group: int, kind: str, needs: int, most: int) -> str:
    """The least change with which a node fits."""
    if kind == "bytes":
        for stream in sorted((s for s in mapped.streams if s.reader == group), key=lambda s: -s.depth):
            size = stream.logical[0].size
            less = -(-(needs - most) // size)
            depth = (stream.depth - less) // stream.packing * stream.packing
            if depth >= stream.packing:
                return f"depth {depth} of {mapped.stream_name(stream)}, now {stream.depth}, would fit"
        return f"tiles with {needs} bytes would fit"
    taken = kind == "input ports"
    for stream in mapped.streams:
        if (stream.reader if taken else stream.writer) == group:
            a, b = stream.writer, stream.reader
            same = [s for s in mapped.streams if (s.writer, s.reader) == (a, b)]
            if needs - len(same) <= most:
                try:
                    refuse_chain(mapped, a, b)
                except MappingError:
                    continue
                return (
                    f"chain({mapped.name(a)}, {mapped.name(b)}) makes {mapped.stream_name(stream)} local, and it fits"
                )
    return f"tiles with {needs} {kind} would fit"
