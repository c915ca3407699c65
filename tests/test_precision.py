"""Models in half precision: computed in float32 from weights that are widened, converted at the borders."""

from __future__ import annotations

import copy
import dataclasses
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch first: it may be missing
from torch.utils import _pytree as pytree  # noqa: E402

import rsn  # noqa: E402
from rsn.base.errors import TensorError, UnsupportedError  # noqa: E402
from rsn.cli.main import main  # noqa: E402
from rsn.rsnlib.precision import Borders  # noqa: E402
from rsn.tests.effort import sampled  # noqa: E402

pytestmark = pytest.mark.long

HALVES = [torch.float16, torch.bfloat16]
TOLD = "the model's weights are float16: the machine computes in float32; arguments and results are converted"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Block(nn.Module):
    """Hidden states in, the same and a score in float32 out."""

    def __init__(self, columns: int = 64, heads: int = 2) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(columns, heads, batch_first=True)
        self.norm, self.score = nn.LayerNorm(columns), nn.Linear(columns, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return {"hidden": x, "scores": self.score(x).float()}


class Embedded(nn.Module):
    """Ids and a mask in; rows that the mask hides are no part of the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.block = nn.Embedding(50, 64), Block()
        self.register_buffer("scale", torch.tensor(0.3))
        self.shift = torch.tensor(0.7, dtype=torch.float16)

    def forward(self, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        x = self.block(self.embedding(ids))["hidden"]
        return x * self.scale + self.shift * weights[..., None]


class Own(nn.Module):
    """One product, with a result that `then` makes of it."""

    def __init__(self, then: Callable[[Any], Any] = lambda y: y) -> None:
        super().__init__()
        self.linear, self.then = nn.Linear(8, 4), then

    def forward(self, x: torch.Tensor) -> Any:
        return self.then(self.linear(x))


def compiled_of(model: nn.Module, inputs: Any, **options: Any) -> Any:
    with pytest.warns(UserWarning, match="the machine computes in float32; arguments and results are converted"):
        return rsn.compile(model, inputs, **options)


def leaves(x: Any) -> Iterator[torch.Tensor]:
    return iter(pytree.tree_leaves(x))


def wide(x: Any) -> Any:
    """In float32, and the same."""
    if isinstance(x, nn.Module):
        made = copy.deepcopy(x).float()
        if isinstance(made, Embedded):
            made.shift = made.shift.float()
        return made
    return pytree.tree_map_only(torch.Tensor, lambda t: t.float() if t.is_floating_point() else t, x)


def agrees(model: nn.Module, compiled: Any, *inputs: Any) -> None:
    """With what PyTorch computes in float32: bitwise with the program of the model in float32, once that is converted;
    the types are those of PyTorch's model."""
    given = compiled(*inputs)
    floats = rsn.compile(wide(model), wide(inputs))(*wide(inputs))
    expected = wide(model)(*wide(inputs))
    asked = model(*inputs)
    assert pytree.tree_structure(given) == pytree.tree_structure(asked)
    for y, exact, reference, own in zip(leaves(given), leaves(floats), leaves(expected), leaves(asked), strict=True):
        assert y.dtype == own.dtype
        torch.testing.assert_close(exact, reference, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(y, exact.to(y.dtype), rtol=0, atol=0)


# -- what comes back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", sampled(HALVES, quick=HALVES[:1]))
def test_hidden_states(dtype: torch.dtype) -> None:
    model, x = Block().eval().to(dtype), torch.randn(2, 20, 64).to(dtype)
    compiled = compiled_of(model, (x,))
    agrees(model, compiled, x)
    given = compiled(torch.randn(2, 20, 64).to(dtype))
    assert given["hidden"].dtype == dtype
    assert given["scores"].dtype == torch.float32
    assert (given["scores"] != given["scores"].to(dtype).float()).any()  # it was never rounded


@pytest.mark.parametrize("dtype", sampled(HALVES, quick=HALVES[:1]))
def test_integers_buffers_and_attributes(dtype: torch.dtype) -> None:
    model = Embedded().eval().to(dtype)
    model.shift = model.shift.to(dtype)
    inputs = torch.randint(50, (2, 20)), torch.rand(2, 20).to(dtype)
    agrees(model, compiled_of(model, inputs), *inputs)


def test_a_norm_in_float32() -> None:
    model = Own(nn.LayerNorm(4)).eval().half()
    model.then.float()
    x = torch.randn(3, 8).half()
    agrees(model, compiled_of(model, (x,)), x)


def test_a_conversion_within_the_model_is_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 8).half(), _To(torch.bfloat16), nn.Linear(8, 8).bfloat16()).eval()
    assert model(torch.randn(3, 8).half()).dtype == torch.bfloat16
    with (
        pytest.raises(TensorError, match=r"aten\.linear\.default at 2: its input is torch\.bfloat16"),
        pytest.warns(UserWarning, match="float16 and bfloat16: the machine"),
    ):
        rsn.compile(model, (torch.randn(3, 8).half(),))


