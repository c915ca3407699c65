"""Fusion: which kernels run together on a chip, so that the tensors between them stay there.

A *group* is a set of kernels that run at once. Streams inside a group stay on chip and take memory for their
converters; all other streams go through memory off chip. Two rules bind every fusion, and `Fusion` refuses what breaks
them: no group takes more memory than the limit (C_max), and groups can run one after the other, so the graph of groups
has no cycle.

`printed` is Algorithm 2 of StreamTensor (MICRO'25, section 5.2.2) as it is listed there. Better fusions are made by
`best_fusion.fuse`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...base.errors import BudgetError, ProgramError
from .topology import topological_order


@dataclass(frozen=True)
class FusedStream:
    """A stream between two nodes, with the memory that it takes if it stays on chip.

    source, target: positions of nodes. tensor_bytes: of the tensor that it moves, each element once. converter: index
    of the converter that it goes through; None without one; streams of one source may share a converter (common
    subexpression). fifo_bytes: of its FIFO. FIFO and converter take memory if the stream stays on chip."""

    source: int
    target: int
    tensor_bytes: int
    converter: int | None = None
    fifo_bytes: int = 0


@dataclass(frozen=True)
class FusionSpace:
    """The numbers by which nodes are fused into groups.

    names: of the nodes, in topological order. own_bytes: memory of each node. streams: between the nodes.
    converter_bytes: memory of each converter. Raises `ProgramError` for sizes that do not fit together or are negative,
    streams that lead backwards or to nodes that do not exist, and converters that streams of several sources share."""

    names: tuple[str, ...]
    own_bytes: tuple[int, ...]
    streams: tuple[FusedStream, ...]
    converter_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.own_bytes) != len(self.names):
            raise ProgramError(f"{len(self.names)} nodes have {len(self.own_bytes)} sizes of memory; give one for each")
        for stream in self.streams:
            if not (0 <= stream.source < len(self.names) and 0 <= stream.target < len(self.names)):
                raise ProgramError(f"a stream leads from node {stream.source} to {stream.target} of {len(self.names)}")
        topological_order(self.names, [(self.names[s.source], self.names[s.target]) for s in self.streams])
        sources: dict[int, int] = {}
        for stream in self.streams:
            source, target = self.names[stream.source], self.names[stream.target]
            if stream.source >= stream.target:
                raise ProgramError(f"{target} stands before {source}, which it reads; give nodes in topological order")
            if min(stream.tensor_bytes, stream.fifo_bytes) < 0:
                raise ProgramError(f"stream {source} -> {target} has a negative number of bytes")
            if stream.converter is None:
                continue
            if not 0 <= stream.converter < len(self.converter_bytes):
                raise ProgramError(f"stream {source} -> {target}: there is no converter {stream.converter}")
            if sources.setdefault(stream.converter, stream.source) != stream.source:
                raise ProgramError(f"stream {source} -> {target} shares a converter with a stream of another source")
        if min((*self.own_bytes, *self.converter_bytes), default=0) < 0:
            raise ProgramError("a node or a converter has a negative number of bytes")

    @classmethod
    def of_numbers(
        cls,
        names: Sequence[str],
        costs: Sequence[tuple[str, str, int]],
        own_bytes: Sequence[int] | None = None,
        tensor_bytes: Sequence[int] | None = None,
    ) -> FusionSpace:
        """Build a space from numbers: names of nodes in topological order, and costs as (source, target, bytes of the
        converter).

        own_bytes: of each node, 0 if not given. tensor_bytes: of each stream, in the order of costs, 1 if not given, so
        that the bytes kept on chip count streams. Raises `ProgramError` for a name that no node has, for bytes of
        another number of streams, and as the class.
        """
        position = {name: k for k, name in enumerate(names)}
        for source, target, _ in costs:
            for name in (source, target):
                if name not in position:
                    raise ProgramError(f"stream {source} -> {target}: no node has the name {name}")
        each = (1,) * len(costs) if tensor_bytes is None else tensor_bytes
        if len(each) != len(costs):
            raise ProgramError(f"{len(costs)} streams, and the bytes of {len(each)} tensors; give one for each stream")
        streams = tuple(
            FusedStream(position[source], position[target], size, k)
            for k, ((source, target, _), size) in enumerate(zip(costs, each, strict=True))
        )
        own = tuple(own_bytes) if own_bytes is not None else (0,) * len(names)
        return cls(tuple(names), own, streams, tuple(cost for _, _, cost in costs))

    @cached_property
    def into(self) -> tuple[tuple[FusedStream, ...], ...]:
        """The streams that each node reads, by the position of the node."""
        found: list[list[FusedStream]] = [[] for _ in self.names]
        for stream in self.streams:
            found[stream.target].append(stream)
        return tuple(map(tuple, found))

    @cached_property
    def tensor_bytes(self) -> int:
        """Bytes of the tensors of all streams together."""
        return sum(stream.tensor_bytes for stream in self.streams)

    def check_budget(self, limit: int) -> None:
        """Raise `BudgetError`, which names the node, if a node alone takes more than `limit` bytes."""
        if limit < 0:
            raise BudgetError(f"the budget is {limit} bytes; the least is 0", "the chip", 0, limit)
        for name, own in zip(self.names, self.own_bytes, strict=True):
            if own > limit:
                raise BudgetError(
                    f"{name} alone takes {own:,} bytes on chip, the budget is {limit:,} bytes; choose smaller tiles or "
                    f"less unrolling for {name}, or a budget of {own:,} bytes or more",
                    name,
                    own,
                    limit,
                )

    def groups_of(self, group: Sequence[int]) -> dict[int, list[int]]:
        """Return the positions of the nodes of each group, by the group's number. group: the number of the group of
        each node.
        """
        found: dict[int, list[int]] = {}
        for node, number in enumerate(group):
            found.setdefault(number, []).append(node)
        return found

    def bytes_of(self, nodes: Sequence[int]) -> int:
        """Return the bytes on chip that a group of these nodes, given by their positions, takes."""
        inside = set(nodes)
        converters: set[int] = set()
        total = sum(self.own_bytes[node] for node in inside)
        for node in inside:
            for stream in self.into[node]:
                if stream.source in inside:
                    total += stream.fifo_bytes
                    if stream.converter is not None:
                        converters.add(stream.converter)
        return total + sum(self.converter_bytes[k] for k in converters)

    def kept_bytes(self, group: Sequence[int]) -> int:
        """Return the bytes of the tensors that stay on chip. group: the number of the group of each node."""
        return sum(s.tensor_bytes for s in self.streams if group[s.source] == group[s.target])

    def quotient_order(self, group: Sequence[int]) -> list[int]:
        """Return the numbers of the groups in an order in which each comes after all groups that it reads from; where
        several could be next, the one with the first node is. group: the number of the group of each node.

        Raises `CycleError`, which names the groups of a cycle by their nodes."""
        members = self.groups_of(group)
        title = {number: self.title(nodes) for number, nodes in members.items()}
        number_of = {name: number for number, name in title.items()}
        links = {(title[group[s.source]], title[group[s.target]]) for s in self.streams}
        return [
            number_of[name] for name in topological_order(list(title.values()), [(a, b) for a, b in links if a != b])
        ]

    def title(self, nodes: Sequence[int]) -> str:
        """Return the names of a group's nodes as text, such as {ln q k}. nodes: their positions."""
        return "{" + " ".join(self.names[node] for node in nodes) + "}"


