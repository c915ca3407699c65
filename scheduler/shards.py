"""A network cut into shards: several boards compute each layer together, each its heads or its columns of it.

A *region* ends with a product that closes it. It begins with products of what all boards have; between them columns are
only read head by head, or one by one. Each shard computes its columns of the region, and with its rows of the closing
weight a part of the result: the sum of all parts is the result. The first shard adds bias and residual. A product that
only the host reads is cut by its columns. Every shard computes all other layers, such as norms, that it needs.

Sums are made between boards. So the layers of a network become rounds: those up to a sum, for each shard a network of
its own, then those behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from ..base.errors import UnsupportedError
from .graph import Array, AttentionLayer, Gemm, Layer, LayerGraph, Output, Vector, unique_name
from .stages import cut_places

Ranges = tuple[slice, ...]
"""The columns of an activation that each shard computes. Those of two shards are the same or have no column in common:
shards of queries may need the same head of keys."""


@dataclass(frozen=True)
class ShardExchange:
    """What the shards of a stage exchange behind a round. sums: names of activations of which each shard computes a
    part of the sum. columns: activations of which each shard computes some columns that other shards or the host need:
    by name, the columns of each shard. caches: inputs that keep their contents on the boards of the shards: by name,
    the columns that each shard has. spread: names of activations that the first shard has and other shards read in
    later rounds. All other outputs are those of the first shard."""

    sums: tuple[str, ...] = ()
    columns: Mapping[str, Ranges] = field(default_factory=dict)
    caches: Mapping[str, Ranges] = field(default_factory=dict)
    spread: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Round:
    """Layers that the shards of a stage compute between two exchanges. networks: of each shard; None for one that
    computes nothing. exchange: what the shards exchange behind these layers."""

    networks: tuple[LayerGraph | None, ...]
    exchange: ShardExchange


@dataclass(eq=False)
class _Region:
    """Layers that are computed in shards. closing: the name of the sum; None for a product that only the host reads.
    columns: of each activation in it, those of each shard. members: the names of the results of its layers, with the
    sum."""

    closing: str | None
    columns: dict[str, Ranges] = field(default_factory=dict)
    members: set[str] = field(default_factory=set)


class _Whole(Exception):
    """A layer has to be computed by every shard."""


def opened(network: LayerGraph, shards: int) -> LayerGraph:
    """Return the same folded network, in which the norm of a sum over all shards is a layer of its own behind the sum,
    because no shard has the whole sum before the exchange. shards: how many boards compute the network, two or more.

    Raises `UnsupportedError`, naming the layer, for heads or columns that cannot be divided among the shards, and for a
    network in which no layer can.
    """
    closing = {region.closing for region in _regions(network, shards)}
    if not closing:
        first = next((x for x in network.layers if isinstance(x, Gemm) and x.multiplies), network.layers[0])
        raise UnsupportedError(
            f"{first.place}: shards={shards}: the network has no heads or columns that are only read by a product "
            "which sums over them"
        )
    taken = {*network.inputs, *(layer.y for layer in network.layers)}
    layers: list[Layer] = []
    for layer in network.layers:
        if not isinstance(layer, Gemm) or layer.y not in closing or layer.norm is None:
            layers.append(layer)
            continue
        total = unique_name(f"{layer.y}_sum", taken)
        none, zeros = np.zeros((0, layer.width), np.float32), np.zeros(layer.width, np.float32)
        ones = np.ones(layer.width, np.float32)
        layers.append(replace(layer, y=total, norm=None))
        layers.append(Gemm(layer.path, total, layer.y, none, zeros, None, total, ones, norm=layer.norm))
    return replace(network, layers=tuple(layers))


def rounds(network: LayerGraph, shards: int) -> tuple[Round, ...]:
    """Return the rounds of a network that `opened` returned, or of a stage of it, in order. shards: how many boards
    compute it.

    If an output is a sum over shards, or if shards have some of its columns, no program applies its scale and shift.
    Raises as `opened`; but a stage in which no layer can be divided is no error: the first shard computes it.
    """
    made = tuple(_Rounds(network, shards, _regions(network, shards)).made())
    return tuple(replace(one, exchange=_with_spread(one, made[i + 1 :])) for i, one in enumerate(made))


def _with_spread(one: Round, later: Sequence[Round]) -> ShardExchange:
    """The exchange behind a round, with what the first shard sends to the others for the rounds `later`."""
    exchange, first = one.exchange, one.networks[0]
    read = {name for each in later for network in each.networks[1:] if network is not None for name in network.inputs}
    known = {*exchange.sums, *exchange.columns}
    given = () if first is None else (out.name for out in first.outputs)
    return replace(exchange, spread=tuple(name for name in given if name in read - known))


def shard_places(network: LayerGraph, shards: int) -> tuple[int, ...]:
    """Return where a network that `opened` returned can be cut into stages: the `cut_places` behind which an exchange
    comes. shards: how many boards compute each stage. Raises as `opened`."""
    regions = _regions(network, shards)
    ends = {y for region in regions for y in ((region.closing,) if region.closing else region.members)}
    last = max(i for i, layer in enumerate(network.layers) if layer.y in ends)
    return tuple(x for x in cut_places(network) if x <= last and network.layers[x - 1].y in ends)


def _regions(network: LayerGraph, shards: int) -> list[_Region]:
    """The regions of a network, in execution order. No layer is in two of them."""
    found: list[_Region] = []
    taken = set[str]()
    finder = _Finder(network, shards)
    for layer in network.layers:
        if not isinstance(layer, Gemm) or layer.y in taken:
            continue
        region = finder.region(layer, taken)
        if region is not None:
            found.append(region)
            taken |= region.members
    return found


class _Finder:
    """Finds regions by the structure of a network."""

    def __init__(self, network: LayerGraph, shards: int) -> None:
        self._network, self._shards = network, shards
        self._made = {layer.y: layer for layer in network.layers}
        self._outputs = {out.name for out in network.outputs}
        self._region: _Region

    def region(self, layer: Gemm, taken: set[str]) -> _Region | None:
        """The region that a product closes, or that it alone is because only the host reads it; None if it has to be
        whole. taken: the members of other regions."""
        try:
            return self._closed(layer, taken)
        except _Whole:
            pass
        try:
            return self._of_columns(layer)
        except _Whole:
            return None

    def _closed(self, layer: Gemm, taken: set[str]) -> _Region:
        if not _closes(layer):
            raise _Whole
        self._region = _Region(layer.y, members={layer.y})
        self._divide(layer.x, None, layer.place)
        while (copy := self._copy_outside()) is not None:
            self._divide(copy.y, self._region.columns[copy.x], copy.place)
        members, columns = self._region.members, self._region.columns
        for name in columns:
            if any(reader.y not in members for reader in self._network.readers.get(name, ())):
                raise _Whole
        begins = (x for x in map(self._made.__getitem__, members) if isinstance(x, Gemm) and x.multiplies)
        if any(x.x in columns for x in begins if not x.copies and x is not layer):
            raise _Whole
        if members & taken or layer.residual in columns:
            raise _Whole
        return self._region

    def _of_columns(self, layer: Gemm) -> _Region:
        """The region of a product whose result only the host reads."""
        if layer.y not in self._outputs or self._network.readers.get(layer.y) or not _opens(layer):
            raise _Whole
        if layer.in_heads or layer.copies:
            raise _Whole
        self._region = _Region(None)
        self._divide(layer.y, None, layer.place)
        return self._region

    def _copy_outside(self) -> Gemm | None:
        """A layer outside the region that copies an activation of it for the host."""
        members, columns = self._region.members, self._region.columns
        for layer in self._network.layers:
            if isinstance(layer, Gemm) and layer.copies and layer.y not in members and layer.x in columns:
                return layer
        return None

    def _divide(self, name: str, columns: Ranges | None, place: str) -> None:
        """Take an activation into the region. columns: those of each shard; None to choose. place: of its reader."""
        layer = self._made.get(name)
        if layer is None:
            raise _Whole
        known = self._region.columns.get(name)
        if known is not None:
            if columns is not None and known != columns:
                raise _Whole
            return
        if isinstance(layer, AttentionLayer):
            self._attention(layer, columns)
            return
        if layer.copies or _is_pass(layer):
            self._divide(layer.x, columns, layer.place)
            columns = self._region.columns[layer.x]
        elif not _opens(layer) or layer.into is not None:
            raise _Whole
        columns = columns or _even(layer.width, self._shards, f"{layer.place}: {layer.width} columns")
        if layer.in_heads and any(x.start % (layer.width // layer.heads) for x in columns):
            raise _Whole
        self._add(layer, columns)
        if layer.into is not None:
            self._region.columns[layer.into] = columns

    def _attention(self, layer: AttentionLayer, columns: Ranges | None) -> None:
        if layer.mask_heads > 1:  # an input whose rows lie head by head
            raise _Whole
        for name in (layer.q, layer.k, layer.v):
            if name not in self._made:
                raise _Whole
        shards, groups = self._shards, layer.groups
        heads, told = layer.heads, f"{layer.place}: {layer.heads} heads"
        if heads % shards:
            raise UnsupportedError(f"{told} cannot be divided into shards={shards}")
        own = heads // shards
        if own % groups and groups % own:
            raise UnsupportedError(
                f"{told}, of which each {groups} share keys, cannot be divided into shards={shards}: {own} heads "
                "of a shard would need parts of two groups"
            )
        width = layer.head_dim
        queries = tuple(slice(s * own * width, (s + 1) * own * width) for s in range(shards))
        first = [s * own // groups for s in range(shards)]
        count = max(1, own // groups)
        keys = tuple(slice(at * width, (at + count) * width) for at in first)
        if columns not in (None, queries):
            raise _Whole
        self._add(layer, queries)
        for name, part in ((layer.q, queries), (layer.k, keys), (layer.v, keys)):
            self._divide(name, part, layer.place)

    def _add(self, layer: Layer, columns: Ranges) -> None:
        self._region.columns[layer.y] = columns
        self._region.members.add(layer.y)


def _closes(layer: Gemm) -> bool:
    """Whether a product can be a sum of the parts that shards compute; a norm behind it is a pass of its own."""
    behind = layer.activation is not None or layer.gated or layer.in_heads or layer.rotary is not None
    return layer.multiplies and not layer.copies and not behind and layer.x_norm is None and layer.into is None


def _opens(layer: Gemm) -> bool:
    """Whether each column of a product's result needs nothing of the columns beside it, other than of its head."""
    return layer.multiplies and layer.residual is None and (layer.norm is None or layer.in_heads)


