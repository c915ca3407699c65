"""`rsn serve`: serves a compiled model over HTTP."""

from __future__ import annotations

import logging
import math
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..base.deferred import deferred
from ..base.errors import TensorError, require
from ..host import generation
from ..host.model.loaded import load
from ..host.serving.policy import Serving
from .progress import working

if TYPE_CHECKING:
    from ..host.serving import completions, http, metrics
    from ..host.serving.http import Server
else:
    http = deferred("rsn.host.serving.http")
    metrics = deferred("rsn.host.serving.metrics")
    completions = deferred("rsn.host.serving.completions")

LONGEST_S = 24 * 3600.0
"""The longest time that an option may give, in seconds; a thread cannot wait for arbitrarily long."""


class _Number(click.FloatRange):
    """A range of numbers that also refuses NaN, which no comparison refuses."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid float.", param, ctx)
        return number


@click.command(name="serve")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen at; 0.0.0.0 for all")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 for any free port")
@click.option("--board", default="sim", show_default=True, help="board to run on: sim, csim, vck190, ssh://...")
@click.option("--xclbin", type=click.Path(dir_okay=False), help="bitstream of a real board [default: $RSN_XCLBIN]")
@click.option("--queue", default=256, show_default=True, type=click.IntRange(1), help="the most requests that wait")
@click.option(
    "--max-wait",
    default=0.002,
    show_default=True,
    type=_Number(0, LONGEST_S),
    help="seconds that a request waits for others to share its run",
)
@click.option(
    "--timeout",
    default=60.0,
    show_default=True,
    type=_Number(0, LONGEST_S, min_open=True),
    help="the most seconds for a request to wait and run; with --generate: for each of its tokens to come",
)
@click.option(
    "--limit-mb",
    default=64.0,
    show_default=True,
    type=_Number(0, 65536, min_open=True),
    help="the most megabytes of a request's body",
)
@click.option("--generate", is_flag=True, help="MODEL is a folder of a causal language model of transformers")
@click.option("--slots", default=8, show_default=True, type=click.IntRange(1, 128), help="texts generated together")
@click.option("--capacity", default=512, show_default=True, type=click.IntRange(2), help="the most tokens of a text")
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
    generate: bool,
    slots: int,
    capacity: int,
) -> None:
    """Serve MODEL (.rsnmodel) over HTTP, until SIGTERM or ^C.

    POST / runs the model, in JSON; GET / describes it; /health and /metrics are for load balancers and Prometheus
    (docs/serving.md). One process, one board, no encryption and no passwords: for those, put a proxy before it.

    With --generate, MODEL is a folder of a language model, and POST /v1/completions generates text
    (docs/generation.md).
    """
    misfits = ("xclbin", "max_wait") if generate else ("slots", "capacity")
    context = click.get_current_context()
    for name in misfits:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = name.replace("_", "-")
            raise click.UsageError(f"--{option} {'cannot be used with' if generate else 'needs'} --generate")
    for package in ("starlette", "uvicorn"):
        require(package, "serving over HTTP", "pip install starlette uvicorn")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sock = http.listener(host, port)  # first: an address in use is reported before the model is loaded
    with sock:
        registry, counters = _figures()
        limit = int(limit_mb * 1e6)
        server: Any
        with working(f"opening {model} on board {board}"):
            if generate:
                server, tokenizer, ends = _generation(model, board, slots, capacity, queue)
            else:
                server = _open(model, board, xclbin, Serving(queue=queue, max_wait_s=max_wait), counters)
        try:
            if generate:
                name = model.resolve().name
                app = completions.application(
                    server, tokenizer, name, ends=ends, registry=registry, timeout_s=timeout, limit_bytes=limit
                )
            else:
                app = http.application(server, registry=registry, timeout_s=timeout, limit_bytes=limit)
            figures = "" if registry else "; no /metrics without prometheus_client: pip install prometheus-client"
            http.serve(
                app,
                sock,
                ready=lambda url: click.echo(f"{click.format_filename(model)} at {url} on board {board}{figures}"),
                timeout_s=timeout,
            )
        finally:
            server.close()


def _figures() -> tuple[Any, Any]:
    """Return a Prometheus registry with its `Metrics`; (None, None) if prometheus_client is not installed."""
    if find_spec("prometheus_client") is None:
        return None, None
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry, metrics.Metrics(registry)


def _generation(model: Path, board: str, slots: int, capacity: int, queue: int) -> tuple[Any, Any, tuple[int, ...]]:
    """Load a language model and its tokenizer, and begin its generation. Returns it, the tokenizer, and the tokens that
    end a text. Raises `TensorError` for another folder."""
    require("transformers", "generation", "pip install transformers")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not model.is_dir():
        raise TensorError(f"{model} is no folder; --generate takes one that save_pretrained has written")
    try:
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype="float32").eval()
        tokenizer = AutoTokenizer.from_pretrained(model)
    except Exception as e:  # of several packages, each with its own errors
        raise TensorError(f"{model}: no language model of transformers: {str(e).partition(chr(10))[0]}") from None
    decoder = generation.Decoder(loaded, slots=slots, capacity=capacity, board=board)
    ends = loaded.generation_config.eos_token_id if loaded.can_generate() else None
    listed = () if ends is None else tuple(ends) if isinstance(ends, list | tuple) else (ends,)
    return generation.Generation(decoder, queue=queue), tokenizer, listed


def _open(model: Path, board: str, xclbin: str | None, serving: Serving, counters: Any) -> Server:
    """Load the model, open its board, and return its server."""
    server: Server = load(model, board=board, xclbin=xclbin).server(serving, metrics=counters, name=model.stem)
    return server
