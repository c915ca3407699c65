"""Servers over HTTP as their clients see them (docs/serving.md, docs/generation.md).

    python benchmarks/serving.py [hostile] [bodies] [sigterm] [lengths] [cost] [memory]

Each word is a table; none takes all. Servers are processes of `rsn serve` on the board sim, with random weights, on
this computer: other programs slow them down, so that a bare server, or the same without load, stands beside them.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
from safetensors import safe_open

FEATURES = 64
PATHS = {"tensors": "/", "texts": "/v1/completions"}


def models(folder: Path, layers: int = 2, hidden: int = 64, vocabulary: int = 96, width: int = 2) -> dict[str, Path]:
    """Write a Linear as a model file, and a Llama whose words are numbers as a folder, both with random weights. Return
    their paths by kind, `tensors` and `texts`. folder: exists. layers, hidden, vocabulary: sizes of the Llama. width:
    of its feed-forward layers, in `hidden` columns."""
    import torch
    import transformers
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers import models as kinds

    import rsn

    torch.manual_seed(1)
    x = torch.randn(2, 8, FEATURES)
    sizes = {"input": {0: rsn.Batch(1, 8)}}

    linear = torch.nn.Linear(FEATURES, FEATURES).eval()
    rsn.compile(linear, {"input": x}, dynamic_shapes=sizes).save(folder / "small.rsnmodel")
    words = Tokenizer(kinds.WordLevel({str(n): n for n in range(vocabulary)}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token=str(vocabulary - 1))
    made.save_pretrained(folder / "texts")
    config = transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=width * hidden, num_attention_heads=max(4, hidden // 64),
        num_key_value_heads=max(2, hidden // 64), vocab_size=vocabulary, bos_token_id=0, eos_token_id=vocabulary - 1,
        num_hidden_layers=layers, tie_word_embeddings=False,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "texts")
    return {"tensors": folder / "small.rsnmodel", "texts": folder / "texts"}


WATCH = """
import http.client, json, select, sys, time
print(flush=True)
seconds = []
while not seconds or not select.select([sys.stdin], [], [], 0.02)[0]:
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=300)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()
    seconds.append(time.perf_counter() - began)
