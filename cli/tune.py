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
from ..tuning.study import Result, Trial, tune
from ..tuning.workers import workers
from .progress import working
from .stream_programs import refuse_options

if TYPE_CHECKING:
    from ..rsnlib import lane_search
    from ..rsnlib.streamed import figures, search
else:
    lane_search = deferred("rsn.rsnlib.lane_search")
    figures = deferred("rsn.rsnlib.streamed.figures")
    search = deferred("rsn.rsnlib.streamed.search")


@click.command(name="tune")
@click.argument("spec")
@click.option(
    "--onto",
    default="vc1902",
    show_default=True,
    type=click.Choice(list(DEVICES), case_sensitive=False),
    help="the device that the machine must fit on",
)
@click.option(
    "--overlay",
    help="no generated machine: an overlay of row lanes (xnn2), whose memories are searched with the schedule",
)
@click.option("--trials", default=40, show_default=True, type=click.IntRange(1), help="different machines to try")
@click.option("--seed", default=0, show_default=True, help="of the search, and of the model's random weights")
@click.option(
    "--goal",
    "goals",
    multiple=True,
    type=click.Choice(["latency", "memory"]),
    help="what to make small; both give the front of the two [default: latency]",
)
@click.option(
    "--on-chip",
    type=click.IntRange(1),
    help="most bytes on the chip [default: 75 % of the device; with --overlay no limit]",
)
@click.option("--batch", type=click.IntRange(1), help="sequences in a batch [default: the model's]")
@click.option("--seq", type=click.IntRange(1), help="rows in a sequence [default: the model's]")
@click.option(
    "--study",
    type=click.Path(dir_okay=False, path_type=Path),
    help="file of the trials; a search that it holds is continued",
)
@click.option(
    "--workers",
    "where",
    default="1",
    show_default=True,
    help="processes, or a Ray cluster (ray://HOST:PORT); the trials are the same",
)
@click.option("--page", "page_path", type=click.Path(dir_okay=False), help="page of the trials to write (.html)")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="the best machine, with its program (.rsn)")
@click.option(
    "--overlay-out", type=click.Path(dir_okay=False), help="with --overlay: overlay file of the best machine (.toml)"
)
@click.option(
    "--schedule-out", type=click.Path(dir_okay=False), help="with --overlay: schedule file of the best machine (.toml)"
)
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
def tune_command(
    spec: str,
    onto: str,
    overlay: str | None,
    trials: int,
    seed: int,
    goals: tuple[str, ...],
    on_chip: int | None,
    batch: int | None,
    seq: int | None,
    study: Path | None,
    where: str,
    page_path: str | None,
    output: str | None,
    overlay_out: str | None,
    schedule_out: str | None,
    as_json: bool,
) -> None:
    """Search the knobs of a generated machine, or of an overlay of row lanes.

    SPEC is a model, as for rsn compile. Each trial generates a machine for it; with --overlay it changes the sizes of
    the overlay's memories and the schedule of the model. Its cost is the modelled latency, the bytes that it holds on
    the chip, or both. The same seed gives the same trials on any number of workers, and after an interruption.
    """
    require_torch("generating a machine")
    if output is not None and not output.endswith(".rsn"):
        raise click.UsageError(f"{output}: rsn tune writes a text (.rsn); rsn asm makes a .bin of it")
    if overlay is None:
        refuse_options(("overlay_out", "schedule_out"), "--overlay")
    else:
        refuse_options(("onto",), "a generated machine, not with --overlay")
    for path in (page_path, output, overlay_out, schedule_out):
        if path is not None:
            check_target(path)
    problem: search.BlockSearch | lane_search.LaneSearch
    if overlay is None:
        problem = search.BlockSearch(spec, onto.lower(), goals or ("latency",), on_chip, batch, seq, seed)
    else:
        problem = lane_search.LaneSearch(spec, overlay, goals or ("latency",), on_chip, batch, seq, seed)
    count = min(trials, size(problem.knobs))
    finished: list[Trial] = []
    with (
        working(f"searching a machine for {spec} on {overlay or onto}") as share,
        workers(problem, where) as evaluators,
    ):

        def observe(trial: Trial) -> None:
            finished.append(trial)
            share(min(1.0, len(finished) / count))

        near = overlay is not None  # of memories and schedules few fit together
        found = tune(problem, trials, seed=seed, file=study, workers=evaluators, observe=observe, neighbours=near)
    if page_path is not None:
        write_text(page_path, page(problem, found))
    lines: list[str] = []
    if found.best:
        files = {"program": output, "overlay": overlay_out, "schedule": schedule_out}
        lines = _written(
            problem, found.best[0].choice, {name: path for name, path in files.items() if path is not None}
        )
    if as_json:
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


def _facts(goals: tuple[str, ...], found: Result) -> dict[str, Any]:
    def one(trial: Trial) -> dict[str, Any]:
        costs = dict(zip(goals, trial.outcome.costs, strict=False))
        facts: dict[str, Any] = {"trial": trial.number, "knobs": dict(trial.choice), **costs}
        return facts | ({"refused": trial.outcome.refused} if trial.outcome.refused else {})

    return {"best": [one(trial) for trial in found.best], "trials": [one(trial) for trial in found.trials]}
