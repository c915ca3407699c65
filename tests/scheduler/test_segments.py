"""Segments by module path (paper section 4.5, Fig. 13): what goes together, how, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rsn.base.errors import ScheduleError
from rsn.isa.overlays import XNN
from rsn.scheduler.graph import AttentionLayer, LayerGraph
from rsn.scheduler.groups import Planned, plan
from rsn.scheduler.mapping import MappingType
from rsn.scheduler.schedule import DramPolicy, Interleave, Loops, Schedule, Segment, Tiles
from rsn.scheduler.search import price

from .networks import Maker, error, execute, reference
from .test_any_shape import inputs

QKV = ("*.q_proj", "*.k_proj", "*.v_proj")


def encoder(layers: int = 2) -> LayerGraph:
    return Maker().encoder(2, 256, 256, 4, 512, layers=layers)


def paths(planned: Planned) -> Sequence[str]:
    return [planned.layers.path] if isinstance(planned.layers, AttentionLayer) else [g.path for g in planned.layers]


def of(network: LayerGraph, path: str, *segments: Segment, **knobs: object) -> Planned:
    schedule = Schedule(segments=segments, **knobs)  # type: ignore[arg-type]
    return next(planned for planned in plan(network, schedule) if path in paths(planned))


def test_products_of_one_activation_go_together_in_every_layer() -> None:
    planned = plan(encoder(), Schedule(segments=(Segment(QKV),)))
    assert [paths(p) for p in planned if len(paths(p)) > 1] == [
        ["l0.q_proj", "l0.k_proj", "l0.v_proj"],
        ["l1.q_proj", "l1.k_proj", "l1.v_proj"],
    ]
    assert {p.loops for p in planned if len(paths(p)) > 1} == {Loops.ROWS}
    assert {p.loops for p in planned if len(paths(p)) == 1} == {Loops.COLUMNS}


def test_a_product_that_is_named_alone_leaves_the_others() -> None:
    planned = plan(encoder(1), Schedule(loops=Loops.ROWS, segments=(Segment("l0.q_proj", tiles=Tiles(2)),)))
    assert [paths(p) for p in planned[:2]] == [["l0.q_proj"], ["l0.k_proj", "l0.v_proj"]]
    assert [p.tiles.tile_rows for p in planned[:2]] == [2, 6]


def test_the_first_that_names_a_layer_holds_and_the_rest_is_as_by_kind() -> None:
    two = Segment("l1.attention", MappingType.A), Segment("l*.attention", MappingType.B, overlap=False)
    network = encoder()
    assert of(network, "l1.attention", *two).mapping is MappingType.A
    assert of(network, "l0.attention", *two).mapping is MappingType.B
    assert [of(network, f"l{i}.attention", *two).drain for i in range(2)] == [True, False]
    kind = of(network, "l0.up").kind
    drained = of(network, "l0.up", Segment("l0.up", overlap=True), drain=(kind,)), of(network, "l1.up", drain=(kind,))
    assert [planned.drain for planned in drained] == [False, True]
    rule = DramPolicy(1.0, 4)
    listed = of(network, "l0.up", Segment("l0.up", rule=rule), interleave=Interleave.LISTED)
    assert (listed.rule, of(network, "l0.down", interleave=Interleave.LISTED).rule) == (rule, DramPolicy())


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(segments=(Segment(QKV, overlap=False), Segment("l1.attention", MappingType.B))),
        Schedule(segments=(Segment("l0.attention", MappingType.A), Segment("*.up", tiles=Tiles(2, 2, 1, 1)))),
    ],
)
def test_the_machine_computes_the_same(schedule: Schedule) -> None:
    network = encoder()
    x = inputs(network)
    y, program, _ = execute(network, x, XNN, schedule)
    assert error(y, reference(network, x)) < 1e-5
    plain = execute(network, x)[1]
    assert program.image.tolist() != plain.image.tolist()


def test_overlap_is_worth_time() -> None:
    network = encoder()
    apart = tuple(Segment(layer.path, overlap=False) for layer in network.layers)
    assert price(network, XNN, Schedule(segments=apart)).latency > 1.02 * price(network, XNN, Schedule()).latency


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        (
            [Segment("l*.query")],
            "segments: 'l*.query' matches no layer; there are l0.q_proj, l0.k_proj, l0.v_proj, l0.attention, l0.dense, "
            "l0.up, l0.down",
        ),
        (
            [Segment("l0.*"), Segment("l0.up")],
            "segments: 'l0.up' matches only layers that an earlier entry matches; the first entry that matches a layer "
            "applies",
        ),
        ([Segment("l0.q_prj")], "segments: 'l0.q_prj' matches no layer; did you mean l0.q_proj, l0.v_proj, l0.k_proj?"),
        (
            [Segment("l0")],
            "segments: 'l0' is not a layer but contains layers: l0.q_proj, l0.k_proj, l0.v_proj, l0.attention, "
            "l0.dense, l0.up, l0.down",
        ),
        (
            [Segment(("l0.up", "l0.down"))],
            "segments: l0.up cannot form one segment with l0.down: a segment is one attention, or consecutive products "
            "of the same activation without residual and LayerNorm",
        ),
        (
            [Segment("l0.attention", tiles=Tiles(2))],
            "segments: l0.attention is an attention; tiles and loops apply to products only",
        ),
        (
            [Segment("l0.up", MappingType.A)],
            "segments: l0.up is a product; a mapping type applies to an attention only",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_by_path(segments: list[Segment], message: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        plan(encoder(1), Schedule(segments=tuple(segments)))
    assert str(refused.value) == message


def test_the_published_order_drains_between_the_groups_of_table_9() -> None:
    """Projections, attention, what is behind it; a group of products, which no attention takes, is none of its own."""
    planned = plan(encoder(), Schedule(interleave=Interleave.PUBLISHED))
    assert [path for p in planned for path in paths(p) if p.drain] == [
        "l0.v_proj", "l0.attention", "l0.down", "l1.v_proj", "l1.attention",
    ]  # fmt: skip
    together = plan(encoder(1), Schedule(interleave=Interleave.PUBLISHED, segments=(Segment(QKV),)))
    assert [paths(p)[-1] for p in together if p.drain] == ["l0.v_proj", "l0.attention"]
    chain = Maker().gemm(768, 128, 128)
    assert [p.drain for p in plan(chain, Schedule(interleave=Interleave.PUBLISHED))] == [False]
    overlapped = Segment("l0.attention", overlap=True)
    assert not of(encoder(), "l0.attention", overlapped, interleave=Interleave.PUBLISHED).drain
