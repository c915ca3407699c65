"""Caches of keys and values: arguments of a module that it writes new rows to, and then attends to.

A module puts new keys or values into a cache with `index_copy`: rows `index` of each sequence become those of a
projection. The machine sees two cases of it:

- A step: one new row. The cache becomes a state of the machine (`Gemm.into`), a copy of the host's tensor that stays
  there between calls. The machine appends the row to its copy; the host gets the row, and writes it to its own tensor.
- A prompt: several rows, the first ones of an empty cache. The attention reads the projection itself. Calls check that
  the rows are the first ones, and that the attention sees no key behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

from ..machine.view import View
from ..scheduler.graph import Gemm
from .capture import dtype_of, module_path, shape_of
from .values import Abstract, AbstractState, Arguments, Value, is_host, unsupported

aten = torch.ops.aten


@dataclass(frozen=True)
class Append:
    """New rows of a cache. cache, index: tensors of the host, (batch, heads, rows of the cache, columns of a head) and
    the rows that are replaced. new: the projection that they come from, as (batch, heads, rows, columns). is_step: it
    is one row for an argument of the module, which becomes exactly that."""

    cache: Node
    index: Node
    new: Value
    is_step: bool


def index_copy(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Rule of index_copy: new rows of a cache of keys or values."""
    cache, index, source = a["self"], a["index"], a["source"]
    new, shape = values.of[source], shape_of(cache)
    if not values.steps:
        return "the machine keeps no caches"
    if not is_host(values.of[cache]) or not is_host(values.of[index]):
        return "rows of an activation of the machine cannot be replaced"
    if len(shape) != 4 or a["dim"] not in (2, -2) or shape[0] != values.batch or dtype_of(cache) != torch.float32:
        return "only rows of a cache in float32 of (batch, heads, rows, columns) can be replaced"
    if not isinstance(new, Value) or is_host(new):
        return "the new rows are computed before the machine"
    found = values.fit(new, lambda view, width: view == form(values, shape_of(source)))
    if found is None:
        return f"the new rows are not a projection of {values.batch} x {shape_of(source)[2]} rows, cut into heads"
    rows = shape_of(index)[0]
    if rows > 1 and values.is_constant(index) and not torch.equal(values.constant(index), torch.arange(rows)):
        return "its rows are not the first ones of the cache"
    if any(append.cache is cache for append in values.appends.values()):
        return "rows of its cache are replaced twice"
    view = form(values, shape)
    state = values.source(cache, view, found.base.width)
    layer = values.layers.appended(module_path(node), state, found.base)
    is_step = rows == 1 and values.written.get(cache) is node
    values.appends[layer] = values.appended[node] = Append(cache, index, found, is_step)
    return Value(layer, view)


def form(values: AbstractState, shape: tuple[int, ...]) -> View:
    """The view of an activation as (batch, heads, rows, columns of a head)."""
    _, heads, rows, columns = shape
    return View.dense((values.batch, rows, heads, columns)).permute((0, 2, 1, 3))


def attended(
    values: AbstractState, node: Node, x: Abstract, rows: int, masks: Sequence[Node], causal: bool
) -> Abstract:
    """What an attention of so many rows reads of a key or value: for a prompt the new rows alone.

    It sees no others if it takes the first rows of the cache alone, or if it is causal. A mask over all rows of the
    cache is checked where it is read: it must hide the others. Raises UnsupportedError for other attention.
    """
    append = values.appends.get(x.base) if isinstance(x, Value) and isinstance(x.base, Gemm) else None
    if append is None or append.is_step or not isinstance(x, Value):
        return x
    whole = form(values, shape_of(append.cache))
    count, capacity = append.new.view.shape[2], shape_of(append.cache)[2]
    hides = causal or any(shape_of(mask)[-1:] == (capacity,) for mask in masks)
    fits = x.view == whole.narrow(2, 0, count) or (x.view == whole and hides)
    if not fits or count != rows:
        raise unsupported(node, f"it sees rows of a cache besides the {count} new ones")
    return append.new
