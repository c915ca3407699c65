"""Compile the machine's C++ sources with the warnings of g++ and clang, and keep nothing of it.

    python -m rsn.hw.versal.csim.lint     # or, in hw/versal: make lint-cxx

Two compilers see more than one, and HLS and AIE compilers are built on clang.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from ..sources import sources
from .build import FLAGS, MACHINES

INSTALL_HINT = "Debian, Ubuntu: sudo apt install --no-install-recommends g++ clang"
WARNINGS = {"g++": ("-Wconversion", "-Wshadow=local"), "clang++": ("-Wconversion", "-Wshadow")}
"""Beyond those of every build. With -Wshadow, g++ also refuses a constructor's parameter that is called as the member
that it sets; clang does not."""
COMPILERS = tuple(WARNINGS)


def files(machine: str, versal: Path) -> list[Path]:
    """Return the paths of the C++ sources of a machine, with those of the stand-alone program and those for the AI
    Engine. machine: a key of `MACHINES`; raises `KeyError` for another. versal: the folder of all sources (hw/versal).
    """
    made_of = MACHINES[machine]
    return [*made_of.files(versal, program=True), *sorted(versal.glob(made_of.top_graph))]


def lint(compiler: str, versal: Path | None = None) -> str:
    """Return the messages of a compiler on the sources of all machines, "" if there are none. compiler: one of
    `COMPILERS`. versal: the folder of the sources; None: that of this installation.

    Raises `KeyError` for another compiler, `FileNotFoundError` if the compiler is not installed, `OSError` if sources
    cannot be written to the cache."""
    versal = versal or sources()
    flags = [*(flag for flag in FLAGS if flag != "-O3"), f"-I{versal / 'csim' / 'include'}"]
    flags += WARNINGS[compiler]

    def said(command: Sequence[str | Path]) -> str:
        done = subprocess.run([compiler, *flags, *command], capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else ""

    with TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        found, work = "", []
        for machine, made_of in MACHINES.items():
            options: list[str | Path] = [*made_of.flags]
            if compiler == "clang++":  # it reads the headers of libraries once for all sources, a third of its work
                header = Path(folder, f"{machine}.h")
                lines = {row for s in files(machine, versal) for row in s.read_text(encoding="utf-8").splitlines()}
                header.write_text(
                    "\n".join(sorted(row for row in lines if row.startswith("#include <"))), encoding="utf-8"
                )
                found += said([*options, "-x", "c++-header", header, "-o", header.with_suffix(".pch")])
                options += ["-include-pch", header.with_suffix(".pch")]
            work += [[*options, "-fsyntax-only", source] for source in files(machine, versal)]
        return found + "".join(pool.map(said, work))


def main() -> None:
    """Lint with the compilers that are installed, and print what they say. Exits with 1 if one says something, or if
    one is missing, else with 0. Raises `OSError` as `lint`."""
    wrong = False
    for compiler in COMPILERS:
        found = lint(compiler) if shutil.which(compiler) else f"not installed ({INSTALL_HINT})\n"
        wrong |= bool(found)
        print(f"{'wrong' if found else 'ok   '}  {compiler}\n{found}", end="")  # noqa: T201
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
