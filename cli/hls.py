"""`rsn hls`: the HLS C++ of a stream program or of a dynamic program, and its run on this computer."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy.typing as npt

from ..assembler import container
from ..base.durations import duration
from ..base.errors import BoardError, ProgramError, UnsupportedError
from ..base.files import check_target, write_text
from ..host.native_dynamic import build_dynamic, dynamic_memories, run_native_dynamic, written_tensors
from ..host.native_tasks import NativeRegion, run_native, to_memory
from ..host.tasks import checked_inputs
from ..host.tensors import check_tensor_file, load_tensors, save_tensors
from ..hw.sim.tasks import in_room
from ..hw.versal.csim.tasks import PROGRAM, SECONDS, build_regions
from ..isa.overlays.tasks import TASKS
from ..isa.overlays.tasks.overlay import checked_sizes, program_of, size_values
from ..isa.overlays.tasks.program import TaskProgram
from ..streams.build import build
from ..streams.check import report_on
from ..streams.datapath import VariantChoice
from ..streams.dynamic.hls.emit import dynamic_cpp
from ..streams.dynamic.hls.project import dynamic_project
from ..streams.dynamic.machine import OperatorMachine
from ..streams.dynamic.machine.overlay import bound_in
from ..streams.dynamic.machine.run import given_tensors
from ..streams.hls.emit import HlsProgram, cpp_program
from ..streams.hls.native import HEADERS, native_text
from ..streams.hls.project import DEVICE, device_of, project
from ..streams.hls.variants import VariantCalls
from ..streams.placing.devices import device_named
from ..streams.tree import Region
from .operator_machines import TEXT, dynamic_machine, read_values, write_results
from .options import FILE, JSON, SIZES, File, Options, option, with_options
from .stream_programs import is_dynamic, is_region, region_of, stream_program

Array = npt.NDArray[Any]


class HlsOptions(Options):
    """The options of `rsn hls`."""

    output: str = option("folder to write to", "-o", "--output", required=True, type=click.Path(file_okay=False))
    runs: bool = option("compile it for this computer, and run it: streams as deep as stated", "--run")
    inputs: File | None = option("inputs (.safetensors or .npz; streams also .txt), also for the testbench")
    outputs: File | None = option("with --run: file to write the outputs to (.safetensors or .npz; streams also .txt)")
    onto: str | None = option("device: part, clock, memory channels  [default: that of the program, else vc1902]")
    kernels: File | None = option("with .py: how fast library kernels are (.toml)")
    sizes: tuple[tuple[str, int], ...] = SIZES
    seconds: float = option("limit of the run", default=SECONDS, type=click.FloatRange(0))
    as_json: bool = JSON


@click.command(name="hls")
@click.argument("program", type=FILE)
@with_options(HlsOptions)
def hls_command(program: str, options: HlsOptions) -> None:
    """Write a stream program as HLS C++, and run it here.

    PROGRAM is FILE.py, FILE.py:REGION, or its .bin. It becomes one dataflow region, with a process for each task
    instance. FILE.py:NAME, which is executed, or the .bin may also be of a program of dynamic streams: a process for
    each operator.

    The folder holds top.cpp, kernels.h, a testbench, a script for Vitis HLS, the memory channels of the ports, and a
    README. With --run the same text is
    compiled for this computer, each process a thread; results are those of rsn run, bit for bit.
    """
    if options.outputs and not options.runs:
        raise click.UsageError("--outputs: only with --run")
    machine = _machine_of_operators(program)
    if machine is not None:
        if options.sizes:
            raise click.UsageError("--size: not for programs of dynamic streams, whose shapes follow from data")
        _write_dynamic(machine, options)
        return
    if options.outputs:
        check_tensor_file(options.outputs)
    tasks, calls, stated = _tasks(program, options.kernels)
    sizes = checked_sizes(tasks, {**stated, **dict(options.sizes)})
    device = device_of(tasks, options.onto)
    if options.onto:
        tasks = replace(tasks, clock_hz=device.mhz * 1e6)
    made = cpp_program(tasks, float_add=device.float_add, calls=calls)
    given = load_tensors(options.inputs) if options.inputs else {}
    checked = checked_inputs(tasks, given, sizes) if options.inputs or options.runs else {}
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in project(made, device, sizes).items():
        write_text(folder / name, text)
    _write_memories(folder, tasks, checked, "bin", sizes)
    processes = made.text.count("RSN_TASK(")
    took = _run(made, folder, checked, options.outputs, options.seconds, sizes) if options.runs else None
    _show(made.name, folder, processes, took, options.as_json)


def _show(name: str, folder: Path, processes: int, seconds: float | None, as_json: bool) -> None:
    """Print what was written. seconds: of the native run, None if there was none."""
    facts: dict[str, Any] = {"top": f"{name}_top", "folder": str(folder), "processes": processes}
    if as_json:
        click.echo(json.dumps(facts if seconds is None else {**facts, "seconds": seconds}))
        return
    click.echo(f"{folder / 'top.cpp'}: {facts['top']}, {processes} process{'es' * (processes != 1)}")
    if seconds is not None:
        click.echo(f"run on this computer in {duration(seconds)}; compile and run of an HLS tool: see README.md")


def _write_dynamic(machine: OperatorMachine, options: HlsOptions) -> None:
    """Write the C++ of a program of dynamic streams, and run it here."""
    if options.kernels:
        raise click.UsageError("--kernels: not for programs of dynamic streams, whose operators have no such rates")
    if options.outputs:
        (check_target if options.outputs.endswith(TEXT) else check_tensor_file)(options.outputs)
    device = device_named(options.onto) if options.onto else DEVICE
    made = dynamic_cpp(machine.program, machine.name, machine.depths, device.float_add)
    has_values = bool(options.inputs or options.runs)
    streams, given = read_values(machine, options.inputs) if has_values else ({}, {})
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in dynamic_project(made, device).items():
        write_text(folder / name, text)
    if not has_values:
        _show(made.name, folder, made.processes, None, options.as_json)
        return
    tensors = given_tensors(machine, given, with_data=True)
    for memory, content in dynamic_memories(made, streams, tensors).items():
        if not memory.is_result:
            (folder / f"{made.memories[memory]}.bin").write_bytes(content)
    took = None
    if options.runs:
        with TemporaryDirectory(prefix="rsn-hls-") as place:
            path = Path(place) / "region"
            build_dynamic([made], path)
            start = time.perf_counter()
            done = run_native_dynamic(path, 0, made, streams, options.seconds, tensors)
            took = time.perf_counter() - start
        for tensor, content in written_tensors(made, done).items():
            (folder / f"{tensor}.expected.bin").write_bytes(content)
        if options.outputs:
            stored = {name: done.tensor(tensor) for name, tensor in machine.written.items()}
            results = {name: done.tokens[name] for name in machine.program.outputs}
            write_results(options.outputs, machine, results, {}, stored)
    _show(made.name, folder, made.processes, took, options.as_json)


def _machine_of_operators(program: str) -> OperatorMachine | None:
    """Return the machine of operators of a file; None for another program."""
    named = stream_program(program)
    if named is not None:
        return None if is_region(named) else dynamic_machine(named)
    loaded = container.read(program)
    return bound_in(loaded.overlay).machine if is_dynamic(loaded) else None


def _tasks(program: str, kernels: str | None) -> tuple[TaskProgram, VariantCalls, dict[str, int]]:
    """The task program of a file, the variants of kernels that it calls, and the values of sizes that it states.
    kernels: path of a file with rates. Raises `SourceError` with findings, and `UnsupportedError` for another
    program."""
    named = stream_program(program)
    if named is None and kernels:
        raise click.UsageError("--kernels: only with a stream program (.py); other files hold the rates")
    if named is not None:
        region = region_of(named, kernels)
        made = build(report_on(region))
        return program_of(made.overlay), _calls(region), size_values(made)
    loaded = container.read(program)
    if loaded.overlay.base != TASKS.name:
        raise UnsupportedError(f"{program} is for {loaded.overlay.name}; HLS C++ is made of stream programs")
    return program_of(loaded.overlay), {}, size_values(loaded)


def _calls(region: Region) -> VariantCalls:
    """The variants that a region calls. Raises `ProgramError` for one without C++."""
    calls: dict[tuple[str, str], VariantChoice] = {}
    for context in region.contexts.values():
        for choices in context.reading.choices.values():
            for variant in (choice.variant for choice in choices):
                if variant is not None and not variant.source:
                    note = 'add source = "HEADER.h" and call = "FUNCTION" to its [[variants]]'
                    raise ProgramError(f"--kernels: there is no C++ of the variant {variant.name}: {note}")
        calls |= context.reading.calls
    return calls


def _run(
    made: HlsProgram,
    folder: Path,
    inputs: Mapping[str, Array],
    outputs: str | None,
    seconds: float,
    sizes: Mapping[str, int],
) -> float:
    """Compile and run the text natively; returns the seconds of the run. sizes: values of those that it takes. Raises
    `ProgramError` if the compiler refuses the C++ of variants, and `BoardError` if it refuses other C++, or if there is
    none."""
    with TemporaryDirectory(prefix="rsn-hls-") as place:
        path = Path(place) / "region"
        try:
            build_regions(native_text([made]), [HEADERS, *{header.parent for header in made.headers}], path)
        except BoardError as error:
            said = str(error)
            if not made.variants or not said.startswith(PROGRAM):
                raise
            names = [v.name for v in made.variants if f"variants::{v.function}(" in said]
            names = names or [v.name for v in made.variants]
            of = f"variant{'s' * (len(names) > 1)} {', '.join(names)}"
            raise ProgramError(f"the compiler refuses the C++ of the {of}: {said}") from None
        region = NativeRegion(path, 0, made.program, [d.shot for d in made.draws], [size.size for size in made.sizes])
        start = time.perf_counter()
        results = run_native(region, inputs, seconds, sizes)
        took = time.perf_counter() - start
    _write_memories(folder, made.program, results, "expected.bin", sizes)
    if outputs:
        save_tensors(outputs, results)
    return took


def _write_memories(
    folder: Path, tasks: TaskProgram, values: Mapping[str, Array], suffix: str, sizes: Mapping[str, int]
) -> None:
    """Write the bytes of tensors for the testbench. sizes: values of those that the run takes."""
    for tensor in tasks.tensors:
        if tensor.name in values:
            lying = in_room(values[tensor.name], tensor, sizes)
            (folder / f"{tensor.name}.{suffix}").write_bytes(to_memory(lying, tensor))
