"""Evaluates expressions of one task instance, and records its puts and gets in order."""

from __future__ import annotations

import builtins
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import IntEnum
from operator import itemgetter
from typing import NamedTuple, NoReturn

from ..base.element_types import BITS, ElementType
from ..base.operators import UNARY
from ..base.place import Place
from ..isa.overlays.tasks.tree import Expression
from .datapath import KernelVariant, VariantChoice
from .language import LIBRARY, Layout
from .orders.shown import ShownOrder
from .source import Refusal, Source
from .syntax import nodes as syn
from .syntax.control import Deciding
from .syntax.printer import shown
from .tree import Body, Collective, Node, Nodes, Op, StreamDecl, TaskDecl
from .values import (
    BOOLEAN,
    ELEMENTS,
    FUNCTIONS,
    INT,
    OPERATORS,
    Data,
    Static,
    SymbolicNumber,
    Value,
    accepts,
    compute,
    joined,
    type_of,
)

REFUSED = ("Yield", "YieldFrom", "NamedExpr")
"""Expressions that a task does not have, also not in what has no rules."""

STEPS = 1_000_000
"""Limit of expressions and statements that are read in one file, loops unrolled where their index decides."""


@dataclass
class FileReading:
    """What was found in a file, for all of its regions. A key of a task's name and a place stands for a statement or an
    expression.

    source: the text and its findings. nodes: makes the operations. steps: how many expressions and statements were
    read. timed: whether beats and cycles are recorded, besides puts and gets. by_data: the places of loops that state
    cycles and whose number of iterations data decide. collectives: by a collective without its streams, the same with
    them. streams: the number of streams, those of collectives counted. shapes: the values of `x.shape` and `x.ndim`;
    None where they differ between instances. rates, float_add, variants: as for `Datapath`. divided: branches that end
    the beat before them and begin a new one behind. costs: the cycles that instances take, by task, place and kind of
    work. choices: the kernel variants that are called. calls: by task and variable, the variant whose result the
    variable gets. types: the types that annotations state, or first arguments of new tiles; None for none.

    stores: by task and parameter, which instances store into that tensor, by their indices in the grid; and whether all
    their stores are such that instances with the same statements and the same part of the tensor store equal values.
    unlike: stores that are not. renamed: the parameters, by task, for which a variable may stand that stands for
    another one too, so that a store by that name may store into either. evaluated: in a file with sizes that a run
    gives, the expressions that were evaluated, with the shapes of tiles."""

    source: Source
    nodes: Nodes = field(default_factory=Nodes)
    steps: int = 0
    timed: bool = False
    by_data: list[Place] = field(default_factory=list)
    collectives: dict[Collective, Collective] = field(default_factory=dict)
    streams: int = 0
    shapes: dict[tuple[str, Place], Static | None] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    float_add: int = 1
    variants: tuple[KernelVariant, ...] = ()
    divided: set[tuple[str, Place]] = field(default_factory=set)
    costs: dict[tuple[str, Place, str], set[int]] = field(default_factory=dict)
    choices: dict[tuple[str, Place], set[VariantChoice]] = field(default_factory=dict)
    calls: dict[tuple[str, str], VariantChoice] = field(default_factory=dict)
    types: dict[tuple[str, Place], set[ElementType | None]] = field(default_factory=dict)
    stores: dict[tuple[str, str], dict[tuple[int, ...], bool]] = field(default_factory=dict)
    unlike: set[tuple[str, Place]] = field(default_factory=set)
    renamed: set[tuple[str, str]] = field(default_factory=set)
    evaluated: dict[tuple[str, Place], set[tuple[int, ...]]] = field(default_factory=dict)

    def declare(self, name: str, kind: ElementType, shape: tuple[int, ...], place: Place) -> StreamDecl:
        """Return a new array of streams of depth 1 for a collective; its numbers follow those of all others. name: of
        the array. kind: the type of a token. shape: of the array. place: of the collective."""
        stream = StreamDecl(name, kind, 1, 1, shape, place, self.streams)
        self.streams += stream.size
        return stream


