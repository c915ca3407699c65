"""`rsn map`: which task instances of a stream program share a tile of a machine, and where the tiles are."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import click
import numpy as np

from ..assembler.printer import show as show_program
from ..base.durations import duration
from ..base.errors import TensorError, UnsupportedError
from ..base.files import check_target, write_text
from ..host.runner import Runner
from ..host.tasks import run_tasks
from ..host.tensors import load_tensors, save_tensors
from ..hw.sim.machine import simulate
from ..isa.overlays import OVERLAYS
from ..isa.overlays.tasks.overlay import runnable, without_rates
from ..scheduler.best import schedule_named
from ..scheduler.build import build
from ..scheduler.from_streams import layers_of
from ..streams.build import Refused, task_program
from ..streams.check import report_on
from ..streams.mapping.buffering import search_buffered
from ..streams.mapping.cost import cost
from ..streams.mapping.errors import MappingError
from ..streams.mapping.graph import MappingGraph, mapping_graph
from ..streams.mapping.machine import MeshDescription, mesh
from ..streams.mapping.mapping import AppliedPrimitive, Mapped
from ..streams.mapping.place import Placement, place
from ..streams.mapping.primitives import bundle, chain
from ..streams.mapping.program import mapped_program
from ..streams.mapping.proof import prove
from ..streams.mapping.transfers import Epoch, epochs
from ..streams.reader import read_again
from ..streams.tree import Region
from .options import JSON, Count, File, Options, option, refuse, with_options
from .progress import working
from .stream_programs import Named, counted, region_of, show, stream_program, unrated

MESHES, XNN = "only with a mesh", "only with --onto xnn"
"""Kinds of options."""


class MapOptions(Options):
    """The options of `rsn map`."""

    machine: str = option("mesh4x4, a mesh (*.toml), or an overlay: xnn", "--onto", default="mesh4x4")
    output: File | None = option("program text (.rsn) of the mapped machine", "-o", "--output", of=MESHES)
    inputs: File | None = option("with --onto xnn: run there on these (.npz)", of=XNN)
    outputs: File | None = option("with --onto xnn: file to write the outputs to (.npz)", of=XNN)
    kernels: File | None = option("how fast library kernels are (.toml)")
    at_most: Count | None = option("nodes; by default, the tiles of the machine", of=MESHES)
    chains: tuple[str, ...] = option(
        "run A, then B, on one node: instances, or nodes made before; repeatable", "--chain", metavar="A,B", of=MESHES
    )
    bundles: tuple[str, ...] = option(
        "run equal instances or nodes in turn; repeatable", "--bundle", metavar="A,B,...", of=MESHES
    )
    buffered: tuple[str, ...] = option(
        "load and store while the instances of TASK compute, through buffers of two tiles; repeatable",
        "--double-buffer",
        metavar="TASK",
        of=MESHES,
    )
    no_search: bool = option("apply --chain, --bundle and --double-buffer only", of=MESHES)
    most: Count = option("findings to show of each code", default=10)
    as_json: bool = JSON


class MapCommand(click.Command):
    """Notes the order in which options are given: it is that in which primitives are applied."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        *_, order = self.make_parser(ctx).parse_args(list(args))
        ctx.meta[__name__] = [parameter.name for parameter in order]
        return super().parse_args(ctx, args)


@click.command(name="map", cls=MapCommand)
@click.argument("program")
@with_options(MapOptions)
def map_command(program: str, options: MapOptions) -> None:
    """Map a stream program onto the tiles of a machine.

    It decides which task instances of PROGRAM (FILE.py, FILE.py:REGION) run in turn on one tile, and which tile. The
    program is checked first. Then chain and bundle are applied, those of the options in their order, then those of the
    search, and the mapped program is checked again, on its physical streams. Where it takes fewer cycles and the bytes
    of a tile suffice, the search also double buffers tasks: they load and store while they compute. -o writes a machine
    with a unit for each node, for rsn asm and rsn run.

    --onto xnn finds the matrix products and attention that the program computes, and compiles them for that overlay.
    """
    named = stream_program(program)
    if named is None:
        raise click.UsageError(f"{program}: a stream program is a file FILE.py, or FILE.py:REGION")
    region = region_of(named, options.kernels)
    if options.machine in OVERLAYS:
        refuse(MESHES)
        _onto_overlay(region, options)
        return
    refuse(XNN)
    if options.output is not None:
        check_target(options.output)
    onto = mesh(options.machine)
    if options.buffered:
        region = read_again(region, options.buffered)
    _check(region, options)
    try:
        for task in options.buffered:
            if all(task != (declared.whole or declared).name for declared in region.tasks):
                raise MappingError("name", f"no task has the name {task}")
        with working("mapping") as progress:
            facts, lines, made = _mapped(named, region, onto, options, progress)
            if options.output is not None:
                write_text(options.output, show_program(runnable(mapped_program(made))))
    except MappingError as error:
        click.echo(json.dumps(_refused(region, error)) if options.as_json else error.rendered(region.source))
        raise SystemExit(1) from None
    click.echo(json.dumps(facts) if options.as_json else "\n".join(lines))


