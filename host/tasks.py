"""Runs task machines: the tensors of a stream program in and out, with the element types that it declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.element_types import ElementType
from ..base.errors import ProgramError, TensorError
from ..hw.sim.machine import Run
from ..hw.sim.tasks import run_on_tensors
from ..isa.overlays.tasks.overlay import program_of, size_values, with_sizes
from ..isa.overlays.tasks.program import TaskProgram
from ..isa.overlays.tasks.unit import shape_of
from ..isa.overlays.tasks.values import convert
from ..isa.program import Program
from .tensors import shown

Tensor = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class TaskResult:
    """The outputs of a run by name, in the declared shapes, and its time and traffic."""

    outputs: dict[str, Tensor]
    run: Run


def run_tasks(
    program: Program, inputs: Mapping[str, Tensor] | None = None, sizes: Mapping[str, int] | None = None
) -> TaskResult:
    """Run a program of a task machine on the simulator.

    inputs: for each input tensor, by name, an array of its shape; its values must be ones of the declared element type,
    `bf16` and `f16` as float32; None for a program without inputs. sizes: values of the sizes that each run gives, by
    name; others, and all with None, have those of the program. Raises `TensorError` for inputs that do not fit,
    `ProgramError` for values that a size does not have, and for what fails in the run, with the place in the user's
    file.
    """
    program = with_sizes(program, sizes or {})
    tasks = program_of(program.overlay)
    return TaskResult(*run_on_tensors(program, checked_inputs(tasks, inputs, size_values(program))))


def checked_inputs(
    tasks: TaskProgram, inputs: Mapping[str, Tensor] | None, sizes: Mapping[str, int]
) -> dict[str, Tensor]:
    """Return the inputs of a task program by name, as their element types. inputs: an array for each, of its shape in a
    run with these values of sizes, by name. Raises `TensorError` for an unknown or missing name, and as `checked`."""
    given = dict(inputs or {})
    wanted = [t.name for t in tasks.tensors if t.input]
    for name in given:
        if name not in wanted:
            close = get_close_matches(name, wanted, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; they are {', '.join(wanted) or 'none'}"
            raise TensorError(f"the program has no input {shown(name)}{hint}")
    kinds = {t.name: replace(t.type, shape=shape_of(t, sizes)) for t in tasks.tensors if t.input}
    for name, kind in kinds.items():
        if name not in given:
            raise TensorError(f"the input {name} is missing: {_said(kind)}")
    return {name: checked(name, given[name], kind) for name, kind in kinds.items()}


def checked(name: str, value: Tensor, kind: ElementType) -> Tensor:
    """Return an array converted to the NumPy type of an element type. name: of the tensor, for messages. value: the
    array. kind: the element type. Raises `TensorError` for another shape, or values that the element type does not
    have."""
    value = np.asarray(value)
    if value.shape != kind.shape:
        raise TensorError(f"{shown(name)} has shape {value.shape}; the program declares {_said(kind)}")
    if value.dtype.kind not in "biuf":
        raise TensorError(f"{shown(name)} has dtype {value.dtype}; the program declares {_said(kind)}")
    try:
        with np.errstate(over="ignore"):  # what becomes infinite is refused below
            made: Tensor = np.asarray(convert(value, kind))
    except ProgramError as e:  # NaN or an infinity for an integer
        raise TensorError(f"{shown(name)}: {e}; the program declares {_said(kind)}") from None
    same = np.array_equal(made, value, equal_nan=value.dtype.kind == "f" and made.dtype.kind == "f")
    if not same:
        way_out = "; round them first, with astype(np.float32)" if kind.dtype == "f32" else ""
        raise TensorError(
            f"{shown(name)} has values that are none of {kind.dtype} (it has dtype {value.dtype}){way_out}"
        )
    return made


def _said(kind: ElementType) -> str:
    return f"{kind.dtype}[{', '.join(map(str, kind.shape))}]"
