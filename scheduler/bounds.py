"""Lower bounds of a network's time: what each resource of the machine needs at least, segment by segment.

A resource is an off-chip memory, or the units that can do an operation. Its time for a segment is the work of the
segment's layers over its rate, both without anything around it:

- products: multiply-adds over the best rate of all units that multiply; of a causal attention those not masked.
- activations, gates, rotations, norms, softmax: elements over the rates of all units that have the operation.
- a memory: the bytes that must move over its read and write rates. A segment reads each of its weights, tables and
  activations once, and writes its results once; what lies between its layers stays on chip. On an overlay of row
  lanes rows stay on chip: only inputs and outputs move, and weights come from both memories.

Not in it are padding, set-up, fills of pipelines, launch, instructions, what is loaded more than once because it does
not fit on chip, units that cannot reach each other, and waiting. So no order, no tiles and no mapping type can be
faster, on a machine with these rates. Other segments could: layers that share a segment read their operand once.

Everything follows from the description of the machine: rates and capabilities. An operation without a capability that
takes time has no bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from ..base.errors import ProgramError
from ..isa.overlay import Overlay
from ..isa.overlays.xnn8.formats import SHORT_WEIGHT_WORD, WEIGHT_WORD
from ..isa.overlays.xnn8.numbers import BLOCK
from ..isa.program import ProgramSegment
from ..machine.description import Where
from .graph import AttentionLayer, Gemm, Layer, LayerGraph
from .integer_weights import has_four_bits
from .lower import Banks

PRODUCTS = ("matmul", "matmul_half_depth", "matmul_half_columns")
"""Operations that multiply matrices; a unit is counted with the fastest that it has."""


@dataclass(frozen=True)
class _Bound:
    """Lower bounds. seconds: by resource."""

    seconds: dict[str, float]

    @property
    def binding(self) -> str:
        """The resource with the largest bound, "" if there is none."""
        return max(self.seconds, key=self.seconds.__getitem__, default="")

    @property
    def bound_s(self) -> float:
        """The largest bound in seconds: nothing that does this work is faster."""
        return max(self.seconds.values(), default=0.0)


@dataclass(frozen=True)
class SegmentBound(_Bound):
    """Lower bounds of the time of one segment. seconds: the bound of each resource, by the resource as text. name,
    kind, layers: as of `ProgramSegment`."""

    name: str
    kind: str
    layers: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The bounds as values for JSON: the fields, times in seconds, with `bound_s` and `binding`."""
        facts = {"name": self.name, "kind": self.kind, "layers": self.layers, "seconds": self.seconds}
        return facts | {"bound_s": self.bound_s, "binding": self.binding}


@dataclass(frozen=True)
class ProgramBound(_Bound):
    """Lower bounds of the times of all segments. seconds: their sum for each resource, by the resource as text:
    segments may overlap, but each resource does one thing at a time. rates: names of the machine's rates from which the
    bounds follow, in its order. calibrated: those of these rates that were fitted to published latencies."""

    segments: tuple[SegmentBound, ...]
    rates: tuple[str, ...]
    calibrated: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The bounds as values for JSON: the fields, times in seconds, with `bound_s` and `binding`, and the segments
        as such values."""
        facts = {"bound_s": self.bound_s, "binding": self.binding, "seconds": self.seconds, "rates": self.rates}
        return facts | {"calibrated": self.calibrated, "segments": [s.as_json() for s in self.segments]}


def _summed(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The sum of seconds by resource."""
    out: dict[str, float] = {}
    for resource, seconds in pairs:
        out[resource] = out.get(resource, 0.0) + seconds
    return out


def bounds(network: LayerGraph, overlay: Overlay, segments: Sequence[ProgramSegment] = ()) -> ProgramBound:
    """Bound the time of a network on a machine, in seconds.

    segments: of a program that was compiled from the network, which say what layers go together; without them each
    layer is a segment of its own. Raises `ProgramError` if a segment computes what the network does not,
    `UnsupportedError` for an overlay that networks cannot be lowered to.
    """
    machine = _Resources(network, overlay)
    layers = {layer.target: layer for layer in network.layers}
    if not segments:
        segments = [ProgramSegment(y, (layer.path, *layer.fused), "", (y,), {}) for y, layer in layers.items()]
    for segment in segments:
        for name in segment.outputs:
            if name not in layers:
                raise ProgramError(f"segment {segment.name} computes {name}, which the network does not have")
    found = tuple(
        SegmentBound(machine.seconds(_layers_of(s, overlay, layers)), s.name, s.kind, s.layers) for s in segments
    )
    rates = tuple(name for name in overlay.rates if name in machine.rates)
    whole = _summed(pair for segment in found for pair in segment.seconds.items())
    return ProgramBound(whole, found, rates, tuple(name for name in rates if overlay.rates[name].calibrated))


