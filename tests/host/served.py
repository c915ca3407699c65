"""Servers for the HTTP interface: the small attention of `rigged` behind a runner, and one that does as it is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from rsn.host.boards import Board
from rsn.host.runner import Runner
from rsn.host.serving import Health, Serving
from rsn.host.serving.arguments import Argument, check_names
from rsn.host.serving.metrics import Metrics
from rsn.isa.errors import TensorError

from .rigged import COLUMNS, attention, weights_of

ARGUMENTS = (Argument("x", "float32", ("batch", "length", COLUMNS)), Argument("lengths", "int64", ("batch",)))


class AttentionServer:
    """x with the lengths of its sequences to {"y": what `rigged.attended` says}."""

    name = "attention"
    arguments = ARGUMENTS

    def __init__(
        self,
        *shapes: tuple[int, int],
        board: str | Callable[[], Board] = "sim",
        serving: Serving | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        built = [attention(*shape) for shape in shapes]
        self.sizes = {"batch": tuple(sorted({b for b, _ in shapes})), "length": tuple(sorted({n for _, n in shapes}))}
        self.runner = Runner(
            [b.program for b in built], weights=weights_of(built[0]), board=board, serving=serving or Serving(),
            metrics=metrics, name=self.name,
        )  # fmt: skip

    @property
    def health(self) -> Health:
        return self.runner.health

    def ask(
        self, inputs: Mapping[str, Any], *, timeout: float | None = None, wait: float | None = None
    ) -> Future[dict[str, Any]]:
        check_names(self.arguments, inputs)
        x, lengths = inputs["x"], inputs["lengths"]
        if lengths.shape != x.shape[:1]:
            raise TensorError(f"lengths: shape {lengths.shape}; x has {len(x)} sequences")
        inner = self.runner.submit(
            {"x": x}, {f"len[{i}]": int(n) for i, n in enumerate(lengths)}, timeout=timeout, wait=wait
        )
        outer: Future[dict[str, Any]] = Future()

        def answer(done: Future[Any]) -> None:
            if done.cancelled() or not outer.set_running_or_notify_cancel():
                return
            if error := done.exception():
                outer.set_exception(error)
            else:
                outer.set_result(dict(done.result().outputs))

        inner.add_done_callback(answer)
        outer.add_done_callback(lambda future: inner.cancel() if future.cancelled() else None)
        return outer

    def close(self) -> None:
        self.runner.close()


class Stub:
    """Keeps what it is asked; answer: makes the future of each question."""

    name = "stub"
    sizes: Mapping[str, tuple[int, ...]] = {}

    def __init__(
        self, answer: Callable[[Mapping[str, Any]], Any], *arguments: Argument, health: Health | None = None
    ) -> None:
        self.arguments = arguments
        self.health = health or Health()
        self.asked: list[tuple[Mapping[str, Any], float | None, float | None]] = []
        self.futures: list[Future[Any]] = []
        self._answer = answer

    def ask(self, inputs: Mapping[str, Any], *, timeout: float | None = None, wait: float | None = None) -> Future[Any]:
        self.asked.append((inputs, timeout, wait))
        answer = self._answer(inputs)
        future = answer if isinstance(answer, Future) else Future()
        if future is not answer:
            future.set_result(answer)
        self.futures.append(future)
        return future

    def close(self) -> None: ...
