"""Random chains of two to six operators behind a layer, with both dimensions filled up and masks that hide valid rows.

    python -m rsn.tests.padding.chains [--count 3000] [--seed 0]

prints a table of them as `heads` does.
"""

from __future__ import annotations

import argparse
import inspect
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import rsn
from rsn.base.errors import TensorError, UnsupportedError
from rsn.rsnlib.padding_check import Filling
from rsn.rsnlib.shapes import Arguments
from rsn.tests.padding.heads import _narrowed, _same

COLUMNS, BATCH, LENGTH = 6, 4, 8

Axes = tuple[str, ...]
"""What a tensor has: "b" sequences, "l" rows, "c" columns, "k" something else of one size."""


@dataclass
class Values:
    """Those of one call."""

    start: torch.Tensor
    mask: torch.Tensor
    ids: torch.Tensor
    table: torch.Tensor


Step = Callable[[torch.Tensor, Values], torch.Tensor]


@dataclass
class Chain:
    """Steps with their names, and the axes of the tensor so far."""

    steps: list[tuple[str, Step]] = field(default_factory=list)
    axes: Axes = ("b", "l", "c")

    def add(self, name: str, step: Step, axes: Axes | None = None) -> None:
        self.steps.append((name, step))
        self.axes = self.axes if axes is None else axes


def _aligned(mask: torch.Tensor, axes: Axes) -> torch.Tensor:
    """The mask (b, l) beside a tensor with these axes."""
    lines = mask if axes.index("b") < axes.index("l") else mask.T
    shape = [
        lines.shape[("b", "l").index(a)] if lines is mask else lines.shape[("l", "b").index(a)] if a in "bl" else 1
        for a in axes
        if a in "bl"
    ]
    sizes = iter(shape)
    return lines.reshape([next(sizes) if a in "bl" else 1 for a in axes])


ELEMENTWISE: dict[str, Step] = {
    "relu": lambda y, v: y.relu(),
    "tanh": lambda y, v: y.double().tanh(),
    "sigmoid": lambda y, v: y.double().sigmoid(),
    "exp": lambda y, v: y.double().clamp(max=30).exp(),
    "abs": lambda y, v: y.abs() if y.dtype != torch.bool else y,
    "negative": lambda y, v: -y if y.dtype != torch.bool else ~y,
    "plus 5": lambda y, v: y + 5,
    "times -2": lambda y, v: y * -2,
    "times 1e-3": lambda y, v: y * 1e-3,
    "1 - ": lambda y, v: 1 - y.double(),
    "square": lambda y, v: y * y,
    "log": lambda y, v: y.double().log(),
    "log1p of abs": lambda y, v: y.double().abs().log1p(),
    "reciprocal": lambda y, v: y.double().reciprocal(),
    "clamped": lambda y, v: y.clamp(-1, 2),
    "least 1e-9": lambda y, v: torch.clamp(y.double(), min=1e-9),
    "positive": lambda y, v: y > 0,
    "not 0": lambda y, v: y != 0,
    "less": lambda y, v: y < 0.5,
    "whole": lambda y, v: y.double().clamp(-50, 50).long(),
    "to numbers": lambda y, v: y.double().nan_to_num(nan=1.0),
    "is NaN": lambda y, v: y.double().isnan(),
    "where positive": lambda y, v: torch.where(y > 0, y, -1.0),
    "mod 3": lambda y, v: y.double() % 3,
}


def _elementwise(chain: Chain, rng: random.Random) -> None:
    name = rng.choice(list(ELEMENTWISE))
    chain.add(name, ELEMENTWISE[name])


def _hide(chain: Chain, rng: random.Random) -> None:
    axes = chain.axes
    if axes.count("b") != 1 or axes.count("l") != 1:
        return
    kind = rng.choice(["times", "0", "-inf", "inf", "-1e9", "1", "added", "square times", "where"])
    number = {"0": 0.0, "-inf": -inf, "inf": inf, "-1e9": -1e9, "1": 1.0}.get(kind, 0.0)

    def step(y: torch.Tensor, v: Values) -> torch.Tensor:
        mask = _aligned(v.mask, axes)
        if kind == "times":
            return y * mask
        if kind == "square times":
            return y * y * mask
        if kind == "added":
            return y + (1 - mask.double()) * -1e30
        if kind == "where":
            return torch.where(mask.bool(), y.double(), -1e12)
        return y.double().masked_fill(mask == 0, number)

    chain.add(f"hide: {kind}", step)


