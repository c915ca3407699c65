"""Which tiles of off-chip tensors a task instance reads and writes.

A parameter of a task is bound to a tensor by `args=`; its annotation states the shape of the whole tensor and how it
lies on the grid. The tile of an instance follows from its point of the grid.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from math import prod

from ..language import BITS
from ..tree import ElementType, Instance, TaskDecl

LABEL = re.compile(r"R|S(\d)")


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

    @property
    def size(self) -> int:
        """Bytes."""
        return bytes_of(self.type)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a task. labels: for each axis of the tensor the axis of the grid that cuts it, None for none."""

    name: str
    tensor: str
    type: ElementType
    labels: tuple[int | None, ...]


def bytes_of(type_: ElementType) -> int:
    """Return the bytes of one element; a Boolean takes one byte, a type that is not known 4 bytes a number."""
    return -(-BITS.get(type_.dtype, 32) // 8) * prod(type_.shape)


def parameters(task: TaskDecl) -> tuple[Parameter, ...]:
    """Return those parameters of a task that state a type with sizes in numbers."""
    decorator = next(d for d in task.body.decorator_list if isinstance(d, ast.Call))
    listed = next((k.value for k in decorator.keywords if k.arg == "args"), None)
    tensors = listed.elts if isinstance(listed, ast.List | ast.Tuple) else []
    found = []
    for argument, tensor in zip(task.body.args.args, tensors, strict=False):
        type_, layout = _annotation(argument.annotation)
        if type_ is not None:
            labels = _labels(layout, len(type_.shape))
            found.append(Parameter(argument.arg, ast.unparse(tensor), type_, labels))
    return tuple(found)


def _annotation(node: ast.expr | None) -> tuple[ElementType | None, str]:
    """Read `f32[64, 64]`, `f32[64, 64] @ Layout("S0R")`, `Annotated[f32[64, 64], Layout("S0R")]`."""
    layout = ""
    match node:
        case ast.BinOp(left=left, op=ast.MatMult(), right=right):
            node, layout = left, _text(right)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[inner, *rest])):
            node, layout = inner, next(filter(None, map(_text, rest)), "")
    match node:
        case ast.Name(id=name) if name in BITS:
            return ElementType(name), layout
        case ast.Subscript(value=ast.Name(id=name), slice=index) if name in BITS:
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            sizes = [_size(part) for part in parts]
            if None not in sizes:
                return ElementType(name, tuple(size for size in sizes if size is not None)), layout
    return None, layout


def _text(node: ast.expr) -> str:
    match node:
        case ast.Call(func=ast.Name(id="Layout"), args=[ast.Constant(value=str(text))]):
            return text
    return ""


def _size(node: ast.expr) -> int | None:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _size(left), _size(right)
            if a is None or b is None:
                return None
            if isinstance(op, ast.Mult):
                return a * b
            if isinstance(op, ast.Add):
                return a + b
            if isinstance(op, ast.Sub):
                return a - b
            if isinstance(op, ast.FloorDiv) and b:
                return a // b
    return None


def _labels(layout: str, rank: int) -> tuple[int | None, ...]:
    labels = tuple(None if m[1] is None else int(m[1]) for m in LABEL.finditer(layout))
    return labels if len(labels) == rank else (None,) * rank


def tiles(instance: Instance, bound: tuple[Parameter, ...], used: tuple[frozenset[str], frozenset[str]]) -> list[Tile]:
    """Return the tiles of an instance. used: the names of parameters that it reads, and those that it writes."""
    found = []
    for parameter in bound:
        reads, writes = parameter.name in used[0], parameter.name in used[1]
        if reads or writes:
            grid = instance.task.mapping
            cuts = [(instance.tid[a], grid[a]) if a is not None and a < len(grid) else (0, 1) for a in parameter.labels]
            shape = tuple(size // cut for size, (_, cut) in zip(parameter.type.shape, cuts, strict=True))
            point = tuple(at for at, _ in cuts)
            type_ = ElementType(parameter.type.dtype, shape)
            found.append(Tile(parameter.tensor, parameter.name, point, type_, reads, writes))
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
