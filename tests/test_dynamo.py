"""`torch.compile(model, backend="rsn")`: on the machine where it can be, in PyTorch where it says so."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch first: it may be missing

from rsn.compiler import Compiled  # noqa: E402
from rsn.dynamo import Fallback  # noqa: E402
from rsn.isa.errors import UnsupportedError  # noqa: E402


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What ran on the machine, call by call."""
    seen: list[str] = []
    run = Compiled.__call__

    def noted(self: Compiled, *args: Any, **kwargs: Any) -> Any:
        seen.append(repr(self))
        return run(self, *args, **kwargs)

    monkeypatch.setattr(Compiled, "__call__", noted)
    return seen


def encoder() -> nn.Module:
    one = nn.TransformerEncoderLayer(48, 3, 80, activation="gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(one, 2, enable_nested_tensor=False).eval()


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_by_name(runs: list[str]) -> None:
    model, x = encoder(), torch.randn(2, 10, 48)
    fast = torch.compile(model, backend="rsn", options={"fallback": "error"})
    for _ in range(2):
        close(fast(x), model(x))
    assert len(runs) == 2
    assert "2 x 10 rows" in runs[0]


def test_other_shapes_are_other_programs(runs: list[str]) -> None:
    model = encoder()
    fast = torch.compile(model, backend="rsn", dynamic=True, options={"fallback": "error"})
    for shape in ((2, 10), (3, 10), (2, 140), (2, 10)):
        x = torch.randn(*shape, 48)
        close(fast(x), model(x))
    assert ["2 x 10" in runs[0], "3 x 10" in runs[1], "2 x 140" in runs[2], "2 x 10" in runs[3]] == [True] * 4


def test_changed_weights_are_seen() -> None:
    model, x = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 7)).eval(), torch.randn(5, 20)
    fast = torch.compile(model, backend="rsn", options={"fallback": "error"})
    close(fast(x), model(x))
    model[0].weight.mul_(2)
    close(fast(x), model(x))


class Mixed(nn.Module):
    """Two products that the machine takes, and between them what it does not: torch breaks the graph there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(20, 30), nn.Linear(30, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if float(y.sum()) > 1e9:
            return x
        y = self.second(torch.sin(y))
        return y


def test_graphs_between_which_python_decides(runs: list[str]) -> None:
    model, x = Mixed().eval(), torch.randn(5, 20)
    fast = torch.compile(model, backend="rsn", options={"fallback": "error"})
    close(fast(x), model(x))
    assert len(runs) == 2


def test_what_the_machine_cannot_run_stays_in_pytorch_and_says_so(runs: list[str]) -> None:
    model, x = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 7)).eval(), torch.randn(5, 20)
    fast = torch.compile(model, backend="rsn")
    with pytest.warns(Fallback, match="this graph runs in PyTorch: .*tanh.* cannot run on the machine"):
        close(fast(x), model(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error", Fallback)  # once for each program
        close(fast(x), model(x))
    assert runs == []


def test_or_is_an_error() -> None:
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 7)).eval()
    fast = torch.compile(model, backend="rsn", options={"fallback": "error"})
    with pytest.raises(UnsupportedError, match="cannot run on the machine"):
        fast(torch.randn(5, 20))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"falback": "error"}, "no option 'falback' of backend rsn; there are board, overlay, schedule, fallback"),
        ({"fallback": "silent"}, 'fallback \'silent\': "warn" or "error"'),
    ],
)
def test_options(options: dict[str, str], complaint: str) -> None:
    fast = torch.compile(nn.Linear(3, 4).eval(), backend="rsn", options=options)
    with pytest.raises(Exception, match=complaint):
        fast(torch.randn(2, 3))


def test_gradients_stay_in_pytorch(runs: list[str]) -> None:
    model, x = nn.Linear(20, 30), torch.randn(5, 20)
    fast = torch.compile(model, backend="rsn")
    with torch.enable_grad(), pytest.warns(Fallback, match=r"gradients are wanted.*torch\.no_grad"):
        fast(x).sum().backward()
    assert model.weight.grad is not None
    assert runs == []


def test_half_precision_says_what_to_do() -> None:
    fast = torch.compile(nn.Linear(20, 30).half().eval(), backend="rsn", options={"fallback": "error"})
    with pytest.raises(Exception, match=r"float16; the machine computes in float32"):
        fast(torch.randn(5, 20).half())
