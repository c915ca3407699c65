"""Mapping: which nodes may be put together, what is proved of the result, and what the search finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from time import process_time

import pytest

from rsn.streams.mapping.cost import makespan
from rsn.streams.mapping.errors import CODES, MappingError
from rsn.streams.mapping.graph import MappingGraph
from rsn.streams.mapping.machine import MeshDescription
from rsn.streams.mapping.mapping import Mapped
from rsn.streams.mapping.primitives import bundle, chain
from rsn.streams.mapping.proof import check_mapped, prove
from rsn.streams.mapping.search import search
from rsn.tests.effort import full, long, sampled
from rsn.tests.streams.mapping_span import Span, SpanCounts

from .graphs import HEAD, flash, gemm, graph_of, products, reduced_gemm, start


def edges(*pairs: str, width: int = 1) -> str:
    """A program of tasks with one letter each: every pair is a stream from the first to the second, one token each."""
    text = HEAD + "".join(f"{a}{b}: Stream[i32, {width}]\n" for a, b in pairs)
    for name in dict.fromkeys("".join(pairs)):
        gets = "".join(f"    use({a}{b}.get())\n" for a, b in pairs if b == name)
        puts = "".join(f"    {a}{b}.put(1)\n" for a, b in pairs if a == name)
        text += f"@task(mapping=[1])\ndef {name}():\n{gets}{puts}"
    return text


def refused(action: Callable[[], object]) -> MappingError:
    with pytest.raises(MappingError) as caught:
        action()
    assert caught.value.code in CODES
    return caught.value


# -- what may be put together ------------------------------------------------------------------------------------------


def test_chain_of_neighbours_makes_their_stream_a_buffer_of_all_tokens() -> None:
    text = edges("uv").replace("    uv.put(1)\n", "    for i in range(5):\n        uv.put(i)\n")
    text = text.replace(
        "    use(uv.get())\n", "    x = uv.get()\n    for i in range(4):\n        x = x + uv.get()\n    use(x)\n"
    )
    made = chain(start(text), "u", "v")
    assert [(local.tokens, local.first, local.last) for local in made.groups[0].local] == [(5, 0, 1)]
    assert [(h.what, h.count) for h in made.memory(0)] == [("buffer of uv, 5 x 4 bytes", 20)]
    assert prove(made).ok
    assert made.streams == ()


def test_chain_fuses_loops_that_agree() -> None:
    text = edges("uv").replace("    uv.put(1)\n", "    for i in range(5):\n        uv.put(i)\n")
    text = text.replace("    use(uv.get())\n", "    for i in range(5):\n        use(uv.get())\n")
    made = chain(start(text), "u", "v")
    assert [local.tokens for local in made.groups[0].local] == [1]
    assert [local.tokens for local in made.unfused().groups[0].local] == [5]


def test_chain_is_refused_where_a_second_path_leads() -> None:
    first = start(edges("uv", "uw", "wv"))
    error = refused(lambda: chain(first, "u", "v"))
    assert (error.code, error.notes) == ("path", ("the path: u -> w -> v", "chain(u, w) first makes it legal"))
    made = chain(chain(first, "u", "w"), "u", "v")
    assert made.members(0) == ("u", "w", "v")
    assert prove(made).ok


def test_chain_is_refused_with_feedback() -> None:
    text = edges("uv", "vu")
    text = text.replace("def u():\n    use(vu.get())\n    uv.put(1)\n", "def u():\n    uv.put(1)\n    use(vu.get())\n")
    error = refused(lambda: chain(start(text), "u", "v"))
    assert error.code == "feedback"
    assert error.notes[0] == "the cycle: u -> v -> u"
    assert error.place is not None
    assert text.split("\n")[error.place.line - 1] == "vu: Stream[i32, 1]"


def test_chain_against_the_stream_names_the_other_order() -> None:
    error = refused(lambda: chain(start(edges("uv")), "v", "u"))
    assert (error.code, error.notes) == ("path", ("chain(u, v) is the other order",))
    assert refused(lambda: chain(start(edges("uw", "wv")), "v", "u")).code == "path"


def test_independent_nodes_are_chained_in_either_order() -> None:
    first = start(edges("ab", "cd"))
    assert prove(chain(first, "a", "d")).ok
    assert prove(chain(first, "d", "a")).ok


def test_a_bundle_of_one_chain_is_refused() -> None:
    """Equal kernels, but a path joins them."""
    error = refused(lambda: bundle(start(gemm(4, 1, 1)), ["gemm[1,0,0]", "gemm[2,0,0]"]))
    assert error.code == "path"
    assert "the path: gemm[1,0,0] -> gemm[2,0,0]" in error.notes


def test_instances_that_run_other_arms_are_not_equal() -> None:
    text = f"""{HEAD}s: Stream[i32, 1][4]
