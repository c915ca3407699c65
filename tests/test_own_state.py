"""Modules that change their own state when called, and those that use transforms of torch.func: refused by
`rsn.compile` with what changes and the way out, right with torch.compile."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812 - torch first: it may be missing
from torch import nn  # noqa: E402

import rsn  # noqa: E402
from rsn.base.errors import UnsupportedError  # noqa: E402
from rsn.host.model.torch_backend import Fallback  # noqa: E402
from rsn.tests.effort import thinned  # noqa: E402


class Stateful(nn.Module):
    def __init__(self, body: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.layer, self.body = nn.Linear(24, 24), body
        self.register_buffer("mean", torch.zeros(24))
        self.calls, self.last, self.seen, self.table = 0, None, [], torch.zeros(24)

    def forward(self, x: Any) -> Any:
        return self.body(self, x)


def writes_buffer(self: Any, x: Any) -> Any:
    self.mean.add_(x.mean((0, 1)))
    return self.layer(x - self.mean)


def writes_through_view(self: Any, x: Any) -> Any:
    F.dropout(self.mean, 0.1, training=False).add_(1)
    return self.layer(x) + self.mean


def replaces_buffer(self: Any, x: Any) -> Any:
    self.mean = self.mean + 1
    return self.layer(x) + self.mean


def registers_buffer(self: Any, x: Any) -> Any:
    self.register_buffer("mean", self.mean + 1)
    return self.layer(x) + self.mean


def writes_weight(self: Any, x: Any) -> Any:
    self.layer.bias.add_(1)
    return self.layer(x)


def counts(self: Any, x: Any) -> Any:
    self.calls += 1
    return self.layer(x) * self.calls


def appends(self: Any, x: Any) -> Any:
    self.seen.append(None)
    return self.layer(x) * len(self.seen)


def adds_the_last(self: Any, x: Any) -> Any:
    y = self.layer(x) if self.last is None else self.layer(x) + self.last
    self.last = x
    return y


def replaces_tensor(self: Any, x: Any) -> Any:
    self.table = self.table + 1
    return self.layer(x) + self.table


CHANGES = {
    writes_buffer: "mean",
    writes_through_view: "mean",
    replaces_buffer: "mean",
    registers_buffer: "mean",
    writes_weight: "layer.bias",
    counts: "calls",
    appends: "seen",
    adds_the_last: "last",
    replaces_tensor: "table",
}


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def same(made: Callable[..., Any], model: nn.Module, x: Any) -> None:
    for i in range(3):
        torch.testing.assert_close(made(x + i), model(x + i), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("body", thinned(CHANGES, 2))
def test_changes_of_its_own_state(body: Callable[[Any, Any], Any]) -> None:
    inner, x = Stateful(body), torch.randn(2, 5, 24)
    model = nn.Sequential(inner).eval()
    twin = copy.deepcopy(model)
    with pytest.raises(UnsupportedError) as refused:
        rsn.compile(model, (x,))
    assert str(refused.value) == (
        f"Sequential changes its own state when called: 0.{CHANGES[body]}; "
        'torch.compile(model, backend="rsn") follows such changes'
    )
    same(model, twin, x)  # to try changed nothing in the model
    same(torch.compile(model, backend="rsn"), twin, x)
    torch.testing.assert_close(model.state_dict(), twin.state_dict())


def test_a_table_that_a_module_remembers_is_no_state() -> None:
    def remembers(self: Any, x: Any) -> Any:
        if self.last is None or self.calls != x.shape[1]:
            self.calls, self.last = x.shape[1], torch.arange(x.shape[1], dtype=x.dtype).cos()[:, None].expand(-1, 24)
        return self.layer(x + self.last), self.last > 0

    model, x = Stateful(remembers).eval(), torch.randn(2, 5, 24)
    with rsn.compile(model, (x,)) as compiled:
        same(compiled, model, x)


MAPPED: dict[str, Callable[[Any, Any], Any]] = {
    "vmap": lambda layer, x: torch.vmap(layer)(x),
    "two axes": lambda layer, x: torch.vmap(torch.vmap(layer))(x),
    "another axis": lambda layer, x: torch.vmap(layer, in_dims=1, out_dims=1)(x),
    "before": lambda layer, x: layer(torch.vmap(torch.relu)(x)),
    "behind": lambda layer, x: torch.vmap(torch.relu)(layer(x)),
    "jvp": lambda layer, x: layer(torch.func.jvp(torch.sin, (x,), (x,))[1]),
}
TRANSFORMS: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda layer, x: layer(torch.func.grad(lambda y: (y**2).sum())(x)),
    "vjp": lambda layer, x: layer(torch.func.vjp(torch.sin, x)[1](x)[0]),
    "written": lambda layer, x: layer(torch.vmap(lambda y: y.clone().mul_(2))(x)),
}


class Transformed(nn.Module):
    def __init__(self, transform: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.layer, self.transform = nn.Linear(24, 24), transform

    def forward(self, x: Any) -> Any:
        return self.transform(self.layer, x)


@pytest.mark.parametrize("kind", thinned(MAPPED, 2))
def test_transforms_that_consist_of_other_operators(kind: str) -> None:
    model, x = Transformed(MAPPED[kind]).eval(), torch.randn(2, 5, 24)
    same(torch.compile(model, backend="rsn"), model, x)
    try:
        made = rsn.compile(model, (x,))
    except UnsupportedError as error:
        assert "torch.export cannot capture Transformed" in str(error)  # noqa: PT017 - some raise, all are right
    else:
        same(made, model, x)


@pytest.mark.parametrize("kind", TRANSFORMS)
def test_other_transforms_stay_in_pytorch(kind: str) -> None:
    model, x = Transformed(TRANSFORMS[kind]).eval(), torch.randn(2, 5, 24)
    with pytest.raises(UnsupportedError, match=r"transform of torch\.func|torch\.export cannot capture Transformed"):
        rsn.compile(model, (x,))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        same(torch.compile(model, backend="rsn"), model, x)
    assert any(warning.category is Fallback for warning in told)
