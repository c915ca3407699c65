"""The unit of a task machine: steps the trees of its task instances in beats.

A *beat* is a straight run of statements in which no stream comes twice, and every get stands before the puts and before
what takes cycles. Loops, and branches whose arms touch streams, begin and end one. All operations of a beat fire
together and take one clock cycle, or as many as `cycles` states. Computation that depends on what a beat gets is done
when it fires.
"""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ....base.element_types import ElementType
from ....base.errors import ProgramError, UndecidedError
from ....base.place import Place
from ....machine.description import UnitSpec
from ....machine.steps import Burst, Channel, Step, Steps
from ....machine.unit import Unit
from ...fields import Record, bits
from .blocks import (
    Block,
    Compiler,
    CountedLoop,
    EarlyExit,
    Give,
    LocalStatements,
    Spend,
    StreamBranch,
    Take,
    Until,
    bind,
)
from .expressions import Value, Variables, value_of
from .program import OffChipTensor, Shot, StreamArray, Task, TaskProgram, TensorParameter
from .tree import last_cycles
from .values import UNKNOWN, WORDS, ByData, convert, from_words, words_of

if TYPE_CHECKING:
    from ....machine.unit import Wiring

CYCLE = "cycle"
"""The rate of a beat: one cycle of the clock."""
BANK = "tensors"
"""The off-chip memory that holds the tensors, as 32-bit words."""


class RunShot(Record, words=1):
    """Run one task instance to its end. Units whose tasks have sizes that each run gives have records of their own,
    with a further word for each (`shot_record`)."""

    shot: int = bits(0, 0, 32, "number of the task instance")


@cache
def shot_record(sizes: tuple[str, ...]) -> type[RunShot]:
    """Return the record of the uOPs of units that take these sizes, by name: `RunShot` with a word for each."""
    if not sizes:
        return RunShot
    fields: dict[str, Any] = {name: bits(k, 0, 32, f"value of {name}") for k, name in enumerate(sizes, 1)}
    annotations = dict.fromkeys(sizes, int)
    made = types.new_class(
        "RunShot",
        (RunShot,),
        {"words": 1 + len(sizes)},
        lambda space: space.update(fields, __annotations__=annotations, __doc__=RunShot.__doc__),
    )
    assert issubclass(made, RunShot)
    return made


