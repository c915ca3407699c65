"""Which weights of a program for xnn8 have 4 bits."""

from __future__ import annotations

import numpy as np

from ...expansion import ExpandedProgram
from ...program import Program
from .formats import PanelWeights


def with_four_bits(program: Program, expansion: ExpandedProgram) -> frozenset[str]:
    """Return the names of the segments whose weights have 4 bits. program: for xnn8; `KeyError` is raised for an
    overlay without a unit W. expansion: of the program."""
    short = np.array([isinstance(uop, PanelWeights) and bool(uop.int4) for uop in expansion.uops], np.bool_)
    of_w = short[expansion.sequences["W"].kinds]
    return frozenset(s.name for s in program.segments if any(of_w[a:b].any() for a, b in s.uops.get("W", ())))
