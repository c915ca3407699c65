"""A matched network as overlay xnn8 computes it: where each activation is kept, and weights and vectors as integers.

Scales of norms stay out of the weights: X multiplies by them as it sends rows (`SentRows.gain`). The shift of a norm
joins the bias of what reads it. An activation is in T if attention reads or makes it, or if it is a product that only
products read; all others are in X.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.errors import UnsupportedError
from ..isa.overlays.xnn8 import bounds
from ..isa.overlays.xnn8.numbers import BLOCK, X_BITS, BlockNumbers, Floats, Integers, blocks_of, drain_shift
from .graph import AttentionLayer, Gemm, LayerGraph, Norm, Rotary
from .integer_weights import ShortWeight, quantised, strips

SMALLEST_PITCH = 32
"""Columns of a tile's part of a head."""
WIDEST_HEAD = 128
MOST_GROUPED = 16
"""Heads that become rows: those of a lane in a step of a decoder."""


@dataclass(frozen=True)
class IntegerColumns:
    """Where the columns of an activation are stored. places: for each stored column the number of the column of the
    activation that it is, counted through all heads, or -1 for padding, which is 0; int64 (stored columns,), a multiple
    of 64. heads: number of heads, 0 for an activation without. pitch: stored columns from one head to the next."""

    places: Integers
    heads: int = 0
    pitch: int = 0

    @classmethod
    def plain(cls, count: int) -> IntegerColumns:
        """Return `count` columns side by side, filled up to a multiple of 64."""
        return cls(_filled(np.arange(count)))

    @classmethod
    def of_heads(cls, heads: int, head_dim: int, rotary: Rotary | None) -> IntegerColumns:
        """Return the columns of heads. Each head begins at a multiple of the pitch: the least power of 2, from 32 on,
        that is at least `head_dim`. heads: their number. head_dim: columns of a head. rotary: a rotation, whose
        partners lie side by side; None for no rotation."""
        pitch = max(SMALLEST_PITCH, SMALLEST_PITCH << (head_dim - 1 >> 5).bit_length())
        order = list(range(head_dim))
        if rotary is not None:
            pairs = [sorted({c, p}) for c, p in enumerate(rotary.partners) if c <= p]
            order = [c for pair in sorted(pairs, key=len, reverse=True) for c in pair]
        head = np.full(pitch, -1)
        head[:head_dim] = order
        at = np.arange(heads)[:, None] * head_dim
        return cls(_filled(np.where(head < 0, -1, at + head).ravel()), heads, pitch)

    def of(self, values: Floats) -> npt.NDArray[np.float64]:
        """Return values as they are stored: (..., columns) to (..., stored columns), float64; padding is 0. values: one
        for each column that `places` counts, which is not checked; may be returned as it is if it has that form
        already."""
        if np.array_equal(self.places, np.arange(values.shape[-1])):
            return np.asarray(values, np.float64)
        padded = np.concatenate([values, np.zeros((*values.shape[:-1], 1))], -1)
        return padded[..., self.places]

    @cached_property
    def positions(self) -> npt.NDArray[np.intp]:
        """Where each column is stored, counted through all heads: the inverse of `places`."""
        (stored,) = np.nonzero(self.places >= 0)
        return stored[np.argsort(self.places[stored])]


def _filled(places: Integers) -> Integers:
    return np.pad(places, (0, -len(places) % BLOCK), constant_values=-1)


@dataclass(frozen=True, eq=False)
class IntegerProduct:
    """The constants of a product in integers (docs/xnn8.md, "Numbers"). weight: int8 (stored K, stored N). short: the
    weight of 4 bits from which it is made; None for one of 8 bits. columns: scales of its columns, 16 bits (blocks,
    64). shifts: by how many bits sums are shifted as they leave the tiles, (blocks, 1). bias: 16 bits (blocks, 64).
    low_bits: how many bits more than 8 its rows have."""

    weight: npt.NDArray[np.int8]
    short: ShortWeight | None
    columns: BlockNumbers
    shifts: Integers
    bias: BlockNumbers
    low_bits: int = 0


