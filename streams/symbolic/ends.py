"""Who puts on which stream, who gets from it, and how often: forms that hold for every size.

The elements of an array of streams that an operation touches are a box: each index is a constant, or one variable (of
the grid, or of a loop) and a constant. The borders of all boxes cut the array into *cells*. All elements of a cell have
the same two ends, and token counts that are forms in the element's coordinates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from itertools import pairwise, product

from ...base.place import Place
from .domain import Domain, Undecided, at_line
from .polynomial import ONE, ZERO, Polynomial
from .tree import Body, Branch, InstanceGroup, Item, Loop, SymbolicOperation, SymbolicProgram, Variables

CELLS = 20_000
"""Limit of the cells of one array of streams."""


class Wrong(Exception):
    """A program breaks a rule. code: a key of `source.CODES`. message, place: as for `SourceFinding`. unequal: a form
    that is not 0 for the sizes that break the rule; None if all sizes do."""

    def __init__(self, code: str, message: str, place: Place | None, unequal: Polynomial | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.place, self.unequal = code, message, place, unequal


@dataclass(frozen=True)
class LoopedOperation:
    """An operation with the loops around it. group: the number of its group of instances. step: the operation. loops:
    the variables of the loops with their iterations, the outer ones first."""

    group: int
    step: SymbolicOperation
    loops: Variables


@dataclass(frozen=True)
class End:
    """One end of the streams of a cell. group: the number of the group of instances. tid: the grid indices of the
    instance at this end, as forms in the variables of the cell. count: the tokens that pass each stream. place: of an
    operation at this end."""

    group: int
    tid: tuple[Polynomial, ...]
    count: Polynomial
    place: Place


@dataclass(frozen=True)
class Cell:
    """Streams of an array that have their ends in the same two groups of instances. stream: the name of the array.
    first: the index of the first of these streams. axes: for each axis of the array the variable that counts its
    streams, with their number; the name is "" for an axis along which there is one. writer, reader: the ends; None for
    a missing one."""

    stream: str
    first: tuple[Polynomial, ...]
    axes: Variables
    writer: End | None
    reader: End | None

    @property
    def bound(self) -> Variables:
        """The variables of the cell, with their counts."""
        return tuple((name, count) for name, count in self.axes if name)

    def shown(self, domain: Domain) -> str:
        """Return the name of the array with the index of the first stream of the cell, and a colon behind each index
        that varies. domain: gives variables their names in messages."""
        if not self.first:
            return self.stream
        parts = [domain.shown(at) + (":" if name else "") for at, (name, _) in zip(self.first, self.axes, strict=True)]
        return f"{self.stream}[{','.join(parts)}]"


def records(groups: Sequence[InstanceGroup]) -> list[LoopedOperation]:
    """Return all puts and gets, each with its group and its loops. Of a branch on data only the first arm counts;
    `joins` checks that the other arms have the same tokens."""
    out: list[LoopedOperation] = []

    def walk(k: int, body: Iterable[Item], loops: Variables) -> None:
        for node in body:
            if isinstance(node, SymbolicOperation):
                out.append(LoopedOperation(k, node, loops))
            elif isinstance(node, Loop):
                walk(k, node.body, (*loops, (node.name, node.times)))
            else:
                walk(k, node.arms[0], loops)

    for k, group in enumerate(groups):
        walk(k, group.body, ())
    return out


def joins(groups: Sequence[InstanceGroup]) -> None:
    """Check that the arms of every branch put and get the same tokens. groups: of the instances. Raises `Wrong` if they
    do not, and `Undecided` as `tokens`."""
    todo: list[Item] = [node for group in groups for node in group.body]
    while todo:
        node = todo.pop()
        if isinstance(node, Loop):
            todo += node.body
        elif isinstance(node, Branch):
            for arm in node.arms:
                todo += arm
            first = tokens(node.arms[0])
            for arm in node.arms[1:]:
                if tokens(arm) != first:
                    raise Wrong("join", "the arms of a branch on data leave different tokens", node.place)


def tokens(body: Body) -> dict[tuple[str, tuple[Polynomial, ...], bool], Polynomial]:
    """Return how many tokens a body puts on, or gets from, each stream, by the name of the array, the index, and
    whether it puts. Raises `Undecided` for a loop in the body that goes over the streams of an array."""
    out: dict[tuple[str, tuple[Polynomial, ...], bool], Polynomial] = {}

    def walk(body: Iterable[Item], loops: Variables) -> None:
        for node in body:
            if isinstance(node, Loop):
                walk(node.body, (*loops, (node.name, node.times)))
            elif isinstance(node, Branch):
                walk(node.arms[0], loops)
            else:
                count = ONE
                for name, times in reversed(loops):
                    if any(i.degree(name) for i in node.index):
                        raise Undecided(
                            f"line {node.place.line}: a loop over {node.stream} stands where it is not allowed"
                        )
                    count = count.sum_below(name, times)
                key = node.stream, node.index, node.put
                out[key] = out.get(key, ZERO) + count

    walk(body, ())
    return {key: count for key, count in out.items() if count.terms}


@dataclass(frozen=True)
class _Box:
    """The elements that a record touches. low, high: of each axis, high not included. variables: of each axis, with the
    sign with which it stands in the index; "" for a constant index."""

    record: LoopedOperation
    low: tuple[Polynomial, ...]
    high: tuple[Polynomial, ...]
    variables: tuple[tuple[str, int], ...]


def _box(record: LoopedOperation, group: InstanceGroup) -> _Box:
    step = record.step
    counts = {**dict(group.axes), **dict(record.loops)}
    low: list[Polynomial] = []
    high: list[Polynomial] = []
    variables: list[tuple[str, int]] = []
    where = f"line {step.place.line}: an index of {step.stream}"
    for index in step.index:
        names = sorted(index.variables() & counts.keys())
        if not names:
            low.append(index)
            high.append(index + 1)
            variables.append(("", 0))
            continue
        slope = index.coefficients(names[0])[1].number if index.degree(names[0]) == 1 else None
        if len(names) > 1 or slope not in (1, -1):
            raise Undecided(f"{where} is not one variable and a constant")
        name, count = names[0], counts[names[0]]
        if name in (used for used, _ in variables):
            raise Undecided(f"{where} has the same variable in two places")
        if count.variables() & counts.keys():
            raise Undecided(f"{where} is a variable whose range depends on another one")
        base = index.put({name: 0})
        low.append(base if slope == 1 else base - count + 1)
        high.append(base + count if slope == 1 else base + 1)
        variables.append((name, slope))
    unused = [name for name, _ in group.axes if name not in {used for used, _ in variables}]
    if unused:
        what = "puts on" if step.put else "gets from"
        raise Wrong("p2p", f"more than one instance of {group.task} {what} {step.stream}", step.place)
    return _Box(record, tuple(low), tuple(high), tuple(variables))


def cells(program: SymbolicProgram, groups: Sequence[InstanceGroup], domain: Domain) -> list[Cell]:
    """Return the cells of all streams that have ends in some groups of instances. program: declares the streams. Raises
    `Wrong` for a stream with two writers, two readers, or both ends in one instance; `Undecided` for sets of indices
    that are no boxes and for more than `CELLS` parts; and otherwise as `Domain.at_least`."""
    boxes: dict[str, list[_Box]] = {}
    for record in records(groups):
        boxes.setdefault(record.step.stream, []).append(_box(record, groups[record.group]))
    found: list[Cell] = []
    for name, mine in boxes.items():
        with at_line(mine[0].record.step.place.line):
            found += _cut(name, mine, groups, domain)
    return found


def _cut(stream: str, boxes: list[_Box], groups: Sequence[InstanceGroup], domain: Domain) -> list[Cell]:
    def compare(a: Polynomial, b: Polynomial) -> int:
        if a == b:
            return 0
        return -1 if domain.at_least(b, a + 1) else 1 if domain.at_least(a, b + 1) else 0

    rank = len(boxes[0].low)
    cuts: list[list[Polynomial]] = []
    for axis in range(rank):
        borders = sorted({b for box in boxes for b in (box.low[axis], box.high[axis])}, key=cmp_to_key(compare))
        if any(compare(a, b) == 0 for a, b in pairwise(borders)):
            raise Undecided(f"the borders {', '.join(map(domain.shown, borders))} of {stream} are not told apart")
        cuts.append(borders)
    spans = [tuple((cuts[a].index(box.low[a]), cuts[a].index(box.high[a])) for a in range(rank)) for box in boxes]
    count = 1
    for borders in cuts:
        count *= max(1, len(borders) - 1)
    if count > CELLS:
        raise Undecided(f"{stream} falls into more than {CELLS} parts")
    out: list[Cell] = []
    for at in product(*(range(len(borders) - 1) for borders in cuts)):
        mine = [
            box
            for box, span in zip(boxes, spans, strict=True)
            if all(low <= k < high for k, (low, high) in zip(at, span, strict=True))
        ]
        if not mine:
            continue
        first = tuple(cuts[a][k] for a, k in enumerate(at))
        axes: list[tuple[str, Polynomial]] = []
        for a, k in enumerate(at):
            wide = cuts[a][k + 1] - cuts[a][k]
            axes.append(("" if wide == ONE else f"@{a}", wide))
        ends = {
            put: _end(stream, [b for b in mine if b.record.step.put is put], first, axes, groups)
            for put in (True, False)
        }
        cell = Cell(stream, first, tuple(axes), ends[True], ends[False])
        _apart(cell, groups, domain)
        out.append(cell)
    return out


def _end(
    stream: str,
    boxes: Sequence[_Box],
    first: Sequence[Polynomial],
    axes: Sequence[tuple[str, Polynomial]],
    groups: Sequence[InstanceGroup],
) -> End | None:
    """Join the operations of one direction in a cell."""
    end: End | None = None
    for box in boxes:
        group = groups[box.record.group]
        values: dict[str, Polynomial] = {}
        for index, (name, slope), at, (axis, _) in zip(box.record.step.index, box.variables, first, axes, strict=True):
            if name:
                element = at + Polynomial.variable(axis) if axis else at
                values[name] = (element - index.put({name: 0})) * slope
        count = ONE
        for name, times in reversed(box.record.loops):
            if name not in values:
                count = count.sum_below(name, times)
        tid = tuple(part.put(values) for part in group.tid)
        here = End(box.record.group, tid, count.put(values), box.record.step.place)
        if end is None:
            end = here
        elif (end.group, end.tid) == (here.group, here.tid):
            end = End(end.group, end.tid, end.count + here.count, here.place)
        else:
            names = f"{groups[end.group].name} and {group.name}"
            what = "producers" if box.record.step.put else "consumers"
            raise Wrong("p2p", f"{stream} has two {what}, {names}", box.record.step.place)
    return end


def _apart(cell: Cell, groups: Sequence[InstanceGroup], domain: Domain) -> None:
    """Check that the two ends of a cell are in different instances."""
    a, b = cell.writer, cell.reader
    if a is None or b is None or groups[a.group].task != groups[b.group].task:
        return
    differences = [x - y for x, y in zip(a.tid, b.tid, strict=True)]
    with domain.within(cell.bound):
        apart = any(domain.proves(d - 1) or domain.proves(-d - 1) for d in differences)
    if not apart:
        if any(d.terms for d in differences):
            shown = cell.shown(domain)
            raise Undecided(f"line {b.place.line}: it is not seen that {shown} has its ends in two instances")
        raise Wrong("p2p", f"{cell.shown(domain)} has both ends in {groups[a.group].name}", b.place)


def balanced(found: Sequence[Cell], domain: Domain) -> None:
    """Check that every stream has as many puts as gets, as equal polynomials. found: the cells of all streams. domain:
    of the sizes, for messages. Raises `Wrong` with the code "leak" for the first cell in which the two differ; its
    `unequal` is the difference, which may still be 0 for all sizes of the domain."""
    for cell in found:
        put = cell.writer.count if cell.writer else ZERO
        got = cell.reader.count if cell.reader else ZERO
        if put == got:
            continue
        place = (cell.writer or cell.reader).place  # type: ignore[union-attr]
        unequal = _at_first(put - got, cell)
        message = f"{cell.shown(domain)}: {domain.shown(put)} put, {domain.shown(got)} got"
        raise Wrong("leak", message, place, unequal)


def packed(program: SymbolicProgram, found: Sequence[Cell], domain: Domain) -> None:
    """Check that the elements of each stream fill whole transfers. found: the cells of all streams. Raises `Wrong` if
    they do not, `Undecided` if streams of one array differ in it, and otherwise as `Domain.floor`."""
    for cell in found:
        packing = program.streams[cell.stream].packing
        if packing == 1 or cell.writer is None:
            continue
        count = cell.writer.count
        if count.variables() & {name for name, _ in cell.bound}:
            line = cell.writer.place.line
            raise Undecided(f"line {line}: {cell.stream}: the transfers of streams of an array differ")
        if domain.floor(count, Polynomial.of(packing))[1] != ZERO:
            message = f"{cell.stream}: {domain.shown(count)} elements are no whole number of transfers of {packing}"
            raise Wrong("pack", message, cell.writer.place)


def _at_first(form: Polynomial, cell: Cell) -> Polynomial | None:
    """The form at the first element of the cell where it is not 0 there, otherwise None."""
    there = form.put({name: 0 for name, _ in cell.bound})
    return there if there.terms else None


def restricted(groups: Sequence[InstanceGroup], bodies: Mapping[int, Body]) -> list[InstanceGroup]:
    """Return groups of instances with other bodies. bodies: by the number of the group; a group that is missing gets an
    empty body."""
    return [
        InstanceGroup(group.name, group.task, group.tid, group.axes, bodies.get(k, ()))
        for k, group in enumerate(groups)
    ]