REDUCE: dict[str, Callable[[torch.Tensor, int, bool], torch.Tensor]] = {
    "sum": lambda y, d, k: y.sum(d, keepdim=k),
    "mean": lambda y, d, k: y.double().mean(d, keepdim=k),
    "amax": lambda y, d, k: y.amax(d, keepdim=k),
    "amin": lambda y, d, k: y.amin(d, keepdim=k),
    "max": lambda y, d, k: y.max(d, keepdim=k)[0],
    "argmax": lambda y, d, k: y.double().argmax(d, keepdim=k),
    "argmin": lambda y, d, k: y.double().argmin(d, keepdim=k),
    "min's index": lambda y, d, k: y.double().min(d, keepdim=k)[1],
    "prod": lambda y, d, k: y.double().prod(d, keepdim=k),
    "var": lambda y, d, k: y.double().var(d, correction=0, keepdim=k),
    "norm": lambda y, d, k: y.double().norm(dim=d, keepdim=k),
    "norm 1": lambda y, d, k: y.double().norm(1, dim=d, keepdim=k),
    "norm inf": lambda y, d, k: y.double().norm(inf, dim=d, keepdim=k),
    "logsumexp": lambda y, d, k: y.double().logsumexp(d, keepdim=k),
    "any": lambda y, d, k: (y > 0).any(d, keepdim=k),
    "all": lambda y, d, k: (y > -1).all(d, keepdim=k),
    "count": lambda y, d, k: torch.count_nonzero(y, dim=d).unsqueeze(d) if k else torch.count_nonzero(y, dim=d),
    "median": lambda y, d, k: y.double().median(d, keepdim=k)[0],
    "nansum": lambda y, d, k: y.double().nansum(d, keepdim=k),
}


def _reduce(chain: Chain, rng: random.Random) -> None:
    if not chain.axes:
        return
    name, at = rng.choice(list(REDUCE)), rng.randrange(len(chain.axes))
    made, what = REDUCE[name], chain.axes[at]
    use = rng.choice(["", "", "-", "/", "*"])
    if use and name not in ("argmax", "argmin", "min's index"):
        combine: dict[str, Callable[[Any, Any], Any]] = {
            "-": lambda y, r: y.double() - r.double(),
            "/": lambda y, r: y.double() / r.double(),
            "*": lambda y, r: y.double() * r.double(),
        }
        chain.add(f"{name} {what} {use}", lambda y, v: combine[use](y, made(y, at, True)))
        return
    chain.add(f"{name} {what}", lambda y, v: made(y, at, False), chain.axes[:at] + chain.axes[at + 1 :])


ALONG: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "softmax": lambda y, d: y.double().softmax(d),
    "log_softmax": lambda y, d: y.double().log_softmax(d),
    "cumsum": lambda y, d: y.cumsum(d),
    "cumprod": lambda y, d: y.double().cumprod(d),
    "cummax": lambda y, d: y.double().cummax(d)[0],
    "sort": lambda y, d: y.double().sort(d)[0],
    "sort down": lambda y, d: y.double().sort(d, descending=True)[0],
    "argsort": lambda y, d: y.double().argsort(d),
    "argsort down": lambda y, d: y.double().argsort(d, descending=True),
    "flip": lambda y, d: y.flip(d),
    "roll": lambda y, d: y.roll(1, d),
    "normalize": lambda y, d: functional.normalize(y.double(), dim=d),
    "gather by argsort": lambda y, d: y.gather(d, y.double().argsort(d, descending=True)),
    "shifted": lambda y, d: torch.cat([y.narrow(d, 0, 1), y.narrow(d, 0, y.shape[d] - 1)], d),
    "where largest": lambda y, d: y == y.amax(d, keepdim=True),
    "second half of itself": lambda y, d: y + torch.arange(y.shape[d]).reshape([-1] + [1] * (y.ndim - 1 - d)),
    "from the end": lambda y, d: y + torch.arange(y.shape[d]).flip(0).reshape([-1] + [1] * (y.ndim - 1 - d)),
    "how many": lambda y, d: y / y.shape[d],
    "half of it": lambda y, d: y + y.shape[d] // 2,
    "tail": lambda y, d: torch.cat([torch.zeros_like(y.narrow(d, 0, 1)), y.narrow(d, 1, y.shape[d] - 1)], d),
}


