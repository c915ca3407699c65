"""Operators that stand for experts in a graph: what each token's experts weigh, all experts together, and products in
groups, as a model file has them.

`rsn::experts` computes a layer in PyTorch, expert by expert, unless an executor is attached to it: then that computes
it, for example with programs that the host patches (`host.model.experts`). Both check the selected experts.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Protocol

import torch
from torch.nn import functional

from ...base.errors import BoardError, TensorError

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "relu": functional.relu,
    "gelu_erf": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}
"""The activations of a gate, by the names of `scheduler.graph.ActivationFunction`."""


class Executor(Protocol):
    """Computes a layer of E experts. x: (tokens, H). index, weights: (tokens, k), each token's experts, from 0 on, and
    their shares. gate_up: (E, 2 I, H), the gate first. down: (E, H, I). Returns (tokens, H). All but index are
    float32."""

    def __call__(
        self,
        x: torch.Tensor,
        index: torch.Tensor,
        weights: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
    ) -> torch.Tensor: ...


_executors: weakref.WeakValueDictionary[int, Executor] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def attached(executor: Executor) -> int:
    """Return the number, from 1 on, under which `rsn::experts` finds an executor. It stays valid while the caller holds
    the executor: only a weak reference is kept."""
    number = next(_numbers)
    _executors[number] = executor
    return number


def check_selectors(index: torch.Tensor, experts: int) -> None:
    """Check the experts that tokens select. index: integers (tokens, k). experts: how many there are. Raises
    `TensorError`, naming token and expert, for one that the layer does not have."""
    wrong = (index < 0) | (index >= experts)
    if wrong.any():
        token, place = (int(i) for i in wrong.nonzero()[0])
        raise TensorError(
            f"token {token} selects expert {int(index[token, place])} (its selector {place}); "
            f"the layer has experts 0 to {experts - 1}"
        )


def run_in_pytorch(
    x: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    """Compute a layer of experts expert by expert. x, index, weights, gate_up, down, and the result: as for an
    `Executor`. activation: of the gate, a key of `ACTIVATIONS`. Experts must exist (`check_selectors`)."""
    out = torch.zeros_like(x)
    for expert in torch.unique(index).tolist():
        token, place = torch.where(index == expert)
        gate, up = functional.linear(x[token], gate_up[expert]).chunk(2, -1)
        y = functional.linear(ACTIVATIONS[activation](gate) * up, down[expert])
        out.index_add_(0, token, y * weights[token, place, None])
    return out


def _expert_weights(index: torch.Tensor, weights: torch.Tensor, experts: int) -> torch.Tensor:
    """What each expert weighs in each token: (tokens, experts), 0 for those that it did not select. Raises
    `TensorError` for an expert that there is not."""
    check_selectors(index, experts)
    return weights.new_zeros(len(index), experts).scatter_add(1, index.long(), weights)


def _experts(
    x: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
    executor: int,
) -> torch.Tensor:
    """A layer of experts. executor: the number of one that is attached; 0 computes it here. Raises `TensorError` for
    an expert that there is not, `BoardError` if the executor is gone, and what it raises."""
    check_selectors(index, len(gate_up))
    if not executor:
        return run_in_pytorch(x, index, weights, gate_up, down, activation)
    found = _executors.get(executor)
    if found is None:
        raise BoardError("the programs of these experts are gone with the model that they were compiled for")
    return found(x, index, weights, gate_up, down)


def _grouped_mm(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Products of groups of rows, each with a matrix of its own. x: (rows, K). weights: (groups, K, N). ends: of the
    groups, each the row behind its last one, (groups,). Returns (rows, N); rows behind the last group are 0."""
    *groups, rest = torch.tensor_split(x, ends.long())
    products = [group @ weight for group, weight in zip(groups, weights, strict=True)]
    return torch.cat([*products, rest.new_zeros(len(rest), weights.shape[2])])


expert_weights = torch.library.custom_op("rsn::expert_weights", _expert_weights, mutates_args=())
expert_weights.register_fake(lambda index, weights, experts: weights.new_empty(index.shape[0], experts))
experts = torch.library.custom_op("rsn::experts", _experts, mutates_args=())
experts.register_fake(lambda x, *_: torch.empty_like(x))
grouped_mm = torch.library.custom_op("rsn::grouped_mm", _grouped_mm, mutates_args=())
grouped_mm.register_fake(lambda x, weights, ends: x.new_empty(x.shape[0], weights.shape[2]))
IN_FILES = (torch.ops.rsn.expert_weights, torch.ops.rsn.grouped_mm)
"""Those that a model file may contain."""
