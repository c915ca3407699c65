"""Captures of modules that write to aliases, draw random numbers, transform functions, have hooks, or are captured by
several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import nn

import rsn
from rsn.base.errors import TensorError, UnsupportedError

Alias = Callable[[torch.Tensor], torch.Tensor]

ALIASES: dict[str, Alias] = {
    "dropout": lambda x: F.dropout(x, 0.1, training=False),
    "dropout1d": lambda x: F.dropout1d(x, 0.1, training=False),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.1, training=False),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.1, training=False),
    "contiguous": lambda x: x.contiguous(),
    "reshape": lambda x: x.reshape(16, 64).reshape(2, 8, 64),
    "flatten": lambda x: x.flatten(0, 1).unflatten(0, (2, 8)),
    "to": lambda x: x.to(torch.float32),
    "type_as": lambda x: x.type_as(x),
    "view_as": lambda x: x.view_as(x),
    "expand_as": lambda x: x.expand_as(x),
    "chunk": lambda x: x.chunk(2, -1)[0],
    "movedim": lambda x: x.movedim(0, 1).movedim(1, 0),
    "mT": lambda x: x.mT.mT,
    "real": torch.real,
    "positive": lambda x: +x,
    "detach": lambda x: x.detach(),
    "slice": lambda x: x[:, 1:5],
    "a dropout of a dropout": lambda x: F.dropout(F.dropout(x, 0.1, training=False)[:], 0.2, training=False),
    "copy": lambda x: x.clone(),
}
WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "mul_": lambda y: y.mul_(3),
    "copy_": lambda y: y.copy_(y.flip(0)),
    "setitem": lambda y: y.__setitem__(0, 1.0),
    "masked_fill_": lambda y: y.masked_fill_(y > 0, 0.5),
}


class Writes(nn.Module):
    """Writes to an alias of its argument, or of a result of the machine, and then reads that."""

    def __init__(self, alias: Alias, write: Callable[[torch.Tensor], object], of_argument: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)
        self.alias, self.write, self.of_argument = alias, write, of_argument

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x if self.of_argument else self.a(x)
        self.write(self.alias(y))
        out: torch.Tensor = self.b(y) if self.of_argument else y.relu() + 1
        return out


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def ways(model: nn.Module, given: tuple[Any, ...]) -> Iterator[Callable[..., Any]]:
    """The model compiled in both ways; nothing is verified but by the test."""
    yield rsn.compile(model, given, verify="never")
    yield torch.compile(model, backend="rsn", options={"verify": "never"})


@pytest.mark.filterwarnings("ignore::rsn.rsnlib.fallback.Fallback")
@pytest.mark.parametrize("of_argument", [True, False], ids=["argument", "result"])
@pytest.mark.parametrize("alias", ALIASES)
def test_a_write_to_an_alias_is_one_to_the_tensor(alias: str, of_argument: bool) -> None:
    for name, write in WRITES.items() if "dropout" in alias else [("mul_", WRITES["mul_"])]:
        model, x = Writes(ALIASES[alias], write, of_argument).eval(), torch.randn(2, 8, 64)
        written = x.clone()
        expected = model(written)
        for compiled in ways(model, (x.clone(),)):
            given = x.clone()
            assert torch.allclose(compiled(given), expected, atol=1e-5), name
            assert torch.equal(given, written), name


def test_arguments_that_share_memory_and_are_written() -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x += 1
            out: torch.Tensor = self.a(y)
            return out

    model, whole = Adds().eval(), torch.randn(3, 8, 64)
    compiled = rsn.compile(model, (whole[:2].clone(), whole[:2].clone()), verify="never")
    captured = torch.compile(model, backend="rsn", options={"verify": "never"})
    for x, y in ((whole[:2], whole[:2]), (whole[:2], whole[1:])):
        with pytest.raises(TensorError, match="arguments x and y share memory, and the module writes to x"):
            compiled(x, y)
    for pair in (lambda t: (t[:2], t[:2]), lambda t: (t[:1], t[1:2])):
        ours, theirs = whole.clone(), whole.clone()
        assert torch.allclose(captured(*pair(ours)), model(*pair(theirs)), atol=1e-5)
        assert torch.equal(ours, theirs)
    apart = whole.clone()
    fits = rsn.compile(model, (whole[:1].clone(), whole[:1].clone()), verify="never")
    assert torch.allclose(fits(apart[:1], apart[1:2]), model(whole[:1].clone(), whole[1:2]), atol=1e-5)


DRAWS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "in front": lambda s, x: s.b(s.a(x + torch.rand_like(x))),
    "behind": lambda s, x: s.a(x) + torch.randn(64),
    "order of rows": lambda s, x: s.a(x[:, torch.randperm(8)]),
    "dropout in training": lambda s, x: F.dropout(s.a(x), 0.5, training=True),
    "in place": lambda s, x: s.a(x + torch.empty(64).uniform_()),
    "twice": lambda s, x: s.b((s.a(x) * torch.rand(64)).relu()) + s.a(x + torch.rand(64)),
    "behind, then in front": lambda s, x: s.a(x) * torch.rand(64) + s.b(x * torch.rand(64)),
    "a random mask": lambda s, x: F.scaled_dot_product_attention(
        *(p(x)[:, None] for p in (s.a, s.b, s.a)), attn_mask=torch.rand(8, 8) > 0.1
    )[:, 0],
}


class Draws(nn.Module):
    def __init__(self, body: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self, x)


@pytest.mark.filterwarnings("ignore::rsn.rsnlib.fallback.Fallback")
@pytest.mark.parametrize("draws", DRAWS)
def test_random_numbers_are_those_of_pytorch_or_refused(draws: str) -> None:
    model, x = Draws(DRAWS[draws]).eval(), torch.randn(2, 8, 64)
    with pytest.raises(UnsupportedError):
        rsn.compile(model, (x,))
    captured = torch.compile(model, backend="rsn", options={"verify": "never"})
    found = []
    for run in (model, captured):
        torch.manual_seed(3)
        found.append([*(run(x) for _ in range(3)), torch.rand(1)])  # the generator is where it is in PyTorch
    for got, expected in zip(*reversed(found), strict=True):
        assert torch.allclose(got, expected, atol=1e-5)


def test_the_operator_that_draws_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"^aten\.randn\.default at the top level: it draws random numbers"):
        rsn.compile(Draws(DRAWS["behind"]).eval(), (torch.randn(2, 8, 64),))


def test_a_function_that_is_mapped_over_an_axis() -> None:
    class Mapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = torch.vmap(self.a)(x)
            return out

    model, x = Mapped().eval(), torch.randn(2, 8, 64)
    for compiled in ways(model, (x,)):
        assert torch.allclose(compiled(x), model(x), atol=1e-5)


def test_a_module_that_changes_its_state_names_it() -> None:
    class Counts(nn.Module):
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(64, 64)
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            out: torch.Tensor = self.a(x) * self.count
            return out

    model, twin, x = Counts().eval(), Counts().eval(), torch.randn(2, 8, 64)
    twin.load_state_dict(model.state_dict())
    with pytest.raises(
        UnsupportedError, match=r"Counts changes its own state when called: count; torch\.compile\(model"
    ):
        rsn.compile(model, (x,))
    captured = torch.compile(model, backend="rsn")
    for _ in range(3):
        assert torch.allclose(captured(x), twin(x), atol=1e-5)
    assert torch.equal(model.count, twin.count)


def test_hooks_under_torch_compile() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).eval(), torch.randn(1, 8, 64)
    model[0].register_forward_hook(lambda module, given, y: y * 2)
    captured = torch.compile(model, backend="rsn")
    assert torch.allclose(captured(x), model(x), atol=1e-5)
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
        torch._dynamo.reset()
        captured = torch.compile(model, backend="rsn")
        captured(x)
        for register in (
            lambda: model[0].register_forward_hook(lambda module, given, y: y + 1),
            lambda: model[1].register_forward_pre_hook(lambda module, given: (given[0] * 3,)),
        ):
            handle = register()
            assert torch.allclose(captured(x), model(x), atol=1e-5)
            handle.remove()
            assert torch.allclose(captured(x), model(x), atol=1e-5)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(64, 64) for _ in range(4))
        self.norm = nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (2, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        out: torch.Tensor = self.norm(x + self.o(y))
        return out


def test_first_calls_of_several_threads() -> None:
    """While one captures, others call modules in PyTorch, and trace them."""
    model, other = nn.Sequential(Block(), Block()).eval(), Block().eval()
    captured = torch.compile(model, backend="rsn")
    failed: list[BaseException] = []

    def work(number: int) -> None:
        x = torch.randn(2, 8, 64)
        try:
            with torch.no_grad():
                for _ in range(3):
                    if number % 4 == 3:
                        run: Callable[..., Any] = rsn.compile(other, (x,))
                        assert torch.allclose(run(x), other(x), atol=1e-4)
                    assert torch.allclose(captured(x), model(x), atol=1e-4)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
