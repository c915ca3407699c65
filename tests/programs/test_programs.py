"""The programs by hand: what they compute, what they cost, and what a mistake in one looks like."""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import rsn
from rsn.assembler.parser import parse
from rsn.assembler.printer import show
from rsn.base.errors import DeadlockError, ProgramError
from rsn.host import tensors
from rsn.host.runner import Result, Runner
from rsn.hw.sim.machine import simulate
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.overlays.fig6 import FIG6
from rsn.isa.program import Program, Role, UnpackedProgram
from rsn.isa.statistics import count
from rsn.isa.verify import verify
from rsn.machine.executor import ProcessNetwork
from rsn.scheduler.pack import pack

FOLDER = Path(str(rsn.__file__)).parent / "programs"
Array = np.ndarray

REFERENCE: dict[str, Callable[..., Array]] = {
    "fig6_app1": lambda x: x + 1,
    "fig6_app2": lambda x: np.concatenate([x[:100] + 1, x[100:200], x[200:] + 1]),
    "fig7_app1": lambda x, w: x @ w,
    "fig7_app2": lambda x, w1, w2: x @ w1 @ w2,
    "fig10": lambda x, w: x @ w,
    "gemm768": lambda x, w: x @ w,
}


def assemble(text: str, file: str) -> Program:
    kernels = parse(text, file)
    assert isinstance(kernels, UnpackedProgram)
    return pack(kernels)


@cache
def program(name: str) -> Program:
    file = FOLDER / f"{name}.rsn"
    return assemble(file.read_text(encoding="utf-8"), file.name)


@cache
def arguments(name: str) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    given = [*program(name).with_role(Role.INPUT), *program(name).with_role(Role.WEIGHT)]
    return {b.name: rng.standard_normal(b.shape).astype(np.float32) for b in given}


def memories(name: str) -> dict[str, Array]:
    """The banks as they are before a run; NaN where nothing was written."""
    p = program(name)
    banks = {bank: np.full(p.bank_size(bank), np.nan, np.float32) for bank in p.overlay.banks}
    for buffer, tensor in arguments(name).items():
        b = p.buffer(buffer)
        at = b.offset * p.overlay.address_unit
        banks[b.bank][at : at + b.size] = tensors.pack(b, tensor)
    return banks


@cache
def run(name: str) -> Result:
    p, values = program(name), arguments(name)
    weights = {b.name: tensors.pack(b, values[b.name]) for b in p.with_role(Role.WEIGHT)}
    with Runner(p, weights=weights) as runner:
        return runner.run({b.name: values[b.name] for b in p.with_role(Role.INPUT)})


def test_every_program_has_a_reference() -> None:
    assert sorted(REFERENCE) == sorted(file.stem for file in FOLDER.glob("*.rsn"))


