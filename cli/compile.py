"""`rsn compile`: compile a preset, or the module of a Python file, to a program text or a whole model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..assembler.printer import show
from ..base.deferred import deferred
from ..base.durations import duration
from ..base.errors import require_torch
from ..base.files import check_target, write_text
from ..base.garbage import gc_frozen
from ..host.boards.several import shards_named
from ..host.model.compare import difference_table
from ..host.model.compiled import Compiled, modelled_layers
from ..host.model.compiled_shards import built_stages
from ..host.model.compiled_stages import BuiltStages
from ..host.model.file import SUFFIX, ModelVariant, SavedProgram, write
from ..host.model.following import Recipe
from ..host.tensors import check_tensor_file, save_tensors
from ..isa.overlays import find
from ..isa.program import Program, Role
from ..isa.statistics import count
from ..rsnlib import fallback
from ..rsnlib.bound_table import bound_table
from ..rsnlib.dump import SHOWN, shown
from ..rsnlib.fold import fold, fold_shapes
from ..scheduler.best import Chosen, schedule_named
from ..scheduler.bounds import bounds
from ..streams.placing.devices import DEVICES, device_named
from .operator_machines import dynamic_machine, machine_of_operators, tensor_values
from .options import JSON, STREAMS, Count, File, Options, given, option, refuse, with_options
from .progress import stepping
from .rows16 import CALLS, ROWS16, UNTIL, chosen_rows16
from .stream_programs import Named, counted, is_region, machine_program
from .stream_programs import stream_program as stream_program_named

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..rsnlib import (
        capture,
        changes,
        explain_captured,
        graph_split,
        integers,
        models,
        passes,
        precision,
        quality,
    )
    from ..rsnlib import pipeline as pipelines
    from ..rsnlib.graph_split import Split
    from ..rsnlib.pipeline import Pipeline
    from ..rsnlib.precision import Borders
    from ..rsnlib.streamed import block as blocks
    from ..rsnlib.streamed import figures
    from ..rsnlib.streamed import generate as generating
    from ..rsnlib.streamed import search as searching
    from ..rsnlib.streamed.knobs import Knobs
    from ..scheduler.graph import LayerGraph
    from ..streams.dynamic.machine import OperatorMachine
else:
    capture = deferred("rsn.rsnlib.capture")
    changes = deferred("rsn.rsnlib.changes")
    explain_captured = deferred("rsn.rsnlib.explain_captured")
    graph_split = deferred("rsn.rsnlib.graph_split")
    integers = deferred("rsn.rsnlib.integers")
    models = deferred("rsn.rsnlib.models")
    passes = deferred("rsn.rsnlib.passes")
    pipelines = deferred("rsn.rsnlib.pipeline")
    precision = deferred("rsn.rsnlib.precision")
    blocks = deferred("rsn.rsnlib.streamed.block")
    quality = deferred("rsn.rsnlib.quality")
    figures = deferred("rsn.rsnlib.streamed.figures")
    generating = deferred("rsn.rsnlib.streamed.generate")
    searching = deferred("rsn.rsnlib.streamed.search")

INTEGERS = "xnn8"
"""The overlay whose numbers are compared without a program."""
CONVERSIONS = {"_to_copy", "to"}
"""Operators of PyTorch's part that compute nothing: they convert arguments."""
MAX_OPERATORS = 8
"""Operators of PyTorch's part that the last lines name."""
FORMER = {"lower": "dram"}
"""Former names of passes."""
STEPS = ("start PyTorch", "load the model", *SHOWN, "write")
"""The steps that a terminal shows."""

MODELS = "only with a model: FILE.py:CALLABLE, with the function that returns it"
OVERLAYS = "only with an overlay; --machine generated makes a machine of its own"
MACHINES = "only with --machine generated"
WEIGHTS = "only with an overlay, or a program of dynamic streams"
"""Kinds of options: about models, about those for overlays, about those for machines of their own, and about values of
tensors."""


