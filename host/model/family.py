"""`rsn.compile(..., dynamic_shapes=...)`: one model for calls with many batch sizes and lengths.

A program is for one size. A shape family has a program for each of the listed sizes, compiled when it is first needed.
A call takes the cheapest program that it fits into (`rsnlib.shape_buckets`); its arguments are padded to the sizes of
the program, and its result is cut back. That padding does not change the result is proved, not assumed: see
`rsnlib.padding_check`.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, Self

from ...base.deferred import deferred
from ...rsnlib.shapes import Arguments, Dim, Shapes
from ..forks import forget_in_children
from .file import ModelVariant, SavedText, write
from .module import CompiledModule

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram

    from ...hw.sim.machine import Run
    from ...rsnlib import padding_check
    from ...rsnlib.changes import Followed
    from ...rsnlib.precision import Borders
    from ...rsnlib.verification import Verification
    from .compiled import Compiled
    from .compiled_stages import CompiledStages
    from .pieces import CompiledPieces
else:
    padding_check = deferred("rsn.rsnlib.padding_check")

REMEMBERED = 8
"""How many programs of a model are kept; the one that was used longest ago is dropped first."""


Make = Callable[[dict[str, Any], Callable[["ExportedProgram"], None]], "Compiled | CompiledPieces | CompiledStages"]


class Family(CompiledModule):
    """A module compiled for several sizes. Call it as the module; it returns what the module returns.

    followed: the model, watched for changes. example_inputs: by position or by name. shapes: the sizes of each
    dimension that calls choose. make: compiles a program from example inputs by name, and passes the captured graph to
    the function that it is given. borders: data types of arguments and results of a model whose weights are in half
    precision; example inputs and programs are in float32 then. verification: of calls. largest_first: the program of
    the largest sizes is made before any other one. Raises `UnsupportedError` for a module whose result depends on the
    padding, `TensorError` for shapes that do not fit.
    """

    def __init__(
        self,
        followed: Followed,
        example_inputs: tuple[Any, ...] | dict[str, Any],
        shapes: Shapes,
        make: Make,
        borders: Borders | None = None,
        verification: Verification | None = None,
        largest_first: bool = False,
    ) -> None:
        self._verification, self._largest_first = verification, largest_first
        self._followed, self._seen, self._borders = followed, followed.look(), borders
        self._model = followed.original
        """Kept alive for programs that are compiled later."""
        self._arguments = Arguments(inspect.signature(self._model.forward), example_inputs, shapes)
        self._make = make
        self._made: OrderedDict[tuple[int, ...], Compiled | CompiledPieces | CompiledStages] = OrderedDict()
        self._lock = threading.RLock()
        """One call at a time, as on a board."""
        self._latest: Compiled | CompiledPieces | CompiledStages | None = None
        self._filling = padding_check.Filling(followed.module, self._arguments)
        forget_in_children(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the smallest program that the call fits into. Raises what a call of `Compiled` raises, and `TensorError`
        for sizes larger than those listed."""
        if self._borders is not None:
            args, kwargs = self._borders.widened(self._arguments.signature, args, kwargs)
        call = self._filling.padding.fit(args, kwargs)
        with self._lock:
            seen = self._follow()
            self._latest = latest = self._program(call.taken)
            built, verified = latest.at(seen), None
            padded = self._verification is not None and self._verification.padded
            given: tuple[tuple[Any, ...], dict[str, Any]] = ((), call.given) if padded else (args, kwargs)
            if self._verification is not None:
                verified = self._verification.begin(built, *given, call.taken)
            whole = latest.call_with(seen, (), call.given)
            result = self._filling.padding.cut(whole, call)
            if verified is not None and self._verification is not None:
                compared = whole if padded else result
                verified.check(compared, *given, layers=latest.depth, visible=latest.shown_rows)
                self._verification.passed(built, call.taken)
            return result if self._borders is None else self._borders.narrowed(result)

    def refresh(self) -> None:
        """Compile the model as it is now, each program at its next call. For changes that a call cannot detect, such as
        writes through NumPy. Raises `UnsupportedError` if the padding would change the results of the changed model."""
        self._followed.changed()
        with self._lock:
            self._follow()

    def _follow(self) -> int:
        """Check whether the model has changed, and if so whether padding is still allowed. Returns the model's change
        count."""
        seen = self._followed.look()
        change = self._followed.change_since(self._seen)
        if change:
            if change == change.NUMBERS:
                self._filling.check_again()
            else:
                self._filling = padding_check.Filling(self._followed.module, self._arguments)
                for made in self._made.values():
                    made.close()
                self._made.clear()
            self._seen = seen
        return seen

    def program(self, *sizes: int) -> Compiled | CompiledPieces | CompiledStages:
        """Return the program for these sizes, in the order of `dims`; compile it if it has not been compiled. sizes:
        for each dimension one of the sizes that it lists. Raises what `rsn.compile` raises."""
        with self._lock:
            self._follow()
            return self._program(sizes)

    def _program(self, sizes: tuple[int, ...]) -> Compiled | CompiledPieces | CompiledStages:
        with self._lock:
            if self._largest_first and not self._made and sizes != self.largest:
                self._program(self.largest)
            if sizes not in self._made:
                example = self._arguments.example_of(sizes)
                self._made[sizes] = self._make(example, lambda captured: self._filling.check(sizes, captured))
                while len(self._made) > REMEMBERED:
                    self._made.popitem(last=False)[1].close()
            self._made.move_to_end(sizes)
            return self._made[sizes]

    def prepare(self) -> Self:
        """Compile the programs for all sizes now, and open their boards, not at their first calls. Returns this object.
        Raises what `rsn.compile` raises, and `BoardError`."""
        for sizes in self._every:
            self.program(*sizes).open()
        return self

    @property
    def largest(self) -> tuple[int, ...]:
        """The largest size of each dimension."""
        return tuple(dim.sizes[-1] for dim in self._arguments.dims)

    @property
    def _every(self) -> Iterator[tuple[int, ...]]:
        """All combinations of the listed sizes."""
        return product(*(d.sizes for d in self._arguments.dims))

    @property
    def programs(self) -> dict[tuple[int, ...], Compiled | CompiledPieces | CompiledStages]:
        """The programs compiled so far and not dropped again (the latest 8 are kept), by their sizes in the order of
        `dims`."""
        with self._lock:
            return dict(self._made)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions whose sizes calls choose, in the order in which `program` takes their sizes."""
        return self._arguments.dims

    @property
    def _called(self) -> tuple[nn.Module, Collection[str]]:
        return self._model, self._arguments.example

    @property
    def config(self) -> Any:
        """The model's `config`. Raises `AttributeError` if the model has none."""
        return self._model.config

    @property
    def last_run(self) -> Run | None:
        """Time, traffic and utilization of the latest call's run; None before the first call."""
        return None if self._latest is None else self._latest.last_run

    def explain(self) -> str:
        """Return a table, as text, of the modules, where each runs and why, for the program of the largest sizes.
        Compiles it if it is not there; raises as `program`."""
        return self.program(*(d.sizes[-1] for d in self._arguments.dims)).explain()

    def save(self, path: str | os.PathLike[str], encoder: SavedText | None = None) -> None:
        """Write the model to a file (`.rsnmodel`) for `rsn.load`: programs for all sizes, the weights, and the part
        that PyTorch runs. Programs that are missing are compiled. encoder: of a model of texts, its tokenizer.

        Raises what `rsn.compile` raises, and `UnsupportedError`, naming the operator, if the host part cannot be
        written.
        """
        with self._lock:
            self._follow()
            parts = (self._part(sizes) for sizes in self._every)
            write(path, parts, self._filling.padding, self._borders, encoder=encoder)

    def _part(self, sizes: tuple[int, ...]) -> ModelVariant:
        made = self._program(sizes)
        if self._verification is None:
            return made.part(sizes)
        return replace(made.part(sizes), verified=self._verification.when(made.at(self._seen), sizes))

    def close(self) -> None:
        """Release the boards, and drop the programs: a later call compiles its program again."""
        with self._lock:
            while self._made:
                self._made.popitem()[1].close()

    def forget(self) -> None:
        """In a forked child: replace locks that another thread of the parent may have held."""
        self._lock = threading.RLock()
        self._followed.forget()

    def __repr__(self) -> str:
        sizes = ", ".join(f"{d.what} {'|'.join(map(str, d.sizes))}" for d in self._arguments.dims)
        return f"<rsn.Family: {sizes}; {len(self._made)} programs so far>"