@task(mapping=[4])
def t():
    i = get_tid()
    with meta_if(i == 0):
        s[i].put(5)
    with meta_elif(i == 1):
        s[i].put(6)
    with meta_else():
        s[i].put(7)
@task(mapping=[4])
def u():
    i = get_tid()
    use(s[i].get())
"""
    first = start(text)
    error = refused(lambda: bundle(first, ["t[1]", "t[2]"]))
    assert error.code == "kernel"
    assert "t[1] and t[2] run different statements, or loops of different trips" in error.notes
    assert prove(bundle(first, ["t[2]", "t[3]"])).ok


def test_a_bundle_closes_the_way_for_another() -> None:
    made = bundle(start(gemm(4, 1, 2)), ["gemm[1,0,0]", "gemm[2,0,1]"])
    assert prove(made).ok or check_mapped(made).code == "depth"
    error = refused(lambda: bundle(made, ["gemm[2,0,0]", "gemm[1,0,1]"]))
    assert error.code == "path"


def alternating(depth: int, order: str) -> str:
    return f"""{HEAD}
s: Stream[i32, {depth}]
t: Stream[i32, {depth}]
@task(mapping=[1])
def a():
    for i in range(4):
        s.put(i)
@task(mapping=[1])
def b():
    for k in range(4):
        t.put(k)
@task(mapping=[1])
def join():
    {order}
"""


TURNS = "for i in range(4):\n        use(s.get(), t.get())"
S_FIRST = "for i in range(4):\n        use(s.get())\n    for i in range(4):\n        use(t.get())"


def test_a_bundle_is_refused_where_its_peer_reads_in_another_order() -> None:
    first = start(alternating(2, TURNS))
    error = refused(lambda: bundle(first, ["a", "b"]))
    assert error.code == "order"
    assert "join reads s and t in another order than the shots" in error.message
    apart = bundle(first, ["a", "b"], separate=True)
    assert [len(stream.logical) for stream in apart.streams] == [1, 1]
    report = check_mapped(apart)
    assert report.code == "depth"
    assert "depth 3 of s is the least with which it ends, others as declared" in report.findings[0].notes
    assert "a, shot 1 of 2, waits to put s, line 8" in report.findings[0].notes
    assert prove(bundle(start(alternating(3, TURNS)), ["a", "b"], separate=True)).ok


def test_a_bundle_in_the_order_of_its_peer_has_one_stream() -> None:
    first = start(alternating(1, S_FIRST))
    made = bundle(first, ["a", "b"])
    assert [[edge.name for edge in stream.logical] for stream in made.streams] == [["s", "t"]]
    assert made.stream_name(made.streams[0]) == "a+1->join (s, t in turn)"
    assert prove(made).ok
    error = refused(lambda: bundle(first, ["b", "a"]))
    assert (error.code, error.notes[0]) == ("order", "bundle(a, b) is in its order")


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("s.put(tile('f32', 4, 4))", "t.put(tile('f32', 4, 2))"),
        ("s.put(tile('f32', 4, 4))", "t.put(tile('f32', 4, 2) * 2)"),
    ],
)
def test_a_border_tile_is_another_kernel(one: str, two: str) -> None:
    text = f"""{HEAD}
s: Stream[f32[4, 4], 2]
t: Stream[f32[4, 2], 2]
@task(mapping=[2])
def a():
    i = get_tid()
    with meta_if(i == 0):
        {one}
    with meta_else():
        {two}