class _To(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype)


@pytest.mark.parametrize(
    ("then", "kinds"),
    [
        (lambda y: y.float(), [torch.float32]),
        (lambda y: (y, y.float(), y.argmax(-1), None), [torch.float16, torch.float32, torch.int64]),
        (lambda y: y.double(), [torch.float64]),
        (lambda y: [y.softmax(-1, dtype=torch.float32), y > 0], [torch.float32, torch.bool]),
    ],
    ids=["float", "tuple", "double", "list"],
)
def test_results_have_the_types_of_the_model(then: Callable[[Any], Any], kinds: list[torch.dtype]) -> None:
    model, x = Own(then).eval().half(), torch.randn(3, 8).half()
    compiled = compiled_of(model, (x,))
    assert [y.dtype for y in leaves(compiled(x)) if y is not None] == kinds
    agrees_but_none = [type(y) for y in leaves(compiled(x))] == [type(y) for y in leaves(model(x))]
    assert agrees_but_none


def test_types_that_pytorch_itself_cannot_mix() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8).half(), nn.Linear(8, 8)).eval()
    x = torch.randn(3, 8)
    with pytest.raises(RuntimeError):
        model(x)
    compiled = compiled_of(model, (x,))
    torch.testing.assert_close(compiled(x), wide(model)(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_model_that_pytorch_cannot_run_in_half_precision(dtype: torch.dtype) -> None:
    """Its floating results get the type of most weights."""

    class Wide(Own):
        def forward(self, x: torch.Tensor) -> Any:
            if self.linear.weight.dtype != torch.float32:
                raise RuntimeError("not implemented for 'Half'")
            return super().forward(x)

    model, x = Wide(lambda y: (y, y.argmax(-1))).eval().to(dtype), torch.randn(3, 8).to(dtype)
    y, largest = compiled_of(model, (x,))(x)
    assert (y.dtype, largest.dtype) == (dtype, torch.int64)
    model.register_buffer("table", torch.zeros(100))
    assert compiled_of(model, (x,))(x)[0].dtype == torch.float32


def test_types_are_those_of_a_model_that_looks_at_numbers() -> None:
    """It cannot be run without values: it is run."""

    class Looking(Own):
        def forward(self, x: torch.Tensor) -> Any:
            y = super().forward(x)
            if not torch.compiler.is_compiling():
                assert bool((y == y).all())
            return y, y.float()

    model, x = Looking().eval().half(), torch.randn(3, 8).half()
    assert [y.dtype for y in compiled_of(model, (x,))(x)] == [torch.float16, torch.float32]


def test_a_number_beyond_the_type_is_infinite() -> None:
    model, x = Own().eval().half(), torch.full((1, 8), 60_000.0).half()
    with torch.no_grad():
        model.linear.weight.fill_(1)
    assert compiled_of(model, (x,))(x).isinf().all()


# -- what goes in ------------------------------------------------------------------------------------------------------


def test_arguments_have_the_types_of_the_example() -> None:
    model, x = Own().eval().half(), torch.randn(3, 8).half()
    compiled = compiled_of(model, (x,))
    expected = compiled(x)
    torch.testing.assert_close(compiled(x=x), expected, rtol=0, atol=0)
    torch.testing.assert_close(compiled(x.numpy()), expected, rtol=0, atol=0)
    for other in (x.float(), x.bfloat16(), x.float().numpy(), x.double()):
        with pytest.raises(TensorError, match=r"argument x is torch\.\w+; the example's is torch\.float16"):
            compiled(other)
    with pytest.raises(TensorError, match="argument x must be a tensor, not float"):
        compiled(1.0)
    with pytest.raises(TensorError, match="missing a required argument: 'x'"):
        compiled()
    with pytest.raises(TensorError, match="the module's arguments: got an unexpected keyword argument 'y'"):
        compiled(x, y=x)


def test_float32_arguments_of_a_model_that_takes_them() -> None:
    class Casting(Own):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x.to(self.linear.weight.dtype))

    model, x = Casting().eval().half(), torch.randn(3, 8)
    compiled = compiled_of(model, (x,))
    assert compiled(x).dtype == torch.float16
    with pytest.raises(TensorError, match=r"torch\.float16 .*traced with torch\.float32"):
        compiled(x.half())


def test_arguments_within_others() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, pair: dict[str, torch.Tensor], *more: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
            return self.linear(pair["a"] + pair["b"].to(pair["a"].dtype) + more[0] + named["c"])

    model, x = Pair().eval().half(), torch.randn(3, 8).half()
    inputs = {"a": x, "b": x.float()}, x
    borders = Borders.of(model, (*inputs, x))
    assert borders is not None
    assert borders.arguments == {"pair": ("float16", None), "more": ("float16", "float16")}
    compiled = compiled_of(_Named(model).eval(), (inputs[0], x))
    torch.testing.assert_close(compiled(inputs[0], x), model(*inputs, c=x), rtol=0, atol=2e-3)


class _Named(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pair: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return self.model(pair, x, c=x)


# -- what is said ------------------------------------------------------------------------------------------------------


def test_it_is_said_once() -> None:
    model, x = Own().eval().half(), torch.randn(3, 8).half()
    with pytest.warns(UserWarning) as told:  # noqa: PT030, PT031 - all that is said
        compiled = rsn.compile(model, (x,))
        compiled(x)
        with torch.no_grad():
            model.linear.weight.mul_(2)
        compiled(x)
        compiled.explain()
    assert [(str(w.message), w.filename) for w in told] == [(TOLD, __file__)]
    with pytest.warns(UserWarning) as told:  # noqa: PT030
        rsn.explain(model, (x,))
    assert [(str(w.message), w.filename) for w in told] == [(TOLD, __file__)]


def test_nothing_is_said_of_float32() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rsn.compile(Own().eval(), (torch.randn(3, 8),))
        rsn.explain(Own().eval(), (torch.randn(3, 8),))
    assert Borders.of(Own().eval(), (torch.randn(3, 8),)) is None


def test_float64_is_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 8).half(), nn.Linear(8, 8).double()).eval()
    with pytest.raises(TensorError, match=r"its weight is torch.float64"), pytest.warns(UserWarning, match="float16"):
        rsn.compile(model, (torch.randn(3, 8).half(),))


