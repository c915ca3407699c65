"""Networks of units written as Python generators: what tokens are decides how long units work and where tokens go.

    net = DynamicNetwork()
    for name, jobs in (("a", [3, 1]), ("b", [2, 2])):
        net.unit(name, source(jobs))
    net.unit("merge", merge)
    net.connect("a", "merge", depth=2)
    net.connect("b", "merge", depth=2)
    ran = net.run()

Each unit is one functional unit of one kind and gets one uOP, which is its kernel: a generator over the steps that
`Ports` makes, until it returns (after a token that says so). A token is any Python object. It counts as one word and is
never split, so a depth is in tokens. Times are in cycles. A run has data and clocks at once, since tokens may steer.

The clock has 2**30 cycles a second, so that sums of whole cycles are exact and tokens of the same cycle come at the
same time.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from ..base.errors import ProgramError
from .description import Rate, Stream, StreamNetwork, UnitSpec
from .executor import ProcessNetwork
from .steps import AnyOf, Channel, Step, Steps
from .timing import RunTiming
from .unit import Unit

if TYPE_CHECKING:
    from .unit import Wiring

CLOCK_HZ = float(1 << 30)
CYCLE = "cycle"
"""The rate of a step whose amount is in cycles."""
RATES = {CYCLE: Rate(1, "PL cycles", "the kernel says how many", "work")}


class Ports:
    """Makes the steps that the kernel of a unit yields: gets and puts at the streams of the unit. Inputs and outputs
    have numbers, from 0. An output may go to several units; each gets all tokens.

    `DynamicNetwork` makes it. inputs: the stream of each input. outputs: the streams of each output, one for each unit
    that it goes to. clock: returns the time of the unit, in seconds of `CLOCK_HZ` cycles."""

    __slots__ = ("_choices", "_clock", "_gets", "_inputs", "_outputs")

    def __init__(
        self, inputs: Sequence[Channel], outputs: Sequence[Sequence[Channel]], clock: Callable[[], float]
    ) -> None:
        self._inputs = tuple(inputs)
        self._outputs = tuple(tuple(readers) for readers in outputs)
        self._gets = [Step(gets=(channel,)) for channel in inputs]
        self._choices: dict[tuple[int, ...], AnyOf] = {}
        self._clock = clock

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return len(self._inputs)

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return len(self._outputs)

    @property
    def now(self) -> float:
        """The time of the unit, in cycles, at the step that its kernel has reached. It may be a fraction."""
        return self._clock() * CLOCK_HZ

    def get(self, port: int = 0) -> Step:
        """Return the step that waits for a token at input number `port` and takes it: `(token,) = yield ports.get()`.
        Raises `IndexError` if there is no such input.
        """
        return self._gets[port]

    def put(self, token: Any, *ports: int) -> Step:
        """Return the step that waits for room at all readers of some outputs, then delivers `token` to all of them.

        ports: numbers of the outputs; none given: output 0. Raises `IndexError` if there is no such output.
        """
        if len(ports) > 1:
            to = tuple(channel for port in ports for channel in self._outputs[port])
        else:
            to = self._outputs[ports[0] if ports else 0]
        return Step(puts=to, send=(token,) * len(to))

    def busy(self, cycles: float) -> Step:
        """Return the step that works for `cycles` cycles. The next token is taken behind it, so latency and initiation
        interval are the same.

        Raises `ProgramError` for a negative time, with which tokens would come before what made them.
        """
        if not cycles >= 0:
            raise ProgramError(f"busy for {cycles} cycles; the least is 0")
        return Step(CYCLE, cycles)

    def any_of(self, *ports: int, until: float | None = None) -> AnyOf:
        """Wait for the token that comes first at one of some inputs (ties: the one that is listed first), and leave it
        there: `place = yield ports.any_of(2, 5)` gives 0 for input 2.

        ports: numbers of the inputs. until: a cycle; if no token has come by then, go on in it, and the place is None.
        Raises `ValueError` without ports or with one that is listed twice, `IndexError` if there is no such input.
        """
        if (choice := self._choices.get(ports)) is None:
            choice = self._choices[ports] = AnyOf(*[self._inputs[port] for port in ports])
        return choice if until is None else choice.ending(until / CLOCK_HZ)

    def peek(self, port: int = 0) -> Generator[AnyOf, Any, Any]:
        """Wait for a token at input number `port` and leave it there: `token = yield from ports.peek()`. Raises
        `IndexError` if there is no such input.
        """
        yield self.any_of(port)
        return self._inputs[port].tokens[0][1]


DynamicKernel: TypeAlias = Callable[[Ports], Steps]
"""Makes the steps of a unit, from its first token to its last."""


@dataclass(frozen=True)
class DynamicUop:
    """The uOP of a unit. kernel: makes its steps. inputs: the name of the stream of each input. outputs: for each
    output, the names of its streams, one for each unit that it goes to."""

    kernel: DynamicKernel
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, ...], ...]


class DynamicUnit(Unit):
    """A unit of a `DynamicNetwork`: each of its uOPs holds the kernel that it executes."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.net = net

    def kernel(self, uop: DynamicUop) -> Steps:
        net = self.net
        assert isinstance(net, ProcessNetwork)
        task = net.progress[self.name].task
        channel = net.named_channel
        outputs = [[channel(name) for name in names] for names in uop.outputs]
        return uop.kernel(Ports([channel(name) for name in uop.inputs], outputs, lambda: task.clock))


