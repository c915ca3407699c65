"""What the benchmarks share: seconds of calls and of commands, command lines, and tables."""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

RSN = [sys.executable, "-m", "rsn"]
"""The command `rsn`, of this interpreter."""


def cpu(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call in this process."""
    return timed_cpu(call)[0]


def timed_cpu(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of a call in this process, and its result."""
    gc.collect()
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def wall(call: Callable[[], object]) -> float:
    """Return the seconds of real time that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def child(command: Sequence[str]) -> float:
    """Run a command without its output, and return the CPU seconds, user and system, that it and its own child
    processes take. Raises `CalledProcessError` if it fails."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = spent()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return spent() - before


def command_line(description: str | None, *, runs: int | None = None, json: bool = False) -> argparse.ArgumentParser:
    """Return a parser with the docstring of a benchmark as its help. runs: the default of --runs, None for no such
    option. json: with --json."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if runs is not None:
        parser.add_argument("--runs", type=int, default=runs, help=f"runs of each measurement [default: {runs}]")
    if json:
        parser.add_argument("--json", action="store_true", help="JSON on stdout instead of tables")
    return parser


def markdown(cells: Iterable[object]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def print_models(
    parser: argparse.ArgumentParser,
    names: Iterable[str],
    head: Sequence[str],
    measured: Callable[[str, argparse.Namespace], dict[str, Any]],
    row: Callable[[str, dict[str, Any]], str],
) -> None:
    """Measure models one after the other, and print a Markdown row for each, or JSON at the end.

    parser: adds its options; --only, which is added here, takes words with one of which a model's name must begin, and
    --json must be one of its options. names: of the models. head: the headings of the table. measured: returns the
    facts of a model, given its name and the options. row: formats a row of a model's name and facts. Ends the process
    for words with which no name begins.
    """
    parser.add_argument("--only", nargs="+", metavar="NAME", help="models whose name begins with one of these")
    options = parser.parse_args()
    known = list(names)
    chosen = [name for name in known if options.only is None or name.startswith(tuple(options.only))]
    if not chosen:
        parser.error(f"--only {' '.join(options.only)}: no such model; there are {'; '.join(known)}")
    if not options.json:
        click.echo(f"{markdown(head)}\n|{'---|' * len(head)}")
    results = {}
    for name in chosen:
        results[name] = measured(name, options)
        if not options.json:
            click.echo(row(name, results[name]))
            sys.stdout.flush()
        gc.collect()  # one model at a time
    if options.json:
        click.echo(json.dumps(results))


def print_tables(parser: argparse.ArgumentParser, tables: Mapping[str, Callable[[Any], Iterable[str]]]) -> None:
    """Print the tables that the command line names, or all of them if it names none. parser: for the other options.
    tables: by name, a function that returns the lines of a table, given the options."""
    parser.add_argument("tables", nargs="*", choices=[[], *tables], metavar="TABLE")
    options = parser.parse_args()
    for number, name in enumerate(options.tables or tables):
        if number:
            click.echo()
        for line in tables[name](options):
            click.echo(line)
