"""Blocks for sequences of any length up to that of the example: row tiles that each run gives the number of.

A stream program has two sizes for it, of which the second one follows from the first: `length`, the rows that exist,
and `row_tiles`, the tiles that cover them (`covering`). Tiles, units, streams and depths are those of the longest
sequence. So a decoder block with a cache of fixed capacity reads a prompt and decodes a token on one machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ...base.errors import ProgramError, TensorError, UnsupportedError
from ...streams.syntax.builder import NamedNumber
from ..call_arguments import canonical
from .knobs import fit
from .operators import FromHost, Held, OperatorGraph, StreamOperator
from .reading import OperatorBlock
from .sequences import OF_KEYS, ROW_BY_ROW

LENGTH, ROW_TILES = "length", "row_tiles"
"""Names of the sizes in the program."""

ATTENTION = frozenset(("scores", "attend", "scale_columns"))
"""Operators with operands for queries and for keys."""


def of_sequence(graph: OperatorGraph) -> list[StreamOperator]:
    """Return the operators whose rows are those of the sequence, in the order of the graph, tensors off the chip among
    them: the results that are not caches, new rows of caches, and all that has the same rows. Raises `UnsupportedError`
    for several sequences, and for attention over rows of the sequence itself, because its number of keys would not be
    fixed."""
    near: dict[StreamOperator, list[StreamOperator]] = {x: [] for x in graph.operators}
    for x in graph.computed:
        for operand in _same_rows(x):
            near[x].append(operand)
            near[operand].append(x)

    def reached(seeds: Iterable[StreamOperator], until: Collection[StreamOperator] = ()) -> set[StreamOperator]:
        found: set[StreamOperator] = set(until)
        stack = [*seeds]
        while stack:
            x = stack.pop()
            if x not in found:
                found.add(x)
                stack += near[x]
        return found.difference(until)

    new = [x.operands[1] for x in graph.kernels if x.op == "replace"]
    chosen = [x for x in graph.kernels if x.op == "select"]  # of which, and of what follows, the rows are fixed
    results = [x for x in graph.results if x.op != "replace"]
    found = reached([*new, *results, *(x.operands[0] for x in chosen)], reached(chosen))
    made = [x for x in graph.operators if x in found]
    rows = {x.shape[1] for x in made}
    for x in graph.kernels:
        if x.op == "append" or (x.op in ATTENTION and not found.isdisjoint(_of_attention(x, keys=True))):
            raise UnsupportedError(
                f"{x.site or x.name}: its keys are as many as the rows of the sequence; with any length, keep a cache "
                "of fixed capacity (index_copy)"
            )
        sequences = [x.attributes.get("sequences", 1), x.attributes.get("mask", (1,))[0]]
        several = [n[-1] if isinstance(n, tuple) else n for n in sequences]
        if max(several) > 1 or (x in found and "first" in x.attributes):
            raise UnsupportedError(f"{x.site or x.name}: any length is for one sequence, and a mask from the host")
    if len(rows) != 1:
        raise UnsupportedError(f"any length is for one sequence; results have {', '.join(map(str, sorted(rows)))} rows")
    return made


def _same_rows(x: StreamOperator) -> Iterable[StreamOperator]:
    """The operands that have a row for each row of the result."""
    if x.op == "linear":
        named = zip(x.attributes["operand_names"], x.operands, strict=True)
        return [operand for name, operand in named if name in ("x", "scale", "zero")]
    if x.op in ROW_BY_ROW:
        return x.operands
    if x.op == "select":
        return ()
    return _of_attention(x, keys=False) if x.op in ATTENTION else x.operands[:1]


def _of_attention(x: StreamOperator, keys: bool) -> list[StreamOperator]:
    """The operands of an operator of attention that have a row for each key, or those that have one for each query."""
    if x.op == "scores":
        names = x.attributes["operand_names"]
        return [y for name, y in zip(names, x.operands, strict=True) if (name in OF_KEYS) == keys]
    return [y for k, y in enumerate(x.operands) if (k == 1) == keys]


def with_any_length(graph: OperatorGraph, rows: int) -> OperatorGraph:
    """Return the graph for sequences of any length up to the present one. Operators whose rows are those of the
    sequence (`of_sequence`) get `row_tile`, the rows of their tiles, and `existing`, which says which rows exist.
    graph: as `with_whole_tiles` returns it. rows: of a tile, at most, from 1 on; a tile has the largest divisor of an
    operator's rows that is no larger. Raises as `of_sequence`."""
    found = frozenset(of_sequence(graph))
    made: dict[StreamOperator, StreamOperator] = {}
    for x in graph.operators:
        changed = replace(x, operands=tuple(made[operand] for operand in x.operands))
        if x in found:
            heads, all_rows, columns = x.shape
            existing = x.existing or (heads, 1, all_rows, columns)
            changed = replace(changed, row_tile=fit(all_rows, rows), existing=existing)
        made[x] = changed
    return OperatorGraph(tuple(made.values()), tuple(made[x] for x in graph.results))


