"""The C++ machine with random pauses and pipelines that cannot flush: the same bits as without; and a loop of the wrong
style, which loses nothing in a plain run, stops it."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rsn.base.errors import BoardError
from rsn.host.boards.csim import STALLS_VARIABLE, CsimBoard
from rsn.hw.versal.csim import build as b
from rsn.hw.versal.csim import machine
from rsn.hw.versal.csim.csim_deadlock import NativeReport, stalled
from rsn.hw.versal.sources import sources
from rsn.scheduler.graph import ActivationFunction
from rsn.tests.effort import cases, examples, in_full, sampled
from rsn.tests.scheduler.networks import Maker
from rsn.tests.scheduler.test_any_shape import schedules

from ..examples import Example, example
from .native import check_same, native, outcome
from .test_csim_equal import made
from .tile_programs import Case, post_ops, products

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
SEEDS = st.integers(1, 2**64 - 1)


def check_stalls(e: Example | Case, seed: int) -> None:
    plain, stalls = e.banks(), e.banks()
    native().run(e.program, plain)
    native().run(e.program, stalls, stalls=seed)
    check_same(plain, stalls)


@in_full
@pytest.mark.parametrize("name", sampled(["fig10", "encoder"], quick=["fig10"]))
def test_shipped_programs(name: str) -> None:
    for seed in range(1, 1 + cases(6, 2)):
        check_stalls(example(name), seed)


@pytest.mark.long
def test_a_large_product_and_the_array() -> None:
    check_stalls(example("gemm768"), 1)
    e = example("fig10")
    plain, stalls = e.banks(), e.banks()
    native().run(e.program, plain)
    native().run(e.program, stalls, array=True, stalls=1)
    check_same(plain, stalls)


@examples(7, quick=2, phases=UNSHRUNK)
@given(products(), SEEDS)
def test_any_mme_op(case: Case, seed: int) -> None:
    check_stalls(case, seed)


@examples(10, quick=2, phases=UNSHRUNK)
@given(post_ops(), SEEDS)
def test_any_registers_and_post_ops(case: Case, seed: int) -> None:
    check_stalls(case, seed)


@pytest.mark.long
@settings(max_examples=5, phases=UNSHRUNK)
@given(st.integers(1, 300), st.integers(1, 4), st.sampled_from(ActivationFunction), st.booleans(), SEEDS, st.data())
def test_any_encoder(
    seq: int, heads: int, act: ActivationFunction, masked: bool, seed: int, data: st.DataObject
) -> None:
    network = Maker().encoder(1, seq, heads * 64, heads, 256, act=act, masked=masked)
    check_stalls(made(network, data.draw(schedules(network))), seed)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_program_that_cannot_end_is_at_fault_itself(seed: int) -> None:
    """Its report is that of a plain run, although loads that wait for room hold something back."""
    e = example("fig10")
    e = Example(dataclasses.replace(e.program, preloaded={}), e.given)
    plain = outcome(lambda: native().run(e.program, e.banks()))
    assert "deadlock" in plain
    assert outcome(lambda: native().run(e.program, e.banks(), stalls=seed)) == plain


# -- what users set ---------------------------------------------------------------------------------------------------


def test_the_environment_gives_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(machine.Native, "run", lambda *_, stalls, **__: seen.append(stalls) or 1e-3)
    program = dataclasses.replace(example("fig10").program, buffers=(), parameters=())
    for text, argument, wanted in (("", None, 0), ("7", None, 7), ("7", 3, 3), (str(2**64 - 1), None, 2**64 - 1)):
        monkeypatch.setenv(STALLS_VARIABLE, text)
        board = CsimBoard(argument)
        board.load(program, {})
        board.run(program.image, {})
        assert seen.pop() == wanted


@pytest.mark.parametrize("text", ["x", "-1", "1.5", str(2**64)])
def test_another_seed_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STALLS_VARIABLE, text)
    with pytest.raises(BoardError, match=rf"{STALLS_VARIABLE} is .*; set it to a whole number"):
        CsimBoard()


REPORT = """\
wait\tMeshA\t0\tget\tMemA0->MeshA\t1
wait\tMME0\t0\tget\tMeshA->MME0[15]\t512
wait\tLPDDR\t4\tput\tLPDDR->MemB0\t1
held\tMeshA\t0\tMeshA->MME0[0]\t44\t44
held\tMeshA\t0\tMeshA->MME0[1]\t44\t44
held\tLPDDR\t4\tLPDDR->MemB0\t5\t16
"""


def test_the_report_names_the_loop_that_waits_for_input() -> None:
    assert stalled(NativeReport.parse(REPORT), 9).splitlines() == [
        "board csim: deadlock with stalls=9: a pipeline of style stp holds back what others wait for",
        "MeshA uOP 0: waits for MemA0->MeshA; its loop of 44 stages holds 44 for MeshA->MME0",
        "also blocked: MME0, LPDDR",
        "a loop that waits for one stream and writes to another needs style=flp (hw/versal/README.md)",
    ]
    assert stalled(NativeReport.parse("".join(REPORT.splitlines(keepends=True)[2:3])), 9) == ""


# -- a loop of the wrong style ----------------------------------------------------------------------------------------

FEEDBACK = """\
// MemB0 sends a second tile only when the first has come through MeshB: two tiles that depend on each other in one uOP.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "pl/dataflow.h"
#include "pl/units.h"
#include "right.h"
#include "wrong.h"
using namespace rsn::xnn;

