"""Search for a schedule, with the timing engine as the cost model.

Every candidate is lowered and listed; the run that finds the order of DDR's accesses is the price. Where a network
repeats itself, two repetitions stand for all. What is tried, and in which order, depends on the network and the seed
alone; the budget says how far one gets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ..isa.compiled import Timing, execute
from ..isa.datapath import Overlay
from ..isa.errors import DeadlockError, ProgramError, ScheduleError, UnsupportedError
from .groups import groups_of, kind_of
from .lower import lower
from .pack import pack, uops_of
from .schedule import PAPER, Interleave, Loops, Rule, Schedule
from .segment import Attention, Gemm, Network, Output

DEAR = 3.0
"""What a share of an image that is too large costs, in shares of the latency."""
STARTS = (Rule(10.0, 8), Rule(5.0, 4), Rule(2.0, 2, by_columns=True))
"""Rules that products begin with. A load waits for somewhat less than a piece takes: then a store goes first where it
would be the second otherwise, and never two in a row."""
ATTENTION = Rule(2.0, 4)
"""What attention begins with: its pieces are of one or two blocks."""
PATIENCE_US = (0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 14.0, 20.0)
STORE_BLOCKS = (2, 4, 8, 16)


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
            f"modelled {self.latency_s * 1e3:.3f} ms{of}, without launch; {self.tried} schedules tried",
            "busy, a bound for every order: " + ", ".join(f"{unit} {s * 1e3:.3f} ms" for unit, s in bounds),
            *self.steps,
        ]


def search(
    network: Network,
    overlay: Overlay,
    budget_s: float,
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
) -> Found:
    """The best schedule within a budget of seconds. Raises `ScheduleError` for a budget that is no time, and what
    `lower` raises."""
    if not budget_s > 0:
        raise ScheduleError(f"budget of {budget_s} s: a search needs more than 0")
    started = time.monotonic()
    small = sample(network)
    kinds: list[str] = []
    found: Found | None = None
    failure: Exception | None = None
    price_s = 0.0
    size = _Size(network, small, overlay)
    seen: set[Schedule] = set()

    def spent() -> float:
        return (time.monotonic() - started) / budget_s

    def attempt(schedule: Schedule, what: str) -> bool:
        nonlocal found, failure, price_s
        if schedule in seen:
            return False
        seen.add(schedule)
        progress(min(1.0, spent()))
        try:
            run = price(small, overlay, schedule)
        except (DeadlockError, ProgramError, UnsupportedError) as e:
            failure = failure or e
            return False
        if found is None:
            found = Found(schedule, run.latency, len(small.layers), len(network.layers))
            found.steps.append(f"{what}: {run.latency * 1e3:.3f} ms")
            price_s = run.latency
        else:
            found.tried += 1
            if run.latency >= price_s * (1 - 1e-6):
                return False
            try:
                asked = run.latency * (1 + DEAR * size.excess(schedule))
            except ProgramError:  # it runs, but there is no image of it
                return False
            if asked >= price_s * (1 - 1e-6):
                return False
            found.steps.append(f"{what}: {run.latency * 1e3:.3f} ms, {size.words(schedule)}")
            found.schedule, found.latency_s, price_s = schedule, run.latency, asked
        found.busy = {u.name: run.busy[u.name] for u in overlay.units}
        return True

    attempt(PAPER, "as in the paper")

    for loops in (Loops.ROWS, Loops.COLUMNS):
        for balance in (True, False):
            base = Schedule(interleave=Interleave.LISTED, loops=loops, balance=balance)
            kinds = list(dict.fromkeys(kind_of(group) for group in groups_of(small, loops)))
            for rule in STARTS:
                words = f"{loops.value} outside" + ", balanced" * balance + f", {rule.words}"
                rules = [(kind, ATTENTION if kind.startswith("attention") else rule) for kind in kinds]
                attempt(replace(base, rules=tuple(rules)), words)
                if found is not None and spent() > 1:
                    return found
    if found is None:
        assert failure is not None
        raise failure
    rng = np.random.default_rng(seed)
    improved = True
    while improved:
        improved = False
        kinds = [kind for kind, _ in found.schedule.rules]
        for kind in rng.permutation(len(kinds)):
            for rule in _neighbours(found.schedule.rule(kinds[kind])):
                if spent() > 1:
                    return found
                changed = dict(found.schedule.rules) | {kinds[kind]: rule}
                tried = replace(found.schedule, rules=tuple(changed.items()))
                improved |= attempt(tried, f"{kinds[kind]}: {rule.words}")
    return found


def price(network: Network, overlay: Overlay, schedule: Schedule) -> Timing:
    """The run of a network's kernels, without the instruction path. Raises as `lower`, and `DeadlockError`."""
    lowered = lower(network, overlay, schedule)
    if lowered.found is not None:
        return lowered.found
    return execute(overlay, issues=uops_of(lowered.kernels), preloaded=lowered.kernels.preloaded)


