"""Programs whose bits, times and weights must stay: what they are made of, and what is recorded of each.

    python -m rsn.tests.golden.record             # what differs from golden.json
    python -m rsn.tests.golden.record --write     # make it anew: read the difference line by line first

Models are of plain operators with weights of their own, so that neither transformers nor a generator of PyTorch's has a
part in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import nn

import rsn
from rsn.assembler import container
from rsn.assembler.parser import parse_file
from rsn.assembler.segment_section import encoded
from rsn.hw.sim.machine import Machine, launch_seconds
from rsn.isa.overlays import OVERLAYS, find
from rsn.isa.program import Program, UnpackedProgram
from rsn.rsnlib.models import preset
from rsn.rsnlib.pipeline import Pipeline
from rsn.scheduler.best import schedule_named
from rsn.scheduler.build import build
from rsn.scheduler.graph import ActivationFunction, AttentionLayer, Gemm, LayerGraph, Norm, Output
from rsn.scheduler.pack import pack

FOLDER = Path(__file__).parent
RECORD = FOLDER / "golden.json"
BEST = FOLDER / "best.toml"
"""What `rsn compile bert-large-encoder --schedule best --budget 20` found once."""
TOLERANCE = 1e-7
"""Of folded weights, relative: BLAS libraries round differently."""


@dataclass(frozen=True)
class Made:
    """A program, and its weights by buffer name where they are recorded. exact: they are whole numbers."""

    program: Program
    weights: Mapping[str, Any] | None = None
    exact: bool = False


def numbers(*shape: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    """Numbers of NumPy's generator, the same everywhere."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * scale)


def filled(module: nn.Module) -> nn.Module:
    """A module in eval mode whose parameters are `numbers`."""
    for i, (name, p) in enumerate(module.named_parameters()):
        made = numbers(*p.shape, seed=i, scale=p.shape[-1] ** -0.5 if p.ndim > 1 else 0.1)
        p.data = made + 1 if name.endswith("weight") and p.ndim == 1 else made
    return module.eval()


