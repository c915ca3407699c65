"""A compiled model as an `nn.Module`, for libraries that take nothing else."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any

from torch import nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks")
"""The hooks of a module that a call runs; torch keeps what is said about them beside, under longer names."""


def as_module(model: nn.Module, compiled: Callable[..., Any], takes: Collection[str]) -> nn.Module:
    """Return a module of the class of `model`, with its submodules, weights and attributes, whose `forward` runs what
    was compiled from it.

    compiled: runs a call. takes: the names of the arguments that `compiled` takes. Other arguments of `model.forward`
    can be left out, or given with the values that they have when they are left out; `return_dict=False` gives a tuple
    instead of a result with named fields. The model's own hooks run in `compiled`, as they were captured.
    """
    module = copy.copy(model)
    for name, value in vars(model).items():
        if name.startswith(HOOKS):
            vars(module)[name] = type(value)() if isinstance(value, dict | OrderedDict) else value
    signature, config = inspect.signature(model.forward), getattr(model, "config", None)
    defaults = {p.name: p.default for p in signature.parameters.values()}
    kinds = {p.name: p.kind for p in signature.parameters.values()}

    def says_nothing(name: str, value: Any) -> bool:
        return value is None or value is defaults.get(name) or value is getattr(config, name, compiled)

    @wraps(model.forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        given: dict[str, Any] = {}
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if kinds[name] is inspect.Parameter.VAR_KEYWORD:
                given |= value
            elif kinds[name] is inspect.Parameter.VAR_POSITIONAL:
                return compiled(*args, **kwargs)
            else:
                given[name] = value
        as_tuple = "return_dict" not in takes and given.pop("return_dict", None) is False
        result = compiled(**{name: x for name, x in given.items() if name in takes or not says_nothing(name, x)})
        return result.to_tuple() if as_tuple and hasattr(result, "to_tuple") else result

    vars(module)["forward"] = forward
    return module
