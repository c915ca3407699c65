"""Stage `bind`: assign the tasks of every segment to units.

Input: `Tiled`. Output: `BoundWork`, the work items of every unit. The patterns of the overlay say which units play
which role: products go to its grid (`grid`), attention to its pipeline, by mapping type: A, B and C
(`attention_unfused`), D (`attention`) or E (`attention_in_parts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..base.errors import UnsupportedError
from ..isa.layout import ALIGNED, UNIT, padded
from ..isa.program import Buffer, Layout, Role
from . import attention_3_blocks as streamed
from . import attention_bias, tables
from .attention import bind_attention, check
from .attention_in_parts import bind_in_parts, check_in_parts
from .attention_unfused import bind_apart, bind_in_turn, place_scores
from .binder import Binder, BoundWork, statistics_name, statistics_size
from .graph import AttentionLayer, Gemm, Output
from .grid import PlacedGemms, bind_gemms, place_gemms
from .mapping import MappingType, is_plain, mapping_of
from .memory import HEAD_COLS, Arena, check_room, plain, reads
from .tile import TILE, Tiled


def bind(tiled: Tiled) -> BoundWork:
    """Assign all work to units. Raises `UnsupportedError` naming the layer that the overlay cannot run or the bank that
    is too small, and `ScheduleError` if the schedule or a mask that is an input does not fit the network."""
    bound = _bound(tiled)
    return bound if _holds_ops(bound) else _bound(tiled, keeps_slices=False)


def _holds_ops(bound: BoundWork) -> bool:
    """Whether no unit has more ops than its list holds. A list with repeats may hold any number."""
    overlay = bound.tiled.overlay
    for kind, held in overlay.preloaded.items():
        if held.repeat is None and any(len(bound.others[u.name]) > held.longest for u in overlay.by_kind[kind]):
            return False
    return True


def _bound(tiled: Tiled, keeps_slices: bool = True) -> BoundWork:
    binder, placed = _placed(tiled, keeps_slices)
    for segment, gemms in zip(tiled.plan, placed, strict=True):
        first = len(binder.tiles)
        if isinstance(segment.layers, AttentionLayer):
            bind_as(binder, segment.layers, segment.mapping)
        elif gemms is not None:
            bind_gemms(binder, gemms)
        for tile in binder.tiles[first:]:
            tile.rule = segment.rule
        binder.tiles[-1].drain = segment.drain
        work: dict[str, Sequence[object]] = {**binder.made.memories, **binder.made.others}
        binder.made.record.note(segment, work, binder.tiles)
    return binder.made


def place(tiled: Tiled) -> None:
    """Check that a network fits off-chip memory and the overlay's capabilities, without binding it. Raises like
    `bind`."""
    _placed(tiled)


def _placed(tiled: Tiled, keeps_slices: bool = True) -> tuple[Binder, Sequence[PlacedGemms | None]]:
    """A binder with all off-chip buffers but no work yet, and the placed products of each segment; None for
    attention."""
    binder = Binder(tiled, keeps_slices)
    place_activations(binder)
    placed: list[PlacedGemms | None] = []
    for segment in tiled.plan:
        if isinstance(segment.layers, AttentionLayer):
            place_as(binder, segment.layers, segment.mapping)
            placed.append(None)
        else:
            placed.append(place_gemms(binder, segment.layers, segment.loops))
    banks = (binder.bank_of(unit) for unit in (tiled.grid.weights, tiled.grid.activations))
    check_room(binder.buffers.values(), tiled.overlay, tiled.network.size, *banks)
    return binder, placed


def place_activations(s: Binder) -> None:
    """Place the activations in their bank, with the constants that attentions and rotations need there. Inputs and
    outputs keep their memory; the memory of other activations is reused after their last reader (liveness). Raises
    `UnsupportedError`, naming the layer, for a rotation that the overlay cannot run."""
    bank = s.bank_of(s.grid.activations)
    for name in s.net.states:  # first, so that all programs of a model have them at the same addresses
        s.buffers[name] = _placed_buffer(s, name, s.made.ends[bank], Role.STATE)
        s.made.ends[bank] += padded(s.buffers[name].size // UNIT, ALIGNED)
    for layer in s.net.layers:
        if isinstance(layer, AttentionLayer) and layer.is_biased:
            attention_bias.place(s, layer)
        if isinstance(layer, Gemm) and layer.rotary is not None:
            tables.place(s, layer)
    arena = Arena(s.made.ends[bank])
    outputs = {o.name: o for o in s.net.outputs}
    last: dict[str, int] = {}
    for i, layer in enumerate(s.net.layers):
        for name in reads(layer):
            last[name] = i

    def add(name: str, role: Role, output: Output | None = None) -> None:
        made = _placed_buffer(s, name, 0, role, output)
        s.buffers[name] = replace(made, offset=arena.take(made.size // UNIT))
        if name in s.tiled.statistics:
            size = statistics_size(s, name)
            kept = statistics_name(name)
            at = arena.take(size // UNIT, "statistics")
            s.buffers[kept] = Buffer(kept, bank, at, (size,), Layout.LINEAR, Role.SCRATCH)

    for name in s.net.inputs:
        if name not in s.net.states:
            add(name, Role.INPUT)
    for i, layer in enumerate(s.net.layers):
        out = outputs.get(layer.y)
        if isinstance(layer, AttentionLayer) or layer.into is None:
            add(layer.y, Role.OUTPUT if out is not None else Role.SCRATCH, out)
        for name in dict.fromkeys(reads(layer)):
            b = s.buffers[name]
            if last[name] == i and b.role is Role.SCRATCH:
                arena.give(b.offset, b.size // UNIT)
                if name in s.tiled.statistics:
                    b = s.buffers[statistics_name(name)]
                    arena.give(b.offset, b.size // UNIT, "statistics")


def _placed_buffer(s: Binder, name: str, at: int, role: Role, output: Output | None = None) -> Buffer:
    """The buffer of an activation at an offset. output: as the host reads it."""
    cols = s.columns[name]
    panel = cols.panel or cols.stored
    shape = (-(-cols.stored // panel) * s.row_blocks_of(name) * TILE, panel)
    count = cols.stored if role is Role.STATE else cols.count
    view: tuple[int, ...] | None = None
    if role is not Role.SCRATCH:
        together = s.tiled.rows_of(name).together
        view = (s.net.batch, count) if together else (s.net.batch, s.net.seq_of(name), count)
    scale, shift = (None, None) if output is None else (plain(output.scale), plain(output.shift))
    rows = s.net.lengths if view is not None else ()
    bank = s.bank_of(s.grid.activations)
    return Buffer(name, bank, at, shape, Layout.BLOCKED, role, view, rows, scale, shift)


def bind_as(s: Binder, att: AttentionLayer, kind: MappingType | None = None) -> None:
    """Append the work of an attention by a mapping type; None chooses by the roofline. Raises `UnsupportedError` naming
    the layer, and `ScheduleError` for a mask that is an input with another number of rows than needed."""
    match _mapping_type(s, att, kind):
        case MappingType.A:
            bind_in_turn(s, att)
        case MappingType.B | MappingType.C:
            bind_apart(s, att)
        case MappingType.D:
            if s.schedule.balance and streamed.fits(s, att):
                streamed.bind_streamed(s, att)
            else:
                bind_attention(s, att)
        case MappingType.E:
            bind_in_parts(s, att)


def _mapping_type(s: Binder, att: AttentionLayer, kind: MappingType | None) -> MappingType:
    """The mapping type that an attention is bound by. kind: what the schedule says; D stands for any pipeline. Raises
    `UnsupportedError` for a type that cannot run it."""
    # Type E alone stores the one row of each sequence where the rows of all sequences lie in one block.
    together = s.tiled.rows_of(att.y).together
    if not together and (kind is None or is_plain(att)):
        return kind or mapping_of(s.net, att, s.overlay)
    if kind not in (None, MappingType.D, MappingType.E):
        raise UnsupportedError(
            f"{att.place}: mapping type {kind.value} runs attention with a key head for each query head, of at most "
            f"{HEAD_COLS} columns, without window, soft cap, left padding, masks that are inputs and caches of several "
            "sequences; types D and E run all: leave `attention` out of the schedule"
        )
    return MappingType.E


def place_as(s: Binder, att: AttentionLayer, kind: MappingType | None = None) -> None:
    """Check an attention and reserve the scratch memory that `bind_as` with the same mapping type needs; None chooses
    by the roofline. Raises like `bind_as`."""
    kind = _mapping_type(s, att, kind)
    if kind is MappingType.E:
        check_in_parts(s, att)
        return
    in_ddr = kind in (MappingType.B, MappingType.C)
    check(s, att, in_memory=in_ddr)
    if in_ddr:
        place_scores(s, att)
