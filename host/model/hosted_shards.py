"""One call of a module whose stages several boards compute together: the programs of all shards, and what the host adds
or joins between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...hw.sim.machine import joined
from ...isa.program import Array
from ...scheduler.shards import ShardExchange
from .caches import Caches
from .hosted import HostedProgram, ProgramOnBoard

if TYPE_CHECKING:
    from torch.fx import Node

    from ...hw.sim.machine import Run
    from ...isa.program import Program
    from ...rsnlib.host_part import HostPart
    from ...rsnlib.key_spans import KeySpans
    from ..runner import Result


@dataclass(frozen=True)
class ShardRound:
    """A round of shards: programs that run at the same time. stage: number of the stage. programs: for each shard the
    number of its program among all programs of the model; None for a shard that computes nothing. exchange: what the
    shards exchange behind the round."""

    stage: int
    programs: tuple[int | None, ...]
    exchange: ShardExchange

    def moved(self, by: int) -> ShardRound:
        """Return the same round, with `by` added to the numbers of its programs."""
        return replace(self, programs=tuple(None if number is None else number + by for number in self.programs))


def board_numbers(rounds: Sequence[ShardRound]) -> tuple[int, ...]:
    """Return the number of the board of each program: those of the shards of the first stage come first. rounds: of
    all stages, in order."""
    found = {
        number: one.stage * len(one.programs) + shard
        for one in rounds
        for shard, number in enumerate(one.programs)
        if number is not None
    }
    return tuple(found[number] for number in range(len(found)))


def exchanged(exchange: ShardExchange, outputs: Sequence[Mapping[str, Array] | None]) -> dict[str, Array]:
    """Return what is known behind a round, by name of the activation: sums of the shards' parts, in float32 and in the
    order of the shards, columns side by side, and all else that the first shard computes. outputs: of each shard; None
    for one that computed nothing."""
    given = [of for of in outputs if of is not None]
    known = dict(given[0])
    for name in exchange.sums:
        total = given[0][name].copy()
        for of in given[1:]:
            total += of[name].reshape(total.shape)
        known[name] = total
    for name, columns in exchange.columns.items():
        first = given[0][name]
        whole = np.empty((*first.shape[:-1], max(own.stop for own in columns)), np.float32)
        for of, own in zip(given, columns, strict=True):
            whole[..., own] = of[name].reshape(*first.shape[:-1], -1)
        known[name] = whole
    return known


class HostedShards(HostedProgram):
    """Runs calls of a network that is cut into stages and shards. Programs of one round run at the same time, each in a
    thread.

    rounds: in order; the numbers of their programs are places among `runners`. host, runners, programs, first: as for
    `HostedProgram`.
    """

    def __init__(
        self,
        host: HostPart,
        rounds: Sequence[ShardRound],
        *runners: ProgramOnBoard,
        programs: Sequence[Program] | None = None,
        first: int = 0,
    ) -> None:
        super().__init__(host, *runners, programs=programs, first=first)
        self._rounds = rounds
        for one in rounds:
            for shard, number in enumerate(one.programs):
                if number is not None:
                    own = {name: columns[shard] for name, columns in one.exchange.caches.items()}
                    self._caches[number] = Caches(host, runners[number].program, own)

    def _on_boards(
        self,
        known: dict[str, Array],
        parameters: Sequence[Mapping[str, int]],
        state: dict[Node, Any],
        spans: KeySpans | None,
    ) -> Run:
        def run(number: int) -> Result:
            return self._on_board(number, known, parameters[number], state, spans)

        runs = []
        with ThreadPoolExecutor(max(len(one.programs) for one in self._rounds)) as pool:
            for one in self._rounds:
                numbers = [number for number in one.programs if number is not None]
                results = dict(zip(numbers, pool.map(run, numbers), strict=True))
                given = [None if number is None else results[number].outputs for number in one.programs]
                runs.append(beside([result.run for result in results.values()]))
                known |= exchanged(one.exchange, given)
        return joined(runs)


def beside(runs: Sequence[Run]) -> Run:
    """Return runs that took place at the same time as one: the slowest, with the bytes of all."""
    if len(runs) == 1:
        return runs[0]
    slowest = max(runs, key=lambda run: run.latency_s)
    names: dict[str, Any] = dict.fromkeys(name for run in runs for name in run.bytes)
    return replace(slowest, bytes={name: sum(run.bytes.get(name, 0) for run in runs) for name in names})
