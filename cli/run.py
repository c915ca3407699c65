"""`rsn run`: runs a program on a board."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import numpy.typing as npt

from ..assembler import container
from ..base import files
from ..base.deferred import deferred
from ..base.durations import duration
from ..base.errors import ProgramError, TensorError, require_torch
from ..base.tolerance import BOUND
from ..host.boards import Board, open_board
from ..host.boards.device import BoardTimeout
from ..host.model.compare import compare, show
from ..host.runner import Runner
from ..host.tasks import run_tasks
from ..host.tensors import Images, WeightFile, check_tensor_file, load_tensors, save_tensors
from ..host.whole_banks import AFTER, with_whole_banks
from ..hw.sim.breakpoint import stop
from ..hw.sim.explain import explain
from ..hw.sim.machine import Machine, Run
from ..hw.sim.timeline import Timeline
from ..hw.sim.trace import write_trace
from ..isa.overlay import Overlay
from ..isa.overlays.file import changed
from ..isa.overlays.tasks import TASKS
from ..isa.overlays.tasks.overlay import program_of, with_sizes, without_rates
from ..isa.packet import Words
from ..isa.program import Program, Role
from ..isa.statistics import count
from ..isa.verify import require
from ..rsnlib.key_spans import KeySpans
from ..streams.machines import DYNAMIC
from .operator_machines import dynamic_machine, machine_of_operators, run_dynamic
from .options import (
    BOARD,
    FILE,
    JSON,
    PROGRAMS,
    RAW,
    SIZES,
    XCLBIN,
    File,
    Options,
    SettingOption,
    given,
    option,
    refuse,
    refuse_contradictions,
    with_options,
)
from .progress import TIMING, working
from .raw import BARE, OF_IMAGE, OP_LISTS, load_raw_image, with_files, write_memory
from .stream_programs import Named, is_dynamic, is_region, machine_program, stream_program, unrated

if TYPE_CHECKING:
    from ..hw.sim import report as reports
    from ..rsnlib import models
    from ..rsnlib import pipeline as pipelines
else:
    reports = deferred("rsn.hw.sim.report")
    models = deferred("rsn.rsnlib.models")
    pipelines = deferred("rsn.rsnlib.pipeline")


Array = npt.NDArray[np.float32]


class UopOption(click.ParamType[tuple[str, int]]):
    """An option value UNIT or UNIT:NUMBER, a uOP of a unit."""

    name = "unit[:uop]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        unit, sign, number = str(value).partition(":")
        if sign and not number.isdecimal():
            self.fail(f"{value!r}: {number!r} is not the number of a uOP (0, 1, ...)", param, ctx)
        return unit, int(number or 0)


MODEL = "only with --board sim, the model of the machine"
TASKLESS = "not for stream programs"
WEIGHTS = "not for stream programs of tasks"
COMPARISON = "only with --compare"
UNCHANGED = "not for programs of dynamic streams, whose machine is as its text says"
"""Kinds of options: about the model of the machine, of no use for the machine of a stream program, of no use for one of
tasks, about comparisons, and of no use for one of operators."""


class RunOptions(Options):
    """The options of `rsn run`."""

    board: str = BOARD
    xclbin: File | None = XCLBIN
    weights: File | None = option("weights (.safetensors)", of=(PROGRAMS, WEIGHTS))
    inputs: File | None = option("inputs (.safetensors, .npz or .npy; streams also .txt)", of=PROGRAMS)
    outputs: File | None = option("file to write the outputs to (.safetensors or .npz; streams also .txt)", of=PROGRAMS)
    params: tuple[tuple[str, int], ...] = option(
        "set a run-time parameter, e.g. len[0]=17", "--param", type=SettingOption(int), of=(PROGRAMS, TASKLESS)
    )
    sizes: tuple[tuple[str, int], ...] = SIZES
    timing_only: bool = option("model only the time, without data: needs no weights and no inputs", of=MODEL)
    rates: tuple[tuple[str, float], ...] = option(
        "change a rate or depth, e.g. ddr_read_gbs=42", "--set", type=SettingOption(float), of=(MODEL, UNCHANGED)
    )
    source_rates: bool = option("charge post-ops the cycles that hw/versal's sources state", of=(MODEL, TASKLESS))
    overlay_file: File | None = option(
        "change rates and depths (.toml, as rsn overlay prints them)", of=(MODEL, TASKLESS)
    )
    kernels: File | None = option("with .py: how fast library kernels are (.toml)")
    explains: bool = option("show where the time goes, and what would shorten it", "--explain", of=(MODEL, UNCHANGED))
    trace: File | None = option("write a trace for Perfetto or chrome://tracing (.json, .json.gz)", of=MODEL)
    report: File | None = option("write a page with timeline, roofline and tables (.html)", of=MODEL)
    stop_at: tuple[str, int] | None = option(
        "stop a unit before its uOP number [0], and show what it holds",
        "--break",
        type=UopOption(),
        of=(MODEL, TASKLESS),
    )
    dump: File | None = option("with --break: file to write buffers, flags and FIFO fills to (.npz)")
    spec: str | None = option(
        "compare each segment with PyTorch; the model as for rsn compile SPEC", "--compare", of=(MODEL, TASKLESS)
    )
    bound: float | None = option(
        "with --compare: the largest difference [default: 1e-4 of the largest value]", of=COMPARISON
    )
    seed: int | None = option("with --compare: seed of a preset's random weights [default: 0]", of=COMPARISON)
    raw: bool = BARE
    overlay: str = OF_IMAGE
    mme: Path | None = OP_LISTS
    ddr: File | None = option("with --raw: file with the contents of DDR (float32)", of=RAW)
    lpddr: File | None = option("with --raw: file with the contents of LPDDR (float32)", of=RAW)
    dump_ddr: File | None = option("with --raw: file to write DDR to after the run", of=RAW)
    as_json: bool = JSON


@click.command(name="run")
@click.argument("program", type=FILE)
@with_options(RunOptions)
def run_command(program: str, options: RunOptions) -> None:
    """Run a program, or a stream program: results and time.

    PROGRAM is a file (.bin) or a stream program (FILE.py, FILE.py:REGION). Functions of the file that its tasks call
    are executed; rsn check executes nothing. FILE.py:NAME may also be a program of dynamic streams, which is built."""
    raw = options.raw
    refuse_contradictions(raw)
    _refuse_misuse(options)
    named = stream_program(program)
    if named is None and options.kernels:
        raise click.UsageError("--kernels: only with a stream program (.py); other files hold the times")
    words: Words | None = None
    if named is not None:
        loaded = _stream_program(named, options)
    elif raw:
        image = load_raw_image(Path(program), options.overlay, options.mme, runs=True)
        loaded, words = image.program, image.words
    else:
        loaded = container.read(program)
    if named is None and options.sizes:
        if loaded.overlay.base != TASKS.name:
            raise click.UsageError("--size: only for a stream program of tasks")
        loaded = with_sizes(loaded, dict(options.sizes))
    board: Board | None = None
    if loaded.overlay.whole is not None:
        _refuse_on_described_machines(loaded, options)
    else:
        with working(f"opening board {options.board}"):  # csim is built at its first use
            board = open_board(options.board, xclbin=options.xclbin)  # takes a device only with a program
    loaded = _with_overlay(loaded, options)
    for target in ("trace", "report", "dump", "dump_ddr"):
        if path := getattr(options, target):
            files.check_target(path)
    banks: dict[str, Array] | None = None
    if raw:
        loaded, memories = with_files(loaded, {"ddr": options.ddr, "lpddr": options.lpddr}, options.timing_only)
        banks = None if options.timing_only else memories
    if is_dynamic(loaded):
        with working("running"):
            bound, run = run_dynamic(loaded, options.inputs, options.weights, options.outputs, not options.timing_only)
        _picture(bound, program, options)
        _report(bound, run, None, options)
    elif options.spec:
        _compare(loaded, options)
    elif options.stop_at:
        _stop(loaded, banks, options)
    else:
        if words is None or board is None:
            run = _run(loaded, board, options)
        else:
            run = _run_raw(loaded, board, words, banks, program, options)
        machine = _picture(loaded, program, options)
        _report(loaded, run, machine, options)


def _stream_program(named: Named, options: RunOptions) -> Program:
    """Return the program of the machine that a stream program is, of tasks or of dynamic streams."""
    operators = None if is_region(named) else dynamic_machine(named)
    if operators is None:
        return machine_program(named, execute=True, kernels=options.kernels, sizes=dict(options.sizes))
    if options.sizes:
        raise click.UsageError("--size: not for programs of dynamic streams, whose shapes follow from data")
    if options.kernels:
        raise click.UsageError("--kernels: not for programs of dynamic streams, whose operators have no such rates")
    return machine_of_operators(operators, in_files=False)


MANY = 8
"""Units of a kind whose utilization is shown one by one."""


def _refuse_misuse(options: RunOptions) -> None:
    """Raise `click.UsageError` for options that contradict each other, or would have no effect."""
    if options.board != "sim":
        refuse(MODEL)
    if options.xclbin and options.board in ("sim", "csim"):
        raise click.UsageError(f"--xclbin: only for a real board, not for {options.board}")
    if options.dump and not options.stop_at:
        raise click.UsageError("--dump: only with --break")
    if not options.spec:
        refuse(COMPARISON)
    if options.bound is not None and not 0 <= options.bound < math.inf:
        raise click.UsageError(f"--bound {options.bound}: it must be 0 or more, and finite")
    results = given("trace", "report", "explains", "outputs", "dump_ddr")
    if options.stop_at and results:
        raise click.UsageError(f"{', '.join(results)}: not with --break, which does not run to the end")
    others = given("stop_at", "timing_only", "raw")
    if options.spec and others + results:
        raise click.UsageError(f"{', '.join(others + results)}: not with --compare")
    if options.timing_only and options.outputs:
        raise click.UsageError("--outputs: not with --timing-only, which computes nothing")


def _refuse_on_described_machines(program: Program, options: RunOptions) -> None:
    """Raise `click.UsageError` for options that make no sense for a machine that a stream program describes."""
    if is_dynamic(program):
        refuse(TASKLESS)
        refuse(UNCHANGED)
    else:
        refuse(TASKLESS, WEIGHTS)
    if options.board != "sim":
        raise click.UsageError(f"--board {options.board}: stream programs run on the simulator, sim; see rsn hls")


def _with_overlay(program: Program, options: RunOptions) -> Program:
    overlay = program.overlay
    if options.overlay_file:
        overlay = changed(overlay, options.overlay_file)
        if [(u.name, u.memory) for u in overlay.units] != [(u.name, u.memory) for u in program.overlay.units]:
            raise ProgramError(
                f"{options.overlay_file}: it changes units or memories, for which a program is compiled: "
                f"rsn compile --overlay {options.overlay_file}"
            )
    if options.source_rates:
        stated = dict(c.rate for c in overlay.costs(overlay) if c.rate)
        if not stated:
            raise click.UsageError(f"--source-rates: overlay {overlay.name} has no HLS sources that state cycles")
        overlay = overlay.with_rates(**stated)
    if options.rates:
        overlay = overlay.with_rates(**dict(options.rates))
    return program if overlay is program.overlay else dataclasses.replace(program, overlay=overlay)


def _run(program: Program, board: Board | None, options: RunOptions) -> Run:
    """Run a program. board: None for the machine of a stream program."""
    params = dict(options.params)
    if options.timing_only:
        with working(TIMING):
            return _machine(program, params).run()
    if options.outputs:
        check_tensor_file(options.outputs)
    if board is None:
        given = _named(program, options)
        with working("running"):
            done = run_tasks(program, given)
        if options.outputs:
            save_tensors(options.outputs, done.outputs)
        return done.run
    tensors = _inputs(program, options)
    runner = Runner(program, weights=options.weights, board=lambda: board)
    with runner, working("running") as progress:
        result = runner.run(tensors, params, progress=progress)
    if options.outputs:
        save_tensors(options.outputs, result.outputs)
    return result.run


def _inputs(program: Program, options: RunOptions) -> dict[str, npt.NDArray[np.generic]]:
    """Read the inputs, as `_named`. Raises `TensorError` if inputs or weights are missing."""
    for name, role, flag in (("weights", Role.WEIGHT, "--weights"), ("inputs", Role.INPUT, "--inputs")):
        wanted = program.with_role(role)
        if wanted and getattr(options, name) is None and not (name == "inputs" and options.spec):
            names = ", ".join(b.name for b in wanted[:3]) + (", ..." if len(wanted) > 3 else "")
            way_out = "" if options.spec else "; --timing-only runs without"
            raise TensorError(f"this program needs {flag} ({names}){way_out}")
    return _named(program, options)


def _named(program: Program, options: RunOptions) -> dict[str, npt.NDArray[np.generic]]:
    """Read the inputs. A file with one array without a name holds the only input."""
    tensors = load_tensors(options.inputs) if options.inputs else {}
    if list(tensors) == [""] and len(inputs := program.with_role(Role.INPUT)) == 1:
        return {inputs[0].name: tensors[""]}
    return tensors


def _machine(program: Program, params: Mapping[str, int]) -> Machine:
    require(program)
    return Machine(program, program.bind(params))


def _run_raw(
    program: Program, board: Board, words: Words, banks: dict[str, Array] | None, path: str, options: RunOptions
) -> Run:
    """Run a bare image on the board, and write DDR if asked for.

    words: the image as its file has it, which is what the board gets. banks: contents of the memories by bank; None
    runs without data. path: of the image.
    """
    if banks is None:
        with working(TIMING):
            return Machine(program, words).run()
    whole = with_whole_banks(program, {bank: memory.size for bank, memory in banks.items()})
    if not options.dump_ddr:  # without a dump, DDR need not be read back
        whole = dataclasses.replace(whole, buffers=tuple(b for b in whole.buffers if b.role is not Role.OUTPUT))
    kept = whole.with_role(Role.WEIGHT)
    weights = Images({b.bank: banks[b.bank] for b in kept}, kept, {}, program.overlay.address_unit)
    inputs = {b.name: banks[b.bank] for b in whole.with_role(Role.INPUT)}
    with closing(board), working("running") as progress:
        try:
            with np.errstate(all="ignore"):  # NaN and infinities are in the results
                board.load(whole, weights)
                outputs, run = board.run(words, inputs, progress=progress)
        except BoardTimeout as e:
            sizes = (x for bank, memory in banks.items() for x in (f"--{bank}-bytes", str(memory.nbytes)))
            lists = ["--mme", str(options.mme)] if options.mme else []
            command = shlex.join(["rsn", "check", "--raw", path, *lists, "--overlay", options.overlay, *sizes])
            raise BoardTimeout(f"{e}\n  help: for this image: {command}") from e
    if options.dump_ddr:
        write_memory(options.dump_ddr, outputs.get(AFTER, banks["ddr"]))
    return run


def _picture(program: Program, name: str, options: RunOptions) -> Machine | None:
    """Write the trace and the report, if asked for. Returns the run's simulator if its explanation is asked for, else
    None."""
    if not (options.explains or options.trace or options.report):
        return None
    machine = Machine(program, program.bind(dict(options.params)))
    with working("drawing"):
        if options.trace:
            write_trace(Timeline(machine), options.trace)
        if options.report:
            reports.write_report(machine, options.report, title=Path(name).name)
    return machine if options.explains else None


def _stop(program: Program, banks: dict[str, Array] | None, options: RunOptions) -> None:
    assert options.stop_at is not None
    unit, number = options.stop_at
    params = dict(options.params)
    with working("running"):
        if options.raw or options.timing_only:
            stopped = stop(_machine(program, params), banks, unit, number)
        else:
            tensors = _inputs(program, options)
            with Runner(program, weights=options.weights) as runner:
                stopped = runner.stop(tensors, unit, number, params)
    if options.dump:
        stopped.save(options.dump)
    click.echo(json.dumps(stopped.as_json()) if options.as_json else str(stopped))


def _compare(program: Program, options: RunOptions) -> None:
    """Print the comparison with PyTorch. Exits with 1 if a segment's difference is beyond the bound."""
    require_torch("--compare")
    assert options.spec is not None
    params = dict(options.params)
    program.bind(params)  # raises for an unknown parameter
    given: dict[str, Any] = _inputs(program, options)
    source = next((b for b in program.with_role(Role.INPUT) if b.view and len(b.view) == 3), None)
    if source is None or source.view is None:
        raise TensorError("--compare needs a program compiled from a model; this one has no input of 3 dimensions")
    bound = BOUND if options.bound is None else options.bound
    with working("comparing"):
        require(program)
        base = models.is_base(program.overlay)
        model, example = models.load_spec(
            options.spec, batch=source.view[0], seq=source.view[1], seed=options.seed or 0, base=base
        )
        traced = pipelines.Pipeline(overlay=program.overlay).trace(model, example)
        network, spans = traced.network, None
        if source.rows:
            network = network.with_lengths(source.rows)
        if not given:
            by_position, by_name = (example, {}) if isinstance(example, tuple) else ((), example)
            given, spans, _ = traced.host.prologue(*by_position, **by_name)
        if program.parameters:
            named = {} if spans is None else spans.parameters()
            at = {p.name: params.get(p.name, min(named.get(p.name, p.default), p.high)) for p in program.parameters}
            spans = KeySpans.of(at, network.batch)
        weights = WeightFile(options.weights, program.with_role(Role.WEIGHT)) if options.weights else {}
        rows = compare(program, weights, network, given, spans)
    if options.as_json:
        click.echo(json.dumps({"bound": bound, "segments": [vars(r) for r in rows]}))
    else:
        click.echo(show(rows, bound))
    if any(r.difference > bound for r in rows):
        raise SystemExit(1)


