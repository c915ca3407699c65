"""The rows of STeP's figures, and what must be said beside them: `rsn reproduce step`.

The published values are in `step.toml`; ours are those of the programs in `streams.dynamic.programs.figures`.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from statistics import geometric_mean
from typing import Any, ClassVar

from ...streams.dynamic.errors import StepError
from ...streams.dynamic.programs.figures import (
    COMPUTE_REGIONS,
    EQUAL_COMPUTE,
    HBM,
    QUEUE,
    QUEUES,
    QWEN_REGIONS,
    ExpertPoint,
    FigurePoint,
    PointResult,
    pareto_improvement,
    points,
    tiles_of_fig18,
)
from .rows import Notes, PublishedRow, leaves, read_toml

STEP = "step"
"""The name of the table."""

MB = 1e6
IN_MB = {"mb": 1.0, "kb": 1e3 / MB, "bytes": 1 / MB}
"""Units of published amounts."""

UNITS_OF_A_REGION = 5
"""gate, up, SiLU, product, down."""

UNITS_BESIDE = 129
"""What packs the rows of each of 128 experts, and what sums the results (from the allocated operations of Fig. 13)."""

OTHER_FIGURES = {"fig9": "fig19", "fig10": "fig20", "fig12": "fig13", "fig8": "fig8"}
"""The figure with traffic and memory of the points of one with cycles."""

NOTES = Notes.of("step", how="chosen with it in view")


@cache
def published() -> Mapping[str, Any]:
    """Return all published numbers of STeP by key: the names on the path to each in `step.toml`, joined by dots."""
    return leaves(read_toml("step.toml"))


@dataclass(frozen=True)
class StepRow(PublishedRow):
    """A row of STeP. scale: the factor that brings the published number to the row's unit."""

    NOTES: ClassVar = NOTES

    scale: float = 1.0

    @property
    def paper(self) -> float:
        """The published value, in the row's unit."""
        return float(published()[self.key]) * self.scale

    @property
    def quantity(self) -> str:
        """What the row is about: "cycles", "traffic", "memory", or another last word of its name."""
        return self.row.split()[-1]

    @property
    def untimed(self) -> str:
        return "" if self.quantity == "cycles" else f"{self.quantity}, not a time"


@dataclass(frozen=True)
class Remark:
    """Something that must be said beside the rows: a name, a text of some sentences, and numbers, ours and theirs, by
    name."""

    name: str
    text: str
    numbers: Mapping[str, float]


