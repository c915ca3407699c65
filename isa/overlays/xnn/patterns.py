"""The patterns of the XNN datapath, derived from units, streams and routes: those that a changed description leaves.

MemA i feeds row i of the grid, MemB j column j. The MemCs of a row that can send to a further product unit form a row
of the attention pipeline, with that unit (contract section 2).
"""

from __future__ import annotations

from collections.abc import Sequence

from ....machine.description import StreamNetwork
from ...overlay import AttentionPipeline, Patterns, ProductGrid

PAIR = 2
"""Columns of the grid of Q K^T, whose MemCs share the rows of a softmax."""


def patterns(machine: StreamNetwork) -> Patterns | None:
    """The patterns that a machine of XNN's units has; None if it has not even a grid of one product unit."""
    units = machine.by_unit
    switches = [u for u in machine.units if u.routes is not None]
    if len(switches) != 2:
        return None
    left_switch, right_switch = (u.name for u in switches)
    activations = next((u.name for u in machine.units_with("load") if u.capability("store")), None)
    weights = next((u.name for u in machine.units_with("load_vector")), None)
    if activations is None or weights is None:
        return None
    left, right = (_sources(machine, switch) for switch in (left_switch, right_switch))
    lefts = [u for u in left if _feeds(machine, activations, u)]
    rights = [u for u in right if _feeds(machine, weights, u)]
    products = [[_common(left[a], right[b]) for b in rights] for a in lefts]
    rows = [i for i, row in enumerate(products) if row and all(row)]
    results = {u.name: _result(machine, u.name) for u in machine.units_with("matmul")}
    if not rows:
        return None
    grid = ProductGrid(
        tuple(lefts[i] for i in rows),
        tuple(rights),
        tuple(tuple(map(str, products[i])) for i in rows),
        tuple(tuple(results[str(p)] for p in products[i]) for i in rows),
        left_switch,
        right_switch,
        activations,
        weights,
    )
    if len(rights) != PAIR or not all(units[u].capability("softmax") for u in grid.results[0]):
        return Patterns(grid, None)
    values = next((u for u in right if u not in rights and _feeds(machine, activations, u)), None)
    targets = [_target(left, row) for row in grid.results]
    score_rows = [i for i, target in enumerate(targets) if target is not None and target in right.get(str(values), ())]
    seconds = tuple(str(targets[i]) for i in score_rows)
    stored = next((u for u in lefts if seconds and set(seconds) <= set(left[u])), None)
    if values is None or stored is None or score_rows != list(range(PAIR)):
        return Patterns(grid, None)
    pipeline = AttentionPipeline(
        grid.upper_left(len(score_rows), PAIR), seconds, tuple(results[u] for u in seconds), values, stored
    )
    return Patterns(grid, pipeline)


def _sources(machine: StreamNetwork, switch: str) -> dict[str, list[str]]:
    """What each source of a switch can be connected to, in the order of the units; only units that exist."""
    out: dict[str, list[str]] = {}
    routes = machine.by_unit[switch].routes or ()
    for unit in machine.units:
        sinks = [d for s, d in routes if s == unit.name and d in machine.by_unit]
        if sinks:
            out[unit.name] = sinks
    return out


def _feeds(machine: StreamNetwork, source: str, unit: str) -> bool:
    return any(port.receives and port.peer == source for port in machine.ports[unit])


def _common(a: Sequence[str], b: Sequence[str]) -> str | None:
    """The only unit in both."""
    both = [unit for unit in a if unit in b]
    return both[0] if len(both) == 1 else None


def _result(machine: StreamNetwork, product: str) -> str:
    """The memory that receives the results of a product unit."""
    return next(port.peer for port in machine.ports[product] if not port.receives)


def _target(left: dict[str, list[str]], row: Sequence[str]) -> str | None:
    """The product unit that all results of a row can be sent to."""
    targets = {unit for result in row for unit in left.get(result, ("",))}
    return targets.pop() or None if len(targets) == 1 else None
