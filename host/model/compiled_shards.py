"""`rsn.compile(..., boards=N, shards=S)`: a model of which S boards compute each stage together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Self

from ...base.errors import UnsupportedError
from ...scheduler.build import Built
from ...scheduler.graph import AttentionLayer
from ...scheduler.memory import RoomError
from ...scheduler.shards import rounds
from ...scheduler.stages import stages
from .compiled_stages import BuiltStages
from .file import ModelVariant, SavedProgram
from .hosted_shards import HostedShards, ShardRound, board_numbers
from .stage_figures import StageFigures, TriedShards, best_shards, shard_figures, tried_shards

if TYPE_CHECKING:
    from ...rsnlib.partition import Traced
    from ...rsnlib.pipeline import Pipeline
    from ...scheduler.graph import LayerGraph
    from ..runner import Runner

LARGEST = 16
"""The most shards that are tried of a model without attentions, if boards are not counted."""


@dataclass(frozen=True, eq=False)
class BuiltShards(BuiltStages):
    """A traced module that is cut into stages and shards. networks, built: the networks and programs of all rounds and
    shards, in order. rounds: which of the programs run together. shards: how many boards compute each stage. parts: the
    networks of the stages."""

    rounds: tuple[ShardRound, ...]
    shards: int
    parts: tuple[LayerGraph, ...]

    @classmethod
    def of(cls, pipeline: Pipeline, traced: Traced, build: Callable[[int, Traced], Built] | None = None) -> Self:
        """Cut a traced module into stages and shards, and build their programs. build: makes a program, in place of the
        pipeline, from its number and the module with only its part of the network. Raises as `Pipeline.cut` and
        `Pipeline.build`."""
        traced, cuts = pipeline.cut(traced)
        parts = stages(traced.network, cuts)
        networks: list[LayerGraph] = []
        made: list[ShardRound] = []
        for stage, part in enumerate(parts):
            for one in rounds(part, pipeline.shards):
                numbers = []
                for network in one.networks:
                    numbers.append(None if network is None else len(networks))
                    networks += [] if network is None else [network]
                made.append(ShardRound(stage, tuple(numbers), one.exchange))
        built: list[Built] = []
        for i, network in enumerate(networks):
            if build is not None:
                built.append(build(i, replace(traced, network=network)))
            elif any(i in one.programs[2:] for one in made):  # mostly the program before, with other weights
                built.append(pipeline.rebuild(built[-1], network))
            else:
                built.append(pipeline.build(network))
        # The host applies scale and shift where no program does.
        applied = {out.name for network in networks for out in network.outputs if out.scale is not None}
        affine = {
            out.name: (out.scale, out.shift)
            for out in traced.network.outputs
            if out.name not in applied and not (out.scale is None and out.shift is None)
        }
        traced = replace(traced, host=replace(traced.host, affine=affine), again=None)
        names = tuple(part.layers[-1].y for part in parts[:-1])
        return cls(traced, names, tuple(networks), tuple(built), tuple(made), pipeline.shards, parts)

    @property
    def board_count(self) -> int:
        """How many boards it takes."""
        return len(self.parts) * self.shards

    @property
    def boards_each(self) -> int:
        """How many boards compute each stage."""
        return self.shards

    @property
    def board_numbers(self) -> tuple[int, ...]:
        """The number of the board of each program: the shards of the first stage come first."""
        return board_numbers(self.rounds)

    @property
    def size(self) -> str:
        """How many stages it is cut into, and of how many shards each is, as text."""
        return f"{len(self.parts)} stage{'s' * (len(self.parts) > 1)} of {self.shards} shards"

    def hosted(self, runners: Sequence[Runner]) -> HostedShards:
        """Return an object that runs calls of the module with all programs. runners: of each program, in order, on its
        board."""
        return HostedShards(self.traced.host, self.rounds, *runners)

    @property
    def figures(self) -> list[StageFigures]:
        """The figures of each stage, such as its time and the bytes of its fullest board. Raises as `shard_figures`."""
        return shard_figures([built.program for built in self.built], self.rounds, self.traced.host.columns)

    @property
    def in_turn(self) -> tuple[int, ...]:
        """The numbers of the programs of the first shards. They run one behind the other; the programs of other shards
        run at the same time."""
        return tuple(number for one in self.rounds if (number := one.programs[0]) is not None)

    @property
    def modules(self) -> list[str]:
        """The first and the last module of each stage, as text."""
        return [f"{part.layers[0].place} to {part.layers[-1].place}" for part in self.parts]

    def part(self, sizes: tuple[int, ...] = (), verified: datetime | None = None) -> ModelVariant:
        """Return the programs as a part of a model file. sizes, verified: of `ModelVariant`."""
        host = self.traced.host
        programs = tuple(SavedProgram(x.program, x.weights, host) for x in self.built)
        return ModelVariant(sizes, programs, None, verified, self.rounds)


def built_stages(pipeline: Pipeline, traced: Traced, cuts: tuple[str, ...] | None = None) -> BuiltStages:
    """Cut a traced module into the stages and shards of a pipeline, and build its programs. cuts: names of the
    activations behind which another program of the same model is cut, to cut this one there too; None to choose.

    If the pipeline chooses the number of shards, it tries all numbers that the boards and the heads allow, without a
    search for schedules; `best_shards` says which is taken. Raises as `BuiltStages.of` and `BuiltShards.of`; if all
    numbers are refused, `RoomError` or `UnsupportedError` with all reasons.
    """
    if not pipeline.chooses_shards:
        made = BuiltStages if pipeline.shards == 1 else BuiltShards
        return made.of(pipeline, traced) if cuts is None else made.again(pipeline, cuts, traced)
    best: BuiltStages | None = None
    tried: list[TriedShards] = []
    room: RoomError | None = None
    for shards in _shards_of(pipeline, traced):
        if best is not None and pipeline.boards is None and shards > best.board_count:
            break  # it takes more boards
        own = replace(pipeline.without_search, shards=shards, chooses_shards=False)
        try:
            built = built_stages(own, traced)
        except UnsupportedError as error:
            room = error if isinstance(error, RoomError) else room
            tried.append(TriedShards(shards, refused=str(error)))
            continue
        tried.append(tried_shards(shards, built.figures))
        if best_shards(tried) is tried[-1]:
            best = built
    if best is None:
        kind, reasons = RoomError if room else UnsupportedError, dict.fromkeys(x.refused for x in tried)
        if len(reasons) == 1:
            raise kind(*reasons)
        told = "; ".join(f"shards={x.shards}: {x.refused}" for x in tried)
        raise kind(f"shards=auto: no number of shards fits: {told}")
    if pipeline.without_search is not pipeline:
        chosen = replace(pipeline, shards=best.boards_each, chooses_shards=False)
        best = built_stages(chosen, traced)
    return replace(best, tried=tuple(tried))


def _shards_of(pipeline: Pipeline, traced: Traced) -> list[int]:
    """The numbers of shards that may be of use, ascending: divisors of the number of boards; of as few boards as
    possible, those up to the most heads of an attention."""
    if pipeline.boards is not None:
        return [n for n in range(1, pipeline.boards + 1) if pipeline.boards % n == 0]
    heads = [layer.heads for layer in traced.network.layers if isinstance(layer, AttentionLayer)]
    return [*range(1, max(heads, default=LARGEST) + 1)]
