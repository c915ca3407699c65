"""`rsn.compile`: where the compiler and the runner meet."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from html import escape
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from .family import Family
from .host.runner import Runner
from .host.tensors import save_tensors
from .hw.sim.machine import Run
from .isa.errors import ScheduleError, TensorError, require_torch
from .isa.overlays import find
from .isa.program import Program, Role
from .isa.statistics import count
from .scheduler.best import Best
from .scheduler.build import Built, Observe, build
from .scheduler.lower import lower
from .scheduler.schedule import PAPER, SCHEDULES, Schedule, read_schedule
from .shapes import Shapes

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram

    from .compare import Compared
    from .hw.sim.explain import Explanation
    from .hw.sim.machine import Machine
    from .rsnlib.partition import Traced
    from .rsnlib.passes import Passes


def schedule_named(
    schedule: str | os.PathLike[str] | Schedule | Best, budget_s: float = 30.0, seed: int = 0
) -> Schedule | Best:
    """A schedule by name, or from a file. budget_s, seed: of the search for "best". Raises `ScheduleError` for an
    unknown one."""
    if isinstance(schedule, os.PathLike):
        return read_schedule(schedule)
    if isinstance(schedule, Schedule | Best):
        return schedule
    if not isinstance(schedule, str):
        raise ScheduleError(
            f"schedule = {schedule!r}: a name ({', '.join(SCHEDULES)}, best), a file (.toml), an rsn.Schedule(...) or "
            "an rsn.Best(...)"
        )
    if schedule == "best":
        return Best(budget_s, seed)
    if schedule in SCHEDULES:
        return SCHEDULES[schedule]
    if schedule.endswith(".toml"):
        return read_schedule(schedule)
    raise ScheduleError(f"no schedule {schedule!r}; there are {', '.join(SCHEDULES)}, best, and files (.toml)")


class Compiled:
    """A module whose encoder stack runs on the machine. Call it as the module; it returns what the module returns.

    program and weights (by buffer name, as they lie in LPDDR) can be saved and run elsewhere with `Runner`.
    """

    def __init__(self, traced: Traced, built: Built, board: str) -> None:
        self.program: Program = built.program
        self.weights = built.weights
        self.last_run: Run | None = None
        """What the most recent call took on the machine."""
        self.schedule = built.chosen.schedule
        self._traced = traced
        self._runner = Runner(built.program, weights=built.weights, board=board)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Host part, machine, host part. Raises `TensorError` for arguments that differ from the example's in shape or
        dtype, or for an attention mask that is no prefix."""
        inputs, lengths, state = self._traced.prologue(*args, **kwargs)
        named = {} if lengths is None else {f"len[{i}]": int(n) for i, n in enumerate(lengths)}
        result = self._runner.run(inputs, named)
        self.last_run = result.run
        return self._traced.epilogue(result.outputs, state)

    def explain(self) -> str:
        """Which module runs where, and why."""
        return self._traced.explain()

    @cached_property
    def modelled(self) -> Explanation:
        """How long the program takes on the machine, and why, by the simulator; with run-time parameters at their
        defaults."""
        from .hw.sim.explain import explain

        return explain(self._machine)

    def latency_at(self, **settings: float) -> float:
        """The modelled latency, in seconds, on a machine with other rates or depths, by their names in `rsn overlay`:
        `latency_at(ddr_read_gbs=42)`. The program stays as it is. Raises `ProgramError` for unknown names and for what
        no machine can have, `DeadlockError` where it cannot run."""
        from .hw.sim.machine import launch_seconds

        overlay = self.program.overlay.with_rates(**settings)
        return self._machine.plan.run(overlay).latency + launch_seconds(overlay)

    @cached_property
    def _machine(self) -> Machine:
        from .hw.sim.machine import Machine

        return Machine(self.program)

    def compare(self, *args: Any, **kwargs: Any) -> list[Compared]:
        """Run on the simulator and compare every segment with PyTorch; arguments as for a call. See `rsn.compare`."""
        from .compare import compare

        inputs, lengths, _ = self._traced.prologue(*args, **kwargs)
        return compare(self.program, self.weights, self._traced.network, inputs, lengths)

    def __repr__(self) -> str:
        network, sizes = self._traced.network, count(self.program)
        return (
            f"<rsn.Compiled: {len(network.layers)} segments, {network.size}, on "
            f"{self.program.overlay.name}, {sizes['mops']['total']} mOPs, {sizes['bytes']['total']} bytes>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        e, sizes = self.modelled, count(self.program)
        network = self._traced.network
        facts = {
            "network": f"{len(network.layers)} segments, {network.size}",
            "overlay": self.program.overlay.name,
            "program": f"{sizes['mops']['total']} mOPs in {sizes['packets']['total']} packets, "
            f"{sizes['bytes']['total']} bytes",
            "weights": f"{sum(4 * b.size for b in self.program.with_role(Role.WEIGHT)) / 1e6:.1f} MB",
            "modelled latency": f"{e.latency_s * 1e3:.3f} ms",
        }
        rows = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in facts.items())
        return (
            f"<table>{rows}</table><details><summary>where the time goes</summary><pre>{escape(str(e))}</pre></details>"
        )

    def save(self, program: str | os.PathLike[str], weights: str | os.PathLike[str]) -> None:
        """Write the program (`.bin`) and its packed weights (`.safetensors`)."""
        from .assembler import container

        save_tensors(weights, self.weights, packed=True)
        container.write(self.program, Path(program))

    def close(self) -> None:
        """Give the board back."""
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _examples(given: Any) -> tuple[Any, ...] | dict[str, Any]:
    """Example inputs; a tokenizer's result is a mapping, but no dict. Raises `TensorError`."""
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, list) or hasattr(given, "shape"):
        raise TensorError(f"example inputs are a tuple or a dict of tensors, not {type(given).__name__}; write (x,)")
    others: tuple[Any, ...] = given  # or whatever it is: who captures the module says so
    return others


