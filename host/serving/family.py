"""Programs of one network at several batch sizes and lengths; how requests share a run of one of them.

A request is one or more sequences of the same number of rows. Sequences are independent: the result of one does not
depend on the others in the run. The compiler guarantees that; a handwritten program whose tensors have three
dimensions, the first of them the batch, must do so too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.errors import ProgramError, TensorError
from ...hw.sim.machine import Run
from ...isa.packet import Words
from ...isa.program import Array, Buffer, Program, Role
from ...rsnlib.shape_buckets import SequenceSize, ShapeBuckets, SlotBucket, no_bucket
from .. import tensors


@dataclass(frozen=True, eq=False)
class SlotProgram(SlotBucket):
    """A program of a family, as a bucket with a slot for each sequence; the run-time parameter len[i] is the length of
    the sequence in slot i. A program has no slots if its tensors do not have the form (sequence, rows, columns)."""

    program: Program

    @classmethod
    def of(cls, program: Program) -> SlotProgram:
        """Make the bucket of a program, without slots if its tensors do not have the form of sequences."""
        return cls(_slots(program), bool(program.parameters), program)

    @cached_property
    def inputs(self) -> dict[str, Buffer]:
        """The input buffers of the program, by name."""
        return {b.name: b for b in self.program.with_role(Role.INPUT)}

    @cached_property
    def states(self) -> dict[str, Buffer]:
        """The buffers that keep their contents between runs, by name. A program that has such buffers has no slots."""
        return {b.name: b for b in self.program.with_role(Role.STATE)}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs that users see, in elements, by name."""
        return {name: b.view or b.shape for name, b in self.inputs.items()}


def _slots(program: Program) -> tuple[int, ...]:
    """Return the rows of each sequence of a program; () if its tensors are no sequences."""
    inputs = program.with_role(Role.INPUT)
    if program.with_role(Role.STATE):
        return ()
    ends = [*inputs, *program.with_role(Role.OUTPUT)]
    shapes = {(b.view[:2], b.rows) if b.view and len(b.view) == 3 else None for b in ends}
    if len(shapes) != 1 or None in shapes or not inputs:
        return ()
    slots = tuple(rows for _, rows in ends[0].items)
    lengths = {(p.name, p.low, p.high, p.default) for p in program.parameters}
    if lengths and lengths != {(f"len[{i}]", 1, n, n) for i, n in enumerate(slots)}:
        return ()
    return slots


@dataclass(frozen=True, eq=False)
class Result:
    """The answer to a request. outputs: float32, by buffer name, in the shape that users see. run: what the run took;
    other requests may have shared it."""

    outputs: dict[str, Array]
    run: Run


@dataclass(eq=False)
class Request:
    """A request in the queue. sequences: its sizes; empty if its tensors have exactly the shapes of one program,
    `member`, on which it then runs alone.

    inputs: by name, float32 (sequence, rows, columns), or in the shapes of `member`. parameters: run-time parameters by
    name. arrived: when it came. deadline: when it fails with `RequestTimeout` if it has no answer yet, None for never;
    both in seconds of `time.monotonic`. progress: called with the share of the run that is done, 0 to 1; a request with
    one runs alone. runs: how often it was started; started: its future can no longer be cancelled; answered: it has a
    result or an error, or was cancelled."""

    inputs: dict[str, Array]
    parameters: dict[str, int]
    sequences: tuple[SequenceSize, ...] = ()
    member: SlotProgram | None = None
    future: Future[Result] = field(default_factory=Future)
    arrived: float = 0.0
    deadline: float | None = None
    progress: Callable[[float], None] | None = None
    runs: int = 0
    started: bool = False
    answered: bool = False

    @property
    def keeps_state(self) -> bool:
        """Whether its program keeps contents between runs: a second run would be another one."""
        return self.member is not None and bool(self.member.states)


