"""The C++ around regions that makes them a program for this computer, and the testbench for an HLS tool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .emit import HlsProgram, word_type

HEADERS = Path(__file__).resolve().parent
"""The folder of kernels.h."""


def native_text(programs: Sequence[HlsProgram]) -> str:
    """Return a C++ file with several regions and a `main` that runs one of them: its argument is the number of the
    region, from 0. It reads the tensors from stdin, and writes them to stdout (`csim.tasks.run_region`). The names of
    the programs must differ."""
    lines, rows = [], []
    for made in programs:
        lines.append(made.text)
        order = [t.name for t in made.program.tensors]
        given = []
        for a in made.arguments:
            k = order.index(a.tensor)
            moved = word_type(made.program.tensors[k], a.packed)
            given.append(f"reinterpret_cast<{moved} *>(memories[{k}].data())")
        for k, _ in enumerate(made.draws, len(order)):
            given += [f"reinterpret_cast<const bool *>(memories[{k}].data())", f"memories[{k}].size()"]
        unused = "" if given else "static_cast<void>(memories); "
        call = f"{made.name}_top({', '.join(given)});"
        rows.append(f"    {{[](rsn::csim::Memories &memories) {{ {unused}{call} }}, {len(order)}}},")
    lines += ["#include <tasks.h>", "", "static const rsn::csim::TaskRegion regions[] = {", *rows, "};", ""]
    lines.append("int main(int count, char **arguments) { return rsn::csim::run_region(count, arguments, regions); }")
    return "\n".join(lines) + "\n"
