"""Tensors to and from the machine's memory, and the files they come in."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import TensorError
from rsn.host import tensors
from rsn.isa.layout import padded
from rsn.isa.program import Buffer, Layout, Role


def buffer(batch: int, seq: int, cols: int, **more: object) -> Buffer:
    shape = (batch * padded(seq, 128), padded(cols, 128))
    return Buffer("x", "ddr", 0, shape, Layout.BLOCKED, Role.INPUT, (batch, seq, cols), **more)  # type: ignore[arg-type]


@given(st.integers(1, 3), st.integers(1, 200), st.integers(1, 200))
def test_unpack_inverts_pack_and_padding_is_0(batch: int, seq: int, cols: int) -> None:
    b = buffer(batch, seq, cols)
    x = np.random.default_rng(seq).standard_normal((batch, seq, cols)).astype(np.float32)
    flat = tensors.pack(b, x)
    assert flat.shape == (b.size,)
    assert (tensors.unpack(b, flat) == x).all()
    assert np.count_nonzero(flat) == np.count_nonzero(x)


def test_scale_and_shift_apply_per_column_when_an_output_is_read() -> None:
    b = buffer(1, 2, 3, scale=(1.0, 2.0, 3.0), shift=(0.0, 0.5, 0.0))
    flat = tensors.pack(b, np.ones((1, 2, 3), np.float32))
    assert tensors.unpack(b, flat).tolist() == [[[1.0, 2.5, 3.0]] * 2]


def test_one_sequence_may_come_without_its_batch() -> None:
    b = buffer(1, 2, 3)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert (tensors.pack(b, x) == tensors.pack(b, x[None])).all()


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (np.zeros((2, 5, 3), np.float64), "x has dtype float64; the machine computes in float32"),
        (np.zeros((2, 3, 5), np.float32), r"x has shape \(2, 3, 5\); this program takes \(2, 5, 3\)"),
        (np.zeros((30,), np.float32), "x has shape"),
    ],
)
def test_misfits_name_the_buffer(tensor: np.ndarray, message: str) -> None:
    with pytest.raises(TensorError, match=message):
        tensors.pack(buffer(2, 5, 3), tensor)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_files_round_trip(tmp_path: Path, suffix: str) -> None:
    x = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b.c": np.zeros(4, np.float32)}
    path = tmp_path / f"t{suffix}"
    tensors.save_tensors(path, x)
    back = tensors.load_tensors(path)
    assert set(back) == set(x)
    assert all((back[n] == x[n]).all() for n in x)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # nothing temporary is left


def test_a_bare_array_has_no_name(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(3, np.float32))
    assert list(tensors.load_tensors(tmp_path / "x.npy")) == [""]


WEIGHT = Buffer("w", "lpddr", 0, (128, 64), Layout.BLOCKED, Role.WEIGHT)


def test_packed_and_plain_weights_load_to_the_same(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32)
    tensors.save_tensors(tmp_path / "plain.safetensors", {"w": w})
    tensors.save_tensors(tmp_path / "packed.safetensors", {"w": tensors.pack(WEIGHT, w)}, packed=True)
    plain, packed = (tensors.WeightFile(tmp_path / f"{n}.safetensors", (WEIGHT,)) for n in ("plain", "packed"))
    assert (plain["w"] == packed["w"]).all()


@pytest.mark.parametrize(
    ("saved", "packed", "message"),
    [
        ({"v": np.zeros(3, np.float32)}, False, r"f.safetensors: tensor 'w' is missing"),
        ({"w": np.zeros((64, 128), np.float32)}, False, r"f.safetensors: w has shape \(64, 128\)"),
        ({"w": np.zeros((128, 64), np.float64)}, False, "w has dtype float64"),
        ({"w": np.zeros(100, np.float32)}, True, r"w has shape \(100,\); packed, this program takes 8192 elements"),
        ({"w": np.zeros(8192, np.float16)}, True, "w has dtype F16"),
    ],
)
def test_weights_that_do_not_fit(tmp_path: Path, saved: dict, packed: bool, message: str) -> None:
    path = tmp_path / "f.safetensors"
    tensors.save_tensors(path, saved, packed=packed)
    with pytest.raises(TensorError, match=message):
        tensors.WeightFile(path, (WEIGHT,))


@pytest.mark.parametrize("name", ["x.safetensors", "x.npz", "x.npy"])
@pytest.mark.parametrize("content", [b"", b"garbage that is no tensor file", None])
def test_unreadable_files_are_named(tmp_path: Path, name: str, content: bytes | None) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TensorError, match=name):
        tensors.load_tensors(path)


def test_other_kinds_of_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TensorError, match=r"\.safetensors, \.npz or \.npy"):
        tensors.load_tensors(tmp_path / "x.pt")
    with pytest.raises(TensorError, match=r"written as \.safetensors or \.npz"):
        tensors.save_tensors(tmp_path / "x.npy", {})


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.npz"
    tensors.save_tensors(path, {"a": np.ones(3, np.float32)})
    before = path.read_bytes()

    def full(*args: object, **kwargs: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="no space"):
        tensors.save_tensors(path, {"a": np.zeros(3, np.float32)})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["t.npz"]


def test_items_of_different_lengths_in_a_linear_buffer() -> None:
    """They begin at equal distances; rows beyond a length are neither stored nor read."""
    b = Buffer("x", "ddr", 0, (16, 8), Layout.LINEAR, Role.OUTPUT, view=(2, 6, 5), rows=(6, 2))
    assert b.view_fits
    assert list(b.items) == [(0, 6), (8, 2)]
    x = np.arange(60, dtype=np.float32).reshape(2, 6, 5)
    flat = tensors.pack(b, x)
    assert np.array_equal(flat.reshape(16, 8)[8:10, :5], x[1, :2])
    assert not flat.reshape(16, 8)[10:].any()
    x[1, 2:] = 0
    assert np.array_equal(tensors.unpack(b, flat), x)
    assert not dataclasses.replace(b, rows=(6, 9), view=(2, 9, 5)).view_fits
