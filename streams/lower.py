"""Makes task programs of regions: syntax trees to trees of operations, which the units of a machine execute.

The region has been checked. Every get becomes a statement of its own, in the order in which Python evaluates them. The
gets that an expression holds, and the cycles of its kernels, become statements in front of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ..base.element_types import BITS, NARROW, ElementType
from ..base.place import Place
from ..isa.overlays.tasks import program as tasks
from ..isa.overlays.tasks import tree as t
from ..isa.overlays.tasks.kernels import KERNELS
from .costs import TileCost, datapath_of, exchange_cycles
from .datapath import VariantChoice
from .kernels import ALIASES
from .library import METHODS, MODULES
from .source import Refusal, Source
from .syntax import nodes as syn
from .syntax.printer import shown
from .tree import Collective, Region, StreamDecl, TaskDecl
from .values import Static, Value

SAME = {"is": "==", "is not": "!="}
"""Comparisons that are others on a machine."""

RUNS_HERE = "rsn run FILE.py runs it on this computer"


@dataclass(frozen=True)
class _Method:
    """Calls a method of its first argument."""

    name: str

    def __call__(self, value: Any, *arguments: Any, **named: Any) -> Any:
        return getattr(value, self.name)(*arguments, **named)


class _Expressions:
    """Lowers expressions of a task. out: the statements so far."""

    def __init__(
        self, region: Region, declared: TaskDecl, externals: Mapping[str, Any] | None, unread_values: str
    ) -> None:
        self.region, self.name, self.externals, self.unread_values = region, declared.name, externals, unread_values
        self.source: Source = region.source
        context = self.context = region.contexts[declared.name]
        self.names = {p.name for p in declared.parameters} | declared.body.facts.assigned
        self.streams: Mapping[str, StreamDecl] = context.streams
        self.constants: Mapping[str, Value] = {k: v for k, v in context.constants.items() if k not in self.names}
        self.sized = {k: v for k, v in context.sized.items() if k not in self.names}
        self.roots: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.mesh = declared.mapping
        self.datapath = datapath_of(declared, region.rates, region.float_add, region.variants)
        self.collectives = [c for c in region.collectives if c.task == declared.name]
        self.out: list[t.Statement] = []
        self.count = 0
        self.at = Place(1, 1)

    def refuse(self, node: syn.SyntaxNode, what: str, *notes: str) -> NoReturn:
        """Raise `Refusal` with code `unsupported` at a node; the message begins with the task's name."""
        raise Refusal("unsupported", f"{self.name}: {what}", node, *notes)

    def kept(self, place: Place, value: t.Expression) -> t.Expression:
        """Return an expression whose value later assignments do not change: assign it to a new variable, unless it is a
        constant."""
        if isinstance(value, t.Constant):
            return value
        name = self.fresh()
        self.out.append(t.Assign(place, (name,), value))
        return t.Name(name)

    def fresh(self) -> str:
        """Return a new variable name, `%1`, `%2` and so on, which no user's name equals."""
        self.count += 1
        return f"%{self.count}"

    # -- expressions -------------------------------------------------------------------------------------------------

    def value(self, node: syn.ExpressionNode) -> t.Expression:
        """Lower an expression; its gets, and the cycles of its tiles, are appended to the statements. Raises `Refusal`
        for one that no reading has evaluated, if not all values of sizes were read."""
        evaluated = (self.name, node.place) in self.context.reading.evaluated
        if self.unread_values and isinstance(node, syn.Invocation | syn.Infix) and not evaluated:
            self.refuse(node, f"no run with {self.unread_values} comes here, and others are not tried")
        made = self._value(node)
        for what in (TileCost.GOT, TileCost.LOADED, TileCost.COMPUTED, TileCost.KEPT):
            self.takes(node, what)
        choice = self._choice(node)
        if choice is not None:
            made = self.kept(node.place.start, made)
            assert isinstance(made, t.Name)
            self.context.reading.calls[self.name, made.name] = choice
        return made

    def _choice(self, node: syn.SyntaxNode) -> VariantChoice | None:
        """Return the variant that is called at a node, if it has C++: its result is a variable, by which the C++ finds
        it. Raises `Refusal` if instances or iterations differ."""
        found = self.context.reading.choices.get((self.name, node.place), set())
        called = [choice for choice in found if choice.variant is not None and choice.variant.source]
        if called and len(found) > 1:
            note = "a machine has one variant in each place: write it once for each"
            self.refuse(node, "this is one variant of a kernel here and another one there", note)
        return called[0] if called else None

    def takes(self, node: syn.SyntaxNode, what: TileCost) -> None:
        """Append the cycles of a place. Raises `Refusal` if instances or iterations differ."""
        costs = self.context.reading.costs.get((self.name, node.place, what.value), set())
        if len(costs) > 1:
            few, many = min(costs), max(costs)
            note = "a machine has one time in each place: write it once for each"
            self.refuse(node, f"this takes {few} cycles here and {many} there", note)
        if any(costs):
            self.out.append(t.Cycles(node.place.start, t.Constant(min(costs))))

    def _value(self, node: syn.ExpressionNode) -> t.Expression:
        match node:
            case syn.Literal(value=bool() | int() | float() | str() as value):
                return t.Constant(value)
            case syn.Literal(value=None):
                return t.Kernel("none", ())
            case syn.Identifier(name=name):
                return self._name(node, name)
            case syn.Await(value=value):
                return self.value(value)
            case syn.Prefix(op=op, operand=operand):
                return t.Unary(op, self.value(operand))
            case syn.Infix(left=left, op="@", right=right):
                return t.Kernel("matmul", self.in_order(left, right))
            case syn.Infix(left=left, op=op, right=right):
                return t.Binary(op, *self.in_order(left, right))
            case syn.ComparisonChain(left=left, ops=ops, others=others):
                return self._compare(left, ops, others)
            case syn.Logical(op=op, values=values):
                made = self.value(values[-1])
                for part in reversed(values[:-1]):
                    first = self.value(part)
                    made = t.Select(first, made, first) if op == "and" else t.Select(first, first, made)
                return made
            case syn.Conditional(test=test, body=body, orelse=orelse):
                return self._if(node, test, body, orelse)
            case syn.Collection(items=parts):
                return t.Group(self.in_order(*parts))
            case syn.Slicing(low=low, high=high, step=step):
                return t.Span(*(None if part is None else self.value(part) for part in (low, high, step)))
            case syn.Subscript(base=base, index=index):
                return t.Item(*self.in_order(base, index))
            case syn.Invocation():
                return self._call(node)
            case syn.Attribute(base=base, name="T"):
                return t.Kernel("transpose", (self.value(base),))
            case syn.Attribute(base=base, name="shape" | "ndim" as what):
                known = self.context.reading.shapes.get((self.name, node.place))
                if known is None:
                    return t.Kernel(what, (self.value(base),))
                sizes = known.value
                return t.Group(tuple(map(t.Constant, sizes))) if isinstance(sizes, tuple) else t.Constant(sizes)
        self.refuse(node, f"a machine has no expression of this kind ({node.kind})")

    def _name(self, node: syn.Identifier, name: str) -> t.Expression:
        if name in self.sized:
            if hidden := sorted({n.name for n in t.nodes(self.sized[name]) if isinstance(n, t.Name)} & self.names):
                self.refuse(node, f"{name} follows from the size {hidden[0]}, which a variable of the task hides")
            return self.sized[name]
        value = self.constants.get(name)
        if isinstance(value, Static) and isinstance(value.value, bool | int | float | str):
            return t.Constant(value.value)
        if value is not None and not isinstance(value, Static):
            return self._opaque(node, shown(node))
        if isinstance(value, Static) and isinstance(value.value, tuple):
            return t.Group(tuple(map(t.Constant, value.value)))
        return t.Name(name)

    def in_order(self, *parts: syn.ExpressionNode) -> tuple[t.Expression, ...]:
        """Lower operands. What an operand reads is read before the gets of the operands behind it: variables do not
        change in between, so that only the gets need an order, which they keep."""
        return tuple(map(self.value, parts))

    def _compare(
        self, left: syn.ExpressionNode, ops: Sequence[str], others: Sequence[syn.ExpressionNode]
    ) -> t.Expression:
        values = self.in_order(left, *others)
        parts = [t.Binary(SAME.get(op, op), values[k], values[k + 1]) for k, op in enumerate(ops)]
        made: t.Expression = parts[-1]
        for part in reversed(parts[:-1]):
            made = t.Select(part, made, t.Constant(False))
        return made

    def _if(
        self, node: syn.Conditional, test: syn.ExpressionNode, body: syn.ExpressionNode, orelse: syn.ExpressionNode
    ) -> t.Expression:
        chosen = self.value(test)
        outer, arms, values = self.out, list[tuple[t.Statement, ...]](), list[t.Expression]()
        for part in (body, orelse):
            self.out = []
            values.append(self.value(part))
            arms.append(tuple(self.out))
        self.out = outer
        if not arms[0] and not arms[1]:
            return t.Select(chosen, *values)
        name, place = self.fresh(), node.place.start
        one, other = [(*arm, t.Assign(place, (name,), value)) for arm, value in zip(arms, values, strict=True)]
        self.out.append(t.If(place, chosen, one, other))
        return t.Name(name)

    def _call(self, node: syn.Invocation) -> t.Expression:
        stream = self.stream(node)
        if stream is not None:
            if stream[1] != "get":
                self.refuse(node, "a put has no value")
            index, name = self.index_of(stream, node), self.fresh()
            self.out.append(t.Get(node.place.start, name, stream[0], index))
            return t.Name(name)
        if isinstance(node.function, syn.Attribute):
            return self._method(node, node.function)
        name = node.called
        if name in syn.META or name in ("put", "get"):
            self.refuse(node, f"{name} stands in a for or with statement only")
        if name == "get_tid":
            return t.Name("get_tid()")
        if name in ("use", "data"):
            return t.Kernel(name, (t.Name(f"{name}()"), *self._arguments(node)))
        if name == "drop":
            return t.Kernel("use", (t.Name("use()"), *self._arguments(node)))
        kind = self._scalar_type(name)
        if kind is not None and len(node.arguments) == 1:
            return t.Convert(kind, self.value(node.arguments[0]))
        if name in ("tile", "zeros", "full") and node.arguments:
            return self._made(name, node)
        if name in syn.COLLECTIVES and name not in self.names:
            return self.collected(node, self.value(node.arguments[0]), inserted=False)
        if name == "local" and len(node.arguments) == 1:
            return self.value(node.arguments[0])
        if name in KERNELS and name not in self.constants and name not in self.names:
            return self._kernel(name, node, node.arguments)
        return self._opaque(node, shown(node.function))

    def _made(self, name: str, node: syn.Invocation) -> t.Expression:
        """A new tile: `zeros(f32, 4, 4)`, `full(f32, 1.5, 4, 4)`."""
        kind = self.stated(node.arguments[0])
        if kind is None:  # no instance comes here
            return t.Constant(0)
        first = 2 if name == "full" else 1
        sizes = node.arguments[first:]
        if len(sizes) == 1 and syn.is_listed(sizes[0]):
            sizes = sizes[0].items
        value = self.value(node.arguments[1]) if name == "full" else t.Constant(0)
        if name == "full" and kind.dtype in NARROW:
            value = t.Convert(ElementType(kind.dtype), value)
        shape = (*map(t.Constant, kind.shape), *self.in_order(*sizes))
        made = t.Kernel("full", (t.Constant(kind.dtype), value, *shape))
        return made if shape else t.Convert(ElementType(kind.dtype), value)

    # -- collectives -------------------------------------------------------------------------------------------------

    def collected(self, node: syn.ExpressionNode, value: t.Expression, inserted: bool) -> t.Expression:
        """A value after the collectives that stand at a node."""
        for c in self.collectives:
            if c.place == node.place and c.inserted == inserted:
                value = (self._reduced if c.what == "allreduce" else self._exchanged)(c, value, node.place.start)
        return value

    def _point(self, c: Collective) -> tuple[t.Expression, t.Expression]:
        """The number of an instance's group, and the number of the instance in the group."""
        tid = t.Name("get_tid()")
        at = [tid] if len(self.mesh) == 1 else [t.Item(tid, t.Constant(k)) for k in range(len(self.mesh))]
        row = _flat([(at[k], n) for k, n in enumerate(self.mesh) if k not in c.axes])
        return row, _flat([(at[k], self.mesh[k]) for k in c.axes])

    def _exchange_time(self, c: Collective, place: Place, others: int, first: bool) -> tuple[t.Statement, ...]:
        if self.datapath is None or not c.arrays[0].type.shape:
            return ()
        return (t.Cycles(place, t.Constant(exchange_cycles(self.datapath, c, others, first))),)

    def _exchanged(self, c: Collective, value: t.Expression, place: Place) -> t.Expression:
        """An all-gather or a reduce-scatter: each instance of a group puts a tile to each other one, and then gets one
        of each. They are combined in the order of the group."""
        assert c.axis is not None
        (array,) = c.arrays
        others, size, axis = array.shape[-1], array.type.shape[c.axis], c.axis
        row, member = self._point(c)
        held, name = self.fresh(), self.fresh()
        all_of_axis = t.Span(None, None, None)

        def tile(k: int) -> t.Expression:
            """What an instance puts to the one with number k, or keeps if that is itself."""
            if c.what == "allgather":
                return t.Name(held)
            span = t.Span(t.Constant(k * size), t.Constant((k + 1) * size), None)
            return t.Item(t.Name(held), t.Group((*[all_of_axis] * axis, span)) if axis else span)

        # A column counts the instances without the one that puts (`tree.peers`).
        self.out += [t.Assign(place, (held,), value), *self._exchange_time(c, place, others, False)]
        parts = [self.fresh() for _ in range(others + 1)]
        for k in range(others + 1):
            column = t.Select(t.Binary("<", member, t.Constant(k)), t.Constant(max(0, k - 1)), t.Constant(k))
            put = t.Put(place, array.name, (row, member, column), tile(k))
            self.out.append(t.If(place, t.Binary("!=", member, t.Constant(k)), (put,), (), True))
        for k, part in enumerate(parts):
            column = t.Select(t.Binary(">", member, t.Constant(k)), t.Binary("-", member, t.Constant(1)), member)
            get = t.Get(place, part, array.name, (row, t.Constant(k), column))
            own = t.Assign(place, (part,), tile(k))
            self.out.append(t.If(place, t.Binary("!=", member, t.Constant(k)), (get,), (own,), True))
        made = [*map(t.Name, parts)]
        if c.what == "allgather":
            joined: t.Expression = t.Kernel("concat", tuple(made), (("axis", t.Constant(axis)),))
        else:
            joined = _combined(c.op, made)
        self.out.append(t.Assign(place, (name,), joined, array.type if c.what == "reduce_scatter" else None))
        return t.Name(name)

    def _reduced(self, c: Collective, value: t.Expression, place: Place) -> t.Expression:
        """An all-reduce: the first instance of a group gets the values of the others, and puts the result to them."""
        row, member = self._point(c)
        held, name = self.fresh(), self.fresh()
        own = t.Binary("-", member, t.Constant(1))
        kind = c.arrays[0].type
        inward, outward = (array.name for array in c.arrays)
        others = [(row, t.Constant(k)) for k in range(c.arrays[0].shape[1])]
        values = [self.fresh() for _ in others]
        adding, giving = (self._exchange_time(c, place, len(others), first) for first in (True, False))
        total = _combined(c.op, [t.Name(held), *map(t.Name, values)])
        self.out += [
            t.Assign(place, (held,), value),
            t.If(
                place,
                t.Binary("!=", member, t.Constant(0)),
                (
                    *giving,
                    t.Put(place, inward, (row, own), t.Name(held)),
                    t.Get(place, name, outward, (row, own)),
                ),
                (
                    *adding,
                    *(t.Get(place, part, inward, at) for part, at in zip(values, others, strict=True)),
                    t.Assign(place, (name,), total, kind),
                    *(t.Put(place, outward, at, t.Name(name)) for at in others),
                ),
                True,
            ),
        ]
        return t.Name(name)

    def _method(self, node: syn.Invocation, method: syn.Attribute) -> t.Expression:
        base = method.base
        if (
            isinstance(base, syn.Identifier)
            and base.name in MODULES
            and base.name not in self.names
            and method.name in ALIASES
        ):
            return self._kernel(ALIASES[method.name], node, node.arguments)
        if method.name in syn.COLLECTIVES:
            return self.collected(node, self.value(base), inserted=False)
        if method.name in METHODS and not (isinstance(base, syn.Identifier) and base.name in MODULES):
            return self._kernel(METHODS[method.name], node, [base, *node.arguments])
        if method.name == "copy" and not node.arguments and not node.named:
            return self.value(base)
        root: syn.ExpressionNode = method.base
        while isinstance(root, syn.Attribute):
            root = root.base
        if isinstance(root, syn.Identifier):
            known = self.constants.get(root.name)
            if known is not None and not isinstance(known, Static):
                return self._opaque(node, shown(method))
        if self.externals is None:
            self.refuse(node, f"{method.name} is no operation of a machine", RUNS_HERE)
        named = tuple((k.name or "", self.value(k.value)) for k in node.named)
        arguments = self.in_order(method.base, *node.arguments)
        return t.External(method.name, _Method(method.name), arguments, named)

    def _kernel(self, name: str, node: syn.Invocation, arguments: Sequence[syn.ExpressionNode]) -> t.Expression:
        """A library kernel."""
        if any(isinstance(a, syn.Starred) for a in arguments):
            self.refuse(node, "a machine has no arguments with a star")
        named = tuple((k.name or "", self.value(k.value)) for k in node.named)
        return t.Kernel(name, self.in_order(*arguments), named)

    def _arguments(self, node: syn.Invocation) -> tuple[t.Expression, ...]:
        if any(isinstance(a, syn.Starred) for a in node.arguments):
            self.refuse(node, "a machine has no arguments with a star")
        return self.in_order(*node.arguments)

    def _opaque(self, node: syn.ExpressionNode, name: str) -> t.Expression:
        """A function that is not of the language: it is executed if the file may be, and refused otherwise."""
        if self.externals is None:
            self.refuse(node, f"{name} is no operation of a machine", RUNS_HERE)
        try:
            function = _found(self.externals, name)
        except (KeyError, AttributeError):
            file = self.source.file
            self.refuse(node, f"there is no {name} to run", f"define or import it in {file}")
        if not isinstance(node, syn.Invocation):
            return t.External(name, lambda: function, ())
        named = tuple((k.name or "", self.value(k.value)) for k in node.named)
        return t.External(name, function, self._arguments(node), named)

    # -- streams and types -------------------------------------------------------------------------------------------

    def stream(self, node: syn.Invocation) -> tuple[str, str, tuple[int, ...]] | None:
        """The array of streams, the method of a put or a get, and the indices before those that are written."""
        if not isinstance(node.function, syn.Attribute):
            return None
        base = node.function.base
        base = base.base if isinstance(base, syn.Subscript) else base
        if isinstance(base, syn.Identifier) and base.name in self.streams and node.function.name in ("put", "get"):
            array, before = self._root(base.name)
            return array, node.function.name, before
        return None

    def _root(self, name: str) -> tuple[str, tuple[int, ...]]:
        """The declared array that a name stands for, or a part of, and the indices of that part."""
        if name not in self.roots:
            part = self.streams[name]
            root, _ = self.region.stream(part.first)
            index = root.index(part.first - root.first)
            self.roots[name] = root.name, index[: len(root.shape) - len(part.shape)]
        return self.roots[name]

    def index_of(self, stream: tuple[str, str, tuple[int, ...]], node: syn.Invocation) -> tuple[t.Expression, ...]:
        """Return the full index, in the declared array, of the stream of a put or a get. stream: what `stream` returned
        for `node`."""
        assert isinstance(node.function, syn.Attribute)
        base = node.function.base
        parts = base.indices if isinstance(base, syn.Subscript) else ()
        return (*map(t.Constant, stream[2]), *self.in_order(*parts))

    def _scalar_type(self, name: str) -> ElementType | None:
        return ElementType(name) if name in BITS else None

    def stated(self, node: syn.ExpressionNode) -> ElementType | None:
        """Return the type that stands at a node, None if it is of no element, or if no instance comes there. Raises
        `Refusal` if it is another one there for another instance, or in another iteration."""
        found = self.context.reading.types.get((self.name, node.place), {None})
        if len(found) > 1:
            one, other = sorted(map(str, found))[:2]
            self.refuse(node, f"this is {one} here and {other} there; a machine has one type in each place")
        return next(iter(found))


