"""Compare a call of a compiled model with the same call of the user's own module in PyTorch.

The module itself is the reference, not its captured graph or the layers that were made of it: these share the mistakes
of whoever read the module.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..base.errors import UnsupportedError, WrongResultError
from ..base.tolerance import bound_of
from .call_arguments import as_tensor
from .key_spans import KeySpans

Verify = Literal["first", "always", "never"]
"""Which calls are verified: the first one of each program, and the first one after each change of the model; every
call; or none."""

OWN = 10.0
"""A result beyond the bound passes if PyTorch's own float32 result is at least one OWN-th as far from its float64 one:
such a model amplifies any rounding."""
MOVED_BY = 1e-5
"""A module that computes in float32 only, such as a quantised one, shows how it amplifies rounding with its floating
parameters moved by this share of each at random: a number that lies between two integers is then rounded to either."""
MOVED = 2.0
"""A result beyond the bound passes if it is at most MOVED times as far as that moves PyTorch's own result."""
FEW = 0.01
"""The share of integers or truth values of a result that may differ: one decides between two numbers that are equal but
for rounding."""

HUGE = 1e30
"""Numbers from here on, such as the least finite one, stand for infinity; beside them no difference would count."""


class ReferenceKind(enum.Enum):
    """How PyTorch computes a call that is verified."""

    PLAIN = "as it is"
    DOUBLE = "in float64"
    MOVED = "with its parameters moved"


Reference = Callable[[tuple[Any, ...], dict[str, Any], ReferenceKind], Any]
"""Computes a call in PyTorch, from the arguments."""


def verify_named(name: str) -> Verify:
    """Return `name` as a `Verify`: which calls are verified. Raises `UnsupportedError` for other names than those of
    `Verify`."""
    if name not in get_args(Verify):
        raise UnsupportedError(f"verify {name!r}: " + ", ".join(f'"{x}"' for x in get_args(Verify)))
    return cast(Verify, name)


def of_module(module: Callable[[], nn.Module]) -> Reference:
    """Return the reference that calls a module. module: returns that module as it is at the time of the call; the
    reference raises what this function and the module raise."""

    def compute(args: tuple[Any, ...], kwargs: dict[str, Any], kind: ReferenceKind) -> Any:
        called = of_kind(module(), kind)
        if kind is ReferenceKind.DOUBLE:
            args, kwargs = in_double((args, kwargs))
        return called(*args, **kwargs)

    return compute


def of_kind(module: nn.Module, kind: ReferenceKind) -> nn.Module:
    """Return the module that computes a call: `module` itself for `PLAIN`, a copy in float64 for `DOUBLE`, a copy with
    `moved` parameters for `MOVED`."""
    if kind is ReferenceKind.PLAIN:
        return module
    module = copy.deepcopy(module)
    if kind is ReferenceKind.DOUBLE:
        return module.double()
    drawn = torch.Generator().manual_seed(0)
    for x in module.parameters():
        x.data = moved(x.data, drawn)
    return module


def is_quantised(model: nn.Module) -> bool:
    """Return whether a module has quantised parameters. The results of such a module may differ by more than roundings,
    because it may quantise its rows too: a rounding can make another integer of a number."""
    return any(map(is_traceable_wrapper_subclass, model.parameters()))


def moved(x: torch.Tensor, drawn: torch.Generator) -> torch.Tensor:
    """Return a parameter with each number moved by at most `MOVED_BY` of it, a new tensor of the same shape and type.
    Integers and quantised ones stay, because they are exact. drawn: gives the random numbers."""
    if is_traceable_wrapper_subclass(x) or not x.is_floating_point():
        return x
    return x * (1 + MOVED_BY * (2 * torch.rand(x.shape, generator=drawn) - 1))


def in_double(tree: Any) -> Any:
    """Return a tree (pytree) with its float32 tensors in float64. Other leaves stay."""
    return pytree.tree_map_only(torch.Tensor, lambda x: x.double() if x.dtype == torch.float32 else x, tree)


