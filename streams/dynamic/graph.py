"""Programs of dynamic streams: operators, and the typed streams between them.

    with Program() as program:
        rows = program.input("rows", [4, "B"], tile(1, 64))
        packed = Accum(1, RetileRow)(rows)
    print(packed.type)

Operators are called with streams, and return streams. What does not fit is a `StepError` at the line of that call. A
stream that is used several times goes to all its readers; one that is used nowhere is a result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import Token as Reset
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import sympy

from .errors import StepError, users_line
from .functions import InputRefused
from .operators.base import BUILDING, Limits, Operator
from .operators.higher_order import Map
from .operators.shape import Zip
from .shapes import DataType, Dimension, Size, StreamType, Symbols, dimension, ragged, symbol
from .tokens import Token, parse


@dataclass(eq=False, repr=False)
class Stream:
    """A stream of a program. type: shape and type of its elements. name: in messages. source: the operator that writes
    it; None for an input or a feedback. port: the number of its output at that operator, from 0. where: the line of the
    user's code that made an input or a feedback."""

    program: Program
    type: StreamType
    name: str
    source: OperatorNode | None = None
    port: int = 0
    where: str = ""

    def assume(self, shape: Sequence[Size]) -> Stream:
        """State the shape of this stream, where the program's author knows more about sizes than its type says (STeP
        v2, Listing 1). A run checks it. shape: the outermost dimension first. Returns this stream. Raises `StepError`
        for another rank, for another size where one is known, and for a stream that already has readers."""
        stated = tuple(map(dimension, shape))
        if len(stated) != len(self.type.shape):
            raise StepError("assume", f"rank {len(stated) - 1} of a stream of rank {self.type.rank}")
        for level, (one, known) in enumerate(zip(reversed(stated), reversed(self.type.shape), strict=True)):
            if not known.dynamic and not known.ragged and not known.same(one):
                raise StepError("assume", f"dimension {level} is {known}, not {one}")
        if self.program.readers(self):
            raise StepError("assume", f"{self.name} has readers, whose types follow from the former shape")
        self.type = StreamType(stated, self.type.data)
        self.program.assumed.add(self)
        return self

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"

    def __repr__(self) -> str:
        return f"<{self}>"  # not its program, in which it stands itself


@dataclass(eq=False, repr=False)
class OperatorNode:
    """An operator in a program. inputs, outputs: its streams, by port. where: the line of the user's code that added
    it. name: that of the operator, with a number if there are several of this operator."""

    operator: Operator
    inputs: tuple[Stream, ...]
    outputs: tuple[Stream, ...]
    where: str
    name: str

    @property
    def input_types(self) -> tuple[StreamType, ...]:
        """The types of the input streams, in the order of the ports."""
        return tuple(stream.type for stream in self.inputs)

    @property
    def output_types(self) -> tuple[StreamType, ...]:
        """The types of the output streams, in the order of the ports."""
        return tuple(stream.type for stream in self.outputs)

    def __str__(self) -> str:
        return f"{self.name} ({self.where})"

    def __repr__(self) -> str:
        return f"<{self}>"


@dataclass(frozen=True)
class StreamReader:
    """A reader of a stream: an input of a node. port: the number of that input, from 0."""

    stream: Stream
    node: OperatorNode
    port: int


@dataclass(frozen=True)
class ClosedLoop:
    """A feedback whose stream has been made. writer: that stream. readers: the inputs that read the placeholder; their
    operators were typed with the type of the placeholder."""

    writer: Stream
    readers: tuple[StreamReader, ...]


