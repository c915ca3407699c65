"""The search against all mappings of small programs, which are made by the primitives one after the other."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest

from rsn.streams.mapping.cost import Cost, cost
from rsn.streams.mapping.errors import MappingError
from rsn.streams.mapping.machine import MeshDescription
from rsn.streams.mapping.mapping import Mapped
from rsn.streams.mapping.primitives import bundle, chain
from rsn.streams.mapping.proof import prove
from rsn.streams.mapping.search import search
from rsn.streams.mapping.shots import Shots
from rsn.tests.effort import cases, in_full

from .graphs import HEAD, gemm, start
from .test_mapping_random import program


def with_costs(text: str, random: Random) -> str:
    """The program, each of whose tasks states some cycles, and loads or stores a tensor now and then."""
    out = []
    for line in text.split("\n"):
        out.append(line)
        if line == HEAD.strip():
            out.append("X: f32[4, 8]\nY: f32[4, 8]")
        if line == "    i = get_tid()":
            out.append(f"    cycles({random.randint(0, 6)})")
            if ", args=" in out[-4]:
                out.append("    use(x[:, :])")
        if line.startswith("@task") and random.random() < 0.4:
            layout = random.choice(["RR", "RS0"])
            size = int(line[line.index("[") + 1 : line.index("]")])
            layout = layout if 8 % size == 0 else "RR"
            out[-1] = line.replace("])", f"], args=[{random.choice('XY')}])")
            out.append(f"# {layout}")
        if line.startswith("def ") and out[-2].startswith("# "):
            layout = out.pop(-2)[2:]
            out[-1] = line.replace("()", f'(x: f32[4, 8] @ Layout("{layout}"))')
    return "\n".join(out)


def shape(group: Shots) -> object:
    """How a node is put together; a chain of chains is one chain."""
    if group.kind == "single":
        return group.shots[0]
    parts = [inner for part in group.parts for inner in (_flat(part) if group.kind == "chain" else [shape(part)])]
    return group.kind, tuple(parts)


def _flat(group: Shots) -> list[object]:
    return [x for part in group.parts for x in _flat(part)] if group.kind == "chain" else [shape(group)]


def every(first: Mapped) -> list[Mapped]:
    """All mappings that primitives make."""
    seen: dict[object, Mapped] = {}
    todo = [first]
    while todo:
        mapped = todo.pop()
        key = frozenset(map(shape, mapped.groups))
        if key in seen:
            continue
        seen[key] = mapped
        for a, b in permutations([mapped.name(k) for k in range(len(mapped.groups))], 2):
            for primitive in (lambda m, x, y: chain(m, x, y), lambda m, x, y: bundle(m, [x, y], separate=True)):
                try:
                    todo.append(primitive(mapped, a, b))
                except MappingError:
                    continue
    return list(seen.values())


def least(first: Mapped, at_most: int, machine: MeshDescription | None) -> Cost | None:
    """The least cost of all mappings that fit and are proved; None if there is none."""
    best: Cost | None = None
    for mapped in every(first):
        fits = machine is None or not any(mapped.over(k, machine) for k in range(len(mapped.groups)))
        if len(mapped.groups) <= at_most and fits:
            price = cost(mapped)
            if (best is None or price < best) and prove(mapped).ok:
                best = price
    return best


@in_full
def test_no_mapping_of_a_small_program_costs_less_than_the_one_found() -> None:
    programs = seed = mapped = 0
    while programs < cases(200, 2, share=100):
        seed += 1
        random = Random(seed)
        try:
            first = start(with_costs(program(random), random))
        except AssertionError:  # the check refuses it
            continue
        if not 2 <= len(first.groups) <= 6:
            continue
        programs += 1
        at_most = random.randint(1, len(first.groups))
        machine = random.choice([None, MeshDescription(), MeshDescription(in_ports=3, out_ports=3)])
        best = least(first, at_most, machine)
        try:
            found = search(first.graph, at_most, machine)
        except MappingError:
            assert best is None, seed
            continue
        mapped += 1
        assert (found.cost, found.all_seen) == (best, True), seed
        assert found.bound <= found.cost.cycles
    assert mapped > programs // 2


@pytest.mark.parametrize(("size", "at_most"), [((2, 2, 1), 2), ((3, 1, 2), 2)])
def test_the_search_finds_the_best_of_a_product(size: tuple[int, int, int], at_most: int) -> None:
    first = start(gemm(*size))
    found = search(first.graph, at_most, MeshDescription())
    assert (found.cost, found.all_seen) == (least(first, at_most, MeshDescription()), True)


def test_a_bound_says_how_far_the_best_may_be() -> None:
    found = search(start(gemm(4, 2, 2)).graph, 4, MeshDescription())
    assert (found.bound, found.cost.cycles, found.all_seen) == (4, 4, False)
