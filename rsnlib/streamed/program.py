"""The text of a stream program from planned kernels: tasks, converters, loads and stores, and the streams between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property, partial
from math import gcd, prod

import numpy as np

from ...base.element_types import BY_NUMPY, CPP_BITS, whole_bytes
from ...base.errors import ProgramError
from ...scheduler.graph import unique_name
from ...streams.orders.converter import Converter, converter
from ...streams.orders.order import Order
from ...streams.orders.packed_tensor import PackedTensor
from ...streams.orders.text import converted, load, loops_of, ping_pong, store, token_shape
from ...streams.syntax import builder
from ...streams.syntax.builder import Operand, Term, assign, declare, do, named, nest
from ...streams.syntax.nodes import StatementNode
from ...streams.syntax.printer import PrintedProgram, printed
from ...streams.words import MOVED, moved_rounds, port_elements, stream_word
from .arrays import LEFT, ArrayProduct, SharedArrays, is_of_arrays
from .bodies import BODIES, BodyNames, Statements, new_row_count, stored_rows
from .covering import Existing, cropped, grown
from .knobs import Knobs
from .lengths import LENGTH, ROW_TILES
from .names import RESERVED
from .operators import Array, Held, OperatorGraph, StreamOperator, vectors_of
from .plans import KernelPlan, new_rows, puts_of, rates
from .ports import ChannelPorts, float_add_of, pieces
from .repeated import POSITIONS, HeldByLayers, HeldOneBehindOther, ProgramLayers

Shape = tuple[int, ...]

HeldByTensor = Held | HeldByLayers | HeldOneBehindOther
"""What a tensor off the chip holds before a run."""

COPYING = {"elements": MOVED}
"""The datapath of converters: they move tiles as fast as streams do."""

LEAST_DEPTH = 2
"""Tokens of a stream that closes no circle of tasks."""


@dataclass(frozen=True)
class MovedBytes:
    """What a task moves of a tensor in an execution. tensor: its name. share: how many bytes the task moves in a cycle
    on each channel of the tensor, rounded up. cost: what all tokens cost each channel: as many bytes as the channel
    could move in the time that they take (`ChannelPorts.cost`). word_bits: bits of a word of the stream."""

    tensor: str
    share: int
    cost: int
    word_bits: int


@dataclass(frozen=True, eq=False)
class StreamProgramText:
    """A stream program of a block.

    statements: of the program, without places in a text. inputs: what each input tensor holds. None: tasks fill it
    before they read it. A tuple: one value for each layer. `HeldOneBehindOther`: one value for each layer and for what
    is behind the layers. outputs: the name of the tensor of each stored operator, by the operator's name. shapes: of
    all tensors, in elements. layered: the tensors with an axis for the layers, which comes first. dtypes: element types
    of all tensors.

    converters: by the name of their task. packed_tensors: how each tensor lies that lies tile by tile. loads: for each
    task that loads a tensor, the name of the operator for which it loads, by the name of the task. stores: the names of
    the tasks that store a tensor. moved: what each of these tasks moves, by its name. requests: names of the streams on
    which the reading task of a converter asks the filling task for the next buffer, against the direction of the data.

    existing: for each tensor with added rows or columns, what exists of it (`covering`), and its shape with what was
    added. row_axes: for each tensor whose rows are those of a sequence of any length, the axis of `shapes` that counts
    its row tiles, and the elements of one row tile along it. row_tile: rows of a tile of these tensors; 0 if the
    program has one length. rows_together: for each tensor that lies row by row, and of which the rows of a tile follow
    each other, the bytes of a tile.
    """

    statements: Sequence[StatementNode]
    inputs: Mapping[str, HeldByTensor]
    outputs: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    layered: frozenset[str]
    dtypes: Mapping[str, str]
    converters: Mapping[str, Converter]
    packed_tensors: Mapping[str, PackedTensor]
    loads: Mapping[str, str]
    stores: Sequence[str]
    moved: Mapping[str, MovedBytes]
    requests: tuple[str, ...] = ()
    existing: Mapping[str, tuple[Existing, Shape]] = field(default_factory=dict)
    row_axes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    row_tile: int = 0
    rows_together: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def printed(self) -> PrintedProgram:
        """The text of the program, and its tree with places in that text. It is printed when it is first asked for,
        because a search looks at many programs of which nobody reads the text."""
        return printed(self.statements)

    def pieces(self, name: str) -> int:
        """Return the number that the number of memory channels of a tensor must divide (`ports.pieces`). It is 1 if the
        rows of a tile do not follow each other in memory. name: of the tensor."""
        packed = self.packed_tensors.get(name)
        if packed is None:
            return pieces(self.rows_together.get(name, 1))
        return pieces(whole_bytes(prod(packed.tile), packed.dtype))

    def shape_of_one(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, without an axis for the layers. name: of the tensor."""
        return self.shapes[name][int(name in self.layered) :]

    def tensor_bytes(self, name: str) -> int:
        """Return the bytes of a tensor off the chip. name: of the tensor."""
        return whole_bytes(prod(self.shapes[name]), self.dtypes[name])

    def shape(self, name: str, length: int | None = None) -> Shape:
        """Return the shape of a tensor. name: of the tensor. length: of the sequence; None for the longest one."""
        shape = self.shapes[name]
        if length is None or name not in self.row_axes:
            return shape
        axis, size = self.row_axes[name]
        return (*shape[:axis], -(-length // self.row_tile) * size, *shape[axis + 1 :])

    def laid_out(self, name: str, x: Array, length: int | None = None) -> Array:
        """Return a tensor's elements in the order in which they lie in memory, in its `shape`, with those that are
        added (`covering.grown`). If the tensor has an axis for the layers, the elements are those of one layer, and the
        result has no such axis. name: of the tensor. x: the elements that exist, row-major. length: as for `shape`.
        Raises `ValueError` for another number of elements."""
        packed, existing = self._at(name, length)
        if existing is not None:
            x = grown(x, *existing)
        lying = x if packed is None else packed.pack(x.reshape(packed.tensor))
        return lying.reshape(self.shape(name, length)[int(name in self.layered) :])

    def elements(self, name: str, x: Array, length: int | None = None) -> Array:
        """Return the elements that exist of a tensor in memory, row-major, (elements,): the inverse of `laid_out`.
        name: of the tensor. x: the tensor in its `shape`, without an axis for the layers. length: as for `shape`."""
        packed, existing = self._at(name, length)
        whole = np.ascontiguousarray(x if packed is None else packed.unpack(x))
        if existing is not None:
            whole = cropped(whole, existing[0], existing[1][-1])
        return whole.reshape(-1)

    def _at(self, name: str, length: int | None) -> tuple[PackedTensor | None, tuple[Existing, Shape] | None]:
        """How a tensor lies tile by tile, and what exists of it, with a sequence of this length."""
        packed, found = self.packed_tensors.get(name), self.existing.get(name)
        if length is None or name not in self.row_axes or found is None:
            return packed, found
        (heads, sequences, _, columns), tensor = found
        tensor = (*tensor[:-2], -(-length // self.row_tile) * self.row_tile, tensor[-1])
        return packed and replace(packed, tensor=tensor), ((heads, sequences, length, columns), tensor)


@dataclass
class _Task:
    """body: what it does for each layer. parameters: the tensors that it takes, under their own names. rates: of its
    datapath; none for a task that states its cycles. before, after: what it does once. once: it does all of it once."""

    name: str
    body: Statements
    parameters: list[str] = field(default_factory=list)
    comment: str = ""
    rates: Mapping[str, int] = field(default_factory=dict)
    before: Statements = field(default_factory=list)
    after: Statements = field(default_factory=list)
    once: bool = False


@dataclass
class _Stream:
    """element: the type of a token. tokens: that go over it for each layer. depth: that it always has, and that lets no
    tasks wait for each other in a circle; None for one that is chosen."""

    name: str
    element: Term
    tokens: int
    source: str
    target: str
    depth: int | None = None


@dataclass
class _Cache:
    """A cache of which a kernel replaces rows. tensor: it. positions: the tensor of those. load: the task that loads
    it. stored: the stream to the task that stores the new rows, "" for none."""

    tensor: str
    positions: str
    load: _Task
    stored: str = ""


@dataclass(frozen=True)
class _Carry:
    """What layers carry. memory: the tensor off the chip with the input of the first layer. result: of which the result
    is the input of the next one. later: the stream with the results."""

    memory: StreamOperator
    result: StreamOperator
    later: str


def program(
    graph: OperatorGraph,
    plans: Mapping[StreamOperator, KernelPlan],
    knobs: Knobs,
    title: str,
    *,
    groups: Mapping[str, int] | None = None,
    depths: Mapping[str, int] | None = None,
    ports: ChannelPorts | None = None,
    repeated: ProgramLayers | None = None,
) -> StreamProgramText:
    """Return the stream program of planned kernels.

    graph, plans: of the block. knobs: of the program: how its tensors lie off the chip, and how fast they move. title:
    text for its first line. groups: the number of each kernel's group, by the kernel's name: between groups, results go
    through memory off the chip. depths: tokens that streams hold, by the stream's name. Another stream holds 2 tokens;
    if it closes a circle of tasks, it holds all tokens that ever go over it, so that no task waits for ever. ports: how
    tensors use the memory channels of a device; None for a memory without channels, latency and bursts, in which each
    row of a tile that does not follow the one before begins a word of its port. repeated: the layers, two or more, of
    which the block is one; None for a block by itself. Raises `ProgramError` for kernels without a group, and for
    groups and depths of kernels and streams that the program does not have.
    """
    chosen = groups or {}
    missing = [x.name for x in plans if chosen and x.op != "array" and x.name not in chosen]
    if missing:
        raise ProgramError(f"no group is given for {', '.join(missing)}; give one for each kernel")
    kernels = [x.name for x in plans]
    for name in chosen:
        if name not in kernels:
            raise ProgramError(f"a group of {name}, which is no kernel of this block; there are {', '.join(kernels)}")
    return _ProgramWriter(graph, plans, knobs, chosen, ports, repeated).text(title, depths or {})


class _ProgramWriter:
    def __init__(
        self,
        graph: OperatorGraph,
        plans: Mapping[StreamOperator, KernelPlan],
        knobs: Knobs,
        groups: Mapping[str, int],
        ports: ChannelPorts | None,
        repeated: ProgramLayers | None,
    ) -> None:
        self.graph, self.plans, self.knobs, self.groups, self.ports = graph, plans, knobs, groups, ports
        self.float_add = float_add_of(ports)
        self.packed_tensors: dict[str, PackedTensor] = {}
        self.taken: set[str] = {*RESERVED, *(x.name for x in plans)}
        self.repeated = repeated
        self.layer = unique_name("layer", self.taken) if repeated else ""
        self.layered: set[str] = set()
        self.once = False  # whether what is written now is behind the layers
        self.local: dict[str, str] = {}
        self.tensors: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        self.inputs: dict[str, HeldByTensor] = {}
        self.outputs: dict[str, str] = {}
        self.streams: list[_Stream] = []
        self.tasks: list[_Task] = []
        self.converters: dict[str, Converter] = {}
        self.loads: dict[str, str] = {}
        self.stores: list[str] = []
        self.moved: dict[str, MovedBytes] = {}
        self.cost_behind: dict[str, int] = {}  # of what loads move once, behind the layers
        self.existing: dict[str, tuple[Existing, Shape]] = {}
        self.row_axes: dict[str, tuple[int, int]] = {}
        self.rows_together: dict[str, int] = {}
        self.lengths = [x for x in graph.operators if x.row_tile]
        self.taken |= {LENGTH, ROW_TILES} if self.lengths else set()
        self.requests: list[str] = []
        self.gets: dict[tuple[str, StreamOperator, int], str] = {}
        self.puts: dict[StreamOperator, list[str]] = {y: [] for x, plan in plans.items() for y in puts_of(x, plan)}
        self.sums: dict[str, list[str]] = {}
        self.caches: dict[StreamOperator, _Cache] = {}
        self._loaded: dict[tuple[StreamOperator, Shape, tuple[Shape, ...]], str] = {}

    def text(self, title: str, depths: Mapping[str, int]) -> StreamProgramText:
        kernels = {}
        carry = self._carry() if self.repeated else None
        for x, plan in self.plans.items():
            begun, self.once = len(self.tasks), self._is_behind(x)
            for k, operand in enumerate(x.operands):
                if operand.is_memory and self._readers(x, k) and not (carry and operand is carry.memory):
                    self._load(x, k, operand, plan.gets[k])
            kernels[x] = _Task(x.name, [], rates=rates(x, plan, self.knobs.at(x.name), self.float_add))
            self.tasks.append(kernels[x])
            if x.op == "array":
                self._sums(x, plan)
                continue
            if carry and x is carry.result:
                self.puts[x].append(carry.later)
                continue
            for result, put in puts_of(x, plan).items():
                self._connect(result, plan, put, x.name)
            self._only_once(begun)
        for x, task in kernels.items():
            self._kernel(x, task)
        self._check_depths(depths)
        circles = self._in_circles()
        streams = []
        for s in self.streams:
            least = s.depth or (s.tokens if s.name in circles else min(LEAST_DEPTH, s.tokens))
            streams.append(declare(s.name, named("Stream")[s.element, depths.get(s.name, least)]))
        tensors = [declare(name, self._tensor_type(name)) for name in self.tensors]
        statements = builder.program(title, *self._sizes(), tensors, streams, [*map(self._written, self.tasks)])
        if self.repeated:
            for task in self.tasks:
                if task.name in self.moved and not task.once:
                    moved = self.moved[task.name]
                    self.moved[task.name] = replace(moved, cost=moved.cost * self.repeated.count)
        for name, cost in self.cost_behind.items():
            self.moved[name] = replace(self.moved[name], cost=self.moved[name].cost + cost)
        held = self.inputs, self.outputs, self.tensors, frozenset(self.layered), self.dtypes
        return StreamProgramText(
            statements,
            *held,
            self.converters,
            self.packed_tensors,
            self.loads,
            self.stores,
            self.moved,
            tuple(self.requests),
            self.existing,
            self.row_axes,
            max((x.row_tile for x in self.lengths), default=0),
            self.rows_together,
        )

    def _sizes(self) -> list[list[StatementNode]]:
        """The sizes of a program for sequences of any length: the largest one is stated."""
        found = [(x.row_tile, x.existing[2]) for x in self.lengths if x.existing is not None]
        if not found:
            return []
        tile, longest = found[0]
        count = named(LENGTH) if tile == 1 else (named(LENGTH) + (tile - 1)).joined("//", tile)
        return [[declare(LENGTH, named("Size")[longest], longest), assign(ROW_TILES, count)]]

    def _check_depths(self, depths: Mapping[str, int]) -> None:
        names = [s.name for s in self.streams]
        for name in depths:
            if name not in names:
                close = get_close_matches(name, names, n=1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
                raise ProgramError(f"a depth of {name}, which is no stream of this program; {hint}")

    # -- tensors and streams

    def _tensor(self, stem: str, shape: tuple[int, ...], dtype: str, layered: bool = False) -> str:
        name = unique_name(stem, self.taken)
        if layered and self.repeated:
            self.layered.add(name)
            shape = self.repeated.count, *shape
        self.tensors[name], self.dtypes[name] = shape, dtype
        return name

    def _is_behind(self, x: StreamOperator) -> bool:
        """Whether an operator computes behind the layers."""
        return self.repeated is not None and x.name in self.repeated.behind

    def _only_once(self, begun: int) -> None:
        """Tasks from a number on do what they do once, if they are behind the layers."""
        for task in self.tasks[begun:]:
            task.once |= self.once
        self.once = False

    def _front(self, tensor: str) -> tuple[Term, ...]:
        """The index of the layer, of a tensor with an axis for the layers."""
        return (named(self.layer),) if tensor in self.layered else ()

    def _differs(self, x: StreamOperator, vector: str = "") -> bool:
        """Whether layers have their own tensor off the chip, or their own vector of a kernel."""
        return self.repeated is not None and (x.name, vector) in self.repeated.held

    def _held(self, x: StreamOperator, held: Held, vector: str = "") -> Held | HeldByLayers:
        """What a tensor off the chip, or a vector of a kernel, holds: of one layer, or by layers."""
        if self.repeated is None or not self._differs(x, vector):
            return held
        return self.repeated.held[x.name, vector]

    def _tensor_type(self, name: str) -> Term:
        shape: list[Operand] = [*self.tensors[name]]
        if name in self.row_axes:
            axis, size = self.row_axes[name]
            shape[axis] = named(ROW_TILES) if size == 1 else named(ROW_TILES) * size
        return named(self.dtypes[name])[tuple(shape)]

    def _stream(self, stem: str, order: Order, source: str, target: str, depth: int | None = None) -> str:
        name = unique_name(stem, self.taken)
        self.streams.append(_Stream(name, _type(token_shape(order), order.dtype), order.tokens, source, target, depth))
        return name

    def _in_circles(self) -> set[str]:
        """The streams that lie on a circle of tasks, whatever their direction."""
        near: dict[str, list[tuple[str, str]]] = {}
        streams = [stream for stream in self.streams if stream.depth is None]
        for stream in streams:
            near.setdefault(stream.source, []).append((stream.target, stream.name))
            near.setdefault(stream.target, []).append((stream.source, stream.name))
        found = set()
        for stream in streams:
            seen, stack = {stream.source}, [stream.source]
            while stack and stream.target not in seen:
                for task, over in near[stack.pop()]:
                    if over != stream.name and task not in seen:
                        seen.add(task)
                        stack.append(task)
            if stream.target in seen:
                found.add(stream.name)
        return found

    # -- tasks

    def _load(self, x: StreamOperator, k: int, memory: StreamOperator, order: Order) -> None:
        """A task that loads a tensor in the order in which a kernel gets it."""
        if x.op == "replace" and k == 0:
            self._load_cache(x, memory, order)
            return
        if x.op == "array" and len(x.operands) > 1:
            self._load_of_array(x)
            return
        key = memory, order.tensor, (order.element, _nesting(order)) if self.knobs.packed else ()
        if key not in self._loaded:
            # The tiles of an array lie below each other, as it takes them.
            name = self._moving_tensor(memory, memory.name, order, x.op == "array" or bool(self.knobs.packed))
            if x.op == "append":  # up to the end of the tile in which its last row is
                sequences, before = x.attributes["sequences"][0], x.attributes["rows"][0]
                self.existing[name] = (1, sequences, before, order.tensor[-1]), order.tensor
            self._loaded[key] = name
            self.inputs[self._loaded[key]] = self._held(memory, memory.data)
        tensor = self._loaded[key]
        self._give(x, k, lambda reader: self._load_of(tensor, order, x, [], reader))

    def _load_of_array(self, x: StreamOperator) -> None:
        """A task that loads the weights of an array, those of each layer and then those behind the layers, from one
        tensor through one port. A product with a vocabulary then gets the bandwidth that those of layers have."""
        arrays: SharedArrays = x.attributes["arrays"]
        plan, count = self.plans[x], self.repeated.count if self.repeated else 1
        own, last = plan.gets
        rows = own.tensor[-2] * count + last.tensor[-2]
        lying = PackedTensor((*own.tensor[:-2], rows, own.tensor[-1]), own.element, own.element, own.dtype)
        name = self._tensor(x.operands[0].name, (*lying.shape[: len(own.element)], *token_shape(own)), own.dtype)
        self.packed_tensors[name] = lying
        held = (self._held(memory, memory.data) for memory in x.operands)  # of layers a tuple
        self.inputs[name] = HeldOneBehindOther(tuple(y for z in held for y in (z if isinstance(z, tuple) else (z,))))

        def made(reader: str) -> str:
            task = unique_name(f"load_{name}", self.taken)
            self.loads[task] = x.name
            stream = _Stream(
                unique_name(f"{name}_tiles", self.taken), _type(token_shape(own), own.dtype),
                own.tokens + last.tokens, task, reader,
            )  # fmt: skip
            self.streams.append(stream)
            moved = self._moved(task, name, own, self.knobs.at(x.name).port)
            self.cost_behind[task] = self.moved[task].cost // own.tokens * last.tokens
            of_layer, behind = arrays.parts
            tiles = own.tensor[-2] // own.element[-2]
            first: Term | int = named(self.layer) * tiles if self.repeated else 0
            body = self._load_turns(name, x, of_layer, own.trips[0], stream.name, moved, first)
            after = self._load_turns(name, x, behind, last.trips[0], stream.name, moved, count * tiles)
            self.tasks.append(_Task(task, body, [name], before=self._latency(name), after=after))
            return stream.name

        self._give(x, 0, made)

    def _load_cache(self, x: StreamOperator, memory: StreamOperator, order: Order) -> None:
        """A task that loads a cache for the kernel that replaces rows of it. The cache lies row by row, in a tensor of
        its own, because new rows are stored in place."""
        assert x.positions is not None
        tensor = self._moving_tensor(memory, memory.name, order, packed=False)
        self.inputs[tensor] = self._held(memory, memory.data)
        if token_shape(order)[-1] == order.tensor[-1]:
            self.rows_together[tensor] = order.bytes_per_token
        layered = self._differs(x, POSITIONS)
        # With any length, too, as many as of the longest sequence: a kernel keeps a vector of one size.
        places = self._tensor(f"{tensor}_positions", (int(new_row_count(x)),), "i32", layered)
        self.inputs[places] = self._held(x, x.positions, POSITIONS)
        before = len(self.tasks)
        self._give(x, 0, lambda reader: self._load_of(tensor, order, x, [], reader))
        self.caches[x] = _Cache(tensor, places, self.tasks[before])

    def _moving_tensor(self, x: StreamOperator, stem: str, order: Order, packed: bool) -> str:
        """The tensor of an operator that is loaded, or stored, in an order. packed: it lies token by token, as they
        follow each other in that order."""
        layered = not self.once and (self._differs(x) or not (x.is_memory or x in self.graph.results))
        if packed:
            lying = PackedTensor(order.tensor, order.element, order.element, order.dtype, _nesting(order))
            tiles = lying.shape[: len(order.element)]
            name = self._tensor(stem, (*tiles, *token_shape(order)), order.dtype, layered)
            self.packed_tensors[name] = lying
        else:
            name = self._tensor(stem, order.tensor, order.dtype, layered)
        if x.existing is not None:
            self.existing[name] = x.existing, order.tensor
        if x.row_tile:
            axis, front = len(order.tensor) - 2, int(name in self.layered)
            at, size = (_nesting(order).index(axis), 1) if packed else (axis, x.row_tile)
            self.row_axes[name] = front + at, size
        return name

    def _load_of(self, tensor: str, order: Order, target: StreamOperator, before: Statements, reader: str = "") -> str:
        """A task that loads a tensor for an operator. before: what it does before each layer. reader: the task that
        gets it, if it is not that of the operator. Returns the stream."""
        task = unique_name(f"load_{tensor}", self.taken)
        self.loads[task] = target.name
        stream = self._stream(f"{tensor}_tiles", order, task, reader or target.name)
        moved = self._moved(task, tensor, order, self.knobs.at(target.name).port)
        if target.op == "array" and order.trips[0] > 1:
            arrays: SharedArrays = target.attributes["arrays"]
            body = self._load_turns(tensor, target, arrays, order.trips[0], stream, moved)
        else:
            body = load(tensor, order, stream, moved, self.packed_tensors.get(tensor), self._front(tensor))
        latency = self._latency(tensor)
        if before:  # each layer waits for what another task has stored
            self.tasks.append(_Task(task, [*before, *latency, *body], [tensor]))
        else:  # requests of the next layer follow at once
            self.tasks.append(_Task(task, body, [tensor], before=latency))
        return stream

    def _load_turns(
        self,
        tensor: str,
        x: StreamOperator,
        arrays: SharedArrays,
        rows: int,
        stream: str,
        after: Statements,
        begin: Term | int = 0,
    ) -> Statements:
        """Statements that load the weights of an array: those of each turn for each row tile. arrays: what it computes
        of them. begin: the number of the first tile."""
        body, first = Statements(), 0
        for turn in arrays.turns:
            count = sum(product.tiles for product in arrays.of_turn(turn, arrays.names.index(x.name)))
            if not count:
                continue
            if isinstance(begin, int):
                at = named("k") + (begin + first) if begin + first else named("k")
            else:
                at = begin + first + named("k") if first else begin + named("k")
            loaded = [named(stream).put(named(tensor)[(*self._front(tensor), at, 0)]), *after]
            body += nest([("i", rows), ("k", count)], loaded)
            first += count
        return body

    def _carry(self) -> _Carry:
        """The task that gives each layer its input: the first one the tensor off the chip, the others the result of the
        layer before, which stays on the chip. The result of the last layer goes to the store, or to what is behind."""
        assert self.repeated is not None
        memory = next(x for x in self.graph.operators if x.name == self.repeated.carried)
        result = next(x for x in self.plans if x.name == self.repeated.result)
        plan = self.plans[result]
        order = plan.put
        name = unique_name(f"carry_{memory.name}", self.taken)
        tensor = self._moving_tensor(memory, memory.name, order, bool(self.knobs.packed))
        self.inputs[tensor] = memory.data
        reader = next(x for x in self.plans if memory in x.operands)
        first = self._load_of(tensor, order, reader, [], name)
        self.tasks[-1].once = True
        # A layer can always end, whatever the next one waits for.
        later = self._stream(f"{result.name}_tiles", order, result.name, name, order.tokens)
        self.puts[memory] = []
        self._connect(memory, plan, order, name)
        targets = self.puts.pop(memory)
        begun, self.once = len(self.tasks), True
        self._connect(result, plan, order, name)
        self._only_once(begun)
        ends, self.puts[result] = self.puts[result], []

        def moved(source: str, targets: Sequence[str]) -> Statements:
            token = named("token") if len(targets) > 1 else named(source).get()
            got = [assign(token, named(source).get())] if len(targets) > 1 else []
            return nest(loops_of(order), [*got, *(named(target).put(token) for target in targets)])

        others = nest([(self.layer, self.repeated.count - 1)], moved(later, targets))
        body = [*moved(first, targets), *others, *moved(later, ends)]
        self.tasks.append(_Task(name, body, rates=COPYING, once=True))
        return _Carry(memory, result, later)

    def _connect(self, x: StreamOperator, plan: KernelPlan, put: Order, task: str) -> None:
        """Streams from a kernel, or another task that gives a result, to those that read it, with a converter for each
        other order; a store if it is a result of the block, or if another group reads it. What layers carry goes to all
        groups on streams. plan: of the kernel. put: order of the result. task: the task that gives it."""
        near: dict[Order, list[tuple[StreamOperator, int]]] = {}
        far: list[tuple[StreamOperator, int]] = []
        for other in self.plans:
            for k, operand in enumerate(other.operands):
                if not self._readers(other, k):
                    continue
                is_near = x.is_memory or self.groups.get(other.name) == self.groups.get(x.kernel.name)
                if operand is x and is_near:
                    near.setdefault(self.plans[other].gets[k].canonical, []).append((other, k))
                elif operand is x:
                    far.append((other, k))
        for get, targets in near.items():
            made = converter(put, get)
            source = task
            if made is not None:
                source = unique_name(f"reorder_{x.name}", self.taken)
                self.converters[source] = made
                self.puts[x].append(self._stream(f"{x.name}_tiles", put, task, source))
            outs = []
            for other, k in targets:
                outs += self._give(other, k, partial(self._stream_to, x, get, source))
            if made is None:
                self.puts[x] += outs
            else:
                self._convert(source, made, self.puts[x][-1], outs)
        if far or x in self.graph.results:
            self._store(x, plan, put, far, task)

    def _convert(self, name: str, made: Converter, source: str, targets: Sequence[str]) -> None:
        """The task of a converter, or its two. name: of the task; of the first one that gets tokens."""
        buffer = f"{made.put} to {made.get}, {{}} of {made.ping_pong_bytes // 2} bytes"
        if not self.knobs.ping_pong:
            body = converted(made, source, targets)
            self.tasks.append(_Task(name, body, [], buffer.format("a buffer"), COPYING))
            return
        buffers, wanted = unique_name(f"{name}_buffers", self.taken), unique_name(f"{name}_wanted", self.taken)
        handed = prod(made.put.trips[: made.shared_loops])
        # Both ends are `name`: what leads through the converter leads through both tasks.
        self.streams.append(_Stream(buffers, _type(made.buffer, made.put.dtype), handed, name, name, 1))
        self.streams.append(_Stream(wanted, named("boolean"), handed, name, name, 1))
        self.requests.append(wanted)
        fill, read = ping_pong(made, source, targets, buffers, wanted)
        self.tasks.append(_Task(name, fill, [], buffer.format("two buffers"), COPYING))
        self.tasks.append(_Task(unique_name(f"{name}_read", self.taken), read, rates=COPYING))

    def _store(
        self,
        x: StreamOperator,
        plan: KernelPlan,
        put: Order,
        readers: Sequence[tuple[StreamOperator, int]],
        source: str,
    ) -> None:
        """A task that stores a result, and tasks that load it for kernels of other groups once it is complete. source:
        the task that gives it."""
        is_result = x in self.graph.results
        if x in self.caches:
            tensor, stored = self.caches[x].tensor, self._store_new_rows(x, plan, self.caches[x])
        else:
            alike = all(self.plans[other].gets[k].element == put.element for other, k in readers)
            stem = f"{x.name}_result" if is_result else f"{x.name}_kept"
            tensor = self._moving_tensor(x, stem, put, bool(self.knobs.packed) and alike)
            stored = _Task(unique_name(f"store_{tensor}", self.taken), [], [tensor])
            stream = self._stream(f"{tensor}_tiles", put, source, stored.name)
            self.puts[x].append(stream)
            moved = self._moved(stored.name, tensor, put, self.knobs.port)
            stored.body += store(tensor, put, stream, moved, self.packed_tensors.get(tensor), self._front(tensor))
            if readers:
                stored.body += self._latency(tensor)
                self.inputs[tensor] = None
            else:
                stored.after += self._latency(tensor)
        self.stores.append(stored.name)
        self.tasks.append(stored)
        if is_result:
            self.outputs[x.name] = tensor
        for other, k in readers:
            self._give(other, k, partial(self._load_again, stored, tensor, self.plans[other].gets[k], other))

    def _load_again(self, stored: _Task, tensor: str, order: Order, target: StreamOperator, reader: str) -> str:
        """A task that loads for an operator what another task stores, once that is complete. stored: that task. Returns
        the stream to the task that reads it."""
        ready = unique_name(f"{tensor}_ready", self.taken)
        stored.body.append(named(ready).put(True))
        before = len(self.tasks)
        stream = self._load_of(tensor, order, target, [do("drop", named(ready).get())], reader)
        self.streams.append(_Stream(ready, named("boolean"), 1, stored.name, self.tasks[before].name))
        return stream

    def _stream_to(self, x: StreamOperator, order: Order, source: str, reader: str) -> str:
        """A stream of a result from a task to another one. x: the operator. source, reader: names of the tasks."""
        return self._stream(f"{x.name}_to_{reader}", order, source, reader)

    def _readers(self, x: StreamOperator, k: int) -> Sequence[str]:
        """The tasks that get an operand of an operator: its own; what products of a turn multiply goes to those arrays
        that compute one of them, once for all products."""
        shared: SharedArrays | None = x.attributes.get("arrays")
        if x.op == "array":  # one task loads all its weights
            return (x.name,) if k == 0 else ()
        if shared is None or not is_of_arrays(name := x.attributes["operand_names"][k]):
            return (x.name,)
        turn = shared.turn(x.name)
        if name not in LEFT or turn[0].name != x.name:
            return ()
        return tuple(array for k, array in enumerate(shared.names) if shared.of_turn(turn, k))

    def _give(self, x: StreamOperator, k: int, stream: Callable[[str], str]) -> list[str]:
        """Make the streams of an operand, one for each task that gets it. stream: makes the one to a task, given its
        name. Returns their names."""
        readers = self._readers(x, k)
        made = [stream(reader) for reader in readers]
        self.gets |= {(reader, x, k): name for reader, name in zip(readers, made, strict=True)}
        return made

    def _store_new_rows(self, x: StreamOperator, plan: KernelPlan, cache: _Cache) -> _Task:
        """A task that stores new rows at their positions in a cache, after the old ones were loaded. Until then the
        stream to it holds the new rows."""
        order = new_rows(x, plan)
        task = _Task(unique_name(f"store_{cache.tensor}", self.taken), [], [cache.tensor, cache.positions])
        cache.stored = self._stream(f"{cache.tensor}_rows", order, x.name, task.name, order.tokens)
        loaded = unique_name(f"{cache.tensor}_loaded", self.taken)
        cache.load.body.append(named(loaded).put(True))
        self.streams.append(_Stream(loaded, named("boolean"), 1, cache.load.name, task.name, 1))
        moved = self._moved(task.name, cache.tensor, order, self.knobs.port, scattered=True)
        fronts = self._front(cache.tensor), self._front(cache.positions)
        new = new_row_count(x)
        body = stored_rows(cache.tensor, cache.positions, new, order, cache.stored, moved, fronts)
        task.body += [do("drop", named(loaded).get()), *body]
        task.after += self._latency(cache.tensor)
        return task

    def _moved(self, task: str, tensor: str, order: Order, port: int, scattered: bool = False) -> Statements:
        """The cycles of a token on its way through the port of a task. Rows of a tile that do not follow each other in
        memory begin a burst each, or without a device a word; tokens that follow each other begin none. scattered: rows
        lie at places that data tells."""
        rows, columns = token_shape(order)
        row, token = order.bytes_of(columns), order.bytes_per_token
        follows = tensor in self.packed_tensors or columns == order.tensor[-1]
        bits = CPP_BITS[order.dtype] * stream_word(order.dtype, (rows, columns)).elements
        if self.ports is None:
            taken = -(-token // port) if follows else rows * -(-row // port)
            self.moved[task] = MovedBytes(tensor, port, order.tokens * taken * port, bits)
        else:
            if follows and not scattered:
                lying = PackedTensor(order.tensor, order.element, order.element, order.dtype)
                tokens = self.packed_tensors.get(tensor, lying).tokens_in_a_row(order)
                size = tokens * token  # of a run, which begins at a multiple of this
                cost = -(-self.ports.cost(tensor, size, size) // tokens)
            else:
                cost = rows * self.ports.cost(tensor, row, gcd(row, order.bytes_of(order.tensor[-1])))
            share = self.ports.share(task, tensor, port)
            taken = max(-(-cost // share), self._loop(tensor, rows, columns, scattered))
            self.moved[task] = MovedBytes(tensor, share, order.tokens * cost, bits)
        return [do("cycles", taken)] if taken > 1 else []

    def _loop(self, tensor: str, rows: int, columns: int, scattered: bool) -> int:
        """The cycles of the loop that moves a token between the ports of a tensor and a stream. scattered: as for
        `_moved`."""
        dtype = self.dtypes[tensor]
        in_pieces = tensor in self.packed_tensors or (
            not scattered
            and len(self.ports.channels(tensor) if self.ports else ()) > 1
            and whole_bytes(rows * columns, dtype) == self.rows_together.get(tensor)
        )
        if not self.ports or not in_pieces:
            return rows * columns // port_elements(dtype, columns, self.tensors[tensor][-1])
        channels, token = len(self.ports.channels(tensor)), stream_word(dtype, (rows, columns)).elements
        rounds = moved_rounds(dtype, channels, token)
        return -(-rows * columns // rounds.elements) * rounds.interval

    def _latency(self, tensor: str) -> Statements:
        latency = self.ports.latency(tensor) if self.ports else 0
        return [do("cycles", latency)] if latency else []

    def _kernel(self, x: StreamOperator, task: _Task) -> None:
        vectors, kept = {}, Statements()
        for name, vector in vectors_of(x).items():
            dtype = BY_NUMPY[vector.dtype.name]
            tensor = self._tensor(f"{x.name}_{name}", vector.shape, dtype, self._differs(x, name))
            self.inputs[tensor] = self._held(x, vector, name)
            vectors[name] = tensor
        cache = self.caches.get(x)
        if cache is not None:
            vectors[POSITIONS] = cache.positions
        elif x.positions is not None:
            vectors[POSITIONS] = self._tensor(f"{x.name}_{POSITIONS}", x.shape[1:2], "i32")
            self.inputs[vectors[POSITIONS]] = x.positions
        task.parameters += vectors.values()
        for name, tensor in vectors.items():  # kept before a tile comes, which then does not wait for the memory
            if name == POSITIONS and tensor not in self.layered:
                continue
            if name not in self.local:
                self.local[name] = unique_name(f"kept_{name}", self.taken)
            vectors[name] = self.local[name]
            of = (named(self.layer), slice(None)) if tensor in self.layered else (slice(None),)
            kept.append(assign(vectors[name], named(tensor)[of]))
        gets = [self.gets[x.name, x, k] for k in range(len(x.operands)) if x.name in self._readers(x, k)]
        stored = named(cache.stored) if cache and cache.stored else None
        names = {name: named(vector) for name, vector in vectors.items()}
        puts = {y: [*map(named, self.puts[y])] for y in puts_of(x, self.plans[x])}
        gets += self.sums.get(x.name, ())
        ends = BodyNames([*map(named, gets)], puts.pop(x), names, stored, puts)
        if x.op == "array":
            task.body, task.after = self._turns(x, ends)
        else:
            task.body = [*kept, *BODIES[x.op](x, self.plans[x], ends)]
        task.comment = x.site

    def _turns(self, x: StreamOperator, ends: BodyNames) -> Iterator[Statements]:
        """What an array does for each layer, and once behind them. ends: of both, without turns."""
        puts, number = iter(ends.puts), x.attributes["arrays"].names.index(x.name)
        for arrays in x.attributes["arrays"].parts:
            turns = [self._left(x.name, turn) for turn in arrays.turns if arrays.of_turn(turn, number)]
            own = replace(ends, puts=[next(puts) for _ in arrays.of_array(number)], turns=turns)
            yield BODIES[x.op](replace(x, attributes={**x.attributes, "arrays": arrays}), self.plans[x], own)

    def _left(self, array: str, turn: Sequence[ArrayProduct]) -> tuple[Term, Term | None]:
        """The streams on which an array gets the left operand of a turn, and its zero points. array: its name."""
        first = next(x for x in self.plans if x.name == turn[0].name)
        names = dict(enumerate(first.attributes["operand_names"]))
        of = {names[k]: stream for (reader, x, k), stream in self.gets.items() if reader == array and x is first}
        return named(of["x"]), named(of["zero"]) if "zero" in of else None

    def _sums(self, x: StreamOperator, plan: KernelPlan) -> None:
        """The streams from an array to the epilogues of its products."""
        element = _type(token_shape(plan.put), plan.put.dtype)
        arrays: SharedArrays = x.attributes["arrays"]
        for product in arrays.of_array(arrays.names.index(x.name)):
            stream = unique_name(f"{x.name}_to_{product.name}", self.taken)
            tokens = plan.loops["rows"] * product.columns * product.groups
            self.streams.append(_Stream(stream, element, tokens, x.name, product.name))
            self.puts[x].append(stream)
            self.sums.setdefault(product.name, []).append(stream)

    def _written(self, task: _Task) -> StatementNode:
        types = {name: self._tensor_type(name) for name in task.parameters}
        layers = [(self.layer, self.repeated.count)] if self.repeated and not task.once else []
        body = [*task.before, *nest(layers, task.body), *task.after]
        return builder.task(task.name, body, types, task.comment, task.rates)


def _nesting(order: Order) -> tuple[int, ...]:
    """The axes of a tensor of tiles, such that an order goes through memory from its begin to its end."""
    several = [k for k, axis in enumerate(order.axes) if axis.loop is not None and order.trips[axis.loop] > 1]
    by_loop = iter(sorted(several, key=lambda k: order.axes[k].loop or 0))
    return tuple(next(by_loop) if k in several else k for k in range(len(order.axes)))


def _type(shape: Sequence[int], dtype: str) -> Term:
    return named(dtype)[tuple(shape)]
