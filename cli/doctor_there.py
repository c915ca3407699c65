"""`rsn doctor ssh://...`: whether another computer's board can be used from here, and what is missing on the way."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..base.errors import BoardError
from ..base.version import __version__
from ..host.boards.device import BoardMismatch
from ..host.boards.ssh import NoConnection, Target, examine
from .checks import Check, plain

APART_S = 300.0
"""Seconds that the clocks of the two computers may differ: a board without a battery starts in the past, and then
certificates are not valid yet."""

BUNDLE = "make board-bundle here, and install it there (docs/boards.md)"

_TEXTS = tuple(f.name for f in fields(Check) if f.name != "runs")


def examine_there(url: str) -> list[Check]:
    """Connect, and let the other computer look at itself. What is wrong on the way is a failed check, not an error.

    url: ssh://[USER@]HOST[:PORT][/BOARD]; raises `BoardError` for another text. A check that decides that the board can
    be used has `url` in its `runs`.
    """
    target = Target.parse(url)
    ssh, there = Check(f"ssh to {target}", "the way there"), Check("rsn there", "the same version as here", __version__)
    try:
        found = examine(url)
    except NoConnection as e:
        if e.reached:
            return [ssh, Check("rsn there", there.purpose, problem=plain(e.problem), mend=plain(e.mend))]
        return [Check(ssh.what, ssh.purpose, problem=plain(e.problem), mend=plain(e.mend)), _unasked()]
    except BoardMismatch as e:
        return [ssh, Check("rsn there", there.purpose, problem=plain(str(e).partition("\n")[0]), mend=BUNDLE)]
    except BoardError as e:
        problem, mend = plain(str(e).partition("\n")[0]), "try it by hand: ssh, and rsn doctor there"
        return [Check(ssh.what, ssh.purpose, problem=problem, mend=mend), _unasked()]
    checks, now = found["checks"], found["time"]
    return [ssh, there, _clock(now), *(_check(row, target.board, url) for row in checks if isinstance(row, Mapping))]


def _unasked() -> Check:
    return Check("rsn there", "the same version as here", problem="not asked", mend="the connection first")


def _clock(now: float) -> Check:
    what, purpose = "clock", "dates of files, and certificates"
    behind = time.time() - now
    said = time.strftime("%Y-%m-%d %H:%M", time.gmtime(max(0.0, min(now, 4e9)))) + " UTC"
    if abs(behind) <= APART_S:
        return Check(what, purpose, said)
    here = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    way = "behind" if behind > 0 else "ahead of"
    return Check(what, purpose, said, f"{way} the clock here", f"there, as root: date -u -s '{here}'")


def _check(row: Mapping[str, Any], board: str, url: str) -> Check:
    """Return a check that the other computer sent; names of its board become the URL."""
    runs: Sequence[Any] = row.get("runs") or ()
    return Check(**{name: plain(str(row.get(name, ""))) for name in _TEXTS}, runs=(url,) if board in runs else ())
