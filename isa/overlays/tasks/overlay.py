"""Task machines: overlays that are made of a task program, a unit for each list of task instances.

The text of an overlay file holds the whole machine, as data:

```toml
name = "pair"
overlay = "tasks"
file = "pair.py"                          # of the places in the trees
clock_hz = 3e8
arrays.s = [["i32"], 4, 1, []]            # element type, depth, packing, shape of the array
tensors.x = [["f32", 64], true, false]    # element type with shape; whether it is an input, an output; of a machine
                                          # for a device, its memory channels: [["f32", 64], true, false, [4, 5]];
                                          # of a machine with sizes, its axes with them:
                                          # [["f32", 64], true, false, [], [[0, ["Name", "rows"]]]]
sizes.rows = 64                           # the largest value of a size that each run gives
tasks.a = [[1], [["p", "x", [-1]]], [3, 1], [...]]  # grid, parameters, place, tree; where they are stated, rates of
                                          # kernels: [..., [["matmul", 128]]]
units.a = [["a", [0]]]                    # the task instances that it runs, in order
links = [["s", [], "a", "b", 4, ""]]      # stream and index, source, sink, depth, name of a shared stream
```
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import inf, prod
from typing import Any

from ....base.element_types import ElementType
from ....base.errors import ProgramError
from ....base.place import Place
from ....machine.description import Rate, Stream, UnitSpec
from ....machine.token_type import TokenType
from ...layout import Layout
from ...overlay import OpList, Overlay
from ...program import Buffer, Program, Role, SourceLine
from .codec import encoded, expression, parts_of, sizes_of, statements, table_of, toml, toml_key
from .kernels import KERNELS
from .program import Link, OffChipTensor, Shot, StreamArray, Task, TaskProgram, TensorParameter
from .tree import Cycles, External, Get, Kernel, Name, Put, Statement, nodes
from .unit import BANK, CYCLE, Prepared, RunShot, TaskUnit, TensorPart, shot_record, transfers
from .values import DTYPES

NAME = "tasks"
EXTERNAL = "external"
"""The key of functions of the host that tasks call. No file holds such a machine."""
SEVERAL = "node"
"""The kind of units that run several tasks."""
LONGEST = 1 << 16
"""Limit of the task instances that one unit runs."""


def machine_of(program: TaskProgram, part: type[TensorPart] | None = None) -> Overlay:
    """Return the machine that runs a task program, with a unit for each entry of `program.units`. part: the class by
    which its task instances access tensors; None for `TensorPart`."""
    prepared = Prepared(program, part)
    behaviour = type("TaskUnit", (TaskUnit,), {"prepared": prepared})
    bank = BANK if program.tensors else None
    kinds = {name: (kind, index) for name, kind, index in _kinds(program)}
    units = tuple(UnitSpec(name, kind, index, behaviour, bank=bank) for name, (kind, index) in kinds.items())
    taken: dict[str, set[str]] = {}
    for name, shots in program.units:
        taken.setdefault(kinds[name][0], set()).update(*(_sizes_of_task(prepared, shot.task) for shot in shots))
    records = {kind: shot_record(tuple(n for n, _ in program.sizes if n in found)) for kind, found in taken.items()}
    streams = {stream.name: stream for link in program.links for stream in _streams(link, prepared)}
    return dataclasses.replace(
        TASKS,
        name=program.name,
        units=units,
        streams=tuple(streams.values()),
        clock_hz=program.clock_hz,
        preloaded={kind: OpList(record, LONGEST * record.WORDS) for kind, record in records.items()},
        legal=_legal(program),
        title=_title(program),
        banks={BANK: 4 * prepared.words} if program.tensors else {},
        base=NAME,
        changes=tuple(_lines(program)),
    )


def _sizes_of_task(prepared: Prepared, task: str) -> set[str]:
    """The names that a task, and the shapes of its tensors, read; sizes are among them. An unknown task has none."""
    if task not in prepared.tasks:
        return set()
    made = prepared.tasks[task]
    tensors = [prepared.tensors[p.tensor] for p in made.parameters if p.tensor in prepared.tensors]
    return {n.name for n in nodes((made.body, *(size for x in tensors for _, size in x.sized))) if isinstance(n, Name)}


def _legal(program: TaskProgram) -> Callable[[UnitSpec, Any], Iterator[str]]:
    """Makes the check that a unit runs task instances of its own."""
    own: dict[str, range] = {}
    number = 0
    for name, shots in program.units:
        own[name] = range(number, number + len(shots))
        number += len(shots)
    largest = dict(program.sizes)

    def legal(unit: UnitSpec, uop: RunShot) -> Iterator[str]:
        for name, most in largest.items():
            if not 1 <= getattr(uop, name, 1) <= most:
                yield f"has {name} = {getattr(uop, name)}, which is not from 1 to {most}"
        if uop.shot not in own[unit.name]:
            yield f"runs a task instance of another unit: its own are {own[unit.name].start}..{own[unit.name].stop - 1}"

    return legal


def _title(program: TaskProgram) -> Callable[[RunShot], str]:
    """Makes what pictures call a uOP: the task instance that it runs."""
    names = [shot.name for _, shots in program.units for shot in shots]
    return lambda uop: names[uop.shot] if uop.shot < len(names) else ""


def _kinds(program: TaskProgram) -> Iterator[tuple[str, str, int]]:
    """The name of each unit, its kind, and its number among those: units that run one task are of a kind."""
    counts: Counter[str] = Counter()
    names = {name for name, _ in program.units}
    for name, shots in program.units:
        tasks = {shot.task for shot in shots}
        kind = re.sub(r"\W", "_", tasks.pop()) if len(tasks) == 1 else SEVERAL
        if kind in names and kind != name:
            kind += "_"  # a kind must not be called as a unit of another kind is
        yield name, kind, counts[kind]
        counts[kind] += 1


def program_of(overlay: Overlay) -> TaskProgram:
    """Return the task program of an overlay that `machine_of` made. The overlay must have at least one unit."""
    behaviour = overlay.units[0].behaviour
    assert issubclass(behaviour, TaskUnit)
    return behaviour.prepared.program


def without_rates(program: TaskProgram) -> list[str]:
    """Return the names, sorted, of the library kernels on tiles whose time no task states. They are in tasks that state
    neither rates nor cycles, and take one beat each, whatever the size of their tiles."""
    names = set[str]()
    for task in program.tasks:
        found = list(nodes(task.body))
        if not task.rates and not any(isinstance(node, Cycles) for node in found):
            names |= {node.kernel for node in found if isinstance(node, Kernel)}
    return sorted(name for name in names & KERNELS.keys() if KERNELS[name].rule in ("matmul", "rows", "reduce"))


def shots_of(
    program: TaskProgram, overlay: Overlay, sizes: Mapping[str, int] | None = None
) -> dict[str, tuple[RunShot, ...]]:
    """Return the uOPs of each unit, by its name: one for each task instance that it runs, in order. They are numbered
    over all units.

    overlay: the machine of the program. sizes: values of the sizes that each run gives, by name; others, and all with
    None, have their largest value. Raises `ProgramError` for unknown sizes, for values that a size does not have, and
    for a unit that runs more instances than `LONGEST`.
    """
    values = checked_sizes(program, sizes or {})
    lists: dict[str, tuple[RunShot, ...]] = {}
    number = 0
    for name, shots in program.units:
        if len(shots) > LONGEST:
            raise ProgramError(
                f"{name} runs {len(shots)} task instances, at most {LONGEST}: map the tasks to more units"
            )
        record = overlay.preloaded[overlay.by_unit[name].kind].record
        assert issubclass(record, RunShot)
        own = {f.name: values[f.name] for f in record.FIELDS if f.name != "shot"}
        lists[name] = tuple(record(shot=number + k, **own) for k in range(len(shots)))
        number += len(shots)
    return lists


def checked_sizes(program: TaskProgram, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the value of each size of a program: the given one, or its largest value. Raises `ProgramError` for
    unknown sizes, and for values that a size does not have.
    """
    largest = dict(program.sizes)
    for name, value in sizes.items():
        if name not in largest:
            known = f"its sizes are {', '.join(largest)}" if largest else "it has none that each run gives"
            raise ProgramError(f"{program.name} has no size {name}; {known}")
        if not 1 <= value <= largest[name]:
            raise ProgramError(f"{name} = {value} is not from 1 to {largest[name]}, as {program.name} states")
    return {**largest, **sizes}


