"""A network cut into stages: consecutive layers, each for a board of its own.

A stage is a network itself. It takes activations of the stages before, and inputs of the whole network; what later
stages read of its results are outputs of it. All constants are folded before the cut, so that each layer computes the
same numbers in a stage as in the whole network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ..base.errors import ScheduleError
from ..isa.layout import padded
from .graph import Gemm, Layer, LayerGraph, Output, unique_name
from .memory import heads_in

ALIGN = 1024
"""A product is divided at multiples of so many columns, which are whole tiles of each overlay."""


def chained(network: LayerGraph) -> LayerGraph:
    """Return the same network, in which a layer that only outputs need, such as new rows of a cache, directly follows
    the layer that it reads, so that both are in one stage."""
    read = {name for layer in network.layers for name in layer.operands}
    leaves = [layer for layer in network.layers if layer.y not in read]
    behind: dict[str, list[Layer]] = {}
    order = {layer.y: i for i, layer in enumerate(network.layers)}
    first: list[Layer] = []
    for leaf in leaves:
        made = [name for name in leaf.operands if name in order]
        (behind.setdefault(max(made, key=order.__getitem__), []) if made else first).append(leaf)
    ends = {leaf.y for leaf in leaves}
    others = (layer for layer in network.layers if layer.y not in ends)
    return replace(network, layers=(*first, *(x for layer in others for x in (layer, *behind.get(layer.y, ())))))


def divided(network: LayerGraph) -> tuple[LayerGraph, dict[str, tuple[str, ...]]]:
    """Divide the last product of a folded network, such as that with a vocabulary, into several products with some of
    its columns each, none larger than any other product, so that the network can be cut between them. Each column is
    computed as before.

    Returns the network, and for an output that became several outputs, by its name, their names; the same network and
    an empty mapping if the last product cannot or need not be divided.
    """
    products = [x for x in network.layers if isinstance(x, Gemm) and x.multiplies]
    last = network.layers[-1]
    most = max((x.weight.size for x in products if x is not last), default=0)
    given = [out for out in network.outputs if out.name == last.y]
    bare = isinstance(last, Gemm) and last.is_open and last.residual is None and len(given) == 1
    if not isinstance(last, Gemm) or not bare or not 0 < most < last.weight.size:
        return network, {}
    width = padded(-(-last.width // -(-last.weight.size // most)), ALIGN)
    taken = {*network.inputs, *(layer.y for layer in network.layers)}
    layers: list[Layer] = []
    outputs: list[Output] = []
    for at in range(0, last.width, width):
        columns = slice(at, at + width)
        name = unique_name(f"{last.y}_{at // width}", taken)
        layers.append(replace(last, y=name, weight=last.weight[:, columns], bias=last.bias[columns]))
        scale, shift = (None if x is None else x[columns] for x in (given[0].scale, given[0].shift))
        outputs.append(Output(name, scale, shift))
    others = (out for out in network.outputs if out.name != last.y)
    made = replace(network, layers=(*network.layers[:-1], *layers), outputs=(*others, *outputs))
    return made, {last.y: tuple(out.name for out in outputs)}


def crossing(network: LayerGraph, place: int) -> list[str]:
    """Return the activations that layers before `place` compute and later ones read, by name, in order. place: a
    number of layers, from 0."""
    later = {name for layer in network.layers[place:] for name in layer.operands}
    return [layer.y for layer in network.layers[:place] if layer.y in later]


def carried_bytes(network: LayerGraph, place: int) -> int:
    """Return how many bytes of a call go over the link at a place: activations and inputs that later layers read, and
    outputs of earlier layers, which the host needs behind the last stage. place: a number of layers, from 0."""
    later = {name for layer in network.layers[place:] for name in layer.operands}
    made = {layer.y: layer.width for layer in network.layers[:place]}
    inputs = {name: n for name, n in network.inputs.items() if name in later and name not in network.states}
    needed = later | {out.name for out in network.outputs}
    columns = inputs | {name: n for name, n in made.items() if name in needed}
    return sum(4 * sum(network.rows_of(name)) * n for name, n in columns.items())


def cut_places(network: LayerGraph, within: bool = False) -> tuple[int, ...]:
    """Return the places where a folded network can be cut, ascending. A place is the number of layers in front of the
    cut, from 1 to the number of layers less 1.

    At a place some columns of activations cross: earlier layers compute them, and later ones read them. A place counts
    if no fewer columns cross at the places beside it; of these, such as would cut an attention, and such as nothing
    crosses, are left out. So places lie between the halves of a transformer layer. Where nothing crosses is no place.
    within: places between any two products count too, such as within a feed-forward, where several times as many
    columns cross. No place cuts an attention from its queries, keys and values, or a cache from its readers, because
    these lie in layouts of their own."""
    whole, states = set[str](), set(network.states.values())
    for layer in network.layers:
        whole.update(name for name, _ in heads_in(layer))
    columns: list[int | None] = []
    for place in range(len(network.layers) + 1):
        names = crossing(network, place)
        is_inside = any(name in whole or name in states for name in names)
        columns.append(None if is_inside else sum(network.columns(name) for name in names))

    def counts(place: int) -> bool:
        here = columns[place]
        beside = (columns[place - 1], columns[place + 1])
        is_narrow = here is not None and all(x is None or x == 0 or here <= x for x in beside)
        is_between = within and all(isinstance(x, Gemm) and x.multiplies for x in network.layers[place - 1 : place + 1])
        return bool(here) and (is_narrow or is_between)

    return tuple(place for place in range(1, len(network.layers)) if counts(place))


def stages(network: LayerGraph, cuts: Sequence[int]) -> tuple[LayerGraph, ...]:
    """Return the stages of a folded network. cuts: places as `cut_places` returns them, also `within`, ascending.

    An output of the network that later stages read has no scale and shift in its stage (`raw_outputs`). Raises
    `ScheduleError` for other places.
    """
    known = cut_places(network, within=True)
    ascending = list(cuts) == sorted(set(cuts))
    wrong = next((place for place in cuts if place not in known), None)
    if wrong is not None or not ascending:
        places = ", ".join(map(str, known)) or "none"
        raise ScheduleError(f"cuts {list(cuts)}: not places where this network can be cut, ascending ({places})")
    return tuple(_stage(network, first, end) for first, end in pairwise((0, *cuts, len(network.layers))))


def cut_names(network: LayerGraph) -> dict[str, int]:
    """Return where a network can be cut: by the name of the activation that the last layer before a place computes, the
    place, a number of layers; in order."""
    return {network.layers[place - 1].y: place for place in cut_places(network, within=True)}


def cuts_at(network: LayerGraph, names: Sequence[str]) -> tuple[int, ...]:
    """Return the places behind the layers that compute given activations, so that networks of one model are cut alike.
    names: of the activations, in order. A network that ends before some of them, such as a prompt's, which has no
    product with the vocabulary, has fewer places. Raises `ScheduleError` if the network computes an activation behind
    whose layer it cannot be cut, or in another order."""
    known = cut_names(network)
    places = [known[name] for name in names if name in known]
    beyond = list(names[len(places) :])
    if beyond and beyond[0] == network.layers[-1].y:
        beyond = beyond[1:]
    made = {layer.y for layer in network.layers}
    if list(names[: len(places)]) != [name for name in names if name in known] or made & set(beyond):
        raise ScheduleError(f"the network cannot be cut behind {', '.join(names)}, where others of its model are")
    return tuple(places)


def places_within(
    network: LayerGraph, places: Sequence[int], other: LayerGraph, others: Sequence[int]
) -> tuple[int, ...]:
    """Return those of `places` at which another network of the same model can be cut too, or behind which it ends.
    places, others: where the network and the other network can be cut, as `cut_places` returns them."""
    known, made = {other.layers[place - 1].y for place in others}, [layer.y for layer in other.layers]
    names = {place: network.layers[place - 1].y for place in places}
    end = max((place for place, y in names.items() if y in made), default=0)
    return tuple(place for place, y in names.items() if y in known or (place >= end and y not in made[:-1]))


def raw_outputs(network: LayerGraph, cuts: Sequence[int]) -> tuple[Output, ...]:
    """Return the outputs of a network whose scale and shift no stage applies, because later stages read the activation
    itself. network, cuts: as for `stages`."""
    read = {name for place in cuts for name in crossing(network, place)}
    return tuple(out for out in network.outputs if out.name in read and not (out.scale is None and out.shift is None))


def _stage(network: LayerGraph, first: int, end: int) -> LayerGraph:
    """The layers from `first` up to `end`, exclusive, as a network."""
    layers = network.layers[first:end]
    made = {layer.y for layer in layers}
    inputs = {
        name: network.inputs[name] if name in network.inputs else network.columns(name)
        for name in dict.fromkeys(name for layer in layers for name in layer.operands if name not in made)
    }
    leaving = [name for name in crossing(network, end) if name in made]
    given = {out.name: out for out in network.outputs if out.name in made}
    outputs = (*(Output(name) for name in leaving), *(out for name, out in given.items() if name not in leaving))
    seqs = {name: n for name in inputs if (n := network.seq_of(name)) != network.seq}
    return replace(
        network,
        inputs=inputs,
        outputs=outputs,
        layers=layers,
        seqs=seqs,
        of_step=network.is_step,
        cache_rows=network.cache_rows or next(iter(network.state_rows), 0),
        stored_columns={name: x for name, x in network.stored_columns.items() if name in inputs or name in made},
        smooth={name: x for name, x in network.smooth.items() if name in inputs or name in made},
    )