def _along(chain: Chain, rng: random.Random) -> None:
    if chain.axes:
        name, at = rng.choice(list(ALONG)), rng.randrange(len(chain.axes))
        chain.add(f"{name} {chain.axes[at]}", lambda y, v: ALONG[name](y, at))


TAKE: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "first": lambda y, d: y.select(d, 0),
    "last": lambda y, d: y.select(d, -1),
    "largest": lambda y, d: y.gather(d, y.double().argmax(d, keepdim=True)).squeeze(d),
    "topk": lambda y, d: y.double().topk(1, d)[0].squeeze(d),
    "topk's index": lambda y, d: y.double().topk(1, d)[1].squeeze(d),
    "by its row": lambda y, d: y.select(d, min(y.shape[d] // 3, 1)),
}


def _take(chain: Chain, rng: random.Random) -> None:
    if chain.axes:
        name, at = rng.choice(list(TAKE)), rng.randrange(len(chain.axes))
        axes = chain.axes[:at] + chain.axes[at + 1 :]
        chain.add(f"{name} {chain.axes[at]}", lambda y, v: TAKE[name](y, at), axes)


def _last_token(chain: Chain, rng: random.Random) -> None:
    if chain.axes[:2] != ("b", "l"):
        return
    kind = rng.choice(["bool", "whole", "clamped", "gather", "position", "eos"])

    def step(y: torch.Tensor, v: Values) -> torch.Tensor:
        last = (v.mask.bool() if kind == "bool" else v.mask).sum(1) - 1
        if kind in ("clamped", "gather"):
            last = last.clamp(min=0)
        if kind == "position":
            last = (torch.arange(v.mask.shape[1]) * v.mask).argmax(-1)
        if kind == "eos":
            last = (v.ids == 3).int().argmax(-1)
        if kind == "gather":
            shape = (-1, 1) + (1,) * (y.ndim - 2)
            return y.gather(1, last.reshape(shape).expand(-1, 1, *y.shape[2:])).squeeze(1)
        return y[torch.arange(y.shape[0]), last]

    chain.add(f"last token: {kind}", step, (chain.axes[0], *chain.axes[2:]))


def _index(chain: Chain, rng: random.Random) -> None:
    axes = chain.axes
    if axes[:3] == ("b", "l", "c") and len(axes) == 3:
        kind = rng.choice(["diagonal", "rows", "columns", "reversed", "by column"])
        made: dict[str, tuple[Step, Axes]] = {
            "diagonal": (lambda y, v: y[torch.arange(y.shape[0]), :, torch.arange(y.shape[0])], ("b", "l")),
            "rows": (lambda y, v: y[:, torch.arange(y.shape[1])], axes),
            "columns": (lambda y, v: y[:, :, torch.tensor([2, 0])], ("b", "l", "k")),
            "reversed": (lambda y, v: y[:, torch.arange(y.shape[1] - 1, -1, -1)], axes),
            "by column": (lambda y, v: y[torch.arange(y.shape[0]), :, v.mask.sum(1) % 5], ("b", "l")),
        }
        chain.add(f"index: {kind}", *made[kind])


def _product(chain: Chain, rng: random.Random) -> None:
    axes = chain.axes
    if axes != ("b", "l", "c"):
        return
    kind = rng.choice(["gram", "scores", "attention", "causal", "pooled", "start", "sdpa", "sdpa causal", "conv"])

    def step(y: torch.Tensor, v: Values) -> torch.Tensor:
        y, size = y.double(), y.shape[1]
        hidden = torch.full((size, size), -inf, dtype=y.dtype).triu(1)
        if kind == "gram":
            return y.mT @ y
        if kind == "scores":
            return (y @ y.mT).softmax(-1) @ y
        if kind == "attention":
            return (y @ y.mT).masked_fill(v.mask[:, None] == 0, -inf).softmax(-1) @ y
        if kind == "causal":
            return (y @ y.mT + hidden).softmax(-1) @ y
        if kind == "pooled":
            return torch.einsum("bl,bld->bd", v.mask.double(), y)
        if kind == "start":
            return torch.einsum("...c,...c->...c", y, v.start)
        if kind == "conv":
            return functional.conv1d(y.mT, torch.ones(COLUMNS, COLUMNS, 3, dtype=y.dtype), padding=1).mT
        mask = v.mask[:, None, None].bool() if kind == "sdpa" else None
        z = y[:, None]
        return functional.scaled_dot_product_attention(z, z, z, mask, is_causal=mask is None)[:, 0]

    made = {"gram": ("b", "c", "k"), "pooled": ("b", "c")}.get(kind, axes)
    chain.add(f"product: {kind}", step, made)


def _move(chain: Chain, rng: random.Random) -> None:
    axes = chain.axes
    if len(axes) < 2:
        return
    kind = rng.choice(["transpose", "flatten", "expand", "stack", "cat", "pad", "repeat"])
    at = rng.randrange(len(axes) - 1)
    if kind == "transpose":
        swapped = (*axes[:at], axes[at + 1], axes[at], *axes[at + 2 :])
        chain.add("transpose", lambda y, v: y.transpose(at, at + 1), swapped)
    if kind == "flatten":
        joined = "m" + axes[at] + axes[at + 1] if "b" in axes[at] + axes[at + 1] or "l" in axes[at + 1] else "k"
        chain.add(
            f"flatten {axes[at]}{axes[at + 1]}",
            lambda y, v: y.flatten(at, at + 1),
            (*axes[:at], joined, *axes[at + 2 :]),
        )
    if kind == "expand" and "l" not in axes:
        chain.add("expand to rows", lambda y, v: y.unsqueeze(-1).expand(*y.shape, v.mask.shape[1]), (*axes, "l"))
    if kind == "stack":
        chain.add(
            "stack", lambda y, v: torch.stack([y, y.double().exp().to(y.dtype)], at), (*axes[:at], "k", *axes[at:])
        )
    if kind == "cat":
        chain.add(
            f"cat first {axes[at]}",
            lambda y, v: torch.cat([y.narrow(at, 0, 1), y], at),
            (*axes[:at], "m" + axes[at], *axes[at + 1 :]),
        )
    if kind == "pad":
        last = axes[-1]
        chain.add(f"pad {last}", lambda y, v: functional.pad(y, (0, 1)), (*axes[:-1], "m" + last))
    if kind == "repeat":
        chain.add(
            f"repeat {axes[at]}", lambda y, v: y.repeat_interleave(2, at), (*axes[:at], "m" + axes[at], *axes[at + 1 :])
        )


def _with(chain: Chain, rng: random.Random) -> None:
    axes = chain.axes
    if axes != ("b", "l", "c"):
        return
    kind = rng.choice(["start", "positions", "words", "max", "mean of start", "mask", "gate"])
    made: dict[str, Step] = {
        "start": lambda y, v: y * v.start,
        "positions": lambda y, v: y + v.table[: y.shape[1]],
        "words": lambda y, v: y + v.table[v.ids],
        "max": lambda y, v: torch.maximum(y.double(), v.start),
        "mean of start": lambda y, v: y - ((v.start * v.mask[..., None]).sum(1) / v.mask.sum(1, keepdim=True))[:, None],
        "mask": lambda y, v: y + v.mask[..., None],
        "gate": lambda y, v: torch.where(v.ids[..., None] == 3, y.double(), v.start),
    }
    chain.add(f"with {kind}", made[kind])


def _restart(chain: Chain, rng: random.Random) -> None:
    """Another tensor than the layer's."""
    kind = rng.choice(["mask", "truths", "ids", "table"])
    made: dict[str, tuple[Step, Axes]] = {
        "mask": (lambda y, v: v.mask, ("b", "l")),
        "truths": (lambda y, v: v.mask.bool()[..., None] & (y > 0), ("b", "l", "c")),
        "ids": (lambda y, v: v.ids, ("b", "l")),
        "table": (lambda y, v: v.table[v.ids], ("b", "l", "c")),
    }
    if chain.axes == ("b", "l", "c"):
        chain.add(kind, *made[kind])


KINDS = {
    _elementwise: 5,
    _hide: 5,
    _reduce: 6,
    _along: 3,
    _take: 2,
    _last_token: 2,
    _index: 1,
    _product: 2,
    _move: 2,
    _with: 2,
    _restart: 1,
}
"""How often each is drawn."""


def draw(seed: int) -> Chain:
    """One chain."""
    rng, chain = random.Random(seed), Chain()
    wanted = rng.randrange(2, 7)
    for _ in range(40):
        if len(chain.steps) < wanted:
            rng.choices(list(KINDS), list(KINDS.values()))[0](chain, rng)
    return chain


class Model(nn.Module):
    """A layer and a chain. The bias may be far from 0: then rows that are filled in come out largest, or smallest."""

    def __init__(self, chain: Chain, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.chain, self.layer, self.table = chain, nn.Linear(COLUMNS, COLUMNS), nn.Embedding(16, COLUMNS)
        self.layer.bias.data += (0.0, 30.0, -30.0)[seed % 3]

    def forward(self, x: Any, mask: Any, ids: Any) -> Any:
        start = self.layer(x)
        values, y = Values(start, mask, ids, self.table.weight), start
        for _, step in self.chain.steps:
            y = step(y, values)
        return (y + 0,)


def example(batch: int, length: int, seed: int, hides: bool = True) -> dict[str, Any]:
    """Arguments. hides: sequences end before the last row, each with a row at least; one in four is hidden anyhow."""
    generator = torch.Generator().manual_seed(seed)
    scale = (1.0, 10.0, 0.01, 100.0)[seed % 4]
    x = torch.randn(batch, length, COLUMNS, generator=generator, dtype=torch.float64) * scale
    mask = torch.ones(batch, length, dtype=torch.int64)
    if hides and seed % 3:
        ends = torch.randint(1, length + 1, (batch, 1), generator=generator)
        mask = (torch.arange(length) < ends).long()
    ids = torch.randint(0, 9, (batch, length), generator=generator)
    return {"x": x, "mask": mask, "ids": ids}


SIZES = [(1, 1), (2, 3), (3, 5), (1, 7), (3, 1), (2, 8), (4, 4), (3, 6), (4, 2), (2, 5)]


def is_right(model: Model, given: Arguments, filling: Filling | None) -> bool | None:
    """As `heads.is_right`; None also where the results are the same for all numbers: such a chain shows nothing. Sizes
    that a family refuses are left out."""
    cut = None if filling is None else filling.padding.cut_leaves
    tried, seen = 0, {}
    varies = False
    for n in range(3 * len(SIZES)):
        sizes = SIZES[n % len(SIZES)]
        x = example(*sizes, n)
        with torch.no_grad():
            try:
                if filling is not None:
                    filling.padding.check_sizes(sizes)
                wanted = model(**x)
            except (RuntimeError, IndexError, TensorError):
                continue
            if not all(w.isfinite().all() for w in wanted):
                continue
            tried += 1
            before = seen.setdefault(sizes, wanted)
            varies = varies or not all(_same(a, b) for a, b in zip(before, wanted, strict=True))
            try:
                full = model(**given.resized(x, (BATCH, LENGTH)))
            except (RuntimeError, IndexError):
                return False
        got = list(full) if cut is None else cut(list(full), (BATCH, LENGTH), sizes)
        if not all(_same(_narrowed(a, b) if cut is None else a, b) for a, b in zip(got, wanted, strict=True)):
            return False
    return True if tried > 5 and varies else None


def verdict(seed: int) -> tuple[Chain, str, str]:
    """As `heads.verdict`."""
    chain = draw(seed)
    model = Model(chain, seed).double().eval()
    shapes = {name: {0: rsn.Batch(BATCH), 1: rsn.Length(LENGTH)} for name in ("x", "mask", "ids")}
    given = Arguments(inspect.signature(model.forward), example(3, 6, seed, hides=False), shapes)
    try:
        filling = Filling(model, given)
    except UnsupportedError as error:
        right = is_right(model, given, None)
        return chain, "none" if right is None else "too strict" if right else "refused", str(error)
    except TensorError as error:
        return chain, "none", str(error)
    right = is_right(model, given, filling)
    return chain, "none" if right is None else "right" if right else "wrong", ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, Counter[str]] = {}
    for seed in range(given.seed, given.seed + given.count):
        chain, found, why = verdict(seed)
        for name in {name for name, _ in chain.steps} | {"all"}:
            table.setdefault(name, Counter())[found] += 1
        if found == "wrong" or (given.show and found == "too strict"):
            print(found, seed, [name for name, _ in chain.steps], why, flush=True)
    kinds = ("right", "refused", "too strict", "wrong", "none")
    print(f"{'operator':<24}" + "".join(f"{kind:>12}" for kind in kinds))
    for head, counts in sorted(table.items()):
        print(f"{head:<24}" + "".join(f"{counts[kind]:>12}" for kind in kinds))


if __name__ == "__main__":
    main()
