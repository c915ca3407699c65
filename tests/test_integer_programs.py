"""Models compiled for xnn8: each call is the integers of the model, in every bit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402 - torch first: it may be missing

import rsn  # noqa: E402
from rsn.assembler.container import dumps, loads  # noqa: E402
from rsn.assembler.parser import parse  # noqa: E402
from rsn.assembler.printer import show  # noqa: E402
from rsn.cli.main import main  # noqa: E402
from rsn.hw.sim.machine import Machine, simulate  # noqa: E402
from rsn.isa.overlays.xnn8 import XNN8  # noqa: E402
from rsn.isa.program import Layout, Program, Role  # noqa: E402
from rsn.isa.verify import check  # noqa: E402
from rsn.rsnlib.integers import PASSES  # noqa: E402
from rsn.rsnlib.trace import trace  # noqa: E402
from rsn.scheduler import integer_lanes, integer_panels  # noqa: E402
from rsn.scheduler.bounds import bounds  # noqa: E402
from rsn.scheduler.build import build  # noqa: E402
from rsn.scheduler.integer_turns import ordered  # noqa: E402
from rsn.scheduler.integers import IntegerNetwork  # noqa: E402
from rsn.scheduler.pack import pack  # noqa: E402
from rsn.scheduler.schedule import PAPER  # noqa: E402
from rsn.tests.effort import cases, in_both, sampled  # noqa: E402
from rsn.tests.rsnlib import structures  # noqa: E402


def encoder(layers: int, hidden: int, heads: int, inner: int) -> Any:
    torch.manual_seed(hidden)
    return rsn.nn.Encoder(layers=layers, hidden=hidden, heads=heads, inner=inner).eval()


def same(got: Any, wanted: Any) -> bool:
    pairs = zip(*(r if isinstance(r, tuple) else (r,) for r in (got, wanted)), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


class Before(torch.nn.Module):  # type: ignore[misc]
    """A block that normalises before its products, as GPT and ViT do."""

    def __init__(self, hidden: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(hidden) for _ in range(3)])
        self.q, self.k, self.v, self.out = (torch.nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = torch.nn.Linear(hidden, 700), torch.nn.Linear(700, hidden)

    def forward(self, x: Any) -> Any:
        y = self.norms[0](x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        heads = (
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)
        )
        x = x + self.out(heads)
        x = x + self.down(torch.nn.functional.silu(self.up(self.norms[1](x))))
        return self.norms[2](x)


class Parallel(torch.nn.Module):  # type: ignore[misc]
    """Attention and two more products read the same rows, and sums of several things are read and normalised: X has
    several activations at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.norm = Before(96, 3), torch.nn.LayerNorm(96)
        self.up, self.down = torch.nn.Linear(96, 200), torch.nn.Linear(200, 96)

    def forward(self, x: Any) -> tuple[Any, Any]:
        y = self.block(x) + self.down(torch.nn.functional.gelu(self.up(x)))
        z = x + y
        return self.norm(z + self.down(self.up(z))), y