def with_sizes(program: Program, sizes: Mapping[str, int]) -> Program:
    """Return a program of a task machine with other values of sizes that each run gives, by name. Its machine is the
    same. Raises `ProgramError` for unknown sizes, and for values that a size does not have.
    """
    if not sizes:
        return program
    values = {**size_values(program), **sizes}
    shots = shots_of(program_of(program.overlay), program.overlay, values)
    return dataclasses.replace(program, preloaded=shots)


def size_values(program: Program) -> dict[str, int]:
    """Return the values of the sizes that a program of a task machine gives to its units, by name. Raises
    `ProgramError` for uOPs with different values of a size, and for values that a size does not have.
    """
    found: dict[str, int] = {}
    for unit, shots in program.preloaded.items():
        for shot in shots:
            for f in shot.FIELDS:
                value = getattr(shot, f.name)
                if f.name != "shot" and found.setdefault(f.name, value) != value:
                    raise ProgramError(f"{unit} runs with {f.name} = {value}, others with {found[f.name]}")
    return checked_sizes(program_of(program.overlay), found)


def runnable(program: TaskProgram, sizes: Mapping[str, int] | None = None) -> Program:
    """Return the program of a task machine: the task instances that each unit runs, and its tensors as buffers, whose
    sizes are in 32-bit words. sizes: as for `shots_of`, with the same errors.
    """
    overlay, prepared = machine_of(program), Prepared(program)
    lists = shots_of(program, overlay, sizes)
    places = {
        name: tuple(SourceLine(program.file, prepared.tasks[shot.task].place.line) for shot in shots)
        for name, shots in program.units
    }
    buffers = tuple(
        Buffer(
            t.name,
            BANK,
            prepared.offsets[t.name],
            (t.words,),
            Layout.LINEAR,
            Role.OUTPUT if t.output else Role.INPUT,
        )
        for t in program.tensors
    )
    return Program(overlay, (), lists, buffers, preloaded_places=places)


