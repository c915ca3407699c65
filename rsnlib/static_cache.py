"""Static caches of `transformers` as arguments of a captured module: torch.export sees their tensors.

A `StaticCache` holds, for each layer, tensors of keys and values of fixed sizes, and the number of rows in use. It is
registered as a container of these tensors when `transformers` has been imported; so is a `QuantisedCache` of fixed
capacity, whose layers have a second one of the scales.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torch.utils import _pytree as pytree

from ..base.deferred import deferred
from ..base.errors import CacheFull, TensorError, UnsupportedError

if TYPE_CHECKING:
    from . import quantised_cache
else:
    quantised_cache = deferred("rsn.rsnlib.quantised_cache")

TENSORS = ("keys", "values", "cumulative_length")
NUMBERS = ("max_cache_len",)
COUNTER = "cumulative_length_int"
"""Of sliding layers: the rows in use, from which they make their masks."""
FACTS = ("dtype", "device", "batch_size", "num_heads", "k_head_dim", "v_head_dim", "is_sliding")


CACHES = ("transformers.cache_utils", "StaticCache"), (f"{__package__}.quantised_cache", "QuantisedCache")


def register() -> None:
    """Register the caches of fixed capacity (transformers' `StaticCache`, and the one of int8) with PyTorch's pytrees,
    each if its module is imported. Further calls do nothing."""
    for module, name in CACHES:
        cache = getattr(sys.modules.get(module), name, None)
        if cache is not None and cache not in pytree.SUPPORTED_NODES:
            pytree.register_pytree_node(
                cache,
                _flatten,
                _unflatten,
                serialized_type_name=f"{cache.__module__}.{cache.__name__}",
                flatten_with_keys_fn=_flatten_with_keys,
            )


def parts_of(layer: Any) -> tuple[Any, ...]:
    """Return the parts of a cache's layer that hold tensors: the layer itself and, if its keys and values are int8, the
    layer with their scales."""
    return (layer, layer.scales) if hasattr(layer, "scales") else (layer,)


def without_windows(cache: Any, rows: int | None = None) -> None:
    """Replace the sliding-window layers of an empty cache by plain ones, in place. The caller then says which row each
    new key goes to.

    cache: a `StaticCache`. rows: number of rows of these layers; None keeps it. The masks that a model makes for them
    hide what a window that ends at row `cumulative_length` would hide. Raises `UnsupportedError` for layers that keep
    other things than keys and values.
    """
    _check(cache)
    for i, layer in enumerate(cache.layers):
        if hasattr(layer, COUNTER):
            plain = _plain_layer()(rows or layer.max_cache_len)
            plain.is_sliding = True  # the model looks for it when it makes masks of windows
            cache.layers[i] = plain


def _check(cache: Any) -> None:
    for layer in cache.layers:
        if not all(hasattr(layer, name) for name in (*TENSORS, *NUMBERS)):
            raise UnsupportedError(
                f"a static cache with a {type(layer).__name__}; supported are keys and values of tokens"
            )


def _flatten(cache: Any) -> tuple[list[Any], Any]:
    """The tensors of all layers, and what else tells the cache from others."""
    _check(cache)
    if not all(layer.is_initialized for layer in cache.layers):
        raise TensorError(
            "a static cache without tensors: call its early_initialization(batch_size=, num_heads=, head_dim=, dtype=, "
            "device=) first"
        )
    tensors = [getattr(part, name) for layer in cache.layers for part in parts_of(layer) for name in TENSORS]
    return tensors, (type(cache), tuple(_described(layer) for layer in cache.layers))


def _described(layer: Any) -> tuple[type, tuple[tuple[str, Any], ...]]:
    """The class of a layer and what tells it from others. A sliding layer with free rows is a plain one: its window
    hides nothing yet, and a captured module counts up tensors only."""
    facts = {name: vars(layer)[name] for name in (*NUMBERS, *FACTS) if name in vars(layer)}
    if hasattr(layer, "scales"):
        facts["scales"] = _described(layer.scales)
    if not hasattr(layer, COUNTER):
        return type(layer), tuple(facts.items())
    if getattr(layer, COUNTER) >= layer.max_cache_len:
        raise CacheFull(
            f"a static cache with a sliding layer whose {layer.max_cache_len} rows are in use: rsn.compile keeps no "
            'window beyond them; Decoder and torch.compile(model, backend="rsn") do'
        )
    return _plain_layer(), tuple((facts | {"is_sliding": True}).items())


def _plain_layer() -> Any:
    from transformers.cache_utils import StaticLayer

    return StaticLayer


def count_rows(arguments: Any) -> None:
    """Set the Python row counters of the sliding-window layers of caches to the values of the tensors that a call
    wrote. arguments: of the call, in any structure."""
    module = sys.modules.get("transformers.cache_utils")
    if module is None:
        return
    for cache in pytree.tree_leaves(arguments, is_leaf=lambda x: isinstance(x, module.StaticCache)):
        for layer in getattr(cache, "layers", ()):
            if hasattr(layer, COUNTER):
                setattr(layer, COUNTER, int(layer.cumulative_length))


def _flatten_with_keys(cache: Any) -> tuple[list[tuple[Any, Any]], Any]:
    tensors, context = _flatten(cache)
    names = [
        f"{prefix}{name}_{i}"
        for i, layer in enumerate(cache.layers)
        for prefix, _ in zip(("", "scales_"), parts_of(layer), strict=False)
        for name in TENSORS
    ]
    return [(pytree.MappingKey(name), tensor) for name, tensor in zip(names, tensors, strict=True)], context


def _unflatten(tensors: Iterable[Any], context: Any) -> Any:
    """A cache with these tensors."""
    kind, described = context
    values = iter(tensors)
    layers = [_layer(each, values) for each in described]
    cache = kind.__new__(kind)
    # not its own __init__, which makes layers for a configuration
    super(kind, cache).__init__(layers=layers)
    return cache


def _layer(described: Any, values: Iterator[Any]) -> Any:
    """A layer with the next tensors of `values`. described: as `_described` returns it."""
    of, facts = described
    layer = of.__new__(of)
    vars(layer).update(facts)
    vars(layer).update((name, next(values)) for name in TENSORS)
    layer.is_initialized = True
    if hasattr(layer, "scales"):
        layer.scales = _layer(layer.scales, values)
    return layer


def empty_cache(config: Any, batch: int, capacity: int, rows: int | None = None, *, integers: bool = False) -> Any:
    """Return a `StaticCache` of float32 zeros, whose layers with a sliding window are plain ones (`without_windows`).

    config: of the model. batch: sequences. capacity: rows of each layer. rows: of the layers with a sliding window;
    None for as many as the window has. integers: a `QuantisedCache` in its place. Raises `UnsupportedError` as
    `without_windows` does, or as that cache does.
    """
    import torch
    from transformers.cache_utils import StaticCache

    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    columns = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    with torch.inference_mode(False):  # whose tensors could not be written to outside of it
        if integers:
            cache = quantised_cache.QuantisedCache(config, max_cache_len=capacity)
        else:
            cache = StaticCache(config, max_cache_len=capacity)
            without_windows(cache, rows)
        cache.early_initialization(batch, heads, columns, torch.float32, torch.device("cpu"))
    return cache
