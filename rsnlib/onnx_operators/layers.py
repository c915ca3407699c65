"""Products, convolutions, pools and norms."""

from __future__ import annotations

from math import ceil
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from .elementwise import in_float32, wide
from .table import MICROSOFT, Tensor, axis_of, need, operator

SPATIAL = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
"""Convolutions by their number of axes."""


@operator("MatMul")
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product of two tensors, as that of numpy.

    a: (..., rows, inner). b: (..., inner, columns). Other axes are broadcast; an operand may also have one axis.
    PyTorch raises `RuntimeError` for sizes that do not fit.
    """
    return a @ b


@operator("Gemm")
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    """alpha * a @ b + beta * c, of two matrices.

    a: (rows, inner), or (inner, rows) with transA. b: (inner, columns), or (columns, inner) with transB. c: is
    broadcast to (rows, columns); None adds nothing. PyTorch raises `RuntimeError` for sizes that do not fit.
    """
    made = (a.t() if transA else a) @ (b.t() if transB else b)
    made = made if alpha == 1 else made * alpha
    if c is None or beta == 0:
        return made
    return made + (c if beta == 1 else c * beta)


@operator("FusedMatMul", domain=MICROSOFT)
def fused_matmul(
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    """alpha * a @ b.

    Shapes: as for `matmul`; transA and transB exchange the last two axes of an operand. Raises `UnsupportedError` for
    transBatchA and transBatchB.
    """
    need(not transBatchA and not transBatchB, "transBatchA and transBatchB are not supported")
    made = (a.transpose(-1, -2) if transA else a) @ (b.transpose(-1, -2) if transB else b)
    return made if alpha == 1 else made * alpha


@operator("Einsum")
def einsum(*inputs: Tensor, equation: str) -> Tensor:
    """Sums of products, as `torch.einsum` reads the equation.

    equation: names the axes of each input, such as "bhqd,bhkd->bhqk". PyTorch raises `RuntimeError` for an equation
    that does not fit the inputs.
    """
    return torch.einsum(equation, *inputs)


# -- windows


def _pads(n: int, kernel: int, stride: int, dilation: int, auto: str, given: tuple[int, int]) -> tuple[int, int]:
    """Rows of padding before and behind an axis of n rows."""
    if auto == "VALID":
        return 0, 0
    if auto == "NOTSET":
        return given
    need(auto in ("SAME_UPPER", "SAME_LOWER"), f"auto_pad {auto}")
    total = max((ceil(n / stride) - 1) * stride + dilation * (kernel - 1) + 1 - n, 0)
    return (total // 2, total - total // 2) if auto == "SAME_UPPER" else (total - total // 2, total // 2)


class OnnxWindows:
    """The windows of a convolution or a pool over the last axes of x.

    x: (batch, channels, sizes ...). kernel, strides, dilations: one number of elements for each of the last axes; None
    for 1. pads: elements of padding before each of them, then behind each; None for 0. auto_pad: ONNX's rule for the
    padding; only "NOTSET" reads `pads`. begin, end: the padding that follows, in elements before and behind each axis.
    Raises `UnsupportedError` for another number of axes, and for another rule.
    """

    def __init__(
        self,
        x: Tensor,
        kernel: list[int],
        strides: list[int] | None,
        dilations: list[int] | None,
        pads: list[int] | None,
        auto_pad: str,
    ) -> None:
        self.axes = len(kernel)
        need(x.ndim == self.axes + 2, f"{self.axes} axes of a tensor with {x.ndim}")
        self.kernel, self.strides = kernel, strides or [1] * self.axes
        self.dilations = dilations or [1] * self.axes
        given = pads or [0] * 2 * self.axes
        both = [
            _pads(
                x.shape[2 + i],
                kernel[i],
                self.strides[i],
                self.dilations[i],
                auto_pad,
                (given[i], given[i + self.axes]),
            )
            for i in range(self.axes)
        ]
        self.begin, self.end = [a for a, _ in both], [b for _, b in both]

    @property
    def padding(self) -> list[int]:
        """The padding in elements as `F.pad` takes it: before and behind the last axis, then the last but one, and so
        on."""
        return [n for pair in reversed(list(zip(self.begin, self.end, strict=True))) for n in pair]


@operator("Conv")
def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """A convolution over one, two or three axes.

    x: (batch, channels, sizes ...). w: (output channels, channels / group, kernel sizes ...). b: (output channels,).
    group: groups of channels that are convolved apart. Others: as for `OnnxWindows`. Returns (batch, output channels,
    sizes ...). Raises `UnsupportedError` for another number of axes, a kernel_shape that is not that of w, and as
    `OnnxWindows` does.
    """
    need(x.ndim - 2 in SPATIAL, f"a convolution over {x.ndim - 2} axes is not supported; 1, 2 and 3 are")
    windows = OnnxWindows(x, kernel_shape or list(w.shape[2:]), strides, dilations, pads, auto_pad)
    need(windows.kernel == list(w.shape[2:]), "kernel_shape is not that of the weights")
    if windows.begin == windows.end:
        return SPATIAL[windows.axes](x, w, b, windows.strides, windows.begin, windows.dilations, group)
    return SPATIAL[windows.axes](F.pad(x, windows.padding), w, b, windows.strides, 0, windows.dilations, group)


@operator("ConvTranspose")
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    output_padding: list[int] | None = None,
    output_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """A transposed convolution over one, two or three axes.

    x: (batch, channels, sizes ...). w: (channels, output channels / group, kernel sizes ...). b: (output channels,).
    output_padding, output_shape: elements of each of the last axes of the result; they add to it, and set it.
    kernel_shape is not read: it is that of w. Others: as for `conv`. Returns (batch, output channels, sizes ...).
    Raises `UnsupportedError` for another number of axes, and for another rule of padding.
    """
    rank = x.ndim - 2
    compute = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}.get(rank)
    need(compute is not None, f"a convolution over {rank} axes is not supported; 1, 2 and 3 are")
    assert compute is not None
    need(auto_pad in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"), f"auto_pad {auto_pad}")
    stride, more = strides or [1] * rank, output_padding or [0] * rank
    whole: Tensor = compute(x, w, None, stride, 0, 0, group, dilations or [1] * rank)
    pads = list(pads or []) if auto_pad == "NOTSET" else []
    pads = pads or [0] * 2 * rank
    for i in range(rank):
        size = whole.shape[2 + i] + more[i]
        wanted = output_shape[i] if output_shape else x.shape[2 + i] * stride[i]
        if output_shape or auto_pad.startswith("SAME"):
            total = size - wanted if output_shape else max(size - wanted, 0)
            pads[i] = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            pads[i + rank] = total - pads[i]
    cut = [n for i in reversed(range(rank)) for n in (-pads[i], more[i] - pads[i + rank])]
    made = F.pad(whole, cut)
    return made if b is None else made + b.reshape(-1, *[1] * rank)


@operator("MaxPool")
def max_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    storage_order: int = 0,
    strides: list[int] | None = None,
) -> Tensor:
    """The largest element of each window, without its place.

    x: (batch, channels, sizes ...), one, two or three sizes; so is the result. ceil_mode: the last window may end
    behind the padding. storage_order: not read. Others: as for `OnnxWindows`. Raises `UnsupportedError` for another
    number of axes, for a window in the padding alone, and as `OnnxWindows` does.
    """
    compute = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}.get(x.ndim - 2)
    need(compute is not None, "a pool over one, two or three axes")
    if not x.is_floating_point():
        kind, exact = x.dtype, x.double()
        return max_pool(
            exact,
            auto_pad=auto_pad,
            ceil_mode=ceil_mode,
            dilations=dilations,
            kernel_shape=kernel_shape,
            pads=pads,
            strides=strides,
        ).to(kind)
    windows = OnnxWindows(x, kernel_shape, strides, dilations, pads, auto_pad)
    assert compute is not None
    padded = F.pad(x, windows.padding, value=-torch.inf)
    made: Tensor = compute(padded, kernel_shape, windows.strides, 0, windows.dilations, bool(ceil_mode))
    need(not ceil_mode or bool(_fits(made, x, windows)), "a window that lies in the padding alone")
    return made


def _fits(made: Tensor, x: Tensor, windows: OnnxWindows) -> bool:
    """Whether each window begins before the padding behind the tensor."""
    return all(
        (made.shape[2 + i] - 1) * windows.strides[i] < x.shape[2 + i] + windows.begin[i] for i in range(windows.axes)
    )


@operator("AveragePool")
def average_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: list[int] | None = None,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """The mean of each window over one, two or three axes; `count_include_pad` counts the padding too.

    Shapes, attributes and errors: as for `max_pool`, but a window in the padding alone is not refused.
    """
    windows = OnnxWindows(x, kernel_shape, strides, dilations, pads, auto_pad)
    need(windows.axes in SPATIAL, "a pool over one, two or three axes")
    ones = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype)
    counted = F.pad(ones, windows.padding, value=float(count_include_pad))
    return _sums(F.pad(x, windows.padding), windows, bool(ceil_mode)) / _sums(counted, windows, bool(ceil_mode))


def _sums(x: Tensor, windows: OnnxWindows, to_the_end: bool) -> Tensor:
    """The sum of each window. to_the_end: the last one may end behind the tensor, if it begins within."""
    behind = []
    for n, kernel, stride, dilation in zip(
        x.shape[2:], windows.kernel, windows.strides, windows.dilations, strict=True
    ):
        left = (n - dilation * (kernel - 1) - 1) % stride
        behind.append(stride - left if to_the_end and left else 0)
    padded = F.pad(x, [n for more in reversed(behind) for n in (0, more)])
    ones = torch.ones((1, 1, *windows.kernel), dtype=x.dtype)
    made = SPATIAL[windows.axes](padded.flatten(0, 1).unsqueeze(1), ones, None, windows.strides, 0, windows.dilations)
    made = made.unflatten(0, x.shape[:2]).squeeze(2)
    for i, stride in enumerate(windows.strides):  # windows that would begin behind the tensor and its padding
        rows = -(-(x.shape[2 + i] - windows.end[i]) // stride)
        made = made.narrow(2 + i, 0, min(made.shape[2 + i], rows)) if behind[i] else made
    return made


@operator("GlobalAveragePool")
def global_average_pool(x: Tensor) -> Tensor:
    """The mean over all axes behind the second.

    x: (batch, channels, sizes ...). Returns (batch, channels, 1 ...).
    """
    return x.mean(list(range(2, x.ndim)), keepdim=True) if x.ndim > 2 else x


@operator("GlobalMaxPool")
def global_max_pool(x: Tensor) -> Tensor:
    """The largest element over all axes behind the second.

    Shapes: as for `global_average_pool`.
    """
    return x.amax(list(range(2, x.ndim)), keepdim=True) if x.ndim > 2 else x


# -- norms


def affine(shape: tuple[int, ...], x: Tensor | None) -> Tensor | None:
    """Return the scale or shift x of a norm over the last axes, broadcast to `shape`, the sizes of these axes. None if
    x is None, or if x differs along other axes, so that the norm cannot take it. PyTorch raises `RuntimeError` for an x
    that does not broadcast to `shape`."""
    if x is None:
        return None
    rank = len(shape)
    if any(n != 1 for n in x.shape[: max(x.ndim - rank, 0)]):
        return None
    return x.reshape(x.shape[max(x.ndim - rank, 0) :]).expand(shape)


def layer_norm(x: Tensor, axes: int, scale: Tensor | None, bias: Tensor | None, epsilon: float) -> Tensor:
    """Return the LayerNorm over the last `axes` axes of x, times scale, plus bias, in the shape of x. scale, bias: must
    broadcast to x; None for none. epsilon: is added to the variance. Raises `UnsupportedError` for others, or PyTorch
    raises `RuntimeError`."""
    over = tuple(x.shape[x.ndim - axes :])
    weight, shift = affine(over, scale), affine(over, bias)
    if (weight is None) == (scale is None) and (shift is None) == (bias is None):
        return F.layer_norm(x, over, weight, shift, epsilon)
    made = F.layer_norm(x, over, None, None, epsilon)
    made = made if scale is None else made * scale
    return _of_shape(x, made if bias is None else made + bias)


def rms_norm(x: Tensor, axes: int, scale: Tensor | None, epsilon: float) -> Tensor:
    """Return x divided by its root mean square over the last `axes` axes, times scale, in the shape of x. scale: must
    broadcast to x; None for none. epsilon: is added to the mean square. Raises as `layer_norm`."""
    over = tuple(x.shape[x.ndim - axes :])
    weight = affine(over, scale)
    if (weight is None) == (scale is None):
        return F.rms_norm(x, over, weight, epsilon)
    assert scale is not None
    return _of_shape(x, F.rms_norm(x, over, None, epsilon) * scale)


def _of_shape(x: Tensor, made: Tensor) -> Tensor:
    """The scaled norm of x, if scale and bias have not made it larger."""
    need(made.shape == x.shape, f"a scale or bias that makes {list(made.shape)} of {list(x.shape)}")
    return made


def statistics(x: Tensor, axes: int, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return the mean of x and the reciprocal of its standard deviation over the last `axes` axes, both in the shape of
    x with 1 for each of them, and in float32. epsilon: is added to the variance."""
    over = list(range(x.ndim - axes, x.ndim))
    x = wide(x)
    average = x.mean(over, keepdim=True)
    return average.float(), ((x - average).square().mean(over, keepdim=True) + epsilon).rsqrt().float()


