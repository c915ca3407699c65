"""One word, one class: no two classes outside the tests have the same name."""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from rsn.tests.statements import statements

ROOT = Path(__file__).resolve().parent.parent
OPERATION = "an operation of several machines: programs and references name it"
DOCUMENTED = "documented by several packages, each of which has a namespace of its own"
SHARED = {
    "Add": OPERATION,
    "Layout": DOCUMENTED,
    "Metrics": DOCUMENTED,
    "Order": DOCUMENTED,
    "Program": DOCUMENTED,
    "Read": "an operation of `fig6`, and a statement by which files of task machines name a node",
    "Record": DOCUMENTED,
    "Result": "documented as what a runner returns, and an operation of `fig7`",
    "Run": "documented as what a run gives, by two packages, and an operation of `moe`",
    "Store": "a statement by which files of task machines name a node, and a work item that `--dump-after` prints",
    "Stream": DOCUMENTED,
    "Tiles": "documented as a part of a schedule, and an operation of `moe`",
    "Transfer": "documented as what an overlay says of an operation, and an operation of `xnn`, shown at a breakpoint",
}
"""Names that several classes have, and why none of them can give way."""


@cache
def classes() -> dict[str, list[str]]:
    """Where the classes of each name are defined, nested ones included."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout of git")
    found: dict[str, list[str]] = defaultdict(list)
    for name in listed.stdout.splitlines():
        if name.startswith(("tests/", ".typing/")):
            continue
        for node in statements(ast.parse((ROOT / name).read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{name}:{node.lineno}")
    assert len(found) > 900
    return found


def test_no_two_classes_have_one_name() -> None:
    shared = [
        f"{name}: {', '.join(where)}"
        for name, where in sorted(classes().items())
        if len(where) > 1 and name not in SHARED
    ]
    assert not shared, "name one of them by what it is:\n" + "\n".join(shared)


@pytest.mark.parametrize("name", sorted(SHARED))
def test_an_exception_is_still_one(name: str) -> None:
    assert len(classes()[name]) > 1, f"only {', '.join(classes()[name]) or 'no class'} has this name now"
