"""`rsn.compile`: compile a PyTorch module to a model that runs on a board."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from .base.deferred import deferred
from .base.errors import ScheduleError, TensorError, UnsupportedError, require_torch
from .host.boards.several import BoardName, boards_named, shards_named
from .host.model import experts as patched
from .host.model.compiled import Compiled, modelled_layers
from .host.model.compiled_shards import built_stages
from .host.model.compiled_stages import CompiledStages
from .host.model.family import Family
from .host.model.following import Recipe
from .host.model.pieces import CompiledPieces
from .host.model.shared_bank import SharedBank
from .rsnlib import fallback
from .rsnlib.experts.choice import Experts
from .rsnlib.shapes import Shapes
from .scheduler.best import Best
from .scheduler.schedule import Schedule

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram

    from .host.model import torch_backend
    from .host.model.compiled_stages import BuiltStages
    from .rsnlib import (
        capture,
        changes,
        explain_captured,
        exported_programs,
        graph_split,
        integers,
        precision,
        static_cache,
    )
    from .rsnlib import pipeline as pipelines
    from .rsnlib import pool as pools
    from .rsnlib import verification as verifications
    from .rsnlib.capture import Interface
    from .rsnlib.partition import Traced
    from .rsnlib.passes import Passes
    from .rsnlib.pipeline import Pipeline
    from .rsnlib.summary import Modelled
else:
    torch_backend = deferred("rsn.host.model.torch_backend")
    capture = deferred("rsn.rsnlib.capture")
    changes = deferred("rsn.rsnlib.changes")
    explain_captured = deferred("rsn.rsnlib.explain_captured")
    exported_programs = deferred("rsn.rsnlib.exported_programs")
    graph_split = deferred("rsn.rsnlib.graph_split")
    integers = deferred("rsn.rsnlib.integers")
    pipelines = deferred("rsn.rsnlib.pipeline")
    pools = deferred("rsn.rsnlib.pool")
    precision = deferred("rsn.rsnlib.precision")
    static_cache = deferred("rsn.rsnlib.static_cache")
    verifications = deferred("rsn.rsnlib.verification")


T = TypeVar("T")
PIECES = "boards: a model in pieces runs on one board; with whole=False leave out boards"


def _examples(given: Any) -> tuple[Any, ...] | dict[str, Any]:
    """Return example inputs as a tuple or a dict; a tokenizer's result is a mapping, but no dict. Raises `TensorError`
    for a list or a bare tensor."""
    static_cache.register()
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, list) or hasattr(given, "shape"):
        raise TensorError(f"example inputs are a tuple or a dict of tensors, not {type(given).__name__}; write (x,)")
    others: tuple[Any, ...] = given  # capture reports anything else
    return others


def _opened(model: Any, example_inputs: Any) -> tuple[Any, Any]:
    """Return a model, read if it is a file, and its example inputs: those of a program of torch.export, if none are
    given."""
    if isinstance(model, str | os.PathLike) and os.fspath(model).endswith(exported_programs.SUFFIX):
        model = exported_programs.read_program(model)
    if example_inputs is None and exported_programs.is_program(model):
        example_inputs = exported_programs.example_of(model)
    return model, example_inputs


def _kept(example: Any) -> Any:
    """Copy example inputs, which are needed again when the model has changed: callers may write into their tensors."""
    import torch
    from torch.utils import _pytree as pytree

    return pytree.tree_map_only(torch.Tensor, lambda x: x.detach().clone(), example)


def _with_experts(pipeline: Pipeline, experts: str | Experts | None, board: str) -> Pipeline:
    """The pipeline with what takes the place of experts that data choose. Raises `UnsupportedError`."""
    if experts is None:
        return pipeline
    plan = patched.plan(Experts.of(experts), pipeline.overlay, pipeline.schedule, board, is_required=True)
    return replace(pipeline, passes=replace(pipeline.passes, experts=plan))


def _built(build: Callable[[Traced], T], traced: Traced) -> T:
    """Compile a traced module. The error for what the machine cannot run also tells of products that are not there."""
    try:
        return build(traced)
    except UnsupportedError as error:
        if traced.told:
            error.args = (f"{error}; {traced.told}",)
        raise


def explain(
    model: Callable[..., Any] | ExportedProgram | str | os.PathLike[str],
    example_inputs: tuple[Any, ...] | dict[str, Any] | None = None,
    *,
    overlay: str = "xnn",
    experts: str | Experts | None = None,
    whole: bool = True,
    boards: int | str | Sequence[BoardName] = 1,
    shards: int | str = 1,
) -> str:
    """Return a report as text: where each operator of a module would run and why, and each module's share of the FLOPs
    and of the modelled time (schedule "paper"). Nothing runs on a board. Raises as `compile`.

    model: as for `compile`, or the result of `torch.compile(..., backend="rsn")`. PyTorch then runs it twice to capture
    its graphs; the report covers each graph, the graph breaks, and what stays in PyTorch. Overlay and experts are those
    of the options of `torch.compile`. Its tensors may be on the meta device: a report needs no values. example_inputs,
    overlay, experts, whole, boards, shards: as for `compile`; of several boards the report begins with bytes, modelled
    time and traffic of each stage.
    """
    require_torch("compiling a model")
    model, example_inputs = _opened(model, example_inputs)
    example = _examples(example_inputs)
    if explain_captured.is_captured(model):
        return torch_backend.explain(model, example)
    count, _ = boards_named(boards)
    each = shards_named(shards, count)
    if count != 1 and not whole:
        raise ScheduleError(PIECES)
    pipeline = _with_experts(pipelines.Pipeline.named(overlay, boards=count, shards=each), experts, "sim")
    shaped = capture.without_values(model)
    if shaped is not None:
        model, pipeline = shaped, pipeline.of_shapes
    module, example, borders = precision.in_float32(capture.module_of(model), example)
    if borders is not None:
        warnings.warn(borders.told, stacklevel=2)

    def modelled(traced: Traced) -> Modelled:
        return modelled_layers(pipeline.build(traced.network).program, traced.network)

    if not whole:
        found = pipeline.divide(module, example, whole=False)
        if isinstance(found, graph_split.Split):
            return explain_captured.explain_pieces(*found.built(modelled))
        return found.explain(modelled(found))
    with pipeline.proposing_pieces(lambda: (module, example), is_half=borders is not None):
        traced = pipeline.trace(module, example)
        if count != 1:
            return _built(partial(built_stages, pipeline), traced).explain()
        return traced.explain(_built(modelled, traced))


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
    experts: str | Experts | None = ...,
    verify: str = ...,
    whole: Literal[True] = ...,
    smooth: Sequence[tuple[Any, ...] | dict[str, Any]] | None = ...,
    rows16: Sequence[str] = ...,
    boards: Literal[1] = ...,
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
    lengths: Sequence[int] | None = ...,
    dynamic_shapes: None = ...,
    passes: Passes | None = ...,
    checksums: bool = ...,
    experts: str | Experts | None = ...,
    verify: str = ...,
    whole: Literal[True] = ...,
    smooth: Sequence[tuple[Any, ...] | dict[str, Any]] | None = ...,
    rows16: Sequence[str] = ...,
    boards: int | str | Sequence[BoardName],
    shards: int | str = ...,
) -> Compiled | CompiledStages: ...
@overload
def compile(
    model: nn.Module,
    example_inputs: tuple[Any, ...] | dict[str, Any],
    *,
    board: str = ...,
    overlay: str = ...,
    schedule: str | os.PathLike[str] | Schedule | Best = ...,
    budget_s: float = ...,
    lengths: None = ...,
    dynamic_shapes: None = ...,
    passes: Passes | None = ...,
    checksums: bool = ...,
    experts: str | Experts | None = ...,
    verify: str = ...,
    whole: bool,
    smooth: Sequence[tuple[Any, ...] | dict[str, Any]] | None = ...,
    rows16: Sequence[str] = ...,
) -> Compiled | CompiledPieces: ...
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
    experts: str | Experts | None = ...,
    verify: str = ...,
    whole: bool = ...,
    boards: int | str | Sequence[BoardName] = ...,
    shards: int | str = ...,
) -> Family: ...
@overload
def compile(
    model: ExportedProgram | str | os.PathLike[str],
    example_inputs: tuple[Any, ...] | dict[str, Any] | None = ...,
    *,
    board: str = ...,
    overlay: str = ...,
    schedule: str | os.PathLike[str] | Schedule | Best = ...,
    budget_s: float = ...,
    lengths: Sequence[int] | None = ...,
    dynamic_shapes: Shapes | None = ...,
    passes: Passes | None = ...,
    checksums: bool = ...,
    experts: str | Experts | None = ...,
    verify: str = ...,
    whole: bool = ...,
    smooth: Sequence[tuple[Any, ...] | dict[str, Any]] | None = ...,
    rows16: Sequence[str] = ...,
    boards: int | str | Sequence[BoardName] = ...,
    shards: int | str = ...,
) -> Compiled | CompiledPieces | CompiledStages | Family: ...
def compile(
    model: nn.Module | ExportedProgram | str | os.PathLike[str],
    example_inputs: tuple[Any, ...] | dict[str, Any] | None = None,
    *,
    board: str = "sim",
    overlay: str = "xnn",
    schedule: str | os.PathLike[str] | Schedule | Best = "paper",
    budget_s: float = 30.0,
    lengths: Sequence[int] | None = None,
    dynamic_shapes: Shapes | None = None,
    passes: Passes | None = None,
    checksums: bool = False,
    experts: str | Experts | None = None,
    verify: str = "first",
    whole: bool = True,
    smooth: Sequence[tuple[Any, ...] | dict[str, Any]] | None = None,
    rows16: Sequence[str] = (),
    boards: int | str | Sequence[BoardName] = 1,
    shards: int | str = 1,
) -> Compiled | CompiledPieces | CompiledStages | Family:
    """Compile the part of `model` that the machine can run: trace, lower, order, pack.

    model: a module, or a program of torch.export, or the file of one (.pt2); its dynamic dimensions become
    `dynamic_shapes` if neither these nor `lengths` are given (docs/models.md, "Exported programs").
    example_inputs: positional (tuple) or keyword (dict) arguments; the program is for their shapes; None for those that
    the program was exported with. board: where calls
    run. overlay: the machine. schedule: "paper", "strict", "best" (searched for at most `budget_s` seconds, and
    cached), a file, or an `rsn.Schedule`. lengths: the largest number of rows of each sequence of the batch, if they
    differ. Each sequence is computed as if it were alone and had that many rows, with or without a mask; rows beyond
    are ignored, and are 0 in the network's outputs. dynamic_shapes: for each argument, the dimensions whose sizes calls
    choose, and the sizes to make programs for: `{"input_ids": {0: rsn.Batch(1, 8), 1: rsn.Length(128, 512)}}`. The
    result is then a `Family`. passes: the compiler's passes, if some are replaced or observed.

    The compiled model follows `model`: each call takes over its changes (docs/models.md, "When the model changes").
    checksums: each call also checks all values of the weights. This finds all writes that PyTorch does not count,
    through `.data` or NumPy, and takes about a second per GB.

    experts: how experts that data choose are computed (docs/experts.md): "static", "patched", or an `rsn.Experts`; None
    leaves them to PyTorch.

    verify: which calls are also computed by `model` in PyTorch and compared (docs/models.md, "Verified results"):
    "first", of each program and after each change of the model; "always"; or "never".

    whole: False also takes a model that the machine cannot run as a whole (docs/models.md, "Models in pieces"): it is
    cut, the machine runs the pieces that it can, and PyTorch the rest; a `Fallback` warning says why. The result is
    then a `CompiledPieces`, and has no lengths.

    boards: how many boards the layers are cut for (docs/many-boards.md), "auto" for the fewest that hold the model, or
    the names of the boards. Each stage is on a board of its own; with a number, each is on a `board`. The result is
    then a `CompiledStages`, unless there is one board. shards: how many boards compute each stage together, each of
    them its heads and its columns of each layer; `boards` is then a multiple of it, and results differ from those of
    one board by the rounding of the sums between boards; "auto" for the number whose call takes least modelled time.

    smooth: with an overlay that computes in integers, calls for factors of SmoothQuant (docs/xnn8.md); like
    `example_inputs`, and of their shapes. rows16: with the same, module paths of products whose rows have up to 16 bits
    in place of 8, at half the rate; `*` stands for one part of a path or some of it (docs/xnn8.md, "Rows of 16 bits").

    Weights in float16 or bfloat16 are widened to float32, with a warning; arguments and results keep the model's types
    (docs/models.md, "Half precision").

    Raises `MissingError` without PyTorch; `UnsupportedError`, with operator and module path, for what the machine
    cannot run, and for results that would depend on rows beyond `lengths` or on the padding of `dynamic_shapes`;
    `TensorError` for inputs that do not fit; `ScheduleError` for a schedule that does not exist or does not fit the
    model; `ProgramError` for an unknown overlay; `RoomError`, an `UnsupportedError`, if the boards cannot hold the
    model; `WrongBoards` for a board that is named twice; and `BoardError` if a board cannot be used.
    """
    require_torch("compiling a model")
    model, example_inputs = _opened(model, example_inputs)
    if dynamic_shapes is None and lengths is None and exported_programs.is_program(model):
        dynamic_shapes = exported_programs.shapes_of(model)
    if dynamic_shapes is not None and lengths is not None:
        raise ScheduleError("lengths are of one program; with dynamic_shapes give sizes as rsn.Length")
    if dynamic_shapes is not None and smooth is not None:
        raise ScheduleError("smooth has calls of one shape, and dynamic_shapes makes programs for several")
    if lengths is not None and not whole:
        raise ScheduleError(
            "lengths are of one program, and whole=False may make several of a model: a model that runs as a whole "
            "takes lengths without whole=False, and one in pieces takes sizes as rsn.Length, with dynamic_shapes"
        )
    count, names = boards_named(boards)
    each = shards_named(shards, count)
    if count != 1 and not whole:
        raise ScheduleError(PIECES)
    usual = pipelines.Pipeline.named(
        overlay,
        schedule,
        budget_s=budget_s,
        passes=passes,
        lengths=lengths,
        smooth=smooth,
        rows16=rows16,
        boards=count,
        shards=each,
    )
    usual = _with_experts(usual, experts, board)
    example, module = _kept(_examples(example_inputs)), capture.module_of(model)
    borders = precision.Borders.of(module, example)
    if borders is not None:
        warnings.warn(borders.told, stacklevel=2)
        example = precision.widened_example(example)
    # Makes the copy in float32 of a model in half precision.
    followed = changes.Followed(module, checksums, keeps=exported_programs.is_program_module(module))
    reference = (
        integers.reference_of(lambda: followed.module, smooth, rows16)
        if usual.overlay.integers
        else verifications.of_module(lambda: followed.module)
    )
    verification = verifications.Verification(
        verifications.verify_named(verify),
        reference,
        model,
        followed.exists,
        padded=usual.overlay.integers,
    )
    pool = None if dynamic_shapes is None else pools.Pool()

    def check(interface: Interface) -> None:
        """Raise `UnsupportedError` for a way to be called that some of the options cannot have."""
        for x in interface.fixed:
            if x.name in (dynamic_shapes or {}):
                raise UnsupportedError(
                    f"rotary positions depend on the argument {x.name}, whose size calls choose: leave it out, "
                    "then they count the rows of the sequence"
                )
        written = ", ".join(x.name for x in interface.written)
        if written and borders is not None:
            raise UnsupportedError(f"the model writes to its arguments ({written}) in half precision: use float()")
        if written and dynamic_shapes is not None:
            raise UnsupportedError(f"the model writes to its arguments ({written}), which dynamic_shapes would pad")

    chosen: list[BuiltStages] = []
    """How the first program is cut: all programs of a family are, so that they share the weights of each board."""

    def program(
        example: tuple[Any, ...] | dict[str, Any], pipeline: Pipeline
    ) -> Compiled | CompiledPieces | CompiledStages:
        seen = followed.look()
        cuts = None
        if chosen:
            cuts = chosen[0].cuts
            pipeline = replace(pipeline, shards=chosen[0].boards_each, chooses_shards=False)
        recipe = Recipe(followed, example, pipeline, getattr(followed.original, "config", None), pool)
        shared = SharedBank.of(followed.original.parameters(), board, overlay)
        # The programs of a family are in float32; its borders are its own, and so is the verification of its calls.
        own = (borders, verification) if dynamic_shapes is None else (None, None)
        proposing = pipeline.proposing_pieces(lambda: (followed.module, example), is_half=borders is not None)
        with proposing if whole else nullcontext():
            found = recipe.trace() if whole else recipe.divide()  # capture, rewrite, match, fold
            if isinstance(found, graph_split.Split):
                check(found.interface)
                made = CompiledPieces(found, board, recipe, seen, own[0], shared, own[1])
                reasons = fallback.told(made.reasons)
                warnings.warn(f"a part of this model runs in PyTorch: {reasons}", fallback.Fallback, stacklevel=3)
                return made
            check(found.host.interface)
            stages = None
            if count == 1:
                built = _built(recipe.build, found)  # schedule, lower, pack
            else:
                stages = _built(partial(built_stages, pipeline, cuts=cuts), found)
                built = stages.built[0]
                chosen[:] = [stages]
        if found.told:
            warnings.warn(found.told, stacklevel=3)
        if stages is not None and len(stages.built) > 1:
            n = stages.board_count
            banks = [
                SharedBank.of(followed.original.parameters(), f"{board}, board {k} of {n}", overlay) for k in range(n)
            ]
            return CompiledStages(stages, names or [board] * n, recipe, seen, own[0], banks, own[1])
        return Compiled(found, built, board, recipe, seen, own[0], shared, own[1])

    if dynamic_shapes is None:
        return program(example, usual)
    family = Family(
        followed,
        example,
        dynamic_shapes,
        lambda example, check: program(example, usual.observed("capture", check)),
        borders,
        verification,
        largest_first=count != 1,
    )
    if count != 1:
        family.program(*family.largest)
    return family
