"""Fusion into groups: Algorithm 2 as listed, the proved best one, and bounds where it is too wide to prove."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from rsn.base.errors import BudgetError, CycleError, ProgramError
from rsn.streams.dataflow.best_fusion import by_windows, fuse, improved
from rsn.streams.dataflow.exact_fusion import exact
from rsn.streams.dataflow.fusion import FusedStream, Fusion, FusionSpace, algorithm_2, printed
from rsn.streams.dataflow.topology import topological_order
from rsn.tests.effort import cases, in_full

from .fusions import acyclic, drawn_space, memory, most_kept


def chain(cost: int) -> FusionSpace:
    return FusionSpace.of_numbers("abcdef", [("abcdef"[k], "abcdef"[k + 1], cost) for k in range(5)])


def two_sources() -> FusionSpace:
    return FusionSpace.of_numbers("abcd", [("a", "c", 500), ("b", "d", 10), ("c", "d", 90)])


def diamond() -> FusionSpace:
    return FusionSpace.of_numbers("abcd", [("a", "b", 30), ("a", "c", 30), ("b", "d", 30), ("c", "d", 30)])


LISTED = [
    (chain(100), 99, "a b c d e f", (0, 0, 0, 0, 0, 0), 5),
    (chain(100), 100, "ab cd ef", (100, 100, 100), 2),
    (chain(100), 250, "abc def", (200, 200), 1),
    (chain(100), 300, "abcd ef", (300, 100), 1),
    (chain(100), 500, "abcdef", (500,), 0),
    (chain(0), 0, "abcdef", (0,), 0),
    (two_sources(), 50, "a b c d", (0, 0, 0, 0), 3),
    (two_sources(), 100, "a b cd", (0, 0, 90), 2),
    (two_sources(), 600, "ac bd", (500, 10), 1),
    (diamond(), 119, "abc d", (60, 0), 2),
    (diamond(), 120, "abcd", (120,), 0),
]


@pytest.mark.parametrize(("space", "limit", "groups", "costs", "off_chip"), LISTED)
def test_algorithm_2_as_listed(
    space: FusionSpace, limit: int, groups: str, costs: Sequence[int], off_chip: int
) -> None:
    fusion = printed(space, limit)
    assert " ".join("".join(names) for names in fusion.groups) == groups
    assert fusion.bytes == costs
    assert len(fusion.off_chip) == off_chip
    best = fuse(space, limit)
    assert best.gap_bytes == 0
    assert best.kept_bytes >= fusion.kept_bytes


def test_index_0_of_algorithm_2_stays_empty() -> None:
    for space, limit, _, _, _ in LISTED:
        groups, costs, group_of = algorithm_2(space, limit)
        assert groups[0] == set()
        assert costs[0] == 0
        assert 0 not in group_of.values()


def test_nearest_is_the_group_with_the_greatest_number_not_the_cheapest() -> None:
    """c -> d would cost less than b -> d, and is not asked for: b began its group later."""
    space = FusionSpace.of_numbers("abcd", [("a", "c", 500), ("b", "d", 90), ("c", "d", 10)])
    assert printed(space, 600).groups == (("a", "c"), ("b", "d"))
    assert fuse(space, 600).kept_bytes == 3
    assert fuse(space, 600).groups == (("a", "b", "c", "d"),)


def test_all_streams_between_two_nodes_count() -> None:
    """The listing takes the first of them, and would put 120 bytes where 100 fit."""
    space = FusionSpace.of_numbers("ab", [("a", "b", 60), ("a", "b", 60)])
    for method in (printed, fuse):
        assert method(space, 100).groups == (("a",), ("b",))
        assert method(space, 120).bytes == (120,)


def test_a_space_without_nodes_has_no_groups() -> None:
    empty = FusionSpace((), (), (), ())
    assert printed(empty, 0).groups == fuse(empty, 0).groups == ()


def test_algorithm_2_depends_on_the_topological_order() -> None:
    costs = [("a", "c", 500), ("b", "d", 10), ("c", "d", 90)]
    assert printed(FusionSpace.of_numbers("abcd", costs), 600).groups == (("a", "c"), ("b", "d"))
    assert printed(FusionSpace.of_numbers("bacd", costs), 600).groups == (("b",), ("a", "c", "d"))


@in_full
def test_fusions_of_drawn_graphs_against_every_partition() -> None:
    """Groups run one after the other and stay within the limit; exact is the best, and the bound of windows holds."""
    better = 0
    for seed in range(cases(500, 50)):
        space, limit = drawn_space(Random(seed))
        best = most_kept(space, limit)
        windows = by_windows(space, limit, 3, 10_000)
        assert windows is not None
        assert windows[1] >= best
        start = improved(space, limit, windows[0])
        listed, proved = printed(space, limit), exact(space, limit)
        assert proved is not None
        for group in (listed.group, proved.group, windows[0], start):
            assert acyclic(space, group)
            assert all(memory(space, group, number) <= limit for number in set(group))
            assert space.kept_bytes(group) <= best
        assert proved.bytes == tuple(memory(space, proved.group, k) for k in range(1, len(proved.groups) + 1))
        assert proved.kept_bytes == proved.bound == best
        assert exact(space, limit, at_least=listed.kept_bytes) == exact(space, limit, at_least=best) == proved
        assert space.kept_bytes(start) >= space.kept_bytes(windows[0])
        better += best > listed.kept_bytes
    assert better > 0


def heads(count: int) -> FusionSpace:
    """Attention with each head on its own: as many parallel parts as heads."""
    names, streams = ["x", "ln"], [("x", "ln", 0, 8)]
    for h in range(count):
        names += [f"{op}{h}" for op in ("q", "k", "v", "qk", "softmax", "sv")]
        streams += [("ln", f"{op}{h}", 4, 8) for op in "qkv"]
        streams += [(f"q{h}", f"qk{h}", 1, 2), (f"k{h}", f"qk{h}", 4, 2), (f"qk{h}", f"softmax{h}", 0, 4)]
        streams += [(f"softmax{h}", f"sv{h}", 1, 4), (f"v{h}", f"sv{h}", 4, 2)]
    names += ["proj", "add"]
    streams += [(f"sv{h}", "proj", 1, 2) for h in range(count)]
    streams += [("proj", "add", 0, 8), ("x", "add", 0, 8)]
    return FusionSpace.of_numbers(names, [s[:3] for s in streams], tensor_bytes=[s[3] for s in streams])


def test_a_wide_graph_has_a_bound() -> None:
    """With few steps, the fusion is one of windows, and the proved best lies between it and its bound."""
    space = heads(2)
    proved, found = fuse(space, 23), fuse(space, 23, steps=500)
    assert (proved.method, found.method) == ("exact", "windows")
    assert printed(space, 23).kept_bytes <= found.kept_bytes <= proved.kept_bytes <= found.bound
    assert proved.gap_bytes == 0
    assert found.gap_bytes == found.bound - found.kept_bytes


def test_streams_of_one_converter_pay_for_it_once() -> None:
    streams = (FusedStream(0, 1, 8, 0), FusedStream(0, 2, 8, 0), FusedStream(0, 3, 8, 0))
    space = FusionSpace(("ln", "q", "k", "v"), (0, 0, 0, 0), streams, (100,))
    for fusion in (printed(space, 100), fuse(space, 100)):
        assert fusion.groups == (("ln", "q", "k", "v"),)
        assert fusion.bytes == (100,)
    apart = FusionSpace(space.names, space.own_bytes, tuple(FusedStream(0, k, 8, k - 1) for k in (1, 2, 3)), (100,) * 3)
    assert len(fuse(apart, 100).off_chip) == 2


def test_a_node_that_does_not_fit_is_named_with_its_bytes_and_the_budget() -> None:
    space = FusionSpace.of_numbers(["ln", "softmax"], [("ln", "softmax", 1)], own_bytes=[10, 4096])
    for method in (printed, exact, fuse):
        with pytest.raises(BudgetError, match="softmax alone takes 4,096 bytes on chip, the budget is 4,095") as error:
            method(space, 4095)
        assert (error.value.holder, error.value.bytes_needed, error.value.budget) == ("softmax", 4096, 4095)
        assert method(space, 4096).groups == (("ln",), ("softmax",))
    with pytest.raises(BudgetError, match="the budget is -1 bytes"):
        fuse(chain(0), -1)


def test_a_fusion_is_verified() -> None:
    """Groups over the limit, and groups that wait for each other, are no fusion."""
    with pytest.raises(BudgetError, match=r"group \{a b\} takes 100 bytes on chip, the budget is 99"):
        Fusion(chain(100), (1, 1, 2, 3, 4, 5), 99, 5, "by hand")
    with pytest.raises(CycleError, match=r"\{a c\} -> \{b\} -> \{a c\}"):
        Fusion(FusionSpace.of_numbers("abc", [("a", "b", 0), ("b", "c", 0)]), (1, 2, 1), 100, 2, "by hand")


def test_the_cycle_of_a_graph_is_named() -> None:
    with pytest.raises(CycleError, match="the graph has a cycle: q -> qk -> q;") as error:
        topological_order(["x", "q", "k", "qk"], [("x", "q"), ("q", "qk"), ("k", "qk"), ("qk", "q"), ("qk", "k")])
    assert error.value.cycle == ("q", "qk")
    with pytest.raises(CycleError, match="a -> a;"):
        topological_order(["a"], [("a", "a")])
    with pytest.raises(ProgramError, match="stream a -> b: no node has the name b"):
        topological_order(["a"], [("a", "b")])
    with pytest.raises(ProgramError, match="1 streams, and the bytes of 0 tensors"):
        FusionSpace.of_numbers("ab", [("a", "b", 1)], tensor_bytes=())
    with pytest.raises(ProgramError, match="two nodes have the name a"):
        topological_order(["a", "a"], [])


def test_spaces_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ProgramError, match="a stands before b, which it reads"):
        FusionSpace.of_numbers("ab", [("b", "a", 0)])
    with pytest.raises(ProgramError, match="shares a converter with a stream of another source"):
        FusionSpace(("a", "b", "c"), (0, 0, 0), (FusedStream(0, 1, 1, 0), FusedStream(1, 2, 1, 0)), (10,))
    with pytest.raises(ProgramError, match="negative number of bytes"):
        FusionSpace.of_numbers("ab", [("a", "b", -1)])
    with pytest.raises(ProgramError, match="stream a -> c: no node has the name c"):
        FusionSpace.of_numbers("ab", [("a", "c", 1)])
    for ends in ((0, 2), (-1, 1)):
        with pytest.raises(ProgramError, match=f"a stream leads from node {ends[0]} to {ends[1]} of 2"):
            FusionSpace(("a", "b"), (0, 0), (FusedStream(*ends, 1),), ())
