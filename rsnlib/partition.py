"""A traced module: the machine's network and PyTorch's part, and which operator is in which."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from torch.fx import Node

from ..base.errors import TensorError
from ..scheduler.graph import LayerGraph
from .flops import FlopCounter
from .host_part import HostPart
from .summary import Modelled, Work, head, table


@dataclass(frozen=True)
class Placement:
    """Where an operator of the module runs, "host" or "machine", and why there. node: the operator."""

    path: str
    op: str
    where: str
    why: str
    node: Node


@dataclass(frozen=True, eq=False)
class Traced:
    """What `trace` makes of a module: what the machine runs (network), and what PyTorch runs (host).

    origins: for each layer of the network, by its result, the operator to cut the graph at if the machine has no room
    for the layer. again: the same graph with what its weights hold now.
    """

    network: LayerGraph
    host: HostPart
    placements: tuple[Placement, ...]
    origins: Mapping[str, Node] = field(default_factory=dict)
    again: Callable[[], Traced] | None = None

    def with_lengths(
        self, lengths: Sequence[int], example_inputs: tuple[Any, ...] | dict[str, Any] | None = None
    ) -> Traced:
        """The same for sequences of at most so many rows. example_inputs: with which the host's part is checked, if
        their masks fit; else the first call does that. Raises `ScheduleError`, and UnsupportedError as the prologue."""
        network = self.network.with_lengths(lengths)
        traced = replace(self, network=network, host=replace(self.host, lengths=network.lengths))
        if example_inputs is not None:
            by_position, by_name = ((), example_inputs) if isinstance(example_inputs, dict) else (example_inputs, {})
            with suppress(TensorError):
                traced.host.prologue(*by_position, **by_name)
        return traced

    def work(self, modelled: Modelled | None = None) -> list[Work]:
        """What each module computes, where; `modelled` adds the machine's time, by layer."""
        counter = FlopCounter()
        work = [Work(p.path, counter.of(p.node), p.where == "machine") for p in self.placements]
        if modelled is not None:
            paths = {layer.y: layer.path for layer in self.network.layers}
            work += [Work(paths[y], 0, True, s) for y, s in modelled.segments.items() if y in paths]
        return work

    def explain(self, modelled: Modelled | None = None) -> str:
        """A summary: which share of the FLOPs, and of the modelled time, each module has on the machine. Then a table
        of the module's operators: where each runs, and why."""
        latency_s = None if modelled is None else modelled.latency_s
        work = self.work(modelled)
        first = f"{self.title}: {head(work, latency_s)}"
        lines = [first, *table(work, latency_s)]
        if self.network.lengths:
            lines.append("FLOPs of rows beyond the lengths are counted; the machine does not compute them")
        return "\n".join([*lines, "", *self.operators()])

    @property
    def title(self) -> str:
        """Sizes, in words."""
        return f"{self.network.size}, {len(self.network.layers)} layers on the machine"

    def operators(self) -> list[str]:
        """A table of the module's operators: where each runs, and why."""
        network = self.network
        ends = f"inputs {', '.join(network.inputs)}; outputs {', '.join(x.name for x in network.outputs)}"
        table = [("module", "runs on", "why", "operators")]
        for (path, where, why), group in groupby(self.placements, key=lambda p: (p.path, p.where, p.why)):
            table.append((path or "(top level)", where, why, ", ".join(dict.fromkeys(p.op for p in group))))
        widths = [max(len(row[i]) for row in table) for i in range(4)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        return [ends, *(line.rstrip() for line in lines)]
