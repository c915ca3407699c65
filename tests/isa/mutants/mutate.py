"""Overlays with a mistake in one kernel: a line of its source is replaced, and the units are built from that."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType

from rsn.isa.fields import Record
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN
from rsn.isa.overlays.xnn.off_chip import Transfer

MODULES = {
    name: f"rsn.isa.{name if name.startswith('versal.') else f'overlays.xnn.{name}'}"
    for name in (
        *("versal.tiles", "versal.functions", "versal.mme", "versal.off_chip", "post_ops", "buffer"),
        *("ring", "off_chip", "mem_a", "mem_b", "mem_c", "mesh", "mme"),
    )
}
"""The kernels and what they are made of; each imports only those before it."""


@dataclass(frozen=True)
class Mutant:
    """`old` in the source of `module`, where it stands exactly once, is replaced by `new`."""

    module: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.module}: {' '.join(self.old.split())} -> {' '.join(self.new.split()) or 'nothing'}"

    def overlay(self) -> Overlay:
        """The XNN overlay with it. The formats stay the original ones, so that programs fit."""
        with _rebuilt(self) as modules:
            units = []
            for u in XNN.units:
                module = next(modules[name] for name, full in MODULES.items() if full == u.behaviour.__module__)
                units.append(dataclasses.replace(u, behaviour=getattr(module, u.behaviour.__name__)))
            return dataclasses.replace(XNN, units=tuple(units))


@cache
def source(module: str) -> str:
    return Path(str(importlib.import_module(MODULES[module]).__file__)).read_text(encoding="utf-8")


@cache
def _code(module: str, text: str) -> CodeType:
    return compile(text, f"{module}.py, mutated", "exec")


@contextmanager
def _rebuilt(mutant: Mutant) -> Iterator[dict[str, ModuleType]]:
    """The modules once more, one of them mutated; while they are built, they stand in for the original ones."""
    originals = {name: importlib.import_module(full) for name, full in MODULES.items()}
    out: dict[str, ModuleType] = {}
    try:
        for name, full in MODULES.items():
            text = source(name)
            if name == mutant.module:
                assert text.count(mutant.old) == 1, f"{text.count(mutant.old)} times in {name}.py: {mutant.old}"
                text = text.replace(mutant.old, mutant.new)
            module = out[name] = sys.modules[full] = ModuleType(full)
            module.__package__ = full.rpartition(".")[0]
            exec(_code(name, text), module.__dict__)
            for key, value in vars(originals[name]).items():
                if isinstance(value, type) and (issubclass(value, Record) or value is Transfer):
                    setattr(module, key, value)
        yield out
    finally:
        sys.modules.update({MODULES[name]: module for name, module in originals.items()})
