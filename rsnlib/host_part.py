"""What PyTorch computes of a model: before the machine, and after it.

It is the captured graph without what the machine runs, so that it needs neither the model nor the network: only
operators of PyTorch, and what these use of the model's weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx import Node

from ..base.errors import TensorError
from ..machine.view import View
from ..scheduler.graph import Array
from .beyond import check_rows_beyond
from .capture import Environment, Interface, run, shape_of
from .mask import prefix_lengths


@dataclass(frozen=True, eq=False)
class HostPart:
    """The operators of the host, in order, before and after the machine. Calling the model is: prologue, machine,
    epilogue.

    batch, seq, lengths: of the network, as in `LayerGraph`. columns: of each of its outputs, by activation name.
    constants: what the operators use of the model's weights. sources: the host's tensor behind each input of the
    network, and the view of the input that it shows. results: the tensors that show outputs of the network, likewise.
    masks: the attention masks; all must hide the same keys, but that those in `causal` hide what is behind each row,
    too.
    """

    batch: int
    seq: int
    lengths: tuple[int, ...]
    columns: Mapping[str, int]
    interface: Interface
    constants: Environment
    before: tuple[Node, ...]
    after: tuple[Node, ...]
    sources: Mapping[str, tuple[Node, View]]
    results: Mapping[Node, tuple[str, View]]
    masks: tuple[Node, ...]
    causal: frozenset[Node] = frozenset()
    _checked: set[tuple[int, ...]] = field(default_factory=set)

    @property
    def rows(self) -> tuple[int, ...]:
        """Of each sequence."""
        return self.lengths or (self.seq,) * self.batch

    def prologue(self, *args: Any, **kwargs: Any) -> tuple[dict[str, Array], npt.NDArray[np.int64] | None, Environment]:
        """What runs before the machine, on the arguments of the module.

        Returns the network's inputs by activation name, float32 (batch, seq, columns); how many keys take part in each
        sequence, int64 (batch,), or None for a network without masks; and what the epilogue needs. Raises TensorError
        where an argument differs from the example in structure, shape or type, or a mask is not a prefix, and
        UnsupportedError where the host's part depends on rows beyond the lengths that the network is for.
        """
        arguments = self.interface.bind(args, kwargs)
        environment = self.constants | arguments
        run(self.before, environment)
        lengths = [prefix_lengths(environment[x], self.batch, self.seq, x in self.causal) for x in self.masks]
        if any((other != lengths[0]).any() for other in lengths):
            raise TensorError("the layers' attention masks hide different keys; the machine has one length a sequence")
        needed = {x for node in (*self.after, self.interface.result) for x in node.all_input_nodes}
        state = {node: value for node, value in environment.items() if node in needed}
        for i, (given, most) in enumerate(zip(lengths[0] if lengths else (), self.rows, strict=False)):
            if given > most:
                raise TensorError(f"sequence {i} has {given} rows; compiled for at most {most} (lengths)")
        if self.lengths and self.lengths not in self._checked and check_rows_beyond(self, arguments):
            self._checked.add(self.lengths)
        return self.inputs(environment), lengths[0] if lengths else None, state

    def inputs(self, environment: Environment) -> dict[str, Array]:
        """The network's inputs by activation name, float32 (batch, seq, columns), from the host's tensors."""
        shape = (self.batch, self.seq, -1)
        return {name: _rows(environment[node], view).reshape(shape) for name, (node, view) in self.sources.items()}

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

    def _flat(self, name: str, array: Array) -> torch.Tensor:
        if array.ndim != 3 or array.shape[:2] != (self.batch, self.seq):
            raise TensorError(f"output {name} has shape {array.shape}, not ({self.batch}, {self.seq}, columns)")
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
