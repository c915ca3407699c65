"""The compiler's passes, from a module to a program: which there are, how one is replaced, and what each made.

A pass is a function; `Passes` says which ones run. Replace one, or add a rewrite or a rule, and give the whole to
`rsn.compile`:

    rules = {**RULES, torch.ops.mine.scale_shift: my_rule}
    compiled = rsn.compile(model, inputs, passes=rsn.Passes(rules=rules, lower=my_lower))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..isa.overlay import Overlay
from ..scheduler import build
from ..scheduler.graph import LayerGraph
from ..scheduler.room import check_weights
from .fold import fold, fold_shapes
from .layers import Layer, Linear, ancestors
from .rewriter import Rewrite
from .rewrites import REWRITES
from .rules import RULES
from .values import LoweringPattern

Fold = Callable[[list[Layer], int, int], tuple[LayerGraph, dict[Layer, str]]]


@dataclass(frozen=True, kw_only=True)
class Passes(build.Passes):
    """rewrites: of the captured graph, in their order (`rewrites`). rules: by operator of PyTorch, what of it the
    machine takes (`rules`). fold: from the layers that were matched, over batch * seq rows, to a network, and the name
    of each layer's result in it (`fold`). What follows is the scheduler's."""

    rewrites: Sequence[Rewrite] = REWRITES
    rules: Mapping[Any, LoweringPattern] = field(default_factory=lambda: RULES)
    fold: Fold = fold


USUAL = Passes()


def within(overlay: Overlay, passes: Passes = USUAL) -> Passes:
    """The same passes; before weights are folded, which copies them, they raise `RoomError` for weights that no bank of
    the overlay holds."""

    def observe(name: str, made: Any) -> None:
        if name == "match" and passes.fold in (fold, fold_shapes):  # another one may need fewer
            # Two layers of the same weight may become one product.
            weights = {id(x.weight): x.weight.size for x in ancestors(made) if isinstance(x, Linear)}
            check_weights(sum(weights.values()), overlay)
        passes.observe(name, made)

    return replace(passes, observe=observe)
