"""A traced module in three parts: PyTorch before the machine, the machine's network, PyTorch after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx import Node

from ..isa.errors import TensorError
from ..scheduler.segment import Array, Attention, Network
from .beyond import check_rows_beyond
from .capture import Environment, Interface, run, shape_of
from .flops import FlopCounter
from .mask import prefix_lengths
from .summary import Modelled, Work, head, table
from .view import View


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
    """What `trace` makes of a module. Calling the module is: prologue, network, epilogue.

    before and after: the host's operators, in order; constants: what they use of the module's weights. sources: the
    host's tensor behind each input of the network, and the view of the input that it shows. results: the tensors that
    show outputs of the network, likewise. masks: the attention masks; all must hide the same keys, but that those in
    `causal` hide what is behind each row, too. origins: for each layer of the network, by its result, the operator to
    cut the graph at if the machine has no room for the layer. again: the same graph with what its weights hold now.
    """

    network: Network
    placements: tuple[Placement, ...]
    interface: Interface
    constants: Environment
    before: tuple[Node, ...]
    after: tuple[Node, ...]
    sources: Mapping[str, tuple[Node, View]]
    results: Mapping[Node, tuple[str, View]]
    masks: tuple[Node, ...]
    causal: frozenset[Node] = frozenset()
    origins: Mapping[str, Node] = field(default_factory=dict)
    again: Callable[[], Traced] | None = None
    _checked: set[tuple[int, ...]] = field(default_factory=set)

    def prologue(self, *args: Any, **kwargs: Any) -> tuple[dict[str, Array], npt.NDArray[np.int64] | None, Environment]:
        """What runs before the machine, on the arguments of the module.

        Returns the network's inputs by activation name, float32 (batch, seq, columns); how many keys take part in each
        sequence, int64 (batch,), or None for a network without masks; and what the epilogue needs. Raises TensorError
        where an argument differs from the example in structure, shape or type, or a mask is not a prefix, and
        UnsupportedError where the host's part depends on rows beyond the lengths that the network is for.
        """
        batch, seq = self.network.batch, self.network.seq
        arguments = self.interface.bind(args, kwargs)
        environment = self.constants | arguments
        run(self.before, environment)
        lengths = [prefix_lengths(environment[mask], batch, seq, mask in self.causal) for mask in self.masks]
        if any((other != lengths[0]).any() for other in lengths):
            raise TensorError("the layers' attention masks hide different keys; the machine has one length a sequence")
        needed = {x for node in (*self.after, self.interface.result) for x in node.all_input_nodes}
        state = {node: value for node, value in environment.items() if node in needed}
        for i, (given, most) in enumerate(zip(lengths[0] if lengths else (), self.network.rows, strict=False)):
            if given > most:
                raise TensorError(f"sequence {i} has {given} rows; compiled for at most {most} (lengths)")
        if self.network.lengths and self.network.lengths not in self._checked and check_rows_beyond(self, arguments):
            self._checked.add(self.network.lengths)
        return self.inputs(environment), lengths[0] if lengths else None, state

    def inputs(self, environment: Environment) -> dict[str, Array]:
        """The network's inputs by activation name, float32 (batch, seq, columns), from the host's tensors."""
        shape = (self.network.batch, self.network.seq, -1)
        return {name: _rows(environment[node], view).reshape(shape) for name, (node, view) in self.sources.items()}

    def with_lengths(
        self, lengths: Sequence[int], example_inputs: tuple[Any, ...] | dict[str, Any] | None = None
    ) -> Traced:
        """The same for sequences of at most so many rows. example_inputs: with which the host's part is checked, if
        their masks fit; else the first call does that. Raises `ScheduleError`, and UnsupportedError as the prologue."""
        traced = replace(self, network=self.network.with_lengths(lengths))
        if example_inputs is not None:
            by_position, by_name = ((), example_inputs) if isinstance(example_inputs, dict) else (example_inputs, {})
            with suppress(TensorError):
                traced.prologue(*by_position, **by_name)
        return traced

    def epilogue(self, outputs: Mapping[str, Array], state: Environment) -> Any:
        """What runs after the machine: the module's result, in the module's own structure.

        outputs: by activation name, float32 (batch, seq, columns), the Output's scale and shift already applied. state
        comes from the prologue of the same call. Raises TensorError for an output that is missing or misshapen.
        """
        environment = dict(state)
        self.take(outputs, environment)
        run(self.after, environment)
        return self.interface.unbind(environment)

    def take(self, outputs: Mapping[str, Array], environment: Environment) -> None:
        """Add the tensors that show outputs of the network. Raises as the epilogue."""
        for node, (name, view) in self.results.items():
            if name not in outputs:
                raise TensorError(f"the network's output {name} is missing")
            environment[node] = _shown(self._flat(name, outputs[name]), view).reshape(shape_of(node))

    def columns(self, name: str) -> int:
        """Of a layer's result."""
        layer = next(layer for layer in self.network.layers if layer.y == name)
        return layer.heads * layer.head_dim if isinstance(layer, Attention) else int(layer.weight.shape[1])

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

    def _flat(self, name: str, array: Array) -> torch.Tensor:
        batch, seq = self.network.batch, self.network.seq
        if array.ndim != 3 or array.shape[:2] != (batch, seq):
            raise TensorError(f"output {name} has shape {array.shape}, not ({batch}, {seq}, columns)")
        return torch.tensor(array, dtype=torch.float32).ravel()


def _shown(flat: torch.Tensor, view: View) -> torch.Tensor:
    """What `view` shows of an activation, one dimension for each of its atoms."""
    return flat.as_strided([size for size, _ in view.atoms], [stride for _, stride in view.atoms], view.offset)


def _rows(tensor: torch.Tensor, view: View) -> Array:
    """The activation, flat, of which `view` shows this tensor (or what it broadcasts to)."""
    tensor = tensor.detach().broadcast_to(view.shape)
    flat = torch.empty(tensor.numel(), dtype=torch.float32)
    shown = _shown(flat, view)
    shown.copy_(tensor.reshape(shown.shape))
    array: Array = flat.numpy()
    return array
