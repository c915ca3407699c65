"""Stream programs of operators whose results are of other types than f32: their values, their bytes, their C++."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rsn.base.element_types import BITS, FLOATS, ElementType
from rsn.host.native_tasks import run_native
from rsn.host.tasks import run_tasks
from rsn.isa.overlays.tasks.values import convert
from rsn.rsnlib.streamed import Knobs, streamed
from rsn.rsnlib.streamed.block import Streamed
from rsn.rsnlib.streamed.operators import rebuilt
from rsn.rsnlib.streamed.plans import planned
from rsn.rsnlib.streamed.program import program
from rsn.streams.build import task_program
from rsn.tests.effort import full, long
from rsn.tests.streams.test_hls import built

ROWS, DEPTH, COLUMNS = 8, 32, 16


Types = tuple[str, str, str]
"""Of the operand, the weight and the result."""

SAME = ("i4", "u4", "i8", "i16", "i32", "bf16", "f16", "f32", "f64")
TYPES: dict[str, Types] = {
    **{dtype: (dtype, dtype, dtype) for dtype in SAME},
    "w4a8": ("i8", "i4", "i32"),
    "w4a16": ("bf16", "i4", "f32"),
}


def product(types: Types, knobs: Knobs) -> Streamed:
    """A product of two matrices of these types."""
    made = streamed(nn.Linear(DEPTH, COLUMNS, bias=False).eval(), (torch.zeros(ROWS, DEPTH),), knobs)
    (linear,) = made.block.graph.kernels
    of = dict(zip((*linear.operands, linear), types, strict=True))
    graph = rebuilt(made.block.graph, lambda x: replace(x, dtype=types[2] if x.operands else of[x]))
    plans = planned(graph, knobs)
    title = f"A product: {', '.join(types)}."
    written = program(graph, plans, knobs, title, groups={}, depths=None, ports=None)
    return replace(made, block=replace(made.block, graph=graph), plans=plans, written=written)


@pytest.mark.parametrize(("packed", "outward"), [long(1, 1), full(0, 0), full(0, 1), full(1, 0)])
def test_a_product_of_each_type(packed: int, outward: int, tmp_path: Path) -> None:
    """Bit for bit on the engine and in C++, and with the bytes that the types have. All sums are numbers that the
    types of floats have; those of integers wrap."""
    knobs = Knobs(rows=4, columns=8, depth=16, packed=packed, outward=outward, port=16)
    products = {name: product(types, knobs) for name, types in TYPES.items()}
    regions = built(tmp_path, {name: task_program(made.report.region) for name, made in products.items()})
    random = np.random.default_rng(0)
    for name, made in products.items():
        (plan,), types = made.plans.values(), TYPES[name]
        inputs, matrices = {}, []
        for tensor, dtype in zip(tensors_of(made), types[:2], strict=True):
            shape = made.written.shapes[tensor]
            inputs[tensor] = convert(
                random.integers(-2, 3, shape) * (1 if types[2] in FLOATS else 5), ElementType(dtype, shape)
            )
            matrices.append(made.written.elements(tensor, inputs[tensor]).astype(np.float64))
        exact = matrices[0].reshape(ROWS, DEPTH) @ matrices[1].reshape(DEPTH, COLUMNS)
        wanted = convert(exact, ElementType(types[2], exact.shape))
        (output,) = made.written.outputs.values()
        for outputs in (run_tasks(made.machine, inputs).outputs, run_native(regions[name], inputs)):
            assert made.written.elements(output, outputs[output]).tobytes() == wanted.tobytes(), name
        # The bytes of kernels, streams and transfers, by the bits of the types.
        bits = [BITS[dtype] for dtype in types]
        assert 8 * plan.memory_bytes == 4 * (COLUMNS * bits[2] + 16 * bits[0] if outward else 8 * bits[2])
        tokens = {BITS[order.dtype] * prod(order.element): order.dtype for order in (*plan.gets, plan.put)}
        assert [order.dtype for order in (*plan.gets, plan.put)] == list(types)
        assert {group.bits for group in made.sized().groups.values()} == tokens.keys()
        moved = {of.tensor: of.cost for of in made.written.moved.values()}
        if packed:
            orders = dict(zip((*tensors_of(made), output), (*plan.gets, plan.put), strict=True))
            assert moved == {n: o.tokens * -(-o.bytes_per_token // 16) * 16 for n, o in orders.items()}


def tensors_of(made: Streamed) -> list[str]:
    """The input tensors, as the operands are in order."""
    (x,) = made.plans
    data = [operand.data for operand in x.operands]
    return [next(name for name, held in made.written.inputs.items() if held is one) for one in data]
