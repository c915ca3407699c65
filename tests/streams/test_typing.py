"""Programs as editors and type-checkers see them: ordinary Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rsn.streams.check import check

PROGRAM = """from __future__ import annotations

from typing import Annotated

from rsn.streams import *

M, K = 64, 32
T = f32[16, 16]
A: f32[M, K]
B: f32[K, M]
s: Stream[i32, 4]
tiles: Stream[f32[4, 4], 2, 2]
arr = Stream[T, 2][3]


@region()
def pair(n: int, out: Stream[i32, 4], k: int = 1) -> None:
    t: Stream[i32]

    @task(mapping=[1])
    def first() -> None:
        for i in range(n * k):
            t.put(i)

    @task(mapping=[1])
    async def second() -> None:
        for _ in range(n * k):
            out.put(await t.get())


pair(4, s)


@task(mapping=[2, 2], args=[A, B])
def product(a: Annotated[f32[64, 32], Layout("S0R")], b: f32[K, M]) -> None:
    i, j = get_tid()
    with meta_if(i == 0):
        cycles(4)
        use(a @ b, softmax(a))
    use(reduce_sum(a, 0).allreduce("+"))


@task(mapping=[1])
def sink() -> None:
    for i, j in grid(2, 2):
        x: i32 = s.get()
        use(x, i, j)
"""


def mypy(text: str, tmp_path: Path, root: Path) -> str:
    """What mypy --strict says about a file."""
    file = tmp_path / "program.py"
    file.write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(file)]
    env = os.environ | {"MYPYPATH": str(root / ".typing")}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.long
def test_a_program_in_strict_mode(tmp_path: Path, root: Path) -> None:
    assert mypy(PROGRAM, tmp_path, root) == "Success: no issues found in 1 source file\n"
    assert mypy(PROGRAM.replace("pair(4, s)", 'pair("4", s)'), tmp_path, root).count("[arg-type]") == 1
    assert {f.code for f in check(PROGRAM).findings} == {"unused"}
