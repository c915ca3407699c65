"""A stage of a decoder from a file: its layers, with their caches, on a board of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from ...base.errors import BoardError, ContainerError, TensorError
from ...isa.layout import Array
from ...isa.program import Program, Role
from ...rsnlib.key_spans import RowsOfCaches
from ..boards.several import BoardName, check_boards
from ..closing import Closing
from ..model.file import ModelVariant, Saved, read, refuse_shards
from ..model.hosted import HostedProgram, ProgramOnBoard
from ..model.hosted_shards import HostedShards
from ..model.stage_calls import HostErrors
from ..runner import Runner
from .loaded import LogitsResult, SavedSlots, require_decoder_room, tensors_of
from .slots import CachedProgram, PromptProgram

if TYPE_CHECKING:
    import torch

    from ...hw.sim.machine import Run

ProgramKey = tuple[int, int, int]
"""A program of a decoder: the number of its part of the file, that of the set of slots, and its own in the part."""


class ProgramBeside(ProgramOnBoard, Protocol):
    """A program on the board of another shard."""

    def close(self) -> None:
        """Wait for its runs."""


Beside = Callable[[ProgramKey, int, Program], ProgramBeside]
"""Makes what runs a program of another shard, from its key, the number of its board, and the program."""

LOGITS = "logits"
"""The name of the logits of a program that ends before the last stage, among what goes to the next one. No activation
has it: the names of those say their layers."""


def load_decoder_stage(
    path: str | os.PathLike[str],
    number: int,
    *,
    groups: int = 1,
    board: BoardName = "sim",
    xclbin: str | os.PathLike[str] | None = None,
    shards: int = 1,
    beside: Beside | None = None,
) -> list[DecoderStage]:
    """Load a stage of a decoder that `Decoder.save` wrote, and open its board. Only its own weights are read.

    number: of the stage, from 0. groups: how many sets of slots the decoder has. Returns the stage once for each set;
    they share the weights on the board, and each has caches of its own there. They are not for several threads at once.
    board, xclbin: as for `rsn.load`. shards: how many boards compute each stage; this board is then the one of the
    first shard. beside: makes what runs programs on the boards of the other shards; None without shards. Raises as
    `rsn.host.generation.load`, and `ContainerError` for a stage that the file does not have, and for a model in shards
    without `beside`.
    """
    saved = _read(path, number * shards)
    if beside is None:
        refuse_shards(path, saved, "load_decoder_stage")
    if not 0 <= number < saved.stages:
        raise ContainerError(f"{path}: no stage {number}; it has {saved.stages}, numbered from 0")
    require_decoder_room(path, saved, groups)
    check_boards([board], 1)
    opened: list[_StageProgram] = []
    try:
        for key, part in _parts(saved, groups):
            opened.append(_StageProgram(part, number, board, xclbin, saved.check, key, beside))
        own, shared = opened[-groups:], opened[:-groups]
        return [DecoderStage(saved, program, shared, is_last=number == saved.stages - 1) for program in own]
    except BaseException as e:
        for program in opened:
            program.close()
        if isinstance(e, AttributeError | LookupError | TypeError | ValueError | TensorError):
            raise ContainerError(f"{path}: not a decoder that rsn can read: {type(e).__name__}: {e}") from e
        raise


def load_decoder_shard(
    path: str | os.PathLike[str],
    number: int,
    *,
    groups: int = 1,
    board: BoardName = "sim",
    xclbin: str | os.PathLike[str] | None = None,
) -> dict[ProgramKey, Runner]:
    """Open a board of a decoder in shards that is not the first board of its stage, and return what runs its programs.
    number: of the board, from 0. path, groups, board, xclbin, and what is raised: as for `load_decoder_stage`."""
    saved = _read(path, number)
    require_decoder_room(path, saved, groups)
    check_boards([board], 1)
    opened: dict[ProgramKey, Runner] = {}
    try:
        for key, part in _parts(saved, groups):
            for i, of in part.board_numbers.items():
                if of == number:
                    saved_program = part.on_machine[i]
                    opened[*key, i] = Runner(
                        saved_program.program, weights=saved_program.weights, board=board, xclbin=xclbin
                    )
    except BaseException:
        for runner in opened.values():
            runner.close()
        raise
    return opened


def _read(path: str | os.PathLike[str], board: int) -> Saved:
    saved = read(path, board)
    if saved.decoder is None:
        raise ContainerError(f"{path}: no decoder; Decoder.save writes one")
    return saved


def _parts(saved: Saved, groups: int) -> list[tuple[tuple[int, int], ModelVariant]]:
    """The parts of a decoder that a board holds, those of prompts first, then that of a step once for each set of
    slots. Each with its number in the file and that of the set."""
    prompts = [((number, 0), part) for number, part in enumerate(saved.parts) if number]
    return [*prompts, *(((0, group), saved.parts[0]) for group in range(groups))]


class _StageProgram(Closing):
    """What a stage has of a program. part: the program. number: of the stage, which may be behind those of the
    program. check: as `Saved.check`. key: of the part, as `_parts` has it. beside: as for `load_decoder_stage`."""

    def __init__(
        self,
        part: ModelVariant,
        number: int,
        board: BoardName,
        xclbin: Any,
        check: Callable[[Iterable[torch.Tensor]], None],
        key: tuple[int, int] = (0, 0),
        beside: Beside | None = None,
    ) -> None:
        self._ends = number == part.stages - 1
        self.passed: dict[str, Array] = {}
        """As `Slots.passed`."""
        self._hosted: HostedProgram | None = None
        self._gives = frozenset({LOGITS})
        self.takes = frozenset[str]()
        """The names of its arguments."""
        self._runners: list[Runner | ProgramBeside] = []
        if number >= part.stages:
            return
        programs = [program.program for program in part.on_machine.values()]
        numbers: list[list[int]] = [[] for _ in range(part.stages)]
        for one in part.steps:
            numbers[one.stage] += [i for i in one.programs if i is not None]
        made = {b.name: at for at, own in enumerate(numbers) for i in own for b in programs[i].with_role(Role.OUTPUT)}
        whole, ends = part.on_machine[0].host, part.stages - 1
        hosts = [
            whole.of_stage({b.name for i in own for b in programs[i].buffers}, made, at, at == ends)
            for at, own in enumerate(numbers)
        ]
        self.takes = frozenset(hosts[number].interface.signature.parameters)
        self._host = hosts[number]
        check(self._host.constants.values())
        for host, later in zip(hosts[number + 1 :], numbers[number + 1 :], strict=True):
            self._gives |= host.columns.keys() | {b.name for i in later for b in programs[i].with_role(Role.INPUT)}
        first, boards = numbers[number][0], part.board_numbers
        try:
            for i in numbers[number]:
                saved = part.on_machine[i]
                if boards[i] == number * part.shards:
                    self._runners.append(Runner(saved.program, weights=saved.weights, board=board, xclbin=xclbin))
                else:
                    assert beside is not None
                    self._runners.append(beside((*key, i), boards[i], saved.program))
        except BaseException:
            self.close()
            raise
        given: Any = {"programs": programs, "first": first}
        if part.rounds:
            own = [one.moved(-first) for one in part.rounds if one.stage == number]
            self._hosted = HostedShards(self._host, own, *self._runners, **given)
        else:
            self._hosted = HostedProgram(self._host, *self._runners, **given)

    def check(self, arguments: dict[str, Any]) -> None:
        """Raise `TensorError` for arguments of the model that the program does not take."""
        if self._hosted is not None:
            self._host.interface.bind((), self._own(arguments))

    def _own(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {name: x for name, x in tensors_of(arguments).items() if name in self.takes}

    def __call__(self, **arguments: Any) -> Any:
        return self.step(None, **arguments)

    def step(self, rows: RowsOfCaches | None, **arguments: Any) -> Any:
        """As `CachedProgram.step`. The result has logits if the program ends in this stage or before."""
        import torch

        if self._hosted is None:
            return LogitsResult(torch.from_numpy(self.passed[LOGITS]))
        with HostErrors():
            logits = self._hosted.call((), self._own(arguments), rows if self._host.rows_taken else None, self.passed)
        for name in self.passed.keys() - self._gives:
            del self.passed[name]
        if not self._ends:
            return LogitsResult(torch.zeros(len(arguments["input_ids"]), 1, 1))
        self.passed[LOGITS] = logits.numpy()
        return LogitsResult(logits)

    @property
    def last_run(self) -> Run | None:
        return None if self._hosted is None else self._hosted.last_run

    def close(self) -> None:
        for runner in self._runners:
            runner.close()


class DecoderStage(SavedSlots):
    """A stage of a decoder. The same calls are made of all stages, in order; the caller hands the attribute `passed` of
    each to the next one. Only the last stage returns logits; the numbers that others return mean nothing.

    saved: the file's content. step: the program of a step, which belongs to this object. prompts: the programs of
    prompts, which other sets of slots use too. is_last: no stage follows. Raises some `Exception`, of any class, for a
    wrong description, and for programs of other sizes.
    """

    def __init__(self, saved: Saved, step: _StageProgram, prompts: list[_StageProgram], *, is_last: bool) -> None:
        self._own, self.is_last = step, is_last
        super().__init__(saved, step.takes.union(*(prompt.takes for prompt in prompts)))
        self._prompts = dict(zip(self._prompt_programs(), prompts, strict=True))
        step.check(self._step_arguments({}))
        for prompt, program in self._prompts.items():
            program.check(self._example(prompt))
        self._closed = False

    def close(self) -> None:
        """Release the board. Further prompts and steps raise `BoardError`."""
        self._closed = True
        for program in (self._own, *self._prompts.values()):
            program.close()

    def _follow(self) -> None:
        if self._closed:
            raise BoardError("this decoder is closed")

    @property
    def _step(self) -> _StageProgram:
        return self._own

    def _prompt_program(self, wanted: PromptProgram) -> _StageProgram:
        return self._prompts[wanted]

    def _logits(self, program: CachedProgram, arguments: dict[str, Any], rows: RowsOfCaches | None = None) -> Any:
        assert isinstance(program, _StageProgram)
        program.passed, self.passed = self.passed, {}
        logits = super()._logits(program, arguments, rows)
        if not self.is_last:
            self.passed = program.passed
        return logits
