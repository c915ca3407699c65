"""Capture a module: export it, and bring the graph to the normal form."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.export import ExportedProgram

from ..capture import exported
from .passes import normalise


def capture(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """Capture a module checked by `module_of`; its graph is in the normal form. Raises like `exported`."""
    program = exported(model, args, kwargs)
    normalise(program.graph)
    return program
