"""Layout of activations and weights off chip: column order, padding, and offsets in a bank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..base.errors import UnsupportedError
from ..isa.layout import padded
from ..isa.overlay import Overlay
from ..isa.program import Buffer
from .graph import Array, AttentionLayer, Gemm, Layer, LayerGraph

HEAD_COLS = 64
"""Columns of an attention head on XNN, whose product units take 64 in K or in columns. For other overlays see
`Overlay.head_columns`."""


def head_pitch(width: int) -> int:
    """Columns from a head of `width` columns to the next, on XNN: 64 times a power of 2. For other overlays see
    `Overlay.head_pitch`."""
    return HEAD_COLS << max(0, -(-width // HEAD_COLS) - 1).bit_length()


@dataclass(frozen=True)
class Columns:
    """How the columns of an activation are stored: `groups` groups of `width` columns, each padded to `pitch` columns,
    all together padded to a multiple of `align` columns, by default the K and N of an MME."""

    groups: int
    width: int
    pitch: int
    panel: int | None = None
    """Width of a panel: the matrix is stored as panels of so many columns, one behind the other; None for one panel.
    Activations that the host does not read are stored in panels, one for each column tile."""
    align: int = 128

    @property
    def count(self) -> int:
        """Number of columns without any padding: that of the activation."""
        return self.groups * self.width

    @property
    def stored(self) -> int:
        """Number of columns in memory, padding of groups and of the whole included."""
        return padded(self.groups * self.pitch, self.align)

    @property
    def end(self) -> int:
        """Number of stored columns up to the last one that is not padding."""
        return (self.groups - 1) * self.pitch + self.width

    @property
    def used(self) -> int:
        """Number of stored columns that a product reads: up to the last one that is not padding, in slices of
        `align`."""
        return padded(self.end, self.align)

    @property
    def is_plain(self) -> bool:
        """Whether there is no padding between groups: column i is stored as column i."""
        return self.groups == 1 or self.pitch == self.width

    def positions(self) -> npt.NDArray[np.intp]:
        """The number of the stored column in which each column of the activation lies, shape (count,), ascending."""
        g, i = np.divmod(np.arange(self.count), self.width)
        return g * self.pitch + i


def lay_out_heads(network: LayerGraph, out: dict[str, Columns], made: Callable[[int, int], Columns]) -> None:
    """Replace the layouts of activations in heads: those that attentions read or write, and those whose heads a product
    normalises or rotates.

    out: the layouts by the name of the activation, changed in place. made: from the number of heads and the columns of
    each to their layout. Raises `UnsupportedError`, naming the layer or output, for an activation that would need two
    layouts, and for an input or output whose heads would be padded.
    """
    heads_of: dict[str, Columns] = {}
    for layer in network.layers:
        for name, count in heads_in(layer):
            width = layer.head_dim if isinstance(layer, AttentionLayer) else layer.width // layer.heads
            heads = made(count, width)
            known = heads_of.setdefault(name, heads)
            if known != heads and not (known.is_plain and heads.is_plain):
                raise UnsupportedError(
                    f"{layer.place}: {name} in {heads.groups} heads of {heads.width} columns; another attention "
                    f"reads or writes it in {known.groups} heads of {known.width}"
                )
            out[name] = heads
            if name in network.inputs and name not in network.states and heads.width < heads.pitch:
                raise UnsupportedError(
                    f"{layer.place}: attention over a network input with heads of {heads.width} columns; "
                    f"they must be {heads.pitch} columns wide"
                )
    for name in (output.name for output in network.outputs):
        if not out[name].is_plain:
            raise UnsupportedError(
                f"{name}: heads of {out[name].width} columns as an output; they must be {out[name].pitch} columns wide"
            )


def heads_in(layer: Layer) -> list[tuple[str, int]]:
    """The names of the activations of a layer that are in heads, each with the number of its heads. Empty for a product
    whose result is not in heads."""
    if isinstance(layer, AttentionLayer):
        keys = layer.heads // layer.groups
        return [(layer.q, layer.heads), (layer.k, keys), (layer.v, keys), (layer.y, layer.heads)]
    return [(layer.y, layer.heads)] if layer.in_heads else []


def reads(layer: Layer) -> list[str]:
    """The names of the activations that a layer reads, without those that a product changes in place (`into`) or takes
    rotation factors from."""
    if isinstance(layer, AttentionLayer):
        return list(layer.operands)
    return [layer.x] if layer.residual is None else [layer.x, layer.residual]


def plain(values: Array | None) -> tuple[float, ...] | None:
    """A vector, (N,), as a tuple of N numbers; None stays None."""
    return None if values is None else tuple(float(v) for v in values)


def stored_weight(gemm: Gemm, x: Columns, columns: npt.NDArray[np.intp], cols: int) -> Array:
    """Arrange a weight as stored: rows in the column layout of x, column i of the weight at `columns[i]` of `cols`
    columns, and zeros elsewhere; shape (x.used, cols), float32."""
    out = np.zeros((x.used, cols), np.float32)
    out[np.ix_(x.positions(), columns)] = gemm.weight
    return out


def stored_vector(vector: Array, columns: npt.NDArray[np.intp], cols: int) -> Array:
    """Arrange a vector as stored: element i at `columns[i]` of `cols` elements, and zeros elsewhere; shape (cols,),
    float32."""
    out = np.zeros(cols, np.float32)
    out[columns] = vector
    return out


class Arena:
    """Allocates offsets in one bank, in address units, from `start` on. Freed pieces are reused for pieces of the same
    size, so that the layers of a stack share memory for their activations."""

    def __init__(self, start: int = 0) -> None:
        self._end = start
        self._free: dict[tuple[str, int], list[int]] = {}

    def take(self, units: int, kind: str = "") -> int:
        """Allocate `units` address units, of memory that only data of this kind (any text) reuses. Returns their offset
        in the bank, in address units."""
        pool = self._free.get((kind, units))
        if pool:
            return pool.pop()
        at = self._end
        self._end = padded(at + units, 64)
        return at

    def give(self, at: int, units: int, kind: str = "") -> None:
        """Free the `units` address units at offset `at`, which `take` gave for the same kind."""
        self._free.setdefault((kind, units), []).append(at)


class RoomError(UnsupportedError):
    """A network needs more off-chip memory than a bank holds. Splitting its graph does not help: all parts are programs
    for one board."""


def check_room(buffers: Iterable[Buffer], overlay: Overlay, rows: str, weights: str, activations: str) -> None:
    """Raises `RoomError` if buffers end beyond their bank. rows: the network's batch and rows as text, for messages.
    weights, activations: the names of the banks that hold them, which may be the same; other banks hold weights."""
    ends = dict.fromkeys((weights, activations), 0)
    for b in buffers:
        ends[b.bank] = max(ends.get(b.bank, 0), 4 * (b.offset * overlay.address_unit + b.size))
    fewer_rows = "compile for a smaller batch or for shorter sequences"
    for bank, end in ends.items():
        subject, remedy = "the weights, padding included, need", _FEWER
        if bank == activations == weights:
            subject = f"the weights and the activations of {rows}, with all padding, need"
            remedy = f"{_FEWER}; or {fewer_rows}"
        elif bank == activations:
            subject = f"the activations of {rows}, with the biases of attention and all padding, need"
            remedy = fewer_rows
        _check(end, bank, overlay, subject, remedy)


def check_weights(elements: int, overlay: Overlay, bank: str) -> None:
    """Raises `RoomError` if `elements` float32 weights exceed the bank named `bank` even without padding. It allows an
    early error, before weights are copied."""
    _check(4 * elements, bank, overlay, "the weights need", _FEWER)


_FEWER = "compile a model with fewer or smaller layers, or compile its parts separately, each for its own board"


def _check(needed: int, bank: str, overlay: Overlay, subject: str, remedy: str) -> None:
    capacity = overlay.banks[bank]
    if needed > capacity:
        amount, limit = sizes_as_text(needed, capacity)
        banks = ", ".join(f"{name} {sizes_as_text(size, size)[0]}" for name, size in overlay.banks.items())
        raise RoomError(
            f"{subject} {amount} in float32, but bank {bank}, which holds them, has {limit} (banks of overlay "
            f"{overlay.name}: {banks}): {remedy}"
        )


def sizes_as_text(a: int, b: int) -> tuple[str, str]:
    """Two sizes in bytes as text, with enough decimals that they differ if the sizes do."""
    unit, size = ("GB", 10**9) if b >= 10**9 else ("MB", 10**6)
    for digits in range(2, 10):
        texts = f"{a / size:.{digits}f} {unit}", f"{b / size:.{digits}f} {unit}"
        if a == b or texts[0] != texts[1]:
            break
    return texts
