"""Ends of streams: the parameters of a function, and the statements that read and write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ...base.element_types import KEPT, ElementType
from ...isa.overlays.tasks import tree as t
from ...isa.overlays.tasks.program import Shot, StreamArray, Task, TaskProgram
from ..datapath import Datapath
from ..words import MOVED, TileWord, moved_rounds, part_of, port_elements, stream_word, word
from .expressions import RUN, starts_of, steps_of
from .indices import Index
from .kinds import (
    CPP,
    INT,
    LIMITS,
    WIDTHS,
    ItemsKind,
    ShardKind,
    Val,
    Value,
    literal,
    of_element,
    tile_type,
)
from .passes import plain_indices
from .values import ComingTile
from .variables import NO_WIDTHS, Variables


@dataclass(frozen=True, order=True)
class EndParameter:
    """An end of a stream as a parameter of a C++ function. stream: the name of the array of streams. label: the name of
    the stream in the machine. put: whether the function writes to it."""

    stream: str
    label: str
    put: bool


Chosen = tuple[Val | None, list[tuple[int, EndParameter]]]
"""The number of the element that the run chooses, None if it is known; and the ends that it may be, with numbers."""


class StreamEndWriter(Variables):
    """Writes the puts and gets of one task instance.

    program: of the task. task: the task. shot: the instance. unit: the unit of the machine that runs the instance.
    float_add: clock cycles of an addition of floats. widths: as for `Variables`. The attribute `sizes` has the C++
    names of the sizes that a run gives, by their names in the program."""

    def __init__(
        self,
        program: TaskProgram,
        task: Task,
        shot: Shot,
        unit: str,
        float_add: int,
        widths: Mapping[str, int] = NO_WIDTHS,
    ) -> None:
        super().__init__(program.file, widths)
        self.task, self.shot, self.unit = task, shot, unit
        self.datapath = Datapath(dict(task.rates), float_add)
        self.reads = Counter(n.name for n in t.nodes(task.body) if isinstance(n, t.Name))
        self.streams: Mapping[str, StreamArray] = {s.name: s for s in program.streams}
        self.connected: dict[tuple[str, bool], dict[tuple[int, ...], EndParameter]] = {}
        for link in program.links:
            for put, end in ((True, link.source), (False, link.sink)):
                if end == unit:
                    ends = self.connected.setdefault((link.stream, put), {})
                    ends[link.index] = EndParameter(link.stream, link.label, put)
        self.ports: dict[EndParameter, str] = {}
        self.stored: set[str] = set()
        self.plain_indices = plain_indices(task.body)
        tensors = {tensor.name: tensor for tensor in program.tensors}
        # A token is got as a whole before what is behind it may change what others have read before its put.
        self.both_ways = {p.name for p in task.parameters if tensors[p.tensor].input and tensors[p.tensor].output}
        self.place = task.place
        for name, value in program.constants:
            self.env[name] = literal(value)
        self.sizes = {name: self.names.of(name) for name, _ in program.sizes}
        for name, largest in program.sizes:
            self.env[name] = Val(INT, self.sizes[name], 1, largest)
        self.env["use()"] = literal(0)
        tid = [literal(k, f"tid{axis}") for axis, k in enumerate(shot.tid)]
        self.env["get_tid()"] = tid[0] if len(tid) == 1 else ItemsKind(tuple(tid))
        for p in task.parameters:
            whole, channels = tensors[p.tensor].type, max(1, len(tensors[p.tensor].channels))
            shape = tuple(n if a < 0 else n // task.mapping[a] for n, a in zip(whole.shape, p.axes, strict=True))
            part = ShardKind(self.names.of(p.name), whole.dtype, shape, whole.shape, channels)
            self.env[p.name], self.parts[p.name] = part, part

    def bound(self, value: Value) -> Val:
        """Return the value of a bound of a loop, or of an index of a stream, as an integer. Raises `HlsError` for a
        value that is no integer."""
        made = self.plain(value)
        if not made.kind.is_int:
            self.fail(f"a bound of a loop and an index of a stream are whole numbers, not {made.kind}")
        return made

    def _ends(self, stream: str, index: tuple[t.Expression, ...], put: bool) -> Chosen:
        """The ends that an index may be."""
        values = [self.bound(self.value(part)) for part in index]
        known = tuple(int(v.known) for v in values) if all(v.has_known for v in values) else None
        there = self.connected.get((stream, put), {})
        shape = self.streams[stream].shape
        if known is not None:
            if known not in there:
                at = f"[{','.join(map(str, known))}]" if known else ""
                self.fail(f"{self.unit} has no end of {stream}{at}")
            self.marks.append((stream, known, put))
            return None, [(_number(known, shape), there[known])]
        if not there:
            self.fail(f"{self.unit} has no end of {stream}")
        text = ""
        for value, size in zip(values, shape, strict=True):
            at = f"static_cast<std::int64_t>({value.text})" if value.width == 2 else value.operand
            text = f"({text}) * {size} + {at}" if text else at
        self.marks.append((stream, None, put))
        return Val(INT, text, simple=False), sorted((_number(at, shape), port) for at, port in there.items())

    def port(self, port: EndParameter) -> str:
        """Return the C++ name of the function's parameter for an end of a stream; the first call adds the parameter."""
        if port not in self.ports:
            same = sum(1 for p in self.ports if (p.stream, p.put) == (port.stream, port.put))
            self.ports[port] = self.names.of(port.stream, f"_{'out' if port.put else 'in'}{same or ''}")
        return self.ports[port]

    def _at_end(
        self, chosen: Val | None, ports: Sequence[tuple[int, EndParameter]], action: Callable[[str], str]
    ) -> None:
        """Write what is done at one end of a stream, or at that one of several which the run chooses."""
        if chosen is None:
            self.emit(action(self.port(ports[0][1])))
            return
        self.emit(f"switch ({chosen.text}) {{")
        for number, port in ports:
            self.emit(f"case {number}: {action(self.port(port))} break;")
        self.emit('default: rsn::require(false, "this task has no such end of a stream");')
        self.emit("}")

    def get(self, name: str, stream: str, index: tuple[t.Expression, ...]) -> None:
        """Write the C++ that reads one element from a stream, and bind it to the variable `name`. stream: the name of
        the array of streams. index: of the stream in the array. Raises `HlsError` for an index that is no integer, or
        that no stream of the array has."""
        chosen, ports = self._ends(stream, index, put=False)
        kind = self.streams[stream].type
        out = of_element(kind.dtype, kind.shape)
        if kind.shape:
            self._get_tile(name, stream, chosen, ports)
            return
        text = f"rsn::read_apart({self.port(ports[0][1])})"
        if chosen is not None:
            text = self.fresh("token")
            self.emit(f"{CPP[kind.dtype]} {text}{{}};")
            self._at_end(chosen, ports, lambda port: f"{text} = rsn::read_apart({port});")
        value = self.element(text, kind.dtype)
        if name.startswith("%"):
            held = self.names.of(name)
            declared = out.cpp if not out.is_int else WIDTHS[value.width] if value.width else CPP[KEPT[kind.dtype]]
            self.emit(f"const {declared} {held} = {value.text};")
            self.env[name] = replace(value, text=held, simple=True)
        else:
            self.env[name] = self.keep(name, value, kind.dtype)

    def comes(self, node: t.Get, behind: t.Statement | None) -> bool:
        """Let a statement read the tile of a get directly from the stream, without a variable that holds the tile, if
        it can; return whether it does. It can if the statement is the only reader of the tile, and either multiplies by
        it or puts it, with a row replaced, on another stream. node: the get. behind: the statement right behind it;
        None for none."""
        kind = self.streams[node.stream].type
        if len(kind.shape) != 2 or self.streams[node.stream].packing > 1 or self.reads[node.name] != 1:
            return False
        if self._passed_on(node, behind):
            port = self.port(self._ends(node.stream, node.index, put=False)[1][0][1])
            self.coming[port] = ComingTile(port, kind.dtype)
            self.env[node.name] = Val(of_element(kind.dtype, kind.shape), port)
            return True
        if not isinstance(behind, t.Assign | t.Put | t.Store) or any(isinstance(n, t.Select) for n in t.nodes(behind)):
            return False
        products = (n.arguments for n in t.nodes(behind) if isinstance(n, t.Kernel) and n.kernel == "matmul")
        right = (_taken_in_place(arguments[1], kind.dtype) for arguments in products if len(arguments) == 2)
        if t.Name(node.name) not in right:
            return False
        chosen, ports = self._ends(node.stream, node.index, put=False)
        if chosen is not None:
            return False
        port = self.port(ports[0][1])
        self.coming[port] = ComingTile(port, kind.dtype)
        self.env[node.name] = Val(of_element(kind.dtype, kind.shape), port)
        return True

    def _passed_on(self, node: t.Get, behind: t.Statement | None) -> bool:
        """Whether a tile of several words goes on to the stream of the statement behind its get, with a row replaced.
        What the program keeps in a variable is got first."""
        match behind:
            case t.Put(_, to, _, t.Kernel("replace_row", (t.Name(node.name), _, _))) if node.name.startswith("%"):
                source, target = self.streams[node.stream], self.streams[to]
                alike = not source.shape and source.type == target.type and target.packing == 1
                return alike and prod(source.type.shape) > stream_word(source.type.dtype, source.type.shape).elements
        return False

    def _get_tile(self, name: str, stream: str, chosen: Val | None, ports: list[tuple[int, EndParameter]]) -> None:
        """Write the C++ that reads a tile from a stream, into the variable of `name`."""
        kind = self.streams[stream].type
        packed = self.streams[stream].packing > 1
        whole = word(kind.shape, MOVED) if packed else stream_word(kind.dtype, kind.shape)
        target = self.got_tile(name, kind, whole)
        apart = self.takes(kind.shape, whole)

        def read(port: str) -> str:
            if packed:
                return f"rsn::assign<{whole}>({target}, {port}.read());"
            return f"rsn::get{apart}<{whole}>({port}, {target});"

        self._at_end(chosen, ports, read)
        self.env[name] = Val(of_element(kind.dtype, kind.shape), target)

    def got_tile(self, name: str, kind: ElementType, taken: TileWord) -> str:
        """Return the C++ name of the tile into which a token is read. name: the variable in the program. kind: the type
        of the token. taken: the elements that come in a cycle."""
        out = of_element(kind.dtype, kind.shape)
        target = self.tile(out, "got") if name.startswith("%") else self.variable(name, out).text
        self.tiles[target] = out
        if self.reads[name] != 1:
            self.fresh_tiles.discard(target)
        return target

    def put(self, stream: str, index: tuple[t.Expression, ...], node: t.Expression) -> None:
        """Write the C++ that puts the value of the expression `node` on a stream. stream: the name of the array of
        streams. index: of the stream in the array. Raises `HlsError` if the shape differs from that of the stream, and
        for a value or an index that has no C++."""
        kind = self.streams[stream].type
        if self._move_words(stream, index, node, put=True) or self._pass_on(stream, index, node):
            return
        value = self.number(self.value(node))
        if value.kind.shape != kind.shape:
            self.fail(f"{value.kind} is put on {stream}, a stream of {kind.dtype}{list(kind.shape) or ''}")
        if kind.shape:
            self._put_tile(stream, index, value)
            return
        if value.adapted and kind.dtype in LIMITS:
            self.fail_adapted(value)
        text = self.scalar_converted(value, kind.dtype)
        chosen, ports = self._ends(stream, index, put=True)
        if chosen is not None:
            name = self.fresh("token")
            self.emit(f"const {CPP[kind.dtype]} {name} = {text};")
            text = name
        self._at_end(chosen, ports, lambda port: f"rsn::write_apart({port}, {text});")

    def _pass_on(self, stream: str, index: tuple[t.Expression, ...], node: t.Expression) -> bool:
        """Write the C++ that moves a tile from a stream to another one as it comes, with a row replaced. Returns
        whether the expression is that."""
        match node:
            case t.Kernel("replace_row", (t.Name() as tile, row, at)):
                source = self.value(tile)
                coming = self.coming.pop(source.text, None) if isinstance(source, Val) else None
                if coming is None or not isinstance(source, Val):
                    return False
                kind = self.streams[stream].type
                _, new, place = self.row_replaced(source, self.number(self.value(row)), self.number(self.value(at)))
                how = f"{stream_word(kind.dtype, kind.shape)}, rsn::Shape<{', '.join(map(str, kind.shape))}>"
                self.marks.append("loop")
                chosen, ports = self._ends(stream, index, put=True)
                ends = f"{coming.port}, {new.text}, {place}"
                self._at_end(chosen, ports, lambda port: f"rsn::replace_row_from<{how}>({port}, {ends});")
                return True
        return False

    def _moved_part(self, stream: str, part: tuple[ShardKind, list[Index]] | None) -> str:
        """What part of a tensor goes over a stream word by word, as template arguments; "" if it does not."""
        kind = self.streams[stream].type
        if part is None or self.streams[stream].packing > 1:
            return ""
        shard, parts = part
        shape = tuple(p.length for p in parts if p.step)
        if (shard.dtype, shape) != (kind.dtype, kind.shape) or not shape:
            return ""
        if stream_word(kind.dtype, kind.shape).columns % port_elements(kind.dtype, shape[-1]):
            return ""
        return f"rsn::Shape<{', '.join(map(str, shape))}>, {steps_of(parts)}"

    def _move_words(self, stream: str, index: tuple[t.Expression, ...], node: t.Expression, put: bool) -> bool:
        """Write the C++ that moves a part of a tensor to a stream, or a tile of a stream to it, word by word. Returns
        whether the expression is such a part."""
        before = len(self.lines)
        part = self.shard_part(node)
        if part is not None and not put and any(self.parts[p] == part[0] for p in self.both_ways):
            part = None
        moved = self._moved_part(stream, part)
        if part is None or not moved:
            del self.lines[before:]
            return False
        shard, parts = part
        kind = self.streams[stream].type
        taken = stream_word(kind.dtype, kind.shape)
        function, how = "send" if put else "receive", str(taken)
        if self.access(shard, parts, self.in_rounds(shard, parts)):
            rounds = moved_rounds(shard.dtype, shard.channels, taken.elements)
            function, how = f"{function}_rounds", f"{how}, {rounds}"
        if prod(p.length for p in parts if p.step) > port_elements(shard.dtype, parts[-1].length):
            self.marks.append("loop")
        if not put:
            self.stored |= {p for p, own in self.parts.items() if own == shard}
        call = f"rsn::{function}<{how}, {moved}>"
        chosen, ports = self._ends(stream, index, put=put)
        self._at_end(chosen, ports, lambda port: f"{call}({port}, {shard.name}, {starts_of(parts)});")
        return True

    def receive(self, node: t.Get, store: t.Store) -> bool:
        """Write the C++ that moves a tile from a stream to a part of a tensor while it comes, if the get and the store
        allow it; return whether they do. If not, nothing is written. node: the get. store: the store right behind
        it."""
        if RUN[1] in t.nodes((*node.index, store.index)):  # bits are drawn in the order of the statements
            return False
        return self._move_words(node.stream, node.index, t.Item(t.Name(store.name), store.index), put=False)

    def _put_tile(self, stream: str, index: tuple[t.Expression, ...], value: Val) -> None:
        """Write the C++ that computes a tile and writes it to a stream."""
        kind = self.streams[stream].type
        chosen, ports = self._ends(stream, index, put=True)
        if chosen is not None:
            value = self.held(value)
        cpp, whole = tile_type(kind.dtype, kind.shape), stream_word(kind.dtype, kind.shape)
        part = part_of(word(kind.shape, min(value.lanes, whole.elements)), whole)
        apart = self.takes(kind.shape, part)

        def written(port: str) -> str:
            if self.streams[stream].packing > 1:
                return f"rsn::put_packed<{cpp}, {word(kind.shape, min(value.lanes, MOVED))}>({port}, {value.text});"
            return f"rsn::put{apart}<{part}, {whole}>({port}, {value.text});"

        self._at_end(chosen, ports, written)


def _taken_in_place(node: t.Expression, dtype: str, turned: bool = False) -> t.Expression:
    """What a product takes in place of an operand: integers that are converted to other ones, and once turned; else the
    operand itself. dtype: of the operand. turned: it was turned already."""
    if dtype not in LIMITS:
        return node
    if isinstance(node, t.Convert) and node.type.dtype in LIMITS:
        return _taken_in_place(node.value, dtype, turned)
    if isinstance(node, t.Kernel) and node.kernel == "transpose" and len(node.arguments) == 1 and not turned:
        return _taken_in_place(node.arguments[0], dtype, True)
    return node


def _number(index: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """The number of an element of an array of streams, row-major."""
    number = 0
    for i, size in zip(index, shape, strict=True):
        number = number * size + i
    return number
