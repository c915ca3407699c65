"""Many clients over real HTTP, replicas of Ray's that are killed: nothing lost, answered twice, or wrong.

    python -m rsn.tests.programs.soak_ray [--requests 3000] [--clients 16] [--seed 1] [--faults 0.05] [--kills 12]
                                          [--limit 900]

`serve_ray` with two small encoders, of different weights, and two replicas whose simulated boards fail at random. Now
and then the process of one is killed, sometimes of both. A client asks again after a 503, which must have Retry-After;
a 500 or a broken connection is wrong. Some clients leave before their answer, some requests get little time, some are
wrong. Every answer is compared with PyTorch's. Exits with 1 if anything is wrong, or if it takes longer than the limit
(seconds).
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rsn.host.serving import Serving
from rsn.tests.host.fronts import Front, started
from rsn.tests.host.rigged import Array, Flaky
from rsn.tests.host.soak_http import Client, Tally
from rsn.tests.programs.small_encoders import LONGEST, VOCABULARY, expected, saved, small

MODELS = {"one": 1, "two": 2}
"""By name, the seed of the weights."""
BOARDS = 2
LONGEST_S = 120.0
"""After which a request counts as lost, however often it was asked."""
POOL = 40


def serve(folder: Path, seed: int, faults: float) -> None:
    """What runs in the process that is asked."""
    from rsn.programs.serve_ray import Settings, run

    models = {name: str(folder / f"{name}.rsnmodel") for name in MODELS}
    serving = Serving(queue=32, max_wait_s=0.002, backoff_s=0.002, backoff_limit_s=0.05)
    boards = [Flaky(seed + i, faults) for i in range(BOARDS)]
    run(Settings(models, boards, timeout_s=60.0, serving=serving), port=0)


@dataclass(frozen=True)
class Question:
    inputs: Mapping[str, Any]
    answer: Array


def questions(seed: int) -> dict[str, list[Question]]:
    """By model. No two answers are alike."""
    rng = np.random.default_rng(seed)
    made: dict[str, list[Question]] = {}
    for name, weights in MODELS.items():
        model = small(weights)
        made[name] = []
        for _ in range(POOL):
            lengths = rng.integers(2, LONGEST + 1, rng.choice([1, 1, 2, 4]))
            ids = [rng.integers(2, VOCABULARY, n).tolist() for n in lengths]
            inputs = {
                "input_ids": [row + [0] * (max(lengths) - len(row)) for row in ids],
                "attention_mask": [[1] * len(row) + [0] * (max(lengths) - len(row)) for row in ids],
            }
            made[name].append(Question(inputs, expected(model, ids)))
    first = np.stack([q.answer[0] for of in made.values() for q in of])
    apart = np.abs(first[:, None] - first[None]).max(-1) + np.eye(len(first))
    assert apart.min() > 1e-2
    return made


def soak(front: Front, requests: int, clients: int, seed: int, kills: int) -> Tally:
    """Ask, and check every answer. kills: how often replicas are killed."""
    tally, lock, over = Tally(), threading.Lock(), threading.Event()
    asked = questions(seed)

    def persist(client: Client, headers: Mapping[str, str], body: str) -> tuple[int, str]:
        """Status and answer, other than 503."""
        began = time.perf_counter()
        while time.perf_counter() - began < LONGEST_S:
            status, found, text = client.ask(0, "POST", "/", body, headers)
            if status != 503:
                return status, text
            if not found.get("retry-after"):
                raise AssertionError(f"503 without Retry-After: {text}")
            reason = (
                "died" if "died" in text else "full" if "none was taken" in text or "wait" in text else "board down"
            )
            with lock:
                tally.again[reason] += 1
            time.sleep(0.02)
        raise AssertionError(f"no answer in {LONGEST_S} s")

    def one(client: Client, choose: random.Random) -> None:
        name = choose.choice(list(MODELS))
        question = choose.choice(asked[name])
        headers = {"serve_multiplexed_model_id": name}
        whole: dict[str, Any] = {"inputs": dict(question.inputs)}
        kind = choose.choices(["plain", "hurried", "leaves", "misfit", "torn"], [92, 2, 2, 2, 2])[0]
        if kind == "hurried":
            whole["timeout_s"] = 0.001
        if kind == "misfit":
            whole["inputs"]["input_ids"] = [[2] * (LONGEST + 1)]
            whole["inputs"]["attention_mask"] = [[1] * (LONGEST + 1)]
        body = json.dumps(whole)
        if kind == "torn":
            body = body[: len(body) // 2]
        if kind == "leaves":
            client.send(0, "POST", "/", body, headers)
            time.sleep(choose.choice([0.0, 0.01]))
            client.leave(0)
            count("left")
            return
        began = time.perf_counter()
        status, text = persist(client, headers, body)
        took = time.perf_counter() - began
        wanted = {"plain": (200,), "hurried": (200, 504), "misfit": (422,), "torn": (400,)}[kind]
        if status not in wanted:
            raise AssertionError(f"{kind}: {status} {text[:200]}")
        if status == 200:
            compare(json.loads(text)["outputs"], question.answer)
            with lock:
                tally.latencies.append(took)
        elif list(json.loads(text)) != ["error"] or "Traceback" in text:
            raise AssertionError(f"{status} {text[:200]}")
        count({200: "ok", 504: "timeout", 422: "refused", 400: "refused"}[status], len(question.answer))

    def compare(found: Any, answer: Array) -> None:
        y = np.array(found, np.float32)
        if _same(y, answer):
            return
        if any(_same(y, q.answer) for of in asked.values() for q in of):
            raise AssertionError("the answer to another request")
        raise AssertionError("a wrong answer")

    def count(outcome: str, sequences: int = 0) -> None:
        with lock:
            tally.outcomes[outcome] += 1
            tally.sequences += sequences

    def problem(text: str) -> None:
        with lock:
            tally.problems.append(text)

    def client(number: int) -> None:
        choose, mine = random.Random(f"{seed} {number}"), Client([front])
        for i in range(requests * number // clients, requests * (number + 1) // clients):
            try:
                one(mine, choose)
            except Exception as e:
                problem(f"client {number}, request {i}: {type(e).__name__}: {e}")
                count("wrong")

    def reaper() -> None:
        """Kills when a share of the requests has its answer."""
        choose = random.Random(f"{seed} reaper")
        for kill in range(kills):
            while tally.requests < requests * (kill + 1) // (kills + 1):
                if over.wait(0.005):
                    return
            while not (there := front.processes()):
                if over.wait(0.1):
                    return
            for process in there if choose.random() < 0.2 else [choose.choice(there)]:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:  # it is dead, and not yet missed
                    continue
                tally.ended["killed"] += 1

    def prober() -> None:
        while not over.wait(0.05):
            began = time.perf_counter()
            status, health = front.get("/health")
            tally.health.append(time.perf_counter() - began)
            if (status == 200) is not (health["state"] in ("ready", "degraded")):
                problem(f"health: {status} {health}")

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
    over.set()
    for t in beside:
        t.join()
    figures = front.figures()
    tally.runs, tally.failures = figures["rsn_running_seconds_count"], figures["rsn_board_failures_total"]
    if tally.requests != requests:
        problem(f"{requests} were asked, {tally.requests} were answered")
    return tally


def _same(y: Array, answer: Array) -> bool:
    return y.shape == answer.shape and np.allclose(y, answer, atol=1e-4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("requests", 3000), ("clients", 16), ("seed", 1), ("faults", 0.05), ("kills", 12), ("limit", 900),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.seed, given.faults)
        return 0
    faulthandler.dump_traceback_later(given.limit, exit=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, seed in MODELS.items():
            saved(Path(folder), seed, name)
        options = ("--serve", folder, "--seed", str(given.seed), "--faults", str(given.faults))
        with started("rsn.tests.programs.soak_ray", *options) as (_, address):
            tally = soak(Front(address), given.requests, given.clients, given.seed, given.kills)
    print(tally)
    for found in tally.problems[:20]:
        print(f"  {found}")
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
