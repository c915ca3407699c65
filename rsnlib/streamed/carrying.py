"""Steps that carry state: results of a step that are arguments of the next one, such as caches of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from ...base.errors import ProgramError, TensorError
from ...hw.sim.machine import Run
from ..call_arguments import by_name

if TYPE_CHECKING:
    from .block import Streamed


class Carrying:
    """A stream program whose state goes from step to step.

    made: the program. carried: for each argument that is carried, by name, its position in the result of the step
    before, from 0 on. state: the values of the carried arguments for the next step, by name, as tensors or as the
    structures of tensors that the module takes. A step replaces it when it ends; a step that raises leaves it as it is.
    It may be read, and replaced to go on from another state. Raises as `Streamed.carrying`.
    """

    def __init__(self, made: Streamed, carried: Mapping[str, int], state: Mapping[str, Any]) -> None:
        self._made = made
        self._carried = dict(carried)
        interface = made.block.interface
        given = pytree.tree_unflatten(list(interface.arguments), interface.structure)
        arguments = by_name(interface.signature, *given)
        (nodes,) = interface.result.args
        results = interface.result_structure.unflatten(map_arg(nodes, lambda node: node))
        for name, at in self._carried.items():
            if name not in arguments:
                raise ProgramError(f"no argument is named {name}; there are {', '.join(arguments)}")
            if not isinstance(results, tuple | list) or not 0 <= at < len(results):
                count = len(results) if isinstance(results, tuple | list) else 1
                raise ProgramError(f"{name} is result {at} of a step, which has {count}, counted from 0")
            if _shapes(arguments[name]) != _shapes(results[at]):
                raise ProgramError(
                    f"argument {name} is {_shapes(arguments[name])[1]}, and result {at} is {_shapes(results[at])[1]}; "
                    f"what is carried has one shape in all steps"
                )
        if set(state) != set(self._carried):
            raise TensorError(f"the state of the first step has {_names(state)}; the steps carry {_names(carried)}")
        self.state = dict(state)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step with the other arguments of the module, by position or by name. Returns the other results: as
        the module does, or the only one. Raises `TensorError` for an argument that is carried, and as `Streamed.run`
        does."""
        return self.timed_step(*args, **kwargs)[0]

    def timed_step(self, *args: Any, **kwargs: Any) -> tuple[Any, Run]:
        """As `step`, with the run itself: its modelled time in seconds, and what took it. Raises as `step` does."""
        twice = [name for name in kwargs if name in self._carried]
        if twice:
            raise TensorError(f"{', '.join(twice)} comes from the step before; leave it out, or set `state`")
        results, run = self._made.timed_run(*args, **kwargs, **self.state)
        self.state = {name: results[at] for name, at in self._carried.items()}
        left = [result for at, result in enumerate(results) if at not in self._carried.values()]
        return (left[0] if len(left) == 1 else type(results)(left)), run


def _names(of: Mapping[str, Any]) -> str:
    return ", ".join(of) or "nothing"


def _shapes(x: Any) -> tuple[Any, list[list[int] | str]]:
    """The structure of an argument or a result, and the shapes of its tensors."""
    flat, structure = pytree.tree_flatten(x)
    values = [node.meta["val"] if isinstance(node, Node) else node for node in flat]
    return structure, [list(v.shape) if isinstance(v, torch.Tensor) else repr(v) for v in values]
