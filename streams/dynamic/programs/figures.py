"""The points of STeP's figures as programs, and what they take (v2, sections 4.4, 5.2, 5.3; Figs. 8, 9, 10, 12, 13, 18,
19, 20): cycles, traffic off the chip, memory on chip.

Sizes and rates are those of the paper and of its artifact. Nothing is fitted on a point. The rows that each expert gets
are cited counts; which row goes where is dealt out by a rule, and steers neither traffic nor memory.
"""

from __future__ import annotations

import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import nan

from ..errors import StepError
from ..graph import Program
from ..metrics import metrics
from ..operators.base import Accounting
from ..run import Rates, TimedRun, timed
from .attention import Dispatch, Heads, attention
from .experts import ExpertLayerShape, ExpertProgram, mixture
from .swiglu import swiglu
from .tiling import TiledProducts, tiled_products

HBM = Rates(latency=16)
"""1024 B a cycle, 64 B a loader, 14 cycles of start-up and 2 of latency: the memory of all figures but Fig. 8."""

VALIDATION = Rates(on_chip=256, channels=4, per_client=4, latency=16)
"""Of Fig. 8: 256 B a cycle on chip and off it, which one loader may use up."""

MIXTRAL = ExpertLayerShape("Mixtral 8x7B", 4096, 14336, 8, 2, 64)
QWEN = ExpertLayerShape("Qwen3-30B-A3B", 2048, 768, 128, 8, 64)
QWEN_REGIONS = ExpertLayerShape("Qwen3-30B-A3B", 2048, 768, 128, 8, 48)
"""As of Figs. 12 and 13, with other tiles."""

QWEN_HEADS = Heads(kv=1, queries=8, columns=64, tile_rows=32)
"""The artifact's: one of the 4 KV heads, and 64 columns; the model itself has 128."""

REGIONS, BLOCK, QUEUE, COMPUTE_ATTENTION = 4, 16, 0, 2048
"""Of the figures with attention: regions; requests of each in coarse dispatch, whatever the batch; jobs that wait
before a region, as its FIFO of depth 1 holds the one that it works on; operations a cycle of each unit."""

COMPUTE_UNIT = 2 * 16**3
"""Operations a cycle of a unit that begins a product of tiles of 16 x 16 in each cycle (v2, section 4.5)."""

TILED = TiledProducts()
"""Of Fig. 18."""

COMPUTE_STATIC, COMPUTE_DYNAMIC, COMPUTE_REGIONS, COMPUTE_VALIDATION = 4096, 6400, 1024, 4096
"""Operations a cycle of each unit: of Figs. 9 and 10 with static and with dynamic tiles, of Figs. 12 and 13, of Fig. 8.
The paper says that static and dynamic tiles get the same; the artifact has these."""


