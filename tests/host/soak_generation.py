"""Many clients that generate text over real HTTP, on a board that fails: each gets its own tokens, and none is lost.

    python -m rsn.tests.host.soak_generation [--requests 1000] [--clients 12] [--seed 1] [--faults 0.02] [--limit 900]

A small Llama with random weights, in slots of a simulated board. A run of the board fails at random, before it or after
it, so that rows are written whose results are lost. Requests join and leave between steps: half of them are streamed,
some clients leave in the middle, some are refused. Each answer is compared with PyTorch's greedy tokens. Exits with 1
if anything is wrong, or if it takes longer than the limit (seconds).
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import torch
import uvicorn

from rsn.base.errors import BoardError
from rsn.host.boards.sim import SimBoard
from rsn.host.generation import Decoder, Generation
from rsn.host.serving import http
from rsn.host.serving.completions import application
from rsn.tests.test_generate import END, TOKENS, made

from .test_generation import answer

SLOTS, CAPACITY, PROMPTS, LONGEST = 4, 40, 60, 16
"""LONGEST: the most tokens of an answer. PROMPTS: different ones, whose answers PyTorch computes before."""
DONE = "[DONE]"


class Words:
    """A tokenizer whose words are the numbers of the tokens."""

    eos_token_id = END

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [int(word) for word in text.split()]}

    def decode(
        self, tokens: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool = False
    ) -> str:
        return "".join(f" {token}" for token in tokens)


class Faults:
    """Lets a share of the runs of `SimBoard` fail, half of them before the run and half after it."""

    def __init__(self, seed: int, share: float) -> None:
        self.runs = self.failures = 0
        self._choose, self._share, self._run = random.Random(f"{seed} faults"), share, SimBoard.run

    def run(self, board: SimBoard, *given: Any, **more: Any) -> Any:
        """Takes the place of `SimBoard.run`."""
        self.runs += 1
        failing = self._choose.random() < self._share
        self.failures += failing
        if failing and self._choose.random() < 0.5:
            raise BoardError("the board is gone")
        result = self._run(board, *given, **more)
        if failing:
            raise BoardError("the board is gone, after its run")
        return result

    @contextmanager
    def on(self) -> Iterator[None]:
        """While this lasts."""

        def run(board: SimBoard, *given: Any, **more: Any) -> Any:
            return self.run(board, *given, **more)

        with patch.object(SimBoard, "run", run):
            yield


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an application from a thread. Yields host and port."""
    sock = http.listener("127.0.0.1", 0)
    sock.listen()  # a client may come before uvicorn does
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        yield "{}:{}".format(*sock.getsockname())
    finally:
        server.should_exit = True
        thread.join()


def events(response: HTTPResponse) -> Iterator[Any]:
    """The server-sent events of an answer: parsed JSON, at last `DONE`."""
    for line in response:
        if line.strip():
            text = line.decode().strip().removeprefix("data: ")
            yield DONE if text == DONE else json.loads(text)


