"""A million mutated inputs: an error or a result for each, within bounds of time and memory.

    python -m rsn.tests.fuzz.mutate [--target image] [--count 1000000] [--seed 0]

Needs nothing but the package, unlike `run.py`, and does the same again for the same seed. Prints how often each
outcome came up; ends with exit code 1 and the input at hand when a target raises or a bound is exceeded.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import click

from .targets import TARGETS, Target, seeds

SECONDS = 1.0
"""CPU time that one input may take: a thousand times the usual, so that a busy machine does not matter."""

BYTES = 1 << 20
BYTES_PER_BYTE = 1024
"""Memory that an input may take at its peak: a fixed part, and one for each of its bytes. Measured on one in EVERY."""
EVERY = 500

GROWTH = 64 << 20
"""Bytes by which the process may grow from the first ten thousand inputs to the last: nothing is kept."""

SHOWN = 24
"""Outcomes that are listed, the most frequent first."""

INTERESTING = (0, 1, 2, 31, 127, 128, 255, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 0x7FC0_0000)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=list(TARGETS), default="image")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        result = run(options.target, options.count, options.seed)
    except FoundError as e:
        click.echo(f"{e}\n{e.data.hex()}", err=True)
        raise SystemExit(1) from e
    for outcome, n in result.outcomes.most_common(SHOWN):
        click.echo(f"{n:10,}  {outcome}")
    if len(result.outcomes) > SHOWN:
        others = result.outcomes.total() - sum(n for _, n in result.outcomes.most_common(SHOWN))
        click.echo(f"{others:10,}  {len(result.outcomes) - SHOWN} other outcomes")
    click.echo(
        f"{options.count:10,}  inputs in {result.seconds:.0f} s of CPU; the slowest {1000 * result.slowest:.0f} ms, "
        f"peak {result.peak_per_byte:.0f} bytes of memory per byte of input, process grew by {result.grown >> 20} MiB"
    )


class FoundError(Exception):
    """An input that a reader does not handle."""

    def __init__(self, message: str, data: bytes) -> None:
        super().__init__(message)
        self.data = data


@dataclass
class Result:
    """outcomes: how often each came up. peak_per_byte: the largest, over inputs of 64 bytes and more."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    slowest: float = 0.0
    peak_per_byte: float = 0.0
    grown: int = 0


def run(target: str, count: int, seed: int = 0) -> Result:
    """Put `count` mutated inputs to a target. Raises `FoundError` with the first that fails."""
    rng = random.Random(f"{target} {seed}")
    corpus = seeds(target)
    read = TARGETS[target]
    for data in corpus:  # what is made once belongs to no input
        _put(read, data)
    result = Result()
    begun = time.process_time()
    resident = 0
    for i in range(count):
        if i == min(10_000, count // 2):
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        data = mutated(rng, corpus)
        if i % EVERY == 0:
            result.peak_per_byte = max(result.peak_per_byte, _peak(read, data))
        start = time.process_time()
        with at_most(SECONDS):
            result.outcomes[_put(read, data)] += 1
        result.slowest = max(result.slowest, time.process_time() - start)
    result.grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident) * 1024
    result.seconds = time.process_time() - begun
    if result.grown > GROWTH:
        raise FoundError(f"the process grew by {result.grown} bytes", b"")
    return result


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` where the block is when it has used that much CPU time. For the main thread."""

    def stop(signal_number: int, frame: object) -> None:
        raise TimeoutError(f"more than {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _put(read: Target, data: bytes) -> str:
    try:
        return read(data)
    except Exception as e:
        raise FoundError(f"{type(e).__name__}: {e}", data) from e


def _peak(read: Target, data: bytes) -> float:
    """Bytes of memory at the peak per byte of an input. Short inputs do not count: their fixed part would."""
    tracemalloc.start()
    _put(read, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    if peak > BYTES + BYTES_PER_BYTE * len(data):
        raise FoundError(f"{peak} bytes of memory for {len(data)} bytes", data)
    return peak / len(data) if len(data) >= 64 else 0.0


# -- mutations ----------------------------------------------------------------------------------------------------


def mutated(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """One of the corpus with one to four changes."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        rng.choice(CHANGES)(rng, data, corpus)
    return bytes(data)


def flip_bit(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def set_byte(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def set_word(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    """A value at a boundary, or any other, little endian."""
    at = rng.randrange(len(data) + 1)
    value = rng.choice(INTERESTING) if rng.random() < 0.5 else rng.getrandbits(32)
    data[at : at + 4] = value.to_bytes(4, "little")


def cut_short(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def remove(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 4, 4, 8, 16, 64))]


def repeat(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    """A piece once more, somewhere else."""
    at, to = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
    data[to:to] = data[at : at + rng.choice((1, 4, 4, 8, 20, 64))]


def splice(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    """The rest of another input behind the beginning of this one."""
    other = rng.choice(corpus)
    data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]


CHANGES: Sequence[Callable[[random.Random, bytearray, Sequence[bytes]], None]] = (
    flip_bit,
    flip_bit,
    set_byte,
    set_word,
    set_word,
    cut_short,
    remove,
    repeat,
    splice,
)


if __name__ == "__main__":
    main()
