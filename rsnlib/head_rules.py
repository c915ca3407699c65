"""Lowering rules of what is applied to each head of a projection: a norm, and rotary positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch.fx import Node

from ..scheduler.graph import Gemm, Norm, Rotary
from .capture import module_path, op_name, shape_of
from .values import Abstract, AbstractState, Arguments, Value
from .view import View


@dataclass(frozen=True)
class ProjectedHeads:
    """A projection whose result is used as heads. layer: the projection. count: number of its heads. rows_last: the
    heads are a tensor (batch, heads, seq, columns of a head); False: (batch, seq, heads, columns of a head). view:
    where each element of that tensor lies in the result."""

    layer: Gemm
    count: int
    rows_last: bool
    view: View


def heads_of(values: AbstractState, x: Abstract, columns: int) -> ProjectedHeads | None:
    """Return the projection whose result is seen as heads of `columns` columns by `x`; None if `x` is no such view."""
    found = values.fit(x, lambda view, width: True)
    if found is None or not isinstance(found.base, Gemm) or found.base.width % columns:
        return None
    count = found.base.width // columns
    form = View.dense((values.batch, values.seq, count, columns))
    for rows_last, view in ((False, form), (True, form.permute((0, 2, 1, 3)))):
        if found.view == view:
            return ProjectedHeads(found.base, count, rows_last, view)
    return None


def norm_of_heads(values: AbstractState, node: Node, a: Arguments, norm: Norm, columns: int) -> Abstract | str:
    """Lower a norm over the columns of each head. values, node, a: as for a `values.LoweringPattern`. columns: of a
    head. Returns the heads after the norm: it is fused into the projection or, where that is not possible, into a copy
    of it. Returns a reason (text) if the machine cannot do it."""
    heads = heads_of(values, values.of[a["input"]], columns)
    scale, shift = values.vector(a["weight"], columns, 1.0), values.vector(a["bias"], columns, 0.0)
    if heads is None:
        return f"{op_name(node)} is supported only over all columns of a matrix product, or over those of each head"
    if scale is None or shift is None:
        return "its scale or its shift is computed from the arguments"
    layer, path = heads.layer, module_path(node)
    fields = {
        "norm": norm,
        "scale": np.tile(scale, heads.count),
        "shift": np.tile(shift, heads.count),
        "heads": heads.count,
    }
    if not layer.is_open or layer.residual is not None:
        layer = values.layers.copied(path, layer)
    return Value(values.layers.fuse(layer, path, **fields), heads.view)


def rotate(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Lowering rule (`values.LoweringPattern`) of rotary positions (`rotary.rotations`): MemC applies them at the store
    of a projection of queries or keys."""
    columns = shape_of(a["own"])[-1]
    heads = heads_of(values, values.of[a["x"]], columns)
    if heads is None:
        return f"rotary positions are supported only over heads of a projection of {values.rows} rows"
    order = (1, 2) if heads.rows_last else (2, 1)  # the axes of heads and rows
    if not (values.is_constant(a["own"]) and values.is_constant(a["partner"])):
        if not values.keeps_caches:
            return "its rotary positions depend on arguments"
        shapes = [(1,) * (4 - len(shape_of(a[x]))) + shape_of(a[x]) for x in ("own", "partner")]
        if any(shape[order[0]] != 1 for shape in shapes):
            return "its rotary positions differ between heads"
        partners = tuple(a["partners"])
        source = values.table(a["own"], a["partner"], order[0], columns)
        ones = np.ones((1, columns), np.float32)
        swaps = np.array([[float(p != c) for c, p in enumerate(partners)]], np.float32)
        return _rotated(values, node, heads, Rotary(ones, swaps, partners, source.y))
    own, partner = values.constant(a["own"]), values.constant(a["partner"])
    tables = []
    for table in (own, partner):
        full = table.reshape((1,) * (4 - table.ndim) + tuple(table.shape))
        if full.shape[0] != 1 or full.shape[order[0]] != 1:
            return "its rotary positions differ between sequences or heads"
        rows = full.select(0, 0).select(order[0] - 1, 0).expand(values.seq, columns)
        tables.append(values.once("rotary", rows.contiguous().numpy()))
    return _rotated(values, node, heads, values.rotary(Rotary(tables[0], tables[1], tuple(a["partners"]))))


def _rotated(values: AbstractState, node: Node, heads: ProjectedHeads, made: Rotary) -> Value:
    """Fuse a rotation into a projection, or else into a copy of the heads."""
    layer, path = heads.layer, module_path(node)
    whole_norm = layer.norm is not None and not layer.heads and heads.count > 1
    is_behind = layer.activation is not None or layer.residual is not None or layer.gated
    if layer.rotary is not None or whole_norm or is_behind or not layer.multiplies:
        layer = values.layers.copied(path, layer)
    return Value(values.layers.fuse(layer, path, rotary=made, heads=heads.count), heads.view)
