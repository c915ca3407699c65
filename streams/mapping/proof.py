"""The check of a mapped program: the same proof as before the mapping, on the nodes and their physical streams.

A node runs its shots in turn, so that it may wait where its instances alone would not. Findings stand at the user's
lines and name the physical stream and the logical streams on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..access_order.finding import race_findings
from ..check import Report, report_on
from ..run import BodyRun, Unending
from ..source import Source, SourceFinding
from ..tree import Body, Instance, Op, Region, StreamDecl
from .mapping import Mapped
from .shots import renamed


@dataclass(frozen=True)
class MappingProof:
    """The result of the check of a mapped program. report: of the check; `report.region` is the mapped program. mapped:
    the mapping that was checked, without fused loops if it ends only so."""

    report: Report
    mapped: Mapped

    @property
    def ok(self) -> bool:
        """Whether the check of the mapped program finds no error."""
        return not self.report.code


def prove(mapped: Mapped) -> MappingProof:
    """Check a mapped program. If the check finds an error and loops are fused, check it without fused loops too, and
    return that result if it has no error."""
    first = MappingProof(check_mapped(mapped), mapped)
    fused = any(len(set(group.phases)) < len(group.shots) for group in mapped.groups)
    if first.ok or not mapped.made.fuse or not fused:
        return first
    plain = mapped.unfused()
    second = MappingProof(check_mapped(plain), plain)
    return second if second.ok else first


def mapped_region(mapped: Mapped) -> tuple[Region, dict[int, str]]:
    """Return the mapped program as a region, with a task instance for each node and a stream for each physical stream;
    and the name of the logical stream of each put and get, by the `id` of the operation."""
    source = mapped.graph.region.source
    decls: list[StreamDecl] = []
    names: dict[int, int] = {}
    logical: dict[int, str] = {}
    for stream in mapped.streams:
        first = stream.logical[0]
        name = mapped.stream_name(stream)
        decls.append(StreamDecl(name, stream.type, stream.depth, stream.packing, (), first.place, stream.number))
        names.update((edge.stream, stream.number) for edge in stream.logical)
    instances = []
    for k, group in enumerate(mapped.groups):
        made: dict[object, Body] = {}
        body = renamed(group.body, names, made)
        for key, (node, *_) in made.items():
            if isinstance(node, Op) and isinstance(key, tuple):
                logical[id(node)] = mapped.graph.edges[key[1]].name
        first_shot = mapped.graph.nodes[group.shots[0]].instance
        instances.append(Instance(mapped.name(k), first_shot.task, first_shot.tid, body, True))
    tasks = mapped.graph.region.tasks
    return Region(Source(source.text, source.file), tuple(decls), tasks, tuple(instances)), logical


def check_mapped(mapped: Mapped) -> Report:
    """Return the check of a mapped program. Deadlock and depth findings name the node and the logical stream that
    wait."""
    region, logical = mapped_region(mapped)
    report = report_on(region)
    if report.code in ("deadlock", "depth"):
        notes = tuple(_waits(mapped, region, logical))
        findings = tuple(_with(finding, notes) for finding in report.findings)
        return Report(region, findings)
    if not report.code:
        races = race_findings(mapped.graph.region, _units(mapped))
        return Report(region, (*(replace(f, message=f"after mapping, {f.message}") for f in races), *report.findings))
    return report


def _units(mapped: Mapped) -> list[list[list[int]]]:
    """For each node, and for what loads and stores beside it, the instances of each phase, by their numbers in the
    region."""
    number = {instance.name: k for k, instance in enumerate(mapped.graph.region.instances)}
    units = []
    for group in mapped.groups:
        phases: list[list[int]] = [[] for _ in range(group.phases[-1] + 1)]
        for shot, phase in zip(group.shots, group.phases, strict=True):
            phases[phase].append(number[mapped.graph.nodes[shot].name])
        units.append(phases)
    for k in range(len(mapped.groups)):
        units += ([[number[instance.name]] for instance in found] for found in mapped.beside(k).values())
    return units


def _with(finding: SourceFinding, notes: tuple[str, ...]) -> SourceFinding:
    if finding.code not in ("deadlock", "depth"):
        return finding
    return replace(finding, message=f"after mapping, {finding.message}", notes=(*notes, *finding.notes))


def _waits(mapped: Mapped, region: Region, logical: dict[int, str]) -> list[str]:
    """For each node that waits: the logical stream, and the line."""
    depths = {stream.number: stream.depth for stream in mapped.streams}
    packing = {stream.number: stream.packing for stream in mapped.streams}
    try:
        outcome = BodyRun([instance.body for instance in region.instances], depths, packing).outcome()
    except Unending:
        return []
    out = []
    for wait in outcome.waits[:4]:
        shots = mapped.groups[wait.instance].shots
        name = logical[id(wait.op)]
        edge = next(e for e in mapped.graph.edges.values() if e.name == name)
        shot = edge.writer if wait.op.put else edge.reader
        what = "put" if wait.op.put else "get"
        which = f", shot {shots.index(shot) + 1} of {len(shots)}" if len(shots) > 1 else ""
        place = f"line {wait.op.place.line}"
        out.append(f"{mapped.graph.nodes[shot].name}{which}, waits to {what} {name}, {place}")
    return out
