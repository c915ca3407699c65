"""Run a program of dynamic streams on the engine of the machines: each operator is a unit.

`run` is for results, and `timed` for how long they take: there, operators are busy by the roofline of their work, and
share a memory off the chip (v1 section 4.2, v2 section 4.3).

Most operators give the same tokens whenever their inputs come. EagerMerge, and Reassemble where several inputs are
chosen, take what comes first, so `run` keeps clocks too: without durations nothing takes time, and they come from the
times that inputs are given. An operator that waits for any of several inputs acts only when nothing else can move, and
of those that wait, the one whose token comes first (ties: the operator that was added first, then the lowest input).
So whatever else comes, comes later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite, nextafter
from typing import Any

import sympy

from ...base.deadlock_report import Deadlock
from ...base.errors import DeadlockError, ProgramError
from ...machine.dynamic import DynamicNetwork, DynamicRun, Ports
from ...machine.off_chip import OffChipMemory
from ...machine.steps import Step, Steps
from .checks import Measured, check_token, checked_values
from .errors import StepError, StreamFault, StuckError, TokenError, Waiting
from .graph import OperatorNode, Program, Stream, StreamReader
from .memory import Tensor, TensorMemory
from .operators.base import KernelContext
from .operators.off_chip import LinearOffChipLoad, LinearOffChipStore, RandomOffChipLoad, RandomOffChipStore
from .requests import Busy, DeliverToken, EarliestInput, Keep, MoveTile, Peek, TakeToken
from .tokens import Array, Token, show

ENDLESS = 1 << 30
"""Depth of a stream without a bound, in tokens."""

OFF_CHIP = (LinearOffChipLoad, LinearOffChipStore, RandomOffChipLoad, RandomOffChipStore)
"""Operators that move tiles between the chip and the memory off it."""

OFF_CHIP_UNIT = "memory off the chip"
"""The name of the unit that stands for that memory."""


@dataclass(frozen=True)
class Arrivals:
    """Tokens of an input with the cycle in which each comes. times: rising, one for each token. Raises `StepError` for
    another number of times than tokens, and for times that fall or are not finite."""

    tokens: Sequence[Token]
    times: Sequence[float]

    def __post_init__(self) -> None:
        rise = all(map(isfinite, self.times)) and list(self.times) == sorted(self.times)
        if len(self.tokens) != len(self.times) or not rise:
            raise StepError("input", f"{len(self.tokens)} tokens with {len(self.times)} times, which must rise")


@dataclass(frozen=True)
class Rates:
    """What memories move in a cycle.

    on_chip: bytes a cycle between an operator and its memory unit. access: bytes of one access to the memory off the
    chip. channels, per_client: accesses that begin in a cycle, of all operators together and of each. latency: cycles
    from the last access of a tile to its arrival. The defaults are those of STeP's evaluation: 64 bytes a cycle on
    chip, 1024 off the chip, of which 64 for each operator. Raises `StepError` for a latency less than 0, for other
    numbers less than 1, and if `per_client` is more than `channels`."""

    on_chip: int = 64
    access: int = 64
    channels: int = 16
    per_client: int = 1
    latency: int = 0

    def __post_init__(self) -> None:
        if min(self.on_chip, self.access, self.per_client) < 1 or self.per_client > self.channels or self.latency < 0:
            raise StepError("Rates", f"{self}: latency >= 0, others >= 1, and no client gets more than all channels")


Durations = Callable[[OperatorNode, Busy | MoveTile], float]


@dataclass(frozen=True)
class Run:
    """What a run returned.

    tokens: of each result, that is each stream without a reader and each named output. times: the cycle in which each
    of these tokens was put. ends: the cycle in which each operator ended. traffic: bytes that each operator moved to or
    from the memory off the chip. flops: operations of each. held: the most bytes that each held on chip at once.
    values: of the symbols. memory: the tensors off the chip after the run."""

    program: Program
    memory: TensorMemory
    tokens: Mapping[Stream, Sequence[Token]]
    times: Mapping[Stream, Sequence[float]]
    ends: Mapping[OperatorNode, float]
    traffic: Mapping[OperatorNode, int]
    flops: Mapping[OperatorNode, int]
    held: Mapping[OperatorNode, int]
    values: Mapping[sympy.Symbol, int]

    def __getitem__(self, result: str | Stream) -> Sequence[Token]:
        """The tokens of a result, by its stream or the name of an output. Raises `StepError` if it is no result."""
        stream = self.program.outputs.get(result) if isinstance(result, str) else result
        if stream is None or stream not in self.tokens:
            named = result if isinstance(result, str) else result.name
            known = dict.fromkeys([*self.program.outputs, *(one.name for one in self.tokens)])
            raise StepError("run", f"{named} is no result; they are {', '.join(known) or 'none'}")
        return self.tokens[stream]

    def text(self, result: str | Stream) -> str:
        """Return the tokens of a result as text, as `tokens.show`. result: its stream, or the name of an output. Raises
        `StepError` if it is no result."""
        return show(self[result])

    def tensor(self, tensor: Tensor) -> Array:
        """Return the values of a tensor off the chip after the run, an array of its shape. Raises `ValueError` if tiles
        without data were stored there.
        """
        return self.memory.tensor(tensor)


@dataclass(frozen=True)
class TimedRun(Run):
    """What a run with clocks returned; times are in cycles. engine: the run of the machine, with its length, its times,
    and the choices by arrival. requests: the names of the streams of requests to the memory off the chip; the order of
    requests changes times, not results."""

    engine: DynamicRun
    requests: frozenset[str]

    @property
    def cycles(self) -> float:
        """The length of the run, in cycles."""
        return self.engine.cycles

    @property
    def depends_on_time(self) -> bool:
        """Whether results may depend on times, because an operator chose an input by arrival."""
        return any(name not in self.requests for name in self.engine.chosen)


Inputs = Mapping[str, Sequence[Token] | Arrivals | str]


def run(
    program: Program,
    inputs: Inputs | None = None,
    depths: int | Mapping[Stream, int] | None = None,
    durations: Durations | None = None,
    with_data: bool = True,
) -> Run:
    """Run a program for its results.

    inputs: for each input, by its name, its tokens, their text, or tokens with times. depths: tokens that a stream
    holds for each of its readers: a number for all streams, or a mapping; other streams have no bound, and with None no
    stream has one. durations: the cycles that an operator takes for an element or a transfer; None for none. with_data:
    whether tensors off the chip have values.

    Raises `StepError` for missing and unknown inputs, a feedback without a writer and a depth below 1, `StreamFault`
    for tokens that do not fit or are left over, with their position, `StuckError` for a deadlock."""
    network = OperatorNetwork("run", program, inputs or {}, depths, None, durations, with_data)
    try:
        engine = network.run()
    except DeadlockError as error:
        raise StuckError(list(network.waiting(error.report))) from None
    return Run(**network.results(engine))


def timed(
    program: Program,
    inputs: Inputs | None = None,
    depths: int | Mapping[Stream, int] | None = 2,
    rates: Rates | None = None,
    *,
    durations: Durations | None = None,
    with_data: bool = True,
    order: Callable[[list[Any]], list[Any]] | None = None,
) -> TimedRun:
    """Run a program with clocks (STeP v1, section 4.2; v2, section 4.3).

    inputs: for each input, by its name, its tokens, their text, or tokens with times. depths: tokens that a stream
    holds for each of its readers: a number for all streams, or a mapping; other streams have no bound, and with None no
    stream has one. rates: of the memories; None for those of STeP's evaluation. durations: the cycles that an operator
    takes for an element or a transfer, in place of the rates; then no transfer waits for another one; None for the
    rates. with_data: whether tensors off the chip have values. order: changes the order in which operators take turns,
    for tests; no result depends on it. None for the usual order.

    Raises `StepError` for missing and unknown inputs, a feedback without a writer and a depth below 1, `StreamFault`
    for tokens that do not fit or are left over, with their position, and `DeadlockError` with who waits for whom."""
    network = OperatorNetwork("timed", program, inputs or {}, depths, rates or Rates(), durations, with_data)
    engine = network.run(order)
    requests = network.off_chip.requests if network.off_chip is not None else ()
    return TimedRun(**network.results(engine), engine=engine, requests=frozenset(requests))


class _Counts:
    """What one operator has moved, computed and held."""

    __slots__ = ("flops", "held", "traffic")

    def __init__(self) -> None:
        self.traffic = self.flops = self.held = 0


class _Output:
    """A stream at its writer: what is checked of its tokens, and kept. number: among the outputs of the unit; None
    without reader. tokens, times: if it is a result."""

    __slots__ = ("measured", "number", "stream", "times", "tokens")

    def __init__(self, stream: Stream, bounds: Mapping[sympy.Symbol, int], number: int | None, kept: bool) -> None:
        self.stream = stream
        self.measured = Measured(stream.type, bounds)
        self.number = number
        self.tokens: list[Token] | None = [] if kept else None
        self.times: list[float] = []


class _Sender:
    """Sends the tokens of one unit: checks them, delivers them, and keeps those of results."""

    __slots__ = ("_known", "_outputs", "_ports")

    def __init__(self, ports: Ports, outputs: Sequence[_Output]) -> None:
        self._ports = ports
        self._outputs = outputs
        self._known: dict[tuple[int, ...], tuple[list[_Output], Step | None, list[_Output]]] = {}

    def steps(self, to: tuple[int, ...], token: Token) -> Steps:
        """Wait for room at all readers of some outputs, then deliver a token to them all."""
        if (known := self._known.get(to)) is None:
            outputs = [self._outputs[port] for port in to]
            numbers = [output.number for output in outputs if output.number is not None]
            step = self._ports.put(token, *numbers) if numbers else None
            known = self._known[to] = outputs, step, [output for output in outputs if output.tokens is not None]
        outputs, step, kept = known
        for output in outputs:
            check_token(output.measured, output.stream, token)
        if step is not None:
            step.send = (token,) * len(step.puts)  # the unit goes on when it is delivered: one step is enough for all
            yield step
        for output in kept:
            assert output.tokens is not None
            output.tokens.append(token)
            output.times.append(self._ports.now)


class OperatorNetwork:
    """The units and streams of one run.

    caller: `run` or `timed`, or the name of a machine, for messages. inputs, depths, with_data: as for `timed`. rates,
    durations: as for `timed`; with both None, nothing takes time. tensors: values of tensors in place of their own.
    unit_name: returns another name for a unit that is no operator; it takes the usual one, such as "input x", which the
    files of machines cannot hold. Raises `StepError` as `timed`, and `StreamFault` for a text that is no stream."""

    def __init__(
        self,
        caller: str,
        program: Program,
        inputs: Inputs,
        depths: int | Mapping[Stream, int] | None,
        rates: Rates | None,
        durations: Durations | None,
        with_data: bool,
        *,
        tensors: Mapping[Tensor, Array] | None = None,
        unit_name: Callable[[str], str] = str,
    ) -> None:
        program.check_closed()
        missing = [name for name in program.inputs if name not in inputs]
        unknown = [name for name in inputs if name not in program.inputs]
        if missing or unknown:
            raise StepError(caller, f"inputs without tokens: {missing}; tokens of no input: {unknown}")
        self.program, self.rates, self.durations = program, rates, durations
        self.memory = TensorMemory(with_data, tensors)
        self._unit_name = unit_name
        self.network = DynamicNetwork()
        self.counts = {node: _Counts() for node in program.nodes}
        self.choosing: dict[str, tuple[int, ...]] = {}
        named = set(program.outputs.values())
        self.outputs: dict[Stream, _Output] = {}
        for of_unit in (*((stream,) for stream in program.inputs.values()), *(node.outputs for node in program.nodes)):
            count = 0
            for stream in of_unit:
                is_read = bool(program.readers(stream))
                kept = stream in named or not is_read
                self.outputs[stream] = _Output(stream, program.bounds, count if is_read else None, kept)
                count += is_read
        for name, stream in program.inputs.items():
            self.network.unit(unit_name(_writer(stream)), self._feeding(stream, self._arrivals(name, inputs[name])))
        for node in program.nodes:
            self.network.unit(node.name, self._running(node), node.where)
        self.readings: dict[str, tuple[StreamReader, int]] = {}
        self._connect(caller, depths)
        self.off_chip: OffChipMemory | None = None
        self.clients: dict[OperatorNode, tuple[int, int]] = {}
        movers = [node for node in program.nodes if isinstance(node.operator, OFF_CHIP)]
        if movers and rates is not None and durations is None:
            limits = {"channels": rates.channels, "per_client": rates.per_client, "latency": rates.latency}
            self.off_chip = OffChipMemory(self.network, unit_name(OFF_CHIP_UNIT), access=rates.access, **limits)
            self.clients = {node: self.off_chip.client(node.name) for node in movers}

    def _connect(self, caller: str, depths: int | Mapping[Stream, int] | None) -> None:
        """Make the streams; note the reading of each, and its depth, by its name."""
        for stream, output in self.outputs.items():
            depth = depths if isinstance(depths, int) else (depths or {}).get(stream, ENDLESS)
            for reading in self.program.readers(stream):
                if depth < 1:
                    raise StepError(caller, f"stream {stream.name} has depth {depth}; the least is 1")
                ends = self._unit_of(stream), reading.node.name
                made = self.network.connect(*ends, depth, output=output.number, port=reading.port)
                self.readings[made.name] = reading, depth

    def _unit_of(self, stream: Stream) -> str:
        """The unit that writes a stream."""
        return stream.source.name if stream.source is not None else self._unit_name(_writer(stream))

    def _arrivals(self, name: str, given: Sequence[Token] | Arrivals | str) -> Arrivals:
        try:
            tokens = self.program.tokens(given, name) if isinstance(given, str) else given
        except TokenError as error:
            where = self.program.inputs[name].where
            raise StreamFault(f"input {name}", where, name, error.text, error.position) from error
        return tokens if isinstance(tokens, Arrivals) else Arrivals(list(tokens), [0.0] * len(tokens))

    def _feeding(self, stream: Stream, arrivals: Arrivals) -> Callable[[Ports], Steps]:
        """The unit of an input."""

        def kernel(ports: Ports) -> Steps:
            send = _Sender(ports, [self.outputs[stream]])
            for token, time in zip(arrivals.tokens, arrivals.times, strict=True):
                while (now := ports.now) < time:
                    wait = time - now  # sums are rounded: not beyond the time; another step takes what is left
                    yield ports.busy(wait if now + wait <= time else nextafter(wait, 0.0))
                yield from send.steps((0,), token)

        return kernel

    def _running(self, node: OperatorNode) -> Callable[[Ports], Steps]:
        """The unit of an operator: what its kernel asks for, as steps."""
        context = KernelContext(node.name, node.where, node.input_types, node.output_types, self.memory)
        takes_time = self.rates is not None or self.durations is not None

        def kernel(ports: Ports) -> Steps:
            requests = node.operator.kernel(context)
            counts = self.counts[node]
            send = _Sender(ports, [self.outputs[stream] for stream in node.outputs])
            answer: Any = None
            while True:
                try:
                    request = requests.send(answer)
                except StopIteration:
                    break
                answer = None
                match request:
                    case TakeToken(port):
                        (answer,) = yield ports.get(port)
                    case DeliverToken(outputs, token):
                        yield from send.steps(outputs, token)
                    case Busy(work):
                        counts.flops += work.flops
                        if takes_time:
                            yield ports.busy(self._duration(node, request))
                    case Peek(port):
                        answer = yield from ports.peek(port)
                    case MoveTile():
                        counts.traffic += request.bytes
                        if takes_time:
                            yield from self._move(ports, node, request)
                    case Keep(size):
                        counts.held = max(counts.held, size)
                    case EarliestInput(among):
                        self.choosing[node.name] = among
                        answer = among[(yield ports.any_of(*among))]
                        del self.choosing[node.name]
            if self.off_chip is not None and node in self.clients:
                yield self.off_chip.end(ports, self.clients[node])

        return kernel

    def _duration(self, node: OperatorNode, request: Busy | MoveTile) -> float:
        if self.durations is not None:
            return self.durations(node, request)
        assert isinstance(request, Busy)
        assert self.rates is not None
        return request.work.cycles(self.rates.on_chip)

    def _move(self, ports: Ports, node: OperatorNode, request: MoveTile) -> Steps:
        if self.off_chip is None:
            yield ports.busy(self._duration(node, request))
        else:
            accesses = self.off_chip.accesses(request.rows, request.row_bytes)
            yield from self.off_chip.transfer(ports, self.clients[node], accesses)

    def run(self, order: Callable[[list[Any]], list[Any]] | None = None) -> DynamicRun:
        """Run the network, which may be done once, and return the run of the engine. order: as for `timed`. Raises
        `StreamFault` for tokens that do not fit or are left over, `DeadlockError` if no unit can move."""
        try:
            return self.network.run(order)
        except ProgramError as error:
            if not error.left:
                raise
            raise self.left_over(error.left) from None

    def results(self, engine: DynamicRun) -> dict[str, Any]:
        """Return the fields of a `Run` by name. engine: what `run` returned. Raises `StreamFault` as
        `checked_values`.
        """
        kept = {stream: output for stream, output in self.outputs.items() if output.tokens is not None}
        flops = {node: counts.flops for node, counts in self.counts.items()}
        return {
            "program": self.program,
            "memory": self.memory,
            "tokens": {stream: output.tokens for stream, output in kept.items()},
            "times": {stream: output.times for stream, output in kept.items()},
            "ends": {node: engine.ends[node.name] for node in self.program.nodes},
            "traffic": {node: counts.traffic for node, counts in self.counts.items()},
            "flops": flops,
            "held": {node: counts.held for node, counts in self.counts.items()},
            "values": checked_values(self.program, {s: output.measured for s, output in self.outputs.items()}, flops),
        }

    def waiting(self, report: Deadlock) -> Iterator[Waiting]:
        """Yield for each unit of a deadlock what it waits for; of several streams, the first one. report: the
        deadlock."""
        where = {node.name: node.where for node in self.program.nodes}
        for unit, (first, *_) in groupby(report.waits, key=lambda wait: wait.unit):
            reading, depth = self.readings[first.stream]
            place, bound = where.get(unit, ""), None if depth == ENDLESS else depth
            if unit in self.choosing:
                ports = self.choosing[unit]
                names = " or ".join(_writer(reading.node.inputs[port]) for port in ports)
                yield Waiting(unit, place, f"inputs {', '.join(map(str, ports))}", names, 0, None)
            elif first.what == "get":
                yield Waiting(unit, place, f"input {reading.port}", first.peer, first.filled, bound)
            else:
                yield Waiting(unit, place, f"output {reading.stream.port}", first.peer, first.filled, bound)

    def left_over(self, words: Mapping[str, Sequence[Any]]) -> StreamFault:
        """Return the error for tokens that no operator has taken, at the first input that has some. words: the tokens
        that are in each stream at the end, by its name."""
        left = {self.readings[name][0]: tokens for name, tokens in words.items()}
        of_node = {node: number for number, node in enumerate(self.program.nodes)}
        first = min(left, key=lambda reading: (of_node[reading.node], reading.port))
        tokens, node = left[first], first.node
        text = f"{len(tokens)} tokens are left over, the first is {show(tokens[:1])}"
        position = self.outputs[first.stream].measured.position + 1 - len(tokens)
        return StreamFault(node.name, node.where, f"input {first.port}", text, position)


def _writer(stream: Stream) -> str:
    """The name of the unit that writes a stream."""
    return stream.source.name if stream.source is not None else f"input {stream.name}"
