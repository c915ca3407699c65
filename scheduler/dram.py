"""Stage `dram`: the order of loads and stores on the one channel of activations.

Input: `Chained`. Output: `Lowered`, the kernel sequences of all units, ready to pack. Fixed rules are here, list
scheduling, which runs the program to find the order, in `listing`.

The loads of a tile come in the order in which its Mems take them, its stores in the order in which its MemCs deliver
them (paper section 4.4 and Fig. 12). Free is only where stores go between later loads. A load always comes behind the
store of the data that it reads, because nothing but this list orders read-after-write through DDR.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..base.errors import ScheduleError
from ..isa.fields import Record
from ..isa.layout import padded
from ..isa.packet import MAX_WINDOW
from ..isa.program import KernelPatch, Parameter, UnpackedProgram
from ..isa.work import Access, LengthField, RowStore, SetRow
from ..machine.description import UnitSpec
from ..machine.timing import RunTiming
from .binder import TileAccesses
from .chain import Chained, instructions, parameters_of, show_sequences
from .graph import Array, AttentionLayer
from .listing import list_accesses
from .pack import Starts, issued, starts_of
from .schedule import Interleave
from .tile import Tiled


class PackedWeights(Mapping[str, Array]):
    """Stored elements, (n,) float32, by buffer name. made: makes the elements of each buffer. Every access packs them
    anew: together they are as large as the model, and every user copies them elsewhere, so that keeping them would cost
    memory for nothing."""

    def __init__(self, made: Mapping[str, Callable[[], Array]]) -> None:
        self._made = made
        self._digests: dict[str, bytes] = {}

    def __getitem__(self, name: str) -> Array:
        return self._made[name]()

    def digest(self, name: str) -> bytes:
        """A checksum of the elements of the buffer `name`, 16 bytes, as they were when it was first asked for. Raises
        `KeyError` for an unknown buffer."""
        if name not in self._digests:
            elements = np.ascontiguousarray(self[name])
            self._digests[name] = hashlib.blake2b(elements.data, digest_size=16).digest()
        return self._digests[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


@dataclass(frozen=True)
class Lowered:
    """The result of lowering: kernel sequences, and the weights as stored off chip, by buffer."""

    kernels: UnpackedProgram
    weights: PackedWeights
    found: RunTiming | None = None
    """The run of list scheduling, without the instruction path; None for other orders of DDR accesses."""
    starts: Starts | None = None
    """When each mOP began in that run."""

    def show(self) -> str:
        """The sequences as text, unit by unit; consecutive equal mOPs are one line."""
        return show_sequences({**self.kernels.sequences, **self.kernels.preloaded})


def _rows_of(tiled: Tiled) -> Iterator[tuple[int, Parameter]]:
    """The run-time parameters of states, each with its entry of the table of rows: the row that the new row of each
    sequence becomes."""
    batch = tiled.network.batch
    for group, rows in enumerate(tiled.network.state_rows):
        for b in range(batch):
            yield group * batch + b, Parameter(f"{tiled.network.row_parameter(rows)}[{b}]", 0, rows - 1, 0)


def _set_rows(tiled: Tiled, unit: UnitSpec) -> tuple[tuple[Record, ...], dict[str, tuple[KernelPatch, ...]]]:
    """The instructions that fill the table of rows at the beginning of a program, and their patches."""
    items = []
    for entry, p in _rows_of(tiled):
        name, _, b = p.name.removesuffix("]").partition("[")
        items.append(SetRow(entry, LengthField(int(b), 0, p.high, name)))
    patches: dict[str, list[KernelPatch]] = {}
    made = tuple(instructions(tiled.overlay, unit, items, patches))
    return made, {name: tuple(found) for name, found in patches.items()}


def _parameters(tiled: Tiled, patches: Container[str]) -> tuple[Parameter, ...]:
    """All run-time parameters of a program."""
    network = tiled.network
    counted = tiled.rows[network.counted_seq].spans if patches else ()
    found = parameters_of([span.rows for span in counted], patches)
    kinds = dict.fromkeys(x.counted for x in network.layers if isinstance(x, AttentionLayer) and x.counted)
    for keys in kinds:
        found += parameters_of([keys] * network.batch, patches, keys)
    return (*found, *(p for _, p in _rows_of(tiled)))


def order_dram(chained: Chained) -> Lowered:
    """Order the accesses of activations as the schedule says (`Tiled.interleave`), and put all sequences together.
    Raises `DeadlockError` if list scheduling finds that the program cannot end, `FieldError` for a number that a field
    of an instruction cannot hold."""
    bound = chained.bound
    tiled = bound.tiled
    overlay, grid = tiled.overlay, tiled.grid
    unit = overlay.by_unit[grid.activations]
    sequences: dict[str, tuple[Record, ...]] = dict(chained.sequences)
    found: RunTiming | None = None
    starts: Starts | None = None
    if tiled.interleave in (Interleave.HARDWARE, Interleave.LISTED):
        issues, firsts = issued(overlay, sequences)
        columns = {name: j for row in grid.results for j, name in enumerate(row)}
        listed = list_accesses(bound.tiles, chained.loads, issues, chained.preloaded, overlay, unit, columns)
        accesses, found = listed.accesses, listed.run
        sequences[unit.name] = tuple(listed.mops)
        starts = {**starts_of(listed.run, firsts), unit.name: listed.starts}
    else:
        accesses = list(order_accesses(bound.tiles, tiled.interleave))
        sequences[unit.name] = tuple(instructions(overlay, unit, accesses))
    set_rows, row_patches = _set_rows(tiled, unit)
    sequences[unit.name] = (*set_rows, *sequences.get(unit.name, ()))
    if starts is not None:
        starts = {**starts, unit.name: [*[(0.0, 0)] * len(set_rows), *starts[unit.name]]}
    patches = chained.patches | row_patches
    kernels = UnpackedProgram(
        overlay=overlay,
        sequences={u: s for u, s in sequences.items() if s},
        preloaded=chained.preloaded,
        buffers=tuple(bound.buffers.values()),
        parameters=_parameters(tiled, chained.patches),
        patches=patches,
        segments=bound.record.segments(
            {**sequences, **chained.preloaded}, overlay, unit.name, accesses, before=len(set_rows)
        ),
    )
    return Lowered(kernels, PackedWeights(bound.weights), found, starts)


def order_accesses(tiles: Sequence[TileAccesses], interleave: Interleave) -> Iterator[Access | RowStore]:
    """Order the DDR accesses of a program by a fixed rule (paper section 4.4 and Fig. 12). tiles: in execution order.
    interleave: STRICT or INTERLEAVED. Raises `ScheduleError` for another, which no fixed rule makes."""
    if interleave not in (Interleave.STRICT, Interleave.INTERLEAVED):
        raise ScheduleError(f"interleave {interleave.value} is no fixed order of accesses")
    # stores not yet issued: index of the tile among whose loads they are due, access, first and end element
    queue: deque[tuple[int, Access | RowStore, int, int]] = deque()
    due: dict[int, TileAccesses] = {}
    for i, tile in enumerate(tiles):
        loads = tile.loads
        ready = sum(1 for at, *_ in queue if at <= i)
        if interleave is Interleave.STRICT:
            for _ in range(ready):
                yield queue.popleft()[1]
            ready = 0
        owner = due.get(i, TileAccesses())
        start = min(owner.ahead, len(loads))
        gaps = min(owner.within or len(loads), len(loads) - start)
        if ready and len(loads) + ready > MAX_WINDOW and gaps >= ready * tile.step:
            # too many mOPs for one window: let the loads between two stores form a loop, not across the ends of panels
            every = tile.step << (gaps // ready // tile.step).bit_length() - 1
            aligned = tile.head + padded(max(0, start - tile.head), every)
            start = min(aligned, len(loads) - ready * every)
            gaps = ready * every
        issued = 0
        for n, load in enumerate(loads):
            low, high = load.span
            behind = 0
            for k, (_, _, first, end) in enumerate(queue, 1):
                if first < high and low < end:
                    behind = k
            share = ready * min(n - start, gaps) // gaps if n >= start and gaps else 0
            for _ in range(max(behind, share - issued)):
                yield queue.popleft()[1]
                issued += 1
            yield load
        for _ in range(ready - issued):
            yield queue.popleft()[1]
        queue.extend((i + tile.lag, store, *store.span) for store in tile.stores)
        if tile.stores:
            due[i + tile.lag] = tile
        while tile.drain and queue:
            yield queue.popleft()[1]
    while queue:
        yield queue.popleft()[1]
