"""What compiled and loaded models have in common with the modules whose place they take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...base.errors import UnsupportedError
from ..closing import Closing

if TYPE_CHECKING:
    import torch


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

    def __reduce_ex__(self, protocol: Any) -> Any:  # of `pickle` and `copy`
        raise UnsupportedError(
            "what rsn.compile made holds a board and cannot be copied or pickled: copy the model and compile that, or "
            "save(program, weights), which rsn.Runner runs anywhere"
        )
