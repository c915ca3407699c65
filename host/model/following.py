"""Compiled models of one size that follow the model that they were compiled from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from ...base.deferred import deferred
from ...base.errors import ScheduleError, TensorError, UnsupportedError
from ...scheduler.build import Built
from ..forks import forget_in_children
from .module import CompiledModule

if TYPE_CHECKING:
    from torch import nn

    from ...rsnlib import graph_split, static_cache
    from ...rsnlib.capture import Interface
    from ...rsnlib.changes import Change, Followed
    from ...rsnlib.graph_split import Split
    from ...rsnlib.key_spans import RowsOfCaches
    from ...rsnlib.partition import Traced
    from ...rsnlib.pipeline import Pipeline
    from ...rsnlib.pool import Pool
    from ...rsnlib.precision import Borders
    from ...rsnlib.verification import Verification, VerifiedCall, Visible
    from .file import ModelVariant
else:
    graph_split = deferred("rsn.rsnlib.graph_split")
    static_cache = deferred("rsn.rsnlib.static_cache")


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a program was made from a model, to make it again when the model has changed. followed: the model, watched
    for changes. example: its example arguments, by position or by name. pipeline: the passes that compile it, with
    overlay and schedule."""

    followed: Followed
    example: tuple[Any, ...] | dict[str, Any]
    pipeline: Pipeline
    config: Any = None
    """The model's `config`; the model itself may be gone when it is asked for."""
    pool: Pool | None = None
    """Weights shared with the other programs of a shape family, None for a program alone."""

    def trace(self) -> Traced:
        """Capture the model as it is now. Raises as `Pipeline.trace`: `UnsupportedError` or `TensorError` for a model
        that cannot run on the machine."""
        return self._shared(self.pipeline.trace(self.followed.module, self.example, again=True))

    def trace_again(self, graph: Callable[[], Traced] | None) -> Traced:
        """Trace a captured graph with the model's present weights; if that fails, capture the model again. graph:
        traces the captured graph; None if there is none. Raises as `trace`."""
        try:
            if graph is not None:
                return self._shared(self.pipeline.completed(graph(), self.example))
        except (UnsupportedError, TensorError):  # the rewritten graph was valid for the old weights only
            pass
        return self.trace()

    def divide(self) -> Traced | Split:
        """Capture the model as it is now, in pieces if it cannot run as a whole. Raises as `Pipeline.divide`."""
        found = self.pipeline.divide(self.followed.module, self.example, whole=False, again=True)
        return self._in_pieces(found) if isinstance(found, graph_split.Split) else self._shared(found)

    def split_again(self) -> Split:
        """Capture the model as it is now, in pieces, because it was in pieces before. Raises as
        `Pipeline.split_again`."""
        return self._in_pieces(self.pipeline.split_again(self.followed.module, self.example))

    def _shared(self, traced: Traced) -> Traced:
        return traced if self.pool is None else self.pool.shared(traced)

    def _in_pieces(self, split: Split) -> Split:
        return split if self.pool is None else self.pool.shared_pieces(split)

    def build(self, traced: Traced) -> Built:
        """Compile a traced model. Raises as `Pipeline.build`: what `scheduler.build.build` raises."""
        return self.pipeline.build(traced.network)

    def rebuild(self, built: Built, traced: Traced) -> Built:
        """Compile a traced model with the schedule that was chosen for an earlier program, `built`. Raises as `build`.

        If that schedule names segments that the network no longer has, a schedule is chosen again, as in `build`.
        """
        try:
            return self.pipeline.rebuild(built, traced.network)
        except ScheduleError:
            return self.build(traced)


