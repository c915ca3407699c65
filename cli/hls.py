"""`rsn hls`: the HLS C++ of a stream program, and its run on this computer."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy.typing as npt

from ..assembler import container
from ..base.durations import duration
from ..base.errors import UnsupportedError
from ..base.files import write_text
from ..host.native_tasks import NativeRegion, run_native, to_memory
from ..host.tasks import checked_inputs
from ..host.tensors import check_target, load_tensors, save_tensors
from ..hw.versal.csim.tasks import SECONDS, build_regions
from ..isa.overlays.tasks.overlay import program_of
from ..isa.overlays.tasks.program import TaskProgram
from ..streams.hls.emit import HlsProgram, cpp_program
from ..streams.hls.native import HEADERS, native_text
from ..streams.hls.project import project
from .stream_programs import machine_program, stream_program

_file = click.Path(dir_okay=False)
Array = npt.NDArray[Any]


@click.command(name="hls")
@click.argument("program", type=_file)
@click.option("-o", "--output", required=True, type=click.Path(file_okay=False), help="folder to write to")
@click.option("--run", "runs", is_flag=True, help="compile it for this computer, and run it: streams as deep as stated")
@click.option("--inputs", type=_file, help="inputs (.safetensors or .npz), also for the testbench")
@click.option("--outputs", type=_file, help="with --run: file to write the outputs to (.safetensors or .npz)")
@click.option("--seconds", default=SECONDS, show_default=True, type=click.FloatRange(0), help="limit of the run")
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
def hls_command(
    program: str, output: str, runs: bool, inputs: str | None, outputs: str | None, seconds: float, as_json: bool
) -> None:
    """Write a stream program as HLS C++, and run it here.

    PROGRAM is FILE.py, FILE.py:REGION, or its .bin. It becomes one dataflow region, with a process for each task
    instance.

    The folder holds top.cpp, kernels.h, a testbench, a script for Vitis HLS, and a README. With --run the same text is
    compiled for this computer, each process a thread; results are those of rsn run, bit for bit.
    """
    if outputs and not runs:
        raise click.UsageError("--outputs: only with --run")
    if outputs:
        check_target(outputs)
    tasks = _tasks(program)
    made = cpp_program(tasks)
    given = load_tensors(inputs) if inputs else {}
    checked = checked_inputs(tasks, given) if inputs or runs else {}
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in project(made).items():
        write_text(folder / name, text)
    _write_memories(folder, tasks, checked, "bin")
    facts: dict[str, Any] = {
        "top": f"{made.name}_top",
        "folder": str(folder),
        "processes": made.text.count("RSN_TASK("),
    }
    if runs:
        facts["seconds"] = _run(made, folder, checked, outputs, seconds)
    if as_json:
        click.echo(json.dumps(facts))
        return
    plural = f"{facts['processes']} process{'es' * (facts['processes'] != 1)}"
    click.echo(f"{folder / 'top.cpp'}: {facts['top']}, {plural}")
    if runs:
        click.echo(
            f"run on this computer in {duration(facts['seconds'])}; compile and run of an HLS tool: see README.md"
        )


def _tasks(program: str) -> TaskProgram:
    """The task program of a file. Raises `SourceError` with findings, `UnsupportedError` for another program."""
    named = stream_program(program)
    loaded = container.read(program) if named is None else machine_program(named, execute=False, kernels=None)
    if loaded.overlay.whole is None:
        raise UnsupportedError(f"{program} is for {loaded.overlay.name}; HLS C++ is made of stream programs")
    return program_of(loaded.overlay)


def _run(made: HlsProgram, folder: Path, inputs: Mapping[str, Array], outputs: str | None, seconds: float) -> float:
    """Compile and run the text natively; returns the seconds of the run."""
    with TemporaryDirectory(prefix="rsn-hls-") as place:
        path = Path(place) / "region"
        build_regions(native_text([made]), [HEADERS], path)
        region = NativeRegion(path, 0, made.program, [d.shot for d in made.draws])
        start = time.perf_counter()
        results = run_native(region, inputs, seconds)
        took = time.perf_counter() - start
    _write_memories(folder, made.program, results, "expected.bin")
    if outputs:
        save_tensors(outputs, results)
    return took


def _write_memories(folder: Path, tasks: TaskProgram, values: Mapping[str, Array], suffix: str) -> None:
    """Write the bytes of tensors for the testbench."""
    for tensor in tasks.tensors:
        if tensor.name in values:
            (folder / f"{tensor.name}.{suffix}").write_bytes(to_memory(values[tensor.name], tensor))