@dataclass(frozen=True, eq=False)
class RequestBatch:
    """Requests that share a run of `member`. slots: for each request, the numbers of the slots of its sequences; empty
    for a program without slots, on which one request runs alone."""

    member: SlotProgram
    requests: list[Request]
    slots: list[list[int]]

    @property
    def fill(self) -> float:
        """The share of the program's slots that hold a sequence, 0 to 1; 1 for a program without slots."""
        return sum(map(len, self.slots)) / len(self.member.slots) if self.slots else 1.0

    def bound(self) -> tuple[Words, dict[str, Array]]:
        """Return the image with its parameters bound, as 32-bit words, and the packed inputs by name: flat float32 in
        memory order. Free slots hold zeros and have full length, so that full and partly filled runs often have the
        same image."""
        member = self.member
        if not self.slots:
            (request,) = self.requests
            values, given = request.parameters, request.inputs
        else:
            values = {}
            given = {name: np.zeros(b.view or b.shape, np.float32) for name, b in member.inputs.items()}
            for request, slots in zip(self.requests, self.slots, strict=True):
                for i, slot in enumerate(slots):
                    rows = request.sequences[i].rows
                    for name, tensor in request.inputs.items():
                        given[name][slot, :rows] = tensor[i]
                    if member.masked:
                        values[f"len[{slot}]"] = request.parameters.get(f"len[{i}]", rows)
        buffers = member.inputs | member.states
        packed = {name: tensors.pack(buffers[name], t) for name, t in given.items()}
        return member.program.bind(values), packed

    def outputs(self, flat: Mapping[str, Array]) -> list[dict[str, Array]]:
        """Return the outputs of each request, by name, without padding: float32 (sequences, rows, columns), or in the
        shapes of a program without slots. flat: the outputs of the run in memory order, by name."""
        whole = {name: tensors.unpack(self.member.program.buffer(name), f) for name, f in flat.items()}
        if not self.slots:
            return [whole]
        # indexing with a list copies, so that no answer holds on to another one's
        return [
            {name: t[slots, : request.sequences[0].rows] for name, t in whole.items()}
            for request, slots in zip(self.requests, self.slots, strict=True)
        ]


