"""The search for the memories of an overlay of row lanes together with the schedule of a network: by modelled latency
and bytes on the chip.

A choice that cannot work is refused with its reason: memories that the network does not fit in, knobs that contradict
each other, and programs that would not end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from typing import Any

from ..base.errors import UnsupportedError
from ..base.version import __version__
from ..hw.sim.machine import Machine
from ..isa.overlay import Overlay
from ..isa.overlays import file as overlay_files
from ..isa.overlays import find
from ..scheduler.build import Built
from ..scheduler.graph import LayerGraph
from ..scheduler.schedule import PAPER, LaneKnobs, LaneMode, Schedule
from ..scheduler.search import describe
from ..tuning.problem import Choice, Knob, Outcome, Value
from .capture import module_of
from .fold import fold_shapes
from .models import load_spec
from .passes import Passes
from .pipeline import Pipeline
from .precision import in_float32

USUAL = "usual"
"""The compiler chooses this knob. A search never leaves `mode` to it."""
SCHEDULE_KNOBS = (
    Knob("mode", ("R6", "P3")),
    Knob("lag", (USUAL, 0, 1, 2, 3, 4, 5, 6, 8)),
    Knob("trail", (1, 2, 3, 4)),
    Knob("hidden", (2, 3, 4)),
    Knob("lpddr", (USUAL, 0.5, 0.55, 0.6, 0.7, 0.8, 1.0)),
)
"""Those of `LaneKnobs`."""
MEMORY_KNOBS = (
    Knob("x", (2, 4, 5, 6, 7, 8)),
    Knob("t_even", (6, 7, 8, 10, 12)),
    Knob("t_odd", (5, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32)),
    Knob("kv", (2, 3, 4, 6, 8, 10, 12, 16)),
    Knob("w", (0, 1, 2, 3, 4)),
    Knob("w_ddr", (1, 2, 3, 4, 6, 8)),
    Knob("c", (1, 2, 3, 4)),
)
"""Tiles of 128x128 that memories and FIFOs hold, of K and V blocks of 128x64: a bank of X; T of an even and an odd
lane; each K and V; the FIFOs from LPDDR to each W (0: there is none), from DDR to W1, and from each MME to its C."""
TILE_ELEMENTS = 128 * 128
NO_FIFO = TILE_ELEMENTS // 4
"""Elements that a stream without a FIFO moves at once."""
GOALS: Mapping[str, str] = {"latency": "latency ms", "memory": "on-chip KiB"}


def fifos(overlay: Overlay) -> dict[str, tuple[str, ...]]:
    """Return the FIFOs whose depths are knobs: names of streams by name of the knob."""
    return {
        "w": tuple(f"LPDDR->{u.name}" for u in overlay.by_kind["W"]),
        "w_ddr": ("DDR->W1",),
        "c": tuple(f"MME{u.index}->C{u.index}" for u in overlay.by_kind["MME"]),
    }


def on_chip_kib(overlay: Overlay) -> float:
    """Return the KiB of the memories of an overlay's units, and of the FIFOs whose depths are knobs; elements take 4
    bytes."""
    memories = [u.memory for u in overlay.units if u.memory is not None]
    elements = sum(m.slots * m.rows * m.columns for m in memories)
    counted = {name for names in fifos(overlay).values() for name in names}
    held = [s.depth * s.token.word_elements for s in overlay.streams if s.name in counted]
    return (elements + sum(n for n in held if n > NO_FIFO)) * 4 / 1024


def usual(overlay: Overlay) -> Choice:
    """Return the choice that stands for the overlay as it ships, with the schedule `paper`: a value for each of
    `SCHEDULE_KNOBS` and `MEMORY_KNOBS`, in their units. Raises `UnsupportedError` for an overlay without lanes."""
    lanes = overlay.lanes
    if lanes is None:
        raise UnsupportedError(f"overlay {overlay.name} has no row lanes, whose memories a search could change")
    out: dict[str, Value] = {"mode": USUAL, "lag": USUAL, "lpddr": USUAL}
    out |= {"trail": PAPER.lanes.trail, "hidden": PAPER.lanes.hidden}
    out |= {"x": lanes.columns, "t_even": lanes.scratch[0], "t_odd": lanes.scratch[1], "kv": lanes.heads}
    streams = {s.name: s for s in overlay.streams}
    for knob, names in fifos(overlay).items():
        first = streams[names[0]]
        out[knob] = first.depth * first.token.word_elements // TILE_ELEMENTS
    return out


def schedule_of(choice: Choice) -> Schedule:
    """Return the schedule of a choice. Raises `ScheduleError` for knobs that contradict each other, `KeyError` for a
    choice without a knob of `SCHEDULE_KNOBS`."""
    given: dict[str, Any] = {k.name: choice[k.name] for k in SCHEDULE_KNOBS if choice[k.name] != USUAL}
    if "mode" in given:
        given["mode"] = LaneMode(given["mode"])
    return replace(PAPER, lanes=LaneKnobs(**given))


def overlay_text(base: Overlay, choice: Choice) -> str:
    """Return the text of an overlay file (TOML) with the memories of a choice. base: the overlay that it changes.
    Raises `KeyError` for a choice without a knob of `MEMORY_KNOBS`."""
    sizes = {k.name: int(choice[k.name]) for k in MEMORY_KNOBS}
    streams = {s.name: s for s in base.streams}
    name = "-".join([base.name, *(f"{knob}{size}" for knob, size in sizes.items())])
    lines = [f'name = "{name}"', f'overlay = "{base.name}"', "[streams]"]
    for knob, names in fifos(base).items():
        words = (sizes[knob] * TILE_ELEMENTS or NO_FIFO) // streams[names[0]].token.word_elements
        lines += [f'"{stream}" = {words}' for stream in names]
    slots = {"XIn": 2 * sizes["x"], "KvIn": 2 * sizes["kv"]}
    slots |= {u.name: sizes["t_odd" if u.index & 1 else "t_even"] for u in base.by_kind["TIn"]}
    for unit, count in slots.items():
        lines += [f"[memories.{unit}]", f"slots = {count}"]
    return "\n".join(lines) + "\n"


def overlay_of(base: Overlay, choice: Choice) -> Overlay:
    """Return the overlay of a choice: the base itself if no memory differs. Raises `ProgramError` for sizes that the
    overlay's instructions cannot express, `UnsupportedError` for a base without lanes, and as `overlay_text`."""
    ships = usual(base)
    if all(choice[k.name] == ships[k.name] for k in MEMORY_KNOBS):
        return base
    return overlay_files.made(overlay_text(base, choice), "the choice")


