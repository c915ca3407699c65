"""Stream programs of kernels with D, II and T, and of kernels that work on rows."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from rsn.streams.dataflow.graph import Timing
from rsn.streams.fifos.starts import KernelGraph
from rsn.streams.reader import read
from rsn.streams.sizing.program import SizedProgram

TYPES = {8: "i8", 16: "i16", 32: "i32", 64: "i64", 128: "i32[4]"}


def sized(text: str) -> SizedProgram:
    return SizedProgram(read(text, timed=True), 1)


def beat(ops: Sequence[str], indent: str) -> list[str]:
    """Operations that fire together, and with nothing around them."""
    return [f"{indent}for _ in range(1):", *(f"{indent}    {op}" for op in ops)] if ops else []


def wait(cycles: int, indent: str) -> list[str]:
    return [f"{indent}cycles({cycles})"] if cycles else []


def repeat(times: int, lines: list[str], indent: str) -> list[str]:
    return [f"{indent}for _ in range({times}):", *lines] if times > 0 and lines else []


def pipeline(gets: list[str], puts: list[str], timing: Timing) -> list[str]:
    """The statements of a kernel that gets a token of every input every II cycles, and whose first token can be got
    after D cycles. It holds the tokens between; when it waits, all of it waits."""
    at, inner = "    ", "        "
    before, tokens = timing.first - 1, timing.tokens
    turn = timing.interval
    if not gets:
        return wait(before, at) + repeat(tokens, beat(puts, inner) + wait(turn - 1, inner), at)
    get_only = beat(gets, inner) + wait(turn - 1, inner)
    if not puts:
        return repeat(tokens, get_only, at)
    held, offset = before // turn, before % turn
    lines = repeat(min(held, tokens), get_only, at)
    if held > tokens:
        lines += wait(before - offset - tokens * turn, at)
    if offset:
        both = beat(gets, inner) + wait(offset - 1, inner) + beat(puts, inner) + wait(turn - offset - 1, inner)
    else:
        both = beat([*gets, *puts], inner) + wait(turn - 1, inner)
    lines += repeat(tokens - held, both, at)
    put_only = wait(offset, inner) + beat(puts, inner) + wait(turn - offset - 1, inner)
    return lines + repeat(min(held, tokens), put_only, at)


def program_of(graph: KernelGraph, depths: Sequence[int] | None = None, starts: Sequence[int] | None = None) -> str:
    """A program in which every kernel of a graph is a pipeline. starts: cycles that a kernel waits at its begin."""
    lines = ["from rsn.streams import *", ""]
    for k, fifo in enumerate(graph.fifos):
        lines.append(f"s{k}: Stream[{TYPES[fifo.bits]}, {depths[k] if depths else 1}]")
    for k, name in enumerate(graph.names):
        gets = [f"drop(s{i}.get())" for i, fifo in enumerate(graph.fifos) if fifo.target == k]
        puts = [f"s{i}.put({value(fifo.bits)})" for i, fifo in enumerate(graph.fifos) if fifo.source == k]
        if gets or puts:
            first = wait(starts[k], "    ") if starts else []
            body = pipeline(gets, puts, graph.timing(k))
            lines += ["", "@task(mapping=[1])", f"def {name}() -> None:", *first, *body]
    return "\n".join(lines) + "\n"


def value(bits: int) -> str:
    return "tile(i32, 4)" if bits == 128 else "0"


def row_program(random: Random) -> str:
    """A program of kernels that take some tokens of each input for a row, and then put some for it: rates differ from
    edge to edge."""
    count, rows = random.randint(2, 7), random.randint(1, 5)
    edges: list[tuple[int, int, int, int]] = []
    for target in range(1, count):
        for source in random.sample(range(target), min(target, random.randint(0 if target < 3 else 1, 3))):
            edges.append((source, target, random.choice([1, 1, 2, 4, 7]), random.choice([8, 16, 32, 64, 128])))
    lines = ["from rsn.streams import *", ""]
    lines += [f"s{k}: Stream[{TYPES[bits]}, 1]" for k, (_, _, _, bits) in enumerate(edges)]
    for node in range(count):
        body: list[str] = []
        for k, (source, target, tokens, bits) in enumerate(edges):
            slow = random.choice(["", "; cycles(2)", "; cycles(3)"])
            op = f"drop(s{k}.get())" if target == node else f"s{k}.put({value(bits)})"
            if node in (source, target):
                body += [f"        for _ in range({tokens}):", f"            {op}{slow}"]
                body += wait(random.choice([0, 0, 0, 5]), "        ")
        if body:
            lines += ["", "@task(mapping=[1])", f"def k{node}() -> None:", f"    for r in range({rows}):", *body]
    return "\n".join(lines) + "\n"
