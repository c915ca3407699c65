"""Durations as text: in the largest unit in which they are 1 or more."""

from __future__ import annotations

UNITS = (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9))
"""Name, and how many of it make a second."""


def unit_of(seconds: float) -> tuple[str, float]:
    """The unit that shows a duration with three decimals, and how many of it make a second. What is less than a
    nanosecond is in nanoseconds; what is no number, and 0, in seconds."""
    if seconds == 0:
        return UNITS[0]
    # as it would be rounded in the unit below: 999.9996 us is 1.000 ms, not 1000.000 us
    return next((unit for unit in UNITS if not round(abs(seconds) * unit[1] * 1e3, 3) < 1000), UNITS[-1])


def duration(seconds: float) -> str:
    """With three decimals: 18.059 ms, 419.231 ns."""
    name, factor = unit_of(seconds)
    return f"{seconds * factor:.3f} {name}"