@dataclass(frozen=True)
class Visible:
    """The rows that the masks of a call show. spans: the keys of each sequence that masks show. seq: the rows of each
    sequence. What a model computes for other rows is not compared: they are padding, for which the machine attends to
    no keys."""

    spans: KeySpans
    seq: int

    def rows(self, shape: torch.Size) -> torch.Tensor | None:
        """Return which rows of a tensor count: bool, to be broadcast to it. shape: (batch, seq, ...), or (batch, heads,
        seq, columns). None for a tensor of another shape."""
        batch = len(self.spans.lengths)
        axis = next((i for i in (1, 2) if shape[i : i + 1] == (self.seq,)), None)
        if not batch or axis is None or shape[0] != batch or (axis == 2 and len(shape) != 4):
            return None
        at = torch.arange(self.seq)
        shown = at < torch.from_numpy(self.spans.lengths)[:, None]
        if self.spans.starts is not None:
            shown &= at >= torch.from_numpy(self.spans.starts)[:, None]
        return shown.reshape(batch, *(1,) * (axis - 1), self.seq, *(1,) * (len(shape) - axis - 1))


class Verification:
    """Verifies calls of a model.

    mode: which calls. reference: computes a call in PyTorch. model: an object that the reference needs; it is kept
    alive until a call has passed, with mode "always" for good. can: returns whether the reference can still be
    computed, because the model may be gone. padded: if a call is padded, the reference computes the padded call,
    because the last bits of a result depend on the padding.
    """

    def __init__(
        self, mode: Verify, reference: Reference, model: object, can: Callable[[], bool], *, padded: bool = False
    ) -> None:
        self.padded = padded
        self._mode, self._reference, self._can = mode, reference, can
        self._model = None if mode == "never" else model
        self._passed: dict[Hashable, tuple[object, datetime]] = {}

    def begin(
        self, program: object, args: tuple[Any, ...], kwargs: dict[str, Any], sizes: Hashable = ()
    ) -> VerifiedCall | None:
        """Begin to verify a call, before it runs; returns None if this call need not, or cannot, be verified. program:
        an object that changes whenever what it verifies is compiled anew. args, kwargs: the arguments of the call, by
        position and by name. sizes: those that the program is for, if the model has several programs."""
        is_due = self._mode == "always" or (self._mode == "first" and self.when(program, sizes) is None)
        return VerifiedCall(self._reference, args, kwargs) if is_due and self._can() else None

    def passed(self, program: object, sizes: Hashable = ()) -> None:
        """Note that a call of a program passed, now. program, sizes: as for `begin`."""
        self._passed[sizes] = program, datetime.now(UTC)
        if self._mode == "first":
            self._model = None

    def when(self, program: object, sizes: Hashable = ()) -> datetime | None:
        """Return when (in UTC) a call of a program last passed; None if none has. program, sizes: as for `begin`."""
        passed, time = self._passed.get(sizes, (None, None))
        return time if passed is program else None