class CompileOptions(Options):
    """The options of `rsn compile`."""

    output: File = option("program text (.rsn) to write, or a whole model (.rsnmodel)", "-o", "--output")
    weights: File | None = option(
        "packed weights (.safetensors) to write; of dynamic streams, the values of tensors", of=WEIGHTS
    )
    batch: Count | None = option("sequences in a batch [default: the preset's, mostly 1]", of=MODELS)
    seq: Count | None = option("rows in a sequence [default: the preset's, mostly 128]", of=MODELS)
    lengths: str | None = option(
        "largest rows of each sequence, if they differ: 512,128,77 [default: --seq]", of=OVERLAYS
    )
    overlay: str = option(
        "xnn, xnn-base (the published machine), xnn2, xnn8, or a file (*.toml)",
        default="xnn",
        of=OVERLAYS,
    )
    schedule: str = option(
        "paper, strict, published, best (searched, and kept in the user's cache), or a file",
        default="paper",
        of=OVERLAYS,
    )
    budget: float | None = option("with --schedule best: maximum seconds of the search [default: 30]", of=OVERLAYS)
    schedule_out: File | None = option("file for the schedule, with the reasons for it (.toml)", of=OVERLAYS)
    seed: int = option("seed of a preset's random weights, and of the search", default=0, of=MODELS)
    dumped: tuple[str, ...] = option(
        "print what a pass made (to stderr with --json); several times for several passes",
        "--dump-after",
        type=click.Choice([*SHOWN, *FORMER, "all"]),
        of=OVERLAYS,
    )
    kernels: File | None = option("with a stream program: how fast library kernels are (.toml)", of=STREAMS)
    machine: str | None = option(
        "make a machine for this model (FILE.py:CALLABLE) instead of using an overlay",
        type=click.Choice(["generated"]),
        of=MODELS,
    )
    onto: str = option(
        "with --machine: the device that the machine must fit on",
        default="vc1902",
        type=click.Choice(list(DEVICES), case_sensitive=False),
        of=MACHINES,
    )
    on_chip: Count | None = option("with --machine: most bytes on the chip [default: 75 % of the device]", of=MACHINES)
    chosen: tuple[str, ...] = option(
        "with --machine: rows, columns, depth of tiles; outward, packed, kernels, arrays; limits unroll, lanes, port, "
        "together",
        "--set",
        metavar="KNOB=VALUE",
        of=MACHINES,
    )
    no_search: bool = option(
        "with --machine: tiles of 32 x 64 x 64 at once, not the fastest of a few", "--no-search", of=MACHINES
    )
    any_length: bool = option(
        "with --machine: for sequences of one row up to the example's, as each run states",
        "--any-length",
        of=MACHINES,
    )
    stream_program: File | None = option("with --machine: file for the stream program (.py)", of=MACHINES)
    inputs_out: File | None = option(
        "with --machine: file for weights and example inputs (.npz), for rsn run --inputs", of=MACHINES
    )
    reference: str | None = option(
        "compare the results with those of this model: SPEC of the one before it was quantised",
        "--compare",
        of=OVERLAYS,
    )
    smooth: str | None = option(
        "with --overlay xnn8: FILE.py:CALLABLE that returns calls, for factors of SmoothQuant",
        "--smooth",
        of=OVERLAYS,
    )
    rows16: str | None = option(
        ROWS16,
        "--rows16",
        metavar="PATH,...|auto",
        of=OVERLAYS,
    )
    rows16_calls: str | None = option(CALLS, of=OVERLAYS)
    rows16_until: float | None = option(UNTIL, metavar="NUMBER", of=OVERLAYS)
    perplexity: bool = option("with --compare: also the perplexity of the example's input_ids", of=OVERLAYS)
    pieces: bool = option(
        f"also take a model that the overlay cannot run as a whole: {SUFFIX} holds the pieces that it can, and PyTorch "
        "runs the rest",
        of=OVERLAYS,
    )
    boards: str | None = option(
        f"cut the layers into N stages, each for one board; auto: as few as hold them; a {SUFFIX} file has all stages",
        metavar="N|auto",
        of=OVERLAYS,
    )
    shards: str | None = option(
        "with --boards: S boards compute each stage together, each its heads and columns of every layer; auto: as many "
        "as give the shortest call",
        metavar="S|auto",
        of=OVERLAYS,
    )
    explains: bool = option("show how far each segment is from the best possible time", "--explain", of=OVERLAYS)
    as_json: bool = JSON


