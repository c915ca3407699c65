"""The order in which DDR takes its accesses, found by running: nothing is exchanged that may not be, the time found is
that of the order found, and it is the same every time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.isa.layout import BLOCK
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.overlays.xnn.formats import Ddr
from rsn.isa.verify import check, dry_run
from rsn.isa.work import Access
from rsn.machine.executor import ProcessNetwork as Machine
from rsn.machine.jit import available
from rsn.machine.plan import execute
from rsn.scheduler import listing
from rsn.scheduler import pack as packing
from rsn.scheduler.chain import instructions
from rsn.scheduler.dram import Lowered
from rsn.scheduler.graph import Gemm, LayerGraph, Output
from rsn.scheduler.listing import Job, _load_pieces, _store_pieces, needs_of
from rsn.scheduler.lower import lower
from rsn.scheduler.mapping import MappingType
from rsn.scheduler.pack import pack, uops_of
from rsn.scheduler.schedule import PAPER, STORE_BLOCKS, STRICT, DramPolicy, Interleave, Loops, Schedule
from rsn.scheduler.tile import tile
from rsn.tests.effort import examples

from .networks import Maker
from .test_pack import uops_from
from .test_pack import uops_of as uops_of_image

ELEMENTS = 128 * 64
"""Of a block: addresses count 16 elements."""


def listed(**more: Any) -> Schedule:
    return Schedule(interleave=Interleave.LISTED, **more)


def encoder(batch: int = 2, seq: int = 256, heads: int = 3, ffn: int = 700, layers: int = 2) -> LayerGraph:
    return Maker().encoder(batch, seq, 64 * heads, heads, ffn, layers=layers)


def kinds(network: LayerGraph, **knobs: Any) -> list[str]:
    """Of segments, as the lowering names them."""
    return list(dict.fromkeys(segment.kind for segment in tile(network, XNN, Schedule(**knobs)).plan))


rules = st.builds(
    DramPolicy,
    patience_us=st.sampled_from([-1000.0, -3.0, 0.0, 1.0, 4.0, 10.0, 100.0, 1000.0]),
    store_blocks=st.sampled_from(STORE_BLOCKS),
    by_columns=st.booleans(),
    in_order=st.booleans(),
)


@st.composite
def programs(draw: st.DrawFn) -> tuple[LayerGraph, Overlay, Schedule]:
    """Small encoders of all kinds, some of which reuse memory, with any rules."""
    batch, seq = draw(st.sampled_from([(1, 128), (3, 60), (2, 256), (1, 384), (1, 300), (3, 384), (1, 640), (4, 200)]))
    heads, ffn = draw(st.sampled_from([(1, 64), (2, 500), (3, 1300), (5, 260)]))
    network = encoder(batch, seq, heads, ffn, layers=draw(st.integers(1, 2)))
    knobs: dict[str, Any] = {
        "loops": draw(st.sampled_from(Loops)),
        "balance": draw(st.booleans()),
        "attention": draw(st.sampled_from([None, MappingType.A, MappingType.B, MappingType.D])),
        "tile_rows": draw(st.sampled_from([1, 2, 3, 4, 6])),
        "tile_cols": draw(st.integers(1, 8)),
    }
    if draw(st.integers(0, 5)) == 0:
        return network, XNN, Schedule(interleave=Interleave.HARDWARE, **knobs)
    given = tuple((kind, draw(rules)) for kind in kinds(network, **knobs))
    return network, XNN, listed(**knobs, rules=given)


# -- what the order must keep --------------------------------------------------------------------------------------


def pieces(mop: Ddr) -> Iterator[tuple[int, int]]:
    """The address intervals that an access touches, in its order."""
    for chunk in range(mop.chunks):
        at = mop.addr * 16 + chunk * mop.chunk_stride * 16
        yield at, at + mop.size


def peer(mop: Ddr) -> str:
    (flag,) = [name for name, value in vars(mop).items() if name.startswith(("to_", "from_")) and value]
    return flag.split("_")[1]


def by_unit(mops: list[Ddr]) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """For each unit and direction the blocks it exchanges, in order."""
    out: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for mop in mops:
        for start, end in pieces(mop):
            assert (end - start) % ELEMENTS == 0
            for at in range(start, end, ELEMENTS):
                out.setdefault((peer(mop), mop.store), []).append((at, at + ELEMENTS))
    return out


def conflicts(mops: list[Ddr]) -> tuple[list[int], list[list[Any]]]:
    """For each address interval between two ends of accesses, what happens there: stores one by one, and between them
    the loads, whose order does not matter."""
    edges = sorted({edge for mop in mops for piece in pieces(mop) for edge in piece})
    place = {edge: i for i, edge in enumerate(edges)}
    history: list[list[Any]] = [[()] for _ in edges]
    for mop in mops:
        for start, end in pieces(mop):
            for i in range(place[start], place[end]):
                if mop.store:
                    history[i] += [f"store {peer(mop)}", ()]
                else:
                    history[i][-1] = tuple(sorted((*history[i][-1], f"load {peer(mop)}")))
    return edges, history


def expanded(mops: list[Ddr]) -> list[Ddr]:
    """One access a block, so that programs that cut differently compare."""
    return [
        Ddr(**{**vars(mop), "addr": at // 16, "size": ELEMENTS, "chunks": 1, "chunk_stride": 0})
        for mop in mops
        for start, end in pieces(mop)
        for at in range(start, end, ELEMENTS)
    ]


def assert_kept(found: list[Ddr], strict: list[Ddr]) -> None:
    """`strict` is the order of the program text: a tile's stores before the next one's loads."""
    assert by_unit(found) == by_unit(strict)
    assert conflicts(expanded(found)) == conflicts(expanded(strict))


def ddr(lowered: Lowered) -> list[Ddr]:
    return list(lowered.kernels.sequences["DDR"])


def in_text_order(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> list[Ddr]:
    """The accesses tile by tile, loads before stores: written down here, not by `order_accesses`."""
    tiles: list[Any] = []

    def kept(them: Any, *args: Any) -> Any:
        tiles.extend(them)
        return real(them, *args)

    real = listing.list_accesses
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rsn.scheduler.dram.list_accesses", kept)
        lower(network, overlay, schedule)
    accesses = [access for tile in tiles for access in (*tile.loads, *tile.stores)]
    return list(instructions(overlay, overlay.by_unit["DDR"], accesses))  # type: ignore[arg-type]


@examples(25, quick=2)
@given(programs())
def test_no_access_passes_one_that_it_depends_on(case: tuple[LayerGraph, Overlay, Schedule]) -> None:
    """Read after write, write after read, write after write, and each unit's own order; and what was found is packed
    into an image that expands to it, stands up to every check and does not stall at the datapath's depths."""
    network, overlay, schedule = case
    lowered = lower(network, overlay, schedule)
    assert_kept(ddr(lowered), in_text_order(network, overlay, schedule))
    program = pack(lowered.kernels)
    assert {u: s for u, s in uops_of_image(program).items() if s} == uops_from(lowered.kernels)
    assert program.overlay.mop_fifo_depth == 6
    assert [f for f in check(program) + dry_run(program) if not f.warning] == []


