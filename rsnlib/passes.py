"""The compiler's passes, from a module to a program, and how to replace or observe them.

A pass is a function; `Passes` holds one for each step. Replace one, or add a rewrite or a rule, and pass the `Passes`
to `rsn.compile`:

    rules = {**RULES, torch.ops.mine.scale_shift: my_rule}
    compiled = rsn.compile(model, inputs, passes=rsn.Passes(rules=rules, lower=my_lower))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..scheduler import build
from ..scheduler.graph import LayerGraph
from .experts.replace import ExpertsPlan
from .fold import fold
from .rewriter import Rewrite
from .rewrites import REWRITES
from .rules import RULES
from .values import LoweringPattern

Fold = Callable[[LayerGraph], LayerGraph]
"""From the matched graph to the folded one. Inputs, and results that the folded one has too, keep their names; outputs
keep their order."""


@dataclass(frozen=True, kw_only=True)
class Passes(build.SchedulerPasses):
    """All passes of the compiler.

    rewrites: of the captured graph, in their order (`rewrites`). rules: the lowering rule of each PyTorch operator
    (`rules`). fold: from matched layers to folded ones (`fold`). experts: how experts that data choose are computed;
    None leaves them to PyTorch. norms_of_inputs: the machine also computes a norm of one of its inputs if only products
    read the result; False: the host does, and sends the input and its norm. keeps_caches: the machine keeps caches of
    keys and values between runs, and takes the factors of rotary positions from the host. pairs_factors: the machine
    takes two factors of a rotation for each pair of columns; False: two for each column. The other passes are those of
    the scheduler.
    """

    rewrites: Sequence[Rewrite] = REWRITES
    rules: Mapping[Any, LoweringPattern] = field(default_factory=lambda: RULES)
    fold: Fold = fold
    experts: ExpertsPlan | None = None
    norms_of_inputs: bool = False
    keeps_caches: bool = True
    pairs_factors: bool = False


USUAL = Passes()
