"""The sentence encoder behind HTTP: Ray Serve with a replica per board.

    python -m rsn.programs.serve_ray --boards vck190@xrt:0 vck190@xrt:1
    curl localhost:8000 -d '{"sentences": ["The cat sits on the mat."]}'    # one vector each, 384 numbers of length 1
    curl localhost:8000                                                     # health, and what the start took

Needs the extras `torch` and `ray`. Ray places the replicas, routes requests, restarts what fails its health check and,
with --least, starts and stops replicas by load. A replica takes the first board of the list that is free, and has one
runner for each model: what several clients send at a time shares runs. The first model is loaded before a replica is
ready, others when they are first asked for (HTTP header serve_multiplexed_model_id; Ray prefers replicas that have it).
A model's programs and weights stay on the board while there is room; else those that were not used for longest make
way, and are uploaded again when needed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..host.boards.device import BoardBusy, BoardMemory
from ..host.runner import Result, Runner
from ..host.serving import QueueFull, RequestTimeout, Serving, State
from ..isa.errors import BoardError, MissingError, RsnError, TensorError
from ..isa.overlays import find
from ..isa.program import Program
from ..rsnlib.partition import Traced
from ..rsnlib.trace import trace
from ..scheduler.build import build
from ..scheduler.schedule import PAPER
from . import minilm

try:
    import ray
    from ray import serve
except ImportError:
    missing = "serving with Ray takes ray, which is not installed: pip install 'ray[serve]'"
    if __name__ == "__main__":
        print(f"rsn.programs.serve_ray: {missing}", file=sys.stderr)
        sys.exit(MissingError.exit_code)
    raise MissingError(missing) from None

log = logging.getLogger("ray.serve")

Load = Callable[[], tuple[Any, Any]]
"""Makes a model, (input_ids, attention_mask) to one vector a sentence, and its tokenizer, text to input_ids."""

BOARD = "rsn_board"
"""Ray's name for a board as a resource: nodes of a cluster say how many they have, ray start --resources=..."""


@dataclass(frozen=True)
class Settings:
    """shapes: (sentences, tokens) of the programs of a model. memory: bytes of a board for all its models, None where
    that is not to be counted. timeout_s: for a request. metrics: whether a replica serves its figures to Prometheus, on
    a free port of its node."""

    models: Mapping[str, Load]
    boards: Sequence[str] = ("sim",)
    shapes: Sequence[tuple[int, int]] = ((1, 128), (8, 128))
    memory: int | None = None
    timeout_s: float = 60.0
    metrics: bool = False
    serving: Serving = field(default_factory=lambda: Serving(max_wait_s=0.002))


class Encoder:
    """A model in three parts: PyTorch before the machine, programs for it, PyTorch after it."""

    def __init__(self, load: Load, shapes: Sequence[tuple[int, int]]) -> None:
        began = time.perf_counter()
        self._model, self._tokenizer = load()
        loaded = time.perf_counter()
        lengths = sorted({rows for _, rows in shapes})
        self._hosts = {rows: self._traced(1, rows) for rows in lengths}
        made = [
            build(
                (self._hosts[rows] if batch == 1 else self._traced(batch, rows)).network, find("xnn"), PAPER
            )
            for batch, rows in shapes
        ]  # fmt: skip
        self.programs: list[Program] = [b.program for b in made]
        self.weights = made[0].weights
        self.bytes = sum(4 * p.bank_size(bank) for p in self.programs for bank in p.overlay.banks)
        """Of a board."""
        self.cold_start_s = {"load": loaded - began, "compile": time.perf_counter() - loaded}

    def _traced(self, batch: int, rows: int) -> Traced:
        ones = torch.ones(batch, rows, dtype=torch.long)
        return trace(self._model, {"input_ids": ones, "attention_mask": ones})

    def before(self, sentence: str) -> tuple[dict[str, Any], Callable[[Result], list[float]]]:
        """What the machine is asked, of no more rows than the sentence has tokens, and what to make of its answer.
        Raises `TensorError` for a sentence that is too long."""
        ids = self._tokenizer(sentence)["input_ids"]
        rows = next((rows for rows in self._hosts if rows >= len(ids)), None)
        if rows is None:
            raise TensorError(f"a sentence of {len(ids)} tokens; these programs take up to {max(self._hosts)}")
        padded, mask = torch.zeros(2, 1, rows, dtype=torch.long)
        padded[0, : len(ids)] = torch.tensor(ids)
        mask[0, : len(ids)] = 1
        host = self._hosts[rows].host
        inputs, _, state = host.prologue(input_ids=padded, attention_mask=mask)

        def after(result: Result) -> list[float]:
            whole = {n: np.pad(y, ((0, 0), (0, rows - len(ids)), (0, 0))) for n, y in result.outputs.items()}
            vector: list[float] = host.epilogue(whole, state)[0].tolist()
            return vector

        return {name: x[:, : len(ids)] for name, x in inputs.items()}, after