def test_what_to_do_instead_is_for_this_model() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).eval().half()
    for compiling in (rsn.compile, rsn.explain):
        with pytest.warns(UserWarning, match="float16"), pytest.raises(UnsupportedError) as refused:
            compiling(model, (torch.randn(3, 8).half(),))
        assert 'torch.compile(model.float(), backend="rsn"), runs the rest' in str(refused.value)


def test_a_module_that_cannot_be_copied() -> None:
    model = Own().eval().half()
    model.lock = threading.Lock()
    with (
        pytest.warns(UserWarning, match="float16"),
        pytest.raises(TensorError, match=r"Own .* cannot be copied .*lock"),
    ):
        rsn.compile(model, (torch.randn(3, 8).half(),))


def test_the_command_line(tmp_path: Path) -> None:
    source, programs = tmp_path / "model.py", []
    for half in ("", ".half()"):
        source.write_text(
            "import torch\nfrom torch import nn\ndef make():\n    torch.manual_seed(1)\n"
            "    model, x = nn.Linear(8, 8).half(), torch.ones(2, 8)\n"
            f"    return model{half or '.float()'}, (x{half},)\n"
        )
        weights = tmp_path / f"w{len(programs)}.safetensors"
        given = ["compile", f"{source}:make", "-o", str(tmp_path / "p.rsn"), "--weights", str(weights)]
        result = CliRunner().invoke(main, given)
        assert result.exit_code == 0, result.output
        assert result.output.count(f"warning: {TOLD}") == bool(half)
        packed = {name: array.tobytes() for name, array in load_file(weights).items()}
        programs.append((packed, (tmp_path / "p.rsn").read_text()))
    assert programs[0] == programs[1]


