"""Which layers are lowered together, as one segment, and what segments that are alike are called."""

from __future__ import annotations

from collections.abc import Iterator

from ..isa.errors import ScheduleError
from .schedule import Loops, Schedule
from .segment import Attention, Gemm, Network

Group = list[Gemm] | Attention
"""Products of one activation, or one attention."""


def groups_of(network: Network, loops: Loops) -> Iterator[Group]:
    """What is lowered together: products of the same activation that follow on each other, where they share slices."""
    waiting: list[Gemm] = []
    for layer in network.layers:
        if waiting and not (isinstance(layer, Gemm) and loops is Loops.ROWS and _shares(waiting[-1], layer)):
            yield waiting
            waiting = []
        if isinstance(layer, Gemm):
            waiting = [*waiting, layer]
        else:
            yield layer
    if waiting:
        yield waiting


def kind_of(group: Group) -> str:
    """What segments that are alike have in common, as schedules name them: `gemm 1024x4096 gelu`."""
    if isinstance(group, Attention):
        return f"attention {group.heads}x{group.head_dim}" + " causal" * group.causal
    gemm = group[0]
    k, n = gemm.weight.shape
    words = [f"gemm {k}x{n}" if gemm.multiplies else f"pass {n}"]
    words += [f"times {len(group)}"] if len(group) > 1 else []
    words += [gemm.activation.value] if gemm.activation else []
    words += ["residual"] if gemm.residual else []
    words += ["norm"] if gemm.norm else []
    return " ".join(words)


def kinds_of(network: Network, schedule: Schedule) -> dict[str, str]:
    """The kind of the segment that makes an activation, by its name. Raises `ScheduleError` where the schedule speaks
    of segments that are not there."""
    kinds: dict[str, str] = {}
    for group in groups_of(network, schedule.loops):
        for layer in [group] if isinstance(group, Attention) else group:
            kinds[layer.y] = kind_of(group)
    known = set(kinds.values())
    for name, given in (("rules", dict(schedule.rules)), ("tiles", dict(schedule.tiles)), ("drain", schedule.drain)):
        for kind in given:
            if kind not in known or (name == "tiles" and kind.startswith("attention")):
                there = sorted(k for k in known if name != "tiles" or not k.startswith("attention"))
                raise ScheduleError(f"{name}.{kind!r}: there is no such segment; there are {', '.join(there)}")
    return kinds


def _shares(a: Gemm, b: Gemm) -> bool:
    return a.x == b.x and not (a.residual or b.residual or a.norm or b.norm)
