"""Run a program of dynamic streams on the engine of the machines: each operator is a unit, and has a time.

`run` is for results, and `timed` for how long they take: operators are busy by the roofline of their work, and share a
memory off the chip (v1 section 4.2, v2 section 4.3). Both apply the same rule where a unit chooses by arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from ...machine.dynamic import DynamicNetwork, DynamicRun, Ports
from ...machine.off_chip import OffChipMemory
from ...machine.steps import Steps
from .checks import Measured, check_token, checked_values
from .errors import StepError
from .graph import Node, Program, Stream
from .memory import Memory
from .operators.base import Context
from .operators.off_chip import LinearOffChipLoad, LinearOffChipStore, RandomOffChipLoad, RandomOffChipStore
from .requests import AnyOf, Busy, Get, Keep, OffChip, Peek, Put
from .run import Arrivals, Durations
from .tokens import Token, show

ENDLESS = 1 << 30
"""Depth of a stream without a bound, in tokens."""

OFF_CHIP = (LinearOffChipLoad, LinearOffChipStore, RandomOffChipLoad, RandomOffChipStore)
"""Operators that move tiles between the chip and the memory off it."""


@dataclass(frozen=True)
class Rates:
    """on_chip: bytes a cycle between an operator and its memory unit. access: bytes of an access to the memory off the
    chip; channels, per_client: accesses a cycle, of all operators and of each; latency: cycles from the last access to
    its arrival. The defaults are those of STeP's evaluation: 64 B on chip, 1024 B off the chip, 64 B a loader."""

    on_chip: int = 64
    access: int = 64
    channels: int = 16
    per_client: int = 1
    latency: int = 0

    def __post_init__(self) -> None:
        if min(self.on_chip, self.access, self.per_client) < 1 or self.per_client > self.channels or self.latency < 0:
            raise StepError("Rates", f"{self}: latency >= 0, others >= 1, and no client gets more than all channels")


@dataclass(frozen=True)
class TimedRun:
    """What a run gave. tokens: of each result (streams without reader, and named outputs); times: the cycle in which
    each was put. ends: the cycle in which each operator ended. traffic, flops, held: of each operator, bytes moved off
    the chip, operations, most bytes held on chip. values: of the symbols. engine: the run of the machine: length,
    choices by arrival, times. requests: the streams of requests to the memory off the chip, by name; their order
    changes times, not results."""

    program: Program
    memory: Memory
    tokens: Mapping[Stream, Sequence[Token]]
    times: Mapping[Stream, Sequence[float]]
    ends: Mapping[Node, float]
    traffic: Mapping[Node, int]
    flops: Mapping[Node, int]
    held: Mapping[Node, int]
    values: Mapping[sympy.Symbol, int]
    engine: DynamicRun
    requests: frozenset[str] = frozenset()

    @property
    def cycles(self) -> float:
        """The length of the run."""
        return self.engine.cycles

    @property
    def depends_on_time(self) -> bool:
        """Whether results may depend on times: an operator chose by arrival."""
        return any(name not in self.requests for name in self.engine.chosen)

    def text(self, result: str | Stream) -> str:
        """The tokens of a result, by its stream or the name of an output, as text."""
        return show(self.tokens[self.program.outputs[result] if isinstance(result, str) else result])


def timed(
    program: Program,
    inputs: Mapping[str, Sequence[Token] | Arrivals | str] | None = None,
    depths: int | Mapping[Stream, int] | None = 2,
    rates: Rates | None = None,
    *,
    durations: Durations | None = None,
    with_data: bool = True,
    order: Callable[[list[Any]], list[Any]] | None = None,
) -> TimedRun:
    """Run a program with clocks.

    inputs: tokens of each input, as text, or with times. depths: tokens that a stream holds for each of its readers;
    a stream that a mapping leaves out has no bound. durations: how long an operator takes for an element or a
    transfer, instead of the rates; a transfer then waits for no other. with_data: whether tensors off the chip have
    values. order: of the operators' turns, which changes nothing; for tests.

    Raises `StepError` for missing inputs and depths below 1, `StreamFault` for tokens that do not fit, with their
    position, `DeadlockError` with who waits for whom, and `ProgramError` for tokens that are left over.
    """
    return _Timed(program, dict(inputs or {}), depths, rates or Rates(), durations, with_data).run(order)


@dataclass
class _Counts:
    """What one operator has moved, computed and held."""

    traffic: int = 0
    flops: int = 0
    held: int = 0


