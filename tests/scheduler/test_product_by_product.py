"""Models on machines without patterns: the results are PyTorch's, or the refusal names what the machine lacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import rsn
from rsn.assembler import container
from rsn.assembler.parser import parse
from rsn.assembler.printer import show
from rsn.base.errors import ScheduleError, UnsupportedError
from rsn.cli.main import main
from rsn.host.boards.sim import SimBoard
from rsn.host.tensors import pack as pack_tensor
from rsn.host.tensors import unpack
from rsn.hw.sim.machine import Machine
from rsn.isa.expansion import ExpandedProgram
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import FIG6, OVERLAYS, XNN
from rsn.isa.program import Program, Role
from rsn.isa.segments import stored_buffers
from rsn.isa.verify import check, dry_run
from rsn.isa.work import Item
from rsn.machine.description import Capability, Stream, UnitSpec, Where
from rsn.scheduler.best import Best
from rsn.scheduler.bounds import bounds
from rsn.scheduler.build import Built, build
from rsn.scheduler.circuits import circuits_of
from rsn.scheduler.graph import ActivationFunction, AttentionLayer, LayerGraph
from rsn.scheduler.lower import require_compilable
from rsn.scheduler.pack import pack
from rsn.scheduler.schedule import PAPER, STRICT, Interleave, Schedule
from rsn.tests.effort import cases, in_both

from .networks import Maker, error, reference
from .toy_machines import POST_OPS, TOY3, TOY5, TOY5_SHARED, Toy, toy, toys
from .toy_units import Pass, Product

TOYS = [TOY3, TOY5, TOY5_SHARED]
BOUND = 1e-5


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for overlay in TOYS:
        monkeypatch.setitem(OVERLAYS, overlay.name, overlay)


def named(overlays: list[Overlay], quick: tuple[Overlay, ...] = (TOY3,)) -> Any:
    """A test for each overlay; those not in `quick` are left to `make test-long`."""
    cases = [pytest.param(o, id=o.name, marks=() if o in quick else pytest.mark.long) for o in overlays]
    return pytest.mark.parametrize("overlay", cases)


# -- PyTorch


def scrambled(model: nn.Module, seed: int = 0) -> nn.Module:
    """The same module in eval mode, with no weight, bias, scale or shift at its usual first value."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    return model.eval()


def encoder(norm_first: bool = False) -> nn.Module:
    return scrambled(nn.TransformerEncoderLayer(32, 2, 48, activation="gelu", batch_first=True, norm_first=norm_first))


def assert_same(model: nn.Module, overlay: Overlay, *x: torch.Tensor, **options: Any) -> rsn.Compiled:
    compiled = rsn.compile(model, x, overlay=overlay.name, **options)
    with torch.no_grad():
        wanted, got = model(*x), compiled(*x)
    assert error(got.numpy(), wanted.numpy()) < BOUND
    assert_sound(compiled.program)
    return compiled


def assert_sound(program: Program) -> None:
    """No deadlock, as many words sent as received, no hazard in memory."""
    assert [str(f) for f in check(program) + dry_run(program) if not f.warning] == []


@named(TOYS, quick=(TOY3, TOY5))
def test_a_perceptron(overlay: Overlay) -> None:
    model = scrambled(nn.Sequential(nn.Linear(48, 70), nn.GELU(), nn.Linear(70, 20), nn.ReLU(), nn.Linear(20, 70)))
    assert_same(model, overlay, torch.randn(2, 50, 48))


@named(TOYS)
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_an_encoder_layer(overlay: Overlay, norm_first: bool) -> None:
    assert_same(encoder(norm_first), overlay, torch.randn(2, 40, 32))


