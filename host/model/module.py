"""What compiled and loaded models have in common with the modules whose place they take."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ...base.deferred import deferred
from ...base.errors import UnsupportedError
from ..closing import Closing

if TYPE_CHECKING:
    import torch
    from torch import nn

    from . import torch_module
else:
    torch_module = deferred("rsn.host.model.torch_module")


class BoardModule(Closing):
    """A model that runs on a board, and is called as a module; a `with` block closes it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model. Arguments and results are those of the module."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The same as a call, under the name that modules have for it. Raises what a call raises."""
        return self(*args, **kwargs)

    @property
    def device(self) -> torch.device:
        """The device of arguments and results: the CPU."""
        import torch

        return torch.device("cpu")


class CompiledModule(BoardModule):
    """What `rsn.compile` makes. It cannot be pickled or copied: both raise `UnsupportedError`."""

    @property
    def _called(self) -> tuple[nn.Module, Collection[str]]:
        """The model that was compiled, and the names of the arguments that calls take."""
        raise NotImplementedError

    def module(self) -> nn.Module:
        """Return a `torch.nn.Module` whose calls run on the compiled model. It has the class, submodules, weights and
        attributes of the model, so that libraries that look at these take it; a change of its weights is a change of
        the model.

        It also takes an argument that calls of this object do not take, if its value is the one that the model has when
        the argument is left out; and `return_dict=False`. Raises `UnsupportedError` if the model no longer exists.
        """
        model, takes = self._called
        return torch_module.as_module(model, self, takes)

    def __reduce_ex__(self, protocol: Any) -> Any:  # of `pickle` and `copy`
        raise UnsupportedError(
            "what rsn.compile made holds a board and cannot be copied or pickled: copy the model and compile that, or "
            "save(program, weights), which rsn.Runner runs anywhere"
        )
