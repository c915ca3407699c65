"""A model in the integers of overlay xnn8: what the machine will compute, bit by bit, and what that costs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.fx import Node

from ..base.errors import ScheduleError, UnsupportedError
from ..isa.overlays.xnn8 import numbers
from ..isa.overlays.xnn8.functions import TABLES
from ..isa.overlays.xnn8.numbers import BLOCK, T_BITS, X_BITS, BlockNumbers, Floats, Integers, RowFactor
from ..scheduler.graph import Array, AttentionLayer, Gemm
from ..scheduler.groups import matches_path, some_of
from ..scheduler.integers import IntegerNetwork, is_product, is_view, with_stored_columns
from . import precision, reference, static_cache
from .capture import arguments, module_of, packet, shape_of
from .graph_split import Examples
from .key_spans import KeySpans, RowsOfCaches
from .partition import Traced
from .passes import USUAL, Passes
from .quantised_ops import DEQUANTISE, INTEGER_LINEAR, QUANTISE, ROW_SCALES
from .rewriter import Rewriter, replacing
from .trace import trace
from .verification import Reference, ReferenceKind, Visible

aten = torch.ops.aten


@replacing(INTEGER_LINEAR)
def rows_in_float(graph: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) a product whose rows each call quantises into a product of the rows before that. The
    machine quantises rows in its own way; the weights stay as they are."""
    a = arguments(node)
    quantised, shape = a["x"], shape_of(a["x"])
    while packet(quantised) is aten.reshape:
        quantised = quantised.all_input_nodes[0]
    rows = arguments(quantised) if packet(quantised) is QUANTISE and shape_of(quantised)[-1] == shape[-1] else {}
    scale = rows.get("scale")
    if not isinstance(scale, Node) or not any(packet(x) is ROW_SCALES for x in scale.all_input_nodes):
        return None
    x = graph.insert(node, aten.reshape.default, rows["x"], list(shape))
    weight = graph.insert(node, DEQUANTISE.default, a["weight"], a["weight_scale"], a["weight_zero"], a["bits"])
    return graph.insert(node, aten.linear.default, x, weight, a["bias"])


def for_integers(passes: Passes) -> Passes:
    """Return passes for an overlay that computes in integers: products take the rows before a model quantises them,
    scales of norms are not folded into weights, the machine also normalises inputs, and a rotation has two factors for
    each pair of columns. passes: those that are changed."""
    return replace(
        passes,
        rewrites=(rows_in_float, *passes.rewrites),
        fold=with_stored_columns,
        norms_of_inputs=True,
        pairs_factors=True,
    )


PASSES = for_integers(USUAL)
ROWS = 256
"""About how many rows are computed at a time: their integers stay in the cache."""


class IntegerModel:
    """A module whose products and attention are computed in integers; PyTorch computes what the machine does not. Call
    it as the module; it returns what the module returns.

    traced: the module, traced with the passes that `for_integers` returns. borders: data types of arguments and results
    of a model in half precision; None for float32. Raises `UnsupportedError` as `IntegerNetwork.of` does.
    """

    def __init__(self, traced: Traced, borders: precision.Borders | None = None) -> None:
        self._host, self.network = traced.host, IntegerNetwork.of(traced.network)
        self._borders = borders
        self.visible: Visible | None = None
        """The rows that the masks of the latest call showed; None without masks."""
        self.last_run = None
        """None: it runs on no machine."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute a call. Raises `TensorError` for arguments whose shape or type differs from the example's."""
        return self._called(args, kwargs, None)

    def step(self, rows: RowsOfCaches, *args: Any, **kwargs: Any) -> Any:
        """The same as a call, but new rows of caches replace the rows that `rows` says, as for `Compiled.step`. Raises
        as that does."""
        return self._called(args, kwargs, rows)

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any], rows: RowsOfCaches | None) -> Any:
        host = self._host
        if self._borders is not None:
            args, kwargs = self._borders.widened(host.interface.signature, args, kwargs)
        inputs, spans, state = host.prologue(*args, **kwargs)
        self.visible = host.visible(spans)
        if rows is not None:
            spans = host.at_rows(spans, rows)
        caches = {name: host.state(name, state) for name in host.states}
        returned = host.epilogue(computed(self.network, inputs | caches, spans), state, rows)
        return returned if self._borders is None else self._borders.narrowed(returned)


