"""Op lists reach the tiles when the graph lacks them, in the order that its kind of parameters asks for."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rsn.base.errors import BoardError
from rsn.host import tensors
from rsn.host.boards.device import BoardLost
from rsn.host.boards.in_process import InProcess
from rsn.host.boards.probes import trial_inputs, trial_program, wrong
from rsn.host.boards.profile import VCK190, VCK190_ISCA25, Profile, find_profile
from rsn.host.boards.session import Session
from rsn.host.boards.tiles import parameters
from rsn.host.boards.xrt import XrtBoard
from rsn.isa.program import Program
from rsn.scheduler.build import Built
from rsn.tests.effort import sampled

from .faulty import Faulty, raising
from .programs import X, attention, base

SYNC = dataclasses.replace(VCK190, parameters="sync")
GRAPH = ("reset_graph", "update_parameter", "run_graph", "start", "wait_graph")


class Noted(Faulty):
    """Notes the calls that concern the graph, those of one name in a row once, with their number."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> object:
        if name in GRAPH:
            before = self.log.pop() if self.log and self.log[-1][0] == name else (name, 0)
            self.log.append((name, before[1] + 1))
        return super().__getattr__(name)

    def told(self) -> list[tuple[str, int]]:
        told, self.log = self.log, []
        return told


def run(board: XrtBoard, built: Built) -> tuple[np.ndarray, dict[str, str]]:
    x = tensors.pack(built.program.buffer("x"), X)
    outputs, run = board.run(built.program.image, {"x": x})
    return outputs["y"], run.facts


def loaded(session: Session, built: Built) -> XrtBoard:
    board = XrtBoard(session)
    board.load(built.program, built.weights)
    return board


def differ(*programs: Program) -> int:
    """How many tiles have other op lists in the second program."""
    first, second = (parameters(p, "G") for p in programs)
    return sum(not np.array_equal(first[port], second[port]) for port in second)


def test_asynchronous_ones_are_written_once_and_before_the_run() -> None:
    device = Noted()
    board = loaded(Session(VCK190, device), attention())
    assert device.told() == [("start", 1), ("reset_graph", 1)]  # the probe needs no graph
    once = [("run_graph", 1), ("start", 1), ("wait_graph", 1)]
    for first in (True, False, False):
        facts = run(board, attention())[1]
        assert device.told() == [("update_parameter", 384)] * first + once
        assert facts["parameters_written"] == ("384" if first else "0")
        assert float(facts["parameters_s"]) >= 0
    board.close()
    run(loaded(Session(VCK190, device), attention()), attention())  # another session knows nothing
    assert ("update_parameter", 384) in device.told()


@pytest.mark.long
def test_synchronous_ones_are_written_in_each_run() -> None:
    device = Noted()
    board = loaded(Session(SYNC, device), attention())
    expected = run(loaded(Session(VCK190, Faulty()), attention()), attention())[0]
    device.told()
    for _ in range(2):
        got, facts = run(board, attention())
        np.testing.assert_array_equal(got, expected)
        assert device.told() == [("run_graph", 1), ("update_parameter", 384), ("start", 1), ("wait_graph", 1)]
        assert facts["parameters_written"] == "384"
    assert device.made["reset_graph"] == 1


@pytest.mark.parametrize("profile", sampled([VCK190, SYNC], [VCK190]), ids=lambda p: p.parameters)
def test_programs_in_turn(profile: Profile) -> None:
    """On one device: when the program changes, the lists that differ are written, and the results are right."""
    session = Session(profile, Noted())
    builts = (attention(), base(), attention())
    alone = [run(loaded(Session(VCK190, Faulty()), b), b)[0] for b in builts[:2]] * 2
    boards = [loaded(session, b) for b in builts]
    changed = differ(builts[0].program, builts[1].program)
    assert changed
    for i, written in ((0, 384), (2, 0), (1, changed), (1, 0), (0, changed)):
        got, facts = run(boards[i], builts[i])
        np.testing.assert_array_equal(got, alone[i])
        assert facts["parameters_written"] == (str(written) if profile is VCK190 else "384")


