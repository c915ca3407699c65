"""Lowering: from segments to one kernel sequence per functional unit (paper sections 4.1 to 4.4, Fig. 10 and 11)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..base.errors import UnsupportedError
from ..isa.fields import Record
from ..isa.layout import BLOCK_ROWS, UNIT
from ..isa.overlay import Overlay
from ..isa.program import Buffer, Layout, Role, UnpackedProgram
from ..machine.timing import Timing
from . import bias
from .attention_unfused import lower_as, place_as
from .gemm import PlacedGemms, lower_gemms, place_gemms
from .graph import Array, AttentionLayer, Gemm, LayerGraph, Output
from .kernel_builder import KernelBuilder
from .memory import Arena
from .pack import Starts
from .room import check_room
from .schedule import Schedule


@dataclass(frozen=True)
class Lowered:
    """The result of lowering: kernel sequences, and the weights as stored off chip."""

    kernels: UnpackedProgram
    weights: Weights
    found: Timing | None = None
    """The run of list scheduling, without the instruction path; None for other orders of DDR accesses."""
    starts: Starts | None = None
    """When each mOP began in that run."""

    def show(self) -> str:
        """The sequences as text, unit by unit; consecutive equal mOPs are one line."""
        out = []
        for unit, sequence in {**self.kernels.sequences, **self.kernels.preloaded}.items():
            out.append(f"{unit}: {len(sequence)}")
            out += [f"  {len(list(equal)):>4} x {_words(record)}" for record, equal in groupby(sequence)]
        return "\n".join(out) + "\n"


def _words(record: Record) -> str:
    values = {x.name: getattr(record, x.name) for x in record.FIELDS}
    return " ".join([type(record).__name__, *(f"{name}={value:g}" for name, value in values.items() if value)])


class Weights(Mapping[str, Array]):
    """Stored elements by buffer name. Every access packs them anew: together they are as large as the model, and every
    user copies them elsewhere, so that keeping them would cost memory for nothing."""

    def __init__(self, made: Mapping[str, Callable[[], Array]]) -> None:
        self._made = made

    def __getitem__(self, name: str) -> Array:
        return self._made[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


def lower(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> Lowered:
    """Lower a network to kernel sequences for an XNN overlay. Raises `UnsupportedError` naming the layer that the
    overlay cannot run or the bank that is too small, and `ScheduleError` if the schedule does not fit the network."""
    sequences, placed = _placed(network, overlay, schedule)
    for segment, gemms in zip(sequences.plan, placed, strict=True):
        first = len(sequences.tiles)
        if isinstance(segment.layers, AttentionLayer):
            lower_as(sequences, segment.layers, segment.mapping)
        elif gemms is not None:
            lower_gemms(sequences, gemms)
        for tile in sequences.tiles[first:]:
            tile.rule = segment.rule
        sequences.tiles[-1].drain = segment.drain
    kernels = sequences.finish()
    return Lowered(kernels, Weights(sequences.weights), sequences.found, sequences.starts)


KINDS = ("DDR", "LPDDR", "MemA", "MemB", "MemC", "MeshA", "MeshB", "MME")
"""The types of units that networks are lowered to."""


def require_units(overlay: Overlay) -> None:
    """Raise `UnsupportedError` for an overlay without the units that networks are lowered to."""
    missing = [kind for kind in KINDS if kind not in overlay.by_kind]
    if missing:
        raise UnsupportedError(
            f"overlay {overlay.name} lacks units that models need ({', '.join(missing)}); it runs programs written by "
            "hand. Models are compiled for xnn or xnn-base"
        )


def place(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> None:
    """Check that a network fits off-chip memory, without lowering it. Raises like `lower`."""
    _placed(network, overlay, schedule)


def _placed(
    network: LayerGraph, overlay: Overlay, schedule: Schedule
) -> tuple[KernelBuilder, Sequence[PlacedGemms | None]]:
    """A builder with all off-chip buffers but no kernels yet, and the placed products of each segment; None for
    attention."""
    require_units(overlay)
    sequences = KernelBuilder(network, overlay, schedule)
    place_activations(sequences)
    placed: list[PlacedGemms | None] = []
    for segment in sequences.plan:
        if isinstance(segment.layers, AttentionLayer):
            place_as(sequences, segment.layers, segment.mapping)
            placed.append(None)
        else:
            placed.append(place_gemms(sequences, segment.layers, segment.loops))
    check_room(sequences.buffers.values(), overlay, network.size)
    return sequences, placed


def place_activations(s: KernelBuilder) -> None:
    """Place the activations in DDR. Inputs and outputs keep their memory; the memory of other activations is reused
    after their last reader (liveness)."""
    for layer in s.net.layers:
        if isinstance(layer, AttentionLayer) and layer.bias is not None:
            bias.place(s, layer)
    arena = Arena(s.ends["ddr"])
    outputs = {o.name: o for o in s.net.outputs}
    last: dict[str, int] = {}
    for i, layer in enumerate(s.net.layers):
        for name in _reads(layer):
            last[name] = i

    def add(name: str, role: Role, output: Output | None = None) -> None:
        cols = s.columns[name]
        panel = cols.panel or cols.stored
        shape = (-(-cols.stored // panel) * s.row_blocks * BLOCK_ROWS, panel)
        at = arena.take(shape[0] * shape[1] // UNIT)
        view = (s.net.batch, s.net.seq, cols.count) if role is not Role.SCRATCH else None
        scale, shift = (None, None) if output is None else (_plain(output.scale), _plain(output.shift))
        rows = s.net.lengths if view is not None else ()
        s.buffers[name] = Buffer(name, "ddr", at, shape, Layout.BLOCKED, role, view, rows, scale, shift)

    for name in s.net.inputs:
        add(name, Role.INPUT)
    for i, layer in enumerate(s.net.layers):
        out = outputs.get(layer.y)
        add(layer.y, Role.OUTPUT if out is not None else Role.SCRATCH, out)
        for name in dict.fromkeys(_reads(layer)):
            b = s.buffers[name]
            if last[name] == i and b.role is Role.SCRATCH:
                arena.give(b.offset, b.size // UNIT)


def _reads(layer: Gemm | AttentionLayer) -> list[str]:
    if isinstance(layer, AttentionLayer):
        return [layer.q, layer.k, layer.v]
    return [layer.x] if layer.residual is None else [layer.x, layer.residual]


def _plain(values: Array | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(float(v) for v in values)
