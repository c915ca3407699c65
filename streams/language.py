"""The names of a stream program: `from rsn.streams import *`.

A program is read, not executed, to check it. These names make it ordinary Python for editors, and let it be imported.
The body of a task never runs here: `task` replaces the function by one that refuses to be called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn, ParamSpec

from ..base.errors import UnsupportedError

P = ParamSpec("P")


@dataclass(frozen=True)
class ScalarType:
    """A scalar type, such as i32. shape: sizes of the axes of a tile, empty for a scalar. `i32[4, 4]` is the type of a
    tile; `i32(x)` converts a value.
    """

    name: str
    shape: tuple[int, ...] = ()

    def __getitem__(self, shape: int | tuple[int, ...]) -> ScalarType:
        return ScalarType(self.name, shape if isinstance(shape, tuple) else (shape,))

    def __call__(self, value: Any) -> Any:
        return _only_in_a_task(self.name)

    def __matmul__(self, layout: Layout) -> ScalarType:
        return self


# Any for type-checkers: they accept these names, with numbers in brackets, in annotations.
i4: Any = ScalarType("i4")
i8: Any = ScalarType("i8")
i16: Any = ScalarType("i16")
i32: Any = ScalarType("i32")
i64: Any = ScalarType("i64")
u4: Any = ScalarType("u4")
u8: Any = ScalarType("u8")
u16: Any = ScalarType("u16")
u32: Any = ScalarType("u32")
u64: Any = ScalarType("u64")
f16: Any = ScalarType("f16")
bf16: Any = ScalarType("bf16")
f32: Any = ScalarType("f32")
f64: Any = ScalarType("f64")
boolean: Any = ScalarType("boolean")


class StreamDeclaration:
    """The value of `Stream[T, N, P]` when a program is imported as Python. It holds no tokens: programs are read, not
    executed."""

    def __class_getitem__(cls, parameters: Any) -> StreamDeclaration:
        return cls()

    def __getitem__(self, index: Any) -> StreamDeclaration:
        return self

    def __matmul__(self, order: Order) -> StreamDeclaration:
        return self

    def put(self, value: Any) -> None:
        """Append a value; wait while the stream is full. value: of the stream's element type and shape. A call raises
        `UnsupportedError`: it is read, not executed.
        """
        _only_in_a_task("put")

    def get(self) -> Any:
        """Take and return the oldest value, of the stream's element type and shape; wait while the stream is empty. A
        call raises `UnsupportedError`: it is read, not executed.
        """
        return _only_in_a_task("get")


Stream: Any = StreamDeclaration
"""A stream between two task instances: `Stream[T, N, P]` holds at most N elements of type T and moves P of them at a
time. N is 2 and P is 1 unless stated. `Stream[T, N][A, B]` is an array of A x B streams."""


class SizeDeclaration:
    """The value of `Size[N]` when a program is imported as Python."""

    def __class_getitem__(cls, largest: int) -> SizeDeclaration:
        return cls()


Size: Any = SizeDeclaration
"""A constant at the top of a file that each run gives: `rows: Size[32] = 8` has a value from 1 to 32, and 8 where a run
gives none. A machine is made for all of its values."""


@dataclass(frozen=True)
class Order:
    """The order in which the tokens of a stream carry a tensor: shape of a token, trips and steps of the loops that
    give the tokens (outermost first), and the loop that moves along each axis of the tensor. A stream states it as
    `s: Stream[f32[4, 2], 2] @ Order("4x2 [4,2]*[2,4] (d1,d0)")`, or, for type-checkers, as
    `s: Annotated[Stream[f32[4, 2], 2], Order("4x2 [4,2]*[2,4] (d1,d0)")]`."""

    text: str


@dataclass(frozen=True)
class Layout:
    """How a tensor lies on the grid: one label for each axis of the tensor, R (a copy everywhere) or S<axis> (cut along
    that axis of the grid), such as "S0R". With a "!" at the end, as in "S0R!", collectives bring what is stored there
    to this layout. In the layout of a parameter, a ? stands for a label that is found, as in "S0?". A parameter's
    layout is written `a: f32[64, 64] @ Layout("S0R")`, or, for type-checkers, `a: Annotated[f32[64, 64],
    Layout("S0R")]`."""

    labels: str


def task(
    *,
    mapping: Sequence[int],
    args: Sequence[Any] = (),
    rates: Mapping[str, float] | None = None,
    double_buffer: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., NoReturn]]:
    """Declare a task. mapping: sizes of the grid; there is one instance for each of its points. args: tensors off the
    chip, one for each parameter; in the task, a parameter is the part of its tensor that the instance holds. rates:
    work of its kernels in a cycle, as dict(matmul=256): multiply-adds of a product, elements of another kernel; None
    states none. double_buffer: the next parts of tensors are loaded, and the previous ones stored, while the task
    computes. A call of the task raises `UnsupportedError`: its body is read, not executed.
    """

    def declare(function: Callable[..., Any]) -> Callable[..., NoReturn]:
        def refuse(*values: Any, **named: Any) -> NoReturn:
            _only_in_a_task(function.__name__)

        return refuse

    return declare


def region() -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Declare a region: a function that holds streams, tasks and calls of other regions. A call of it at the top of a
    file, or of another region, makes them once more. Its parameters are numbers, streams and tensors. When a file is
    imported, a call does nothing.
    """

    def declare(function: Callable[P, None]) -> Callable[P, None]:
        def nothing(*values: P.args, **named: P.kwargs) -> None:
            """Regions are read, not run."""

        return nothing

    return declare


