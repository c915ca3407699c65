"""Networks to lower, and what they compute, in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from rsn.hw.sim.machine import Run, simulate
from rsn.isa.layout import block, unblock
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN
from rsn.isa.program import Program, Role
from rsn.isa.versal.functions import activation
from rsn.scheduler.build import build
from rsn.scheduler.graph import ActivationFunction, AttentionLayer, Gemm, LayerGraph, Norm, Output
from rsn.scheduler.schedule import PAPER, Schedule

CODES = {
    ActivationFunction.GELU_TANH: 0,
    ActivationFunction.GELU_ERF: 1,
    ActivationFunction.RELU: 2,
    ActivationFunction.SILU: 3,
}


@dataclass
class Maker:
    """Random networks of a realistic scale."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def matrix(self, *shape: int) -> np.ndarray:
        return (self.rng.standard_normal(shape) / sqrt(shape[0])).astype(np.float32)

    def vector(self, n: int) -> np.ndarray:
        return (self.rng.standard_normal(n) * 0.1).astype(np.float32)

    def gemm(self, m: int, k: int, n: int, act: ActivationFunction | None = None) -> LayerGraph:
        layer = Gemm("g", "x", "y", self.matrix(k, n), self.vector(n), activation=act)
        return LayerGraph(1, m, {"x": k}, (Output("y"),), (layer,))

    def encoder(
        self,
        batch: int,
        seq: int,
        hidden: int,
        heads: int,
        ffn: int,
        *,
        act: ActivationFunction = ActivationFunction.GELU_TANH,
        eps: float = 1e-6,
        masked: bool = False,
        layers: int = 1,
        pre_norm: bool = False,
        biases: tuple[int, int] | None = None,
        rms: bool = False,
    ) -> LayerGraph:
        """biases: for how many sequences and heads the scores have a bias of their own; layers share it."""
        out: list[Gemm | AttentionLayer] = []
        x = "x"
        norm = Norm(eps, rms)
        scores = None if biases is None else self.rng.standard_normal((*biases, seq, seq)).astype(np.float32)

        def normed(name: str) -> str:
            """Before a pre-norm block, which adds to what it does not normalise; a post-norm block has that behind."""
            if not pre_norm:
                return name
            no_product, no_bias = np.zeros((0, hidden), np.float32), np.zeros(hidden, np.float32)
            out.append(Gemm(f"{name}.norm", name, f"{name}.n", no_product, no_bias, None, name, None, norm))
            return f"{name}.n"

        behind = None if pre_norm else norm
        for i in range(layers):
            q, k, v, c, x1, h, y = (f"l{i}.{n}" for n in ("q", "k", "v", "c", "x1", "h", "y"))
            into = normed(x)
            for name in (q, k, v):
                weight, bias = self.matrix(hidden, hidden), self.vector(hidden)
                if name == k:  # the score scale, folded
                    weight, bias = (np.float32((hidden // heads) ** -0.5) * a for a in (weight, bias))
                out.append(Gemm(f"{name}_proj", into, name, weight, bias))
            out.append(AttentionLayer(f"l{i}.attention", q, k, v, c, heads, hidden // heads, masked, bias=scores))
            scale = 1 + self.vector(hidden)
            out.append(
                Gemm(f"l{i}.dense", c, x1, self.matrix(hidden, hidden), self.vector(hidden), None, x, scale, behind)
            )
            out.append(Gemm(f"l{i}.up", normed(x1), h, self.matrix(hidden, ffn), self.vector(ffn), act))
            scale = 1 + self.vector(hidden)
            out.append(Gemm(f"l{i}.down", h, y, self.matrix(ffn, hidden), self.vector(hidden), None, x1, scale, behind))
            x = y
        scale, shift = 1 + self.vector(hidden), self.vector(hidden)
        return LayerGraph(batch, seq, {"x": hidden}, (Output(x, scale, shift),), tuple(out))


def reference(network: LayerGraph, x: np.ndarray, lengths: Sequence[int] | None = None) -> np.ndarray:
    """The network's first output in numpy, float64 inside; (batch, seq, columns)."""
    values = {"x": x.astype(np.float64)}
    for layer in network.layers:
        if isinstance(layer, Gemm):
            y = values[layer.x][..., : len(layer.weight)] @ layer.weight + layer.bias
            if layer.residual is not None:
                y = y + values[layer.residual] * (1 if layer.residual_scale is None else layer.residual_scale)
            if layer.activation is not None:
                y = activation(y.astype(np.float32), CODES[layer.activation]).astype(np.float64)
            if layer.norm is not None:
                centred = y if layer.norm.rms else y - y.mean(-1, keepdims=True)
                y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + layer.norm.eps)
            values[layer.y] = y
        else:
            shape = (network.batch, network.seq, layer.heads, layer.head_dim)
            q, k, v = (values[n].reshape(shape).transpose(0, 2, 1, 3) for n in (layer.q, layer.k, layer.v))
            s = q @ k.transpose(0, 1, 3, 2) + (0 if layer.bias is None else layer.bias)
            keys = network.rows if lengths is None else lengths
            if min(keys) < network.seq:
                s = np.where(np.arange(network.seq) < np.asarray(keys)[:, None, None, None], s, -np.inf)
            e = np.exp(s - s.max(-1, keepdims=True))
            p = e / e.sum(-1, keepdims=True)
            values[layer.y] = (p @ v).transpose(0, 2, 1, 3).reshape(network.batch, network.seq, -1)
    (out,) = network.outputs
    y = values[out.name]
    return y if out.scale is None else y * out.scale + out.shift


def execute(
    network: LayerGraph,
    x: np.ndarray,
    overlay: Overlay = XNN,
    schedule: Schedule = PAPER,
    lengths: Sequence[int] | None = None,
) -> tuple[np.ndarray, Program, Run]:
    """Build and simulate; the output as the host would unpack it, without the runner's help."""
    built = build(network, overlay, schedule)
    program = built.program
    banks = {bank: np.zeros(program.bank_size(bank), np.float32) for bank in overlay.banks}

    def region(name: str) -> np.ndarray:
        b = program.buffer(name)
        return banks[b.bank][16 * b.offset : 16 * b.offset + b.size]

    for name, flat in built.weights.items():
        region(name)[:] = flat
    (source,) = program.with_role(Role.INPUT)
    starts = [0]
    for n in network.rows:
        starts.append(starts[-1] + -(-n // 128) * 128)
    stored = np.zeros(source.shape, np.float32)
    for b, n in enumerate(network.rows):
        stored[starts[b] : starts[b] + n, : x.shape[2]] = x[b, :n]
    region(source.name)[:] = block(stored)
    named = {} if lengths is None else {f"len[{i}]": n for i, n in enumerate(lengths)}
    run = simulate(program, banks, program.bind(named))
    (sink,) = program.with_role(Role.OUTPUT)
    matrix = unblock(region(sink.name), *sink.shape)
    y = np.zeros((network.batch, network.seq, sink.view[-1]), np.float32)
    for b, n in enumerate(network.rows):
        y[b, :n] = matrix[starts[b] : starts[b] + n, : sink.view[-1]]
    if sink.scale is not None:
        y = y * np.asarray(sink.scale, np.float32) + np.asarray(sink.shift, np.float32)
    return y, program, run


def error(y: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference relative to the largest magnitude (contract section 8); of a result that is all zeros,
    alone."""
    return float(np.abs(y - expected).max() / (np.abs(expected).max() or 1))
