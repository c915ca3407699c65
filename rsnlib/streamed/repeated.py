"""Layers of a model that are the same but for their constants: a program of one, which goes through all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch.fx import Node

from .operators import FromHost, Held, OperatorGraph, Positions, reachable, vectors_of

POSITIONS = "positions"
"""What the positions of an operator that replaces rows of a cache are called beside its vectors."""

HeldByLayers = tuple[Held, ...]
"""What a tensor with an axis for the layers in front holds, for each layer."""


@dataclass(frozen=True, eq=False)
class HeldOneBehindOther:
    """What a tensor holds that has rows for each layer and for what is behind the layers. parts: the matrix of each
    layer, then that of what is behind them; the rows of each follow those of the one before."""

    parts: HeldByLayers


@dataclass(frozen=True, eq=False)
class ProgramLayers:
    """The layers that a program goes through.

    count: of the layers. carried: name of the tensor off the chip that is the input of the first layer. result: name of
    the operator whose result is the input of the next layer; for the last layer it is the result of all layers. held:
    what differs between layers: for each key one value for each layer. The key of a tensor off the chip is its name and
    ""; the key of a vector or of positions of a kernel is the names of the kernel and of the vector. behind: names of
    the operators that compute behind the layers, once.
    """

    count: int
    carried: str
    result: str
    held: Mapping[tuple[str, str], HeldByLayers]
    behind: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class RepeatedLayers:
    """The other layers of a model, of which a block has the operators of the first, and perhaps of what comes behind
    all layers.

    count, carried, result: as in `ProgramLayers`. others: the operators of the other layers, in the same order as those
    of the first. results: for each node of the captured graph that is a result of a layer, such as a cache, the number
    of the layer. behind: nodes that the host computes behind the layers, in order.
    """

    count: int
    carried: str
    result: str
    others: Sequence[OperatorGraph]
    results: Mapping[Node, int]
    behind: Sequence[Node] = ()

    def layers(self, count: int, graphs: Sequence[OperatorGraph]) -> ProgramLayers:
        """Return the first `count` layers as a program has them. graphs: the operators of each layer, all changed in
        the same way, such as by `covering`; the first one also has the operators behind the layers."""
        first = of_layer(graphs[0], self.result)
        behind = frozenset(x.name for x in graphs[0].operators) - {x.name for x in first.operators}
        held = held_by_layers([first, *graphs[1:]], self.carried)
        return ProgramLayers(count, self.carried, self.result, held, behind)

    @property
    def positions(self) -> tuple[Positions, ...]:
        """The positions in the caches of the other layers."""
        found = (x.positions for graph in self.others for x in graph.operators)
        return tuple(x for x in found if x is not None)


def of_layer(graph: OperatorGraph, result: str) -> OperatorGraph:
    """Return the operators of a layer, without those behind it. graph: of the first layer and of what is behind the
    layers. result: name of the layer's result."""
    roots = *(x for x in graph.results if x.op == "replace"), next(x for x in graph.operators if x.name == result)
    kept = frozenset(reachable(roots))
    return OperatorGraph(tuple(x for x in graph.operators if x in kept), roots)


def held_by_layers(graphs: Sequence[OperatorGraph], carried: str) -> dict[tuple[str, str], HeldByLayers]:
    """Return what differs between layers, as `ProgramLayers.held`. graphs: the operators of each layer. carried: name
    of the tensor off the chip that is the input of the first layer; it is left out."""
    held: dict[tuple[str, str], HeldByLayers] = {}
    for of_layers in zip(*(graph.operators for graph in graphs), strict=True):
        first = of_layers[0]
        if isinstance(first.data, FromHost):
            if first.name != carried and any(x.data != first.data for x in of_layers):
                held[first.name, ""] = tuple(x.data for x in of_layers)
        elif first.is_memory:
            held[first.name, ""] = tuple(x.data for x in of_layers)
        vectors = [vectors_of(x) for x in of_layers]
        held |= {(first.name, name): tuple(of[name] for of in vectors) for name in vectors[0]}
        positions = tuple(x.positions for x in of_layers)
        if len({x.node for x in positions if x}) > 1:
            held[first.name, POSITIONS] = positions
    return held
