"""Reads a stream program: Python's syntax tree of a file to streams, tasks, and the operations of each instance.

Nothing of the file is executed. What is not understood becomes a finding with its place, never a traceback.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from difflib import get_close_matches
from importlib.util import decode_source
from itertools import product
from math import prod
from pathlib import Path

from ..base.place import Place
from .datapath import KernelVariant
from .declarations import INSTANCES, Declared, Scope, names_below
from .double_buffer import double_buffered
from .elaborate import Elaborator, EvaluationRecorder
from .expressions import STEPS, FileReading
from .inference import infer_layouts
from .layouts import parse as parse_layout
from .source import Refusal, Source
from .syntax.nodes import Block
from .syntax.parser import UnreadableError, parsed
from .tree import Body, Instance, Region
from .values import Value

Rates = Mapping[str, float]
"""Work that a library kernel does in a clock cycle, by its name: multiply-adds of `matmul`, elements of others. Kernels
that are not named take no time of their own."""
NO_RATES: Rates = {}
STATED: Mapping[str, int] = {}
"""Values of sizes that each run gives: those that the file states."""
LETTERS = 1 << 19
"""Limit of characters of a file."""


def read(
    text: str,
    file: str = "<program>",
    region: str | None = None,
    timed: bool = False,
    rates: Rates = NO_RATES,
    float_add: int = 1,
    variants: tuple[KernelVariant, ...] = (),
    sizes: Mapping[str, int] = STATED,
) -> Region:
    """Return the region that the text of a program declares.

    file: the name of the file in findings. region: the name of a function with `@region()`, which is read with its
    defaults; None for the file itself, or, if the file has no tasks and a single region, for that region. timed:
    whether the operations of instances are also given in beats, with cycles. rates: work of library kernels in a clock
    cycle, as for `Datapath`. float_add: clock cycles of an addition of floats on the device. variants: kernel variants
    that may be called. sizes: the values of sizes that a run gives, by name; others have the value in the file.
    Mistakes are in `source.findings` of the result; nothing is raised for them."""
    return read_source(Source(text, file), region, timed, rates, float_add, variants, sizes=sizes)


def read_file(
    path: Path,
    region: str | None = None,
    timed: bool = False,
    rates: Rates = NO_RATES,
    float_add: int = 1,
    variants: tuple[KernelVariant, ...] = (),
    sizes: Mapping[str, int] = STATED,
) -> Region:
    """Return the region that a program in a file declares; a comment may state the encoding of the file, as in Python.
    region, timed, rates, float_add, variants, sizes: as for `read`. Raises `OSError` if the file cannot be read."""
    with path.open("rb") as file:
        data = file.read(4 * LETTERS + 1)
    try:
        source = Source(decode_source(data), str(path))
        return read_source(source, region, timed, rates, float_add, variants, sizes=sizes)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        what, place = _undecodable(data, error)
    source = Source(data.decode(errors="replace"), str(path))
    source.add("syntax", f"this is not Python: {what}", place)
    return Region(source, (), (), (), (), region or "")


def _undecodable(data: bytes, error: Exception) -> tuple[str, Place]:
    """Say why a file is no text, and where."""
    if not isinstance(error, UnicodeDecodeError):
        try:
            data.decode()
            return str(error), Place(1, 1, 2)  # a wrong declaration of the encoding
        except UnicodeDecodeError as other:
            error = other
    start = data.rfind(b"\n", 0, error.start) + 1
    column = len(data[start : error.start].decode(errors="replace"))
    line = data.count(b"\n", 0, error.start) + 1
    return f"byte 0x{data[error.start]:02x} is not {error.encoding}", Place(line, column + 1, column + 2)


def read_source(
    source: Source,
    region: str | None = None,
    timed: bool = False,
    rates: Rates = NO_RATES,
    float_add: int = 1,
    variants: tuple[KernelVariant, ...] = (),
    buffered: Collection[str] = (),
    sizes: Mapping[str, int] = STATED,
) -> Region:
    """Return the region of a program whose text, or tree, is given. buffered: the names of tasks that are double
    buffered although they do not ask for it. region, timed, rates, float_add, variants, sizes: as for `read`. Mistakes
    become findings of `source`."""
    tree = parse(source)
    if tree is None:
        return Region(source, (), (), (), (), region or "")
    reading = FileReading(source, timed=timed, rates=rates, float_add=float_add, variants=variants)
    declared = Declared(reading, given=sizes)
    region = declare(declared, tree, region)
    if any(parameter.is_open for task, _ in declared.tasks for parameter in task.parameters):
        infer_layouts(declared)
    _refuse_sizes(declared, buffered)
    tasks = [(task, scope.context) for task, scope in declared.tasks]
    if buffered or any(task.double_buffer for task, _ in tasks):
        tasks = double_buffered(declared, buffered)
    elaborator = EvaluationRecorder if declared.sizes else Elaborator
    instances: list[Instance] = []
    for task, context in tasks:
        if declared.reading.steps > STEPS:
            break
        if len(instances) + prod(task.mapping) > INSTANCES:
            message = f"{task.name} brings the task instances to more than {INSTANCES}"
            source.add("limit", message, task.place)
            break
        alone = prod(task.mapping) == 1
        for tid in product(*map(range, task.mapping)):
            name = task.name if alone else f"{task.name}[{','.join(map(str, tid))}]"
            instances.append(elaborator(context, task, name, tid).instance())
            if declared.reading.steps > STEPS:
                break
    collectives = tuple(declared.reading.collectives.values())
    return Region(
        source,
        (*declared.streams, *(stream for c in collectives for stream in c.arrays)),
        tuple(task for task, _ in tasks),
        tuple(instances),
        tuple(declared.tensors),
        region or "",
        {task.name: context for task, context in tasks},
        tuple(declared.reading.by_data),
        collectives,
        rates,
        float_add,
        timed,
        variants,
        frozenset(buffered),
        tuple(declared.sizes),
    )


def _refuse_sizes(declared: Declared, buffered: Collection[str]) -> None:
    """Add findings for values of sizes that the file does not declare, and for tasks that no machine runs with all
    values of the sizes that each run gives. buffered: as for `read_source`."""
    source, known = declared.reading.source, {size.name for size in declared.sizes}
    for name in sorted(declared.given.keys() - known):
        note = f"sizes: {', '.join(sorted(known))}" if known else "a size is declared at the top, as n: Size[32] = 8"
        source.add("unsupported", f"the file has no size {name} that each run gives", None, note)
    for task, scope in declared.tasks:
        sized = [(p, p.tensor.sized) for p in task.parameters if p.tensor is not None and p.tensor.sized]
        for p, axes in sized:
            with suppress(Refusal):  # the reading of the task tells what is wrong with a layout
                labels = (None,) if p.layout is None else parse_layout(p.layout)[0]
                if any(label is not None for axis, _ in axes for label in labels[axis : axis + 1]):
                    message = f"{p.layout} cuts an axis of {p.name} whose size each run gives"
                    source.add("layout", message, p.place, subject=task.name)
        uses = sized or task.body.facts.names & scope.sized.keys()
        if uses and (task.double_buffer or task.name in buffered):
            message = f"{task.name} has double buffers, and sizes that each run gives"
            source.add("unsupported", message, task.place, subject=task.name)


def beats_of(region: Region) -> list[Body]:
    """Return the bodies of a region's instances in beats, in the order of the instances. A region that was read without
    beats is read again."""
    return [instance.beats for instance in (region if region.timed else read_again(region, region.buffered)).instances]


def read_again(region: Region, buffered: Collection[str], sizes: Mapping[str, int] | None = None) -> Region:
    """Return a region that is read once more, with beats. buffered: as for `read_source`. sizes: the values of sizes
    that a run gives, by name; None for those that the region has."""
    values = {size.name: size.value for size in region.sizes} if sizes is None else sizes
    source = Source(region.source.text, region.source.file, tree=region.source.tree)
    name, rates, variants = region.name or None, region.rates, region.variants
    return read_source(source, name, True, rates, region.float_add, variants, buffered, values)


def declare(
    declared: Declared, tree: Block, region: str | None, constants: Mapping[str, Value] | None = None
) -> str | None:
    """Add to `declared` what a file, or one of its regions, declares; return the name of the region, None for the file
    itself. tree: the statements of the file. region: the name of a region; None for the file, or, if it has no tasks,
    for its only region that no other one calls. constants: the values of names that are known before; None for none.
    Mistakes, and a region that does not exist, become findings of the source."""
    root = Scope(declared, wanted=None if region is None else names_below(tree, region))
    root.constants.update(constants or {})
    root.read(tree)
    if region is None and not declared.tasks and not declared.regions and not root.source.findings:
        region = _only_region(root)
    if region is not None:
        _alone(root, region)
    declared.reading.streams = declared.size
    return region


def parse(source: Source) -> Block | None:
    """Return the statements of a file, which is parsed once. None, and a finding, for a text that is no Python or has
    more than `LETTERS` characters."""
    if len(source.text) > LETTERS:
        source.add("limit", f"the file has more than {LETTERS} characters", None)
    elif source.tree is None:
        try:
            source.tree = parsed(source.text)
        except UnreadableError as error:
            source.add("syntax", str(error), error.place)
    return source.tree


def _only_region(root: Scope) -> str | None:
    """Return the name of the region that a file without tasks is about: the only one that no other calls."""
    called = {name for region in root.regions.values() for name in region.body.facts.names}
    free = [name for name in root.regions if name not in called]
    if len(free) > 1:
        place = root.regions[free[0]].body.place
        message = "the file has no tasks at its top, and several regions; name one of them"
        root.source.add("unsupported", message, place, *(f"{root.source.file}:{name}" for name in free[:8]))
        return None
    return next(iter([*free, *root.regions]), None)


def _alone(root: Scope, region: str) -> None:
    """Read one region of a file, with its defaults."""
    decl = root.regions.get(region)
    if decl is not None:
        root.guard(lambda _: root.call(decl, region, None), decl.body)
        return
    close = get_close_matches(region, root.regions, n=1, cutoff=0.6)
    notes = [f"did you mean {name}?" for name in close] or [f"regions: {', '.join(root.regions) or 'none'}"[:200]]
    root.source.add(
        "unsupported",
        f"the file has no region {region}" if region else "a region is named after the colon",
        None,
        *notes,
    )