class Replica:
    """What runs in one of Ray's processes: one board, and the models that were asked for."""

    FAILING_S = 60.0
    """So long a board may be down before Ray is told to start another replica."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._board: str | None = None
        self._lock = threading.Lock()
        self._encoders: dict[str, Encoder] = {}
        self._runners: OrderedDict[str, Runner] = OrderedDict()
        """Open ones; last the one that was used last."""
        self._metrics: Any = None
        self._address = ""
        if settings.metrics:
            from prometheus_client import start_http_server

            from ..host.serving.metrics import Metrics

            self._metrics = Metrics()
            server, _ = start_http_server(0)
            self._address = f"http://{ray.util.get_node_ip_address()}:{server.server_port}/metrics"

        self.load(next(iter(settings.models)))

    def load(self, model: str) -> Encoder:
        """What is there already, or what is made now."""
        if model in self._encoders:
            return self._encoders[model]
        encoder = Encoder(self._settings.models[model], self._settings.shapes)
        self._encoders[model] = encoder
        with self._lock:
            self._opened(model)
        log.info("%s: cold start %s", model, {k: round(s, 2) for k, s in encoder.cold_start_s.items()})
        return encoder

    def _opened(self, model: str) -> Runner:
        """The model's runner; others make way where there is no room for all. The lock is the caller's."""
        if model in self._runners:
            self._runners.move_to_end(model)
            return self._runners[model]
        encoder, memory = self._encoders[model], self._settings.memory
        if memory is not None:
            if encoder.bytes > memory:
                raise BoardMemory(f"{model} needs {encoder.bytes} bytes of a board, which has {memory}")
            while encoder.bytes + sum(self._encoders[m].bytes for m in self._runners) > memory:
                self._make_way()
        began = time.perf_counter()
        while True:
            for board in [self._board] if self._board else self._settings.boards:
                try:
                    self._runners[model] = Runner(
                        encoder.programs, weights=encoder.weights, board=board, serving=self._settings.serving,
                        metrics=self._metrics, name=model,
                    )  # fmt: skip
                except (BoardBusy, BoardMemory) as e:
                    no_room = e
                else:
                    self._board = board
                    encoder.cold_start_s["open"] = time.perf_counter() - began
                    return self._runners[model]
            if not self._runners:
                raise no_room
            self._make_way()

    def _make_way(self) -> None:
        _, runner = self._runners.popitem(last=False)
        runner.close()

    def ask(self, model: str, sentences: Sequence[str]) -> list[tuple[Any, Callable[[Result], list[float]]]]:
        """Queue them; a future for each, and what to make of it. All or none."""
        parts = [self._encoders[model].before(s) for s in sentences]
        asked: list[tuple[Any, Callable[[Result], list[float]]]] = []
        with self._lock:
            runner = self._opened(model)
            try:
                for inputs, after in parts:
                    # no waiting for room: Ray has queues of its own, and other replicas
                    asked.append((runner.submit(inputs, timeout=self._settings.timeout_s, wait=0), after))
            except RsnError:
                for future, _ in asked:
                    future.cancel()
                raise
        return asked

    async def encode(self, model: str, sentences: Sequence[str]) -> list[list[float]]:
        asked = await asyncio.to_thread(self.ask, model, sentences)
        results = await asyncio.gather(*(asyncio.wrap_future(future) for future, _ in asked))
        return await asyncio.to_thread(lambda: [after(r) for (_, after), r in zip(asked, results, strict=True)])

    def status(self) -> dict[str, Any]:
        return {
            "replica": serve.get_replica_context().replica_id.unique_id,
            "board": self._board,
            "metrics": self._address or None,
            "models": {
                name: {
                    "cold_start_s": {k: round(s, 3) for k, s in encoder.cold_start_s.items()},
                    "bytes": encoder.bytes,
                    "resident": name in self._runners,
                    "health": vars(self._runners[name].health) if name in self._runners else None,
                }
                for name, encoder in list(self._encoders.items())
            },
        }

    def check_health(self) -> None:
        """Ray's: raises where a new replica is called for."""
        for name, runner in list(self._runners.items()):
            health = runner.health
            if health.state is State.FAILING and time.time() - health.since > self.FAILING_S:
                raise BoardError(f"{name} on {self._board}: {health.error}")

    def close(self) -> None:
        with self._lock:
            while self._runners:
                self._make_way()