def measure(
    which: Sequence[FigurePoint] | None = None,
    workers: int | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> dict[str, PointResult]:
    """Run points in processes of their own. Returns their results by key. which: by default all. workers: number of
    processes; None for one per core. progress: called with the share of points that are done, 0 to 1. Raises what a run
    raises."""
    which = points() if which is None else which
    count = workers or os.cpu_count() or 1
    done: dict[str, PointResult] = {}
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


def step_rows(measured: Mapping[str, PointResult]) -> list[StepRow]:
    """Return the rows of points, in the order of the figures; the rows of traffic and memory of a point stand beside
    those of its cycles. measured: the results by the key of the point; points without a result have no rows."""
    made: list[StepRow] = []
    for key in published():
        owner, _, quantity = key.rpartition(".")
        if owner.startswith("claims") or any(fnmatch(key, pattern) for pattern in NOTES.not_reproduced):
            continue
        if owner == "fig18.tiles":
            if "fig18.hierarchical" in measured:
                stream = quantity.replace("_", " ")
                made.append(StepRow(STEP, f"fig18 {stream} tiles", key, tiles_of_fig18()[stream], "tiles"))
            continue
        if row := _attention_row(key, owner, quantity, measured):
            made.append(row)
            continue
        figure, _, rest = owner.partition(".")
        timed = next((name for name, other in OTHER_FIGURES.items() if figure in (name, other)), "")
        if one := measured.get(f"{timed}.{rest}"):
            made.append(_row(key, owner, quantity, one))
    return made


def _attention_row(key: str, owner: str, quantity: str, measured: Mapping[str, PointResult]) -> StepRow | None:
    """The row of a point with attention; None for another one, or if it was not measured."""
    name = owner.replace("notebook.", "attention ").replace(".", " ").replace("_", " ")
    dispatch, _, what = quantity.rpartition("_")
    if what == "cycles" and dispatch:
        one = measured.get(f"{owner.removeprefix('notebook.')}.{dispatch}")
        return StepRow(STEP, f"{name} {dispatch} cycles", key, one.cycles, "cycles") if one else None
    if what == "ratio":
        batches = {other.rpartition(".")[0] for other in measured if other.startswith(owner.removeprefix("fig21."))}
        ratios = [_ratio(measured, batch, dispatch) for batch in sorted(batches) if batch.count(".") == 2]
        if ratios:
            return StepRow(STEP, f"{name} {dispatch} over dynamic", key, geometric_mean(ratios), "x")
    if quantity == "speedup":
        batch = owner.replace("fig14", "b64")
        if f"{batch}.dynamic" in measured:
            return StepRow(STEP, f"{name} interleaved over dynamic", key, _ratio(measured, batch, "interleaved"), "x")
    return None


def _ratio(measured: Mapping[str, PointResult], batch: str, dispatch: str) -> float:
    return measured[f"{batch}.{dispatch}"].cycles / measured[f"{batch}.dynamic"].cycles


def _row(key: str, owner: str, quantity: str, one: PointResult) -> StepRow:
    name = owner.replace(".", " ").replace("_", " ")
    if quantity == "cycles":
        return StepRow(STEP, f"{name} cycles", key, one.cycles, "cycles")
    if quantity == "bandwidth_pct":
        share = 100 * one.moved / one.cycles / (HBM.access * HBM.channels)
        return StepRow(STEP, f"{name} bandwidth", key, share, "%")
    what, _, unit = quantity.partition("_")
    if what in ("traffic", "memory") and unit in IN_MB:
        return StepRow(STEP, f"{name} {what}", key, getattr(one, what) / MB, "MB", scale=IN_MB[unit])
    raise ValueError(f"{key}: no such quantity")


def claims(measured: Mapping[str, PointResult]) -> list[StepRow]:
    """Return the rows of what the paper's text concludes from Fig. 9 and 10. Where the paper compares points that
    differ in accounting or in computing power, a row follows that compares equal points. measured: the results by the
    key of the point. Raises `KeyError` if a point of these figures is missing."""
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
        return NOTES.explained[f"claims.*.{self.what}"]


def _beside(name: str, key: str, what: str, how: str, value: float) -> StepRow:
    return _Beside(STEP, f"{name} Pareto improvement, {how}", key, value, "x", what=what)


def _pid(
    measured: Mapping[str, PointResult], series: str, *, dynamic: str | None = None, memory: float | None = None
) -> float:
    others = [one for key, one in measured.items() if key.startswith(f"{series}.tile_")]
    one = measured[dynamic or f"{series}.dynamic"]
    return pareto_improvement((one.cycles, memory or one.memory), [(other.cycles, other.memory) for other in others])


@cache
def whole_memory(key: str) -> float:
    """Return the bytes on chip of a point of experts, with what idle operators hold. key: of the point; raises
    `StepError` if it is of no such point."""
    point = next((point for point in points() if point.key == key), None)
    if not isinstance(point, ExpertPoint):
        raise StepError("figures", f"{key} is no point of experts")
    return point.memory()


def step_summary(rows: Sequence[PublishedRow]) -> dict[str, dict[str, Any]]:
    """Return for each quantity ("cycles", "traffic", "ratios", ...), and for cycles also by kind: how many rows, the
    mean absolute error, the worst error, both in percent, and the name of the worst row. Rows that `claims` adds to
    compare equal points are left out."""
    groups: dict[str, list[PublishedRow]] = {}
    for row in rows:
        if isinstance(row, _Beside):
            continue
        quantity = row.row.split()[-1] if row.unit != "x" else "ratios"
        groups.setdefault(quantity, []).append(row)
        if quantity == "cycles":
            groups.setdefault(f"cycles, {row.kind}", []).append(row)
    made: dict[str, dict[str, Any]] = {}
    for quantity, mine in sorted(groups.items()):
        worst = max(mine, key=lambda row: abs(row.error_pct))
        made[quantity] = {
            "rows": len(mine),
            "mean_abs_error_pct": sum(abs(row.error_pct) for row in mine) / len(mine),
            "worst_error_pct": worst.error_pct,
            "worst": worst.row,
        }
    return made


def findings(measured: Mapping[str, PointResult]) -> list[Remark]:
    """Return the remarks that belong to the rows; those that need points that were not measured are left out. measured:
    the results by the key of the point."""
    return [finding for make in _FINDINGS for finding in make(measured)]


def _compute(measured: Mapping[str, PointResult]) -> Iterator[Remark]:
    keys = "fig10.mixtral.tile_128", "fig10.mixtral.dynamic", EQUAL_COMPUTE
    if not set(keys) <= measured.keys():
        return
    static, dynamic, equal = (measured[key].cycles for key in keys)
    theirs = published()[f"{keys[0]}.cycles"] / published()[f"{keys[1]}.cycles"]
    yield Remark(
        "Fig. 10: unequal compute",
        "Static tiles of Mixtral have units of 4096 operations a cycle, dynamic ones of 6400 (artifact); the text says "
        f"identical. Published speed-up over tile 128: {theirs:.2f}; ours {static / dynamic:.2f}, and at 4096 for both "
        f"{static / equal:.2f}.",
        {"published": theirs, "ours": static / dynamic, "at_equal_compute": static / equal},
    )


def _idle(measured: Mapping[str, PointResult]) -> Iterator[Remark]:
    for figure, tiles in (("fig9", (64, 8)), ("fig10", (1024,))):
        key = f"{figure}.qwen.dynamic"
        for tile in tiles:
            other = f"{figure}.qwen.tile_{tile}"
            if not {key, other} <= measured.keys():
                continue
            theirs = published()[f"{other}.memory_bytes"] / published()[f"{key}.memory_bytes"]
            same = measured[other].memory / whole_memory(key)
            yield Remark(
                f"Fig. {figure[3:]}: idle experts",
                f"For Qwen, loaders of experts without rows are left out with dynamic tiles only. Memory of tile "
                f"{tile} over dynamic: published {theirs:.2f}, with the loaders of all experts {same:.2f}.",
                {"published": theirs, "ours": measured[other].memory / measured[key].memory, "same_accounting": same},
            )


def _regions(measured: Mapping[str, PointResult]) -> Iterator[Remark]:
    few, all_of_them = (f"fig12.dynamic.regions_{regions}" for regions in (32, 128))
    if not {few, all_of_them} <= measured.keys():
        return
    theirs = 100 * (published()[f"{few}.cycles"] / published()[f"{all_of_them}.cycles"] - 1)
    ours = 100 * (measured[few].cycles / measured[all_of_them].cycles - 1)
    columns = 2 * QWEN_REGIONS.columns  # bytes of a row of a tile
    fetched = -(-columns // HBM.access) * HBM.access / columns
    yield Remark(
        "Fig. 12: the cost of sharing",
        f'"about 5 %" more cycles with 32 regions instead of 128 are {theirs:+.1f} % by the points, {ours:+.1f} % '
        f"here. A row of 48 bf16 columns takes {columns} bytes of two accesses of 64: gate and up are fetched "
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
    yield Remark(
        "Fig. 12: utilisation",
        f"At all points the published utilisation is {min(ratios):.2f} to {max(ratios):.2f} times operations over "
        "cycles and the allocated operations a cycle of Fig. 13; why is not published. Ratios of points hold.",
        {"least": min(ratios), "most": max(ratios)},
    )


def _accounting(measured: Mapping[str, PointResult]) -> Iterator[Remark]:
    key = "fig9.mixtral.tile_16"
    if key not in measured:
        return
    point = next(point for point in points() if point.key == key)
    assert isinstance(point, ExpertPoint)
    text, figure = point.memory(accounting="paper"), measured[key].memory
    yield Remark(
        "Memory on chip: 4 bytes, one tile, no products",
        "The published points count tiles on chip with 4 bytes an element, one tile of a loader, and nothing for "
        f"products. By the equations of the text, with bf16, Mixtral with tile 16 holds {text / MB:.1f} MB instead of "
        f"{figure / MB:.1f} MB.",
        {"text_mb": text / MB, "figures_mb": figure / MB},
    )


def _queues(measured: Mapping[str, PointResult]) -> Iterator[Remark]:
    for kind in ("low", "med", "high"):
        batches = [key.removesuffix(".dynamic") for key in measured if fnmatch(key, f"b64.{kind}.*.dynamic")]
        if not batches:
            continue
        theirs = geometric_mean([published()[f"fig14.{batch.removeprefix('b64.')}.speedup"] for batch in batches])
        names = {QUEUE: "interleaved"} | {queue: f"interleaved.queue_{queue}" for queue in QUEUES}
        ours = {
            queue: geometric_mean([_ratio(measured, batch, name) for batch in batches]) for queue, name in names.items()
        }
        held = ", ".join(f"{1 + queue}: {ratio:.2f}" for queue, ratio in ours.items())
        yield Remark(
            f"Fig. 14, {kind} variation: queues",
            "How badly interleaving does depends on the requests that a region may hold. Dynamic is faster by: "
            f"published {theirs:.2f}; with {held}.",
            {"published": theirs} | {f"held_{1 + queue}": ratio for queue, ratio in ours.items()},
        )


def _tiling(measured: Mapping[str, PointResult]) -> Iterator[Remark]:
    if not {"fig18.hierarchical", "fig18.large"} <= measured.keys():
        return
    small, large = measured["fig18.hierarchical"], measured["fig18.large"]
    yield Remark(
        "Fig. 18: hierarchical tiling",
        "The figure has shapes, and no times. With the rates of Fig. 8 and a unit that begins a product of tiles of "
        f"16 x 16 in each cycle, its products take {small.cycles:.0f} cycles and {small.memory / 1e3:.1f} kB on chip; "
        f"in large tiles, on a unit of the same rate, {large.cycles:.0f} cycles and {large.memory / 1e3:.1f} kB.",
        {
            "cycles": small.cycles,
            "kb": small.memory / 1e3,
            "large_cycles": large.cycles,
            "large_kb": large.memory / 1e3,
        },
    )


_FINDINGS = (_compute, _idle, _queues, _regions, _accounting, _tiling)