class Attending(nn.Module):
    """A block with attention as PyTorch writes it. causal, bias: of the attention; norm_first: pre-norm."""

    def __init__(
        self, columns: int, heads: int, *, causal: bool = False, bias: int = 0, norm_first: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.norm_first = heads, causal, norm_first
        self.q, self.k, self.v, self.o = (nn.Linear(columns, columns) for _ in range(4))
        self.up, self.down = nn.Linear(columns, 2 * columns), nn.Linear(2 * columns, columns)
        self.one, self.two = nn.LayerNorm(columns), nn.LayerNorm(columns)
        self.bias = nn.Parameter(torch.zeros(heads, bias, bias)) if bias else None

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Of (batch, rows, columns)."""
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias, is_causal=self.causal)
        return self.o(y.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.norm_first:
            x = x + self.attend(self.one(x))
            return x + self.down(F.gelu(self.up(self.two(x))))
        x = self.one(x + self.attend(x))
        return self.two(x + self.down(F.relu(self.up(x))))


def _traced(model: nn.Module, inputs: Any, overlay: str = "xnn", schedule: Any = "paper", lengths: Any = None) -> Made:
    pipeline = Pipeline.named(overlay, schedule, lengths=lengths)
    built = pipeline.build(pipeline.trace(model, inputs).network)
    return Made(built.program, built.weights)


def _preset(name: str, batch: int, seq: int, overlay: str = "xnn", schedule: Any = "paper") -> Made:
    model, inputs = preset(name, batch, seq, base=overlay == "xnn-base")
    given = {k: x if x.dtype == torch.int64 else torch.zeros(x.shape) for k, x in inputs.items()} if isinstance(
        inputs, dict) else tuple(torch.zeros(x.shape) for x in inputs)  # fmt: skip
    return _traced(filled(model), given, overlay, schedule)


def _encoder(batch: int, seq: int, lengths: Any = None, schedule: Any = "paper") -> Made:
    inputs = {
        "hidden_states": torch.zeros(batch, seq, 128),
        "attention_mask": torch.ones(batch, seq, dtype=torch.int64),
    }
    return _traced(filled(rsn.nn.Encoder(2, 128, 2, 256)), inputs, "xnn", schedule, lengths)


def _attending(batch: int, seq: int, **options: Any) -> Made:
    return _traced(filled(Attending(128, 2, **options)), (torch.zeros(batch, seq, 128),))


def _family(batch: int, seq: int) -> Made:
    ids = torch.ones(2, 16, dtype=torch.int64)

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.encoder = nn.Embedding(30, 64), rsn.nn.Encoder(1, 64, 1, 128)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.encoder(self.words(ids), mask)
            return made

    dims = {0: rsn.Batch(1, 4), 1: rsn.Length(16, 40)}
    shapes = {"ids": dims, "mask": dims}
    with rsn.compile(filled(Words()), {"ids": ids, "mask": ids}, dynamic_shapes=shapes) as family:
        compiled = family.program(batch, seq)
        return Made(compiled.program, dict(compiled.weights))


def _whole_numbers(batch: int, seq: int) -> Made:
    """Each number of each weight another one, so that their places show."""
    ends = iter(range(1, 100))

    def weight(k: int, n: int) -> Any:
        first = next(ends) * (1 << 17)
        return (first + np.arange(k * n)).reshape(k, n).astype(np.float32)

    def gemm(x: str, y: str, k: int, n: int, **more: Any) -> Gemm:
        return Gemm(y, x, y, weight(k, n), weight(1, n)[0], **more)

    layers = (
        gemm("x", "q", 200, 96), gemm("x", "k", 200, 96), gemm("x", "v", 200, 96),
        AttentionLayer("a", "q", "k", "v", "a", 3, 32, masked=True),
        gemm("a", "o", 96, 200, residual="x", residual_scale=weight(1, 200)[0], norm=Norm(1e-12)),
        gemm("o", "up", 200, 300, activation=ActivationFunction.GELU_ERF),
        gemm("up", "y", 300, 200, residual="o", norm=Norm(1e-6)),
    )  # fmt: skip
    network = LayerGraph(batch, seq, {"x": 200}, (Output("y", weight(1, 200)[0], weight(1, 200)[0]),), layers)
    built = build(network, find("xnn"), schedule_named("paper"))
    return Made(built.program, built.weights, exact=True)


def _shipped(path: Path) -> Made:
    source = parse_file(path)
    return Made(pack(source) if isinstance(source, UnpackedProgram) else source)


def cases() -> dict[str, Callable[[], Made]]:
    """By name."""
    made: dict[str, Callable[[], Made]] = {}
    for s in ("paper", "strict", "published"):
        made[f"bert-large-encoder 1x128, {s}"] = partial(_preset, "bert-large-encoder", 1, 128, schedule=s)
        made[f"encoder 3x40 with masks, {s}"] = partial(_encoder, 3, 40, schedule=s)
    made["bert-large-encoder 1x128, best"] = partial(_preset, "bert-large-encoder", 1, 128, schedule=BEST)
    made["bert-large-encoder 2x256, base"] = partial(_preset, "bert-large-encoder", 2, 256, "xnn-base")
    made["encoder 2x384, base, strict"] = partial(_preset, "bert-large-encoder", 2, 384, "xnn-base", "strict")
    made["minilm 2x64"] = partial(_preset, "minilm", 2, 64)
    made["mlp 2x128"] = partial(_preset, "mlp", 2, 128)
    made["ncf 1x384"] = partial(_preset, "ncf", 1, 384)
    made["vit 4x64"] = partial(_preset, "vit", 4, 64)
    made["gemm 500x768x1000"] = partial(_preset, "gemm:500x768x1000", 1, 500)
    made["encoder 3x300 with lengths"] = partial(_encoder, 3, 300, (300, 41, 128))
    made["causal 2x70"] = partial(_attending, 2, 70, causal=True)
    made["causal 1x300, pre-norm"] = partial(_attending, 1, 300, causal=True, norm_first=True)
    made["bias 2x64"] = partial(_attending, 2, 64, bias=64)
    made["bias 1x200"] = partial(_attending, 1, 200, bias=200)
    for sizes in ((1, 16), (4, 40)):
        made[f"family, {sizes[0]}x{sizes[1]}"] = partial(_family, *sizes)
    made["whole numbers 2x100"] = partial(_whole_numbers, 2, 100)
    for path in sorted((FOLDER.parents[1] / "programs").glob("*.rsn")):
        made[f"programs/{path.name}"] = partial(_shipped, path)
    return made


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _figures(weight: Any) -> list[float]:
    """What a rounding changes by no more than its share: sums of sizes, plain and with weights by place."""
    size = np.abs(np.asarray(weight, np.float64).reshape(-1))
    return [float(size.sum()), float((size * _by_place(len(size))).sum())]


@cache
def _by_place(count: int) -> Any:
    return np.cos(np.arange(count) * 0.7) + 2


def facts(made: Made) -> dict[str, Any]:
    """What is recorded of a program."""
    program = made.program
    bare = replace(program, places=(), preloaded_places={}, segments=())
    ops = b"".join(
        np.array(op.encode(), "<u4").tobytes() for unit in sorted(program.preloaded) for op in program.preloaded[unit]
    )
    out: dict[str, Any] = {
        "image": _hash(program.image.astype("<u4").tobytes()),
        "ops": _hash(ops),
        "container": _hash(container.dumps(bare)),
        "latency": (Machine(program).timing.latency + launch_seconds(program.overlay)).hex(),
    }
    if program.segments:
        out["segments"] = _hash(encoded(program))
    if made.weights is not None and made.exact:
        digest = hashlib.sha256()
        for name in sorted(made.weights):
            digest.update(name.encode() + np.ascontiguousarray(made.weights[name], "<f4").tobytes())
        out["weights, exact"] = digest.hexdigest()
    elif made.weights is not None:
        out["weights"] = {name: _figures(made.weights[name]) for name in sorted(made.weights)}
    return out


@cache
def fingerprints() -> dict[str, str]:
    """Of all overlays."""
    return {name: overlay.fingerprint for name, overlay in OVERLAYS.items()}


def differences(recorded: Any, now: Any, at: str = "") -> Iterator[str]:
    """Where two records differ, a line each; numbers may by `TOLERANCE`."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        for key in sorted(recorded.keys() | now.keys()):
            yield from differences(recorded.get(key), now.get(key), f"{at}{': ' * bool(at)}{key}")
    elif isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        for one, other in zip(recorded, now, strict=True):
            if abs(one - other) > TOLERANCE * max(abs(one), abs(other)):
                yield f"{at}: {one!r} was recorded, it is {other!r} now"
    elif recorded != now:
        yield f"{at}: {recorded!r} was recorded, it is {now!r} now"
