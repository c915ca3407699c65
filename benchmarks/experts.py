"""Layers of experts, three ways: a static program of all experts, programs patched by the host, and Seq.

    python benchmarks/experts.py [mixtral qwen3] [--tokens 1 64] [--small] [--values] [--skew 0] [--json FILE]

For each layer and number of tokens, on the machine with Seq (`moe`) and on XNN, which has no Seq: what crosses the
memories, and the modelled time, launches and the host's bytes included. The bound is the time in which the router's
weights, those of the active experts, rows and results cross the memories of the machine once. Tokens choose experts at
random, all alike, or with `--skew` some more often than others.

Sizes are those of Mixtral 8x7B and of Qwen3-30B-A3B. `--small` has an eighth and less of the columns, and computes
data, too: the difference from PyTorch's module, of the largest value. `--values` computes data at full size, on `moe`
alone, with the experts that random weights choose; Qwen3 takes 10 GB of memory. Nothing depends on this computer but
the time that this takes.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import click
import numpy as np
import torch

import rsn
from rsn.base.durations import duration
from rsn.base.errors import ProgramError, UnsupportedError
from rsn.benchmarks.measuring import command_line
from rsn.host.model.expert_layer import HOWS, ExpertLayer
from rsn.hw.sim.machine import Machine, Run
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import find
from rsn.isa.overlays.moe import moe
from rsn.scheduler.build import build
from rsn.scheduler.expert_machine import MoeSizes
from rsn.scheduler.expert_programs import ExpertPrograms, ExpertSizes, counted
from rsn.scheduler.graph import ActivationFunction, Gemm, LayerGraph, Output
from rsn.scheduler.schedule import PAPER
from rsn.streams.dynamic import RandomOffChipLoad, Rates, timed
from rsn.streams.dynamic.programs.experts import ExpertLayerShape, mixture
from rsn.tests.rsnlib.expert_layers import block

LAYERS = {
    "mixtral": {"experts": 8, "each": 2, "width": 4096, "inner": 14336},
    "qwen3": {"experts": 128, "each": 8, "width": 2048, "inner": 768},
}
SMALL = {"mixtral": {"width": 256, "inner": 896}, "qwen3": {"width": 256, "inner": 96}}


@dataclass(frozen=True)
class ExpertTraffic:
    """A row of the table.

    active: experts that a token has chosen. how: how the machine runs the layer. passes: how often the weights of an
    expert are read. weights_mb, rows_mb, host_mb: MB (1e6 bytes) of weights, of activations, and of what the host
    moves. seconds: modelled. bound: the least seconds, as above. difference: the largest difference from PyTorch's
    results, relative to the largest of these; None if it was not computed. refused: why the machine cannot run the
    layer; "" if it can.
    """

    layer: str
    tokens: int
    active: int
    machine: str
    how: str
    launches: int = 0
    passes: int = 0
    weights_mb: float = 0.0
    rows_mb: float = 0.0
    host_mb: float = 0.0
    seconds: float = 0.0
    bound: float = 0.0
    difference: float | None = None
    refused: str = ""

    @property
    def text(self) -> str:
        """Return the row as one line of text, in the columns of `HEAD`; of a refused layer the reason."""
        head = f"{self.layer:8} {self.tokens:6} {self.active:6}  {self.machine:7} {self.how:9}"
        if self.refused:
            return f"{head} refused: {self.refused}"
        off = "" if self.difference is None else f"{self.difference:10.1e}"
        numbers = f"{self.launches:8} {self.passes:6} {self.weights_mb:10.2f} {self.rows_mb:8.2f} {self.host_mb:8.3f}"
        return f"{head} {numbers}  {duration(self.seconds):>10} {self.seconds / self.bound:7.2f} {off}".rstrip()


HEAD = (
    f"{'layer':8} {'tokens':>6} {'active':>6}  {'machine':7} {'how':9} {'launches':>8} {'passes':>6} "
    f"{'weights MB':>10} {'rows MB':>8} {'host MB':>8}  {'modelled':>10} {'x bound':>7} {'difference':>10}"
)


def row(of: ExpertTraffic, runs: list[Run], passes: int, host: int, host_s: float, bound: float) -> ExpertTraffic:
    """Return the row `of` with the figures of `runs`, at least one. passes: as of `ExpertTraffic`. host: bytes that the
    host moves. host_s: the seconds of that. bound: in seconds."""
    moved = {name: sum(run.bytes[name] for run in runs) for name in runs[0].bytes}
    weights = moved.get("weights_read", 0) + moved.get("lpddr_read", 0)
    return replace(
        of,
        launches=len(runs),
        passes=passes,
        weights_mb=weights / 1e6,
        rows_mb=(moved["ddr_read"] + moved["ddr_write"]) / 1e6,
        host_mb=host / 1e6,
        seconds=sum(run.latency_s for run in runs) + host_s,
        bound=bound,
    )


def on_moe(of: ExpertTraffic, sizes: MoeSizes, machine: Overlay, chosen: list[list[int]]) -> Iterator[ExpertTraffic]:
    """Yield a row for each way (`HOWS`) on the machine with Seq, and one for the layer as dynamic streams.

    of: what all of them have in common. chosen: the experts of each token, (tokens, k).
    """
    for how in HOWS:
        layer = ExpertLayer(sizes, how=how, machine=machine)
        run = layer.time(chosen)
        tile = layer.programs.tile_rows
        each = -(-sizes.tokens // tile) * sizes.experts
        passes = each if how == "static" else sum(-(-n // tile) for n in run.rows.values())
        bound = layer.programs.bound_s(len(run.rows))
        yield row(replace(of, how=how), list(run.runs), passes, run.host_bytes, run.host_s, bound)
    yield as_streams(replace(of, machine="streams", how="dynamic", bound=bound), sizes, machine, chosen)


def as_streams(of: ExpertTraffic, sizes: MoeSizes, machine: Overlay, chosen: list[list[int]]) -> ExpertTraffic:
    """Return the row of the layer as dynamic streams: all rows of an expert are in one tile, and experts run one after
    the other, as their rows are complete.

    One memory has the bandwidth of the machine's weights, and each unit of products has all of the machine's
    multipliers. chosen: the experts of each token, (tokens, k).
    """
    s = sizes
    columns = next(size for size in (128, 32, 1) if s.inner % size == 0)
    cycle = Rates().access * machine.seconds["weights_read_gbs"]  # the time of an access
    made = mixture(
        ExpertLayerShape(of.layer, s.width, s.inner, s.experts, s.each, columns),
        chosen,
        None,
        regions=1,
        compute=round(2 * cycle / machine.seconds["multiply"]),
        dtype="f32",
    )
    run = timed(made.program, depths=made.depths, rates=Rates(channels=1), with_data=False)
    weights = sum(moved for node, moved in run.traffic.items() if isinstance(node.operator, RandomOffChipLoad))
    return replace(
        of,
        launches=1,
        passes=of.active,
        weights_mb=weights / 1e6,
        rows_mb=(sum(run.traffic.values()) - weights) / 1e6,
        seconds=run.cycles * cycle,
    )


def on_xnn(of: ExpertTraffic, sizes: MoeSizes, chosen: list[list[int]]) -> Iterator[ExpertTraffic]:
    """Yield the two rows of XNN: "static", all experts in one program; "patched", a program of the router, and those of
    the active experts. A row has the reason in `refused` if XNN cannot run it.

    of: what both have in common. chosen: the experts of each token, (tokens, k).
    """
    overlay = find("xnn")
    s, seconds = sizes, overlay.seconds
    active = counted(np.array(chosen, np.int64))
    weights = 4 * (s.width * s.experts + len(active) * 3 * s.width * s.inner)
    rows = 4 * s.tokens * s.width
    bound = max(weights * seconds["lpddr_read_gbs"], rows * (seconds["ddr_read_gbs"] + seconds["ddr_write_gbs"]))
    one = ExpertSizes("experts", s.experts, s.width, s.inner, ActivationFunction(s.activation), s.tokens * s.each)
    router = Gemm("gate", "x", "logits", np.zeros((s.width, s.experts), np.float32), np.zeros(s.experts, np.float32))
    alone = LayerGraph(1, s.tokens, {"x": s.width}, (Output("logits"),), (router,))
    for how in ("static", "patched"):
        try:
            if how == "static":
                layers = [layer for e in range(s.experts) for layer in one.layers(number=str(e))]
                outputs = [Output("logits"), *(Output(f"y{e}") for e in range(s.experts))]
                graph = replace(alone, outputs=tuple(outputs), layers=(router, *layers))
                runs = [Machine(build(graph, overlay, PAPER).program).run()]
                passes, host = s.experts, rows * (s.experts + 1)  # results are read, and added up
            else:
                launches = ExpertPrograms(one, overlay).launches({e: len(pairs) for e, pairs in active.items()})
                runs = [
                    Machine(p).run() for p in (build(alone, overlay, PAPER).program, *(x.program for x in launches))
                ]
                passes = sum(len(x.parts) for x in launches)
                pairs = s.tokens * s.each
                host = 4 * s.tokens * s.experts + 3 * 4 * pairs * s.width + rows
                host += sum(run.bytes["instructions"] for run in runs[1:])
        except (ProgramError, UnsupportedError) as error:
            yield replace(of, how=how, refused=str(error))
        else:
            yield row(replace(of, how=how), runs, passes, host, host * seconds["ddr_read_gbs"], bound)


def differences(
    family: str, sizes: MoeSizes, machine: Overlay, seed: int, *, xnn: bool
) -> tuple[list[list[int]], dict[Any, float]]:
    """Return the experts that a module with random weights chooses, (tokens, k); and, by (machine, way), how far its
    results are from PyTorch's (`ExpertTraffic.difference`). family: key of `LAYERS`. seed: of the weights. xnn: compute
    the results on XNN, too."""
    torch.manual_seed(seed)
    module = block(family, None, experts=sizes.experts, each=sizes.each, width=sizes.width, inner=sizes.inner)
    x = torch.randn(1, sizes.tokens, sizes.width)
    found: dict[Any, float] = {}
    with torch.no_grad():
        warnings.simplefilter("ignore")
        expected = module(x)

        def off(y: torch.Tensor) -> float:
            return float((y - expected).abs().max() / expected.abs().max())

        for how in HOWS:
            found["moe", how] = off(ExpertLayer.of(module, (x,), how=how, machine=machine)(x))
        for how in ("static", "patched") if xnn else ():
            with rsn.compile(module, (x,), experts=how) as compiled:
                found["xnn", how] = off(compiled(x))
        _, _, index = module.gate(x.reshape(-1, sizes.width))
    return index.tolist(), found


def table(family: str, tokens: int, *, small: bool, values: bool, seed: int, skew: float) -> Iterator[ExpertTraffic]:
    """Yield the rows of one layer.

    family: a key of `LAYERS`. tokens: how many. small: with the sizes of `SMALL`, and results that are computed.
    values: compute results on the machine with Seq. seed: of random choices and weights. skew: how much more often some
    experts are chosen than others; 0 for all alike.
    """
    dims = LAYERS[family] | (SMALL[family] if small else {})
    sizes = MoeSizes("experts", tokens, activation="silu", over_chosen=True, **dims)
    machine = moe(rows=64, tile=32 if small else 128)
    found: dict[Any, float] = {}
    if small or values:
        chosen, found = differences(family, sizes, machine, seed, xnn=small)
    else:
        rng = np.random.default_rng(seed)
        liked = skew * rng.normal(size=sizes.experts) + rng.gumbel(size=(tokens, sizes.experts))
        chosen = np.argsort(-liked, axis=1)[:, : sizes.each].tolist()
    of = ExpertTraffic(family, tokens, len({e for some in chosen for e in some}), "moe", "")
    for made in (*on_moe(of, sizes, machine, chosen), *on_xnn(replace(of, machine="xnn"), sizes, chosen)):
        yield replace(made, difference=found.get((made.machine, made.how)))


def main() -> None:
    """Print a row for each layer, number of tokens, machine and way; with `--json`, write them to a file as well."""
    parser = command_line(__doc__)
    parser.add_argument("layers", nargs="*", default=list(LAYERS), help=f"of {', '.join(LAYERS)}")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--small", action="store_true", help="fewer columns, with data")
    parser.add_argument("--values", action="store_true", help="with data, on the machine with Seq; takes memory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skew", type=float, default=0.0, help="how unlike experts are liked: 0 is alike")
    parser.add_argument("--json", help="write the rows to this file")
    args = parser.parse_args()
    rows: list[ExpertTraffic] = []
    warnings.simplefilter("ignore")
    click.echo(HEAD)
    for family in args.layers:
        for tokens in args.tokens:
            for made in table(family, tokens, small=args.small, values=args.values, seed=args.seed, skew=args.skew):
                click.echo(made.text)
                rows.append(made)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump([asdict(made) for made in rows], file, indent=1)


if __name__ == "__main__":
    main()
