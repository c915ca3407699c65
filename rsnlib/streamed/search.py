"""The search for the knobs of a generated machine: tiles and widths, by modelled latency and bytes on the chip."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from math import inf
from typing import Any

from ...base.errors import ResourceError
from ...base.version import __version__
from ...streams.placing.devices import StreamDevice, device_named
from ...tuning.problem import Choice, Knob, Outcome
from ..models import load_spec
from .block import Streamed, streamed
from .figures import tiles
from .generate import DEFAULT, Generated, place
from .knobs import Knobs
from .plans import KernelPlan

KNOBS = (
    Knob("rows", (8, 16, 32, 64, 128, 256)),
    Knob("columns", (8, 16, 32, 64, 128)),
    Knob("depth", (16, 32, 64, 128)),
    Knob("packed", (0, 1)),
)
KNOBS_OF_INTEGERS = (
    Knob("rows", (1, 4, 8, 16, 32, 64)),
    Knob("columns", (32, 64, 128, 256, 512, 1024)),
    Knob("depth", (64, 128, 256)),
    Knob("packed", (1,)),
    Knob("kernels", (1, 2, 4, 8)),
    Knob("arrays", (0, 4, 8, 12, 16, 20)),
)
"""Those of a machine whose products are of integers."""
START: Choice = {knob.name: getattr(DEFAULT, knob.name) for knob in KNOBS}
"""The tiles of a machine for which no knobs are given."""
TILES = ((32, 64, 64), (64, 64, 64), (128, 64, 64), (32, 128, 64), (64, 128, 64), (32, 128, 128))
"""Rows, columns and depth of tiles that a short search tries: the default ones first. Tiles of more rows load weights
fewer times, those of more columns give a product more sums to add to in turn."""
TILES_OF_INTEGERS = ((8, 256, 128), (8, 1024, 128), (8, 64, 256, 12))
"""Further ones for products of integers, whose sums are all added to in each cycle: with fewer rows more kernels work
at the same time, and with more columns a product of a single row takes more weights in a cycle. The last number are
arrays that products share: those that wait for each other keep them busy in turn."""
FEW_ROWS = ((4, 128, 64),)
FEW_ROWS_OF_INTEGERS = ((4, 512, 128), (1, 1024, 128), (1, 64, 256, 20))
"""Further ones for sequences of any length: a step computes all rows of its tile, of which it has one."""
GOALS: Mapping[str, str] = {"latency": "latency ms", "memory": "on-chip KiB"}


@dataclass(frozen=True)
class BlockSearch:
    """A search over the knobs of a machine for a module on a device.

    spec: FILE.py:CALLABLE or a preset, as `rsn compile` takes it; each worker loads it. device: its name. wanted: keys
    of `GOALS`, the costs to minimise. on_chip_bytes: limit of bytes on the chip, as for `generate`. batch, seq:
    sequences, and rows of each; None for those of the model. seed: of random weights and inputs.
    """

    spec: str
    device: str
    wanted: tuple[str, ...] = ("latency",)
    on_chip_bytes: int | None = None
    batch: int | None = None
    seq: int | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        """All that the outcomes depend on, as text; `graph` is a digest of the stream program, `rsn` the version of
        this package, which generates and times the machines. Raises as `load_spec` and `streamed` do."""
        given: dict[str, int | str | None] = {"batch": self.batch, "seq": self.seq}
        given |= {"bytes on chip": self.on_chip_bytes, "seed": self.seed}
        # The file of the model may change between two searches: its operators and shapes are part of the name.
        text = _captured(self.spec, self.batch, self.seq, self.seed).text
        given["graph"] = sha256(text.encode()).hexdigest()[:8]
        given["rsn"] = __version__
        stated = ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)
        return f"{self.spec} on {self.device} ({stated})"

    @property
    def goals(self) -> tuple[str, ...]:
        """The names of the costs, with units, in the order of `wanted`. Raises `KeyError` for a name that is no key of
        `GOALS`."""
        return tuple(GOALS[goal] for goal in self.wanted)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The knobs: the sizes of a tile in elements, and whether tensors off the chip lie tile by tile (`packed`)."""
        return KNOBS

    @property
    def start(self) -> tuple[Choice, ...]:
        """The choice to try first: the tiles of a machine for which no knobs are given."""
        return (START,)

    def evaluate(self, choice: Choice) -> Outcome:
        """Return the costs of a choice in the order of `wanted`: modelled latency in ms, memory on the chip in KiB. The
        facts of the outcome are its clock cycles and its number of groups of kernels. Raises as `made` does."""
        made = self.made(choice)
        kib = made.on_chip_bytes / 1024
        costs = {"latency": made.latency_s * 1e3, "memory": kib}
        facts = {"cycles": float(made.cycles), "on-chip KiB": kib, "groups": float(len(made.fusion.groups))}
        return Outcome(tuple(costs[goal] for goal in self.wanted), facts)

    def made(self, choice: Choice) -> Generated:
        """Return the machine of a choice. Raises as `load_spec` and `generate` do, and `ProgramError` for a device that
        is not known."""
        chosen: dict[str, Any] = {name: int(value) for name, value in choice.items()}
        captured = _captured(self.spec, self.batch, self.seq, self.seed)
        knobs = replace(DEFAULT, **chosen)
        return place(captured, device_named(self.device), knobs, on_chip_bytes=self.on_chip_bytes)


