"""Threads that compile models while others compile, capture with torch.compile, or run modules."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch first: it may be missing

import rsn  # noqa: E402

pytestmark = pytest.mark.long


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(64, 64) for _ in range(4))
        self.norm = nn.LayerNorm(64)

    def forward(self, x: Any) -> Any:
        q, k, v = (y(x).unflatten(-1, (2, -1)).transpose(1, 2) for y in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.norm(x + self.o(y.transpose(1, 2).flatten(2)))


class Repeated(nn.Module):
    """One module under two names, for which torch.export has stand-ins."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.second = self.first

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x))


def blocks() -> nn.Module:
    return nn.Sequential(Block(), Block()).eval()


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@torch.no_grad()
def compare(made: Callable[..., Any], model: nn.Module, x: Any) -> None:
    torch.testing.assert_close(made(x), model(x), rtol=1e-4, atol=1e-4)


def compiled_and_compared(model: nn.Module, x: Any) -> None:
    with rsn.compile(model, (x,)) as made:
        compare(made, model, x)


def test_first_calls_of_one_model_by_many_threads() -> None:
    for _ in range(2):
        torch._dynamo.reset()
        model, other, x = blocks(), blocks(), torch.randn(2, 24, 64)
        fast = torch.compile(model, backend="rsn")
        with ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(compare, fast, model, torch.randn(2, 24, 64)) for _ in range(8)]
            calls += [pool.submit(compiled_and_compared, other, x) for _ in range(2)]
        for call in calls:
            call.result()


def test_compilation_while_other_threads_run_modules() -> None:
    done, x = threading.Event(), torch.randn(2, 24, 64)
    common = blocks()

    def runs() -> int:
        count = 0
        with torch.no_grad():
            wanted = common(x)
            while not done.is_set():
                assert torch.equal(common(x), wanted)
                count += 1
        return count

    def captures() -> int:
        count = 0
        while not done.is_set():
            model = blocks()
            compare(torch.compile(model, backend="eager"), model, x)
            count += 1
        return count

    with ThreadPoolExecutor(6) as pool:
        others = [pool.submit(other) for other in (runs, runs, captures)]
        compilations = [
            pool.submit(compiled_and_compared, m, x) for m in (common, common, blocks(), Repeated().eval(), blocks())
        ]
        try:
            for compilation in compilations:
                compilation.result()
        finally:
            done.set()
        assert all(other.result() for other in others)