def _in_turn(pairs: Sequence[tuple[syn.ExpressionNode, syn.ExpressionNode]]) -> bool:
    """Whether assignments that are written as one may be done one after the other: none reads what one before sets."""
    names: set[str] = set()
    for target, part in pairs:
        if not isinstance(target, syn.Identifier) or not names.isdisjoint(part.facts.names):
            return False
        names.add(target.name)
    return True


def _combined(op: str, parts: Sequence[t.Expression]) -> t.Expression:
    """The sum, or the maximum, of tiles in order."""
    made, *rest = parts
    for part in rest:
        made = t.Binary("+", made, part) if op == "+" else t.Kernel("maximum", (made, part))
    return made


def _flat(parts: list[tuple[t.Expression, int]]) -> t.Expression:
    """The number of a point of a grid, row-major. parts: its coordinates, and the sizes of the grid."""
    made: t.Expression = t.Constant(0)
    for k, (at, size) in enumerate(parts):
        made = at if not k else t.Binary("+", t.Binary("*", made, t.Constant(size)), at)
    return made


def _found(names: Mapping[str, Any], path: str) -> Callable[..., Any]:
    """A function of an executed file by its path, such as `np.maximum`. Raises `KeyError` or `AttributeError`."""
    first, *rest = path.split(".")
    value = names[first]
    for name in rest:
        value = getattr(value, name)
    found: Callable[..., Any] = value
    return found