@task(mapping=[1])
def b():
    use(s.get(), t.get())
"""
    error = refused(lambda: bundle(start(text), ["a[0]", "a[1]"]))
    assert (error.code, error.notes) == ("kernel", ("a[0] writes f32[4, 4]; a[1] writes f32[4, 2]",))


@pytest.mark.parametrize(("other", "same"), [("x * 2", True), ("x * 3", False), ("x + 2", False)])
def test_equal_tasks_are_one_kernel_whatever_their_names(other: str, same: bool) -> None:
    text = f"""{HEAD}
s: Stream[i32, 2]
t: Stream[i32, 2]
@task(mapping=[1])
def a():
    x = use()
    s.put(x * 2)
@task(mapping=[1])
def b():
    y = use()
    t.put({other.replace("x", "y")})
@task(mapping=[1])
def c():
    use(s.get(), t.get())
"""
    kernels = [node.kernel for node in graph_of(text).nodes]
    assert (kernels[0] == kernels[1]) is same


def test_a_node_on_a_cycle_may_take_one_that_it_feeds() -> None:
    text = edges("uw", "wu", "uv")
    text = text.replace("def u():\n    use(wu.get())\n    uw.put(1)\n", "def u():\n    uw.put(1)\n    use(wu.get())\n")
    assert prove(chain(start(text), "u", "v")).ok
    assert refused(lambda: chain(start(text), "w", "v")).code in ("path", "feedback")


REDUCED = f"""{HEAD}
inward: Stream[f32[64, 64], 1][{{n}}, 2]
outward: Stream[f32[64, 64], 1][{{n}}, 2]
@task(mapping=[{{n}}, 3])
def t():
    i, k = get_tid()
    x = tile(f32, 64, 64)
    with meta_if(k == 0):
        x = x + inward[i, 0].get() + inward[i, 1].get()
        outward[i, 0].put(x)
        outward[i, 1].put(x)
    with meta_else():
        inward[i, k - 1].put(x)
        x = outward[i, k - 1].get()
    use(x)
"""
"""Groups of three instances that add their tiles: the first one gets the others' and gives them the sum."""


def reduced(n: int) -> MappingGraph:
    graph = graph_of(REDUCED.format(n=n))
    return replace(graph, exchanges=frozenset(graph.edges))


def test_the_instances_of_a_collective_share_a_node() -> None:
    first = Mapped.start(reduced(1))
    assert refused(lambda: chain(first, "t[0,1]", "t[0,2]")).code in ("path", "feedback")
    assert refused(lambda: bundle(first, ["t[0,1]", "t[0,2]"])).code == "path"
    made = chain(first, "t[0,0]", "t[0,1]")
    assert prove(made).ok
    made = chain(made, "t[0,0]", "t[0,2]")
    assert (made.streams, len(made.groups[0].local)) == ((), 4)
    assert prove(made).ok
    plain = Mapped.start(graph_of(REDUCED.format(n=1)))
    assert refused(lambda: chain(plain, "t[0,0]", "t[0,1]")).code == "feedback"


def test_the_search_puts_collectives_on_one_node_each() -> None:
    found = search(reduced(4), 4)
    assert found.proof.ok
    assert [sorted(found.mapped.members(k)) for k in range(4)] == [[f"t[{i},{k}]" for k in range(3)] for i in range(4)]


def test_loops_are_not_fused_where_the_program_ends_only_without() -> None:
    text = f"""{HEAD}
s: Stream[i32, 4]
x: Stream[i32, 1]
y: Stream[i32, 1]
@task(mapping=[1])
def u():
    for i in range(4):
        s.put(i)
        x.put(i)
@task(mapping=[1])
def v():
    for i in range(4):
        y.put(s.get())
@task(mapping=[1])
def w():
    for i in range(4):
        use(x.get())
    for i in range(4):
        use(y.get())
"""
    made = chain(start(text), "u", "v")
    assert check_mapped(made).code == "depth"
    proof = prove(made)
    assert (proof.ok, proof.mapped.made.fuse, proof.mapped.groups[0].local[0].tokens) == (True, False, 4)