@dataclass(frozen=True, eq=False)
class SentRows:
    """How X sends an activation to products. raw: the name of the activation in X, before the norm. columns: their
    number. norm: applied first, None for none. gain: what the rows are multiplied by for products, float64 (columns,).
    scale, shift: of the norm, where its result itself is wanted and not a product of it, float64 (columns,); 1 and 0
    without a norm."""

    raw: str
    columns: int
    norm: Norm | None
    gain: Floats
    scale: Floats
    shift: Floats

    @cached_property
    def gains(self) -> BlockNumbers:
        """`gain` as it is sent: 16 bits, (blocks, 64). Raises `TensorError` for a gain that is not finite."""
        return blocks_of(self.gain, X_BITS)

    @cached_property
    def affine(self) -> tuple[BlockNumbers, BlockNumbers]:
        """`scale` and `shift`: 16 bits each, (blocks, 64). Raises `TensorError` for one that is not finite."""
        return blocks_of(self.scale, X_BITS), blocks_of(self.shift, X_BITS)


@dataclass(frozen=True, eq=False)
class IntegerNetwork:
    """A network in the integers of xnn8. network: the matched network. columns: by the name of each activation in the
    memory T, where its columns are stored; an activation is in T if attention reads or computes it, or if it is a
    product that only products read. sent: how each activation in the memory X is sent, by its name; all that are not in
    T are in X. products: the constants of each product, by the name of its result. head_norms: scale and shift of norms
    of heads, by the name of the result. rotations: constant factors of rotations, by the name of the result, in the
    order of `paired_table`: 16 bits in units of 2^-14, (rows, blocks, 64)."""

    network: LayerGraph
    columns: Mapping[str, IntegerColumns]
    sent: Mapping[str, SentRows]
    products: Mapping[str, IntegerProduct] = field(default_factory=dict)
    head_norms: Mapping[str, tuple[BlockNumbers, BlockNumbers]] = field(default_factory=dict)
    rotations: Mapping[str, BlockNumbers] = field(default_factory=dict)

    @classmethod
    def of(cls, network: LayerGraph) -> IntegerNetwork:
        """Quantise a matched network. Factors of SmoothQuant (`LayerGraph.smooth`) apply to activations in X only.
        Raises `UnsupportedError`, naming the layer, for what xnn8 cannot compute."""
        if network.states and network.seq > 1:
            what = f"{network.seq} new rows for a cache that has others"
            raise UnsupportedError(f"{what}; overlay xnn8 takes a prompt at once, then single rows")
        for layer in network.layers:
            _check(layer)
        smooth = network.smooth
        columns = _in_t(network)
        for layer in network.layers:
            if isinstance(layer, Gemm) and layer.in_heads and layer.y not in columns:
                raise UnsupportedError(f"{layer.place}: a norm or a rotation of heads that are no queries or keys")
        _check_caches(network, columns)
        others = {*columns, *(str(rotary.source) for rotary in network.rotated_by.values())}
        sent = {name: _plain(name, count, smooth) for name, count in network.inputs.items() if name not in others}
        for layer in network.layers:
            if layer.y not in columns and isinstance(layer, Gemm):
                sent[layer.y] = _sent(layer, smooth)
                if layer.norm is not None and not layer.in_heads:
                    bounds.check_norm(layer.place, layer.width)
        made = cls(network, columns, sent)
        products = {x.y: made._product(x) for x in network.layers if isinstance(x, Gemm) and is_product(x)}
        for layer in network.layers:
            if isinstance(layer, AttentionLayer):
                made._check_attention(layer)
        in_heads = {x.y: x for x in network.layers if isinstance(x, Gemm) and x.in_heads}
        norms = {y: _head_norm(x, columns[y]) for y, x in in_heads.items() if x.norm is not None}
        rotations = {y: _rotation(x.place, x.rotary) for y, x in in_heads.items() if x.rotary and not x.rotary.source}
        return cls(network, columns, sent, products, norms, rotations)

    def groups(self, layer: AttentionLayer) -> int:
        """Return how many heads of queries are computed as rows of one head, with a common exponent. In a step of a
        decoder these are the heads that share keys and values, if together they are whole blocks; otherwise the number
        is 1."""
        fits = self.network.is_step and layer.groups <= MOST_GROUPED
        return layer.groups if fits and layer.groups * self.columns[layer.q].pitch % BLOCK == 0 else 1

    def adds_normalised(self, layer: Gemm) -> bool:
        """Return whether the residual of a layer is normalised as it is added."""
        return layer.residual is not None and self.sent[layer.residual].norm is not None

    def stored(self, name: str, width: int) -> IntegerColumns:
        """Return where the columns of an activation are stored. name: of the activation. width: number of its columns,
        which counts if it is not in T: they then lie side by side."""
        return self.columns.get(name) or IntegerColumns.plain(width)

    def _product(self, layer: Gemm) -> IntegerProduct:
        of_k, of_n = self.stored(layer.x, len(layer.weight)), self.stored(layer.y, layer.width)
        parts = [np.where(of_n.places < 0, -1, of_n.places + i * layer.width) for i in range(1 + layer.gated)]
        places = np.concatenate(parts)
        # all columns are one in memory, as those of a weight without values, and filled up ones: each is made once
        is_one = layer.weight.strides[1] == 0
        different, which = places, np.arange(len(places))
        if is_one:
            different, which = np.unique(np.minimum(places, 0), return_inverse=True)

        def stored(x: npt.NDArray[Any]) -> Floats:
            return np.where(places < 0, 0.0, np.asarray(x, np.float64)[places])

        def rows(strip: slice) -> Floats:
            """Columns of the weight as rows, zeros where it is filled up."""
            some = different[strip]
            made: Floats = layer.weight.T[some].astype(np.float64)
            made[some < 0] = 0
            return made

        factor, bias, gains = stored(np.full(layer.weight.shape[1], layer.factor)), stored(layer.bias), None
        if layer.x in self.sent:
            sent = self.sent[layer.x]
            if sent.shift.any():
                bias = bias + np.concatenate([rows(strip) @ sent.shift for strip in strips(len(different))])[which]
            # what is sent times gain / scale: the norm's scale, and what smoothing divides by
            gains = np.divide(sent.scale, sent.gain, out=np.ones(len(sent.gain)), where=sent.gain != 0)
        if layer.scale is not None and layer.norm is None:  # nothing else is behind the product (`_check`)
            scale = np.where(places < 0, 1.0, stored(layer.scale))
            factor, bias = factor * scale, bias + stored(_shift(layer)) / (scale * layer.factor)

        def columns(strip: slice) -> Floats:
            made = rows(strip)
            if gains is not None:
                made *= gains
            return of_k.of(made).T

        scales, integers, short = quantised(columns, len(different))
        sums = [np.abs(integers[:, s], dtype=np.int16).sum(0, dtype=np.int64) for s in strips(len(different))]
        magnitudes = np.concatenate(sums)[which].reshape(-1, BLOCK).max(1)
        is_wide = layer.y in self.network.rows16
        low_bits = bounds.low_bits(layer.place, int(magnitudes.max())) if is_wide else 0
        largest = (127 << low_bits) * magnitudes
        bounds.check_product(layer.place, int(largest.max()))
        shifts = np.array([[drain_shift(int(x))] for x in largest])
        if is_one:
            integers, short = _repeated(integers, which), short and ShortWeight(*(_repeated(x, which) for x in short))
        vectors = (blocks_of(x, X_BITS) for x in (scales[which] * factor, bias * factor))
        return IntegerProduct(integers, short, next(vectors), shifts, next(vectors), low_bits)

    def _check_attention(self, layer: AttentionLayer) -> None:
        bounds.check_attention(layer.place, layer.head_dim, self.network.seq_of(layer.k))
        q, k = (self.columns[name].places[: self.columns[name].pitch] for name in (layer.q, layer.k))
        if (q != k).any():
            raise UnsupportedError(f"{layer.place}: queries and keys are rotated in different pairs of columns")


