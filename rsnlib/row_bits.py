"""Which products of a model get rows of 16 bits on overlay xnn8: by data, those that gain most for their time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import replace

from torch import nn

from ..base.errors import ScheduleError, UnsupportedError
from ..isa.overlay import Overlay
from ..isa.overlays import find
from ..scheduler.graph import Gemm
from ..scheduler.integer_panels import least_seconds
from ..scheduler.integers import IntegerNetwork, is_product
from .graph_split import Examples
from .integers import IntegerModel, integers_of, with_rows16
from .quality import Quality, quality

LEAST_COST = 1e-3
"""Of the time of all layers: gains are not divided by less, of which estimates of times know nothing."""


def choose_rows16(
    model: nn.Module,
    calls: Sequence[Examples],
    *,
    until: float,
    smooth: Sequence[Examples] | None = None,
    overlay: str = "xnn8",
) -> list[str]:
    """Choose the products whose rows get 16 bits, and return their module paths, for `rows16` of `rsn.compile`,
    `rsn.in_integers` and `Decoder`. Products are chosen one after the other, always the one that gains most for the
    time that it costs.

    calls: example inputs by which is chosen, by position or by name, all of the shapes of the first one. until: when to
    stop. A number from 1 on is the largest number of products. A number below 1 is a cosine: products are chosen until
    the cosine of each row of the results with the same row of the model's results is at least that, in all calls.
    smooth: as for `rsn.in_integers`. overlay: name of an overlay that computes in integers.

    The gain of a product is the mean cosine that is lost if its rows have 8 bits and those of all others 16; its cost
    is the estimated time that it adds to the products chosen before. A product is not chosen if the overlay has no room
    for it. Raises `ScheduleError` for no calls, for an `until` that is not positive, and if all products that fit do
    not reach the cosine; and as `rsn.in_integers` and `rsn.quality`.
    """
    if not calls or not until > 0:
        raise ScheduleError("rows16 by data take calls, and a number of products or a cosine above 0")
    found = _ProductChoice(model, calls, smooth, find(overlay))
    return found.until_count(int(until)) if until >= 1 else found.until_cosine(until)


class _ProductChoice:
    """Chooses products of a model one after the other. Arguments: as for `choose_rows16`."""

    def __init__(
        self, model: nn.Module, calls: Sequence[Examples], smooth: Sequence[Examples] | None, overlay: Overlay
    ) -> None:
        self._model, self._calls, self._overlay = model, calls, overlay
        traced, _, borders = integers_of(model, calls[0], smooth)
        self._paths = {x.y: x.path for x in traced.network.layers if isinstance(x, Gemm) and is_product(x)}
        wide = with_rows16(traced, [*self._paths.values()])
        self._integers = IntegerModel(traced, borders)
        self._narrow, self._wide = self._integers.network, IntegerNetwork.of(wide.network)
        self._seconds = dict[frozenset[str], float]()
        every = frozenset(self._paths)
        least = self._quality(every).mean
        self._gains = {y: least - self._quality(every - {y}).mean for y in self._paths}
        self._chosen: list[str] = []

    def until_count(self, count: int) -> list[str]:
        while len(self._chosen) < count and self._choose():
            pass
        return [self._paths[y] for y in self._chosen]

    def until_cosine(self, cosine: float) -> list[str]:
        while (reached := self._quality(frozenset(self._chosen)).worst) < cosine:
            if not self._choose():
                raise ScheduleError(
                    f"rows16: the worst cosine is {reached:.7f} with all products that fit, not {cosine}; they are "
                    f"{len(self._chosen)} of {len(self._paths)}"
                )
        return [self._paths[y] for y in self._chosen]

    def _choose(self) -> bool:
        """Choose one more product. Returns whether there is one."""
        now, all_seconds = self._time(frozenset(self._chosen)), self._time(frozenset())
        kinds = dict[str, float | None]()
        worth = dict[str, float]()
        for y, path in self._paths.items():
            if y in self._chosen:
                continue
            kind = re.sub(r"\d+", "*", path)  # those of other layers cost as much
            if kind not in kinds:
                try:
                    kinds[kind] = self._time(frozenset({*self._chosen, y})) - now
                except UnsupportedError:
                    kinds[kind] = None
            cost = kinds[kind]
            if cost is not None:
                worth[y] = self._gains[y] / max(cost, LEAST_COST * all_seconds)
        if worth:
            self._chosen.append(max(worth, key=lambda y: worth[y]))
        return bool(worth)

    def _network(self, wide: frozenset[str]) -> IntegerNetwork:
        """The network with rows of 16 bits for some products."""
        products = {y: (self._wide if y in wide else self._narrow).products[y] for y in self._narrow.products}
        return replace(self._narrow, network=replace(self._narrow.network, rows16=wide), products=products)

    def _time(self, wide: frozenset[str]) -> float:
        if wide not in self._seconds:
            self._seconds[wide] = least_seconds(self._network(wide), self._overlay)
        return self._seconds[wide]

    def _quality(self, wide: frozenset[str]) -> Quality:
        integers = copy(self._integers)
        integers.network = self._network(wide)
        return quality(integers, self._model, self._calls)
