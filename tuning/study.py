"""A study: rounds of choices that Optuna proposes, each evaluated and written to a file before the next round.

A round has a fixed number of choices, whatever evaluates them, and Optuna's random numbers depend on the seed and on
the round alone. So the same seed gives the same trials on one worker and on many, and also after an interruption.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import StudyError, require
from .problem import Choice, Outcome, Problem, size
from .workers import InThisProcess, Workers

if TYPE_CHECKING:
    import optuna

INSTALL = "pip install -e '.[tune]'"

PROPOSED_AT_RANDOM = 10
"""Trials before Optuna's model of the costs proposes (its own default)."""

MOST_REPEATED = 4
"""The search ends when it has proposed this many choices for each new one: its model is sure of itself."""


NEAR = 0.7
"""How often a neighbour of a choice has the next value of a knob, not any other one."""
MIXED = 0.3
"""How often it is a neighbour of a mixture of two choices."""
TRIES = 20
"""How often a neighbour is drawn for each that is wanted."""


@dataclass(frozen=True)
class Trial:
    """An evaluated choice. number: counted from 0."""

    number: int
    choice: Choice
    outcome: Outcome


@dataclass(frozen=True)
class StudyResult:
    """The trials of a study in order. best: for one goal the cheapest trial; for several all that no other trial beats
    in every goal, by their first cost. study: Optuna's own object, for its plots."""

    trials: tuple[Trial, ...]
    best: tuple[Trial, ...]
    study: Any


Observe = Callable[[Trial], None]
"""Called with each trial when it is evaluated, in the order of completion."""


def tune(
    problem: Problem,
    trials: int,
    *,
    seed: int = 0,
    together: int = 4,
    file: Path | None = None,
    workers: Workers | None = None,
    observe: Observe = lambda trial: None,
    neighbours: bool = False,
) -> StudyResult:
    """Search the choice with the least cost, or for several goals those that no other choice beats.

    trials: number of different choices that are evaluated in all, rounded up to whole rounds; a problem with no more
    choices than that is searched exhaustively. A choice that is proposed again is not evaluated again; the search also
    ends once it has proposed `MOST_REPEATED` choices for each of `trials`. seed: of Optuna's random numbers. together:
    number of choices of a round; more than one worker needs more than one. neighbours: all choices of a round but one
    are made from one of the best so far, or from a mixture of two, by changing a knob or two; for problems where few
    choices at random can be built. file: of the study, which is continued if it exists; None keeps it in memory.
    workers: where choices are evaluated; None: in this process. observe: called with each new trial. Raises
    `StudyError` for a file that is no study, or that belongs to another search (problem, knobs, seed, `together` or
    `neighbours` differ), and for a number that is too small; `MissingError` without Optuna."""
    require("optuna", "a search", INSTALL)
    if trials < 1 or together < 1:
        raise StudyError(f"{trials} trials, {together} together: both must be at least 1")
    if seed < 0:
        raise StudyError(f"the seed is {seed}; the least is 0")
    study = _opened(problem, seed, together, file, neighbours)
    evaluator = workers or InThisProcess(problem)
    count = min(trials, size(problem.knobs))
    while True:
        done = study.trials
        known = {_key(trial.params): _outcome_of(trial) for trial in done}
        first = len(done) // together * together
        if first == len(done) and (len(known) >= count or len(done) >= MOST_REPEATED * count):
            return result_of(study)
        # After an interruption a round may be written in part: it is proposed again, from the trials before it.
        listed = _listed(problem, done[:first], count)
        if neighbours and not listed:
            listed = _neighbours(problem, done[:first], seed, together - 1)
        proposed = _proposed(study, problem, done[:first], seed, together, listed)[len(done) - first :]
        # A choice that was evaluated before, in this round or an earlier one, has the same outcome again.
        fresh: dict[str, tuple[int, Choice]] = {}
        for number, choice in enumerate(proposed, len(done)):
            fresh.setdefault(_key(choice), (number, choice))
        keys = [key for key in fresh if key not in known]
        for index, found in evaluator.evaluate([fresh[key][1] for key in keys]):
            known[keys[index]] = found
            observe(Trial(*fresh[keys[index]], found))
        # Written in the order of their numbers, so that the study does not depend on who was faster.
        for choice in proposed:
            _write(study, problem, choice, known[_key(choice)])


