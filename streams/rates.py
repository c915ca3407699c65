"""Files that state how fast library kernels are: `[kernels]`, with the work that each does in a clock cycle, and
`[[variants]]`, kernels of a library with the contract of each."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from ..base.element_types import BITS
from ..base.errors import ProgramError
from ..isa.overlays.tasks.program import ELEMENTS
from .datapath import KernelVariant
from .kernels import KERNELS
from .reader import Rates

LONGEST = 1 << 16
"""Limit of a file, in bytes."""
VARIED = ("matmul", "rows", "elementwise")
"""Rules of the kernels that may have variants."""
MOST = 1 << 40
"""Limit of sizes and cycles."""


class KernelTable(NamedTuple):
    """What a file states. rates: work in a cycle. variants: in the order of the file."""

    rates: Rates
    variants: tuple[KernelVariant, ...]


def read_kernels(path: Path) -> KernelTable:
    """Read a file such as

    ```toml
    [kernels]      # work in a clock cycle
    matmul = 4096  # multiply-adds
    softmax = 16   # elements
    elements = 16  # elements of every other kernel

    [[variants]]
    kernel = "matmul"
    name = "gemm_16"
    tile = [16, 8, 16]  # rows, depth and columns of a call
    latency = 40        # cycles of a call
    interval = 8        # cycles from one call to the next
    ```

    `KernelVariant` has what else a variant may state. path: of the file. Raises `ProgramError`, naming the file and the
    fault, and `OSError` if the file cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(LONGEST + 1)
    try:
        given = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"{path}: no TOML: {error}") from None
    rates, variants = given.get("kernels", {}), given.get("variants", [])
    if not given or given.keys() - {"kernels", "variants"} or not isinstance(rates, dict) or not _are_tables(variants):
        raise ProgramError(f"{path}: it has a table [kernels], tables [[variants]], or both, and no others")
    for name, rate in rates.items():
        if name not in KERNELS and name != ELEMENTS:
            close = get_close_matches(name, (*KERNELS, ELEMENTS), n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join((*KERNELS, ELEMENTS))}"
            raise ProgramError(f"{path}: there is no kernel {name!r}; {hint}")
        if type(rate) not in (int, float) or not 0 < rate < 1e15:
            raise ProgramError(f"{path}: {name} = {rate!r}: work in a cycle, larger than 0")
    made = [_variant(table, f"{path}: variant {k}") for k, table in enumerate(variants, 1)]
    twice = sorted({v.name for v in made if sum(v.name == other.name for other in made) > 1})
    if twice:
        raise ProgramError(f"{path}: {twice[0]} is the name of several variants")
    return KernelTable(rates, tuple(made))


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(table, dict) for table in value)


def _variant(table: Mapping[str, Any], where: str) -> KernelVariant:
    """Read a variant. where: how a message begins. Raises `ProgramError`."""
    given = dict(table)
    kernel, name = given.pop("kernel", None), given.pop("name", None)
    if not isinstance(name, str) or not name:
        raise ProgramError(f"{where}: it has no name")
    where = f"{where}, {name}"
    if not isinstance(kernel, str) or kernel not in KERNELS or KERNELS[kernel].rule not in VARIED:
        known = ", ".join(name for name, one in KERNELS.items() if one.rule in VARIED)
        raise ProgramError(f"{where}: kernel = {kernel!r}: there are {known}")
    blank = KernelVariant(name, kernel, (), 0, 0)
    tile = _sizes(given.pop("tile", None), blank, f"{where}: tile")
    latency, interval = (_number(given.pop(key, None), f"{where}: {key}") for key in ("latency", "interval"))
    vectors = tuple(_number(one, f"{where}: vectors") for one in _list(given.pop("vectors", []), f"{where}: vectors"))
    layouts = _words(given.pop("layouts", []), ("rows", "columns"), f"{where}: layouts")
    types = _words(given.pop("types", []), tuple(BITS), f"{where}: types")
    shapes = _list(given.pop("shapes", []), f"{where}: shapes")
    if given:
        raise ProgramError(f"{where}: there is no {next(iter(given))}")
    for what, listed in (("vectors", vectors), ("layouts", layouts)):
        if listed and len(listed) != len(KERNELS[kernel].operands):
            names = ", ".join(KERNELS[kernel].operands)
            raise ProgramError(f"{where}: {len(listed)} {what}; the operands of {kernel} are {names}")
    sizes = tuple(_sizes(shape, blank, f"{where}: shapes") for shape in shapes)
    return KernelVariant(name, kernel, tile, latency, interval, vectors, layouts, types, sizes)


def _sizes(value: Any, variant: KernelVariant, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) != len(variant.sizes):
        raise ProgramError(f"{where} = {value!r}: {', '.join(variant.sizes)}")
    return tuple(_number(size, where) for size in value)


def _number(value: Any, where: str) -> int:
    if type(value) is not int or not 0 < value < MOST:
        raise ProgramError(f"{where} = {value!r}: a whole number, larger than 0")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ProgramError(f"{where} = {value!r}: a list")
    return value


def _words(value: Any, known: tuple[str, ...], where: str) -> tuple[str, ...]:
    if not all(word in known for word in _list(value, where)):
        raise ProgramError(f"{where} = {value!r}: of {', '.join(known)}")
    return tuple(value)