@dataclass
class Program:
    """A program of dynamic streams.

    limits: what its operators allow. nodes: the operators in the order in which they were added; a feedback may be read
    before its writer is added. inputs, outputs: streams by name. symbols: makes symbols of sizes. bounds: the largest
    value of a symbol, in elements. loops: the feedbacks that were closed, by their placeholder. assumed: the streams
    whose shape `Stream.assume` stated."""

    limits: Limits = field(default_factory=Limits)
    nodes: list[OperatorNode] = field(default_factory=list)
    inputs: dict[str, Stream] = field(default_factory=dict)
    outputs: dict[str, Stream] = field(default_factory=dict)
    symbols: Symbols = field(default_factory=Symbols)
    bounds: dict[sympy.Symbol, int] = field(default_factory=dict)
    loops: dict[Stream, ClosedLoop] = field(default_factory=dict)
    assumed: set[Stream] = field(default_factory=set)
    _readings: dict[Stream, list[StreamReader]] = field(default_factory=dict)
    _operators: Counter[str] = field(default_factory=Counter)
    _open: set[Stream] = field(default_factory=set)
    _reset: Reset[Program | None] | None = None

    def __enter__(self) -> Program:
        self._reset = BUILDING.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._reset is not None
        BUILDING.reset(self._reset)

    def symbol(self, name: str, at_most: int | None = None) -> sympy.Symbol:
        """Return the symbol of a size that is known only in a run. name: of the symbol. at_most: its largest value, in
        elements, which a run checks; None for none. Raises `StepError` for a bound below 0, and for a name that an
        operator gave to a symbol of its own."""
        self._give([name])
        made = symbol(name)
        self._bound(made, at_most)
        return made

    def ragged(self, name: str, at_most: int | None = None, static: bool = False) -> Dimension:
        """Return a dimension whose size differs from group to group. name: of its symbol. at_most: the largest size, in
        elements, which a run checks; None for none. static: whether the sizes do not depend on data. Raises `StepError`
        as `symbol`."""
        self._give([name])
        made = ragged(name, static)
        self._bound(symbol(name), at_most)
        return made

    def _bound(self, size: sympy.Symbol, at_most: int | None) -> None:
        if at_most is None:
            return
        if at_most < 0:
            raise StepError("symbol", f"{size} is at most {at_most}; the least bound is 0")
        self.bounds[size] = at_most

    def input(self, name: str, shape: Sequence[Size], data: DataType) -> Stream:
        """Return a stream whose tokens a run is given. shape: sizes, the outermost dimension first. data: the type of
        its elements. Raises `StepError` if the name is taken, if there is no dimension, if the outermost one is ragged,
        for a number that is no size (a whole number from 0 on), and for the name of a symbol that an operator made."""
        if name in self.inputs:
            raise StepError("input", f"{name} is there twice")
        self._give(shape)
        made = Stream(self, StreamType.of(shape, data), name, where=users_line())
        if not made.type.shape or made.type.shape[0].ragged:
            raise StepError("input", f"{name}: the outermost dimension has one value; it cannot be ragged")
        self.inputs[name] = made
        return made

    def _give(self, sizes: Sequence[Size]) -> None:
        """Note the names of symbols. A size that is no name may be that of another stream."""
        for size in sizes:
            names = [size] if isinstance(size, str) else [one.name for one in dimension(size).size.free_symbols]
            for name in names:
                try:
                    self.symbols.give(name)
                except StepError:
                    if isinstance(size, str):
                        raise

    def output(self, name: str, stream: Stream) -> Stream:
        """Name a stream whose tokens a run returns; return the stream. Raises `StepError` if the name is taken, and for
        a stream of another program."""
        if name in self.outputs:
            raise StepError("output", f"{name} is there twice")
        self._own("output", stream)
        self.outputs[name] = stream
        return stream

    def _own(self, what: str, stream: Stream) -> None:
        """Raise `StepError` for a stream of another program. what: reads it."""
        if stream.program is not self:
            raise StepError(what, f"{stream.name} is a stream of another program")

    def feedback(self, name: str, shape: Sequence[Size], data: DataType) -> Stream:
        """Return a placeholder for a stream that is made later; `close` puts that stream in its place. name: in
        messages. shape, data: as for `input`. Raises `StepError` for a number that is no size."""
        made = Stream(self, StreamType.of(shape, data), name, where=users_line())
        self._open.add(made)
        return made

    def close(self, loop: Stream, stream: Stream) -> None:
        """Put a stream in the place of the `feedback` stream `loop`: all readers of `loop` then read it. Raises
        `StepError` if `loop` is no open feedback, if ranks or types differ, and for a stream of another program."""
        if loop not in self._open:
            raise StepError("close", f"{loop.name} is no open feedback")
        self._own("close", stream)
        if loop.type.rank != stream.type.rank or str(loop.type.data) != str(stream.type.data):
            raise StepError("close", f"{loop.name} is {loop.type}, and {stream.name} is {stream.type}")
        self._open.remove(loop)
        readings = self._readings.pop(loop, [])
        self.loops[loop] = ClosedLoop(stream, tuple(readings))
        for reading in readings:
            index = reading.node.inputs.index(loop)
            reading.node.inputs = (*reading.node.inputs[:index], stream, *reading.node.inputs[index + 1 :])
            self._readings.setdefault(stream, []).append(StreamReader(stream, reading.node, reading.port))

    def add(self, operator: Operator, *streams: Stream) -> Any:
        """Add an operator that reads some streams. Return its output stream, a tuple of several, or None for none.
        streams: its inputs, by port. Raises `StepError`, at the user's line, for streams of another program and for
        inputs that the operator does not take."""
        where = users_line()
        if isinstance(operator, Map) and len(streams) > 1:
            zipped: Stream = self.add(Zip(), *streams)
            try:
                return self.add(operator, zipped)
            except StepError:
                self._remove_last()
                raise
        for stream in streams:
            self._own(operator.name, stream)
        try:
            types = operator.types([stream.type for stream in streams], self.symbols, self.limits)
        except InputRefused as error:
            raise StepError(operator.name, str(error)) from error
        number = self._operators[operator.name]
        node = OperatorNode(operator, streams, (), where, f"{operator.name}{number or ''}")
        node.outputs = tuple(
            Stream(self, one, f"{node.name}.{port}" if len(types) > 1 else node.name, node, port)
            for port, one in enumerate(types)
        )
        self.nodes.append(node)
        self._operators[operator.name] += 1
        for port, stream in enumerate(streams):
            self._readings.setdefault(stream, []).append(StreamReader(stream, node, port))
        if operator.several or len(types) > 1:
            return node.outputs
        return node.outputs[0] if types else None

    def _remove_last(self) -> None:
        """Take back the operator that was added last, which nobody reads."""
        node = self.nodes.pop()
        self._operators[node.operator.name] -= 1
        for stream in node.inputs:
            self._readings[stream].pop()

    def readers(self, stream: Stream) -> tuple[StreamReader, ...]:
        """Return each input of an operator that reads a stream, in the order in which they were added."""
        return tuple(self._readings.get(stream, ()))

    @property
    def streams(self) -> tuple[Stream, ...]:
        """All streams: first the inputs, then the outputs of the nodes. Placeholders of feedbacks are not among
        them.
        """
        return (*self.inputs.values(), *(stream for node in self.nodes for stream in node.outputs))

    def check_closed(self) -> None:
        """Raise `StepError` if a feedback has no writer."""
        for stream in self._open:
            raise StepError("feedback", f"{stream.name} has no writer; close it", stream.where)

    def tokens(self, text: str, name: str) -> list[Token]:
        """Return the tokens of a text such as `1 2 S1 3 S2 D`. name: the input that they are for, whose type they have.
        Raises `TokenError` for a word that is no token, `StepError` for a name that no input has."""
        if name not in self.inputs:
            raise StepError("tokens", f"{name} is no input; they are {', '.join(self.inputs) or 'none'}")
        data = self.inputs[name].type.data
        dtype = getattr(data, "dtype", "bf16")
        return parse(text, dtype, selectors=not hasattr(data, "parts") and not hasattr(data, "dtype"))

    def defined(self) -> Mapping[sympy.Symbol, Any]:
        """Return, for the symbols that operators made and of which it is known, the expression of other symbols that
        each is equal to."""
        return self.symbols.defined
