"""Stages of a small model for tests: each a product on a board, whose answers NumPy knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from rsn.host.boards.several import BoardName
from rsn.host.runner import Runner
from rsn.host.serving import Health, Serving
from rsn.host.serving.metrics import Metrics
from rsn.isa.overlays import XNN
from rsn.scheduler.build import build
from rsn.scheduler.graph import Gemm, LayerGraph, Output
from rsn.scheduler.schedule import PAPER

from .rigged import COLUMNS, Array

ROWS = 8
SERVING = Serving(queue=64, retries=1, backoff_s=0.01, backoff_limit_s=0.1, give_up_s=0.0)


def weights(seed: int) -> Array:
    """Of a stage: orthogonal, so that many stages neither grow nor shrink what they get."""
    made: Array = np.linalg.qr(np.random.default_rng(seed).standard_normal((COLUMNS, COLUMNS)))[0]
    return made.astype(np.float32)


@dataclass(frozen=True)
class Product:
    """x @ weights(seed) on a board, for x of (1, ROWS, COLUMNS). seed: of the weights. opening: called before a board
    is opened, and may raise."""

    seed: int
    opening: Callable[[str], None] = lambda board: None

    def open(self, board: BoardName, figures: Metrics | None, name: str) -> ProductServer:
        self.opening(str(board))
        gemm = Gemm("g", "x", "y", weights(self.seed), np.zeros(COLUMNS, np.float32))
        built = build(LayerGraph(1, ROWS, {"x": COLUMNS}, (Output("y"),), (gemm,)), XNN, PAPER)
        return ProductServer(
            Runner(
                built.program,
                weights={n: built.weights[n] for n in built.weights},
                board=board,
                serving=SERVING,
                metrics=figures,
                name=name,
            )
        )


class ProductServer:
    """An open stage. Its results are the inputs of the next one."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def health(self) -> Health:
        return self._runner.health

    def ask(self, inputs: Mapping[str, Any], *, timeout: float | None = None, wait: float | None = None) -> Future[Any]:
        answer: Future[Any] = Future()

        def ended(run: Future[Any]) -> None:
            if not answer.set_running_or_notify_cancel():
                return
            if (error := run.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result({"x": run.result().outputs["y"]})

        self._runner.submit({"x": inputs["x"]}, timeout=timeout, wait=wait).add_done_callback(ended)
        return answer

    def close(self) -> None:
        self._runner.close()


def expected(x: Array, seeds: range) -> Array:
    """What stages with these seeds, one behind the other, make of x."""
    for seed in seeds:
        x = x @ weights(seed)
    return x