# -- changes -----------------------------------------------------------------------------------------------------------


def test_changes_of_the_model_are_followed() -> None:
    model, x = Embedded().eval().half(), torch.randint(50, (2, 20))
    inputs = x, torch.rand(2, 20).half()
    compiled = compiled_of(model, inputs)
    program = compiled.program
    other = Embedded().eval().half()
    model.load_state_dict(other.state_dict())
    agrees(model, compiled, *inputs)
    assert compiled.program is not program
    assert compiled.program.packets == program.packets
    with torch.no_grad():
        model.block.norm.weight.mul_(1.5)
    agrees(model, compiled, *inputs)
    model.block.score = nn.Linear(64, 3).half().eval()
    model.block.norm = nn.LayerNorm(64, eps=0.1).half().eval()
    agrees(model, compiled, *inputs)
    model.shift = torch.tensor(0.1, dtype=torch.float16)
    agrees(model, compiled, *inputs)
    model.shift.mul_(3)
    model.scale.mul_(2)
    agrees(model, compiled, *inputs)
    model.embedding.weight.data.mul_(2)  # not counted
    compiled.refresh()
    agrees(model, compiled, *inputs)


def test_a_change_in_inference_mode() -> None:
    with torch.inference_mode():
        model, x = Own().eval().half(), torch.randn(3, 8).half()
        compiled = compiled_of(model, (x,), checksums=True)
        model.linear.weight.mul_(2)
        agrees(model, compiled, x)
    agrees(model, compiled, x)


def test_another_type_than_it_was_compiled_with_is_refused() -> None:
    model, x = Own().eval().half(), torch.randn(3, 8).half()
    compiled = compiled_of(model, (x,))
    expected = compiled(x)
    for change in (model.float, model.linear.float, model.bfloat16):
        torch.testing.assert_close(compiled(x), expected, rtol=0, atol=0)
        change()
        for _ in range(2):
            with pytest.raises(
                TensorError, match=r"linear\.weight was torch\.float16 when the model was compiled, and"
            ):
                compiled(x)
        model.half()
    model = Own().eval()
    compiled = rsn.compile(model, (x.float(),))
    model.half()
    with pytest.raises(TensorError, match="convert it first"):
        compiled(x.float())


def test_the_model_is_left_as_it_is_and_may_go() -> None:
    model, x = Block().eval().half(), torch.randn(1, 20, 64).half()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    compiled = compiled_of(model, (x,))
    assert all(
        torch.equal(tensor, before[name]) and tensor.dtype == torch.float16
        for name, tensor in model.state_dict().items()
    )
    expected = compiled(x)["hidden"]
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    torch.testing.assert_close(compiled(x)["hidden"], expected, rtol=0, atol=0)


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(50, 64), nn.Linear(64, 50, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(ids))

    model, ids = Tied().eval().half(), torch.randint(50, (2, 9))
    compiled = compiled_of(model, (ids,))
    with torch.no_grad():
        model.head.weight.add_(0.25)
    agrees(model, compiled, ids)


