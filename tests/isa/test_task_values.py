"""Element types and library kernels of task machines against numpy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.element_types import ElementType
from rsn.base.errors import ProgramError
from rsn.isa.overlays.tasks.kernels import KERNELS
from rsn.isa.overlays.tasks.values import DTYPES, convert, from_words, words_of

INTEGERS = [name for name in DTYPES if name[0] in "iu"]
RANDOM = np.random.default_rng(0)


@given(st.integers(-(2**70), 2**70), st.sampled_from(INTEGERS))
def test_integers_wrap(value: int, name: str) -> None:
    bits, low = int(name[1:]), -(2 ** (int(name[1:]) - 1)) if name[0] == "i" else 0
    got = convert(value, ElementType(name))
    assert type(got) is int
    assert (got - value) % 2**bits == 0
    assert low <= got < low + 2**bits


@given(st.floats(width=32))
def test_small_floats_are_rounded_as_pytorch_does(value: float) -> None:
    for name, kind in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        expected = torch.tensor(value, dtype=torch.float32).to(kind).to(torch.float32).numpy()
        one, tile = convert(value, ElementType(name)), convert(np.full((2, 2), value), ElementType(name, (2, 2)))
        np.testing.assert_array_equal(one, expected)
        np.testing.assert_array_equal(tile, np.full((2, 2), expected))
        assert np.shape(one) == ()


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_words_of_a_memory(name: str, shape: tuple[int, ...]) -> None:
    tile = np.asarray(convert(RANDOM.integers(-120, 120, shape) * 1.0, ElementType(name, shape)), DTYPES[name])
    words = words_of(tile, name)
    assert words.dtype == np.float32
    back = from_words(words, name).reshape(shape)
    assert back.dtype == tile.dtype
    np.testing.assert_array_equal(back, tile)


def test_a_tile_of_another_shape() -> None:
    with pytest.raises(ProgramError, match="shape"):
        convert(np.zeros((2, 3)), ElementType("f32", (3, 2)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.full(2, np.nan)])
def test_no_integer_is_nan_or_infinite(value: Any) -> None:
    with pytest.raises(ProgramError):
        convert(value, ElementType("i32", np.shape(value)))


TENSOR = RANDOM.normal(size=(7, 33)).astype(np.float32) * 4
TORCH: dict[str, Any] = {
    "exp": torch.exp,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "softmax": lambda x: torch.softmax(x, -1),
    "layernorm": lambda x: torch.nn.functional.layer_norm(x, (33,)),
    "rmsnorm": lambda x: torch.nn.functional.rms_norm(x, (33,), eps=1e-5),
}


@pytest.mark.parametrize("name", TORCH)
def test_kernels(name: str) -> None:
    expected = TORCH[name](torch.tensor(TENSOR)).numpy()
    got = KERNELS[name](TENSOR)
    assert got.dtype == np.float32
    assert np.abs(got - expected).max() / np.abs(expected).max() < 1e-6


def test_banded() -> None:
    got = KERNELS["banded"](np.stack([TENSOR, -TENSOR]), -2, 5)
    seen = torch.ones(TENSOR.shape, dtype=torch.bool).tril(5).triu(-2).numpy()
    np.testing.assert_array_equal(got, np.where(seen, np.stack([TENSOR, -TENSOR]), -np.inf))
    assert got.dtype == np.float32


def test_products() -> None:
    for shapes in (((7, 33), (33, 5)), ((2, 4, 33), (33, 5)), ((2, 4, 9), (2, 9, 3))):
        a, b = (RANDOM.normal(size=shape).astype(np.float32) for shape in shapes)
        assert np.abs(KERNELS["matmul"](a, b) - a @ b).max() < 1e-5
    i = RANDOM.integers(-128, 128, (9, 40)).astype(np.int8)
    np.testing.assert_array_equal(KERNELS["matmul"](i, i.T), i.astype(np.int64) @ i.T.astype(np.int64))


@pytest.mark.parametrize("dtype", ["f4", "i8"])
def test_products_with_vectors(dtype: str) -> None:
    """A vector is one row on the left, one column on the right; numbers are whole, so that every order adds alike."""
    a, v = RANDOM.integers(-9, 9, (2, 3, 4)).astype(dtype), RANDOM.integers(-9, 9, 4).astype(dtype)
    for left, right in ((a, v), (a[0], v), (v, a[0].T), (v, v)):
        np.testing.assert_array_equal(KERNELS["matmul"](left, right), left @ right)


def test_exp_at_its_ends() -> None:
    """Its results are the least subnormal number and the largest number, and next to them 0 and infinity."""
    x = np.array([-np.inf, -104, -103.98, -103.97, 0, 88.72283, 88.72284, np.inf], np.float32)
    most = np.exp(np.float64(x[5]))
    expected = np.array([0, 0, 0, 2.0**-149, 1, most, np.inf, np.inf])
    np.testing.assert_allclose(KERNELS["exp"](x), expected, rtol=2e-7)


def test_exp_of_float32_is_within_its_error_and_never_decreases() -> None:
    """Numbers of both signs, from the least subnormal one to infinity."""
    bits = np.arange(0, 0x7F800001, 4099, dtype=np.uint32)
    x = np.concatenate([bits[::-1] | np.uint32(1 << 31), bits]).view(np.float32)
    got = KERNELS["exp"](x)
    assert (np.diff(got[np.isfinite(got)]) >= 0).all()
    normal = (x > -87.3) & (x < 88.72)
    expected = np.exp(x[normal].astype(np.float64))
    assert (np.abs(got[normal] - expected) / expected).max() < 1e-7
