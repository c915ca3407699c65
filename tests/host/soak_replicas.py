"""Many clients, two copies of a model in three stages on Ray, whose processes and computers are killed: nothing lost,
answered twice, or wrong.

    python -m rsn.tests.host.soak_replicas [--requests 3000] [--clients 16] [--seed 1] [--faults 0.02] [--kills 60]
                                           [--limit 1800] [--shards 1]

Two "computers", which are two raylets on this one, with a copy each. Each stage is a product on a simulated board that
fails at random. Now and then the process of a stage is killed, sometimes all of a copy, and one time in ten the second
computer with all that runs there; another one comes in its place. Half-way all copies are replaced by those of another
model. A client asks again if three pipelines were lost with its request. Every answer is compared with NumPy's. Exits
with 1 if anything is wrong, or if it takes longer than the limit (seconds).

With --shards N, N boards compute each of two stages, and answers are compared with PyTorch's.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from ray.cluster_utils import Cluster

from rsn.base.errors import BoardError, TensorError
from rsn.host.replicas import on_ray
from rsn.host.replicas.replicated import ReplicatedServer
from rsn.host.replicas.stage import StageSource
from rsn.host.serving import QueueFull, RequestTimeout

from .rigged import COLUMNS, Array, Flaky
from .soak_http import Tally
from .stages import ROWS, SERVING, Product, expected

COPIES, STAGES = 2, 3
LONGEST_S = 180.0
"""After which a request counts as lost, however often it was asked."""
POOL = 40
SECOND = 100
"""The seed of the first stage of the model that replaces the one with seeds from 0."""


class Computers:
    """A Ray cluster of two computers, of which the second can be killed."""

    def __init__(self) -> None:
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        self._second = self._cluster.add_node(num_cpus=1)
        self.address: str = self._cluster.address

    def kill(self) -> None:
        """Kill the second computer, and start another one."""
        self._cluster.remove_node(self._second, allow_graceful=False)
        self._second = self._cluster.add_node(num_cpus=1)

    def close(self) -> None:
        self._cluster.shutdown()


@dataclass(frozen=True)
class Work:
    """What a soak asks. sources: of the stages, or their shards, of the models with seed 0 and `SECOND`. shards: of
    each stage. inputs: of the requests, and their answers, which are arrays, from each model. misfits: inputs that do
    not fit. array: that of a result."""

    sources: Mapping[int, Sequence[StageSource]]
    shards: int
    inputs: Sequence[Mapping[str, Any]]
    answers: Sequence[Sequence[Array]]
    misfits: Sequence[Mapping[str, Any]]
    array: Callable[[Any], Array]


def products(seed: int) -> Work:
    """Three products one behind the other. seed: of the inputs."""
    rng = np.random.default_rng(seed)
    asked: list[Array] = [rng.standard_normal((1, ROWS, COLUMNS)).astype(np.float32) for _ in range(POOL)]
    return Work(
        {first: [Product(first + i) for i in range(STAGES)] for first in (0, SECOND)},
        1,
        [{"x": x} for x in asked],
        [[expected(x, range(first, first + STAGES)) for x in asked] for first in (0, SECOND)],
        [{"x": x[:, : ROWS // 2, :1]} for x in asked],
        lambda result: result["x"],
    )


def sharded_files(folder: Path, stages: int, shards: int) -> Work:
    """A model in shards, from files, which are written to a folder."""
    from . import sharded

    asked = [sharded.inputs(i) for i in range(POOL)]
    models = {seed: sharded.bert(seed).requires_grad_(False) for seed in (0, SECOND)}
    sources: dict[int, Sequence[StageSource]] = {}
    for seed in models:
        path = sharded.save(folder / f"{seed}.rsnmodel", seed, stages=stages, shards=shards)
        sources[seed] = sharded.sources(path, SERVING)
    return Work(
        sources,
        shards,
        asked,
        [[model(**x).last_hidden_state.numpy() for x in asked] for model in models.values()],
        [{**x, "input_ids": x["input_ids"][:, :3]} for x in asked],
        lambda result: result.last_hidden_state.numpy(),
    )


@contextmanager
def on_cluster(
    nodes: Sequence[str], work: Work, seed: int, faults: float, count: int = COPIES
) -> Iterator[tuple[ReplicatedServer, Any]]:
    """The server of copies on a cluster with these computers, and what makes pipelines of a model by its seed. seed,
    faults: of the boards."""
    each = len(work.sources[0])
    boards = [Flaky(seed + i, faults) for i in range(count * each)]

    def model(first: int) -> Any:
        sources = work.sources[first]
        return lambda number: on_ray.RayPipeline(
            sources, boards, each * number, "soak", nodes[number % len(nodes)], 0, work.shards
        )

    options: Any = {"name": "soak", "arguments": (), "sizes": {}, "queue": 32, "shards": work.shards}
    with ReplicatedServer(model(0), count, places=2 * each // work.shards, **options) as server:
        server.settled()
        yield server, model


@contextmanager
def copies(seed: int, faults: float, work: Work | None = None) -> Iterator[tuple[ReplicatedServer, Any, Computers]]:
    """The server, what makes pipelines of a model by its seed, and the computers. work: of `products` by default."""
    computers = Computers()
    try:
        with (
            on_ray.cluster(computers.address) as (nodes, _),
            on_cluster(nodes, work or products(seed), seed, faults) as (server, model),
        ):
            yield server, model, computers
    finally:
        computers.close()


class Soak:
    """What is asked, and what becomes of it."""

    def __init__(
        self,
        server: ReplicatedServer,
        model: Any,
        computers: Computers,
        requests: int,
        seed: int,
        work: Work | None = None,
    ) -> None:
        self._server, self._model, self._computers = server, model, computers
        self._requests, self._seed = requests, seed
        self._lock, self._over = threading.Lock(), threading.Event()
        self.tally = Tally()
        self._work = work or products(seed)
        self.replaced = False
        """Whether all copies are those of the second model."""

    def run(self, clients: int, kills: int, computers: int) -> Tally:
        """clients: that ask. kills: how often something is killed, `computers` times of them the second computer."""
        began = time.perf_counter()
        asking = [threading.Thread(target=self._client, args=(i, clients)) for i in range(clients)]
        replacing = threading.Thread(target=self._watched, args=(self._replace,))
        for thread in (*asking, replacing):
            thread.start()
        self._watched(lambda: self._reap(kills, computers))  # in the main thread, in which Ray starts computers
        for thread in asking:
            thread.join()
        self.tally.seconds = time.perf_counter() - began
        self._over.set()
        replacing.join()
        if self.tally.requests != self._requests:
            self._problem(f"{self._requests} were asked, {self.tally.requests} were answered")
        return self.tally

    def _client(self, number: int, clients: int) -> None:
        choose = random.Random(f"{self._seed} {number}")
        first, end = (self._requests * n // clients for n in (number, number + 1))
        for i in range(first, end):
            try:
                outcome = self._one(choose)
            except Exception as e:
                self._problem(f"client {number}, request {i}: {type(e).__name__}: {e}")
                outcome = "wrong"
            with self._lock:
                self.tally.outcomes[outcome] += 1

    def _one(self, choose: random.Random) -> str:
        kind = choose.choices(["plain", "hurried", "leaves", "misfit"], [92, 3, 3, 2])[0]
        which = choose.randrange(POOL)
        asked = (self._work.misfits if kind == "misfit" else self._work.inputs)[which]
        began, replaced = time.perf_counter(), self.replaced
        while time.perf_counter() - began < LONGEST_S:
            answer = self._server.ask(asked, timeout=0.002 if kind == "hurried" else 60.0)
            if kind == "leaves":
                time.sleep(choose.choice([0.0, 0.01]))
                answer.cancel()
            try:
                y = self._work.array(answer.result(LONGEST_S))
            except CancelledError:
                return "left"
            except RequestTimeout:
                if kind == "hurried":
                    return "timeout"
                raise
            except TensorError:
                if kind == "misfit":
                    return "refused"
                raise
            except (QueueFull, BoardError) as e:
                with self._lock:
                    self.tally.again[
                        "full" if isinstance(e, QueueFull) else "lost" if "lost" in str(e) else "down"
                    ] += 1
                time.sleep(0.02)
                continue
            if kind == "misfit":
                raise AssertionError("an answer to a request that does not fit")
            self._compare(y, which, replaced)
            with self._lock:
                self.tally.latencies.append(time.perf_counter() - began)
                self.tally.sequences += 1
            return "ok"
        raise AssertionError(f"no answer in {LONGEST_S} s")

    def _compare(self, y: Array, which: int, replaced: bool) -> None:
        """replaced: all copies were those of the second model before the request."""
        good = [np.allclose(y, answers[which], atol=1e-4) for answers in self._work.answers]
        if good[1] or (good[0] and not replaced):
            return
        if good[0]:
            raise AssertionError("the answer of the model before")
        if any(np.allclose(y, other, atol=1e-4) for answers in self._work.answers for other in answers):
            raise AssertionError("the answer to another request")
        raise AssertionError("a wrong answer")

    def _reap(self, kills: int, computers: int) -> None:
        """Kill when a share of the requests has its answer."""
        choose = random.Random(f"{self._seed} reaper")
        of_computers = set(choose.sample(range(kills), computers))
        for kill in range(kills):
            while self.tally.requests < self._requests * (kill + 1) // (kills + 1):
                if self._over.wait(0.01):
                    return
            if kill in of_computers:
                self._computers.kill()
                self.tally.ended["computer"] += 1
                continue
            while not (there := [reports for reports in self._server.reports() if reports]):
                if self._over.wait(0.05):
                    return
            copy = choose.choice(there)
            for report in copy if choose.random() < 0.1 else [choose.choice(copy)]:
                with suppress(ProcessLookupError):  # it is dead, and not yet missed
                    os.kill(report.process, signal.SIGKILL)
            self.tally.ended["stage"] += 1

    def _replace(self) -> None:
        while self.tally.requests < self._requests // 2:
            if self._over.wait(0.05):
                return
        while not self._over.is_set():
            try:
                self._server.replace(self._model(SECOND))
            except BoardError as e:  # what was killed just then
                self.tally.again[f"replacement: {e}"] += 1
            else:
                self.replaced = True
                return

    def _watched(self, work: Any) -> None:
        try:
            work()
        except Exception as e:
            self._problem(f"{type(e).__name__}: {e}")

    def _problem(self, text: str) -> None:
        with self._lock:
            self.tally.problems.append(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("requests", 3000), ("clients", 16), ("seed", 1), ("faults", 0.02), ("kills", 60), ("limit", 1800),
        ("shards", 1),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=type(default), default=default)
    given = parser.parse_args()
    faulthandler.dump_traceback_later(given.limit, exit=True)
    with TemporaryDirectory() as folder:
        work = products(given.seed) if given.shards == 1 else sharded_files(Path(folder), 2, given.shards)
        with copies(given.seed, given.faults, work) as (server, model, computers):
            tally = Soak(server, model, computers, given.requests, given.seed, work).run(
                given.clients, given.kills, given.kills // 10
            )
            health = server.health
    print(tally)
    print(f"health at the end: {health}")
    for found in tally.problems[:20]:
        print(f"  {found}")
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
