"""`rsn.compile(..., dynamic_shapes=...)`: one model, called with batches and lengths of many sizes.

A program is for one size. Here is a family of them, for the sizes that are listed, each compiled when it is first
wanted; a call takes the cheapest that it fits into (`rsnlib.shape_buckets`), filled up, and its result is cut to what
was asked. That filling up changes nothing is not taken for granted: see `rsnlib.padding_check`.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Any, Self

from ...base.errors import UnsupportedError
from ...rsnlib.padding_check import Filling
from ...rsnlib.shapes import Arguments, Dim, Shapes
from ..closing import Closing
from ..forks import forget_in_children

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from ...hw.sim.machine import Run
    from ...rsnlib.changes import Followed
    from ...rsnlib.precision import Borders
    from .compiled import Compiled

REMEMBERED = 8
"""Programs of a model that are kept."""


HELD = (
    "what rsn.compile made holds a board and cannot be copied or pickled: copy the model and compile that, or "
    "save(program, weights), which rsn.Runner runs anywhere"
)

Make = Callable[[dict[str, Any], Callable[["ExportedProgram"], None]], "Compiled"]


class Family(Closing):
    """A module as several programs. Call it as the module; it returns what the module returns.

    make: the compiler, from example inputs by name; it shows the captured graph to a function that it is given. Raises
    `UnsupportedError` for a module whose result depends on what is filled in, `TensorError` for shapes that do not fit.
    borders: of a model whose weights are in half precision; example inputs and programs are in float32.
    """

    def __init__(
        self,
        followed: Followed,
        example_inputs: tuple[Any, ...] | dict[str, Any],
        shapes: Shapes,
        make: Make,
        borders: Borders | None = None,
    ) -> None:
        self._followed, self._seen, self._borders = followed, followed.look(), borders
        self._model = followed.original
        """Kept, for programs that are yet to be compiled."""
        self._arguments = Arguments(inspect.signature(self._model.forward), example_inputs, shapes)
        self._make = make
        self._made: OrderedDict[tuple[int, ...], Compiled] = OrderedDict()
        self._lock = threading.RLock()
        """One call at a time, as on a board."""
        self._latest: Compiled | None = None
        self._filling = Filling(followed.module, self._arguments)
        forget_in_children(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises as a call of `Compiled`, and `TensorError` for sizes beyond those listed."""
        if self._borders is not None:
            args, kwargs = self._borders.widened(self._arguments.signature, args, kwargs)
        call = self._filling.padding.fit(args, kwargs)
        with self._lock:
            seen = self._follow()
            self._latest = self._program(call.taken)
            result = self._filling.padding.cut(self._latest.call_with(seen, (), call.given), call)
            return result if self._borders is None else self._borders.narrowed(result)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The same as a call, under the name that a module has for it."""
        return self(*args, **kwargs)

    def refresh(self) -> None:
        """Compile the model as it is now, each program when it is next called: for changes that cannot be seen, such as
        writes through NumPy."""
        self._followed.changed()
        with self._lock:
            self._follow()

    def _follow(self) -> int:
        """Look whether the model has changed, and then whether it still may be filled up. How often it has changed."""
        seen = self._followed.look()
        change = self._followed.change_since(self._seen)
        if change:
            if change == change.NUMBERS:
                self._filling.check_again()
            else:
                self._filling = Filling(self._followed.module, self._arguments)
                for made in self._made.values():
                    made.close()
                self._made.clear()
            self._seen = seen
        return seen

    def program(self, *sizes: int) -> Compiled:
        """The program for these sizes, in the order of `dims`; compiled now, if it was not before."""
        with self._lock:
            self._follow()
            return self._program(sizes)

    def _program(self, sizes: tuple[int, ...]) -> Compiled:
        with self._lock:
            if sizes not in self._made:
                example = self._arguments.resized(self._arguments.example, sizes)
                self._made[sizes] = self._make(example, lambda captured: self._filling.check(sizes, captured))
                while len(self._made) > REMEMBERED:
                    self._made.popitem(last=False)[1].close()
            self._made.move_to_end(sizes)
            return self._made[sizes]

    def prepare(self) -> Self:
        """Compile for all sizes now, rather than when they are first wanted."""
        for sizes in self._every:
            self.program(*sizes)
        return self

    @property
    def _every(self) -> Iterator[tuple[int, ...]]:
        """All sizes that there are programs for."""
        return product(*(d.sizes for d in self._arguments.dims))

    @property
    def programs(self) -> dict[tuple[int, ...], Compiled]:
        """Those that were compiled, by their sizes."""
        with self._lock:
            return dict(self._made)

    @property
    def dims(self) -> tuple[Dim, ...]:
        return self._arguments.dims

    @property
    def device(self) -> torch.device:
        """Where arguments and results are: the CPU."""
        import torch

        return torch.device("cpu")

    @property
    def config(self) -> Any:
        """The model's, where it has one. Raises `AttributeError` otherwise."""
        return self._model.config

    @property
    def last_run(self) -> Run | None:
        """What the most recent call took on the machine."""
        return None if self._latest is None else self._latest.last_run

    def explain(self) -> str:
        """Which module runs where, and why, in the program for the largest sizes."""
        return self.program(*(d.sizes[-1] for d in self._arguments.dims)).explain()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole model (`.rsnmodel`), for `rsn.load`: programs for all sizes, weights once, and what PyTorch
        runs of it. What was not compiled yet is, now. Raises as `rsn.compile`, and `UnsupportedError`, naming the
        operator, for a host's part that cannot be written."""
        from .file import write

        with self._lock:
            self._follow()
            parts = (self._program(sizes).part(sizes) for sizes in self._every)
            write(path, parts, self._filling.padding, self._borders)

    def close(self) -> None:
        """Give the boards back."""
        with self._lock:
            while self._made:
                self._made.popitem()[1].close()

    def forget(self) -> None:
        """In a forked process: locks may have been another thread's."""
        self._lock = threading.RLock()
        self._followed.forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        raise UnsupportedError(HELD)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UnsupportedError(HELD)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{d.what} {'|'.join(map(str, d.sizes))}" for d in self._arguments.dims)
        return f"<rsn.Family: {sizes}; {len(self._made)} programs so far>"