def result_of(study: Any) -> StudyResult:
    """The trials of an Optuna study that `tune` made, and the best of them."""
    made = _made(study.trials)
    return StudyResult(made, _best(made), study)


def _made(trials: Sequence[optuna.trial.FrozenTrial]) -> tuple[Trial, ...]:
    return tuple(Trial(t.number, t.params, _outcome_of(t)) for t in trials)


def _best(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """The trials with costs of which no other one is as good in every goal, by their first cost; of equal ones the
    first."""
    best: list[Trial] = []
    able = (trial for trial in trials if trial.outcome.costs)
    for trial in sorted(able, key=lambda trial: (trial.outcome.costs, trial.number)):
        costs = trial.outcome.costs
        if not any(all(a <= b for a, b in zip(other.outcome.costs, costs, strict=True)) for other in best):
            best.append(trial)
    return tuple(best)


def _opened(problem: Problem, seed: int, together: int, file: Path | None, neighbours: bool) -> optuna.Study:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = None
    if file is not None:
        if file.is_dir() or not file.absolute().parent.is_dir():
            raise StudyError(f"{file}: a study needs a file in a folder that exists")
        _require_journal(file)
        _drop_torn_line(file)
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(file)))
    identity = {
        "problem": problem.name,
        "goals": list(problem.goals),
        "knobs": {knob.name: list(knob.values) for knob in problem.knobs},
        "seed": seed,
        "together": together,
    }
    if neighbours:
        identity["neighbours"] = True
    try:
        study = optuna.create_study(
            storage=storage,
            study_name="rsn",
            directions=["minimize"] * len(problem.goals),
            load_if_exists=True,
        )
    except (json.JSONDecodeError, KeyError, UnicodeDecodeError) as e:
        raise StudyError(f"{file}: no study of this package ({e})") from e
    before = study.user_attrs.get("identity")
    if before is None:
        if study.trials:
            raise StudyError(f"{file}: a study of something else: it does not say what it searches")
        study.set_user_attr("identity", identity)
        return study
    for name in {**identity, **before}:
        if before.get(name) != identity.get(name):
            raise StudyError(f"{file}: it has {name} {before.get(name)}, not {identity.get(name)}; give another file")
    if not all(trial.state.is_finished() for trial in study.trials):
        raise StudyError(f"{file}: it has trials without an outcome, of an older version; give another file")
    return study


def _require_journal(file: Path) -> None:
    """Raise `StudyError` for a file that is neither empty nor a journal: Optuna would append to it."""
    if not file.exists():
        return
    with file.open("rb") as lines:
        first = lines.readline()
    if not first:
        return
    try:
        entry = json.loads(first)
    except ValueError:
        entry = None
    if not isinstance(entry, dict) or "op_code" not in entry:
        raise StudyError(f"{file}: no study of this package: its first line is no entry of one; give another file")


def _drop_torn_line(file: Path) -> None:
    """Take away an entry at the end of a journal that was not written to its end: Optuna would append to it."""
    written = file.read_bytes() if file.exists() else b""
    end = written.rfind(b"\n") + 1
    if end < len(written):
        with file.open("rb+") as lines:
            lines.truncate(end)


def _distributions(problem: Problem) -> dict[str, optuna.distributions.BaseDistribution]:
    import optuna

    return {knob.name: optuna.distributions.CategoricalDistribution(knob.values) for knob in problem.knobs}