def _report(program: Program, run: Run, machine: Machine | None, options: RunOptions) -> None:
    if run.clock != "modelled":
        _report_timed(program, run, options)
        return
    reasons = explain(machine) if machine is not None else None
    without = without_rates(program_of(program.overlay)) if program.overlay.base == TASKS.name else []
    if options.as_json:
        facts: dict[str, Any] = {
            "latency_s": run.latency_s,
            "mops": count(program)["mops"],
            "bytes": run.bytes,
            "utilization": run.utilization,
            "critical_path": run.critical_path,
        }
        if is_dynamic(program):  # its clock is no real one
            facts = {"cycles": facts.pop("latency_s") * program.overlay.clock_hz, **facts}
        if run.chosen:
            facts["chosen_by_arrival"] = dict(run.chosen)
        if without:
            facts["without_rates"] = without
        click.echo(json.dumps(facts if reasons is None else facts | {"explain": reasons.as_json()}))
        return
    click.echo(f"latency        {_latency(program.overlay, run)}")
    if program.overlay.whole is None:
        moved = ", ".join(f"{name} {n / 1e6:.1f} MB" for name, n in run.bytes.items() if name != "instructions")
        click.echo(f"moved          {moved}, instructions {run.bytes['instructions']} bytes")
    path = ", ".join(f"{cause} {100 * share:.0f} %" for cause, share in run.critical_path.items() if share >= 0.01)
    click.echo(f"critical path  {path}")
    kinds = program.overlay.by_kind.items()
    used = [f"{kind} {_shares([run.utilization[u.name] for u in units])}" for kind, units in kinds]
    click.echo(f"utilization %  {', '.join(used)}")
    if without:
        click.echo(f"without rates  {unrated(without)}")
    if run.chosen:
        click.echo(f"by arrival     {sum(run.chosen.values())} choices: results may depend on times")
    for written in ("outputs", "dump_ddr", "trace", "report"):
        if getattr(options, written):
            click.echo(f"{written.replace('_', '-'):<14} {getattr(options, written)}")
    if reasons is not None:
        click.echo(f"\n{reasons}")


