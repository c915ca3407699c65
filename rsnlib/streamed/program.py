"""The text of a stream program from planned kernels: tasks, converters, loads and stores, and the streams between."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from keyword import kwlist

from ... import streams
from ...streams.orders.converter import Converter, converter
from ...streams.orders.order import Order
from ..layers import unique_name
from .bodies import BODIES, WORDS, Ends, indented, nest
from .operators import Array, FromHost, Graph, Operator
from .plans import Plan, vectors_of

INDICES = "ijklmnop"
LEAST_DEPTH = 2
"""Tokens of a stream that closes no circle of tasks."""


@dataclass(frozen=True)
class Text:
    """A stream program. inputs: what each input tensor holds. outputs: the tensor of each stored operator, by name.
    shapes: of all tensors. converters: by name of their task."""

    text: str
    inputs: Mapping[str, Array | FromHost]
    outputs: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    converters: Mapping[str, Converter]


@dataclass
class _Task:
    name: str
    body: list[str]
    tensors: dict[str, str] = field(default_factory=dict)
    """Parameter -> tensor."""
    comment: str = ""


@dataclass
class _Stream:
    name: str
    order: Order
    source: str
    target: str


def program(
    graph: Graph, plans: Mapping[Operator, Plan], port: int, title: str, depths: Mapping[str, int] | None = None
) -> Text:
    """Write the stream program of planned kernels. port: bytes that a load or store moves in a cycle. title: of the
    first line. depths: of streams, by name; others hold 2 tokens, or all that ever go over them if they close a circle
    of tasks, so that no task waits for ever."""
    return _Writer(graph, plans, port).text(title, depths or {})


class _Writer:
    def __init__(self, graph: Graph, plans: Mapping[Operator, Plan], port: int) -> None:
        self.graph, self.plans, self.port = graph, plans, port
        self.taken: set[str] = {*dir(builtins), *kwlist, *streams.__all__, *WORDS}
        self.task_names: dict[Operator, str] = {x: unique_name(x.name, self.taken) for x in plans}
        self.tensors: dict[str, tuple[int, ...]] = {}
        self.inputs: dict[str, Array | FromHost] = {}
        self.outputs: dict[str, str] = {}
        self.streams: list[_Stream] = []
        self.tasks: list[_Task] = []
        self.converters: dict[str, Converter] = {}
        self.gets: dict[tuple[Operator, int], str] = {}
        self.puts: dict[Operator, list[str]] = {x: [] for x in plans}
        self._memory_names: dict[Operator, str] = {}

    def text(self, title: str, depths: Mapping[str, int]) -> Text:
        after: list[_Task] = []
        for x, plan in self.plans.items():
            for k, operand in enumerate(x.operands):
                if operand.is_memory:
                    self._load(x, k, operand, plan.gets[k])
            after.append(_Task(self.task_names[x], []))
            self.tasks.append(after[-1])
            self._connect(x, plan)
        for x, task in zip(self.plans, after, strict=True):
            self._kernel(x, task)
        lines = [f'"""{title}"""', "", "from rsn.streams import *", ""]
        lines += [f"{name}: f32[{_shape(shape)}]" for name, shape in self.tensors.items()]
        lines.append("")
        circles = self._in_circles()
        for s in self.streams:
            depth = depths.get(s.name, s.order.tokens if s.name in circles else LEAST_DEPTH)
            lines.append(f"{s.name}: Stream[f32[{_shape(_token(s.order))}], {max(1, depth)}]")
        for task in self.tasks:
            lines += ["", "", *self._written(task)]
        return Text("\n".join(lines) + "\n", self.inputs, self.outputs, self.tensors, self.converters)

    # -- tensors and streams

    def _tensor(self, stem: str, shape: tuple[int, ...], data: Array | FromHost | None) -> str:
        name = unique_name(stem, self.taken)
        self.tensors[name] = shape
        if data is not None:
            self.inputs[name] = data
        return name

    def _stream(self, stem: str, order: Order, source: str, target: str) -> str:
        name = unique_name(stem, self.taken)
        self.streams.append(_Stream(name, order, source, target))
        return name

    def _in_circles(self) -> set[str]:
        """The streams that lie on a circle of tasks, whatever their direction."""
        found = set()
        for stream in self.streams:
            near: dict[str, list[str]] = {}
            for other in self.streams:
                if other is not stream:
                    near.setdefault(other.source, []).append(other.target)
                    near.setdefault(other.target, []).append(other.source)
            seen, stack = {stream.source}, [stream.source]
            while stack:
                for task in near.get(stack.pop(), []):
                    if task not in seen:
                        seen.add(task)
                        stack.append(task)
            if stream.target in seen:
                found.add(stream.name)
        return found

    # -- tasks

    def _load(self, x: Operator, k: int, memory: Operator, order: Order) -> None:
        """A task that loads a tensor in the order in which a kernel gets it."""
        if memory not in self._memory_names:
            assert memory.data is not None
            self._memory_names[memory] = self._tensor(memory.name, _whole(memory), memory.data)
        tensor = self._memory_names[memory]
        task = unique_name(f"load_{tensor}", self.taken)
        stream = self._stream(f"{tensor}_tiles", order, task, self.task_names[x])
        self.gets[x, k] = stream
        place = f"{tensor}[{_slices(order, INDICES)}]"
        body = nest(_loops(order), [f"{stream}.put({place})", *self._moved(order)])
        self.tasks.append(_Task(task, body, {tensor: tensor}))

    def _connect(self, x: Operator, plan: Plan) -> None:
        """Streams from a kernel to those that read its result, a converter for each other order, and a store."""
        name = self.task_names[x]
        readers = [
            (other, k) for other in self.plans for k, operand in enumerate(other.operands) if operand is x
        ]  # fmt: skip
        converted: dict[Order, list[tuple[Operator, int]]] = {}
        for other, k in readers:
            get = self.plans[other].gets[k]
            if get.canonical == plan.put.canonical:
                stream = self._stream(f"{name}_to_{self.task_names[other]}", get, name, self.task_names[other])
                self.gets[other, k] = stream
                self.puts[x].append(stream)
            else:
                converted.setdefault(get.canonical, []).append((other, k))
        for get, targets in converted.items():
            made = converter(plan.put, get)
            assert made is not None
            task = unique_name(f"reorder_{name}", self.taken)
            self.converters[task] = made
            stream = self._stream(f"{name}_tiles", plan.put, name, task)
            self.puts[x].append(stream)
            outs = []
            for other, k in targets:
                out = self._stream(f"{name}_to_{self.task_names[other]}", get, task, self.task_names[other])
                self.gets[other, k] = out
                outs.append(out)
            self.tasks.append(_converter(task, made, stream, outs))
        if x in self.graph.results:
            tensor = self._tensor(f"{x.name}_result", _whole(x), None)
            self.outputs[x.name] = tensor
            task = unique_name(f"store_{tensor}", self.taken)
            stream = self._stream(f"{tensor}_tiles", plan.put, name, task)
            self.puts[x].append(stream)
            place = f"{tensor}[{_slices(plan.put, INDICES)}]"
            body = nest(_loops(plan.put), [f"{place} = {stream}.get()", *self._moved(plan.put)])
            self.tasks.append(_Task(task, body, {tensor: tensor}))

    def _moved(self, order: Order) -> list[str]:
        cycles = -(-order.bytes_per_token // self.port)
        return [f"cycles({cycles})"] if cycles > 1 else []

    def _kernel(self, x: Operator, task: _Task) -> None:
        vectors = {}
        for name, vector in vectors_of(x).items():
            tensor = self._tensor(f"{x.name}_{name}", vector.shape, vector)
            vectors[name] = tensor
            task.tensors[tensor] = tensor
        gets = [self.gets[x, k] for k in range(len(x.operands))]
        task.body = BODIES[x.op](x, self.plans[x], Ends(gets, self.puts[x], vectors))
        task.comment = x.site

    def _written(self, task: _Task) -> list[str]:
        arguments = f", args=[{', '.join(task.tensors.values())}]" if task.tensors else ""
        parameters = ", ".join(f"{name}: f32[{_shape(self.tensors[tensor])}]" for name, tensor in task.tensors.items())
        comment = [f"# {task.comment}"] if task.comment else []
        return [
            f"@task(mapping=[1]{arguments})",
            f"def {task.name}({parameters}) -> None:",
            *indented([*comment, *task.body]),
        ]


def _converter(name: str, made: Converter, source: str, targets: Sequence[str]) -> _Task:
    """A task that fills its buffer in one order and reads it in the other, in each iteration of the shared loops."""
    shared = made.shared_loops
    sizes = made.buffer
    kept = {k for k, (size, whole) in enumerate(zip(sizes, made.put.tensor, strict=True)) if size != whole}
    tile = f"buffer[{_slices(made.put, INDICES, kept)}]"
    fill = nest(_loops(made.put)[shared:], [f"{tile} = {source}.get()"])
    tile = f"buffer[{_slices(made.get, INDICES, kept)}]"
    read = nest(_loops(made.get)[shared:], Ends((), targets, {}).put(tile))
    shape = f"f32, {_shape(sizes)}"
    body = nest(_loops(made.put)[:shared], [f"buffer = zeros({shape})", *fill, *read])
    return _Task(name, body, {}, f"{made.put} to {made.get}, {made.ping_pong_bytes} bytes with ping-pong")


def _loops(order: Order) -> list[tuple[str, int]]:
    return list(zip(INDICES, order.trips, strict=False))


def _slices(order: Order, names: Sequence[str], kept: set[int] | frozenset[int] = frozenset()) -> str:
    """The part of a tensor, or of a buffer, that is a token. kept: axes along which the buffer has one token only."""
    parts = []
    for k, (axis, size, whole) in enumerate(zip(order.axes, order.element, order.tensor, strict=True)):
        index = "0" if axis.loop is None or order.trips[axis.loop] == 1 or k in kept else names[axis.loop]
        if len(order.element) == 3 and k == 0:
            parts.append(index)  # a matrix of one head
        elif size == whole or k in kept:
            parts.append(":")
        else:
            parts.append(f"{index} * {size} : {index} * {size} + {size}")
    return ", ".join(parts)


def _token(order: Order) -> tuple[int, ...]:
    return order.element[-2:]


def _whole(x: Operator) -> tuple[int, ...]:
    return x.shape if x.shape[0] > 1 else x.shape[1:]


def _shape(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))