class Made(NamedTuple):
    """What was written: facts for --json, and the lines that are printed otherwise."""

    facts: Mapping[str, Any]
    lines: Sequence[str]


@click.command(name="compile")
@click.argument("spec")
@with_options(CompileOptions)
def compile_command(spec: str, options: CompileOptions) -> None:
    """Compile a model, or a stream program, to a program.

    SPEC is a preset (bert-large, bert-large-encoder, minilm, vit, ncf, mlp, gemm:MxKxN), FILE.py:CALLABLE that returns
    an nn.Module, or an nn.Module and its example inputs, FILE.onnx, FILE.pt2 (of torch.export.save), or a stream
    program (FILE.py, FILE.py:REGION).

    rsn asm makes a program (.bin) of a program text (.rsn), for rsn run. rsn serve and rsn.load take a whole model
    (.rsnmodel): programs, weights, and the part that PyTorch runs.

    The text of a stream program holds its machine: a unit for each task instance. Its file is read, not executed. A
    program of dynamic streams (FILE.py:NAME) is built; its machine has a unit for each operator.

    With --machine generated, a model becomes a stream program, and that a machine of its own: a kernel for each
    operator, that share a device so that the block takes the least time. The text holds the machine.
    """
    if options.overlay == INTEGERS and options.reference is not None:
        click.echo(_shown(_in_integers(spec, options), options))
        return
    if options.output is None:
        raise click.UsageError("Missing option '-o' / '--output'.")
    for name in ("smooth", "rows16", "rows16_calls", "rows16_until") if options.overlay != INTEGERS else ():
        if getattr(options, name) is not None:
            raise click.UsageError(f"--{name.replace('_', '-')}: only with --overlay {INTEGERS}")
    named = stream_program_named(spec)
    if named is not None and is_region(named):
        refuse(MODELS, OVERLAYS, MACHINES, WEIGHTS)
        made = _streams(named, options)
    elif named is not None and (operators := dynamic_machine(named)) is not None:
        refuse(MODELS, OVERLAYS, MACHINES, STREAMS)
        made = _operators(operators, options)
    else:
        refuse(STREAMS)
        require_torch("compiling a model")
        refuse(*(MACHINES,) if options.machine is None else (OVERLAYS, WEIGHTS))
        made = (_for_overlay if options.machine is None else _with_machine)(spec, options)
    click.echo(_shown(made, options))


def _shown(made: Made, options: CompileOptions) -> str:
    return json.dumps(made.facts) if options.as_json else "\n".join(made.lines)


def _in_integers(spec: str, options: CompileOptions) -> Made:
    """Compare a model in the integers of overlay xnn8 with a reference."""
    refuse(MACHINES, STREAMS)
    wrong = given("output", "weights", "lengths", "schedule", "budget", "schedule_out", "dumped", "explains")
    if wrong:
        raise click.UsageError(
            f"{', '.join(wrong)}: with --compare, overlay {INTEGERS} makes no program; its integers are compared alone"
        )
    assert options.reference is not None
    require_torch("computing a model")
    with stepping(f"computing {spec} in the integers of {INTEGERS}", ("load the model", "compute")) as steps:
        size: dict[str, Any] = {"batch": options.batch, "seq": options.seq, "seed": options.seed}
        model, example = models.load_spec(spec, **size)
        reference, _ = models.load_spec(options.reference, **size)
        calls = None if options.smooth is None else models.load_calls(options.smooth)
        tokens = _tokens(spec, model, example) if options.perplexity else None
        steps.done("load the model")
        with steps.paused():
            rows16 = chosen_rows16(options.rows16, options.rows16_calls, options.rows16_until, model, calls)
        compiled = integers.in_integers(model, example, smooth=calls, rows16=rows16)
        args, kwargs = (example, {}) if isinstance(example, tuple) else ((), example)
        ours, theirs, wanted = (partial(each, *args, **kwargs) for each in (compiled, model, reference))
        of_model, of_machine = quality.quality_in_steps(ours, theirs, wanted, tokens, lambda: compiled.visible)
        steps.done("compute")
    found = {"quantisation": of_model, INTEGERS: of_machine}
    return Made({name: vars(step) for name, step in found.items()}, difference_table(**found))