class _Size:
    """How large images become, as far as the packed sample tells."""

    def __init__(self, network: Network, small: Network, overlay: Overlay) -> None:
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

    def _packed(self, network: Network, schedule: Schedule) -> int:
        return 4 * len(pack(lower(network, self._overlay, schedule).kernels).image)

    def excess(self, schedule: Schedule) -> float:
        """By how much an image is too large, as a share of what there is room for."""
        most = self._overlay.image_bytes
        return max(0.0, self.bytes(schedule) / most - 1) if most else 0.0

    def words(self, schedule: Schedule) -> str:
        return f"image about {self.bytes(schedule) / 1024:.0f} KiB"


def first(network: Network, layers: int) -> Network:
    """The network that ends with its layer number `layers`."""
    kept = network.layers[:layers]
    return replace(network, layers=kept, outputs=(Output(kept[-1].y),))


def _neighbours(rule: Rule) -> Iterator[Rule]:
    """Rules that differ in one knob, and then in two."""
    yield replace(rule, by_columns=not rule.by_columns)
    for blocks in STORE_BLOCKS:
        yield replace(rule, store_blocks=blocks)
    for patience in PATIENCE_US:
        yield replace(rule, patience_us=patience)
    for blocks in STORE_BLOCKS:
        for patience in PATIENCE_US[1::2]:
            if blocks != rule.store_blocks:
                yield replace(rule, store_blocks=blocks, patience_us=patience)


def describe(network: Network) -> tuple[object, ...]:
    """All of a network that a schedule can depend on."""
    shapes = tuple(_shape(network, i) for i in range(len(network.layers)))
    return network.rows, tuple(network.inputs.values()), len(network.outputs), shapes


def sample(network: Network) -> Network:
    """The network, or two of its repetitions if it has more."""
    layers = network.layers
    for period in range(1, len(layers) // 3 + 1):
        if len(layers) % period == 0 and _repeats(network, period):
            small = first(network, 2 * period)
            if all(_kinds(small, loops) == _kinds(network, loops) for loops in Loops):
                return small
    return network


def _kinds(network: Network, loops: Loops) -> set[str]:
    """Of segments: a part of what is lowered together is of another kind than the whole."""
    return {kind_of(group) for group in groups_of(network, loops)}


def _repeats(network: Network, period: int) -> bool:
    """Whether the layers are the same again and again, but for their names and weights."""
    shapes = [_shape(network, i) for i in range(len(network.layers))]
    return all(shapes[i] == shapes[i - period] for i in range(2 * period, len(shapes))) and all(
        a[0] == b[0] for a, b in zip(shapes[period : 2 * period], shapes, strict=False)
    )


def _shape(network: Network, at: int) -> tuple[object, ...]:
    """A layer without its names: what it is, and how far back what it reads was made."""
    layer = network.layers[at]
    made = {other.y: i for i, other in enumerate(network.layers[:at])}
    back = tuple(at - made[name] if name in made else None for name in _reads(layer))
    if isinstance(layer, Attention):
        return ("attention", layer.heads, layer.head_dim, layer.masked), back
    return (layer.weight.shape, layer.activation, layer.residual is None, layer.norm), back


def _reads(layer: Gemm | Attention) -> list[str]:
    if isinstance(layer, Attention):
        return [layer.q, layer.k, layer.v]
    return [layer.x] if layer.residual is None else [layer.x, layer.residual]