def tile_candidates(made: Streamed, knobs: Knobs, fixed: Collection[str]) -> tuple[Knobs, ...]:
    """Return the knobs that a short search tries, each with other sizes of tiles: `TILES`; `TILES_OF_INTEGERS` if a
    product is of integers; and tiles of few rows if the block is for sequences of any length.

    knobs: the other knobs. fixed: names of knobs whose values in `knobs` stay. Knobs that cut each operator into the
    same tiles as earlier ones are left out. If all sizes of a tile are fixed, only `knobs` is returned.
    """
    if {"rows", "columns", "depth"} <= {*fixed}:
        return (knobs,)
    found: list[tuple[Knobs, list[KernelPlan]]] = []
    integers = any(x.op == "linear" and x.multiplies_integers for x in made.block.graph.kernels)
    few = (*FEW_ROWS, *(FEW_ROWS_OF_INTEGERS if integers else ())) if made.lengths else ()
    for tile in (*TILES, *(TILES_OF_INTEGERS if integers else ()), *few):
        values: dict[str, Any] = dict(zip(("rows", "columns", "depth", "arrays"), tile, strict=False))
        tried = replace(knobs, **{name: value for name, value in values.items() if name not in fixed})
        plans = list(made.changed(tried).plans.values())
        if all(plans != others for _, others in found):
            found.append((tried, plans))
    return tuple(tried for tried, _ in found)


def fastest(
    made: Streamed,
    device: StreamDevice,
    candidates: Sequence[Knobs],
    *,
    on_chip_bytes: int | None = None,
    cost: Callable[[Generated], float] = lambda made: made.latency_s,
    done: Callable[[str], None] = lambda step: None,
) -> Generated:
    """Return the machine that costs least, of knobs that fit the device; the first one of several. made: the block.
    candidates: the knobs to try, one or more. on_chip_bytes: as for `place`. cost: of a machine, less than infinity; by
    default its modelled latency in seconds. done: called after each, with its tiles (`figures.tiles`). Raises as
    `place` does for the first knobs if none fit."""
    best, least, refused = None, inf, None
    for knobs in candidates:
        try:
            tried = place(made, device, knobs, on_chip_bytes=on_chip_bytes)
        except ResourceError as e:
            refused = refused or e
        else:
            if (costs := cost(tried)) < least:
                best, least = tried, costs
        done(tiles(knobs))
    if best is None:
        assert refused is not None, "there is at least one candidate"
        raise refused
    return best


@cache
def _captured(spec: str, batch: int | None, seq: int | None, seed: int) -> Streamed:
    """The module, captured once in a process."""
    module, example = load_spec(spec, batch=batch, seq=seq, seed=seed)
    return streamed(module, example)
