"""What a task instance holds on its tile, and when it loads and stores: found by reading it statement by statement.

A tile of a tensor, a token and the result of a kernel are held while a statement needs them; a variable from the
statement that assigns it to the last one that reads it. Each takes the bytes that the C++ keeps it in. What goes from a
tensor straight to a stream or to another tensor, or from a stream to a tensor, is not held: it streams through. A load
whose value nothing reads is left out.

The life of a load or a store is from its first to its last access. Accesses of straight statements come one after the
other; a loop, and a branch that data decide, count as one moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ...base.element_types import FLOATS, KEPT, ElementType
from ..costs import TileCost
from ..datapath import Datapath, LoopCycles, Unwritten
from ..elaborate import Elaborator, Exit
from ..expressions import EMPTY, RegionContext, WrittenBody
from ..kernels import KernelOperand, Options
from ..source import Refusal, Source
from ..stores import PathState
from ..syntax import nodes as syn
from ..syntax.control import Grid
from ..tree import Collective, Instance, Region, StreamDecl, bytes_of
from ..values import Data, Static, Value
from .tiles import TensorTile

Transfer = tuple[str, bool]
"""The parameter that is moved, and whether it is stored."""

UNITS = Datapath({"matmul": 1, "elements": 1}, 1)
"""Of tasks without rates: only which tiles are held counts."""

EXACT = frozenset((
    "matmul", "add", "sub", "mul", "scale", "maximum", "minimum", "neg", "abs", "arithmetic",
    "reduce_sum", "reduce_max",
))  # fmt: skip
"""Kernels that lose nothing of integers: these are kept in 64 bits until they are converted."""


def kept_bytes(kind: ElementType, exact: bool = False) -> int:
    """Return the bytes that a tile takes on chip; elements may be kept in a wider type. kind: the type of the tile.
    exact: whether it is the result of a kernel that keeps integers exact."""
    dtype = "i64" if exact and kind.dtype not in FLOATS else KEPT.get(kind.dtype, kind.dtype)
    return bytes_of(replace(kind, dtype=dtype))


@dataclass(frozen=True)
class Footprint:
    """The memory that an instance needs on its node. held: the most bytes of tiles that it holds at a time.
    beside_tokens: the same without the tokens of its streams. moments: in how many moments the instance runs: each
    statement is one, and so is each loop, and each branch that data decide. lives: the first and the last moment of
    each load and store."""

    held: int
    beside_tokens: int
    moments: int
    lives: dict[Transfer, tuple[int, int]]


def footprint(region: Region, instance: Instance) -> Footprint | None:
    """Return the footprint of an instance. None for a task in which a tensor has several names or no type, and for an
    instance that has mistakes."""
    context = region.contexts.get(instance.task.name)
    if context is None or any(name == instance.task.name for name, _ in context.reading.renamed):
        return None
    if any(p.tensor is not None and p.type is None for p in instance.task.parameters):
        return None
    # The reading has its own source and costs: what it finds is known already.
    own = Source(region.source.text, region.source.file, tree=region.source.tree)
    reading = replace(context.reading, source=own, steps=0, timed=False, costs={}, by_data=[])
    held = []
    for counted in (True, False):
        reader = _FootprintReader(replace(context, reading=reading), instance, counted)
        if not reader.finished():
            return None
        _needed(reader.items, frozenset(), reader.sizes)  # finds what is dead
        held.append(_needed(reader.items, frozenset(), _sizes(reader.items))[1])
    lives: dict[Transfer, tuple[int, int]] = {}
    moment = 0
    for item in reader.items:
        for transfer in _transfers((item,)):
            lives[transfer] = lives.get(transfer, (moment, moment))[0], moment
            moment += isinstance(item, _StatementStep)
        moment += isinstance(item, _LoopOrBranch)
    return Footprint(held[0], held[1], moment, lives)


def whole_tiles(tiles: Sequence[TensorTile]) -> Footprint:
    """Return the footprint of an instance of which only the tiles are known. It holds all of them all the time, and has
    one moment. tiles: those that it reads or writes."""
    moved = [(tile, write) for tile in tiles for write in (False, True) if (tile.writes if write else tile.reads)]
    held = sum(kept_bytes(tile.type) for tile in tiles)
    return Footprint(held, held, 1, {(tile.parameter, write): (0, 0) for tile, write in moved})


@dataclass(eq=False)
class _StatementStep:
    """A statement. reads, binds: variables with tiles; bytes of the values that these get. held: bytes, by the place of
    what is held. copies: bytes of operands that are copied to other layouts. transfers: in order, each with the
    variable that takes what is loaded, "" for none. dead: variables whose values nothing reads."""

    reads: set[str] = field(default_factory=set)
    binds: dict[str, int] = field(default_factory=dict)
    held: dict[syn.SyntaxNode, int] = field(default_factory=dict)
    copies: int = 0
    transfers: list[tuple[Transfer, str]] = field(default_factory=list)
    dead: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class _LoopOrBranch:
    """The statements of a loop, or of the arms of a branch. certain: they run at least once."""

    items: list[_Item]
    certain: bool


_Item = _StatementStep | _LoopOrBranch


def _transfers(items: Sequence[_Item]) -> Iterator[Transfer]:
    for item in items:
        if isinstance(item, _LoopOrBranch):
            yield from _transfers(item.items)
        else:
            yield from (transfer for transfer, name in item.transfers if name not in item.dead)


def _needed(items: Sequence[_Item], after: frozenset[str], sizes: dict[str, int]) -> tuple[frozenset[str], int]:
    """Return the variables that are read from some statements on, and the most bytes that these hold. after: those that
    are read behind them."""
    peak = 0
    for item in reversed(items):
        if isinstance(item, _LoopOrBranch):
            before, _ = _needed(item.items, after, sizes)
            before, most = _needed(item.items, after | before, sizes)
            after = before if item.certain else before | after
            peak = max(peak, most)
            continue
        item.dead = frozenset(item.binds.keys() - after)
        live = after | item.reads
        peak = max(peak, sum(item.held.values()) + item.copies + sum(sizes[name] for name in live))
        after = (after - item.binds.keys()) | item.reads
    return after, peak


def _sizes(items: Sequence[_Item]) -> dict[str, int]:
    """The most bytes of each variable, of values that something reads."""
    out: dict[str, int] = {}
    for item in items:
        own = _sizes(item.items) if isinstance(item, _LoopOrBranch) else item.binds
        for name, size in own.items():
            if isinstance(item, _LoopOrBranch) or name not in item.dead:
                out[name] = max(size, out.get(name, 0))
    return out


def _is_get(source: syn.ExpressionNode | None, value: Value) -> bool:
    """Whether an expression is a get alone."""
    return isinstance(source, syn.Invocation) and isinstance(value, Data) and bool(value.futures)


class _FootprintReader(Elaborator):
    """Reads an instance. items: its statements. sizes: bytes of each variable. counted: tokens that are got take
    bytes."""

    def __init__(self, context: RegionContext, instance: Instance, counted: bool) -> None:
        super().__init__(context, instance.task, instance.name, instance.tid)
        self.datapath = self.datapath or UNITS
        self.counted = counted
        self.items: list[_Item] = []
        self.sizes: dict[str, int] = {}
        self._step = _StatementStep()
        self._exact: set[syn.SyntaxNode | str] = set()

    def finished(self) -> bool:
        """Read all statements; return whether there is no mistake."""
        for parameter in self.task.parameters:
            self.env[parameter.name] = self.shards[parameter.name] = self.shard(parameter)
        try:
            self.block(self.task.body.body)
        except (Refusal, RecursionError):
            return False
        return True

    def _hold(self, node: syn.SyntaxNode, kind: ElementType | None) -> None:
        if kind is not None and kind.shape:
            self._step.held[node] = kept_bytes(kind, self._is_exact(node))

    def _is_exact(self, node: object) -> bool:
        """Whether an expression gives what a kernel of `EXACT` has computed, as far as it holds integers."""
        return (node.name if isinstance(node, syn.Identifier) else node) in self._exact

    # -- statements --------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        self._step = _StatementStep()
        self.items.append(self._step)

    @contextmanager
    def _within(self, certain: bool) -> Iterator[None]:
        """Collect what is read as the statements of one loop or branch."""
        outer, self.items = self.items, []
        self._next()
        try:
            yield
        finally:
            outer.append(_LoopOrBranch(self.items, certain))
            self.items = outer
            self._next()

    def _statement(self, statement: syn.StatementNode) -> Exit:
        self._next()
        return super()._statement(statement)

    def _if_statement(self, node: syn.Branching, rest: syn.Block) -> Exit:
        self._next()
        return super()._if_statement(node, rest)

    def _arms(
        self, arms: tuple[syn.Block, syn.Block], tail: syn.Block
    ) -> tuple[list[Exit], list[WrittenBody], tuple[PathState, PathState], PathState]:
        with self._within(certain=False):
            return super()._arms(arms, tail)

    def _trips(
        self,
        node: syn.StatementNode,
        target: syn.ExpressionNode | None,
        values: range | Grid | list[Static],
        body: syn.Block,
    ) -> Exit:
        if isinstance(node, syn.ForLoop | syn.MetaArm) and node.unrolled:
            return super()._trips(node, target, values, body)
        with self._within(certain=bool(values)):
            return super()._trips(node, target, values, body)

    def _rounds(self, node: syn.WhileLoop) -> Exit:
        with self._within(certain=False):
            return super()._rounds(node)

    def _by_data(
        self, node: syn.StatementNode, target: syn.ExpressionNode | None, body: syn.Block, head: WrittenBody = EMPTY
    ) -> Exit:
        with self._within(certain=False):
            return super()._by_data(node, target, body, head)

    # -- values ------------------------------------------------------------------------------------------------------

    def charge(self, what: TileCost, node: syn.SyntaxNode, taken: int | LoopCycles, scales: bool = True) -> None:
        """Take no cycles."""

    def _name(self, node: syn.Identifier) -> Value:
        if node.name in self.sizes:
            self._step.reads.add(node.name)
        return super()._name(node)

    def _bind(self, target: syn.ExpressionNode, value: Value, source: syn.ExpressionNode | None = None) -> None:
        before = len(self._step.transfers)
        super()._bind(target, value, source)
        made = self.env.get(target.name) if isinstance(target, syn.Identifier) else None
        if isinstance(target, syn.Identifier) and isinstance(made, Data) and made.type is not None and made.type.shape:
            moved = self._step.transfers[before:]
            self._step.transfers[before:] = [(transfer, target.name) for transfer, _ in moved]
            exact = self._is_exact(source)
            (self._exact.add if exact else self._exact.discard)(target.name)
            size = kept_bytes(made.type, exact) if self.counted or not _is_get(source, value) else 0
            self._step.binds[target.name] = self.sizes[target.name] = size
            if source is not None:
                self._step.held.pop(source, None)
                if isinstance(source, syn.Invocation) and source.arguments and made.type.dtype not in FLOATS:
                    product = source.arguments[0]
                    if self.is_product(product):  # converted, so its sums are those of the variable
                        self._step.held.pop(product, None)

    def _converted(self, dtype: str, node: syn.ExpressionNode) -> Value:
        """Hold a product of integers with the element type that its sums have."""
        value = super()._converted(dtype, node)
        if dtype not in FLOATS and node in self._step.held and self.is_product(node) and isinstance(value, Data):
            self._exact.discard(node)
            self._hold(node, value.type)
        return value

    def loaded(self, value: Value, node: syn.ExpressionNode) -> None:
        """Note a load. What is put as it is read is not held."""
        shard = self.shard_of(node)
        if shard is not None and isinstance(value, Data):
            self._step.transfers.append(((shard.tensor, False), ""))
            if node is not self._sent:
                self._hold(node, value.type)

    def kept(self, value: Value, node: syn.ExpressionNode, what: TileCost = TileCost.KEPT) -> Value:
        """Hold an expression whose value a kernel takes."""
        if isinstance(value, Data) and value.unwritten is not None:
            self._hold(node, value.type)
        return super().kept(value, node, what)

    def computed(
        self, name: str, values: Sequence[Value], operands: Sequence[KernelOperand], result: KernelOperand,
        at: syn.SyntaxNode, options: Options,
    ) -> Unwritten | None:  # fmt: skip
        """Hold the result of a kernel, unless what reads it computes it."""
        if name in EXACT or any(self._is_exact(x.written) for x in operands):
            self._exact.add(at)
        made = super().computed(name, values, operands, result, at, options)
        if made is None:
            self._hold(at, result.type)
        return made

    def copied(self, operand: KernelOperand) -> None:
        """Hold the copy of an operand."""
        if operand.type is not None:
            self._step.copies += kept_bytes(operand.type, self._is_exact(operand.written))

    def gets(self, stream: StreamDecl, node: syn.Invocation) -> None:
        """Hold a token, unless a product takes it as it comes."""
        if self.counted and node is not self._sent:
            self._hold(node, stream.type)

    def stores(self, target: syn.Subscript, kind: ElementType | None, value: Value, source: syn.ExpressionNode) -> None:
        """Note a store. What comes from a stream or a tensor goes through."""
        shard = self.shard_of(target)
        if shard is None:
            return
        self._step.transfers.append(((shard.tensor, True), ""))
        if _is_get(source, value) or self.shard_of(source) is not None:
            self._step.held.pop(source, None)
        elif isinstance(value, Data) and value.type is None:
            self._hold(target, kind)

    def exchanges(self, node: syn.SyntaxNode, made: Collective, others: int, first: bool) -> None:
        """Hold the tokens of a collective, and its result. An all-gather has the parts of all instances, and puts them
        together; the first instance of a reduce-scatter has the sum, of which it is a part for each, its own and one
        that comes."""
        kind = made.arrays[0].type
        tiles = {"allreduce": 1, "allgather": 2 * (others + 1), "reduce_scatter": others + 2}[made.what]
        if kind.shape:
            self._step.held[node] = tiles * kept_bytes(kind)