@dataclass(frozen=True)
class DynamicRun:
    """What a run gave. cycles: its length. ends: the cycle in which each unit ended. busy: the cycles in which each
    worked. chosen: how often each stream was chosen among several that had a token, by name; if any was, results may
    depend on times. firings: steps that were executed. timing: more about the run, in seconds of 2**30 cycles."""

    cycles: float
    ends: Mapping[str, float]
    busy: Mapping[str, float]
    chosen: Mapping[str, int]
    firings: int
    timing: RunTiming

    @staticmethod
    def of(net: ProcessNetwork, latency: float) -> DynamicRun:
        """Return what a finished run of `net` gave. latency: of the run, in seconds of 2**30 cycles."""
        ends = {name: at.task.clock * CLOCK_HZ for name, at in net.progress.items()}
        busy = {name: at.busy * CLOCK_HZ for name, at in net.progress.items()}
        return DynamicRun(latency * CLOCK_HZ, ends, busy, net.chosen, net.firings, RunTiming.of(net, latency))

    @property
    def depends_on_time(self) -> bool:
        """Whether results may depend on times: a stream was chosen among several."""
        return bool(self.chosen)


class DynamicNetwork:
    """A network that is built by calls of `unit` and `connect`. `run` may be called several times. name: of the
    machine, for messages."""

    def __init__(self, name: str = "dynamic") -> None:
        self.name = name
        self._kernels: dict[str, DynamicKernel] = {}
        self._places: dict[str, str] = {}
        self._inputs: dict[str, dict[int, Stream]] = {}
        self._outputs: dict[str, dict[int, list[Stream]]] = {}
        self._streams: list[Stream] = []

    def unit(self, name: str, kernel: DynamicKernel, where: str = "") -> None:
        """Add a unit of this name, which executes `kernel` once. where: its place in the source, for reports. Raises
        `ProgramError` for a name in use.
        """
        if name in self._kernels:
            raise ProgramError(f"there are two units {name}")
        self._kernels[name] = kernel
        self._places[name] = where
        self._inputs[name] = {}
        self._outputs[name] = {}

    def connect(
        self, source: str, sink: str, depth: int, *, output: int | None = None, port: int | None = None
    ) -> Stream:
        """Add a stream of `depth` tokens from output number `output` of unit `source` to input number `port` of unit
        `sink`; None: the first free number. Returns it; its label is `OUTPUT.INPUT`.

        Raises `ProgramError` for an unknown unit, an input that has a stream, or a depth below 1.
        """
        for unit in (source, sink):
            if unit not in self._kernels:
                raise ProgramError(f"there is no unit {unit}")
        outputs, inputs = self._outputs[source], self._inputs[sink]
        output = _next(outputs) if output is None else output
        port = _next(inputs) if port is None else port
        if port in inputs:
            raise ProgramError(f"input {port} of {sink} has a stream, {inputs[port].name}")
        if depth < 1:
            raise ProgramError(f"the stream from {source} to {sink} has depth {depth}; the least is 1")
        stream = Stream(source, sink, depth, f"{output}.{port}")
        outputs.setdefault(output, []).append(stream)
        inputs[port] = stream
        self._streams.append(stream)
        return stream

    def run(self, order: Callable[[list[Any]], list[Any]] | None = None, record: bool = False) -> DynamicRun:
        """Run to the end of all units. order, record: as in `ProcessNetwork`.

        Raises `DeadlockError`, or `ProgramError` for tokens that are left over, and for ports whose numbers have a gap.
        """
        programs = {name: [self.uop(name)] for name in self._kernels}
        machine = StreamNetwork(
            name=self.name,
            units=tuple(UnitSpec(name, "Dynamic", 0, DynamicUnit) for name in self._kernels),
            streams=self.streams,
            clock_hz=CLOCK_HZ,
            rates=RATES,
        )
        net = ProcessNetwork(
            machine, programs, order=order, record=record, where=lambda unit, origin: self._places[unit]
        )
        return DynamicRun.of(net, net.run())

    @property
    def units(self) -> tuple[str, ...]:
        """The names of the units, in the order in which they were added."""
        return tuple(self._kernels)

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams, in the order in which they were connected."""
        return tuple(self._streams)

    def uop(self, name: str) -> DynamicUop:
        """Return the uOP of the unit `name`. Raises `ProgramError` for ports whose numbers have a gap, `KeyError` for
        an unknown unit.
        """
        inputs, outputs = self._inputs[name], self._outputs[name]
        for what, ports in (("input", inputs), ("output", outputs)):
            missing = set(range(len(ports))) - set(ports)
            if missing:
                raise ProgramError(f"{what} {min(missing)} of {name} has no stream")
        return DynamicUop(
            self._kernels[name],
            tuple(inputs[port].name for port in range(len(inputs))),
            tuple(tuple(stream.name for stream in outputs[port]) for port in range(len(outputs))),
        )


def _next(ports: Container[int]) -> int:
    """The least number that is not in use."""
    return next(number for number in count() if number not in ports)
