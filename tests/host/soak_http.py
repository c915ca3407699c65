"""Many clients over real HTTP, servers whose boards fail and that are killed: nothing lost, answered twice, or wrong.

    python -m rsn.tests.host.soak_http [--requests 10000] [--clients 16] [--seed 1] [--faults 0.1] [--kills 20]
                                       [--limit 600]

Two processes of `rsn serve` with the attention of `soak`, each on a simulated board that fails at random, by the seed.
Now and then one of them is ended and started again, mostly by SIGKILL, else by SIGTERM, which must answer what is under
way. A client asks again at the other server after a 503 or a broken connection. Some clients leave before their answer,
some requests get little time, some are wrong. Every answer is compared with numpy's. Meanwhile /health is asked all the
time. Exits with 1 if anything is wrong, or if it takes longer than the limit (seconds).
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from subprocess import Popen
from typing import Any, Protocol

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from .rigged import COLUMNS, Array, attended
from .served import start

OPTIONS = ("--queue", "16", "--max-wait", "0.002", "--timeout", "30")
SERVERS = 2
LONGEST_S = 60.0
"""After which a request counts as lost, however often it was asked."""
Broken = (OSError, HTTPException)


@dataclass
class Tally:
    """What became of the requests. again: why they were asked again. latencies and health: in seconds, of the answers
    with a result, from the first time that they were asked, and of /health."""

    outcomes: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    sequences: int = 0
    runs: int = 0
    failures: int = 0
    seconds: float = 0.0

    @property
    def requests(self) -> int:
        return self.outcomes.total()

    def __str__(self) -> str:
        """The tally as lines; without those of what was not counted."""
        lines = [
            f"{self.requests} requests: {_listed(self.outcomes)}",
            f"asked again: {self.again.total()} times: {_listed(self.again)}",
            f"servers ended and started again: {_listed(self.ended)}",
            f"{self.seconds:.1f} s: {self.requests / self.seconds:.0f} requests/s, "
            f"{self.sequences / self.seconds:.0f} sequences/s",
        ]
        if self.runs:
            lines.append(f"as far as they could still say: {self.runs} runs, {self.failures} failures of boards")
        for what, seconds in (("results", self.latencies), ("health", self.health)):
            if seconds:
                p = np.percentile(seconds, [50, 90, 99, 100]) * 1e3
                times = f"median {p[0]:.1f} ms, 90 % {p[1]:.1f}, 99 % {p[2]:.1f}, longest {p[3]:.1f}"
                lines.append(f"latency, of {what}: {times}")
        return "\n".join([*lines, f"lost, answered twice, or wrong: {len(self.problems)}"])


def _listed(counted: Counter[str]) -> str:
    return ", ".join(f"{n} {word}" for word, n in sorted(counted.items())) or "none"


class Addressed(Protocol):
    """address: host and port, None where nothing is there."""

    address: str | None


class Server:
    """One process after the other. address: of the one that runs, None where none does."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.address: str | None = None
        self.start()

    def start(self) -> None:
        self._process: Popen[str]
        self._process, url = start(self._model, *OPTIONS)
        self.address = url.removeprefix("http://")

    def kill(self) -> str:
        """What it has printed."""
        self.address = None
        self._process.kill()
        return "".join(self._process.communicate())

    def terminate(self) -> str:
        """What it has printed, and its exit code where that is not 0."""
        self.address = None
        self._process.terminate()
        printed = "".join(self._process.communicate(timeout=LONGEST_S))
        code = self._process.returncode
        return f"{printed}exit code {code}" if code else printed

    def figures(self) -> Counter[str]:
        """Sums by the names of the samples."""
        found: Counter[str] = Counter()
        status, _, text = Client([self]).ask(0, "GET", "/metrics")
        assert status == 200
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name] += int(sample.value)
        return found


class Client:
    """Keeps a connection to each server."""

    def __init__(self, servers: Sequence[Addressed]) -> None:
        self._servers = servers
        self._connections: list[HTTPConnection | None] = [None] * len(servers)

    def send(
        self, i: int, method: str, path: str, body: str | None = None, headers: Mapping[str, str] | None = None
    ) -> HTTPConnection:
        """Raises `Broken`."""
        connection = self._connections[i]
        if connection is None:
            address = self._servers[i].address
            if address is None:
                raise ConnectionError
            connection = self._connections[i] = HTTPConnection(address, timeout=LONGEST_S)
        connection.request(method, path, body, headers or {})
        return connection

    def ask(
        self, i: int, method: str, path: str, body: str | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, str]:
        """Status, headers and body. Raises `Broken`."""
        try:
            with self.send(i, method, path, body, headers).getresponse() as response:
                return response.status, response.headers, response.read().decode()
        except Broken:
            self.leave(i)
            raise

    def leave(self, i: int) -> None:
        connection, self._connections[i] = self._connections[i], None
        if connection is not None:
            connection.close()


