"""How often a loop runs, where that is a constant."""

from __future__ import annotations

import re

from .ir import Instruction, LlvmFunction, NaturalLoop
from .memory import Offset, step_of, sum_of


def _two_at_most(function: LlvmFunction, loop: NaturalLoop, at: str, branch: Instruction) -> int | None:
    """Iterations of a loop whose condition is one constant in the first and another in all others, as LLVM makes it of
    a loop of two iterations."""
    made = function.defined.get(branch.operands[0])
    if made is None or made.opcode != "phi" or made.block != loop.header or at not in loop.latches:
        return None
    first, again = ({v for v, b in made.incoming if (b in loop.latches) == back} for back in (False, True))
    stays = function.blocks[at].successors[0] in loop.blocks
    for turns, values in enumerate((first, again), 1):
        if values not in ({"true"}, {"false"}):
            return None
        if (values == {"true"}) != stays:
            return turns
    return None


def trips(function: LlvmFunction, loop: NaturalLoop) -> int | None:
    """Return how many iterations a loop has that counts from a constant to a constant; None for any other loop.
    function: in which the loop is."""
    exits = [b for b in loop.blocks if any(s not in loop.blocks for s in function.blocks[b].successors)]
    if len(exits) != 1:
        return None
    branch = function.blocks[exits[0]].instructions[-1]
    condition = function.defined.get(branch.operands[0]) if branch.operands else None
    if condition is not None and (turns := _two_at_most(function, loop, exits[0], branch)):
        return turns
    found = condition and re.search(r"^ (?:samesign )?(eq|ne|ult|slt|ugt|ule) i\d+ (%\S+), (\d+)$", condition.rest)
    if not found:
        return None
    value: Offset = sum_of(function, found[2])
    if len(value.terms) != 1:
        return None
    name, scale = value.terms[0]
    step, made = step_of(function, loop, name), function.defined.get(name)
    start = next((v for v, b in made.incoming if b not in loop.latches), "") if made else ""
    if not step or not re.fullmatch(r"-?\d+", start):
        return None
    left = int(found[3]) - int(start) * scale - value.constant
    turns = -(-left // (step * scale))
    if found[1] == "eq" and function.blocks[exits[0]].successors[0] in loop.blocks:
        turns = int(left == 0)  # it goes on only as long as they are equal: so LLVM writes a loop of two iterations
    checked_first = exits[0] == loop.header and exits[0] not in loop.latches
    return turns if checked_first else turns + 1