def _layers_of(segment: ProgramSegment, overlay: Overlay, layers: Mapping[str, Layer]) -> list[Layer]:
    """The layers of a segment. In lanes, most results of a segment are not stored: its paths name the layers."""
    if not (overlay.lanes or overlay.integers) or not segment.uops:
        return [layers[name] for name in segment.outputs]
    return [layer for layer in layers.values() if layer.path in segment.layers]


class _Resources:
    """What a machine needs for layers of a network. rates: names of those that were used."""

    def __init__(self, network: LayerGraph, overlay: Overlay) -> None:
        self.network, self.overlay, self.banks = network, overlay, Banks.of(overlay)
        self.rates: set[str] = set()
        self.columns = dict(network.inputs) | {layer.y: network.columns(layer.y) for layer in network.layers}
        self.normalised = normalised(network)
        self.lanes = overlay.lanes is not None or overlay.integers
        self.to_load = set(network.inputs)
        """In lanes, inputs that no segment so far has read: rows stay on chip."""
        self._of_rows = 65 / 128 if overlay.integers else 1.0
        """Those that an element of an activation takes."""

    def seconds(self, layers: Sequence[Layer]) -> dict[str, float]:
        """Seconds of each resource for the layers of one segment."""
        found = _summed((*self._computing(layers), *self._moving(layers)))
        return {resource: seconds for resource, seconds in found.items() if seconds}

    def _computing(self, layers: Iterable[Layer]) -> Iterator[tuple[str, float]]:
        for layer in layers:
            rows = sum(self.network.rows_of(layer.y))
            if isinstance(layer, AttentionLayer):
                scores = layer.heads * sum(self._scores(layer))
                yield self._units(PRODUCTS, 2 * scores * layer.head_dim)
                yield self._units(("softmax",), scores)
                if layer.softcap is not None:
                    yield self._units(("softcap",), scores)
                continue
            yield self._units(PRODUCTS, rows * layer.weight.size * self._times(layer))
            yield from (self._units((op,), rows * layer.width) for op in self._applied(layer))
            for name, norm in ((layer.x, layer.x_norm), (layer.residual, layer.residual_norm)):
                if norm is not None:
                    yield self._units(("normalise",), rows * self.columns[str(name)])

    def _applied(self, layer: Gemm) -> Iterator[str]:
        """The operations that a memory of results applies to all columns of a result."""
        if layer.activation is not None:
            yield layer.activation.value
        elif layer.gated:
            yield "gate"
        if layer.norm is not None:
            yield "head_norm" if layer.in_heads else "rmsnorm" if layer.norm.rms else "layernorm"
        elif layer.y in self.normalised and layer.is_plain_store:
            yield "statistics"
        if layer.rotary is not None:
            yield "rotate"

    def _units(self, ops: Sequence[str], elements: int) -> tuple[str, float]:
        """Return the units that can do one of `ops`, as text, and their seconds for `elements` elements of results."""
        speed, used, where = 0.0, [], Where.COMPUTE
        for unit in self.overlay.units:
            speeds = [
                (c.elements / self.overlay.seconds[c.rate] if self.overlay.seconds[c.rate] else inf, c)
                for c in unit.capabilities
                if c.op in ops and c.rate is not None
            ]
            if speeds:
                best, capability = max(speeds, key=lambda pair: pair[0])
                speed, where = speed + best, capability.where
                used.append(unit.kind)
                self.rates |= {str(capability.rate)} if elements else set()
        if not speed or not elements:
            return "", 0.0
        label = f"{len(used)} {'/'.join(dict.fromkeys(used))}"
        return label if where is Where.COMPUTE else f"{label} {where.value}", elements / speed

    def _moving(self, layers: Sequence[Layer]) -> Iterator[tuple[str, float]]:
        read = dict.fromkeys(name for layer in layers for name in _operands(layer))
        tables: set[str] = set()
        stored = [layer.y for layer in layers]
        if self.lanes:
            read = {name: None for name in read if name in self.to_load}
            self.to_load -= set(read)
            outputs = {output.name for output in self.network.outputs}
            stored = [name for name in stored if name in outputs]
        yield self._memory(self.banks.activations, "load", self._elements(read))
        yield self._memory(self.banks.activations, "store", self._elements(stored))
        for layer in layers:
            if isinstance(layer, AttentionLayer):
                yield self._memory(self.banks.activations, "load", self._added(layer))
                continue
            if layer.rotary is not None and layer.rotary.key not in tables:
                tables.add(layer.rotary.key)
                yield self._memory(self.banks.activations, "load", layer.rotary.own.size + layer.rotary.partner.size)
            vectors = [layer.bias] * layer.multiplies + [layer.residual_scale] * (layer.residual_scale is not None)
            weights = layer.weight.size * self._words_of(layer) * self._times(layer)
            weights += sum(v.size for v in vectors if v is not None)
            if self.lanes:  # weights come from both memories
                yield self._both(weights)
            else:
                yield self._memory(self.banks.weights, "load", weights)

    def _times(self, layer: Gemm) -> int:
        """How often rows and weights of a layer pass the tiles: rows of 16 bits, in two parts, twice."""
        return 1 + (layer.y in self.network.rows16)

    def _words_of(self, layer: Gemm) -> float:
        """Words of 32 bits that a weight of a layer takes. Of integers, a column's scale and bias take one together."""
        if not self.overlay.integers:
            return 1.0
        word = SHORT_WEIGHT_WORD if layer.multiplies and has_four_bits(layer.weight) else WEIGHT_WORD
        return word / BLOCK**2

    def _both(self, elements: float) -> tuple[str, float]:
        """The seconds of both memories together to load `elements` elements."""
        found = [self._memory(bank, "load", elements) for bank in (self.banks.weights, self.banks.activations)]
        speed = sum(1 / seconds for _, seconds in found if seconds)
        return (" + ".join(bank for bank, _ in found), 1 / speed) if speed else ("", 0.0)

    def _added(self, layer: AttentionLayer) -> int:
        """Elements of the bias or the mask on the scores that sequences need."""
        scores = self._scores(layer)
        if layer.mask is not None:
            return layer.mask_heads * sum(scores)
        if layer.bias is None:
            return 0
        batch, heads, *_ = layer.bias.shape
        return int(heads * (sum(scores) if batch > 1 else max(scores)))

    def _scores(self, layer: AttentionLayer) -> list[int]:
        """Scores that neither the causal order nor a window masks, of one head of each sequence."""
        out = []
        for rows, keys in zip(self.network.rows_of(layer.q), self.network.rows_of(layer.k), strict=True):
            row = np.arange(rows)
            first, end = np.zeros(rows, np.int64), np.full(rows, keys)
            if layer.window is not None:
                first, end = np.maximum(first, row - layer.window + 1), np.minimum(end, row + layer.window)
            if layer.causal:
                end = np.minimum(end, row + 1)
            out.append(int(np.maximum(end - first, 0).sum()))
        return out

    def _elements(self, names: Iterable[str]) -> float:
        """Elements of activations, without padding, in words of 32 bits."""
        return self._of_rows * sum(sum(self.network.rows_of(name)) * self.columns[name] for name in names)

    def _memory(self, bank: str, way: str, elements: float) -> tuple[str, float]:
        """Return the bank, and the seconds of all its units together to load or store `elements` elements. way: the
        capability `load` or `store`."""
        able = [c for u in self.overlay.units if u.bank == bank and (c := u.capability(way)) and c.rate is not None]
        speeds = [c.elements / seconds if (seconds := self.overlay.seconds[str(c.rate)]) else inf for c in able]
        if not elements or not speeds:
            return "", 0.0
        self.rates |= {str(c.rate) for c in able}
        return bank, elements / sum(speeds)


def normalised(network: LayerGraph) -> set[str]:
    """The names of the activations that are normalised as they are loaded."""
    out: set[str | None] = set()
    for layer in network.layers:
        if isinstance(layer, Gemm):
            out |= {layer.x} if layer.x_norm is not None else set()
            out |= {layer.residual} if layer.residual_norm is not None else set()
    return {name for name in out if name is not None}


def _operands(layer: Gemm | AttentionLayer) -> tuple[str, ...]:
    """The activations that a layer reads, each element at least once."""
    if isinstance(layer, AttentionLayer):
        return layer.q, layer.k, layer.v
    return (layer.x,) if layer.residual is None else (layer.x, layer.residual)
