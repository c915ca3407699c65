"""Check that the host part of a network with lengths does not depend on rows beyond the length of a sequence.

The machine neither reads nor computes these rows; its outputs are 0 there. A mean over all rows would wrongly include
them. So the host part runs with several values in these rows: in the machine's outputs and, unless a mask of the model
hides them, in the arguments that the machine's inputs are computed from. Only the same rows of its results may change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from ..base.errors import UnsupportedError
from .capture import Environment, run, site

if TYPE_CHECKING:
    from .host_part import HostPart

LARGE = 30.0
"""Magnitude of test values beyond the lengths; valid values are about 1. Below that of a mask (`mask.HIDDEN`)."""
VARIANTS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: LARGE * (1 + x.abs()),
    lambda x: -LARGE * (1 + x.abs()),
    lambda x: LARGE * x,
)
"""Ways to make test values from random numbers. All elements differ, because a norm turns a constant row into 0."""
CLOSE = 1e-5
"""Changes smaller than this times the largest value of a tensor do not count."""


def check_rows_beyond(host: HostPart, arguments: Environment) -> bool:
    """Check that results of the host part do not depend on rows beyond the lengths of sequences. Raises
    `UnsupportedError`, naming the operator, if one does.

    host: its `lengths` are not empty. arguments: of a call, by placeholder, as `Interface.bind` returns them; their
    masks fit the lengths. Returns whether the check holds for all other arguments too. It does not if the host part
    behind the machine reads arguments that are not masks.
    """
    batch, seq = host.batch, host.seq
    beyond = torch.arange(seq) >= torch.tensor(host.rows)[:, None]
    random = torch.Generator().manual_seed(0)
    valid = {
        name: torch.randn(batch, host.seq_of(name), columns, generator=random) for name, columns in host.columns.items()
    }

    def computed(arguments: Environment, fill: Callable[[torch.Tensor], torch.Tensor]) -> Environment:
        outputs = {name: torch.where(beyond[..., None], fill(x), x).numpy() for name, x in valid.items()}
        environment = host.constants | arguments
        run(host.before, environment)
        host.take(outputs, environment)
        run(host.after, environment)
        return environment

    masks = _placeholders(host.masks)
    given = set() if masks else _placeholders(node for node, _ in host.sources.values()) & set(arguments)
    first = computed(arguments, torch.zeros_like)
    for variant in VARIANTS:
        other = computed(arguments | {x: _varied(arguments[x], beyond, variant) for x in given}, variant)
        _check_inputs(host, first, other, beyond)
        for node in host.interface.result.all_input_nodes:
            if not _is_confined(first[node], other[node], beyond):
                raise _error(host, node, first, other, beyond)
    made = {*host.after, *host.results}
    behind = {x for node in (*host.after, host.interface.result) for x in node.all_input_nodes} - made
    return (_placeholders(behind) & set(arguments)) <= masks


def _placeholders(nodes: Iterable[Node]) -> set[Node]:
    """The arguments, parameters and buffers that these nodes are computed from."""
    return {node for node in _ancestors(nodes) if node.op == "placeholder"}


def _ancestors(nodes: Iterable[Node]) -> set[Node]:
    """These nodes, and all nodes that they are computed from."""
    found = set(nodes)
    stack = list(found)
    while stack:
        new = set(stack.pop().all_input_nodes) - found
        found |= new
        stack += new
    return found


def _check_inputs(host: HostPart, first: Environment, other: Environment, beyond: torch.Tensor) -> None:
    """Raises UnsupportedError if rows within the lengths of the machine's inputs differ between two runs."""
    one, two = (host.inputs(environment) for environment in (first, other))
    for name, (node, _) in host.sources.items():
        changed = _changed(torch.from_numpy(one[name]), torch.from_numpy(two[name]))
        if bool((changed & ~beyond[..., None]).any()):
            raise _error(host, node, first, other, beyond)


def _error(
    host: HostPart, result: Node, first: Environment, other: Environment, beyond: torch.Tensor
) -> UnsupportedError:
    """The error that names the first operator behind `result` of which other rows change."""
    found = _ancestors([result])
    order = [node for node in result.graph.nodes if node in found and node in first and node in other]
    at = next((node for node in order if not _is_confined(first[node], other[node], beyond)), result)
    return UnsupportedError(
        f"{site(at)}: its result depends on rows beyond a sequence's length (lengths); hide these rows with a mask "
        "that is an argument, or move this operator out of the module"
    )


def _is_confined(one: Any, two: Any, beyond: torch.Tensor) -> bool:
    """Whether two values differ at most in rows beyond a length, in any layout of sequences and rows."""
    if not isinstance(one, torch.Tensor) or one.shape != two.shape:
        return True
    changed = _changed(one, two)
    return not bool(changed.any()) or any(not bool((changed & ~rows).any()) for rows in _places(one.shape, beyond))


def _changed(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    if not one.dtype.is_floating_point:
        return one != two
    largest = one[one.isfinite()].abs().max() if bool(one.isfinite().any()) else one.new_zeros(())
    return ~torch.isclose(one, two, rtol=0, atol=CLOSE * float(largest), equal_nan=True)


def _places(shape: Sequence[int], beyond: torch.Tensor) -> Iterator[torch.Tensor]:
    """`beyond`, shape (batch, seq), broadcast to a tensor's shape in each possible layout: sequences and rows in two
    dimensions, together in one, or rows only if there is one sequence."""
    batch, seq = beyond.shape
    for j, size in enumerate(shape):
        if size == batch * seq:
            yield beyond.reshape([batch * seq if k == j else 1 for k in range(len(shape))])
        for i in range(len(shape)):
            if i != j and (shape[i], size) == (batch, seq):
                rows = beyond if i < j else beyond.T
                yield rows.reshape([shape[k] if k in (i, j) else 1 for k in range(len(shape))])


def _varied(argument: Any, beyond: torch.Tensor, variant: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """An argument with other values in rows beyond the lengths, if its first dimensions are sequences and rows in any
    order. Integers are replaced by others of the same argument."""
    if not isinstance(argument, torch.Tensor) or argument.dtype == torch.bool:
        return argument
    batch, seq = beyond.shape
    if argument.shape[:2] == (batch, seq):
        rows = beyond
    elif argument.shape[:2] == (seq, batch):
        rows = beyond.T
    elif argument.shape[:1] == (batch * seq,):
        rows = beyond.reshape(-1)
    else:
        return argument
    random = torch.Generator().manual_seed(0)
    if argument.dtype.is_floating_point:
        other = variant(torch.randn(argument.shape, generator=random)).to(argument.dtype)
    else:
        other = argument.flatten()[torch.randint(argument.numel(), argument.shape, generator=random)]
    return torch.where(rows.reshape(*rows.shape, *(1,) * (argument.ndim - rows.ndim)), other, argument)