def explain(
    model: Callable[..., Any], example_inputs: tuple[Any, ...] | dict[str, Any], *, overlay: str = "xnn"
) -> str:
    """Which operator of a module would run where, and why, without compiling or running anything on the machine. Raises
    as `compile` where a product cannot run on the machine, or is beyond what the overlay has room for.

    model: a module, or what `torch.compile(..., backend="rsn")` has made of a module or a function: then PyTorch runs
    it, twice, and what it would do with what it captures is said, its breaks and what stays in PyTorch too; the overlay
    is then that of its options.
    """
    require_torch("compiling a model")
    from .dynamo import explain as explain_captured
    from .dynamo import is_captured
    from .rsnlib.trace import trace

    example_inputs = _examples(example_inputs)
    if is_captured(model):
        return explain_captured(model, example_inputs)
    traced = trace(model, example_inputs)
    lower(traced.network, find(overlay), PAPER)  # limits are found here
    return traced.explain()


def _also(check: Callable[[ExportedProgram], None], observe: Observe) -> Observe:
    """An observer that is shown the captured graph first."""

    def observed(name: str, made: Any) -> None:
        if name == "capture":
            check(made)
        observe(name, made)

    return observed


@overload
def compile(
    model: nn.Module,
    example_inputs: tuple[Any, ...] | dict[str, Any],
    *,
    board: str = ...,
    overlay: str = ...,
    schedule: str | os.PathLike[str] | Schedule | Best = ...,
    budget_s: float = ...,
    lengths: Sequence[int] | None = ...,
    dynamic_shapes: None = ...,
    passes: Passes | None = ...,
) -> Compiled: ...
@overload
def compile(
    model: nn.Module,
    example_inputs: tuple[Any, ...] | dict[str, Any],
    *,
    board: str = ...,
    overlay: str = ...,
    schedule: str | os.PathLike[str] | Schedule | Best = ...,
    budget_s: float = ...,
    dynamic_shapes: Shapes,
    passes: Passes | None = ...,
) -> Family: ...
def compile(
    model: nn.Module,
    example_inputs: tuple[Any, ...] | dict[str, Any],
    *,
    board: str = "sim",
    overlay: str = "xnn",
    schedule: str | os.PathLike[str] | Schedule | Best = "paper",
    budget_s: float = 30.0,
    lengths: Sequence[int] | None = None,
    dynamic_shapes: Shapes | None = None,
    passes: Passes | None = None,
) -> Compiled | Family:
    """Compile the part of `model` that the machine can run: trace, lower, order, pack.

    example_inputs: positional (tuple) or keyword (dict) arguments; their shapes are the program's. schedule: "paper",
    "strict", "best" (searched for, `budget_s` seconds at most, and kept), a file, or an `rsn.Schedule`. lengths:
    the most rows that each sequence of the batch will have, where they differ: a batch then costs what its sequences
    need, and what lies beyond is 0 in the network's outputs. dynamic_shapes: by argument, which of its dimensions calls
    choose, and for which sizes there are programs: `{"input_ids": {0: rsn.Batch(1, 8), 1: rsn.Length(128, 512)}}`; what
    comes back is then a `Family`. passes: the compiler's, where some of them are replaced or watched. Raises
    `UnsupportedError` naming operator and module path for what the machine cannot run, and `ScheduleError`.
    """
    require_torch("compiling a model")
    from .rsnlib.passes import USUAL
    from .rsnlib.trace import trace

    passes, example_inputs = passes or USUAL, _examples(example_inputs)
    if dynamic_shapes is not None:
        if lengths is not None:
            raise ScheduleError("lengths are of one program; with dynamic_shapes give sizes as rsn.Length")

        def made(example: dict[str, Any], check: Callable[[ExportedProgram], None]) -> Compiled:
            checked = replace(passes, observe=_also(check, passes.observe))
            return compile(
                model, example, board=board, overlay=overlay, schedule=schedule, budget_s=budget_s, passes=checked
            )

        return Family(model, example_inputs, dynamic_shapes, made)
    traced = trace(model, example_inputs, passes)
    if lengths is not None:
        traced = traced.with_lengths(lengths)
    built = build(traced.network, find(overlay), schedule_named(schedule, budget_s), passes=passes)
    return Compiled(traced, built, board)
