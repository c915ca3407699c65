"""Which tiles of off-chip tensors a task instance reads and writes.

A parameter of a task is bound to a tensor by `args=`; its annotation states the shape of the whole tensor and how it
lies on the grid. The tile of an instance follows from its point of the grid.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ..language import BITS
from ..layouts import parse
from ..tree import ElementType, Instance, Parameter, TaskDecl


@dataclass(frozen=True)
class Tile:
    """A tile of a tensor that an instance reads or writes. point: coordinates of the tile, in tiles, one for each axis.
    type: dtype and shape of the tile."""

    tensor: str
    parameter: str
    point: tuple[int, ...]
    type: ElementType
    reads: bool
    writes: bool

    @cached_property
    def size(self) -> int:
        """Bytes."""
        return bytes_of(self.type)


def bytes_of(type_: ElementType) -> int:
    """Return the bytes of one element; a Boolean takes one byte, a type that is not known 4 bytes a number."""
    return -(-BITS.get(type_.dtype, 32) // 8) * prod(type_.shape)


def _labels(parameter: Parameter, rank: int) -> tuple[int | None, ...]:
    """For each axis of a tensor the axis of the grid that cuts it, None for none."""
    labels = parse(parameter.layout)[0] if parameter.layout is not None else ()
    return labels if len(labels) == rank else (None,) * rank


def tiles(instance: Instance, used: tuple[frozenset[str], frozenset[str]]) -> list[Tile]:
    """Return the tiles of an instance. used: the names of parameters that it reads, and those that it writes."""
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
        found.append(Tile(parameter.tensor.name, parameter.name, point, type_, reads, writes))
    return found


def used_names(task: TaskDecl) -> dict[tuple[int, int], tuple[frozenset[str], frozenset[str]]]:
    """Return for each statement of a task, by (line, column), the names it reads and those whose elements it writes. Of
    a loop or a branch: its head."""
    found = {}
    for statement in ast.walk(task.body):
        if not isinstance(statement, ast.stmt):
            continue
        parts: list[ast.AST] = [statement]
        match statement:
            case ast.If(test=test) | ast.While(test=test):
                parts = [test]
            case ast.For(iter=head, target=target):
                parts = [head, target]
            case ast.With(items=items):
                parts = [item.context_expr for item in items]
            case ast.FunctionDef():
                continue
        nodes = [node for part in parts for node in ast.walk(part)]
        stored = [_base(node) for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)]
        augmented = isinstance(statement, ast.AugAssign)
        writes = frozenset(name.id for name in stored if name is not None)
        reads = frozenset(
            node.id
            for node in nodes
            if isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and (augmented or not any(node is name for name in stored))
        )
        found[statement.lineno, statement.col_offset] = reads, writes
    return found


def _base(node: ast.expr) -> ast.Name | None:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node if isinstance(node, ast.Name) else None
