"""Fourteen mistakes of which each costs a build of a day, or a machine that stops: what finds each of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from rsn.base.errors import DeadlockError
from rsn.hw.versal import pragmas
from rsn.hw.versal.csim.build import FLAGS, MACHINES, call, compiled, compiler
from rsn.hw.versal.csim.machine import Native
from rsn.hw.versal.hlscheck.checker import machine_texts
from rsn.hw.versal.sources import sources, write
from rsn.tests.hw.versal.hls_mistakes import AIE, FATAL, KERNEL, XNN2, RunMistake

from ..examples import example
from .native import native

HLS = {m.name: m for m in (*KERNEL, *XNN2, *AIE)}


def test_there_are_fourteen_and_the_page_lists_them(root: Path) -> None:
    page = (root / "docs/hls-rules.md").read_text(encoding="utf-8")
    named = [(m.name, m.found_by) if isinstance(m, RunMistake) else (m, f"`{HLS[m].rule}`") for m in FATAL]
    rows = [f"| {name} | {found_by} |" for name, found_by in named]
    assert len(rows) == 14
    assert [row for row in rows if row not in page.splitlines()] == []


def test_a_loop_that_keeps_its_last_outputs() -> None:
    """make check refuses it by the text of the pragma."""
    (mistake,) = (m for m in FATAL if isinstance(m, RunMistake) and m.found_by == "`make check`, pragmas")
    texts = machine_texts(sources())
    before, after = set(pragmas.check(texts)), set(pragmas.check(mistake.text(texts)))
    assert after > before
    assert all(found.startswith("pl/mesh_b.cpp:") for found in after - before)


@pytest.mark.long
@pytest.mark.parametrize(
    "mistake", [m for m in FATAL if isinstance(m, RunMistake) and "csim" in m.found_by], ids=lambda m: m.name
)
def test_a_native_run_finds_it(mistake: RunMistake, root: Path, tmp_path: Path) -> None:
    """Wrong numbers or a deadlock; with the AIE array alone where the mistake is in the program of a tile."""
    folder = tmp_path / "versal"
    shutil.copytree(root / "hw/versal", folder, ignore=shutil.ignore_patterns("__pycache__", "build*", "hlscheck"))
    write(folder)
    (folder / mistake.file).write_text(mistake.text(machine_texts(folder))[mistake.file], encoding="utf-8")
    # All files but one are as they are in the machine without a mistake.
    library = tmp_path / "librsn_csim.so"
    objects = [compiled(source, [*FLAGS, f"-I{folder / 'csim/include'}"]) for source in MACHINES["xnn"].files(folder)]
    call([compiler(), *FLAGS, "-shared", *map(str, objects), "-o", str(library)])
    machine, e = Native(library), example(mistake.program)

    def wrong(array: bool) -> bool:
        expected, found = e.banks(), e.banks()
        native().run(e.program, expected)
        try:
            machine.run(e.program, found, array=array)
        except DeadlockError:
            return True
        return any(not np.array_equal(found[bank], expected[bank], equal_nan=True) for bank in expected)

    assert [wrong(False), wrong(True)] == [mistake.found_by == "csim", True]