def in_integers(
    model: nn.Module,
    example_inputs: Examples,
    *,
    smooth: Iterable[Examples] | None = None,
    lengths: Sequence[int] | None = None,
    rows16: Sequence[str] = (),
) -> IntegerModel:
    """Return a module in the integers of overlay xnn8.

    example_inputs: by position or by name; calls must have their shapes. lengths: as for `rsn.compile`. smooth: calls
    with such shapes, from which factors are chosen that divide columns of rows and multiply rows of weights
    (SmoothQuant, Xiao et al., 2023, with migration strength 1/2). rows16: module paths of products whose rows have 16
    bits, as for `with_rows16`. Raises `UnsupportedError` for a module beyond the overlay, naming the layer, and as
    `trace` does; `ScheduleError` for lengths that do not fit, and as `with_rows16`.
    """
    traced, example, borders = integers_of(model, example_inputs, smooth)
    traced = with_rows16(traced, rows16)
    return IntegerModel(traced if lengths is None else traced.with_lengths(lengths, example), borders)


def integers_of(
    model: nn.Module, example_inputs: Examples, smooth: Iterable[Examples] | None
) -> tuple[Traced, Examples, precision.Borders | None]:
    """Return a module traced for `IntegerModel`, its example in float32, and the data types of a model in half
    precision. example_inputs, smooth, and what is raised: as for `in_integers`."""
    static_cache.register()
    module, example, borders = precision.in_float32(module_of(model), example_inputs)
    traced = trace(module, example, PASSES, fixes=True)
    check_told(traced)
    return traced if smooth is None else smoothed(traced, smooth), example, borders


def reference_of(
    module: Callable[[], nn.Module], smooth: Sequence[Examples] | None = None, rows16: Sequence[str] = ()
) -> Reference:
    """Return the reference of calls of a module that is compiled for overlay xnn8: it computes a call in the same
    integers without a machine (`in_integers`). module: as for `verification.of_module`. smooth, rows16: as for
    `in_integers`."""

    def compute(args: tuple[Any, ...], kwargs: dict[str, Any], kind: ReferenceKind) -> Any:
        model = module()
        example: Examples = args
        if kwargs:
            signature = inspect.signature(model.forward)
            named = dict(signature.bind(*args, **kwargs).arguments)
            for parameter in signature.parameters.values():
                if parameter.kind is parameter.VAR_KEYWORD:
                    named |= named.pop(parameter.name, {})
            example = named
        return in_integers(model, example, smooth=smooth, rows16=rows16)(*args, **kwargs)

    return compute


def check_told(traced: Traced) -> None:
    """Raise `UnsupportedError` for a model with products of integers that would stay in PyTorch."""
    if traced.told:
        raise UnsupportedError(
            "the model has products of integers that would stay in PyTorch, such as those with static scales or of two "
            "activations; overlay xnn8 takes weights that are quantised, and rows that each call quantises"
        )


