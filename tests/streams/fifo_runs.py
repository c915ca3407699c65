"""Runs of kernels with one rate, cycle by cycle, to compare with equations; and random graphs of such kernels."""

from __future__ import annotations

from random import Random

from rsn.streams.dataflow.graph import Timing
from rsn.streams.fifos.equations import AT_ONCE
from rsn.streams.fifos.starts import Fifo, KernelGraph


def run(source: Timing, target: Timing, delay: int, depth: int | None, free_after: int = AT_ONCE) -> tuple[int, int]:
    """Two kernels and a FIFO: the most tokens that wait, and the cycle of the last get.

    In each cycle the target gets first, if it is due and a token of an earlier cycle is there; then the source puts, if
    it is due and a slot is free. depth: None for an endless FIFO. A slot counts from the put to the get, and to the
    cycle after it with free_after = 1.
    """
    put: list[int] = []
    got: list[int] = []
    cycle, peak = 0, 0
    while len(got) < source.tokens:
        due = got[-1] + target.interval if got else delay + 1
        if cycle >= due and len(got) < len(put) and put[len(got)] < cycle:
            got.append(cycle)
        # With free_after = 1 a token that is got in this cycle still has its slot.
        used = len(put) - sum(at + free_after <= cycle for at in got[-2:]) - len(got[:-2])
        due = put[-1] + source.interval if put else source.first
        if len(put) < source.tokens and cycle >= due and (depth is None or used < depth):
            put.append(cycle)
            peak = max(peak, used + 1)
        cycle += 1
    return peak, got[-1]


def random_case(random: Random) -> tuple[Timing, Timing, int]:
    """A source, a target, and a delay that is D or more."""
    tokens, first = random.randint(1, 40), random.randint(0, 20)
    source = Timing(first, random.randint(1, 6), tokens)
    target = Timing(random.randint(0, 20), random.randint(1, 6), tokens)
    return source, target, first + random.choice([0, 1, random.randint(0, source.last + 5)])


def random_graph(random: Random, most: int = 9, tokens: int = 24, one_source: bool = False) -> KernelGraph:
    """A graph in which every kernel but the first ones gets from one to three kernels before it."""
    count = random.randint(2, most)
    timings = [Timing(random.randint(1, 40), random.choice([1, 1, 1, 2, 3]), tokens) for _ in range(count)]
    fifos: list[Fifo] = []
    for target in range(1, count):
        for source in random.sample(
            range(target), min(target, random.randint(0 if target < 3 and not one_source else 1, 3))
        ):
            fifos.append(Fifo(source, target, random.choice([8, 16, 32, 128])))
    return KernelGraph(tuple(f"k{i}" for i in range(count)), tuple(timings), tuple(fifos))
