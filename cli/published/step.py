"""The rows of STeP's figures, and what must be said beside them: `rsn reproduce step`.

The published values are in `step.toml`; ours are those of the programs in `streams.dynamic.programs.figures`.
"""

from __future__ import annotations

import multiprocessing
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from importlib import resources
from typing import Any

from ...streams.dynamic.programs.figures import (
    COMPUTE_REGIONS,
    EQUAL_COMPUTE,
    HBM,
    QWEN_REGIONS,
    ExpertPoint,
    Measured,
    Point,
    pareto_improvement,
    points,
)
from .rows import PublishedRow, leaves

STEP = "step"
"""The name of the table."""

MB = 1e6

OTHER_FIGURES = {"fig9": "fig19", "fig10": "fig20", "fig12": "fig13", "fig8": "fig8"}
"""The figure with traffic and memory of the points of one with cycles."""

EXPLAINED: dict[str, str] = {
    "fig10.qwen.tile_256.cycles": "how the authors' memory serves 249 loaders is not published: with equal shares all "
    "experts end their first tiles together, and the largest goes on alone; by order or by number: +27 %, +22 %",
    "fig10.qwen.tile_128.cycles": "as tile 256; with priority by number +4 %",
    "fig10.qwen.dynamic.cycles": "as tile 256; and how far loads of rows and stores overlap is not published",
    "fig10.qwen.tile_16.cycles": "as tile 256; with priority by number -3 %",
    "claims.*.equal_compute": "published with 6400 operations a cycle for dynamic tiles and 4096 for static ones",
    "claims.*.same_accounting": "published without the loaders of experts without rows, for dynamic tiles only",
    "fig12.*.utilisation": "at all points 7/3 of operations over cycles and allocated operations a cycle; why is not "
    "published",
}
"""Why a row's error is large, by key or pattern."""

NOT_REPRODUCED: dict[str, str] = {
    "fig8.*.hdl_cycles": "of hardware whose sources are not to be had",
    "fig12.*.utilisation_pct": "7/3 of operations over cycles and allocated operations, at all points: see the findings",
}
"""Published numbers without a row, by key or pattern, and why."""


@cache
def published() -> Mapping[str, Any]:
    """All published numbers by key."""
    text = resources.files(__package__).joinpath("step.toml").read_text(encoding="utf-8")
    return leaves(tomllib.loads(text))


@dataclass(frozen=True)
class StepRow(PublishedRow):
    """A row. scale: the published number is so many times `unit`."""

    scale: float = 1.0

    @property
    def paper(self) -> float:  # type: ignore[override]
        """The published value."""
        return float(published()[self.key]) * self.scale

    @property
    def quantity(self) -> str:
        """cycles, traffic, memory, or another one: the last word of the row."""
        return self.row.split()[-1]

    @property
    def explanation(self) -> str:
        return next((text for pattern, text in EXPLAINED.items() if fnmatch(self.key, pattern)), "")

    @property
    def known(self) -> str:
        return self.note

    @property
    def untimed(self) -> str:
        return "" if self.quantity == "cycles" else f"{self.quantity}, not a time"


@dataclass(frozen=True)
class Finding:
    """Something that must be said beside the rows. numbers: ours and theirs, by name."""

    name: str
    text: str
    numbers: Mapping[str, float]


def measure(
    which: Sequence[Point] | None = None, workers: int | None = None, progress: Callable[[float], None] = lambda _: None
) -> dict[str, Measured]:
    """Run points in processes of their own. which: by default all. workers: processes; None for one per core.
    progress: called with the share of points that are done."""
    which = points() if which is None else which
    count = workers or len(os.sched_getaffinity(0))
    done: dict[str, Measured] = {}
    if count == 1:
        for number, point in enumerate(which, 1):
            done[point.key] = point.measure()
            progress(number / len(which))
        return done
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(point.measure): point.key for point in which}
        for ready in as_completed(running):
            done[running[ready]] = ready.result()
            progress(len(done) / len(which))
    return done


