"""The compiler's passes, from a module to a program: which there are, how one is replaced, and what each made.

A pass is a function; `Passes` says which ones run. Replace one, or add a rewrite or a rule, and give the whole to
`rsn.compile`:

    rules = {**RULES, torch.ops.mine.scale_shift: my_rule}
    compiled = rsn.compile(model, inputs, passes=rsn.Passes(rules=rules, lower=my_lower))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..scheduler import build
from ..scheduler.segment import Network
from .fold import fold
from .layers import Layer
from .rewriter import Rewrite
from .rewrites import REWRITES
from .rules import RULES
from .values import Rule

Fold = Callable[[list[Layer], int, int], tuple[Network, dict[Layer, str]]]


@dataclass(frozen=True, kw_only=True)
class Passes(build.Passes):
    """rewrites: of the captured graph, in their order (`rewrites`). rules: by operator of PyTorch, what of it the
    machine takes (`rules`). fold: from the layers that were matched, over batch * seq rows, to a network, and the name
    of each layer's result in it (`fold`). What follows is the scheduler's."""

    rewrites: Sequence[Rewrite] = REWRITES
    rules: Mapping[Any, Rule] = field(default_factory=lambda: RULES)
    fold: Fold = fold


USUAL = Passes()