def get_tid() -> Any:
    """The point of the grid at which the instance is, each coordinate from 0: an int for one axis, otherwise a tuple of
    ints. A call raises `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("get_tid")


def meta_if(condition: Any) -> AbstractContextManager[None]:
    """`with meta_if(c):` keeps its body in those instances where the condition c holds, which is known before the run.
    The call gives an empty context, also where a file is imported.
    """
    return nullcontext()


def meta_elif(condition: Any) -> AbstractContextManager[None]:
    """Another arm of the `meta_if` before it. condition: as for `meta_if`; the body is kept where it holds and none of
    the conditions before it does.
    """
    return nullcontext()


def meta_else() -> AbstractContextManager[None]:
    """The last arm of the `meta_if` before it. Its body is kept in those instances where no condition of the arms
    before it holds.
    """
    return nullcontext()


def meta_for(*bounds: int) -> Any:
    """`for i in meta_for(n):` or `with meta_for(n) as i:` repeats its body for each i, before the run. bounds: as those
    of `range`, known before the run. A call raises `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("meta_for")


def grid(*sizes: int) -> Iterator[Any]:
    """`for i, j in grid(a, b):` is a nest of loops, the last index innermost. sizes: iterations of each loop, outermost
    first. A call raises `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("grid")


def tile(element: Any, *shape: int) -> Any:
    """A tile of an element type, such as `tile("f32", 4, 4)`, whose values the program does not state; a run takes 0.
    shape: sizes of its axes. A call raises `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("tile")


def use(*values: Any) -> Any:
    """Read the arguments (any values), and do nothing with them. The result is data: a value that is known in the run
    only. A call raises `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("use")


def drop(value: Any) -> None:
    """Discard a value on purpose, such as the result of a get. A call raises `UnsupportedError`: it is read, not
    executed.
    """
    _only_in_a_task("drop")


def data() -> bool:
    """A Boolean that is known in the run only: a condition of which the check tries both values. A call raises
    `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("data")


def cycles(count: int) -> None:
    """State how many clock cycles the puts and gets around it take together; without it they take 1. count: known
    before the run, 0 or more. A call raises `UnsupportedError`: it is read, not executed.
    """
    _only_in_a_task("cycles")


