"""How many bits the weights of a quantised model have on overlay xnn8, and why not 4: for `explain`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import groupby

from torch.fx import Node

from ..isa.overlays.xnn8.numbers import GROUP
from ..scheduler.graph import AttentionLayer, Gemm, LayerGraph
from ..scheduler.integer_weights import has_four_bits
from .capture import arguments, packet, shape_of
from .product_types import WEIGHTS, aligned, counted, dequantised
from .quantised_ops import in_groups


def lines(placed: Iterable[tuple[str, str, Node]], network: LayerGraph, four_bits: Collection[str]) -> list[str]:
    """Return a table of the weights of a quantised model as lines of text; none for a model that is not quantised.
    placed: as for `product_types.lines`. four_bits: the results of the layers whose weights have 4 bits."""
    made_by = {path: x for x in network.layers if isinstance(x, Gemm) and x.multiplies for path in (x.path, *x.fused)}
    found: list[tuple[str, str, str, str]] = []
    for path, _, node in placed:
        layer = made_by.get(path)
        if layer is None or packet(node) not in WEIGHTS:
            continue
        weight = dequantised(arguments(node)[WEIGHTS[packet(node)]])
        if weight is None:
            found.append(("float32", "8", "", path))
            continue
        a = arguments(weight)
        is_short = layer.y in four_bits
        why = "" if is_short or a["bits"] > 4 else _why(layer, network, weight)
        found.append((f"int{a['bits']}{in_groups(a['x'], a['scale'])}", "4" if is_short else "8", why, path))
    if all(types == "float32" for types, *_ in found):
        return []
    table = [("weights of", "bits", "count", "modules", "why not 4 bits")]
    for (types, bits, why), group in groupby(sorted(found, key=lambda x: x[:3]), key=lambda x: x[:3]):
        table.append((types, bits, *counted(x[3] for x in group), why))
    return aligned(table)


def _why(layer: Gemm, network: LayerGraph, weight: Node) -> str:
    """Why a weight that a model has with 4 bits gets 8. weight: the operator that dequantises it."""
    if has_four_bits(layer.weight):
        smooth = network.smooth.get(layer.x)
        if smooth is not None and (smooth != 1).any():
            return "factors of SmoothQuant change the numbers of a group"
        heads = [x.head_dim for x in network.layers if isinstance(x, AttentionLayer) and x.y == layer.x]
        return f"its rows are heads of {heads[0]} columns, which are filled up" if heads else "its rows lie otherwise"
    a = arguments(weight)
    columns = shape_of(a["x"])[-1] // shape_of(a["scale"])[-1]
    if columns % GROUP:
        return f"groups of {columns} columns are no multiples of {GROUP}"
    return "zero points shift its groups" if a["zero"] is not None else "its numbers are no such integers"
