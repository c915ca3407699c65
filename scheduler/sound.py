"""The checks that each program passes that the compiler makes: those of `rsn check`, on its own work.

Order and hazards in memory, tokens, contents of slots and tiles, counts of streams: what a wrong lowering breaks is
mostly one of these, and no input is needed to see it. They are arrays, and take a few percent of the time to compile.
"""

from __future__ import annotations

import re

from ..base.errors import CompilerError
from ..base.finding import Finding
from ..isa.program import Program
from ..isa.verify import check
from .schedule import Schedule

SHOWN = 5
"""How many findings an error lists."""


def require_sound(program: Program, schedule: Schedule) -> None:
    """Raise `CompilerError` with the layer, the code and the text of each error that `rsn check` finds in a program
    that the compiler made by a schedule. Loads of whole tiles include rows of padding, which no store writes (H01)."""
    harmless = {"H01"} if schedule.whole_tiles else set()
    errors = [finding for finding in check(program) if not finding.warning and finding.code not in harmless]
    if not errors:
        return
    listed = [f"{_layer(program, finding)}{finding}" for finding in errors[:SHOWN]]
    more = [f"... and {len(errors) - SHOWN} more"] * (len(errors) > SHOWN)
    raise CompilerError(
        "the compiler made a program that its own checks refuse. This is an error of rsn, or of a pass that replaces "
        "one of its own, not of the model: please report it\n" + "\n".join(listed + more)
    )


def _layer(program: Program, finding: Finding) -> str:
    """The layers of the segment that a finding is about, before its text; empty if it names no uOP of one."""
    named = re.match(r"(\w+) uOP (\d+)", finding.message)
    if named is None:
        return ""
    unit, uop = named[1], int(named[2])
    for segment in program.segments:
        if any(first <= uop < end for first, end in segment.uops.get(unit, ())):
            return f"{', '.join(filter(None, segment.layers)) or segment.name}: "
    return ""
