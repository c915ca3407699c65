"""Random ONNX models of one operator: shapes, attributes, types and opsets of every row of the table of operators,
computed by onnxruntime and by the imported module.

    python -m rsn.tests.rsnlib.onnx_drawn --count 20000
"""

from __future__ import annotations

import argparse
import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import defs, helper, numpy_helper

from rsn.base.errors import RsnError
from rsn.rsnlib.onnx_module import OnnxModule, tensor_of
from rsn.rsnlib.onnx_operators.table import MICROSOFT, TABLE

Array = np.ndarray[Any, Any]
OPSETS = (7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23)
BOUND = 5e-5
FLOATS = ("float32", "float32", "float32", "float64", "float16")
INTS = ("int64", "int32", "int8", "uint8", "int16", "uint16", "uint32")
COARSE = {"float16": 2e-2}
"""The largest relative difference of types that are not computed in float32."""


@dataclass(frozen=True)
class Case:
    """A node. inputs: by position; None leaves one out. known: positions that are constants of the file. outputs: how
    many it names."""

    name: str
    inputs: Sequence[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    known: frozenset[int] = frozenset()
    outputs: int = 1
    domain: str = ""


class Draw:
    """Random shapes, numbers and choices, from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numpy = np.random.default_rng(seed)

    def shape(self, least: int = 0, most: int = 5, *, empty: bool = True) -> tuple[int, ...]:
        rank = self.random.randint(least, most)
        low = 0 if empty and self.random.random() < 0.05 else 1
        return tuple(self.random.randint(low, 4) for _ in range(rank))

    def array(self, shape: Sequence[int], kind: str = "float32", scale: float = 1.0) -> Array:
        if kind == "bool":
            return self.numpy.integers(0, 2, shape).astype(bool)
        if kind.startswith(("int", "uint")):
            low = 0 if kind.startswith("u") else -9
            return self.numpy.integers(low, 10, shape).astype(kind)
        return np.asarray(self.numpy.standard_normal(shape) * scale).astype(kind)

    def kind(self, kinds: Sequence[str] = FLOATS) -> str:
        return self.random.choice(kinds)

    def axis(self, rank: int) -> int:
        return self.random.randint(-rank, rank - 1)

    def axes(self, rank: int) -> list[int]:
        chosen = self.random.sample(range(rank), self.random.randint(0, rank))
        return [n - rank if self.random.random() < 0.5 else n for n in chosen]

    def broadcast(self, count: int) -> list[tuple[int, ...]]:
        """Shapes that can be broadcast to one."""
        whole = self.shape(0, 4)
        found = []
        for _ in range(count):
            rank = self.random.randint(0, len(whole))
            found.append(tuple(1 if self.random.random() < 0.3 else n for n in whole[len(whole) - rank :]))
        return found

    def maybe(self, **attributes: Any) -> dict[str, Any]:
        """Some of these attributes."""
        return {name: x for name, x in attributes.items() if self.random.random() < 0.6}


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def unary(name: str, low: float | None = None) -> Callable[[Draw], Case]:
    def draw(d: Draw) -> Case:
        kinds = INTS if name == "BitwiseNot" else (*FLOATS, *(INTS if name in ("Abs", "Neg", "Sign") else ()))
        x = d.array(d.shape(), "bool" if name == "Not" else d.kind(kinds))
        x = x if low is None else np.asarray(np.abs(x) + low).astype(x.dtype)
        if name in ("Acos", "Asin", "Atanh"):
            x = np.clip(x, -0.9, 0.9).astype(x.dtype)
        return Case(name, [x])

    return draw


def binary(name: str) -> Callable[[Draw], Case]:
    def draw(d: Draw) -> Case:
        kind = d.kind((*FLOATS, *INTS))
        if name in ("And", "Or", "Xor"):
            kind = "bool"
        elif name.startswith("Bitwise"):
            kind = d.kind(INTS)
        a, b = (d.array(shape, kind) for shape in d.broadcast(2))
        if name in ("Div", "Mod") and kind not in FLOATS:
            b = np.where(b == 0, 3, b).astype(kind)
        known = frozenset({d.random.randint(0, 1)}) if d.random.random() < 0.5 else frozenset()
        more = {"fmod": 1} if name == "Mod" and (kind in FLOATS or d.random.random() < 0.5) else {}
        return Case(name, [a, b], more, known)

    return draw


def several(d: Draw, name: str) -> Case:
    count = d.random.randint(1, 4)
    kind = d.kind((*FLOATS, *(("int32", "int64") if name in ("Max", "Min") else ())))
    return Case(name, [d.array(shape, kind) for shape in d.broadcast(count)])


def reduction(name: str) -> Callable[[Draw], Case]:
    def draw(d: Draw) -> Case:
        scale = 1 if name == "ReduceProd" else d.random.choice([1, 200])
        # Exponentials of float16 are infinite in onnxruntime where their logarithm is not.
        more = {"ReduceLogSumExp": (), "ReduceLogSum": ("float16",)}.get(name, ("float16", "int32"))
        x = d.array(d.shape(empty=False), d.kind(("float32", "float64", *more)), scale)
        x = np.asarray(np.abs(x) + 1).astype(x.dtype) if name == "ReduceLogSum" else x
        x = np.asarray(x * 10**8).astype(x.dtype) if x.dtype == np.int32 and d.random.random() < 0.3 else x
        axes = None if d.random.random() < 0.3 else d.axes(x.ndim)
        known = frozenset({1})
        given = [x] if axes is None else [x, np.array(axes, np.int64)]
        return Case(
            name, given, d.maybe(keepdims=d.random.randint(0, 1), noop_with_empty_axes=d.random.randint(0, 1)), known
        )

    return draw


def axis_alone(name: str) -> Callable[[Draw], Case]:
    def draw(d: Draw) -> Case:
        x = d.array(d.shape(1, empty=False), d.kind(("float32", "float64")))
        return Case(name, [x], d.maybe(axis=d.axis(x.ndim)))

    return draw


def attributes_alone(name: str, **ranges: float) -> Callable[[Draw], Case]:
    def draw(d: Draw) -> Case:
        given = {key: round(d.random.uniform(0.1, most), 3) for key, most in ranges.items()}
        return Case(name, [d.array(d.shape(), d.kind(("float32", "float64", "float16")))], d.maybe(**given))

    return draw


def indexed(d: Draw, name: str) -> Case:
    x = d.array(d.shape(1, 4, empty=False), d.kind(("float32", "int64")))
    axis = d.axis(x.ndim)
    n = x.shape[axis]
    if name == "Gather":
        at = d.numpy.integers(-n, n, d.shape(0, 3)).astype(d.kind(("int64", "int32")))
        return (
            Case(
                name,
                [x, np.asarray(at)],
                d.maybe(axis=axis) if axis else {},
                frozenset({1}) if d.random.random() < 0.5 else frozenset(),
            )
            if axis in (0, -x.ndim)
            else Case(name, [x, np.asarray(at)], {"axis": axis})
        )
    shape = list(x.shape)
    shape[axis] = d.random.randint(1, 4)
    if name == "GatherElements":
        return Case(name, [x, d.numpy.integers(-n, n, shape)], {"axis": axis})
    shape[axis] = d.random.randint(1, n)
    at = np.argsort(d.numpy.random(x.shape), axis)
    at = np.take(at, range(shape[axis]), axis)
    updates = d.array(shape, str(x.dtype))
    more = {"reduction": d.random.choice(["none", "add", "mul", "max", "min"])} if d.random.random() < 0.5 else {}
    return Case("ScatterElements", [x, at, updates], {"axis": axis, **more})


def gather_nd(d: Draw) -> Case:
    batch = d.random.randint(0, 2)
    lead = tuple(d.random.randint(1, 3) for _ in range(batch))
    rest = d.shape(1, 3, empty=False)
    depth = d.random.randint(1, len(rest))
    middle = d.shape(0 if batch else 1, 2, empty=False)
    at = np.stack([d.numpy.integers(-n, n, lead + middle) for n in rest[:depth]], -1)
    return Case("GatherND", [d.array(lead + rest), at], {"batch_dims": batch})


def scatter_nd(d: Draw) -> Case:
    shape = d.shape(1, 3, empty=False)
    depth = d.random.randint(1, len(shape))
    places = list(np.ndindex(shape[:depth]))
    chosen = d.random.sample(places, d.random.randint(1, len(places)))
    updates = d.array((len(chosen), *shape[depth:]))
    more = {"reduction": d.random.choice(["none", "add", "mul", "max", "min"])} if d.random.random() < 0.5 else {}
    return Case("ScatterND", [d.array(shape), np.array(chosen, np.int64), updates], more)


def reshape(d: Draw) -> Case:
    x = d.array(d.shape(1))
    sizes = list(x.shape)
    d.random.shuffle(sizes)
    sizes = [x.shape[i] and 0 if n == x.shape[i] and d.random.random() < 0.5 else n for i, n in enumerate(sizes)]
    if x.size and d.random.random() < 0.5:
        sizes[d.random.randrange(len(sizes))] = -1
        return Case("Reshape", [x, np.array(sizes, np.int64)], {}, frozenset({1}))
    return Case("Reshape", [x, np.array(x.shape, np.int64)], d.maybe(allowzero=1), frozenset({1}))


def slices(d: Draw) -> Case:
    x = d.array(d.shape(1, 4, empty=False))
    chosen = d.random.sample(range(x.ndim), d.random.randint(1, x.ndim))
    far = [2**63 - 1, -(2**63) + 1, 100, -100]
    start, end = ([d.random.choice([*range(-5, 6), *far]) for _ in chosen] for _ in range(2))
    steps = [d.random.choice([1, 1, 2, -1, -2, 3]) for _ in chosen]
    given = [
        x,
        np.array(start),
        np.array(end),
        np.array([n - x.ndim if d.random.random() < 0.5 else n for n in chosen]),
    ]
    given += [np.array(steps)] if d.random.random() < 0.7 else []
    return Case("Slice", given, {}, frozenset(range(1, 5)))


def split(d: Draw) -> Case:
    x = d.array(d.shape(1, 4, empty=False))
    axis = d.axis(x.ndim)
    n = x.shape[axis]
    if d.random.random() < 0.5:
        cut = sorted(d.random.sample(range(1, n), d.random.randint(0, n - 1))) if n > 1 else []
        sizes = np.diff([0, *cut, n]).astype(np.int64)
        return Case("Split", [x, sizes], {"axis": axis}, frozenset({1}), len(sizes))
    parts = d.random.choice([k for k in range(1, n + 1) if n % k == 0])
    return Case("Split", [x], {"axis": axis, "num_outputs": parts}, outputs=parts)


def pad(d: Draw) -> Case:
    x = d.array(d.shape(1, 4, empty=False))
    mode = d.random.choice(["constant", "constant", "reflect", "edge", "wrap"])
    least = -1 if mode == "constant" else 0
    pads = [d.random.randint(least if n > 2 else 0, n - 1 if mode == "reflect" else 2) for n in x.shape * 2]
    given: list[Array | None] = [x, np.array(pads, np.int64)]
    if mode == "constant" and d.random.random() < 0.5:
        given.append(np.array(0.5, np.float32))
    return Case("Pad", given, {"mode": mode}, frozenset({1, 2}))


def windows(d: Draw, name: str) -> Case:
    rank = d.random.randint(1, 3)
    size = [d.random.randint(5, 8) for _ in range(rank)]
    kernel = [d.random.randint(1, 3) for _ in range(rank)]
    group = d.random.choice([1, 1, 2])
    channels = 2 * group
    x = d.array((d.random.randint(1, 2), channels, *size))
    more: dict[str, Any] = d.maybe(strides=[d.random.randint(1, 2) for _ in range(rank)])
    if name != "AveragePool" and d.random.random() < 0.4:
        more["dilations"] = [d.random.randint(1, 2) for _ in range(rank)]
    way = d.random.random()
    if way < 0.3:
        more["auto_pad"] = d.random.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
        if name != "Conv":  # of which onnxruntime forgets the dilations
            more.pop("dilations", None)
    elif way < 0.8:
        more["pads"] = [d.random.randint(0, k - 1) for k in kernel * 2]
    if name in ("Conv", "ConvTranspose"):
        shape = (4 * group, channels // group, *kernel) if name == "Conv" else (channels, 2, *kernel)
        given = [x, d.array(shape)]
        if d.random.random() < 0.5:
            given.append(d.array((shape[0] if name == "Conv" else 2 * group,)))
        if name == "ConvTranspose" and "strides" in more and "auto_pad" not in more and d.random.random() < 0.4:
            more["output_padding"] = [n - 1 for n in more["strides"]]
        return Case(name, given, {"group": group, **more})
    more["kernel_shape"] = kernel
    if name == "AveragePool":
        more |= d.maybe(count_include_pad=1)
    return Case(name, [x], more)


def norm(d: Draw, name: str) -> Case:
    x = d.array(d.shape(1, 4, empty=False) if "Layer" in name or "RMS" in name else (2, 4, *d.shape(1, 2, empty=False)))
    axis = d.axis(x.ndim)
    over = x.shape[axis % x.ndim :]
    more = d.maybe(epsilon=round(d.random.uniform(1e-6, 0.1), 6))
    if name == "LayerNormalization":
        given = [x, d.array(over), *([d.array(over)] if d.random.random() < 0.5 else [])]
        return Case(name, given, {"axis": axis, **more}, outputs=d.random.choice([1, 1, 3]))
    if name == "RMSNormalization":
        return Case(name, [x, d.array(over)], {"axis": axis, **more})
    if name == "BatchNormalization":
        return Case(name, [x, *(d.array((4,)) for _ in range(3)), np.abs(d.array((4,))) + 0.1], more)
    if name == "InstanceNormalization":
        return Case(name, [x, d.array((4,)), d.array((4,))], more)
    return Case("GroupNormalization", [x, d.array((4,)), d.array((4,))], {"num_groups": 2, **more})


def resize(d: Draw) -> Case:
    x = d.array((d.random.randint(1, 2), d.random.randint(1, 2), d.random.randint(3, 6), d.random.randint(3, 6)))
    mode = d.random.choice(["nearest", "linear", "cubic"])
    more: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": d.random.choice(
            ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"]
        ),
    }
    if mode == "nearest":
        more["nearest_mode"] = d.random.choice(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
    new = [*x.shape[:2], *(d.random.randint(2, 9) for _ in range(2))]
    if d.random.random() < 0.3:
        return Case("Resize", [x, None, None, np.array(new, np.int64)], more, frozenset({1, 2, 3}))
    sizes = [0.5, 0.6, 0.75, 0.9, 1, 1.1, 1.3, 1.5, 2, 2.7, 3]
    scales = np.array([1, 1, d.random.choice(sizes), d.random.choice(sizes)], np.float32)
    return Case("Resize", [x, None, scales], more, frozenset({1, 2}))


def attention(d: Draw) -> Case:
    b, rows, keys, columns = (d.random.randint(1, 5) for _ in range(4))
    heads, kv = d.random.choice([(2, 2), (4, 2), (4, 1), (1, 1)])
    flat = d.random.random() < 0.5
    q, k, v = (d.array((b, h, n, columns)) for h, n in ((heads, rows), (kv, keys), (kv, keys)))
    more = d.maybe(
        is_causal=d.random.randint(0, 1),
        scale=round(d.random.uniform(0.1, 1), 2),
        softcap=float(d.random.choice([0, 2])),
    )
    if flat:
        q, k, v = (x.transpose(0, 2, 1, 3).reshape(b, x.shape[2], -1) for x in (q, k, v))
        more |= {"q_num_heads": heads, "kv_num_heads": kv}
    given: list[Array | None] = [q, k, v]
    mask = d.random.random()
    if mask < 0.6:
        shape = d.random.choice([(rows, keys), (b, 1, rows, keys), (b, heads, rows, keys)])
        given.append(d.array(shape) if mask < 0.4 else (d.array(shape, "bool") | (np.arange(keys) == 0)))
    return Case("Attention", given, more)


def rotation(d: Draw) -> Case:
    b, heads, rows, half = (
        d.random.randint(1, 2),
        d.random.randint(1, 3),
        d.random.randint(1, 5),
        d.random.randint(1, 4),
    )
    x = d.array((b, heads, rows, 2 * half))
    more: dict[str, Any] = d.maybe(interleaved=d.random.randint(0, 1))
    if d.random.random() < 0.5:
        x = x.transpose(0, 2, 1, 3).reshape(b, rows, -1)
        more["num_heads"] = heads
    if d.random.random() < 0.5:
        return Case(
            "RotaryEmbedding", [x, d.array((9, half)), d.array((9, half)), d.numpy.integers(0, 9, (b, rows))], more
        )
    return Case("RotaryEmbedding", [x, d.array((b, rows, half)), d.array((b, rows, half))], more)


def matmul(d: Draw) -> Case:
    m, k, n = (d.random.randint(1, 5) for _ in range(3))
    lead = d.broadcast(2)
    a, b = (*lead[0], m, k), (*lead[1], k, n)
    if d.random.random() < 0.2:
        return Case("MatMul", [d.array((k,)), d.array(b)])
    if d.random.random() < 0.2:
        return Case("MatMul", [d.array(a), d.array((k,))])
    return Case("MatMul", [d.array(a), d.array(b)], known=frozenset({1}) if d.random.random() < 0.5 else frozenset())


def gemm(d: Draw, domain: str = "") -> Case:
    m, k, n = (d.random.randint(1, 5) for _ in range(3))
    ta, tb = d.random.randint(0, 1), d.random.randint(0, 1)
    given: list[Array | None] = [d.array((k, m) if ta else (m, k)), d.array((n, k) if tb else (k, n))]
    if d.random.random() < 0.7:
        given.append(d.array(d.random.choice([(), (1,), (n,), (m, 1), (1, n), (m, n)])))
    more = d.maybe(alpha=round(d.random.uniform(-2, 2), 2), beta=round(d.random.uniform(-2, 2), 2))
    return Case("Gemm", given, {"transA": ta, "transB": tb, **more}, domain=domain)


def plain(
    name: str, *arrays: Callable[[Draw], Array], known: Sequence[int] = (), **attributes: Any
) -> Callable[[Draw], Case]:
    return lambda d: Case(name, [make(d) for make in arrays], attributes, frozenset(known))


def unsqueeze(d: Draw) -> Case:
    x = d.array(d.shape(0, 3))
    rank = x.ndim + d.random.randint(1, 2)
    at = d.random.sample(range(rank), rank - x.ndim)
    return Case(
        "Unsqueeze", [x, np.array([n - rank if d.random.random() < 0.5 else n for n in at])], {}, frozenset({1})
    )


def squeeze(d: Draw) -> Case:
    shape = list(d.shape(1, 4))
    at = d.random.sample(range(len(shape)), d.random.randint(1, len(shape)))
    for n in at:
        shape[n] = 1
    x = d.array(shape)
    if d.random.random() < 0.3:
        return Case("Squeeze", [x])
    return Case(
        "Squeeze", [x, np.array([n - x.ndim if d.random.random() < 0.5 else n for n in at])], {}, frozenset({1})
    )


def concat(d: Draw) -> Case:
    shape = list(d.shape(1, 4))
    axis = d.axis(len(shape))
    parts = []
    for _ in range(d.random.randint(1, 4)):
        shape[axis] = d.random.randint(1, 3)
        parts.append(d.array(shape))
    return Case("Concat", parts, {"axis": axis})


def quantised(d: Draw, name: str) -> Case:
    x = d.array(d.shape(1, 4, empty=False), scale=5)
    axis = d.axis(x.ndim)
    whole = d.random.random() < 0.5
    scale = np.abs(d.array(() if whole else (x.shape[axis],))) + np.float32(0.1)
    kind = d.kind(("uint8", "int8"))
    zero = np.asarray(d.array(scale.shape, kind))
    more = {} if whole else {"axis": axis}
    given = [x if name == "QuantizeLinear" else np.asarray(d.array(x.shape, kind)), scale.astype(np.float32), zero]
    return Case(name, given, more)


def top_k(d: Draw) -> Case:
    x = d.array(d.shape(1, 4, empty=False))
    axis = d.axis(x.ndim)
    more = d.maybe(largest=d.random.randint(0, 1))
    return Case("TopK", [x, ints(d.random.randint(1, x.shape[axis]))], {"axis": axis, **more}, frozenset({1}), 2)


def casts(d: Draw) -> Case:
    kind, to = (
        d.kind((*FLOATS, *INTS, "bool")),
        d.kind(("float32", "float64", "int64", "int32", "int16", "bool", "float16")),
    )
    return Case(
        "Cast",
        [np.abs(d.array(d.shape(), kind)) if kind != "bool" else d.array(d.shape(), kind)],
        {"to": helper.np_dtype_to_tensor_dtype(np.dtype(to))},
    )


def skip_norm(d: Draw, name: str) -> Case:
    b, rows, n = (d.random.randint(1, 4) for _ in range(3))
    n *= 4
    simple = "Simplified" in name
    given: list[Array | None] = [d.array((b, rows, n)), d.array((b, rows, n)), d.array((n,))]
    if not simple:
        given.append(d.array((n,)) if d.random.random() < 0.6 else None)
    if d.random.random() < 0.5:
        given.append(d.array((n,)))
    return Case(name, given, {"epsilon": 1e-5}, outputs=d.random.choice([1, 1, 4]), domain=MICROSOFT)


def multi_head(d: Draw) -> Case:
    b, rows, heads, columns = d.random.randint(1, 3), d.random.randint(2, 5), d.random.randint(1, 3), 8
    n = heads * columns
    given: list[Array | None] = [*(d.array((b, rows, n)) for _ in range(3))]
    more = d.maybe(unidirectional=d.random.randint(0, 1), scale=0.3)
    if d.random.random() < 0.6:
        given.append(d.array((3 * n,)))
        if d.random.random() < 0.6:
            given.append(d.numpy.integers(1, rows + 1, (b,)).astype(np.int32))
    elif d.random.random() < 0.5:
        given += [None, None, d.array((b, heads, rows, rows))]
    return Case("MultiHeadAttention", given, {"num_heads": heads, **more}, domain=MICROSOFT)


def ms_attention(d: Draw) -> Case:
    b, rows, heads, n = d.random.randint(1, 3), d.random.randint(2, 5), d.random.randint(1, 3), 12
    width = heads * 8
    given: list[Array | None] = [d.array((b, rows, n)), d.array((n, 3 * width)), d.array((3 * width,))]
    more = d.maybe(unidirectional=d.random.randint(0, 1))
    if d.random.random() < 0.6:
        lengths = d.numpy.integers(1, rows + 1, (b,)).astype(np.int32)
        mask = (np.arange(rows) < lengths[:, None]).astype(np.int32)
        given.append(mask if d.random.random() < 0.5 else lengths)
    return Case("Attention", given, {"num_heads": heads, **more}, domain=MICROSOFT)


def group_query(d: Draw) -> Case:
    b, rows = d.random.randint(1, 2), d.random.randint(2, 6)
    heads, kv = d.random.choice([(2, 2), (4, 2), (3, 1)])
    columns, half = 16, 8
    q, k, v = (d.array((b, rows, h * columns)) for h in (heads, kv, kv))
    given: list[Array | None] = [q, k, v, None, None, np.full((b,), rows - 1, np.int32), np.array(rows, np.int32)]
    more: dict[str, Any] = {"num_heads": heads, "kv_num_heads": kv, **d.maybe(scale=0.3)}
    if d.random.random() < 0.5:
        given += [d.array((9, half)), d.array((9, half))]
        more |= {"do_rotary": 1, "rotary_interleaved": d.random.randint(0, 1)}
    if d.random.random() < 0.3:
        more["local_window_size"] = d.random.randint(1, rows)
    return Case("GroupQueryAttention", given, more, frozenset({6}), domain=MICROSOFT, outputs=3)


def ms_rotation(d: Draw) -> Case:
    made = rotation(d)
    x, cos, sin = made.inputs[0], d.array((9, 4)), d.array((9, 4))
    b, rows = d.random.randint(1, 2), d.random.randint(1, 5)
    x = d.array((b, rows, 2 * 8))
    at = d.numpy.integers(0, 9, (b, rows)) if d.random.random() < 0.6 else ints(d.random.randint(0, 9 - rows))
    return Case("RotaryEmbedding", [x, at, cos, sin], d.maybe(interleaved=d.random.randint(0, 1)), domain=MICROSOFT)


def embed(d: Draw) -> Case:
    b, rows, n = d.random.randint(1, 3), d.random.randint(1, 5), 8

    def ids(most: int) -> Array:
        return d.numpy.integers(0, most, (b, rows)).astype(np.int32)

    with_segments = d.random.random() < 0.6
    given: list[Array | None] = [ids(9), ids(2) if with_segments else None, d.array((9, n)), d.array((9, n))]
    given += [d.array((2, n)) if with_segments else None, d.array((n,)), d.array((n,))]
    if d.random.random() < 0.5:
        given.append((np.arange(rows) < d.numpy.integers(1, rows + 1, (b, 1))).astype(np.int32))
    return Case("EmbedLayerNormalization", given, {"epsilon": 1e-6}, outputs=2, domain=MICROSOFT)


def ms(name: str, make: Callable[[Draw], Sequence[Array | None]], **attributes: Any) -> Callable[[Draw], Case]:
    return lambda d: Case(name, make(d), attributes, domain=MICROSOFT)


def small(d: Draw) -> Array:
    return d.array(d.shape(1, 4))


def unit(d: Draw, low: float = -2, high: float = 2) -> Array:
    return np.asarray(d.numpy.uniform(low, high, d.shape())).astype(np.float32)


def square(d: Draw) -> Array:
    return d.array(d.shape(2, 4))


UNARY = frozenset(
    {
        "Abs",
        "Acos",
        "Asin",
        "Asinh",
        "Atan",
        "Atanh",
        "BitwiseNot",
        "Ceil",
        "Cos",
        "Cosh",
        "Erf",
        "Exp",
        "Floor",
        "HardSwish",
        "IsNaN",
        "Mish",
        "Neg",
        "Not",
        "Relu",
        "Round",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Softplus",
        "Softsign",
        "Tan",
        "Tanh",
        "Identity",
        "Size",
        "Shape",
    }
)
REDUCTIONS = frozenset(
    {
        "ReduceMean",
        "ReduceSum",
        "ReduceProd",
        "ReduceMax",
        "ReduceMin",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "ReduceLogSum",
        "ReduceLogSumExp",
    }
)
BINARY = frozenset(
    {
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Mod",
        "And",
        "Or",
        "Xor",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
    }
)
"""Operators whose cases are drawn alike."""

DRAWERS: dict[tuple[str, str], Callable[[Draw], Case]] = {
    **{("", name): unary(name) for name in UNARY},
    **{
        ("", name): unary(name, low) for name, low in (("Acosh", 1.0), ("Log", 0.1), ("Sqrt", 0.0), ("Reciprocal", 0.1))
    },
    **{("", name): binary(name) for name in BINARY},
    **{("", name): (lambda d, name=name: several(d, name)) for name in ("Max", "Min", "Sum", "Mean")},  # type: ignore[misc]
    **{("", name): reduction(name) for name in REDUCTIONS},
    **{("", name): axis_alone(name) for name in ("Softmax", "LogSoftmax", "Hardmax", "Flatten", "LpNormalization")},
    ("", "ArgMax"): lambda d: Case(
        "ArgMax",
        [x := d.array(d.shape(1, 4, empty=False), d.kind(("float32", "int32")))],
        {"axis": d.axis(x.ndim), **d.maybe(keepdims=0, select_last_index=1)},
    ),
    ("", "ArgMin"): lambda d: Case(
        "ArgMin",
        [x := d.array(d.shape(1, 4, empty=False), d.kind(("float32", "int32")))],
        {"axis": d.axis(x.ndim), **d.maybe(keepdims=0, select_last_index=1)},
    ),
    ("", "Elu"): attributes_alone("Elu", alpha=2),
    ("", "Celu"): attributes_alone("Celu", alpha=2),
    ("", "Selu"): attributes_alone("Selu", alpha=2, gamma=2),
    ("", "LeakyRelu"): attributes_alone("LeakyRelu", alpha=1),
    ("", "HardSigmoid"): attributes_alone("HardSigmoid", alpha=1, beta=1),
    ("", "ThresholdedRelu"): attributes_alone("ThresholdedRelu", alpha=2),
    ("", "Shrink"): attributes_alone("Shrink", bias=1, lambd=1),
    ("", "Swish"): attributes_alone("Swish", alpha=2),
    ("", "Gelu"): lambda d: Case("Gelu", [small(d)], d.maybe(approximate=d.random.choice(["none", "tanh"]))),
    ("", "PRelu"): lambda d: Case("PRelu", [x := d.array(d.shape(1, 4)), d.array((x.shape[-1],))]),
    ("", "IsInf"): lambda d: Case(
        "IsInf",
        [np.where(d.array(s := d.shape(), "bool"), np.inf * d.array(s), 1).astype(np.float32)],
        d.maybe(detect_negative=0, detect_positive=0),
    ),
    ("", "Pow"): lambda d: Case(
        "Pow",
        [
            np.asarray(np.abs(d.array((s := d.broadcast(2))[0])) + 0.1).astype(np.float32),
            d.array(s[1], d.kind(("float32", "int32", "int64"))),
        ],
    ),
    ("", "BitShift"): lambda d: Case(
        "BitShift",
        [d.array((s := d.broadcast(2))[0], "uint8"), (d.array(s[1], "uint8") % 5).astype(np.uint8)],
        {"direction": d.random.choice(["LEFT", "RIGHT"])},
    ),
    ("", "Clip"): lambda d: Case(
        "Clip",
        [
            d.array(d.shape(), k := d.kind(("float32", "int64"))),
            np.array(-1, k) if d.random.random() < 0.6 else None,
            np.array(1, k),
        ],
        {},
        frozenset({1, 2}) if d.random.random() < 0.5 else frozenset(),
    ),
    ("", "Where"): lambda d: Case(
        "Where",
        [d.array((s := d.broadcast(3))[0], "bool"), d.array(s[1]), d.array(s[2])],
        {},
        frozenset({2}) if d.random.random() < 0.5 else frozenset(),
    ),
    ("", "Dropout"): lambda d: Case("Dropout", [small(d), np.array(0.5, np.float32)], known=frozenset({1})),
    ("", "CastLike"): lambda d: Case(
        "CastLike", [d.array(d.shape()), d.array((1,), d.kind(("int64", "float64", "bool")))]
    ),
    ("", "Cast"): casts,
    ("", "Constant"): lambda d: Case(
        "Constant",
        [],
        d.random.choice(
            [
                {"value_float": 0.5},
                {"value_ints": [1, 2]},
                {"value": numpy_helper.from_array(small(d))},
                {"value_floats": [1.5]},
                {"value_int": 7},
            ]
        ),
    ),
    ("", "ConstantOfShape"): lambda d: Case(
        "ConstantOfShape",
        [np.array(d.shape(), np.int64)],
        d.random.choice([{}, {"value": numpy_helper.from_array(ints(3))}]),
        frozenset({0}),
    ),
    ("", "Range"): lambda d: Case(
        "Range",
        [
            np.array(d.random.randint(-3, 3), k := d.kind(("int64", "float32", "int32"))),
            np.array(d.random.randint(-3, 9), k),
            np.array(d.random.choice([1, 2, -1]), k),
        ],
        {},
        frozenset({0, 1, 2}),
    ),
    ("", "EyeLike"): lambda d: Case(
        "EyeLike",
        [d.array((d.random.randint(1, 4), d.random.randint(1, 4)))],
        d.maybe(k=d.random.randint(-2, 2), dtype=7),
    ),
    ("", "NonZero"): lambda d: Case("NonZero", [d.array(d.shape(1, 4), "bool")], {}, frozenset({0})),
    ("", "Compress"): lambda d: Case(
        "Compress",
        [x := d.array(d.shape(1, 3, empty=False)), d.array((x.shape[0],), "bool")],
        {"axis": 0},
        frozenset({1}),
    ),
    ("", "Reshape"): reshape,
    ("", "Transpose"): lambda d: Case(
        "Transpose", [x := d.array(d.shape(1))], d.maybe(perm=d.random.sample(range(x.ndim), x.ndim))
    ),
    ("", "Squeeze"): squeeze,
    ("", "Unsqueeze"): unsqueeze,
    ("", "Expand"): lambda d: Case(
        "Expand", [d.array((s := d.broadcast(2))[0]), np.array(s[1], np.int64)], {}, frozenset({1})
    ),
    ("", "Tile"): lambda d: Case(
        "Tile", [x := small(d), np.array([d.random.randint(1, 3) for _ in range(x.ndim)])], {}, frozenset({1})
    ),
    ("", "Concat"): concat,
    ("", "Split"): split,
    ("", "Slice"): slices,
    ("", "Pad"): pad,
    ("", "DepthToSpace"): lambda d: Case(
        "DepthToSpace", [d.array((1, 8, 2, 3))], {"blocksize": 2, **d.maybe(mode=d.random.choice(["DCR", "CRD"]))}
    ),
    ("", "SpaceToDepth"): lambda d: Case("SpaceToDepth", [d.array((2, 3, 4, 6))], {"blocksize": 2}),
    ("", "Trilu"): lambda d: Case(
        "Trilu",
        [square(d), *([np.array(d.random.randint(-3, 3))] if d.random.random() < 0.6 else [])],
        d.maybe(upper=d.random.randint(0, 1)),
        frozenset({1}),
    ),
    ("", "Gather"): lambda d: indexed(d, "Gather"),
    ("", "GatherElements"): lambda d: indexed(d, "GatherElements"),
    ("", "ScatterElements"): lambda d: indexed(d, "ScatterElements"),
    ("", "GatherND"): gather_nd,
    ("", "ScatterND"): scatter_nd,
    ("", "OneHot"): lambda d: Case(
        "OneHot",
        [d.numpy.integers(-3, 3, s := d.shape(1, 3)), ints(3), d.array((2,))],
        {"axis": d.axis(len(s) + 1)},
        frozenset({1}),
    ),
    ("", "TopK"): top_k,
    ("", "ReverseSequence"): lambda d: Case(
        "ReverseSequence", [d.array((4, 3, 2)), d.numpy.integers(1, 5, (3,))], d.maybe(batch_axis=1, time_axis=0)
    ),
    ("", "Resize"): resize,
    ("", "CumSum"): lambda d: Case(
        "CumSum",
        [x := d.array(d.shape(1, 4)), np.array(d.axis(x.ndim))],
        d.maybe(exclusive=1, reverse=1),
        frozenset({1}),
    ),
    ("", "MatMul"): matmul,
    ("", "Gemm"): gemm,
    ("", "Einsum"): lambda d: Case(
        "Einsum",
        [d.array((2, 3, 4)), d.array((2, 4, 5))],
        {"equation": d.random.choice(["bij,bjk->bik", "bij,bjk->ki", "bij,cjk->bcik"])},
    ),
    **{
        ("", name): (lambda d, name=name: windows(d, name))
        for name in ("Conv", "ConvTranspose", "MaxPool", "AveragePool")
    },  # type: ignore[misc]
    ("", "GlobalAveragePool"): lambda d: Case("GlobalAveragePool", [d.array((2, 3, *d.shape(1, 2, empty=False)))]),
    ("", "GlobalMaxPool"): lambda d: Case("GlobalMaxPool", [d.array((2, 3, *d.shape(1, 2, empty=False)))]),
    **{
        ("", name): (lambda d, name=name: norm(d, name))
        for name in (
            "LayerNormalization",
            "RMSNormalization",
            "BatchNormalization",
            "InstanceNormalization",
            "GroupNormalization",
        )
    },  # type: ignore[misc]
    ("", "LRN"): lambda d: Case(
        "LRN", [d.array((2, 5, 3, 3))], {"size": d.random.choice([1, 3, 5]), **d.maybe(alpha=0.5, beta=0.6, bias=1.5)}
    ),
    ("", "Attention"): attention,
    ("", "RotaryEmbedding"): rotation,
    ("", "QuantizeLinear"): lambda d: quantised(d, "QuantizeLinear"),
    ("", "DequantizeLinear"): lambda d: quantised(d, "DequantizeLinear"),
    ("", "DynamicQuantizeLinear"): lambda d: Case(
        "DynamicQuantizeLinear", [d.array(d.shape(1, 3, empty=False))], outputs=3
    ),
    ("", "MatMulInteger"): lambda d: Case(
        "MatMulInteger",
        [
            d.array((2, 3, 4), "uint8"),
            d.array((4, 5), k := d.kind(("int8", "uint8"))),
            *([np.array(3, np.uint8), np.array(2, k)] if d.random.random() < 0.6 else []),
        ],
    ),
    ("", "ConvInteger"): lambda d: Case(
        "ConvInteger",
        [d.array((1, 2, 5, 5), "uint8"), d.array((3, 2, 2, 2), "uint8"), np.array(3, np.uint8), np.array(2, np.uint8)],
        d.maybe(pads=[1, 0, 1, 0]),
    ),
    (MICROSOFT, "Gelu"): ms("Gelu", lambda d: [small(d)]),
    (MICROSOFT, "BiasGelu"): ms("BiasGelu", lambda d: [d.array((2, 3, 8)), d.array((8,))]),
    (MICROSOFT, "FastGelu"): ms(
        "FastGelu", lambda d: [d.array((2, 3, 8)), *([d.array((8,))] if d.random.random() < 0.5 else [])]
    ),
    (MICROSOFT, "QuickGelu"): ms("QuickGelu", lambda d: [small(d)], alpha=1.3),
    (MICROSOFT, "FusedMatMul"): lambda d: Case(
        "FusedMatMul", [d.array((2, 3, 4)), d.array((5, 4))], {"transB": 1, **d.maybe(alpha=0.7)}, domain=MICROSOFT
    ),
    (MICROSOFT, "FusedGemm"): lambda d: (
        lambda c: Case(
            "FusedGemm",
            c.inputs,
            {**c.attributes, "activation": d.random.choice(["Relu", "Tanh", "Sigmoid"])},
            domain=MICROSOFT,
        )
    )(gemm(d)),
    (MICROSOFT, "FusedConv"): lambda d: (
        lambda c: Case("FusedConv", c.inputs, {**c.attributes, "activation": "Relu"}, domain=MICROSOFT)
    )(windows(d, "Conv")),
    (MICROSOFT, "SkipLayerNormalization"): lambda d: skip_norm(d, "SkipLayerNormalization"),
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): lambda d: skip_norm(d, "SkipSimplifiedLayerNormalization"),
    (MICROSOFT, "EmbedLayerNormalization"): embed,
    (MICROSOFT, "MultiHeadAttention"): multi_head,
    (MICROSOFT, "Attention"): ms_attention,
    (MICROSOFT, "GroupQueryAttention"): group_query,
    (MICROSOFT, "RotaryEmbedding"): ms_rotation,
}
"""How a case of each operator is drawn."""
NOT_DRAWN = {
    "SimplifiedLayerNormalization": "onnxruntime has it in no domain of its own; the architectures have it",
    "BiasAdd": "onnxruntime computes it on GPUs only",
    "ReplaceNaN": "it is ours; the exported attentions have it",
    "Upsample": "it is ours; Resize of opset 10 is drawn, and older ones have a test",
    "SequenceConstruct": "sequences are no inputs",
    "SequenceAt": "sequences are no inputs",
    "SequenceLength": "sequences are no inputs",
    "ConcatFromSequence": "sequences are no inputs",
    "SplitToSequence": "sequences are no outputs",
}
"""Rows of the table without a drawer, and why."""


def model_of(case: Case, opset: int) -> onnx.ModelProto:
    """A model of one node. Inputs that are attributes in its opset become attributes."""
    attributes, names, inputs, constants = dict(case.attributes), [], [], []
    schema = None if case.domain else defs.get_schema(case.name, opset, "")
    row = TABLE[case.domain, case.name]
    given = [(i, x) for i, x in enumerate(case.inputs) if i != 1 or case.name != "Resize" or opset > 10]  # no roi
    for i, array in given:
        if array is None:
            names.append("")
            continue
        label = row.inputs[min(i, len(row.inputs) - 1)].name
        if schema is not None and i >= len(schema.inputs) and label in schema.attributes:
            value = array.reshape(-1).tolist()
            attributes[label] = value if array.ndim else value[0]
            continue
        names.append(f"x{i}")
        if i in case.known:
            constants.append(numpy_helper.from_array(array, f"x{i}"))
        else:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(f"x{i}", kind, array.shape))
    if schema is not None:
        attributes = {name: x for name, x in attributes.items() if name in schema.attributes}
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.name, names, outputs, domain=case.domain, **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info(y) for y in outputs], constants)
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(case.domain, 1)] if case.domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def compared(got: torch.Tensor, wanted: torch.Tensor) -> str:
    """Return "right" or what is wrong."""
    if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        return f"wrong: {got.dtype} {tuple(got.shape)}, not {wanted.dtype} {tuple(wanted.shape)}"
    near = COARSE.get(str(wanted.dtype).removeprefix("torch."), BOUND)
    x, y = got.double(), wanted.double()
    if not wanted.is_floating_point():
        worst = float((x - y).abs().max()) if x.numel() else 0.0
        return "right" if worst == 0 else f"wrong: integers by {worst:g}"
    infinite = ~torch.isfinite(y)
    if not torch.equal(x[infinite].nan_to_num(9e9), y[infinite].nan_to_num(9e9)):
        return "wrong: infinity or NaN"
    x, y = x[~infinite], y[~infinite]
    worst = float((x - y).abs().max() / y.abs().max().clamp(min=1e-3)) if x.numel() else 0.0
    return "right" if worst <= near else f"wrong: {worst:.1e}"


@cache
def first_opset(name: str) -> int:
    """The first one that has an operator."""
    return min(x.since_version for x in defs.get_all_schemas_with_history() if x.name == name and not x.domain)


def outcome(seed: int, of: Sequence[tuple[str, str]] = ()) -> tuple[str, str]:
    """The operator of a seed, and the `outcome_of` its case."""
    d = Draw(seed)
    chosen = d.random.choice(sorted(of or DRAWERS))
    case, opset = DRAWERS[chosen](d), d.random.choice(OPSETS)
    name = f"{case.domain and 'ms.'}{case.name}"
    return name, outcome_of(case, max(opset, first_opset(case.name) if not case.domain else 0))


def outcome_of(case: Case, opset: int) -> str:
    """Return "right", "refused: " with the reason, "wrong: " or "not by onnxruntime"."""
    try:
        model = model_of(case, opset)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1  # a process for each core already
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        given = {f"x{i}": x for i, x in enumerate(case.inputs) if x is not None and i not in case.known}
        given = {x.name: given[x.name] for x in session.get_inputs()}
        wanted = session.run(None, given)
    except Exception:
        return "not by onnxruntime"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = OnnxModule(model)(**{key: torch.from_numpy(np.array(x)) for key, x in given.items()})
    except RsnError as error:
        return "refused: " + re.sub(r"\d+", "#", str(error).partition(": ")[2])[:100]
    except Exception as error:
        return f"wrong: {type(error).__name__} {str(error)[:100]}"
    results = list(got) if isinstance(got, tuple) else [got]
    for x, y in zip(results, wanted, strict=True):
        said = compared(x, tensor_of(numpy_helper.from_array(np.array(y))))
        if said != "right":
            shapes = [None if z is None else (z.dtype.name, z.shape) for z in case.inputs]
            return f"{said} (opset {opset}, {case.attributes}, {shapes})"
    return "right"


def _some(seeds: range) -> list[tuple[int, str, str]]:
    torch.set_num_threads(1)
    return [(seed, *outcome(seed)) for seed in seeds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    never: dict[str, Counter[str]] = {}
    with ProcessPoolExecutor(given.processes) as pool:
        parts = [
            range(i, min(i + 200, given.seed + given.count)) for i in range(given.seed, given.seed + given.count, 200)
        ]
        for found in pool.map(_some, parts):
            for seed, name, result in found:
                kind = result.partition(":")[0]
                counts[kind] += 1
                never.setdefault(name, Counter())[kind] += 1
                if kind == "refused":
                    reasons[f"{name}: {result[9:]}"] += 1
                if kind == "wrong":
                    print(f"seed {seed}, {name}: {result}", flush=True)
    print(*(f"{count} {what}" for what, count in counts.most_common()), sep=", ")
    for what, count in reasons.most_common():
        print(f"{count:6} {what}")
    print("never right:", *sorted(name for name, found in never.items() if not found["right"]))


if __name__ == "__main__":
    main()
