"""A dynamic program with what its machine is made by, and its form as the lines of an overlay file:

```toml
name = "experts"
overlay = "dynamic"
rates = [64, 64, 16, 1, 0]                            # on_chip, access, channels, per_client, latency (`Rates`),
                                                      # or none, for a machine on which nothing takes time
ragged_traffic = true                                 # `Limits`; where it is left out, false
symbols = ["B"]                                       # names that the program's author uses
bounds.B = 64                                         # largest values, which a run checks
tensors.w = [[4, 8], "bf16", 0, true]                 # shape, type of elements, address of the first byte, and whether
                                                      # the program states values, which a run then needs
inputs.rows = [["B", 1], ["TileType", 1, 4, "bf16"], 2]          # shape, elements, depth for each reader
loops.turns = [[8], ["SelectorType", 4, 1], "EagerMerge1.0"]     # shape, elements, the stream that is fed back
operators.Flatten = [["Flatten", 0, 1], ["input rows"], "experts.py:8", [2]]    # configuration, streams that it
                                                      # reads, line, depths of its outputs for each reader
assumed.Reassemble = [6]                              # a shape that the author states
outputs.out = "Reassemble"
```

A stream is called by its operator, with the number of the output if there are several, or `input rows`, `loop turns`.
The depth 0 is no bound. Shapes and types of all other streams follow: reading the lines checks every operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, fields
from functools import cached_property
from typing import Any

from ....base.element_types import BITS
from ....base.errors import ProgramError
from ....isa.overlays.tasks.codec import parts_of, sizes_of, table_of, toml, toml_key
from ..errors import StepError
from ..graph import OperatorNode, Program, Stream
from ..memory import Tensor
from ..operators.base import Limits, Operator
from ..operators.off_chip import LinearOffChipLoad, LinearOffChipStore, RandomOffChipLoad, RandomOffChipStore
from ..operators.routing import Parallelize, Partition
from ..operators.shape import Broadcast
from ..run import ENDLESS, Rates
from ..shapes import Dimension
from .codec import OperatorCodec, written_size

KEYS = (
    "rates", "ragged_traffic", "symbols", "bounds", "tensors", "inputs", "loops", "operators", "assumed", "outputs",
)  # fmt: skip
LOADS = (LinearOffChipLoad, RandomOffChipLoad)
STORES = (LinearOffChipStore, RandomOffChipStore)
MISFITS = (ArithmeticError, AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What an operator raises for parameters that it does not check, besides errors of its own."""