def _repeated(x: npt.NDArray[Any], which: Integers) -> npt.NDArray[Any]:
    """Some columns of an array, again and again; if there is one, without a copy."""
    return x[:, which] if x.shape[1] > 1 else np.broadcast_to(x, (len(x), len(which)))


def _head_norm(layer: Gemm, columns: IntegerColumns) -> tuple[BlockNumbers, BlockNumbers]:
    scale = np.ones(layer.width) if layer.scale is None else layer.scale
    of_scale, of_shift = (blocks_of(columns.of(x), X_BITS) for x in (scale, _shift(layer)))
    return of_scale, of_shift


def paired_table(rotary: Rotary) -> npt.NDArray[np.float64]:
    """Return the factors of a rotation as they are stored: for each pair of columns first its cosine, then the sine of
    its second column, float64 (rows, columns of whole blocks, 64 or more). Raises `UnsupportedError` for factors that
    are not a sine and a cosine of each pair, and for factors that are not below 2."""
    most = max(float(np.abs(t).max()) for t in (rotary.own, rotary.partner))
    if not most * (1 << 14) <= (1 << 15) - 1:
        raise UnsupportedError(f"factors of a rotation of up to {most:g}; overlay xnn8 has them below 2")
    heads = BLOCK // SMALLEST_PITCH
    columns = IntegerColumns.of_heads(heads, rotary.head_dim, rotary)
    stored = (columns.of(np.tile(t, heads)) for t in (rotary.own, rotary.partner))
    own, partner = (x[:, : max(BLOCK, columns.pitch)].reshape(len(x), -1, 2) for x in stored)
    if (own[..., 0] != own[..., 1]).any() or (partner[..., 0] != -partner[..., 1]).any():
        raise UnsupportedError("a rotation by other factors than a sine and a cosine of each pair")
    return np.stack([own[..., 0], partner[..., 1]], -1).reshape(len(own), -1)


