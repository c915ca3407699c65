"""The C++ around regions that makes them a program for this computer, and the testbench for an HLS tool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .emit import HlsProgram, word_type

HEADERS = Path(__file__).resolve().parent
"""The folder of kernels.h."""


def native_text(programs: Sequence[HlsProgram]) -> str:
    """Return a C++ file with several regions and a `main` that runs the one whose number, from 0, is its argument. It
    reads the tensors from stdin, and writes them to stdout (`csim.tasks.run_region`). programs: of the regions, with
    different names."""
    rows = [(region_call(made), len(made.program.tensors)) for made in programs]
    return native_main([made.text for made in programs], rows)


def region_call(made: HlsProgram) -> str:
    """Return the statements of C++ that run a region on `memories`, a vector with the bytes of each tensor."""
    order = [t.name for t in made.program.tensors]
    given, before, behind = [], [], []
    for a in made.arguments:
        k = order.index(a.tensor)
        moved = word_type(made.program.tensors[k], a.packed)
        whole = f"reinterpret_cast<{moved} *>(memories[{k}].data())"
        given.append(whole if a.channel is None else f"channels_{k}.channel<{moved}>({a.channel})")
    for k, tensor in enumerate(made.program.tensors):
        if len(tensor.channels) > 1:
            bytes_ = f"memories[{k}].data()"
            before.append(f"rsn::Channels channels_{k}({bytes_}, memories[{k}].size(), {len(tensor.channels)});")
            behind.append(f"channels_{k}.join({bytes_});")
    for k, _ in enumerate(made.draws, len(order)):
        given += [f"reinterpret_cast<const bool *>(memories[{k}].data())", f"memories[{k}].size()"]
    for k, _ in enumerate(made.sizes, len(order) + len(made.draws)):
        given.append(f"rsn::csim::number(memories[{k}])")
    unused = "" if given else "static_cast<void>(memories); "
    call = " ".join((*before, f"{made.name}_top({', '.join(given)});", *behind))
    return f"{unused}{call}"


def native_main(texts: Sequence[str], regions: Sequence[tuple[str, int]]) -> str:
    """Return a C++ file with a `main` that runs one of several regions. texts: the C++ of each region. regions: for
    each, the statement that calls it, in which `memories[k]` are the bytes of memory k, and how many of the memories
    are written back."""
    rows = [f"    {{[](rsn::csim::Memories &memories) {{ {call} }}, {count}}}," for call, count in regions]
    lines = [*texts, "#include <tasks.h>", "", "static const rsn::csim::TaskRegion regions[] = {", *rows, "};", ""]
    lines.append("int main(int count, char **arguments) { return rsn::csim::run_region(count, arguments, regions); }")
    return "\n".join(lines) + "\n"
