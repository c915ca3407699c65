"""What a pipeline of boards adds to its stages (docs/serving.md, "Several boards"), on simulated boards.

    python benchmarks/pipelines.py [--ray] [--rounds 5] [--requests 8] [--rows 512]

A BERT of random weights, cut into three stages. Its stages are called one behind the other in this process; then each
in a thread of its own, or with --ray in a process, with the calls that it got before, which needs no pipeline, but
shares cores and caches as one does; then the same requests go through a pipeline of threads, or with --ray of Ray
actors on this computer. With --ray, three actors that compute nothing pass the same bytes besides. CPU time is that of
all processes which a request enters, and each round compares the ways with each other. Memory is what each actor has
mapped of the file of the model, and what it has besides (its private pages).
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
import numpy as np

STAGES = 3
TICKS = os.sysconf("SC_CLK_TCK")


def model_file(folder: Path, rows: int) -> Path:
    """Write the model in stages to a file. folder: exists. rows: of a request."""
    import torch
    import transformers

    import rsn

    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=1000, hidden_size=512, num_hidden_layers=STAGES, num_attention_heads=8, intermediate_size=2048
    )
    ids = torch.zeros(1, rows, dtype=torch.long)
    example = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    rsn.compile(model, example, boards=STAGES).save(folder / "bert.rsnmodel")
    return folder / "bert.rsnmodel"


def request(rows: int) -> dict[str, Any]:
    """The arguments of a call."""
    import torch

    ids = torch.randint(1000, (1, rows))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def cpu_s(processes: list[int]) -> float:
    """CPU seconds of this process and of others, by their ids."""
    spent = time.process_time()
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        spent += (int(fields[11]) + int(fields[12])) / TICKS
    return spent


def memory_mb(process: int, path: Path) -> tuple[float, float]:
    """Megabytes of a model's file that a process has mapped and read, and of its private pages."""
    mapped = private = 0
    inside = False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(path.name)
        elif line.startswith("Rss:") and inside:
            mapped += int(line.split()[1])
        elif line.startswith(("Private_Dirty:", "Private_Clean:")) and not inside:
            private += int(line.split()[1])
    return mapped / 1e3, private / 1e3


@contextmanager
def pipeline(path: Path, on_ray: bool) -> Iterator[Any]:
    """A server with one copy of the model."""
    from rsn.cli.serve_replicas import Copies

    address = "local" if on_ray else None
    copies = Copies(
        path, (), "sim", None, address, queue=256, max_wait_s=0.0, timeout_s=600.0, xclbin=None
    )  # fmt: skip
    with copies.server("bert", None) as server:
        yield server


def spent(work: Callable[[], None], processes: list[int]) -> float:
    """CPU seconds of some work."""
    before = cpu_s(processes)
    work()
    return cpu_s(processes) - before


class StageProcess:
    """A stage in a process of its own, without Ray. path: of the model. number: of the stage. given: what it is called
    with, one call after the other."""

    def __init__(self, path: Path, number: int, given: Sequence[Any]) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _prepare, (path, number, given))
        self.process = self._pool.submit(os.getpid).result()

    def run(self) -> Future[None]:
        """Run all calls."""
        return self._pool.submit(_run_all)

    def close(self) -> None:
        """End it."""
        self._pool.shutdown()


_calls: list[Callable[[], Any]] = []
"""Those of the stage of a `StageProcess`, in its process."""


def _prepare(path: Path, number: int, given: Sequence[Any]) -> None:
    from rsn.base.freed_memory import keep_freed_memory
    from rsn.host.model.stages import load_stage

    keep_freed_memory()
    stage = load_stage(path, number)
    _calls.extend(partial(stage, **call) if number == 0 else partial(stage, call) for call in given)


def _run_all() -> None:
    for call in _calls:
        call()


class Passing:
    """An actor that gives what it takes."""

    def process(self) -> int:
        """Its id."""
        return os.getpid()

    async def ask(self, data: Any) -> Any:
        """Return the same."""
        return data