@dataclass(frozen=True)
class Fusion:
    """A fusion: the nodes of a space in groups.

    group: the number of the group of each node, from 1, in the order in which the groups run. limit: the most memory of
    a group in bytes (C_max). bound: bytes that no fusion under this limit is known to exceed on chip. method: how it
    was found: "exact", "windows" or "printed" (the functions `exact`, `fuse` and `printed`). Raises `BudgetError` for a
    group over the limit, `CycleError` for groups that wait for each other."""

    space: FusionSpace
    group: tuple[int, ...]
    limit: int
    bound: int
    method: str

    def __post_init__(self) -> None:
        for nodes in self.space.groups_of(self.group).values():
            taken = self.space.bytes_of(nodes)
            if taken > self.limit:
                title = self.space.title(nodes)
                raise BudgetError(
                    f"group {title} takes {taken:,} bytes on chip, the budget is {self.limit:,}; fuse fewer nodes",
                    title,
                    taken,
                    self.limit,
                )
        self.space.quotient_order(self.group)

    @classmethod
    def ordered(cls, space: FusionSpace, group: Sequence[int], limit: int, bound: int, method: str) -> Fusion:
        """Return a fusion of groups with any numbers; they are numbered again, in the order in which they run. group:
        the number of the group of each node. limit: the most memory of a group in bytes. bound, method: as for the
        class, and so are the errors."""
        number = {old: k for k, old in enumerate(space.quotient_order(group), 1)}
        return cls(space, tuple(number[old] for old in group), limit, bound, method)

    def resized(self, space: FusionSpace) -> Fusion:
        """Return the same groups in a space with other sizes, for example after the depths of FIFOs were found. Its
        bound is the bytes of all tensors, as if all could stay on chip. Raises `BudgetError` if a group no longer
        fits."""
        return replace(self, space=space, bound=space.tensor_bytes)

    @cached_property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The names of the nodes of each group, group 1 first."""
        members = self.space.groups_of(self.group)
        return tuple(tuple(self.space.names[node] for node in members[number]) for number in sorted(members))

    @cached_property
    def bytes(self) -> tuple[int, ...]:
        """Bytes on chip that each group takes, group 1 first (C)."""
        members = self.space.groups_of(self.group)
        return tuple(self.space.bytes_of(members[number]) for number in sorted(members))

    @cached_property
    def off_chip(self) -> tuple[FusedStream, ...]:
        """The streams between groups, whose tensors go through memory off the chip."""
        return tuple(s for s in self.space.streams if self.group[s.source] != self.group[s.target])

    @cached_property
    def kept_bytes(self) -> int:
        """Bytes of the tensors that stay on chip."""
        return self.space.kept_bytes(self.group)

    @property
    def off_chip_bytes(self) -> int:
        """Bytes of the tensors that leave the chip. Each stream counts once, though its tensor is both written and
        read."""
        return self.space.tensor_bytes - self.kept_bytes

    @property
    def gap_bytes(self) -> int:
        """How many more bytes a better fusion could keep on chip at most; 0 if this one is proved to be the best."""
        return self.bound - self.kept_bytes

    def __str__(self) -> str:
        rows = [" ".join(names) for names in self.groups]
        width = max(map(len, rows), default=0)
        return "\n".join(
            f"{k}  {row:{width}}  {size:>12,} B" for k, (row, size) in enumerate(zip(rows, self.bytes, strict=True), 1)
        )


def algorithm_2(space: FusionSpace, limit: int) -> tuple[list[set[int]], list[int], Mapping[int, int]]:
    """Run Algorithm 2 as it is listed (StreamTensor, section 5.2.2), and return its F, C and M: groups of nodes, given
    by their positions; the bytes of each group; the number of the group of each node.

    Each node, in topological order, joins the group of its predecessors with the greatest number ("nearest"), if there
    is one and it stays within the limit; else it begins a group. Index 0 of F stays empty. Beyond the listing: a node's
    own memory counts, and a converter that streams share counts once; both change nothing for costs of streams alone.
    Of several streams between two nodes the listing takes the first (`edges[p, n, 0]`), so that a group could take more
    than the limit; here all count. Raises `BudgetError` if a node alone takes more than `limit` bytes.
    """
    space.check_budget(limit)
    groups: list[set[int]] = [set()]
    costs = [0]
    group_of: dict[int, int] = {}
    for node in range(len(space.names)):
        candidates: dict[int, int] = {}
        shared: dict[int, set[int]] = {}
        for stream in space.into[node]:
            number = group_of[stream.source]
            cost = stream.fifo_bytes
            if stream.converter is not None:
                used = shared.setdefault(number, _converters(space, groups[number]))
                cost += space.converter_bytes[stream.converter] * (stream.converter not in used)
                used.add(stream.converter)
            candidates[number] = candidates.get(number, 0) + cost
        nearest = max(candidates, default=len(groups))
        cost = candidates.get(nearest, 0) + space.own_bytes[node]
        if nearest == len(groups) or cost + costs[nearest] > limit:
            groups.append({node})
            costs.append(space.own_bytes[node])
            group_of[node] = len(groups) - 1
        else:
            groups[nearest].add(node)
            costs[nearest] += cost
            group_of[node] = nearest
    return groups, costs, group_of


def _converters(space: FusionSpace, nodes: set[int]) -> set[int]:
    """The converters of streams inside a group."""
    inside = (stream for node in nodes for stream in space.into[node] if stream.source in nodes)
    return {stream.converter for stream in inside if stream.converter is not None}


def printed(space: FusionSpace, limit: int) -> Fusion:
    """Return the fusion of Algorithm 2 as it is listed (StreamTensor, section 5.2.2). limit: C_max, the most memory of
    a group, in bytes. The bound of the result is the bytes of all tensors, as if all could stay on chip. Raises
    `BudgetError` as `algorithm_2`, and as `Fusion`.
    """
    _, _, group_of = algorithm_2(space, limit)
    group = [group_of[node] for node in range(len(space.names))]
    return Fusion(space, tuple(group), limit, space.tensor_bytes, "printed")
