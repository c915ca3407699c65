"""Programs of this folder with other constants."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ...base.errors import ProgramError

FOLDER = Path(__file__).parent


def program_text(name: str, **constants: int) -> str:
    """Return the text of NAME.py with other values of its constants, such as `program_text("ring", P=8)`. Lines keep
    their numbers. Raises `ProgramError` for a constant that the file does not assign a number."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    found = {target: node for target, node in _assigned(ast.parse(text)) if target in constants}
    if missing := constants.keys() - found.keys():
        raise ProgramError(f"{name}.py: there is no constant {', '.join(sorted(missing))}")
    for target, node in sorted(found.items(), key=lambda item: -item[1].col_offset):
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = f"{line[: node.col_offset]}{constants[target]}{line[node.end_col_offset :]}"
    return "".join(lines)


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.Constant]]:
    """The names that the top of a file assigns numbers, and these."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            target, value = statement.targets[0], statement.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=False))
            for name, number in pairs:
                if isinstance(name, ast.Name) and isinstance(number, ast.Constant):
                    yield name.id, number
