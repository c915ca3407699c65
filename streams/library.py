"""Calls of library kernels and of collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from ..base.element_types import BITS, FLOATS, SCALARS, ElementType
from ..base.place import Place
from . import kernel_types, layouts
from .costs import TileCost
from .datapath import Unwritten, conversion_depth
from .expressions import RegionContext, Taken
from .kernel_types import CollectiveStep
from .kernels import ALIASES, KERNELS, KernelOperand
from .layouts import LOCAL
from .source import Refusal
from .syntax import nodes as syn
from .syntax.printer import short
from .tiles import TileExpressions
from .tree import Collective, TaskDecl, peers
from .values import FLOAT, Data, Static, Value, accepts, element_type, is_whole, positive, type_of

REDUCTIONS = {"+": "+", "add": "+", "sum": "+", "max": "max", "maximum": "max"}
"""Operators of allreduce, in each of their spellings."""

METHODS = {"max": "reduce_max", "reshape": "reshape", "sum": "reduce_sum", "transpose": "transpose"}
"""Methods of tiles that are kernels."""

FILLED: dict[str, int | None] = {"full": None, "ones": 1, "zeros": 0}
"""Functions of NumPy that make arrays of one number: the number, None for one that the program gives."""

DTYPES = {facts.numpy: name for name, facts in SCALARS.items() if facts.numpy}
"""Names of element types in NumPy."""

MODULES = ("np", "numpy")
"""Names under which a program imports NumPy."""


class KernelExpressions(TileExpressions):
    """Reads expressions of a task instance, with calls of kernels and collectives. context, task, name, tid: as for
    `CostExpressions`. The attribute `exchanging` has the method that reads a collective, by the name of the
    collective."""

    def __init__(self, context: RegionContext, task: TaskDecl, name: str, tid: tuple[int, ...]) -> None:
        super().__init__(context, task, name, tid)
        self.exchanging: Mapping[str, Callable[[syn.Invocation, Sequence[syn.ExpressionNode]], Value]] = {
            "allgather": self._allgather,
            "allreduce": self._allreduce,
            "reduce_scatter": self._reduce_scatter,
        }

    # -- calls -------------------------------------------------------------------------------------------------------

    def _call(self, node: syn.Invocation) -> Value:
        match node.function:
            case syn.Attribute(base=syn.Identifier(name=module), name=name) if self._is_module(module):
                if name in ALIASES:
                    return self._library(ALIASES[name], node, node.arguments)
                if name in FILLED and node.arguments:
                    return self._array(node, FILLED[name])
            case syn.Attribute(base=base, name=name) if self._is_value(base):
                if name in self.exchanging:
                    return self.exchanging[name](node, [base, *node.arguments])
                if name in METHODS:
                    return self._library(METHODS[name], node, [base, *node.arguments])
                if name == "copy" and not node.arguments:
                    value = self.taken(base)
                    return replace(value, tensor="") if isinstance(value, Data) else value
            case syn.Identifier(name=name) if not self._shadowed(name):
                if name in KERNELS and name != "arithmetic":
                    return self._library(name, node, node.arguments)
                if name in self.exchanging:
                    return self.exchanging[name](node, node.arguments)
                if name == "concat":
                    return self._concat(node, node.arguments)
                if name == "tile":
                    return self._tile(node)
                if name in ("zeros", "full"):
                    return self._filled(node, name)
                if name in ("local", "drop") and len(node.arguments) == 1 and not node.named:
                    value = self.taken(node.arguments[0])
                    if name == "drop":
                        self.read(value, None, Taken.DROPPED)
                    else:
                        self.by_layout = True
                    return Data(type_of(value)) if name == "local" else Data()
                if name in BITS and len(node.arguments) == 1 and not node.named:
                    return self._converted(name, node.arguments[0])
        return super()._call(node)

    def _converted(self, dtype: str, node: syn.ExpressionNode) -> Value:
        """`f32(x)`: a complete value with another element type."""
        value = self.data(node.value if isinstance(node, syn.Starred) else node)
        kind = type_of(value)
        shape = kind.shape if kind is not None else ()
        unwritten = None
        if self.datapath is not None and kind is not None and shape and isinstance(value, Data):
            integers = {kind.dtype, dtype}.isdisjoint(FLOATS)
            if integers and value.unwritten is None and self.is_product(node):  # summed as such integers
                return Data(ElementType(dtype, shape), dist=value.dist)
            in_place = integers and (value.unwritten is None or value.unwritten.in_place)
            before = value.unwritten or Unwritten()
            depth = before.depth + conversion_depth(kind.dtype, dtype)
            unwritten = replace(before, depth=depth, turned=False, in_place=in_place)
        return Data(ElementType(dtype, shape), dist=self.operand(node, value).dist, unwritten=unwritten)

    def _shadowed(self, name: str) -> bool:
        return any(name in names for names in (self.env, self.context.functions, self.context.tasks)) or (
            name in self.context.constants
        )

    def _is_value(self, node: syn.ExpressionNode) -> bool:
        return self._stream_of(node) is None and (not isinstance(node, syn.Identifier) or node.name in self.env)

    def _is_module(self, name: str) -> bool:
        return name in MODULES and name not in self.env and isinstance(self.context.constants.get(name), Data)

    def _library(self, name: str, node: syn.Invocation, arguments: Sequence[syn.ExpressionNode]) -> Value:
        """A kernel of the library by name."""
        if name == "concat":
            return self._concat(node, arguments)
        kernel = KERNELS[name]
        count = len(kernel.operands)
        nodes, rest = list(arguments[:count]), list(arguments[count:])
        options: dict[str, object] = {}
        if name in ("transpose", "reshape") and len(rest) > 1:
            rest = [syn.Collection(node.place, "Tuple", tuple(rest))]
        named = node.keywords
        for operand in kernel.operands[len(nodes) :]:
            if operand in named:
                nodes.append(named.pop(operand))
        for option, value in zip(kernel.options, rest, strict=False):
            options[option] = self._known(value, name)
        for option in kernel.options:
            if option in named and option not in options:
                options[option] = self._known(named.pop(option), name)
        starred = any(isinstance(argument, syn.Starred) for argument in arguments)
        if named or starred or len(rest) > len(kernel.options) or len(nodes) < count - kernel.optional:
            takes = ", ".join([*kernel.operands, *kernel.options])
            self.fail(node, f"{name} takes ({takes})")
        return self.kernel(name, nodes, node, options)

    def _known(self, node: syn.ExpressionNode, name: str) -> object:
        value = self.data(node)
        if not isinstance(value, Static):
            self.fail(node, f"{name}: {short(node)} is not known before the run")
        return value.value

    def _concat(self, node: syn.Invocation, arguments: Sequence[syn.ExpressionNode]) -> Value:
        parts = list(arguments)
        axis: object = 0
        if parts and syn.is_listed(parts[0]):
            if len(parts) == 2:
                axis = self._known(parts[1], "concat")
            parts = list(parts[0].items) if len(parts) <= 2 else []
        named = node.keywords
        if "axis" in named:
            axis = self._known(named.pop("axis"), "concat")
        if not parts or named or any(isinstance(part, syn.Starred) for part in parts):
            self.fail(node, "concat takes (x, y, ..., axis=0)")
        operands = [self.operand(part, self.kept(self.taken(part), part)) for part in parts]
        if self.datapath is not None:
            shapes = [x.type for x in operands if x.type is not None and x.type.shape]
            cycles = sum(self.datapath.elements(kind, Unwritten()).total for kind in shapes)
            self.charge(TileCost.COMPUTED, node, cycles)
        try:
            result = kernel_types.concat(operands, axis, self.mesh)
        except Refusal as r:
            self.report(r, node)
            return Data()
        return Data(result.type, dist=result.dist)

    def _tile(self, node: syn.Invocation) -> Value:
        if not node.arguments or node.named:
            self.fail(node, "tile takes an element type and sizes: tile(f32, 4, 4)")
        base = self._element(node.arguments[0])
        return Data(ElementType(base.dtype, base.shape + tuple(positive(a, self.eval) for a in node.arguments[1:])))

    def _element(self, node: syn.ExpressionNode) -> ElementType:
        kind = element_type(node, self.eval)
        self.stated(node, kind)
        return kind

    def _filled(self, node: syn.Invocation, name: str) -> Value:
        """`zeros(T, shape...)` and `full(T, value, shape...)`: the same number everywhere."""
        first = 1 if name == "zeros" else 2
        sizes = node.arguments[first:]
        if len(node.arguments) < first or node.named or any(isinstance(a, syn.Starred) for a in node.arguments):
            self.fail(node, f"{name} takes {'(T, shape...)' if first == 1 else '(T, value, shape...)'}")
        base = self._element(node.arguments[0])
        if len(sizes) == 1 and syn.is_listed(sizes[0]):
            sizes = sizes[0].items
        shape = tuple(positive(size, self.eval) for size in sizes)
        number: Value = Static(0) if first == 1 else self.data(node.arguments[1])
        if not accepts(ElementType(base.dtype), type_of(number)):
            what = f"{name} of {base.dtype} with {type_of(number)}"
            self.report(Refusal("type", what, None), node.arguments[1])
        dist = layouts.constant(0) if first == 1 else self.operand(node.arguments[1], number).dist
        unwritten = Unwritten() if self.datapath is not None else None
        kind = ElementType(base.dtype, base.shape + shape)
        return Data(kind, dist=dist if dist.uniform else LOCAL, unwritten=unwritten)

    def _array(self, node: syn.Invocation, number: int | None) -> Value:
        """`np.zeros(shape, dtype)`, `np.ones`, `np.full(shape, value, dtype)`. A dtype that is not stated
        fits any."""
        shape, *rest = (self.data(argument) for argument in node.arguments)
        position = 2 if number is None else 1
        stated = node.keywords.get("dtype")
        if stated is None and len(node.arguments) > position:
            stated = node.arguments[position]
        for argument in node.named:
            self.data(argument.value)
        name = (
            stated.name
            if isinstance(stated, syn.Attribute)
            else stated.name
            if isinstance(stated, syn.Identifier)
            else ""
        )
        sizes = shape.value if isinstance(shape, Static) else None
        sizes = (sizes,) if is_whole(sizes) else sizes
        dtype = DTYPES.get(name, name if name in BITS else None)
        known = dtype and isinstance(sizes, tuple) and all(is_whole(size) and size > 0 for size in sizes)
        kind = ElementType(dtype, sizes) if dtype and sizes and known else None
        dist = layouts.constant(number)
        if number is None:
            dist = self.operand(node.arguments[1], rest[0]).dist if rest else LOCAL
        return Data(kind, dist=dist if dist.uniform else LOCAL)

    # -- collectives -------------------------------------------------------------------------------------------------

    def _allreduce(self, node: syn.Invocation, arguments: Sequence[syn.ExpressionNode]) -> Value:
        """`x.allreduce(op, axes)`."""
        named = node.keywords
        rest = list(arguments[1:])
        op_node = rest.pop(0) if rest else named.pop("op", None)
        axes_node = rest.pop(0) if rest else named.pop("axes", named.pop("axis", None))
        if not arguments or op_node is None or rest or named:
            self.fail(node, 'allreduce takes an operator, and mesh axes: x.allreduce("+", axes=(0,))')
        op = self._known(op_node, "allreduce")
        if not isinstance(op, str) or op not in REDUCTIONS:
            self.fail(op_node, 'the operators of allreduce are "+" and "max"')
        axes: tuple[int, ...] | None = None
        if axes_node is not None:
            given = self._known(axes_node, "allreduce")
            listed = given if isinstance(given, tuple) else () if given is None else (given,)
            if not all(isinstance(axis, int) for axis in listed) or len(set(listed)) < len(listed):
                self.fail(axes_node, "mesh axes are different integers: axes=(0, 1)")
            axes = None if given is None else tuple(sorted(listed))
        value = self.taken(arguments[0])
        operand = self.operand(arguments[0], value)
        try:
            result, harmless = kernel_types.allreduce(operand, REDUCTIONS[op], axes, self.mesh)
        except Refusal as r:
            self.report(r, node)
            return Data(type_of(value))
        if harmless:
            place, note = node.place, "the maximum of equal copies is the copy: leave it out"
            self.context.source.add("pending", harmless, place, note, warning=True, subject=self.task.name)
        over = axes
        if over is None:
            mine = sorted(axis for o, axis in operand.dist.pending if o == REDUCTIONS[op])
            over = tuple(mine) if mine or not operand.dist.local else tuple(range(len(self.mesh)))
        self.exchange(CollectiveStep("allreduce", REDUCTIONS[op], over), operand.type, node, inserted=False)
        return Data(result.type, dist=result.dist)

    def _allgather(self, node: syn.Invocation, arguments: Sequence[syn.ExpressionNode]) -> Value:
        """`x.allgather(axis)`."""
        axis = self._options(node, arguments, "allgather", "axis")["axis"]
        return self._relaid(node, arguments[0], lambda x: kernel_types.allgather(x, axis, self.mesh))

    def _reduce_scatter(self, node: syn.Invocation, arguments: Sequence[syn.ExpressionNode]) -> Value:
        """`x.reduce_scatter(op, axis, mesh_axis)`."""
        given = self._options(node, arguments, "reduce_scatter", "op", "axis", "mesh_axis")
        op, axis, over = given["op"], given["axis"], given["mesh_axis"]
        if not isinstance(op, str) or op not in REDUCTIONS or axis is None:
            self.fail(node, 'reduce_scatter takes "+" or "max", and an axis: x.reduce_scatter("+", axis=0)')
        scatter = kernel_types.reduce_scatter
        return self._relaid(node, arguments[0], lambda x: scatter(x, REDUCTIONS[op], axis, over, self.mesh))

    def _options(
        self, node: syn.Invocation, arguments: Sequence[syn.ExpressionNode], what: str, *names: str
    ) -> dict[str, object]:
        """Return the options of a collective by name, None for those that are not written. what: its function."""
        named, rest = node.keywords, list(arguments[1:])
        given = {name: rest.pop(0) if rest else named.pop(name, None) for name in names}
        if not arguments or rest or named:
            self.fail(node, f"{what} takes (x, {', '.join(names)})")
        return {name: None if part is None else self._known(part, what) for name, part in given.items()}

    def _relaid(
        self,
        node: syn.Invocation,
        tile: syn.ExpressionNode,
        rule: Callable[[KernelOperand], tuple[KernelOperand, CollectiveStep]],
    ) -> Value:
        """The value of a tile in another layout. rule: of the collective."""
        value = self.kept(self.taken(tile), tile)
        operand = self.operand(tile, value)
        try:
            result, step = rule(operand)
        except Refusal as r:
            self.report(r, node)
            return Data()
        self.exchange(step, operand.type, node, inserted=False)
        return Data(result.type, dist=result.dist)

    def exchange(
        self, step: CollectiveStep, kind: ElementType | None, node: syn.SyntaxNode, *, inserted: bool
    ) -> Collective | None:
        """Record the puts and gets of this instance for a collective, on streams that this collective alone has
        (`Collective.arrays`). Return the collective; None if each of its groups is one instance.

        In an all-reduce, the first instance of a group gets a value from each other instance, then puts the result to
        each of them. In an all-gather or reduce-scatter, each instance puts a tile, or a part of one, to each other
        instance, then gets one from each of them. If an instance of a group does not take part, its streams lack an
        end, which the check reports.

        step: the collective. kind: the type of the tile before it, which a reduce-scatter needs; None stands for
        `FLOAT`. node: where the collective stands, for messages. inserted: whether a layout asks for the collective,
        not a call in the program.
        """
        over = tuple(axis for axis in step.axes if self.mesh[axis] > 1)
        if not over:
            return None
        group = layouts.group_of(over, self.mesh, self.tid)
        others, member = len(group) - 1, group.index(self.tid)
        made = self._collective(step._replace(axes=over), kind or FLOAT, node.place, others, inserted)
        row = 0
        for axis, size in enumerate(self.mesh):
            row = row if axis in over else row * size + self.tid[axis]
        self.exchanges(node, made, others, member == 0)
        if step.what == "allreduce":
            columns = range(others) if member == 0 else [member - 1]
            inward, outward = ([array.first + row * others + k for k in columns] for array in made.arrays)
            ends = [(k, member > 0) for k in inward] + [(k, member == 0) for k in outward]
        else:
            first = made.arrays[0].first + row * len(group) * others
            ends = [(first + member * others + k, True) for k in range(others)]
            ends += [(first + source * others + column, False) for source, column in peers(member, others)]
        for stream, put in ends:
            self.record(self.context.nodes.op(self.numbered(made, stream), put, node.place))
        return made

    def numbered(self, made: Collective, stream: int) -> int:
        """Return by what operations name a stream of a collective: in this class its number. made: the collective.
        stream: the number of the stream."""
        return stream

    def _collective(
        self, step: CollectiveStep, kind: ElementType, place: Place, others: int, inserted: bool
    ) -> Collective:
        """Return the collective at a place, with its streams. kind: of the tile before. others: of a group."""
        reading = self.context.reading
        key = Collective(step.what, self.task.name, step.op, step.axes, step.axis, place, inserted, ())
        if key in reading.collectives:
            return reading.collectives[key]
        number = 1 + sum(other.task == self.task.name for other in reading.collectives.values())
        name = f"{self.task.name}.{step.what}{f'#{number}' if number > 1 else ''}"
        groups = prod(self.mesh) // (others + 1)
        if step.what == "allreduce":
            streams = [reading.declare(f"{name}.{end}", kind, (groups, others), place) for end in ("in", "out")]
        else:
            if step.what == "reduce_scatter":
                assert step.axis is not None
                size = kind.shape[step.axis] // (others + 1)
                kind = ElementType(kind.dtype, (*kind.shape[: step.axis], size, *kind.shape[step.axis + 1 :]))
            streams = [reading.declare(name, kind, (groups, others + 1, others), place)]
        return reading.collectives.setdefault(key, replace(key, arrays=tuple(streams)))
