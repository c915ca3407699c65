"""What each pass of the compiler made, as text for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..assembler.printer import show
from ..base.errors import require_torch


def _graph(program: Any) -> str:
    text: str = program.graph_module.print_readable(print_output=False)
    return text


def _layers(layers: Any) -> str:
    from .layers import show_layers

    return show_layers(layers)


def _itself(made: Any) -> str:
    text: str = made.show()
    return text


SHOWN: dict[str, Callable[[Any], str]] = {
    "capture": _graph,
    "rewrite": _graph,
    "match": _layers,
    "fold": _itself,
    "schedule": _itself,
    "lower": _itself,
    "pack": show,
}
"""By pass, in their order. `rsn.Passes` says what a pass is."""


def shown(name: str, made: object) -> str:
    """What a pass made: the graph that torch captured, also rewritten; the layers that were matched; the network of
    segments; the schedule; the kernel sequences of each unit; the program."""
    require_torch("compiling a model")
    return SHOWN[name](made)
