"""`rsn run`: a program on a board."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...hw.sim.machine import Run
    from ...isa.program import Program


class Setting(click.ParamType[tuple[str, float]]):
    """NAME=NUMBER."""

    name = "name=number"

    def __init__(self, number: type[int] | type[float]) -> None:
        self.number = number

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        name, sign, number = str(value).partition("=")
        try:
            return name.strip(), self.number(number)
        except ValueError:
            kind = "whole number" if self.number is int else "number"
            self.fail(f"{value!r}: " + (f"{number!r} is no {kind}" if sign else "expected NAME=NUMBER"), param, ctx)


@click.command(name="run")
@click.argument("program", type=click.Path(dir_okay=False))
@click.option("--board", default="sim", show_default=True, help="what to run on")
@click.option("--weights", type=click.Path(dir_okay=False), help="weights (.safetensors)")
@click.option("--inputs", type=click.Path(dir_okay=False), help="inputs (.safetensors, .npz or .npy)")
@click.option("--outputs", type=click.Path(dir_okay=False), help="where to write the outputs (.safetensors or .npz)")
@click.option("--timing-only", is_flag=True, help="model the time alone: no weights, no inputs, no results")
@click.option("--set", "rates", multiple=True, type=Setting(float), help="another rate or depth, e.g. ddr_read_gbs=42")
@click.option("--param", "params", multiple=True, type=Setting(int), help="a run-time parameter, e.g. len[0]=17")
@click.option("--raw", is_flag=True, help="PROGRAM is a bare wire image")
@click.option("--overlay", default="xnn-base", show_default=True, help="overlay of a bare image")
@click.option("--mme", type=click.Path(dir_okay=False), help="op lists of a bare image: JSON, unit name to words")
@click.option("--ddr", type=click.Path(dir_okay=False), help="DDR contents of a bare image (float32)")
@click.option("--lpddr", type=click.Path(dir_okay=False), help="LPDDR contents of a bare image (float32)")
@click.option("--dump-ddr", type=click.Path(dir_okay=False), help="where to write DDR after a bare image has run")
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
def run_command(program: str, raw: bool, rates: tuple[tuple[str, float], ...], as_json: bool, **options: Any) -> None:
    """Run PROGRAM (.bin) and report the time it takes."""
    from ..boards import open_board

    loaded = _read_raw(program, options) if raw else _read(program)
    open_board(options["board"]).close()
    if options["board"] != "sim" and (rates or raw or options["timing_only"]):
        raise click.UsageError("--set, --raw and --timing-only are for the model of the machine, --board sim")
    if rates:
        loaded = dataclasses.replace(loaded, overlay=loaded.overlay.with_rates(**dict(rates)))
    run = _run_raw(loaded, options) if raw else _run(loaded, options)
    _report(loaded, run, options, as_json)


def _read(path: str) -> Program:
    from ...assembler import container

    return container.read(path)


def _run(program: Program, options: Mapping[str, Any]) -> Run:
    from ...isa.errors import TensorError
    from ...isa.program import Role
    from ..runner import Runner
    from ..tensors import check_target, load_tensors, save_tensors

    params = dict(options["params"])
    if options["timing_only"]:
        return _time(program, params)
    if options["outputs"]:
        check_target(options["outputs"])
    inputs = program.with_role(Role.INPUT)
    for given, role, option in (("weights", Role.WEIGHT, "--weights"), ("inputs", Role.INPUT, "--inputs")):
        wanted = program.with_role(role)
        if wanted and options[given] is None:
            names = ", ".join(b.name for b in wanted[:3]) + (", ..." if len(wanted) > 3 else "")
            raise TensorError(f"this program needs {option} ({names}); --timing-only runs without")
    tensors = load_tensors(options["inputs"]) if options["inputs"] else {}
    if list(tensors) == [""] and len(inputs) == 1:
        tensors = {inputs[0].name: tensors[""]}
    with Runner(program, weights=options["weights"], board=options["board"]) as runner:
        result = runner.run(tensors, params)
    if options["outputs"]:
        save_tensors(options["outputs"], result.outputs)
    return result.run


def _time(program: Program, params: Mapping[str, int]) -> Run:
    from ...hw.sim.machine import simulate
    from ...isa.verify import require

    require(program)
    return simulate(program, None, program.bind(params))


def _read_raw(path: str, options: Mapping[str, Any]) -> Program:
    """A bare image as a program whose only buffers are the two banks."""
    from ...assembler.container import read_raw
    from ...isa.errors import ProgramError
    from ...isa.foreign import read_op_lists
    from ...isa.overlays import find
    from ...isa.program import Buffer, Layout, Program, Role

    overlay = find(options["overlay"])
    packets = read_raw(path, overlay).packets
    ops: dict[str, tuple[Any, ...]] = {}
    if options["mme"]:
        try:
            lists = json.loads(Path(options["mme"]).read_text(encoding="utf-8"))
        except ValueError as e:
            raise ProgramError(f"{options['mme']}: not JSON: {e}") from None
        ops, wrong = read_op_lists(lists, overlay)
        if wrong:
            raise ProgramError(f"{options['mme']}: {wrong[0]}")
    buffers = []
    for bank in overlay.banks:
        given = options.get(bank)
        size = Path(given).stat().st_size // 4 if given else overlay.banks[bank] // 4
        if size:
            buffers.append(Buffer(bank, bank, 0, (size,), Layout.LINEAR, Role.SCRATCH))
    return Program(overlay, packets, ops, tuple(buffers))


def _run_raw(program: Program, options: Mapping[str, Any]) -> Run:
    import numpy as np

    from ...hw.sim.machine import simulate
    from ...isa.errors import TensorError
    from ...isa.files import replacing
    from ...isa.verify import require

    if options["timing_only"]:
        return _time(program, {})
    require(program)
    banks: dict[str, npt.NDArray[np.float32]] = {}
    for bank in program.overlay.banks:
        if options.get(bank) is None:
            raise TensorError(f"a bare image needs --{bank} with the memory's contents; --timing-only runs without")
        banks[bank] = np.fromfile(options[bank], np.float32)
    run = simulate(program, banks)
    if options["dump_ddr"]:
        with replacing(options["dump_ddr"]) as temporary:
            banks["ddr"].tofile(temporary)
    return run


def _report(program: Program, run: Run, options: Mapping[str, Any], as_json: bool) -> None:
    from ...isa.statistics import count

    if as_json:
        facts = {
            "latency_s": run.latency_s,
            "mops": count(program)["mops"],
            "bytes": run.bytes,
            "utilization": run.utilization,
            "critical_path": run.critical_path,
        }
        click.echo(json.dumps(facts))
        return
    click.echo(f"latency        {run.latency_s * 1e3:.3f} ms (modelled)")
    moved = ", ".join(f"{name} {n / 1e6:.1f} MB" for name, n in run.bytes.items() if name != "instructions")
    click.echo(f"moved          {moved}, instructions {run.bytes['instructions']} bytes")
    path = ", ".join(f"{cause} {100 * share:.0f} %" for cause, share in run.critical_path.items() if share >= 0.01)
    click.echo(f"critical path  {path}")
    kinds = program.overlay.by_kind.items()
    used = [f"{kind} " + "/".join(f"{100 * run.utilization[u.name]:.0f}" for u in units) for kind, units in kinds]
    click.echo(f"utilization %  {', '.join(used)}")
    if options.get("outputs"):
        click.echo(f"outputs        {options['outputs']}")
