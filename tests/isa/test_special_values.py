"""Kernels, operators and conversions of task machines against PyTorch, on NaN, infinities, zeros of both signs and
subnormal numbers: all that the tables have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.element_types import FLOATS, SCALARS, ElementType
from rsn.base.errors import ProgramError
from rsn.base.operators import BITWISE
from rsn.isa.overlays.tasks.kernels import KERNELS, matmul
from rsn.isa.overlays.tasks.operators import BINARY, UNARY
from rsn.isa.overlays.tasks.values import DTYPES, convert
from rsn.tests.effort import examples
from rsn.tests.special_values import LARGE, ORDINARY, SPECIAL, arrays, assert_same, numbers

Tensor = torch.Tensor
ROWS, COLUMNS = 3, 5


def maximum(a: Tensor, b: Tensor) -> Tensor:
    """torch.maximum gives either zero of two that are equal, by the place in the tensor; +0 is the larger one here."""
    return torch.where((a == 0) & (b == 0), a + b, torch.maximum(a, b))


def minimum(a: Tensor, b: Tensor) -> Tensor:
    return -maximum(-a, -b)


def largest(x: Tensor, dim: int) -> Tensor:
    """torch.amax likewise."""
    most = x.amax(dim)
    return torch.where(most == 0, torch.where(((x == 0) & ~x.signbit()).any(dim), 0.0, -0.0), most)


def gelu(x: Tensor) -> Tensor:
    """Element by element: of a whole vector, it is NaN of infinity in PyTorch."""
    return torch.stack([torch.nn.functional.gelu(one) for one in x.flatten()]).reshape(x.shape)


def banded(x: Tensor, first: int, last: int) -> Tensor:
    return torch.where(torch.ones_like(x, dtype=torch.bool).tril(last).triu(first), x, -torch.inf)


def replaced(x: Tensor, row: Tensor, at: int) -> Tensor:
    return torch.where(torch.arange(len(x))[:, None] == at, row, x)


Call = tuple[tuple[Any, ...], Callable[..., Tensor]]
CALLS: Mapping[str, list[Call]] = {
    "scale": [((), torch.mul)],
    "rint": [((), torch.round)],
    "maximum": [((), maximum)],
    "minimum": [((), minimum)],
    "gelu": [((), gelu)],
    "softmax": [((), partial(torch.softmax, dim=-1))],
    "layernorm": [((), lambda x, g, b: torch.nn.functional.layer_norm(x, (COLUMNS,), g, b))],
    "rmsnorm": [((1e-5,), lambda x, g: torch.nn.functional.rms_norm(x, (COLUMNS,), g, 1e-5))],
    "transpose": [((), lambda x: x.T), ((0, 1), lambda x: x)],
    "reshape": [((-1,), lambda x: x.reshape(-1))],
    "reduce_sum": [((axis,), partial(torch.sum, dim=axis)) for axis in (0, 1)],
    "reduce_max": [((axis,), partial(largest, dim=axis)) for axis in (0, 1)],
    "concat": [((), lambda a, b: torch.cat([a, b]))],
    "full": [],
    "banded": [((first, last), partial(banded, first=first, last=last)) for first, last in ((-1, 0), (0, 9), (3, 1))],
    "replace_row": [((at,), partial(replaced, at=at)) for at in (0, ROWS - 1, ROWS, -1)],
}
"""Arguments behind the tiles, and what PyTorch calls the kernel. Others have PyTorch's name, and no such arguments."""
SHAPES = {"gamma": (COLUMNS,), "beta": (COLUMNS,), "row": (1, COLUMNS)}
"""Of tiles that are not ROWS x COLUMNS, by the name of the operand."""
OPERANDS: Mapping[str, tuple[str, ...]] = {
    "abs": ("x",), "concat": ("a", "b"), "banded": ("x",), "replace_row": ("x", "row"),
}  # fmt: skip
"""The tiles of kernels whose table does not have just them."""
NUMBERS: Mapping[str, Callable[..., Any]] = {
    "float": float, "bool": bool, "int": lambda x: int(torch.tensor(x).trunc().item()),
    "max": lambda *x: torch.tensor(x, dtype=torch.float64).max().item(),
    "min": lambda *x: torch.tensor(x, dtype=torch.float64).min().item(),
}  # fmt: skip
"""Kernels of numbers, and what PyTorch gives."""
NO_VALUES = {"shape", "ndim", "len", "none", "use", "data", "full"}
"""Kernels that do not compute with the values that they get."""
ULPS = {"sqrt": 1, "exp": 4, "tanh": 6, "silu": 8, "softmax": 12, "gelu": 4}
"""Errors of kernels that are not exact: units in the last place of the result. gelu: and 3e-7 of the operand."""
SUMS = {"matmul", "layernorm", "rmsnorm", "reduce_sum"}
"""Kernels that sum, which PyTorch does in another order: errors are relative to the largest number."""