def _check(region: Region, options: MapOptions) -> None:
    """Show the findings of a program, and exit with 1, if it has errors. Raises `UnsupportedError` for sizes that each
    run gives: what a node holds, and when it loads, follows from one value."""
    if region.sizes:
        names = ", ".join(size.name for size in region.sizes)
        raise UnsupportedError(f"a mapping is for one value of {names}: write a constant, such as {names} = 8")
    report = report_on(region)
    if report.code:
        show(report, options.most, options.as_json)
        raise SystemExit(1)


def _onto_overlay(region: Region, options: MapOptions) -> None:
    """Find the layers that a program computes, compile them for an overlay, and run them if there are inputs."""
    name, inputs, outputs = options.machine, options.inputs, options.outputs
    if outputs is not None and inputs is None:
        raise click.UsageError("--outputs: only with --inputs")
    _check(region, options)
    with working("compiling"):
        layers = layers_of(task_program(region))
        given = load_tensors(inputs) if inputs is not None else {}
        needed = {*layers.weights.values(), *layers.biases.values(), *layers.graph.inputs}
        missing = sorted(needed - given.keys())
        if inputs is not None and missing:
            raise TensorError(f"{inputs}: it has no {missing[0]}")
        graph = layers.with_values(given) if inputs is not None else layers.graph
        built = build(graph, OVERLAYS[name], schedule_named("paper", 1, 0))
        latency = simulate(built.program).latency_s
    difference = None
    if inputs is not None:
        with Runner(built.program, weights=built.weights) as runner:
            made = runner.run({n: given[n] for n in graph.inputs}).outputs
        shapes = {t.name: t.type.shape for t in region.tensors}
        made = {n: value.reshape(shapes[n]) for n, value in made.items()}
        own = run_tasks(runnable(task_program(region)), {n: v for n, v in given.items() if n in needed}).outputs
        difference = max(float(np.abs(made[n] - own[n]).max() / (np.abs(own[n]).max() or 1)) for n in made)
        if outputs is not None:
            save_tensors(outputs, made)
    if options.as_json:
        facts = {"ok": True, "layers": layers.graph.show().splitlines(), "latency_s": latency}
        click.echo(json.dumps(facts | {"difference": difference}))
        return
    click.echo(f"{region.source.file} on {name}, as layers:")
    click.echo(layers.graph.show().rstrip())
    click.echo(f"latency        {duration(latency)} (modelled)")
    if difference is not None:
        click.echo(f"difference     {difference:.1e} from the stream program's own results")
    if outputs is not None:
        click.echo(f"outputs        {outputs}")


def _refused(region: Region, error: MappingError) -> dict[str, Any]:
    line, column = error.place[:2] if error.place else (None, None)
    found = {"code": error.code, "message": error.message, "notes": list(error.notes), "line": line, "column": column}
    return {"ok": False, "findings": [found | {"file": region.source.file}]}


def _mapped(
    named: Named, region: Region, machine: MeshDescription, options: MapOptions, progress: Callable[[float], None]
) -> tuple[dict[str, Any], list[str], Mapped]:
    """Map a program; return the facts, the lines to print, and the mapping."""
    order = click.get_current_context().meta[__name__]

    def start(region: Region) -> Mapped:
        """Apply the primitives of the options, in their order."""
        mapped = Mapped.start(mapping_graph(region), fuse=False)  # a unit of the machine that -o writes fuses no loops
        given = {"chains": iter(options.chains), "bundles": iter(options.bundles)}
        for option_name in order:
            if option_name not in given:
                continue
            text = next(given[option_name])
            names = _names(text)
            if option_name == "bundles":
                mapped = bundle(mapped, names, machine)
            elif len(names) == 2:
                mapped = chain(mapped, names[0], names[1], machine)
            else:
                raise click.UsageError(f"--chain {text}: two instances, such as a,b")
        return mapped

    states, bound, all_seen = 0, None, False
    if options.no_search:
        proof = prove(start(region))
        if not proof.ok:
            finding = proof.report.findings[0]
            raise MappingError("proof", finding.message, finding.place, finding.notes)
        price = cost(proof.mapped, machine)
    else:
        found = search_buffered(region, options.at_most or machine.tiles, machine, start, progress)
        proof, price, states = found.proof, found.cost, found.states
        bound, all_seen = found.bound, found.all_seen
    mapped = proof.mapped
    graph, region = mapped.graph, mapped.graph.region
    at = place(mapped, machine)
    moved = epochs(mapped, machine)
    try:
        without = without_rates(task_program(region))
    except Refused:  # functions of the file, which are not executed here
        without = []
    facts = {
        "ok": True,
        "nodes": len(graph.nodes),
        "edges": len(graph.edges),
        "idle": len(graph.idle),
        "machine": machine.name,
        "states": states,
        "least_cycles": bound,
        "all_mappings": all_seen,
        "primitives": [
            {"primitive": s.primitive, "nodes": list(s.parts), "joined": s.times, "lines": _lines(graph, s)}
            for s in mapped.steps
        ],
        "groups": [
            {"tile": list(at.tiles[k]), "instances": list(mapped.members(k))} for k in range(len(mapped.groups))
        ],
        "streams": [
            {
                "from": mapped.name(s.writer),
                "to": mapped.name(s.reader),
                "depth": s.depth,
                "logical": [edge.name for edge in s.logical],
            }
            for s in mapped.streams
        ],
        "without_rates": without,
        "cost": {name: getattr(price, name) for name in ("cycles", "off_chip", "on_chip", "ports")},
        "transfers": [
            {
                "tiles": epoch.tiles,
                "distinct": epoch.distinct,
                **{
                    side: [
                        [{"tiles": str(t), "bytes": t.size, "nodes": [mapped.name(k) for k in t.nodes]} for t in port]
                        for port in ports
                    ]
                    for side, ports in (("loads", epoch.loads), ("stores", epoch.stores))
                },
            }
            for epoch in moved
        ],
        "length": at.length,
        "bound": at.bound,
    }
    middle = [*_steps(graph, mapped), f"cost: {price}"]
    if without:
        middle.append(f"without rates: {unrated(without)}")
    if bound is not None:
        middle.append(_distance(price.cycles, bound, all_seen))
    return facts, _text(graph, mapped, machine, at, [*middle, *_transfers(moved, machine)]), mapped


