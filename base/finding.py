"""Findings: the results of checks, each with a stable code, a message, a place and advice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Finding:
    """One error or warning of a check. A program with warnings alone may be loaded.

    code: key of docs/findings.md, e.g. `A01`. where: the source line or, if not known, the packet and its image word.
    help: what the user can do. times: how many findings with the same code, unit and rule this one stands for.
    """

    code: str
    message: str
    where: str
    warning: bool = False
    help: str = ""
    times: int = 1

    def __str__(self) -> str:
        more = f" (and {self.times - 1} more like it)" if self.times > 1 else ""
        return f"{self.where}: {'warning' if self.warning else 'error'} {self.code}: {self.message}{more}"


def gather(findings: Iterable[Finding], most: int) -> list[Finding]:
    """Return at most `most` findings of each code, errors before warnings. The `times` of the last one of a code counts
    also those that are left out. most: at least 1."""
    kept: dict[tuple[bool, str], list[Finding]] = {}
    for f in findings:
        same = kept.setdefault((f.warning, f.code), [])
        if len(same) < most:
            same.append(f)
        else:
            same[-1] = replace(same[-1], times=same[-1].times + f.times)
    return [f for (_, _), same in sorted(kept.items(), key=lambda item: item[0][0]) for f in same]
