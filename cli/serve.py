"""`rsn serve`: a compiled model behind HTTP."""

from __future__ import annotations

import logging
import math
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..host.serving.http import Server

LONGEST_S = 24 * 3600.0
"""Of a time that may be asked for: threads cannot wait for any number of seconds."""


class _Number(click.FloatRange):
    """Of a range; NaN, which no comparison refuses, is in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid float.", param, ctx)
        return number


@click.command(name="serve")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="the address to listen at; 0.0.0.0 for all")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 for a free one")
@click.option("--board", default="sim", show_default=True, help="what to run on: sim, csim, vck190, ...")
@click.option("--xclbin", type=click.Path(dir_okay=False), help="the bitstream of a real board [default: RSN_XCLBIN]")
@click.option("--queue", default=256, show_default=True, type=click.IntRange(1), help="requests that may wait")
@click.option(
    "--max-wait",
    default=0.002,
    show_default=True,
    type=_Number(0, LONGEST_S),
    help="seconds to wait for others that share a run",
)
@click.option(
    "--timeout",
    default=60.0,
    show_default=True,
    type=_Number(0, LONGEST_S, min_open=True),
    help="the most seconds for a request",
)
@click.option(
    "--limit-mb",
    default=64.0,
    show_default=True,
    type=_Number(0, 65536, min_open=True),
    help="the most megabytes of a request's body",
)
def serve_command(
    model: Path,
    host: str,
    port: int,
    board: str,
    xclbin: str | None,
    queue: int,
    max_wait: float,
    timeout: float,
    limit_mb: float,
) -> None:
    """Serve MODEL (.rsnmodel) over HTTP, until SIGTERM or ^C.

    POST / asks the model, in JSON; GET / describes it; /health and /metrics are for load balancers and Prometheus
    (docs/serving.md). One process, one board, no encryption and no passwords: for more, put a proxy before it.
    """
    from ..base.errors import require

    for package in ("starlette", "uvicorn"):
        require(package, "serving over HTTP", "pip install starlette uvicorn")
    from ..host.serving.http import application, listener, serve
    from ..host.serving.policy import Serving
    from .progress import working

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sock = listener(host, port)  # before the model, which takes longer
    with sock:
        registry, metrics = _figures()
        with working(f"opening {model} on board {board}"):
            server = _open(model, board, xclbin, Serving(queue=queue, max_wait_s=max_wait), metrics)
        try:
            app = application(server, registry=registry, timeout_s=timeout, limit_bytes=int(limit_mb * 1e6))
            figures = "" if registry else "; no /metrics without prometheus_client: pip install prometheus-client"
            serve(
                app,
                sock,
                ready=lambda url: click.echo(f"{click.format_filename(model)} at {url} on board {board}{figures}"),
                timeout_s=timeout,
            )
        finally:
            server.close()


def _figures() -> tuple[Any, Any]:
    """A registry of Prometheus with its `Metrics`; (None, None) where prometheus_client is not installed."""
    if find_spec("prometheus_client") is None:
        return None, None
    from prometheus_client import CollectorRegistry, ProcessCollector

    from ..host.serving.metrics import Metrics

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry, Metrics(registry)


def _open(model: Path, board: str, xclbin: str | None, serving: Any, metrics: Any) -> Server:
    """The model's server, with its board open."""
    from ..host.model.loaded import load

    server: Server = load(model, board=board, xclbin=xclbin).server(serving, metrics=metrics, name=model.stem)
    return server
