"""Files that state how fast library kernels are: `[kernels]`, with the work that each does in a clock cycle."""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from pathlib import Path

from ..base.errors import ProgramError
from ..isa.overlays.tasks.program import ELEMENTS
from .kernels import KERNELS
from .reader import Rates

LONGEST = 1 << 16
"""Limit of a file, in bytes."""


def read_rates(path: Path) -> Rates:
    """Read a file such as

    ```toml
    [kernels]      # work in a clock cycle
    matmul = 4096  # multiply-adds
    softmax = 16   # elements
    elements = 16  # elements of every other kernel
    ```

    Raises `ProgramError`, naming the file and the fault, or `OSError`.
    """
    with path.open("rb") as file:
        data = file.read(LONGEST + 1)
    try:
        given = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"{path}: no TOML: {error}") from None
    table = given.get("kernels")
    if list(given) != ["kernels"] or not isinstance(table, dict):
        raise ProgramError(f"{path}: it has one table, [kernels]")
    for name, rate in table.items():
        if name not in KERNELS and name != ELEMENTS:
            close = get_close_matches(name, (*KERNELS, ELEMENTS), n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join((*KERNELS, ELEMENTS))}"
            raise ProgramError(f"{path}: there is no kernel {name!r}; {hint}")
        if type(rate) not in (int, float) or not 0 < rate < 1e15:
            raise ProgramError(f"{path}: {name} = {rate!r}: work in a cycle, larger than 0")
    return table
