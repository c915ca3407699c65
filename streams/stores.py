"""Parameters of tasks, stores into tensors and tiles, and what is stored at the end; and what the paths through a task
have come to: variables, futures that wait to be read, and how they go on as one."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..base.element_types import BITS, NARROW, ElementType
from . import layouts
from .expressions import Future, RegionContext, Taken, either
from .kernel_types import after, steps_to, stored
from .kernels import KERNELS, KernelOperand, called, collective
from .layouts import Distribution, merged
from .library import KernelExpressions
from .orders.shown import ShownOrder, shown_order
from .source import Refusal, Relayout
from .syntax import nodes as syn
from .syntax.control import Grid
from .syntax.nodes import COLLECTIVES
from .syntax.printer import short, shown
from .tree import TaskDecl, TaskParameter
from .values import FUNCTIONS, Data, Static, Value, distribution_of, joined, tensor_type, type_of


class Stores(KernelExpressions):
    """Reads expressions of a task instance, its parameters, and its stores. context, task, name, tid: as for
    `CostExpressions`. Attributes: shown: the order that statements show at each end of a stream, by the number of the
    stream and whether the end puts; None if they show different ones. several: whether the statement that is read
    assigns to several targets."""

    def __init__(self, context: RegionContext, task: TaskDecl, name: str, tid: tuple[int, ...]) -> None:
        super().__init__(context, task, name, tid)
        self.shown: dict[tuple[int, bool], ShownOrder | None] = {}
        self.several = False

    def shard(self, parameter: TaskParameter) -> Data:
        """Return the value of a parameter in this instance: its shard of the tensor. A layout that does not fit becomes
        a finding, and then the type of the shard is unknown."""
        if parameter.type is None:
            return Data(tensor=parameter.name)
        shape = parameter.type.shape
        try:
            labels, asks = (
                layouts.parse(parameter.layout) if parameter.layout is not None else ((None,) * len(shape), False)
            )
            layouts.validate(shape, labels, self.mesh, parameter.name)
        except Refusal as r:
            self.context.source.add(r.code, r.message, parameter.place, *r.notes, subject=self.task.name)
            return Data(tensor=parameter.name)
        if asks:
            self.asking.add(parameter.name)
        kind = ElementType(parameter.type.dtype, layouts.shard_shape(shape, labels, self.mesh))
        return Data(kind, dist=Distribution(labels), tensor=parameter.name)

    def annotated(self, statement: syn.Declaration) -> tuple[Data, bool]:
        """Return the value of a declaration such as `x: f32[4, 4] = value`, and whether collectives made it. A layout
        in the annotation says how the values of all instances make up a tensor. A value that does not fit becomes a
        finding. Raises `Refusal` for an annotation that is no type."""
        stated = tensor_type(statement.annotation, self.eval)
        value: Value = Data() if statement.value is None else self.eval(statement.value)
        kind, given = stated.type, value
        dist = distribution_of(value, statement.value is not None and self.varies(statement.value))
        if kind is not None and stated.layout is not None:
            try:
                labels, asks = layouts.parse(stated.layout)
                layouts.validate(kind.shape, labels, self.mesh, shown(statement.target))
            except Refusal as r:
                self.report(r, statement.annotation)
                labels, asks = (None,) * len(kind.shape), False
            kind = ElementType(kind.dtype, layouts.shard_shape(kind.shape, labels, self.mesh))
            if asks and statement.value is not None:
                name = shown(statement.target)
                value = self.relaid(value, labels, name, "the assignment", statement.value)
                dist = distribution_of(value, self.varies(statement.value))
            self.by_layout |= dist.local
            self._fits(statement, Distribution(labels), kind, value)
            dist = Distribution(labels, dist.pending)
        elif kind is not None and kind.shape:
            self._fits(statement, dist, kind, value)
        if kind is not None and dist.labels is not None and len(dist.labels) != len(kind.shape):
            dist = replace(dist, labels=None)  # a value that repeats along axes
        self.stated(statement.annotation, kind)
        futures = value.futures if isinstance(value, Data) else frozenset[int]()
        unwritten = value.unwritten if isinstance(value, Data) else None
        made = Data(type_of(value) if kind is None else kind, futures, dist, unwritten=unwritten)
        return made, value is not given

    def _fits(self, statement: syn.Declaration, dist: Distribution, kind: ElementType, value: Value) -> None:
        """Check that a value has the type that its variable states."""
        if statement.value is None:
            return
        given = self.operand(statement.value, value)
        try:
            stored(KernelOperand(kind, dist, shown(statement.target)), given, self.mesh)
        except Refusal as r:
            self.report(r, statement.value)

    def returned(self, source: syn.ExpressionNode) -> None:
        """Check the value that a task returns, which counts as a store: its reductions must be complete, and it must
        have the layout behind `->`; a mistake becomes a finding. source: the expression of the value. Raises `Refusal`
        as `eval`."""
        value = self.whole(source)
        operand, note, made = self.operand(source, value), self.task.body.returns, value
        self.by_layout |= operand.dist.local or self._branches > 0 or "get_tid" in self.task.body.facts.names
        if note is not None:
            stated = tensor_type(note, self.eval)
            if stated.type is not None:
                shape = stated.type.shape
                try:
                    text = stated.layout if stated.layout is not None else "R" * len(shape)
                    labels, asks = layouts.parse(text)
                    layouts.validate(shape, labels, self.mesh, "the result")
                    kind = ElementType(stated.type.dtype, layouts.shard_shape(shape, labels, self.mesh))
                    if asks:
                        made = self.relaid(value, labels, "return", "the store", source)
                        operand = self.operand(source, made)
                    stored(KernelOperand(kind, Distribution(labels), "the result"), operand, self.mesh)
                except Refusal as r:
                    self.report(r, source)
        if made is value:
            self.loaded(value, source)
        self.settled(operand, "the task", source)

    def rename(self, values: Sequence[Value]) -> None:
        tensors = {value.tensor for value in values if isinstance(value, Data) and value.tensor}
        self.context.reading.renamed.update((self.task.name, tensor) for tensor in tensors)

    # -- orders ------------------------------------------------------------------------------------------------------

    def shows(self, stream: int, put: bool, part: syn.ExpressionNode, at: syn.SyntaxNode) -> None:
        """Record in `shown` the order in which an end of a stream goes through a tensor. If two statements show
        different orders, the end shows none. The arguments are those of `Expressions.shows`."""
        found, known = None, self.shown.get((stream, put), self)
        if known is None:
            return
        base = part.base if isinstance(part, syn.Subscript) else None
        held = self.shards.get(base.name) if isinstance(base, syn.Identifier) else None
        if isinstance(part, syn.Subscript) and held is not None and self.env.get(held.tensor) is held and held.type:
            found = self._order(part, held.type, at)
        self.shown[stream, put] = found if known is self or known == found else None

    def enter(self, target: syn.ExpressionNode | None, values: range | Grid | Sequence[Static]) -> None:
        """Add a loop to those around the statements that follow. target: its index or indices; None for none. values:
        the values that the index, or the indices, go through."""
        parts = target.items if syn.is_listed(target) else [target]
        names = [part.name if isinstance(part, syn.Identifier) else "" for part in parts]
        if isinstance(values, Grid):
            ranges = [range(size) for size in values.sizes]
            names = names if len(names) == len(ranges) else [""] * len(ranges)
        else:
            counted = isinstance(values, range) and len(names) == 1
            ranges, names = [values if isinstance(values, range) else range(len(values))], names if counted else [""]
        self.nest = (*self.nest, *zip(names, ranges, strict=True))
        self.entered = len(names)
        self.bound = (*self.bound, *(None for _ in names))

    def bind_indices(self) -> None:
        """Record in `bound` the values that the indices of the innermost loop have at the beginning of an iteration.
        Later statements compare them, to see whether the body has assigned another value to an index."""
        depth = len(self.nest) - self.entered
        self.bound = (*self.bound[:depth], *(self.env.get(name) for name, _ in self.nest[depth:]))

    def _order(self, part: syn.Subscript, kind: ElementType, at: syn.SyntaxNode) -> ShownOrder | None:
        for (name, _), bound in zip(self.nest, self.bound, strict=True):
            if name and self.env.get(name) is not bound:
                return None  # the body has given the index another value
        names = part.index.facts.names
        numbers = {name: self._number(name) for name in names}
        indices = {name for name, _ in self.nest}
        key = part, kind, self.nest, tuple((name, number) for name, number in numbers.items() if name not in indices)
        if key not in self.context.orders:
            place = at.place
            self.context.orders[key] = shown_order(part, kind.shape, kind.dtype, self.nest, numbers.get, place)
        return self.context.orders[key]

    def _number(self, name: str) -> int | None:
        value = self.env.get(name, self.context.constants.get(name))
        return value.value if isinstance(value, Static) and type(value.value) is int else None

    # -- stores ------------------------------------------------------------------------------------------------------

    def store(self, target: syn.Subscript, value: Value, source: syn.ExpressionNode) -> None:
        """Read an assignment to a part of a tensor, or of a tile in a variable. target: the part. value: of the
        assigned expression `source`. A value that does not fit, or has pending reductions, becomes a finding. Raises
        `Refusal` for a target that cannot be assigned to."""
        base = self.whole(target.base)
        if not isinstance(base, Data):
            self.fail(target, f"{short(target.base)} cannot be assigned to")
        part = self.select(base, target)
        for number in value.futures if isinstance(value, Data) and len(value.futures) == 1 else ():
            future = self.pending.get(number) or self.tokens[number][1]
            self.shows(future.number, False, target, target)
        self.read(value)
        asks = base.tensor in self.asking
        made = self.relaid(value, part.dist.labels, base.tensor, "the store", source) if asks else value
        if made is value:
            self.loaded(value, source)
        value = made
        operand, into = self.operand(source, value), KernelOperand(part.type, part.dist, target)
        self.stores(target, part.type, value, source)
        narrow = not base.tensor and part.type is not None and part.type.dtype in NARROW
        self.stated(target, ElementType(part.type.dtype) if narrow and part.type is not None else None)
        try:
            stored(into, operand, self.mesh)
            if base.tensor:
                self.by_layout |= operand.dist.local or part.dist.local or self._branches > 0
                self._stored(base, target, operand, source)
                self.settled(operand, into.text, source)
            elif isinstance(target.base, syn.Identifier):
                self.env[target.base.name] = replace(base, dist=self._overwritten(base, part, into, operand))
            elif operand.dist.pending:
                raise Refusal("pending", f"{operand.text} is stored in part, before it is complete", None)
        except Refusal as r:
            self.report(r, source)

    def _stored(self, base: Data, target: syn.Subscript, operand: KernelOperand, source: syn.ExpressionNode) -> None:
        """Note a store into a tensor, and whether all instances that hold the same part of it store the same there."""
        alike = self._alike(base, target, operand, source)
        reading = self.context.reading
        own = reading.stores.setdefault((self.task.name, base.tensor), {})
        own[self.tid] = alike and own.get(self.tid, True)
        if not alike:
            reading.unlike.add((self.task.name, target.place))

    def _alike(self, base: Data, target: syn.Subscript, operand: KernelOperand, source: syn.ExpressionNode) -> bool:
        """Whether all instances that hold the same part of a tensor store the same there."""
        cut = set(base.dist.labels or ())
        axes = frozenset(axis for axis, size in enumerate(self.mesh) if size > 1 and axis not in cut)
        complete = replace(operand.dist, pending=layouts.NONE)  # or else the store is refused
        same = not self._branches and self._equal(target.index, axes)
        return same and (complete.alike(axes) or self._equal(source, axes))

    def _equal(self, node: syn.SyntaxNode, axes: frozenset[int]) -> bool:
        """Whether instances that differ along some mesh axes only compute the same value, judged by what is in the
        expression."""
        match node:
            case syn.Literal():
                return True
            case syn.Identifier(name=name):
                value = self.env.get(name, self.context.constants.get(name))
                return (
                    value.dist.alike(axes) if isinstance(value, Data) else value is not None and not self.varies(node)
                )
            case syn.Invocation():
                made = self.context.reading.collectives.values()
                at = self.task.name, node.place
                if any((c.task, c.place) == at and axes <= {*c.axes} and c.what != "reduce_scatter" for c in made):
                    return True
                parts = [*node.arguments, *(part.value for part in node.named)]
                own = isinstance(node.function, syn.Identifier) and node.function.name in {*KERNELS, *BITS, *FUNCTIONS}
                return own and node.called != "data" and all(self._equal(part, axes) for part in parts)
            case syn.ExpressionNode() if not isinstance(node, syn.Attribute | syn.Await | syn.Foreign):
                return all(self._equal(part, axes) for part in node.children)
        return False

    def relaid(
        self, value: Value, labels: layouts.Labels | None, name: str, where: str, source: syn.ExpressionNode
    ) -> Value:
        """Return a value with other labels and without pending reductions, if collectives can make it so. They are
        recorded, with a note, and the cycles of a load that the value needs are counted. The value is returned as it is
        if no collectives do, and in loops, in branches on data and in statements that assign to several targets.

        labels: the wanted ones; None if any will do. name: the tensor or variable whose layout asks for it. where: in
        front of which statement the collectives stand, for the note, such as "the store". source: the expression of the
        value."""
        operand = self.operand(source, value)
        steps = steps_to(operand, labels, self.mesh)
        if not isinstance(value, Data) or not steps or self._loops or self._branches or self.several:
            return value
        self.loaded(value, source)
        if any(step.axis is not None for step in steps):  # it has another shape where it is stored
            value = self.kept(value, source)
        made, moves = operand, list[Relayout]()
        try:
            for step in steps:
                before, made = made, after(made, step, self.mesh)
                exchanged = self.exchange(step, before.type, source, inserted=True)
                what = COLLECTIVES[step.what].split()[-1]
                size = 0 if exchanged is None else exchanged.size
                moves.append(Relayout(name, layouts.state(before.dist), layouts.state(made.dist), what, size))
        except Refusal as r:
            self.report(r, source)
            return value
        text = called(operand.text, [step.call for step in steps])
        self.context.source.add(
            "inserted",
            f"inserted before {where}: {text}",
            source.place,
            f"the layout of {name} asks for it",
            warning=True,
            subject=self.task.name,
            relayouts=tuple(moves),
        )
        assert isinstance(value, Data)
        return replace(value, type=made.type, dist=made.dist, tensor="")

    def settled(self, operand: KernelOperand, what: str, source: syn.ExpressionNode) -> None:
        """Add a finding if a value that is stored in a tensor, or returned, has pending reductions. operand: the value.
        what: the subject of the message, such as "the task". source: the expression of the value."""
        if operand.dist.pending:
            self.incomplete(operand, source, f"{what} stores {operand.text}")

    def _overwritten(self, base: Data, part: Data, into: KernelOperand, value: KernelOperand) -> Distribution:
        """Return the distribution of a tile in a variable after a part of it is overwritten. Raises `Refusal`."""
        old, new = base.dist, value.dist
        if base.type is None or part.type is None:
            if old.pending != new.pending:
                raise Refusal("pending", f"{into.text}: not all of it has the same reduction pending", None)
            return layouts.localised(old)
        whole = part.type.shape == base.type.shape
        if whole and value.shape == part.type.shape:
            return new
        pending = old.pending
        if old.pending != new.pending and not (new.number == 0 and not any(op != "+" for op, _ in old.pending)):
            if not (whole or (old.number == 0 and not any(op != "+" for op, _ in new.pending))):
                text = collective(value.text, new.pending) if new.pending else "reduce the rest first"
                message = f"{into.text}: a part with a reduction pending, and a part without it"
                raise Refusal("pending", message, None, text)
            pending = new.pending
        if new.uniform and not old.uniform:
            return replace(old, pending=pending)
        if new.uniform and old.number is not None and old.number == new.number:
            return old
        if old.uniform and new.labels is not None and len(part.type.shape) == len(base.type.shape):
            missing = len(part.type.shape) - len(new.labels)
            return Distribution((None,) * missing + new.labels, pending)
        return Distribution(old.labels if not part.dist.local and not new.local else None, pending)

    # -- variables and control ---------------------------------------------------------------------------------------

    def localise(self, node: syn.Block) -> None:
        """Make all variables that some statements assign local to the instance. Other instances may not run these
        statements, so nothing is known of the values that they have. node: the statements."""
        # Loops that stand for a grid are made here; what they hold are statements of the body.
        todo = [*node]
        names: set[str] = set()
        while todo:
            statement = todo.pop()
            if isinstance(statement, syn.ForLoop) and statement.made:
                todo += statement.body
            else:
                names |= statement.facts.assigned
        for name in names:
            value = self.env.get(name)
            self.by_layout |= isinstance(value, Data) and value.tensor != ""
            if isinstance(value, Data) and not value.dist.local and value.tensor != name:
                self.env[name] = replace(value, dist=layouts.localised(value.dist))


class PathState(NamedTuple):
    """The state of the reading at the end of a path. env: the values of variables. pending: the futures that are not
    read, by number. tokens: how the other futures were taken, by number."""

    env: dict[str, Value]
    pending: dict[int, Future]
    tokens: dict[int, tuple[Taken, Future]]


class Paths(Stores):
    """Follows the paths through the branches of a task instance. context, task, name, tid: as for `CostExpressions`.
    The attribute `before` is the number of the last future that was made before the innermost branch on data."""

    def __init__(self, context: RegionContext, task: TaskDecl, name: str, tid: tuple[int, ...]) -> None:
        super().__init__(context, task, name, tid)
        self.before = 0

    def save(self) -> PathState:
        """Return a copy of the state of this path: variables, unread futures, and how futures were taken. Raises
        `Refusal` as `RegionContext.step`."""
        size = len(self.env) + len(self.pending) + len(self.tokens)
        self.context.step(self.task.body, size // 8)
        return PathState(dict(self.env), {n: replace(future) for n, future in self.pending.items()}, dict(self.tokens))

    def restore(self, state: PathState) -> None:
        """Continue from a state that `save` returned; the state belongs to this path from then on."""
        self.env, self.pending, self.tokens = state

    def merge(self, a: PathState, b: PathState) -> None:
        """Continue from the states a and b of two paths, as one path.

        A variable whose values differ becomes data. A future that both paths have read is no longer kept. A future from
        before the branch that only one path has read counts as read by some paths (`Future.used`). Raises `Refusal` as
        `RegionContext.step`.
        """
        env: dict[str, Value] = {}
        tokens = either(a.tokens, b.tokens)
        self.context.step(self.task.body, len(a.env) // 2)
        for name in a.env.keys() | b.env.keys():
            x, y = a.env.get(name), b.env.get(name)
            if x is None or y is None:
                env[name] = x or y or Data()
            elif x is y or x == y:
                env[name] = x
            else:
                both = {f for v in (x, y) if isinstance(v, Data) for f in v.futures}
                # Of those that were taken, one of each kind tells as much as all.
                kinds = {tokens[f][0]: f for f in sorted(both, reverse=True) if f in tokens}
                futures = frozenset({f for f in both if f in a.pending or f in b.pending} | {*kinds.values()})
                varies = name in self.varying
                dist = merged(distribution_of(x, varies), distribution_of(y, varies))
                tensor = x.tensor if isinstance(x, Data) and isinstance(y, Data) and x.tensor == y.tensor else ""
                env[name] = Data(joined(type_of(x), type_of(y)), futures, dist, tensor)
        pending: dict[int, Future] = {}
        born = self.before
        for number in a.pending.keys() | b.pending.keys():
            x_future, y_future = a.pending.get(number), b.pending.get(number)
            future = x_future or y_future
            assert future is not None
            some = number <= born and (x_future is None or y_future is None)
            used = max(f.used for f in (x_future, y_future) if f is not None)
            pending[number] = replace(future, used=1 if some or used else 0)
        self.env, self.pending, self.tokens = env, pending, tokens

    def key(self, without: Container[str] = ()) -> object:
        """Return a key of the values of variables: if two states have equal keys, the statements that follow do the
        same from either. Futures are numbered in the order in which variables hold them. without: names of variables
        that are left out; if one of them holds a future that is not read, the key equals no other. Raises `Refusal` as
        `RegionContext.step`."""
        self.context.step(self.task.body, len(self.env) // 8)
        numbers: dict[int, int] = {}
        out: list[object] = []
        for name in sorted(self.env):
            value = self.env[name]
            if name in without:
                if isinstance(value, Data) and any(f in self.pending for f in value.futures):
                    return object()
                continue
            if isinstance(value, Static):
                out.append((name, type(value.value).__name__, value.value))
                continue
            waiting = [
                (numbers.setdefault(f, len(numbers)), self.pending[f].used)
                for f in sorted(value.futures)
                if f in self.pending
            ]
            how = frozenset(self.tokens[f][0] for f in value.futures if f in self.tokens)
            out.append((name, value.type, value.dist, value.tensor, tuple(waiting), how))
        return tuple(out)

    def prune(self) -> None:
        """Forget futures that no variable holds any more; add a finding for each of them that nothing has read. Inside
        an arm of a branch none is added, because the other arm may still hold the future."""
        if not self.pending and not self.tokens:
            return
        held = {f for v in self.env.values() if isinstance(v, Data) for f in v.futures}
        self.tokens = {f: how for f, how in self.tokens.items() if f in held}
        if self._branches == 0:
            self.unread(self.pending.keys() - held)

    def unread(self, numbers: set[int]) -> None:
        """Add a finding for each of some futures, which nothing reads, or some paths only, and forget them. numbers: of
        the futures."""
        source = self.context.source
        for number in sorted(numbers):
            future = self.pending.pop(number)
            if future.used:
                message = f"{self.name} reads what it gets from {future.stream} on some paths only"
                source.add("unread", message, future.place, warning=True, subject=self.name)
            else:
                message = f"{self.name} never reads what it gets from {future.stream}"
                source.add("unread", message, future.place, "drop(...) says that it is meant", subject=self.name)