def _rotation(place: str, rotary: Rotary) -> BlockNumbers:
    try:
        table = np.rint(paired_table(rotary) * (1 << 14)).astype(np.int64).reshape(len(rotary.own), -1, BLOCK)
    except UnsupportedError as error:
        raise UnsupportedError(f"{place}: {error}") from None
    return BlockNumbers(table, np.full((*table.shape[:2], 1), -14))


def _shift(layer: Gemm) -> Floats:
    return np.zeros(layer.width) if layer.shift is None else layer.shift


def _plain(name: str, count: int, smooth: Mapping[str, Floats]) -> SentRows:
    ones = np.ones(count)
    return SentRows(name, count, None, ones / smooth.get(name, ones), ones, np.zeros(count))


def _sent(layer: Gemm, smooth: Mapping[str, Floats]) -> SentRows:
    if layer.norm is None or layer.in_heads:
        return _plain(layer.y, layer.width, smooth)
    ones = np.ones(layer.width)
    raw = str(layer.residual) if is_view(layer) else layer.y
    scale = ones if layer.scale is None else layer.scale
    return SentRows(raw, layer.width, layer.norm, scale / smooth.get(layer.y, ones), scale, _shift(layer))


def _check_caches(network: LayerGraph, columns: Mapping[str, IntegerColumns]) -> None:
    """Raise `UnsupportedError` for caches otherwise than in a step of a decoder."""
    for layer in network.layers:
        if isinstance(layer, Gemm) and layer.into is not None:
            for what, is_there in (
                ("a cache that no attention reads", layer.y not in columns),
                ("a cache beside keys of other rows", not network.is_step),
            ):
                if is_there:
                    raise UnsupportedError(f"{layer.place}: {what}; overlay xnn8 has none")


def with_stored_columns(network: LayerGraph) -> LayerGraph:
    """Return the same matched network, in which `stored_columns` says where columns of caches and of outputs in T are
    stored, and in which inputs with factors of rotations have as many columns as the memory Angles holds. It takes the
    place of the pass `fold` for an overlay that computes in integers. Raises `UnsupportedError` as `IntegerNetwork.of`
    does."""
    attended = {name for x in network.layers if isinstance(x, AttentionLayer) for name in (x.k, x.v)}
    rotated, outputs = network.rotated_by.values(), {out.name for out in network.outputs}
    if not network.states and not rotated and not outputs & attended:
        return network
    columns = _in_t(network)
    pitches = {str(x.source): IntegerColumns.of_heads(1, x.head_dim, None).pitch for x in rotated}
    kept = {name: columns[name].positions for name in (*network.states, *outputs) if name in columns}
    tables = {source: max(BLOCK, pitch) for source, pitch in pitches.items()}
    return replace(network, inputs=network.inputs | tables, stored_columns=kept)


def is_product(layer: Gemm) -> bool:
    """Return whether tiles compute a layer. They do not compute rows that become new rows of a cache as they are."""
    return layer.multiplies and layer.into is None


