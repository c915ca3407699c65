"""A compiled model: what `rsn.compile` returns."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ...assembler import container
from ...base.deferred import deferred
from ...base.durations import duration
from ...base.errors import RsnError, TensorError, UnsupportedError
from ...hw.sim.explain import Explanation, explain, seconds_of, windows
from ...hw.sim.machine import Machine, Run, launch_seconds
from ...isa.overlays.xnn8.weight_bits import with_four_bits
from ...isa.program import Program, Role
from ...isa.statistics import count
from ...rsnlib.experts.choice import EXECUTOR
from ...rsnlib.summary import Modelled
from ...scheduler.bounds import bounds
from ...scheduler.build import Built
from ...scheduler.schedule import Schedule
from ..boards.several import BoardName
from ..tensors import save_tensors
from .compare import Compared, ComparedModel, compare, show
from .experts import PatchedExperts
from .file import ModelVariant, SavedProgram, write
from .following import FollowingModule, Recipe
from .hosted import HostedProgram
from .on_board import OnBoard
from .shared_bank import SharedBank

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...rsnlib import capture, static_cache
    from ...rsnlib import quality as qualities
    from ...rsnlib.capture import Interface
    from ...rsnlib.changes import Change
    from ...rsnlib.key_spans import RowsOfCaches
    from ...rsnlib.partition import Traced
    from ...rsnlib.precision import Borders
    from ...rsnlib.verification import Verification, VerifiedCall, Visible
    from ...scheduler.graph import LayerGraph
else:
    capture = deferred("rsn.rsnlib.capture")
    qualities = deferred("rsn.rsnlib.quality")
    static_cache = deferred("rsn.rsnlib.static_cache")


class Compiled(FollowingModule):
    """A module that is one program of the machine, with what the host computes before and behind it.

    traced, built: the module as a network and a host part, and its program. board: where it runs. recipe: how to
    compile the model again; without one, changes of the model are not followed. seen: the model's change count when it
    was traced. borders: data types of arguments and results of a model in half precision. shared: the weights of the
    programs of this model, which the board holds once; None for a program alone. verification: compares calls with the
    model; None leaves that to the caller. Raises `BoardError` if a board other than the simulator cannot be opened.
    """

    def __init__(
        self,
        traced: Traced,
        built: Built,
        board: BoardName,
        recipe: Recipe | None = None,
        seen: int = 0,
        borders: Borders | None = None,
        shared: SharedBank | None = None,
        verification: Verification | None = None,
    ) -> None:
        self.last_run: Run | None = None
        """Time, traffic and utilization of the latest call's run; None before the first call."""
        super().__init__(recipe, seen, borders, verification)
        self._traced, self._built = self._kept(traced), built
        self.visible: Visible | None = None
        """The rows that the masks of the latest call showed; None without masks."""
        self._simulated: Machine | None = None
        self._on_board = OnBoard(board, shared, self._turn)
        self._hosted: HostedProgram
        if board != "sim":  # the first call opens the simulator, which anyone can use at any time
            self._open()

    def step(self, rows: RowsOfCaches, *args: Any, **kwargs: Any) -> Any:
        """The same as a call, of a model with caches, but the new row of sequence b becomes row rows[b] of its caches,
        whichever row the model computes. The attention mask must say what each sequence sees. For caches with different
        numbers of rows, `rows` has the rows by these numbers: of caches of n rows, rows[n][b].

        Raises what a call raises, and `UnsupportedError` for a model that does not append one row to caches.
        """
        return self.call_with(None, args, kwargs, rows)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], rows: RowsOfCaches | None) -> Any:
        returned = self._hosted.call(args, kwargs, rows)
        self.last_run, self.visible = self._hosted.last_run, self._hosted.visible
        return returned

    def _begun(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> VerifiedCall | None:
        # Sequences of stated lengths are not verified: PyTorch has no such calls of the module.
        return None if self._traced.host.lengths else super()._begun(args, kwargs)

    @property
    def _interface(self) -> Interface:
        return self._traced.host.interface

    @property
    def _made(self) -> Built:
        return self._built

    @property
    def _verified(self) -> Built | None:
        return self._on_board.placed

    @property
    def shown_rows(self) -> list[Visible]:
        """The rows that the masks of the latest call showed: one `Visible`, or none for a model without masks."""
        return [] if self.visible is None else [self.visible]

    @property
    def depth(self) -> int:
        """About how many layers of a transformer the network has (`LayerGraph.depth`)."""
        return self._traced.network.depth

    def shown_layers(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return what `compare` finds in a call with these arguments, as text; empty where it cannot compare."""
        try:
            rows = self.compare(*args, **kwargs)
        except RsnError:
            return ""
        return f"the layers, each from what PyTorch computes for what rsn took it for:\n{show(rows)}"

    def _take_over(self, change: Change) -> None:
        recipe = self._recipe
        assert recipe is not None
        graph = recipe.followed.graphs.get(self) if change == change.NUMBERS else None
        traced = recipe.trace_again(graph)
        built = recipe.rebuild(self._built, traced)
        self._on_board.changed()
        self._traced, self._built, self._simulated = self._kept(traced), built, None

    def _open(self) -> None:
        before = self._on_board.placed
        self._on_board.open(self._built)
        if self._on_board.placed is not before:
            self._hosted = HostedProgram(self._traced.host, self._on_board.runner)

    @property
    def on_boards(self) -> list[tuple[int, Program]]:
        """The program as the board has it, in a list of one pair with the number of the board, 0. Raises as
        `OnBoard.linked`."""
        return [(0, self._on_board.linked(self._built).program)]

    def forget(self) -> None:
        """In a forked child: as for `FollowingModule`."""
        super().forget()
        self._on_board.turn = self._turn

    def _kept(self, traced: Traced) -> Traced:
        """Return the trace without the function that traces its graph again. That function holds the model's weights,
        so it is kept with the followed model and dies with it."""
        if self._recipe is not None and traced.again is not None:
            self._recipe.followed.graphs[self] = traced.again
        return replace(traced, again=None)

    def _now(self) -> Built:
        with self._turn:
            self._follow()
            return self._built

    @property
    def built(self) -> Built:
        """The program with its schedule and weights, compiled again if the model has changed; raises as `at`."""
        return self._now()

    @property
    def program(self) -> Program:
        """The program of the model as it is now, compiled again if the model has changed; raises as `at`."""
        return self._now().program

    @property
    def weights(self) -> Mapping[str, Any]:
        """The packed weights by buffer name: flat float32, (elements of the buffer,), in memory order. Raises as
        `at`."""
        return self._now().weights

    @property
    def experts(self) -> tuple[PatchedExperts, ...]:
        """The layers of experts whose programs the host makes for each call, in order; `last_run` of each is of
        the latest call. Empty unless compiled with `experts="patched"`."""
        self._now()
        host = self._traced.host
        found = (node.meta.get(EXECUTOR) for node in (*host.before, *host.after))
        return tuple(x for x in found if isinstance(x, PatchedExperts))

    @property
    def schedule(self) -> Schedule:
        """The schedule of the program; for `best`, the one that the search chose. Raises as `at`."""
        return self._now().chosen.schedule

    def explain(self) -> str:
        """Return a table, as text, of the modules: where each runs, why, and its share of the FLOPs and of the modelled
        time. Raises as `at`."""
        with self._turn:
            return self._traced.explain(self.modelled_layers())

    def modelled_layers(self) -> Modelled:
        """Return the modelled times of the program, as the function of this name does. Raises as `at`."""
        machine = self._machine()
        return modelled_layers(machine.program, self._traced.network, machine)

    @property
    def modelled(self) -> Explanation:
        """The modelled latency of the program, in seconds, and its explanation, from the simulator, with run-time
        parameters at their defaults. Raises as `at`."""
        return explain(self._machine())

    def latency_at(self, **settings: float) -> float:
        """Return the modelled latency in seconds on a machine with other rates or depths.

        settings: by their names in `rsn overlay`, for example `latency_at(ddr_read_gbs=42)`. The program stays the
        same. Raises `ProgramError` for unknown names and impossible values, `DeadlockError` if the program deadlocks on
        that machine, and as `at`.
        """
        machine = self._machine()
        overlay = self._built.program.overlay.with_rates(**settings)
        return machine.plan.run(overlay).latency + launch_seconds(overlay)

    def _machine(self) -> Machine:
        with self._turn:
            self._follow()
            if self._simulated is None:
                self._simulated = Machine(self._built.program)
            return self._simulated

    @overload
    def compare(
        self, *args: Any, reference: nn.Module, perplexity_of: Tensor | None = None, **kwargs: Any
    ) -> ComparedModel: ...
    @overload
    def compare(
        self, *args: Any, reference: None = None, perplexity_of: None = None, **kwargs: Any
    ) -> list[Compared]: ...
    def compare(
        self, *args: Any, reference: nn.Module | None = None, perplexity_of: Tensor | None = None, **kwargs: Any
    ) -> list[Compared] | ComparedModel:
        """Run the program on the simulator and compare each segment with PyTorch. Arguments as for a call. Raises what
        a call raises, and `UnsupportedError` for a program that keeps caches between calls.

        reference: the module in float32 that the model was quantised from. The result then also tells what quantisation
        costs, and what the machine adds, in the rows that masks show; this takes a call. perplexity_of: tokens of this
        call, as for `rsn.quality`; `TensorError` without a reference. Raises then also what `rsn.quality` raises, and
        `UnsupportedError` for a reference that is no module in eval mode, for a program with `lengths`, and for a model
        that writes to its arguments. An argument of the model that has one of these two names is given by position.
        """
        if reference is not None:
            return self._compared_with(reference, perplexity_of, args, kwargs)
        if perplexity_of is not None:
            raise TensorError("perplexity_of: only with a reference")
        with self._turn:
            built = self._now()
            if self._traced.network.states:
                raise UnsupportedError(
                    "compare: a program that keeps caches between calls; compare the results of calls"
                )
            if self._borders is not None:
                args, kwargs = self._borders.widened(self._interface.signature, args, kwargs)
            inputs, spans, _ = self._traced.host.prologue(*args, **kwargs)
            return compare(built.program, built.weights, self._traced.network, inputs, spans)

    def _compared_with(
        self, reference: nn.Module, perplexity_of: Tensor | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ComparedModel:
        if self._recipe is None:
            raise UnsupportedError("compare: this program does not know its model; compile the model with rsn.compile")
        segments = self.compare(*args, **kwargs)
        if self._traced.host.interface.written:
            raise UnsupportedError("compare: a model that writes to its arguments; each call would see other ones")
        if self._traced.host.lengths:
            raise UnsupportedError("compare: a program with lengths; PyTorch computes the rows beyond them as well")
        followed = self._recipe.followed
        model = followed.module if self._borders is None else followed.original
        models = (self, model, capture.module_of(reference))
        compiled, quantised, wanted = (partial(each, *args, **kwargs) for each in models)
        return ComparedModel(
            segments, *qualities.quality_in_steps(compiled, quantised, wanted, perplexity_of, lambda: self.visible)
        )

    def __repr__(self) -> str:
        network, program = self._traced.network, self._built.program
        sizes = count(program)
        return (
            f"<rsn.Compiled: {len(network.layers)} segments, {network.size}, on "
            f"{program.overlay.name}, {sizes['mops']['total']} mOPs, {sizes['bytes']['total']} bytes>"
        )

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        e, program, network = self.modelled, self._built.program, self._traced.network
        sizes = count(program)
        facts = {
            "network": f"{len(network.layers)} segments, {network.size}",
            "overlay": program.overlay.name,
            "program": f"{sizes['mops']['total']} mOPs in {sizes['packets']['total']} packets, "
            f"{sizes['bytes']['total']} bytes",
            "weights": f"{sum(4 * b.size for b in program.with_role(Role.WEIGHT)) / 1e6:.1f} MB",
            "modelled latency": duration(e.latency_s),
        }
        rows = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in facts.items())
        return (
            f"<table>{rows}</table><details><summary>where the time goes</summary><pre>{escape(str(e))}</pre></details>"
        )

    def save(self, path: str | os.PathLike[str], weights: str | os.PathLike[str] | None = None) -> None:
        """Write the model to a file (`.rsnmodel`) for `rsn.load`: its program, its weights, and the part that PyTorch
        runs.

        With `weights`, write the program (`.bin`) to `path` and the packed weights (`.safetensors`) to `weights`, for
        `rsn.Runner`. Raises `UnsupportedError`, naming the operator, if the host part cannot be written, `TensorError`
        for a path of weights that is not one of tensors, and `OSError` if a file cannot be written.
        """
        with self._turn:
            built = self._now()
            if weights is None:
                write(path, [self.part()], None, self._borders)
                return
        save_tensors(weights, built.weights, packed=True)
        container.write(built.program, Path(path))

    def part(self, sizes: tuple[int, ...] = (), *, in_bank: bool = False) -> ModelVariant:
        """Return this program as a part of a model file. sizes: those that it is for, in a shape family; () for a
        program alone. in_bank: as for `saved`. Raises as `saved`."""
        with self._turn:
            program = self.saved(in_bank=in_bank)
            verified = None if self._verification is None else self._verification.when(self._on_board.placed)
            return ModelVariant(sizes, (program,), None, verified)

    def saved(self, *, in_bank: bool = False) -> SavedProgram:
        """Return this program, its weights and its host part, for a model file. in_bank: False: the program as it was
        compiled, with weights at addresses of its own. True: the program as it is on the board, with weights at the
        addresses that all programs of the model share. Raises as `at`; with `in_bank` also `BoardError`, because the
        board is opened for that."""
        with self._turn:
            built = self._now()
            if in_bank:
                self._open()
                assert self._on_board.placed is not None
                built = self._on_board.placed
            return SavedProgram(built.program, built.weights, self._traced.host)

    def close(self) -> None:
        """Release the board for good: a call raises `BoardError` from then on."""
        self._on_board.close()


def modelled_layers(program: Program, network: LayerGraph, machine: Machine | None = None) -> Modelled:
    """Return the modelled latency of a program in seconds, launch included, the seconds of each layer of its network
    and of each segment, the bounds of these times, and which weights have 4 bits; with run-time parameters at their
    defaults.

    network: the one that the program was built from. machine: the program's simulator, made anew by default. Raises as
    `Machine`, such as `DeadlockError`.
    """
    machine = machine or Machine(program)
    latency = machine.timing.latency + launch_seconds(program.overlay)
    return Modelled(
        latency,
        seconds_of(machine, {layer.target for layer in network.layers}),
        windows(machine),
        bounds(network, program.overlay, program.segments),
        with_four_bits(program, machine.expansion) if program.overlay.integers else None,
    )
