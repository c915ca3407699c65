"""Print the result of each compiler pass as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..assembler.printer import show
from ..base.deferred import deferred
from ..base.errors import require_torch

if TYPE_CHECKING:
    from .normal_form import text as graph_text
else:
    graph_text = deferred("rsn.rsnlib.normal_form.text")


def _graph(program: Any) -> str:
    return graph_text.show(program.graph)


def _show(made: Any) -> str:
    text: str = made.show()
    return text


SHOWN: dict[str, Callable[[Any], str]] = {
    "capture": _graph,
    "rewrite": _graph,
    "match": _show,
    "fold": _show,
    "schedule": _show,
    "tile": _show,
    "bind": _show,
    "chain": _show,
    "dram": _show,
    "pack": show,
}
"""The function that prints the result of a pass, by pass, in order."""


def shown(name: str, made: object) -> str:
    """Return the result of a compiler pass as text. name: of the pass, a key of `SHOWN`, from "capture" to "pack".
    made: what the pass returned. Raises `MissingError` without PyTorch, and `KeyError` for another name."""
    require_torch("compiling a model")
    return SHOWN[name](made)
