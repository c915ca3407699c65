"""RSN: compile, inspect and run programs for networks of stateful functional units.

The names below are loaded on first use, so that `import rsn` costs nothing and what never compiles a model never
imports torch.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

from .base.version import __version__

__all__ = [
    "Batch",
    "Best",
    "DramPolicy",
    "ExpertLayer",
    "Experts",
    "Interleave",
    "LaneKnobs",
    "Length",
    "Loops",
    "MappingType",
    "Price",
    "Program",
    "Runner",
    "Schedule",
    "Segment",
    "Serving",
    "Tiles",
    "__version__",
    "choose_rows16",
    "compile",
    "errors",
    "explain",
    "in_integers",
    "load",
    "load_checkpoint",
    "load_stage",
    "quality",
    "sentence_transformer",
    "shown",
]

# Public name -> where it lives: "module" or "module:attribute", relative to this package.
_HOME = {
    "Batch": ".rsnlib.shapes:Batch",
    "Best": ".scheduler.best:Best",
    "DramPolicy": ".scheduler.schedule:DramPolicy",
    "ExpertLayer": ".host.model.expert_layer:ExpertLayer",
    "Experts": ".rsnlib.experts.choice:Experts",
    "Interleave": ".scheduler.schedule:Interleave",
    "LaneKnobs": ".scheduler.schedule:LaneKnobs",
    "Length": ".rsnlib.shapes:Length",
    "Loops": ".scheduler.schedule:Loops",
    "MappingType": ".scheduler.mapping:MappingType",
    "Passes": ".rsnlib.passes:Passes",  # not in __all__, as nn
    "Price": ".scheduler.search:Price",
    "Program": ".isa.program:Program",
    "QuantisedCache": ".rsnlib.quantised_cache:QuantisedCache",  # not in __all__: it takes torchao, transformers
    "Runner": ".host.runner:Runner",
    "Schedule": ".scheduler.schedule:Schedule",
    "Segment": ".scheduler.schedule:Segment",
    "Serving": ".host.serving:Serving",
    "StreamQuantizer": ".rsnlib.quantizer:StreamQuantizer",  # not in __all__: it takes torchao
    "Tiles": ".scheduler.schedule:Tiles",
    "choose_rows16": ".rsnlib.row_bits:choose_rows16",
    "compile": ".compiler:compile",
    "conv1d_to_linear": ".rsnlib.conv1d:conv1d_to_linear",  # not in __all__: it takes torch
    "errors": ".base.errors",
    "explain": ".compiler:explain",
    "in_integers": ".rsnlib.integers:in_integers",
    "load": ".host.model.loaded:load",
    "load_stage": ".host.model.stages:load_stage",
    "load_checkpoint": ".rsnlib.checkpoint:load_checkpoint",
    "nn": ".nn",  # not in __all__: `from rsn import *` would take torch
    "quality": ".rsnlib.quality:quality",
    "quantised_attention": ".rsnlib.quantised_attention:quantised_attention",  # not in __all__: it takes torchao
    "sentence_transformer": ".text_encoder:sentence_transformer",
    "shown": ".rsnlib.dump:shown",
}

_RENAMED = {"Rule": "DramPolicy"}
"""Former public name -> its name now."""


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        warnings.warn(f"rsn.{name} is called rsn.{_RENAMED[name]} now", DeprecationWarning, stacklevel=2)
        return __getattr__(_RENAMED[name])
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