def test_the_checker_sees_each_kind_of_exchange() -> None:
    def load(at: int, unit: str = "a0") -> Ddr:
        return Ddr(addr=512 * at, size=ELEMENTS, load=1, **{f"to_{unit}": 1})

    def store(at: int, blocks: int = 1, unit: str = "c0") -> Ddr:
        return Ddr(addr=512 * at, size=ELEMENTS * blocks, store=1, **{f"from_{unit}": 1})

    assert_kept([load(9, "a1"), store(0, 2), load(1)], [store(0), store(1), load(1), load(9, "a1")])
    for found, wanted in [
        ([load(1), store(0, 2)], [store(0, 2), load(1)]),  # read after write
        ([store(1), load(1)], [load(1), store(1)]),  # write after read
        ([store(1), store(1, unit="c1")], [store(1, unit="c1"), store(1)]),  # write after write
        ([load(1), load(2)], [load(2), load(1)]),  # one unit's own order
        ([store(1), store(2)], [store(2), store(1)]),
        ([load(1)], [load(1), load(2)]),
    ]:
        with pytest.raises(AssertionError):
            assert_kept(found, wanted)


anywhere = st.builds(
    Access,
    st.just("MemC0"),
    st.booleans(),
    st.integers(0, 12).map(lambda n: BLOCK * n),
    st.integers(1, 4).map(lambda n: BLOCK * n),
    st.integers(1, 3),
    st.integers(4, 6).map(lambda n: BLOCK * n),
)


@given(st.lists(anywhere, max_size=12))
def test_needs_are_all_conflicts_with_what_comes_before(given: list[Access]) -> None:
    """Directly, or through those between: written down two by two. Programs seldom lead to more than
    reads after writes, because what overwrites something is mostly made of it."""
    needs, at = needs_of([Job(access, DramPolicy(), 0) for access in given])
    behind: list[set[int]] = []
    for i, access in enumerate(given):
        direct = set(needs[at[i] : at[i + 1]].tolist())
        behind.append(direct.union(*(behind[j] for j in direct)))
        touching = {
            j
            for j, other in enumerate(given[:i])
            if (access.store or other.store) and not set(blocks_of(access)).isdisjoint(blocks_of(other))
        }
        assert direct <= touching <= behind[i]


