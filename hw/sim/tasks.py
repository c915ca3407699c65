"""Runs task machines on tensors: arrays of the declared types in, arrays out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.overlays.tasks.overlay import program_of, size_values
from ...isa.overlays.tasks.program import OffChipTensor
from ...isa.overlays.tasks.unit import BANK, Prepared, shape_of
from ...isa.overlays.tasks.values import from_words, words_of
from ...isa.program import Program
from .machine import Machine, Run

Tensor = npt.NDArray[Any]


def run_on_tensors(program: Program, inputs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Run]:
    """Run a program of a task machine. Returns the outputs by name, and the run.

    inputs: for each input tensor, by name, an array of its element type, and of its shape in a run with the values of
    sizes that the program has; a tensor without one begins with zeros. Raises `ProgramError` for what fails in the run,
    with the place in the user's file, `DeadlockError` if the tasks wait for each other, `KeyError` for an unknown
    tensor, `ValueError` for an array of another size.
    """
    tasks = program_of(program.overlay)
    prepared, sizes = Prepared(tasks), size_values(program)
    memory = np.zeros(prepared.words, np.float32)
    for name, value in inputs.items():
        t = prepared.tensors[name]
        at = prepared.offsets[name]
        memory[at : at + t.words] = words_of(in_room(value, t, sizes), t.type.dtype)
    run = Machine(program).run({BANK: memory} if tasks.tensors else {})
    outputs = {}
    for t in tasks.tensors:
        if t.output:
            at = prepared.offsets[t.name]
            whole = from_words(memory[at : at + t.words].copy(), t.type.dtype).reshape(t.type.shape)
            outputs[t.name] = of_room(whole, t, sizes)
    return outputs, run


def in_room(value: Tensor, tensor: OffChipTensor, sizes: Mapping[str, int]) -> Tensor:
    """Return the elements of a tensor as they lie in its room, which is that of the largest values of sizes, with zeros
    behind each axis. value: in its shape in a run with these values of sizes, by name. Raises `ValueError` for another
    number of elements."""
    shape = shape_of(tensor, sizes)
    if shape == tensor.type.shape:
        return value
    whole = np.zeros(tensor.type.shape, np.asarray(value).dtype)
    whole[tuple(map(slice, shape))] = np.reshape(value, shape)
    return whole


def of_room(whole: Tensor, tensor: OffChipTensor, sizes: Mapping[str, int]) -> Tensor:
    """Return the elements of a tensor that a run with these values of sizes accesses: the inverse of `in_room`."""
    shape = shape_of(tensor, sizes)
    return whole if shape == tensor.type.shape else np.ascontiguousarray(whole[tuple(map(slice, shape))])