class Clients:
    """What the clients ask, and what becomes of it."""

    def __init__(self, address: str, answers: Sequence[tuple[list[int], list[int]]]) -> None:
        self._address, self._answers = address, answers
        self._lock = threading.Lock()
        self.outcomes: Counter[str] = Counter()
        self.again: Counter[str] = Counter()
        self.problems: list[str] = []
        self.tokens = 0

    def many(self, name: str, requests: int) -> None:
        """Ask one request after the other."""
        choose = random.Random(name)
        for k in range(requests):
            try:
                outcome, tokens = self._until_answered(choose)
            except Exception as e:
                outcome, tokens = "wrong", 0
                with self._lock:
                    self.problems.append(f"client {name}, request {k}: {type(e).__name__}: {e}")
            with self._lock:
                self.outcomes[outcome] += 1
                self.tokens += tokens

    def _until_answered(self, choose: random.Random) -> tuple[str, int]:
        kind = choose.choices(["whole", "streamed", "leaves", "refused"], [44, 44, 9, 3])[0]
        prompt, whole = choose.choice(self._answers)
        count = choose.randint(1, LONGEST)
        while True:
            connection = HTTPConnection(self._address, timeout=60)
            try:
                found = self._asked(connection, choose, kind, prompt, whole[:count], count)
            finally:
                connection.close()
            if found is not None:
                return found
            with self._lock:
                self.again["board down"] += 1

    def _asked(
        self, connection: HTTPConnection, choose: random.Random, kind: str, prompt: list[int], wanted: list[int],
        count: int,
    ) -> tuple[str, int] | None:  # fmt: skip
        """Ask once. Returns None if the board failed."""
        temperature = choose.choice([0, 1e-320])  # both take the most probable token
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": count, "temperature": temperature}
        if kind == "refused":
            body["prompt"] = [1] * (CAPACITY + 1)
        body["stream"] = kind in ("streamed", "leaves")
        connection.request("POST", "/v1/completions", json.dumps(body))
        response = connection.getresponse()
        if response.status == 503:
            return None
        expected = 400 if kind == "refused" else 200
        if response.status != expected:
            raise AssertionError(f"{kind}: {response.status} {response.read()[:200]!r}")
        if kind == "refused":
            return kind, 0
        reason = "length" if len(wanted) == count else "stop"
        if kind == "whole":
            (choice,) = json.loads(response.read())["choices"]
            _compare((choice["text"], choice["finish_reason"]), (_text(wanted), reason))
            return kind, len(wanted)
        text, last, leaves_after = "", None, choose.randint(0, count)
        for number, event in enumerate(events(response)):
            if kind == "leaves" and number == leaves_after:
                _compare(text, _text(wanted)[: len(text)])
                return kind, 0
            if event == DONE:
                _compare((text, last), (_text(wanted), reason))
                return kind, len(wanted)
            if "error" in event:
                return None
            (choice,) = event["choices"]
            text, last = text + choice["text"], choice["finish_reason"]
        raise AssertionError(f"the stream ended after {text!r}")


def _text(tokens: list[int]) -> str:
    return Words().decode(tokens, skip_special_tokens=True)


def _compare(got: Any, wanted: Any) -> None:
    if got != wanted:
        raise AssertionError(f"{got} instead of {wanted}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("requests", 1000), ("clients", 12), ("seed", 1), ("faults", 0.02), ("limit", 900)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    given = parser.parse_args()
    faulthandler.dump_traceback_later(given.limit, exit=True)
    torch.set_num_threads(1)
    model, choose = made("Llama"), random.Random(given.seed)
    prompts = [[choose.randrange(TOKENS) for _ in range(choose.randint(1, CAPACITY - LONGEST))] for _ in range(PROMPTS)]
    answers = [(prompt, answer(model, prompt, LONGEST)) for prompt in prompts]
    faults = Faults(given.seed, given.faults)
    decoder = Decoder(model, slots=SLOTS, capacity=CAPACITY)
    with (
        Generation(decoder) as generation,
        faults.on(),
        served(application(generation, Words(), "words")) as address,
    ):
        clients = Clients(address, answers)
        began = time.perf_counter()
        ends = [given.requests * i // given.clients for i in range(given.clients + 1)]
        threads = [
            threading.Thread(target=clients.many, args=(f"{given.seed} {i}", end - begin))
            for i, (begin, end) in enumerate(pairwise(ends))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - began
    held = [slot for slot in range(SLOTS) if decoder.length(slot)]
    outcomes = ", ".join(f"{n} {word}" for word, n in sorted(clients.outcomes.items()))
    print(
        f"{clients.outcomes.total()} requests: {outcomes}\n"
        f"asked again after the board failed twice: {clients.again.total()}\n"
        f"{faults.runs} runs, {faults.failures} failures\n"
        f"{took:.1f} s: {clients.tokens / took:.0f} tokens/s in answers\n"
        f"lost, or wrong: {len(clients.problems)}"
    )
    for problem in clients.problems[:20]:
        print(f"  {problem}")
    if held:
        print(f"  slots {held} still have a sequence after the end")
    return 1 if clients.problems or held else 0


if __name__ == "__main__":
    sys.exit(main())
