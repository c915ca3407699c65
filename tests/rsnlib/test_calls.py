"""Calls of compiled models in all forms, one after the other: what is remembered of a form must not change a result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rsn
from rsn.base.errors import TensorError
from rsn.rsnlib.call_arguments import FORMS, CallForms

COLUMNS = 64


class Sum(torch.nn.Module):
    """Two products, and what the host adds to one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(COLUMNS, COLUMNS), torch.nn.Linear(COLUMNS, COLUMNS)

    def forward(
        self, x: torch.Tensor, shift: torch.Tensor, *, ids: torch.Tensor, more: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        hidden = torch.relu(self.first(x))
        product = self.second(hidden)
        return {"product": product, "shifted": product.cos() * shift, "hidden": hidden, "ids": ids + 1}


def arguments(batch: int, seed: int) -> dict[str, Any]:
    """Arguments of a call, by name."""
    made = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 100, (batch,), generator=made)
    return {
        "x": torch.randn(batch, 8, COLUMNS, generator=made),
        "shift": torch.randn(batch, 1, COLUMNS, generator=made),
        "ids": ids,
    }


@pytest.fixture(scope="module")
def model() -> Sum:
    torch.manual_seed(1)
    return Sum().eval()


@pytest.fixture(scope="module")
def calls(model: Sum, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Callable[..., Any]]]:
    """The same model in all its forms: of one size, of several, from a file, behind a queue."""
    sizes = {name: {0: rsn.Batch(1, 4)} for name in ("x", "shift", "ids")}
    family = rsn.compile(model, arguments(2, 0), dynamic_shapes=sizes)
    path: Path = tmp_path_factory.mktemp("calls") / "sum.rsnmodel"
    family.save(path)
    with rsn.load(path) as loaded, loaded.server() as server:
        yield {
            "one": rsn.compile(model, arguments(4, 0)),
            "family": family,
            "loaded": loaded,
            "server": lambda **given: server.submit(**given).result(),
        }


def check(found: Any, wanted: dict[str, torch.Tensor]) -> None:
    """Fail unless a result is that of PyTorch."""
    assert list(found) == list(wanted)
    for name, y in wanted.items():
        assert found[name].dtype == y.dtype, name
        assert found[name].shape == y.shape, name
        assert float((found[name] - y).abs().max()) <= 1e-5 * float(y.abs().max()), name


def stored(x: torch.Tensor, way: str) -> Any:
    """The same numbers in another object."""
    match way:
        case "array":
            return x.numpy().copy()
        case "read-only array":
            made = x.numpy().copy()
            made.flags.writeable = False
            return made
        case "parameter":
            return torch.nn.Parameter(x.clone()) if x.is_floating_point() else x.clone()
        case "other strides":
            return x.transpose(0, -1).contiguous().transpose(0, -1)
        case "int32":
            return x.int() if x.dtype == torch.int64 else x.clone()
    return x.clone()


WAYS = "tensor", "array", "read-only array", "parameter", "other strides", "int32"
WRONG: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "missing": lambda given: {name: x for name, x in given.items() if name != "shift"},
    "unknown": lambda given: given | {"other": given["x"]},
    "None": lambda given: given | {"shift": None},
    "not as in the example": lambda given: given | {"more": given["x"]},
    "a list": lambda given: given | {"x": [given["x"]]},
    "float64": lambda given: given | {"x": given["x"].double()},
    "columns": lambda given: given | {"x": given["x"][..., :32]},
    "sizes": lambda given: given | {"shift": given["shift"].repeat(3, 1, 1)},
}


@pytest.mark.parametrize("kind", ["one", "family", "loaded", "server"])
@settings(max_examples=12)
@given(data=st.data())
def test_any_sequence_of_calls_gives_what_pytorch_gives(
    kind: str, model: Sum, calls: dict[str, Callable[..., Any]], data: st.DataObject
) -> None:
    kept: list[tuple[Any, dict[str, torch.Tensor]]] = []
    for seed in data.draw(st.lists(st.integers(0, 1000), min_size=2, max_size=4)):
        given = arguments(4 if kind == "one" else data.draw(st.integers(1, 4)), seed)
        wrong = data.draw(st.sampled_from([None, None, *WRONG]))
        asked = given if wrong is None else WRONG[wrong](given)
        asked = {
            name: stored(x, data.draw(st.sampled_from(WAYS))) if isinstance(x, torch.Tensor) else x
            for name, x in asked.items()
        }
        named = {name: asked[name] for name in data.draw(st.permutations(list(asked)))}
        first = [] if kind == "server" or "x" not in asked else [name for name in ("x", "shift") if name in asked]
        count = data.draw(st.integers(0, len(first)))
        args = [named.pop(name) for name in first[:count]]
        if wrong is not None:
            with pytest.raises(TensorError):
                calls[kind](*args, **named)
            continue
        with torch.no_grad():
            wanted = model(**given)
        found = calls[kind](*args, **named)
        check(found, wanted)
        for x in (*args, *named.values()):  # what a caller writes to its arguments changes no result
            if isinstance(x, torch.Tensor):
                x.detach().fill_(7)
            elif x.flags.writeable:
                x[:] = 7
        kept.append((found, wanted))
    for found, wanted in kept:  # later calls have changed no result
        check(found, wanted)
    for found, _ in kept:  # and results share no memory
        for name, y in found.items():
            before = {other: x.clone() for other, x in found.items() if other != name}
            y.detach().fill_(3)
            assert all(torch.equal(found[other], x) for other, x in before.items()), name


