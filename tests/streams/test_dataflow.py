"""Dataflow graphs: their order, their cycles, the blocks that they describe, and what those take on chip."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from rsn.base.errors import BudgetError, CycleError, ProgramError, ScheduleError
from rsn.benchmarks.compared.transformer_block import BlockShape, block
from rsn.streams.dataflow.best_fusion import fuse
from rsn.streams.dataflow.fusion import printed
from rsn.streams.dataflow.graph import Dataflow, Edge, KernelNode, Timing
from rsn.streams.dataflow.memory import Counted, fusion_space, memory_use
from rsn.streams.orders.order import Order
from rsn.tests.effort import cases, in_both
from rsn.tests.streams.group_graphs import parts

ROWS = Order.parse("4x4xi8 [2,2]*[4,4] (d0,d1)")
COLUMNS = Order.parse("4x4xi8 [2,2]*[4,4] (d1,d0)")


def edges(*pairs: tuple[str, str]) -> list[Edge]:
    count: dict[str, int] = {}
    found = []
    for source, target in pairs:
        count[target] = count.get(target, -1) + 1
        found.append(Edge(source, target, ROWS, ROWS, count[target]))
    return found


# -- graphs -----------------------------------------------------------------------------------------------------------


def test_nodes_come_in_a_fixed_topological_order() -> None:
    nodes = [KernelNode(name, "op") for name in ("c", "x", "b", "a")]
    links = edges(("a", "c"), ("b", "c"), ("x", "a"))
    graph = Dataflow.of(nodes, links)
    assert [node.name for node in graph.nodes] == ["x", "b", "a", "c"]
    assert graph == Dataflow.of(graph.nodes, links)
    assert [edge.source for edge in graph.into("c")] == ["a", "b"]
    assert [edge.target for edge in graph.outof("x")] == ["a"]
    with pytest.raises(ProgramError, match="c stands before a, which it reads"):
        Dataflow(tuple(nodes), tuple(links))


def test_a_cycle_is_named() -> None:
    nodes = [KernelNode(name, "op") for name in ("x", "cache", "qk", "softmax")]
    links = edges(("x", "qk"), ("cache", "qk"), ("qk", "softmax"), ("softmax", "cache"))
    with pytest.raises(CycleError, match="the graph has a cycle: cache -> qk -> softmax -> cache;") as error:
        Dataflow.of(nodes, links)
    assert error.value.cycle == ("cache", "qk", "softmax")


def test_graphs_that_are_none_are_refused() -> None:
    a, b = KernelNode("a", "op"), KernelNode("b", "op")
    with pytest.raises(ProgramError, match="no node has the name b"):
        Dataflow.of([a], edges(("a", "b")))
    with pytest.raises(ProgramError, match="two streams lead to operand 0 of b"):
        Dataflow.of([a, b], [Edge("a", "b", ROWS, ROWS), Edge("a", "b", ROWS, COLUMNS)])
    with pytest.raises(ProgramError, match=r"a puts a tensor of shape \[8, 8\] of i8, b gets one of shape \[4, 4\]"):
        Edge("a", "b", ROWS, replace(ROWS, trips=(1, 1)))
    with pytest.raises(ProgramError, match="node a has -1 bytes"):
        KernelNode("a", "op", memory_bytes=-1)
    with pytest.raises(ProgramError, match="no node has the name c; there are a, b"):
        Dataflow.of([a, b], []).node("c")


def test_the_last_token_of_a_kernel() -> None:
    assert Timing(first=4, interval=1, tokens=5).last == 8
    with pytest.raises(ProgramError, match="interval 0"):
        Timing(first=0, interval=0, tokens=1)


# -- blocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "tile", "whole", "converters", "shared_percent"),
    [
        (BlockShape(64, 128, 256), 16, 311_296, 67_584, 19.1),
        (BlockShape(256, 1024, 4096), 16, 11_796_480, 1_384_448, 11.2),
        (BlockShape(256, 1024, 4096), 64, 11_796_480, 2_392_064, 18.1),
    ],
)
def test_memory_of_a_block(shape: BlockShape, tile: int, whole: int, converters: int, shared_percent: float) -> None:
    """One head, one byte: double buffers of whole tensors, converters, one converter for q, k and v."""
    graph = block(shape, tile)
    use = memory_use(graph)
    assert (use.whole, use.converters) == (whole, converters)
    assert round(100 * use.shared_ratio, 1) == shared_percent
    assert (len(graph.nodes), len(graph.edges)) == (15, 18)
    assert sum(edge.put.canonical == edge.get.canonical for edge in graph.edges) == 8
    space = fusion_space(graph, Counted.CONVERTERS, shared=False)
    assert [len(group) for group in printed(space, converters).groups] == [15]
    assert len(printed(space, converters - 1).groups) > 1
    half = printed(space, converters // 2)
    assert ([len(group) for group in half.groups], len(half.off_chip)) == ([7, 8], 3)
    if tile == 64:
        quarter = printed(space, converters // 4)
        assert ([len(group) for group in quarter.groups], len(quarter.off_chip)) == ([5, 8, 2], 6)
        assert fuse(space, converters // 4).off_chip_bytes < quarter.off_chip_bytes


SHAPES = [
    BlockShape(64, 128, 256, 4),
    BlockShape(64, 128, 384, 4, 2, activation="silu", gated=True, rotary=True, layer_norms=False, bias=False),
    BlockShape(96, 128, 320, 4, 1, 64, gated=True, rotary=True, head_norms=True, after_norms=True),
]


def drawn_shape(random: Random, tile: int) -> BlockShape:
    """A block in which each size has two tiles or more, so that each product of its converters is one of tiles."""
    length, columns, inner = (tile * random.randint(2, 6) for _ in range(3))
    key_heads, shared = random.randint(1, 3), random.randint(1, 3)
    hidden = tile * random.randint(2, 6)
    options = {name: random.random() < 0.5 for name in ("gated", "rotary", "head_norms", "after_norms")}
    return BlockShape(length, hidden, inner, key_heads * shared, key_heads, columns, **options)


@in_both
def test_memory_of_drawn_blocks() -> None:
    """Written down again from the sizes of the tensors: rows of tiles of left operands, whole keys and values."""
    drawn_shapes = [
        (drawn_shape(random, tile), tile) for random in map(Random, range(cases(200, 20))) for tile in (4, 16)
    ]
    for shape, tile in [(shape, 16) for shape in SHAPES] + drawn_shapes:
        for dtype, count in (("i8", 1), ("bf16", 2)):
            use = memory_use(block(shape, tile, dtype))
            row, head = tile * shape.hidden, tile * shape.columns
            of_x = (3 + (2 if shape.gated else 1)) * row
            of_scores = head + tile * shape.length + head * shape.heads
            of_keys = 2 * shape.length * shape.columns * shape.key_heads
            assert use.converters == 2 * count * (of_x + of_scores + of_keys + tile * shape.ffn)
            # Queries get the rows of tiles once for each column of theirs: more often than keys of fewer heads.
            equal = 2 if shape.key_heads == shape.heads else 1
            assert use.shared == use.converters - 2 * count * (equal + shape.gated) * row
            scores, queries = shape.heads * shape.length**2, shape.length * shape.columns * shape.heads
            keys, hidden, inner = (shape.length * n for n in (shape.columns * shape.key_heads, shape.hidden, shape.ffn))
            of_hidden = 10 + shape.gated + 2 * shape.after_norms
            of_heads, of_inner = 2 + shape.rotary + shape.head_norms, 2 + 2 * shape.gated
            whole = of_hidden * hidden + of_heads * (queries + keys) + 2 * scores + of_inner * inner
            assert use.whole == 2 * count * whole


def test_own_memory_of_kernels() -> None:
    """Tiles of 16 x 16, one byte: an accumulator has 4."""
    graph = block(BlockShape(64, 128, 256, 2), 16)
    own = {node.name: node.memory_bytes for node in graph.nodes}
    assert own["x"] == 2 * 256
    assert own["q"] == own["down"] == 4 * 256 + 2 * 256 + 2 * 16
    assert own["qk"] == own["sv"] == 4 * 256
    assert own["ln"] == 2 * 16 * 128 + 4 * 2 * 2 * 16 + 2 * 2 * 16
    assert own["softmax"] == 2 * 16 * 64 + 4 * 2 * 2 * 16
    assert own["gelu"] == own["add"] == 256
    rotary = block(BlockShape(64, 128, 256, 2, rotary=True, layer_norms=False, bias=False), 16)
    assert rotary.node("q_rotary").memory_bytes == 2 * 16 * 64
    assert rotary.node("q").memory_bytes == 4 * 256 + 2 * 256
    assert rotary.node("ln").memory_bytes == own["ln"] - 2 * 16


def test_what_counts_is_an_argument() -> None:
    graph = block(BlockShape(64, 128, 256, 2), 16)
    nodes = range(len(graph.nodes))
    taken = {
        counted: fusion_space(graph, counted).bytes_of(nodes)
        for counted in (Counted.CONVERTERS, Counted.KERNELS, Counted.FIFOS, Counted.ALL)
    }
    use = memory_use(graph)
    assert taken[Counted.ALL] == sum(taken.values()) - taken[Counted.ALL]
    assert (taken[Counted.CONVERTERS], taken[Counted.KERNELS], taken[Counted.FIFOS]) == (
        use.shared,
        use.kernels,
        use.fifos,
    )
    alone = memory_use(Dataflow((KernelNode("a", "x", {}, 8),), ()))
    assert (alone.whole, alone.kernels, alone.ratio, alone.shared_ratio, alone.fused_ratio) == (0, 8, 0, 0, 0)
    deeper = fusion_space(graph, depths={0: 10})
    assert deeper.bytes_of(nodes) == taken[Counted.ALL] + 8 * 256
    with pytest.raises(ProgramError, match="x -> ln: a FIFO of 0 tokens"):
        fusion_space(graph, depths={0: 0})


def test_less_memory_keeps_fewer_bytes_on_chip() -> None:
    """Over all limits, kept bytes of the proved best grow with the limit and are never less than Algorithm 2 keeps."""
    space = fusion_space(block(SHAPES[1], 16))
    whole = space.bytes_of(range(len(space.names)))
    found = [(fuse(space, limit), printed(space, limit)) for limit in range(max(space.own_bytes), whole + 4096, 4096)]
    assert all(best.gap_bytes == 0 and best.kept_bytes >= listed.kept_bytes for best, listed in found)
    assert all(a.kept_bytes <= b.kept_bytes for (a, _), (b, _) in pairwise(found))
    assert len(found[-1][0].groups) == 1
    with pytest.raises(BudgetError, match=r"ln alone takes [\d,]+ bytes on chip, the budget is 1,000 bytes"):
        fuse(space, 1000)


def test_a_graph_is_taken_apart_into_its_groups() -> None:
    graph = block(BlockShape(64, 128, 256, 2), 16)
    space = fusion_space(graph)
    fusion = fuse(space, space.bytes_of(range(len(space.names))) // 3)
    found = parts(graph, fusion)
    assert tuple(tuple(node.name for node in part.graph.nodes) for part in found) == fusion.groups
    inside = [edge for part in found for edge in part.graph.edges]
    loads = [edge for part in found for edge in part.loads]
    stores = [edge for part in found for edge in part.stores]
    assert len(inside) + len(loads) == len(graph.edges)
    assert sorted(map(str, loads)) == sorted(map(str, stores))
    assert sum(edge.put.tokens * edge.put.bytes_per_token for edge in stores) == fusion.off_chip_bytes
    earlier: set[str] = set()
    for part in found:
        assert all(edge.source in earlier for edge in part.loads)
        assert part.load_bytes == sum(edge.get.tokens * 256 for edge in part.loads)
        assert part.store_bytes == sum(256 * graph.outof(name)[0].put.tokens for name in part.stored)
        earlier |= set(part.stored)
    with pytest.raises(ProgramError, match="the fusion is of 15 other kernels, not of the 1 given"):
        parts(Dataflow((KernelNode("a", "op"),), ()), fusion)


def test_groups_are_checked_again_with_depths_that_were_found_later() -> None:
    graph = block(BlockShape(64, 128, 256, 2), 16)
    space = fusion_space(graph)
    limit = space.bytes_of(range(len(space.names)))
    fusion = fuse(space, limit)
    assert fusion.resized(fusion_space(graph, depths={0: 1})).bytes == (limit - 256,)
    with pytest.raises(BudgetError, match="fuse fewer nodes"):
        fusion.resized(fusion_space(graph, depths={0: 100}))


def test_blocks_in_a_row() -> None:
    """Each block after the first has its input from the one before, which two of its kernels read."""
    shape = BlockShape(64, 128, 256, 2)
    one, four = block(shape, 16), block(shape, 16, layers=4)
    assert len(four.nodes) == 4 * (len(one.nodes) - 1) + 1
    assert len(four.edges) == 4 * len(one.edges)
    assert [edge.target for edge in four.outof("2.add_2")] == ["3.ln", "3.add"]
    single, space = fusion_space(one), fusion_space(four)
    limit = single.bytes_of(range(len(single.names)))
    by_block = fuse(space, limit)
    assert by_block.gap_bytes == 0
    # Two streams of the hidden size cross between blocks: before a sum, or behind it where its result is read twice.
    assert sorted(len(group) for group in by_block.groups) == [14, 14, 14, 15]
    assert by_block.off_chip_bytes == 3 * 2 * 64 * 128
    with pytest.raises(ProgramError, match="layers is 0"):
        block(shape, 16, layers=0)


def test_shapes_that_tiles_do_not_divide_are_refused() -> None:
    with pytest.raises(ScheduleError, match="a tile of 48 does not divide length, 64"):
        block(BlockShape(64, 128, 256), 48)
    with pytest.raises(ScheduleError, match="a tile of 64 does not divide head_dim, 32"):
        block(BlockShape(64, 128, 256, 4), 64)
    with pytest.raises(ProgramError, match="3 heads cannot share 2 heads of keys"):
        block(BlockShape(64, 96, 256, 3, 2), 16)
    with pytest.raises(ProgramError, match="3 heads do not divide 128 columns; give head_dim"):
        block(BlockShape(64, 128, 256, 3), 16)
    with pytest.raises(ProgramError, match="length is 0"):
        block(BlockShape(0, 128, 256), 16)