class Masked(nn.Module):
    """An encoder layer whose mask hides the rows beyond the length of each sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = encoder()

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> Any:
        return self.layer(x, src_key_padding_mask=padding)


def padding_of(*lengths: int) -> torch.Tensor:
    return torch.arange(40)[None] >= torch.tensor(lengths)[:, None]


@named(TOYS)
def test_lengths_are_given_at_run_time(overlay: Overlay) -> None:
    model, x = Masked().eval(), torch.randn(2, 40, 32)
    compiled = rsn.compile(model, (x, padding_of(40, 17)), overlay=overlay.name)
    for lengths in ((40, 17), (33, 1), (40, 40)):
        with torch.no_grad():
            wanted, got = model(x, padding_of(*lengths)), compiled(x, padding_of(*lengths))
        for b, n in enumerate(lengths):
            assert error(got[b, :n].numpy(), wanted[b, :n].numpy()) < BOUND
    assert_sound(compiled.program)


def test_lengths_of_a_decoder_that_loops_over_windows() -> None:
    """Its packets repeat windows, but an operation with a run-time length stands alone."""
    formats = tuple(replace(f, loops_window=True) if f.name == "Post" else f for f in TOY3.formats)
    overlay = replace(TOY3, name="looping", formats=formats)
    network = Maker().encoder(2, 20, 32, 2, 32, masked=True)
    assert_computes(network, overlay, lengths=[20, 7])


@named(TOYS)
def test_sequences_of_different_lengths(overlay: Overlay) -> None:
    model, x = encoder(), torch.randn(2, 40, 32)
    compiled = rsn.compile(model, (x,), overlay=overlay.name, lengths=[40, 17])
    got = compiled(x)
    for b, n in enumerate((40, 17)):
        with torch.no_grad():
            wanted = model(x[b : b + 1, :n])[0]
        assert error(got[b, :n].numpy(), wanted.numpy()) < BOUND
    assert not got[1, 17:].any()
    assert_sound(compiled.program)


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(48, 144), nn.Linear(48, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, columns = x.shape
        q, k, v = (y.view(batch, rows, 3, 16).transpose(1, 2) for y in self.into(x).split(48, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, rows, columns))


@named(TOYS)
def test_causal_attention_over_heads_narrower_than_a_tile(overlay: Overlay) -> None:
    assert_same(scrambled(Causal()), overlay, torch.randn(1, 70, 48))


@named([TOY3, TOY5_SHARED])
def test_each_layer_is_compared_with_pytorch(overlay: Overlay) -> None:
    x = torch.randn(2, 40, 32)
    compiled = assert_same(encoder(), overlay, x)
    rows = compiled.compare(x)
    assert len(rows) == 7
    assert max(r.difference for r in rows) < BOUND
    assert "linear1" in compiled.explain()


def test_weights_that_change_are_taken_over() -> None:
    model, x = scrambled(nn.Sequential(nn.Linear(48, 32), nn.LayerNorm(32))), torch.randn(1, 9, 48)
    compiled = assert_same(model, TOY3, x)
    scrambled(model, 1)
    with torch.no_grad():
        assert error(compiled(x).numpy(), model(x).numpy()) < BOUND


# -- programs and files


def test_text_files_and_runs(tmp_path: Path) -> None:
    spec = tmp_path / "net.py"
    spec.write_text("from torch import nn, randn\ndef net(): return nn.Linear(40, 30), (randn(2, 20, 40),)\n")
    made, text = tmp_path / "x.bin", tmp_path / "x.rsn"
    commands = [
        ["compile", f"{spec}:net", "--overlay", "toy5", "-o", str(text), "--weights", str(tmp_path / "w.safetensors")],
        ["asm", str(text), "-o", str(made)],
        ["check", str(made)],
        ["run", str(made), "--timing-only"],
        ["dis", str(made), "-o", str(tmp_path / "y.rsn")],
        ["asm", str(tmp_path / "y.rsn"), "-o", str(tmp_path / "y.bin")],
        ["run", str(made), "--weights", str(tmp_path / "w.safetensors"), "--inputs", str(tmp_path / "x.npz"),
         "--outputs", str(tmp_path / "y.npz")],
    ]  # fmt: skip
    np.savez(tmp_path / "x.npz", input=np.ones((2, 20, 40), np.float32))
    for command in commands:
        ran = CliRunner().invoke(main, command)
        assert not ran.exit_code, ran.output
    first, second = container.read(made), container.read(tmp_path / "y.bin")
    assert np.array_equal(first.image, second.image)
    assert [np.load(tmp_path / "y.npz")[name].shape for name in np.load(tmp_path / "y.npz")] == [(2, 20, 30)]


@named(TOYS)
def test_the_text_of_a_program_makes_the_same_program(overlay: Overlay) -> None:
    built = build(Maker().encoder(2, 20, 32, 2, 40, masked=True), overlay, PAPER)
    again = parse(show(built.program), "x.rsn")
    again = again if isinstance(again, Program) else pack(again)
    assert np.array_equal(again.image, built.program.image)
    assert (again.buffers, again.parameters) == (built.program.buffers, built.program.parameters)


# -- any machine, any network


def run(built: Built, x: np.ndarray, lengths: list[int] | None = None) -> np.ndarray:
    """The output on the simulator, (batch, seq, columns)."""
    board, program = SimBoard(), built.program
    board.load(program, built.weights)
    given = {} if lengths is None else {f"len[{i}]": n for i, n in enumerate(lengths)}
    named = {p.name: given[p.name] for p in program.parameters if p.name in given}
    (source,), (sink,) = program.with_role(Role.INPUT), program.with_role(Role.OUTPUT)
    outputs, _ = board.run(program.bind(named), {source.name: pack_tensor(source, x)})
    return unpack(sink, outputs[sink.name])


def assert_computes(
    network: LayerGraph, overlay: Overlay, schedule: Schedule = PAPER, lengths: list[int] | None = None
) -> Built:
    built = build(network, overlay, schedule)
    x = np.random.default_rng(1).standard_normal((network.batch, network.seq, network.inputs["x"])).astype(np.float32)
    y, wanted = run(built, x, lengths), reference(network, x, lengths)
    for b, n in enumerate(lengths or network.rows):
        assert error(y[b, :n], wanted[b, :n]) < BOUND
    assert_sound(built.program)
    return built


@st.composite
def small(draw: st.DrawFn) -> tuple[LayerGraph, list[int] | None]:
    """An encoder or a product, with lengths."""
    batch, seq = draw(st.integers(1, 2)), draw(st.integers(1, 24) | st.sampled_from([16, 48]))
    if draw(st.integers(0, 3)) == 0:
        act = draw(st.sampled_from([None, *ActivationFunction]))
        return Maker().gemm(seq, draw(st.integers(1, 50)), draw(st.integers(1, 50)), act), None
    heads, head_dim = draw(st.integers(1, 3)), draw(st.integers(1, 18))
    masked = draw(st.booleans())
    network = Maker().encoder(
        batch,
        seq,
        heads * head_dim,
        heads,
        draw(st.integers(1, 50)),
        act=draw(st.sampled_from(ActivationFunction)),
        masked=masked,
        pre_norm=draw(st.booleans()),
        biases=draw(st.none() | st.tuples(st.sampled_from([1, batch]), st.sampled_from([1, heads]))),
        rms=draw(st.booleans()),
    )
    if draw(st.booleans()):
        network = network.with_lengths([draw(st.integers(1, seq)) for _ in range(batch)])
    return network, [draw(st.integers(1, n)) for n in network.rows] if masked else None


@in_both
@settings(max_examples=cases(400, 8, share=40))
@given(machine=toys(), given=small(), strict=st.booleans())
def test_any_machine_computes_any_network_or_says_what_it_lacks(
    machine: Toy, given: tuple[LayerGraph, list[int] | None], strict: bool
) -> None:
    network, lengths = given
    overlay = toy(machine)
    try:
        assert_computes(network, overlay, STRICT if strict else PAPER, lengths)
    except UnsupportedError as refused:
        words = str(refused)
        missing = set(POST_OPS) - set(machine.post_ops)
        lacking = [op for op in missing if f"lacks capability {op}" in words]
        beyond = machine.strip < 200 and ("holds" in words or "of overlay drawn takes 1 to" in words)
        assert lacking or beyond, words


# -- who computes what


def products_of(built: Built) -> dict[str, int]:
    """How many operations each product unit has."""
    return {u: len(s) for u, s in built.kernels.sequences.items() if u.startswith("Product")}


@named(TOYS)
def test_every_layer_is_a_segment(overlay: Overlay) -> None:
    """Together they have all uOPs; a turn of a memory may have two. None is faster than its bound."""
    network = Maker().encoder(2, 20, 32, 2, 40)
    program = assert_computes(network, overlay).program
    assert [s.outputs for s in program.segments] == [(layer.y,) for layer in network.layers]
    assert [s.kind for s in program.segments][3:5] == ["attention 2x16", "gemm 32x32 residual norm"]
    for unit, sequence in ExpandedProgram(program).sequences.items():
        covered = {i for s in program.segments for a, b in s.uops.get(unit, ()) for i in range(a, b)}
        assert covered == set(range(len(sequence)))
    stored = {b.name: b for b in stored_buffers(ExpandedProgram(program))}
    assert set(stored) == {layer.y for layer in network.layers} | {"scores"}
    bound = bounds(network, overlay, program.segments)
    assert 0 < bound.bound_s < Machine(program).timing.latency


def test_segments_are_not_guessed_where_an_item_is_several_instructions() -> None:
    single = TOY3.emit
    assert single is not None

    def emit(unit: UnitSpec, items: Iterable[Item]) -> Iterator[Any]:
        for record in single(unit, items):
            if isinstance(record, Product):
                yield from [record.replace(groups=1)] * record.groups
            else:
                yield record

    network = Maker().gemm(40, 40, 40)
    sums = toy(Toy("sums", tiles=((16, 16, 16),), sums=True))
    assert assert_computes(network, sums).program.segments
    single = sums.emit
    assert not assert_computes(network, replace(sums, emit=emit)).program.segments


def test_equal_product_units_share_a_layer() -> None:
    overlay = toy(Toy("equal", tiles=((8, 8, 8),) * 2))
    built = assert_computes(Maker().gemm(64, 16, 16), overlay)
    assert products_of(built) == {"Product0": 4, "Product1": 4}


def test_a_faster_product_unit_gets_more() -> None:
    overlay = toy(Toy("unequal", tiles=((8, 8, 8),) * 2, multiply=(30, 10)))
    built = assert_computes(Maker().gemm(64, 16, 16), overlay)
    assert products_of(built) == {"Product0": 2, "Product1": 6}


def test_a_product_unit_that_cannot_is_left_out() -> None:
    """Only the second post unit has the activation."""
    both = toy(Toy("both", tiles=((8, 8, 8),) * 2))
    units = tuple(
        replace(u, capabilities=tuple(c for c in u.capabilities if c.op != "relu")) if u.name == "Post0" else u
        for u in both.units
    )
    built = assert_computes(Maker().gemm(64, 16, 16, ActivationFunction.RELU), replace(both, units=units))
    assert products_of(built) == {"Product1": 8}


def test_stores_go_behind_the_next_loads_unless_strict() -> None:
    network = Maker().gemm(64, 16, 16)
    latency = {}
    for schedule in (PAPER, STRICT):
        built = assert_computes(network, toy(Toy("one", tiles=((8, 8, 8),), sums=True)), schedule)
        latency[schedule] = Machine(built.program).timing.latency
    assert latency[PAPER] < latency[STRICT]


# -- what is refused


def without(*ops: str) -> Overlay:
    """TOY3 without some capabilities."""
    return toy(Toy("less", tiles=((32, 32, 32),), post_ops=[op for op in POST_OPS if op not in ops]))


def causal(network: LayerGraph) -> LayerGraph:
    layers = tuple(replace(x, causal=True) if isinstance(x, AttentionLayer) else x for x in network.layers)
    return replace(network, layers=layers)


@pytest.mark.parametrize(
    ("op", "network", "words"),
    [
        ("bias", Maker().gemm(8, 8, 8), "g: bias; "),
        ("relu", Maker().gemm(8, 8, 8, ActivationFunction.RELU), "g: activation relu; "),
        ("softmax", Maker().encoder(1, 32, 32, 1, 32), "l0.attention: attention over 32 rows; "),
        ("layernorm", Maker().encoder(1, 32, 32, 1, 32), "l0.dense: LayerNorm over 32 columns; "),
        ("rmsnorm", Maker().encoder(1, 32, 32, 1, 32, rms=True), "l0.dense: RMSNorm over 32 columns; "),
        ("scale", Maker().encoder(1, 32, 32, 1, 32), "l0.dense: scale of its residual; "),
        ("mask", Maker().encoder(1, 30, 32, 1, 32), "l0.attention: attention over 30 rows, no multiple of 32; "),
        ("mask", Maker().encoder(1, 32, 32, 1, 32, masked=True), "l0.attention: attention with a mask; "),
        ("causal_mask", causal(Maker().encoder(1, 32, 32, 1, 32)), "l0.attention: causal attention; "),
        ("residual", Maker().encoder(1, 32, 32, 1, 32), "l0.dense: residual; "),
    ],
)
def test_a_refusal_names_layer_and_capability(op: str, network: LayerGraph, words: str) -> None:
    with pytest.raises(UnsupportedError) as refused:
        build(network, without(op), PAPER)
    assert f"{words}overlay less lacks capability {op}; " in str(refused.value)
    assert "toy3, toy5, toy5-shared can" in str(refused.value)


def test_a_refusal_names_how_much_is_added_up() -> None:
    words = r"g: a product over 40 columns; Product0 of overlay less adds up 32 at most, and Post0 lacks capability sum"
    with pytest.raises(UnsupportedError, match=words):
        build(Maker().gemm(8, 40, 8), without("sum"), PAPER)


def test_what_is_not_lacking_is_not_needed() -> None:
    """Whole tiles need no mask, and a product within a tile needs no sum."""
    assert_computes(Maker().encoder(2, 32, 32, 1, 32), without("mask", "causal_mask", "rmsnorm", "sum"))


def test_a_refusal_names_the_limit() -> None:
    with pytest.raises(
        UnsupportedError, match=r"attention over 300 rows; capability softmax .* takes 1 to 256 columns"
    ):
        build(Maker().encoder(1, 300, 32, 1, 32), TOY3, PAPER)
    units = tuple(
        replace(u, capabilities=(*u.capabilities[:-1], Capability("gelu_tanh", Where.STORE, {"columns": (1, 16)})))
        if u.name == "Post0"
        else u
        for u in without("gelu_tanh").units
    )
    with pytest.raises(UnsupportedError, match="gelu_tanh of overlay less takes 1 to 16 columns; xnn, "):
        build(Maker().gemm(8, 8, 8, ActivationFunction.GELU_TANH), replace(without("gelu_tanh"), units=units), PAPER)


def test_a_capability_at_another_place_is_named() -> None:
    at_store = tuple(replace(c, where=Where.STORE) if c.op == "bias" else c for c in TOY3.by_unit["Post0"].capabilities)
    units = tuple(replace(u, capabilities=at_store) if u.name == "Post0" else u for u in TOY3.units)
    with pytest.raises(UnsupportedError, match=r"g: bias; it takes capability bias at receive .*; Post0 has it"):
        build(Maker().gemm(8, 8, 8), replace(TOY3, units=units), PAPER)


def test_a_number_too_large_for_a_field_is_an_error_of_the_overlay() -> None:
    overlay = replace(TOY3, emit=lambda unit, items: iter([Pass(tiles=1 << 24)]))
    with pytest.raises(UnsupportedError, match=r"Ddr of overlay toy3: Pass.tiles: 16777216 does not fit in 24 bits"):
        build(Maker().gemm(8, 8, 8), overlay, PAPER)


def relabelled(overlay: Overlay, label: str, to: str) -> Overlay:
    def changed(s: Stream) -> Stream:
        return replace(s, label=to) if s.label == label else s

    return replace(overlay, streams=tuple(map(changed, overlay.streams)))


@pytest.mark.parametrize(
    ("overlay", "words"),
    [
        (FIG6, "overlay fig6 lacks a unit with capability matmul and emit, which turns work items into its instruct"),
        (replace(TOY3, emit=None), "overlay toy3 lacks emit, which"),
        (replace(TOY3, layout=XNN.layout), "overlay toy3 has layout blocked; without patterns of its own"),
        (relabelled(TOY3, "left", "a"), "Ddr reaches no stream with label left into Product0"),
        (relabelled(TOY3, "right", "b"), "no off-chip unit reaches a stream with label right into Product0"),
        (replace(TOY3, units=tuple(replace(u, bank=None) for u in TOY3.units)), "no unit has a bank"),
        (replace(TOY3, streams=TOY3.streams[:-1]), "results of Product0 do not reach Ddr through one unit with a mem"),
        (toy(Toy("tiny", tiles=((8, 8, 32),), strip=16)), "a result tile of Product0 is larger"),
    ],
)
def test_a_machine_that_lacks_a_part(overlay: Overlay, words: str) -> None:
    with pytest.raises(UnsupportedError) as refused:
        require_compilable(overlay)
    assert words in str(refused.value)


def test_only_two_schedules_apply() -> None:
    network = Maker().gemm(8, 8, 8)
    with pytest.raises(ScheduleError, match=r"overlay toy3 has no patterns: .* by the schedules paper and strict only"):
        build(network, TOY3, Schedule(interleave=Interleave.LISTED))
    assert build(network, TOY3, Best(budget_s=1)).chosen.schedule == PAPER


def test_too_little_memory_is_an_error_that_says_so() -> None:
    overlay = toy(Toy("small", tiles=((32, 32, 32),), bank=16 << 10))
    with pytest.raises(UnsupportedError, match=r"the weights and the activations of 1 x 8 rows, .* need .* bank ddr"):
        build(Maker().gemm(8, 64, 64), overlay, PAPER)


@pytest.mark.parametrize("held", [None, (2, 1)])
def test_weights_in_a_memory_of_their_own(held: tuple[int, int] | None) -> None:
    """Attention is refused, because activations do not reach `right`."""
    overlay = toy(Toy("apart", tiles=((16, 16, 16), (32, 16, 16)), apart=True, held=held))
    circuits = circuits_of(overlay)
    assert (circuits.weights_bank, circuits.activations_bank) == ("weights", "ddr")
    built = assert_computes(Maker().gemm(40, 50, 30, ActivationFunction.SILU), overlay)
    assert {b.name: b.bank for b in built.program.buffers} == {
        "g.weight": "weights",
        "g.bias": "ddr",
        "x": "ddr",
        "y": "ddr",
    }
    with pytest.raises(UnsupportedError, match="Ddr, which holds them, reaches no stream with label right into Prod"):
        build(Maker().encoder(1, 32, 32, 1, 32), overlay, PAPER)
