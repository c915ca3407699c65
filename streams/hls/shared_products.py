"""Products of a task that one array of multipliers computes in turn: C++ calls one function for all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .kinds import ValueKind

FUNCTION = "RSN_PRODUCT_OF"
"""Stands for the name of a task in the names of functions that it calls for products; the number follows."""

_CALL = re.compile(r"^(\s*)(rsn::matmul_from<.*?>)\((\w+), (.*), (\w+)\);$")
_NAME = re.compile(r"(?<![\w:.])[A-Za-z_]\w*(?!\w|::)")
"""A name of a variable, or of a type of C++, that no namespace stands before."""

TYPES = frozenset(("bool", "double", "false", "float", "int", "true"))


def with_shared_functions(
    lines: Sequence[str], tiles: Mapping[str, ValueKind], streams: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Return the lines of a function in which equal products of different tiles call a common function, and the lines
    of these functions. HLS makes one block of a function that is called several times, one call after the other
    (UG1399, pragma HLS function_instantiate); of two loops it makes two arrays of multipliers.

    lines: of the function. tiles: the kinds of its variables that are tiles, by C++ name. streams: the C++ type of each
    parameter that is a stream, by its name."""
    found: dict[tuple[str, tuple[ValueKind, ...]], list[tuple[int, str, list[str]]]] = {}
    for k, line in enumerate(lines):
        call = _CALL.match(line)
        if call and call[3] in tiles and call[5] in streams and {*_NAME.findall(call[4])} <= tiles.keys() | TYPES:
            names = [call[3], *dict.fromkeys(name for name in _NAME.findall(call[4]) if name in tiles)]
            product = f"{call[2]}(x0, {_numbered(call[4], names)}, {call[5]});"
            key = product, tuple(tiles[name] for name in names)
            found.setdefault(key, []).append((k, call[1], [*names, call[5]]))
    made, functions = list(lines), list[str]()
    for number, ((product, kinds), calls) in enumerate((key, of) for key, of in found.items() if len(of) > 1):
        name = f"{FUNCTION}_{number}"
        tiles_given = [f"{'const ' if k else ''}{kind.cpp} &x{k}" for k, kind in enumerate(kinds)]
        stream = calls[0][2][-1]
        functions += [
            f"__attribute__((noinline)) static void {name}({', '.join(tiles_given)}, {streams[stream]} &{stream}) {{",
            "#pragma HLS inline off",
            f"    {product}",
            "}",
        ]
        for k, indent, given in calls:
            made[k] = f"{indent}{name}({', '.join(given)});"
    return made, functions


def _numbered(text: str, names: Sequence[str]) -> str:
    """A text in which names are x and their place among `names`."""
    return _NAME.sub(lambda name: f"x{names.index(name[0])}" if name[0] in names else name[0], text)
