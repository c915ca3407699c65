"""Runs task machines on tensors: arrays of the declared types in, arrays out."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.overlays.tasks.overlay import program_of, size_values, with_sizes
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
    tensor, `ValueError` for an array of another shape.
    """
    memory = TaskMemory(program)
    for name, value in inputs.items():
        memory.write(name, value)
    run = memory.run()
    return {t.name: memory.read(t.name) for t in program_of(program.overlay).tensors if t.output}, run


class TaskMemory:
    """The memory of a task machine, which keeps its tensors from run to run; they begin with zeros. program: one of
    that machine, which `run` executes."""

    def __init__(self, program: Program) -> None:
        self._prepared = Prepared(program_of(program.overlay))
        self._words = np.zeros(self._prepared.words, np.float32)
        self._run_with(program)

    def _run_with(self, program: Program) -> None:
        self._program, self._machine, self._sizes = program, Machine(program), size_values(program)

    def with_sizes(self, sizes: Mapping[str, int]) -> TaskMemory:
        """Return an object with the same memory, for runs with other values of sizes that each run gives, by name. What
        is written by one object can be read by the other. Raises as `overlay.with_sizes`."""
        made = copy(self)
        made._run_with(with_sizes(self._program, sizes))
        return made

    def write(self, name: str, value: Tensor) -> None:
        """Write a tensor. name: of it. value: as for `run_on_tensors`. Raises `KeyError` for an unknown tensor,
        `ValueError` for an array of another shape."""
        tensor = self._prepared.tensors[name]
        self._of(name)[:] = words_of(in_room(value, tensor, self._sizes), tensor.type.dtype)

    def read(self, name: str) -> Tensor:
        """Return a copy of a tensor, as `run_on_tensors` returns it. name: of it. Raises `KeyError` for an unknown
        one."""
        tensor = self._prepared.tensors[name]
        whole = from_words(self._of(name).copy(), tensor.type.dtype).reshape(tensor.type.shape)
        return of_room(whole, tensor, self._sizes)

    def run(self) -> Run:
        """Run the program on the tensors as they are. Raises as `run_on_tensors`."""
        return self._machine.run({BANK: self._words} if self._prepared.tensors else {})

    def _of(self, name: str) -> Tensor:
        at = self._prepared.offsets[name]
        return self._words[at : at + self._prepared.tensors[name].words]


def in_room(value: Tensor, tensor: OffChipTensor, sizes: Mapping[str, int]) -> Tensor:
    """Return a tensor as it lies in memory, in an array of `tensor.type.shape`: that shape has room for the largest
    values of sizes, and is filled up with zeros behind each axis.

    value: the tensor, in its shape in a run with these values of sizes, by name. Raises `ValueError` for another shape,
    `ProgramError` for values of sizes that are out of range."""
    shape = shape_of(tensor, sizes)
    if np.shape(value) != shape:
        raise ValueError(f"{tensor.name} is given with shape {list(np.shape(value))}; in this run it has {list(shape)}")
    if shape == tensor.type.shape:
        return value
    whole = np.zeros(tensor.type.shape, np.asarray(value).dtype)
    whole[tuple(map(slice, shape))] = value
    return whole


def of_room(whole: Tensor, tensor: OffChipTensor, sizes: Mapping[str, int]) -> Tensor:
    """Return the elements of a tensor that a run with these values of sizes accesses: the inverse of `in_room`.

    whole: the tensor as it lies in memory, of `tensor.type.shape`. Raises `ProgramError` for values of sizes that are
    out of range."""
    shape = shape_of(tensor, sizes)
    return whole if shape == tensor.type.shape else np.ascontiguousarray(whole[tuple(map(slice, shape))])
