"""The order in which panels of xnn8 take their steps: one panel after the other, or two in turn.

A panel alone leaves tiles or lanes idle: lanes while tiles multiply long rows, tiles while lanes make results of short
ones or norms. Steps of another panel, in other cells of X and T, fill these gaps. Both share X8, the factors of its
rows, and the norm of the latest rows that were sent. So one panel has these until the last step that needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .graph import Layer

Emit = Callable[[], None]
WIDTH = 32
"""Orders that are followed at a time."""


class PanelStep(NamedTuple):
    """What a panel does for a layer, without a break. layer: the layer. emit: emits its instructions. tiles, lanes:
    estimates of the seconds for which tiles and lanes are busy with it; lanes begin when tiles have ended. waits: it
    needs the results of the step before. walk: number of the latest walk (rows from X to X8), from 1 on, if this step
    is that walk or reads what it has left in X8; else 0. bound: it must directly follow the step before."""

    layer: Layer
    emit: Emit
    tiles: float = 0.0
    lanes: float = 0.0
    waits: bool = True
    walk: int = 0
    bound: bool = False


class PanelOrder(NamedTuple):
    """The steps of all panels in an order, each with the number of its panel; and about how many seconds they take."""

    steps: tuple[tuple[int, PanelStep], ...]
    seconds: float


class _Turns(NamedTuple):
    """How far panels under way are. at: of each turn, the number of its next step, over all its panels. tiles, lanes:
    until when these are busy. ready: of each turn, when its last results are there. work: seconds of tiles and lanes
    that were done. holder: the turn whose rows are in X8, or None. before, turn: the step before, and its turn."""

    at: tuple[int, ...]
    tiles: float
    lanes: float
    ready: tuple[float, ...]
    work: float
    holder: int | None
    before: _Turns | None
    turn: int

    def after(self, turn: int, step: PanelStep, *, ends: bool) -> _Turns:
        """Return the same behind a step. ends: no later step needs its walk."""
        begin = max(self.tiles, self.ready[turn]) if step.waits else self.tiles
        results = max(self.lanes, begin + step.tiles if step.tiles else self.ready[turn])
        # tiles compute the next block while lanes take the results of this one
        tiles, lanes = results if step.tiles else self.tiles, results + step.lanes
        at, ready = list(self.at), list(self.ready)
        at[turn], ready[turn] = at[turn] + 1, lanes
        work = self.work + step.tiles + step.lanes
        holder = self.holder if not step.walk else None if ends else turn
        return _Turns(tuple(at), tiles, lanes, tuple(ready), work, holder, self, turn)


def ordered(steps: Sequence[PanelStep], panels: int, turns: int) -> PanelOrder:
    """Return an order of the steps of all panels, in which `turns` panels are under way at a time: where one has ended,
    the next one begins.

    steps: of each panel, in their order. panels: number of panels. The order is the fastest that a beam search finds:
    among orders that have got through the same number of steps, it keeps those in which tiles and lanes have waited
    least.
    """
    last = {step.walk: at for at, step in enumerate(steps) if step.walk}
    """The step that is the last to need a walk."""
    counts = [len(range(turn, panels, turns)) * len(steps) for turn in range(turns)]

    def further(now: _Turns, turn: int) -> _Turns | None:
        if now.at[turn] == counts[turn]:
            return None
        step = steps[now.at[turn] % len(steps)]
        while True:
            if step.walk and now.holder not in (None, turn):
                return None
            now = now.after(turn, step, ends=last.get(step.walk) == now.at[turn] % len(steps))
            step = steps[now.at[turn] % len(steps)]
            if not step.bound:
                return now

    def waited(now: _Turns) -> float:
        return now.tiles + now.lanes - now.work

    begin = _Turns((0,) * turns, 0.0, 0.0, (0.0,) * turns, 0.0, None, None, 0)
    beams: dict[int, dict[tuple[int, ...], _Turns]] = {0: {begin.at: begin}}
    for count in range(sum(counts)):
        found = sorted(beams.pop(count, {}).values(), key=waited)[:WIDTH]
        for now in found:
            for turn in range(turns):
                new = further(now, turn)
                if new is None:
                    continue
                beam = beams.setdefault(sum(new.at), {})
                if new.at not in beam or waited(new) < waited(beam[new.at]):
                    beam[new.at] = new
    (best,) = beams[sum(counts)].values()
    made: list[tuple[int, PanelStep]] = []
    now = best
    while now.before is not None:
        of_turn = now.before.at[now.turn]
        made.append((now.turn + of_turn // len(steps) * turns, steps[of_turn % len(steps)]))
        now = now.before
    return PanelOrder(tuple(reversed(made)), max(best.tiles, best.lanes))