def shape_of(tensor: OffChipTensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of a tensor in a run with these values of sizes, by name. Raises `ProgramError` for a shape that
    has no room in the tensor, or no elements."""
    shape = list(tensor.type.shape)
    for axis, expression in tensor.sized:
        shape[axis] = value_of(expression)(dict(sizes))
        if not 1 <= shape[axis] <= tensor.type.shape[axis]:
            given = ", ".join(f"{name} = {value}" for name, value in sizes.items())
            room = f"of 1 to {tensor.type.shape[axis]}"
            raise ProgramError(f"axis {axis} of {tensor.name} is {room}, and {shape[axis]} with {given}")
    return tuple(shape)


class Prepared:
    """A task program, and the tables of it that all units of its machine share. part: the class by which task instances
    access tensors; None for `TensorPart`."""

    def __init__(self, program: TaskProgram, part: type[TensorPart] | None = None) -> None:
        self.program = program
        self.part = TensorPart if part is None else part
        self.streams: dict[str, StreamArray] = {s.name: s for s in program.streams}
        self.tensors: dict[str, OffChipTensor] = {t.name: t for t in program.tensors}
        self.tasks: dict[str, Task] = {t.name: t for t in program.tasks}
        self.shots: list[Shot] = [shot for _, shots in program.units for shot in shots]
        self.links = {(link.stream, link.index): link for link in program.links}
        self.apart = {unit: frozenset(places) for unit, places in program.apart}
        self.constants: Variables = dict(program.constants)
        self._compiled: dict[str, Compiler] = {}
        self.offsets: dict[str, int] = {}
        at = 0
        for t in program.tensors:
            self.offsets[t.name] = at
            at += t.words
        self.words = at

    @cached_property
    def types(self) -> dict[str, ElementType]:
        """The element type of each array of streams, by its name."""
        return {name: s.type for name, s in self.streams.items()}

    def compiled(self, task: str) -> Compiler:
        """The `Compiler` of a task, whose `body` is the compiled body. Each task is compiled once. task: its name.
        Raises `KeyError` for an unknown task, `ProgramError` if it cannot be compiled.
        """
        if task not in self._compiled:
            self._compiled[task] = Compiler(self.tasks[task].body, self.program.file, self.types)
        return self._compiled[task]


class TensorPart:
    """The part of a tensor off the chip that a task instance sees, to be indexed like an array. An access reads or
    writes the memory: what is read is a copy, and unknown in a run without data.

    unit: the unit that runs the instance, whose memory holds the tensor. offset: of the tensor in that memory, in
    32-bit words. cut: the part, a slice for each axis of the tensor."""

    off_chip = True

    @property
    def absent(self) -> bool:
        """Whether the run has no data, so that the tensor has no values."""
        return self._unit.memory is None

    def __init__(self, unit: Unit, tensor: OffChipTensor, offset: int, cut: tuple[slice, ...]) -> None:
        self._unit, self._tensor, self._offset, self._cut = unit, tensor, offset, cut
        self.shape = tuple(s.stop - s.start for s in cut)

    def _whole(self) -> Any:
        words = self._unit.memory[self._offset : self._offset + self._tensor.words]
        dtype = self._tensor.type.dtype
        if WORDS[dtype] == 2:
            words = words.view(np.float64 if dtype == "f64" else np.int64)
        return words.reshape(self._tensor.type.shape)[(..., *self._cut)]

    def __getitem__(self, index: Any) -> Any:
        if self._unit.memory is None:
            return UNKNOWN
        index = index if self.shape else ()
        piece = np.asarray(self._whole()[index])
        dtype = self._tensor.type.dtype
        if WORDS[dtype] == 2:
            return piece.view(np.uint64).copy() if dtype == "u64" else piece.copy()
        return from_words(np.ascontiguousarray(piece), dtype).reshape(piece.shape)

    def __setitem__(self, index: Any, value: Any) -> None:
        dtype = self._tensor.type.dtype
        whole = self._whole()
        index = index if self.shape else ()
        at = whole[index]
        tile = np.broadcast_to(np.asarray(value), np.shape(at))
        words = words_of(np.asarray(convert(tile, ElementType(dtype, tile.shape))), dtype)
        whole[index] = words.view(whole.dtype).reshape(tile.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self[()], dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(self[()], name)


class TaskUnit(Unit):
    """A unit that runs task instances, one after the other. `prepared` is set by the class of each machine."""

    prepared: ClassVar[Prepared]

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.with_data = net.data
        self.net = net

    def kernel(self, uop: RunShot) -> Steps:
        if uop.shot >= len(self.prepared.shots):
            raise ProgramError(f"{self.name}: there is no shot {uop.shot}")
        shot = self.prepared.shots[uop.shot]
        return _InstanceRun(self, shot, uop).run()

    def effect_key(self, uop: RunShot) -> Hashable:
        return uop


def transfers(label: str) -> str:
    """Return the label of the stream that counts the whole transfers in another stream. label: of that other stream."""
    return f"transfers of {label}"


class _Leave(Exception):
    """A `break`, `continue` or `return` on its way out. how: which of them."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


def _rebinding(block: CountedLoop, values: Variables) -> LocalStatements:
    """What gives names of a loop these values in a beat."""
    return LocalStatements(block.place, lambda env: env.update(values), frozenset(), block.writes, False, False)


class _InstanceRun:
    """One run of a task instance: its variables, and the beat that is open."""

    def __init__(self, unit: TaskUnit, shot: Shot, uop: RunShot) -> None:
        self.unit, self.shot, self.prepared = unit, shot, unit.prepared
        self.task = self.prepared.tasks[shot.task]
        self.compiler = self.prepared.compiled(shot.task)
        self.with_data = unit.with_data
        self.apart = self.prepared.apart.get(unit.name, frozenset())
        random = np.random.default_rng((self.prepared.program.seed, uop.shot)) if self.with_data else None
        self.sizes: dict[str, int] = {f.name: getattr(uop, f.name) for f in uop.FIELDS if f.name != "shot"}
        self.env: Variables = {**self.prepared.constants, **self.sizes}
        self.env["get_tid()"] = shot.tid[0] if len(shot.tid) == 1 else shot.tid
        self.env["use()"] = 0 if self.with_data else UNKNOWN
        self.env["data()"] = (lambda: bool(random.integers(2))) if random is not None else UNKNOWN
        for parameter in self.task.parameters:
            self.env[parameter.name] = self._part(parameter)
        self._channels: dict[tuple[str, tuple[int, ...]], Channel] = {}
        self._moved: dict[tuple[str, tuple[int, ...]], int] = {}
        self._reset()

    def _part(self, parameter: TensorParameter) -> TensorPart:
        tensor = self.prepared.tensors[parameter.tensor]
        cut = []
        for size, axis in zip(shape_of(tensor, self.sizes), parameter.axes, strict=True):
            parts = 1 if axis < 0 else self.task.mapping[axis]
            at = 0 if axis < 0 else self.shot.tid[axis]
            cut.append(slice(at * size // parts, (at + 1) * size // parts))
        return self.prepared.part(self.unit, tensor, self.prepared.offsets[tensor.name], tuple(cut))

    def run(self) -> Steps:
        """The steps of the instance."""
        with suppress(_Leave):  # a return
            yield from self._blocks(self.compiler.body)
        yield from self._fire()

    # -- beats --------------------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        self.gets: list[Channel] = []
        self.puts: list[Channel] = []
        self.actions: list[Take | Give | LocalStatements] = []
        self.pending: set[str] = set()
        self.awaited: set[str] = set()
        self.cycles = 0
        self.gone: list[Channel] = []
        self.gone_puts = False
        self.pieces = 0

    def _split(self) -> Steps:
        """Fire the operations so far as a piece of one cycle. The beat stays open; its last piece takes the remaining
        cycles."""
        gone, cycles, pieces = [*self.gone, *self.gets, *self.puts], self.cycles, self.pieces + 1
        gone_puts = self.gone_puts or bool(self.puts)
        self.cycles = self.pieces = 0
        yield from self._fire()
        self.gone, self.gone_puts, self.cycles, self.pieces = gone, gone_puts, cycles, pieces

    def _fire(self) -> Steps:
        """End the beat, if one is open."""
        gets, puts, actions = tuple(self.gets), tuple(self.puts), self.actions
        if not gets and not puts:
            if self.cycles:
                yield Step(CYCLE, self.cycles)
            self._act(actions, ())
            self._reset()
            return
        cost = last_cycles(self.cycles, self.pieces)
        if self.with_data:
            yield Step(
                CYCLE, cost, gets=gets, puts=puts, needs_whole_token=True, do=lambda *tokens: self._act(actions, tokens)
            )
        else:
            yield Step(CYCLE, cost, gets=gets, puts=puts, needs_whole_token=True)
            self._act(actions, (UNKNOWN,) * len(gets))
        self._reset()

    def _act(self, actions: list[Any], tokens: Sequence[Any]) -> tuple[Any, ...]:
        """Compute the statements of a beat in their order. Returns the tokens that it puts."""
        arrived = iter(tokens)
        out = []
        env = self.env
        with np.errstate(all="ignore"):
            for action in actions:
                if isinstance(action, Take):
                    env[action.name] = next(arrived)
                elif isinstance(action, Give):
                    out.append(action.value(env))
                else:
                    action.action(env)
        return tuple(out)

    def _channel(self, place: Place, stream: str, index: tuple[Value, ...], put: bool) -> Channel:
        at = tuple(part(self.env) for part in index)
        key = stream, at
        channel = self._channels.get(key)
        if channel is None:
            link = self.prepared.links.get(key)
            where = f"{self.prepared.program.file}:{place.line}:{place.column}"
            name = stream + (f"[{','.join(map(str, at))}]" if at else "")
            if link is None or (link.source if put else link.sink) != self.unit.name:
                raise ProgramError(f"{where}: {self.unit.name} has no end of {name}")
            peer = link.sink if put else link.source
            channel = self.unit.sink(peer, link.label) if put else self.unit.source(peer, link.label)
            self._channels[key] = channel
        return channel

    def _boundary(self, channel: Channel, put: bool) -> bool:
        """Whether an operation cannot join the open beat."""
        if not put and (self.cycles or self.puts or self.gone_puts):
            return True
        return channel in self.puts or channel in self.gets or channel in self.gone

    def _meet(self, channel: Channel, put: bool, place: Place) -> Steps:
        """Make room for an operation: end the beat that it cannot join."""
        if self._boundary(channel, put):
            yield from self._fire()
        elif place in self.apart and (self.gets or self.puts):
            yield from self._split()

    def _take(self, block: Take) -> Steps:
        if block.reads & self.pending:
            yield from self._fire()
        channel = self._channel(block.place, block.stream, block.index, put=False)
        yield from self._meet(channel, False, block.place)
        self.gets.append(channel)
        self.actions.append(block)
        whole = self._transfer(block, put=False)
        if whole is not None:
            self.gets.append(whole)
            self.actions.append(Take(block.place, "", "", (), frozenset()))
        self.pending.add(block.name)

    def _transfer(self, block: Take | Give, put: bool) -> Channel | None:
        """The stream of whole transfers, if the next element begins (a get) or completes (a put) one. The reader sees
        the elements of a transfer once it is complete."""
        packing = self.prepared.streams[block.stream].packing
        if packing == 1:
            return None
        at = tuple(part(self.env) for part in block.index)
        count = self._moved[block.stream, at] = self._moved.get((block.stream, at), 0) + 1
        if count % packing != (0 if put else 1):
            return None
        link = self.prepared.links[block.stream, at]
        label = transfers(link.label)
        return self.unit.sink(link.sink, label) if put else self.unit.source(link.source, label)

    def _give(self, block: Give) -> Steps:
        if block.index_reads & self.pending:
            yield from self._fire()
        channel = self._channel(block.place, block.stream, block.index, put=True)
        yield from self._meet(channel, True, block.place)
        self.puts.append(channel)
        self.actions.append(block)
        whole = self._transfer(block, put=True)
        if whole is not None:
            self.puts.append(whole)
            self.actions.append(Give(block.place, "", (), lambda env: None, frozenset(), frozenset()))
        self.awaited |= block.reads

    def _compute(self, block: LocalStatements) -> None:
        waits = block.reads & self.pending or block.writes & (self.pending | self.awaited)
        # What other units store in a tensor is there when the tokens before this statement are.
        if waits or (self.actions and (block.effects or self._reads_tensor(block))):
            self.actions.append(block)
            self.pending |= block.writes
            self.awaited |= block.reads
        else:
            with np.errstate(all="ignore"):
                block.action(self.env)

    def _reads_tensor(self, block: LocalStatements) -> bool:
        return any(isinstance(self.env.get(name), TensorPart) for name in block.reads)

    # -- control ------------------------------------------------------------------------------------------------------

    def _blocks(self, blocks: tuple[Block, ...]) -> Steps:
        for block in blocks:
            match block:
                case Take():
                    yield from self._take(block)
                case Give():
                    yield from self._give(block)
                case LocalStatements():
                    if block.loops:
                        yield from self._fire()
                    self._compute(block)
                case Spend():
                    if block.reads & self.pending:
                        yield from self._fire()
                    self.cycles += block.count(self.env)
                case CountedLoop():
                    yield from self._loop(block)
                case Until():
                    yield from self._until(block)
                case StreamBranch():
                    yield from self._branch(block)
                case EarlyExit():
                    raise _Leave(block.how)

    def _branch(self, block: StreamBranch) -> Steps:
        if not block.decided or block.reads & self.pending:
            yield from self._fire()
        try:
            arm = block.body if self._decide(block.test, block.place) else block.other
        except UndecidedError:
            spent = self._spent(block.body)
            if spent is None or spent != self._spent(block.other):
                raise
            arm = ()
            self.cycles += spent
            for part in (*block.body, *block.other):
                tiles = part.writes if isinstance(part, LocalStatements) else ()
                self.env.update((name, UNKNOWN) for name in tiles if not isinstance(self.env.get(name), TensorPart))
        yield from self._blocks(arm)
        if not block.decided:
            yield from self._fire()

    def _spent(self, arm: tuple[Block, ...]) -> int | None:
        """The cycles of an arm that touches no stream and has no loop; None for another one."""
        cycles = 0
        for block in arm:
            if isinstance(block, Spend) and not block.reads & self.pending:
                cycles += block.count(self.env)
            elif not isinstance(block, LocalStatements) or block.loops:
                return None
        return cycles

    def _decide(self, test: Value, place: Place) -> bool:
        try:
            return bool(test(self.env))
        except ByData:
            raise self._by_data(place) from None

    def _by_data(self, place: Place) -> UndecidedError:
        where = f"{self.prepared.program.file}:{place.line}:{place.column}"
        return UndecidedError(f"{where}: data decides here what {self.unit.name} does: a run without data has no time")

    def _loop(self, block: CountedLoop) -> Steps:
        if not block.unrolled or block.reads & self.pending:
            yield from self._fire()
        try:
            values = block.values(self.env)
        except ByData:
            raise self._by_data(block.place) from None
        if block.alike and not block.unrolled and len(values) > 1:
            burst = self._burst(block, values)
            if burst is not None:
                yield burst
                if not self.with_data:
                    self.env.update(dict.fromkeys(block.writes, UNKNOWN))
                return
        for value in values:
            self._bind(block, value)
            try:
                yield from self._blocks(block.body)
            except _Leave as leave:
                if leave.how == "return":
                    raise
                if not block.unrolled:
                    yield from self._fire()
                if leave.how == "break":
                    break
                continue
            if not block.unrolled:
                yield from self._fire()

    def _bind(self, block: CountedLoop, value: Any) -> None:
        """Give the names of a loop their next value. What the open beat has not computed yet still sees the one before:
        an unrolled loop ends no beat."""
        names = frozenset(block.names)
        before = {name: self.env[name] for name in names & self.env.keys()}
        bind(self.env, block.names, value)
        if names & (self.awaited | self.pending):
            now = {name: self.env[name] for name in names}
            self.actions = [_rebinding(block, before), *self.actions, _rebinding(block, now)]

    def _burst(self, block: CountedLoop, values: Sequence[Any]) -> Burst | None:
        """The steps of a loop whose iterations are alike, if an iteration is one beat; None if not."""
        actions: list[Any] = []
        gets: list[Channel] = []
        puts: list[Channel] = []
        cycles = 0
        for part in self._straight(block.body):
            match part:
                case Take() | Give():
                    put = isinstance(part, Give)
                    if self.prepared.streams[part.stream].packing > 1 or part.place in self.apart:
                        return None
                    channel = self._channel(part.place, part.stream, part.index, put)
                    if channel in gets or channel in puts or (not put and (puts or cycles)):
                        return None
                    (puts if put else gets).append(channel)
                case Spend():
                    cycles += part.count(self.env)
                    continue
                case LocalStatements(loops=False):
                    pass
                case _:
                    return None
            actions.append(part)
        if not gets and not puts:
            return None
        coming = iter(values)

        def compute(times: int, *tokens: Sequence[Any]) -> list[list[Any]]:
            rows = []
            for k in range(times):
                bind(self.env, block.names, next(coming))
                rows.append(self._act(actions, [arrived[k] for arrived in tokens]))
            return [list(column) for column in zip(*rows, strict=True)]

        return Burst(len(values), CYCLE, cycles or 1, gets=gets, puts=puts, do=compute, needs_whole_token=True)

    def _straight(self, blocks: tuple[Block, ...]) -> Iterator[Block]:
        """The blocks of a body, with the arms that are decided before the run in place of their branches."""
        for block in blocks:
            if isinstance(block, StreamBranch) and block.decided and not block.reads & self.pending:
                yield from self._straight(block.body if self._decide(block.test, block.place) else block.other)
            else:
                yield block

    def _until(self, block: Until) -> Steps:
        yield from self._fire()
        while True:
            yield from self._blocks(block.head)
            yield from self._fire()
            if not self._decide(block.test, block.place):
                return
            try:
                yield from self._blocks(block.body)
            except _Leave as leave:
                if leave.how == "return":
                    raise
                if leave.how == "break":
                    yield from self._fire()
                    return
            yield from self._fire()