def local(x: Any) -> Any:
    """A tile as this instance's own: from here on nothing is checked of its layout, and of what is pending in it. x: a
    tile, which is returned. A call raises `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("local")


def allreduce(x: Any, op: str, axes: Any = None) -> Any:
    """Combine the tiles of all instances along mesh axes, as `x.allreduce(op, axes)`: each instance gets the result, of
    the shape of x. op: "+" or "max". axes: an int or a tuple; without them, those over which the reduction is pending.
    A call raises `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("allreduce")


def allgather(x: Any, axis: Any = None) -> Any:
    """The tiles that the instances along a mesh axis hold of x, one after the other along the axis of x that this mesh
    axis cuts, as `x.allgather(axis)`. axis: of x; without it, the one that is cut. A call raises `UnsupportedError`: it
    is read, not executed.
    """
    return _only_in_a_task("allgather")


def reduce_scatter(x: Any, op: str, axis: int, mesh_axis: Any = None) -> Any:
    """Combine the tiles of all instances along a mesh axis, as `allreduce` does, and cut the result along that mesh
    axis, as `x.reduce_scatter(op, axis, mesh_axis)`. op: "+" or "max". axis: of x, which is cut. mesh_axis: without it,
    the one over which the reduction is pending. A call raises `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("reduce_scatter")


# -- library kernels: tiles in, a tile out --------------------------------------------------------------------------


def matmul(a: Any, b: Any) -> Any:
    """Matrix product, as `a @ b`: (m, k) and (k, n) give (m, n). A call raises `UnsupportedError`: it is read, not
    executed.
    """
    return _only_in_a_task("matmul")


def add(a: Any, b: Any) -> Any:
    """Sum of each pair of elements, as `a + b`. a, b: tiles, or one of them a number; their axes are aligned from the
    last one, and an axis of size 1 is repeated. A call raises `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("add")


def sub(a: Any, b: Any) -> Any:
    """Difference of each pair of elements, as `a - b`. a, b: as for `add`. A call raises `UnsupportedError`: it is
    read, not executed.
    """
    return _only_in_a_task("sub")


def mul(a: Any, b: Any) -> Any:
    """Product of each pair of elements, as `a * b`. a, b: as for `add`. A call raises `UnsupportedError`: it is read,
    not executed.
    """
    return _only_in_a_task("mul")


def div(a: Any, b: Any) -> Any:
    """Quotient of each pair of elements, as `a / b`. a, b: as for `add`, of floats. A call raises `UnsupportedError`:
    it is read, not executed.
    """
    return _only_in_a_task("div")


def maximum(a: Any, b: Any) -> Any:
    """The larger one of each pair of elements. a, b: as for `add`. A call raises `UnsupportedError`: it is read, not
    executed.
    """
    return _only_in_a_task("maximum")


def minimum(a: Any, b: Any) -> Any:
    """The smaller one of each pair of elements. a, b: as for `add`. A call raises `UnsupportedError`: it is read, not
    executed.
    """
    return _only_in_a_task("minimum")


def scale(x: Any, c: Any) -> Any:
    """A tile x times a number c. A call raises `UnsupportedError`: it is read, not executed."""
    return _only_in_a_task("scale")


def transpose(x: Any, axes: Any = None) -> Any:
    """A tile with its axes in another order, as `numpy.transpose`: axis i of the result is axis axes[i] of x. axes: a
    tuple of integers that are known before the run; None reverses all axes, so that (m, n) gives (n, m). A call raises
    `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("transpose")


def reshape(x: Any, shape: Any) -> Any:
    """The tile x with the same elements, row-major, in another shape. shape: a tuple of sizes that are known before the
    run; a size of -1 follows from the others. A call raises `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("reshape")


def relu(x: Any) -> Any:
    """max(x, 0) of each element. x: a tile; the result has its shape. A call raises `UnsupportedError`: it is read, not
    executed.
    """
    return _only_in_a_task("relu")


def rint(x: Any) -> Any:
    """The nearest whole number of each element, of two as near the even one. x: a tile of floats; the result has its
    type and shape. So `i8(rint(x))` rounds, and `i8(x)` alone cuts the fraction off. A call raises `UnsupportedError`:
    it is read, not executed."""
    return _only_in_a_task("rint")


def gelu(x: Any) -> Any:
    """GELU of each element. x: a tile of floats; the result has its shape. A call raises `UnsupportedError`: it is
    read, not executed.
    """
    return _only_in_a_task("gelu")


