"""The C++ of a task program: a function for each class of equal task instances, and the dataflow region on top.

Two instances are in one class if they differ in nothing but their place in the grid and the streams that they are
connected to; the place is a constant of the template.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from ...base.element_types import BITS, CPP_BITS
from ...base.place import Place
from ...isa.overlays.tasks.program import Link, OffChipTensor, Shot, StreamArray, Task, TaskProgram, TensorParameter
from ..words import port_elements, stream_word
from .ends import EndParameter
from .kinds import CPP, tile_type
from .names import CppNames, identifier
from .shared_products import FUNCTION, with_shared_functions
from .statements import BodyWriter
from .values import HlsError
from .variants import NO_CALLS, VariantCalls, called, function_names, functions
from .words import partitioned


@dataclass(frozen=True)
class Draw:
    """An argument of the top function with the Booleans that `data()` takes in one task instance, in order. name: of
    the argument. shot: the number of the instance among all of the program. unit: the unit of the machine that runs the
    instance."""

    name: str
    shot: int
    unit: str


@dataclass(frozen=True)
class SizeScalar:
    """An argument of the top function with a size that a run gives. name: of the argument. size: the name in the
    program. largest: the largest value that the size may have."""

    name: str
    size: str
    largest: int


@dataclass(frozen=True)
class TensorPointer:
    """A pointer argument of the top function: a tensor for one process that reads or writes it, or the part of it that
    lies in one of its memory channels.

    name: of the argument. tensor: the name in the program. written: whether the process writes it. unit: the process.
    packed: elements that the process moves in a cycle. bundle: the memory port. channel: the position of the channel
    among those of the tensor, from 0; None if the tensor lies in one."""

    name: str
    tensor: str
    written: bool
    unit: str
    packed: int
    bundle: str
    channel: int | None = None


@dataclass(frozen=True)
class CalledVariant:
    """A kernel variant that a program calls. name: of the variant. function: the name of the C++ function that the
    header defines. header: its path."""

    name: str
    function: str
    header: Path


@dataclass(frozen=True)
class HlsProgram:
    """The C++ of a program. name: of the top function, and of its namespace. text: the file, without the headers that
    it includes. arguments: the pointers of the top function, in order. draws: the arguments behind them, each a pointer
    and a number of Booleans. program: of which it is made. variants: the kernel variants that are called. sizes: the
    last arguments."""

    name: str
    text: str
    arguments: tuple[TensorPointer, ...]
    draws: tuple[Draw, ...]
    program: TaskProgram
    variants: tuple[CalledVariant, ...] = ()
    sizes: tuple[SizeScalar, ...] = ()

    @property
    def headers(self) -> tuple[Path, ...]:
        """The headers of the called kernel variants, each once, in the order of their paths."""
        return tuple(sorted({variant.header for variant in self.variants}))


@dataclass
class _Call:
    """A call of a function. tid: constants of its template. ports: what its parameters are connected to."""

    tid: tuple[int, ...]
    ports: tuple[EndParameter, ...]
    tensors: tuple[tuple[str, bool], ...]
    draws: int | None
    shot: Shot
    sizes: tuple[str, ...]


@dataclass
class _Class:
    """A function. axes: of the grid, on which its text depends. products: lines of the functions that it calls for
    products. calls: the instances that it is for."""

    task: Task
    text: str
    axes: tuple[int, ...]
    products: Sequence[str] = ()
    calls: list[_Call] = field(default_factory=list)
    name: str = ""


def cpp_program(program: TaskProgram, name: str = "", float_add: int = 1, calls: VariantCalls = NO_CALLS) -> HlsProgram:
    """Return the HLS C++ of a task program. name: of its top function; "" for the name of the program. float_add: clock
    cycles of an addition of floats on the device. calls: by task and variable, the kernel variant that computes the
    value of the variable. Raises `HlsError` with the place in the user's file for anything that has no C++."""
    return _ProjectWriter(program, name, float_add, calls).write()


