"""Ends of streams: the parameters of a function, and the statements that read and write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...base.element_types import NARROW
from ...isa.overlays.tasks import tree as t
from ...isa.overlays.tasks.program import Shot, StreamArray, Task, TaskProgram
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
from .variables import NO_WIDTHS, Variables


@dataclass(frozen=True, order=True)
class EndParameter:
    """An end of a stream as a parameter of a function. stream: the array. label: of the stream of the machine."""

    stream: str
    label: str
    put: bool


Chosen = tuple[Val | None, list[tuple[int, EndParameter]]]
"""The number of the element that the run chooses, None if it is known; and the ends that it may be, with numbers."""


class StreamEndWriter(Variables):
    """Writes puts and gets."""

    def __init__(
        self, program: TaskProgram, task: Task, shot: Shot, unit: str, widths: Mapping[str, int] = NO_WIDTHS
    ) -> None:
        super().__init__(program.file, widths)
        self.task, self.shot, self.unit = task, shot, unit
        self.streams: Mapping[str, StreamArray] = {s.name: s for s in program.streams}
        self.connected: dict[tuple[str, bool], dict[tuple[int, ...], EndParameter]] = {}
        for link in program.links:
            for put, end in ((True, link.source), (False, link.sink)):
                if end == unit:
                    ends = self.connected.setdefault((link.stream, put), {})
                    ends[link.index] = EndParameter(link.stream, link.label, put)
        self.ports: dict[EndParameter, str] = {}
        self.stored: set[str] = set()
        self.marks: list[object] = []
        self.plain_indices = plain_indices(task.body)
        tensors = {tensor.name: tensor for tensor in program.tensors}
        self.place = task.place
        for name, value in program.constants:
            self.env[name] = literal(value)
        self.env["use()"] = literal(0)
        tid = [literal(k, f"tid{axis}") for axis, k in enumerate(shot.tid)]
        self.env["get_tid()"] = tid[0] if len(tid) == 1 else ItemsKind(tuple(tid))
        for p in task.parameters:
            whole = tensors[p.tensor].type
            shape = tuple(n if a < 0 else n // task.mapping[a] for n, a in zip(whole.shape, p.axes, strict=True))
            part = ShardKind(self.names.of(p.name), whole.dtype, shape)
            self.env[p.name], self.parts[p.name] = part, part

    def bound(self, value: Value) -> Val:
        """Return a whole number: a bound of a loop, or an index of a stream. Raises `HlsError` for another value."""
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
        """Return the C++ name of this function's port for an end of a stream; make one at the first use."""
        if port not in self.ports:
            same = sum(1 for p in self.ports if (p.stream, p.put) == (port.stream, port.put))
            self.ports[port] = self.names.of(port.stream, f"_{'out' if port.put else 'in'}{same or ''}")
        return self.ports[port]

    def _switch(self, chosen: Val, ports: Sequence[tuple[int, EndParameter]], action: Any) -> None:
        self.emit(f"switch ({chosen.text}) {{")
        for number, port in ports:
            self.emit(f"case {number}: {action(self.port(port))} break;")
        self.emit('default: rsn::require(false, "this task has no such end of a stream");')
        self.emit("}")

    def get(self, name: str, stream: str, index: tuple[t.Expression, ...]) -> None:
        """Write the C++ that reads one element from an array of streams, and bind it to `name`. index: of the stream in
        the array. Raises `HlsError`."""
        chosen, ports = self._ends(stream, index, put=False)
        kind = self.streams[stream].type
        cpp = tile_type(kind.dtype, kind.shape) if kind.shape else CPP[kind.dtype]
        if chosen is None:
            text, atom = f"{self.port(ports[0][1])}.read()", False
        else:
            text, atom = self.fresh("token"), True
            self.emit(f"{cpp} {text}{{}};")
            self._switch(chosen, ports, lambda port: f"{text} = {port}.read();")
        out = of_element(kind.dtype, kind.shape)
        if kind.shape:
            if kind.dtype in NARROW:
                text = f"rsn::convert_tile<{out.cpp}>({text})"
            value = Val(out, text, simple=atom)
        else:
            value = self.element(text, kind.dtype)
        if name.startswith("%"):
            held = self.names.of(name)
            declared = out.cpp if not out.is_int else WIDTHS[value.width] if value.width else CPP[kind.dtype]
            self.emit(f"const {declared} {held} = {value.text};")
            self.env[name] = replace(value, text=held, simple=True)
        else:
            self.env[name] = self.keep(name, value, kind.dtype)

    def put(self, stream: str, index: tuple[t.Expression, ...], node: t.Expression) -> None:
        """Write the C++ that writes the value of `node` to an array of streams. index: of the stream in the array.
        Raises `HlsError` if the shape differs from that of the stream."""
        value = self.number(self.value(node))
        kind = self.streams[stream].type
        if value.kind.shape != kind.shape:
            self.fail(f"{value.kind} is put on {stream}, a stream of {kind.dtype}{list(kind.shape) or ''}")
        if kind.shape:
            cpp = tile_type(kind.dtype, kind.shape)
            text = value.text if value.kind.cpp == cpp else f"rsn::convert_tile<{cpp}>({self.held(value).text})"
        else:
            if value.adapted and kind.dtype in LIMITS:
                self.fail_adapted(value)
            text = self.scalar_converted(value, kind.dtype)
        chosen, ports = self._ends(stream, index, put=True)
        if chosen is None:
            self.emit(f"{self.port(ports[0][1])}.write({text});")
            return
        name = self.fresh("token")
        cpp = tile_type(kind.dtype, kind.shape) if kind.shape else CPP[kind.dtype]
        self.emit(f"const {cpp} {name} = {text};")
        self._switch(chosen, ports, lambda port: f"{port}.write({name});")


def _number(index: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """The number of an element of an array of streams, row-major."""
    number = 0
    for i, size in zip(index, shape, strict=True):
        number = number * size + i
    return number