def step_rows(measured: Mapping[str, Measured]) -> list[StepRow]:
    """The rows of points, in the order of the figures: those of traffic and memory stand beside the cycles."""
    made: list[StepRow] = []
    for key in sorted(published(), key=_place):
        owner, _, quantity = key.rpartition(".")
        if owner.startswith("claims") or any(fnmatch(key, pattern) for pattern in NOT_REPRODUCED):
            continue
        figure, _, rest = owner.partition(".")
        timed = next(name for name, other in OTHER_FIGURES.items() if figure in (name, other))
        one = measured.get(f"{timed}.{rest}")
        if one is not None:
            made.append(_row(key, owner, quantity, one))
    return made


def _place(key: str) -> int:
    return list(published()).index(key)


def _row(key: str, owner: str, quantity: str, one: Measured) -> StepRow:
    name = owner.replace(".", " ").replace("_", " ")
    match quantity:
        case "cycles":
            return StepRow(STEP, f"{name} cycles", key, one.cycles, "cycles")
        case "traffic_mb":
            return StepRow(STEP, f"{name} traffic", key, one.traffic / MB, "MB")
        case "traffic_bytes":
            return StepRow(STEP, f"{name} traffic", key, one.traffic / MB, "MB", scale=1 / MB)
        case "memory_bytes":
            return StepRow(STEP, f"{name} memory", key, one.memory / MB, "MB", scale=1 / MB)
        case "memory_kb":
            return StepRow(STEP, f"{name} memory", key, one.memory / MB, "MB", scale=1e3 / MB)
        case "bandwidth_pct":
            return StepRow(STEP, f"{name} bandwidth", key, 100 * one.moved / one.cycles / 1024, "%")
    raise ValueError(f"{key}: no such quantity")


def claims(measured: Mapping[str, Measured]) -> list[StepRow]:
    """The rows of what the text concludes, each beside the same with what was unequal made equal."""
    made = []
    for figure in ("fig9", "fig10"):
        for model in ("mixtral", "qwen"):
            name, key = f"{figure} {model}", f"claims.pid.{figure}_{model}"
            made.append(StepRow(STEP, f"{name} Pareto improvement", key, _pid(measured, f"{figure}.{model}"), "x"))
            if model == "qwen":
                same = _pid(measured, f"{figure}.{model}", memory=whole_memory(f"{figure}.{model}.dynamic"))
                made.append(_beside(name, key, "same_accounting", "loaders of all experts counted", same))
            elif figure == "fig10":
                equal = _pid(measured, f"{figure}.{model}", dynamic=EQUAL_COMPUTE)
                made.append(_beside(name, key, "equal_compute", "at 4096 operations a cycle", equal))
    return made


@dataclass(frozen=True)
class _Beside(StepRow):
    """A row that compares a published number with what it would be otherwise."""

    what: str = ""

    @property
    def explanation(self) -> str:
        return EXPLAINED[f"claims.*.{self.what}"]


def _beside(name: str, key: str, what: str, how: str, value: float) -> StepRow:
    return _Beside(STEP, f"{name} Pareto improvement, {how}", key, value, "x", what=what)


def _pid(
    measured: Mapping[str, Measured], series: str, *, dynamic: str | None = None, memory: float | None = None
) -> float:
    others = [one for key, one in measured.items() if key.startswith(f"{series}.tile_")]
    one = measured[dynamic or f"{series}.dynamic"]
    return pareto_improvement((one.cycles, memory or one.memory), [(other.cycles, other.memory) for other in others])


@cache
def whole_memory(key: str) -> float:
    """Bytes on chip of a point, with what idle operators hold."""
    point = next(point for point in points() if point.key == key)
    assert isinstance(point, ExpertPoint)
    return point.memory()


def findings(measured: Mapping[str, Measured]) -> list[Finding]:
    """What must be said beside the rows; what needs points that were not measured is left out."""
    return [finding for make in _FINDINGS for finding in make(measured)]


def _compute(measured: Mapping[str, Measured]) -> Iterator[Finding]:
    keys = "fig10.mixtral.tile_128", "fig10.mixtral.dynamic", EQUAL_COMPUTE
    if not all(key in measured for key in keys):
        return
    static, dynamic, equal = (measured[key].cycles for key in keys)
    theirs = published()[f"{keys[0]}.cycles"] / published()[f"{keys[1]}.cycles"]
    yield Finding(
        "Fig. 10: unequal compute",
        "Static tiles of Mixtral have units of 4096 operations a cycle, dynamic ones of 6400 (artifact); the text says "
        f"identical. Published speed-up over tile 128: {theirs:.2f}; ours {static / dynamic:.2f}, and at 4096 for both "
        f"{static / equal:.2f}.",
        {"published": theirs, "ours": static / dynamic, "at_equal_compute": static / equal},
    )


