"""Makes the machine of a checked region: a unit for each task instance, a stream of the machine for each stream.

A machine has the streams, tasks and tiles of all of its runs, so they must be the same whatever the sizes are that each
run gives. The program is read again with several values of these, and what a reading finds (`FileReading`) is compared
with what the others find. With few values, all are read. With more, some are, and what none of these readings evaluates
is in no machine.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..base.errors import ProgramError, SourceError
from ..base.place import Place
from ..isa.overlays import OVERLAYS
from ..isa.overlays.tasks import TASKS
from ..isa.overlays.tasks import program as tasks
from ..isa.overlays.tasks.overlay import runnable
from ..isa.overlays.tasks.tree import Name, Store, nodes
from ..isa.program import Program
from .check import Report
from .expressions import FileReading
from .layouts import parse
from .lower import lowered_task
from .reader import beats_of, read_again
from .run import Together, Unending, fire_together, stream_depths
from .source import Refusal, Source, SourceFinding
from .syntax import nodes as syn
from .syntax.parser import executable
from .timing.bytecode import TooLong
from .timing.timed import BeatTiming, TimedProgram, TooManyTokens
from .tree import Region, SizeDecl, TaskDecl, branches
from .values import is_stream, last_name


class Refused(SourceError):
    """A stream program that has findings, or that no machine can run. report: the findings, which the message shows."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


def build(
    report: Report,
    execute: bool = False,
    clock_hz: float | None = None,
    device: str = "",
    channels: Mapping[str, tuple[int, ...]] | None = None,
) -> Program:
    """Return the program of a checked region, with its machine.

    report: the result of the check. execute: whether tasks may call functions of their file and of the modules that it
    imports; if a task calls one, imports, functions and constants of the file are executed. Without it such tasks are
    refused. clock_hz: the clock of the machine in Hz; None for 300 MHz. device: the name of the device that the machine
    is for, "" for none. channels: the numbers of the memory channels in which a tensor lies, by the tensor's name
    (`OffChipTensor`).

    Raises `Refused` for findings, and for what a machine does not have; `ProgramError` for a region without tasks, a
    file whose execution fails, channels of tensors that it does not have, and a region that is too large to find which
    beats fire together."""
    if report.code:
        raise Refused(report)
    if not report.region.instances:
        raise ProgramError(f"{report.region.source.file}: it has no tasks, so there is no machine to make")
    try:
        made = task_program(report.region, None)
    except Refused:
        if not execute:
            raise
        made = task_program(report.region, executed(report.region.source))
    given = dict(channels or {})
    tensors = tuple(replace(t, channels=given.pop(t.name, ())) for t in made.tensors)
    if given:
        raise ProgramError(
            f"channels of {', '.join(given)}, no tensor of {made.name}; there are "
            f"{', '.join(t.name for t in tensors) or 'none'}"
        )
    made = replace(made, clock_hz=clock_hz or made.clock_hz, device=device, tensors=tensors)
    return runnable(made, {size.name: size.value for size in report.region.sizes})


