"""The process of each operator: a call of its function of `step_operators.h`, with its streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ..graph import OperatorNode, Program
from ..memory import Tensor
from ..operators.base import Operator
from ..operators.higher_order import Accum, FlatMap, Map, Reduction, Scan, parts
from ..operators.off_chip import LinearOffChipLoad, LinearOffChipStore, RandomOffChipLoad, RandomOffChipStore
from ..operators.on_chip import Bufferize, Streamify
from ..operators.routing import EagerMerge, Parallelize, Partition, Reassemble
from ..operators.shape import Broadcast, Discard, Expand, First, Flatten, Promote, Repeat, Reshape, Zip
from ..operators.sources import MetadataGen, SelectGen
from ..shapes import BufferType, tile
from ..tokens import Done, Selector, Stop, Tile, Token, encode
from ..updates import Start
from .elements import CppElement, Unbounded, cpp_element, fan
from .functions import cpp_function, cpp_start, number


@dataclass(frozen=True)
class StreamEnd:
    """The FIFOs of one end of a stream, or of a copy of it, at a process. element: what the stream carries. heads: the
    name of the FIFO of the heads of its tokens. words: the names of the FIFOs of their words."""

    element: CppElement
    heads: str
    words: tuple[str, ...]


@dataclass
class PortWriter:
    """Writes the C++ declarations of the ports of a process. inputs, outputs: the ends of its streams, by port. lines:
    the declarations so far."""

    inputs: Sequence[StreamEnd]
    outputs: Sequence[StreamEnd]
    lines: list[str] = field(default_factory=list)

    def port(self, name: str, ends: Sequence[StreamEnd], element: CppElement | None = None) -> str:
        """Declare one C++ variable for several streams side by side; return its name. name: of the variable. ends: of
        the streams. element: the C++ element that they are read or written as; None for that of the first stream.
        Streams whose elements have different bounds take the largest element."""
        of = element or ends[0].element
        words = of.braces(iter([[end.words[k] for end in ends] for k in range(len(of.words))]))
        heads = fan([end.heads for end in ends])
        self.lines.append(f"rsn::step::Port<{of.cpp}, {len(ends)}> {name}{{{heads}, {words}}};")
        return name

    def input(self, port: int = 0, element: CppElement | None = None) -> str:
        """Declare an input, and return the name of its C++ variable. port: the number of the input, from 0. element: as
        for `port`."""
        return self.port(f"in{port}", [self.inputs[port]], element)

    def output(self, port: int = 0) -> str:
        """Declare an output, and return the name of its C++ variable. port: the number of the output, from 0."""
        return self.port(f"out{port}", [self.outputs[port]])

    def pair(self) -> str:
        """Declare the only input and the first output, both with the element of the output; return their names,
        separated by a comma, as two C++ arguments."""
        return f"{self.input(0, self.outputs[0].element)}, {self.output()}"


@dataclass
class ProcessWriter(PortWriter):
    """Writes the body of the process of an operator.

    program: that it belongs to. node: the operator. tensor: that it accesses off the chip; None for none. tensor_word:
    the C++ type of the words in which it accesses that. tensor_words: how many of these words the tensor has. written:
    whether the process stores there."""

    program: Program = field(kw_only=True)
    node: OperatorNode = field(kw_only=True)
    tensor: Tensor | None = None
    tensor_word: str = ""
    tensor_words: int = 0
    written: bool = False

    def rank(self, port: int) -> int:
        """Return the rank of the stream at an input. port: its number, from 0."""
        return self.node.inputs[port].type.rank

    def array(self, name: str, cpp: str, values: Sequence[object]) -> str:
        """Declare an array of constants; return its name. name: of the array. cpp: the C++ type of an item. values: the
        items; their text is C++."""
        self.lines.append(f"const {cpp} {name}[] = {{{', '.join(map(str, values))}}};")
        return name

    def sizes(self, name: str, values: Sequence[int]) -> str:
        """Declare an array of sizes or strides; return its name. values: the outermost dimension first; the C++ array
        has the innermost first."""
        return self.array(name, "std::int32_t", list(reversed(values)))

    def off_chip(self, tensor: Tensor, size: tuple[int, int], written: bool) -> str:
        """Declare a tensor off the chip, which the process accesses in tiles; return the name of its C++ variable.
        size: rows and columns of a tile. written: whether the process stores there. Raises `InputRefused` if the sizes
        of the tensor are no multiples of those of the tile."""
        element = cpp_element(tile(*size, tensor.dtype), self.program)
        self.tensor, self.written = tensor, written
        self.tensor_word = f"{'' if written else 'const '}{element.words[0].cpp}"
        self.tensor_words = prod(tensor.shape) // element.packed
        word = f", {self.tensor_word}" if not written else ""
        sizes = f"{tensor.shape[-1]}, {prod(tensor.tiled(size))}"
        self.lines.append(f"const rsn::step::OffChip<{element.cpp}{word}> tensor{{memory, {sizes}}};")
        return "tensor"


def process_body(writer: ProcessWriter) -> list[str]:
    """Return the C++ statements of the process of an operator, one a line. writer: of that process. Raises `Unbounded`,
    with the reason, if it has no C++.
    """
    write = OPERATORS.get(type(writer.node.operator))
    if write is None:
        raise Unbounded("has no C++")
    call = write(writer, writer.node.operator)
    return [*writer.lines, f"rsn::step::{call};"]


def _load(w: ProcessWriter, op: LinearOffChipLoad) -> str:
    tensor = w.off_chip(op.tensor, op.tile, written=False)
    read = f"{tensor}, {w.sizes('shape', op.shape)}, {w.sizes('stride', op.stride)}"
    if not w.inputs:
        return f"linear_load({read}, {w.output()})"
    return f"linear_load<{w.rank(0)}>({read}, {w.input()}, {w.output()})"


def _store(w: ProcessWriter, op: LinearOffChipStore) -> str:
    return f"linear_store<{w.rank(0)}>({w.off_chip(op.tensor, _tile(w, 0), written=True)}, {op.first}, {w.input()})"


def _tile(w: ProcessWriter, port: int) -> tuple[int, int]:
    return w.inputs[port].element.shape


def _random_load(w: ProcessWriter, op: RandomOffChipLoad) -> str:
    tensor = w.off_chip(op.tensor, op.tile, written=False)
    return f"random_load<{w.rank(0)}>({tensor}, {w.input()}, {w.output()})"


def _random_store(w: ProcessWriter, op: RandomOffChipStore) -> str:
    tensor = w.off_chip(op.tensor, _tile(w, 1), written=True)
    return f"random_store<{w.rank(0)}>({tensor}, {w.input(0)}, {w.input(1)}, {w.output()})"


def _bufferize(w: ProcessWriter, op: Bufferize) -> str:
    return f"bufferize<{w.rank(0)}>({w.input()}, {w.output()})"


def _streamify(w: ProcessWriter, op: Streamify) -> str:
    buffer = w.node.inputs[0].type.data
    assert isinstance(buffer, BufferType)
    level = len(op.shape or buffer.shape)
    sizes = [", ".join(map(str, reversed(one or (0,) * level))) for one in (op.shape, op.stride)]
    affine = str(bool(op.shape)).lower()
    w.lines.append(f"const rsn::step::BufferRead<{level}> read{{{{{sizes[0]}}}, {{{sizes[1]}}}, {affine}}};")
    if op.count is not None:
        return f"streamify_by_count<{w.rank(0)}>(read, {op.count}, {w.input()}, {w.output()})"
    return f"streamify<{w.rank(1)}, {op.inner}>(read, {w.input(0)}, {w.input(1)}, {w.output()})"


def _partition(w: ProcessWriter, op: Partition) -> str:
    element = w.inputs[0].element
    out = w.port("out", w.outputs, element)
    ranks = f"{w.rank(0)}, {w.rank(0) - w.rank(1)}"
    return f"partition<{ranks}>({w.input(0)}, {w.input(1)}, {out})"


def _parallelize(w: ProcessWriter, op: Parallelize) -> str:
    out = w.port("out", w.outputs, w.inputs[0].element)
    return f"parallelize<{w.rank(0)}, {op.rank}>({w.input()}, {out})"


def _reassemble(w: ProcessWriter, op: Reassemble) -> str:
    last = len(w.inputs) - 1
    chunks = w.port("in", w.inputs[:last], w.outputs[0].element)
    return f"reassemble<{w.rank(0)}, {w.rank(last)}>({chunks}, {w.input(last)}, {w.output()})"


def _eager_merge(w: ProcessWriter, op: EagerMerge) -> str:
    chunks = w.port("in", w.inputs, w.outputs[0].element)
    return f"eager_merge<{w.rank(0)}>({chunks}, {w.output(0)}, {w.output(1)})"


def _map(w: ProcessWriter, op: Map) -> str:
    function = cpp_function(op.applied, parts(w.node.inputs[0].type.data))
    return f"map<{w.rank(0)}>({function}, {w.input()}, {w.output()})"


def _reduction(w: ProcessWriter, op: Reduction) -> str:
    data = w.node.inputs[0].type.data
    state = w.node.outputs[0].type.data
    first = op.fold.start(data)
    start = "return false;" if isinstance(first, Start) else " ".join([*cpp_start(first, state), "return true;"])
    w.lines.append(f"const auto start = [](auto &state) {{ {start} }};")
    name = "accumulate" if isinstance(op, Accum) else "scan"
    update = cpp_function(op.fold, [data])
    return f"{name}<{w.rank(0)}, {op.rank}>(start, {update}, {w.input()}, {w.output()})"


def _flat_map(w: ProcessWriter, op: FlatMap) -> str:
    function = cpp_function(op.applied, [w.node.inputs[0].type.data])
    return f"flat_map<{w.rank(0)}, {op.applied.rank}>({function}, {w.input()}, {w.output()})"


def _flatten(w: ProcessWriter, op: Flatten) -> str:
    return f"flatten<{w.rank(0)}, {op.least}, {op.most}>({w.pair()})"


def _reshape(w: ProcessWriter, op: Reshape) -> str:
    if op.rank:
        return f"reshape_groups<{w.rank(0)}, {op.rank}, {op.chunk}>({w.pair()}, {w.output(1)})"
    pads = op.pad is not None and op.chunk > 1
    template = f"{w.rank(0)}, {op.chunk}, {str(pads).lower()}"
    return f"reshape_elements<{template}>({number(op.pad or 0)}, {w.pair()}, {w.output(1)})"


def _expand(w: ProcessWriter, op: Expand) -> str:
    if op.counts:
        return f"expand_by_counts<{w.rank(0)}>({w.sizes('counts', op.counts)}, {w.pair()})"
    element = w.outputs[0].element
    return f"expand<{w.rank(0)}, {op.rank}>({w.input(0, element)}, {w.input(1)}, {w.output()})"


def _zip(w: ProcessWriter, op: Zip) -> str:
    inputs = [w.input(port, part) for port, part in enumerate(w.outputs[0].element.parts)]
    return f"zip<{w.rank(0)}>({', '.join([w.output(), *inputs])})"


def _broadcast(w: ProcessWriter, op: Broadcast) -> str:
    return f"broadcast<{w.rank(0)}>({w.input()}, {w.port('out', w.outputs)})"


def _source(w: ProcessWriter, tokens: Sequence[Token], cpp: str, value: Callable[[Any], str]) -> str:
    levels = [0xFF if isinstance(one, Done) else one.level if isinstance(one, Stop) else 0 for one in tokens]
    values = [f"{cpp}{{}}" if isinstance(one, Stop | Done) else value(one) for one in tokens]
    table = f"{w.array('levels', 'std::uint8_t', levels)}, {w.array('values', cpp, values)}"
    return f"source({table}, {w.output()})"


def _select(w: ProcessWriter, op: SelectGen) -> str:
    def bits(selector: Selector) -> str:
        whole = sum(1 << one for one in selector.chosen)
        words = [f"{whole >> 32 * k & 0xFFFFFFFF:#x}u" for k in range(-(-op.choices // 32))]
        return f"{cpp}{{{{{', '.join(words)}}}}}"

    cpp = w.outputs[0].element.cpp
    return _source(w, encode(op.nested, op.rank, Selector), cpp, bits)


def _metadata(w: ProcessWriter, op: MetadataGen) -> str:
    def text(one: Tile) -> str:
        value = one.scalar
        if not -(1 << 31) <= value < 1 << 31:
            raise Unbounded(f"{value} is no integer of i32")
        return f"std::int32_t({value})"

    tokens = encode(op.nested, op.rank, lambda value: Tile.of(int(value), "i32"))
    return _source(w, tokens, "std::int32_t", text)


OPERATORS: Mapping[type[Operator], Callable[[ProcessWriter, Any], str]] = {
    LinearOffChipLoad: _load,
    LinearOffChipStore: _store,
    RandomOffChipLoad: _random_load,
    RandomOffChipStore: _random_store,
    Bufferize: _bufferize,
    Streamify: _streamify,
    Partition: _partition,
    Parallelize: _parallelize,
    Reassemble: _reassemble,
    EagerMerge: _eager_merge,
    Map: _map,
    Accum: _reduction,
    Scan: _reduction,
    FlatMap: _flat_map,
    Flatten: _flatten,
    Reshape: _reshape,
    Promote: lambda w, op: f"promote<{w.rank(0)}>({w.pair()})",
    Expand: _expand,
    Repeat: lambda w, op: f"repeat<{w.rank(0)}>({op.count}, {w.pair()})",
    Zip: _zip,
    Broadcast: _broadcast,
    First: lambda w, op: f"first_elements({op.count}, {w.pair()})",
    Discard: lambda w, op: f"discard<{w.rank(0)}>({w.input()})",
    SelectGen: _select,
    MetadataGen: _metadata,
}
"""The call of each operator."""