def test_modelled_cycles_follow_the_first_and_the_last_token() -> None:
    text = f"""{HEAD}
s: Stream[i32, 1]
@task(mapping=[1])
def a():
    for i in range(10):
        s.put(i)
        cycles(3)
@task(mapping=[1])
def b():
    for i in range(10):
        use(s.get())
"""
    first = start(text)
    assert makespan(first) == 31
    assert makespan(chain(first, "a", "b")) == 40


def test_a_gemm_with_allreduce_is_mapped_by_groups() -> None:
    graph = graph_of(reduced_gemm(3, 2, 2))
    assert (len(graph.nodes), len(graph.edges), len(graph.exchanges)) == (12, 16, 16)
    found = search(graph, 4)
    assert found.proof.ok
    names = {frozenset(found.mapped.members(k)) for k in range(4)}
    assert names == {frozenset(f"gemm[{k},{m},{n}]" for k in range(3)) for m in range(2) for n in range(2)}
    assert found.mapped.streams == ()


# -- ports and bytes ---------------------------------------------------------------------------------------------------


def test_too_many_ports_are_refused_with_their_holders() -> None:
    tile = MeshDescription(in_ports=2)
    first = start(edges("ac", "bc", "df", "ef"))
    error = refused(lambda: chain(first, "c", "f", tile))
    assert error.code == "port"
    assert "c+1 needs 4 input ports, a tile has 2" in error.message
    assert set(error.notes[:4]) == {"ac from a", "bc from b", "df from d", "ef from e"}
    assert error.notes[-1] == "tiles with 4 input ports would fit"
    assert chain(first, "a", "c", tile).members(0) == ("a", "c")
    error = refused(lambda: chain(start(edges("uv", "wv", "zy")), "v", "y", tile))
    assert error.notes[-1] == "chain(u, v+1) makes uv local, and it fits"


def test_too_many_bytes_are_refused_with_the_least_change() -> None:
    text = edges("uv", "wv", width=100)
    tile = MeshDescription(memory=500)
    first = start(text)
    assert [row[0] for row in first.over(1, tile)] == ["memory"]
    worse = start(edges("uv", "wx", width=100))
    error = refused(lambda: chain(worse, "v", "x", tile))
    assert (error.code, "needs 800 bytes, a tile has 500" in error.message) == ("memory", True)
    assert "400 bytes: slots of uv, 100 x 4 bytes" in error.notes
    assert error.notes[-1] == "depth 25 of uv, now 100, would fit"
    assert chain(start(edges("uv", "wx", width=25)), "v", "x", tile)


def test_buffers_count_while_they_are_in_use() -> None:
    """Of the sums along k, two are live at a time."""
    first = start(gemm(4, 1, 1))
    made = first
    for k in (1, 2, 3):
        made = chain(made, "gemm[0,0,0]", f"gemm[{k},0,0]")
    size = 64 * 64 * 4
    held = Counter(h.what.split()[0] for h in made.memory(0))
    assert sum(h.count for h in made.memory(0)) == 4 * size
    assert held["buffer"] == 2


# -- the search --------------------------------------------------------------------------------------------------------

