"""Evaluates expressions of one task instance, and records its puts and gets in order."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import IntEnum
from operator import itemgetter
from typing import NoReturn

from .language import BITS, LIBRARY, Layout
from .orders.shown import Shown
from .source import Place, Refusal, Source
from .syntax import Below, Deciding, names_in, touches
from .tree import Body, Collective, ElementType, Node, Nodes, Op, StreamDecl, TaskDecl
from .values import (
    BOOLEAN,
    ELEMENTS,
    FUNCTIONS,
    INT,
    OPERATORS,
    UNARY,
    Data,
    Static,
    SymbolicNumber,
    Value,
    accepts,
    compute,
    element_type,
    joined,
    positive,
    type_of,
)

STEPS = 1_000_000
"""Limit of expressions and statements that are read in one file, loops unrolled where their index decides."""


@dataclass
class Reading:
    """What all regions of a file share. steps: done so far. timed: puts and gets are recorded in beats, with the cycles
    that tasks state. by_data: loops whose trips data decides and that state cycles. collectives: by task, place,
    operator and axes; streams: how many streams there are, theirs included. shapes: by task and place, what `x.shape`
    and `x.ndim` are; None if it differs. rates: work that a library kernel does in a cycle, by its name; costs: by task
    and place, the cycles of a kernel."""

    source: Source
    nodes: Nodes = field(default_factory=Nodes)
    steps: int = 0
    timed: bool = False
    by_data: list[Place] = field(default_factory=list)
    collectives: dict[tuple[str, Place, str, tuple[int, ...], bool], Collective] = field(default_factory=dict)
    streams: int = 0
    shapes: dict[tuple[str, Place], Static | None] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    costs: dict[tuple[str, Place], set[int]] = field(default_factory=dict)

    def declare(self, name: str, kind: ElementType, shape: tuple[int, ...], place: Place) -> StreamDecl:
        """Make an array of streams for a collective."""
        stream = StreamDecl(name, kind, 1, 1, shape, place, self.streams)
        self.streams += stream.size
        return stream


@dataclass
class Context:
    """What all instances of a region share. functions: names of other functions, and whether each uses a stream.
    regions, tensors: their names. decisive, varying, loops, nests, below: what the functions of `syntax` found in what
    was read before. varies: whether static parts of an expression do. orders: those that statements show."""

    reading: Reading
    streams: Mapping[str, StreamDecl]
    constants: Mapping[str, Value]
    tasks: Mapping[str, TaskDecl]
    functions: Mapping[str, bool]
    regions: Container[str] = frozenset()
    tensors: Container[str] = frozenset()
    decisive: dict[ast.FunctionDef, frozenset[str]] = field(default_factory=dict)
    loops: dict[ast.stmt, Deciding] = field(default_factory=dict)
    nests: dict[tuple[object, ...], list[ast.stmt]] = field(default_factory=dict)
    below: dict[ast.FunctionDef, Below] = field(default_factory=dict)
    varying: dict[ast.FunctionDef, frozenset[str]] = field(default_factory=dict)
    varies: dict[ast.AST, bool] = field(default_factory=dict)
    orders: dict[tuple[object, ...], Shown | None] = field(default_factory=dict)

    @property
    def source(self) -> Source:
        """The file."""
        return self.reading.source

    @property
    def nodes(self) -> Nodes:
        """Makes the nodes of trees."""
        return self.reading.nodes

    def step(self, node: ast.AST, count: int = 1) -> None:
        """Count steps. Raises `Refusal` beyond `STEPS`."""
        self.reading.steps += count
        if self.reading.steps > STEPS:
            raise Refusal("limit", f"reading this file takes more than {STEPS} steps", node)


@dataclass
class Future:
    """A get. used: by none, by some, or by all of the paths so far (0, 1, 2). number: of the stream."""

    place: Place
    stream: str
    used: int = 0
    number: int = -1


class Taken(IntEnum):
    """How the token of a get was taken: by an expression that reads it, by a written `await`, or by `drop`."""

    READ = 1
    AWAITED = 2
    DROPPED = 3


class Expressions:
    """Expressions of an instance. env: its variables. pending: futures that nothing has read on every path. tokens: how
    those were taken that something has read on some path.

    A *beat* is a straight run of statements in which no stream comes twice, and every get stands before the puts and
    before what takes cycles. Loops and branches with puts or gets begin and end one. Its operations fire together.
    """

    def __init__(self, context: Context, name: str, tid: tuple[int, ...]) -> None:
        self.context, self.name, self.tid = context, name, tid
        self.env: dict[str, Value] = {}
        self.ops: list[Node] = []
        self.pending: dict[int, Future] = {}
        self.tokens: dict[int, tuple[Taken, Future]] = {}
        self._futures = 0
        self._beat: list[Op] = []
        self._cycles = 0
        self._since: Place | None = None
        self._branches = 0
        """Around what is read: arms and loops of which data decide whether they run."""
        self.ran: set[tuple[int, ...]] = set()

    # -- beats -------------------------------------------------------------------------------------------------------

    def record(self, op: Op) -> None:
        """Append a put or a get."""
        if not self.context.reading.timed:
            self.ops.append(op)
            return
        again = any(op.stream == other.stream or (other.put and not op.put) for other in self._beat)
        if again or (self._cycles and not op.put):
            self.end_beat()
        self._beat.append(op)

    def end_beat(self) -> None:
        """End the beat, if one is open: what follows comes after it."""
        if self._beat or self._cycles:
            place = self._beat[0].place if self._beat else self._since
            assert place is not None
            self.ops.append(self.context.nodes.beat(tuple(self._beat), self._cycles or 1, place))
            self._beat, self._cycles, self._since = [], 0, None

    def take_cycles(self, node: ast.Call) -> Value:
        """`cycles(n)`: the beat takes n cycles, which are added to those stated before in the same beat."""
        if len(node.args) != 1 or node.keywords:
            self.fail(node, "cycles takes one number")
        value = self.data(node.args[0])
        if not isinstance(value, Static) or type(value.value) is not int or value.value < 0:
            self.fail(node.args[0], "cycles takes a whole number that is known before the run, 0 or more")
        self.spend(value.value, self.context.source.place(node))
        return Data()

    def spend(self, count: int, place: Place) -> None:
        """Add cycles to the beat."""
        if self.context.reading.timed:
            self._cycles += count
            self._since = self._since or place

    # -- variables and futures ---------------------------------------------------------------------------------------

    def read(self, value: Value, node: ast.AST | None = None, how: Taken = Taken.READ) -> None:
        """Take the tokens of a value: its futures are used on this path. node: where.

        The compiler awaits a future where it is first read. From then on it is a value: it may be read again, but not
        awaited, or used after drop.
        """
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

    def _twice(self, node: ast.AST, future: Future, before: Taken) -> None:
        what = "uses" if before is Taken.DROPPED else "awaits"
        first = {Taken.READ: "it was read", Taken.AWAITED: "it was awaited", Taken.DROPPED: "it was dropped"}[before]
        message = f"{self.name} {what} what it gets from {future.stream} in line {future.place.line}, after {first}"
        note = "one get is one token: await it once, and keep the value"
        self.context.source.add("future", message, self.context.source.place(node), note, subject=self.name)

    def data(self, node: ast.expr) -> Value:
        """Evaluate an expression and read it."""
        value = self.eval(node)
        self.read(value, node)
        return value

    def fail(self, node: ast.AST, what: str, *notes: str) -> NoReturn:
        raise Refusal("unsupported", what, node, *notes)

    def held(self, node: ast.Assert) -> None:
        """`assert`: a condition that is known before the run holds. Raises `Refusal` if it does not."""
        test = self.data(node.test)
        if isinstance(test, Data) or test.value:
            return
        known = {name: self.env.get(name, self.context.constants.get(name)) for name in sorted(names_in(node.test))}
        values = ", ".join(f"{name} = {v.value}" for name, v in known.items() if isinstance(v, Static))
        said = [str(node.msg.value)] if isinstance(node.msg, ast.Constant) else []
        raise Refusal("assert", "this does not hold" + f": {values}" * bool(values), node.test, *said)

    # -- expressions -------------------------------------------------------------------------------------------------

    def eval(self, node: ast.expr) -> Value:
        """Evaluate an expression. Raises `Refusal`."""
        self.context.step(node)
        match node:
            case ast.Constant():
                literal = node.value
                return Static(literal) if isinstance(literal, bool | int | float | str | SymbolicNumber) else Data()
            case ast.Name():
                return self._name(node)
            case ast.Call():
                return self._call(node)
            case ast.BinOp():
                return self._binary(node)
            case ast.UnaryOp():
                value = self.data(node.operand)
                if isinstance(value, Static):
                    return compute(UNARY[type(node.op)], [value.value], node)
                return Data(BOOLEAN if isinstance(node.op, ast.Not) else type_of(value))
            case ast.Compare():
                return self._compare(node)
            case ast.BoolOp():
                return self._boolean(node)
            case ast.IfExp():
                return self._if(node)
            case ast.Tuple() | ast.Set() | ast.List():
                return self._collection(node)
            case ast.Subscript():
                return self._subscript(node)
            case ast.Attribute():
                self.data(node.value)
                return Data()
            case ast.Await():
                value = self.eval(node.value)
                given = isinstance(value, Data) and (value.futures or isinstance(node.value, ast.Call))
                if not given:
                    self.fail(node, "await takes the result of a get")
                self.read(value, node, Taken.AWAITED)
                return value
            case _:
                return self._opaque(node)

    def _name(self, node: ast.Name) -> Value:
        if node.id in self.env:
            return self.env[node.id]
        if node.id in self.context.constants:
            return self.context.constants[node.id]
        if node.id in self.context.streams:
            self.fail(node, f"{node.id} is a stream: a task uses it by put and get only")
        if node.id in BITS:
            return Static(node.id)
        if node.id in self.context.tensors:
            self.fail(node, f"{node.id} is a tensor: a task gets it by args=[{node.id}] and a parameter")
        if node.id in self.context.functions and not self.context.functions[node.id]:
            return Data()
        if hasattr(builtins, node.id) or node.id in LIBRARY:
            return Data()
        known = [*self.env, *self.context.constants, *self.context.streams, *BITS]
        close = get_close_matches(node.id, known, n=1, cutoff=0.7)
        self.fail(node, f"the name {node.id} is not known here", *(f"did you mean {name}?" for name in close))

    def _binary(self, node: ast.BinOp) -> Value:
        a, b = self.data(node.left), self.data(node.right)
        if isinstance(a, Static) and isinstance(b, Static) and type(node.op) in OPERATORS:
            return compute(OPERATORS[type(node.op)], [a.value, b.value], node)
        return Data(None if isinstance(node.op, ast.MatMult) else joined(type_of(a), type_of(b)))

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.data(part) for part in (node.left, *node.comparators)]
        if not all(isinstance(value, Static) for value in values):
            return Data(BOOLEAN)
        known = [value.value for value in values if isinstance(value, Static)]
        results = [compute(OPERATORS[type(op)], [known[k], known[k + 1]], node).value for k, op in enumerate(node.ops)]
        return Static(all(results))

    def _boolean(self, node: ast.BoolOp) -> Value:
        """`and`, `or`: a static operand may decide; otherwise the others are evaluated on some paths only."""
        decides = isinstance(node.op, ast.Or)
        unknown: list[Value] = []
        for operand in node.values:
            if unknown and touches([operand]):
                self.fail(operand, "a put or a get behind `and` or `or`; write it before the expression")
            self._branches += bool(unknown)
            value = self.data(operand)
            self._branches -= bool(unknown)
            if isinstance(value, Data):
                unknown.append(value)
            elif bool(value.value) == decides:
                return value
        return Data(BOOLEAN) if unknown else Static(not decides)

    def _if(self, node: ast.IfExp) -> Value:
        test = self.data(node.test)
        if isinstance(test, Static):
            return self.eval(node.body if test.value else node.orelse)
        if touches([node]):
            self.end_beat()
        outer, arms, values = self.ops, list[Body](), list[Value]()
        start, after = self.tokens, dict(self.tokens)
        self._branches += 1
        for part in (node.body, node.orelse):
            self.ops, self.tokens = [], dict(start)
            values.append(self.data(part))
            if touches([part]):
                self.end_beat()
            arms.append(tuple(self.ops))
            after = either(after, self.tokens)
        self._branches -= 1
        self.tokens = after
        self.ops = [*outer, *self.context.nodes.choice(arms, self.context.source.place(node.test))]
        return Data(joined(type_of(values[0]), type_of(values[1])))

    def _collection(self, node: ast.Tuple | ast.Set | ast.List) -> Value:
        values = [self.data(part) for part in node.elts]
        if len(values) > ELEMENTS:
            raise Refusal("limit", f"more than {ELEMENTS} elements", node)
        known = [value.value for value in values if isinstance(value, Static)]
        return Static(tuple(known)) if len(known) == len(values) else Data()

    def _subscript(self, node: ast.Subscript) -> Value:
        base, index = self.data(node.value), self.data(node.slice)
        if isinstance(base, Static) and isinstance(base.value, tuple) and isinstance(index, Static):
            return compute(lambda a, b: a[b], [base.value, index.value], node)
        shape = base.type.shape if isinstance(base, Data) and base.type else ()
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if shape and len(parts) == len(shape) and not any(isinstance(part, ast.Slice) for part in parts):
            assert isinstance(base, Data)
            assert base.type is not None
            return Data(ElementType(base.type.dtype))
        return Data()

    def _opaque(self, node: ast.expr) -> Value:
        """An expression without rules here: it reads every variable that it names, and must not touch a stream."""
        own = {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
        own |= {x.arg for x in ast.walk(node) if isinstance(x, ast.arg)}
        for part in ast.walk(node):
            self.context.step(part)
            if isinstance(part, ast.Name):
                if part.id in self.context.streams:
                    self.fail(node, f"a stream in {_kind(node)}; write a loop with put and get")
                if part.id in self.env:
                    self.read(self.env[part.id])
                elif part.id not in own:
                    self._name(part)
            elif isinstance(part, ast.Yield | ast.YieldFrom | ast.NamedExpr | ast.Await):
                self.fail(part, f"{_kind(part)} is not supported in a task")
        return Data()

    # -- calls -------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Value:
        if isinstance(node.func, ast.Attribute):
            stream = self._stream_of(node.func.value)
            if stream is not None:
                return self._end(node, node.func.attr, stream, node.func.value)
            self.data(node.func.value)
            return self._arguments(node)
        if not isinstance(node.func, ast.Name):
            self.data(node.func)
            return self._arguments(node)
        name = node.func.id
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
            for argument in node.args:
                if isinstance(argument, ast.Name) and argument.id in self.env:
                    self.read(self.env[argument.id], None, Taken.DROPPED)
            return value
        if name == "tile":
            return self._tile(node)
        if name == "Layout":
            return self._layout(node)
        if name == "cycles":
            return self.take_cycles(node)
        if name == "grid" or name.startswith("meta_"):
            self.fail(node, f"{name} stands in a for or with statement only")
        if name in BITS:
            self._arguments(node)
            return Data(ElementType(name))
        if name in FUNCTIONS and not node.keywords:
            values = [self.data(argument) for argument in node.args]
            known = [value.value for value in values if isinstance(value, Static)]
            if len(known) == len(values):
                return compute(FUNCTIONS[name], known, node)
            return Data(INT if name in ("int", "len") else None)
        self._misspelt(node.func)
        return self._arguments(node)

    def _misspelt(self, node: ast.Name) -> None:
        """Fail for a function that nothing defines, and whose name is nearly that of one: functions that are not known
        read their arguments."""
        if node.id in self.env or node.id in self.context.constants or hasattr(builtins, node.id) or node.id in LIBRARY:
            return
        close = get_close_matches(node.id, [*LIBRARY, *self.context.functions, *FUNCTIONS], n=1, cutoff=0.8)
        if close:
            self.fail(node, f"there is no function {node.id}", f"did you mean {close[0]}?")

    def _arguments(self, node: ast.Call) -> Value:
        """Read all arguments of an opaque call; its result is data."""
        for argument in node.args:
            self.data(argument.value if isinstance(argument, ast.Starred) else argument)
        for keyword in node.keywords:
            self.data(keyword.value)
        return Data()

    def _layout(self, node: ast.Call) -> Value:
        value = self.data(node.args[0]) if len(node.args) == 1 and not node.keywords else None
        if not isinstance(value, Static) or not isinstance(value.value, str):
            self.fail(node, 'a layout is written as Layout("S0R")')
        return Static(Layout(value.value))

    def _tile(self, node: ast.Call) -> Value:
        if not node.args or node.keywords:
            self.fail(node, "tile takes an element type and sizes: tile(f32, 4, 4)")
        base = element_type(node.args[0], self.eval)
        return Data(ElementType(base.dtype, base.shape + tuple(positive(a, self.eval) for a in node.args[1:])))

    def _stream_of(self, node: ast.expr) -> StreamDecl | None:
        base = node.value if isinstance(node, ast.Subscript) else node
        if not isinstance(base, ast.Name) or base.id in self.env:
            return None
        return self.context.streams.get(base.id)

    def _end(self, node: ast.Call, method: str, stream: StreamDecl, base: ast.expr) -> Value:
        """A put or a get."""
        wanted = {"put": 1, "get": 0}.get(method)
        if wanted is None:
            self.fail(node, f"streams have put and get, not {method}")
        if len(node.args) != wanted or node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            self.fail(node, "put takes one value" if wanted else "get takes no arguments")
        value = self.data(node.args[0]) if wanted else None
        number = self._index(stream, base)
        place = self.context.source.place(node)
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
            self.shows(number, True, node.args[0], node)
            return Data()
        self._futures += 1
        self.pending[self._futures] = Future(place, stream.element(number - stream.first), number=number)
        return Data(stream.type, frozenset((self._futures,)))

    def shows(self, stream: int, put: bool, part: ast.expr, at: ast.AST) -> None:
        """Take the order in which an end of a stream goes through a tensor, if it shows one. part: what is put, or
        where what was got is stored. at: the put or the store."""

    def _index(self, stream: StreamDecl, base: ast.expr) -> int | None:
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
                self._bad_index(
                    part, f"the index {ast.unparse(part)[:40]} of {stream.name} is not known before the run"
                )
                return None
            index.append(value.value)
            number = number * size + value.value
        if any(not 0 <= i < size for i, size in zip(index, stream.shape, strict=True)):
            at, shape = ",".join(map(str, index)), ",".join(map(str, stream.shape))
            self._bad_index(base, f"{stream.name}[{at}] is outside {stream.name}[{shape}]")
            return None
        return stream.first + number

    def _bad_index(self, node: ast.AST, message: str) -> None:
        source = self.context.source
        source.add("index", message, source.place(node), f"in the instance {self.name}", subject=self.name)


def either(
    a: Mapping[int, tuple[Taken, Future]], b: Mapping[int, tuple[Taken, Future]]
) -> dict[int, tuple[Taken, Future]]:
    """How futures were taken after one of two paths: the later kind of both."""
    return {number: max((x for x in (a.get(number), b.get(number)) if x), key=itemgetter(0)) for number in {**a, **b}}


def _parts(base: ast.expr) -> Iterator[ast.expr]:
    if isinstance(base, ast.Subscript):
        yield from base.slice.elts if isinstance(base.slice, ast.Tuple) else [base.slice]


def _kind(node: ast.AST) -> str:
    """What a node is, in words: ListComp -> a list comp."""
    name = "".join(f" {c.lower()}" if c.isupper() else c for c in type(node).__name__).strip()
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
