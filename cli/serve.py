"""`rsn serve`: serves a compiled model over HTTP."""

from __future__ import annotations

import logging
import math
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .. import text_encoder
from ..base.deferred import deferred
from ..base.errors import require
from ..base.freed_memory import keep_freed_memory
from ..base.garbage import gc_frozen
from ..base.other_libraries import silence_other_libraries
from ..host import generation
from ..host.model.file import SUFFIX
from ..host.model.loaded import load
from ..host.own_process import call_apart
from ..host.serving.policy import Serving
from .options import BOARD, PATH, XCLBIN, Count, File, Options, given, option, with_options
from .progress import working
from .serve_replicas import Copies, DecoderCopies, described, told_boards

if TYPE_CHECKING:
    from ..host.serving import completions, http, metrics, texts
    from ..host.serving.http import HttpModel
else:
    http = deferred("rsn.host.serving.http")
    metrics = deferred("rsn.host.serving.metrics")
    completions = deferred("rsn.host.serving.completions")
    texts = deferred("rsn.host.serving.texts")

C = TypeVar("C", bound=Copies)
COPIES = "boards", "replicas", "ray"
"""Options of which each means that copies of the model run on many boards."""
LONGEST_S = 24 * 3600.0
"""The longest time that an option may give, in seconds; a thread cannot wait for arbitrarily long."""