def _streams(link: Link, prepared: Prepared) -> Iterator[Stream]:
    """The streams of the machine for a link: with transfers of several elements, one more that is never full says how
    many of them are complete."""
    array = prepared.streams[link.stream]
    yield Stream(link.source, link.sink, link.depth, link.label, _token(array.type))
    if array.packing > 1:
        yield Stream(link.source, link.sink, link.depth // array.packing + 1, transfers(link.label))


def _token(kind: ElementType) -> TokenType:
    return TokenType(kind.dtype, prod(kind.shape[:-1]), kind.shape[-1] if kind.shape else 1)


# -- as text ----------------------------------------------------------------------------------------------------------


def _lines(program: TaskProgram) -> Iterator[str]:
    """The lines of the text that makes the machine, but for its name and base."""
    yield f"file = {toml(program.file)}"
    yield f"clock_hz = {toml(program.clock_hz)}"
    yield f"seed = {program.seed}"
    if program.device:
        yield f"device = {toml(program.device)}"
    for name, most in program.sizes:
        yield f"sizes.{toml_key(name)} = {most}"
    for name, value in program.constants:
        yield f"constants.{toml_key(name)} = {toml(value)}"
    for s in program.streams:
        yield f"arrays.{toml_key(s.name)} = {toml([encoded(s.type), s.depth, s.packing, s.shape])}"
    for t in program.tensors:
        channels = [t.channels] if t.channels or t.sized else []
        sized = [[[axis, encoded(size)] for axis, size in t.sized]] if t.sized else []
        yield f"tensors.{toml_key(t.name)} = {toml([encoded(t.type), t.input, t.output, *channels, *sized])}"
    externals = sorted({node.name for task in program.tasks for node in nodes(task.body) if isinstance(node, External)})
    if externals:
        yield f"{EXTERNAL} = {toml(externals)}"
        return
    for task in program.tasks:
        parameters = [[p.name, p.tensor, p.axes] for p in task.parameters]
        row = [task.mapping, parameters, encoded(task.place), encoded(task.body)]
        yield f"tasks.{toml_key(task.name)} = {toml([*row, *([task.rates] if task.rates else [])])}"
    for unit, shots in program.units:
        yield f"units.{toml_key(unit)} = {toml([[shot.task, shot.tid] for shot in shots])}"
    yield f"links = {toml([[k.stream, k.index, k.source, k.sink, k.depth, k.shared] for k in program.links])}"
    for unit, places in program.apart:
        yield f"apart.{toml_key(unit)} = {toml([encoded(place) for place in places])}"


def _made(given: Mapping[str, Any], name: str) -> Overlay:
    """Return the machine that a parsed text describes. Raises `ProgramError` for what is none."""
    program = _parsed(given, name)
    _check(program)
    return machine_of(program)


def _parsed(given: Mapping[str, Any], name: str) -> TaskProgram:
    if EXTERNAL in given:
        raise ProgramError(
            f"its tasks call {', '.join(map(str, given[EXTERNAL]))}: no file holds functions of the host"
        )
    known = {f.name for f in dataclasses.fields(TaskProgram)} - {"name", "streams"} | {"arrays"}
    for key in given:
        if key not in known and key not in ("name", "overlay"):
            raise ProgramError(f"a task machine has no {key!r}, only {', '.join(sorted(known))}")
    sizes = tuple((key, _largest(key, value)) for key, value in table_of(given, "sizes"))
    constants = tuple((key, _constant(key, value)) for key, value in table_of(given, "constants"))
    arrays = []
    for key, value in table_of(given, "arrays"):
        kind, depth, packing, shape = parts_of(f"arrays.{key}", value, list, int, int, list)
        arrays.append(StreamArray(key, _type(f"arrays.{key}", kind), depth, packing, sizes_of(f"arrays.{key}", shape)))
    tensors = []
    for key, value in table_of(given, "tensors"):
        what = f"tensors.{key}"
        more = len(value) - 3 if isinstance(value, list) and len(value) in (4, 5) else 0
        kind, reads, writes, *rest = parts_of(what, value, list, bool, bool, *[list] * more)
        numbers = sizes_of(what, rest[0], 0) if rest else ()
        axes = [parts_of(what, axis, int, list) for axis in rest[1]] if len(rest) > 1 else []
        sized = tuple((axis, expression(size, what)) for axis, size in axes)
        tensors.append(OffChipTensor(key, _type(what, kind), reads, writes, numbers, sized))
    tasks = [_task(key, value) for key, value in table_of(given, "tasks")]
    units = [
        (key, tuple(_shot(f"units.{key}", shot) for shot in value)) for key, value in table_of(given, "units", list)
    ]
    links = []
    listed = given.get("links", [])
    if not isinstance(listed, list):
        raise ProgramError("links is no list")
    for value in listed:
        stream, index, source, sink, depth, shared = parts_of("links", value, str, list, str, str, int, str)
        links.append(Link(stream, sizes_of("links", index, 0), source, sink, depth, shared))
    apart = [
        (key, tuple(Place(*parts_of(f"apart.{key}", place, int, int)) for place in value))
        for key, value in table_of(given, "apart", list)
    ]
    file, clock, seed = given.get("file", name), given.get("clock_hz", 300e6), given.get("seed", 0)
    device = given.get("device", "")
    texts = isinstance(file, str) and isinstance(device, str)
    if not texts or type(seed) is not int or seed < 0 or not isinstance(clock, int | float):
        raise ProgramError("file and device are texts, clock_hz a number, seed a whole number")
    if not 1 <= clock <= 1e12:
        raise ProgramError(f"clock_hz = {clock}: must be between 1 and 1e12")
    return TaskProgram(
        name,
        file,
        tuple(arrays),
        tuple(tensors),
        tuple(tasks),
        tuple(units),
        tuple(links),
        constants,
        tuple(apart),
        float(clock),
        seed,
        device,
        sizes,
    )


def _type(what: str, value: list[Any]) -> ElementType:
    if not value or not isinstance(value[0], str) or value[0] not in DTYPES:
        raise ProgramError(f"{what}: {str(value)[:40]} is no element type")
    return ElementType(value[0], sizes_of(what, value[1:]))


def _largest(name: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value < 1 << 32 or not name.isidentifier() or name == "shot":
        raise ProgramError(f"sizes.{name} = {str(value)[:40]}: a name, and its largest value from 1 on")
    return value


def _constant(name: str, value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(part, bool | int | float | str) for part in value):
        return tuple(value)
    if not isinstance(value, bool | int | float | str):
        raise ProgramError(f"constants.{name} is no number, Boolean, text, or list of these")
    return value


def _task(name: str, value: Any) -> Task:
    what = f"tasks.{name}"
    rated = isinstance(value, list) and len(value) == 5
    mapping, parameters, place, body, *rates = parts_of(what, value, *[list] * (4 + rated))
    given = [parts_of(what, rate, str, float) for rate in (rates[0] if rates else [])]
    if any(not 0 < rate < inf for _, rate in given):
        raise ProgramError(f"{what}: a rate is work in a cycle, larger than 0")
    rows = [parts_of(what, p, str, str, list) for p in parameters]
    made = tuple(TensorParameter(p, tensor, sizes_of(what, axes, -1)) for p, tensor, axes in rows)
    at = Place(*parts_of(what, place, int, int))
    found = tuple((kernel, rate) for kernel, rate in given)
    return Task(name, sizes_of(what, mapping), made, statements(body, what), at, found)


def _shot(what: str, value: Any) -> Shot:
    task, tid = parts_of(what, value, str, list)
    return Shot(task, sizes_of(what, tid, 0))


def _check(program: TaskProgram) -> None:
    """Refuse a program whose parts do not fit to each other."""
    prepared = Prepared(program)
    units = dict(program.units)
    if not units:
        raise ProgramError("the machine has no units")
    for s in program.streams:
        if s.depth < 1 or s.packing < 1 or s.depth % s.packing:
            raise ProgramError(f"arrays.{s.name}: depth {s.depth} is no multiple of transfers of {s.packing}")
    for t in program.tensors:
        if t.channels and not program.device:
            raise ProgramError(f"tensors.{t.name}: channels are those of a device, and no device is named")
        names = {n.name for _, size in t.sized for n in nodes(size) if isinstance(n, Name)}
        if any(not 0 <= axis < len(t.type.shape) for axis, _ in t.sized) or not names <= dict(program.sizes).keys():
            raise ProgramError(f"tensors.{t.name}: axes with sizes, which are expressions of names under sizes")
        if len(set(t.channels)) < len(t.channels):
            raise ProgramError(f"tensors.{t.name}: channels {list(t.channels)}: one is listed twice")
    for task in program.tasks:
        for p in task.parameters:
            if p.tensor not in prepared.tensors:
                raise ProgramError(f"tasks.{task.name}: there is no tensor {p.tensor}")
            shape = prepared.tensors[p.tensor].type.shape
            if len(p.axes) != len(shape) or any(a >= len(task.mapping) for a in p.axes):
                raise ProgramError(f"tasks.{task.name}: {p.name} has {len(shape)} axes, cut by axes of the grid")
            sized = dict(prepared.tensors[p.tensor].sized)
            if any(a >= 0 and axis in sized for axis, a in enumerate(p.axes)):
                raise ProgramError(f"tasks.{task.name}: {p.name} is cut along an axis whose size each run gives")
            if any(a >= 0 and size % task.mapping[a] for size, a in zip(shape, p.axes, strict=True)):
                raise ProgramError(f"tasks.{task.name}: the axes of {p.name} are not cut into equal parts")
        _check_streams(task.name, task.body, prepared)
    for unit, shots in program.units:
        for shot in shots:
            known = prepared.tasks.get(shot.task)
            if known is None:
                raise ProgramError(f"units.{unit}: there is no task {shot.task}")
            if len(shot.tid) != len(known.mapping) or any(
                i >= n for i, n in zip(shot.tid, known.mapping, strict=False)
            ):
                raise ProgramError(f"units.{unit}: {shot.name} is outside the grid of {shot.task}")
    for link in program.links:
        array = prepared.streams.get(link.stream)
        if array is None:
            raise ProgramError(f"links: there is no stream {link.stream}")
        if len(link.index) != len(array.shape) or any(i >= n for i, n in zip(link.index, array.shape, strict=False)):
            raise ProgramError(f"links: {link.label} is outside {link.stream}")
        if link.source not in units or link.sink not in units:
            raise ProgramError(f"links: {link.element} goes from {link.source} to {link.sink}: units are expected")
        if link.depth < array.packing or link.depth % array.packing:
            raise ProgramError(f"links: {link.label}: depth {link.depth} is no multiple of transfers")
    together: dict[str, set[tuple[str, str, int, int]]] = {}
    for link in program.links:
        packing = prepared.streams[link.stream].packing
        together.setdefault(link.label, set()).add((link.source, link.sink, link.depth, packing))
    for label, kinds in together.items():
        if len(kinds) > 1:
            raise ProgramError(f"links: elements that share {label} have the same ends, depth and transfers")
    if len(prepared.links) < len(program.links):
        raise ProgramError("links: a stream is listed twice")


def _check_streams(task: str, body: tuple[Statement, ...], prepared: Prepared) -> None:
    for node in nodes(body):
        if isinstance(node, Get | Put) and node.stream not in prepared.streams:
            raise ProgramError(f"tasks.{task}: there is no stream {node.stream}")


TASKS = Overlay(
    name=NAME,
    units=(),
    streams=(),
    clock_hz=300e6,
    formats=(),
    rates={CYCLE: Rate(1, "PL cycles", "one beat a cycle, or as many as the task states", "beats")},
    terminators=(),
    layout=Layout.LINEAR,
    whole=_made,
)
"""The overlay without units that task machines are made of."""
