"""`rsn compile`: compile a preset, or the module of a Python file, to a program text or a whole model."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..assembler.printer import show
from ..base.deferred import deferred
from ..base.durations import duration
from ..base.errors import require_torch
from ..base.files import check_target as check_file
from ..base.files import write_text
from ..base.garbage import gc_frozen
from ..host.model.compiled import modelled_layers
from ..host.model.file import SUFFIX, Part, write
from ..host.tensors import check_target, save_tensors
from ..isa.overlays import find
from ..isa.program import Role
from ..isa.statistics import count
from ..rsnlib.bound_table import bound_table
from ..rsnlib.dump import SHOWN, shown
from ..rsnlib.fold import fold, fold_shapes
from ..scheduler.best import Chosen, schedule_named
from ..scheduler.bounds import bounds
from ..streams.placing.devices import DEVICES, device_named
from .progress import stepping
from .stream_programs import Named, is_region, machine_program, refuse_options
from .stream_programs import stream_program as stream_program_named

if TYPE_CHECKING:
    from ..rsnlib import capture, models, passes, precision
    from ..rsnlib import pipeline as pipelines
    from ..rsnlib.streamed import figures
    from ..rsnlib.streamed import generate as generating
    from ..rsnlib.streamed.knobs import Knobs
else:
    capture = deferred("rsn.rsnlib.capture")
    models = deferred("rsn.rsnlib.models")
    passes = deferred("rsn.rsnlib.passes")
    pipelines = deferred("rsn.rsnlib.pipeline")
    precision = deferred("rsn.rsnlib.precision")
    figures = deferred("rsn.rsnlib.streamed.figures")
    generating = deferred("rsn.rsnlib.streamed.generate")

CONVERSIONS = {"_to_copy", "to"}
"""Operators of PyTorch's part that compute nothing: they convert arguments."""
MAX_OPERATORS = 8
"""Operators of PyTorch's part that the last lines name."""
FORMER = {"lower": "dram"}
"""Former names of passes."""
STEPS = ("start PyTorch", "load the model", *SHOWN, "write")
"""The steps that a terminal shows."""


