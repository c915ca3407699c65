"""Random heads behind two layers: what they reduce, sort, scan, normalise and index, over which axis, hidden how.

    python -m rsn.tests.padding.heads [--count 3000] [--seed 0]

prints a table of them: how many were taken although filling up changes them ("wrong"), and how many were refused
although it does not ("too strict").
"""

from __future__ import annotations

import argparse
import inspect
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import rsn
from rsn.base.errors import TensorError, UnsupportedError
from rsn.rsnlib.padding_check import Filling
from rsn.rsnlib.shapes import Arguments

COLUMNS, BATCH, LENGTH = 6, 4, 8
AXES = {"batch": 0, "rows": 1, "columns": 2}
Head = Callable[[torch.Tensor, int], Any]

HEADS: dict[str, Head] = {
    # reducing
    "sum": lambda y, d: y.sum(d),
    "mean": lambda y, d: y.mean(d),
    "amax": lambda y, d: y.amax(d),
    "amin": lambda y, d: y.amin(d),
    "max": lambda y, d: y.max(d),
    "min": lambda y, d: y.min(d),
    "argmax": lambda y, d: y.argmax(d),
    "argmin": lambda y, d: y.argmin(d),
    "prod": lambda y, d: y.prod(d),
    "var": lambda y, d: y.var(d, correction=0),
    "std": lambda y, d: y.std(d, correction=0),
    "median": lambda y, d: y.median(d),
    "logsumexp": lambda y, d: y.logsumexp(d),
    "norm": lambda y, d: y.norm(dim=d),
    "norm, highest": lambda y, d: torch.linalg.vector_norm(y, float("inf"), dim=d),
    "any": lambda y, d: (y > 1).any(d),
    "all": lambda y, d: (y > -1).all(d),
    "count": lambda y, d: (y > 0).sum(d),
    "count_nonzero": lambda y, d: torch.count_nonzero(y.relu(), dim=d),
    "amax of relu": lambda y, d: y.relu().amax(d),
    "amax of all": lambda y, d: y.abs().amax(),
    "argmax of all": lambda y, d: y.argmax(),
    "aminmax": lambda y, d: torch.aminmax(y, dim=d),
    "quantile": lambda y, d: y.quantile(0.5, dim=d),
    # sorting
    "sort": lambda y, d: y.sort(d),
    "sort down": lambda y, d: y.sort(d, descending=True),
    "argsort": lambda y, d: y.argsort(d, descending=True),
    "topk": lambda y, d: y.topk(2, d),
    "topk, least": lambda y, d: y.topk(1, d, largest=False)[0],
    "kthvalue": lambda y, d: y.kthvalue(1, d)[0],
    # scanning
    "cumsum": lambda y, d: y.cumsum(d),
    "cumprod": lambda y, d: y.cumprod(d),
    "cummax": lambda y, d: y.cummax(d)[0],
    "logcumsumexp": lambda y, d: y.logcumsumexp(d),
    "diff": lambda y, d: y.diff(dim=d),
    "flip": lambda y, d: y.flip(d),
    "roll": lambda y, d: y.roll(1, d),
    "flip, scan, flip": lambda y, d: y.flip(d).cumsum(d).flip(d),
    # normalising
    "softmax": lambda y, d: y.softmax(d),
    "log_softmax": lambda y, d: y.log_softmax(d),
    "softmax, weighted": lambda y, d: (y.softmax(d) * y).sum(d),
    "layer_norm": lambda y, d: functional.layer_norm(y.transpose(d, 2), y.transpose(d, 2).shape[-1:]),
    "normalize": lambda y, d: functional.normalize(y, dim=d),
    "by the largest": lambda y, d: y / (y.abs().amax(d, keepdim=True) + 1),
    "by the sum": lambda y, d: y / (y.abs().sum(d, keepdim=True) + 1),
    "centred": lambda y, d: y - y.mean(d, keepdim=True),
    "standardised": lambda y, d: (y - y.mean(d, keepdim=True)) / (y.std(d, keepdim=True, correction=0) + 1),
    "group_norm": lambda y, d: functional.group_norm(y.transpose(1, 2), 2),
    # indexing
    "first": lambda y, d: y.select(d, 0),
    "second": lambda y, d: y.select(d, 1),
    "last": lambda y, d: y.select(d, -1),
    "first two": lambda y, d: y.narrow(d, 0, 2),
    "all but the first": lambda y, d: y.narrow(d, 1, y.shape[d] - 1),
    "all but the last": lambda y, d: y.narrow(d, 0, y.shape[d] - 1),
    "index_select": lambda y, d: y.index_select(d, torch.tensor([1, 0])),
    "gather": lambda y, d: y.gather(d, y.argmax(d, keepdim=True)),
    "take_along_dim": lambda y, d: y.take_along_dim(y.argsort(d), d),
    "halves": lambda y, d: y.chunk(2, d)[0],
    "every other": lambda y, d: y[(slice(None),) * d + (slice(None, None, 2),)],
    "cat": lambda y, d: torch.cat([y, y.select(d, 0).unsqueeze(d)], d),
    "cat before": lambda y, d: torch.cat([y.select(d, 0).unsqueeze(d), y], d),
    "pad": lambda y, d: functional.pad(y.transpose(d, 2), (1, 1)),
    "repeat": lambda y, d: torch.cat([y, y], d),
    # of several elements
    "rows by rows": lambda y, d: y @ y.transpose(1, 2) if d else y.transpose(0, 2) @ y.permute(2, 1, 0).transpose(1, 2),
    "outer sum": lambda y, d: torch.einsum("bld,ble->bde", y, y),
    "convolution": lambda y, d: functional.conv1d(
        y.transpose(1, 2), torch.ones(1, COLUMNS, 3, dtype=y.dtype), padding=1
    ),
    "causal convolution": lambda y, d: functional.conv1d(
        functional.pad(y.transpose(1, 2), (2, 0)), torch.ones(1, COLUMNS, 3, dtype=y.dtype)
    ),
    "how many": lambda y, d: y * y.shape[d],
    "positions": lambda y, d: y + torch.arange(y.shape[1])[:, None],
    "positions from the end": lambda y, d: y + torch.arange(y.shape[1]).flip(0)[:, None],
    "one by one": lambda y, d: functional.gelu(y) * 3,
}