def _streams(named: Named, options: CompileOptions) -> Made:
    """Write the machine of a stream program, and its program, as a text."""
    _check_text(options.output, "a stream program becomes")
    check_target(options.output)
    return _written(
        machine_program(named, execute=False, kernels=options.kernels), options, "a stream program's machine"
    )


def _operators(machine: OperatorMachine, options: CompileOptions) -> Made:
    """Write the machine of a program of dynamic streams, and its program, as a text."""
    _check_text(options.output, "a program of dynamic streams becomes")
    check_target(options.output)
    if options.weights is not None:
        check_tensor_file(options.weights)
    made = _written(machine_of_operators(machine, in_files=True), options, "a dynamic stream program's machine")
    if options.weights is not None:
        save_tensors(options.weights, tensor_values(machine))
    return made


def _written(program: Program, options: CompileOptions, machine: str) -> Made:
    """Write the program of a machine of its own as a text. machine: what made it, for the first line."""
    write_text(options.output, show(program))
    units, streams = len(program.overlay.units), len(program.overlay.streams)
    size = f"{counted(units, 'unit')} and {counted(streams, 'stream')}"
    return Made(
        {"program": options.output, "units": units, "streams": streams},
        [f"{options.output}: {machine} of {size}, with its program"],
    )


def _with_machine(spec: str, options: CompileOptions) -> Made:
    """Write a machine that is generated for a model, and its program, as a text."""
    _check_text(options.output, "a generated machine is")
    for path in (options.output, options.stream_program, options.inputs_out):
        if path is not None:
            check_target(path)
    knobs = knobs_of(options.chosen)
    fixed = {text.partition("=")[0] for text in options.chosen}
    device = device_named(options.onto)
    about = f"generating a machine for {spec} on {options.onto}"
    with stepping(about, ("load the model", "capture")) as steps:
        model, example = models.load_spec(spec, batch=options.batch, seq=options.seq, seed=options.seed)
        steps.done("load the model")
        name = Path(options.output).stem
        block = blocks.streamed(model, example, knobs, name=name, any_length=options.any_length)
        steps.done("capture")
    tried = (knobs,) if options.no_search else searching.tile_candidates(block, knobs, fixed)
    with stepping(about, [figures.tiles(candidate) for candidate in tried]) as steps:
        made = searching.fastest(block, device, tried, on_chip_bytes=options.on_chip, done=steps.done)
    for warning in figures.warnings(made):
        click.echo(f"warning: {warning}", err=True)
    if options.stream_program is not None:
        write_text(options.stream_program, made.streamed.text)
    if options.inputs_out is not None:
        args, kwargs = (example, {}) if isinstance(example, tuple) else ((), example)
        save_tensors(options.inputs_out, made.streamed.tensors(*args, **kwargs))
    written = _written(made.machine, options, "a generated machine")
    return Made({**written.facts, **figures.facts(made)}, [*written.lines, *figures.lines(made)])


def _check_text(output: str, what: str) -> None:
    """Raise `click.UsageError` unless a file is to be a text. what: the beginning of the reason."""
    if not output.endswith(".rsn"):
        raise click.UsageError(f"{output}: {what} a text (.rsn); rsn asm makes a .bin of it")


