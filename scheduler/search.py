"""Search for a schedule by a cost model, which is the timing engine where nobody brings another.

Every candidate is lowered and listed; the run that finds the order of DDR's accesses is the price. Where a network
repeats itself, two repetitions stand for all. What is tried, and in which order, depends on the network and the seed
alone; the budget says how far one gets.
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
from ..machine.timing import Timing
from .graph import Attention, Gemm, LayerGraph, Output
from .groups import groups_of, kind_of
from .lower import lower, place
from .pack import pack, uops_of
from .schedule import PAPER, DramPolicy, Interleave, Loops, Schedule
from .tiles import Tiles

DEAR = 3.0
"""What a share of an image that is too large costs, in shares of the latency."""
STARTS = (8, 4, 2)
"""Blocks of the pieces that products begin with; the smallest by columns."""
ATTENTION = 2
"""Blocks that attention stores at a time."""
WAIT = 0.9
"""How long a load waits at first, in shares of the time that a piece takes: somewhat less, so that a store goes first
where it would be the second otherwise, and never two in a row."""
WAITS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9, 1.2, 1.8)
PIECES = (2, 4, 8, 16)
CUTS = (Tiles(tile_rows=3), Tiles(tile_rows=4, mme_rows=2), Tiles(tile_cols=4), Tiles(tile_cols=6))
"""Ways to cut products that are tried beside the usual one."""


@dataclass
class Found:
    """The best schedule, its modelled latency in seconds (of `sampled` of the network's segments), how many were tried,
    and what made it better: words for people."""

    schedule: Schedule
    latency_s: float
    sampled: int
    segments: int
    tried: int = 0
    steps: list[str] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)
    """Seconds in which a unit did not wait: no order is quicker than the busiest."""

    @property
    def words(self) -> list[str]:
        of = "" if self.sampled == self.segments else f" for {self.sampled} of {self.segments} segments"
        bounds = sorted(self.busy.items(), key=lambda item: -item[1])[:4]
        return [
            f"modelled {duration(self.latency_s)}{of}, without launch; {self.tried} schedules tried",
            "busy, a bound for every order: " + ", ".join(f"{unit} {duration(s)}" for unit, s in bounds),
            *self.steps,
        ]


class Price(Protocol):
    """What a cost model says of a schedule. latency: in seconds; the search looks for the lowest. busy: by unit, the
    seconds in which it did not wait, for people to read: no order is quicker than the busiest."""

    @property
    def latency(self) -> float: ...
    @property
    def busy(self) -> Mapping[str, float]: ...


CostModel = Callable[[LayerGraph, Overlay, Schedule], Price]
"""Raises `ScheduleError`, `UnsupportedError`, `ProgramError` or `DeadlockError` for what cannot run."""


def price(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> Timing:
    """The run of a network's kernels, without the instruction path. Raises as `lower`, and `DeadlockError`."""
    lowered = lower(network, overlay, schedule)
    if lowered.found is not None:
        return lowered.found
    return execute(overlay, {**uops_of(lowered.kernels), **lowered.kernels.preloaded})


def search(
    network: LayerGraph,
    overlay: Overlay,
    budget_s: float,
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
    cost: CostModel = price,
) -> Found:
    """The best schedule within a budget of seconds, by a cost model. Raises `ScheduleError` for a budget that is no
    time, and what `lower` raises."""
    if not budget_s > 0:
        raise ScheduleError(f"budget of {budget_s} s: a search needs more than 0")
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
    """What to try next, and what it is, given what has been found so far: some to begin with, then steps from the best,
    until none improves it."""
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
    """If the fastest to begin with has too large an image: the same with other rules, one kind of segment at a time,
    attention first, which has the most accesses."""
    fastest = trial.fastest
    if fastest is None or trial.found is None or fastest is trial.found.schedule:
        return
    for kind, rule in sorted(fastest.rules, key=lambda item: not item[0].startswith("attention")):
        for wait in WAITS:
            other = pace.paced(rule, wait, rule.store_blocks)
            yield replace(fastest, rules=tuple((dict(fastest.rules) | {kind: other}).items())), f"{kind}: {other.words}"


class _Trial:
    """What has been tried, and the best of it. network: what is priced; whole: what must have room off chip."""

    def __init__(self, network: LayerGraph, overlay: Overlay, size: _Size, cost: CostModel, whole: LayerGraph) -> None:
        self._network, self._overlay, self._size, self._cost = network, overlay, size, cost
        self._whole = whole
        self._seen: set[Schedule] = set()
        self._price_s = 0.0
        self.found: Found | None = None
        self.fastest: Schedule | None = None
        """Whatever the size of its image."""
        self._fastest_s = inf
        self.failure: Exception | None = None

    def attempt(self, schedule: Schedule, what: str) -> None:
        """Price a schedule, unless it has been, and keep it if it is better."""
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
                self.found = Found(schedule, run.latency, layers, layers, steps=[f"{what}: {duration(run.latency)}"])
            else:
                self.found.tried += 1
                if run.latency >= self._price_s * (1 - 1e-6):
                    return
                asked = run.latency * (1 + DEAR * self._size.excess(schedule))
                if asked >= self._price_s * (1 - 1e-6):
                    return
                self.found.steps.append(f"{what}: {duration(run.latency)}, {self._size.words(schedule)}")
                self.found.schedule, self.found.latency_s, self._price_s = schedule, run.latency, asked
        except (DeadlockError, ProgramError, UnsupportedError) as e:  # it does not run, or there is no image of it
            self.failure = self.failure or e
            return
        self.found.busy = {u.name: run.busy[u.name] for u in self._overlay.units if u.name in run.busy}


class _Pace:
    """Rules in shares of the time that a piece takes, so that they mean the same whatever the rates."""

    def __init__(self, overlay: Overlay) -> None:
        self._block_us = BLOCK * 4 * overlay.seconds["ddr_write_gbs"] * 1e6

    def paced(self, rule: DramPolicy, wait: float, blocks: int) -> DramPolicy:
        """The rule with pieces of so many blocks; a load waits up to `wait` of the time that one takes."""
        return replace(rule, patience_us=min(1000.0, round(wait * blocks * self._block_us, 2)), store_blocks=blocks)

    def wait(self, rule: DramPolicy) -> float:
        """The share that a rule allows."""
        return rule.patience_us / (rule.store_blocks * self._block_us) if self._block_us else WAIT


class _Size:
    """How large images become, as far as the packed sample tells."""

    def __init__(self, network: LayerGraph, small: LayerGraph, overlay: Overlay) -> None:
        self._network, self._small, self._overlay = network, small, overlay
        self._known: dict[Schedule, float] = {}
        self._share: float | None = None

    def bytes(self, schedule: Schedule) -> float:
        """The image of the network, in bytes."""
        if schedule not in self._known:
            two = self._packed(self._small, schedule)
            if self._share is None:  # what a repetition adds, of what two take
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
        """By how much an image is too large, as a share of what there is room for."""
        most = self._overlay.image_bytes
        return max(0.0, self.bytes(schedule) / most - 1) if most else 0.0

    def words(self, schedule: Schedule) -> str:
        return f"image about {self.bytes(schedule) / 1024:.0f} KiB"


def first(network: LayerGraph, layers: int) -> LayerGraph:
    """The network that ends with its layer number `layers`."""
    kept = network.layers[:layers]
    return replace(network, layers=kept, outputs=(Output(kept[-1].y),))


def _neighbours(rule: DramPolicy, pace: _Pace) -> Iterator[DramPolicy]:
    """Rules that differ in one knob, and then in two."""
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
    """All of a network that a schedule can depend on."""
    shapes = tuple(_shape(network, i) for i in range(len(network.layers)))
    return network.rows, tuple(network.inputs.values()), len(network.outputs), shapes


def sample(network: LayerGraph) -> LayerGraph:
    """The network, or two of its repetitions if it has more."""
    layers = network.layers
    for period in range(1, len(layers) // 3 + 1):
        if len(layers) % period == 0 and _repeats(network, period):
            small = first(network, 2 * period)
            if all(_kinds(small, loops) == _kinds(network, loops) for loops in Loops):
                return small
    return network


def _kinds(network: LayerGraph, loops: Loops) -> set[str]:
    """Of segments: a part of what is lowered together is of another kind than the whole."""
    return {kind_of(group) for group in groups_of(network, loops)}


def _repeats(network: LayerGraph, period: int) -> bool:
    """Whether the layers are the same again and again, but for their names and weights."""
    shapes = [_shape(network, i) for i in range(len(network.layers))]
    return all(shapes[i] == shapes[i - period] for i in range(2 * period, len(shapes))) and all(
        a[0] == b[0] for a, b in zip(shapes[period : 2 * period], shapes, strict=False)
    )


def _shape(network: LayerGraph, at: int) -> tuple[object, ...]:
    """A layer without its names: what it is, and how far back what it reads was made."""
    layer = network.layers[at]
    made = {other.y: i for i, other in enumerate(network.layers[:at])}
    back = tuple(at - made[name] if name in made else None for name in _reads(layer))
    if isinstance(layer, Attention):
        bias = None if layer.bias is None else layer.bias.shape
        return ("attention", layer.heads, layer.head_dim, layer.masked, layer.causal, bias), back
    return (layer.weight.shape, layer.activation, layer.residual is None, layer.norm), back


def _reads(layer: Gemm | Attention) -> list[str]:
    if isinstance(layer, Attention):
        return [layer.q, layer.k, layer.v]
    return [layer.x] if layer.residual is None else [layer.x, layer.residual]
