"""`rsn.compile`: from a PyTorch module to a model that runs on a board."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from .base.errors import ScheduleError, TensorError, require_torch
from .host.model.compiled import Compiled, Recipe, modelled_layers
from .host.model.family import Family
from .rsnlib.shapes import Shapes
from .scheduler.best import Best
from .scheduler.schedule import Schedule

if TYPE_CHECKING:
    from torch import nn

    from .rsnlib.passes import Passes


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
    from .rsnlib.capture import module_of
    from .rsnlib.explain_captured import is_captured
    from .rsnlib.pipeline import Pipeline
    from .rsnlib.precision import in_float32

    example = _examples(example_inputs)
    if is_captured(model):
        return explain_captured(model, example)
    pipeline = Pipeline.named(overlay)
    module, example, borders = in_float32(module_of(model), example)
    if borders is not None:
        warnings.warn(borders.told, stacklevel=2)
    with pipeline.proposing_pieces(module, example, is_half=borders is not None):
        traced = pipeline.trace(module, example)
        built = pipeline.build(traced.network)
    return traced.explain(modelled_layers(built.program, traced.network))


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
    from .rsnlib.pipeline import Pipeline
    from .rsnlib.pool import Pool
    from .rsnlib.precision import Borders, widened_example

    if dynamic_shapes is not None and lengths is not None:
        raise ScheduleError("lengths are of one program; with dynamic_shapes give sizes as rsn.Length")
    usual = Pipeline.named(overlay, schedule, budget_s=budget_s, passes=passes, lengths=lengths)
    example, module = _kept(_examples(example_inputs)), module_of(model)
    borders = Borders.of(module, example)
    if borders is not None:
        warnings.warn(borders.told, stacklevel=2)
        example = widened_example(example)
    followed = Followed(module, checksums)  # makes the copy in float32 of a model in half precision
    pool = None if dynamic_shapes is None else Pool()

    def program(example: tuple[Any, ...] | dict[str, Any], pipeline: Pipeline) -> Compiled:
        seen = followed.look()
        recipe = Recipe(followed, example, pipeline, getattr(followed.original, "config", None), pool)
        with pipeline.proposing_pieces(followed.module, example, is_half=borders is not None):
            traced = recipe.trace()  # capture, rewrite, match, fold
            built = recipe.build(traced)  # schedule, lower, pack
        # The programs of a family are in float32; its borders are its own.
        return Compiled(traced, built, board, recipe, seen, borders if dynamic_shapes is None else None)

    if dynamic_shapes is None:
        return program(example, usual)
    return Family(
        followed,
        example,
        dynamic_shapes,
        lambda example, check: program(example, usual.observed("capture", check)),
        borders,
    )