def _for_overlay(spec: str, options: CompileOptions) -> Made:
    """Write the program of a model for an overlay, or the whole model."""
    output, weights, schedule_out = options.output, options.weights, options.schedule_out
    if output.endswith(".bin"):
        raise click.UsageError(f"{output}: rsn compile writes .rsn or {SUFFIX}; rsn asm makes a .bin of the .rsn")
    if options.perplexity and options.reference is None:
        raise click.UsageError("--perplexity goes with --compare")
    if options.budget is not None and options.schedule != "best":
        raise click.UsageError("--budget goes with --schedule best")
    boards, shards = _boards(options)
    if options.pieces:
        for flag in given("weights", "lengths", "schedule_out", "reference"):
            raise click.UsageError(f"{flag} is about one program; with --pieces there may be several")
        if not output.endswith(SUFFIX):
            raise click.UsageError(f"{output}: --pieces writes a whole model ({SUFFIX})")
    with stepping(f"compiling {spec} for {options.overlay}", STEPS) as steps, ExitStack() as stack:
        target = find(options.overlay)
        plan = schedule_named(options.schedule, 30.0 if options.budget is None else options.budget, options.seed)
        for path in (output, schedule_out):
            if path is not None:
                check_target(path)
        if weights is not None:
            check_tensor_file(weights)

        asked = {FORMER.get(name, name) for name in options.dumped}

        def observe(name: str, made: object) -> None:
            steps.done(name, made.why[0] if isinstance(made, Chosen) and made.why else "")
            if name in asked or "all" in asked:
                with steps.paused():
                    click.echo(f"-- after {name}\n{shown(name, made)}", err=options.as_json)

        is_model = output.endswith(SUFFIX)
        is_program_alone = weights is None and not is_model and options.reference is None
        pipeline = pipelines.Pipeline(
            overlay=target,
            schedule=plan,
            passes=passes.Passes(observe=observe, fold=fold_shapes if is_program_alone else fold),
            lengths=None if options.lengths is None else _integers(options.lengths),
            checks_rows=False,
            progress=steps.share,
            smooth=None if options.smooth is None else models.load_calls(options.smooth),
            boards=boards,
            shards=shards or 1,
            chooses_shards=shards is None,
        )
        stack.enter_context(gc_frozen())  # PyTorch's modules, which the line before has loaded, stay
        steps.done(STEPS[0])
        size: dict[str, Any] = {"batch": options.batch, "seq": options.seq, "seed": options.seed}
        model, example = models.load_spec(spec, **size, base=models.is_base(target))
        reference = None
        if options.reference is not None:
            reference, _ = models.load_spec(options.reference, **size, base=models.is_base(target))
        tokens = _tokens(spec, model, example) if options.perplexity else None
        steps.done("load the model")
        if options.overlay == INTEGERS:
            with steps.paused():
                given_rows16 = options.rows16, options.rows16_calls, options.rows16_until
                pipeline = replace(pipeline, rows16=chosen_rows16(*given_rows16, model, pipeline.smooth))
        model, example, borders = precision.in_float32(capture.module_of(model), example)
        if borders is not None:
            with steps.paused():
                click.echo(f"warning: {borders.told}", err=True)
        if options.pieces:
            found = pipeline.divide(model, example, whole=False)
            if isinstance(found, graph_split.Split):
                made = _in_pieces(found, pipeline, options, borders)
                steps.done("write")
                return made
            traced = found

        def loaded_again() -> tuple[Any, Any]:  # to keep it until then would take memory
            again, example = models.load_spec(spec, **size, base=models.is_base(target))
            return precision.in_float32(capture.module_of(again), example)[:2]

        command = f"--pieces, with a whole model ({SUFFIX}) as the output"
        with pipeline.proposing_pieces(loaded_again, is_half=False, command=command):
            if not options.pieces:
                traced = pipeline.trace(model, example)
            if reference is None:
                del model, example
            if boards != 1:
                made = _in_stages(built_stages(pipeline, traced), options, borders)
                steps.done("write")
                return made
            network, host = traced.network, traced.host if is_model else None
            in_pytorch = sorted({p.op for p in traced.placements if p.where == "host"} - CONVERSIONS)
            if reference is None:
                del traced  # its copy of the weights is the third one
            built = pipeline.build(network)
        compared = None
        if reference is not None:
            followed = changes.Followed(model)
            compiled = Compiled(traced, built, "sim", Recipe(followed, example, pipeline), followed.look())
            args, kwargs = (example, {}) if isinstance(example, tuple) else ((), example)
            compared = compiled.compare(*args, **kwargs, reference=reference, perplexity_of=tokens)
        if weights is not None:
            save_tensors(weights, built.weights, packed=True)
        if host is not None:
            program = SavedProgram(built.program, built.weights, host)
            write(output, [ModelVariant((), (program,))], None, borders)
        else:
            write_text(output, show(built.program))
        if schedule_out is not None:
            write_text(schedule_out, built.chosen.show())
        steps.done("write")
    modelled = modelled_layers(built.program, network) if options.explains else None
    sizes = count(built.program)
    facts: dict[str, Any] = {"program": output, **_facts(built.program, network), "in_pytorch": in_pytorch}
    if modelled is not None:
        facts["modelled"] = {"latency_s": modelled.latency_s, "segments": modelled.segments}
    if compared is not None:
        facts["compared"] = compared.as_json()
    kind = _kind(built.program.extensions)
    lines = [
        f"{output}: {counted(len(network.layers), 'segment')} on {target.name}, {kind} program, "
        f"{sizes['mops']['total']} mOPs in {sizes['packets']['total']} packets, {sizes['bytes']['total']} bytes"
    ]
    if in_pytorch:
        where = "in PyTorch" if is_model else f"in PyTorch, so not in this text ({SUFFIX} keeps it)"
        lines.append(f"{where}: {_first_of(in_pytorch)}")
    if weights is not None:
        lines.append(f"{weights}: {len(built.weights)} tensors, {facts['weights_bytes'] / 1e6:.1f} MB")
    if modelled is not None and modelled.bound is not None:
        lines += ["", f"modelled latency {duration(modelled.latency_s)}"]
        lines += bound_table(modelled.bound, modelled.segments, modelled.latency_s)
    if compared is not None:
        lines += ["", str(compared)]
    return Made(facts, lines)


