"""The schedule `best`: found by a search, and kept in a cache."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path

from ..base.errors import ScheduleError
from ..base.files import cache_folder, write_text
from ..isa.overlay import Overlay
from .graph import LayerGraph
from .schedule import PAPER, SCHEDULES, Schedule, converted, read_schedule, show_schedule
from .search import CostModel, Price, describe, price, search

VERSION = 10
"""Version of the search; part of the cache key. Raise it when a search may find another schedule."""


@dataclass(frozen=True)
class Best:
    """A request to search for the best schedule.

    budget_s: seconds that the search may take. seed: of the order in which it tries schedules. cache: folder that keeps
    schedules found; None for `~/.cache/rsn/schedules`. cost: cost model; schedules found by another model than the
    default are not cached. Raises `ScheduleError` for values out of range.
    """

    budget_s: float = 30.0
    seed: int = 0
    cache: Path | None = None
    cost: CostModel = price

    def __post_init__(self) -> None:
        converted(float, self.budget_s, "budget_s")  # checked alone: it is shown as it was written
        object.__setattr__(self, "seed", converted(int, self.seed, "seed"))
        cache: object = self.cache
        if cache is not None and not isinstance(cache, str | Path):
            raise ScheduleError(f"cache = {cache!r}: must be the path of a folder")
        object.__setattr__(self, "cache", None if cache is None else Path(cache))
        if not callable(self.cost):
            raise ScheduleError(f"cost = {self.cost!r}: must be a function (network, overlay, schedule) -> Price")
        if not self.budget_s > 0:
            raise ScheduleError(f"budget={self.budget_s}: must be more than 0 seconds")
        if self.seed < 0:
            raise ScheduleError(f"seed={self.seed}: must be 0 or more")


@dataclass(frozen=True)
class Chosen:
    """A schedule. why: lines of text on how a search found it; empty for a schedule that was given."""

    schedule: Schedule
    why: tuple[str, ...] = ()

    def show(self) -> str:
        """The text of a schedule file, with `why` as comments."""
        return show_schedule(self.schedule, self.why)


def choose(
    network: LayerGraph, overlay: Overlay, best: Best, progress: Callable[[float], None] = lambda share: None
) -> Chosen:
    """Take the schedule for a network from the cache, or search for it and cache it.

    An overlay without patterns takes the schedule `paper`. The cache key is the network's shapes, the overlay, the seed
    and VERSION; a schedule found with a smaller budget is searched for again. progress: called with the share of the
    budget that is spent, 0 to 1. Raises like `search`, and `ScheduleError` if the cost model returns no `Price`.
    """
    if overlay.patterns is None:
        return Chosen(PAPER, (f"overlay {overlay.name} has no patterns: models are bound product by product",))
    if best.cost is not price:
        try:
            found = search(network, overlay, best.budget_s, best.seed, progress, _checked(best.cost))
        except _NoPriceError as e:
            raise ScheduleError(str(e)) from None
        return Chosen(found.schedule, (f"searched for {best.budget_s} s at most by another cost model", *found.words))
    folder = best.cache or _user_cache()
    path = folder / f"{_key(network, overlay, best.seed)}.toml"
    kept = _kept(path, best.budget_s)
    if kept is not None:
        return kept
    found = search(network, overlay, best.budget_s, best.seed, progress)
    why = (f"searched for {best.budget_s} s at most", *found.words)
    chosen = Chosen(found.schedule, why)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, chosen.show())
    except OSError:
        pass  # without a cache the next compilation searches again
    return chosen


class _NoPriceError(Exception):
    """The cost model is wrong. Not a ScheduleError, which a search would take for a schedule that cannot run."""


def _checked(cost: CostModel) -> CostModel:
    def checked(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> Price:
        found = cost(network, overlay, schedule)
        if not isinstance(getattr(found, "latency", None), Real) or not isinstance(
            getattr(found, "busy", None), Mapping
        ):
            raise _NoPriceError(
                f"the cost model returned {found!r}, not a Price: it needs latency (seconds) and busy (seconds by unit)"
            )
        return found

    return checked


def _kept(path: Path, budget_s: float) -> Chosen | None:
    try:
        words = [line[2:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
        if float(words[0].split()[2]) < budget_s:
            return None
        return Chosen(read_schedule(path), (f"from the cache: {words[0]}, in an earlier run", *words[1:]))
    except (OSError, ScheduleError, ValueError, IndexError, UnicodeDecodeError):
        return None


def _key(network: LayerGraph, overlay: Overlay, seed: int) -> str:
    rates = {name: asdict(rate) for name, rate in overlay.rates.items()}
    depths = (overlay.mop_fifo_depth, overlay.uop_fifo_depth)
    memory = (overlay.image_bytes, dict(overlay.banks))
    facts = (VERSION, seed, overlay.name, overlay.fingerprint, memory, rates, depths, describe(network))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _user_cache() -> Path:
    try:
        return cache_folder("schedules")
    except RuntimeError:  # a user without a home folder
        return Path(tempfile.gettempdir()) / "rsn" / "schedules"


def schedule_named(
    schedule: str | os.PathLike[str] | Schedule | Best, budget_s: float = 30.0, seed: int = 0
) -> Schedule | Best:
    """Look up a schedule by name or file; return a `Schedule` or `Best` as it is. budget_s (seconds), seed: of the
    search for "best". Raises `ScheduleError` for an unknown name and any other type, and as `read_schedule`."""
    if isinstance(schedule, os.PathLike):
        return read_schedule(schedule)
    if isinstance(schedule, Schedule | Best):
        return schedule
    if not isinstance(schedule, str):
        raise ScheduleError(
            f"schedule = {schedule!r}: must be a name ({', '.join(SCHEDULES)}, best), a file (.toml), "
            "rsn.Schedule(...) or rsn.Best(...)"
        )
    if schedule == "best":
        return Best(budget_s, seed)
    if schedule in SCHEDULES:
        return SCHEDULES[schedule]
    if schedule.endswith(".toml"):
        return read_schedule(schedule)
    raise ScheduleError(f"no schedule {schedule!r}; there are {', '.join(SCHEDULES)}, best, and files (.toml)")
