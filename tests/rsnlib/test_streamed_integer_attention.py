"""Attention of integers as kernels: the bits of `base.quantised`, on the engine and in C++, and PyTorch's results."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.ao.quantization.fx._decomposed")  # it defines operators, and so does torchao
pytest.importorskip("torchao")

from pathlib import Path  # noqa: E402 - torch first: it may be missing

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

import rsn  # noqa: E402
from rsn.base.errors import UnsupportedError  # noqa: E402
from rsn.rsnlib.streamed import Knobs, streamed  # noqa: E402
from rsn.rsnlib.streamed.figures import lines  # noqa: E402
from rsn.rsnlib.streamed.generate import generate  # noqa: E402
from rsn.streams.placing.devices import U55C  # noqa: E402
from rsn.tests.effort import examples  # noqa: E402

from .quantised_models import calibrated  # noqa: E402
from .test_streamed_quantised import defined, on_engine_and_native  # noqa: E402

COLUMNS = 8


def static(x: torch.Tensor, scale: float, zero: int) -> torch.Tensor:
    """Numbers that a static scale and zero point have rounded."""
    limits = scale, zero, -128, 127, torch.int8
    integers = torch.ops.quantized_decomposed.quantize_per_tensor(x, *limits)
    return torch.ops.quantized_decomposed.dequantize_per_tensor(integers, *limits)


class StaticAttention(nn.Module):
    """Attention with static scales and zero points. zeros: of queries, keys, values, weights."""

    def __init__(self, zeros: tuple[int, ...]) -> None:
        super().__init__()
        self.zeros = zeros

    def forward(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        parts = (nn.functional.relu(x).unflatten(-1, (-1, COLUMNS)).transpose(1, 2) for x in (queries, keys, values))
        q, k, v = (static(x, 0.03 * (n + 1), self.zeros[n]) for n, x in enumerate(parts))
        weights = torch.softmax(q @ k.transpose(2, 3) * COLUMNS**-0.5, -1)
        return (static(weights, 1 / 255, self.zeros[3]) @ v).transpose(1, 2).flatten(2)


ZERO = st.integers(-128, 127)


@given(
    batch=st.integers(1, 2),
    heads=st.integers(1, 2),
    rows=st.integers(1, 5),
    keys=st.integers(1, 9),
    zeros=st.just((0, 0, 0, 0)) | st.tuples(ZERO, ZERO, ZERO, st.just(-128)),
    tiles=st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
@examples(200, 12, deadline=None)
def test_static_attention_is_that_of_pytorch(
    batch: int, heads: int, rows: int, keys: int, zeros: tuple[int, ...], tiles: tuple[int, int]
) -> None:
    torch.manual_seed(batch + 10 * heads + 100 * rows + 1000 * keys)
    model = StaticAttention(zeros).eval()
    drawn = tuple(torch.randn(batch, n, heads * COLUMNS) * 3 for n in (rows, keys, keys))
    made = streamed(model, drawn, Knobs(rows=tiles[0], columns=tiles[1], depth=4))
    assert sum(x.multiplies_integers for x in made.plans) == 2
    got = made.run(*drawn)
    with torch.no_grad():
        wanted = model(*drawn)
    # The softmax of kernels and of PyTorch differ in their last bits, and then a weight by a step.
    assert (got - wanted).abs().max() <= 2 / 255 * keys * drawn[2].abs().max()


class Products(StaticAttention):
    """Both products of an attention, one behind the other, without a function whose last bits PyTorch has otherwise."""

    def forward(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        parts = (nn.functional.relu(x).unflatten(-1, (-1, COLUMNS)).transpose(1, 2) for x in (queries, keys, values))
        q, k, v = (static(x, 0.03 * (n + 1), self.zeros[n]) for n, x in enumerate(parts))
        weights = static(torch.relu(q @ k.transpose(2, 3)), 0.5, self.zeros[3])
        return (weights @ v).transpose(1, 2).flatten(2)


def test_engine_and_native_have_the_same_bits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    drawn = tuple(torch.randn(2, n, 2 * COLUMNS) * 3 for n in (6, 8, 8))
    models = {"symmetric": Products((0, 0, 0, 0)), "zeros": Products((3, 0, -7, -128))}
    made = {name: streamed(model.eval(), drawn, Knobs(rows=3, columns=4, packed=1)) for name, model in models.items()}
    results = on_engine_and_native(made, dict.fromkeys(made, drawn), tmp_path)
    for name, model in models.items():
        wanted = defined((model, drawn))
        assert results[name].tobytes() == wanted.numpy().tobytes(), name
        with torch.no_grad():
            assert (wanted - model(*drawn)).abs().max() <= 1e-6 * wanted.abs().max()


class Attention(nn.Module):
    """Attention as matmul and softmax spell it, with its projections."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (4, 16)).transpose(1, 2) for f in (self.query, self.key, self.value))
        weights = torch.softmax(q @ k.transpose(2, 3) * 0.25, -1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


def test_a_calibrated_attention_as_a_machine() -> None:
    torch.manual_seed(0)
    drawn = (torch.randn(2, 16, 64),)
    model = calibrated(Attention().eval(), drawn)
    made = generate(model, drawn, U55C)
    told = [line.split("  ")[-1] for line in lines(made) if line.endswith("8")]
    assert told == ["i8 x i8"] * 6
    with torch.no_grad():
        wanted = model(*drawn)
    assert (made.streamed.run(*drawn) - wanted).abs().max() < 2e-2 * wanted.abs().max()


class DynamicAttention(nn.Module):
    """Attention whose rows are quantised at each call, in groups of queries."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal

    def forward(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        parts = (x.unflatten(-1, (-1, COLUMNS)).transpose(1, 2) for x in (torch.relu(queries), keys, values))
        return rsn.quantised_attention(self, *parts, None)[0].flatten(2)


@given(
    batch=st.integers(1, 2),
    heads=st.integers(1, 2),
    groups=st.integers(1, 3),
    rows=st.integers(1, 6),
    keys=st.integers(2, 9),
    is_causal=st.booleans(),
    tiles=st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 1)),
)
@examples(200, 12, deadline=None)
def test_dynamic_attention_is_that_of_its_definition(
    batch: int, heads: int, groups: int, rows: int, keys: int, is_causal: bool, tiles: tuple[int, int, int]
) -> None:
    torch.manual_seed(batch + 10 * heads + 100 * rows + 1000 * keys)
    keys = max(rows, keys)
    sizes = ((rows, heads * groups), (keys, heads), (keys, heads))
    drawn = tuple(torch.randn(batch, n, count * COLUMNS) * 3 for n, count in sizes)
    model = DynamicAttention(is_causal).eval()
    made = streamed(model, drawn, Knobs(rows=tiles[0], columns=tiles[1], packed=tiles[2]))
    assert [x.op for x in made.plans if x.multiplies_integers] == ["scores", "attend"]
    # The softmax of kernels and of PyTorch differ in their last bits, and then a weight by a step.
    assert (made.run(*drawn) - defined((model, drawn))).abs().max() <= drawn[2].abs().max() * keys / 255


def test_dynamic_attention_has_the_same_bits_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a function in place of the softmax whose last bits PyTorch does not have otherwise."""
    monkeypatch.setattr(torch, "softmax", lambda x, dim: torch.relu(x))
    torch.manual_seed(0)
    models = {"one": DynamicAttention(False), "groups": DynamicAttention(False)}
    given = {
        name: tuple(torch.randn(2, n, heads * COLUMNS) * 3 for n, heads in ((6, 2 * groups), (8, 2), (8, 2)))
        for name, groups in (("one", 1), ("groups", 2))
    }
    knobs = Knobs(rows=3, columns=4, packed=1)
    made = {name: streamed(model.eval(), given[name], knobs) for name, model in models.items()}
    results = on_engine_and_native(made, given, tmp_path)
    for name, model in models.items():
        wanted = defined((model, given[name]))
        assert results[name].tobytes() == wanted.numpy().tobytes(), name
        with torch.no_grad():
            assert (wanted - model(*given[name])).abs().max() <= 1e-6 * wanted.abs().max()


def test_a_constant_operand_is_refused() -> None:
    class Constant(StaticAttention):
        def forward(self, queries: torch.Tensor) -> torch.Tensor:
            return static(torch.relu(queries), 0.1, 0) @ static(torch.ones(2, COLUMNS, 3), 0.1, 0)

    with pytest.raises(UnsupportedError, match=r"matmul.*no quantised activation that a kernel computes"):
        streamed(Constant(()).eval(), (torch.randn(2, 4, COLUMNS),))