@cache
def expert_counts() -> Mapping[str, Sequence[int]]:
    """Return the number of rows of each expert in the authors' traces, by "model_batch": "mixtral_b64",
    "mixtral_b1024", "qwen_b64", "qwen_b1024".
    """
    text = resources.files(__package__).joinpath("expert_counts.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def deal(counts: Sequence[int], rows: int, chosen: int) -> list[tuple[int, ...]]:
    """Return the numbers of the experts of each row, rising, so that each expert gets its count of rows. counts: rows
    of each expert. rows: how many rows there are. chosen: experts of a row. Each row gets the experts that still need
    most rows; of equal ones those that have waited longest, then the first. Raises `StepError` if there is no such
    way."""
    if sum(counts) != rows * chosen or max(counts, default=0) > rows or min(counts, default=0) < 0:
        raise StepError("deal", f"{sum(counts)} places of at most {max(counts, default=0)} an expert for {rows} rows")
    left = list(counts)
    last = [-1] * len(left)
    dealt = []
    for row in range(rows):
        most = sorted(range(len(left)), key=lambda expert: (-left[expert], last[expert], expert))[:chosen]
        for expert in most:
            left[expert] -= 1
            last[expert] = row
        dealt.append(tuple(sorted(most)))
    return dealt


@cache
def cache_lengths() -> Mapping[str, tuple[int, ...]]:
    """Return the number of rows of the cache of each request, by the name of the batch: "b64.low.rows_2019", for
    example, has 64 requests whose lengths vary little, from row 2019 of the trace on. From the Azure LLM inference
    trace 2023 (CC BY 4.0; Splitwise, ISCA 2024)."""
    text = resources.files(__package__).joinpath("kv_lengths.toml").read_text(encoding="utf-8")
    return {
        f"{size}.{kind}.{rows}": tuple(batch["lengths"])
        for size, kinds in tomllib.loads(text).items()
        for kind, batches in kinds.items()
        for rows, batch in batches.items()
    }


@dataclass(frozen=True)
class PointResult:
    """What the program of a point takes. cycles: of the run. traffic, memory: bytes, by `metrics` with
    `accounting="figures"`; for attention, traffic is counted in the run, and memory is NaN. moved, flops: bytes off the
    chip, and operations, that the run counted. depends_on_time: whether an operator chose an input by arrival."""

    cycles: float
    traffic: int
    memory: float
    moved: int
    flops: int
    depends_on_time: bool


@dataclass(frozen=True)
class FigurePoint(ABC):
    """A point of a figure of STeP, measured by a run. figure: the name of the figure, such as "fig9". key: the name of
    the point."""

    figure: str
    key: str

    @abstractmethod
    def measure(self) -> PointResult:
        """Run the program of this point, without the values of tiles, and return what it takes."""


@dataclass(frozen=True)
class GatedPoint(FigurePoint):
    """A point of STeP v2, Fig. 8: a gated layer. rows, columns: of a tile."""

    rows: int
    columns: int

    def measure(self) -> PointResult:
        made = swiglu(64, 256, 512, self.rows, self.columns, compute=COMPUTE_VALIDATION, through_memory=True)
        run = timed(made.program, depths=1, rates=VALIDATION, with_data=False)
        return _measured(made.program, run, {}, False)


@dataclass(frozen=True)
class TiledPoint(FigurePoint):
    """A point of STeP v2, Fig. 18: tiled products, with the rates of Fig. 8. hierarchical: whether loaded tiles are cut
    into those of a unit; otherwise each matrix is one tile."""

    hierarchical: bool

    def measure(self) -> PointResult:
        made = tiled_products(TILED, self.hierarchical, compute=COMPUTE_UNIT)
        run = timed(made.program, depths=2, rates=VALIDATION, with_data=False)
        return _measured(made.program, run, {}, False)


def tiles_of_fig18() -> dict[str, int]:
    """Return how many tiles each stream of the hierarchical program of STeP v2, Fig. 18, has, by the stream's name."""
    made = tiled_products(TILED, hierarchical=True)
    return {name: int(stream.type.count()) for name, stream in made.streams.items()}


@dataclass(frozen=True)
class ExpertPoint(FigurePoint):
    """A point of the figures about experts. layer: the sizes. counts: rows of each expert. tile_rows: rows of a tile;
    None for one tile of all rows of an expert. compute: operations a cycle of each unit. regions: sets of units that
    experts share; None for a set for each expert. on_demand: whether operators that get no element take no memory."""

    layer: ExpertLayerShape
    counts: tuple[int, ...]
    tile_rows: int | None
    compute: int
    regions: int | None = None
    on_demand: bool = False

    def program(self) -> ExpertProgram:
        """Return the program of this point, without the values of tensors. Raises `StepError` as `deal`."""
        chosen = deal(self.counts, sum(self.counts) // self.layer.chosen, self.layer.chosen)
        return mixture(self.layer, chosen, self.tile_rows, regions=self.regions, compute=self.compute)

    def measure(self) -> PointResult:
        made = self.program()
        run = timed(made.program, depths=made.depths, rates=HBM, with_data=False)
        return _measured(made.program, run, made.counts(self.counts), self.on_demand)

    def memory(self, accounting: Accounting = "figures", on_demand: bool = False) -> float:
        """Return the bytes on chip, computed without a run. accounting, on_demand: as for `metrics`. Raises `StepError`
        as `deal`.
        """
        made = self.program()
        found = metrics(made.program, accounting, on_demand=on_demand)
        return float(found.value(found.memory, made.counts(self.counts)))


@dataclass(frozen=True)
class AttentionPoint(FigurePoint):
    """A point of the figures about attention. lengths: rows of the cache of each request. dispatch: how regions get
    their jobs. queue: jobs that may wait before a region."""

    lengths: tuple[int, ...]
    dispatch: Dispatch
    queue: int = QUEUE

    def measure(self) -> PointResult:
        made = attention(
            self.lengths,
            QWEN_HEADS,
            self.dispatch,
            regions=REGIONS,
            block=BLOCK,
            queue=self.queue,
            compute=COMPUTE_ATTENTION,
        )
        run = timed(made.program, depths=made.depths, rates=HBM, with_data=False)
        flops, moved = sum(run.flops.values()), sum(run.traffic.values())
        return PointResult(run.cycles, moved, nan, moved, flops, run.depends_on_time)


def _measured(program: Program, run: TimedRun, values: Mapping[str, int], on_demand: bool) -> PointResult:
    found = metrics(program, "figures", on_demand=on_demand)
    return PointResult(
        run.cycles,
        int(found.value(found.traffic, values)),
        float(found.value(found.memory, values)),
        sum(run.traffic.values()),
        sum(run.flops.values()),
        run.depends_on_time,
    )


def points() -> tuple[FigurePoint, ...]:
    """Return the points of all figures of STeP that this module has, those with the longest runs first."""
    made: list[FigurePoint] = []
    counts = {key: tuple(rows) for key, rows in expert_counts().items()}
    for figure, batch, sizes in (("fig10", 1024, (16, 32, 64, 128, 256, 512, 1024)), ("fig9", 64, (8, 16, 32, 64))):
        for layer, model in ((MIXTRAL, "mixtral"), (QWEN, "qwen")):
            rows = counts[f"{model}_b{batch}"]
            for size in sizes:
                made.append(ExpertPoint(figure, f"{figure}.{model}.tile_{size}", layer, rows, size, COMPUTE_STATIC))
            key = f"{figure}.{model}.dynamic"
            made.append(ExpertPoint(figure, key, layer, rows, None, COMPUTE_DYNAMIC, on_demand=model == "qwen"))
            if figure == "fig10" and model == "mixtral":
                made.append(ExpertPoint(figure, EQUAL_COMPUTE, layer, rows, None, COMPUTE_STATIC))
    for name, tile_rows in (("tile_32", 32), ("dynamic", None)):
        for regions in (128, 64, 32, 16, 8, 4):
            key = f"fig12.{name}.regions_{regions}"
            rows = counts["qwen_b64"]
            made.append(
                ExpertPoint("fig12", key, QWEN_REGIONS, rows, tile_rows, COMPUTE_REGIONS, regions, on_demand=True)
            )
    for height in (16, 32, 64):
        made += [GatedPoint("fig8", f"fig8.tile_{height}x{width}", height, width) for width in (16, 32, 64, 128, 256)]
    made += [TiledPoint("fig18", f"fig18.{name}", name == "hierarchical") for name in ("hierarchical", "large")]
    for name, lengths in cache_lengths().items():
        for dispatch in DISPATCHES:
            made.append(AttentionPoint("attention", f"{name}.{dispatch}", lengths, dispatch))
        if name.startswith("b64"):
            for queue in QUEUES:
                key = f"{name}.interleaved.queue_{queue}"
                made.append(AttentionPoint("attention", key, lengths, "interleaved", queue))
    for requests in (16, 32, 48, 64):
        for dispatch in DISPATCHES:
            lengths = cache_lengths()[PREFIXES_OF][:requests]
            made.append(AttentionPoint("fig15", f"fig15.requests_{requests}.{dispatch}", lengths, dispatch))
    return tuple(made)


DISPATCHES: tuple[Dispatch, ...] = ("coarse", "interleaved", "dynamic")

QUEUES = (1, 3)
"""Other numbers of jobs that wait before a region: how badly interleaving does depends on it."""

PREFIXES_OF = "b64.med.rows_4007"
"""The batch whose first requests Fig. 15 shows."""

EQUAL_COMPUTE = "fig10.mixtral.dynamic_4096"
"""The point of dynamic tiles with the units of the static ones."""


def pareto_improvement(point: tuple[float, float], others: Sequence[tuple[float, float]]) -> float:
    """Return the Pareto improvement distance of a point (cycles, memory in bytes, both above 0) from other such points
    (v2, equation 2), a ratio: the smallest factor by which a Pareto-optimal one of the others must improve to be as
    good in both. Raises `ValueError` without other points."""
    frontier = [
        one for one in others if not any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in others)
    ]
    return min(max(cycles / point[0], memory / point[1]) for cycles, memory in frontier)