def passing(data: Any, requests: int) -> tuple[Callable[[], None], list[int]]:
    """Start three actors that compute nothing. Returns what passes `data` through them, for each of the requests at one
    time, and the ids of their processes."""
    import ray

    actors = [ray.remote(Passing).options(num_cpus=0.001, max_concurrency=requests).remote() for _ in range(STAGES)]

    def passed() -> Any:
        given = data
        for actor in actors:
            given = actor.ask.remote(given)
        return given

    return lambda: ray.get([passed() for _ in range(requests)]), ray.get([actor.process.remote() for actor in actors])


@click.command(help=__doc__)
@click.option("--ray", "on_ray", is_flag=True)
@click.option("--rounds", default=5)
@click.option("--requests", default=8)
@click.option("--rows", default=512, help="of a request")
def main(on_ray: bool, rounds: int, requests: int, rows: int) -> None:
    """Print a table."""
    from rsn.base.freed_memory import keep_freed_memory
    from rsn.base.other_libraries import silence_other_libraries
    from rsn.host.model.stages import load_stage

    silence_other_libraries()
    keep_freed_memory()  # as rsn serve does
    with ExitStack() as held:
        path = model_file(Path(held.enter_context(tempfile.TemporaryDirectory())), rows)
        own = [held.enter_context(load_stage(path, number)) for number in range(STAGES)]
        server = held.enter_context(pipeline(path, on_ray))
        actors = [report.process for report in server.reports()[0]] if on_ray else []
        asked = [request(rows) for _ in range(requests)]

        calls: list[list[Any]] = [[] for _ in own]

        def one_by_one() -> None:
            for of in calls:
                of.clear()
            for call in asked:
                for stage, of in zip(own, calls, strict=True):
                    of.append(call)
                    call = stage(**call) if stage.is_first else stage(call)

        def repeated(number: int) -> None:
            for call in calls[number]:
                own[number](**call) if number == 0 else own[number](call)

        def beside() -> None:
            threads = [threading.Thread(target=repeated, args=(number,)) for number in range(STAGES)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        def through() -> None:
            for answer in [server.ask(inputs) for inputs in asked]:
                answer.result()

        one_by_one()
        apart = [held.enter_context(closing(StageProcess(path, i, calls[i]))) for i in range(STAGES if on_ray else 0)]

        def beside_apart() -> None:
            for run in [stage.run() for stage in apart]:
                run.result()

        ways: dict[str, tuple[Callable[[], None], list[int]]]
        ways = {"alone": (one_by_one, []), "beside": (beside, []), "piped": (through, actors)}
        if on_ray:
            ways["beside"] = beside_apart, [stage.process for stage in apart]
        if on_ray:
            ways["messages"] = passing(np.zeros(calls[1][0].size, np.uint8), requests)
        for run, _ in ways.values():
            run()
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                times[name].append(spent(*way) / requests * 1e3)
        kind = "Ray actors" if on_ray else "threads"
        alone, by_others, piped = (median(times[name]) for name in ("alone", "beside", "piped"))
        click.echo(f"CPU of a request: stages {alone:.1f} ms, beside each other {by_others:.1f} ms, ", nl=False)
        click.echo(f"pipeline of {kind} {piped:.1f} ms")
        for name, what in (("alone", "stages"), ("beside", "stages beside each other")):
            ratios = sorted(x / y for x, y in zip(times["piped"], times[name], strict=True))
            low, middle, high = quantiles(ratios, n=4)
            click.echo(f"pipeline / {what}, pairs: median {middle:.3f}, quartiles {low:.3f} to {high:.3f}")
        if on_ray:
            click.echo(f"messages alone: {median(times['messages']):.1f} ms")
        whole = path.stat().st_size / 1e6
        for number, process in enumerate(actors):
            mapped, private = memory_mb(process, path)
            click.echo(f"stage {number}: {mapped:.1f} MB of the file's {whole:.1f} mapped, {private:.0f} MB private")


if __name__ == "__main__":
    main()