@dataclass
class RegionContext:
    """What all instances of a region share.

    reading: what was found in the file. streams, constants, tasks: those that the region sees, by name. functions: for
    each other function, by its name, whether it uses a stream. regions, tensors: their names. decisive, varying, loops,
    nests: results of the functions of `syntax.control` for parts that were read before. varies: for expressions,
    whether they have static parts that differ between instances. orders: the orders in which statements go through
    tensors. sized: constants that follow from sizes that a run gives, as expressions of these."""

    reading: FileReading
    streams: Mapping[str, StreamDecl]
    constants: Mapping[str, Value]
    tasks: Mapping[str, TaskDecl]
    functions: Mapping[str, bool]
    regions: Container[str] = frozenset()
    tensors: Container[str] = frozenset()
    decisive: dict[syn.FunctionDefinition, frozenset[str]] = field(default_factory=dict)
    loops: dict[syn.StatementNode, Deciding] = field(default_factory=dict)
    nests: dict[tuple[object, ...], syn.Block] = field(default_factory=dict)
    varying: dict[syn.FunctionDefinition, frozenset[str]] = field(default_factory=dict)
    varies: dict[syn.SyntaxNode, bool] = field(default_factory=dict)
    orders: dict[tuple[object, ...], ShownOrder | None] = field(default_factory=dict)
    sized: Mapping[str, Expression] = field(default_factory=dict)

    @property
    def source(self) -> Source:
        """The text of the file, with its findings."""
        return self.reading.source

    @property
    def nodes(self) -> Nodes:
        """Makes the nodes of bodies, for all regions of the file."""
        return self.reading.nodes

    def step(self, node: syn.SyntaxNode, count: int = 1) -> None:
        """Count `count` steps of the reading of this file. node: what is read. Raises `Refusal` beyond `STEPS`."""
        self.reading.steps += count
        if self.reading.steps > STEPS:
            raise Refusal("limit", f"reading this file takes more than {STEPS} steps", node)


@dataclass
class Future:
    """A get whose token is not yet read on every path. place: of the get. stream: the name of the stream. used: 0 if no
    path so far has read the token, 1 if some have; a future that all have read is no longer kept. number: of the stream
    among all of the region; -1 if not given."""

    place: Place
    stream: str
    used: int = 0
    number: int = -1


class WrittenBody(NamedTuple):
    """The operations of a body: ops: puts and gets one by one; beats: in beats, () if the reading is not `timed`."""

    ops: Body
    beats: Body


EMPTY = WrittenBody((), ())
Around = tuple[list[Node], list[Node]]
"""What was read before a body: puts and gets, and beats."""


class Taken(IntEnum):
    """How the token of a get was taken: by an expression that reads it, by a written `await`, or by `drop`."""

    READ = 1
    AWAITED = 2
    DROPPED = 3


def is_beat(ops: Sequence[Node]) -> bool:
    """Return whether operations of a body are one beat: there are some, no loop or branch, and none waits for another
    one of them."""
    return bool(ops) and all(isinstance(op, Op) and not _waits(op, ops[:k]) for k, op in enumerate(ops))


def _waits(op: Op, before: Iterable[Node]) -> bool:
    """Whether an operation is of the same stream as one before it, or a get behind a put."""
    return any(isinstance(x, Op) and (x.stream == op.stream or (x.put and not op.put)) for x in before)


