"""Caches of keys and values for transformers that hold int8 and a scale for each row of a head, in PyTorch alone.

    cache = rsn.QuantisedCache(model.config)                     # grows
    cache = rsn.QuantisedCache(model.config, max_cache_len=512)  # of fixed capacity
    model(ids, past_key_values=cache)

An attention gets what the rows stand for, in float32. `rsn.quantised_attention` finds the integers and scales beside
it, and multiplies these; any other attention has the same numbers.
"""

from __future__ import annotations

from typing import Any

from ..base.errors import UnsupportedError, require
from .quantised_attention import carrying, quantised_attention, quantised_rows

require("transformers", "rsn.QuantisedCache", "pip install transformers")

import torch  # noqa: E402 - what is missing is said first
from torch import Tensor  # noqa: E402
from transformers import AttentionInterface  # noqa: E402
from transformers.cache_utils import Cache, DynamicLayer, StaticLayer  # noqa: E402
from transformers.masking_utils import AttentionMaskInterface, eager_mask  # noqa: E402


def _both(name: str) -> Any:
    """A method of a layer that does the same to its integers and to its scales. name: of the layer's own method."""

    def method(self: Any, *args: Any) -> None:
        getattr(super(_OfIntegers, self), name)(*args)
        getattr(self.scales, name)(*args)

    return method


class _OfIntegers:
    """What a layer of int8 does in place of one of float32. scales: a layer like it, with the scales of keys and of
    values as rows of one number."""

    scales: Any

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make the tensors of integers and of scales. key_states, value_states: float32, or the integers of these."""
        layer: Any = super()
        layer.lazy_initialization(key_states.to(torch.int8), value_states.to(torch.int8))
        if not self.scales.is_initialized:
            self.scales.lazy_initialization(*(x[..., :1].to(torch.float32) for x in (key_states, value_states)))

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add rows, float32 (batch, heads, rows, columns). Return what all keys and values stand for."""
        layer: Any = super()
        new = quantised_rows(key_states), quantised_rows(value_states)
        integers = layer.update(*(x.integers for x in new), *args, **kwargs)
        scales = self.scales.update(*(x.scale for x in new), *args, **kwargs)
        keys, values = map(carrying, integers, scales)
        return keys, values

    reset, crop, reorder_cache = _both("reset"), _both("crop"), _both("reorder_cache")
    batch_repeat_interleave, batch_select_indices = _both("batch_repeat_interleave"), _both("batch_select_indices")
    offload, prefetch = _both("offload"), _both("prefetch")


class QuantisedLayer(_OfIntegers, DynamicLayer):  # type: ignore[misc, unused-ignore]
    """One layer of a cache, which grows with each call. keys, values: int8 (batch, heads, rows, columns). scales: a
    layer with their scales, float32 (batch, heads, rows, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = DynamicLayer()


class QuantisedStaticLayer(_OfIntegers, StaticLayer):  # type: ignore[misc, unused-ignore]
    """One layer of a cache, of fixed capacity. max_cache_len: the capacity in rows. keys, values: int8 (batch, heads,
    max_cache_len, columns). scales: a layer with their scales, float32 (batch, heads, max_cache_len, 1)."""

    def __init__(self, max_cache_len: int) -> None:
        super().__init__(max_cache_len)
        self.scales = StaticLayer(max_cache_len)


class QuantisedCache(Cache):  # type: ignore[misc, unused-ignore]
    """A cache of int8 keys and values, with a scale for each row of a head. config: of the model. max_cache_len: its
    capacity in rows; None for a cache that grows. Raises `UnsupportedError` for a model whose layers do not all attend
    to all earlier rows."""

    def __init__(self, config: Any, max_cache_len: int | None = None) -> None:
        decoder = config.get_text_config(decoder=True)
        kinds = set(getattr(decoder, "layer_types", None) or ["full_attention"])
        if getattr(decoder, "sliding_window", None) and getattr(decoder, "layer_types", None) is None:
            kinds.add("sliding_attention")
        if kinds != {"full_attention"}:
            raise UnsupportedError(
                f"rsn.QuantisedCache: a model with {', '.join(sorted(kinds - {'full_attention'}))}; it holds all rows, "
                "of full attention"
            )
        if max_cache_len is None:
            super().__init__(layer_class_to_replicate=QuantisedLayer)
        else:
            super().__init__(layers=[QuantisedStaticLayer(max_cache_len) for _ in range(decoder.num_hidden_layers)])


def attend_in_integers(model: Any) -> None:
    """Let a model of transformers compute `rsn.quantised_attention`, in place."""
    AttentionInterface.register("rsn_quantised", quantised_attention)
    AttentionMaskInterface.register("rsn_quantised", eager_mask)
    model.set_attn_implementation("rsn_quantised")