print(json.dumps(seconds))
"""
"""The program of the process that watches /health."""


class ServerProcess:
    """A server in a process of its own."""

    def __init__(self, model: Path, *options: str, command: list[str] | None = None) -> None:
        """Start it, and wait for its first line. options: of `rsn serve`. command: of another server, without its port,
        which is added; None for `rsn serve`. Raises `SystemExit`, with what it printed, if it does not start."""
        if command:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                command = [*command, str(free.getsockname()[1])]
        else:
            command = [sys.executable, "-m", "rsn", "serve", str(model), "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if " at http://" not in line:
            raise SystemExit(f"{' '.join(command)}: {line}{self.process.communicate()[1]}")
        self.port = int(line.split(" at ")[1].split()[0].rpartition(":")[2])

    def ask(self, method: str, path: str, body: Any = None, seconds: float = 300.0) -> tuple[int, bytes]:
        """Return the status and the body of an answer; for a connection that was cut 0, and the error. body: bytes, or
        chunks of it, which are sent without a size. seconds: limit of each wait for the server."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # the answer may be there all the same
                connection.request(method, path, body, encode_chunked=not isinstance(body, bytes | None))
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as e:
            return 0, repr(e).encode()
        finally:
            connection.close()

    def megabytes(self, field: str = "VmHWM") -> float:
        """Return the memory of the process and of its children, in megabytes of 1000 kB as Linux counts them. field: of
        /proc/*/status: `VmRSS` for now, `VmHWM` for the peak (the sum of their peaks)."""
        total = 0
        for status in Path("/proc").glob("[0-9]*/status"):
            with suppress(OSError):
                found = dict(line.split(":", 1) for line in status.read_text().splitlines())
                if str(self.process.pid) in (found["Pid"].strip(), found["PPid"].strip()) and field in found:
                    total += int(found[field].split()[0])
        return total / 1e3

    def seconds(self) -> float:
        """Return the CPU time of the process so far, in seconds, without its children and threads that have ended."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    def of_runs(self) -> float:
        """The CPU time of its runs on the simulator so far, in seconds; of `TOLD`."""
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGUSR1)
        return float(self.process.stdout.readline())

    @contextmanager
    def watched(self) -> Iterator[list[float]]:
        """Ask for /health each 20 ms in the block, in a process of its own; behind the block the list has the seconds
        that each answer took."""
        seconds: list[float] = []
        watcher = subprocess.Popen(
            [sys.executable, "-c", WATCH, str(self.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert watcher.stdout is not None
        watcher.stdout.readline()
        try:
            yield seconds
        finally:
            seconds += json.loads(watcher.communicate("\n")[0])

    def end(self) -> None:
        """Kill the process, and wait for its end."""
        self.process.kill()
        self.process.communicate()


@contextmanager
def served(model: Path, *options: str, command: list[str] | None = None) -> Iterator[ServerProcess]:
    """Context that gives a server, and ends it behind the block. Arguments and errors: as for `ServerProcess`."""
    server = ServerProcess(model, *options, command=command)
    try:
        yield server
    finally:
        server.end()


def request(kind: str, value: str) -> bytes:
    """Return a body that is good but for `value`, the JSON of its tensor or its prompt. kind: `tensors` or `texts`."""
    return (f'{{"inputs": {{"input": {value}}}}}' if kind == "tensors" else f'{{"prompt": {value}}}').encode()


GOOD = {"tensors": json.dumps([[[0.5] * FEATURES] * 8]), "texts": '"17 4 60"'}


def told(answer: bytes) -> str:
    """Return the error message of an answer, cut if it has 70 characters or more; without one the first 60 bytes."""
    with suppress(ValueError, KeyError, TypeError):
        error = json.loads(answer)["error"]
        message = error["message"] if isinstance(error, dict) else error
        return message if len(message) < 70 else f"{message[:60]}... ({len(message)} characters)"
    return answer[:60].decode(errors="replace")


def hostile(folder: Path) -> None:
    """Print a table of requests that are to harm a server: the answer, its time, the slowest /health meanwhile, and the
    peak of memory so far. folder: as for `folder_models`."""
    mega = 10**6

    def bodies(kind: str) -> Iterator[tuple[str, Any]]:
        yield "a good request", request(kind, GOOD[kind])
        yield "no JSON", b"x" * 100
        yield "NaN", request(kind, "NaN")
        yield "a name twice", b'{"a": 1, "a": 2}'
        yield "100,000 levels", b"[" * 100_000
        yield "an integer of 100,000 digits", request(kind, "1" * 100_000)
        yield "a name of 60 KB", f'{{"{"a" * 60_000}": 1}}'.encode()
        yield "half a surrogate pair", request(kind, '"\\ud800"')
        yield "a text of 10 MB", request(kind, f'"{"a" * 10 * mega}"')
        yield "10 MB of lists in lists", request(kind, f"[{'[[]],' * (2 * mega)}[]]")
        yield "60 MB of numbers", request(kind, f"[{'0.5,' * (15 * mega)}1]")
        yield "60 MB of lists in lists", request(kind, f"[{'[],' * (20 * mega)}[]]")
        yield "100 MB", b" " * (100 * mega)
        yield "100 MB, its size not said", (b" " * mega for _ in range(100))
        yield "a body that stops", None

    for kind, path in folder_models(folder).items():
        options = ["--generate", "--slots", "2", "--capacity", "512"] if kind == "texts" else []
        with served(path, "--timeout", "60", *options) as server:
            server.ask("POST", PATHS[kind], request(kind, GOOD[kind]))
            click.echo(
                f"\n{kind}: {server.megabytes('VmRSS'):.0f} MB before\n| | status | s | /health, ms | MB | answer |"
            )
            click.echo("|---|---|---|---|---|---|")
            for name, body in bodies(kind):
                began = time.perf_counter()
                with server.watched() as health:
                    if body is None:
                        status, answer = stalled(server, PATHS[kind])
                    else:
                        status, answer = server.ask("POST", PATHS[kind], body)
                    seconds = time.perf_counter() - began
                slowest = max(health, default=0) * 1e3
                row = f"| {name} | {status or 'cut'} | {seconds:.2f} | {slowest:.0f} | {server.megabytes():.0f} |"
                click.echo(f"{row} {told(answer)} |")
            with server.watched() as health:
                idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
                for connection in idle[::2]:
                    connection.sendall(b"POST / HTTP/1.1\r\nhost:")
                began, open_ = time.perf_counter(), len(idle)
                while open_ and time.perf_counter() - began < 60:
                    time.sleep(0.5)
                    open_ = sum(not closed(x) for x in idle)
            seconds = time.perf_counter() - began
            click.echo(f"| 200 connections without headers | {200 - open_} closed | {seconds:.1f} "
                  f"| {max(health) * 1e3:.0f} | {server.megabytes():.0f} | |")  # fmt: skip


def stalled(server: ServerProcess, path: str) -> tuple[int, bytes]:
    """Return status and body of the answer to a request whose body is never sent. Raises `OSError` if there is none
    within 120 s, and `http.client.HTTPException` for a connection that was cut."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.putrequest("POST", path)
    connection.putheader("content-length", "1000")
    connection.endheaders(b"{")
    response = connection.getresponse()
    return response.status, response.read()


