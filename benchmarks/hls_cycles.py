"""Cycles of the C++ that `rsn hls` writes, beside the modelled ones.

    python benchmarks/hls_cycles.py [FILE.py|FILE.bin ...] [--kernels RATES.toml] [--size NAME=NUMBER ...]

Without files: all programs in programs/streams, with the rates of docs/stream-cases.md. *modelled*: cycles of a run,
and of each unit on its critical path. *derived*: those of its process in the C++, by the checker of HLS sources
(`rsn.hw.versal.hlscheck`). *path*: the sum over the units of the critical path, each with the time that it has there,
times derived over modelled cycles of that unit. A unit that states its cycles, as loads and stores of generated
machines do, waits for memory off the chip, of which its C++ says nothing: its modelled cycles count, if its loops are
no slower.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from rsn.assembler import container
from rsn.benchmarks.measuring import RSN, command_line
from rsn.benchmarks.streams_cases import KERNELS
from rsn.hw.versal.hlscheck.checker import HlsReport, check_folder
from rsn.isa.overlays.tasks.overlay import program_of
from rsn.isa.overlays.tasks.tree import Cycles, nodes

CASES = Path(__file__).resolve().parent.parent / "programs" / "streams"


@dataclass(frozen=True)
class UnitCycles:
    """Cycles of a unit in a run. path: on the critical path, 0 if it is not there. modelled: of all its beats. derived:
    of its C++. stated: it states cycles of its own."""

    name: str
    path: float
    modelled: float
    derived: int
    stated: bool

    @property
    def ratio(self) -> float:
        """`derived` over `modelled`; at least 1 for a unit that states its cycles."""
        return max(1.0, self.derived / self.modelled) if self.stated else self.derived / self.modelled


@dataclass(frozen=True)
class CountedCycles:
    """Cycles of a program. modelled: of a run. units: those that take cycles. report: what the C++ takes."""

    modelled: int
    units: list[UnitCycles]
    report: HlsReport

    @property
    def path(self) -> float:
        """Cycles of the C++ along the critical path."""
        return sum(unit.path * unit.ratio for unit in self.units)


def counted(file: Path, kernels: Path | None = None, sizes: Mapping[str, int] | None = None) -> CountedCycles:
    """Return the cycles of a program: the modelled ones, and those that are derived of its C++. kernels: file of rates.
    sizes: values of those that each run gives. Raises `subprocess.CalledProcessError` if `rsn run` or `rsn hls` refuses
    the program."""
    rates = ["--kernels", str(kernels)] if kernels else []
    values = [part for name, value in (sizes or {}).items() for part in ("--size", f"{name}={value}")]
    options = [*rates, *values, "--timing-only", "--explain", "--json"]
    found = json.loads(subprocess.run([*RSN, "run", str(file), *options], capture_output=True, check=True).stdout)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*RSN, "hls", str(file), *rates, "-o", folder], check=True, capture_output=True)
        report = check_folder(Path(folder), sizes)
        text = (Path(folder) / "top.cpp").read_text("utf-8")
        clock = 1e9 / float(re.findall(r"-period ([0-9.]+)", (Path(folder) / "hls.tcl").read_text("utf-8"))[0])
    units = re.findall(r'RSN_TASK\("([^"]+)"', text)
    derived = {unit: cycles.cycles for unit, (_, cycles) in zip(units, report.processes, strict=True)}
    path: dict[str, float] = {}
    for line in found["explain"]["lines"]:
        path[line["unit"]] = path.get(line["unit"], 0.0) + line["seconds"] * clock
    busy = {name: unit["busy"] * clock for name, unit in found["explain"]["units"].items()}
    stated = _stating(file)
    found_units = [UnitCycles(n, path.get(n, 0.0), b, derived[n], n in stated) for n, b in busy.items() if b]
    return CountedCycles(round(found["latency_s"] * clock), found_units, report)


def _stating(file: Path) -> set[str]:
    """The units of a compiled program whose tasks state cycles, and no rates."""
    if file.suffix == ".py":
        return set()
    program = program_of(container.read(str(file)).overlay)
    tasks = {t.name for t in program.tasks if not t.rates and any(isinstance(n, Cycles) for n in nodes(t.body))}
    return {unit for unit, shots in program.units if any(shot.task in tasks for shot in shots)}


def table(options: Namespace) -> Iterator[str]:
    """Yield the table as lines of text: a heading, then one line for each program. options: `files` and `kernels`, as
    the command line has them; no files: all of `CASES`, with the rates `KERNELS`. `size`: of the files, as texts."""
    sizes = {name: int(value) for name, _, value in (text.partition("=") for text in options.size)}
    files = [Path(f) for f in options.files] or [f for f in sorted(CASES.glob("*.py")) if f.stem != "__init__"]
    yield f"{'':<20}{'modelled':>10}{'path':>10}{'ratio':>7}   unit with most of the path: modelled, derived"
    with tempfile.TemporaryDirectory() as folder:
        kernels = Path(options.kernels) if options.kernels else None
        if not options.files:
            kernels = Path(folder) / "rates.toml"
            rates = "\n".join(f"{name} = {rate:g}" for name, rate in KERNELS.items())
            kernels.write_text(f"[kernels]\n{rates}\n", encoding="utf-8")
        for file in files:
            found = counted(file, kernels, sizes)
            most = max(found.units, key=lambda u: u.path)
            yield (
                f"{file.stem:<20}{found.modelled:>10}{found.path:>10.0f}{found.path / found.modelled:>7.2f}   "
                f"{most.name}: {most.modelled:.0f}, {most.derived}"
            )


def main() -> None:
    """Print the table."""
    parser = command_line(__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--kernels", help="file with rates, for .py files")
    parser.add_argument("--size", action="append", default=[], help="a size that each run gives, as rows=4")
    for line in table(parser.parse_args()):
        click.echo(line)


if __name__ == "__main__":
    main()
