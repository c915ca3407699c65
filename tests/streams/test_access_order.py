"""Accesses to shared tensors: what the check says is what all interleavings say."""

from __future__ import annotations

from rsn.streams.check import check
from rsn.tests.effort import cases, in_both
from rsn.tests.streams.interleavings import drawn


@in_both
def test_a_race_is_found_if_and_only_if_two_interleavings_differ() -> None:
    verdicts = {True: 0, False: 0}
    for seed in range(cases(20_000, 400)):
        program = drawn(seed)
        report = check(program.text)
        if report.code not in ("", "race"):
            continue
        expected = program.races()
        found = report.code == "race"
        assert found == expected or (found and program.by_data), (seed, expected, program.text, str(report))
        verdicts[expected] += 1
    assert min(verdicts.values()) > cases(20_000, 400) // 10