def executed(source: Source) -> Mapping[str, Any]:
    """Execute the imports, constants and plain functions of a file; return the values of its names. Modules are looked
    up in the folder of the file first. Raises `ProgramError` for any exception that the execution raises."""
    names: dict[str, Any] = {"__name__": Path(source.file).stem, "__file__": source.file}
    sys.path.insert(0, str(Path(source.file).resolve().parent))
    try:
        exec(
            compile(executable(source.text, _is_plain), source.file, "exec"), names
        )  # the user's own file, which the user runs
    except Exception as error:
        raise ProgramError(f"{source.file}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    return names


def _is_plain(node: syn.StatementNode) -> bool:
    if isinstance(node, syn.FunctionDefinition) and not node.coroutine:
        return not any(last_name(d) in ("task", "region") for d in node.decorators)
    if isinstance(node, syn.Assignment) and not node.augmented:
        return not is_stream(node.value)
    return isinstance(node, syn.ImportNames) or (isinstance(node, syn.ForeignStatement) and node.form == "ClassDef")


def task_program(region: Region, externals: Mapping[str, Any] | None = None) -> tasks.TaskProgram:
    """Return a checked region as a task program, which is the same for all values of the sizes that a run gives.
    externals: the values of the names of the executed file, whose functions tasks may call; None if the file is not
    executed. Raises `Refused` for what a machine does not have, and `ProgramError` for a region that is too large to
    find which beats fire together."""
    try:
        readings, unread = size_readings(region)
    except Unequal as e:
        raise Refused(e.report) from None
    region = readings[-1]
    made, faults = [], []
    for declared in region.tasks:
        try:
            made.append(lowered_task(region, declared, _parameters(declared), externals, unread))
        except Refusal as r:
            faults.append(SourceFinding(r.code, r.message, r.place, r.notes, subject=declared.name))
    if faults:
        raise Refused(Report(region, tuple(faults)))
    names = unit_names([instance.name for instance in region.instances])
    ends: dict[tuple[int, bool], str] = {}
    for reading in readings:
        for name, instance in zip(names, reading.instances, strict=True):
            for node in instance.body:
                for stream, put, _ in node.needs:
                    if ends.setdefault((stream, put), name) != name:
                        raise Refused(Report(region, (_two_ends(region, stream, ends[stream, put], name),)))
    links = []
    for stream in sorted({s for s, _ in ends}):
        declared_stream, _ = region.stream(stream)
        index = declared_stream.index(stream - declared_stream.first)
        source, sink = ends[stream, True], ends[stream, False]
        links.append(tasks.Link(declared_stream.name, index, source, sink, declared_stream.depth))
    units = tuple(
        (name, (tasks.Shot(instance.task.name, instance.tid),))
        for name, instance in zip(names, region.instances, strict=True)
    )
    streams = tuple(tasks.StreamArray(s.name, s.type, s.depth, s.packing, s.shape) for s in region.streams)
    name = Path(region.source.file).stem + (f"_{region.name}" if region.name else "")
    return tasks.TaskProgram(
        f"{name}_tasks" if name in {*OVERLAYS, TASKS.name} else name,
        Path(region.source.file).name,
        streams,
        _tensors(readings, made),
        tuple(made),
        units,
        tuple(links),
        apart=apart(map(_together, readings), ends),
        sizes=tuple((size.name, size.largest) for size in region.sizes),
    )


def _two_ends(region: Region, stream: int, one: str, other: str) -> SourceFinding:
    declared, name = region.stream(stream)
    return SourceFinding("p2p", f"{name} ends in {one} in some runs, and in {other} in others", declared.place)


def _together(region: Region) -> Together:
    """Which beats fire apart. A program that is too large for a run without time, and whose beats data does not decide,
    is run with clocks, with all beats together. Raises `ProgramError` if that does not end either."""
    bodies, (depths, packing) = beats_of(region), stream_depths(region)
    try:
        return fire_together(bodies, depths, packing)
    except Unending:
        with suppress(TooLong, TooManyTokens):
            if not any(map(branches, bodies)) and isinstance(TimedProgram(bodies, packing).run(depths), BeatTiming):
                return Together(tuple(bodies), (), live=True)
    raise ProgramError(f"{region.source.file}: it is too large to find which of its beats fire together")


def apart(
    together: Iterable[Together], ends: Mapping[tuple[int, bool], str]
) -> tuple[tuple[str, tuple[Place, ...]], ...]:
    """Return for each unit, by name, the places (line, column) of operations that must fire alone.

    Such an operation does not wait for the others of its beat: if it did, the unit would wait for ever in one of the
    runs. together: which operations of each run fire together. ends: the name of the unit at each end of a stream, by
    the number of the stream and whether it is the end that puts."""
    found: dict[str, set[Place]] = {}
    for beat in (beat for run in together for beat in run.apart):
        for op in beat.ops:
            places = found.setdefault(ends[op.stream, op.put], set())
            places.add(op.place.start)
    return tuple((unit, tuple(sorted(places))) for unit, places in found.items())


def _parameters(declared: TaskDecl) -> tuple[tasks.TensorParameter, ...]:
    return tuple(
        tasks.TensorParameter(p.name, p.tensor.name, _axes(p.layout, len(p.tensor.type.shape)))
        for p in declared.parameters
        if p.tensor is not None
    )


def _axes(layout: str | None, rank: int) -> tuple[int, ...]:
    """Which axis of the grid cuts each axis of a tensor; -1 for none."""
    labels = (None,) * rank if layout is None else parse(layout)[0]
    return tuple(-1 if axis is None else axis for axis in labels)


def _tensors(readings: Sequence[Region], made: list[tasks.Task]) -> tuple[tasks.OffChipTensor, ...]:
    """The tensors of a region: those that tasks store into are outputs, those that they read are inputs. Each has room
    for those of all readings."""
    region = readings[-1]
    # The reader knows stores by another name for a parameter, too.
    stores = {key for context in region.contexts.values() for key in context.reading.stores}
    bound = ((task.name, p) for task in region.tasks for p in task.parameters)
    stored = {p.tensor.name for task, p in bound if p.tensor is not None and (task, p.name) in stores}
    read = set[str]()
    for task in made:
        tensor_of = {p.name: p.tensor for p in task.parameters}
        names: Counter[str] = Counter(n.name for n in nodes(task.body) if isinstance(n, Name))
        stored |= {tensor_of[n.name] for n in nodes(task.body) if isinstance(n, Store) and n.name in tensor_of}
        read |= {tensor for name, tensor in tensor_of.items() if names[name]}
    shapes = [tuple(map(max, *shapes, shapes[0])) for shapes in _shapes(readings)]
    return tuple(
        tasks.OffChipTensor(
            d.name,
            replace(d.type, shape=shape),
            d.name in read or d.name not in stored,
            d.name in stored,
            sized=d.sized,
        )
        for d, shape in zip(region.tensors, shapes, strict=True)
    )


def _shapes(readings: Sequence[Region]) -> Iterable[tuple[tuple[int, ...], ...]]:
    """The shapes of each tensor, one of each reading."""
    return zip(*([d.type.shape for d in reading.tensors] for reading in readings), strict=True)


def unit_names(instances: Sequence[str]) -> list[str]:
    """Return names of units for task instances, in order, no two the same. They have letters, digits and underscores
    only, such as `gemm_1_2` for `gemm[1,2]`. instances: the names of the instances."""
    names: list[str] = []
    taken: set[str] = set()
    for instance in instances:
        name = re.sub(r"[^A-Za-z0-9_]+", "_", instance).strip("_")
        while name in taken:
            name += "_"
        taken.add(name)
        names.append(name)
    return names


# -- sizes that each run gives -----------------------------------------------------------------------------------------


ALL = 16
"""Limit of the combinations of values that are all read."""

Key = TypeVar("Key")
Item = TypeVar("Item")


class SizeReadings(NamedTuple):
    """The readings of one region, each with other values of the sizes that a run gives. regions: one for each reading,
    the one with the largest values last; its contexts hold what all readings found together. unread: if not all values
    were read, those that were, as text; "" if all were."""

    regions: tuple[Region, ...]
    unread: str


def size_readings(region: Region) -> SizeReadings:
    """Return readings of a region with several values of its sizes. A region without sizes is returned alone and is not
    read again. Raises `Unequal` if the values change what a machine has once (streams, tasks, types, shapes of tiles),
    and if other values than those of the region bring errors."""
    if not region.sizes:
        return SizeReadings((region,), "")
    points, all_values = _points(region.sizes)
    regions = [read_again(region, region.buffered, point) for point in points]
    for one, point in zip(regions, points, strict=True):
        if errors := [found for found in one.source.findings if not found.warning]:
            raise Unequal(one, *(replace(f, notes=(*f.notes, f"with {_said(point)}")) for f in errors))
    last = regions[-1]
    for one, point in zip(regions, points, strict=True):
        _compare(one, last, point)
    shared = _unified([next(iter(one.contexts.values())).reading for one in regions])
    contexts = {name: replace(context, reading=shared) for name, context in last.contexts.items()}
    _same_shapes(regions, points)
    regions[-1] = replace(last, contexts=contexts)
    return SizeReadings(tuple(regions), "" if all_values else "; ".join(map(_said, points)))


class Unequal(Exception):
    """Runs with different values of sizes would need different machines. region: the reading with the value at fault.
    findings: what differs, or the errors that the value brings; `report` holds both."""

    def __init__(self, region: Region, *findings: SourceFinding) -> None:
        super().__init__(str(findings))
        self.report = Report(region, findings)


def _said(point: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in point.items())


def _points(sizes: Sequence[SizeDecl]) -> tuple[list[dict[str, int]], bool]:
    """The values that are read, and whether they are all. They follow from the largest values alone, so that a program
    has one machine whatever values it states."""
    names = [size.name for size in sizes]
    if prod(size.largest for size in sizes) <= ALL:
        every = product(*(range(1, size.largest + 1) for size in sizes))
        return [dict(zip(names, point, strict=True)) for point in every], True
    largest = {size.name: size.largest for size in sizes}
    few = [{**largest, size.name: value} for size in sizes for value in (1, 2, 3, size.largest // 2)]
    made = [dict.fromkeys(names, 1), *few, largest]
    inside = [point for point in made if all(1 <= point[name] <= largest[name] for name in names)]
    return [point for k, point in enumerate(inside) if point not in inside[k + 1 :]], False


def _compare(one: Region, last: Region, point: Mapping[str, int]) -> None:
    """Refuse streams and tasks that differ from those of the largest values."""
    for a, b in zip(one.streams, last.streams, strict=False):
        if a != b:
            raise Unequal(one, _differs(a.name, a.place, point))
    for x, y in zip(one.tasks, last.tasks, strict=True):
        if [p.layout for p in x.parameters] != [p.layout for p in y.parameters]:
            raise Unequal(one, _differs(f"a layout of {x.name}", x.place, point))
    if len(one.streams) != len(last.streams) or one.collectives != last.collectives:
        raise Unequal(one, _differs("the streams of collectives", None, point))


def _differs(what: str, place: Place | None, point: Mapping[str, int]) -> SourceFinding:
    message = f"{what} would be another one with {_said(point)} than with the largest values"
    return SourceFinding("unsupported", message, place, ("one machine serves all runs",))


def _same_shapes(regions: Sequence[Region], points: Sequence[Mapping[str, int]]) -> None:
    """Refuse tiles whose shapes follow from the values of sizes."""
    found: dict[tuple[str, Place], set[tuple[int, ...]]] = {}
    for region, point in zip(reversed(regions), reversed(points), strict=True):
        reading = next(iter(region.contexts.values())).reading
        for key, shapes in reading.evaluated.items():
            if shapes and found.setdefault(key, shapes) != shapes:
                one, other = (", ".join(map(str, sorted(of))) for of in (shapes, found[key]))
                message = f"{key[0]}: a tile of shape {one} with {_said(point)}, and {other} with other values"
                note = "a size that each run gives decides no shape of a tile: take parts of a fixed size in a loop"
                raise Unequal(region, SourceFinding("type", message, key[1], (note,)))


def _unified(readings: Sequence[FileReading]) -> FileReading:
    """What several readings of one file found, as one."""
    *others, last = readings
    shapes = dict(last.shapes)
    for reading in others:
        for at, known in reading.shapes.items():
            shapes[at] = known if shapes.get(at, known) == known else None
    stores: dict[tuple[str, str], dict[tuple[int, ...], bool]] = {}
    for reading in readings:
        for parameter, alike in reading.stores.items():
            of_task = stores.setdefault(parameter, {})
            of_task.update((tid, of_task.get(tid, True) and equal) for tid, equal in alike.items())
    return replace(
        last,
        shapes=shapes,
        stores=stores,
        calls={},
        divided=set().union(*(reading.divided for reading in readings)),
        unlike=set().union(*(reading.unlike for reading in readings)),
        renamed=set().union(*(reading.renamed for reading in readings)),
        costs=_unions(reading.costs for reading in readings),
        choices=_unions(reading.choices for reading in readings),
        types=_unions(reading.types for reading in readings),
        evaluated=_unions(reading.evaluated for reading in readings),
    )


def _unions(found: Iterable[Mapping[Key, set[Item]]]) -> dict[Key, set[Item]]:
    made: dict[Key, set[Item]] = {}
    for of_reading in found:
        for key, items in of_reading.items():
            made.setdefault(key, set()).update(items)
    return made
