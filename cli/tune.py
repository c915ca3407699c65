"""`rsn tune`: search the knobs of a generated machine, or the memories of an overlay with the schedule of a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..assembler.printer import show
from ..base.deferred import deferred
from ..base.errors import require_torch
from ..base.files import check_target, write_text
from ..scheduler.schedule import show_schedule
from ..streams.placing.devices import DEVICES
from ..tuning.page import page
from ..tuning.problem import Choice, size
from ..tuning.study import StudyResult, Trial, tune
from ..tuning.workers import workers
from .options import JSON, Count, File, Options, option, refuse, with_options
from .progress import working

if TYPE_CHECKING:
    from ..rsnlib import lane_search
    from ..rsnlib.streamed import figures, search
else:
    lane_search = deferred("rsn.rsnlib.lane_search")
    figures = deferred("rsn.rsnlib.streamed.figures")
    search = deferred("rsn.rsnlib.streamed.search")


OVERLAYS, GENERATED = "only with --overlay", "only with a generated machine, not with --overlay"
"""Kinds of options."""


class TuneOptions(Options):
    """The options of `rsn tune`."""

    onto: str = option(
        "the device that the machine must fit on",
        default="vc1902",
        type=click.Choice(list(DEVICES), case_sensitive=False),
        of=GENERATED,
    )
    overlay: str | None = option(
        "no generated machine: an overlay of row lanes (xnn2), whose memories are searched with the schedule"
    )
    trials: Count = option("different machines to try", default=40)
    seed: int = option("of the search, and of the model's random weights", default=0)
    goals: tuple[str, ...] = option(
        "what to make small; both give the front of the two [default: latency]",
        "--goal",
        type=click.Choice(["latency", "memory"]),
    )
    on_chip: Count | None = option("most bytes on the chip [default: 75 % of the device; with --overlay no limit]")
    batch: Count | None = option("sequences in a batch [default: the model's]")
    seq: Count | None = option("rows in a sequence [default: the model's]")
    study: Path | None = option(
        "file of the trials; a search that it holds is continued", type=click.Path(dir_okay=False, path_type=Path)
    )
    where: str = option(
        "processes, or a Ray cluster (ray://HOST:PORT); the trials are the same", "--workers", default="1"
    )
    page: File | None = option("page of the trials to write (.html)")
    output: File | None = option("the best machine, with its program (.rsn)", "-o", "--output")
    overlay_out: File | None = option("with --overlay: overlay file of the best machine (.toml)", of=OVERLAYS)
    schedule_out: File | None = option("with --overlay: schedule file of the best machine (.toml)", of=OVERLAYS)
    as_json: bool = JSON


@click.command(name="tune")
@click.argument("spec")
@with_options(TuneOptions)
def tune_command(spec: str, options: TuneOptions) -> None:
    """Search the knobs of a generated machine, or of an overlay of row lanes.

    SPEC is a model, as for rsn compile. Each trial generates a machine for it; with --overlay it changes the sizes of
    the overlay's memories and the schedule of the model. Its cost is the modelled latency, the bytes that it holds on
    the chip, or both. The same seed gives the same trials on any number of workers, and after an interruption.
    """
    require_torch("generating a machine")
    overlay, output = options.overlay, options.output
    if output is not None and not output.endswith(".rsn"):
        raise click.UsageError(f"{output}: rsn tune writes a text (.rsn); rsn asm makes a .bin of it")
    refuse(OVERLAYS if overlay is None else GENERATED)
    files = {"program": output, "overlay": options.overlay_out, "schedule": options.schedule_out}
    for path in (options.page, *files.values()):
        if path is not None:
            check_target(path)
    asked = options.goals or ("latency",), options.on_chip, options.batch, options.seq, options.seed
    problem: search.BlockSearch | lane_search.LaneSearch
    if overlay is None:
        problem = search.BlockSearch(spec, options.onto.lower(), *asked)
    else:
        problem = lane_search.LaneSearch(spec, overlay, *asked)
    count = min(options.trials, size(problem.knobs))
    finished: list[Trial] = []
    with (
        working(f"searching a machine for {spec} on {overlay or options.onto}") as share,
        workers(problem, options.where) as evaluators,
    ):

        def observe(trial: Trial) -> None:
            finished.append(trial)
            share(min(1.0, len(finished) / count))

        near = overlay is not None  # of memories and schedules few fit together
        found = tune(
            problem,
            options.trials,
            seed=options.seed,
            file=options.study,
            workers=evaluators,
            observe=observe,
            neighbours=near,
        )
    if options.page is not None:
        write_text(options.page, page(problem, found))
    wanted = {name: path for name, path in files.items() if path is not None}
    lines = _written(problem, found.best[0].choice, wanted) if found.best else []
    if options.as_json:
        click.echo(json.dumps(_facts(problem.goals, found)))
        return
    refused = sum(1 for trial in found.trials if trial.outcome.refused)
    different = len({json.dumps(trial.choice, sort_keys=True) for trial in found.trials})
    click.echo(f"{different} machines tried, {refused} trials refused because nothing can be built like this")
    for trial in found.best:
        costs = ", ".join(f"{goal} {cost:.6g}" for goal, cost in zip(problem.goals, trial.outcome.costs, strict=True))
        knobs = " ".join(f"{name}={value}" for name, value in trial.choice.items())
        click.echo(f"trial {trial.number}: {costs}: {knobs}")
    if not found.best:
        click.echo(f"no machine fits: {found.trials[0].outcome.refused}")
        raise SystemExit(1)
    for line in lines:
        click.echo(line)


def _written(
    problem: search.BlockSearch | lane_search.LaneSearch, choice: Choice, files: Mapping[str, str]
) -> list[str]:
    """Write the files of the best machine that are asked for. Returns what else there is to say about it."""
    if isinstance(problem, lane_search.LaneSearch):
        if "program" in files:
            write_text(files["program"], show(problem.made(choice).program))
        if "overlay" in files:
            write_text(files["overlay"], lane_search.overlay_text(problem.base, choice))
        if "schedule" in files:
            write_text(files["schedule"], show_schedule(lane_search.schedule_of(choice)))
        return []
    if not files and len(problem.goals) > 1:
        return []
    best = problem.made(choice)
    if "program" in files:
        write_text(files["program"], show(best.machine))
    return ["", *figures.lines(best)] if len(problem.goals) == 1 else []


def _facts(goals: tuple[str, ...], found: StudyResult) -> dict[str, Any]:
    def one(trial: Trial) -> dict[str, Any]:
        costs = dict(zip(goals, trial.outcome.costs, strict=False))
        facts: dict[str, Any] = {"trial": trial.number, "knobs": dict(trial.choice), **costs}
        return facts | ({"refused": trial.outcome.refused} if trial.outcome.refused else {})

    return {"best": [one(trial) for trial in found.best], "trials": [one(trial) for trial in found.trials]}