class Hidden(torch.nn.Sequential):  # type: ignore[misc]
    """Two products with hidden columns between them."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up, self.relu, self.down = torch.nn.Linear(70, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 30)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        pytest.param(lambda: encoder(2, 128, 2, 256), (2, 40, 128), marks=pytest.mark.long),
        (lambda: encoder(1, 96, 3, 100), (5, 200, 96)),  # heads of 32, padded columns, sequences of four lanes
        # two rounds of heads, products of two blocks
        pytest.param(lambda: encoder(1, 640, 10, 128), (1, 64, 640), marks=pytest.mark.long),
        # three panels, lanes of 48 rows
        pytest.param(lambda: encoder(1, 64, 1, 64), (7, 330, 64), marks=pytest.mark.long),
        # five sequences of an engine, a lane each
        pytest.param(lambda: encoder(1, 64, 2, 64), (25, 17, 64), marks=pytest.mark.long),
        pytest.param(lambda: Before(120, 5), (4, 65, 120), marks=pytest.mark.long),
        (lambda: Before(128, 2, causal=True), (2, 70, 128)),
        (lambda: encoder(1, 256, 2, 64), (1, 40, 256)),  # heads of 128, which a pair shares
        # lanes of 16 rows hold more columns
        pytest.param(lambda: encoder(1, 1088, 17, 64), (1, 8, 1088), marks=pytest.mark.long),
        pytest.param(lambda: encoder(1, 64, 2, 5000), (1, 8, 64), marks=pytest.mark.long),
        (Parallel, (2, 40, 96)),
        # a sequence over two engines, and over three
        pytest.param(lambda: encoder(1, 128, 2, 256), (2, 600, 128), marks=pytest.mark.long),
        pytest.param(lambda: Before(64, 2, causal=True), (1, 1100, 64), marks=pytest.mark.long),
        (lambda: torch.nn.Sequential(torch.nn.Linear(70, 600), torch.nn.ReLU(), torch.nn.Linear(600, 30)), (3, 9, 70)),
        # results that pass through X, of one engine and of all
        pytest.param(lambda: torch.nn.Sequential(Before(64, 1), torch.nn.Linear(64, 1600)), (2, 40, 64)),
        pytest.param(
            lambda: torch.nn.Sequential(Before(64, 1), torch.nn.Linear(64, 5000)), (1, 1100, 64), marks=pytest.mark.long
        ),
    ],
)
def test_calls_are_the_integers(model: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module, x = model().eval(), torch.randn(shape)
    compiled, wanted = rsn.compile(module, (x,), overlay="xnn8"), rsn.in_integers(module, (x,))
    for call in (x, 3 * torch.randn(shape)):
        with torch.no_grad():
            assert same(compiled(call), wanted(call))
    activations = [b for b in compiled.program.buffers if b.role in (Role.INPUT, Role.OUTPUT)]
    assert {b.layout for b in activations} == {Layout.INTEGERS}


@pytest.mark.parametrize(
    ("model", "shape", "rows16", "bits"),
    [
        # rows of X and of T, some of which other products take with 8 bits
        (Parallel, (2, 40, 96), ["block.q", "*.v", "block.down", "up"], [8, 8, 0, 8, 0, 0, 8, 0, 8, 0]),
        # three blocks of 512 columns; rows of 1100 columns, whose sums have no room for the eighth bit
        (lambda: Hidden(1100), (3, 9, 70), ["*"], [8, 7]),
        pytest.param(lambda: Before(64, 2, causal=True), (1, 1100, 64), ["*"], [8] * 6, marks=pytest.mark.long),
    ],
)
def test_rows_of_16_bits(model: Any, shape: tuple[int, ...], rows16: list[str], bits: list[int]) -> None:
    """They are nearer to float32; their weights pass twice."""
    torch.manual_seed(0)
    module, x = model().eval(), torch.randn(shape)
    compiled, plain = (rsn.compile(module, (x,), overlay="xnn8", rows16=names) for names in (rows16, []))
    wanted, before = (rsn.in_integers(module, (x,), rows16=names) for names in (rows16, []))
    products = wanted.network.products.values()
    assert [p.low_bits for p in products] == bits
    with torch.no_grad():
        assert same(compiled(x), wanted(x))
        assert same(plain(x), before(x))
    near, far = (rsn.quality(made, module, [(x,)]).mean for made in (wanted, before))
    assert near > far
    runs = compiled.last_run, plain.last_run
    assert runs[0].latency_s > runs[1].latency_s
    read, once = (run.bytes["ddr_read"] + run.bytes["lpddr_read"] for run in runs)
    assert read - once == sum(p.weight.size for p in products if p.low_bits)
    assert not check(compiled.program)


@pytest.mark.parametrize(
    ("model", "shape", "options", "message"),
    [
        (lambda: Hidden(64), (1, 9, 70), {"rows16": ["up.*"]}, r"rows16: up\.\* matches no product; .* up, down"),
        (lambda: Hidden(64), (1, 9, 70), {"rows16": ["up"], "overlay": "xnn2"}, "rows16: overlay xnn2 does not"),
        # lanes of 64 rows, which X8 has no room for; with fewer rows there are too few lanes
        (lambda: encoder(1, 576, 9, 64), (1, 1500, 576), {"rows16": ["*.*.*.query"]}, "query: .* take 72 cells of X8"),
        (lambda: Hidden(16_384), (1, 9, 70), {"rows16": ["down"]}, "down: rows of 16 bits of 16384 columns; xnn8 has"),
    ],
)
def test_refused_rows_of_16_bits(model: Any, shape: tuple[int, ...], options: Any, message: str) -> None:
    with pytest.raises(rsn.errors.RsnError, match=message):
        rsn.compile(model().eval(), (torch.randn(shape),), **{"overlay": "xnn8", **options})


DECODERS: dict[str, tuple[str, int, dict[str, int]]] = {
    "shared keys": ("Llama", 40, {"num_attention_heads": 12, "num_key_value_heads": 3, "head_dim": 24}),
    "wide heads": ("Llama", 100, {"head_dim": 128, "num_key_value_heads": 1}),
    "two rounds, over three engines": ("Llama", 385, {"num_attention_heads": 12, "num_key_value_heads": 3}),
    "odd wide heads": ("Llama", 100, {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 128}),
    "norms of heads": ("Qwen3", 40, {"num_attention_heads": 12, "num_key_value_heads": 3, "head_dim": 32}),
    "norms of wide heads": ("Qwen3", 300, {"head_dim": 128, "num_key_value_heads": 2}),
}
"""Family, rows, and fields of its configuration."""


@pytest.mark.parametrize("name", sampled(DECODERS, ("shared keys", "norms of heads")))
def test_decoders(name: str) -> None:
    """RMS norms, rotated heads, some of which share keys and values, and a gate."""
    transformers = pytest.importorskip("transformers")
    family, rows, fields = DECODERS[name]
    sizes = {"hidden_size": 96, "num_attention_heads": 4, "head_dim": 64, "intermediate_size": 330, "vocab_size": 64}
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(num_hidden_layers=2, use_cache=False, **{**sizes, **fields})
    model = getattr(transformers, f"{family}Model")(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.uniform_(0.5, 1.5)
    call = {"input_ids": torch.arange(2 * rows).reshape(2, rows) * 7 % 63}
    compiled, wanted = rsn.compile(model, call, overlay="xnn8"), rsn.in_integers(model, call)
    with torch.no_grad():
        got, expected, floats = (f(**call).last_hidden_state for f in (compiled, wanted, model))
    assert torch.equal(got, expected)
    assert not check(compiled.program)
    assert (got - floats).abs().max() < 0.06 * floats.abs().max()


@pytest.mark.parametrize("heads", [pytest.param(2, marks=pytest.mark.long), 3])
def test_masks_hide_keys(heads: int) -> None:
    """BERT with padded sequences: each call states their lengths."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=96, num_attention_heads=heads, intermediate_size=160, num_hidden_layers=2, vocab_size=64
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()

    def call(*lengths: int) -> Any:
        mask = (torch.arange(40) < torch.tensor(lengths)[:, None]).long()
        return {"input_ids": torch.arange(40 * len(lengths)).reshape(-1, 40) * 29 % 63 + 1, "attention_mask": mask}

    compiled = rsn.compile(model, call(40, 11), overlay="xnn8")
    wanted = rsn.in_integers(model, call(40, 11))
    assert {p.name for p in compiled.program.parameters} == {"len[0]", "len[1]"}
    for lengths in ((40, 11), (1, 40), (33, 32)):
        with torch.no_grad():
            got, expected = (f(**call(*lengths)).last_hidden_state for f in (compiled, wanted))
        assert torch.equal(got, expected), lengths


