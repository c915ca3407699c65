"""Stage `chain`: from work items to instructions.

Input: `BoundWork`. Output: `Chained`, the sequence of instructions (mOPs) of every unit except the one whose accesses
are ordered later. Operation i of a memory fills a slot with item i and drains item i - 1. `Overlay.emit` makes the
bits.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from ..isa.fields import Record
from ..isa.layout import QUARTER
from ..isa.overlay import Overlay
from ..isa.program import KernelPatch, Parameter
from ..isa.work import Item, Load, Patched, Turn
from ..machine.description import UnitSpec
from .binder import BoundWork, WorkItem


@dataclass(frozen=True, eq=False)
class Chained:
    """Instructions (mOPs) by unit. bound: the work that they were made of. sequences: of units that packets drive.
    preloaded: op lists. patches: fields that depend on run-time lengths, by the name of the parameter. loads: numbers
    of elements that each operation of a memory loads from the unit of activations, by memory."""

    bound: BoundWork
    sequences: dict[str, tuple[Record, ...]]
    preloaded: dict[str, tuple[Record, ...]]
    patches: dict[str, tuple[KernelPatch, ...]]
    loads: dict[str, list[int]]

    def show(self) -> str:
        """The sequences as text, unit by unit; consecutive equal mOPs are one line."""
        return show_sequences({**self.sequences, **self.preloaded})


def show_sequences(sequences: dict[str, tuple[Record, ...]]) -> str:
    """Sequences of instructions as text. sequences: by unit; consecutive equal instructions of a unit are one line."""
    out = []
    for unit, sequence in sequences.items():
        out.append(f"{unit}: {len(sequence)}")
        out += [f"  {len(list(equal)):>4} x {_words(record)}" for record, equal in groupby(sequence)]
    return "\n".join(out) + "\n"


def _words(record: Record) -> str:
    values = {x.name: getattr(record, x.name) for x in record.FIELDS}
    return " ".join([type(record).__name__, *(f"{name}={value:g}" for name, value in values.items() if value)])


def chain(bound: BoundWork) -> Chained:
    """Make the instructions of all units except the one of activations, whose accesses are ordered later. Raises
    `FieldError` for a number that a field of an instruction cannot hold."""
    overlay, activations = bound.tiled.overlay, bound.tiled.grid.activations
    patches: dict[str, list[KernelPatch]] = {}
    made: dict[str, tuple[Record, ...]] = {}
    for spec in overlay.units:
        if spec.name == activations:
            continue
        work = bound.memories.get(spec.name)
        items: Iterable[Item] = bound.others[spec.name] if work is None else turns(work)
        made[spec.name] = tuple(instructions(overlay, spec, items, patches))
    preloaded = {u.name for kind in overlay.preloaded for u in overlay.by_kind[kind]}
    return Chained(
        bound,
        {unit: sequence for unit, sequence in made.items() if sequence and unit not in preloaded},
        {unit: made[unit] for unit in made if unit in preloaded},
        {name: tuple(found) for name, found in patches.items()},
        {unit: _loaded(work, activations) for unit, work in bound.memories.items()},
    )


def turns(work: list[WorkItem]) -> Iterator[Turn]:
    """The operations of a memory: number i fills a slot with item i and drains item i - 1. work: its items, in
    order."""
    nothing = WorkItem(None, None)
    for ended, begun in pairwise([nothing, *work, nothing] if work else ()):
        yield Turn(begun.fill, ended.drain)


def instructions(
    overlay: Overlay, unit: UnitSpec, items: Iterable[Item], patches: dict[str, list[KernelPatch]] | None = None
) -> Iterator[Record]:
    """The instructions of a unit for its work items. overlay: one that models can be compiled for (`Overlay.emit`).
    patches: receives the fields that depend on run-time lengths, by the name of the parameter; None drops them. Raises
    `FieldError` for a number that a field of an instruction cannot hold."""
    assert overlay.emit is not None, overlay.name
    for number, made in enumerate(overlay.emit(unit, items)):
        if not isinstance(made, Patched):
            yield made
            continue
        for name, value in made.fields:
            patch = KernelPatch(unit.name, number, name, value.base, value.cap)
            if patches is not None:
                patches.setdefault(f"{value.parameter}[{value.sequence}]", []).append(patch)
        yield made.record


def _loaded(work: list[WorkItem], source: str) -> list[int]:
    out = []
    for fill in (item.fill for item in work):
        if isinstance(fill, Load) and fill.source == source:
            if fill.norm is not None and fill.norm.fresh:  # an operation of its own, before the load
                out.append(fill.norm.fresh * fill.norm.parts * QUARTER)
            out.append(fill.rows * fill.columns)
    return out


def parameters_of(rows: Sequence[int], patches: Container[str], kind: int | str = "") -> tuple[Parameter, ...]:
    """The run-time parameters that a program has patches for: for sequence b `len[b]`, whose default is all its rows,
    and `start[b]`, whose default is 0. rows: number of rows of each sequence. patches: names of the parameters with
    patches. kind: a number of keys that the names contain, as `len16[b]` (`AttentionLayer.counted`); "" for none."""
    lengths = [Parameter(f"len{kind}[{i}]", 1, n, n) for i, n in enumerate(rows)]
    starts = [Parameter(f"start{kind}[{i}]", 0, n - 1, 0) for i, n in enumerate(rows)]
    return tuple(parameter for parameter in lengths + starts if parameter.name in patches)


def seconds_of(overlay: Overlay, unit: UnitSpec, op: str) -> float:
    """Seconds of one amount of work (`Capability.elements`) of a unit's capability `op`, by its rate; 0 without a
    capability or a rate."""
    capability = unit.capability(op)
    return 0.0 if capability is None or capability.rate is None else overlay.seconds[capability.rate]