def lowered_task(
    region: Region,
    declared: TaskDecl,
    parameters: tuple[tasks.TensorParameter, ...],
    externals: Mapping[str, Any] | None,
    unread: str = "",
) -> tasks.Task:
    """Return a task as a tree of operations. region: that declares the task. declared: the task. parameters: its
    tensors in the machine. externals: the values of the names of the executed file; None if it is not executed, and
    then a task that calls its functions is refused. unread: if not all values of sizes were read, those that were, as
    text; "" if all were. Raises `Refusal` for anything that a tree cannot hold."""
    body = _Body(region, declared, externals, unread).block(declared.body.body, declared.body)
    place = declared.place.start
    rates = tuple((k, float(r)) for k, r in {**region.rates, **dict(declared.rates)}.items())
    return tasks.Task(declared.name, declared.mapping, parameters, body, place, rates)


class _Body(_Expressions):
    """Lowers statements."""

    def block(self, statements: syn.Block, around: syn.StatementNode | None = None) -> tuple[t.Statement, ...]:
        """Lower statements. around: the loop, or the task, whose body they are."""
        outer, self.out = self.out, []
        for statement in statements:
            self._statement(statement)
        if around is not None:
            self.takes(around, TileCost.APART)
        made, self.out = tuple(self.out), outer
        return made

    def _chain(self, arms: Sequence[syn.MetaArm]) -> None:
        """`meta_if` with the arms behind it."""
        first, *rest = arms
        test, body = self._before_run(first.call.arguments[0]), self.block(first.body)
        other: tuple[t.Statement, ...] = ()
        if rest and rest[0].name == "meta_else":
            other = self.block(rest[0].body)
        elif rest:
            outer, self.out = self.out, []
            self._chain(rest)
            other, self.out = tuple(self.out), outer
        self.out.append(t.If(first.place.start, test, body, other, True))

    def _before_run(self, node: syn.ExpressionNode) -> t.Expression:
        """Lower a condition, or a bound, that is known before the machine is made."""
        if found := sorted(node.facts.names & self.sized.keys()):
            self.refuse(node, f"each run gives {found[0]}: it is not known before the machine is made")
        return self.value(node)

    def _statement(self, node: syn.StatementNode) -> None:
        place = node.place.start
        match node:
            case syn.Evaluation(value=value):
                self._expression(place, value)
            case syn.Assignment():
                self._assign(place, node)
            case syn.Declaration(target=target, value=value, annotation=annotation):
                kind = self.stated(annotation)
                if value is None:
                    value = syn.Literal(node.place, 0)
                    if kind is not None and kind.shape:
                        zeros = t.Kernel("full", (t.Constant(kind.dtype), t.Constant(0), *map(t.Constant, kind.shape)))
                        self.out.append(t.Assign(place, (self._name_of(target),), zeros))
                        return
                self._assigned(place, (target,), value, kind)
            case syn.ForLoop():
                self._for(place, node)
            case syn.MetaChain(arms=arms) if arms[0].name == "meta_if":
                self._chain(arms)
            case syn.MetaChain(arms=(arm,)):
                if arm.name != "meta_for":
                    self.refuse(node, "`with` is for meta_if, meta_elif, meta_else and meta_for")
                names = ("",) if arm.target is None else self._names(arm.target)
                bounds = tuple(map(self._before_run, arm.call.arguments))
                self.out.append(t.For(place, names, "range", bounds, self.block(arm.body), True))
            case syn.WhileLoop(test=test, body=body):
                outer, self.out = self.out, []
                condition = self.value(test)
                head, self.out = tuple(self.out), outer
                self.out.append(t.While(place, head, condition, self.block(body, node)))
            case syn.Branching(test=test, body=body, orelse=orelse):
                condition = self.value(test)
                then, other = self.block(body), self.block(orelse)
                if (self.name, node.place) in self.context.reading.divided and not t.divides((*then, *other)):
                    then = (t.Cycles(place, t.Constant(0)), *then)
                self.out.append(t.If(place, condition, then, other))
            case syn.Jump(how=how):
                self.out.append(t.Leave(place, how))
            case syn.Returning(value=value):
                if value is not None:
                    self.out.append(t.Read(place, (self.collected(value, self.value(value), inserted=True),)))
                self.out.append(t.Leave(place, "return"))
            case syn.Assertion(test=test):
                self.out.append(t.Read(place, (self.value(test),)))
            case syn.Skip():
                pass
            case _:
                self.refuse(node, f"a machine has no statement of this kind ({node.kind})")

    def _expression(self, place: Place, node: syn.ExpressionNode) -> None:
        call = node.value if isinstance(node, syn.Await) else node
        if isinstance(call, syn.Literal):
            return
        if isinstance(call, syn.Invocation):
            stream = self.stream(call)
            if stream is not None and stream[1] == "put":
                value = self.value(call.arguments[0])
                self.out.append(t.Put(place, stream[0], self.index_of(stream, call), value))
                self.takes(call, TileCost.PUT)
                return
            if call.called == "cycles":
                self.out.append(t.Cycles(place, self.value(call.arguments[0])))
                return
        value = self.value(node)
        if not isinstance(value, t.Name):
            self.out.append(t.Read(place, (value,)))

    def _for(self, place: Place, node: syn.ForLoop) -> None:
        names = self._names(node.target)
        if isinstance(node.iterable, syn.Invocation) and node.iterable.called in ("range", "grid", "meta_for"):
            bounds = tuple(map(self._before_run if node.unrolled else self.value, node.iterable.arguments))
            kind = "grid" if node.iterable.called == "grid" else "range"
            self.out.append(t.For(place, names, kind, bounds, self.block(node.body, node), node.unrolled))
        else:
            values = self.value(node.iterable)
            self.out.append(t.For(place, names, "in", (values,), self.block(node.body, node)))
        self.takes(node, TileCost.FILLED)

    def _assign(self, place: Place, node: syn.Assignment) -> None:
        if node.pairs is not None:
            in_turn = _in_turn(node.pairs)
            values = []
            for target, part in node.pairs:
                value = self.value(part)
                if in_turn:
                    self._store(place, target, value, None)
                    self.takes(part, TileCost.ASSIGNED)
                else:
                    values.append(value)
            held = [self.kept(place, value) for value in values]
            for (target, part), value in zip(node.pairs, held, strict=False):
                self._store(place, target, value, None)
                self.takes(part, TileCost.ASSIGNED)
            return
        self._assigned(place, node.targets, node.value, None)

    def _assigned(
        self, place: Place, targets: Sequence[syn.ExpressionNode], node: syn.ExpressionNode, kind: ElementType | None
    ) -> None:
        value = self.value(node)
        value = self.collected(node, value, inserted=True)
        if len(targets) > 1:
            value = self.kept(place, value)
        for target in targets:
            self._store(place, target, value, kind)
            self.takes(node, TileCost.ASSIGNED)

    def _store(self, place: Place, target: syn.ExpressionNode, value: t.Expression, kind: ElementType | None) -> None:
        match target:
            case syn.Identifier(name=name):
                self.out.append(t.Assign(place, (name,), value, kind))
            case _ if syn.is_listed(target):
                self.out.append(t.Assign(place, self._names(target), value))
            case syn.Subscript(base=syn.Identifier(name=name), index=index):
                narrow = self.stated(target)  # a run keeps the tile in a wider type
                value = value if narrow is None else t.Convert(narrow, value)
                self.out.append(t.Store(place, name, self.value(index), value))
                self.takes(target, TileCost.STORED)
            case _:
                self.refuse(target, "a machine assigns names, and parts of tiles and tensors")

    def _names(self, target: syn.ExpressionNode) -> tuple[str, ...]:
        parts = target.items if syn.is_listed(target) else (target,)
        return tuple(map(self._name_of, parts))

    def _name_of(self, node: syn.ExpressionNode) -> str:
        if not isinstance(node, syn.Identifier):
            self.refuse(node, "a plain name is expected here")
        return node.name
