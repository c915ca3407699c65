"""Run a program of dynamic streams with data: the same result each time, whatever the order of the operators' turns.

Most operators give the same tokens whenever their inputs come. EagerMerge, and Reassemble where several inputs are
chosen, take what comes first, so a run keeps clocks: a token has the time at which it was put, an operator that of the
last thing it did. Without durations nothing takes time, and the clocks come from the times that inputs are given; with
them, an operator is busy as long as they say. An operator that waits for any of several inputs acts only when nothing
else can move, and of those that wait, the one whose token comes first (ties: the operator that was added first, then
the lowest input). So whatever else comes, comes later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import sympy

from .checks import Measured, check_token, checked_values
from .errors import StepError, StreamFault, StuckError, Waiting
from .graph import Node, Program, Reading, Stream
from .memory import Memory, Tensor
from .operators.base import Context
from .requests import AnyOf, Busy, Get, Keep, Kernel, OffChip, Peek, Put, Request
from .tokens import Array, Token, show


@dataclass(frozen=True)
class Arrivals:
    """Tokens of an input with the time at which each comes, in rising order."""

    tokens: Sequence[Token]
    times: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.times) or list(self.times) != sorted(self.times):
            raise StepError("input", f"{len(self.tokens)} tokens with {len(self.times)} times, which must rise")


class _Channel:
    """A stream on its way to one reader. depth: None for no bound."""

    __slots__ = ("credits", "depth", "reader", "tokens", "waiting_reader", "waiting_writer", "writer")

    def __init__(self, depth: int | None, reader: _Task) -> None:
        self.depth = depth
        self.tokens: deque[tuple[Token, float]] = deque()
        self.credits: deque[float] = deque([0.0] * (depth or 0))
        self.reader = reader
        self.writer: _Task | None = None
        self.waiting_reader = self.waiting_writer = False

    @property
    def full(self) -> bool:
        return self.depth is not None and not self.credits


class _Output:
    """A stream at its writer. collected: its tokens, if the run returns them."""

    __slots__ = ("channels", "collected", "measured", "stream", "times")

    def __init__(self, stream: Stream, measured: Measured, channels: list[_Channel], collect: bool) -> None:
        self.stream = stream
        self.measured = measured
        self.channels = channels
        self.collected: list[Token] | None = [] if collect else None
        self.times: list[float] = []


class _Task:
    """An operator, or an input, that runs."""

    __slots__ = ("clock", "done", "index", "inputs", "kernel", "name", "node", "outputs", "request", "where")

    def __init__(self, index: int, name: str, where: str, node: Node | None) -> None:
        self.index, self.name, self.where, self.node = index, name, where, node
        self.clock = 0.0
        self.done = False
        self.inputs: list[_Channel] = []
        self.outputs: list[_Output] = []
        self.kernel: Kernel
        self.request: Request | None = None


@dataclass
class Run:
    """What a run gave.

    tokens: of each result: streams without reader, and named outputs; times: when each was put. traffic, flops, held:
    of each operator, bytes moved, operations, and the most bytes held on chip at once. ends: when each operator ended.
    values: of the symbols.
    """

    program: Program
    memory: Memory
    tokens: dict[Stream, list[Token]] = field(default_factory=dict)
    times: dict[Stream, list[float]] = field(default_factory=dict)
    traffic: dict[Node, int] = field(default_factory=dict)
    flops: dict[Node, int] = field(default_factory=dict)
    held: dict[Node, int] = field(default_factory=dict)
    ends: dict[Node, float] = field(default_factory=dict)
    values: dict[sympy.Symbol, int] = field(default_factory=dict)

    def __getitem__(self, result: str | Stream) -> list[Token]:
        """The tokens of a result, by its stream or the name of an output."""
        return self.tokens[self.program.outputs[result] if isinstance(result, str) else result]

    def text(self, result: str | Stream) -> str:
        """The tokens of a result as text."""
        return show(self[result])

    def tensor(self, tensor: Tensor) -> Array:
        """A tensor off the chip as it is after the run."""
        return self.memory.tensor(tensor)


Durations = Callable[[Node, Busy | OffChip], float]


def run(
    program: Program,
    inputs: Mapping[str, Sequence[Token] | Arrivals | str] | None = None,
    depths: int | Mapping[Stream, int] | None = None,
    durations: Durations | None = None,
    with_data: bool = True,
) -> Run:
    """Run a program.

    inputs: tokens of each input, as text, or with times. depths: tokens that a stream holds for each of its readers,
    for all streams or some; otherwise there is no bound. durations: how long an operator takes for an element or a
    transfer. with_data: whether tensors off the chip have values.

    Raises `StepError` for missing inputs, `StreamFault` for tokens that do not fit, with their position, `StuckError`
    for a deadlock.
    """
    return _Runner(program, dict(inputs or {}), depths, durations, with_data).go()


class _Runner:
    def __init__(
        self,
        program: Program,
        inputs: dict[str, Sequence[Token] | Arrivals | str],
        depths: int | Mapping[Stream, int] | None,
        durations: Durations | None,
        with_data: bool,
    ) -> None:
        program.check_closed()
        self.program = program
        self.durations = durations
        self.result = Run(program, Memory(with_data))
        self.ready: deque[_Task] = deque()
        missing = [name for name in program.inputs if name not in inputs]
        unknown = [name for name in inputs if name not in program.inputs]
        if missing or unknown:
            raise StepError("run", f"inputs without tokens: {missing}; tokens of no input: {unknown}")
        self.tasks = [_Task(-1, f"input {name}", "", None) for name in program.inputs]
        self.tasks += [_Task(index, node.name, node.where, node) for index, node in enumerate(program.nodes)]
        of_node = {task.node: task for task in self.tasks if task.node is not None}
        channels: dict[tuple[Node, int], _Channel] = {}
        named = set(program.outputs.values())
        self.measured: dict[Stream, Measured] = {}
        self.outputs: dict[Stream, _Output] = {}

        def output(stream: Stream, writer: _Task) -> _Output:
            readings: Sequence[Reading] = program.readers(stream)
            mine = []
            for reading in readings:
                depth = depths if isinstance(depths, int) or depths is None else depths.get(stream)
                if depth is not None and depth < 1:
                    raise StepError("run", f"stream {stream.name} has depth {depth}; the least is 1")
                channel = channels[reading.node, reading.port] = _Channel(depth, of_node[reading.node])
                channel.writer = writer
                mine.append(channel)
            self.measured[stream] = Measured(stream.type, program.bounds)
            made = self.outputs[stream] = _Output(stream, self.measured[stream], mine, not readings or stream in named)
            return made

        for task, (name, stream) in zip(self.tasks, program.inputs.items(), strict=False):
            given = inputs[name]
            tokens = program.tokens(given, name) if isinstance(given, str) else given
            arrivals = tokens if isinstance(tokens, Arrivals) else Arrivals(list(tokens), [0.0] * len(tokens))
            task.outputs = [output(stream, task)]
            task.kernel = self._feed(task, arrivals)
        for task in self.tasks[len(program.inputs) :]:
            assert task.node is not None
            task.outputs = [output(stream, task) for stream in task.node.outputs]
            context = Context(task.name, task.where, task.node.input_types, task.node.output_types, self.result.memory)
            task.kernel = task.node.operator.kernel(context)
            self.result.traffic[task.node] = self.result.flops[task.node] = self.result.held[task.node] = 0
        for task in of_node.values():
            assert task.node is not None
            task.inputs = [channels[task.node, port] for port in range(len(task.node.inputs))]

    def _feed(self, task: _Task, arrivals: Arrivals) -> Kernel:
        for token, time in zip(arrivals.tokens, arrivals.times, strict=True):
            task.clock = max(task.clock, time)
            yield Put((0,), token)

    def go(self) -> Run:
        """Run until nothing moves."""
        self.ready.extend(self.tasks)
        for task in self.tasks:
            task.request = next(task.kernel, None)
            if task.request is None:
                self._end(task)
        while True:
            while self.ready:
                self._advance(self.ready.popleft())
            if not self._arbitrate():
                break
        stuck = [task for task in self.tasks if not task.done]
        if stuck:
            raise StuckError([self._waiting(task) for task in stuck])
        self._left_over()
        return self._results()

    def _end(self, task: _Task) -> None:
        task.done = True
        if task.node is not None:
            self.result.ends[task.node] = task.clock

    def _advance(self, task: _Task) -> None:
        """Let a task act until it waits."""
        while not task.done:
            request = task.request
            answer = None
            match request:
                case Get(port) | Peek(port):
                    channel = task.inputs[port]
                    if not channel.tokens:
                        channel.waiting_reader = True
                        return
                    answer, time = channel.tokens[0]
                    task.clock = max(task.clock, time)
                    if isinstance(request, Get):
                        self._take(channel, task)
                case Put(ports, token):
                    full = [c for port in ports for c in task.outputs[port].channels if c.full]
                    if full:
                        full[0].waiting_writer = True
                        return
                    self._put(task, ports, token)
                case Busy() | OffChip():
                    self._count(task, request)
                case Keep(size):
                    assert task.node is not None
                    self.result.held[task.node] = max(self.result.held[task.node], size)
                case AnyOf():
                    return
            self._resume(task, answer)

    def _resume(self, task: _Task, answer: object) -> None:
        try:
            task.request = task.kernel.send(answer)
        except StopIteration:
            self._end(task)

    def _take(self, channel: _Channel, task: _Task) -> None:
        channel.tokens.popleft()
        if channel.depth is not None:
            channel.credits.append(task.clock)
            if channel.waiting_writer and channel.writer is not None:
                channel.waiting_writer = False
                self.ready.append(channel.writer)

    def _put(self, task: _Task, ports: tuple[int, ...], token: Token) -> None:
        for port in ports:
            for channel in task.outputs[port].channels:
                if channel.depth is not None:
                    task.clock = max(task.clock, channel.credits.popleft())
        for port in ports:
            output = task.outputs[port]
            check_token(output.measured, output.stream, token)
            if output.collected is not None:
                output.collected.append(token)
                output.times.append(task.clock)
            for channel in output.channels:
                channel.tokens.append((token, task.clock))
                if channel.waiting_reader:
                    channel.waiting_reader = False
                    self.ready.append(channel.reader)

    def _count(self, task: _Task, request: Busy | OffChip) -> None:
        assert task.node is not None
        if isinstance(request, OffChip):
            self.result.traffic[task.node] += request.bytes
        else:
            self.result.flops[task.node] += request.work.flops
        if self.durations is not None:
            task.clock += self.durations(task.node, request)

    def _arbitrate(self) -> bool:
        """Let the one operator act whose choice comes first. Returns whether there is one."""
        best: tuple[float, int, int] | None = None
        for task in self.tasks:
            if task.done or not isinstance(task.request, AnyOf):
                continue
            fronts = [(task.inputs[port].tokens[0][1], port) for port in task.request.ports if task.inputs[port].tokens]
            if fronts:
                time, port = min(fronts)
                choice = (max(task.clock, time), task.index, port)
                best = choice if best is None else min(best, choice)
        if best is None:
            return False
        start, index, port = best
        task = next(one for one in self.tasks if one.index == index)
        task.clock = start
        self._resume(task, port)
        self.ready.append(task)
        return True

    def _waiting(self, task: _Task) -> Waiting:
        match task.request:
            case Get(port) | Peek(port):
                channel = task.inputs[port]
                return self._line(task, f"input {port}", channel.writer, channel)
            case AnyOf(ports):
                writers = [task.inputs[port].writer for port in ports]
                names = " or ".join(writer.name for writer in writers if writer is not None)
                return Waiting(task.name, task.where, f"inputs {', '.join(map(str, ports))}", names, 0, None)
            case Put(ports):
                for port in ports:
                    for channel in task.outputs[port].channels:
                        if channel.full:
                            return self._line(task, f"output {port}", channel.reader, channel)
        raise AssertionError(f"{task.name} waits for nothing")

    def _line(self, task: _Task, port: str, other: _Task | None, channel: _Channel) -> Waiting:
        name = other.name if other is not None else "nobody"
        return Waiting(task.name, task.where, port, name, len(channel.tokens), channel.depth)

    def _left_over(self) -> None:
        for task in self.tasks:
            for port, channel in enumerate(task.inputs):
                if channel.tokens:
                    source = channel.writer
                    position = None
                    if source is not None:
                        output = next(o for o in source.outputs if channel in o.channels)
                        position = output.measured.position + 1 - len(channel.tokens)
                    first = show([channel.tokens[0][0]])
                    text = f"{len(channel.tokens)} tokens are left over, the first is {first}"
                    raise StreamFault(task.name, task.where, f"input {port}", text, position)

    def _results(self) -> Run:
        for stream, output in self.outputs.items():
            if output.collected is not None:
                self.result.tokens[stream] = output.collected
                self.result.times[stream] = output.times
        self.result.values = checked_values(self.program, self.measured, self.result.flops)
        return self.result