def _idle(measured: Mapping[str, Measured]) -> Iterator[Finding]:
    for figure, tiles in (("fig9", (64, 8)), ("fig10", (1024,))):
        key = f"{figure}.qwen.dynamic"
        if key not in measured:
            continue
        for tile in tiles:
            other = f"{figure}.qwen.tile_{tile}"
            theirs = published()[f"{other}.memory_bytes"] / published()[f"{key}.memory_bytes"]
            same = measured[other].memory / whole_memory(key)
            yield Finding(
                f"Fig. {figure[3:]}: idle experts",
                f"For Qwen, loaders of experts without rows are left out with dynamic tiles only. Memory of tile {tile} "
                f"over dynamic: published {theirs:.2f}, with the loaders of all experts {same:.2f}.",
                {"published": theirs, "ours": measured[other].memory / measured[key].memory, "same_accounting": same},
            )


def _regions(measured: Mapping[str, Measured]) -> Iterator[Finding]:
    few, all_of_them = (f"fig12.dynamic.regions_{regions}" for regions in (32, 128))
    if few not in measured:
        return
    theirs = 100 * (published()[f"{few}.cycles"] / published()[f"{all_of_them}.cycles"] - 1)
    ours = 100 * (measured[few].cycles / measured[all_of_them].cycles - 1)
    columns = 2 * QWEN_REGIONS.columns  # bytes of a row of a tile
    fetched = -(-columns // HBM.access) * HBM.access / columns
    yield Finding(
        "Fig. 12: the cost of sharing",
        f'"about 5 %" more cycles with 32 regions instead of 128 are {theirs:+.1f} % by the points, {ours:+.1f} % here. '
        f"A row of 48 bf16 columns takes {columns} bytes of two accesses of 64: gate and up are fetched "
        f"{fetched:.2f} times. The rise at 8 and 4 regions is compute, and the 64 B a cycle of a loader.",
        {"published_pct": theirs, "ours_pct": ours, "fetched": fetched},
    )
    ratios = []
    for key, value in published().items():
        one = measured.get(key.removesuffix(".utilisation_pct"))
        if one is not None and key.endswith(".utilisation_pct"):
            units = int(key.split("_")[-2].split(".")[0]) * UNITS_OF_A_REGION + UNITS_BESIDE
            cycles = published()[key.replace("utilisation_pct", "cycles")]
            ratios.append(value / 100 * cycles * units * COMPUTE_REGIONS / one.flops)
    yield Finding(
        "Fig. 12: utilisation",
        f"At all points the published utilisation is {min(ratios):.2f} to {max(ratios):.2f} times operations over "
        "cycles and the allocated operations a cycle of Fig. 13; why is not published. Ratios of points hold.",
        {"least": min(ratios), "most": max(ratios)},
    )


def _accounting(measured: Mapping[str, Measured]) -> Iterator[Finding]:
    key = "fig9.mixtral.tile_16"
    if key not in measured:
        return
    point = next(point for point in points() if point.key == key)
    assert isinstance(point, ExpertPoint)
    text, figure = point.memory(accounting="paper"), measured[key].memory
    yield Finding(
        "Memory on chip: 4 bytes, one tile, no products",
        "The published points count tiles on chip with 4 bytes an element, one tile of a loader, and nothing for "
        f"products. By the equations of the text, with bf16, Mixtral with tile 16 holds {text / MB:.1f} MB instead of "
        f"{figure / MB:.1f} MB.",
        {"text_mb": text / MB, "figures_mb": figure / MB},
    )


_FINDINGS = (_compute, _idle, _regions, _accounting)

UNITS_OF_A_REGION = 5
"""gate, up, SiLU, product, down."""

UNITS_BESIDE = 129
"""What packs the rows of each of 128 experts, and what sums the results (from the allocated operations of Fig. 13)."""
