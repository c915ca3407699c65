"""Servers for the HTTP interface: the small attention of `rigged` behind a runner, and one that does as it is told.

    python -m rsn.tests.host.served MODEL --port 0 ...

is `rsn serve` with a MODEL of `MODELS` instead of a file; flaky:SEED:SHARE is an attention whose board fails at random,
late:SEED:SHARE one that now and then gives the answer to another request.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from subprocess import PIPE, Popen
from typing import Any

import rsn.cli.serve as command
import rsn.host.serving.http as http
from rsn.base.errors import TensorError
from rsn.cli.main import main
from rsn.host.boards import Board
from rsn.host.runner import Runner
from rsn.host.serving import Health, Serving
from rsn.host.serving.arguments import Argument, check_names
from rsn.host.serving.metrics import Metrics

from .rigged import COLUMNS, Flaky, Rig, attention, weights_of

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


class OneLate(AttentionServer):
    """Its every 50th answer is that to the request before: what a soak must find."""

    _asked = 0
    _before: Future[dict[str, Any]] | None = None

    def ask(
        self, inputs: Mapping[str, Any], *, timeout: float | None = None, wait: float | None = None
    ) -> Future[dict[str, Any]]:
        before, self._before = self._before, super().ask(inputs, timeout=timeout, wait=wait)
        self._asked += 1
        return before if before is not None and self._asked % 50 == 0 else self._before


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


SHAPES = ((1, 8), (4, 8), (2, 16), (8, 16))


def _broken(inputs: Mapping[str, Any]) -> Any:
    raise ValueError("a secret")


MODELS: Mapping[str, Callable[..., Any]] = {
    "attention": lambda **options: AttentionServer(*SHAPES, **options),
    "slow": lambda **options: AttentionServer((1, 8), board=Rig(before=lambda n: time.sleep(1)), **options),
    "quick-headers": lambda **options: _quick_headers(**options),
    "broken": lambda **options: Stub(_broken, *ARGUMENTS),
}


def _quick_headers(**options: Any) -> Any:
    http.HEADERS_S = 0.3
    return MODELS["attention"](**options)


def opened(model: Any, board: str, xclbin: str | None, serving: Serving, metrics: Any, title: str) -> Any:
    """Instead of the command's: it knows `MODELS`."""
    name, *more = str(model).split(":")
    if name in ("flaky", "late"):
        board, quick = Flaky(int(more[0]), float(more[1])), replace(serving, backoff_s=0.002, backoff_limit_s=0.05)
        kind = AttentionServer if name == "flaky" else OneLate
        return kind(*SHAPES, board=board, serving=quick, metrics=metrics), None
    return MODELS[name](serving=serving, metrics=metrics), None


def start(model: str, *options: str, port: int = 0) -> tuple[Popen[str], str]:
    """A process that serves, and its URL."""
    command = [sys.executable, "-m", "rsn.tests.host.served", model, "--port", str(port), *options]
    process = Popen(command, stdout=PIPE, stderr=PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if " at http://" not in line:
        process.kill()
        raise AssertionError(f"{line}{process.communicate()[1]}")
    return process, line.split(" at ")[1].split()[0]


@contextmanager
def serving(model: str, *options: str) -> Iterator[tuple[Popen[str], str]]:
    process, url = start(model, *options)
    with process:
        try:
            yield process, url
        finally:
            process.kill()


if __name__ == "__main__":
    command._open = opened
    main(["serve", *sys.argv[1:]])
