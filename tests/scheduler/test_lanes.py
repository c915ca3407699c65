"""Networks on an overlay of row lanes (xnn2): results, modes, memories, times."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import UnsupportedError
from rsn.hw.sim.machine import Machine
from rsn.isa.expansion import ExpandedProgram
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.lanes import SlotPart
from rsn.isa.layout import block
from rsn.isa.overlays import find
from rsn.isa.overlays.xnn2 import XNN2
from rsn.isa.overlays.xnn2.rows import columns_of
from rsn.isa.program import Role
from rsn.isa.verify import check
from rsn.isa.versal.tokens import SlotTokens
from rsn.isa.work import Access
from rsn.machine.executor import ProcessNetwork
from rsn.scheduler.bounds import bounds
from rsn.scheduler.build import build
from rsn.scheduler.graph import ActivationFunction, Gemm, LayerGraph, Norm, Output
from rsn.scheduler.lanes.blocks import Sequences
from rsn.scheduler.lanes.lowering import best
from rsn.scheduler.lanes.order import jobs
from rsn.scheduler.lanes.panels import panels_of, shared
from rsn.scheduler.schedule import PAPER
from rsn.tests.effort import examples, full, long

from .networks import Maker, error, execute, reference


def worst(network: LayerGraph, x: np.ndarray) -> float:
    """The largest deviation on xnn2, by the largest magnitude. The check finds no errors."""
    out, program, _ = execute(network, x, XNN2)
    assert [f for f in check(program) if not f.warning] == []
    return error(out, reference(network, x))


def rows(network: LayerGraph, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((network.batch, network.seq, network.inputs["x"])).astype(np.float32)


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "seq", "mode", "on_chip"),
    [
        (1, 384, "P3", True),
        full(1, 128, "P3", True),
        pytest.param(3, 300, "P3", True, marks=pytest.mark.long),  # a panel for each sequence
        full(2, 300, "R6", True),
        pytest.param(2, 384, "R6", True, marks=pytest.mark.long),
        (4, 200, "P3", False),
        pytest.param(5, 130, "R6", True, marks=pytest.mark.long),
        (3, 512, "R6", False),  # two panels share a sequence
        pytest.param(2, 640, "R6", True, marks=pytest.mark.long),  # five of six lanes
        full(1, 768, "R6", True),
        full(6, 100, "R6", True),
    ],
)
def test_encoder_of_any_length(batch: int, seq: int, mode: str, on_chip: bool) -> None:
    maker = Maker()
    network = maker.encoder(batch, seq, 256, 4, 512, act=ActivationFunction.GELU_ERF, layers=2)
    lowering = best(network, XNN2, PAPER)
    assert (lowering.mode.name, lowering.on_chip) == (mode, on_chip)
    assert worst(network, rows(network, maker.rng)) < 1e-5


@given(st.data())
@examples(200, 4, deadline=None)
def test_any_encoder_is_computed(data: st.DataObject) -> None:
    heads, width = data.draw(st.sampled_from([(1, 64), (2, 64), (3, 64), (4, 32), (2, 96), (1, 128), (5, 40)]))
    maker = Maker(np.random.default_rng(data.draw(st.integers(0, 1000))))
    network = maker.encoder(
        data.draw(st.integers(1, 4)),
        data.draw(st.integers(1, 700)),
        heads * width,
        heads,
        data.draw(st.integers(1, 5)) * 96,
        act=data.draw(st.sampled_from(ActivationFunction)),
        layers=data.draw(st.integers(1, 2)),
        pre_norm=data.draw(st.booleans()),
        rms=data.draw(st.booleans()),
    )
    assert worst(network, rows(network, maker.rng)) < 1e-5


@given(st.data())
@examples(300, 6, deadline=None)
def test_any_chain_of_products_is_computed(data: st.DataObject) -> None:
    """Products with any of what the machine applies, residuals to any earlier activation, through both modes."""
    maker = Maker(np.random.default_rng(data.draw(st.integers(0, 1000))))
    widths = st.sampled_from([64, 128, 200, 1000])
    known = {"x": data.draw(widths)}
    layers: list[Gemm] = []
    for i in range(data.draw(st.integers(1, 5))):
        x = data.draw(st.sampled_from(sorted(known)))
        k = known[x]
        residuals = [name for name in known if known[name] <= 1024]
        residual = data.draw(st.none() | st.sampled_from(sorted(residuals)))
        n = data.draw(widths) if residual is None else known[residual]
        act = data.draw(st.none() | st.sampled_from(ActivationFunction)) if residual is None else None
        norm = (
            Norm(data.draw(st.sampled_from([1e-5, 1.0])), data.draw(st.booleans()))
            if act is None and data.draw(st.booleans())
            else None
        )
        scale = None if residual is None else 1 + maker.vector(n)
        name = f"y{i}"
        layers.append(Gemm(f"g{i}", x, name, maker.matrix(k, n), maker.vector(n), act, residual, scale, norm))
        known[name] = n
    network = LayerGraph(
        data.draw(st.integers(1, 3)), data.draw(st.integers(1, 500)), {"x": known["x"]}, (Output(layers[-1].y),),
        tuple(layers),
    )  # fmt: skip
    assert worst(network, rows(network, maker.rng)) < 1e-5


@pytest.mark.parametrize(("batch", "seq", "layers"), [(3, 512, 3)])
def test_a_norm_is_applied_once(batch: int, seq: int, layers: int) -> None:
    """Rows whose variance is no larger than eps: what was stored with its norm is not normalised again."""
    maker = Maker()
    network = maker.encoder(batch, seq, 128, 2, 128, eps=1.0, layers=layers)
    assert worst(network, 0.1 * rows(network, maker.rng)) < 1e-5


@pytest.mark.parametrize(("batch", "seq"), [(2, 129), (1, 384)])
@pytest.mark.parametrize("norm", [None, Norm(1e-5, rms=True)])
def test_a_norm_of_a_residual_that_is_overwritten(batch: int, seq: int, norm: Norm | None) -> None:
    """x and z = norm(g(x) + x) fill both banks, so h(x) + z takes the place of z, tile by tile."""
    maker = Maker()
    layers = (
        Gemm("g", "x", "z", maker.matrix(1000, 1000), maker.vector(1000), residual="x", norm=Norm(1e-5)),
        Gemm("h", "x", "y", maker.matrix(1000, 1000), maker.vector(1000), residual="z", norm=norm),
    )
    network = LayerGraph(batch, seq, {"x": 1000}, (Output("y"),), layers)
    assert worst(network, 1 + 3 * rows(network, maker.rng)) < 1e-5


@pytest.mark.parametrize("count", [3, 4])
def test_products_in_a_row(count: int) -> None:
    maker = Maker()
    names = ["x", *(f"y{i}" for i in range(count))]
    layers = [Gemm(f"g{i}", names[i], y, maker.matrix(128, 128), maker.vector(128)) for i, y in enumerate(names[1:])]
    network = LayerGraph(2, 129, {"x": 128}, (Output(names[-1]),), tuple(layers))
    assert worst(network, rows(network, maker.rng)) < 1e-5


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize(("batch", "seq", "mode"), [(1, 300, "P3"), (2, 300, "R6"), long(3, 512, "R6")])
def test_rows_from_ddr_are_normalised(batch: int, seq: int, mode: str, rms: bool) -> None:
    """The first layer reads its input with a norm, and adds to the input without it."""
    maker = Maker()
    network = maker.encoder(batch, seq, 192, 3, 256, pre_norm=True, rms=rms, layers=2)
    assert network.layers[0].x == "x"
    assert not network.layers[0].multiplies
    assert best(network, XNN2, PAPER).mode.name == mode
    assert worst(network, 2 * rows(network, maker.rng) + 1) < 1e-5


def test_statistics_of_a_panel_before_do_not_change_while_it_is_stored() -> None:
    """Normed rows of 8 column tiles are stored while those of the next panel, of a column tile, come to the same bank.
    An odd lane has none of these, and must leave the statistics of the others as they are."""
    m = Maker()
    widths = {"a": (64, 128), "b": (128, 64), "c": (64, 1000), "d": (1000, 200), "e": (200, 128), "f": (128, 1000)}
    x = "x"
    layers: list[Gemm] = []
    adds, norms = {"b": "x", "f": "c"}, "bdf"
    for name, (k, n) in widths.items():
        act = ActivationFunction.GELU_ERF if name in "ace" else None
        norm = Norm(1e-5) if name in norms else None
        layers.append(Gemm(name, x, name, m.matrix(k, n), m.vector(n), act, adds.get(name), None, norm))
        x = name
    network = LayerGraph(2, 512, {"x": 64}, (Output("f"),), tuple(layers))
    assert worst(network, rows(network, np.random.default_rng(1))) < 1e-5


def test_lengths_differ() -> None:
    maker = Maker()
    network = maker.encoder(3, 300, 128, 2, 256).with_lengths([300, 40, 129])
    out, _, _ = execute(network, x := rows(network, maker.rng), XNN2)
    want = reference(network, x)
    for b, n in enumerate([300, 40, 129]):
        assert error(out[b, :n], want[b, :n]) < 1e-5


@pytest.mark.parametrize("seq", [128, pytest.param(512, marks=pytest.mark.long)])
def test_results_do_not_depend_on_the_order_of_processes(seq: int) -> None:
    """Tokens order all accesses to memories: whichever process goes first, results are the same to the bit."""
    maker = Maker()
    network = maker.encoder(2, seq, 128, 2, 256)
    built = build(network, XNN2, PAPER)
    x = rows(network, maker.rng)
    results = []
    for seed in (None, 1, 2):
        banks = {bank: np.zeros(built.program.bank_size(bank), np.float32) for bank in XNN2.banks}
        for name, flat in built.weights.items():
            b = built.program.buffer(name)
            banks[b.bank][16 * b.offset : 16 * b.offset + b.size] = flat
        (source,) = built.program.with_role(Role.INPUT)
        banks["ddr"][16 * source.offset : 16 * source.offset + source.size] = block(x.reshape(source.shape))

        def shuffled(tasks: list[Any], seed: int | None = seed) -> list[Any]:
            if seed is not None:
                random.Random(seed).shuffle(tasks)
            return tasks

        path = InstructionPath.of(built.program)
        ProcessNetwork(XNN2, path, banks=banks, data=True, order=shuffled).run()
        (out,) = built.program.with_role(Role.OUTPUT)
        results.append(banks["ddr"][16 * out.offset : 16 * out.offset + out.size].copy())
    assert np.isfinite(results[0]).all()
    assert all(np.array_equal(results[0], other) for other in results[1:])


# -- what does not fit ------------------------------------------------------------------------------------------------


def test_rows_wider_than_a_bank_of_x_are_refused() -> None:
    network = Maker().encoder(1, 128, 2176, 34, 128)
    with pytest.raises(UnsupportedError, match=r"128 rows of 2176 columns need 1088 KiB; a bank of X has 1024 KiB"):
        build(network, XNN2, PAPER)


@pytest.mark.long
def test_rows_of_2048_columns_go_through_both_lanes_of_a_pair() -> None:
    maker = Maker()
    network = maker.encoder(2, 384, 2048, 16, 256)  # heads of 128 columns
    assert best(network, XNN2, PAPER).mode.name == "P3"
    assert worst(network, rows(network, maker.rng)) < 1e-5


def test_probabilities_that_t_does_not_hold_are_refused() -> None:
    network = Maker().encoder(1, 23 * 128, 64, 1, 64)
    message = r"a sequence of 2944 rows: .* need 1472 KiB; T of an odd lane has 1024 KiB for them"
    with pytest.raises(UnsupportedError, match=message):
        build(network, XNN2, PAPER)


def test_a_bias_of_scores_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="a bias of scores; overlay xnn2 has masks of rows and columns only"):
        build(Maker().encoder(1, 128, 128, 2, 128, biases=(1, 2)), XNN2, PAPER)


# -- segments and bounds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "seq"), [(3, 512), pytest.param(6, 384, marks=pytest.mark.long)])
def test_segments_have_all_instructions_and_the_bound_holds(batch: int, seq: int) -> None:
    network = Maker().encoder(batch, seq, 256, 4, 512, layers=2)
    built = build(network, XNN2, PAPER)
    program = built.program
    assert [s.name for s in program.segments] == ["l0.x1", "l0.y", "l1.x1", "l1.y"]
    assert [s.outputs for s in program.segments][-1] == ("l1.y",)
    assert {path for s in program.segments for path in s.layers} == {layer.path for layer in network.layers}
    for unit, uops in ExpandedProgram(program).sequences.items():
        covered = np.zeros(len(uops), bool)
        for segment in program.segments:
            for first, end in segment.uops.get(unit, ()):
                assert 0 <= first < end <= len(uops)
                covered[first:end] = True
        assert covered.all(), unit
    found = bounds(network, XNN2, program.segments)
    assert set(found.segments[0].layers) == {"l0.q_proj", "l0.k_proj", "l0.v_proj", "l0.attention", "l0.dense"}
    assert found.bound_s < Machine(program).run().latency_s
    assert found.bound_s == pytest.approx(bounds(network, XNN2).bound_s)


# -- panels and tokens ------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 1500), min_size=1, max_size=8), st.sampled_from([3, 6]))
def test_panels_hold_all_rows_once_and_groups_share_no_sequence(lengths: list[int], size: int) -> None:
    sequences = Sequences(tuple(lengths))
    groups = list(shared(panels_of(sequences, size)))
    assert [t for group in groups for panel in group for t in panel.tiles] == list(sequences.all)
    seqs = [{t.seq for panel in group for t in panel.tiles} for group in groups]
    assert all(a.isdisjoint(b) for i, a in enumerate(seqs) for b in seqs[i + 1 :])


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 4), min_size=1, max_size=3)), max_size=60))
def test_tokens_order_reads_behind_writes_and_writes_behind_reads(accesses: list[tuple[bool, list[int]]]) -> None:
    """Each operation waits for enough tokens that every access to its slots before it has ended; and never for what
    comes behind it."""
    slots = SlotTokens()
    tiles, reads = 0, 0
    waited = {True: 0, False: 0}
    last_write: dict[int, int] = {}
    last_read: dict[int, int] = {}
    for writes, places in accesses:
        if writes:
            waited[True] += slots.write(places)
            assert max(last_read.get(s, 0) for s in places) <= waited[True] <= reads
            for s in places:
                tiles += 1
                last_write[s] = tiles
        else:
            waited[False] += slots.read(places)
            assert max(last_write.get(s, 0) for s in places) <= waited[False] <= tiles
            reads += 1
            last_read |= dict.fromkeys(places, reads)


# -- order ------------------------------------------------------------------------------------------------------------


def test_weights_come_behind_the_first_rows() -> None:
    """Later rows come behind the stores before them, and hold up no weights."""
    peers = ("TIn1", "TIn3", "W1", "Post0", "TIn1", "W1", "XStore0", "KvIn0")
    accesses = [Access(peer, peer in ("Post0", "XStore0"), 0, 8192) for peer in peers]
    assert [job.behind for job in jobs(accesses)] == [(), (), (0, 1), (), (3,), (), (), ()]
    assert [job.behind for job in jobs(accesses[2:4])] == [(), ()]


@pytest.mark.parametrize("seq", [384, 768], ids=["P3", "R6"])
def test_results_of_heads_wait_in_even_lanes(seq: int) -> None:
    """T of the odd lane has enough to do with probabilities."""
    kernels = build(Maker().encoder(1, seq, 256, 4, 512), XNN2, PAPER).kernels.sequences
    takes = {lane for lane in range(6) for mop in kernels[f"TIn{lane}"] if mop.part != SlotPart.WHOLE}
    assert takes == {0, 2, 4}


def test_a_larger_t_takes_longer_sequences_in_less_time(root: Path) -> None:
    """programs/overlays/xnn2_large.toml: T of an odd lane holds the probabilities of two heads of 1536 rows."""
    large, of = find(str(root / "programs/overlays/xnn2_large.toml")), Maker().encoder(1, 1536, 256, 4, 512)
    assert large.lanes is not None
    assert large.lanes.scratch == (8, 24)
    slow, fast = (Machine(build(of, overlay, PAPER).program).run().latency_s for overlay in (XNN2, large))
    assert fast < 0.95 * slow


def test_rows_that_are_stored_make_room_in_parts() -> None:
    """The next attention writes to their bank: its first columns wait for the first part alone."""
    kernels = build(Maker().encoder(3, 512, 1024, 16, 128), XNN2, PAPER).kernels.sequences
    stores = [mop.tiles for mop in kernels["XStore0"]]
    waits = [mop.stored for mop in kernels["XIn0"] if mop.stored]
    assert set(stores) == {4}
    assert sum(waits) == len(stores)
    assert 1 in waits


# -- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "seq", "layers"), [(1, 384, 2), (3, 300, 2), long(6, 512, 1)], ids=["P3", "R6", "BERT-Large, DDR"]
)
def test_no_two_ports_read_a_bank_of_x_at_once(batch: int, seq: int, layers: int) -> None:
    """A bank has one port that reads, and the model charges nothing for two ports that want it (docs/xnn2.md)."""
    hidden, heads, inner = (1024, 16, 4096) if batch == 6 else (256, 4, 512)
    program = build(Maker().encoder(batch, seq, hidden, heads, inner, layers=layers), XNN2, PAPER).program
    path = InstructionPath.of(program)
    net = ProcessNetwork(program.overlay, path, record=True)
    net.run()
    assert net.events is not None
    units, log = list(net.progress), net.events
    uops = {name: list(path.uops(name)) for name in units if name.startswith(("XIn", "XOut", "XStore"))}
    reads: dict[tuple[str, int], list[tuple[float, float, str]]] = {}
    for unit, start, end, number in zip(log.unit, log.start, log.end, log.number, strict=True):
        name = units[unit]
        if name not in uops or end <= start:
            continue
        uop = uops[name][number]
        if uop.tiles and (not name.startswith("XIn") or uop.add):
            bank = uop.slot // columns_of(program.overlay.by_unit[f"XIn{name[-1]}"])
            reads.setdefault((name[-1], bank), []).append((start, end, name))
    assert {name.rstrip("012345") for of in reads.values() for *_, name in of} == {"XIn", "XOut", "XStore"}
    for of in reads.values():
        for (_, end, one), (start, _, other) in itertools.pairwise(sorted(of)):
            assert one == other or start > end - 1e-12


@pytest.mark.long
@pytest.mark.parametrize(
    ("layers", "batch", "seq", "most_ms", "busy"),
    [(1, 6, 512, 13.5, 0.92), (24, 1, 384, 39.5, 0.92), full(24, 2, 384, 77.5, 0.94), full(24, 8, 384, 308, 0.94)],
)
def test_bert_large_takes_little_more_than_its_products(
    layers: int, batch: int, seq: int, most_ms: float, busy: float
) -> None:
    """The published overlay takes 17.98, 95, 122 and 444 ms (paper section 5). busy: of the MMEs, with products."""
    lowering = best(_empty(layers, batch, seq, 1024, 16, 4096), XNN2, PAPER)
    program = build(lowering.net, XNN2, PAPER).program
    run = Machine(program).run()
    assert run.latency_s * 1e3 < most_ms
    seconds = XNN2.seconds
    tiles = -(-seq // 128)
    products = layers * batch * tiles * (12 * 64 * seconds["mme_tile_us"]
               + 16 * tiles * (seconds["mme_k64_us"] + seconds["mme_n64_us"])) / 6  # fmt: skip
    assert products / run.latency_s > busy
    assert 4 * len(program.image) < 512 << 10
    assert all(2 * len(ops) <= 510 for ops in program.preloaded.values())
    if layers == 1:
        assert run.bytes["ddr_read"] + run.bytes["ddr_write"] < 95e6


def _empty(layers: int, batch: int, seq: int, hidden: int, heads: int, ffn: int) -> LayerGraph:
    """An encoder whose weights are all the same zeros."""
    maker = Maker()
    maker.matrix = lambda *shape: np.broadcast_to(np.float32(0), shape)  # type: ignore[method-assign]
    return maker.encoder(batch, seq, hidden, heads, ffn, layers=layers)
