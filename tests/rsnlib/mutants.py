"""Mistakes in the compiler, one at a time: in lowering rules, folding, scheduling, and the binding of calls.

Each replaces a piece of a function's source. The checks of a program when it is made, or of the first call, must notice
each: `test_verification` compares nothing by itself.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """In the function at `where` ("module:qualified name", below rsn), `old` becomes `new`. model: that shows it."""

    where: str
    old: str
    new: str
    model: str = "encoder"

    def __str__(self) -> str:
        return f"{self.where}: {self.new.strip()[:50]}"

    @contextmanager
    def injected(self) -> Iterator[None]:
        """Context in which the function has the mistake, for whoever has imported it. Raises `ValueError` unless `old`
        stands in it exactly once."""
        function = self._function()
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(self.old) != 1:
            raise ValueError(f"{self.where}: {self.old!r} stands in it {source.count(self.old)} times, not once")
        made = compile("from __future__ import annotations\n" + source.replace(self.old, self.new), self.where, "exec")
        code = next(x for x in _codes(made) if x.co_name == function.__name__)
        if code.co_freevars != function.__code__.co_freevars:
            raise ValueError(f"{self.where}: a function that uses variables of another one")
        before, function.__code__ = function.__code__, code
        try:
            yield
        finally:
            function.__code__ = before

    def _function(self) -> FunctionType:
        module, _, name = self.where.partition(":")
        found: Any = import_module(f"rsn.{module}")
        for part in name.split("."):
            found = inspect.getattr_static(found, part)
        if isinstance(found, staticmethod | classmethod):
            found = found.__func__
        if isinstance(found, property):
            found = found.fget
        assert isinstance(found, FunctionType)
        return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant


MUTANTS = [
    # lowering rules
    Mutant("rsnlib.rules:multiplied", "found[0].factor * factor", "found[0].factor", "scaled"),
    Mutant("rsnlib.rules:product", "matrix.T if transposed", "matrix.T[::-1].copy() if transposed"),
    Mutant("rsnlib.rules:add", '1 + a["alpha"]', "1", "scaled"),
    Mutant("rsnlib.rules:with_bias", "before.bias + bias", "before.bias - bias", "scaled"),
    Mutant("rsnlib.rules:with_residual", "before.residual is not None", "False", "sums"),
    Mutant(
        "rsnlib.rules:normed",
        "fuse(before, path, norm=norm, scale=scale, shift=shift)",
        "fuse(before, path, norm=norm, scale=scale)",
    ),
    Mutant("rsnlib.rules:rms_norm", "torch.finfo(torch.float32).eps", "1e-2", "decoder"),
    Mutant("rsnlib.rules:_gain", "layer.scale[0]) * factor", "layer.scale[0])", "scaled"),
    Mutant("rsnlib.gate_rules:_gated", "_beside(gated.weight, weight)", "_beside(weight, gated.weight)", "decoder"),
    Mutant("rsnlib.gate_rules:_gated", "ratio != 1", "False", "scaled"),
    Mutant(
        "rsnlib.gate_rules:_total", "taking.base, added.base", "taking.base, values.layers.of(taking.base.x)", "sums"
    ),
    Mutant("rsnlib.head_rules:_rotated", "fuse(layer, path, rotary=made,", "fuse(layer, path, rotary=None,", "decoder"),
    Mutant("rsnlib.head_rules:rotate", "expand(values.seq, columns)", "expand(values.seq, columns).flip(0)", "decoder"),
    Mutant("rsnlib.attention_rules:_scaled", "key.factor * factor", "key.factor"),
    Mutant("rsnlib.head_rules:norm_of_heads", "np.tile(scale, heads.count)", "np.ones(layer.width)", "heads"),
    Mutant(
        "rsnlib.attention_rules:attend", "_scaled(values, node, key, factor,", "_scaled(values, node, key, 2 * factor,"
    ),
    Mutant("rsnlib.attention_rules:scaled_dot_product_attention", 'shape_of(a["query"])[-1] ** -0.5', "1.0"),
    Mutant("rsnlib.attention_rules:masks_of", "causal = causal or pattern", "causal = pattern", "decoder"),
    Mutant(
        "rsnlib.layers:LayerBuilder._separated", "(layer.x, layer.residual) != (bare.x, bare.residual)", "False", "sums"
    ),
    # folding and layouts
    Mutant("rsnlib.fold:_product", "affine.scale * factor", "factor * np.ones(len(affine.scale))"),
    Mutant("rsnlib.fold:_product", "layer.bias + _times(affine.shift, layer.weight)", "layer.bias"),
    Mutant("rsnlib.fold:_folded", "bias = bias + residual.shift", "bias = bias + 0"),
    Mutant("rsnlib.fold:_folded", "if residual is None else residual.scale", ""),
    Mutant(
        "rsnlib.fold:_folded_sum",
        "np.diag(x.scale.astype(np.float32))",
        "np.eye(layer.width, dtype=np.float32)",
        "sums",
    ),
    Mutant("rsnlib.fold:_output", "affine.shift.astype(np.float32)", "0 * affine.shift.astype(np.float32)"),
    Mutant("rsnlib.fold:_with_tables", "key = source, rotary.key, rotary.order", "key = source, '', ()", "positions"),
    Mutant("rsnlib.fold:with_table", "rotary.own * scale[0]", "rotary.own", "heads"),
    Mutant(
        "rsnlib.fold:reordered",
        "rotary.own[:, at], rotary.partner[:, at]",
        "rotary.own, rotary.partner",
        "decoder",
    ),
    Mutant("rsnlib.fold:in_order", "_taken(bias, y.columns, 0)", "bias", "decoder"),
    # scheduling
    Mutant("scheduler.bind:place_activations", "last[name] == i", "last[name] >= i", "sums"),
    Mutant("scheduler.memory:stored_weight", "x.positions(), columns", "x.positions(), columns[::-1]"),
    Mutant("scheduler.memory:stored_vector", "out[columns] = vector", "out[columns[::-1]] = vector"),
    Mutant("scheduler.dram:order_accesses", "first < high and low < end", "False"),
    Mutant("scheduler.lanes.operations:Matched._note", "row_norm(last.norm) if", "None if", "lanes"),
    Mutant("scheduler.lanes.operations:Matched._is_up", "layer.residual is None", "True", "lanes"),
    # binding of calls
    Mutant("rsnlib.host_part:HostPart.take", "self._flat(name, array)", "self._flat(name, array * 1.001)"),
    Mutant(
        "rsnlib.host_part:HostPart._spans_of",
        "KeySpans(lengths, starts, rows)",
        "KeySpans(0 * lengths + 1, starts, rows)",
        "masked",
    ),
    Mutant("rsnlib.capture:Interface.bind", "dict(zip(self.arguments,", "dict(zip(self.arguments[::-1],", "sums"),
    Mutant("rsnlib.capture:Interface.unbind", "cache.copy_(value)", "cache.copy_(cache)", "written"),
    Mutant("scheduler.shared_weights:_moved", "at - buffer.offset + places[buffer.name]", "at", "shared"),
]
