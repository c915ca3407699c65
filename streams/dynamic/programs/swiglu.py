"""A gated layer in tiles, down(SiLU(gate(x)) * up(x)): the program that STeP is validated with (v2, Fig. 8)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import StepError
from ..functions import Matmul, Mul, SiLU
from ..graph import Program
from ..memory import Tensor
from ..operators.higher_order import Accum, Map
from ..operators.off_chip import LinearOffChipLoad, LinearOffChipStore
from ..operators.shape import Flatten, Zip
from ..tokens import Array
from ..updates import MatmulAdd


@dataclass(frozen=True)
class SwigluTensors:
    """The tensors of a gated layer: x [B, model]; gate, up [model, hidden]; down [hidden, model]."""

    x: Array
    gate: Array
    up: Array
    down: Array


@dataclass(frozen=True)
class SwigluProgram:
    """A program of a gated layer. result: the tensor [B, model] that the store writes."""

    program: Program
    result: Tensor


def swiglu(
    batch: int,
    model: int,
    hidden: int,
    tile_rows: int,
    tile_columns: int,
    *,
    compute: int | None = None,
    through_memory: bool = False,
    dtype: str = "f32",
    values: SwigluTensors | None = None,
) -> SwigluProgram:
    """Return the program of a gated layer, down(SiLU(gate(x)) * up(x)) (STeP v2, Fig. 8). batch: rows of x. model,
    hidden: columns of x, and of gate(x).

    tile_rows: rows of a tile of x, which is loaded again for each tile of weights. tile_columns: columns of a tile of
    gate and up, and rows of one of down. compute: operations a cycle of each unit; None for no bound. through_memory:
    whether products read both operands, and write their results, through a memory unit. dtype: of all elements. values:
    tensors; None for a program without data. Raises `StepError` for sizes below 1 or not whole in tiles, and for values
    of other shapes."""
    if min(batch, model, hidden, tile_rows, tile_columns) < 1:
        sizes = f"x [{batch},{model}], {hidden} columns, tiles of {tile_rows} rows and of {tile_columns} columns"
        raise StepError("swiglu", f"{sizes}; the least is 1")
    if batch % tile_rows or hidden % tile_columns:
        raise StepError("swiglu", f"x [{batch},{model}] in {tile_rows} rows, {hidden} columns in {tile_columns}")
    down_rows, across = batch // tile_rows, hidden // tile_columns
    through = (True, True) if through_memory else ()

    def tensor(name: str, *shape: int) -> Tensor:
        return Tensor(shape, dtype, None if values is None else np.asarray(getattr(values, name)), name=name)

    result = Tensor((batch, model), dtype, name="result")
    with Program() as program:
        every = (down_rows, across)
        x = LinearOffChipLoad(tensor("x", batch, model), (tile_rows, model), (1, 0), every)()
        gate = LinearOffChipLoad(tensor("gate", model, hidden), (model, tile_columns), (0, 1), every)()
        up = LinearOffChipLoad(tensor("up", model, hidden), (model, tile_columns), (0, 1), every)()
        down = LinearOffChipLoad(tensor("down", hidden, model), (tile_columns, model), (0, 1), every)()
        product = Map(Matmul(), compute=compute, memory_in=through)
        opened = Map(SiLU, compute=compute)(product(x, gate))
        scaled = Map(Mul, compute=compute)(opened, product(x, up))
        summed = Accum(1, MatmulAdd(), compute=compute, memory_in=through)(Zip()(scaled, down))
        LinearOffChipStore(result)(Flatten(0, 1)(summed))
    return SwigluProgram(program, result)
