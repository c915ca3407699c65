"""Double buffering: divides a task into parts that load, compute and store at the same time (decoupled access/execute).

`gemm` becomes `gemm.load`, which reads the parts of tensors, `gemm`, which computes, and `gemm.store`, which writes
them. Each load and each store of the program has a stream in its place, a *buffer*: while one token is computed with,
the next one is loaded. Loops, static branches and what their sizes and indices are made of stand in each
part that needs them. All that follows (check, time, machine, C++, mapping) sees ordinary tasks and streams. So a load
that would run ahead of a store to the same element is a race, which the check refuses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ..base.element_types import BITS, ElementType
from ..base.place import Place
from .declarations import STREAMS, Declared
from .elaborate import Elaborator
from .expressions import FileReading, RegionContext
from .kernels import KERNELS
from .source import Refusal, Source
from .syntax import nodes as syn
from .syntax.printer import shown
from .tree import StreamDecl, TaskDecl
from .values import FUNCTIONS, Static, Value, accepts, type_of

SLOTS = 2
"""Tokens of a buffer: one is ready while the next one comes. Of a task whose loops access tensors, an access outside of
them has one, since it comes once for many of the others."""

LOAD, STORE = "load", "store"
"""The parts of a task beside the one that computes, which keeps its name."""

CONTROL = frozenset((*FUNCTIONS, *syn.META, "range", "grid", "get_tid"))
"""Functions of what decides which accesses come."""

Kinds = dict[syn.ExpressionNode, set[ElementType | None]]
"""The element types of accesses, each those of all instances and iterations; None is one that is not known."""

DividedTask = tuple[TaskDecl, RegionContext]
"""A task, or a part of one, with the names that it sees."""


def double_buffered(declared: Declared, chosen: Collection[str]) -> list[DividedTask]:
    """Return the tasks of a region. A task that asks for double buffering is replaced by the part of it that computes;
    the parts that load and store are added behind all tasks, and the streams between the parts are declared.

    declared: what the region declares; takes the new streams. chosen: the names of further tasks that are divided
    although they do not ask. A task that cannot be divided becomes a finding of the source, and stays whole."""
    tasks, engines = list[DividedTask](), list[DividedTask]()
    for task, scope in declared.tasks:
        found: list[DividedTask] = [(task, scope.context)]
        if task.double_buffer or task.name in chosen:
            try:
                found = divided(task, scope.context, declared)
            except Refusal as r:
                scope.context.source.add(r.code, r.message, r.place, *r.notes, subject=task.name)
        tasks.append(found[0])
        engines += found[1:]
    declared.reading.streams = declared.size
    return [*tasks, *engines]


def divided(task: TaskDecl, context: RegionContext, declared: Declared) -> list[DividedTask]:
    """Return the parts of a task that is double buffered: the one that computes, and those that load and store if there
    are any. context: of the region in which the task stands. declared: takes the streams between the parts. A task with
    mistakes is returned whole, since it is checked later. Raises `Refusal` if the task cannot be divided."""
    found = _TaskAccesses(task, context)
    kinds: Kinds = {node: set() for node in (*found.loads, *found.stores)}
    if not _read(task, context, kinds):
        return [(task, context)]
    parts = _Parts(found, kinds, declared)
    own = [parts.part("", parts.computing(task.body.body))]
    own += [parts.part(which, body) for which in (LOAD, STORE) if (body := parts.moving(task.body.body, which))]
    streams = {**context.streams, **{buffer.name: buffer for buffer in parts.buffers}}
    shared = RegionContext(
        context.reading, streams, context.constants, context.tasks, context.functions, context.regions, context.tensors
    )
    return [(part, shared) for part in own]


class _AccessReader(Elaborator):
    """Reads an instance, and notes the types of accesses."""

    def __init__(self, context: RegionContext, task: TaskDecl, name: str, tid: tuple[int, ...], kinds: Kinds) -> None:
        super().__init__(context, task, name, tid)
        self.kinds = kinds

    def eval(self, node: syn.ExpressionNode) -> Value:
        """Return the value of an expression. Raises `Refusal`."""
        value = super().eval(node)
        if node in self.kinds:
            self.kinds[node].add(type_of(value))
        return value

    def stores(self, target: syn.Subscript, kind: ElementType | None, value: Value, source: syn.ExpressionNode) -> None:
        """Note the type of a store: None if it is not the one of the value, which would repeat along axes."""
        if target in self.kinds:
            given = type_of(value)
            fits = kind is not None and accepts(kind, given) and (given is not None or not kind.shape)
            self.kinds[target].add(kind if fits else None)


def _read(task: TaskDecl, context: RegionContext, kinds: Kinds) -> bool:
    """Note the types of the accesses of all instances; return whether there is no mistake. Raises `Refusal` for tensors
    that have several names."""
    reading = context.reading
    own = Source(reading.source.text, reading.source.file, tree=reading.source.tree)
    copy = FileReading(own, rates=reading.rates, float_add=reading.float_add, variants=reading.variants)
    copy.streams = reading.streams
    for number in range(prod(task.mapping)):
        tid = tuple(number // prod(task.mapping[k + 1 :]) % size for k, size in enumerate(task.mapping))
        if not _AccessReader(replace(context, reading=copy), task, task.name, tid, kinds).instance().whole:
            return False
    if copy.renamed:
        raise _refusal(task, task.body, "a tensor has several names in it")
    return not any(not finding.warning for finding in own.findings)


def _refusal(task: TaskDecl, node: syn.SyntaxNode, why: str, *notes: str) -> Refusal:
    return Refusal("unsupported", f"{task.name} cannot be double buffered: {why}", node, *notes)


class _TaskAccesses:
    """What a task loads and stores, and which variables are known wherever they are written. loads, stores: in the
    order of the file. known: variables whose values follow from sizes, constants, the point of the grid and indices of
    loops. needed: those of them that accesses, and the loops and branches around these, are made of."""

    def __init__(self, task: TaskDecl, context: RegionContext) -> None:
        self.task, self.context = task, context
        self.tensors = {p.name for p in task.parameters if p.tensor is not None}
        self.loads: dict[syn.ExpressionNode, None] = {}
        self.stores: dict[syn.Subscript, syn.Assignment] = {}
        self._statements(task.body.body)
        if not self.loads and not self.stores:
            raise _refusal(task, task.body, "it neither loads nor stores")
        self.known = self._known()
        self.needed = self._needed()

    def inside(self, block: Iterable[syn.SyntaxNode]) -> bool:
        """Whether there is an access in some nodes."""
        return any(node in self.loads or node in self.stores for part in block for node in syn.walk(part))

    # -- loads and stores --------------------------------------------------------------------------------------------

    def _statements(self, block: syn.Block) -> None:
        for statement in block:
            match statement:
                case syn.Jump() | syn.Returning():
                    raise _refusal(self.task, statement, f"{statement.kind.lower()} decides which accesses come")
                case syn.Assignment(targets=targets, value=value):
                    for target in targets:
                        self._target(target, statement)
                    self._loads(value, bound=True)
                case syn.Declaration(target=target, value=value):
                    self._target(target, None)
                    if value is not None:
                        self._loads(value, bound=True)
                case syn.ForLoop(target=target, iterable=head, body=body):
                    self._target(target, None)
                    self._loads(head)
                    self._statements(body)
                case syn.WhileLoop(test=test, body=body):
                    self._loads(test)
                    self._statements(body)
                case syn.Branching(test=test, body=body, orelse=other):
                    self._loads(test)
                    self._statements((*body, *other))
                case syn.MetaChain(arms=arms):
                    for arm in arms:
                        self._statements(arm.body)
                case _:
                    for part in statement.children:
                        self._loads(part)

    def _target(self, target: syn.ExpressionNode, statement: syn.Assignment | None) -> None:
        root = target.root if isinstance(target, syn.Subscript) else None
        if isinstance(root, syn.Identifier) and root.name in self.tensors:
            assert isinstance(target, syn.Subscript)
            if statement is None or len(statement.targets) > 1 or target.base is not root:
                raise _refusal(self.task, target, "this stores in another form than x[...] = value")
            if any(p.name == root.name and (p.layout or "").endswith("!") for p in self.task.parameters):
                raise _refusal(self.task, target, f"the layout of {root.name} asks for collectives")
            self.stores[target] = statement
            return
        for node in syn.walk(target):
            if isinstance(node, syn.Identifier) and node.name in self.tensors:
                raise _refusal(self.task, node, "this gives a tensor a new value, or stores through another one")

    def _loads(self, node: syn.SyntaxNode, bound: bool = False) -> None:
        """Find loads. bound: the value is that of a variable, which would be another name for a whole tensor."""
        match node:
            case syn.Subscript(root=syn.Identifier(name=name)) if name in self.tensors:
                self.loads[node] = None
            case syn.Attribute(base=syn.Identifier(), name="shape" | "ndim"):
                pass
            case syn.Identifier(name=name):
                if name in syn.COLLECTIVES:
                    raise _refusal(self.task, node, "it has a collective")
                if name in self.tensors:
                    if bound:
                        raise _refusal(self.task, node, f"this is another name for {name}", f"load {name}[...] here")
                    self.loads[node] = None
            case syn.Conditional() | syn.Logical():
                if any(isinstance(part, syn.Identifier) and part.name in self.tensors for part in syn.walk(node)):
                    raise _refusal(self.task, node, "a condition decides whether this is loaded")
            case syn.Invocation(function=function):
                if isinstance(function, syn.Attribute):
                    if function.name in syn.COLLECTIVES:
                        raise _refusal(self.task, node, "it has a collective")
                    self._loads(function.base)
                own = isinstance(function, syn.Attribute) or node.called in {*KERNELS, *BITS, "use", "drop", "local"}
                given: list[syn.SyntaxNode] = [*node.arguments, *(named.value for named in node.named)]
                for part in given:
                    if not own and isinstance(part, syn.Identifier) and part.name in self.tensors:
                        raise _refusal(self.task, part, f"{node.called or 'this function'} may store into {part.name}")
                    self._loads(part)
                if node.called in syn.COLLECTIVES:
                    raise _refusal(self.task, node, "it has a collective")
            case syn.Foreign() | syn.ForeignStatement():
                if any(isinstance(part, syn.Identifier) and part.name in self.tensors for part in syn.walk(node)):
                    raise _refusal(self.task, node, "the language has no rules for this access")
            case _:
                for part in node.children:
                    self._loads(part)

    # -- variables -------------------------------------------------------------------------------------------------

    def _known(self) -> frozenset[str]:
        """Variables that do not depend on data: all that are assigned, but those that may."""
        known = frozenset(
            node.name for node in syn.walk(self.task.body) if isinstance(node, syn.Identifier) and node.stored
        )
        while True:
            unknown = frozenset(self._by_data(self.task.body.body, known, decided=True))
            if not unknown & known:
                return known
            known -= unknown

    def _by_data(self, block: syn.Block, known: frozenset[str], decided: bool) -> Iterator[str]:
        """Variables that depend on data. known: those that do not, as far as was found. decided: data does not decide
        whether the statements run."""
        for statement in block:
            match statement:
                case syn.Assignment(targets=targets, value=value):
                    plain = all(not isinstance(target, syn.Subscript) for target in targets)
                    if not (decided and plain and self.is_known(value, known)):
                        yield from statement.facts.assigned
                case syn.Declaration(value=value):
                    if not decided or value is None or not self.is_known(value, known):
                        yield from statement.facts.assigned
                case syn.ForLoop(target=target, iterable=head, body=body):
                    certain = decided and self.is_known(head, known)
                    if not certain:
                        yield from target.facts.assigned
                    yield from self._by_data(body, known, certain)
                case syn.WhileLoop(test=test, body=body):
                    yield from self._by_data(body, known, decided and self.is_known(test, known))
                case syn.Branching(test=test, body=body, orelse=other):
                    yield from self._by_data((*body, *other), known, decided and self.is_known(test, known))
                case syn.MetaChain(arms=arms):
                    for arm in arms:
                        yield from self._by_data(arm.body, known, decided)
                case _:
                    yield from statement.facts.assigned

    def is_known(self, node: syn.SyntaxNode, known: frozenset[str] | None = None) -> bool:
        """Whether an expression does not depend on data. known: variables that do not."""
        known = self.known if known is None else known
        match node:
            case syn.Identifier(name=name):
                return name in known or isinstance(self.context.constants.get(name), Static)
            case syn.Attribute(base=syn.Identifier(name=name), name="shape" | "ndim"):
                return name in self.tensors
            case syn.Invocation(named=()):
                return node.called in CONTROL and all(self.is_known(part, known) for part in node.arguments)
            case syn.Attribute() | syn.Await() | syn.Foreign() | syn.Starred() | syn.Invocation():
                return False
        return all(self.is_known(part, known) for part in node.children)

    def _needed(self) -> frozenset[str]:
        """Variables of accesses and of what is around them, and those that they are made of. Raises `Refusal` if one
        depends on data."""
        needed: set[str] = set()
        for node in (*self.loads, *self.stores):
            if isinstance(node, syn.Subscript):
                self._settled(node.index, "where", needed)
                if node.base is not node.root:
                    raise _refusal(self.task, node, "this loads in another form than x[...]")
        todo = [*self.task.body.body]
        while todo:
            statement = todo.pop()
            match statement:
                case syn.ForLoop(iterable=head, body=body) if self.inside(body):
                    self._settled(head, "how often", needed)
                    todo += body
                case syn.WhileLoop(test=test, body=body) if self.inside((test, *body)):
                    self._settled(test, "how often", needed)
                    todo += body
                case syn.Branching(test=test, body=body, orelse=other) if self.inside((*body, *other)):
                    self._settled(test, "whether", needed)
                    todo += (*body, *other)
                case syn.MetaChain(arms=arms):
                    for arm in arms:
                        if self.inside(arm.body):
                            needed |= {name for chain in arms for head in chain.heads for name in head.facts.names}
                        todo += arm.body
        assigning = [node for node in syn.walk(self.task.body) if isinstance(node, syn.Assignment | syn.Declaration)]
        while True:
            more = {
                name for node in assigning if node.facts.assigned & needed & self.known for name in node.facts.names
            }
            if more <= needed:
                return frozenset(needed & self.known)
            needed |= more

    def _settled(self, node: syn.ExpressionNode, what: str, needed: set[str]) -> None:
        if not self.is_known(node):
            raise _refusal(self.task, node, f"data decide {what} it accesses tensors")
        needed |= node.facts.names


class _Parts:
    """Makes the parts of a task. buffers: the stream of each access, in the order of the file."""

    def __init__(self, found: _TaskAccesses, kinds: Kinds, declared: Declared) -> None:
        self.found, self.task, self.declared = found, found.task, declared
        self.buffers: list[StreamDecl] = []
        self._stream: dict[syn.ExpressionNode, StreamDecl] = {}
        loops = (node for node in syn.walk(self.task.body) if isinstance(node, syn.ForLoop | syn.WhileLoop))
        accesses = {*found.loads, *found.stores}
        self._often = {node for loop in loops for node in syn.walk(loop) if node in accesses} or accesses
        shape = self.task.mapping if prod(self.task.mapping) > 1 else ()
        for node in (*found.loads, *found.stores):
            kind = next(iter(kinds[node]), None) if len(kinds[node]) <= 1 else None
            if len(kinds[node]) > 1:
                why = "the type of this access is not the same each time"
                raise _refusal(self.task, node, why, "write the access once for each type")
            if kinds[node] and kind is None:
                known = "a range of indices needs a length that is known, as in x[4 * i:4 * i + 4]"
                note = "give the value a type first, as in t: f32[4, 4] = value" if node in found.stores else known
                raise _refusal(self.task, node, "the type of this access is not known", note)
            if kind is not None:  # some instance comes there
                self._stream[node] = self._declared(node, kind, shape)
        if not any(buffer.type.shape for buffer in self.buffers):
            raise _refusal(self.task, self.task.body, "it loads and stores no tile", "single elements take no cycles")

    def _declared(self, node: syn.ExpressionNode, kind: ElementType, shape: tuple[int, ...]) -> StreamDecl:
        root = node.root if isinstance(node, syn.Subscript) else node
        assert isinstance(root, syn.Identifier)
        name, taken = f"{self.task.name}.{root.name}", {buffer.name for buffer in self.buffers}
        number = next(k for k in range(1, len(taken) + 2) if (name if k == 1 else f"{name}.{k}") not in taken)
        name = name if number == 1 else f"{name}.{number}"
        first, depth = self.declared.size, SLOTS if node in self._often else 1
        if first + prod(shape) > STREAMS:
            raise Refusal("limit", f"{name} brings the streams to more than {STREAMS}", node)
        made = StreamDecl(name, kind, depth, 1, shape, node.place, first, buffer_of=self.task.name)
        self.buffers.append(made)
        self.declared.streams.append(made)
        self.declared.size = first + made.size
        return made

    def part(self, which: str, body: syn.Block) -> TaskDecl:
        """Return a part of the task. which: `LOAD`, `STORE`, or "" for the one that computes."""
        names = frozenset[str]().union(*(statement.facts.names for statement in body))
        name = f"{self.task.name}.{which}" if which else self.task.name
        old = self.task.body
        formal = tuple(p for p in old.parameters if p.name in names)
        function = syn.FunctionDefinition(old.place, name, formal, body, old.decorators, old.returns, old.coroutine)
        parameters = tuple(p for p in self.task.parameters if p.name in names)
        return replace(self.task, name=name, body=function, parameters=parameters, whole=self.task, part=which)

    # -- statements --------------------------------------------------------------------------------------------------

    def computing(self, block: syn.Block) -> syn.Block:
        """Return statements with a get in place of each load, and a put in place of each store."""
        new: dict[syn.SyntaxNode, syn.SyntaxNode] = {}
        for load in self.found.loads:
            if load in self._stream:
                new[load] = self._got(load, load)
        for store, statement in self.found.stores.items():
            if store in self._stream:
                value = _replaced(statement.value, new)
                put = self._end(store, statement.place, "put", value)
                new[statement] = syn.Evaluation(statement.place, put)
        made: syn.Block = _replaced(block, new)
        return made

    def moving(self, block: syn.Block, which: str) -> syn.Block:
        """Return the loads, or the stores, of statements, with the loops and branches around them."""
        return tuple(made for statement in block for made in self._moving(statement, which))

    def _moving(self, statement: syn.StatementNode, which: str) -> Iterator[syn.StatementNode]:
        match statement:
            case syn.ForLoop(target=target, iterable=head, body=body):
                own = self.moving(body, which)
                yield from self._loads(head, which)
                if self._moves(own):
                    yield syn.ForLoop(statement.place, *syn.copied((target, head)), own)
            case syn.WhileLoop(test=test, body=body):
                own = self.moving(body, which)
                if self._moves(own):
                    yield syn.WhileLoop(statement.place, syn.copied(test), own)
            case syn.Branching(test=test, body=body, orelse=other):
                arms = self.moving(body, which), self.moving(other, which)
                if any(map(self._moves, arms)):
                    yield syn.Branching(statement.place, syn.copied(test), arms[0] or _nothing(statement), arms[1])
                else:
                    yield from self._loads(test, which)
            case syn.MetaChain(arms=chain):
                bodies = [self.moving(arm.body, which) for arm in chain]
                if any(map(self._moves, bodies)):
                    made = [
                        syn.MetaArm(arm.place, arm.name, syn.copied(arm.heads), syn.copied(arm.targets), body)
                        for arm, body in zip(chain, (own or _nothing(statement) for own in bodies), strict=True)
                    ]
                    yield syn.MetaChain(statement.place, tuple(made))
            case syn.Assignment() | syn.Declaration() if statement.facts.assigned & self.found.needed:
                yield syn.copied(statement)
            case _:
                yield from self._loads(statement, which)
                if which == STORE and isinstance(statement, syn.Assignment):
                    for target in self._stream.keys() & {*statement.targets}:
                        get = self._got(target, statement.value)
                        yield syn.Assignment(statement.place, (syn.copied(target),), get)

    def _loads(self, node: syn.SyntaxNode, which: str) -> Iterator[syn.StatementNode]:
        """A put for each load in an expression or a statement that is no loop or branch."""
        for load in self.found.loads if which == LOAD else ():
            if load in self._stream and any(part is load for part in syn.walk(node)):
                yield syn.Evaluation(load.place, self._end(load, load.place, "put", syn.copied(load)))

    def _moves(self, block: Sequence[syn.StatementNode]) -> bool:
        """Whether statements that were made have a put or a get."""
        return any(statement.facts.touches for statement in block)

    def _got(self, access: syn.ExpressionNode, written: syn.ExpressionNode) -> syn.Invocation:
        """A get of the buffer of an access. written: what the program has in its place."""
        made = self._end(access, written.place, "get")
        made.instead_of = shown(written)
        return made

    def _end(
        self, access: syn.ExpressionNode, place: Place, method: str, *values: syn.ExpressionNode
    ) -> syn.Invocation:
        """A put or a get of the buffer of an access, of the instance that executes it."""
        buffer = self._stream[access]
        base: syn.ExpressionNode = syn.Identifier(place, buffer.name)
        if buffer.shape:
            start = place.start  # cycles are taken by place, and those of the access are taken once
            tid = syn.Invocation(start, syn.Identifier(start, "get_tid"), ())
            count = len(buffer.shape)
            at = [syn.Subscript(start, tid, syn.Literal(start, k)) for k in range(count)]
            base = syn.Subscript(start, base, tid if count == 1 else syn.Collection(start, "Tuple", tuple(at)))
        return syn.Invocation(place, syn.Attribute(place, base, method), values)


def _nothing(statement: syn.StatementNode) -> syn.Block:
    return (syn.Skip(statement.place),)


def _replaced(value: Any, new: Mapping[syn.SyntaxNode, syn.SyntaxNode]) -> Any:
    """Return a copy of a tree, or of a tuple of trees, with other nodes in place of some."""
    if isinstance(value, tuple):
        return tuple(_replaced(part, new) for part in value)
    if not isinstance(value, syn.SyntaxNode):
        return value
    if value in new:
        return new[value]
    made = syn.copied(value)
    made._facts = None
    for name in value.parts:
        setattr(made, name, _replaced(getattr(value, name), new))
    return made