def _listed(problem: Problem, before: Sequence[optuna.trial.FrozenTrial], count: int) -> list[Choice]:
    """The choices to try first that no trial had; with a `count` of all choices, all of them."""
    listed = {_key(choice): choice for choice in problem.start}
    if count == size(problem.knobs):
        names = [knob.name for knob in problem.knobs]
        for values in product(*(knob.values for knob in problem.knobs)):
            every = dict(zip(names, values, strict=True))
            listed.setdefault(_key(every), every)
    for trial in before:
        listed.pop(_key(trial.params), None)
    return list(listed.values())


def _neighbours(problem: Problem, before: Sequence[optuna.trial.FrozenTrial], seed: int, count: int) -> list[Choice]:
    """Choices that no trial had, and that differ from one of the best before, or a mixture of two, in one knob or two:
    most by the next value of the knob. They depend on the trials before and the seed alone."""
    random = np.random.default_rng([seed, len(before)])
    best = _best(_made(before))
    known = {_key(trial.params) for trial in before}
    knobs = [knob for knob in problem.knobs if len(knob.values) > 1]
    found: list[Choice] = []
    for _ in range(TRIES * count if best and knobs else 0):
        choice = dict(best[int(random.integers(len(best)))].choice)
        if random.random() < MIXED:
            other = best[int(random.integers(len(best)))].choice
            choice = {name: (choice, other)[int(random.integers(2))][name] for name in choice}
        for at in random.choice(len(knobs), min(int(random.integers(1, 3)), len(knobs)), replace=False):
            values = knobs[at].values
            place = values.index(choice[knobs[at].name])
            near = [i for i in (place - 1, place + 1) if 0 <= i < len(values)]
            others = near if random.random() < NEAR else [i for i in range(len(values)) if i != place]
            choice[knobs[at].name] = values[others[int(random.integers(len(others)))]]
        if _key(choice) not in known and len(found) < count:
            known.add(_key(choice))
            found.append(choice)
    return found


def _proposed(
    study: optuna.Study,
    problem: Problem,
    before: Sequence[optuna.trial.FrozenTrial],
    seed: int,
    together: int,
    listed: Sequence[Choice],
) -> list[Choice]:
    """The choices of a round: those listed, and then Optuna's. They depend on the trials before it, the seed, the
    problem and the list alone."""
    import optuna

    sampler = optuna.samplers.TPESampler(
        # A new sampler for each round: what it draws does not depend on the rounds before having run in this process.
        seed=int(np.random.SeedSequence([seed, len(before)]).generate_state(1)[0]),
        n_startup_trials=PROPOSED_AT_RANDOM,
        multivariate=True,
        constant_liar=True,
    )
    # In memory: the file gets trials with their outcomes only, so that an interruption leaves none half proposed.
    scratch = optuna.create_study(directions=study.directions, sampler=sampler)
    scratch.add_trials(before)
    for choice in listed[:together]:
        scratch.enqueue_trial(dict(choice))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        asked = [scratch.ask(_distributions(problem)) for _ in range(together)]
    return [trial.params for trial in asked]


def _write(study: optuna.Study, problem: Problem, choice: Choice, found: Outcome) -> None:
    """Add a trial to the study, with its outcome, in one step."""
    from optuna.trial import TrialState, create_trial

    facts: dict[str, float | str] = {**found.facts}
    state = TrialState.COMPLETE
    if found.refused:
        # Optuna's model counts a pruned trial as a bad one; with several goals it knows failed ones only.
        state = TrialState.PRUNED if len(problem.goals) == 1 else TrialState.FAIL
        facts = {"refused": found.refused}
    costs = None if found.refused else list(found.costs)
    of = _distributions(problem)
    study.add_trial(create_trial(state=state, params=dict(choice), distributions=of, values=costs, user_attrs=facts))


def _outcome_of(trial: optuna.trial.FrozenTrial) -> Outcome:
    refused = trial.user_attrs.get("refused", "")
    if refused or trial.values is None:
        return Outcome(refused=refused or "it was not evaluated")
    return Outcome(tuple(trial.values), dict(trial.user_attrs))


def _key(choice: Choice) -> str:
    return json.dumps(choice, sort_keys=True)
