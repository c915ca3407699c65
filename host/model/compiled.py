"""A compiled model: what `rsn.compile` gives back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ...base.durations import duration
from ...base.errors import ScheduleError, TensorError, UnsupportedError
from ...hw.sim.machine import Run
from ...isa.program import Program, Role
from ...isa.statistics import count
from ...scheduler.build import Built
from ...scheduler.schedule import Schedule
from ..closing import Closing
from ..forks import forget_in_children
from ..runner import Runner
from ..tensors import save_tensors
from .family import HELD

if TYPE_CHECKING:
    import torch

    from ...hw.sim.explain import Explanation
    from ...hw.sim.machine import Machine
    from ...rsnlib.changes import Followed
    from ...rsnlib.partition import Traced
    from ...rsnlib.pipeline import Pipeline
    from ...rsnlib.pool import Pool
    from ...rsnlib.precision import Borders
    from ...rsnlib.summary import Modelled
    from ...scheduler.graph import LayerGraph
    from .compare import Compared
    from .file import Part


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a program was made of a model, to make it again when the model has changed."""

    followed: Followed
    example: tuple[Any, ...] | dict[str, Any]
    pipeline: Pipeline
    config: Any = None
    """The model's, which may be gone when it is asked for."""
    pool: Pool | None = None
    """Of the family's weights, where the program is one of several."""

    def trace(self) -> Traced:
        """The model as it is now. Raises as `Pipeline.trace`."""
        return self._shared(self.pipeline.trace(self.followed.module, self.example, again=True))

    def trace_again(self, graph: Callable[[], Traced] | None) -> Traced:
        """The same graph with other weights."""
        try:
            if graph is not None:
                return self._shared(self.pipeline.with_lengths(graph(), self.example))
        except (UnsupportedError, TensorError):  # with these numbers the graph as it was rewritten does not do
            pass
        return self.trace()

    def _shared(self, traced: Traced) -> Traced:
        return traced if self.pool is None else self.pool.shared(traced)

    def build(self, traced: Traced) -> Built:
        """Raises as `Pipeline.build`."""
        return self.pipeline.build(traced.network)

    def rebuild(self, built: Built, traced: Traced) -> Built:
        """With the schedule that was chosen, where the network still has its segments."""
        try:
            return self.pipeline.rebuild(built, traced.network)
        except ScheduleError:
            return self.build(traced)


