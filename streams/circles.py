"""Which streams can take part in a cycle of waits, and the program without the others.

An instance that waits on a stream waits for the instance at its other end. So a cycle of waits is a circle in the graph
of instances and streams, whichever way the streams go. A stream on no circle, a bridge, is in no cycle of waits; where
puts and gets are equal, an instance that waits for ever waits on a cycle in the end. The instances on circles run alike
up to such a cycle if bridges never make them wait. So bridges may be left out to find it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from .tree import Beat, Body, Choice, FixedLoop, Node, Nodes, Op


def bridges(ends: Mapping[int, tuple[int, int]]) -> set[int]:
    """Return the streams that are on no circle. ends: stream -> its two instances."""
    links: dict[int, list[tuple[int, int]]] = {}
    for stream, (a, b) in ends.items():
        links.setdefault(a, []).append((b, stream))
        links.setdefault(b, []).append((a, stream))
    found: set[int] = set()
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    for root in links:
        if root in number:
            continue
        number[root] = lowest[root] = len(number)
        path = [(root, -1, iter(links[root]))]
        while path:
            node, arrived, rest = path[-1]
            for other, stream in rest:
                if stream == arrived:
                    continue
                if other in number:
                    lowest[node] = min(lowest[node], number[other])
                    continue
                number[other] = lowest[other] = len(number)
                path.append((other, stream, iter(links[other])))
                break
            else:
                path.pop()
                if path:
                    above = path[-1][0]
                    lowest[above] = min(lowest[above], lowest[node])
                    if lowest[node] > number[above]:
                        found.add(arrived)
    return found


def without(bodies: Sequence[Body], streams: Container[int], nodes: Nodes) -> list[Body]:
    """Return bodies without the operations on some streams."""
    done: dict[Node, Body] = {}

    def left(node: Node) -> Body:
        known = done.get(node)
        if known is None:
            if all(stream not in streams for stream, _, _ in node.needs):
                known = (node,)
            elif isinstance(node, FixedLoop):
                known = nodes.repeat(node.times, below(node.body))
            elif isinstance(node, Choice):
                known = nodes.choice([below(arm) for arm in node.arms], node.place)
            elif isinstance(node, Beat):
                ops = tuple(op for op in node.ops if op.stream not in streams)
                known = (nodes.beat(ops, node.cycles, node.place),) if ops else ()
            else:
                assert isinstance(node, Op)
                known = ()
            done[node] = known
        return known

    def below(body: Body) -> Body:
        return tuple(part for node in body for part in left(node))

    return [below(body) for body in bodies]