@in_both
def test_any_structure_is_equal_or_refused() -> None:
    equal = 0
    for seed in range(20, 20 + cases(400, 4, share=40)):
        structure = structures.drawn(seed)
        model, example = structures.Network(structure), structure.arguments(0)
        try:
            wanted = rsn.in_integers(model, example)
            rows16 = [layer.path for layer in wanted.network.network.layers if layer.y in wanted.network.products]
            rows16 = rows16[seed % 3 : 2 * seed % 7]
            wanted = rsn.in_integers(model, example, rows16=rows16)
            compiled = rsn.compile(model, example, overlay="xnn8", rows16=rows16, verify="never")
        except rsn.errors.UnsupportedError:
            continue
        with torch.no_grad():
            assert same(compiled(*example), wanted(*example)), structure
        equal += 1
    assert equal


def test_changes_files_and_texts(tmp_path: Path) -> None:
    """A compiled model follows its module; a file of it computes the same; the text of its program has slices."""
    model, x = encoder(1, 64, 2, 64), torch.randn(2, 30, 64)
    compiled = rsn.compile(model, (x,), overlay="xnn8")
    before = compiled(x)
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    assert not torch.equal(compiled(x), before)
    assert torch.equal(compiled(x), rsn.in_integers(model, (x,))(x))
    compiled.save(tmp_path / "a.rsnmodel")
    assert torch.equal(rsn.load(tmp_path / "a.rsnmodel")(x), compiled(x))
    text = show(compiled.program)
    assert "integers" in text
    again = parse(text, "a.rsn")
    assert isinstance(again, Program)
    assert (again.packets, again.buffers) == (compiled.program.packets, compiled.program.buffers)
    assert loads(dumps(compiled.program)).buffers == compiled.program.buffers