@pytest.mark.parametrize("name", REFERENCE)
def test_result_is_that_of_numpy(name: str) -> None:
    expected = REFERENCE[name](**arguments(name))
    assert np.abs(run(name).outputs["y"] - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("name", REFERENCE)
def test_nothing_to_complain_about(name: str) -> None:
    assert verify(program(name)) == []


@pytest.mark.parametrize("name", REFERENCE)
def test_time_does_not_need_data(name: str) -> None:
    alone, with_data = simulate(program(name)), run(name).run
    assert (alone.latency_s, alone.critical_path) == (with_data.latency_s, with_data.critical_path)


@pytest.mark.parametrize("name", ["fig6_app2", "fig7_app2", "fig10"])
@pytest.mark.parametrize("seed", range(3))
def test_order_of_stepping_changes_nothing(name: str, seed: int) -> None:
    """A Kahn network: what is computed and when follows from the program alone."""

    def execute(order: Callable[[list[object]], list[object]]) -> tuple[float, dict[str, float], dict[str, Array]]:
        p, banks = program(name), memories(name)
        net = ProcessNetwork(p.overlay, InstructionPath.of(p), banks=dict(banks), data=True, order=order)
        return net.run(), {u: at.busy for u, at in net.progress.items()}, banks

    shuffle = random.Random(seed)
    end, busy, banks = execute(lambda tasks: tasks)
    other_end, other_busy, other_banks = execute(lambda tasks: shuffle.sample(tasks, len(tasks)))
    assert (end, busy) == (other_end, other_busy)
    for bank, values in banks.items():
        np.testing.assert_array_equal(values, other_banks[bank])


@pytest.mark.parametrize("name", REFERENCE)
def test_packed_text_gives_the_same_image(name: str) -> None:
    again = parse(show(program(name)), "again.rsn")
    assert isinstance(again, Program)
    np.testing.assert_array_equal(again.image, program(name).image)
    assert again.buffers == program(name).buffers


# -- what the paper says of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "uops"), [("fig6_app1", (1, 1, 1)), ("fig6_app2", (3, 1, 3))])
def test_fig6_needs_as_few_uops_as_the_paper(name: str, uops: tuple[int, int, int]) -> None:
    counts = count(program(name))["uops"]
    assert tuple(counts[u] for u in ("FU1", "FU2", "FU3")) == uops


def test_fig6_units_work_at_the_same_time() -> None:
    """Packets of 3, 2 and 3 words have left the dispatcher at cycle 8, FU3's decoder takes one more; from then on it
    stores an element a cycle, the next ones being read and incremented meanwhile."""
    assert simulate(program("fig6_app1")).latency_s == pytest.approx(109 / FIG6.clock_hz)


def test_fig7_layers_meet_on_chip() -> None:
    """Application 2 reads x once and each weight once per tile, and writes y alone."""
    moved = run("fig7_app2").run.bytes
    assert (moved["ddr_read"], moved["ddr_write"]) == (4 * (200 + 2 * 100 + 2 * 100), 4 * 200)


def test_fig7_layers_overlap() -> None:
    """Three rounds of 1000 pairs for two layers of two tiles: layer 2 of a tile runs beside layer 1 of the next."""
    cycles = simulate(program("fig7_app2")).latency_s * FIG6.clock_hz
    assert 3000 < cycles < 3300


def test_fig10_counts_are_those_of_section_4_1() -> None:
    p = program("fig10")
    uops = count(p)["uops"]
    assert uops["MemA"] == 1 + 15 + 1
    assert uops["MemB"] == 2 * 17
    assert uops["DDR"] == 2 * (8 + 2)
    assert uops["LPDDR"] == 32
    assert uops["MeshA"] == uops["MeshB"] == 1
    mops = count(p)["mops"]
    assert (mops["MemA"], mops["MemB"], mops["MemC"]) == (3, 3, 3)  # prolog, steady state, epilog; shared by two units
    tile = 4 * 128 * 128
    moved = run("fig10").run.bytes
    assert (moved["ddr_read"], moved["ddr_write"], moved["lpddr_read"]) == (16 * tile, 4 * tile, 32 * tile)


# -- mistakes -----------------------------------------------------------------------------------------------------

MISTAKES = {
    "one store too few": (
        "fig6_app1",
        "y[0:100]",
        "y[0:99]",
        """\
the program ends with data left in streams (more sent than received)
  FU2->FU3: 1 of 2 words, the last from FU2 uOP 0 (fig6_app1.rsn:12)""",
    ),
    "one send too few": (
        "fig6_app1",
        "x[0:100]",
        "x[0:99]",
        """\
deadlock: no unit can move
each waits for the next, and the last for FU1, which has ended:
  FU3  uOP 0 (fig6_app1.rsn:13)  waits to get FU2->FU3 (0/2 empty)
  FU2  uOP 0 (fig6_app1.rsn:12)  waits to get FU1->FU2 (0/2 empty; FU1 has ended)
first imbalance: FU1->FU2: 99 words sent, 100 received; FU2 uOP 0 (fig6_app1.rsn:12) is the first that waits for words \
which FU1 never sends""",
    ),
    "no increment for the last piece": (
        "fig6_app2",
        "size=200",
        "size=100",
        """\
deadlock: no unit can move
FU1 waits for FU2, which has ended:
  FU1  uOP 2 (fig6_app2.rsn:15)  waits to put FU1->FU2 (2/2 full; FU2 has ended)
also blocked:
  FU3  uOP 2 (fig6_app2.rsn:23)  waits to get FU2->FU3 (0/2 empty; FU2 has ended)
first imbalance: FU1->FU2: 200 words sent, 100 received; FU1 uOP 2 (fig6_app2.rsn:15) is the first that sends words \
which FU2 never receives
sends and receives differ also on FU2->FU3""",
    ),
    "the wrong path": (
        "fig7_app2",
        "OUT1->Compute2",
        "LHS2->Compute2",
        """\
deadlock: no unit can move
each waits for the next, and the last for LHS2, which has ended:
  RHS2      uOP 1 (fig7_app2.rsn:30)  waits to put RHS2->Compute2 (2/2 full)
  Compute2  uOP 0 (fig7_app2.rsn:37)  waits to get Mesh->Compute2 (0/2 empty)
  Mesh      uOP 0 (fig7_app2.rsn:34)  waits to get LHS2->Mesh (0/2 empty; LHS2 has ended)
also blocked:
  OUT1      uOP 1 (fig7_app2.rsn:42)  waits to put OUT1->Mesh (2/2 full)
  OUT2      uOP 0 (fig7_app2.rsn:47)  waits to get Compute2->OUT2 (0/2 empty)
first imbalance: LHS2->Mesh: 0 words sent, 2000 received; Mesh uOP 0 (fig7_app2.rsn:34) is the first that waits for \
words which LHS2 never sends
sends and receives differ also on OUT1->Mesh""",
    ),
    "one load too many": (
        "fig10",
        "for STEPS-1 {",
        "for STEPS {",
        """\
deadlock: no unit can move
MemA0 waits for DDR, which has ended:
  MemA0  uOP 16 (fig10.rsn:41)  waits to get DDR->MemA0 (0/256 empty; DDR has ended)
first imbalance: DDR->MemA0: 8192 words sent, 8704 received; MemA0 uOP 16 (fig10.rsn:41) is the first that waits for \
words which DDR never sends
sends and receives differ also on MemA0->MeshA""",
    ),
    "one load too few": (
        "fig10",
        "for STEPS-1 {",
        "for STEPS-2 {",
        """\
deadlock: no unit can move
each waits for the next, and the last for MemA0, which has ended:
  MemC0  uOP 1 (fig10.rsn:63)   waits to get MME0->MemC0 (0/2 empty)
  MME0   uOP 0 (fig10.rsn:59)   waits to get MeshA->MME0 (0/2 empty)
  MeshA  uOP 0 (fig10.rsn:55)   waits to get MemA0->MeshA (0/1 empty; MemA0 has ended)
also blocked:
  DDR    uOP 17 (fig10.rsn:21)  waits to put DDR->MemA0 (256/256 full; MemA0 has ended)
  MME1   uOP 0 (fig10.rsn:59)   waits to get MeshA->MME1 (0/2 empty)
  MemC1  uOP 1 (fig10.rsn:63)   waits to get MME1->MemC1 (0/2 empty)
first imbalance: MemA0->MeshA: 15 words sent, 16 received; MeshA uOP 0 (fig10.rsn:55) is the first that waits for \
words which MemA0 never sends
sends and receives differ also on DDR->MemA0""",
    ),
}


@pytest.mark.parametrize(("name", "right", "wrong", "report"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_reported_where_it_shows(name: str, right: str, wrong: str, report: str) -> None:
    text = (FOLDER / f"{name}.rsn").read_text(encoding="utf-8")
    assert right in text
    with pytest.raises(ProgramError) as e:
        assemble(text.replace(right, wrong, 1), f"{name}.rsn")
    assert str(e.value) == report
    assert isinstance(e.value, DeadlockError) == report.startswith("deadlock")


def test_access_beyond_the_memory_names_the_unit() -> None:
    p = program("fig6_app1")
    banks = {"ddr": np.zeros(150, np.float32)}
    with pytest.raises(ProgramError, match=r"FU3 writes 1 elements at 150, beyond its 150"):
        simulate(p, banks)
