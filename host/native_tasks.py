"""Runs the C++ of task programs on this computer, with the inputs and outputs of `run_tasks`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.deadlock_report import Deadlock, Wait
from ..base.element_types import BITS
from ..base.errors import DeadlockError, ProgramError
from ..base.nibbles import from_nibbles, to_nibbles
from ..hw.sim.tasks import in_room, of_room
from ..hw.versal.csim.tasks import SECONDS, NativeRun, run_region
from ..isa.overlays.tasks.overlay import checked_sizes
from ..isa.overlays.tasks.program import OffChipTensor, TaskProgram
from ..isa.overlays.tasks.values import DTYPES
from .tasks import checked_inputs

Array = npt.NDArray[Any]

FIRST_DRAWS = 1024
"""Calls of `data()` in a task instance for which a run is given bits at first."""
MOST_DRAWS = 1 << 24


@dataclass(frozen=True)
class NativeRegion:
    """A region in a program that was built. path: of the executable. number: of the region in it. program: the region's
    program. drawing: the numbers of the task instances that call `data()`. sizes: names of the sizes that each run
    gives to it, in order."""

    path: Path
    number: int
    program: TaskProgram
    drawing: Sequence[int] = ()
    sizes: Sequence[str] = ()


def run_native(
    region: NativeRegion,
    inputs: Mapping[str, Array] | None = None,
    seconds: float = SECONDS,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Array]:
    """Run a region, and return its outputs by name.

    inputs, outputs: as for `run_tasks`; calls of `data()` give what they give there. seconds: limit of the run by the
    wall clock. sizes: values of those that each run gives, by name; others have their largest value. Raises
    `TensorError` for inputs that do not fit, `DeadlockError`, `ProgramError` for values that a size does not have and
    for what fails in the run, with the line of the user's file, and `BoardError` beyond the limit.
    """
    program = region.program
    values = checked_sizes(program, sizes or {})
    given = checked_inputs(program, inputs, values)
    memories = [
        to_memory(in_room(given[t.name], t, values) if t.name in given else np.zeros(t.type.shape), t)
        for t in program.tensors
    ]
    scalars = [values[name] for name in region.sizes]
    count = FIRST_DRAWS if region.drawing else 0
    while True:
        drawn = [_drawn(program, shot, count) for shot in region.drawing]
        run = run_region(region.path, region.number, memories, drawn, seconds, scalars)
        if run.error.endswith("@draws") and count < MOST_DRAWS:
            count *= 16
            continue
        break
    _settle(program, run)
    stored = [(t, memory) for t, memory in zip(program.tensors, run.memories, strict=True) if t.output]
    return {t.name: of_room(from_memory(memory, t), t, values) for t, memory in stored}


def to_memory(value: Array, tensor: OffChipTensor) -> bytes:
    """Return the bytes of a tensor as C++ holds it, row by row, little-endian: `f16` and `bf16` take two an element,
    and two elements of `i4` or `u4` take one. value: an array of the tensor's shape, `f16` and `bf16` as float32."""
    dtype = tensor.type.dtype
    if BITS[dtype] == 4:
        return to_nibbles(value).tobytes()
    if dtype == "f16":
        return np.asarray(value, np.float16).tobytes()
    kept = np.ascontiguousarray(value, DTYPES[dtype])
    if dtype == "bf16":
        return (kept.view(np.uint32) >> np.uint32(16)).astype(np.uint16).tobytes()
    return kept.tobytes()


def from_memory(memory: bytes, tensor: OffChipTensor) -> Array:
    """Return what `to_memory` has written: an array of the tensor's shape, in the type in which a run keeps elements
    (`f16` and `bf16` as float32, `i4` as int8, `u4` as uint8). Raises `ValueError` for another number of bytes."""
    dtype, shape = tensor.type.dtype, tensor.type.shape
    if BITS[dtype] == 4:
        return from_nibbles(np.frombuffer(memory, np.uint8), dtype, prod(shape)).reshape(shape)
    if dtype == "f16":
        return np.frombuffer(memory, np.float16).astype(np.float32).reshape(shape)
    if dtype == "bf16":
        return (np.frombuffer(memory, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(shape)
    return np.frombuffer(memory, DTYPES[dtype]).reshape(shape).copy()


def _drawn(program: TaskProgram, shot: int, count: int) -> bytes:
    """The bits that the simulator's run draws in a task instance."""
    random = np.random.default_rng((program.seed, shot))
    return bytes(int(random.integers(2)) for _ in range(count))


def _settle(program: TaskProgram, run: NativeRun) -> None:
    """Raise what a run that is not complete stands for."""
    if run.waits:
        raise DeadlockError(lambda: _deadlock(program, run))
    if run.error:
        unit, _, what = run.error.partition(": ")
        if what.startswith("@"):
            line, _, what = what[1:].partition(" ")
            raise ProgramError(f"{program.file}:{line}: {unit}: {what}")
        raise ProgramError(f"{program.file}: {run.error}")
    for name, (_, written, taken) in run.streams.items():
        if written != taken:
            raise ProgramError(f"{program.file}: {written - taken} transfers are left on {name} at the end")


def _deadlock(program: TaskProgram, run: NativeRun) -> Deadlock:
    links = {link.label: link for link in program.links}
    packing = {stream.name: stream.packing for stream in program.streams}
    waiting = {w.process for w in run.waits}
    waits = []
    for w in run.waits:
        link = links[w.stream]
        peer = link.sink if w.put else link.source
        words, written, taken = run.streams[w.stream]
        depth = link.depth // packing[link.stream]
        held = (written - taken) // (words // depth)  # a transfer is one or several words
        what, place = "put" if w.put else "get", f"{program.file}:{w.line}"
        waits.append(Wait(w.process, 0, place, what, w.stream, 1, held, depth, peer, peer not in waiting, None, False))
    return Deadlock(tuple(waits), (), (), ())
