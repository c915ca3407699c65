"""What each stage of a model takes: memory of its board, modelled time, and traffic of the link."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ...base.durations import duration
from ...hw.sim.machine import Machine, launch_seconds
from ...isa.program import Program, Role
from ...rsnlib.stage_plan import link_seconds

HOST = -1
"""The number of the host, in the place of a stage."""


@dataclass(frozen=True)
class StageFigures:
    """Figures of a stage.

    seconds: modelled, launch included. banks: bytes that its program needs of each memory of its board. takes: bytes
    that come from each stage before, by its number; `HOST` for the host. carried: bytes of a call on the link in front
    of the stage: what it and later stages take, and outputs of the stages before, without the host's own values, such
    as a mask; 0 for the first. link_s: seconds that the link takes for them.
    """

    seconds: float
    banks: Mapping[str, int]
    takes: Mapping[int, int]
    carried: int
    link_s: float


def stage_figures(programs: Sequence[Program], results: Collection[str]) -> list[StageFigures]:
    """Return the figures of the stages of a model, with run-time parameters at their defaults. programs: of the stages,
    in order. results: the outputs that the host takes, by name. Raises as `Machine`, such as `DeadlockError`."""
    makers = {b.name: number for number, program in enumerate(programs) for b in program.with_role(Role.OUTPUT)}
    last = dict.fromkeys(results, len(programs))
    sizes: dict[str, int] = {}
    for number, program in enumerate(programs):
        for b in (*program.with_role(Role.INPUT), *program.with_role(Role.OUTPUT)):
            sizes[b.name] = 4 * prod(b.view or b.shape)
        for b in program.with_role(Role.INPUT):
            last[b.name] = max(last.get(b.name, HOST), number)
    figures = []
    for number, program in enumerate(programs):
        takes: dict[int, int] = {}
        for b in program.with_role(Role.INPUT):
            source = makers.get(b.name, HOST)
            takes[source] = takes.get(source, 0) + sizes[b.name]
        later = (size for name, size in sizes.items() if makers.get(name, HOST) < number <= last.get(name, HOST))
        carried = sum(later) if number else 0
        overlay = program.overlay
        figures.append(
            StageFigures(
                Machine(program).timing.latency + launch_seconds(overlay),
                {bank: 4 * program.bank_size(bank) for bank in overlay.banks},
                takes,
                carried,
                link_seconds(overlay, carried) if number else 0.0,
            )
        )
    return figures


def stage_table(figures: Sequence[StageFigures], modules: Sequence[str] = ()) -> list[str]:
    """Return a table of stages as lines, with the slowest and the sum. modules: of each stage, as text; none where they
    are not known."""
    banks = list(figures[0].banks)
    rows = [["stage", *banks, "modelled", "from the link", "link", "layers" if modules else ""]]
    for number, x in enumerate(figures):
        sizes = [f"{x.banks[bank] / 1e6:.1f} MB" for bank in banks]
        link = ["-", "-"] if not number else [f"{x.carried / 1e6:.3f} MB", duration(x.link_s)]
        rows.append([str(number), *sizes, duration(x.seconds), *link, modules[number] if modules else ""])
    slowest, whole = max(max(x.seconds, x.link_s) for x in figures), sum(x.seconds + x.link_s for x in figures)
    told = f"a call takes {duration(whole)}; while others follow, one ends each {duration(slowest)}"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*lines, told]
