"""Type checks of a schedule's knobs, whether they come from Python or from a file; the knobs of tiles, and of lanes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from numbers import Integral, Real
from types import NoneType
from typing import Any, get_args, get_type_hints

from ..base.errors import ScheduleError


@cache
def types_of(made: Any) -> dict[str, Any]:
    """The type of each field of a dataclass. Cached, because a search makes many schedules."""
    return get_type_hints(made)


def check(knobs: Any, skip: tuple[str, ...] = ()) -> None:
    """Convert the fields of a frozen dataclass to their types, in place, except those in `skip`. Raises `ScheduleError`
    for a value that cannot be converted."""
    made: Any = type(knobs)
    types = types_of(made)
    for f in fields(knobs):
        given = getattr(knobs, f.name)
        if f.name in skip or (given is None and NoneType in get_args(types[f.name])):
            continue
        value = converted(types[f.name], given, f.name)
        if value is not given:
            object.__setattr__(knobs, f.name, value)


def converted(knob_type: Any, given: Any, name: str) -> Any:
    """Convert a value to the type of a knob, such as int or Loops | None. name: of the knob, for messages. Raises
    `ScheduleError`."""
    knob_type = next((x for x in get_args(knob_type) if isinstance(x, type) and x is not NoneType), knob_type)
    if issubclass(knob_type, Enum):
        try:
            return knob_type(given)
        except ValueError:
            values = ", ".join(repr(m.value) for m in knob_type)
            raise ScheduleError(f"{name} = {given!r}: must be one of {values}") from None
    if knob_type is str:
        if not isinstance(given, list | tuple) or not all(isinstance(kind, str) for kind in given):
            raise ScheduleError(f"{name} = {given!r}: must be a list of kinds of segments (strings)")
        return tuple(given)
    if knob_type is bool:
        if not isinstance(given, bool):
            raise ScheduleError(f"{name} = {given!r}: must be true or false")
        return given
    if knob_type not in (int, float):
        if type(given) is not knob_type:  # not isinstance: a Schedule is a subclass of Tiles, but no valid value here
            raise ScheduleError(f"{name} = {given!r}: must be {knob_type.__name__}(...)")
        return given
    if isinstance(given, bool) or not isinstance(given, Real):
        raise ScheduleError(f"{name} = {given!r}: must be a number")
    if knob_type is int and not isinstance(given, Integral):
        raise ScheduleError(f"{name} = {given!r}: must be a whole number")
    try:
        return knob_type(given)
    except OverflowError:  # a whole number beyond the range of float
        raise ScheduleError(f"{name}: the number is too large") from None


@dataclass(frozen=True)
class Tiles:
    """Limits on how products are cut into output tiles.

    tile_rows, tile_cols: largest output tile, in blocks of 128 rows and of 128 columns (paper section 5.3: 768x1024).
    mme_rows, mme_cols: largest grid of MMEs that computes one tile; each MemA feeds a row of the grid, each MemB a
    column. A machine that holds less than the defaults takes what it holds; `tile` refuses other values that it cannot
    hold. Raises `ScheduleError` for numbers below 1.
    """

    tile_rows: int = 6
    tile_cols: int = 8
    mme_rows: int = 3
    mme_cols: int = 2

    @property
    def words(self) -> str:
        """Tile size in elements, and the grid if it is not the default, as text for the log of a search."""
        grid = "" if (self.mme_rows, self.mme_cols) == (3, 2) else f" on {self.mme_rows}x{self.mme_cols} MMEs"
        return f"tiles of {128 * self.tile_rows}x{128 * self.tile_cols}{grid}"

    def __post_init__(self) -> None:
        check(self, skip=("segments", "tiles", "rules"))  # fields of the subclass Schedule, which checks them itself
        for f in fields(Tiles):
            if getattr(self, f.name) < 1:
                raise ScheduleError(f"{f.name}={getattr(self, f.name)}: must be at least 1")


class LaneMode(Enum):
    """How the lanes of an overlay share rows and columns (`scheduler/lanes/modes.py`)."""

    R6 = "R6"
    """Six row tiles, one for each lane."""
    P3 = "P3"
    """Three row tiles, one for each pair of lanes, whose lanes share the columns."""


@dataclass(frozen=True)
class LaneKnobs:
    """How an overlay of row lanes computes a network.

    mode: None takes the one that takes less time. lag: groups of scores by which probabilities times values are behind
    them, a group being one head of a row tile of each pair; None takes 3, or what there is room for. trail: rounds of
    attention by which the slices of the output projection are behind the scores of their heads. hidden: slots of T for
    activated tiles between the two products of a feed-forward. lpddr: the share of the weights that the bank of weights
    has in mode P3, which is then taken; None lets both banks take the same time. Raises `ScheduleError` for values out
    of range; a network for which there is no room with them is refused when it is lowered.
    """

    mode: LaneMode | None = None
    lag: int | None = None
    trail: int = 2
    hidden: int = 3
    lpddr: float | None = None

    def __post_init__(self) -> None:
        check(self)
        for name, least in (("lag", 0), ("trail", 1), ("hidden", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ScheduleError(f"lanes.{name} = {value}: must be at least {least}")
        if self.lpddr is not None and not 0.5 <= self.lpddr <= 1:
            raise ScheduleError(f"lanes.lpddr = {self.lpddr}: must be from 0.5 to 1, a share of the weights")
        if self.lpddr is not None and self.mode is LaneMode.R6:
            raise ScheduleError("lanes.lpddr is for mode P3: in mode R6 all weights lie in one bank")


USUAL_LANES = LaneKnobs()