def silu(x: Any) -> Any:
    """x / (1 + exp(-x)) of each element. x: a tile of floats; the result has its shape. A call raises
    `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("silu")


def tanh(x: Any) -> Any:
    """The hyperbolic tangent of each element. x: a tile of floats; the result has its shape. A call raises
    `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("tanh")


def banded(x: Any, first: int, last: int) -> Any:
    """x where first <= j - i <= last, and minus infinity elsewhere. i, j: row and column of an element in its tile. x:
    a tile of floats. Scores with a causal mask: `banded(scores, -rows, offset)`, if row i may see columns up to i +
    offset. A call raises `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("banded")


def replace_row(x: Any, row: Any, index: Any) -> Any:
    """x with the row at an index replaced; an index of no row of it changes nothing. x: a tile with two axes. row: a
    tile with one of its rows. index: a whole number. Where it is put on a stream, and x is got from one, x is not kept:
    `new.put(replace_row(old.get(), row, p))`. A call raises `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("replace_row")


def exp(x: Any) -> Any:
    """The exponential of each element. x: a tile of floats; the result has its shape. A call raises `UnsupportedError`:
    it is read, not executed.
    """
    return _only_in_a_task("exp")


def sqrt(x: Any) -> Any:
    """The square root of each element. x: a tile of floats; the result has its shape. A call raises `UnsupportedError`:
    it is read, not executed.
    """
    return _only_in_a_task("sqrt")


def softmax(x: Any) -> Any:
    """Softmax along the last axis. x: a tile of floats; the result has its shape. A call raises `UnsupportedError`: it
    is read, not executed.
    """
    return _only_in_a_task("softmax")


def layernorm(x: Any, gamma: Any = None, beta: Any = None, eps: float = 1e-5) -> Any:
    """Normalization of the last axis to mean 0 and variance 1; times gamma, plus beta if they are given. x: a tile of
    floats; the result has its shape. gamma, beta: one number for each element of that axis. eps: added to the variance.
    A call raises `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("layernorm")


def rmsnorm(x: Any, gamma: Any = None, eps: float = 1e-5) -> Any:
    """Normalization of the last axis to a mean square of 1; times gamma if it is given. x, gamma: as for `layernorm`.
    eps: added to the mean square. A call raises `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("rmsnorm")


def reduce_sum(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Sum of the tile x along an axis, some (a tuple) or all of them (None). The result does not have them, or one
    element along each of them with `keepdims`. A call raises `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("reduce_sum")


def reduce_max(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Maximum of the tile x along axes. x, axis, keepdims: as for `reduce_sum`. A call raises `UnsupportedError`: it is
    read, not executed.
    """
    return _only_in_a_task("reduce_max")


def zeros(element: Any, *shape: int) -> Any:
    """A tile of zeros, such as `zeros(f32, 4, 4)`. element: its element type. shape: sizes of its axes. A call raises
    `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("zeros")


def full(element: Any, value: Any, *shape: int) -> Any:
    """A tile of one value, such as `full(f32, 1.0, 4, 4)`. element: its element type. shape: sizes of its axes. A call
    raises `UnsupportedError`: it is read, not executed.
    """
    return _only_in_a_task("full")


def concat(*tiles: Any, axis: int = 0) -> Any:
    """Tiles one after the other along an axis, as `numpy.concatenate`. tiles: of one element type, and of one shape but
    for that axis. axis: known before the run; a negative one counts from the last. A call raises `UnsupportedError`: it
    is read, not executed.
    """
    return _only_in_a_task("concat")


LIBRARY = frozenset(
    function.__name__
    for function in (
        *(matmul, add, sub, mul, div, maximum, scale, transpose, relu, gelu, silu, exp, softmax, layernorm, rmsnorm),
        *(reduce_sum, reduce_max, zeros, full, concat, minimum, reshape, sqrt, rint, tanh, banded),
        replace_row,
    )
)
"""Names of the library kernels."""


def _only_in_a_task(name: str) -> NoReturn:
    raise UnsupportedError(f"{name}: the body of a task is read, not called; check the file instead")
