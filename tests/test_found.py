"""The log of what was found from outside."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent


def test_every_test_of_the_log_exists() -> None:
    listed = re.findall(r"`([\w/]+\.py)::(\w+)`", (TESTS / "found.md").read_text(encoding="utf-8"))
    assert len(listed) > 30
    defined = {
        (path, node.name)
        for path in {path for path, _ in listed}
        for node in ast.walk(ast.parse((TESTS / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    assert set(listed) <= defined, sorted(set(listed) - defined)
