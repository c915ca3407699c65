"""What each stage of a model takes: memory of its board, modelled time, and traffic of the link."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ...base.durations import duration
from ...hw.sim.machine import Machine, launch_seconds
from ...isa.program import Program, Role
from ...rsnlib.stage_plan import link_seconds, round_times
from .hosted_shards import ShardRound, board_numbers

HOST = -1
"""The number of the host, in the place of a stage."""


@dataclass(frozen=True)
class StageFigures:
    """Figures of a stage.

    seconds: modelled, launch included. banks: bytes that its programs need in each memory of its board, by bank; with
    shards, of the fullest board. takes: bytes that come from each earlier stage, by its number; `HOST` for the host.
    carried: bytes of a call on the link in front of the stage: what it and later stages take, and outputs of earlier
    stages, without the host's own values, such as a mask; 0 for the first stage. link_s: seconds that the link takes
    for them. shards: how many boards compute the stage. exchanged: bytes that its shards exchange in a call.
    exchange_s: how many of `seconds` these take.
    """

    seconds: float
    banks: Mapping[str, int]
    takes: Mapping[int, int]
    carried: int
    link_s: float
    shards: int = 1
    exchanged: int = 0
    exchange_s: float = 0.0


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


def shard_figures(
    programs: Sequence[Program], rounds: Sequence[ShardRound], results: Collection[str]
) -> list[StageFigures]:
    """Return the figures of the stages of a model whose stages several boards compute together. programs, rounds: of
    all stages. results: as for `stage_figures`. Raises as that."""
    numbers, shards = board_numbers(rounds), len(rounds[0].programs)
    count = rounds[-1].stage + 1
    overlay = programs[0].overlay
    sizes: dict[str, int] = {}
    made: dict[str, int] = {}
    last: dict[str, int] = dict.fromkeys(results, count)
    for number, program in enumerate(programs):
        stage = numbers[number] // shards
        for b in program.with_role(Role.OUTPUT):
            made[b.name] = stage
        for b in (*program.with_role(Role.INPUT), *program.with_role(Role.OUTPUT)):
            sizes[b.name] = max(sizes.get(b.name, 0), 4 * prod(b.view or b.shape))
        for b in program.with_role(Role.INPUT):
            last[b.name] = max(last.get(b.name, HOST), stage)
    figures = []
    for stage in range(count):
        own = [one for one in rounds if one.stage == stage]
        times = [round_times([None if i is None else programs[i] for i in one.programs]) for one in own]
        banks = {
            bank: max(
                4 * sum(program.bank_size(bank) for i, program in enumerate(programs) if numbers[i] == board)
                for board in range(stage * shards, (stage + 1) * shards)
            )
            for bank in overlay.banks
        }
        takes: dict[int, int] = {}
        inputs = (x.with_role(Role.INPUT) for i, x in enumerate(programs) if numbers[i] // shards == stage)
        for name in {b.name for buffers in inputs for b in buffers}:
            source = made.get(name, HOST)
            if source != stage:
                takes[source] = takes.get(source, 0) + sizes[name]
        later = (size for name, size in sizes.items() if made.get(name, HOST) < stage <= last.get(name, HOST))
        carried = sum(later) if stage else 0
        figures.append(
            StageFigures(
                sum(x.seconds for x in times),
                banks,
                takes,
                carried,
                link_seconds(overlay, carried) if stage else 0.0,
                shards,
                sum(x.moved for x in times),
                sum(x.link_s for x in times),
            )
        )
    return figures


def figures_of(
    programs: Sequence[Program], rounds: Sequence[ShardRound], results: Collection[str]
) -> list[StageFigures]:
    """Return the figures of the stages of a model. rounds: of shards; none of a model without. The others, and what is
    raised: as for `stage_figures`."""
    return shard_figures(programs, rounds, results) if rounds else stage_figures(programs, results)


def stage_table(figures: Sequence[StageFigures], modules: Sequence[str] = ()) -> list[str]:
    """Return a table of stages as lines, with the slowest stage and the sum. figures: of each stage. modules: of each
    stage, as text; empty where they are not known."""
    banks, shards = list(figures[0].banks), figures[0].shards
    between = ["between shards", "exchanges"] if shards > 1 else []
    rows = [["stage", *banks, "modelled", "from the link", "link", *between, "layers" if modules else ""]]
    for number, x in enumerate(figures):
        sizes = [f"{x.banks[bank] / 1e6:.1f} MB" for bank in banks]
        link = ["-", "-"] if not number else [f"{x.carried / 1e6:.3f} MB", duration(x.link_s)]
        link += [f"{x.exchanged / 1e6:.3f} MB", duration(x.exchange_s)] if shards > 1 else []
        rows.append([str(number), *sizes, duration(x.seconds), *link, modules[number] if modules else ""])
    slowest, whole = max(max(x.seconds, x.link_s) for x in figures), sum(x.seconds + x.link_s for x in figures)
    told = f"a call takes {duration(whole)}; while others follow, one ends each {duration(slowest)}"
    if shards > 1:
        told += f"\n{shards} boards compute each stage, {shards * len(figures)} in all; sizes are of one board"
    return [*aligned(rows), told]


@dataclass(frozen=True)
class TriedShards:
    """What a number of boards for each stage would give. shards: the number. stages: how many stages there are then.
    call_s: modelled seconds of a call, with all links. exchange_s: how many of these are exchanges. refused: why the
    model cannot be cut so, "" if it can; if not, the other figures are 0."""

    shards: int
    stages: int = 0
    call_s: float = 0.0
    exchange_s: float = 0.0
    refused: str = ""

    @property
    def boards(self) -> int:
        """How many boards it takes."""
        return self.shards * self.stages


def tried_shards(shards: int, figures: Sequence[StageFigures]) -> TriedShards:
    """Return the figures of a model with `shards` boards for each stage. figures: of its stages."""
    call_s = sum(x.seconds + x.link_s for x in figures)
    return TriedShards(shards, len(figures), call_s, sum(x.exchange_s for x in figures))


def best_shards(tried: Sequence[TriedShards]) -> TriedShards | None:
    """Return the choice that is taken: of those that need the fewest boards the one whose call takes least time, and of
    equal ones the one with the fewest shards; None if all are refused."""
    return min((x for x in tried if not x.refused), key=lambda x: (x.boards, x.call_s, x.shards), default=None)


def tried_table(tried: Sequence[TriedShards], taken: int) -> list[str]:
    """Return a table of the numbers that were tried, as lines; none without. taken: the one that was chosen."""
    if not tried:
        return []
    rows = [["shards", "stages", "boards", "a call", "exchanges", ""]]
    for x in tried:
        exchanges = duration(x.exchange_s) if x.exchange_s else "-"
        figures = ["-"] * 4 if x.refused else [str(x.stages), str(x.boards), duration(x.call_s), exchanges]
        rows.append([str(x.shards), *figures, x.refused or "taken" * (x.shards == taken)])
    return ["", "shards=auto: of those with the fewest boards, the number whose call takes least", *aligned(rows)]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines, whose columns are as wide as their longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
