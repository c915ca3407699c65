"""docs/findings.md lists every code of a finding, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from rsn.base.finding import Finding, gather


def documented(text: str) -> set[str]:
    out: set[str] = set()
    for cell in re.findall(r"^\| ([A-Z]\d\d[^|]*) \|", text, re.M):
        for item in cell.split(", "):
            first, _, last = item.partition("..")
            numbers = range(int(first[1:]), int((last or first)[1:]) + 1)
            out |= {f"{first[0]}{n:02}" for n in numbers}
    return out


def test_every_code_is_documented(root: Path) -> None:
    files = [*(root / "isa").rglob("*.py"), *(root / "host" / "commands").glob("*.py")]
    used = {c for f in files for c in re.findall(r'"([A-Z]\d\d)"', f.read_text(encoding="utf-8"))}
    assert documented((root / "docs" / "findings.md").read_text(encoding="utf-8")) == used


def test_findings_of_one_code_are_gathered() -> None:
    many = [Finding("A01", str(i), "here", times=1 + (i == 4)) for i in range(5)] + [Finding("B01", "b", "there", True)]
    kept = gather([many[-1], *many[:-1]], 2)
    assert [(f.code, f.message, f.times) for f in kept] == [("A01", "0", 1), ("A01", "1", 5), ("B01", "b", 1)]
    assert str(kept[1]) == "here: error A01: 1 (and 4 more like it)"