class Expressions:
    """Reads the expressions of a task instance.

    context: the region. name: of the instance. tid: its indices in the grid of its task. Attributes: env: the values of
    its variables. pending: the futures that are not read on every path. tokens: for the futures that are read on some
    path, how.

    A *beat* is a straight run of statements in which no stream comes twice, and every get stands before the puts and
    before what takes cycles. Loops and branches with puts or gets begin and end one. Its operations fire together."""

    def __init__(self, context: RegionContext, name: str, tid: tuple[int, ...]) -> None:
        self.context, self.name, self.tid = context, name, tid
        self.env: dict[str, Value] = {}
        self.ops: list[Node] = []
        self.beats: list[Node] = []
        self.pending: dict[int, Future] = {}
        self.tokens: dict[int, tuple[Taken, Future]] = {}
        self._futures = 0
        self._beat: list[Op] = []
        self._cycles = self._fixed = 0
        self._since: Place | None = None
        self._branches = 0
        """Around what is read: arms and loops of which data decide whether they run."""
        self.ran: set[tuple[int, ...]] = set()

    # -- beats -------------------------------------------------------------------------------------------------------

    def record(self, op: Op) -> None:
        """Append a put or a get to the operations, and, if the reading is timed, to the open beat, which it may end."""
        self.ops.append(op)
        if not self.context.reading.timed:
            return
        if _waits(op, self._beat) or (self._cycles and not op.put):
            self.end_beat()
        self._beat.append(op)

    def end_beat(self) -> None:
        """End the open beat, if there is one. Operations that follow belong to the next beat."""
        if self._beat or self._cycles:
            place = self._beat[0].place if self._beat else self._since
            assert place is not None
            self.beats.append(self.context.nodes.beat(tuple(self._beat), self._cycles or 1, place, self._fixed))
            self._beat, self._cycles, self._fixed, self._since = [], 0, 0, None

    def take_cycles(self, node: syn.Invocation) -> Value:
        """Read `cycles(n)`: add n cycles to the open beat. The result is data of unknown type. Raises `Refusal` unless
        n is a whole number, at least 0, known before the run.
        """
        if len(node.arguments) != 1 or node.named:
            self.fail(node, "cycles takes one number")
        value = self.data(node.arguments[0])
        if not isinstance(value, Static) or type(value.value) is not int or value.value < 0:
            self.fail(node.arguments[0], "cycles takes a whole number that is known before the run, 0 or more")
        self.spend(value.value, node.place)
        return Data()

    def spend(self, count: int, place: Place, fixed: int = 0) -> None:
        """Add `count` cycles to the open beat. place: of the statement that takes them. fixed: how many of them higher
        rates would not shorten. Without effect if the reading is not `timed`."""
        if self.context.reading.timed:
            self._cycles += count
            self._fixed += fixed
            self._since = self._since or place

    def begin(self) -> Around:
        """Begin to read a new body. Return the operations and beats before it, for `resume`."""
        around = self.ops, self.beats
        self.ops, self.beats = [], []
        return around

    def closed(self) -> WrittenBody:
        """Return the operations and beats that were read since `begin`."""
        return WrittenBody(tuple(self.ops), tuple(self.beats))

    def resume(self, around: Around, made: WrittenBody = EMPTY) -> None:
        """Continue behind a body. around: what `begin` returned. made: what the body adds to them."""
        self.ops, self.beats = [*around[0], *made.ops], [*around[1], *made.beats]

    def chosen(self, arms: Sequence[WrittenBody], place: Place) -> WrittenBody:
        """Return a branch on data as a body. arms: what each of them does. place: of the condition."""
        nodes = self.context.nodes
        beats = nodes.choice([arm.beats for arm in arms], place) if self.context.reading.timed else ()
        return WrittenBody(nodes.choice([arm.ops for arm in arms], place), beats)

    def looped(self, iterations: Sequence[tuple[int, WrittenBody]]) -> WrittenBody:
        """Return the body of all iterations of a loop. iterations: for each run of equal iterations, their number, and
        the operations of one of them."""
        nodes = self.context.nodes
        beats = nodes.loop([(times, one.beats) for times, one in iterations]) if self.context.reading.timed else ()
        return WrittenBody(nodes.loop([(times, one.ops) for times, one in iterations]), beats)

    # -- variables and futures ---------------------------------------------------------------------------------------

    def read(self, value: Value, node: syn.SyntaxNode | None = None, how: Taken = Taken.READ) -> None:
        """Read the tokens of a value: its futures count as read on this path. node: the expression that reads it; None
        if no finding is to be added. how: in which way the tokens are taken.

        A future that is read after its drop, or awaited again, is a finding. The compiler awaits a future where it is
        first read. From then on it is a value: it may be read again, but not awaited or dropped."""
        if not isinstance(value, Data):
            return
        for number in value.futures:
            future = self.pending.pop(number, None)
            before, known = self.tokens.get(number, (None, future))
            if known is None:
                continue
            if node is not None and (before is Taken.DROPPED or (before is not None and how is Taken.AWAITED)):
                self._twice(node, known, before)
            self.tokens[number] = max(how, before or how), known

    def _twice(self, node: syn.SyntaxNode, future: Future, before: Taken) -> None:
        what = "uses" if before is Taken.DROPPED else "awaits"
        first = {Taken.READ: "it was read", Taken.AWAITED: "it was awaited", Taken.DROPPED: "it was dropped"}[before]
        message = f"{self.name} {what} what it gets from {future.stream} in line {future.place.line}, after {first}"
        note = "one get is one token: await it once, and keep the value"
        self.context.source.add("future", message, node.place, note, subject=self.name)

    def data(self, node: syn.ExpressionNode) -> Value:
        """Return the value of an expression, and read its tokens. Raises `Refusal` as `eval`."""
        value = self.eval(node)
        self.read(value, node)
        return value

    def fail(self, node: syn.SyntaxNode, what: str, *notes: str) -> NoReturn:
        """Raise `Refusal` with the code `unsupported` at a node. what: the message, which says what is wrong. notes:
        further lines of it."""
        raise Refusal("unsupported", what, node, *notes)

    def held(self, node: syn.Assertion) -> None:
        """Check `node`, an `assert`, if its condition is known before the run. Raises `Refusal` if the condition is
        false.
        """
        test = self.data(node.test)
        if isinstance(test, Data) or test.value:
            return
        known = {name: self.env.get(name, self.context.constants.get(name)) for name in sorted(node.test.facts.names)}
        values = ", ".join(f"{name} = {v.value}" for name, v in known.items() if isinstance(v, Static))
        said = [str(node.message.value)] if isinstance(node.message, syn.Literal) else []
        raise Refusal("assert", "this does not hold" + f": {values}" * bool(values), node.test, *said)

    # -- expressions -------------------------------------------------------------------------------------------------

    def eval(self, node: syn.ExpressionNode) -> Value:
        """Return the value of an expression, without reading its tokens. Raises `Refusal` for anything that the
        language does not have, for static values that cannot be computed, and beyond `STEPS` steps."""
        self.context.step(node)
        match node:
            case syn.Literal():
                literal = node.value
                return Static(literal) if isinstance(literal, bool | int | float | str | SymbolicNumber) else Data()
            case syn.Identifier():
                return self._name(node)
            case syn.Invocation():
                return self._call(node)
            case syn.Infix():
                return self._binary(node)
            case syn.Prefix():
                value = self.data(node.operand)
                if isinstance(value, Static):
                    return compute(UNARY[node.op], [value.value], node)
                return Data(BOOLEAN if node.op == "not" else type_of(value))
            case syn.ComparisonChain():
                return self._compare(node)
            case syn.Logical():
                return self._boolean(node)
            case syn.Conditional():
                return self._if(node)
            case syn.Collection():
                return self._collection(node)
            case syn.Subscript():
                return self._subscript(node)
            case syn.Attribute():
                self.data(node.base)
                return Data()
            case syn.Await():
                value = self.eval(node.value)
                given = isinstance(value, Data) and (value.futures or isinstance(node.value, syn.Invocation))
                if not given:
                    self.fail(node, "await takes the result of a get")
                self.read(value, node, Taken.AWAITED)
                return value
            case _:
                return self._opaque(node)

    def _name(self, node: syn.Identifier) -> Value:
        if node.name in self.env:
            return self.env[node.name]
        if node.name in self.context.constants:
            return self.context.constants[node.name]
        if node.name in self.context.streams:
            self.fail(node, f"{node.name} is a stream: a task uses it by put and get only")
        if node.name in BITS:
            return Static(node.name)
        if node.name in self.context.tensors:
            self.fail(node, f"{node.name} is a tensor: a task gets it by args=[{node.name}] and a parameter")
        if node.name in self.context.functions and not self.context.functions[node.name]:
            return Data()
        if hasattr(builtins, node.name) or node.name in LIBRARY:
            return Data()
        known = [*self.env, *self.context.constants, *self.context.streams, *BITS]
        close = get_close_matches(node.name, known, n=1, cutoff=0.7)
        self.fail(node, f"the name {node.name} is not known here", *(f"did you mean {name}?" for name in close))

    def _binary(self, node: syn.Infix) -> Value:
        a, b = self.data(node.left), self.data(node.right)
        if isinstance(a, Static) and isinstance(b, Static) and node.op in OPERATORS:
            return compute(OPERATORS[node.op], [a.value, b.value], node)
        return Data(None if node.op == "@" else joined(type_of(a), type_of(b)))

    def _compare(self, node: syn.ComparisonChain) -> Value:
        values = [self.data(part) for part in (node.left, *node.others)]
        if not all(isinstance(value, Static) for value in values):
            return Data(BOOLEAN)
        known = [value.value for value in values if isinstance(value, Static)]
        results = [compute(OPERATORS[op], [known[k], known[k + 1]], node).value for k, op in enumerate(node.ops)]
        return Static(all(results))

    def _boolean(self, node: syn.Logical) -> Value:
        """`and`, `or`: a static operand may decide; otherwise the others are evaluated on some paths only."""
        decides = node.op == "or"
        unknown: list[Value] = []
        for operand in node.values:
            if unknown and operand.facts.touches:
                self.fail(operand, "a put or a get behind `and` or `or`; write it before the expression")
            self._branches += bool(unknown)
            value = self.data(operand)
            self._branches -= bool(unknown)
            if isinstance(value, Data):
                unknown.append(value)
            elif bool(value.value) == decides:
                return value
        return Data(BOOLEAN) if unknown else Static(not decides)

    def _if(self, node: syn.Conditional) -> Value:
        test = self.data(node.test)
        if isinstance(test, Static):
            return self.eval(node.body if test.value else node.orelse)
        if node.facts.touches:
            self.end_beat()
        outer, arms, values = self.begin(), list[WrittenBody](), list[Value]()
        start, after = self.tokens, dict(self.tokens)
        self._branches += 1
        for part in (node.body, node.orelse):
            self.ops, self.beats, self.tokens = [], [], dict(start)
            values.append(self.data(part))
            if part.facts.touches:
                self.end_beat()
            arms.append(self.closed())
            after = either(after, self.tokens)
        self._branches -= 1
        self.rename(values)
        self.tokens = after
        self.resume(outer, self.chosen(arms, node.test.place))
        return Data(joined(type_of(values[0]), type_of(values[1])))

    def _collection(self, node: syn.Collection) -> Value:
        values = [self.data(part) for part in node.items]
        if len(values) > ELEMENTS:
            raise Refusal("limit", f"more than {ELEMENTS} elements", node)
        known = [value.value for value in values if isinstance(value, Static)]
        self.rename(values)
        return Static(tuple(known)) if len(known) == len(values) else Data()

    def rename(self, values: Sequence[Value]) -> None:
        """Called for the value of a variable that may be one of several (`values`), so that a tensor among these has
        another name from here on. This class does nothing."""

    def _subscript(self, node: syn.Subscript) -> Value:
        base, index = self.data(node.base), self.data(node.index)
        if isinstance(base, Static) and isinstance(base.value, tuple) and isinstance(index, Static):
            return compute(lambda a, b: a[b], [base.value, index.value], node)
        shape = base.type.shape if isinstance(base, Data) and base.type else ()
        parts = node.indices
        if shape and len(parts) == len(shape) and not any(isinstance(part, syn.Slicing) for part in parts):
            assert isinstance(base, Data)
            assert base.type is not None
            return Data(ElementType(base.type.dtype))
        return Data()

    def _opaque(self, node: syn.ExpressionNode) -> Value:
        """An expression without rules here: it reads every variable that it names, and must not touch a stream."""
        own = node.own if isinstance(node, syn.Foreign) else ()
        for part in syn.walk(node):
            self.context.step(part)
            if isinstance(part, syn.Identifier):
                if part.name in self.context.streams:
                    self.fail(node, f"a stream in {_kind(node)}; write a loop with put and get")
                if part.name in self.env:
                    self.read(self.env[part.name])
                elif part.name not in own:
                    self._name(part)
            elif isinstance(part, syn.Await) or (isinstance(part, syn.Foreign) and part.form in REFUSED):
                self.fail(part, f"{_kind(part)} is not supported in a task")
        return Data()

    # -- calls -------------------------------------------------------------------------------------------------------

    def _call(self, node: syn.Invocation) -> Value:
        if isinstance(node.function, syn.Attribute):
            stream = self._stream_of(node.function.base)
            if stream is not None:
                return self._end(node, node.function.name, stream, node.function.base)
            self.data(node.function.base)
            return self._arguments(node)
        if not isinstance(node.function, syn.Identifier):
            self.data(node.function)
            return self._arguments(node)
        name = node.function.name
        if name in self.context.tasks:
            self.fail(node, f"{name} is a task; tasks do not call tasks")
        if name in self.context.regions:
            self.fail(node, f"{name} is a region; it is called at the top of a file or of a region")
        if self.context.functions.get(name):
            self.fail(node, f"{name} uses streams; only tasks may")
        if name in self.context.functions:
            return self._arguments(node)
        if name == "get_tid":
            return Static(self.tid[0] if len(self.tid) == 1 else self.tid)
        if name == "data":
            return Data(BOOLEAN)
        if name == "drop":
            value = self._arguments(node)
            for argument in node.arguments:
                if isinstance(argument, syn.Identifier) and argument.name in self.env:
                    self.read(self.env[argument.name], None, Taken.DROPPED)
            return value
        if name == "Layout":
            return self._layout(node)
        if name == "cycles":
            return self.take_cycles(node)
        if name == "grid" or name.startswith("meta_"):
            self.fail(node, f"{name} stands in a for or with statement only")
        if name in BITS:
            self._arguments(node)
            return Data(ElementType(name))
        if name in FUNCTIONS and not node.named:
            values = [self.data(argument) for argument in node.arguments]
            known = [value.value for value in values if isinstance(value, Static)]
            if len(known) == len(values):
                return compute(FUNCTIONS[name], known, node)
            return Data(INT if name in ("int", "len") else None)
        self._misspelt(node.function)
        return self._arguments(node)

    def _misspelt(self, node: syn.Identifier) -> None:
        """Fail for a function that nothing defines, and whose name is nearly that of one: functions that are not known
        read their arguments."""
        if (
            node.name in self.env
            or node.name in self.context.constants
            or hasattr(builtins, node.name)
            or node.name in LIBRARY
        ):
            return
        close = get_close_matches(node.name, [*LIBRARY, *self.context.functions, *FUNCTIONS], n=1, cutoff=0.8)
        if close:
            self.fail(node, f"there is no function {node.name}", f"did you mean {close[0]}?")

    def _arguments(self, node: syn.Invocation) -> Value:
        """Read all arguments of an opaque call; its result is data."""
        for argument in node.arguments:
            self.data(argument.value if isinstance(argument, syn.Starred) else argument)
        for named in node.named:
            self.data(named.value)
        return Data()

    def _layout(self, node: syn.Invocation) -> Value:
        value = self.data(node.arguments[0]) if len(node.arguments) == 1 and not node.named else None
        if not isinstance(value, Static) or not isinstance(value.value, str):
            self.fail(node, 'a layout is written as Layout("S0R")')
        return Static(Layout(value.value))

    def _stream_of(self, node: syn.ExpressionNode) -> StreamDecl | None:
        base = node.base if isinstance(node, syn.Subscript) else node
        if not isinstance(base, syn.Identifier) or base.name in self.env:
            return None
        return self.context.streams.get(base.name)

    def _end(self, node: syn.Invocation, method: str, stream: StreamDecl, base: syn.ExpressionNode) -> Value:
        """A put or a get."""
        wanted = {"put": 1, "get": 0}.get(method)
        if wanted is None:
            self.fail(node, f"streams have put and get, not {method}")
        if len(node.arguments) != wanted or node.named or any(isinstance(a, syn.Starred) for a in node.arguments):
            self.fail(node, "put takes one value" if wanted else "get takes no arguments")
        value = self.given(node.arguments[0], stream) if wanted else None
        number = self._index(stream, base)
        place = node.place
        if value is not None and not accepts(stream.type, type_of(value)):
            self.context.source.add(
                "type",
                f"{self.name} puts {type_of(value)} on {stream.name}: Stream[{stream.type}]",
                place,
                subject=self.name,
            )
        if number is None:
            return Data(stream.type)
        self.record(self.context.nodes.op(number, bool(wanted), place))
        if wanted:
            self.shows(number, True, node.arguments[0], node)
            assert value is not None
            self.puts(stream, node, value)
            return Data()
        self._futures += 1
        self.pending[self._futures] = Future(place, self.element(stream, number), number=number)
        self.gets(stream, node)
        token = Data(stream.type, frozenset((self._futures,)))
        if stream.buffer_of:  # the program has a load there, and a load that nothing reads is no mistake
            self.read(token)
        return token

    def given(self, node: syn.ExpressionNode, stream: StreamDecl) -> Value:
        """Return the value of the argument of a put. node: the argument. stream: on which it is put. Raises `Refusal`
        as `eval`."""
        return self.data(node)

    def gets(self, stream: StreamDecl, node: syn.Invocation) -> None:
        """Count the cycles of a get from a stream. node: the get. This class counts none."""

    def puts(self, stream: StreamDecl, node: syn.Invocation, value: Value) -> None:
        """Count the cycles of a put on a stream. node: the put. value: the put value. This class counts none."""

    def shows(self, stream: int, put: bool, part: syn.ExpressionNode, at: syn.SyntaxNode) -> None:
        """Called for a put of a part of a tensor, and for a store of a token into one, which show the order in which an
        end of a stream goes through the tensor. stream: its number. put: whether the end puts. part: the part of the
        tensor. at: the put or the store. This class does nothing."""

    def _index(self, stream: StreamDecl, base: syn.ExpressionNode) -> int | None:
        """Return the number of a stream, or None after a finding: its index is wrong."""
        parts = list(_parts(base))
        if len(parts) != len(stream.shape):
            shape = f"[{', '.join(map(str, stream.shape))}]" if stream.shape else "a single stream"
            self._bad_index(base, f"{len(parts)} indices of {stream.name}, which is {shape}")
            return None
        number = 0
        index: list[int] = []
        for part, size in zip(parts, stream.shape, strict=True):
            value = self.data(part)
            if not isinstance(value, Static) or not isinstance(value.value, int):
                self._bad_index(part, f"the index {shown(part)[:40]} of {stream.name} is not known before the run")
                return None
            index.append(value.value)
            number = number * size + value.value
        if any(not 0 <= i < size for i, size in zip(index, stream.shape, strict=True)):
            at, shape = ",".join(map(str, index)), ",".join(map(str, stream.shape))
            self._bad_index(base, f"{stream.name}[{at}] is outside {stream.name}[{shape}]")
            return None
        return stream.first + number

    def element(self, stream: StreamDecl, number: int) -> str:
        """Return the name of one stream of an array with its indices, such as `s[1, 2]`. number: of the stream among
        all of the region."""
        return stream.element(number - stream.first)

    def _bad_index(self, node: syn.SyntaxNode, message: str) -> None:
        source = self.context.source
        source.add("index", message, node.place, f"in the instance {self.name}", subject=self.name)


def either(
    a: Mapping[int, tuple[Taken, Future]], b: Mapping[int, tuple[Taken, Future]]
) -> dict[int, tuple[Taken, Future]]:
    """Return how futures were taken after a branch, by the number of the future. a, b: the same at the end of each
    path; a future that both have taken counts as taken in the way that comes last in `Taken`."""
    return {number: max((x for x in (a.get(number), b.get(number)) if x), key=itemgetter(0)) for number in {**a, **b}}


def _parts(base: syn.ExpressionNode) -> Iterator[syn.ExpressionNode]:
    if isinstance(base, syn.Subscript):
        yield from base.indices


def _kind(node: syn.SyntaxNode) -> str:
    """What a node is, in words: ListComp -> a list comp."""
    name = "".join(f" {c.lower()}" if c.isupper() else c for c in node.kind).strip()
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
