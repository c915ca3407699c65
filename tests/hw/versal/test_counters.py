"""The counters of few bits in `pl/` count as wide ones do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rsn.hw.versal.csim.build import FLAGS, compiler
from rsn.hw.versal.sources import sources

COUNTERS = """\
#include <cstdio>
#include "pl/counter.h"
#include "pl/mem_c.h"
using namespace rsn::xnn;

// How often a walk is not where it should be.
template <unsigned Rounds>
int walked(unsigned rows, unsigned cols) {
    int wrong = 0;
    Walk<Rounds> at(rows);
    for (unsigned col = 0; col < cols; col += 8)
        for (unsigned row = 0; row + 4 <= rows; row += 4)
            for (unsigned round = 0; round < Rounds; ++round, at.next()) {
                wrong += !at.more(cols) || at.row != row || at.col != col || at.round != round;
                wrong += at.begins() != (round == 0) || at.ends() != (round == Rounds - 1);
            }
    return wrong + at.more(cols);
}

int main() {
    int wrong = 0;
    for (unsigned rounds : {0u, 1u, 2u, 1022u, 1023u, 1024u, 1025u, 2047u, 2048u, 70000u}) {
        unsigned taken = 0;
        for (Countdown<17> left(rounds); left.more(); left.next()) ++taken;
        wrong += taken != rounds;
    }
    for (unsigned rows = 0; rows < 512; ++rows)
        for (unsigned cols : {0u, 128u, 512u}) wrong += walked<1>(rows, cols) + walked<8>(rows, cols);
    bool noticed = false;
    try {
        Counter too_large = 1023;
        ++too_large;
    } catch (const std::out_of_range &) {
        noticed = true;
    }
    std::printf("%d %d\\n", wrong, noticed);
}
"""


@pytest.mark.long
def test_counters_of_few_bits_count_as_wide_ones_do(tmp_path: Path) -> None:
    versal = sources()
    (tmp_path / "t.cpp").write_text(COUNTERS, encoding="utf-8")
    include = [f"-I{versal}", f"-I{versal / 'csim/include'}"]
    files = [str(tmp_path / "t.cpp"), str(versal / "csim/machine.cpp")]
    flags = [flag for flag in FLAGS if flag != "-O3"]
    subprocess.run([compiler(), *flags, *include, *files, "-o", str(tmp_path / "t")], check=True)
    done = subprocess.run([str(tmp_path / "t")], capture_output=True, text=True, check=True)
    assert done.stdout == "0 1\n"
