"""The schedule `best`: found by search, or before, and kept."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path

from ..base.errors import ScheduleError
from ..base.files import write_text
from ..isa.overlay import Overlay
from .graph import LayerGraph
from .knobs import converted
from .schedule import SCHEDULES, Schedule, read_schedule, show_schedule
from .search import CostModel, Price, describe, price, search

VERSION = 9
"""Of what a search does: a schedule found by another one is looked for again."""


@dataclass(frozen=True)
class Best:
    """Ask for the best schedule: how long to search, in seconds, and with which seed. cache: the folder that keeps what
    was found; None for the user's. cost: what a schedule costs; what is found by another model than ours is not kept.
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
            raise ScheduleError(f"cache = {cache!r}: a folder")
        object.__setattr__(self, "cache", None if cache is None else Path(cache))
        if not callable(self.cost):
            raise ScheduleError(f"cost = {self.cost!r}: a function of network, overlay and schedule, to a Price")
        if not self.budget_s > 0:
            raise ScheduleError(f"budget={self.budget_s}: a search takes more than 0 seconds")
        if self.seed < 0:
            raise ScheduleError(f"seed={self.seed}: that of a search is 0 or more")


@dataclass(frozen=True)
class Chosen:
    """A schedule, and why, in words and numbers."""

    schedule: Schedule
    why: tuple[str, ...] = ()

    def show(self) -> str:
        """As a schedule file."""
        return show_schedule(self.schedule, self.why)


def choose(
    network: LayerGraph, overlay: Overlay, best: Best, progress: Callable[[float], None] = lambda share: None
) -> Chosen:
    """The best schedule for a network on an overlay. What is found is kept, by network, overlay, seed and version, and
    found again as long as nobody asks for a longer search. Raises `ScheduleError`."""
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
        pass  # a cache that cannot be written costs time, nothing else
    return chosen


class _NoPriceError(Exception):
    """What a search must not take for a schedule that cannot run."""


def _checked(cost: CostModel) -> CostModel:
    def checked(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> Price:
        found = cost(network, overlay, schedule)
        if not isinstance(getattr(found, "latency", None), Real) or not isinstance(
            getattr(found, "busy", None), Mapping
        ):
            raise _NoPriceError(
                f"the cost model returned {found!r}: a Price has latency, in seconds, and busy, by unit"
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
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "rsn" / "schedules"
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir()) / "rsn" / "schedules"


def schedule_named(
    schedule: str | os.PathLike[str] | Schedule | Best, budget_s: float = 30.0, seed: int = 0
) -> Schedule | Best:
    """A schedule by name, or from a file. budget_s, seed: of the search for "best". Raises `ScheduleError` for an
    unknown one."""
    if isinstance(schedule, os.PathLike):
        return read_schedule(schedule)
    if isinstance(schedule, Schedule | Best):
        return schedule
    if not isinstance(schedule, str):
        raise ScheduleError(
            f"schedule = {schedule!r}: a name ({', '.join(SCHEDULES)}, best), a file (.toml), an rsn.Schedule(...) or "
            "an rsn.Best(...)"
        )
    if schedule == "best":
        return Best(budget_s, seed)
    if schedule in SCHEDULES:
        return SCHEDULES[schedule]
    if schedule.endswith(".toml"):
        return read_schedule(schedule)
    raise ScheduleError(f"no schedule {schedule!r}; there are {', '.join(SCHEDULES)}, best, and files (.toml)")