constexpr unsigned tiles = 3;
using Lanes = hls::stream<Lane>[lanes];

void mem_b0(hls::stream<Beat> &to, hls::stream<float> &done) {
    for (unsigned n = 0; n < tiles; ++n) {
        for (unsigned t = 0; t < beats_per_tile; ++t) to << Beat(static_cast<float>(n * beats_per_tile + t));
        done.read();
    }
}

void mme0(hls::stream<Lane> *from, hls::stream<float> &done) {
    for (unsigned n = 0; n < tiles; ++n) {
        for (unsigned t = 0; t < beats_per_tile; ++t)
            for (unsigned i = 0; i < lanes; ++i)
                if (from[i].read()[0] != static_cast<float>(n * beats_per_tile + t)) throw std::logic_error("order");
        done << 1.0f;
    }
}

int main(int, char **words) {
    rsn::csim::Machine machine({}, std::strtoull(words[2], nullptr, 10));
    const bool wrong = !std::strcmp(words[1], "wrong");
    machine.start("top", [&] {
        Lanes out[6];
        for (unsigned m = 0; m < 6; ++m)
            for (unsigned i = 0; i < lanes; ++i) out[m][i].open(("lane of MME" + std::to_string(m)).c_str(), 512);
        hls::stream<Beat, 512> from0("MemB0->MeshB"), from1("MemB1->MeshB"), from2("MemB2->MeshB");
        hls::stream<Uop<MeshB::words>, 2> uops("uops");
        hls::stream<float, 2> done("done");
        Uop<MeshB::words> uop = {false, false, {}};
        MeshB op;
        op.size = tiles * beats_per_tile;
        op.b0_0 = true;
        op.encode(uop.words);
        uops << uop << Uop<MeshB::words>{true, false, {}};
        RSN_DATAFLOW();
        RSN_PROCESS("MemB0", mem_b0, from0, done);
        RSN_PROCESS("MME0", mme0, out[0], done);
        RSN_PROCESS("MeshB", (wrong ? wrong_mesh : right_mesh), uops, from0, from1, from2, out[0], out[1], out[2],
                    out[3], out[4], out[5]);
    });
    while (machine.wait(1000) == rsn::csim::Machine::State::running) {
    }
    std::printf("%s\\n", machine.wait(0) == rsn::csim::Machine::State::done ? "done" : "deadlock");
    for (const auto &held : machine.held())
        std::printf("%s %zu of %u\\n", held.unit.c_str(), held.count, held.stages);
}
"""


@pytest.mark.long
def test_a_mesh_that_cannot_flush_stops_where_a_tile_depends_on_the_one_before(tmp_path: Path) -> None:
    """A plain run shows nothing; every seed does."""
    versal = sources()
    source = (versal / "pl/mesh_b.cpp").read_text(encoding="utf-8").replace('#include "', '#include "pl/')
    right = source.replace("void mesh_b(", "void right_mesh(")
    assert "mesh_b_beats:" in source
    wrong = source.replace("void mesh_b(", "void wrong_mesh(").replace(
        "    mesh_b_beats:", "RSN_STALLS();mesh_b_beats:"
    )
    for name, text in (("right", right), ("wrong", wrong), ("t", FEEDBACK)):
        (tmp_path / f"{name}.{'cpp' if name == 't' else 'h'}").write_text(text, encoding="utf-8")
    include = [f"-I{folder}" for folder in (tmp_path, versal, versal / "csim/include")]
    flags = [flag for flag in b.FLAGS if flag != "-O3"]
    files = [tmp_path / "t.cpp", versal / "csim/machine.cpp"]
    subprocess.run([b.compiler(), *flags, *include, *files, "-o", tmp_path / "t"], check=True)

    def run(which: str, seed: int) -> list[str]:
        done = subprocess.run([tmp_path / "t", which, str(seed)], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    for seed in (0, 1, 2, 3, 4, 5):
        assert run("right", seed) == ["done"]
    assert run("wrong", 0) == ["done"]
    for seed in (1, 2, 3, 4, 5):
        verdict, *held = run("wrong", seed)
        assert verdict == "deadlock"
        assert len(held) == 16
        (line,) = set(held)
        unit, count, _, stages = line.split()
        assert (unit, count) == ("MeshB", stages)
