"""A mistake in a kernel shows: in what some small program computes, in whether it ends, or in how long it takes."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from rsn.base.errors import DeadlockError
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN
from rsn.tests.effort import FULL, LONG, in_both, long
from rsn.tests.isa.mutants.catalogue import FIRST, PROGRAMS, SECONDS
from rsn.tests.isa.mutants.kernels import KERNELS
from rsn.tests.isa.mutants.mutate import MODULES, Mutant

SLOW = ("MemC", "MME", "softmax", "parts", "heads and gates", "statistics")
"""Kernels with many mutants, or whose programs take long."""


def difference(program: str, overlay: Overlay) -> str:
    """How a program comes out otherwise than it should; empty if it does not."""
    try:
        with threadpool_limits(1):  # tiles are too small for threads of BLAS
            outcome = PROGRAMS[program](overlay)
    except DeadlockError:
        return "deadlock"
    except Exception as e:  # whatever a mutant leads to
        return type(e).__name__
    for found, expected in zip(outcome.found, outcome.expected, strict=True):
        if not np.allclose(found, expected, rtol=1e-5, atol=1e-4, equal_nan=True):
            return "result"
    return "" if outcome.seconds == pytest.approx(SECONDS[program], rel=1e-9) else "time"


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_programs_are_right(program: str) -> None:
    assert difference(program, XNN) == ""


@in_both
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy on what mutants make of numbers
@pytest.mark.parametrize("kernel", [long(k) if k in SLOW else k for k in KERNELS])
def test_mistakes_are_found(kernel: str) -> None:
    """Every mutant of a kernel, of which the long tests try half, and a quick run a sixth; the programs that find most
    mistakes come first."""
    programs = list(dict.fromkeys([*FIRST[kernel], *PROGRAMS]))
    survivors = []
    for mutant in KERNELS[kernel][:: 1 if FULL else 2 if LONG else 6]:
        overlay = mutant.overlay()
        if not any(difference(program, overlay) for program in programs):
            survivors.append(str(mutant))
    assert survivors == []
    assert len(KERNELS[kernel]) >= 10


def test_a_mutant_changes_one_place_and_leaves_no_trace() -> None:
    before = {name: sys.modules[name] for name in MODULES.values()}
    mutant = Mutant("mem_a", "self._send(uop, cur)", "self._send(uop, self.beside(cur, 1))")
    assert difference("flags", mutant.overlay()) == "result"
    assert before == {name: sys.modules[name] for name in MODULES.values()}
    assert difference("flags", Mutant("mem_a", "self._send(uop, cur)", "self._send(uop, cur)").overlay()) == ""
    for text, times in (("no such line", 0), ("uop.acc_a", 3)):
        with pytest.raises(AssertionError, match=rf"{times} times in mem_a\.py"):
            Mutant("mem_a", text, "").overlay()