def row_tiles(x: StreamOperator, rows: int, tile: int) -> int:
    """Return how many tiles cover the rows of an operator. If these are rows of a sequence of any length, the result is
    a number that each run gives (`NamedNumber`). rows: of x, or of its operand if that has as many. tile: rows of a
    tile. Raises `ProgramError` if the operator is on the sequence and its tiles have another number of rows than
    `row_tile`."""
    if not x.row_tile:
        return rows // tile
    if tile != x.row_tile:
        raise ProgramError(
            f"{x.name} has tiles of {tile} rows; with any length, all kernels have tiles of {x.row_tile} rows"
        )
    return NamedNumber(rows // tile, ROW_TILES)


def counterparts(graph: OperatorGraph, other: OperatorGraph) -> dict[int, Held]:
    """Return what each tensor off the chip, and each list of positions, holds when the sequence has another length. The
    keys are the `id` of what it holds in `graph`. other: the graph of the same block, or of the same layer, captured
    with that length. Raises `TensorError` where the two graphs differ in more than the rows of the sequence."""
    if len(graph.operators) != len(other.operators):
        counts = f"{len(other.operators)} operators, not {len(graph.operators)}"
        raise TensorError(f"with this length the block has {counts}; make a program for it")
    found: dict[int, Held] = {}
    index = {x: k for k, x in enumerate(graph.operators)}
    other_index = {x: k for k, x in enumerate(other.operators)}
    sequence = frozenset(of_sequence(graph))
    for x, y in zip(graph.operators, other.operators, strict=True):
        same = (x.name, x.op, x.dtype, x.shape[0], x.shape[2]) == (y.name, y.op, y.dtype, y.shape[0], y.shape[2])
        same &= [index[operand] for operand in x.operands] == [other_index[operand] for operand in y.operands]
        same &= x in sequence or x.shape[1] == y.shape[1]
        same &= _alike(_constants(x), _constants(y))
        same &= isinstance(x.data, FromHost) == isinstance(y.data, FromHost)
        same &= isinstance(x.data, FromHost) or x in sequence or _alike(x.data, y.data)
        if not same:
            raise TensorError(f"with this length the block computes {y.name} otherwise; make a program for it")
        if x.data is not None:
            found[id(x.data)] = y.data
        if x.positions is not None:
            found[id(x.positions)] = y.positions
    return found


def _constants(x: StreamOperator) -> Mapping[str, Any]:
    """The attributes of an operator but for those that tell the rows of a sequence."""
    kept = {name: value for name, value in x.attributes.items() if name != "positions"}
    if x.op == "select":
        return {name: value for name, value in kept.items() if name != "rows"}
    fixed = {"replace": 0, "scale_columns": 1}.get(x.op)  # the operand with the rows of a cache
    return kept if fixed is None else kept | {"rows": kept["rows"][fixed]}


def _alike(a: Any, b: Any) -> bool:
    """Whether attributes are equal: numbers, texts, arrays, and mappings of these."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_alike(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b, equal_nan=True)
    return bool(a == b)


@dataclass(frozen=True)
class BlockOfLength:
    """A block as it is captured with a sequence of one length. block: its interface, its results, and what the host
    computes. length: rows of the sequence; 0 for a program with one length. held: what tensors off the chip hold with
    this length, by the `id` of what they hold with the longest sequence (`counterparts`); a tensor without an entry
    holds the same with both lengths."""

    block: OperatorBlock
    length: int = 0
    held: Mapping[int, Held] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """The values of the sizes of the program, by name."""
        return {LENGTH: self.length} if self.length else {}


class BlocksByLength:
    """The blocks of one module for sequences of several lengths. Each block is captured when the first sequence of its
    length comes, so that the host computes masks and positions as PyTorch does. longest: the block with the longest
    sequence. captured: captures the module with positional and keyword arguments, and returns the block. Raises
    `UnsupportedError` as `of_sequence`."""

    def __init__(self, longest: OperatorBlock, captured: Callable[..., OperatorBlock]) -> None:
        self.longest, self.captured = longest, captured
        self.length = of_sequence(longest.graph)[0].shape[1]
        self._found: dict[object, BlockOfLength] = {}

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BlockOfLength:
        """Return the block for arguments of the module. Raises `TensorError` for a sequence that is longer than the
        longest one, and for arguments with which the block differs in more than the rows of the sequence."""
        try:
            args, kwargs = canonical(self.longest.interface.signature, args, kwargs)
        except TypeError as error:
            raise TensorError(f"the module's arguments: {error}") from error
        flat, structure = pytree.tree_flatten((args, kwargs))
        shapes = [tuple(x.shape) if isinstance(x, torch.Tensor | np.ndarray) else x for x in flat]
        key = str(structure), tuple(map(repr, shapes))
        if key not in self._found:
            self._found[key] = self._of(args, kwargs)
        return self._found[key]

    def _of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BlockOfLength:
        try:
            self.longest.interface.bind(args, kwargs)
        except TensorError as error:
            differs = error
        else:
            return BlockOfLength(self.longest, self.length)
        try:
            block = self.captured(args, kwargs)
        except UnsupportedError:  # the arguments differ in more than their rows
            raise differs from None
        length = of_sequence(block.graph)[0].shape[1]
        if length > self.length:
            raise TensorError(f"a sequence of {length} rows; the program is for 1 to {self.length}")
        held: dict[int, Held] = {}
        for graph, other in zip(_graphs(self.longest), _graphs(block), strict=True):
            held |= counterparts(graph, other)
        results = {node: replace(shown, operator=_bare(shown.operator)) for node, shown in block.results.items()}
        others = [_positions_of(graph) for graph in _graphs(block)[1:]]
        repeated = block.repeated and replace(block.repeated, others=others)
        kept = replace(block, graph=_positions_of(block.graph), results=results, repeated=repeated)
        return BlockOfLength(kept, length, held)


def _graphs(block: OperatorBlock) -> list[OperatorGraph]:
    """The operators of a block; of layers, those of each."""
    return [block.graph, *(block.repeated.others if block.repeated else ())]


def _positions_of(graph: OperatorGraph) -> OperatorGraph:
    """Of a graph what the host reads before a run: not its weights."""
    return OperatorGraph(tuple(_bare(x) for x in graph.operators if x.positions is not None), ())


def _bare(x: StreamOperator) -> StreamOperator:
    """An operator without what it reads and holds."""
    return replace(x, operands=(), data=None)