def _where(value: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda y, m: torch.where(m[..., None] > 0, y, value)


LEAST = torch.finfo(torch.float32).min
HIDING: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "not": lambda y, m: y,
    "times the mask": lambda y, m: y * m[..., None],
    "0": lambda y, m: y.masked_fill(m[..., None] == 0, 0.0),
    "-inf": lambda y, m: y.masked_fill(~m.bool()[..., None], float("-inf")),
    "least": lambda y, m: y + (1 - m[..., None].float()) * LEAST,
    "-1e9": _where(-1e9),
    "1e9": _where(1e9),
    "1": _where(1.0),
    "square times the mask": lambda y, m: y * y * m[..., None],
}


@dataclass(frozen=True)
class Case:
    """A head over an axis, behind a way to hide, before a second one."""

    seed: int
    head: str
    axis: str
    hiding: str
    then: str

    @property
    def is_masked(self) -> bool:
        return self.hiding != "not"


def draw(seed: int) -> Case:
    """One case."""
    rng = random.Random(seed)
    hiding = rng.choice(list(HIDING)) if rng.random() < 0.7 else "not"
    return Case(seed, rng.choice(list(HEADS)), rng.choice(list(AXES)), hiding, rng.choice(["", "", "", "tanh", "amax"]))


class Model(nn.Module):
    """Two layers and a head."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(case.seed)
        self.case = case
        self.first, self.second = nn.Linear(COLUMNS, 8), nn.Linear(8, COLUMNS)

    def forward(self, x: Any, mask: Any) -> Any:
        y = self.second(self.first(x).relu())
        made = HEADS[self.case.head](HIDING[self.case.hiding](y, mask), AXES[self.case.axis])
        parts = tuple(made) if isinstance(made, tuple) else (made,)
        if self.case.then == "tanh":
            return tuple(part.double().tanh() for part in parts)
        if self.case.then == "amax":
            return tuple(part.amax(-1) if part.ndim else part for part in parts)
        return parts


def example(batch: int, length: int, seed: int, scale: float = 1.0) -> dict[str, Any]:
    """Arguments; no row is hidden."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, length, COLUMNS, generator=generator, dtype=torch.float64) * scale
    return {"x": x, "mask": torch.ones(batch, length, dtype=torch.int64)}


