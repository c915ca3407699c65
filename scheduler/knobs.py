"""What a knob may be, in Python as in a file."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from functools import cache
from numbers import Integral, Real
from types import NoneType
from typing import Any, get_args, get_type_hints

from ..base.errors import ScheduleError


@cache
def types_of(made: Any) -> dict[str, Any]:
    """The type of each knob; looked up once, because a search makes many schedules."""
    return get_type_hints(made)


def check(knobs: Any, but: tuple[str, ...] = ()) -> None:
    """Make the knobs of a frozen dataclass values of their types. Raises `ScheduleError`."""
    made: Any = type(knobs)
    types = types_of(made)
    for f in fields(knobs):
        given = getattr(knobs, f.name)
        if f.name in but or (given is None and NoneType in get_args(types[f.name])):
            continue
        value = converted(types[f.name], given, f.name)
        if value is not given:
            object.__setattr__(knobs, f.name, value)


def converted(wanted: Any, given: Any, name: str) -> Any:
    """A value as one of a knob's type, such as int or Loops | None. Raises `ScheduleError`."""
    wanted = next((x for x in get_args(wanted) if isinstance(x, type) and x is not NoneType), wanted)
    if issubclass(wanted, Enum):
        try:
            return wanted(given)
        except ValueError:
            raise ScheduleError(f"{name} = {given!r}: one of {', '.join(repr(m.value) for m in wanted)}") from None
    if wanted is str:
        if not isinstance(given, list | tuple) or not all(isinstance(kind, str) for kind in given):
            raise ScheduleError(f"{name} = {given!r}: a list of kinds of segments")
        return tuple(given)
    if wanted is bool:
        if not isinstance(given, bool):
            raise ScheduleError(f"{name} = {given!r}: true or false")
        return given
    if wanted not in (int, float):
        if type(given) is not wanted:  # a Schedule is no Tiles here, though it has all their knobs
            raise ScheduleError(f"{name} = {given!r}: {wanted.__name__}(...)")
        return given
    if isinstance(given, bool) or not isinstance(given, Real):
        raise ScheduleError(f"{name} = {given!r}: a number")
    if wanted is int and not isinstance(given, Integral):
        raise ScheduleError(f"{name} = {given!r}: a whole number")
    try:
        return wanted(given)
    except OverflowError:  # a whole number that is no float
        raise ScheduleError(f"{name}: too large a number") from None
