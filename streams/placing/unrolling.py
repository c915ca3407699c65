"""How far each kernel is unrolled: the slowest one is, until the budget is spent (StreamTensor, MICRO'25, 5.1).

A kernel of `work` operations takes ceil(work / unroll) cycles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace

from ...base.errors import ProgramError, ResourceError


@dataclass(frozen=True)
class Unrolling:
    """How far kernels are unrolled. unroll: the number of units of each kernel. cycles: the clock cycles of each kernel
    with these. raised: the names of the kernels that were given more units, one for each step, in order."""

    unroll: Mapping[str, int]
    cycles: Mapping[str, int]
    raised: tuple[str, ...]

    @property
    def interval(self) -> int:
        """Clock cycles of the slowest kernel. The pipeline of all kernels takes at least as many for each execution."""
        return max(self.cycles.values(), default=0)


def unroll(
    work: Mapping[str, int],
    budget: int,
    most: Mapping[str, int] | None = None,
    factor: int = 2,
    cost: Mapping[str, float] | None = None,
) -> Unrolling:
    """Give kernels more units until a budget is used (StreamTensor, section 5.1). In each step the slowest kernel gets
    `factor` times as many, until the next step would exceed the budget, or the slowest kernel can have no more.

    work: operations of each kernel; each begins with one unit, which does one a cycle. budget: the limit of the units
    of all kernels together, each times its cost (the paper's overall_unroll_size). most: the limit of the units of each
    kernel; its work if not given. cost: of a unit of each kernel, in units of the budget, at most 1; 1 if not given. Of
    equally slow kernels the first one by name is unrolled. Raises `ResourceError` if the budget is less than one unit a
    kernel, and `ProgramError` for work or a factor that is too small, a cost outside of these, and limits of kernels
    that do not exist."""
    if factor < 2:
        raise ProgramError(f"the factor is {factor}; the least is 2")
    for name, amount in work.items():
        if amount < 1:
            raise ProgramError(f"kernel {name} has {amount} operations; the least is 1")
    for name in most or {}:
        if name not in work:
            raise ProgramError(f"a limit for {name}, which is none of the kernels {', '.join(work)}")
    for name, each in (cost or {}).items():
        if not 0 < each <= 1:
            raise ProgramError(f"a unit of kernel {name} costs {each:g}; it is above 0 and at most 1")
    if budget < len(work):
        raise ResourceError(f"{len(work)} kernels need at least one unit each, the budget is {budget}")
    units = dict.fromkeys(work, 1)
    heap = [(-amount, name) for name, amount in work.items()]
    heapify(heap)
    raised: list[str] = []
    price = {name: (cost or {}).get(name, 1) for name in work}
    spent: float = sum(price.values())
    while heap:
        _, name = heap[0]
        after = units[name] * factor
        if after > (most or {}).get(name, work[name]) or spent + price[name] * (after - units[name]) > budget:
            break
        spent += price[name] * (after - units[name])
        units[name] = after
        raised.append(name)
        heapreplace(heap, (-_cycles(work[name], after), name))
    return Unrolling(units, {name: _cycles(amount, units[name]) for name, amount in work.items()}, tuple(raised))


def _cycles(work: int, units: int) -> int:
    return -(-work // units)
