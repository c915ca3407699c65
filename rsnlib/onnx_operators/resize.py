"""Resize, by its definition: a matrix for each axis that changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor

import torch

from .normal import INTERNAL
from .table import Floats, Ints, Tensor, axis_of, need, operator


@dataclass(frozen=True)
class ResizedAxis:
    """An axis that changes. rows, new: its sizes before and after, in elements. scale: new size over old size as the
    node gives it; it need not be exactly new / rows. start, end: the part of the axis that is shown, as fractions of
    it; `tf_crop_and_resize` alone reads them."""

    rows: int
    new: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    def places(self, mode: str) -> Tensor:
        """Return where each new row lies among the old ones: float32 (new,), in rows of the old axis, possibly outside
        of it. mode: ONNX's `coordinate_transformation_mode`. Raises `UnsupportedError` for a mode that it does not
        know, and for `align_corners` with a scale that gives no whole number of rows."""
        at = torch.arange(self.new, dtype=torch.float32)  # as onnxruntime: places may lie halfway but for rounding
        centres = (at + 0.5) / self.scale - 0.5
        if mode == "half_pixel":
            return centres
        if mode == "pytorch_half_pixel":
            return centres if self.new > 1 else torch.zeros_like(at)
        if mode == "half_pixel_symmetric":
            shown = self.new / (torch.tensor(float(self.rows)) * self.scale)  # float32, but what follows is float64
            return (self.rows / 2 * (1 - shown) + (at.double() + 0.5) / self.scale - 0.5).float()
        if mode == "asymmetric":
            return at / self.scale
        last = self.rows - 1
        if mode == "align_corners":
            # Of other scales ONNX's examples are not what onnxruntime computes.
            whole = abs(self.rows * self.scale - self.new) < 1e-6
            need(whole, "align_corners with a scale that gives no whole number of rows")
            return at * last / (self.new - 1) if self.new > 1 else torch.zeros_like(at)
        need(mode == "tf_crop_and_resize", f"coordinate_transformation_mode {mode}")
        if self.new == 1:
            return torch.full_like(at, (self.start + self.end) / 2 * last)
        return self.start * last + at * (self.end - self.start) * last / (self.new - 1)


BEFORE_11 = "before opset 11"
NEAREST: dict[str, Callable[[Tensor, float], Tensor]] = {
    "round_prefer_floor": lambda x, scale: torch.ceil(x - 0.5),
    "round_prefer_ceil": lambda x, scale: torch.floor(x + 0.5),
    "floor": lambda x, scale: torch.floor(x),
    "ceil": lambda x, scale: torch.ceil(x),
    BEFORE_11: lambda x, scale: torch.floor(x) if scale >= 1 else torch.ceil(x),
}
"""Which row a place between two rows stands for, on an axis of a scale."""


def _linear(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(a: float) -> Callable[[Tensor], Tensor]:
    def kernel(x: Tensor) -> Tensor:
        x = x.abs()
        near = ((a + 2) * x - (a + 3)) * x**2 + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return torch.where(x <= 1, near, torch.where(x < 2, far, torch.zeros_like(x)))

    return kernel


def _weights(
    axis: ResizedAxis, places: Tensor, kernel: Callable[[Tensor], Tensor], reach: int, stretch: float, is_inside: bool
) -> Tensor:
    """The share of each old row in each new one, (new, rows). reach: of the kernel. stretch: the kernel is wider by its
    reciprocal. is_inside: rows beyond the ends do not count; otherwise they are as the ends."""
    width = ceil(reach / stretch)
    taps = torch.floor(places)[:, None] + torch.arange(1 - width, width + 1)
    shares = kernel((taps - places[:, None]) * stretch)
    if is_inside:
        shares = shares * ((taps >= 0) & (taps < axis.rows))
    shares = shares / shares.sum(1, keepdim=True)
    made = torch.zeros(axis.new, axis.rows, dtype=torch.float64)
    return made.scatter_add(1, taps.clamp(0, axis.rows - 1).long(), shares)


@operator("Resize")
def resize(
    x: Tensor,
    roi: Floats | None = None,
    scales: Floats | None = None,
    sizes: Ints | None = None,
    *,
    antialias: int = 0,
    axes: list[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    """The operand with its axes resized, by `scales` or to `sizes`; modes nearest, linear and cubic.

    x: any shape. scales, sizes: one number for each of `axes` (all axes without it), the latter in elements. roi:
    starts, then ends, of these axes, as fractions; for `tf_crop_and_resize`. Other attributes: as ONNX defines them.
    Raises `UnsupportedError` for numbers that are not one for each axis, for an axis that lies outside, and for modes
    and policies that it does not know.
    """
    at = [axis_of(n, x.ndim) for n in (axes or range(x.ndim))]
    changes = _changes(x, at, roi, scales or [], sizes or [], keep_aspect_ratio_policy)
    is_crop = coordinate_transformation_mode == "tf_crop_and_resize"
    need(mode in ("nearest", "linear", "cubic"), f"mode {mode}")
    need(nearest_mode in NEAREST, f"nearest_mode {nearest_mode}")
    if all(axis.new == axis.rows for axis in changes) and not is_crop:
        return x  # whatever the scales are, as in onnxruntime
    outside = torch.zeros([1] * x.ndim, dtype=torch.bool)
    for where, axis in zip(at, changes, strict=True):
        if axis.new == axis.rows and (axis.scale == 1 or antialias) and not is_crop:
            continue
        places = axis.places(coordinate_transformation_mode)
        if is_crop:
            shape = [-1 if i == where else 1 for i in range(x.ndim)]
            outside = outside | ((places < 0) | (places > axis.rows - 1)).reshape(shape)
        if mode == "nearest":
            x = x.index_select(where, NEAREST[nearest_mode](places, axis.scale).clamp(0, axis.rows - 1).long())
            continue
        kernel, reach = (_linear, 1) if mode == "linear" else (_cubic(cubic_coeff_a), 2)
        stretch = min(axis.scale, 1.0) if antialias else 1.0
        shares = _weights(axis, places.double(), kernel, reach, stretch, bool(exclude_outside))
        x = (x.transpose(where, -1) @ shares.T.to(x.dtype)).transpose(where, -1)
    return torch.where(outside, torch.full((), extrapolation_value, dtype=x.dtype), x) if is_crop else x


@operator("Upsample", domain=INTERNAL)
def upsample(
    x: Tensor, factors: Floats | None = None, *, scales: list[float] | None = None, mode: str = "nearest"
) -> Tensor:
    """The operand resized as `Resize` and `Upsample` do it before opset 11: the first rows stay in their places, and
    "nearest" is the row before a place where an axis grows, and the one behind it where it shrinks, as onnxruntime's.

    x: any shape. factors: new size over old size of each axis; before opset 9 the attribute `scales`. mode: "nearest"
    or "linear". Raises `UnsupportedError` for other modes, and for another number of factors.
    """
    need(mode in ("nearest", "linear"), f"mode {mode}")
    given = factors or scales
    return resize(x, scales=given, coordinate_transformation_mode="asymmetric", mode=mode, nearest_mode=BEFORE_11)


def _changes(
    x: Tensor, at: list[int], roi: list[float] | None, scales: list[float], sizes: list[int], policy: str
) -> list[ResizedAxis]:
    """How each of some axes changes."""
    rows = [x.shape[n] for n in at]
    need(len(scales or sizes) == len(at), "a scale or a size for each axis")
    if sizes and policy != "stretch":
        choose = {"not_larger": min, "not_smaller": max}.get(policy)
        need(choose is not None, f"keep_aspect_ratio_policy {policy}")
        assert choose is not None
        scale = choose(size / n for size, n in zip(sizes, rows, strict=True))
        scales, sizes = [scale] * len(at), [floor(scale * n + 0.5) for n in rows]
    elif sizes:
        scales = [size / n for size, n in zip(sizes, rows, strict=True)]
    else:
        sizes = [floor(scale * n) for scale, n in zip(scales, rows, strict=True)]
    ends = roi or [0.0] * len(at) + [1.0] * len(at)
    need(len(ends) == 2 * len(at), "a start and an end for each axis")
    parts = zip(rows, sizes, scales, ends[: len(at)], ends[len(at) :], strict=True)
    return [ResizedAxis(*part) for part in parts]