def closed(connection: socket.socket) -> bool:
    """Return whether the other end has closed a connection. A byte that has come is read and dropped."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def folder_models(folder: Path) -> dict[str, Path]:
    """Return the paths of `models` in a folder, which are written if they are not there."""
    if not (folder / "texts").exists():
        models(folder)
    return {"tensors": folder / "small.rsnmodel", "texts": folder / "texts"}


def bodies(folder: Path, count: int = 50) -> None:
    """Print a table of the largest bodies that a server reads, `count` of them at one time, and of /health meanwhile.
    folder: as for `folder_models`."""
    click.echo(f"\n{count} bodies of 64 MB at one time\n| | statuses | s | /health: median, 99 %, largest, ms | MB |")
    click.echo("|---|---|---|---|---|")
    for kind, path in folder_models(folder).items():
        options = ["--generate", "--slots", "2", "--capacity", "512"] if kind == "texts" else []
        with served(path, *options) as server, ThreadPoolExecutor(count) as clients:
            with server.watched() as health:
                time.sleep(2)
            rows = [("without", "", 2.0, health)]
            body = request(kind, f"[{'0.5,' * (16 * 10**6 - 20)}1]")
            began = time.perf_counter()
            with server.watched() as health:
                asked = [clients.submit(server.ask, "POST", PATHS[kind], body) for _ in range(count)]
                statuses = [x.result()[0] for x in asked]
            counted = ", ".join(f"{statuses.count(x)} x {x or 'cut'}" for x in sorted(set(statuses)))
            rows.append((kind, counted, time.perf_counter() - began, health))
            for name, what, seconds, times in rows:
                low, high = median(times), sorted(times)[int(len(times) * 0.99)]
                figures = ", ".join(f"{x * 1e3:.0f}" for x in (low, high, max(times)))
                click.echo(f"| {name} | {what} | {seconds:.1f} | {figures} | {server.megabytes():.0f} |")


def sigterm(folder: Path) -> None:
    """Print what a client sees of a text that is under way when the server gets SIGTERM. folder: as for
    `folder_models`."""
    click.echo(
        "\nSIGTERM, --timeout 10\n| | status | ends with | s behind the signal | exit code |\n|---|---|---|---|---|"
    )
    path = folder_models(folder)["texts"]
    for name, tokens, streamed in (
        ("a stream that is done in time", 6, True),
        ("a text that is done in time", 6, False),
        ("a stream that takes longer", 500, True),
        ("a text that takes longer", 500, False),
        ("one that waits for a slot", 500, False),
    ):
        with served(path, "--generate", "--slots", "1", "--capacity", "512", "--timeout", "10") as server:
            server.ask("POST", PATHS["texts"], request("texts", GOOD["texts"]))
            asked = {"prompt": "17 4 60", "max_tokens": tokens, "stream": streamed, "temperature": 0}
            with ThreadPoolExecutor(2) as clients:
                others = [clients.submit(server.ask, "POST", PATHS["texts"], json.dumps(asked).encode())]
                time.sleep(0.15)
                if "waits" in name:
                    others.append(clients.submit(server.ask, "POST", PATHS["texts"], json.dumps(asked).encode()))
                    time.sleep(0.1)
                server.process.send_signal(signal.SIGTERM)
                began = time.perf_counter()
                status, answer = others[-1].result()
                seconds = time.perf_counter() - began
                code = server.process.wait(60)
            end = answer.decode().strip().rpartition("\n\n")[2]
            if not streamed and status == 200:
                end = re.sub(r'"text":"[^"]*"', '"text":...', end[end.index('"text"') :])
            click.echo(f"| {name} | {status} | `{end[:150]}` | {seconds:.1f} | {code} |")


BARE = """
import json, sys
import torch, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