@click.command(name="compile")
@click.argument("spec")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False),
    help="program text (.rsn) to write, or a whole model (.rsnmodel)",
)
@click.option(
    "--weights", "weights_path", type=click.Path(dir_okay=False), help="packed weights (.safetensors) to write"
)
@click.option("--batch", type=click.IntRange(1), help="sequences in a batch [default: the preset's, mostly 1]")
@click.option("--seq", type=click.IntRange(1), help="rows in a sequence [default: the preset's, mostly 128]")
@click.option("--lengths", help="largest rows of each sequence, if they differ: 512,128,77 [default: --seq]")
@click.option(
    "--overlay",
    default="xnn",
    show_default=True,
    help="xnn, xnn-base (the published machine), or a file (*.toml)",
)
@click.option(
    "--schedule",
    default="paper",
    show_default=True,
    help="paper, strict, published, best (searched, and kept in the user's cache), or a file",
)
@click.option("--budget", type=float, help="with --schedule best: maximum seconds of the search [default: 30]")
@click.option(
    "--schedule-out", type=click.Path(dir_okay=False), help="file for the schedule, with the reasons for it (.toml)"
)
@click.option("--seed", default=0, show_default=True, help="seed of a preset's random weights, and of the search")
@click.option(
    "--dump-after",
    "dumped",
    multiple=True,
    type=click.Choice([*SHOWN, *FORMER, "all"]),
    help="print what a pass made (to stderr with --json); several times for several passes",
)
@click.option(
    "--kernels", type=click.Path(dir_okay=False), help="with a stream program: how fast library kernels are (.toml)"
)
@click.option(
    "--machine",
    type=click.Choice(["generated"]),
    help="make a machine for this model (FILE.py:CALLABLE) instead of using an overlay",
)
@click.option(
    "--onto",
    default="vc1902",
    show_default=True,
    type=click.Choice(list(DEVICES), case_sensitive=False),
    help="with --machine: the device that the machine must fit on",
)
@click.option(
    "--on-chip", type=click.IntRange(1), help="with --machine: most bytes on the chip [default: 75 % of the device]"
)
@click.option(
    "--set",
    "chosen",
    multiple=True,
    metavar="KNOB=VALUE",
    help="with --machine: rows, columns, depth of tiles; outward, packed; limits unroll, lanes, port",
)
@click.option(
    "--stream-program", type=click.Path(dir_okay=False), help="with --machine: file for the stream program (.py)"
)
@click.option(
    "--inputs-out",
    type=click.Path(dir_okay=False),
    help="with --machine: file for weights and example inputs (.npz), for rsn run --inputs",
)
@click.option("--explain", "explains", is_flag=True, help="show how far each segment is from the best possible time")
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
def compile_command(
    spec: str,
    output: str,
    weights_path: str | None,
    batch: int | None,
    seq: int | None,
    lengths: str | None,
    overlay: str,
    schedule: str,
    budget: float | None,
    schedule_out: str | None,
    seed: int,
    dumped: tuple[str, ...],
    kernels: str | None,
    machine: str | None,
    onto: str,
    on_chip: int | None,
    chosen: tuple[str, ...],
    stream_program: str | None,
    inputs_out: str | None,
    explains: bool,
    as_json: bool,
) -> None:
    """Compile a model, or a stream program, to a program.

    SPEC is a preset (bert-large, bert-large-encoder, minilm, vit, ncf, mlp, gemm:MxKxN), FILE.py:CALLABLE that returns
    an nn.Module, or an nn.Module and its example inputs, FILE.onnx, or a stream program (FILE.py, FILE.py:REGION).

    rsn asm makes a program (.bin) of a program text (.rsn), for rsn run. rsn serve and rsn.load take a whole model
    (.rsnmodel): programs, weights, and the part that PyTorch runs.

    The text of a stream program holds its machine: a unit for each task instance. Its file is read, not executed.

    With --machine generated, a model becomes a stream program, and that a machine of its own: a kernel for each
    operator, that share a device so that the block takes the least time. The text holds the machine.
    """
    named = stream_program_named(spec)
    if named is not None and is_region(named):
        refuse_options(OF_MODELS, "a model: FILE.py:CALLABLE, with the function that returns it")
        _compile_streams(named, output, kernels, as_json)
        return
    refuse_options(("kernels",), "a stream program (.py)")
    require_torch("compiling a model")
    if machine is not None:
        refuse_options(OF_OVERLAYS, "an overlay; --machine generated makes a machine of its own")
        files = Files(output, stream_program, inputs_out)
        _compile_generated(spec, Asked(batch, seq, seed), onto, on_chip, chosen, files, as_json)
        return
    refuse_options(OF_MACHINES, "--machine generated")
    if output.endswith(".bin"):
        raise click.UsageError(f"{output}: rsn compile writes .rsn or {SUFFIX}; rsn asm makes a .bin of the .rsn")
    if budget is not None and schedule != "best":
        raise click.UsageError("--budget goes with --schedule best")
    with stepping(f"compiling {spec} for {overlay}", STEPS) as steps, ExitStack() as stack:
        target, plan = find(overlay), schedule_named(schedule, 30.0 if budget is None else budget, seed)
        for path in (output, schedule_out):
            if path is not None:
                check_file(path)
        if weights_path is not None:
            check_target(weights_path)

        asked = {FORMER.get(name, name) for name in dumped}

        def observe(name: str, made: object) -> None:
            steps.done(name, made.why[0] if isinstance(made, Chosen) and made.why else "")
            if name in asked or "all" in asked:
                with steps.paused():
                    click.echo(f"-- after {name}\n{shown(name, made)}", err=as_json)

        is_model = output.endswith(SUFFIX)
        is_program_alone = weights_path is None and not is_model
        pipeline = pipelines.Pipeline(
            overlay=target,
            schedule=plan,
            passes=passes.Passes(observe=observe, fold=fold_shapes if is_program_alone else fold),
            lengths=None if lengths is None else _integers(lengths),
            checks_rows=False,
            progress=steps.share,
        )
        stack.enter_context(gc_frozen())  # PyTorch's modules, which the line before has loaded, stay
        steps.done(STEPS[0])
        model, example = models.load_spec(spec, batch=batch, seq=seq, seed=seed, base=models.is_base(target))
        steps.done("load the model")
        model, example, borders = precision.in_float32(capture.module_of(model), example)
        if borders is not None:
            with steps.paused():
                click.echo(f"warning: {borders.told}", err=True)
        traced = pipeline.trace(model, example)
        del model, example
        network, host = traced.network, traced.host if is_model else None
        in_pytorch = sorted({p.op for p in traced.placements if p.where == "host"} - CONVERSIONS)
        del traced  # its copy of the weights is the third one
        built = pipeline.build(network)
        if weights_path is not None:
            save_tensors(weights_path, built.weights, packed=True)
        if host is not None:
            write(output, [Part((), built.program, built.weights, host)], None, borders)
        else:
            write_text(output, show(built.program))
        if schedule_out is not None:
            write_text(schedule_out, built.chosen.show())
        steps.done("write")
    modelled = modelled_layers(built.program, network) if explains else None
    sizes = count(built.program)
    facts: dict[str, Any] = {
        "program": os.fspath(output),
        "overlay": target.name,
        "extended": built.program.extended,
        "segments": len(network.layers),
        "in_pytorch": in_pytorch,
        "weights_bytes": sum(4 * b.size for b in built.program.with_role(Role.WEIGHT)),
        "mops": sizes["mops"],
        "bytes": sizes["bytes"],
        "bound": bounds(network, target, built.program.segments).as_json(),
    }
    if modelled is not None:
        facts["modelled"] = {"latency_s": modelled.latency_s, "segments": modelled.segments}
    if as_json:
        click.echo(json.dumps(facts))
        return
    kind = _kind(built.program.extensions)
    click.echo(
        f"{output}: {len(network.layers)} segments on {target.name}, {kind} program, {sizes['mops']['total']} mOPs in "
        f"{sizes['packets']['total']} packets, {sizes['bytes']['total']} bytes"
    )
    if in_pytorch:
        more = f" and {len(in_pytorch) - MAX_OPERATORS} more" if len(in_pytorch) > MAX_OPERATORS else ""
        where = "in PyTorch" if is_model else f"in PyTorch, so not in this text ({SUFFIX} keeps it)"
        click.echo(f"{where}: {', '.join(in_pytorch[:MAX_OPERATORS])}{more}")
    if weights_path is not None:
        click.echo(f"{weights_path}: {len(built.weights)} tensors, {facts['weights_bytes'] / 1e6:.1f} MB")
    if modelled is not None and modelled.bound is not None:
        lines = bound_table(modelled.bound, modelled.segments, modelled.latency_s)
        click.echo("\n".join(["", f"modelled latency {duration(modelled.latency_s)}", *lines]))


