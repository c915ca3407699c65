"""Depths of FIFOs on random graphs of kernels: equations, start times, normal depths, and the search of `rsn depths`.

    python benchmarks/stream_fifos.py [pairs] [paths] [graphs] [blocks] [buffers] [--graphs 500]

Without names of tables it prints all of them. All cycles are modelled, all bits counted; nothing is measured on a
device. The kernels have D, II and T, as in StreamTensor (MICRO'25, 5.3.2); each is a task of a stream program.

pairs: printed and exact equations against runs of two kernels, cycle by cycle.
paths: the linear program over paths (equations 3 to 5, as printed) against the one over start times.
graphs: every way to choose depths, tried on the timed engine: bits of all FIFOs, programs that wait for ever, programs
in which a put waits for a free slot, and the latency relative to endless FIFOs.
blocks: the same for blocks of four models from PyTorch; it takes torch.
buffers: converters with one buffer and with two (`Knobs.ping_pong`), at the depths as emitted, and at normal ones.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import nn

from rsn.benchmarks.compared.path_delays import path_delays
from rsn.benchmarks.measuring import command_line, print_tables
from rsn.rsnlib.streamed import Knobs, streamed
from rsn.streams.fifos.equations import NEXT_CYCLE, max_tokens
from rsn.streams.fifos.normal import fast_depths, normal_depths, waiting
from rsn.streams.fifos.starts import KernelGraph, StartTimes, conservative, schedule
from rsn.streams.sizing.depths import sizes
from rsn.streams.sizing.program import SizedProgram
from rsn.streams.timing.timed import BeatTiming, TimedProgram
from rsn.tests.rsnlib.scaled_blocks import SCALED
from rsn.tests.rsnlib.streamed_blocks import block
from rsn.tests.streams.fifo_programs import program_of, sized
from rsn.tests.streams.fifo_runs import random_case, random_graph, run

PAIRS = 4000


def pairs(options: Namespace) -> Iterator[str]:
    """Yield the lines of a table: in how many random pairs of kernels the printed equations (StreamTensor, 5.3.2)
    differ from the peak of a run. options: not read."""
    random = Random(1)
    drawn = {"(1)": 0, "(2)": 0}
    more, fewer, slower = dict(drawn), dict(drawn), dict(drawn)
    wrong = 0
    for _ in range(PAIRS):
        source, target, delay = random_case(random)
        name = "(1)" if source.interval <= target.interval else "(2)"
        paper, exact = max_tokens(source, target, delay, "paper"), max_tokens(source, target, delay)
        peak, end = run(source, target, delay, None)
        drawn[name] += 1
        more[name] += paper > exact
        fewer[name] += paper < exact
        slower[name] += run(source, target, delay, max(1, paper))[1] > end
        wrong += exact != peak
    yield f"{'equation':10}{'pairs':>8}{'one more':>10}{'one fewer':>11}{'slower run':>12}"
    for name in drawn:
        yield f"{name:10}{drawn[name]:>8}{more[name]:>10}{fewer[name]:>11}{slower[name]:>12}"
    yield f"exact equations: {wrong} of {PAIRS} differ from the peak of the run"


def paths(options: Namespace) -> Iterator[str]:
    """Yield lines: in how many random graphs the linear program over paths (StreamTensor, equations 3 to 5) differs
    from that over start times. options: not read."""
    random = Random(4)
    equal, less, largest = 0, 0, (0.0, 0.0)
    count = 400
    for _ in range(count):
        graph = random_graph(random, most=8, one_source=True)
        starts, found = float(schedule(graph, "cycles").objective()), path_delays(graph)
        if found.objective < starts - 1e-3:
            less += 1
            assert not found.schedule
            largest = max(largest, (starts, found.objective), key=lambda pair: pair[0] - pair[1])
        else:
            equal += 1
    yield f"{count} graphs with one source: {equal} equal; over paths smaller in {less}, none of them a schedule"
    yield f"largest difference: {largest[1]:.0f} over paths, {largest[0]:.0f} over start times"


@dataclass
class DepthMethod:
    """What one way to choose depths came to. latency: sum of the latencies relative to endless FIFOs; ended: programs
    that end."""

    bits: int = 0
    deadlocks: int = 0
    waits: int = 0
    latency: float = 0.0
    ended: int = 0
    longest: float = 0.0


def _try(
    row: DepthMethod, program: SizedProgram, depths: Mapping[str, int], starts: Mapping[int, int], endless: int
) -> None:
    row.bits += program.bits(depths)
    (bodies,) = program.outcomes.bodies
    found = TimedProgram(waiting(bodies, starts), program.packing).run(program.of_streams(depths))
    if not isinstance(found, BeatTiming):
        # Some beats cannot fire at once with these depths; they are taken apart, if that helps.
        times = program.times(depths)
        if times is None:
            row.deadlocks += 1
            return
        (found,) = times.runs
    row.ended += 1
    row.waits += any(found.full.values())
    row.latency += found.latency / endless
    row.longest = max(row.longest, found.latency / endless)


def _named(depths: Sequence[int]) -> dict[str, int]:
    return {f"s{k}": depth for k, depth in enumerate(depths)}


def graphs(options: Namespace) -> Iterator[str]:
    """Yield the lines of a table: bits, deadlocks and latency for each way to choose depths, over `options.graphs`
    random graphs."""
    count = options.graphs
    names = ("printed", "exact", "exact, engine", "conservative", "normal", "normal, later", "lowered", "fast", "safe")
    rows = {name: DepthMethod() for name in names}
    random = Random(11)
    tried = unproved = 0
    while tried < count:
        graph = random_graph(random)
        if not graph.fifos:
            continue
        tried += 1
        program = sized(program_of(graph))
        times = program.together({})
        assert times is not None
        endless = times.latency
        soon = StartTimes(graph, graph.as_soon_as_possible())
        _try(rows["printed"], program, _named(soon.depths("paper")), {}, endless)
        _try(rows["exact"], program, _named(soon.depths()), {}, endless)
        _try(rows["exact, engine"], program, _named(soon.depths("exact", NEXT_CYCLE)), {}, endless)
        slowed: KernelGraph = conservative(graph)
        slow = StartTimes(slowed, slowed.as_soon_as_possible())
        _try(rows["conservative"], sized(program_of(slowed)), _named(slow.depths("exact", NEXT_CYCLE)), {}, endless)
        for name, later in (("normal", False), ("normal, later", True)):
            found = normal_depths(program, later)
            _try(rows[name], program, found.depths, found.starts, endless)
        _try(rows["lowered"], program, fast_depths(program).levels, {}, endless)
        searched = sizes(program)
        assert searched.fast is not None
        unproved += not searched.fast.proved
        _try(rows["fast"], program, searched.fast.levels, {}, endless)
        _try(rows["safe"], program, searched.safe.levels, {}, endless)
    yield f"{count} graphs of up to 9 kernels, T = 24, II 1 to 3, D 1 to 40, 8 to 128 bits a token"
    yield f"{'depths':16}{'bits':>10}{'wait for ever':>15}{'put waits':>11}{'latency':>9}{'worst':>8}"
    for name, row in rows.items():
        mean = row.latency / row.ended if row.ended else 0.0
        yield f"{name:16}{row.bits:>10}{row.deadlocks:>15}{row.waits:>11}{mean:>9.3f}{row.longest:>8.2f}"
    yield f"fast: proved to be the fewest bits in {count - unproved} of {count}"


def blocks(options: Namespace) -> Iterator[str]:
    """Yield the lines of a table: bytes of FIFOs and cycles of blocks from PyTorch. options: not read."""
    yield "Blocks of four models, 32 rows, tiles of 8 x 8, f32 (bytes counted, cycles modelled)"
    yield "  safe: as emitted; later: normal, with later starts; bound: no fast depths up to the normal ones take less"
    head = f"{'model':8}{'FIFOs':>6}{'safe B':>10}{'cycles':>8}{'normal B':>10}{'later B':>10}"
    yield head + f"{'fast B':>9}{'bound B':>9}{'cycles':>8}{'5 % later':>11}{'cycles':>8}"
    for name, shape in SCALED.items():
        example = (torch.zeros(1, 32, shape["hidden_size"]),)
        made = streamed(block(name, "sdpa", **shape), example, Knobs(rows=8, columns=8, depth=8))
        program = made.sized()
        declared, soon, fast = program.times(program.declared), normal_depths(program), fast_depths(program)
        assert declared is not None
        later, slower = normal_depths(program, later=True), fast_depths(program, slack=0.05)
        times = program.times(slower.levels)
        assert times is not None
        yield (
            f"{name:8}{len(program.groups):>6}{program.bits(program.declared) // 8:>10}{declared.latency:>8}"
            f"{soon.bits // 8:>10}{later.bits // 8:>10}{fast.cost // 8:>9}{fast.bound // 8:>9}{soon.latency:>8}"
            f"{slower.cost // 8:>11}{times.latency:>8}"
        )


def buffers(options: Namespace) -> Iterator[str]:
    """Yield the lines of a table: bytes and cycles of programs whose converters have one buffer or two. options: not
    read."""
    torch.manual_seed(0)
    small = Knobs(rows=4, columns=16, depth=16, packed=1)
    shape_of_block = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    products = [nn.Sequential(*(nn.Linear(n, n) for _ in range(3))) for n in (128, 256)]
    wide = [
        nn.Sequential(nn.LayerNorm(n), nn.Linear(n, m), nn.GELU(), nn.Linear(m, n)) for n, m in ((128, 128), (64, 256))
    ]
    cases: dict[str, tuple[nn.Module, tuple[int, ...], Knobs]] = {
        "products 128": (products[0], (64, 128), small),
        "products 256": (products[1], (32, 256), replace(small, unroll=1024, port=1024)),
        "perceptron 128": (wide[0], (64, 128), small),
        "perceptron 64": (wide[1], (64, 64), small),
        "gpt2": (block("gpt2", "sdpa", **shape_of_block), (1, 32, 64), replace(small, rows=8)),
        "llama": (block("llama", "sdpa", **shape_of_block, num_key_value_heads=2), (1, 32, 64), replace(small, rows=8)),
    }
    yield "Converters with one buffer or two: bytes of streams, cycles (modelled)"
    yield f"{'':16}{'emitted B':>10}{'one':>8}{'two':>8}{'%':>7}{'normal B':>10}{'one':>8}{'two':>8}{'%':>7}"
    for name, (module, shape, knobs) in cases.items():
        one = streamed(module.eval(), (torch.randn(shape),), knobs)
        both = [one, one.changed(replace(knobs, ping_pong=1))]
        row = f"{name:16}"
        for made in (both, [x.with_normal_depths() for x in both]):
            programs = [x.sized() for x in made]
            times = [program.times(program.declared) for program in programs]
            first, second = (time.latency for time in times if time is not None)
            row += f"{programs[0].bits(programs[0].declared) // 8:>10}{first:>8}{second:>8}"
            row += f"{100 * (second / first - 1):>+7.1f}"
        yield row


TABLES = {"pairs": pairs, "paths": paths, "graphs": graphs, "blocks": blocks, "buffers": buffers}


def main() -> None:
    """Print the tables."""
    parser = command_line(__doc__)
    parser.add_argument("--graphs", type=int, default=50, help="random graphs of that table")
    print_tables(parser, TABLES)


if __name__ == "__main__":
    main()