class ProgramFamily:
    """The programs of one network for several batch sizes and lengths. `admit` checks a request; `batch` chooses the
    next requests to run together, and the program that runs them.

    Raises `ProgramError` if there is no program, or if their inputs, outputs or weights differ in more than batch size
    and length.
    """

    def __init__(self, programs: Sequence[Program]) -> None:
        if not programs:
            raise ProgramError("a runner needs a program")
        self._buckets: ShapeBuckets[SlotProgram, Sequence[SequenceSize]] = ShapeBuckets(map(SlotProgram.of, programs))
        self.members = self._buckets.ordered
        self.most = max(len(m.slots) for m in self.members)
        """Sequences of the largest batch."""
        self.weights = programs[0].with_role(Role.WEIGHT)
        expected = _interface(programs[0])
        for i, program in enumerate(programs[1:], 1):
            differs = _interface(program) ^ expected
            if differs:
                role, name, *shape = min(differs, key=str)
                raise ProgramError(
                    f"programs 0 and {i} are not of one network: {role} {name!r}, {shape}, is in one of them alone"
                )

    def admit(self, inputs: Mapping[str, npt.NDArray[np.generic]], parameters: Mapping[str, int]) -> Request:
        """Check a request and return a copy of it.

        inputs: float32 by name, (sequences, rows, columns), or (rows, columns) for one sequence; or in the shapes of
        one program. parameters: run-time parameters by name. Raises `TensorError` for a wrong name or dtype, for a
        parameter that is out of range, and if no program takes these shapes.
        """
        self._check_names(inputs)
        values = {name: _integer(name, value) for name, value in parameters.items()}
        sized = () if self.members[0].states else self._sized(inputs, bool(values))
        fitting = self._buckets.choose(sized) if sized else None
        if fitting is None:
            return self._whole(inputs, values)
        if values:
            fitting.program.bind(values)  # names
            for i, s in enumerate(sized):
                if not 1 <= values.pop(f"len[{i}]", s.rows) <= s.rows:
                    raise TensorError(f"len[{i}]={parameters[f'len[{i}]']} is out of range 1..{s.rows}")
            if values:
                raise TensorError(f"{min(values)}: the request has {len(sized)} sequences")
        copied = {n: np.array(t if t.ndim == 3 else t[None], np.float32) for n, t in inputs.items()}
        return Request(copied, dict(parameters), sized)

    def _whole(self, inputs: Mapping[str, npt.NDArray[np.generic]], values: dict[str, int]) -> Request:
        """Return the request for the program that takes exactly these shapes. Raises `TensorError` if there is none."""
        shapes = {name: t.shape for name, t in inputs.items() if name not in self.members[0].states}
        member = next((m for m in self.members if m.shapes == shapes), None)
        if member is None and len(self.members) > 1:
            shown = {tensors.shown(name): shape for name, shape in shapes.items()}
            raise no_bucket(shown, self._buckets.shown() or [_words(m) for m in self.members])
        member = member or self.members[0]
        member.program.bind(values)
        for name, t in inputs.items():
            tensors.pack((member.inputs | member.states)[name], t)
        return Request({name: np.array(t, np.float32) for name, t in inputs.items()}, values, (), member)

    def _check_names(self, inputs: Mapping[str, npt.NDArray[np.generic]]) -> None:
        expected, states = self.members[0].inputs, self.members[0].states
        takes = ", ".join(map(tensors.shown, expected))
        for name in inputs:
            if name not in expected and name not in states:
                raise TensorError(f"no input {name!r}; this program takes {takes or 'none'}")
        for name in expected:
            if name not in inputs:
                raise TensorError(f"input {name!r} is missing; this program takes {takes}")
        for name, t in inputs.items():
            if not isinstance(t, np.ndarray):
                raise TensorError(f"{tensors.shown(name)}: must be a numpy array, not {type(t).__name__}")
            tensors.check_dtype(name, t)

    def _sized(self, inputs: Mapping[str, npt.NDArray[np.generic]], mask: bool) -> tuple[SequenceSize, ...]:
        """Return the sizes of a request's sequences; () if its tensors are no sequences."""
        shapes = {t.shape if t.ndim == 3 else (1, *t.shape) for t in inputs.values()}
        if len({s[:2] for s in shapes}) != 1 or any(len(s) != 3 for s in shapes):
            return ()
        for name, t in inputs.items():
            view = self.members[0].inputs[name].view
            if not view or t.shape[-1] != view[-1]:
                return ()
        n, rows, _ = next(iter(shapes))
        # A request may be of any size: make no more entries than could fit.
        return (SequenceSize(rows, mask),) * n if n <= self.most and rows else ()

    def batch(self, waiting: Iterable[Request]) -> RequestBatch:
        """Choose the requests of the next run: the first that waits, then in their order those that still fit, on the
        smallest program that takes them all. waiting: not empty."""
        first, *others = waiting
        if first.member is not None:
            return RequestBatch(first.member, [first], [])
        taken, sequences = [first], list(first.sequences)
        for request in others if first.progress is None else ():
            if len(sequences) == self.most:
                break
            more = [*sequences, *request.sequences]
            alone = request.member is not None or request.progress is not None
            if not alone and len(more) <= self.most and self._buckets.choose(more) is not None:
                taken.append(request)
                sequences = more
        member = self._buckets.choose(sequences)
        assert member is not None  # `admit` has found one for the first request
        at = iter(member.place(sequences) or ())
        return RequestBatch(member, taken, [[next(at) for _ in r.sequences] for r in taken])


def _interface(program: Program) -> set[tuple[Any, ...]]:
    """Return what all programs of one network have in common: the buffers' names, the columns of inputs and outputs,
    and the stored shape and layout of weights."""

    def shape(b: Buffer) -> tuple[Any, ...]:
        return (*b.shape, b.layout.value) if b.role is Role.WEIGHT else (b.view or b.shape)[-1:]

    return {(b.role.value, b.name, *shape(b)) for b in program.buffers if b.role is not Role.SCRATCH}


def _words(member: SlotProgram) -> str:
    """Return, as text, the shapes that a program without slots takes."""
    return ", ".join(f"{tensors.shown(name)} of {shape}" for name, shape in member.shapes.items())


def _integer(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TensorError(f"parameter {name!r} must be a whole number, not {value!r}") from None
