"""Breakpoints: stop a unit before one of its uOPs and show its buffers, its flags and the words in its streams.

The unit is held for ever, and the other units run on until they wait for it. What happened before the unit would have
begun the uOP cannot depend on that uOP, so the state shown is exactly the state of the machine at that time. One thing
is ahead of it: where a unit has more than two slots, its earlier uOPs are shown drained.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.durations import duration
from ...base.errors import ProgramError
from ...base.files import replacing
from ...isa.expansion import place_of
from ...isa.fields import Record
from ...isa.layout import Array
from ...machine.executor import ProcessNetwork
from ...machine.steps import Channel, Step, Steps
from ...machine.unit import Halves, Unit
from .machine import Machine, launch_seconds, one_blas_thread


@dataclass(frozen=True, eq=False)
class Stopped:
    """The state of a unit before a uOP.

    number: of the uOP, from 0. uop: its fields. where: its source line, or packet. clock: seconds, launch included.
    arrays: the unit's buffers, by name; values that it never received are NaN. flags: its registers and single values.
    fills: for each of its streams, with the uOP FIFO, the words in it and its depth in words.
    """

    unit: str
    number: int
    uop: str
    where: str
    clock: float
    arrays: dict[str, npt.NDArray[Any]]
    flags: dict[str, int | float]
    fills: dict[str, tuple[int, int]]

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        lines = [
            f"{self.unit} stopped before uOP {self.number}{place} at {duration(self.clock)}",
            f"  {self.uop}",
        ]
        lines += [f"  {name:<24} {value}" for name, value in self.flags.items()]
        for name, array in self.arrays.items():
            lines.append(f"  {name:<24} {'x'.join(map(str, array.shape))}, {_range(array)}")
        lines += [f"  {name:<24} {held}/{depth} words" for name, (held, depth) in self.fills.items()]
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write arrays, `flag NAME` and `fill STREAM` (words, depth) as one `.npz` at `path`; a write that fails
        changes no file. Raises `OSError`.
        """
        flags = {f"flag {name}": np.asarray(value) for name, value in self.flags.items()}
        fills = {f"fill {name}": np.asarray(pair) for name, pair in self.fills.items()}
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **{**self.arrays, **flags, **fills})  # type: ignore[arg-type]

    def as_json(self) -> dict[str, Any]:
        """Return all but the values of arrays, as values for JSON: of an array it has the shape, the clock is in
        seconds.
        """
        return {
            "unit": self.unit,
            "uop": self.number,
            "what": self.uop,
            "where": self.where,
            "clock_s": self.clock,
            "flags": self.flags,
            "buffers": {name: list(array.shape) for name, array in self.arrays.items()},
            "fills": {name: {"words": held, "depth": depth} for name, (held, depth) in self.fills.items()},
        }


def _range(array: npt.NDArray[Any]) -> str:
    """Describe the values of an array: their range, and the share that was never written."""
    known = array[np.isfinite(array)] if array.dtype.kind == "f" else array.reshape(-1)
    if not known.size:
        return "never written"
    never = 100 * (1 - known.size / array.size)
    return f"{known.min():.6g} to {known.max():.6g}" + (f", {never:.1f} % never written" if never else "")


def stop(machine: Machine, banks: Mapping[str, Array] | None, unit: str, number: int) -> Stopped:
    """Run a program until `unit` is about to begin its uOP `number`, counted from 0.

    banks: off-chip memories by name, float32 vectors, changed in place; None runs without data and then shows no
    buffers. Raises `ProgramError` if the unit or the uOP does not exist, or words are left in streams before, and
    `DeadlockError` if the program deadlocks before."""
    overlay = machine.program.overlay
    if unit not in overlay.by_unit:
        raise ProgramError(f"overlay {overlay.name} has no unit {unit!r}; it has {', '.join(overlay.by_unit)}")
    run = machine.expansion.sequences[unit]
    if not 0 <= number < len(run):
        raise ProgramError(f"{unit} runs {len(run)} uOPs, numbered from 0: there is no uOP {number} to stop before")
    net = _Halting(machine, banks, unit, number)
    with one_blas_thread():
        net.run()
    held = net.units[unit]
    clock = net.progress[unit].task.clock
    arrays, flags = _state(held)
    origin = int(run.origins[number])
    return Stopped(
        unit=unit,
        number=number,
        uop=_shown(net.held),
        where=place_of(machine.program, unit, origin),
        clock=clock + launch_seconds(overlay),
        arrays=arrays,
        flags=flags,
        fills=net.fills(clock, [c for c in net.channels if unit in (c.source, c.sink)]),
    )