@pytest.mark.parametrize(
    ("lengths", "hidden"),
    [([60, 1, 33, 17, 40], 64), pytest.param([700, 300, 513], 64, marks=pytest.mark.long), ([100, 64, 10, 99], 128)],
)
def test_sequences_of_different_lengths(lengths: list[int], hidden: int) -> None:
    """Each has the lanes that it needs; what lies behind its end changes nothing."""
    torch.manual_seed(0)
    model, x = Before(hidden, 1).eval(), torch.randn(len(lengths), max(lengths), hidden)
    compiled, wanted = (
        f(model, (x,), lengths=lengths) for f in (partial(rsn.compile, overlay="xnn8"), rsn.in_integers)
    )
    with torch.no_grad():
        got, expected = compiled(x), wanted(x)
        assert torch.equal(got, expected)
        for i, n in enumerate(lengths):
            assert not got[i, n:].any()
            x[i, n:] = 100
        assert torch.equal(compiled(x), expected)
        alone = rsn.in_integers(model, (x[:1, : lengths[0]],))(x[:1, : lengths[0]])
    assert torch.equal(expected[:1, : lengths[0]], alone)
    assert not check(compiled.program)


def test_smoothed(tmp_path: Path) -> None:
    """With factors of SmoothQuant, and some rows of 16 bits, a call is what the integers with these are, also behind a
    change, in a file, and with shapes that calls choose."""
    model, x, calls = Before(96, 3).eval(), torch.randn(2, 20, 96), [(3 * torch.randn(2, 20, 96),)]
    rows16 = ["q", "down"]
    with torch.no_grad():
        model.norms[0].weight[5] = 30
    compiled = rsn.compile(model, (x,), overlay="xnn8", smooth=calls, rows16=rows16)
    for scale in (1, 2):
        with torch.no_grad():
            model.q.weight.mul_(scale)
            wanted = rsn.in_integers(model, (x,), smooth=calls, rows16=rows16)(x)
            assert torch.equal(compiled(x), wanted)
            for others in ({"smooth": calls}, {"rows16": rows16}):
                assert not torch.equal(rsn.in_integers(model, (x,), **others)(x), wanted)
    compiled.save(tmp_path / "a.rsnmodel")
    assert torch.equal(rsn.load(tmp_path / "a.rsnmodel")(x), compiled(x))
    assert "rows of 16 bits: q, down" in compiled.explain()
    of_shapes = rsn.compile(model, (x,), overlay="xnn8", rows16=rows16, dynamic_shapes={"x": {0: rsn.Batch(1, 2)}})
    with torch.no_grad():
        for some in (x, x[:1]):
            assert torch.equal(of_shapes(some), rsn.in_integers(model, (some,), rows16=rows16)(some))
    with pytest.raises(rsn.errors.UnsupportedError, match="smooth: overlay xnn2 does not compute in integers"):
        rsn.compile(model, (x,), overlay="xnn2", smooth=calls)
    with pytest.raises(rsn.errors.ScheduleError, match="calls of one shape"):
        rsn.compile(model, (x,), overlay="xnn8", smooth=calls, dynamic_shapes={"x": {0: rsn.Batch(1, 2)}})


