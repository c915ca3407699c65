"""Caches of keys and values: arguments of a module that it writes new rows to, and then attends to.

A module puts new keys or values into a cache with `index_copy`: rows `index` of each sequence become those of a
projection. The machine sees four cases of it:

- A step: one new row. The cache becomes a state of the machine (`Gemm.into`), a copy of the host's tensor that stays
  there between calls. The machine appends the row to its copy; the host gets the row, and writes it to its own tensor.
- A step of a cache whose rows move up when it is full: the machine replaces its oldest row instead, wherever that is.
- A prompt: several rows, the first ones of an empty cache. The attention reads the projection itself. Calls check that
  the rows are the first ones, and that the attention sees no key behind them.
- A chunk: several rows that follow others in the example. It is a step with more rows, whose mask says which keys each
  of them sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch.fx import Node

from ..scheduler.graph import Gemm
from .capture import arguments, computed, dtype_of, is_static, module_path, packet, shape_of
from .rewriter import Rewriter, replacing
from .rotate import ROLL_IN
from .values import Abstract, AbstractState, Arguments, Value, is_host, unsupported

aten = torch.ops.aten

ONLY = "only rows of a cache in float32 of (batch, heads, rows, columns) can be replaced"


@dataclass(frozen=True)
class Append:
    """New rows of a cache of keys or values.

    cache: the host's tensor, (batch, heads, rows of the cache, columns of a head). index: the host's tensor with the
    numbers of the rows that are replaced, integers (new rows,); None if all rows move up by one and the new row becomes
    the last. new: the projection whose rows are the new ones, as (batch, heads, new rows, columns). is_step: the cache
    is an argument of the module, the call adds one row or one chunk of rows to it, and the module writes the result
    back to this argument.
    """

    cache: Node
    index: Node | None
    new: Value
    is_step: bool


def index_copy(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Lowering rule (`values.LoweringPattern`) of index_copy: new rows of a cache of keys or values. Raises
    `UnsupportedError` for more rows than the cache has."""
    index = a["index"]
    if not is_host(values.of[index]):
        return "rows of an activation of the machine cannot be replaced"
    if a["dim"] not in (2, -2):
        return ONLY
    rows = shape_of(index)[0]
    first = not _is_chunk(values, index) and values.is_constant(index)
    if rows > 1 and first and not torch.equal(values.constant(index), torch.arange(rows)):
        return "its rows are not the first ones of the cache"
    return _appended(values, node, a["self"], index, a["source"])


def roll_in(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Lowering rule (`values.LoweringPattern`) of `rsn::roll_in`: a new last row of a cache whose rows move up. Raises
    as `index_copy` does."""
    if values.written.get(a["cache"]) is not node or shape_of(a["new"])[2] != 1:
        return "its rows move up, but not by one in an argument"
    return _appended(values, node, a["cache"], None, a["new"])


def _appended(values: AbstractState, node: Node, cache: Node, index: Node | None, source: Node) -> Abstract | str:
    new, shape = values.of[source], shape_of(cache)
    if len(shape) == 4 and shape_of(source)[2] > shape[2]:
        raise unsupported(node, f"{shape_of(source)[2]} new rows for a cache of {shape[2]}")
    if not values.keeps_caches:
        return "caches are kept by programs of whole models on overlays with the capability keep_rows"
    if len(shape) != 4 or shape[0] != values.batch or dtype_of(cache) != torch.float32:
        return ONLY
    if not is_host(values.of[cache]):
        return "rows of an activation of the machine cannot be replaced"
    if not isinstance(new, Value) or is_host(new):
        return "the new rows are computed before the machine"
    found = values.fit(new, lambda view, width: view == values.in_heads(shape_of(source)))
    if found is None:
        return f"the new rows are not a projection of {values.batch} x {shape_of(source)[2]} rows, cut into heads"
    if any(append.cache is cache for append in values.appends.values()):
        return "rows of its cache are replaced twice"
    view = values.in_heads(shape)
    state = values.source(cache, view, found.base.width)
    layer = values.layers.appended(module_path(node), state, found.base)
    is_step = values.written.get(cache) is node and (shape_of(source)[2] == 1 or _is_chunk(values, index))
    values.appends[layer] = values.appended[node] = Append(cache, index, found, is_step)
    return Value(layer, view)


@replacing(aten.copy)
def moved_up(graph: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) a cache whose rows move up, with a new last row, into one operator: it is copied
    from a rolled copy of itself, whose last row was replaced."""
    a = arguments(node)
    cache, source = a["self"], a["src"]
    if not isinstance(source, Node) or packet(source) is not aten.index_put or arguments(source)["accumulate"]:
        return None
    b = arguments(source)
    rolled, new, indices = b["self"], b["values"], list(b["indices"])
    if packet(rolled) is not aten.roll or len(indices) != 3 or indices[0] is not None or indices[1] is not None:
        return None
    r, shape = arguments(rolled), shape_of(cache)
    last = graph.value(indices[2]) if indices[2] in graph.constants else torch.tensor([0])
    is_last = last.shape == (1,) and int(last) in (-1, shape[2] - 1) if len(shape) == 4 else False
    moves = r["self"] is cache and list(r["shifts"]) == [-1] and list(r["dims"]) in ([2], [-2])
    fits = len(shape) == 4 and shape_of(node) == shape
    if not (moves and is_last and fits):
        return None
    row = (*shape[:2], 1, shape[3])
    if shape[0] == 1 and shape_of(new) == row[1:]:
        new = graph.insert(node, aten.reshape.default, new, list(row), origin=source)
    return graph.insert(node, ROLL_IN.default, cache, new, origin=node) if shape_of(new) == row else None


def _is_chunk(values: AbstractState, index: Node | None) -> bool:
    """Whether several new rows of a cache follow others in the example. index: the rows; None: they move up."""
    if values.example is None or index is None or not is_static(index) or (count := prod(shape_of(index))) < 2:
        return False
    rows = computed(index, values.example)
    return bool(rows[0] > 0 and torch.equal(rows, rows[0] + torch.arange(count)))


def attended(
    values: AbstractState, node: Node, x: Abstract, rows: int, masks: Sequence[Node], causal: bool
) -> Abstract:
    """Return what an attention reads of a key or value that is a cache with new rows: for a prompt, only the new rows.

    values, node: as for a `values.LoweringPattern`. x: the key or value, (batch, heads, keys, columns); returned as it
    is if it is no such cache. rows: number of query rows of each sequence. masks: nodes, whose sum is added to the
    scores. causal: keys behind each row are hidden.

    An attention sees only the new rows if it takes only the first rows of the cache, or if it is causal. A mask over
    all rows of the cache must hide the other rows; this is checked where the mask is read. Raises `UnsupportedError`
    for any other attention.
    """
    append = values.appends.get(x.base) if isinstance(x, Value) and isinstance(x.base, Gemm) else None
    if append is None or append.is_step or not isinstance(x, Value):
        return x
    whole = values.in_heads(shape_of(append.cache))
    count, capacity = append.new.view.shape[2], shape_of(append.cache)[2]
    hides = causal or any(shape_of(mask)[-1:] == (capacity,) for mask in masks)
    fits = x.view == whole.narrow(2, 0, count) or (x.view == whole and hides)
    if not fits or count != rows:
        raise unsupported(node, f"it sees rows of a cache besides the {count} new ones")
    return append.new