def _boards(options: CompileOptions) -> tuple[int | None, int | None]:
    """The number of boards, None for the fewest, and that of shards, None to choose. Raises `click.UsageError` for
    another text, and for options that are about one program."""
    if options.boards is None:
        if options.shards is not None:
            raise click.UsageError("--shards goes with --boards")
        return 1, 1
    if options.boards != "auto" and not (options.boards.isdecimal() and int(options.boards) > 0):
        raise click.UsageError(f"--boards {options.boards}: a number of boards, or auto")
    if not options.output.endswith(SUFFIX):
        raise click.UsageError(f"{options.output}: --boards writes a whole model ({SUFFIX})")
    for flag in given("pieces", "weights", "schedule_out", "reference"):
        raise click.UsageError(f"{flag} is about one board; with --boards there may be several")
    count = None if options.boards == "auto" else int(options.boards)
    shards = options.shards or "1"
    if shards != "auto" and not (shards.isdecimal() and int(shards) > 0):
        raise click.UsageError(f"--shards {shards}: a number of boards, or auto")
    return count, shards_named(shards if shards == "auto" else int(shards), count)


def _in_stages(staged: BuiltStages, options: CompileOptions, borders: Borders | None) -> Made:
    """Write a model in stages."""
    write(options.output, [staged.part()], None, borders)
    built = list(zip(staged.built, staged.networks, strict=True))
    figures = staged.figures
    programs = [_facts(x.program, network) for x, network in built]
    stages = [asdict(of) for of in figures]
    facts: dict[str, Any] = {"programs": programs, "stages": stages}
    if staged.board_count == len(built):  # a program for each stage
        facts = {"stages": [program | of for program, of in zip(programs, stages, strict=True)]}
    if staged.tried:
        facts["shards"] = {"taken": staged.boards_each, "tried": [asdict(x) for x in staged.tried]}
    in_pytorch = sorted({p.op for p in staged.traced.placements if p.where == "host"} - CONVERSIONS)
    lines = [
        f"{options.output}: {staged.size} on {built[0][0].program.overlay.name}, "
        f"{counted(len(staged.traced.network.layers), 'segment')}",
        *staged.table(),
    ]
    if in_pytorch:
        lines.append(f"in PyTorch: {_first_of(in_pytorch)}")
    if options.explains:
        lines += ["", staged.explain()]
    return Made({"program": options.output, **facts, "in_pytorch": in_pytorch}, lines)


