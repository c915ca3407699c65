"""`rsn.compile(..., boards=N)`: a model whose layers are cut into stages, each of which runs on a board of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from ...base.errors import ScheduleError
from ...hw.sim.machine import Run
from ...isa.program import Program
from ...rsnlib.summary import Modelled
from ...scheduler.build import Built
from ...scheduler.stages import stages
from ..boards.several import BoardName, check_boards
from .compiled import modelled_layers
from .file import ModelVariant, SavedProgram, write
from .following import FollowingModule, Recipe
from .hosted import HostedProgram
from .on_board import OnBoard
from .shared_bank import SharedBank
from .stage_figures import StageFigures, TriedShards, stage_figures, stage_table, tried_table

if TYPE_CHECKING:
    from ...rsnlib.capture import Interface
    from ...rsnlib.changes import Change
    from ...rsnlib.key_spans import RowsOfCaches
    from ...rsnlib.partition import Traced
    from ...rsnlib.pipeline import Pipeline
    from ...rsnlib.precision import Borders
    from ...rsnlib.verification import Verification, VerifiedCall, Visible
    from ...scheduler.graph import LayerGraph
    from ..runner import Runner


@dataclass(frozen=True, eq=False)
class BuiltStages:
    """A traced module that is cut into stages. traced: the module; its host part computes what no stage does. cuts:
    names of the activations behind whose layers it is cut. networks, built: the networks and programs of the stages, in
    order. tried: what each number of boards for a stage would give, if the number was chosen among several; empty if it
    was given."""

    traced: Traced
    cuts: tuple[str, ...]
    networks: tuple[LayerGraph, ...]
    built: tuple[Built, ...]
    tried: tuple[TriedShards, ...] = field(default=(), kw_only=True)

    @classmethod
    def of(cls, pipeline: Pipeline, traced: Traced, build: Callable[[int, Traced], Built] | None = None) -> Self:
        """Cut a traced module into stages, and build their programs. build: makes a program, in place of the pipeline,
        from the stage's number and the module with only the stage's part of the network. Raises as `Pipeline.cut` and
        `Pipeline.build`."""
        traced, cuts = pipeline.cut(traced)
        networks = stages(traced.network, cuts)
        if build is None:
            built = tuple(pipeline.build(network) for network in networks)
        else:
            built = tuple(build(i, replace(traced, network=network)) for i, network in enumerate(networks))
        names = tuple(network.layers[-1].y for network in networks[:-1])
        return cls(replace(traced, again=None), names, networks, built)

    @classmethod
    def again(
        cls,
        pipeline: Pipeline,
        cuts: tuple[str, ...],
        traced: Traced,
        build: Callable[[int, Traced], Built] | None = None,
    ) -> Self:
        """Cut a traced module behind given activations, as another program of its model is cut, and build the programs.
        cuts: names of the activations. build: as for `of`. If the model has changed so that it cannot be cut there, new
        places are chosen. Raises as `of`."""
        anew = replace(pipeline, cuts=None)
        try:
            made = cls.of(replace(pipeline, cuts=cuts), traced, build)
        except ScheduleError:
            return cls.of(anew, traced)
        return made if len(made.cuts) == len(cuts) else cls.of(anew, traced)

    @property
    def board_count(self) -> int:
        """How many boards it takes."""
        return len(self.built)

    @property
    def boards_each(self) -> int:
        """How many boards compute each stage."""
        return 1

    @property
    def board_numbers(self) -> tuple[int, ...]:
        """The number of the board of each program."""
        return tuple(range(len(self.built)))

    @property
    def size(self) -> str:
        """How many stages it is cut into, as text."""
        return f"{len(self.built)} stage{'s' * (len(self.built) > 1)}"

    def hosted(self, runners: Sequence[Runner]) -> HostedProgram:
        """Return an object that runs calls of the module with all programs. runners: of each program, in order, on its
        board."""
        return HostedProgram(self.traced.host, *runners)

    @property
    def figures(self) -> list[StageFigures]:
        """The figures of each stage, such as its time and its bytes. Raises as `stage_figures`."""
        return stage_figures([built.program for built in self.built], self.traced.host.columns)

    @property
    def in_turn(self) -> tuple[int, ...]:
        """The numbers of the programs whose times make up a call: they run one behind the other."""
        return tuple(range(len(self.built)))

    def explain(self) -> str:
        """Return a table of the stages, and one of the modules, as text. Times of modules are those of `in_turn`."""
        times = [modelled_layers(self.built[i].program, self.networks[i]) for i in self.in_turn]
        layers = {name: seconds for one in times for name, seconds in one.layers.items()}
        segments = {name: seconds for one in times for name, seconds in one.segments.items()}
        modelled = Modelled(sum(one.latency_s for one in times), layers, segments)
        return "\n".join([*self.table(), "", self.traced.explain(modelled)])

    def table(self) -> list[str]:
        """Return a table of the stages as lines. If the number of shards was chosen, a table says why."""
        return [*stage_table(self.figures, self.modules), *tried_table(self.tried, self.boards_each)]

    @property
    def modules(self) -> list[str]:
        """The first and the last module of each stage, as text."""
        return [f"{network.layers[0].place} to {network.layers[-1].place}" for network in self.networks]

    def part(self, sizes: tuple[int, ...] = (), verified: datetime | None = None) -> ModelVariant:
        """Return the stages as a part of a model file. sizes, verified: of `ModelVariant`."""
        host = self.traced.host
        return ModelVariant(sizes, tuple(SavedProgram(x.program, x.weights, host) for x in self.built), None, verified)


class CompiledStages(FollowingModule):
    """A module whose layers are cut into stages, each on a board of its own. Results are those of one board; if several
    boards compute a stage together (`BuiltShards`), they differ by the rounding of sums between boards.

    boards: where the stages run, one for each, or one for each shard of each. recipe, seen, borders, verification: as
    for `FollowingModule`. shared: the weights of the programs of each board, which it holds once.
    """

    def __init__(
        self,
        stages: BuiltStages,
        boards: Sequence[BoardName],
        recipe: Recipe | None = None,
        seen: int = 0,
        borders: Borders | None = None,
        shared: Sequence[SharedBank] | None = None,
        verification: Verification | None = None,
    ) -> None:
        super().__init__(recipe, seen, borders, verification)
        check_boards(boards, stages.board_count)
        self._stages = stages
        self._boards, self._banks = boards, [None] * len(boards) if shared is None else shared
        self._on_boards = self._placed_on(stages)
        self._hosted: HostedProgram
        self._placed: tuple[Built | None, ...] = ()
        self.last_run: Run | None = None
        """Time, traffic and utilization of the latest call's runs, one behind the other, without what links take; None
        before the first call."""
        self.visible: Visible | None = None
        """The rows that the masks of the latest call showed; None without masks."""

    def _placed_on(self, stages: BuiltStages) -> list[OnBoard]:
        return [OnBoard(self._boards[i], self._banks[i], self._turn) for i in stages.board_numbers]

    def step(self, rows: RowsOfCaches, *args: Any, **kwargs: Any) -> Any:
        """As `Compiled.step`."""
        return self.call_with(None, args, kwargs, rows)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], rows: RowsOfCaches | None) -> Any:
        returned = self._hosted.call(args, kwargs, rows)
        self.last_run, self.visible = self._hosted.last_run, self._hosted.visible
        return returned

    def _begun(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> VerifiedCall | None:
        # Sequences of stated lengths are not verified: PyTorch has no such calls of the module.
        return None if self._stages.traced.host.lengths else super()._begun(args, kwargs)

    def _take_over(self, change: Change) -> None:
        recipe, before = self._recipe, self._stages
        assert recipe is not None
        anew = replace(recipe.pipeline, boards=before.board_count, shards=before.boards_each, chooses_shards=False)
        stages = before.again(anew, before.cuts, recipe.trace(), self._rebuilt)
        for on_board in self._on_boards:
            on_board.changed()
        if stages.board_numbers != before.board_numbers:  # a model with other layers has other programs
            self.close()
            self._on_boards = self._placed_on(stages)
        self._stages = stages

    def _rebuilt(self, i: int, part: Traced) -> Built:
        """Return program i of the changed module. part: the module with its network alone."""
        recipe, before = self._recipe, self._stages.built
        assert recipe is not None
        return recipe.rebuild(before[i], part) if i < len(before) else recipe.build(part)

    def _open(self) -> None:
        for on_board, built in zip(self._on_boards, self._stages.built, strict=True):
            on_board.open(built)
        placed = tuple(on_board.placed for on_board in self._on_boards)
        if placed != self._placed:
            self._hosted = self._stages.hosted([x.runner for x in self._on_boards])
            self._placed = placed

    @property
    def _interface(self) -> Interface:
        return self._stages.traced.host.interface

    @property
    def _made(self) -> BuiltStages:
        return self._stages

    @property
    def stages(self) -> BuiltStages:
        """The stages of the model, compiled again if it has changed; raises as `at`."""
        with self._turn:
            self._follow()
            return self._stages

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs of the stages, in order; raises as `at`."""
        return tuple(built.program for built in self.stages.built)

    @property
    def depth(self) -> int:
        """About how many layers of a transformer the network has (`LayerGraph.depth`)."""
        return self._stages.traced.network.depth

    @property
    def shown_rows(self) -> list[Visible]:
        """The rows that the masks of the latest call showed: none, or one."""
        return [] if self.visible is None else [self.visible]

    def explain(self) -> str:
        """Return a table of the stages, with bytes, modelled time and traffic of each, and one of the modules, as text.
        Raises as `at`."""
        return self.stages.explain()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file (`.rsnmodel`) for `rsn.load`: the programs and weights of all stages, and the part
        that PyTorch runs. Raises as `Compiled.save`."""
        with self._turn:
            self._follow()
            write(path, [self.part()], None, self._borders)

    def part(self, sizes: tuple[int, ...] = (), *, in_bank: bool = False) -> ModelVariant:
        """Return this model as a part of a model file. sizes: those that it is for, in a shape family; () for a model
        alone. in_bank: False: programs as they were compiled. True: programs as they are on the boards, with weights at
        the addresses that all programs of a stage share. Raises as `at`; with `in_bank` also `BoardError`, because the
        boards are opened for that."""
        with self._turn:
            self._follow()
            verified = None if self._verification is None else self._verification.when(self._verified)
            if not in_bank:
                return self._stages.part(sizes, verified)
            self._open()
            placed = tuple(built for built in self._placed if built is not None)
            return replace(self._stages, built=placed).part(sizes, verified)

    @property
    def on_boards(self) -> list[tuple[int, Program]]:
        """The programs as the boards have them, each with the number of its board. Raises as `OnBoard.linked`."""
        pairs = zip(self._on_boards, self._stages.built, strict=True)
        linked = (on_board.linked(built).program for on_board, built in pairs)
        return list(zip(self._stages.board_numbers, linked, strict=True))

    def forget(self) -> None:
        """In a forked child: as for `FollowingModule`."""
        super().forget()
        for on_board in self._on_boards:
            on_board.turn = self._turn

    def close(self) -> None:
        """Release the boards for good: a call raises `BoardError` from then on."""
        for on_board in self._on_boards:
            on_board.close()

    def __repr__(self) -> str:
        network, programs = self._stages.traced.network, [built.program for built in self._stages.built]
        names = ", ".join(dict.fromkeys(program.overlay.name for program in programs))
        return (
            f"<rsn.CompiledStages: {len(network.layers)} segments, {network.size}, in {self._stages.size} on {names}>"
        )
