"""Find matrix products that PyTorch computes outside of the graphs that torch.compile has captured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from .rules import PRODUCTS

RECURRENT = {getattr(torch.ops.aten, name) for name in ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")}
"""Recurrent layers, each one operator."""
TORCH = Path(torch.__file__).parent


class Uncaptured(TorchDispatchMode):
    """Context that records the products that PyTorch computes outside of captured graphs, that is, outside of the
    context `graph()`. found: names of their operators, by file, line and function of the caller. flops: of those that
    PyTorch can count, 2 for each multiply and add. uncounted: whether there are products that it cannot count."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[str, int, str], set[str]] = {}
        self.flops, self.uncounted = 0, False
        self._in_graph = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: it tells torch.compile that captured graphs stay valid under this dispatch mode."""
        return True

    @contextmanager
    def graph(self) -> Iterator[None]:
        """Context for running a captured graph: its products are not recorded."""
        self._in_graph = True
        try:
            yield
        finally:
            self._in_graph = False

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = operator.overloadpacket
        kwargs = kwargs or {}
        result = operator(*args, **kwargs)
        if not self._in_graph and (packet in PRODUCTS or packet in RECURRENT or packet in flop_registry):
            self.found.setdefault(_caller(), set()).add(packet.__name__)
            if packet in flop_registry:
                self.flops += flop_registry[packet](*args, **kwargs, out_val=result)
            else:
                self.uncounted = True
        return result


def _caller() -> tuple[str, int, str]:
    """File, line and function of the innermost caller outside of PyTorch."""
    frame = sys._getframe(2)
    while frame.f_back is not None and Path(frame.f_code.co_filename).is_relative_to(TORCH):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
