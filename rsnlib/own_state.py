"""Modules that change their own state when they are called: a compiled program would not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.random import fork_rng
from torch.utils import _pytree as pytree

from ..base.errors import UnsupportedError

OWN = frozenset(vars(nn.Module())) - {"training"}
"""Attributes that PyTorch gives every module."""


class Attributes:
    """The attributes of a module and of its submodules, buffers among them, to find those that a call changes."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.changed: dict[str, None] = {}
        """The paths of attributes that had another value after a call than before, or none before."""

    @contextmanager
    def called(self, module: nn.Module) -> Iterator[None]:
        """Context of a call of a module, for `in_turn`."""
        if vars(module) is not vars(self._module):  # not the same object: torch.export calls a stand-in
            yield
            return
        before = {name: _shallow(value) for name, value in _attributes(self._module)}
        yield
        for name, value in _attributes(self._module):
            if name not in before or not _same(before[name], _shallow(value)):
                self.changed[name] = None


def changes_state(name: str, changed: Iterable[str]) -> UnsupportedError:
    """The error for a module that changes its own state. changed: paths of its attributes."""
    return UnsupportedError(
        f'{name} changes its own state when called: {", ".join(changed)}; torch.compile(model, backend="rsn") follows '
        "such changes"
    )


def depends_on_calls(model: nn.Module, args: Any, kwargs: Any) -> bool:
    """Whether a second call of a module computes other results than the first, because its attributes changed; a table
    that is only remembered makes no difference. PyTorch runs the module twice, with the same arguments. model: a copy
    of the module, because the calls change it. A call that raises in the second run counts as a difference."""

    def called() -> list[Any]:
        by_position, by_name = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
        torch.manual_seed(0)
        leaves: list[Any] = pytree.tree_leaves(model(*by_position, **by_name))
        return leaves

    with torch.no_grad(), fork_rng(devices=[]):
        first = pytree.tree_map_only(torch.Tensor, torch.clone, called())
        try:
            second = called()
        except Exception:  # whatever a model raises
            return True
    return len(first) != len(second) or not all(map(_equal, first, second))


def _attributes(module: nn.Module) -> Iterable[tuple[str, Any]]:
    for path, part in module.named_modules():
        for name, value in chain(vars(part).items(), part._buffers.items()):
            if name not in OWN:
                yield f"{path}.{name}" if path else name, value


def _shallow(value: Any) -> Any:
    """A value, or a copy of a container that others may change."""
    return value.copy() if type(value) in (list, dict, set) else value


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(_same, a.values(), b.values()))
    return isinstance(a, int | float | str | set | torch.dtype) and bool(a == b)


def _equal(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return a is b or bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype or not a.is_floating_point():
        return bool(torch.equal(a, b))
    return bool(torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True))
