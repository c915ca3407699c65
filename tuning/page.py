"""The trials of a study as a page, with Optuna's own plots."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

from ..base.errors import require
from .problem import Problem
from .study import INSTALL, StudyResult, Trial

TABLE_ROWS = 200
"""Trials in the table; the plots show all."""


def page(problem: Problem, result: StudyResult) -> str:
    """Return the text of an HTML page that needs no network: a table of the trials, for each goal its history and the
    costs by knob, and for several goals the front. Raises `MissingError` without Optuna or plotly."""
    require("plotly", "a page of trials", INSTALL)
    figures = []
    for number, figure in enumerate(_figures(problem, result)):
        # As wide as the page: Optuna makes some plots wider.
        figure.update_layout(width=None)
        figures.append(figure.to_html(full_html=False, include_plotlyjs="inline" if number == 0 else False))
    title = html.escape(problem.name)
    refused = sum(1 for trial in result.trials if trial.outcome.refused)
    lead = f"{len(result.trials)} trials, {refused} of them refused because nothing can be built like this."
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
        "table{border-collapse:collapse}td,th{padding:.15rem .7rem;border-bottom:1px solid #ccc;text-align:right}"
        f"</style><h1>{title}</h1><p>{lead}</p>{_table(problem, result)}{''.join(figures)}</html>\n"
    )


def _figures(problem: Problem, result: StudyResult) -> Iterator[Any]:
    from optuna import visualization as plots

    if not any(trial.outcome.costs for trial in result.trials):
        return
    for index, goal in enumerate(problem.goals):

        def cost(trial: Any, index: int = index) -> float:
            return float(trial.values[index])

        # Optuna wants no target for a study with one goal: it then knows that less is better.
        named: dict[str, Any] = {"target_name": goal} | ({"target": cost} if len(problem.goals) > 1 else {})
        yield plots.plot_optimization_history(result.study, **named)
        if sum(1 for trial in result.trials if trial.outcome.costs) > 1:
            yield plots.plot_slice(result.study, **named)
            yield plots.plot_parallel_coordinate(result.study, **named)
    if len(problem.goals) in (2, 3):
        yield plots.plot_pareto_front(result.study, target_names=list(problem.goals))


def _table(problem: Problem, result: StudyResult) -> str:
    heads = ["trial", *(knob.name for knob in problem.knobs), *problem.goals, ""]
    best = {trial.number for trial in result.best}

    def row(trial: Trial) -> str:
        costs = [f"{cost:.6g}" for cost in trial.outcome.costs] or [""] * len(problem.goals)
        remark = "best" if trial.number in best else trial.outcome.refused
        cells = [str(trial.number), *(str(trial.choice[knob.name]) for knob in problem.knobs), *costs, remark]
        return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"

    ordered = sorted(result.trials, key=lambda t: (not t.outcome.costs, t.outcome.costs, t.number))
    rows = "".join(map(row, ordered[:TABLE_ROWS]))
    return f"<table><tr>{''.join(f'<th>{html.escape(head)}</th>' for head in heads)}</tr>{rows}</table>"