TILES = sorted(KERNELS.keys() - NUMBERS.keys() - NO_VALUES)


def the_calls(name: str) -> list[Call]:
    """The calls of a kernel, and what PyTorch has for each."""
    found = getattr(torch, name, None) or getattr(torch.nn.functional, name, None)
    assert name in CALLS or found, f"state in CALLS what PyTorch has for {name}"
    return CALLS.get(name) or [((), found)]


@pytest.mark.parametrize("name", TILES)
@given(st.data())
@examples(200, quick=6, share=30, deadline=None)
def test_kernels_on_tiles(name: str, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([np.float32, np.float64]))
    kernel, large = KERNELS[name], name not in SUMS
    operands = OPERANDS.get(name, kernel.operands)
    tiles = [
        np.resize(np.array(ORDINARY, kind), SHAPES[operand])  # an infinity times a rounding error would be anything
        if operand in SHAPES
        else data.draw(arrays((ROWS, COLUMNS), kind, large=large))
        for operand in operands
    ]
    if name == "matmul":
        tiles[1] = np.ascontiguousarray(tiles[1].T)
    for arguments, torch_kernel in the_calls(name):
        expected = torch_kernel(*(torch.tensor(tile) for tile in tiles)).numpy()
        with np.errstate(all="ignore"):
            got = kernel(*tiles, *arguments)
            within = ULPS.get(name, 0) * np.spacing(np.abs(np.nan_to_num(expected))).astype(np.float64)
            if name == "gelu":
                within += 3e-7 * np.nan_to_num(np.abs(tiles[0]))
        if name in SUMS:
            within = 1e-5 * max(1, *(np.abs(tile[np.isfinite(tile)]).max(initial=0) for tile in tiles)) ** 2
        assert np.asarray(got).dtype == expected.dtype
        assert_same(got, expected, within, signs=name not in SUMS or name == "reduce_sum")


@pytest.mark.parametrize("name", NUMBERS)
@given(st.data())
@examples(100, quick=10)
def test_kernels_on_numbers(name: str, data: st.DataObject) -> None:
    count = 2 if name in ("max", "min") else 1
    given_numbers = [np.float32(data.draw(numbers())) for _ in range(count)]
    if name == "int" and not np.isfinite(given_numbers[0]):
        with pytest.raises((ValueError, OverflowError)):
            KERNELS[name](*given_numbers)
        return
    assert_same(KERNELS[name](*given_numbers), NUMBERS[name](*map(float, given_numbers)), signs=count == 1)


def remainder(a: Tensor, b: Tensor) -> Tensor:
    """A remainder of 0 has the sign of the divisor, as in Python; in PyTorch that of the dividend."""
    found = torch.remainder(a, b)
    return torch.where(found == 0, torch.copysign(found, b), found)


TORCH_OPERATORS: Mapping[str, Callable[..., Tensor]] = {
    "+": torch.add, "-": torch.sub, "*": torch.mul, "/": torch.div, "//": torch.floor_divide, "%": remainder,
    "**": torch.pow, "==": torch.eq, "!=": torch.ne, "<": torch.lt, "<=": torch.le, ">": torch.gt, ">=": torch.ge,
}  # fmt: skip
OF_INTEGERS = {*BITWISE, "<<", ">>"}


