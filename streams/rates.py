"""Files that state how fast library kernels are: `[kernels]`, with the work that each does in a clock cycle, and
`[[variants]]`, kernels of a library with the contract of each."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from ..base.element_types import BITS
from ..base.errors import ProgramError
from ..isa.overlays.tasks.kernels import KERNELS as MACHINE_KERNELS
from ..isa.overlays.tasks.program import ELEMENTS
from .datapath import COLUMNS, ROWS, KernelVariant, block_of, by
from .kernels import KERNELS
from .reader import Rates

LONGEST = 1 << 16
"""Limit of a file, in bytes."""
VARIED = ("matmul", "rows", "elementwise")
"""Rules of the kernels that may have variants."""
MOST = 1 << 40
"""Limit of sizes and cycles."""
TAKEN = "kernels.h"
"""The header of all C++ of stream programs, which lies in the same folder."""
_HEADER = re.compile(r"[\w.+-]+\.(?:h|hh|hpp)")
_CALL = re.compile(r"(?:::)?[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*(?:<[\w\s,:<>]*>)?")
_BLOCKS = re.compile(r"[1-9]\d{0,5}x[1-9]\d{0,5}")


class KernelTable(NamedTuple):
    """What a file of kernels states. rates: work in a clock cycle, by kernel, as for `Datapath`. variants: in the order
    of the file."""

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
    source = "gemm.h"   # its C++ header, beside the table
    call = "gemm_16"    # its name there
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
    made = [_variant(table, path, f"{path}: variant {k}") for k, table in enumerate(variants, 1)]
    twice = sorted({v.name for v in made if sum(v.name == other.name for other in made) > 1})
    if twice:
        raise ProgramError(f"{path}: {twice[0]} is the name of several variants")
    headers = {Path(v.source) for v in made if v.source}
    alike = sorted(one.name for one in headers if sum(one.name == other.name for other in headers) > 1)
    if alike:
        raise ProgramError(f"{path}: {alike[0]} is the name of several headers, which lie in one folder as C++")
    return KernelTable(rates, tuple(made))


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(table, dict) for table in value)


def _variant(table: Mapping[str, Any], path: Path, where: str) -> KernelVariant:
    """Read a variant. path: of the file. where: how a message begins. Raises `ProgramError`."""
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
    layouts = tuple(_layout(one, f"{where}: layouts") for one in _list(given.pop("layouts", []), f"{where}: layouts"))
    types = _words(given.pop("types", []), tuple(BITS), f"{where}: types")
    shapes = _list(given.pop("shapes", []), f"{where}: shapes")
    function = given.pop("source", ""), given.pop("call", "")
    if given:
        raise ProgramError(f"{where}: there is no {next(iter(given))}")
    for what, listed in (("vectors", vectors), ("layouts", layouts)):
        if listed and len(listed) != len(KERNELS[kernel].operands):
            names = ", ".join(KERNELS[kernel].operands)
            raise ProgramError(f"{where}: {len(listed)} {what}; the operands of {kernel} are {names}")
    sizes = tuple(_sizes(shape, blank, f"{where}: shapes") for shape in shapes)
    made = KernelVariant(name, kernel, tile, latency, interval, vectors, layouts, types, sizes)
    for number, layout in enumerate(layouts):
        part, block = made.call_tile(number), block_of(layout)
        if block and any(size % one for size, one in zip(part, block, strict=True)):
            operand = KERNELS[kernel].operands[number]
            raise ProgramError(f"{where}: layouts: a call takes {by(part)} of {operand}: no whole blocks of {layout}")
    return _with_function(made, *function, path.parent, where) if any(function) else made


def _with_function(variant: KernelVariant, source: Any, call: Any, folder: Path, where: str) -> KernelVariant:
    """Return a variant with its C++. source: path of the header. call: a function of it. folder: of the table."""
    if not isinstance(source, str) or not source:
        raise ProgramError(f"{where}: it has call = {call!r}, and no source: the C++ header with that function")
    if not isinstance(call, str) or not _CALL.fullmatch(call):
        raise ProgramError(f"{where}: call = {call!r}: the name of a function in {source}, or of a template as f<4>")
    path = folder / source
    if not _HEADER.fullmatch(path.name) or path.name == TAKEN:
        named = f"the path of a C++ header (.h, .hh, .hpp) of another name than {TAKEN}"
        raise ProgramError(f"{where}: source = {source!r}: {named}")
    if not path.is_file():
        raise ProgramError(f"{where}: source = {source!r}: there is no file {path}")
    if variant.kernel not in MACHINE_KERNELS:
        raise ProgramError(f"{where}: {variant.kernel} stands for several operators, so it has no C++")
    if variant.interval > variant.latency + 1:
        after = f"a call ends {variant.latency} cycles after it begins, and the next one begins a cycle later"
        raise ProgramError(f"{where}: interval = {variant.interval}: {after}, so it is at most {variant.latency + 1}")
    return replace(variant, source=str(path), call=call)


def _layout(value: Any, where: str) -> str:
    if isinstance(value, str) and (value in (ROWS, COLUMNS) or _BLOCKS.fullmatch(value)):
        return value
    raise ProgramError(f"{where} = {value!r}: of {ROWS}, {COLUMNS}, and blocks of rows x columns such as 4x8")


def _sizes(value: Any, variant: KernelVariant, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) != len(variant.sizes):
        raise ProgramError(f"{where} = {value!r}: {', '.join(variant.sizes)}")
    return tuple(_number(size, where) for size in value)


def _number(value: Any, where: str) -> int:
    if type(value) is not int or not 0 < value < MOST:
        raise ProgramError(f"{where} = {value!r}: a whole number, larger than 0 and smaller than {MOST}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ProgramError(f"{where} = {value!r}: a list")
    return value


def _words(value: Any, known: tuple[str, ...], where: str) -> tuple[str, ...]:
    if not all(word in known for word in _list(value, where)):
        raise ProgramError(f"{where} = {value!r}: of {', '.join(known)}")
    return tuple(value)