@dataclass(frozen=True, eq=False)
class OperatorMachine:
    """A program of dynamic streams with the properties of the machine that runs it.

    depths: tokens that a stream holds for each of its readers: a number for all streams, or a mapping; a stream that
    the mapping leaves out has no bound. rates: of the memories; None for a machine on which nothing takes time, as in
    `run`. name: of the machine. valued: for a machine from a file, the tensors whose values the written program stated;
    the file itself has no values."""

    program: Program
    depths: Mapping[Stream, int] | int = 2
    rates: Rates | None = field(default_factory=Rates)
    name: str = "operators"
    valued: frozenset[Tensor] = frozenset()

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors off the chip by name, in the order of the operators. A tensor without a name, or with the name of
        another one, gets a name with a number."""
        found: dict[str, Tensor] = {}
        numbered = 0
        for tensor in dict.fromkeys(one for node in self.program.nodes for one in _tensors_of(node)):
            name, number = tensor.name, 0
            if not tensor.named:
                name, numbered = f"tensor{numbered}", numbered + 1
            unique = name
            while unique in found:
                number += 1
                unique = f"{name}_{number}"
            found[unique] = tensor
        return found

    @property
    def read(self) -> dict[str, Tensor]:
        """The tensors off the chip that operators load, by name."""
        return self._moved_by(LOADS)

    @property
    def written(self) -> dict[str, Tensor]:
        """The tensors off the chip that operators store into, by name."""
        return self._moved_by(STORES)

    @property
    def needed(self) -> list[str]:
        """The names of the tensors whose values a run with data reads: those that the program loads and never stores,
        and those that `has_values`. A run must be given the values of each that has none of its own."""
        loaded = self.read.keys() - self.written.keys()
        return [name for name, one in self.tensors.items() if name in loaded or self.has_values(one)]

    def has_values(self, tensor: Tensor) -> bool:
        """Return whether the program states values for a tensor; for a machine from a file, whether the program that
        was written to the file did."""
        return tensor.data is not None or tensor in self.valued

    def _moved_by(self, kinds: tuple[type[Operator], ...]) -> dict[str, Tensor]:
        moved = {one for node in self.program.nodes if isinstance(node.operator, kinds) for one in _tensors_of(node)}
        return {name: tensor for name, tensor in self.tensors.items() if tensor in moved}

    @property
    def results(self) -> dict[str, Stream]:
        """The streams whose tokens a run returns, by name: the named outputs, or, if there are none, all streams
        without a reader."""
        program = self.program
        return dict(program.outputs) or {one.name: one for one in program.streams if not program.readers(one)}


def _tensors_of(node: OperatorNode) -> Iterator[Tensor]:
    for one in fields(node.operator):  # type: ignore[arg-type]
        value = getattr(node.operator, one.name)
        if isinstance(value, Tensor):
            yield value


def lines(machine: OperatorMachine) -> Iterator[str]:
    """Yield the lines of a machine's overlay file, without those of its name and base. Raises `StepError` for an
    operator that files cannot hold, a feedback without a writer and a depth below 1; `ProgramError` for a size that
    files cannot hold and two feedbacks of one name."""
    program = machine.program
    program.check_closed()
    codec = OperatorCodec(machine.tensors)
    yield f"rates = {toml(astuple(machine.rates) if machine.rates is not None else [])}"
    if program.limits.ragged_traffic:
        yield "ragged_traffic = true"
    if program.symbols.given:
        yield f"symbols = {toml(sorted(program.symbols.given))}"
    for size, most in program.bounds.items():
        yield f"bounds.{toml_key(size.name)} = {most}"
    for name, tensor in machine.tensors.items():
        row = [tensor.shape, tensor.dtype, tensor.base, machine.has_values(tensor)]
        yield f"tensors.{toml_key(name)} = {toml(row)}"
    for name, stream in program.inputs.items():
        yield f"inputs.{toml_key(name)} = {toml([*codec.stream_type(stream.type), _depth(machine, stream)])}"
    looped: dict[tuple[str, int], str] = {}
    for loop, closed in program.loops.items():
        yield f"loops.{toml_key(loop.name)} = {toml([*codec.stream_type(loop.type), _called(closed.writer)])}"
        looped |= {(reader.node.name, reader.port): f"loop {loop.name}" for reader in closed.readers}
    if len({loop.name for loop in program.loops}) < len(program.loops):
        raise ProgramError("two feedbacks have one name; in a file each has its own")
    for node in program.nodes:
        reads = [looped.get((node.name, port)) or _called(one) for port, one in enumerate(node.inputs)]
        depths = [_depth(machine, one) for one in node.outputs]
        row = [codec.operator(node.operator, node.where), reads, node.where, depths]
        yield f"operators.{toml_key(node.name)} = {toml(row)}"
    for stream in program.streams:
        if stream.source is not None and stream in program.assumed:
            shape = [written_size(one) for one in stream.type.shape]
            yield f"assumed.{toml_key(_called(stream))} = {toml(shape)}"
    for name, stream in program.outputs.items():
        yield f"outputs.{toml_key(name)} = {toml(_called(stream))}"


def _called(stream: Stream) -> str:
    return stream.name if stream.source is not None else f"input {stream.name}"


def _depth(machine: OperatorMachine, stream: Stream) -> int:
    depth = machine.depths if isinstance(machine.depths, int) else machine.depths.get(stream, 0)
    if depth < 0 or (depth == 0 and (isinstance(machine.depths, int) or stream in machine.depths)):
        raise StepError("machine", f"stream {stream.name} has depth {depth}; the least is 1")
    return depth if depth < ENDLESS else 0


def parsed(given: Mapping[str, Any], name: str) -> OperatorMachine:
    """Return the machine that a parsed overlay file describes. given: the values of the file by key. name: of the
    machine. The program is built again, so that each operator checks its inputs.

    Raises `ProgramError` for a file that describes no machine; the message begins with the key of the line at fault."""
    for key in given:
        if key not in KEYS and key not in ("name", "overlay"):
            raise ProgramError(f"{key}: a machine of operators has none, only {', '.join(KEYS)}")
    return _MachineReader(given).machine(name)


class _MachineReader:
    """Reads one file. streams: by the names that lines give them. depths: of streams with a bound."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        ragged_traffic = given.get("ragged_traffic", False)
        if not isinstance(ragged_traffic, bool):
            raise ProgramError("ragged_traffic is true or false")
        self.program = Program(Limits(ragged_traffic=ragged_traffic))
        self.streams: dict[str, Stream] = {}
        self.depths: dict[Stream, int] = {}
        self.valued: set[Tensor] = set()
        self.codec = OperatorCodec({name: self._tensor(name, value) for name, value in table_of(given, "tensors")})

    def machine(self, name: str) -> OperatorMachine:
        program = self.program
        self._symbols()
        for key, value in table_of(self.given, "inputs"):
            what = f"inputs.{key}"
            shape, data, depth = parts_of(what, value, list, list, int)
            made = self.codec.read_stream_type(what, [shape, data])
            with _faults_of(what):
                stream = program.input(key, made.shape, made.data)
                stream.where = ""  # files have no line of it
            self._enter(what, f"input {key}", stream, depth)
        loops = []
        for key, value in table_of(self.given, "loops"):
            what = f"loops.{key}"
            shape, data, writer = parts_of(what, value, list, list, str)
            made = self.codec.read_stream_type(what, [shape, data])
            loop = program.feedback(key, made.shape, made.data)
            self.streams[f"loop {key}"] = loop
            loops.append((what, loop, writer))
        self._operators()
        for what, loop, writer in loops:
            stream = self._stream(what, writer)
            with _faults_of(what):
                program.close(loop, stream)
        for key, value in table_of(self.given, "outputs", str):
            program.output(key, self._stream(f"outputs.{key}", value))
        rates = sizes_of("rates", self.given.get("rates", list(astuple(Rates()))), 0)
        if rates and len(rates) != len(fields(Rates)):
            raise ProgramError(f"rates: {', '.join(one.name for one in fields(Rates))} are expected")
        with _faults_of("rates"):
            return OperatorMachine(program, self.depths, Rates(*rates) if rates else None, name, frozenset(self.valued))

    def _symbols(self) -> None:
        names = self.given.get("symbols", [])
        if not isinstance(names, list) or not all(isinstance(one, str) and one for one in names):
            raise ProgramError("symbols is a list of names")
        for one in names:
            self.program.symbols.give(one)
        for key, most in table_of(self.given, "bounds", int):
            if most < 0 or isinstance(most, bool):
                raise ProgramError(f"bounds.{key}: {most} is no bound; the least is 0")
            self.program.symbol(key, most)

    def _tensor(self, name: str, value: Any) -> Tensor:
        what = f"tensors.{name}"
        shape, dtype, base, has_values = parts_of(what, value, list, str, int, bool)
        if dtype not in BITS:
            raise ProgramError(f"{what}: {dtype} is no type of elements; these are {', '.join(BITS)}")
        with _faults_of(what):
            made = Tensor(sizes_of(what, shape), dtype, base=base, name=name)
        if has_values:
            self.valued.add(made)
        return made

    def _operators(self) -> None:
        assumed = dict(table_of(self.given, "assumed", list))
        program = self.program
        for key, value in table_of(self.given, "operators"):
            what, before = f"operators.{key}", len(program.nodes)
            configuration, reads, where, depths = parts_of(what, value, list, list, str, list)
            operator: Operator = self.codec.read(what, configuration, Operator)
            _check_outputs(what, operator, len(depths))  # before it makes them
            inputs = [self._stream(what, one) for one in reads]
            with _faults_of(what, where):
                program.add(operator, *inputs)
            node = program.nodes[-1]
            if node.name != key or len(program.nodes) != before + 1:
                raise ProgramError(f"{what}: this is {node.name}: operators are listed and numbered in their order")
            node.where = where
            _check_outputs(what, operator, len(depths), len(node.outputs))
            for stream, depth in zip(node.outputs, sizes_of(what, depths, 0), strict=True):
                self._enter(what, stream.name, stream, depth)
                if (shape := assumed.pop(stream.name, None)) is not None:
                    what_shape = f"assumed.{stream.name}"
                    stated = self.codec.read(what_shape, shape, tuple[Dimension, ...])
                    with _faults_of(what_shape, where):
                        stream.assume(stated)
        for key in assumed:
            raise ProgramError(f"assumed.{key}: no operator has such an output")

    def _enter(self, what: str, name: str, stream: Stream, depth: int) -> None:
        if not 0 <= depth < ENDLESS:
            raise ProgramError(f"{what}: {depth} is no depth")
        self.streams[name] = stream
        if depth:
            self.depths[stream] = depth

    def _stream(self, what: str, name: Any) -> Stream:
        if not isinstance(name, str) or name not in self.streams:
            raise ProgramError(f"{what}: there is no stream {str(name)[:60]} before it")
        return self.streams[name]


def _check_outputs(what: str, operator: Operator, depths: int, outputs: int | None = None) -> None:
    """Raise `ProgramError` unless a line has a depth for each output. outputs: how many there are; None for what the
    operator's own parameters say of it."""
    if outputs is None:
        match operator:
            case Partition(consumers=count) | Parallelize(consumers=count) | Broadcast(count=count):
                outputs = count
            case _:
                return
    if depths != outputs:
        raise ProgramError(f"{what}: {depths} depths for {outputs} outputs")


@contextmanager
def _faults_of(what: str, where: str = "") -> Iterator[None]:
    """Make `ProgramError` of what is wrong with a line. what: its key. where: the line of the user's program."""
    try:
        yield
    except StepError as error:  # which has the place of our call, if any
        text = f"{error.operator}: {error.text}"
    except MISFITS as error:
        text = f"its parameters do not fit: {error!r}"
    else:
        return
    raise ProgramError(": ".join(filter(None, (what, where, text))))
