"""Makes the machine of a checked region: a unit for each task instance, a stream of the machine for each stream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..base.errors import ProgramError
from ..isa.overlays.tasks import program as tasks
from ..isa.overlays.tasks.overlay import uops_of
from ..isa.program import UnpackedProgram
from .check import Report, check
from .lower import Lowering, lowered_type
from .source import Diagnostic, Refusal
from .tree import Region
from .values import Static


class Refused(ProgramError):
    """A program with findings."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


def build(text: str, file: str, externals: Mapping[str, Any] | None = None) -> UnpackedProgram:
    """Check a program, and return the machine and its program.

    externals: the names of the executed file, for tasks that call functions of the host; None refuses them. Raises
    `Refused`.
    """
    report = check(text, file)
    if report.code:
        raise Refused(report)
    return uops_of(task_program(report.region, externals))


def task_program(region: Region, externals: Mapping[str, Any] | None = None) -> tasks.TaskProgram:
    """Return a checked region as a task program. Raises `Refused` for what a machine does not have."""
    lowering = Lowering(region, region.constants, externals)
    made, faults = [], []
    for declared in region.tasks:
        try:
            made.append(lowering.task(declared, ()))
        except Refusal as r:
            place = None if r.node is None else region.source.place(r.node)
            faults.append(Diagnostic(r.code, r.message, place, r.notes, subject=declared.name))
    if faults:
        raise Refused(Report(region, tuple(faults)))
    names = [unit_name(instance.name) for instance in region.instances]
    ends: dict[tuple[int, bool], str] = {}
    for name, instance in zip(names, region.instances, strict=True):
        for node in instance.body:
            for stream, put, _ in node.needs:
                ends[stream, put] = name
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
    streams = tuple(
        tasks.StreamArray(s.name, lowered_type(s.type), s.depth, s.packing, s.shape) for s in region.streams
    )
    constants = tuple((name, v.value) for name, v in region.constants.items() if isinstance(v, Static))
    return tasks.TaskProgram(
        Path(region.source.file).stem, region.source.file, streams, (), tuple(made), units, tuple(links), constants
    )


def unit_name(instance: str) -> str:
    """The name of a unit: letters, digits and underscores, such as `gemm_1_2` of `gemm[1,2]`."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", instance).strip("_")
