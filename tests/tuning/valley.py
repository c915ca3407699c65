"""A small problem, in a module that the processes of a search can import."""

from __future__ import annotations

from dataclasses import dataclass

from rsn.base.errors import ScheduleError
from rsn.tuning.problem import Choice, Knob, Outcome


@dataclass(frozen=True)
class Valley:
    """Costs with one lowest point, (3, 8), and a side that cannot be built."""

    name: str = "valley"
    goals: tuple[str, ...] = ("cost",)
    knobs: tuple[Knob, ...] = (Knob("x", tuple(range(10))), Knob("y", (1, 2, 4, 8, 16)))
    start: tuple[Choice, ...] = ({"x": 5, "y": 4},)

    def evaluate(self, choice: Choice) -> Outcome:
        x, y = float(choice["x"]), float(choice["y"])
        if x == 9:
            raise ScheduleError("x = 9 does not fit")
        cost = (x - 3) ** 2 + abs(y - 8)
        return Outcome((cost, x)[: len(self.goals)], {"y": y})
