"""Pipelines over boards of several kinds: the simulator, the C++ machine, and boards behind ssh://; and those of which
some cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import rsn  # noqa: E402
from rsn.base.errors import BoardError  # noqa: E402
from rsn.cli.serve_replicas import Copies, told_boards  # noqa: E402
from rsn.host.replicas.replicated import ReplicatedServer  # noqa: E402
from rsn.tests.host.sshd import Server  # noqa: E402
from rsn.tests.test_stages import bert, difference, same  # noqa: E402

pytestmark = pytest.mark.long
STAGES = 3


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A model in stages, and its result."""
    path = tmp_path_factory.mktemp("stages") / "bert.rsnmodel"
    model, example = bert()
    with rsn.compile(model, example) as whole, rsn.compile(model, example, boards=STAGES) as cut:
        cut.save(path)
        return path, whole(**example)


@contextmanager
def served(path: Path, boards: Sequence[str]) -> Iterator[ReplicatedServer]:
    copies = Copies(path, boards, "sim", None, None, queue=8, max_wait_s=0.0, timeout_s=60.0, xclbin=None)
    with copies.server("bert", None) as server:
        yield server


def test_each_stage_has_another_kind_of_board(saved: tuple[Path, Any], server: Server) -> None:
    path, wanted = saved
    boards = ["sim", "csim", server.url]
    with served(path, boards) as made:
        assert [[report.board for report in stages] for stages in made.reports()] == [boards]
        for _ in range(2):
            assert difference(made.ask(bert()[1]).result(60), wanted) < 1e-6  # the C++ machine sums in another order


def test_boards_that_cannot_be_used_are_passed_over(saved: tuple[Path, Any], server: Server) -> None:
    """A board whose computer does not answer, and boards of another overlay, on this computer and behind ssh."""
    path, wanted = saved
    nobody, others = "ssh://127.0.0.1:1/sim", ["vck190-xnn2@sim", server.url.replace("/sim", "/vck190-xnn2@sim")]
    with served(path, [nobody, *others, server.url, "sim"]) as made:
        assert same(made.ask(bert()[1]).result(60), wanted)
        told = told_boards(made)
        (stages,) = made.reports()
    assert {report.board for report in stages} <= {server.url, "sim"}
    assert f"{nobody} does not work: " in told
    assert "Connection refused" in told
    for other in others:
        assert f"{other} does not work: " in told
    assert told.count("xnn2") >= 2 * len(others)


def test_no_board_that_can_be_used(saved: tuple[Path, Any]) -> None:
    boards = ["vck190-xnn2@sim", "ssh://127.0.0.1:1/sim", "ssh://nowhere.invalid/sim"]
    with (
        pytest.raises(BoardError, match=r"0 of 1 replicas are ready") as raised,
        served(saved[0], boards),
    ):
        pass
    assert all(f"{board} does not work: " in str(raised.value) for board in boards)