def computed(numbers_of: IntegerNetwork, inputs: Mapping[str, Array], spans: KeySpans | None) -> dict[str, Array]:
    """Compute the outputs of a network in integers. Returns them by name, float32 (batch, rows, columns). inputs: its
    inputs, by name, of the same form. spans: the valid keys of each sequence; None for a network without masks and
    caches."""
    network = numbers_of.network
    step = max(1, ROWS // max(network.seq_of(name) for name in inputs))
    parts = []
    for at in range(0, network.batch, step):
        some = slice(at, at + step)
        keys = None if spans is None or not len(spans.lengths) else spans.lengths[some]
        starts = None if spans is None or spans.starts is None else spans.starts[some]
        rows = np.array(network.lengths[some], np.int64) if network.lengths else None
        taken = None if spans is None or spans.rows is None else spans.rows[some]
        run = _Run(numbers_of, {name: x[some] for name, x in inputs.items()}, keys, starts, rows, taken)
        parts.append({out.name: run.values(out.name) for out in network.outputs})
    made = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for x in made.values() if network.lengths else ():
        x[np.arange(x.shape[1]) >= np.array(network.lengths)[:, None]] = 0
    return made


class _Run:
    """The activations of some sequences."""

    def __init__(
        self,
        of: IntegerNetwork,
        inputs: Mapping[str, Array],
        lengths: npt.NDArray[np.int64] | None,
        starts: npt.NDArray[np.int64] | None,
        rows: npt.NDArray[np.int64] | None,
        taken: npt.NDArray[np.int64] | None,
    ) -> None:
        """taken: the rows of caches that new ones become."""
        self._of, self._lengths, self._starts, self._rows_of, self._taken = of, lengths, starts, rows, taken
        self._kept = {
            name: numbers.blocks_of(of.columns[name].of(x), T_BITS)
            if name in of.columns
            else numbers.blocks_of(x, X_BITS)
            for name, x in inputs.items()
        }
        self._norms: dict[str, numbers.Statistics] = {}
        for layer in of.network.layers:
            if isinstance(layer, AttentionLayer):
                self._kept[layer.y] = self._attention(layer)
            elif layer.into is not None:
                self._kept[layer.y] = self._appended(layer.into, self._kept[layer.x])
            elif not is_view(layer):
                self._kept[layer.y] = self._gemm(layer)

    def _appended(self, cache: str, new: BlockNumbers) -> BlockNumbers:
        """A cache with a new row in each sequence."""
        assert self._taken is not None
        whole = BlockNumbers(*(x.copy() for x in self._kept[cache]))
        for old, row in zip(whole, new, strict=True):
            old[np.arange(len(old)), self._taken] = row[:, 0]
        return whole

    def values(self, name: str) -> Array:
        """A result as float32, as the machine has it."""
        if name in self._of.columns:
            return numbers.values_of(self._kept[name], int(self._of.columns[name].positions.max()) + 1)
        return numbers.values_of(self._x(name), self._of.sent[name].columns)

    def _statistics(self, name: str) -> numbers.Statistics | None:
        sent = self._of.sent[name]
        if sent.norm is not None and name not in self._norms:
            constants = numbers.NormConstants.of(sent.columns, sent.norm.eps)
            self._norms[name] = numbers.statistics(self._raw(name), constants, rms=sent.norm.rms)
        return self._norms.get(name)

    def _raw(self, name: str) -> BlockNumbers:
        raw = self._of.sent[name].raw
        return self._kept[name] if raw == name else self._x(raw)

    def _x(self, name: str) -> BlockNumbers:
        """An activation in X, behind its norm."""
        sent, norm = self._of.sent[name], self._statistics(name)
        if norm is None:
            return self._raw(name)
        return numbers.stored(*numbers.normalised(self._raw(name), *sent.affine, norm), X_BITS)

    def _rows(self, name: str, low_bits: int) -> tuple[Integers, RowFactor]:
        """An activation as a product takes it."""
        if name in self._of.columns:
            return numbers.of_rows(self._kept[name], low_bits)
        return numbers.sent(self._raw(name), self._of.sent[name].gains, self._statistics(name), low_bits)

    def _gemm(self, layer: Gemm) -> BlockNumbers:
        addends = []
        if layer.multiplies:
            product = self._of.products[layer.y]
            rows, scale = self._rows(layer.x, product.low_bits)
            total = numbers.sums_of_rows(rows.reshape(*rows.shape[:-2], -1), product.weight, product.low_bits)
            drained = numbers.drained(total, product.shifts)
            addends += [numbers.scaled(drained, product.shifts, product.columns, scale), numbers.kept(product.bias)]
        elif layer.is_sum:
            addends.append(numbers.kept(self._x(layer.x)))
        if layer.residual is not None:
            addends.append(numbers.kept(self._x(layer.residual)))
        v, exponent = numbers.added(*addends)
        if layer.gated:
            (v, other), (exponent, of_other) = (np.split(x, 2, -2) for x in (v, exponent))
        if layer.activation is not None:
            v = numbers.activated(v, exponent, TABLES[layer.activation.value])
        if layer.gated:
            v, exponent = numbers.gated((v, exponent), (other, of_other))
        if layer.in_heads:
            v, exponent = self._in_heads(layer, v, exponent)
        return numbers.stored(v, exponent, T_BITS if layer.y in self._of.columns else X_BITS)

    def _in_heads(self, layer: Gemm, v: Integers, exponent: Integers) -> tuple[Integers, Integers]:
        """The norm and the rotation of heads."""
        columns = self._of.columns[layer.y]
        if layer.norm is not None:
            constants = numbers.NormConstants.of(layer.width // layer.heads, layer.norm.eps)
            v, exponent = numbers.heads_normalised(
                v, exponent, columns.pitch, *self._of.head_norms[layer.y], constants, rms=layer.norm.rms
            )
        if layer.rotary is None:
            return v, exponent
        angles = self._of.rotations.get(layer.y)
        if angles is None:
            angles = self._kept[str(layer.rotary.source)]
        factors = (t[..., : v.shape[1], :, :] for t in numbers.turned(angles))
        own, partner = (np.tile(t, (v.shape[-2] // t.shape[-2], 1)) for t in factors)
        return numbers.rotated(v, exponent, own, partner)

    def _attention(self, layer: AttentionLayer) -> BlockNumbers:
        columns = self._of.columns[layer.q]
        q, k, v = (self._kept[name] for name in (layer.q, layer.k, layer.v))
        rows, keys = q.integers.shape[1], k.integers.shape[1]
        own = np.full(len(k.integers), keys) if self._rows_of is None else self._rows_of
        lengths = own if self._lengths is None or not layer.masked else self._lengths
        valid = reference.valid_keys(layer, rows, keys, lengths, self._starts)
        shows = np.ones((1, 1, 1, 1), np.bool_) if valid is None else valid.numpy()
        of_keys = np.broadcast_to(shows, (len(lengths), 1, rows, keys)).max(2)[:, 0]
        asks = None if self._rows_of is None else np.arange(rows) < self._rows_of[:, None]
        of_q, e_q = numbers.of_heads(q, columns.pitch, asks, groups=self._of.groups(layer))
        (of_k, e_k), (of_v, e_v) = (numbers.of_heads(x, columns.pitch, of_keys) for x in (k, v))
        of_q, e_q = of_q[:, : layer.heads], e_q[:, : layer.heads]
        which = np.arange(layer.heads) // layer.groups
        of_k, e_k, of_v, e_v = (x[:, which] for x in (of_k, e_k, of_v, e_v))
        scores = numbers.sums(of_q, of_k.swapaxes(2, 3))
        weights = numbers.weights(scores, numbers.score_shifts(e_q + e_k, layer.head_dim), shows)
        total = numbers.sums(weights, of_v)
        heads, exponent = numbers.of_weights(total, weights.sum(-1, keepdims=True), e_v, keys)
        unit = min(columns.pitch, BLOCK)
        exponent = exponent[..., None].repeat(columns.pitch // unit, -2)
        units = (x.reshape(*exponent.shape[:-1], -1).swapaxes(1, 2) for x in (heads, exponent))
        return numbers.stored(*numbers.joined(*(x.reshape(len(x), rows, -1, x.shape[-1]) for x in units)), T_BITS)


def with_rows16(traced: Traced, patterns: Sequence[str]) -> Traced:
    """Return the same traced module, but with up to 16 bits for the rows of some products. patterns: module paths of
    these products, or a text for a single path; `*` stands for one part of a path, or for some of its characters.
    Raises `ScheduleError` for a pattern that matches no product."""
    products = (x for x in traced.network.layers if isinstance(x, Gemm) and is_product(x))
    paths = {x.y: (x.path, *(x.fused if x.gated else ())) for x in products}
    found: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        some = {y for y, names in paths.items() if any(matches_path(pattern, name) for name in names)}
        if not some:
            known = some_of([first for first, *_ in paths.values()])
            raise ScheduleError(f"rows16: {pattern} matches no product; there are {known}")
        found |= some
    return replace(traced, network=replace(traced.network, rows16=frozenset(found)))


def smoothed(traced: Traced, calls: Iterable[Examples]) -> Traced:
    """Return a traced module with factors of SmoothQuant. calls: as `smooth` of `in_integers`; they may be in half
    precision. Raises `TensorError` for calls that do not fit."""
    return replace(traced, network=replace(traced.network, smooth=_smoothing(traced, calls)))


def _smoothing(traced: Traced, batches: Iterable[Examples]) -> dict[str, npt.NDArray[np.float64]]:
    """Factors of the columns of each activation that products read from X: root of its largest magnitude over that of
    the weights, without the shift of its norm, which is no part of the rows."""
    network = traced.network
    unsmoothed = IntegerNetwork.of(replace(network, smooth={}))
    most: dict[str, Floats] = {}
    for batch in batches:
        wide = precision.widened_example(batch)
        args, kwargs = ((), wide) if isinstance(wide, dict) else (wide, {})
        inputs, spans, _ = traced.host.prologue(*args, **kwargs)
        values = dict(inputs)
        for layer in network.layers:
            lengths, starts = (None, None) if spans is None else (spans.lengths, spans.starts)
            values[layer.y] = reference.compute(network, layer, values, lengths, starts)
        for name, sent in unsmoothed.sent.items():
            rows = values[name] if spans is None else values[name][_shown(spans, values[name].shape[:2])]
            found = np.abs(rows - sent.shift).reshape(-1, sent.columns).max(0)
            most[name] = np.maximum(most.get(name, 0), found)
    made: dict[str, npt.NDArray[np.float64]] = {}
    for name, found in most.items():
        readers = [x for x in network.readers.get(name, ()) if isinstance(x, Gemm) and x.multiplies and x.x == name]
        widest = np.max([np.abs(x.weight).max(1) for x in readers], 0) if readers else np.zeros(len(found))
        is_used = (found > 0) & (widest > 0)
        made[name] = np.sqrt(np.divide(found, widest, out=np.ones(len(found)), where=is_used))
    return made


def _shown(spans: KeySpans, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """The rows of sequences that masks show; all where they have another number of rows."""
    rows = np.arange(shape[1])
    if len(spans.lengths) != shape[0] or spans.lengths.max() > shape[1]:
        return np.ones(shape, np.bool_)
    shown = rows < spans.lengths[:, None]
    return shown if spans.starts is None else shown & (rows >= spans.starts[:, None])