TABLE = {
    "one output": (products(1), 1, SpanCounts(3, 7, 5, 3, 7)),
    "two outputs": (products(2), 2, SpanCounts(11, 489, 70, 332, 1374)),
    "2x2x1": (gemm(2, 2, 1), 2, SpanCounts(4, 17, 12, 12, 21)),
    "3x1x2": (gemm(3, 1, 2), 2, SpanCounts(7, 244, 118, 162, 608)),
    "2x2x2": (gemm(2, 2, 2), 4, SpanCounts(16, 3913, 201, 3502, 54965)),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_published_search_meets_these_mappings(name: str) -> None:
    text, at_most, counts = TABLE[name]
    assert Span(graph_of(text)).counts(at_most) == counts


SIZES = {  # (k, m, n): chains, nodes of a bundle, nodes
    (4, 4, 4): (48, 0, 16),
    (8, 8, 8): (448, 4, 16),
    (16, 16, 16): (3840, 16, 16),
    (32, 32, 32): (31744, 64, 16),
    (4, 2, 4): (24, 0, 8),
    (8, 4, 8): (224, 2, 16),
    (16, 8, 16): (1920, 8, 16),
    (32, 16, 32): (15872, 32, 16),
}


@pytest.mark.parametrize("size", sampled(SIZES, [(4, 4, 4), (4, 2, 4), (8, 4, 8)], full))
def test_a_gemm_is_chained_along_k_and_bundled(size: tuple[int, int, int]) -> None:
    k, m, n = size
    chains, together, nodes = SIZES[size]
    graph = graph_of(gemm(k, m, n))
    assert (len(graph.nodes), len(graph.edges)) == (k * m * n, (k - 1) * m * n)
    large = k == 32  # limits of tiles make the search longer
    found = search(graph, 16, None if large else MeshDescription(), states=12 if large else None)
    assert found.proof.ok
    assert found.chains == chains
    assert found.bundles == ([together] * nodes if together else [])
    assert len(found.mapped.groups) == nodes


@pytest.mark.long
@pytest.mark.full
def test_a_gemm_of_4096_instances_is_mapped_in_seconds() -> None:
    began = process_time()
    graph = graph_of(gemm(16, 16, 16).replace("64", "32"))
    read = process_time() - began
    search(graph, 16, MeshDescription())
    assert (read < 5, process_time() - began < 20) == (True, True)


@pytest.mark.parametrize(("q", "kv"), [(2, 2), (2, 4)])
def test_attention_by_hand(q: int, kv: int) -> None:
    """For each chunk of queries: bundle the scores, bundle what they weigh, chain the queries; then bundle columns."""
    made = start(flash(q, kv))
    for i in range(q):
        made = bundle(made, [f"scores[{i},{j}]" for j in range(kv)])
        made = bundle(made, [f"attend[{i},{j}]" for j in range(kv)])
        made = chain(made, f"send_q[{i}]", f"scores[{i},0]")
    assert len(made.groups) == 3 * q
    assert [len(stream.logical) for stream in made.streams] == [kv] * 2 * q
    assert prove(made).ok
    for task in ("send_q[{}]", "attend[{},0]", "gather[{}]"):
        made = bundle(made, [task.format(i) for i in range(q)])
    assert len(made.groups) == 3
    assert [len(stream.logical) for stream in made.streams] == [kv * q] * 2
    assert prove(made).ok


@pytest.mark.parametrize(("tiles", "nodes"), [long(2, 8), full(4, 16)])
def test_attention_by_search(tiles: int, nodes: int) -> None:
    graph = graph_of(flash(tiles, tiles))
    error = refused(lambda: search(graph, nodes, MeshDescription()))
    assert (error.code, error.notes[-1]) == ("memory", f"tiles with {5 * 64 * 64 * 4} bytes would fit")
    found = search(graph, nodes, MeshDescription(memory=5 * 64 * 64 * 4))
    assert found.proof.ok
    assert len(found.mapped.groups) <= nodes


def test_the_cost_decides() -> None:
    """Any function may measure: here the fewest nodes win."""
    graph = graph_of(products(1))

    def nodes(mapped: Mapped, machine: MeshDescription | None) -> tuple[int, ...]:
        return (len(mapped.groups),)

    assert len(search(graph, 4, measure=nodes).mapped.groups) == 1
    assert len(search(graph, 4, measure=lambda mapped, machine: -len(mapped.groups)).mapped.groups) == 3


def test_no_mapping_says_why() -> None:
    error = refused(lambda: search(graph_of(edges("ac", "bc", "cd", "ce")), 1, MeshDescription(memory=4)))
    assert error.code == "memory"
    text = edges("uv", "vu")
    text = text.replace("def u():\n    use(vu.get())\n    uv.put(1)\n", "def u():\n    uv.put(1)\n    use(vu.get())\n")
    assert refused(lambda: search(graph_of(text), 1)).code == "tiles"
    assert refused(lambda: search(graph_of(text), 0)).message == "at most 0 nodes; the least is 1"
