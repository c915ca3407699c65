"""`torch.compile(model, backend="rsn")`: what torch captures runs on the machine, or in PyTorch, which is said.

    model = torch.compile(model, backend="rsn", options={"schedule": "best", "fallback": "error"})

torch captures one or several graphs of a model; each is compiled when it is first called, anew for other shapes. A
graph that the machine cannot run stays in PyTorch with a `Fallback` warning that says why, or is an error.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from .isa.errors import ScheduleError, TensorError, UnsupportedError

if TYPE_CHECKING:
    from torch.fx import GraphModule

REMEMBERED = 8
"""Programs that are kept of a graph, for as many shapes."""


class Fallback(UserWarning):
    """A graph runs in PyTorch. The message says why."""


@dataclass(frozen=True)
class Options:
    """board, overlay, schedule: as for `rsn.compile`. fallback: what becomes of a graph that the machine cannot run:
    "warn" leaves it to PyTorch and says so, "error" raises `UnsupportedError`."""

    board: str = "sim"
    overlay: str = "xnn"
    schedule: Any = "paper"
    fallback: str = "warn"

    def __post_init__(self) -> None:
        if self.fallback not in ("warn", "error"):
            raise UnsupportedError(f'fallback {self.fallback!r}: "warn" or "error"')

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Raises `UnsupportedError` for an unknown option."""
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                raise UnsupportedError(f"no option {name!r} of backend rsn; there are {', '.join(known)}")
        return cls(**given)


def backend(
    graph: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **others: Any
) -> Callable[..., Any]:
    """As torch.compile asks for it. Raises `UnsupportedError` for unknown options."""
    return _Graph(graph, Options.of(options or {}))


class _Graph:
    """One captured graph, and its programs by the shapes of what it was called with."""

    def __init__(self, graph: GraphModule, options: Options) -> None:
        self._graph = graph
        self._options = options
        self._programs: OrderedDict[Any, Callable[..., Any]] = OrderedDict()

    def __call__(self, *args: Any) -> Any:
        key = tuple(map(self._facts, range(len(args)), args)), self._wants_gradients(args)
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self._compiled(args)
            while len(self._programs) > REMEMBERED:
                self._programs.popitem(last=False)
        self._programs.move_to_end(key)
        return program(*args)

    def _facts(self, i: int, x: Any) -> Any:
        """All that a program depends on: of weights, that they are these, unchanged."""
        from .rsnlib.bound import is_number, is_static

        if not hasattr(x, "shape") or is_number(x):
            return float(x)
        return (id(x), x._version) if is_static(self._graph, x, i) else (tuple(x.shape), x.dtype, x.device)

    def _wants_gradients(self, args: Sequence[Any]) -> bool:
        import torch

        return torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in args)

    def _compiled(self, args: Sequence[Any]) -> Callable[..., Any]:
        from .compiler import compile
        from .rsnlib.bound import Bound, is_number, is_static

        known = {
            i: x for i, x in enumerate(args) if not hasattr(x, "shape") or is_number(x) or is_static(self._graph, x, i)
        }
        others = tuple(x for i, x in enumerate(args) if i not in known)
        options = self._options
        try:
            if self._wants_gradients(args):
                raise UnsupportedError("gradients are wanted, and the machine has none: call it under torch.no_grad()")
            module = Bound(self._graph, known)
            made = compile(
                module.eval(), others, board=options.board, overlay=options.overlay, schedule=options.schedule
            )
        except (UnsupportedError, TensorError, ScheduleError) as e:
            if options.fallback == "error":
                raise
            warnings.warn(f"this graph runs in PyTorch: {e}", Fallback, stacklevel=2)
            in_pytorch: Callable[..., Any] = self._graph.forward
            return in_pytorch
        return lambda *given: made(*(x for i, x in enumerate(given) if i not in known))