def _in_pieces(split: Split, pipeline: Pipeline, options: CompileOptions, borders: Borders | None) -> Made:
    """Write a model in pieces."""
    split, built = split.built(lambda traced: pipeline.build(traced.network))
    programs: list[SavedProgram | None] = []
    facts, in_pytorch = [], set[str]()
    for piece, made in zip(split.pieces, built, strict=True):
        traced = piece.traced
        if made is None or traced is None:
            programs.append(None)
            in_pytorch |= {capture.short_name(node) for node in piece.nodes}
            continue
        programs.append(SavedProgram(made.program, made.weights, traced.host))
        facts.append(_facts(made.program, traced.network))
        in_pytorch |= {p.op for p in traced.placements if p.where == "host"} - CONVERSIONS
    write(options.output, [ModelVariant((), tuple(programs), split)], None, borders)
    segments, size = sum(x["segments"] for x in facts), sum(x["bytes"]["total"] for x in facts)
    lines = [
        f"{options.output}: {len(facts)} of {len(programs)} pieces on {pipeline.overlay.name}, {segments} segments, "
        f"{sum(x['mops']['total'] for x in facts)} mOPs, {size} bytes",
        f"in PyTorch: {_first_of(sorted(in_pytorch))}",
        f"cut because of {fallback.told(split.reasons)}",
    ]
    if options.explains:
        times = [
            None if made is None or piece.traced is None else modelled_layers(made.program, piece.traced.network)
            for piece, made in zip(split.pieces, built, strict=True)
        ]
        lines += ["", explain_captured.explain_pieces(split, times)]
    return Made({"program": options.output, "pieces": facts, "in_pytorch": sorted(in_pytorch)}, lines)


def _facts(program: Program, network: LayerGraph) -> dict[str, Any]:
    """What --json tells of a program."""
    sizes = count(program)
    return {
        "overlay": program.overlay.name,
        "extended": program.extended,
        "segments": len(network.layers),
        "weights_bytes": sum(4 * b.size for b in program.with_role(Role.WEIGHT)),
        "mops": sizes["mops"],
        "bytes": sizes["bytes"],
        "bound": bounds(network, program.overlay, program.segments).as_json(),
    }


def _first_of(operators: Sequence[str]) -> str:
    """The first of some operators, and how many more there are."""
    more = f" and {len(operators) - MAX_OPERATORS} more" if len(operators) > MAX_OPERATORS else ""
    return ", ".join(operators[:MAX_OPERATORS]) + more


def _tokens(spec: str, model: nn.Module, example: tuple[Any, ...] | dict[str, Any]) -> Tensor:
    """The tokens of a model's example, without padding. Raises `click.UsageError` if it has none."""
    named = example
    if not isinstance(named, dict):
        named = dict(zip(signature(model.forward).parameters, named, strict=False))
    if "input_ids" not in named:
        raise click.UsageError(f"--perplexity: the example of {spec} has no input_ids")
    tokens, mask = named["input_ids"], named.get("attention_mask")
    made: Tensor = tokens if mask is None else tokens.masked_fill(mask == 0, quality.NO_TOKEN)
    return made


def knobs_of(chosen: Sequence[str]) -> Knobs:
    """Return the knobs of generated machines, at their defaults but for those in `chosen`: texts such as rows=32, with
    whole numbers. Raises `click.UsageError` for another text or an unknown knob."""
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
