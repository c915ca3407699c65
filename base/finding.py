"""What a check reports: a stable code, what is wrong, where, and a way out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Finding:
    """Something wrong. A warning does not keep a program from loading.

    where: a source line or, without one, a packet and its image word. help: what to do about it. times: how many
    findings with the same code, unit and rule this one stands for.
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
    """At most `most` findings of each code; the last of them counts those left out. Errors first."""
    kept: dict[tuple[bool, str], list[Finding]] = {}
    for f in findings:
        same = kept.setdefault((f.warning, f.code), [])
        if len(same) < most:
            same.append(f)
        else:
            same[-1] = replace(same[-1], times=same[-1].times + f.times)
    return [f for (_, _), same in sorted(kept.items(), key=lambda item: item[0][0]) for f in same]
