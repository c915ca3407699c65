"""The same program on both machines: the model in Python and the C++ sources."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np

from rsn.base.errors import ProgramError
from rsn.hw.sim.machine import Machine
from rsn.hw.versal.csim.machine import Native, machine_of, op_words
from rsn.isa.packet import Words
from rsn.isa.program import Program
from rsn.tests.hw.versal.cascade import in_cascade_order

Array = np.ndarray
Banks = Mapping[str, Array]


@cache
def native(machine: str = "xnn") -> Native:
    return Native(machine=machine)


def on_both(program: Program, banks: Banks, words: Words | None = None) -> tuple[Banks, Banks]:
    """The memories after a run on each; the model sums as the AIE cascades do."""
    model, machine = ({name: bank.copy() for name, bank in banks.items()} for _ in range(2))
    Machine(dataclasses.replace(program, overlay=in_cascade_order(program.overlay)), words).run(model)
    native(machine_of(program)).run(program, machine, words)
    return model, machine


def check_same(one: Banks, other: Banks, within: float = 0.0) -> None:
    """All of the memories, NaN included; `within` relative to the largest value."""
    assert one.keys() == other.keys()
    for bank, values in one.items():
        np.testing.assert_array_equal(np.isnan(values), np.isnan(other[bank]))
        if within:
            apart = np.nan_to_num(np.abs(values - other[bank]), posinf=0)
            finite = np.abs(values[np.isfinite(values)])
            assert apart.max(initial=0) <= within * finite.max(initial=0)
        else:
            np.testing.assert_array_equal(values, other[bank])


def outcome(run: Callable[[], object]) -> str:
    """What a run says: nothing, or why it could not end."""
    try:
        run()
    except ProgramError as e:
        return f"{type(e).__name__}: {e}"
    return ""


def write_files(program: Program, banks: Banks, folder: Path) -> list[str]:
    """What the C++ program takes: image, op lists and memories, as its arguments."""
    folder.joinpath("image.bin").write_bytes(program.image.tobytes())
    ops = {str(m): words.tolist() for m, words in enumerate(op_words(program))}
    folder.joinpath("mme.json").write_text(json.dumps(ops), encoding="utf-8")
    for name, bank in banks.items():
        folder.joinpath(f"{name}.bin").write_bytes(bank.tobytes())
    given = {"--mme": "mme.json", "--ddr": "ddr.bin", "--lpddr": "lpddr.bin", "--dump-ddr": "out.bin"}
    return [str(folder / "image.bin"), *(x for k, v in given.items() for x in (k, str(folder / v)))]