class VerifiedCall:
    """A call that is verified. reference: computes it in PyTorch. args, kwargs: its arguments, by position and by name.
    They are copied when the call begins, before anything writes to them; so is the state of PyTorch's random
    numbers."""

    def __init__(self, reference: Reference, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._reference = reference
        self._given = copied((args, kwargs))
        self._drawn = torch.get_rng_state()

    def check(
        self,
        result: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        layers: int,
        visible: Iterable[Visible] = (),
        shown: Callable[[tuple[Any, ...], dict[str, Any]], str] = lambda args, kwargs: "",
    ) -> None:
        """Check the call when it has ended. Raises `WrongResultError` if the result, or an argument that the call wrote
        to, is not PyTorch's, and what the reference raises.

        result, args, kwargs: of the call. layers: number of layers of the network, which decides the bound
        (`tolerance.bound_of`). visible: rows that count. shown: makes a text of the call's arguments that the error
        ends with, such as which segment is wrong.
        """
        given = pytree.tree_map_only(np.ndarray, lambda x: as_tensor("", x), self._given)
        again = copied(given)
        expected = self._computed(given, ReferenceKind.PLAIN)
        after, seen = ((result, args, kwargs), (expected, *given)), list(visible)
        bound = bound_of(layers)
        worst = max(differences(*after, seen), key=lambda x: x.size, default=None)
        if worst is None or worst.size <= bound:
            return
        if worst.size <= self._amplified(again, expected, seen):
            return
        more = shown(*again)
        raise WrongResultError(
            f"{worst.what}: the largest difference from PyTorch is {worst.size:.1e} of the largest magnitude; at most "
            f"{bound:g} passes. Nothing is returned. This is an error of rsn, not of the model: please report it; "
            'until then, torch.compile with backend="eager" runs the model' + (f"\n{more}" if more else "")
        )

    def _computed(self, given: Any, kind: ReferenceKind) -> Any:
        """What PyTorch computes."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._drawn)
            return self._reference(given[0], given[1], kind)

    def _amplified(self, given: Any, expected: Any, seen: list[Visible]) -> float:
        """The largest difference that may be rounding, which the module amplifies: from its float64 result, or else by
        what it computes with moved parameters."""
        for kind, factor in ((ReferenceKind.DOUBLE, OWN), (ReferenceKind.MOVED, MOVED)):
            try:
                other = self._computed(copied(given), kind)
            except Exception:  # whatever a module raises that knows float32 only
                continue
            return factor * max((x.size for x in differences((expected,), (other,), seen)), default=0.0)
        return 0.0


@dataclass(frozen=True)
class LargestDifference:
    """How far a tensor is from the expected one. what: names the tensor. size: the largest difference, relative to the
    largest magnitude of the expected tensor; infinity for another shape."""

    what: str
    size: float


def differences(got: Any, expected: Any, visible: Iterable[Visible] = ()) -> Iterator[LargestDifference]:
    """Yield the differences between two trees (pytrees) of tensors, one for each pair of tensors that are not the same
    object. got, expected: tuples of (result, arguments by position, arguments by name), or of the result alone.
    visible: rows that count. The difference is infinity for trees of different structure, for tensors of different
    shape or type, and where an element of only one of them is NaN."""
    visible = list(visible)
    found, wanted = pytree.tree_flatten_with_path(got)[0], pytree.tree_leaves(expected)
    if len(found) != len(wanted):
        yield LargestDifference(f"{len(found)} tensors instead of {len(wanted)}", float("inf"))
        return
    for (path, x), y in zip(found, wanted, strict=True):
        if x is y:
            continue
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            yield LargestDifference(_named(path), _distance(x.detach(), y.detach(), visible))
        elif isinstance(y, int | float) and (type(x) is not type(y) or not (x == y or (x != x and y != y))):
            yield LargestDifference(f"{_named(path)} = {x!r} instead of {y!r}", float("inf"))


def _named(path: Any) -> str:
    """What a place in (result, arguments by position, arguments by name) is called."""
    kind, *rest = path
    where = pytree.keystr(tuple(rest))
    number = getattr(kind, "idx", 0)
    return f"result{where}" if not number else f"argument{where}, after the call"


def _distance(x: torch.Tensor, y: torch.Tensor, visible: Iterable[Visible]) -> float:
    if x.shape != y.shape:
        return float("inf")
    shown = next((rows for each in visible if (rows := each.rows(y.shape)) is not None), None)
    if shown is not None:
        x, y = (torch.where(shown, t, torch.zeros((), dtype=t.dtype)) for t in (x, y))
    if not y.numel():
        return 0.0
    if not (y.is_floating_point() or y.is_complex()):
        share = float((x != y).double().mean())
        return 0.0 if share == 0 or (share <= FEW and y.numel() > 1) else float("inf")
    counts = y.abs() < HUGE
    if not torch.equal(counts, x.abs() < HUGE) or not torch.equal(x[~counts].sgn(), y[~counts].sgn()):
        return float("inf")
    x, y = x[counts], y[counts]
    return float((x - y).abs().max()) / (float(y.abs().max()) or 1.0) if len(y) else 0.0


def copied(tree: Any) -> Any:
    """Return a deep copy of the arguments of a call, in which tensors that share memory share it again. tree: the
    arguments (pytree). Parameters are not copied, because calls do not write to them. Raises what copy.deepcopy
    raises."""
    memo: dict[int, Any] = {}
    for x in pytree.tree_leaves(tree):
        if isinstance(x, nn.Parameter):
            memo[id(x)] = x
        elif isinstance(x, torch.Tensor) and (not x.is_leaf or x.is_inference()):
            memo[id(x)] = x.detach().clone()
    with torch.inference_mode(False):
        return copy.deepcopy(tree, memo)
