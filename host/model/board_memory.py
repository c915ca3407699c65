"""The memory that programs of a model take together on a board."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...isa.overlay import Overlay
from ...isa.program import Buffer, Program, only_weights
from ...scheduler.memory import RoomError, sizes_as_text
from .stage_figures import aligned

LESS = "fewer slots, a smaller capacity, or more boards (boards=N) of a decoder need less"
"""What helps if a board cannot hold the programs of a decoder."""


def board_bytes(programs: Iterable[tuple[Program, int]]) -> dict[str, int]:
    """Return the bytes that programs take on a board, by bank, without instructions. programs: each with the number of
    times that the board holds it. A bank that holds weights alone counts once for all programs that declare the same
    weights, or some of them (`SharedBank`)."""
    sizes: dict[str, int] = {}
    shared: dict[tuple[str, frozenset[Buffer]], int] = {}
    for program, count in programs:
        for bank in program.overlay.banks:
            size, buffers = 4 * program.bank_size(bank), program.in_bank(bank)
            sizes.setdefault(bank, 0)
            if only_weights(buffers):
                shared[bank, frozenset(buffers)] = size
            else:
                sizes[bank] += count * size
    for (bank, weights), size in shared.items():
        if not any(other == bank and weights < more for other, more in shared):
            sizes[bank] += size
    return sizes


def require_room(sizes: Mapping[str, int], overlay: Overlay, what: str, remedy: str) -> None:
    """Raise `RoomError` for more bytes than a board has. sizes: by bank. what: which needs them. remedy: what helps, as
    text."""
    beyond = []
    for bank, size in sizes.items():
        if size > (limit := overlay.banks[bank]):
            needs, has = sizes_as_text(size, limit)
            beyond.append(f"{needs} in {bank}, of which a board has {has}")
    if beyond:
        raise RoomError(f"{what} need {' and '.join(beyond)}: {remedy}")


def board_table(
    boards: Sequence[Mapping[str, int]], sets: int = 1, served: Sequence[Mapping[str, int]] = ()
) -> list[str]:
    """Return a table of the memory of boards as lines of text. boards: bytes that all programs take on each board, by
    bank. sets: the number of sets of slots with which `rsn serve --boards` decodes: as many as there are stages.
    served: bytes on each board with that many sets, by bank; empty for a model of one stage."""
    banks = list(boards[0])
    rows = [["board", *(f"{bank} of all programs" for bank in banks)]]
    rows[0] += [f"{bank} with {sets} sets of slots" for bank in banks if served]
    for number, sizes in enumerate(boards):
        more = (served[number][bank] for bank in banks) if served else ()
        rows.append([str(number), *(f"{size / 1e6:.1f} MB" for size in (*(sizes[bank] for bank in banks), *more))])
    return aligned(rows)