class _Halting(ProcessNetwork):
    """A network that holds one unit for ever before one of its uOPs."""

    def __init__(self, machine: Machine, banks: Mapping[str, Array] | None, unit: str, number: int) -> None:
        self.halt = (unit, number)
        self.held: Any = None
        program = machine.program
        super().__init__(
            program.overlay,
            machine.path,
            banks=banks,
            data=banks is not None,
            record=True,
            where=program.where,
        )
        stopped = self.units[unit]
        kernel, halves, count = stopped.kernel, stopped.halves, 0

        def counted(uop: Any) -> Steps:
            nonlocal count
            count += 1
            return self._held(uop) if count > number else kernel(uop)

        def counted_halves(uop: Any) -> Halves | None:
            nonlocal count
            count += 1
            return (self._held(uop), None) if count > number else halves(uop)

        if stopped.ahead:
            stopped.halves = counted_halves  # type: ignore[method-assign]
        else:
            stopped.kernel = counted  # type: ignore[method-assign]

    def _held(self, uop: Any) -> Steps:
        self.held = uop
        yield Step(gets=(Channel("nothing", 1),))

    def settle(self, alive: Collection[Any]) -> None:
        """Accept that the network stops once the unit is held; before, raise as the network does."""
        if self.held is None:
            super().settle(alive)

    def fills(self, clock: float, channels: Sequence[Channel]) -> dict[str, tuple[int, int]]:
        """Return the words in streams at a time, counted from the steps that had ended by then, and their depths."""
        log = self.events
        assert log is not None
        steps = np.frombuffer(log.step, np.int32)[np.frombuffer(log.end, np.float64) <= clock]
        times = np.bincount(steps, minlength=len(log.steps)).tolist()
        out = {}
        for c in channels:
            change = [s.words * ((c.number in s.puts) - (c.number in s.gets)) for s in log.steps]
            out[c.name] = sum(n * words for n, words in zip(times, change, strict=True)), c.capacity
        return out


def _shown(uop: Any) -> str:
    """Format a uOP, without the fields that are 0."""
    if not isinstance(uop, Record):
        return str(uop)
    fields = ((x.name, getattr(uop, x.name)) for x in uop.FIELDS)
    return f"{uop.NAME} " + ", ".join(f"{name} {value}" for name, value in fields if value)


def _state(unit: Unit) -> tuple[dict[str, npt.NDArray[Any]], dict[str, int | float]]:
    """Return the state of a unit: its arrays, and its single values."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    flags: dict[str, int | float] = {}
    for name, value in vars(unit).items():
        if name.startswith("_") or name in ("name", "index", "memory", "ahead"):
            continue
        for label, item in _items(name, value):
            if isinstance(item, Record):
                flags |= {f"{label}.{x.name}": getattr(item, x.name) for x in item.FIELDS}
            elif isinstance(item, np.generic):
                flags[label] = item.item()
            elif hasattr(item, "__array__"):  # an array, or a buffer that is one to numpy
                arrays[label] = np.asarray(item)
            elif type(item) in (int, float):
                flags[label] = item
    return arrays, flags


def _items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        yield from ((f"{name}[{i}]", item) for i, item in enumerate(value))
    else:
        yield name, value
