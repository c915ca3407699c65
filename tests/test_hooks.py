"""Hooks of modules: what `rsn.compile` makes of them, and what docs/models.md says of torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch first: it may be missing
from torch.nn.modules.module import (  # noqa: E402
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

import rsn  # noqa: E402


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 24), nn.Linear(24, 24)
        self.factor = 1.0

    def forward(self, x: Any) -> Any:
        return self.second(torch.relu(self.first(x))) * self.factor


def twice(_: Any, __: Any, result: Any) -> Any:
    return 2 * result


def pre(_: Any, given: Any) -> Any:
    return (2 * given[0],)


LOCAL: dict[str, Callable[[Any], Any]] = {
    "behind": lambda model: model.first.register_forward_hook(twice),
    "before": lambda model: model.first.register_forward_pre_hook(pre),
    "first of all": lambda model: model.second.register_forward_hook(twice, prepend=True),
    "with keywords": lambda model: model.first.register_forward_hook(lambda m, _, __, y: 2 * y, with_kwargs=True),
    "in any case": lambda model: model.second.register_forward_hook(twice, always_call=True),
}
ROOT: dict[str, Callable[[Any], Any]] = {
    "of the model": lambda model: model.register_forward_hook(twice),
    "of the model, before": lambda model: model.register_forward_pre_hook(pre),
}
GLOBAL: dict[str, Callable[[Any], Any]] = {
    "of all modules": lambda _: register_module_forward_hook(lambda m, _, y: 2 * y if type(m) is nn.Linear else y),
    "of all modules, before": lambda _: register_module_forward_pre_hook(
        lambda m, x: (2 * x[0],) if type(m) is nn.Linear else x
    ),
}


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def by_rsn(model: nn.Module, x: Any) -> Any:
    return rsn.compile(model, (x,))


def by_torch(model: nn.Module, _: Any) -> Any:
    return torch.compile(model, backend="rsn")


def agree(made: Callable[..., Any], model: nn.Module, x: Any) -> bool:
    return torch.allclose(made(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("by", [by_rsn, by_torch])
@pytest.mark.parametrize("hook", (LOCAL | ROOT | GLOBAL).values(), ids=LOCAL | ROOT | GLOBAL)
def test_hooks_before_the_first_call(hook: Callable[[Any], Any], by: Callable[..., Any]) -> None:
    model, x = Layers().eval(), torch.randn(2, 5, 24)
    plain = model(x)
    handle = hook(model)
    try:
        made = by(model, x)
        assert agree(made, model, x)
        assert not torch.allclose(model(x), plain)
        if hook not in GLOBAL.values():
            handle.remove()
            assert agree(made, model, x)
    finally:
        handle.remove()


class Two(nn.Module):
    """Two results, in a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 24), nn.Linear(24, 24)

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(self.first(x)), x


def doubled(module: nn.Module, given: Any, result: Any) -> Any:
    return tuple(2 * x for x in result) if isinstance(result, tuple) else 2 * result


EACH: dict[str, Callable[[], Any]] = {
    "results": lambda: register_module_forward_hook(doubled),
    "tuples": lambda: register_module_forward_hook(lambda m, _, y: y[:1] if isinstance(y, tuple) else None),
    "arguments": lambda: register_module_forward_pre_hook(lambda m, given: tuple(2 * x for x in given)),
}


@pytest.mark.parametrize("hook", EACH.values(), ids=EACH)
def test_hooks_of_all_modules_run_for_those_of_the_model_alone(hook: Callable[[], Any]) -> None:
    """torch.export puts modules of its own around a model while it captures."""
    model, x = Two().eval(), torch.randn(2, 5, 24)
    handle = hook()
    try:
        wanted = model(x)
        with rsn.compile(model, (x,), verify="never") as made:
            got = made(x)
    finally:
        handle.remove()
    assert len(got) == len(wanted)
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(got, wanted, strict=True))


@pytest.mark.parametrize("hook", (LOCAL | ROOT | GLOBAL).values(), ids=LOCAL | ROOT | GLOBAL)
def test_rsn_compile_follows_hooks(hook: Callable[[Any], Any]) -> None:
    model, x = Layers().eval(), torch.randn(2, 5, 24)
    with rsn.compile(model, (x,)) as made:
        assert agree(made, model, x)
        handle = hook(model)
        try:
            assert agree(made, model, x)
        finally:
            handle.remove()
        assert agree(made, model, x)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["rsn", "eager"])
def test_which_hooks_torch_compile_follows(backend: str) -> None:
    """What the documentation says of torch.compile holds for its own backend, too."""

    def follows(hook: Callable[[Any], Any]) -> bool:
        torch._dynamo.reset()
        model, x = Layers().eval(), torch.randn(2, 5, 24)
        made = torch.compile(model, backend=backend)
        assert agree(made, model, x)
        handle = hook(model)
        try:
            return agree(made, model, x)
        finally:
            handle.remove()

    assert not any(map(follows, [*LOCAL.values(), *GLOBAL.values()]))
    assert all(map(follows, ROOT.values()))
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
        assert all(map(follows, LOCAL.values()))
        assert not any(map(follows, GLOBAL.values()))


def test_torch_compile_follows_attributes_and_modes() -> None:
    model, x = nn.Sequential(Layers(), nn.Dropout(0.5)).eval(), torch.randn(2, 5, 24)
    made = by_torch(model, x)
    assert agree(made, model, x)
    model[0].factor = 2.0
    assert agree(made, model, x)
    model.train()
    torch.manual_seed(1)
    got = made(x)
    torch.manual_seed(1)
    torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-4)


def test_what_else_a_hook_does_is_done_when_the_model_is_captured_and_verified() -> None:
    model, x = Layers().eval(), torch.randn(2, 5, 24)
    calls: list[None] = []
    model.first.register_forward_hook(lambda *_: calls.append(None))
    with rsn.compile(model, (x,)) as made:
        captured = len(calls)
        assert captured
        made(x)
        assert len(calls) == captured + 1
        made(x)
        assert len(calls) == captured + 1
