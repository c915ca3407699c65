"""Conv1D layers of transformers as linear layers: the same bits, and torchao quantises them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
from torchao.quantization.granularity import PerGroup
from transformers.pytorch_utils import Conv1D

import rsn
from rsn.base.errors import UnsupportedError
from rsn.tests.rsnlib.decoder_models import VOCABULARY, decoder_model


class Other(Conv1D):  # type: ignore[misc]
    """A layer that may compute something else."""


def test_results_keep_their_bits() -> None:
    model = decoder_model("gpt2", n_layer=2)
    tokens = torch.randint(0, VOCABULARY, (2, 7))
    parameters = sum(x.numel() for x in model.parameters())
    with torch.no_grad():
        wanted = [model(tokens[:, :rows]).logits for rows in (7, 1)]
        rsn.conv1d_to_linear(model)
        found = [model(tokens[:, :rows]).logits for rows in (7, 1)]
    assert all(map(torch.equal, found, wanted))
    assert not any(isinstance(x, Conv1D) for x in model.modules())
    assert sum(x.numel() for x in model.parameters()) == parameters
    assert not any(x.training for x in model.modules())
    # torchao does the same as with weights that do not share memory with those of the old layers
    apart = copy.deepcopy(model)
    for layer in apart.modules():
        if isinstance(layer, nn.Linear):
            layer.weight = nn.Parameter(layer.weight.detach().contiguous())
    for made in (model, apart):
        four_bits = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(16))
        quantize_(made, four_bits)
    layers = [x for x in model.transformer.modules() if isinstance(x, nn.Linear)]
    assert len(layers) == 8
    assert all(type(x.weight).__name__ != "Parameter" for x in layers)
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, apart(tokens).logits)
        assert not torch.equal(model(tokens).logits, wanted[0])


def test_hooks_stay_and_layers_with_other_parameters_too() -> None:
    layer, x = Conv1D(4, 3), torch.randn(2, 3)
    model = nn.Sequential(layer, nn.ReLU())
    removed = layer.register_forward_hook(lambda module, given, y: y + 1)
    layer.register_forward_pre_hook(lambda module, args, kwargs: ((2 * args[0],), kwargs), with_kwargs=True)
    with torch.no_grad():
        wanted = model(x)
        rsn.conv1d_to_linear(model)
        assert isinstance(model[0], nn.Linear)
        assert torch.equal(model(x), wanted)
        removed.remove()
        assert torch.equal(model(x), layer(x).relu())
    normed = nn.utils.weight_norm(Conv1D(4, 3))
    model = nn.Sequential(normed)
    rsn.conv1d_to_linear(model)
    assert model[0] is normed


def test_shared_layers_and_others() -> None:
    shared = Conv1D(4, 3)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared, nn.ReLU()), "c": Other(4, 3)})
    shared.weight.requires_grad_(False)
    rsn.conv1d_to_linear(model)
    assert isinstance(model["a"], nn.Linear)
    assert model["a"] is model["b"][0]
    assert (model["a"].weight.requires_grad, model["a"].bias is shared.bias) == (False, True)
    assert isinstance(model["c"], Other)
    with pytest.raises(UnsupportedError, match="a Conv1D by itself"):
        rsn.conv1d_to_linear(shared)
