"""The compiler's passes, from a module to a program, and how to replace or observe them.

A pass is a function; `Passes` holds one for each step. Replace one, or add a rewrite or a rule, and pass the `Passes`
to `rsn.compile`:

    rules = {**RULES, torch.ops.mine.scale_shift: my_rule}
    compiled = rsn.compile(model, inputs, passes=rsn.Passes(rules=rules, lower=my_lower))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..isa.overlay import Overlay
from ..scheduler import build
from ..scheduler.graph import Gemm, LayerGraph
from ..scheduler.lower import Banks
from ..scheduler.memory import check_weights
from ..scheduler.norms import norms_at_loads
from .experts.replace import ExpertsPlan
from .fold import fold, fold_shapes
from .rewriter import Rewrite
from .rewrites import REWRITES
from .rules import RULES
from .values import LoweringPattern

Fold = Callable[[LayerGraph], LayerGraph]
"""From the matched graph to the folded one. Inputs, and results that the folded one has too, keep their names; outputs
keep their order."""


@dataclass(frozen=True, kw_only=True)
class Passes(build.SchedulerPasses):
    """All passes of the compiler. rewrites: of the captured graph, in their order (`rewrites`). rules: the lowering
    rule of each PyTorch operator (`rules`). fold: from matched layers to folded ones (`fold`). experts: how experts
    that data choose are computed; None leaves them to PyTorch. norms_of_inputs: the machine also computes a norm of one
    of its inputs if only products read the result; False: the host does, and sends the input and its norm.
    keeps_caches: the machine keeps caches of keys and values between runs, and takes the factors of rotary positions
    from the host. The other passes are those of the scheduler."""

    rewrites: Sequence[Rewrite] = REWRITES
    rules: Mapping[Any, LoweringPattern] = field(default_factory=lambda: RULES)
    fold: Fold = fold
    experts: ExpertsPlan | None = None
    norms_of_inputs: bool = False
    keeps_caches: bool = True


USUAL = Passes()


def within(overlay: Overlay, passes: Passes = USUAL) -> Passes:
    """The same passes for an overlay: its heads are laid out as it needs them, norms go where they cost least, and
    weights that exceed its bank raise `RoomError` before folding copies them."""

    def observe(name: str, made: Any) -> None:
        if name == "match" and passes.fold in (fold, fold_shapes):  # another fold may need fewer weights
            # Two layers of the same weight may become one product.
            weights = {id(x.weight): x.weight.size for x in made.layers if isinstance(x, Gemm)}
            check_weights(sum(weights.values()), overlay, Banks.of(overlay).weights)
        passes.observe(name, made)

    passes = replace(
        passes,
        norms_of_inputs=overlay.lanes is not None,  # X normalises as it sends
        keeps_caches=overlay.capability("keep_rows") is not None,
    )
    if passes.fold not in (fold, fold_shapes):
        return replace(passes, observe=observe)

    def folded(graph: LayerGraph) -> LayerGraph:
        return norms_at_loads(fold(graph, passes.fold is fold, overlay.head_pitch), overlay)

    return replace(passes, observe=observe, fold=folded)