linear = torch.nn.Linear(64, 64)

def answer(body):
    with torch.no_grad():
        return json.dumps({"outputs": linear(torch.tensor(json.loads(body)["inputs"]["input"])).tolist()})

async def root(request):
    return Response(answer(await request.body()), media_type="application/json")

print("bare at http://127.0.0.1:" + sys.argv[1], flush=True)
uvicorn.run(Starlette(routes=[Route("/", root, methods=["POST"])]), port=int(sys.argv[1]), log_level="error")
"""
"""The same model in starlette alone."""

TOLD = """
import signal, sys, time
from rsn.cli.main import main
from rsn.host.boards.sim import SimBoard

seconds, run = [0.0], SimBoard.run

def timed(*args, **more):
    began = time.thread_time()
    try:
        return run(*args, **more)
    finally:
        seconds[0] += time.thread_time() - began

SimBoard.run = timed
signal.signal(signal.SIGUSR1, lambda *_: print(seconds[0], flush=True))
main(["serve", sys.argv[1], "--port", sys.argv[2]])
"""
"""`rsn serve`, which tells the CPU time of its runs on the simulator, in seconds, when it gets SIGUSR1."""


def cost(folder: Path, rounds: int = 25, each: int = 20, clients: int = 8) -> None:
    """Print the CPU time of a request to a Linear, beside that of starlette alone with PyTorch, without that of the
    simulator. folder: as for `folder_models`. rounds: in each of them each server gets requests, so that what else the
    computer does is the same for all; the figures are medians, and quartiles. each: requests of a client in a round."""
    import numpy as np
    from safetensors.numpy import save

    path = folder_models(folder)["tensors"]
    x = np.full((1, 8, FEATURES), 0.5, np.float32)
    octets = dict.fromkeys(("content-type", "accept"), "application/octet-stream")
    json_body = request("tensors", GOOD["tensors"])

    def ask(port: int, body: bytes, headers: dict[str, str]) -> list[float]:
        connection, times = http.client.HTTPConnection("127.0.0.1", port, timeout=300), []
        for _ in range(each):
            began = time.perf_counter()
            connection.request("POST", "/", body, headers)
            response = connection.getresponse()
            response.read()
            assert response.status == 200
            times.append(time.perf_counter() - began)
        connection.close()
        return times

    with (
        served(path, command=[sys.executable, "-c", BARE]) as bare,
        served(path, command=[sys.executable, "-c", TOLD, str(path)]) as own,
        ThreadPoolExecutor(clients) as pool,
    ):
        rows = {
            "starlette alone, JSON": (bare, json_body, dict[str, str]()),
            "`rsn serve`, JSON": (own, json_body, dict[str, str]()),
            "`rsn serve`, binary": (own, save({"input": x}), octets),
        }
        for server, body, headers in rows.values():
            for _ in range(600):  # it may not listen yet
                with suppress(OSError):
                    ask(server.port, body, headers)
                    break
                time.sleep(0.1)
        found: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in rows}
        for _ in range(rounds):
            for name, (server, body, headers) in rows.items():
                runs, before, began = own.of_runs(), server.seconds(), time.perf_counter()
                asked = [pool.submit(ask, server.port, body, headers) for _ in range(clients)]
                times = [t for some in asked for t in some.result()]
                took, cpu, n = time.perf_counter() - began, server.seconds() - before, len(times)
                found[name].append((cpu / n, (own.of_runs() - runs) / n, median(times), n / took))
    click.echo(f"\n{rounds} rounds of {clients} clients with {each} requests of 1 x 8 x {FEATURES} to each server")
    click.echo("| | CPU ms a request | of it the simulator | beside it, times starlette's | p50, ms | requests/s |")
    click.echo("|---|---|---|---|---|---|")
    alone = [cpu for cpu, *_ in found["starlette alone, JSON"]]
    for name, figures in found.items():
        cpu, runs, p50, rate = (median(column) for column in zip(*figures, strict=True))
        times = [(cpu - runs) / one for (cpu, runs, *_), one in zip(figures, alone, strict=True)]
        low, middle, high = quantiles(times, n=4)
        click.echo(f"| {name} | {cpu * 1e3:.2f} | {runs * 1e3:.2f} | {middle:.2f} ({low:.2f} to {high:.2f}) "
              f"| {p50 * 1e3:.1f} | {rate:.0f} |")  # fmt: skip


def lengths(folder: Path, layers: int = 2, hidden: int = 128) -> None:
    """Print, for a text that runs while prompts of new lengths join, the gaps between its tokens, and the times to the
    first tokens of the others. folder: gets a folder `lengths`, and must have none. layers, hidden: as for `models`."""
    own = folder / "lengths"
    own.mkdir()
    path = models(own, layers, hidden, 1000)["texts"]
    sizes = (12, 24, 48, 96, 192)

    def stream(server: ServerProcess, prompt: int, tokens: int, until: threading.Event | None = None) -> list[float]:
        """The times at which tokens came, from the request on, in seconds; one for each event."""
        body = {"prompt": " ".join(str(k + 1) for k in range(prompt)), "max_tokens": tokens, "stream": True, "seed": 1}
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
        began = time.perf_counter()
        connection.request("POST", PATHS["texts"], json.dumps(body))
        times = []
        for line in connection.getresponse():
            if b'"choices"' in line:
                times.append(time.perf_counter() - began)
            elif line.startswith(b"data: {"):
                raise SystemExit(line.decode())
            if until is not None and until.is_set():
                break
        connection.close()
        return times

    head = " | ".join(f"{n} tokens" for n in sizes)
    click.echo(f"\n| chunk | s to the first token of a prompt of {head} | gaps: median, largest, s | the same alone |")
    click.echo("|---|" + "---|" * (len(sizes) + 2))
    for chunk in ("32", "128"):
        options = ["--slots", "4", "--capacity", "256", "--timeout", "600", "--chunk", chunk]
        with served(path, "--generate", *options) as server:
            over, alone = threading.Event(), stream(server, 4, 20)
            with ThreadPoolExecutor(1) as clients:
                running = clients.submit(stream, server, 4, 250, over)
                time.sleep(1)
                first = [stream(server, n, 2)[0] for n in sizes]
                over.set()
                gaps = [[b - a for a, b in pairwise(times)] for times in (running.result(), alone)]
            figures = " | ".join(f"{median(some):.2f}, {max(some):.2f}" for some in gaps)
            click.echo(f"| {chunk} | {' | '.join(f'{x:.2f}' for x in first)} | {figures} |")


def encoder(path: Path) -> float:
    """Write a BERT with the sizes of BERT-base and random weights as a model file, for 1 or 4 sequences of 64 or 128
    tokens. Returns the megabytes of its weights."""
    import torch
    import transformers

    import rsn

    model = transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False).eval()
    ids = torch.arange(128)[None]
    example, sizes = (
        {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
        {0: rsn.Batch(1, 4), 1: rsn.Length(64, 128)},
    )
    rsn.compile(model, example, dynamic_shapes=dict.fromkeys(example, sizes)).save(path)
    weights: float = sum(x.numel() * 4 for x in model.parameters()) / 1e6
    return weights


def memory(folder: Path) -> None:
    """The memory of servers when they have answered requests of all lengths: of folders of decoders, of which two
    differ in their weights alone, and of the file of an encoder."""
    click.echo("\n| | weights, MB | s to start | MB at the start | behind requests of all lengths | peak |")
    click.echo("|---|---|---|---|---|---|")
    found: list[tuple[float, float]] = []
    sizes = {"layers": 8, "hidden": 512, "vocabulary": 8000}
    for name, size in (
        ("decoder", sizes | {"width": 1}),
        ("decoder", sizes | {"width": 5}),
        ("decoder of 12 layers", {"layers": 12, "hidden": 768, "vocabulary": 32000, "width": 3}),
        ("encoder", {}),
    ):
        own = folder / f"memory {len(found)}"
        own.mkdir()
        if size:
            kind, path, options = "texts", models(own, **size)["texts"], ["--generate", "--slots", "2"]
            options += ["--capacity", "256", "--timeout", "600"]
            with safe_open(path / "model.safetensors", "np") as file:
                weights = sum(prod(file.get_slice(x).get_shape()) * 4 for x in file.keys()) / 1e6  # noqa: SIM118
        else:
            kind, path, options = "tensors", own / "encoder.rsnmodel", ["--timeout", "600"]
            weights = encoder(path)
        began = time.perf_counter()
        with served(path, *options) as server:
            start, first = time.perf_counter() - began, server.megabytes("VmRSS")
            for n in (10, 30, 60, 120, 200) if size else (60, 120):
                asked: Any = {"prompt": " ".join(str(k + 1) for k in range(n)), "max_tokens": 2}
                if not size:
                    asked = {"inputs": {"input_ids": [[*range(n)]], "attention_mask": [[1] * n]}}
                status, answer = server.ask("POST", PATHS[kind], json.dumps(asked).encode(), 600.0)
                if status != 200:
                    raise SystemExit(answer.decode())
            last, peak = server.megabytes("VmRSS"), server.megabytes()
        found.append((weights, last))
        click.echo(f"| {name} | {weights:.0f} | {start:.0f} | {first:.0f} | {last:.0f} | {peak:.0f} |")
    (less, low), (more, high), *_ = found
    slope = (high - low) / (more - less)
    click.echo(f"the first two: {slope:.2f} x weights + {low - slope * less:.0f} MB")


TABLES: dict[str, Callable[[Path], None]] = {
    "hostile": hostile,
    "bodies": bodies,
    "sigterm": sigterm,
    "lengths": lengths,
    "cost": cost,
    "memory": memory,
}


def main() -> None:
    """Print the tables that the command line names, or all. Raises `KeyError` for an unknown name."""
    chosen = sys.argv[1:] or list(TABLES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            TABLES[name](Path(folder))


if __name__ == "__main__":
    main()
