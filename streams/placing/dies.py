"""Which die of a device each kernel goes to: an integer linear program (StreamTensor, MICRO'25, 5.3).

Each kernel is on one die, no die holds more than it has of any resource. The objective is the bits a cycle that cross
from die to die, each weighted by the number of borders it crosses, plus `balance` times the largest share of a resource
that any die uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from ...base.errors import ProgramError, ResourceError
from ...base.quiet import quiet_stdout

NODES = 2000
"""Limit of the search for one placement, in nodes of its tree: the result depends on no clock. A layer of GPT-2 takes
about 1,000, in some seconds."""


class DieError(ResourceError):
    """Kernels do not fit on the dies of a device. The message has the numbers."""


@dataclass(frozen=True)
class Wire:
    """A stream between two kernels. source, target: their names. bits: that it moves in parallel."""

    source: str
    target: str
    bits: int


@dataclass(frozen=True)
class DiePlacement:
    """Which kernel is on which die. die: the number of the die of each kernel, from 0. cut: the sum of the bits of
    streams over the borders between dies that they cross. loads: what kernels use of each die, by resource. objective:
    the cut, and what full dies cost (`place_on_dies`). bound: an objective below which there is no placement. proved:
    whether no placement has a smaller objective."""

    die: Mapping[str, int]
    cut: int
    loads: tuple[Mapping[str, int], ...]
    objective: float
    bound: float
    proved: bool


def place_on_dies(
    areas: Mapping[str, Mapping[str, int]],
    wires: Sequence[Wire],
    dies: Sequence[Mapping[str, int]],
    balance: float = 0.0,
    fill: float = 1.0,
) -> DiePlacement:
    """Return the placement with the least objective that is found in `NODES` nodes of the search (HiGHS; StreamTensor,
    section 5.3). The objective is the number of bits that cross borders between dies, and `balance` for the die of
    which most is used.

    areas: what each kernel needs, by resource. wires: the streams between kernels. dies: what each die has, by
    resource, in the order in which they are connected: a stream from die 0 to die 2 crosses two borders. balance: bits
    that a fully used die costs. fill: the share of a die that kernels may use; 1 for all. Raises `DieError` if a kernel
    fits on no die, all together need more than there is, or no placement exists; `ProgramError` for wires to unknown
    kernels, negative bits and areas, and a search that ends without any placement."""
    _check(areas, wires, dies, fill)
    if not areas:
        return DiePlacement({}, 0, tuple(dict.fromkeys(die, 0) for die in dies), 0.0, 0.0, True)
    return _solve(areas, wires, dies, balance, fill)


def _check(
    areas: Mapping[str, Mapping[str, int]],
    wires: Sequence[Wire],
    dies: Sequence[Mapping[str, int]],
    fill: float,
) -> None:
    for wire in wires:
        for name in (wire.source, wire.target):
            if name not in areas:
                raise ProgramError(f"stream {wire.source} -> {wire.target}: there is no kernel {name}")
        if wire.bits < 0:
            raise ProgramError(f"stream {wire.source} -> {wire.target} has {wire.bits} bits; the least is 0")
    for name, area in areas.items():
        for resource, amount in area.items():
            if amount < 0:
                raise ProgramError(f"{name} needs {amount:,} {resource}; the least is 0")
    if areas and not dies:
        raise DieError(f"{len(areas)} kernels, and no die to put them on")
    needed = sorted({resource for area in areas.values() for resource in area})
    for resource in needed:
        most = max((die.get(resource, 0) for die in dies), default=0)
        room = sum(int(fill * die.get(resource, 0)) for die in dies)
        for name, area in areas.items():
            if area.get(resource, 0) > int(fill * most):
                raise DieError(
                    f"{name} needs {area[resource]:,} {resource}, the largest die has room for {int(fill * most):,}; "
                    f"choose less unrolling or smaller tiles for {name}, or a larger device"
                )
        total = sum(area.get(resource, 0) for area in areas.values())
        if total > room:
            largest = max(areas, key=lambda name: areas[name].get(resource, 0))
            raise DieError(
                f"the kernels need {total:,} {resource}, all {len(dies)} dies together have room for {room:,}; the "
                f"largest is {largest} with {areas[largest].get(resource, 0):,}; choose less unrolling, or cut "
                f"the graph"
            )


def _solve(
    areas: Mapping[str, Mapping[str, int]],
    wires: Sequence[Wire],
    dies: Sequence[Mapping[str, int]],
    balance: float,
    fill: float,
) -> DiePlacement:
    """Unknowns: x[kernel, die], the crossing of each wire at each border, the largest share."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import lil_matrix

    names = list(areas)
    count, links = len(dies), len(wires)
    borders = count - 1
    crossings = len(names) * count
    share = crossings + links * borders
    resources = sorted({resource for die in dies for resource in die})
    rows: list[tuple[dict[int, float], float, float]] = []
    for k in range(len(names)):
        rows.append(({k * count + d: 1.0 for d in range(count)}, 1.0, 1.0))
    for d, die in enumerate(dies):
        for resource in resources:
            room = die.get(resource, 0)
            used = {k * count + d: float(areas[name].get(resource, 0)) for k, name in enumerate(names)}
            rows.append((used, -inf, float(int(fill * room))))
            if room:
                rows.append(({**used, share: -float(room)}, -inf, 0.0))
    position = {name: k for k, name in enumerate(names)}
    for w, wire in enumerate(wires):
        a, b = position[wire.source], position[wire.target]
        for border in range(borders):
            # The side of a border that a kernel is on: the sum of its x on the dies before it.
            side: dict[int, float] = {}
            for d in range(border + 1):
                side[a * count + d] = side.get(a * count + d, 0.0) + 1.0
                side[b * count + d] = side.get(b * count + d, 0.0) - 1.0
            at = crossings + w * borders + border
            rows.append(({**side, at: -1.0}, -inf, 0.0))
            rows.append(({**{k: -v for k, v in side.items()}, at: -1.0}, -inf, 0.0))
    matrix = lil_matrix((len(rows), share + 1))
    for r, (row, _, _) in enumerate(rows):
        for column, value in row.items():
            matrix[r, column] = value
    cost = np.zeros(share + 1)
    for w, wire in enumerate(wires):
        cost[crossings + w * borders : crossings + (w + 1) * borders] = wire.bits
    cost[share] = balance
    # Sides differ by 0 or 1, so crossings are whole numbers without being asked to be.
    whole = np.concatenate([np.ones(crossings), np.zeros(share + 1 - crossings)])
    limits = LinearConstraint(matrix.tocsr(), [low for _, low, _ in rows], [high for _, _, high in rows])
    # HiGHS prints a line of its own when it polishes a solution, whatever its options.
    with quiet_stdout():
        found = milp(
            cost,
            integrality=whole,
            bounds=Bounds(0, np.concatenate([np.ones(share), [np.inf]])),
            constraints=limits,
            options={"node_limit": NODES, "mip_rel_gap": 0.0},
        )
    if found.status == 2:
        totals = {r: sum(area.get(r, 0) for area in areas.values()) for r in resources}
        rooms = {r: [int(fill * die.get(r, 0)) for die in dies] for r in resources}
        text = "; ".join(f"{r}: {totals[r]:,} needed, dies have room for {rooms[r]}" for r in resources if totals[r])
        raise DieError(f"no placement of {len(names)} kernels on {count} dies exists, although their sums fit ({text})")
    if found.x is None:
        raise ProgramError(f"no placement was found in {NODES:,} nodes of the search; place fewer kernels at once")
    chosen = {name: int(np.argmax(found.x[k * count : (k + 1) * count])) for k, name in enumerate(names)}
    cut = sum(wire.bits * abs(chosen[wire.source] - chosen[wire.target]) for wire in wires)
    loads = tuple(
        {r: sum(areas[name].get(r, 0) for name in names if chosen[name] == d) for r in die}
        for d, die in enumerate(dies)
    )
    for load, die in zip(loads, dies, strict=True):
        assert all(amount <= int(fill * die[r]) for r, amount in load.items()), "a die is over its limit"
    bound = float(found.mip_dual_bound if found.mip_dual_bound is not None else found.fun)
    return DiePlacement(chosen, cut, loads, float(found.fun), bound, found.status == 0)
