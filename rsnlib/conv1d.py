"""Layers of transformers that are linear layers in all but name, as linear layers."""

from __future__ import annotations

import sys
from typing import Any

from ..base.errors import UnsupportedError, require_torch

require_torch("rsn.conv1d_to_linear")

from torch import nn  # noqa: E402 - what is missing is said first


def conv1d_to_linear(model: nn.Module) -> None:
    """Replace each `Conv1D` of transformers in a model, such as GPT-2, by an `nn.Linear` that computes the same, in
    place. torchao quantises `nn.Linear`, and leaves `Conv1D` as it is.

    The new layers have the numbers of the old ones in the same memory, so that results keep their bits: weights are
    transposed views. They keep the hooks that run in calls, which see the new layer. Layers of a class derived from
    `Conv1D` stay, and those with other parameters than a weight and a bias, such as under `weight_norm`. Raises
    `UnsupportedError` for a model that is itself a `Conv1D`.
    """
    module: Any = sys.modules.get("transformers.pytorch_utils")
    if module is None:
        return
    made: dict[nn.Module, nn.Linear] = {}
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if type(layer) is not module.Conv1D or {*layer._parameters} != {"weight", "bias"}:
            continue
        if not name:
            raise UnsupportedError("a Conv1D by itself cannot be replaced in place: give the model that it is in")
        if layer not in made:
            linear = nn.Linear(*layer.weight.shape, device="meta").train(layer.training)
            linear.weight = nn.Parameter(layer.weight.detach().T, layer.weight.requires_grad)
            linear.bias = layer.bias
            kept = ("_forward", "_backward", "_is_full_backward")  # hooks, and what torch keeps about them beside
            vars(linear).update({key: x for key, x in vars(layer).items() if key.startswith(kept)})
            made[layer] = linear
        model.set_submodule(name, made[layer])
