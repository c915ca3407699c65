"""Layers of experts of the transformers library, which can be switched from a loop over the active experts to products
in groups. torch.export cannot capture that loop: how often it turns depends on data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

SWITCH = "_experts_implementation"
LOOPS = (None, "eager")
GROUPS = "grouped_mm"


@contextmanager
def in_groups(model: nn.Module) -> Iterator[None]:
    """Context in which the experts of a model compute products in groups instead of a loop, if the configurations of
    its modules have that switch. Both ways compute the same result. The switch is set back at the end."""
    configs = {id(c): c for part in model.modules() if (c := getattr(part, "config", None)) is not None}
    switched = [(c, getattr(c, SWITCH)) for c in configs.values() if hasattr(c, SWITCH) and getattr(c, SWITCH) in LOOPS]
    try:
        for config, _ in switched:
            setattr(config, SWITCH, GROUPS)
        yield
    finally:
        for config, before in switched:
            setattr(config, SWITCH, before)
