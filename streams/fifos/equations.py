"""How many tokens wait on a FIFO between two kernels, each with one rate (StreamTensor, MICRO'25, 5.3.2).

A kernel that starts at cycle 0 puts its first token at cycle D (`first`), then one every II cycles (`interval`), T
tokens in all, the last one at L = D + (T - 1) * II. The target starts `delay` cycles after the source, not before its
first token, and gets a token every II cycles of its own. Convention of the paper's figure 8a: a token that is put at
cycle c can be got at cycle c + 1, so the target gets its first one at delay + 1 (in the beats of stream programs: the
put ends at c, the get begins at c).

As printed, the two equations differ from the exact count by at most one token: the one for a fast source is up to one
too large, the one for a slow source up to one too small, which makes a FIFO too short.
"""

from __future__ import annotations

from typing import Literal, get_args

from ...base.errors import ProgramError
from ..dataflow.graph import Timing

Equation = Literal["exact", "paper"]
"""`exact`: the peak of tokens in a run. `paper`: equations (1) and (2) as printed."""

AT_ONCE = 0
"""A slot takes a new token in the cycle in which its token is got: the paper's convention."""
NEXT_CYCLE = 1
"""A slot takes a new token in the cycle after the one in which its token is got: what the engine does."""


def max_tokens(
    source: Timing, target: Timing, delay: int, equation: Equation = "exact", free_after: int = AT_ONCE
) -> int:
    """Return the depth in tokens that a FIFO needs so that its source never waits: the most tokens that are in it at
    once (StreamTensor, section 5.3.2).

    source: when the FIFO's tokens are put. target: a token is got every `target.interval` cycles. delay: cycles from
    the start of the source to that of the target. equation: "exact" counts; "paper" takes the printed equations, which
    may return 0 (for a slow source and delay = D), although no FIFO is shorter than 1. free_after: when the slot of a
    token that was got is free: `AT_ONCE` or in the `NEXT_CYCLE`; the printed equations have only the first. Raises
    `ProgramError` for another equation, for a delay less than `source.first`, and for the printed equations with
    `NEXT_CYCLE`."""
    if equation not in get_args(Equation):
        raise ProgramError(f"{equation} is no equation; there are {', '.join(get_args(Equation))}")
    if delay < source.first:
        raise ProgramError(
            f"the target starts {delay} cycles after the source, whose first token comes after {source.first}; start "
            f"it at {source.first} or later"
        )
    tokens = source.tokens
    if equation == "paper":
        if free_after != AT_ONCE:
            raise ProgramError("the printed equations free a slot at once; take equation='exact' for other FIFOs")
        if source.interval <= target.interval:
            return min(tokens, tokens - (source.last - delay) // target.interval)
        return min(tokens, -((source.first - delay) // source.interval))
    delay += free_after
    if source.interval <= target.interval:
        return tokens - max(0, -((delay - source.last) // target.interval))
    return min(tokens, (delay - source.first) // source.interval + 1)
