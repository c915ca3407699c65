"""Stage `dram`: the order of loads and stores on the one channel of activations.

Input: `Chained`. Output: `Lowered`, the kernel sequences of all units, ready to pack. Fixed rules are in `order`, list
scheduling, which runs the program to find the order, in `listing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..isa.fields import Record
from ..isa.program import UnpackedProgram
from ..machine.timing import Timing
from .chain import Chained, instructions, parameters_of, show_sequences
from .graph import Array
from .listing import list_accesses
from .order import order_accesses
from .pack import Starts, issued, starts_of
from .schedule import Interleave


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
        return show_sequences({**self.kernels.sequences, **self.kernels.preloaded})


def order_dram(chained: Chained) -> Lowered:
    """Order the accesses of activations. Raises `DeadlockError` if list scheduling finds that the program cannot
    end."""
    bound = chained.bound
    tiled = bound.tiled
    overlay, grid = tiled.overlay, tiled.grid
    unit = overlay.by_unit[grid.activations]
    sequences: dict[str, tuple[Record, ...]] = dict(chained.sequences)
    found: Timing | None = None
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
    counted = tiled.rows[tiled.network.counted_seq].spans if chained.patches else ()
    kernels = UnpackedProgram(
        overlay=overlay,
        sequences={u: s for u, s in sequences.items() if s},
        preloaded=chained.preloaded,
        buffers=tuple(bound.buffers.values()),
        parameters=parameters_of([span.rows for span in counted], chained.patches),
        patches=chained.patches,
        segments=bound.record.segments({**sequences, **chained.preloaded}, overlay, unit.name, accesses),
    )
    return Lowered(kernels, Weights(bound.weights), found, starts)
