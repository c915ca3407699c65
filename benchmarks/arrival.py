"""How fast the engine runs networks of generators that merge by arrival: firings a second, by how many streams merge.

    python benchmarks/arrival.py [--tokens 100000] [--runs 3]

Sources make a token in a drawn time each, a merge takes what comes first, a sink works on it. "steps" are firings;
"chosen" are those that waited for any of several streams. "loaders" share a memory off the chip (`machine.off_chip`).
"""

from __future__ import annotations

from random import Random
from typing import Any

import click

from rsn.benchmarks.measuring import command_line, timed_cpu
from rsn.machine.dynamic import DynamicNetwork, DynamicRun, Ports
from rsn.machine.off_chip import OffChipMemory
from rsn.machine.steps import Steps
from rsn.tests.machine.test_dynamic import DONE, merge


def _sink(ports: Ports) -> Steps:
    while (yield ports.get())[0] is not DONE:
        yield ports.busy(1)


def merging(sources: int, tokens: int) -> DynamicNetwork:
    """Return a network of `sources` sources, a merge and a sink. tokens: how many the sources make together, in equal
    parts rounded down."""

    def source(number: int) -> Any:
        def kernel(ports: Ports) -> Steps:
            random = Random(number)
            for _ in range(tokens // sources):
                yield ports.busy(random.randrange(2 * sources))
                yield ports.put(1)
            yield ports.put(DONE)

        return kernel

    net = DynamicNetwork()
    net.unit("merge", merge)
    net.unit("sink", _sink)
    net.connect("merge", "sink", 2)
    for number in range(sources):
        net.unit(f"s{number}", source(number))
        net.connect(f"s{number}", "merge", 2)
    return net


def loading(loaders: int, tiles: int) -> DynamicNetwork:
    """Return a network of `loaders` units that load from the memory off the chip. tiles: of 4 KB, how many they load
    together, in equal parts rounded down."""
    net = DynamicNetwork()
    memory = OffChipMemory(net)

    def loader(ports: Ports) -> Steps:
        for _ in range(tiles // loaders):
            yield from memory.transfer(ports, (0, 0), 64)
        yield memory.end(ports, (0, 0))

    for number in range(loaders):
        net.unit(f"l{number}", loader)
        memory.client(f"l{number}")
    return net


def _measure(label: str, net: DynamicNetwork, runs: int) -> None:
    best, ran = min((timed_cpu(net.run) for _ in range(runs)), key=lambda found: found[0])
    assert isinstance(ran, DynamicRun)
    rate = ran.firings / best / 1e3
    click.echo(
        f"{label:<14} {best:7.3f} s {ran.firings:9} steps {rate:8.0f} thousand/s {sum(ran.chosen.values()):8} chosen"
    )


def main() -> None:
    """Print a line for each network, with the firings of a second."""
    parser = command_line(__doc__, runs=3)
    parser.add_argument("--tokens", type=int, default=100_000)
    options = parser.parse_args()
    for sources in (1, 2, 8, 32, 128):
        _measure(f"merge of {sources}", merging(sources, options.tokens), options.runs)
    for loaders in (3, 24, 384):
        _measure(f"{loaders} loaders", loading(loaders, options.tokens // 4), options.runs)


if __name__ == "__main__":
    main()
