"""The names of a stream program: `from rsn.streams import *`.

A program is read, not executed, to check it. These names make it ordinary Python for editors, and let it be imported.
The body of a task never runs here: `task` replaces the function by one that refuses to be called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

from ..base.errors import UnsupportedError


@dataclass(frozen=True)
class ScalarType:
    """A scalar type, such as i32. `i32[4, 4]` is the type of a tile; `i32(x)` converts a value."""

    name: str
    shape: tuple[int, ...] = ()

    def __getitem__(self, shape: int | tuple[int, ...]) -> ScalarType:
        return ScalarType(self.name, shape if isinstance(shape, tuple) else (shape,))

    def __call__(self, value: Any) -> Any:
        return _only_in_a_task(self.name)

    def __matmul__(self, layout: Layout) -> ScalarType:
        return self


i8, i16, i32, i64 = (ScalarType(name) for name in ("i8", "i16", "i32", "i64"))
u8, u16, u32, u64 = (ScalarType(name) for name in ("u8", "u16", "u32", "u64"))
f16, bf16, f32, f64 = (ScalarType(name) for name in ("f16", "bf16", "f32", "f64"))
boolean = ScalarType("boolean")

BITS = {
    "boolean": 1,
    **{f"{kind}{bits}": bits for kind in "iu" for bits in (8, 16, 32, 64)},
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
}
"""Bits of a scalar of each type."""


class Stream:
    """A stream between two task instances: `Stream[T, N, P]` holds at most N elements of type T and moves P of them at
    a time. N is 2 and P is 1 unless stated. `Stream[T, N][A, B]` is an array of A x B streams."""

    def __class_getitem__(cls, parameters: Any) -> Stream:
        return cls()

    def __getitem__(self, index: Any) -> Stream:
        return self

    def put(self, value: Any) -> None:
        """Append a value; wait while the stream is full."""
        _only_in_a_task("put")

    def get(self) -> Any:
        """Take the oldest value; wait while the stream is empty."""
        return _only_in_a_task("get")


@dataclass(frozen=True)
class Layout:
    """How a tensor lies on the grid: one label for each axis of the tensor, R (a copy everywhere) or S<axis> (cut along
    that axis of the grid), such as "S0R"."""

    labels: str


def task(
    *, mapping: Sequence[int], args: Sequence[Any] = ()
) -> Callable[[Callable[..., Any]], Callable[..., NoReturn]]:
    """Declare a task. mapping: sizes of the grid; there is one instance for each of its points. args: tensors off the
    chip, one for each parameter."""

    def declare(function: Callable[..., Any]) -> Callable[..., NoReturn]:
        def refuse(*values: Any, **named: Any) -> NoReturn:
            _only_in_a_task(function.__name__)

        return refuse

    return declare


def get_tid() -> Any:
    """The point of the grid at which the instance is: an int for one axis, otherwise a tuple."""
    return _only_in_a_task("get_tid")


def meta_if(condition: Any) -> AbstractContextManager[None]:
    """`with meta_if(c):` keeps its body in those instances where c holds. c is known before the run."""
    return nullcontext()


def meta_elif(condition: Any) -> AbstractContextManager[None]:
    """Another arm of the `meta_if` before it."""
    return nullcontext()


def meta_else() -> AbstractContextManager[None]:
    """The last arm of the `meta_if` before it."""
    return nullcontext()


def meta_for(*bounds: int) -> Any:
    """`for i in meta_for(n):` or `with meta_for(n) as i:` repeats its body for each i, before the run."""
    return _only_in_a_task("meta_for")


def grid(*sizes: int) -> Iterator[Any]:
    """`for i, j in grid(a, b):` is a nest of loops, the last index innermost."""
    return _only_in_a_task("grid")


def tile(element: Any, *shape: int) -> Any:
    """A tile of an element type, such as `tile("f32", 4, 4)`."""
    return _only_in_a_task("tile")


def use(*values: Any) -> Any:
    """Read the arguments. The result is data."""
    return _only_in_a_task("use")


def drop(value: Any) -> None:
    """Discard a value on purpose."""
    _only_in_a_task("drop")


def data() -> bool:
    """A Boolean that is known in the run only."""
    return _only_in_a_task("data")


def _only_in_a_task(name: str) -> NoReturn:
    raise UnsupportedError(f"{name}: the body of a task is read, not called; check the file instead")