def _is_pass(layer: Gemm) -> bool:
    """Whether a layer computes each column of its result from the same column, or head, of its operand."""
    norms = layer.x_norm is not None or layer.residual_norm is not None
    return not layer.multiplies and not layer.is_sum and not norms and (layer.norm is None or layer.in_heads)


def _even(width: int, shards: int, told: str) -> Ranges:
    """Columns in shards of equal size, or nearly."""
    if width < shards:
        raise UnsupportedError(f"{told} cannot be divided into shards={shards}")
    ends = [width * s // shards for s in range(shards + 1)]
    return tuple(slice(a, b) for a, b in pairwise(ends))


class _Rounds:
    """The rounds of a network, given its regions."""

    def __init__(self, network: LayerGraph, shards: int, regions: Sequence[_Region]) -> None:
        self._network, self._shards = network, shards
        self._region = {y: region for region in regions for y in region.members}
        self._columns = {name: columns for region in regions for name, columns in region.columns.items()}
        self._sums = {region.closing for region in regions if region.closing is not None}
        self._level = self._levels()

    def _levels(self) -> dict[str, int]:
        """The round of each layer, by its result: the first in which all that its region reads is there. A cache is
        written in the round that reads it."""
        levels = dict.fromkeys((layer.y for layer in self._network.layers), 0)
        while True:
            before = dict(levels)
            for layer in self._network.layers:
                region = self._region.get(layer.y)
                first = max((levels[x] + (x in self._sums) for x in layer.operands if x in levels), default=0)
                if isinstance(layer, Gemm) and layer.into is not None:
                    readers = self._network.readers.get(layer.y, ())
                    first = max(first, *(levels[reader.y] for reader in readers), 0)
                for y in (layer.y,) if region is None else region.members:
                    levels[y] = max(levels[y], first)
            if levels == before:
                return levels

    def made(self) -> Iterator[Round]:
        """The rounds, in order."""
        network = self._network
        for number in range(max(self._level.values()) + 1):
            layers = [layer for layer in network.layers if self._level[layer.y] == number]
            made = {layer.y for layer in layers}
            later = {x for layer in network.layers if self._level[layer.y] > number for x in layer.operands}
            asked = later | {out.name for out in network.outputs}
            columns = {y: self._columns[y] for y in made & asked & self._columns.keys()}
            sums = tuple(layer.y for layer in layers if layer.y in self._sums)
            states = {x.into for x in layers if isinstance(x, Gemm) and x.into is not None}
            yield Round(
                tuple(self._of_shard(layers, asked, later, s) for s in range(self._shards)),
                ShardExchange(sums, columns, {name: self._columns[name] for name in states & self._columns.keys()}),
            )

    def _of_shard(self, layers: Sequence[Layer], asked: set[str], later: set[str], shard: int) -> LayerGraph | None:
        """The layers of a round that a shard needs, as a network. asked: what later rounds, stages and the host read;
        later: what later rounds do."""
        network, read = self._network, set[str]()
        needed = {
            layer.y
            for layer in layers
            if layer.y in self._sums
            or (layer.y in asked and (shard == 0 or layer.y in self._columns))
            or (isinstance(layer, Gemm) and layer.into is not None and (shard == 0 or layer.y in self._columns))
        }
        kept: list[Layer] = []
        for layer in reversed(layers):
            if layer.y in needed | read:
                part = self._part(layer, shard)
                kept.append(part)
                read.update(part.operands)
        if not kept:
            return None
        kept.reverse()
        made = {layer.y: layer for layer in kept}
        states = {layer.into for layer in kept if isinstance(layer, Gemm)}
        needed_inputs = dict.fromkeys(x for layer in kept for x in layer.operands if x not in made)
        given = {out.name: out for out in network.outputs}
        divided = self._sums | self._columns.keys()
        return replace(
            network,
            inputs={name: self._width(name, shard) for name in needed_inputs},
            outputs=tuple(
                given[y] if y in given and y not in later | divided else Output(y)
                for y in made
                if y in needed and (y in asked or y in self._sums)
            ),
            layers=tuple(kept),
            seqs={name: n for name in needed_inputs if (n := network.seq_of(name)) != network.seq},
            of_step=network.is_step,
            cache_rows=network.cache_rows or next(iter(network.state_rows), 0),
            stored_columns={
                name: x[: self._width(name, shard)] if name in states else x
                for name, x in network.stored_columns.items()
                if name in needed_inputs or name in made
            },
            smooth={name: x for name, x in network.smooth.items() if name in needed_inputs or name in made},
        )

    def _width(self, name: str, shard: int) -> int:
        """The columns of an input of a shard."""
        if name in self._columns:
            return _count(self._columns[name][shard])
        return self._network.inputs[name] if name in self._network.inputs else self._network.columns(name)

    def _part(self, layer: Layer, shard: int) -> Layer:
        """What a shard computes of a layer."""
        if layer.y in self._sums:
            assert isinstance(layer, Gemm)
            rows = self._columns[layer.x][shard]
            part = replace(layer, weight=layer.weight[rows])
            if shard == 0:
                return part
            zeros = np.zeros(layer.width, np.float32)
            return replace(part, bias=zeros, residual=None, residual_scale=None, residual_norm=None)
        if layer.y not in self._columns:
            return layer
        columns = self._columns[layer.y][shard]
        if isinstance(layer, AttentionLayer):
            return self._heads(layer, columns, shard)
        rows = self._columns[layer.x][shard] if layer.x in self._columns else slice(None)
        scale = None if layer.residual_scale is None else layer.residual_scale[columns]
        return replace(
            layer,
            weight=_taken(layer.weight[rows], columns, layer.gated),
            bias=_taken(layer.bias, columns, layer.gated),
            residual_scale=scale,
            heads=layer.heads * _count(columns) // layer.width,
        )

    def _heads(self, layer: AttentionLayer, columns: slice, shard: int) -> AttentionLayer:
        heads = slice(columns.start // layer.head_dim, columns.stop // layer.head_dim)
        keys = _count(self._columns[layer.k][shard]) // layer.head_dim
        bias = layer.bias if layer.bias is None or layer.bias.shape[1] == 1 else layer.bias[:, heads]
        return replace(
            layer,
            heads=_count(heads),
            kv_heads=keys if layer.kv_heads else 0,
            bias=bias,
        )


def _count(columns: slice) -> int:
    return int(columns.stop - columns.start)


def _taken(values: Array | Vector, columns: slice, gated: bool) -> Array:
    """Columns of a weight or a vector, of both halves if it is gated."""
    if not gated:
        return values[..., columns]
    half = values.shape[-1] // 2
    parts = (values[..., columns], values[..., half + columns.start : half + columns.stop])
    if any(values.strides):
        return np.concatenate(parts, axis=-1)
    return np.broadcast_to(values.flat[0], (*values.shape[:-1], 2 * _count(columns)))