# -- what was found ------------------------------------------------------------------------------------------------


@examples(12, quick=2)
@given(programs())
def test_the_order_as_a_fixed_order_takes_exactly_as_long(case: tuple[LayerGraph, Overlay, Schedule]) -> None:
    network, overlay, schedule = case
    lowered = lower(network, overlay, schedule)
    assert lowered.found is not None
    kernels = lowered.kernels
    again = execute(overlay, {**uops_of(kernels), **kernels.preloaded})
    assert again.latency == lowered.found.latency
    assert (again.busy, again.waits) == (lowered.found.busy, lowered.found.waits)


def test_the_executor_agrees() -> None:
    """The definition of what a program does, not the engine that found the order."""
    lowered = lower(encoder(1, 300, layers=1), XNN, listed(loops=Loops.ROWS, balance=True))
    assert lowered.found is not None
    kernels = lowered.kernels
    net = Machine(XNN, {**uops_of(kernels), **kernels.preloaded})
    assert net.run() == lowered.found.latency


SMALL = [
    (encoder(1, 300, 2, 200, 1), listed(loops=Loops.ROWS, balance=True)),
    (encoder(2, 256, 3, 300, 1), Schedule(interleave=Interleave.HARDWARE)),
    (encoder(1, 128, 1, 700, 2), listed(rules=(("gemm 64x64", DramPolicy(100.0, 1, by_columns=True)),))),
]


