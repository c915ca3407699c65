"""How fast the assembler is, beside GNU as: CPU time per instruction, both measured in one run.

    python benchmarks/assembler.py [--program big.bin] [--runs 5] [--json]

The program is 24 layers of BERT-Large at B = 8, L = 384 on the base overlay; without --program it is compiled first,
with weights of 0. GNU as and objdump get x86-64 code with the same number of instructions. "Instruction" has two
readings here, and both are shown: an mOP, which is what the binary contains, and a uOP, which is what a unit executes.
Whole commands are compared with whole commands: each side starts up, reads and writes. The steps inside a command are
shown without that.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from rsn.assembler import container
from rsn.assembler.parser import parse
from rsn.assembler.printer import show
from rsn.benchmarks.measuring import RSN, child, command_line, cpu
from rsn.cli.published.networks import encoder
from rsn.isa.overlays.xnn import XNN_BASE
from rsn.isa.program import Program
from rsn.isa.statistics import count
from rsn.scheduler.build import build
from rsn.scheduler.schedule import PAPER

GOAL = 10.0
"""The most times of GNU as's CPU time per instruction."""

HELP_GOAL = 0.2
"""CPU seconds that `rsn --help` may take."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark. arguments: those of the command line by default."""
    parser = command_line(__doc__, runs=5, json=True)
    parser.add_argument("--program", type=Path, help="a .bin to take instead of compiling the 24 layers")
    options = parser.parse_args(arguments)
    if options.program is None:
        click.echo("compiling 24 layers", err=True)
        program = build(encoder(8, 384, 24), XNN_BASE, PAPER).program
    else:
        program = container.read(options.program)
    with tempfile.TemporaryDirectory() as folder:
        result = measure(program, Path(folder), options.runs)
    click.echo(json.dumps(result) if options.json else report(result))


# -- what is measured ---------------------------------------------------------------------------------------------


def measure(program: Program, folder: Path, runs: int) -> dict[str, Any]:
    """Return the CPU seconds of each task by name (`gnu`, `rsn`, `steps`, `help`), and counts of the program and its
    files. runs: of each measurement, 1 or more; the fastest counts. Files go to `folder`. Raises `CalledProcessError`
    if a command fails, `FileNotFoundError` without binutils."""
    binary, text, out = folder / "program.bin", folder / "program.rsn", folder / "out"
    container.write(program, binary)
    text.write_text(show(program), encoding="utf-8")
    source, data = text.read_text(encoding="utf-8"), binary.read_bytes()
    sizes = count(program)
    counts = {"mOP": sizes["mops"]["total"], "uOP": sizes["uops"]["total"]}

    def best(task: Callable[[], float]) -> float:
        return min(task() for _ in range(runs))

    def gnu(n: int) -> dict[str, float]:
        assembly, code = folder / "x86.s", folder / "x86.o"
        assembly.write_text(x86(n), encoding="ascii")
        return {
            "asm": best(lambda: child(["as", "-o", str(code), str(assembly)])),
            "dis": best(lambda: child(["objdump", "-d", str(code)])),
        }

    return {
        "counts": counts,
        "image_bytes": 4 * len(program.image),
        "text_bytes": len(source),
        "text_lines": source.count("\n"),
        "gnu": {kind: gnu(n) for kind, n in counts.items()},
        "rsn": {
            "asm": best(lambda: child([*RSN, "asm", str(text), "-o", str(out)])),
            "dis": best(lambda: child([*RSN, "dis", str(binary), "-o", str(out)])),
        },
        "steps": {
            "parse": best(lambda: cpu(lambda: parse(source, "program.rsn"))),
            "encode": best(lambda: cpu(lambda: container.dumps(dataclasses.replace(program)))),  # nothing cached
            "read": best(lambda: cpu(lambda: container.loads(data))),
            "print": best(lambda: cpu(lambda: show(program))),
        },
        "help": best(lambda: child([*RSN, "--help"])),
        "help_loads_torch": loads_torch(),
    }


def loads_torch() -> bool:
    """Return whether `rsn --help` imports torch."""
    code = (
        "import sys; from rsn.cli.main import main; main(['--help'], standalone_mode=False);"
        "sys.exit('torch' in sys.modules)"
    )
    return bool(subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode)


# -- the table ----------------------------------------------------------------------------------------------------


def report(result: dict[str, Any]) -> str:
    """Return the result of `measure` as a table, lines of text."""
    counts = result["counts"]
    lines = [
        f"{counts['mOP']:,} mOPs, {counts['uOP']:,} uOPs; image {result['image_bytes']:,} bytes, "
        f"text {result['text_lines']:,} lines, {result['text_bytes']:,} bytes",
        "",
        f"{'CPU time':<34}{'seconds':>9}{'us/mOP':>9}{'us/uOP':>9}",
    ]

    def row(name: str, seconds: float, kinds: Sequence[str] = ("mOP", "uOP")) -> str:
        each = [f"{seconds / counts[kind] * 1e6:9.2f}" if kind in kinds else f"{'':9}" for kind in counts]
        return f"{name:<34}{seconds:9.3f}{''.join(each)}"

    for kind, n in counts.items():
        lines.append(row(f"as, {n:,} instructions", result["gnu"][kind]["asm"], (kind,)))
        lines.append(row(f"objdump -d, {n:,} instructions", result["gnu"][kind]["dis"], (kind,)))
    steps = result["steps"]
    lines += [row("rsn asm", result["rsn"]["asm"]), *(row(f"  {s}", steps[s]) for s in ("parse", "encode"))]
    lines += [row("rsn dis", result["rsn"]["dis"]), *(row(f"  {s}", steps[s]) for s in ("read", "print"))]
    lines += ["", f"{'times GNU, per instruction':<34}{'':9}{'per mOP':>9}{'per uOP':>9}"]
    for task, tool in (("asm", "as"), ("dis", "objdump -d")):
        ratios = [result["rsn"][task] / result["gnu"][kind][task] for kind in counts]
        lines.append(f"{f'rsn {task} / {tool}':<34}{'':9}{''.join(f'{r:9.1f}' for r in ratios)}   (goal: {GOAL:g})")
    torch = "loads torch" if result["help_loads_torch"] else "does not load torch"
    lines += ["", f"rsn --help: {1000 * result['help']:.0f} ms (goal: {1000 * HELP_GOAL:.0f}), {torch}"]
    return "\n".join(lines)


# -- what is assembled --------------------------------------------------------------------------------------------

_X86 = """\
movq {o}(%rbp), %rax
addq $8, %rax
leaq (%rdi,%rcx,8), %rsi
vmovups {o}(%rsi), %ymm1
vfmadd231ps {o}(%rdx,%rcx,4), %ymm1, %ymm0
vaddps %ymm0, %ymm2, %ymm3
imulq $48, %rdx, %r8
movl %eax, {o}(%rsp)
xorl %r9d, %r9d
cmpq %rsi, %rax
jne .L{label}
vmovups %ymm0, {o}(%rdi)""".splitlines()


def x86(n: int) -> str:
    """Return assembly text (x86-64, for GNU as) of n instructions such as a compiler writes: moves, arithmetic,
    vectors, and jumps to near labels."""
    lines = ["\t.text", "\t.globl f", "f:"]
    for i in range(n):
        if i % 96 == 0:
            lines.append(f".L{i // 96}:")
        lines.append("\t" + _X86[i % len(_X86)].format(o=8 * (i % 40), label=max(0, i // 96 - i % 3)))
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
