"""A traced module: the network for the machine, the part for PyTorch, and the placement of each operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from torch.fx import Node

from ..base.errors import TensorError
from ..scheduler.graph import LayerGraph
from ..scheduler.groups import some_of
from . import product_types, weight_bits
from .bound_table import bound_table
from .capture import packet
from .flops import FlopCounter
from .host_part import HostPart
from .quantised_ops import INTEGER_PRODUCTS
from .summary import Modelled, ModuleWork, head, table


@dataclass(frozen=True)
class OperatorPlacement:
    """Where an operator runs. path: the module path of the operator. op: its name. where: "host" or "machine". why: the
    reason, for the user. node: its node in the captured graph."""

    path: str
    op: str
    where: str
    why: str
    node: Node


@dataclass(frozen=True, eq=False)
class Traced:
    """The result of `trace`.

    network: the part for the machine. host: the part for PyTorch. placements: where each operator runs, in order.
    origins: the operator at which to cut the graph if the machine cannot run a layer, by the name of the layer's
    result. again: traces the same graph with the current values of the weights; None if that was not asked for.
    """

    network: LayerGraph
    host: HostPart
    placements: tuple[OperatorPlacement, ...]
    origins: Mapping[str, Node] = field(default_factory=dict)
    again: Callable[[], Traced] | None = None

    def with_lengths(
        self, lengths: Sequence[int], example_inputs: tuple[Any, ...] | dict[str, Any] | None = None
    ) -> Traced:
        """Return the same for sequences of at most these numbers of rows.

        lengths: one for each sequence. example_inputs: used to check the host part, if their masks fit the lengths;
        otherwise, and with None, the first call checks it. Raises `ScheduleError` for lengths that do not fit, and
        `UnsupportedError` like `HostPart.prologue`.
        """
        network = self.network.with_lengths(lengths)
        traced = replace(self, network=network, host=replace(self.host, lengths=network.lengths))
        if example_inputs is not None:
            by_position, by_name = ((), example_inputs) if isinstance(example_inputs, dict) else (example_inputs, {})
            with suppress(TensorError):
                traced.host.prologue(*by_position, **by_name)
        return traced

    def work(self, modelled: Modelled | None = None) -> list[ModuleWork]:
        """Return the FLOPs of each operator with its module and place. modelled: adds the machine's modelled seconds by
        layer; None adds none."""
        counter = FlopCounter()
        work = [ModuleWork(p.path, counter.of(p.node), p.where == "machine") for p in self.placements]
        if modelled is not None:
            paths = {layer.y: layer.path for layer in self.network.layers}
            work += [ModuleWork(paths[y], 0, True, s) for y, s in modelled.layers.items() if y in paths]
        return work

    def explain(self, modelled: Modelled | None = None) -> str:
        """Return the text of `rsn.explain`: each module's share of FLOPs and of modelled time on the machine, how far
        each segment is from the best possible, then a table of operators with place and reason; of a quantised
        model also the types of its products. modelled: the machine's times in seconds; None leaves times out."""
        latency_s = None if modelled is None else modelled.latency_s
        work = self.work(modelled)
        first = f"{self.title}: {head(work, latency_s)}"
        lines = [first, *table(work, latency_s)]
        if self.network.lengths:
            lines.append("FLOPs of rows beyond the lengths are counted; the machine does not compute them")
        if modelled is not None and modelled.bound is not None:
            lines += ["", *bound_table(modelled.bound, modelled.segments, modelled.latency_s)]
        return "\n".join([*lines, "", *self.operators(None if modelled is None else modelled.four_bits)])

    @property
    def told(self) -> str:
        """A note to the user about products of integers, which the host computes; "" without them."""
        count = sum(packet(p.node) in INTEGER_PRODUCTS for p in self.placements)
        if not count:
            return ""
        return (
            f"{count} product{'s' * (count > 1)} of integers: the host computes them, because the machine computes in "
            "float32; quantise only weights to run them there"
        )

    @property
    def title(self) -> str:
        """Batch, rows and number of layers, as text."""
        return f"{self.network.size}, {len(self.network.layers)} layers on the machine"

    def operators(self, four_bits: frozenset[str] | None = None) -> list[str]:
        """Return a table of operators as lines of text: module, place, reason, names. The first line names inputs and
        outputs. Behind it, of a quantised model, a table of the types of its products. four_bits: as for `Modelled`."""
        network = self.network
        ends = f"inputs {', '.join(network.inputs)}; outputs {', '.join(x.name for x in network.outputs)}"
        table = [("module", "runs on", "why", "operators")]
        for (path, where, why), group in groupby(self.placements, key=lambda p: (p.path, p.where, p.why)):
            table.append((path or "(top level)", where, why, ", ".join(dict.fromkeys(p.op for p in group))))
        widths = [max(len(row[i]) for row in table) for i in range(4)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        wide = [x.place for x in network.layers if x.y in network.rows16]
        lines += [f"rows of 16 bits: {some_of(wide)}"] if wide else []
        placed = [(p.path, p.where, p.node) for p in self.placements]
        typed = product_types.lines(placed) if four_bits is None else weight_bits.lines(placed, network, four_bits)
        return [ends, *(line.rstrip() for line in lines), *([""] if typed else []), *typed]