@pytest.mark.long
def test_threads_with_programs_of_their_own() -> None:
    """They take turns, and each turn finds the lists of its program."""
    session, builts = Session(VCK190, Faulty()), (attention(), base())
    alone = [run(loaded(Session(VCK190, Faulty()), b), b)[0] for b in builts]
    boards = [loaded(session, b) for b in builts]

    def client(i: int) -> bool:
        return all(np.array_equal(run(boards[i], builts[i])[0], alone[i]) for _ in range(6))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(client, (0, 1, 0, 1)))


def test_one_mme_with_another_list() -> None:
    """Of two programs that differ in the list of one MME, its 64 tiles are written; each computes what it should."""
    first = trial_program(VCK190.overlay)
    given = trial_inputs(first)
    inside = dataclasses.replace(first.preloaded["MME5"][0], acc_k=1)  # one product is also a sum
    second = dataclasses.replace(first, preloaded={**first.preloaded, "MME5": (inside,)})
    assert differ(first, second) == 64
    session = Session(VCK190, Faulty())
    boards = [XrtBoard(session) for _ in range(2)]
    for board, program in zip(boards, (first, second), strict=True):
        board.load(program, {"w": given["w"]})
    for i, written in ((0, "384"), (1, "64"), (1, "0"), (0, "64")):
        outputs, ran = boards[i].run(first.image, {"x": given["x"]})
        assert (ran.facts["parameters_written"], wrong(first, outputs["y"])) == (written, "")


@pytest.mark.parametrize("profile", sampled([VCK190, SYNC], [VCK190]), ids=lambda p: p.parameters)
@pytest.mark.parametrize("number", sampled([1, 30, 384], [30]))
def test_after_an_error_between_writes_all_are_unknown(profile: Profile, number: int) -> None:
    device = Faulty()
    session = Session(profile, device)
    boards = [loaded(session, b) for b in (attention(), base())]
    expected = run(boards[0], attention())[0]
    device.next("update_parameter", raising(BoardLost("gone")), min(number, 64))
    with pytest.raises(BoardLost):
        run(boards[1], base())
    if profile is SYNC:  # the graph was running
        device.reboot()
    got, facts = run(boards[0], attention())
    np.testing.assert_array_equal(got, expected)
    assert facts["parameters_written"] == "384"


# -- the device in this process


def opened(profile: Profile) -> InProcess:
    device = InProcess()
    device.open(profile, None)
    device.reset_graph()
    return device


def test_when_a_graph_takes_a_parameter() -> None:
    port, words = next(iter(parameters(attention().program, "G").items()))
    device = opened(VCK190)
    device.update_parameter(port, words)
    device.run_graph()
    with pytest.raises(BoardError, match="the graph is running, so that it cannot take asynchronous parameters"):
        device.update_parameter(port, words)
    device = opened(VCK190_ISCA25)
    with pytest.raises(BoardError, match="the graph is not running, so that it cannot take synchronous parameters"):
        device.update_parameter(port, words)
    device.run_graph()
    device.update_parameter(port, words)


def test_a_profile_says_which_kind(tmp_path: Path) -> None:
    assert (VCK190.parameters, VCK190_ISCA25.parameters) == ("async", "sync")
    mine = tmp_path / "mine.toml"
    for text, kind in (
        ('base = "vck190"', "async"),
        ('base = "vck190-isca25"', "sync"),
        ('base = "vck190"\nparameters = "sync"', "sync"),
    ):
        mine.write_text(text, encoding="utf-8")
        assert find_profile(str(mine)).parameters == kind
    mine.write_text('base = "vck190"\nparameters = "both"', encoding="utf-8")
    with pytest.raises(BoardError, match="parameters = 'both': unknown key, or a value of a wrong type"):
        find_profile(str(mine))
