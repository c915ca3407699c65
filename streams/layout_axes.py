"""Which axis of a task's grid cuts each axis of a tensor."""

from __future__ import annotations

import re


def axes_of(layout: str | None, rank: int) -> tuple[int, ...]:
    """The axes of a layout's text, such as (0, -1) of "S0R"; -1 is a copy everywhere. rank: of the tensor."""
    labels = re.findall(r"R|S\d+", layout or "")
    return tuple(-1 if label == "R" else int(label[1:]) for label in labels) or (-1,) * rank
