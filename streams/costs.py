"""The cycles that a task instance takes for its tiles, at the statements that take them: those of its datapath.

What is charged here is what `rsn hls` writes a loop for: a tile that comes or goes over a stream, a part of a tensor
that is read or stored, a kernel, an expression that is kept. A task without rates takes no cycles but those that it
states; one that states cycles takes others only if it states rates as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from math import inf, prod

from ..base.element_types import FLOATS, ElementType
from .datapath import DEPTHS, Datapath, KernelVariant, LoopCycles, TileOperand, Unwritten
from .expressions import Expressions, RegionContext
from .kernels import KERNELS, KernelOperand, Options
from .syntax import nodes as syn
from .tree import Collective, StreamDecl, TaskDecl
from .values import Data, Value


class TileCost(Enum):
    """The kind of work for which a statement takes cycles.

    GOT, PUT: a tile comes, or goes, over a stream. LOADED, STORED: a part of a tensor is read, or a part of a tensor or
    tile is written. COMPUTED: a kernel. KEPT, ASSIGNED: an expression of tiles is computed into a tile; ASSIGNED if a
    variable keeps it. APART: statements beside the loops, where they are no pipeline. FILLED: the last iteration of a
    pipeline runs to its end."""

    GOT = "got"
    LOADED = "loaded"
    COMPUTED = "computed"
    KEPT = "kept"
    ASSIGNED = "assigned"
    STORED = "stored"
    PUT = "put"
    APART = "apart"
    FILLED = "filled"


class CostExpressions(Expressions):
    """Expressions of a task instance, which also count the cycles that they take.

    context, task, name, tid: the region, the task, the name of the instance, and its indices in the grid of the task.
    Attributes: shards: the value of each tensor parameter, by name. datapath: None for a task without rates, which
    takes no cycles here. charges: how often cycles were counted. words: gets and puts of tokens of one word. depth: the
    cycles of expressions of one word. words and depth count the statements of the innermost loop, or of the task
    outside of loops."""

    def __init__(self, context: RegionContext, task: TaskDecl, name: str, tid: tuple[int, ...]) -> None:
        super().__init__(context, name, tid)
        self.task = task
        self.shards: dict[str, Data] = {}
        reading = context.reading
        self.datapath = datapath_of(task, reading.rates, reading.float_add, reading.variants)
        self.charges = self.words = self.depth = 0
        self._sent: syn.ExpressionNode | None = None
        self.coming: ElementType | None = None

    def charge(self, what: TileCost, node: syn.SyntaxNode, taken: int | LoopCycles, scales: bool = True) -> None:
        """Count cycles for the statement of a node, and add them to the open beat. what: the kind of work. taken: an
        int for cycles that no rate changes; `LoopCycles` for loops, parts of which higher rates shorten. scales: False
        for loops that no rate shortens, because they are those of no kernel."""
        cycles, fixed = (taken.total, taken.fixed) if isinstance(taken, LoopCycles) else (taken, taken)
        key = self.task.name, node.place, what.value
        self.context.reading.costs.setdefault(key, set()).add(cycles)
        self.charges += cycles > 0
        self.spend(cycles, node.place, fixed if scales else cycles)

    def _passed(self, cycles: LoopCycles, value: Unwritten | None) -> LoopCycles:
        """Return the cycles of a pass over an expression; note its depth if it has one word, which is no loop."""
        if not cycles.total and value is not None:
            self.depth += value.depth
        return cycles

    def shard_of(self, node: syn.ExpressionNode) -> Data | None:
        """Return the value of the tensor parameter that an expression names, or takes a part of; None if it does
        neither."""
        base = node.base if isinstance(node, syn.Subscript) else node
        held = self.shards.get(base.name) if isinstance(base, syn.Identifier) else None
        return held if isinstance(base, syn.Identifier) and held is not None and self.env[base.name] is held else None

    def loaded(self, value: Value, node: syn.ExpressionNode) -> None:
        """Count the cycles in which a part of a tensor is read, if the expression `node` is such a part. value: of the
        expression. A part that is put on a stream is counted by `puts`."""
        kind = value.type if isinstance(value, Data) else None
        if self.datapath is None or node is self._sent or kind is None or not kind.shape:
            return
        shard = self.shard_of(node)
        if shard is not None and shard.type is not None:
            self.charge(TileCost.LOADED, node, self.datapath.moved(kind, shard.type.shape[-1]))

    def kept(self, value: Value, node: syn.ExpressionNode, what: TileCost = TileCost.KEPT) -> Value:
        """Return a value as it is after it was written into a tile. If it is an expression of tiles, count the cycles
        of the loop that writes it. node: the expression. what: the kind of work."""
        if self.datapath is None or not isinstance(value, Data) or value.unwritten is None:
            return value
        if value.type is not None and value.type.shape:
            cycles = self._passed(self.datapath.elements(value.type, value.unwritten), value.unwritten)
            self.charge(what, node, cycles, value.unwritten.scales)
        return replace(value, unwritten=None)

    def assigned(self, target: str, value: Value, source: syn.ExpressionNode) -> Value:
        """Return a value as a variable keeps it, and count the cycles of the assignment, as `loaded` and `kept` do.
        target: the name of the variable. source: the assigned expression."""
        self.loaded(value, source)
        if isinstance(value, Data) and self._adds_product(target, value, source):
            return replace(value, unwritten=None)
        copied = isinstance(source, syn.Identifier) and self.shard_of(source) is None
        # What a kernel makes is a tile of its own, which takes the place of the variable unless the kernel reads that.
        by_kernel = isinstance(source, syn.Invocation) and source.called in KERNELS
        by_kernel = by_kernel or (isinstance(source, syn.Infix) and source.op == "@")
        copied = copied or (by_kernel and target in source.facts.names)
        if copied and isinstance(value, Data) and value.unwritten is None:
            value = replace(value, unwritten=Unwritten())
        return self.kept(value, source, TileCost.ASSIGNED)

    def _adds_product(self, target: str, value: Data, source: syn.ExpressionNode) -> bool:
        """Whether an assignment adds a product of integers to the variable, `x = i32(x + a @ b)`: each step of the
        product adds to the sums that are there."""
        if value.type is None or value.type.dtype in FLOATS or not isinstance(source, syn.Invocation):
            return False
        argument, of = source.arguments[0] if source.arguments else source, self.env.get(target)
        return (
            isinstance(of, Data)
            and of.type == value.type
            and source.called == value.type.dtype
            and isinstance(argument, syn.Infix)
            and argument.op == "+"
            and isinstance(argument.left, syn.Identifier)
            and argument.left.name == target
            and target not in argument.right.facts.names
            and self.is_product(argument.right)
            and self.datapath is not None
            and "add" not in self.datapath.rates
        )

    def is_product(self, node: syn.ExpressionNode) -> bool:
        """Return whether an expression is a matrix product `a @ b` that no kernel variant computes, so that the task's
        own multiply-adds do."""
        choices = self.context.reading.choices.get((self.task.name, node.place), ())
        return isinstance(node, syn.Infix) and node.op == "@" and all(choice.variant is None for choice in choices)

    def computed(
        self, name: str, values: Sequence[Value], operands: Sequence[KernelOperand], result: KernelOperand,
        at: syn.SyntaxNode, options: Options,
    ) -> Unwritten | None:  # fmt: skip
        """Count the cycles of a call of a kernel. Return what of the call is computed only where its result is read,
        such as a transpose; None for nothing.

        name: of the kernel. values, operands: the arguments of the call, as values and as the kernel sees them. result:
        the result as the kernel gives it. at: the call. options: named arguments, such as axis."""
        path, known = self.datapath, [x.type for x in operands if x.type is not None and x.type.shape]
        kind = result.type or max(known, key=lambda kind: prod(kind.shape), default=None)
        given = operands[0].type if operands else None
        if path is None or kind is None or given is None:
            return None
        rule = KERNELS[name].rule
        if rule in ("rows", "elementwise") and kind.shape and self._varied(name, values, operands, kind, at):
            return None
        match rule:
            case "matmul":
                other = operands[1].type
                if result.type is None or other is None:
                    return None
                if min(len(given.shape), len(other.shape)) < 2:  # a vector is a matrix of one row, or of one column
                    columns = other.shape[-1] if len(other.shape) > 1 else 1
                    kind = ElementType(kind.dtype, (*(given.shape[-2:-1] or (1,)), columns))
                if self._varied(name, values, operands, kind, at):
                    return None
                parts = [v.unwritten for v in values if isinstance(v, Data) and v.unwritten is not None]
                turned = isinstance(values[1], Data) and values[1].unwritten is not None and values[1].unwritten.turned
                before = max((part.depth for part in parts if part.in_place), default=0)
                coming, self.coming = self.coming, None
                cycles = path.product(kind, given.shape[-1], turned, before, coming)
                self.charge(TileCost.COMPUTED, at, cycles)
            case "reduce" if given.shape:
                axis = options.get("axis")
                axes = (axis,) if isinstance(axis, int) else axis if isinstance(axis, tuple) else None
                unwritten = values[0].unwritten if isinstance(values[0], Data) else None
                self.charge(TileCost.COMPUTED, at, path.reduction(name, given, axes, unwritten))
            case "rows" if given.shape:
                self.charge(TileCost.COMPUTED, at, path.rows(name, given))
                factors = ("mul", "add")[: len(operands) - 1]
                return self._expression(factors, (), kind, at) if factors else None
            case "row" if kind.shape:
                return Unwritten(depth=1)
            case "transpose" if kind.shape:
                if 1 in kind.shape and len(kind.shape) == 2:  # elements stay in their order
                    return Unwritten()
                return Unwritten(path.lanes(name), turned=len(kind.shape) == 2)
            case "reshape" if kind.shape:
                return Unwritten()
            case "elementwise" if kind.shape:
                return self._expression((name,), values, kind, at)
        return None

    def _varied(
        self, name: str, values: Sequence[Value], operands: Sequence[KernelOperand], kind: ElementType,
        at: syn.SyntaxNode,
    ) -> bool:  # fmt: skip
        """Take the cycles of the variant of a kernel that fits, and note which one it is, or why none does. Return
        whether one does. kind: of the result."""
        assert self.datapath is not None
        tiles = [self.tile_operand(operand, value) for operand, value in zip(operands, values, strict=True)]
        choice = self.datapath.chosen(name, [tile for tile in tiles if tile is not None], kind)
        if choice is None or None in tiles:
            return False
        self.context.reading.choices.setdefault((self.task.name, at.place), set()).add(choice)
        if choice.variant is None:
            message = f"no variant of {name} fits, so the unit of its rate computes it"
        else:
            taken = f"{choice.variant.name}, {choice.cycles} cycles"
            message = f"{name} is {choice.loops} calls of {taken}"
            self.charge(TileCost.COMPUTED, at, choice.cycles)
            for operand, copy in zip(operands, choice.copies, strict=True):
                if copy is not None:
                    self.copied(operand)
        source, told = self.context.source, (*choice.layouts, *choice.others)
        source.add("variant", message, at.place, *told, warning=True, subject=self.task.name)
        return choice.variant is not None

    def copied(self, operand: KernelOperand) -> None:
        """Called for each operand that is copied to the layout of a kernel variant; does nothing here. The cycles of
        the copy are among those of the variant."""

    def tile_operand(self, operand: KernelOperand, value: Value) -> TileOperand | None:
        """Return an operand of a kernel in the form in which kernel variants are chosen; None if its type is not known.
        value: of the operand."""
        if operand.type is None:
            return None
        unwritten = value.unwritten if isinstance(value, Data) else None
        turned = unwritten is not None and unwritten.turned
        computed = unwritten is not None and not (turned or (unwritten.in_place and not unwritten.depth))
        arrives = unwritten is None and not isinstance(operand.written, str) and self._arrives(operand.written, value)
        return TileOperand(operand.type, turned, computed, operand.text, arrives)

    def _arrives(self, node: syn.SyntaxNode, value: Value) -> bool:
        """Whether an operand is a part of a tensor, or a token, that nothing else reads."""
        if isinstance(node, syn.Invocation):
            method = node.function.name if isinstance(node.function, syn.Attribute) else ""
            return method == "get" and isinstance(value, Data) and bool(value.futures)
        if not isinstance(node, syn.Identifier | syn.Subscript) or self.shard_of(node) is None:
            return False
        indices = node.indices if isinstance(node, syn.Subscript) else ()
        return not any(isinstance(part, syn.Literal) and part.value is None for part in indices)

    def _expression(
        self, names: Sequence[str], values: Sequence[Value], kind: ElementType, at: syn.SyntaxNode
    ) -> Unwritten | None:
        """An expression of kernels on elements. Those with a rate of their own make a pass of their own."""
        assert self.datapath is not None
        parts = [v.unwritten for v in values if isinstance(v, Data) and v.unwritten is not None]
        lanes = min((self.datapath.lanes(name) for name in names), default=inf)
        depth = sum(DEPTHS.get(name, 1) for name in names)
        made = Unwritten(
            min(lanes, *(p.lanes for p in parts), inf),
            depth + max((p.depth for p in parts), default=0),
            in_place=kind.dtype not in FLOATS and {*names} <= {"add", "sub"} and all(p.in_place for p in parts),
        )
        if self.datapath.rates.keys().isdisjoint(names):
            return made
        self.charge(TileCost.COMPUTED, at, self.datapath.elements(kind, made))
        return None

    def apart(self, node: syn.SyntaxNode, begins: int = 0) -> None:
        """Count the cycles that the statements of a loop body, or of a task, take one after another beside their loops,
        where they are no pipeline: those of expressions of one word, and one for each token of one word. node: the loop
        or the task. begins: cycles in which an iteration begins: 1 for a loop, 0 for a task."""
        self._once(TileCost.APART, node, begins + self.words + self.depth)

    def filled(self, node: syn.SyntaxNode) -> None:
        """Count the cycles in which the last iteration of a pipeline runs to its end. node: the loop."""
        self._once(TileCost.FILLED, node, self.depth)

    def _once(self, what: TileCost, node: syn.SyntaxNode, cycles: int) -> None:
        """Charge cycles at a place where instances and iterations may differ. The first one decides, since a machine
        has one time in each place."""
        if self.datapath is not None:
            known = self.context.reading.costs.get((self.task.name, node.place, what.value), set())
            self.charge(what, node, max(known, default=cycles))

    def gets(self, stream: StreamDecl, node: syn.Invocation) -> None:
        """Count the cycles in which a tile comes over a stream. node: the get. Numbers, and tiles of one word, take
        none."""
        if self.datapath is not None and node is not self._sent:
            cycles = self.datapath.got(stream.type) if stream.type.shape else 0
            self.words += not cycles
            if stream.type.shape:
                self.charge(TileCost.GOT, node, cycles)

    def puts(self, stream: StreamDecl, node: syn.Invocation, value: Value) -> None:
        """Count the cycles in which a tile goes over a stream; if the put value is a part of a tensor, it is read from
        memory on the way. node: the put. value: the put value."""
        if self.datapath is None or not stream.type.shape or not isinstance(value, Data):
            self.words += self.datapath is not None
            return
        shard = self.shard_of(node.arguments[0])
        cycles: int | LoopCycles
        if shard is not None and shard.type is not None and shard.type.shape:
            cycles = self.datapath.moved(stream.type, shard.type.shape[-1])
        else:
            cycles = self._passed(self.datapath.put(stream.type, value.unwritten or Unwritten()), value.unwritten)
            self.words += not cycles.total
        self.charge(TileCost.PUT, node, cycles, value.unwritten is not None and value.unwritten.scales)

    def given(self, node: syn.ExpressionNode, stream: StreamDecl) -> Value:
        """Return the value of an expression that is put on a stream. A part of a tensor, or a tile that was just got
        and of which a row is replaced, goes over the stream word by word; only `puts` counts its cycles. node: the
        expression. Raises `Refusal` for an expression that the language does not have."""
        outer, self._sent = self._sent, node if self.shard_of(node) is not None else self._passed_on(node, stream)
        try:
            return self.data(node)
        finally:
            self._sent = outer

    def _passed_on(self, node: syn.ExpressionNode, stream: StreamDecl) -> syn.ExpressionNode | None:
        """Return the get of a tile that goes on to another stream word by word, with a row replaced; None if there is
        none. A tile of one word is got before: its get and its put are states of their own, or parts of a pipeline."""
        if self.datapath is None or not isinstance(node, syn.Invocation) or node.called != "replace_row":
            return None
        if len(node.arguments) != 3 or node.named or any(part.facts.touches for part in node.arguments[1:]):
            return None
        get = node.arguments[0]
        if not isinstance(get, syn.Invocation) or not isinstance(get.function, syn.Attribute):
            return None
        source = self._stream_of(get.function.base) if get.function.name == "get" else None
        if source is None or source.shape or source.type != stream.type or max(source.packing, stream.packing) > 1:
            return None
        return get if source.type.shape and self.datapath.got(source.type) else None

    def stores(self, target: syn.Subscript, kind: ElementType | None, value: Value, source: syn.ExpressionNode) -> None:
        """Count the cycles in which a value is stored into a part of a tensor or of a tile. target: that part. kind:
        its type; None, or a number, takes no cycles. value: of the expression `source`. A tile that comes over a stream
        is stored while it comes, so only the cycles beyond those of its get are counted."""
        path = self.datapath
        if path is None or kind is None or not kind.shape:
            return
        shard = self.shard_of(target)
        unwritten = (value.unwritten if isinstance(value, Data) else None) or Unwritten()
        cycles: int | LoopCycles
        if shard is None or shard.type is None:
            cycles = self._passed(path.elements(kind, unwritten), unwritten)
        else:
            moved = path.moved(kind, shard.type.shape[-1]) + unwritten.depth
            has_come = isinstance(source, syn.Invocation) and isinstance(value, Data) and value.futures
            cycles = max(0, moved - path.got(kind)) if has_come else moved
        self.charge(TileCost.STORED, target, cycles, unwritten.scales)

    def exchanges(self, node: syn.SyntaxNode, made: Collective, others: int, first: bool) -> None:
        """Count the cycles that a collective takes in this instance. node: where it stands. others: the number of other
        instances in the group. first: whether this instance is the first one of its group."""
        if self.datapath is None or not made.arrays[0].type.shape:
            return
        self.charges += 1
        self.spend(exchange_cycles(self.datapath, made, others, first), node.place)


def datapath_of(
    task: TaskDecl, rates: Mapping[str, float], float_add: int, variants: Sequence[KernelVariant]
) -> Datapath | None:
    """Return the datapath whose cycles a task takes; None for a task that takes none. rates: those that the file
    states, as for `Datapath`; a rate that the task states replaces them. A task that states its cycles has only its own
    rates. float_add: cycles of an addition of floats. variants: the kernel variants of the file."""
    own = dict(task.rates)
    if "cycles" in (task.whole or task).body.facts.calls:
        return Datapath(own, float_add) if own else None
    taken = tuple(variant for variant in variants if variant.kernel not in own)
    every = {**rates, **own}
    return Datapath(every, float_add, taken) if every or taken else None


def exchange_cycles(path: Datapath, made: Collective, others: int, first: bool) -> int:
    """Return the cycles that a collective takes in one instance. path: the datapath of the instance. others: the number
    of other instances in the group. first: whether the instance is the first one of its group: in an all-reduce it adds
    up the tiles of all, while each of the others puts one tile and gets one."""
    kind = made.arrays[0].type
    tokens = path.got(kind) + path.put(kind, Unwritten()).total
    if made.what == "allreduce" and not first:
        return tokens
    cycles = others * tokens
    if made.what != "allreduce":
        cycles += path.elements(kind, Unwritten()).total  # an instance copies its own tile
    if made.what == "allgather":
        return cycles + (others + 1) * path.elements(kind, Unwritten()).total
    lanes = path.lanes("add" if made.op == "+" else "maximum")
    return cycles + path.elements(kind, Unwritten(lanes, others)).total
