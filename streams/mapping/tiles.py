"""Which tiles of off-chip tensors a task instance reads and writes.

A parameter of a task is bound to a tensor by `args=`; its annotation states the shape of the whole tensor and how it
lies on the grid. The tile of an instance follows from its point of the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ...base.element_types import ElementType
from ..layouts import parse
from ..syntax import nodes as syn
from ..tree import Instance, TaskDecl, TaskParameter, bytes_of


@dataclass(frozen=True)
class TensorTile:
    """A tile of a tensor that an instance reads or writes. tensor: the name in the region. parameter: the name in the
    task. point: the coordinates of the tile, counted in tiles, one for each axis. type: of the tile. reads, writes:
    whether the instance reads and writes it."""

    tensor: str
    parameter: str
    point: tuple[int, ...]
    type: ElementType
    reads: bool
    writes: bool

    @cached_property
    def size(self) -> int:
        """Bytes of the tile."""
        return bytes_of(self.type)


def _labels(parameter: TaskParameter, rank: int) -> tuple[int | None, ...]:
    """For each axis of a tensor the axis of the grid that cuts it, None for none."""
    labels = parse(parameter.layout)[0] if parameter.layout is not None else ()
    return labels if len(labels) == rank else (None,) * rank


def tiles(instance: Instance, used: tuple[frozenset[str], frozenset[str]]) -> list[TensorTile]:
    """Return the tiles of tensors that an instance reads or writes, in the order of the task's parameters. used: the
    names of parameters that it reads, and those that it writes.
    """
    found = []
    grid = instance.task.mapping
    for parameter in instance.task.parameters:
        reads, writes = parameter.name in used[0], parameter.name in used[1]
        if parameter.tensor is None or parameter.type is None or not (reads or writes):
            continue
        labels = _labels(parameter, len(parameter.type.shape))
        cuts = [(instance.tid[a], grid[a]) if a is not None and a < len(grid) else (0, 1) for a in labels]
        shape = tuple(size // cut for size, (_, cut) in zip(parameter.type.shape, cuts, strict=True))
        point = tuple(at for at, _ in cuts)
        type_ = ElementType(parameter.type.dtype, shape)
        found.append(TensorTile(parameter.tensor.name, parameter.name, point, type_, reads, writes))
    return found


def used_names(task: TaskDecl) -> dict[tuple[int, int], tuple[frozenset[str], frozenset[str]]]:
    """Return for each statement of a task, by (line, column), the names that it reads, and the names into whose
    elements it stores. Of a loop or a branch only the head counts."""
    found = {}
    for statement in syn.walk(task.body):
        parts = own_parts(statement) if isinstance(statement, syn.StatementNode) else ()
        if not parts:
            continue
        nodes = [node for part in parts for node in syn.walk(part)]
        roots = [node.root for node in nodes if isinstance(node, syn.Subscript) and node.stored]
        writes = frozenset(root.name for root in roots if isinstance(root, syn.Identifier))
        reads = frozenset(
            node.name
            for node in nodes
            if isinstance(node, syn.Identifier) and not node.stored and not any(node is root for root in roots)
        )
        found[statement.place[:2]] = reads, writes
    return found


def own_parts(statement: syn.StatementNode) -> Sequence[syn.SyntaxNode]:
    """Return the nodes that a statement evaluates and assigns by itself: of a loop or a branch, those of its head."""
    match statement:
        case syn.Branching(test=test) | syn.WhileLoop(test=test):
            return (test,)
        case syn.ForLoop(iterable=head, target=target):
            return head, target
        case syn.MetaChain():
            return statement.arms[0].heads
        case syn.FunctionDefinition() | syn.MetaArm():
            return ()
    return (statement,)
