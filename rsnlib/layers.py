"""The layers that lowering rules make, until they are a graph.

They are those of `scheduler.graph`, before folding: the result of each equals PyTorch's. A rule does not know which
results are needed in the end. So fusing an operator into a product makes a new layer beside the old one, and results
have provisional names. `LayerBuilder.graph` takes what is needed, and names results by their modules.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ..scheduler.graph import Array, AttentionLayer, Gemm, Layer, LayerGraph, Output, Vector, behind, unique_name
from .view import View


@dataclass(frozen=True, eq=False)
class HostInput:
    """An activation that the host provides. y: its provisional name. name: of the tensor. width: its number of columns.
    view: the host's tensor is this view of it."""

    y: str
    name: str
    width: int
    view: View


Base = HostInput | Layer
"""What an activation comes from."""


@dataclass(frozen=True)
class _Fusion:
    """How a layer was made. before: the layer without the operator that was fused last, None for none. path: the module
    path of the activation or norm that was fused last, else ""."""

    before: str | None = None
    path: str = ""


class LayerBuilder:
    """Makes layers, and remembers which were made by fusing an operator into another layer."""

    def __init__(self) -> None:
        self._layers: dict[str, Layer] = {}
        self._sources: dict[str, HostInput] = {}
        self._fusions: dict[str, _Fusion] = {}
        self._rows: dict[str, int] = {}

    def source(self, name: str, width: int, view: View) -> HostInput:
        """Make an activation that the host provides. name, width, view: as in `HostInput`."""
        made = HostInput(self._fresh(), name, width, view)
        self._sources[made.y] = made
        return made

    def product(self, path: str, x: Base, weight: Array, bias: Vector) -> Gemm:
        """Make the layer x @ weight + bias. path: the module path. x: (rows, K). weight: (K, N). bias: (N,)."""
        return self._added(Gemm(path, x.y, self._fresh(), weight, bias), _Fusion())

    def pass_over(self, path: str, x: Base, **fields: Any) -> Gemm:
        """Make a layer without a product, which only applies an activation, a norm, or scale and shift to x. path: the
        module path. fields: of the `Gemm`, by name."""
        return self._added(replace(_no_product(path, x.y, self._fresh(), x.width), **fields), _Fusion())

    def total(self, path: str, x: Base, residual: Base) -> Gemm:
        """Make a layer without a product that adds two different activations of the same columns. path: the module
        path."""
        assert x is not residual, "without a product, an activation as its own residual is a pass, which adds nothing"
        return self._added(replace(_no_product(path, x.y, self._fresh(), x.width), residual=residual.y), _Fusion())

    def copied(self, path: str, x: Base, times: int = 1) -> Gemm:
        """Make the product of x and the identity matrix, which is exact: for what is fused into products alone. path:
        the module path. times: how often the matrix stands side by side."""
        eye = np.tile(np.eye(x.width, dtype=np.float32), times)
        return self.product(path, x, eye, np.zeros(times * x.width))

    def appended(self, path: str, state: HostInput, x: Base) -> Gemm:
        """Make an activation that keeps its contents between runs, with rows of it replaced by those of x. path: the
        module path. state: the activation as the host has it, with the columns of x."""
        eye, zeros = np.eye(x.width, dtype=np.float32), np.zeros(x.width)
        return self._added(Gemm(path, x.y, self._fresh(), eye, zeros, into=state.y, copies=True), _Fusion())

    def attention(
        self, path: str, q: Base, k: Base, v: Base, heads: int, head_dim: int, **fields: Any
    ) -> AttentionLayer:
        """Make the layer softmax(q @ k^T) @ v for each of `heads` heads of `head_dim` columns. path: the module path.
        q, k, v: activations with the heads side by side in their columns. fields: further fields of the
        `AttentionLayer`, by name."""
        layer = AttentionLayer(path, q.y, k.y, v.y, self._fresh(), heads, head_dim, **fields)
        self._layers[layer.y] = layer
        return layer

    def fuse(self, before: Gemm, path: str | None = None, /, **fields: Any) -> Gemm:
        """Make the layer `before` with one more operator fused into it. path: for an activation or a norm, its module
        path: if the bare result of `before` is needed too, the operator becomes a pass with this path. None for other
        operators. fields: those of the `Gemm` that change, by name."""
        fusion = _Fusion(before.y, self._fusions[before.y].path if path is None else path)
        # A function that is called in a module around the product has no path of its own
        is_module = bool(path) and not f"{before.path}.".startswith(f"{path}.")
        paths = (*before.fused, str(path)) if is_module else before.fused
        return self._added(replace(before, y=self._fresh(), fused=paths, **fields), fusion)

    def variant(self, layer: Gemm, **fields: Any) -> Gemm:
        """Make another product of the same operand: if the result of `layer` is needed too, both are computed. fields:
        of the `Gemm` that change, by name."""
        return self._added(replace(layer, y=self._fresh(), **fields), replace(self._fusions[layer.y], before=None))

    def rows(self, made: Base) -> int:
        """Return the number of rows of a result, of all sequences together; 0 for a tensor of the host that is no whole
        rows."""
        behind: list[str] = []
        while not isinstance(made, HostInput) and made.y not in self._rows:
            behind.append(made.y)
            made = self.of(made.q if isinstance(made, AttentionLayer) else made.into or made.x)
        if isinstance(made, HostInput):
            elements = prod(made.view.shape)
            rows = elements // made.width if made.width and elements % made.width == 0 else 0
        else:
            rows = self._rows[made.y]
        self._rows |= dict.fromkeys(behind, rows)
        return rows

    def __contains__(self, made: Base) -> bool:
        """Whether this builder made it."""
        return self._layers.get(made.y, self._sources.get(made.y)) is made

    def of(self, y: str) -> Base:
        """Return the layer, or the source, whose result has the provisional name y. Raises `KeyError` for an unknown
        name."""
        return self._layers[y] if y in self._layers else self._sources[y]

    def before(self, layer: Gemm) -> Gemm | None:
        """Return the layer without the operator that was fused last; None for one into which none was fused."""
        y = self._fusions[layer.y].before
        found = None if y is None else self._layers[y]
        assert found is None or isinstance(found, Gemm)
        return found

    def behind(self, outputs: Iterable[Base]) -> dict[str, None]:
        """Return the results `outputs` and all that they are computed from, as an ordered set of provisional names,
        operands first."""
        return behind((x.y for x in outputs), self._layers)

    def graph(self, outputs: Sequence[Layer], batch: int, seq: int) -> tuple[LayerGraph, dict[str, str]]:
        """Return the graph of the layers that `outputs` need, and the names of results in it, by their provisional
        names.

        batch, seq: sequences, and rows of each in all but some sources. An operator that was fused into a product
        becomes a pass if the product's bare result is needed too, or the product is computed twice.
        """
        needed = self.behind(outputs)
        layers = {y: self._separated(self._layers[y], needed) for y in needed if y in self._layers}
        order = behind((x.y for x in outputs), layers)
        sources = [self._sources[y] for y in order if y not in layers]
        made = LayerGraph(
            batch,
            seq,
            inputs={x.y: x.width for x in sources},
            outputs=tuple(Output(x.y) for x in outputs),
            layers=tuple(layers[y] for y in order if y in layers),
            seqs={x.y: rows for x in sources if (rows := self.rows(x) // batch) != seq},
        )
        taken: set[str] = set()
        names = {x.y: unique_name(identifier(x.name, "linear"), taken) for x in sources}  # arguments keep their names
        names |= {x.y: unique_name(identifier(x.path, _kind(x)), taken) for x in made.layers}
        return made.renamed(names), names

    def _fresh(self) -> str:
        return f"%{len(self._layers) + len(self._sources)}"

    def _added(self, layer: Gemm, fusion: _Fusion) -> Gemm:
        self._layers[layer.y], self._fusions[layer.y] = layer, fusion
        return layer

    def _separated(self, layer: Layer, needed: Container[str]) -> Layer:
        """The layer, or what was fused into it last as a pass, if the result before that is needed too. The layer also
        where its sum differs from that result, by a residual or a factor, and heads, which no pass takes: then both are
        computed from their operand."""
        bare = None if isinstance(layer, AttentionLayer) else self.before(layer)
        while bare is not None and bare.y not in needed:
            bare = self.before(bare)
        if bare is None or isinstance(layer, AttentionLayer):
            return layer
        numbers = layer.weight is not bare.weight or layer.bias is not bare.bias or layer.factor != bare.factor
        has_zeros = bare.scale is not None and not np.all(bare.scale)
        if numbers or layer.in_heads or has_zeros or (layer.x, layer.residual) != (bare.x, bare.residual):
            return layer
        norm = layer.norm if bare.norm is None else None
        path = self._fusions[layer.y].path
        if path in ("", layer.path) and layer.path:
            path = f"{layer.path}.{'norm' if norm is not None else 'activation'}"
        scale, shift = layer.scale, layer.shift
        if bare.scale is not None and norm is None:  # what it has more than the other
            scale = (1.0 if scale is None else scale) / bare.scale
            shift = (0.0 if shift is None else shift) - (0.0 if bare.shift is None else bare.shift) * scale
        return replace(
            _no_product(path, bare.y, layer.y, layer.width),
            activation=layer.activation if bare.activation is None else None,
            norm=norm,
            scale=scale,
            shift=shift,
        )


def _no_product(path: str, x: str, y: str, width: int) -> Gemm:
    return Gemm(path, x, y, np.zeros((0, width), np.float32), np.zeros(width, np.float32), residual=x)


def _kind(layer: Layer) -> str:
    return "attention" if isinstance(layer, AttentionLayer) else "linear" if layer.multiplies else "pass"


def identifier(path: str, kind: str) -> str:
    """Return a module path as an identifier, with _ for other signs. kind: what the identifier begins with if the path
    is empty or begins with a digit, such as "linear"."""
    stem = re.sub(r"\W", "_", path)
    return f"{kind}_{stem}".removesuffix("_") if not stem or stem[0].isdigit() else stem