def built(network: LayerGraph, base: Overlay, choice: Choice) -> Built:
    """Compile a network for a choice. base: the overlay whose memories the choice changes. Raises `RsnError` for a
    choice that cannot work."""
    return Pipeline(overlay=overlay_of(base, choice), schedule=schedule_of(choice)).build(network)


@dataclass(frozen=True)
class LaneSearch:
    """A search over the memories of an overlay and the schedule of a model.

    spec: FILE.py:CALLABLE or a preset, as `rsn compile` takes it; each worker loads it. overlay: name of an overlay
    with lanes. wanted: keys of `GOALS`, the costs to minimise. on_chip_bytes: most bytes on the chip; None sets no
    limit. batch, seq: sequences, and rows of each; None for those of the model. seed: of random weights and inputs.
    """

    spec: str
    overlay: str
    wanted: tuple[str, ...] = ("latency",)
    on_chip_bytes: int | None = None
    batch: int | None = None
    seq: int | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        """All that the outcomes depend on, as text; `graph` is a digest of the network, `rsn` the version of this
        package. Raises as `base` and `network` do."""
        given: dict[str, int | str | None] = {"batch": self.batch, "seq": self.seq}
        given |= {"bytes on chip": self.on_chip_bytes, "seed": self.seed}
        base, network = self.base, self.network
        given["graph"] = sha256(repr(describe(network)).encode()).hexdigest()[:8]
        given["rsn"] = __version__
        stated = ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)
        return f"{self.spec} on the lanes of {base.name} ({stated})"

    @property
    def base(self) -> Overlay:
        """The overlay whose memories are changed. Raises `ProgramError` for an unknown overlay, `UnsupportedError` for
        one that does not ship with this package or has no lanes."""
        overlay = find(self.overlay)
        usual(overlay)
        if overlay.base is not None:
            raise UnsupportedError(f"{self.overlay}: a search begins with an overlay that ships, not with a file")
        return overlay

    @property
    def network(self) -> LayerGraph:
        """The network of the model, without weights. Raises as `load_spec`, `module_of` and `Pipeline.trace` do."""
        return _traced(self.spec, self.overlay, self.batch, self.seq, self.seed)

    @property
    def goals(self) -> tuple[str, ...]:
        """The names of the costs, with units, in the order of `wanted`. Raises `KeyError` for a name that is no key of
        `GOALS`."""
        return tuple(GOALS[goal] for goal in self.wanted)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The knobs of the schedule, then those of the memories."""
        return SCHEDULE_KNOBS + MEMORY_KNOBS

    @property
    def start(self) -> tuple[Choice, ...]:
        """The choices to try first: the overlay as it ships in mode R6 (each lane has rows of its own), in mode P3 (two
        lanes share rows), and in mode P3 with half of the memory X. Raises as `base` does."""
        ships = usual(self.base)
        return ({**ships, "mode": "R6"}, {**ships, "mode": "P3"}, {**ships, "mode": "P3", "x": 4})

    def evaluate(self, choice: Choice) -> Outcome:
        """Return the costs of a choice, in the order of `wanted`: modelled latency in ms, memory on the chip in KiB.
        Raises `RsnError` if the choice cannot work, `UnsupportedError` if its memories exceed `on_chip_bytes`."""
        kib = on_chip_kib(overlay_of(self.base, choice))
        if self.on_chip_bytes is not None and kib * 1024 > self.on_chip_bytes:
            raise UnsupportedError(f"memories of {kib:.0f} KiB; at most {self.on_chip_bytes >> 10} KiB are asked for")
        program = self.made(choice).program
        latency = Machine(program).run().latency_s * 1e3
        costs = {"latency": latency, "memory": kib}
        return Outcome(tuple(costs[goal] for goal in self.wanted), {"latency ms": latency, "on-chip KiB": kib})

    def made(self, choice: Choice) -> Built:
        """Compile the network for a choice. Raises `RsnError` for a choice that cannot work."""
        return built(self.network, self.base, choice)


@cache
def _traced(spec: str, overlay: str, batch: int | None, seq: int | None, seed: int) -> LayerGraph:
    """The network of a model, traced once in a process: shapes alone, because times do not depend on weights."""
    model, example = load_spec(spec, batch=batch, seq=seq, seed=seed)
    model, example, _ = in_float32(module_of(model), example)
    pipeline = Pipeline(overlay=find(overlay), passes=Passes(fold=fold_shapes), checks_rows=False)
    return pipeline.trace(model, example).network
