"""The networks of the paper's tables, without weights: the time of a program does not depend on their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from ...isa.overlay import Overlay
from ...isa.program import Program
from ...scheduler.attention_unfused import bind_scores, bind_values, place_scores
from ...scheduler.bind import place_activations
from ...scheduler.binder import Binder
from ...scheduler.build import SchedulerPasses, build
from ...scheduler.chain import chain
from ...scheduler.dram import Lowered, order_dram
from ...scheduler.graph import ActivationFunction, Array, AttentionLayer, Gemm, Layer, LayerGraph, Norm, Output
from ...scheduler.schedule import Schedule
from ...scheduler.tile import tile

HIDDEN, INNER, HEADS, HEAD_DIM = 1024, 4096, 16, 64
"""Sizes of BERT-Large."""


def _zeros(*shape: int) -> Array:
    """Return an array of zeros of any shape that occupies one element."""
    return np.broadcast_to(np.float32(0), shape)


def _gemm(
    x: str, y: str, k: int, n: int, *, residual: str | None = None, activation: ActivationFunction | None = None
) -> Gemm:
    """Return a product of matrices. One with a residual also has a LayerNorm, as everywhere in BERT."""
    norm = None if residual is None else Norm(1e-6)
    return Gemm(y, x, y, _zeros(k, n), _zeros(n), activation=activation, residual=residual, norm=norm)


def _attention(prefix: str = "") -> AttentionLayer:
    q, k, v, context = (prefix + name for name in ("q", "k", "v", "context"))
    return AttentionLayer(context, q, k, v, context, HEADS, HEAD_DIM)


def _network(batch: int, seq: int, inputs: dict[str, int], *layers: Layer) -> LayerGraph:
    return LayerGraph(batch, seq, inputs, (Output(layers[-1].y),), layers)


def _encoder_layers(x: str, prefix: str = "") -> list[Layer]:
    q, k, v, context, x1, h, y = (prefix + n for n in ("q", "k", "v", "context", "x1", "h", "y"))
    return [
        *(_gemm(x, name, HIDDEN, HIDDEN) for name in (q, k, v)),
        _attention(prefix),
        _gemm(context, x1, HIDDEN, HIDDEN, residual=x),
        _gemm(x1, h, HIDDEN, INNER, activation=ActivationFunction.GELU_TANH),
        _gemm(h, y, INNER, HIDDEN, residual=x1),
    ]


@cache
def encoder(batch: int, seq: int, layers: int = 1) -> LayerGraph:
    """Return a network of `layers` encoder layers of BERT-Large. batch: number of sequences. seq: rows of each."""
    out: list[Layer] = []
    for i in range(layers):
        out += _encoder_layers(out[-1].y if out else "x", f"l{i}.")
    return _network(batch, seq, {"x": HIDDEN}, *out)


@cache
def encoder_products(rows: int) -> LayerGraph:
    """Return the matrix products of an encoder layer of BERT-Large, without its attention, for `rows` rows."""
    *qkv, _, dense, up, down = _encoder_layers("x")
    assert isinstance(dense, Gemm)
    return _network(1, rows, {"x": HIDDEN}, *qkv, replace(dense, x="q"), up, down)


@cache
def segment(name: str) -> LayerGraph:
    """Return a part of an encoder layer by its name in Table 9, for 6 sequences of 512 rows. Raises `KeyError` for
    another name."""
    batch, seq = 6, 512
    qkv, attention, dense_ff = (_encoder_layers("x")[part] for part in (slice(0, 3), slice(3, 4), slice(4, 7)))
    parts: dict[str, tuple[dict[str, int], list[Layer]]] = {
        "key": ({"x": HIDDEN}, qkv[:1]),
        "query": ({"x": HIDDEN}, qkv[:1]),
        "value": ({"x": HIDDEN}, qkv[:1]),
        "qkv": ({"x": HIDDEN}, qkv),
        "attention": ({"q": HIDDEN, "k": HIDDEN, "v": HIDDEN}, attention),
        "dense": ({"context": HIDDEN, "x": HIDDEN}, dense_ff[:1]),
        "ff1": ({"x1": HIDDEN}, dense_ff[1:2]),
        "ff2": ({"h": INNER, "x1": HIDDEN}, dense_ff[2:]),
        "dense_ff": ({"context": HIDDEN, "x": HIDDEN}, dense_ff),
    }
    inputs, layers = parts[name]
    if name == "qkv":
        return LayerGraph(batch, seq, inputs, tuple(Output(x.y) for x in layers), tuple(layers))
    return _network(batch, seq, inputs, *layers)


@cache
def product(m: int, k: int, n: int) -> LayerGraph:
    """Return a network of one product: of an m x k by a k x n matrix."""
    return _network(1, m, {"x": k}, _gemm("x", "y", k, n))


def _chain(shapes: Sequence[Sequence[int]], x: str = "x", name: str = "y") -> list[Gemm]:
    """Return products, each with the result of the one before as its operand. shapes: (M, K, N) of each. x: the operand
    of the first. name: prefix of the names of the results."""
    out: list[Gemm] = []
    for i, (_, k, n) in enumerate(shapes):
        out.append(_gemm(out[-1].y if out else x, f"{name}{i}", k, n))
    return out


def mlp(shapes: Sequence[Sequence[int]]) -> LayerGraph:
    """Return a network of products, each with the result of the one before as its operand. shapes: (M, K, N) of each,
    at least one; all have the same M, and each K is the N before it."""
    rows, width, _ = shapes[0]
    return _network(1, rows, {"x": width}, *_chain(shapes))


def ncf(shapes: Sequence[Sequence[int]]) -> LayerGraph:
    """Return a network of products as in `mlp`, and one more product, the prediction. shapes: (M, K, N) of each, at
    least three; the last is the prediction.

    In the original network the operand of the prediction is the result of the others joined with more columns. Here it
    is an input of its own, because the machine cannot join columns.
    """
    *tower, predict = shapes
    rows, width, _ = tower[0]
    layers = [*_chain(tower), *_chain([predict], "joined", "predict")]
    outputs = Output(layers[-2].y), Output(layers[-1].y)
    return LayerGraph(1, rows, {"x": width, "joined": predict[1]}, outputs, tuple(layers))


def vit(shapes: Sequence[Sequence[int]], batch: int, seq: int) -> LayerGraph:
    """Return an embedding, three projections with their attention, a fourth projection, a feed-forward part and a head.

    shapes: (M, K, N) of each product, as `charm_shapes` in `paper.toml` has them. batch: number of sequences. seq: rows
    of each. Four projections, because with three the products alone miss the published time by more.
    """
    embed, _, _, projection, *tail = shapes
    (x,) = _chain([embed], name="embedded")
    qkv = [_gemm(x.y, name, HIDDEN, HIDDEN) for name in ("q", "k", "v")]
    return _network(batch, seq, {"x": embed[1]}, x, *qkv, _attention(), *_chain([projection, *tail], "context"))


def attention_half(second: bool, overlay: Overlay, schedule: Schedule) -> Program:
    """Return the program of one of the two products of Table 9's attention: Q K^T, which stores the scores in DDR, or
    (`second`) P V, which loads them."""

    def lower_half(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> Lowered:
        binder = Binder(tile(network, overlay, schedule))
        place_activations(binder)
        (attention,) = network.layers
        assert isinstance(attention, AttentionLayer)
        (bind_values if second else bind_scores)(binder, attention, place_scores(binder, attention))
        return order_dram(chain(binder.made))

    # Its check would miss the other product's result.
    passes = SchedulerPasses(lower=lower_half, check=lambda program, schedule: None)
    return build(segment("attention"), overlay, schedule, passes=passes).program
