"""Many clients, boards that fail and recover: no request may be lost, answered twice, or answered wrongly.

    python -m rsn.tests.host.soak [--requests 10000] [--clients 16] [--seed 1] [--faults 0.1] [--limit 600]

Two runners of an attention layer with masks, each with a family of four programs on a simulated board of its own that
fails at random, by the seed. A client keeps a few requests under way; some it cancels, some get little time. Every
answer is compared with numpy's. Exits with 1 if anything is wrong, or if it takes longer than the limit (seconds).
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import sys
import threading
import time
from collections import Counter, deque
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field

import numpy as np
from prometheus_client import CollectorRegistry

from rsn.base.errors import BoardError
from rsn.host.runner import Runner
from rsn.host.serving import RequestTimeout, Serving
from rsn.host.serving.metrics import OUTCOMES, Metrics

from .rigged import COLUMNS, Array, Flaky, attended, attention, weights_of

POLICY = Serving(queue=16, max_wait_s=0.002, backoff_s=0.002, backoff_limit_s=0.05)
SHAPES = ((1, 8), (4, 8), (2, 16), (8, 16))
UNDER_WAY = 4
BOARDS = 2


@dataclass
class Asked:
    """A request under way. answers: how often its future said that it is done."""

    x: Array
    lengths: list[int]
    future: Future  # type: ignore[type-arg]
    began: float
    answers: int = 0
    ended: float = 0.0

    def done(self, future: object) -> None:
        self.answers += 1
        self.ended = time.perf_counter()


@dataclass
class Tally:
    """What became of the requests. latencies in seconds, of those with a result."""

    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    requests: int = 0
    sequences: int = 0
    runs: int = 0
    failures: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        p = np.percentile(self.latencies, [50, 90, 99, 100]) * 1e3
        outcomes = ", ".join(f"{n} {word}" for word, n in sorted(self.outcomes.items()))
        return (
            f"{self.requests} requests: {outcomes}\n"
            f"{self.runs} runs, {self.failures} of them failed; {self.sequences / self.runs:.1f} sequences a run\n"
            f"{self.seconds:.1f} s: {self.requests / self.seconds:.0f} requests/s, "
            f"{self.sequences / self.seconds:.0f} sequences/s\n"
            f"latency, of results: median {p[0]:.1f} ms, 90 % {p[1]:.1f}, 99 % {p[2]:.1f}, longest {p[3]:.1f}\n"
            f"lost, answered twice, or wrong: {len(self.problems)}"
        )


def soak(requests: int, clients: int, seed: int, faults: float) -> Tally:
    """Ask, and check every answer."""
    tally, lock = Tally(), threading.Lock()
    rigs = [Flaky(seed + i, faults) for i in range(BOARDS)]
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    built = [attention(*shape) for shape in SHAPES]
    programs, weights = [b.program for b in built], weights_of(built[0])
    runners = [
        Runner(programs, weights=weights, board=rig, serving=POLICY, metrics=metrics, name=str(i))
        for i, rig in enumerate(rigs)
    ]

    def check(asked: Asked) -> None:
        """Raises whatever the future raises, but for what may happen."""
        try:
            y = asked.future.result(60).outputs["y"]
            outcome = "ok"
            expected = attended(asked.x, asked.lengths)
            if y.shape != expected.shape or not np.allclose(y, expected, atol=1e-4):
                raise AssertionError("a wrong answer")
        except CancelledError:
            outcome = "cancelled"
        except RequestTimeout:
            outcome = "timeout" if asked.future.done() else "lost"
        except BoardError:
            outcome = "error"
        with lock:
            tally.outcomes[outcome] += 1
            tally.sequences += len(asked.x)
            if outcome == "ok":
                tally.latencies.append(asked.ended - asked.began)

    def client(number: int) -> None:
        choose, rng = random.Random(f"{seed} {number}"), np.random.default_rng([seed, number])
        under_way: deque[Asked] = deque()
        try:
            for i in range(requests * number // clients, requests * (number + 1) // clients):
                n, rows = choose.choice([1, 1, 1, 2, 3]), choose.choice([5, 8, 8, 16])
                x = rng.standard_normal((n, rows, COLUMNS)).astype(np.float32)
                lengths = [choose.choice([rows, rows - 2]) for _ in range(n)]
                timeout = 0.001 if choose.random() < 0.02 else 60.0
                began = time.perf_counter()
                named = {f"len[{j}]": length for j, length in enumerate(lengths)}
                try:
                    future = runners[i % BOARDS].submit({"x": x}, named, timeout=timeout)
                except BoardError:  # no room in the little time it had
                    with lock:
                        tally.outcomes["full"] += 1
                    continue
                asked = Asked(x, lengths, future, began)
                future.add_done_callback(asked.done)
                if choose.random() < 0.02:
                    future.cancel()
                under_way.append(asked)
                while len(under_way) >= UNDER_WAY:
                    everything.append(under_way[0])
                    check(under_way.popleft())
            for asked in under_way:
                everything.append(asked)
                check(asked)
        except Exception as e:
            with lock:
                tally.problems.append(f"client {number}: {type(e).__name__}: {e}")

    everything: list[Asked] = []
    began = time.perf_counter()
    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for runner in runners:
        runner.close()
    tally.seconds = time.perf_counter() - began
    tally.requests = tally.outcomes.total()
    tally.runs = sum(len(rig.runs) for rig in rigs)
    tally.failures = sum(rig.failures for rig in rigs)
    twice = [a for a in everything if a.answers != 1]
    tally.problems += [f"answered {a.answers} times" for a in twice]
    if tally.requests != requests:
        tally.problems.append(f"{requests} were asked, {tally.requests} were answered")
    counted = {
        word: sum(
            registry.get_sample_value("rsn_requests_total", {"runner": str(i), "outcome": word}) or 0
            for i in range(BOARDS)
        )
        for word in OUTCOMES
    }
    if {word: n for word, n in counted.items() if n} != dict(tally.outcomes):
        tally.problems.append(f"the runners counted {counted}, the clients {dict(tally.outcomes)}")
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("requests", 10_000), ("clients", 16), ("seed", 1), ("faults", 0.1), ("limit", 600)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    given = parser.parse_args()
    faulthandler.dump_traceback_later(given.limit, exit=True)
    tally = soak(given.requests, given.clients, given.seed, given.faults)
    print(tally)
    for problem in tally.problems[:20]:
        print(f"  {problem}")
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