def arguments(model: Model, growing: str) -> Arguments:
    """Of a family with programs for one size."""
    shapes = {name: {0: rsn.Batch(BATCH)} if growing == "batch" else {1: rsn.Length(LENGTH)} for name in ("x", "mask")}
    return Arguments(inspect.signature(model.forward), example(3, 5, 1), shapes)


def growing_of(case: Case) -> str:
    """The dimension that is filled up: the one that the head takes lines of, or both in turns."""
    return case.axis if case.axis != "columns" else ("batch", "rows")[case.seed % 2]


def is_right(case: Case, model: Model, cut: Callable[..., list[Any]] | None) -> bool | None:
    """Whether filling up changes nothing, tried with many arguments; None where the model cannot be called so.

    cut: of the results of a filled-up call; without one, what they have more at the end of an axis is left away.
    """
    growing = growing_of(case)
    given, tried = arguments(model, growing), 0
    largest = BATCH if growing == "batch" else LENGTH
    for seed in range(24):
        size = 1 + seed % (largest - 1)
        scale = (1.0, 10.0, 0.01, 1000.0)[seed % 4]
        x = example(size, 5, seed, scale) if growing == "batch" else example(3, size, seed, scale)
        with torch.no_grad():
            try:
                wanted = model(**x)
            except (RuntimeError, IndexError):
                continue
            tried += 1
            try:
                full = model(**given.resized(x, (largest,)))
            except (RuntimeError, IndexError):
                return False
        got = list(full) if cut is None else cut(list(full), (largest,), (size,))
        if not all(_same(_narrowed(a, b) if cut is None else a, b) for a, b in zip(got, wanted, strict=True)):
            return False
    return True if tried else None


def _narrowed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    for axis, n in enumerate(b.shape):
        if axis < a.ndim and a.shape[axis] > n:
            a = a.narrow(axis, 0, n)
    return a


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return bool((a == b).all())
    same = (a == b) | (a.isnan() & b.isnan())
    near = (a - b).abs() <= 1e-9 * b.abs().masked_fill(~b.isfinite(), 0).amax() if a.numel() else same
    return bool((same | near).all())


def verdict(case: Case) -> tuple[str, str]:
    """What came of a case, and the reason of a refusal.

    "right"; "wrong": taken, and filling up changes it; "refused", and it does; "too strict": refused, and it does not;
    "none": the model cannot be called.
    """
    model = Model(case).double().eval()  # so that rounding is not taken for a difference
    try:
        filling = Filling(model, arguments(model, growing_of(case)))
    except UnsupportedError as error:
        right = is_right(case, model, None)
        return ("none" if right is None else "too strict" if right else "refused"), str(error)
    except TensorError as error:
        return "none", str(error)
    right = is_right(case, model, filling.padding.cut_leaves)
    return ("none" if right is None else "right" if right else "wrong"), ""


def tried(seeds: Iterator[int] | range) -> Iterator[tuple[Case, str, str]]:
    """Verdicts."""
    for seed in seeds:
        case = draw(seed)
        yield case, *verdict(case)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, Counter[str]] = {}
    total: Counter[str] = Counter()
    for case, found, why in tried(range(given.seed, given.seed + given.count)):
        table.setdefault(case.head, Counter())[found] += 1
        total[found] += 1
        if found == "wrong" or (given.show and found == "too strict"):
            print(found, case, why)
    kinds = ("right", "refused", "too strict", "wrong", "none")
    print(f"{'operator':<24}" + "".join(f"{kind:>12}" for kind in kinds))
    for head, counts in table.items():
        print(f"{head:<24}" + "".join(f"{counts[kind]:>12}" for kind in kinds))
    print(f"{'all':<24}" + "".join(f"{total[kind]:>12}" for kind in kinds))
    could = total["right"] + total["too strict"]
    print(f"wrong: {total['wrong']}; of {could} that are right {100 * total['too strict'] / could:.1f} % refused")


if __name__ == "__main__":
    main()
