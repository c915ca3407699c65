"""Runners of the programs of a model file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..boards.several import BoardName
from ..runner import Runner
from ..serving import Serving
from .file import Saved, SavedProgram

if TYPE_CHECKING:
    from ..serving.metrics import Metrics

Group = tuple[int, int]
"""Programs with the same weights: of which part of the file, as `Saved.same` says, and the number of the program there.
Pieces have groups of their own: programs with the same weights, or none, may compute different things."""


def open_runners(
    saved: Saved,
    board: Callable[[int], BoardName | None],
    *,
    xclbin: str | os.PathLike[str] | None,
    serving: Serving,
    metrics: Metrics | None,
    name: str,
) -> dict[Group, Runner]:
    """Open a runner for each group of programs, in the order in which calls need them.

    saved: the file. board: returns the board of a program, by the program's number; None for a program that is not
    opened. xclbin, serving, metrics, name: as for `Runner`; from the second runner on, a number follows the name. In a
    model in shards only the programs of the first round wait for other requests (`max_wait_s`), because a call has many
    rounds. Raises as `Runner`; then no runner is open.
    """
    rounds = saved.parts[0].rounds
    at_once = replace(serving, max_wait_s=0.0) if rounds else serving
    groups: dict[Group, list[SavedProgram]] = {}
    for part, same in zip(saved.parts, saved.same, strict=True):
        for number, program in part.on_machine.items():
            groups.setdefault((same, number), []).append(program)
    opened: dict[Group, Runner] = {}
    try:
        for group, members in groups.items():
            if (own := board(group[1])) is None:
                continue
            opened[group] = Runner(
                [program.program for program in members],
                weights=members[0].weights,
                board=own,
                xclbin=xclbin,
                serving=at_once if rounds and group[1] not in rounds[0].programs else serving,
                metrics=metrics,
                name=name if not opened else f"{name} {len(opened) + 1}",
            )
    except BaseException:
        for runner in opened.values():
            runner.close()
        raise
    return opened