def _distance(cycles: int, bound: int, all_seen: bool) -> str:
    """Say how far a mapping may be from the best one."""
    if all_seen:
        return "no mapping costs less: all were looked at"
    if cycles == bound:
        return "no mapping takes fewer cycles"
    return f"no mapping takes fewer than {bound} cycles: at most {cycles / bound:.2f} times the best"


def _transfers(moved: Sequence[Epoch], machine: MeshDescription) -> list[str]:
    """Say what is loaded and stored."""
    if not moved:
        return []
    counts = [sum(len(port) for side in (e.loads, e.stores) for port in side) for e in moved]
    ports = [max(len(side) for side in sides) for sides in ([e.loads for e in moved], [e.stores for e in moved])]
    tiles, distinct = sum(e.tiles for e in moved), sum(e.distinct for e in moved)
    shared = f", {tiles - distinct} by multicast" if distinct < tiles else ""
    text = f"off the chip: {counted(tiles, 'tile')}{shared}, in {counted(sum(counts), 'transfer')}"
    where = f"{ports[0]} of {machine.load_ports} load ports, {ports[1]} of {machine.store_ports} store ports"
    return [f"{text} and {counted(len(moved), 'epoch')}; {where}"]


def _names(text: str) -> list[str]:
    """Split a list of instances, whose names may hold commas in brackets."""
    out, depth = [""], 0
    for c in text:
        depth += (c == "[") - (c == "]")
        if c == "," and not depth:
            out.append("")
        elif c != " ":
            out[-1] += c
    return out


def _lines(graph: MappingGraph, step: AppliedPrimitive) -> list[int]:
    """Lines of the tasks that a primitive joins, or buffers."""
    if step.primitive == "double_buffer":
        return [task.place.line for task in graph.region.tasks if task.name in step.parts]
    names = [part.partition("+")[0] for part in step.parts]
    return sorted({graph.nodes[graph.node(name)].instance.task.place.line for name in names})


def _steps(graph: MappingGraph, mapped: Mapped) -> list[str]:
    out = []
    for step in mapped.steps:
        lines = ", ".join(map(str, _lines(graph, step)))
        each = f", and alike: {step.times} in all" if step.times >= len(step.parts) else ""
        out.append(f"  {step}{each} (line {lines})")
    return out


def _text(graph: MappingGraph, mapped: Mapped, machine: MeshDescription, at: Placement, middle: list[str]) -> list[str]:
    file = graph.region.source.file
    idle = f", {len(graph.idle)} idle instances" if graph.idle else ""
    out = [f"{file}: {len(graph.nodes)} nodes, {len(graph.edges)} edges{idle}", *middle]
    logical = sum(len(s.logical) for s in mapped.streams)
    count = len(mapped.streams)
    local = len(graph.edges) - logical
    out.append(f"proved after mapping: {len(mapped.groups)} nodes, {counted(count, 'physical stream')}, {local} local")
    how = "the least" if at.optimal else f"at least {at.bound}"
    out.append(f"placed on {machine.name}: {at.length} steps of streams ({how})")
    for k in range(len(mapped.groups)):
        ins, outs = mapped.ports(k)
        held = sum(h.count for h in mapped.memory(k))
        shots = counted(len(mapped.groups[k].shots), "shot")
        row, column = at.tiles[k]
        out.append(f"  tile {row},{column}: {mapped.name(k)}, {shots}, {len(ins)} in, {len(outs)} out, {held} bytes")
    return out
