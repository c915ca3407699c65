"""Modules of this package that are imported at their first use, because they load a package that costs much.

Every import of ours is at the top of its file. Only a module that loads PyTorch, or another package listed in
`tests/test_imports.py`, may be deferred where most callers do without it:

    if TYPE_CHECKING:
        from ..rsnlib import trace
    else:
        trace = deferred("rsn.rsnlib.trace")

The type-checker sees the module itself. `trace.captured(model)` then imports it when that line first runs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


class _Deferred:
    """Stands for a module. An attribute is looked up in the module each time, so that a replaced one is seen."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        # Tools that inspect a namespace ask for these of anything that they find there.
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        # Ray copies the namespace of the main program to other processes.
        return deferred, (self._name,)

    def __repr__(self) -> str:
        return f"<deferred module {self._name!r}>"


def deferred(name: str) -> Any:
    """Return a stand-in for a module, which is imported when one of its attributes is first used. Errors of the import
    are raised then. Any thread may use it.

    name: absolute, such as "rsn.rsnlib.trace".
    """
    return _Deferred(name)