class Compiled(Closing):
    """A module whose encoder stack runs on the machine. Call it as the module; it returns what the module returns.

    It follows the model that it was compiled from: each call looks whether parameters, buffers, submodules, attributes
    or hooks have changed, or the mode, and takes over what has (docs/models.md, "When the model changes"). Calls take
    turns, whatever threads they come from.
    """

    def __init__(
        self,
        traced: Traced,
        built: Built,
        board: str,
        recipe: Recipe | None = None,
        seen: int = 0,
        borders: Borders | None = None,
    ) -> None:
        """recipe: without one, no model is followed. seen: how often the model had changed when it was traced. borders:
        of a model whose weights are in half precision."""
        self.last_run: Run | None = None
        """What the most recent call took on the machine."""
        self._recipe, self._seen, self._borders = recipe, seen, borders
        self._traced, self._built, self._board = self._kept(traced), built, board
        self._turn = threading.RLock()
        self._simulated: Machine | None = None
        self._runner = Runner(built.program, weights=built.weights, board=board)
        forget_in_children(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Host part, machine, host part. Raises `TensorError` for arguments that differ from the example's in shape or
        dtype, or for an attention mask that is no prefix; and as `rsn.compile` where the model has changed to what
        cannot be compiled."""
        return self.call_with(None, args, kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The same as a call, under the name that a module has for it."""
        return self(*args, **kwargs)

    def call_with(self, seen: int | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As a call. seen: how often the model has changed, where that was just looked at."""
        with self._turn:
            self._follow(seen)
            args, kwargs = self._widened(args, kwargs)
            inputs, lengths, state = self._traced.host.prologue(*args, **kwargs)
            named = {} if lengths is None else {f"len[{i}]": int(n) for i, n in enumerate(lengths)}
            result = self._runner.run(inputs, named)
            self.last_run = result.run
            returned = self._traced.host.epilogue(result.outputs, state)
            return returned if self._borders is None else self._borders.narrowed(returned)

    def _widened(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """In float32 what is given in half precision."""
        if self._borders is None:
            return args, kwargs
        return self._borders.widened(self._traced.host.interface.signature, args, kwargs)

    def refresh(self) -> None:
        """Compile the model as it is now: for changes that cannot be seen, such as writes through NumPy. Raises as
        `rsn.compile`."""
        if self._recipe is None:
            return
        self._recipe.followed.changed()  # raises where the model is gone
        with self._turn:
            self._follow()

    def _follow(self, seen: int | None = None) -> None:
        """Take over what has changed in the model. Where that fails, the next call tries again."""
        recipe = self._recipe
        if recipe is None:
            return
        seen = recipe.followed.look() if seen is None else seen
        change = recipe.followed.change_since(self._seen)
        if not change:
            return
        numbers = change == change.NUMBERS
        graph = recipe.followed.graphs.get(self) if numbers else None
        traced = recipe.trace_again(graph)
        built = recipe.rebuild(self._built, traced)
        self._runner.close()  # a board is for one
        self._runner = Runner(built.program, weights=built.weights, board=self._board)
        self._traced, self._built, self._seen, self._simulated = self._kept(traced), built, seen, None

    def _kept(self, traced: Traced) -> Traced:
        """Without the graph that it could be traced again from: that holds the model's weights, and goes with it."""
        if self._recipe is not None and traced.again is not None:
            self._recipe.followed.graphs[self] = traced.again
        return replace(traced, again=None)

    def _now(self) -> Built:
        with self._turn:
            self._follow()
            return self._built

    @property
    def program(self) -> Program:
        return self._now().program

    @property
    def weights(self) -> Mapping[str, Any]:
        """By buffer name, as they lie in LPDDR."""
        return self._now().weights

    @property
    def device(self) -> torch.device:
        """Where arguments and results are: the CPU."""
        import torch

        return torch.device("cpu")

    @property
    def config(self) -> Any:
        """The model's, where it has one. Raises `AttributeError` otherwise."""
        if self._recipe is None or self._recipe.config is None:
            raise AttributeError("config: the model has none")
        return self._recipe.config

    @property
    def schedule(self) -> Schedule:
        """As it was chosen."""
        return self._now().chosen.schedule

    def explain(self) -> str:
        """Which module runs where, with its share of the FLOPs and of the modelled time, and why."""
        with self._turn:
            machine = self._machine()
            return self._traced.explain(modelled_layers(machine.program, self._traced.network, machine))

    @property
    def modelled(self) -> Explanation:
        """How long the program takes on the machine, and why, by the simulator; with run-time parameters at their
        defaults."""
        from ...hw.sim.explain import explain

        return explain(self._machine())

    def latency_at(self, **settings: float) -> float:
        """The modelled latency, in seconds, on a machine with other rates or depths, by their names in `rsn overlay`:
        `latency_at(ddr_read_gbs=42)`. The program stays as it is. Raises `ProgramError` for unknown names and for what
        no machine can have, `DeadlockError` where it cannot run."""
        from ...hw.sim.machine import launch_seconds

        machine = self._machine()
        overlay = self._built.program.overlay.with_rates(**settings)
        return machine.plan.run(overlay).latency + launch_seconds(overlay)

    def _machine(self) -> Machine:
        from ...hw.sim.machine import Machine

        with self._turn:
            self._follow()
            if self._simulated is None:
                self._simulated = Machine(self._built.program)
            return self._simulated

    def compare(self, *args: Any, **kwargs: Any) -> list[Compared]:
        """Run on the simulator and compare every segment with PyTorch; arguments as for a call."""
        from .compare import compare

        with self._turn:
            built = self._now()
            args, kwargs = self._widened(args, kwargs)
            inputs, lengths, _ = self._traced.host.prologue(*args, **kwargs)
            return compare(built.program, built.weights, self._traced.network, inputs, lengths)

    def __repr__(self) -> str:
        network, program = self._traced.network, self._built.program
        sizes = count(program)
        return (
            f"<rsn.Compiled: {len(network.layers)} segments, {network.size}, on "
            f"{program.overlay.name}, {sizes['mops']['total']} mOPs, {sizes['bytes']['total']} bytes>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
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
        """Write the whole model (`.rsnmodel`), for `rsn.load`: program, weights, and what PyTorch runs of it.

        With `weights`, write the program (`.bin`) to `path` and its packed weights (`.safetensors`) there, for
        `rsn.Runner`. Raises `UnsupportedError`, naming the operator, for a host's part that cannot be written."""
        with self._turn:
            built = self._now()
            if weights is None:
                from .file import write

                write(path, [self.part()], None, self._borders)
                return
        from ...assembler import container

        save_tensors(weights, built.weights, packed=True)
        container.write(built.program, Path(path))

    def part(self, sizes: tuple[int, ...] = ()) -> Part:
        """What of a file this program is. sizes: that it is for, in a family."""
        from .file import Part

        with self._turn:
            built = self._now()
            return Part(sizes, built.program, built.weights, self._traced.host)

    def close(self) -> None:
        """Give the board back."""
        self._runner.close()

    def forget(self) -> None:
        """In a forked process: locks may have been another thread's."""
        self._turn = threading.RLock()
        if self._recipe is not None:
            self._recipe.followed.forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        raise UnsupportedError(HELD)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UnsupportedError(HELD)


def modelled_layers(program: Program, network: LayerGraph, machine: Machine | None = None) -> Modelled:
    """The latency of a program and the seconds of each layer of the network that it was built from, with run-time
    parameters at their defaults."""
    from ...hw.sim.explain import seconds_of
    from ...hw.sim.machine import Machine, launch_seconds
    from ...rsnlib.summary import Modelled

    machine = machine or Machine(program)
    latency = machine.timing.latency + launch_seconds(program.overlay)
    return Modelled(latency, seconds_of(machine, {layer.y for layer in network.layers}))