def _latency(overlay: Overlay, run: Run) -> str:
    cycles, clock = run.latency_s * overlay.clock_hz, f"{overlay.clock_hz / 1e6:g} MHz"
    if overlay.base == DYNAMIC.name:
        return f"{cycles:.12g} cycles (modelled)"
    in_cycles = f"{cycles:.0f} cycles at {clock}, " if overlay.whole is not None else ""
    return f"{duration(run.latency_s)} ({in_cycles}modelled)"


def _shares(shares: Sequence[float]) -> str:
    """The shares of units of a kind in percent; of many, the smallest and the largest."""
    if len(shares) > MANY:
        least, most = f"{100 * min(shares):.0f}", f"{100 * max(shares):.0f}"
        return f"{least}..{most} ({len(shares)} units)" if least != most else f"{most} ({len(shares)} units)"
    return "/".join(f"{100 * share:.0f}" for share in shares)


def _report_timed(program: Program, run: Run, options: RunOptions) -> None:
    """Print a run whose time was measured: the time of the machine, or of this computer, which says nothing of the
    machine."""
    measured = run.clock == "measured"
    if options.as_json:
        facts: dict[str, Any] = {"latency_s": run.latency_s if measured else None, "wall_s": run.latency_s}
        facts |= {"mops": count(program)["mops"], "bytes": run.bytes}
        click.echo(json.dumps(facts | ({"facts": run.facts} if run.facts else {})))
        return
    if measured:
        click.echo(f"latency        {duration(run.latency_s)} (measured by the host)")
    else:
        click.echo(f"wall time      {duration(run.latency_s)} on this computer; board sim models the machine's")
    width = max((len(name) for name in run.facts), default=0)
    for name, fact in run.facts.items():
        click.echo(f"{name:<{max(width, 14)}} {fact}")
    for written in ("outputs", "dump_ddr"):
        if getattr(options, written):
            click.echo(f"{written.replace('_', '-'):<14} {getattr(options, written)}")
