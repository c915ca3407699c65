"""Reads a program for every size of a domain at once: the ordinary reader, with sizes that are forms.

A loop with a symbolic number of iterations is read once, for an iteration that stands for all. This is right if the
iteration leaves the variables as it finds them; otherwise the first iterations are read apart. Where iterations differ,
the range is cut (`domain.SplitIndex`, `domain.SplitRests`), and each part is read for itself. Instances of a grid of
symbolic size are read in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, TypeVar

from ...base.element_types import ElementType
from ..declarations import Declared
from ..elaborate import Elaborator, Exit, _EndsByData
from ..expressions import FileReading, RegionContext
from ..kernel_types import CollectiveStep
from ..kernels import KernelOperand
from ..layouts import OPEN
from ..orders.shown import WHOLE
from ..reader import declare
from ..source import Source
from ..stores import PathState
from ..syntax import nodes as syn
from ..syntax.control import deciding
from ..syntax.parser import parsed
from ..syntax.printer import shown as written_as
from ..tree import Collective, Instance, StreamDecl, TaskDecl
from ..values import Data, Static, SymbolicNumber, Value
from .domain import Domain, Number, RealNumber, SplitIndex, SplitRests, Undecided, at_line, form_of, number
from .polynomial import ONE, ZERO, Polynomial
from .tree import (
    AccessBox,
    Body,
    Element,
    InstanceGroup,
    Loop,
    SlicePassage,
    SymbolicNodes,
    SymbolicProgram,
    replaced,
    shape,
)

PIECES = 40
"""Limit of the parts into which one range is cut."""

FEW = 16
"""Instances of a grid of known size that are read one by one; larger grids are read by ranges."""

UNROLLED = 64
"""Iterations of a loop with known trips that are read one by one where its index decides."""

Piece = tuple[Polynomial, Polynomial, int]
"""A part of a range: the first index, the number of strides, and the indices of one stride."""

Chunk = tuple[str, Polynomial, Body]
"""Iterations of a loop with the same operations: the variable that counts them, their number, and the operations of one
of them; the variable of a single iteration is ""."""

Read = TypeVar("Read")


def read(
    text: str, file: str, sizes: Mapping[str, Polynomial], domain: Domain, region: str | None = None
) -> tuple[SymbolicProgram, Source]:
    """Read a program for all sizes of a domain; return it and its source.

    text: of the program. file: the name of the file in findings. sizes: the forms of constants at the top of the file,
    or of names that it does not declare. domain: of the variables in these forms. region: as for `reader.read`.
    Mistakes become findings of the source. Raises `Undecided` for statements that no proof covers, and otherwise as
    `Domain.at_least`."""
    source = Source(text, file)
    tree = parsed(source.text)
    values = {name: number(form, domain) for name, form in sizes.items()}
    declared = Declared(FileReading(source, SymbolicNodes(iter(domain.fresh, ""))))
    given = constants(tree)
    undeclared: dict[str, Value] = {name: Static(value) for name, value in values.items() if name not in given}
    declare(declared, with_sizes(tree, values), region, undeclared)
    streams = {stream.name: stream for stream in declared.streams}
    for stream in declared.streams:
        if isinstance(stream.packing, SymbolicNumber):
            raise Undecided(f"line {stream.place.line}: {stream.name} moves a symbolic number of elements at a time")
        if stream.order is not None:
            raise Undecided(f"line {stream.place.line}: {stream.name} states an order, of which nothing is proved")
    groups: list[InstanceGroup] = []
    for task, scope in declared.tasks:
        if any(OPEN in (parameter.layout or "") for parameter in task.parameters):
            raise Undecided(
                f"line {task.place.line}: {task.name} has layouts with ?, which are found for each size anew"
            )
        groups += InstanceGrid(scope.context, task, domain, streams).groups()
    return SymbolicProgram(streams, tuple(groups)), source


def constants(tree: syn.Block) -> dict[str, syn.ExpressionNode]:
    """Return the expressions of the names that the top of a file assigns exactly once. tree: the statements of the
    file."""
    found: dict[str, syn.ExpressionNode] = {}
    twice: set[str] = set()
    for target, value in (pair for statement in tree for pair in _assigned(statement)):
        if isinstance(target, syn.Identifier):
            twice |= {target.name} & found.keys()
            found[target.name] = value
    return {name: value for name, value in found.items() if name not in twice}


def _assigned(statement: syn.StatementNode) -> list[tuple[syn.ExpressionNode, syn.ExpressionNode]]:
    """What a statement assigns, with the values: of `M, N = 4, 8` both."""
    match statement:
        case syn.Assignment() if statement.pairs is not None:
            return statement.pairs
        case syn.Assignment(targets=(target,), value=value, augmented=False):
            return [(target, value)]
        case syn.Declaration(target=target, value=syn.ExpressionNode() as value):
            return [(target, value)]
    return []


def with_sizes(tree: syn.Block, values: Mapping[str, Any]) -> syn.Block:
    """Return the statements of a file with other values of constants at its top. values: by the name of the
    constant."""
    return tuple(_with_sizes(statement, values) for statement in tree)


def _with_sizes(statement: syn.StatementNode, values: Mapping[str, Any]) -> syn.StatementNode:
    if not isinstance(statement, syn.Assignment | syn.Declaration) or statement.value is None:
        return statement
    made = {
        value: syn.Literal(value.place, values[target.name])
        for target, value in _assigned(statement)
        if isinstance(target, syn.Identifier) and target.name in values
    }
    whole = statement.value
    if isinstance(statement, syn.Assignment) and statement.pairs is not None and syn.is_tuple(whole):
        items = tuple(made.get(item, item) for item in whole.items)
        return syn.Assignment(statement.place, statement.targets, syn.Collection(whole.place, whole.form, items))
    if whole not in made:
        return statement
    if isinstance(statement, syn.Declaration):
        return syn.Declaration(statement.place, statement.target, statement.annotation, made[whole])
    return syn.Assignment(statement.place, statement.targets, made[whole])


class Ranges:
    """Cuts a range of indices into pieces (`Piece`), each of which can be read as a whole. Iteration yields the next
    piece that is not empty.

    domain: of the variables. what: the beginning of messages. Attributes: pieces: those that are left, the next one
    last. left: how many more attempts may be made."""

    def __init__(self, domain: Domain, what: str) -> None:
        self.domain, self.what = domain, what
        self.pieces: list[Piece] = []
        self.left = PIECES

    def begin(self, count: Polynomial) -> None:
        """Begin with one piece, the indices from 0 to count - 1."""
        self.pieces = [(ZERO, count, 1)]

    def __iter__(self) -> Iterator[Piece]:
        while self.pieces:
            piece = self.pieces.pop()
            if self.domain.at_least(piece[1], 1):
                yield piece

    def attempt(
        self, piece: Piece, name: str, action: Callable[[Polynomial], Read], undo: Callable[[], None]
    ) -> Read | None:
        """Read a piece as a whole: call `action` with the first index of a stride, as a form in the variable `name`
        that counts the strides, and return its result. If the piece must be cut, call `undo`, add the parts to
        `pieces`, and return None.

        Raises `Undecided` for more than `PIECES` attempts, and for a cut that is not proved to lie in the piece.
        `SplitSizes`, and `SplitIndex` and `SplitRests` of other variables, are passed on."""
        first, count, stride = piece
        self.left -= 1
        if self.left < 0:
            raise Undecided(f"{self.what} falls into more than {PIECES} parts")
        try:
            with self.domain.bound(name, count) as index:
                return action(first + index * stride)
        except SplitIndex as split:
            undo()
            if split.name != name:
                raise
            if not (self.domain.at_least(split.at, 1) and self.domain.at_least(count - 1, split.at)):
                raise Undecided(f"{self.what} is not cut at {self.domain.shown(split.at)}") from None
            self.pieces += [(first + split.at * stride, count - split.at, stride), (first, split.at, stride)]
        except SplitRests as split:
            undo()
            if split.name != name:
                raise
            many, rest = self.domain.floor(count, Polynomial.of(split.divisor))
            end = first + many * (stride * split.divisor)
            self.pieces += [(end + stride * k, ONE, stride) for k in reversed(range(rest.number or 0))]
            self.pieces.append((first, many, stride * split.divisor))
        return None

    def peel(self, piece: Piece) -> None:
        """Add a piece to `pieces` again, as two: its first stride, and the others."""
        first, count, stride = piece
        self.pieces += [(first + stride, count - 1, stride), (first, ONE, stride)]


class InstanceGrid:
    """The instances of one task, to be read in groups. context: of the region. domain: of the sizes. streams: those of
    the program, by name."""

    def __init__(self, context: RegionContext, task: TaskDecl, domain: Domain, streams: dict[str, StreamDecl]) -> None:
        self.context, self.task, self.domain, self.streams = context, task, domain, streams
        self.sizes = [form_of(size) for size in task.mapping]
        known = [size.number for size in self.sizes]
        self.few = None not in known and prod(size or 0 for size in known) <= FEW

    def groups(self) -> list[InstanceGroup]:
        """Read all instances; return them in groups with the same operations. Raises `Undecided` for a grid that falls
        into more than `PIECES` parts, and for statements that no proof covers; otherwise as `Domain.at_least`."""
        return self._axis((), ())

    def _axis(self, tid: tuple[Polynomial, ...], axes: tuple[tuple[str, Polynomial], ...]) -> list[InstanceGroup]:
        if len(tid) == len(self.sizes):
            return [self._instance(tid, axes)]
        size = self.sizes[len(tid)]
        if self.few:
            return [g for k in range(size.number or 0) for g in self._axis((*tid, Polynomial.of(k)), axes)]
        ranges = Ranges(self.domain, f"line {self.task.place.line}: the grid of {self.task.name}")
        ranges.begin(size)
        groups: list[InstanceGroup] = []
        for piece in ranges:
            first, count, stride = piece
            if count.number == 1:
                for k in range(stride):
                    groups += self._axis((*tid, first + k), axes)
                continue
            name = self.domain.fresh()
            source = self.context.source
            findings, seen = len(source.findings), set(source._seen)

            def undo(findings: int = findings, seen: set[Any] = seen) -> None:
                del self.context.source.findings[findings:]
                self.context.source._seen = set(seen)

            def inner(
                index: Polynomial, name: str = name, count: Polynomial = count, stride: int = stride
            ) -> list[InstanceGroup]:
                return [g for k in range(stride) for g in self._axis((*tid, index + k), (*axes, (name, count)))]

            groups += ranges.attempt(piece, name, inner, undo) or []
        return groups

    def _instance(self, tid: tuple[Polynomial, ...], axes: tuple[tuple[str, Polynomial], ...]) -> InstanceGroup:
        point = tuple(number(part, self.domain) for part in tid)
        name = self.task.name
        if any(size != ONE for size in self.sizes):
            name += f"[{','.join(map(str, point))}]"
        reader = SymbolicElaborator(self.context, self.task, name, point, self.domain, self.streams)
        made = reader.instance()
        accesses, passages, body = tuple(reader.accesses), tuple(reader.passages), made.body
        return InstanceGroup(name, self.task.name, tid, axes, body, accesses, passages, made.ran)  # type: ignore[arg-type]


class SymbolicElaborator(Elaborator):
    """Reads the statements of all instances of a group at once.

    context, task, name: as for `Elaborator`. tid: the grid indices of the instances, as numbers of the program. domain:
    of the sizes and indices. streams: those of the program, by name. Attributes: controlling: the variables on which
    conditions, iterations and indices of streams depend; `deciding` also has those on which indices of tensors depend.
    accesses: what statements access of tensors. passages: which parts of tensors streams move."""

    def __init__(
        self,
        context: RegionContext,
        task: TaskDecl,
        name: str,
        tid: tuple[Number | int, ...],
        domain: Domain,
        streams: dict[str, StreamDecl],
    ) -> None:
        super().__init__(context, task, name, tid)  # type: ignore[arg-type]
        self.domain, self.all_streams = domain, streams
        self.controlling = self.deciding
        self.deciding = deciding(task.body, None)
        self.datapath = None  # a proof for all sizes has no times
        self.node: syn.SyntaxNode = task.body
        self.accesses: list[AccessBox] = []
        self.passages: list[SlicePassage] = []

    def instance(self) -> Instance:
        """Read the body of the task, as `Elaborator.instance` does. Raises `Undecided`, with the line, for statements
        that no proof covers, and otherwise as `Domain.at_least`."""
        try:
            made = super().instance()
            for parameter in self.task.parameters:
                if not _is_sliced(self.task.body, parameter.name):
                    self._accessed(parameter.name, None)
            return made
        except Undecided as why:
            with at_line(self.node.place.line):
                raise why from None

    def eval(self, node: syn.ExpressionNode) -> Value:
        """Return the value of an expression, and remember its place for messages. Raises as `instance`, and `Refusal`
        as `Expressions.eval`.
        """
        self.node = node
        return super().eval(node)

    # -- streams ------------------------------------------------------------------------------------------------------

    def _index(self, stream: StreamDecl, base: syn.ExpressionNode) -> Any:
        if stream.name not in self.all_streams:
            raise Undecided(f"a region is given {stream.name}, a part of an array of streams")
        parts = base.indices if isinstance(base, syn.Subscript) else ()
        if len(parts) != len(stream.shape):
            self._bad_index(base, f"{len(parts)} indices of {stream.name}, which has {len(stream.shape)} axes")
            return None
        index: list[Number | int] = []
        for part in parts:
            value = self.data(part)
            if not isinstance(value, Static) or not isinstance(value.value, int | SymbolicNumber):
                self._bad_index(part, f"the index {written_as(part)[:40]} is not known before the run")
                return None
            index.append(value.value)  # type: ignore[arg-type]
        shown = tuple(map(str, index))
        if any(not 0 <= i < size for i, size in zip(index, stream.shape, strict=True)):
            size = ", ".join(map(str, stream.shape))
            self._bad_index(base, f"{stream.name}[{','.join(shown)}] is outside {stream.name}[{size}]")
            return None
        return Element(stream.name, tuple(map(form_of, index)), shown)

    # -- tensors ------------------------------------------------------------------------------------------------------

    def _subscript(self, node: syn.Subscript) -> Value:
        part = super()._subscript(node)
        if isinstance(part, Data) and part.tensor:
            self._accessed(part.tensor, node)
        return part

    def _stored(self, base: Data, target: syn.Subscript, operand: KernelOperand, source: syn.ExpressionNode) -> None:
        alike = not self._loops and self._alike(base, target, operand, source)
        self._accessed(base.tensor, target, store=True, alike=alike)

    def _accessed(self, name: str, node: syn.Subscript | None, *, store: bool = False, alike: bool = False) -> None:
        """Note an access to a parameter. node: the part; None for all that the instance holds."""
        parameter = next(parameter for parameter in self.task.parameters if parameter.name == name)
        held = self.shards[name]
        if parameter.tensor is None or held.type is None:
            return
        box = None if node is None or self.shard_of(node) is not held else self._box(node, held.type.shape)
        if box is None:
            box = [(ZERO, form_of(size)) for size in held.type.shape]
        point = [ZERO if axis is None else form_of(self.tid[axis]) for axis in held.dist.labels or ()]
        begin = [at * form_of(size) for at, size in zip(point, held.type.shape, strict=True)]
        whole = tuple((low + at, high + at) for (low, high), at in zip(box, begin, strict=True))
        place = parameter.place if node is None else node.place
        self.accesses.append(AccessBox(parameter.tensor.name, store, alike, whole, tuple(self.domain.indices), place))

    def _box(self, node: syn.Subscript, shape: Sequence[Any]) -> list[tuple[Polynomial, Polynomial]] | None:
        """What a part of a tensor is of each axis; None if it is not known before the run."""
        parts = list(node.indices)
        if any(part.facts.touches or (isinstance(part, syn.Literal) and part.value in (None, ...)) for part in parts):
            return None
        out: list[tuple[Polynomial, Polynomial]] = []
        for k, size in enumerate(shape):
            part = parts[k] if k < len(parts) else WHOLE
            if isinstance(part, syn.Slicing):
                low = ZERO if part.low is None else self._form(part.low)
                high = form_of(size) if part.high is None else self._form(part.high)
            else:
                low = self._form(part)
                high = None if low is None else low + 1
            if low is None or high is None:
                return None
            out.append((low, high))
        return out

    def _form(self, node: syn.ExpressionNode) -> Polynomial | None:
        value = self.data(node)
        known = value.value if isinstance(value, Static) else None
        return form_of(known) if isinstance(known, int | Number) else None

    def shows(self, stream: Any, put: bool, part: syn.ExpressionNode, at: syn.SyntaxNode) -> None:
        """Record in `passages` which part of a tensor a put sends, or a store fills with a token. stream: an `Element`.
        put, part, at: as for `Expressions.shows`."""
        held = self.shard_of(part) if isinstance(part, syn.Subscript) else None
        box, single = None, list[bool]()
        if isinstance(part, syn.Subscript) and held is not None and held.type is not None:
            found = self._box(part, held.type.shape)
            box = None if found is None else tuple(found)
            single = [not isinstance(index, syn.Slicing) for index in part.indices]
            single += [False] * (len(held.type.shape) - len(single))
        bound = tuple(self.domain.indices)
        self.passages.append(SlicePassage(stream.name, put, box, tuple(single), bound, at.place))

    def extent(self, low: Any, high: Any, bounds: Sequence[Any], size: Any) -> Any:
        """Return how many elements of an axis a slice has, as a number of the program. low, high, bounds, size: as for
        `TileExpressions.extent`. Raises `Undecided` for a slice with a step if its bounds or the axis depend on
        sizes."""
        if not any(isinstance(bound, Number) for bound in (*bounds, size)):
            return super().extent(low, high, bounds, size)
        if bounds[2] not in (None, 1):
            raise Undecided(f"{self._at(self.node)}: a slice with a step, of an axis of symbolic size")
        return high - low if high > low else 0

    def sized(self, node: syn.SyntaxNode, known: Static) -> None:
        """Do nothing: only machines, which are made for one size, need the values of `x.shape`."""

    def stated(self, node: syn.SyntaxNode, kind: ElementType | None) -> None:
        """Do nothing: only machines, which are made for one size, need the stated types."""

    def exchange(
        self, step: CollectiveStep, kind: ElementType | None, node: syn.SyntaxNode, *, inserted: bool
    ) -> Collective | None:
        """Record the tokens of an all-reduce on a grid of known size. Raises `Undecided` for other collectives, and for
        a grid whose size is not known. The arguments are those of `KernelExpressions.exchange`."""
        known = not any(isinstance(size, Number) for size in (*self.mesh, *self.tid))
        if step.what != "allreduce" or not known:
            where = "" if known else " on a grid of symbolic size"
            raise Undecided(f"{self._at(node)}: {syn.COLLECTIVES[step.what]}{where}, of which nothing is proved")
        return super().exchange(step, kind, node, inserted=inserted)

    def numbered(self, made: Collective, stream: int) -> Any:
        """Return a stream of a collective as an `Element`. made: the collective. stream: the number of the stream."""
        array = next(array for array in made.arrays if array.first <= stream < array.first + array.size)
        self.all_streams.setdefault(array.name, array)
        index = array.index(stream - array.first)
        return Element(array.name, tuple(map(Polynomial.of, index)), tuple(map(str, index)))

    def element(self, stream: StreamDecl, number: Any) -> str:
        """Return the name of one stream of an array, with its index. number: here an `Element`."""
        return str(number)

    def _stream_name(self, number: Any) -> str:
        return str(number)

    def take_cycles(self, node: syn.Invocation) -> Value:
        """Read `cycles(n)`, where n may depend on sizes and must be at least 0 for all of them. Return data of unknown
        type. Raises `Refusal` as `Expressions.take_cycles`, and otherwise as `Domain.at_least`."""
        if len(node.arguments) == 1 and not node.named:
            value = self.data(node.arguments[0])
            if isinstance(value, Static) and isinstance(value.value, Number):
                if not value.value >= 0:
                    self.fail(node.arguments[0], "cycles takes a whole number that is known before the run, 0 or more")
                return Data()
        return super().take_cycles(node)

    # -- loops --------------------------------------------------------------------------------------------------------

    def _counted(
        self, node: syn.StatementNode, target: syn.ExpressionNode | None, call: syn.Invocation, body: syn.Block
    ) -> Exit:
        name = call.function.name if isinstance(call.function, syn.Identifier) else ""
        if name not in ("range", "grid", "meta_for") or call.named or not call.arguments:
            return super()._counted(node, target, call, body)
        if any(argument.facts.touches for argument in call.arguments):
            return super()._counted(node, target, call, body)
        bounds = [self.data(argument) for argument in call.arguments]
        known = [bound.value for bound in bounds if isinstance(bound, Static)]
        whole = all(isinstance(bound, int | Number) for bound in known)
        if len(known) < len(bounds) or not whole or (name != "grid" and len(known) > 3):
            return super()._counted(node, target, call, body)
        if all(isinstance(bound, int) for bound in known):
            decides = target is not None and bool(target.facts.names & self.controlling)
            trips = prod(known) if name == "grid" else len(range(*known)) if 0 not in known[2:] else 0
            places = target is not None and bool(target.facts.names & self.deciding)
            if not places or (decides and trips <= UNROLLED):
                return super()._counted(node, target, call, body)
        if name == "grid" and len(known) > 1:
            return self._symbolic(node, target, [(0, 1, self._trips_of(0, bound, 1)) for bound in known], body)
        start, stop, step = 0, known[0], 1
        if name != "grid" and len(known) > 1:
            start, stop = known[:2]
            step = known[2] if len(known) > 2 else 1
        if not isinstance(step, int):
            raise Undecided(f"{self._at(node)}: the step of a range is a size")
        if step == 0:
            self.fail(call, f"{name} takes integers, and a step other than 0")
        return self._symbolic(node, target, [(start, step, self._trips_of(start, stop, step))], body)

    def _at(self, node: syn.SyntaxNode) -> str:
        return f"line {node.place.line}"

    def _trips_of(self, start: Any, stop: Any, step: int) -> Polynomial:
        span = stop - start if step > 0 else start - stop
        return form_of((span + (abs(step) - 1)) // abs(step)) if span > 0 else ZERO

    def _symbolic(
        self,
        node: syn.StatementNode,
        target: syn.ExpressionNode | None,
        levels: Sequence[tuple[Any, int, Polynomial]],
        body: syn.Block,
    ) -> Exit:
        """A loop, or a nest over a grid. levels: first index, step, and trips of each level, outer ones first."""
        self.end_beat()
        outer, start = self.ops, self.save()
        self._loops += 1
        try:
            how = self._level(node, target, levels, [], body)
            return how if how is Exit.RETURN else Exit.NONE
        except _EndsByData:
            if any(part.facts.touches for part in body):
                raise
            self.ops = outer
            self.restore(start)
        finally:
            self._loops -= 1
        return self._by_data(node, target, body)

    def _level(
        self,
        node: syn.StatementNode,
        target: syn.ExpressionNode | None,
        levels: Sequence[tuple[Any, int, Polynomial]],
        chosen: list[Any],
        body: syn.Block,
    ) -> Exit:
        if len(chosen) == len(levels):
            self.context.step(node)
            if target is not None:
                self._bind(target, Static(chosen[0] if len(chosen) == 1 else tuple(chosen)))
            how = self.block(body)
            self.end_beat()
            self.prune()
            return how
        start, step, count = levels[len(chosen)]
        without = target.facts.names if target is not None else frozenset[str]()
        without = without | (set_before_read(body) & self.deciding)
        ranges = Ranges(self.domain, f"{self._at(node)}: this loop")
        ranges.begin(count)
        outer, chunks, how = self.ops, list[Chunk](), Exit.NONE
        for piece in ranges:
            first, many, stride = piece
            self.ops = []

            def run(index: Polynomial, stride: int = stride) -> Exit:
                for k in range(stride):
                    value = number((index + k) * step, self.domain) + start
                    how = self._level(node, target, levels, [*chosen, value], body)
                    if how in (Exit.BREAK, Exit.RETURN):
                        return how
                return Exit.NONE

            if many.number == 1:
                how = run(first)
                add_chunk(chunks, "", ONE, tuple(self.ops))  # type: ignore[arg-type]
                if how is not Exit.NONE:
                    break
                continue
            mark = self._mark()
            name = self.domain.fresh()

            def once(index: Polynomial, run: Callable[[Polynomial], Exit] = run) -> bool:
                before = self.key(without)
                return run(index) is Exit.NONE and self.key(without) == before

            same = ranges.attempt(piece, name, once, lambda mark=mark: self._back(mark))  # type: ignore[misc]
            if same is None:
                continue
            if not same:
                self._back(mark)
                ranges.peel(piece)
                continue
            add_chunk(chunks, name, many, tuple(self.ops))  # type: ignore[arg-type]
            last = {name: many - 1}
            self.env = {key: self._replaced(value, last) for key, value in self.env.items()}
        self.ops = [*outer, *(item for chunk in chunks for item in written(chunk))]  # type: ignore[list-item]
        return how

    def _replaced(self, value: Value, values: Mapping[str, Polynomial]) -> Value:
        def part(one: Any) -> Any:
            if isinstance(one, tuple):
                return tuple(part(below) for below in one)
            return number(one.form.put(values), self.domain) if isinstance(one, Number) else one

        if isinstance(value, Static):
            return Static(part(value.value))
        kind = value.type
        if kind is None or not any(isinstance(size, Number) for size in kind.shape):
            return value
        return replace(value, type=ElementType(kind.dtype, part(kind.shape)))

    def _mark(self) -> tuple[Any, ...]:
        source = self.context.source
        counters = self._branches, self._loops, self._loose, self.before
        lengths = len(self.accesses), len(self.passages), len(source.findings)
        return self.save(), list(self.ops), counters, lengths, set(source._seen)

    def _back(self, mark: tuple[Any, ...]) -> None:
        """Forget what was read since a mark."""
        state: PathState = mark[0]
        self.env, self.pending, self.tokens = dict(state.env), dict(state.pending), dict(state.tokens)
        self.ops = list(mark[1])
        self._branches, self._loops, self._loose, self.before = mark[2]
        for noted, length in zip((self.accesses, self.passages, self.context.source.findings), mark[3], strict=True):
            del noted[length:]  # type: ignore[attr-defined]
        self.context.source._seen = set(mark[4])

    def key(self, without: Any = ()) -> object:
        """Return a key of the values of variables, as `Paths.key` does; numbers that depend on sizes are compared by
        their forms. without: names of variables that are left out."""
        env = self.env
        self.env = {name: self._plain(value) for name, value in env.items()}
        try:
            return super().key(without)
        finally:
            self.env = env

    def _plain(self, value: Value) -> Value:
        def part(one: Any) -> Any:
            if isinstance(one, tuple):
                return tuple(part(below) for below in one)
            if isinstance(one, RealNumber):
                return RealNumber, one.positive
            return one.form if isinstance(one, Number) else one

        if isinstance(value, Static):
            return Static(part(value.value))
        if value.type is None:
            return value
        return replace(value, type=ElementType(value.type.dtype, part(value.type.shape)))


def add_chunk(chunks: list[Chunk], name: str, times: Polynomial, body: Body) -> None:
    """Append the next iterations of a loop to `chunks`. If they have the same operations as the last ones there, both
    become one chunk. name, times, body: as for `Chunk`."""
    if not body:
        return
    if chunks:
        before, count, its = chunks[-1]
        if name and not before and shape(its) == shape(replaced(body, {name: -1})):
            chunks[-1] = name, times + 1, replaced(body, {name: Polynomial.variable(name) - 1})
            return
        if before and not name and shape(body) == shape(replaced(its, {before: count})):
            chunks[-1] = before, count + 1, its
            return
    chunks.append((name, times, body))


def written(chunk: Chunk) -> Body:
    """Return a chunk as a body: a loop, or the operations of a single iteration."""
    name, times, body = chunk
    return (Loop(name, times, body),) if name else body


def _is_sliced(body: syn.FunctionDefinition, name: str) -> bool:
    """Whether a task uses a parameter by parts only, or for its shape."""
    nodes = [node for statement in body.body for node in syn.walk(statement)]
    parts = [node.base for node in nodes if isinstance(node, syn.Subscript)]
    parts += [node.base for node in nodes if isinstance(node, syn.Attribute) and node.name in ("shape", "ndim")]
    uses, taken = (
        sum(isinstance(node, syn.Identifier) and node.name == name for node in some) for some in (nodes, parts)
    )
    return uses == taken


def set_before_read(body: syn.Block) -> set[str]:
    """Return the names of variables that every iteration of a loop assigns before it reads them. body: of the loop."""
    read: set[str] = set()
    found: set[str] = set()
    for statement in body:
        targets: Sequence[syn.ExpressionNode] = ()
        value: syn.SyntaxNode = statement
        if isinstance(statement, syn.Assignment) and not statement.augmented:
            targets, value = statement.targets, statement.value
        elif isinstance(statement, syn.Declaration) and statement.value is not None:
            targets, value = (statement.target,), statement.value
        read |= value.facts.names
        for target in targets:
            if isinstance(target, syn.Identifier) or syn.is_tuple(target):
                found |= target.facts.names - read
            else:
                read |= target.facts.names
        if any(isinstance(part, syn.Jump | syn.Returning) for part in syn.walk(statement)):
            break
    return found
