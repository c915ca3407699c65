"""Runs the C++ of dynamic programs on this computer, with the inputs and results of `rsn.streams.dynamic.run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..base.element_types import ElementType
from ..base.errors import ProgramError
from ..hw.versal.csim.tasks import SECONDS, NativeRun, build_regions, run_region
from ..isa.overlays.tasks.program import OffChipTensor
from ..isa.overlays.tasks.values import convert
from ..streams.dynamic.errors import StuckError, Waiting
from ..streams.dynamic.graph import Stream
from ..streams.dynamic.hls.emit import STEP, DynamicHls, HeldMemory, native_call
from ..streams.dynamic.hls.records import from_records, to_records
from ..streams.dynamic.memory import Tensor
from ..streams.dynamic.run import Arrivals
from ..streams.dynamic.tokens import Token
from ..streams.hls.native import HEADERS, native_main
from .native_tasks import from_memory, to_memory

Array = npt.NDArray[Any]
TokensOfInput: TypeAlias = "Sequence[Token] | Arrivals | str"

RESULT_WORDS = 1 << 16
"""Words of 32 bits for the tokens of a result, with which a run begins."""
MOST_RESULT_WORDS = 1 << 28
LARGER = "a result is larger than its memory"
"""What a run ends with where a result needs more (step_memory.h)."""


@dataclass(frozen=True)
class DynamicResults:
    """What a native run gave. tokens: of each named output, in order. tensors: each tensor off the chip after the run,
    an array of its shape."""

    tokens: Mapping[str, Sequence[Token]]
    tensors: Mapping[Tensor, Array]

    def tensor(self, tensor: Tensor) -> Array:
        """A tensor off the chip as it is after the run, an array of its shape. Raises `KeyError` for one that the
        program does not have."""
        return self.tensors[tensor]


def build_dynamic(programs: Sequence[DynamicHls], target: Path, optimize: str = "-O2") -> None:
    """Compile programs, whose names differ, to the executable `target`. optimize: an option of the compiler. Raises
    `BoardError` if there is no compiler, or if it refuses the text."""
    text = native_main([made.text for made in programs], [native_call(made) for made in programs])
    build_regions(text, (STEP, HEADERS), target, optimize)


def dynamic_memories(
    made: DynamicHls,
    inputs: Mapping[str, TokensOfInput],
    tensors: Mapping[Tensor, Array] | None = None,
    result_words: int = RESULT_WORDS,
) -> dict[HeldMemory, bytes]:
    """Return what lies in memory before a run: the bytes of each tensor and of the tokens of each input, and room for
    each result. inputs: tokens of each input by name, as text or not. tensors: values in place of those that the
    program states; None for none. result_words: room for the tokens of each result, in words of 32 bits. Raises
    `ProgramError` for missing and unknown inputs, for tensors without data that nothing writes, and for values that
    their type does not have."""
    program = made.program
    missing = [name for name in program.inputs if name not in inputs]
    unknown = [name for name in inputs if name not in program.inputs]
    if missing or unknown:
        raise ProgramError(f"{made.name}: inputs without tokens: {missing}; tokens of no input: {unknown}")
    written = {a.memory for a in made.arguments if a.written}
    memories: dict[HeldMemory, bytes] = {}
    for memory in made.memories:
        held = memory.held
        if isinstance(held, Tensor):
            data = (tensors or {}).get(held, held.data)
            if data is None and memory not in written:
                raise ProgramError(f"{made.name}: {held.name} has no values, and nothing writes it")
            values = np.zeros(held.shape) if data is None else data
            kept = convert(values, ElementType(held.dtype, held.shape))
            memories[memory] = bytes(to_memory(kept, _off_chip(held)))
        elif memory.is_result:
            memories[memory] = bytes(4 * result_words)
        else:
            given = inputs[held.name]
            given = given.tokens if isinstance(given, Arrivals) else given
            tokens = program.tokens(given, held.name) if isinstance(given, str) else given
            try:
                memories[memory] = to_records(tokens, held.type.data).tobytes()
            except ValueError as error:
                raise ProgramError(f"{made.name}: input {held.name}: {error}") from error
    return memories


def run_native_dynamic(
    path: Path,
    number: int,
    made: DynamicHls,
    inputs: Mapping[str, TokensOfInput] | None = None,
    seconds: float = SECONDS,
    tensors: Mapping[Tensor, Array] | None = None,
    result_words: int = RESULT_WORDS,
) -> DynamicResults:
    """Run one of the programs that `build_dynamic` compiled, and return what it gave. path: the executable. number: of
    the program in it. made: the program.

    inputs: tokens of each input by name, as text or as tokens, whose times are ignored; None for a program without
    inputs. seconds: limit of the run by the wall clock. tensors: values in place of those that the program states; None
    for none. result_words: room for the tokens of each result, in words of 32 bits; a run that needs more begins again
    with more. Raises `ProgramError` for what `dynamic_memories` refuses and for what fails in the run, with the line of
    the operator, `StuckError` for a deadlock, and `BoardError` beyond the limit.
    """
    while True:
        memories = dynamic_memories(made, inputs or {}, tensors, result_words)
        run = run_region(path.resolve(), number, list(memories.values()), seconds=seconds)
        if not run.error.endswith(LARGER) or result_words >= MOST_RESULT_WORDS:
            break
        result_words *= 16
    _settle(made, run)
    after = dict(zip(memories, run.memories, strict=True))
    found: dict[Stream, list[Token]] = {}
    after_run: dict[Tensor, Array] = {}
    for memory, content in after.items():
        if isinstance(memory.held, Tensor):
            after_run[memory.held] = from_memory(content, _off_chip(memory.held))
        elif memory.is_result:
            found[memory.held] = from_records(np.frombuffer(content, np.uint32), memory.held.type.data)
    return DynamicResults({name: found[stream] for name, stream in made.program.outputs.items()}, after_run)


def written_tensors(made: DynamicHls, done: DynamicResults) -> dict[str, bytes]:
    """Return the bytes of each tensor that a program has written, as C++ holds them (`to_memory`), by its name in
    `DynamicHls.memories`. done: the run."""
    written = {a.memory for a in made.arguments if a.written}
    found = {}
    for memory, name in made.memories.items():
        if memory in written and isinstance(memory.held, Tensor):
            found[name] = bytes(to_memory(done.tensor(memory.held), _off_chip(memory.held)))
    return found


def _off_chip(tensor: Tensor) -> OffChipTensor:
    return OffChipTensor(tensor.name, ElementType(tensor.dtype, tensor.shape), input=True, output=True)


def _settle(made: DynamicHls, run: NativeRun) -> None:
    """Raise what a run that is not complete stands for."""
    nodes = made.program.nodes
    if run.error:
        unit, _, what = run.error.partition(": ")
        number, _, text = what.removeprefix("@").partition(" ")
        if what.startswith("@") and int(number) >= 0:
            raise ProgramError(f"{nodes[int(number)]}: {text}")
        raise ProgramError(f"{made.name}: {unit}: {text if what.startswith('@') else what}")
    where = {node.name: node.where for node in nodes}
    waiting = []
    for wait in run.waits:
        ends, (_, written, taken) = made.fifos[wait.stream], run.streams[wait.stream]
        other = ends.reader if wait.put else ends.writer
        waiting.append(
            Waiting(wait.process, where.get(wait.process, ""), wait.stream, other, written - taken, ends.depth)
        )
    if waiting or not run.memories:
        raise StuckError(waiting)
    for name, (_, written, taken) in run.streams.items():
        if written != taken:
            raise ProgramError(f"{made.name}: {written - taken} tokens are left over on {name}")
