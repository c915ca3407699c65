"""Accesses to shared tensors: what the check says is what all interleavings say."""

from __future__ import annotations

import numpy as np

from rsn.host.tasks import run_tasks
from rsn.isa.overlays.tasks.overlay import program_of
from rsn.scheduler.pack import pack
from rsn.streams.build import build
from rsn.streams.check import Report, check
from rsn.tests.effort import cases, in_both
from rsn.tests.streams.interleavings import SIZE, SharedProgram, drawn

START = {"x": [float(100 + k) for k in range(SIZE)], "y": [float(200 + k) for k in range(SIZE)]}


@in_both
def test_a_race_is_found_if_and_only_if_two_interleavings_differ() -> None:
    """Where data decide, no race is missed. Programs without a race give what any interleaving gives."""
    verdicts = {True: 0, False: 0}
    for seed in range(cases(10_000, 250)):
        program = drawn(seed)
        report = check(program.text)
        if report.code not in ("", "race"):
            continue
        expected = program.races()
        found = report.code == "race"
        assert found == expected or (found and program.by_data), (seed, expected, program.text, str(report))
        verdicts[expected] += 1
        if not found and not program.by_data:
            _same_results(program, report)
    assert min(verdicts.values()) > cases(10_000, 250) // 10


def _same_results(program: SharedProgram, report: Report) -> None:
    built = build(report)
    tensors = program_of(built.overlay).tensors
    inputs = {t.name: np.array(START[t.name], np.float32) for t in tensors if t.input}
    expected = program.results(START)
    for name, values in run_tasks(pack(built), inputs).outputs.items():
        if name in inputs or name.startswith("out"):
            assert values.tolist() == expected[name], (name, program.text)
