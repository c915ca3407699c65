"""The C++ of a dynamic program: a process for each operator, and the dataflow region on top."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path

from ...hls.names import CppNames, identifier
from ...hls.values import HlsError
from ..graph import OperatorNode, Program, Stream
from ..memory import Tensor
from ..operators.off_chip import LinearOffChipLoad, LinearOffChipStore, RandomOffChipLoad, RandomOffChipStore
from .elements import CppElement, Unbounded, cpp_element
from .operators import PortWriter, ProcessWriter, StreamEnd, process_body

STEP = Path(__file__).resolve().parent
"""The folder of step.h, and of what it includes but kernels.h."""
DEPTH = 2
"""Tokens that a stream holds for each of its readers, unless the program says otherwise."""
NO_OPERATOR = -1
"""The `uop` of processes that are none of the program's operators."""


@dataclass(frozen=True)
class HeldMemory:
    """What an argument of the top function points to: a tensor, or the tokens of an input or of a result. held: the
    tensor or the stream. result: the name of the result; "" for a tensor or an input."""

    held: Tensor | Stream
    result: str = ""

    @property
    def is_result(self) -> bool:
        """Whether it is the tokens of a result."""
        return bool(self.result)

    @property
    def name(self) -> str:
        """The name in the program of the tensor, the input or the result."""
        return self.result or self.held.name


@dataclass(frozen=True)
class DynamicPointer:
    """A pointer argument of the top function.

    name: in C++. moved: the C++ type that it points to. unit: the process that accesses it. memory: what it points to.
    written: whether the process writes there. words: the size of a tensor, in elements of `moved`; 0 for tokens.
    Another argument behind a pointer to a result has its size, in words of 32 bits."""

    name: str
    moved: str
    unit: str
    memory: HeldMemory
    written: bool
    words: int = 0


@dataclass(frozen=True)
class FifoEnds:
    """The processes at the ends of a FIFO. writer, reader: their names. depth: the most elements of the FIFO's C++ type
    that it holds."""

    writer: str
    reader: str
    depth: int


@dataclass(frozen=True)
class DynamicHls:
    """The C++ of a dynamic program. name: of the top function, and of its namespace. text: the file, without the
    headers that it includes. program: of which it is made. arguments: the pointers of the top function, in order.
    fifos: the ends of each FIFO, by its name in a native run."""

    name: str
    text: str
    program: Program
    arguments: tuple[DynamicPointer, ...]
    fifos: Mapping[str, FifoEnds]

    @cached_property
    def memories(self) -> Mapping[HeldMemory, str]:
        """The C++ name of each memory that arguments point to, in the order of the arguments. A tensor that several
        operators use has one entry."""
        names, found = CppNames(), dict[HeldMemory, str]()
        for a in self.arguments:
            if a.memory not in found:
                same = [one for one in found if one.name == a.memory.name]
                found[a.memory] = names.of(a.memory.name, f"_{len(same)}" if same else "")
        return found

    @property
    def processes(self) -> int:
        """The number of processes in the dataflow region."""
        return self.text.count("RSN_TASK(")


@dataclass
class _Process:
    """A process. comment: what it is. parameters, given: of its function. lines: the body."""

    name: str
    comment: str
    parameters: list[str] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def cpp(self) -> str:
        """Its name, from which those of C++ are made."""
        return self.name.replace(" ", "_")


def dynamic_cpp(
    program: Program, name: str, depths: int | Mapping[Stream, int] = DEPTH, float_add: int = 1
) -> DynamicHls:
    """Return the C++ of a dynamic program. Its results are the streams that `Program.output` names; other streams
    without a reader are dropped.

    name: of its top function. depths: tokens that a stream holds for each of its readers: a number for all streams, or
    a mapping; streams that it leaves out hold 2. float_add: clock cycles of an addition of floats on the device. Raises
    `HlsError`, at the line of the operator, for an operator that has no C++, and for a program without a result and a
    depth below 1; `StepError` if a feedback has no writer."""
    program.check_closed()
    return _DynamicWriter(program, name, depths, float_add).write()