@pytest.mark.skipif(not available(), reason="numba is not installed")
@pytest.mark.parametrize(("network", "schedule"), SMALL)
def test_the_order_needs_no_numba(network: LayerGraph, schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = lower(network, XNN, schedule)
    monkeypatch.setattr(listing, "engine", lambda: lambda function: function)
    slow = lower(network, XNN, schedule)
    assert slow.kernels.sequences == quick.kernels.sequences
    assert slow.found is not None
    assert quick.found is not None
    assert slow.found.latency == quick.found.latency


@pytest.mark.parametrize(("network", "schedule"), SMALL)
def test_the_same_twice(network: LayerGraph, schedule: Schedule) -> None:
    one, two = (pack(lower(network, XNN, schedule).kernels).image for _ in range(2))
    assert np.array_equal(one, two)


def test_an_order_found_beats_the_published_one_on_the_base_machine() -> None:
    """What it is for (BERT-Large's shape, one layer, B=1: the case with the most to gain)."""
    network = Maker().encoder(1, 384, 1024, 16, 4096)
    rule = DramPolicy(2.0, 2, by_columns=True)
    own = tuple((kind, rule) for kind in kinds(network, loops=Loops.ROWS))
    better = lower(network, XNN_BASE, listed(loops=Loops.ROWS, balance=True, rules=own)).found
    paper = lower(network, XNN_BASE, PAPER).kernels
    assert better is not None
    taken = execute(XNN_BASE, {**uops_of(paper), **paper.preloaded}).latency
    assert better.latency < 0.97 * taken


@pytest.mark.parametrize("interleave", [Interleave.INTERLEAVED, Interleave.LISTED, Interleave.HARDWARE])
def test_a_drain_puts_all_stores_of_a_segment_before_the_loads_of_the_next(interleave: Interleave) -> None:
    make = Maker()
    weights = [make.matrix(256, 1024), make.matrix(1024, 256)]
    layers = tuple(Gemm(f"g{i}", "xyz"[i], "xyz"[i + 1], w, make.vector(w.shape[1])) for i, w in enumerate(weights))
    network = LayerGraph(1, 1536, {"x": 256}, (Output("z"),), layers)

    def overlap(drain: tuple[str, ...]) -> int:
        """Stores to `y` that come behind the first load from it."""
        kernels = lower(network, XNN, Schedule(interleave=interleave, drain=drain)).kernels
        (y,) = (b for b in kernels.buffers if b.name == "y")
        at = range(y.offset, y.offset + y.size // 16)
        ddr = [mop for mop in kernels.sequences["DDR"] if mop.addr in at]
        first = next(i for i, mop in enumerate(ddr) if mop.load)
        return sum(mop.store for mop in ddr[first:])

    assert overlap(()) > 0
    assert overlap(("gemm 256x1024",)) == 0


@examples(10, quick=2)
@given(programs())
def test_the_run_that_found_the_order_says_when_each_mop_begins(case: tuple[LayerGraph, Overlay, Schedule]) -> None:
    """As another run of the kernels would, so that packing needs none."""
    network, overlay, schedule = case
    lowered = lower(network, overlay, schedule)
    again = packing._starts(lowered.kernels)
    assert lowered.starts is not None
    for unit, starts in again.items():
        assert [clock for clock, _ in lowered.starts[unit]] == [clock for clock, _ in starts]
    assert uops_of_image(pack(lowered.kernels, lowered.starts)) == uops_of_image(pack(lowered.kernels))


def test_rules_are_those_of_the_kind_of_segment() -> None:
    """Only the stores of the products that the rule names come in the pieces it names."""
    network = encoder(1, 512, 4, 1024, 1)
    names = kinds(network)
    up = next(name for name in names if "gelu" in name)
    sizes: dict[str, set[int]] = {}
    for blocks in (2, 16):
        given = tuple((name, DramPolicy(4.0, blocks if name == up else 8)) for name in names)
        lowered = lower(network, XNN, listed(rules=given))
        hidden = next(b for b in lowered.kernels.buffers if b.name.endswith(".h"))
        inside = range(hidden.offset, hidden.offset + hidden.size // 16)
        for mop in ddr(lowered):
            if mop.store:
                where = f"{blocks} {'up' if mop.addr in inside else 'else'}"
                sizes.setdefault(where, set()).add(mop.size * mop.chunks // ELEMENTS)
    assert max(sizes["2 up"]) == 2
    assert max(sizes["16 up"]) == 16
    assert sizes["2 else"] == sizes["16 else"]
    assert max(sizes["2 else"]) <= 8


def test_longer_patience_lets_stores_go_earlier() -> None:
    """Counted in loads that go before a store, over the whole program."""
    network = encoder(1, 512, 8, 2048, 1)
    before = []
    for patience in (-1000.0, 1000.0):
        own = tuple((kind, DramPolicy(patience, 4)) for kind in kinds(network))
        loads = 0
        total = 0
        for mop in ddr(lower(network, XNN, listed(rules=own))):
            loads += mop.load
            total += loads * mop.store
        before.append(total)
    assert before[1] < before[0]


# -- pieces --------------------------------------------------------------------------------------------------------

accesses = st.builds(
    Access,
    st.just("MemA0"),
    st.just(False),
    st.integers(0, 50).map(lambda n: BLOCK * n),
    st.integers(1, 9).map(lambda n: BLOCK * n),
    st.integers(1, 5),
    st.just(9 * BLOCK),
).map(lambda a: a if a.chunks > 1 else Access(a.peer, a.store, a.addr, a.size))


def blocks_of(access: Access) -> list[int]:
    chunks = (access.addr + c * access.stride for c in range(access.chunks))
    return [(at + b) // BLOCK for at in chunks for b in range(0, access.size, BLOCK)]


@given(st.lists(accesses, min_size=1, max_size=4), st.data())
def test_pieces_of_loads_are_what_uops_take(given: list[Access], data: st.DataObject) -> None:
    """A uOP may take several accesses, and an access feed several uOPs; no piece reaches into the next uOP."""
    left = sum(a.elements for a in given) // BLOCK
    wanted: list[int] = []
    while left:
        wanted.append(data.draw(st.integers(1, left)))
        left -= wanted[-1]
    ends = set(np.cumsum(wanted).tolist())
    queue = deque(BLOCK * n for n in wanted)
    got = [piece for access in given for piece in _load_pieces(access, queue)]
    assert [b for p in got for b in blocks_of(p)] == [b for a in given for b in blocks_of(a)]
    assert not queue
    at = 0
    for piece in got:
        size = piece.elements // BLOCK
        assert not any(at < end < at + size for end in ends)
        at += size


@given(accesses, st.sampled_from(STORE_BLOCKS))
def test_pieces_of_stores_are_no_larger_than_asked(access: Access, most: int) -> None:
    got: list[Access] = list(_store_pieces(access, most))
    assert [b for p in got for b in blocks_of(p)] == blocks_of(access)
    assert all(p.elements <= most * BLOCK for p in got)


def test_strict_and_paper_schedules_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any) -> Callable[..., Any]:
        raise AssertionError("listed")

    monkeypatch.setattr("rsn.scheduler.dram.list_accesses", never)
    for schedule in (PAPER, STRICT):
        assert lower(SMALL[0][0], XNN, schedule).found is None
