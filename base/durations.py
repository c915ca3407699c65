"""Durations as text, in the largest unit in which the number is at least 1."""

from __future__ import annotations

UNITS = (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9))
"""Name of a unit of time, and how many of it make one second."""


def unit_of(seconds: float) -> tuple[str, float]:
    """Return the unit in which to show a duration with three decimals: its name, and how many of it make one second.

    Less than a nanosecond is shown in nanoseconds; 0, inf and NaN in seconds.
    """
    if seconds == 0:
        return UNITS[0]
    # rounded as it will be shown: 999.9996 us becomes 1.000 ms, not 1000.000 us
    return next((unit for unit in UNITS if not round(abs(seconds) * unit[1] * 1e3, 3) < 1000), UNITS[-1])


def duration(seconds: float) -> str:
    """Format a duration with three decimals and its unit, e.g. `18.059 ms`, `419.231 ns`."""
    name, factor = unit_of(seconds)
    return f"{seconds * factor:.3f} {name}"
