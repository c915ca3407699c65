"""Searches: the same trials whatever evaluates them and however often they are interrupted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import le
from pathlib import Path

import pytest

from rsn.base.errors import MissingError, StudyError
from rsn.tests.tuning.valley import Valley
from rsn.tuning.page import page
from rsn.tuning.problem import Choice, Knob, Outcome, Problem
from rsn.tuning.study import StudyResult, Trial, tune
from rsn.tuning.workers import InThisProcess, workers

pytest.importorskip("optuna")


def found(result: StudyResult) -> list[tuple[Choice, Outcome]]:
    return [(trial.choice, trial.outcome) for trial in result.trials]


def test_it_begins_with_the_defaults_and_finds_the_lowest_point() -> None:
    result = tune(Valley(), 40)
    assert result.trials[0].choice == {"x": 5, "y": 4}
    assert [trial.choice for trial in result.best] == [{"x": 3, "y": 8}]


def test_a_small_problem_is_searched_exhaustively() -> None:
    result = tune(Valley(), 1000)
    assert len({str(sorted(trial.choice.items())) for trial in result.trials}) == 50
    refused = {t.outcome.refused for t in result.trials if t.choice["x"] == 9}
    assert refused == {"x = 9 does not fit"}
    assert result.best[0].outcome.costs == (0.0,)


def test_several_goals_give_the_choices_that_none_beats() -> None:
    result = tune(Valley(goals=("cost", "x")), 1000)
    assert [trial.outcome.costs for trial in result.best] == [(0.0, 3.0), (1.0, 2.0), (4.0, 1.0), (9.0, 0.0)]


@pytest.mark.parametrize("goals", [("cost",), ("cost", "x")])
def test_an_interrupted_study_goes_on_with_the_same_trials(tmp_path: Path, goals: tuple[str, ...]) -> None:
    problem = Valley(goals=goals)
    whole = tune(problem, 24, seed=3)
    tune(problem, 8, seed=3, file=tmp_path / "study.log")

    class Interrupted(Exception):
        pass

    seen: list[int] = []

    def stop(trial: object) -> None:
        seen.append(1)
        if len(seen) == 2:
            raise Interrupted  # in the middle of a round

    with pytest.raises(Interrupted):
        tune(problem, 24, seed=3, file=tmp_path / "study.log", observe=stop)
    assert found(tune(problem, 24, seed=3, file=tmp_path / "study.log")) == found(whole)


@pytest.mark.parametrize("kept", [1.0, 2.0, 3.0, 8.0, 8.5])
def test_a_study_goes_on_wherever_its_file_ends(tmp_path: Path, kept: float) -> None:
    problem, file = Valley(), tmp_path / "study.log"
    tune(problem, 12, seed=3, file=file)
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) > 12
    whole, torn = lines[: int(kept)], lines[int(kept)]
    file.write_text("".join(whole) + torn[: int(len(torn) * (kept % 1))])
    assert found(tune(problem, 12, seed=3, file=file)) == found(tune(problem, 12, seed=3))


def test_a_study_that_goes_on_to_all_choices_tries_the_others_first(tmp_path: Path) -> None:
    file = tmp_path / "study.log"
    first = [str(trial.choice) for trial in tune(Valley(), 20, file=file).trials]
    after = [str(trial.choice) for trial in tune(Valley(), 50, file=file).trials][len(first) :]
    left = 50 - len(set(first))
    assert len(set(after[:left]) - set(first)) == left
    assert len(after) == -(-left // 4) * 4


def test_another_seed_gives_other_trials() -> None:
    assert found(tune(Valley(), 12, seed=1)) != found(tune(Valley(), 12, seed=2))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 1}, "it has seed 0, not 1; give another file"),
        ({"together": 2}, "it has together 4, not 2"),
        ({"problem": Valley("hill")}, "it has problem valley, not hill"),
        (
            {"problem": Valley(knobs=(Knob("x", (1, 2, 3)),), start=({"x": 1},))},
            r"it has knobs \{'x': \[0, 1.*\}, not \{'x': \[1, 2, 3\]\}; give another file",
        ),
        ({"problem": Valley(goals=("cost", "x"))}, r"it has goals \['cost'\], not \['cost', 'x'\]"),
    ],
)
def test_a_study_file_belongs_to_one_search(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    file = tmp_path / "study.log"
    usual: dict[str, object] = {"problem": Valley(), "trials": 4, "file": file}
    tune(**usual)  # type: ignore[arg-type]
    with pytest.raises(StudyError, match=message):
        tune(**usual | changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("goals", [("cost",), ("cost", "x")])
def test_neighbours_of_the_best_are_tried(tmp_path: Path, goals: tuple[str, ...]) -> None:
    """A round has three neighbours: of the trials before that none beats, changed in one knob or two."""
    problem, file = Valley(goals=goals), tmp_path / "study.log"
    result = tune(problem, 20, seed=1, neighbours=True)
    tune(problem, 8, seed=1, neighbours=True, file=file)
    assert found(tune(problem, 20, seed=1, neighbours=True, file=file)) == found(result)
    for first in range(4, len(result.trials), 4):
        before = result_of_first(result, first)
        for trial in result.trials[first : first + 3]:
            changes = [sum(trial.choice[k.name] != best.choice[k.name] for k in problem.knobs) for best in before]
            assert 1 <= min(changes) <= 2
            assert trial.choice not in [t.choice for t in result.trials[:first]]
    with pytest.raises(StudyError, match="it has neighbours True, not None; give another file"):
        tune(problem, 20, seed=1, file=file)


@dataclass(frozen=True)
class Plain:
    """A cost of many knobs, of which few matter, so that many choices cost the same."""

    name: str = "plain"
    goals: tuple[str, ...] = ("cost",)
    knobs: tuple[Knob, ...] = tuple(Knob(name, tuple(range(8))) for name in "abcdef")
    start: tuple[Choice, ...] = (dict.fromkeys("abcdef", 4),)

    def evaluate(self, choice: Choice) -> Outcome:
        return Outcome((float(choice["a"]) // 2, float(choice["b"]) // 4)[: len(self.goals)])


class Rounds:
    """Evaluates in this process, and keeps how many choices it is given at a time."""

    def __init__(self, problem: Problem) -> None:
        self.given: list[int] = []
        self._in_process = InThisProcess(problem)

    def evaluate(self, choices: Sequence[Choice]) -> Iterator[tuple[int, Outcome]]:
        self.given.append(len(choices))
        return self._in_process.evaluate(choices)


@pytest.mark.parametrize(("trials", "rounds"), [(1, 1), (5, 1), (6, 2), (11, 3)])
def test_trials_are_rounded_up_to_whole_rounds(trials: int, rounds: int) -> None:
    counted, seen = Rounds(Plain()), list[Trial]()
    result = tune(Plain(), trials, together=5, workers=counted, observe=seen.append)
    assert counted.given == [5] * rounds
    assert seen == [*result.trials]
    assert [trial.number for trial in result.trials] == [*range(5 * rounds)]


def test_a_round_has_one_choice_of_optuna_beside_its_neighbours() -> None:
    """Of six knobs a neighbour of the best, or of a mixture of two, differs from both in two at most."""
    problem = Plain()
    result = tune(problem, 40, together=4, seed=5, neighbours=True)
    others = []
    for first in range(4, 40, 4):
        best = [trial.choice for trial in result_of_first(result, first)]
        for trial in result.trials[first : first + 4]:
            own = [sum(trial.choice[k] not in (x[k], y[k]) for k in "abcdef") for x in best for y in best]
            others.append(min(own) > 2)
        assert others[-4:-1] == [False] * 3
    assert any(others)


@pytest.mark.parametrize("goals", [("cost",), ("cost", "other")])
def test_of_equal_choices_the_first_is_the_best(goals: tuple[str, ...]) -> None:
    """Not none of them, as if they beat each other, and not all."""
    result = tune(Plain(goals=goals), 40)
    costs = [trial.outcome.costs for trial in result.trials]
    assert len(set(costs)) < len(costs)
    unbeaten = sorted({trial.outcome.costs for trial in result_of_first(result, 40)})
    assert [trial.outcome.costs for trial in result.best] == unbeaten
    assert [trial.number for trial in result.best] == [costs.index(x) for x in unbeaten]


def result_of_first(result: StudyResult, count: int) -> list[Trial]:
    """Of the first trials those that none beats."""
    costly = [t for t in result.trials[:count] if t.outcome.costs]

    def beaten(trial: Trial) -> bool:
        costs = trial.outcome.costs
        return any(all(map(le, t.outcome.costs, costs)) and t.outcome.costs != costs for t in costly)

    return [t for t in costly if not beaten(t)]


def test_trials_that_an_older_version_left_open_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "study.log"
    tune(Valley(), 4, file=file).study.ask()
    with pytest.raises(StudyError, match="it has trials without an outcome, of an older version; give another file"):
        tune(Valley(), 4, file=file)


def test_a_seed_below_0_is_refused() -> None:
    with pytest.raises(StudyError, match="the seed is -1; the least is 0"):
        tune(Valley(), 4, seed=-1)


def test_a_file_that_is_no_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    with pytest.raises(StudyError, match=r"notes\.txt: no study of this package"):
        tune(Valley(), 4, file=tmp_path / "notes.txt")
    with pytest.raises(StudyError, match="in a folder that exists"):
        tune(Valley(), 4, file=tmp_path / "nowhere" / "study.log")


@pytest.mark.parametrize("where", ["0", "-1", "many", "http://host"])
def test_workers_that_do_not_exist_are_refused(where: str) -> None:
    with pytest.raises(StudyError, match="must be a number of processes"), workers(Valley(), where):
        pass


@pytest.mark.long
@pytest.mark.usefixtures("warm_processes")
@pytest.mark.parametrize("where", ["2", "ray"])
def test_many_workers_find_what_one_finds(where: str) -> None:
    problem: Problem = Valley()
    try:
        with workers(problem, where) as many:
            assert found(tune(problem, 16, workers=many)) == found(tune(problem, 16))
    except MissingError as e:
        pytest.skip(str(e))


def test_the_page_shows_trials_and_plots() -> None:
    problem = Valley(goals=("cost ms", "x"))
    text = page(problem, tune(problem, 8))
    assert "valley" in text
    assert "<td>best</td>" in text
    assert text.count("plotly-graph-div") == 7


def test_a_file_that_is_no_study_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    for text in ("hello\n", '{"a": 1}\n', "12\n"):
        other.write_text(text)
        with pytest.raises(StudyError, match=r"notes\.txt: no study of this package"):
            tune(Valley(), 4, file=other)
        assert other.read_text() == text


def test_the_search_for_a_machine_is_another_one_when_the_model_changes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from rsn.rsnlib.streamed.search import BlockSearch

    def name(file: str, columns: int) -> str:
        (tmp_path / file).write_text(
            f"import torch\ndef block():\n    return torch.nn.Linear(8, {columns}).eval(), (torch.randn(4, 8),)\n"
        )
        return BlockSearch(f"{tmp_path / file}:block", "u55c").name.removeprefix(str(tmp_path / file))

    assert name("a.py", 16) == name("b.py", 16) != name("c.py", 24)
