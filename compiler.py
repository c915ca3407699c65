"""`rsn.compile`: from a PyTorch module to a model that runs on a board."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from .base.errors import ScheduleError, TensorError, UnsupportedError, require_torch
from .host.model.compiled import Compiled, Recipe, modelled_layers
from .host.model.family import Family
from .isa.overlay import Overlay
from .isa.overlays import find
from .rsnlib.shapes import Shapes
from .scheduler.best import Best, schedule_named
from .scheduler.build import Observe, build
from .scheduler.lower import lower
from .scheduler.room import RoomError
from .scheduler.schedule import PAPER, Schedule

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram

    from .rsnlib.passes import Passes
    from .rsnlib.precision import Borders


def _examples(given: Any) -> tuple[Any, ...] | dict[str, Any]:
    """Example inputs; a tokenizer's result is a mapping, but no dict. Raises `TensorError`."""
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, list) or hasattr(given, "shape"):
        raise TensorError(f"example inputs are a tuple or a dict of tensors, not {type(given).__name__}; write (x,)")
    others: tuple[Any, ...] = given  # or whatever it is: who captures the module says so
    return others


def _kept(example: Any) -> Any:
    """A copy, to compile again with when the model has changed: callers may write into their own tensors."""
    import torch
    from torch.utils import _pytree as pytree

    return pytree.tree_map_only(torch.Tensor, lambda x: x.detach().clone(), example)


def explain(
    model: Callable[..., Any], example_inputs: tuple[Any, ...] | dict[str, Any], *, overlay: str = "xnn"
) -> str:
    """Which operator of a module would run where, and why, with the share of each module in the FLOPs and in the time
    that is modelled for the machine, with the schedule "paper". Nothing runs on a board. Raises as `compile`.

    model: a module, or what `torch.compile(..., backend="rsn")` has made of a module or a function: then PyTorch runs
    it, twice, and what it would do with what it captures is said, its breaks and what stays in PyTorch too; the overlay
    is then that of its options.
    """
    require_torch("compiling a model")
    from .host.model.torch_backend import explain as explain_captured
    from .host.model.torch_backend import is_captured
    from .rsnlib.capture import module_of
    from .rsnlib.passes import within
    from .rsnlib.precision import Widened, widened_example
    from .rsnlib.trace import trace

    example_inputs = _examples(example_inputs)
    if is_captured(model):
        return explain_captured(model, example_inputs)
    target = find(overlay)
    module = module_of(model)
    borders = _borders(module, example_inputs)
    if borders is not None:
        module, example_inputs = Widened(module).module, widened_example(example_inputs)
    with _proposing(module, example_inputs, target, borders):
        traced = trace(module, example_inputs, within(target))
    with _proposing(module, example_inputs, target, borders, True):
        built = build(traced.network, target, PAPER)
    return traced.explain(modelled_layers(built.program, traced.network))


def _borders(module: nn.Module, example: Any) -> Borders | None:
    """Of a model whose weights are in half precision, which is said. Raises as `trace`."""
    from .rsnlib.precision import Borders

    borders = Borders.of(module, example)
    if borders is not None:
        warnings.warn(borders.told, stacklevel=3)
    return borders


@contextmanager
def _proposing(
    model: nn.Module, example: Any, overlay: Overlay, borders: Borders | None, is_built: bool = False
) -> Iterator[None]:
    """Propose torch.compile where a module is refused as a whole, if some of it would run on the machine then. borders:
    of the user's own model, where this one is its copy in float32. is_built: it was captured, so that what is refused
    is beyond a limit of the machine."""
    try:
        yield
    except RoomError:
        raise  # pieces are as large together
    except UnsupportedError as error:
        from .rsnlib.graph_split import LimitError, runs_in_pieces

        refused = LimitError(str(error)) if is_built else error
        if not runs_in_pieces(refused, model, example, lambda network: lower(network, overlay, PAPER)):
            raise
        options = "" if overlay.name == "xnn" else f", options={{'overlay': '{overlay.name}'}}"
        given = "model" if borders is None else "model.float()"
        way_out = f'torch.compile({given}, backend="rsn"{options}) runs the rest on the machine, in pieces'
        raise UnsupportedError(f"{error}; {way_out}") from error


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
    checksums: bool = ...,
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
    checksums: bool = ...,
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
    checksums: bool = False,
) -> Compiled | Family:
    """Compile the part of `model` that the machine can run: trace, lower, order, pack.

    example_inputs: positional (tuple) or keyword (dict) arguments; their shapes are the program's. schedule: "paper",
    "strict", "best" (searched for, `budget_s` seconds at most, and kept), a file, or an `rsn.Schedule`. lengths: the
    most rows that each sequence of the batch will have, where they differ: each sequence is computed as if it were
    alone and had so many rows, with or without a mask; rows beyond are not looked at, and are 0 in the network's
    outputs.
    dynamic_shapes: by argument, which of its dimensions calls choose, and for which sizes there are programs:
    `{"input_ids": {0: rsn.Batch(1, 8), 1: rsn.Length(128, 512)}}`; what comes back is then a `Family`. passes: the
    compiler's, where some of them are replaced or watched.

    What is compiled follows the model: a call takes over what has changed in it (docs/models.md, "When the model
    changes"). checksums: each call also looks at all the numbers of the model, so that it notices writes that PyTorch
    does not count, through `.data` or NumPy; that takes about a second for each GB.

    Weights in float16 or bfloat16 are widened, which a warning says: arguments are taken, and results returned, in the
    model's own types (docs/models.md, "Half precision").

    Raises `UnsupportedError` naming operator and module path for what the machine cannot run, also where a result would
    depend on rows beyond `lengths` or on what is filled in for `dynamic_shapes`; `TensorError` for inputs that do not
    fit; and `ScheduleError`.
    """
    require_torch("compiling a model")
    from .rsnlib.capture import module_of
    from .rsnlib.changes import Followed
    from .rsnlib.passes import USUAL, within
    from .rsnlib.pool import Pool
    from .rsnlib.precision import widened_example

    passes, example_inputs = passes or USUAL, _examples(example_inputs)
    if dynamic_shapes is not None and lengths is not None:
        raise ScheduleError("lengths are of one program; with dynamic_shapes give sizes as rsn.Length")
    example_inputs = _kept(example_inputs)
    module = module_of(model)
    borders = _borders(module, example_inputs)
    if borders is not None:
        example_inputs = widened_example(example_inputs)
    followed = Followed(module, checksums)
    chosen = schedule_named(schedule, budget_s)
    pool = None if dynamic_shapes is None else Pool()

    def made(example: tuple[Any, ...] | dict[str, Any], passes: Passes) -> Compiled:
        seen = followed.look()
        config = getattr(followed.original, "config", None)
        target = find(overlay)
        recipe = Recipe(followed, example, target, chosen, lengths, within(target, passes), config, pool)
        is_usual = lengths is None and (passes.rules, passes.lower) == (USUAL.rules, USUAL.lower)
        with _proposing(followed.module, example, target, borders) if is_usual else nullcontext():
            traced = recipe.trace()
        with _proposing(followed.module, example, target, borders, True) if is_usual else nullcontext():
            built = recipe.build(traced)
        # The programs of a family are in float32; its borders are its own.
        return Compiled(traced, built, board, recipe, seen, borders if dynamic_shapes is None else None)

    if dynamic_shapes is None:
        return made(example_inputs, passes)

    def checked(example: dict[str, Any], check: Callable[[ExportedProgram], None]) -> Compiled:
        return made(example, replace(passes, observe=_also(check, passes.observe)))

    return Family(followed, example_inputs, dynamic_shapes, checked, borders)
