"""A model that a bank of the machine has no room for, as users give it: refused with the bank, or left to PyTorch."""

from __future__ import annotations

import dataclasses
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch first: it may be missing

import rsn  # noqa: E402
from rsn.base.errors import UnsupportedError  # noqa: E402
from rsn.cli.main import main  # noqa: E402
from rsn.host.model.torch_backend import Fallback  # noqa: E402
from rsn.isa.overlays import OVERLAYS, XNN  # noqa: E402
from rsn.rsnlib import fold  # noqa: E402

HOLDS = "bank lpddr, which holds them, has 8.59 GB (banks of overlay xnn: ddr 8.59 GB, lpddr 8.59 GB)"


@pytest.fixture(autouse=True)
def _overlays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Machines with little memory."""
    for name, bank in (("small", "lpddr"), ("narrow", "ddr")):
        small = dataclasses.replace(XNN, name=name, banks={**XNN.banks, bank: 400_000})
        monkeypatch.setitem(OVERLAYS, name, small)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Huge(nn.Module):
    """Products whose weights are one element each, in memory."""

    def __init__(self, columns: int, layers: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            nn.Parameter(torch.zeros(1).expand(columns, columns), requires_grad=False) for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = nn.functional.linear(x, weight)
        return x


def stack(*columns: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(k, n) for k, n in pairwise(columns))).eval()


@pytest.mark.parametrize("schedule", ["paper", "best"])
def test_more_than_8_gib_of_weights(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before they are copied."""
    monkeypatch.setattr(fold, "_scaled", lambda *args: pytest.fail("a weight was copied"))
    model, inputs = Huge(16_000, 9).eval(), (torch.ones(1, 16_000),)
    with pytest.raises(UnsupportedError) as compiling:
        rsn.compile(model, inputs, schedule=schedule)
    assert str(compiling.value).startswith(f"the weights need 9.22 GB in float32, but {HOLDS}: compile a model with")
    with pytest.raises(UnsupportedError) as explaining:
        rsn.explain(model, inputs)
    assert str(explaining.value) == str(compiling.value)


@pytest.mark.parametrize("schedule", ["paper", "best"])
@pytest.mark.parametrize(
    ("overlay", "columns", "rows", "told"),
    [
        ("small", (256, 256, 256, 256), 4, "the weights need 0.79 MB in float32, but bank lpddr, which holds them,"),
        ("small", (130, 130, 130, 130), 4, "the weights, padding included, need 0.80 MB in float32, but bank lpddr,"),
        ("narrow", (64, 64, 64), 512, "the activations of 1 x 512 rows, with the biases of attention and all padding,"),
    ],
    ids=["weights", "padded weights", "activations"],
)
def test_a_machine_with_little_memory(
    overlay: str, columns: tuple[int, ...], rows: int, told: str, schedule: str
) -> None:
    model, inputs = stack(*columns), (torch.randn(rows, columns[0]),)
    with pytest.raises(UnsupportedError) as compiling:
        rsn.compile(model, inputs, overlay=overlay, schedule=schedule, budget_s=0.5)
    assert str(compiling.value).startswith(told)
    assert "torch.compile" not in str(compiling.value)
    with pytest.raises(UnsupportedError) as explaining:
        rsn.explain(model, inputs, overlay=overlay)
    assert str(explaining.value) == str(compiling.value)


def test_what_fits_runs() -> None:
    model, x = stack(256, 128, 256), torch.randn(4, 256)
    compiled = rsn.compile(model, (x,), overlay="small")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)


def test_a_family_refuses_the_sizes_that_do_not_fit() -> None:
    model = stack(64, 64)
    family = rsn.compile(
        model, {"input": torch.randn(1, 128, 64)}, overlay="narrow", dynamic_shapes={"input": {0: rsn.Batch(1, 8)}}
    )
    x = torch.randn(8, 128, 64)
    torch.testing.assert_close(family(x[:1]), model(x[:1]), rtol=1e-5, atol=1e-5)
    with pytest.raises(UnsupportedError, match="the activations of 8 x 128 rows"):
        family(x)


def test_the_command_line(tmp_path: Path) -> None:
    given = ["compile", "gemm:64x512x512", "-o", str(tmp_path / "p.rsn"), "--overlay", "small"]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 1
    assert "error: the weights need 1.05 MB in float32, but bank lpddr" in result.output
    assert not (tmp_path / "p.rsn").exists()


def captured(model: nn.Module, **options: Any) -> Any:
    return torch.compile(model, backend="rsn", options={"overlay": "small", **options})


def test_torch_compile_leaves_it_to_pytorch() -> None:
    model, x = stack(256, 256, 256, 256), torch.randn(4, 256)
    with torch.no_grad():
        with pytest.warns(Fallback, match="this graph runs in PyTorch: the weights need 0.79 MB in float32, but bank"):
            given = captured(model)(x)
        torch.testing.assert_close(given, model(x), rtol=0, atol=0)
        assert "in PyTorch: the weights need 0.79 MB" in rsn.explain(captured(model), (x,))


@pytest.mark.parametrize("columns", [(256, 256, 256, 256), (130, 130, 130, 130)], ids=["weights", "padded weights"])
def test_torch_compile_refuses_it(columns: tuple[int, ...]) -> None:
    model, x = stack(*columns), torch.randn(4, columns[0])
    with torch.no_grad(), pytest.raises(Exception, match=r"bank lpddr, which holds them, has 0\.40 MB"):
        captured(model, fallback="error")(x)


@pytest.mark.parametrize("schedule", ["paper", rsn.Best(0.5)], ids=["paper", "best"])
def test_torch_compile_leaves_what_padding_makes_too_large_to_pytorch(schedule: Any) -> None:
    model, x = stack(130, 130, 130, 130), torch.randn(4, 130)
    with torch.no_grad():
        with pytest.warns(Fallback, match="the weights, padding included, need 0.80 MB"):
            given = captured(model, schedule=schedule)(x)
        torch.testing.assert_close(given, model(x), rtol=0, atol=0)


def test_torch_compile_cuts_at_the_one_layer_that_is_too_large() -> None:
    model, x = stack(130, 130, 500), torch.randn(4, 130)
    with torch.no_grad():
        with pytest.warns(Fallback, match="a part of this graph runs in PyTorch: .* at 1: the weights, padding"):
            given = captured(model)(x)
        torch.testing.assert_close(given, model(x), rtol=1e-5, atol=1e-5)


def test_pieces_that_fit_say_nothing() -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        model, x = stack(256, 128, 256), torch.randn(4, 256)
        torch.testing.assert_close(captured(model)(x), model(x), rtol=1e-5, atol=1e-5)