# -- families and transformers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", sampled(HALVES, quick=HALVES[:1]))
def test_a_family_with_padding(dtype: torch.dtype) -> None:
    model = Block().eval().to(dtype)
    x = torch.randn(2, 128, 64).to(dtype)
    shapes = {"x": {0: rsn.Batch(1, 4)}}
    family = compiled_of(model, (x,), dynamic_shapes=shapes)
    floats = rsn.compile(wide(model), (wide(x),), dynamic_shapes=shapes)
    for batch in (1, 3):
        given = torch.randn(batch, 128, 64).to(dtype)
        for call in (given, given.numpy()) if dtype == torch.float16 else (given,):
            y, exact = family(call), floats(wide(given))
            assert [a.dtype for a in leaves(y)] == [dtype, torch.float32]
            for a, b in zip(leaves(y), leaves(exact), strict=True):
                torch.testing.assert_close(a, b.to(a.dtype), rtol=0, atol=0)
    with pytest.raises(TensorError, match=rf"argument x is torch\.float32; the example's is {dtype}"):
        family(given.float())
    with torch.no_grad():
        model.score.bias.add_(1)
    torch.testing.assert_close(family(given)["scores"], wide(model)(wide(given))["scores"], rtol=1e-5, atol=1e-5)
    model.norm = nn.LayerNorm(64, eps=0.1).to(dtype).eval()
    torch.testing.assert_close(family(given)["scores"], wide(model)(wide(given))["scores"], rtol=1e-5, atol=1e-5)


def bert(dtype: torch.dtype) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=96
    )
    return transformers.BertModel(config).eval().to(dtype)


@pytest.mark.parametrize("dtype", sampled(HALVES, quick=HALVES[:1]))
def test_a_transformer(dtype: torch.dtype) -> None:
    model = bert(dtype)
    mask = torch.ones(2, 24, dtype=torch.int64)
    mask[1, 17:] = 0
    inputs = {"input_ids": torch.randint(50, (2, 24)), "attention_mask": mask}
    compiled = compiled_of(model, inputs)
    assert compiled.config is model.config
    given, expected = compiled(**inputs), wide(model)(**inputs)
    assert type(given) is type(expected)
    assert given.last_hidden_state.dtype == given.pooler_output.dtype == dtype
    floats = rsn.compile(wide(model), inputs)(**inputs)
    torch.testing.assert_close(floats.pooler_output, expected.pooler_output, rtol=1e-5, atol=1e-5)
    for name in expected:
        torch.testing.assert_close(given[name], floats[name].to(dtype), rtol=0, atol=0)


@pytest.mark.long
def test_a_family_of_a_transformer() -> None:
    model, mask = bert(torch.float16), torch.ones(2, 24, dtype=torch.int64)
    inputs = {"inputs_embeds": torch.randn(2, 24, 64).to(torch.float16), "attention_mask": mask}
    family = compiled_of(model, inputs, dynamic_shapes={n: {1: rsn.Length(24, 128)} for n in inputs})
    assert family.config is model.config
    shorter = {name: x[:, :9] for name, x in inputs.items()}
    given, expected = family(**shorter).last_hidden_state, wide(model)(**wide(shorter)).last_hidden_state
    assert given.dtype == torch.float16
    torch.testing.assert_close(given.float(), expected, rtol=torch.finfo(torch.float16).eps, atol=1e-5)


def test_borders_are_plain_data() -> None:
    model = Own(lambda y: (y, y.float())).eval().half()
    borders = Borders.of(model, (torch.randn(3, 8).half(),))
    assert borders is not None
    assert dataclasses.asdict(borders) == {
        "weights": ("float16",),
        "arguments": {"x": ("float16",)},
        "results": ("float16", None),
        "usual": "float16",
    }
    assert Borders(**dataclasses.asdict(borders)) == borders


def test_the_compared_run_takes_the_same_arguments() -> None:
    model, x = Own().eval().half(), torch.randn(3, 8).half()
    compared = compiled_of(model, (x,)).compare(x)
    assert [segment.name for segment in compared] == ["linear"]
    assert compared[0].difference < 1e-6
