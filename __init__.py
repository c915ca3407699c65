"""RSN: compile, inspect and run programs for networks of stateful functional units.

The names below are loaded on first use, so that `import rsn` costs nothing and what never compiles a model never
imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["Program", "Runner", "Schedule", "Serving", "__version__", "compile", "errors", "explain"]

# Public name -> where it lives: "module" or "module:attribute", relative to this package.
_HOME = {
    "Program": ".isa.program:Program",
    "Runner": ".host.runner:Runner",
    "Schedule": ".scheduler.schedule:Schedule",
    "Serving": ".host.serving:Serving",
    "compile": ".compiler:compile",
    "errors": ".isa.errors",
    "explain": ".compiler:explain",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _HOME[name].partition(":")
    value = import_module(module, __name__)
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