class FollowingModule(CompiledModule):
    """A module compiled for the sizes of its example. Call it as the module; it returns what the module returns.

    It follows the model that it was compiled from: each call first checks whether parameters, buffers, submodules,
    attributes, hooks or the training mode have changed, and takes over the changes (docs/models.md, "When the model
    changes"). Any thread may call it; one call runs at a time.

    recipe: how to compile the model again; without one, changes of the model are not followed. seen: the model's change
    count when it was captured. borders: data types of arguments and results of a model in half precision. verification:
    compares calls with the model; None leaves that to the caller.
    """

    def __init__(
        self, recipe: Recipe | None, seen: int, borders: Borders | None, verification: Verification | None
    ) -> None:
        self._recipe, self._seen, self._borders, self._verification = recipe, seen, borders, verification
        self._turn = threading.RLock()
        forget_in_children(self)

    # -- what kinds of these modules have

    @property
    def _interface(self) -> Interface:
        """How the module is called."""
        raise NotImplementedError

    @property
    def _made(self) -> object:
        """An object that is another one whenever the module was compiled anew."""
        raise NotImplementedError

    @property
    def _verified(self) -> object:
        """An object that is another one whenever a call must be verified anew."""
        return self._made

    @property
    def depth(self) -> int:
        """About how many layers of a transformer run on the machine (`LayerGraph.depth`)."""
        raise NotImplementedError

    @property
    def shown_rows(self) -> Sequence[Visible]:
        """The rows that the masks of the latest call showed, for each program that has masks."""
        raise NotImplementedError

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], rows: RowsOfCaches | None) -> Any:
        """Compute a call, whose arguments are in float32. Returns the module's result."""
        raise NotImplementedError

    def _take_over(self, change: Change) -> None:
        """Compile the model as it is now. After an error all is as before."""
        raise NotImplementedError

    def _open(self) -> None:
        """Open the board, unless it is open. Raises `BoardError` after `close`, and as `Runner`."""
        raise NotImplementedError

    def part(self, sizes: tuple[int, ...] = ()) -> ModelVariant:
        """Return this model as a part of a model file. sizes: those that it is for, in a shape family; () for a model
        alone. Raises as `at`."""
        raise NotImplementedError

    # -- calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the host part before the machine, the machine, and the host part behind it.

        Raises `TensorError` for arguments whose shape or dtype differs from the example's, and for an attention mask
        that does not hide a suffix of each sequence; and what `rsn.compile` raises if the model has changed into one
        that cannot be compiled.
        """
        return self.call_with(None, args, kwargs)

    def call_with(
        self, seen: int | None, args: tuple[Any, ...], kwargs: dict[str, Any], rows: RowsOfCaches | None = None
    ) -> Any:
        """Run the module with `args` and `kwargs`, as a call does; raises what a call raises. seen: the model's change
        count, if the caller has just looked it up; None looks it up. rows: as for `Compiled.step`."""
        with self._turn:
            self._follow(seen)
            self._open()
            if self._borders is not None:
                args, kwargs = self._borders.widened(self._interface.signature, args, kwargs)
            verified = None if rows is not None else self._begun(args, kwargs)
            returned = self._run(args, kwargs, rows)
            static_cache.count_rows((args, kwargs))
            if verified is not None:
                self._end(verified, returned, args, kwargs)
            return returned if self._borders is None else self._borders.narrowed(returned)

    def _begun(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> VerifiedCall | None:
        """The verification of a call that begins, if it is verified."""
        return None if self._verification is None else self._verification.begin(self._verified, args, kwargs)

    def _end(self, verified: VerifiedCall, returned: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Verify a call that has ended. Raises `WrongResultError`."""
        assert self._verification is not None
        verified.check(
            returned, args, kwargs, layers=self.depth, visible=self.shown_rows, shown=self.shown_layers
        )  # fmt: skip
        self._verification.passed(self._verified)

    def shown_layers(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return what else is known of a call with these arguments whose result is wrong, as text."""
        return ""

    # -- changes

    def at(self, seen: int) -> object:
        """Return an object that is another one whenever the module was compiled anew, for the model as it is now. seen:
        the model's change count. Raises what `rsn.compile` raises if the model has changed into one that cannot be
        compiled."""
        with self._turn:
            self._follow(seen)
            return self._made

    def refresh(self) -> None:
        """Compile the model as it is now. For changes that a call cannot detect, such as writes through NumPy. Raises
        what `rsn.compile` raises."""
        if self._recipe is None:
            return
        self._recipe.followed.changed()  # raises where the model is gone
        with self._turn:
            self._follow()

    def _follow(self, seen: int | None = None) -> None:
        """Take over what has changed in the model. After an error the next call tries again."""
        recipe = self._recipe
        if recipe is None:
            return
        seen = recipe.followed.look() if seen is None else seen
        change = recipe.followed.change_since(self._seen)
        if change:
            self._take_over(change)
            self._seen = seen

    # -- the model

    def open(self) -> Self:
        """Open the board now, not at the first call. Raises `BoardError` as a call does."""
        with self._turn:
            self._open()
        return self

    @property
    def _called(self) -> tuple[nn.Module, Collection[str]]:
        if self._recipe is None:
            raise UnsupportedError("this program follows no model, of which it could be a module")
        example, model = self._recipe.example, self._recipe.followed.original
        if isinstance(example, dict):
            return model, example
        return model, list(self._interface.signature.parameters)[: len(example)]

    @property
    def config(self) -> Any:
        """The model's `config`. Raises `AttributeError` if the model has none."""
        if self._recipe is None or self._recipe.config is None:
            raise AttributeError("the model has no attribute config")
        return self._recipe.config

    def forget(self) -> None:
        """In a forked child: replace locks that another thread of the parent may have held."""
        self._turn = threading.RLock()
        if self._recipe is not None:
            self._recipe.followed.forget()
