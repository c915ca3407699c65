"""Convolutions as matrix products: the host gathers what each window covers into a row, the machine multiplies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch.fx import Node

from .capture import arguments, packet, shape_of
from .rewriter import Rewriter

aten = torch.ops.aten

CONVOLUTIONS = {aten.conv1d: 1, aten.conv2d: 2, aten.conv3d: 3}
"""Each with its spatial dimensions."""


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution over (..., C, *sizes). One number, of elements, for each spatial dimension.

    kernel, stride, dilation: of the windows. before, after: zeros that are added before the first position and behind
    the last one.
    """

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def is_patches(self) -> bool:
        """Whether windows neither overlap nor leave gaps, and have no zeros around them."""
        plain = (1,) * len(self.kernel)
        return self.stride == self.kernel and self.dilation == plain and not any((*self.before, *self.after))

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of windows along each spatial dimension."""
        axes = zip(self.sizes, self.kernel, self.stride, self.dilation, self.before, self.after, strict=True)
        return tuple((n + a + b - d * (k - 1) - 1) // s + 1 for n, k, s, d, a, b in axes)


def windows_of(node: Node) -> Windows | None:
    """Return the windows of a convolution, read from its arguments; None for any other operator."""
    n = CONVOLUTIONS.get(packet(node), 0)
    a = arguments(node)
    if not n:
        return None
    kernel = tuple(shape_of(a["weight"])[2:])
    stride, dilation = _each(a["stride"], n), _each(a["dilation"], n)
    padding = a["padding"]
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        before, after = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    else:
        before = after = (0,) * n if padding == "valid" else _each(padding, n)
    return Windows(tuple(shape_of(a["input"])[-n:]), kernel, stride, dilation, before, after)


def _each(setting: int | Sequence[int], n: int) -> tuple[int, ...]:
    """A convolution's setting for each of its dimensions."""
    many = tuple(setting) if isinstance(setting, list | tuple) else (setting,)
    return many * n if len(many) == 1 else many


def patch_rows(graph: Rewriter, node: Node, windows: Windows) -> Node:
    """Insert before a convolution the operators that make rows of separate patches, (..., patches, C * kernel): views,
    and a copy. node: the convolution. windows: its windows (`Windows.is_patches`). Returns the last node inserted.
    Elements beyond the last whole patch are dropped."""
    x = arguments(node)["input"]
    n, shape = len(windows.kernel), shape_of(x)
    *leading, channels = shape[:-n]
    counts = windows.counts
    for axis, (size, count, k) in enumerate(zip(windows.sizes, counts, windows.kernel, strict=True), len(shape) - n):
        if size != count * k:
            x = graph.insert(node, aten.slice.Tensor, x, axis, 0, count * k, origin=node)
    both = [size for pair in zip(counts, windows.kernel, strict=True) for size in pair]
    first = len(leading)
    order = [*range(first), *range(first + 1, first + 1 + 2 * n, 2), first, *range(first + 2, first + 2 + 2 * n, 2)]
    x = graph.insert(node, aten.reshape.default, x, [*leading, channels, *both])
    x = graph.insert(node, aten.permute.default, x, order)
    return graph.insert(node, aten.reshape.default, x, [*leading, prod(counts), channels * prod(windows.kernel)])


def gathered_rows(graph: Rewriter, node: Node, windows: Windows) -> Node | None:
    """Insert before a convolution the operators that gather rows, (..., windows, C * kernel), of windows that overlap,
    leave gaps or reach over borders. node: the convolution. windows: its windows. Returns the last node inserted; None
    for three spatial dimensions."""
    n = len(windows.kernel)
    if n > 2:
        return None
    x = arguments(node)["input"]
    leading = list(shape_of(x)[: -n - 1])
    if any((*windows.before, *windows.after)):
        around = [pad for pair in zip(reversed(windows.before), reversed(windows.after), strict=True) for pad in pair]
        x = graph.insert(node, aten.constant_pad_nd.default, x, around)
    one = [1] * (2 - n)  # im2col takes two dimensions
    x = graph.insert(node, aten.reshape.default, x, [-1, shape_of(x)[-n - 1], *one, *shape_of(x)[-n:]])
    kernel, dilation, stride = ([*one, *setting] for setting in (windows.kernel, windows.dilation, windows.stride))
    x = graph.insert(node, aten.im2col.default, x, kernel, dilation, [0, 0], stride)
    x = graph.insert(node, aten.permute.default, x, [0, 2, 1])
    return graph.insert(node, aten.reshape.default, x, [*leading, *shape_of(x)[1:]])