@pytest.mark.parametrize(
    ("model", "shape", "options", "message"),
    [
        (lambda: encoder(1, 64, 2, 64), (1, 1540, 64), {}, "sequences of 1540 rows; xnn8 has up to 1536"),
        (lambda: encoder(1, 128, 1, 64), (1, 800, 128), {}, "has up to 768 if heads have more than 64 columns"),
        (lambda: encoder(1, 1088, 17, 64), (1, 1500, 1088), {}, "takes 17 blocks .* of X, 64 of 64 cells of 16 rows"),
        (
            lambda: encoder(1, 64, 2, 5000),
            (1, 1500, 64),
            {},
            "takes 79 blocks .* of T, 256 of 256 cells",
        ),
        (lambda: torch.nn.Sequential(encoder(1, 64, 1, 64), Before(64, 1)), (1, 8, 64), {}, "normalised already"),
        (lambda: encoder(1, 64, 2, 64), (1, 8, 64), {"schedule": "best"}, "has one schedule"),
    ],
)
def test_what_is_refused(model: Any, shape: tuple[int, ...], options: Any, message: str) -> None:
    with pytest.raises(rsn.errors.RsnError, match=message):
        rsn.compile(model().eval(), (torch.randn(shape),), overlay="xnn8", **options)


def test_pieces_are_refused() -> None:
    model = torch.compile(encoder(1, 64, 2, 64), backend="rsn", options={"overlay": "xnn8", "fallback": "error"})
    with pytest.raises(Exception, match="takes models for it as a whole"):
        model(torch.randn(1, 8, 64))


def test_command_line(tmp_path: Path) -> None:
    """A preset becomes a program; what the overlay has no figures of is refused."""
    program = str(tmp_path / "a.rsn")
    size = ("--batch", "2", "--seq", "32")
    made = CliRunner().invoke(main, ["compile", "minilm", "--overlay", "xnn8", *size, "-o", program, "--explain"])
    assert made.exit_code == 0
    assert "on xnn8, base program" in made.stdout
    for words, message in (
        (["info", "--resources", "--overlay", "xnn8"], "xnn8"),
        (["tune", "minilm", "--overlay", "xnn8", "--trials", "1"], "has no row lanes"),
    ):
        refused = CliRunner().invoke(main, words)
        assert refused.exit_code
        assert message in refused.output


def test_a_cut_model_is_refused() -> None:
    """Between stages go float32 rows, which the next stage would make integers of anew."""
    with pytest.raises(rsn.errors.UnsupportedError, match="boards: overlay xnn8 computes in integers"):
        rsn.compile(encoder(2, 64, 2, 64), (torch.randn(1, 8, 64),), overlay="xnn8", boards=2)


@pytest.mark.long
def test_modelled_times_of_an_encoder() -> None:
    """BERT-Large, six sequences of 512 rows: one layer alone, and one more in a stack. No time is below its bound."""
    found = []
    for layers in (1, 2):
        model, x = encoder(layers, 1024, 16, 4096), torch.randn(6, 512, 1024)
        network = trace(model, (x,), PASSES, fixes=True).network
        built = build(network, XNN8, PAPER)
        found.append(simulate(built.program).latency_s)
        assert max(bounds(network, XNN8, built.program.segments).seconds.values()) < found[-1]
    assert 2.05e-3 < found[0] < 2.2e-3
    assert 1.4e-3 < found[1] - found[0] < 1.6e-3


def latency(lowered: Any) -> float:
    return Machine(pack(lowered.kernels, lowered.starts)).timing.latency