class _Timed:
    def __init__(
        self,
        program: Program,
        inputs: dict[str, Sequence[Token] | Arrivals | str],
        depths: int | Mapping[Stream, int] | None,
        rates: Rates,
        durations: Durations | None,
        with_data: bool,
    ) -> None:
        program.check_closed()
        missing = [name for name in program.inputs if name not in inputs]
        unknown = [name for name in inputs if name not in program.inputs]
        if missing or unknown:
            raise StepError("timed", f"inputs without tokens: {missing}; tokens of no input: {unknown}")
        self.program, self.rates, self.durations = program, rates, durations
        self.memory = Memory(with_data)
        self.network = DynamicNetwork()
        self.counts = {node: _Counts() for node in program.nodes}
        named = set(program.outputs.values())
        kept = [stream for stream in program.streams if stream in named or not program.readers(stream)]
        self.measured = {stream: Measured(stream.type, program.bounds) for stream in program.streams}
        self.tokens: dict[Stream, list[Token]] = {stream: [] for stream in kept}
        self.times: dict[Stream, list[float]] = {stream: [] for stream in kept}
        for name, stream in program.inputs.items():
            self.network.unit(f"input {name}", self._feeding(stream, self._arrivals(name, inputs[name])))
        for node in program.nodes:
            self.network.unit(node.name, self._running(node), node.where)
        self._connect(depths)
        self.off_chip: OffChipMemory | None = None
        self.clients: dict[Node, tuple[int, int]] = {}
        movers = [node for node in program.nodes if isinstance(node.operator, OFF_CHIP)]
        if movers and durations is None:
            limits = {"channels": rates.channels, "per_client": rates.per_client, "latency": rates.latency}
            self.off_chip = OffChipMemory(self.network, "memory off the chip", access=rates.access, **limits)
            self.clients = {node: self.off_chip.client(node.name) for node in movers}

    def _connect(self, depths: int | Mapping[Stream, int] | None) -> None:
        """Make the streams. Outputs without reader have none, so those with readers are numbered anew."""
        self.numbers: dict[Stream, int] = {}
        for stream in self.program.streams:
            readings = self.program.readers(stream)
            if not readings:
                continue
            writer = stream.source
            before = writer.outputs[: stream.port] if writer is not None else ()
            self.numbers[stream] = sum(other in self.numbers for other in before)
            depth = depths if isinstance(depths, int) else (depths or {}).get(stream, ENDLESS)
            if depth < 1:
                raise StepError("timed", f"stream {stream.name} has depth {depth}; the least is 1")
            name = writer.name if writer is not None else f"input {stream.name}"
            for reading in readings:
                self.network.connect(name, reading.node.name, depth, output=self.numbers[stream], port=reading.port)

    def _arrivals(self, name: str, given: Sequence[Token] | Arrivals | str) -> Arrivals:
        tokens = self.program.tokens(given, name) if isinstance(given, str) else given
        return tokens if isinstance(tokens, Arrivals) else Arrivals(list(tokens), [0.0] * len(tokens))

    def _feeding(self, stream: Stream, arrivals: Arrivals) -> Callable[[Ports], Steps]:
        """The unit of an input."""

        def kernel(ports: Ports) -> Steps:
            for token, time in zip(arrivals.tokens, arrivals.times, strict=True):
                yield ports.busy(max(0.0, time - ports.now))
                yield from self._put(ports, (stream,), token)

        return kernel

    def _running(self, node: Node) -> Callable[[Ports], Steps]:
        """The unit of an operator: what its kernel asks for, as steps."""
        context = Context(node.name, node.where, node.input_types, node.output_types, self.memory)

        def kernel(ports: Ports) -> Steps:
            requests = node.operator.kernel(context)
            counts = self.counts[node] = _Counts()
            answer: Any = None
            while True:
                try:
                    request = requests.send(answer)
                except StopIteration:
                    break
                answer = None
                match request:
                    case Get(port):
                        (answer,) = yield ports.get(port)
                    case Peek(port):
                        answer = yield from ports.peek(port)
                    case AnyOf(among):
                        answer = among[(yield ports.any_of(*among))]
                    case Put(outputs, token):
                        yield from self._put(ports, [node.outputs[port] for port in outputs], token)
                    case Keep(size):
                        counts.held = max(counts.held, size)
                    case Busy(work):
                        counts.flops += work.flops
                        yield ports.busy(self._duration(node, request))
                    case OffChip():
                        counts.traffic += request.bytes
                        yield from self._move(ports, node, request)
            if self.off_chip is not None and node in self.clients:
                yield self.off_chip.end(ports, self.clients[node])

        return kernel

    def _duration(self, node: Node, request: Busy | OffChip) -> float:
        if self.durations is not None:
            return self.durations(node, request)
        assert isinstance(request, Busy)
        return request.work.cycles(self.rates.on_chip)

    def _move(self, ports: Ports, node: Node, request: OffChip) -> Steps:
        if self.off_chip is None:
            yield ports.busy(self._duration(node, request))
        else:
            accesses = self.off_chip.accesses(request.rows, request.row_bytes)
            yield from self.off_chip.transfer(ports, self.clients[node], accesses)

    def _put(self, ports: Ports, streams: Sequence[Stream], token: Token) -> Steps:
        for stream in streams:
            check_token(self.measured[stream], stream, token)
        numbers = [self.numbers[stream] for stream in streams if stream in self.numbers]
        if numbers:
            yield ports.put(token, *numbers)
        for stream in streams:
            if stream in self.tokens:
                self.tokens[stream].append(token)
                self.times[stream].append(ports.now)

    def run(self, order: Callable[[list[Any]], list[Any]] | None) -> TimedRun:
        """Run, once."""
        engine = self.network.run(order)
        flops = {node: counts.flops for node, counts in self.counts.items()}
        return TimedRun(
            self.program,
            self.memory,
            self.tokens,
            self.times,
            {node: engine.ends[node.name] for node in self.program.nodes},
            {node: counts.traffic for node, counts in self.counts.items()},
            flops,
            {node: counts.held for node, counts in self.counts.items()},
            checked_values(self.program, self.measured, flops),
            engine,
            frozenset(self.off_chip.requests if self.off_chip is not None else ()),
        )
