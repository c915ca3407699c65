"""The arguments of a served model: what each takes, and the errors of calls that do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...base.errors import TensorError
from ..tensors import shown


@dataclass(frozen=True)
class Argument:
    """A tensor that the model's forward takes.

    dtype: NumPy's name, such as int64, float32 or bool. shape: for each dimension its size, or the name of a size that
    calls choose, such as "batch" or "length".
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        """Return the argument as messages show it, for example `input_ids: int64 (batch, length)`."""
        return f"{shown(self.name)}: {self.dtype} ({', '.join(map(str, self.shape))})"


def check_names(arguments: Sequence[Argument], given: Iterable[str]) -> None:
    """Raise `TensorError`, naming the argument, if one of the names in `given` is unknown, or one of `arguments` is
    missing there."""
    known, names = {a.name for a in arguments}, set(given)
    takes = ", ".join(shown(a.name) for a in arguments) or "no arguments"
    if unknown := names - known:
        raise TensorError(f"no argument {shown(min(unknown))}; this model takes {takes}")
    for argument in arguments:
        if argument.name not in names:
            raise TensorError(f"argument {shown(argument.name)} is missing; this model takes {takes}")