def is_view(layer: Gemm) -> bool:
    """Return whether a layer is only a norm of an activation in X. Such a norm is applied whenever X sends that
    activation."""
    return not layer.multiplies and not layer.is_sum and layer.norm is not None and layer.activation is None


def _in_t(network: LayerGraph) -> dict[str, IntegerColumns]:
    """The columns of all activations in T. Raises `UnsupportedError` for an attention whose operands or result have
    other readers."""
    made = {layer.y: layer for layer in network.layers}
    outputs = {out.name for out in network.outputs}
    found: dict[str, IntegerColumns] = {}
    for layer in network.layers:
        if isinstance(layer, AttentionLayer):
            kv_heads = layer.kv_heads or layer.heads
            for name, heads in ((layer.q, layer.heads), (layer.k, kv_heads), (layer.v, kv_heads)):
                kept = made.get(name)
                cache = kept.into if isinstance(kept, Gemm) else None
                of = made.get(kept.x) if isinstance(kept, Gemm) and cache is not None else kept
                read = [x for x in network.readers[of.y if isinstance(of, Gemm) else name] if isinstance(x, Gemm)]
                others = (name == layer.q and name in outputs) or any(x.into is None for x in read)
                if others or not isinstance(of, Gemm) or not _is_projection(of):
                    raise UnsupportedError(
                        f"{layer.place}: {name} is no product that only attention reads, with norms of heads at most"
                    )
                rotary = of.rotary
                columns = IntegerColumns.of_heads(heads, layer.head_dim, rotary)
                if name in found and not np.array_equal(found[name].places, columns.places):
                    raise UnsupportedError(f"{layer.place}: {name} has other heads in another attention")
                found |= dict.fromkeys((name, of.y, *((cache,) if cache else ())), columns)
            if layer.y in outputs or not _feeds_products(network, layer.y):
                raise UnsupportedError(f"{layer.place}: its result is read by more than products")
            found[layer.y] = IntegerColumns.of_heads(layer.heads, layer.head_dim, rotary)  # as values have theirs
        elif layer.y not in outputs and _is_hidden(layer) and _feeds_products(network, layer.y):
            found[layer.y] = IntegerColumns.plain(layer.width)
    return found


def _feeds_products(network: LayerGraph, name: str) -> bool:
    """Whether only products read an activation, as their rows."""
    readers = network.readers.get(name, ())
    return all(isinstance(x, Gemm) and x.multiplies and x.x == name and x.residual != name for x in readers)


def _is_projection(layer: Gemm) -> bool:
    """Whether a product has nothing behind it but what queries and keys have: norms of heads, and rotations."""
    bare = layer.residual is None and layer.activation is None and not layer.gated
    return layer.multiplies and bare and (layer.norm is None or layer.in_heads)


def _is_hidden(layer: Gemm) -> bool:
    return layer.multiplies and layer.norm is None and layer.rotary is None and layer.residual is None


def _check(layer: Gemm | AttentionLayer) -> None:
    """Raise `UnsupportedError` for a layer beyond xnn8."""
    if isinstance(layer, AttentionLayer):
        for what, is_there in (
            ("a bias or a mask of numbers", layer.is_biased),
            ("a soft cap of scores", layer.softcap is not None),
            (f"heads of {layer.head_dim} columns, more than {WIDEST_HEAD}", layer.head_dim > WIDEST_HEAD),
            ("masks of several numbers of keys", bool(layer.counted)),
        ):
            if is_there:
                raise UnsupportedError(f"{layer.place}: {what}; overlay xnn8 has none")
        return
    has_affine = layer.scale is not None or layer.shift is not None
    is_more = layer.activation is not None or layer.residual is not None or layer.gated or not layer.multiplies
    for what, is_there in (
        ("a norm of an operand", layer.x_norm is not None or layer.residual_norm is not None),
        ("a residual with factors", layer.residual_scale is not None and bool((layer.residual_scale != 1).any())),
        ("factors behind a function or a sum", has_affine and layer.norm is None and is_more),
        ("factors of 0", layer.norm is None and layer.scale is not None and bool((layer.scale == 0).any())),
        ("a factor of 0", layer.factor == 0),
    ):
        if is_there:
            raise UnsupportedError(f"{layer.place}: {what}; overlay xnn8 has none")
