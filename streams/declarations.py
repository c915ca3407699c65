"""What a region declares: constants, streams, tensors, tasks, and calls of other regions, each of which is a region."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import prod
from typing import NoReturn

from ..base.element_types import BITS, ElementType
from ..isa.overlays.tasks import tree as t
from ..isa.overlays.tasks.program import ELEMENTS, FABRIC
from .expressions import STEPS, Expressions, FileReading, RegionContext
from .kernels import KERNELS
from .source import Refusal
from .syntax import nodes as syn
from .syntax.printer import shown
from .tree import SizeDecl, StreamDecl, TaskDecl, TaskParameter, TensorDecl
from .values import (
    Data,
    Limit,
    Static,
    StreamAnnotation,
    SymbolicNumber,
    Value,
    element_type,
    integer,
    is_size,
    is_stream,
    last_name,
    positive,
    sizes,
    stream_type,
    tensor_type,
    unquoted,
)

INSTANCES = Limit(1 << 16)
"""Limit of task instances of a file."""

STREAMS = Limit(1 << 20)
"""Limit of streams of a file, elements of arrays counted."""

REGIONS = Limit(1 << 12)
"""Limit of calls of regions."""


@dataclass
class Declared:
    """All that a region and the regions that it calls declare, in the order of the file.

    reading: what was found in the file. streams: arrays of streams. tensors: those off the chip. tasks: each with the
    scope in which it stands. size: the number of streams so far, all elements of arrays counted. regions: the number of
    calls of regions so far. given: values of sizes that a run gives, by name, in place of those in the file. sizes: the
    sizes that a run gives and the file declares."""

    reading: FileReading
    streams: list[StreamDecl] = field(default_factory=list)
    tensors: list[TensorDecl] = field(default_factory=list)
    tasks: list[tuple[TaskDecl, Scope]] = field(default_factory=list)
    size: int = 0
    regions: int = 0
    given: Mapping[str, int] = field(default_factory=dict)
    sizes: list[SizeDecl] = field(default_factory=list)


@dataclass(frozen=True)
class RegionDecl:
    """A region function of a file. body: the function. scope: the names that it sees."""

    body: syn.FunctionDefinition
    scope: Scope


class Scope:
    """The names of a file, or of one call of a region.

    declared: takes what is declared. outer: the scope in which the region stands; None for a file. prefix: text before
    the names that the call declares. active: the region functions whose calls are under way, this one included. wanted:
    the names that matter if only one region of a file is read, so that other tasks and calls of the file are skipped;
    None if the file itself is read."""

    def __init__(
        self,
        declared: Declared,
        outer: Scope | None = None,
        prefix: str = "",
        active: tuple[syn.FunctionDefinition, ...] = (),
        wanted: frozenset[str] | None = None,
    ) -> None:
        self.declared, self.prefix, self.active, self.wanted = declared, prefix, active, wanted
        self.source = declared.reading.source
        self.streams: dict[str, StreamDecl] = dict(outer.streams) if outer else {}
        self.tensors: dict[str, TensorDecl] = dict(outer.tensors) if outer else {}
        self.constants: dict[str, Value] = dict(outer.constants) if outer else {}
        self.sized: dict[str, t.Expression] = dict(outer.sized) if outer else {}
        self.tasks: dict[str, TaskDecl] = dict(outer.tasks) if outer else {}
        self.functions: dict[str, syn.FunctionDefinition] = dict(outer.functions) if outer else {}
        self.regions: dict[str, RegionDecl] = dict(outer.regions) if outer else {}
        self.own: set[str] = set()
        self.calls: dict[str, int] = {}
        self._uses: dict[str, bool] = {}
        self._opaque: list[syn.ExpressionNode] = []
        reading = declared.reading
        self.context = RegionContext(
            reading,
            self.streams,
            self.constants,
            self.tasks,
            self._uses,
            self.regions,
            self.tensors,
            sized=self.sized,
        )

    # -- statements --------------------------------------------------------------------------------------------------

    def read(self, statements: syn.Block) -> None:
        """Read the declarations among the statements of a file or a region. Mistakes are added to the source as
        findings.
        """
        for statement in statements:
            self.guard(self._declare, statement)
            if self.declared.reading.steps > STEPS:
                break
        for expression in self._opaque:
            self.guard(self._hidden_stream, expression)
        self._uses.update(self._users())

    def guard(self, action: Callable[..., None], node: syn.StatementNode | syn.ExpressionNode) -> None:
        """Call `action` with a node. A `Refusal` or a `RecursionError` that the action raises becomes a finding of the
        source, and nothing is raised."""
        try:
            action(node)
        except Refusal as r:
            self.source.add(r.code, r.message, r.place or node.place, *r.notes)
        except RecursionError:
            self.source.add("limit", "this is nested too deeply", node.place)

    def _declare(self, statement: syn.StatementNode) -> None:
        match statement:
            case syn.Evaluation(value=syn.Literal()) | syn.Skip():
                pass
            case syn.Evaluation(value=syn.Invocation(function=syn.Identifier(name=name)) as call) if (
                name in self.regions
            ):
                if self.wanted is None:
                    self.call(self.regions[name], name, call)
            case syn.ImportNames(module=module, aliases=aliases):
                for name, other in aliases:
                    if module is None:
                        self._constant((other or name).split(".")[0], Data(), statement)
                    elif module not in ("rsn.streams", "__future__"):
                        self._constant(other or name, Data(), statement)
                    elif other not in (None, name):
                        self._fail(statement, "names of the language keep their names: from rsn.streams import *")
            case syn.TooDeep():
                raise RecursionError
            case syn.Declaration(target=syn.Identifier(name=name), annotation=annotation, value=None):
                self._annotated(name, unquoted(annotation), statement)
            case syn.Declaration(
                target=syn.Identifier(name=name), annotation=annotation, value=syn.ExpressionNode() as value
            ) if is_size(unquoted(annotation)):
                self._size(name, unquoted(annotation), value, statement)
            case syn.Declaration(target=syn.Identifier() as target, value=syn.ExpressionNode() as value):
                self._assign(target, value, statement)
            case syn.Assignment(targets=(target,), value=value, augmented=False):
                self._assign(target, value, statement)
            case (
                syn.Branching(test=syn.ComparisonChain(left=syn.Identifier(name="__name__")))
                | syn.Branching(test=syn.Identifier(name="TYPE_CHECKING"))
            ):
                pass  # what runs if the file is run, and what only type-checkers see
            case syn.FunctionDefinition():
                self._function(statement)
            case syn.Assertion(test=test):
                if isinstance(self.evaluate_sized(test), Data):
                    self._fail(test, "this condition is not known before the run")
                Expressions(self.context, "the region", ()).held(statement)
            case _:
                self._fail(
                    statement,
                    f"a statement of this kind ({statement.kind}) at the top of a region",
                    "a region holds streams, tensors, constants, tasks, functions and calls of regions",
                )

    def _fail(self, node: syn.SyntaxNode, what: str, *notes: str) -> NoReturn:
        raise Refusal("unsupported", what, node, *notes)

    def evaluate(self, node: syn.ExpressionNode) -> Value:
        """Return the value of an expression outside of tasks that has one value for all runs, such as the depth of a
        stream. Raises `Refusal` as `evaluate_sized`, and for sizes that a run gives."""
        if found := sorted(node.facts.names & self.sized.keys()):
            where = "trips of loops, indices, conditions and shapes of tensors off the chip may depend on it"
            self._fail(node, f"each run gives {found[0]}, and one machine serves all runs", where)
        return self.evaluate_sized(node)

    def evaluate_sized(self, node: syn.ExpressionNode) -> Value:
        """Return the value of an expression outside of tasks, which may depend on sizes that a run gives. Raises
        `Refusal` for `get_tid`, streams, puts and gets in the expression, and for anything else that the language does
        not have."""
        for part in syn.walk(node):
            if isinstance(part, syn.Identifier) and part.name == "get_tid":
                self._fail(part, "get_tid stands in a task only")
            if isinstance(part, syn.Identifier | syn.Attribute) and is_stream(part):
                self._fail(
                    part, "a stream is declared by a name of its own", "s: Stream[i32, 4], or s = Stream[i32, 4][8]"
                )
        reader = Expressions(self.context, "the region", ())
        value = reader.eval(node)
        if reader.ops:
            self._fail(node, "put and get stand in tasks only")
        return value

    def _name(self, name: str, node: syn.SyntaxNode) -> None:
        """Declare a name; it hides the same name of an outer region."""
        known = (self.streams, self.tensors, self.tasks, self.functions, self.regions)
        if name in self.own and any(name in kind for kind in known):
            self._fail(node, f"{name} is declared twice")
        for kind in (*known, self.constants, self.sized):
            kind.pop(name, None)
        self.own.add(name)

    def _constant(self, name: str, value: Value, node: syn.SyntaxNode, sized: t.Expression | None = None) -> None:
        """Declare a constant. sized: the expression of sizes that it is, None if each run has the same value."""
        self._name(name, node)
        self.constants[name] = value
        if sized is not None:
            self.sized[name] = sized

    def _size(
        self, name: str, annotation: syn.ExpressionNode, value: syn.ExpressionNode, statement: syn.StatementNode
    ) -> None:
        """Declare a size that each run gives, as `rows: Size[32] = 8`."""
        if self.active:
            self._fail(statement, f"{name}: Size stands at the top of a file only", "a region gets it as an argument")
        if not isinstance(annotation, syn.Subscript) or isinstance(annotation.base, syn.Subscript):
            self._fail(annotation, "a size states its largest value", f"{name}: Size[32] = 8")
        largest, stated = positive(annotation.index, self.evaluate), positive(value, self.evaluate)
        found = self.declared.given.get(name, stated)
        if not isinstance(found, SymbolicNumber) and not 1 <= found <= largest:
            message = f"{name} = {found} is not from 1 to {largest}, as its declaration states"
            self.source.add("unsupported", message, value.place, subject=name)
        self._constant(name, Static(found), statement, t.Name(name))
        self.declared.sizes.append(SizeDecl(name, found, largest, statement.place))

    def _of_sizes(self, node: syn.ExpressionNode) -> t.Expression | None:
        """The expression of sizes that a constant is; None if it does not depend on any. Raises `Refusal` for other
        operations than arithmetic of whole numbers."""
        if not node.facts.names & self.sized.keys():
            return None
        match node:
            case syn.Identifier(name=name):
                return self.sized[name]
            case syn.Prefix(op="-", operand=operand):
                return t.Unary("-", self._operand(operand))
            case syn.Infix(left=left, op="+" | "-" | "*" | "//" | "%" as op, right=right):
                return t.Binary(op, self._operand(left), self._operand(right))
            case syn.Invocation(function=syn.Identifier(name="min" | "max" as name), arguments=arguments, named=()):
                return t.Kernel(name, tuple(map(self._operand, arguments)))
        self._fail(node, "what follows from a size is computed by + - * // %, min and max")

    def _operand(self, node: syn.ExpressionNode) -> t.Expression:
        made = self._of_sizes(node)
        return t.Constant(integer(node, self.evaluate)) if made is None else made

    def _annotated(self, name: str, annotation: syn.ExpressionNode, statement: syn.StatementNode) -> None:
        if is_stream(annotation):
            self._stream(name, annotation, statement)
            return
        if is_size(annotation):
            self._fail(annotation, f"{name} has no value for runs that give none", f"{name}: Size[32] = 8")
        kind = tensor_type(annotation, self.evaluate_sized)
        if kind.type is None:
            self._fail(
                annotation, f"{name} is no stream and no tensor", f"{name}: Stream[i32, 4], or {name}: f32[64, 64]"
            )
        if kind.layout is not None:
            self._fail(annotation, "a layout stands at the parameter of a task", f"{name} is the whole tensor")
        sized = self._sized_axes(annotation)
        self._tensor(name, TensorDecl(self.prefix + name, kind.type, statement.place, sized), statement)

    def _sized_axes(self, annotation: syn.ExpressionNode) -> tuple[tuple[int, t.Expression], ...]:
        """The axes of a tensor of which each run gives the sizes, as `TensorDecl` has them."""
        if not annotation.facts.names & self.sized.keys():
            return ()
        if not isinstance(annotation, syn.Subscript) or not isinstance(annotation.base, syn.Identifier):
            self._fail(annotation, "the shape of a tensor with a size that each run gives is written as f32[rows, 64]")
        made = [(axis, self._of_sizes(part)) for axis, part in enumerate(annotation.indices)]
        return tuple((axis, size) for axis, size in made if size is not None)

    def _tensor(self, name: str, tensor: TensorDecl, node: syn.SyntaxNode) -> None:
        self._name(name, node)
        self.tensors[name] = tensor
        if self.wanted is None or name in self.wanted:
            self.declared.tensors.append(tensor)

    def _assign(self, target: syn.ExpressionNode, value: syn.ExpressionNode, statement: syn.StatementNode) -> None:
        if syn.is_tuple(target) and syn.is_tuple(value) and len(target.items) == len(value.items):
            for part, its in zip(target.items, value.items, strict=True):
                self._assign(part, its, statement)
            return
        if syn.is_tuple(target) and all(isinstance(part, syn.Identifier) for part in target.items):
            found = self.evaluate(value)
            known = found.value if isinstance(found, Static) else None
            if not isinstance(known, tuple) or len(known) != len(target.items):
                self._fail(value, f"{len(target.items)} names for what is no tuple of as many values")
            for part, its in zip(target.items, known or (), strict=True):
                self._constant(part.name if isinstance(part, syn.Identifier) else "", Static(its), statement)
            return
        if not isinstance(target, syn.Identifier):
            self._fail(target, "only names are assigned at the top of a region")
        if is_stream(value):
            self._stream(target.name, value, statement)
        elif self._is_type(value):
            self._constant(target.name, Static(element_type(value, self.evaluate)), statement)
        else:
            found = self.evaluate_sized(value)
            if isinstance(found, Data):
                self._opaque.append(value)
            self._constant(target.name, found, statement, self._of_sizes(value))

    def _is_type(self, node: syn.ExpressionNode) -> bool:
        """Whether an expression names an element type: `f32[4, 4]`, or a constant that is one."""
        node = node.root if isinstance(node, syn.Subscript) else node
        if not isinstance(node, syn.Identifier):
            return False
        known = self.constants.get(node.name)
        return (
            node.name in BITS if known is None else isinstance(known, Static) and isinstance(known.value, ElementType)
        )

    def _hidden_stream(self, expression: syn.ExpressionNode) -> None:
        for part in syn.walk(expression):
            if isinstance(part, syn.Identifier) and part.name in self.streams:
                self._fail(part, f"{part.name} is a stream: only tasks use it")

    # -- streams and tasks -------------------------------------------------------------------------------------------

    def _stream(self, name: str, annotation: syn.ExpressionNode, statement: syn.StatementNode) -> None:
        self._name(name, statement)
        kind = stream_type(annotation, self.evaluate)
        if self.wanted is not None and name not in self.wanted:
            return
        depth = 2 if kind.depth is None else kind.depth
        packing = 1 if kind.packing is None else kind.packing
        place, full = statement.place, self.prefix + name
        if depth < 1:
            self.source.add("depth0", f"{full} has depth {depth}; it must be at least 1", place, subject=full)
            depth = 1
        if packing < 1 or depth % packing:
            message = f"{full}: transfers of {packing} elements do not divide its depth of {depth}"
            self.source.add("pack", message, place, subject=full)
            packing = 1
        first, size = self.declared.size, prod(kind.shape)
        if first + size > STREAMS:
            raise Refusal("limit", f"{full} brings the streams to more than {STREAMS}", statement)
        stream = StreamDecl(full, kind.type, depth, packing, kind.shape, place, first, kind.order)
        self.streams[name] = stream
        self.declared.streams.append(stream)
        self.declared.size = first + size

    def _function(self, node: syn.FunctionDefinition) -> None:
        self._name(node.name, node)
        kinds = {last_name(d): d for d in node.decorators if last_name(d) in ("task", "region")}
        for decorator in kinds.values():
            function = decorator.function if isinstance(decorator, syn.Invocation) else decorator
            if not isinstance(function, syn.Identifier):
                self._fail(decorator, f"{last_name(decorator)} stands alone: from rsn.streams import *")
        if "task" in kinds:
            self._task(node, kinds["task"])
        elif "region" in kinds:
            self._region(node, kinds["region"])
        else:
            for part in syn.walk(node):
                if isinstance(part, syn.FunctionDefinition) and any(last_name(d) == "task" for d in part.decorators):
                    self._fail(node, f"{node.name} declares tasks, so it is a region: @region() above it")
            self.functions[node.name] = node

    def _task(self, node: syn.FunctionDefinition, call: syn.ExpressionNode) -> None:
        keywords = call.keywords if isinstance(call, syn.Invocation) else {}
        if "mapping" not in keywords:
            raise Refusal("unsupported", "a task states its grid: @task(mapping=[1])", call)
        extra = isinstance(call, syn.Invocation) and call.arguments
        if keywords.keys() - {"mapping", "args", "rates", "double_buffer"} or len(node.decorators) > 1 or extra:
            message = "a task has mapping=, args=, rates= and double_buffer=, and no other decorators"
            raise Refusal("unsupported", message, call)
        grid = keywords["mapping"]
        shape = sizes(grid, self.evaluate)
        if not shape:
            raise Refusal("unsupported", "a grid has at least one axis: mapping=[1]", grid)
        if prod(shape) > INSTANCES:
            raise Refusal("limit", f"a grid of {prod(shape)} instances; the limit is {INSTANCES}", grid)
        parameters = self._parameters(node, keywords.get("args"))
        rates = self._rates(keywords["rates"]) if "rates" in keywords else ()
        asks = keywords.get("double_buffer")
        stated = Static(False) if asks is None else self.evaluate(asks)
        if not isinstance(stated, Static) or not isinstance(stated.value, bool):
            raise Refusal("unsupported", "double_buffer= is True or False", asks)
        task = TaskDecl(self.prefix + node.name, shape, node, node.place, parameters, rates, stated.value)
        self.tasks[node.name] = task
        if self.wanted is None:
            self.declared.tasks.append((task, self))

    def _rates(self, node: syn.ExpressionNode) -> tuple[tuple[str, float], ...]:
        stated = node.keywords if isinstance(node, syn.Invocation) and not node.arguments else {}
        if not stated or not isinstance(node, syn.Invocation) or shown(node.function) != "dict":
            raise Refusal("unsupported", "rates= states work in a cycle by kernel: rates=dict(matmul=128)", node)
        made = []
        for name, value in stated.items():
            stated_rate = self.evaluate(value)
            rate = stated_rate.value if isinstance(stated_rate, Static) else None
            known = (*KERNELS, ELEMENTS, FABRIC)
            if name not in known:
                close = get_close_matches(str(name), known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
                raise Refusal("unsupported", f"there is no kernel {name}", value, hint)
            if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 < rate < 1e15:
                raise Refusal("unsupported", f"{name} = {shown(value)}: work in a cycle, larger than 0", value)
            made.append((str(name), float(rate)))
        return tuple(made)

    def _parameters(self, node: syn.FunctionDefinition, listed: syn.ExpressionNode | None) -> tuple[TaskParameter, ...]:
        names = node.parameters
        if any(name.form != "args" or name.default is not None for name in names):
            raise Refusal("unsupported", "a task has plain parameters only, one for each tensor of args=", node)
        if listed is not None and not syn.is_listed(listed):
            raise Refusal("unsupported", "args= is a list of tensors: args=[A, B]", listed)
        given: list[syn.ExpressionNode | None] = [*listed.items] if listed is not None else [None] * len(names)
        if len(given) != len(names):
            count = f"{len(names)} parameter{'s' * (len(names) != 1)}"
            message = f"{node.name} has {count}, and args= has {len(given)} tensor{'s' * (len(given) != 1)}"
            raise Refusal("unsupported", message, listed)
        return tuple(self._parameter(name, value) for name, value in zip(names, given, strict=True))

    def _parameter(self, argument: syn.FormalParameter, value: syn.ExpressionNode | None) -> TaskParameter:
        tensor = None if value is None else self._tensor_of(value)
        note = argument.annotation
        place = argument.place if note is None else note.place
        evaluate = self.evaluate if tensor is None else self.evaluate_sized
        kind, layout = (None, None) if note is None else tensor_type(note, evaluate)
        if tensor is not None:
            if kind is not None and kind != tensor.type:
                message = f"{argument.name} is {kind}, but args= binds {tensor.name}: {tensor.type}"
                note_text = "the annotation of a parameter states the whole tensor; the layout cuts it"
                self.source.add("type", message, place, note_text, subject=tensor.name)
            kind = tensor.type
        return TaskParameter(argument.name, tensor, kind, layout, place)

    def _tensor_of(self, node: syn.ExpressionNode) -> TensorDecl:
        if isinstance(node, syn.Identifier) and node.name in self.tensors:
            return self.tensors[node.name]
        text = shown(node)[:40]
        close = get_close_matches(text, self.tensors, n=1, cutoff=0.6)
        notes = [f"did you mean {name}?" for name in close] or [f"declare it at the top: {text}: f32[64, 64]"]
        raise Refusal(
            "unsupported", f"{text} is no tensor of this region", node, *notes[: isinstance(node, syn.Identifier)]
        )

    # -- functions and regions ---------------------------------------------------------------------------------------

    def _users(self) -> dict[str, bool]:
        """Which functions use streams, directly or through others."""
        callers: dict[str, list[str]] = {}
        users: dict[str, bool] = dict.fromkeys(self.functions, False)
        todo: list[str] = []
        for name, function in self.functions.items():
            for its in function.facts.names:
                if its in self.functions:
                    callers.setdefault(its, []).append(name)
                elif its in self.streams or its in self.tasks or its in self.regions:
                    todo.append(name)
        while todo:
            name = todo.pop()
            if not users[name]:
                users[name] = True
                todo += callers.get(name, ())
        return users

    def _region(self, node: syn.FunctionDefinition, decorator: syn.ExpressionNode) -> None:
        if node.coroutine:
            raise Refusal("unsupported", "a region is no coroutine: def", node)
        if len(node.decorators) > 1 or (
            isinstance(decorator, syn.Invocation) and (decorator.arguments or decorator.named)
        ):
            raise Refusal("unsupported", "region takes no arguments, and no other decorators", decorator)
        if any(p.form in ("vararg", "kwarg") for p in node.parameters):
            raise Refusal("unsupported", "a region has named parameters only", node)
        self.regions[node.name] = RegionDecl(node, self)

    def call(self, region: RegionDecl, name: str, call: syn.Invocation | None) -> None:
        """Declare what a region holds. region: its function. name: under which it is called. call: the call with its
        arguments; None for a region that is read by itself, with its defaults. Raises `Refusal` for a region that calls
        itself, for more than `REGIONS` calls, and for arguments that do not fit."""
        body, node = region.body, call or region.body
        if body in self.active:
            raise Refusal("unsupported", f"{name} calls itself; regions do not", node)
        self.declared.regions += 1
        if self.declared.regions > REGIONS:
            raise Refusal("limit", f"more than {REGIONS} calls of regions", node)
        outer = region.scope
        kinds: tuple[Sized, ...] = (outer.streams, outer.tensors, outer.constants, outer.tasks, outer.functions)
        self.context.step(node, 1 + sum(map(len, kinds)) // 2 + body.facts.size)
        number = self.calls[name] = self.calls.get(name, 0) + 1
        prefix = "" if call is None else f"{self.prefix}{name}{f'#{number}' if number > 1 else ''}."
        inner = Scope(self.declared, region.scope, prefix, (*self.active, body))
        given = {} if call is None else _given(body.parameters, name, call)
        for parameter in body.parameters:
            if parameter.name in given:
                inner.bind(parameter, given[parameter.name], self)
            elif parameter.default is not None:
                inner.bind(parameter, parameter.default, region.scope)
            else:
                inner.missing(parameter, name, call)
        inner.read(body.body)

    def bind(self, parameter: syn.FormalParameter, value: syn.ExpressionNode, scope: Scope) -> None:
        """Bind a parameter of a region to an argument: a number, a stream, a part of an array of streams, or a tensor.
        value: the argument. scope: where the argument is written. Raises `Refusal` for an argument of another type than
        the parameter states, or one that is not known before the run."""
        name, note = parameter.name, None if parameter.annotation is None else unquoted(parameter.annotation)
        base = value.base if isinstance(value, syn.Subscript) else value
        if isinstance(base, syn.Identifier) and base.name in scope.streams:
            stream = scope.part(scope.streams[base.name], value)
            if note is not None:
                self._agree(name, stream, note, value)
            self._name(name, parameter)
            self.streams[name] = stream
        elif isinstance(value, syn.Identifier) and value.name in scope.tensors:
            tensor = scope.tensors[value.name]
            stated = None if note is None or is_stream(note) else tensor_type(note, self.evaluate_sized).type
            if note is not None and stated != tensor.type:
                text = shown(note)[:40]
                raise Refusal("type", f"{name} is {text}, but {tensor.name} is {tensor.type}", value)
            self._name(name, parameter)
            self.tensors[name] = tensor
        else:
            found = scope.evaluate_sized(value)
            kinds = {"int": int | SymbolicNumber, "float": int | float, "bool": bool, "str": str}
            wanted = note.name if isinstance(note, syn.Identifier) else shown(note)[:40] if note is not None else ""
            if not isinstance(found, Static):
                raise Refusal("unsupported", f"the argument {name} is not known before the run", value)
            if wanted and not (wanted in kinds and isinstance(found.value, kinds[wanted])) and wanted != "tuple":
                raise Refusal("type", f"{name} is {wanted}, but the argument is {found.value!r}"[:200], value)
            self._constant(name, found, parameter, scope._of_sizes(value))

    def missing(self, parameter: syn.FormalParameter, name: str, call: syn.Invocation | None) -> None:
        """Declare a parameter that has neither an argument nor a default. name: of the region, for messages. call: None
        for a region that is read by itself: then a parameter with the type of a tensor becomes a tensor off the chip.
        Raises `Refusal` for any other parameter, and for a call."""
        if call is not None:
            raise Refusal("unsupported", f"{name} needs an argument {parameter.name}", call)
        note = None if parameter.annotation is None else unquoted(parameter.annotation)
        if note is not None and is_stream(note):
            message = f"{name} takes the stream {parameter.name} from its caller; check the file that calls it"
            raise Refusal("unsupported", message, parameter)
        kind = None if note is None else tensor_type(note, self.evaluate_sized)
        if note is None or kind is None or kind.type is None:
            message = f"the parameter {parameter.name} of {name} has no default, so {name} cannot be read alone"
            raise Refusal("unsupported", message, parameter)
        tensor = TensorDecl(parameter.name, kind.type, parameter.place, self._sized_axes(note))
        self._tensor(parameter.name, tensor, parameter)

    def part(self, stream: StreamDecl, node: syn.ExpressionNode) -> StreamDecl:
        """Return the part of an array of streams that an expression selects. node: `s[i]`, with leading indices of the
        array; an expression without indices selects all. Raises `Refusal` for an index that is outside the array, or
        that is not known before the run.
        """
        if not isinstance(node, syn.Subscript):
            return stream
        parts = node.indices
        index = [integer(part, self.evaluate) for part in parts]
        if len(index) > len(stream.shape) or any(not 0 <= i < n for i, n in zip(index, stream.shape, strict=False)):
            at, shape = ",".join(map(str, index)), ",".join(map(str, stream.shape))
            raise Refusal("index", f"{stream.name}[{at}] is outside {stream.name}[{shape}]", node)
        first, rest = stream.first, stream.shape
        for i in index:
            rest = rest[1:]
            first += i * prod(rest)
        return replace(stream, name=f"{stream.name}[{','.join(map(str, index))}]", shape=rest, first=first)

    def _agree(self, name: str, stream: StreamDecl, note: syn.ExpressionNode, value: syn.ExpressionNode) -> None:
        if not is_stream(note):
            raise Refusal("type", f"{name} is {shown(note)[:40]}, but {stream.name} is a stream", value)
        kind = stream_type(note, self.evaluate)
        own = StreamAnnotation(stream.type, stream.depth, stream.packing, stream.shape, stream.order)
        for what, stated, its in zip(("elements", "depth", "packing", "shape", "order"), kind, own, strict=True):
            if stated is not None and stated != its:
                message = f"{what} of {name}: {_text(stated)}, but {stream.name} has {_text(its)}"
                raise Refusal("type", message, value)


def _given(
    parameters: Sequence[syn.FormalParameter], name: str, call: syn.Invocation
) -> Mapping[str, syn.ExpressionNode]:
    """Return the arguments of a call by name. Raises `Refusal`."""
    ordered = [p.name for p in parameters if p.form in ("posonlyargs", "args")]
    known = {p.name for p in parameters if p.form != "posonlyargs"}
    if any(isinstance(a, syn.Starred) for a in call.arguments) or any(k.name is None for k in call.named):
        raise Refusal("unsupported", "a region is called with plain arguments", call)
    if len(call.arguments) > len(ordered):
        raise Refusal("unsupported", f"{name} takes {len(ordered)} arguments, not {len(call.arguments)}", call)
    given = dict(zip(ordered, call.arguments, strict=False))
    for keyword in call.named:
        if keyword.name not in known or keyword.name in given:
            what = "is given twice" if keyword.name in given else f"is no parameter of {name}"
            raise Refusal("unsupported", f"{keyword.name} {what}", keyword.value)
        given[str(keyword.name)] = keyword.value
    return given


def _text(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) and not hasattr(value, "dtype") else str(value)


def names_below(statements: syn.Block, region: str) -> frozenset[str]:
    """Return the names that a function of a file uses, with those of the functions of the file that it may call.
    statements: of the file. region: the name of the function."""
    functions = {node.name: node for node in statements if isinstance(node, syn.FunctionDefinition)}
    found: set[str] = set()
    todo, seen = [region], set[str]()
    while todo:
        name = todo.pop()
        if name in functions and name not in seen:
            seen.add(name)
            names = functions[name].facts.names
            found |= names
            todo += names
    return frozenset(found)
