"""Search for a schedule with low cost, by a cost model; the default model is the timing engine.

Every candidate is lowered and list-scheduled; the latency of that run is its price. If a network repeats a group of
layers, two repetitions stand for all. Which candidates are tried, and in which order, depends on the network and the
seed only; the budget decides how many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Protocol

import numpy as np

from ..base.durations import duration
from ..base.errors import DeadlockError, ProgramError, ScheduleError, UnsupportedError
from ..isa.layout import BLOCK
from ..isa.overlay import Overlay
from ..machine.plan import execute
from ..machine.timing import RunTiming
from .chain import seconds_of
from .graph import AttentionLayer, Gemm, LayerGraph, Output
from .groups import groups_of, kind_of
from .lower import lower, place
from .memory import reads
from .pack import pack, uops_of
from .schedule import PAPER, DramPolicy, Interleave, Loops, Schedule, Tiles

DEAR = 3.0
"""Penalty for a large image: one percent above the size limit costs as much as DEAR percent of latency."""
STARTS = (8, 4, 2)
"""Piece sizes of stores of products that the search begins with, in blocks; the last one is tried by columns."""
ATTENTION = 2
"""Piece size of stores of attention that the search begins with, in blocks."""
WAIT = 0.9
"""Patience that the search begins with, as a share of the time that a piece takes to store. Slightly less than 1 lets
one store go before a load that is ready, but never two in a row."""
WAITS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9, 1.2, 1.8)
"""Patience that the search tries, as shares of the time that a piece takes to store."""
PIECES = (2, 4, 8, 16)
"""Piece sizes that the search tries, in blocks."""
CUTS = (Tiles(tile_rows=3), Tiles(tile_rows=4, mme_rows=2), Tiles(tile_cols=4), Tiles(tile_cols=6))
"""Ways to cut products that the search tries besides the default."""


@dataclass
class SearchResult:
    """The result of a search: the best schedule. latency_s: modelled, in seconds, for the first `sampled` of the
    network's `segments` layers. tried: number of schedules priced after the first. steps: the log of improvements, one
    line each. busy: seconds in which each unit did not wait with the best schedule, by its name."""

    schedule: Schedule
    latency_s: float
    sampled: int
    segments: int
    tried: int = 0
    steps: list[str] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)
    """Seconds in which each unit did not wait. The largest is a lower bound for every order of DDR accesses."""

    @property
    def words(self) -> list[str]:
        """The result as lines of text, for the comments of a schedule file: the modelled latency, bounds, and the
        log."""
        of = "" if self.sampled == self.segments else f" for {self.sampled} of {self.segments} segments"
        bounds = sorted(self.busy.items(), key=lambda item: -item[1])[:4]
        return [
            f"modelled {duration(self.latency_s)}{of}, without launch; {self.tried} schedules tried",
            "busy, a bound for every order: " + ", ".join(f"{unit} {duration(s)}" for unit, s in bounds),
            *self.steps,
        ]


class Price(Protocol):
    """What a cost model returns for a schedule. latency: in seconds; the search minimises it. busy: seconds in which
    each unit did not wait, by unit name; only reported, because the largest is a lower bound for every order."""

    @property
    def latency(self) -> float:
        """What the search makes small, in seconds."""
        ...

    @property
    def busy(self) -> Mapping[str, float]:
        """Seconds in which each unit did not wait, by its name."""
        ...


CostModel = Callable[[LayerGraph, Overlay, Schedule], Price]
"""Prices a schedule. Raises `ScheduleError`, `UnsupportedError`, `ProgramError` or `DeadlockError` for a schedule that
cannot run."""


def price(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> RunTiming:
    """The default cost model: lower a network, run its kernels without the instruction path, and return that run, whose
    `latency` is in seconds. Raises like `lower`, and `DeadlockError`."""
    lowered = lower(network, overlay, schedule)
    if lowered.found is not None:
        return lowered.found
    return execute(overlay, {**uops_of(lowered.kernels), **overlay.unrolled(lowered.kernels.preloaded)})


def search(
    network: LayerGraph,
    overlay: Overlay,
    budget_s: float,
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
    cost: CostModel = price,
) -> SearchResult:
    """Search for the schedule with the lowest price within a time budget; at least the first candidate is priced.

    budget_s: in seconds. seed: of the order in which candidates are tried. progress: called with the share of the
    budget that is spent, 0 to 1. cost: prices a candidate. Raises `ScheduleError` for a budget that is not positive,
    and the error of the first failure if no candidate can run.
    """
    if not budget_s > 0:
        raise ScheduleError(f"budget={budget_s}: must be more than 0 seconds")
    started = time.monotonic()
    small = sample(network)
    trial = _Trial(small, overlay, _Size(network, small, overlay), cost, network)
    moves = _moves(trial, small, _Pace(overlay), np.random.default_rng(seed))
    for schedule, words in moves:
        spent = (time.monotonic() - started) / budget_s
        progress(min(1.0, spent))
        if trial.found is not None and spent > 1:
            break
        trial.attempt(schedule, words)
    if trial.found is None:
        assert trial.failure is not None
        raise trial.failure
    trial.found.segments = len(network.layers)
    return trial.found


def _moves(trial: _Trial, network: LayerGraph, pace: _Pace, rng: np.random.Generator) -> Iterator[tuple[Schedule, str]]:
    """Candidates for the trial, with a text for each: fixed ones first, then coordinate steps from the best schedule so
    far, until a round brings no improvement."""
    yield PAPER, "as in the paper"
    for loops in (Loops.ROWS, Loops.COLUMNS):
        kinds = list(dict.fromkeys(kind_of(group) for group in groups_of(network, loops)))
        for balance in (True, False):
            base = Schedule(interleave=Interleave.LISTED, loops=loops, balance=balance)
            for blocks in STARTS:
                rule = pace.paced(DramPolicy(by_columns=blocks == STARTS[-1]), WAIT, blocks)
                alone = pace.paced(DramPolicy(), WAIT, ATTENTION)
                rules = [(kind, alone if kind.startswith("attention") else rule) for kind in kinds]
                words = f"{loops.value} outside" + ", balanced" * balance + f", {rule.words}"
                yield replace(base, rules=tuple(rules)), words
    if trial.found is None:
        return
    yield from _smaller(trial, pace)
    before = None
    while before is not trial.found.schedule:
        before = trial.found.schedule
        kinds = [kind for kind, _ in before.rules]
        for kind in (kinds[at] for at in rng.permutation(len(kinds))):
            for rule in _neighbours(trial.found.schedule.rule(kind), pace):
                changed = dict(trial.found.schedule.rules) | {kind: rule}
                yield replace(trial.found.schedule, rules=tuple(changed.items())), f"{kind}: {rule.words}"
            for cut in () if kind.startswith("attention") else CUTS:
                changed_cuts = dict(trial.found.schedule.tiles) | {kind: cut}
                yield replace(trial.found.schedule, tiles=tuple(changed_cuts.items())), f"{kind}: {cut.words}"
            drain = tuple(other for other in kinds if (other in trial.found.schedule.drain) != (other == kind))
            yield replace(trial.found.schedule, drain=drain), f"{kind}: {'drained' if kind in drain else 'overlapped'}"
        for heads in (1, 2):
            yield replace(trial.found.schedule, heads_per_slot=heads), f"{heads} heads a slot at most"


def _smaller(trial: _Trial, pace: _Pace) -> Iterator[tuple[Schedule, str]]:
    """Candidates with a smaller image, if the fastest so far lost because its image is too large: the same with other
    policies, one kind of segment at a time, attention first because it has the most accesses."""
    fastest = trial.fastest
    if fastest is None or trial.found is None or fastest is trial.found.schedule:
        return
    for kind, rule in sorted(fastest.rules, key=lambda item: not item[0].startswith("attention")):
        for wait in WAITS:
            other = pace.paced(rule, wait, rule.store_blocks)
            yield replace(fastest, rules=tuple((dict(fastest.rules) | {kind: other}).items())), f"{kind}: {other.words}"


class _Trial:
    """The schedules tried so far, and the best of them. network: the sample that is priced. whole: the network that
    must fit off-chip memory."""

    def __init__(self, network: LayerGraph, overlay: Overlay, size: _Size, cost: CostModel, whole: LayerGraph) -> None:
        self._network, self._overlay, self._size, self._cost = network, overlay, size, cost
        self._whole = whole
        self._seen: set[Schedule] = set()
        self._price_s = 0.0
        self.found: SearchResult | None = None
        self.fastest: Schedule | None = None
        """The schedule with the lowest latency, whatever the size of its image."""
        self._fastest_s = inf
        self.failure: Exception | None = None

    def attempt(self, schedule: Schedule, label: str) -> None:
        """Price a schedule, unless it was priced before, and keep it if it is better. label: for the log."""
        if schedule in self._seen:
            return
        self._seen.add(schedule)
        try:
            place(self._whole, self._overlay, schedule)
            run = self._cost(self._network, self._overlay, schedule)
            if run.latency < self._fastest_s:
                self.fastest, self._fastest_s = schedule, run.latency
            if self.found is None:
                self._price_s, layers = run.latency, len(self._network.layers)
                self.found = SearchResult(
                    schedule, run.latency, layers, layers, steps=[f"{label}: {duration(run.latency)}"]
                )
            else:
                self.found.tried += 1
                if run.latency >= self._price_s * (1 - 1e-6):
                    return
                price_s = run.latency * (1 + DEAR * self._size.excess(schedule))
                if price_s >= self._price_s * (1 - 1e-6):
                    return
                self.found.steps.append(f"{label}: {duration(run.latency)}, {self._size.words(schedule)}")
                self.found.schedule, self.found.latency_s, self._price_s = schedule, run.latency, price_s
        except (DeadlockError, ProgramError, ScheduleError, UnsupportedError) as e:
            # it cannot run, or has no image, or the memories of the machine are too small for its tiles
            self.failure = self.failure or e
            return
        self.found.busy = {u.name: run.busy[u.name] for u in self._overlay.units if u.name in run.busy}


class _Pace:
    """Converts patience between microseconds and shares of the time that a piece takes to store, so that the search
    tries the same shares on overlays of any rate."""

    def __init__(self, overlay: Overlay) -> None:
        patterns = overlay.patterns
        unit = None if patterns is None else overlay.by_unit[patterns.grid.activations]
        self._block_us = 0.0 if unit is None else BLOCK * 4 * seconds_of(overlay, unit, "store") * 1e6

    def paced(self, rule: DramPolicy, wait: float, blocks: int) -> DramPolicy:
        """The policy with pieces of `blocks` blocks, and patience of `wait` times the time that one piece takes."""
        return replace(rule, patience_us=min(1000.0, round(wait * blocks * self._block_us, 2)), store_blocks=blocks)

    def wait(self, rule: DramPolicy) -> float:
        """The patience of a policy as a share of the time that one piece takes."""
        return rule.patience_us / (rule.store_blocks * self._block_us) if self._block_us else WAIT


class _Size:
    """Estimates image sizes from the packed sample of a network."""

    def __init__(self, network: LayerGraph, small: LayerGraph, overlay: Overlay) -> None:
        self._network, self._small, self._overlay = network, small, overlay
        self._known: dict[Schedule, float] = {}
        self._share: float | None = None

    def bytes(self, schedule: Schedule) -> float:
        """Estimated size of the network's image in bytes."""
        if schedule not in self._known:
            two = self._packed(self._small, schedule)
            if self._share is None:  # the whole image as a multiple of two repetitions
                period, layers = len(self._small.layers) // 2, len(self._network.layers)
                self._share = 1.0
                if layers > len(self._small.layers):
                    more = self._packed(first(self._network, 3 * period), schedule) - two
                    self._share = 1 + more / two * (layers // period - 2)
            self._known[schedule] = two * self._share
        return self._known[schedule]

    def _packed(self, network: LayerGraph, schedule: Schedule) -> int:
        lowered = lower(network, self._overlay, schedule)
        return 4 * len(pack(lowered.kernels, lowered.starts).image)

    def excess(self, schedule: Schedule) -> float:
        """By how much the image exceeds the instruction buffer, as a share of its size; 0 if it fits."""
        limit = self._overlay.image_bytes
        return max(0.0, self.bytes(schedule) / limit - 1) if limit else 0.0

    def words(self, schedule: Schedule) -> str:
        """The estimated size as text, for the log."""
        return f"image about {self.bytes(schedule) / 1024:.0f} KiB"


def first(network: LayerGraph, layers: int) -> LayerGraph:
    """The network of the first `layers` layers, at least one. Its output is the result of the last of them."""
    kept = network.layers[:layers]
    return replace(network, layers=kept, outputs=(Output(kept[-1].y),))


def _neighbours(rule: DramPolicy, pace: _Pace) -> Iterator[DramPolicy]:
    """Policies that differ from `rule` in one knob, then those that differ in two."""
    yield replace(rule, in_order=not rule.in_order)
    yield replace(rule, by_columns=not rule.by_columns)
    for blocks in PIECES:
        yield pace.paced(rule, pace.wait(rule), blocks)
    for wait in WAITS:
        yield pace.paced(rule, wait, rule.store_blocks)
    for blocks in PIECES:
        for wait in WAITS[1::2]:
            if blocks != rule.store_blocks:
                yield pace.paced(rule, wait, blocks)


def describe(network: LayerGraph) -> tuple[object, ...]:
    """Everything in a network that a schedule can depend on, as a value that can be compared: shapes and dependencies,
    without names and weights."""
    shapes = tuple(_shape(network, i) for i in range(len(network.layers)))
    return network.rows, tuple(network.seqs.values()), tuple(network.inputs.values()), len(network.outputs), shapes


def sample(network: LayerGraph) -> LayerGraph:
    """The first two repetitions of a network that repeats a group of layers at least three times, else the network
    itself."""
    layers = network.layers
    for period in range(1, len(layers) // 3 + 1):
        if len(layers) % period == 0 and _repeats(network, period):
            small = first(network, 2 * period)
            if all(_kinds(small, loops) == _kinds(network, loops) for loops in Loops):
                return small
    return network


def _kinds(network: LayerGraph, loops: Loops) -> set[str]:
    """The kinds of all segments: they can differ between a network and its sample, which may cut a segment in two."""
    return {kind_of(group) for group in groups_of(network, loops)}


def _repeats(network: LayerGraph, period: int) -> bool:
    """Whether the layers repeat every `period` layers, apart from their names and weights."""
    shapes = [_shape(network, i) for i in range(len(network.layers))]
    return all(shapes[i] == shapes[i - period] for i in range(2 * period, len(shapes))) and all(
        a[0] == b[0] for a, b in zip(shapes[period : 2 * period], shapes, strict=False)
    )


def _shape(network: LayerGraph, at: int) -> tuple[object, ...]:
    """A layer without names: its operation and shapes, and how many layers before it each operand was computed."""
    layer = network.layers[at]
    made = {other.y: i for i, other in enumerate(network.layers[:at])}
    back = tuple(at - made[name] if name in made else None for name in reads(layer))
    if isinstance(layer, AttentionLayer):
        bias = None if layer.bias is None else layer.bias.shape
        plain = ("attention", layer.heads, layer.head_dim, layer.masked, layer.causal, bias)
        mask = None if layer.mask is None else layer.mask_heads
        return (*plain, layer.groups, layer.left, layer.window, layer.softcap is None, mask), back
    shape = (layer.weight.shape, layer.activation, layer.residual is None, layer.norm)
    rotary = layer.rotary
    table = None if rotary is None else (len(rotary.own), rotary.head_dim)
    extended = (layer.gated, layer.x_norm, layer.residual_norm, layer.in_heads and layer.heads, table)
    if rotary is not None:
        tables = [x.rotary.key if isinstance(x, Gemm) and x.rotary is not None else "" for x in network.layers[:at]]
        alike = [i for i, key in enumerate(tables) if key == rotary.key]
        back = (*back, at - alike[-1] if alike else None)
    return (*shape, *((extended,) if any(extended) else ())), back
