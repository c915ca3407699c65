"""How often a loop runs, where that is a constant."""

from __future__ import annotations

import re

from .ir import LlvmFunction, NaturalLoop
from .memory import Offset, sum_of


def step_of(function: LlvmFunction, loop: NaturalLoop, value: str) -> int | None:
    """How much a value at the head of a loop grows from iteration to iteration, None if that is not known."""
    made = function.defined.get(value)
    if made is None or made.opcode != "phi" or made.block != loop.header:
        return None
    steps = set[int]()
    for next_value, block in made.incoming:
        if block in loop.latches:
            grown = sum_of(function, next_value)
            if grown.terms != ((value, 1),):
                return None
            steps.add(grown.constant)
    return steps.pop() if len(steps) == 1 else None


def trips(function: LlvmFunction, loop: NaturalLoop) -> int | None:
    """Return the iterations of a loop that counts from a constant to a constant, else None."""
    exits = [b for b in loop.blocks if any(s not in loop.blocks for s in function.blocks[b].successors)]
    if len(exits) != 1:
        return None
    branch = function.blocks[exits[0]].instructions[-1]
    condition = function.defined.get(branch.operands[0]) if branch.operands else None
    found = condition and re.search(r"^ (?:samesign )?(?:eq|ne|ult|slt|ugt|ule) i\d+ (%\S+), (\d+)$", condition.rest)
    if not found:
        return None
    value: Offset = sum_of(function, found[1])
    if len(value.terms) != 1:
        return None
    name, scale = value.terms[0]
    step, made = step_of(function, loop, name), function.defined.get(name)
    start = next((v for v, b in made.incoming if b not in loop.latches), "") if made else ""
    if not step or not re.fullmatch(r"-?\d+", start):
        return None
    turns = -(-(int(found[2]) - int(start) * scale - value.constant) // (step * scale))
    checked_first = exits[0] == loop.header and exits[0] not in loop.latches
    return turns if checked_first else turns + 1
