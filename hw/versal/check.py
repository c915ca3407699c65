"""Check, without AMD's tools, that the C++ sources, system.cfg, hls.cfg and the hosts' tables of the kernel agree, and
that HLS knows the pragmas.

    python -m rsn.hw.versal.check        # or, here: make check

The kernel's ports are read from its signature in the header. The graph's ports come from running its constructor on
this computer.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...base.deferred import deferred
from ...base.errors import BoardError, RsnError
from ...isa.overlay import Overlay
from ...isa.overlays.xnn8 import XNN8
from ...isa.overlays.xnn8 import placement as xnn8_placement
from ...isa.overlays.xnn8.formats import ENGINES, PAIRS
from ...isa.overlays.xnn8.formats import LANES as XNN8_LANES
from ...isa.versal.board import ARGUMENTS, FINGERPRINT, KERNEL, ArrayStream, KernelArgument, lanes
from ...isa.versal.tiles import BEAT, BEATS, LANES
from . import check_pairs, check_places, pragmas
from .csim.build import ELSEWHERE, FLAGS, MACHINES, MachineSources, compiled, compiler
from .csim.machine import MADE_FOR
from .sources import GENERATED, sources

if TYPE_CHECKING:
    from .hlscheck import checker
else:
    checker = deferred("rsn.hw.versal.hlscheck.checker")

PORTS = """\
#include <cstdio>
#include <memory>
#include "csim/places.h"
#include RSN_GRAPH
int main() {
    adf::native::Design design;
    adf::native::Design::current = &design;
    const auto graph = std::make_unique<RSN_ENGINES>();
    for (const auto &plio : design.inputs) std::printf("in %s %u\\n", plio->plio.c_str(), plio->bits);
    for (const auto &plio : design.outputs) std::printf("out %s %u\\n", plio->plio.c_str(), plio->bits);
    for (const auto &kernel : design.kernels) std::printf("kernel %zu\\n", kernel->in.size());
    rsn::csim::print_places(design);
}
"""
"""C++ program that prints PLIOs and kernels of the graph, and where they lie."""
WORDS = """\
#include "pl/types.h"
using namespace rsn::xnn;
static_assert(sizeof(Line) * 8 == 512 && sizeof(Beat) * 8 == 1024 && sizeof(Lane) * 8 == 64);
"""
WORDS_XNN8 = """\
#include "xnn8/units.h"
using namespace rsn::xnn8::pl;
static_assert(sizeof(Shorts) * 8 == 256 && sizeof(Beat128) * 8 == 128);
"""
"""The widths of words of ports, as hosts and linker expect them."""


@dataclass(frozen=True)
class Interfaces:
    """What the parts of a machine must agree on.

    header, graph: paths of the headers with the kernel's signature and with the graph, below the folder of all sources.
    engines: name of the graph's class in C++. words: C++ that does not compile if words of ports have other widths.
    config: path of the linker's configuration. ports: dimensions of an array of streams in the signature. arguments:
    those of the kernel, in the order in which hosts set them. streams: all between kernel and graph. kernels: the
    number of kernels of the graph, by their number of inputs."""

    header: str
    graph: str
    engines: str
    words: str
    config: str
    ports: tuple[int, ...]
    arguments: tuple[KernelArgument, ...]
    streams: tuple[ArrayStream, ...]
    kernels: Mapping[int, int]


def interfaces_of(overlay: Overlay) -> Interfaces:
    """Return what the parts of a machine must agree on. overlay: the one that the machine is for."""
    if overlay is XNN8:
        streams = tuple(plio.stream for plio in xnn8_placement.plios())
        of_xnn8 = "xnn8/dma_hls.h", "xnn8/graph.h", "rsn::xnn8::Engines", WORDS_XNN8, "xnn8/system.cfg"
        tiles = 2 * ENGINES * XNN8_LANES * PAIRS
        return Interfaces(*of_xnn8, (XNN8_LANES, 2), xnn8_placement.ARGUMENTS, streams, {3: tiles})
    mmes = len(overlay.by_kind["MME"])
    of_mmes = "pl/dma_hls.h", "aie/graph.h", "rsn::mme::Engines", WORDS, "system.cfg"
    return Interfaces(*of_mmes, (LANES,), ARGUMENTS, tuple(lanes(overlay)), {3: 16 * mmes, 4: 48 * mmes})


@dataclass(frozen=True)
class Sources:
    """The source files of a machine. root: the folder of all sources, laid out as hw/versal. machine: the overlay that
    the machine is for, a key of `MACHINES`; properties raise `KeyError` for another."""

    root: Path
    machine: str = "xnn"

    @property
    def overlay(self) -> Overlay:
        """The overlay that the machine is for."""
        return MADE_FOR[self.machine]

    @property
    def top(self) -> str:
        """The path, below `root`, of the file with the kernel's top function."""
        return f"pl/{KERNEL}.cpp" if self.machine == "xnn" else f"{self.machine}/{KERNEL}.cpp"

    @property
    def machine_sources(self) -> MachineSources:
        """Which of the files are for HLS, for the AI Engine, and for the native run."""
        return MACHINES[self.machine]

    @property
    def of_pairs(self) -> bool:
        """Whether the graph is one of pairs of tiles (xnn8), not of MMEs."""
        return self.overlay is XNN8

    def text(self, name: str) -> str:
        """Read a file as UTF-8. name: its path below `root`. Raises `OSError`."""
        return (self.root / name).read_text(encoding="utf-8")

    @cached_property
    def agreed(self) -> Interfaces:
        """What the parts of the machine must agree on."""
        return interfaces_of(self.overlay)

    @cached_property
    def arguments(self) -> list[tuple[str, str]]:
        """Type and name of each argument of the kernel, in order, from its header. Raises `RsnError` if it is not
        declared, `OSError` if the header cannot be read.
        """
        body = re.search(rf"void {KERNEL}\((.*?)\);", self.text(self.agreed.header), re.DOTALL)
        if body is None:
            raise RsnError(f"{self.agreed.header} declares no function {KERNEL}")
        out = []
        for one in body[1].split(","):
            kind, name = re.fullmatch(r"\s*(.*?)[\s*&]*(\w+)(?:\[.*\])?\s*", one, re.DOTALL).groups()  # type: ignore[union-attr]
            out.append((kind, name))
        return out

    @cached_property
    def ports(self) -> set[str]:
        """Names of the kernel's stream ports: each stream of an array is a port, named by the array and the stream's
        numbers in it, as `a0_1_0`. Raises as `arguments`."""
        names = [name for kind, name in self.arguments if "hls::stream" in kind]
        return {"_".join((name, *map(str, at))) for name in names for at in product(*map(range, self.agreed.ports))}

    @cached_property
    def graph(self) -> list[str]:
        """Parts of the graph, one per line: `in NAME BITS` or `out NAME BITS` for each PLIO, `kernel INPUTS` for each
        kernel; then a line of JSON for each PLIO and tile, with its place (`csim/places.h`).

        Raises `RsnError` if the graph does not compile or its constructor fails, `BoardError` if there is no
        compiler."""
        with tempfile.TemporaryDirectory() as folder:
            source, program = Path(folder) / "ports.cpp", Path(folder) / "ports"
            source.write_text(self.agreed.words + PORTS, encoding="utf-8")
            flags = [f for f in FLAGS if f != "-O3"]
            flags += [f'-DRSN_GRAPH="{self.agreed.graph}"', f"-DRSN_ENGINES={self.agreed.engines}"]
            flags += [f"-I{self.root}", f"-I{self.root / 'csim' / 'include'}", *self.machine_sources.flags]
            try:
                parts = [str(compiled(self.root / p, flags)) for p in (*self.machine_sources.graph, "csim/machine.cpp")]
            except BoardError as e:
                raise RsnError(f"the graph does not compile:\n{e}") from e
            command = [compiler(), *flags, str(source), *parts, "-o", str(program)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RsnError(f"the graph does not compile:\n{done.stderr}")
            done = subprocess.run([program], capture_output=True, text=True, check=False)
            if done.returncode:
                raise RsnError(f"the graph cannot be built: {done.stderr.strip()}")
            return done.stdout.splitlines()

    def config(self, key: str, file: str = "system.cfg") -> list[str]:
        """Return the values of a key in a configuration file, in order. file: its path below `root`. Raises
        `OSError`.
        """
        return re.findall(rf"^{re.escape(key)}=(.*)$", self.text(file), re.MULTILINE)


Findings = Iterator[str]
"""Findings of a check, one sentence each. The docstring of a check is the line that `main` prints for it."""


def generated(s: Sources) -> Findings:
    """generated files are up to date

    Yields a sentence for each file that is not. Raises `OSError` if one cannot be read.
    """
    for path, text in GENERATED.items():
        if s.text(path) != text():
            yield f"{Path(path).name} differs from what the tables generate (make generate)"


def argument_order(s: Sources) -> Findings:
    """the kernel's arguments are in the order in which hosts set them

    Yields a sentence if they are not. Raises as `Sources.arguments`.
    """
    names = [name for kind, name in s.arguments if "hls::stream" not in kind]
    expected = [*(a.name for a in s.agreed.arguments), FINGERPRINT]
    if names != expected:
        yield f"{KERNEL} takes {', '.join(names)}; hosts set {', '.join(expected)}"


def interfaces(s: Sources) -> Findings:
    """every argument of the kernel has the interface pragmas that its type needs

    Yields a sentence for each argument that has not. Raises as `Sources.arguments`.
    """
    text = s.text(s.top)
    for kind, name in s.arguments:
        modes = re.findall(rf"#pragma HLS INTERFACE (\w+)(?: \w+=\w+)* port={name}\b", text)
        memory = "Port" in kind or "Word" in kind
        expected = ["axis"] if "stream" in kind else ["m_axi", "s_axilite"] if memory else ["s_axilite"]
        if modes != expected:
            have = " and ".join(modes) or "no interface"
            yield f"argument {name} has {have}; expected {' and '.join(expected)}"


def memories(s: Sources) -> Findings:
    """each AXI port of the kernel is connected to the memory in which hosts allocate its buffer

    Yields a sentence for each connection that is missing, and for each that hosts do not expect. Raises `OSError` if
    the linker's configuration cannot be read."""
    expected = {f"{KERNEL}_1.{a.name}:{a.memory}" for a in s.agreed.arguments}
    for line in sorted(expected.symmetric_difference(s.config("sp", s.agreed.config))):
        yield f"sp={line} is {'missing' if line in expected else 'not what hosts expect'}"


def connections(s: Sources) -> Findings:
    """each stream connects a port and the PLIO of the same name, in its direction, once

    Yields a sentence for each mistake. Raises as `Sources.graph` and `Sources.arguments`.
    """
    printed = (line.split() for line in s.graph if line.startswith(("in ", "out ")))
    found = {name: (way == "in", int(bits)) for way, name, bits in printed}
    plios = {name: into for name, (into, _) in found.items()}
    for stream in s.agreed.streams:
        if found.get(stream.plio, stream[1:])[1] != stream.bits:
            yield f"{stream.plio} has {found[stream.plio][1]} bit, not {stream.bits}"
    ends: Counter[str] = Counter()
    for line in s.config("sc", s.agreed.config):
        if not re.fullmatch(r"\w+\.\w+:\w+\.\w+", line):
            yield f"sc={line} is no pair of ends, as INSTANCE.PORT:INSTANCE.PORT"
            continue
        source, sink = line.split(":")
        inward = source.startswith(f"{KERNEL}_1.")
        port, plio = (end.split(".")[1] for end in ((source, sink) if inward else (sink, source)))
        ends += Counter([port, plio])
        if port not in s.ports:
            yield f"sc={line}: {KERNEL} has no port {port}"
        if plio not in plios:
            yield f"sc={line}: the graph has no PLIO {plio}"
        elif plios[plio] != inward:
            yield f"sc={line}: {plio} has the other direction"
        if port.upper() != plio:
            yield f"sc={line} connects different lanes"
    for name in sorted(s.ports | plios.keys()):
        if ends[name] != 1:
            yield f"{name} is connected {ends[name]} times"
    if set(ends) != {name for stream in s.agreed.streams for name in (stream.port, stream.plio)}:
        yield "the connected streams are not those of the datapath"


def tiles(s: Sources) -> Findings:
    """the graph has all AIE tiles, whose inputs place run-time parameters where hosts expect them

    Yields a sentence if the numbers of tiles or inputs differ. Raises as `Sources.graph`.
    """
    inputs = Counter(int(line.split()[1]) for line in s.graph if line.startswith("kernel"))
    if inputs != s.agreed.kernels:
        expected = " and ".join(f"{count} with {ports} inputs" for ports, count in s.agreed.kernels.items())
        yield f"the graph has {sum(inputs.values())} kernels, by inputs {dict(inputs)}; expected {expected}"


def plio_places(s: Sources) -> Findings:
    """every PLIO has a channel of its own, in a column of the array interface that has PLIOs, near its tiles

    Yields what `plios` of `check_places` or `check_pairs` finds. Raises as `Sources.graph`.
    """
    return check_pairs.plios(s.graph) if s.of_pairs else check_places.plios(s.graph)


def tile_places(s: Sources) -> Findings:
    """the tiles of a cascade are neighbours, in the direction of their row

    Yields what `tiles` of `check_places` or `check_pairs` finds. Raises as `Sources.graph`.
    """
    return check_pairs.tiles(s.graph) if s.of_pairs else check_places.tiles(s.graph)


def routes(s: Sources) -> Findings:
    """the array's stream switches have room for all streams

    Yields what `check_places.routes` finds. Raises as `Sources.graph`, and `RsnError` for a place outside of the array.
    """
    return check_places.routes(s.graph)


def tile_memory(s: Sources) -> Findings:
    """buffers, stack and parameters of every tile fit its own 32 KiB, A and B in different banks

    Yields what `memory` of `check_places` or `check_pairs` finds. Raises as `Sources.graph`.
    """
    return check_pairs.memory(s.graph) if s.of_pairs else check_places.memory(s.graph)


def streams(s: Sources) -> Findings:
    """the kernel declares every stream and unit of the datapath once, streams with their depths

    Yields a sentence for each stream or unit that is not declared so. Raises `OSError` if the source cannot be read."""
    text, overlay = s.text(s.top), s.overlay
    if s.of_pairs:  # its units are several processes each; its file is generated
        return
    for stream in overlay.streams:
        if "MME" in {overlay.by_unit[unit].kind for unit in (stream.src, stream.dst)}:
            continue
        label = f"_{stream.label}" if stream.label else ""
        beats = stream.token.word_elements // BEAT
        per_word = " * beats_per_tile" if beats == BEATS else f" * {beats}" if beats > 1 else ""
        depth = rf"depth::{stream.src}_to_{stream.dst}{label}\b{re.escape(per_word)}"
        declared = rf"hls::stream<\w+, (?:without_fifo\({depth}\)|{depth})>"
        found = re.findall(rf'{declared} \w+\("{re.escape(stream.name)}"\)', text)
        if len(found) != 1:
            yield f"stream {stream.name} is declared {len(found)} times with its depth, not once"
    for unit in overlay.units:
        if unit.kind != "MME" and text.count(f'RSN_PROCESS("{unit.name}",') != 1:
            yield f"unit {unit.name} is not a process of the kernel exactly once"


def hls_files(s: Sources) -> Findings:
    """hls.cfg lists exactly the source files of the kernel

    Yields a sentence for each file that is missing on either side. Raises `OSError` if hls.cfg cannot be read.
    """
    config = s.machine_sources.hls_cfg
    files = {os.path.relpath(path, s.root) for path in s.machine_sources.kernel_files(s.root)}
    listed = {os.path.normpath(Path(config).parent / name) for name in s.config("syn.file", config)}
    for name in sorted(files ^ listed):
        yield f"{name} is {f'not in {config}' if name in files else f'in {config}, but does not exist'}"


def hls_pragmas(s: Sources) -> Findings:
    """every HLS pragma is one that Vitis 2024.1 knows, and each pipeline states a style that cannot hang

    Yields what `pragmas.check` finds. Raises `OSError` if a source cannot be read.
    """
    folder = Path(s.top).parent
    own = {f"{folder}/{p.name}" for x in ("h", "cpp") for p in (s.root / folder).glob(f"*.{x}")}
    shared = {f"pl/{p.name}" for p in (s.root / "pl").glob("*.h")} - own
    tables = "isa.h" if s.machine == "xnn" else f"{s.machine}/isa.h"
    others = [s.text(name) for name in (tables, *sorted(shared))]
    yield from pragmas.check({name: s.text(name) for name in sorted(own - {tables})}, others)


def hls(s: Sources) -> Findings:
    """HLS would make of the sources the machine whose cycles are computed (docs/hls-rules.md)

    Yields a sentence for each place where it would not. Raises `RsnError` if a package of the extra `check` or clang is
    not installed, or if the sources do not compile, `OSError` if a source cannot be read."""
    try:
        report = checker.check_machine(s.machine, s.root)
    except ImportError as e:
        raise RsnError(f"{e}; {EXTRA_HINT}") from e
    yield from map(str, report.findings)


EXTRA_HINT = "this check needs packages of an extra: pip install -e '.[check]'"
CHECKS: tuple[Callable[[Sources], Findings], ...] = (
    *(generated, argument_order, interfaces, memories, connections, tiles, streams, hls_files, hls_pragmas),
    *(plio_places, tile_places, routes, tile_memory, hls),
)


@click.command()
@click.argument("root", type=click.Path(path_type=Path), required=False)
@click.option("--machine", type=click.Choice(list(MACHINES)), default="xnn", help="the overlay whose machine it is")
def main(root: Path | None, machine: str) -> None:
    """Check that the machine's sources in ROOT agree with each other and with the tables.

    [default of ROOT: the sources of this installation]
    """
    try:
        all_of = Sources(root or sources(), machine)
    except OSError as e:
        raise click.ClickException(f"{e}; {ELSEWHERE}") from e
    wrong = 0
    for check in CHECKS:
        try:
            found = list(check(all_of))
        except (RsnError, OSError) as e:
            found = [str(e)]
        click.echo(f"{'wrong' if found else 'ok   '}  {(check.__doc__ or '').partition(chr(10))[0]}")
        for finding in found:
            click.echo(f"       {finding}")
        wrong += len(found)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