class _ProjectWriter:
    def __init__(self, program: TaskProgram, name: str, float_add: int, calls: VariantCalls) -> None:
        self.program, self.calls = program, calls
        names = function_names(calls)
        self.variants = tuple(CalledVariant(v.name, names[v.name], Path(v.source)) for v in called(calls))
        self.float_add = float_add
        self.tasks = {task.name: task for task in program.tasks}
        self.tensors = {tensor.name: tensor for tensor in program.tensors}
        self.streams = {s.name: s for s in program.streams}
        self.names = CppNames(frozenset({"rsn", "variants"}))
        self.name = identifier(name or program.name)
        if self.name in (re.split("::|<", variant.call.removeprefix("::"))[0] for variant in called(calls)):
            self.name += "_program"
        self.classes: dict[tuple[str, str], _Class] = {}
        self.locals: dict[str, str] = {}
        self.packed: dict[tuple[str, str], int] = {}

    def write(self) -> HlsProgram:
        """Write all functions and the region."""
        bodies = [(unit, [self._body(unit, shot) for shot in shots]) for unit, shots in self.program.units]
        for unit, of_unit in bodies:
            for task, body in of_unit:
                for p in task.parameters:
                    dtype = self.tensors[p.tensor].type.dtype
                    found = body.packed.get(body.parts[p.name].name)
                    if found is not None:
                        key = unit, p.tensor
                        self.packed[key] = port_elements(dtype, self.packed.get(key, 0), found)
        self._refuse_halves(bodies)
        units: list[tuple[str, list[_Call]]] = []
        number = 0
        for (unit, shots), (_, of_unit) in zip(self.program.units, bodies, strict=True):
            calls = []
            for shot, (task, body) in zip(shots, of_unit, strict=True):
                if body.lines:
                    calls.append(self._instance(shot, number, task, body))
                number += 1
            units.append((unit, calls))
        self._refuse_shared(units)
        self._name_classes()
        arguments, draws, sizes, wrappers, region = self._region(units)
        lines = [*self._head(), "", f"namespace {self.name} {{", "", *functions(self.calls)]
        for made in self.classes.values():
            lines += [*self._function(made), ""]
        lines += [*wrappers, f"}}  // namespace {self.name}", "", *region]
        return HlsProgram(self.name, "\n".join(lines) + "\n", arguments, draws, self.program, self.variants, sizes)

    # -- functions ----------------------------------------------------------------------------------------------------

    def _body(self, unit: str, shot: Shot) -> tuple[Task, BodyWriter]:
        """Write the statements of an instance; none if it does nothing."""
        task = self.tasks[shot.task]
        body = BodyWriter(self.program, task, shot, unit, self.float_add, calls=self.calls)
        try:
            body.write()
            widths = {v.text: v.width for v in body.variables.values() if v.width}
            if widths:  # what reads a wide integer is written for it
                body = BodyWriter(self.program, task, shot, unit, self.float_add, widths, self.calls)
                body.write()
        except RecursionError:
            raise HlsError(f"{self.program.file}:{task.place.line}: hls: {task.name} is nested too deep") from None
        return task, body

    def _instance(self, shot: Shot, number: int, task: Task, body: BodyWriter) -> _Call:
        """Write the function of an instance, and find its class."""
        head: list[str] = []
        lines = body.lines
        parameters: list[str] = []
        streams: dict[str, str] = {}
        used = [p for p in task.parameters if self._is_used(body.parts[p.name].name, lines)]
        tensors = []
        for p in used:
            pointers, declared, written = self._shard(task, p, body)
            parameters += [f"{self._word(p.tensor, written, self.packed[body.unit, p.tensor])} *{n}" for n in pointers]
            head.append(declared)
            tensors.append((p.tensor, written))
        for port, name in body.ports.items():
            parameter, wrapper = self._port(port, name)
            parameters.append(parameter)
            head += wrapper
            streams |= {} if wrapper else {name: parameter.rpartition(" &")[0]}
        if body.draws:
            parameters += ["const bool *drawn", "std::size_t drawn_count"]
            head.append("rsn::Draws draws(drawn, drawn_count);")
        sizes = {name: text for name, text in body.sizes.items() if self._is_used(text, lines)}
        for name, text in sizes.items():
            given = body.names.of(f"{name}_given")
            parameters.append(f"int {given}")
            head.append(f"const int {text} = RSN_SIZE({identifier(name)}, {given});")
        head += [v.declaration for v in body.variables.values() if self._is_used(v.text, lines)]
        packed = {body.parts[p.name].name: self.packed[body.unit, p.tensor] for p in used}
        lines = list(partitioned([*head, *lines], body.tiles, packed, body.banks))
        lines, products = with_shared_functions(lines, body.tiles, streams)
        axes = tuple(k for k in range(len(shot.tid)) if self._is_used(f"tid{k}", lines))
        indented = "\n".join(line if line.lstrip().startswith("#") else f"    {line}" for line in lines)
        text = f"({', '.join(parameters)}) {{\n{indented}\n}}"
        found = self.classes.setdefault((shot.task, text), _Class(task, text, axes, products))
        call = _Call(
            tuple(shot.tid[k] for k in axes),
            tuple(body.ports),
            tuple(tensors),
            number if body.draws else None,
            shot,
            tuple(sizes),
        )
        found.calls.append(call)
        return call

    def _is_used(self, name: str, lines: list[str]) -> bool:
        pattern = re.compile(rf"(?<![A-Za-z0-9_.]){re.escape(name)}(?![A-Za-z0-9_])")
        return any(pattern.search(line) for line in lines)

    def _shard(self, task: Task, p: TensorParameter, body: BodyWriter) -> tuple[list[str], str, bool]:
        """The names of the pointers and the declaration of the shard that a parameter is, and whether the task writes
        it."""
        tensor, part = self.tensors[p.tensor], body.parts[p.name]
        written = p.name in body.stored
        whole, terms = tensor.type.shape, []
        for axis, cut in enumerate(p.axes):
            if cut >= 0:
                stride = prod(whole[axis + 1 :]) * part.shape[axis]
                terms.append(f"tid{cut}" + (f" * {stride}" if stride != 1 else ""))
        channels = _numbers(tensor)
        pointers = [body.names.of(p.name, f"_memory{_of_channel(c)}") for c in channels]
        element = f"{'' if written else 'const '}{CPP[tensor.type.dtype]}"
        shapes = (f"rsn::Shape<{', '.join(map(str, s))}>" for s in (whole, part.shape))
        packed = self.packed[body.unit, p.tensor]
        numbers = [packed, len(channels)] if len(channels) > 1 else [packed] if packed > 1 else []
        memory = f"{{{', '.join(pointers)}}}" if len(channels) > 1 else pointers[0]
        declared = (
            f"const rsn::Shard<{', '.join((element, *shapes, *map(str, numbers)))}> "
            f"{part.name}{{{memory}, {' + '.join(terms) or '0'}}};"
        )
        return pointers, declared, written

    def _port(self, port: EndParameter, name: str) -> tuple[str, list[str]]:
        """The parameter for an end of a stream, and what unpacks its transfers."""
        stream = self.streams[port.stream]
        if stream.packing == 1:
            return f"hls::stream<{self._carried(stream)}> &{name}", []
        way = "Out" if port.put else "In"
        wrapper = f"rsn::Packed{way}<{element_type(stream)}, {stream.packing}> {name}({name}_packed);"
        return f"hls::stream<{self._carried(stream)}> &{name}_packed", [wrapper]

    def _refuse_shared(self, units: list[tuple[str, list[_Call]]]) -> None:
        """Transfers that are not complete do not survive the instance that packs them."""
        for unit, calls in units:
            seen: set[EndParameter] = set()
            for call in calls:
                for port in call.ports:
                    if self.streams[port.stream].packing > 1 and port in seen:
                        raise HlsError(
                            f"{self.program.file}: hls: two task instances of {unit} share the packed stream "
                            f"{port.stream}"
                        )
                    seen.add(port)

    def _refuse_halves(self, bodies: list[tuple[str, list[tuple[Task, BodyWriter]]]]) -> None:
        """Of two processes that store in a tensor, neither may store single elements of less than a byte: it writes the
        rest of the byte as it was before."""
        for tensor in self.program.tensors:
            if CPP_BITS[tensor.type.dtype] < 8:
                stored = [
                    (unit, self.packed[unit, p.tensor], task.place)
                    for unit, of_unit in bodies
                    for task, body in of_unit
                    for p in task.parameters
                    if p.tensor == tensor.name and p.name in body.stored
                ]
                alone = next(((unit, place) for unit, packed, place in stored if packed == 1), None)
                if alone is not None and len({unit for unit, _, _ in stored}) > 1:
                    unit, place = alone
                    raise HlsError(
                        f"{self.program.file}:{place.line}:{place.column}: hls: {unit} stores single elements of "
                        f"{tensor.name}, and other tasks store there, too; two elements of {tensor.type.dtype} share a "
                        "byte: store an even number of them, from an even index on"
                    )

    def _name_classes(self) -> None:
        for task in self.program.tasks:
            same = [c for c in self.classes.values() if c.task.name == task.name]
            for k, made in enumerate(same):
                made.name = self.names.of(task.name, f"_{k}" if len(same) > 1 else "")

    def _function(self, made: _Class) -> Iterator[str]:
        place: Place = made.task.place
        product = self.names.of(f"{made.name}_product") if made.products else FUNCTION
        yield from (line.replace(FUNCTION, product) for line in made.products)
        yield f"// {made.task.name}, {self.program.file}:{place.line}: {_instances(made)}"
        if made.axes:
            yield f"template <{', '.join(f'int tid{axis}' for axis in made.axes)}>"
        yield f"{'' if made.axes else 'static '}void {made.name}{made.text.replace(FUNCTION, product)}"

    # -- the region ---------------------------------------------------------------------------------------------------

    def _head(self) -> Iterator[str]:
        yield f"// {self.program.file} as a dataflow region: a process for each task instance."
        yield f"#define RSN_FLOAT_ADD {self.float_add}"
        yield '#include "kernels.h"'
        for header in sorted({variant.header.name for variant in self.variants}):
            yield f'#include "{header}"'

    def _region(
        self, units: list[tuple[str, list[_Call]]]
    ) -> tuple[tuple[TensorPointer, ...], tuple[Draw, ...], tuple[SizeScalar, ...], list[str], list[str]]:
        """The arguments of the top function, the functions of units with several instances, and the top function."""
        names = CppNames(frozenset({self.name, "RSN_TASK"}))
        classes = {id(call): c.name for c in self.classes.values() for call in c.calls}
        users: dict[str, list[tuple[int, bool]]] = {}
        for k, (_, calls) in enumerate(units):
            for tensor in dict.fromkeys(name for call in calls for name, _ in call.tensors):
                written = any(w for call in calls for name, w in call.tensors if name == tensor)
                users.setdefault(tensor, []).append((k, written))
        arguments: dict[tuple[str, int], list[TensorPointer]] = {}
        bundles = CppNames(frozenset(identifier(unit) for unit, _ in units))
        for t in self.program.tensors:
            for n, (k, written) in enumerate(users.get(t.name, ())):
                unit, number = units[k][0], f"_{n}" if len(users[t.name]) > 1 else ""
                for c in _numbers(t):
                    name = names.of(t.name, f"{number}{_of_channel(c)}")
                    bundle = identifier(unit) if c is None else bundles.of(f"{unit}_{name}")
                    pointer = TensorPointer(name, t.name, written, unit, self.packed[unit, t.name], bundle, c)
                    arguments.setdefault((t.name, k), []).append(pointer)
        links: dict[str, Link] = {}
        used = {port.label for _, calls in units for call in calls for port in call.ports}
        for link in self.program.links:
            if link.label in used:
                links.setdefault(link.label, link)
        self.locals = {label: names.of(link.shared or link.stream, _suffix(link)) for label, link in links.items()}
        taken = {name for _, calls in units for call in calls for name in call.sizes}
        sizes = {n: SizeScalar(names.of(n), n, largest) for n, largest in self.program.sizes if n in taken}
        draws: dict[int, Draw] = {}
        processes, wrappers = list[str](), list[str]()
        for k, (unit, calls) in enumerate(units):
            texts, parameters = list[str](), dict[str, str]()
            for call in calls:
                given = []
                for tensor, _ in call.tensors:
                    for a in arguments[tensor, k]:
                        parameters[a.name] = f"{self._pointer(a)}{a.name}"
                        given.append(a.name)
                for port in call.ports:
                    name = self.locals[port.label]
                    if links[port.label].source != links[port.label].sink:
                        parameters[name] = f"hls::stream<{self._carried(self.streams[port.stream])}> &{name}"
                    given.append(name)
                if call.draws is not None:
                    d = draws[call.draws] = Draw(names.of(f"drawn_{call.shot.name}"), call.draws, unit)
                    parameters |= {d.name: f"const bool *{d.name}", f"{d.name}_count": f"std::size_t {d.name}_count"}
                    given += [d.name, f"{d.name}_count"]
                parameters |= {sizes[n].name: f"int {sizes[n].name}" for n in call.sizes}
                given += [sizes[n].name for n in call.sizes]
                constants = f"<{', '.join(map(str, call.tid))}>" if call.tid else ""
                texts.append(f"{self.name}::{classes[id(call)]}{constants}({', '.join(given)})")
            own = [link for link in links.values() if link.source == link.sink == unit]
            if len(texts) > 1 or own:
                function = names.of(f"run_{unit}")
                body = [*map(self._stream, own), *(f"    {text};" for text in texts)]
                head = f"static void {function}({', '.join(parameters.values())}) {{"
                wrappers += [f"// {unit}: its task instances, one after the other.", head, *body, "}", ""]
                texts = [f"{self.name}::{function}({', '.join(parameters)})"]
            if texts:
                processes.append(f'    RSN_TASK("{unit}", {texts[0]});')
        pointers = tuple(a for of_process in arguments.values() for a in of_process)
        made = pointers, tuple(draws.values()), tuple(sizes.values())
        streams = [self._stream(link) for link in links.values() if link.source != link.sink]
        region = [*self._signature(*made), *streams, "    RSN_DATAFLOW();", *processes, "}"]
        return *made, wrappers, region

    def _word(self, tensor: str, written: bool, packed: int) -> str:
        moved = word_type(self.tensors[tensor], packed)
        return moved if written else f"const {moved}"

    def _pointer(self, a: TensorPointer) -> str:
        return f"{self._word(a.tensor, a.written, a.packed)} *"

    def _stream(self, link: Link) -> str:
        stream = self.streams[link.stream]
        words = stream.packing == 1 and stream.type.shape
        count = prod(stream.type.shape) // stream_word(stream.type.dtype, stream.type.shape).elements if words else 1
        depth = link.depth // stream.packing * count
        return f'    hls::stream<{self._carried(stream)}, {depth}> {self.locals[link.label]}("{link.label}");'

    def _carried(self, stream: StreamArray) -> str:
        """The C++ type of one transfer of a stream, or of a word of one: a tile goes over a stream in words."""
        if stream.packing > 1:
            return f"hls::vector<{element_type(stream)}, {stream.packing}>"
        if stream.type.shape:
            taken = stream_word(stream.type.dtype, stream.type.shape)
            return f"hls::vector<{CPP[stream.type.dtype]}, {taken.elements}>"
        return element_type(stream)

    def _signature(
        self, arguments: tuple[TensorPointer, ...], draws: tuple[Draw, ...], sizes: tuple[SizeScalar, ...]
    ) -> Iterator[str]:
        parameters = []
        parameters += [f"{self._pointer(a)}{a.name}" for a in arguments]
        for d in draws:
            parameters += [f"const bool *{d.name}", f"std::size_t {d.name}_count"]
        parameters += [f"int {size.name}" for size in sizes]
        yield f"void {self.name}_top({', '.join(parameters)}) {{"
        for a in arguments:
            kind, channels = self.tensors[a.tensor].type, len(_numbers(self.tensors[a.tensor]))
            depth = -(-prod(kind.shape) // (held_elements(kind.dtype, a.packed) * channels))
            yield f"#pragma HLS interface m_axi port={a.name} bundle={a.bundle} depth={depth}"
        for d in draws:
            yield f"#pragma HLS interface m_axi port={d.name} bundle={identifier(d.unit)}"
        for size in sizes:  # a register that changes between runs only (UG1399, pragma HLS stable)
            yield f"#pragma HLS interface s_axilite port={size.name}"
            yield f"#pragma HLS stable variable={size.name}"
        yield "#pragma HLS dataflow"


def element_type(stream: StreamArray) -> str:
    """Return the C++ type of one element of a stream: of a tile, or of a number."""
    kind = stream.type
    return tile_type(kind.dtype, kind.shape) if kind.shape else CPP[kind.dtype]


def word_type(tensor: OffChipTensor, packed: int) -> str:
    """Return the C++ type of what a memory port moves in a cycle. tensor: the tensor that it moves. packed: elements in
    a cycle."""
    element = CPP[tensor.type.dtype]
    held = held_elements(tensor.type.dtype, packed)
    if BITS[tensor.type.dtype] == 4:
        return f"rsn::Nibbles<{element}, {held}>"
    return f"hls::vector<{element}, {held}>" if held > 1 else element


def held_elements(dtype: str, packed: int) -> int:
    """Return how many elements the C++ type of a memory word has: `packed`, but 2 for a single element of 4 bits, since
    memory is read and written in whole bytes. dtype: the element type. packed: elements that the port moves in a cycle.
    Raises `KeyError` for an unknown element type."""
    return max(packed, 8 // CPP_BITS[dtype])


def tensor_bytes(tensor: OffChipTensor) -> int:
    """Return the bytes that a tensor takes in the memory that the C++ function reads and writes."""
    return -(-prod(tensor.type.shape) * CPP_BITS[tensor.type.dtype] // 8)


def _numbers(tensor: OffChipTensor) -> Sequence[int | None]:
    """The numbers of the channels of a tensor, for each of which a process has a pointer; one None for one pointer."""
    return range(len(tensor.channels)) if len(tensor.channels) > 1 else (None,)


def _of_channel(number: int | None) -> str:
    """The end of a name for one of several channels."""
    return "" if number is None else f"_c{number}"


def _suffix(link: Link) -> str:
    return "" if link.shared else "".join(f"_{i}" for i in link.index)


def _instances(made: _Class) -> str:
    names = [call.shot.name for call in made.calls]
    shown = ", ".join(names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")
