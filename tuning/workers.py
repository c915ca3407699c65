"""Where choices are evaluated: in this process, in several of this computer, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Protocol

from ..base.errors import BoardError, StudyError, require
from .problem import Choice, Outcome, Problem, outcome

INSTALL_RAY = "pip install -e '.[ray]'"


class Workers(Protocol):
    """Evaluates choices, some at the same time."""

    def evaluate(self, choices: Sequence[Choice]) -> Iterator[tuple[int, Outcome]]:
        """The outcome of each choice, with its index in `choices`, in the order in which they are ready. Raises what
        the evaluation of a choice raises, but no `RsnError`, which is an outcome."""
        ...


class InThisProcess:
    """Evaluates choices of a problem in this process, one after the other."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def evaluate(self, choices: Sequence[Choice]) -> Iterator[tuple[int, Outcome]]:
        """The outcomes, each with its index, in the order of the choices. Raises what the evaluation of a choice
        raises."""
        for index, choice in enumerate(choices):
            yield index, outcome(self._problem, choice)


class Processes:
    """Evaluates choices of a problem in the processes of `pool`, which are on this computer."""

    def __init__(self, problem: Problem, pool: ProcessPoolExecutor) -> None:
        self._problem, self._pool = problem, pool

    def evaluate(self, choices: Sequence[Choice]) -> Iterator[tuple[int, Outcome]]:
        """The outcomes, each with its index in `choices`, in the order in which they are ready. Raises what the
        evaluation of a choice raises."""
        running = {self._pool.submit(outcome, self._problem, choice): k for k, choice in enumerate(choices)}
        for done in as_completed(running):
            yield running[done], done.result()


class OnRay:
    """Evaluates choices of a problem as tasks of the Ray cluster that this process is connected to. Ray starts a task
    again when its machine fails; that changes nothing, because an outcome depends on the choice alone."""

    def __init__(self, problem: Problem) -> None:
        import ray

        self._ray = ray
        self._problem = ray.put(problem)
        self._outcome = ray.remote(outcome)

    def evaluate(self, choices: Sequence[Choice]) -> Iterator[tuple[int, Outcome]]:
        """The outcomes, each with its index in `choices`, in the order in which they are ready. Raises the error of an
        evaluation, as Ray wraps it (`RayTaskError`)."""
        running = {self._outcome.remote(self._problem, choice): k for k, choice in enumerate(choices)}
        while running:
            ready, _ = self._ray.wait(list(running))
            for done in ready:
                yield running.pop(done), self._ray.get(done)


@contextmanager
def workers(problem: Problem, where: str = "1") -> Iterator[Workers]:
    """The workers that a text names, for a `with` block.

    problem: the problem whose choices are evaluated. where: a number of processes, `ray://HOST:PORT` for a running Ray
    cluster, or `ray` for one on this computer. The machines of a cluster need this package, and the files that the
    problem names, at the same paths. Raises `StudyError` for another text, `MissingError` without Ray, `BoardError` if
    the cluster cannot be reached."""
    if where == "ray" or where.startswith("ray://"):
        require("ray", "a search on a Ray cluster", INSTALL_RAY)
        with _ray_connection(where):
            yield OnRay(problem)
    elif not where.isdigit() or not int(where):
        raise StudyError(f"workers {where!r}: must be a number of processes from 1 on, ray://HOST:PORT, or ray")
    elif where == "1":
        yield InThisProcess(problem)
    else:
        # A fresh interpreter each: PyTorch's threads do not survive a fork.
        with ProcessPoolExecutor(int(where), multiprocessing.get_context("spawn")) as pool:
            yield Processes(problem, pool)


@contextmanager
def _ray_connection(where: str) -> Iterator[None]:
    import ray

    try:
        ray.init(
            address="local" if where == "ray" else where,
            ignore_reinit_error=True,
            include_dashboard=False if where == "ray" else None,
            log_to_driver=False,
        )
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as e:
        raise BoardError(f"no Ray cluster at {where}: {e}") from e
    try:
        yield
    finally:
        ray.shutdown()
