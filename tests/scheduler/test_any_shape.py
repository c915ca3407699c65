"""Whatever the shape and whatever the schedule, the machine computes what numpy computes, or says why it cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from rsn.base.errors import UnsupportedError
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.verify import check, dry_run
from rsn.scheduler.build import build
from rsn.scheduler.graph import ActivationFunction, AttentionLayer, Gemm, LayerGraph, Norm, Output
from rsn.scheduler.groups import plan
from rsn.scheduler.mapping import MappingType
from rsn.scheduler.schedule import PAPER, STORE_BLOCKS, STRICT, DramPolicy, Interleave, Loops, Schedule, Segment, Tiles
from rsn.tests.effort import examples, full, long

from .networks import Maker, error, execute, reference

A, B, C, D, _ = MappingType
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
"""Failures are small as it is, and to make them smaller takes minutes and gigabytes."""

rules = st.builds(
    DramPolicy,
    patience_us=st.floats(-1000, 1000),
    store_blocks=st.sampled_from(STORE_BLOCKS),
    by_columns=st.booleans(),
    in_order=st.booleans(),
)


@st.composite
def cuts(draw: st.DrawFn, normed: bool) -> dict[str, int]:
    """How products are cut; those with a norm take both columns of MMEs."""
    rows, cols = draw(st.integers(1, 3)), 2 if normed else draw(st.integers(1, 2))
    return {
        "mme_rows": rows,
        "mme_cols": cols,
        "tile_rows": draw(st.sampled_from([n for n in (1, 2, 3, 4, 6) if n <= 2 * rows])),
        "tile_cols": draw(st.integers(1, 4 * cols)),
    }


@st.composite
def schedules(draw: st.DrawFn, network: LayerGraph) -> Schedule:
    """Any that there is. Whether attention of a type is legal depends on the rows: up to 768 all are."""
    knobs: dict[str, Any] = {
        "interleave": draw(st.sampled_from(Interleave)),
        "loops": draw(st.sampled_from(Loops)),
        "balance": draw(st.booleans()),
        "attention": draw(st.sampled_from([None, *MappingType])),
        "heads_per_slot": draw(st.sampled_from([1, 2, 4])),
    }
    blocks = sum(-(-n // 128) for n in network.rows)
    attends = any(isinstance(layer, AttentionLayer) for layer in network.layers)
    fits = blocks == 3 or blocks % 6 == 0 or (network.batch == 1 and not attends)
    whole = fits and draw(st.integers(0, 3)) == 0
    knobs["segments"] = tuple(draw(segments(network, whole)))
    planned = plan(network, Schedule(loops=knobs["loops"], segments=knobs["segments"]))
    kinds = {segment.kind: segment.layers for segment in planned}
    products = {kind: any(g.norm for g in group) for kind, group in kinds.items() if isinstance(group, list)}
    knobs |= draw(cuts(any(products.values())))
    knobs["tiles"] = tuple((k, Tiles(**draw(cuts(normed)))) for k, normed in products.items() if draw(st.booleans()))
    knobs["drain"] = tuple(kind for kind in kinds if draw(st.integers(0, 3)) == 0)
    if whole:
        knobs |= {"whole_tiles": True, "tiles": (), **vars(Tiles())}
    if knobs["interleave"] is Interleave.LISTED:
        knobs["rules"] = tuple((kind, draw(rules)) for kind in kinds if draw(st.booleans()))
    return Schedule(**knobs)


@st.composite
def segments(draw: st.DrawFn, network: LayerGraph, whole: bool) -> list[Segment]:
    """Layers by name: queries, keys and values together, an attention of another type, a product of its own."""
    out: list[Segment] = []
    paths = {layer.path for layer in network.layers}
    together = [path for path in ("l0.q_proj", "l0.k_proj", "l0.v_proj") if path in paths]
    if together and draw(st.booleans()):
        out.append(Segment(together, overlap=draw(st.booleans()), loops=draw(st.sampled_from([None, *Loops]))))
    if "l0.attention" in paths and draw(st.booleans()):
        out.append(Segment("l*.attention", draw(st.sampled_from(MappingType)), draw(st.booleans())))
    if "l0.up" in paths and draw(st.booleans()):
        out.append(Segment("*.up", tiles=None if whole else Tiles(**draw(cuts(normed=False)))))
    return out


def inputs(network: LayerGraph, seed: int = 1) -> np.ndarray:
    shape = (network.batch, network.seq, network.inputs["x"])
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_computes(
    network: LayerGraph, schedule: Schedule, overlay: Overlay = XNN, lengths: list[int] | None = None
) -> None:
    x = inputs(network)
    y, program, _ = execute(network, x, overlay, schedule, lengths)
    wanted = reference(network, x, lengths)
    for b, n in enumerate(lengths or network.rows):
        assert error(y[b, :n], wanted[b, :n]) < 1e-4
    assert [f for f in check(program) + dry_run(program) if not f.warning] == []
    assert program.overlay.mop_fifo_depth == 6


@examples(40, quick=4, phases=UNSHRUNK)
@given(
    seq=st.integers(1, 400) | st.sampled_from([127, 128, 129, 256, 257, 384, 385, 512, 640, 767, 768]),
    heads=st.integers(1, 5),
    head_dim=st.sampled_from([1, 8, 20, 33, 48, 64]),
    ffn=st.integers(1, 700),
    masked=st.booleans(),
    data=st.data(),
)
def test_any_encoder_by_any_schedule(
    seq: int, heads: int, head_dim: int, ffn: int, masked: bool, data: st.DataObject
) -> None:
    """In two layers the second reuses the memory of the first."""
    batch = data.draw(st.integers(1, max(1, min(4, 700 // seq))), "batch")
    layers = data.draw(st.integers(1, 2), "layers")
    pre_norm = data.draw(st.booleans(), "pre_norm")
    biases = data.draw(st.none() | st.tuples(st.sampled_from([1, batch]), st.sampled_from([1, heads])), "biases")
    network = Maker().encoder(
        batch,
        seq,
        heads * head_dim,
        heads,
        ffn,
        masked=masked,
        layers=layers,
        pre_norm=pre_norm,
        biases=biases,
        rms=data.draw(st.booleans(), "rms"),
    )
    if data.draw(st.booleans(), "ragged"):
        network = network.with_lengths([data.draw(st.integers(1, seq)) for _ in range(batch)])
    schedule = data.draw(schedules(network), "schedule")
    lengths = [data.draw(st.integers(1, n)) for n in network.rows] if masked else None
    assert_computes(network, schedule, lengths=lengths)


ROWS = Schedule(interleave=Interleave.LISTED, loops=Loops.ROWS, balance=True)


@pytest.mark.parametrize(
    ("batch", "seq", "heads", "ffn", "layers", "schedule"),
    [
        (1, 256, 16, 300, 1, ROWS),
        full(2, 384, 16, 200, 2, ROWS),
        long(1, 384, 32, 700, 1, Schedule(interleave=Interleave.HARDWARE, tile_rows=4, tile_cols=5)),
        full(1, 768, 16, 130, 1, Schedule(interleave=Interleave.LISTED, attention=A, tile_rows=1)),
        full(3, 256, 16, 1100, 1, Schedule(loops=Loops.ROWS, tile_cols=1)),
        long(1, 640, 16, 64, 1, Schedule(interleave=Interleave.STRICT, attention=B, loops=Loops.ROWS)),
        full(1, 896, 16, 128, 1, ROWS),
    ],
)
def test_the_base_overlay(batch: int, seq: int, heads: int, ffn: int, layers: int, schedule: Schedule) -> None:
    """What it can: whole row blocks, two of them at least; 1024 columns where there is a norm."""
    network = Maker().encoder(batch, seq, 1024, heads, ffn, layers=layers)
    assert not build(network, XNN_BASE, schedule).program.extended
    assert_computes(network, schedule, XNN_BASE)


@pytest.mark.parametrize("schedule", [PAPER, long(STRICT), long(ROWS)], ids=["paper", "strict", "rows"])
@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (33, 1), (20, 130)])
def test_many_short_sequences(batch: int, seq: int, schedule: Schedule) -> None:
    """More row tiles than one MME op counts to."""
    assert_computes(Maker().encoder(batch, seq, 40, 2, 50, masked=True), schedule, lengths=[max(1, seq - 5)] * batch)


def shared(
    rows: int, k: int, widths: tuple[int, int], out: int, act: ActivationFunction | None, normed: bool
) -> LayerGraph:
    """Two products of one input, of any widths; then one with what is made of the second as its residual."""
    make = Maker()
    n1, n2 = widths
    norm = Norm(1e-5) if normed else None
    layers = (
        Gemm("first", "x", "a", make.matrix(k, n1), make.vector(n1), act),
        Gemm("second", "x", "b", make.matrix(k, n2), make.vector(n2)),
        Gemm("again", "b", "c", make.matrix(n2, n2), make.vector(n2)),
        Gemm("last", "a", "y", make.matrix(n1, n2), make.vector(n2), None, "c", 1 + make.vector(n2), norm),
        Gemm("out", "y", "z", make.matrix(n2, out), make.vector(out)),
    )
    return LayerGraph(1, rows, {"x": k}, (Output("z"),), layers)


@examples(25, quick=2, phases=UNSHRUNK)
@given(
    rows=st.integers(1, 900),
    k=st.integers(1, 700),
    widths=st.tuples(st.integers(1, 1400), st.integers(1, 1400)),
    act=st.sampled_from([None, *ActivationFunction]),
    data=st.data(),
)
def test_products_of_one_activation(
    rows: int, k: int, widths: tuple[int, int], act: ActivationFunction | None, data: st.DataObject
) -> None:
    """They are lowered together, whether or not their tiles are alike."""
    network = shared(
        rows, k, widths, data.draw(st.integers(1, 300)), act, widths[1] <= 1024 and data.draw(st.booleans())
    )
    assert_computes(network, data.draw(schedules(network), "schedule"))


@pytest.mark.parametrize(("width", "tile_cols"), [(129, 1), (700, 2), (1000, 3), (1024, 7)])
def test_a_residual_in_panels_of_less_than_a_norm(width: int, tile_cols: int) -> None:
    """What is computed in several column tiles lies in as many panels; a norm wants all its columns in one."""
    network = shared(200, 60, (100, width), 70, None, normed=True)
    for loops in Loops:
        assert_computes(network, Schedule(loops=loops, tile_cols=tile_cols))


@pytest.mark.parametrize(("n", "tile_cols"), [(2048, 1), long(2000, 1), long(4200, 2), (5000, 8), long(3000, 3)])
def test_more_column_tiles_than_an_op_counts_to(n: int, tile_cols: int) -> None:
    """b_iter has 4 bits, and the bias of a group 2048 columns."""
    network = Maker().gemm(200, 300, n)
    for interleave in (Interleave.INTERLEAVED, Interleave.LISTED):
        assert_computes(network, Schedule(interleave=interleave, loops=Loops.ROWS, tile_cols=tile_cols), XNN_BASE)


# -- what is refused -----------------------------------------------------------------------------------------------


def test_as_many_rows_as_there_may_be() -> None:
    """Type B lifts the limit of 768, and is taken where there is no other."""
    for seq in (769, 1024):
        network = Maker().encoder(1, seq, 64, 1, 64, masked=True)
        assert_computes(network, ROWS, lengths=[seq - 1])
        assert_computes(network, Schedule(attention=B), lengths=[1])


@pytest.mark.parametrize(
    ("overlay", "schedule"),
    [
        (overlay, schedule)
        for overlay in (XNN, XNN_BASE)
        for schedule in (Schedule(attention=A), Schedule(attention=D), ROWS)
        if (overlay, schedule) != (XNN, ROWS)  # runs them in steps
    ],
    ids=lambda x: x.name if isinstance(x, Overlay) else None,
)
def test_longer_sequences_are_refused_with_the_limit_and_what_lifts_it(overlay: Overlay, schedule: Schedule) -> None:
    seq = 1152 if schedule is ROWS else 896
    network = Maker().encoder(1, seq, 1024, 16, 128)
    with pytest.raises(UnsupportedError) as refused:
        build(network, overlay, schedule)
    words = str(refused.value)
    assert f"l0.attention: sequences of {seq} rows" in words
    assert "768 rows" in words
    assert ("no mapping type" if schedule is ROWS else "type B") in words
    assert "1024 rows" in words


def test_type_b_is_refused_with_its_own_limit() -> None:
    with pytest.raises(UnsupportedError, match=r"l0.attention: sequences of 1025 rows; .* 1024 rows"):
        build(Maker().encoder(1, 1025, 64, 1, 64), XNN, Schedule(attention=B))


def test_more_ops_than_an_mme_holds_are_refused_by_name() -> None:
    from rsn.base.errors import ProgramError

    layers = tuple(
        Gemm(f"g{i}", "x" if not i else f"y{i}", f"y{i + 1}", np.zeros((8, 8), np.float32), np.zeros(8, np.float32))
        for i in range(511)
    )
    for schedule in (PAPER, ROWS):
        with pytest.raises(ProgramError, match="MME0 needs 511 ops but holds at most 510"):
            build(LayerGraph(1, 8, {"x": 8}, (Output("y511"),), layers), XNN, schedule)


# -- PyTorch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    [
        long(ROWS),
        long(Schedule(interleave=Interleave.HARDWARE, tile_rows=4, tile_cols=3, attention=A)),
        Schedule(
            interleave=Interleave.LISTED, attention=B, rules=(("attention 3x24", DramPolicy(-2.0, 1, by_columns=True)),)
        ),
    ],
    ids=["rows", "hardware", "apart"],
)
def test_pytorchs_encoder(schedule: Schedule) -> None:
    """Of odd sizes, with sequences of unequal length."""
    torch = pytest.importorskip("torch")
    import rsn

    torch.manual_seed(0)
    one = torch.nn.TransformerEncoderLayer(72, 3, 200, activation="gelu", batch_first=True)
    model = torch.nn.TransformerEncoder(one, 2, enable_nested_tensor=False).eval()
    x = torch.randn(3, 300, 72)
    lengths = torch.tensor([300, 1, 129])
    padding = torch.arange(300)[None] >= lengths[:, None]
    compiled = rsn.compile(model, {"src": x, "src_key_padding_mask": padding}, schedule=schedule)
    with torch.no_grad():
        wanted = model(x, src_key_padding_mask=padding)
        got = compiled(src=x, src_key_padding_mask=padding)
    compiled.close()
    for b, n in enumerate(lengths.tolist()):
        assert error(got[b, :n].numpy(), wanted[b, :n].numpy()) < 1e-4
