"""Finds the labels that stand as ? in the layouts of tasks' parameters (layouts: Dato, section 3.4).

Labels are tried, and the reader says which of them fit: so a written label goes through the operations of its task, and
through a tensor to the tasks that share it. Of the layouts that fit, those with the fewest bytes of re-layouts are
taken: what collectives move, and what an instance reads of a tensor that the instance at the same point of another
task's grid has not stored. Of several, those are taken with which the fewest tensors are read in another layout than
they are stored in, then those that cut the fewest axes, then the first ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from . import layouts
from .declarations import Declared, Scope
from .elaborate import Elaborator
from .expressions import FileReading
from .source import Refusal, Relayout, Source
from .tree import Collective, Instance, TaskDecl, TaskParameter, bytes_of, total

STEPS = 1_000_000
"""Limit of statements and expressions that are read, and of choices that are compared, to find the labels of a file."""

MISFITS = ("layout", "pending", "type", "index")
"""Codes of findings of a task whose layouts do not fit."""

Cost = tuple[int, int, int]
"""Bytes of re-layouts, tensors whose layout changes between tasks, and axes that are cut in place of ?."""


@dataclass(frozen=True)
class FittingLayouts:
    """Layouts of the parameters of a task that its statements allow. task: the task with these layouts, without any ?.
    size: bytes that its collectives move. cuts: how many axes of tensors are cut where the program has a ?. stores: the
    parameters into which the task stores. by_layout: whether other labels might change its result
    (`TileExpressions.by_layout`)."""

    task: TaskDecl
    size: int
    cuts: int
    stores: frozenset[str]
    by_layout: bool

    def relayouts(self, reader: FittingLayouts) -> list[tuple[TaskParameter, Relayout]]:
        """Return what moves between this task and `reader`: for each tensor that this task stores and `reader` reads in
        another layout, the parameter of `reader`, and the change of layout with its bytes. Tasks with grids of
        different sizes are not compared."""
        found = []
        for p, q in product(self.task.parameters, reader.task.parameters):
            if p.tensor is None or p.tensor != q.tensor or self.task.mapping != reader.task.mapping:
                continue
            if p.name not in self.stores or q.name in reader.stores:
                continue
            shape = p.tensor.type.shape
            before, after = _labels(p), _labels(q)
            count = layouts.moved(shape, before, after, self.task.mapping)
            if before != after:
                size = bytes_of(replace(p.tensor.type, shape=(count,)))
                how = f"memory, from {self.task.name} to {reader.task.name}"
                texts = layouts.shown(before), layouts.shown(after)
                found.append((q, Relayout(p.tensor.name, *texts, how, size)))
        return found


def infer_layouts(declared: Declared) -> None:
    """Replace every ? in the layouts of a region's tasks by a label; `declared.tasks` is changed. Each layout that is
    found becomes a note of the source. Where no labels fit, a finding is added, and each ? becomes R."""
    source, found = declared.reading.source, dict[int, FittingLayouts]()
    declared.tasks[:] = [(_without_faults(task, source), scope) for task, scope in declared.tasks]
    asking = [k for k, (task, _) in enumerate(declared.tasks) if any(p.is_open for p in task.parameters)]
    if not asking:
        return
    if not source.findings:
        try:
            found = _Search(declared, asking).found()
        except Refusal as r:
            source.add(r.code, r.message, r.place, *r.notes)
    for k in asking:
        task, scope = declared.tasks[k]
        whole = tuple(replace(p, layout=p.layout and p.layout.replace(layouts.OPEN, "R")) for p in task.parameters)
        declared.tasks[k] = found[k].task if k in found else replace(task, parameters=whole), scope


def _without_faults(task: TaskDecl, source: Source) -> TaskDecl:
    """A task without the layouts with ? that no tensor of its parameters has; each is a finding."""
    parameters = []
    for p in task.parameters:
        if p.layout is not None and p.type is not None and p.is_open:
            try:
                layouts.refuse_open(p.layout, p.type.shape, p.name)
            except Refusal as r:
                source.add(r.code, r.message, p.place, *r.notes, subject=task.name)
                p = replace(p, layout=None, type=None)
        parameters.append(p)
    return replace(task, parameters=tuple(parameters))


def _labels(parameter: TaskParameter) -> layouts.Labels:
    rank = 0 if parameter.type is None else len(parameter.type.shape)
    return (None,) * rank if parameter.layout is None else layouts.parse(parameter.layout)[0]


class _Search:
    """A search in one file. asking: numbers of the tasks with ?. steps: done so far. best: its cost, and the choice for
    each of these tasks."""

    def __init__(self, declared: Declared, asking: Sequence[int]) -> None:
        self.declared, self.asking = declared, asking
        self.steps = 0
        self.best: tuple[Cost, tuple[FittingLayouts, ...]] | None = None

    def found(self) -> dict[int, FittingLayouts]:
        """Return the layouts of the tasks with ?, by the number of the task; after a finding, some that fit. Raises
        `Refusal` beyond `STEPS`."""
        all_ways = {k: self._fitting(*self.declared.tasks[k]) for k in self.asking}
        fitting: dict[int, list[FittingLayouts]] = {}
        for k, ways in all_ways.items():
            task = self.declared.tasks[k][0]
            # All ways that do not depend on the layouts give the result of whole tensors.
            fitting[k] = [way for way in ways if not way.by_layout] or ways
            if not ways:
                self._nothing_fits(task)
                return {j: of[0] for j, of in all_ways.items() if of}
            if len(ways) > 1 and fitting[k] is ways and ways[0].by_layout:
                self._undecided(task, ways)
                return {j: of[0] for j, of in all_ways.items() if of}
        shared = {name for k in self.asking for name in _tensors(self.declared.tasks[k][0])}
        others = [
            way
            for k, (task, scope) in enumerate(self.declared.tasks)
            if k not in fitting and not shared.isdisjoint(_tensors(task))
            for way in self._fitting(task, scope)
        ]
        self._combine([self._distinct(k, ways) for k, ways in fitting.items()], others)
        assert self.best is not None
        chosen = dict(zip(self.asking, self.best[1], strict=True))
        for k, way in chosen.items():
            self._tell(self.declared.tasks[k][0], way, all_ways[k], [*others, *chosen.values()])
        return chosen

    def step(self, count: int) -> None:
        """Count steps. Raises `Refusal` beyond `STEPS`."""
        self.steps += count
        if self.steps > STEPS:
            message = f"finding the labels in place of ? takes more than {STEPS} steps"
            raise Refusal("limit", message, None, "write some of the labels")

    # -- one task ----------------------------------------------------------------------------------------------------

    def _fitting(self, task: TaskDecl, scope: Scope) -> list[FittingLayouts]:
        """Return all layouts of a task that fit, those with R for ? first."""
        ways = [
            [p.layout] if p.layout is None or p.type is None else layouts.closed(p.layout, p.type.shape, task.mapping)
            for p in task.parameters
        ]
        found: list[FittingLayouts] = []
        todo: list[tuple[str | None, ...]] = [()]
        while todo:
            chosen = todo.pop()
            while len(chosen) < len(ways) and len(ways[len(chosen)]) == 1:
                chosen = (*chosen, *ways[len(chosen)])
            parameters = [replace(p, layout=layout) for p, layout in zip(task.parameters, chosen, strict=False)]
            # Nothing is known of a parameter without labels, so nothing is refused because of it.
            parameters += [replace(p, type=None) if p.is_open else p for p in task.parameters[len(chosen) :]]
            tried = replace(task, parameters=tuple(parameters))
            if len(chosen) == len(ways):
                way = self._tried(tried, scope, MISFITS)
                if way is not None:
                    cuts = (str(p.layout).count("S") for p in task.parameters)
                    found.append(replace(way, cuts=way.cuts - sum(cuts)))
            elif self._tried(tried, scope, ("layout",)) is not None:
                todo += [(*chosen, way) for way in reversed(ways[len(chosen)])]
        return found

    def _tried(self, task: TaskDecl, scope: Scope, misfits: Sequence[str]) -> FittingLayouts | None:
        """Read a task with some layouts; None after a finding with one of these codes. Of a task whose instances may
        differ, those at the ends of the axes of its grid, and the second ones, are read."""
        reading = FileReading(Source("", ""), steps=0, streams=self.declared.reading.streams)
        context = replace(scope.context, reading=reading, orders={})
        alike = "get_tid" not in task.body.facts.names
        points = product(*(sorted({0} if alike else {0, min(1, n - 1), n - 1}) for n in task.mapping))
        counts: dict[Collective, int] = {}
        by_layout = False
        for tid in points:
            reader = Elaborator(context, task, task.name, tid)
            instance = reader.instance()
            by_layout |= reader.by_layout
            self.step(reading.steps)
            reading.steps = 0
            if any(f.code in misfits and not f.warning for f in reading.source.findings):
                return None
            for collective in reading.collectives.values():
                counts[collective] = max(counts.get(collective, 0), _executions(collective, instance))
        return FittingLayouts(
            task,
            sum(times * collective.size for collective, times in counts.items()),
            sum(str(p.layout).count("S") for p in task.parameters),
            frozenset(name for of, name in reading.stores if of == task.name),
            by_layout,
        )

    def _nothing_fits(self, task: TaskDecl) -> None:
        names = ", ".join(p.name for p in task.parameters if p.is_open)
        message = f"{task.name}: no labels fit in place of ? in the layouts of {names}"
        self.declared.reading.source.add(
            "layout", message, task.place, "what else is found in it is found with R for each ?", subject=task.name
        )

    def _undecided(self, task: TaskDecl, ways: Sequence[FittingLayouts]) -> None:
        message = f"{task.name}: {len(ways)} layouts fit in place of ?, and the result may depend on which one it is"
        examples = []
        for way in ways[:2]:
            pairs = zip(task.parameters, way.task.parameters, strict=True)
            examples.append(", ".join(f"{p.name} {layouts.shown(_labels(found))}" for p, found in pairs if p.is_open))
        notes = (
            f"{examples[0]}; or {examples[1]}",
            "what is local, put on a stream, or a part of a shard has no layout",
        )
        self.declared.reading.source.add("layout", message, task.place, *notes, subject=task.name)

    # -- tasks that share tensors -------------------------------------------------------------------------------------

    def _distinct(self, number: int, ways: Sequence[FittingLayouts]) -> list[FittingLayouts]:
        """Keep the best of those ways that are the same for all other tasks; the best of these is the first one."""
        elsewhere = {name for k, (task, _) in enumerate(self.declared.tasks) if k != number for name in _tensors(task)}
        best: dict[tuple[object, ...], FittingLayouts] = {}
        for way in sorted(ways, key=lambda way: (way.size, way.cuts)):
            shown = (p.layout for p in way.task.parameters if p.tensor is not None and p.tensor.name in elsewhere)
            best.setdefault((*shown, way.stores), way)
        return list(best.values())

    def _combine(self, ways: Sequence[Sequence[FittingLayouts]], others: Sequence[FittingLayouts]) -> None:
        """Find the best choice of one way for each task. others: of tasks whose layouts are written."""
        least = [sum(of[0].size for of in ways[k:]) for k in range(len(ways) + 1)]
        todo: list[tuple[Cost, tuple[FittingLayouts, ...]]] = [((0, 0, 0), ())]
        while todo:
            (size, changes, cuts), chosen = todo.pop()
            if self.best is not None and (size + least[len(chosen)], changes, cuts) >= self.best[0]:
                continue
            if len(chosen) == len(ways):
                self.best = (size, changes, cuts), chosen
                continue
            longer = []
            for way in ways[len(chosen)]:
                moves = [r for other in (*others, *chosen) for r in (*other.relayouts(way), *way.relayouts(other))]
                self.step(1 + len(others) + len(chosen))
                cost = size + way.size + sum(r.size for _, r in moves), changes + len(moves), cuts + way.cuts
                longer.append((cost, (*chosen, way)))
            todo += sorted(longer, key=lambda one: one[0], reverse=True)

    def _tell(
        self, task: TaskDecl, way: FittingLayouts, ways: Sequence[FittingLayouts], all_ways: Sequence[FittingLayouts]
    ) -> None:
        """Note the layouts that were found for a task. ways: those that fit it. all_ways: of all tasks."""
        moves = [pair for other in all_ways if other is not way for pair in other.relayouts(way)]
        moves = [(q, move) for q, move in moves if move.size]
        for k, (p, found) in enumerate(zip(task.parameters, way.task.parameters, strict=True)):
            if not p.is_open:
                continue
            count = len({one.task.parameters[k].layout for one in ways})
            free = {one.task.parameters[k].layout for one in ways if not one.by_layout}
            if count == 1:
                why = "no other one fits"
            elif len(free) == 1:
                why = f"with the {count - 1} others that fit, the result may be another one"
            else:
                why = f"of {len(free)} that fit, with the fewest bytes of re-layouts"
            self.declared.reading.source.add(
                "inferred",
                f"the layout of {p.name} is {layouts.shown(_labels(found))}: {why}",
                p.place,
                warning=True,
                subject=task.name,
                relayouts=tuple(r for q, r in moves if q.name == p.name),
            )


def _tensors(task: TaskDecl) -> set[str]:
    return {p.tensor.name for p in task.parameters if p.tensor is not None}


def _executions(collective: Collective, instance: Instance) -> int:
    """How often an instance takes part in a collective: every stream carries one token each time."""
    ends = [range(array.first, array.first + array.size) for array in collective.arrays]
    counts = [n for stream, _, n in total(instance.body)[0] if any(stream in end for end in ends)]
    return max(counts, default=0)