def soak(requests: int, clients: int, seed: int, faults: float, kills: int, model: str = "flaky") -> Tally:
    """Ask, and check every answer. kills: how often a server is ended. model: of `served`, without seed and share."""
    tally, lock, over = Tally(), threading.Lock(), threading.Event()
    with ThreadPoolExecutor() as pool:
        servers = list(pool.map(Server, [f"{model}:{seed + i}:{faults}" for i in range(SERVERS)]))
    lately: deque[tuple[Array, list[int]]] = deque(maxlen=4 * clients)

    def count(outcome: str, sequences: int = 0) -> None:
        with lock:
            tally.outcomes[outcome] += 1
            tally.sequences += sequences

    def compare(text: str, x: Array, lengths: list[int]) -> None:
        y = np.array(json.loads(text)["outputs"]["y"], np.float32)
        if _same(y, attended(x, lengths)):
            return
        with lock:
            others = list(lately)
        if any(_same(y, attended(*other)) for other in others):
            raise AssertionError("the answer to another request")
        raise AssertionError("a wrong answer")

    def persist(client: Client, first: int, body: str) -> tuple[int, str]:
        """Status and answer of the first server that has one."""
        began, i = time.perf_counter(), first
        while time.perf_counter() - began < LONGEST_S:
            try:
                status, headers, text = client.ask(i, "POST", "/", body)
            except Broken:
                status, headers, text = 0, {}, ""
            if status not in (0, 503):
                return status, text
            if status and not headers.get("retry-after"):
                raise AssertionError(f"503 without Retry-After: {text}")
            reason = "broken" if not status else "full" if "the queue is full" in text else "board down"
            with lock:
                tally.again[reason] += 1
            i = (i + 1) % SERVERS
            time.sleep(0.005)
        raise AssertionError(f"no answer in {LONGEST_S} s")

    def one(client: Client, i: int, choose: random.Random, rng: np.random.Generator) -> None:
        n, rows = choose.choice([1, 1, 1, 2, 3]), choose.choice([5, 8, 8, 16])
        x = rng.standard_normal((n, rows, COLUMNS)).astype(np.float32)
        lengths = [choose.choice([rows, rows - 2]) for _ in range(n)]
        asked: dict[str, Any] = {"inputs": {"x": x.tolist(), "lengths": lengths}}
        kind = choose.choices(["plain", "hurried", "leaves", "misfit", "torn"], [92, 2, 2, 2, 2])[0]
        with lock:
            lately.append((x, lengths))
        if kind == "hurried":
            asked["timeout_s"] = 0.001
        if kind == "misfit":
            asked["inputs"]["lengths"][-1] = rows + 1
        body = json.dumps(asked)
        if kind == "torn":
            body = body[: len(body) // 2]
        if kind == "leaves":
            try:
                client.send(i % SERVERS, "POST", "/", body)
                time.sleep(choose.choice([0.0, 0.002]))
            except Broken:
                pass
            client.leave(i % SERVERS)
            count("left")
            return
        began = time.perf_counter()
        status, text = persist(client, i % SERVERS, body)
        took = time.perf_counter() - began
        expected = {"plain": (200,), "hurried": (200, 504), "misfit": (422,), "torn": (400,)}[kind]
        if status not in expected:
            raise AssertionError(f"{kind}: {status} {text[:200]}")
        if status == 200:
            compare(text, x, lengths)
            with lock:
                tally.latencies.append(took)
        elif list(json.loads(text)) != ["error"]:
            raise AssertionError(f"{status} {text[:200]}")
        count({200: "ok", 504: "timeout", 422: "refused", 400: "refused"}[status], n)

    def client(number: int) -> None:
        choose, rng = random.Random(f"{seed} {number}"), np.random.default_rng([seed, number])
        mine = Client(servers)
        for i in range(requests * number // clients, requests * (number + 1) // clients):
            try:
                one(mine, i, choose, rng)
            except Exception as e:
                problem(f"client {number}, request {i}: {type(e).__name__}: {e}")
                count("wrong")

    def problem(text: str) -> None:
        with lock:
            tally.problems.append(text)

    def sum_up(server: Server) -> None:
        figures = server.figures()
        tally.runs += figures["rsn_running_seconds_count"]
        tally.failures += figures["rsn_board_failures_total"]

    def reaper() -> None:
        """Ends a server when a share of the requests has its answer."""
        choose = random.Random(f"{seed} reaper")
        for kill in range(kills):
            while tally.requests < requests * (kill + 1) // (kills + 1):
                if over.wait(0.002):
                    return
            server = choose.choice(servers)
            sum_up(server)
            how = choose.choice(["killed", "killed", "terminated"])
            printed = server.kill() if how == "killed" else server.terminate()
            if printed:
                problem(f"a server was {how}: {printed}")
            tally.ended[how] += 1
            server.start()

    def prober() -> None:
        mine = Client(servers)
        while not over.wait(0.02):
            for i in range(SERVERS):
                began = time.perf_counter()
                try:
                    status, _, text = mine.ask(i, "GET", "/health")
                except Broken:
                    continue
                tally.health.append(time.perf_counter() - began)
                if (status == 200) is not (json.loads(text)["state"] in ("ready", "degraded")):
                    problem(f"health: {status} {text}")

    def watched(work: Any) -> None:
        try:
            work()
        except Exception as e:
            problem(f"{work.__name__}: {type(e).__name__}: {e}")

    began = time.perf_counter()
    asking = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    beside = [threading.Thread(target=watched, args=(work,)) for work in (reaper, prober)]
    for t in (*asking, *beside):
        t.start()
    for t in asking:
        t.join()
    tally.seconds = time.perf_counter() - began
    beside[0].join()
    over.set()
    beside[1].join()
    for server in servers:
        sum_up(server)
        if printed := server.terminate():
            problem(f"a server ended: {printed}")
    if tally.requests != requests:
        problem(f"{requests} were asked, {tally.requests} were answered")
    return tally


def _same(y: Array, expected: Array) -> bool:
    return y.shape == expected.shape and np.allclose(y, expected, atol=1e-4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("requests", 10_000), ("clients", 16), ("seed", 1), ("faults", 0.1), ("kills", 20), ("limit", 600),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=type(default), default=default)
    given = parser.parse_args()
    faulthandler.dump_traceback_later(given.limit, exit=True)
    tally = soak(given.requests, given.clients, given.seed, given.faults, given.kills)
    print(tally)
    for found in tally.problems[:20]:
        print(f"  {found}")
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
