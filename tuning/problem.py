"""What is searched: knobs, and a function that says how good a choice of them is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Protocol

from ..base.errors import RsnError, StudyError

Value = int | float | str | bool
Choice = Mapping[str, Value]
"""A value for each knob."""


@dataclass(frozen=True)
class Knob:
    """One thing that can be chosen. values: what it can be; for `tune(neighbours=True)` in an order in which neighbours
    are alike. Raises `StudyError` without values or with equal ones."""

    name: str
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) < len(self.values):
            raise StudyError(f"knob {self.name}: {list(self.values)} must be at least one value, all different")


@dataclass(frozen=True)
class Outcome:
    """What came of a choice. costs: one number for each goal, in the unit that its name says; less is better; empty if
    the choice was refused. facts: further numbers by name, for the report. refused: why nothing can be built like this;
    "" if something can."""

    costs: tuple[float, ...] = ()
    facts: Mapping[str, float] = field(default_factory=dict)
    refused: str = ""


class Problem(Protocol):
    """Something to search. Other processes and machines get it by pickle; `evaluate` must give the same outcome for the
    same choice wherever it runs. A study file belongs to one name."""

    @property
    def name(self) -> str:
        """What is searched, with all that its outcomes depend on, as text: two problems with one name have equal
        outcomes."""
        ...

    @property
    def goals(self) -> tuple[str, ...]:
        """The names of the costs, with units, such as "latency ms"."""
        ...

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """What a choice states a value of, at least one."""
        ...

    @property
    def start(self) -> tuple[Choice, ...]:
        """The choices to try first, such as the defaults."""
        ...

    def evaluate(self, choice: Choice) -> Outcome:
        """How good a choice is, with a value for each knob. Raises an `RsnError` if nothing can be built like this."""
        ...


def size(knobs: tuple[Knob, ...]) -> int:
    """Return how many choices there are: the product of the numbers of values of all knobs."""
    return prod(len(knob.values) for knob in knobs)


def outcome(problem: Problem, choice: Choice) -> Outcome:
    """Return what `problem.evaluate` returns for a choice; if it raises an `RsnError`, an outcome that is refused, with
    the message as the reason. Other exceptions are mistakes in the problem, and are not caught."""
    try:
        return problem.evaluate(choice)
    except RsnError as e:
        return Outcome(refused=str(e))