@pytest.mark.parametrize("symbol", [symbol for symbol in BINARY if symbol not in OF_INTEGERS])
@given(st.data())
@examples(200, quick=6, share=30)
def test_operators(symbol: str, data: st.DataObject) -> None:
    a, b = (data.draw(arrays((ROWS, COLUMNS))) for _ in range(2))
    if symbol in ("in", "not in"):
        number = a[0, 0]
        found = (number == b).any().item()
        assert BINARY[symbol](number, tuple(b.flatten())) == (found == (symbol == "in"))
        assert BINARY[symbol](number, (number,)) == (bool(np.isnan(number)) != (symbol == "in"))
        return
    with np.errstate(all="ignore"):
        got, expected = BINARY[symbol](a, b), TORCH_OPERATORS[symbol](torch.tensor(a), torch.tensor(b)).numpy()
    # powers are those of the computer
    within = 4 * np.spacing(np.abs(np.nan_to_num(expected))).astype(np.float64) if symbol == "**" else 0.0
    assert_same(got, expected, within)


@pytest.mark.parametrize(("symbol", "torch_operator"), [("-", torch.neg), ("+", torch.positive)])
@given(arrays((ROWS, COLUMNS)))
@examples(100, quick=5)
def test_signs(symbol: str, torch_operator: Callable[[Tensor], Tensor], x: Any) -> None:
    assert_same(UNARY[symbol](x), torch_operator(torch.tensor(x)).numpy())


NAMES = {"boolean": "bool", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
NAMES |= {"i4": "int8", "u4": "uint8"}  # the same for the numbers that both types have


@pytest.mark.parametrize("name", SCALARS)
@given(st.data())
@examples(300, quick=25)
def test_conversions(name: str, data: st.DataObject) -> None:
    """Numbers and tiles alike. Of a float that the integer type does not have, the integer wraps; PyTorch leaves it
    open what it is. What is no number becomes no integer."""
    kind = data.draw(st.sampled_from([np.float32, np.float64]))
    ends = st.sampled_from([65519.99, 65520.0, 5.9e-8, 2e-8, 1e30])  # of f16, and beyond integers
    value = kind(data.draw(numbers(bits=8 * np.dtype(kind).itemsize) | ends))
    integer = DTYPES[name].kind in "iu"
    if integer and not np.isfinite(value):
        for given_value, shape in ((value, ()), (np.full(2, value), (2,))):
            with pytest.raises((ProgramError, ValueError, OverflowError)):
                convert(given_value, ElementType(name, shape))
        return
    one, tile = convert(value, ElementType(name)), convert(np.full(2, value), ElementType(name, (2,)))
    torch_kind = getattr(torch, NAMES.get(name, SCALARS[name].numpy))
    if integer:
        bits, whole = SCALARS[name].bits, int(value)
        low, high = SCALARS[name].limits
        expected = (whole - low) % (1 << bits) + low
        assert not low <= whole <= high or expected == int(torch.tensor(value).to(torch_kind))
        assert one == expected
        assert tile.tolist() == [expected, expected]
        return
    wanted = torch.tensor(value).to(torch_kind)
    expected_float = wanted.to(torch.float32 if name in FLOATS and name != "f64" else torch_kind).numpy()
    assert_same(one, expected_float)
    assert_same(tile, np.full(2, expected_float))


def test_every_special_value_is_in_a_table() -> None:
    """What the properties draw from has what they are for."""
    x = np.float32([*SPECIAL, *LARGE])
    assert np.isnan(x).any()
    assert np.isposinf(x).any()
    assert np.isneginf(x).any()
    assert {False, True} == set(np.signbit(x[x == 0]).tolist())
    assert ((x != 0) & (np.abs(x) < np.finfo(np.float32).tiny)).any()


def test_a_product_of_matrices_that_do_not_meet_is_no_product() -> None:
    with pytest.raises(ValueError, match="3 columns and 4 rows do not meet"):
        matmul(np.ones((2, 3), np.float32), np.ones((4, 5), np.float32))