def test_arguments_may_be_written_to_while_a_call_waits(
    model: Sum, tmp_path: Path, calls: dict[str, Callable[..., Any]]
) -> None:
    calls["family"].save(tmp_path / "sum.rsnmodel")  # type: ignore[attr-defined]
    with rsn.load(tmp_path / "sum.rsnmodel") as loaded, loaded.server(rsn.Serving(max_wait_s=0.2)) as server:
        given = arguments(1, 5)
        with torch.no_grad():
            wanted = model(**given)
        asked = server.submit(**given)
        for x in given.values():
            x.zero_()
        check(asked.result(), wanted)


class OfBuiltinNames(torch.nn.Module):
    """Its arguments have names that a captured graph does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(COLUMNS, COLUMNS)

    def forward(self, input: torch.Tensor, type: torch.Tensor) -> torch.Tensor:
        return self.linear(input) + type


def test_arguments_of_a_file_have_the_names_of_the_model(tmp_path: Path) -> None:
    model = OfBuiltinNames().eval()
    given = {"input": torch.randn(1, 8, COLUMNS), "type": torch.randn(1, 8, COLUMNS)}
    rsn.compile(model, given).save(tmp_path / "m.rsnmodel")
    with rsn.load(tmp_path / "m.rsnmodel") as loaded, loaded.server() as server:
        assert [a.name for a in server.arguments] == ["input", "type"]
        with torch.no_grad():
            check({"y": server.ask(given).result()}, {"y": model(**given)})


def test_threads_get_their_own_results(model: Sum, calls: dict[str, Callable[..., Any]]) -> None:
    every = {seed: arguments(1 + seed % 4, seed) for seed in range(12)}
    with torch.no_grad():
        wanted = {seed: model(**given) for seed, given in every.items()}
    for kind in ("family", "loaded", "server"):
        barrier = threading.Barrier(4)

        def ask(seed: int, kind: str = kind, barrier: threading.Barrier = barrier) -> Any:
            barrier.wait()
            return calls[kind](**every[seed])

        with ThreadPoolExecutor(4) as threads:
            for seed, found in zip(every, threads.map(ask, every), strict=True):
                check(found, wanted[seed])


def test_changed_weights_count_in_the_next_call_of_the_same_form(model: Sum) -> None:
    compiled, given = rsn.compile(model, arguments(1, 0)), arguments(1, 1)
    weight = model.second.weight.detach().clone()
    try:
        for factor in (1.0, -2.0, 1.0):
            with torch.no_grad():
                model.second.weight.copy_(weight * factor)
                wanted = model(**given)
            check(compiled(**given), wanted)
    finally:
        with torch.no_grad():
            model.second.weight.copy_(weight)


def test_a_form_is_arranged_once_and_errors_are_about_the_arguments() -> None:
    asked: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def arrange(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        asked.append((args, kwargs))
        if len(args) > 1:
            raise TensorError(f"two: {args}")
        return dict(sorted(kwargs.items())) | dict(zip(["first"], args, strict=False))

    forms: CallForms[str] = CallForms()
    assert list(forms.arranged(arrange, (1,), {"b": 2, "a": 3}).items()) == [("a", 3), ("b", 2), ("first", 1)]
    assert forms.arranged(arrange, (4,), {"b": 5, "a": 6}) == {"a": 6, "b": 5, "first": 4}
    assert len(asked) == 1
    assert forms.arranged(arrange, (4,), {"a": 5, "b": 6}) == {"a": 5, "b": 6, "first": 4}
    assert len(asked) == 2
    for _ in range(2):
        with pytest.raises(TensorError, match=r"two: \(1, 2\)"):
            forms.arranged(arrange, (1, 2), {})
    for i in range(2 * FORMS):
        assert forms.arranged(arrange, (), {str(i): i}) == {str(i): i}
    assert forms.arranged(arrange, (4,), {"b": 5, "a": np.pi}) == {"a": np.pi, "b": 5, "first": 4}