class Asked(NamedTuple):
    """The sizes and the seed that a model is made with."""

    batch: int | None
    seq: int | None
    seed: int


class Files(NamedTuple):
    """The files that a generated machine is written to."""

    output: str
    text: str | None
    inputs: str | None


def _compile_generated(
    spec: str,
    asked: Asked,
    onto: str,
    on_chip: int | None,
    chosen: Sequence[str],
    files: Files,
    as_json: bool,
) -> None:
    """Write a machine that is generated for a model, and its program, as a text."""
    if not files.output.endswith(".rsn"):
        raise click.UsageError(f"{files.output}: a generated machine is a text (.rsn); rsn asm makes a .bin of it")
    for path in files:
        if path is not None:
            check_file(path)
    knobs = knobs_of(chosen)
    with stepping(f"generating a machine for {spec} on {onto}", generating.STEPS) as steps:
        model, example = models.load_spec(spec, batch=asked.batch, seq=asked.seq, seed=asked.seed)
        made = generating.generate(
            model,
            example,
            device_named(onto),
            knobs,
            on_chip_bytes=on_chip,
            name=Path(files.output).stem,
            done=steps.done,
        )
    write_text(files.output, show(made.machine))
    if files.text is not None:
        write_text(files.text, made.streamed.text)
    if files.inputs is not None:
        args, kwargs = (example, {}) if isinstance(example, tuple) else ((), example)
        save_tensors(files.inputs, made.streamed.tensors(*args, **kwargs))
    if as_json:
        click.echo(json.dumps({"program": files.output, **figures.facts(made)}))
        return
    units, streams = len(made.machine.overlay.units), len(made.machine.overlay.streams)
    click.echo(f"{files.output}: a machine of {units} units and {streams} streams, with its program")
    for line in figures.lines(made):
        click.echo(line)


OF_OVERLAYS = (
    "weights_path",
    "lengths",
    "overlay",
    "schedule",
    "budget",
    "schedule_out",
    "dumped",
    "explains",
)
"""Options that are about overlays, not about generated machines."""
OF_MACHINES = ("onto", "on_chip", "chosen", "stream_program", "inputs_out")
"""Options that are about generated machines."""
OF_MODELS = (
    *OF_MACHINES,
    "machine",
    "weights_path",
    "batch",
    "seq",
    "lengths",
    "overlay",
    "schedule",
    "budget",
    "schedule_out",
    "seed",
    "dumped",
    "explains",
)
"""Options that are not about stream programs."""


def _compile_streams(named: Named, output: str, kernels: str | None, as_json: bool) -> None:
    """Write the machine of a stream program, and its program, as a text."""
    if not output.endswith(".rsn"):
        raise click.UsageError(f"{output}: a stream program becomes a text (.rsn); rsn asm makes a .bin of it")
    check_file(output)
    program = machine_program(named, execute=False, kernels=kernels)
    write_text(output, show(program))
    units, streams = len(program.overlay.units), len(program.overlay.streams)
    if as_json:
        click.echo(json.dumps({"program": os.fspath(output), "units": units, "streams": streams}))
    else:
        plural = f"{units} unit{'s' * (units != 1)} and {streams} stream{'s' * (streams != 1)}"
        click.echo(f"{output}: a machine of {plural}, with its program")


def knobs_of(chosen: Sequence[str]) -> Knobs:
    """The knobs of generated machines, of which texts such as rows=32 change some. Raises `click.UsageError`."""
    known = [x.name for x in fields(generating.DEFAULT) if x.name != "of"]
    values: dict[str, Any] = {}
    for text in chosen:
        knob, equals, value = text.partition("=")
        if knob not in known or not equals or not value.isdigit():
            raise click.UsageError(f"--set {text}: KNOB=NUMBER, such as rows=32; knobs are {', '.join(known)}")
        values[knob] = int(value)
    made: Knobs = replace(generating.DEFAULT, **values)
    return made


def _kind(extensions: Sequence[int]) -> str:
    """What a program is, by the opcodes that it uses beyond those of the base overlay."""
    if not extensions:
        return "base"
    return f"extended (opcode{'s' if len(extensions) > 1 else ''} {', '.join(map(str, extensions))})"


def _integers(text: str) -> list[int]:
    try:
        return [int(n) for n in text.split(",")]
    except ValueError:
        raise click.UsageError(f"--lengths {text}: whole numbers and commas, such as 512,128,77") from None