@operator("LayerNormalization")
def layer_normalization(
    x: Tensor,
    scale: Tensor,
    b: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    wanted: int = 1,
) -> Any:
    """LayerNorm over the axes from `axis` on; computed in the type of x, whatever `stash_type` says.

    x: any shape, which the first output has too. scale, b: as for `layer_norm`, with its error. wanted: with more
    outputs than one, mean and reciprocal deviation follow (`statistics`). Raises `UnsupportedError` for an axis that
    lies outside.
    """
    axes = x.ndim - axis_of(axis, x.ndim)
    made = layer_norm(x, axes, scale, b, epsilon)
    return made if wanted == 1 else (made, *statistics(x, axes, epsilon))


@operator("RMSNormalization")
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    """RMSNorm over the axes from `axis` on; computed in the type of x, whatever `stash_type` says.

    x: any shape, which the result has too. scale: as for `rms_norm`, with its error. Raises `UnsupportedError` for an
    axis that lies outside.
    """
    return rms_norm(x, x.ndim - axis_of(axis, x.ndim), scale, epsilon)


@operator("BatchNormalization")
def batch_normalization(
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Tensor:
    """A norm with stored means and variances, in a model that is not trained.

    x: (batch, channels, ...), which is the shape of the result. scale, b, input_mean, input_var: (channels,). epsilon:
    is added to the variance. momentum: not read. Raises `UnsupportedError` for training_mode.
    """
    need(not training_mode, "training_mode")
    return F.batch_norm(x, input_mean, input_var, scale, b, eps=epsilon)


@operator("InstanceNormalization")
def instance_normalization(input: Tensor, scale: Tensor, b: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    """A norm of each channel of each sequence, over all axes behind the second.

    input: (batch, channels, sizes ...), which is the shape of the result. scale, b: (channels,). epsilon: is added to
    the variance.
    """
    return _by_channel(F.layer_norm(input, input.shape[2:], eps=epsilon), scale, b)


@operator("GroupNormalization")
def group_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1
) -> Tensor:
    """A norm of groups of channels; computed in the type of x, whatever `stash_type` says.

    x: (batch, channels, ...), which is the shape of the result. scale, bias: (channels,). epsilon: is added to the
    variance. num_groups: must divide the number of channels, or PyTorch raises `RuntimeError`.
    """
    return _by_channel(F.group_norm(x, num_groups, eps=epsilon), scale, bias)


def _by_channel(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    shape = (-1, *[1] * (x.ndim - 2))
    return x * scale.reshape(shape) + bias.reshape(shape)


@operator("LRN")
def local_response(x: Tensor, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int) -> Tensor:
    """x / (bias + alpha / size * s) ** beta, with s the sum of the squares of `size` neighbouring channels.

    x: (batch, channels, ...), which is the shape of the result. Channels that do not exist count as 0.
    """
    before = (size - 1) // 2

    def normalised(x: Tensor) -> Tensor:
        squares = F.pad(x.square(), [0, 0] * (x.ndim - 2) + [before, size - 1 - before])
        total = sum((squares.narrow(1, i, x.shape[1]) for i in range(size)), torch.zeros(()))
        return x / (bias + alpha / size * total) ** beta

    return in_float32(normalised)(x)