@pytest.mark.long
@pytest.mark.parametrize(("batch", "seq"), [(6, 197), (12, 128), (3, 100)])
def test_the_fastest_way_is_taken(batch: int, seq: int) -> None:
    """Of the ways in which sequences can lie in lanes, the one that is taken is about as fast as the fastest that is
    simulated; estimates are near."""
    network = trace(encoder(1, 384, 6, 1536), (torch.zeros(batch, seq, 384),), PASSES, fixes=True).network
    of, found = IntegerNetwork.of(network), []
    for at in integer_lanes.placements(of, XNN8)[:3]:
        panels = integer_panels.IntegerPanels(of, XNN8, at)
        found.append(latency(panels.lowered()))
        launch = XNN8.seconds["launch_us"]
        for estimate in (integer_lanes.estimated_seconds(of, XNN8.seconds, at), panels.order.seconds + launch):
            assert 0.65 < estimate / found[-1] < 1.3
    assert latency(integer_panels.lower(network, XNN8)) <= 1.05 * min(found)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (lambda: Before(128, 2), (5, 260, 128)),
        # residuals that are normalised by the latest norm
        pytest.param(lambda: encoder(2, 64, 1, 640), (7, 330, 64), marks=pytest.mark.long),
        # results that pass through X
        pytest.param(
            lambda: torch.nn.Sequential(Before(64, 1), torch.nn.Linear(64, 1600)), (4, 120, 64), marks=pytest.mark.long
        ),
    ],
)
def test_two_panels_in_turn(model: Any, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Their steps mix, in halves of X and T; results are the integers, and come sooner than one panel after the
    other."""
    torch.manual_seed(0)
    module, x = model().eval(), torch.randn(shape)
    network = trace(module, (x,), PASSES, fixes=True).network
    of = IntegerNetwork.of(network)
    at = next(at for at in integer_lanes.placements(of, XNN8) if len(at.panels) > 1 and at.parts == 1)
    panels = integer_panels.IntegerPanels(of, XNN8, at)
    numbers = [number for number, _ in panels.order.steps]
    assert numbers != sorted(numbers)
    monkeypatch.setattr(integer_panels, "placements", lambda *_: [at])
    compiled = rsn.compile(module, (x,), overlay="xnn8")
    with torch.no_grad():
        assert same(compiled(x), rsn.in_integers(module, (x,))(x))
    assert not [finding.code for finding in check(compiled.program)]
    monkeypatch.setattr(integer_panels, "ordered", lambda steps, count, turns: ordered(steps, count, 1))
    alone = integer_panels.IntegerPanels(of, XNN8, at)
    assert latency(panels.lowered()) < latency(alone.lowered())


@pytest.mark.long
def test_a_family_of_a_quantised_encoder(tmp_path: Path) -> None:
    """Programs of several sizes, of a model that torchao quantised: calls are padded to one of them, and give the
    integers of that size; a file gives the same."""
    torchao = pytest.importorskip("torchao.quantization")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128, "num_hidden_layers": 1}
    model = transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=96), add_pooling_layer=False).eval()
    torchao.quantize_(model, torchao.Int8DynamicActivationInt8WeightConfig())

    def call(rows: int, valid: int) -> dict[str, Any]:
        mask = (torch.arange(rows) < valid).long().expand(2, rows)
        return {"input_ids": torch.arange(2 * rows).reshape(2, rows) * 29 % 90 + 1, "attention_mask": mask}

    dimensions = {name: {1: rsn.Length(16, 32)} for name in ("input_ids", "attention_mask")}
    family = rsn.compile(model, call(16, 16), overlay="xnn8", dynamic_shapes=dimensions)
    family.save(tmp_path / "a.rsnmodel")
    loaded = rsn.load(tmp_path / "a.rsnmodel")
    examples_of_sizes = {size: {name: x.contiguous() for name, x in call(size, size).items()} for size in (16, 32)}
    of_size = {size: rsn.in_integers(model, example) for size, example in examples_of_sizes.items()}
    for rows, size in ((16, 16), (9, 16), (20, 32)):
        given = call(rows, rows)
        padded = {name: torch.nn.functional.pad(x, (0, size - rows)) for name, x in given.items()}
        with torch.no_grad():
            got = family(**given).last_hidden_state
            wanted = of_size[size](**padded).last_hidden_state[:, :rows]
        assert torch.equal(got, wanted)
        assert torch.equal(loaded(**given)["last_hidden_state"], got)


@pytest.mark.long
@pytest.mark.full
def test_all_weights_of_bert_large() -> None:
    """24 layers, each with weights of its own: a call is the integers of the model."""
    model, x = encoder(24, 1024, 16, 4096), torch.randn(1, 100, 1024)
    compiled = rsn.compile(model, (x,), overlay="xnn8", verify="never")
    with torch.no_grad():
        assert torch.equal(compiled(x), rsn.in_integers(model, (x,))(x))