class _Number(click.FloatRange):
    """A range of numbers that also refuses NaN, which no comparison refuses."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid float.", param, ctx)
        return number


class _Key(click.ParamType[str]):
    """A key that a header can have."""

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value or not all("!" <= letter <= "~" for letter in value):
            self.fail("a key has letters, digits and signs of ASCII, without spaces", param, ctx)
        return str(value)


class ServeOptions(Options):
    """The options of `rsn serve`."""

    host: str = option("address to listen at; 0.0.0.0 for all", default="127.0.0.1")
    port: int = option("0 for any free port", default=8000, type=click.IntRange(0, 65535))
    board: str = BOARD
    boards: tuple[str, ...] = option(
        "one of several boards; each copy of the model takes one for each of its stages", metavar="BOARD"
    )
    replicas: Count | None = option("copies of the model [default: as many as the boards are enough for]")
    ray: str | None = option(
        "run each stage in a process of a Ray cluster: HOST:PORT; auto for the one of this computer, or a new one; "
        "local for a new one", metavar="ADDRESS",
    )  # fmt: skip
    xclbin: File | None = XCLBIN
    queue: Count = option("the most requests that wait", default=256)
    max_wait: float = option(
        "seconds that a request waits for others to share its run", default=0.002, type=_Number(0, LONGEST_S)
    )
    timeout: float = option(
        "the most seconds for a request to wait and run; with --generate: for each of its tokens to come",
        default=60.0,
        type=_Number(0, LONGEST_S, min_open=True),
    )
    limit_mb: float = option(
        "the most megabytes of a request's body", default=64.0, type=_Number(0, 65536, min_open=True)
    )
    connections: Count = option("the most connections at one time", default=500)
    api_key: tuple[str, ...] = option(
        "a key that requests must have, in Authorization: Bearer KEY; others on this computer can see it here "
        "[default: those of $RSN_API_KEY, with spaces between]",
        metavar="KEY", type=_Key(), envvar="RSN_API_KEY",
    )  # fmt: skip
    batches: tuple[Count, ...] = option(
        "texts of a run, of a folder of an encoder [default: 1, 8]", metavar="N", type=click.IntRange(1)
    )
    lengths: tuple[Count, ...] = option(
        "tokens that there are programs for [default: 32, 128, and the most that the model takes]",
        metavar="N",
        type=click.IntRange(1),
    )
    pooling: str | None = option("how an encoder without modules.json makes one vector: mean, cls, max, ...")
    normalize: bool = option("vectors of an encoder without modules.json get the length 1")
    generate: bool = option("MODEL is a folder of a causal language model of transformers, or a file of a decoder")
    overlay: str = option("of a folder: the machine", default="xnn", type=click.Choice(["xnn", "xnn8"]))
    slots: int = option("texts generated together", default=8, type=click.IntRange(1, 128))
    capacity: int = option("the most tokens of a text", default=512, type=click.IntRange(2))
    chunk: int = option(
        "the most tokens of a prompt that are read between two steps", default=generation.CHUNK, type=click.IntRange(2)
    )
    warm_up: bool = option("of 0.1: all programs are compiled first now", hidden=True)


@contextmanager
def _ending_at_sigterm() -> Iterator[None]:
    """While this lasts, SIGTERM ends the process as an error would, so that boards and processes are released, but with
    the code 0 of every other end that SIGTERM asks for."""

    def end(number: int, frame: object) -> None:
        click.echo("stopped before it served", err=True)
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@click.command(name="serve")
@click.argument("model", type=PATH)
@with_options(ServeOptions)
def serve_command(model: Path, options: ServeOptions) -> None:
    """Serve MODEL (.rsnmodel, or a folder) over HTTP, until SIGTERM or ^C.

    POST / runs the model, in JSON; GET / describes it; /health and /metrics are for load balancers and Prometheus
    (docs/serving.md). A folder of a sentence encoder, or of a classifier of transformers, or a file with its tokenizer,
    takes texts: /v1/embeddings, /v1/classify, /v1/rerank (docs/openai.md). No encryption: for that, put a proxy before
    it.

    With --boards, --replicas or --ray, copies of MODEL run on many boards, and a request goes to one that works; SIGHUP
    replaces MODEL by what its file has then (docs/serving.md).

    With --generate, MODEL is a folder of a language model, or a file that Decoder.save has written, and
    POST /v1/completions generates text (docs/generation.md).
    """
    _refuse_wrong_options(model, options)
    if options.warm_up:
        click.echo("--warm-up is deprecated and changes nothing: all programs are compiled first", err=True)
    board, timeout = options.board, options.timeout
    for package in ("starlette", "uvicorn"):
        require(package, "serving over HTTP", "pip install starlette uvicorn")
    silence_other_libraries()
    keep_freed_memory()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sock = http.listener(options.host, options.port)  # first: an address in use is reported before the model is loaded
    with sock, ExitStack() as held:
        registry, counters = _figures()
        limit = int(options.limit_mb * 1e6)
        server: Any
        limits: Any = {
            "registry": registry, "timeout_s": timeout, "limit_bytes": limit, "keys": options.api_key
        }  # fmt: skip
        where, copied = f"on board {board}", None
        opened = "many boards" if _is_copied() else f"board {board}"
        with _ending_at_sigterm(), working(f"opening {model} on {opened}"):
            if options.generate:
                if _is_copied():
                    path = model if model.is_file() else _compiled_decoder(model, options, held)
                    decoders = _copies(DecoderCopies, path, options)
                    tokenizer, ends = decoders.tokenizer(), decoders.sizes.ends
                    server = held.enter_context(decoders.generation(_name(model), counters))
                    copied = server.copies
                else:
                    server, tokenizer, ends = _generation(model, options, counters)
            else:
                path = _compiled(model, options, held) if model.is_dir() else model
                if _is_copied():
                    models = _copies(Copies, path, options)
                    text = models.loaded.text()
                    server = copied = held.enter_context(models.server(_name(model), counters))
                else:
                    serving = Serving(queue=options.queue, max_wait_s=options.max_wait)
                    server, text = _open(path, board, options.xclbin, serving, counters, _name(model))
        if copied is not None:
            where, limits["replicas"] = told_boards(copied), partial(described, copied)
            if registry:
                registry.register(copied)
        try:
            if options.generate:
                app = completions.application(server, tokenizer, _name(model), ends=ends, **limits)
            elif text is not None:
                app = texts.application(server, *text, **limits)
            else:
                app = http.application(server, **limits)
            figures = "" if registry else "; no /metrics without prometheus_client (the extra serve)"
            if http.is_reached_from_outside(sock):
                figures += "; other computers reach it, " + ("with a key" if options.api_key else "without a key")
            # The collector would walk over the model again and again, and stop all requests meanwhile. Copies of a
            # model are replaced, and must be collected then.
            with gc_frozen() if copied is None else nullcontext():
                http.serve(
                    app,
                    sock,
                    ready=lambda url: click.echo(f"{click.format_filename(model)} at {url} {where}{figures}"),
                    timeout_s=timeout,
                    connections=options.connections,
                )
        finally:
            server.close()


def _refuse_wrong_options(model: Path, options: ServeOptions) -> None:
    """Raise `UsageError` for options that do not go together."""
    if not options.api_key and "RSN_API_KEY" in os.environ:
        raise click.UsageError("RSN_API_KEY has no key; unset it to take all requests")
    if options.boards and given("board"):
        raise click.UsageError("--board: not with --boards")
    sizes = given("slots", "capacity", "chunk")
    if not options.generate and sizes:
        raise click.UsageError(f"{sizes[0]} needs --generate")
    if given("overlay") and not model.is_dir():
        raise click.UsageError("--overlay is for a folder; a file has programs for its own")
    of_texts = given("batches", "lengths", "pooling", "normalize")
    if of_texts and (options.generate or not model.is_dir()):
        raise click.UsageError(f"{of_texts[0]} is for the folder of an encoder or a classifier")
    if options.generate and not model.is_dir() and sizes:
        raise click.UsageError(f"{sizes[0]} is that of the file: only with --generate and a folder")
    for flag in given("max_wait") if options.generate else ():
        raise click.UsageError(f"{flag} cannot be used with --generate")


def _is_copied() -> bool:
    """Whether the model is served from many boards."""
    return bool(given(*COPIES))


def _copies(kind: type[C], model: Path, options: ServeOptions) -> C:
    """The copies of a model or a decoder. Raises `ContainerError`, `BoardError`."""
    return kind(
        model, options.boards, options.board, options.replicas, options.ray,
        queue=options.queue, max_wait_s=options.max_wait, timeout_s=options.timeout, xclbin=options.xclbin,
    )  # fmt: skip


def _figures() -> tuple[Any, Any]:
    """Return a Prometheus registry with its `Metrics`; (None, None) if prometheus_client is not installed."""
    if find_spec("prometheus_client") is None:
        return None, None
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry, metrics.Metrics(registry)


def _generation(model: Path, options: ServeOptions, counters: Any) -> tuple[Any, Any, tuple[int, ...]]:
    """Load a language model and its tokenizer, and begin its generation. Returns it, the tokenizer, and the tokens that
    end a text. Raises `TensorError` for another folder, and `ContainerError` for another file."""
    require("transformers", "generation", "pip install transformers")
    if model.is_dir():
        decoder = _from_folder(model, options)
    else:
        decoder = generation.load(model, board=options.board, xclbin=options.xclbin)
    tokenizer = decoder.tokenizer()
    begun = generation.Generation(decoder, queue=options.queue, metrics=counters, name=_name(model))
    return begun, tokenizer, decoder.ends


def _from_folder(model: Path, options: ServeOptions) -> generation.LoadedDecoder:
    """Compile a decoder from a folder of transformers, and load it. Raises `TensorError`."""
    with ExitStack() as held:
        path = _compiled_decoder(model, options, held)
        return generation.load(path, board=options.board, xclbin=options.xclbin)


def _compiled_decoder(model: Path, options: ServeOptions, held: ExitStack) -> Path:
    """Compile a decoder from a folder of transformers. Returns its file, which is there until `held` ends. Raises
    `TensorError`."""
    path = Path(held.enter_context(TemporaryDirectory(prefix="rsn-"))) / f"decoder{SUFFIX}"
    # Compiling takes many times the memory of the weights, which the process would keep.
    sizes = {"slots": options.slots, "capacity": options.capacity, "chunk": options.chunk}
    call_apart(generation.save_folder, model, path, overlay=options.overlay, **sizes)
    return path


def _name(model: Path) -> str:
    """What a server of texts calls its model: the folder, or the file without its suffix."""
    return model.resolve().stem if model.is_file() else model.resolve().name


def _compiled(model: Path, options: ServeOptions, held: ExitStack) -> Path:
    """Compile a model of texts from a folder. Returns its file, which is there until `held` ends."""
    path = Path(held.enter_context(TemporaryDirectory(prefix="rsn-"))) / f"texts{SUFFIX}"
    # Compiling takes many times the memory of the weights, which the process would keep.
    call_apart(
        text_encoder.save_folder,
        model,
        path,
        batches=options.batches or text_encoder.BATCHES,
        lengths=options.lengths or None,
        pooling=options.pooling,
        normalize=options.normalize,
        overlay=options.overlay,
    )
    return path


def _open(
    model: Path, board: str, xclbin: str | None, serving: Serving, counters: Any, name: str
) -> tuple[HttpModel, Any]:
    """Load the model, open its board, and return its server; and of a model of texts its settings and its tokenizer,
    else None."""
    loaded = load(model, board=board, xclbin=xclbin)
    text = loaded.text()
    server: HttpModel = loaded.server(serving, metrics=counters, name=name)
    return server, text