class _DynamicWriter:
    def __init__(self, program: Program, name: str, depths: int | Mapping[Stream, int], float_add: int) -> None:
        self.program, self.depths, self.float_add = program, depths, float_add
        self.name = identifier(name)
        self.names = CppNames(frozenset({"rsn", self.name}))
        self.declared: list[str] = []
        self.fifos: dict[str, FifoEnds] = {}
        self.arguments: list[DynamicPointer] = []

    def write(self) -> DynamicHls:
        """Write all processes and the region."""
        program = self.program
        self.elements = {stream: self._element(stream) for stream in program.streams}
        self._refuse_unordered()
        if not program.outputs and not any(map(stores, program.nodes)):
            raise HlsError(f"{self.name}: hls: a program without a result; Program.output names one")
        inputs: dict[OperatorNode, dict[int, StreamEnd]] = {node: {} for node in program.nodes}
        outputs: dict[Stream, StreamEnd] = {}
        behind: dict[Stream, list[_Process]] = {stream: [] for stream in program.streams}
        for stream in program.streams:
            results = [name for name, one in program.outputs.items() if one is stream][:1]
            readings = program.readers(stream)
            readers = [*(one.node.name for one in readings), *(f"output {name}" for name in results)]
            writer = _writer(stream)
            if len(readers) == 1:
                ends = [self._fifo(stream, writer, readers[0], self._depth(stream))]
                outputs[stream] = ends[0]
            else:
                copier = f"{'copies' if readers else 'end'} of {stream.name}"
                outputs[stream] = self._fifo(stream, writer, copier, 1)
                ends = [self._fifo(stream, copier, reader, self._depth(stream)) for reader in readers]
                behind[stream].append(self._copies(stream, copier, outputs[stream], ends))
            for reading, end in zip(readings, ends, strict=False):
                inputs[reading.node][reading.port] = end
            for name, end in zip(results, ends[len(readings) :], strict=True):
                behind[stream].append(self._collecting(stream, name, end))
        # Each process behind those that write what it reads, as a tool's C simulation calls them, but for feedback.
        processes = []
        for name, stream in program.inputs.items():
            processes += [self._feeding(stream, name, outputs[stream]), *behind[stream]]
        for number, node in enumerate(program.nodes):
            of = [inputs[node][port] for port in range(len(node.inputs))]
            processes.append(self._operator(number, node, of, [outputs[stream] for stream in node.outputs]))
            processes += [one for stream in node.outputs for one in behind[stream]]
        text = "\n".join(self._text(processes)) + "\n"
        return DynamicHls(self.name, text, program, tuple(self.arguments), self.fifos)

    # -- streams ------------------------------------------------------------------------------------------------------

    def _element(self, stream: Stream) -> CppElement:
        try:
            return cpp_element(stream.type.data, self.program)
        except Unbounded as error:
            raise self._refused(stream.source, f"{stream}: {error}") from None

    def _refused(self, node: OperatorNode | None, text: str) -> HlsError:
        return HlsError(f"{f'{node.where}: {node.operator.name}' if node is not None else self.name}: hls: {text}")

    def _refuse_unordered(self) -> None:
        """Refuse a load and a store of one tensor where no token says which of them is first. Several stores are the
        author's: regions write tiles of their own."""
        accesses: dict[Tensor, list[OperatorNode]] = {}
        for node in self.program.nodes:
            operator = node.operator
            if isinstance(operator, LinearOffChipLoad | LinearOffChipStore | RandomOffChipLoad | RandomOffChipStore):
                accesses.setdefault(operator.tensor, []).append(node)
        for tensor, nodes in accesses.items():
            for one, other in combinations(nodes, 2):
                if stores(one) == stores(other) or self._reaches(one, other) or self._reaches(other, one):
                    continue
                text = f"no stream leads from it to {other} or back: both access {tensor.name}, in any order"
                raise self._refused(one, text)

    def _reaches(self, node: OperatorNode, target: OperatorNode) -> bool:
        found, left = {node}, [node]
        while left:
            for stream in left.pop().outputs:
                for reading in self.program.readers(stream):
                    if reading.node not in found:
                        found.add(reading.node)
                        left.append(reading.node)
        return target in found

    def _depth(self, stream: Stream) -> int:
        depth = self.depths if isinstance(self.depths, int) else self.depths.get(stream, DEPTH)
        if depth < 1:
            raise self._refused(stream.source, f"stream {stream.name} has depth {depth}; the least is 1")
        return depth

    def _fifo(self, stream: Stream, writer: str, reader: str, depth: int) -> StreamEnd:
        """Declare the FIFOs of a stream between two processes. Words have room for a token more than heads, so that
        what is read in part is no obstacle for the tokens behind it."""
        element = self.elements[stream]
        several = [(element.head, depth, "")]
        several += [(word.cpp, (depth + 1) * word.count, f" words {k}") for k, word in enumerate(element.words)]
        names = []
        for cpp, size, what in several:
            label = f"{_writer(stream) if stream.source is None else stream.name} to {reader}{what}"
            while label in self.fifos:  # a reader may read a stream at several inputs
                label += " again"
            names.append(self.names.of(label.replace(" ", "_")))
            self.declared.append(f'    hls::stream<{cpp}, {size}> {names[-1]}("{label}");')
            self.fifos[label] = FifoEnds(writer, reader, size)
        return StreamEnd(element, names[0], tuple(names[1:]))

    def _parameters(self, process: _Process, ends: Sequence[StreamEnd], name: str) -> list[StreamEnd]:
        """Make the FIFOs of some ends parameters of a process; return the ends by the names of these. name: `in` or
        `out`."""
        found = []
        for port, end in enumerate(ends):
            words = tuple(f"{name}{port}_words{k}" for k in range(len(end.words)))
            inside = StreamEnd(end.element, f"{name}{port}_heads", words)
            types = (end.element.head, *(word.cpp for word in end.element.words))
            for cpp, parameter in zip(types, (inside.heads, *words), strict=True):
                process.parameters.append(f"hls::stream<{cpp}> &{parameter}")
            process.given += (end.heads, *end.words)
            found.append(inside)
        return found

    # -- processes ----------------------------------------------------------------------------------------------------

    def _operator(
        self, number: int, node: OperatorNode, inputs: Sequence[StreamEnd], outputs: Sequence[StreamEnd]
    ) -> _Process:
        process = _Process(node.name, f"{node.name}, {node.where}")
        inside = self._parameters(process, inputs, "in"), self._parameters(process, outputs, "out")
        writer = ProcessWriter(*inside, program=self.program, node=node)
        try:
            process.lines = [f"RSN_AT({number});", *process_body(writer)]
        except Unbounded as error:
            raise self._refused(node, str(error)) from None
        if writer.tensor is not None:
            word = writer.tensor_word
            held = HeldMemory(writer.tensor)
            self._pointer(process, writer.tensor.name, word, held, writer.written, writer.tensor_words)
        return process

    def _feeding(self, stream: Stream, name: str, end: StreamEnd) -> _Process:
        process = _Process(_writer(stream), f"The tokens of input {name}.")
        writer = PortWriter((), self._parameters(process, [end], "out"))
        self._pointer(process, "tokens", "const std::uint32_t", HeldMemory(stream), written=False)
        call = f"rsn::step::feed(memory, {writer.output()});"
        process.lines = [f"RSN_AT({NO_OPERATOR});", *writer.lines, call]
        return process

    def _collecting(self, stream: Stream, name: str, end: StreamEnd) -> _Process:
        process = _Process(f"output {name}", f"The tokens of output {name}.")
        writer = PortWriter(self._parameters(process, [end], "in"), ())
        self._pointer(process, "tokens", "std::uint32_t", HeldMemory(stream, name), written=True)
        call = f"rsn::step::collect({writer.input()}, memory, size);"
        process.lines = [f"RSN_AT({NO_OPERATOR});", *writer.lines, call]
        return process

    def _copies(self, stream: Stream, name: str, end: StreamEnd, copies: Sequence[StreamEnd]) -> _Process:
        process, rank = _Process(name, f"The {name}."), stream.type.rank
        inside = self._parameters(process, [end], "in"), self._parameters(process, copies, "out")
        writer = PortWriter(*inside)
        if copies:
            call = f"broadcast<{rank}>({writer.input()}, {writer.port('out', writer.outputs)})"
        else:
            call = f"discard<{rank}>({writer.input()})"
        process.lines = [f"RSN_AT({NO_OPERATOR});", *writer.lines, f"rsn::step::{call};"]
        return process

    def _pointer(
        self, process: _Process, name: str, moved: str, memory: HeldMemory, written: bool, words: int = 0
    ) -> None:
        """Give a process a pointer to memory."""
        made = self.names.of(f"{process.cpp}_{name}")
        unit = identifier(process.cpp)
        self.arguments.append(DynamicPointer(made, moved, unit, memory, written, words))
        process.parameters[:0] = [f"{moved} *memory", *(["std::size_t size"] if memory.is_result else [])]
        process.given[:0] = [made, *([f"{made}_size"] if memory.is_result else [])]

    # -- the text -----------------------------------------------------------------------------------------------------

    def _text(self, processes: Sequence[_Process]) -> Iterator[str]:
        functions = CppNames(frozenset({"rsn"}))
        yield f"// {self.name} as a dataflow region: a process for each operator."
        yield f"#define RSN_FLOAT_ADD {self.float_add}"
        yield '#include "step.h"'
        yield from ("", f"namespace {self.name} {{", "")
        for process in processes:
            yield f"// {process.comment}"
            yield f"static void {functions.of(process.cpp)}({', '.join(process.parameters)}) {{"
            yield from (f"    {line}" for line in process.lines)
            yield from ("}", "")
        yield from (f"}}  // namespace {self.name}", "")
        parameters = []
        for a in self.arguments:
            parameters += [f"{a.moved} *{a.name}", *([f"std::size_t {a.name}_size"] if a.memory.is_result else [])]
        yield f"void {self.name}_top({', '.join(parameters)}) {{"
        for a in self.arguments:
            depth = f" depth={a.words}" if a.words else ""
            yield f"#pragma HLS interface m_axi port={a.name} bundle={a.unit}{depth}"
        yield "#pragma HLS dataflow"
        yield from self.declared
        yield "    RSN_DATAFLOW();"
        for process in processes:
            call = f"{self.name}::{functions.of(process.cpp)}({', '.join(process.given)})"
            yield f'    RSN_TASK("{process.name}", {call});'
        yield "}"


def native_call(made: DynamicHls) -> tuple[str, int]:
    """Return the C++ statement that calls a program in a native run (`native_main`), and the number of memories; all of
    them are written back."""
    order = {memory: k for k, memory in enumerate(made.memories)}
    given = []
    for a in made.arguments:
        k = order[a.memory]
        given.append(f"reinterpret_cast<{a.moved} *>(memories[{k}].data())")
        given += [f"memories[{k}].size() / 4"] * a.memory.is_result
    return f"{made.name}_top({', '.join(given)});", len(order)


def stores(node: OperatorNode) -> bool:
    """Return whether a node of a program writes a tensor off the chip."""
    return isinstance(node.operator, LinearOffChipStore | RandomOffChipStore)


def _writer(stream: Stream) -> str:
    """The name of the process that writes a stream."""
    return stream.source.name if stream.source is not None else f"input {stream.name}"