STATUS: tuple[tuple[type[RsnError], int], ...] = (
    (RequestTimeout, 504),
    (QueueFull, 503),
    (BoardError, 503),
    (TensorError, 422),
    (RsnError, 500),
)

SENTENCES = 256
"""That a request may have."""


def application(settings: Settings, least: int | None = None) -> serve.Application:
    """For `serve.run`. least: replicas that run without load; None for one on each board at all times."""
    boards = len(settings.boards)
    default = next(iter(settings.models))

    class Encoders(Replica):
        @serve.multiplexed(max_num_models_per_replica=-1)  # type: ignore[untyped-decorator]
        async def encoder(self, model: str) -> Encoder:
            return await asyncio.to_thread(self.load, model)

        async def __call__(self, request: Any) -> Any:
            from starlette.responses import JSONResponse

            if request.method == "GET":
                return JSONResponse(self.status())
            model = serve.get_multiplexed_model_id() or default
            if model not in settings.models:
                known = ", ".join(settings.models)
                return JSONResponse({"error": f"no model {model!r}; there are {known}"}, 404)
            try:
                sentences = (await request.json())["sentences"]
                if not all(isinstance(s, str) for s in sentences) or not 1 <= len(sentences) <= SENTENCES:
                    raise ValueError
            except (ValueError, TypeError, KeyError, RecursionError):
                wanted = f'{{"sentences": [...]}}, 1 to {SENTENCES} strings'
                return JSONResponse({"error": f"the body is not {wanted}"}, 400)
            try:
                await self.encoder(model)
                embeddings = await self.encode(model, sentences)
            except RsnError as e:
                code = next(code for kind, code in STATUS if isinstance(e, kind))
                return JSONResponse({"error": f"{type(e).__name__}: {e}"}, code)
            return {"model": model, "board": self._board, "embeddings": embeddings}

        def __del__(self) -> None:
            self.close()

    scale: dict[str, Any] = {"num_replicas": boards}
    if least is not None:
        scale = {"autoscaling_config": {"min_replicas": least, "max_replicas": boards}}
    deployment = serve.deployment(
        Encoders,
        name="encoders",
        ray_actor_options={"resources": {BOARD: 1}},
        max_ongoing_requests=settings.serving.queue,
        **scale,
    )
    return deployment.bind(settings)


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boards", nargs="+", default=["sim", "sim"], help="one replica each [default: sim sim]")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for a request")
    parser.add_argument("--memory-gb", type=float, help="of a board, for all its models")
    parser.add_argument("--least", type=int, help="replicas that run without load [default: all]")
    parser.add_argument("--metrics", action="store_true", help="let replicas serve their figures to Prometheus")
    parser.add_argument("--cluster", help="address of a cluster that runs; its nodes have resources " + BOARD)
    given = parser.parse_args()
    if given.cluster:
        ray.init(address=given.cluster)
    else:
        ray.init(resources={BOARD: len(given.boards)})
    settings = Settings(
        models={"minilm": lambda: minilm.load(minilm.model_folder())},
        boards=given.boards,
        memory=None if given.memory_gb is None else int(given.memory_gb * 1e9),
        timeout_s=given.timeout,
        metrics=given.metrics,
    )
    serve.start(http_options={"host": given.host, "port": given.port})
    serve.run(application(settings, given.least), blocking=True)


if __name__ == "__main__":
    try:
        main()
    except RsnError as error:
        print(f"rsn.programs.serve_ray: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
