"""Runs task machines on tensors: arrays of the declared types in, arrays out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.overlays.tasks.overlay import program_of
from ...isa.overlays.tasks.unit import BANK, Prepared
from ...isa.overlays.tasks.values import from_words, words_of
from ...isa.program import Program
from .machine import Machine, Run

Tensor = npt.NDArray[Any]


def run_on_tensors(program: Program, inputs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Run]:
    """Run a program of a task machine. Returns the outputs by name, and the run.

    inputs: for each input tensor, by name, an array of its shape and element type; a tensor without one begins with
    zeros. Raises `ProgramError` for what fails in the run, with the place in the user's file, `DeadlockError` if the
    tasks wait for each other, `KeyError` for an unknown tensor, `ValueError` for an array of another size.
    """
    tasks = program_of(program.overlay)
    prepared = Prepared(tasks)
    memory = np.zeros(prepared.words, np.float32)
    for name, value in inputs.items():
        t = prepared.tensors[name]
        at = prepared.offsets[name]
        memory[at : at + t.words] = words_of(value, t.type.dtype)
    run = Machine(program).run({BANK: memory} if tasks.tensors else {})
    outputs = {}
    for t in tasks.tensors:
        if t.output:
            at = prepared.offsets[t.name]
            outputs[t.name] = from_words(memory[at : at + t.words].copy(), t.type.dtype).reshape(t.type.shape)
    return outputs, run
