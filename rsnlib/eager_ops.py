"""The products that PyTorch computes in code that torch.compile has not captured."""

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
"""Whole layers as one operator."""
TORCH = Path(torch.__file__).parent


class Uncaptured(TorchDispatchMode):
    """While it is entered, notes products that are not computed within `graph`. found: their operators, by the file,
    the line and the function that called PyTorch for them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[str, int, str], set[str]] = {}
        self._in_graph = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Says to torch.compile that what it has captured serves under this mode too."""
        return True

    @contextmanager
    def graph(self) -> Iterator[None]:
        """What is computed within is captured."""
        self._in_graph = True
        try:
            yield
        finally:
            self._in_graph = False

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = operator.overloadpacket
        if not self._in_graph and (packet in PRODUCTS or packet in RECURRENT or packet in flop_registry):
            self.found.setdefault(_caller(), set()).add(packet.__name__)
        return operator(*args, **(kwargs or {}))


def _caller() -> tuple[str, int, str]:
    """The innermost line that is not PyTorch's own."""
    frame = sys._getframe(2)
    while frame.f_back is not None and Path(frame.f_code.co_filename).is_relative_to(TORCH):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
