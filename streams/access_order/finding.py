"""Findings about tensors that instances share: accesses to the same element, one of them a store, without an order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import Any

import numpy as np

from ...base.place import Place
from ..layouts import parse
from ..lower import lowered_task
from ..mapping.tiles import own_parts, used_names
from ..source import Refusal, SourceFinding
from ..syntax import nodes as syn
from ..tree import (
    Body,
    Choice,
    FixedLoop,
    Instance,
    Node,
    Nodes,
    Op,
    Region,
    StreamDecl,
    TaskDecl,
    TaskParameter,
    total,
)
from .index import BY_SIZE, AffineIndex, AxisPart, TensorAccess, TracedLoop
from .order import WORK, AccessFinder, AccessRange, ProgramOrder, TooMuchOrder
from .search import GROUP, AccessRace, PairSearch, disjoint, hull
from .trace import STEPS, InstanceTracer, TensorRef, Untraceable, apart

Units = Sequence[Sequence[Sequence[int]]]
"""For each unit of a mapped program, the instances of each phase, in order; those of one phase run at the same time."""


@dataclass(frozen=True)
class _Sharer:
    """An instance that accesses a tensor. number: in the region. stores: whether it may. alike: whether all stores of
    it are such that other instances store the same."""

    number: int
    ref: TensorRef
    stores: bool
    reads: bool
    alike: bool

    def meets(self, other: _Sharer) -> bool:
        return all(a < b + m and b < a + n for (a, n), (b, m) in zip(self.ref.box, other.ref.box, strict=True))


def race_findings(region: Region, units: Units = ()) -> list[SourceFinding]:
    """Return the races of a region: a finding for each pair of statements that access the same element of a tensor in
    two task instances, where one of them stores and no token orders them.

    region: a region without errors. units: for each unit of a mapping its phases in order, each with the numbers of the
    instances that run in it at the same time; an instance that is in none has a unit of its own. Nothing is raised for
    what is found."""
    shared = {name: found for name, found in _sharers(region) if found}
    if not shared:
        return []
    return _RaceCheck(region, units, shared).findings()


def _sharers(region: Region) -> Iterator[tuple[str, list[_Sharer]]]:
    """For each tensor, the instances that may meet in it, if one of them stores."""
    if not region.contexts:
        return
    reading = next(iter(region.contexts.values())).reading
    stores, renamed = reading.stores, reading.renamed
    bound: dict[str, list[tuple[TaskDecl, TaskParameter]]] = defaultdict(list)
    for task in region.tasks:
        for p in task.parameters:
            if p.tensor is not None:
                bound[p.tensor.name].append((task, p))
    used: dict[str, dict[tuple[int, int], tuple[frozenset[str], frozenset[str]]]] = {}
    of_task: dict[str, list[int]] = defaultdict(list)
    for k, instance in enumerate(region.instances):
        of_task[instance.task.name].append(k)
    for name, bindings in bound.items():
        if not any((task.name, p.name) in stores or (task.name, p.name) in renamed for task, p in bindings):
            continue
        if len(bindings) == 1 and _dealt(*bindings[0]):
            continue
        found: list[_Sharer] = []
        for task, p in bindings:
            own, even = stores.get((task.name, p.name), {}), True
            if len(of_task[task.name]) > 1 and any(own.values()):
                even = not any(_named(node.root, p.name) for node in uneven_stores(region, task))
            if task.name not in used:
                used[task.name] = used_names(task)
            lines = {at for at, (reads, _) in used[task.name].items() if p.name in reads}
            for k in of_task[task.name]:
                instance = region.instances[k]
                writes = instance.tid in own or (task.name, p.name) in renamed
                reads = not lines.isdisjoint(instance.ran)
                if writes or reads:
                    ref = TensorRef(p.name, name, _box(p, instance))
                    found.append(_Sharer(k, ref, writes, reads, even and own.get(instance.tid, True)))
        yield name, _meeting(region, found)


def _dealt(task: TaskDecl, p: TaskParameter) -> bool:
    """Whether each instance has a part of the tensor of its own."""
    labels = parse(p.layout)[0] if p.layout is not None else ()
    return all(axis in labels for axis, size in enumerate(task.mapping) if size > 1)


def _box(p: TaskParameter, instance: Instance) -> tuple[tuple[int, int], ...]:
    """First element and size of an instance's part of a tensor, along each axis."""
    assert p.tensor is not None
    shape = p.tensor.type.shape
    labels = parse(p.layout)[0] if p.layout is not None else (None,) * len(shape)
    sizes = [n if a is None else n // instance.task.mapping[a] for n, a in zip(shape, labels, strict=True)]
    return tuple((0 if a is None else instance.tid[a] * n, n) for n, a in zip(sizes, labels, strict=True))


def _meeting(region: Region, found: Sequence[_Sharer]) -> list[_Sharer]:
    """Those of some sharers that meet others, if one of both stores what the other does not store alike."""
    boxes: dict[tuple[tuple[int, int], ...], list[_Sharer]] = defaultdict(list)
    for sharer in found:
        boxes[sharer.ref.box].append(sharer)
    out: dict[int, list[_Sharer]] = defaultdict(list)
    together = [(group, group) for group in boxes.values()]
    together += ((a, b) for a, b in combinations(boxes.values(), 2) if a[0].meets(b[0]))
    for one, two in together:
        group = one if one is two else [*one, *two]
        if len({sharer.number for sharer in group}) < 2 or not any(sharer.stores for sharer in group):
            continue
        ran = {(region.instances[s.number].task.name, region.instances[s.number].ran, s.ref.name) for s in group}
        if len(ran) == 1 and all(sharer.alike and not sharer.reads for sharer in group):
            continue
        for sharer in group:
            if sharer not in out[sharer.number]:
                out[sharer.number].append(sharer)
    return [sharer for k in sorted(out) for sharer in out[k]]


class _AnyName(Mapping[str, Any]):
    """The names of a file that is not executed: functions of it are called, but not here."""

    def __getitem__(self, name: str) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        return self

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class _RaceCheck:
    """The search in one region. shared: for each tensor, its sharers."""

    def __init__(self, region: Region, units: Units, shared: Mapping[str, Sequence[_Sharer]]) -> None:
        self.region, self.shared = region, shared
        self.traced = self._traced()
        bodies = [self.traced.get(k) or straight(instance.body) for k, instance in enumerate(region.instances)]
        self.order = ProgramOrder(_in_turn(bodies, units, region), _packing(region))

    def findings(self) -> list[SourceFinding]:
        """Return the findings."""
        found: list[SourceFinding] = []
        for tensor, sharers in self.shared.items():
            try:
                found += self._of_tensor(tensor, sorted({sharer.number for sharer in sharers}))
            except TooMuchOrder:
                message = f"{tensor}: too many accesses to be compared: it is not known whether they are ordered"
                note = f"the check makes at most {WORK} comparisons"
                return [*found, SourceFinding("limit", message, None, (note,), subject=tensor)]
        return found

    def _traced(self) -> dict[int, Body]:
        """The bodies, with accesses, of the instances that share tensors."""
        region = self.region
        refs: dict[int, list[TensorRef]] = defaultdict(list)
        for sharers in self.shared.values():
            for sharer in sharers:
                refs[sharer.number].append(sharer.ref)
        streams = {decl.name: decl for decl in region.streams}
        sizes = {size.name: size.value for size in region.sizes}
        tracers: dict[str, InstanceTracer | None] = {}
        out: dict[int, Body] = {}
        left = STEPS
        for k, parts in refs.items():
            instance = region.instances[k]
            task = instance.task
            if task.name not in tracers:
                try:
                    lowered = lowered_task(region, task, (), _AnyName())
                    tracers[task.name] = InstanceTracer(lowered.body, streams, Nodes(), sizes)
                except Refusal:  # no machine and no run has such a task
                    tracers[task.name] = None
            tracer = tracers[task.name]
            if tracer is None:
                continue
            try:
                out[k] = tracer.trace(instance.tid, parts, left)
                known = total(out[k]) == total(instance.body)
            except Untraceable:
                known = False
            left -= tracer.steps
            if not known:
                out[k] = self._unknown(instance, parts)
            if prod(task.mapping) > 1:
                self._mark(task, out[k], self._unlike(task))
        return out

    def _unknown(self, instance: Instance, parts: Sequence[TensorRef]) -> Body:
        """An instance of which nothing is known but what it puts and gets, and which tensors it uses."""
        ops = apart((instance.body,))
        reading = self.region.contexts[instance.task.name].reading
        stores = reading.stores.keys() | reading.renamed
        made: list[Node] = []
        for ref in parts:
            whole = tuple(AxisPart(AffineIndex(at), AffineIndex(at + n - 1)) for at, n in ref.box)
            for write in (False, True) if (instance.task.name, ref.name) in stores else (False,):
                made.append(TensorAccess(ref.tensor, write, ref.name, instance.task.place.start, whole, BY_SIZE))
        puts = [node for node in ops if any(put for _, put, _ in node.needs)]
        return (*puts, *made, *(node for node in ops if node not in puts))

    def _unlike(self, task: TaskDecl) -> frozenset[Place]:
        """The places of stores that are not alike in all instances of a task."""
        found = {place for name, place in self.region.contexts[task.name].reading.unlike if name == task.name}
        return frozenset(found | {node.place for node in uneven_stores(self.region, task)})

    def _mark(self, task: TaskDecl, body: Body, unlike: frozenset[Place]) -> None:
        """Note which stores are alike."""
        for node in body:
            if isinstance(node, TensorAccess) and node.write:
                nodes = self._nodes(task, node)
                own = all(isinstance(n, syn.Subscript) and _named(n.root, node.name) for n in nodes)
                node.alike = bool(nodes) and own and not any(n.place in unlike for n in nodes)
            elif isinstance(node, TracedLoop):
                self._mark(task, node.body, unlike)

    def _of_tensor(self, tensor: str, numbers: Sequence[int]) -> Iterator[SourceFinding]:
        finder = AccessFinder(tensor)
        found: dict[int, list[AccessRange]] = {}
        for k in numbers:
            own: list[AccessRange] = []
            finder.between(self.order.bodies[k], None, None, {}, own)
            if own:
                found[k] = own
        known: set[tuple[str, str]] = set()
        for one, two in self._near(found):
            first, second = self.region.instances[one], self.region.instances[two]
            names = first.task.name, second.task.name
            if names in known:
                continue
            alike = None if first.task is not second.task else first.ran == second.ran
            race = PairSearch(self.order, one, two, finder, alike).race()
            if race is not None:
                known.add(names)
                yield self._finding(race, first, second)

    def _near(self, found: Mapping[int, Sequence[AccessRange]]) -> Iterator[tuple[int, int]]:
        """The pairs of instances that may touch common elements, one of them to store. found: all their accesses."""
        numbers = [*found]
        ends = np.array([hull(own) for own in found.values()], np.int64).reshape(len(numbers), -1, 2)
        stores = np.array([any(part.access.write for part in own) for own in found.values()])
        for i, one in enumerate(numbers):
            meets = (ends[i, :, 0] <= ends[i + 1 :, :, 1]) & (ends[i + 1 :, :, 0] <= ends[i, :, 1])
            for j in np.flatnonzero(meets.all(axis=1) & (stores[i] | stores[i + 1 :])):
                two = numbers[i + 1 + j]
                pairs = [(a, b) for a in found[one] for b in found[two] if a.access.write or b.access.write]
                self.order.spend(len(pairs))
                if len(pairs) > GROUP or any(disjoint(a, b) is None for a, b in pairs):
                    yield one, two

    # -- what is said ------------------------------------------------------------------------------------------------

    def _finding(self, race: AccessRace, first: Instance, second: Instance) -> SourceFinding:
        ends = [(first, race.one.access), (second, race.two.access)]
        ends.sort(key=lambda end: (end[1].write, not end[1].place, end[1].place))
        (reader, access), (writer, other) = ends if not ends[0][1].write else ends[::-1]
        place, elsewhere = self._place(reader, access), self._place(writer, other)
        parts = [str(a) if a == b else f"{a}:{b + 1}" for a, b in zip(race.low, race.high, strict=True)]
        what = access.tensor + (f"[{', '.join(parts)}]" if parts else "")
        source = self.region.source
        message = (
            f"{what}: {reader.name} {'stores' if access.write else 'reads'} it here, "
            f"{writer.name} stores it in line {elsewhere.line}, and no token orders the two"
        )
        line = source.lines[elsewhere.line - 1].strip()
        notes = [f"the other access: {source.file}:{elsewhere.line}:{elsewhere.column}: {line}"]
        unsure = {node.unsure.format(at.line) for at, node in ((place, access), (elsewhere, other)) if node.unsure}
        if unsure:
            notes.append(f"they cannot be told apart: {'; '.join(sorted(unsure))}")
        notes.append(
            "one of them puts a token behind its access, and the other gets it before its own; "
            f"or one task accesses {access.tensor}"
        )
        if reader.task.part or writer.task.part:
            notes.append("loads of a double buffered task run ahead of its stores, and stores come behind its tokens")
        return SourceFinding("race", message, place, tuple(notes), subject=access.tensor)

    def _place(self, instance: Instance, access: TensorAccess) -> Place:
        found = self._nodes(instance.task, access)
        return found[0].place if found else access.place

    def _nodes(self, task: TaskDecl, access: TensorAccess) -> list[syn.SyntaxNode]:
        """The nodes of the file that an access stands for; none if it is one of a whole task."""
        for at in syn.walk(task.body):
            if at.place.start == access.place and not isinstance(at, syn.FunctionDefinition):
                parts = own_parts(at) if isinstance(at, syn.StatementNode) else (at,)
                nodes = [node for part in parts for node in syn.walk(part)]
                stored = [n for part in parts for n in _stored(part)]
                if access.write:
                    of_name = [n for n in stored if _named(n.root, access.name)]
                    return [*(of_name or stored)]
                roots = [n.root for n in stored]
                uses = [n for n in nodes if _named(n, access.name) and not any(n is root for root in roots)]
                parts_of = [n for n in nodes if isinstance(n, syn.Subscript) and any(n.base is use for use in uses)]
                return [*(parts_of or uses or [at])]
        return []


def uneven_stores(region: Region, task: TaskDecl) -> list[syn.Subscript]:
    """Return the stores of a task that two of its instances may execute differently: in other iterations of a loop, or
    another number of times. region: the region of the task."""
    names = region.contexts[task.name].varying[task.body]
    out: list[syn.Subscript] = []
    todo: list[tuple[syn.SyntaxNode, bool, bool]] = [(statement, False, False) for statement in task.body.body]
    while todo:
        node, looped, uneven = todo.pop()
        if isinstance(node, syn.Jump | syn.Returning) and uneven:
            return _stored(task.body)
        if isinstance(node, syn.ForLoop | syn.WhileLoop | syn.MetaChain | syn.Branching):
            meta = node.arms if isinstance(node, syn.MetaChain) else ()
            heads = [head for arm in meta for head in arm.heads] or own_parts(node)[:1]
            looped = looped or isinstance(node, syn.ForLoop | syn.WhileLoop) or any(arm.unrolled for arm in meta)
            uneven = uneven or (looped and any(not names.isdisjoint(head.facts.names) for head in heads))
        elif uneven and not isinstance(node, syn.MetaArm):
            out += _stored(node)
        todo += ((below, looped, uneven) for below in node.children if isinstance(below, syn.StatementNode))
    return out


def _stored(node: syn.SyntaxNode) -> list[syn.Subscript]:
    return [n for n in syn.walk(node) if isinstance(n, syn.Subscript) and n.stored]


def _named(node: syn.SyntaxNode, name: str) -> bool:
    return isinstance(node, syn.Identifier) and node.name == name


def _packing(region: Region) -> dict[int, int]:
    wide: list[StreamDecl] = [decl for decl in region.streams if decl.packing > 1]
    return {stream: decl.packing for decl in wide for stream in range(decl.first, decl.first + decl.size)}


def straight(body: Body) -> Body:
    """Return the puts and gets of a body without branches on data. Each branch is replaced by its puts, and then its
    gets (`trace.apart`), so that nothing relies on an order inside of the branch."""
    if not any(isinstance(node, Choice | FixedLoop) for node in body):
        return body
    out: list[Node] = []
    for node in body:
        if isinstance(node, Choice):
            out += apart(node.arms)
        elif isinstance(node, FixedLoop):
            inner = straight(node.body)
            out.append(node if inner == node.body else FixedLoop(node.times, inner))
        else:
            out.append(node)
    return tuple(out)


def _in_turn(bodies: list[Body], units: Units, region: Region) -> list[Body]:
    """Add the order in which units run their instances, as tokens: one from each instance of a phase to each of the
    next one."""
    stream = max((decl.first + decl.size for decl in region.streams), default=0)
    place = Place(1, 1)
    for phases in units:
        for k in range(1, len(phases)):
            for one in phases[k - 1]:
                for two in phases[k]:
                    bodies[one] = (*bodies[one], Op(stream, True, place))
                    bodies[two] = (Op(stream, False, place), *bodies[two])
                    stream += 1
    return bodies
